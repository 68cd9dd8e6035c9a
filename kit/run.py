"""The run: items to rows through an engine that may die, counted, shown and stopped in good order."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter

from kit.answers import converse, failed_row
from kit.seam import PageError, Stop, say
from kit.workers import Ahead, decoded

FIRST_ANSWERS = 32  # if these all fail, something is wrong with the setup and not with the pages
SUSPECTS_AT_ONCE = 16
LAST_CALL = 8  # seconds from SIGTERM to a hard exit: Jobs send SIGKILL after ten


class EngineDied(Exception):
    """The engine's process or server is gone; the units in flight are suspects."""


class Feed:
    """Decoded units for an engine. Those that were in flight when it died come last, few at a time, then alone.

    `get(block)` gives the next (item, outcome), None if none is ready, and raises StopIteration at the end; an engine
    blocks only with nothing in flight. The outcome is (Unit, sha256) or the exception that decoding ended with.
    `limit` is the most units the engine may have in flight now (None: its own window). A unit that dies alone, or for
    the third time over all runs, is an error.
    """

    def __init__(self, items, decode, deaths, size):
        self.decode, self.deaths, self.size = decode, dict(deaths), size
        self.suspects, self.given_up, self.flying, self.limit = [], [], {}, None
        self.ahead = Ahead(decode(self.unsuspected(items)), size)

    def unsuspected(self, items):
        for item in items:
            if item.id in self.deaths:
                (self.suspects if self.deaths[item.id] < 3 else self.given_up).append(item)
            else:
                yield item

    def get(self, block=True):
        while True:
            if self.given_up:
                item = self.given_up.pop()
                return item, PageError("the engine died each time while this page was being read")
            try:
                pair = self.ahead.get(block)
            except StopIteration:
                if not (self.suspects or self.given_up):
                    raise
                if self.flying:  # the next group is smaller and must not share the engine with this one
                    return None
                level = min((self.deaths[item.id] for item in self.suspects), default=0)
                group = [item for item in self.suspects if self.deaths[item.id] == level]
                self.suspects = [item for item in self.suspects if self.deaths[item.id] != level]
                self.limit = SUSPECTS_AT_ONCE if level == 1 else 1
                self.ahead = Ahead(self.decode(group), self.size)
                continue
            if pair is not None:
                self.flying[pair[0].id] = pair[0]
            return pair

    def landed(self, row):
        self.flying.pop(row["id"], None)

    def crashed(self):
        """Turns the units in flight into suspects; returns their ids."""
        for item in self.flying.values():
            self.deaths[item.id] = self.deaths.get(item.id, 0) + 1
            alone = len(self.flying) == 1
            (self.given_up if alone or self.deaths[item.id] > 2 else self.suspects).append(item)
        ids = list(self.flying)
        self.flying.clear()
        return ids


def engine_rows(engine, items, steps, options, recipe, stop, results):
    """Yields the rows of a served model. A dead engine is rebuilt up to 3 times, once more per 1,000 finished units.

    Raises Stop(1) when it keeps dying; what is finished stays finished.
    """
    feed = Feed(items, lambda group: decoded(group, options, recipe, stop), results.deaths, size=32)

    def talk(item, outcome):
        if isinstance(outcome, BaseException):
            return only(failed_row(item, outcome))
        return converse(item, *outcome, options, recipe, steps)

    finished = rebuilds = 0
    try:
        while True:
            try:
                for row in engine(feed, talk, options, recipe, stop):
                    feed.landed(row)
                    finished += 1
                    yield row
                return
            except Stop as problem:
                problem.code = 1 if rebuilds else problem.code  # it ran before: pages are finished, and more can be
                raise
            except EngineDied as death:
                ids = feed.crashed()
                results.record_death(ids)
                rebuilds += 1
                if rebuilds > 3 + finished // 1000:
                    raise Stop(
                        f"The engine died {rebuilds} times ({death}). Finished pages are safe; "
                        "the same command resumes.",
                        code=1,
                    ) from death
                say(f"The engine died with {len(ids)} units in flight ({death}); starting it again.")
    finally:
        feed.ahead.close()


def only(row):
    """A conversation that is over before it began."""
    return row
    yield


class Tally:
    """Counts of this run. `ready` is when the first answer came: everything before it is start-up."""

    def __init__(self, total, skipped, by_page=True):
        self.total, self.skipped, self.started, self.ready = total, skipped, time.monotonic(), None
        self.by_page = by_page
        self.pages = self.errors = self.asked = self.useless = self.prompt_tokens = self.completion_tokens = 0
        self.retried = 0
        self.flags, self.shown = Counter(), 0.0

    def add(self, row):
        self.ready = self.ready or time.monotonic() - (row["seconds"] or 0)
        self.pages += 1
        if self.total and self.by_page and row["page"] == 1:  # the source counts rows and files
            self.total += row["pages"] - 1
        self.errors += row["error"] is not None
        self.asked += row["attempts"] > 0
        self.retried += row["attempts"] > 1
        self.useless += row["attempts"] > 0 and (row["error"] is not None or "degenerate" in row["flags"])
        self.flags.update(row["flags"])
        self.prompt_tokens += row["prompt_tokens"]
        self.completion_tokens += row["completion_tokens"]

    @property
    def seconds(self):
        return time.monotonic() - self.ready if self.ready else 0.0

    def line(self):
        """One line for the human: pages done, pages/s, tokens/s, errors, flags, time left."""
        rate = self.pages / self.seconds if self.seconds else 0.0
        done = f"{self.pages + self.skipped:,}" + (f" of {self.total:,}" if self.total else "") + " pages"
        parts = [done, f"{rate:.2f} pages/s"]
        if self.completion_tokens and self.seconds:
            parts.append(f"{self.completion_tokens / self.seconds:,.0f} tokens/s")
        parts += [f"{self.errors} errors"] + [f"{count} {flag}" for flag, count in self.flags.most_common()]
        if rate and self.total and self.total > self.pages + self.skipped:
            left = (self.total - self.pages - self.skipped) / rate
            parts.append(f"{int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d} left")
        return ", ".join(parts)

    def show(self, last=False):
        """The line in place on a terminal, every 30 s in a log."""
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if last or now - self.shown > (0.5 if terminal else 30):
            self.shown = now
            width = shutil.get_terminal_size().columns - 1
            text = f"\r{self.line()[:width]:<{width}}" + ("\n" if last else "") if terminal else self.line() + "\n"
            sys.stderr.write(text)
            sys.stderr.flush()


def read_all(rows, results, tally, stop):
    """Puts every row into the results. Raises Stop(1) if the first answers are all useless; closes the results."""
    try:
        for row in rows:
            results.put(row)
            tally.add(row)
            tally.show()
            if tally.asked == tally.useless == FIRST_ANSWERS and not stop.is_set():
                raise Stop(
                    f"The first {FIRST_ANSWERS} answers are all errors or degenerate text, so something is wrong with "
                    f"the setup, not the pages. The last one: {row['error'] or row['text'][:80]!r}. "
                    "Run one page with --max-samples 1 --verbose; --retry-errors asks the failed pages again.",
                    code=1,
                )
    finally:
        rows.close()
        results.close()
        tally.show(last=True)


def stop_on_signals(results):
    """The event that SIGTERM, SIGINT and a closed terminal set (SIGHUP, unless nohup had it ignored).

    If the run is not over in time, finished pages are saved and it ends.
    """
    stop = threading.Event()

    def last_call():
        say("Still busy; saving what is finished and leaving. The same command resumes.")
        try:
            results.close()
        finally:
            os._exit(1)

    def handler(number, frame):
        if not stop.is_set():
            stop.set()
            say("Stopping: finished pages are being saved. The same command resumes.")
            timer = threading.Timer(LAST_CALL, last_call)
            timer.daemon = True
            timer.start()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    hangup = getattr(signal, "SIGHUP", None)  # None on Windows
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        signal.signal(hangup, handler)
    return stop


def peak_memory():
    """Peak resident bytes of this process and of its largest child."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return [unit * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def report(tally, options, recipe, exit_code, **more):
    """The short table for the human and the JSON line for the machine, last on stdout."""
    own, child = peak_memory()
    startup = (tally.ready - tally.started) if tally.ready else time.monotonic() - tally.started
    summary = {
        "recipe": recipe["name"], "model": options.model, "task": options.task, "engine": options.engine,
        "input": options.input, "output": options.output,
        "pages": tally.pages, "skipped": tally.skipped, "errors": tally.errors, "flags": dict(tally.flags),
        "retried": tally.retried,
        "startup_seconds": round(startup, 1), "seconds": round(tally.seconds, 1),
        "pages_per_second": round(tally.pages / tally.seconds, 3) if tally.seconds else None,
        "prompt_tokens": tally.prompt_tokens, "completion_tokens": tally.completion_tokens,
        "peak_memory_mb": round(own / 1e6), "peak_worker_memory_mb": round(child / 1e6),
        **more, "exit_code": exit_code,
    }  # fmt: skip
    if options.price_per_hour and tally.pages:
        hours = (startup + tally.seconds) / 3600
        summary["cost_per_1000_pages"] = round(options.price_per_hour * hours / tally.pages * 1000, 4)
    for key in ("pages", "skipped", "errors", "flags", "pages_per_second", "startup_seconds", "peak_memory_mb"):
        say(f"  {key:<18} {summary[key]}")
    try:
        print(json.dumps(summary), flush=True)
    except OSError:  # nobody reads stdout any more; the run is done all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code
