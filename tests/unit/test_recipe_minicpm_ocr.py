"""MiniCPM-OCR: runs of an SDK of the same shape as OpenBMB's, whose package no registry here has."""

import argparse
import json
import sys
from types import SimpleNamespace

import pytest
from PIL import Image

from tests.unit.recipe_file import load_recipe, options_of
from tests.unit.whole_run import whole_run

mini = load_recipe("minicpm-ocr")

# load_config and pipelined_run as the card of MiniCPM-OCR-1.0-DSpark imports them; settings and files as in ocrcpm
# 0.1.0. Dark pages fail, pages 200 pixels wide lose a region, pages 300 pixels wide end the program.
STAND_IN = """
import base64, json, urllib.request
from pathlib import Path

def load_config(path, overrides):
    assert Path(path).read_text() == "prompts: of the SDK"
    assert Path(overrides["layout"]["model_dir"]).is_dir() and overrides["layout"]["device"] == "cuda:0"
    return overrides

def pipelined_run(config):
    from PIL import Image
    run, rows = Path(config["run"]["run_root"]) / config["run"]["run_tag"], []
    (run / "output").mkdir(parents=True)
    (run / "results_json").mkdir()
    for path in sorted(Path(config["input"]["image_dir"]).iterdir()):
        width, height = Image.open(path).size
        if width == 300:
            raise RuntimeError("out of memory")
        if Image.open(path).getpixel((0, 0)) == (0, 0, 0):
            rows.append({"image_id": path.stem, "status": "failed", "error": "too dark"})
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}},
                   {"type": "text", "text": "Text Recognition:"}]
        body = {"model": config["engine"]["model_name"], "messages": [{"role": "user", "content": content}]}
        request = urllib.request.Request(config["engine"]["server_urls"][0] + "/v1/chat/completions",
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
        status = "partial_failed" if width == 200 else "ok"
        (run / "output" / f"{path.stem}.md").write_text(f"## {said}\\n")
        blocks = [{"bbox": [10, 20, width - 10, 60], "label": "paragraph_title", "content": said, "status": "ok"}]
        if width == 200:
            blocks.append({"bbox": [0, 70, 9, 80], "label": "table", "content": "", "status": "vllm_error"})
        (run / "results_json" / f"{path.stem}.json").write_text(json.dumps({"crop_blocks": blocks}))
        rows.append({"image_id": path.stem, "status": status, "error": ""})
    (run / "per_page_metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""


@pytest.fixture
def sdk(tmp_path):
    """Options that name the stand-in and a layout model."""
    package = tmp_path / "packages" / "minicpmvocr"
    (package / "configs").mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "configs" / "minicpmvocr.yaml").write_text("prompts: of the SDK")
    python, layout = tmp_path / "sdk-python", tmp_path / "layout"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "packages"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    layout.mkdir()
    return ["--sdk-python", str(python), "--layout-model", str(layout)]


def white(width, height=100, colour="white"):
    return Image.new("RGB", (width, height), colour)


def test_a_whole_run(tmp_path, sdk):
    pages = {"good": white(400), "partial": white(200), "dark": white(400, colour="black")}
    summary, texts, blocks, seen = whole_run(
        "minicpm-ocr", tmp_path, pages, lambda prompt, size: f"{prompt} {size}", *sdk, "--model", "minicpm-ocr",
        model="minicpm-ocr",
    )  # fmt: skip
    assert (summary["pages"], summary["errors"], summary["flags"]) == (3, 1, {"partial_failed": 1})
    assert texts == {
        "good": "## Text Recognition: (400, 100)",
        "partial": "## Text Recognition: (200, 100)",
    }
    (block,) = blocks["good"]["blocks"]
    assert block["bbox"] == [10, 20, 390, 60] and block["label"] == "heading"
    assert [b["label"] for b in blocks["partial"]["blocks"]] == ["heading", "table"]
    failures = [json.loads(line) for path in (tmp_path / "out").glob("_run/errors*.jsonl") for line in path.open()]
    assert [row["error"] for row in failures] == ["the SDK says failed: too dark"]
    assert len(seen) == 2 and {body["model"] for body in seen} == {"minicpm-ocr"}


def predicted(pages, options):
    return mini.predict([mini.Page(page, page.width * 2, page.height * 2) for page in pages], None, options)


def test_a_run_that_ends_early_fails_its_pages_with_the_reason(sdk):
    options = argparse.Namespace(**vars(options_of(mini, *sdk)), served="m")
    options.endpoint = "http://127.0.0.1:9/v1"
    (parsed,) = predicted([white(300)], options)
    assert parsed.columns == {"markdown_status": "failed: the SDK ended with exit code 1: RuntimeError: out of memory"}
    options.sdk_python = sys.executable
    (parsed,) = predicted([white(300)], options)
    assert "No module named 'minicpmvocr'" in parsed.columns["markdown_status"]


@pytest.mark.parametrize(
    "metrics, files, status",
    [
        ("", {}, "failed: nothing said"),
        ('{"image_id": "0", "status": "ok"}\n', {}, "failed: the SDK wrote no Markdown"),
        ('{"image_id": "0", "status": "failed"}\n', {"output/0.md": "x"}, "failed: no reason given"),
        ('{"image_id": "0", "status": "ok"}\n', {"output/0.md": " x \n"}, "ok"),
        ('{"image_id": "0", "status": "partial_failed"}\n', {"output/0.md": "x"}, "partial_failed"),
        (
            '{"image_id": "0", "status": "ok"}\n{"image_id": "1", "sta',
            {"output/0.md": "x", "results_json/0.json": "{"},
            "ok",
        ),
    ],
)
def test_the_sdks_own_account_decides(tmp_path, metrics, files, status):
    for folder in ("output", "results_json"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    (tmp_path / "run" / "per_page_metrics.jsonl").write_text(metrics)
    for name, text in files.items():
        (tmp_path / "run" / name).write_text(text)
    state = mini.page_states(tmp_path).get("0", "failed: nothing said")
    parsed = mini.read_page(tmp_path, "0", state, mini.Page(white(50), 100, 200))
    assert parsed.columns == {"markdown_status": status}
    assert parsed.markdown == ("" if status.startswith("failed") else "x")
    assert parsed.flags == (["partial_failed"] if status == "partial_failed" else [])


def test_boxes_are_pixels_of_the_original():
    rows = [{"bbox": [10, 20, 30, 40], "label": "table", "text": "<table></table>"}, {"label": "novel"}, {}]
    page = mini.Page(white(50, 100), 100, 400)
    first, second, _ = mini.blocks_document(page, mini.regions(rows))["blocks"]
    assert first["bbox"] == [20, 80, 60, 160] and (first["label"], first["format"]) == ("table", "html")
    assert second["bbox"] is None and (second["label"], second["raw_label"]) == ("other", "novel")
    assert mini.regions({"blocks": rows}) == mini.regions({"crop_blocks": rows}) == mini.regions(rows)
    assert mini.regions({}) == []


def test_a_server_that_is_gone_stops_the_run_before_a_page_is_blamed(monkeypatch):
    server = SimpleNamespace(url="http://127.0.0.1:9/v1", model="m", log=None)
    stop = SimpleNamespace(is_set=lambda: False)
    with pytest.raises(mini.Stop, match="does not answer any more") as stopped:
        mini.check_server(server, stop)
    assert stopped.value.code == 1
    mini.check_server(server, SimpleNamespace(is_set=lambda: True))


def test_preflight_says_what_to_build(sdk, tmp_path):
    with pytest.raises(mini.Stop, match="images/minicpm-ocr has both"):
        mini.preflight(options_of(mini, "--sdk-python", tmp_path / "no"), mini.RECIPE)
    with pytest.raises(mini.Stop, match="The layout model, .* is not here"):
        mini.preflight(options_of(mini, *sdk[:2]), mini.RECIPE)
    mini.preflight(options_of(mini, *sdk, "--endpoint", "http://h/v1"), mini.RECIPE)


def test_the_servers_flags():
    options = options_of(mini)
    words = mini.server_command(options, mini.RECIPE, 8080)
    assert words[0] == "/usr/bin/python3"
    for flag, value in [("--max-model-len", "40960"), ("--max-num-batched-tokens", "8192")]:
        assert words[words.index(flag) + 1] == value
    assert "--trust-remote-code" in words
