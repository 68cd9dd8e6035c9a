"""Surya OCR 2: what is asked in each task, pages in HTML, and reading again block by block."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from tests.unit.recipe_file import load_recipe, options_of

surya = load_recipe("surya-ocr")

FULL = "OCR this image to HTML. Each block is a div with data-label and data-bbox (x0 y0 x1 y1, normalized 0-1000)."
LAYOUT = (
    'Output the layout of this image as JSON. Each entry is a dict with "label", "bbox", and "count" fields. Bbox is '
    "x0 y0 x1 y1, normalized 0-1000."
)
BLOCK = "OCR this block image to HTML."
STRUCTURE = (
    'Output the table rows then columns as JSON. Each entry is a dict with "label" ("Row" or "Col") and "bbox" (x0 y0 '
    "x1 y1, normalized 0-1000)."
)
PAGE = """<div data-label="Section-Header" data-bbox="92 60 540 98"><h2>Births</h2></div>
<div data-label="Text" data-bbox="90 120 905 300"><p>In the year <math>x^2</math> <b data-bbox="1 2 3 4">he</b> a*b_c</p></div>
<div data-label="Table" data-bbox="90 320 905 600"><table><tr><th>No</th></tr></table></div>
<div data-label="Image" data-bbox="90 620 480 900"></div>
<div data-label="Stamp" data-bbox="500 620 900"><ul><li>one</li><li>two</li></ul></div>"""  # noqa: E501
LAYOUT_ANSWER = (
    '[{"label":"Text","bbox":"90 120 905 300","count":150},{"label":"Image","bbox":"90 620 480 900","count":0},'
    '{"label":"Table","bbox":"90 320 905 600","count":9000}]'
)


def inked(size=(1000, 1400)):
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for y in range(0, size[1], 12):
        draw.line((0, y, size[0], y), fill="black", width=3)
    return image


SHEET = surya.Page(inked(), 2000, 2800)
OPTIONS = {task: options_of(surya, "--task", task) for task in surya.RECIPE["tasks"]}


def said(text, *flags, logprobs=(-0.1, -0.3)):
    return surya.Answer(text, logprobs=list(logprobs), flags=flags)


def talk(answers, task="ocr", page=SHEET):
    """(bodies asked, Parsed) of a conversation in which these lists of answers are given."""
    reading, asked = surya.steps(surya.Unit("1", [page]), OPTIONS[task]), []
    asked.append(next(reading))
    try:
        for answer in answers:
            asked.append(reading.send(answer))
    except StopIteration as end:
        return asked, end.value
    raise AssertionError("asks on")


def prompt_of(body):
    image, text = body["messages"][0]["content"]
    assert image["type"] == "image"
    return text["text"]


@pytest.mark.parametrize(
    "task, prompt, most, guided",
    [
        ("ocr", FULL, 12288, False),
        ("layout", LAYOUT, 3072, True),
        ("table", BLOCK, 8192, False),
        ("table-structure", STRUCTURE, 3072, False),
    ],
)
def test_bodies(task, prompt, most, guided):
    options = OPTIONS[task]
    (body,) = next(surya.steps(surya.Unit("1", [SHEET]), options))
    whole = surya.complete(body, options, surya.RECIPE, surya.Unit("1", [SHEET]))
    assert prompt_of(whole) == prompt
    assert (whole["max_tokens"], whole["temperature"], whole["top_p"], whole["logprobs"]) == (most, 0.0, 0.1, True)
    assert ("structured_outputs" in whole) == guided


def test_the_public_recipes_own_flags():
    options = options_of(
        surya, "--task", "table", "--table-mode", "simple", "--pdf-column", "pdf", "--dtype", "float16"
    )
    (body,) = next(surya.steps(surya.Unit("1", [SHEET]), options))
    assert prompt_of(body) == STRUCTURE and options.image_column == "pdf"
    args = surya.engine_args(options, {**surya.RECIPE, **surya.check(options)})
    assert (
        args["dtype"] == "float16" and args["mm_processor_kwargs"] == surya.RECIPE["engine_args"]["mm_processor_kwargs"]
    )
    assert surya.engine_args(OPTIONS["ocr"], {**surya.RECIPE, **surya.check(OPTIONS["ocr"])})["dtype"] == "bfloat16"


def test_worst_case_fits():
    recipe = surya.RECIPE
    assert recipe["image"]["max_pixels"] / 32 / 32 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + len(LAYOUT) // 3 + 64 <= recipe["max_model_len"]


def test_a_whole_page():
    asked, result = talk([[said(PAGE)]])
    assert len(asked) == 1 and result.flags == []
    assert result.markdown == (
        "## Births\n\nIn the year $x^2$ **he** a*b_c\n\n<table><tr><th>No</th></tr></table>\n\n- one\n- two"
    )
    blocks = result.blocks["blocks"]
    assert [b["label"] for b in blocks] == ["heading", "text", "table", "picture", "other"]
    assert [b["bbox"] for b in blocks][::4] == [[184, 168, 1080, 274], None]
    assert blocks[2]["format"] == "html" and blocks[0]["content"] == "## Births"
    assert {b["confidence"] for b in blocks} == {0.8228}


@pytest.mark.parametrize(
    "first", [said(""), said("No blocks at all."), said("<div>"), said(PAGE, "looped"), said("the " * 900, "looped")]
)
def test_a_bad_page_is_read_block_by_block(first):
    asked, result = talk([[first], [said(LAYOUT_ANSWER)], [said("<p>In the year</p>"), said("```html\n<table><tr><td>1</td></tr></table>\n```")]])  # fmt: skip  # noqa: E501
    assert [list(map(prompt_of, bodies)) for bodies in asked] == [[FULL], [LAYOUT], [BLOCK, BLOCK]]
    assert [body["max_tokens"] for body in asked[2]] == [250, 8192]
    assert asked[2][0]["messages"][0]["content"][0]["image"].size == (823, 260)  # with 4 pixels around it
    assert result.markdown == "In the year\n\n<table><tr><td>1</td></tr></table>" and result.flags == ["by_block"]
    assert [answer.text for answer in result.answers[:2]] == [LAYOUT_ANSWER, "<p>In the year</p>"]
    assert len(result.answers) == 3, "a full page that looped is no part of the row, and its flag is none of the row's"


def test_where_no_layout_comes_either():
    assert talk([[said("Only words.")], [said("nothing")]])[1].flags == ["unparsed"]
    result = talk([[said(PAGE, "looped")], [said("[]")]])[1]
    assert result.markdown.startswith("## Births") and result.flags == []
    assert [answer.flags for answer in result.answers] == [("looped",)]


def test_a_blank_page():
    white = surya.Page(Image.new("RGB", (500, 700), "white"), 500, 700)
    asked, result = talk([[said("")]], page=white)
    assert (len(asked), result.markdown, result.flags) == (1, "", [])
    result = talk([[said(PAGE)]], page=white)[1]
    assert result.flags == ["blank_region"]
    # Text needs ink to be believed; a table, a picture and what is unknown may be pale or one solid colour.
    assert [block["raw_label"] for block in result.blocks["blocks"]] == ["Table", "Image", "Stamp"]


@pytest.mark.parametrize(
    "formula", ["a<b", "a &lt; b", "x < y > z", "<", "\\begin{matrix} a & b \\\\ c & d \\end{matrix}"]
)
def test_a_formula_is_no_markup(formula):
    page = f'<div data-label="Text" data-bbox="90 120 905 300"><p>If <math>{formula}</math> then</p></div>'
    wanted = formula.replace("&lt;", "<")
    assert talk([[said(page)]])[1].markdown == f"If ${wanted}$ then"
    table = f"<table><tr><td><math>{formula}</math></td></tr></table>"
    assert talk([[said(table)]], "table")[1].markdown.count("<") == 8


def test_layout_and_structure():
    result = talk([[said(LAYOUT_ANSWER)]], "layout")[1]
    assert result.markdown == "Text: 90 120 905 300\nImage: 90 620 480 900\nTable: 90 320 905 600"
    assert result.blocks["blocks"][0]["bbox"] == [180, 336, 1810, 840]
    cut = '[{"label":"Row","bbox":"0 0 1000 90"},{"label":"Col","bbox":"0 0 240 1000"},{"label":"Co'
    result = talk([[said(cut)]], "table-structure")[1]
    assert result.markdown == "1 rows x 1 columns" and result.flags == []
    assert talk([[said("words")]], "layout")[1].flags == ["unparsed"]
    assert talk([[said("[]")]], "layout")[1].flags == []


def test_a_table():
    result = talk([[said("```html\n<table><tr><td>1</td></tr></table>\n```")]], "table")[1]
    (block,) = result.blocks["blocks"]
    assert result.markdown == block["content"] == "<table><tr><td>1</td></tr></table>"
    assert block["bbox"] == [0, 0, 2000, 2800]


@given(st.text(max_size=60) | st.lists(st.sampled_from(PAGE.split(">"))).map(">".join))
def test_hostile_text(text):
    for block in surya.html_blocks(text):
        assert isinstance(surya.html_to_markdown(block["content"]), str)
    for value in (text, json.dumps([{"label": text, "bbox": text, "count": text}])):
        for block in surya.boxes_in_json(value):
            surya.crop(SHEET.image, block["bbox"])
