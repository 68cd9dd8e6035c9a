"""Both engines on the real vLLM: the right answers on the right pages, limits, failures, deaths and signals."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.engine.conftest import ROOT
from tests.engine.mechanics import MAX_MODEL_LEN

ENGINES = ["offline", "serve"]


def command(python, scenario, model, engine):
    return [python, "-m", "tests.engine.mechanics", scenario, model, engine]


@pytest.fixture(scope="session")
def answered(python, environment, tiny):
    """`answered(engine)`: the rows of the scenario "answers" in the order they came, run once per engine."""
    rows = {}

    def run(engine):
        if engine not in rows:
            result = subprocess.run(
                command(python, "answers", tiny("qwen2_5_vl"), engine),
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500,
            )  # fmt: skip
            assert result.returncode == 0, result.stderr[-4000:]
            rows[engine] = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        return rows[engine]

    return run


def by_id(rows):
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_hundred_pages_get_their_own_answers(answered, engine):
    rows = by_id(answered(engine))
    sizes = [(3 + n % 17) * (4 + n * 7 % 5) for n in range(200)]
    frame = rows["page 0"]["prompt"] - sizes[0]
    for number, tokens in enumerate(sizes):
        row = rows[f"page {number}"]
        assert row["prompt"] == tokens + frame, "one token for every 28 x 28 pixels of this very page"
        assert (row["completion"], row["finish"]) == (4 + number * 5 % 31, "length")
    again = {name[6:]: row for name, row in rows.items() if name.startswith("again ")}
    assert len(again) == 25
    assert {name: row["text"] for name, row in again.items()} == {name: rows[name]["text"] for name in again}
    assert len({rows[f"page {n}"]["text"] for n in range(200)}) > 150, "the pictures decide what is said"


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_come_as_they_are_finished(answered, engine):
    order = [row["id"] for row in answered(engine) if row["id"].startswith("page ")]
    assert len(order) == 200 and order != sorted(order, key=lambda name: int(name[5:]))


def test_both_engines_say_the_same(answered):
    offline, serve = (by_id(answered(engine)) for engine in ENGINES)
    assert offline.keys() == serve.keys()
    failed = {name for name, row in offline.items() if "error" in row}
    assert failed == {name for name, row in serve.items() if "error" in row}
    for name in offline.keys() - failed - {"logprobs"}:
        assert offline[name] == serve[name], name
    assert offline["logprobs"]["logprobs"] == pytest.approx(serve["logprobs"]["logprobs"], abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_limits_and_keys(answered, engine):
    rows = by_id(answered(engine))
    assert (rows["max_tokens"]["completion"], rows["max_tokens"]["finish"]) == (7, "length")
    longest = rows["max_model_len"]
    assert (longest["prompt"] + longest["completion"], longest["finish"]) == (MAX_MODEL_LEN, "length")
    assert len(rows["logprobs"]["logprobs"]) == 6 and all(value <= 0 for value in rows["logprobs"]["logprobs"])
    assert rows["stop"]["finish"] == "stop" and not set(rows["stop"]["text"]) & set("\n7q>")
    assert isinstance(json.loads(rows["schema"]["text"])["n"], int)
    assert rows["system"]["prompt"] > rows["max_tokens"]["prompt"]
    assert 0 < rows["no image"]["prompt"] < rows["max_tokens"]["prompt"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_request_that_cannot_work_fails_by_itself(answered, engine):
    rows = by_id(answered(engine))
    assert str(MAX_MODEL_LEN) in rows["prompt too long"]["error"]
    assert "9000x30" in rows["too narrow"]["error"] or "aspect ratio" in rows["too narrow"]["error"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_conversation_of_several_requests(answered, engine):
    row = by_id(answered(engine))["steps"]
    sizes = [(3 + n % 17) * (4 + n * 7 % 5) for n in range(3)]
    prompts = [answer["prompt"] for answer in row["first"]]
    assert [prompt - prompts[0] for prompt in prompts] == [size - sizes[0] for size in sizes]
    assert row["last"]["completion"] == 9


def test_an_engine_that_is_killed_is_reported_and_can_be_started_again(python, environment, tiny):
    result = subprocess.run(
        command(python, "death", tiny("qwen2_5_vl"), "offline"),
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    deaths = [place for place, row in enumerate(rows) if "died" in row]
    assert len(deaths) == 1 and 10 <= deaths[0] < 40
    assert sorted(row["id"] for row in rows if "id" in row) == sorted(f"page {n}" for n in range(40))


def descendants(pid):
    """Process ids below `pid`, from /proc."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(pids, seconds):
    """Waits until none of the processes lives; the ids of those that still do."""
    deadline = time.monotonic() + seconds
    while True:
        left = {pid for pid in pids if os.path.exists(f"/proc/{pid}") and not is_zombie(pid)}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not os.environ.get("OCR_ENGINE_ALL"), reason="four engine starts: OCR_ENGINE_ALL=1 runs them")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_in_the_middle_leaves_no_process(python, environment, tiny, engine, number):
    process = subprocess.Popen(
        command(python, "long", tiny("qwen2_5_vl"), engine),
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        first = next(line for line in process.stdout if line.startswith("{"))
        assert json.loads(first)["id"] == "short"
        below = descendants(process.pid)
        assert below
        process.send_signal(number)
        process.wait(timeout=60)
        assert process.returncode == (0 if number == signal.SIGTERM else -number)
        assert not gone(below, 30)
    finally:
        process.kill()
        process.communicate()
