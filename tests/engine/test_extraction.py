"""The recipes that extract, by their command line, on the real vLLM: texts, pages and documents, held to a schema."""

import json
import os
import shutil
import subprocess

import pytest
from PIL import Image, ImageDraw

from tests.engine.conftest import last_json, runnable

pytestmark = pytest.mark.skipif(not os.environ.get("OCR_ENGINE_ALL"), reason="OCR_ENGINE_ALL=1 runs extraction")

# Nothing in it can go on for ever, so that a random model ends within its few tokens.
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["ship", "ferry"]}, "paid": {"type": "boolean"}},
    "required": ["kind", "paid"],
}
TEMPLATE = {"kind": ["ship", "ferry"], "stops": [["north", "south"]]}
# As the checkpoint's: the mode, or the template, is all that is asked.
NUEXTRACT_TEMPLATE = (
    "{{ template if template else mode }} {{ instructions or '' }}\n"
    "{% for m in messages %}{% for c in m['content'] %}<|vision_start|><|image_pad|><|vision_end|>\n{% endfor %}"
    "{% endfor %}<|im_start|>assistant\n"
)
CASES = {  # recipe, engine: architecture, input, the recipe's own words
    ("lfm2-extract", "offline"): ("lfm2", "texts", ["--schema", json.dumps(SCHEMA), "--constrained"]),
    ("lfm2-extract", "serve"): ("lfm2", "texts", ["--schema", json.dumps(SCHEMA), "--constrained"]),
    ("lfm2-vl-extract", "offline"): ("lfm2_vl", "pages", ["--schema", json.dumps(SCHEMA), "--constrained"]),
    ("nuextract3", "offline"): ("qwen3_5", "pages", ["--template", json.dumps(TEMPLATE), "--constrained"]),
    ("lift-extract", "offline"): ("qwen3_5", "documents", ["--schema", json.dumps(SCHEMA)]),
}
INPUTS = {"texts": ["one", "two"], "pages": ["page-0", "page-1"], "documents": ["three", "page-0"]}


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A folder for each kind of input: two texts and an empty one, two images, a PDF of three pages and an image."""
    folder = tmp_path_factory.mktemp("inputs")
    for kind in INPUTS:
        (folder / kind).mkdir()
    for name, text in {"one": "The ferry was paid for.", "two": "A ship, unpaid.", "empty": "\n"}.items():
        (folder / "texts" / f"{name}.txt").write_text(text)
    images = [Image.new("RGB", (700 + 64 * n, 900), (255, 255 - 40 * n, 240)) for n in range(3)]
    for number, image in enumerate(images):
        ImageDraw.Draw(image).text((20, 30), f"Ferry {number} " * 9, fill=(0, 0, 40 * number))
        image.save(folder / ("pages" if number < 2 else "documents") / f"page-{number % 2}.png")
    images[0].save(folder / "documents" / "three.pdf", save_all=True, append_images=images[1:])
    return folder


@pytest.fixture(scope="session")
def extracted(python, environment, tiny, inputs, tmp_path_factory):
    """`extracted(recipe, engine)`: (what the run says of itself, its folder)."""
    done = {}

    def run(recipe, engine):
        if (recipe, engine) not in done:
            architecture, kind, words = CASES[recipe, engine]
            folder = tmp_path_factory.mktemp(f"{recipe}-{engine}")
            model = shutil.copytree(tiny(architecture), folder / "model")
            if recipe == "nuextract3":
                (model / "chat_template.jinja").write_text(NUEXTRACT_TEMPLATE)
            command = [
                python, runnable(recipe, folder, architecture), inputs / kind, folder / "out", "--engine", engine,
                "--model", model, "--temperature", "0", "--max-tokens", "200", "--max-model-len", "30000",
                "--retries", "0", *words,
            ]  # fmt: skip
            result = subprocess.run(
                list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
            )
            assert result.returncode == 0, result.stderr[-4000:]
            done[recipe, engine] = last_json(result.stdout), folder / "out"
        return done[recipe, engine]

    return run


@pytest.mark.parametrize("recipe, engine", CASES)
def test_answers_are_held_to_the_schema(extracted, recipe, engine):
    summary, folder = extracted(recipe, engine)
    kind = CASES[recipe, engine][1]
    names, empty = INPUTS[kind], ["empty"] if kind == "texts" else []
    assert sorted(path.stem for path in folder.glob("*.md")) == sorted(names + empty)
    assert (summary["errors"], summary["flags"]) == (0, dict.fromkeys(empty, 1))
    for name in empty:  # a blank page is no error
        assert (folder / f"{name}.md").read_text() == ""
        columns = json.loads((folder / f"{name}.json").read_text())["columns"]
        assert columns == {"extraction_valid": False, "extraction_error": "the text is empty"}
    for name in names:
        answer = json.loads((folder / f"{name}.md").read_text())
        assert answer["kind"] in ("ship", "ferry", None)
        columns = json.loads((folder / f"{name}.json").read_text())["columns"]
        assert columns == {"extraction_valid": True, "extraction_error": None}


@pytest.mark.parametrize("recipe, engine", CASES)
def test_the_prompt_holds_what_is_asked(extracted, recipe, engine):
    _, folder = extracted(recipe, engine)
    asked = {
        "lfm2-extract": len(json.dumps(SCHEMA)),
        "lfm2-vl-extract": len("kind: select from ship, ferry\npaid") + 2 * 256,
        "nuextract3": len(json.dumps(TEMPLATE, indent=4)) + 22 * 28,
        "lift-extract": len(json.dumps(SCHEMA, indent=2)) + 22 * 28,
    }[recipe]  # one token a byte, and those of the image
    for name in INPUTS[CASES[recipe, engine][1]]:
        row = json.loads((folder / f"{name}.json").read_text())
        assert row["prompt_tokens"] >= asked * (2 if name == "three" else 1)
