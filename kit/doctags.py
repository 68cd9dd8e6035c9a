"""DocTags, what the Docling models write: mended where it is cut, to Markdown and blocks through docling-core."""

import functools
import re

from kit.blocks import blocks_document
from kit.otsl import otsl_to_html
from kit.seam import Parsed

DOCTAGS_GRID = 500  # locations are 500ths of the page's width and height
DOCTAGS_HOLDERS = set("doctag ordered_list unordered_list otsl picture chart inline key_value_region group".split())
DOCTAGS_LEAVES = set(
    "title text paragraph page_header page_footer list_item formula code caption footnote reference document_index "
    "checkbox_selected checkbox_unselected".split()
) | {f"section_header_level_{level}" for level in range(1, 7)}
DOCTAGS_MARKS = r"loc_\d+|fcel|ecel|ched|rhed|srow|lcel|ucel|xcel|nl|page_break|_[^<>\s]*_"
DOCTAGS_LABELS = {
    "title": "title", "section_header": "heading", "page_header": "header", "page_footer": "footer",
    "list_item": "list", "table": "table", "document_index": "toc", "chart": "picture", "picture": "picture",
    "formula": "formula", "code": "code", "caption": "caption", "footnote": "footnote", "reference": "reference",
    "checkbox_selected": "form", "checkbox_unselected": "form", "key_value_region": "form", "form": "form",
}  # fmt: skip
STAND_IN = "\ue000"  # for "<" that opens no tag: docling-core would remove "<b>" from a text


def doctags_page(text, page):
    """Parsed of one page's answer, without columns. Page headers and footers are in the blocks only.

    Text without any tag is returned as it is, flagged "unparsed"; tags that had to be closed are flagged "repaired".
    """
    text = without_end_tokens(text)
    if not re.search(rf"</?(?:{'|'.join(DOCTAGS_HOLDERS | DOCTAGS_LEAVES)})>", text):
        return Parsed(text, flags=["unparsed"] if text else [])
    tags, is_mended = mended_doctags(text)
    try:
        document, tables = docling_document(tags), doctags_tables(tags)
        markdown = docling_markdown(document, tables).replace(STAND_IN, "<").strip()
        blocks = blocks_document(page, docling_blocks(document, tables), (DOCTAGS_GRID, DOCTAGS_GRID))
    except Exception:  # docling-core raises whatever it stumbles over
        return Parsed(re.sub(r"<[^<>]*>", " ", text).strip(), flags=["unparsed"])
    if not markdown and not blocks["blocks"] and (bare := re.sub(r"<[^<>]*>", " ", text).strip()):
        return Parsed(bare, flags=["unparsed"])
    return Parsed(markdown, blocks, flags=["repaired"] if is_mended else [])


def doctags_element(text):
    """What one element says: a table or chart as HTML, else the text without its tags."""
    text = re.sub(rf"<loc_\d+>|</?(?:{'|'.join(DOCTAGS_HOLDERS | DOCTAGS_LEAVES)})>", "", without_end_tokens(text))
    return otsl_to_html(re.sub(r"^\s*<(?:_[^<>\s]*_|\w+_(?:chart|image)|other)>", "", text))


def without_end_tokens(text):
    text = text.strip()
    while text.endswith(("<end_of_utterance>", "<|end_of_text|>")):
        text = text[: text.rindex("<")].rstrip()
    return text


def mended_doctags(text):
    """(DocTags with every element closed and every other "<" replaced by STAND_IN, whether one had to be closed).

    docling-core loses an element that is not closed at the end, and one that is not closed before the next swallows it.
    The outermost tag does not count: a stop string may have taken it.
    """
    text = re.sub(rf"<(?!/?(?:{doctags_names()})>)[^<>]*$", "", text)  # half a tag where the answer was cut
    text = re.sub(rf"<(?!/?(?:{doctags_names()})>)", STAND_IN, text)
    text = re.sub(
        r"<(?:fcel|ched|rhed|srow)>(?=\s*(?:<|$))", "<ecel>", text
    )  # its reader takes the next token for text
    parts, still_open, is_mended = [], [], False
    for part in re.split(rf"(</?(?:{'|'.join(DOCTAGS_HOLDERS | DOCTAGS_LEAVES)})>)", text):
        name = part.strip("</>")
        if name not in DOCTAGS_HOLDERS | DOCTAGS_LEAVES or not part.startswith("<"):
            parts.append(part)
        elif not part.startswith("</"):
            if still_open and still_open[-1] in DOCTAGS_LEAVES:
                parts.append(f"</{still_open.pop()}>")
                is_mended = True
            still_open.append(name)
            parts.append(part)
        elif name in still_open:
            while still_open[-1] != name:
                parts.append(f"</{still_open.pop()}>")
                is_mended = True
            still_open.pop()
            parts.append(part)
        else:
            is_mended = True  # it closes what is not open
    is_mended = is_mended or any(name != "doctag" for name in still_open)
    parts += [f"</{name}>" for name in reversed(still_open)]
    whole = "".join(parts).strip()
    return whole if whole.startswith("<doctag>") else f"<doctag>{whole}</doctag>", is_mended


@functools.cache
def doctags_names():
    from docling_core.types.doc.labels import PictureClassificationLabel

    classes = [label.value for label in PictureClassificationLabel]
    return "|".join([*DOCTAGS_HOLDERS, *DOCTAGS_LEAVES, DOCTAGS_MARKS, *map(re.escape, classes)])


def docling_document(tags):
    """DoclingDocument of one page, its boxes in 500ths: docling-core would keep the page's image inside of it."""
    from docling_core.types.doc.document import DoclingDocument, DocTagsDocument
    from PIL import Image

    page = DocTagsDocument.from_doctags_and_image_pairs([tags], [Image.new("1", (DOCTAGS_GRID, DOCTAGS_GRID))])
    return DoclingDocument.load_from_doctags(page, document_name="page")


def docling_markdown(document, tables):
    """Markdown with the words as they were read, and tables with merged cells as HTML: a pipe table repeats them."""
    from docling_core.transforms.serializer.markdown import (
        MarkdownDocSerializer,
        MarkdownParams,
        MarkdownTableSerializer,
    )

    class TableSerializer(MarkdownTableSerializer):
        def serialize(self, *, item, doc_serializer, doc, **options):
            result = super().serialize(item=item, doc_serializer=doc_serializer, doc=doc, **options)
            if any(cell.row_span > 1 or cell.col_span > 1 for cell in item.data.table_cells):
                result.text = "\n\n".join(filter(None, [item.caption_text(doc), docling_table(item, doc, tables)]))
            return result

    params = MarkdownParams(
        escape_html=False, escape_underscores=False, include_picture_classification=False, image_placeholder=""
    )
    return MarkdownDocSerializer(doc=document, table_serializer=TableSerializer(), params=params).serialize().text


def doctags_tables(tags):
    """The tables as HTML, in the order of `document.tables`: docling-core loses which cells are headers."""
    bodies = re.findall(r"<(otsl|document_index)>(.*?)</\1>", tags, re.DOTALL)
    return [otsl_to_html(re.sub(r"<caption>.*?</caption>|<loc_\d+>", "", body, flags=re.DOTALL)) for _, body in bodies]


def docling_table(item, document, tables):
    number = int(item.self_ref.rpartition("/")[2])
    return tables[number] if number < len(tables) else item.export_to_html(document)


def docling_blocks(document, tables):
    """Blocks for `blocks_document`, in reading order; captions are blocks of their own."""
    from docling_core.types.doc.document import ContentLayer

    for item, _ in document.iterate_items(included_content_layers=set(ContentLayer), traverse_pictures=True):
        raw = item.label.value
        label = DOCTAGS_LABELS.get(raw, "text")
        content = getattr(item, "text", None) or ""
        if label in ("table", "toc") and hasattr(item, "data"):
            content = docling_table(item, document, tables)
        elif not getattr(item, "prov", None):
            continue  # a list or group, whose parts follow
        box = item.prov[0].bbox.as_tuple() if item.prov else None
        form = {"table": "html", "formula": "latex"}.get(label, "text")
        yield {
            "bbox": box, "label": label, "content": content.replace(STAND_IN, "<"), "format": form, "raw_label": raw,
        }  # fmt: skip
