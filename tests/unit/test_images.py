"""The build files in images/: what they stand on is pinned, and they hold what the recipes look for."""

import re

import pytest

from tests.unit.recipe_file import OCR, load_recipe

FOLDERS = sorted((OCR.parent / "images").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_everything_is_pinned(folder):
    text, readme = (folder / "Dockerfile").read_text(), (folder / "README.md").read_text()
    asked = re.findall(r"(?m)^ARG (\w+)$", text)
    assert re.findall(r"(?m)^ARG .*=", text) == [], "a default that is not a digest or a checksum"
    for base in re.findall(r"(?m)^FROM (\S+)", text):
        assert re.search(r"@(sha256:[0-9a-f]{64}|\$\{\w+_DIGEST\})$", base), base
    for package in re.findall(r"printf '(\S+==\S+) --hash=(\S+)", text):
        assert re.fullmatch(r"sha256:[0-9a-f]{64}\\n'?", package[1]), package
    for name in asked:
        assert f"| `{name}` |" in readme, f"the README does not say where {name} comes from"
    for section in ("Why it exists.", "How it is built.", "How to update it."):
        assert f"**{section}**" in readme
    assert text.count("curl") == text.count("_SHA256}  /tmp/layout.tar")


def test_the_recipes_find_what_the_images_hold():
    hpd, mini = ((folder / "Dockerfile").read_text() for folder in FOLDERS)
    assert f"test -x {load_recipe('hpd-parsing-saturate').VENV}/vllm" in hpd
    recipe = load_recipe("minicpm-ocr")
    options = recipe.option_parser(recipe.RECIPE, recipe.add_options).parse_args(["in", "out"])
    assert f"/opt/models/{options.layout_model.rpartition('/')[2]}/" in mini
    assert "uv venv --seed --python 3.12 /opt/sdk" in mini and options.sdk_python == "/opt/sdk/bin/python"
    assert f"vllm/vllm-openai:v{recipe.RECIPE['vllm']['min']}" in mini
