"""Tokens and what they allow.

Known simplifications: tokens are the fixed ones below; no fine-grained scopes; anybody with a write token may push to
any pull request of a repo they can read; access to a gated repo is never granted to others. The wording of the real
Hub's 403 answers is not reproduced.
"""

from tests.hub.loopback.http import HubError, route
from tests.hub.loopback.state import Token

WRITE, READ, STRANGER, INTERNAL = "hf_write", "hf_read", "hf_stranger", "hf_internal"
TOKENS = {
    WRITE: Token("user", "write", ("org",)),
    READ: Token("user", "read", ("org",)),
    STRANGER: Token("stranger", "write"),
    INTERNAL: Token("user", "write", ("org",), internal=True),
}


def token_of(headers):
    """The request's token, or None for anonymous ones.

    Raises HubError 401 for a token that does not exist. Xet and LFS transfer routes carry their own credentials and are
    not asked.
    """
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if not scheme:
        return None
    if secret not in TOKENS:
        raise HubError(401, "Invalid credentials in Authorization header")
    return TOKENS[secret]


def owns(token, namespace):
    return token is not None and namespace in (token.user, *token.orgs)


def need_login(request):
    if request.token is None:
        raise HubError(401, "Invalid username or password.")
    return request.token


def need_write(request, namespace=None):
    """Raise 401 without a token, 403 with a read-only one or for somebody else's namespace. None asks for any owner."""
    token = need_login(request)
    if token.role != "write":
        raise HubError(403, "Forbidden: this token has read-only permission, a write token is needed")
    if namespace is not None and not owns(token, namespace):
        raise HubError(403, f'Forbidden: you don\'t have the rights to write under the namespace "{namespace}"')
    return token


def need_read(request, thing, what="Repository", code="RepoNotFound"):
    """Raise as for a missing repo or bucket where `thing` is None, or private and not the caller's."""
    if thing is None or (thing.private and not owns(request.token, thing.id.split("/")[0])):
        if request.token is None:
            raise HubError(401, "Invalid username or password.", code)
        raise HubError(404, f"{what} not found", code)
    return thing


def need_content(request, repo):
    """Raise GatedRepo where the repo's files are gated and the caller does not own it."""
    if repo.gated and not owns(request.token, repo.id.split("/")[0]):
        status = 401 if request.token is None else 403
        raise HubError(status, f"Access to {repo.kind} {repo.id} is restricted", "GatedRepo")
    return repo


@route("GET", "/api/whoami-v2")
def whoami(request):
    token = need_login(request)
    return {
        "type": "user",
        "id": f"id-{token.user}",
        "name": token.user,
        "fullname": token.user,
        "orgs": [{"type": "org", "name": org, "roleInOrg": "write"} for org in token.orgs],
        "auth": {"type": "access_token", "accessToken": {"displayName": "test", "role": token.role}},
    }
