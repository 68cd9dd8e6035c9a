"""The ASGI application: log in, inject a fault or answer, write the log."""

import asyncio
import time
import traceback
from email.utils import formatdate
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from tests.hub.loopback import buckets, commits, discussions, files, jobs, repos, xet  # noqa: F401  (their routes)
from tests.hub.loopback.auth import INTERNAL, token_of
from tests.hub.loopback.faults import CONTROL, cut, take_fault
from tests.hub.loopback.http import HubError, Request, answer
from tests.hub.loopback.xet import OWN_SECRET

OWN_CREDENTIALS = ("/cas/", "/lfs/", CONTROL)  # routes that a Hub token does not guard


async def read_request(hub, scope, receive):
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    path = scope["raw_path"].decode().split("?")[0]
    query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    return Request(hub, scope["method"], path, query, headers, body)


def respond(request):
    response = _respond(request)
    # uvicorn's own Date lags on a busy machine, and clients drop log lines that are more than a second ahead of it.
    response.headers["Date"] = formatdate(usegmt=True)
    return response


def _respond(request):
    try:
        if not request.path.startswith(OWN_CREDENTIALS):
            request.token = token_of(request.headers)
        return answer(request)
    except HubError as error:
        return error.response()
    except Exception as error:  # a defect of this server: LoopbackHub.close() reports it
        traceback.print_exc()
        return JSONResponse({"error": repr(error)}, 500, {"X-Loopback-Defect": type(error).__name__})


def is_private(request):
    """Requests of the server itself and of the tests' look-ups: no fault hits them and no log shows them."""
    secret = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.path.startswith(CONTROL) or secret in (INTERNAL, OWN_SECRET) or "own" in request.query


def make_app(hub):
    async def app(scope, receive, send):
        assert scope["type"] == "http"
        request, start = await read_request(hub, scope, receive), time.time()
        if is_private(request):
            await (await run_in_threadpool(respond, request))(scope, receive, send)
            return

        query = scope["query_string"].decode()
        url = request.path + (f"?{query}" if query else "")
        fault, response = take_fault(hub, request.method, url), None
        entry = {"method": request.method, "url": url, "status": None, "fault": fault is not None}
        entry |= {"bytes": len(request.body), "user": None, "time": start, "seconds": None}
        hub.log.append(entry)
        if fault:
            await asyncio.sleep(fault.delay)
        if not fault or fault.applied or fault.drop == "body" or not (fault.status or fault.drop):
            response = await run_in_threadpool(respond, request)
            if "X-Loopback-Defect" in response.headers:
                entry["defect"] = response.headers["X-Loopback-Defect"]
        if fault and fault.status:
            response = fault.response()
        entry |= {"user": request.token.user if request.token else None, "seconds": time.time() - start}
        if fault and fault.drop:
            await cut(send, response if fault.drop == "body" else None)
        else:
            entry["status"] = response.status_code
            await response(scope, receive, send)

    return app
