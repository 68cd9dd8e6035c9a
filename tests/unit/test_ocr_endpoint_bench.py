"""The endpoint benchmark against endpoints that behave, and misbehave in every way that was seen or feared."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from PIL import Image

from kit.bench_outputs import Output
from kit.endpoint_checks import (
    html_table_facts,
    image_tokens_needed,
    image_was_ignored,
    otsl_facts,
    protocol_problem,
    table_facts,
)
from kit.endpoint_client import endpoint_url
from kit.endpoint_quality import box_agreement, character_error_rate
from kit.endpoint_redact import (
    MASK,
    host_class,
    redacted_url,
    scrubbed,
    scrubbed_words,
    secrets_in_url,
    without_folders,
)
from kit.scoring import Truth, score_page
from tests.unit.endpoints import endpoint, nvidia_smi
from tests.unit.recipe_file import load_recipe

TOOL = Path(__file__).resolve().parents[2] / "ocr" / "ocr-endpoint-bench.py"
SECRET, WORD = "s3cr3t-value-of-a-key", "pa55word-in-url"


@pytest.fixture(scope="module")
def tool():
    return load_recipe("ocr-endpoint-bench")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, size in (("one", (280, 392)), ("two", (560, 280))):
        Image.new("RGB", size, "white").save(folder / f"{name}.png")
    return folder


def run(pages, out, *words, environment=None):
    """The tool's command `run`, in this process: (what it printed and its exit code, the report or None)."""
    command = list(map(str, [TOOL, "run", pages, "--warmup", "0", "--out", out, *words]))
    stdout, stderr = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", command), mock.patch.dict(os.environ, environment or {}):
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = load_recipe("ocr-endpoint-bench").main_of_endpoints()
    done = SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else None
    return done, report


def written(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# --- whole runs ------------------------------------------------------------------------------------------------------

EXPECTED = {
    "well": "ok",
    "slow first token": "ok",
    "no stream": "ok",
    "404": "http_4xx",
    "500": "http_5xx",
    "out of memory": "oom",
    "endless": "timeout_total",
    "endless line": "timeout_total",
    "silent": "timeout_total",
    "stalled": "timeout_stall",
    "half json": "bad_response",
    "half answer": "bad_response",
    "no list": "bad_response",
    "cut": "connection_lost",
    "reset": "connection_lost",
    "nothing": "invalid_output",
    "loop": "loop",
    "truncated": "truncated",
}
NOT_READY = {"wrong name": "serves another/model, not tiny", "models 401": "answers 401", "redirect": "answers 307"}
SHORT = {"endless": ",timeout=3", "endless line": ",timeout=3", "silent": ",timeout=3", "stalled": ",stall=5"}


@pytest.fixture(scope="module")
def misbehaved(pages, tmp_path_factory):
    """One run over all stand-ins, the good one last: (process, report, folder, {manner: requests seen})."""
    out = tmp_path_factory.mktemp("bench") / "all"
    manners = [*(name for name in {**EXPECTED, **NOT_READY} if name != "well"), "well"]
    with ExitStack() as stack:
        servers = {manner: stack.enter_context(endpoint(manner)) for manner in manners}
        words = []
        for manner, server in servers.items():
            label = manner.replace(" ", "-")
            words += ["--target", f"glm-ocr={server.url},model=tiny,label={label}{SHORT.get(manner, '')}"]
        done, report = run(pages, out, "--task", "text", "--max-samples", "1", *words)
    return done, report, out, {manner: server.seen for manner, server in servers.items()}


def part_of(report, manner):
    return next(part for part in report["targets"] if part["label"] == manner.replace(" ", "-"))


@pytest.mark.parametrize("manner, outcome", EXPECTED.items())
def test_every_misbehaviour_has_its_outcome(misbehaved, manner, outcome):
    _, report, out, _ = misbehaved
    (record,) = part_of(report, manner)["runs"]
    assert record["outcome"] == outcome and (record["error"] is None) == (outcome == "ok"), record["error"]
    raw = json.loads((out / record["output_file"]).read_text())
    assert raw["outcome"] == outcome and "Text Recognition:" in raw["calls"][0]["asked"]["text"]
    if outcome.startswith("timeout"):
        assert record["wall_s"] < 60
    if manner in ("half json", "cut", "stalled"):
        assert raw["calls"][0]["text"] == "It begins", "what came before it broke is kept"


@pytest.mark.parametrize("manner, error", NOT_READY.items())
def test_what_is_not_ready_is_never_measured(misbehaved, manner, error):
    _, report, _, seen = misbehaved
    part = part_of(report, manner)
    assert part["status"] == "not_ready" and error in part["error"]
    assert part["runs"] == part["levels"] == [] and not part["readiness"]["ok"]
    assert not [request for request in seen[manner] if request[0] == "POST"]


def test_the_run_goes_on_and_says_that_not_all_was_well(misbehaved):
    done, report, out, _ = misbehaved
    assert done.returncode == 3 and report["complete"]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["attempted"], summary["ok"], summary["exit_code"]) == (len(EXPECTED), 3, 3)
    assert summary["targets"]["wrong-name"] == "not_ready" and summary["targets"]["well"] == "measured"
    assert len((out / "runs.jsonl").read_text().splitlines()) == len(EXPECTED)


def test_a_report_fits_the_published_schema(misbehaved, tool):
    _, report, _, _ = misbehaved
    published = subprocess.run([sys.executable, TOOL, "schema"], capture_output=True, text=True, timeout=60)
    schema = json.loads(published.stdout)
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(report)
    assert not Draft202012Validator(schema).is_valid({**report, "surprise": 1})
    assert not Draft202012Validator(schema).is_valid({**report, "schema": "ocr-endpoint-bench/0"})


def test_times_are_of_what_was_streamed(misbehaved):
    _, report, _, _ = misbehaved
    (slow,), (whole,) = part_of(report, "slow first token")["runs"], part_of(report, "no stream")["runs"]
    assert slow["stages"][0]["streamed"] and slow["ttft_s"] >= 0.6 and slow["wall_s"] >= slow["ttft_s"]
    assert not whole["stages"][0]["streamed"] and whole["ttft_s"] is whole["tokens_per_s"] is None
    assert slow["prompt_tokens"] == whole["prompt_tokens"] == 4000


def test_repeats_levels_and_pixels(pages, tmp_path):
    with endpoint() as one, endpoint() as other:
        done, report = run(
            pages, tmp_path / "out", "--task", "text", "--repeat", "2", "--concurrency", "1,3", "--warmup", "1",
            "--target", f"glm-ocr={one.url},model=tiny",
            "--target", f"glm-ocr={other.url},model=tiny,args=--max-pixels 50000",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = report["targets"]
    assert (first["label"], second["label"]) == ("glm-ocr", "glm-ocr-2")
    assert [level["attempted"] for level in first["levels"]] == [4, 4]
    assert sum(run["warmup"] for run in first["runs"]) == 1 and len(first["runs"]) == 9
    assert sorted({run["iteration"] for run in first["runs"]}) == [1, 2]
    assert {level["wall_s"]["p50"] > 0 for level in first["levels"]} == {True}
    assert set(one.sizes) == {(280, 392), (560, 280)}, "pages are as the recipe prepares them"
    assert all(width * height <= 50000 for width, height in other.sizes)
    assert report["pixels"]["differ"] and report["pixels"]["pages"]["one.png"]["glm-ocr"] == 280 * 392
    assert second["settings"]["overrides"] == {
        "max_tokens": 6144, "max_model_len": 8192, "image": {"max_pixels": 50000}
    }, "8192 tokens of context leave no room for the recipe's 8192 of answer"  # fmt: skip
    assert first["recipe"]["model"] == "zai-org/GLM-OCR" and first["workflow"] == "one request"
    assert first["engine_version"] == "0.0.test" and first["where"] == "loopback"


@pytest.mark.parametrize("used", [0, 40])
def test_a_busy_gpu_makes_no_comparison(pages, tmp_path, used):
    path = nvidia_smi(tmp_path / "bin", used)
    with endpoint() as server:
        words = ("--task", "text", "--target", f"glm-ocr={server.url},model=tiny")
        _, report = run(pages, tmp_path / "out", *words, environment={"PATH": path})
    assert report["gpu"]["idle"] is report["comparable"] is (used == 0)
    assert report["invalidations"] == ([] if not used else ["the GPU was 40 % busy before any request"])
    assert ("Not comparable" in (tmp_path / "out" / "report.html").read_text()) == bool(used)
    assert [gpu["compute_capability"] for gpu in report["host"]["gpus"]] == ["8.9"]


def test_an_image_that_the_server_dropped(pages, tmp_path):
    with endpoint(prompt_tokens=7) as server:
        _, report = run(pages, tmp_path / "out", "--task", "text", "--target", f"glm-ocr={server.url},model=tiny")
    for record in report["targets"][0]["runs"]:
        assert record["outcome"] == "image_ignored" and record["prompt_tokens"] == 7
        assert record["image_tokens_needed"] in (140, 200)


def test_a_page_that_cannot_be_read_is_no_fault_of_the_endpoint(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture")
    with endpoint() as server:
        _, report = run(tmp_path / "in", tmp_path / "out", "--target", f"glm-ocr={server.url},model=tiny")
        assert [request for request in server.seen if request[0] == "POST"] == []
    assert report["targets"][0]["runs"][0]["outcome"] == "unreadable_page"


def test_what_has_no_recipe_or_no_such_task_is_listed_and_not_passed(pages, tmp_path):
    with endpoint() as server:
        done, report = run(
            pages, tmp_path / "out", "--task", "layout", "--target", f"no-such-model={server.url}",
            "--target", f"glm-ocr={server.url},model=tiny", "--target", f"pp-ocrv6={server.url}",
        )  # fmt: skip
    assert [part["status"] for part in report["targets"]] == ["no_recipe", "no_task", "no_recipe"]
    assert done.returncode == 3 and json.loads(done.stdout.splitlines()[-1])["ok"] == 0


def test_a_dead_endpoint_does_not_take_the_time_of_all_pages(pages, tmp_path):
    with endpoint("500") as server:
        words = ("--repeat", "20", "--give-up", "3", "--target", f"glm-ocr={server.url},model=tiny")
        done, report = run(pages, tmp_path / "out", *words)
    (part,) = report["targets"]
    assert part["status"] == "given_up" and len(part["runs"]) == 3 and "37 pages were not asked" in part["error"]
    assert done.returncode == 3


def test_a_stopped_run_keeps_what_it_has(pages, tmp_path):
    out = tmp_path / "out"
    with endpoint("silent") as server:
        command = [sys.executable, TOOL, "run", pages, "--out", out, "--target", f"glm-ocr={server.url},model=tiny"]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(600):
            if any(request[0] == "POST" for request in server.seen):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    report = json.loads((out / "report.json").read_text())
    assert not report["complete"] and report["targets"][0]["status"] == "stopped"
    assert [record["outcome"] for record in report["targets"][0]["runs"]] == ["cancelled"]
    assert json.loads(stdout.splitlines()[-1])["exit_code"] == 1


def test_runs_of_the_same_second_have_folders_of_their_own(tool, tmp_path, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=zone)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, "datetime", Clock)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(tool.report_folder, [None] * 8))
    assert len({folder.resolve() for folder in folders}) == 8 and all(folder.is_dir() for folder in folders)
    assert min(folders, key=lambda folder: len(folder.name)).name == "bench_20260102T030405Z"
    assert tool.report_folder("own") == tool.report_folder("own"), "an empty folder may be there"
    (tmp_path / "own" / "report.json").write_text("{}")
    with pytest.raises(tool.Stop, match="holds something already"):
        tool.report_folder("own")


def test_gold_stands_beside_validity(pages, tmp_path):
    gold = tmp_path / "gold"
    gold.mkdir()
    (gold / "one.png.txt").write_text("Some text of a page.")
    (gold / "two.png.md").write_text("")
    with endpoint() as server:
        words = ("--task", "text", "--gold", gold, "--target", f"glm-ocr={server.url},model=tiny")
        _, report = run(pages, tmp_path / "out", *words)
    (part,) = report["targets"]
    quality = {record["page"]: record["quality"]["cer"] for record in part["runs"]}
    assert quality == {"one.png": pytest.approx(0.15, abs=0.01), "two.png": 1.0}
    assert {record["outcome"] for record in part["runs"]} == {"ok"}, "a wrong text is valid all the same"


def test_a_model_that_asks_several_times_has_a_trace_of_each(pages, tmp_path):
    layout = "<|box_start|>100 100 900 300<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>"
    with endpoint(text=layout) as server:
        words = ("--task", "end2end", "--max-samples", "1", "--target", f"mineru2.5={server.url},model=tiny")
        _, report = run(pages, tmp_path / "out", *words)
    (part,) = report["targets"]
    (record,) = part["runs"]
    assert part["workflow"] == "several requests" and len(record["stages"]) >= 2
    assert record["completion_tokens"] == sum(stage["usage"]["completion_tokens"] for stage in record["stages"])


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_no_secret_reaches_a_file_or_a_log(pages, tmp_path):
    with endpoint("leaky") as server, endpoint("models 401") as closed:
        told = server.url.replace("://", f"://someone-here:{WORD}@") + f"?api-key={WORD}&v=2#{WORD}"
        words = [
            "--target", f"glm-ocr={told},model=tiny", "--target", f"glm-ocr={closed.url},model=tiny,key=BENCH_KEY",
            "--target", f"glm-ocr=http://someone-here:{WORD}@127.0.0.1:9/v1", "--connect-timeout", "2",
        ]  # fmt: skip
        done, report = run(pages, tmp_path / "out", *words, environment={"BENCH_KEY": SECRET, "OTHER_TOKEN": SECRET})
        keys = {request[2].get("Authorization") for request in closed.seen}
        assert keys == {f"Bearer {SECRET}"}, "the endpoint does get its key"
        assert any(WORD in request[1] for request in server.seen), "and its query"
    files = written(tmp_path / "out")
    assert {"report.json", "report.html", "runs.jsonl"} < set(files) and len(files) > 4
    assert not [name for name, text in files.items() if str(tmp_path) in text or str(pages) in text]
    for name, text in {**files, "stdout": done.stdout, "stderr": done.stderr}.items():
        for secret in (WORD, SECRET, "someone-here"):
            assert secret not in text, f"{secret} is in {name}"
    assert report["targets"][0]["endpoint"].startswith("http://loopback:")


def test_the_key_of_one_endpoint_goes_to_no_other(pages, tmp_path):
    with endpoint() as server:
        words = ("--target", f"glm-ocr={server.url},model=tiny")
        run(pages, tmp_path / "out", *words, environment={"OPENAI_API_KEY": SECRET, "HF_TOKEN": SECRET})
        assert all("Authorization" not in request[2] for request in server.seen)


@pytest.mark.parametrize(
    "url, shown",
    [
        ("http://127.0.0.1:8000/v1", "http://loopback:8000/v1"),
        ("http://user:pa55word@localhost:8000/v1/", "http://loopback:8000/v1/"),
        ("https://us%40er:pa%2Fss55@host.example.org/v1?key=abcd1234#frag5678", "https://public/v1"),
        ("https://abcd1234efgh5678@host.example.org/v1", "https://public/v1"),
        ("https://host.example.org/t/0a1b2c3d4e5f6071/v1;sid=abcd1234", "https://public/t/***/v1"),
        ("https://host.example.org/sk-abcdefgh12/v1", "https://public/***/v1"),
        ("https://host.example.org/token=abcd1234/v1", "https://public/***/v1"),
        ("http://[::1]:8000/v1", "http://loopback:8000/v1"),
        ("http://10.0.0.7:8000/v1", "http://private:8000/v1"),
        ("http://gpu-box:8000", "http://private:8000"),
        ("http://host:notaport/v1", MASK),
    ],
)
def test_a_url_without_its_secrets(url, shown):
    assert redacted_url(url) == shown
    assert scrubbed(f"cannot reach {url}") == f"cannot reach {shown}"
    for secret in ("pa55word", "pa/ss55", "pa%2Fss55", "abcd1234", "frag5678", "0a1b2c3d4e5f6071", "sk-abcdefgh12"):
        if secret in url and shown != MASK:
            assert any(secret in known for known in secrets_in_url(url))


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefgh",
        "authorization: basic dXNlcjpwYXNz",
        "token hf_abcdefgh1234",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0",
    ],
)
def test_what_looks_like_a_token_goes(text):
    assert scrubbed(text).endswith(MASK) and text.split()[-1] not in scrubbed(text)


def test_values_of_secret_flags_go():
    assert scrubbed_words(["run", "--api-key", "abc", "--password=x", "--out", "d"]) == [
        "run", "--api-key", MASK, f"--password={MASK}", "--out", "d",
    ]  # fmt: skip


@given(st.text(), st.text(min_size=4))
def test_scrubbing_leaves_no_secret_behind(text, secret):
    left = scrubbed(f"{text}{secret}{text}", {secret}, known_only=True)
    assert secret in MASK or secret not in left.replace(MASK, "\0")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("/home/me/scans/a.png", "a.png"),
        (
            "/home/me/x.py=http://h:1/v1/models,args=--schema /etc/s.json",
            "x.py=http://h:1/v1/models,args=--schema s.json",
        ),
        (
            "no recipe in /srv/ocr; see https://h/a/b/c",
            "no recipe in /srv/ocr; see https://h/a/b/c".replace("/srv/", ""),
        ),
        ("folder/a.png 1/2 hf://datasets/a/b/c", "folder/a.png 1/2 hf://datasets/a/b/c"),
    ],
)
def test_folders_of_this_machine_are_nobodys_business(text, shown):
    assert without_folders(text) == shown


def test_hosts():
    kinds = {"localhost": "loopback", "127.8.9.1": "loopback", "192.168.1.2": "private", "nas.local": "private",
             "8.8.8.8": "public", "example.org": "public"}  # fmt: skip
    assert {host: host_class(host) for host in kinds} == kinds


# --- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, problem",
    [
        ("<fcel>a<fcel>b<nl><fcel>c<ecel><nl>", None),
        ("<otsl><ched>a<lcel><nl><ucel><xcel><nl></otsl>", None),
        ("<fcel>a<lcel><lcel><nl><ucel><xcel><xcel><nl><ucel><xcel><xcel><nl>", None),
        ("&lt;fcel&gt;a&lt;nl&gt;", None),
        ("<fcel>a<fcel>b<nl><fcel>c<nl>", "rows of different lengths"),
        ("<lcel><fcel>a<nl>", "<lcel> continues nothing"),
        ("<ucel><fcel>a<nl>", "<ucel> continues nothing"),
        ("<fcel>a<lcel><nl><ucel><fcel>b<nl>", "a merged cell that is no rectangle"),
        ("<fcel>a<lcel><nl><fcel>b<ucel><nl>", "a merged cell that is no rectangle"),
        ("<ecel><ecel><nl>", "no filled cell"),
        ("Here it is: <fcel>a<nl>", "text before the table"),
        ("<fcel>a<nl>then<fcel>b<nl>", "text between rows"),
        ("<fcel>a" + "<fcel>b" * 5000, "more than 4096 cells"),
    ],
)
def test_otsl_is_read_strictly(text, problem):
    assert otsl_facts(text)["problems"] == ([problem] if problem else [])


def test_no_otsl_is_none():
    assert otsl_facts("<table><tr><td>a</td></tr></table>") is None


@given(st.text(alphabet="ab<>flecuxn", max_size=60) | st.lists(st.sampled_from("fcel ecel lcel ucel xcel nl".split())))
def test_hostile_otsl_raises_nothing(tokens):
    text = tokens if isinstance(tokens, str) else "".join(f"<{token}>x" for token in tokens)
    assert otsl_facts(text) is None or isinstance(otsl_facts(text)["cells"], int)


def test_tables_of_other_kinds():
    assert table_facts("", "| a | b |\n|---|---|\n| 1 | 2 |")["cells"] == 4
    assert table_facts("", "no table")["problems"] == ["no table in the answer"]
    assert html_table_facts("<table><tr><td>a<td>b</table>") == {"rows": 1, "columns": 2, "cells": 2, "problems": []}
    assert html_table_facts("<table><tr><td>a")["problems"] == ["a <table> that does not end"]
    assert html_table_facts("<table></table>")["problems"] == ["a table without cells"]


def test_one_good_box_is_no_layout():
    facts = {"blocks": 100, "boxed": 1, "labels": {}}
    assert "99 of 100 blocks" in protocol_problem("layout", True, "", facts, None)
    assert protocol_problem("layout", True, "", facts | {"boxed": 100}, None) is None
    assert protocol_problem("end2end", True, "text", facts | {"blocks": 0, "boxed": 0}, None) == "no blocks"
    assert protocol_problem("end2end", False, "text", facts | {"blocks": 0}, None) is None
    assert protocol_problem("text", False, "  ", facts, None) == "empty text"
    assert protocol_problem("text", False, "", facts | {"blocks": 0}, None, blank=True) is None


def test_how_many_tokens_a_picture_needs():
    recipe = {"image": {"max_pixels": 784_000}, "image_tokens": 1000}
    assert image_tokens_needed(recipe, [(280, 280)]) == 100
    assert image_tokens_needed(recipe, [(5000, 5000)]) == 1000, "the recipe's bound is what is sent"
    assert image_tokens_needed({"image": {}}, [(10, 10)]) is None
    assert image_was_ignored(1518, 7) and not image_was_ignored(1518, 1530)
    assert image_was_ignored(None, 7) is image_was_ignored(1518, None) is None


@pytest.mark.parametrize("name", ["glm-ocr", "dots-mocr", "qwen3-vl-ocr", "deepseek-ocr2-vllm", "paddleocr-vl-1.6",
                                  "unlimited-ocr-vllm", "mineru2.5", "monkeyocrv2", "teleocr"])  # fmt: skip
def test_the_models_of_the_log(tool, name):
    assert name in tool.ADAPTERS.values()
    if not (TOOL.parent / f"{name}.py").exists():
        pytest.skip("its recipe is not there yet; `adapters` says so")
    table = tool.recipe_table(TOOL.parent / f"{name}.py")
    assert tool.task_of(table, "text") in table["tasks"] and tool.task_of(table, "end2end") in table["tasks"]
    assert not tool.gives_boxes(table, tool.task_of(table, "layout")) or table["blocks_column"]
    assert tool.image_tokens_needed(table, [(1240, 1754)]) > 30


def test_adapters_tells_what_is_there(tool):
    done = subprocess.run([sys.executable, TOOL, "adapters"], capture_output=True, text=True, timeout=120)
    rows = json.loads(done.stdout.splitlines()[-1])["adapters"]
    assert set(rows) == set(tool.ADAPTERS)
    for row in rows.values():
        assert row["there"] == (TOOL.parent / f"{row['recipe']}.py").exists()


def test_urls_of_requests():
    assert endpoint_url("http://h:1", "/models") == "http://h:1/v1/models"
    assert endpoint_url("http://h:1/v1/", "/models") == "http://h:1/v1/models"
    assert endpoint_url("https://h/api/v3?version=2#x", "/models") == "https://h/api/v3/models?version=2"


@pytest.mark.parametrize(
    "true, read, rate", [("abcd", "abcd", 0), ("abcd", "abxd", 0.25), ("a  b\n", "a b", 0), ("", "x", 1), ("", " ", 0),
                         ("e\u0301", "\u00e9", 0), ("abcd", "", 1), ("", "x" * 50, 1),
                         ("\u201cHis\u201d \u2014 two words", '"His" - two words', 0), ("re-\nading", "reading", 0),
                         ("Title\n\nno yes", "# Title\n\n<table><tr><td>no</td><td>**yes**</td></tr></table>", 0),
                         ("g\u0304x", "ax", 0.5), ("abc" * 10, "abc" * 10 + "a" * 50_000, 352.3333)]
)  # fmt: skip
def test_character_error_rate_is_that_of_the_scorer(true, read, rate):
    assert character_error_rate(true, read) == rate
    assert round(score_page(Truth(true), Output(read, "ok"))["cer"], 4) == rate


def test_boxes_are_paired_for_the_largest_sum():
    true = [[0, 0, 100, 100], [0, 30, 100, 130]]
    read = [[0, 25, 100, 125], [0, -40, 100, 60]]  # in order, the first would take the second's partner
    assert box_agreement(true, [[0, 0, 100, 100]]) == {"iou_mean": 1.0, "precision": 1.0, "recall": 0.5, "f1": 0.6667}
    assert box_agreement(true, read)["recall"] == 0.5 and box_agreement(true, read)["iou_mean"] > 0.9
    both = box_agreement([[0, 0, 100, 100], [0, 20, 100, 120]], [[0, 10, 100, 110], [0, -22, 100, 78]])
    assert both["recall"] == 1.0
    assert box_agreement([], []) == {"iou_mean": None, "precision": 0.0, "recall": 0.0, "f1": 1.0}


@pytest.mark.parametrize(
    "words", [("--target", "glm-ocr"), ("--target", "glm-ocr=ftp://x"), ("--target", "glm-ocr=http://h/v1,wrong=1"),
              ("--target", "glm-ocr=http://h/v1,key=NOT_SET_ANYWHERE")]
)  # fmt: skip
def test_targets_that_make_no_sense(words, pages, tmp_path):
    done, report = run(pages, tmp_path / "out", *words)
    assert done.returncode == 2 and report is None and "Error: --target" in done.stderr
