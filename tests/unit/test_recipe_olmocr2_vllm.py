"""olmOCR-2: what is asked, front matter whole and broken, and pages that lie on their side."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

olmocr = load_recipe("olmocr2-vllm")

PROMPT = (
    "Attached is one page of a document that you must process. Just return the plain text representation of this "
    "document as if you were reading it naturally. Convert equations to LateX and tables to HTML.\n"
    "If there are any figures or charts, label them with the following markdown syntax ![Alt text describing the "
    "contents of the figure](page_startx_starty_width_height.png)\n"
    "Return your output as markdown, with a front matter section on top specifying values for the primary_language, "
    "is_rotation_valid, rotation_correction, is_table, and is_diagram parameters."
)
TEXT = "# Mühlenordnung\n\nDie Abgabe beträgt \\( \\frac{1}{16} \\).\n\n---\n\n![Mill](page_112_340_610_420.png)"


def said(language="de", upright="True", turn=0, text=TEXT, table="False"):
    return (
        f"---\nprimary_language: {language}\nis_rotation_valid: {upright}\nrotation_correction: {turn}\n"
        f"is_table: {table}\nis_diagram: False\n---" + (f"\n{text}" if text else "")
    )


OPTIONS = options_of(olmocr)
COLUMNS = olmocr.check(OPTIONS)["columns"]


def parsed(text):
    return olmocr.parse(olmocr.Answer(text), None, OPTIONS)


# ---- Requests


def test_body_has_the_text_before_the_image():
    options, page = options_of(olmocr), page_of(olmocr)
    assert body_of(olmocr, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": PROMPT}, {"type": "image", "image": page.image}]}
        ],
        "max_tokens": 8000,
        "temperature": 0.1,
    }


@pytest.mark.parametrize(
    "words, size, sent",
    [
        ((), (1754, 2480), (910, 1288)),
        ((), (644, 322), (1288, 644)),  # enlarged, as upstream renders every page at this size
        ((), (3, 1), (1288, 429)),
        (("--target-longest-image-dim", 1024), (2048, 1024), (1024, 512)),
    ],
)
def test_longest_side(words, size, sent):
    options = options_of(olmocr, *words)
    page = page_of(olmocr, size, options)
    image = body_of(olmocr, page, options)["messages"][0]["content"][1]["image"]
    assert image.size == sent and (page.width, page.height) == size


def test_worst_case_fits():
    recipe = olmocr.RECIPE
    assert recipe["image"]["max_side"] ** 2 / 28 / 28 <= recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + len(PROMPT) // 3 + 64 <= recipe["max_model_len"]


@pytest.mark.parametrize("text", [said(), said("null", text=""), said("en", "false", 270, "\n")])
def test_guided_decoding_allows_what_parse_reads(text):
    body = body_of(olmocr, page_of(olmocr), options_of(olmocr, "--guided-decoding"))
    regex = body["structured_outputs"]["regex"]
    assert re.fullmatch(regex, text) and not re.fullmatch(regex, "# Title\n" + text)
    assert parsed(text).flags == []


# ---- Answers


def test_front_matter_becomes_columns():
    result = parsed(said("de", "True", 0, table="True") + "\n")
    assert result.markdown == TEXT and result.flags == [] and result.blocks is None
    assert result.columns == {
        "primary_language": "de",
        "is_rotation_valid": True,
        "rotation_correction": 0,
        "is_table": True,
        "is_diagram": False,
        "markdown_metadata": '{"primary_language": "de", "is_rotation_valid": "True", "rotation_correction": "0", '
        '"is_table": "True", "is_diagram": "False"}',
    }
    assert set(result.columns) | {"rotation"} == set(COLUMNS) and COLUMNS["markdown_metadata"] == "string"


def test_blank_page_and_norwegian():
    blank = parsed(said("null", text=""))
    assert (blank.markdown, blank.flags, blank.columns["primary_language"]) == ("", [], None)
    assert parsed(said("no", "false")).columns["primary_language"] == "no"


@pytest.mark.parametrize(
    "text, markdown",
    [
        ("# Only text", "# Only text"),
        ("", ""),
        ("---\nprimary_language: en\nis_rotation_va", "---\nprimary_language: en\nis_rotation_va"),
        ("---\nprimary_language: en\n---\nText", "Text"),
        ("---\n---\nText", "Text"),
        ("---\nAmen.\n---\nText", "---\nAmen.\n---\nText"),  # rules around text
        (said(turn=45), TEXT),
        (said(upright="perhaps"), TEXT),
        ("Text\n" + said(), "Text\n" + said()),
    ],
)
def test_broken_front_matter_is_asked_again(text, markdown):
    result = parsed(text)
    assert (result.markdown, result.flags) == (markdown, ["unparsed"])


@given(st.text(alphabet="-\n: ab0") | st.text())
def test_parse_never_raises(text):
    result = parsed(text)
    assert result.markdown in text and set(result.columns) | {"rotation"} == set(COLUMNS)


def test_what_no_column_can_hold_stays_in_the_metadata():
    columns = parsed(said(turn=45)).columns
    assert columns["rotation_correction"] is None and '"rotation_correction": "45"' in columns["markdown_metadata"]
    assert parsed("# Only text").columns["markdown_metadata"] is None


# ---- Pages on their side


def upright_page():
    image = Image.new("RGB", (1000, 1288), "white")
    image.paste("black", (0, 0, 1000, 90))  # a heading
    return image


def turn_of(image):
    """Degrees counter-clockwise by which this picture of `upright_page` has to be turned."""
    small = image.convert("L").resize((9, 9))
    return next(
        degrees
        for degrees in (0, 90, 180, 270)
        if small.rotate(degrees).getpixel((4, 0)) < 128 < small.rotate(degrees).getpixel((4, 8))
    )


def read(image, reader, *words):
    """`steps` against a model that `reader(image)` stands for: (Parsed, number of requests)."""
    page = olmocr.Page(image, *image.size)
    reading, asked = olmocr.steps(olmocr.Unit("page", [page]), options_of(olmocr, *words)), 0
    bodies = next(reading)
    while True:
        asked += 1
        (body,) = bodies
        try:
            bodies = reading.send([olmocr.Answer(reader(body["messages"][0]["content"][1]["image"]))])
        except StopIteration as stop:
            return stop.value, asked


def sees_well(image):
    turn = turn_of(image)
    return said("de", not turn, turn, TEXT if not turn else "eppur si muove")


@pytest.mark.parametrize("lying", [0, 90, 180, 270])
def test_turned_until_upright(lying):
    result, asked = read(upright_page().rotate(lying, expand=True), sees_well)
    assert (result.markdown, result.flags, asked) == (TEXT, [], 2 if lying else 1)
    assert result.columns["rotation"] == (360 - lying) % 360
    assert result.columns["is_rotation_valid"] is True and result.columns["rotation_correction"] == 0


def test_turns_add_up():
    answers = iter([said(upright=False, turn=90), said(upright=False, turn=90), said()])
    result, asked = read(upright_page(), lambda image: next(answers))
    assert (result.columns["rotation"], asked, result.flags) == (180, 3, [])
    assert [answer.text for answer in result.answers] == [said()], "the readings of a lying page are none of the row's"


@pytest.mark.parametrize("turn, asked", [(0, 1), (90, 4), (180, 2), (270, 4), (45, 1)])
def test_a_model_that_is_never_content_ends(turn, asked):
    result, times = read(upright_page(), lambda image: said(upright=False, turn=turn))
    assert times == asked and "rotated" in result.flags and result.markdown == TEXT


def test_turning_can_be_left_out():
    result, asked = read(upright_page().rotate(90, expand=True), sees_well, "--no-fix-rotation")
    assert (asked, result.columns["rotation"], result.flags) == (1, 0, ["rotated"])
