"""PaddleOCR-VL: what differs from PaddleOCR-VL-1.6, whose reading of the answers it shares."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

paddle = load_recipe("paddleocr-vl")


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), "OCR:"),
        (("--task-mode", "table"), "Table Recognition:"),
        (("--task", "formula"), "Formula Recognition:"),
        (("--task", "chart"), "Chart Recognition:"),
    ],
)
def test_body(words, prompt):
    options, page = options_of(paddle, *words), page_of(paddle, (2480, 3508))
    assert abs(page.image.width / page.image.height - 2480 / 3508) < 0.002, "the shape is kept"
    assert body_of(paddle, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 4096,
        "temperature": 0.0,
    }


@pytest.mark.parametrize("task", ["spotting", "seal"])
def test_tasks_of_later_models(task):
    with pytest.raises(SystemExit):
        options_of(paddle, "--task", task)


@pytest.mark.parametrize(
    "text, words, markdown, flags",
    [
        ("Births", (), "Births", []),
        ("ab" * 300, (), "ab", ["trimmed"]),
        ("<fcel>a<lcel><nl>", ("--task", "table"), '<table><tr><td colspan="2">a</td></tr></table>', []),
        ("", ("--task", "table"), "", []),
    ],
)
def test_parse(text, words, markdown, flags):
    result = paddle.parse(paddle.Answer(text), page_of(paddle), options_of(paddle, *words))
    assert (result.markdown, result.blocks, result.flags) == (markdown, None, flags)
