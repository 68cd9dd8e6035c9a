"""Both dialects of text with boxes: whole, cut off anywhere, and hostile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.grounding import det_spans, ref_parsed, ref_spans, spans_blocks, spans_markdown
from kit.seam import Page

REF = (
    "<|ref|>title<|/ref|><|det|>[[87, 52, 912, 96]]<|/det|>\n# Annual Report 1898\n\n"
    "<|ref|>text<|/ref|><|det|>[[88, 120, 910, 233]]<|/det|>\nThe society met on \\( 4^{th} \\) May.\n\n"
    "<|ref|>image<|/ref|><|det|>[[120, 260, 480, 520]]<|/det|>\n\n"
    "<|ref|>table<|/ref|><|det|>[[90, 560, 905, 800]]<|/det|>\n<table><tr><td>Year</td></tr></table>"
    "<｜end▁of▁sentence｜>"
)
DET = (
    "<|det|>header [122, 42, 262, 62]<|/det|>THE GAZETTE\n<|det|>title [101,80,890,131]<|/det|># Shipping News\n"
    "<|det|>text [98, 150, 480, 420]<|/det|>Arrived the brig <|ref|>\\(A\\)<|/ref|> from Cork…\n"
    "<|det|>image [500, 150, 900, 420]<|/det|>\n"
    "<|det|>table [98, 450, 900, 700]<|/det|><table><tr><td>Port</td></tr></table>\n"
    "<|det|>page_number [480, 960, 520, 980]<|/det|>12\n"
)


def test_ref_dialect():
    spans = ref_spans(REF)
    assert spans == [
        ("title", [[87, 52, 912, 96]], "# Annual Report 1898"),
        ("text", [[88, 120, 910, 233]], "The society met on \\( 4^{th} \\) May."),
        ("image", [[120, 260, 480, 520]], ""),
        ("table", [[90, 560, 905, 800]], "<table><tr><td>Year</td></tr></table>"),
    ]
    assert spans_markdown(spans) == (
        "# Annual Report 1898\n\nThe society met on \\( 4^{th} \\) May.\n\n<table><tr><td>Year</td></tr></table>"
    )
    blocks = spans_blocks(spans)
    assert [(b["label"], b["raw_label"], b["format"]) for b in blocks] == [
        ("title", "title", "markdown"),
        ("text", "text", "markdown"),
        ("picture", "image", "markdown"),
        ("table", "table", "html"),
    ]


def test_det_dialect():
    spans = det_spans(DET)
    assert [label for label, _, _ in spans] == ["header", "title", "text", "image", "table", "page_number"]
    assert spans[1] == ("title", [[101, 80, 890, 131]], "# Shipping News")
    assert spans_markdown(spans) == (
        "THE GAZETTE\n\n# Shipping News\n\nArrived the brig \\(A\\) from Cork…\n\n"
        "<table><tr><td>Port</td></tr></table>\n\n12"
    )


@pytest.mark.parametrize(
    "text, spans",
    [
        ("", []),
        ("plain\n", [(None, [], "plain")]),
        ("so: <|ref|>text<|/ref|>a", [(None, [], "so:"), ("text", [], "a")]),
        ("<|ref|>a<|/ref|><|det|>[[1,2,3,4], [5, 6, 7.5, 8]]<|/det|>b", [("a", [[1, 2, 3, 4], [5, 6, 7.5, 8]], "b")]),
        ("<|ref|>a<|/ref|><|det|>[[1, 2, 3]]<|/det|>b", [("a", [], "b")]),
        ("<|ref|>a<|/ref|><|det|>[[1, 2, 3, 4]]\nb", [("a", [[1, 2, 3, 4]], "b")]),  # det not closed
        ("<|ref|>a<|/ref|><|det|>__import__('os')<|/det|>b", [("a", [], "b")]),
        ("<|ref|>a b\nc", [(None, [], "a b\nc")]),  # never closed: text
        ("x<|ref|>tab", [(None, [], "x")]),  # half a label
        ("<|ref|>a<|/ref|><|det|>[[1, 2, 3", [("a", [], "")]),
    ],
)
def test_ref_dialect_broken(text, spans):
    assert ref_spans(text) == spans


@pytest.mark.parametrize(
    "text, spans",
    [
        ("plain", [(None, [], "plain")]),
        ("<|det|>table caption [1, 2, 3, 4]<|/det|>a", [("table caption", [[1, 2, 3, 4]], "a")]),
        ("<|det|>text [1, 2, 3, 4]a", [("text", [[1, 2, 3, 4]], "a")]),
        ("a<|det|>tex", [(None, [], "a")]),
        ("a<|det|>text [12, 3", [(None, [], "a"), ("text", [], "")]),
        ("<|det|>not closed at all", [(None, [], "not closed at all")]),
        ("<|det|>[1, 2, 3, 4]<|/det|>a", [(None, [[1, 2, 3, 4]], "a")]),
    ],
)
def test_det_dialect_broken(text, spans):
    assert det_spans(text) == spans


@pytest.mark.parametrize("read, text", [(ref_spans, REF), (det_spans, DET)])
def test_cut_off_anywhere(read, text):
    """Whole spans are as in the whole text, and no piece of a tag gets into the Markdown."""
    whole = read(text)
    for length in range(len(text)):
        spans = read(text[:length])
        assert spans[:-2] == whole[: max(len(spans) - 2, 0)]
        if not text[:length].rpartition("<|")[2].isalpha():
            assert "|>" not in spans_markdown(spans)


def test_several_boxes_and_unknown_labels():
    blocks = spans_blocks([("Stamp", [[1, 2, 3, 4], [5, 6, 7, 8]], "PAID"), ("odd", [], "")])
    assert [(b["label"], b["raw_label"], b["bbox"], b["content"]) for b in blocks] == [
        ("other", "Stamp", [1, 2, 3, 4], "PAID"),
        ("other", "Stamp", [5, 6, 7, 8], ""),
    ]


PIECES = [
    "<|ref|>",
    "<|/ref|>",
    "<|det|>",
    "<|/det|>",
    "[[1, 2, 3, 4]]",
    "[9, 9",
    "text",
    " ",
    "\n",
    "1",
    "[]",
    "Ω",
    "|>",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text())
def test_hostile(text):
    for read in (ref_spans, det_spans):
        spans = read(text)
        assert isinstance(spans_markdown(spans), str) and len(spans_blocks(spans)) <= len(text)


@pytest.mark.parametrize(
    "text, markdown, blocks",
    [
        ("<|ref|>PAID<|/ref|><|det|>[[0, 0, 9, 9]]<|/det|>", "PAID", [("text", "text")]),
        # A label after all: it stays beside the text.
        ("<|ref|>stamp<|/ref|><|det|>[[0, 0, 9, 9]]<|/det|>\nPAID", "PAID", [("other", "stamp")]),
        ("<|ref|>A<|/ref|><|det|>[[0, 0, 9, 9]]<|/det|>\n<|ref|>Cut", "A\n\nCut", [("text", "text")] * 2),
    ],
)
def test_tags_that_hold_the_text(text, markdown, blocks):
    parsed = ref_parsed(text, Page(None, 999, 999), asked=True, said_in_tags=True)
    assert (parsed.markdown, parsed.flags) == (markdown, [])
    assert [(block["label"], block["raw_label"]) for block in parsed.blocks["blocks"]] == blocks
