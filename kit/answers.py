"""What one answer is worth, and the conversation about one unit: ask, check, ask again, choose, make the row."""

import json
import re
import time
import zlib

from kit.seam import Answer, PageError

ASK_AGAIN = {"looped", "degenerate"}
# A tail is a loop when it repeats a unit of at most LOOP_UNIT characters over at least LOOP_SPAN characters (dot
# leaders and ruled lines of forms stay below it). Compression, runs of one character counted as three: prose compresses
# 2 to 3 times, registers written to one formula 7, tables of numbers 7, loops that go on for a page 30 and more
# (the texts of tests/unit/test_answers.py; 345 blocks of a public run: prose about 2, loops 6 to 330).
LOOP_UNIT, LOOP_SPAN = 250, 200
LOOP_BYTES, LOOP_RATIO, LOOP_RATIO_TABLE = 2000, 10.0, 20.0


def flags_of(text, finish_reason):
    """Flags of one answer's text: "truncated", and "degenerate" or "looped". Nothing is ever trimmed.

    The finish reason "repetition" is that of an engine which saw the loop itself (`repetition_detection`).
    """
    flags = ["truncated"] if finish_reason == "length" else []
    words = text.split()
    if len(text.strip()) >= 20 and (len(set(text.strip())) == 1 or (len(words) >= 20 and len(set(words)) == 1)):
        return flags + ["degenerate"]
    if finish_reason == "repetition" or loops_at_end(text) or loops_at_end(text[:-50]) or compresses_like_a_loop(text):
        return flags + ["looped"]
    return flags


def loops_at_end(text):
    """True if the text ends in one unit repeated more than 4 * (1 + 3 / length) times over LOOP_SPAN characters."""
    for length in range(1, min(LOOP_UNIT, len(text) // 2) + 1):
        repeats = max(int(4 * (1 + 3 / length)) + 1, -(-LOOP_SPAN // length))
        if length * repeats <= len(text) and text.endswith(text[-length:] * repeats):
            return True
    return False


def compresses_like_a_loop(text):
    data = re.sub(r"(.)\1{3,}", r"\1\1\1", text).encode("utf-8", "replace")
    if len(data) < LOOP_BYTES:
        return False
    table = text.count("<td") >= 20 or len(re.findall(r"^\s*\|.*\|\s*$", text, re.M)) >= 10
    return len(data) / len(zlib.compress(data, 6)) > (LOOP_RATIO_TABLE if table else LOOP_RATIO)


def one_step(request, parse):
    """The `steps` of a recipe whose unit is one page (or one text cell) and one request."""

    def steps(unit, options):
        (answer,) = yield [request(subject(unit), options)]
        return parse(answer, subject(unit), options)

    return steps


def subject(unit):
    """What a recipe's function is given: the Page of a unit with one, the Unit itself for a text or several pages."""
    return unit.pages[0] if len(unit.pages) == 1 else unit


def complete(body, options, recipe, unit=None):
    """The body with the run's sampling and `max_tokens` where it names none, and every image mark given its image."""
    messages = []
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, list):
            content = [
                {"type": "image", "image": unit.pages[0].image} if part == {"type": "image"} and unit else part
                for part in content
            ]
        messages.append({**message, "content": content})
    sampling = {key: getattr(options, key) for key in recipe.get("sampling", {}) if getattr(options, key) is not None}
    return {"max_tokens": options.max_tokens, **sampling, **body, "messages": messages}


def asked_again(body, answer, options, recipe, attempt):
    """The body to ask when `answer` is not good enough, or None when asking again cannot help.

    Loops and degenerate output: warmer, with the sampling opened, since a top_p near 0 or a top_k of 1 would undo the
    temperature. Truncated: as before, with all the room that the context leaves, unless --max-tokens was given.
    """
    if isinstance(answer, Exception):
        return None
    if ASK_AGAIN & set(answer.flags):
        return None if recipe.get("lock_sampling") else warmer(body, attempt)
    room = options.max_model_len - answer.prompt_tokens - 16 if options.max_model_len else 0
    if "truncated" in answer.flags and not options.max_tokens_given and room > body["max_tokens"] * 1.1:
        return {**body, "max_tokens": room}
    return None


def warmer(body, attempt):
    warm = {**body, "temperature": min(body.get("temperature", 0.0) + 0.2 * attempt, 1.0), "top_p": 0.95}
    if "top_k" in warm:
        warm["top_k"] = -1
    return warm


def better(old, new):
    """Of two answers the one without a flag, else the one that stopped by itself, else the first."""
    rank = [(isinstance(a, Exception), bool(getattr(a, "flags", ())), getattr(a, "finish_reason", None) != "stop")
            for a in (old, new)]  # fmt: skip
    return new if rank[1] < rank[0] else old


def converse(item, unit, sha256, options, recipe, steps):
    """The conversation about one unit: a generator that yields lists of complete bodies, is sent their answers in
    the same order (an Answer each, or the exception that one request failed with), and returns the result row.

    Each flagged answer is asked again by itself at most `options.retries` times; a unit whose parser reports
    "unparsed" is read again as a whole; `attempts` counts all rounds. Page-level trouble never raises: it becomes the
    row's `error`.
    """
    started, attempts, parsed, answers, error = time.monotonic(), 0, None, [], None
    for attempt in range(1 + options.retries):
        try:
            attempts += 1
            reading, read = steps(unit, options), []
            bodies = next(reading)
            while True:
                bodies = [complete(body, options, recipe, unit) for body in bodies]
                if attempt and not recipe.get("lock_sampling"):
                    bodies = [warmer(body, attempt) for body in bodies]
                got = checked((yield bodies))
                for again in range(1, 1 + options.retries):
                    retry = {i: asked_again(body, got[i], options, recipe, again) for i, body in enumerate(bodies)}
                    retry = {i: body for i, body in retry.items() if body}
                    if not retry:
                        break
                    attempts += 1
                    for i, answer in zip(retry, checked((yield list(retry.values()))), strict=True):
                        got[i] = better(got[i], answer)
                read += got
                failed = next((a for a in got if isinstance(a, Exception)), None)
                bodies = reading.throw(failed) if failed else reading.send(got)
        except StopIteration as stop:
            if parsed is None or "unparsed" not in stop.value.flags:
                parsed, answers, error = stop.value, read, None
        except Exception as problem:  # a recipe's parser on hostile text, or a request that failed by itself
            if parsed is None:
                answers, error = read, sentence(problem)
            break
        if "unparsed" not in parsed.flags or recipe.get("lock_sampling"):
            break
    return row_of(item, unit, sha256, parsed, answers, attempts, time.monotonic() - started, error)


def checked(answers):
    return [a._replace(flags=tuple(flags_of(a.text, a.finish_reason))) if isinstance(a, Answer) else a for a in answers]


def sentence(problem):
    """An exception as one line for `ocr_error`: PageErrors are sentences already, others get their type in front."""
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, PageError) else f"{type(problem).__name__}: {text}".rstrip(": ")


def row_of(item, unit, sha256, parsed, answers=(), attempts=0, seconds=0.0, error=None):
    """The result row of one item: see CLAUDE.md for its keys. `unit` is None where nothing could be decoded."""
    answers = [a for a in answers if isinstance(a, Answer)]
    kept = answers if error or parsed is None or parsed.answers is None else parsed.answers
    flags = dict.fromkeys(flag for a in kept for flag in a.flags)
    if parsed is not None:
        flags |= dict.fromkeys(parsed.flags)
    if unit is not None and any(page.partial for page in unit.pages):
        flags["partial"] = None
    return {
        "id": item.id, "row": item.row, "page": item.page, "pages": item.pages, "name": item.name,
        "text": parsed.markdown if parsed and not error else None,
        "blocks": json.dumps(parsed.blocks, ensure_ascii=False) if parsed and not error and parsed.blocks else None,
        "error": error or (None if parsed else "nothing was read"),
        "flags": list(flags),
        "attempts": attempts,
        "finish_reason": kept[-1].finish_reason if kept else None,
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "completion_tokens": sum(a.completion_tokens for a in answers),
        "seconds": round(seconds, 3),
        "sha256": sha256,
        "columns": parsed.columns if parsed and not error else {},
    }  # fmt: skip


def failed_row(item, problem):
    """The row of an item that never reached the model."""
    return row_of(item, None, None, None, error=problem if isinstance(problem, str) else sentence(problem))
