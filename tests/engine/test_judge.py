"""The offline jury on the real vLLM with a tiny judge: whatever its weights say, what comes out is a verdict."""

import json
import subprocess
from collections import Counter

import pytest
from PIL import Image, ImageDraw

from kit.votes import LABELS, VoteStore
from tests.engine.conftest import CPU_ARGS, ROOT, last_json

PAGES, TOO_LONG = 4, 2  # how many pages, and which has a text that does not fit
# The tiny tokenizer has one token for every byte: the question takes 1,300, a reason of 400 characters up to 1,600.
CONTEXT, ANSWER = 6000, 2000


@pytest.fixture(scope="module")
def judged(python, environment, tiny, tmp_path_factory):
    """(result of the run, its votes): two runs over four pages, judged in both orders."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "in").mkdir()
    for number in range(PAGES):
        image = Image.new("RGB", (112, 168), "white")
        ImageDraw.Draw(image).text((10, 20), f"Page {number}", fill="black")
        image.save(folder / "in" / f"p{number}.png")
        for name in ("one", "two"):
            (folder / name).mkdir(exist_ok=True)
            text = f"Page {number} as {name} read it " * (300 if number == TOO_LONG and name == "two" else 2)
            (folder / name / f"p{number}.md").write_text(text)
    command = [
        python, ROOT / "ocr/ocr-vllm-judge.py", "one", "two", "--images", "in", "--output-dir", "votes",
        "--judge-model", tiny("glm_ocr"), "--max-model-len", CONTEXT, "--max-tokens", ANSWER, "--image-side", 168,
        "--max-text-chars", 20000, "--repeat-share", 0, "--max-invalid-rate", 0.5, "--bootstrap", 50,
        "--engine-args", json.dumps(CPU_ARGS),
    ]  # fmt: skip
    result = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
    )
    return result, VoteStore(folder / "votes").votes()


def test_the_judge_answers_and_the_run_ends_well(judged):
    result, votes = judged
    assert result.returncode == 0, result.stderr[-4000:]
    said = last_json(result.stdout)
    assert (said["pairs"], len(votes), said["judges_stopped"]) == (PAGES, 2 * PAGES, {})


def test_a_prompt_that_does_not_fit_voids_one_comparison(judged):
    _, votes = judged
    void = {vote["row_key"] for vote in votes if vote["parse_status"] == "length"}
    assert void == {f"p{TOO_LONG}"}
    assert Counter(vote["parse_status"] for vote in votes) == {"ok": 2 * (PAGES - 1), "length": 2}


def test_a_model_of_random_weights_gives_nothing_but_verdicts(judged):
    _, votes = judged
    counted = [vote for vote in votes if vote["parse_status"] != "length"]
    assert all(vote["winner"] in LABELS and vote["finish_reason"] == "stop" for vote in counted)
    assert all(vote["prompt_tokens"] > 1000 and vote["completion_tokens"] > 20 for vote in counted)
