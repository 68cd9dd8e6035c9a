"""LFM2 Extract: schemas, what is asked of a text, and what becomes of the answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import load_recipe, options_of

lfm = load_recipe("lfm2-extract")

SCHEMA = json.dumps({"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "number"}}})


def body(*words, text="Alder & Co, 12.40"):
    options = options_of(lfm, *words)
    unit = lfm.Unit("train-0", [], text)
    return lfm.complete(lfm.request(unit, options), options, lfm.RECIPE, unit)


def parsed(text, *words):
    return lfm.parse(lfm.Answer(text), lfm.Unit("train-0", [], "x"), options_of(lfm, *words))


@pytest.mark.parametrize(
    "words, system",
    [
        ((), "Return data as a JSON object with the following schema:\n\nvendor\ntotal {format}"),
        (("--format", "xml"), "Return data as a XML object with the following schema:\n\nvendor\ntotal {format}"),
        (
            ("--task", "docs", "--format", "yaml"),
            "Identify and extract information matching the following schema. Return data as a YAML object. "
            "Missing data should be omitted.\n\nSchema:\nvendor\ntotal {format}",
        ),
    ],
)
def test_body(words, system):
    words = ("--schema", "vendor\ntotal {format}", *words)
    assert body(*words) == {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": "Alder & Co, 12.40"}],
        "max_tokens": 4096,
        "temperature": 0.0,
    }
    options, columns = options_of(lfm, *words), {"extraction_valid": "bool", "extraction_error": "string"}
    assert lfm.check(options) == {"columns": columns, "tasks": {options.task: system}}


def test_a_file_is_shown_to_the_model_as_it_is(tmp_path):
    file = tmp_path / "schema.yaml"
    file.write_text("vendor: who sells\n")
    assert body("--schema", file)["messages"][0]["content"].endswith("schema:\n\nvendor: who sells\n")


def test_constrained():
    for other in (("--no-constrained",), ("--format", "xml")):
        assert "structured_outputs" not in body("--schema", SCHEMA, *other)
    forced = body("--schema", SCHEMA)["structured_outputs"]["json"]
    assert forced["properties"]["total"] == {"type": ["number", "null"]}


@pytest.mark.parametrize(
    "words, says",
    [
        (("--schema", " "), "empty"),
        (("--schema", "vendor", "--constrained"), "needs --format json and a JSON Schema"),
        (("--schema", SCHEMA, "--constrained", "--format", "xml"), "needs --format json"),
        (("--schema", '{"properties": {"a": {"type": "strng"}}}'), "no JSON Schema"),
    ],
)
def test_contradictions_stop_the_run(words, says):
    with pytest.raises(lfm.Stop, match=says):
        lfm.check(options_of(lfm, *words))


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_not_asked_about_and_is_no_error(text):
    options, item = options_of(lfm, "--schema", "vendor"), lfm.Item("train-0", 0, "train-0", text=text)
    conversation = lfm.converse(item, lfm.Unit("train-0", [], text), None, options, lfm.RECIPE, lfm.steps)
    with pytest.raises(StopIteration) as end:
        next(conversation)
    row = end.value.value
    assert (row["text"], row["error"], row["flags"]) == ("", None, ["empty"])
    assert row["columns"] == {"extraction_valid": False, "extraction_error": "the text is empty"}


def test_steps_ask_once():
    reading = lfm.steps(lfm.Unit("train-0", [], "Alder"), options_of(lfm, "--schema", "vendor"))
    (asked,) = next(reading)
    assert asked["messages"][1] == {"role": "user", "content": "Alder"}
    with pytest.raises(StopIteration) as end:
        reading.send([lfm.Answer('{"vendor": "Alder"}')])
    assert end.value.value.columns["extraction_valid"] is True


def test_no_image_is_counted():
    recipe = lfm.RECIPE
    options = options_of(lfm, "--schema", "vendor")
    assert recipe["max_tokens"] < recipe["max_model_len"] <= recipe["context"]
    assert lfm.window_size(options, recipe) == 512
    lfm.check_lengths(options, recipe, {"max_position_embeddings": 32768})


FENCED = '```json\n{"vendor": "Älder", "total": 3}\n```'


@pytest.mark.parametrize(
    "words, text, stored, error",
    [
        ((SCHEMA,), FENCED, '{"vendor": "Älder", "total": 3}', None),
        ((SCHEMA,), '{"total": null}', '{"total": null}', None),
        ((SCHEMA,), '{"total": "3"}', '{"total": "3"}', "$.total"),
        ((SCHEMA,), '{"total": 3', '{"total": 3', "no JSON"),
        (("vendor",), '[{"anything": 1}]', '[{"anything": 1}]', None),
        (('{"vendor": "string"}',), '{"other": 1}', '{"other": 1}', None),  # a template says nothing about types
        (("v", "--format", "xml"), "```xml\n<d><v>Ä &amp; B</v></d>\n```", "<d><v>Ä &amp; B</v></d>", None),
        (("v", "--format", "xml"), "<d><v>A & B</v></d>", "<d><v>A & B</v></d>", "no XML"),
        (("v", "--format", "xml"), "", "", "no XML"),
        (("v", "--format", "yaml"), "v: Älder\nlines:\n  - 1", "v: Älder\nlines:\n  - 1", None),
        (("v", "--format", "yaml"), "v: a: b", "v: a: b", "no YAML"),
        (("v", "--format", "yaml"), "The vendor is Alder.", "The vendor is Alder.", "plain text"),
        (("v", "--format", "yaml"), "!!python/object:os.system {}", "!!python/object:os.system {}", "no YAML"),
    ],
)
def test_parse(words, text, stored, error):
    result = parsed(text, "--schema", *words)
    assert result.markdown == stored
    assert result.columns["extraction_valid"] is (error is None)
    assert error is None or error in result.columns["extraction_error"]


@given(st.text(), st.sampled_from(["json", "xml", "yaml"]))
def test_hostile_answers_never_raise(text, form):
    parsed(text, "--schema", SCHEMA, "--format", form)


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 5000, "&a [*a]"])
def test_answers_nested_without_end(text):
    parsed(text, "--schema", "v", "--format", "yaml")
