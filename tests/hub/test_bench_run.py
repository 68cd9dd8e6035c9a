"""The coordinator against a Hub: real jobs of a trivial recipe, what the Jobs API may answer, and whole local runs."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

import pytest
from PIL import Image

from tests.hub.loopback.client import PROJECT, LoopbackHub
from tests.trivial import write_pages, write_trivial

SCRIPT = PROJECT / "ocr" / "ocr-bench-run.py"
# What a job of an image does: the interpreter and the packages are there already.
HEADER = f"""# dependencies = []
#
# [tool.hf-jobs]
# image = "trivial:1"
# flavor = "cpu-basic"
# timeout = "20m"
# python = "{sys.executable}"
# env = {{ PYTHONPATH = "{sysconfig.get_path("purelib")}" }}
# secrets = ["HF_TOKEN"]
# ///"""
PER_HOUR = 0.000167 * 60  # what the loopback Hub asks for cpu-basic


@pytest.fixture
def pages(hub):
    """A dataset of six pages on the Hub and two recipes in the working folder: one, and one that cannot start."""
    buffers = []
    for n in range(6):
        buffer = io.BytesIO()
        Image.new("RGB", (30, 40), (n, 7, 7)).save(buffer, "PNG")
        buffers.append(buffer.getvalue())
    hub.add_files("user/scans", {f"train/{n}.png": data for n, data in enumerate(buffers)})
    path = write_trivial(hub.work, {"# dependencies = []\n# ///": HEADER})
    (hub.work / "one.py").write_text(path.read_text().replace('"name": "trivial"', '"name": "one"'))
    broken = HEADER.replace("# ///", '# ///\nRECIPE = {"name": "broken", "model": "test/broken", "engine": "local"}\n')
    code = 'print("Error: ModuleNotFoundError: no such thing, token hf_abcdefghij")\nraise SystemExit(1)\n'
    (hub.work / "broken.py").write_text(f'# /// script\n# requires-python = ">=3.11"\n{broken}{code}')
    return hub


def run(hub, *args, code=0, **settings):
    """Runs the coordinator; returns (its last JSON line, stderr)."""
    done = hub.run([SCRIPT, *args], check=False, timeout=900, **settings)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}, done.stderr


def state_of(hub):
    return json.loads((hub.work / ".ocr-runs/bench/user--bench.json").read_text())


WORDS = ("user/scans", "user/bench", "--poll", "0.2", "--max-samples", "4")


def test_models_run_as_jobs_and_come_back_as_checked_pull_requests(pages):
    hub, models = pages, ("--models", "./one.py,./broken.py")
    plan, said = run(hub, *WORDS, *models, "--dry-run", "--startup-minutes", "60", "--pages-per-second", "100")
    assert plan["expected_usd"] == pytest.approx(2 * PER_HOUR / 3) and "At most" in said  # each ends after 20 minutes
    assert not hub.jobs() and not hub.requests("^POST .*create") and not (hub.work / ".ocr-runs").exists()

    # an open pull request of an earlier run stands in the way
    hub.add_files("user/bench", {"README.md": "# A bench"})
    stale = {"key": "header", "value": {"summary": "OCR with an older recipe [one]"}}
    file = {"key": "file", "value": {"path": "one/train.txt", "content": "b2xk"}}
    body = "\n".join(map(json.dumps, (stale, file))).encode()
    hub.call("POST", "/api/datasets/user/bench/commit/main?create_pr=1", body)
    _, said = run(hub, *WORDS, *models, code=2)
    assert "already has one" in said and "--on-existing" in said and not hub.jobs()

    words = (*WORDS, *models, "--on-existing", "replace", "--merge", "on-success", "--label", "team=a")
    summary, said = run(hub, *words, "--budget-usd", "5", code=1)
    one, state = summary["models"]["one"], state_of(hub)
    assert (one["status"], one["rows"], one["errors"], one["problems"]) == ("done", 4, 0, []) and "--resume" in said
    assert state["revision"] == hub.commits("user/scans")[0]["id"] == summary["revision"]
    failed = state["runs"]["broken"]
    assert (failed["status"], failed["cause"], failed["attempts"]) == ("failed", "packages", 1)
    assert "no such thing" in str(failed["failure_tail"]) and "hf_" not in json.dumps(state).replace("hf_***", "")

    jobs = {job["spec"]["labels"]["config"]: job["spec"] for job in hub.jobs()}
    assert len(hub.jobs()) == 2 and set(jobs) == {"one", "broken"}
    spec = jobs["one"]
    assert (spec["dockerImage"], spec["flavor"], spec["timeoutSeconds"]) == ("trivial:1", "cpu-basic", 1200)
    assert spec["labels"]["team"] == "a" and spec["labels"]["ocr-bench"] == state["id"]
    assert spec["secrets"] == {"HF_TOKEN": hub.tokens["write"]} and "PYTHONPATH" in spec["environment"]
    command = " ".join(spec["command"])
    assert f"--input-revision {state['revision']}" in command and "--config one --create-pr" in command
    assert "--python" in command and "--seed 42" in command
    requests = {request["num"]: request["status"] for request in hub.pull_requests("user/bench")}
    assert requests == {1: "closed", one["pull_request"]: "merged"}

    # the same command goes on: what is done stays, what failed is tried again, and what it reads is what it began with
    (hub.work / "broken.py").write_text("changed since")
    summary, _ = run(hub, *words, code=1)
    assert [job["spec"]["labels"]["config"] for job in hub.jobs()[2:]] == ["broken"]
    assert summary["models"]["broken"]["attempts"] == 2 and summary["models"]["one"]["rows"] == 4


def test_jobs_that_were_only_submitted_are_waited_for_and_judged(pages):
    hub, words = pages, (*WORDS, "--models", "./one.py")
    submitted, said = run(hub, *words, "--no-wait")
    job = hub.jobs()[0]["id"]
    assert submitted == {"jobs": {"one": job}, "state": ".ocr-runs/bench/user--bench.json", "exit_code": 0}
    assert "To wait for them" in said and state_of(hub)["runs"]["one"]["status"] == "running"
    run(hub, *words, "--no-wait")
    assert len(hub.jobs()) == 1, "it is at work already"

    (hub.work / "judge.py").write_text(
        "import pathlib, sys\npathlib.Path('judged').write_text(' '.join(sys.argv[1:]))\nprint('{\"votes\": 7}')\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    summary, said = run(hub, *words, "--judge", f"{sys.executable} judge.py 0 --from-prs {{output}}")
    assert (summary["models"]["one"]["status"], summary["judge_exit_code"], summary["exit_code"]) == ("done", 0, 0)
    assert (hub.work / "judged").read_text() == "0 --from-prs user/bench" and '{"votes": 7}' in said
    summary, _ = run(hub, *words, "--judge", f"{sys.executable} judge.py 3", code=3)
    assert (summary["models"]["one"]["status"], summary["exit_code"]) == ("done", 3) and len(hub.jobs()) == 1


@pytest.fixture(scope="module")
def shared_hub(tmp_path_factory):
    """A Hub whose jobs end at once without running, with a dataset of pages."""
    with LoopbackHub(tmp_path_factory.mktemp("hub"), run_jobs=False) as hub:
        hub.add_files("user/scans", {"data/train.txt": "a page"})
        yield hub


@pytest.fixture
def idle(shared_hub, tmp_path):
    """That Hub with an empty working folder that has one recipe; `jobs_of` and `requests_of` count from here on."""
    path = write_trivial(tmp_path, {"# dependencies = []\n# ///": HEADER})
    (tmp_path / "one.py").write_text(path.read_text().replace('"name": "trivial"', '"name": "one"'))
    shared_hub.clear_faults()
    shared_hub.work, shared_hub.before = tmp_path, (len(shared_hub.jobs()), len(shared_hub.requests()))
    return shared_hub


def answer(hub, stage, message=None, times=1, **more):
    """Lets the Jobs API say this about the next job that is looked at."""
    owner = {"id": "id-user", "name": "user", "type": "user"}
    job = {"id": "0" * 24, "owner": owner, "createdAt": "2026-01-01T00:00:00Z", **more}
    job["status"] = {"stage": stage, "message": message}
    hub.fault("GET", r"/api/jobs/user/[0-9a-f]{24}$", status=200, body=json.dumps(job), times=times)


def jobs_of(hub):
    return hub.jobs()[hub.before[0] :]


def requests_of(hub, pattern):
    seen = hub.requests()[hub.before[1] :]
    return [entry for entry in seen if re.search(pattern, f"{entry['method']} {entry['url']}")]


def test_missing_capacity_is_tried_again_and_another_failure_is_not(idle):
    answer(idle, "ERROR", "Scheduling failure: no capacity for cpu-basic")
    answer(idle, "RUNNING")
    answer(idle, "ERROR", "Job failed with exit code: 2")
    idle.fault("POST", "/api/jobs/user$", status=503, applied=True)  # submitted, and the answer is lost
    summary, _ = run(idle, *WORDS, "--models", "./one.py", code=1)
    assert (summary["models"]["one"]["cause"], summary["models"]["one"]["attempts"]) == ("preflight", 2)
    assert [job["spec"]["labels"]["attempt"] for job in jobs_of(idle)] == ["1", "2"]


def test_a_job_whose_submission_was_cut_off_is_found_and_not_submitted_twice(idle):
    answer(idle, "ERROR", "exit code: 2")
    run(idle, *WORDS, "--models", "./one.py", code=1)
    state = state_of(idle)
    state["runs"]["one"] |= {"status": "submitting", "job_id": None, "cause": None}  # killed before the job's id came
    (idle.work / ".ocr-runs/bench/user--bench.json").write_text(json.dumps(state))
    summary, _ = run(idle, "--resume", "--state", ".ocr-runs/bench/user--bench.json", "--poll", "0.2", code=1)
    assert summary["models"]["one"]["job_id"] == jobs_of(idle)[0]["id"] and len(jobs_of(idle)) == 1
    assert (summary["models"]["one"]["status"], summary["models"]["one"]["cause"]) == ("failed", "no output")


def test_the_budget_is_a_limit_and_what_it_stops_can_go_on(idle):
    _, said = run(idle, *WORDS, "--models", "./one.py", "--budget-usd", "0.0001", code=2)
    assert "below the expected" in said and not jobs_of(idle)
    answer(idle, "RUNNING", startedAt="2026-01-01T00:00:00Z", times=100)
    _, said = run(idle, *WORDS, "--models", "./one.py", "--budget-usd", "1", code=1)
    assert "higher --budget-usd" in said and len(requests_of(idle, "^POST .*/cancel$")) == 1
    assert (state_of(idle)["runs"]["one"]["status"], state_of(idle)["runs"]["one"]["cause"]) == ("stopped", "budget")


def test_an_interrupt_leaves_the_jobs_running_and_says_how_to_go_on(idle):
    answer(idle, "RUNNING", times=100_000)
    command = [sys.executable, str(SCRIPT), *WORDS, "--models", "./one.py"]
    process = subprocess.Popen(
        command, cwd=idle.work, env=idle.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for line in process.stderr:
        if "one: RUNNING" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1 and "--resume" in err and not requests_of(idle, "/cancel$"), err
    assert json.loads(out.splitlines()[-1])["models"]["one"]["status"] == "running"
    idle.clear_faults()
    summary, _ = run(idle, *WORDS, "--models", "./one.py", code=1)  # the job has ended meanwhile, without an output
    assert len(jobs_of(idle)) == 1 and summary["models"]["one"]["cause"] == "no output"


def test_an_interrupt_may_cancel_the_jobs_and_the_same_command_starts_them_again(idle):
    answer(idle, "RUNNING", times=100_000)
    words = [*WORDS, "--models", "./one.py,two=./one.py", "--cancel-on-exit"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *words], cwd=idle.work, env=idle.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    for line in process.stderr:
        if "two: RUNNING" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1 and "canceled" in err, err
    runs, canceled = json.loads(out.splitlines()[-1])["models"], requests_of(idle, "^POST .*/cancel$")
    assert {(run["status"], run["cause"]) for run in runs.values()} == {("stopped", "stopped")}
    assert all(any(job["id"] in entry["url"] for entry in canceled) for job in jobs_of(idle)) and len(canceled) == 2
    idle.clear_faults()
    judge = f'{sys.executable} -c \'open("judged", "w")\''
    summary, _ = run(idle, *words, "--judge", judge, code=1)  # these jobs end at once, without an output
    assert {run["attempts"] for run in summary["models"].values()} == {2} and len(jobs_of(idle)) == 4
    assert summary["judge_exit_code"] is None and not (idle.work / "judged").exists()


def test_a_job_that_was_being_submitted_is_canceled_too(idle):
    idle.fault("POST", "/api/jobs/user$", status=503, applied=True)  # submitted, and the answer is lost
    idle.fault("GET", "/api/jobs/user\\?", status=503, after=1, times=2)  # nor does it say at once that it is there
    answer(idle, "RUNNING", times=100_000)
    words = [*WORDS, "--models", "./one.py", "--cancel-on-exit"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *words], cwd=idle.work, env=idle.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    for _ in range(600):
        if jobs_of(idle):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1 and len(requests_of(idle, "^POST .*/cancel$")) == 1, err
    assert json.loads(out.splitlines()[-1])["models"]["one"]["status"] == "stopped"


def test_a_model_or_an_input_that_cannot_be_read_stops_before_anything_is_made(idle):
    text = (idle.work / "one.py").read_text().replace('"engine": "local"', '"engine": "vllm"')
    (idle.work / "served.py").write_text(text)
    _, said = run(idle, *WORDS, "--models", "./served.py", code=2)
    assert "test/trivial" in said and "leave one out" in said
    _, said = run(idle, "user/nothing", *WORDS[1:], "--models", "./one.py", code=2)
    assert "user/nothing" in said
    _, said = run(idle, *WORDS, "--models", "./one.py", code=2, env={"HF_TOKEN": idle.tokens["read"]})
    assert "can only read" in said
    assert not jobs_of(idle)


def test_local_runs_into_folders_find_pages_that_a_model_lacks(idle):
    write_pages(idle.work / "in", 5)
    command = ["in", "--local", "--output-dir", "out", "--launcher", sys.executable]
    models = ["--models", "./one.py,few=./one.py", "--arguments", "few=--max-samples 3"]
    summary, _ = run(idle, *command, *models, code=3)
    assert summary["models"]["one"]["status"] == "done" and summary["models"]["one"]["rows"] == 5
    assert summary["models"]["few"]["problems"] == ["2 of 5 pages are missing that another model has"]
    assert len(list((idle.work / "out/one").glob("*.md"))) == 5 and not requests_of(idle, "^POST")


@pytest.mark.skipif(not shutil.which("tesseract"), reason="tesseract is not installed")
def test_two_cpu_models_run_here_and_are_pushed_as_pull_requests(hub):
    (hub.work / "in").mkdir()
    page = Image.open(PROJECT / "samples" / "english.png").convert("L")
    for n in range(2):  # two strips of a page: whole ones take seconds each
        page.crop((0, n * 200, page.width, n * 200 + 250)).save(hub.work / "in" / f"{n}.png")
    command = ["in", "user/bench", "--local", "--launcher", sys.executable, "--models", "pp-ocrv6,tesseract-ocr"]
    summary, _ = run(hub, *command, env={"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"})
    assert {one["status"] for one in summary["models"].values()} == {"done"}
    for name, one in summary["models"].items():
        assert (one["rows"], one["errors"]) == (2, 0) and one["median_chars"] > 50
        assert any(path.startswith(f"{name}/train-") for path in hub.files("user/bench", one["revision"]))
    assert [request["status"] for request in hub.pull_requests("user/bench")] == ["open", "open"]
    assert os.path.exists(hub.work / ".ocr-runs/bench/user--bench.json")
