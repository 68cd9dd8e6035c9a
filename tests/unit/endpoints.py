"""Stand-in OpenAI endpoints that behave, or misbehave in one way each, for the tests of serving and benchmarking."""

import base64
import contextlib
import io
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image

PROMPT_TOKENS = 4000


class Endpoint(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, manner="well", model="tiny", text="Some text of the page.", prompt_tokens=PROMPT_TOKENS):
        self.manner, self.model, self.text, self.prompt_tokens = manner, model, text, prompt_tokens
        self.seen, self.sizes, self.over = [], [], threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, address):
        pass  # clients that give up are what these tests are about


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        server.seen.append(("GET", self.path, dict(self.headers)))
        if server.manner == "redirect":
            self.send_response(307)
            self.send_header("Location", "http://127.0.0.1:9/stolen")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif server.manner == "models 401":
            self.send(401, {"error": {"message": f"no such key: {self.headers.get('Authorization')}"}})
        elif path.endswith("/models"):
            name = "another/model" if server.manner == "wrong name" else server.model
            self.send(200, {"data": [{"id": name, "max_model_len": 8192}]})
        elif path.endswith("/version"):
            self.send(200, {"version": "0.0.test"})
        else:
            self.send(404, {})

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen.append(("POST", self.path, dict(self.headers)))
        server.sizes += sizes_in(body)
        with contextlib.suppress(OSError):
            MANNERS[server.manner](self, server, body)

    def send(self, status, reply):
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def open_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, **keys):
        self.wfile.write(b"data: " + json.dumps({"model": self.server.model, **keys}).encode() + b"\n\n")
        self.wfile.flush()

    def delta(self, text, finish=None):
        self.event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])

    def log_message(self, *words):
        pass


def free_port():
    """A port that nobody listens on, below those that systems give to clients and to servers that ask for any."""
    for port in range(20000 + os.getpid() % 8000, 32000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def nvidia_smi(folder, used=0):
    """A stand-in for nvidia-smi in `folder`, which shows one GPU of 24 GiB that is `used` percent busy; a PATH."""
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(
        f"""#!/bin/sh
case "$1" in
  *index*) echo "0, Test GPU, 24576, 24000, 8.9, 550.1" ;;
  *memory.free*) echo "24000, 24576" ;;
  *utilization.gpu,memory*) echo "{used}, 9000" ;;
  *utilization*) echo "{used}" ;;
esac
"""
    )
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def sizes_in(body):
    found = []
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else []:
            if part["type"] == "image_url":
                data = base64.b64decode(part["image_url"]["url"].partition("base64,")[2])
                found.append(Image.open(io.BytesIO(data)).size)
    return found


def usage(server, text):
    return {"prompt_tokens": server.prompt_tokens, "completion_tokens": max(2, len(text) // 4)}


def stream(handler, server, body, text=None, finish="stop"):
    text = server.text if text is None else text
    if not body.get("stream"):
        choice = {"message": {"content": text}, "finish_reason": finish}
        return handler.send(200, {"choices": [choice], "usage": usage(server, text), "model": server.model})
    handler.open_stream()
    handler.wfile.write(b": a comment keeps the line open\n\n")
    for place in range(0, len(text), 7):
        handler.delta(text[place : place + 7])
    handler.delta("", finish)
    handler.event(choices=[], usage=usage(server, text))
    handler.wfile.write(b"data: [DONE]\n\n")


def endless(handler, server, body):
    handler.open_stream()
    while not server.over.wait(0.02):
        handler.delta("more and more ")


def endless_line(handler, server, body):
    handler.open_stream()
    handler.wfile.write(b"data: ")
    while not server.over.wait(0.02):
        handler.wfile.write(b"x" * 100)
        handler.wfile.flush()


def stalled(handler, server, body):
    handler.open_stream()
    handler.delta("It begins")
    server.over.wait(60)


def silent(handler, server, body):
    server.over.wait(60)


def slow(handler, server, body):
    time.sleep(0.6)
    stream(handler, server, body)


def half_json(handler, server, body):
    handler.open_stream()
    handler.delta("It begins")
    handler.wfile.write(b'data: {"choices": [{"delta": {"cont')


def half_answer(handler, server, body):
    handler.send(200, b'{"choices": [{"message": {"cont')


def cut(handler, server, body):
    handler.open_stream()
    handler.delta("It begins")


def reset(handler, server, body):
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices"')
    handler.close_connection = True


def leaky(handler, server, body):
    said = f"no: {handler.headers.get('Authorization')} at {handler.path}"
    handler.send(500, {"error": {"message": said}})


MANNERS = {
    "well": stream,
    "wrong name": stream,
    "models 401": stream,
    "redirect": stream,
    "slow first token": slow,
    "404": lambda handler, server, body: handler.send(404, {"error": {"message": "no such model"}}),
    "500": lambda handler, server, body: handler.send(500, {"error": "busy"}),
    "out of memory": lambda handler, server, body: handler.send(500, {"error": {"message": "CUDA out of memory."}}),
    "leaky": leaky,
    "endless": endless,
    "endless line": endless_line,
    "stalled": stalled,
    "silent": silent,
    "half json": half_json,
    "half answer": half_answer,
    "cut": cut,
    "reset": reset,
    "nothing": lambda handler, server, body: stream(handler, server, body, ""),
    "loop": lambda handler, server, body: stream(handler, server, body, "Begin. " + "again and again. " * 60),
    "truncated": lambda handler, server, body: stream(handler, server, body, finish="length"),
    "no list": lambda handler, server, body: handler.send(200, [1, 2]),
    "no stream": lambda handler, server, body: stream(handler, server, {**body, "stream": False}),
}


@contextlib.contextmanager
def endpoint(manner="well", **settings):
    """A running Endpoint that behaves in that manner."""
    server = Endpoint(manner, **settings)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
