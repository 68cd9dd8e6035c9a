"""What a reader would see of an OCR answer: one text for judge and scorer, whatever markup a model writes."""

import html
import re

from kit.grounding import det_spans, ref_spans, spans_markdown

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
