# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "datasets>=5.2.0",
#     "huggingface_hub>=2.4.0",
#     "jsonschema>=4.18",
#     "pillow>=11",
#     "pypdfium2>=5.0",
#     "saturate>=0.2.0",
# ]
#
# [tool.hf-jobs]
# # The tag that the model was read with. Loosen to any later tag once pages were read on it. vllm, torch and
# # transformers come from the image, which has the kernels that other machines compile with nvcc.
# image = "vllm/vllm-openai:v0.29.0"
# flavor = "a10g-small"
# python = "/usr/bin/python3"
# env = { PYTHONPATH = "/usr/local/lib/python3.12/dist-packages" }
# secrets = ["HF_TOKEN"]
# timeout = "8h"
# ///
"""NuExtract3: JSON by a template or JSON Schema, or Markdown with HTML tables and LaTeX, of page images (4B).

    hf jobs uv run ocr/nuextract3.py user/bills user/bills-json --template '{"total": "number", "paid": ["yes", "no"]}'
    uv run --with vllm==0.29.0 ocr/nuextract3.py user/scans user/scans-ocr

A CLI that reads no [tool.hf-jobs] needs: --image vllm/vllm-openai:v0.29.0 --python /usr/bin/python3
-e PYTHONPATH=/usr/local/lib/python3.12/dist-packages --flavor a10g-small -s HF_TOKEN

A server of your own (--endpoint) needs: --trust-remote-code --chat-template-content-format openai

Hardware: one GPU with 16 GB or more.
Output: with --template or --schema `extraction`, one line of JSON per page, and whether it fits (`extraction_valid`,
`extraction_error`); else `markdown`. With --enable-thinking also `..._reasoning`. No boxes.
The card advises to begin without thinking: a model of this size may loop in its thoughts.
Licence: Apache-2.0 (model).
Sources: https://huggingface.co/numind/NuExtract3 , https://github.com/numindai/nuextract
"""

import argparse
import json
import re
import sys

# >>> shared imports
# isort: split
import asyncio
import atexit
import base64
import contextlib
import fnmatch
import functools
import glob
import hashlib
import io
import itertools
import logging
import math
import multiprocessing
import os
import queue
import random
import secrets
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
import weakref
import zlib
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from itertools import groupby, islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

# <<< shared imports

# Sources below: "card" is the model card, which is the README of github.com/numindai/nuextract too.
RECIPE = {
    "name": "nuextract3",
    "model": "numind/NuExtract3",  # card
    "revision": None,  # card gives none
    "engine": "vllm",
    "vllm": {"min": "0.23.0", "tested": "0.29.0"},  # 0.23: the first with the calls that engine offline makes
    "context": 262144,  # max_position_embeddings of the base, Qwen3.5-4B; the card serves 131072
    "max_model_len": 32768,  # 8192 tokens of image, 8192 of answer; the rest for templates and longer answers
    # card gives none; its benchmark allowed 65000 and took 1856 on average, and 2036 for thoughts
    "max_tokens": 8192,
    "image_tokens": 8192,  # worst case: max_pixels below, 32 x 32 each (patch 16, merge 2)
    # No text goes with the page: the task is the `mode` of the chat template, which takes markdown for content. What
    # document-detection answers is not documented; it is stored as it comes.
    "tasks": {"markdown": "", "content": "", "template-generation": "", "document-detection": ""},
    "task": "markdown",
    "sampling": {"temperature": 0.2},  # card, non-thinking mode; its snippets differ (0 for Markdown)
    "task_sampling": {"template-generation": {"temperature": 0.0}},  # card
    "chat": {"content_format": "openai"},  # card
    "engine_args": {
        "trust_remote_code": True,  # card
        "gdn_prefill_backend": "triton",  # the other kernel is compiled with nvcc, which most machines do not have
    },
    # Half of the processor's own bound of 16,777,216, so that pages stay a quarter of the context.
    "image": {"max_pixels": 8388608},
    "body_format": "png",  # card
    "dpi": 170,  # card, for PDF pages
    "output_column": "markdown",
}

THINKING = 0.6  # card: the temperature with thinking; one snippet has 0.7
# assets/TYPES.md of the repository, but for region:XX (ISO 3166-2 of one country).
TYPES = set(
    "integer number string verbatim-string date time date-time duration boolean country currency language language-tag "
    "script url email-address phone-number iban bic unit-code".split()
)
# The `format` of a JSON Schema that a type stands for, besides those of the same name (as in the authors' package).
FORMATS = {name: name for name in TYPES} | {"uri": "url", "iri": "url", "email": "email-address",
           "idn-email": "email-address"}  # fmt: skip


class Asked(argparse.Action):
    """--template and --schema: what they hold, and the column of an extraction unless another is named."""

    def __call__(self, parser, options, values, flag=None):
        vars(options).update(values)
        if options.output_column == RECIPE["output_column"]:
            options.output_column = "extraction"


class Thinking(argparse.Action):
    def __call__(self, parser, options, values, flag=None):
        options.enable_thinking = True
        options.temperature = THINKING if options.temperature is None else options.temperature


def add_options(parser):
    parser.set_defaults(template=None, schema=None, descriptions=[])
    one, add = parser.add_mutually_exclusive_group(), parser.add_argument
    one.add_argument("--template", type=from_template, action=Asked, metavar="SOURCE", default=argparse.SUPPRESS,
        help="NuExtract template of the JSON to extract: JSON, or the path or address of a file")  # fmt: skip
    one.add_argument("--schema", type=from_schema, action=Asked, metavar="SOURCE", default=argparse.SUPPRESS,
        help="JSON Schema to extract by, e.g. model_json_schema() of Pydantic; as for --template")  # fmt: skip
    add("--instructions", metavar="TEXT", help="how to read or to write values, for any task")
    add("--enable-thinking", nargs=0, action=Thinking, default=False,
        help=f"let the model think first, at temperature {THINKING}: for hard pages, slower")  # fmt: skip
    add("--constrained", action=argparse.BooleanOptionalAction,
        help="allow only tokens that fit the template or schema (default: where there is one, "
        "unless it thinks first)")  # fmt: skip


def from_template(source):
    """Options of a NuExtract template. Raises Stop for what is none."""
    template = schema_json(source)
    if not isinstance(template, dict) or not template:
        raise Stop(f'The template {shown(source)} is no JSON object. A small one that works: {{"total": "number"}}')
    return {"template": template, "schema": schema_of(template), "descriptions": []}


def from_schema(source):
    """Options of a JSON Schema: its template, and the lines that say what a template cannot. Raises Stop."""
    schema, lines = json_schema(source), []
    return {"template": template_of(schema, schema, lines), "schema": nullable(schema), "descriptions": lines}


def schema_of(node, path="$"):
    """JSON Schema of the answers to a template. Raises Stop for what has no meaning in one."""
    if isinstance(node, dict):
        parts = {name: schema_of(part, f"{path}.{name}") for name, part in node.items()}
        kind = "object" if path == "$" else ["object", "null"]
        return {"type": kind, "properties": parts, "required": list(parts), "additionalProperties": False}
    if isinstance(node, list) and len(node) == 1:
        return {"type": "array", "items": schema_of(node[0], f"{path}[]")}
    if isinstance(node, list) and node and all(isinstance(choice, str) for choice in node):
        return {"enum": [*node, None]}
    if isinstance(node, str) and (node in TYPES or re.fullmatch("region:[A-Z]{2}", node)):
        return {"type": [node if node in ("integer", "number", "boolean") else "string", "null"]}
    raise Stop(
        f"The template has {json.dumps(node)} at {path}, which is no type, list or object. "
        f"The types are {', '.join(sorted(TYPES))}, region:XX."
    )


def template_of(node, root, lines, path="$"):
    """Template of a JSON Schema, by the rules of the authors' package; puts "path: description" on `lines`.

    That package (numind) is not used: each of its versions 0.3 and 0.4 returns something else. Raises Stop for what a
    template cannot hold: unions, maps, tuples, recursion.
    """
    try:
        node = plain(node, root)
    except ValueError:
        node = {}
    kind, choices, said = node.get("type"), node.get("enum"), node.get("description")
    if said and said not in FORMATS:
        lines.append(f"{path}: {said}")
    if choices and all(isinstance(choice, str | None) for choice in choices):
        choices = [choice for choice in choices if choice is not None]
        return choices if len(choices) > 1 else "string"
    if node.get("properties") and path.count(".") < 32:
        return {name: template_of(part, root, lines, f"{path}.{name}") for name, part in node["properties"].items()}
    if kind == "array" and isinstance(node.get("items"), dict):
        return [template_of(node["items"], root, lines, f"{path}[]")]
    if kind == "string":
        named = next((FORMATS[node[key]] for key in ("format", "description") if node.get(key) in FORMATS), "string")
        return f"verbatim-{named}" if node.get("x-verbatim") else named
    if kind in ("integer", "number", "boolean"):
        return kind
    raise Stop(f"A NuExtract template cannot say what the schema has at {path[:200]}. Write a --template instead.")


def check(options):
    if options.enable_thinking and not options.template and options.task not in ("markdown", "content"):
        raise Stop(f"--task {options.task} has no thinking. Leave out --enable-thinking.")
    if options.constrained and (options.enable_thinking or not options.template):
        raise Stop("--constrained needs --template or --schema, and no --enable-thinking: thoughts are no JSON.")
    columns = {f"{options.output_column}_reasoning": "string"} if options.enable_thinking else {}
    if options.template:
        options.task = "structured"
        columns |= extraction_columns(options)
    asked = "".join(str(value) for value in template_arguments(options).values())
    return {"columns": columns, "tasks": {options.task: asked}}


def template_arguments(options):
    """Arguments of the chat template, which hold all that is asked."""
    task = {"template": json.dumps(options.template, indent=4)} if options.template else {"mode": options.task}
    lines = [options.instructions] if options.instructions else []
    lines += options.descriptions  # a template has no place for them; in the form that the authors' package gives them
    told = {"instructions": "\n".join(lines)} if lines else {}
    return {"enable_thinking": options.enable_thinking, **task, **told}


def request(page, options):
    body = {
        "messages": [{"role": "user", "content": [{"type": "image"}]}],
        "chat_template_kwargs": template_arguments(options),
    }
    possible = options.template and not options.enable_thinking
    # The card leaves the form to the model; an answer that fits is the same either way.
    constrained = possible if options.constrained is None else options.constrained
    return body | ({"structured_outputs": {"json": options.schema}} if constrained else {})


def parse(answer, page, options):
    """What follows the thoughts, as JSON where a template asked for it.

    Raises PageError for an answer that never left its thoughts, which are no text of the page.
    """
    thoughts, ended, said = answer.text.partition("</think>")
    if options.enable_thinking and not ended:
        raise PageError(
            f"the answer ends within the model's thoughts, after {answer.completion_tokens} tokens; "
            "a larger --max-tokens may do, or no --enable-thinking"
        )
    if not ended:
        thoughts, said = "", answer.text
    parsed = extraction(said, options.schema, options) if options.template else Parsed(said.strip())
    if options.enable_thinking:  # the opening tag is missing where the chat template has written it
        parsed.columns[f"{options.output_column}_reasoning"] = thoughts.strip().removeprefix("<think>").strip()
    return parsed


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
# >>> kit/seam.py
# The types that pass between a recipe's model part and the shared part.


class Stop(Exception):
    """Ends the run with one message for the user: what happened, what was found, what to type next.

    `code` is the exit code: 2 for usage and preflight, 1 for a stop that the same command resumes.
    """

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class PageError(Exception):
    """One page cannot be read; the message is the sentence that its row gets in `ocr_error`."""


@dataclass
class Page:
    """One page as the model sees it.

    `image` is RGB, upright, on white, and already inside the recipe's image bounds. `width` and `height` are the
    pixels of the original after orientation, the space of every bbox that leaves a recipe; for a PDF page they are
    the pixels at `dpi`. `partial` says that the file ended early and the lower part is missing.
    """

    image: object
    width: int
    height: int
    dpi: int | None = None
    partial: bool = False


@dataclass
class Unit:
    """What one answer is about: a page almost always, a window of pages, a whole document, or a text cell."""

    id: str
    pages: list
    text: str | None = None


@dataclass
class Item:
    """A unit before it is decoded, as the source yields it. Picklable and small: bytes are one page's, or absent.

    `parts` holds one `(data, frame)` per page: data is the encoded bytes, a local path or an `hf://` URI, and frame
    the 0-based page of a PDF or frame of a TIFF or GIF. `row` is the row in the source split (or the position in the
    sorted file list), `page` the 1-based page within that row or file, `pages` how many it has, `name` the output
    name without suffix. `error` is set where the source holds nothing to read.
    """

    id: str
    row: int
    name: str
    parts: list = field(default_factory=list)
    text: str | None = None
    page: int = 1
    pages: int = 1
    error: str | None = None


class Answer(NamedTuple):
    """What the model said to one request. `flags` are those of `flags_of`; `logprobs` one float per output token."""

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: tuple = ()
    logprobs: list | None = None


@dataclass
class Parsed:
    """A recipe's reading of one unit. `markdown` is "" for a blank page and never a sentinel.

    `blocks` is a blocks document (or None), `columns` the recipe's own output columns, `flags` what the parser
    noticed: "unparsed" (the model's protocol was broken; asked again), "repaired", or words of the recipe's own.
    `answers` are those that the reading was made of, where `steps` threw others away; None is all of them. Their flags
    become the row's.
    """

    markdown: str | None
    blocks: dict | None = None
    columns: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    answers: list | None = None


def say(message):
    """Tells the human: stderr, flushed, so that a job log shows it at once. stdout is for the one JSON line."""
    with contextlib.suppress(OSError):  # a terminal that was closed costs no page
        print(message, file=sys.stderr, flush=True)


# <<< kit/seam.py

# >>> kit/answers.py
# What one answer is worth, and the conversation about one unit: ask, check, ask again, choose, make the row.


ASK_AGAIN = {"looped", "degenerate"}
# A tail is a loop when it repeats a unit of at most LOOP_UNIT characters over at least LOOP_SPAN characters (dot
# leaders and ruled lines of forms stay below it). Compression, runs of one character counted as three: prose compresses
# 2 to 3 times, registers written to one formula 7, tables of numbers 7, loops that go on for a page 30 and more
# (the texts of tests/unit/test_answers.py; 345 blocks of a public run: prose about 2, loops 6 to 330).
LOOP_UNIT, LOOP_SPAN = 250, 200
LOOP_BYTES, LOOP_RATIO, LOOP_RATIO_TABLE = 2000, 10.0, 20.0


def flags_of(text, finish_reason):
    """Flags of one answer's text: "truncated", and "degenerate" or "looped". Nothing is ever trimmed.

    The finish reason "repetition" is that of an engine which saw the loop itself (`repetition_detection`).
    """
    flags = ["truncated"] if finish_reason == "length" else []
    words = text.split()
    if len(text.strip()) >= 20 and (len(set(text.strip())) == 1 or (len(words) >= 20 and len(set(words)) == 1)):
        return flags + ["degenerate"]
    if finish_reason == "repetition" or loops_at_end(text) or loops_at_end(text[:-50]) or compresses_like_a_loop(text):
        return flags + ["looped"]
    return flags


def loops_at_end(text):
    """True if the text ends in one unit repeated more than 4 * (1 + 3 / length) times over LOOP_SPAN characters."""
    for length in range(1, min(LOOP_UNIT, len(text) // 2) + 1):
        repeats = max(int(4 * (1 + 3 / length)) + 1, -(-LOOP_SPAN // length))
        if length * repeats <= len(text) and text.endswith(text[-length:] * repeats):
            return True
    return False


def compresses_like_a_loop(text):
    data = re.sub(r"(.)\1{3,}", r"\1\1\1", text).encode("utf-8", "replace")
    if len(data) < LOOP_BYTES:
        return False
    table = text.count("<td") >= 20 or len(re.findall(r"^\s*\|.*\|\s*$", text, re.M)) >= 10
    return len(data) / len(zlib.compress(data, 6)) > (LOOP_RATIO_TABLE if table else LOOP_RATIO)


def one_step(request, parse):
    """The `steps` of a recipe whose unit is one page (or one text cell) and one request."""

    def steps(unit, options):
        (answer,) = yield [request(subject(unit), options)]
        return parse(answer, subject(unit), options)

    return steps


def subject(unit):
    """What a recipe's function is given: the Page of a unit with one, the Unit itself for a text or several pages."""
    return unit.pages[0] if len(unit.pages) == 1 else unit


def complete(body, options, recipe, unit=None):
    """The body with the run's sampling and `max_tokens` where it names none, and every image mark given its image."""
    messages = []
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, list):
            content = [
                {"type": "image", "image": unit.pages[0].image} if part == {"type": "image"} and unit else part
                for part in content
            ]
        messages.append({**message, "content": content})
    sampling = {key: getattr(options, key) for key in recipe.get("sampling", {}) if getattr(options, key) is not None}
    return {"max_tokens": options.max_tokens, **sampling, **body, "messages": messages}


def asked_again(body, answer, options, recipe, attempt):
    """The body to ask when `answer` is not good enough, or None when asking again cannot help.

    Loops and degenerate output: warmer, with the sampling opened, since a top_p near 0 or a top_k of 1 would undo the
    temperature. Truncated: as before, with all the room that the context leaves, unless --max-tokens was given.
    """
    if isinstance(answer, Exception):
        return None
    if ASK_AGAIN & set(answer.flags):
        return None if recipe.get("lock_sampling") else warmer(body, attempt)
    room = options.max_model_len - answer.prompt_tokens - 16 if options.max_model_len else 0
    if "truncated" in answer.flags and not options.max_tokens_given and room > body["max_tokens"] * 1.1:
        return {**body, "max_tokens": room}
    return None


def warmer(body, attempt):
    warm = {**body, "temperature": min(body.get("temperature", 0.0) + 0.2 * attempt, 1.0), "top_p": 0.95}
    if "top_k" in warm:
        warm["top_k"] = -1
    return warm


def better(old, new):
    """Of two answers the one without a flag, else the one that stopped by itself, else the first."""
    rank = [(isinstance(a, Exception), bool(getattr(a, "flags", ())), getattr(a, "finish_reason", None) != "stop")
            for a in (old, new)]  # fmt: skip
    return new if rank[1] < rank[0] else old


def converse(item, unit, sha256, options, recipe, steps):
    """The conversation about one unit: a generator that yields lists of complete bodies, is sent their answers in
    the same order (an Answer each, or the exception that one request failed with), and returns the result row.

    Each flagged answer is asked again by itself at most `options.retries` times; a unit whose parser reports
    "unparsed" is read again as a whole; `attempts` counts all rounds. Page-level trouble never raises: it becomes the
    row's `error`.
    """
    started, attempts, parsed, answers, error = time.monotonic(), 0, None, [], None
    for attempt in range(1 + options.retries):
        try:
            attempts += 1
            reading, read = steps(unit, options), []
            bodies = next(reading)
            while True:
                bodies = [complete(body, options, recipe, unit) for body in bodies]
                if attempt and not recipe.get("lock_sampling"):
                    bodies = [warmer(body, attempt) for body in bodies]
                got = checked((yield bodies))
                for again in range(1, 1 + options.retries):
                    retry = {i: asked_again(body, got[i], options, recipe, again) for i, body in enumerate(bodies)}
                    retry = {i: body for i, body in retry.items() if body}
                    if not retry:
                        break
                    attempts += 1
                    for i, answer in zip(retry, checked((yield list(retry.values()))), strict=True):
                        got[i] = better(got[i], answer)
                read += got
                failed = next((a for a in got if isinstance(a, Exception)), None)
                bodies = reading.throw(failed) if failed else reading.send(got)
        except StopIteration as stop:
            if parsed is None or "unparsed" not in stop.value.flags:
                parsed, answers, error = stop.value, read, None
        except Exception as problem:  # a recipe's parser on hostile text, or a request that failed by itself
            if parsed is None:
                answers, error = read, sentence(problem)
            break
        if "unparsed" not in parsed.flags or recipe.get("lock_sampling"):
            break
    return row_of(item, unit, sha256, parsed, answers, attempts, time.monotonic() - started, error)


def checked(answers):
    return [a._replace(flags=tuple(flags_of(a.text, a.finish_reason))) if isinstance(a, Answer) else a for a in answers]


def sentence(problem):
    """An exception as one line for `ocr_error`: PageErrors are sentences already, others get their type in front."""
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, PageError) else f"{type(problem).__name__}: {text}".rstrip(": ")


def row_of(item, unit, sha256, parsed, answers=(), attempts=0, seconds=0.0, error=None):
    """The result row of one item: see CLAUDE.md for its keys. `unit` is None where nothing could be decoded."""
    answers = [a for a in answers if isinstance(a, Answer)]
    kept = answers if error or parsed is None or parsed.answers is None else parsed.answers
    flags = dict.fromkeys(flag for a in kept for flag in a.flags)
    if parsed is not None:
        flags |= dict.fromkeys(parsed.flags)
    if unit is not None and any(page.partial for page in unit.pages):
        flags["partial"] = None
    return {
        "id": item.id, "row": item.row, "page": item.page, "pages": item.pages, "name": item.name,
        "text": parsed.markdown if parsed and not error else None,
        "blocks": json.dumps(parsed.blocks, ensure_ascii=False) if parsed and not error and parsed.blocks else None,
        "error": error or (None if parsed else "nothing was read"),
        "flags": list(flags),
        "attempts": attempts,
        "finish_reason": kept[-1].finish_reason if kept else None,
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "completion_tokens": sum(a.completion_tokens for a in answers),
        "seconds": round(seconds, 3),
        "sha256": sha256,
        "columns": parsed.columns if parsed and not error else {},
    }  # fmt: skip


def failed_row(item, problem):
    """The row of an item that never reached the model."""
    return row_of(item, None, None, None, error=problem if isinstance(problem, str) else sentence(problem))


# <<< kit/answers.py

# >>> kit/storage.py
# Where results are kept, a folder here or in a bucket, and the patience that every write to the Hub needs.


FIRST_WAIT, LONGEST_WAIT, PATIENCE = 2.0, 60.0, 600.0  # seconds
FIRST_PATIENCE = 30.0  # before anything has been read
RECENT = 120.0  # seconds in which a run that is at work has written its next part


def persist(call, patience=None):
    """`call()`, again with growing waits while the Hub is busy: conflicts (409, 412), 408, 429, 5xx, lost connections.

    A `Retry-After` is honoured. Needed because huggingface_hub 2.4 retries neither commits nor repository creation.
    Raises the last error after `patience` (PATIENCE) seconds, any other error at once.
    """
    wait, end = FIRST_WAIT, time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        try:
            return call()
        except Exception as error:
            asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
            pause = max(float(asked) if asked.isdigit() else 0.0, wait * random.uniform(0.5, 1))
            if not is_passing(error) or time.monotonic() + pause > end:
                raise
            said = "The Hub answered" if hasattr(error, "response") else "The Hub cannot be reached"
            say(f"{said}: {first_line(error)}. Trying again in {pause:.0f} s.")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)


def is_passing(error):
    """Whether trying again may help: the Hub or the way to it is busy or broken for the moment."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 409, 412, 425, 429) or status >= 500
    transports = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # the client library differs by hub version
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.split(".")[0] in transports:
        return True
    if isinstance(error, RuntimeError) and "xet" in str(error).lower():  # hf_xet's failures have no class of their own
        return True
    return error.__cause__ is not None and is_passing(error.__cause__)


def first_line(error):
    """One line about an exception: its type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def unique_stamp():
    """A name part that sorts by time and is unique across processes and machines."""
    return f"{time.time_ns() // 1_000_000:013d}-{os.getpid()}-{secrets.token_hex(4)}"


def open_storage(uri):
    """A `BucketFolder` for `hf://buckets/...`, else a `LocalFolder`. Raises Stop where the bucket cannot be made."""
    return BucketFolder(uri) if uri.startswith("hf://buckets/") else LocalFolder(uri)


class LocalFolder:
    """Files under one folder. A file appears whole or not at all; what is half written lies under `.tmp`."""

    def __init__(self, path):
        self.where = str(path)
        self.root = Path(path).expanduser()
        self.scratch = self.root / ".tmp"

    def claim(self, name):
        """Takes a lock that ends with this process, or with `close` of what is returned. Raises Stop if it is taken."""
        try:
            import fcntl
        except ImportError:  # Windows
            return io.BytesIO()
        self.scratch.mkdir(parents=True, exist_ok=True)
        lock = open(self.scratch / f"{name}.lock", "wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Stop(
                f"Another run of this command is at work in {self.where}. Wait for it, or share the work by --shard "
                "0/2 and --shard 1/2.",
                code=1,
            ) from None
        except OSError:  # a mount without locks
            pass
        return lock

    def list(self):
        """The relative paths of all files, sorted."""
        found, folders = [], [str(self.root)] if self.root.is_dir() else []
        while folders:
            for entry in os.scandir(folders.pop()):
                if not entry.is_dir(follow_symlinks=False):
                    found.append(os.path.relpath(entry.path, self.root).replace(os.sep, "/"))
                elif entry.name != ".tmp":
                    folders.append(entry.path)
        return sorted(found)

    def open(self, name):
        """A binary file to read."""
        return open(self.root / name, "rb")

    def write(self, files):
        """Writes each of `files`, a dict from relative path to bytes. Raises OSError."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            part, target = self.scratch / unique_stamp(), self.root / name
            part.write_bytes(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)

    def remove(self, names):
        """Removes files, what killed runs left half written, and then the folder if it is empty."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # something else is kept there
            self.root.rmdir()
            if self.root.parent.name == ".ocr-runs":
                self.root.parent.rmdir()


class BucketFolder:
    """The same methods over a folder of a bucket, made private where it is missing. All wait out a busy Hub."""

    scratch = None

    def __init__(self, uri):
        from huggingface_hub import HfApi, HfFileSystem
        from huggingface_hub.errors import HfHubHTTPError

        owner, name, *path = uri.removeprefix("hf://buckets/").strip("/").split("/")
        self.where, self.bucket, self.prefix = uri, f"{owner}/{name}", "".join(f"{part}/" for part in path)
        self.api, self.files = HfApi(), HfFileSystem(skip_instance_cache=True)
        try:
            persist(lambda: self.api.create_bucket(self.bucket, private=True, exist_ok=True))
        except HfHubHTTPError as error:
            raise Stop(
                f"The bucket {self.bucket} cannot be made or written: {first_line(error)}. "
                "Name another place: --checkpoint hf://buckets/OWNER/NAME/FOLDER or --checkpoint FOLDER."
            ) from error

    def claim(self, name):
        """No lock, which buckets do not have: two runs at once lose no page, and pay twice. Says where it may be so."""
        written = [int(when) for path in self.list() for when in re.findall(r"-(\d{13})-\d+-[0-9a-f]{8}\.", path)]
        ago = time.time() - max(written, default=0) / 1000
        if name == "run" and ago < RECENT:  # a shard has others beside it
            say(
                f"Results were written to {self.where} {max(ago, 0):.0f} s ago. If the run that wrote them is still at "
                "work, both read the same pages: stop one, or share the work by --shard 0/2 and --shard 1/2."
            )
        return io.BytesIO()

    def list(self):
        self.files.invalidate_cache()
        tree = persist(lambda: list(self.api.list_bucket_tree(self.bucket, self.prefix or None, recursive=True)))
        return sorted(entry.path.removeprefix(self.prefix) for entry in tree if entry.type == "file")

    def open(self, name):
        return persist(lambda: self.files.open(f"hf://buckets/{self.bucket}/{self.prefix}{name}", "rb"))

    def write(self, files):
        added = [(data, self.prefix + name) for name, data in files.items()]
        if added:
            persist(lambda: self.api.batch_bucket_files(self.bucket, add=added))

    def remove(self, names):
        gone = [self.prefix + name for name in names]
        if gone:
            persist(lambda: self.api.batch_bucket_files(self.bucket, delete=gone))


# <<< kit/storage.py

# >>> kit/pages.py
# Encoded bytes, a path or a URI to one upright RGB page on white.


# A page is handed over with at most this many pixels, whatever the bounds: 150 MB as RGB. Larger ones are reduced.
PAGE_PIXELS = 50_000_000
# What the decoded file itself may take in memory: 2 gigapixels of grey, 536 megapixels of colour. JPEG, JPEG 2000
# and PDF are reduced while they are decoded and seldom come near it.
PAGE_BYTES = 2 * 2**30
# Named, so that no file starts Ghostscript (EPS, PDF) or meets a format without a signature (TGA).
PILLOW_FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP")
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MULTI_PAGE_SIGNATURES = (*TIFF_SIGNATURES, b"GIF8")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
PDFIUM_LOCK = threading.Lock()  # pdfium is not thread-safe


def open_page(data, frame=0, *, dpi=200, bounds=None):
    """One page as `Page`: RGB, upright, on white, fitted to `bounds` (see `fit`).

    `data` is the encoded bytes, a local path or an `hf://` URI; `frame` the 0-based page of a PDF or frame of a TIFF
    or GIF; `dpi` the resolution of PDF pages. 16-bit, 32-bit and float pixels are scaled to 8 bits
    (see `_value_range`). What a cut file still holds comes back as `partial`, white where nothing came.
    Raises PageError for everything that cannot be read. Sets `PIL.Image.MAX_IMAGE_PIXELS` for the process, as
    `PAGE_BYTES` takes its place.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            return _pdf_page(data, frame, dpi, bounds)
        if frame and not head.startswith(MULTI_PAGE_SIGNATURES):
            raise PageError(f"there is no page {frame + 1}: the file has one")
        try:
            image, size, partial = _pillow_decode(stream, head, frame, bounds)
        except PageError:
            raise
        except Exception as error:  # Pillow's parsers raise whatever they stumble over
            image, partial = _other_decode(stream, head, frame, error), False
            size = image.size
    orientation = _orientation(image)
    if orientation > 4:
        size = size[::-1]
    try:
        image = _flatten(image, shrink=max(1, math.isqrt(image.width * image.height // PAGE_PIXELS)))
    except Exception as error:
        raise PageError(f"the pixels ({image.mode}) cannot be turned into RGB: {error}") from error
    if partial:
        image = _whiten_missing_rows(image)
    image = _turn_upright(fit(image, bounds), orientation).convert("RGB")
    return Page(image, *size, partial=partial)


def count_pages(data):
    """Pages of a PDF, frames of a TIFF or GIF, 1 for everything else, of which only the first bytes are looked at.

    Reduced copies inside a TIFF (thumbnails, pyramid levels) are not pages, nor are the frames of an animated WebP or
    PNG. Raises PageError where there is no file, and for a broken PDF, TIFF or GIF.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            with PDFIUM_LOCK:
                return len(_pdf_document(data))
        if not head.startswith(MULTI_PAGE_SIGNATURES):
            return 1
        try:
            image = _pillow_open(stream)
        except Exception:  # imagecodecs may read it, or open_page says what is wrong
            return 1
        try:
            return sum(1 for _ in _page_frames(image))
        except Exception as error:
            raise PageError(_describe(head, error)) from error


def fit(image, bounds):
    """`image` reduced, never enlarged, to `bounds` and to PAGE_PIXELS.

    `bounds` may have `max_side`, `max_pixels` and `resample` ("lanczos", the default, or "bicubic").
    """
    size = _fitted_size(image.size, bounds)
    if size == image.size:
        return image
    from PIL import Image

    resample = Image.Resampling[((bounds or {}).get("resample") or "lanczos").upper()]
    # At a gap of 3 the result is indistinguishable from a full resampling (Pillow's documentation).
    return image.resize(size, resample, reducing_gap=3.0)


def image_bounds(options, recipe):
    """The recipe's bounds for `fit`, with a recipe's own `--max-pixels` or `--max-side` (0 for none) in their place."""
    chosen = {key: getattr(options, key, None) for key in ("max_side", "max_pixels")}
    return (recipe.get("image") or {}) | {key: value for key, value in chosen.items() if value is not None}


def source_bytes(data):
    """The encoded bytes behind `data`. Raises PageError where there is nothing to read."""
    with _open_stream(data) as stream:
        return stream.read()


def sha256_of(data):
    """Hex SHA-256 of the encoded bytes behind `data`."""
    return hashlib.sha256(source_bytes(data)).hexdigest()


def _open_stream(data):
    if data is None:
        raise PageError("there is no image: the cell is empty (null)")
    if not isinstance(data, str):
        return io.BytesIO(data)
    if data.startswith("hf://"):
        return io.BytesIO(_fetch(data))
    try:
        return open(data, "rb")
    except OSError as error:
        raise PageError(f"cannot open {data}: {error.strerror}") from error


@functools.lru_cache(maxsize=1)  # the pages of one file follow each other
def _fetch(uri):
    from huggingface_hub import HfFileSystem

    try:
        return persist(lambda: HfFileSystem().cat_file(uri), patience=300)  # a worker may be silent for 600 s
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def _peek(stream):
    head = stream.read(1024)
    stream.seek(0)
    if not head:
        raise PageError("the file is empty (0 bytes)")
    return head


def _describe(head, error):
    """The sentence for a file that is no image, or a broken one."""
    start = head[:40].lstrip(b"\xef\xbb\xbf \r\n\t")
    known = {
        b"version https://git-lfs": "a Git LFS pointer; run `git lfs pull`",
        b"<!doctype html": "HTML",
        b"<html": "HTML",
        b"<svg": "SVG; render it to PNG first",
        b"<?xml": "XML",
        b"{": "JSON",
        b"pk\x03\x04": "a ZIP archive; unpack it first",
        b"\x1f\x8b": "gzip; unpack it first",
        b"%!ps": "PostScript; convert it with `ps2pdf`",
        b"at&tform": "DjVu; convert it with `ddjvu -format=pdf`",
    }
    what = next((name for signature, name in known.items() if start.lower().startswith(signature)), None)
    if what is None and start.isascii() and start.decode("ascii").isprintable():
        what = "text"
    shown = repr(start)[1:] if start.isascii() else start[:16].hex(" ")
    if what:
        return f"not an image: the file starts with {shown} (looks like {what})"
    return f"not a readable image: the file starts with {shown} ({type(error).__name__}: {error})"


def _fitted_size(size, bounds):
    bounds = bounds or {}
    max_pixels = min(bounds.get("max_pixels") or PAGE_PIXELS, PAGE_PIXELS)
    max_side = bounds.get("max_side") or max(size)
    scale = min(1.0, max_side / max(size), math.sqrt(max_pixels / math.prod(size)))
    return tuple(max(1, math.floor(side * scale + 1e-6)) for side in size)


def _pillow_open(stream):
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = PAGE_BYTES  # Pillow's own limit warns at 89 and refuses at 179 megapixels
    return Image.open(stream, formats=PILLOW_FORMATS)


def _pillow_decode(stream, head, frame, bounds):
    """The loaded image in its own mode, its size before any reduction, and whether the file ended early."""
    image = _pillow_open(stream)
    if head.startswith(MULTI_PAGE_SIGNATURES):
        number = next(itertools.islice(_page_frames(image), frame, None), None)
        if number is None:
            raise PageError(f"there is no page {frame + 1}: the file has {sum(1 for _ in _page_frames(image))}")
        image.seek(number)
    size = image.size
    target, reduction = _fitted_size(size, bounds), 0
    if image.format in ("JPEG", "MPO"):
        # Decodes to half, a quarter or an eighth where that is still inside the target: 100 ms instead of 206 for
        # 2480 x 3508 to 1540, at the same character error rate (PP-OCRv6, letters of 28 and 34 px before).
        image.draft(None, target)
    elif image.format == "JPEG2000":
        image.reduce = reduction = _jpeg2000_reduction(head, size, target)
    width, height = image.size
    needed = width * height * {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)
    if image.info.get("progressive"):  # libjpeg keeps all coefficients, at full size
        needed = size[0] * size[1] * 2 * len(image.getbands())
    if needed > PAGE_BYTES:
        raise PageError(
            f"the page is too large: {size[0]} x {size[1]} pixels of {image.format} take {needed / 2**30:.1f} GiB to "
            f"decode, and {PAGE_BYTES / 2**30:.0f} GiB are allowed; scale it down first"
        )
    try:
        image.load()
    except Exception:
        if reduction:
            # Reduced decoding failed now and then in a public run. Without its head the file has no levels to use.
            stream.seek(0)
            return _pillow_decode(stream, b"", frame, bounds)
        if image.info.get("progressive"):  # without an end marker libjpeg gives nothing of a progressive file
            image.load_read = lambda size: stream.read(size) or b"\xff\xd9"
        else:
            image.tile = []  # what was decoded stays in the buffer, zero where nothing came
        image.load()
        return image, size, True
    return image, size, False


def _page_frames(image):
    """Frame numbers of the pages of a TIFF or GIF; reduced copies in a TIFF (tag 254, bit 0) are not pages."""
    if image.format == "GIF":
        yield from range(image.n_frames)
        return
    for frame in itertools.count():
        try:
            image.seek(frame)
        except EOFError:
            return
        if frame == 0 or not image.tag_v2.get(254, 0) & 1:
            yield frame


def _jpeg2000_reduction(head, size, target):
    """How many times decoding may halve the page: inside `target`, and inside the levels that the file has."""
    code = head.find(b"\xff\x52")  # the COD marker; the decomposition levels are its tenth byte
    levels = head[code + 9] if 0 <= code < len(head) - 9 else 0
    for level in range(levels, 0, -1):
        step = 2**level
        reduced = [math.ceil(side / step) for side in size]
        # Pillow rounds where OpenJPEG takes the ceiling, and fails where the two differ.
        agree = reduced == [(side + step // 2) // step for side in size]
        if agree and reduced[0] >= target[0] and reduced[1] >= target[1]:
            return level
    return 0


def _other_decode(stream, head, frame, error):
    """What Pillow cannot read: HEIC through pillow-heif, the rest through imagecodecs."""
    names = {
        b"\xff\x0a": "jpegxl",
        b"\0\0\0\x0cJXL ": "jpegxl",
        b"II\xbc": "jpegxr",
        b"\xff\xd8\xff": "jpeg",
        b"\x89PNG": "png",
        **dict.fromkeys(TIFF_SIGNATURES, "tiff"),
    }
    name = next((name for signature, name in names.items() if head.startswith(signature)), None)
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        name = "heic"
    if name is None:
        raise PageError(_describe(head, error)) from error
    stream.seek(0)
    data = stream.read()
    try:
        return _heic_decode(data) if name == "heic" else _imagecodecs_decode(name, frame, data)
    except ImportError as missing:
        library = (missing.name or "imagecodecs").partition(".")[0].replace("_", "-")
        raise PageError(f"this {name} file needs {library}: add `--with {library}` after `uv run`") from missing
    except Exception as second:
        raise PageError(_describe(head, second)) from second


def _heic_decode(data):
    import pillow_heif

    return pillow_heif.open_heif(data).to_pillow()


def _imagecodecs_decode(name, frame, data):
    import imagecodecs
    import numpy as np
    from PIL import Image

    decode = getattr(imagecodecs, f"{name}_decode")
    pixels = np.squeeze(decode(data, index=frame) if name == "tiff" else decode(data))
    if pixels.dtype != np.uint8:
        pixels = _scaled_to_8_bits(pixels, *_value_range(pixels))
    return Image.fromarray(pixels)


def _value_range(pixels):
    """The values that become 0 and 255: 0 and the top of the range that the data uses.

    Integers: the smallest of 8, 10, 12, 14, 16 bits that holds the largest value, so that a 16-bit scan is divided by
    257 and never stretched. Floats: 0 to 1, 0 to 255, 0 to 65,535. Whatever fits none of these: smallest to largest.
    """
    import numpy as np

    low, high = np.fmin.reduce(pixels, axis=None), np.fmax.reduce(pixels, axis=None)  # these pass over NaN
    if not (np.isfinite(low) and np.isfinite(high)):
        return 0, 1
    if pixels.dtype.kind == "f":
        tops = {1: 0, 255: 128, 65535: 32768}
    else:
        tops = {255: 0, 1023: 256, 4095: 1024, 16383: 4096, 65535: 16384}
    for top, least in tops.items():
        if 0 <= low and least <= high <= top:
            return 0, top
    return low, high


def _scaled_to_8_bits(pixels, low, high):
    import numpy as np

    span = float(high) - float(low) or 1.0
    scaled = (np.nan_to_num(pixels.astype(np.float32), nan=float(high)) - float(low)) * (255 / span)
    return scaled.round().clip(0, 255).astype(np.uint8)


def _flatten(image, shrink=1):
    """`image` as 8-bit L or RGB on white, its sides divided by `shrink`, in bands so that memory stays bounded."""
    from PIL import Image

    scale = None
    if image.mode.startswith(("I", "F")):
        import numpy as np

        low, high = _value_range(np.asarray(image))
        inverted = image.format == "TIFF" and image.tag_v2.get(262) == 0  # white is zero; Pillow inverts 8 bits only
        scale = (high, low) if inverted else (low, high)
    if shrink == 1 and not scale:
        return _on_white(image, None)
    rows = shrink * max(1, 2**24 // (image.width * shrink))
    flat = None
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band = _on_white(band, scale).reduce(shrink)
        flat = flat or Image.new(band.mode, (band.width, math.ceil(image.height / shrink)))
        flat.paste(band, (0, top // shrink))
    return flat


def _on_white(image, scale):
    from PIL import Image

    if scale:
        import numpy as np

        return Image.fromarray(_scaled_to_8_bits(np.asarray(image), *scale))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        page = Image.new("RGB", image.size, "white")
        page.paste(image, mask=image.getchannel("A"))
        return page
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _whiten_missing_rows(image):
    """White below the last row that was decoded. Raises PageError where nothing was, or nothing but one colour."""
    box = image.getbbox()
    extrema = image.crop(box).getextrema() if box else ()
    bands = extrema if extrema and isinstance(extrema[0], tuple) else (extrema,)
    if not box or all(low == high for low, high in bands):
        raise PageError("the file ends early, before anything that could be read")
    image.paste("white", (0, box[3], image.width, image.height))
    return image


def _orientation(image):
    try:
        return int(image.getexif().get(274, 1))
    except Exception:  # one bad byte in the EXIF block is no reason to lose the page
        return 1


def _turn_upright(image, orientation):
    from PIL.Image import Transpose as turn

    method = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _pdf_document(data):
    """The opened PDF; call it with PDFIUM_LOCK held."""
    if isinstance(data, str) and not data.startswith("hf://"):
        status = os.stat(data)
        return _open_pdf(data, (status.st_mtime_ns, status.st_size))
    return _open_pdf(_fetch(data) if isinstance(data, str) else bytes(data), None)


@functools.cache
def _pdfium():
    import pypdfium2

    atexit.register(_open_pdf.cache_clear)  # before pypdfium2 looks for what is still open, and complains of it
    return pypdfium2


@functools.lru_cache(maxsize=1)  # opening a PDF of 1,000 pages again for each page would take most of the time
def _open_pdf(source, version):
    pdfium = _pdfium()
    try:
        document = pdfium.PdfDocument(source)
        document.init_forms()
    except Exception as error:
        # For a PDF without pages pdfium reports its last error code, whatever file that came from.
        if getattr(error, "err_code", None) == 4 and b"/Encrypt" in source_bytes(source):  # FPDF_ERR_PASSWORD
            raise PageError("the PDF is encrypted and needs a password; remove it with `qpdf --decrypt`") from error
        raise PageError(f"the PDF is broken or has no pages ({error})") from error
    return document


def _pdf_page(data, frame, dpi, bounds):
    with PDFIUM_LOCK:
        document = _pdf_document(data)
        if frame >= len(document):
            raise PageError(f"there is no page {frame + 1}: the PDF has {len(document)}")
        try:
            page = document[frame]
            width, height = (math.ceil(points * dpi / 72) for points in page.get_size())
            scale = min(1.0, math.sqrt(PAGE_PIXELS / (width * height)))
            image = page.render(scale=scale * dpi / 72, rev_byteorder=True).to_pil()
            page.close()
        except Exception as error:
            raise PageError(f"page {frame + 1} of the PDF cannot be rendered: {error}") from error
    return Page(fit(image.convert("RGB"), bounds), width, height, dpi=dpi)


# <<< kit/pages.py

# >>> kit/items.py
# What INPUT and OUTPUT name, and the `Item`s of rows and files: pages, windows, and what is done.


MULTI_PAGE_SUFFIXES = (".pdf", ".tif", ".tiff", ".gif")


def where(text):
    """What INPUT or OUTPUT names: ("hub", "ns/name"), ("bucket", uri), ("hub-files", uri) or ("local", path)."""
    if not text.strip():
        raise Stop("INPUT or OUTPUT is empty, perhaps a variable that is not set. For this folder type a dot.")
    parts = text.removeprefix("hf://").strip("/").split("/")
    if text.startswith("hf://buckets/") and len(parts) >= 3:
        return "bucket", text.rstrip("/")
    if text.startswith("hf://datasets/") and len(parts) >= 4:
        return "hub-files", text.rstrip("/")
    if text.startswith("hf://datasets/") and len(parts) == 3 and "@" not in text:
        return "hub", "/".join(parts[1:])
    if "://" in text:
        raise Stop(
            f"{text} is not a place that can be read or written here. Type ns/name for a dataset on the Hub "
            "(--input-revision for one of its revisions), hf://datasets/ns/name/*.pdf for files in it, "
            "hf://buckets/ns/name/folder for a bucket, or a local path."
        )
    path = os.path.expanduser(text)
    if text.startswith((".", "/", "~")) or len(parts) == 1 or os.path.exists(path) or glob.has_magic(path):
        return "local", path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return "hub", text
    raise Stop(f"{text} is no path that exists here and no dataset (ns/name). For a local path type ./{text}.")


def windows(items, n, place):
    """Groups the pages of a document into Items of `n` parts, or into one where `n` is None.

    `place(item)` gives the document's id, its output name, and the page's 1-based number in it. Windows start at 1,
    n + 1, 2n + 1 ... and end at a gap, so that they are the same whatever has been skipped.
    """

    def window_of(numbered):
        position, item = numbered
        document, name, number = place(item)
        return document, name, n and (number - 1) // n, number - position

    for (document, name, *_), pages in groupby(enumerate(items), key=window_of):
        window = [item for _, item in pages]
        first, start, end = window[0], place(window[0])[2], place(window[-1])[2]
        if first.error or (n and start == end == 1):
            yield from window
            continue
        suffix = f"/pages_{start:04d}-{end:04d}" if n else ""
        yield Item(
            id=(document + suffix).lstrip("/"),
            row=first.row,
            name=(name + suffix).lstrip("/"),
            parts=[part for item in window for part in item.parts],
            page=start,
            pages=max(first.pages, end),
        )


def is_finished(id, done, n):
    """Whether all pages (or windows of `n`, or the document) of a row or file are done, by what its first recorded."""
    if n is None:
        return id in done
    for first in (id, f"{id}/page_001"):
        if first in done:
            return all(f"{id}/page_{page:03d}" in done for page in range(2, (done.pages(first) or 1) + 1))
    for end in range(n, 1, -1):
        if (first := f"{id}/pages_0001-{end:04d}") in done:
            pages = done.pages(first) or end
            starts = range(n + 1, pages + 1, n)
            return all(f"{id}/pages_{start:04d}-{min(start + n - 1, pages):04d}" in done for start in starts)
    return False


class Spool(str):
    """Path of a temporary file that is deleted when nothing refers to this object any more. Pickles as a plain str."""

    def __new__(cls, suffix=""):
        handle, path = tempfile.mkstemp(prefix="ocr-", suffix=suffix)
        os.close(handle)
        spool = super().__new__(cls, path)
        weakref.finalize(spool, cls.discard, path, os.getpid())
        return spool

    @staticmethod
    def discard(path, owner):
        if os.getpid() == owner and os.path.exists(path):  # a forked worker holds a copy of the object
            os.unlink(path)

    def __reduce__(self):
        return str, (str(self),)


def copy_of(uri):
    """A local copy of a file on the Hub, as a Spool. Raises PageError."""
    import fsspec

    def copy():
        files, path = fsspec.core.url_to_fs(uri)  # not fsspec.open, to which x[1].png is a pattern
        spool = Spool(os.path.splitext(path)[1])
        with files.open(path, "rb") as source, open(spool, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 23)
        return spool

    try:
        return persist(copy)
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def pages_of(item, data, is_file):
    """Yields one Item per page of a row or file, or one with `error`. PDF, TIFF and GIF are opened to count pages.

    `data` is bytes, a local path, an hf:// URI, or a list of these. The first page of a row keeps the row's id; all
    pages of a PDF file are numbered, and those of a TIFF or GIF file that has several.
    """
    parts, is_pdf = [(entry, 0) for entry in data] if isinstance(data, list) else [(data, 0)], False
    try:
        if isinstance(data, str) and data.lower().endswith(MULTI_PAGE_SUFFIXES):
            is_pdf = data.lower().endswith(".pdf")
            data = copy_of(data) if data.startswith("hf://") else data
            parts = [(data, frame) for frame in range(count_pages(data))]
        elif isinstance(data, bytes) and (pages := count_pages(data)) > 1:
            spool = Spool()  # the pages go to workers one by one, and not each with the bytes of all
            with open(spool, "wb") as target:
                target.write(data)
            parts = [(spool, frame) for frame in range(pages)]
    except PageError as error:
        yield replace(item, error=str(error))
        return
    for page, part in enumerate(parts, 1):
        numbered = page > 1 or (is_file and (is_pdf or len(parts) > 1))
        suffix = f"/page_{page:03d}" if numbered else ""
        yield replace(item, id=item.id + suffix, name=item.name + suffix, parts=[part], page=page, pages=len(parts))


def chosen_rows(options, total):
    """The rows of `--max-samples`, or None for all: the first ones, or `random.Random(seed).sample` of all."""
    if not options.max_samples or (total is not None and options.max_samples >= total):
        return None
    if options.shuffle:
        return set(random.Random(options.seed).sample(range(total), options.max_samples))
    return range(options.max_samples)


def in_shard(number, options):
    return not options.shard or number % options.shard[1] == options.shard[0]


def safe_name(id):
    """A file name for any id: what a file system may refuse is written %XX, and long ones end in a digest."""
    name = re.sub(r"[^\w .,=+@()-]|^\.", lambda char: f"%{ord(char[0]):02X}", id)
    return name if len(name.encode()) <= 200 else f"{name[:40]}-{hashlib.sha256(id.encode()).hexdigest()[:16]}"


# <<< kit/items.py

# >>> kit/card.py
# The dataset card: one section per published config, between markers; everything else is the user's own.


TAGS = ["ocr", "ocr-recipes", "uv-script"]


def output_layout(options):
    """(repository, config, folder in the repository, split) of what is published."""
    return where(options.output)[1], options.config or "default", options.config or "data", options.split or "train"


def read_card(api, repo, head):
    """The README of a repository as a `DatasetCard`, an empty one where `head` (a DatasetInfo) lists none."""
    from huggingface_hub import DatasetCard

    if all(file.rfilename != "README.md" for file in head.siblings):
        return DatasetCard("---\n{}\n---\n")
    path = persist(lambda: api.hf_hub_download(repo, "README.md", repo_type="dataset", revision=head.sha))
    return DatasetCard(Path(path).read_text("utf-8"), ignore_metadata_errors=True)


def _config_entries(card):
    entries = card.data.get("configs") or []
    return [entry for entry in (entries if isinstance(entries, list) else [entries]) if isinstance(entry, dict)]


def _split_files(entry):
    """The `data_files` of a config entry as {split: entry}, or None where they do not say which split they are."""
    files = entry.get("data_files")
    named = isinstance(files, list) and all(isinstance(file, dict) and "split" in file for file in files)
    return {file["split"]: file for file in files} if named else None


def has_config(card, paths, options):
    """Whether a repository with that card and those files already has the config and split to be published."""
    _, config, folder, split = output_layout(options)
    entries = {entry.get("config_name", "default"): entry for entry in _config_entries(card)}
    if config in entries:
        files = _split_files(entries[config])
        return files is None or split in files
    undeclared = config == "default" and not entries and any(not re.match(r"README|LICENSE|\.", p) for p in paths)
    return undeclared or any(path.startswith(f"{folder}/{split}-") for path in paths)


def merged_card(card, paths, options, section):
    """The text of the card with our config entry, tags and section put in or replaced.

    Where no config was declared so far, the files in `data/` are declared first, or they would vanish behind ours.
    `dataset_info` of the config is dropped: it described other columns.
    """
    repo, config, folder, split = output_layout(options)
    entries = _config_entries(card)
    splits = {m[1] for m in (re.match(r"data/(\w+)-\d+-of-\d+\.parquet", path) for path in paths) if m}
    if not entries and config != "default" and splits:
        entries = [{"config_name": "default", "data_files": [_data_files("data", name) for name in sorted(splits)]}]
    entry = next((e for e in entries if e.get("config_name", "default") == config), None)
    if entry is None:
        entries.append(entry := {"config_name": config})
    entry["data_files"] = list({**(_split_files(entry) or {}), split: _data_files(folder, split)}.values())
    card.data["configs"] = entries
    infos = card.data.get("dataset_info") or []
    infos = [i for i in (infos if isinstance(infos, list) else [infos]) if i.get("config_name", "default") != config]
    card.data["dataset_info"] = infos or None
    tags = card.data.get("tags") or []
    card.data["tags"] = [*tags, *(tag for tag in TAGS if tag not in tags)]
    begin, end = (f"<!-- ocr-recipes {config}/{split} {word} -->" for word in ("begins", "ends"))
    section, text = f"{begin}\n{section}\n{end}", card.text
    if begin in text and end in text:
        before, after = text.split(begin, 1)[0], text.split(begin, 1)[1].split(end, 1)[-1]
        card.text = before + section + after
    else:
        card.text = (text.rstrip() or f"\n# {repo.split('/')[-1]}") + f"\n\n{section}\n"
    return str(card)


def _data_files(folder, split):
    return {"split": split, "path": f"{folder}/{split}-*"}


def dataset_card(options, recipe, run, told, summary):
    """The section on one published config: how it was made, what to know, three pages. Markdown without secrets.

    `told` holds the counts pages, errors and flags, and examples as pairs of id and text.
    """
    _, config, _, split = output_layout(options)
    command = run.get("command") or shlex.join(["uv", "run", Path(sys.argv[0]).name, *sys.argv[1:]])
    facts = {
        "Model": f"[{run['model']}](https://huggingface.co/{run['model']})",
        "Revision": run.get("revision"), "Input": run.get("source"), "Task": run.get("task"),
        "Engine": run.get("engine"), "Versions": run.get("versions"), "Sampling": run.get("sampling"),
        "Hardware": run.get("hardware") or summary.get("hardware"),
        "Date": run.get("timestamp") or datetime.now(timezone.utc).date().isoformat(),
        "Pages": told["pages"], "Failed": told["errors"], "Flags": dict(told["flags"]) or None,
        "Model licence": recipe.get("licence"),
    }  # fmt: skip
    lines = [
        f"## OCR with {run['model'].split('/')[-1]} (config `{config}`, split `{split}`)",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts.items() if value not in (None, {}, "")]
    lines += ["", "Made with", "", _fenced(command, "sh"), ""]
    lines += [
        f"`{options.output_column}` is the text of the page: empty for a blank page, null where it could not be read; "
        "`ocr_error` then says why. `ocr_flags` names what looks suspicious in an answer (`truncated`, `looped`, "
        "`degenerate`, `unparsed`, ...), and `inference_info` lists how each text column was made. "
        "This is a machine's reading: it contains mistakes.",
    ]
    for name, text in told["examples"]:
        lines += ["", f"Page {_cell(name)}", "", _fenced(text, "markdown")]
    return masked("\n".join(lines))


def _cell(value):
    """One table cell: links as they are, anything else as code that cannot leave its cell."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    if text.startswith("[") and "](https://huggingface.co/" in text:
        return text
    return "`" + re.sub(r"[`|\s<>]+", " ", text)[:400] + "`"


def _fenced(text, language):
    """A code block that its content cannot end, nor can it hold a comment that looks like our markers."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.replace('<!--', '<! --')}\n{fence}"


def masked(text):
    """`text` without tokens: what looks like one, the value of HF_TOKEN, what follows --api-key, passwords in URLs."""
    token = os.environ.get("HF_TOKEN", "")
    if len(token) >= 8:
        text = text.replace(token, "***")
    text = re.sub(r"\bhf_\w{6,}", "hf_***", text)
    text = re.sub(r"(--(?:[\w-]{0,40}-)?(?:token|key|secret|password)[ =])\S+", r"\1***", text)
    return re.sub(r"://[^/\s@]+@", "://***@", text)


# <<< kit/card.py

# >>> kit/publish.py
# Publishing: results joined to their source, written in shards, put on the Hub in one commit with a card.


SHARD_BYTES, GROUP_BYTES = 500_000_000, 100_000_000
GROUP_ROWS = 100  # a viewer fetches whole row groups, and page images are large
EXAMPLES, EXCERPT = 3, 800  # pages shown on the card, characters of each


def checkpoint_of(options):
    """Where the parts of a run towards a Hub dataset are kept: a local path, or an `hf://buckets/...` URI."""
    if options.checkpoint:
        return options.checkpoint
    repo = where(options.output)[1]
    name = "--".join([*repo.split("/"), *filter(None, [options.config])])
    if os.environ.get("JOB_ID"):  # a job's own disk is gone when it ends
        return f"hf://buckets/{repo.split('/')[0]}/ocr-runs/{name}"
    return f"./.ocr-runs/{name}"


def output_columns(options, recipe, source, many_pages=False):
    """The published columns as two `datasets.Features`: those carried from the input, then the run's own.

    `recipe["row_columns"]` names keys of the result row that are published too ("id", "error", "finish_reason",
    "prompt_tokens", "completion_tokens"), or "model". Where the input has such a column, or a `source_row` or
    `image_sha256`, that keeps its meaning and is carried as it is.
    """
    from datasets import Features, List, Value

    kinds = {"float": "float64", "int": "int64"}
    carried = {
        name: kind for name, kind in source.features.items() if options.columns is None or name in options.columns
    }
    own = {name: Value("string") for name in (options.output_column, options.blocks_column) if name}
    own |= {name: Value(kinds.get(kind, kind)) for name, kind in (recipe.get("columns") or {}).items()}
    own |= {"ocr_error": Value("string"), "ocr_flags": List(Value("string")), "inference_info": Value("string")}
    if many_pages:
        own["ocr_page" if "page" in carried else "page"] = Value("int64")
    keys = {name: Value("int64" if "tokens" in name else "string") for name in recipe.get("row_columns") or ()}
    if options.config:
        keys |= {"source_row": Value("int64"), "image_sha256": Value("string")}
    own |= {name: kind for name, kind in keys.items() if name not in carried}
    return Features({name: kind for name, kind in carried.items() if name not in own}), Features(own)


def check_columns(options, recipe, source):
    """Raises Stop where a published column would hide one of the input's, or `--columns` names one it does not have."""
    if where(options.output)[0] != "hub":
        return
    carried = list(source.features) if options.columns is None else options.columns
    if unknown := sorted(set(carried) - set(source.features)):
        raise Stop(f"--columns: the input has no {', '.join(unknown)}. It has {', '.join(source.features)}.")
    own = {options.output_column, options.blocks_column, "ocr_error", "ocr_flags", *(recipe.get("columns") or {})}
    clash = [name for name in carried if name in own]
    if clash and not options.overwrite:
        kept = ",".join(name for name in carried if name not in own)
        raise Stop(
            f"The input already has the columns {', '.join(clash)}. Type --overwrite to replace them, "
            f"--output-column NAME for another text column, or --columns {kept} to leave them out."
        )


def check_output(options, recipe, source):
    """Raises Stop where the output dataset could not be published at the end, before anything is spent.

    A missing repository is made, which proves that the token may (not with `--check`). A config that is already there
    needs `--overwrite`, unless this output has a checkpoint: then that was asked when the checkpoint was begun.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if where(options.output)[0] != "hub":
        return
    api, (repo, config, _, split) = HfApi(), output_layout(options)
    if not re.fullmatch(r"\w+(\.\w+)*", split) or re.search(r"[<>:/\\|?*]", config):
        raise Stop(f"A published dataset cannot have the config {config!r} with the split {split!r}. Give other names.")
    try:
        if persist(api.whoami).get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise Stop("The Hub token can only read. Set HF_TOKEN to one that can write, or type: hf auth login")
        if not persist(lambda: api.repo_exists(repo, repo_type="dataset")):
            if not options.check:
                create_output(api, options)
            return
        if not options.create_pr:
            persist(lambda: api.auth_check(repo, repo_type="dataset", write=True))
        head = persist(lambda: api.dataset_info(repo))
        taken = has_config(read_card(api, repo, head), [file.rfilename for file in head.siblings], options)
        begun = "run.json" in open_storage(checkpoint_of(options)).list()
    except (HfHubHTTPError, OSError) as error:
        raise Stop(
            f"The dataset {repo} cannot be written: {first_line(error)}. Check the name and the token "
            f"(hf auth whoami); for a folder here type ./{repo}."
        ) from error
    if options.private and not head.private:
        raise Stop(f"{repo} is public. Leave --private out, or type: hf repos settings {repo} --type dataset --private")
    if taken and not begun and not options.overwrite:
        raise Stop(
            f"{repo} already has the config {config} with the split {split}. Type --overwrite to replace it, "
            "or --config NAME to publish beside it."
        )


def create_output(api, options):
    repo, private = output_layout(options)[0], options.private or None  # None: what the owner's settings say
    persist(lambda: api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True))


def publish(options, recipe, source, run, index, summary, scratch=None):
    """Publishes what `index` holds and returns a sentence with the address. Memory and disk use are a shard's.

    Rows of the source without a result are left out; a row with several pages becomes one row per page. Safe to
    repeat. Raises what the Hub answered last once `persist` gives up, and RuntimeError if the files did not arrive.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api, (repo, _, folder, split) = HfApi(), output_layout(options)
    create_output(api, options)
    told, files = {"pages": 0, "errors": 0, "flags": Counter(), "examples": []}, []
    if scratch:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="publish-", dir=scratch) as shards:
        for path in write_shards(joined_tables(options, recipe, source, index, told), Path(shards)):
            file = CommitOperationAdd(f"{folder}/{split}-{len(files)}-unfinished.parquet", str(path))
            upload = partial(api.preupload_lfs_files, repo, [file], repo_type="dataset", create_pr=options.create_pr)
            persist(upload)
            if file.path_or_fileobj != str(path):  # a small file may travel with the commit instead
                path.unlink()
            files.append(file)
        if not told["pages"]:
            return "No page has a result, so nothing was published."
        for number, file in enumerate(files):
            file.path_in_repo = f"{folder}/{split}-{number:05d}-of-{len(files):05d}.parquet"
        revision, request = commit(api, options, run, files, dataset_card(options, recipe, run, told, summary))
    if not persist(lambda: arrived(api, repo, files, revision)):
        raise RuntimeError(f"the files of commit {revision} are not those that were sent")
    if request:
        say(f"Pull request: {request}")
    return f"{told['pages']} pages published: {request or f'{api.endpoint}/datasets/{repo}'}"


def joined_tables(options, recipe, source, index, told):
    """Yields the published rows as tables in source order, and counts them in `told`."""
    import pyarrow as pa
    from datasets import Features
    from datasets.features.features import require_storage_embed

    kept, own = output_columns(options, recipe, source, index.most_pages() > 1)
    schema, keys = Features({**kept, **own}).arrow_schema, row_keys(options, recipe)
    earlier = ["inference_info"] if "inference_info" in (options.columns or source.features) else []
    media = {name for name, feature in kept.items() if require_storage_embed(feature)}
    for start, table in source.tables([*kept, *earlier] or list(source.features)[:1]):
        places, records = index.match(start, len(table))
        # A document's bytes stay with its first page only: 500 pages would carry them 500 times.
        once = [None if n and place == places[n - 1] else place for n, place in enumerate(places)]
        columns = {}
        for name in kept:
            columns[name] = table[name].take(pa.array(once if name in media else places, pa.int64()))
        infos = table["inference_info"].to_pylist() if earlier else [None] * len(table)
        for record, place in zip(records, places, strict=True):
            record["info"] = appended_info(infos[place], record["info"])
            record["columns"] = json.loads(record["columns"])
            if "model" in own:
                record["columns"]["model"] = options.model
            count_record(told, record)
        for name in own:
            values = [record[keys[name]] if name in keys else record["columns"].get(name) for record in records]
            columns[name] = typed_array(values, schema.field(name).type)
        yield pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def row_keys(options, recipe):
    """{published column: key of the result row}; the recipe's own columns stand in the row's `columns`."""
    keys = {"ocr_error": "error", "ocr_flags": "flags", "source_row": "row", "image_sha256": "sha256", "page": "page"}
    keys |= {"ocr_page": "page", options.output_column: "text", options.blocks_column: "blocks"}
    return keys | {"inference_info": "info"} | {key: key for key in recipe.get("row_columns") or () if key != "model"}


def typed_array(values, kind):
    """An arrow array of `kind`; a value that does not fit is null (or its JSON, for strings), never a lost dataset."""
    import pyarrow as pa

    def fit_value(value):
        try:
            return pa.scalar(value, kind).as_py()
        except (pa.ArrowException, OverflowError):
            return json.dumps(value) if pa.types.is_string(kind) else None

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        return pa.array([fit_value(value) for value in values], kind)


def appended_info(earlier, entry):
    """`inference_info` of the input (JSON text, list, object or None) with this run's entry, as a JSON list."""
    try:
        entries = json.loads(earlier) if isinstance(earlier, str) else earlier or []
    except ValueError:
        entries = []
    entries = entries if isinstance(entries, list) else [entries]
    return json.dumps([*entries, json.loads(entry)], default=str)


def count_record(told, record):
    told["pages"] += 1
    told["errors"] += record["error"] is not None
    told["flags"].update(record["flags"] or [])
    if record["text"] and not record["flags"] and len(told["examples"]) < EXAMPLES:
        told["examples"].append((record["id"], record["text"][:EXCERPT]))


def write_shards(tables, folder):
    """Yields the paths of parquet files of about SHARD_BYTES in `folder`, each as soon as it is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def groups():
        waiting = []
        for table in tables:
            waiting.append(table)
            if sum(map(len, waiting)) >= GROUP_ROWS or sum(part.nbytes for part in waiting) >= GROUP_BYTES:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    writer, path, number = None, None, 0
    for group in groups():
        if writer is None:
            path = folder / f"{number}.parquet"
            writer = pq.ParquetWriter(path, group.schema, use_content_defined_chunking=True, write_page_index=True)
        writer.write_table(group, row_group_size=GROUP_ROWS)
        if os.path.getsize(path) >= SHARD_BYTES:
            writer.close()
            yield path
            writer, number = None, number + 1
    if writer:
        writer.close()
        yield path


def commit(api, options, run, files, section):
    """One commit of files, card and removals, on whatever the head is by then: (revision, pull request URL or None)."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo, _, folder, split = output_layout(options)
    title = f"OCR with {run['model']}" + (f" [{options.config}]" if options.config else "")  # benches look for [CONFIG]

    def attempt():
        head = api.dataset_info(repo)
        if options.create_pr:  # an answer that was lost may have left the pull request
            for request in api.get_repo_discussions(repo, repo_type="dataset", discussion_type="pull_request"):
                ref = f"refs/pr/{request.num}"
                if request.status in ("open", "draft") and request.title == title and arrived(api, repo, files, ref):
                    return api.dataset_info(repo, revision=ref).sha, request.url
        there = [file.rfilename for file in head.siblings]
        card = read_card(api, repo, head)
        old, new = str(card), merged_card(card, there, options, section)
        if not options.create_pr and old == new and arrived(api, repo, files, head.sha):
            return head.sha, None
        mine = {file.path_in_repo for file in files}
        gone = [name for name in fnmatch.filter(there, f"{folder}/{split}-*") if name not in mine]
        changes = [*files, CommitOperationAdd("README.md", new.encode()), *map(CommitOperationDelete, gone)]
        send = partial(api.create_commit, repo_type="dataset", parent_commit=head.sha, create_pr=options.create_pr)
        done = send(repo, changes, commit_message=title)
        return done.oid, done.pr_url

    return persist(attempt)


def arrived(api, repo, files, revision):
    """Whether the files are in the repository at that revision, with their size and SHA-256."""
    paths = [file.path_in_repo for file in files]
    there = {info.path: info for info in api.get_paths_info(repo, paths, repo_type="dataset", revision=revision)}
    return all(
        (info := there.get(file.path_in_repo)) is not None
        and info.size == file.upload_info.size
        and (info.lfs is None or info.lfs.sha256 == file.upload_info.sha256.hex())
        for file in files
    )


# <<< kit/publish.py

# >>> kit/results.py
# Durable results: parquet parts on the way to a Hub dataset, or files in a folder or bucket, and what is done.


PART_ROWS, PART_SECONDS = 256, 60.0  # a part, or a batch for a bucket, closes at either: what a kill can lose
FILE_ROWS, FILE_SECONDS = 64, 5.0  # the same for files in a local folder
SHARD_DONE = "Shard {}/{} finished; when all are, the same command without --shard finishes the run."
READERS = 8  # parts read at once: a bucket answers slowly, but many at a time
FIELDS = {  # the declared schema of a part; `columns` and `info` are JSON
    **dict.fromkeys(("id", "name", "text", "blocks", "error", "finish_reason", "sha256", "columns", "info"), "string"),
    **dict.fromkeys(("row", "page", "pages", "attempts", "prompt_tokens", "completion_tokens"), "int64"),
    "seconds": "float64",
}


def open_results(options, recipe, source, run):
    """The results of this run with what earlier runs of the same command left: `Parts` or `Files`.

    `run` describes the run. Its model, revision, task and source must be those of the results found.
    Raises Stop where they are not, and where the place cannot be written.
    """
    kind, place = where(options.output)
    if kind == "hub-files":
        raise Stop(
            f"{options.output} is a folder of a dataset. Name the dataset (ns/name), a bucket or a local folder."
        )
    try:
        if kind == "hub":
            return Parts(options, recipe, run, checkpoint_of(options), (PART_ROWS, PART_SECONDS))
        limits = (PART_ROWS, PART_SECONDS) if kind == "bucket" else (FILE_ROWS, FILE_SECONDS)
        return Files(options, recipe, run, place, limits)
    except ValueError as error:  # JSON or parquet that is cut or damaged
        damaged = checkpoint_of(options) if kind == "hub" else place
        raise Stop(
            f"What earlier runs left in {damaged} is damaged: {first_line(error)}. Name another place, or delete it "
            "and read everything again."
        ) from error
    except OSError as error:
        raise Stop(f"Results cannot be kept for {options.output}: {first_line(error)}. Name another place.") from error


def inference_entry(options, run):
    """The entry of this run in `inference_info`: model_id, column_name and what else describes it."""
    described = {key: value for key, value in run.items() if key not in ("model", "source")}
    return {"model_id": run["model"], "column_name": options.output_column, **described}


def flat(run):
    """The identity of a run, with the options of the recipe and the facts of the source beside the rest."""
    own, source = run.pop("options") or {}, run.pop("source")
    return {**run, **own, **source}


def storable(text):
    """Text without lone surrogates, which broken JSON or file names may hold and neither Arrow nor SQLite takes."""
    return text.encode("utf-8", "replace").decode()


def to_json(value):
    return json.dumps(value, ensure_ascii=False, default=lambda v: v.item() if hasattr(v, "item") else str(v))


class Index:
    """Which units are done, in a private SQLite file on disk that vanishes with the process.

    Of several records of one id a success wins over an error, and otherwise the last.
    """

    def __init__(self, retry_errors=False):
        self.accepted = 0 if retry_errors else 1
        self.db = sqlite3.connect("", check_same_thread=False)
        self.db.execute(
            "CREATE TABLE units (id TEXT PRIMARY KEY, row INT, page INT, pages INT, failed INT, record TEXT)"
        )

    def add(self, rows, record=lambda row: None):
        """Takes result rows, oldest first, with `record(row)`, the JSON that is to come back from `match`."""
        self.db.executemany(
            "INSERT INTO units VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET row = excluded.row, "
            "page = excluded.page, pages = excluded.pages, failed = excluded.failed, record = excluded.record "
            "WHERE excluded.failed <= units.failed",
            (
                (storable(row["id"]), row["row"], row["page"], row["pages"], row["error"] is not None, record(row))
                for row in rows
            ),
        )
        self.db.commit()

    def __contains__(self, unit_id):
        query = "SELECT 1 FROM units WHERE id = ? AND failed <= ?"
        return self.db.execute(query, (storable(unit_id), self.accepted)).fetchone() is not None

    def __len__(self):
        return self.db.execute("SELECT count(*) FROM units WHERE failed <= ?", (self.accepted,)).fetchone()[0]

    def failed(self):
        """How many of the done units are failures."""
        query = "SELECT count(*) FROM units WHERE failed AND failed <= ?"
        return self.db.execute(query, (self.accepted,)).fetchone()[0]

    def pages(self, unit_id):
        """How many pages the row or file of this unit has, or None if the unit is not known."""
        found = self.db.execute("SELECT pages FROM units WHERE id = ?", (storable(unit_id),)).fetchone()
        return found and found[0]

    def extra_pages(self):
        """How many more pages than rows the done units stand for."""
        query = "SELECT coalesce(sum(pages - 1), 0) FROM units WHERE page = 1 AND failed <= ?"
        return self.db.execute(query, (self.accepted,)).fetchone()[0]

    def most_pages(self):
        return self.db.execute("SELECT max(pages) FROM units").fetchone()[0] or 0

    def records(self, failed):
        """The records of units that failed (1) or were read (0), as a list of JSON strings."""
        return [record for (record,) in self.db.execute("SELECT record FROM units WHERE failed = ?", (failed,))]

    def match(self, start, count):
        """The records for a table of the source, as (places in the table, records), in the order of the table.

        `start` is the number of the first of `count` rows, or the list of their ids. A row may have several records.
        """
        if isinstance(start, int):
            self.db.execute("CREATE INDEX IF NOT EXISTS by_row ON units (row, page)")
            query = "SELECT record FROM units WHERE row >= ? AND row < ? ORDER BY row, page"
            records = [json.loads(record) for (record,) in self.db.execute(query, (start, start + count))]
            return [record["row"] - start for record in records], records
        query = "SELECT record FROM units WHERE id = ?"
        found = [self.db.execute(query, (storable(unit_id),)).fetchone() for unit_id in start]
        places = [place for place, record in enumerate(found) if record]
        return places, [json.loads(found[place][0]) for place in places]


class Results:
    """Takes rows from one producer and hands them to one background writer.

    `done` answers `id in done`, `done.pages(id)` and `len(done)` for what was there when the run started; `deaths`
    maps the ids that were in flight when an engine died to how often. Subclasses say how to `load` and `save`.
    """

    def __init__(self, options, recipe, run, uri, limits):
        self.options, self.recipe, self.run, self.limits = options, recipe, run, limits
        self.storage = open_storage(uri)
        self.done, self.deaths = Index(options.retry_errors), Counter()
        self.info = to_json(inference_entry(options, run))
        self._lock = self.storage.claim("run" if not options.shard else "shard-{}-{}".format(*options.shard))
        names = self.storage.list()
        self._check_identity(names)
        for name in names:
            if name.startswith(f"{self.folder}deaths-"):
                self.deaths.update(json.loads(self._read(name)))
        self.load(names)
        self._failure, self._told, self._saved, self._closed, self._taken = None, False, 0, False, 0
        self._rows = queue.Queue(maxsize=PART_ROWS)
        self._writer = threading.Thread(target=self._write, name="results", daemon=True)
        self._writer.start()

    def put(self, row):
        """Queues one result row (the dict of CLAUDE.md). Raises Stop if an earlier one could not be written."""
        self._raise_failure()
        self._taken += 1
        self._rows.put(row)

    def close(self):
        """Writes what is queued and ends the writer; may be called again. Raises Stop once if writing failed."""
        if not self._closed:
            self._closed = True
            self._rows.put(None)
        self._writer.join()
        self._lock.close()
        if not self._told:
            self._raise_failure()

    def record_death(self, ids):
        """Notes at once, durably, that an engine died while these units were in flight."""
        try:
            self.storage.write({f"{self.folder}deaths-{unique_stamp()}.json": json.dumps(list(ids)).encode()})
        except Exception as error:
            self._failure = error
            self._raise_failure()
        self.deaths.update(ids)

    def _write(self):
        rows, row, due = [], {}, 0.0
        most, seconds = self.limits
        while row is not None:
            try:
                row = self._rows.get(timeout=max(0.0, due - time.monotonic()) if rows else None)
            except queue.Empty:
                row = {}
            if row:
                due = due if rows else time.monotonic() + seconds
                rows.append(row)
            if rows and (row is None or len(rows) >= most or time.monotonic() >= due):
                try:
                    if not self._failure:  # after a failure the queue is only emptied, so that no put blocks
                        self.save(rows)
                        self._saved += len(rows)
                except Exception as error:
                    self._failure = error
                rows = []

    def _raise_failure(self):
        if self._failure:
            self._told = True
            raise Stop(
                f"The results cannot be written to {self.storage.where}: {first_line(self._failure)}. "
                f"{len(self.done) + self._saved} units are safe there. When it can be written again, type the same "
                "command: it goes on from them.",
                code=1,
            ) from self._failure

    def _check_identity(self, names):
        name = f"{self.folder}run.json"
        keys = ("model", "revision", "task", "options", "source")
        mine = json.loads(to_json({key: self.run.get(key) for key in keys}))
        if name not in names and any(other.startswith(f"{self.folder}done-") for other in names):
            raise Stop(f"{self.storage.where} holds results, but not of which run: {name} is gone. Name another place.")
        if name not in names:
            self.storage.write({name: json.dumps(mine, indent=1).encode()})
        kept, mine = map(flat, (json.loads(self._read(name)), mine))
        key = next((key for key in {**mine, **kept} if kept.get(key) != mine.get(key)), None)
        if key is None:
            return
        raise Stop(
            f"{self.storage.where} holds the results of another run: its {key} is {kept.get(key)!r}, now it is "
            f"{mine.get(key)!r}. Go on with the old setting, {self.elsewhere}, or delete {self.storage.where}."
        )

    def _read(self, name):
        with self.storage.open(name) as file:
            return file.read()

    def _read_all(self, rows_of, names):
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(names), READERS):  # so many at a time that memory does not grow with the run
                for rows in pool.map(rows_of, names[start : start + READERS]):
                    yield from rows


class Parts(Results):
    """Results on the way to a Hub dataset: append-only parquet parts in a checkpoint, published at the end."""

    folder, elsewhere = "", "name another place with --checkpoint"

    def load(self, names, whole=False):
        """Fills the index from the parts; `whole` with the results themselves, as publishing needs them."""
        import pyarrow.parquet as pq

        columns = None if whole else ["id", "row", "page", "pages", "error"]

        def rows_of(name):
            with self.storage.open(name) as file:
                return pq.ParquetFile(file).read(columns, use_threads=False).to_pylist()

        rows = self._read_all(rows_of, [name for name in names if name.startswith("part-")])
        self.done.add(rows, json.dumps if whole else lambda row: None)

    def save(self, rows):
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {name: getattr(pa, kind)() for name, kind in FIELDS.items()} | {"flags": pa.list_(pa.string())}
        rows = [{**row, "columns": to_json(row["columns"] or {}), "info": self.info} for row in rows]
        rows = [{k: storable(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), sink, compression="zstd")
        self.storage.write({f"part-{unique_stamp()}.parquet": sink.getvalue().to_pybytes()})

    def finish(self, source, run, summary):
        """Publishes, removes the checkpoint unless it is to be kept, and returns a sentence that says where.

        Raises Stop (code 1) where the Hub cannot be convinced: the results are safe and the same command finishes.
        """
        self.close()
        if self.options.shard:
            return SHARD_DONE.format(*self.options.shard)
        names = self.storage.list()
        try:
            self.load(names, whole=True)
            said = publish(self.options, self.recipe, source, run, self.done, summary, self.storage.scratch)
        except Stop:
            raise
        except Exception as error:
            raise Stop(
                f"Publishing to {self.options.output} failed: {first_line(error)}. The results are safe in "
                f"{self.storage.where}. Type the same command to finish: it does not read any page again.",
                code=1,
            ) from error
        mine = [name for name in names if name == "run.json" or name.startswith(("part-", "deaths-"))]
        self.storage.remove([] if self.options.keep_checkpoint else mine)
        return said


class Files(Results):
    """Results as files, `NAME.json` first and `NAME.md` last, in a folder here or in a bucket.

    `NAME.md` is the record of success; a page whose `.md` was deleted is read again. `_run/` holds the identity of the
    run, which id is done under which name (done-*.jsonl), and the failures (errors-*.jsonl).
    """

    folder, elsewhere = "_run/", "name another OUTPUT"

    def load(self, names):
        texts = {name for name in names if name.endswith(".md")}

        def rows_of(name):
            return [json.loads(line) for line in self._read(name).splitlines()]

        rows = self._read_all(rows_of, [name for name in names if name.startswith(("_run/done-", "_run/errors-"))])
        self.done.add((row for row in rows if row["error"] is not None or f"{row['name']}.md" in texts), json.dumps)

    def save(self, rows):
        pages, texts, notes = {}, {}, []
        for row in rows:
            note = {key: row[key] for key in ("id", "name", "row", "page", "pages", "error")}
            name, parts = row["name"], row["name"].split("/")
            if note["error"] is None and ({"", ".", ".."} & set(parts) or parts[0] == "_run" or "\0" in name):
                note["error"] = f"the name {name!r} does not lie inside the output folder"
            if note["error"] is None and max(len(part.encode("utf-8", "replace")) for part in parts) > 250:
                note["error"] = f"the name {name!r} is too long for a file"
            if note["error"] is None:
                page = {key: row[key] for key in row if key not in ("text", "error")}
                page["blocks"] = json.loads(row["blocks"]) if row["blocks"] else None
                page["inference_info"] = [json.loads(self.info)]
                pages[f"{name}.json"] = storable(to_json(page)).encode()
                texts[f"{name}.md"] = storable(row["text"] or "").encode()
            notes.append(note)
        self.storage.write(pages)
        self.storage.write(texts)
        self._note(
            [json.dumps(note) for note in notes if note["error"] is None],
            [json.dumps(note) for note in notes if note["error"] is not None],
        )

    def finish(self, source, run, summary):
        """Writes `_run/summary.json`, tidies `_run/`, and returns a sentence that says where the pages are."""
        self.close()
        if self.options.shard:
            return SHARD_DONE.format(*self.options.shard)
        names, handled = self.storage.list(), len(self.done) + self._taken
        self.done = Index()
        self.load(names)
        if len(self.done) < handled:
            raise Stop(
                f"{handled} pages were read, and {len(self.done)} are in {self.storage.where}: others were removed "
                "meanwhile. The same command reads them again.",
                code=1,
            )
        read, failed = self.done.records(failed=0), self.done.records(failed=1)
        told = {"pages": len(read) + len(failed), "errors": len(failed), "run": run, "last_session": summary}
        self.storage.write({"_run/summary.json": to_json(told).encode()})
        self._note(read, failed)
        self.storage.remove(name for name in names if name.startswith(("_run/done-", "_run/errors-")))
        said = f"Pages in {self.storage.where}: {len(read)}."
        if failed:
            notes = [json.loads(note) for note in failed[:3]]
            reasons = "".join(f"\n  {note['id']}: {note['error']}" for note in notes)
            said += f" Not read: {len(failed)}, each with its reason in _run/errors-*.jsonl:{reasons}"
        return said

    def _note(self, read, failed):
        for kind, notes in (("done", read), ("errors", failed)):
            if notes:
                self.storage.write({f"_run/{kind}-{unique_stamp()}.jsonl": "".join(f"{n}\n" for n in notes).encode()})


# <<< kit/results.py

# >>> kit/workers.py
# Crash-isolated worker processes: work in parallel, results in completion order, a dead worker costs one batch.


def worker_loop(pipe, setup, work):
    """A worker's life: `state = setup()`, then `work(state, items)` for each list of items that comes in.

    A thread empties the pipe, so that the parent never blocks while this side is sending. The parent's death ends it.
    """
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # no SIGHUP on Windows
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    inbox = queue.SimpleQueue()

    def receive():
        try:
            while True:
                inbox.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    try:
        state = setup()
    except BaseException as problem:
        pipe.send(("failed", problem if isinstance(problem, Stop) else sentence(problem)))
        return
    pipe.send(("ready", None))
    threading.Thread(target=receive, daemon=True).start()
    while True:
        items = inbox.get()
        try:
            results = work(state, items)
        except Exception as problem:
            results = [PageError(sentence(problem))] * len(items)
        pipe.send(("done", results))


class Worker:
    """The parent's side of one worker process: its pipe, and the batches it holds, the first being worked on."""

    def __init__(self, setup, work):
        # spawn: forking a process that has threads or a GPU context is undefined
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=worker_loop, args=(other, setup, work), daemon=True)
        self.process.start()
        other.close()
        self.ready, self.held, self.since = False, deque(), time.monotonic()

    def give(self, batch):
        if not self.held:
            self.since = time.monotonic()
        self.held.append(batch)
        with contextlib.suppress(OSError):  # it died idle; its pipe says so to the next wait
            self.pipe.send(batch)

    def end(self):
        self.pipe.close()
        self.process.kill()
        self.process.join(5)


def in_workers(items, setup, work, count, stop, batch=1, timeout=600):
    """Yields (item, result) in completion order; a result is what `work(setup(), [item, ...])` gave, or an exception.

    At most two batches a worker are in flight, so memory does not grow with the number of items. When a worker dies
    or is silent for `timeout` seconds, the batch it was working on runs again item by item; an item that takes a
    worker down twice gets a PageError. Raises Stop if `setup` fails. A set `stop` ends admission and abandons the rest.
    """
    waiting, suspects, workers, drained = deque(), {}, [], False
    source = Ahead(items, count * batch)
    try:
        while not stop.is_set():
            while not drained and len(waiting) < count * batch:
                try:
                    item = source.get(block=False)
                except StopIteration:
                    drained = True
                    break
                if item is None:
                    break
                waiting.append(item)
            if not waiting and drained and not any(worker.held for worker in workers):
                return
            idle = sum(not worker.held for worker in workers)
            if len(workers) < count and idle * batch < len(waiting):
                workers.append(Worker(setup, work))
            for worker in sorted(workers, key=lambda worker: len(worker.held)):
                if waiting and worker.ready and len(worker.held) < 2:
                    size = 1 if waiting[0].id in suspects else batch
                    worker.give([waiting.popleft() for _ in range(min(size, len(waiting)))])
                    break
            hungry = any(worker.ready and len(worker.held) < 2 for worker in workers)
            pause = 0 if hungry and waiting else 0.02 if not drained else 0.5
            heard = wait([worker.pipe for worker in workers], pause)
            # Whoever has something to say is not silent, however long nobody took what this generator yields.
            for worker in workers:
                silent = worker.held and worker.ready and worker.pipe not in heard
                if silent and time.monotonic() - worker.since > timeout:
                    worker.process.kill()
            for pipe in heard:
                worker = next(worker for worker in workers if worker.pipe is pipe)
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):
                    yield from worker_died(worker, workers, waiting, suspects)
                    continue
                if kind == "failed":
                    raise value if isinstance(value, Stop) else Stop(f"The model could not be loaded: {value}", code=1)
                worker.since = time.monotonic()
                if kind == "ready":
                    worker.ready = True
                else:
                    yield from zip(worker.held.popleft(), value, strict=True)
    finally:
        source.close()
        for worker in workers:
            worker.end()


def worker_died(worker, workers, waiting, suspects):
    """Puts a dead worker's batches back in front of the queue; yields the item that has now taken down two."""
    worker.process.join(5)
    workers.remove(worker)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if (code or 0) < 0 else f"ended with exit code {code}"
    worker.pipe.close()
    if not worker.ready:
        raise Stop(f"A worker process {how} while it was starting; run again with --verbose to see why.", code=1)
    guilty = worker.held.popleft() if worker.held else []
    waiting.extendleft(item for batch in reversed(worker.held) for item in reversed(batch))
    for item in reversed(guilty):
        if len(guilty) == 1 and item.id in suspects:
            yield item, PageError(f"the worker process {how} twice while reading this page")
        else:
            suspects[item.id] = True
            waiting.appendleft(item)


def open_unit(item, bounds, dpi):
    """Decodes an Item: (Unit, SHA-256 of the encoded source bytes or None). Raises PageError."""
    if item.error:
        raise PageError(item.error)
    pages, sha256 = [], None
    for data, frame in item.parts:
        if item.pages == 1 and len(item.parts) == 1:
            data = source_bytes(data)
            sha256 = sha256_of(data)
        pages.append(open_page(data, frame, dpi=dpi, bounds=bounds))
    return Unit(item.id, pages, item.text), sha256


def opened_items(bounds_dpi, items):
    """`work` of the decoding workers: (Unit, sha256) or the PageError of each item."""
    results = []
    for item in items:
        try:
            results.append(open_unit(item, *bounds_dpi))
        except Exception as problem:
            results.append(problem if isinstance(problem, PageError) else PageError(sentence(problem)))
    return results


class Ahead:
    """An iterator read in a thread, `size` values ahead of the loop that takes them with `get`."""

    def __init__(self, values, size):
        self.queue, self.ended = queue.Queue(size), threading.Event()
        self.thread = threading.Thread(target=self.fill, args=(values,), daemon=True)
        self.thread.start()

    def fill(self, values):
        last = StopIteration()
        try:
            for value in values:
                if not self.put(value):
                    break
        except BaseException as problem:
            last = problem
        finally:
            getattr(values, "close", int)()
            self.put(last)

    def put(self, value):
        while not self.ended.is_set():
            try:
                self.queue.put(value, timeout=0.2)
                return True
            except queue.Full:
                pass
        return False

    def get(self, block=True):
        """The next value, or None where none is ready and `block` is false. Raises StopIteration at the end."""
        try:
            value = self.queue.get(block)
        except queue.Empty:
            return None
        if isinstance(value, BaseException):
            self.queue.put(value)
            raise value
        return value

    def close(self):
        self.ended.set()
        self.thread.join(10)


def decoded(items, options, recipe, stop):
    """Yields (item, outcome) in completion order: (Unit, sha256), or the exception that decoding ended with.

    Decoding runs in worker processes, so that a decoder that crashes cannot take an engine with it and the engine's
    process keeps its interpreter to itself.
    """
    setup = functools.partial(fixed, (image_bounds(options, recipe), options.dpi))
    return in_workers(items, setup, opened_items, worker_count(recipe), stop)


def fixed(value):
    """`setup` of a worker whose state is known beforehand; a partial of it can be pickled, a lambda cannot."""
    return value


def worker_count(recipe):
    """Cores this process may use, fewer where memory would not hold `worker_memory` bytes for each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 33
    return max(1, min(cores, int(memory * 0.7 / recipe.get("worker_memory", 1 << 30))))


# <<< kit/workers.py

# >>> kit/run.py
# The run: items to rows through an engine that may die, counted, shown and stopped in good order.


FIRST_ANSWERS = 32  # if these all fail, something is wrong with the setup and not with the pages
SUSPECTS_AT_ONCE = 16
LAST_CALL = 8  # seconds from SIGTERM to a hard exit: Jobs send SIGKILL after ten


class EngineDied(Exception):
    """The engine's process or server is gone; the units in flight are suspects."""


class Feed:
    """Decoded units for an engine. Those that were in flight when it died come last, few at a time, then alone.

    `get(block)` gives the next (item, outcome), None if none is ready, and raises StopIteration at the end; an engine
    blocks only with nothing in flight. The outcome is (Unit, sha256) or the exception that decoding ended with.
    `limit` is the most units the engine may have in flight now (None: its own window). A unit that dies alone, or for
    the third time over all runs, is an error.
    """

    def __init__(self, items, decode, deaths, size):
        self.decode, self.deaths, self.size = decode, dict(deaths), size
        self.suspects, self.given_up, self.flying, self.limit = [], [], {}, None
        self.ahead = Ahead(decode(self.unsuspected(items)), size)

    def unsuspected(self, items):
        for item in items:
            if item.id in self.deaths:
                (self.suspects if self.deaths[item.id] < 3 else self.given_up).append(item)
            else:
                yield item

    def get(self, block=True):
        while True:
            if self.given_up:
                item = self.given_up.pop()
                return item, PageError("the engine died each time while this page was being read")
            try:
                pair = self.ahead.get(block)
            except StopIteration:
                if not (self.suspects or self.given_up):
                    raise
                if self.flying:  # the next group is smaller and must not share the engine with this one
                    return None
                level = min((self.deaths[item.id] for item in self.suspects), default=0)
                group = [item for item in self.suspects if self.deaths[item.id] == level]
                self.suspects = [item for item in self.suspects if self.deaths[item.id] != level]
                self.limit = SUSPECTS_AT_ONCE if level == 1 else 1
                self.ahead = Ahead(self.decode(group), self.size)
                continue
            if pair is not None:
                self.flying[pair[0].id] = pair[0]
            return pair

    def landed(self, row):
        self.flying.pop(row["id"], None)

    def crashed(self):
        """Turns the units in flight into suspects; returns their ids."""
        for item in self.flying.values():
            self.deaths[item.id] = self.deaths.get(item.id, 0) + 1
            alone = len(self.flying) == 1
            (self.given_up if alone or self.deaths[item.id] > 2 else self.suspects).append(item)
        ids = list(self.flying)
        self.flying.clear()
        return ids


def engine_rows(engine, items, steps, options, recipe, stop, results):
    """Yields the rows of a served model. A dead engine is rebuilt up to 3 times, once more per 1,000 finished units.

    Raises Stop(1) when it keeps dying; what is finished stays finished.
    """
    feed = Feed(items, lambda group: decoded(group, options, recipe, stop), results.deaths, size=32)

    def talk(item, outcome):
        if isinstance(outcome, BaseException):
            return only(failed_row(item, outcome))
        return converse(item, *outcome, options, recipe, steps)

    finished = rebuilds = 0
    try:
        while True:
            try:
                for row in engine(feed, talk, options, recipe, stop):
                    feed.landed(row)
                    finished += 1
                    yield row
                return
            except Stop as problem:
                problem.code = 1 if rebuilds else problem.code  # it ran before: pages are finished, and more can be
                raise
            except EngineDied as death:
                ids = feed.crashed()
                results.record_death(ids)
                rebuilds += 1
                if rebuilds > 3 + finished // 1000:
                    raise Stop(
                        f"The engine died {rebuilds} times ({death}). Finished pages are safe; "
                        "the same command resumes.",
                        code=1,
                    ) from death
                say(f"The engine died with {len(ids)} units in flight ({death}); starting it again.")
    finally:
        feed.ahead.close()


def only(row):
    """A conversation that is over before it began."""
    return row
    yield


class Tally:
    """Counts of this run. `ready` is when the first answer came: everything before it is start-up."""

    def __init__(self, total, skipped, by_page=True):
        self.total, self.skipped, self.started, self.ready = total, skipped, time.monotonic(), None
        self.by_page = by_page
        self.pages = self.errors = self.asked = self.useless = self.prompt_tokens = self.completion_tokens = 0
        self.retried = 0
        self.flags, self.shown = Counter(), 0.0

    def add(self, row):
        self.ready = self.ready or time.monotonic() - (row["seconds"] or 0)
        self.pages += 1
        if self.total and self.by_page and row["page"] == 1:  # the source counts rows and files
            self.total += row["pages"] - 1
        self.errors += row["error"] is not None
        self.asked += row["attempts"] > 0
        self.retried += row["attempts"] > 1
        self.useless += row["attempts"] > 0 and (row["error"] is not None or "degenerate" in row["flags"])
        self.flags.update(row["flags"])
        self.prompt_tokens += row["prompt_tokens"]
        self.completion_tokens += row["completion_tokens"]

    @property
    def seconds(self):
        return time.monotonic() - self.ready if self.ready else 0.0

    def line(self):
        """One line for the human: pages done, pages/s, tokens/s, errors, flags, time left."""
        rate = self.pages / self.seconds if self.seconds else 0.0
        done = f"{self.pages + self.skipped:,}" + (f" of {self.total:,}" if self.total else "") + " pages"
        parts = [done, f"{rate:.2f} pages/s"]
        if self.completion_tokens and self.seconds:
            parts.append(f"{self.completion_tokens / self.seconds:,.0f} tokens/s")
        parts += [f"{self.errors} errors"] + [f"{count} {flag}" for flag, count in self.flags.most_common()]
        if rate and self.total and self.total > self.pages + self.skipped:
            left = (self.total - self.pages - self.skipped) / rate
            parts.append(f"{int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d} left")
        return ", ".join(parts)

    def show(self, last=False):
        """The line in place on a terminal, every 30 s in a log."""
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if last or now - self.shown > (0.5 if terminal else 30):
            self.shown = now
            width = shutil.get_terminal_size().columns - 1
            text = f"\r{self.line()[:width]:<{width}}" + ("\n" if last else "") if terminal else self.line() + "\n"
            sys.stderr.write(text)
            sys.stderr.flush()


def read_all(rows, results, tally, stop):
    """Puts every row into the results. Raises Stop(1) if the first answers are all useless; closes the results."""
    try:
        for row in rows:
            results.put(row)
            tally.add(row)
            tally.show()
            if tally.asked == tally.useless == FIRST_ANSWERS and not stop.is_set():
                raise Stop(
                    f"The first {FIRST_ANSWERS} answers are all errors or degenerate text, so something is wrong with "
                    f"the setup, not the pages. The last one: {row['error'] or row['text'][:80]!r}. "
                    "Run one page with --max-samples 1 --verbose; --retry-errors asks the failed pages again.",
                    code=1,
                )
    finally:
        rows.close()
        results.close()
        tally.show(last=True)


def stop_on_signals(results):
    """The event that SIGTERM, SIGINT and a closed terminal set (SIGHUP, unless nohup had it ignored).

    If the run is not over in time, finished pages are saved and it ends.
    """
    stop = threading.Event()

    def last_call():
        say("Still busy; saving what is finished and leaving. The same command resumes.")
        try:
            results.close()
        finally:
            os._exit(1)

    def handler(number, frame):
        if not stop.is_set():
            stop.set()
            say("Stopping: finished pages are being saved. The same command resumes.")
            timer = threading.Timer(LAST_CALL, last_call)
            timer.daemon = True
            timer.start()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    hangup = getattr(signal, "SIGHUP", None)  # None on Windows
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        signal.signal(hangup, handler)
    return stop


def peak_memory():
    """Peak resident bytes of this process and of its largest child."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return [unit * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def report(tally, options, recipe, exit_code, **more):
    """The short table for the human and the JSON line for the machine, last on stdout."""
    own, child = peak_memory()
    startup = (tally.ready - tally.started) if tally.ready else time.monotonic() - tally.started
    summary = {
        "recipe": recipe["name"], "model": options.model, "task": options.task, "engine": options.engine,
        "input": options.input, "output": options.output,
        "pages": tally.pages, "skipped": tally.skipped, "errors": tally.errors, "flags": dict(tally.flags),
        "retried": tally.retried,
        "startup_seconds": round(startup, 1), "seconds": round(tally.seconds, 1),
        "pages_per_second": round(tally.pages / tally.seconds, 3) if tally.seconds else None,
        "prompt_tokens": tally.prompt_tokens, "completion_tokens": tally.completion_tokens,
        "peak_memory_mb": round(own / 1e6), "peak_worker_memory_mb": round(child / 1e6),
        **more, "exit_code": exit_code,
    }  # fmt: skip
    if options.price_per_hour and tally.pages:
        hours = (startup + tally.seconds) / 3600
        summary["cost_per_1000_pages"] = round(options.price_per_hour * hours / tally.pages * 1000, 4)
    for key in ("pages", "skipped", "errors", "flags", "pages_per_second", "startup_seconds", "peak_memory_mb"):
        say(f"  {key:<18} {summary[key]}")
    try:
        print(json.dumps(summary), flush=True)
    except OSError:  # nobody reads stdout any more; the run is done all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code


# <<< kit/run.py

# >>> kit/rows.py
# Rows of one split on the Hub: of parquet files just the row groups and columns needed, others streamed.


BATCH_ROWS = 16  # pages are about 1 MB each


class ParquetRows:
    """Rows of parquet files on the Hub, of which only the row groups and columns needed are fetched."""

    def __init__(self, builder, uris, split):
        from datasets import Features
        from huggingface_hub import HfFileSystem

        self.files, self.uris = HfFileSystem(), uris
        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(lambda uri: persist(lambda: self.footer(uri)), uris))
        self.group_rows = [rows for rows, _ in footers]
        self.features = builder.info.features or Features.from_arrow_schema(footers[0][1])
        self.total = sum(map(sum, self.group_rows))

    def footer(self, uri):
        import pyarrow.parquet as pq

        with self.open(uri) as file:
            footer = pq.read_metadata(file)
        return [
            footer.row_group(group).num_rows for group in range(footer.num_row_groups)
        ], footer.schema.to_arrow_schema()

    def open(self, uri):
        return self.files.open(uri, cache_type="none")  # pyarrow asks for just the ranges that it needs

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        for uri, counts in zip(self.uris, self.group_rows, strict=True):
            groups = []
            for group, count in enumerate(counts):
                if any(map(wanted, range(row, row + count))):
                    groups.append((group, row))
                row += count
            if not groups:
                continue
            with self.open(uri) as file:
                parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 23)  # else a row group is in memory
                for group, start in groups:
                    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        rows = [number for number in range(start, start + batch.num_rows) if wanted(number)]
                        table = pa.Table.from_batches([batch]).select(columns)
                        if rows:
                            yield rows, table if len(rows) == len(table) else table.take([r - start for r in rows])
                        start += batch.num_rows


class StreamedRows:
    """Rows of any other format that `datasets` streams, undecoded, so that skipping an image by path costs nothing."""

    def __init__(self, builder, uris, split):
        self.dataset = builder.as_streaming_dataset(split=split)
        self.features = self.dataset.features
        self.dataset = self.dataset.decode(False)
        self.total = builder.info.splits[split].num_examples if builder.info.splits else None

    def count(self):
        return sum(1 for _ in self.dataset)

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        from datasets import Dataset

        dataset = self.dataset.select_columns(columns)
        rows = ((row, cells) for row, cells in enumerate(islice(dataset, stop)) if wanted(row))
        while batch := list(islice(rows, BATCH_ROWS)):
            numbers, cells = zip(*batch, strict=True)
            yield list(numbers), Dataset.from_list(list(cells), features=dataset.features).data.table


# <<< kit/rows.py

# >>> kit/dataset.py
# Source: one split of a dataset on the Hub, at the revision that it has when the run starts.


class DatasetSource:
    """One split of a dataset on the Hub, at the revision that it has when the run starts."""

    def __init__(self, options, recipe, name):
        self.options, self.name, self.split = options, name, options.split
        self.per_unit = recipe.get("pages_per_unit", 1)
        self.is_text = bool(options.text_column) or recipe.get("input") == "text"
        self.sha, builder = find_dataset(options, name)
        splits = {str(split): [str(uri) for uri in uris] for split, uris in builder.config.data_files.items()}
        if self.split not in splits:
            raise Stop(f"{name} has no split {self.split!r}. Choose one with --split: {', '.join(splits)}.")
        is_parquet = all(uri.endswith(".parquet") for uri in splits[self.split])
        self.rows = (ParquetRows if is_parquet else StreamedRows)(builder, splits[self.split], self.split)
        self.features, self.columns = self.rows.features, list(self.rows.features)
        self.column = (options.text_column or "text") if self.is_text else options.image_column
        self.check_column()
        self.ids = self.read_ids() if options.id_column else None
        rows = self.rows.total = len(self.ids) if self.ids else self.rows.total
        if rows is None and options.max_samples and options.shuffle:
            say(f"Counting the rows of {name}, to draw {options.max_samples} of them.")
            rows = self.rows.total = self.rows.count()
        self.chosen = chosen_rows(options, rows)
        known = self.chosen if rows is None else range(rows)
        self.total = None if known is None else sum(map(self.is_selected, known))
        self.identity = {
            "kind": "hub", "uri": name, "revision": self.sha, "config": builder.config.name, "split": self.split,
            "column": self.column, "id_column": options.id_column,
        }  # fmt: skip
        count = "rows not counted" if rows is None else f"{self.total:,} of {rows:,} rows"
        self.describe = (
            f"dataset {name} at {self.sha[:7]}, config {builder.config.name}, split {self.split}, "
            f"column {self.column}, {count}"
        )

    def check_column(self):
        from pyarrow.types import is_struct

        flag = "--text-column" if self.is_text else "--image-column"
        images = [name for name, feature in self.features.items() if re.search(r"\b(Image|Pdf)\(", repr(feature))]
        hint = f"Choose one with {flag}" + (f" {images[0]}." if images and not self.is_text else ".")
        for column in filter(None, (self.column, self.options.id_column)):
            if column not in self.columns:
                raise Stop(f"{self.name} has no column {column!r}. It has {', '.join(self.columns)}. {hint}")
        kind = found = self.features.arrow_schema.field(self.column).type
        if not self.is_text and hasattr(kind, "value_type"):  # a list of pages
            kind = kind.value_type
        fields = {field.name for field in kind} if is_struct(kind) else set()
        fits = ("string", "large_string") if self.is_text else ("string", "large_string", "binary", "large_binary")
        if str(kind) not in fits and (self.is_text or not fields & {"bytes", "path"}):
            raise Stop(f"Column {self.column} of {self.name} holds {found}, not {flag[2:-7]}s. {hint}")

    def read_ids(self):
        """The ids of all rows, as one Arrow array. Raises Stop for nulls and duplicates."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.options.id_column
        tables = [table for _, table in steady(lambda row: self.rows.batches([column], lambda other: other >= row))]
        ids = pa.concat_tables(tables).column(column).cast(pa.string()).combine_chunks()
        if ids.null_count:
            raise Stop(f"--id-column {column}: {ids.null_count} of {len(ids)} rows have none. Every row needs an id.")
        counts = pc.value_counts(ids)
        if len(counts) < len(ids):
            twice = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
            raise Stop(f"--id-column {column}: {twice['values']!r} occurs {twice['counts']} times. Ids must be unique.")
        # The further pages of row x are x/page_002 and so on: no row may have such an id beside x.
        like_pages = ids.filter(pc.match_substring_regex(ids, r"./pages?_\d+(-\d+)?$"))
        rows = pc.replace_substring_regex(like_pages, r"/pages?_\d+(-\d+)?$", "")
        if both := like_pages.filter(pc.is_in(rows, ids)).slice(0, 1).to_pylist():
            raise Stop(f"--id-column {column}: {both[0]!r} could also be a page of another row. Choose another column.")
        return ids

    def id_of(self, row):
        return f"{self.split}-{row:09d}" if self.ids is None else self.ids[row].as_py()

    def is_selected(self, row):
        return (self.chosen is None or row in self.chosen) and in_shard(row // (self.per_unit or 1), self.options)

    def is_done(self, row, done):
        if is_finished(self.id_of(row), done, self.per_unit):
            return True
        n = self.per_unit or 1
        start, total = row // n * n, self.rows.total or row + n
        return n > 1 and f"{self.split}/pages_{start + 1:04d}-{min(start + n, total):04d}" in done

    def place(self, item):
        """The document of a page: the row where it has several pages, else the split."""
        if self.per_unit and item.pages == 1 and not item.error:
            return self.split, self.split, item.row + 1
        id = self.id_of(item.row)
        return id, safe_name(id), item.page

    def items(self, done):
        pages = self.pages(done)
        if self.per_unit != 1 and not self.is_text:
            pages = windows(pages, self.per_unit, self.place)
        return (item for item in pages if item.id not in done)

    def pages(self, done):
        def is_left(row):
            return self.is_selected(row) and not self.is_done(row, done)

        batches = steady(
            lambda start: self.rows.batches([self.column], lambda row: row >= start and is_left(row), self.stop)
        )
        for rows, table in batches:
            for row, cell in zip(rows, table.column(0).to_pylist(), strict=True):
                id = self.id_of(row)
                item = Item(id=id, row=row, name=safe_name(id))
                try:
                    if cell is None or cell == []:
                        raise PageError("the cell is empty (None)")
                    if self.is_text:
                        yield replace(item, text=cell)
                    else:
                        yield from pages_of(item, self.data_of(cell), is_file=False)
                except PageError as error:
                    yield replace(item, error=str(error))

    @property
    def stop(self):
        """The row behind the last one of this run, where it is known."""
        return None if self.chosen is None else max(self.chosen) + 1

    def data_of(self, cell):
        """What an image cell holds: bytes, an hf:// URI, or a list of these with None for empty ones. Raises PageError.

        A path or address is only followed to the Hub: what a stranger's dataset names must not be read from this
        machine and published.
        """
        if isinstance(cell, list):
            return [None if is_empty(entry) else self.data_of(entry) for entry in cell]
        if is_empty(cell):
            raise PageError("the cell is empty (None)")
        if isinstance(cell, dict):
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
        if isinstance(cell, bytes) or cell.startswith("hf://"):
            return cell
        if re.fullmatch("zip://.*::hf://.*", cell):
            return copy_of(cell)
        from huggingface_hub.constants import ENDPOINT

        if web := re.fullmatch(
            rf"{re.escape(ENDPOINT)}/(datasets/[^/]+/[^/]+)/(?:resolve|blob|raw)/([^/]+)/([^?]+).*", cell
        ):
            return f"hf://{web[1]}@{web[2]}/{unquote(web[3])}"
        if "://" in cell or cell.startswith("/"):
            raise PageError(f"the cell names {cell}, which is not on the Hub")
        return f"hf://datasets/{self.name}@{self.sha}/{cell}"

    def tables(self, columns=None):
        """Yields (first row, table) of the rows of `--max-samples`, in source order, images as encoded bytes."""
        from datasets import Features
        from datasets.table import table_cast

        columns = columns or self.columns
        features = Features({name: self.features[name] for name in columns})

        def wanted(row):
            return self.chosen is None or row in self.chosen

        batches = steady(lambda start: self.rows.batches(columns, lambda row: row >= start and wanted(row), self.stop))
        for rows, table in batches:
            table = table_cast(self.embedded(table), features.arrow_schema)
            for _, run in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
                [(offset, row), *rest] = run
                yield row, table.slice(offset, 1 + len(rest))

    def embedded(self, table):
        """The table with the bytes of images that its cells only name, and null for those that cannot be read."""
        import pyarrow as pa

        for place, name in enumerate(table.column_names):
            if repr(self.features[name]).startswith(("Image(", "Pdf(")) and pa.types.is_struct(table.field(name).type):
                cells = [self.with_bytes(cell) for cell in table.column(name).to_pylist()]
                table = table.set_column(place, name, pa.array(cells, self.features.arrow_schema.field(name).type))
        return table

    def with_bytes(self, cell):
        if not cell or cell["bytes"] is not None or not cell["path"]:
            return cell
        try:
            data = self.data_of(cell)
            with open(data if isinstance(data, Spool) else copy_of(data), "rb") as file:
                return {"bytes": file.read(), "path": os.path.basename(cell["path"])}
        except PageError:
            return None


def is_empty(cell):
    """Whether an image cell holds nothing; zero bytes are something, that cannot be decoded."""
    return cell in (None, "", []) or (isinstance(cell, dict) and cell.get("bytes") is None and not cell.get("path"))


def find_dataset(options, name):
    """(commit SHA, dataset builder at that commit) of a dataset on the Hub. Raises Stop."""
    from datasets import get_dataset_config_names, load_dataset_builder
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        sha = persist(lambda: HfApi().dataset_info(name, revision=options.input_revision), FIRST_PATIENCE).sha
    except RevisionNotFoundError as error:
        raise Stop(f"{name} has no revision {options.input_revision!r}. Leave out --input-revision.") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise Stop(
            f"No dataset {name} on the Hub, or no access to it, and no such path here. Check the name; for a private "
            f"or gated one run `hf auth login` or set HF_TOKEN."
        ) from error
    except Exception as error:
        raise Stop(
            f"{name} is no path here, so it is taken for a dataset on the Hub, and the Hub cannot be asked: "
            f"{first_line(error)}. For a local folder type ./{name}."
        ) from error
    try:
        return sha, persist(lambda: load_dataset_builder(name, options.input_config, revision=sha))
    except Exception as error:
        if isinstance(error, ValueError):
            configs = ", ".join(get_dataset_config_names(name, revision=sha))
            raise Stop(f"{name}: choose one of its configs with --input-config: {configs}.") from error
        raise Stop(
            f"{name} cannot be loaded as a dataset: {first_line(error)}. Plain files in it are read with "
            f"hf://datasets/{name}/**."
        ) from error


def steady(open_at):
    """Yields the batches of `open_at(row)`, opened again behind the last row had where reading fails for a while."""
    batches, row = None, 0

    def step():
        nonlocal batches
        batches = batches or open_at(row)
        try:
            return next(batches, None)
        except Exception:
            batches = None
            raise

    while True:
        try:
            batch = persist(step)
        except Exception as error:
            raise Stop(f"The source cannot be read: {first_line(error)}. The same command resumes.", code=1) from error
        if batch is None:
            return
        row = batch[0][-1] + 1
        yield batch


# <<< kit/dataset.py

# >>> kit/files.py
# Source: images, PDFs or text files in a folder, a glob, a bucket, or a dataset's repository.


PAGE_SUFFIXES = MULTI_PAGE_SUFFIXES + tuple(
    ".png .jpg .jpeg .jpe .jfif .bmp .webp .jp2 .j2k .jpx .heic .heif .avif .pbm .pgm .ppm .pnm".split()
)
TEXT_SUFFIXES = (".txt", ".md")


class FileSource:
    """Images and PDFs, or text files: one file, a folder, a glob, a bucket, or files of a dataset repository."""

    def __init__(self, options, recipe, kind, uri):
        self.options, self.is_local, self.columns = options, kind == "local", []
        self.per_unit = recipe.get("pages_per_unit", 1)
        self.is_text = bool(options.text_column) or recipe.get("input") == "text"
        self.base, found, revision = local_files(uri) if self.is_local else hub_files(kind, uri, options)
        suffixes = TEXT_SUFFIXES if self.is_text else PAGE_SUFFIXES
        self.files = self.without_output(name for name in found if is_input(name, suffixes))
        self.files.sort(key=lambda name: (os.path.dirname(name).split("/"), name))
        if not self.files:
            raise Stop(f"{uri}: no files to read. Looked for {' '.join(suffixes)}, not in hidden folders or _run/.")
        self.starts = {}  # the first file of each folder, whose one-page files make one document
        for row, file in enumerate(self.files):
            self.starts.setdefault(os.path.dirname(file), row)
        self.chosen = chosen_rows(options, len(self.files))
        self.total = sum(1 for _ in self.selected())
        self.identity = {"kind": kind, "uri": os.path.abspath(uri) if self.is_local else uri, "revision": revision}
        kinds = {"local": "local files", "bucket": "bucket", "hub-files": "files of the dataset repository"}
        self.describe = f"{kinds[kind]} {uri}, {self.total:,} of {len(self.files):,} files"

    @property
    def features(self):
        from datasets import Features, Image, Value

        content = {"text": Value("string")} if self.is_text else {"image": Image()}
        return Features({"file_name": Value("string"), **content})

    def without_output(self, found):
        """The input files, less what lies in an output folder inside the input folder. Raises Stop for a clash."""
        kind, out = where(self.options.output)
        if kind == "hub":
            return list(found)
        out = os.path.abspath(out) if kind == "local" else out
        if out == self.base and self.is_text:
            raise Stop(f"{self.options.output} is the input folder, whose files would be overwritten. Name another.")
        files, taken = [], {}
        for file in found:
            if out.startswith(f"{self.base}/") and f"{self.base}/{file}".startswith(f"{out}/"):
                continue
            files.append(file)
            name = self.name_of(file)
            if name in taken:
                raise Stop(f"{taken[name]} and {file} would both become {name}.md. Add --keep-extension.")
            taken[name] = file
        documents = {self.name_of(file): file for file in files if file.lower().endswith(MULTI_PAGE_SUFFIXES)}
        for name, file in taken.items():
            parent, _, leaf = name.rpartition("/")
            if parent in documents and re.match(r"pages?_\d", leaf):
                raise Stop(f"{file} and a page of {documents[parent]} would both become {name}.md. Move one of them.")
        return files

    def name_of(self, file):
        return file if self.options.keep_extension else os.path.splitext(file)[0]

    def selected(self, all_shards=False):
        for row, file in enumerate(self.files):
            turn = row if self.per_unit == 1 else self.starts[os.path.dirname(file)]
            if (self.chosen is None or row in self.chosen) and (all_shards or in_shard(turn, self.options)):
                yield row, file

    def pages(self, row, file):
        """Yields the Items of one file, one per page."""
        item, path = Item(id=file, row=row, name=self.name_of(file)), f"{self.base}/{file}"
        if not self.is_text:
            yield from pages_of(item, path, is_file=True)
            return
        try:
            with open(path if self.is_local else copy_of(path), encoding="utf-8-sig") as text:
                yield replace(item, text=text.read())
        except (OSError, UnicodeDecodeError, PageError) as error:
            yield replace(item, error=f"cannot read {path} as UTF-8 text: {first_line(error)}")

    def place(self, item):
        """The document of a page: its file, or for windows of one-page files their folder."""
        file = self.files[item.row]
        if item.error or item.id != file or not self.per_unit:
            return file, self.name_of(file), item.page
        folder = os.path.dirname(file)
        return folder, folder, item.row - self.starts[folder] + 1

    def items(self, done):
        left = ((row, file) for row, file in self.selected() if not is_finished(file, done, self.per_unit))
        return (item for item in self.units(left) if item.id not in done)

    def units(self, files):
        pages = (item for row, file in files for item in self.pages(row, file))
        return pages if self.per_unit == 1 or self.is_text else windows(pages, self.per_unit, self.place)

    def tables(self, columns=None):
        """Yields (ids, table), a row per page or window: `file_name` is its id, `image` its first page (or `text`)."""
        from datasets import Dataset, Features

        features, units = self.features, self.units(self.selected(all_shards=True))
        while batch := list(islice(units, BATCH_ROWS)):
            rows = {"file_name": [unit.id for unit in batch]}
            if self.is_text:
                rows["text"] = [unit.text for unit in batch]
            elif columns is None or "image" in columns:
                rows["image"] = [self.image(unit) for unit in batch]
            table = Dataset.from_dict(rows, features=Features({name: features[name] for name in rows})).data.table
            yield rows["file_name"], table.select(columns or list(rows))

    def image(self, unit):
        """The encoded image of the first page: the file itself, or a JPEG where it has pages; None if unreadable."""
        if unit.error:
            return None
        data, frame = unit.parts[0]
        try:
            if unit.pages == 1 and not data.lower().endswith(".pdf"):
                with open(copy_of(data) if data.startswith("hf://") else data, "rb") as file:
                    return {"bytes": file.read(), "path": os.path.basename(self.files[unit.row])}
            jpeg = io.BytesIO()
            open_page(data, frame, dpi=self.options.dpi).image.save(jpeg, "JPEG", quality=95)
            return {"bytes": jpeg.getvalue(), "path": f"{safe_name(unit.name)}.jpg"}
        except (OSError, PageError):
            return None


def is_input(name, suffixes):
    parts = name.split("/")
    return name.lower().endswith(suffixes) and "_run" not in parts and not any(part.startswith(".") for part in parts)


def local_files(path):
    """(folder, names relative to it, None) of one file, all files below a folder, or those that fit a glob."""
    full = os.path.abspath(path)
    if os.path.isfile(full):
        return os.path.dirname(full), [os.path.basename(full)], None
    if os.path.isdir(full):
        base, found = full, files_below(full)
    elif glob.has_magic(path):
        base = os.path.dirname(re.split(r"[*?[]", full)[0])
        found = filter(os.path.isfile, glob.iglob(full, recursive=True))
    else:
        raise Stop(f"{path}: no such file or folder here. A dataset on the Hub is typed ns/name.")
    return base, [os.path.relpath(name, base).replace(os.sep, "/") for name in found], None


def files_below(top):
    """Every file below a folder, links that lead nowhere too, to become errors. Raises Stop where it cannot look.

    Not FIFOs and devices, which would never end, nor folders by way of links, which may lead back here.
    """

    def refuse(error):
        raise Stop(f"{error.filename} cannot be listed: {error.strerror}. Make it readable, or move it elsewhere.")

    for folder, below, names in os.walk(top, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        links = [path for name in below if os.path.islink(path := os.path.join(folder, name))]
        if links:
            say(f"Links to folders are not followed; name them as INPUT to read them: {', '.join(sorted(links))}")
        paths = (os.path.join(folder, name) for name in names)
        yield from (path for path in paths if os.path.isfile(path) or not os.path.exists(path))


def hub_files(kind, uri, options):
    """(folder, names relative to it, revision) of files in a bucket or a dataset repository, the revision pinned."""
    from huggingface_hub import HfFileSystem

    files, sha = HfFileSystem(skip_instance_cache=True), None
    try:
        if kind == "hub-files":
            spot = files.resolve_path(uri)
            sha = files._api.dataset_info(spot.repo_id, revision=options.input_revision or spot.revision).sha
            uri = f"hf://datasets/{spot.repo_id}@{sha}/{spot.path_in_repo}"
        if glob.has_magic(uri) and not files.exists(uri):
            base, found = os.path.dirname(re.split(r"[*?[]", uri)[0]), files.glob(uri, detail=True)
        elif files.isfile(uri):
            base, found = os.path.dirname(uri), {uri.removeprefix("hf://"): {"type": "file"}}
        else:
            base, found = uri, files.find(uri, detail=True)
    except OSError as error:
        raise Stop(f"{uri} cannot be listed: {first_line(error)}. Check the name, and `hf auth login`.") from error
    names = [f"hf://{name}"[len(base) + 1 :] for name, info in found.items() if info["type"] == "file"]
    return base, names, sha


# <<< kit/files.py

# >>> kit/source.py
# What INPUT means, and the stream of `Item`s it becomes: stable ids, what is done skipped before it is fetched.


def open_source(options, recipe):
    """The source that `options.input` names. Raises Stop where it is missing, empty, or has no such column.

    A source has `describe` (one line), `identity` (JSON-able, equal for the same source), `columns` (of the input),
    `features` and `tables(columns)` (what is published), `total` (rows or files that this run goes through, None
    where unknown) and `items(done)`, where `done` answers `id in done` and `done.pages(id)`.
    """
    kind, place = where(options.input)
    return DatasetSource(options, recipe, place) if kind == "hub" else FileSource(options, recipe, kind, place)


# <<< kit/source.py

# >>> kit/cli.py
# The command line of every recipe: options, what is checked before anything is paid, and the exit code.


PACKAGES = "vllm sglang torch transformers saturate onnxruntime rapidocr datasets huggingface_hub pillow pypdfium2"
UNSHOWN = ("own_options", "max_tokens_given", "engine_given")  # what settle notes down, and argparse's own


def option_parser(recipe, add_options=None):
    """The parser: INPUT OUTPUT, what to read, how to read it, where it goes; then the recipe's own options."""
    parser = argparse.ArgumentParser(
        prog=f"{recipe['name']}.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("input", metavar="INPUT", help="Hub dataset ns/name, hf:// URI, folder, glob, image or PDF")
    add("output", metavar="OUTPUT", help="Hub dataset ns/name, hf://buckets/ns/name/prefix, or folder")
    tasks = list(recipe.get("tasks") or {})
    add("--task", "--mode", "--prompt-mode", "--task-mode", choices=tasks or None, default=recipe.get("task"),
        help=f"what to do with a page (default {recipe.get('task')})")  # fmt: skip
    add("--image-column", default="image", help="column with the page images (default image)")
    add("--text-column", help="column with text to read instead of images")
    add("--id-column", help="column with unique ids (default: split and row number)")
    add("--output-column", default=recipe.get("output_column", "markdown"), help="text column (default %(default)s)")
    add("--blocks-column", default=recipe.get("blocks_column"), help="blocks column (default %(default)s)")
    add("--overwrite", action="store_true", help="replace output columns or an output config that exist already")
    add("--split", default="train", help="split of the input dataset (default train)")
    add("--input-config", help="config of the input dataset")
    add("--input-revision", help="revision of the input dataset (default: the newest, then kept)")
    add("--max-samples", "--limit", type=positive, metavar="N", help="read only N rows or files")
    add("--shuffle", action="store_true", help="draw the rows of --max-samples at random")
    add("--seed", type=int, default=42, help="seed of --shuffle (default 42)")
    add("--shard", type=shard_pair, metavar="I/N", help="read every Nth row from I, 0 <= I < N; publishes nothing")
    add("--dpi", "--pdf-dpi", type=positive, default=recipe.get("dpi", 200),
        help="resolution of PDF pages (default %(default)s)")  # fmt: skip
    add("--keep-extension", action="store_true", help="name files x.png.md, for inputs that differ by suffix only")

    engines = recipe.get("engines") or (["offline", "serve"] if recipe["engine"] == "vllm" else [recipe["engine"]])

    def served(*flags, help, **how):
        """An option that a recipe whose model only runs in worker processes takes, and lists if it has such a key."""
        unused = engines == ["local"] and flags[0].strip("-").replace("-", "_") not in recipe
        add(*flags, help=argparse.SUPPRESS if unused else help, **how)

    add("--engine", choices=engines, help=f"how the model runs ({', '.join(engines)}; default: the faster here)")
    served("--endpoint", metavar="URL", help="OpenAI-compatible server that runs already, e.g. http://host:8000/v1")
    add("--model", default=recipe["model"], help="model id or folder (default %(default)s)")
    add("--revision", default=recipe.get("revision"), help="revision of the model (default %(default)s)")
    served("--max-model-len", type=positive, default=recipe.get("max_model_len"), help="context (default %(default)s)")
    served("--max-tokens", type=positive, help=f"longest answer (default {recipe.get('max_tokens')})")
    share = (recipe.get("engine_args") or {}).get("gpu_memory_utilization")
    served("--gpu-memory-utilization", type=float, default=share, help="share of GPU memory (default %(default)s)")
    served("--window", "--batch-size", type=positive, help="pages in flight (default: from the engine and the memory)")
    served("--retries", type=int, default=1, help="times a looping or broken answer is asked again (default 1)")
    for key, value in (recipe.get("sampling") or {}).items():
        by_task = recipe.get("task_sampling", {}).items()
        default = ", ".join([str(value), *(f"{own[key]} for {task}" for task, own in by_task if key in own)])
        add("--" + key.replace("_", "-"), type=type(value), help=f"{key} (default {default})")

    add("--config", help="config of the output dataset")
    add("--create-pr", action="store_true", help="publish as a pull request")
    add("--private", action="store_true", help="create the output dataset private")
    add("--hf-token", action=Token, metavar="TOKEN", default=argparse.SUPPRESS,
        help="token of the Hub; HF_TOKEN in the environment shows it to fewer eyes")  # fmt: skip
    add("--columns", type=lambda text: [c for c in text.split(",") if c], help="input columns to keep, by commas")
    add("--checkpoint", metavar="DIR", help="where finished pages are kept until they are published")
    add("--keep-checkpoint", action=argparse.BooleanOptionalAction, default=recipe.get("keep_checkpoint", False),
        help="leave the checkpoint in its place after publishing")  # fmt: skip
    add("--retry-errors", action="store_true", help="ask again for pages that failed in an earlier run")
    add("--max-error-rate", type=float, default=0.05, help="exit 3 if more pages fail, and 3 do (default 0.05)")
    add("--price-per-hour", type=float, metavar="USD", help="price of the machine, for cost per 1,000 pages")
    add("--dry-run", action="store_true", help="print the settings and one request; no network")
    add("--check", action="store_true", help="check everything that can be checked before the run, then stop")
    add("--verbose", action="store_true", help="show what the libraries log")
    if add_options:
        shared = {action.dest for action in parser._actions}
        own = parser.add_argument_group(f"options of {recipe['name']}")
        add_options(own)
        names = [action.dest for action in own._group_actions]
        parser.set_defaults(own_options=[name for name in names if name not in shared])  # without further names
    return parser


class Token(argparse.Action):
    """Puts a token where the Hub's client looks for it, and takes it out of the command that messages quote."""

    def __call__(self, parser, options, token, flag=None):
        if token:
            os.environ["HF_TOKEN"] = token
            pairs = zip(sys.argv, [*sys.argv[1:], ""], strict=True)
            sys.argv = [word for word, after in pairs if token not in word and after != token]


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


def shard_pair(text):
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text}: write I/N with 0 <= I < N, e.g. 0/4 to 3/4")
    return int(index), int(count)


def settle(options, recipe, engines):
    """Fills in what depends on other options. Raises Stop(2) for options that contradict each other."""
    options.max_tokens_given = options.max_tokens is not None
    options.max_tokens = options.max_tokens or recipe.get("max_tokens")
    for key, value in ((recipe.get("sampling") or {}) | recipe.get("task_sampling", {}).get(options.task, {})).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    if options.endpoint:
        options.engine = "serve"
    options.engine_given = options.engine is not None
    options.engine = options.engine or next(iter(engines))
    if options.engine not in engines:
        raise Stop(f"--engine {options.engine}: {recipe['name']} runs with {', '.join(engines)}.")
    if options.max_model_len and options.max_tokens and options.max_tokens >= options.max_model_len:
        raise Stop(
            f"--max-tokens {options.max_tokens} leaves no room for the page within --max-model-len "
            f"{options.max_model_len}. Try --max-tokens {options.max_model_len // 2}."
        )
    if options.output_column == options.blocks_column:
        raise Stop(f"--output-column and --blocks-column are both {options.output_column!r}; name two columns.")
    if options.retries < 0 or not 0 <= options.max_error_rate <= 1 or not (options.price_per_hour or 0) >= 0:
        raise Stop("--retries and --price-per-hour start at 0, and --max-error-rate lies between 0 and 1.")
    kind, path = where(options.output)
    if kind == "local" and os.environ.get("JOB_ID") and not on_mount(path):
        raise Stop(
            f"OUTPUT {options.output} is a folder on the job's own disk, which is gone when the job ends. "
            "Name a Hub dataset (ns/name), a bucket (hf://buckets/ns/name/prefix), or a folder on a mount (-v)."
        )


def on_mount(path):
    """True if the path lies on a mounted volume rather than on the root file system."""
    path = Path(path).resolve()
    return any(map(os.path.ismount, [path, *path.parents][:-1]))


def versions():
    """Installed versions of the packages that a result depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in PACKAGES.split():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def run_facts(options, recipe, source):
    """What identifies a run (model, revision, task, the recipe's own options, source) and what else describes it."""
    return {
        "recipe": recipe["name"], "model": options.model, "revision": options.revision, "task": options.task,
        "options": {name: getattr(options, name) for name in getattr(options, "own_options", ())},
        "source": source.identity, "engine": options.engine, "versions": versions(),
        "sampling": {key: getattr(options, key) for key in recipe.get("sampling") or {}},
        "max_tokens": options.max_tokens, "max_model_len": options.max_model_len,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip


def show_settings(options, recipe, steps):
    """--dry-run: the settings, and for served models one request for a blank page, as JSON on stdout."""
    settings = {name: value for name, value in vars(options).items() if name not in UNSHOWN}
    print(json.dumps({"settings": settings}, indent=2, default=str))
    if steps:
        from PIL import Image

        page = Page(Image.new("RGB", (1240, 1754), "white"), 1240, 1754)
        unit = Unit("dry-run", [] if recipe.get("input") == "text" else [page], "Text of one cell.")
        bodies = [complete(body, options, recipe, unit) for body in next(steps(unit, options))]
        shown = {"request": bodies[0]}
        print(json.dumps(shown, indent=2, ensure_ascii=False, default=lambda image: f"image of {image.size}"))
    return 0


def main(recipe, engines, request=None, parse=None, steps=None, load=None, predict=None, add_options=None, check=None,
         preflight=None):  # fmt: skip
    """Runs a recipe; returns the exit code: 0 done, 1 stopped and resumable, 2 usage or preflight, 3 too many errors.

    `engines` maps engine names to functions, the default first. `preflight(options, recipe)` is the engines' check,
    `check(options)` the recipe's own; both raise Stop. `check` may return keys of RECIPE that these options change.
    """
    steps = steps or (one_step(request, parse) if request else None)
    results = None
    try:
        options = option_parser(recipe, add_options).parse_args()
        logging.basicConfig(level=logging.INFO if options.verbose else logging.ERROR, stream=sys.stderr)
        settle(options, recipe, engines)
        if options.dry_run:
            return show_settings(options, recipe, steps)
        if check:
            recipe = {**recipe, **(check(options) or {})}
        if preflight and options.engine != "local":
            preflight(options, recipe)
        source = open_source(options, recipe)
        say(f"Reading {source.describe}; writing {' '.join(where(options.output))}.")
        check_columns(options, recipe, source)
        check_output(options, recipe, source)
        run = run_facts(options, recipe, source)
        if options.check:
            say("Everything that can be checked beforehand is in order.")
            return 0
        results = open_results(options, recipe, source, run)
        stop = stop_on_signals(results)
        by_page = recipe.get("pages_per_unit", 1) == 1
        total = source.total and source.total + (results.done.extra_pages() if by_page else 0)
        tally = Tally(total, len(results.done), by_page)
        engine, items = engines[options.engine], source.items(results.done)
        if steps and options.engine != "local":
            rows = engine_rows(engine, items, steps, options, recipe, stop, results)
        else:
            rows = engine(items, options, recipe, stop, load, predict)
        read_all(rows, results, tally, stop)
        if stop.is_set():
            return report(tally, options, recipe, 1)
        earlier = results.done.failed()
        published = results.finish(source, run, card_counts(tally))
        say(published)
        errors = max(tally.errors + earlier, results.done.failed())  # the writer may have refused a page's name
        failed = errors > max(2, options.max_error_rate * (tally.pages + tally.skipped))
        return report(tally, options, recipe, 3 if failed else 0, earlier_errors=earlier, published=published)
    except Stop as problem:
        say(f"{'Error' if problem.code == 2 else 'Stopped'}: {problem}")
        return problem.code
    finally:
        if results:
            results.close()


def card_counts(tally):
    """The counts that go on the card."""
    return {"pages": tally.pages, "errors": tally.errors, "flags": dict(tally.flags), "seconds": round(tally.seconds)}


# <<< kit/cli.py

# >>> kit/processes.py
# Processes beside this one: in an environment of their own, and gone when this one is.


def server_environment(recipe):
    """The environment for the model's interpreter: without this one's packages where it is another interpreter."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV") if recipe.get("server_python") else ()
    return {key: value for key, value in os.environ.items() if key not in hidden}


def in_own_environment(python, packages, *command):
    """The words that run a command where only these packages are, for a version of Python; uv keeps what it fetched."""
    chosen = [word for package in packages for word in ("--with", package)]
    return ["uv", "run", "--isolated", "--no-project", "--python", python, *chosen, *command]


# vLLM's processes do not notice the death of the one that started them: they would wait, and hold the GPU, for ever.
REAPER = """
import os, signal, sys, time
parent, below = int(sys.argv[1]), set()
while os.getppid() == parent:
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parents[int(name)] = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    family = {parent}
    while more := {child for child in parents if parents[child] in family} - family:
        family |= more
    below = family - {parent, os.getpid()}
    time.sleep(1)
for child in below:
    try:
        os.kill(child, signal.SIGKILL)
    except OSError:
        pass
"""


def end_children_with_this_process():
    """Starts a watcher that kills this process's descendants once it is gone, however it went."""
    command = [sys.executable, "-c", REAPER, str(os.getpid())]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


# <<< kit/processes.py

# >>> kit/gpus.py
# The GPUs of this machine, and where to get one.


def gpus():
    """(free, total) bytes of each visible NVIDIA GPU; no CUDA context is made, so vLLM can still fork."""
    query = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        lines = subprocess.run(
            query + ([f"--id={visible}"] if visible else []), capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    numbers = [re.findall(r"\d+", line) for line in ([] if visible == "" else lines.splitlines())]
    return [(int(pair[0]) << 20, int(pair[1]) << 20) for pair in numbers if len(pair) == 2]


def needed_gpus(who, instead="On a CPU there are pp-ocrv6.py and tesseract-ocr.py."):
    """`gpus()`, for what does not run without one: raises Stop where there is none, unless OCR_ALLOW_CPU=1."""
    cards = gpus()
    if not cards and os.environ.get("OCR_ALLOW_CPU") != "1":
        raise Stop(
            f"{who} needs an NVIDIA GPU, and nvidia-smi shows none here. Use a managed one:\n{on_jobs()}\n"
            f"or set OCR_ALLOW_CPU=1 to try without. {instead}"
        )
    return cards


def this_command():
    return " ".join(map(shlex.quote, sys.argv))


def on_jobs():
    """How to run this command on a managed GPU, which sees no local files."""
    local = any(os.path.exists(word) for word in sys.argv[1:])
    hint = "\n  (with INPUT and OUTPUT on the Hub: a dataset ns/name, or hf://buckets/ns/name/folder)" if local else ""
    return f"  hf jobs uv run {this_command()}{hint}"


# <<< kit/gpus.py

# >>> kit/vllm.py
# What both vLLM engines share: engine arguments, sampling, the window, and the checks before anything is paid.


GIB = 1 << 30
# Host bytes that a prepared page holds while it is in flight: measured 44 MB at 1,540 px (1.7 MP), 268 MB at 11 MP.
BYTES_PER_PIXEL = 27
UNBOUNDED_PIXELS = 12_845_056  # a recipe without image bounds: the largest cap among the processors of its models


def set_environment(recipe):
    """Sets what vLLM reads when it is imported; values that are set already win. `recipe["environment"]` adds more."""
    defaults = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled with nvcc at start-up, which most images do not have
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the one JSON line
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "4",  # image preparation: more threads than that take turns, fewer are slower
        "TOKENIZERS_PARALLELISM": "false",
    }
    for key, value in (defaults | recipe.get("environment", {})).items():
        os.environ.setdefault(key, value)


def engine_args(options, recipe):
    """Keyword arguments of `vllm.LLM`, which are also the flags of `vllm serve` (see `cli_args`)."""
    args = {
        "model": options.model,
        "generation_config": "vllm",  # sampling is what the recipe says, not what the checkpoint suggests
        # Without a limit for videos vLLM sets memory aside for them.
        "limit_mm_per_prompt": {"image": recipe.get("pages_per_unit") or 1, "video": 0},
        "max_num_seqs": 256,
        # No two pages are alike, so both caches would only cost time and memory.
        "enable_prefix_caching": False,
        "mm_processor_cache_gb": 0,
        **recipe.get("engine_args", {}),
    }
    chosen = ("revision", "max_model_len", "gpu_memory_utilization")
    return args | {key: getattr(options, key) for key in chosen if getattr(options, key) is not None}


def cli_args(args):
    """Arguments of `vllm serve` for the keyword arguments of `vllm.LLM`: the model, then one flag per keyword."""
    words = [args["model"]]
    for key, value in args.items():
        flag = "--" + key.replace("_", "-")
        if key == "model" or value is None:
            continue
        if value is False:
            words.append("--no-" + flag[2:])
        elif value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def chat_arguments(recipe):
    """How messages become a prompt: `chat_template_content_format`, and `chat_template_kwargs` if there are any."""
    chat = recipe.get("chat", {})
    arguments = {"chat_template_content_format": chat.get("content_format", "auto")}
    return arguments | ({"chat_template_kwargs": chat["template_kwargs"]} if chat.get("template_kwargs") else {})


def messages_with(messages, picture):
    """The messages with each image part replaced by `picture(image)`."""
    return [
        {**message, "content": [picture(part["image"]) if part["type"] == "image" else part for part in content]}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def sampling_params(body):
    """`vllm.SamplingParams` of an OpenAI chat body, with the server's meaning of every key.

    Raises TypeError or ValueError for a key or value that vLLM does not know.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    values = {key: value for key, value in body.items() if key not in ("messages", *PROMPT_KEYS)}
    top = values.pop("top_logprobs", 0)
    values["logprobs"] = top if values.pop("logprobs", False) else None
    values["extra_args"] = values.pop("vllm_xargs", None)
    if values.get("structured_outputs"):
        values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
    if values.get("repetition_detection"):
        from vllm.sampling_params import RepetitionDetectionParams  # not in the oldest versions

        values["repetition_detection"] = RepetitionDetectionParams(**values["repetition_detection"])
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **values)


PROMPT_KEYS = ("chat_template_kwargs", "mm_processor_kwargs", "add_generation_prompt", "continue_final_message")


def window_size(options, recipe, engines=1):
    """Most units in flight: twice what the engines compute at once, or what a quarter of the host's memory holds."""
    bounds = image_bounds(options, recipe)
    side = bounds.get("max_side")
    pixels = bounds.get("max_pixels") or (side * side if side else UNBOUNDED_PIXELS)
    args = engine_args(options, recipe)
    unit = BYTES_PER_PIXEL * pixels * args["limit_mm_per_prompt"].get("image", 0)
    return options.window or max(1, min(2 * args["max_num_seqs"] * engines, host_memory() // 4 // max(unit, 1)))


def host_memory():
    """Bytes of memory that this process may use: the container's limit where there is one."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(memory, int(text)) if text.isdecimal() else memory


def preflight_vllm(options, recipe):
    """Checks, before anything is downloaded, that this machine can run this model as asked. Raises Stop."""
    if options.endpoint or recipe.get("server_command"):
        return
    set_environment(recipe)
    args = engine_args(options, recipe)
    cards = needed_gpus(recipe["name"])  # first: where there is none, no vLLM need be fetched
    package = check_version(recipe)
    config = model_config(options)
    check_code(args, config, package)
    check_lengths(options, recipe, config)
    weights, missing = weight_bytes(options)
    check_room(args, cards, weights, missing)
    if options.engine == "offline" and not options.engine_given and (engines := engine_count(options, recipe)) > 1:
        options.engine = "serve"
        say(f"{len(cards)} GPUs: engine serve keeps {engines} copies of the model busy; --engine offline is for one.")


def check_version(recipe):
    """The folder of the vLLM package that will run. Raises Stop if there is none or the recipe does not fit it."""
    from packaging.version import Version

    window, python = recipe.get("vllm", {}), recipe.get("server_python", sys.executable)
    tested = window.get("tested") or window.get("min")
    own = f"uv run --with vllm=={tested} {this_command()}"
    if recipe.get("server_python"):  # this vLLM and this script's packages do not go into one environment
        own = (
            f"docker run --gpus all -p 8000:8000 --entrypoint vllm vllm/vllm-openai:v{tested} "
            f"serve {recipe['model']} --max-model-len {recipe.get('max_model_len')} --generation-config vllm\n"
            f"  uv run {this_command()} --endpoint http://localhost:8000/v1"
        )
    remedy = (
        f"On your own GPU:\n  {own}\n"
        f"On a managed one, in the image that the script names:\n{on_jobs()}\n"
        "Without a GPU there are pp-ocrv6.py and tesseract-ocr.py."
    )
    probe = (
        "import importlib.metadata, importlib.util;"
        "print(importlib.metadata.version('vllm'), importlib.util.find_spec('vllm').submodule_search_locations[0])"
    )
    try:
        output = subprocess.run(
            [python, "-c", probe], env=server_environment(recipe), capture_output=True, text=True, timeout=120
        ).stdout
    except OSError:
        raise Stop(f"This model runs on vLLM {tested} under {python}, which is not there. {remedy}") from None
    version, _, package = output.strip().partition(" ")
    if not version:
        raise Stop(f"vLLM is not installed for {python}. {remedy}")
    found, excluded = Version(version), window.get("exclude", {})
    wrong = found.public in excluded or found < Version(window.get("min", "0"))
    if wrong or (window.get("below") and found >= Version(window["below"])):
        bounds = " and ".join(f"{word} {window[word]}" for word in ("min", "below") if window.get(word))
        reason = excluded.get(found.public, "") or window.get("reason", "")
        raise Stop(
            f"vLLM {version} is installed; {recipe['name']} runs on {bounds or 'others'}"
            + (f" except {', '.join(excluded)}" if excluded else "")
            + (f" ({reason})" if reason else "")
            + f". {remedy}"
        )
    return Path(package)


def engine_count(options, recipe):
    """How many copies of the model the GPUs here hold, one for each `tensor_parallel_size` of them; at least 1."""
    return max(1, len(gpus()) // (engine_args(options, recipe).get("tensor_parallel_size") or 1))


def model_config(options):
    """The model's config.json, from its folder or the Hub."""
    from huggingface_hub import hf_hub_download

    try:
        if os.path.isdir(options.model):
            path = os.path.join(options.model, "config.json")
        else:
            path = hf_hub_download(options.model, "config.json", revision=options.revision)
        return json.loads(Path(path).read_text())
    except Exception as problem:
        where = options.model + (f" at revision {options.revision}" if options.revision else "")
        raise Stop(
            f"The config.json of {where} cannot be read: {str(problem).strip().splitlines()[0]} "
            "Check --model and --revision; for a gated model accept its terms on the Hub and run `hf auth login`."
        ) from problem


def check_code(args, config, package):
    """Raises Stop if the installed vLLM does not know the model's class, or lacks a logits processor."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    wanted = args.get("hf_overrides", {}).get("architectures") or config.get("architectures") or []
    known = (package / "model_executor" / "models" / "registry.py").read_text()
    if wanted and not any(f'"{name}"' in known for name in wanted) and args.get("model_impl") != "transformers":
        if not entry_points(group="vllm.general_plugins"):
            raise Stop(
                f"The installed vLLM has no model class {' or '.join(wanted)}, which {args['model']} asks for. "
                "Check --model, or use the vLLM version that the recipe was tested with."
            )
    for name in args.get("logits_processors", []):
        module, _, attribute = name.partition(":")
        top, *rest = module.split(".")
        # A package of the script's own lies beside the script's other packages, not beside the image's vLLM.
        own = top != "vllm" and find_spec(top)
        folders = [package if top == "vllm" else package.parent / top]
        folders += map(Path, (own and own.submodule_search_locations) or ())
        paths = [p for f in folders for p in (f.joinpath(*rest, "__init__.py"), f.joinpath(*rest).with_suffix(".py"))]
        if not any(attribute in path.read_text() for path in paths if path.exists()):
            raise Stop(f"The logits processor {name} is not installed beside vLLM in {package.parent}.")


def true_context(config):
    """Tokens that the model was built for, from its config.json; None where it does not say."""
    parts = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    text = next((part for part in parts if isinstance(part, dict)), config)
    keys = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
    length = next((text[key] for key in keys if text.get(key)), None)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor") or 1
    if length and kind == "yarn":  # the length is the scaled one already in most checkpoints, the original in some
        return max(length, int(factor * rope.get("original_max_position_embeddings", 0)))
    return length and int(length * (factor if kind in ("linear", "dynamic") else 1))


def check_lengths(options, recipe, config):
    """Raises Stop unless image, prompt and answer fit --max-model-len and that fits the model."""
    context = true_context(config) or recipe.get("context")
    length = options.max_model_len or context
    if context and length > context:
        raise Stop(
            f"--max-model-len {length} is more than the {context} tokens that {options.model} was built for. "
            f"Use --max-model-len {context} or less."
        )
    prompt = max((len(text.encode()) for text in (recipe.get("tasks") or {}).values()), default=0) // 3 + 64
    images = engine_args(options, recipe)["limit_mm_per_prompt"].get("image", 0)
    needed = prompt + (recipe.get("image_tokens") or 0) * images
    if length and options.max_tokens + needed > length:
        room = length - needed
        advice = f"--max-tokens {room}" if room >= 256 else f"--max-model-len {needed + options.max_tokens}"
        raise Stop(
            f"--max-tokens {options.max_tokens} and up to {needed} tokens of image and prompt do not fit "
            f"--max-model-len {length}: long pages would be cut off. Use {advice}."
        )


def weight_bytes(options):
    """(bytes of the model's weight files, bytes of those not on this disk yet); zeros where nobody says."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    if os.path.isdir(options.model):
        files = [(path.name, path.stat().st_size, True) for path in Path(options.model).iterdir()]
    else:
        try:
            info = HfApi().model_info(options.model, revision=options.revision, files_metadata=True)
        except Exception:  # no network: what is in the cache is all there is, and vLLM will say what it misses
            return 0, 0
        names = {file.rfilename: file.size or 0 for file in info.siblings}
        here = {n: isinstance(try_to_load_from_cache(options.model, n, revision=info.sha), str) for n in names}
        files = [(name, size, here[name]) for name, size in names.items()]
    for suffix in (".safetensors", ".bin", ".pt"):
        weights = [(size, here) for name, size, here in files if name.endswith(suffix)]
        if weights:
            return sum(size for size, _ in weights), sum(size for size, here in weights if not here)
    return 0, 0


def check_room(args, cards, weights, missing):
    """Raises Stop if the weights fit neither the disk nor the GPU; warns when the GPU is nearly full."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = next(path for path in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if path.exists())
    free = shutil.disk_usage(cache).free
    if missing and free < missing + GIB // 2:
        raise Stop(
            f"The weights need {missing / GIB:.1f} GiB and {cache} has {free / GIB:.1f} GiB left. "
            "Make room, or set HF_HOME to a folder on a larger disk."
        )
    if not cards:
        return
    free, total = min(cards)
    share = args.get("gpu_memory_utilization") or 0.9
    if share * total > free:
        raise Stop(
            f"The GPU has {free / GIB:.1f} of {total / GIB:.1f} GiB free and vLLM would take {share:.0%} of it. "
            f"End what else runs there, or use --gpu-memory-utilization {int(free / total * 100) / 100:.2f}."
        )
    budget = share * total * (args.get("tensor_parallel_size") or 1)
    if weights >= budget and not args.get("cpu_offload_gb"):
        raise Stop(
            f"{args['model']} has {weights / GIB:.1f} GiB of weights and the GPU gives {budget / GIB:.1f} GiB. "
            "Use a larger GPU (on Jobs: --flavor)."
        )
    if budget - weights < 3 * GIB:
        say(
            f"Little GPU memory: {weights / GIB:.1f} GiB of weights in {budget / GIB:.1f} GiB leaves few pages in "
            "flight. If the start fails, use a lower --max-model-len or a larger GPU."
        )


# <<< kit/vllm.py

# >>> kit/offline.py
# Engine `offline`: vLLM in this process, kept full: pages enter while others are answered, and it is never drained.


# Requests admitted between two steps: preparing a page takes longer than a step, and while this process prepares
# pages it takes no answers.
BURST = 2


def offline(units, talk, options, recipe, stop):
    """Yields result rows in completion order; `units` is a `Feed`, `talk(item, outcome)` starts a `converse`.

    The requests of a unit already begun go before new units. Once `stop` is set, what is in flight is abandoned.
    Raises Stop if vLLM does not start, EngineDied if it ends while units are in flight.
    """
    llm = load_engine(options, recipe)
    from vllm.v1.engine.exceptions import EngineDeadError  # not before load_engine: vllm reads the environment

    chat, window = chat_arguments(recipe), window_size(options, recipe)
    waiting, flying, more = deque(), {}, True  # (exchange, place, body); request number -> (exchange, place)
    try:
        while not stop.is_set() and (more or waiting or flying):
            answered = []
            for _ in range(BURST):
                if len(flying) >= min(window, units.limit or window):
                    break
                if more and not waiting:
                    try:
                        unit = units.get(block=not flying)
                    except StopIteration:
                        more = False
                        break
                    if unit is None:
                        break
                    exchange = Exchange(talk(*unit), waiting)
                    if exchange.row:
                        yield exchange.row
                if waiting:
                    exchange, place, body = waiting.popleft()
                    try:
                        flying[enqueue(llm, body, chat)] = exchange, place
                    except EngineDeadError:
                        raise
                    except Exception as problem:  # this request's own: the prompt is too long, the image too narrow
                        answered.append((exchange, place, problem))
            if flying:  # a step with nothing in flight would wait for ever
                for output in llm.llm_engine.step():
                    if output.finished:
                        answered.append((*flying.pop(request_number(output.request_id)), answer_of(output)))
            for exchange, place, answer in answered:
                exchange.take(place, answer)
                if exchange.row:
                    yield exchange.row
    except EngineDeadError as problem:
        if not stop.is_set():  # a Ctrl-C ends the engine's process too
            raise EngineDied("vLLM's engine process ended; what it logged stands above") from problem
    finally:
        llm.llm_engine.engine_core.shutdown()


class Exchange:
    """A unit's conversation: hands over its answers once all are there, and puts what it asks next on `waiting`.

    `row` is the result row once the conversation is over.
    """

    def __init__(self, conversation, waiting):
        self.conversation, self.waiting, self.answers, self.row = conversation, waiting, None, None
        self.turn()

    def take(self, place, answer):
        self.answers[place] = answer
        self.missing -= 1
        if not self.missing:
            self.turn()

    def turn(self):
        try:
            bodies = self.conversation.send(self.answers)
            while not bodies:
                bodies = self.conversation.send([])
        except StopIteration as end:
            self.row = end.value
        else:
            self.answers, self.missing = [None] * len(bodies), len(bodies)
            self.waiting.extend((self, place, body) for place, body in enumerate(bodies))


def load_engine(options, recipe):
    """A `vllm.LLM` whose processes end with this one, even if it is killed. Raises Stop if it does not start."""
    set_environment(recipe)
    end_children_with_this_process()
    try:
        from vllm import LLM

        llm = LLM(**engine_args(options, recipe))
    except Exception as problem:
        raise Stop(f"vLLM did not start: {problem} What the engine logged stands above.") from problem
    threading.Thread(target=tell_of_death, args=(llm.llm_engine.engine_core,), daemon=True).start()
    return llm


def tell_of_death(core):
    """Makes `step` raise when the engine's process is killed: vLLM 0.32 waits for ever unless it ends by itself."""
    from vllm.v1.engine.exceptions import EngineDeadError

    wait([child.sentinel for child in multiprocessing.active_children() if "EngineCore" in child.name])
    core.outputs_queue.put(EngineDeadError())


def enqueue(llm, body, chat):
    """Starts one request; returns its number. Raises what vLLM raises for this request."""
    arguments = {key: body[key] for key in PROMPT_KEYS if key in body}
    messages = messages_with(body["messages"], lambda image: {"type": "image_pil", "image_pil": image})
    (request,) = llm.enqueue_chat([messages], sampling_params(body), use_tqdm=False, **(chat | arguments))
    return request_number(request)


def request_number(request):
    """vLLM 0.32 names a request "7-a1b2c3d4" when it enters and "7" when it comes out."""
    return request.partition("-")[0]


def answer_of(output):
    """The Answer in a finished `vllm.RequestOutput`, or the PageError for one that the engine gave up."""
    said = output.outputs[0]
    if said.finish_reason not in ("stop", "length", "repetition"):
        return PageError(f"vLLM ended the request with {said.finish_reason!r}")
    logprobs = said.logprobs and [at[token].logprob for at, token in zip(said.logprobs, said.token_ids, strict=False)]
    prompt_tokens = len(output.prompt_token_ids or ())
    return Answer(said.text, said.finish_reason, prompt_tokens, len(said.token_ids), logprobs=logprobs)


# <<< kit/offline.py

# >>> kit/schema.py
# Extraction by a schema: read and checked before anything starts, and every answer held against it.


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


# <<< kit/schema.py

# >>> kit/serve.py
# Engine `serve`: an OpenAI-compatible server, started here or named by --endpoint, kept full over HTTP.


BOOT_SECONDS = 1800  # a download of the weights, and compilation
REQUEST_SECONDS = 1800  # an answer of 16,000 tokens at full load, and its time in the server's queue
PULSE_SECONDS, PULSE_PATIENCE = 5, 20  # between two looks at the server's health, and for its answer
BODIES = {"png": ("PNG", {"compress_level": 1}), "jpeg": ("JPEG", {"quality": 95})}


class Server(NamedTuple):
    """A server that answers: base URL up to /v1, its name for the model, and if it is ours its process and log."""

    url: str
    model: str
    process: object = None
    log: str | None = None

    def gone(self, what):
        """The exception for a server that is lost in the middle of a run."""
        if self.process is None:
            return Stop(f"{self.url} {what}. See to the server; then the same command resumes.", code=1)
        return EngineDied(f"the server {what}. Its log ends:\n{log_tail(self.log)}")


def serve(units, talk, options, recipe, stop):
    """Yields result rows in completion order; `units` is a `Feed`, `talk(item, outcome)` starts a `converse`.

    Once `stop` is set, what is in flight is abandoned. Raises Stop if the server does not start or is not what the
    run needs; when it is lost, EngineDied, or Stop(1) if it is an `--endpoint`.
    """
    with running_server(options, recipe, stop) as server:
        if server is None:
            return
        loop = asyncio.new_event_loop()
        rows = served_rows(server, units, talk, options, recipe, stop)
        try:
            while not stop.is_set():
                yield loop.run_until_complete(anext(rows))
        except StopAsyncIteration:
            return
        except EngineDied:
            if not stop.is_set():
                raise
        finally:
            loop.run_until_complete(rows.aclose())
            loop.close()


async def served_rows(server, units, talk, options, recipe, stop):
    """Yields the rows, with at most a window of units in flight. Raises what `Server.gone` gives.

    The window is fixed: saturate's Auto halves it when the KV cache is full, and there an OCR run is fastest.
    """
    from saturate import AdaptiveClient, Fixed

    engines = 1 if options.endpoint or recipe.get("server_command") else engine_count(options, recipe)
    window, more, tasks = window_size(options, recipe, engines), True, set()
    seconds = getattr(options, "request_timeout", REQUEST_SECONDS)
    client = AdaptiveClient(server.url, Fixed(window), credentials(), seconds, signal_source="none")
    async with client:
        client.breaker.max_open_s = 60  # seconds that a server may fail every request before it counts as lost
        pulse = asyncio.create_task(keep_watch(server))
        try:
            while not stop.is_set() and (more or tasks):
                while more and len(tasks) < min(window, units.limit or window):
                    try:
                        unit = units.get(block=False)
                    except StopIteration:
                        more = False
                        break
                    if unit is None:
                        break
                    tasks.add(asyncio.create_task(hold(talk(*unit), client, server, recipe)))
                done, _ = await asyncio.wait({pulse, *tasks}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tasks.discard(task)
                    yield task.result()
        finally:
            for task in (pulse, *tasks):
                task.cancel()
            await asyncio.gather(pulse, *tasks, return_exceptions=True)


async def hold(conversation, client, server, recipe):
    """Holds one unit's conversation with the server; returns its row."""
    answers = None
    while True:
        try:
            bodies = conversation.send(answers)
        except StopIteration as end:
            return end.value
        answers = await asyncio.gather(*(ask(body, client, server, recipe) for body in bodies))


async def ask(body, client, server, recipe):
    """The Answer to one request, or the PageError for one that fails while the server is well."""
    from saturate import FatalTransportError

    wired = await asyncio.to_thread(wire, body, server, recipe)
    try:
        reply, problem = await client.post(wired)
    except FatalTransportError:
        raise server.gone("fails every request") from None
    except ValueError as garbled:
        return PageError(f"the server sent something else than JSON ({garbled})")
    if problem is None:
        return answer_in(reply)
    if not problem.startswith("http 4"):
        await check_pulse(server)
    return PageError(f"the server did not answer this page: {problem}")


async def keep_watch(server):
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        await check_pulse(server)


async def check_pulse(server):
    """Raises what `Server.gone` gives if the process has ended, or if nobody answers three times."""
    import httpx2

    async with httpx2.AsyncClient(headers=credentials(), timeout=PULSE_PATIENCE) as client:
        for left in (2, 1, 0):
            if server.process is not None and server.process.poll() is not None:
                raise server.gone(f"ended with exit code {server.process.returncode}")
            try:
                return await client.get(f"{server.url}/models")
            except httpx2.HTTPError as problem:
                if not left:
                    raise server.gone(f"does not answer any more ({type(problem).__name__})") from problem
            await asyncio.sleep(1)


def wire(body, server, recipe):
    """The body as it travels: the server's name for the model, and pictures as data URIs."""
    kind, how = BODIES[recipe.get("body_format", "png")]

    def picture(image):
        data = io.BytesIO()
        image.save(data, kind, **how)
        text = base64.b64encode(data.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/{kind.lower()};base64,{text}"}}

    chat = chat_arguments(recipe)
    chat.pop("chat_template_content_format")  # a flag of the server
    return chat | body | {"model": server.model, "messages": messages_with(body["messages"], picture)}


def answer_in(reply):
    """The Answer in an OpenAI chat completion, or a PageError where it holds none."""
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        tokens = (choice.get("logprobs") or {}).get("content")
        return Answer(
            text="" + (choice["message"]["content"] or ""),  # a TypeError for what is no string
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            logprobs=tokens and [token["logprob"] for token in tokens],
        )
    except (KeyError, IndexError, TypeError, AttributeError) as problem:
        return PageError(f"the server's answer holds no text ({problem!r}): {str(reply)[:200]}")


@contextlib.contextmanager
def running_server(options, recipe, stop):
    """Gives a Server: the one at `--endpoint`, or one that lives as long as the context; None if `stop` came first.

    Not saturate's Engine: it has no place for an environment and a log, and takes 30 seconds to end a server.
    """
    if options.endpoint:
        url = options.endpoint.rstrip("/")
        url = url if "/" in url.partition("://")[2] else url + "/v1"
        yield Server(url, served_model(url, options))
        return
    from saturate import wait_for_health

    set_environment(recipe)
    end_children_with_this_process()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, command = f"http://127.0.0.1:{port}/v1", server_command(options, recipe, port)
    say(f"Starting {shlex.join(command)}")
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        process = subprocess.Popen(
            command, env=server_environment(recipe), stdout=log, stderr=log, start_new_session=True
        )
        threading.Thread(target=end_on_stop, args=(process, stop), daemon=True).start()
        try:
            server = None
            try:
                wait_for_health(url, BOOT_SECONDS, proc=process)
                server = Server(url, served_model(url, options), process, log.name)
            except (RuntimeError, TimeoutError) as problem:
                if not stop.is_set():
                    raise Stop(f"The server did not start: {problem}. Its log ends:\n{log_tail(log.name)}") from problem
            yield server
        finally:
            end_group(process)


def server_command(options, recipe, port):
    """The words that start the server: the recipe's `server_command`, or `vllm serve` for all GPUs and cores."""
    if recipe.get("server_command"):
        filled = {"{model}": options.model, "{port}": str(port), "{max_model_len}": str(options.max_model_len)}
        return [filled.get(word, word) for word in recipe["server_command"]]
    args, replicas = engine_args(options, recipe), engine_count(options, recipe)
    # These processes prepare the pages; 6 to 8 of them kept one H200 busy on 16 cores.
    apis = max(1, min(8 * replicas, (os.cpu_count() or 1) // 2))
    args |= {"served_model_name": options.model, "host": "127.0.0.1", "port": port}
    args |= {"data_parallel_size": replicas} if replicas > 1 else {}
    args |= {"api_server_count": apis} if apis > 1 else {}
    args["chat_template_content_format"] = chat_arguments(recipe)["chat_template_content_format"]
    return [recipe.get("server_python", sys.executable), "-m", "vllm.entrypoints.cli.main", "serve", *cli_args(args)]


def end_on_stop(process, stop):
    stop.wait()
    if process.poll() is None:
        end_group(process)


def end_group(process, patience=4):
    """Ends a process and all that it started: SIGTERM, and SIGKILL for what is left after `patience` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def log_tail(path, lines=20):
    with open(path, errors="replace") as log:
        return "".join(log.readlines()[-lines:]).rstrip()


def served_model(url, options):
    """The name under which the server has the model. Raises Stop if nobody answers or it serves something else."""
    import httpx2

    try:
        reply = httpx2.get(f"{url}/models", headers=credentials(), timeout=30)
        models = {model["id"]: model for model in reply.raise_for_status().json()["data"]}
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as problem:
        raise Stop(
            f"No OpenAI-compatible server answers at {url} ({problem or type(problem).__name__}). Start one with\n"
            f"  vllm serve {options.model}\nand name it, e.g. --endpoint http://HOST:8000/v1. "
            "If it wants a key, set OPENAI_API_KEY."
        ) from problem
    if not options.endpoint and len(models) == 1:  # a vendor's command may name it in its own way
        return next(iter(models))
    if options.model not in models:
        raise Stop(f"{url} does not serve {options.model}. Use one that it serves: --model {' or '.join(models)}.")
    length = models[options.model].get("max_model_len")
    if length and options.max_tokens >= length:
        raise Stop(
            f"{url} takes {length} tokens of prompt and answer together, so --max-tokens {options.max_tokens} leaves "
            f"no room for the page. Use --max-tokens {length // 2}, or start it with a larger --max-model-len."
        )
    return options.model


def credentials():
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


# <<< kit/serve.py
# <<< shared part

if __name__ == "__main__":
    sys.exit(
        main(
            RECIPE,
            engines={"offline": offline, "serve": serve},
            request=request,
            parse=parse,
            add_options=add_options,
            check=check,
            preflight=preflight_vllm,
        )
    )
