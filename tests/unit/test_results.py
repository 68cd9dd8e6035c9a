"""Durable results: parts, files, the index of what is done, and writers that are killed or cannot write."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from kit import results as results_module
from kit.results import Index, open_results
from kit.seam import Stop

PROJECT = Path(__file__).resolve().parents[2]
RECIPE = {"name": "fake", "model": "org/model"}
RUN = {
    "model": "org/model", "revision": "abc", "task": "ocr", "source": {"kind": "hub", "name": "user/scans", "sha": "1"},
    "engine": "local", "versions": {"python": "3"}, "sampling": {"temperature": 0.0}, "timestamp": "2026-01-01",
}  # fmt: skip


def make_options(**changed):
    settings = dict(
        input="user/scans", output="user/ocr", output_column="markdown", blocks_column=None, config=None, split="train",
        checkpoint=None, keep_checkpoint=False, retry_errors=False, shard=None, columns=None, create_pr=False,
        private=False, overwrite=False, check=False,
    )  # fmt: skip
    return SimpleNamespace(**{**settings, **changed})


def make_row(number, **changed):
    row = dict(
        id=f"train-{number}", row=number, page=1, pages=1, name=f"train-{number}", text=f"text {number}", blocks=None,
        error=None, flags=[], attempts=1, finish_reason="stop", prompt_tokens=10, completion_tokens=20, seconds=0.5,
        sha256="0" * 64, columns={},
    )  # fmt: skip
    return {**row, **changed}


def failed(number):
    return make_row(number, text=None, error="it is torn")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOB_ID", raising=False)


def write(options, rows, run=RUN):
    results = open_results(options, RECIPE, None, run)
    for row in rows:
        results.put(row)
    results.close()
    return results


def part_rows(folder=".ocr-runs/user--ocr"):
    return [row for part in sorted(Path(folder).glob("part-*")) for row in pq.read_table(part).to_pylist()]


BOTH = pytest.mark.parametrize("output", ["user/ocr", "./out"])


@BOTH
def test_rows_are_done_when_the_run_is_opened_again(output):
    options = make_options(output=output)
    assert len(write(options, [make_row(0), failed(1)]).done) == 0
    done = open_results(options, RECIPE, None, RUN).done
    assert "train-0" in done and "train-1" in done and "train-2" not in done
    assert len(done) == 2
    assert done.pages("train-0") == 1 and done.pages("train-2") is None


@BOTH
def test_retry_errors_asks_failures_again_and_a_success_stays(output):
    options, again = make_options(output=output), make_options(output=output, retry_errors=True)
    write(options, [make_row(0), failed(1)])
    assert "train-1" not in write(again, [make_row(1), failed(0)]).done
    done = open_results(again, RECIPE, None, RUN).done
    assert "train-0" in done and "train-1" in done and len(done) == 2


@BOTH
@pytest.mark.parametrize(
    "changed",
    [{"model": "org/other"}, {"task": "table"}, {"revision": None}, {"source": {**RUN["source"], "sha": "2"}}],
)
def test_a_foreign_checkpoint_is_a_stop_that_names_the_difference(output, changed):
    write(make_options(output=output), [make_row(0)])
    with pytest.raises(Stop) as stop:
        open_results(make_options(output=output), RECIPE, None, {**RUN, **changed})
    [(key, value)] = changed.items()
    key, value, old = ("sha", "2", "1") if key == "source" else (key, value, RUN[key])
    assert stop.value.code == 2
    assert f"its {key} is {old!r}, now it is {value!r}" in str(stop.value)


@BOTH
def test_other_settings_are_no_other_run(output):
    write(make_options(output=output), [make_row(0)])
    assert "train-0" in open_results(make_options(output=output), RECIPE, None, {**RUN, "sampling": {"top_p": 1}}).done


@BOTH
def test_deaths_are_durable_at_once_and_counted(output):
    results = open_results(make_options(output=output), RECIPE, None, RUN)
    results.record_death(["train-3", "train-4"])
    results.record_death(["train-4"])
    results._lock.close()  # as if it had been killed: no close needed
    again = open_results(make_options(output=output), RECIPE, None, RUN)
    assert dict(results.deaths) == dict(again.deaths) == {"train-3": 1, "train-4": 2}


def test_a_part_closes_when_it_is_full(monkeypatch):
    monkeypatch.setattr(results_module, "PART_ROWS", 10)
    write(make_options(), map(make_row, range(25)))
    assert [pq.read_metadata(part).num_rows for part in sorted(Path(".ocr-runs/user--ocr").glob("part-*"))] == [
        10,
        10,
        5,
    ]
    assert [row["id"] for row in part_rows()] == [f"train-{n}" for n in range(25)]


def test_a_part_closes_when_it_is_old(monkeypatch):
    monkeypatch.setattr(results_module, "PART_SECONDS", 0.05)
    results = open_results(make_options(), RECIPE, None, RUN)
    results.put(make_row(0))
    for _ in range(400):
        if part_rows():
            break
        time.sleep(0.01)
    assert [row["id"] for row in part_rows()] == ["train-0"]


def test_a_part_keeps_every_field():
    row = make_row(7, blocks='{"blocks": []}', flags=["looped"], columns={"language": "de", "n": 3}, text="a\ud800b")
    write(make_options(), [row, make_row(8, text="")])
    kept, blank = part_rows()
    assert kept["text"] == "a?b" and blank["text"] == ""
    assert json.loads(kept["columns"]) == {"language": "de", "n": 3}
    assert json.loads(kept["info"])["model_id"] == "org/model" and json.loads(kept["info"])["column_name"] == "markdown"
    assert {k: kept[k] for k in row if k not in ("text", "columns")} == {
        k: row[k] for k in row if k not in ("text", "columns")
    }


@BOTH
def test_ids_and_columns_that_are_not_plain_text_cost_nothing(output):
    import numpy as np

    odd = make_row(0, id="a\udcff.png", columns={"score": np.float32(0.5), "words": "a\ud800"})
    write(make_options(output=output), [odd, make_row(1)])
    done = open_results(make_options(output=output), RECIPE, None, RUN).done
    assert odd["id"] in done and "train-1" in done
    if output == "user/ocr":
        assert json.loads(part_rows()[0]["columns"]) == {"score": 0.5, "words": "a?"}


def test_an_output_inside_a_dataset_is_a_stop():
    with pytest.raises(Stop, match="is a folder of a dataset"):
        open_results(make_options(output="hf://datasets/user/scans/folder"), RECIPE, None, RUN)


def test_configs_of_one_output_have_checkpoints_of_their_own():
    write(make_options(config="a"), [make_row(0)])
    assert "train-0" not in open_results(make_options(config="b"), RECIPE, None, {**RUN, "model": "org/b"}).done


def test_unwritable_checkpoint_is_a_stop(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match="Results cannot be kept"):
        open_results(make_options(checkpoint=str(tmp_path / "file")), RECIPE, None, RUN)


@BOTH
def test_a_full_disk_stops_the_run_and_loses_nothing_that_was_written(output, monkeypatch):
    options = make_options(output=output)
    write(options, [make_row(0)])
    results = open_results(options, RECIPE, None, RUN)

    def full(files):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "limits", (1, 60.0))
    monkeypatch.setattr(results.storage, "write", full)
    with pytest.raises(Stop, match="No space left on device.*1 units are safe there") as stop:
        for number in range(1, 10_000):  # many more than the queue holds: the producer must not hang
            results.put(make_row(number))
    assert stop.value.code == 1
    results.close()  # told once, so that a finally clause does not hide the first message
    again = open_results(options, RECIPE, None, RUN)
    assert "train-0" in again.done and len(again.done) == 1


def test_a_failure_of_the_last_part_surfaces_at_close(monkeypatch):
    results = open_results(make_options(), RECIPE, None, RUN)
    monkeypatch.setattr(results, "save", lambda rows: 1 / 0)
    results.put(make_row(0))
    with pytest.raises(Stop, match="ZeroDivisionError"):
        results.close()


WRITER = """
import sys
sys.path.insert(0, {project!r})
from kit import results
from tests.unit.test_results import RECIPE, RUN, make_options, make_row
results.PART_ROWS, results.FILE_ROWS = 20, 20
output, first, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shard = (first, step) if step > 1 else None
run = results.open_results(make_options(output=output, shard=shard), RECIPE, None, RUN)
for number in range(first, 2000, step):
    if f"train-{{number}}" not in run.done:
        run.put(make_row(number))
        print(number, flush=True)
run.close()
"""


def start_writer(output, first=0, step=1):
    code = textwrap.dedent(WRITER).format(project=str(PROJECT))
    return subprocess.Popen(
        [sys.executable, "-c", code, output, str(first), str(step)], stdout=subprocess.PIPE, text=True
    )


@BOTH
def test_kill_and_resume_loses_only_the_open_part(output):
    chance, options, done = random.Random(7), make_options(output=output), set()
    for _ in range(3):
        writer, wanted, sent = start_writer(output), chance.randint(30, 600), []
        for line in writer.stdout:
            sent.append(int(line))
            if len(sent) >= wanted:
                break
        os.kill(writer.pid, signal.SIGKILL)
        sent += map(int, writer.stdout.read().split())
        writer.wait()
        assert not done & set(sent), "a unit that was done came again"
        index = write(options, []).done
        now = {number for number in range(2000) if f"train-{number}" in index}
        assert done <= now
        queued = results_module.PART_ROWS + 20 + 1  # what the queue and the open part can hold
        assert len(set(sent) - now) <= queued
        done = now
    assert start_writer(output).wait() == 0
    index = write(options, []).done
    assert len(index) == 2000
    if output == "user/ocr":
        assert sorted(row["row"] for row in part_rows()) == list(range(2000))
    else:
        assert len(list(Path("out").glob("*.md"))) == len(list(Path("out").glob("*.json"))) == 2000


def test_two_shards_write_one_checkpoint():
    writers = [start_writer("user/ocr", first, 2) for first in (0, 1)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert sorted(row["row"] for row in part_rows()) == list(range(2000))
    assert len(open_results(make_options(), RECIPE, None, RUN).done) == 2000


@BOTH
def test_the_same_run_twice_at_once_is_refused(output):
    results = open_results(make_options(output=output), RECIPE, None, RUN)
    other = open_results(make_options(output=output, shard=(0, 2)), RECIPE, None, RUN)
    with pytest.raises(Stop, match="Another run of this command is at work.*--shard") as stop:
        open_results(make_options(output=output), RECIPE, None, RUN)
    assert stop.value.code == 1
    results.close()
    write(make_options(output=output), [make_row(1)])
    other.close()


def test_the_index_prefers_success_and_then_the_last():
    index = Index()
    old, new = failed(0), {**failed(0), "error": "another"}
    index.add([old, new, make_row(1, text="good"), make_row(1, text="better"), failed(1)], json.dumps)
    assert index.match(0, 2) == ([0, 1], [new, make_row(1, text="better")])
    assert index.match(["train-1", "nobody", "train-0"], 3) == ([0, 2], [make_row(1, text="better"), new])


def test_the_index_answers_while_another_thread_reads():
    index = Index()
    index.add(make_row(n, id=f"id-{n}") for n in range(20_000))
    wrong = []

    def look():
        wrong.extend(n for n in range(20_000) if f"id-{n}" not in index)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_files_hold_text_and_everything_else():
    blocks = {"schema": "ocr-blocks/1", "width": 10, "height": 20, "blocks": []}
    rows = [make_row(0, name="a/b", blocks=json.dumps(blocks), columns={"n": 3}), make_row(1, text=""), failed(2)]
    results = write(make_options(output="./out"), rows)
    assert Path("out/a/b.md").read_text() == "text 0" and Path("out/train-1.md").read_text() == ""
    page = json.loads(Path("out/a/b.json").read_text())
    assert page["blocks"] == blocks and page["columns"] == {"n": 3} and page["id"] == "train-0"
    assert page["inference_info"][0]["model_id"] == "org/model" and "text" not in page
    assert not Path("out/train-2.md").exists()
    [errors] = Path("out/_run").glob("errors-*.jsonl")
    assert json.loads(errors.read_text())["error"] == "it is torn"
    said = results.finish(None, RUN, {})
    assert said.startswith("Pages in ./out: 2. Not read: 1") and "train-2: it is torn" in said
    assert json.loads(Path("out/_run/summary.json").read_text())["errors"] == 1
    assert not list(Path("out").rglob(".tmp*")), "temporary files remain"
    assert {path.name.split("-")[0] for path in Path("out/_run").iterdir()} == {
        "run.json",
        "summary.json",
        "done",
        "errors",
    }


def test_a_deleted_text_is_read_again():
    write(make_options(output="./out"), [make_row(0), make_row(1)])
    Path("out/train-1.md").unlink()
    done = open_results(make_options(output="./out"), RECIPE, None, RUN).done
    assert "train-0" in done and "train-1" not in done


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "_run/run", "a//b", "a\0b", ""])
def test_names_stay_inside_the_output_folder(name, tmp_path):
    write(make_options(output="./deep/out"), [make_row(0, name=name), make_row(1)])
    texts = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")]
    assert texts == ["deep/out/train-1.md"]
    [errors] = Path("deep/out/_run").glob("errors-*.jsonl")
    assert "does not lie inside" in errors.read_text()


def test_a_shard_does_not_publish():
    results = write(make_options(shard=(0, 4)), [make_row(0)])
    assert "the same command without --shard finishes the run" in results.finish(None, RUN, {})
    assert part_rows()
