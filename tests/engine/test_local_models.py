"""The recipes that run in transformers, on small random checkpoints of the real classes.

On request, with OCR_ENGINE_ALL=1: importing torch and transformers takes most of a minute.
"""

import json
import os
import subprocess

import pytest
from PIL import Image

from tests.engine.conftest import ROOT, last_json

pytestmark = pytest.mark.skipif(not os.environ.get("OCR_ENGINE_ALL"), reason="on request: OCR_ENGINE_ALL=1")

# Loads a recipe as it is and reads one page with it: python -c READ RECIPE MODEL WORDS... -> JSON
READ = """
import json, sys
from PIL import Image
from tests.unit.recipe_file import load_recipe
name, model, *words = sys.argv[1:]
recipe = load_recipe(name)
options = recipe.option_parser(recipe.RECIPE, recipe.add_options).parse_args(["in", "out", "--model", model, *words])
recipe.settle(options, recipe.RECIPE, {"local": None})
recipe.check(options)
page = recipe.Page(Image.open("samples/two-columns.png").convert("RGB"), 1300, 960)
(parsed,) = recipe.predict([page], recipe.load(options), options)
print(json.dumps([parsed.markdown, parsed.blocks, parsed.flags, parsed.columns]))
"""


def read(python, environment, *words):
    command = [python, "-c", READ, *map(str, words)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_pp_doclayout(python, environment, tmp_path):
    """Boxes of the real post-processing lie on the page and are in the blocks document, with their outlines."""
    command = [python, ROOT / "tests/engine/tiny_layout.py", tmp_path]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=900)
    markdown, blocks, flags, columns = read(
        python, environment, "pp-doclayout", tmp_path, "--device", "cpu", "--threshold", 0.001, "--no-layout-nms"
    )
    assert (markdown, flags, blocks["width"], blocks["height"]) == ("", [], 1300, 960)
    assert blocks["blocks"] and len(json.loads(columns["layout_polygons"])) == len(blocks["blocks"])
    for block in blocks["blocks"]:
        x0, y0, x1, y1 = block["bbox"] or (0, 0, 1, 1)
        assert 0 <= x0 < x1 <= 1300 and 0 <= y0 < y1 <= 960 and block["confidence"] >= 0.001


@pytest.mark.parametrize("task", ["ocr", "spotting"])
def test_paddleocr_vl_1_5(python, environment, tiny, task):
    """The processor takes the bounds, the model writes, and what it wrote is cut at the limit and flagged."""
    markdown, _, flags, _ = read(
        python, environment, "paddleocr-vl-1.5", tiny("paddleocr_vl"), "--task", task, "--max-tokens", 8,
        "--max-pixels", 200_000,
    )  # fmt: skip
    assert isinstance(markdown, str) and "truncated" in flags


def test_lift(python, environment, tiny, tmp_path):
    """The command with --method hf: a document of three pages and an image in one batch, each with its own answer."""
    documents = tmp_path / "documents"
    documents.mkdir()
    images = [Image.new("RGB", (700 + 64 * n, 900), (255, 255 - 60 * n, 240 - 80 * n)) for n in range(3)]
    images[0].save(documents / "three.pdf", save_all=True, append_images=images[1:])
    images[2].save(documents / "image.png")
    schema = {"type": "object", "properties": {"paid": {"type": "boolean"}}}
    command = [
        python, ROOT / "ocr/lift-extract.py", documents, tmp_path / "out", "--method", "hf", "--model", tiny("qwen3_5"),
        "--schema", json.dumps(schema), "--max-tokens", "8", "--retries", "0",
    ]  # fmt: skip
    result = subprocess.run(
        list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert result.returncode == 0, result.stderr[-3000:]
    summary = last_json(result.stdout)
    assert (summary["engine"], summary["pages"], summary["errors"]) == ("local", 2, 0)
    assert summary["flags"] == {"truncated": 2, "unparsed": 2}, "random tokens up to the limit are no JSON"
    texts = [(tmp_path / "out" / f"{name}.md").read_text() for name in ("three", "image")]
    assert texts[0] and texts[1] and texts[0] != texts[1]
