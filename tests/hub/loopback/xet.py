"""Xet: file content in xorbs, and the HTTP content-addressed store that hf_xet uploads to and downloads from.

A shard describes files as runs of chunks in xorbs; this server keeps both as sent and never decompresses a chunk. Where
plain HTTP readers need whole files, it downloads them from itself with hf_xet.

Known simplifications: no global deduplication, no v2 routes (clients fall back to v1), no presigned URLs.
"""

import os
import re
import struct
import threading
import time
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response

from tests.hub.loopback.http import HubError, route, serve_bytes

EMPTY = "0" * 64
RECORD = 48  # bytes of every record of a shard, header included
READ_SECRET, WRITE_SECRET, OWN_SECRET = "xet-read", "xet-write", "xet-own"


@dataclass(frozen=True)
class Term:
    """Chunks `first` to `last` (exclusive) of a xorb, `size` bytes uncompressed."""

    xorb: str
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class XetFile:
    size: int
    sha256: str | None
    terms: tuple[Term, ...]


def hash_text(raw):
    """32 bytes as four little-endian 64-bit numbers in hexadecimal, which is how Xet prints its hashes."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def parse_shard(data):
    """Yield (Xet hash, XetFile) of the file section of a shard.

    After a header record, each file is a record (hash, flags, number of terms), its terms, as many verification
    records if flag bit 31 is set, and a SHA-256 record if bit 30 is; a hash of ones ends the section.
    """
    at = RECORD
    while at + RECORD <= len(data) and data[at : at + 32] != b"\xff" * 32:
        name = hash_text(data[at : at + 32])
        flags, count = struct.unpack_from("<II", data, at + 32)
        at += RECORD
        terms = []
        for start in range(at, at + count * RECORD, RECORD):
            _, size, first, last = struct.unpack_from("<IIII", data, start + 32)
            terms.append(Term(hash_text(data[start : start + 32]), size, first, last))
        at += count * RECORD * (2 if flags >> 31 & 1 else 1)
        sha256 = None
        if flags >> 30 & 1:
            sha256 = hash_text(data[at : at + 32])
            at += RECORD
        yield name, XetFile(sum(term.size for term in terms), sha256, tuple(terms))


def xorb_chunks(hub, xorb):
    """Chunks of a stored xorb as (first byte, end byte, uncompressed size); each has an 8-byte header."""
    data, at, chunks = (hub.root / "xorbs" / xorb).read_bytes(), 0, []
    while at + 8 <= len(data) and data[at] == 0:
        packed = int.from_bytes(data[at + 1 : at + 4], "little")
        size = int.from_bytes(data[at + 5 : at + 8], "little")
        chunks.append((at, at + 8 + packed, size))
        at += 8 + packed
    return chunks


def xet_file(hub, name):
    """The file of that Xet hash, or None. The empty file is never uploaded and has a hash of zeros."""
    return XetFile(0, None, ()) if name == EMPTY else hub.xet_files.get(name)


def _own_access(hub):
    expiry = int(time.time()) + 3600
    return {"endpoint": f"{hub.url}/cas", "token": OWN_SECRET, "token_expiry_unix_secs": expiry}


def read_xet(hub, name):
    """The bytes of a file, rebuilt by hf_xet and kept beside the blobs."""
    import hf_xet

    size = xet_file(hub, name).size
    if size == 0:
        return b""
    kept = hub.root / "blobs" / f"xet-{name}"
    if not kept.exists():
        partial = kept.with_suffix(f".{threading.get_ident()}")
        group = hf_xet.XetSession().new_file_download_group(**_own_access(hub))
        group.start_download_file(hf_xet.XetFileInfo(name, size), str(partial))
        group.wait_to_finish()
        os.replace(partial, kept)
    return kept.read_bytes()


def write_xet(hub, contents):
    """Store byte strings the way a client would; returns their Xet hashes in order."""
    import hf_xet

    with hf_xet.XetSession().new_upload_commit(**_own_access(hub)) as commit:
        uploads = [commit.start_upload_bytes(data, sha256=hf_xet.SKIP_SHA256) for data in contents]
    return [upload.result().xet_info.hash for upload in uploads]


def xet_access(request, write):
    """The answer of every xet-{read,write}-token route; hf_xet reads the body, Python helpers the headers."""
    secret = OWN_SECRET if request.token and request.token.internal else WRITE_SECRET if write else READ_SECRET
    url, expiry = f"{request.hub.url}/cas", int(time.time()) + 900
    headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": secret, "X-Xet-Token-Expiration": str(expiry)}
    return JSONResponse({"accessToken": secret, "exp": expiry, "casUrl": url}, headers=headers)


def _need_secret(request, *secrets):
    if request.headers.get("authorization", "").removeprefix("Bearer ") not in (*secrets, OWN_SECRET):
        raise HubError(401, "Xet token missing, unknown or without this permission")


@route("POST", "/cas/v1/xorbs/{prefix}/{xorb}")
def store_xorb(request, prefix, xorb):
    _need_secret(request, WRITE_SECRET)
    path = request.hub.root / "xorbs" / xorb
    inserted = not path.exists()
    partial = path.with_suffix(f".{threading.get_ident()}")
    partial.write_bytes(request.body)
    os.replace(partial, path)
    return {"was_inserted": inserted}


@route("POST", "/cas/v1/shards")
def store_shard(request):
    """A shard may only name xorbs that are here: a client's cache can outlive the store it describes."""
    _need_secret(request, WRITE_SECRET)
    hub, files = request.hub, dict(parse_shard(request.body))
    for file in files.values():
        for term in file.terms:
            if not (hub.root / "xorbs" / term.xorb).exists():
                raise HubError(400, f"shard refers to unknown xorb {term.xorb}")
    with hub.lock:
        hub.xet_files.update(files)
        hub.xet_hashes.update({file.sha256: name for name, file in files.items() if file.sha256})
    return {"result": 1}


@route("GET", "/cas/v1/xorb-bytes/{xorb}")
def xorb_bytes(request, xorb):
    path = request.hub.root / "xorbs" / xorb
    if not path.exists():
        raise HubError(404, f"no xorb {xorb}")  # never 5xx: hf_xet retries those for minutes
    return serve_bytes(request, path.read_bytes, path.stat().st_size, xorb)


@route("POST", "/cas/v1/telemetry")
def telemetry(request):
    return {}


def _range(start, end):
    return {"start": start, "end": end}


def merged(spans):
    """Half-open spans as the fewest disjoint ones. hf_xet needs each term's chunks inside one link's range, also where
    a file repeats itself and its terms overlap in a xorb; with one link per term it panics."""
    whole = []
    for first, last in sorted(spans):
        if whole and first <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(last, whole[-1][1]))
        else:
            whole.append((first, last))
    return whole


@route("GET", "/cas/v1/reconstructions/{name}")
def reconstruction(request, name):
    """Where the chunks of a file, or of the asked byte range of it, lie. Chunk ranges exclude, byte ranges include."""
    _need_secret(request, READ_SECRET, WRITE_SECRET)
    hub, file = request.hub, request.hub.xet_files.get(name)
    if file is None:
        raise HubError(404, f"no Xet file {name}")
    wanted = re.match(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    low, high = (int(wanted[1]), min(int(wanted[2]) + 1, file.size)) if wanted else (0, file.size)
    if wanted and low >= file.size:
        return Response(status_code=416)

    at, offset, terms, spans = 0, None, [], {}
    for term in file.terms:
        chunks, used = xorb_chunks(hub, term.xorb), []
        for index in range(term.first, term.last):
            size = chunks[index][2]
            if at < high and at + size > low:
                used.append(index)
                offset = low - at if offset is None else offset
            at += size
        if used:
            span = (used[0], used[-1] + 1)
            unpacked = sum(chunks[index][2] for index in used)
            spans.setdefault(term.xorb, []).append(span)
            terms.append({"hash": term.xorb, "unpacked_length": unpacked, "range": _range(*span)})
    # The CAS answers with links that need no header, so the server's own reads are marked in the link.
    own = "?own=1" if request.headers["authorization"].endswith(OWN_SECRET) else ""
    fetches = {}
    for xorb, wanted in spans.items():
        chunks, url = xorb_chunks(hub, xorb), f"{hub.url}/cas/v1/xorb-bytes/{xorb}{own}"
        fetches[xorb] = [
            {"range": _range(first, last), "url": url, "url_range": _range(chunks[first][0], chunks[last - 1][1] - 1)}
            for first, last in merged(wanted)
        ]
    return {"offset_into_first_range": offset or 0, "terms": terms, "fetch_info": fetches}
