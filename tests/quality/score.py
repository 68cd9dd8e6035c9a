"""Character error rate of OCR output against true text, with the policy that the bounds in these tests refer to."""

import re
import unicodedata

from rapidfuzz.distance import Levenshtein


def normal(text, long_s="keep"):
    """Text as it is compared: NFC, every run of white space one space, ends stripped.

    Line and paragraph breaks therefore count as spaces, and reading order counts fully. Nothing else is folded: case,
    punctuation, quotation marks and ligature characters are compared as they stand. `long_s` "fold" reads the long s
    as s on both sides, for engines whose alphabet has no long s; "keep" compares it as a letter of its own.
    """
    if long_s not in ("keep", "fold"):
        raise ValueError(f"long_s is {long_s!r}; choose keep or fold")
    text = unicodedata.normalize("NFC", text)
    if long_s == "fold":
        text = text.replace("\u017f", "s")
    return re.sub(r"\s+", " ", text).strip()


def character_error_rate(read, truth, long_s="keep"):
    """Levenshtein distance by the number of characters of the truth, both normal; may exceed 1.

    Where the truth is blank, 0 for a blank reading and 1 for any text.
    """
    read, truth = normal(read, long_s), normal(truth, long_s)
    if not truth:
        return float(bool(read))
    return Levenshtein.distance(read, truth) / len(truth)
