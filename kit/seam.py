"""The types that pass between a recipe's model part and the shared part."""

import contextlib
import sys
from dataclasses import dataclass, field
from typing import NamedTuple


class Stop(Exception):
    """Ends the run with one message for the user: what happened, what was found, what to type next.

    `code` is the exit code: 2 for usage and preflight, 1 for a stop that the same command resumes.
    """

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class PageError(Exception):
    """One page cannot be read; the message is the sentence that its row gets in `ocr_error`."""


@dataclass
class Page:
    """One page as the model sees it.

    `image` is RGB, upright, on white, and already inside the recipe's image bounds. `width` and `height` are the
    pixels of the original after orientation, the space of every bbox that leaves a recipe; for a PDF page they are
    the pixels at `dpi`. `partial` says that the file ended early and the lower part is missing.
    """

    image: object
    width: int
    height: int
    dpi: int | None = None
    partial: bool = False


@dataclass
class Unit:
    """What one answer is about: a page almost always, a window of pages, a whole document, or a text cell."""

    id: str
    pages: list
    text: str | None = None


@dataclass
class Item:
    """A unit before it is decoded, as the source yields it. Picklable and small: bytes are one page's, or absent.

    `parts` holds one `(data, frame)` per page: data is the encoded bytes, a local path or an `hf://` URI, and frame
    the 0-based page of a PDF or frame of a TIFF or GIF. `row` is the row in the source split (or the position in the
    sorted file list), `page` the 1-based page within that row or file, `pages` how many it has, `name` the output
    name without suffix. `error` is set where the source holds nothing to read.
    """

    id: str
    row: int
    name: str
    parts: list = field(default_factory=list)
    text: str | None = None
    page: int = 1
    pages: int = 1
    error: str | None = None


class Answer(NamedTuple):
    """What the model said to one request. `flags` are those of `flags_of`; `logprobs` one float per output token."""

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: tuple = ()
    logprobs: list | None = None


@dataclass
class Parsed:
    """A recipe's reading of one unit. `markdown` is "" for a blank page and never a sentinel.

    `blocks` is a blocks document (or None), `columns` the recipe's own output columns, `flags` what the parser
    noticed: "unparsed" (the model's protocol was broken; asked again), "repaired", or words of the recipe's own.
    `answers` are those that the reading was made of, where `steps` threw others away; None is all of them. Their flags
    become the row's.
    """

    markdown: str | None
    blocks: dict | None = None
    columns: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    answers: list | None = None


def say(message):
    """Tells the human: stderr, flushed, so that a job log shows it at once. stdout is for the one JSON line."""
    with contextlib.suppress(OSError):  # a terminal that was closed costs no page
        print(message, file=sys.stderr, flush=True)
