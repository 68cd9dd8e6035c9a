"""Falcon-OCR: what its engine is given, and texts and regions as rows. The engine is a stand-in of the same shape."""

import sys
import types

import pytest
from PIL import Image

from tests.unit.recipe_file import load_recipe

falcon, newer = load_recipe("falcon-ocr"), load_recipe("falcon-ocr-1.5")
END = 7


class Engine:
    """What falcon-perception's OCRInferenceEngine is to the recipe; `read` gives (text, last token) of an image."""

    read = staticmethod(lambda image: (f"{image.size}", END))

    def __init__(self, model, tokenizer, image_processor, **settings):
        self.made, self.asked = (model, tokenizer, image_processor, settings), []

    def _stop_token_ids(self):
        return [END, END + 1]

    def _decode_seq_text(self, sequence):
        return sequence.text

    def text(self, image):
        text, token = self.read(image)
        return self._decode_seq_text(types.SimpleNamespace(text=text, last_token_id=token))

    def generate_plain(self, images, **how):
        self.asked.append(how)
        return [self.text(image) for image in images]

    def generate_with_layout(self, images, **how):
        self.asked.append(how)
        return [[{**region, "text": self.text(image)} for region in self.regions] for image in images]


@pytest.fixture
def package(monkeypatch):
    """The modules that the recipe imports, with the calls that it makes of them in `calls`."""
    calls = []
    names = ("falcon_perception", "falcon_perception.data", "falcon_perception.paged_ocr_inference")
    top, data, paged = modules = [types.ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    top.setup_torch_config = lambda: calls.append("setup")
    top.load_and_prepare_model = lambda **how: print("Model ready") or calls.append(how) or ("model", "words", "args")
    top.paged_ocr_inference, data.ImageProcessor = paged, lambda **how: how
    paged.OCRInferenceEngine, paged.LAYOUT_TO_OCR_CATEGORY = Engine, {"text": "text", "image": None}
    return types.SimpleNamespace(calls=calls, paged=paged)


def options_of(*words, recipe=falcon):
    options = recipe.option_parser(recipe.RECIPE, recipe.add_options).parse_args(["in", "out", *map(str, words)])
    recipe.settle(options, recipe.RECIPE, {"local": None})
    return options


def page_of(width=1240, height=1754):
    bounds = falcon.image_bounds(None, falcon.RECIPE)
    return falcon.Page(falcon.fit(Image.new("RGB", (width, height), "white"), bounds), width, height)


def test_load(package, capsys):
    engine = falcon.load(options_of("--no-compile", "--no-cudagraph", "--flex-attn-safe"))
    assert package.calls == ["setup", {
        "hf_model_id": "tiiuae/Falcon-OCR", "hf_revision": "42ec56b72a23984ac059e7c8a6d397a8529423fe",
        "device": "cuda", "dtype": "bfloat16", "compile": False,
    }]  # fmt: skip
    assert engine.made == ("model", "words", {"patch_size": 16, "merge_size": 1}, {
        "max_seq_length": 8192, "kernel_options": {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 1},
        "capture_cudagraph": False,
    })  # fmt: skip
    assert capsys.readouterr().out == ""  # stdout is for the one JSON line
    assert falcon.load(options_of()).made[3]["kernel_options"] is None
    categories = package.paged.LAYOUT_TO_OCR_CATEGORY
    assert categories == {"text": "text", "image": None, "display_formula": "formula", "vertical_text": "text"}


def test_the_newer_file_reads_with_the_newer_weights(package):
    newer.load(options_of(recipe=newer))
    assert package.calls[1]["hf_revision"] == "fe757d59ecd79d4d68760162306a70a015761ad9"
    assert newer.RECIPE["name"] == "falcon-ocr-1.5" and newer.RECIPE["context"] == 16384


def test_a_local_model_has_no_revision(package, tmp_path):
    falcon.load(options_of("--model", tmp_path))
    assert package.calls[1]["hf_local_dir"] == str(tmp_path) and "hf_revision" not in package.calls[1]


@pytest.mark.parametrize("task", ["plain", "table", "page-footer"])
def test_plain_pages(package, task):
    options = options_of("--task", task)
    engine = falcon.load(options)
    results = falcon.predict([page_of(), page_of(600, 300)], engine, options)
    assert [(r.markdown, r.blocks, r.flags) for r in results] == [("(1240, 1754)", None, []), ("(600, 300)", None, [])]
    assert type(results[0].markdown) is str
    assert engine.asked == [{"category": task, "max_new_tokens": 4096, "temperature": 0.0, "use_tqdm": False}]


def test_a_text_that_reached_the_limit_is_flagged(package, monkeypatch):
    monkeypatch.setattr(Engine, "read", staticmethod(lambda image: ("to be contin", 99)))
    for task in ("plain", "layout"):
        options = options_of("--task", task)
        engine = falcon.load(options)
        engine.regions = [{"category": "text", "bbox": [0, 0, 9, 9], "score": 0.9}]
        (result,) = falcon.predict([page_of()], engine, options)
        assert result.flags == ["truncated"] and result.markdown == "to be contin"


def region(category, bbox, text, score=0.93):
    return {"category": category, "bbox": bbox, "score": score, "text": falcon.FalconText(text)}


@pytest.mark.parametrize("width, height", [(1240, 1754), (5000, 3500)])
def test_regions_become_blocks_in_pixels_of_the_page(width, height):
    page = page_of(width, height)
    scale = width / page.image.width
    result = falcon.region_page(page, [
        region("doc_title", [102.4, 77.1, 901.0, 140.6], "Rolls of the mill"),
        region("table", [90, 200, 900, 500], "<table><tr><td>1</td></tr></table>", 0.88),
        region("display_formula", [90, 510, 900, 600], "x^2"),
        region("formula", [90, 600, 900, 640], "$y$"),
        region("paragraph_title", [-20, 700, 99999, 800], ""),
        region("new label", [5, 5, 5, 5], "kept"),
    ])  # fmt: skip
    assert result.markdown == "Rolls of the mill\n\n<table><tr><td>1</td></tr></table>\n\n$$\nx^2\n$$\n\n$y$\n\nkept"
    blocks = result.blocks["blocks"]
    assert [(b["label"], b["format"], b["confidence"]) for b in blocks] == [
        ("title", "markdown", 0.93), ("table", "html", 0.88), ("formula", "latex", 0.93), ("formula", "latex", 0.93),
        ("heading", "markdown", 0.93), ("text", "markdown", 0.93),
    ]  # fmt: skip
    assert blocks[0]["bbox"] == [round(v * scale) for v in (102.4, 77.1, 901.0, 140.6)]
    assert blocks[4]["bbox"] == [0, round(700 * scale), width, round(800 * scale)] and blocks[5]["bbox"] is None
    assert (result.blocks["width"], result.blocks["height"], result.flags) == (width, height, [])


def test_a_page_without_regions():
    result = falcon.region_page(page_of(), [])
    assert (result.markdown, result.blocks["blocks"], result.flags) == ("", [], [])


def test_layout_asks_once_for_the_batch(package):
    options = options_of("--task", "layout", "--layout-threshold", 0.5, "--progress")
    engine = falcon.load(options)
    engine.regions = [{"category": "plain", "bbox": [0, 0, 1240, 1754], "score": 1.0}]
    results = falcon.predict([page_of(), page_of()], engine, options)
    assert [r.blocks["blocks"][0]["bbox"] for r in results] == [[0, 0, 1240, 1754]] * 2
    assert engine.asked == [{
        "layout_threshold": 0.5, "layout_model": "PaddlePaddle/PP-DocLayoutV3_safetensors", "max_new_tokens": 4096,
        "temperature": 0.0, "use_tqdm": True,
    }]  # fmt: skip


@pytest.mark.parametrize(
    "words, says",
    [
        (["--max-model-len", 8200], "128 tokens"),
        (["--max-model-len", 16384], "8192"),
        (["--max-model-len", 4096, "--max-tokens", 4000], "--max-tokens 144"),
        (["--max-tokens", 5000], "--max-tokens 4240"),
    ],
)
def test_limits(words, says):
    with pytest.raises(falcon.Stop, match=says):
        falcon.check(options_of(*words))
    assert falcon.RECIPE["max_tokens"] + falcon.RECIPE["image_tokens"] + 32 <= falcon.RECIPE["max_model_len"]


def test_a_gpu_is_needed(monkeypatch):
    monkeypatch.setattr(falcon, "gpus", lambda: [(70 << 30, 80 << 30)])
    assert falcon.check(options_of()) == {"batch": 32} and falcon.check(options_of("--batch-size", 8)) == {"batch": 8}
    monkeypatch.setattr(falcon, "gpus", list)
    with pytest.raises(falcon.Stop, match="hf jobs uv run"):
        falcon.check(options_of())
    monkeypatch.setenv("OCR_ALLOW_CPU", "1")
    falcon.check(options_of())
