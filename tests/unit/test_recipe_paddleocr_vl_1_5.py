"""PaddleOCR-VL-1.5 in transformers: prompts, bounds, and answers. The real class runs in tests/engine."""

import pytest
from PIL import Image

from tests.unit.recipe_file import load_recipe

paddle = load_recipe("paddleocr-vl-1.5")
LINE = "Rue Haute<|LOC_120|><|LOC_88|><|LOC_310|><|LOC_88|><|LOC_310|><|LOC_121|><|LOC_120|><|LOC_121|>"


def options(*words):
    settings = paddle.option_parser(paddle.RECIPE, paddle.add_options).parse_args(["in", "out", *map(str, words)])
    paddle.settle(settings, paddle.RECIPE, {"local": None})
    return settings


def page(size=(1000, 1400)):
    return paddle.Page(Image.new("RGB", size, "white"), *size)


def read(text, *words, finish_reason="stop"):
    return paddle.parse(paddle.Answer(text, finish_reason), page(), options(*words))


def test_prompts_and_limits():
    assert list(paddle.RECIPE["tasks"].values()) == [
        "OCR:", "Table Recognition:", "Formula Recognition:", "Chart Recognition:", "Spotting:", "Seal Recognition:",
    ]  # fmt: skip
    assert options().max_tokens == 4096 and options("--task-mode", "seal").task == "seal"


@pytest.mark.parametrize(
    "size, words, shown, most",
    [
        ((1000, 1400), (), (1000, 1400), 2822400),
        ((1000, 1400), ("--max-pixels", 500000), (1000, 1400), 500000),
        ((1000, 1400), ("--task", "spotting"), (2000, 2800), 1605632),  # small pages are doubled
        ((1600, 1000), ("--task", "spotting"), (1600, 1000), 1605632),
    ],
)
def test_what_the_processor_gets(size, words, shown, most):
    image, limit = paddle.prepared(page(size), options(*words))
    assert (image.size, limit) == (shown, most)


@pytest.mark.parametrize(
    "text, words, markdown, flags",
    [
        ("Parish of St. Mary\nBirths</s>", (), "Parish of St. Mary\nBirths", []),
        ("", (), "", []),
        (
            "<fcel>Year<fcel>n<nl><fcel>1871<fcel>204<nl>",
            ("--task", "table"),
            "<table><tr><td>Year</td><td>n</td></tr><tr><td>1871</td><td>204</td></tr></table>",
            [],
        ),
        ("<fcel>Year<nl>", ("--task", "table", "--otsl"), "<fcel>Year<nl>", []),
        ("no places", ("--task", "spotting"), "no places", ["unparsed"]),
    ],
)
def test_answers(text, words, markdown, flags):
    parsed = read(text, *words)
    assert (parsed.markdown.strip(), parsed.flags, parsed.blocks) == (markdown, flags, None)


def test_spotted_lines_have_boxes():
    parsed = read(LINE, "--task", "spotting")
    (block,) = parsed.blocks["blocks"]
    assert (parsed.markdown, block["bbox"], block["content"]) == ("Rue Haute", [120, 123, 310, 169], "Rue Haute")


def test_truncated_is_said():
    assert read("half a page", finish_reason="length").flags == ["truncated"]


def test_needs_a_gpu_or_patience(monkeypatch):
    monkeypatch.setattr(paddle, "gpus", list)
    monkeypatch.delenv("OCR_ALLOW_CPU", raising=False)
    with pytest.raises(paddle.Stop, match="OCR_ALLOW_CPU=1"):
        paddle.check(options())
    monkeypatch.setenv("OCR_ALLOW_CPU", "1")
    assert paddle.check(options())["device"] == "cpu"
    monkeypatch.setattr(paddle, "gpus", lambda: [(1, 2)])
    assert paddle.check(options()) is None


def test_loops_are_cut_and_said():
    parsed = read("the quay was flooded " * 40)
    assert parsed.flags == ["trimmed"] and len(parsed.markdown) < 200
