"""Discussions and pull requests.

Known simplifications: merging lays the pull request's own changes over main, the pull request winning; no diffs and no
conflict detection; comments cannot be edited or hidden.
"""

import os

from tests.hub.loopback.auth import need_write
from tests.hub.loopback.http import HubError, route
from tests.hub.loopback.repos import get_repo, repo_url
from tests.hub.loopback.state import timestamp


def event(kind, author, **data):
    return {
        "id": os.urandom(12).hex(),
        "type": kind,
        "createdAt": timestamp(),
        "author": {"name": author},
        "data": data,
    }


def comment_event(author, text):
    return event("comment", author, edited=False, hidden=False, latest={"raw": text})


def open_discussion(repo, title, author, description, pull_request):
    """A new discussion; a pull request starts as a draft at main, as the Hub does it."""
    discussion = {
        "num": len(repo.discussions) + 1,
        "title": title,
        "author": {"name": author},
        "createdAt": timestamp(),
        "status": "draft" if pull_request else "open",
        "isPullRequest": pull_request,
        "repo": {"name": repo.id, "type": repo.kind},
        "base": repo.refs["main"],
        "events": [comment_event(author, description)],
    }
    repo.discussions.append(discussion)
    if pull_request:
        repo.refs[f"refs/pr/{discussion['num']}"] = repo.refs["main"]
    return discussion


def get_discussion(repo, number):
    if not 1 <= int(number) <= len(repo.discussions):
        raise HubError(404, f"Discussion {number} not found")
    return repo.discussions[int(number) - 1]


def merge(repo, discussion, author):
    """Commit to main what the pull request changed since it was opened."""
    before = repo.commits[discussion["base"]].tree
    proposed = repo.commits[repo.refs[f"refs/pr/{discussion['num']}"]].tree
    tree = dict(repo.commits[repo.refs["main"]].tree)
    for path in before.keys() | proposed.keys():
        if before.get(path) != proposed.get(path):
            tree.pop(path, None)
            if path in proposed:
                tree[path] = proposed[path]
    discussion["mergeCommitId"] = repo.add_commit("main", tree, discussion["title"], author).oid
    discussion["status"] = "merged"


@route("GET", "/api/{kind}/{id}/discussions")
def list_discussions(request, kind, id):
    repo, kinds, statuses = get_repo(request, kind, id), request.param("type", "all"), request.param("status", "all")
    found = [
        discussion
        for discussion in reversed(repo.discussions)
        if kinds in ("all", "pull_request" if discussion["isPullRequest"] else "discussion")
        and statuses in ("all", "open" if discussion["status"] in ("open", "draft") else "closed")
    ]
    return {"discussions": found, "count": len(found), "start": 0, "numClosedDiscussions": 0}


@route("POST", "/api/{kind}/{id}/discussions")
def create_discussion(request, kind, id):
    repo, body, token = get_repo(request, kind, id), request.json(), need_write(request)
    with request.hub.lock:
        discussion = open_discussion(
            repo, body["title"], token.user, body.get("description") or "", body.get("pullRequest", False)
        )
    return {"num": discussion["num"], "url": f"{repo_url(request.hub, repo)}/discussions/{discussion['num']}"}


@route("GET", "/api/{kind}/{id}/discussions/{number}")
def discussion_details(request, kind, id, number):
    discussion = get_discussion(get_repo(request, kind, id), number)
    changes = {"base": "refs/heads/main", "mergeCommitId": discussion.get("mergeCommitId")}
    return {**discussion, "filesWithConflicts": [], "diff": "", "changes": changes}


@route("POST", "/api/{kind}/{id}/discussions/{number}/comment")
def add_comment(request, kind, id, number):
    discussion, token = get_discussion(get_repo(request, kind, id), number), need_write(request)
    discussion["events"].append(comment_event(token.user, request.json()["comment"]))
    return {"newMessage": discussion["events"][-1]}


@route("POST", "/api/{kind}/{id}/discussions/{number}/title")
def change_title(request, kind, id, number):
    discussion, token = get_discussion(get_repo(request, kind, id), number), need_write(request)
    change = {"from": discussion["title"], "to": request.json()["title"]}
    discussion["title"] = change["to"]
    discussion["events"].append(event("title-change", token.user, **change))
    return {"newTitle": discussion["events"][-1]}


@route("POST", "/api/{kind}/{id}/discussions/{number}/{action}")
def change_status(request, kind, id, number, action):
    repo = get_repo(request, kind, id)
    discussion, token = get_discussion(repo, number), need_write(request, id.split("/")[0])
    if action == "status":
        discussion["status"] = request.json()["status"]
    elif action == "merge":
        if discussion["status"] not in ("open", "draft"):
            raise HubError(400, f"This pull request is {discussion['status']}")
        with request.hub.lock:
            merge(repo, discussion, token.user)
    else:
        raise HubError(404, f"no such action: {action}")
    discussion["events"].append(event("status-change", token.user, status=discussion["status"]))
    return {"newStatus": discussion["events"][-1]}
