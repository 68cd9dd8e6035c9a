"""Nanonets-OCR2: what is asked, how the server is started, and what becomes of the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import OCR, body_of, load_recipe, options_of, page_of

nanonets = load_recipe("nanonets-ocr2")

GENERAL = (
    "Extract the text from the above document as if you were reading it naturally. Return the tables in html format. "
    "Return the equations in LaTeX representation. If there is an image in the document and image caption is not "
    "present, add a small description of the image inside the <img></img> tag; otherwise, add the image caption inside "
    "<img></img>. Watermarks should be wrapped in brackets. Ex: <watermark>OFFICIAL COPY</watermark>. Page numbers "
    "should be wrapped in brackets. Ex: <page_number>14</page_number> or <page_number>9/22</page_number>. Prefer using "
    "☐ and ☑ for check boxes."
)
FINANCIAL = GENERAL.replace("html", "HTML") + " Only return HTML table within <table></table>."


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), GENERAL),
        (("--prompt-mode", "financial"), FINANCIAL),
        (("--custom-prompt", "Who signed?"), "Who signed?"),
        (("--task", "financial", "--custom-prompt", "Who signed?"), "Who signed?"),
    ],
)
def test_body(words, prompt):
    options, page = options_of(nanonets, *words), page_of(nanonets)
    assert body_of(nanonets, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 15000,
        "temperature": 0.0,
        "repetition_penalty": 1.0,
    }


def test_worst_case_fits():
    recipe = nanonets.RECIPE
    longest = max(map(len, recipe["tasks"].values()))
    assert recipe["image"]["max_pixels"] / 28 / 28 == recipe["image_tokens"]
    needed = recipe["image_tokens"] + recipe["max_tokens"] + longest // 3
    assert needed <= recipe["max_model_len"] <= recipe["context"]


def test_the_server_runs_in_the_image_and_the_script_does_not(monkeypatch):
    header = (OCR / "nanonets-ocr2.py").read_text().partition("# ///\n")[0]
    assert 'image = "vllm/vllm-openai:v0.10.2"' in header
    assert "PYTHONPATH =" not in header and "python =" not in header.replace("requires-python =", "")
    monkeypatch.setenv("PYTHONPATH", "/packages/of/the/script")
    monkeypatch.setenv("VIRTUAL_ENV", "/of/the/script")
    assert nanonets.RECIPE["server_python"] == "/usr/bin/python3"
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & set(nanonets.server_environment(nanonets.RECIPE))


def test_without_the_image_the_message_names_the_server_to_start():
    recipe = {**nanonets.RECIPE, "server_python": "/no/such/python"}
    with pytest.raises(nanonets.Stop) as stop:
        nanonets.check_version(recipe)
    assert "vllm/vllm-openai:v0.10.2 serve nanonets/Nanonets-OCR2-3B --max-model-len 32768" in str(stop.value)
    assert "--endpoint http://localhost:8000/v1" in str(stop.value) and "--with vllm" not in str(stop.value)


ANSWER = """<watermark>SPECIMEN</watermark>

# Lease renewal

<table><tr><th>Year</th><th>Rent</th></tr><tr><td>2021</td><td>900</td></tr></table>

☑ Heating included  ☐ Parking

```mermaid
flowchart TD
    A[Start] --> B{Paid?}
```

<signature>M. Orlow</signature>

<page_number>3/7</page_number>"""


@pytest.mark.parametrize("text", [ANSWER, ANSWER[:200], "<table><tr>" + "<td>0</td>" * 3000, "Not mentioned.", ""])
def test_parse_keeps_the_text_and_its_marks(text):
    result = nanonets.parse(nanonets.Answer(f"\n{text}\n"), page_of(nanonets), options_of(nanonets))
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, [])


def test_the_broken_decode_is_flagged():
    assert nanonets.flags_of("!" * 15000, "length") == ["truncated", "degenerate"]


@given(st.text())
def test_parse_never_raises(text):
    assert nanonets.parse(nanonets.Answer(text), None, None).markdown == text.strip()
