"""The recipes themselves, by their command line, on the real vLLM with a tiny checkpoint of their architecture."""

import os
import re
import subprocess

import pytest
from PIL import Image, ImageDraw

from kit.smart_resize import smart_resize
from tests.engine.conftest import ROOT, last_json, runnable
from tests.unit.recipe_file import load_recipe

# One recipe for each architecture of tiny.py; each is started once per engine that it offers. A start takes the better
# part of a minute on two cores, so the whole check runs one and OCR_ENGINE_ALL=1 the rest.
RECIPES = {"glm-ocr": "glm_ocr"}
if os.environ.get("OCR_ENGINE_ALL"):
    RECIPES |= {
        "lighton-ocr2": "lighton_ocr",
        "dots-mocr": "dots_ocr",
        "nanonets-ocr2": "qwen2_5_vl",
        "paddleocr-vl": "paddleocr_vl",
        "firered-ocr": "qwen3_vl",
        "qianfan-ocr": "qianfan_ocr",
    }
SIZES = [(10 + n, 12 + 2 * n) for n in range(6)]  # in units of 28 pixels, one image token each
SEEN = [smart_resize(28 * columns, 28 * rows, 32, 65536, 1003520) for columns, rows in SIZES]
# Image tokens of all pages where they are not one for each unit: 32 pixels; tiles of 448 (3 x 4, the tallest 2 x 3)
# and a thumbnail, 256 tokens each.
IMAGES = {"qwen3_vl": sum(width * height // 1024 for width, height in SEEN), "qianfan_ocr": 256 * (4 * 13 + 2 * 7)}


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """A folder with six pages, and one that is no image."""
    folder = tmp_path_factory.mktemp("pages")
    for number, (columns, rows) in enumerate(SIZES):
        image = Image.new("RGB", (28 * columns, 28 * rows), (255, 255 - 20 * number, 240))
        ImageDraw.Draw(image).text((20, 30), f"Page {number} " * 5, fill=(0, 0, 40 * number))
        image.save(folder / f"page-{number}.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno picture follows")
    return folder


def engines_of(recipe):
    table = re.search(r"engines=\{(.*?)\}", (ROOT / "ocr" / f"{recipe}.py").read_text(), re.S).group(1)
    return re.findall(r'"(\w+)":', table)


@pytest.fixture(scope="session")
def ran(python, environment, tiny, pages, tmp_path_factory):
    """`ran(recipe, engine)`: (what the run says of itself, output name to text), run once for each."""
    done = {}

    def run(recipe, engine):
        if (recipe, engine) not in done:
            folder = tmp_path_factory.mktemp(f"{recipe}-{engine}")
            command = [
                python, runnable(recipe, folder), pages, folder / "out", "--engine", engine, "--retries", "0",
                "--model", tiny(RECIPES[recipe]), "--max-tokens", "24", "--max-model-len", "20000",
                "--temperature", "0", "--checkpoint", folder / "checkpoint",
            ]  # fmt: skip
            result = subprocess.run(
                list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
            )
            assert result.returncode == 0, result.stderr[-4000:]
            texts = {path.stem: path.read_text() for path in (folder / "out").glob("*.md")}
            done[recipe, engine] = last_json(result.stdout), texts
        return done[recipe, engine]

    return run


@pytest.mark.parametrize("recipe, engine", [(recipe, engine) for recipe in RECIPES for engine in engines_of(recipe)])
def test_pages_are_read_and_the_broken_one_is_an_error(ran, recipe, engine):
    summary, texts = ran(recipe, engine)
    assert sorted(texts) == [f"page-{n}" for n in range(6)]
    assert (summary["pages"], summary["errors"], summary["exit_code"]) == (7, 1, 0)
    assert summary["completion_tokens"] <= 6 * 24
    assert len(set(texts.values())) == 6, "the pictures decide what is said"


@pytest.mark.parametrize("recipe, engine", [(recipe, engine) for recipe in RECIPES for engine in engines_of(recipe)])
def test_the_prompt_holds_the_image_and_the_recipes_words(ran, recipe, engine):
    summary, _ = ran(recipe, engine)
    table = load_recipe(recipe).RECIPE
    words = len(table["tasks"][table["task"]].encode())  # the tiny tokenizer has one token per byte
    images = IMAGES.get(RECIPES[recipe], sum(columns * rows for columns, rows in SIZES))
    assert 6 * words <= summary["prompt_tokens"] - images <= 6 * (words + 120)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if len(engines_of(name)) > 1])
def test_both_engines_read_the_same(ran, recipe):
    (offline, texts), (serve, others) = ran(recipe, "offline"), ran(recipe, "serve")
    assert texts == others
    assert offline["prompt_tokens"] == serve["prompt_tokens"]
