"""Requests, errors, routes and the answers that several routes share."""

import json
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from starlette.responses import JSONResponse, Response

from tests.hub.loopback.state import Hub, Token

PLACEHOLDERS = {
    "kind": r"(?P<kind>model|dataset|space)s",
    "id": r"(?P<id>[^/]+/[^/]+)",
    "path": r"(?P<path>.+)",
}
ROUTES = []


class HubError(Exception):
    """An error answer. `code` becomes `X-Error-Code`, from which clients choose their exception class."""

    def __init__(self, status, message, code=None, headers=None):
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **(headers or {})}
        if code:
            self.headers["X-Error-Code"] = code

    def response(self):
        return JSONResponse({"error": str(self)}, self.status, self.headers)


@dataclass
class Request:
    """One HTTP request. `path` stays percent-encoded, as revisions hold slashes (`refs%2Fpr%2F1`)."""

    hub: Hub
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    token: Token | None = None

    def json(self):
        return json.loads(self.body or b"{}")

    def ndjson(self):
        return [json.loads(line) for line in self.body.split(b"\n") if line.strip()]

    def param(self, name, default=None):
        return self.query.get(name, [default])[0]

    def flag(self, name):
        return self.param(name, "").lower() in ("1", "true")


def route(methods, pattern):
    """Register a handler `(request, **placeholders)` for methods such as "GET|HEAD" and a path with {placeholders}.

    {kind} is model, dataset or space (its plural in the path), {id} is namespace/name, {path} may hold slashes, any
    other placeholder is one segment. Values arrive percent-decoded.
    """
    regex = re.sub(r"\{(\w+)\}", lambda m: PLACEHOLDERS.get(m[1], rf"(?P<{m[1]}>[^/]+)"), pattern)

    def register(handler):
        ROUTES.append((set(methods.split("|")), re.compile(regex + "/?"), handler))
        return handler

    return register


def answer(request):
    """Call the first route that matches; errors become their responses."""
    try:
        for methods, regex, handler in ROUTES:
            match = regex.fullmatch(request.path)
            if match and request.method in methods:
                values = {name: value and unquote(value) for name, value in match.groupdict().items()}
                result = handler(request, **values)
                return result if isinstance(result, Response) else JSONResponse({} if result is None else result)
        return HubError(404, f"no such route: {request.method} {request.path}").response()
    except HubError as error:
        return error.response()


def paged(request, items):
    """One page of a list, with `Link: rel="next"` where more follows."""
    size = int(request.param("limit", request.hub.page))
    start = int(request.param("cursor", 0))
    headers = {}
    if start + size < len(items):
        kept = [f"{k}={quote(v)}" for k, values in request.query.items() if k != "cursor" for v in values]
        query = "&".join([*kept, f"cursor={start + size}"])
        headers["Link"] = f'<{request.hub.url}{request.path}?{query}>; rel="next"'
    return JSONResponse(items[start : start + size], headers=headers)


def serve_bytes(request, read, size, etag, headers=None):
    """HEAD, GET or a range of the bytes that `read()` gives. 416 past the end."""
    headers = {
        "ETag": f'"{etag}"',
        "Accept-Ranges": "bytes",
        "X-Linked-Size": str(size),
        "X-Linked-Etag": f'"{etag}"',
        **(headers or {}),
    }
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(size)})
    wanted = re.match(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if not wanted:
        return Response(read(), headers=headers, media_type="application/octet-stream")
    start, end = int(wanted[1]), min(int(wanted[2] or size), size - 1)
    if start >= size:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    return Response(read()[start : end + 1], 206, {**headers, "Content-Range": f"bytes {start}-{end}/{size}"})
