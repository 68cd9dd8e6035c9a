"""OvisOCR2: what is asked, what becomes of picture tags, and repetition at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.repeats import trim_repeats
from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

ovis = load_recipe("ovis-ocr2")

PROMPT = (
    "\nExtract all readable content from the image in natural human reading order and output the result as a single "
    "Markdown document. For charts or images, represent them using an HTML image tag: "
    '<img src="images/bbox_{left}_{top}_{right}_{bottom}.jpg" />, where left, top, right, bottom are bounding box '
    "coordinates scaled to [0, 1000). Format formulas as LaTeX. Format tables as HTML: <table>...</table>. Transcribe "
    "all other text as standard Markdown. Preserve the original text without translation or paraphrasing."
)
MINUTES = """# Annual Meeting

The members resolved that $E=mc^2$ be struck from the minutes.

<img src="images/bbox_102_315_486_702.jpg" />

<table><tr><td colspan="2">Accounts</td></tr><tr><td>Dues</td><td>£12</td></tr></table>"""


SHEET, OPTIONS = ovis.Page(None, 2000, 1000), options_of(ovis)


def read(text, *words):
    return ovis.parse(ovis.Answer(text), SHEET, options_of(ovis, *words) if words else OPTIONS)


@pytest.mark.parametrize(
    "words, bounds",
    [((), (200704, 8294400)), (("--min-pixels", 1000, "--max-pixels", 500_000), (1000, 500_000))],
)
def test_body(words, bounds):
    options = options_of(ovis, *words)
    page = page_of(ovis, options=options)
    assert body_of(ovis, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": PROMPT}]}
        ],
        "max_tokens": 16384,
        "temperature": 0.0,
    }
    assert page.image.width * page.image.height <= bounds[1]
    recipe = {**ovis.RECIPE, **ovis.check(options)}
    assert recipe["image_tokens"] == bounds[1] // 1024
    args = ovis.engine_args(options, recipe)
    kwargs = {"images_kwargs": {"min_pixels": bounds[0], "max_pixels": bounds[1]}}
    assert args["mm_processor_kwargs"] == kwargs and args["gdn_prefill_backend"] == "triton"
    assert ovis.chat_arguments(ovis.RECIPE)["chat_template_kwargs"] == {"enable_thinking": False}


def test_bounds_that_cross_stop():
    with pytest.raises(ovis.Stop, match="--max-pixels 100"):
        ovis.check(options_of(ovis, "--max-pixels", 100))


def test_worst_case_fits():
    recipe = ovis.RECIPE
    assert recipe["image"]["max_pixels"] / 32 / 32 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + len(PROMPT) // 3 < recipe["max_model_len"]


def test_pictures_leave_the_markdown_and_become_boxes():
    result = read("\n" + MINUTES + "\n")
    assert result.markdown == MINUTES.replace('<img src="images/bbox_102_315_486_702.jpg" />\n\n', "")
    (block,) = result.blocks["blocks"]
    assert (block["label"], block["bbox"]) == ("picture", [204, 315, 972, 702]) and result.flags == []
    assert read(MINUTES, "--keep-image-tags").markdown == MINUTES


@pytest.mark.parametrize(
    "text, markdown, boxes",
    [
        ("", "", []),
        ('<img src="images/bbox_0_0_999_999.jpg" />', "", [[0, 0, 1998, 999]]),
        ('a <img src="images/bbox_1_2_3_4.jpg" /> b', 'a <img src="images/bbox_1_2_3_4.jpg" /> b', [[2, 2, 6, 4]]),
        ('<img src="images/bbox_9_9_9_9.jpg" />\n\nkept', "kept", [None]),
        ('kept\n\n<img src="images/bbox_10_', "kept", []),  # cut off
        ('<img src="images/bbox_1_2_3_4.jpg" />\nFig. 1: the quay', "Fig. 1: the quay", [[2, 2, 6, 4]]),
        ('<img src="images/bbox_1_2_3_4.jpg" /> <img src="images/bbox_1_2_3_4.jpg" />', "", [[2, 2, 6, 4]] * 2),
        ('<img src="images/bbox_1_2_3_4.jpg\nFig. 1: the quay', "Fig. 1: the quay", [[2, 2, 6, 4]]),
        ('<img src="logo.png">', '<img src="logo.png">', []),
    ],
)
def test_tags_of_all_kinds(text, markdown, boxes):
    result = read(text)
    assert result.markdown == markdown and [b["bbox"] for b in result.blocks["blocks"]] == boxes


def test_a_loop_is_cut_and_flagged():
    head = " ".join(map(str, range(2000)))
    result = read(head + "Amen, amen. " * 400)
    assert result.markdown == head + "Amen, amen. Amen, amen." and result.flags == ["trimmed"]
    short = "Amen, amen. " * 500  # 6,000 characters: the card's code leaves it
    assert read(short).markdown == short.strip() and read(short).flags == []


@pytest.mark.parametrize("unit, rest", [("x", ""), ("ab", "a"), ("<td></td>", "<td>"), ("y" * 199 + "z", "y")])
def test_trim_keeps_one_round_and_a_started_one(unit, rest):
    head = "".join(map(chr, range(0x4E00, 0x4E00 + 8000)))
    assert trim_repeats(head + unit * 120 + rest) == head + unit + rest


def test_trim_leaves_what_is_too_short_too_long_or_too_few():
    head = "".join(map(chr, range(0x4E00, 0x4E00 + 8000)))
    for tail in ("." * 99, "".join(map(chr, range(33, 133))) * 4, "".join(map(chr, range(0x100, 0x1C9))) * 9):
        assert trim_repeats(head + tail) == head + tail


@given(st.text(alphabet='<img src="images/bbox_0123456789.jp/>\n', max_size=200) | st.text())
def test_parse_never_raises(text):
    result = read(text)
    assert isinstance(result.markdown, str) and result.flags == []
