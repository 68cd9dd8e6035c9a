"""ABot-OCR: what is asked, and answers that end in repetition."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of
from tests.unit.test_recipe_firered_ocr import CLEAN, UPSTREAM

abot = load_recipe("abot-ocr")


@pytest.mark.parametrize("words, prompt", [((), UPSTREAM), (("--prompt-style", "clean"), CLEAN)])
def test_body(words, prompt):
    options, page = options_of(abot, *words), page_of(abot)
    assert body_of(abot, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 8192,
        "temperature": 0.0,
    }


def test_worst_case_fits():
    recipe = abot.RECIPE
    assert recipe["image"]["max_pixels"] / 32 / 32 == recipe["image_tokens"]
    needed = recipe["image_tokens"] + recipe["max_tokens"] + len(UPSTREAM) // 3 + 64
    assert needed <= recipe["max_model_len"] <= recipe["context"]


ANSWER = "## Yield\n\nLoss is \\( L = a/b \\).\n\n<table><tr><td>A</td></tr></table>"
ROW = "<tr><td>1871</td><td>204</td></tr>"


def parsed(text, *words):
    result = abot.parse(abot.Answer(f"\n{text}\n"), page_of(abot), options_of(abot, *words))
    return result.markdown, result.flags


@pytest.mark.parametrize("text", [ANSWER, ANSWER[:-20], ANSWER + ROW * 100, "", " ".join(map(str, range(4000)))])
def test_parse_keeps_the_text(text):
    assert parsed(text) == (text, [])


def test_a_long_repetition_is_cut_and_told():
    text = ANSWER + "\n" + ROW * 400
    assert parsed(text) == (ANSWER + "\n" + ROW, ["trimmed"])
    assert parsed(text, "--no-clean-output") == (text, [])
