"""Extraction by a schema: read and checked before anything starts, and every answer held against it."""

import functools
import json
import os
import re

from kit.seam import Parsed, Stop

SCHEMA_BYTES, SCHEMA_SECONDS = 1 << 20, 30
SCALARS = ("string", "number", "integer", "boolean")
JSON_SCHEMA_EXAMPLE = '{"type": "object", "properties": {"total": {"type": "number"}}}'


def schema_text(source):
    """What `source` holds if it is the name of a file here, or an http(s):// or hf:// address; else `source` itself.

    Raises Stop where it cannot be read within SCHEMA_SECONDS, is larger than SCHEMA_BYTES, or is no UTF-8.
    """
    is_address = re.match(r"(https?|hf)://", source)
    if not (is_address or os.path.isfile(source)):
        return source
    try:
        if source.startswith("hf://"):
            from huggingface_hub import HfFileSystem

            stream = HfFileSystem().open(source, block_size=SCHEMA_BYTES + 1)
        elif is_address:
            from urllib.request import Request, urlopen

            stream = urlopen(Request(source, headers={"User-Agent": "ocr-recipes"}), timeout=SCHEMA_SECONDS)
        else:
            stream = open(source, "rb")
        with stream:
            data = stream.read(SCHEMA_BYTES + 1)
        if len(data) > SCHEMA_BYTES:
            raise ValueError(f"it is larger than {SCHEMA_BYTES:,} bytes, so it is hardly a schema")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as problem:
        raise Stop(f"The schema {source} cannot be read: {problem}. Give a file, an address, or JSON itself.") from None


def schema_json(source):
    """The JSON value that `source` holds: see `schema_text`. Raises Stop."""
    text = schema_text(source)
    try:
        return json.loads(text)
    except ValueError as problem:
        named = text == source and not set("{[") & set(text)
        why = "there is no such file here" if named else problem
        raise Stop(
            f"The schema {shown(source)} is no JSON: {why}. Give JSON itself, or the path or address of a file."
        ) from None


def json_schema(source):
    """The JSON Schema of an object that `source` holds, `model_json_schema()` of Pydantic included. Raises Stop."""
    return checked_schema(schema_json(source), source)


def checked_schema(schema, source):
    """`schema` if it is a JSON Schema of an object with properties whose references lead somewhere. Raises Stop."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    wrong = None
    if not isinstance(schema, dict):
        wrong = "is JSON, but no object"
    else:
        try:
            validator_for(schema).check_schema(schema)
            for reference in references(schema):
                definition(reference, schema)
            properties = plain(schema, schema).get("properties")
            wrong = None if properties else "describes no object with properties"
            for part in (properties or {}).values():
                plain(part, schema)
        except SchemaError as problem:
            wrong = f"is no JSON Schema: {problem.json_path}: {problem.message[:200]}"
        except ValueError as problem:
            wrong = str(problem)
    if wrong:
        raise Stop(f"The schema {shown(source)} {wrong}. A small one that works: {JSON_SCHEMA_EXAMPLE}")
    return schema


def shown(source):
    """The beginning of what the user typed, in one line."""
    text = " ".join(source.split())
    return text if len(text) <= 80 else text[:77] + "..."


def references(node):
    """Yields every `$ref` in a JSON Schema."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    for part in node if isinstance(node, list) else ():
        yield from references(part)


def definition(reference, root):
    """What a `$ref` into the same schema points to. Raises ValueError for any other."""
    node = root
    try:
        if not reference.startswith("#"):
            raise KeyError
        for part in filter(None, reference[1:].split("/")):
            node = node[part.replace("~1", "/").replace("~0", "~")]
    except (KeyError, TypeError):
        raise ValueError(f"refers to {reference}, which is not in it") from None
    return node


def plain(node, root):
    """The node with its references followed and its null alternative dropped: `X` of Pydantic's `X | None`.

    Where several alternatives are left they stay; `true` and `false`, which are schemas too, become {}. Raises
    ValueError for references that lead in a circle.
    """
    for _ in range(100):
        if not isinstance(node, dict):
            return {}
        if isinstance(kinds := node.get("type"), list) and len(rest := [kind for kind in kinds if kind != "null"]) == 1:
            node = {**node, "type": rest[0]}
        if "$ref" in node:
            key, inner = "$ref", definition(node["$ref"], root)
        else:
            ways = {key: [way for way in node[key] if way != {"type": "null"}]
                    for key in ("anyOf", "oneOf", "allOf") if key in node}  # fmt: skip
            key = next((key for key, left in ways.items() if len(left) == 1), None)
            if key is None:
                return node
            inner = ways[key][0]
        if not isinstance(inner, dict):
            return {}
        node = {**inner, **{name: value for name, value in node.items() if name != key}}
    raise ValueError(f"refers in a circle: {node.get('$ref')}")


def nullable(schema):
    """A copy of a JSON Schema in which each property that is a scalar or an enum may also be null: not on the page."""
    if isinstance(schema, list):
        return [nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in ("enum", "const", "default") else nullable(value) for key, value in schema.items()}
    for part in (made.get("properties") or {}).values():
        if isinstance(part, dict):
            if part.get("type") in SCALARS:
                part["type"] = [part["type"], "null"]
            if isinstance(part.get("enum"), list) and None not in part["enum"]:
                part["enum"] = [*part["enum"], None]
    return made


def extraction(text, schema, options):
    """Parsed of an answer that should be JSON: in one line, with `<output column>_valid` and `..._error`.

    What is no JSON stays as it came, flagged "unparsed". JSON that does not fit `schema` (a JSON Schema, or None for
    any JSON) is kept as well, flagged "invalid".
    """
    text = text.strip()
    try:
        value = json.loads(unfenced(text), parse_constant=refuse)
    except (ValueError, RecursionError) as problem:
        return verdict(text, f"no JSON: {problem}", "unparsed", options)
    error = schema and misfit(value, json.dumps(schema))
    return verdict(json.dumps(value, ensure_ascii=False), error, "invalid", options)


def verdict(text, error, flag, options):
    """Parsed with the columns that every extraction has; `error` None is a valid answer."""
    column = options.output_column
    columns = {f"{column}_valid": error is None, f"{column}_error": error}
    return Parsed(text, columns=columns, flags=[flag] if error else [])


def extraction_columns(options):
    """The columns that `verdict` fills, for RECIPE["columns"]."""
    return {f"{options.output_column}_valid": "bool", f"{options.output_column}_error": "string"}


def unfenced(text):
    """The text without a code fence around it, which may lack its end."""
    fence = re.fullmatch(r"```[^\n]*\n(.*?)(?:\n?```)?", text, re.DOTALL)
    return fence[1] if fence else text


def refuse(constant):
    raise ValueError(f"{constant} is no JSON")


@functools.lru_cache(maxsize=8)
def validator_of(schema):
    from jsonschema.validators import validator_for

    schema = json.loads(schema)
    return validator_for(schema)(schema)


def misfit(value, schema):
    """Where and why a JSON value does not fit the schema (as JSON text), in one line; None where it does."""
    from jsonschema.exceptions import best_match

    try:
        problem = best_match(validator_of(schema).iter_errors(value))
    except RecursionError:
        return "nested too deeply to be checked"
    return f"{problem.json_path}: {problem.message[:200]}" if problem else None
