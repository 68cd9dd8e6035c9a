"""A recipe with a trivial model, stamped like any other, for tests and benchmarks of everything around the model."""

from pathlib import Path

from tools.sync import Kit, stamp

ROOT = Path(__file__).resolve().parents[1]

MODEL_PART = '''# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Trivial: the size of a page and the SHA-256 of its pixels, so that a swapped page would show.

TRIVIAL_SECONDS is how long a page takes; TRIVIAL_LOG is a file that gets a line for each page read.
"""

import hashlib
import os
import sys
import time

RECIPE = {
    "name": "trivial", "model": "test/trivial", "revision": None, "engine": "local", "tasks": {"ocr": "", "other": ""},
    "task": "ocr", "image": {"max_side": 1000}, "output_column": "markdown", "blocks_column": "trivial_blocks",
    "columns": {"ink": "float"}, "worker_memory": 100_000_000,
}


def load(options):
    return None


def predict(pages, model, options):
    time.sleep(float(os.environ.get("TRIVIAL_SECONDS", 0)))
    if path := os.environ.get("TRIVIAL_LOG"):
        with open(path, "a") as log:
            log.write("page\\n" * len(pages))
    return [read(page) for page in pages]


def read(page):
    box = {"bbox": [0, 0, *page.image.size], "content": "all", "label": "text"}
    digest = hashlib.sha256(page.image.tobytes()).hexdigest()
    text = f"{page.width}x{page.height} {digest}"
    ink = 1 - sum(page.image.resize((1, 1)).getpixel((0, 0))) / 765
    return Parsed(text, blocks_document(page, [box]), {"ink": ink})


# >>> shared part: auto


if __name__ == "__main__":
    sys.exit(main(RECIPE, engines={"local": local}, load=load, predict=predict))
'''


def write_trivial(folder, replace=()):
    """Writes trivial.py into `folder` and returns its path; `replace` maps source text to what stands there instead."""
    text = stamp(MODEL_PART, Kit(ROOT / "kit"), "ocr/trivial.py")
    for old, new in dict(replace).items():
        assert old in text, old
        text = text.replace(old, new)
    path = Path(folder) / "trivial.py"
    path.write_text(text)
    return path


def write_pages(folder, count, start=0):
    """Small distinct PNG pages page-00000.png ...; returns {name: the text that the trivial model gives}."""
    import hashlib

    from PIL import Image

    Path(folder).mkdir(parents=True, exist_ok=True)
    texts = {}
    for n in range(start, start + count):
        image = Image.new("RGB", (30, 40), (n % 256, n // 256 % 256, 7))
        image.save(f"{folder}/page-{n:05d}.png")
        texts[f"page-{n:05d}"] = f"30x40 {hashlib.sha256(image.tobytes()).hexdigest()}"
    return texts
