"""Runs a recipe file as a user starts it, over pages in a folder, against a stand-in OpenAI server."""

import json
import os
import subprocess
import sys

from tests.unit.recipe_file import OCR
from tests.unit.test_serve import completion, size_in, standing_in


def whole_run(name, folder, pages, behave, *words, code=0, model=None, env=None):
    """The run's JSON line, {page: Markdown}, {page: blocks document} and the bodies that were asked.

    `pages` are PIL images by name; `behave(prompt, size)` gives the answer for a picture of that size in pixels, or
    (answer, finish reason).
    """
    recipe, (source, out) = OCR / f"{name}.py", (folder / "in", folder / "out")
    source.mkdir()
    for stem, image in pages.items():
        image.save(source / f"{stem}.png")

    def reply(body):
        if isinstance(body["messages"][-1]["content"], str):  # a client that asks whether anybody is there
            return 200, completion("yes")
        content = body["messages"][-1]["content"]
        prompt = next(part["text"] for part in content if part["type"] == "text")
        said = behave(prompt, size_in({"messages": [{"content": sorted(content, key=lambda part: part["type"])}]}))
        return 200, completion(*(said if isinstance(said, tuple) else (said,)))

    with standing_in(reply, [model]) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/v1"
        # the stand-in takes 4096 tokens of prompt and answer
        command = [sys.executable, recipe, source, out, "--endpoint", address, "--max-tokens", 2000, *words]
        ran = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})}
        )
        seen = [body for body in server.seen if not isinstance(body["messages"][-1]["content"], str)]
    assert ran.returncode == code, f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr[-4000:]}"
    texts = {path.stem: path.read_text() for path in out.glob("*.md")}
    blocks = {path.stem: json.loads(path.read_text())["blocks"] for path in out.glob("*.json")}
    return json.loads(ran.stdout.splitlines()[-1]), texts, blocks, seen
