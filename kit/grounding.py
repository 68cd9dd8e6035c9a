"""Text with boxes as DeepSeek-OCR and Unlimited-OCR write it: readers of both dialects, their Markdown and blocks."""

import re

from kit.blocks import blocks_document
from kit.seam import Parsed

# An open vocabulary: what is not here becomes "other" and keeps its word in `raw_label`.
GROUNDING_LABELS = {
    "title": "title", "doc_title": "title", "sub_title": "heading", "paragraph_title": "heading",
    "section_title": "heading", "text": "text", "paragraph": "text", "aside_text": "text", "list": "list",
    "table": "table", "image": "picture", "figure": "picture", "picture": "picture", "chart": "picture",
    "caption": "caption", "image_caption": "caption", "figure_caption": "caption", "table_caption": "caption",
    "chart_caption": "caption", "figure_title": "caption", "table_title": "caption", "image_title": "caption",
    "equation": "formula", "formula": "formula", "display_formula": "formula", "code": "code", "algorithm": "code",
    "code_block": "code", "header": "header", "page_header": "header", "footer": "footer", "page_footer": "footer",
    "page_number": "page_number", "footnote": "footnote", "page_footnote": "footnote", "table_footnote": "footnote",
    "image_footnote": "footnote", "toc": "toc", "table_of_contents": "toc", "reference": "reference",
    "ref_text": "reference", "seal": "seal", "form": "form",
}  # fmt: skip
BOX = re.compile(r"\[\s*(-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+(?:\.\d+)?){3})\s*\]")
END_TOKEN = "<｜end▁of▁sentence｜>"


def ref_spans(text):
    """Spans of DeepSeek-OCR's dialect, `<|ref|>label<|/ref|><|det|>[[x0, y0, x1, y1], ...]<|/det|>text`.

    A span is (label, boxes, text): boxes of 4 numbers, maybe none; label None for text outside of spans. A span that
    is broken or cut off keeps what is whole.
    """
    before, *pieces = text.replace(END_TOKEN, "").split("<|ref|>")
    spans = [(None, [], before)]
    for piece in pieces:
        label, closed, rest = piece.partition("<|/ref|>")
        if not closed:
            spans.append((None, [], "" if piece.strip().isidentifier() else piece))
            continue
        det = re.match(r"\s*<\|det\|>(?:(.*?)<\|/det\|>|[\s\d.,\[\]-]*)", rest, re.DOTALL)
        inside = det[0] if det else ""
        spans.append((label.strip(), boxes_in(inside), rest[len(inside) :]))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def det_spans(text):
    """Spans, as of `ref_spans`, of Unlimited-OCR's dialect, `<|det|>label [x0, y0, x1, y1]<|/det|>text`."""
    before, *pieces = re.sub(r"<\|/?ref\|>", "", text.replace(END_TOKEN, "")).split("<|det|>")
    spans = [(None, [], before)]
    for piece in pieces:
        inside, closed, after = piece.partition("<|/det|>")
        if not closed:
            inside = re.match(r"[\w ]*\[[\d\s.,-]*\]?|", piece)[0]
            after = "" if piece.strip().isidentifier() else piece[len(inside) :]
        spans.append((inside.partition("[")[0].strip() or None, boxes_in(inside), after))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def boxes_in(text):
    return [[float(number) for number in found.split(",")] for found in BOX.findall(text)]


def spans_markdown(spans):
    """The text of all spans in their order; pictures have none, they are in the blocks."""
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(text for _, _, text in spans if text))


def spans_blocks(spans):
    """Blocks for `blocks_document` with the size (999, 999): one per box. Of several boxes the first has the text."""
    blocks = []
    for label, boxes, text in spans:
        kind = GROUNDING_LABELS.get((label or "text").lower().replace(" ", "_"), "other")
        form = "html" if text.startswith("<table") else "latex" if kind == "formula" else "markdown"
        for place, box in enumerate(boxes or ([None] if text else [])):
            blocks.append(
                {
                    "bbox": box,
                    "label": kind,
                    "raw_label": label or "text",
                    "format": form,
                    "content": "" if place else text,
                }
            )
    return blocks


def ref_parsed(text, page, asked, said_in_tags=False):
    r"""Parsed of an answer in DeepSeek-OCR's dialect, as upstream's scripts make it: tags gone, `\coloneqq` and
    `\eqqcolon` as `:=` and `=:`; "unparsed" where boxes were `asked` for and none came.

    With `said_in_tags` the tagged words are the text itself, unless a text follows them; then they are a label.
    """
    if said_in_tags and text.rfind("<|/ref|>") < text.rfind("<|ref|>"):
        text += "<|/ref|>"  # cut off within the text
    spans = ref_spans(text.replace("\\coloneqq", ":=").replace("\\eqqcolon", "=:"))
    if said_in_tags:
        spans = [(label if said else "text", boxes, said or label) for label, boxes, said in spans]
    boxed = any(boxes for _, boxes, _ in spans)
    blocks = blocks_document(page, spans_blocks(spans), (999, 999)) if boxed else None
    return Parsed(spans_markdown(spans), blocks, flags=["unparsed"] if asked and spans and not boxed else [])
