"""Whether an answer keeps its model's protocol: boxes are boxes, tables are tables, the image was seen."""

import html
import re

from kit.otsl import OTSL_TOKEN

MOST_CELLS = 4096
BOXED_SHARE = 0.9  # of the blocks of a layout that need a box on the page: one good box among hundreds is no layout
SEEN_SHARE = 0.75  # of the tokens that the picture alone needs; processors round sizes, servers that drop it count few
FEWEST_TOKENS = 16  # below that rounding decides


def otsl_facts(text):
    """{"rows", "columns", "cells", "problems"} of a table in OTSL, strictly read; None where there are no tokens.

    Every row has as many tokens as the others; a cell continues one that is there; spans are rectangles; at least one
    cell is filled; at most MOST_CELLS places; text stands in cells only.
    """
    text = re.sub(r"</?otsl>|<loc_\d+>", "", html.unescape(text)).strip()
    before, *found = OTSL_TOKEN.split(text)
    if not found:
        return None
    rows, problems = [[]], []
    for kind, content in zip(found[::2], found[1::2], strict=True):
        if kind == "nl":
            if content.strip():
                problems.append("text between rows")
            rows.append([])
        else:
            if content.strip() and kind in ("ecel", "lcel", "ucel", "xcel"):
                problems.append(f"text in <{kind}>")
            rows[-1].append(kind)
    rows = [row for row in rows if row]
    width = max(map(len, rows), default=0)
    if any(len(row) != width for row in rows):
        problems.append("rows of different lengths")
    if len(rows) * width > MOST_CELLS:
        problems.append(f"more than {MOST_CELLS} cells")
    if not any(kind in ("fcel", "ched", "rhed", "srow") for row in rows for kind in row):
        problems.append("no filled cell")
    for place, row in enumerate(rows[:MOST_CELLS]):
        above = rows[place - 1] if place else []
        for column, kind in enumerate(row):
            up, left = above[column] if column < len(above) else None, row[column - 1] if column else None
            wide = column + 1 < len(above) and above[column + 1] in ("lcel", "xcel")
            follows = row[column + 1] if column + 1 < len(row) else None
            if (kind == "lcel" and left is None) or (kind in ("ucel", "xcel") and up is None):
                problems.append(f"<{kind}> continues nothing")
            elif (
                (kind == "lcel" and left in ("ucel", "xcel"))
                or (kind == "ucel" and up in ("lcel", "xcel"))
                or (kind == "xcel" and (left not in ("ucel", "xcel") or up not in ("lcel", "xcel")))
                or (kind in ("ucel", "xcel") and wide != (follows == "xcel"))
            ):
                problems.append("a merged cell that is no rectangle")
    if before.strip():
        problems.append("text before the table")
    cells = sum(kind in ("fcel", "ecel", "ched", "rhed", "srow") for row in rows for kind in row)
    return {"rows": len(rows), "columns": width, "cells": cells, "problems": sorted(set(problems))}


def table_facts(raw, markdown):
    """{"format", "rows", "columns", "cells", "problems"} of the answer's table: OTSL as written, HTML or Markdown."""
    found = otsl_facts(raw)
    if found:
        return {"format": "otsl", **found}
    for text in (markdown, raw):
        if "<table" in text.lower():
            return {"format": "html", **html_table_facts(text)}
    lines = [line for line in markdown.splitlines() if line.strip().count("|") >= 2 or re.match(r"\s*\|", line)]
    rows = [line for line in lines if not re.fullmatch(r"[\s|:-]+", line)]
    cells = sum(len(line.strip().strip("|").split("|")) for line in rows)
    width = max((len(line.strip().strip("|").split("|")) for line in rows), default=0)
    problems = [] if len(lines) >= 2 else ["no table in the answer"]
    return {"format": "markdown" if rows else None, "rows": len(rows), "columns": width, "cells": cells,
            "problems": problems}  # fmt: skip


def html_table_facts(text):
    opened, closed = (len(re.findall(rf"<{slash}table\b", text, re.I)) for slash in ("", "/"))
    rows = re.findall(r"<tr\b[^>]*>(.*?)(?=<tr\b|</tr>|</table>|\Z)", text, re.I | re.S)
    widths = [len(re.findall(r"<t[dh]\b", row, re.I)) for row in rows]
    problems = [] if opened == closed else ["a <table> that does not end"]
    problems += [] if sum(widths) else ["a table without cells"]
    return {"rows": len(rows), "columns": max(widths, default=0), "cells": sum(widths), "problems": problems}


def blocks_facts(document):
    """{"blocks", "boxed", "labels"} of a blocks document or None."""
    blocks = (document or {}).get("blocks") or []
    labels = {}
    for block in blocks:
        labels[block["label"]] = labels.get(block["label"], 0) + 1
    return {"blocks": len(blocks), "boxed": sum(block["bbox"] is not None for block in blocks), "labels": labels}


def image_tokens_needed(recipe, images):
    """Prompt tokens that pictures of these (width, height) need at least, or None where the recipe does not tell.

    From the recipe's worst case: `image_tokens` for the largest picture inside its bounds. Exact where a model has one
    token per so many pixels, too low where it also has a fixed part.
    """
    bounds = recipe.get("image") or {}
    most = bounds.get("max_pixels") or (bounds.get("max_side") or 0) ** 2
    if not most or not recipe.get("image_tokens") or not images:
        return None
    return int(sum(min(width * height, most) for width, height in images) * recipe["image_tokens"] / most)


def image_was_ignored(needed, prompt_tokens):
    """True if the server counted fewer prompt tokens than the picture alone needs; None where nobody can say."""
    if needed is None or not isinstance(prompt_tokens, int):
        return None
    return needed >= FEWEST_TOKENS and prompt_tokens < SEEN_SHARE * needed


def protocol_problem(task, has_boxes, markdown, blocks, table, blank=False):
    """Why an answer is not what the task asks for, or None. `blank` says that the page is known to hold nothing."""
    if blank and not markdown.strip() and not blocks["blocks"]:
        return None
    if task == "table":
        return "; ".join(table["problems"]) or None
    if task == "layout" or (task == "end2end" and has_boxes):
        if not blocks["blocks"]:
            return "no blocks"
        if blocks["boxed"] < BOXED_SHARE * blocks["blocks"]:
            return f"{blocks['blocks'] - blocks['boxed']} of {blocks['blocks']} blocks have no box on the page"
    if task != "layout" and not markdown.strip():
        return "empty text"
    return None
