import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.layout import level_lines, lines_to_markdown, reading_order

HEIGHT, STEP = 30, 40


def column(name, x, y, count, width=400, step=STEP):
    """Lines of one column: (text, box) pairs, the last one short."""
    return [
        (f"{name}{i}", (x, y + i * step, x + (width if i < count - 1 else width // 3), y + i * step + HEIGHT))
        for i in range(count)
    ]


def read(lines, boxes=None):
    """The texts in reading order, from lines that are given in any order."""
    boxes = boxes or [box for _, box in lines]
    return [lines[i][0] for i in reading_order(boxes)]


def names(lines):
    return [text for text, _ in lines]


def quads_of(lines, degrees=0.0):
    """Quads of the lines on a page turned by `degrees` about its origin."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [
        [(x * cos - y * sin, x * sin + y * cos) for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))]
        for _, (x0, y0, x1, y1) in lines
    ]


def shuffled(lines):
    """Another order, the same every time."""
    return sorted(lines, key=lambda line: hash(line[1]))


def test_no_lines():
    assert reading_order([]) == []
    assert level_lines([]) == []
    assert lines_to_markdown([], []) == ""


def test_one_column_reads_down():
    lines = column("a", 100, 100, 12)
    assert read(shuffled(lines)) == names(lines)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("shift", [0, 13])
def test_columns_read_one_after_the_other(count, shift):
    lines = [line for n in range(count) for line in column("abcde"[n], 100 + 440 * n, 200 + n * shift, 20 - n)]
    assert read(shuffled(lines)) == names(lines)


def test_headline_above_and_note_below_two_columns():
    head = [("head", (100, 60, 900, 130))]
    left, right = column("l", 100, 200, 10), column("r", 540, 200, 8)
    note = [("note", (100, 700, 940, 730))]
    lines = head + left + right + note
    assert read(shuffled(lines)) == names(lines)


def test_full_width_line_between_two_pairs_of_columns():
    lines = [
        *column("a", 100, 100, 5), *column("b", 540, 100, 5), ("across", (100, 320, 940, 350)),
        *column("c", 100, 380, 5), *column("d", 540, 380, 5),
    ]  # fmt: skip
    assert read(shuffled(lines)) == names(lines)


def test_short_title_over_the_middle_of_three_columns_comes_first():
    title = [("title", (660, 100, 820, 150))]
    lines = title + [line for n in range(3) for line in column("abc"[n], 100 + 440 * n, 200, 10)]
    assert read(shuffled(lines)) == names(lines)


def test_right_column_may_start_higher_than_the_left():
    left, right = column("l", 100, 400, 10), column("r", 540, 100, 18)
    assert read(shuffled(left + right)) == names(left + right)


def test_paragraph_gaps_across_both_columns_do_not_split_them():
    left = column("a", 100, 100, 4) + column("b", 100, 300, 4)
    right = column("c", 540, 100, 4) + column("d", 540, 300, 4)
    assert read(shuffled(left + right)) == names(left + right)


def test_unequal_columns_with_nested_columns():
    wide = column("w", 100, 100, 16, width=900)
    narrow = column("m", 1060, 100, 8, width=300) + column("n", 1400, 100, 8, width=300)
    lines = wide + narrow
    assert read(shuffled(lines)) == names(lines)


def test_date_at_the_right_does_not_make_columns():
    lines = [("Sir,", (100, 100, 200, 130)), ("4 May", (800, 100, 940, 130)), *column("a", 100, 160, 8, width=840)]
    assert read(shuffled(lines)) == names(lines)


def table(rows=6, jitter=0):
    """Cells of a table with a wide first column: (text, box) pairs, row by row."""
    edges = [(100, 260), (420, 480), (560, 640), (720, 860)]
    return [
        (f"{row}{'abcd'[n]}", (x0, 100 + 60 * row + jitter * n, x1, 130 + 60 * row + jitter * n))
        for row in range(rows)
        for n, (x0, x1) in enumerate(edges)
    ]


@pytest.mark.parametrize("jitter", [0, 2])
def test_table_reads_row_by_row(jitter):
    lines = table(jitter=jitter)
    assert read(shuffled(lines)) == names(lines)


def test_table_with_empty_cells_reads_row_by_row():
    lines = [line for line in table() if line[0] not in ("2c", "3b", "5d")]
    assert read(shuffled(lines)) == names(lines)


@pytest.mark.parametrize("degrees", [-2, -1, 0.7, 2])
def test_skewed_page_reads_like_a_straight_one(degrees):
    lines = [
        ("head", (100, 60, 900, 130)), *column("l", 100, 200, 14, width=420), *column("r", 560, 200, 12, width=420),
    ]  # fmt: skip
    lines = shuffled(lines)
    assert read(lines, level_lines(quads_of(lines, degrees))) == read(lines)
    rows = shuffled(table())
    assert read(rows, level_lines(quads_of(rows, degrees))) == read(rows)


def test_vertical_lines_read_from_the_right():
    columns = [(f"v{n}", (900 - 50 * n, 100, 930 - 50 * n, 800)) for n in range(6)]
    lines = shuffled(columns)
    assert read(lines, level_lines(quads_of(lines))) == names(columns)


def test_markdown_joins_rows_and_parts_paragraphs():
    lines = [*column("a", 100, 100, 3), *column("b", 100, 245, 2)]
    boxes, texts = [box for _, box in lines], names(lines)
    assert lines_to_markdown(boxes, texts) == "a0\na1\na2\n\nb0\nb1"


def test_markdown_keeps_a_table_together_and_apart_from_the_text():
    above, below = column("a", 100, 0, 2), column("z", 100, 480, 2)
    lines = [*above, *table(rows=2), *below]
    text = lines_to_markdown([box for _, box in lines], names(lines))
    assert text == "a0\na1\n\n0a  0b  0c  0d\n1a  1b  1c  1d\n\nz0\nz1"


def test_markdown_parts_columns():
    lines = column("l", 100, 100, 3) + column("r", 540, 100, 2)
    assert lines_to_markdown([box for _, box in lines], names(lines)) == "l0\nl1\nl2\n\nr0\nr1"


def test_one_box_that_is_drawn_into_the_gutter_joins_no_columns():
    left, right = column("l", 56, 180, 8, width=490), column("r", 640, 180, 8, width=500)
    left[0] = ("l0", (56, 180, 642, 180 + 30))
    lines = [("title", (310, 92, 932, 142)), *left, *right]
    assert read(shuffled(lines)) == names(lines)


@st.composite
def printed_columns(draw):
    """Columns of running text as a detector sees them: any size, leading and gutter, boxes a little off."""
    height = draw(st.integers(12, 60))
    step = height * draw(st.floats(1.0, 1.8))
    width = height * draw(st.integers(9, 30))
    gutter = height * draw(st.floats(1.0, 4.0))
    off = st.floats(-0.12 * height, 0.12 * height)
    lines = []
    for n in range(draw(st.integers(2, 4))):
        left, top = n * (width + gutter), draw(st.floats(0, 3 * height))
        count = draw(st.integers(5, 15))
        for i in range(count):
            y = top + i * step
            short = [0.4] if i == count - 1 else []  # more of them beside full lines, and it may be a table's column
            end = left + width * draw(st.sampled_from([1, 1, 1, 0.97, 0.9, *short]))
            box = (left + draw(off), y + draw(off), end + draw(off), y + height + draw(off))
            lines.append((f"{'abcd'[n]}{i}", box))
    return lines


@given(printed_columns())
def test_columns_of_any_print_read_one_after_the_other(lines):
    assert read(lines[::-1]) == names(lines)


numbers = st.floats(-1e4, 1e4, allow_nan=False)
some_boxes = st.lists(
    st.tuples(numbers, numbers, numbers, numbers).map(
        lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
    ),
    max_size=40,
)


@given(some_boxes)
def test_order_is_always_a_permutation(boxes):
    assert sorted(reading_order(boxes)) == list(range(len(boxes)))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 6), st.integers(0, 2)), max_size=60))
def test_order_of_boxes_on_a_grid_is_a_permutation(cells):
    boxes = [(x, y, x + width, y + height) for x, y, width, height in cells]
    assert sorted(reading_order(boxes)) == list(range(len(boxes)))


@given(some_boxes)
def test_markdown_keeps_every_text(boxes):
    texts = [f"t{n}" for n in range(len(boxes))]
    assert lines_to_markdown(boxes, texts).split() == texts


@given(st.lists(st.lists(st.tuples(numbers, numbers), min_size=4, max_size=4), max_size=30))
def test_levelling_takes_any_quads(quads):
    boxes = level_lines(quads)
    assert len(boxes) == len(quads)
    assert all(x0 <= x1 and y0 <= y1 for x0, y0, x1, y1 in boxes)
