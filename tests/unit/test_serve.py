"""The `serve` engine against stand-in servers that answer, refuse, fail, hang, die, or serve something else."""

import base64
import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import psutil
import pytest
from PIL import Image

from kit import serve as module
from kit import vllm
from kit.run import EngineDied
from kit.seam import Answer, PageError, Stop
from kit.serve import answer_in, serve, server_command, wire

RECIPE = {
    "name": "tiny",
    "model": "tiny",
    "image": {"max_pixels": 10_000},
    "chat": {"template_kwargs": {"think": False}},
}


class StandIn(BaseHTTPRequestHandler):
    """An OpenAI-compatible server that says how large the picture is; `behave(request body)` may do otherwise."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.server.silent:
            return self.hang()
        self.send(200, {"data": [{"id": name, "max_model_len": 4096} for name in self.server.models]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        if self.server.silent:
            return self.hang()
        status, reply = self.server.behave(body)
        if status:
            self.send(status, reply)

    def hang(self):
        self.server.over.wait(30)
        self.close_connection = True

    def send(self, status, reply):
        data = json.dumps(reply).encode() if isinstance(reply, dict) else reply
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class ManyAtOnce(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 256


def size_in(body):
    uri = body["messages"][0]["content"][0]["image_url"]["url"]
    return Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))).size


def completion(text, finish="stop"):
    choice = {"message": {"content": text}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}


def tell_size(body):
    if isinstance(body["messages"][0]["content"], str):  # a client that asks whether anybody is there
        return 200, completion("yes")
    return 200, completion("{} x {}".format(*size_in(body)))


@contextlib.contextmanager
def standing_in(behave=tell_size, models=("tiny",), silent=False):
    server = ManyAtOnce(("127.0.0.1", 0), StandIn)
    server.behave, server.models, server.silent = behave, models, silent
    server.seen, server.over = [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


class Units:
    """What `Feed` is to an engine."""

    limit = None

    def __init__(self, *pages):
        self.left = list(pages)

    def get(self, block=True):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


def request(size, **keys):
    content = [{"type": "image", "image": Image.new("RGB", size, (9, 99, 199))}, {"type": "text", "text": "Read."}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 9, **keys}


def one_question(name, size):
    (answer,) = yield [request(size)]
    return {"id": name, "answer": answer}


def options(server=None, **changed):
    url = f"http://127.0.0.1:{server.server_address[1]}" if server else None
    defaults = dict(model="tiny", endpoint=url, max_tokens=9, max_model_len=4096, window=8, revision=None,
                    gpu_memory_utilization=None, request_timeout=60)  # fmt: skip
    return SimpleNamespace(**defaults | changed)


def run(chosen, *pages, talk=one_question, recipe=RECIPE, stop=None):
    return list(serve(Units(*pages), talk, chosen, recipe, stop or threading.Event()))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    from saturate import transport

    monkeypatch.setattr(module, "PULSE_SECONDS", 0.3)
    monkeypatch.setattr(transport.random, "uniform", lambda low, high: 0.01)


def test_two_hundred_pages_in_random_order_get_their_own_answers():
    def slowly(body):
        time.sleep(random.random() * 0.2)
        return tell_size(body)

    pages = [(str(i), (10 + i, 500 - i)) for i in range(200)]
    with standing_in(slowly) as server:
        rows = run(options(server, window=64), *pages)
    assert {row["id"]: row["answer"].text for row in rows} == {n: f"{size[0]} x {size[1]}" for n, size in pages}
    assert [row["id"] for row in rows] != [name for name, _ in pages], "rows come as they are finished"
    assert rows[0]["answer"] == Answer(rows[0]["answer"].text, "stop", 11, 7)


def test_a_conversation_is_sent_answers_in_the_order_it_asked():
    def three_then_one(name, size):
        answers = yield [request((n, 5)) for n in (30, 20, 10)]
        none = yield []
        (last,) = yield [request((40, 5))]
        return {"id": name, "texts": [a.text for a in (*answers, last)], "none": none}

    with standing_in(lambda body: (time.sleep(size_in(body)[0] / 200), tell_size(body))[1]) as server:
        (row,) = run(options(server), ("a", None), talk=three_then_one)
    assert row == {"id": "a", "texts": ["30 x 5", "20 x 5", "10 x 5", "40 x 5"], "none": []}


def test_a_refused_request_is_that_page_alone():
    def refuse_one(body):
        return (400, {"error": {"message": "prompt is too long"}}) if size_in(body) == (66, 66) else tell_size(body)

    with standing_in(refuse_one) as server:
        rows = run(options(server), ("good", (5, 5)), ("bad", (66, 66)), ("fine", (7, 7)))
    answers = {row["id"]: row["answer"] for row in rows}
    assert isinstance(answers["bad"], PageError) and "prompt is too long" in str(answers["bad"])
    assert answers["good"].text == "5 x 5" and answers["fine"].text == "7 x 7"
    assert len(server.seen) == 3, "a refusal is not asked again"


def test_a_page_that_fails_with_500_while_the_server_is_well_is_that_page_alone():
    with standing_in(lambda body: (500, {}) if size_in(body) == (66, 66) else tell_size(body)) as server:
        rows = run(options(server), ("bad", (66, 66)), *[(str(i), (i, 9)) for i in range(5, 15)])
    answers = {row["id"]: row["answer"] for row in rows}
    assert "http 500" in str(answers.pop("bad"))
    assert all(isinstance(answer, Answer) for answer in answers.values()) and len(answers) == 10


def test_a_passing_500_costs_nothing():
    seen = set()

    def fail_first(body):
        first = size_in(body) not in seen
        seen.add(size_in(body))
        return (503, {}) if first else tell_size(body)

    with standing_in(fail_first) as server:
        rows = run(options(server), *[(str(i), (i, 9)) for i in range(5, 11)])
    assert all(isinstance(row["answer"], Answer) for row in rows) and len(rows) == 6


def test_a_request_that_hangs_is_that_page_alone(monkeypatch):
    def hang_one(body):
        if size_in(body) == (66, 66):
            time.sleep(8)
        return tell_size(body)

    from saturate import transport

    monkeypatch.setattr(transport, "RETRY_BUDGET_S", 0)
    with standing_in(hang_one) as server:
        rows = run(options(server, request_timeout=1), ("bad", (66, 66)), ("good", (5, 5)))
    answers = {row["id"]: row["answer"] for row in rows}
    assert "Timeout" in str(answers["bad"]) and answers["good"].text == "5 x 5"


def test_an_endpoint_that_dies_stops_the_run_and_loses_no_page():
    def die(body):
        server.silent = True
        threading.Thread(target=lambda: (server.shutdown(), server.server_close())).start()
        server.over.wait(5)
        return None, None

    with standing_in(die) as server, pytest.raises(Stop) as caught:
        started = time.monotonic()
        run(options(server), *[(str(i), (i, 9)) for i in range(5, 15)])
    assert caught.value.code == 1 and "the same command resumes" in str(caught.value)
    assert time.monotonic() - started < 60


def test_an_endpoint_that_hangs_as_a_whole_is_noticed_by_its_pulse(monkeypatch):
    monkeypatch.setattr(module, "PULSE_PATIENCE", 1)

    def hang(body):
        server.silent = True
        server.over.wait(30)
        return None, None

    with standing_in(hang) as server, pytest.raises(Stop) as caught:
        run(options(server), ("a", (5, 5)))
    assert caught.value.code == 1 and "does not answer any more" in str(caught.value)


def test_nobody_at_the_endpoint_says_what_to_type():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = options(endpoint=f"http://127.0.0.1:{free.getsockname()[1]}/v1")
    with pytest.raises(Stop) as caught:
        run(chosen, ("a", (5, 5)))
    assert caught.value.code == 2 and "vllm serve tiny" in str(caught.value)


def test_another_model_at_the_endpoint_is_named():
    with standing_in(models=("other/one", "two")) as server, pytest.raises(Stop) as caught:
        run(options(server), ("a", (5, 5)))
    assert caught.value.code == 2 and "--model other/one or two" in str(caught.value)
    assert not server.seen


def test_an_endpoint_with_too_short_a_context():
    with standing_in() as server, pytest.raises(Stop) as caught:
        run(options(server, max_tokens=4096), ("a", (5, 5)))
    assert "--max-tokens 2048" in str(caught.value)


def test_a_stop_abandons_what_is_in_flight():
    stop, seen = threading.Event(), []

    def slow(body):
        time.sleep(0.1 if size_in(body)[0] < 8 else 20)
        return tell_size(body)

    units = Units(*[(str(i), (i, 9)) for i in range(5, 13)])
    with standing_in(slow) as server:
        for row in serve(units, one_question, options(server), RECIPE, stop):
            seen.append(row["id"])
            if len(seen) == 3:
                stop.set()
                started = time.monotonic()
        assert time.monotonic() - started < 10
    assert set(seen) == {"5", "6", "7"}


def test_the_units_limit_is_kept():
    together, most, lock = [0], [0], threading.Lock()

    def count(body):
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        time.sleep(0.05)
        with lock:
            together[0] -= 1
        return tell_size(body)

    units = Units(*[(str(i), (i, 9)) for i in range(5, 15)])
    units.limit = 1
    with standing_in(count) as server:
        assert len(list(serve(units, one_question, options(server), RECIPE, threading.Event()))) == 10
    assert most == [1]


# --- a server of our own: a stand-in that the engine starts -----------------------------------------------------------

OWN = """
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send({"data": [{"id": "whatever"}]})
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"image_url" in body and sys.argv[2] == "die":
            print("CUDA error: device-side assert", flush=True)
            os._exit(3)
        if b"image_url" in body and sys.argv[2] == "hang":
            time.sleep(60)
        self.send({"choices": [{"message": {"content": os.environ.get("HIDDEN", "clean")}, "finish_reason": "stop"}]})
    def send(self, reply):
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args): pass
print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
if sys.argv[2] == "refuse":
    sys.exit("ValueError: no room for the KV cache")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def own(tmp_path):
    """A recipe whose server is a stand-in of the given kind, and the pids that its group had."""
    script = tmp_path / "own.py"
    pids = tmp_path / "pids"
    script.write_text(f"import os; open({str(pids)!r}, 'w').write(str(os.getpid()))\n" + OWN)

    def recipe(kind):
        return RECIPE | {"server_command": [sys.executable, str(script), "{port}", kind]}

    yield recipe, pids
    group = int(pids.read_text())
    for _ in range(600):
        if not alive_in(group):
            return
        time.sleep(0.1)
    raise AssertionError(f"left alive in the server's group: {alive_in(group)}")


def alive_in(group):
    """Processes of a group; those that have ended count as gone, whether or not somebody has waited for them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_an_own_server_is_started_asked_and_ended(own):
    recipe, _ = own
    rows = run(options(), *[(str(i), (i, 9)) for i in range(5, 15)], recipe=recipe("well"))
    assert {row["answer"].text for row in rows} == {"clean"} and len(rows) == 10


def test_an_own_server_that_does_not_start_shows_its_log(own):
    recipe, _ = own
    with pytest.raises(Stop) as caught:
        run(options(), ("a", (5, 5)), recipe=recipe("refuse"))
    assert "no room for the KV cache" in str(caught.value)


def test_an_own_server_that_dies_is_an_engine_that_died(own):
    recipe, _ = own
    started = time.monotonic()
    with pytest.raises(EngineDied) as caught:
        run(options(), ("a", (5, 5)), recipe=recipe("die"))
    assert "device-side assert" in str(caught.value) and "exit code 3" in str(caught.value)
    assert time.monotonic() - started < 60


def test_a_stop_ends_the_own_server_quickly(own):
    recipe, _ = own
    stop = threading.Event()
    threading.Timer(6, stop.set).start()
    assert run(options(), ("a", (5, 5)), recipe=recipe("hang"), stop=stop) == []


def test_a_killed_run_leaves_no_server(own, tmp_path):
    recipe, pids = own
    code = (
        "import threading; from tests.unit.test_serve import *\n"
        f"list(serve(Units(('a', (5, 5))), one_question, options(), {recipe('hang')!r}, threading.Event()))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=os.getcwd(), stdout=subprocess.DEVNULL)
    for _ in range(600):
        if pids.exists() and pids.read_text():
            break
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.wait()


# --- what travels ----------------------------------------------------------------------------------------------------


def test_a_png_body_holds_the_very_pixels():
    image = Image.effect_noise((40, 30), 80).convert("RGB")
    body = request((1, 1), top_k=1, structured_outputs={"json": {}})
    body["messages"][0]["content"][0]["image"] = image
    sent = wire(body, SimpleNamespace(model="served"), RECIPE)
    data = base64.b64decode(sent["messages"][0]["content"][0]["image_url"]["url"].partition("base64,")[2])
    assert Image.open(io.BytesIO(data)).tobytes() == image.tobytes()
    assert sent["model"] == "served" and sent["top_k"] == 1 and sent["chat_template_kwargs"] == {"think": False}
    json.dumps(sent)


def test_a_jpeg_body_is_a_jpeg():
    sent = wire(request((40, 30)), SimpleNamespace(model="served"), RECIPE | {"body_format": "jpeg"})
    assert sent["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")


def test_logprobs_are_one_number_per_token():
    reply = completion("ab")
    reply["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]}
    assert answer_in(reply).logprobs == [-0.5, -1.0]


PARTS = {"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("reply", [{}, {"choices": []}, {"choices": [{"message": None}]}, [], {"error": "x"}, PARTS])
def test_a_reply_without_text_is_an_error_of_the_page(reply):
    assert isinstance(answer_in(reply), PageError)


def test_the_server_gets_every_gpu_and_the_engines_own_arguments(monkeypatch):
    monkeypatch.setattr(vllm, "gpus", lambda: [(1, 1)] * 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    command = server_command(options(max_model_len=8192), RECIPE | {"engine_args": {"tensor_parallel_size": 2}}, 7000)
    words = " ".join(command)
    assert command[0] == sys.executable and "serve tiny" in words and "--port 7000" in words
    assert "--data-parallel-size 2" in words and "--api-server-count 16" in words and "--max-model-len 8192" in words
    assert "--generation-config vllm" in words and "--served-model-name tiny" in words
    monkeypatch.setattr(vllm, "gpus", lambda: [])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    words = " ".join(server_command(options(), RECIPE | {"server_python": "/usr/bin/python3"}, 7000))
    assert words.startswith("/usr/bin/python3 ") and "--data-parallel" not in words and "--api-server" not in words
