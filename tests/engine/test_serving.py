"""From a catalogue entry to a measured endpoint: a tiny model from the loopback Hub, the real vLLM, the two tools."""

import contextlib
import json
import os
import signal
import subprocess
import time

import psutil
import pytest
from jsonschema import Draft202012Validator
from PIL import Image, ImageDraw

from tests.engine.conftest import ROOT, last_json, runnable
from tests.unit.endpoints import free_port
from tests.unit.recipe_file import load_recipe

MODEL = "user/tiny-glm-ocr"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for number in range(2):
        image = Image.new("RGB", (28 * 12, 28 * (14 + number)), "white")
        ImageDraw.Draw(image).text((20, 30), f"Page {number} " * 4, fill="black")
        image.save(folder / f"page-{number}.png")
    return folder


def marked(home):
    """Live processes of the servers whose state lies in `home`."""
    names = {path.stem for path in (home / "servers").glob("*.json")}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("OCR_SERVE_ID") in names and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_the_whole_path(python, environment, tiny, pages, start_hub, tmp_path):
    hub, home, port = start_hub(), tmp_path / "state", free_port()
    hub.api().create_repo(MODEL)
    hub.api().upload_folder(repo_id=MODEL, folder_path=tiny("glm_ocr"))
    recipe = runnable("glm-ocr", tmp_path)
    env = environment | hub.env | {"OCR_SERVE_HOME": str(home), "HF_HUB_OFFLINE": "0"}

    def tool(name, *words):
        command = [python, ROOT / "ocr" / f"{name}.py", *words]
        return subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1700
        )

    serve = ["serve", recipe, "--model-id", MODEL, "--port", port, "--name", "tiny", "--max-model-len", "8192",
             "--wait", "1500",
             "--", "--max-tokens", "24"]  # fmt: skip
    early = tool("ocr-serve", *serve)
    assert early.returncode == 2 and "ocr-serve.py download" in early.stderr

    fetched = tool("ocr-serve", "download", recipe, "--model-id", MODEL)
    assert fetched.returncode == 0, fetched.stderr[-3000:]
    assert last_json(fetched.stdout)["fetched_bytes"] > 0
    again = tool("ocr-serve", "download", recipe, "--model-id", MODEL)
    assert last_json(again.stdout)["fetched_bytes"] == 0

    try:
        started = tool("ocr-serve", *serve)
        assert started.returncode == 0, started.stderr[-4000:]
        url = last_json(started.stdout)["url"]
        assert url == f"http://127.0.0.1:{port}/v1"

        second = tool("ocr-serve", *serve)
        assert second.returncode == 2
        assert f"Port {port} is in use by tiny" in second.stderr and "ocr-serve.py stop tiny" in second.stderr

        status = last_json(tool("ocr-serve", "status", "tiny").stdout)
        assert [row["state"] for row in status["servers"]] == ["ready"]

        target = f"{recipe}={url},model=tiny,label=tiny,provider=here,args=--max-tokens 24"
        measured = tool("ocr-endpoint-bench", "run", pages, "--target", target, "--task", "text",
                        "--concurrency", "1,2", "--repeat", "2", "--out", tmp_path / "bench")  # fmt: skip
        report = json.loads((tmp_path / "bench" / "report.json").read_text())
        Draft202012Validator(load_recipe("ocr-endpoint-bench").REPORT_SCHEMA).validate(report)
        (part,) = report["targets"]
        assert part["status"] == "measured" and part["served_model"] == "tiny" and part["provider"] == "here"
        runs = [run for run in part["runs"] if not run["warmup"]]
        assert len(runs) == 8 and measured.returncode in (0, 3)
        for run in runs:  # random weights end at the limit of tokens, or loop: no fault of the way to them
            assert run["outcome"] in ("ok", "truncated", "loop"), run["error"]
            assert 0 < run["completion_tokens"] <= 24 and run["image_ignored"] is False
            assert run["prompt_tokens"] >= run["image_tokens_needed"] >= 12 * 14
            assert run["stages"][0]["streamed"] and run["ttft_s"] is not None
            assert (tmp_path / "bench" / run["output_file"]).exists()
        assert [level["concurrency"] for level in part["levels"]] == [1, 2]
        assert report["host"]["cpus"] and "</svg>" in (tmp_path / "bench" / "report.html").read_text()

        stopped = tool("ocr-serve", "stop", "tiny")
        assert last_json(stopped.stdout)["stopped"] == ["tiny"] and not marked(home)

        if not os.environ.get("OCR_ENGINE_ALL"):  # another start; tests/unit/test_ocr_serve.py kills a stand-in
            return
        assert tool("ocr-serve", *serve).returncode == 0, "the port is free again"
        server = next(p for p in marked(home) if "vllm.entrypoints.cli.main" in p.cmdline() and "-c" not in p.cmdline())
        os.kill(server.pid, signal.SIGKILL)
        for _ in range(600):
            if not marked(home):
                break
            time.sleep(0.1)
        noticed = tool("ocr-serve", "status", "tiny")
        (row,) = last_json(noticed.stdout)["servers"]
        assert row["state"] == "ended" and "killed by a signal" in row["says"] and noticed.returncode == 1
        assert not marked(home), "what it had started is gone too"
    finally:
        tool("ocr-serve", "stop", "--all")
