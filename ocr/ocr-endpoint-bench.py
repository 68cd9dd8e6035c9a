# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "datasets>=5.2.0",
#     "httpx2>=2.9",
#     "huggingface_hub>=2.4.0",
#     "lxml>=5",
#     "markdownify>=1.1",
#     "pillow>=11",
#     "pypdfium2>=5.0",
#     "rapidfuzz>=3.9",
#     "regex>=2024.11.6",
#     "scipy>=1.11",
# ]
#
# [tool.hf-jobs]
# flavor = "cpu-upgrade"
# secrets = ["HF_TOKEN"]
# timeout = "4h"
# ///
"""Endpoint benchmark: speed, protocol and failures of OCR endpoints on the same pages, as report.json and a page.

    uv run ocr/ocr-endpoint-bench.py run samples --target glm-ocr=http://127.0.0.1:8000/v1 --task text
    uv run ocr/ocr-endpoint-bench.py run user/scans --task end2end --concurrency 1,4,16 --repeat 3 \\
        --target dots-mocr=http://127.0.0.1:8000/v1,model=dots-mocr,provider=own --target qwen3-vl-ocr=https://host/v1,key=MY_KEY
    uv run ocr/ocr-endpoint-bench.py page data/benchmarks/bench_*/report.json --out compare.html
    uv run ocr/ocr-endpoint-bench.py adapters

A target is a recipe of this folder and a URL: the recipe prepares the page, asks and parses as it does in a run, with
one attempt. After the URL may stand `model=` (the served name), `provider=` (never guessed), `label=`, `key=` (the name
of the variable that holds the key; no key is sent otherwise), `task=` (of the recipe), `timeout=`, `stall=`,
`stream=no`, and `args=` (options of the recipe). One target is measured after the other.

An answer counts when it keeps the model's protocol: boxes for layout and end2end, a whole table for table, text. That
says nothing about what was read; `--gold FOLDER` (NAME.md or NAME.txt, NAME.json with blocks) puts character error
rate, counted as ocr-score.py does, and IoU beside it. Endpoints of MLX, llama.cpp or a vendor are targets like any
other: SERVING.md says what is known.

Hardware: none here. Numbers are comparable only from an idle GPU; report.json says what was seen.
Output: data/benchmarks/bench_<UTC>/: report.json (its JSON Schema: `schema`), report.html, runs.jsonl as they end, and
outputs/TARGET/TASK-NNN.json with the raw answers, those of failures too. Exit code 3: fewer than --fail-under are ok.
Licence: Apache-2.0.
Source: the rules of https://github.com/nbadino/tabularium and its test log.
"""

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import re
import shlex
import signal
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

# >>> shared imports
# isort: split
import ast
import atexit
import difflib
import functools
import glob
import html
import importlib.util
import io
import ipaddress
import math
import platform
import random
import secrets
import shutil
import subprocess
import tempfile
import threading
import unicodedata
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlunsplit

# <<< shared imports

# The models of the test log that this tool follows, and the recipe that is the adapter of each.
ADAPTERS = {
    "MonkeyOCRv2": "monkeyocrv2",
    "MinerU2.5": "mineru2.5",
    "PaddleOCR-VL-1.6": "paddleocr-vl-1.6",
    "DeepSeek-OCR-2": "deepseek-ocr2-vllm",
    "Unlimited-OCR": "unlimited-ocr-vllm",
    "GLM-OCR": "glm-ocr",
    "dots.mocr": "dots-mocr",
    "TeleOCR": "teleocr",
    "Qwen3-VL-8B": "qwen3-vl-ocr",
}
# Which of a recipe's tasks is meant, the first that it has; None stands for its default.
RECIPE_TASKS = {
    "layout": ("layout-only", "layout", "layout-all", "spotting", "html", "document", None),
    "text": ("text", "ocr", "free", None),
    "table": ("table",),
    "end2end": ("end2end", "layout-all", "html", "document", "parse", None),
}
UNREACHABLE = ("connect_error", "timeout_total", "timeout_stall", "http_4xx", "http_5xx")
SPARE_TOKENS, FEWEST_ANSWER_TOKENS = 2048, 512  # of the context, for page and prompt; a server refuses, it does not cut
GPU_PAUSE = 2  # seconds between two looks at the GPU during a level


class Target:
    """One endpoint and what is known of it before anything is asked. Raises Stop for words that make no sense."""

    def __init__(self, text):
        adapter, sign, rest = text.partition("=")
        url, *pairs = re.split(r",(?=[a-z]+=)", rest)
        words = dict(pair.split("=", 1) for pair in pairs)
        known = ("model", "provider", "label", "key", "task", "timeout", "stall", "stream", "args")
        if not sign or not re.match(r"https?://[^/]", url) or set(words) - set(known):
            raise Stop(
                f"--target {scrubbed(text)} is not ADAPTER=URL[,word=value...], e.g. "
                f"glm-ocr=http://127.0.0.1:8000/v1,model=glm-ocr. Words: {', '.join(known)}."
            )
        if words.get("key") and words["key"] not in os.environ:
            raise Stop(
                f"--target {adapter}: key= names an environment variable, and {scrubbed(words['key'])} is not set."
            )
        for name in ("timeout", "stall"):
            if not re.fullmatch(r"\d*\.?\d+", words.get(name, "1")) or float(words.get(name, 1)) <= 0:
                raise Stop(f"--target {adapter}: {name}= is a number of seconds above 0, and not {words[name]}.")
        try:
            shlex.split(words.get("args", ""))
        except ValueError as error:
            raise Stop(f"--target {adapter}: args={words['args']} cannot be split into words: {error}.") from error
        self.adapter, self.url, self.words = adapter, url, words
        self.label = re.sub(r"[^\w.-]", "_", words.get("label") or Path(adapter).stem)
        self.key = os.environ[words["key"]] if words.get("key") else None
        self.secrets = secrets_in_url(url) | ({self.key} if self.key else set())


def adapter_of(target, task, folder):
    """The target's recipe as a dict: path, module, options, recipe, steps. Raises Stop or LookupError."""
    path = find_recipe(target.adapter, folder)
    table = recipe_table(path)
    if not table or table["engine"] != "vllm" or table.get("input") == "text":
        raise Stop(f"{path.name} is not read through an endpoint. Take another adapter.")
    chosen = target.words.get("task") or task_of(table, task)
    if table.get("tasks") and chosen not in table["tasks"]:
        raise LookupError(
            f"{path.stem} has no task for {task}; it has {', '.join(table['tasks'])} (task=NAME takes one)"
        )
    words = (["--task", chosen] if chosen else []) + ["--retries", "0", *shlex.split(target.words.get("args", ""))]
    module = import_recipe(path)
    options, recipe = recipe_options(module, words)
    steps = getattr(module, "steps", None) or module.one_step(module.request, module.parse)
    return {"path": path, "module": module, "options": options, "recipe": recipe, "steps": steps, "task": chosen,
            "workflow": "several requests" if hasattr(module, "steps") else "one request",
            "has_boxes": gives_boxes(table, chosen)}  # fmt: skip


def task_of(table, task):
    """The recipe's task that a benchmark task means, or None where it has none."""
    tasks = table.get("tasks") or {}
    for name in RECIPE_TASKS[task]:
        if name is None and (task != "layout" or table.get("blocks_column")):
            return table.get("task")
        if name in tasks and (task != "layout" or table.get("blocks_column")):
            return name
    return None


def gives_boxes(table, chosen):
    """Whether the recipe's task is one that answers with boxes."""
    return bool(table.get("blocks_column")) and (chosen in RECIPE_TASKS["layout"] or chosen == task_of(table, "layout"))


async def read_page(adapter, unit, client, target, served, limits):
    """(what was parsed or None, stages, seconds of the endpoint, seconds of this side, outcome or None, error or None).

    The outcome is that of the transport; None says that every answer came. `stages` are the traces of all calls, those
    cut off by the deadline as far as they came.
    """
    module, options, recipe = adapter["module"], adapter["options"], adapter["recipe"]
    stages, clock = [], {"wall": 0.0, "client": 0.0}
    server = argparse.Namespace(model=served)

    async def here(call, *arguments):
        started = time.monotonic()
        try:
            return await asyncio.to_thread(call, *arguments)
        finally:
            clock["client"] += time.monotonic() - started

    async def converse():
        reading = adapter["steps"](unit, options)
        bodies = await here(next, reading)
        while True:
            whole = [module.complete(body, options, recipe, unit) for body in bodies]
            wired = [await here(module.wire, body, server, recipe) for body in whole]
            traces = [blank_trace(body) | {"images": pictures_in(body), "asked": words_in(body)} for body in whole]
            stages.extend(traces)
            started = time.monotonic()
            try:
                calls = zip(wired, traces, strict=True)
                await asyncio.gather(
                    *(ask_endpoint(client, target.url, *call, limits["stall"], limits["stream"]) for call in calls)
                )
            finally:
                clock["wall"] += time.monotonic() - started
            answers = [answer_from(trace, module) for trace in traces]
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
            done, bodies = await here(advance, reading, answers, failed)
            if done:
                return bodies

    parsed = outcome = error = None
    try:
        parsed = await within(limits["timeout"], converse())
    except asyncio.TimeoutError:
        outcome, error = "timeout_total", f"not done within {limits['timeout']:g} s"
        for trace in stages:
            trace["outcome"] = trace["outcome"] or outcome
    except Exception as problem:  # a call that failed, or a recipe's parser on hostile text
        bad = next((trace for trace in stages if trace["outcome"] != "ok"), None)
        outcome, error = (bad["outcome"], bad["error"]) if bad else ("invalid_output", said(problem))
    return parsed, stages, clock["wall"], clock["client"], outcome, error


def advance(reading, answers, failed):
    """(True, what was parsed) or (False, the next bodies)."""
    try:
        return False, reading.throw(failed) if failed else reading.send(answers)
    except StopIteration as end:
        return True, end.value


def answer_from(trace, module):
    """The recipe's Answer of a call, or its PageError where the call failed; the trace gets the answer's flags."""
    trace["flags"] = list(module.flags_of(trace["text"], trace["finish_reason"]))
    if trace["outcome"] != "ok":
        return module.PageError(trace["error"])
    usage = trace["usage"] or {}
    prompt, completion = (usage.get(key) or 0 for key in ("prompt_tokens", "completion_tokens"))
    return module.Answer(
        trace["text"], trace["finish_reason"], prompt, completion, tuple(trace["flags"]), trace["logprobs"]
    )


def parts_of(body):
    return [part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]]


def pictures_in(body):
    """[[width, height]] of the pictures of a body, as they travel."""
    return [list(part["image"].size) for part in parts_of(body) if part["type"] == "image"]


def words_in(body):
    """The body without pictures, for the output file."""
    text = [part.get("text") for part in parts_of(body) if part["type"] == "text"]
    plain = [message["content"] for message in body["messages"] if isinstance(message["content"], str)]
    return {key: value for key, value in body.items() if key != "messages"} | {"text": [*plain, *text]}


def judged(adapter, task, parsed, stages, outcome, error, gold):
    """What a run says of one page beside its times: outcome, counts, flags."""
    flags = list(
        dict.fromkeys(
            [flag for trace in stages for flag in trace.get("flags", ())] + list(parsed.flags if parsed else ())
        )
    )
    usages = [trace["usage"] or {} for trace in stages if trace["outcome"] == "ok"]
    counts = {key: [usage.get(key) for usage in usages] for key in ("prompt_tokens", "completion_tokens")}
    sums = {
        key: sum(values) if values and all(isinstance(v, int) for v in values) else None
        for key, values in counts.items()
    }
    needed = image_tokens_needed(adapter["recipe"], stages[0]["images"]) if stages else None
    ignored = image_was_ignored(needed, counts["prompt_tokens"][0] if counts["prompt_tokens"] else None)
    markdown = (parsed.markdown or "") if parsed else ""
    blocks = blocks_facts(parsed.blocks if parsed else None)
    table = table_facts("\n".join(trace["text"] for trace in stages), markdown) if task == "table" and parsed else None
    looped, truncated = bool({"looped", "degenerate"} & set(flags)), "truncated" in flags
    if outcome is None:
        blank = bool(gold) and gold["text"] is not None and not gold["text"].strip()
        problem = protocol_problem(task, adapter["has_boxes"], markdown, blocks, table, blank)
        if ignored:
            outcome = "image_ignored"
            error = (
                f"the server counted {counts['prompt_tokens'][0]} prompt tokens; the picture alone needs about {needed}"
            )
        elif looped or truncated:
            outcome = "loop" if looped else "truncated"
            error = "the answer repeats itself" if looped else "the answer ended at its token limit"
        elif "unparsed" in flags or problem:
            outcome, error = "invalid_output", problem or "the model's protocol is broken"
        else:
            outcome = "ok"
    return {
        "outcome": outcome, "error": error, **sums, "image_tokens_needed": needed, "image_ignored": ignored,
        "truncated": truncated, "looped": looped, "flags": flags, "chars": len(markdown) if parsed else None,
        "blocks": blocks["blocks"] if parsed else None, "boxed_blocks": blocks["boxed"] if parsed else None,
        "labels": blocks["labels"], "table": table,
        "quality": gold_quality(gold, markdown, parsed.blocks) if gold and parsed else None,
    }  # fmt: skip


class Bench:
    """One run of the benchmark: pages, report, and the files they are written to."""

    def __init__(self, options, targets):
        self.options, self.targets = options, targets
        self.secrets = set().union(secrets_in_environment(), *(target.secrets for target in targets))
        self.items = first_items(options)
        if options.gold and not os.path.isdir(options.gold):
            raise Stop(f"--gold {options.gold} is no folder here.")
        self.folder = report_folder(options.out)
        pages = [{"id": item.id, "sha256": None, "width": None, "height": None} for item in self.items]
        is_local = any(host_class_of(target.url) == "loopback" for target in targets)
        self.report = {
            "schema": REPORT_VERSION, "run_id": self.folder.name, "started_at": now(), "finished_at": None,
            "complete": False, "tool_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
            "command": scrubbed_words([Path(sys.argv[0]).name, *sys.argv[1:]], self.secrets), "task": options.task,
            "params": {
                "warmup": options.warmup, "repeat": options.repeat, "concurrency": options.concurrency,
                "timeout_s": options.timeout, "stall_timeout_s": options.stall_timeout,
                "max_tokens": options.max_tokens, "dpi": options.dpi, "stream": not options.no_stream,
            },
            "input": {"source": options.input, "n": len(pages), "pages_sha256": "", "pages": pages},
            "host": hardware() if is_local else None, "gpu": gpu_idleness() if is_local else None,
            "comparable": True, "invalidations": [], "pixels": {"differ": False, "pages": {}}, "targets": [],
        }  # fmt: skip
        gpu = self.report["gpu"]
        if gpu and gpu["idle"] is False:
            self.report["invalidations"].append(gpu["reason"])
            say(f"Not comparable: {gpu['reason']}. End what else runs there and measure again.")

    def scrub(self, value):
        return each_text(scrubbed(value, self.secrets, self.options.keep_host), without_folders)

    def write(self, name, text):
        """Writes one file whole or not at all; returns its SHA-256. A known secret in it ends the run."""
        for secret in self.secrets:
            if json.dumps(secret)[1:-1] in text or secret in text:
                raise Stop(
                    f"{name} would have held a secret of this process, so it was not written. Please report this.", 1
                )
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self):
        report = self.report
        pages = {}
        for target in report["targets"]:
            for run in target["runs"]:
                seen = [width * height for stage in run["stages"][:1] for width, height in stage["images"]]
                if seen:
                    pages.setdefault(run["page"], {})[target["label"]] = sum(seen)
        differ = any(len(set(seen.values())) > 1 for seen in pages.values())
        report["pixels"] = {"differ": differ, "pages": pages}
        known = [f"{page['id']} {page['sha256']}" for page in report["input"]["pages"]]
        report["input"]["pages_sha256"] = hashlib.sha256("\n".join(known).encode()).hexdigest()
        report["comparable"] = not report["invalidations"]
        shown = self.scrub(report)
        self.write("report.json", json.dumps(shown, indent=1, ensure_ascii=False) + "\n")
        self.write("report.html", report_page([shown]))

    async def measure(self, target):
        """Measures one target: readiness, warm-up, every level of concurrency. Its part of the report grows."""
        part = {
            "label": target.label, "adapter": target.adapter,
            "endpoint": redacted_url(target.url, self.options.keep_host), "where": host_class_of(target.url),
            "provider": target.words.get("provider"), "served_model": None,
            "reported_model": None, "engine_version": None, "max_model_len": None, "recipe": None, "workflow": None,
            "settings": None, "status": "stopped", "error": None, "readiness": None, "runs": [], "levels": [],
            "quality": None,
        }  # fmt: skip
        self.report["targets"].append(part)
        try:
            adapter = adapter_of(target, self.options.task, self.options.recipes)
        except LookupError as problem:
            part |= {"status": "no_task", "error": str(problem)}
            return
        except Stop as problem:
            part |= {"status": "no_recipe", "error": str(problem)}
            return
        recipe, path = adapter["recipe"], adapter["path"]
        part["recipe"] = {
            "name": recipe["name"], "model": recipe["model"], "revision": recipe.get("revision"),
            "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "task": adapter["task"],
        }  # fmt: skip
        part["workflow"] = adapter["workflow"]
        limits = {
            "timeout": float(target.words.get("timeout", self.options.timeout)),
            "stall": float(target.words.get("stall", self.options.stall_timeout)),
            "stream": not self.options.no_stream and target.words.get("stream") != "no",
        }
        async with open_client(target.key, self.options.connect_timeout) as client:
            served = await self.ready(target, adapter, part, client)
            if served is None:
                part["status"] = "not_ready"
                return
            part["engine_version"] = await engine_version(client, target.url)
            await self.run_level(
                target, adapter, part, client, served, limits, self.items[: self.options.warmup], 1, True
            )
            for level in self.options.concurrency:
                work = self.items * self.options.repeat
                if not await self.run_level(target, adapter, part, client, served, limits, work, level):
                    part["status"] = "given_up"
                    return
        part["status"] = "measured"
        part["quality"] = quality_of(part["runs"])

    async def ready(self, target, adapter, part, client):
        """The name to ask for, or None: GET /models must answer 200 and list exactly that name."""
        started, options, recipe = time.monotonic(), adapter["options"], adapter["recipe"]
        models, error = await served_models(client, target.url, self.options.connect_timeout + 20)
        wanted = target.words.get("model")
        names = [wanted] if wanted else [recipe["model"], recipe["name"], target.adapter]
        served = next((name for name in names if name in (models or {})), None)
        if models is not None and served is None:
            error = f"it serves {', '.join(models) or 'nothing'}, not {names[0]}; name it with model=NAME"
        seconds = round(time.monotonic() - started, 3)
        part["readiness"] = {"ok": served is not None, "seconds": seconds, "error": error}
        part["served_model"], part["error"] = served or wanted, error
        if served is None:
            say(self.scrub(f"{target.label}: not ready: {error}"))
            return None
        length = models[served].get("max_model_len")
        part["max_model_len"] = length if isinstance(length, int) else None
        wished = self.options.max_tokens or options.max_tokens
        room = max(FEWEST_ANSWER_TOKENS, length - SPARE_TOKENS) if part["max_model_len"] else wished
        options.max_tokens = min(wished, room)
        part["settings"] = settings_of(adapter, part)
        return served

    async def run_level(self, target, adapter, part, client, served, limits, work, level, warmup=False):
        """Reads `work` with `level` pages in flight. False if the endpoint failed --give-up times in a row."""
        queue, in_a_row, runs = list(enumerate(work)), 0, []
        started, samples = time.monotonic(), []

        async def reader():
            nonlocal in_a_row
            while queue and in_a_row < self.options.give_up:
                place, item = queue.pop(0)
                iteration = place // max(1, len(self.items)) + 1
                run = await self.one_run(target, adapter, part, client, served, limits, item, iteration, level, warmup)
                in_a_row = in_a_row + 1 if run["outcome"] in UNREACHABLE else 0
                runs.append(run)

        watch = asyncio.create_task(watch_gpu(samples)) if part["where"] == "loopback" and not warmup else None
        try:
            await asyncio.gather(*(reader() for _ in range(level)))
        finally:
            if watch:
                watch.cancel()
            if not warmup:
                part["levels"].append(level_of(level, runs, time.monotonic() - started, samples))
                say(level_line(target.label, part["levels"][-1]))
        if in_a_row >= self.options.give_up and queue:
            part["error"] = (
                f"{in_a_row} failures in a row, the last: {runs[-1]['error']}; {len(queue)} pages were not asked"
            )
            say(self.scrub(f"{target.label}: {part['error']}"))
            return False
        return True

    async def one_run(self, target, adapter, part, client, served, limits, item, iteration, level, warmup):
        """One page, once: asked, judged, saved to its own file. Returns its record."""
        module, options, recipe = adapter["module"], adapter["options"], adapter["recipe"]
        gold = read_gold(self.options.gold, item.name) if self.options.gold else None
        begun, parsed, stages, wall, here, outcome, error = (
            now(),
            None,
            [],
            None,
            None,
            "cancelled",
            "the run was stopped",
        )
        try:
            try:
                bounds = module.image_bounds(options, recipe)
                unit, sha256 = await asyncio.to_thread(module.open_unit, item, bounds, self.options.dpi)
                known = next(page for page in self.report["input"]["pages"] if page["id"] == item.id)
                known |= {"sha256": sha256, "width": unit.pages[0].width, "height": unit.pages[0].height}
                outcome = error = None
            except module.PageError as problem:
                outcome, error = "unreadable_page", str(problem)
            if outcome is None:
                outcome, error = "cancelled", "the run was stopped"
                parsed, stages, wall, here, outcome, error = await read_page(
                    adapter, unit, client, target, served, limits
                )
        finally:
            verdict = judged(adapter, self.options.task, parsed, stages, outcome, error, gold)
            part["reported_model"] = next(
                (t["reported_model"] for t in stages if t["reported_model"]), part["reported_model"]
            )
            run = self.record(target, part, item, iteration, level, warmup, begun, wall, here, stages, verdict, parsed)
            part["runs"].append(run)
        return run

    def record(self, target, part, item, iteration, level, warmup, begun, wall, here, stages, verdict, parsed):
        """The run's record, after its raw output is in a file of its own and the record in runs.jsonl."""
        kind = f"{self.options.task}-warmup" if warmup else self.options.task
        number = sum(run["warmup"] == warmup for run in part["runs"]) + 1
        name = f"outputs/{target.label}/{kind}-{number:03d}.json"
        tokens, seconds = verdict["completion_tokens"], wall and round(wall, 4)
        rate = stages[0]["tokens_per_s"] if len(stages) == 1 else round(tokens / wall, 2) if tokens and wall else None
        run = {
            "page": item.id, "iteration": iteration, "concurrency": level, "warmup": warmup, "started_at": begun,
            "wall_s": seconds, "client_s": here and round(here, 4), "ttft_s": stages[0]["ttft_s"] if stages else None,
            "tokens_per_s": rate, **verdict, "stages": [stage_of(trace) for trace in stages], "output_file": name,
        }  # fmt: skip
        answer = self.scrub({"target": target.label} | {key: value for key, value in run.items() if key != "stages"})
        keys = ("asked", "text", "unread", "usage", "images")
        raw = {"calls": [{key: trace[key] for key in keys} | {"error": self.scrub(trace["error"])} for trace in stages],
               "markdown": parsed.markdown if parsed else None,
               "blocks_document": parsed.blocks if parsed else None}  # fmt: skip
        answer |= scrubbed(raw, self.secrets, known_only=True)
        run["output_sha256"] = self.write(name, json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
        with open(self.folder / "runs.jsonl", "a", encoding="utf-8") as lines:
            lines.write(json.dumps(self.scrub({"target": target.label, **run}), ensure_ascii=False) + "\n")
        return run


def stage_of(trace):
    keys = (
        "outcome",
        "http_status",
        "finish_reason",
        "max_tokens",
        "wall_s",
        "ttft_s",
        "tokens_per_s",
        "streamed",
        "usage",
        "images",
    )
    return {key: trace[key] for key in keys} | {"flags": trace.get("flags", [])}


def settings_of(adapter, part):
    """What the recipe recommends, what is sent, and where they differ."""
    options, recipe = adapter["options"], adapter["recipe"]
    keys = list(recipe.get("sampling") or {})
    table = adapter["module"].RECIPE
    recommended = {"max_tokens": recipe.get("max_tokens"), "max_model_len": recipe.get("max_model_len"),
                   "image": table.get("image"), "body_format": recipe.get("body_format", "png"),
                   **(recipe.get("sampling") or {}),
                   **recipe.get("task_sampling", {}).get(options.task, {})}  # fmt: skip
    effective = recommended | {"max_tokens": options.max_tokens, "max_model_len": part["max_model_len"],
                               "image": adapter["module"].image_bounds(options, recipe),
                               **{key: getattr(options, key) for key in keys}}  # fmt: skip
    overrides = {key: value for key, value in effective.items() if value != recommended[key] and value is not None}
    return {"recommended": recommended, "effective": effective, "overrides": overrides}


async def watch_gpu(samples):
    while True:
        samples += await asyncio.to_thread(gpu_table, "utilization.gpu", "memory.used")
        await asyncio.sleep(GPU_PAUSE)


def spread(values):
    """Nearest-rank percentiles of numbers, or None."""
    values = sorted(value for value in values if value is not None)
    ranks = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    return (
        {name: values[max(0, -int(-share * len(values) // 1) - 1)] for name, share in ranks.items()} if values else None
    )


def level_of(level, runs, seconds, samples):
    """The figures of one level of concurrency. Times are those of pages that are ok; the failed have their own."""
    good, bad = ([run for run in runs if (run["outcome"] == "ok") == ok] for ok in (True, False))
    tokens = [run["completion_tokens"] for run in runs]
    used, memory = ([int(s[key]) for s in samples if s[key].isdecimal()] for key in ("utilization.gpu", "memory.used"))
    return {
        "concurrency": level, "attempted": len(runs), "ok": len(good),
        "outcomes": dict(Counter(run["outcome"] for run in runs)),
        "valid_share": round(len(good) / len(runs), 4) if runs else None, "seconds": round(seconds, 3),
        "pages_per_s": round(len(good) / seconds, 4) if good and seconds else None,
        "completion_tokens_per_s": round(sum(t or 0 for t in tokens) / seconds, 2) if any(tokens) and seconds else None,
        "wall_s": spread(run["wall_s"] for run in good), "ttft_s": spread(run["ttft_s"] for run in good),
        "tokens_per_s": spread(run["tokens_per_s"] for run in good),
        "failed_wall_s": spread(run["wall_s"] for run in bad),
        "gpu_use_percent": round(sum(used) / len(used), 1) if used else None, "vram_mib": max(memory, default=None),
    }  # fmt: skip


def level_line(label, level):
    wall = (level["wall_s"] or {}).get("p50")
    outcomes = ", ".join(f"{count} {name}" for name, count in level["outcomes"].items())
    return f"{label}: {level['concurrency']} at a time: {outcomes}; median {wall} s, {level['pages_per_s']} pages/s"


def quality_of(runs):
    """Means over pages, first iteration of the first level, of what was compared with the gold."""
    seen = {run["page"]: run["quality"] for run in reversed(runs) if run["quality"] and not run["warmup"]}
    mean = {key: [min(1, q[key]) for q in seen.values() if q[key] is not None] for key in ("cer", "f1", "iou_mean")}
    mean = {key: round(sum(values) / len(values), 4) if values else None for key, values in mean.items()}
    return (
        {"pages": len(seen), "cer_mean": mean["cer"], "f1_mean": mean["f1"], "iou_mean": mean["iou_mean"]}
        if seen
        else None
    )


def report_folder(out):
    """The folder of a new report, made here: `out`, which has to be empty, or a name by the time that is still free."""
    if out:
        if os.path.isdir(out) and os.listdir(out):
            raise Stop(f"{out} holds something already. Name another folder with --out.")
        os.makedirs(out, exist_ok=True)
        return Path(out)
    name = f"data/benchmarks/bench_{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    for number in itertools.count(1):
        folder = Path(name if number == 1 else f"{name}_{number}")
        with contextlib.suppress(FileExistsError):  # of a run that started in the same second
            folder.mkdir(parents=True)
            return folder


def first_items(options):
    """The first --max-samples pages of INPUT. Raises Stop where there are none."""
    items = []
    for item in open_source(options, {"name": "ocr-endpoint-bench"}).items(set()):
        items.append(item)
        if len(items) >= options.max_samples:
            break
    if not items:
        raise Stop(f"{options.input} has no pages.")
    return items


def host_class_of(url):
    return host_class(urlsplit(url).hostname)


def now():
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


async def bench_all(bench):
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; not the main thread
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    for target in bench.targets:
        say(f"{target.label} at {redacted_url(target.url, bench.options.keep_host)}")
        try:
            await bench.measure(target)
        finally:
            bench.save()


def command_run(options):
    targets = [Target(text) for text in options.target]
    taken = Counter()
    for target in targets:
        taken[target.label] += 1
        target.label += f"-{taken[target.label]}" if taken[target.label] > 1 else ""
    bench = Bench(options, targets)
    stopped = False
    try:
        asyncio.run(bench_all(bench))
    except (asyncio.CancelledError, KeyboardInterrupt):
        stopped = True
        say(f"Stopped. What was measured is in {bench.folder}; a new run measures anew.")
    report = bench.report
    report |= {"finished_at": now(), "complete": not stopped}
    bench.save()
    counted = [level for part in report["targets"] for level in part["levels"]]
    attempted, good = sum(level["attempted"] for level in counted), sum(level["ok"] for level in counted)
    unmeasured = [part["label"] for part in report["targets"] if part["status"] != "measured"]
    share = good / attempted if attempted else 0.0
    code = 1 if stopped else 3 if unmeasured or share < options.fail_under else 0
    summary = {
        "report": str(bench.folder / "report.json"), "page": str(bench.folder / "report.html"),
        "task": options.task, "targets": {part["label"]: part["status"] for part in report["targets"]},
        "attempted": attempted, "ok": good, "valid_share": round(share, 4), "comparable": report["comparable"],
        "exit_code": code,
    }  # fmt: skip
    for part in report["targets"]:
        say(f"  {part['label']:<28} {part['status']:<10} {bench.scrub(part['error'] or '')}")
    print(json.dumps(bench.scrub(summary)), flush=True)
    return code


def command_page(options):
    reports = []
    for path in options.report:
        try:
            reports.append(parse_json(Path(path).read_text()))
            if reports[-1]["schema"] != REPORT_VERSION:
                raise KeyError(f"schema {reports[-1]['schema']}")
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise Stop(f"{path} is no report of this tool ({said(problem)}).") from None
    Path(options.out).write_text(report_page(reports), encoding="utf-8")
    print(json.dumps({"page": options.out, "reports": len(reports), "exit_code": 0}))
    return 0


def command_adapters(options):
    """Prints the models of the log and the recipe of each, or that it is not there."""
    there = {path.stem: table for path, table in recipe_tables(options.recipes).items()}
    rows = {}
    for title, name in ADAPTERS.items():
        table = there.get(name)
        rows[title] = {
            "recipe": name, "there": table is not None,
            "tasks": {task: task_of(table, task) for task in BENCH_TASKS} if table else None,
        }  # fmt: skip
        tasks = ", ".join(task for task in BENCH_TASKS if table and task_of(table, task))
        say(f"  {title:<18} {name:<20} {tasks or 'its recipe is not there yet'}")
    others = sorted(
        name for name, table in there.items() if table["engine"] == "vllm" and name not in ADAPTERS.values()
    )
    say(f"  also: {', '.join(others)}")
    print(json.dumps({"adapters": rows, "also": others, "exit_code": 0}))
    return 0


def command_schema(options):
    print(json.dumps(REPORT_SCHEMA, indent=1))
    return 0


def levels(text):
    numbers = [int(word) for word in text.split(",")]
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: write numbers above 0, e.g. 1,4,16")
    return numbers


def option_parser_of_endpoints():
    parser = argparse.ArgumentParser(
        prog="ocr-endpoint-bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="measure endpoints on the same pages")
    add = run.add_argument
    add("input", metavar="INPUT", help="what recipes read: Hub dataset ns/name, hf:// URI, folder, glob, image or PDF")
    add(
        "--target",
        action="append",
        required=True,
        metavar="ADAPTER=URL[,word=value...]",
        help="an endpoint; repeatable",
    )
    add("--task", choices=BENCH_TASKS, default="end2end", help="what is asked of every page (default %(default)s)")
    add("--gold", metavar="FOLDER", help="confirmed pages: NAME.md or NAME.txt, and NAME.json with blocks")
    add("--max-samples", type=whole_number, default=20, metavar="N", help="pages (default %(default)s)")
    add("--warmup", type=int, default=1, metavar="N", help="pages asked before anything counts (default %(default)s)")
    add("--repeat", type=whole_number, default=1, metavar="N", help="times that every page is asked (default 1)")
    add("--concurrency", type=levels, default=[1], metavar="N,N", help="pages in flight, one level each (default 1)")
    add(
        "--timeout",
        type=above_zero,
        default=300,
        metavar="S",
        help="hard limit of one page, all its calls (default %(default)s)",
    )
    add(
        "--stall-timeout",
        type=above_zero,
        default=60,
        metavar="S",
        help="longest silence within an answer (default %(default)s)",
    )
    add("--connect-timeout", type=above_zero, default=10, metavar="S", help="(default %(default)s)")
    add("--give-up", type=whole_number, default=5, metavar="N", help="failures in a row that end a target (default 5)")
    add(
        "--max-tokens",
        type=whole_number,
        help="longest answer (default: the recipe's, less where the server's context is short)",
    )
    add("--no-stream", action="store_true", help="ask for whole answers; then no first token is timed")
    add("--keep-host", action="store_true", help="write host names into the report")
    add(
        "--fail-under",
        type=share_of_one,
        default=0.95,
        metavar="SHARE",
        help="ok pages below which the exit code is 3 (%(default)s)",
    )
    add("--out", metavar="FOLDER", help="where the report goes (default data/benchmarks/bench_<UTC>)")
    add("--image-column", default="image", help="column with the page images (default image)")
    add("--split", default="train", help="split of the input dataset (default train)")
    add("--input-revision", help="revision of the input dataset")
    add("--shuffle", action="store_true", help="draw the rows of --max-samples at random")
    add("--seed", type=int, default=42, help="seed of --shuffle (default 42)")
    add("--dpi", type=whole_number, default=200, help="resolution of PDF pages (default %(default)s)")
    run.set_defaults(command=command_run, output="./endpoint-bench", text_column=None, id_column=None,
                     input_config=None, shard=None, keep_extension=True)  # fmt: skip
    page = commands.add_parser("page", help="one page from reports that were made before")
    page.add_argument("report", nargs="+", help="report.json files")
    page.add_argument("--out", default="report.html", help="the page to write (default %(default)s)")
    page.set_defaults(command=command_page)
    adapters = commands.add_parser("adapters", help="the models that have an adapter, and what each can be asked")
    adapters.set_defaults(command=command_adapters)
    for command in (run, adapters):
        command.add_argument("--recipes", default=str(Path(__file__).resolve().parent), metavar="FOLDER",
                             help="where the recipes lie (default: beside this file)")  # fmt: skip
    commands.add_parser("schema", help="print the JSON Schema of report.json").set_defaults(command=command_schema)
    return parser


def main_of_endpoints():
    def run():
        try:
            options = option_parser_of_endpoints().parse_args()
            return options.command(options)
        except Stop as problem:
            raise Stop(scrubbed(str(problem), secrets_in_environment()), problem.code) from problem

    return exit_code_of(run)


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
# >>> kit/otsl.py
# OTSL, the table language of PaddleOCR-VL, MinerU2.5, TeleOCR and the Docling models, as HTML.


# A token says what stands in one place of the grid: a filled or an empty cell, a header of columns, of a row or of a
# section, or the continuation of the cell on the left, above, or both.
OTSL_TOKEN = re.compile(r"<(fcel|ecel|ched|rhed|srow|lcel|ucel|xcel|nl)>")
OTSL_HEADERS, OTSL_CONTINUED = {"ched", "rhed", "srow"}, {"lcel", "ucel", "xcel"}


def otsl_to_html(text, trim=False):
    """The table as HTML; text that is no OTSL, or HTML already, comes back as it is, only stripped.

    Rows are made equally long: filled up to the longest, or with `trim` by PaddleX's rule, to the length that changes
    the rows least and loses no filled cell, which ends runs of empty cells. What stands before the first cell or after
    the end of a row is put before and behind the table. Merged cells never overlap: a continuation that no merged cell
    reaches is a cell of its own.
    """
    text = text.strip()
    before, *pieces = OTSL_TOKEN.split(text)
    rows, outside = [[]], []
    for kind, content in zip(pieces[::2], map(str.strip, pieces[1::2]), strict=True):
        if kind == "nl":
            rows.append([])
            outside.append(content)
        else:
            rows[-1].append((kind, content))
    rows = [row for row in rows if row]
    if not rows or (text.startswith("<table") and text.endswith("</table>")):
        return text
    # Filling up a table of one endless row would take the square of its length.
    width = otsl_width(rows, trim or len(rows) * max(map(len, rows)) > 200_000)
    lines = otsl_lines([(row + [("ecel", "")] * width)[:width] for row in rows])
    table = "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    return "\n\n".join(part for part in (before.strip(), table, *outside) if part)


def otsl_width(rows, trim):
    lengths = sorted(map(len, rows))
    if not trim:
        return lengths[-1]
    filled = max(
        (place for row in rows for place, cell in enumerate(row, 1) if cell[1] or cell[0] == "fcel"), default=1
    )
    return max(filled, lengths[(len(rows) - 1) // 2])  # the median is the length with the smallest sum of changes


def otsl_lines(rows):
    """Yields the inside of each `<tr>` of rows of (kind, text), all of one length."""
    taken = set()

    def continued(row, column, kinds):
        return (
            row < len(rows) and column < len(rows[0]) and rows[row][column][0] in kinds and (row, column) not in taken
        )

    for row, cells in enumerate(rows):
        line = []
        for column, (kind, _) in enumerate(cells):
            if (row, column) in taken:
                continue
            right, below = column + 1, row + 1
            if kind not in OTSL_CONTINUED:
                while continued(row, right, ("lcel", "xcel")):
                    right += 1
                while continued(below, column, ("ucel", "xcel")) and all(
                    continued(below, place, OTSL_CONTINUED) for place in range(column, right)
                ):
                    below += 1
            places = [(r, c) for r in range(row, below) for c in range(column, right)]
            taken.update(places)
            tag = "th" if kind in OTSL_HEADERS else "td"
            spans = "".join(
                f' {name}="{span}"'
                for name, span in (("rowspan", below - row), ("colspan", right - column))
                if span > 1
            )
            inside = html.escape(" ".join(said for r, c in places if (said := rows[r][c][1])))
            line.append(f"<{tag}{spans}>{inside}</{tag}>")
        yield "".join(line)


# <<< kit/otsl.py

# >>> kit/endpoint_checks.py
# Whether an answer keeps its model's protocol: boxes are boxes, tables are tables, the image was seen.


MOST_CELLS = 4096
BOXED_SHARE = 0.9  # of the blocks of a layout that need a box on the page: one good box among hundreds is no layout
SEEN_SHARE = 0.75  # of the tokens that the picture alone needs; processors round sizes, servers that drop it count few
FEWEST_TOKENS = 16  # below that rounding decides


def otsl_facts(text):
    """{"rows", "columns", "cells", "problems"} of a table in OTSL, strictly read; None where there are no tokens.

    Every row has as many tokens as the others; a cell continues one that is there; spans are rectangles; at least one
    cell is filled; at most MOST_CELLS places; text stands in cells only.
    """
    text = re.sub(r"</?otsl>|<loc_\d+>", "", html.unescape(text)).strip()
    before, *found = OTSL_TOKEN.split(text)
    if not found:
        return None
    rows, problems = [[]], []
    for kind, content in zip(found[::2], found[1::2], strict=True):
        if kind == "nl":
            if content.strip():
                problems.append("text between rows")
            rows.append([])
        else:
            if content.strip() and kind in ("ecel", "lcel", "ucel", "xcel"):
                problems.append(f"text in <{kind}>")
            rows[-1].append(kind)
    rows = [row for row in rows if row]
    width = max(map(len, rows), default=0)
    if any(len(row) != width for row in rows):
        problems.append("rows of different lengths")
    if len(rows) * width > MOST_CELLS:
        problems.append(f"more than {MOST_CELLS} cells")
    if not any(kind in ("fcel", "ched", "rhed", "srow") for row in rows for kind in row):
        problems.append("no filled cell")
    for place, row in enumerate(rows[:MOST_CELLS]):
        above = rows[place - 1] if place else []
        for column, kind in enumerate(row):
            up, left = above[column] if column < len(above) else None, row[column - 1] if column else None
            wide = column + 1 < len(above) and above[column + 1] in ("lcel", "xcel")
            follows = row[column + 1] if column + 1 < len(row) else None
            if (kind == "lcel" and left is None) or (kind in ("ucel", "xcel") and up is None):
                problems.append(f"<{kind}> continues nothing")
            elif (
                (kind == "lcel" and left in ("ucel", "xcel"))
                or (kind == "ucel" and up in ("lcel", "xcel"))
                or (kind == "xcel" and (left not in ("ucel", "xcel") or up not in ("lcel", "xcel")))
                or (kind in ("ucel", "xcel") and wide != (follows == "xcel"))
            ):
                problems.append("a merged cell that is no rectangle")
    if before.strip():
        problems.append("text before the table")
    cells = sum(kind in ("fcel", "ecel", "ched", "rhed", "srow") for row in rows for kind in row)
    return {"rows": len(rows), "columns": width, "cells": cells, "problems": sorted(set(problems))}


def table_facts(raw, markdown):
    """{"format", "rows", "columns", "cells", "problems"} of the answer's table: OTSL as written, HTML or Markdown."""
    found = otsl_facts(raw)
    if found:
        return {"format": "otsl", **found}
    for text in (markdown, raw):
        if "<table" in text.lower():
            return {"format": "html", **html_table_facts(text)}
    lines = [line for line in markdown.splitlines() if line.strip().count("|") >= 2 or re.match(r"\s*\|", line)]
    rows = [line for line in lines if not re.fullmatch(r"[\s|:-]+", line)]
    cells = sum(len(line.strip().strip("|").split("|")) for line in rows)
    width = max((len(line.strip().strip("|").split("|")) for line in rows), default=0)
    problems = [] if len(lines) >= 2 else ["no table in the answer"]
    return {"format": "markdown" if rows else None, "rows": len(rows), "columns": width, "cells": cells,
            "problems": problems}  # fmt: skip


def html_table_facts(text):
    opened, closed = (len(re.findall(rf"<{slash}table\b", text, re.I)) for slash in ("", "/"))
    rows = re.findall(r"<tr\b[^>]*>(.*?)(?=<tr\b|</tr>|</table>|\Z)", text, re.I | re.S)
    widths = [len(re.findall(r"<t[dh]\b", row, re.I)) for row in rows]
    problems = [] if opened == closed else ["a <table> that does not end"]
    problems += [] if sum(widths) else ["a table without cells"]
    return {"rows": len(rows), "columns": max(widths, default=0), "cells": sum(widths), "problems": problems}


def blocks_facts(document):
    """{"blocks", "boxed", "labels"} of a blocks document or None."""
    blocks = (document or {}).get("blocks") or []
    labels = {}
    for block in blocks:
        labels[block["label"]] = labels.get(block["label"], 0) + 1
    return {"blocks": len(blocks), "boxed": sum(block["bbox"] is not None for block in blocks), "labels": labels}


def image_tokens_needed(recipe, images):
    """Prompt tokens that pictures of these (width, height) need at least, or None where the recipe does not tell.

    From the recipe's worst case: `image_tokens` for the largest picture inside its bounds. Exact where a model has one
    token per so many pixels, too low where it also has a fixed part.
    """
    bounds = recipe.get("image") or {}
    most = bounds.get("max_pixels") or (bounds.get("max_side") or 0) ** 2
    if not most or not recipe.get("image_tokens") or not images:
        return None
    return int(sum(min(width * height, most) for width, height in images) * recipe["image_tokens"] / most)


def image_was_ignored(needed, prompt_tokens):
    """True if the server counted fewer prompt tokens than the picture alone needs; None where nobody can say."""
    if needed is None or not isinstance(prompt_tokens, int):
        return None
    return needed >= FEWEST_TOKENS and prompt_tokens < SEEN_SHARE * needed


def protocol_problem(task, has_boxes, markdown, blocks, table, blank=False):
    """Why an answer is not what the task asks for, or None. `blank` says that the page is known to hold nothing."""
    if blank and not markdown.strip() and not blocks["blocks"]:
        return None
    if task == "table":
        return "; ".join(table["problems"]) or None
    if task == "layout" or (task == "end2end" and has_boxes):
        if not blocks["blocks"]:
            return "no blocks"
        if blocks["boxed"] < BOXED_SHARE * blocks["blocks"]:
            return f"{blocks['blocks'] - blocks['boxed']} of {blocks['blocks']} blocks have no box on the page"
    if task != "layout" and not markdown.strip():
        return "empty text"
    return None


# <<< kit/endpoint_checks.py

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

# >>> kit/tool.py
# The edges of every tool: numbers and files that have to make sense, and the exit code.


NO_SUCH_PLACE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def whole_number(text):
    """An argparse type: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def above_zero(text):
    """An argparse type: a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def share_of_one(text):
    """An argparse type: a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return number


def read_utf8(path):
    """The text of a file. Raises Stop where it is in another encoding, and OSError."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Stop(
            f"{path} is not UTF-8 at byte {error.start}: {error.reason}. Convert it (iconv -t utf-8)."
        ) from error


def parse_json(text):
    """`json.loads(text)`. Raises ValueError also where lists or objects stand in each other too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, kind=dict):
    """What a JSON file holds. Raises Stop where it is damaged or holds something else than `kind`, and OSError."""
    try:
        value = parse_json(read_utf8(path))
    except ValueError as error:
        raise Stop(f"{path} is no JSON: {error}. Repair or remove it.") from error
    if not isinstance(value, kind):
        raise Stop(f"{path} holds {type(value).__name__} where {kind.__name__} was expected. Name another file.")
    return value


def exit_code_of(work):
    """The exit code of a tool: what `work()` returns, or the code of what ended it, told in one sentence.

    2 where a file or folder that was named is not there, not of that kind, or closed to us. 1 for what passes: Ctrl-C,
    a disk that is full, a Hub that does not answer.
    """
    try:
        return work()
    except Stop as problem:
        code, told = problem.code, problem
    except NO_SUCH_PLACE as problem:
        code, told = (2, f"{problem.filename}: {problem.strerror}. Name another.") if problem.filename else (1, problem)
    except KeyboardInterrupt:
        code, told = 1, "the same command starts again."
    except Exception as problem:
        if not (isinstance(problem, OSError) or is_passing(problem)):
            raise
        code, told = 1, f"{first_line(problem)}. The same command starts again."
    say(f"{'Error' if code == 2 else 'Stopped'}: {told}")
    return code


# <<< kit/tool.py

# >>> kit/endpoint_client.py
# One chat completion of an OpenAI-compatible endpoint, traced: what came, when, and how it failed.


MOST_BYTES = 32 << 20  # of one answer; no page has that much text, so whoever sends it will not stop
NO_MEMORY = ("out of memory", "outofmemory", "cuda error: out", "oom")


def endpoint_url(base, path):
    """The URL of `path` ("/models") below a base URL, whose query stays; a base without a path gets /v1."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=(parts.path.rstrip("/") or "/v1") + path, fragment=""))


def open_client(key=None, connect_timeout=10.0):
    """An httpx2.AsyncClient that follows no redirects and retries nothing. The deadline is the caller's."""
    import httpx2

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(headers=headers, limits=limits, timeout=httpx2.Timeout(None, connect=connect_timeout))


def blank_trace(body):
    """The trace of a call that has not begun; `outcome` stays None until it ended by itself."""
    return {
        "outcome": None, "error": None, "http_status": None, "streamed": False, "finish_reason": None,
        "reported_model": None, "usage": None, "max_tokens": body.get("max_tokens"), "wall_s": None, "ttft_s": None,
        "tokens_per_s": None, "text": "", "logprobs": None, "unread": "",
    }  # fmt: skip


async def ask_endpoint(client, url, body, trace, stall=60.0, stream=True):
    """Sends `body` to the chat completions below `url` and fills `trace` while the answer comes.

    Never raises for what the endpoint does; a cancellation (the caller's deadline) leaves the trace as far as it came.
    Outcomes: "ok", "http_4xx" and the like, "connect_error", "connection_lost", "bad_response", "timeout_stall", "oom".
    `ttft_s` is from the request to the first text, `tokens_per_s` the tokens after it over the time they took.
    """
    import httpx2

    clock = {"start": time.monotonic()}
    words = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    try:
        async with client.stream("POST", endpoint_url(url, "/chat/completions"), json=body | words) as reply:
            trace["http_status"] = reply.status_code
            if reply.status_code != 200:
                fail(trace, f"http_{reply.status_code // 100}xx", message_in(await whole_body(reply, stall)))
            elif "event-stream" in reply.headers.get("content-type", ""):
                trace["streamed"] = True
                await read_events(reply, trace, clock, stall)
            else:
                read_completion(await whole_body(reply, stall), trace)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as problem:
        fail(trace, "connect_error", f"nobody answers ({said(problem)})")
    except asyncio.TimeoutError:
        fail(trace, "timeout_stall", f"nothing came for {stall:g} s in the middle of the answer")
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as problem:
        fail(trace, "connection_lost", f"the connection broke ({said(problem)})")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        fail(trace, "bad_response", f"the answer is no chat completion ({said(problem)})")
    finally:
        end = time.monotonic()
        trace["wall_s"] = round(end - clock["start"], 4)
        if "first" in clock:
            trace["ttft_s"] = round(clock["first"] - clock["start"], 4)
        tokens = (trace["usage"] or {}).get("completion_tokens")
        if isinstance(tokens, int) and tokens > 1 and clock.get("last", 0) > clock.get("first", 0):
            trace["tokens_per_s"] = round((tokens - 1) / (clock["last"] - clock["first"]), 2)


async def within(seconds, awaitable):
    """The result, or asyncio.TimeoutError after so many seconds, whatever is awaited does then.

    Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes together with a result, and an endless
    stream has a result at any time.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=5)
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def fail(trace, outcome, error):
    if any(word in error.lower() for word in NO_MEMORY):
        outcome = "oom"
    trace["outcome"], trace["error"] = outcome, error


def said(problem):
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300].rstrip(": ")


async def pieces(reply, stall):
    """The bytes of a reply as they come. Raises asyncio.TimeoutError when `stall` seconds bring none."""
    incoming, total = reply.aiter_bytes().__aiter__(), 0
    while True:
        try:
            piece = await within(stall, incoming.__anext__())
        except StopAsyncIteration:
            return
        total += len(piece)
        if total > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB, without an end")
        yield piece


async def whole_body(reply, stall):
    return b"".join([piece async for piece in pieces(reply, stall)])


def message_in(data):
    """The message in an error body, else its beginning."""
    text = data.decode(errors="replace")
    try:
        problem = parse_json(text)
        problem = problem.get("error", problem)
        return str(problem.get("message", problem) if isinstance(problem, dict) else problem)[:500]
    except (ValueError, AttributeError):
        return text[:500]


def read_completion(data, trace):
    """Fills the trace from an answer in one piece. Without a stream there is no first token to time."""
    trace["unread"] = data[:2000].decode(errors="replace")
    reply = parse_json(data)
    choice = reply["choices"][0]
    trace["text"] = choice["message"]["content"] or ""
    trace["logprobs"] = logprobs_in(choice)
    ended(trace, reply, choice["finish_reason"])


async def read_events(reply, trace, clock, stall):
    """Fills the trace from server-sent events."""
    rest, finish, done = b"", None, False
    async for piece in pieces(reply, stall):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            trace["unread"] = line[:2000].decode(errors="replace")
            data = line.strip().removeprefix(b"data:").strip()
            if data == b"[DONE]":
                done = True
            if done or not data or not line.startswith(b"data:"):
                continue
            event = parse_json(data)
            if event.get("error"):
                raise ValueError(message_in(data))
            trace["usage"] = event.get("usage") or trace["usage"]
            trace["reported_model"] = event.get("model") or trace["reported_model"]
            for choice in event.get("choices") or []:
                text = (choice.get("delta") or {}).get("content") or ""
                if text:
                    clock["last"] = time.monotonic()
                    clock.setdefault("first", clock["last"])
                    trace["text"] += text
                if values := logprobs_in(choice):
                    trace["logprobs"] = (trace["logprobs"] or []) + values
                finish = choice.get("finish_reason") or finish
    if rest.strip() not in (b"", b"data: [DONE]", b"data:[DONE]"):
        trace["unread"] = rest[:2000].decode(errors="replace")
        raise ValueError("it ends in the middle of an event")
    if not finish:
        fail(trace, "connection_lost", "the stream ended before the answer did: no finish_reason came")
        return
    ended(trace, {"usage": trace["usage"], "model": trace["reported_model"]}, finish)


def ended(trace, reply, finish):
    trace["usage"] = reply.get("usage") if isinstance(reply.get("usage"), dict) else None
    trace["reported_model"], trace["finish_reason"] = reply.get("model"), finish
    trace["outcome"], trace["unread"] = "ok", ""


def logprobs_in(choice):
    tokens = (choice.get("logprobs") or {}).get("content")
    return [token["logprob"] for token in tokens] if tokens else None


async def served_models(client, url, seconds=30.0):
    """({name: entry} that GET /models lists, None) or (None, why not)."""
    import httpx2

    try:
        reply = await within(seconds, client.get(endpoint_url(url, "/models")))
        if reply.status_code != 200:
            return None, f"GET /models answers {reply.status_code}: {message_in(reply.content)[:200]}"
        return {entry["id"]: entry for entry in reply.json()["data"]}, None
    except asyncio.TimeoutError:
        return None, f"GET /models did not answer within {seconds:g} s"
    except (httpx2.HTTPError, OSError) as problem:
        return None, f"nobody answers GET /models ({said(problem)})"
    except (ValueError, KeyError, TypeError) as problem:
        return None, f"GET /models answers something else than a list of models ({said(problem)})"


async def engine_version(client, url):
    """What vLLM says at /version beside /v1, or None."""
    parts = urlsplit(url)
    root = urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/v1") + "/version", fragment=""))
    try:
        return str((await within(5, client.get(root))).json()["version"])
    except Exception:  # a courtesy of some servers
        return None


# <<< kit/endpoint_client.py

# >>> kit/endpoint_machine.py
# What this machine has: GPUs, memory, disk, processors; and whether a GPU is idle.


BUSY_PERCENT = 5  # of GPU use with no request running
MIB = 1 << 20


def gpu_table(*fields):
    """One dict of strings per NVIDIA GPU that may be used here; [] where nvidia-smi is missing or fails."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    try:
        shown = subprocess.run(
            query + ([f"--id={visible}"] if visible else []), capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in shown.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def gpu_cards():
    """[{"index", "name", "total", "free" (bytes), "capability" (a pair) or None, "driver"}]."""
    cards = []
    for row in gpu_table("index", "name", "memory.total", "memory.free", "compute_cap", "driver_version"):
        capability = re.fullmatch(r"(\d+)\.(\d+)", row["compute_cap"])
        total, free = (int(row[key]) * MIB if row[key].isdecimal() else 0 for key in ("memory.total", "memory.free"))
        cards.append(
            {
                "index": row["index"], "name": row["name"], "total": total, "free": free,
                "capability": (int(capability[1]), int(capability[2])) if capability else None,
                "driver": row["driver_version"],
            }
        )  # fmt: skip
    return cards


def gpu_idleness(samples=3, pause=0.5):
    """{"idle": bool, or None where no GPU shows its use, "use_percent": most that was seen, "reason"}."""
    most = None
    for sample in range(samples):
        used = [
            int(row["utilization.gpu"]) for row in gpu_table("utilization.gpu") if row["utilization.gpu"].isdecimal()
        ]
        if not used:
            return {"idle": None, "use_percent": None, "reason": "no NVIDIA GPU shows its use here"}
        most = max([most or 0, *used])
        time.sleep(pause if sample < samples - 1 else 0)
    busy = most >= BUSY_PERCENT
    reason = f"the GPU was {most} % busy before any request" if busy else None
    return {"idle": not busy, "use_percent": most, "reason": reason}


def total_memory():
    """Bytes of memory of this machine, or None."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def free_disk(path):
    """(free bytes, the folder asked): of the file system on which `path` is or would be made."""
    folder = next(parent for parent in (Path(path).absolute(), *Path(path).absolute().parents) if parent.exists())
    return shutil.disk_usage(folder).free, str(folder)


def hardware():
    """{"os", "machine", "python", "cpus", "memory_gib", "gpus"} for a report; no host name, no serial numbers."""
    memory = total_memory()
    gpus = [
        {
            "name": card["name"],
            "vram_mib": card["total"] // MIB,
            "compute_capability": card["capability"] and ".".join(map(str, card["capability"])),
            "driver": card["driver"],
        }
        for card in gpu_cards()
    ]
    return {
        "os": f"{platform.system()} {platform.release()}", "machine": platform.machine(),
        "python": sys.version.split()[0], "cpus": os.cpu_count(),
        "memory_gib": memory and round(memory / (1 << 30), 1), "gpus": gpus,
    }  # fmt: skip


# <<< kit/endpoint_machine.py

# >>> kit/endpoint_page.py
# The report page of an endpoint benchmark: one HTML file with its charts, that opens without a network.


OUTCOME_COLORS = {
    "ok": "#2e7d4f", "invalid_output": "#c0392b", "image_ignored": "#8e44ad", "loop": "#d35400", "truncated": "#e0a100",
    "timeout_total": "#34495e", "timeout_stall": "#5d6d7e", "not_run": "#bdc3c7", "cancelled": "#95a5a6",
}  # fmt: skip
OTHER_COLOR = "#7f2a3d"  # http, connection and other failures
LINE_COLORS = ("#1f6fb2", "#c0562f", "#2e7d4f", "#8e44ad", "#b58900", "#34495e", "#d33682", "#16877a", "#7f2a3d")
CHART_WIDTH, BAR_HEIGHT, LABEL_WIDTH = 720, 26, 190  # pixels
PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --soft: #59636e; --line: #d5dae0; --back: #fff; --card: #f6f8fa;
  --warn: #8a4b00; --warnback: #fff4e0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a0a9b4; --line: #3a424c; --back: #14181d;
  --card: #1d232a; --warn: #ffcf8a; --warnback: #3a2a10 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1100px; padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0 0 .25rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem } p { margin: .3rem 0 } .soft { color: var(--soft) }
.warn { background: var(--warnback); color: var(--warn); padding: .5rem .8rem; border-radius: 6px; margin: .6rem 0 }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { overflow-wrap: normal }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 600 } .n { text-align: right; white-space: nowrap }
td.error { min-width: 14rem; max-width: 34rem; overflow-wrap: anywhere } code { overflow-wrap: anywhere }
svg { display: block; width: 100%; max-width: 720px; height: auto; background: var(--card); border-radius: 8px }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .soft { fill: var(--soft) }
svg .axis { stroke: var(--line) }
.key { display: inline-flex; align-items: center; gap: .35rem; margin: 0 .9rem .2rem 0;
  max-width: 100% }
.key i { flex: none; width: .8rem; height: .8rem; border-radius: 2px }
details { margin: .6rem 0 } summary { cursor: pointer }
"""


def report_page(reports):
    """The HTML of one or more reports (dicts as in REPORT_SCHEMA), compared where there are several."""
    told = [f"<h1>OCR endpoints, {page_text(reports[0]['task'])}</h1>"]
    told += [f'<p class="warn" role="note">{page_text(reason)}</p>' for reason in differences(reports)]
    if len(reports) > 1:
        told.append("<h2>All runs</h2>" + summary_table(reports) + charts(reports))
    for report in reports:
        told.append(report_section(report, alone=len(reports) == 1))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>OCR endpoints, {page_text(reports[0]['task'])}</title><style>{PAGE_STYLE}</style></head><body>\n"
        + "\n".join(told)
        + "\n</body></html>\n"
    )


def page_text(value):
    """A value as HTML text; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return html.escape(str(value))


def differences(reports):
    """Sentences about what makes the numbers of several reports no comparison."""
    first, found = reports[0], []
    for report in reports[1:]:
        pairs = {
            "the task": (first["task"], report["task"]),
            "the pages": (first["input"]["pages_sha256"], report["input"]["pages_sha256"]),
            "parameters": (first["params"], report["params"]),
            "the machine": (first["host"], report["host"]),
        }
        unlike = [name for name, (one, other) in pairs.items() if one != other]
        if unlike:
            found.append(
                f"{first['run_id']} and {report['run_id']} are no comparison: they differ in {', '.join(unlike)}."
            )
    return found


def report_section(report, alone):
    params, gpu = report["params"], report["gpu"] or {}
    told = [f"<h2>{page_text(report['run_id'])}</h2>"]
    told.append(
        f'<p class="soft">{page_text(report["started_at"])}, {report["input"]["n"]} pages of '
        f"<code>{page_text(report['input']['source'])}</code>, {params['repeat']} times each, "
        f"at most {page_text(params['timeout_s'])} s for a page</p>"
    )
    if not report["complete"]:
        told.append('<p class="warn" role="note">This run was stopped before its end.</p>')
    told += [
        f'<p class="warn" role="note">Not comparable: {page_text(reason)}.</p>' for reason in report["invalidations"]
    ]
    if gpu.get("idle") is None:
        why = gpu.get("reason") or "no endpoint is on this machine"
        told.append(f'<p class="soft">Whether a GPU was idle is not known: {page_text(why)}.</p>')
    if alone:
        told.append(summary_table([report]) + charts([report]))
    told.append(pixel_table(report) + settings_table(report) + failures(report) + every_run(report))
    return "\n".join(told)


def summary_table(reports):
    """One row per target and level of concurrency."""
    head = ("target", "model", "provider", "at a time", "ok", "median s", "p90 s", "first token s", "tokens/s",
            "pages/s", "CER", "boxes F1")  # fmt: skip
    rows, reasons = [], []
    for report in reports:
        for target in report["targets"]:
            quality, recipe = target["quality"] or {}, target["recipe"] or {}
            start = [
                title_of(report, target, reports),
                target["served_model"] or recipe.get("model"),
                target["provider"],
            ]
            end = [quality.get("cer_mean"), quality.get("f1_mean")]
            for level in target["levels"]:
                ranks = (("wall_s", "p50"), ("wall_s", "p90"), ("ttft_s", "p50"), ("tokens_per_s", "p50"))
                times = [(level[key] or {}).get(rank) for key, rank in ranks]
                done = f"{level['ok']} of {level['attempted']}"
                rows.append([*start, level["concurrency"], done, *times, level["pages_per_s"], *end])
            if not target["levels"]:
                rows.append([*start, None, target["status"].replace("_", " "), *[None] * 5, *end])
            if target["error"]:
                reasons.append(f"<p>{page_text(start[0])}: {page_text(target['error'])}</p>")
    note = (
        '<p class="soft">ok: the answer keeps the protocol of its model. '
        "CER and F1 are against confirmed pages and are no part of it.</p>"
    )
    return table_html(head, rows, numbers=range(3, 12)) + note + "".join(reasons)


def title_of(report, target, reports):
    return target["label"] + (f" ({report['run_id']})" if len(reports) > 1 else "")


def table_html(head, rows, numbers=()):
    cells = "".join(
        f'<th scope="col"{" class=n" if place in numbers else ""}>{page_text(word)}</th>'
        for place, word in enumerate(head)
    )
    lines = []
    for row in rows:
        kinds = ("n" if place in numbers else "error" if head[place] == "error" else "" for place in range(len(row)))
        lines.append(
            "<tr>"
            + "".join(f'<td class="{kind}">{page_text(v)}</td>' for kind, v in zip(kinds, row, strict=True))
            + "</tr>"
        )
    inside = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{inside}</table></div>'


def charts(reports):
    targets = [(title_of(report, target, reports), target) for report in reports for target in report["targets"]]
    measured = [(title, target) for title, target in targets if target["levels"]]
    if not measured:
        return ""
    told = "<h3>Outcomes</h3>" + outcome_chart(measured)
    told += "<h3>Seconds per page, median and 90th percentile, at the lowest level</h3>" + time_chart(measured)
    if any(len(target["levels"]) > 1 for _, target in measured):
        told += "<h3>Pages per second by pages at a time</h3>" + level_chart(measured)
    return told


def svg(height, label, body):
    return f'<svg viewBox="0 0 {CHART_WIDTH} {height}" role="img" aria-label="{html.escape(label)}">{body}</svg>'


def bar_label(place, title):
    short = title if len(title) <= 28 else title[:27] + "…"
    y = 10 + place * (BAR_HEIGHT + 8) + BAR_HEIGHT / 2 + 4
    return f'<text x="10" y="{y}">{page_text(short)}<title>{page_text(title)}</title></text>'


def outcome_chart(measured):
    """One bar per target, its parts the share of each outcome over all levels."""
    parts, seen, told = [], {}, []
    for place, (title, target) in enumerate(measured):
        counts = {}
        for level in target["levels"]:
            for name, count in level["outcomes"].items():
                counts[name] = counts.get(name, 0) + count
        x, y, total = LABEL_WIDTH, 10 + place * (BAR_HEIGHT + 8), sum(counts.values())
        parts.append(bar_label(place, title))
        for name in sorted(counts, key=lambda name: (name != "ok", name)):
            color, width = (
                OUTCOME_COLORS.get(name, OTHER_COLOR),
                (CHART_WIDTH - LABEL_WIDTH - 20) * counts[name] / total,
            )
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{color}">'
                f"<title>{counts[name]} of {total} {page_text(name)}</title></rect>"
            )
            x, seen[name] = x + width, color
        told.append(f"{title}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    key = "".join(
        f'<span class="key"><i style="background:{color}"></i>{page_text(name)}</span>' for name, color in seen.items()
    )
    return svg(20 + len(measured) * (BAR_HEIGHT + 8), "Outcomes. " + "; ".join(told), "".join(parts)) + f"<p>{key}</p>"


def time_chart(measured):
    spreads = [
        (title, min(target["levels"], key=lambda level: level["concurrency"])["wall_s"]) for title, target in measured
    ]
    most = max((times["p90"] for _, times in spreads if times), default=0) or 1
    parts, told, room = [], [], CHART_WIDTH - LABEL_WIDTH - 200
    for place, (title, times) in enumerate(spreads):
        y = 10 + place * (BAR_HEIGHT + 8)
        parts.append(bar_label(place, title))
        words = f"{page_text(times['p50'])} s, 90 %: {page_text(times['p90'])} s" if times else "no page was ok"
        wide, middle = (room * times[rank] / most if times else 0 for rank in ("p90", "p50"))
        for width, opacity in ((wide, 0.35), (middle, 1)):
            parts.append(
                f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" '
                f'fill="{LINE_COLORS[0]}" fill-opacity="{opacity}"></rect>'
            )
        parts.append(f'<text class="soft" x="{LABEL_WIDTH + wide + 8:.1f}" y="{y + BAR_HEIGHT / 2 + 4}">{words}</text>')
        told.append(f"{title}: {words}")
    return svg(20 + len(spreads) * (BAR_HEIGHT + 8), "Seconds per page. " + "; ".join(told), "".join(parts))


def level_chart(measured):
    """Lines of pages per second over the level of concurrency, levels in even steps."""
    levels = sorted({level["concurrency"] for _, target in measured for level in target["levels"]})
    most = max((level["pages_per_s"] or 0 for _, target in measured for level in target["levels"]), default=0) or 1
    left, right, top, bottom = 60, CHART_WIDTH - 20, 20, 240
    across = {
        number: left + 30 + (right - left - 60) * place / max(1, len(levels) - 1) for place, number in enumerate(levels)
    }
    parts, key = [], []
    for part in range(5):
        y = bottom - (bottom - top) * part / 4
        parts.append(f'<line class="axis" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"></line>')
        parts.append(
            f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{most * part / 4:.2g}</text>'
        )
    for number, x in across.items():
        parts.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{number}</text>')
    for place, (title, target) in enumerate(measured):
        color = LINE_COLORS[place % len(LINE_COLORS)]
        points = [(across[level["concurrency"]], bottom - (bottom - top) * (level["pages_per_s"] or 0) / most, level)
                  for level in sorted(target["levels"], key=lambda level: level["concurrency"])]  # fmt: skip
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2.5"></polyline>')
        for x, y, level in points:
            words = f"{title}: {page_text(level['pages_per_s'])} pages/s, {level['concurrency']} at a time"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"><title>{page_text(words)}</title></circle>'
            )
        key.append(f'<span class="key"><i style="background:{color}"></i>{page_text(title)}</span>')
    return svg(bottom + 40, "Pages per second by pages at a time", "".join(parts)) + f"<p>{''.join(key)}</p>"


def pixel_table(report):
    """Pixels that each target's recipe sent, where they differ: part of what is compared, and no fault."""
    if not report["pixels"]["differ"]:
        return ""
    labels = [target["label"] for target in report["targets"] if target["runs"]]
    rows = [[page, *(f"{seen[label]:,}" if label in seen else None for label in labels)]
            for page, seen in report["pixels"]["pages"].items()]  # fmt: skip
    return (
        "<h3>Pixels sent</h3><p>Each recipe prepares the page as its model needs it, so the targets did not see "
        "the same number of pixels.</p>" + table_html(["page", *labels], rows, numbers=range(1, len(labels) + 1))
    )


def settings_table(report):
    rows = []
    for target in report["targets"]:
        for name, value in ((target["settings"] or {}).get("overrides") or {}).items():
            rows.append([target["label"], name, target["settings"]["recommended"].get(name), value])
    if not rows:
        return ""
    return "<h3>Settings other than the recipe's</h3>" + table_html(["target", "setting", "recipe", "here"], rows)


def failures(report):
    runs = [(target["label"], run) for target in report["targets"] for run in target["runs"] if run["outcome"] != "ok"]
    if not runs:
        return ""
    rows = [[label, run["page"], run["iteration"], run["concurrency"], run["outcome"], run["error"], run["output_file"]]
            for label, run in runs]  # fmt: skip
    head = ["target", "page", "round", "at a time", "outcome", "error", "raw output"]
    return f"<h3>Failures ({len(runs)})</h3>" + table_html(head, rows, numbers=(2, 3))


def every_run(report):
    head = ["target", "page", "round", "at a time", "outcome", "s", "first token s", "tokens/s", "prompt", "tokens",
            "characters", "blocks", "CER", "flags"]  # fmt: skip
    rows = []
    for target in report["targets"]:
        for run in target["runs"]:
            rows.append(
                [
                    target["label"], run["page"], run["iteration"], run["concurrency"],
                    run["outcome"] + (" (warm-up)" if run["warmup"] else ""), run["wall_s"], run["ttft_s"],
                    run["tokens_per_s"], run["prompt_tokens"], run["completion_tokens"], run["chars"], run["blocks"],
                    (run["quality"] or {}).get("cer"), ", ".join(run["flags"]),
                ]
            )  # fmt: skip
    return (
        f"<details><summary>All {len(rows)} requests</summary>{table_html(head, rows, numbers=range(2, 13))}</details>"
    )


# <<< kit/endpoint_page.py

# >>> kit/box_match.py
# Which boxes are the same: intersection over union, and the best pairs.


def overlap_table(true, read):
    """IoU of every true with every read box, shape (true, read); boxes are [x0, y0, x1, y1] in one space."""
    import numpy as np

    a, b = np.asarray(true, float).reshape(-1, 1, 4), np.asarray(read, float).reshape(1, -1, 4)
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    common = sides[..., 0] * sides[..., 1]
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (a, b)]
    return common / np.maximum(areas[0] + areas[1] - common, 1e-9), common


def match_boxes(true, read, least=0.5, labels=None):
    """IoUs of the pairs of boxes with the largest sum of IoU among pairs of at least `least`.

    `labels` are two lists of labels where boxes match only their own kind. Taking pairs in order finds fewer.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    if not len(true) or not len(read):
        return []
    overlaps = overlap_table(true, read)[0]
    overlaps[overlaps < least] = 0
    if labels:
        overlaps[np.asarray(labels[0])[:, None] != np.asarray(labels[1])[None, :]] = 0
    return [float(overlaps[pair]) for pair in zip(*linear_sum_assignment(-overlaps), strict=True) if overlaps[pair]]


# <<< kit/box_match.py

# >>> kit/metrics_text.py
# How far a read text is from the true one: characters that are compared, errors by kind, words free of order.


QUOTES_AND_DASHES = {
    **dict.fromkeys("‘’‚‛′´`‹›", "'"), **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"), "…": "...",
}  # fmt: skip
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
CUT_RATIO, CUT_EXTRA = 20, 10_000  # what is longer than ratio * truth + extra is cut: loops are bad enough
# Scripts written without spaces between words: error rates of words say nothing about them.
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"


def normal_text(text, profile="standard"):
    """Text as it is compared; the same for both sides. Markup is a matter of `to_plain_text`, before this.

    "diplomatic": NFC, kinds of white space unified, invisible characters dropped. "standard": also every run of white
    space one space, words that a line end breaks joined, quotation marks, dashes and ellipses as ASCII. "lenient":
    also NFKC (long s, ligatures, fractions), e above as umlaut, no case, no punctuation. Raises ValueError for another.
    """
    if profile not in ("diplomatic", "standard", "lenient"):
        raise ValueError(f"profile is {profile!r}; choose diplomatic, standard or lenient")
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = re.sub(r"[^\S\n]", " ", text.translate(INVISIBLE))
    if profile == "diplomatic":
        return text.strip()
    text = re.sub(r"(?<=[^\W\d_])[-\u2010\u2e17=¬] *\n+ *(?=[^\W\d_])", joined_hyphen(text), text)
    text = "".join(QUOTES_AND_DASHES.get(letter, letter) for letter in text)
    if profile == "lenient":
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text.replace("\u0364", "\u0308")).casefold())
        text = "".join(" " if unicodedata.category(letter)[0] in "PS" else letter for letter in text)
    return " ".join(text.split())


def joined_hyphen(text):
    """What replaces a hyphen at a line end: nothing before a small letter, else the hyphen stays, without the break."""
    return lambda found: "" if text[found.end()].islower() else "-"


def graphemes(text):
    """The characters that a reader counts: a str where each is one code point, else a list of clusters."""
    import regex

    clusters = regex.findall(r"\X", text)
    return text if len(clusters) == len(text) else clusters


def words_of(text):
    """Words by Unicode's word boundaries (UAX 29), without those of punctuation, symbols and marks only.

    The same words as dinglehopper's.
    """
    import regex

    return [
        word
        for word in regex.split(r"(?V1w)\b", unicodedata.normalize("NFC", text))
        if any(unicodedata.category(letter) not in ("Cc", "Cf") and unicodedata.category(letter)[0] not in "MPSZ"
               for letter in word)
    ]  # fmt: skip


def is_unspaced(text):
    """True if most letters of the text belong to scripts without spaces between words."""
    import regex

    return 2 * len(regex.findall(UNSPACED, text)) > len(regex.findall(r"\p{L}", text)) > 0


def edit_counts(true, read):
    """{"errors", "substitutions", "insertions", "deletions", "length"} of two sequences of hashable items.

    `length` is that of the truth. The kinds are those of one shortest alignment, rapidfuzz's, which jiwer counts too.
    """
    from rapidfuzz.distance import Levenshtein

    kinds = Counter(edit.tag for edit in Levenshtein.editops(true, read))
    return {
        "errors": kinds.total(),
        "substitutions": kinds["replace"],
        "insertions": kinds["insert"],
        "deletions": kinds["delete"],
        "length": len(true),
    }


def error_rate(counts):
    """Errors by length; may exceed 1. Of an empty truth: 0 for nothing read, 1 for anything (jiwer: the count)."""
    return counts["errors"] / counts["length"] if counts["length"] else float(counts["errors"] > 0)


def confusions(true, read, most=50):
    """Counter of (true, read) pairs of characters, "" for an insertion or a deletion."""
    from rapidfuzz.distance import Levenshtein

    pairs = Counter()
    for tag, i, j in Levenshtein.editops(true, read).as_list():
        pairs["" if tag == "insert" else true[i], "" if tag == "delete" else read[j]] += 1
    return Counter(dict(pairs.most_common(most)))


def bag_scores(true, read):
    """(precision, recall, F1) of two multisets of words: what was read, in whatever order. Both empty: 1."""
    common, true_count, read_count = (Counter(true) & Counter(read)).total(), len(true), len(read)
    if not true_count or not read_count:
        return (float(true_count == read_count),) * 3
    precision, recall = common / read_count, common / true_count
    return precision, recall, 2 * common / (true_count + read_count)


def cut_loops(true, read):
    """(read, whether it was cut): no longer than CUT_RATIO times the truth and CUT_EXTRA characters."""
    longest = CUT_RATIO * len(true) + CUT_EXTRA
    return read[:longest], len(read) > longest


def compared_characters(true, read, profile="standard"):
    """(true, read, whether `read` was cut): the characters that CER counts, of two texts without markup."""
    true, read = normal_text(true, profile), normal_text(read, profile)
    read, cut = cut_loops(true, read)
    return graphemes(true), graphemes(read), cut


# <<< kit/metrics_text.py

# >>> kit/blocks.py
# The blocks document: one form for every model's boxes, so that one exporter serves all.


BLOCK_LABELS = (
    "title", "header", "footer", "page_number", "heading", "text", "list", "caption", "footnote", "table", "formula",
    "picture", "code", "form", "toc", "reference", "seal", "other",
)  # fmt: skip


def blocks_document(page, blocks, size=None):
    """Blocks document of one page: pixels of the original, x right, y down, clipped to the page.

    `blocks` are dicts with `bbox` [x0, y0, x1, y1] and any of `label`, `content`, `format` ("html", "latex",
    "markdown", "text"), `confidence`, `raw_label`; their order is the reading order. `size` is the
    (width, height) of the space the boxes are in: (1000, 1000) for normalised ones, `page.image.size` for pixels of
    what the model saw (the default). A box that is no four numbers, or has no area on the page, becomes null: its
    content stays. Raises ValueError for a label outside BLOCK_LABELS.
    """
    width, height = size or page.image.size
    document = {"schema": "ocr-blocks/1", "width": page.width, "height": page.height, "blocks": []}
    if page.dpi:
        document["dpi"] = page.dpi
    for order, block in enumerate(blocks):
        label = block.get("label", "text")
        if label not in BLOCK_LABELS:
            raise ValueError(f"unknown block label {label!r}; choose one of {', '.join(BLOCK_LABELS)}")
        document["blocks"].append(
            {
                "order": order,
                "label": label,
                "bbox": box_on_page(block.get("bbox"), page, width, height),
                "content": block.get("content", ""),
                "format": block.get("format", "text"),
                "confidence": block.get("confidence"),
                "raw_label": block.get("raw_label", label),
            }
        )
    return document


def box_on_page(box, page, width, height):
    """Box in a `width` x `height` space as [x0, y0, x1, y1] whole pixels of the original page, or None."""
    try:
        x0, y0, x1, y1 = (float(value) for value in box)
        x0, x1 = sorted((x0 * page.width / width, x1 * page.width / width))
        y0, y1 = sorted((y0 * page.height / height, y1 * page.height / height))
        x0, x1 = (min(max(round(x), 0), page.width) for x in (x0, x1))
        y0, y1 = (min(max(round(y), 0), page.height) for y in (y0, y1))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return [x0, y0, x1, y1] if x0 < x1 and y0 < y1 else None


# <<< kit/blocks.py

# >>> kit/grounding.py
# Text with boxes as DeepSeek-OCR and Unlimited-OCR write it: readers of both dialects, their Markdown and blocks.


# An open vocabulary: what is not here becomes "other" and keeps its word in `raw_label`.
GROUNDING_LABELS = {
    "title": "title", "doc_title": "title", "sub_title": "heading", "paragraph_title": "heading",
    "section_title": "heading", "text": "text", "paragraph": "text", "aside_text": "text", "list": "list",
    "table": "table", "image": "picture", "figure": "picture", "picture": "picture", "chart": "picture",
    "caption": "caption", "image_caption": "caption", "figure_caption": "caption", "table_caption": "caption",
    "chart_caption": "caption", "figure_title": "caption", "table_title": "caption", "image_title": "caption",
    "equation": "formula", "formula": "formula", "display_formula": "formula", "code": "code", "algorithm": "code",
    "code_block": "code", "header": "header", "page_header": "header", "footer": "footer", "page_footer": "footer",
    "page_number": "page_number", "footnote": "footnote", "page_footnote": "footnote", "table_footnote": "footnote",
    "image_footnote": "footnote", "toc": "toc", "table_of_contents": "toc", "reference": "reference",
    "ref_text": "reference", "seal": "seal", "form": "form",
}  # fmt: skip
BOX = re.compile(r"\[\s*(-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+(?:\.\d+)?){3})\s*\]")
END_TOKEN = "<｜end▁of▁sentence｜>"


def ref_spans(text):
    """Spans of DeepSeek-OCR's dialect, `<|ref|>label<|/ref|><|det|>[[x0, y0, x1, y1], ...]<|/det|>text`.

    A span is (label, boxes, text): boxes of 4 numbers, maybe none; label None for text outside of spans. A span that
    is broken or cut off keeps what is whole.
    """
    before, *pieces = text.replace(END_TOKEN, "").split("<|ref|>")
    spans = [(None, [], before)]
    for piece in pieces:
        label, closed, rest = piece.partition("<|/ref|>")
        if not closed:
            spans.append((None, [], "" if piece.strip().isidentifier() else piece))
            continue
        det = re.match(r"\s*<\|det\|>(?:(.*?)<\|/det\|>|[\s\d.,\[\]-]*)", rest, re.DOTALL)
        inside = det[0] if det else ""
        spans.append((label.strip(), boxes_in(inside), rest[len(inside) :]))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def det_spans(text):
    """Spans, as of `ref_spans`, of Unlimited-OCR's dialect, `<|det|>label [x0, y0, x1, y1]<|/det|>text`."""
    before, *pieces = re.sub(r"<\|/?ref\|>", "", text.replace(END_TOKEN, "")).split("<|det|>")
    spans = [(None, [], before)]
    for piece in pieces:
        inside, closed, after = piece.partition("<|/det|>")
        if not closed:
            inside = re.match(r"[\w ]*\[[\d\s.,-]*\]?|", piece)[0]
            after = "" if piece.strip().isidentifier() else piece[len(inside) :]
        spans.append((inside.partition("[")[0].strip() or None, boxes_in(inside), after))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def boxes_in(text):
    return [[float(number) for number in found.split(",")] for found in BOX.findall(text)]


def spans_markdown(spans):
    """The text of all spans in their order; pictures have none, they are in the blocks."""
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(text for _, _, text in spans if text))


def spans_blocks(spans):
    """Blocks for `blocks_document` with the size (999, 999): one per box. Of several boxes the first has the text."""
    blocks = []
    for label, boxes, text in spans:
        kind = GROUNDING_LABELS.get((label or "text").lower().replace(" ", "_"), "other")
        form = "html" if text.startswith("<table") else "latex" if kind == "formula" else "markdown"
        for place, box in enumerate(boxes or ([None] if text else [])):
            blocks.append(
                {
                    "bbox": box,
                    "label": kind,
                    "raw_label": label or "text",
                    "format": form,
                    "content": "" if place else text,
                }
            )
    return blocks


def ref_parsed(text, page, asked, said_in_tags=False):
    r"""Parsed of an answer in DeepSeek-OCR's dialect, as upstream's scripts make it: tags gone, `\coloneqq` and
    `\eqqcolon` as `:=` and `=:`; "unparsed" where boxes were `asked` for and none came.

    With `said_in_tags` the tagged words are the text itself, unless a text follows them; then they are a label.
    """
    if said_in_tags and text.rfind("<|/ref|>") < text.rfind("<|ref|>"):
        text += "<|/ref|>"  # cut off within the text
    spans = ref_spans(text.replace("\\coloneqq", ":=").replace("\\eqqcolon", "=:"))
    if said_in_tags:
        spans = [(label if said else "text", boxes, said or label) for label, boxes, said in spans]
    boxed = any(boxes for _, boxes, _ in spans)
    blocks = blocks_document(page, spans_blocks(spans), (999, 999)) if boxed else None
    return Parsed(spans_markdown(spans), blocks, flags=["unparsed"] if asked and spans and not boxed else [])


# <<< kit/grounding.py

# >>> kit/plain_text.py
# What a reader would see of an OCR answer: one text for judge and scorer, whatever markup a model writes.


PLAIN_HTML_BLOCKS = (
    "address article aside blockquote body br caption center col colgroup dd details div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section select "
    "summary table tbody td tfoot th thead title tr ul"
).split()
PLAIN_HTML_INLINE = (
    "a abbr b bdi bdo big button chem cite code del dfn em font i img input ins kbd label mark math meta link q "
    "ruby rp rt s samp small span strike strong sub sup svg time tt u var wbr"
).split()
# Tags of models: Nanonets (page_number, watermark, signature), page wrappers, answers of reasoning models.
PLAIN_MODEL_TAGS = ["answer", "image", "otsl", "page", "page_number", "signature", "watermark"]
PLAIN_DOCTAGS = (
    "chart checkbox_selected checkbox_unselected code doctag document_index footnote formula inline key "
    "key_value_region list_item ordered_list page_break page_footer page_header paragraph picture reference text "
    "title unordered_list value"
).split()
# A tag ends before the next "<", so that the search stays linear on hostile text; a tag cut off at the end counts.
PLAIN_BLOCK_TAG, PLAIN_INLINE_TAG, PLAIN_DOC_TAG = (
    re.compile(rf"</?(?:{'|'.join(names)})(?=[\s/>]|\Z)[^<>]*(?:>|\Z)", re.IGNORECASE)
    for names in (
        PLAIN_HTML_BLOCKS + PLAIN_MODEL_TAGS,
        PLAIN_HTML_INLINE,
        [*PLAIN_DOCTAGS, r"section_header_level_\d+"],
    )
)
PLAIN_UNSEEN = re.compile(
    r"<(script|style|template|think)(?=[\s>])[^<>]*>.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE
)
PLAIN_HTML_TABLE = re.compile(r"<table(?=[\s>])[^<>]*>.*?(?:</table\s*>|\Z)", re.DOTALL | re.IGNORECASE)
PLAIN_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
PLAIN_FRONT_MATTER = re.compile(r"\A\s*---\n(?:[\w-]+:[^\n]*\n)+---(?:\n|\Z)")
PLAIN_FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[\w+-]*[ \t]*$", re.MULTILINE)
PLAIN_RULE = re.compile(r"[-*_=](?:[ \t]*[-*_=]){2,}")
PLAIN_TABLE_LINE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?[ \t]*)?")
PLAIN_MATH = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:[^\\]|\\[^\[\]])+)\\\]|\\\(((?:[^\\]|\\[^()])+)\\\)|(?<![\\$\w])\$(?![\s$])([^$\n]{1,500}?)(?<![\s\\])\$(?![\d$])",
)
PLAIN_CELL = "\0"  # stands between two cells until the end: no printed bar is taken for it


def to_plain_text(text, cell=" | "):
    """Plain text of Markdown, HTML, OTSL, DocTags or grounded text: words in their order, no markup.

    Rows of tables become lines with `cell` between the cells. Removed are boxes and their labels, page wrappers, front
    matter, fences, pictures, comments, hidden HTML, and the marks of headings, lists, emphasis and formulas; LaTeX
    inside of formulas stays. Angle brackets that are no known tag (`<torn>`, `<illegible>`) stay. Blank lines are at
    most one in a row. Never raises on a str; cut and broken markup is read as far as it goes.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace(PLAIN_CELL, " ")
    text = re.sub(r"[^\S\n]+", " ", text)
    if "<|ref|>" in text:
        text = spans_markdown(ref_spans(text))
    elif "<|det|>" in text:
        text = spans_markdown(det_spans(text))
    text = PLAIN_UNSEEN.sub("\n", text)
    text = PLAIN_FENCE.sub("", PLAIN_FRONT_MATTER.sub("", text))
    text = drop_tags(text)
    text = drop_markdown(text)
    text = re.sub(rf"[^\S\n]*{PLAIN_CELL}[^\S\n]*", cell.replace("\\", r"\\"), re.sub(r"[^\S\n]+", " ", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def drop_tags(text):
    if re.search(r"<(?:loc_\d+|doctag)>", text):
        text = PLAIN_DOC_TAG.sub("\n", re.sub(r"<loc_\d+>", "", text))
    # OTSL: a token opens a cell; continuations of merged cells have no text.
    text = re.sub(r"(?<![ \t])[ \t]*<nl>[ \t]*", "\n", re.sub(r"<(?:lcel|ucel|xcel)>", "", text))
    text = re.sub(r"(?:(?<=\n)|\A|(?<=<otsl>))[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", "", text)
    text = re.sub(r"(?<![ \t])[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", PLAIN_CELL, text)
    text = PLAIN_HTML_TABLE.sub(lambda found: plain_table(found[0]), text)
    text = PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub("\n", text))
    return PLAIN_ENTITY.sub(lambda found: html.unescape(found[0]), text)


def plain_table(table):
    table = re.sub(r"</(?:caption|thead|tbody|tr)\s*>|<tr(?=[\s>])[^<>]*>", "\n\n", " ".join(table.split()), flags=re.I)
    table = re.sub(r"<t[dh](?=[\s/>])[^<>]*>", PLAIN_CELL, table, flags=re.IGNORECASE)
    rows = (
        PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub(" ", row)).strip().removeprefix(PLAIN_CELL)
        for row in table.split("\n")
    )
    return "\n\n" + "\n".join(row for row in rows if row) + "\n\n"


def drop_markdown(text):
    text = re.sub(r"!\[[^\[\]\n]*\]\([^)\n]*\)", "", text)
    text = re.sub(r"\[([^\[\]\n]+)\]\((?:https?:|mailto:|#|/|\./)[^)\n]*\)", r"\1", text)
    text = re.sub(r"\[\^([^\]\s]{1,20})\]:?", r"\1", text)
    text = PLAIN_MATH.sub(lambda found: next(filter(None, found.groups())).strip(), text)
    text = "\n".join(plain_lines(text.split("\n")))
    inside = r"([^{0}\s](?:(?:[^{0}\n]|\n(?!\n))*[^{0}\s])?)"
    for mark in (r"\*\*", r"(?<![*\w\\])\*(?!\*)", r"\*\*", r"(?<![\w\\])__?"):
        letter = "_" if "_" in mark else "*"
        close = {r"\*\*": r"\*\*", "_": r"__?(?!\w)"}.get(letter if letter == "_" else mark, r"\*(?![*\w])")
        text = re.sub(mark + inside.format(letter) + close, r"\1", text)
    text = re.sub(r"~~([^~\n]+)~~", r"\1", text)
    text = re.sub(r"`([^`\n]+)`", r"\1", text)
    return re.sub(r"\\([\\`*_{}\[\]()#+\-.!|$%&<>~])", r"\1", text)


def plain_lines(lines):
    in_table = False
    for number, line in enumerate(lines):
        line = line.strip()
        if PLAIN_TABLE_LINE.fullmatch(line):
            in_table = True
            continue
        if PLAIN_RULE.fullmatch(line):
            continue
        opens = number + 1 < len(lines) and "|" in line and PLAIN_TABLE_LINE.fullmatch(lines[number + 1].strip())
        in_table = bool(opens) or (in_table and "|" in line)
        if in_table or (line.startswith("|") and line.endswith("|") and line.count("|") > 1):
            inner = line.removeprefix("|")
            inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
            yield PLAIN_CELL.join(part.strip() for part in re.split(r"(?<!\\)\|", inner))
            continue
        line = re.sub(r"^(?:> ?)+", "", line)
        line = re.sub(r"^#{1,6}(?:[ \t]+|$)", "", line)
        line = re.sub(r"^[-*+] \[([ xX])\] ", lambda found: "☐ " if found[1] == " " else "☑ ", line)
        yield re.sub(r"^[-*+•][ \t]+", "", line)


# <<< kit/plain_text.py

# >>> kit/endpoint_quality.py
# What was read against confirmed pages: character error rate and overlap of boxes.


BOX_OVERLAP = 0.5  # IoU from which two boxes are the same one


def read_gold(folder, name):
    """{"text": str or None, "boxes": list or None} of one page: NAME.md or NAME.txt, and NAME.json (a blocks document).

    None where the folder has neither.
    """
    text = next((p.read_text(encoding="utf-8-sig") for p in gold_paths(folder, name, ".md", ".txt")), None)
    boxes = None
    for path in gold_paths(folder, name, ".json"):
        boxes = [block["bbox"] for block in read_json(path).get("blocks") or [] if block.get("bbox")]
    return None if text is None and boxes is None else {"text": text, "boxes": boxes}


def gold_paths(folder, name, *suffixes):
    return [path for suffix in suffixes if (path := Path(folder, name + suffix)).is_file()]


def gold_quality(gold, markdown, document):
    """{"cer", "iou_mean", "precision", "recall", "f1"} of one page; None for what the gold does not hold.

    Boxes count only where the answer has blocks: a model that gives none was not asked for them.
    """
    quality = {"cer": None, "iou_mean": None, "precision": None, "recall": None, "f1": None}
    if gold["text"] is not None and markdown is not None:
        quality["cer"] = character_error_rate(gold["text"], markdown)
    if gold["boxes"] is not None and document is not None:
        quality |= box_agreement(gold["boxes"], [b["bbox"] for b in document["blocks"] if b["bbox"]])
    return quality


def character_error_rate(true, read):
    """Edits (insert, delete, replace) per character of the true text, of two texts in any markup.

    The `cer` of ocr-score.py in its profile standard. Of an empty true text: 0 for nothing read, 1 for anything.
    """
    from rapidfuzz.distance import Levenshtein

    true, read, _ = compared_characters(*(to_plain_text(text, cell=" ") for text in (true, read)))
    return round(Levenshtein.distance(true, read) / len(true), 4) if true else float(len(read) > 0)


def box_agreement(true, read):
    """Precision, recall and F1 of boxes, whatever their labels, and the mean IoU of those that agree.

    Pairs are those with the largest sum of IoU among pairs of at least BOX_OVERLAP: taking them in order finds fewer.
    """
    if not true or not read:
        return {"iou_mean": None, "precision": 0.0, "recall": 0.0, "f1": float(not true and not read)}
    pairs = match_boxes(true, read, BOX_OVERLAP)
    precision, recall = len(pairs) / len(read), len(pairs) / len(true)
    return {
        "iou_mean": round(sum(pairs) / len(pairs), 4) if pairs else None,
        "precision": round(precision, 4),
        "recall": round(recall, 4),
        "f1": round(2 * precision * recall / (precision + recall), 4) if pairs else 0.0,
    }


# <<< kit/endpoint_quality.py

# >>> kit/endpoint_redact.py
# Keeps passwords, tokens and hosts out of reports and logs.


MASK = "***"
SECRET_WORD = re.compile(r"(?i)key|token|secret|passw|credential|auth|signature|cookie")
# What looks like a token wherever it stands: known prefixes, bearers, JSON web tokens.
TOKEN_LIKE = re.compile(
    r"(?i)\b(?:hf|sk|pk|rk|ghp|gho|glpat|xox[abp]|api|key)[_-][A-Za-z0-9_-]{8,}|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|(?<=bearer )[^\s\"',]+|(?<=basic )[A-Za-z0-9+/=]{8,}"
)
URL_IN_TEXT = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+")
SHORTEST_SECRET = 4  # characters; shorter ones would be found inside of words


def host_class(host):
    """ "loopback", "private" or "public"; a name that is no address counts by its ending."""
    host = (host or "").lower().rstrip(".")
    if host in ("loopback", "private", "public"):  # redacted before
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        if host == "localhost" or host.endswith(".localhost"):
            return "loopback"
        return "private" if "." not in host or host.endswith((".local", ".lan", ".internal", ".home")) else "public"
    return "loopback" if address.is_loopback else "private" if address.is_private else "public"


def redacted_url(url, keep_host=False):
    """The URL with scheme, kind of host, port and path only: `http://loopback:8000/v1`, `https://public/v1`.

    User, password, query, fragment, path parameters and path parts that look like tokens are left out.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return MASK
    shown = (host or "") if keep_host else host_class(host)
    shown = f"[{shown}]" if ":" in shown else shown
    path = "/".join(redacted_part(part) for part in parts.path.split("/"))
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "") + path


def redacted_part(part):
    part = part.partition(";")[0]
    opaque = len(part) >= 16 and re.search(r"\d", part) and re.search(r"[A-Za-z]", part)
    return MASK if "@" in unquote(part) or "=" in unquote(part) or opaque or TOKEN_LIKE.search(part) else part


def secrets_in_url(url):
    """User, password, and the values of query and fragment of a URL, as written and decoded."""
    try:
        parts = urlsplit(url)
        found = [parts.username if len(parts.username or "") >= 8 else "", parts.password, parts.query, parts.fragment]
    except ValueError:
        return set()
    for text in (parts.query, parts.fragment):
        found += [value for _, value in parse_qsl(text)] + [pair.partition("=")[2] for pair in text.split("&")]
    found += [pair.partition("=")[2] for piece in parts.path.split("/") for pair in piece.split(";")[1:]]
    found += [part for part in parts.path.split("/") if part and redacted_part(part) == MASK]
    return {text for word in found if word for text in (word, unquote(word)) if len(text) >= SHORTEST_SECRET}


def secrets_in_environment():
    """Values of environment variables whose name says that they are secret; paths and plain words are none."""
    named = (value for name, value in os.environ.items() if SECRET_WORD.search(name))
    return {value for value in named if len(value) >= 8 and not value.startswith("/") and re.search(r"[\d_-]", value)}


def scrubbed(value, secrets=(), keep_host=False, known_only=False):
    """A JSON-like value whose strings hold none of `secrets`, no URL's credentials and nothing that looks like a token.

    With `known_only` just the secrets go: what a model read may be a URL, and stays.
    """
    return each_text(value, lambda text: scrubbed_text(text, secrets, keep_host, known_only))


def each_text(value, change):
    """A JSON-like value with every string, keys too, as `change` makes it."""
    if isinstance(value, dict):
        return {each_text(key, change): each_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def scrubbed_text(text, secrets, keep_host, known_only):
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    if known_only:
        return text
    return TOKEN_LIKE.sub(MASK, URL_IN_TEXT.sub(lambda found: redacted_url(found[0], keep_host), text))


def without_folders(text):
    """The text with absolute paths of files cut to their names: folders tell who works where."""
    return re.sub(r"(?<![\w:/.*\]])/(?:[^\s/,=:]+/)+", "", text)


def scrubbed_words(words, secrets=()):
    """A command line without the values of flags that are named like secrets."""
    shown, hide = [], False
    for word in words:
        name, sign, _ = word.partition("=")
        secret_flag = name.startswith("-") and bool(SECRET_WORD.search(name))
        shown.append(MASK if hide else f"{name}={MASK}" if secret_flag and sign else scrubbed(word, secrets))
        hide = secret_flag and not sign
    return shown


# <<< kit/endpoint_redact.py

# >>> kit/endpoint_schema.py
# The report of an endpoint benchmark as a JSON Schema (draft 2020-12).


REPORT_VERSION = "ocr-endpoint-bench/1"
BENCH_TASKS = ("layout", "text", "table", "end2end")
# Only "ok" is a page that was read. The last two are no verdict on the endpoint: the test did not take place.
OUTCOMES = (
    "ok", "invalid_output", "image_ignored", "loop", "truncated", "timeout_total", "timeout_stall", "http_3xx",
    "http_4xx", "http_5xx", "connect_error", "connection_lost", "bad_response", "oom", "unreadable_page", "cancelled",
    "not_run",
)  # fmt: skip
TEXT, NUMBER, COUNT, FLAG = (
    {"type": "string"},
    {"type": "number"},
    {"type": "integer", "minimum": 0},
    {"type": "boolean"},
)
MOMENT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}


def maybe(schema):
    return {"anyOf": [schema, {"type": "null"}]}


def table_of(*required, **properties):
    """An object with just these properties, all of them required unless some are named."""
    return {
        "type": "object", "properties": properties, "required": list(required or properties),
        "additionalProperties": False,
    }  # fmt: skip


def list_of(schema):
    return {"type": "array", "items": schema}


def map_of(schema):
    return {"type": "object", "additionalProperties": schema}


SPREAD = maybe(table_of(p50=NUMBER, p90=NUMBER, p95=NUMBER, p99=NUMBER))
STAGE = table_of(
    outcome=maybe({"enum": list(OUTCOMES)}), http_status=maybe(COUNT), finish_reason=maybe(TEXT),
    max_tokens=maybe(COUNT), wall_s=maybe(NUMBER), ttft_s=maybe(NUMBER), tokens_per_s=maybe(NUMBER), streamed=FLAG,
    usage=maybe({"type": "object"}), images=list_of({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}),
    flags=list_of(TEXT),
)  # fmt: skip
TABLE = table_of(format=maybe(TEXT), rows=COUNT, columns=COUNT, cells=COUNT, problems=list_of(TEXT))
RUN = table_of(
    page=TEXT, iteration=COUNT, concurrency=COUNT, warmup=FLAG, outcome={"enum": list(OUTCOMES)}, error=maybe(TEXT),
    started_at=MOMENT, wall_s=maybe(NUMBER), client_s=maybe(NUMBER), ttft_s=maybe(NUMBER), tokens_per_s=maybe(NUMBER),
    prompt_tokens=maybe(COUNT), completion_tokens=maybe(COUNT), image_tokens_needed=maybe(COUNT),
    image_ignored=maybe(FLAG), truncated=FLAG, looped=FLAG, flags=list_of(TEXT), chars=maybe(COUNT),
    blocks=maybe(COUNT), boxed_blocks=maybe(COUNT), labels=map_of(COUNT), table=maybe(TABLE), stages=list_of(STAGE),
    output_file=TEXT, output_sha256=TEXT,
    quality=maybe(table_of(cer=maybe(NUMBER), iou_mean=maybe(NUMBER), precision=maybe(NUMBER), recall=maybe(NUMBER),
                           f1=maybe(NUMBER))),
)  # fmt: skip
LEVEL = table_of(
    concurrency=COUNT, attempted=COUNT, ok=COUNT, outcomes=map_of(COUNT), valid_share=maybe(NUMBER), seconds=NUMBER,
    pages_per_s=maybe(NUMBER), completion_tokens_per_s=maybe(NUMBER), wall_s=SPREAD, ttft_s=SPREAD, tokens_per_s=SPREAD,
    failed_wall_s=SPREAD, gpu_use_percent=maybe(NUMBER), vram_mib=maybe(NUMBER),
)  # fmt: skip
SETTINGS = table_of(recommended=map_of({}), effective=map_of({}), overrides=map_of({}))
TARGET = table_of(
    label=TEXT, adapter=TEXT, endpoint=TEXT, where={"enum": ["loopback", "private", "public"]}, provider=maybe(TEXT),
    served_model=maybe(TEXT), reported_model=maybe(TEXT), engine_version=maybe(TEXT), max_model_len=maybe(COUNT),
    recipe=maybe(table_of(name=TEXT, model=TEXT, revision=maybe(TEXT), file_sha256=TEXT, task=maybe(TEXT))),
    workflow=maybe({"enum": ["one request", "several requests"]}),
    settings=maybe(SETTINGS),
    status={"enum": ["measured", "not_ready", "no_recipe", "no_task", "stopped", "given_up"]}, error=maybe(TEXT),
    readiness=maybe(table_of(ok=FLAG, seconds=NUMBER, error=maybe(TEXT))),
    runs=list_of(RUN), levels=list_of(LEVEL),
    quality=maybe(table_of(pages=COUNT, cer_mean=maybe(NUMBER), f1_mean=maybe(NUMBER), iou_mean=maybe(NUMBER))),
)  # fmt: skip
REPORT_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Report of ocr-endpoint-bench.py",
    **table_of(
        schema={"const": REPORT_VERSION}, run_id=TEXT, started_at=MOMENT, finished_at=maybe(MOMENT), complete=FLAG,
        tool_sha256=TEXT, command=list_of(TEXT), task={"enum": list(BENCH_TASKS)},
        params=table_of(warmup=COUNT, repeat=COUNT, concurrency=list_of(COUNT), timeout_s=NUMBER,
                        stall_timeout_s=NUMBER, max_tokens=maybe(COUNT), dpi=COUNT, stream=FLAG),
        input=table_of(source=TEXT, n=COUNT, pages_sha256=TEXT,
                       pages=list_of(table_of(id=TEXT, sha256=maybe(TEXT), width=maybe(COUNT), height=maybe(COUNT)))),
        host=maybe(table_of(os=TEXT, machine=TEXT, python=TEXT, cpus=maybe(COUNT), memory_gib=maybe(NUMBER),
                            gpus=list_of(table_of(name=TEXT, vram_mib=COUNT, compute_capability=maybe(TEXT),
                                                  driver=TEXT)))),
        gpu=maybe(table_of(idle=maybe(FLAG), use_percent=maybe(NUMBER), reason=maybe(TEXT))),
        comparable=FLAG, invalidations=list_of(TEXT),
        pixels=table_of(differ=FLAG, pages=map_of(map_of(COUNT))),
        targets=list_of(TARGET),
    ),
}  # fmt: skip


# <<< kit/endpoint_schema.py

# >>> kit/recipes_import.py
# Recipes as files: their tables without running anything, their functions by importing the file from its path.


def recipe_table(path):
    """The RECIPE table of a recipe file as a dict, read and not run; None where the file has none."""
    _, found, rest = Path(path).read_text().partition("\nRECIPE = {\n")
    table, end, _ = rest.partition("\n}\n")
    return ast.literal_eval("{\n" + table + "\n}") if found and end else None


def recipe_tables(folder):
    """{path: RECIPE} of all recipes in a folder, by name. Raises Stop where there are none."""
    tables = {path: recipe_table(path) for path in sorted(Path(folder).glob("*.py"))}
    tables = {path: table for path, table in tables.items() if table}
    if not tables:
        raise Stop(f"{folder} holds no recipes. Name the folder ocr/ of a clone of this repository: --recipes FOLDER.")
    return tables


def find_recipe(name, folder):
    """The path of the recipe that `name` means: a path, the name of a file in `folder`, or a model id there.

    Of several recipes for one model the shortest name is the plain one. Raises Stop.
    """
    if name.endswith(".py") and Path(name).is_file():
        return Path(name)
    tables = recipe_tables(folder)
    named = [path for path in tables if path.stem == name]
    models = sorted((path for path, table in tables.items() if table["model"] == name), key=lambda p: len(p.stem))
    if named + models:
        return (named + models)[0]
    near = difflib.get_close_matches(name, [path.stem for path in tables], 3, 0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" There are {', '.join(p.stem for p in tables)}."
    raise Stop(f"{name} is no recipe in {folder} and no model of one.{hint} A file is named by its path, ./x.py.")


@functools.cache
def import_recipe(path):
    """The module of a recipe file. Its functions and its shared part are what a run of that file would use."""
    spec = importlib.util.spec_from_file_location("recipe_" + Path(path).stem.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def recipe_options(module, words=()):
    """(options, recipe) as the recipe's own command line `... INPUT OUTPUT words` makes them. Raises Stop.

    `recipe` is RECIPE with what the recipe's `check` changes for these options, such as bounds in engine arguments.
    """
    parser = module.option_parser(module.RECIPE, getattr(module, "add_options", None))
    try:
        options = parser.parse_args(["ns/input", "ns/output", *map(str, words)])
        module.settle(options, module.RECIPE, {"serve": None})
        changed = module.check(options) if hasattr(module, "check") else None
    except module.Stop as problem:  # another class than Stop here: the module has its own copy
        raise Stop(str(problem), problem.code) from None
    return options, module.RECIPE | (changed or {})


# <<< kit/recipes_import.py

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
# <<< shared part


if __name__ == "__main__":
    sys.exit(main_of_endpoints())
