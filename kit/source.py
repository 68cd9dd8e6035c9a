"""What INPUT means, and the stream of `Item`s it becomes: stable ids, what is done skipped before it is fetched."""

import glob
import hashlib
import io
import os
import random
import re
import shutil
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby, islice
from urllib.parse import unquote

from kit.pages import count_pages, open_page
from kit.seam import Item, PageError, Stop, say
from kit.storage import FIRST_PATIENCE, first_line, persist

MULTI_PAGE_SUFFIXES = (".pdf", ".tif", ".tiff", ".gif")
PAGE_SUFFIXES = MULTI_PAGE_SUFFIXES + tuple(
    ".png .jpg .jpeg .jpe .jfif .bmp .webp .jp2 .j2k .jpx .heic .heif .avif .pbm .pgm .ppm .pnm".split()
)
TEXT_SUFFIXES = (".txt", ".md")
BATCH_ROWS = 16  # pages are about 1 MB each


def where(text):
    """What INPUT or OUTPUT names: ("hub", "ns/name"), ("bucket", uri), ("hub-files", uri) or ("local", path)."""
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


def open_source(options, recipe):
    """The source that `options.input` names. Raises Stop where it is missing, empty, or has no such column.

    A source has `describe` (one line), `identity` (JSON-able, equal for the same source), `columns` (of the input),
    `features` and `tables(columns)` (what is published), `total` (rows or files that this run goes through, None
    where unknown) and `items(done)`, where `done` answers `id in done` and `done.pages(id)`.
    """
    kind, place = where(options.input)
    return DatasetSource(options, recipe, place) if kind == "hub" else FileSource(options, recipe, kind, place)


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


class FileSource:
    """Images and PDFs, or text files: one file, a folder, a glob, a bucket, or files of a dataset repository."""

    def __init__(self, options, recipe, kind, uri):
        self.options, self.is_local, self.columns = options, kind == "local", []
        self.per_unit = recipe.get("pages_per_unit", 1)
        self.is_text = bool(options.text_column) or recipe.get("input") == "text"
        self.base, found, revision = local_files(uri) if self.is_local else hub_files(kind, uri, options)
        suffixes = TEXT_SUFFIXES if self.is_text else PAGE_SUFFIXES
        self.files = self.without_output(name for name in found if is_input(name, suffixes))
        self.files.sort(key=lambda name: (os.path.dirname(name).split("/"), name))
        if not self.files:
            raise Stop(f"{uri}: no files to read. Looked for {' '.join(suffixes)}, not in hidden folders or _run/.")
        self.starts = {}  # the first file of each folder, whose one-page files make one document
        for row, file in enumerate(self.files):
            self.starts.setdefault(os.path.dirname(file), row)
        self.chosen = chosen_rows(options, len(self.files))
        self.total = sum(1 for _ in self.selected())
        self.identity = {"kind": kind, "uri": os.path.abspath(uri) if self.is_local else uri, "revision": revision}
        kinds = {"local": "local files", "bucket": "bucket", "hub-files": "files of the dataset repository"}
        self.describe = f"{kinds[kind]} {uri}, {self.total:,} of {len(self.files):,} files"

    @property
    def features(self):
        from datasets import Features, Image, Value

        content = {"text": Value("string")} if self.is_text else {"image": Image()}
        return Features({"file_name": Value("string"), **content})

    def without_output(self, found):
        """The input files, less what lies in an output folder inside the input folder. Raises Stop for a clash."""
        kind, out = where(self.options.output)
        if kind == "hub":
            return list(found)
        out = os.path.abspath(out) if kind == "local" else out
        if out == self.base and self.is_text:
            raise Stop(f"{self.options.output} is the input folder, whose files would be overwritten. Name another.")
        files, taken = [], {}
        for file in found:
            if out.startswith(f"{self.base}/") and f"{self.base}/{file}".startswith(f"{out}/"):
                continue
            files.append(file)
            name = self.name_of(file)
            if name in taken:
                raise Stop(f"{taken[name]} and {file} would both become {name}.md. Add --keep-extension.")
            taken[name] = file
        documents = {self.name_of(file): file for file in files if file.lower().endswith(MULTI_PAGE_SUFFIXES)}
        for name, file in taken.items():
            parent, _, leaf = name.rpartition("/")
            if parent in documents and re.match(r"pages?_\d", leaf):
                raise Stop(f"{file} and a page of {documents[parent]} would both become {name}.md. Move one of them.")
        return files

    def name_of(self, file):
        return file if self.options.keep_extension else os.path.splitext(file)[0]

    def selected(self, all_shards=False):
        for row, file in enumerate(self.files):
            turn = row if self.per_unit == 1 else self.starts[os.path.dirname(file)]
            if (self.chosen is None or row in self.chosen) and (all_shards or in_shard(turn, self.options)):
                yield row, file

    def pages(self, row, file):
        """Yields the Items of one file, one per page."""
        item, path = Item(id=file, row=row, name=self.name_of(file)), f"{self.base}/{file}"
        if not self.is_text:
            yield from pages_of(item, path, is_file=True)
            return
        try:
            with open(path if self.is_local else copy_of(path), encoding="utf-8-sig") as text:
                yield replace(item, text=text.read())
        except (OSError, UnicodeDecodeError, PageError) as error:
            yield replace(item, error=f"cannot read {path} as UTF-8 text: {first_line(error)}")

    def place(self, item):
        """The document of a page: its file, or for windows of one-page files their folder."""
        file = self.files[item.row]
        if item.error or item.id != file or not self.per_unit:
            return file, self.name_of(file), item.page
        folder = os.path.dirname(file)
        return folder, folder, item.row - self.starts[folder] + 1

    def items(self, done):
        left = ((row, file) for row, file in self.selected() if not is_finished(file, done, self.per_unit))
        return (item for item in self.units(left) if item.id not in done)

    def units(self, files):
        pages = (item for row, file in files for item in self.pages(row, file))
        return pages if self.per_unit == 1 or self.is_text else windows(pages, self.per_unit, self.place)

    def tables(self, columns=None):
        """Yields (ids, table), a row per page or window: `file_name` is its id, `image` its first page (or `text`)."""
        from datasets import Dataset, Features

        features, units = self.features, self.units(self.selected(all_shards=True))
        while batch := list(islice(units, BATCH_ROWS)):
            rows = {"file_name": [unit.id for unit in batch]}
            if self.is_text:
                rows["text"] = [unit.text for unit in batch]
            elif columns is None or "image" in columns:
                rows["image"] = [self.image(unit) for unit in batch]
            table = Dataset.from_dict(rows, features=Features({name: features[name] for name in rows})).data.table
            yield rows["file_name"], table.select(columns or list(rows))

    def image(self, unit):
        """The encoded image of the first page: the file itself, or a JPEG where it has pages; None if unreadable."""
        if unit.error:
            return None
        data, frame = unit.parts[0]
        try:
            if unit.pages == 1 and not data.lower().endswith(".pdf"):
                with open(copy_of(data) if data.startswith("hf://") else data, "rb") as file:
                    return {"bytes": file.read(), "path": os.path.basename(self.files[unit.row])}
            jpeg = io.BytesIO()
            open_page(data, frame, dpi=self.options.dpi).image.save(jpeg, "JPEG", quality=95)
            return {"bytes": jpeg.getvalue(), "path": f"{safe_name(unit.name)}.jpg"}
        except (OSError, PageError):
            return None


def is_input(name, suffixes):
    parts = name.split("/")
    return name.lower().endswith(suffixes) and "_run" not in parts and not any(part.startswith(".") for part in parts)


def local_files(path):
    """(folder, names relative to it, None) of one file, all files below a folder, or those that fit a glob."""
    full = os.path.abspath(path)
    if os.path.isfile(full):
        return os.path.dirname(full), [os.path.basename(full)], None
    if os.path.isdir(full):
        found = (os.path.join(folder, name) for folder, _, names in os.walk(full) for name in names)
        found = (path for path in found if os.path.isfile(path) or os.path.islink(path))  # a FIFO would never end
        base = full
    elif glob.has_magic(path):
        base = os.path.dirname(re.split(r"[*?[]", full)[0])
        found = filter(os.path.isfile, glob.iglob(full, recursive=True))
    else:
        raise Stop(f"{path}: no such file or folder here. A dataset on the Hub is typed ns/name.")
    return base, [os.path.relpath(name, base).replace(os.sep, "/") for name in found], None


def hub_files(kind, uri, options):
    """(folder, names relative to it, revision) of files in a bucket or a dataset repository, the revision pinned."""
    from huggingface_hub import HfFileSystem

    files, sha = HfFileSystem(skip_instance_cache=True), None
    try:
        if kind == "hub-files":
            spot = files.resolve_path(uri)
            sha = files._api.dataset_info(spot.repo_id, revision=options.input_revision or spot.revision).sha
            uri = f"hf://datasets/{spot.repo_id}@{sha}/{spot.path_in_repo}"
        if glob.has_magic(uri) and not files.exists(uri):
            base, found = os.path.dirname(re.split(r"[*?[]", uri)[0]), files.glob(uri, detail=True)
        elif files.isfile(uri):
            base, found = os.path.dirname(uri), {uri.removeprefix("hf://"): {"type": "file"}}
        else:
            base, found = uri, files.find(uri, detail=True)
    except OSError as error:
        raise Stop(f"{uri} cannot be listed: {first_line(error)}. Check the name, and `hf auth login`.") from error
    names = [f"hf://{name}"[len(base) + 1 :] for name, info in found.items() if info["type"] == "file"]
    return base, names, sha


class DatasetSource:
    """One split of a dataset on the Hub, at the revision that it has when the run starts."""

    def __init__(self, options, recipe, name):
        self.options, self.name, self.split = options, name, options.split
        self.per_unit = recipe.get("pages_per_unit", 1)
        self.is_text = bool(options.text_column) or recipe.get("input") == "text"
        self.sha, builder = find_dataset(options, name)
        splits = {str(split): [str(uri) for uri in uris] for split, uris in builder.config.data_files.items()}
        if self.split not in splits:
            raise Stop(f"{name} has no split {self.split!r}. Choose one with --split: {', '.join(splits)}.")
        is_parquet = all(uri.endswith(".parquet") for uri in splits[self.split])
        self.rows = (ParquetRows if is_parquet else StreamedRows)(builder, splits[self.split], self.split)
        self.features, self.columns = self.rows.features, list(self.rows.features)
        self.column = (options.text_column or "text") if self.is_text else options.image_column
        self.check_column()
        self.ids = self.read_ids() if options.id_column else None
        rows = self.rows.total = len(self.ids) if self.ids else self.rows.total
        if rows is None and options.max_samples and options.shuffle:
            say(f"Counting the rows of {name}, to draw {options.max_samples} of them.")
            rows = self.rows.total = self.rows.count()
        self.chosen = chosen_rows(options, rows)
        known = self.chosen if rows is None else range(rows)
        self.total = None if known is None else sum(map(self.is_selected, known))
        self.identity = {
            "kind": "hub", "uri": name, "revision": self.sha, "config": builder.config.name, "split": self.split,
            "column": self.column, "id_column": options.id_column,
        }  # fmt: skip
        count = "rows not counted" if rows is None else f"{self.total:,} of {rows:,} rows"
        self.describe = (
            f"dataset {name} at {self.sha[:7]}, config {builder.config.name}, split {self.split}, "
            f"column {self.column}, {count}"
        )

    def check_column(self):
        from pyarrow.types import is_struct

        flag = "--text-column" if self.is_text else "--image-column"
        images = [name for name, feature in self.features.items() if re.search(r"\b(Image|Pdf)\(", repr(feature))]
        hint = f"Choose one with {flag}" + (f" {images[0]}." if images and not self.is_text else ".")
        for column in filter(None, (self.column, self.options.id_column)):
            if column not in self.columns:
                raise Stop(f"{self.name} has no column {column!r}. It has {', '.join(self.columns)}. {hint}")
        kind = found = self.features.arrow_schema.field(self.column).type
        if not self.is_text and hasattr(kind, "value_type"):  # a list of pages
            kind = kind.value_type
        fields = {field.name for field in kind} if is_struct(kind) else set()
        fits = ("string", "large_string") if self.is_text else ("string", "large_string", "binary", "large_binary")
        if str(kind) not in fits and (self.is_text or not fields & {"bytes", "path"}):
            raise Stop(f"Column {self.column} of {self.name} holds {found}, not {flag[2:-7]}s. {hint}")

    def read_ids(self):
        """The ids of all rows, as one Arrow array. Raises Stop for nulls and duplicates."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.options.id_column
        tables = [table for _, table in steady(lambda row: self.rows.batches([column], lambda other: other >= row))]
        ids = pa.concat_tables(tables).column(column).cast(pa.string()).combine_chunks()
        if ids.null_count:
            raise Stop(f"--id-column {column}: {ids.null_count} of {len(ids)} rows have none. Every row needs an id.")
        counts = pc.value_counts(ids)
        if len(counts) < len(ids):
            twice = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
            raise Stop(f"--id-column {column}: {twice['values']!r} occurs {twice['counts']} times. Ids must be unique.")
        return ids

    def id_of(self, row):
        return f"{self.split}-{row:09d}" if self.ids is None else self.ids[row].as_py()

    def is_selected(self, row):
        return (self.chosen is None or row in self.chosen) and in_shard(row // (self.per_unit or 1), self.options)

    def is_done(self, row, done):
        if is_finished(self.id_of(row), done, self.per_unit):
            return True
        n = self.per_unit or 1
        start, total = row // n * n, self.rows.total or row + n
        return n > 1 and f"{self.split}/pages_{start + 1:04d}-{min(start + n, total):04d}" in done

    def place(self, item):
        """The document of a page: the row where it has several pages, else the split."""
        if self.per_unit and item.pages == 1 and not item.error:
            return self.split, self.split, item.row + 1
        id = self.id_of(item.row)
        return id, safe_name(id), item.page

    def items(self, done):
        pages = self.pages(done)
        if self.per_unit != 1 and not self.is_text:
            pages = windows(pages, self.per_unit, self.place)
        return (item for item in pages if item.id not in done)

    def pages(self, done):
        def is_left(row):
            return self.is_selected(row) and not self.is_done(row, done)

        batches = steady(
            lambda start: self.rows.batches([self.column], lambda row: row >= start and is_left(row), self.stop)
        )
        for rows, table in batches:
            for row, cell in zip(rows, table.column(0).to_pylist(), strict=True):
                id = self.id_of(row)
                item = Item(id=id, row=row, name=safe_name(id))
                try:
                    if cell is None or cell == []:
                        raise PageError("the cell is empty (None)")
                    if self.is_text:
                        yield replace(item, text=cell)
                    else:
                        yield from pages_of(item, self.data_of(cell), is_file=False)
                except PageError as error:
                    yield replace(item, error=str(error))

    @property
    def stop(self):
        """The row behind the last one of this run, where it is known."""
        return None if self.chosen is None else max(self.chosen) + 1

    def data_of(self, cell):
        """What an image cell holds: bytes, an hf:// URI, or a list of these. Raises PageError.

        A path or address is only followed to the Hub: what a stranger's dataset names must not be read from this
        machine and published.
        """
        if isinstance(cell, list):
            return [self.data_of(entry) for entry in cell]
        if isinstance(cell, dict):
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
        if cell is None or cell == "":
            raise PageError("the cell is empty (None)")
        if isinstance(cell, bytes) or cell.startswith("hf://"):
            return cell
        if re.fullmatch("zip://.*::hf://.*", cell):
            return copy_of(cell)
        from huggingface_hub.constants import ENDPOINT

        if web := re.fullmatch(
            rf"{re.escape(ENDPOINT)}/(datasets/[^/]+/[^/]+)/(?:resolve|blob|raw)/([^/]+)/([^?]+).*", cell
        ):
            return f"hf://{web[1]}@{web[2]}/{unquote(web[3])}"
        if "://" in cell or cell.startswith("/"):
            raise PageError(f"the cell names {cell}, which is not on the Hub")
        return f"hf://datasets/{self.name}@{self.sha}/{cell}"

    def tables(self, columns=None):
        """Yields (first row, table) of the rows of `--max-samples`, in source order, images as encoded bytes."""
        from datasets import Features
        from datasets.table import table_cast

        columns = columns or self.columns
        features = Features({name: self.features[name] for name in columns})

        def wanted(row):
            return self.chosen is None or row in self.chosen

        batches = steady(lambda start: self.rows.batches(columns, lambda row: row >= start and wanted(row), self.stop))
        for rows, table in batches:
            table = table_cast(self.embedded(table), features.arrow_schema)
            for _, run in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0]):
                [(offset, row), *rest] = run
                yield row, table.slice(offset, 1 + len(rest))

    def embedded(self, table):
        """The table with the bytes of images that its cells only name, and null for those that cannot be read."""
        import pyarrow as pa

        for place, name in enumerate(table.column_names):
            if repr(self.features[name]).startswith(("Image(", "Pdf(")) and pa.types.is_struct(table.field(name).type):
                cells = [self.with_bytes(cell) for cell in table.column(name).to_pylist()]
                table = table.set_column(place, name, pa.array(cells, self.features.arrow_schema.field(name).type))
        return table

    def with_bytes(self, cell):
        if not cell or cell["bytes"] is not None or not cell["path"]:
            return cell
        try:
            data = self.data_of(cell)
            with open(data if isinstance(data, Spool) else copy_of(data), "rb") as file:
                return {"bytes": file.read(), "path": os.path.basename(cell["path"])}
        except PageError:
            return None


def safe_name(id):
    """A file name for any id: what a file system may refuse is written %XX, and long ones end in a digest."""
    name = re.sub(r"[^\w .,=+@()-]|^\.", lambda char: f"%{ord(char[0]):02X}", id)
    return name if len(name.encode()) <= 200 else f"{name[:40]}-{hashlib.sha256(id.encode()).hexdigest()[:16]}"


def find_dataset(options, name):
    """(commit SHA, dataset builder at that commit) of a dataset on the Hub. Raises Stop."""
    from datasets import get_dataset_config_names, load_dataset_builder
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        sha = persist(lambda: HfApi().dataset_info(name, revision=options.input_revision), FIRST_PATIENCE).sha
    except RevisionNotFoundError as error:
        raise Stop(f"{name} has no revision {options.input_revision!r}. Leave out --input-revision.") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise Stop(
            f"No dataset {name} on the Hub, or no access to it, and no such path here. Check the name; for a private "
            f"or gated one run `hf auth login` or set HF_TOKEN."
        ) from error
    except Exception as error:
        raise Stop(
            f"{name} is no path here, so it is taken for a dataset on the Hub, and the Hub cannot be asked: "
            f"{first_line(error)}. For a local folder type ./{name}."
        ) from error
    try:
        return sha, persist(lambda: load_dataset_builder(name, options.input_config, revision=sha))
    except Exception as error:
        if isinstance(error, ValueError):
            configs = ", ".join(get_dataset_config_names(name, revision=sha))
            raise Stop(f"{name}: choose one of its configs with --input-config: {configs}.") from error
        raise Stop(
            f"{name} cannot be loaded as a dataset: {first_line(error)}. Plain files in it are read with "
            f"hf://datasets/{name}/**."
        ) from error


class ParquetRows:
    """Rows of parquet files on the Hub, of which only the row groups and columns needed are fetched."""

    def __init__(self, builder, uris, split):
        from datasets import Features
        from huggingface_hub import HfFileSystem

        self.files, self.uris = HfFileSystem(), uris
        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(lambda uri: persist(lambda: self.footer(uri)), uris))
        self.group_rows = [rows for rows, _ in footers]
        self.features = builder.info.features or Features.from_arrow_schema(footers[0][1])
        self.total = sum(map(sum, self.group_rows))

    def footer(self, uri):
        import pyarrow.parquet as pq

        with self.open(uri) as file:
            footer = pq.read_metadata(file)
        return [
            footer.row_group(group).num_rows for group in range(footer.num_row_groups)
        ], footer.schema.to_arrow_schema()

    def open(self, uri):
        return self.files.open(uri, cache_type="none")  # pyarrow asks for just the ranges that it needs

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        for uri, counts in zip(self.uris, self.group_rows, strict=True):
            groups = []
            for group, count in enumerate(counts):
                if any(map(wanted, range(row, row + count))):
                    groups.append((group, row))
                row += count
            if not groups:
                continue
            with self.open(uri) as file:
                parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 23)  # else a row group is in memory
                for group, start in groups:
                    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        rows = [number for number in range(start, start + batch.num_rows) if wanted(number)]
                        table = pa.Table.from_batches([batch]).select(columns)
                        if rows:
                            yield rows, table if len(rows) == len(table) else table.take([r - start for r in rows])
                        start += batch.num_rows


class StreamedRows:
    """Rows of any other format that `datasets` streams, undecoded, so that skipping an image by path costs nothing."""

    def __init__(self, builder, uris, split):
        self.dataset = builder.as_streaming_dataset(split=split)
        self.features = self.dataset.features
        self.dataset = self.dataset.decode(False)
        self.total = builder.info.splits[split].num_examples if builder.info.splits else None

    def count(self):
        return sum(1 for _ in self.dataset)

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        from datasets import Dataset

        dataset = self.dataset.select_columns(columns)
        rows = ((row, cells) for row, cells in enumerate(islice(dataset, stop)) if wanted(row))
        while batch := list(islice(rows, BATCH_ROWS)):
            numbers, cells = zip(*batch, strict=True)
            yield list(numbers), Dataset.from_list(list(cells), features=dataset.features).data.table


def steady(open_at):
    """Yields the batches of `open_at(row)`, opened again behind the last row had where reading fails for a while."""
    batches, row = None, 0

    def step():
        nonlocal batches
        batches = batches or open_at(row)
        try:
            return next(batches, None)
        except Exception:
            batches = None
            raise

    while True:
        try:
            batch = persist(step)
        except Exception as error:
            raise Stop(f"The source cannot be read: {first_line(error)}. The same command resumes.", code=1) from error
        if batch is None:
            return
        row = batch[0][-1] + 1
        yield batch
