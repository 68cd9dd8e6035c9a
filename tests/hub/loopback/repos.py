"""Repos: create, delete, settings, info, revisions, branches and tags.

Known simplifications: moving a repo leaves no redirect; `expand` lists are ignored; search is a substring of the id.
"""

import hashlib

from starlette.responses import JSONResponse

from tests.hub.loopback.auth import need_content, need_login, need_read, need_write, owns
from tests.hub.loopback.http import HubError, paged, route
from tests.hub.loopback.state import Repo
from tests.hub.loopback.storage import regular_file

PREFIX = {"model": "", "dataset": "datasets/", "space": "spaces/"}
GITATTRIBUTES = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"


def repo_url(hub, repo):
    return f"{hub.url}/{PREFIX[repo.kind]}{repo.id}"


def get_repo(request, kind, id):
    """The repo, or HubError RepoNotFound where it is missing or hidden from the caller."""
    return need_read(request, request.hub.repos.get((kind, id)))


def get_commit(repo, revision):
    """The commit of a branch, tag, pull request or commit id; main unless given. Raises HubError RevisionNotFound."""
    oid = repo.refs.get(revision or "main", revision)
    if oid not in repo.commits:
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return repo.commits[oid]


def lfs_json(file):
    return {"size": file.size, "pointerSize": 134}


def repo_json(repo, commit, blobs=False):
    siblings = []
    for path, file in sorted(commit.tree.items()):
        sibling = {"rfilename": path}
        if blobs:
            sibling |= {"size": file.size, "blobId": file.oid}
            if file.sha256:
                sibling["lfs"] = {"sha256": file.sha256, **lfs_json(file)}
        siblings.append(sibling)
    return {
        "_id": hashlib.sha1(repo.id.encode()).hexdigest()[:24],
        "id": repo.id,
        "author": repo.id.split("/")[0],
        "sha": commit.oid,
        "private": repo.private,
        "gated": repo.gated,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "createdAt": repo.created,
        "lastModified": commit.date,
        "siblings": siblings,
        "usedStorage": sum(file.size for file in commit.tree.values()),
    }


def _named(request):
    body = request.json()
    namespace = body.get("organization") or need_login(request).user
    return body.get("type") or "model", f"{namespace}/{body['name']}", body


@route("POST", "/api/repos/create")
def create_repo(request):
    kind, id, body = _named(request)
    hub, token = request.hub, need_write(request, id.split("/")[0])
    private = bool(body.get("private")) or body.get("visibility") == "private"
    repo = Repo(id, kind, private)
    with hub.lock:
        if (kind, id) in hub.repos:
            message = f"You already created this {kind} repo"
            return JSONResponse({"error": message, "url": repo_url(hub, repo)}, 409, {"X-Error-Message": message})
        hub.repos[kind, id] = repo
        repo.add_commit("main", {".gitattributes": regular_file(hub, GITATTRIBUTES)}, "initial commit", token.user)
    return {"url": repo_url(hub, repo), "name": id, "id": id}


@route("DELETE", "/api/repos/delete")
def delete_repo(request):
    kind, id, _ = _named(request)
    get_repo(request, kind, id)
    need_write(request, id.split("/")[0])
    del request.hub.repos[kind, id]


@route("POST", "/api/repos/move")
def move_repo(request):
    hub, body = request.hub, request.json()
    source, target = body["fromRepo"], body["toRepo"]
    for id in (source, target):
        need_write(request, id.split("/")[0])
    with hub.lock:
        if body.get("type") == "bucket":
            bucket = need_read(request, hub.buckets.get(source), "Bucket")
            hub.buckets[target] = hub.buckets.pop(source)
            bucket.id = target
        else:
            repo = get_repo(request, body.get("type") or "model", source)
            hub.repos[repo.kind, target] = hub.repos.pop((repo.kind, source))
            repo.id = target


@route("PUT", "/api/{kind}/{id}/settings")
def change_settings(request, kind, id):
    repo, body = get_repo(request, kind, id), request.json()
    need_write(request, id.split("/")[0])
    repo.gated = body.get("gated", repo.gated)
    repo.private = body.get("private", body.get("visibility", "private" if repo.private else "public") == "private")


@route("GET", "/api/{kind}")
def list_repos(request, kind):
    author, search = request.param("author"), request.param("search", "")
    found = [repo for (k, _), repo in request.hub.repos.items() if k == kind]
    found = [repo for repo in found if author in (None, repo.id.split("/")[0]) and search in repo.id]
    visible = [repo for repo in found if not repo.private or owns(request.token, repo.id.split("/")[0])]
    return paged(request, [repo_json(repo, get_commit(repo, "main")) for repo in visible])


@route("GET", "/api/{kind}/{name}")
def repo_without_namespace(request, kind, name):
    need_read(request, None)


@route("GET", "/api/{kind}/{id}")
@route("GET", "/api/{kind}/{id}/revision/{revision}")
def repo_info(request, kind, id, revision=None):
    repo = get_repo(request, kind, id)
    return repo_json(repo, get_commit(repo, revision), request.flag("blobs"))


@route("GET", "/api/{kind}/{id}/auth-check")
def auth_check(request, kind, id):
    need_content(request, get_repo(request, kind, id))


@route("GET", "/api/{kind}/{id}/auth-check/write")
def auth_check_write(request, kind, id):
    get_repo(request, kind, id)
    need_write(request, id.split("/")[0])


@route("GET", "/api/{kind}/{id}/refs")
def list_refs(request, kind, id):
    repo = get_repo(request, kind, id)
    refs = {"branches": [], "converts": [], "tags": [], "pullRequests": []}
    for name, oid in repo.refs.items():
        if name.startswith("refs/pr/"):
            group, full = "pullRequests", name
        elif name in repo.tags:
            group, full = "tags", f"refs/tags/{name}"
        else:
            group, full = "branches", f"refs/heads/{name}"
        refs[group].append({"name": name, "ref": full, "targetCommit": oid})
    return refs


@route("GET", "/api/{kind}/{id}/commits/{revision}")
def list_commits(request, kind, id, revision):
    repo, commits = get_repo(request, kind, id), []
    commit = get_commit(repo, revision)
    while commit:
        entry = {"id": commit.oid, "title": commit.title, "message": commit.description, "date": commit.date}
        commits.append({**entry, "authors": [{"user": commit.author}]})
        commit = repo.commits.get(commit.parent)
    return paged(request, commits)


@route("POST|DELETE", "/api/{kind}/{id}/branch/{name}")
def change_branch(request, kind, id, name):
    repo = get_repo(request, kind, id)
    need_write(request, id.split("/")[0])
    if request.method == "DELETE":
        repo.refs.pop(name, None)
    elif name in repo.refs:
        raise HubError(409, "Reference already exists")
    else:
        repo.refs[name] = get_commit(repo, request.json().get("startingPoint")).oid


@route("POST|DELETE", "/api/{kind}/{id}/tag/{name}")
def change_tag(request, kind, id, name):
    """The name is the tag to delete, or the revision to tag."""
    repo = get_repo(request, kind, id)
    need_write(request, id.split("/")[0])
    if request.method == "DELETE":
        repo.refs.pop(name, None)
        repo.tags.discard(name)
        return
    tag = request.json()["tag"]
    if tag in repo.refs:
        raise HubError(409, "Tag already exists")
    repo.refs[tag] = get_commit(repo, name).oid
    repo.tags.add(tag)
