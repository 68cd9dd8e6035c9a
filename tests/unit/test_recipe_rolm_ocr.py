"""RolmOCR: what is asked, and what becomes of the answer."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

rolm = load_recipe("rolm-ocr")

PROMPT = "Return the plain text representation of this document as if you were reading it naturally.\n"


def test_body():
    page = page_of(rolm)
    assert body_of(rolm, page, options_of(rolm)) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": PROMPT}]}
        ],
        "max_tokens": 4096,
        "temperature": 0.2,
    }


def test_worst_case_fits():
    recipe = rolm.RECIPE
    assert recipe["image"]["max_pixels"] / 28 / 28 == recipe["image_tokens"]
    assert recipe["engine_args"]["mm_processor_kwargs"]["max_pixels"] == recipe["image"]["max_pixels"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + len(PROMPT) // 3 + 64 <= recipe["max_model_len"]
    image = page_of(rolm, (6000, 8000)).image
    assert image.width * image.height <= recipe["image"]["max_pixels"]


@pytest.mark.parametrize("text", ["Minutes of 3 May\nPresent: Lund, Aro", "| a | b |\n|---|", "", "a " * 5000])
def test_parse_keeps_the_text(text):
    result = rolm.parse(rolm.Answer(f"\n{text}\n"), page_of(rolm), options_of(rolm))
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, [])
