"""Keeps passwords, tokens and hosts out of reports and logs."""

import ipaddress
import os
import re
from urllib.parse import parse_qsl, unquote, urlsplit

MASK = "***"
SECRET_WORD = re.compile(r"(?i)key|token|secret|passw|credential|auth|signature|cookie")
# What looks like a token wherever it stands: known prefixes, bearers, JSON web tokens.
TOKEN_LIKE = re.compile(
    r"(?i)\b(?:hf|sk|pk|rk|ghp|gho|glpat|xox[abp]|api|key)[_-][A-Za-z0-9_-]{8,}|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|(?<=bearer )[^\s\"',]+|(?<=basic )[A-Za-z0-9+/=]{8,}"
)
URL_IN_TEXT = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+")
SHORTEST_SECRET = 4  # characters; shorter ones would be found inside of words


def host_class(host):
    """ "loopback", "private" or "public"; a name that is no address counts by its ending."""
    host = (host or "").lower().rstrip(".")
    if host in ("loopback", "private", "public"):  # redacted before
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        if host == "localhost" or host.endswith(".localhost"):
            return "loopback"
        return "private" if "." not in host or host.endswith((".local", ".lan", ".internal", ".home")) else "public"
    return "loopback" if address.is_loopback else "private" if address.is_private else "public"


def redacted_url(url, keep_host=False):
    """The URL with scheme, kind of host, port and path only: `http://loopback:8000/v1`, `https://public/v1`.

    User, password, query, fragment, path parameters and path parts that look like tokens are left out.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return MASK
    shown = (host or "") if keep_host else host_class(host)
    shown = f"[{shown}]" if ":" in shown else shown
    path = "/".join(redacted_part(part) for part in parts.path.split("/"))
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "") + path


def redacted_part(part):
    part = part.partition(";")[0]
    opaque = len(part) >= 16 and re.search(r"\d", part) and re.search(r"[A-Za-z]", part)
    return MASK if "@" in unquote(part) or "=" in unquote(part) or opaque or TOKEN_LIKE.search(part) else part


def secrets_in_url(url):
    """User, password, and the values of query and fragment of a URL, as written and decoded."""
    try:
        parts = urlsplit(url)
        found = [parts.username if len(parts.username or "") >= 8 else "", parts.password, parts.query, parts.fragment]
    except ValueError:
        return set()
    for text in (parts.query, parts.fragment):
        found += [value for _, value in parse_qsl(text)] + [pair.partition("=")[2] for pair in text.split("&")]
    found += [pair.partition("=")[2] for piece in parts.path.split("/") for pair in piece.split(";")[1:]]
    found += [part for part in parts.path.split("/") if part and redacted_part(part) == MASK]
    return {text for word in found if word for text in (word, unquote(word)) if len(text) >= SHORTEST_SECRET}


def secrets_in_environment():
    """Values of environment variables whose name says that they are secret; paths and plain words are none."""
    named = (value for name, value in os.environ.items() if SECRET_WORD.search(name))
    return {value for value in named if len(value) >= 8 and not value.startswith("/") and re.search(r"[\d_-]", value)}


def scrubbed(value, secrets=(), keep_host=False, known_only=False):
    """A JSON-like value whose strings hold none of `secrets`, no URL's credentials and nothing that looks like a token.

    With `known_only` just the secrets go: what a model read may be a URL, and stays.
    """
    return each_text(value, lambda text: scrubbed_text(text, secrets, keep_host, known_only))


def each_text(value, change):
    """A JSON-like value with every string, keys too, as `change` makes it."""
    if isinstance(value, dict):
        return {each_text(key, change): each_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def scrubbed_text(text, secrets, keep_host, known_only):
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    if known_only:
        return text
    return TOKEN_LIKE.sub(MASK, URL_IN_TEXT.sub(lambda found: redacted_url(found[0], keep_host), text))


def without_folders(text):
    """The text with absolute paths of files cut to their names: folders tell who works where."""
    return re.sub(r"(?<![\w:/.*\]])/(?:[^\s/,=:]+/)+", "", text)


def scrubbed_words(words, secrets=()):
    """A command line without the values of flags that are named like secrets."""
    shown, hide = [], False
    for word in words:
        name, sign, _ = word.partition("=")
        secret_flag = name.startswith("-") and bool(SECRET_WORD.search(name))
        shown.append(MASK if hide else f"{name}={MASK}" if secret_flag and sign else scrubbed(word, secrets))
        hide = secret_flag and not sign
    return shown
