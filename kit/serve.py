"""Engine `serve`: an OpenAI-compatible server, started here or named by --endpoint, kept full over HTTP."""

import asyncio
import base64
import contextlib
import io
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import NamedTuple

from kit.processes import end_children_with_this_process, server_environment
from kit.run import EngineDied
from kit.seam import Answer, PageError, Stop, say
from kit.vllm import (
    chat_arguments,
    cli_args,
    engine_args,
    engine_count,
    messages_with,
    set_environment,
    window_size,
)

BOOT_SECONDS = 1800  # a download of the weights, and compilation
REQUEST_SECONDS = 1800  # an answer of 16,000 tokens at full load, and its time in the server's queue
PULSE_SECONDS, PULSE_PATIENCE = 5, 20  # between two looks at the server's health, and for its answer
BODIES = {"png": ("PNG", {"compress_level": 1}), "jpeg": ("JPEG", {"quality": 95})}


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

    engines = 1 if options.endpoint or recipe.get("server_command") else engine_count(options, recipe)
    window, more, tasks = window_size(options, recipe, engines), True, set()
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
            text="" + (choice["message"]["content"] or ""),  # a TypeError for what is no string
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            logprobs=tokens and [token["logprob"] for token in tokens],
        )
    except (KeyError, IndexError, TypeError, AttributeError) as problem:
        return PageError(f"the server's answer holds no text ({problem!r}): {str(reply)[:200]}")


@contextlib.contextmanager
def running_server(options, recipe, stop):
    """Gives a Server: the one at `--endpoint`, or one that lives as long as the context; None if `stop` came first.

    Not saturate's Engine: it has no place for an environment and a log, and takes 30 seconds to end a server.
    """
    if options.endpoint:
        url = options.endpoint.rstrip("/")
        url = url if "/" in url.partition("://")[2] else url + "/v1"
        yield Server(url, served_model(url, options))
        return
    from saturate import wait_for_health

    set_environment(recipe)
    end_children_with_this_process()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, command = f"http://127.0.0.1:{port}/v1", server_command(options, recipe, port)
    say(f"Starting {shlex.join(command)}")
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        process = subprocess.Popen(
            command, env=server_environment(recipe), stdout=log, stderr=log, start_new_session=True
        )
        threading.Thread(target=end_on_stop, args=(process, stop), daemon=True).start()
        try:
            server = None
            try:
                wait_for_health(url, BOOT_SECONDS, proc=process)
                server = Server(url, served_model(url, options), process, log.name)
            except (RuntimeError, TimeoutError) as problem:
                if not stop.is_set():
                    raise Stop(f"The server did not start: {problem}. Its log ends:\n{log_tail(log.name)}") from problem
            yield server
        finally:
            end_group(process)


def server_command(options, recipe, port):
    """The words that start the server: the recipe's `server_command`, or `vllm serve` for all GPUs and cores."""
    if recipe.get("server_command"):
        filled = {"{model}": options.model, "{port}": str(port), "{max_model_len}": str(options.max_model_len)}
        return [filled.get(word, word) for word in recipe["server_command"]]
    args, replicas = engine_args(options, recipe), engine_count(options, recipe)
    # These processes prepare the pages; 6 to 8 of them kept one H200 busy on 16 cores.
    apis = max(1, min(8 * replicas, (os.cpu_count() or 1) // 2))
    args |= {"served_model_name": options.model, "host": "127.0.0.1", "port": port}
    args |= {"data_parallel_size": replicas} if replicas > 1 else {}
    args |= {"api_server_count": apis} if apis > 1 else {}
    args["chat_template_content_format"] = chat_arguments(recipe)["chat_template_content_format"]
    return [recipe.get("server_python", sys.executable), "-m", "vllm.entrypoints.cli.main", "serve", *cli_args(args)]


def end_on_stop(process, stop):
    stop.wait()
    if process.poll() is None:
        end_group(process)


def end_group(process, patience=4):
    """Ends a process and all that it started: SIGTERM, and SIGKILL for what is left after `patience` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
