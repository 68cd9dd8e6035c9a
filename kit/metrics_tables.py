"""How like two tables are: TEDS with and without their text, and which tables of a page belong together."""

import functools
import re
import unicodedata

from kit.otsl import OTSL_TOKEN, otsl_to_html
from kit.plain_text import PLAIN_HTML_TABLE, PLAIN_TABLE_LINE, to_plain_text

# apted is pure Python: 320 cells a side take 1.8 s, 800 take 41 s. Larger pairs have no score, and are counted.
MOST_NODE_PAIRS = 400_000


def tables_in(text):
    """The tables of an answer in HTML, Markdown or OTSL, each as rows of cells (text, rowspan, colspan), in order."""
    if OTSL_TOKEN.search(text):
        text = re.sub(r"</?otsl>|<loc_\d+>", "", text)
        text = re.sub(
            r"(?:<(?:fcel|ecel|ched|rhed|srow|lcel|ucel|xcel)>[^\n]*?(?:<nl>|\n|\Z)\s*)+",
            lambda found: f"\n\n{otsl_to_html(found[0])}\n\n",
            text,
        )
    found = [(match.start(), html_rows(match[0])) for match in PLAIN_HTML_TABLE.finditer(text)]
    rest = PLAIN_HTML_TABLE.sub(lambda match: " " * len(match[0]), text)
    found += markdown_tables(rest)
    return [rows for _, rows in sorted(found, key=lambda pair: pair[0]) if rows]


def html_rows(table):
    """Rows of cells of the first table in an HTML fragment; those of tables inside its cells are part of its text."""
    import lxml.html

    tree = lxml.html.fromstring(f"<div>{table}</div>").find(".//table")
    rows = []
    for row in tree.iter("tr") if tree is not None else ():
        if next(row.iterancestors("table")) is tree:
            cells = [cell for cell in row if cell.tag in ("td", "th")]
            rows.append([(cell_text(cell), span_of(cell, "rowspan"), span_of(cell, "colspan")) for cell in cells])
    return rows


def cell_text(cell):
    import lxml.html

    for line_break in cell.iter("br"):
        line_break.tail = " " + (line_break.tail or "")
    return normal_cell(to_plain_text(lxml.html.tostring(cell, encoding="unicode", with_tail=False), cell=" "))


def normal_cell(text):
    return " ".join(unicodedata.normalize("NFKC", text).split())


def span_of(cell, name):
    value = (cell.get(name) or "1").strip()
    return min(int(value), 1000) if value.isascii() and value.isdigit() and int(value) > 0 else 1


def markdown_tables(text):
    """(start, rows) of each Markdown table: a header line, a line of dashes, and the lines with bars below."""
    lines, found, place = text.split("\n"), [], 0
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    while place + 1 < len(lines):
        if "|" in lines[place] and PLAIN_TABLE_LINE.fullmatch(lines[place + 1].strip()):
            end = place + 2
            while end < len(lines) and "|" in lines[end]:
                end += 1
            table = [lines[place], *lines[place + 2 : end]]
            found.append((starts[place], [bar_cells(line) for line in table]))
            place = end
        else:
            place += 1
    return found


def bar_cells(line):
    line = line.strip().removeprefix("|")
    line = line[:-1] if line.endswith("|") and not line.endswith("\\|") else line
    return [(normal_cell(to_plain_text(cell)), 1, 1) for cell in re.split(r"(?<!\\)\|", line)]


def teds(true, read, structure_only=False):
    """Tree edit distance similarity of two tables (Zhong et al. 2020), 0 to 1; None where they are too large.

    1 - distance / nodes of the larger tree; nodes are the table, its rows and its cells, the root included. To insert
    or delete a node costs 1; to change one costs 1 where tags or spans differ, and for cells the Levenshtein distance
    of their texts by the length of the longer. `th` is `td`. Rows that both have at the top and at the end are left
    out of the search and counted: the distance is the same (checked on 3,000 random pairs).
    """
    from apted import APTED, Config

    class Costs(Config):
        def rename(self, node1, node2):
            return node_distance(node1, node2)

        def children(self, node):
            return node[1]

    if structure_only:
        true, read = ([[("", *cell[1:]) for cell in row] for row in rows] for rows in (true, read))
    nodes = max(1 + sum(1 + len(row) for row in rows) for rows in (true, read))
    true, read = without_common_rows(list(true), list(read))
    sizes = [1 + sum(1 + len(row) for row in rows) for rows in (true, read)]
    if sizes[0] * sizes[1] > MOST_NODE_PAIRS:
        return None
    distance = APTED(table_tree(true), table_tree(read), Costs()).compute_edit_distance()
    return 1 - distance / nodes


def table_tree(rows):
    """Nodes are (name, children); the name of a cell is (text, rowspan, colspan)."""
    return "table", [("tr", [(cell, []) for cell in row]) for row in rows]


def node_distance(node1, node2):
    name1, name2 = node1[0], node2[0]
    if isinstance(name1, str) or isinstance(name2, str) or name1[1:] != name2[1:]:
        return float(name1 != name2)
    return text_distance(name1[0], name2[0])


@functools.lru_cache(100_000)
def text_distance(one, other):
    """Levenshtein distance by the length of the longer text, 0 for two empty ones."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_distance(one, other)


def without_common_rows(true, read):
    while true and read and true[0] == read[0]:
        true, read = true[1:], read[1:]
    while true and read and true[-1] == read[-1]:
        true, read = true[:-1], read[:-1]
    return true, read


def score_tables(true, read):
    """{"tables", "extra", "teds", "structure"}: one score per true table, 0 where it has no partner.

    Partners are those with the largest sum of text similarity. `extra` counts read tables without a partner. A score
    of None says that the pair was too large.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    scores = {"tables": len(true), "extra": max(0, len(read) - len(true)), "teds": [], "structure": []}
    flat = [[" ".join(cell[0] for row in rows for cell in row) for rows in side] for side in (true, read)]
    partners = {}
    if true and read:
        alike = np.array([[1 - text_distance(one, other) for other in flat[1]] for one in flat[0]])
        partners = dict(zip(*map(list, linear_sum_assignment(-alike)), strict=True))
    for number, rows in enumerate(true):
        other = read[partners[number]] if number in partners else None
        scores["teds"].append(0.0 if other is None else teds(rows, other))
        scores["structure"].append(0.0 if other is None else teds(rows, other, structure_only=True))
    return scores
