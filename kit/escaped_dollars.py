r"""Turns math between escaped dollars, `\$x^2\$`, back into `$x^2$`, and leaves prices alone."""

import re

# What is never touched: code, tags, addresses, and math that is delimited already. The limits keep a loop of opening
# marks from taking minutes.
VERBATIM = re.compile(
    r"""^(?P<fence>```+|~~~+).*?(?:^(?P=fence)|\Z)
      | ^(?:[ ]{4}|\t).*?$
      | ^[ ]{0,3}\[[^\]\n]+\]:.*?$
      | (?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)
      | <!--.{0,4000}?-->
      | <(?P<tag>pre|code|script|style)\b.{0,4000}?</(?P=tag)\s*>
      | </?[A-Za-z][^<>]*>
      | (?:https?://|mailto:|www\.)[^\s<>]+
      | \]\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)
      | \$\$.*?\$\$ | \\\[.{0,2000}?\\\] | \\\(.{0,2000}?\\\)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
DOLLAR = re.compile(r"(?<![\\$])(\\?)\$(?!\$)")
NUMERIC = re.compile(r"\s*[+\-−–]?(?:\d|[.,]\d)")
ENVIRONMENT = re.compile(r"\s*\\begin\{(\w+\*?)\}(?:(?!\\begin\{).)*?\\end\{\1\}\s*", re.DOTALL)
ARGUMENT = re.compile(r"\\[A-Za-z]+\*?\s*(?=\{)")
MATH = re.compile(r"(?:\\[A-Za-z]+|\\.|[^\W_]+|[-−–—+*/=<>:;,.'!|_^%&()\[\]{}]|\s)*", re.DOTALL)
WORDS = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{2,}\s+[A-Za-z]|[A-Za-z]\s+[A-Za-z]{2,})")


def repair_escaped_dollars(text):
    r"""The text with pairs of dollars, of which one or both are `\$`, made `$...$` where math stands between them.

    Only backslashes are removed. The rules are those of lightonocr 0.1.0: a pair is left alone where it may be two
    prices, a currency (US\$), a plain word, or where anything but math stands in it.
    """
    spans = [found.span() for found in VERBATIM.finditer(text)]
    dollars, at = [], 0
    for found in DOLLAR.finditer(text):
        while at < len(spans) and spans[at][1] <= found.start():
            at += 1
        if at == len(spans) or found.start() < spans[at][0]:
            dollars.append(found)
    kept, end, at = [], 0, 0
    while at + 1 < len(dollars):
        left, right = dollars[at : at + 2]
        body = text[left.end() : right.start()]
        if not (left[1] or right[1]):
            at += 2 if is_math(body) else 1
        elif may_be_text(text, left, right, body):
            at += 1
        else:
            kept += [text[end : left.start()], "$", body, "$"]
            end, at = right.end(), at + 2
    return "".join(kept) + text[end:]


def may_be_text(text, left, right, body):
    """True unless the body between two dollars, one of them escaped, can only be math."""
    if "\n" in body and (not ENVIRONMENT.fullmatch(body) or re.search(r"\n[ \t]*\n", body)):
        return True
    if left[1] and re.search(r"(?<![A-Za-z])[A-Z]{1,3}\Z", text[max(0, left.start() - 4) : left.start()]):
        return True
    if NUMERIC.match(body) and ((left[1] and not right[1]) or NUMERIC.match(text, right.end())):
        return True
    return not is_math(body)


def is_math(body):
    if not body.strip() or "<td" in body or "</" in body or re.fullmatch(r"\s*[^\W\d_]{2,}\s*", body):
        return False
    if (body[0] in ",;" and len(body) > 1) or (body != body.strip() and not re.search(r"[\w\\]", body)):
        return False
    if not balanced(re.sub(r"\\.", "", body, flags=re.DOTALL), "{", "}"):
        return False
    bare = without_arguments(body)
    return bool(MATH.fullmatch(bare)) and not WORDS.search(bare) and balanced(bare, "([", ")]")


def balanced(text, opening, closing):
    depth = 0
    for character in text:
        depth += (character in opening) - (character in closing)
        if depth < 0:
            return False
    return depth == 0


def without_arguments(body):
    r"""The body with the arguments of commands left out: `\frac{a}{b} + c` gives `\frac + c`."""
    kept, at = [], 0
    while found := ARGUMENT.search(body, at):
        kept.append(body[at : found.end()])
        at = found.end()
        while body[at : at + 1] == "{":
            depth = 0
            for at in range(at, len(body)):  # noqa: B020
                depth += {"{": 1, "}": -1}.get(body[at], 0) if body[at - 1] != "\\" else 0
                if not depth:
                    break
            at += 1
    return "".join(kept) + body[at:]
