"""How far a read text is from the true one: characters that are compared, errors by kind, words free of order."""

import re
import unicodedata
from collections import Counter

QUOTES_AND_DASHES = {
    **dict.fromkeys("‘’‚‛′´`‹›", "'"), **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"), "…": "...",
}  # fmt: skip
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
CUT_RATIO, CUT_EXTRA = 20, 10_000  # what is longer than ratio * truth + extra is cut: loops are bad enough
# Scripts written without spaces between words: error rates of words say nothing about them.
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"


def normal_text(text, profile="standard"):
    """Text as it is compared; the same for both sides. Markup is a matter of `to_plain_text`, before this.

    "diplomatic": NFC, kinds of white space unified, invisible characters dropped. "standard": also every run of white
    space one space, words that a line end breaks joined, quotation marks, dashes and ellipses as ASCII. "lenient":
    also NFKC (long s, ligatures, fractions), e above as umlaut, no case, no punctuation. Raises ValueError for another.
    """
    if profile not in ("diplomatic", "standard", "lenient"):
        raise ValueError(f"profile is {profile!r}; choose diplomatic, standard or lenient")
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = re.sub(r"[^\S\n]", " ", text.translate(INVISIBLE))
    if profile == "diplomatic":
        return text.strip()
    text = re.sub(r"(?<=[^\W\d_])[-\u2010\u2e17=¬] *\n+ *(?=[^\W\d_])", joined_hyphen(text), text)
    text = "".join(QUOTES_AND_DASHES.get(letter, letter) for letter in text)
    if profile == "lenient":
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text.replace("\u0364", "\u0308")).casefold())
        text = "".join(" " if unicodedata.category(letter)[0] in "PS" else letter for letter in text)
    return " ".join(text.split())


def joined_hyphen(text):
    """What replaces a hyphen at a line end: nothing before a small letter, else the hyphen stays, without the break."""
    return lambda found: "" if text[found.end()].islower() else "-"


def graphemes(text):
    """The characters that a reader counts: a str where each is one code point, else a list of clusters."""
    import regex

    clusters = regex.findall(r"\X", text)
    return text if len(clusters) == len(text) else clusters


def words_of(text):
    """Words by Unicode's word boundaries (UAX 29), without those of punctuation, symbols and marks only.

    The same words as dinglehopper's.
    """
    import regex

    return [
        word
        for word in regex.split(r"(?V1w)\b", unicodedata.normalize("NFC", text))
        if any(unicodedata.category(letter) not in ("Cc", "Cf") and unicodedata.category(letter)[0] not in "MPSZ"
               for letter in word)
    ]  # fmt: skip


def is_unspaced(text):
    """True if most letters of the text belong to scripts without spaces between words."""
    import regex

    return 2 * len(regex.findall(UNSPACED, text)) > len(regex.findall(r"\p{L}", text)) > 0


def edit_counts(true, read):
    """{"errors", "substitutions", "insertions", "deletions", "length"} of two sequences of hashable items.

    `length` is that of the truth. The kinds are those of one shortest alignment, rapidfuzz's, which jiwer counts too.
    """
    from rapidfuzz.distance import Levenshtein

    kinds = Counter(edit.tag for edit in Levenshtein.editops(true, read))
    return {
        "errors": kinds.total(),
        "substitutions": kinds["replace"],
        "insertions": kinds["insert"],
        "deletions": kinds["delete"],
        "length": len(true),
    }


def error_rate(counts):
    """Errors by length; may exceed 1. Of an empty truth: 0 for nothing read, 1 for anything (jiwer: the count)."""
    return counts["errors"] / counts["length"] if counts["length"] else float(counts["errors"] > 0)


def confusions(true, read, most=50):
    """Counter of (true, read) pairs of characters, "" for an insertion or a deletion."""
    from rapidfuzz.distance import Levenshtein

    pairs = Counter()
    for tag, i, j in Levenshtein.editops(true, read).as_list():
        pairs["" if tag == "insert" else true[i], "" if tag == "delete" else read[j]] += 1
    return Counter(dict(pairs.most_common(most)))


def bag_scores(true, read):
    """(precision, recall, F1) of two multisets of words: what was read, in whatever order. Both empty: 1."""
    common, true_count, read_count = (Counter(true) & Counter(read)).total(), len(true), len(read)
    if not true_count or not read_count:
        return (float(true_count == read_count),) * 3
    precision, recall = common / read_count, common / true_count
    return precision, recall, 2 * common / (true_count + read_count)


def cut_loops(true, read):
    """(read, whether it was cut): no longer than CUT_RATIO times the truth and CUT_EXTRA characters."""
    longest = CUT_RATIO * len(true) + CUT_EXTRA
    return read[:longest], len(read) > longest


def compared_characters(true, read, profile="standard"):
    """(true, read, whether `read` was cut): the characters that CER counts, of two texts without markup."""
    true, read = normal_text(true, profile), normal_text(read, profile)
    read, cut = cut_loops(true, read)
    return graphemes(true), graphemes(read), cut
