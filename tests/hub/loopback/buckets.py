"""Buckets: mutable folders whose content is always in Xet.

Known simplifications: no event stream, no regions; copying inside the Hub needs content that is already here in Xet.
"""

from starlette.responses import JSONResponse

from tests.hub.loopback.auth import need_login, need_read, need_write, owns
from tests.hub.loopback.http import HubError, paged, route, serve_bytes
from tests.hub.loopback.state import Bucket, timestamp
from tests.hub.loopback.xet import read_xet, write_xet, xet_access, xet_file


def get_bucket(request, id):
    return need_read(request, request.hub.buckets.get(id), "Bucket")


def bucket_json(bucket):
    size = sum(file["size"] for file in bucket.files.values())
    return {
        "id": bucket.id,
        "private": bucket.private,
        "createdAt": bucket.created,
        "size": size,
        "totalFiles": len(bucket.files),
    }


def put_file(bucket, path, xet_hash, size, mtime=None):
    """`mtime` in milliseconds since 1970; now unless given."""
    modified = timestamp(mtime / 1000) if mtime is not None else timestamp()
    bucket.files[path] = {"size": size, "xetHash": xet_hash, "mtime": modified, "uploadedAt": timestamp()}


def put_contents(hub, bucket, contents):
    """Store {path: bytes} as a client would."""
    hashes = write_xet(hub, contents.values()) if contents else []
    for (path, data), xet_hash in zip(contents.items(), hashes, strict=True):
        put_file(bucket, path, xet_hash, len(data))


@route("GET", "/api/buckets/{namespace}")
def list_buckets(request, namespace):
    if namespace == "me":
        namespace = need_login(request).user
    found = [bucket for bucket in request.hub.buckets.values() if bucket.id.split("/")[0] == namespace]
    return paged(request, [bucket_json(b) for b in found if not b.private or owns(request.token, namespace)])


@route("POST", "/api/buckets/{id}")
def create_bucket(request, id):
    namespace, name = id.split("/")
    namespace = need_login(request).user if namespace == "me" else namespace
    need_write(request, namespace)
    hub, body, id = request.hub, request.json(), f"{namespace}/{name}"
    url = f"{hub.url}/buckets/{id}"
    with hub.lock:
        if id in hub.buckets:
            message = "You already created this bucket"
            return JSONResponse({"error": message, "url": url}, 409, {"X-Error-Message": message})
        hub.buckets[id] = Bucket(id, bool(body.get("private")) or body.get("visibility") == "private")
    return {"url": url}


@route("GET", "/api/buckets/{id}")
def bucket_info(request, id):
    return bucket_json(get_bucket(request, id))


@route("DELETE", "/api/buckets/{id}")
def delete_bucket(request, id):
    get_bucket(request, id)
    need_write(request, id.split("/")[0])
    del request.hub.buckets[id]


@route("PUT", "/api/buckets/{id}/settings")
def change_settings(request, id):
    bucket = get_bucket(request, id)
    need_write(request, id.split("/")[0])
    bucket.private = request.json()["private"]


@route("GET", "/api/buckets/{id}/tree")
@route("GET", "/api/buckets/{id}/tree/{path}")
def list_tree(request, id, path=""):
    """Files and folders whose path starts with the text `path`: the prefix is lexical, not a folder."""
    files, entries, seen = get_bucket(request, id).files, [], set()
    for name in sorted(name for name in files if name.startswith(path)):
        rest = name[len(path) :].lstrip("/")
        if request.flag("recursive") or "/" not in rest:
            entries.append({"type": "file", "path": name, **files[name]})
            continue
        folder = name[: len(name) - len(rest)] + rest.split("/")[0]
        if folder not in seen:
            seen.add(folder)
            entries.append({"type": "directory", "path": folder, "uploadedAt": files[name]["uploadedAt"]})
    return paged(request, entries)


@route("POST", "/api/buckets/{id}/paths-info")
def paths_info(request, id):
    files = get_bucket(request, id).files
    return [{"type": "file", "path": path, **files[path]} for path in request.json()["paths"] if path in files]


@route("POST", "/api/buckets/{id}/batch")
def batch(request, id):
    """Apply NDJSON operations one by one: failures are listed, the others stand; 422 where all failed."""
    bucket, failed, operations = get_bucket(request, id), [], request.ndjson()
    need_write(request, id.split("/")[0])
    with request.hub.lock:
        for operation in operations:
            path = operation["path"]
            if operation["type"] == "deleteFile":
                if bucket.files.pop(path, None) is None:
                    failed.append({"path": path, "error": "not found"})
            elif (content := xet_file(request.hub, operation["xetHash"])) is None:
                failed.append({"path": path, "error": "unknown Xet hash"})
            else:
                put_file(bucket, path, operation["xetHash"], content.size, operation.get("mtime"))
    done = len(operations) - len(failed)
    status = 422 if failed and not done else 200
    return JSONResponse(
        {"success": not failed, "processed": len(operations), "succeeded": done, "failed": failed}, status
    )


@route("GET", "/api/buckets/{id}/xet-read-token")
def xet_read_token(request, id):
    get_bucket(request, id)
    return xet_access(request, write=False)


@route("GET", "/api/buckets/{id}/xet-write-token")
def xet_write_token(request, id):
    get_bucket(request, id)
    need_write(request, id.split("/")[0])
    return xet_access(request, write=True)


@route("GET|HEAD", "/buckets/{id}/resolve/{path}")
def resolve(request, id, path):
    hub, file = request.hub, get_bucket(request, id).files.get(path)
    if file is None:
        raise HubError(404, "Entry not found", "EntryNotFound")
    link = f'<{hub.url}/api/buckets/{id}/xet-read-token>; rel="xet-auth"'
    headers = {"X-Xet-Hash": file["xetHash"], "Link": link, "Last-Modified": file["mtime"]}
    return serve_bytes(request, lambda: read_xet(hub, file["xetHash"]), file["size"], file["xetHash"], headers)
