"""LFM2.5-VL Extract: fields and schemas, what is asked, and what becomes of the answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

lfm = load_recipe("lfm2-vl-extract")

FIELDS = '{"title": "as printed", "year": ""}'
SCHEMA = {
    "$defs": {"Kind": {"enum": ["ship", "ferry"], "type": "string"}},
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/Kind", "description": "what sails"},
        "year": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    },
    "required": ["kind"],
}


def parsed(text, source=FIELDS):
    return lfm.parse(lfm.Answer(text), page_of(lfm), options_of(lfm, "--schema", source))


@pytest.mark.parametrize(
    "words, system",
    [
        (
            ("--schema", FIELDS),
            "Extract the following from the image:\n\ntitle: as printed\nyear\n\nRespond with only a JSON object.",
        ),
        (("--schema", '["title", "year"]', "--task", "fields"), "title\nyear"),
        (("--schema", '{"a{fields}": "x\\ny"}', "--task", "fields"), "a{fields}: x\ny"),
        (
            ("--schema", json.dumps(SCHEMA), "--prompt-mode", "fields"),
            "kind: what sails, select from ship, ferry\nyear",
        ),
    ],
)
def test_body(words, system):
    options, page = options_of(lfm, *words, "--no-constrained"), page_of(lfm)
    assert body_of(lfm, page, options) == {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "image", "image": page.image}]},
        ],
        "max_tokens": 1024,
        "temperature": 0.0,
    }
    columns = {"extraction_valid": "bool", "extraction_error": "string"}
    assert lfm.check(options) == {"columns": columns, "tasks": {options.task: system}}


def test_constrained():
    body = body_of(lfm, page_of(lfm), options_of(lfm, "--schema", json.dumps(SCHEMA)))
    schema = body["structured_outputs"]["json"]
    assert schema["required"] == ["kind", "year"] and schema["additionalProperties"] is False
    assert schema["properties"]["kind"]["enum"] == ["ship", "ferry", None]
    assert schema["properties"]["year"]["type"] == ["integer", "null"]


@pytest.mark.parametrize(
    "source, says",
    [
        ('{"lines": {"name": "x"}}', "no flat list of fields"),
        ('{"lines": ["name"]}', "no flat list of fields"),
        ('["a", 1]', "no flat list of fields"),
        ("[]", "no flat list of fields"),
        ("7", "no flat list of fields"),
        ('{"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}}}', "l is nested"),
        ('{"properties": {"l": {"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}}}', "l is nested"),
        ('{"properties": {"l": {"$ref": "#/properties/l"}}}', "circle"),
        ("fields.json", "no such file"),
    ],
)
def test_what_is_not_flat_stops_the_run(source, says):
    with pytest.raises(lfm.Stop, match=says):
        options_of(lfm, "--schema", source)


def test_schema_is_required(capsys):
    with pytest.raises(SystemExit) as exit:
        options_of(lfm)
    assert exit.value.code == 2 and "--schema" in capsys.readouterr().err


@pytest.mark.parametrize("size", [(1240, 1754), (4000, 6000), (10000, 300)])
def test_worst_case_fits(size):
    recipe = lfm.RECIPE
    assert recipe["image_tokens"] + recipe["max_tokens"] < recipe["max_model_len"] <= recipe["context"]
    assert page_of(lfm, size).image.width * page_of(lfm, size).image.height <= 5242880


@pytest.mark.parametrize(
    "text, valid, says",
    [
        ('{"title": "Fähre", "year": 1911}', True, None),
        ('```json\n{"title": null}\n```', True, None),
        ('{"title": "Ferry", "route": "A"}', False, "'route' was unexpected"),
        ('{"title": {"de": "Fähre"}}', False, "$.title"),
        ('{"title": "Fer', False, "no JSON"),
        ("", False, "no JSON"),
        ("title: Ferry", False, "no JSON"),
    ],
)
def test_parse(text, valid, says):
    columns = parsed(text).columns
    assert columns["extraction_valid"] is valid
    assert columns["extraction_error"] is None if valid else says in columns["extraction_error"]


def test_types_of_a_json_schema_are_checked():
    assert parsed('{"kind": "ship", "year": "1911"}', json.dumps(SCHEMA)).flags == ["invalid"]
    assert parsed('{"kind": null, "year": 1911}', json.dumps(SCHEMA)).flags == []


@given(st.text())
def test_hostile_answers_never_raise(text):
    parsed(text)


def test_a_property_that_allows_anything():
    fields, schema = options_of(lfm, "--schema", '{"properties": {"a": true, "b": {"type": "string"}}}').schema
    assert fields == {"a": "", "b": ""} and schema["properties"]["a"] == {}
