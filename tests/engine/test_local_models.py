"""The recipes that run in transformers, on small random checkpoints of the real classes.

On request, with OCR_ENGINE_ALL=1: importing torch and transformers takes most of a minute.
"""

import json
import os
import subprocess

import pytest

from tests.engine.conftest import ROOT

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
