"""Source: one split of a dataset on the Hub, at the revision that it has when the run starts."""

import os
import re
from dataclasses import replace
from itertools import groupby
from urllib.parse import unquote

from kit.items import Spool, chosen_rows, copy_of, in_shard, is_finished, pages_of, safe_name, windows
from kit.rows import ParquetRows, StreamedRows
from kit.seam import Item, PageError, Stop, say
from kit.storage import FIRST_PATIENCE, first_line, persist


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
        # The further pages of row x are x/page_002 and so on: no row may have such an id beside x.
        like_pages = ids.filter(pc.match_substring_regex(ids, r"./pages?_\d+(-\d+)?$"))
        rows = pc.replace_substring_regex(like_pages, r"/pages?_\d+(-\d+)?$", "")
        if both := like_pages.filter(pc.is_in(rows, ids)).slice(0, 1).to_pylist():
            raise Stop(f"--id-column {column}: {both[0]!r} could also be a page of another row. Choose another column.")
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
        """What an image cell holds: bytes, an hf:// URI, or a list of these with None for empty ones. Raises PageError.

        A path or address is only followed to the Hub: what a stranger's dataset names must not be read from this
        machine and published.
        """
        if isinstance(cell, list):
            return [None if is_empty(entry) else self.data_of(entry) for entry in cell]
        if is_empty(cell):
            raise PageError("the cell is empty (None)")
        if isinstance(cell, dict):
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
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


def is_empty(cell):
    """Whether an image cell holds nothing; zero bytes are something, that cannot be decoded."""
    return cell in (None, "", []) or (isinstance(cell, dict) and cell.get("bytes") is None and not cell.get("path"))


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
