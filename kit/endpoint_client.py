"""One chat completion of an OpenAI-compatible endpoint, traced: what came, when, and how it failed."""

import asyncio
import time
from urllib.parse import urlsplit, urlunsplit

from kit.tool import parse_json

MOST_BYTES = 32 << 20  # of one answer; no page has that much text, so whoever sends it will not stop
NO_MEMORY = ("out of memory", "outofmemory", "cuda error: out", "oom")


def endpoint_url(base, path):
    """The URL of `path` ("/models") below a base URL, whose query stays; a base without a path gets /v1."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=(parts.path.rstrip("/") or "/v1") + path, fragment=""))


def open_client(key=None, connect_timeout=10.0):
    """An httpx2.AsyncClient that follows no redirects and retries nothing. The deadline is the caller's."""
    import httpx2

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(headers=headers, limits=limits, timeout=httpx2.Timeout(None, connect=connect_timeout))


def blank_trace(body):
    """The trace of a call that has not begun; `outcome` stays None until it ended by itself."""
    return {
        "outcome": None, "error": None, "http_status": None, "streamed": False, "finish_reason": None,
        "reported_model": None, "usage": None, "max_tokens": body.get("max_tokens"), "wall_s": None, "ttft_s": None,
        "tokens_per_s": None, "text": "", "logprobs": None, "unread": "",
    }  # fmt: skip


async def ask_endpoint(client, url, body, trace, stall=60.0, stream=True):
    """Sends `body` to the chat completions below `url` and fills `trace` while the answer comes.

    Never raises for what the endpoint does; a cancellation (the caller's deadline) leaves the trace as far as it came.
    Outcomes: "ok", "http_4xx" and the like, "connect_error", "connection_lost", "bad_response", "timeout_stall", "oom".
    `ttft_s` is from the request to the first text, `tokens_per_s` the tokens after it over the time they took.
    """
    import httpx2

    clock = {"start": time.monotonic()}
    words = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    try:
        async with client.stream("POST", endpoint_url(url, "/chat/completions"), json=body | words) as reply:
            trace["http_status"] = reply.status_code
            if reply.status_code != 200:
                fail(trace, f"http_{reply.status_code // 100}xx", message_in(await whole_body(reply, stall)))
            elif "event-stream" in reply.headers.get("content-type", ""):
                trace["streamed"] = True
                await read_events(reply, trace, clock, stall)
            else:
                read_completion(await whole_body(reply, stall), trace)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as problem:
        fail(trace, "connect_error", f"nobody answers ({said(problem)})")
    except asyncio.TimeoutError:
        fail(trace, "timeout_stall", f"nothing came for {stall:g} s in the middle of the answer")
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as problem:
        fail(trace, "connection_lost", f"the connection broke ({said(problem)})")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        fail(trace, "bad_response", f"the answer is no chat completion ({said(problem)})")
    finally:
        end = time.monotonic()
        trace["wall_s"] = round(end - clock["start"], 4)
        if "first" in clock:
            trace["ttft_s"] = round(clock["first"] - clock["start"], 4)
        tokens = (trace["usage"] or {}).get("completion_tokens")
        if isinstance(tokens, int) and tokens > 1 and clock.get("last", 0) > clock.get("first", 0):
            trace["tokens_per_s"] = round((tokens - 1) / (clock["last"] - clock["first"]), 2)


async def within(seconds, awaitable):
    """The result, or asyncio.TimeoutError after so many seconds, whatever is awaited does then.

    Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes together with a result, and an endless
    stream has a result at any time.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=5)
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def fail(trace, outcome, error):
    if any(word in error.lower() for word in NO_MEMORY):
        outcome = "oom"
    trace["outcome"], trace["error"] = outcome, error


def said(problem):
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300].rstrip(": ")


async def pieces(reply, stall):
    """The bytes of a reply as they come. Raises asyncio.TimeoutError when `stall` seconds bring none."""
    incoming, total = reply.aiter_bytes().__aiter__(), 0
    while True:
        try:
            piece = await within(stall, incoming.__anext__())
        except StopAsyncIteration:
            return
        total += len(piece)
        if total > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB, without an end")
        yield piece


async def whole_body(reply, stall):
    return b"".join([piece async for piece in pieces(reply, stall)])


def message_in(data):
    """The message in an error body, else its beginning."""
    text = data.decode(errors="replace")
    try:
        problem = parse_json(text)
        problem = problem.get("error", problem)
        return str(problem.get("message", problem) if isinstance(problem, dict) else problem)[:500]
    except (ValueError, AttributeError):
        return text[:500]


def read_completion(data, trace):
    """Fills the trace from an answer in one piece. Without a stream there is no first token to time."""
    trace["unread"] = data[:2000].decode(errors="replace")
    reply = parse_json(data)
    choice = reply["choices"][0]
    trace["text"] = choice["message"]["content"] or ""
    trace["logprobs"] = logprobs_in(choice)
    ended(trace, reply, choice["finish_reason"])


async def read_events(reply, trace, clock, stall):
    """Fills the trace from server-sent events."""
    rest, finish, done = b"", None, False
    async for piece in pieces(reply, stall):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            trace["unread"] = line[:2000].decode(errors="replace")
            data = line.strip().removeprefix(b"data:").strip()
            if data == b"[DONE]":
                done = True
            if done or not data or not line.startswith(b"data:"):
                continue
            event = parse_json(data)
            if event.get("error"):
                raise ValueError(message_in(data))
            trace["usage"] = event.get("usage") or trace["usage"]
            trace["reported_model"] = event.get("model") or trace["reported_model"]
            for choice in event.get("choices") or []:
                text = (choice.get("delta") or {}).get("content") or ""
                if text:
                    clock["last"] = time.monotonic()
                    clock.setdefault("first", clock["last"])
                    trace["text"] += text
                if values := logprobs_in(choice):
                    trace["logprobs"] = (trace["logprobs"] or []) + values
                finish = choice.get("finish_reason") or finish
    if rest.strip() not in (b"", b"data: [DONE]", b"data:[DONE]"):
        trace["unread"] = rest[:2000].decode(errors="replace")
        raise ValueError("it ends in the middle of an event")
    if not finish:
        fail(trace, "connection_lost", "the stream ended before the answer did: no finish_reason came")
        return
    ended(trace, {"usage": trace["usage"], "model": trace["reported_model"]}, finish)


def ended(trace, reply, finish):
    trace["usage"] = reply.get("usage") if isinstance(reply.get("usage"), dict) else None
    trace["reported_model"], trace["finish_reason"] = reply.get("model"), finish
    trace["outcome"], trace["unread"] = "ok", ""


def logprobs_in(choice):
    tokens = (choice.get("logprobs") or {}).get("content")
    return [token["logprob"] for token in tokens] if tokens else None


async def served_models(client, url, seconds=30.0):
    """({name: entry} that GET /models lists, None) or (None, why not)."""
    import httpx2

    try:
        reply = await within(seconds, client.get(endpoint_url(url, "/models")))
        if reply.status_code != 200:
            return None, f"GET /models answers {reply.status_code}: {message_in(reply.content)[:200]}"
        return {entry["id"]: entry for entry in reply.json()["data"]}, None
    except asyncio.TimeoutError:
        return None, f"GET /models did not answer within {seconds:g} s"
    except (httpx2.HTTPError, OSError) as problem:
        return None, f"nobody answers GET /models ({said(problem)})"
    except (ValueError, KeyError, TypeError) as problem:
        return None, f"GET /models answers something else than a list of models ({said(problem)})"


async def engine_version(client, url):
    """What vLLM says at /version beside /v1, or None."""
    parts = urlsplit(url)
    root = urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/v1") + "/version", fragment=""))
    try:
        return str((await within(5, client.get(root))).json()["version"])
    except Exception:  # a courtesy of some servers
        return None
