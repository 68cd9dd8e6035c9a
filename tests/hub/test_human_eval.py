"""Votes of people on their way to a results dataset on the Hub: when the app ends, later, and as a pull request."""

import io
import json
import signal
import subprocess
import sys

import pyarrow.parquet as pq

from tests.hub.loopback.client import PROJECT
from tests.unit.recipe_file import load_recipe

SCRIPT = PROJECT / "ocr" / "ocr-human-eval.py"
human = load_recipe("ocr-human-eval")


def write_readings(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        for n in range(4):
            (folder / name / f"p{n}.md").write_text(f"What {name} reads on page {n}.")


def booth_of(folder):
    """The booth that the app would open over these readings, with its votes in `votes`."""
    words = [str(folder / "one"), str(folder / "two"), "--store", str(folder / "votes")]
    options = human.eval_parser().parse_args([*words, "--repeat-share", "0"])
    bench = human.load_bench(options)
    return human.Booth(bench, list(human.comparable_pairs(bench)), options.store, options)


def cast(folder, name, *labels):
    booth = booth_of(folder)
    for label in labels:
        assert booth.vote(name, booth.pending(name)[0].id, label)
    return booth


def report(hub, *words, code=0, **settings):
    done = hub.run([SCRIPT, "--report", "--store", "votes", "--push", "user/votes", *words], check=False, **settings)
    assert done.returncode == code, done.stderr
    return done


def votes_on_hub(hub, revision="main"):
    files = [name for name in hub.files("user/votes", revision) if name.startswith("comparisons/")]
    return [
        row for name in files for row in pq.read_table(io.BytesIO(hub.read("user/votes", name, revision))).to_pylist()
    ]


def test_votes_are_pushed_when_the_app_ends_and_added_to_later(hub):
    write_readings(hub.work)
    booth = cast(hub.work, "ada", "A", "tie")
    assert booth.undo("ada")
    command = [sys.executable, str(SCRIPT), "one", "two", "--store", "votes", "--push", "user/votes", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=hub.work, env=hub.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for line in process.stderr:
        if "Vote at http" in line:
            break
    assert "user/votes" not in json.dumps(hub.call("GET", "/api/datasets")), "nothing is made before there is a vote"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "added" in err, err
    assert json.loads(out.splitlines()[-1])["annotators"].keys() == {"ada"}
    pushed = votes_on_hub(hub)
    assert sorted(vote["parse_status"] for vote in pushed) == ["ok", "withdrawn"], "what was taken back is told too"
    assert [vote["winner"] for vote in human.standing(pushed)] == ["A"]

    before = hub.commits("user/votes")
    assert "has all" in report(hub).stderr and hub.commits("user/votes") == before
    cast(hub.work, "bob", "B", "B")
    hub.fault("POST", "/api/datasets/user/votes/commit/", status=403)
    refused = report(hub, code=1)
    assert "could not be added" in refused.stderr and "same command" in refused.stderr
    assert "2 votes added" in report(hub, "--create-pr").stderr
    assert len(votes_on_hub(hub)) == 2 and len(votes_on_hub(hub, "refs/pr/1")) == 4
    assert [request["status"] for request in hub.pull_requests("user/votes")] == ["open"]


def test_a_place_that_takes_no_votes_is_found_before_anybody_votes(hub):
    write_readings(hub.work)
    cast(hub.work, "ada", "A")
    assert "can only read" in report(hub, code=2, env={"HF_TOKEN": hub.tokens["read"]}).stderr
    wrong = hub.run([SCRIPT, "one", "two", "--push", "not a name", "--port", "0"], check=False)
    assert wrong.returncode == 2 and "not a name" in wrong.stderr
    assert not hub.requests("^POST .*repos/create")
