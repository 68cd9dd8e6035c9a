"""Unlimited-OCR: what is asked, and the text with and without its tags."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

unlimited = load_recipe("unlimited-ocr-vllm")

ANSWER = (
    "<|det|>title [101, 80, 890, 131]<|/det|># Shipping News\n<|det|>image [500,150,900,420]<|/det|>\n"
    "<|det|>table [0, 0, 999, 999]<|/det|><table><tr><td>Port</td></tr></table>\n"
)
MARKDOWN = "# Shipping News\n\n<table><tr><td>Port</td></tr></table>"


def read(text, *words):
    return unlimited.parse(unlimited.Answer(text), page_of(unlimited), options_of(unlimited, *words))


def test_body():
    options, page = options_of(unlimited), page_of(unlimited, (5000, 7000))
    assert page.image.width * page.image.height <= 32 * 640 * 640
    assert body_of(unlimited, page, options) == {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": page.image},
                    {"type": "text", "text": "<image>document parsing."},
                ],
            }
        ],
        "max_tokens": 8192,
        "temperature": 0.0,
        "skip_special_tokens": False,
        "vllm_xargs": {"ngram_size": 35, "window_size": 128},
    }


def test_engine():
    recipe, args = unlimited.RECIPE, unlimited.engine_args(options_of(unlimited), unlimited.RECIPE)
    assert args["logits_processors"] == ["vllm.model_executor.models.unlimited_ocr:NGramPerReqLogitsProcessor"]
    assert args["limit_mm_per_prompt"] == {"image": 1, "video": 0} and args["max_model_len"] == 32768
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] <= recipe["context"]


def test_the_models_text_stays_tagged():
    result = read(ANSWER + "<｜end▁of▁sentence｜>")
    assert result.markdown == ANSWER.strip() and result.columns == {} and result.flags == []
    assert [(b["label"], b["bbox"], b["content"]) for b in result.blocks["blocks"]] == [
        ("title", [125, 140, 1105, 230], "# Shipping News"),
        ("picture", [621, 263, 1117, 737], ""),
        ("table", [0, 0, 1240, 1754], "<table><tr><td>Port</td></tr></table>"),
    ]


def test_without_tags():
    result = read(ANSWER, "--strip-grounding", "--grounding-column", "tagged")
    assert (result.markdown, result.columns) == (MARKDOWN, {"tagged": ANSWER.strip()})
    assert len(result.blocks["blocks"]) == 3


@pytest.mark.parametrize("name", ["markdown", "unlimited_blocks"])
def test_columns_of_one_name(name):
    with pytest.raises(unlimited.Stop, match="is taken"):
        unlimited.check(options_of(unlimited, "--grounding-column", name))


def test_the_column_of_the_tagged_text_is_declared():
    assert unlimited.check(options_of(unlimited)) == {}
    assert unlimited.check(options_of(unlimited, "--grounding-column", "tagged")) == {"columns": {"tagged": "string"}}
    assert "columns" not in unlimited.RECIPE


@pytest.mark.parametrize(
    "text, markdown, flags",
    [
        ("", "", []),  # a blank page
        ("title [6, 17, 991, 82]Some text", "title [6, 17, 991, 82]Some text", ["unparsed"]),  # tags were skipped
        ("x " * 999, ("x " * 999).strip(), ["unparsed"]),
        (ANSWER + "<|det|>te", MARKDOWN, []),
        (ANSWER + "<|det|>text [98, 4", MARKDOWN, []),
        (ANSWER + "<|det|>text [98, 450, 900, 700]<|/det|>Arr", MARKDOWN + "\n\nArr", []),
        ("<|det|>text [5, 5, 4]<|/det|>kept", "kept", ["unparsed"]),
        ("<|det|>text [5000, 5000, 6000, 6000]<|/det|>kept", "kept", []),
    ],
)
def test_broken_answers(text, markdown, flags):
    result = read(text, "--strip-grounding")
    assert (result.markdown, result.flags) == (markdown, flags)
