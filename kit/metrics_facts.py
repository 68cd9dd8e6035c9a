"""Facts about pages, one JSON object a line in olmOCR-bench's form, and whether an answer agrees with them."""

import re
import unicodedata

from kit.metrics_blocks import clean_latex, formulas_in
from kit.metrics_tables import tables_in
from kit.seam import Stop
from kit.tool import parse_json

FACT_TYPES = ("present", "absent", "order", "table", "math", "format", "baseline", "footnote")
ASCII_FORMS = {
    **dict.fromkeys("‘’‚", "'"), **dict.fromkeys("“”„", '"'), "＿": "_", **dict.fromkeys("–—‑‒−", "-"), "µ": "μ",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def read_facts(path):
    """{page name: [facts]} of a JSONL file; names are those of outputs: `x` and `x/page_003` for page 3 of x.pdf.

    Facts that its maker rejected are left out. Raises Stop for a line that is no fact.
    """
    facts = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fact = parse_json(line)
                stem, page, kind = re.sub(r"\.\w+$", "", fact["pdf"]), int(fact["page"]), fact["type"]
            except (ValueError, KeyError, TypeError) as error:
                raise Stop(f"{path}, line {number}: a fact has pdf, page, id and type; {error!r}.") from error
            if kind not in FACT_TYPES:
                raise Stop(f"{path}, line {number}: unknown type {kind!r}; there are {', '.join(FACT_TYPES)}.")
            if fact.get("checked") != "rejected":
                facts.setdefault((stem, page), []).append(fact)
    named = {}
    for (stem, page), listed in facts.items():
        for name in [f"{stem}/page_{page:03d}", f"{stem}_pg{page}"] + [stem] * (page == 1):
            named.setdefault(name, []).extend(listed)
    return named


def fact_text(text):
    """Text as facts compare it: no emphasis, single spaces, NFC, quotation marks and dashes in ASCII."""
    text = re.sub(r"<br/?>", " ", text)
    text = re.sub(r"</?[bi]>", "", re.sub(r"(\*\*|__|\*|_)(.*?)\1", r"\2", text))
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(ASCII_FORMS.get(letter, letter) for letter in text)


def check_fact(fact, text):
    """True or False, or None for a formula that is spelled in another way: to tell needs a browser that draws both."""
    checks = {
        "present": fact_present, "absent": fact_absent, "order": fact_order, "table": fact_table, "math": fact_math,
        "format": fact_format, "baseline": fact_baseline, "footnote": fact_footnote,
    }  # fmt: skip
    return checks[fact["type"]](fact, text)


def fact_present(fact, text):
    from rapidfuzz.fuzz import partial_ratio

    wanted, text = fact_text(fact["text"]), fact_text(text)
    if not fact.get("case_sensitive", True):
        wanted, text = wanted.lower(), text.lower()
    first, last = fact.get("first_n"), fact.get("last_n")
    if first or last:
        text = (text[:first] if first else "") + (text[-last:] if last else "")
    differences = fact.get("max_diffs", 0)
    if len(text) < len(wanted) - differences:  # partial_ratio would look for the text in what is wanted
        return False
    return partial_ratio(wanted, text) / 100 >= 1 - differences / max(1, len(wanted))


def fact_absent(fact, text):
    return not fact_present(fact, text)


def fact_order(fact, text):
    from fuzzysearch import find_near_matches

    text, most = fact_text(text), fact.get("max_diffs", 0)
    before, after = (find_near_matches(fact_text(fact[key]), text, max_l_dist=most) for key in ("before", "after"))
    return bool(before and after) and min(one.start for one in before) < max(one.start for one in after)


def fact_table(fact, text):
    """A cell that says `cell` has the neighbours and headings that the fact names."""
    return any(
        all(
            any(alike(fact[side], grid[place], fact) for place in places_beside(grid, spot, side))
            for side in ("up", "down", "left", "right", "top_heading", "left_heading")
            if fact.get(side)
        )
        for grid in map(table_grid, tables_in(text))
        for spot in grid
        if alike(fact["cell"], grid[spot], fact)
    )


def alike(wanted, cell, fact):
    from rapidfuzz.fuzz import ratio

    wanted = fact_text(wanted)
    return ratio(wanted, fact_text(cell)) / 100 >= max(0.5, 1 - fact.get("max_diffs", 0) / max(1, len(wanted)))


def table_grid(rows):
    """{(row, column): text} of rows of cells (text, rowspan, colspan); a merged cell stands in all of its places."""
    grid = {}
    for row, cells in enumerate(rows):
        column = 0
        for text, high, wide in cells:
            while (row, column) in grid:
                column += 1
            for down in range(min(high, len(rows) - row)):
                for right in range(wide):
                    grid.setdefault((row + down, column + right), text)
            column += wide
    return grid


def places_beside(grid, spot, side):
    """The places that `side` names: the neighbour, or all filled cells to the edge for a heading."""
    row, column = spot
    steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    if side in steps:
        place = (row + steps[side][0], column + steps[side][1])
        return [place] if place in grid else []
    line = [(r, column) for r in range(row)] if side == "top_heading" else [(row, c) for c in range(column)]
    return [place for place in line if grid.get(place)]


def fact_math(fact, text):
    return True if clean_latex(fact["math"]) in formulas_in(text) else None


def fact_format(fact, text):
    from rapidfuzz.fuzz import partial_ratio

    patterns = {
        "heading": [r"(?m)^#{1,6}\s+(.+?)$", r"(?is)<h[1-6][^>]*>(.*?)</h[1-6]>"],
        "bold": [r"(?s)\*\*(.*?)\*\*", r"(?s)__(.*?)__", r"(?is)<(?:b|strong)>(.*?)</(?:b|strong)>"],
        "italic": [r"(?s)(?<!\*)\*(?!\*)(.*?)(?<!\*)\*(?!\*)", r"(?s)(?<!_)_(?!_)(.*?)(?<!_)_(?!_)",
                   r"(?is)<(?:i|em)>(.*?)</(?:i|em)>"],
    }  # fmt: skip
    wanted, fold = fact_text(fact["text"]), str if fact.get("case_sensitive", True) else str.lower
    least = 1 - fact.get("max_diffs", 0) / max(1, len(wanted))
    found = [fact_text(words) for pattern in patterns[fact["format"]] for words in re.findall(pattern, text)]
    return any(partial_ratio(fold(wanted), fold(words)) / 100 >= least for words in found if words)


def fact_baseline(fact, text):
    """Not blank (or, with `max_length`, as good as blank), no loop at the end, no characters of other scripts."""
    count = sum(map(str.isalnum, re.sub(r"!\[.*?\]\(.*?\)", "", text)))
    if fact.get("max_length") is not None:
        return count <= fact["max_length"]
    if not count or (fact.get("check_disallowed_characters", True) and re.search(r"[぀-ヿ一-鿿🌀-🙏🚀-🛿🇦-🇿]", text)):
        return False
    return not any(repeats_at_end(text, size) > fact.get("max_repeats", 30) for size in range(1, 6))


def repeats_at_end(text, size):
    tail, count = text[-size:], 0
    while len(tail) == size and text.endswith(tail, 0, len(text) - count * size):
        count += 1
    return count


def fact_footnote(fact, text):
    """The marker stands as `[^1]`, `<sup>1</sup>` or a superscript, after and before the words that the fact names."""
    from rapidfuzz.fuzz import partial_ratio

    marker = re.escape(fact["marker"])
    forms = [rf"\[\^{marker}\](?!:)", rf"(?i)<sup[^>]*>{marker}</sup>"]
    if fact["marker"].isascii() and fact["marker"].isdigit():
        forms.append(fact["marker"].translate(SUPERSCRIPTS))
    places = [found.span() for form in forms for found in re.finditer(form, text)]

    def letters(words):
        return "".join(filter(str.isalnum, fact_text(words))).lower()

    def near(words, parts):
        least = 1 - fact.get("max_diffs", 0) / max(1, len(words))
        return any(part and partial_ratio(letters(words), part) / 100 >= least for part in parts)

    before, after = fact.get("appears_before_marker"), fact.get("appears_after_marker")
    return bool(places) and (
        (
            not before
            or near(before, [letters(text[max(0, s - 200) : s])[-2 * len(letters(before)) :] for s, _ in places])
        )
        and (not after or near(after, [letters(text[e : e + 200])[: 2 * len(letters(after))] for _, e in places]))
    )
