"""Whole runs of the recipes for Unlimited-OCR-2 over folders and PDFs, against a stand-in for the server."""

import base64
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import threading

import pyarrow.parquet as pq
import pytest
from PIL import Image

from kit.live_page import Reading, live_page
from tests.unit.recipe_file import OCR
from tests.unit.test_serve import ManyAtOnce, StandIn, completion, standing_in
from tests.unit.windows import LOOP, answer_of

MODEL = "baidu/Unlimited-OCR-2"


def page(number):
    """A small page whose grey says its number, also as JPEG."""
    return Image.new("L", (60, 80), 10 * number)


def text_of(number):
    return f"<|det|>text [0, 0, 999, 500]<|/det|>{saying(number)}"


def saying(number):
    """Words that no other page has: pages that are alike count as one that stands a page late."""
    return f"Page {number} says " + ", ".join(chr(96 + number) * length for length in range(3, 9))


def numbers_in(body):
    """The numbers of the pages that a body shows, in order; None for a client that asks whether anybody is there."""
    content = body["messages"][0]["content"]
    if isinstance(content, str):
        return None
    uris = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    images = [Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))) for uri in uris]
    return [round(image.getpixel((9, 9))[0] / 10) for image in images]


def run(name, folder, server, *words, code=0, env=None):
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    command = [sys.executable, OCR / f"{name}.py", *words, "--endpoint", address, "--max-tokens", 2000]
    ran = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(env or {})},
    )
    assert ran.returncode == code, f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr[-4000:]}"
    return json.loads(ran.stdout.splitlines()[-1])


def spans_of(record):
    return [(s["first"], s["status"]) for s in json.loads(record["columns"]["page_spans"])]


def test_a_folder_and_a_pdf_with_pages_that_go_wrong(tmp_path):
    (tmp_path / "in" / "book").mkdir(parents=True)
    for n in range(1, 6):
        page(n).save(tmp_path / "in" / "book" / f"{n}.png")
    (tmp_path / "in" / "book" / "3.png").write_bytes(b"\x89PNG no more")
    images = [page(n) for n in range(1, 19)]
    images[0].save(tmp_path / "in" / "act.pdf", save_all=True, append_images=images[1:])
    asked = []

    def behave(body):
        numbers = numbers_in(body)
        if numbers is None:
            return 200, completion("yes")
        asked.append(numbers)
        if len(numbers) == 1:
            return 200, completion(text_of(numbers[0]))
        if numbers == [17, 18]:
            return 400, {"error": "out of memory"}
        sections = [text_of(n) for n in numbers]
        if len(numbers) == 16:
            sections[4:6] = [LOOP, ""]
        return 200, completion(answer_of(sections))

    with standing_in(behave, [MODEL]) as server:
        told = run("unlimited-ocr2-saturate", tmp_path, server, "in", "out", "--dpi", 72, "--strip-grounding")
        out = tmp_path / "out"
        assert told["errors"] == 0 and told["flags"] == {"repaired": 2, "unreadable": 1}
        first = list(range(1, 17))
        assert sorted(asked) == sorted([[1, 2, 4, 5], first, [17, 18], [5], [6], [17], [18]])
        book = json.loads((out / "book/pages_0001-0005.json").read_text())
        assert spans_of(book) == [(1, "ok"), (2, "ok"), (3, "unreadable"), (4, "ok"), (5, "ok")]
        assert "image" in json.loads(book["columns"]["page_spans"])[2]["error"]
        assert [(p["page"], p["blocks"][0]["bbox"]) for p in book["blocks"]["pages"]] == [
            (n, [0, 0, 60, 40]) for n in (1, 2, 4, 5)
        ]
        assert (out / "act/pages_0001-0016.md").read_text() == "\n\n".join(map(saying, first))
        assert (out / "act/pages_0017-0018.md").read_text() == f"{saying(17)}\n\n{saying(18)}"
        late = json.loads((out / "act/pages_0017-0018.json").read_text())
        assert late["columns"]["page_start"] == 17 and late["columns"]["status"] == "ok"
        assert (late["page"], late["pages"]) == (17, 18)

        (out / "act/pages_0017-0018.md").unlink()  # read again, and nothing else
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*-00[01][56].*")}
        asked.clear()
        run("unlimited-ocr2-saturate", tmp_path, server, "in", "out", "--dpi", 72, "--strip-grounding")
        assert sorted(asked) == [[17], [17, 18], [18]]
        assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*-00[01][56].*")} and len(before) == 4


def test_a_window_that_fails_costs_no_other_on_the_way_to_the_hub(tmp_path, hub):
    (tmp_path / "in").mkdir()
    images = [page(n) for n in range(1, 20)]
    images[0].save(tmp_path / "in" / "act.pdf", save_all=True, append_images=images[1:])
    (tmp_path / "in" / "book").mkdir()
    (tmp_path / "in" / "book" / "20.png").write_bytes(b"")
    page(21).save(tmp_path / "in" / "book" / "21.png")

    def behave(body):
        numbers = numbers_in(body)
        if numbers is None:
            return 200, completion("yes")
        if numbers[0] == 1:
            return 400, {"error": "out of memory"}
        return 200, completion(answer_of(map(text_of, numbers)))

    with standing_in(behave, [MODEL]) as server:
        assert run("unlimited-ocr2", tmp_path, server, "in", "user/out", "--dpi", 72, env=hub.env)["errors"] == 1
    (shard,) = [name for name in hub.files("user/out") if name.endswith(".parquet")]
    failed, row, book = pq.read_table(io.BytesIO(hub.read("user/out", shard))).to_pylist()
    assert failed["file_name"] == "act.pdf/pages_0001-0016" and failed["markdown"] is failed["status"] is None
    assert "out of memory" in failed["ocr_error"]
    assert (row["file_name"], row["ocr_error"]) == ("act.pdf/pages_0017-0019", None)
    assert (row["page_start"], row["page_end"], row["status"]) == (17, 19, "ok")
    span = json.loads(row["page_spans"])[2]
    assert span["first"] == 19 and row["markdown"][span["start"] : span["end"]] == text_of(19)
    assert [p["page"] for p in json.loads(row["unlimited_blocks"])["pages"]] == [17, 18, 19]
    empty, read = json.loads(book["page_spans"])
    assert empty["status"] == "unreadable" and "empty (0 bytes)" in empty["error"] and read["status"] == "ok"
    assert book["markdown"] == f"<PAGE>\n<PAGE>{text_of(21)}" and book["ocr_error"] is None


class Slow(StandIn):
    """Streams an answer as SGLang does, and waits in the middle until somebody has seen it."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        numbers = numbers_in(body)
        if numbers is None:
            return self.send(200, completion("yes"))
        assert body["stream"] and "live" not in body
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        text = answer_of(map(text_of, numbers))
        half = text.index("<PAGE>", 1) + 3  # in the middle of the second mark
        self.chunk({"choices": [{"delta": {"content": text[:half]}, "finish_reason": None}]})
        self.chunk({"choices": [{"delta": {"content": text[half : half + 60]}, "finish_reason": None}]})
        self.server.shown.wait(120)
        self.chunk({"choices": [{"delta": {"content": text[half + 60 :]}, "finish_reason": "stop"}]})
        self.chunk({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}})
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


def test_the_live_page_shows_the_page_that_is_being_read(tmp_path):
    (tmp_path / "in").mkdir()
    for n in range(1, 4):
        page(n).save(tmp_path / "in" / f"{n}.png")
    (tmp_path / "in" / "4.png").write_bytes(b"no image")
    server = ManyAtOnce(("127.0.0.1", 0), Slow)
    server.seen, server.models, server.silent, server.shown = [], [MODEL], False, threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    command = [sys.executable, OCR / "unlimited-ocr2-live.py", "in", "out", "--endpoint", address, "--live-port", 0]
    process = subprocess.Popen(
        [*map(str, command), "--max-tokens", "2000"], cwd=tmp_path, stdout=-1, stderr=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in process.stderr if "What is being read shows at" in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        port = int(line.split(":")[-1].strip(" /\n"))
        events, seen = events_of(port), {}
        for event in events:
            if "unit" in event:
                seen[event["page"]] = (
                    event["text"] if event["page"] not in seen else seen[event["page"]] + event["text"]
                )
            if 1 in seen and len(seen[1]) > 40:
                break
        assert "pages_0001-0004" in event["unit"] and event["pages"] == 3
        assert text_of(2).startswith(seen[1]) and len(seen[1]) > 40
        assert get(port, "/")[:2] == (200, "text/html; charset=utf-8")
        status, kind, picture = get(port, f"/picture?unit={event['unit']}&page=1")
        assert (status, kind) == (200, "image/jpeg") and Image.open(io.BytesIO(picture)).getpixel((9, 9)) == (
            20,
            20,
            20,
        )
        for path in (
            "/picture?unit=other&page=1",
            f"/picture?unit={event['unit']}&page=9",
            "/etc/passwd",
            "/v1/models",
        ):
            assert get(port, path)[0] == 404
        late = next(e for e in events_of(port) if "unit" in e)  # who comes late gets the page so far
        assert late == {"unit": event["unit"], "page": 1, "pages": 3, "text": seen[1]}
        server.shown.set()
        assert [e["read"] for e in events if e.get("over")][-1:] == [1]
        out, _ = process.communicate(timeout=120)
    finally:
        server.shown.set()
        process.kill()
        server.shutdown()
        server.server_close()
    assert process.returncode == 0 and json.loads(out.splitlines()[-1])["completion_tokens"] == 6
    (result,) = (tmp_path / "out").glob("*.md")
    assert result.read_text() == "\n".join(f"<PAGE>{text_of(n)}" for n in (1, 2, 3)) + "\n<PAGE>"
    record = json.loads(result.with_suffix(".json").read_text())
    assert spans_of(record) == [(1, "ok"), (2, "ok"), (3, "ok"), (4, "unreadable")]


def through_relay(url, body=None):
    """What the relay in front of `url` answers: (status, JSON)."""
    with live_page(url, 0, "<PAGE>") as relay:
        connection = http.client.HTTPConnection(relay.removeprefix("http://").partition("/")[0], timeout=60)
        connection.request("POST" if body else "GET", "/v1/chat/completions", json.dumps(body) if body else None)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ASKED = {"live": "doc", "messages": [{"role": "user", "content": [PICTURE]}]}


@pytest.mark.parametrize(
    "sent, status, says",
    [
        ((400, {"error": "too long"}), 400, "too long"),
        (
            (200, b'data: {"choices": [{"delta": {"content": "half"}, "finish_reason": null}]}\n\n'),
            502,
            "in the middle",
        ),
        ((200, b'data: {"error": "out of memory"}\n\n'), 502, "out of memory"),
        ((200, b"data: {no JSON\n\n"), 502, "JSONDecodeError"),
    ],
)
def test_the_relay_hands_on_what_goes_wrong(sent, status, says):
    with standing_in(lambda body: sent, [MODEL]) as server:
        got, said = through_relay(f"http://127.0.0.1:{server.server_address[1]}/v1", ASKED)
    assert got == status and says in str(said)


def test_a_server_that_is_gone_looks_gone_through_the_relay():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    for body in (None, ASKED):
        with pytest.raises(http.client.RemoteDisconnected):
            through_relay(url, body)


def test_a_page_turns_with_its_whole_mark_and_an_old_answer_is_not_heard():
    reading = Reading("<PAGE>")
    old = reading.begin("doc", ["a", "b"])
    with reading.watched() as watcher:
        state = reading.begin("doc", ["a", "b"])
        reading.hear("doc", old, "late")
        for piece in ("<PAGE>one", "<PA", "GE>two", "<PAGE>three"):
            reading.hear("doc", state, piece)
        reading.end("doc", old)
        reading.end("doc", state)
        told = [watcher.get(timeout=60) for _ in range(8)]
    assert [message["text"] for message in told[1:7]] == ["", "", "one", "<PA", "two", "three"]
    assert [message["page"] for message in told[1:7]] == [0, 0, 0, 0, 1, 1]
    assert told[7] == {"unit": "doc", "over": True, "read": 2} and reading.picture("doc", 0) is None


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    reply = connection.getresponse()
    return reply.status, reply.headers["Content-Type"], reply.read()


def events_of(port):
    """Yields the events of the live page until it ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/events")
    reply = connection.getresponse()
    assert reply.headers["Content-Type"] == "text/event-stream"
    for line in reply:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
