"""DeepSeek-OCR with Transformers: the process that reads, with stand-ins for uv, PyTorch and the model's code."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from tests.unit.recipe_file import OCR, load_recipe

ocr = load_recipe("deepseek-ocr")
ANSWER = (
    "<|ref|>title<|/ref|><|det|>[[87, 52, 912, 96]]<|/det|>\n# Annual Report\n\n"
    "<|ref|>text<|/ref|><|det|>[[88, 120, 910, 233]]<|/det|>\na \\coloneqq b\n\n"
    "<|ref|>image<|/ref|><|det|>[[120, 260, 480, 520]]<|/det|>\n"
)
# What the model's code is to the recipe: it prints, and returns the text in eval_mode only. Pages 200 pixels wide
# fail, pages 300 pixels wide end the process, pages 400 pixels wide say what was asked.
TRANSFORMERS = f"""
import json, os
from PIL import Image

class AutoTokenizer:
    def from_pretrained(model, trust_remote_code, revision):
        return "tokenizer"

class AutoModel:
    def from_pretrained(model, _attn_implementation, use_safetensors, trust_remote_code, revision):
        assert _attn_implementation == "eager" and use_safetensors and trust_remote_code
        if model == "broken":
            raise OSError("no such model")
        return AutoModel()
    def eval(self):
        return self
    cuda = eval
    def to(self, dtype):
        assert dtype == "bfloat16"
        return self
    def infer(self, tokenizer, prompt, image_file, output_path, eval_mode=False, **settings):
        assert tokenizer == "tokenizer" and os.path.isdir(output_path)
        print("=====", prompt)
        width = Image.open(image_file).width
        if width == 200:
            raise ValueError("too narrow")
        if width == 300:
            os._exit(9)
        if width == 400:
            return json.dumps([prompt, settings]).replace('<', '\\\\u003c')
        return {ANSWER!r} if eval_mode else None
"""


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """PATH with a `uv` that runs the command's last word, for `python -c`, where the stand-ins are."""
    (tmp_path / "transformers.py").write_text(TRANSFORMERS)
    (tmp_path / "torch.py").write_text("bfloat16 = 'bfloat16'")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nfor last; do :; done\nPYTHONPATH={tmp_path} exec {sys.executable} -c "$last"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OCR_ALLOW_CPU", "1")
    monkeypatch.setattr(ocr, "end_children_with_this_process", lambda: None)


def options(*words):
    parsed = ocr.option_parser(ocr.RECIPE, ocr.add_options).parse_args(["in", "out", *map(str, words)])
    ocr.settle(parsed, ocr.RECIPE, {"local": None})
    return parsed


def page(width, height=500, seen=None):
    return ocr.Page(Image.new("RGB", seen or (width, height), "white"), width, height)


def test_pages_are_read_one_after_the_other(stand_ins):
    reader = ocr.load(options())
    try:
        first, second = ocr.predict([page(999, 1998), page(1998, 999)], reader, options())
        with pytest.raises(ocr.PageError, match="the model's code failed: ValueError: too narrow"):
            ocr.predict([page(200)], reader, options())
        assert ocr.predict([page(500)], reader, options())[0].markdown == first.markdown, "the process lives on"
        with pytest.raises(SystemExit):
            ocr.predict([page(300)], reader, options())
    finally:
        reader.kill()
    assert first.markdown == "# Annual Report\n\na := b" and first.flags == []
    assert [b["label"] for b in first.blocks["blocks"]] == ["title", "text", "picture"]
    assert first.blocks["blocks"][0]["bbox"] == [87, 104, 912, 192]
    assert second.blocks["blocks"][0]["bbox"] == [174, 52, 1824, 96]


@pytest.mark.parametrize(
    "words, prompt, sizes",
    [
        ((), "<image>\n<|grounding|>Convert the document to markdown.", (1024, 640, True)),
        (("--task", "free", "--resolution-mode", "tiny"), "<image>\nFree OCR.", (512, 512, False)),
        (
            ("--task", "image", "--resolution-mode", "large"),
            "<image>\n<|grounding|>OCR this image.",
            (1280, 1280, False),
        ),
        (
            ("--task", "rec", "--locate", "Wm", "--base-size", 900, "--image-size", 300, "--no-crop-mode"),
            "<image>\nLocate <|ref|>Wm<|/ref|> in the image.",
            (900, 300, False),
        ),
        (("--prompt", "<image>Count.", "--resolution-mode", "small"), "<image>Count.", (640, 640, False)),
        (
            ("--task", "free", "--resolution-mode", "custom", "--base-size", 900, "--image-size", 500, "--crop-mode"),
            "<image>\nFree OCR.",
            (900, 500, True),
        ),
    ],
)
def test_what_is_asked(stand_ins, words, prompt, sizes):
    reader = ocr.load(options())
    try:
        (parsed,) = ocr.predict([page(400)], reader, options(*words))
    finally:
        reader.kill()
    settings = dict(zip(("base_size", "image_size", "crop_mode"), sizes, strict=True))
    assert json.loads(parsed.markdown) == [prompt, {**settings, "save_results": False, "test_compress": False}]


def test_a_model_that_cannot_be_loaded(stand_ins):
    with pytest.raises(ocr.Stop, match="could not be loaded"):
        ocr.load(options("--model", "broken"))


@pytest.mark.parametrize(
    "task, text, markdown, flags",
    [
        ("document", "", "", []),
        ("document", "words without tags", "words without tags", ["unparsed"]),
        ("document", "<|ref|>text<|/ref|><|det|>[[1, 2, 3", "", ["unparsed"]),
        ("free", "words without tags", "words without tags", []),
        ("image", "<|ref|>Wm<|/ref|><|det|>[[1, 2, 30, 40]]<|/det|>", "Wm", []),
    ],
)
def test_broken_answers(task, text, markdown, flags):
    parsed = ocr.parse_answer(text, page(999, 999), options("--task", task))
    assert (parsed.markdown, parsed.flags) == (markdown, flags)


def test_checks(monkeypatch):
    monkeypatch.delenv("OCR_ALLOW_CPU", raising=False)
    monkeypatch.setattr(ocr, "gpus", lambda: [])
    for words, said in [
        (("--task", "rec"), "Add --locate"), (("--prompt", "no mark"), "<image> once"), ((), "needs an NVIDIA GPU"),
        (("--resolution-mode", "custom", "--base-size", 900), "Add --base-size 1024 --image-size 640"),
    ]:  # fmt: skip
        with pytest.raises(ocr.Stop, match=said):
            ocr.check(options(*words))


def test_the_command():
    command = ocr.in_own_environment("3.12", ["a==1", "b"], "python", "-c", "pass")
    assert command == ["uv", "run", "--isolated", "--no-project", "--python", "3.12", "--with", "a==1", "--with", "b",
                       "python", "-c", "pass"]  # fmt: skip
    assert "transformers==4.46.3" in ocr.MODEL_PACKAGES


def test_a_whole_run(stand_ins, tmp_path):
    (tmp_path / "in").mkdir()
    for name, width in [("a", 500), ("b", 300), ("c", 600)]:
        page(width).image.save(tmp_path / "in" / f"{name}.png")
    command = [sys.executable, OCR / "deepseek-ocr.py", tmp_path / "in", tmp_path / "out"]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert (summary["pages"], summary["errors"]) == (3, 1), "one page that ends the process twice costs one page"
    assert {path.stem for path in (tmp_path / "out").glob("*.md")} == {"a", "c"}
