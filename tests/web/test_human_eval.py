"""Voting in a real browser: headless Chromium against the app as a user starts it, killed and started again."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

PROJECT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60_000  # milliseconds; nothing is expected to take seconds, but machines are busy

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed (Debian: apt install chromium)")


@pytest.fixture
def bench(tmp_path):
    """Two models' readings of four pages, one of them hostile, and the page images."""
    for name in ("model-x", "model-y"):
        (tmp_path / name).mkdir()
    (tmp_path / "pages").mkdir()
    for n in range(4):
        Image.new("RGB", (300, 400), (255, 250 - n, 240)).save(tmp_path / "pages" / f"p{n}.png")
        (tmp_path / "model-x" / f"p{n}.md").write_text(f"# Page {n}\n\nThe first reading says one thing.")
        (tmp_path / "model-y" / f"p{n}.md").write_text(f"# Page {n}\n\nThe second reading says another thing.")
    (tmp_path / "model-y" / "p3.md").write_text(
        "<img src=x onerror=\"document.title='hacked'\"><script>alert(1)</script> words"
    )
    return tmp_path


def start(folder, *more):
    """Starts the app; returns (process, URL)."""
    command = [sys.executable, str(PROJECT / "ocr" / "ocr-human-eval.py"), "model-x", "model-y", "--images", "pages",
               "--store", "votes", "--port", "0", "--repeat-share", "0", *more]  # fmt: skip
    process = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"Vote at (http://\S+)", line):
            return process, found[1]
    raise AssertionError(f"the app did not start:\n{''.join(said)[-4000:]}")


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


def shown(page):
    """The id of the pair on the screen."""
    page.wait_for_selector("#shown[data-id]", timeout=PATIENCE)
    return page.get_attribute("#shown", "data-id")


def next_pair(page, before):
    """Waits until another pair than `before` (or the end) is on the screen; returns its id, or None at the end."""
    page.wait_for_function(
        "before => document.getElementById('over') || document.getElementById('shown')?.dataset.id !== before",
        arg=before, timeout=PATIENCE,
    )  # fmt: skip
    return None if page.query_selector("#over") else page.get_attribute("#shown", "data-id")


def votes(folder):
    """{comparison id: its last vote} as the files have it."""
    lines = [line for path in sorted(folder.glob("votes/*.jsonl")) for line in path.read_text().splitlines()]
    rows = sorted(map(json.loads, lines), key=lambda row: row["created_at"])
    return {row["comparison_id"]: row for row in rows}


def enter(page, url, name):
    """Opens the app and gives a name where it asks for one."""
    page.goto(url, timeout=PATIENCE)
    page.fill("#annotator input, #annotator textarea", name, timeout=PATIENCE)
    page.click("#start")
    return shown(page)


def test_votes_by_keyboard_survive_a_kill_and_can_be_taken_back(bench, browser):
    process, url = start(bench, "--annotator", "ada")
    try:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        first = shown(page)
        assert "first reading" in page.inner_text("body") and page.query_selector("#shown img")
        assert "model-" not in page.content()  # neither name, nowhere

        page.keyboard.press("a")
        second = next_pair(page, first)
        page.keyboard.press("ArrowDown")
        third = next_pair(page, second)
        assert {row["raw_label"] for row in votes(bench).values()} == {"A", "tie"}

        page.keyboard.press("u")  # back to the second
        assert next_pair(page, third) == second
        assert votes(bench)[second]["parse_status"] == "withdrawn"
        page.keyboard.press("b")
        assert next_pair(page, second) == third
        stored = votes(bench)
        assert (stored[first]["raw_label"], stored[second]["raw_label"], len(stored)) == ("A", "B", 2)
        assert {row["judge"] for row in stored.values()} == {"human:ada"}

        process.kill()
        process.communicate()
        process, url = start(bench)
        assert enter(page, url, "ada") == third and votes(bench) == stored

        # somebody else, at the same time, who clicks twice: the second click must not hit a pair that was not seen
        other = browser.new_context().new_page()
        other.set_default_timeout(PATIENCE)
        before = enter(other, url, "bob")
        other.dblclick("#vote-A")
        after = next_pair(other, before)
        assert after not in (None, before)
        assert [row["comparison_id"] for row in votes(bench).values() if row["judge"] == "human:bob"] == [before]

        assert shown(page) == third
        page.keyboard.press("d")  # the words that differ
        page.wait_for_selector("#left mark", timeout=PATIENCE)
        page.keyboard.press("s")
        fourth = next_pair(page, third)
        page.click("#vote-both_bad")
        assert next_pair(page, fourth) is None and page.title() != "hacked" != other.title()
        assert page.query_selector("#left script, #left img, #right script, #right img") is None

        page.get_by_role("tab", name="Results").click()
        page.click("#show-results")
        page.wait_for_selector("#results", timeout=PATIENCE)
        assert "ada: 3 votes" in page.inner_text("#results") and "model-" not in page.content()
        page.click("#close-round")
        page.wait_for_function("document.getElementById('results').innerText.includes('model-')", timeout=PATIENCE)

        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err[-4000:]
        counts = json.loads(out.splitlines()[-1])["annotators"]
        assert counts["bob"]["votes"] == 1 and counts["ada"]["median_seconds"] > 0
        wanted = {"votes": 3, "skipped": 1, "ties": 1, "both_bad": 1, "repeats": 0}
        assert {name: counts["ada"][name] for name in wanted} == wanted
        assert len(list(bench.glob("votes/votes-*.jsonl"))) == 3  # a file for everybody in every process
    finally:
        process.kill()
        process.communicate()
