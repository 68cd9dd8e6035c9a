"""Nanonets-OCR-s: what is asked, and what becomes of the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

nanonets = load_recipe("nanonets-ocr")

PROMPT = (
    "Extract the text from the above document as if you were reading it naturally. Return the tables in html format. "
    "Return the equations in LaTeX representation. If there is an image in the document and image caption is not "
    "present, add a small description of the image inside the <img></img> tag; otherwise, add the image caption inside "
    "<img></img>. Watermarks should be wrapped in brackets. Ex: <watermark>OFFICIAL COPY</watermark>. Page numbers "
    "should be wrapped in brackets. Ex: <page_number>14</page_number> or <page_number>9/22</page_number>. Prefer using "
    "☐ and ☑ for check boxes."
)


@pytest.mark.parametrize("words, prompt", [((), PROMPT), (("--custom-prompt", "Who signed?"), "Who signed?")])
def test_body(words, prompt):
    options, page = options_of(nanonets, *words), page_of(nanonets)
    assert body_of(nanonets, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 15000,
        "temperature": 0.0,
    }


def test_worst_case_fits():
    recipe = nanonets.RECIPE
    assert recipe["image"]["max_pixels"] / 28 / 28 == recipe["image_tokens"]
    needed = recipe["image_tokens"] + recipe["max_tokens"] + len(PROMPT) // 3 + 64
    assert needed <= recipe["max_model_len"] <= recipe["context"]


ANSWER = """<watermark>SPECIMEN</watermark>

# Lease renewal

Rent grows as $r_t = r_0 (1+g)^t$.

<table><tr><th>Year</th><th>Rent</th></tr><tr><td>2021</td><td>900</td></tr></table>

☑ Heating included  ☐ Parking

<img>Floor plan of a two-room flat</img>

<page_number>3/7</page_number>"""


@pytest.mark.parametrize("text", [ANSWER, ANSWER[:130], "<table><tr>" + "<td>0</td>" * 3000, ""])
def test_parse_keeps_the_text_and_its_marks(text):
    result = nanonets.parse(nanonets.Answer(f"\n{text}\n"), page_of(nanonets), options_of(nanonets))
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, [])


@given(st.text())
def test_parse_never_raises(text):
    assert nanonets.parse(nanonets.Answer(text), None, None).markdown == text.strip()
