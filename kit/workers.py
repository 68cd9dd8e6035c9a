"""Crash-isolated worker processes: work in parallel, results in completion order, a dead worker costs one batch."""

import contextlib
import functools
import multiprocessing
import os
import queue
import threading
import time
from collections import deque
from multiprocessing.connection import wait

from kit.answers import sentence
from kit.pages import image_bounds, open_page, sha256_of, source_bytes
from kit.seam import PageError, Stop, Unit


def worker_loop(pipe, setup, work):
    """A worker's life: `state = setup()`, then `work(state, items)` for each list of items that comes in.

    A thread empties the pipe, so that the parent never blocks while this side is sending. The parent's death ends it.
    """
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # no SIGHUP on Windows
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    inbox = queue.SimpleQueue()

    def receive():
        try:
            while True:
                inbox.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    try:
        state = setup()
    except BaseException as problem:
        pipe.send(("failed", problem if isinstance(problem, Stop) else sentence(problem)))
        return
    pipe.send(("ready", None))
    threading.Thread(target=receive, daemon=True).start()
    while True:
        items = inbox.get()
        try:
            results = work(state, items)
        except Exception as problem:
            results = [PageError(sentence(problem))] * len(items)
        pipe.send(("done", results))


class Worker:
    """The parent's side of one worker process: its pipe, and the batches it holds, the first being worked on."""

    def __init__(self, setup, work):
        # spawn: forking a process that has threads or a GPU context is undefined
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=worker_loop, args=(other, setup, work), daemon=True)
        self.process.start()
        other.close()
        self.ready, self.held, self.since = False, deque(), time.monotonic()

    def give(self, batch):
        if not self.held:
            self.since = time.monotonic()
        self.held.append(batch)
        with contextlib.suppress(OSError):  # it died idle; its pipe says so to the next wait
            self.pipe.send(batch)

    def end(self):
        self.pipe.close()
        self.process.kill()
        self.process.join(5)


def in_workers(items, setup, work, count, stop, batch=1, timeout=600):
    """Yields (item, result) in completion order; a result is what `work(setup(), [item, ...])` gave, or an exception.

    At most two batches a worker are in flight, so memory does not grow with the number of items. When a worker dies
    or is silent for `timeout` seconds, the batch it was working on runs again item by item; an item that takes a
    worker down twice gets a PageError. Raises Stop if `setup` fails. A set `stop` ends admission and abandons the rest.
    """
    waiting, suspects, workers, drained = deque(), {}, [], False
    source = Ahead(items, count * batch)
    try:
        while not stop.is_set():
            while not drained and len(waiting) < count * batch:
                try:
                    item = source.get(block=False)
                except StopIteration:
                    drained = True
                    break
                if item is None:
                    break
                waiting.append(item)
            if not waiting and drained and not any(worker.held for worker in workers):
                return
            idle = sum(not worker.held for worker in workers)
            if len(workers) < count and idle * batch < len(waiting):
                workers.append(Worker(setup, work))
            for worker in sorted(workers, key=lambda worker: len(worker.held)):
                if waiting and worker.ready and len(worker.held) < 2:
                    size = 1 if waiting[0].id in suspects else batch
                    worker.give([waiting.popleft() for _ in range(min(size, len(waiting)))])
                    break
            hungry = any(worker.ready and len(worker.held) < 2 for worker in workers)
            pause = 0 if hungry and waiting else 0.02 if not drained else 0.5
            heard = wait([worker.pipe for worker in workers], pause)
            # Whoever has something to say is not silent, however long nobody took what this generator yields.
            for worker in workers:
                silent = worker.held and worker.ready and worker.pipe not in heard
                if silent and time.monotonic() - worker.since > timeout:
                    worker.process.kill()
            for pipe in heard:
                worker = next(worker for worker in workers if worker.pipe is pipe)
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):
                    yield from worker_died(worker, workers, waiting, suspects)
                    continue
                if kind == "failed":
                    raise value if isinstance(value, Stop) else Stop(f"The model could not be loaded: {value}", code=1)
                worker.since = time.monotonic()
                if kind == "ready":
                    worker.ready = True
                else:
                    yield from zip(worker.held.popleft(), value, strict=True)
    finally:
        source.close()
        for worker in workers:
            worker.end()


def worker_died(worker, workers, waiting, suspects):
    """Puts a dead worker's batches back in front of the queue; yields the item that has now taken down two."""
    worker.process.join(5)
    workers.remove(worker)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if (code or 0) < 0 else f"ended with exit code {code}"
    worker.pipe.close()
    if not worker.ready:
        raise Stop(f"A worker process {how} while it was starting; run again with --verbose to see why.", code=1)
    guilty = worker.held.popleft() if worker.held else []
    waiting.extendleft(item for batch in reversed(worker.held) for item in reversed(batch))
    for item in reversed(guilty):
        if len(guilty) == 1 and item.id in suspects:
            yield item, PageError(f"the worker process {how} twice while reading this page")
        else:
            suspects[item.id] = True
            waiting.appendleft(item)


def open_unit(item, bounds, dpi):
    """Decodes an Item: (Unit, SHA-256 of the encoded source bytes or None). Raises PageError."""
    if item.error:
        raise PageError(item.error)
    pages, sha256 = [], None
    for data, frame in item.parts:
        if item.pages == 1 and len(item.parts) == 1:
            data = source_bytes(data)
            sha256 = sha256_of(data)
        pages.append(open_page(data, frame, dpi=dpi, bounds=bounds))
    return Unit(item.id, pages, item.text), sha256


def opened_items(bounds_dpi, items):
    """`work` of the decoding workers: (Unit, sha256) or the PageError of each item."""
    results = []
    for item in items:
        try:
            results.append(open_unit(item, *bounds_dpi))
        except Exception as problem:
            results.append(problem if isinstance(problem, PageError) else PageError(sentence(problem)))
    return results


class Ahead:
    """An iterator read in a thread, `size` values ahead of the loop that takes them with `get`."""

    def __init__(self, values, size):
        self.queue, self.ended = queue.Queue(size), threading.Event()
        self.thread = threading.Thread(target=self.fill, args=(values,), daemon=True)
        self.thread.start()

    def fill(self, values):
        last = StopIteration()
        try:
            for value in values:
                if not self.put(value):
                    break
        except BaseException as problem:
            last = problem
        finally:
            getattr(values, "close", int)()
            self.put(last)

    def put(self, value):
        while not self.ended.is_set():
            try:
                self.queue.put(value, timeout=0.2)
                return True
            except queue.Full:
                pass
        return False

    def get(self, block=True):
        """The next value, or None where none is ready and `block` is false. Raises StopIteration at the end."""
        try:
            value = self.queue.get(block)
        except queue.Empty:
            return None
        if isinstance(value, BaseException):
            self.queue.put(value)
            raise value
        return value

    def close(self):
        self.ended.set()
        self.thread.join(10)


def decoded(items, options, recipe, stop):
    """Yields (item, outcome) in completion order: (Unit, sha256), or the exception that decoding ended with.

    Decoding runs in worker processes, so that a decoder that crashes cannot take an engine with it and the engine's
    process keeps its interpreter to itself.
    """
    setup = functools.partial(fixed, (image_bounds(options, recipe), options.dpi))
    return in_workers(items, setup, opened_items, worker_count(recipe), stop)


def fixed(value):
    """`setup` of a worker whose state is known beforehand; a partial of it can be pickled, a lambda cannot."""
    return value


def worker_count(recipe):
    """Cores this process may use, fewer where memory would not hold `worker_memory` bytes for each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 33
    return max(1, min(cores, int(memory * 0.7 / recipe.get("worker_memory", 1 << 30))))
