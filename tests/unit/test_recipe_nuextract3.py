"""NuExtract3: templates and schemas, what is asked, and what becomes of the answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of
from tests.unit.test_schema import PYDANTIC

nuextract = load_recipe("nuextract3")

TEMPLATE = {
    "store": "verbatim-string",
    "kind": ["shop", "inn"],
    "paid_by": [["cash", "card"]],
    "lines": [{"name": "string", "price": "number"}],
    "where": {"region": "region:FR"},
}
FULL = {"store": "Ö", "kind": "inn", "paid_by": ["cash"], "lines": [{"name": "tea", "price": 3}], "where": None}


def body(*words):
    page = page_of(nuextract)
    made = body_of(nuextract, page, options_of(nuextract, *words))
    assert made.pop("messages") == [{"role": "user", "content": [{"type": "image", "image": page.image}]}]
    return made


def parsed(text, *words):
    return nuextract.parse(
        nuextract.Answer(text, completion_tokens=9), page_of(nuextract), options_of(nuextract, *words)
    )


@pytest.mark.parametrize(
    "words, temperature, arguments",
    [
        ((), 0.2, {"mode": "markdown"}),
        (("--mode", "content"), 0.2, {"mode": "content"}),
        (("--task", "template-generation"), 0.0, {"mode": "template-generation"}),
        (("--enable-thinking",), 0.6, {"mode": "markdown", "enable_thinking": True}),
        (("--temperature", 0.3, "--enable-thinking"), 0.3, {"mode": "markdown", "enable_thinking": True}),
        (("--enable-thinking", "--temperature", 0.0), 0.0, {"mode": "markdown", "enable_thinking": True}),
        (("--instructions", "Dates as printed."), 0.2, {"mode": "markdown", "instructions": "Dates as printed."}),
        (("--template", json.dumps(TEMPLATE), "--no-constrained"), 0.2, {"template": json.dumps(TEMPLATE, indent=4)}),
    ],
)
def test_body(words, temperature, arguments):
    assert body(*words) == {
        "chat_template_kwargs": {"enable_thinking": False, **arguments},
        "max_tokens": 8192,
        "temperature": temperature,
    }


def test_a_json_schema_becomes_a_template_and_its_descriptions_instructions():
    arguments = body("--schema", json.dumps(PYDANTIC), "--instructions", "As printed.")["chat_template_kwargs"]
    assert json.loads(arguments["template"]) == {
        "kind": ["ship", "ferry"],
        "home": {"name": "string"},
        "ports": [{"name": "string"}],
        "year": "integer",
    }
    assert arguments["instructions"] == "As printed.\n$.home: where built"


@pytest.mark.parametrize(
    "leaf, template",
    [
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "uri"}, "url"),
        ({"type": "string", "description": "date"}, "date"),
        ({"type": "string", "x-verbatim": True}, "verbatim-string"),
        ({"type": ["number", "null"]}, "number"),
        ({"enum": ["one"]}, "string"),
        ({"type": "array", "items": {"enum": ["a", "b", None]}}, [["a", "b"]]),
        ({"allOf": [{"type": "boolean"}]}, "boolean"),
    ],
)
def test_leaves_as_the_authors_package_converts_them(leaf, template):
    schema = {"type": "object", "properties": {"x": leaf}}
    assert nuextract.template_of(schema, schema, []) == {"x": template}


LOOP = {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "properties": {"n": {"$ref": "#/$defs/n"}}}


@pytest.mark.parametrize(
    "flag, source, says",
    [
        ("--schema", json.dumps({"properties": {"x": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}), r"\$\.x"),
        ("--schema", json.dumps({"properties": {"x": {"type": "object", "additionalProperties": {}}}}), r"\$\.x"),
        ("--schema", json.dumps({"properties": {"x": {"enum": [1, 2]}}}), r"\$\.x"),
        ("--schema", json.dumps(LOOP), r"\$\.n"),
        ("--schema", '{"properties": {"x": true}}', r"\$\.x"),
        ("--schema", '{"total": "number"}', "no object with properties"),
        ("--template", '{"total": "nummer"}', r'"nummer" at \$\.total'),
        ("--template", '{"total": [1, 2]}', r"at \$\.total"),
        ("--template", '{"total": []}', r"at \$\.total"),
        ("--template", "[]", "no JSON object"),
        ("--template", "bill.json", "no such file"),
    ],
)
def test_what_cannot_be_asked_stops_the_run(flag, source, says):
    with pytest.raises(nuextract.Stop, match=says):
        options_of(nuextract, flag, source)


@pytest.mark.parametrize(
    "words",
    [
        ("--task", "template-generation", "--enable-thinking"),
        ("--constrained",),
        ("--template", '{"a": "date"}', "--constrained", "--enable-thinking"),
    ],
)
def test_contradictions_stop_the_run(words):
    with pytest.raises(nuextract.Stop):
        nuextract.check(options_of(nuextract, *words))


def test_columns_and_task_of_the_run():
    options = options_of(nuextract)
    assert nuextract.check(options)["columns"] == {} and (options.task, options.output_column) == ("markdown",) * 2
    options = options_of(nuextract, "--template", '{"a": "date"}', "--enable-thinking")
    made = nuextract.check(options)
    assert made["columns"] == {
        "extraction_reasoning": "string", "extraction_valid": "bool", "extraction_error": "string"
    }  # fmt: skip
    assert options.task == "structured" and '"a": "date"' in made["tasks"]["structured"]
    assert options_of(nuextract, "--template", '{"a": "date"}', "--output-column", "bill").output_column == "bill"


def test_constrained_to_the_schema_of_the_template():
    words = ("--template", '{"a": "date", "b": [["x", "y"]]}')
    for other in (("--no-constrained",), ("--enable-thinking",)):
        assert "structured_outputs" not in body(*words, *other)
    schema = body(*words)["structured_outputs"]["json"]
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"type": "array", "items": {"enum": ["x", "y", None]}},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }


def test_worst_case_fits():
    recipe = nuextract.RECIPE
    assert recipe["image"]["max_pixels"] / 32 / 32 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] < recipe["max_model_len"] <= recipe["context"]
    assert page_of(nuextract, (4000, 6000)).image.width ** 2 * 1.5 <= recipe["image"]["max_pixels"] * 1.01


MARKDOWN = '<figure data-type="image">\n  <img src="img_1.png" alt="Crest"/>\n</figure>\n\n# Permit\n<table></table>'


@pytest.mark.parametrize("text", [MARKDOWN, "", "cut <table><tr><td>1", "`" * 50])
def test_markdown(text):
    result = parsed(f"\n{text}\n")
    assert (result.markdown, result.columns, result.flags) == (text, {}, [])


@pytest.mark.parametrize("start", ["<think>\n", "\n"])
def test_thoughts_are_a_column_of_their_own(start):
    text = f"{start}A slip.\n</think>\n```json\n{json.dumps(FULL)}\n```"
    result = parsed(text, "--template", json.dumps(TEMPLATE), "--enable-thinking")
    assert json.loads(result.markdown) == FULL and "Ö" in result.markdown
    assert result.columns == {"extraction_valid": True, "extraction_error": None, "extraction_reasoning": "A slip."}


def test_an_endless_thought_is_no_answer():
    with pytest.raises(nuextract.PageError, match="after 9 tokens; a larger --max-tokens"):
        parsed("<think>It may be a shop, or", "--enable-thinking")


def test_empty_thoughts_without_thinking_are_dropped():
    assert parsed("<think>\n\n</think>\n\n# Permit").markdown == "# Permit"


@pytest.mark.parametrize(
    "text, flag, says",
    [
        (json.dumps(FULL | {"kind": "bank"}), "invalid", "$.kind: 'bank' is not one of"),
        (json.dumps({**FULL, "more": 1}), "invalid", "'more' was unexpected"),
        ('{"store": "Ö", "kind": "inn", "lines": [{"na', "unparsed", "no JSON"),
        ("", "unparsed", "no JSON"),
    ],
)
def test_answers_that_do_not_fit_are_kept(text, flag, says):
    result = parsed(text, "--template", json.dumps(TEMPLATE))
    assert result.flags == [flag] and says in result.columns["extraction_error"]
    assert result.markdown == (text if flag == "unparsed" else json.dumps(json.loads(text), ensure_ascii=False))


@given(st.text())
def test_hostile_answers(text):
    assert parsed(text, "--template", json.dumps(TEMPLATE)).columns["extraction_valid"] is False
