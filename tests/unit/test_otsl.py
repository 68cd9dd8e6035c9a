"""OTSL tables as HTML: spans, ragged and broken rows, escaping, and tables drawn at random."""

import html
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from kit.otsl import otsl_to_html


def table(*rows):
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


@pytest.mark.parametrize(
    "text, rows",
    [
        ("<fcel>Year<fcel>n<nl><fcel>1871<fcel>204<nl>", ["<td>Year</td><td>n</td>", "<td>1871</td><td>204</td>"]),
        (
            "<fcel>Year<fcel>Births<lcel><nl><ucel><fcel>boys<fcel>girls<nl><fcel>1871<fcel>104<ecel><nl>",
            [
                '<td rowspan="2">Year</td><td colspan="2">Births</td>',
                "<td>boys</td><td>girls</td>",
                "<td>1871</td><td>104</td><td></td>",
            ],
        ),
        (
            '<fcel>A<lcel><fcel>B<nl><ucel><xcel><fcel>c & "d"<nl><fcel>x<fcel>y<nl>',
            [
                '<td rowspan="2" colspan="2">A</td><td>B</td>',
                "<td>c &amp; &quot;d&quot;</td>",
                "<td>x</td><td>y</td><td></td>",
            ],
        ),
        ("<ched>Year<ched>n<nl><rhed>1871<fcel>2<nl><srow>Sum<lcel><nl>",
         ["<th>Year</th><th>n</th>", "<th>1871</th><td>2</td>", '<th colspan="2">Sum</th>']),
        ("<fcel>a<fcel>b", ["<td>a</td><td>b</td>"]),  # cut off: no end of the row
        ("<nl><nl><fcel> a \n<nl><nl>", ["<td>a</td>"]),
        ("<fcel>x < y<br><fcel><b>z</b>", ["<td>x &lt; y&lt;br&gt;</td><td>&lt;b&gt;z&lt;/b&gt;</td>"]),
        ("<lcel><ucel><xcel><nl>", ["<td></td><td></td><td></td>"]),  # nothing to continue
        ("<fcel>a<lcel><nl><ucel><fcel>b<nl>", ['<td colspan="2">a</td>', "<td></td><td>b</td>"]),  # half a rectangle
        ("<fcel>a<lcel><nl><ucel><ucel><nl>", ['<td rowspan="2" colspan="2">a</td>', ""]),
        ("<fcel>a<lcel>b<ecel>c<nl>", ['<td colspan="2">a b</td><td>c</td>']),  # text where none belongs is kept
        ("<fcel>a<fcel>b<nl><fcel>c<fc", ["<td>a</td><td>b</td>", "<td>c&lt;fc</td><td></td>"]),
    ],
)  # fmt: skip
def test_tables(text, rows):
    assert otsl_to_html(text) == otsl_to_html(text, trim=True) == table(*rows)


@pytest.mark.parametrize(
    "text",
    ["", "No table here.", "1 < 2 <nl", "<nl><nl>", "<table><tr><td>done &amp; dusted</td></tr></table>", "<FCEL>a"],
)
def test_what_is_no_otsl_stays(text):
    assert otsl_to_html(f" {text}\n") == text


def test_text_around_the_table():
    assert otsl_to_html("Table 1 <fcel>a<nl>\nNote.") == "Table 1\n\n<table><tr><td>a</td></tr></table>\n\nNote."


def test_runs_of_empty_cells():
    text = "<fcel>a<fcel>b<nl><fcel>c<fcel>d<nl><fcel>e" + "<ecel>" * 5000
    rows = ["<td>a</td><td>b</td>", "<td>c</td><td>d</td>", "<td>e</td><td></td>"]
    assert otsl_to_html(text, trim=True) == table(*rows)
    assert otsl_to_html(text).count("<td>") == 3 * 5001
    endless = "<fcel>a<nl>" * 4000 + "<fcel>a" + "<ecel>" * 4000
    assert otsl_to_html(endless) == table(*["<td>a</td>"] * 4001)


@given(st.lists(st.lists(st.sampled_from(["fcel", "ecel"]), min_size=1, max_size=8), min_size=1, max_size=7))
def test_the_trimmed_width_is_that_of_a_search(kinds):
    """PaddleX tries every width from the last filled cell to the longest row and takes the first that changes least."""
    filled = max((place for row in kinds for place, kind in enumerate(row, 1) if kind == "fcel"), default=1)
    widths = range(filled, max(map(len, kinds)) + 1)
    width = min(widths, key=lambda w: sum(abs(len(row) - w) for row in kinds))
    text = "<nl>".join("".join(f"<{kind}>" for kind in row) for row in kinds)
    assert otsl_to_html(text, trim=True).count("<td>") == width * len(kinds)


def drawn(seed):
    """A table of merged cells drawn at random: (OTSL, the HTML that it must become)."""
    draw = random.Random(seed)
    height, width = draw.randint(1, 7), draw.randint(1, 7)
    grid, lines = [[None] * width for _ in range(height)], []
    for row in range(height):
        line = ""
        for column in range(width):
            if grid[row][column]:
                continue
            right, below = column + 1, draw.randint(row + 1, height)
            while right < width and not grid[row][right] and draw.random() < 0.4:
                right += 1
            kind, text = draw.choice(["fcel", "ched", "rhed"]), f"{draw.choice('<&abc')}{draw.randrange(99)}"
            for r in range(row, below):
                for c in range(column, right):
                    grid[r][c] = "<lcel>" if r == row else "<ucel>" if c == column else "<xcel>"
            grid[row][column] = f"<{kind}>{text}"
            cell = etree.Element("td" if kind == "fcel" else "th")
            if below - row > 1:
                cell.set("rowspan", str(below - row))
            if right - column > 1:
                cell.set("colspan", str(right - column))
            cell.text = text
            line += etree.tostring(cell, method="html", encoding="unicode")
        lines.append(line)
    return "".join("".join(row) + "<nl>" for row in grid), table(*lines)


@pytest.mark.parametrize("seed", range(100))
def test_tables_drawn_at_random(seed):
    otsl, expected = drawn(seed)
    assert otsl_to_html(otsl) == expected


def places(markup):
    """(row, column) of every place that a cell of the table covers, with spans, as a browser lays it out."""
    covered = []
    for row, line in enumerate(etree.HTML(markup).iter("tr")):
        column = 0
        for cell in line:
            while (row, column) in covered:
                column += 1
            down, across = int(cell.get("rowspan", 1)), int(cell.get("colspan", 1))
            covered += [(row + r, column + c) for r in range(down) for c in range(across)]
            column += across
    return covered


TOKENS = ["<fcel>", "<ecel>", "<lcel>", "<ucel>", "<xcel>", "<ched>", "<srow>", "<nl>", "a", "1 < 2", "&", "<nl", "\n"]


@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=60).map("".join), st.booleans())
@settings(max_examples=200)
def test_any_tokens_make_a_full_grid_and_keep_the_text(text, trim):
    result = otsl_to_html(text, trim)
    if "<table>" not in result:
        return
    covered = places(result)
    assert len(covered) == len(set(covered)) == (1 + max(r for r, _ in covered)) * (1 + max(c for _, c in covered))
    said = re.sub(r"<(?:[felux]cel|ched|srow|nl)>", "", text)
    read = html.unescape(re.sub(r"</?t\w+[^>]*>", "", result))
    assert sorted("".join(read.split())) == sorted("".join(said.split()))
