"""Engine `serve`: an OpenAI-compatible server, started here or named by --endpoint, kept full over HTTP."""

import asyncio
import base64
import contextlib
import io
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from kit.run import EngineDied
from kit.seam import Answer, PageError, Stop
from kit.vllm import (
    chat_arguments,
    cli_args,
    engine_args,
    gpus,
    messages_with,
    server_environment,
    set_environment,
    window_size,
)

BOOT_SECONDS = 1800  # a download of the weights, and compilation
REQUEST_SECONDS = 1800  # an answer of 16,000 tokens at full load, and its time in the server's queue
PULSE_SECONDS, PULSE_PATIENCE = 5, 20  # between two looks at the server's health, and for its answer
BODIES = {"png": ("PNG", {"compress_level": 1}), "jpeg": ("JPEG", {"quality": 95})}

# Engine takes neither an environment nor a log file, and its server would outlive this process if that is killed.
LAUNCH = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.dup2(log, 1)
os.dup2(log, 2)
for key in sys.argv[2].split():
    os.environ.pop(key, None)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Server(NamedTuple):
    """A server that answers: base URL up to /v1, its name for the model, and if it is ours its process and log."""

    url: str
    model: str
    process: object = None
    log: str | None = None

    def gone(self, what):
        """The exception for a server that is lost in the middle of a run."""
        if self.process is None:
            return Stop(f"{self.url} {what}. See to the server; then the same command resumes.", code=1)
        return EngineDied(f"the server {what}. Its log ends:\n{log_tail(self.log)}")


def serve(units, talk, options, recipe, stop):
    """Yields result rows in completion order; `units` is a `Feed`, `talk(item, outcome)` starts a `converse`.

    Once `stop` is set, what is in flight is abandoned. Raises Stop if the server does not start or is not what the
    run needs; when it is lost, EngineDied, or Stop(1) if it is an `--endpoint`.
    """
    with running_server(options, recipe, stop) as server:
        if server is None:
            return
        loop = asyncio.new_event_loop()
        rows = served_rows(server, units, talk, options, recipe, stop)
        try:
            while not stop.is_set():
                yield loop.run_until_complete(anext(rows))
        except StopAsyncIteration:
            return
        except EngineDied:
            if not stop.is_set():
                raise
        finally:
            loop.run_until_complete(rows.aclose())
            loop.close()


async def served_rows(server, units, talk, options, recipe, stop):
    """Yields the rows, with at most a window of units in flight. Raises what `Server.gone` gives.

    The window is fixed: saturate's Auto halves it when the KV cache is full, and there an OCR run is fastest.
    """
    from saturate import AdaptiveClient, Fixed

    window, more, tasks = window_size(options, recipe), True, set()
    seconds = getattr(options, "request_timeout", REQUEST_SECONDS)
    client = AdaptiveClient(server.url, Fixed(window), credentials(), seconds, signal_source="none")
    async with client:
        client.breaker.max_open_s = 60  # seconds that a server may fail every request before it counts as lost
        pulse = asyncio.create_task(keep_watch(server))
        try:
            while not stop.is_set() and (more or tasks):
                while more and len(tasks) < min(window, units.limit or window):
                    try:
                        unit = units.get(block=False)
                    except StopIteration:
                        more = False
                        break
                    if unit is None:
                        break
                    tasks.add(asyncio.create_task(hold(talk(*unit), client, server, recipe)))
                done, _ = await asyncio.wait({pulse, *tasks}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tasks.discard(task)
                    yield task.result()
        finally:
            for task in (pulse, *tasks):
                task.cancel()
            await asyncio.gather(pulse, *tasks, return_exceptions=True)


async def hold(conversation, client, server, recipe):
    """Holds one unit's conversation with the server; returns its row."""
    answers = None
    while True:
        try:
            bodies = conversation.send(answers)
        except StopIteration as end:
            return end.value
        answers = await asyncio.gather(*(ask(body, client, server, recipe) for body in bodies))


async def ask(body, client, server, recipe):
    """The Answer to one request, or the PageError for one that fails while the server is well."""
    from saturate import FatalTransportError

    wired = await asyncio.to_thread(wire, body, server, recipe)
    try:
        reply, problem = await client.post(wired)
    except FatalTransportError:
        raise server.gone("fails every request") from None
    except ValueError as garbled:
        return PageError(f"the server sent something else than JSON ({garbled})")
    if problem is None:
        return answer_in(reply)
    if not problem.startswith("http 4"):
        await check_pulse(server)
    return PageError(f"the server did not answer this page: {problem}")


async def keep_watch(server):
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        await check_pulse(server)


async def check_pulse(server):
    """Raises what `Server.gone` gives if the process has ended, or if nobody answers three times."""
    import httpx2

    async with httpx2.AsyncClient(headers=credentials(), timeout=PULSE_PATIENCE) as client:
        for left in (2, 1, 0):
            if server.process is not None and server.process.poll() is not None:
                raise server.gone(f"ended with exit code {server.process.returncode}")
            try:
                return await client.get(f"{server.url}/models")
            except httpx2.HTTPError as problem:
                if not left:
                    raise server.gone(f"does not answer any more ({type(problem).__name__})") from problem
            await asyncio.sleep(1)


def wire(body, server, recipe):
    """The body as it travels: the server's name for the model, and pictures as data URIs."""
    kind, how = BODIES[recipe.get("body_format", "png")]

    def picture(image):
        data = io.BytesIO()
        image.save(data, kind, **how)
        text = base64.b64encode(data.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/{kind.lower()};base64,{text}"}}

    chat = chat_arguments(recipe)
    chat.pop("chat_template_content_format")  # a flag of the server
    return chat | body | {"model": server.model, "messages": messages_with(body["messages"], picture)}


def answer_in(reply):
    """The Answer in an OpenAI chat completion, or a PageError where it holds none."""
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        tokens = (choice.get("logprobs") or {}).get("content")
        return Answer(
            text=choice["message"]["content"] or "",
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            logprobs=tokens and [token["logprob"] for token in tokens],
        )
    except (KeyError, IndexError, TypeError, AttributeError) as problem:
        return PageError(f"the server's answer holds no text ({problem!r}): {str(reply)[:200]}")


@contextlib.contextmanager
def running_server(options, recipe, stop):
    """Gives a Server: the one at `--endpoint`, or one that runs as long as the context. Raises Stop."""
    if options.endpoint:
        url = options.endpoint.rstrip("/")
        url = url if "/" in url.partition("://")[2] else url + "/v1"
        yield Server(url, served_model(url, options))
        return
    from saturate import Engine

    set_environment(recipe)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hidden = " ".join(os.environ.keys() - server_environment(recipe).keys())
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        command = [sys.executable, "-c", LAUNCH, log.name, hidden, *server_command(options, recipe, port)]
        engine = Engine(options.model, port=port, cmd=command, boot_timeout=BOOT_SECONDS)
        threading.Thread(target=end_on_stop, args=(engine, stop), daemon=True).start()
        with contextlib.ExitStack() as running:
            try:
                url = running.enter_context(engine)
            except (RuntimeError, TimeoutError, OSError) as problem:
                if not stop.is_set():
                    raise Stop(f"The server did not start: {problem}. Its log ends:\n{log_tail(log.name)}") from problem
                yield None
            else:
                yield Server(url, served_model(url, options), engine.proc, log.name)


def server_command(options, recipe, port):
    """The words that start the server: the recipe's `server_command`, or `vllm serve` for all GPUs and cores."""
    if recipe.get("server_command"):
        filled = {"{model}": options.model, "{port}": str(port), "{max_model_len}": str(options.max_model_len)}
        return [filled.get(word, word) for word in recipe["server_command"]]
    args = engine_args(options, recipe)
    replicas = max(1, len(gpus()) // (args.get("tensor_parallel_size") or 1))
    # These processes prepare the pages; 6 to 8 of them kept one H200 busy on 16 cores.
    apis = max(1, min(8 * replicas, (os.cpu_count() or 1) // 2))
    args |= {"served_model_name": options.model, "host": "127.0.0.1", "port": port}
    args |= {"data_parallel_size": replicas} if replicas > 1 else {}
    args |= {"api_server_count": apis} if apis > 1 else {}
    args["chat_template_content_format"] = chat_arguments(recipe)["chat_template_content_format"]
    return [recipe.get("server_python", sys.executable), "-m", "vllm.entrypoints.cli.main", "serve", *cli_args(args)]


def end_on_stop(engine, stop):
    """Ends the server within seconds of `stop`; by itself Engine finishes its start, then waits for 30 seconds."""
    stop.wait()
    for number, patience in ((signal.SIGTERM, 4), (signal.SIGKILL, 0)):
        if engine.proc and engine.proc.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.proc.pid, number)
            time.sleep(patience)


def log_tail(path, lines=20):
    with open(path, errors="replace") as log:
        return "".join(log.readlines()[-lines:]).rstrip()


def served_model(url, options):
    """The name under which the server has the model. Raises Stop if nobody answers or it serves something else."""
    import httpx2

    try:
        reply = httpx2.get(f"{url}/models", headers=credentials(), timeout=30)
        models = {model["id"]: model for model in reply.raise_for_status().json()["data"]}
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as problem:
        raise Stop(
            f"No OpenAI-compatible server answers at {url} ({problem or type(problem).__name__}). Start one with\n"
            f"  vllm serve {options.model}\nand name it, e.g. --endpoint http://HOST:8000/v1. "
            "If it wants a key, set OPENAI_API_KEY."
        ) from problem
    if not options.endpoint and len(models) == 1:  # a vendor's command may name it in its own way
        return next(iter(models))
    if options.model not in models:
        raise Stop(f"{url} does not serve {options.model}. Use one that it serves: --model {' or '.join(models)}.")
    length = models[options.model].get("max_model_len")
    if length and options.max_tokens >= length:
        raise Stop(
            f"{url} takes {length} tokens of prompt and answer together, so --max-tokens {options.max_tokens} leaves "
            f"no room for the page. Use --max-tokens {length // 2}, or start it with a larger --max-model-len."
        )
    return options.model


def credentials():
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
