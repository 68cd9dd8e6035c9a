"""The edges of every tool: numbers and files that have to make sense, and the exit code."""

import argparse
import json
from pathlib import Path

from kit.seam import Stop, say
from kit.storage import first_line, is_passing

NO_SUCH_PLACE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def whole_number(text):
    """An argparse type: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def above_zero(text):
    """An argparse type: a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def share_of_one(text):
    """An argparse type: a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return number


def read_utf8(path):
    """The text of a file. Raises Stop where it is in another encoding, and OSError."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Stop(
            f"{path} is not UTF-8 at byte {error.start}: {error.reason}. Convert it (iconv -t utf-8)."
        ) from error


def parse_json(text):
    """`json.loads(text)`. Raises ValueError also where lists or objects stand in each other too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, kind=dict):
    """What a JSON file holds. Raises Stop where it is damaged or holds something else than `kind`, and OSError."""
    try:
        value = parse_json(read_utf8(path))
    except ValueError as error:
        raise Stop(f"{path} is no JSON: {error}. Repair or remove it.") from error
    if not isinstance(value, kind):
        raise Stop(f"{path} holds {type(value).__name__} where {kind.__name__} was expected. Name another file.")
    return value


def exit_code_of(work):
    """The exit code of a tool: what `work()` returns, or the code of what ended it, told in one sentence.

    2 where a file or folder that was named is not there, not of that kind, or closed to us. 1 for what passes: Ctrl-C,
    a disk that is full, a Hub that does not answer.
    """
    try:
        return work()
    except Stop as problem:
        code, told = problem.code, problem
    except NO_SUCH_PLACE as problem:
        code, told = (2, f"{problem.filename}: {problem.strerror}. Name another.") if problem.filename else (1, problem)
    except KeyboardInterrupt:
        code, told = 1, "the same command starts again."
    except Exception as problem:
        if not (isinstance(problem, OSError) or is_passing(problem)):
            raise
        code, told = 1, f"{first_line(problem)}. The same command starts again."
    say(f"{'Error' if code == 2 else 'Stopped'}: {told}")
    return code
