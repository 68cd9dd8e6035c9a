"""How well read boxes fit the true ones, and formulas the true formulas."""

import re

from kit.box_match import match_boxes, overlap_table
from kit.plain_text import PLAIN_MATH


def score_blocks(true, read):
    """Scores of two blocks documents of the same page, or None where one has no boxes to compare.

    `matches` and `matches_labelled` at IoU 0.5, `matches_75` at 0.75, of `true` and `read` boxes; `iou` the sum over
    the matches; `split` true boxes that two or more read boxes lie in, `merged` read boxes over two or more true ones
    (at least half of the inner box); `area_true`, `area_read`, `area_common` in pixels of the page, which compares
    lines with paragraphs too. Boxes of another page size are scaled to the true page's. Raises ValueError for a
    document without a size.
    """
    import numpy as np

    if not true or not read:
        return None
    for document in (true, read):
        if not (document.get("width") or 0) > 0 or not (document.get("height") or 0) > 0:
            raise ValueError(f"a blocks document without width and height: {sorted(document)}")
    scale = [true["width"] / read["width"], true["height"] / read["height"]] * 2
    boxes = [[block["bbox"] for block in document["blocks"] if block["bbox"]] for document in (true, read)]
    labels = [[block["label"] for block in document["blocks"] if block["bbox"]] for document in (true, read)]
    boxes[1] = [[value * by for value, by in zip(box, scale, strict=True)] for box in boxes[1]]
    if not boxes[0]:
        return None
    matches = match_boxes(*boxes)
    scores = {
        "true": len(boxes[0]),
        "read": len(boxes[1]),
        "matches": len(matches),
        "matches_75": len(match_boxes(*boxes, least=0.75)),
        "matches_labelled": len(match_boxes(*boxes, labels=labels)),
        "iou": sum(matches),
        "split": 0,
        "merged": 0,
    }
    if boxes[1]:
        common = overlap_table(*boxes)[1]
        areas = [np.array([(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in side]) for side in boxes]
        inside_true = (common > 0) & (common >= 0.5 * areas[1][None, :])
        inside_read = (common > 0) & (common >= 0.5 * areas[0][:, None])
        scores["split"] = int((inside_true.sum(axis=1) > 1).sum())
        scores["merged"] = int((inside_read.sum(axis=0) > 1).sum())
    covered = [covered_area(side, true["width"], true["height"]) for side in boxes]
    scores["area_true"], scores["area_read"] = (int(area.sum()) for area in covered)
    scores["area_common"] = int((covered[0] & covered[1]).sum())
    return scores


def covered_area(boxes, width, height):
    """A bool array (height, width): which pixels lie in a box."""
    import numpy as np

    area = np.zeros((int(height), int(width)), bool)
    for box in boxes:
        x0, y0, x1, y1 = (max(0, round(value)) for value in box)
        area[y0:y1, x0:x1] = True
    return area


def formulas_in(text):
    """The formulas of an answer, cleaned: in dollars, `\\[ \\]`, `\\( \\)`, `<math>` or `<formula>`."""
    found = [(match.start(), next(filter(None, match.groups()))) for match in PLAIN_MATH.finditer(text)]
    for match in re.finditer(r"<(math|formula)(?=[\s>])[^<>]*>([^<]*)</\1>", text):
        found.append((match.start(), match[2]))
    return [clean for _, latex in sorted(found) if (clean := clean_latex(re.sub(r"<loc_\d+>", "", latex)))]


def clean_latex(latex):
    """LaTeX without what does not change what is printed: spaces, sizes, fonts of text, numbers of equations."""
    latex = re.sub(r"\\(?:label|tag)\{[^{}]*\}", "", latex)
    latex = re.sub(r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|limits|nolimits|quad|qquad)(?![a-zA-Z])", "", latex)
    latex = re.sub(r"\\(?:mathrm|text|textrm|operatorname|mbox|rm)(?![a-zA-Z])", "", latex)
    latex = re.sub(r"\\[,;:!> ]|~", "", latex)
    latex = latex.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    latex = re.sub(r"\s+", "", latex)
    return re.sub(r"\{([^{}\\])\}", r"\1", latex).strip("$")  # x^{2} is x^2


def score_formulas(true, read):
    """One similarity per true formula (1 - edit distance by the longer length), 0 without a partner.

    Partners are those with the largest sum. Spelling of LaTeX counts: two spellings of one formula are not equal.
    """
    import numpy as np
    from rapidfuzz.distance import Levenshtein
    from scipy.optimize import linear_sum_assignment

    if not true or not read:
        return [0.0] * len(true)
    alike = np.array([[Levenshtein.normalized_similarity(one, other) for other in read] for one in true])
    partners = dict(zip(*map(list, linear_sum_assignment(-alike)), strict=True))
    return [float(alike[number, partners[number]]) if number in partners else 0.0 for number in range(len(true))]
