"""A page in the browser that shows what a server is reading: the page's picture, and its text while it is written."""

import base64
import contextlib
import json
import os
import queue
import socket
import sys
import threading
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl
from urllib.request import Request, urlopen

from kit.seam import Stop, say

LIVE_HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Being read</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; margin: 0; color: #222; background: #f6f5f2; }
  header { padding: .6rem 1rem; background: #fff; border-bottom: 1px solid #ddd; }
  nav button { font: inherit; margin: .3rem .3rem 0 0; border: 1px solid #ccc; background: #fff; border-radius: 4px; }
  nav button[aria-pressed=true] { background: #222; color: #fff; }
  main { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; padding: 1rem; }
  img { max-width: 100%; max-height: 85vh; border: 1px solid #ddd; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 85vh; overflow: auto; margin: 0; }
  @media (max-width: 50rem) { main { grid-template-columns: 1fr; } }
</style>
<header><strong id="state">Waiting for the first page</strong><nav id="units"></nav></header>
<main><img id="picture" alt="the page being read"><pre id="text" aria-live="off"></pre></main>
<script>
  const units = new Map(), buttons = new Map(), at = id => document.getElementById(id);
  let shown = null, follow = true, read = 0, state = "", due = false, drawn = {};
  function show() {  // once a frame, however fast the text comes
    if (!due) requestAnimationFrame(draw);
    due = true;
  }
  function draw() {
    due = false;
    for (const [id, button] of buttons) if (!units.has(id)) { button.remove(); buttons.delete(id); }
    for (const id of units.keys()) {
      if (!buttons.has(id)) {  // kept from frame to frame: a button that is replaced under the pointer gets no click
        const button = document.createElement("button");
        button.textContent = id;
        button.onclick = () => { shown = id; follow = false; show(); };
        buttons.set(id, at("units").appendChild(button));
      }
      buttons.get(id).setAttribute("aria-pressed", id === shown);
    }
    const unit = units.get(shown);
    at("state").textContent = state || read + " answers finished, " + units.size + " being read"
      + (unit ? ": page " + (unit.page + 1) + " of " + unit.pages + " in " + shown : "");
    if (!unit) return;
    const source = "picture?unit=" + encodeURIComponent(shown) + "&page=" + unit.page;
    if (at("picture").getAttribute("src") !== source) at("picture").src = source;
    const text = at("text"), atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    if (drawn.unit === unit && drawn.page === unit.page && drawn.length <= unit.text.length) {
      text.append(unit.text.slice(drawn.length));
    } else {
      text.textContent = unit.text;
    }
    drawn = { unit, page: unit.page, length: unit.text.length };
    if (atEnd) text.scrollTop = text.scrollHeight;
  }
  const events = new EventSource("events");
  events.onmessage = event => {
    const said = JSON.parse(event.data);
    if (said.read !== undefined) read = said.read;
    if (said.finished) {
      events.close();
      units.clear();
      state = "The run is over: " + read + " answers finished";
    } else if (said.over) {
      units.delete(said.unit);
      if (shown === said.unit) { shown = null; follow = true; }
    } else if (said.unit) {
      const unit = units.get(said.unit) || { text: "" };
      unit.text = said.page === unit.page ? unit.text + said.text : said.text;
      units.set(said.unit, Object.assign(unit, { page: said.page, pages: said.pages }));
    }
    if (!units.has(shown) && follow) shown = units.keys().next().value ?? null;
    show();
  };
  events.onopen = () => { units.clear(); state = ""; };
  events.onerror = () => { state = "Out of reach: the run is over, or the connection is lost"; show(); };
</script>
</html>
"""


class Reading:
    """What is being read now, and those who watch: thread-safe.

    A message is {"unit", "page" (from 0), "pages", "text" (what is new of that page)}, {"unit", "over", "read"}, or at
    the end {"finished", "read"}.
    """

    def __init__(self, mark):
        self.mark, self.lock, self.watchers, self.units, self.read = mark, threading.Condition(), set(), {}, 0

    def begin(self, unit, pictures):
        """Starts an answer; what it returns names the answer, as a unit that is asked for again has a new one."""
        with self.lock:
            state = self.units[unit] = {"pictures": pictures, "page": -1, "text": ""}
            self.tell(self.message(unit))
            return state

    def hear(self, unit, state, new):
        """Adds to an answer. A page turns when its mark, which may come in pieces, is whole."""
        with self.lock:
            if self.units.get(unit) is not state:
                return
            *before, text = (state["text"] + new).split(self.mark)
            if before:
                state["page"] += len(before) + (state["page"] < 0 and bool(before[0].strip()))
            state["text"] = text
            self.tell(self.message(unit) if before else {**self.message(unit), "text": new})

    def end(self, unit, state):
        with self.lock:
            self.read += 1
            if self.units.get(unit) is state:
                del self.units[unit]
                self.tell({"unit": unit, "over": True, "read": self.read})

    def finish(self):
        """Tells all who watch that nothing more comes, and waits some seconds until they know."""
        with self.lock:
            self.tell({"finished": True, "read": self.read})
            self.lock.wait_for(lambda: not self.watchers, timeout=5)

    def message(self, unit):
        """Where the answer about a unit is: its page, with all of that page's text."""
        state = self.units[unit]
        pages = len(state["pictures"])
        return {"unit": unit, "page": min(max(state["page"], 0), pages - 1), "pages": pages, "text": state["text"]}

    def tell(self, message):
        for watcher in list(self.watchers):
            try:
                watcher.put_nowait(message)
            except queue.Full:  # a browser that does not keep up connects again
                self.watchers.discard(watcher)
                watcher.over = True

    @contextlib.contextmanager
    def watched(self):
        """A queue of messages that begins with where every unit is."""
        watcher = queue.Queue(10_000)
        watcher.over = False
        with self.lock:
            watcher.put({"read": self.read})
            for unit in self.units:
                watcher.put(self.message(unit))
            self.watchers.add(watcher)
        try:
            yield watcher
        finally:
            with self.lock:
                self.watchers.discard(watcher)
                self.lock.notify_all()

    def picture(self, unit, page):
        """The data URI of a page that is being read, or None."""
        with self.lock:
            pictures = self.units[unit]["pictures"] if unit in self.units else []
            return pictures[page] if 0 <= page < len(pictures) else None


class LiveServer(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 256

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], OSError):  # a browser or client that left
            super().handle_error(request, address)


class LiveHandler(BaseHTTPRequestHandler):
    """What both servers below share."""

    protocol_version = "HTTP/1.1"

    def send(self, status, data, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def page_handler(reading):
    """The page itself, its events and its pictures."""

    class PageHandler(LiveHandler):
        def do_GET(self):
            path, _, query = self.path.partition("?")
            if path == "/":
                self.send(200, LIVE_HTML.encode(), "text/html; charset=utf-8")
            elif path == "/events":
                self.send_events()
            elif path == "/picture":
                self.send_picture(dict(parse_qsl(query)))
            else:
                self.send(404, b"{}")

        def send_events(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            with reading.watched() as watcher, contextlib.suppress(OSError):
                message = {}
                while not watcher.over and "finished" not in message:
                    try:
                        message = watcher.get(timeout=15)
                        line = f"data: {json.dumps(message)}"
                    except queue.Empty:
                        line = ": still here"
                    self.wfile.write(f"{line}\n\n".encode())

        def send_picture(self, asked):
            page = asked.get("page", "")
            uri = reading.picture(asked.get("unit"), int(page) if page.isdecimal() else -1)
            if uri is None:
                return self.send(404, b"{}")
            kind, _, data = uri.partition(";base64,")
            self.send(200, base64.b64decode(data), kind.removeprefix("data:"))

    return PageHandler


def relay_handler(reading, url):
    """An OpenAI server that hands every request on to the one at `url`, as a stream that `reading` hears."""

    class RelayHandler(LiveHandler):
        def do_GET(self):
            self.hand_on(None)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.hand_on(body, body.pop("live", None))

        def hand_on(self, body, unit=None):
            """Sends on what the server answers. `unit` is the body's own key "live": who the answer is about."""
            try:
                if unit is None:
                    with self.upstream(body) as reply:
                        self.send(reply.status, reply.read())
                    return
                state = reading.begin(unit, picture_uris(body))
                try:
                    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
                    with self.upstream(streamed) as reply:
                        whole = whole_answer(reply, lambda new: reading.hear(unit, state, new))
                finally:
                    reading.end(unit, state)
                self.send(200, json.dumps(whole).encode())
            except HTTPError as refusal:
                with refusal:
                    self.send(refusal.code, refusal.read())
            except URLError:  # nobody there, which is to look the same from here
                self.close_connection = True
            except (OSError, ValueError, HTTPException) as problem:  # a stream that is broken or cut
                self.send(502, json.dumps({"error": f"{type(problem).__name__}: {problem}"}).encode())

        def upstream(self, body):
            path, data = self.path.removeprefix("/v1"), None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            if key := self.headers.get("Authorization"):
                headers["Authorization"] = key
            return urlopen(Request(url + path, data, headers))

    return RelayHandler


def picture_uris(body):
    parts = (
        part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]
    )
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def whole_answer(lines, hear):
    """The chat completion that a stream of server-sent events adds up to; `hear` is told each piece of its text.

    Raises ValueError for a stream that reports an error, is no JSON, or ends too early.
    """
    pieces, finish, usage = [], None, None
    for line in lines:
        name, _, data = line.decode().strip().partition(":")
        if name != "data":
            continue
        if data.strip() == "[DONE]":
            break
        chunk = json.loads(data)
        if chunk.get("error"):
            raise ValueError(f"the server broke off: {chunk['error']}")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or []:
            if new := (choice.get("delta") or {}).get("content"):
                pieces.append(new)
                hear(new)
            finish = choice.get("finish_reason") or finish
    if finish is None:
        raise ValueError("the answer ended in the middle")
    return {"choices": [{"message": {"content": "".join(pieces)}, "finish_reason": finish}], "usage": usage or {}}


def live_host():
    return "0.0.0.0" if os.environ.get("JOB_ID") else "127.0.0.1"


@contextlib.contextmanager
def free_port(port):
    """Turns what is wrong with a port into a Stop(2)."""
    try:
        yield
    except (OSError, OverflowError) as problem:
        raise Stop(
            f"The live page cannot have --live-port {port}: {str(problem).rstrip('.')}. "
            "Name another, or 0 for any that is free."
        ) from problem


def check_live_port(port):
    """Raises Stop for a port that the live page cannot have, before a server is started for it."""
    with free_port(port), socket.create_server((live_host(), port)):
        pass


@contextlib.contextmanager
def live_page(url, port, mark):
    """Shows what the OpenAI server at `url` reads at http://HOST:`port`; gives the URL to send the requests to instead.

    Only requests with the key "live", the name of what is read, are shown; the key goes no further. Between two `mark`s
    of an answer is one page. On an own machine only that machine can look; on a job everyone who may use its port.
    Raises Stop for a port that is taken.
    """
    reading = Reading(mark)
    with contextlib.ExitStack() as servers:
        with free_port(port):
            page = servers.enter_context(LiveServer((live_host(), port), page_handler(reading)))
        relay = servers.enter_context(LiveServer(("127.0.0.1", 0), relay_handler(reading, url)))
        for server in (page, relay):
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
            servers.callback(server.shutdown)
        servers.callback(reading.finish)
        say(f"What is being read shows at http://localhost:{page.server_address[1]}/")
        yield f"http://127.0.0.1:{relay.server_address[1]}/v1"
