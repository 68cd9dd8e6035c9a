"""Schemas: what is read and refused, what a model is given, and what becomes of its answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import schema as kit
from kit.seam import Stop

BILL = {
    "type": "object",
    "properties": {
        "number": {"type": "string", "description": "as printed"},
        "total": {"type": "number", "minimum": 0},
        "paid": {"enum": ["yes", "no"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
    "required": ["number"],
}
# What Pydantic makes of a model with an enum, an optional nested model and a list of it.
PYDANTIC = {
    "$defs": {
        "Kind": {"enum": ["ship", "ferry"], "title": "Kind", "type": "string"},
        "Port": {"properties": {"name": {"title": "Name", "type": "string"}}, "required": ["name"], "type": "object"},
    },
    "properties": {
        "kind": {"$ref": "#/$defs/Kind"},
        "home": {"anyOf": [{"$ref": "#/$defs/Port"}, {"type": "null"}], "default": None, "description": "where built"},
        "ports": {"items": {"$ref": "#/$defs/Port"}, "title": "Ports", "type": "array"},
        "year": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    },
    "required": ["kind", "ports"],
    "title": "Vessel",
    "type": "object",
}
OPTIONS = SimpleNamespace(output_column="facts")


def test_a_schema_comes_inline_from_a_file_or_an_address(tmp_path):
    text = json.dumps(BILL, indent=2)
    file = tmp_path / "bill.json"
    file.write_text("\ufeff" + text, "utf-8")
    assert kit.json_schema(text) == kit.json_schema(str(file)) == BILL
    assert kit.json_schema(json.dumps(PYDANTIC)) == PYDANTIC
    assert kit.json_schema('{"properties": {"a": true}}') == {"properties": {"a": True}}
    assert kit.schema_text("name: who signed\n") == "name: who signed\n"
    assert kit.schema_text("x" * 100_000) == "x" * 100_000  # longer than a path may be


@pytest.fixture
def served():
    """`served(data)`: the address at which this data is to be had."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.server.data else 404)
            self.end_headers()
            self.wfile.write(self.server.data)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def serve(data):
        server.data = data
        return f"http://127.0.0.1:{server.server_port}/bill.json"

    yield serve
    server.shutdown()
    server.server_close()


def test_an_address(served):
    assert kit.json_schema(served(json.dumps(BILL).encode())) == BILL


@pytest.mark.parametrize(
    "data, says", [(b"", "404"), (b"{" + b" " * kit.SCHEMA_BYTES, "larger than"), (b'{"\xff": 1}', "utf-8")]
)
def test_an_address_that_gives_no_schema(served, data, says):
    with pytest.raises(Stop, match=says) as stop:
        kit.json_schema(served(data))
    assert "bill.json" in str(stop.value) and stop.value.code == 2


def test_a_server_that_does_not_answer(monkeypatch):
    import socket

    monkeypatch.setattr(kit, "SCHEMA_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Stop, match="timed out"):
        kit.json_schema(f"http://127.0.0.1:{silent.getsockname()[1]}/")


@pytest.mark.parametrize(
    "source, says",
    [
        ("bill.json", "no such file"),
        ("{'total': 1}", "no JSON"),
        ("[1, 2]", "no object"),
        ('{"total": "number"}', "no object with properties"),  # a template
        ('{"type": "object", "properties": {}}', "no object with properties"),
        ('{"type": "objekt", "properties": {"a": {}}}', "no JSON Schema"),
        ('{"properties": {"a": {"type": "string", "pattern": "("}}}', "no JSON Schema"),
        ('{"properties": {"a": {"$ref": "#/$defs/b"}}}', "#/\\$defs/b, which is not in it"),
        ('{"properties": {"a": {"$ref": "https://x.org/y.json"}}}', "not in it"),
        ('{"$ref": "#"}', "circle"),
        ("hf://datasets/no", "cannot be read"),
    ],
)
def test_what_is_no_schema_stops_the_run(source, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stop, match=says) as stop:
        kit.json_schema(source)
    assert stop.value.code == 2


def test_null_is_allowed_where_the_page_may_be_silent():
    made = kit.nullable(BILL)["properties"]
    assert made["number"] == {"type": ["string", "null"], "description": "as printed"}
    assert made["total"] == {"type": ["number", "null"], "minimum": 0}
    assert made["paid"] == {"enum": ["yes", "no", None]}
    assert made["lines"]["type"] == "array"
    assert made["lines"]["items"]["properties"]["n"] == {"type": ["integer", "null"]}
    assert BILL["properties"]["total"]["type"] == "number"  # a copy
    pydantic = kit.nullable(PYDANTIC)
    assert pydantic["$defs"]["Port"]["properties"]["name"]["type"] == ["string", "null"]
    assert pydantic["properties"]["year"] == PYDANTIC["properties"]["year"]


def test_references_and_optional_parts_are_seen_through():
    see = {name: kit.plain(part, PYDANTIC) for name, part in PYDANTIC["properties"].items()}
    assert see["kind"]["enum"] == ["ship", "ferry"]
    assert see["home"]["type"] == "object" and see["home"]["description"] == "where built"
    assert see["year"]["type"] == "integer"
    assert kit.plain({"type": ["string", "null"]}, {})["type"] == "string"
    assert kit.plain(True, {}) == {}
    union = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert kit.plain(union, {}) == union


ONE_LINE = '{"number": "Zürich 7", "total": 3.5}'


@pytest.mark.parametrize("text", [ONE_LINE, f"\n```json\n{ONE_LINE}\n```\n", f"```\n{ONE_LINE}```", f"```\n{ONE_LINE}"])
def test_an_answer_that_fits(text):
    parsed = kit.extraction(text, BILL, OPTIONS)
    assert (parsed.markdown, parsed.flags) == (ONE_LINE, [])
    assert parsed.columns == {"facts_valid": True, "facts_error": None}
    assert set(parsed.columns) == set(kit.extraction_columns(OPTIONS))


@pytest.mark.parametrize(
    "text, says",
    [
        ('{"number": "7", "total": "3.5"}', "$.total: '3.5' is not of type 'number'"),
        ('{"total": 1}', "'number' is a required property"),
        ('{"number": "7", "lines": [{"n": 1}, {"n": "x"}]}', "$.lines[1].n: 'x' is not of type 'integer'"),
        ('["7"]', "is not of type 'object'"),
    ],
)
def test_an_answer_that_does_not_fit_is_kept(text, says):
    parsed = kit.extraction(text, BILL, OPTIONS)
    assert (parsed.markdown, parsed.flags, parsed.columns["facts_valid"]) == (text, ["invalid"], False)
    assert says in parsed.columns["facts_error"]


@pytest.mark.parametrize(
    "text", ["", '{"number": "7", "lines": [{"n": 1', "The number is 7.", '{"total": NaN}', "[" * 100_000, "1" * 5000]
)
def test_an_answer_that_is_no_json_stays_as_it_came(text):
    parsed = kit.extraction(text, BILL, OPTIONS)
    assert (parsed.markdown, parsed.flags, parsed.columns["facts_valid"]) == (text, ["unparsed"], False)
    assert parsed.columns["facts_error"].startswith("no JSON: ")


def test_without_a_schema_any_json_is_valid():
    assert kit.extraction("42", None, OPTIONS).columns == {"facts_valid": True, "facts_error": None}


def test_an_answer_nested_without_end():
    loop = {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    parsed = kit.extraction('{"n":' * 400 + "1" + "}" * 400, loop, OPTIONS)
    assert parsed.columns["facts_valid"] in (True, False)


@given(st.text() | st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(repr))
def test_hostile_answers_never_raise(text):
    parsed = kit.extraction(text, kit.nullable(PYDANTIC), OPTIONS)
    assert parsed.columns["facts_valid"] is (parsed.columns["facts_error"] is None) is (not parsed.flags)
