"""What was read against confirmed pages: character error rate and overlap of boxes."""

from pathlib import Path

from kit.box_match import match_boxes
from kit.metrics_text import compared_characters
from kit.plain_text import to_plain_text
from kit.tool import read_json

BOX_OVERLAP = 0.5  # IoU from which two boxes are the same one


def read_gold(folder, name):
    """{"text": str or None, "boxes": list or None} of one page: NAME.md or NAME.txt, and NAME.json (a blocks document).

    None where the folder has neither.
    """
    text = next((p.read_text(encoding="utf-8-sig") for p in gold_paths(folder, name, ".md", ".txt")), None)
    boxes = None
    for path in gold_paths(folder, name, ".json"):
        boxes = [block["bbox"] for block in read_json(path).get("blocks") or [] if block.get("bbox")]
    return None if text is None and boxes is None else {"text": text, "boxes": boxes}


def gold_paths(folder, name, *suffixes):
    return [path for suffix in suffixes if (path := Path(folder, name + suffix)).is_file()]


def gold_quality(gold, markdown, document):
    """{"cer", "iou_mean", "precision", "recall", "f1"} of one page; None for what the gold does not hold.

    Boxes count only where the answer has blocks: a model that gives none was not asked for them.
    """
    quality = {"cer": None, "iou_mean": None, "precision": None, "recall": None, "f1": None}
    if gold["text"] is not None and markdown is not None:
        quality["cer"] = character_error_rate(gold["text"], markdown)
    if gold["boxes"] is not None and document is not None:
        quality |= box_agreement(gold["boxes"], [b["bbox"] for b in document["blocks"] if b["bbox"]])
    return quality


def character_error_rate(true, read):
    """Edits (insert, delete, replace) per character of the true text, of two texts in any markup.

    The `cer` of ocr-score.py in its profile standard. Of an empty true text: 0 for nothing read, 1 for anything.
    """
    from rapidfuzz.distance import Levenshtein

    true, read, _ = compared_characters(*(to_plain_text(text, cell=" ") for text in (true, read)))
    return round(Levenshtein.distance(true, read) / len(true), 4) if true else float(len(read) > 0)


def box_agreement(true, read):
    """Precision, recall and F1 of boxes, whatever their labels, and the mean IoU of those that agree.

    Pairs are those with the largest sum of IoU among pairs of at least BOX_OVERLAP: taking them in order finds fewer.
    """
    if not true or not read:
        return {"iou_mean": None, "precision": 0.0, "recall": 0.0, "f1": float(not true and not read)}
    pairs = match_boxes(true, read, BOX_OVERLAP)
    precision, recall = len(pairs) / len(read), len(pairs) / len(true)
    return {
        "iou_mean": round(sum(pairs) / len(pairs), 4) if pairs else None,
        "precision": round(precision, 4),
        "recall": round(recall, 4),
        "f1": round(2 * precision * recall / (precision + recall), 4) if pairs else 0.0,
    }
