"""Injected faults, the request log and the other control routes under /_loopback/.

A fault hits requests whose method and "path?query" (as sent, percent-encoded) match its patterns: it lets `after` of
them through, hits the next `times`, and is spent. What it does to a request:

    delay     seconds to wait first
    status    answer with this status, `headers` and `body` instead of doing what was asked
    applied   with status or drop: do what was asked first, so that only the answer is lost
    drop      true closes the connection without an answer; "body" sends the headers and half the body of the
              true answer, then closes
"""

import asyncio
import re
from dataclasses import asdict, dataclass, field

from starlette.responses import Response

from tests.hub.loopback.buckets import put_contents
from tests.hub.loopback.http import HubError, route
from tests.hub.loopback.runner import kill
from tests.hub.loopback.state import Bucket

CONTROL = "/_loopback/"


@dataclass
class Fault:
    method: str = ".*"
    path: str = ".*"
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"error": "injected fault"}'
    delay: float = 0
    drop: bool | str = False
    applied: bool = False
    times: int = 1
    after: int = 0

    def __post_init__(self):
        if not (self.status or self.drop or self.delay):
            raise ValueError("a fault needs a status, drop or delay")
        if self.drop not in (False, True, "body"):
            raise ValueError(f'drop is true or "body", received {self.drop!r}')

    def matches(self, method, url):
        return self.times > 0 and re.fullmatch(self.method, method) and re.search(self.path, url)

    def response(self):
        return Response(self.body, self.status, self.headers, media_type="application/json")


def take_fault(hub, method, url):
    """The fault that hits this request, or None. Every matching fault counts the request."""
    hit = None
    for fault in hub.faults:
        if hit is None and fault.matches(method, url):
            if fault.after:
                fault.after -= 1
            else:
                fault.times -= 1
                hit = fault
    return hit


async def cut(send, response=None):
    """Close the connection now, after half of `response` if given.

    uvicorn offers no public way: `send` is a method of its request cycle, which holds the transport.
    """
    transport = send.__self__.transport
    if response is None:
        transport.abort()
    else:
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        half = getattr(response, "body", b"")
        await send({"type": "http.response.body", "body": half[: len(half) // 2], "more_body": True})
        transport.close()
    while not send.__self__.disconnected:  # else uvicorn answers 500 for us
        await asyncio.sleep(0.01)


@route("GET", "/_loopback/requests")
def requests(request):
    return request.hub.log


@route("GET|POST|DELETE", "/_loopback/faults")
def faults(request):
    """POST adds one fault, DELETE clears them, GET shows how many hits each still has."""
    hub = request.hub
    if request.method == "POST":
        try:
            hub.faults.append(Fault(**request.json()))
        except (TypeError, ValueError) as error:
            raise HubError(400, str(error)) from error
    elif request.method == "DELETE":
        hub.faults.clear()
    return [asdict(fault) for fault in hub.faults]


@route("GET|DELETE", "/_loopback/jobs")
def job_specs(request):
    """Every job as submitted, secrets included, and its log; DELETE kills those that still run."""
    if request.method == "DELETE":
        for job in request.hub.jobs.values():
            kill(job)
    return [{"id": job.id, "spec": job.spec, "logs": job.lines} for job in request.hub.jobs.values()]


@route("PUT", "/_loopback/buckets/{id}/{path}")
def seed_bucket(request, id, path):
    """Put one file into a bucket, made if missing, without a client."""
    hub = request.hub
    bucket = hub.buckets.setdefault(id, Bucket(id))
    put_contents(hub, bucket, {path: request.body})
