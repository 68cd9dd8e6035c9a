"""Durable results: parquet parts on the way to a Hub dataset, or files in a folder or bucket, and what is done."""

import json
import queue
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from kit.items import where
from kit.publish import checkpoint_of, publish
from kit.seam import Stop
from kit.storage import first_line, open_storage, unique_stamp

PART_ROWS, PART_SECONDS = 256, 60.0  # a part, or a batch for a bucket, closes at either: what a kill can lose
FILE_ROWS, FILE_SECONDS = 64, 5.0  # the same for files in a local folder
SHARD_DONE = "Shard {}/{} finished; when all are, the same command without --shard finishes the run."
READERS = 8  # parts read at once: a bucket answers slowly, but many at a time
FIELDS = {  # the declared schema of a part; `columns` and `info` are JSON
    **dict.fromkeys(("id", "name", "text", "blocks", "error", "finish_reason", "sha256", "columns", "info"), "string"),
    **dict.fromkeys(("row", "page", "pages", "attempts", "prompt_tokens", "completion_tokens"), "int64"),
    "seconds": "float64",
}


def open_results(options, recipe, source, run):
    """The results of this run with what earlier runs of the same command left: `Parts` or `Files`.

    `run` describes the run. Its model, revision, task and source must be those of the results found.
    Raises Stop where they are not, and where the place cannot be written.
    """
    kind, place = where(options.output)
    if kind == "hub-files":
        raise Stop(
            f"{options.output} is a folder of a dataset. Name the dataset (ns/name), a bucket or a local folder."
        )
    try:
        if kind == "hub":
            return Parts(options, recipe, run, checkpoint_of(options), (PART_ROWS, PART_SECONDS))
        limits = (PART_ROWS, PART_SECONDS) if kind == "bucket" else (FILE_ROWS, FILE_SECONDS)
        return Files(options, recipe, run, place, limits)
    except ValueError as error:  # JSON or parquet that is cut or damaged
        damaged = checkpoint_of(options) if kind == "hub" else place
        raise Stop(
            f"What earlier runs left in {damaged} is damaged: {first_line(error)}. Name another place, or delete it "
            "and read everything again."
        ) from error
    except OSError as error:
        raise Stop(f"Results cannot be kept for {options.output}: {first_line(error)}. Name another place.") from error


def inference_entry(options, run):
    """The entry of this run in `inference_info`: model_id, column_name and what else describes it."""
    described = {key: value for key, value in run.items() if key not in ("model", "source")}
    return {"model_id": run["model"], "column_name": options.output_column, **described}


def flat(run):
    """The identity of a run, with the options of the recipe and the facts of the source beside the rest."""
    own, source = run.pop("options") or {}, run.pop("source")
    return {**run, **own, **source}


def storable(text):
    """Text without lone surrogates, which broken JSON or file names may hold and neither Arrow nor SQLite takes."""
    return text.encode("utf-8", "replace").decode()


def to_json(value):
    return json.dumps(value, ensure_ascii=False, default=lambda v: v.item() if hasattr(v, "item") else str(v))


class Index:
    """Which units are done, in a private SQLite file on disk that vanishes with the process.

    Of several records of one id a success wins over an error, and otherwise the last.
    """

    def __init__(self, retry_errors=False):
        self.accepted = 0 if retry_errors else 1
        self.db = sqlite3.connect("", check_same_thread=False)
        self.db.execute(
            "CREATE TABLE units (id TEXT PRIMARY KEY, row INT, page INT, pages INT, failed INT, record TEXT)"
        )

    def add(self, rows, record=lambda row: None):
        """Takes result rows, oldest first, with `record(row)`, the JSON that is to come back from `match`."""
        self.db.executemany(
            "INSERT INTO units VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET row = excluded.row, "
            "page = excluded.page, pages = excluded.pages, failed = excluded.failed, record = excluded.record "
            "WHERE excluded.failed <= units.failed",
            (
                (storable(row["id"]), row["row"], row["page"], row["pages"], row["error"] is not None, record(row))
                for row in rows
            ),
        )
        self.db.commit()

    def __contains__(self, unit_id):
        query = "SELECT 1 FROM units WHERE id = ? AND failed <= ?"
        return self.db.execute(query, (storable(unit_id), self.accepted)).fetchone() is not None

    def __len__(self):
        return self.db.execute("SELECT count(*) FROM units WHERE failed <= ?", (self.accepted,)).fetchone()[0]

    def failed(self):
        """How many of the done units are failures."""
        query = "SELECT count(*) FROM units WHERE failed AND failed <= ?"
        return self.db.execute(query, (self.accepted,)).fetchone()[0]

    def pages(self, unit_id):
        """How many pages the row or file of this unit has, or None if the unit is not known."""
        found = self.db.execute("SELECT pages FROM units WHERE id = ?", (storable(unit_id),)).fetchone()
        return found and found[0]

    def extra_pages(self):
        """How many more pages than rows the done units stand for."""
        query = "SELECT coalesce(sum(pages - 1), 0) FROM units WHERE page = 1 AND failed <= ?"
        return self.db.execute(query, (self.accepted,)).fetchone()[0]

    def most_pages(self):
        return self.db.execute("SELECT max(pages) FROM units").fetchone()[0] or 0

    def records(self, failed):
        """The records of units that failed (1) or were read (0), as a list of JSON strings."""
        return [record for (record,) in self.db.execute("SELECT record FROM units WHERE failed = ?", (failed,))]

    def match(self, start, count):
        """The records for a table of the source, as (places in the table, records), in the order of the table.

        `start` is the number of the first of `count` rows, or the list of their ids. A row may have several records.
        """
        if isinstance(start, int):
            self.db.execute("CREATE INDEX IF NOT EXISTS by_row ON units (row, page)")
            query = "SELECT record FROM units WHERE row >= ? AND row < ? ORDER BY row, page"
            records = [json.loads(record) for (record,) in self.db.execute(query, (start, start + count))]
            return [record["row"] - start for record in records], records
        query = "SELECT record FROM units WHERE id = ?"
        found = [self.db.execute(query, (storable(unit_id),)).fetchone() for unit_id in start]
        places = [place for place, record in enumerate(found) if record]
        return places, [json.loads(found[place][0]) for place in places]


class Results:
    """Takes rows from one producer and hands them to one background writer.

    `done` answers `id in done`, `done.pages(id)` and `len(done)` for what was there when the run started; `deaths`
    maps the ids that were in flight when an engine died to how often. Subclasses say how to `load` and `save`.
    """

    def __init__(self, options, recipe, run, uri, limits):
        self.options, self.recipe, self.run, self.limits = options, recipe, run, limits
        self.storage = open_storage(uri)
        self.done, self.deaths = Index(options.retry_errors), Counter()
        self.info = to_json(inference_entry(options, run))
        self._lock = self.storage.claim("run" if not options.shard else "shard-{}-{}".format(*options.shard))
        names = self.storage.list()
        self._check_identity(names)
        for name in names:
            if name.startswith(f"{self.folder}deaths-"):
                self.deaths.update(json.loads(self._read(name)))
        self.load(names)
        self._failure, self._told, self._saved, self._closed, self._taken = None, False, 0, False, 0
        self._rows = queue.Queue(maxsize=PART_ROWS)
        self._writer = threading.Thread(target=self._write, name="results", daemon=True)
        self._writer.start()

    def put(self, row):
        """Queues one result row (the dict of CLAUDE.md). Raises Stop if an earlier one could not be written."""
        self._raise_failure()
        self._taken += 1
        self._rows.put(row)

    def close(self):
        """Writes what is queued and ends the writer; may be called again. Raises Stop once if writing failed."""
        if not self._closed:
            self._closed = True
            self._rows.put(None)
        self._writer.join()
        self._lock.close()
        if not self._told:
            self._raise_failure()

    def record_death(self, ids):
        """Notes at once, durably, that an engine died while these units were in flight."""
        try:
            self.storage.write({f"{self.folder}deaths-{unique_stamp()}.json": json.dumps(list(ids)).encode()})
        except Exception as error:
            self._failure = error
            self._raise_failure()
        self.deaths.update(ids)

    def _write(self):
        rows, row, due = [], {}, 0.0
        most, seconds = self.limits
        while row is not None:
            try:
                row = self._rows.get(timeout=max(0.0, due - time.monotonic()) if rows else None)
            except queue.Empty:
                row = {}
            if row:
                due = due if rows else time.monotonic() + seconds
                rows.append(row)
            if rows and (row is None or len(rows) >= most or time.monotonic() >= due):
                try:
                    if not self._failure:  # after a failure the queue is only emptied, so that no put blocks
                        self.save(rows)
                        self._saved += len(rows)
                except Exception as error:
                    self._failure = error
                rows = []

    def _raise_failure(self):
        if self._failure:
            self._told = True
            raise Stop(
                f"The results cannot be written to {self.storage.where}: {first_line(self._failure)}. "
                f"{len(self.done) + self._saved} units are safe there. When it can be written again, type the same "
                "command: it goes on from them.",
                code=1,
            ) from self._failure

    def _check_identity(self, names):
        name = f"{self.folder}run.json"
        keys = ("model", "revision", "task", "options", "source")
        mine = json.loads(to_json({key: self.run.get(key) for key in keys}))
        if name not in names and any(other.startswith(f"{self.folder}done-") for other in names):
            raise Stop(f"{self.storage.where} holds results, but not of which run: {name} is gone. Name another place.")
        if name not in names:
            self.storage.write({name: json.dumps(mine, indent=1).encode()})
        kept, mine = map(flat, (json.loads(self._read(name)), mine))
        key = next((key for key in {**mine, **kept} if kept.get(key) != mine.get(key)), None)
        if key is None:
            return
        raise Stop(
            f"{self.storage.where} holds the results of another run: its {key} is {kept.get(key)!r}, now it is "
            f"{mine.get(key)!r}. Go on with the old setting, {self.elsewhere}, or delete {self.storage.where}."
        )

    def _read(self, name):
        with self.storage.open(name) as file:
            return file.read()

    def _read_all(self, rows_of, names):
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(names), READERS):  # so many at a time that memory does not grow with the run
                for rows in pool.map(rows_of, names[start : start + READERS]):
                    yield from rows


class Parts(Results):
    """Results on the way to a Hub dataset: append-only parquet parts in a checkpoint, published at the end."""

    folder, elsewhere = "", "name another place with --checkpoint"

    def load(self, names, whole=False):
        """Fills the index from the parts; `whole` with the results themselves, as publishing needs them."""
        import pyarrow.parquet as pq

        columns = None if whole else ["id", "row", "page", "pages", "error"]

        def rows_of(name):
            with self.storage.open(name) as file:
                return pq.ParquetFile(file).read(columns, use_threads=False).to_pylist()

        rows = self._read_all(rows_of, [name for name in names if name.startswith("part-")])
        self.done.add(rows, json.dumps if whole else lambda row: None)

    def save(self, rows):
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {name: getattr(pa, kind)() for name, kind in FIELDS.items()} | {"flags": pa.list_(pa.string())}
        rows = [{**row, "columns": to_json(row["columns"] or {}), "info": self.info} for row in rows]
        rows = [{k: storable(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), sink, compression="zstd")
        self.storage.write({f"part-{unique_stamp()}.parquet": sink.getvalue().to_pybytes()})

    def finish(self, source, run, summary):
        """Publishes, removes the checkpoint unless it is to be kept, and returns a sentence that says where.

        Raises Stop (code 1) where the Hub cannot be convinced: the results are safe and the same command finishes.
        """
        self.close()
        if self.options.shard:
            return SHARD_DONE.format(*self.options.shard)
        names = self.storage.list()
        try:
            self.load(names, whole=True)
            said = publish(self.options, self.recipe, source, run, self.done, summary, self.storage.scratch)
        except Stop:
            raise
        except Exception as error:
            raise Stop(
                f"Publishing to {self.options.output} failed: {first_line(error)}. The results are safe in "
                f"{self.storage.where}. Type the same command to finish: it does not read any page again.",
                code=1,
            ) from error
        mine = [name for name in names if name == "run.json" or name.startswith(("part-", "deaths-"))]
        self.storage.remove([] if self.options.keep_checkpoint else mine)
        return said


class Files(Results):
    """Results as files, `NAME.json` first and `NAME.md` last, in a folder here or in a bucket.

    `NAME.md` is the record of success; a page whose `.md` was deleted is read again. `_run/` holds the identity of the
    run, which id is done under which name (done-*.jsonl), and the failures (errors-*.jsonl).
    """

    folder, elsewhere = "_run/", "name another OUTPUT"

    def load(self, names):
        texts = {name for name in names if name.endswith(".md")}

        def rows_of(name):
            return [json.loads(line) for line in self._read(name).splitlines()]

        rows = self._read_all(rows_of, [name for name in names if name.startswith(("_run/done-", "_run/errors-"))])
        self.done.add((row for row in rows if row["error"] is not None or f"{row['name']}.md" in texts), json.dumps)

    def save(self, rows):
        pages, texts, notes = {}, {}, []
        for row in rows:
            note = {key: row[key] for key in ("id", "name", "row", "page", "pages", "error")}
            name, parts = row["name"], row["name"].split("/")
            if note["error"] is None and ({"", ".", ".."} & set(parts) or parts[0] == "_run" or "\0" in name):
                note["error"] = f"the name {name!r} does not lie inside the output folder"
            if note["error"] is None and max(len(part.encode("utf-8", "replace")) for part in parts) > 250:
                note["error"] = f"the name {name!r} is too long for a file"
            if note["error"] is None:
                page = {key: row[key] for key in row if key not in ("text", "error")}
                page["blocks"] = json.loads(row["blocks"]) if row["blocks"] else None
                page["inference_info"] = [json.loads(self.info)]
                pages[f"{name}.json"] = storable(to_json(page)).encode()
                texts[f"{name}.md"] = storable(row["text"] or "").encode()
            notes.append(note)
        self.storage.write(pages)
        self.storage.write(texts)
        self._note(
            [json.dumps(note) for note in notes if note["error"] is None],
            [json.dumps(note) for note in notes if note["error"] is not None],
        )

    def finish(self, source, run, summary):
        """Writes `_run/summary.json`, tidies `_run/`, and returns a sentence that says where the pages are."""
        self.close()
        if self.options.shard:
            return SHARD_DONE.format(*self.options.shard)
        names, handled = self.storage.list(), len(self.done) + self._taken
        self.done = Index()
        self.load(names)
        if len(self.done) < handled:
            raise Stop(
                f"{handled} pages were read, and {len(self.done)} are in {self.storage.where}: others were removed "
                "meanwhile. The same command reads them again.",
                code=1,
            )
        read, failed = self.done.records(failed=0), self.done.records(failed=1)
        told = {"pages": len(read) + len(failed), "errors": len(failed), "run": run, "last_session": summary}
        self.storage.write({"_run/summary.json": to_json(told).encode()})
        self._note(read, failed)
        self.storage.remove(name for name in names if name.startswith(("_run/done-", "_run/errors-")))
        said = f"Pages in {self.storage.where}: {len(read)}."
        if failed:
            notes = [json.loads(note) for note in failed[:3]]
            reasons = "".join(f"\n  {note['id']}: {note['error']}" for note in notes)
            said += f" Not read: {len(failed)}, each with its reason in _run/errors-*.jsonl:{reasons}"
        return said

    def _note(self, read, failed):
        for kind, notes in (("done", read), ("errors", failed)):
            if notes:
                self.storage.write({f"_run/{kind}-{unique_stamp()}.jsonl": "".join(f"{n}\n" for n in notes).encode()})
