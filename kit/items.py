"""What INPUT and OUTPUT name, and the `Item`s of rows and files: pages, windows, and what is done."""

import glob
import hashlib
import os
import random
import re
import shutil
import tempfile
import weakref
from dataclasses import replace
from itertools import groupby

from kit.pages import count_pages
from kit.seam import Item, PageError, Stop
from kit.storage import first_line, persist

MULTI_PAGE_SUFFIXES = (".pdf", ".tif", ".tiff", ".gif")


def where(text):
    """What INPUT or OUTPUT names: ("hub", "ns/name"), ("bucket", uri), ("hub-files", uri) or ("local", path)."""
    if not text.strip():
        raise Stop("INPUT or OUTPUT is empty, perhaps a variable that is not set. For this folder type a dot.")
    parts = text.removeprefix("hf://").strip("/").split("/")
    if text.startswith("hf://buckets/") and len(parts) >= 3:
        return "bucket", text.rstrip("/")
    if text.startswith("hf://datasets/") and len(parts) >= 4:
        return "hub-files", text.rstrip("/")
    if text.startswith("hf://datasets/") and len(parts) == 3 and "@" not in text:
        return "hub", "/".join(parts[1:])
    if "://" in text:
        raise Stop(
            f"{text} is not a place that can be read or written here. Type ns/name for a dataset on the Hub "
            "(--input-revision for one of its revisions), hf://datasets/ns/name/*.pdf for files in it, "
            "hf://buckets/ns/name/folder for a bucket, or a local path."
        )
    path = os.path.expanduser(text)
    if text.startswith((".", "/", "~")) or len(parts) == 1 or os.path.exists(path) or glob.has_magic(path):
        return "local", path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return "hub", text
    raise Stop(f"{text} is no path that exists here and no dataset (ns/name). For a local path type ./{text}.")


def windows(items, n, place):
    """Groups the pages of a document into Items of `n` parts, or into one where `n` is None.

    `place(item)` gives the document's id, its output name, and the page's 1-based number in it. Windows start at 1,
    n + 1, 2n + 1 ... and end at a gap, so that they are the same whatever has been skipped.
    """

    def window_of(numbered):
        position, item = numbered
        document, name, number = place(item)
        return document, name, n and (number - 1) // n, number - position

    for (document, name, *_), pages in groupby(enumerate(items), key=window_of):
        window = [item for _, item in pages]
        first, start, end = window[0], place(window[0])[2], place(window[-1])[2]
        if first.error or (n and start == end == 1):
            yield from window
            continue
        suffix = f"/pages_{start:04d}-{end:04d}" if n else ""
        yield Item(
            id=(document + suffix).lstrip("/"),
            row=first.row,
            name=(name + suffix).lstrip("/"),
            parts=[part for item in window for part in item.parts],
            page=start,
            pages=max(first.pages, end),
        )


def is_finished(id, done, n):
    """Whether all pages (or windows of `n`, or the document) of a row or file are done, by what its first recorded."""
    if n is None:
        return id in done
    for first in (id, f"{id}/page_001"):
        if first in done:
            return all(f"{id}/page_{page:03d}" in done for page in range(2, (done.pages(first) or 1) + 1))
    for end in range(n, 1, -1):
        if (first := f"{id}/pages_0001-{end:04d}") in done:
            pages = done.pages(first) or end
            starts = range(n + 1, pages + 1, n)
            return all(f"{id}/pages_{start:04d}-{min(start + n - 1, pages):04d}" in done for start in starts)
    return False


class Spool(str):
    """Path of a temporary file that is deleted when nothing refers to this object any more. Pickles as a plain str."""

    def __new__(cls, suffix=""):
        handle, path = tempfile.mkstemp(prefix="ocr-", suffix=suffix)
        os.close(handle)
        spool = super().__new__(cls, path)
        weakref.finalize(spool, cls.discard, path, os.getpid())
        return spool

    @staticmethod
    def discard(path, owner):
        if os.getpid() == owner and os.path.exists(path):  # a forked worker holds a copy of the object
            os.unlink(path)

    def __reduce__(self):
        return str, (str(self),)


def copy_of(uri):
    """A local copy of a file on the Hub, as a Spool. Raises PageError."""
    import fsspec

    def copy():
        files, path = fsspec.core.url_to_fs(uri)  # not fsspec.open, to which x[1].png is a pattern
        spool = Spool(os.path.splitext(path)[1])
        with files.open(path, "rb") as source, open(spool, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 23)
        return spool

    try:
        return persist(copy)
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def pages_of(item, data, is_file):
    """Yields one Item per page of a row or file, or one with `error`. PDF, TIFF and GIF are opened to count pages.

    `data` is bytes, a local path, an hf:// URI, or a list of these. The first page of a row keeps the row's id; all
    pages of a PDF file are numbered, and those of a TIFF or GIF file that has several.
    """
    parts, is_pdf = [(entry, 0) for entry in data] if isinstance(data, list) else [(data, 0)], False
    try:
        if isinstance(data, str) and data.lower().endswith(MULTI_PAGE_SUFFIXES):
            is_pdf = data.lower().endswith(".pdf")
            data = copy_of(data) if data.startswith("hf://") else data
            parts = [(data, frame) for frame in range(count_pages(data))]
        elif isinstance(data, bytes) and (pages := count_pages(data)) > 1:
            spool = Spool()  # the pages go to workers one by one, and not each with the bytes of all
            with open(spool, "wb") as target:
                target.write(data)
            parts = [(spool, frame) for frame in range(pages)]
    except PageError as error:
        yield replace(item, error=str(error))
        return
    for page, part in enumerate(parts, 1):
        numbered = page > 1 or (is_file and (is_pdf or len(parts) > 1))
        suffix = f"/page_{page:03d}" if numbered else ""
        yield replace(item, id=item.id + suffix, name=item.name + suffix, parts=[part], page=page, pages=len(parts))


def chosen_rows(options, total):
    """The rows of `--max-samples`, or None for all: the first ones, or `random.Random(seed).sample` of all."""
    if not options.max_samples or (total is not None and options.max_samples >= total):
        return None
    if options.shuffle:
        return set(random.Random(options.seed).sample(range(total), options.max_samples))
    return range(options.max_samples)


def in_shard(number, options):
    return not options.shard or number % options.shard[1] == options.shard[0]


def safe_name(id):
    """A file name for any id: what a file system may refuse is written %XX, and long ones end in a digest."""
    name = re.sub(r"[^\w .,=+@()-]|^\.", lambda char: f"%{ord(char[0]):02X}", id)
    return name if len(name.encode()) <= 200 else f"{name[:40]}-{hashlib.sha256(id.encode()).hexdigest()[:16]}"
