"""Results in buckets: a checkpoint on the way to a dataset, and pages as files."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kit import results as results_module
from kit import storage
from kit.results import open_results
from kit.seam import Stop
from tests.hub.test_publish import FakeSource, finish, hub, published, repo, server  # noqa: F401  (fixtures)
from tests.unit.test_results import RECIPE, RUN, failed, make_options, make_row

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bucket(request, hub, repo):  # noqa: F811
    """The URI of a folder in a bucket that is not there yet."""
    return f"hf://buckets/{repo}/folder"


def write(options, rows):
    results = open_results(options, RECIPE, None, RUN)
    for row in rows:
        results.put(row)
    results.close()
    return results


def in_bucket(hub, uri):  # noqa: F811
    owner, name, *_ = uri.removeprefix("hf://buckets/").split("/")
    return hub.bucket_files(f"{owner}/{name}")


def test_a_job_keeps_its_checkpoint_in_a_private_bucket(hub, repo, monkeypatch):  # noqa: F811
    monkeypatch.setenv("JOB_ID", "1")
    options = make_options(output=repo, keep_checkpoint=True)
    write(options, map(make_row, range(12)))
    assert hub.api().bucket_info("user/ocr-runs").private
    folder = repo.replace("/", "--")
    assert all(path.startswith(f"{folder}/") for path in in_bucket(hub, "hf://buckets/user/ocr-runs"))
    results = open_results(options, RECIPE, None, RUN)
    assert len(results.done) == 12 and not Path(".ocr-runs").exists()
    finish(make_options(output=repo))
    assert published(hub, repo)["markdown"].to_pylist() == [f"text {n}" for n in range(20)]
    assert not [path for path in in_bucket(hub, "hf://buckets/user/ocr-runs") if path.startswith(f"{folder}/")]


def test_a_foreign_checkpoint_in_a_bucket_is_a_stop(bucket):
    options = make_options(checkpoint=bucket)
    write(options, [make_row(0)])
    with pytest.raises(Stop, match="its model is 'org/model', now it is 'org/b'"):
        open_results(options, RECIPE, None, {**RUN, "model": "org/b"})


def test_a_run_that_may_be_at_work_in_the_same_bucket_is_told_and_hinders_nobody(bucket, capsys, monkeypatch):
    options = make_options(checkpoint=bucket)
    write(options, [make_row(0)])
    assert "still at work" not in capsys.readouterr().err, "there was nobody before"
    assert len(write(options, []).done) == 1
    assert f"written to {bucket}" in (said := capsys.readouterr().err) and "--shard 0/2" in said
    write(make_options(checkpoint=bucket, shard=(0, 2)), [])
    assert "still at work" not in capsys.readouterr().err, "shards work side by side"
    now = time.time()
    monkeypatch.setattr("kit.storage.time.time", lambda: now + 2 * storage.RECENT)
    assert len(write(options, []).done) == 1 and "still at work" not in capsys.readouterr().err


def test_deaths_are_kept_in_a_bucket(bucket):
    options = make_options(checkpoint=bucket)
    open_results(options, RECIPE, None, RUN).record_death(["train-1"])
    assert dict(open_results(options, RECIPE, None, RUN).deaths) == {"train-1": 1}


def test_a_refused_bucket_asks_for_another_checkpoint(hub, repo, monkeypatch):  # noqa: F811
    monkeypatch.setenv("JOB_ID", "1")
    monkeypatch.setenv("HF_TOKEN", hub.tokens["stranger"])
    with pytest.raises(Stop, match="--checkpoint hf://buckets/OWNER/NAME/FOLDER or --checkpoint FOLDER") as stop:
        open_results(make_options(output=repo), RECIPE, None, RUN)
    assert stop.value.code == 2


def test_files_in_a_bucket(hub, bucket):  # noqa: F811
    options = make_options(output=bucket)
    write(options, [make_row(0, name="a/b"), make_row(1, text=""), failed(2)])
    files = in_bucket(hub, bucket)
    assert {"folder/a/b.json", "folder/a/b.md", "folder/train-1.md", "folder/_run/run.json"} <= set(files)
    assert files["folder/train-1.md"] == 0 and "folder/train-2.md" not in files
    results = open_results(options, RECIPE, None, RUN)
    assert all(f"train-{n}" in results.done for n in range(3))
    again = write(make_options(output=bucket, retry_errors=True), [make_row(2)])
    assert "train-2" not in again.done
    assert again.finish(None, RUN, {}).endswith(": 3.")
    name = "/".join(bucket.removeprefix("hf://buckets/").split("/")[:2])
    assert json.loads(hub.bucket_read(name, "folder/_run/summary.json"))["errors"] == 0
    assert len(open_results(options, RECIPE, None, RUN).done) == 3


def test_texts_come_after_their_json(hub, bucket):  # noqa: F811
    options = make_options(output=bucket)
    results = open_results(options, RECIPE, None, RUN)
    written = []
    results.storage.write, write_all = (
        lambda files: (written.append(sorted(files)), write_all(files)),
        results.storage.write,
    )
    results.put(make_row(0))
    results.close()
    assert written[0] == ["train-0.json"] and written[1] == ["train-0.md"]


@pytest.mark.parametrize(
    "settings", [dict(status=503), dict(status=429), dict(drop=True)], ids=["503", "429", "dropped"]
)
def test_a_bucket_in_trouble_is_waited_out(hub, bucket, settings):  # noqa: F811
    hub.fault("POST", "/api/buckets/.*", **settings, times=3)
    options = make_options(checkpoint=bucket)
    write(options, [make_row(0)])
    assert "train-0" in open_results(options, RECIPE, None, RUN).done


def test_a_bucket_that_stays_away_stops_the_run(hub, bucket, monkeypatch):  # noqa: F811
    results = open_results(make_options(checkpoint=bucket), RECIPE, None, RUN)
    monkeypatch.setattr(storage, "PATIENCE", 0.0)
    hub.fault("POST", "/api/buckets/.*/batch", status=403, times=1000)
    results.put(make_row(0))
    with pytest.raises(Stop, match="cannot be written to hf://buckets") as stop:
        results.close()
    assert stop.value.code == 1


WRITER = """
import sys
sys.path.insert(0, {project!r})
from kit import results
from tests.unit.test_results import RECIPE, RUN, make_options, make_row
results.PART_ROWS = 20
run = results.open_results(make_options(checkpoint=sys.argv[1]), RECIPE, None, RUN)
for number in range(int(sys.argv[2]), 300, int(sys.argv[3])):
    if f"train-{{number}}" not in run.done:
        run.put(make_row(number))
        print(number, flush=True)
run.close()
"""


def start_writer(hub, uri, first=0, step=1):  # noqa: F811
    command = [sys.executable, "-c", textwrap.dedent(WRITER).format(project=str(PROJECT)), uri, str(first), str(step)]
    return subprocess.Popen(command, env=hub.env, cwd=hub.work, stdout=subprocess.PIPE, text=True)


def test_kill_and_resume_with_two_writers_in_one_bucket(hub, bucket):  # noqa: F811
    killed = start_writer(hub, bucket)
    for _ in range(random.Random(3).randint(60, 200)):
        killed.stdout.readline()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    writers = [start_writer(hub, bucket, first, 2) for first in (0, 1)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    results = open_results(make_options(checkpoint=bucket), RECIPE, None, RUN)
    assert len(results.done) == 300
    results.load(sorted(results.storage.list()), whole=True)
    places, records = results.done.match(0, 300)
    assert places == list(range(300)) and [record["text"] for record in records] == [f"text {n}" for n in range(300)]


def test_part_limits_are_those_of_the_design():
    assert (results_module.PART_ROWS, results_module.PART_SECONDS) == (256, 60.0)
