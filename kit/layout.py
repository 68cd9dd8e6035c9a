"""Reading order and paragraphs from the boxes of text lines, for models that only find lines."""

import math
from statistics import median


def level_lines(quads):
    """Boxes `(x0, y0, x1, y1)` of lines on a straightened page, one per quad (4 points, clockwise from top left).

    The page's skew is the median angle of its lines, weighted by their length. Vertical lines (most quads more than
    twice as tall as wide, as in vertical Chinese and Japanese) are laid on their side, first line on top, so that the
    order of the boxes below is the order of reading for both. Only for ordering: not coordinates of the page.
    """
    edges = sorted((math.atan2(q[1][1] - q[0][1], q[1][0] - q[0][0]), math.dist(q[0], q[1])) for q in quads)
    travelled, half, skew = 0.0, sum(length for _, length in edges) / 2, 0.0
    for angle, length in edges:
        skew, travelled = angle, travelled + length
        if travelled >= half:
            break
    cos, sin = math.cos(skew), math.sin(skew)
    boxes = []
    for quad in quads:
        xs = [x * cos + y * sin for x, y in quad]
        ys = [y * cos - x * sin for x, y in quad]
        boxes.append((min(xs), min(ys), max(xs), max(ys)))
    tall = sum(y1 - y0 > 2 * (x1 - x0) for x0, y0, x1, y1 in boxes)
    if tall > len(boxes) / 2:
        boxes = [(y0, -x1, y1, -x0) for x0, y0, x1, y1 in boxes]
    return boxes


def reading_order(boxes):
    """The indices of `boxes` (`x0, y0, x1, y1` of single lines, any unit, skew below about 1 degree) as they are read.

    The page is cut into horizontal bands at white space; bands that share a white gutter are columns together, and a
    line across the gutter ends them. Columns are read left to right, each by the same rule. Short cells that stand in
    rows are a table and are read row by row.
    """
    if not boxes:
        return []
    height = max(median(y1 - y0 for _, y0, _, y1 in boxes), 1e-6)
    return order_lines(boxes, range(len(boxes)), height)


def order_lines(boxes, group, height):
    order = []
    for run in column_runs(boxes, group, height):
        columns = columns_of(boxes, run, height)
        if len(columns) == 1 or is_table(boxes, columns, height):
            order += rows_of(boxes, run)
        else:
            for column in columns:
                order += order_lines(boxes, column, height)
    return order


def column_runs(boxes, group, height):
    """Lists of indices, top to bottom: neighbouring bands are one run as long as a gutter runs through all of them.

    Lone centred lines at the top stay apart where they stand clear of what follows: a short title over three columns
    crosses no gutter.
    """
    bands = bands_of(boxes, group)
    left, right = min(boxes[i][0] for i in group), max(boxes[i][2] for i in group)
    centred = [abs(boxes[i][0] + boxes[i][2] - left - right) < 0.04 * (right - left) for i, *_ in bands]
    titles = next((n for n, band in enumerate(bands) if len(band) > 1 or not centred[n]), len(bands))
    # Running text is set at most 1.8 line heights apart: closer, it is the first line of a middle column.
    while 0 < titles < len(bands) and top_of(boxes, bands[titles]) - boxes[bands[titles - 1][0]][3] < height:
        titles -= 1
    runs = []
    for band in bands[titles:]:
        runs.append((band, joined([(boxes[i][0], boxes[i][2]) for i in band], height)))
        while len(runs) > 1 and len(spans := joined(runs[-2][1] + runs[-1][1], height)) > 1:
            below, _ = runs.pop()
            runs[-1] = (runs[-1][0] + below, spans)
    return bands[:titles] + [run for run, _ in runs]


def top_of(boxes, band):
    return min(boxes[i][1] for i in band)


def joined(spans, height):
    """Spans `(x0, x1)` from left to right, united where they overlap by more than detectors draw boxes too wide."""
    united = []
    for x0, x1 in sorted(spans):
        if united and x0 - united[-1][1] < -0.2 * height:
            united[-1] = (united[-1][0], max(united[-1][1], x1))
        else:
            united.append((x0, x1))
    return united


def bands_of(boxes, group):
    """Lists of indices cut at horizontal white space. Detectors draw boxes too high: the middle half of each counts."""
    bands, bottom = [], 0.0
    for i in sorted(group, key=lambda i: 3 * boxes[i][1] + boxes[i][3]):
        _, y0, _, y1 = boxes[i]
        if bands and 0.75 * y0 + 0.25 * y1 < bottom:
            bands[-1].append(i)
            bottom = max(bottom, 0.25 * y0 + 0.75 * y1)
        else:
            bands.append([i])
            bottom = 0.25 * y0 + 0.75 * y1
    return bands


def columns_of(boxes, group, height):
    """Lists of indices, left to right, cut at the gutters that no box of the group crosses.

    Only what stands beside each other for two lines or more is columns; others (a date, a page number) are joined.
    """
    columns, spans = [], joined([(boxes[i][0], boxes[i][2]) for i in group], height)
    for (x0, _), (end, _) in zip(spans, [*spans[1:], (math.inf, 0)], strict=True):
        segment = [i for i in group if x0 <= boxes[i][0] < end]
        if not segment:  # two boxes without width
            continue
        if columns and not side_by_side(boxes, columns[-1], segment):
            columns[-1] += segment
        else:
            columns.append(segment)
    return columns


def side_by_side(boxes, left, right):
    top = max(min(boxes[i][1] for i in side) for side in (left, right))
    bottom = min(max(boxes[i][3] for i in side) for side in (left, right))
    return all(sum(top <= (boxes[i][1] + boxes[i][3]) / 2 <= bottom for i in side) > 1 for side in (left, right))


def is_table(boxes, columns, height):
    """Cells, not columns of running text: one column is narrow (6 line heights, some 15 letters) and rows align."""
    if all(median(boxes[i][2] - boxes[i][0] for i in column) >= 6 * height for column in columns):
        return False
    longest = max(columns, key=len)
    middles = [(boxes[i][1] + boxes[i][3]) / 2 for i in longest]
    others = [(boxes[i][1] + boxes[i][3]) / 2 for column in columns if column is not longest for i in column]
    aligned = sum(any(abs(y - middle) < 0.3 * height for middle in middles) for y in others)
    return aligned >= 0.8 * len(others)


def rows_of(boxes, group):
    """Indices row by row, each from left to right."""
    rows = []
    for i in sorted(group, key=lambda i: boxes[i][1]):
        if rows and on_one_row(boxes[rows[-1][0]], boxes[i]):
            rows[-1].append(i)
        else:
            rows.append([i])
    return [i for row in rows for i in sorted(row, key=lambda i: boxes[i][0])]


def on_one_row(a, b):
    return abs((a[1] + a[3]) - (b[1] + b[3])) < min(a[3] - a[1], b[3] - b[1])


def lines_to_markdown(boxes, texts):
    """Markdown of lines in reading order: a line per row, cells two spaces apart, a blank line between paragraphs.

    `boxes` (`x0, y0, x1, y1`) and `texts` are parallel and already in reading order. A paragraph ends where the
    distance to the next row is 1.3 times the page's usual distance, both in line heights, and where a column ends.
    """
    rows = []
    for box, text in zip(boxes, texts, strict=True):
        if rows and on_one_row(rows[-1][-1][0], box) and box[0] > rows[-1][-1][0][0]:
            rows[-1].append((box, text))
        else:
            rows.append([(box, text)])
    steps = [row_step(above, below) for above, below in zip(rows, rows[1:], strict=False)]
    down = sorted(step for step in steps if step > 0)
    # The lower quartile: where most paragraphs have one or two lines, the median is the step between paragraphs.
    usual = down[len(down) // 4] if down else 0
    cells = [len(row) > 1 for row in rows]
    # One line that the detector broke in two is no table.
    table = [cells[i] and any(cells[max(i - 1, 0) : i] + cells[i + 1 : i + 2]) for i in range(len(rows))]
    parts = []
    for i, row in enumerate(rows):
        if i:
            close = table[i] or steps[i - 1] <= 1.3 * usual
            parts.append("\n" if table[i] == table[i - 1] and close and steps[i - 1] > 0 else "\n\n")
        parts.append("  ".join(text for _, text in row))
    return "".join(parts)


def row_step(above, below):
    """Distance from one row to the next in line heights; negative where the next stands higher (a new column)."""
    a, b = above[0][0], below[0][0]
    return (b[1] + b[3] - a[1] - a[3]) / max(a[3] - a[1] + b[3] - b[1], 1e-6)
