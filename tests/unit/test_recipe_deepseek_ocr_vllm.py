"""DeepSeek-OCR: what is asked in each mode, and the Markdown and boxes of the answers."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

deepseek = load_recipe("deepseek-ocr-vllm")

ANSWER = (
    "<|ref|>title<|/ref|><|det|>[[87, 52, 912, 96]]<|/det|>\n# Annual Report 1898\n\n"
    "<|ref|>image<|/ref|><|det|>[[0, 0, 999, 999]]<|/det|>\n\n"
    "<|ref|>text<|/ref|><|det|>[[88, 120, 910, 233]]<|/det|>\n\\[ x \\coloneqq 1 \\]"
)


def read(text, *words):
    return deepseek.parse(deepseek.Answer(text), page_of(deepseek), options_of(deepseek, *words))


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), "<image>\n<|grounding|>Convert the document to markdown."),
        (("--prompt-mode", "document"), "<image>\n<|grounding|>Convert the document to markdown."),
        (("--task", "image"), "<image>\n<|grounding|>OCR this image."),
        (("--task", "free"), "<image>\nFree OCR."),
        (("--task", "figure"), "<image>\nParse the figure."),
        (("--task", "describe"), "<image>\nDescribe this image in detail."),
        (("--task", "rec", "--locate", "the seal"), "<image>\nLocate <|ref|>the seal<|/ref|> in the image."),
        (("--prompt", "<image>\nWho signed?"), "<image>\nWho signed?"),
    ],
)
def test_body(words, prompt):
    options, page = options_of(deepseek, *words), page_of(deepseek)
    assert body_of(deepseek, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 7168,
        "temperature": 0.0,
        "skip_special_tokens": False,
        "vllm_xargs": {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821, 128822]},
    }


def test_engine():
    args = deepseek.engine_args(options_of(deepseek), deepseek.RECIPE)
    assert args["logits_processors"] == ["vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor"]
    words = deepseek.cli_args(args)
    assert words[words.index("--logits-processors") + 1].endswith("deepseek_ocr:NGramPerReqLogitsProcessor")
    assert {"--no-enable-prefix-caching", "--mm-processor-cache-gb", "--trust-remote-code"} <= set(words)
    recipe = deepseek.RECIPE
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] <= recipe["context"]


def test_a_missing_guard_stops_the_run(tmp_path):
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (models / "registry.py").write_text('"DeepseekOCRForCausalLM"')
    args = deepseek.engine_args(options_of(deepseek), deepseek.RECIPE)
    config = {"architectures": ["DeepseekOCRForCausalLM"]}
    with pytest.raises(deepseek.Stop, match="NGramPerReqLogitsProcessor is not installed"):
        deepseek.check_code(args, config, tmp_path / "vllm")
    (models / "deepseek_ocr.py").write_text("class NGramPerReqLogitsProcessor: ...")
    deepseek.check_code(args, config, tmp_path / "vllm")


@pytest.mark.parametrize(
    "words, message",
    [(("--task", "rec"), "--locate"), (("--prompt", "<image> and <image>"), "more than once")],
)
def test_options_that_do_not_fit(words, message):
    with pytest.raises(deepseek.Stop, match=message):
        deepseek.check(options_of(deepseek, *words))


def test_boxes_are_pixels_of_the_original():
    result = read(ANSWER)
    assert result.markdown == "# Annual Report 1898\n\n\\[ x := 1 \\]" and result.flags == []
    assert [(b["raw_label"], b["bbox"]) for b in result.blocks["blocks"]] == [
        ("title", [108, 91, 1132, 169]),
        ("image", [0, 0, 1240, 1754]),
        ("text", [109, 211, 1130, 409]),
    ]


def test_large_pages_keep_their_own_pixels():
    page = page_of(deepseek, (6000, 9000))
    assert max(page.image.size) == 3840
    result = deepseek.parse(deepseek.Answer(ANSWER), page, options_of(deepseek))
    assert result.blocks["blocks"][1]["bbox"] == [0, 0, 6000, 9000]


@pytest.mark.parametrize("task", ["image", "rec"])
def test_tasks_whose_tags_hold_the_text(task):
    words = ("--task", task, "--locate", "PAID")
    result = read("<|ref|>PAID<|/ref|><|det|>[[1, 2, 30, 40], [50, 60, 70, 80]]<|/det|>", *words)
    assert result.markdown == "PAID" and result.flags == []
    assert [(b["label"], bool(b["bbox"])) for b in result.blocks["blocks"]] == [("text", True)] * 2


@pytest.mark.parametrize(
    "text, words, markdown, flags",
    [
        ("", (), "", []),  # a blank page
        ("title [6, 17, 991, 82]Some text", (), "title [6, 17, 991, 82]Some text", ["unparsed"]),  # tags were skipped
        ("Some text", ("--task", "free"), "Some text", []),
        ("<table><tr><td>1", ("--task", "figure"), "<table><tr><td>1", []),
        ("Some text", ("--prompt", "What is it?"), "Some text", []),
        ("Some text<｜end▁of▁sentence｜>", ("--task", "describe"), "Some text", []),
        ("again " * 900, (), ("again " * 900).strip(), ["unparsed"]),
        ("!" * 400, (), "!" * 400, ["unparsed"]),
    ],
)
def test_answers_without_boxes(text, words, markdown, flags):
    result = read(text, *words)
    assert (result.markdown, result.blocks, result.flags) == (markdown, None, flags)


@pytest.mark.parametrize("length", range(0, len(ANSWER), 7))
def test_cut_off(length):
    """Anywhere but inside a tag, which is one token."""
    cut = ANSWER[:length]
    if cut.count("<|") == cut.count("|>"):
        result = read(cut)
        assert "|" not in result.markdown and (result.blocks or result.flags == ["unparsed"] or not result.markdown)
