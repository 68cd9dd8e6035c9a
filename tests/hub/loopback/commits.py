"""Writing repos: upload modes, LFS transfer and commits.

Known simplifications: a file is LFS by its ending, a NUL byte in its sample or its size, whatever .gitattributes says;
LFS transfers are "basic" only; commit hooks check nothing but that LFS content arrived.
"""

import base64
import hashlib
import re

import yaml
from starlette.responses import JSONResponse

from tests.hub.loopback.auth import need_write
from tests.hub.loopback.discussions import event, open_discussion
from tests.hub.loopback.http import HubError, route
from tests.hub.loopback.repos import get_commit, get_repo, repo_url
from tests.hub.loopback.storage import lfs_file, put_blob, regular_file
from tests.hub.loopback.xet import xet_access

LFS_ENDINGS = re.compile(
    r"\.(parquet|arrow|png|jpe?g|webp|tiff?|pdf|zip|gz|bin|safetensors|npy|mp3|wav|mp4|zst)$", re.IGNORECASE
)
REGULAR_LIMIT = 10 << 20  # the Hub refuses larger files outside LFS


def need_commit_right(request, repo, revision):
    """Owners write everywhere; anybody with a write token opens or extends a pull request."""
    proposes = request.flag("create_pr") or revision.startswith("refs/pr/")
    need_write(request, None if proposes else repo.id.split("/")[0])


@route("POST", "/api/validate-yaml")
def validate_yaml(request):
    header = re.match(r"---\r?\n(.*?)\n---", request.json().get("content", ""), re.DOTALL)
    try:
        yaml.safe_load(header[1] if header else "")
    except yaml.YAMLError as error:
        return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
    return {"errors": [], "warnings": []}


@route("POST", "/api/{kind}/{id}/preupload/{revision}")
def preupload(request, kind, id, revision):
    repo, files = get_repo(request, kind, id), []
    need_commit_right(request, repo, revision)
    tree = get_commit(repo, revision).tree
    for file in request.json()["files"]:
        path, known = file["path"], tree.get(file["path"])
        large = file["size"] > REGULAR_LIMIT or b"\0" in base64.b64decode(file["sample"])
        mode = "lfs" if large or LFS_ENDINGS.search(path) else "regular"
        oid = (known.sha256 or known.oid) if known else None
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return {"files": files}


@route("GET", "/api/{kind}/{id}/xet-write-token/{revision}")
def xet_write_token(request, kind, id, revision):
    need_commit_right(request, get_repo(request, kind, id), revision)
    return xet_access(request, write=True)


@route("POST", r"/(?:(?P<prefix>datasets|spaces)/)?{id}\.git/info/lfs/objects/batch")
def lfs_batch(request, prefix, id):
    get_repo(request, (prefix or "models").removesuffix("s"), id)
    need_write(request)
    objects = []
    for item in request.json()["objects"]:
        if lfs_file(request.hub, item["oid"]) is None:
            upload, verify = f"{request.hub.url}/lfs/{item['oid']}", f"{request.hub.url}/lfs/verify"
            item = {**item, "actions": {"upload": {"href": upload}, "verify": {"href": verify}}}
        objects.append(item)
    return {"transfer": "basic", "objects": objects}


@route("PUT", "/lfs/{sha256}")
def lfs_upload(request, sha256):
    if hashlib.sha256(request.body).hexdigest() != sha256:
        raise HubError(400, f"content is not {sha256}")
    put_blob(request.hub, sha256, request.body)


@route("POST", "/lfs/verify")
def lfs_verify(request):
    if lfs_file(request.hub, request.json()["oid"]) is None:
        raise HubError(404, "LFS object not found")


def changed_tree(request, tree, operations):
    """The tree after the operations of a commit. Raises HubError 400 for content that is missing or too large."""
    tree = dict(tree)
    for operation in operations:
        key, value = operation["key"], operation["value"]
        if key == "file":
            data = base64.b64decode(value["content"])
            if len(data) > REGULAR_LIMIT and not request.token.internal:
                raise HubError(400, f"{value['path']}: files larger than 10 MiB must be sent as LFS")
            tree[value["path"]] = regular_file(request.hub, data)
        elif key == "lfsFile":
            file = lfs_file(request.hub, value["oid"])
            if file is None:
                raise HubError(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
            tree[value["path"]] = file
        elif key == "deletedFile":
            if tree.pop(value["path"], None) is None:
                raise HubError(404, f"A file with the name {value['path']} does not exist", "EntryNotFound")
        elif key == "deletedFolder":
            prefix = value["path"].rstrip("/") + "/"
            tree = {path: file for path, file in tree.items() if not path.startswith(prefix)}
    return tree


@route("POST", "/api/{kind}/{id}/commit/{revision}")
def commit(request, kind, id, revision):
    """Apply NDJSON operations to a branch, a pull request, or a new pull request (`create_pr=1`)."""
    hub, repo = request.hub, get_repo(request, kind, id)
    need_commit_right(request, repo, revision)
    header = next(line["value"] for line in request.ndjson() if line["key"] == "header")
    title, description = header["summary"], header.get("description") or ""
    with hub.lock:
        head = get_commit(repo, revision)
        if header.get("parentCommit") not in (None, head.oid):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        tree, answer = changed_tree(request, head.tree, request.ndjson()), {}
        if request.flag("create_pr"):
            pull = open_discussion(repo, title, request.token.user, description, pull_request=True)
            pull["status"] = "open"
            revision = f"refs/pr/{pull['num']}"
            repo.refs[revision] = head.oid
            answer["pullRequestUrl"] = f"{repo_url(hub, repo)}/discussions/{pull['num']}"
        elif revision not in repo.refs:
            raise HubError(404, f"{revision} is not a branch", "RevisionNotFound")
        made = repo.add_commit(revision, tree, title, request.token.user, description)
        number = re.fullmatch(r"refs/pr/(\d+)", revision)
        if number:
            entry = event("commit", request.token.user, subject=title, oid=made.oid)
            repo.discussions[int(number[1]) - 1]["events"].append(entry)
    url = f"{repo_url(hub, repo)}/commit/{made.oid}"
    return {"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": "", **answer}
