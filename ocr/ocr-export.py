# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "datasets>=5.2.0",
#     "fonttools>=4.55",
#     "fpdf2>=2.8.2",
#     "huggingface_hub>=2.4.0",
#     "numpy>=1.26",
#     "pillow>=11",
#     "pypdfium2>=5.0",
# ]
#
# [tool.hf-jobs]
# flavor = "cpu-basic"
# secrets = ["HF_TOKEN"]
# timeout = "8h"
# ///
"""OCR export: hOCR, ALTO 4.4, PAGE XML 2019 and searchable PDF from the blocks of any recipe.

    uv run ocr/ocr-export.py out exported --images scans --formats hocr,alto,page,pdf
    hf jobs uv run ocr/ocr-export.py user/scans-ocr hf://buckets/user/exported --formats alto,pdf

INPUT is what a recipe with boxes wrote: a dataset with a blocks column, or a folder or bucket with its `.json` files,
or any JSON files that are blocks documents (`"schema": "ocr-blocks/1"`). OUTPUT is a folder or bucket. It gets
`x.hocr`, `x.alto.xml`, `x.page.xml` and `x.pdf` for `x.json`; of the pages `x/page_001`, `x/page_002` ... one `x.pdf`.

Boxes of blocks are the model's. Lines and words inside of a block are placed here: on the lines of print that the image
shows, and evenly where there is no image or it does not fit the text. Every ALTO file says which.
"""

import argparse
import functools
import io
import itertools
import json
import os
import re
import sys
import tempfile
import unicodedata
import xml.etree.ElementTree as ET
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

# >>> shared imports
# isort: split
import atexit
import contextlib
import glob
import hashlib
import html
import math
import random
import secrets
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby, islice

# <<< shared imports

FORMATS = {"hocr": ".hocr", "alto": ".alto.xml", "page": ".page.xml", "pdf": ".pdf"}
ALTO = "http://www.loc.gov/standards/alto/ns-v4#"
PAGE = "http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15"
HOCR_CLASSES = {
    "table": "ocr_table", "formula": "ocr_math", "picture": "ocr_image", "header": "ocr_header", "footer": "ocr_footer",
    "page_number": "ocr_pageno",
}  # fmt: skip
# Types of a TextRegion; any other label of a text is "other", and "custom" keeps the label itself.
PAGE_TYPES = {
    "text": "paragraph", "title": "heading", "heading": "heading", "header": "header", "footer": "footer",
    "page_number": "page-number", "caption": "caption", "footnote": "footnote", "toc": "TOC-entry",
}  # fmt: skip
PAGE_REGIONS = {
    "table": "TableRegion", "formula": "MathsRegion", "picture": "ImageRegion", "seal": "GraphicRegion",
}  # fmt: skip
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Chinese and Japanese letters stand for themselves, as no space tells where a line may break.
TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)  # noqa: E501


class Sheet(NamedTuple):
    """One page to export: its blocks document, and what reads its image (None where there is none)."""

    name: str  # of the output, without suffix: "folder/x" or "folder/x/page_002"
    document: dict
    picture: object = None  # () -> (encoded bytes, Page)
    picture_name: str = ""
    model: str = ""


class Block(NamedTuple):
    """A block as all formats write it. `lines` are (box, [(word, box, space after it)]); boxes are whole pixels."""

    number: int
    label: str
    box: tuple
    confidence: float | None
    text: str
    lines: list
    on_print: bool  # lines were found in the image, or the block is one line


# ---- Blocks


def blocks_of(document, ink=None):
    """The blocks of a document in reading order. One without a box gets that of the page: it is somewhere on it.

    `ink` is a 2-D array of booleans, True where the page (at any size) is printed. Raises ValueError for what is no
    blocks document.
    """
    if not isinstance(document, dict) or document.get("schema") != "ocr-blocks/1":
        raise ValueError('this is no blocks document: its "schema" is not "ocr-blocks/1"')
    width, height, found = document.get("width"), document.get("height"), document.get("blocks")
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        raise ValueError(f"the blocks document has no size: width {width!r}, height {height!r}")
    if not isinstance(found, list) or not all(isinstance(block, dict) for block in found):
        raise ValueError('the "blocks" of the blocks document are no list of objects')
    blocks = []
    for number, block in enumerate(sorted(found, key=lambda block: block.get("order") or 0)):
        box = whole_box(block.get("bbox"), width, height)
        text = text_of(block)
        bands = bands_of_ink(ink, box, width, height) if ink is not None and block.get("bbox") else []
        lines, on_print = laid_out(text, box, bands)
        confidence = block.get("confidence")
        is_share = isinstance(confidence, (int, float)) and 0 <= confidence <= 1
        label = block.get("label") if block.get("label") in BLOCK_LABELS else "other"
        blocks.append(Block(number, label, box, confidence if is_share else None, text, lines, on_print))
    return blocks


def whole_box(bbox, width, height):
    try:
        x0, y0, x1, y1 = (round(float(value)) for value in bbox)
    except (TypeError, ValueError, OverflowError):
        return (0, 0, width, height)
    x0, x1, y0, y1 = max(x0, 0), min(x1, width), max(y0, 0), min(y1, height)
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else (0, 0, width, height)


def text_of(block):
    """What is printed in the block: Markdown and HTML without markup, LaTeX and plain text as they are."""
    content = block.get("content")
    content = NOT_IN_XML.sub("", re.sub("[\v\f]", "\n", content)) if isinstance(content, str) else ""
    return (to_plain_text(content, cell=" ") if block.get("format") in ("markdown", "html") else content).strip()


def laid_out(text, box, bands):
    """(lines, whether they are where print is) of a text in a box, given the lines of print found there."""
    written = [line for line in text.split("\n") if line.strip()]
    if not written:
        return [], True
    x0, y0, x1, y1 = box
    # Letters half as wide as high, lines 1.25 times as high as letters; a line of the text is at least one.
    wanted = (0.4 * measure(" ".join(written)) * (y1 - y0) / (x1 - x0)) ** 0.5
    on_print = len(bands) >= len(written) and 0.6 * wanted <= len(bands) <= max(1.7 * wanted, len(written))
    if not on_print:
        count = max(len(written), round(wanted))
        bands = [
            (x0, y0 + (y1 - y0) * line // count, x1, y0 + (y1 - y0) * (line + 1) // count) for line in range(count)
        ]
        bands = [(left, top, right, max(bottom, top + 1)) for left, top, right, bottom in bands]
    on_print = on_print or (len(bands) == 1 and len(written) == 1)
    texts = written if len(bands) == len(written) else wrapped(" ".join(written), bands)
    lines = [(band, words_in(line, band)) for band, line in zip(bands, texts, strict=True)]
    return [(band, words) for band, words in lines if words], on_print


def measure(text):
    """Width of a text in halves of its height: Chinese and Japanese letters are twice as wide as others."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def tokens_of(text):
    """(word, whether a space follows) of a text."""
    found = list(TOKEN.finditer(text))
    return [(word[0], word.end() < len(text) and text[word.end()].isspace()) for word in found]


def wrapped(text, bands):
    """The text in as many lines as there are bands, each as long as its band is wide."""
    shares = list(itertools.accumulate(right - left for left, _, right, _ in bands))
    tokens, position, lines = tokens_of(text), 0, [""] * len(bands)
    total = sum(measure(word) + space for word, space in tokens)
    for word, space in tokens:
        middle = (position + measure(word) / 2) / total * shares[-1]
        line = next(number for number, end in enumerate(shares) if middle <= end or number == len(shares) - 1)
        lines[line] += word + " " * space
        position += measure(word) + space
    return lines


def words_in(line, band):
    """(word, box, space after it) of a line; right to left where most of its letters run so."""
    tokens = tokens_of(line.strip())
    directions = [unicodedata.bidirectional(letter) for letter in line]
    leftwards = sum(d in ("R", "AL") for d in directions) > sum(d == "L" for d in directions)
    x0, y0, x1, y1 = band
    total, position, words = sum(measure(word) + space for word, space in tokens), 0, []
    for word, space in tokens:
        start, position = position, position + measure(word)
        left, right = (x0 + round((x1 - x0) * place / total) for place in (start, position))
        if leftwards:
            left, right = x0 + x1 - right, x0 + x1 - left
        words.append((word, (left, y0, max(right, left + 1), y1), space))
        position += space
    return words


def ink_of(image):
    """True where an image is printed, as a 2-D array: darker than halfway between its paper and its ink."""
    import numpy

    grey = numpy.asarray(image.convert("L"))
    ink, paper = numpy.percentile(grey[::2, ::2], (0.1, 99.9))
    return grey < (ink + paper) / 2 if paper - ink > 40 else numpy.zeros(grey.shape, bool)


def bands_of_ink(ink, box, width, height):
    """Boxes of the lines of print inside a box, from top to bottom, in pixels of the page; [] where none stand out."""
    import numpy

    across, down = ink.shape[1] / width, ink.shape[0] / height
    left, top = int(box[0] * across), int(box[1] * down)
    part = ink[top : int(box[3] * down) + 1, left : int(box[2] * across) + 1]
    if part.size and part.mean() > 0.5:  # white on black
        part = ~part
    # Where the scan is skewed no row between two lines is empty; the threshold that gives the most even lines is taken.
    profile = part.sum(axis=1)
    bands = min((runs_above(profile, share) for share in (0, 0.03, 0.06, 0.12)), key=unevenness)
    boxes = []
    for start, end in bands:
        columns = part[start:end].sum(axis=0)
        used = numpy.flatnonzero(columns)
        pieces = numpy.split(used, numpy.flatnonzero(numpy.diff(used) > 2 * (end - start)) + 1)
        kept = [piece for piece in pieces if columns[piece].sum() > 0.02 * columns.sum()]  # far specks are no letters
        first, last = kept[0][0], kept[-1][-1] + 1
        edge = (left + first) / across, (top + start) / down, (left + last) / across, (top + end) / down
        boxes.append(tuple(round(float(value)) for value in edge))
    return [(x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)) for x0, y0, x1, y1 in boxes]


def runs_above(profile, share):
    """[start, end] of the runs of rows with more ink than a share of the fullest; dots and tails with their line."""
    import numpy

    rows = profile > max(1, share * profile.max(initial=0))
    edges = numpy.flatnonzero(numpy.diff(numpy.concatenate(([0], rows.view(numpy.int8), [0]))))
    runs = [[int(start), int(end)] for start, end in edges.reshape(-1, 2)]
    usual = float(numpy.median([end - start for start, end in runs])) if runs else 0
    bands = [run for run in runs if run[1] - run[0] >= 0.35 * usual]
    for start, end in runs:
        if end - start < 0.35 * usual:
            gap, near = min((max(start - band[1], band[0] - end), number) for number, band in enumerate(bands))
            if gap < 0.5 * usual:
                bands[near] = [min(bands[near][0], start), max(bands[near][1], end)]
    return bands


def unevenness(bands):
    import numpy

    heights = [end - start for start, end in bands]
    return float(numpy.std(heights) / numpy.mean(heights)) if heights else 1.0


# ---- Formats: (sheet, blocks) to bytes


def to_hocr(sheet, blocks):
    """hOCR 1.2 as XHTML: one `ocr_page`, a typed area per block, with lines and words."""
    width, height = sheet.document["width"], sheet.document["height"]
    root = ET.Element("html", {"xmlns": "http://www.w3.org/1999/xhtml", "xml:lang": "und", "lang": "und"})
    head = ET.SubElement(root, "head")
    ET.SubElement(head, "title").text = clean(sheet.name)
    ET.SubElement(head, "meta", {"http-equiv": "Content-Type", "content": "text/html;charset=utf-8"})
    ET.SubElement(head, "meta", {"name": "ocr-system", "content": clean(sheet.model) or "unknown"})
    classes = ["ocr_page", "ocr_carea", "ocr_par", "ocr_line", "ocrx_word", *HOCR_CLASSES.values()]
    ET.SubElement(head, "meta", {"name": "ocr-capabilities", "content": " ".join(classes)})
    for name in ("ocr-langs", "ocr-scripts"):
        ET.SubElement(head, "meta", {"name": name, "content": "unknown"})
    ET.SubElement(head, "meta", {"name": "ocr-number-of-pages", "content": "1"})
    image = re.sub(r'["\\;]', "_", clean(sheet.picture_name or sheet.name))
    title = f'image "{image}"; bbox 0 0 {width} {height}; ppageno {page_number(sheet.name) - 1}'
    if sheet.document.get("dpi"):
        title += "; scan_res {0} {0}".format(sheet.document["dpi"])
    page = ET.SubElement(ET.SubElement(root, "body"), "div", {"class": "ocr_page", "id": "page_1", "title": title})
    for block in blocks:
        kind = HOCR_CLASSES.get(block.label, "ocr_carea")
        attributes = {"class": kind, "id": f"block_{block.number}", "title": title_of(block.box)}
        area = ET.SubElement(page, "div", {**attributes, "data-label": block.label})
        if not block.lines:
            continue
        paragraph = ET.SubElement(area, "p", {"class": "ocr_par", "title": title_of(block.box)})
        for box, words in block.lines:
            line = ET.SubElement(paragraph, "span", {"class": "ocr_line", "title": title_of(box)})
            for word, at, space in words:
                sure = "" if block.confidence is None else f"; x_wconf {round(block.confidence * 100)}"
                element = ET.SubElement(line, "span", {"class": "ocrx_word", "title": title_of(at) + sure})
                element.text, element.tail = word, " " if space else None
            line.tail = "\n"
    return xml_bytes(root, "<!DOCTYPE html>\n")


def title_of(box):
    return "bbox {} {} {} {}".format(*box)


def to_alto(sheet, blocks):
    """ALTO 4.4 in pixels. A block's label is its LayoutTag."""
    width, height = str(sheet.document["width"]), str(sheet.document["height"])
    root = ET.Element("alto", {"xmlns": ALTO, "SCHEMAVERSION": "4.4"})
    about = ET.SubElement(root, "Description")
    ET.SubElement(about, "MeasurementUnit").text = "pixel"
    source = ET.SubElement(about, "sourceImageInformation")
    ET.SubElement(source, "fileName").text = clean(sheet.picture_name or sheet.name)
    reading = ET.SubElement(about, "Processing", {"ID": "reading"})
    ET.SubElement(reading, "processingCategory").text = "contentGeneration"
    on_print = sum(block.on_print for block in blocks)
    ET.SubElement(reading, "processingStepDescription").text = (
        f"Boxes of blocks are the model's. Lines and words were placed on lines of print in {on_print} of "
        f"{len(blocks)} blocks, and evenly in the others."
    )
    software = ET.SubElement(reading, "processingSoftware")
    ET.SubElement(software, "softwareName").text = clean(sheet.model) or "unknown"
    if blocks:
        tags = ET.SubElement(root, "Tags")
        for label in dict.fromkeys(block.label for block in blocks):
            ET.SubElement(tags, "LayoutTag", {"ID": f"label_{label}", "LABEL": label})
    attributes = {"ID": "page", "PHYSICAL_IMG_NR": str(page_number(sheet.name)), "WIDTH": width, "HEIGHT": height}
    page = ET.SubElement(ET.SubElement(root, "Layout"), "Page", attributes)
    space = ET.SubElement(page, "PrintSpace", alto_place((0, 0, int(width), int(height))))
    for block in blocks:
        place = {**alto_place(block.box), "TAGREFS": f"label_{block.label}"}
        parent = space
        if block.label == "picture" and block.lines:
            parent = ET.SubElement(space, "ComposedBlock", {"ID": f"group_{block.number}", **place})
        if block.label == "picture":
            ET.SubElement(parent, "Illustration", {"ID": f"picture_{block.number}", **place})
        if block.lines or block.label != "picture":
            text = ET.SubElement(parent, "TextBlock", {"ID": f"block_{block.number}", **place})
            for number, line in enumerate(block.lines):
                add_alto_line(text, f"line_{block.number}_{number}", line, block.confidence)
    return xml_bytes(root)


def add_alto_line(parent, name, line, confidence):
    box, words = line
    element = ET.SubElement(parent, "TextLine", {"ID": name, **alto_place(box)})
    sure = {} if confidence is None else {"WC": f"{confidence:.4g}"}
    for number, (word, at, space) in enumerate(words):
        ET.SubElement(element, "String", {"CONTENT": word, **alto_place(at), **sure})
        if space and number < len(words) - 1:
            ET.SubElement(element, "SP")


def alto_place(box):
    x0, y0, x1, y1 = box
    return {"HPOS": str(x0), "VPOS": str(y0), "WIDTH": str(x1 - x0), "HEIGHT": str(y1 - y0)}


def to_page(sheet, blocks):
    """PAGE XML 2019-07-15: one region per block in reading order, the text of tables, formulas and pictures inside."""
    width, height = sheet.document["width"], sheet.document["height"]
    root = ET.Element("PcGts", {"xmlns": PAGE})
    about, now = ET.SubElement(root, "Metadata"), datetime.now(timezone.utc).isoformat(timespec="seconds")
    ET.SubElement(about, "Creator").text = clean(sheet.model) or "unknown"
    ET.SubElement(about, "Created").text = ET.SubElement(about, "LastChange").text = now
    image = clean(sheet.picture_name or sheet.name)
    size = {"imageFilename": image, "imageWidth": str(width), "imageHeight": str(height)}
    page = ET.SubElement(root, "Page", size)
    if blocks:
        order = ET.SubElement(ET.SubElement(page, "ReadingOrder"), "OrderedGroup", {"id": "reading_order"})
    for index, block in enumerate(blocks):
        name, kind = f"region_{block.number}", PAGE_REGIONS.get(block.label, "TextRegion")
        ET.SubElement(order, "RegionRefIndexed", {"index": str(index), "regionRef": name})
        attributes = {"id": name, "custom": f"structure {{type:{block.label};}}"}
        if kind == "TextRegion":
            attributes["type"] = PAGE_TYPES.get(block.label, "other")
        region = ET.SubElement(page, kind, attributes)
        add_points(region, block.box)
        if kind != "TextRegion" and block.text:
            region = ET.SubElement(region, "TextRegion", {"id": f"{name}_text", "type": "other"})
            add_points(region, block.box)
        for number, (box, words) in enumerate(block.lines):
            line = ET.SubElement(region, "TextLine", {"id": f"{name}_line_{number}"})
            add_points(line, box)
            add_equivalent(line, "".join(word + " " * space for word, _, space in words).strip(), block.confidence)
        if block.text:
            add_equivalent(region, block.text, block.confidence)
    return xml_bytes(root)


def add_points(parent, box):
    x0, y0, x1, y1 = box
    ET.SubElement(parent, "Coords", {"points": f"{x0},{y0} {x1},{y0} {x1},{y1} {x0},{y1}"})


def add_equivalent(parent, text, confidence):
    sure = {} if confidence is None else {"conf": f"{confidence:.4g}"}
    ET.SubElement(ET.SubElement(parent, "TextEquiv", sure), "Unicode").text = text


def clean(text):
    return NOT_IN_XML.sub("", text or "")


def xml_bytes(root, doctype=""):
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{doctype}{ET.tostring(root, encoding="unicode")}\n'.encode()


def page_number(name):
    found = re.search(r"(?:^|/)page_(\d+)$", name)
    return int(found[1]) if found else 1


# ---- Searchable PDF


def to_pdf(sheet, blocks, encoded, page, options):
    """One page as PDF: the image, and above it the words, invisible and each in its place."""
    from fpdf import FPDF
    from fpdf.enums import TextMode

    width, height = sheet.document["width"], sheet.document["height"]
    scale = 72 / (sheet.document.get("dpi") or options.dpi)
    pdf = FPDF(unit="pt", format=(width * scale, height * scale))
    pdf.set_auto_page_break(False)
    pdf.set_margin(0)
    pdf.set_title(sheet.name)
    pdf.add_page()
    pdf.image(io.BytesIO(as_jpeg(encoded, page, options.quality)), 0, 0, width * scale, height * scale)
    words = [word for block in blocks for _, line in block.lines for word in line]
    letters = {letter for word, _, _ in words for letter in word}
    with tempfile.NamedTemporaryFile(suffix=".ttf") as font:
        font.write(box_font(letters | {" "}))
        font.flush()
        pdf.add_font("boxes", fname=font.name)
        with pdf.local_context(text_mode=TextMode.INVISIBLE):
            for word, (x0, y0, x1, y1), space in words:
                size = (y1 - y0) * scale
                pdf.set_font("boxes", size=size)
                pdf.set_stretching(100 * (x1 - x0) * scale / (len(word) * size))
                pdf.text(x0 * scale, (y0 + 0.8 * (y1 - y0)) * scale, in_sight_order(word) + " " * space)
        return bytes(pdf.output())


def box_font(letters):
    """A TrueType font with one full box for every letter, so that viewers mark the whole word that they found."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, -200))
    for corner in ((0, 800), (1000, 800), (1000, -200)):
        pen.lineTo(corner)
    pen.closePath()
    box, names = pen.glyph(), {ord(letter): f"u{ord(letter):04X}" for letter in letters}
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", *sorted(names.values())])
    font.setupCharacterMap(names)
    font.setupGlyf(dict.fromkeys([".notdef", *names.values()], box))
    font.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (1000, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Boxes", "styleName": "Regular", "psName": "Boxes"})
    font.setupOS2()
    font.setupPost()
    file = io.BytesIO()
    font.save(file)
    return file.getvalue()


def in_sight_order(word):
    """The letters of a word from left to right, as PDF has them; readers turn Arabic and Hebrew back."""
    if not any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in word):
        return word
    from fpdf.bidi import BidiParagraph

    return BidiParagraph(word).get_reordered_string()


def as_jpeg(encoded, page, quality):
    """The encoded bytes themselves where they are an upright JPEG, else the page as one."""
    from PIL import Image

    if encoded and encoded.startswith(b"\xff\xd8\xff"):
        with Image.open(io.BytesIO(encoded)) as image:
            if image.size == page.image.size and image.mode in ("L", "RGB") and image.getexif().get(274, 1) == 1:
                return encoded
    file = io.BytesIO()
    page.image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def joined(pdfs):
    """One PDF of several files."""
    import pypdfium2

    whole, sources = pypdfium2.PdfDocument.new(), [pypdfium2.PdfDocument(path) for path in pdfs]
    for source in sources:
        whole.import_pages(source)
    file = io.BytesIO()
    whole.save(file)
    for document in (whole, *sources):
        document.close()
    return file.getvalue()


# ---- Input


def sheets_of(options):
    """Yields the Sheets of INPUT, pages of one document in a row, or (name, sentence) for what cannot be read."""
    kind, place = where(options.input)
    return sheets_of_dataset(options, place) if kind == "hub" else sheets_of_files(options, kind, place)


def sheets_of_files(options, kind, place):
    base, names, _ = local_files(place) if kind == "local" else hub_files(kind, place, options)
    names = sorted(name for name in names if is_input(name, (".json",)))
    if not names:
        raise Stop(f"{options.input}: no .json files to export. INPUT is what a recipe with boxes wrote to a folder.")
    pictures = pictures_of(options, base, kind)
    for name in names:
        stem = name.removesuffix(".json")
        try:
            record = parse_json(source_bytes(f"{base}/{name}"))
        except (ValueError, PageError) as error:
            yield stem, f"{name} cannot be read: {error}"
            continue
        if not isinstance(record, dict) or not ("blocks" in record or "schema" in record):
            continue  # some other JSON file
        document = record if record.get("schema") else record["blocks"]
        if document is None:
            continue  # a page that the model gave no boxes for
        infos = record.get("inference_info") or [{}]
        for page, blocks in pages_in(stem, document):
            found = pictures.get(page) or pictures.get(re.sub(r"/page_\d+$", "", page))
            picture = functools.partial(read_picture, found, page_number(page) - 1, dpi_of(blocks)) if found else None
            yield Sheet(page, blocks, picture, os.path.basename(found or ""), infos[-1].get("model_id") or "")


def pages_in(stem, document):
    """(name, blocks document) of the page, or of each page of a window `x/pages_0017-0032` that holds several."""
    pages = document.get("pages") if isinstance(document, dict) else None
    if not isinstance(pages, list):
        yield stem, document
        return
    stem = re.sub(r"(^|/)pages_\d+-\d+$", "", stem)
    for place, page in enumerate(pages, 1):
        number = page.get("page") if isinstance(page, dict) else None
        yield f"{stem}/page_{number if isinstance(number, int) else place:03d}".lstrip("/"), page


def dpi_of(document):
    return document.get("dpi") if isinstance(document, dict) else None


def pictures_of(options, base, kind):
    """Paths of images and PDFs by their name without suffix, and with it for recipes that ran with --keep-extension."""
    if options.images:
        kind, place = where(options.images)
        base, names, _ = local_files(place) if kind == "local" else hub_files(kind, place, options)
    else:
        base, names, _ = local_files(base) if kind == "local" else hub_files(kind, base, options)
    names = [name for name in names if is_input(name, PAGE_SUFFIXES)]
    if options.images and not names:
        raise Stop(f"--images {options.images}: no images and no PDFs there.")
    return {key: f"{base}/{name}" for name in names for key in (os.path.splitext(name)[0], name)}


def read_picture(data, frame, dpi):
    encoded = source_bytes(data)
    return encoded, open_page(encoded, frame, dpi=dpi or 200)


def sheets_of_dataset(options, name):
    from datasets import Image, load_dataset

    try:
        rows = load_dataset(
            name, options.input_config, split=options.split, revision=options.input_revision, streaming=True
        )
    except Exception as error:
        raise Stop(f"{name} cannot be loaded as a dataset: {first_line(error)}. For a folder type ./{name}.") from error
    features = rows.features or {}
    column = options.blocks_column or next((c for c in features if c.endswith("blocks") or c == "layout"), None)
    if column not in features:
        raise Stop(f"{name} has no column {column or 'that ends in blocks'}. Name one with --blocks-column.")
    if options.id_column and options.id_column not in features:
        raise Stop(f"{name} has no column {options.id_column}. It has {', '.join(features)}.")
    has_pictures = options.image_column in features
    if has_pictures:
        rows = rows.cast_column(options.image_column, Image(decode=False))
    id_column = options.id_column or next((c for c in ("file_name", "id") if c in features), None)
    page_column = next((c for c in ("ocr_page", "page") if c in features), None)
    number, data = -1, None
    for row in rows:
        page = (row[page_column] or 1) if page_column else 1
        cell = row[options.image_column] if has_pictures else None
        number += 1
        if cell and (cell["bytes"] or cell["path"]):
            data, frame_offset = cell["bytes"] or cell["path"], page
        elif page == 1:
            data = None
        stem = str(row[id_column]) if id_column and row[id_column] else f"{options.split}-{number:09d}"
        stem = "/".join(safe_name(part) for part in re.sub(r"\.\w{2,4}$", "", stem).split("/"))
        stem += f"/page_{page:03d}" if page > 1 and page_number(stem) != page else ""
        if row[column] is None:
            continue
        try:
            document = parse_json(row[column])
        except ValueError as error:
            yield stem, f"the blocks are no JSON: {error}"
            continue
        for place, (name, blocks) in enumerate(pages_in(stem, document)):
            picture = None
            if data and not place:  # a document's bytes stand with its first page only, a window's picture is its first
                picture = functools.partial(read_picture, data, page - frame_offset, dpi_of(blocks))
            yield Sheet(name, blocks, picture, f"{name}.jpg", model_of(row.get("inference_info")))


def model_of(info):
    try:
        return parse_json(info)[-1].get("model_id") or ""
    except (TypeError, ValueError, LookupError, AttributeError):
        return ""


# ---- The run


def exported(sheet, options):
    """({suffix: bytes}, blocks) of one sheet. Raises PageError and ValueError."""
    encoded = page = ink = None
    if sheet.picture:
        encoded, page = sheet.picture()
        ink = ink_of(page.image)
    elif "pdf" in options.formats:
        raise PageError("there is no image for its PDF; name the folder of the images with --images")
    blocks = blocks_of(sheet.document, ink)
    files = {}
    for name, write in (("hocr", to_hocr), ("alto", to_alto), ("page", to_page)):
        if name in options.formats:
            files[FORMATS[name]] = write(sheet, blocks)
    if "pdf" in options.formats:
        files[FORMATS["pdf"]] = to_pdf(sheet, blocks, encoded, page, options)
    return files, blocks


def export(options):
    """Writes all files; returns the counts for the JSON line."""
    kind, place = where(options.output)
    if kind not in ("local", "bucket"):
        raise Stop(f"OUTPUT {options.output}: files go to a folder (./name) or a bucket (hf://buckets/ns/name/folder).")
    folders = Path(place).resolve().parents
    if kind == "local" and os.environ.get("JOB_ID") and not any(map(os.path.ismount, [place, *folders[:-1]])):
        raise Stop(f"OUTPUT {options.output} is gone when the job ends. Name a bucket, or a folder on a mount (-v).")
    storage, counts = open_storage(place), {"pages": 0, "files": 0, "blocks": 0, "blocks_on_print": 0, "errors": 0}
    for document, sheets in itertools.groupby(itertools.islice(sheets_of(options), options.max_samples), document_of):
        with tempfile.TemporaryDirectory(prefix="ocr-export-") as folder:
            pdfs = []
            for sheet in sheets:
                try:
                    if not isinstance(sheet, Sheet):
                        raise PageError(sheet[1])
                    files, blocks = exported(sheet, options)
                except (PageError, ValueError) as error:
                    say(f"{sheet[0]}: {error}")
                    counts["errors"] += 1
                    continue
                if pdf := files.pop(".pdf", None):
                    pdfs.append(os.path.join(folder, f"{len(pdfs)}.pdf"))
                    with open(pdfs[-1], "wb") as file:
                        file.write(pdf)
                storage.write({sheet.name + suffix: data for suffix, data in files.items()})
                counts["pages"] += 1
                counts["files"] += len(files)
                counts["blocks"] += len(blocks)
                counts["blocks_on_print"] += sum(block.on_print for block in blocks)
            if pdfs:
                storage.write({f"{document}.pdf": joined(pdfs)})
                counts["files"] += 1
    if not counts["pages"] and not counts["errors"]:
        raise Stop(f"{options.input} holds no blocks. Run a recipe that gives boxes, e.g. pp-ocrv6.py or dots-mocr.py.")
    return counts


def document_of(sheet):
    return re.sub(r"/page_\d+$", "", sheet[0])


def formats_of(text):
    names = text.split(",")
    if unknown := [name for name in names if name not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {','.join(FORMATS)}")
    return names


def option_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("input", metavar="INPUT", help="dataset ns/name with a blocks column, or folder or bucket of blocks documents")
    add("output", metavar="OUTPUT", help="folder, or hf://buckets/ns/name/folder")
    add("--formats", type=formats_of, default="hocr,alto,page", help=f"of {','.join(FORMATS)} (default %(default)s)")
    add("--images", metavar="FOLDER", help="where the images or PDFs of a folder's documents are (default: INPUT)")
    add("--blocks-column", help="column with the blocks (default: the first that ends in blocks)")
    add("--image-column", default="image", help="column with the page images (default %(default)s)")
    add("--id-column", help="column that names the files (default: file_name or id, else split and row number)")
    add("--split", default="train", help="split of the input dataset (default train)")
    add("--input-config", help="config of the input dataset")
    add("--input-revision", help="revision of the input dataset")
    add("--max-samples", type=whole_number, metavar="N", help="export only N pages")
    add("--dpi", type=whole_number, default=200,
        help="resolution that sets the size of PDF pages made of images (default 200)")  # fmt: skip
    add("--quality", type=whole_number, default=90, help="JPEG quality in PDFs of images that are no JPEG (default 90)")
    add("--max-error-rate", type=share_of_one, default=0.05, help="exit 3 if more pages fail, and 3 do (default 0.05)")
    return parser


def main():
    """0 done, 2 usage or nothing to export, 3 more pages failed than --max-error-rate."""
    options = option_parser().parse_args()
    return exit_code_of(lambda: report_export(options, export(options)))


def report_export(options, counts):
    allowed = max(2, options.max_error_rate * (counts["pages"] + counts["errors"]))
    code = 3 if counts["errors"] > allowed else 0
    say(", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()))
    print(json.dumps({"input": options.input, "output": options.output, **counts, "exit_code": code}))
    return code


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
# >>> kit/blocks.py
# The blocks document: one form for every model's boxes, so that one exporter serves all.


BLOCK_LABELS = (
    "title", "header", "footer", "page_number", "heading", "text", "list", "caption", "footnote", "table", "formula",
    "picture", "code", "form", "toc", "reference", "seal", "other",
)  # fmt: skip


def blocks_document(page, blocks, size=None):
    """Blocks document of one page: pixels of the original, x right, y down, clipped to the page.

    `blocks` are dicts with `bbox` [x0, y0, x1, y1] and any of `label`, `content`, `format` ("html", "latex",
    "markdown", "text"), `confidence`, `raw_label`; their order is the reading order. `size` is the
    (width, height) of the space the boxes are in: (1000, 1000) for normalised ones, `page.image.size` for pixels of
    what the model saw (the default). A box that is no four numbers, or has no area on the page, becomes null: its
    content stays. Raises ValueError for a label outside BLOCK_LABELS.
    """
    width, height = size or page.image.size
    document = {"schema": "ocr-blocks/1", "width": page.width, "height": page.height, "blocks": []}
    if page.dpi:
        document["dpi"] = page.dpi
    for order, block in enumerate(blocks):
        label = block.get("label", "text")
        if label not in BLOCK_LABELS:
            raise ValueError(f"unknown block label {label!r}; choose one of {', '.join(BLOCK_LABELS)}")
        document["blocks"].append(
            {
                "order": order,
                "label": label,
                "bbox": box_on_page(block.get("bbox"), page, width, height),
                "content": block.get("content", ""),
                "format": block.get("format", "text"),
                "confidence": block.get("confidence"),
                "raw_label": block.get("raw_label", label),
            }
        )
    return document


def box_on_page(box, page, width, height):
    """Box in a `width` x `height` space as [x0, y0, x1, y1] whole pixels of the original page, or None."""
    try:
        x0, y0, x1, y1 = (float(value) for value in box)
        x0, x1 = sorted((x0 * page.width / width, x1 * page.width / width))
        y0, y1 = sorted((y0 * page.height / height, y1 * page.height / height))
        x0, x1 = (min(max(round(x), 0), page.width) for x in (x0, x1))
        y0, y1 = (min(max(round(y), 0), page.height) for y in (y0, y1))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return [x0, y0, x1, y1] if x0 < x1 and y0 < y1 else None


# <<< kit/blocks.py

# >>> kit/seam.py
# The types that pass between a recipe's model part and the shared part.


class Stop(Exception):
    """Ends the run with one message for the user: what happened, what was found, what to type next.

    `code` is the exit code: 2 for usage and preflight, 1 for a stop that the same command resumes.
    """

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class PageError(Exception):
    """One page cannot be read; the message is the sentence that its row gets in `ocr_error`."""


@dataclass
class Page:
    """One page as the model sees it.

    `image` is RGB, upright, on white, and already inside the recipe's image bounds. `width` and `height` are the
    pixels of the original after orientation, the space of every bbox that leaves a recipe; for a PDF page they are
    the pixels at `dpi`. `partial` says that the file ended early and the lower part is missing.
    """

    image: object
    width: int
    height: int
    dpi: int | None = None
    partial: bool = False


@dataclass
class Unit:
    """What one answer is about: a page almost always, a window of pages, a whole document, or a text cell."""

    id: str
    pages: list
    text: str | None = None


@dataclass
class Item:
    """A unit before it is decoded, as the source yields it. Picklable and small: bytes are one page's, or absent.

    `parts` holds one `(data, frame)` per page: data is the encoded bytes, a local path or an `hf://` URI, and frame
    the 0-based page of a PDF or frame of a TIFF or GIF. `row` is the row in the source split (or the position in the
    sorted file list), `page` the 1-based page within that row or file, `pages` how many it has, `name` the output
    name without suffix. `error` is set where the source holds nothing to read.
    """

    id: str
    row: int
    name: str
    parts: list = field(default_factory=list)
    text: str | None = None
    page: int = 1
    pages: int = 1
    error: str | None = None


class Answer(NamedTuple):
    """What the model said to one request. `flags` are those of `flags_of`; `logprobs` one float per output token."""

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: tuple = ()
    logprobs: list | None = None


@dataclass
class Parsed:
    """A recipe's reading of one unit. `markdown` is "" for a blank page and never a sentinel.

    `blocks` is a blocks document (or None), `columns` the recipe's own output columns, `flags` what the parser
    noticed: "unparsed" (the model's protocol was broken; asked again), "repaired", or words of the recipe's own.
    `answers` are those that the reading was made of, where `steps` threw others away; None is all of them. Their flags
    become the row's.
    """

    markdown: str | None
    blocks: dict | None = None
    columns: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    answers: list | None = None


def say(message):
    """Tells the human: stderr, flushed, so that a job log shows it at once. stdout is for the one JSON line."""
    with contextlib.suppress(OSError):  # a terminal that was closed costs no page
        print(message, file=sys.stderr, flush=True)


# <<< kit/seam.py

# >>> kit/storage.py
# Where results are kept, a folder here or in a bucket, and the patience that every write to the Hub needs.


FIRST_WAIT, LONGEST_WAIT, PATIENCE = 2.0, 60.0, 600.0  # seconds
FIRST_PATIENCE = 30.0  # before anything has been read
RECENT = 120.0  # seconds in which a run that is at work has written its next part


def persist(call, patience=None):
    """`call()`, again with growing waits while the Hub is busy: conflicts (409, 412), 408, 429, 5xx, lost connections.

    A `Retry-After` is honoured. Needed because huggingface_hub 2.4 retries neither commits nor repository creation.
    Raises the last error after `patience` (PATIENCE) seconds, any other error at once.
    """
    wait, end = FIRST_WAIT, time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        try:
            return call()
        except Exception as error:
            asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
            pause = max(float(asked) if asked.isdigit() else 0.0, wait * random.uniform(0.5, 1))
            if not is_passing(error) or time.monotonic() + pause > end:
                raise
            said = "The Hub answered" if hasattr(error, "response") else "The Hub cannot be reached"
            say(f"{said}: {first_line(error)}. Trying again in {pause:.0f} s.")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)


def is_passing(error):
    """Whether trying again may help: the Hub or the way to it is busy or broken for the moment."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 409, 412, 425, 429) or status >= 500
    transports = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # the client library differs by hub version
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.split(".")[0] in transports:
        return True
    if isinstance(error, RuntimeError) and "xet" in str(error).lower():  # hf_xet's failures have no class of their own
        return True
    return error.__cause__ is not None and is_passing(error.__cause__)


def first_line(error):
    """One line about an exception: its type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def unique_stamp():
    """A name part that sorts by time and is unique across processes and machines."""
    return f"{time.time_ns() // 1_000_000:013d}-{os.getpid()}-{secrets.token_hex(4)}"


def open_storage(uri):
    """A `BucketFolder` for `hf://buckets/...`, else a `LocalFolder`. Raises Stop where the bucket cannot be made."""
    return BucketFolder(uri) if uri.startswith("hf://buckets/") else LocalFolder(uri)


class LocalFolder:
    """Files under one folder. A file appears whole or not at all; what is half written lies under `.tmp`."""

    def __init__(self, path):
        self.where = str(path)
        self.root = Path(path).expanduser()
        self.scratch = self.root / ".tmp"

    def claim(self, name):
        """Takes a lock that ends with this process, or with `close` of what is returned. Raises Stop if it is taken."""
        try:
            import fcntl
        except ImportError:  # Windows
            return io.BytesIO()
        self.scratch.mkdir(parents=True, exist_ok=True)
        lock = open(self.scratch / f"{name}.lock", "wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Stop(
                f"Another run of this command is at work in {self.where}. Wait for it, or share the work by --shard "
                "0/2 and --shard 1/2.",
                code=1,
            ) from None
        except OSError:  # a mount without locks
            pass
        return lock

    def list(self):
        """The relative paths of all files, sorted."""
        found, folders = [], [str(self.root)] if self.root.is_dir() else []
        while folders:
            for entry in os.scandir(folders.pop()):
                if not entry.is_dir(follow_symlinks=False):
                    found.append(os.path.relpath(entry.path, self.root).replace(os.sep, "/"))
                elif entry.name != ".tmp":
                    folders.append(entry.path)
        return sorted(found)

    def open(self, name):
        """A binary file to read."""
        return open(self.root / name, "rb")

    def write(self, files):
        """Writes each of `files`, a dict from relative path to bytes. Raises OSError."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            part, target = self.scratch / unique_stamp(), self.root / name
            part.write_bytes(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)

    def remove(self, names):
        """Removes files, what killed runs left half written, and then the folder if it is empty."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # something else is kept there
            self.root.rmdir()
            if self.root.parent.name == ".ocr-runs":
                self.root.parent.rmdir()


class BucketFolder:
    """The same methods over a folder of a bucket, made private where it is missing. All wait out a busy Hub."""

    scratch = None

    def __init__(self, uri):
        from huggingface_hub import HfApi, HfFileSystem
        from huggingface_hub.errors import HfHubHTTPError

        owner, name, *path = uri.removeprefix("hf://buckets/").strip("/").split("/")
        self.where, self.bucket, self.prefix = uri, f"{owner}/{name}", "".join(f"{part}/" for part in path)
        self.api, self.files = HfApi(), HfFileSystem(skip_instance_cache=True)
        try:
            persist(lambda: self.api.create_bucket(self.bucket, private=True, exist_ok=True))
        except HfHubHTTPError as error:
            raise Stop(
                f"The bucket {self.bucket} cannot be made or written: {first_line(error)}. "
                "Name another place: --checkpoint hf://buckets/OWNER/NAME/FOLDER or --checkpoint FOLDER."
            ) from error

    def claim(self, name):
        """No lock, which buckets do not have: two runs at once lose no page, and pay twice. Says where it may be so."""
        written = [int(when) for path in self.list() for when in re.findall(r"-(\d{13})-\d+-[0-9a-f]{8}\.", path)]
        ago = time.time() - max(written, default=0) / 1000
        if name == "run" and ago < RECENT:  # a shard has others beside it
            say(
                f"Results were written to {self.where} {max(ago, 0):.0f} s ago. If the run that wrote them is still at "
                "work, both read the same pages: stop one, or share the work by --shard 0/2 and --shard 1/2."
            )
        return io.BytesIO()

    def list(self):
        self.files.invalidate_cache()
        tree = persist(lambda: list(self.api.list_bucket_tree(self.bucket, self.prefix or None, recursive=True)))
        return sorted(entry.path.removeprefix(self.prefix) for entry in tree if entry.type == "file")

    def open(self, name):
        return persist(lambda: self.files.open(f"hf://buckets/{self.bucket}/{self.prefix}{name}", "rb"))

    def write(self, files):
        added = [(data, self.prefix + name) for name, data in files.items()]
        if added:
            persist(lambda: self.api.batch_bucket_files(self.bucket, add=added))

    def remove(self, names):
        gone = [self.prefix + name for name in names]
        if gone:
            persist(lambda: self.api.batch_bucket_files(self.bucket, delete=gone))


# <<< kit/storage.py

# >>> kit/pages.py
# Encoded bytes, a path or a URI to one upright RGB page on white.


# A page is handed over with at most this many pixels, whatever the bounds: 150 MB as RGB. Larger ones are reduced.
PAGE_PIXELS = 50_000_000
# What the decoded file itself may take in memory: 2 gigapixels of grey, 536 megapixels of colour. JPEG, JPEG 2000
# and PDF are reduced while they are decoded and seldom come near it.
PAGE_BYTES = 2 * 2**30
# Named, so that no file starts Ghostscript (EPS, PDF) or meets a format without a signature (TGA).
PILLOW_FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP")
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MULTI_PAGE_SIGNATURES = (*TIFF_SIGNATURES, b"GIF8")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
PDFIUM_LOCK = threading.Lock()  # pdfium is not thread-safe


def open_page(data, frame=0, *, dpi=200, bounds=None):
    """One page as `Page`: RGB, upright, on white, fitted to `bounds` (see `fit`).

    `data` is the encoded bytes, a local path or an `hf://` URI; `frame` the 0-based page of a PDF or frame of a TIFF
    or GIF; `dpi` the resolution of PDF pages. 16-bit, 32-bit and float pixels are scaled to 8 bits
    (see `_value_range`). What a cut file still holds comes back as `partial`, white where nothing came.
    Raises PageError for everything that cannot be read. Sets `PIL.Image.MAX_IMAGE_PIXELS` for the process, as
    `PAGE_BYTES` takes its place.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            return _pdf_page(data, frame, dpi, bounds)
        if frame and not head.startswith(MULTI_PAGE_SIGNATURES):
            raise PageError(f"there is no page {frame + 1}: the file has one")
        try:
            image, size, partial = _pillow_decode(stream, head, frame, bounds)
        except PageError:
            raise
        except Exception as error:  # Pillow's parsers raise whatever they stumble over
            image, partial = _other_decode(stream, head, frame, error), False
            size = image.size
    orientation = _orientation(image)
    if orientation > 4:
        size = size[::-1]
    try:
        image = _flatten(image, shrink=max(1, math.isqrt(image.width * image.height // PAGE_PIXELS)))
    except Exception as error:
        raise PageError(f"the pixels ({image.mode}) cannot be turned into RGB: {error}") from error
    if partial:
        image = _whiten_missing_rows(image)
    image = _turn_upright(fit(image, bounds), orientation).convert("RGB")
    return Page(image, *size, partial=partial)


def count_pages(data):
    """Pages of a PDF, frames of a TIFF or GIF, 1 for everything else, of which only the first bytes are looked at.

    Reduced copies inside a TIFF (thumbnails, pyramid levels) are not pages, nor are the frames of an animated WebP or
    PNG. Raises PageError where there is no file, and for a broken PDF, TIFF or GIF.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            with PDFIUM_LOCK:
                return len(_pdf_document(data))
        if not head.startswith(MULTI_PAGE_SIGNATURES):
            return 1
        try:
            image = _pillow_open(stream)
        except Exception:  # imagecodecs may read it, or open_page says what is wrong
            return 1
        try:
            return sum(1 for _ in _page_frames(image))
        except Exception as error:
            raise PageError(_describe(head, error)) from error


def fit(image, bounds):
    """`image` reduced, never enlarged, to `bounds` and to PAGE_PIXELS.

    `bounds` may have `max_side`, `max_pixels` and `resample` ("lanczos", the default, or "bicubic").
    """
    size = _fitted_size(image.size, bounds)
    if size == image.size:
        return image
    from PIL import Image

    resample = Image.Resampling[((bounds or {}).get("resample") or "lanczos").upper()]
    # At a gap of 3 the result is indistinguishable from a full resampling (Pillow's documentation).
    return image.resize(size, resample, reducing_gap=3.0)


def image_bounds(options, recipe):
    """The recipe's bounds for `fit`, with a recipe's own `--max-pixels` or `--max-side` (0 for none) in their place."""
    chosen = {key: getattr(options, key, None) for key in ("max_side", "max_pixels")}
    return (recipe.get("image") or {}) | {key: value for key, value in chosen.items() if value is not None}


def source_bytes(data):
    """The encoded bytes behind `data`. Raises PageError where there is nothing to read."""
    with _open_stream(data) as stream:
        return stream.read()


def sha256_of(data):
    """Hex SHA-256 of the encoded bytes behind `data`."""
    return hashlib.sha256(source_bytes(data)).hexdigest()


def _open_stream(data):
    if data is None:
        raise PageError("there is no image: the cell is empty (null)")
    if not isinstance(data, str):
        return io.BytesIO(data)
    if data.startswith("hf://"):
        return io.BytesIO(_fetch(data))
    try:
        return open(data, "rb")
    except OSError as error:
        raise PageError(f"cannot open {data}: {error.strerror}") from error


@functools.lru_cache(maxsize=1)  # the pages of one file follow each other
def _fetch(uri):
    from huggingface_hub import HfFileSystem

    try:
        return persist(lambda: HfFileSystem().cat_file(uri), patience=300)  # a worker may be silent for 600 s
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def _peek(stream):
    head = stream.read(1024)
    stream.seek(0)
    if not head:
        raise PageError("the file is empty (0 bytes)")
    return head


def _describe(head, error):
    """The sentence for a file that is no image, or a broken one."""
    start = head[:40].lstrip(b"\xef\xbb\xbf \r\n\t")
    known = {
        b"version https://git-lfs": "a Git LFS pointer; run `git lfs pull`",
        b"<!doctype html": "HTML",
        b"<html": "HTML",
        b"<svg": "SVG; render it to PNG first",
        b"<?xml": "XML",
        b"{": "JSON",
        b"pk\x03\x04": "a ZIP archive; unpack it first",
        b"\x1f\x8b": "gzip; unpack it first",
        b"%!ps": "PostScript; convert it with `ps2pdf`",
        b"at&tform": "DjVu; convert it with `ddjvu -format=pdf`",
    }
    what = next((name for signature, name in known.items() if start.lower().startswith(signature)), None)
    if what is None and start.isascii() and start.decode("ascii").isprintable():
        what = "text"
    shown = repr(start)[1:] if start.isascii() else start[:16].hex(" ")
    if what:
        return f"not an image: the file starts with {shown} (looks like {what})"
    return f"not a readable image: the file starts with {shown} ({type(error).__name__}: {error})"


def _fitted_size(size, bounds):
    bounds = bounds or {}
    max_pixels = min(bounds.get("max_pixels") or PAGE_PIXELS, PAGE_PIXELS)
    max_side = bounds.get("max_side") or max(size)
    scale = min(1.0, max_side / max(size), math.sqrt(max_pixels / math.prod(size)))
    return tuple(max(1, math.floor(side * scale + 1e-6)) for side in size)


def _pillow_open(stream):
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = PAGE_BYTES  # Pillow's own limit warns at 89 and refuses at 179 megapixels
    return Image.open(stream, formats=PILLOW_FORMATS)


def _pillow_decode(stream, head, frame, bounds):
    """The loaded image in its own mode, its size before any reduction, and whether the file ended early."""
    image = _pillow_open(stream)
    if head.startswith(MULTI_PAGE_SIGNATURES):
        number = next(itertools.islice(_page_frames(image), frame, None), None)
        if number is None:
            raise PageError(f"there is no page {frame + 1}: the file has {sum(1 for _ in _page_frames(image))}")
        image.seek(number)
    size = image.size
    target, reduction = _fitted_size(size, bounds), 0
    if image.format in ("JPEG", "MPO"):
        # Decodes to half, a quarter or an eighth where that is still inside the target: 100 ms instead of 206 for
        # 2480 x 3508 to 1540, at the same character error rate (PP-OCRv6, letters of 28 and 34 px before).
        image.draft(None, target)
    elif image.format == "JPEG2000":
        image.reduce = reduction = _jpeg2000_reduction(head, size, target)
    width, height = image.size
    needed = width * height * {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)
    if image.info.get("progressive"):  # libjpeg keeps all coefficients, at full size
        needed = size[0] * size[1] * 2 * len(image.getbands())
    if needed > PAGE_BYTES:
        raise PageError(
            f"the page is too large: {size[0]} x {size[1]} pixels of {image.format} take {needed / 2**30:.1f} GiB to "
            f"decode, and {PAGE_BYTES / 2**30:.0f} GiB are allowed; scale it down first"
        )
    try:
        image.load()
    except Exception:
        if reduction:
            # Reduced decoding failed now and then in a public run. Without its head the file has no levels to use.
            stream.seek(0)
            return _pillow_decode(stream, b"", frame, bounds)
        if image.info.get("progressive"):  # without an end marker libjpeg gives nothing of a progressive file
            image.load_read = lambda size: stream.read(size) or b"\xff\xd9"
        else:
            image.tile = []  # what was decoded stays in the buffer, zero where nothing came
        image.load()
        return image, size, True
    return image, size, False


def _page_frames(image):
    """Frame numbers of the pages of a TIFF or GIF; reduced copies in a TIFF (tag 254, bit 0) are not pages."""
    if image.format == "GIF":
        yield from range(image.n_frames)
        return
    for frame in itertools.count():
        try:
            image.seek(frame)
        except EOFError:
            return
        if frame == 0 or not image.tag_v2.get(254, 0) & 1:
            yield frame


def _jpeg2000_reduction(head, size, target):
    """How many times decoding may halve the page: inside `target`, and inside the levels that the file has."""
    code = head.find(b"\xff\x52")  # the COD marker; the decomposition levels are its tenth byte
    levels = head[code + 9] if 0 <= code < len(head) - 9 else 0
    for level in range(levels, 0, -1):
        step = 2**level
        reduced = [math.ceil(side / step) for side in size]
        # Pillow rounds where OpenJPEG takes the ceiling, and fails where the two differ.
        agree = reduced == [(side + step // 2) // step for side in size]
        if agree and reduced[0] >= target[0] and reduced[1] >= target[1]:
            return level
    return 0


def _other_decode(stream, head, frame, error):
    """What Pillow cannot read: HEIC through pillow-heif, the rest through imagecodecs."""
    names = {
        b"\xff\x0a": "jpegxl",
        b"\0\0\0\x0cJXL ": "jpegxl",
        b"II\xbc": "jpegxr",
        b"\xff\xd8\xff": "jpeg",
        b"\x89PNG": "png",
        **dict.fromkeys(TIFF_SIGNATURES, "tiff"),
    }
    name = next((name for signature, name in names.items() if head.startswith(signature)), None)
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        name = "heic"
    if name is None:
        raise PageError(_describe(head, error)) from error
    stream.seek(0)
    data = stream.read()
    try:
        return _heic_decode(data) if name == "heic" else _imagecodecs_decode(name, frame, data)
    except ImportError as missing:
        library = (missing.name or "imagecodecs").partition(".")[0].replace("_", "-")
        raise PageError(f"this {name} file needs {library}: add `--with {library}` after `uv run`") from missing
    except Exception as second:
        raise PageError(_describe(head, second)) from second


def _heic_decode(data):
    import pillow_heif

    return pillow_heif.open_heif(data).to_pillow()


def _imagecodecs_decode(name, frame, data):
    import imagecodecs
    import numpy as np
    from PIL import Image

    decode = getattr(imagecodecs, f"{name}_decode")
    pixels = np.squeeze(decode(data, index=frame) if name == "tiff" else decode(data))
    if pixels.dtype != np.uint8:
        pixels = _scaled_to_8_bits(pixels, *_value_range(pixels))
    return Image.fromarray(pixels)


def _value_range(pixels):
    """The values that become 0 and 255: 0 and the top of the range that the data uses.

    Integers: the smallest of 8, 10, 12, 14, 16 bits that holds the largest value, so that a 16-bit scan is divided by
    257 and never stretched. Floats: 0 to 1, 0 to 255, 0 to 65,535. Whatever fits none of these: smallest to largest.
    """
    import numpy as np

    low, high = np.fmin.reduce(pixels, axis=None), np.fmax.reduce(pixels, axis=None)  # these pass over NaN
    if not (np.isfinite(low) and np.isfinite(high)):
        return 0, 1
    if pixels.dtype.kind == "f":
        tops = {1: 0, 255: 128, 65535: 32768}
    else:
        tops = {255: 0, 1023: 256, 4095: 1024, 16383: 4096, 65535: 16384}
    for top, least in tops.items():
        if 0 <= low and least <= high <= top:
            return 0, top
    return low, high


def _scaled_to_8_bits(pixels, low, high):
    import numpy as np

    span = float(high) - float(low) or 1.0
    scaled = (np.nan_to_num(pixels.astype(np.float32), nan=float(high)) - float(low)) * (255 / span)
    return scaled.round().clip(0, 255).astype(np.uint8)


def _flatten(image, shrink=1):
    """`image` as 8-bit L or RGB on white, its sides divided by `shrink`, in bands so that memory stays bounded."""
    from PIL import Image

    scale = None
    if image.mode.startswith(("I", "F")):
        import numpy as np

        low, high = _value_range(np.asarray(image))
        inverted = image.format == "TIFF" and image.tag_v2.get(262) == 0  # white is zero; Pillow inverts 8 bits only
        scale = (high, low) if inverted else (low, high)
    if shrink == 1 and not scale:
        return _on_white(image, None)
    rows = shrink * max(1, 2**24 // (image.width * shrink))
    flat = None
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band = _on_white(band, scale).reduce(shrink)
        flat = flat or Image.new(band.mode, (band.width, math.ceil(image.height / shrink)))
        flat.paste(band, (0, top // shrink))
    return flat


def _on_white(image, scale):
    from PIL import Image

    if scale:
        import numpy as np

        return Image.fromarray(_scaled_to_8_bits(np.asarray(image), *scale))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        page = Image.new("RGB", image.size, "white")
        page.paste(image, mask=image.getchannel("A"))
        return page
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _whiten_missing_rows(image):
    """White below the last row that was decoded. Raises PageError where nothing was, or nothing but one colour."""
    box = image.getbbox()
    extrema = image.crop(box).getextrema() if box else ()
    bands = extrema if extrema and isinstance(extrema[0], tuple) else (extrema,)
    if not box or all(low == high for low, high in bands):
        raise PageError("the file ends early, before anything that could be read")
    image.paste("white", (0, box[3], image.width, image.height))
    return image


def _orientation(image):
    try:
        return int(image.getexif().get(274, 1))
    except Exception:  # one bad byte in the EXIF block is no reason to lose the page
        return 1


def _turn_upright(image, orientation):
    from PIL.Image import Transpose as turn

    method = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _pdf_document(data):
    """The opened PDF; call it with PDFIUM_LOCK held."""
    if isinstance(data, str) and not data.startswith("hf://"):
        status = os.stat(data)
        return _open_pdf(data, (status.st_mtime_ns, status.st_size))
    return _open_pdf(_fetch(data) if isinstance(data, str) else bytes(data), None)


@functools.cache
def _pdfium():
    import pypdfium2

    atexit.register(_open_pdf.cache_clear)  # before pypdfium2 looks for what is still open, and complains of it
    return pypdfium2


@functools.lru_cache(maxsize=1)  # opening a PDF of 1,000 pages again for each page would take most of the time
def _open_pdf(source, version):
    pdfium = _pdfium()
    try:
        document = pdfium.PdfDocument(source)
        document.init_forms()
    except Exception as error:
        # For a PDF without pages pdfium reports its last error code, whatever file that came from.
        if getattr(error, "err_code", None) == 4 and b"/Encrypt" in source_bytes(source):  # FPDF_ERR_PASSWORD
            raise PageError("the PDF is encrypted and needs a password; remove it with `qpdf --decrypt`") from error
        raise PageError(f"the PDF is broken or has no pages ({error})") from error
    return document


def _pdf_page(data, frame, dpi, bounds):
    with PDFIUM_LOCK:
        document = _pdf_document(data)
        if frame >= len(document):
            raise PageError(f"there is no page {frame + 1}: the PDF has {len(document)}")
        try:
            page = document[frame]
            width, height = (math.ceil(points * dpi / 72) for points in page.get_size())
            scale = min(1.0, math.sqrt(PAGE_PIXELS / (width * height)))
            image = page.render(scale=scale * dpi / 72, rev_byteorder=True).to_pil()
            page.close()
        except Exception as error:
            raise PageError(f"page {frame + 1} of the PDF cannot be rendered: {error}") from error
    return Page(fit(image.convert("RGB"), bounds), width, height, dpi=dpi)


# <<< kit/pages.py

# >>> kit/items.py
# What INPUT and OUTPUT name, and the `Item`s of rows and files: pages, windows, and what is done.


MULTI_PAGE_SUFFIXES = (".pdf", ".tif", ".tiff", ".gif")


def where(text):
    """What INPUT or OUTPUT names: ("hub", "ns/name"), ("bucket", uri), ("hub-files", uri) or ("local", path)."""
    if not text.strip():
        raise Stop("INPUT or OUTPUT is empty, perhaps a variable that is not set. For this folder type a dot.")
    parts = text.removeprefix("hf://").strip("/").split("/")
    if text.startswith("hf://buckets/") and len(parts) >= 3:
        return "bucket", text.rstrip("/")
    if text.startswith("hf://datasets/") and len(parts) >= 4:
        return "hub-files", text.rstrip("/")
    if text.startswith("hf://datasets/") and len(parts) == 3 and "@" not in text:
        return "hub", "/".join(parts[1:])
    if "://" in text:
        raise Stop(
            f"{text} is not a place that can be read or written here. Type ns/name for a dataset on the Hub "
            "(--input-revision for one of its revisions), hf://datasets/ns/name/*.pdf for files in it, "
            "hf://buckets/ns/name/folder for a bucket, or a local path."
        )
    path = os.path.expanduser(text)
    if text.startswith((".", "/", "~")) or len(parts) == 1 or os.path.exists(path) or glob.has_magic(path):
        return "local", path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return "hub", text
    raise Stop(f"{text} is no path that exists here and no dataset (ns/name). For a local path type ./{text}.")


def windows(items, n, place):
    """Groups the pages of a document into Items of `n` parts, or into one where `n` is None.

    `place(item)` gives the document's id, its output name, and the page's 1-based number in it. Windows start at 1,
    n + 1, 2n + 1 ... and end at a gap, so that they are the same whatever has been skipped.
    """

    def window_of(numbered):
        position, item = numbered
        document, name, number = place(item)
        return document, name, n and (number - 1) // n, number - position

    for (document, name, *_), pages in groupby(enumerate(items), key=window_of):
        window = [item for _, item in pages]
        first, start, end = window[0], place(window[0])[2], place(window[-1])[2]
        if first.error or (n and start == end == 1):
            yield from window
            continue
        suffix = f"/pages_{start:04d}-{end:04d}" if n else ""
        yield Item(
            id=(document + suffix).lstrip("/"),
            row=first.row,
            name=(name + suffix).lstrip("/"),
            parts=[part for item in window for part in item.parts],
            page=start,
            pages=max(first.pages, end),
        )


def is_finished(id, done, n):
    """Whether all pages (or windows of `n`, or the document) of a row or file are done, by what its first recorded."""
    if n is None:
        return id in done
    for first in (id, f"{id}/page_001"):
        if first in done:
            return all(f"{id}/page_{page:03d}" in done for page in range(2, (done.pages(first) or 1) + 1))
    for end in range(n, 1, -1):
        if (first := f"{id}/pages_0001-{end:04d}") in done:
            pages = done.pages(first) or end
            starts = range(n + 1, pages + 1, n)
            return all(f"{id}/pages_{start:04d}-{min(start + n - 1, pages):04d}" in done for start in starts)
    return False


class Spool(str):
    """Path of a temporary file that is deleted when nothing refers to this object any more. Pickles as a plain str."""

    def __new__(cls, suffix=""):
        handle, path = tempfile.mkstemp(prefix="ocr-", suffix=suffix)
        os.close(handle)
        spool = super().__new__(cls, path)
        weakref.finalize(spool, cls.discard, path, os.getpid())
        return spool

    @staticmethod
    def discard(path, owner):
        if os.getpid() == owner and os.path.exists(path):  # a forked worker holds a copy of the object
            os.unlink(path)

    def __reduce__(self):
        return str, (str(self),)


def copy_of(uri):
    """A local copy of a file on the Hub, as a Spool. Raises PageError."""
    import fsspec

    def copy():
        files, path = fsspec.core.url_to_fs(uri)  # not fsspec.open, to which x[1].png is a pattern
        spool = Spool(os.path.splitext(path)[1])
        with files.open(path, "rb") as source, open(spool, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 23)
        return spool

    try:
        return persist(copy)
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def pages_of(item, data, is_file):
    """Yields one Item per page of a row or file, or one with `error`. PDF, TIFF and GIF are opened to count pages.

    `data` is bytes, a local path, an hf:// URI, or a list of these. The first page of a row keeps the row's id; all
    pages of a PDF file are numbered, and those of a TIFF or GIF file that has several.
    """
    parts, is_pdf = [(entry, 0) for entry in data] if isinstance(data, list) else [(data, 0)], False
    try:
        if isinstance(data, str) and data.lower().endswith(MULTI_PAGE_SUFFIXES):
            is_pdf = data.lower().endswith(".pdf")
            data = copy_of(data) if data.startswith("hf://") else data
            parts = [(data, frame) for frame in range(count_pages(data))]
        elif isinstance(data, bytes) and (pages := count_pages(data)) > 1:
            spool = Spool()  # the pages go to workers one by one, and not each with the bytes of all
            with open(spool, "wb") as target:
                target.write(data)
            parts = [(spool, frame) for frame in range(pages)]
    except PageError as error:
        yield replace(item, error=str(error))
        return
    for page, part in enumerate(parts, 1):
        numbered = page > 1 or (is_file and (is_pdf or len(parts) > 1))
        suffix = f"/page_{page:03d}" if numbered else ""
        yield replace(item, id=item.id + suffix, name=item.name + suffix, parts=[part], page=page, pages=len(parts))


def chosen_rows(options, total):
    """The rows of `--max-samples`, or None for all: the first ones, or `random.Random(seed).sample` of all."""
    if not options.max_samples or (total is not None and options.max_samples >= total):
        return None
    if options.shuffle:
        return set(random.Random(options.seed).sample(range(total), options.max_samples))
    return range(options.max_samples)


def in_shard(number, options):
    return not options.shard or number % options.shard[1] == options.shard[0]


def safe_name(id):
    """A file name for any id: what a file system may refuse is written %XX, and long ones end in a digest."""
    name = re.sub(r"[^\w .,=+@()-]|^\.", lambda char: f"%{ord(char[0]):02X}", id)
    return name if len(name.encode()) <= 200 else f"{name[:40]}-{hashlib.sha256(id.encode()).hexdigest()[:16]}"


# <<< kit/items.py

# >>> kit/rows.py
# Rows of one split on the Hub: of parquet files just the row groups and columns needed, others streamed.


BATCH_ROWS = 16  # pages are about 1 MB each


class ParquetRows:
    """Rows of parquet files on the Hub, of which only the row groups and columns needed are fetched."""

    def __init__(self, builder, uris, split):
        from datasets import Features
        from huggingface_hub import HfFileSystem

        self.files, self.uris = HfFileSystem(), uris
        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(lambda uri: persist(lambda: self.footer(uri)), uris))
        self.group_rows = [rows for rows, _ in footers]
        self.features = builder.info.features or Features.from_arrow_schema(footers[0][1])
        self.total = sum(map(sum, self.group_rows))

    def footer(self, uri):
        import pyarrow.parquet as pq

        with self.open(uri) as file:
            footer = pq.read_metadata(file)
        return [
            footer.row_group(group).num_rows for group in range(footer.num_row_groups)
        ], footer.schema.to_arrow_schema()

    def open(self, uri):
        return self.files.open(uri, cache_type="none")  # pyarrow asks for just the ranges that it needs

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        for uri, counts in zip(self.uris, self.group_rows, strict=True):
            groups = []
            for group, count in enumerate(counts):
                if any(map(wanted, range(row, row + count))):
                    groups.append((group, row))
                row += count
            if not groups:
                continue
            with self.open(uri) as file:
                parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 23)  # else a row group is in memory
                for group, start in groups:
                    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        rows = [number for number in range(start, start + batch.num_rows) if wanted(number)]
                        table = pa.Table.from_batches([batch]).select(columns)
                        if rows:
                            yield rows, table if len(rows) == len(table) else table.take([r - start for r in rows])
                        start += batch.num_rows


class StreamedRows:
    """Rows of any other format that `datasets` streams, undecoded, so that skipping an image by path costs nothing."""

    def __init__(self, builder, uris, split):
        self.dataset = builder.as_streaming_dataset(split=split)
        self.features = self.dataset.features
        self.dataset = self.dataset.decode(False)
        self.total = builder.info.splits[split].num_examples if builder.info.splits else None

    def count(self):
        return sum(1 for _ in self.dataset)

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        from datasets import Dataset

        dataset = self.dataset.select_columns(columns)
        rows = ((row, cells) for row, cells in enumerate(islice(dataset, stop)) if wanted(row))
        while batch := list(islice(rows, BATCH_ROWS)):
            numbers, cells = zip(*batch, strict=True)
            yield list(numbers), Dataset.from_list(list(cells), features=dataset.features).data.table


# <<< kit/rows.py

# >>> kit/files.py
# Source: images, PDFs or text files in a folder, a glob, a bucket, or a dataset's repository.


PAGE_SUFFIXES = MULTI_PAGE_SUFFIXES + tuple(
    ".png .jpg .jpeg .jpe .jfif .bmp .webp .jp2 .j2k .jpx .heic .heif .avif .pbm .pgm .ppm .pnm".split()
)
TEXT_SUFFIXES = (".txt", ".md")


class FileSource:
    """Images and PDFs, or text files: one file, a folder, a glob, a bucket, or files of a dataset repository."""

    def __init__(self, options, recipe, kind, uri):
        self.options, self.is_local, self.columns = options, kind == "local", []
        self.per_unit = recipe.get("pages_per_unit", 1)
        self.is_text = bool(options.text_column) or recipe.get("input") == "text"
        self.base, found, revision = local_files(uri) if self.is_local else hub_files(kind, uri, options)
        suffixes = TEXT_SUFFIXES if self.is_text else PAGE_SUFFIXES
        self.files = self.without_output(name for name in found if is_input(name, suffixes))
        self.files.sort(key=lambda name: (os.path.dirname(name).split("/"), name))
        if not self.files:
            raise Stop(f"{uri}: no files to read. Looked for {' '.join(suffixes)}, not in hidden folders or _run/.")
        self.starts = {}  # the first file of each folder, whose one-page files make one document
        for row, file in enumerate(self.files):
            self.starts.setdefault(os.path.dirname(file), row)
        self.chosen = chosen_rows(options, len(self.files))
        self.total = sum(1 for _ in self.selected())
        self.identity = {"kind": kind, "uri": os.path.abspath(uri) if self.is_local else uri, "revision": revision}
        kinds = {"local": "local files", "bucket": "bucket", "hub-files": "files of the dataset repository"}
        self.describe = f"{kinds[kind]} {uri}, {self.total:,} of {len(self.files):,} files"

    @property
    def features(self):
        from datasets import Features, Image, Value

        content = {"text": Value("string")} if self.is_text else {"image": Image()}
        return Features({"file_name": Value("string"), **content})

    def without_output(self, found):
        """The input files, less what lies in an output folder inside the input folder. Raises Stop for a clash."""
        kind, out = where(self.options.output)
        if kind == "hub":
            return list(found)
        out = os.path.abspath(out) if kind == "local" else out
        if out == self.base and self.is_text:
            raise Stop(f"{self.options.output} is the input folder, whose files would be overwritten. Name another.")
        files, taken = [], {}
        for file in found:
            if out.startswith(f"{self.base}/") and f"{self.base}/{file}".startswith(f"{out}/"):
                continue
            files.append(file)
            name = self.name_of(file)
            if name in taken:
                raise Stop(f"{taken[name]} and {file} would both become {name}.md. Add --keep-extension.")
            taken[name] = file
        documents = {self.name_of(file): file for file in files if file.lower().endswith(MULTI_PAGE_SUFFIXES)}
        for name, file in taken.items():
            parent, _, leaf = name.rpartition("/")
            if parent in documents and re.match(r"pages?_\d", leaf):
                raise Stop(f"{file} and a page of {documents[parent]} would both become {name}.md. Move one of them.")
        return files

    def name_of(self, file):
        return file if self.options.keep_extension else os.path.splitext(file)[0]

    def selected(self, all_shards=False):
        for row, file in enumerate(self.files):
            turn = row if self.per_unit == 1 else self.starts[os.path.dirname(file)]
            if (self.chosen is None or row in self.chosen) and (all_shards or in_shard(turn, self.options)):
                yield row, file

    def pages(self, row, file):
        """Yields the Items of one file, one per page."""
        item, path = Item(id=file, row=row, name=self.name_of(file)), f"{self.base}/{file}"
        if not self.is_text:
            yield from pages_of(item, path, is_file=True)
            return
        try:
            with open(path if self.is_local else copy_of(path), encoding="utf-8-sig") as text:
                yield replace(item, text=text.read())
        except (OSError, UnicodeDecodeError, PageError) as error:
            yield replace(item, error=f"cannot read {path} as UTF-8 text: {first_line(error)}")

    def place(self, item):
        """The document of a page: its file, or for windows of one-page files their folder."""
        file = self.files[item.row]
        if item.error or item.id != file or not self.per_unit:
            return file, self.name_of(file), item.page
        folder = os.path.dirname(file)
        return folder, folder, item.row - self.starts[folder] + 1

    def items(self, done):
        left = ((row, file) for row, file in self.selected() if not is_finished(file, done, self.per_unit))
        return (item for item in self.units(left) if item.id not in done)

    def units(self, files):
        pages = (item for row, file in files for item in self.pages(row, file))
        return pages if self.per_unit == 1 or self.is_text else windows(pages, self.per_unit, self.place)

    def tables(self, columns=None):
        """Yields (ids, table), a row per page or window: `file_name` is its id, `image` its first page (or `text`)."""
        from datasets import Dataset, Features

        features, units = self.features, self.units(self.selected(all_shards=True))
        while batch := list(islice(units, BATCH_ROWS)):
            rows = {"file_name": [unit.id for unit in batch]}
            if self.is_text:
                rows["text"] = [unit.text for unit in batch]
            elif columns is None or "image" in columns:
                rows["image"] = [self.image(unit) for unit in batch]
            table = Dataset.from_dict(rows, features=Features({name: features[name] for name in rows})).data.table
            yield rows["file_name"], table.select(columns or list(rows))

    def image(self, unit):
        """The encoded image of the first page: the file itself, or a JPEG where it has pages; None if unreadable."""
        if unit.error:
            return None
        data, frame = unit.parts[0]
        try:
            if unit.pages == 1 and not data.lower().endswith(".pdf"):
                with open(copy_of(data) if data.startswith("hf://") else data, "rb") as file:
                    return {"bytes": file.read(), "path": os.path.basename(self.files[unit.row])}
            jpeg = io.BytesIO()
            open_page(data, frame, dpi=self.options.dpi).image.save(jpeg, "JPEG", quality=95)
            return {"bytes": jpeg.getvalue(), "path": f"{safe_name(unit.name)}.jpg"}
        except (OSError, PageError):
            return None


def is_input(name, suffixes):
    parts = name.split("/")
    return name.lower().endswith(suffixes) and "_run" not in parts and not any(part.startswith(".") for part in parts)


def local_files(path):
    """(folder, names relative to it, None) of one file, all files below a folder, or those that fit a glob."""
    full = os.path.abspath(path)
    if os.path.isfile(full):
        return os.path.dirname(full), [os.path.basename(full)], None
    if os.path.isdir(full):
        base, found = full, files_below(full)
    elif glob.has_magic(path):
        base = os.path.dirname(re.split(r"[*?[]", full)[0])
        found = filter(os.path.isfile, glob.iglob(full, recursive=True))
    else:
        raise Stop(f"{path}: no such file or folder here. A dataset on the Hub is typed ns/name.")
    return base, [os.path.relpath(name, base).replace(os.sep, "/") for name in found], None


def files_below(top):
    """Every file below a folder, links that lead nowhere too, to become errors. Raises Stop where it cannot look.

    Not FIFOs and devices, which would never end, nor folders by way of links, which may lead back here.
    """

    def refuse(error):
        raise Stop(f"{error.filename} cannot be listed: {error.strerror}. Make it readable, or move it elsewhere.")

    for folder, below, names in os.walk(top, onerror=refuse):
        below[:] = [name for name in below if not name.startswith(".")]
        links = [path for name in below if os.path.islink(path := os.path.join(folder, name))]
        if links:
            say(f"Links to folders are not followed; name them as INPUT to read them: {', '.join(sorted(links))}")
        paths = (os.path.join(folder, name) for name in names)
        yield from (path for path in paths if os.path.isfile(path) or not os.path.exists(path))


def hub_files(kind, uri, options):
    """(folder, names relative to it, revision) of files in a bucket or a dataset repository, the revision pinned."""
    from huggingface_hub import HfFileSystem

    files, sha = HfFileSystem(skip_instance_cache=True), None
    try:
        if kind == "hub-files":
            spot = files.resolve_path(uri)
            sha = files._api.dataset_info(spot.repo_id, revision=options.input_revision or spot.revision).sha
            uri = f"hf://datasets/{spot.repo_id}@{sha}/{spot.path_in_repo}"
        if glob.has_magic(uri) and not files.exists(uri):
            base, found = os.path.dirname(re.split(r"[*?[]", uri)[0]), files.glob(uri, detail=True)
        elif files.isfile(uri):
            base, found = os.path.dirname(uri), {uri.removeprefix("hf://"): {"type": "file"}}
        else:
            base, found = uri, files.find(uri, detail=True)
    except OSError as error:
        raise Stop(f"{uri} cannot be listed: {first_line(error)}. Check the name, and `hf auth login`.") from error
    names = [f"hf://{name}"[len(base) + 1 :] for name, info in found.items() if info["type"] == "file"]
    return base, names, sha


# <<< kit/files.py

# >>> kit/grounding.py
# Text with boxes as DeepSeek-OCR and Unlimited-OCR write it: readers of both dialects, their Markdown and blocks.


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


# <<< kit/grounding.py

# >>> kit/plain_text.py
# What a reader would see of an OCR answer: one text for judge and scorer, whatever markup a model writes.


PLAIN_HTML_BLOCKS = (
    "address article aside blockquote body br caption center col colgroup dd details div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section select "
    "summary table tbody td tfoot th thead title tr ul"
).split()
PLAIN_HTML_INLINE = (
    "a abbr b bdi bdo big button chem cite code del dfn em font i img input ins kbd label mark math meta link q "
    "ruby rp rt s samp small span strike strong sub sup svg time tt u var wbr"
).split()
# Tags of models: Nanonets (page_number, watermark, signature), page wrappers, answers of reasoning models.
PLAIN_MODEL_TAGS = ["answer", "image", "otsl", "page", "page_number", "signature", "watermark"]
PLAIN_DOCTAGS = (
    "chart checkbox_selected checkbox_unselected code doctag document_index footnote formula inline key "
    "key_value_region list_item ordered_list page_break page_footer page_header paragraph picture reference text "
    "title unordered_list value"
).split()
# A tag ends before the next "<", so that the search stays linear on hostile text; a tag cut off at the end counts.
PLAIN_BLOCK_TAG, PLAIN_INLINE_TAG, PLAIN_DOC_TAG = (
    re.compile(rf"</?(?:{'|'.join(names)})(?=[\s/>]|\Z)[^<>]*(?:>|\Z)", re.IGNORECASE)
    for names in (
        PLAIN_HTML_BLOCKS + PLAIN_MODEL_TAGS,
        PLAIN_HTML_INLINE,
        [*PLAIN_DOCTAGS, r"section_header_level_\d+"],
    )
)
PLAIN_UNSEEN = re.compile(
    r"<(script|style|template|think)(?=[\s>])[^<>]*>.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE
)
PLAIN_HTML_TABLE = re.compile(r"<table(?=[\s>])[^<>]*>.*?(?:</table\s*>|\Z)", re.DOTALL | re.IGNORECASE)
PLAIN_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
PLAIN_FRONT_MATTER = re.compile(r"\A\s*---\n(?:[\w-]+:[^\n]*\n)+---(?:\n|\Z)")
PLAIN_FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[\w+-]*[ \t]*$", re.MULTILINE)
PLAIN_RULE = re.compile(r"[-*_=](?:[ \t]*[-*_=]){2,}")
PLAIN_TABLE_LINE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?[ \t]*)?")
PLAIN_MATH = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:[^\\]|\\[^\[\]])+)\\\]|\\\(((?:[^\\]|\\[^()])+)\\\)|(?<![\\$\w])\$(?![\s$])([^$\n]{1,500}?)(?<![\s\\])\$(?![\d$])",
)
PLAIN_CELL = "\0"  # stands between two cells until the end: no printed bar is taken for it


def to_plain_text(text, cell=" | "):
    """Plain text of Markdown, HTML, OTSL, DocTags or grounded text: words in their order, no markup.

    Rows of tables become lines with `cell` between the cells. Removed are boxes and their labels, page wrappers, front
    matter, fences, pictures, comments, hidden HTML, and the marks of headings, lists, emphasis and formulas; LaTeX
    inside of formulas stays. Angle brackets that are no known tag (`<torn>`, `<illegible>`) stay. Blank lines are at
    most one in a row. Never raises on a str; cut and broken markup is read as far as it goes.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace(PLAIN_CELL, " ")
    text = re.sub(r"[^\S\n]+", " ", text)
    if "<|ref|>" in text:
        text = spans_markdown(ref_spans(text))
    elif "<|det|>" in text:
        text = spans_markdown(det_spans(text))
    text = PLAIN_UNSEEN.sub("\n", text)
    text = PLAIN_FENCE.sub("", PLAIN_FRONT_MATTER.sub("", text))
    text = drop_tags(text)
    text = drop_markdown(text)
    text = re.sub(rf"[^\S\n]*{PLAIN_CELL}[^\S\n]*", cell.replace("\\", r"\\"), re.sub(r"[^\S\n]+", " ", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def drop_tags(text):
    if re.search(r"<(?:loc_\d+|doctag)>", text):
        text = PLAIN_DOC_TAG.sub("\n", re.sub(r"<loc_\d+>", "", text))
    # OTSL: a token opens a cell; continuations of merged cells have no text.
    text = re.sub(r"(?<![ \t])[ \t]*<nl>[ \t]*", "\n", re.sub(r"<(?:lcel|ucel|xcel)>", "", text))
    text = re.sub(r"(?:(?<=\n)|\A|(?<=<otsl>))[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", "", text)
    text = re.sub(r"(?<![ \t])[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", PLAIN_CELL, text)
    text = PLAIN_HTML_TABLE.sub(lambda found: plain_table(found[0]), text)
    text = PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub("\n", text))
    return PLAIN_ENTITY.sub(lambda found: html.unescape(found[0]), text)


def plain_table(table):
    table = re.sub(r"</(?:caption|thead|tbody|tr)\s*>|<tr(?=[\s>])[^<>]*>", "\n\n", " ".join(table.split()), flags=re.I)
    table = re.sub(r"<t[dh](?=[\s/>])[^<>]*>", PLAIN_CELL, table, flags=re.IGNORECASE)
    rows = (
        PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub(" ", row)).strip().removeprefix(PLAIN_CELL)
        for row in table.split("\n")
    )
    return "\n\n" + "\n".join(row for row in rows if row) + "\n\n"


def drop_markdown(text):
    text = re.sub(r"!\[[^\[\]\n]*\]\([^)\n]*\)", "", text)
    text = re.sub(r"\[([^\[\]\n]+)\]\((?:https?:|mailto:|#|/|\./)[^)\n]*\)", r"\1", text)
    text = re.sub(r"\[\^([^\]\s]{1,20})\]:?", r"\1", text)
    text = PLAIN_MATH.sub(lambda found: next(filter(None, found.groups())).strip(), text)
    text = "\n".join(plain_lines(text.split("\n")))
    inside = r"([^{0}\s](?:(?:[^{0}\n]|\n(?!\n))*[^{0}\s])?)"
    for mark in (r"\*\*", r"(?<![*\w\\])\*(?!\*)", r"\*\*", r"(?<![\w\\])__?"):
        letter = "_" if "_" in mark else "*"
        close = {r"\*\*": r"\*\*", "_": r"__?(?!\w)"}.get(letter if letter == "_" else mark, r"\*(?![*\w])")
        text = re.sub(mark + inside.format(letter) + close, r"\1", text)
    text = re.sub(r"~~([^~\n]+)~~", r"\1", text)
    text = re.sub(r"`([^`\n]+)`", r"\1", text)
    return re.sub(r"\\([\\`*_{}\[\]()#+\-.!|$%&<>~])", r"\1", text)


def plain_lines(lines):
    in_table = False
    for number, line in enumerate(lines):
        line = line.strip()
        if PLAIN_TABLE_LINE.fullmatch(line):
            in_table = True
            continue
        if PLAIN_RULE.fullmatch(line):
            continue
        opens = number + 1 < len(lines) and "|" in line and PLAIN_TABLE_LINE.fullmatch(lines[number + 1].strip())
        in_table = bool(opens) or (in_table and "|" in line)
        if in_table or (line.startswith("|") and line.endswith("|") and line.count("|") > 1):
            inner = line.removeprefix("|")
            inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
            yield PLAIN_CELL.join(part.strip() for part in re.split(r"(?<!\\)\|", inner))
            continue
        line = re.sub(r"^(?:> ?)+", "", line)
        line = re.sub(r"^#{1,6}(?:[ \t]+|$)", "", line)
        line = re.sub(r"^[-*+] \[([ xX])\] ", lambda found: "☐ " if found[1] == " " else "☑ ", line)
        yield re.sub(r"^[-*+•][ \t]+", "", line)


# <<< kit/plain_text.py

# >>> kit/tool.py
# The edges of every tool: numbers and files that have to make sense, and the exit code.


NO_SUCH_PLACE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def whole_number(text):
    """An argparse type: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def above_zero(text):
    """An argparse type: a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def share_of_one(text):
    """An argparse type: a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return number


def read_utf8(path):
    """The text of a file. Raises Stop where it is in another encoding, and OSError."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Stop(
            f"{path} is not UTF-8 at byte {error.start}: {error.reason}. Convert it (iconv -t utf-8)."
        ) from error


def parse_json(text):
    """`json.loads(text)`. Raises ValueError also where lists or objects stand in each other too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, kind=dict):
    """What a JSON file holds. Raises Stop where it is damaged or holds something else than `kind`, and OSError."""
    try:
        value = parse_json(read_utf8(path))
    except ValueError as error:
        raise Stop(f"{path} is no JSON: {error}. Repair or remove it.") from error
    if not isinstance(value, kind):
        raise Stop(f"{path} holds {type(value).__name__} where {kind.__name__} was expected. Name another file.")
    return value


def exit_code_of(work):
    """The exit code of a tool: what `work()` returns, or the code of what ended it, told in one sentence.

    2 where a file or folder that was named is not there, not of that kind, or closed to us. 1 for what passes: Ctrl-C,
    a disk that is full, a Hub that does not answer.
    """
    try:
        return work()
    except Stop as problem:
        code, told = problem.code, problem
    except NO_SUCH_PLACE as problem:
        code, told = (2, f"{problem.filename}: {problem.strerror}. Name another.") if problem.filename else (1, problem)
    except KeyboardInterrupt:
        code, told = 1, "the same command starts again."
    except Exception as problem:
        if not (isinstance(problem, OSError) or is_passing(problem)):
            raise
        code, told = 1, f"{first_line(problem)}. The same command starts again."
    say(f"{'Error' if code == 2 else 'Stopped'}: {told}")
    return code


# <<< kit/tool.py
# <<< shared part


if __name__ == "__main__":
    sys.exit(main())
