"""What the HunyuanOCR models write about places on a page: readers of all their forms, and a check of versions."""

import json
import re

from kit.seam import Stop

HUNYUAN_LABELS = {
    "title": "title", "para_title": "heading", "section_title": "heading", "paragraph": "text", "text": "text",
    "table_of_contents": "toc", "table": "table", "figure": "picture", "table_title": "caption",
    "figure_title": "caption", "formula": "formula", "header": "header", "footer": "footer",
    "page_number": "page_number", "footnote": "footnote", "list": "list", "code": "code", "reference": "reference",
}  # fmt: skip
TWO_POINTS = r"\(\s*(\d+)\s*,\s*(\d+)\s*\)\s*,\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)"


def read_spots(text):
    """Spots of an answer, and what was noticed: [], ["repaired"] or ["unparsed"].

    A spot is (text, box, category): box of 4 numbers in thousandths of the page or None, category None where the form
    has none. The forms, tried in this order: a JSON list; text with `<hy-meta>`; pairs of `<ref>` and `<quad>`; text
    that runs on from one pair of points to the next.
    """
    text = re.sub(r"^```\w*|```$", "", text.strip()).strip()
    if text in ("", "没有文字", "没有文字。", "[]"):
        return [], []
    if text.startswith(("[", "{")):
        spots, flags = json_spots(text)
    elif "<hy-meta>" in text:
        spots, flags = meta_spots(text), []
    elif re.search(r"<(ref|quad)>", text):
        spots, flags = pair_spots(text)
    else:
        spots, flags = running_spots(text), []
    return (spots, flags) if any(box for _, box, _ in spots) else ([], ["unparsed"])


def json_spots(text):
    """Of a list that is broken or cut off the objects that are whole, and the last one if it ends within its text."""
    flags = []
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        found, flags = [], ["repaired"]
        rest = text[text.rfind("}") + 1 :].lstrip(", \n")
        for piece in [*re.findall(r"\{[^{}]*\}", text), rest + '"}']:
            try:
                found.append(json.loads(piece, strict=False))
            except (ValueError, RecursionError):
                continue
    spots = []
    for item in found if isinstance(found, list) else [found]:
        if isinstance(item, dict):
            # half an emoji's escape (a lone surrogate) cannot be written as UTF-8
            said, category = (
                str(item.get(key) or "").encode("utf-8", "replace").decode() for key in ("text", "layout_type")
            )
            spots.append((said, box_around(item.get("box", item.get("bbox"))), category or None))
    return spots, flags


def meta_spots(text):
    *pieces, rest = re.split(r"<hy-meta>(.*?)</hy-meta>", text, flags=re.DOTALL)
    spots = []
    for said, meta in zip(pieces[::2], pieces[1::2], strict=True):
        layout = re.search(r"<layout>(.*?)</layout>", meta, re.DOTALL)
        places = re.search(r"<(poly|quad)>(.*?)(?:</\1>|$)", meta, re.DOTALL)
        spots.append((said.strip(), box_around(places and places[2]), layout and layout[1].strip()))
    rest = rest.partition("<hy-meta>")[0].strip()
    return spots + ([(rest, None, None)] if rest else [])


def pair_spots(text):
    """Pairs in either order, told by the first one; a half pair keeps what it has, and so does text between pairs."""
    before, *pieces = re.split(r"<(ref|quad)>(.*?)(?:</\1>|$)", text, flags=re.DOTALL)
    pairs, between = [{"ref": before}, {}], [before.strip()]
    for kind, inside, after in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if kind == pieces[0] and pairs[-1]:
            pairs.append({})
        pairs[-1][kind] = inside
        if after.strip():
            between.append(after)
            pairs += [{"ref": after}, {}]
    spots = [(pair.get("ref", "").strip(), box_around(pair.get("quad")), None) for pair in pairs]
    return [spot for spot in spots if any(spot)], ["repaired"] if any(between) else []


def running_spots(text):
    spots, end = [], 0
    for found in re.finditer(TWO_POINTS, text):
        spots.append((text[end : found.start()].strip(), box_around(found[0]), None))
        end = found.end()
    rest = text[end:].strip()
    return spots + ([(rest, None, None)] if rest else [])


def box_around(places):
    """[x0, y0, x1, y1] around the points in a text or (nested) list of numbers, or None."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", str(places))]
    if len(numbers) < 4 or len(numbers) % 2:
        return None
    return [f(numbers[axis::2]) for f in (min, max) for axis in (0, 1)]


def spots_blocks(spots):
    """Blocks for `blocks_document` with the size (1000, 1000)."""
    return [
        {
            "bbox": box,
            "label": HUNYUAN_LABELS.get(category, "other") if category else "text",
            "raw_label": category or "text",
            "content": text,
            "format": "html" if text.startswith("<table") else "markdown" if category else "text",
        }
        for text, box, category in spots
    ]


def check_transformers(options):
    """Raises Stop where the installed transformers hides the model from the installed vLLM."""
    from importlib.metadata import PackageNotFoundError, version

    from packaging.version import Version

    try:
        vllm, transformers = Version(version("vllm")), Version(version("transformers"))
    except PackageNotFoundError:
        return
    if not options.endpoint and vllm < Version("0.25") and transformers >= Version("5.13"):
        raise Stop(
            f"transformers {transformers} is installed; vLLM {vllm} finds no HunyuanOCR with 5.13 or later. "
            'Add --with "transformers<5.13" to `uv run`.'
        )
