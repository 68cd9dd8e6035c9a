"""Whole runs of a stamped recipe as a user starts them: killed, stopped, sharded, misused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit import files
from kit.seam import Stop
from tests.trivial import write_pages, write_trivial

QUICK_PARTS = {"PART_ROWS, PART_SECONDS = 256, 60.0": "PART_ROWS, PART_SECONDS = 16, 0.3"}


def start(recipe, *args, env=None, cwd=None, seconds=0, **how):
    command, env = [sys.executable, str(recipe), *map(str, args)], {**os.environ, **(env or {})}
    env["TRIVIAL_SECONDS"] = str(seconds)
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def finish(process, code=0, timeout=120):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err[-4000:]}"
    return json.loads(out.splitlines()[-1]) if out.strip() else {}, err


def texts_in(folder):
    return {path.stem: path.read_text() for path in Path(folder).rglob("*.md")}


def kill_at_random_points(command, log, rng, seconds=0.03, **settings):
    """Starts the command up to 20 times and kills each run at a random moment of its work; yields after each kill."""
    for _ in range(20):
        process = start(*command, seconds=seconds, **settings)
        read = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (not log.exists() or log.stat().st_size == read):
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.2))
        if process.poll() is not None:
            return
        process.kill()
        process.wait()
        yield


def test_kill_at_random_points_loses_nothing_in_a_folder(tmp_path):
    recipe, log, out = write_trivial(tmp_path), tmp_path / "log", tmp_path / "out"
    texts = write_pages(tmp_path / "in", 500)
    before, kills, command = set(), 0, (recipe, tmp_path / "in", out)
    for _ in kill_at_random_points(command, log, random.Random(7), env={"TRIVIAL_LOG": str(log)}):
        kills += 1
        now = set(texts_in(out))
        assert before <= now
        before = now
    finish(start(recipe, tmp_path / "in", out))
    assert texts_in(out) == texts
    assert sorted(p.stem for p in out.glob("*.json")) == sorted(texts)
    assert {p.suffix for p in out.rglob("*") if p.is_file()} <= {".md", ".json", ".jsonl"}
    # each kill costs at most the two pages that each worker holds and what the writer had not yet written
    assert kills >= 5 and len(log.read_text().splitlines()) <= 500 + kills * (64 + 4)


def test_kill_at_random_points_loses_nothing_on_the_way_to_the_hub(tmp_path, hub):
    recipe = write_trivial(tmp_path, replace=QUICK_PARTS)
    texts = write_pages(tmp_path / "in", 500)
    log, command = tmp_path / "log", (recipe, "in", "user/out")
    env = {**hub.env, "TRIVIAL_LOG": str(log)}
    kills = sum(1 for _ in kill_at_random_points(command, log, random.Random(8), env=env, cwd=tmp_path))
    summary, _ = finish(start(recipe, "in", "user/out", "--overwrite", env=env, cwd=tmp_path))
    assert summary["exit_code"] == 0 and kills >= 4
    rows = published(hub, "user/out")
    assert [row["file_name"] for row in rows] == sorted(f"{name}.png" for name in texts)
    assert [row["markdown"] for row in rows] == [texts[name] for name in sorted(texts)]
    assert not (tmp_path / ".ocr-runs").exists() or not list((tmp_path / ".ocr-runs").rglob("*"))


def published(
    hub, repo, config="default", columns=("file_name", "markdown", "ocr_error", "ocr_flags", "trivial_blocks")
):
    code = """
        import datasets, json, sys
        data = datasets.load_dataset(sys.argv[1], sys.argv[2], split="train")
        data = data.select_columns([c for c in data.column_names if c in sys.argv[3].split(",")])
        print(json.dumps(list(data)))
    """
    return json.loads(hub.python(code, repo, config, ",".join(columns)).stdout.splitlines()[-1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_saves_what_is_finished_within_ten_seconds(tmp_path, number):
    recipe, log = write_trivial(tmp_path), tmp_path / "log"
    texts = write_pages(tmp_path / "in", 200)
    process = start(recipe, "in", "out", env={"TRIVIAL_LOG": str(log)}, seconds=0.1, cwd=tmp_path)
    while not log.exists() or len(log.read_text().splitlines()) < 12:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    asked, started = len(log.read_text().splitlines()), time.monotonic()
    process.send_signal(number)
    summary, err = finish(process, code=1, timeout=10)
    assert time.monotonic() - started < 10 and "the same command resumes" in err.lower()
    written = texts_in(tmp_path / "out")
    assert summary["exit_code"] == 1 and len(written) == summary["pages"] >= asked - 4
    summary, _ = finish(start(recipe, "in", "out", cwd=tmp_path))
    assert summary["skipped"] == len(written) and texts_in(tmp_path / "out") == texts


def test_a_closed_terminal_saves_what_is_finished(tmp_path):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 200)
    process = start(recipe, "in", "out", seconds=0.1, cwd=tmp_path, start_new_session=True)
    while not texts_in(tmp_path / "out"):
        assert process.poll() is None
        time.sleep(0.05)
    process.stdout.close()
    process.stderr.close()
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(60) in (1, 120)  # 120: Python could not flush stdout, which nobody reads
    left = texts_in(tmp_path / "out")
    assert 0 < len(left) < 200
    summary, _ = finish(start(recipe, "in", "out", cwd=tmp_path))
    assert summary["skipped"] == len(left) and texts_in(tmp_path / "out") == texts


def test_a_run_under_nohup_outlives_the_terminal(tmp_path):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 20)
    command = ["nohup", sys.executable, str(recipe), "in", "out"]
    env = {**os.environ, "TRIVIAL_SECONDS": "0.1"}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True)
        while not texts_in(tmp_path / "out"):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGHUP)
        assert process.wait(60) == 0
    assert texts_in(tmp_path / "out") == texts


def test_two_shards_at_once_then_the_same_command_make_one_result_in_source_order(tmp_path, hub):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 60)
    (tmp_path / "in" / "page-00031.png").write_bytes(b"")
    shards = [start(recipe, "in", "user/out", "--shard", f"{n}/2", env=hub.env, cwd=tmp_path) for n in range(2)]
    said = [finish(process) for process in shards]
    assert [summary["pages"] for summary, _ in said] == [30, 30] and "without --shard" in said[0][1]
    assert not hub.requests("POST .*/commit/")
    summary, _ = finish(start(recipe, "in", "user/out", env=hub.env, cwd=tmp_path))
    assert summary["pages"] == 0 and summary["skipped"] == 60
    rows = published(hub, "user/out")
    assert [row["file_name"] for row in rows] == sorted(f"{name}.png" for name in texts)
    for row in rows:
        if row["file_name"] == "page-00031.png":
            assert row["markdown"] is None and "empty" in row["ocr_error"]
        else:
            assert row["markdown"] == texts[row["file_name"][:-4]] and row["ocr_error"] is None
            assert json.loads(row["trivial_blocks"])["blocks"][0]["bbox"] == [0, 0, 30, 40]


def test_errors_are_rows_not_asked_again_and_healed_by_retry_errors(tmp_path):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 12)
    for n in range(3):
        (tmp_path / "in" / f"page-{n:05d}.png").write_text("not an image")
    summary, _ = finish(start(recipe, "in", "out", cwd=tmp_path), code=3)
    assert (summary["pages"], summary["errors"], summary["exit_code"]) == (12, 3, 3)
    assert len(texts_in(tmp_path / "out")) == 9
    summary, _ = finish(start(recipe, "in", "out", cwd=tmp_path), code=3)
    assert (summary["pages"], summary["skipped"], summary["earlier_errors"]) == (0, 12, 3)
    write_pages(tmp_path / "in", 2)
    summary, _ = finish(start(recipe, "in", "out", "--retry-errors", cwd=tmp_path))
    assert summary["pages"] == 3 and summary["errors"] == 1
    assert texts_in(tmp_path / "out") == {name: text for name, text in texts.items() if name != "page-00002"}


BAD_USAGE = [
    (["in", "out", "--task", "poem"], "invalid choice: 'poem'"),
    (["in", "out", "--shard", "4/4"], "0 <= I < N"),
    (["in", "out", "--max-samples", "0"], "above 0"),
    (["nothing-here", "out"], "nothing-here"),
    (["a/b/c", "out"], "a/b/c"),
    (["https://example.org/x.png", "out"], "hf://"),
    (["empty", "out"], "no files"),
    (["same", "out"], "--keep-extension"),
    (["in", "file.txt"], "file.txt"),
    (["in", "out", "--engine", "serve"], "serve"),
]


@pytest.mark.parametrize("args, words", BAD_USAGE)
def test_bad_usage_is_one_clear_message_and_exit_code_2(tmp_path, args, words):
    recipe = write_trivial(tmp_path)
    write_pages(tmp_path / "in", 1)
    (tmp_path / "empty").mkdir()
    write_pages(tmp_path / "same", 1)
    (tmp_path / "same" / "page-00000.jpg").write_bytes(b"x")
    (tmp_path / "file.txt").write_text("x")
    process = start(recipe, *args, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and words in err and "Traceback" not in err, err


def test_a_checkpoint_of_another_task_model_or_source_is_a_clear_stop(tmp_path):
    recipe = write_trivial(tmp_path)
    write_pages(tmp_path / "in", 2)
    write_pages(tmp_path / "other", 2)
    finish(start(recipe, "in", "out", cwd=tmp_path))
    for args in (["in", "out", "--task", "other"], ["in", "out", "--model", "test/another"], ["other", "out"]):
        _, err = finish(start(recipe, *args, cwd=tmp_path), code=2)
        assert "Traceback" not in err and any(word in err for word in ("its task is", "its model is", "its uri is"))


def test_a_job_refuses_a_folder_that_is_gone_afterwards(tmp_path):
    recipe = write_trivial(tmp_path)
    write_pages(tmp_path / "in", 1)
    on_root = Path.home() / "ocr-out-of-a-job"
    _, err = finish(start(recipe, "in", on_root, cwd=tmp_path, env={"JOB_ID": "1"}), code=2)
    assert "gone when the job ends" in err and not on_root.exists()


def test_secrets_are_nowhere(tmp_path, hub):
    recipe = write_trivial(tmp_path)
    write_pages(tmp_path / "in", 3)
    secret = hub.tokens["write"]
    process = start(recipe, "in", "user/out", "--keep-checkpoint", "--verbose", env=hub.env, cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert secret not in out + err
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "trivial.py"]
    assert files and not [p for p in files if secret.encode() in p.read_bytes()]
    for path in hub.files("user/out"):
        assert secret.encode() not in hub.read("user/out", path)


def test_help_and_dry_run_need_no_network_and_no_heavy_import(tmp_path):
    recipe = write_trivial(tmp_path)
    heavy = "datasets huggingface_hub pyarrow numpy PIL torch".split()
    block = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in heavy)
    (tmp_path / "sitecustomize.py").write_text(block)
    env = {"PYTHONPATH": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    out, err = start(recipe, "--help", cwd=tmp_path, env=env).communicate(timeout=60)
    assert "--max-error-rate" in out and "Trivial: the size of a page" in out
    process = start(recipe, "in", "out", "--dry-run", cwd=tmp_path, env=env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and json.loads(out)["settings"]["task"] == "ocr"


def test_a_page_of_a_document_and_a_file_of_the_same_name_are_a_clear_stop(tmp_path):
    from PIL import Image

    recipe = write_trivial(tmp_path)
    write_pages(tmp_path / "in" / "a", 1)
    (tmp_path / "in" / "a" / "page-00000.png").rename(tmp_path / "in" / "a" / "page_001.png")
    frames = [Image.new("L", (20, 20), value) for value in (1, 2)]
    frames[0].save(tmp_path / "in" / "a.tif", save_all=True, append_images=frames[1:])
    _, err = finish(start(recipe, "in", "out", cwd=tmp_path), code=2)
    assert "a/page_001.md" in err


def test_names_that_no_folder_holds_are_error_rows_and_count(tmp_path):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 4)
    for name in ("_run", "x" * 251, "y" * 251):
        (tmp_path / "in" / f"{name}.png").write_bytes((tmp_path / "in" / "page-00000.png").read_bytes())
    finish(start(recipe, "in", "out", cwd=tmp_path), code=3)
    assert texts_in(tmp_path / "out") == texts


def test_files_without_end_and_links_that_lead_back_are_not_read(tmp_path):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 4)
    os.mkfifo(tmp_path / "in" / "fifo.png")
    (tmp_path / "in" / "endless.png").symlink_to("/dev/zero")
    (tmp_path / "in" / "back").symlink_to(".")
    (tmp_path / "in" / "nowhere.png").symlink_to("gone.png")
    summary, err = finish(start(recipe, "in", "out", cwd=tmp_path))
    assert texts_in(tmp_path / "out") == texts and (summary["pages"], summary["errors"]) == (5, 1)
    assert "name them as INPUT to read them: " + str(tmp_path / "in" / "back") in err


def test_a_folder_that_cannot_be_listed_is_a_clear_stop(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(files.os, "scandir", refusing(files.os.scandir, tmp_path / "closed"))
    with pytest.raises(Stop, match="closed cannot be listed: Permission denied. Make it readable"):
        files.local_files(str(tmp_path))


def refusing(scandir, folder):
    """`scandir` for a user who may not read the folder; who runs the tests may be root."""

    def refuse(path):
        if os.fspath(path) == str(folder):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(path)

    return refuse


def test_files_that_vanish_meanwhile_are_noticed_and_read_again(tmp_path):
    recipe, log = write_trivial(tmp_path), tmp_path / "log"
    texts = write_pages(tmp_path / "in", 300)
    process = start(recipe, "in", "out", env={"TRIVIAL_LOG": str(log)}, seconds=0.03, cwd=tmp_path)
    while not texts_in(tmp_path / "out"):
        assert process.poll() is None
        time.sleep(0.05)
    for path in (tmp_path / "out").glob("*.md"):
        path.unlink()
    _, err = finish(process, code=1)
    assert "The same command reads them again" in err
    finish(start(recipe, "in", "out", cwd=tmp_path))
    assert texts_in(tmp_path / "out") == texts


@pytest.mark.parametrize("damage", ["run.json", "done-*.jsonl"])
def test_damaged_records_of_a_run_are_a_clear_stop(tmp_path, damage):
    recipe = write_trivial(tmp_path)
    write_pages(tmp_path / "in", 3)
    finish(start(recipe, "in", "out", cwd=tmp_path))
    (path,) = (tmp_path / "out" / "_run").glob(damage)
    path.write_bytes(path.read_bytes()[:30])
    _, err = finish(start(recipe, "in", "out", cwd=tmp_path), code=2)
    assert "damaged" in err and "Traceback" not in err


def test_a_closed_stdout_does_not_undo_a_finished_run(tmp_path):
    recipe = write_trivial(tmp_path)
    texts = write_pages(tmp_path / "in", 3)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, str(recipe), "in", "out"], cwd=tmp_path, stdout=full, stderr=-1, text=True
        )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert texts_in(tmp_path / "out") == texts
