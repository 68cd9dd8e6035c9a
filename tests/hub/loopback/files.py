"""Reading repos: trees, paths and content."""

import hashlib
from urllib.parse import parse_qs

from tests.hub.loopback.auth import need_content
from tests.hub.loopback.http import HubError, paged, route, serve_bytes
from tests.hub.loopback.repos import get_commit, get_repo, lfs_json
from tests.hub.loopback.storage import read_file
from tests.hub.loopback.xet import xet_access


def file_json(hub, path, file):
    entry = {"type": "file", "path": path, "size": file.size, "oid": file.oid}
    if file.sha256:
        entry["lfs"] = {"oid": file.sha256, **lfs_json(file)}
        if file.sha256 in hub.xet_hashes:
            entry["xetHash"] = hub.xet_hashes[file.sha256]
    return entry


def folder_json(path):
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}


def last_commit(commit):
    return {"lastCommit": {"id": commit.oid, "title": commit.title, "date": commit.date}}


def list_folder(hub, tree, folder, recursive):
    """Files and folders under a folder ("" for the root), folders before what they hold."""
    entries, seen = [], set()
    prefix = f"{folder}/" if folder else ""
    for path in sorted(path for path in tree if path.startswith(prefix)):
        parts = path.removeprefix(prefix).split("/")
        for depth in range(1, len(parts)):
            parent = prefix + "/".join(parts[:depth])
            if parent not in seen and (recursive or depth == 1):
                seen.add(parent)
                entries.append(folder_json(parent))
        if recursive or len(parts) == 1:
            entries.append(file_json(hub, path, tree[path]))
    return entries


@route("GET", "/api/{kind}/{id}/tree/{revision}")
@route("GET", "/api/{kind}/{id}/tree/{revision}/{path}")
def list_tree(request, kind, id, revision, path=""):
    commit = get_commit(get_repo(request, kind, id), revision)
    path = path.strip("/")
    entries = list_folder(request.hub, commit.tree, path, request.flag("recursive"))
    if path and not entries:
        if path not in commit.tree:
            raise HubError(404, f'{path} does not exist on "{revision}"', "EntryNotFound")
        entries = [file_json(request.hub, path, commit.tree[path])]
    extra = last_commit(commit) if request.flag("expand") else {}
    return paged(request, [entry | extra for entry in entries])


@route("POST", "/api/{kind}/{id}/paths-info/{revision}")
def paths_info(request, kind, id, revision):
    """Entries of the paths that exist. The body is a form, or JSON."""
    commit = get_commit(get_repo(request, kind, id), revision)
    if "json" in request.headers.get("content-type", ""):
        paths, expand = request.json()["paths"], request.json().get("expand")
    else:
        form = parse_qs(request.body.decode())
        paths, expand = form.get("paths", []), form.get("expand", [""])[0].lower() == "true"
    extra = last_commit(commit) if expand else {}
    entries = []
    for path in (path.strip("/") for path in paths):
        if path in commit.tree:
            entries.append(file_json(request.hub, path, commit.tree[path]) | extra)
        elif any(other.startswith(path + "/") for other in commit.tree):
            entries.append(folder_json(path) | extra)
    return entries


@route("GET", "/api/{kind}/{id}/xet-read-token/{revision}")
def xet_read_token(request, kind, id, revision):
    need_content(request, get_repo(request, kind, id))
    return xet_access(request, write=False)


@route("GET|HEAD", "/(?:(?P<prefix>datasets|spaces)/)?{id}/(?:resolve|raw)/{revision}/{path}")
def resolve(request, prefix, id, revision, path):
    """A file's bytes. Xet headers let clients fetch it from the content-addressed store instead."""
    hub, kind = request.hub, (prefix or "models").removesuffix("s")
    repo = need_content(request, get_repo(request, kind, id))
    commit = get_commit(repo, revision)
    headers = {"X-Repo-Commit": commit.oid}
    file = commit.tree.get(path)
    if file is None:
        raise HubError(404, "Entry not found", "EntryNotFound", headers)
    if file.sha256 in hub.xet_hashes:
        headers["X-Xet-Hash"] = hub.xet_hashes[file.sha256]
        headers["Link"] = f'<{hub.url}/api/{kind}s/{id}/xet-read-token/{commit.oid}>; rel="xet-auth"'
    return serve_bytes(request, lambda: read_file(hub, file), file.size, file.sha256 or file.oid, headers)
