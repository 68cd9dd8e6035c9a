"""SERVING.md: its commands are those that the recipes start, and can be pasted into a shell."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.serve import server_command
from tests.unit.recipe_file import load_recipe, options_of
from tools.sync import serving_commands

TEXT = (Path(__file__).resolve().parents[2] / "SERVING.md").read_text()
COMMANDS = re.findall(r"^    # ([^\n:]+)(?:: (\S+))?\n((?:    (?! *#).*\n)+)", TEXT, re.MULTILINE)


def test_there_are_commands():
    assert len(COMMANDS) > 20 and len({command for _, _, command in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("name", ["glm-ocr", "unlimited-ocr-vllm", "unlimited-ocr2", "surya-ocr"])
def test_a_command_is_what_the_recipe_starts(name):
    (words,) = [shlex.split(text.replace("\\\n", " ")) for names, _, text in COMMANDS if name in names.split(", ")]
    recipe = load_recipe(name).RECIPE
    options = SimpleNamespace(**{"gpu_memory_utilization": None, **recipe, "max_tokens": 1, "server_args": []})
    started = server_command(options, recipe, 8000)
    words = [word for word in words if "=" not in word]
    if "server_command" in recipe:
        assert words[1:] == started
        return
    machine = {"--served-model-name", "--host", "--port", "--data-parallel-size", "--api-server-count"}
    assert words[words.index("serve") :] == without(started[started.index("serve") :], machine)


@pytest.mark.parametrize("name", ["hpd-parsing-saturate", "monkeyocrv2", "teleocr"])
def test_a_command_that_a_recipe_makes_when_it_starts(name):
    (words,) = [shlex.split(text.replace("\\\n", " ")) for names, _, text in COMMANDS if name in names.split(", ")]
    settings = {f"{key}={value}" for key, value in load_recipe(name).RECIPE.get("environment", {}).items()}
    assert [word for word in words if word not in settings] == own_command(name) and settings <= set(words)


def own_command(name):
    """The words that the recipe starts, with folders beside the reader in the place of its caches."""
    recipe, started = load_recipe(name), []
    options = options_of(recipe)
    if name == "hpd-parsing-saturate":
        words = recipe.fork_command(options, recipe.RECIPE, "HPD-Parsing")
    elif name == "monkeyocrv2":
        folder = Path(f"MonkeyOCRv2-{recipe.COMMIT}")
        words = ["python3", *recipe.monkey_command(options, recipe.RECIPE, folder, "MonkeyOCRv2-S-Parsing")[1:]]
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipe, "serve", lambda units, talk, options, table, stop: started.append(table) or [])
            list(recipe.serve_plugin(None, None, options, recipe.RECIPE, None))
        words = started[0]["server_command"]
    return without(words, {"--host", "--port"})


def without(words, flags):
    """The words without these flags and the values behind them, and without a content format of "auto"."""
    places = [n for n, word in enumerate(words) if word in flags or words[n + 1 : n + 2] == ["auto"]]
    return [word for n, word in enumerate(words) if n not in places and n - 1 not in places]


def test_recipes_of_one_server_share_a_command():
    part = '"""x"""\nRECIPE = {{"name": "{}", "engine": "vllm", "model": "a/b", "max_model_len": {}}}\n'
    entries = [
        {"name": name, "image": image} for name, image in (("x", "i:1"), ("y", "i:1"), ("z", None), ("gone", "i"))
    ]
    texts = {f"ocr/{name}.py": part.format(name, size) for name, size in (("x", 9), ("y", 9), ("z", 9))}
    blocks = serving_commands(entries, texts).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["    # x, y: i:1", "    # z"]
    assert "vllm serve a/b" in blocks[1] and "--max-model-len 9" in blocks[1]
