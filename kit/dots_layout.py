"""Layout answers of the dots.ocr family: a JSON list of cells, read also where it is broken, and its Markdown."""

import json
import re
from collections import Counter

DOTS_LABELS = {
    "Caption": "caption",
    "Footnote": "footnote",
    "Formula": "formula",
    "List-item": "list",
    "Page-footer": "footer",
    "Page-header": "header",
    "Picture": "picture",
    "Section-header": "heading",
    "Table": "table",
    "Text": "text",
    "Title": "title",
}
DOTS_FORMATS = {"Formula": "latex", "Table": "html"}  # all others are Markdown


def read_cells(text):
    """Cells of a layout answer, and what was noticed: [], ["repaired"] or ["unparsed"].

    A cell is a dict with `category` and `text` (strings, "" where missing) and `bbox` (whatever stands there). What is
    no JSON list is read object by object: whole objects first, so that a missing comma or bracket costs nothing, then
    what a broken or half-closed one still holds. Of a loop's copies (the same box, or the same text 5 times and more)
    the first stays, as in the authors' parser. Unlike there, a last half object is kept beside whole ones, and a cell
    with a broken box keeps its text.
    """
    text = re.sub(r"^```\w*", "", text.strip()).removesuffix("```").strip()
    try:
        found = json.loads(text, strict=False)
        if isinstance(found, list) and all(isinstance(cell, dict) for cell in found):
            return [plain_cell(cell) for cell in found], []
    except (ValueError, RecursionError):
        pass
    cells = list(without_copies([plain_cell(cell) for cell in objects_in(text)]))
    return cells, ["repaired" if cells else "unparsed"]


def plain_cell(cell):
    def words(value, default):  # half an emoji's escape (a lone surrogate) cannot be written as UTF-8
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else default

    return {
        "bbox": cell.get("bbox"),
        "category": words(cell.get("category"), "Text"),
        "text": words(cell.get("text"), ""),
    }


def objects_in(text):
    """Yields the objects that open with one of a cell's keys; of a broken one the box, category and text it shows."""
    opening = re.compile(r'\{\s*"(?:bbox|category|text)"\s*:')
    start = opening.search(text)
    while start:
        try:
            cell, end = json.JSONDecoder(strict=False).raw_decode(text, start.start())
        except (ValueError, RecursionError):
            following = opening.search(text, start.end())
            end = following.start() if following else len(text)
            cell = broken_object(text[start.start() : end])
        if cell:
            yield cell
        start = opening.search(text, end)


def broken_object(text):
    """What a cell shows whose JSON is cut off, or whose text has quotes or backslashes that are not escaped."""
    bbox = re.search(r'"bbox"\s*:\s*\[([-\d.,\s]*)\]', text)
    category = re.search(r'"category"\s*:\s*"([^"]*)"', text)
    content = re.search(r'"text"\s*:\s*"(.*)', text, re.DOTALL)
    cell = {
        "bbox": bbox and [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", bbox[1])],
        "category": category and category[1],
        "text": content and unescaped(re.sub(r'(?<!\\)"\s*\}?[\s,\]]*$', "", content[1])),
    }
    return {key: value for key, value in cell.items() if value}


def unescaped(text):
    """The inside of a JSON string as text; quotes and backslashes that are no escape stand for themselves."""
    escape = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|["\\]'
    return json.loads('"' + re.sub(escape, lambda m: m[0] if len(m[0]) > 1 else "\\" + m[0], text) + '"', strict=False)


def without_copies(cells):
    texts = Counter((cell["category"], cell["text"]) for cell in cells if cell["text"])
    seen = set()
    for cell in cells:
        said, box = (cell["category"], cell["text"]), repr(cell["bbox"])
        if not (cell["bbox"] and box in seen) and not (texts[said] >= 5 and said in seen):
            yield cell
        seen |= {said, box}


def cells_markdown(cells, headers_and_footers=False):
    """Markdown of cells in their order, which is the reading order. Pictures have no text; they are in the blocks."""
    left_out = () if headers_and_footers else ("Page-header", "Page-footer")
    texts = [
        display_formula(cell["text"]) if cell["category"] == "Formula" else bare_math(cell["text"].strip())
        for cell in cells
        if cell["category"] not in left_out
    ]
    return "\n\n".join(text for text in texts if text)


def bare_math(text):
    """The text; where all of it is one code span with math, only the math, as the authors' program has it."""
    return text[1:-1] if re.fullmatch(r"`\$[^`]*\$`", text) else text


def display_formula(text):
    r"""LaTeX as a `$$` block; text that has its own `$` or brackets of math, and plain words, stay as they are."""
    text = text.strip().strip("`").strip()
    preamble = r"\\(?:documentclass|usepackage)(?:\[[^\]]*\])?\{[^}]*\}|\\(?:begin|end)\{document\}"
    text = re.sub(preamble, "", text)
    text = re.sub(r"^\s*\\\[(.*)\\\]\s*$", r"$$\1$$", text, flags=re.DOTALL).strip()
    inside = text.removeprefix("$$").removesuffix("$$")
    if not text or "$" in inside or re.search(r"(?<!\\)\\(?:\[.*\\\]|\(.*\\\))", inside, re.DOTALL):
        return text
    if text.startswith("$$"):
        text = text[2:].removesuffix("$$").strip()
    elif not re.search(r"[\\^_={}<>+]", text):
        return text
    return f"$$\n{text}\n$$" if text else ""


def cells_to_blocks(cells):
    """Blocks for `blocks_document`; a category outside DOTS_LABELS is "other"."""
    return [
        {
            "bbox": cell["bbox"],
            "label": DOTS_LABELS.get(cell["category"], "other"),
            "content": cell["text"],
            "format": DOTS_FORMATS.get(cell["category"], "markdown"),
            "raw_label": cell["category"],
        }
        for cell in cells
    ]
