"""Windows of pages as Unlimited-OCR-2 reads them: what is asked, and which part of the answer is which page."""

import argparse
import json
import re
import shlex
from collections import Counter
from typing import NamedTuple

from kit.answers import flags_of, sentence
from kit.blocks import blocks_document
from kit.grounding import END_TOKEN, det_spans, spans_blocks, spans_markdown
from kit.seam import Page, Parsed
from kit.sglang import sglang_server

PAGE_MARK = "<PAGE>"  # stands in front of every page of an answer
PAGE_GRID = (999, 999)  # the space of the boxes, each page its own: a whole page is [0, 0, 999, 999] in a public run
WINDOWS_AT_ONCE = 32  # in flight, where the public run began
PAGE_PROMPT = "document parsing."  # of the previous model, for a page that is read alone
PAGE_TOKENS = 8192  # for such a page; the previous model's
# SGLang's guard against repetition: a pickled reference to its class, as `to_str()` of that class gives it.
GUARD_CLASS = (
    "80049559000000000000008c2a73676c616e672e7372742e73616d706c696e672e637573746f6d5f6c6f6769745f70726f636573736f72"
    "948c26446565707365656b4f43524e6f5265706561744e4772616d4c6f67697450726f636573736f729493942e"
)


class PageSpan(NamedTuple):
    """What was read of the pages `first` to `last` of a window, counted from 0; a single page where they are equal.

    `status`: "ok", "looped", "truncated", "empty" (nothing beside a page that loops), "unsure" (behind such a page, so
    maybe the text of the page before), "shifted" (text of several pages that cannot be told apart), "missing", "failed"
    (no answer), "unreadable" (no image).
    """

    first: int
    last: int
    text: str
    status: str


def window_options(parser):
    """The options of the recipes that read windows."""
    add = parser.add_argument
    add("--strip-grounding", action="store_true", help="leave tags, boxes and page marks out of the text column")
    add("--guard", action=argparse.BooleanOptionalAction, default=True,
        help="ask for SGLang's guard against repetition (default); --no-guard if a server refuses it")  # fmt: skip
    add("--server-args", type=shlex.split, default=[], metavar="WORDS", help="more words for sglang.launch_server")


def check_windows(options, recipe):
    """What these options change of the recipe: the server's command. `--window` counts windows here; 32 by default."""
    options.window = options.window or WINDOWS_AT_ONCE
    return {} if options.endpoint else sglang_server(options, recipe)


def pages_body(images, prompt, options):
    """The chat body for the images of a window, or for one page that is read alone and then in full detail."""
    alone = len(images) == 1
    parts = [{"type": "image", "image": image} for image in images]
    text = {"type": "text", "text": PAGE_PROMPT if alone else prompt}
    body = {
        "messages": [{"role": "user", "content": [text, *parts]}],
        "images_config": {"image_mode": "gundam" if alone else "base"},
        "skip_special_tokens": False,  # tags and page marks are special tokens
    }
    if alone:
        body["max_tokens"] = min(PAGE_TOKENS, options.max_tokens)
    if options.guard:
        body["custom_logit_processor"] = json.dumps({"callable": GUARD_CLASS})
        body["custom_params"] = {"ngram_size": 35, "window_size": 1024}  # a window of 128 lets more pages loop
    return body


def page_sections(text):
    """The text behind each page mark; what stands in front of the first mark is a page too."""
    before, *rest = text.replace(END_TOKEN, "").split(PAGE_MARK)
    return [section.strip() for section in ([before, *rest] if before.strip() else rest)]


def page_loops(section):
    """Whether a page's text runs in circles, with or without its tags."""
    texts = (section, spans_markdown(det_spans(section)))
    return any({"looped", "degenerate"} & set(flags_of(text, None)) for text in texts)


def page_spans(text, count, cut=False):
    """The PageSpans of an answer about `count` pages; together they cover every page once, in order.

    Text is given to a page only where nothing speaks against it. `cut` says that the answer ended at the token limit.
    A page that loops until the server forces a page mark leaves an empty section behind it: a surplus of exactly these
    is taken out. Otherwise too few or too many sections put everything in doubt behind the first page that loops, and
    the whole window where none does.
    """
    sections = page_sections(text)
    if count == 1:
        status = "looped" if page_loops(text) else "truncated" if cut else "ok"
        return [PageSpan(0, 0, "\n".join(filter(None, sections)), status)]
    looping = [page_loops(section) for section in sections]
    forced = [n for n in range(1, len(sections)) if looping[n - 1] and not sections[n]]
    if forced and len(sections) - len(forced) == count:
        sections, looping = ([x for n, x in enumerate(both) if n not in forced] for both in (sections, looping))
    first_loop = looping.index(True) if True in looping else None
    in_order = cut and len(sections) <= count and first_loop in (None, len(sections) - 1)
    if len(sections) == count or in_order:
        known = len(sections)
    else:
        known = min(count, 0 if first_loop is None else first_loop + 1)
    spans, unsure = [], False
    for n in range(known):
        beside = any(looping[m] for m in (n - 1, n + 1) if 0 <= m < len(sections)) or (
            n and spans[-1].status == "empty"
        )
        if looping[n]:
            status = "looped"
        elif cut and n == len(sections) - 1:
            status = "truncated"
        elif not sections[n] and beside:
            status, unsure = "empty", unsure or any(looping[:n])
        else:
            status = "unsure" if unsure else "ok"
        spans.append(PageSpan(n, n, sections[n], status))
    rest = "\n".join(filter(None, sections[known:]))
    if known < count:
        spans.append(PageSpan(known, count - 1, rest, "shifted" if rest else "missing"))
    elif rest:  # behind the last page: nothing is dropped, and the page loops
        spans[-1] = spans[-1]._replace(text=f"{spans[-1].text}\n{rest}")
    return spans


def window_pages(unit):
    """(images, their places in the window, spans of the pages that have none) of a unit."""
    places = [n for n, page in enumerate(unit.pages) if isinstance(page, Page)]
    if not places:
        raise unit.pages[0].problem
    bad = [PageSpan(n, n, "", "unreadable") for n in range(len(unit.pages)) if n not in places]
    return [unit.pages[n].image for n in places], places, bad


def in_window(spans, places):
    """Spans of the readable pages as spans of the window."""
    return [span._replace(first=places[span.first], last=places[span.last]) for span in spans]


def first_page(unit):
    """The number of a unit's first page in its document, as its id says it."""
    found = re.search(r"/?\bpages_(\d+)-\d+$", unit.id)
    return int(found[1]) if found else 1


def window_parsed(unit, spans, strip, flags=(), columns=None):
    """Parsed of a window: the pages' text one below the other, and in `page_spans` where each begins and ends.

    The text keeps the model's tags and a page mark per span, or with `strip` is Markdown alone. The blocks are
    one document per page. Columns: `status` ("ok" if every page has its own text, else "partial"), `page_start`,
    `page_end`, and `page_spans`: JSON, [{"first", "last", "start", "end", "status"}, ...], pages as the document counts
    them and characters of the text, `end` behind the last one; where a page has no image also "error", why.
    """
    number, text, told, pages = first_page(unit), "", [], []
    for span in sorted(spans):
        said = spans_markdown(det_spans(span.text)) if strip else span.text
        if strip:
            text += "\n\n" if text and said else ""
        else:
            text += ("\n" if text else "") + PAGE_MARK
        told.append({"first": number + span.first, "last": number + span.last,
                     "start": len(text), "end": len(text) + len(said), "status": span.status})  # fmt: skip
        text += said
        page = unit.pages[span.first]
        if not isinstance(page, Page):
            told[-1]["error"] = sentence(page.problem)
        elif span.first == span.last:
            blocks = spans_blocks(det_spans(span.text))
            pages.append({"page": number + span.first, **blocks_document(page, blocks, PAGE_GRID)})
    fine = all(span.status == "ok" for span in spans)
    own = {
        "status": "ok" if fine else "partial",
        "page_start": number,
        "page_end": number + len(unit.pages) - 1,
        "page_spans": json.dumps(told),
    }
    noticed = dict.fromkeys(span.status for span in sorted(spans) if span.status != "ok")
    document = {"schema": "ocr-blocks/1", "pages": pages}
    return Parsed(text, document, own | (columns or {}), [*noticed, *flags])


def same_page(one, other):
    """Whether two readings are about the same page: most runs of six characters are in both, whatever the script."""

    def runs(text):
        letters = "".join(spans_markdown(det_spans(text)).lower().split())
        return Counter(letters[n : n + 6] for n in range(len(letters) - 5))

    counts = [runs(text) for text in (one, other)]
    return 0.5 * max(map(Counter.total, counts)) < (counts[0] & counts[1]).total()
