"""OTSL, the table language of PaddleOCR-VL, MinerU2.5, TeleOCR and the Docling models, as HTML."""

import html
import re

# A token says what stands in one place of the grid: a filled or an empty cell, a header of columns, of a row or of a
# section, or the continuation of the cell on the left, above, or both.
OTSL_TOKEN = re.compile(r"<(fcel|ecel|ched|rhed|srow|lcel|ucel|xcel|nl)>")
OTSL_HEADERS, OTSL_CONTINUED = {"ched", "rhed", "srow"}, {"lcel", "ucel", "xcel"}


def otsl_to_html(text, trim=False):
    """The table as HTML; text that is no OTSL, or HTML already, comes back as it is, only stripped.

    Rows are made equally long: filled up to the longest, or with `trim` by PaddleX's rule, to the length that changes
    the rows least and loses no filled cell, which ends runs of empty cells. What stands before the first cell or after
    the end of a row is put before and behind the table. Merged cells never overlap: a continuation that no merged cell
    reaches is a cell of its own.
    """
    text = text.strip()
    before, *pieces = OTSL_TOKEN.split(text)
    rows, outside = [[]], []
    for kind, content in zip(pieces[::2], map(str.strip, pieces[1::2]), strict=True):
        if kind == "nl":
            rows.append([])
            outside.append(content)
        else:
            rows[-1].append((kind, content))
    rows = [row for row in rows if row]
    if not rows or (text.startswith("<table") and text.endswith("</table>")):
        return text
    # Filling up a table of one endless row would take the square of its length.
    width = otsl_width(rows, trim or len(rows) * max(map(len, rows)) > 200_000)
    lines = otsl_lines([(row + [("ecel", "")] * width)[:width] for row in rows])
    table = "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    return "\n\n".join(part for part in (before.strip(), table, *outside) if part)


def otsl_width(rows, trim):
    lengths = sorted(map(len, rows))
    if not trim:
        return lengths[-1]
    filled = max(
        (place for row in rows for place, cell in enumerate(row, 1) if cell[1] or cell[0] == "fcel"), default=1
    )
    return max(filled, lengths[(len(rows) - 1) // 2])  # the median is the length with the smallest sum of changes


def otsl_lines(rows):
    """Yields the inside of each `<tr>` of rows of (kind, text), all of one length."""
    taken = set()

    def continued(row, column, kinds):
        return (
            row < len(rows) and column < len(rows[0]) and rows[row][column][0] in kinds and (row, column) not in taken
        )

    for row, cells in enumerate(rows):
        line = []
        for column, (kind, _) in enumerate(cells):
            if (row, column) in taken:
                continue
            right, below = column + 1, row + 1
            if kind not in OTSL_CONTINUED:
                while continued(row, right, ("lcel", "xcel")):
                    right += 1
                while continued(below, column, ("ucel", "xcel")) and all(
                    continued(below, place, OTSL_CONTINUED) for place in range(column, right)
                ):
                    below += 1
            places = [(r, c) for r in range(row, below) for c in range(column, right)]
            taken.update(places)
            tag = "th" if kind in OTSL_HEADERS else "td"
            spans = "".join(
                f' {name}="{span}"'
                for name, span in (("rowspan", below - row), ("colspan", right - column))
                if span > 1
            )
            inside = html.escape(" ".join(said for r, c in places if (said := rows[r][c][1])))
            line.append(f"<{tag}{spans}>{inside}</{tag}>")
        yield "".join(line)
