"""The live page of unlimited-ocr2-live.py in a real browser, while the recipe runs as a user starts it."""

import json
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
from PIL import Image

from tests.unit.recipe_file import OCR
from tests.unit.test_serve import ManyAtOnce, StandIn, completion

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 180_000  # milliseconds; nothing is expected to take seconds, but machines are busy
HOSTILE = "<img src=x onerror=document.title='hacked'>"

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed (Debian: apt install chromium)")


class Told(StandIn):
    """Streams what the test puts into the queue of each answer, as SGLang does; None ends it."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if isinstance(body["messages"][0]["content"], str):  # a client that asks whether anybody is there
            return self.send(200, completion("yes"))
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        pieces = queue.SimpleQueue()
        self.server.answers.put((len(body["messages"][0]["content"]) - 1, pieces))
        while (piece := pieces.get(timeout=300)) is not None:
            self.chunk({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
        self.chunk({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self.chunk({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}})
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


@pytest.fixture
def server():
    server = ManyAtOnce(("127.0.0.1", 0), Told)
    server.models, server.silent, server.answers = ["baidu/Unlimited-OCR-2"], False, queue.SimpleQueue()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


def command_for(server, port):
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    words = ["in", "out", "--endpoint", address, "--live-port", port, "--max-tokens", 2000]
    return list(map(str, [sys.executable, OCR / "unlimited-ocr2-live.py", *words]))


def start(folder, server):
    """(process, URL of its page)"""
    log = folder / "log.txt"
    with log.open("w") as said:
        process = subprocess.Popen(command_for(server, 0), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=said)
    while process.poll() is None:
        if found := re.search(r"What is being read shows at (http://\S+)", log.read_text()):
            return process, found[1]
        time.sleep(0.05)
    raise AssertionError(f"the run did not start:\n{log.read_text()[-4000:]}")


def shows(page, text):
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=text, timeout=PATIENCE, polling=250)


def watching(browser, url, said):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
    page.goto(url)
    return page


def test_two_people_watch_hostile_pages_being_read(tmp_path, server, browser):
    for folder, pages in (("a" + HOSTILE, 3), ("b", 2)):
        (tmp_path / "in" / folder).mkdir(parents=True)
        for n in range(pages):
            Image.new("L", (60 + n, 80), 50).save(tmp_path / "in" / folder / f"{n}.png")
    process, url = start(tmp_path, server)
    said = []
    try:
        answers = dict(server.answers.get(timeout=120) for _ in range(2))
        long, short = answers[3], answers[2]
        short.put("<PAGE>The other document")
        long.put("<PAGE><|det|>text [1, 2, 3, 4]<|/det|><script>document.title = 'hacked'</script>")
        one, two = watching(browser, url, said), watching(browser, url, said)
        for page in (one, two):
            shows(page, "2 being read")
            page.get_by_role("button", name="img src=x").click()
            shows(page, "<script>document.title = 'hacked'</script>")
            page.wait_for_function("document.getElementById('picture').naturalWidth === 60")
            assert page.query_selector("#text *, nav img, main script") is None and page.title() == "Being read"

        long.put("</script><PA")  # a mark that comes in pieces
        long.put("GE>page two ")
        for page in (one, two):
            shows(page, "page 2 of 3")
            page.wait_for_function("document.getElementById('picture').naturalWidth === 61")
        assert one.inner_text("#text").strip() == "page two"

        # While very much is written, a press of a button that takes its time counts, and who leaves is not missed.
        flood, ended = threading.Event(), threading.Event()

        def write():
            for n in range(300):
                long.put(f"{n} " + "und so weiter " * 60)
                if n == 100:
                    flood.set()
                time.sleep(0.005)
            ended.set()

        threading.Thread(target=write, daemon=True).start()
        assert flood.wait(120)
        two.close()
        one.get_by_role("button", name="b").click(delay=400)
        shows(one, "The other document")
        assert ended.wait(120)
        late = watching(browser, url, said)
        late.get_by_role("button", name="img src=x").click()
        shows(late, "299 und so weiter")  # who comes late sees all of the page
        long.put("<PAGE>the third")
        shows(late, "page 3 of 3")
        for done, pieces in enumerate((short, long), 1):  # the long one last: a page that ends gives way
            pieces.put(None)
            for page in (one, late):
                shows(page, f"{done} answers finished")
        assert "the third" in late.inner_text("#text"), "what was shown last stays"
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and json.loads(out.splitlines()[-1])["pages"] == 2
        for page in (one, late):
            shows(page, "The run is over")
            assert page.title() == "Being read" and not page.query_selector("nav button")
        assert said == []
        results = sorted(path.read_text() for path in (tmp_path / "out").rglob("*.md"))
        assert any("299 und so weiter" in text and "<script>" in text for text in results)
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_stops_the_run_before_it_begins(tmp_path, server):
    (tmp_path / "in").mkdir()
    Image.new("L", (60, 80)).save(tmp_path / "in" / "1.png")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for wanted, says in ((port, "in use"), (70_000, "0-65535")):
            ran = subprocess.run(command_for(server, wanted), cwd=tmp_path, capture_output=True, text=True, timeout=120)
            assert ran.returncode == 2 and f"--live-port {wanted}" in ran.stderr and says in ran.stderr, ran.stderr
            assert "Traceback" not in ran.stderr
    assert server.answers.empty() and not (tmp_path / "out").exists()
