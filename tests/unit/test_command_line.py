"""Options that every recipe has, as users of the public scripts type them; and what the card says of licences."""

import os
import sys

import pytest

from kit.recipes_import import recipe_options
from kit.seam import Stop
from tests.unit.recipe_file import load_recipe, options_of


@pytest.mark.parametrize("words", [["--hf-token=hf_secret"], ["--hf-token", "hf_secret"]])
def test_a_token_reaches_the_hub_and_no_message(monkeypatch, words):
    from huggingface_hub import get_token

    glm = load_recipe("glm-ocr")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(sys, "argv", ["glm-ocr.py", "a/b", "a/c", *words, "--verbose"])
    options = options_of(glm, *words)
    assert get_token() == "hf_secret" and "hf_secret" not in str(vars(options))
    assert glm.this_command() == "glm-ocr.py a/b a/c --verbose", "which can be typed again as it is"


def test_a_token_that_is_empty_changes_nothing(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_kept")
    monkeypatch.setattr(sys, "argv", ["glm-ocr.py", "a/b"])
    options_of(load_recipe("glm-ocr"), "--hf-token", "")
    assert os.environ["HF_TOKEN"] == "hf_kept" and sys.argv == ["glm-ocr.py", "a/b"]


@pytest.mark.parametrize(
    "name, listed, hidden",
    [
        ("paddleocr-vl-1.5", ["--max-tokens"], ["--max-model-len", "--endpoint", "--window"]),
        ("falcon-ocr", ["--max-tokens", "--max-model-len"], ["--endpoint", "--retries"]),
        ("tesseract-ocr", [], ["--max-tokens", "--max-model-len", "--endpoint"]),
        ("glm-ocr", ["--max-tokens", "--max-model-len", "--endpoint", "--window", "--retries"], []),
    ],
)
def test_help_lists_what_has_an_effect(name, listed, hidden):
    recipe = load_recipe(name)
    said = recipe.option_parser(recipe.RECIPE, getattr(recipe, "add_options", None)).format_help()
    assert [flag for flag in listed if flag not in said] == [flag for flag in hidden if flag in said] == []


def test_limit_is_max_samples():
    assert options_of(load_recipe("ovis-ocr2-saturate"), "--limit", 5).max_samples == 5


@pytest.mark.parametrize(
    "flag, value",
    [("--price-per-hour", -3), ("--price-per-hour", "nan"), ("--max-error-rate", "nan"), ("--retries", -1)],
)
def test_numbers_that_make_no_sense(flag, value):
    glm = load_recipe("glm-ocr")
    with pytest.raises(glm.Stop, match=flag):
        options_of(glm, flag, value)


@pytest.mark.parametrize(
    "name, says",
    [
        ("jina-ocr-v1", "no commercial use"),
        ("lfm2-extract", "limits commercial use"),
        ("lfm2-vl-extract", "limits commercial use"),
        ("lift-extract", r"under \$5M"),
        ("surya-ocr", r"under \$5M"),
        ("surya-ocr-bucket", r"under \$5M"),
        ("dots-ocr", "Built with dots.ocr"),
        ("dots-ocr-1.5", "Built with dots.ocr"),
        ("teleocr", "no commercial use"),
        ("monkeyocrv2", "non-commercial use"),
        ("mineru2.5", "AGPL-3.0"),
        ("hunyuan-ocr", "EU, the UK or South Korea"),
        ("hunyuan-ocr-1.5", "EU, the UK or South Korea"),
    ],
)
def test_limits_of_a_licence_are_on_the_card(name, says):
    import re

    assert re.search(says, load_recipe(name).RECIPE["licence"])


@pytest.mark.parametrize("name", ["lighton-ocr2-saturate", "ovis-ocr2-saturate", "xiaomi-ocr-0-saturate"])
def test_saturate_files_publish_what_their_users_know(name):
    columns = load_recipe(name).RECIPE["row_columns"]
    assert {"id", "model", "error", "prompt_tokens", "completion_tokens"} <= set(columns)


def test_a_recipe_used_by_a_tool_says_what_is_wrong_with_its_schema():
    with pytest.raises(Stop, match="no such file"):
        recipe_options(load_recipe("lift-extract"), ["--schema", "bill.json"])
