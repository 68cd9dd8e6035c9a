"""What the PaddleOCR-VL models write, as Markdown and boxes: the conversions of the authors' client, PaddleX."""

import re
from collections import Counter

from kit.otsl import otsl_to_html


def paddle_markdown(text, task, otsl=False):
    """The answer to one of the tasks as Markdown: tables in HTML (or as they are), formulas in dollars, charts as
    Markdown tables.
    """
    text = dollar_formulas(text, only=task == "formula").strip()
    if task == "table" and not otsl:
        return otsl_to_html(text, trim=True)
    return chart_table(text) if task == "chart" else text


def dollar_formulas(text, only=False):
    r"""`\( \)` and `\[ \]` as `$` and `$$`, where both of a pair occur.

    PaddleX deletes all dollars first; of a page that would take the prices, so here only where the text is `only` a
    formula.
    """
    if not (r"\(" in text and r"\)" in text or r"\[" in text and r"\]" in text):
        return text
    text = text.replace("$", "") if only else text
    text = text.replace(r"\[\[", r"\[").replace(r"\]\]", r"\]")
    return text.replace(r"\(", " $ ").replace(r"\)", " $").replace(r"\[", " $$ ").replace(r"\]", " $$ ")


def chart_table(text):
    """Lines of cells between bars as a Markdown table, the first line its head; other text stays as it is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or not all("|" in line for line in lines):
        return text
    rows = [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]
    rows = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    width = max(map(len, rows), default=0)
    rows = [row + [""] * (width - len(row)) for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [*rows[:1], ["---"] * width, *rows[1:]])


def spotted_lines(text):
    """Lines of the task spotting: (text, corners), 8 numbers, x and y in thousandths of the page, or None if fewer.

    Each is its text, then its locations; the marks that some answers set around both carry nothing more.
    """
    text = re.sub(r"<\|(?:TEXT_START|TEXT_END|LOC_BEGIN|LOC_END)\|>", "", text)
    parts = [*re.split(r"((?:<\|LOC_\d+\|>\s*)+)", text), ""]
    lines = []
    for said, places in zip(map(str.strip, parts[::2]), parts[1::2], strict=True):
        numbers = [int(number) for number in re.findall(r"\d+", places)]
        if said or numbers:
            lines.append((said, numbers[:8] if len(numbers) >= 8 else None))
    return lines


def spotted_blocks(lines):
    """Blocks for `blocks_document` with the size (1000, 1000): the upright box around each line's corners."""
    return [
        {"content": text, "bbox": corners and [f(corners[axis::2]) for f in (min, max) for axis in (0, 1)]}
        for text, corners in lines
    ]


def trim_paddle_loop(text, table=False):
    """The text without a loop, by PaddleX's rule; texts below 50 characters (tables: 5000) stay as they are.

    Of text on one line: one piece 10 times and more becomes one piece (PaddleX drops them all where the text is long);
    a piece of 8 characters and more that stands 5 times and more at the end and fills more than half is dropped, all of
    it. Of 10 lines and more of which one stands 10 times and more and makes up 80 %: that line.
    """
    if len(text) < (5000 if table else 50):
        return text
    if "\n" in text.strip():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        line, count = Counter(lines).most_common(1)[0]
        return line if count >= max(10, 0.8 * len(lines)) else text
    text = text.strip()
    piece = (text + text).find(text, 1)  # length of the shortest piece that the text repeats, or of the text
    if 0 < 10 * piece <= len(text):
        return text[:piece]
    for length in range(len(text) // 5, 7, -1):
        start = len(text) - length
        while text.endswith(text[-length:], 0, start) and start >= length:
            start -= length
        if len(text) > 100 and len(text) - start >= max(5 * length, len(text) // 2 + 1):
            return text[:start]
    return text
