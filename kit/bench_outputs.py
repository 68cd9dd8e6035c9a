"""The outputs of several models over the same pages, joined on what identifies a page and never on its position."""

import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kit.answers import flags_of
from kit.plain_text import to_plain_text
from kit.seam import Stop, say
from kit.storage import FIRST_PATIENCE, first_line, persist
from kit.tool import parse_json, read_json, read_utf8, whole_number

# What may identify a page, the surest first; the first that is filled and unique in every output decides. Rows of a
# multi-page file share all but the page number.
PAGE_KEYS = (
    ("image_sha256",),
    ("image_sha256", "source_row"),
    ("b_number", "page_index"),
    ("source_row",),
    ("id",),
    ("file_name",),
    ("name",),
)
PAGE_NUMBERS = ("ocr_page", "page")  # the first that is there: `page` may be a column of the input's own
TEXT_NAMES = ("markdown", "ocr", "text")  # names of text columns; "text" only as it stands
NOT_TEXT = re.compile(r"(^|_)(error|flags|status|page|info|blocks|sha256|finish_reason)$")
SUSPECT_FLAGS = {"truncated", "looped", "degenerate", "unparsed"}
GOOD_STATUS = {"", "ok", "success", "done", "completed"}
USABLE = ("ok", "blank", "suspect")


class Output(NamedTuple):
    """One model's reading of one page. `state`:

    "ok"; "error", with the reason in `error` and no text; "blank", nothing visible; "suspect", with the reasons in
    `flags`: a loop, an answer cut at the token limit, or a broken protocol.
    """

    text: str | None
    state: str
    error: str | None = None
    flags: tuple = ()


@dataclass
class Contestant:
    """One model's run: `outputs` maps a page's key to its `Output`, for every page of the bench.

    `name` is unique in the bench: the model id, or `short (config)` where two runs have the same model. `revision` is
    the commit that was read, None for a folder. `kind` is the column's type, `missing` how many pages it has no row
    for. `info` is the entry of `inference_info` that both `model` and `column` are from ({} where there is none).
    """

    name: str
    model: str
    config: str
    revision: str | None
    column: str
    kind: str
    info: dict
    outputs: dict = field(default_factory=dict)
    missing: int = 0

    def coverage(self):
        """Pages with usable output by pages attempted."""
        return sum(output.state in USABLE for output in self.outputs.values()) / max(1, len(self.outputs))

    def states(self):
        """How many pages are in each state."""
        return dict(Counter(output.state for output in self.outputs.values()))


@dataclass
class Bench:
    """All runs over the same pages.

    `keys` are the pages in a stable order; `key_columns` what they are made of; `image(key)` gives `(data, frame)` for
    `open_page`, or None where no image is known; `facts(key)` the columns of the input that all runs carry, for
    strata; `source` the dataset or folders, `revision` the commit of its main branch or None.
    """

    source: str
    revision: str | None
    contestants: list
    keys: list
    key_columns: tuple
    pages: dict = field(repr=False, default_factory=dict)  # key -> (table, row number) of the first run with the page
    images: object = field(repr=False, default=None)

    def facts(self, key):
        table, row = self.pages[key]
        return {name: values[row] for name, values in table.facts.items()}

    def image(self, key):
        table, row = self.pages[key]
        return table.image(row) or (self.images(table, row) if self.images else None)


@dataclass
class Table:
    """The rows of one config or folder before they are joined: `columns` maps names to lists, images left out.

    `image(row)` gives `(data, frame)` or None, `types` the type of every column as text, `facts` are the columns of
    the input (strings, numbers).
    """

    config: str
    revision: str | None
    columns: dict
    types: dict
    image: object
    facts: dict = field(default_factory=dict)


def add_bench_options(add):
    """The options that say which outputs to read; `add` is `parser.add_argument`."""
    add("bench", metavar="BENCH", nargs="*", help="dataset ns/name with one config per model, or one folder per model")
    add("--configs", nargs="+", metavar="NAME", help="these configs only")
    add("--columns", nargs="+", metavar="NAME", help="these text columns of one table only")
    add("--from-prs", action="store_true", help="only configs in open pull requests, whose titles end with [CONFIG]")
    add("--text-column", action="append", default=[], metavar="CONFIG=COLUMN", help="where a config has its text")
    add("--row-key", metavar="COLUMN", help="column that identifies a page (default: image_sha256, then others)")
    add("--assume-aligned", action="store_true", help="row n of every config is the same page; nothing is checked")
    add("--split", default="train", help="split of the dataset (default train)")
    add("--images", metavar="FOLDER", help="folder with the page images, where the outputs do not hold them")
    add("--max-samples", type=whole_number, metavar="N", help="N pages only, drawn at random")
    add("--seed", type=int, default=42, help="seed of every draw (default 42)")


def load_bench(options, least=2):
    """The `Bench` of at least `least` runs that the options of `add_bench_options` name, described on stderr.

    Discovery: `--columns`; `--configs`; `--from-prs`; folders; else open pull requests and the configs of the main
    branch (without `default`, a pull request wins), else all text columns of one table. Raises Stop where outputs are
    missing, ambiguous, or cannot be joined.
    """
    places = [options.bench] if isinstance(options.bench, str) else options.bench
    if not places:
        raise Stop("Name a dataset (ns/name) with one config per model, or one folder per model.")
    chosen = dict(word.split("=", 1) for word in options.text_column if "=" in word)
    if bad := [word for word in options.text_column if "=" not in word]:
        raise Stop(f"--text-column {bad[0]}: write CONFIG=COLUMN.")
    folders = [place for place in places if os.path.isdir(os.path.expanduser(place))]
    if folders and len(folders) < len(places):
        raise Stop(f"{next(p for p in places if p not in folders)} is no folder here; name folders or one dataset.")
    if folders:
        tables, revision = [folder_table(place) for place in model_folders(folders)], None
        # The outputs of one bench lie side by side. Only the name of the folder around them: results are published.
        source = os.path.basename(os.path.commonpath([os.path.abspath(os.path.expanduser(p)) for p in folders]))
        runs = [(table, *text_of_config(table, chosen.get(table.config))) for table in tables]
    elif len(places) == 1 and re.fullmatch(r"[\w.-]+/[\w.-]+", places[0]):
        source = places[0]
        tables, revision, flat = hub_tables(source, options)
        if flat:
            runs = [(tables[0], column, info) for column, info in text_columns(tables[0], options.columns).items()]
        else:
            runs = [(table, *text_of_config(table, chosen.get(table.config))) for table in tables]
    else:
        raise Stop(f"{places[0]} is no folder here; name one dataset (ns/name), or one folder per model.")
    if unknown := set(chosen) - {table.config for table in tables}:
        raise Stop(f"--text-column: no config {min(unknown)}. There are {', '.join(t.config for t in tables)}.")
    if len(runs) < least:
        raise Stop(f"Only one run, {runs[0][0].config} ({runs[0][1]}), and it takes {least}: --configs or --columns.")
    bench = join_runs(runs, options)
    bench.source, bench.revision = source, revision
    if options.images:
        if not os.path.isdir(os.path.expanduser(options.images)):
            raise Stop(f"--images {options.images} is no folder here.")
        bench.images = lambda table, row: image_in_folder(options.images, table, row)
    if options.max_samples and options.max_samples < len(bench.keys):
        drawn = set(random.Random(options.seed).sample(sorted(bench.keys), options.max_samples))
        bench.keys = [key for key in bench.keys if key in drawn]
        for contestant in bench.contestants:
            contestant.outputs = {key: contestant.outputs[key] for key in bench.keys}
    describe_bench(bench)
    return bench


def describe_bench(bench):
    """Says what was understood of every run, before anything is spent: column, type, states, an excerpt."""
    say(f"{len(bench.keys):,} pages of {bench.source}, told apart by {' and '.join(bench.key_columns)}:")
    for one in bench.contestants:
        text = next((o.text for o in one.outputs.values() if o.state == "ok"), "")
        excerpt = " ".join(text.split())[:60]
        states = ", ".join(f"{count} {state}" for state, count in sorted(one.states().items()))
        say(f"  {one.name}: column {one.column} ({one.kind}) of {one.config}; {states}; {excerpt!r}")
        if one.missing:
            say(f"    {one.missing} of {len(bench.keys)} pages have no row in {one.config} and count as errors")


# ---- What is there


def hub_tables(repo, options):
    """(tables, commit of the main branch, whether it is one table with a column per model) of a Hub dataset."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        revision = persist(lambda: api.dataset_info(repo), FIRST_PATIENCE).sha
        requests = {} if options.columns else pull_request_configs(api, repo)
    except Exception as error:
        raise Stop(f"The dataset {repo} cannot be read: {first_line(error)}. Check the name and HF_TOKEN.") from error
    names = [] if options.columns or options.from_prs else main_configs(repo, revision)
    if options.from_prs and not requests:
        raise Stop(f"{repo} has no open pull request whose title ends with [CONFIG]. Leave --from-prs out.")
    if options.columns or (not requests and names in ([], ["default"])):
        config = (options.configs or names or [None])[0]
        return [hub_table(repo, config, revision, options.split)], revision, True
    found = {name: revision for name in names if name != "default" or options.configs} | requests
    if unknown := sorted(set(options.configs or ()) - set(found)):
        raise Stop(f"{repo} has no config {', '.join(unknown)}. It has {', '.join(found)}.")
    wanted = options.configs or list(found)
    return [hub_table(repo, name, found[name], options.split) for name in wanted], revision, False


def pull_request_configs(api, repo):
    """{config: commit} of the open pull requests whose title ends with [CONFIG]; of two, the newer one."""
    found = {}
    listed = partial(api.get_repo_discussions, repo, repo_type="dataset", discussion_type="pull_request")
    for request in sorted(persist(lambda: list(listed())), key=lambda request: request.num):
        name = re.search(r"\[([^\[\]]+)\]\s*$", request.title)
        if request.status not in ("open", "draft") or not name:
            continue
        if name[1] in found:
            say(f"Two open pull requests of {repo} hold the config {name[1]}: the newer one, {request.num}, is read.")
        ref = f"refs/pr/{request.num}"
        found[name[1]] = persist(lambda ref=ref: api.dataset_info(repo, revision=ref)).sha
    return found


def main_configs(repo, revision):
    from datasets import get_dataset_config_names

    try:
        return persist(lambda: get_dataset_config_names(repo, revision=revision))
    except Exception:  # a repository without data of its own, whose runs are all in pull requests
        return []


def hub_table(repo, config, revision, split):
    """One config of a Hub dataset as a `Table`. Images stay on disk, undecoded. Raises Stop."""
    from datasets import Image, load_dataset

    try:
        rows = persist(lambda: load_dataset(repo, config, split=split, revision=revision))
    except Exception as error:
        raise Stop(f"The config {config} of {repo} ({revision}) cannot be read: {first_line(error)}.") from error
    pictures = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    for name in pictures:
        rows = rows.cast_column(name, Image(decode=False))
    plain = [name for name, f in rows.features.items() if name not in pictures and getattr(f, "dtype", "") != "binary"]
    columns = rows.select_columns(plain).to_dict()
    types = {name: getattr(rows.features[name], "dtype", "list") for name in plain}

    def image(row):
        cell = rows[row][pictures[0]] if pictures else None
        data = cell and (cell.get("bytes") or cell.get("path"))
        return (data, max(0, page_number(columns, row) - 1)) if data else None

    return Table(config or "default", revision, columns, types, image, passed_through(columns, types))


def page_number(columns, row):
    name = next((name for name in PAGE_NUMBERS if name in columns), None)
    value = columns[name][row] if name else None
    return value if isinstance(value, int) else 1


def passed_through(columns, types):
    """The columns that describe the page rather than a reading of it: short strings and numbers."""
    own = {"inference_info", "source_row", "image_sha256", *PAGE_NUMBERS}
    return {
        name: values
        for name, values in columns.items()
        if name not in own and not NOT_TEXT.search(name) and types[name] in ("string", "int64", "int32", "bool")
        and all(value is None or len(str(value)) <= 200 for value in values)
    }  # fmt: skip


def model_folders(folders):
    """The folders that hold outputs: those named, or the subfolders of one that holds a folder for each model."""
    found = []
    for folder in map(Path, map(os.path.expanduser, folders)):
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
        runs = [path for path in below if (path / "_run").is_dir()]
        found += runs if runs and not (folder / "_run").is_dir() else [folder]
    return found


def folder_table(folder):
    """What a recipe (or anyone) wrote into a folder, `NAME.md` with or without `NAME.json`, as a `Table`.

    The pages that failed are those of `_run/errors-*.jsonl`, unless their `.md` is there.
    """
    folder = Path(folder)
    texts = {}
    for path in sorted(folder.rglob("*.md")):
        name = path.relative_to(folder).as_posix()
        if not any(part.startswith((".", "_")) for part in name.split("/")):
            texts[name.removesuffix(".md")] = path
    notes = {}
    for path in sorted(folder.glob("_run/errors-*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            try:
                note = parse_json(line)
                notes[note["name"]] = note
            except (ValueError, KeyError, TypeError) as error:
                raise Stop(f"{path} is damaged: {first_line(error)}. Repair or remove it.") from error
    if not texts and not notes:
        raise Stop(f"{folder} holds no .md files: no outputs to compare. Name the folder that a recipe wrote to.")
    rows = []
    for name in sorted(set(texts) | set(notes)):
        page = {"name": name, "text": None, "error": None, "flags": [], "page": 1}
        if name in texts:
            side = texts[name].with_name(texts[name].name.removesuffix(".md") + ".json")
            page |= read_json(side) if side.exists() else {}
            page |= {"name": name, "text": read_utf8(texts[name]), "error": None}
        else:
            page |= notes[name]
        rows.append(page)
    fields = {"name": "name", "id": "id", "image_sha256": "sha256", "page": "page", "markdown": "text",
              "ocr_error": "error", "ocr_flags": "flags", "finish_reason": "finish_reason",
              "inference_info": "inference_info"}  # fmt: skip
    columns = {name: [row.get(key) for row in rows] for name, key in fields.items()}
    # The column's own name in the run does not matter here: a folder has one text per page.
    for entries in filter(None, columns["inference_info"]):
        entries[-1]["column_name"] = "markdown"
    if not all(columns["id"]):  # written by something else: the name is all that there is
        del columns["id"]
    types = dict.fromkeys(columns, "string")
    facts = {"folder": [os.path.dirname(row["name"]) for row in rows]}
    return Table(folder.name, None, columns, types, lambda row: None, facts)


def image_in_folder(folder, table, row):
    """`(path, frame)` of a page's image below `folder`, by the id or the name that its output has; None if none."""
    page = page_number(table.columns, row)
    for column in ("id", "file_name", "name"):
        said = (table.columns.get(column) or {row: None})[row]
        stem = re.sub(r"/page_\d+$", "", said) if isinstance(said, str) else ""
        path = os.path.join(os.path.expanduser(folder), stem)
        if stem and os.path.isfile(path):
            return path, page - 1
        there = os.path.dirname(path)
        for name in sorted(os.listdir(there)) if stem and os.path.isdir(there) else ():
            if os.path.splitext(name)[0] == os.path.basename(path) and not name.endswith((".md", ".json", ".txt")):
                return os.path.join(there, name), page - 1
    return None


# ---- Which column, which model


def info_entries(table):
    """The entries of the first `inference_info` that is filled: a JSON list, but objects and strings are met too."""
    for value in table.columns.get("inference_info") or ():
        try:
            entries = parse_json(value) if isinstance(value, str) else value
        except ValueError:
            continue
        entries = entries if isinstance(entries, list) else [entries]
        if entries := [entry for entry in entries if isinstance(entry, dict)]:
            return entries
    return []


def column_of(entry):
    return entry.get("column_name") or entry.get("output_column")


def text_of_config(table, chosen=None):
    """(text column, entry of inference_info) of a config: both from the last entry, the run that made the config.

    `chosen` is the column of `--text-column`, with the last entry that names it. Raises Stop where several columns
    could be the text, or none.
    """
    entries, strings = info_entries(table), [name for name, kind in table.types.items() if "string" in kind]
    if chosen:
        if chosen not in table.columns:
            raise Stop(f"--text-column: {table.config} has no column {chosen}. It has {', '.join(table.columns)}.")
        return chosen, next((entry for entry in reversed(entries) if column_of(entry) == chosen), {})
    if entries and column_of(entries[-1]) in table.columns:
        return column_of(entries[-1]), entries[-1]
    candidates = [name for name in strings if not NOT_TEXT.search(name)]
    for word in TEXT_NAMES:
        found = [name for name in candidates if name == word or (word != "text" and word in name)]
        if len(found) > 1:
            raise Stop(
                f"{table.config} has several text columns: {', '.join(found)}. "
                f"Type --text-column {table.config}={found[0]}, or the other."
            )
        if found:
            return found[0], entries[-1] if entries and not column_of(entries[-1]) else {}
    raise Stop(
        f"{table.config} has no column that looks like text; it has {', '.join(table.columns)}. "
        f"Type --text-column {table.config}=COLUMN."
    )


def text_columns(table, columns=None):
    """{text column: entry} of a table with a column for each model.

    Those of `columns`, those that inference_info names, or those whose name says so. Raises Stop where there is none.
    """
    named = {column_of(entry): entry for entry in info_entries(table)}
    if unknown := [name for name in columns or () if name not in table.columns]:
        raise Stop(f"--columns: no column {', '.join(unknown)}. There are {', '.join(table.columns)}.")
    found = columns or [name for name in named if name in table.columns]
    if not found:
        found = [
            name
            for name, kind in table.types.items()
            if "string" in kind and not NOT_TEXT.search(name) and any(word in name for word in TEXT_NAMES)
        ]
    if not found:
        raise Stop(f"No text column among {', '.join(table.columns)}; name them: --columns NAME NAME.")
    return {name: named.get(name, {}) for name in found}


# ---- The state of one output


def classify(text, error=None, flags=(), finish_reason=None, status=None):
    """The `Output` of one page. `text` None is an error; a sentinel of other tools is one too, a heading is not."""
    status = str(status or "").strip().lower()
    if isinstance(error, str) and error.strip():
        return Output(None, "error", error.strip())
    if status not in GOOD_STATUS and not status.startswith("partial"):
        return Output(None, "error", f"status {status}")
    if not isinstance(text, str):
        return Output(None, "error", "no text")
    if is_sentinel(text):
        return Output(None, "error", f"the text is {text.strip()}")
    flags = [flag for flag in flags or () if flag in SUSPECT_FLAGS] + (["partial"] if status else [])[: status != "ok"]
    flags += [flag for flag in flags_of(text, finish_reason) if flag not in flags]
    if flags:
        return Output(text, "suspect", flags=tuple(flags))
    return Output(text, "ok" if to_plain_text(text) else "blank")


def is_sentinel(text):
    """One bracketed token in capitals whose last word is ERROR or FAILED, at most 40 characters and 4 words.

    The rule of the public bench: what other scripts wrote where a page failed, and no heading in brackets.
    """
    found = re.fullmatch(r"\s*\[([A-Z][A-Z _-]*)\]\s*", text)
    words = re.split(r"[ _-]+", found[1].strip()) if found else []
    return bool(words) and len(text.strip()) <= 40 and len(words) <= 4 and words[-1] in ("ERROR", "FAILED")


def output_at(table, column, row, alone):
    """The `Output` of one row; `alone` says that the table's status columns are about this text column."""
    columns = table.columns

    def cell(*names):
        return next((columns[name][row] for name in names if name in columns and columns[name][row] is not None), None)

    if not alone:
        return classify(columns[column][row], cell(f"{column}_error"), status=cell(f"{column}_status"))
    loops = cell("looped_blocks")
    flags = list(cell("ocr_flags") or ()) + (["looped"] if isinstance(loops, int) and loops else [])
    error = cell("ocr_error", f"{column}_error", "error")
    return classify(columns[column][row], error, flags, cell("finish_reason"), cell(f"{column}_status", "status"))


# ---- Joining


def join_runs(runs, options):
    """The `Bench` of (table, column, entry) triples. Raises Stop where nothing safe joins them."""
    tables = list({id(table): table for table, _, _ in runs}.values())
    key_columns, keys_of = page_keys(tables, options.row_key, options.assume_aligned)
    pages = {}
    for table in tables:
        for row, key in enumerate(keys_of[id(table)]):
            pages.setdefault(key, (table, row))
    contestants = []
    for (table, column, info), name in zip(runs, contestant_names(runs), strict=True):
        entries = info_entries(table)
        alone = len(runs) == len(tables) or (bool(entries) and column_of(entries[-1]) == column)
        rows = {key: row for row, key in enumerate(keys_of[id(table)])}
        model = info.get("model_id") or info.get("model_name") or (table.config if len(tables) > 1 else column)
        one = Contestant(name, model, table.config, table.revision, column, table.types.get(column, "string"), info)
        for key in pages:
            there = key in rows
            one.outputs[key] = output_at(table, column, rows[key], alone) if there else Output(None, "error", "no row")
        one.missing = len(pages) - len(rows)
        contestants.append(one)
    contestants.sort(key=lambda one: one.name)
    return Bench("", None, contestants, list(pages), key_columns, pages)


def page_keys(tables, row_key=None, assume_aligned=False):
    """(columns of the key, {id(table): list of keys}). A key is a string.

    The first of PAGE_KEYS that is filled and unique in every table, and that every table shares pages by. Positions
    are keys only with `assume_aligned`, or where there is but one table.
    """

    def numbered(columns):
        page = next((name for name in PAGE_NUMBERS if all(name in table.columns for table in tables)), None)
        return [columns] + [(*columns, page)] * bool(page)

    tried = [option for columns in ([(row_key,)] if row_key else PAGE_KEYS) for option in numbered(columns)]
    reasons = []
    for columns in dict.fromkeys(tried):
        said = " and ".join(columns)
        if lacking := [table.config for table in tables if any(name not in table.columns for name in columns)]:
            reasons += [f"{said}: not in {', '.join(lacking)}"] if len(lacking) < len(tables) or row_key else []
            continue
        keys = {id(table): list(zip(*(table.columns[name] for name in columns), strict=True)) for table in tables}
        if any(None in key for rows in keys.values() for key in rows):
            reasons.append(f"{said}: empty in some rows")
        elif any(len(set(rows)) < len(rows) for rows in keys.values()):
            reasons.append(f"{said}: the same in several rows")
        elif not set.intersection(*map(set, keys.values())):
            reasons.append(f"{said}: no page is in all of them")
        else:
            return columns, {table: ["/".join(map(str, key)) for key in rows] for table, rows in keys.items()}
    lengths = {len(next(iter(table.columns.values()))) for table in tables}
    if len(tables) == 1 or (assume_aligned and len(lengths) == 1):
        if not row_key:
            return ("row number",), {id(table): [f"row-{n}" for n in range(max(lengths))] for table in tables}
    if assume_aligned and not row_key:
        raise Stop(f"--assume-aligned: the outputs have {', '.join(map(str, sorted(lengths)))} rows.")
    raise Stop(
        "Nothing says which rows are the same page. Tried "
        + ("; ".join(reasons) or "columns that none has")
        + ". Name a column that is unique per page, --row-key COLUMN, or, if you know that all have the same rows in "
        "the same order, type --assume-aligned."
    )


def contestant_names(runs):
    """A unique name for each run: its model id, or `short (config)` where a model runs twice."""
    flat = len({id(table) for table, _, _ in runs}) == 1
    labels = [column if flat else table.config for table, column, _ in runs]
    models = [
        info.get("model_id") or info.get("model_name") or label
        for (_, _, info), label in zip(runs, labels, strict=True)
    ]
    counts = Counter(models)
    names = [
        f"{model.split('/')[-1]} ({label})" if counts[model] > 1 else model
        for model, label in zip(models, labels, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise Stop(f"Two runs would both be called {twice}. Rename a folder or choose with --configs.")
    return names
