"""PaddleOCR-VL-1.6: what is asked and shown in each mode, and the boxes of spotting."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

paddle = load_recipe("paddleocr-vl-1.6")

LOCS = "".join(f"<|LOC_{n}|>" for n in (100, 80, 300, 80, 300, 120, 100, 120))


def read(text, *words):
    return paddle.parse(paddle.Answer(text), page_of(paddle), options_of(paddle, *words))


@pytest.mark.parametrize(
    "task, prompt",
    [
        ("ocr", "OCR:"),
        ("table", "Table Recognition:"),
        ("formula", "Formula Recognition:"),
        ("chart", "Chart Recognition:"),
        ("seal", "Seal Recognition:"),
    ],
)
def test_body(task, prompt):
    options, page = options_of(paddle, "--task-mode", task), page_of(paddle)
    assert body_of(paddle, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 4096,
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    "size, words, shown",
    [
        ((400, 300), (), (800, 600)),  # doubled
        ((1499, 700), (), (1854, 866)),  # doubled, then within the bound
        ((1500, 700), (), (1500, 700)),
        ((3000, 4000), (), (1097, 1463)),
        ((400, 300), ("--max-pixels", 100_000), (365, 274)),
    ],
)
def test_spotting(size, words, shown):
    options = options_of(paddle, "--task", "spotting", *words)
    body = body_of(paddle, page_of(paddle, size, options), options)
    image, prompt = body["messages"][0]["content"]
    assert prompt == {"type": "text", "text": "Spotting:"} and body["skip_special_tokens"] is False
    assert image["image"].width * image["image"].height <= 1605632
    assert image["image"].size == pytest.approx(shown, abs=2)


@pytest.mark.parametrize(
    "words, size, sent",
    [
        ((), (1240, 1754), (1240, 1754)),
        ((), (2480, 3508), 2822400),
        (("--no-smart-resize",), (2480, 3508), (2480, 3508)),
    ],
)  # fmt: skip
def test_image_sent(words, size, sent):
    image = page_of(paddle, size, options_of(paddle, *words)).image
    assert image.size == sent or sent * 0.99 < image.width * image.height <= sent


def test_room():
    recipe, args = paddle.RECIPE, paddle.engine_args(options_of(paddle), paddle.RECIPE)
    assert (
        args["mm_processor_kwargs"]["max_pixels"] == recipe["image"]["max_pixels"] <= 28 * 28 * recipe["image_tokens"]
    )
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] <= recipe["context"]
    words = paddle.cli_args(args)
    assert words[words.index("--mm-processor-kwargs") + 1] == '{"min_pixels": 112896, "max_pixels": 2822400}'


@pytest.mark.parametrize(
    "text, words, markdown, flags",
    [
        ("Parish of St. Mary\nBirths </s>", (), "Parish of St. Mary\nBirths", []),
        ("", (), "", []),
        ("ab" * 300, (), "ab", ["trimmed"]),
        ("<fcel>a<ecel><nl><fcel>b", ("--task", "table"), "<table><tr><td>a</td></tr><tr><td>b</td></tr></table>", []),
        ("<fcel>a<ecel><nl>", ("--task", "table", "--otsl"), "<fcel>a<ecel><nl>", []),
        ("<fcel>a" + "<ecel>" * 3000, ("--task", "table"), "<table><tr><td>a</td></tr></table>", ["trimmed"]),
        (r"\[ E = mc^{2} \]", ("--task", "formula"), "$$  E = mc^{2}  $$", []),
        ("a | b\n1 | 2", ("--task", "chart"), "| a | b |\n| --- | --- |\n| 1 | 2 |", []),
        ("no places", ("--task", "spotting"), "no places", ["unparsed"]),
        ("", ("--task", "spotting"), "", []),
    ],
)  # fmt: skip
def test_parse(text, words, markdown, flags):
    result = read(text, *words)
    assert (result.markdown, result.blocks, result.flags) == (markdown, None, flags)


def test_spotted_boxes_are_pixels_of_the_original():
    result = read(f"Rue Haute{LOCS}No. 14{LOCS}half<|LOC_1|>", "--task", "spotting")
    assert result.markdown == "Rue Haute\n\nNo. 14\n\nhalf" and result.flags == []
    assert [block["bbox"] for block in result.blocks["blocks"]] == [[124, 140, 372, 210]] * 2 + [None]
