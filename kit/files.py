"""Source: images, PDFs or text files in a folder, a glob, a bucket, or a dataset's repository."""

import glob
import io
import os
import re
from dataclasses import replace
from itertools import islice

from kit.items import (
    MULTI_PAGE_SUFFIXES,
    chosen_rows,
    copy_of,
    in_shard,
    is_finished,
    pages_of,
    safe_name,
    where,
    windows,
)
from kit.pages import open_page
from kit.rows import BATCH_ROWS
from kit.seam import Item, PageError, Stop, say
from kit.storage import first_line

PAGE_SUFFIXES = MULTI_PAGE_SUFFIXES + tuple(
    ".png .jpg .jpeg .jpe .jfif .bmp .webp .jp2 .j2k .jpx .heic .heif .avif .pbm .pgm .ppm .pnm".split()
)
TEXT_SUFFIXES = (".txt", ".md")


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
        base, found = full, files_below(full)
    elif glob.has_magic(path):
        base = os.path.dirname(re.split(r"[*?[]", full)[0])
        found = filter(os.path.isfile, glob.iglob(full, recursive=True))
    else:
        raise Stop(f"{path}: no such file or folder here. A dataset on the Hub is typed ns/name.")
    return base, [os.path.relpath(name, base).replace(os.sep, "/") for name in found], None


def files_below(top):
    """Every file below a folder, links that lead nowhere too, to become errors. Raises Stop where it cannot look.

    Not FIFOs and devices, which would never end, nor folders by way of links, which may lead back here.
    """

    def refuse(error):
        raise Stop(f"{error.filename} cannot be listed: {error.strerror}. Make it readable, or move it elsewhere.")

    for folder, below, names in os.walk(top, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        links = [path for name in below if os.path.islink(path := os.path.join(folder, name))]
        if links:
            say(f"Links to folders are not followed; name them as INPUT to read them: {', '.join(sorted(links))}")
        paths = (os.path.join(folder, name) for name in names)
        yield from (path for path in paths if os.path.isfile(path) or not os.path.exists(path))


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
