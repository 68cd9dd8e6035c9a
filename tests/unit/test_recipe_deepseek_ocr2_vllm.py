"""DeepSeek-OCR-2: what differs from DeepSeek-OCR, whose reading of the answers it shares."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

deepseek2 = load_recipe("deepseek-ocr2-vllm")


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), "<image>\n<|grounding|>Convert the document to markdown."),
        (("--prompt-mode", "free"), "<image>\nFree OCR."),
        (("--prompt", "Who signed?"), "Who signed?"),
    ],
)
def test_body(words, prompt):
    options, page = options_of(deepseek2, *words), page_of(deepseek2)
    assert body_of(deepseek2, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 6976,
        "temperature": 0.0,
        "skip_special_tokens": False,
        "vllm_xargs": {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821, 128822]},
    }


def test_room():
    recipe = deepseek2.RECIPE
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] <= recipe["context"]
    assert recipe["environment"] == {"VLLM_USE_V2_MODEL_RUNNER": "0"}


@pytest.mark.parametrize(
    "text, words, markdown, boxes, flags",
    [
        ("<|ref|>sub_title<|/ref|><|det|>[[0, 500, 999, 999]]<|/det|>\n## Births", (), "## Births",
         [[0, 878, 1240, 1754]], []),
        ("Births", ("--task", "free"), "Births", None, []),
        ("Births", (), "Births", None, ["unparsed"]),
        ("", (), "", None, []),
    ],
)  # fmt: skip
def test_parse(text, words, markdown, boxes, flags):
    result = deepseek2.parse(deepseek2.Answer(text), page_of(deepseek2), options_of(deepseek2, *words))
    assert (result.markdown, result.flags) == (markdown, flags)
    assert boxes == (result.blocks and [block["bbox"] for block in result.blocks["blocks"]])
