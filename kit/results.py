"""Durable results: parquet parts on the way to a Hub dataset, or files in a folder or bucket, and what is done."""

import json
import queue
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from kit.publish import publish
from kit.seam import Stop
from kit.source import where
from kit.storage import checkpoint_of, first_line, open_storage, unique_stamp

PART_ROWS, PART_SECONDS = 256, 60.0  # a part, or a batch for a bucket, closes at either: what a kill can lose
FILE_ROWS, FILE_SECONDS = 64, 5.0  # the same for files in a local folder
READERS = 8  # parts read at once on resume: a bucket answers slowly but many at a time
FIELDS = {  # the declared schema of a part; `columns` and `info` are JSON
    **dict.fromkeys(("id", "name", "text", "blocks", "error", "finish_reason", "sha256", "columns", "info"), "string"),
    **dict.fromkeys(("row", "page", "pages", "attempts", "prompt_tokens", "completion_tokens"), "int64"),
    "seconds": "float64",
}


def open_results(options, recipe, source, run):
    """The results of this run, with what earlier runs of the same command left: see `Results`.

    `run` describes the run; its model, revision, task and source must be those of the results found.
    Raises Stop where they are not, and where the place cannot be written.
    """
    kind, place = where(options.output)
    try:
        if kind == "hub":
            return Parts(options, recipe, run, checkpoint_of(options))
        return Files(options, recipe, run, place)
    except OSError as error:
        raise Stop(f"Results cannot be kept for {options.output}: {first_line(error)}. Name another place.") from error


def inference_entry(options, run):
    """The entry of this run in `inference_info`: model_id, column_name and what else describes it."""
    described = {key: value for key, value in run.items() if key not in ("model", "source")}
    return {"model_id": run["model"], "column_name": options.output_column, **described}


def index_entry(row, record):
    """What `Index.add` takes, for one result row."""
    return row["id"], row["row"], row["page"], row["pages"], row["error"] is not None, record


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
        self.db.execute("CREATE INDEX by_row ON units (row, page)")

    def add(self, units):
        """Takes tuples `(id, row, page, pages, failed, record)`, oldest first; `record` is JSON or None."""
        self.db.executemany(
            "INSERT INTO units VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET row = excluded.row, "
            "page = excluded.page, pages = excluded.pages, failed = excluded.failed, record = excluded.record "
            "WHERE excluded.failed <= units.failed",
            units,
        )
        self.db.commit()

    def __contains__(self, unit_id):
        query = "SELECT 1 FROM units WHERE id = ? AND failed <= ?"
        return self.db.execute(query, (unit_id, self.accepted)).fetchone() is not None

    def __len__(self):
        return self.db.execute("SELECT count(*) FROM units WHERE failed <= ?", (self.accepted,)).fetchone()[0]

    def pages(self, unit_id):
        """How many pages the row or file of this unit has, or None if the unit is not known."""
        return (self.db.execute("SELECT pages FROM units WHERE id = ?", (unit_id,)).fetchone() or (None,))[0]

    def most_pages(self):
        return self.db.execute("SELECT max(pages) FROM units").fetchone()[0] or 0

    def counts(self):
        """(units read, units failed)"""
        rows = dict(self.db.execute("SELECT failed, count(*) FROM units GROUP BY failed").fetchall())
        return rows.get(0, 0), rows.get(1, 0)

    def records(self, failed):
        """The records of units that failed (1) or were read (0)."""
        return (record for (record,) in self.db.execute("SELECT record FROM units WHERE failed = ?", (failed,)))

    def match(self, start, count):
        """The records for a table of the source, as (places in the table, records), in the order of the table.

        `start` is the number of the first of `count` rows, or the list of their ids. A row may have several records.
        """
        if isinstance(start, int):
            query = "SELECT record FROM units WHERE row >= ? AND row < ? ORDER BY row, page"
            records = [json.loads(record) for (record,) in self.db.execute(query, (start, start + count))]
            return [record["row"] - start for record in records], records
        query = "SELECT record FROM units WHERE id = ?"
        found = [(place, self.db.execute(query, (unit_id,)).fetchone()) for place, unit_id in enumerate(start)]
        found = [(place, json.loads(record[0])) for place, record in found if record]
        return [place for place, _ in found], [record for _, record in found]


class Results:
    """Takes rows from one producer and hands them to one background writer.

    `done` answers `id in done`, `done.pages(id)` and `len(done)` for what was there when the run started; `deaths`
    maps the ids that were in flight when an engine died to how often. Subclasses say how to `load` and `save`.
    """

    def __init__(self, options, recipe, run, uri, limits):
        self.options, self.recipe, self.run, self.limits = options, recipe, run, limits
        self.storage = open_storage(uri)
        self.done = Index(options.retry_errors)
        self.info = json.dumps(inference_entry(options, run))
        names = sorted(self.storage.list())
        self._check_identity(names)
        self.deaths = Counter()
        for name in names:
            if name.startswith(f"{self.folder}deaths-"):
                self.deaths.update(json.loads(self._read(name)))
        self.load(names)
        self._failure, self._told, self._saved, self._closed = None, False, 0, False
        self._rows = queue.Queue(maxsize=2 * PART_ROWS)
        self._writer = threading.Thread(target=self._write, name="results", daemon=True)
        self._writer.start()

    def put(self, row):
        """Queues one result row (the dict of CLAUDE.md). Raises Stop if an earlier one could not be written."""
        self._raise_failure()
        self._rows.put(row)

    def close(self):
        """Writes what is queued and ends the writer; may be called again. Raises Stop once if that did not work."""
        if not self._closed:
            self._closed = True
            self._rows.put(None)
        self._writer.join()
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
        rows, due, row = [], 0.0, {}
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
        mine = json.loads(json.dumps({key: self.run.get(key) for key in ("model", "revision", "task", "source")}))
        if name not in names:
            self.storage.write({name: json.dumps(mine, indent=1).encode()})
        kept = json.loads(self._read(name))
        if kept == mine:
            return
        flat = [{**run, **(run["source"] if isinstance(run.get("source"), dict) else {})} for run in (kept, mine)]
        key = next(k for k in [*flat[1], *flat[0]] if k != "source" and flat[0].get(k) != flat[1].get(k))
        raise Stop(
            f"{self.storage.where} holds the results of another run: its {key} is {flat[0].get(key)!r}, now it is "
            f"{flat[1].get(key)!r}. Go on with the old setting, {self.elsewhere}, or delete {self.storage.where}."
        )

    def _read_all(self, rows_of, names):
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(names), READERS):  # so many at a time that memory does not grow with the run
                for rows in pool.map(rows_of, names[start : start + READERS]):
                    yield from rows

    def _read(self, name):
        with self.storage.open(name) as file:
            return file.read()

    def _shard_note(self):
        index, count = self.options.shard
        return f"shard {index}/{count} finished; run the same command without --shard to "


class Parts(Results):
    """Results on the way to a Hub dataset: append-only parquet parts in a checkpoint, published at the end."""

    folder, elsewhere = "", "name another place with --checkpoint"

    def __init__(self, options, recipe, run, uri):
        super().__init__(options, recipe, run, uri, (PART_ROWS, PART_SECONDS))

    def load(self, names, whole=False):
        """Fills the index from the parts; `whole` with the results themselves, as publishing needs them."""
        import pyarrow.parquet as pq

        light = ["id", "row", "page", "pages", "error"]

        def rows_of(name):
            with self.storage.open(name) as file:
                return pq.read_table(file, columns=None if whole else light, use_threads=False).to_pylist()

        parts = [name for name in names if name.startswith("part-")]
        self.done.add(index_entry(row, json.dumps(row) if whole else None) for row in self._read_all(rows_of, parts))

    def save(self, rows):
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {name: getattr(pa, kind)() for name, kind in FIELDS.items()} | {"flags": pa.list_(pa.string())}
        rows = [{**row, "columns": json.dumps(row["columns"] or {}), "info": self.info} for row in rows]
        for row in rows:  # arrow refuses lone surrogates, which a model's broken JSON may spell
            row |= {k: v.encode("utf-8", "replace").decode() for k, v in row.items() if isinstance(v, str)}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), sink, compression="zstd")
        self.storage.write({f"part-{unique_stamp()}.parquet": sink.getvalue().to_pybytes()})

    def finish(self, source, run, summary):
        """Publishes, removes the checkpoint unless it is to be kept, and returns a sentence that says where.

        Raises Stop (code 1) when the Hub cannot be convinced: the results are safe and the same command finishes.
        """
        self.close()
        if self.options.shard:
            return self._shard_note() + "publish."
        names = sorted(self.storage.list())
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
        if self.options.keep_checkpoint:
            self.storage.tidy()
        else:
            self.storage.remove(n for n in names if n == "run.json" or n.startswith(("part-", "deaths-")))
        return said


class Files(Results):
    """Results as files, `NAME.json` first and `NAME.md` last, in a folder here or in a bucket.

    `NAME.md` is the record of success. `_run/` holds the identity of the run, which ids are done under which name, and
    the failures.
    """

    folder, elsewhere = "_run/", "name another OUTPUT"

    def __init__(self, options, recipe, run, uri):
        in_bucket = uri.startswith("hf://")
        super().__init__(
            options, recipe, run, uri, (PART_ROWS, PART_SECONDS) if in_bucket else (FILE_ROWS, FILE_SECONDS)
        )

    def load(self, names):
        """Fills the index. A page whose `.md` has been deleted is not done."""
        texts = {name for name in names if name.endswith(".md")}

        def rows_of(name):
            return [json.loads(line) for line in self._read(name).splitlines()]

        for kind in ("errors", "done"):
            rows = self._read_all(rows_of, [name for name in names if name.startswith(f"_run/{kind}-")])
            kept = (row for row in rows if row["error"] is not None or f"{row['name']}.md" in texts)
            self.done.add(index_entry(row, json.dumps(row)) for row in kept)

    def save(self, rows):
        pages, texts, noted = {}, {}, {"done": [], "errors": []}
        for row in rows:
            note = {key: row[key] for key in ("id", "name", "row", "page", "pages", "error")}
            parts = row["name"].split("/")
            if note["error"] is None and ({"", ".", ".."} & set(parts) or parts[0] == "_run" or "\0" in row["name"]):
                note["error"] = f"the name {row['name']!r} does not lie inside the output folder"
            if note["error"] is None:
                page = {key: row[key] for key in row if key not in ("text", "error")}
                page["blocks"] = json.loads(row["blocks"]) if row["blocks"] else None
                page["inference_info"] = [json.loads(self.info)]
                pages[f"{row['name']}.json"] = json.dumps(page, ensure_ascii=False).encode("utf-8", "replace")
                texts[f"{row['name']}.md"] = row["text"].encode("utf-8", "replace")
            noted["errors" if note["error"] is not None else "done"].append(json.dumps(note))
        self.storage.write(pages)
        self.storage.write(texts)
        self._note(noted)

    def finish(self, source, run, summary):
        """Writes `_run/summary.json`, tidies `_run/`, and returns a sentence that says where the pages are."""
        self.close()
        if self.options.shard:
            return self._shard_note() + "finish."
        names = sorted(self.storage.list())
        self.load(names)
        read, failed = self.done.counts()
        told = {"pages": read + failed, "errors": failed, "run": run, "last_session": summary}
        self.storage.write({"_run/summary.json": json.dumps(told, indent=1, ensure_ascii=False).encode()})
        self._note({"done": self.done.records(failed=0), "errors": self.done.records(failed=1)})
        self.storage.remove(name for name in names if name.startswith(("_run/done-", "_run/errors-")))
        return f"{read} pages are in {self.storage.where}" + (f"; {failed} failed, see _run/." if failed else ".")

    def _note(self, noted):
        lines = {kind: "".join(f"{note}\n" for note in notes).encode() for kind, notes in noted.items()}
        self.storage.write({f"_run/{kind}-{unique_stamp()}.jsonl": data for kind, data in lines.items() if data})
