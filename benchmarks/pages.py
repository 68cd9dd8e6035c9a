"""Everything around the model, on the CPU: decoding, memory, resuming, local workers, driving a server.

    python benchmarks/pages.py decode      a 2480 x 3508 page to 1,540 px, by format, against plain Pillow
    python benchmarks/pages.py memory      peak memory against the number of pages, run and publish
    python benchmarks/pages.py resume      seconds until a finished run is seen to be finished
    python benchmarks/pages.py local       PP-OCRv6 on all cores against one RapidOCR process
    python benchmarks/pages.py drive       pages/s that one process feeds to a server which answers at once
    python benchmarks/pages.py all         all of them; about ten minutes on two idle cores

The last line on stdout is one JSON object. A figure belongs to the machine and versions beside it: compare within one
line, and see `load` (runnable processes a core when it began; above 0.2 the wall-clock figures are not worth much).
"""

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PAGE, BOUNDS = (2480, 3508), {"max_side": 1540}
PACKAGES = "pillow pypdfium2 pyarrow datasets huggingface_hub saturate httpx2 rapidocr onnxruntime".split()


def machine():
    """Processor, cores, memory, load per core, and the versions that the figures depend on."""
    from importlib.metadata import PackageNotFoundError, version

    cores = len(os.sched_getaffinity(0))
    found = {"python": platform.python_version(), "cores": cores, "load": round(os.getloadavg()[0] / cores, 2)}
    found["memory_gb"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    with open("/proc/cpuinfo") as info:
        found["cpu"] = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "?")
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def scan(size, seed=0):
    """An RGB page of random words on grainy paper; no two seeds give the same page."""
    from PIL import Image, ImageDraw, ImageFont

    rng = random.Random(seed)
    page = Image.new("L", size, 240)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=size[1] / 90)
    for y in range(size[1] // 30, size[1] * 29 // 30, size[1] // 68):
        draw.text((size[0] // 18, y), " ".join(f"{rng.getrandbits(28):x}" for _ in range(11)), fill=30, font=font)
    return Image.blend(page, Image.effect_noise(size, 30), 0.1).convert("RGB")


# decode


def decode(args):
    """CPU milliseconds a page in one process, the least of `--repeats`: `open_page`, and what most scripts do."""
    import pypdfium2
    from PIL import Image

    from kit.pages import open_page

    page, ours = scan(PAGE), partial(open_page, dpi=300, bounds=BOUNDS)

    def encoded(kind, **how):
        data = io.BytesIO()
        page.save(data, kind, **how)
        return data.getvalue()

    def plain(data, size):
        return Image.open(io.BytesIO(data)).convert("RGB").resize(size, Image.Resampling.LANCZOS)

    def plain_pdf(data, size):
        with pypdfium2.PdfDocument(data) as document:
            return document[0].render(scale=300 / 72).to_pil().convert("RGB").resize(size, Image.Resampling.LANCZOS)

    figures = {}
    for name, data in {
        "jpeg": encoded("JPEG", quality=88),
        "png": encoded("PNG"),
        "tiff_lzw": encoded("TIFF", compression="tiff_lzw"),
        "jp2": encoded("JPEG2000", irreversible=True, quality_layers=[20]),
        "pdf": encoded("PDF", resolution=300, quality=88),
    }.items():
        size = ours(data).image.size
        mine = least_cpu(partial(ours, data), args.repeats)
        theirs = least_cpu(partial(plain_pdf if name == "pdf" else plain, data, size), args.repeats)
        figures[name] = {
            "megabytes": round(len(data) / 1e6, 2), "open_page_ms": round(1000 * mine, 1),
            "plain_ms": round(1000 * theirs, 1), "pages_per_second_per_core": round(1 / mine, 1),
            "plain_over_open_page": round(theirs / mine, 2),
        }  # fmt: skip
    return figures


def least_cpu(call, repeats):
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds)


# memory


def memory(args):
    """Peak memory of a run and its publishing at the two sizes of `--pages`, Hub dataset to Hub dataset.

    The recipe's model does nothing. The bar is: with more pages, at most 10 % more and 100 bytes an id.
    """
    from tests.hub.loopback import LoopbackHub
    from tests.trivial import write_trivial

    figures = {}
    with tempfile.TemporaryDirectory() as work, LoopbackHub(Path(work) / "hub") as hub:
        recipe = write_trivial(work)
        for count in args.pages:
            add_dataset(hub, f"user/pages-{count}", count)
            words = [f"user/pages-{count}", f"user/read-{count}", "--checkpoint", f"{work}/checkpoint-{count}"]
            said, seconds, peak, worker = watched([sys.executable, str(recipe), *words], hub.env)
            assert said["pages"] == count and not said["errors"], said
            figures[count] = {"peak_mb": round(peak / 1e6, 1), "worker_peak_mb": round(worker / 1e6, 1),
                              "seconds": round(seconds, 1), "reported_mb": said["peak_memory_mb"]}  # fmt: skip
    few, many = min(args.pages), max(args.pages)
    allowed = 1.1 * figures[few]["peak_mb"] + 100 * many / 1e6
    return {
        **{str(count): found for count, found in figures.items()},
        "peak_ratio": round(figures[many]["peak_mb"] / figures[few]["peak_mb"], 3),
        "worker_peak_ratio": round(figures[many]["worker_peak_mb"] / figures[few]["worker_peak_mb"], 3),
        "allowed_mb": round(allowed, 1), "within_bar": figures[many]["peak_mb"] <= allowed,
    }  # fmt: skip


def add_dataset(hub, name, count):
    """A dataset of tiny distinct pages on the loopback Hub, in parquet files of 5,000 rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    def png(n):
        data = io.BytesIO()
        Image.new("RGB", (30, 40), (n % 256, n // 256 % 256, n // 65536)).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": f"{n}.png"}

    features = {"image": {"_type": "Image"}}
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"image": kind}, {"huggingface": json.dumps({"info": {"features": features}})})
    starts = range(0, count, 5000)
    for number, start in enumerate(starts):
        sink = io.BytesIO()
        rows = {"image": [png(n) for n in range(start, min(start + 5000, count))]}
        pq.write_table(pa.table(rows, schema), sink, row_group_size=1000)
        hub.add_files(name, {f"data/train-{number:05d}-of-{len(starts):05d}.parquet": sink.getvalue()})


def watched(command, env):
    """Runs a recipe: its JSON line, wall seconds, and the peak bytes of its own process and of its largest child.

    Read from VmHWM every 0.1 s: `ru_maxrss` of a child also holds what its parent had when it was started.
    """
    own, children, started = 0, 0, time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, env=env, stdout=out)
        while process.poll() is None:
            own = max(own, high_water(process.pid))
            for started_by_thread in Path(f"/proc/{process.pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    children = max([children, *map(high_water, started_by_thread.read_text().split())])
            time.sleep(0.1)
        out.seek(0)
        lines = out.read().splitlines()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return json.loads(lines[-1]), time.monotonic() - started, own, children


def high_water(pid):
    with contextlib.suppress(OSError, StopIteration), open(f"/proc/{pid}/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("VmHWM:")).split()[1])
    return 0


# resume


def resume(args):
    """Seconds until nothing is left to do, at the numbers of finished pages of `--done`; parts of 256 rows, local.

    In three steps: to find the source, to read what is done, and to go through the source and skip everything.
    Imports are counted, as in a command that is typed again.
    """
    from tests.hub.loopback import LoopbackHub

    figures = {}
    with tempfile.TemporaryDirectory() as work, LoopbackHub(Path(work) / "hub") as hub:
        for count in args.done:
            add_dataset(hub, f"user/done-{count}", count)
            words = [f"user/done-{count}", "user/read", "--checkpoint", f"{work}/done-{count}"]
            for step in (fill_checkpoint, time_resume):
                with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process reads the Hub's address once
                    figures[str(count)] = pool.apply(step, (words, count, hub.env))
    return figures


def resumed(words, env):
    """Source and results of a run with these arguments, one after the other."""
    os.environ.update(env)
    from kit.cli import option_parser, run_facts, settle
    from kit.results import open_results
    from kit.source import open_source

    recipe = {"name": "resume", "model": "none", "engine": "local", "output_column": "markdown", "image": BOUNDS}
    options = option_parser(recipe).parse_args(words)
    settle(options, recipe, {"local": None})
    source = open_source(options, recipe)
    yield source
    yield open_results(options, recipe, source, run_facts(options, recipe, source))


def fill_checkpoint(words, count, env):
    """Finishes every page with a text of 3,000 characters, without a model."""
    from kit.answers import row_of
    from kit.seam import Parsed, Unit

    source, results = resumed(words, env)
    for item in source.items(()):
        results.put(row_of(item, Unit(item.id, []), "0" * 64, Parsed("word " * 600)))
    results.close()


def time_resume(words, count, env):
    marks, cpu, steps = [time.monotonic()], time.process_time(), resumed(words, env)
    source = next(steps)
    marks.append(time.monotonic())
    results = next(steps)
    marks.append(time.monotonic())
    left = sum(1 for _ in source.items(results.done))
    marks.append(time.monotonic())
    assert (left, len(results.done)) == (0, count), (left, len(results.done))
    cpu = time.process_time() - cpu
    results.close()
    find, read, skip = (round(end - start, 2) for start, end in pairwise(marks))
    return {"find_source": find, "read_done": read, "skip_all": skip, "seconds": round(marks[-1] - marks[0], 2),
            "cpu_seconds": round(cpu, 2)}  # fmt: skip


# local


def local_engine(args):
    """PP-OCRv6 with one worker a core, and the same RapidOCR engine in a plain loop with its own and with 1 thread."""
    figures = {}
    with tempfile.TemporaryDirectory() as work:
        samples = sorted(p for p in (ROOT / "samples").iterdir() if p.suffix in (".png", ".jpg"))
        pages = [samples[n % len(samples)] for n in range(args.local_pages)]
        pages = [shutil.copy(page, f"{work}/{n:03d}{page.suffix}") for n, page in enumerate(pages)]
        before, started = child_cpu(), time.monotonic()
        command = [sys.executable, str(ROOT / "ocr/pp-ocrv6.py"), work, f"{work}/out"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["pages"] == len(pages) and not said["errors"], said
        figures["recipe"] = {
            "pages_per_second": said["pages_per_second"], "seconds_with_startup": round(time.monotonic() - started, 1),
            "busy_cores_with_startup": round((child_cpu() - before) / (time.monotonic() - started), 2),
        }  # fmt: skip
        for name, threads in (("plain_default_threads", None), ("plain_1_thread", 1)):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                figures[name] = pool.apply(plain_loop, (pages, threads))
    for name in ("plain_default_threads", "plain_1_thread"):
        rate = figures["recipe"]["pages_per_second"] / figures[name]["pages_per_second"]
        figures[f"recipe_over_{name}"] = round(rate, 2)
    return {"pages": len(pages), **figures}


def plain_loop(pages, threads):
    """Pages/s and busy cores of one RapidOCR engine over page files, after a first page that loads everything."""
    import numpy
    from PIL import Image
    from rapidocr import RapidOCR

    params = {"Global.use_cls": False, "Global.text_score": 0.0, "Global.max_side_len": 2000,
              "Global.log_level": "critical", "Det.max_candidates": 10_000}  # fmt: skip
    if threads:
        params |= {f"EngineConfig.onnxruntime.{kind}_op_num_threads": threads for kind in ("intra", "inter")}
    engine = RapidOCR(params=params)

    def read(page):
        return engine(numpy.asarray(Image.open(page).convert("RGB"))[:, :, ::-1])

    read(pages[0])
    started, cpu = time.monotonic(), time.process_time()
    for page in pages:
        read(page)
    seconds = time.monotonic() - started
    return {"pages_per_second": round(len(pages) / seconds, 3),
            "busy_cores": round((time.process_time() - cpu) / seconds, 2)}  # fmt: skip


def child_cpu():
    times = os.times()
    return times.children_user + times.children_system


# drive


class StandIn(asyncio.Protocol):
    """One connection to a server that answers every request with the same bytes, `delay` seconds after its end."""

    def __init__(self, answer, delay):
        self.answer, self.delay, self.head, self.left, self.models = answer, delay, b"", 0, False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if not self.left:
            head, found, data = (self.head + data).partition(b"\r\n\r\n")
            self.head = b"" if found else head
            if not found:
                return
            self.models = head.startswith(b"GET")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self.left = int(lengths[0].split(b":")[1]) if lengths else 0
        self.left -= len(data)
        if not self.left:
            asyncio.get_running_loop().call_later(0 if self.models else self.delay, self.reply)

    def reply(self):
        body = b'{"data": [{"id": "drive"}]}' if self.models else self.answer
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        if not self.transport.is_closing():
            self.transport.write(head + body)


def stand_in(pipe, delay):
    """A server process; sends its port through the pipe. Its answer is 900 tokens' worth of words."""
    rng = random.Random(0)
    text = " ".join(f"{rng.getrandbits(20):x}" for _ in range(600))
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    answer = {"choices": [choice], "usage": {"prompt_tokens": 1656, "completion_tokens": 900}}
    answer = json.dumps(answer).encode()

    async def run():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: StandIn(answer, delay), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


class Decoded:
    """A feed of one decoded page, again and again."""

    limit = None

    def __init__(self, outcome, count):
        from kit.seam import Item

        self.pairs = ((Item(str(n), n, str(n)), outcome) for n in range(count))

    def get(self, block=True):
        return next(self.pairs)


def drive(args):
    """Pages/s through `kit.serve`, its CPU milliseconds a page, and those of the thread that has the event loop.

    Decoding is left out. 1000 / event_loop_ms is what no number of cores can pass; the rest of the CPU time is
    encoding, in threads. With --profile, where the event loop's thread spends its CPU time goes to stderr.
    """
    figures = {}
    for kind in ("jpeg", "png"):
        for delay in args.delays:
            figures[f"{kind}_{delay:g}s"] = drive_once(kind, delay, args)
    return {"window": args.window, "pages": args.drive_pages, **figures}


def drive_once(kind, delay, args):
    from kit.answers import converse, one_step
    from kit.cli import option_parser, settle
    from kit.pages import open_page
    from kit.seam import Parsed, Unit
    from kit.serve import serve

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=stand_in, args=(theirs, delay), daemon=True)
    server.start()
    recipe = {"name": "drive", "model": "drive", "engine": "vllm", "context": 32768, "max_model_len": 16384,
              "max_tokens": 4000, "sampling": {"temperature": 0.0}, "image": BOUNDS, "body_format": kind}  # fmt: skip
    words = ["in", "out", "--endpoint", f"http://127.0.0.1:{ours.recv()}/v1", "--window", str(args.window)]
    options = option_parser(recipe).parse_args(words)
    settle(options, recipe, {"serve": serve})
    content = [{"type": "image"}, {"type": "text", "text": "OCR"}]
    steps = one_step(lambda page, options: {"messages": [{"role": "user", "content": content}]},
                     lambda answer, page, options: Parsed(answer.text))  # fmt: skip
    data = io.BytesIO()
    scan((1654, 2339)).save(data, "JPEG", quality=88)
    outcome = Unit("page", [open_page(data.getvalue(), bounds=BOUNDS)]), "0" * 64

    def talk(item, outcome):
        return converse(item, *outcome, options, recipe, steps)

    def seconds():
        return time.monotonic(), time.process_time(), time.thread_time()

    rows = serve(Decoded(outcome, args.drive_pages), talk, options, recipe, threading.Event())
    before = seconds()
    with profiled(args.profile):
        errors = sum(row["error"] is not None for row in rows)
    wall, cpu, loop = (now - then for now, then in zip(seconds(), before, strict=True))
    server.kill()
    pages = args.drive_pages
    return {"pages_per_second": round(pages / wall, 2), "cpu_ms": round(1000 * cpu / pages, 1),
            "event_loop_ms": round(1000 * loop / pages, 1), "event_loop_busy": round(loop / wall, 2),
            "errors": errors}  # fmt: skip


@contextlib.contextmanager
def profiled(wanted):
    """Profiles this thread's CPU time while the context lasts; it roughly doubles it."""
    if not wanted:
        yield
        return
    import cProfile
    import pstats

    profile = cProfile.Profile(time.thread_time)
    with profile:
        yield
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)


BENCHMARKS = {"decode": decode, "memory": memory, "resume": resume, "local": local_engine, "drive": drive}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("benchmark", choices=[*BENCHMARKS, "all"])
    add("--repeats", type=int, default=5, help="decode: runs of which the least counts (default 5)")
    add("--pages", type=int, nargs=2, default=[2000, 20000], help="memory: the two sizes (default 2000 20000)")
    add("--done", type=int, nargs="+", default=[1000, 10000, 100000], help="resume: finished pages")
    add("--local-pages", type=int, default=12, help="local: pages, from the samples (default 12)")
    add("--drive-pages", type=int, default=768, help="drive: pages of each run (default 768)")
    add("--delays", type=float, nargs="+", default=[0, 2], help="drive: seconds until an answer (default 0 and 2)")
    add("--window", type=int, default=256, help="drive: pages in flight (default 256)")
    add("--profile", action="store_true", help="drive: profile the event loop's thread")
    args = parser.parse_args()
    result = {"benchmark": "pages", **machine()}
    for name in BENCHMARKS if args.benchmark == "all" else [args.benchmark]:
        started = time.monotonic()
        result[name] = BENCHMARKS[name](args)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
