"""lift: what is asked about a document, in which sizes its pages go, and what becomes of the answer."""

import json

import pytest
from PIL import Image

from tests.unit.recipe_file import load_recipe, options_of, page_of

lift = load_recipe("lift-extract")

SCHEMA = {
    "type": "object",
    "properties": {"total": {"type": "number", "description": "in €"}, "lines": {"type": "array", "items": {}}},
}
WORDS = ("--schema", json.dumps(SCHEMA))
PROMPT = """Extract structured data from this document according to the provided JSON schema.  The document is provided as images, in page order.

## JSON Schema
```json
{
  "type": "object",
  "properties": {
    "total": {
      "type": "number",
      "description": "in \\u20ac"
    },
    "lines": {
      "type": "array",
      "items": {}
    }
  }
}
```

## Instructions
- Return a JSON object matching the schema
- Use the correct type for each field (string, number, array)"""  # noqa: E501


def document(sizes):
    return lift.Unit("bill.pdf", [page_of(lift, size) for size in sizes])


def body(unit, *words):
    options = options_of(lift, *WORDS, *words)
    return lift.complete(lift.request(unit, options), options, lift.RECIPE, unit)


def test_body():
    made = body(document([(784, 1120), (1120, 784)]))
    ((message,), schema) = made.pop("messages"), made.pop("structured_outputs")
    *pages, text = message["content"]
    assert [part["image"].size for part in pages] == [(784, 1120), (1120, 784)], "all pages in order, then the text"
    assert (message["role"], text) == ("user", {"type": "text", "text": PROMPT})
    assert made == {"max_tokens": 12384, "temperature": 0.0, "top_p": 0.1}
    assert schema["json"]["properties"]["total"]["type"] == ["number", "null"]
    assert "structured_outputs" not in body(page_of(lift), "--no-constrained")


@pytest.mark.parametrize(
    "size, dpi, sent",
    [
        ((784, 1120), None, (784, 1120)),
        ((1240, 1754), None, (1036, 1456)),  # 1,531,904 pixels at most
        ((346, 500), None, (700, 1008)),  # 692 pixels across at least
        ((1654, 2339), 200, (784, 1120)),  # A4: 96 dpi
        ((413, 600), 200, (700, 1008)),  # a card: more than 96 dpi, so that it is 692 pixels across
        ((20000, 20), None, (39144, 28)),
    ],
)
def test_sizes_as_upstream_sends_them(size, dpi, sent):
    page = lift.Page(lift.fit(Image.new("RGB", size), lift.RECIPE["image"]), *size, dpi=dpi)
    picture = lift.prepared(page)
    assert picture.size == sent and sent[0] % 28 == sent[1] % 28 == 0


@pytest.mark.parametrize(
    "size, fitted",  # what scale_to_fit of lift-pdf 0.1.2 gives
    [
        ((2480, 3508), (1036, 1456)),
        ((1, 1), (196, 196)),
        ((3000, 400), (2996, 392)),
        ((14000, 30), (14000, 28)),
        ((28, 1408), (28, 1400)),
    ],
)
def test_grid(size, fitted):
    assert lift.grid_size(*size) == fitted


def test_pages_of_a_document():
    unit, single = document([(784, 1120)] * 4), page_of(lift, (784, 1120))
    options = options_of(lift, *WORDS, "--page-range", "0,2-9")
    assert len(lift.pictures(unit, options)) == 3
    assert len(lift.pictures(single, options_of(lift, *WORDS, "--page-range", "5"))) == 1  # an image is no document
    for beyond in (unit, lift.Page(single.image, 784, 1120, dpi=96)):  # four pages, and a PDF of one
        with pytest.raises(lift.PageError, match="no page within --page-range"):
            lift.pictures(beyond, options_of(lift, *WORDS, "--page-range", "5"))
    with pytest.raises(lift.PageError, match="4 pages, and --max-images-per-doc is 3"):
        lift.pictures(unit, options_of(lift, *WORDS, "--max-images-per-doc", 3))


@pytest.mark.parametrize("words", [("--page-range", "a"), ("--page-range", "5-2"), ("--method", "sglang"), ()])
def test_usage(words, capsys):
    with pytest.raises(SystemExit) as exit:
        options_of(lift, *(WORDS if words else ()), *words)
    assert exit.value.code == 2 and (words or ["--schema"])[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, engine",
    [((), "local"), (("--method", "hf"), "local"), (("--method", "vllm"), "offline"), (("--engine", "serve"), "serve")],
)
def test_methods_are_engines(words, engine):
    parser = lift.option_parser(lift.RECIPE, lift.add_options)
    options = parser.parse_args(["in", "out", *WORDS, *words])
    lift.settle(options, lift.RECIPE, dict.fromkeys(lift.RECIPE["engines"]))
    assert options.engine == engine


def test_what_the_options_change_in_the_table(monkeypatch):
    monkeypatch.setattr(lift, "gpus", lambda: [(1, 1)])
    options = options_of(lift, *WORDS, "--max-images-per-doc", 4, "--pdf-column", "file")
    recipe = {**lift.RECIPE, **lift.check(options)}
    assert options.image_column == "file"
    assert lift.engine_args(options, recipe)["limit_mm_per_prompt"] == {"image": 4, "video": 0}
    assert recipe["columns"] == {"extraction_valid": "bool", "extraction_error": "string"}
    assert recipe["tasks"] == {"extract": PROMPT} and recipe["batch"] == 8


def test_context_for_the_pages(monkeypatch):
    monkeypatch.setattr(lift, "gpus", lambda: [(1, 1)])
    for words, fits in ((("--max-images-per-doc", 30), True), (("--max-images-per-doc", 60), False)):
        options = options_of(lift, *WORDS, *words)
        recipe = {**lift.RECIPE, **lift.check(options)}
        if fits:
            lift.check_lengths(options, recipe, {})
        else:
            with pytest.raises(lift.Stop, match="--max-model-len"):
                lift.check_lengths(options, recipe, {})


def test_without_a_gpu_the_run_stops(monkeypatch):
    monkeypatch.delenv("OCR_ALLOW_CPU", raising=False)
    monkeypatch.setattr(lift, "gpus", list)
    options = options_of(lift, *WORDS)
    options.engine = "local"
    with pytest.raises(lift.Stop, match="hf jobs uv run"):
        lift.check(options)


@pytest.mark.parametrize(
    "text, valid",
    [('{"total": null, "lines": []}', True), ('{"total": "1"}', False), ('{"total": 1', False), ("", False)],
)
def test_parse(text, valid):
    result = lift.parse(lift.Answer(text), page_of(lift), options_of(lift, *WORDS))
    assert result.columns["extraction_valid"] is valid and result.markdown == text
