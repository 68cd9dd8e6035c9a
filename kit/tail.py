"""Cuts the equal pieces off the end of a long answer, as the clients of ABot-OCR and HunyuanOCR do."""

TAIL_REPEATS = 10


def trim_tail(text, shortest):
    """The text with only the first of the equal pieces that its end consists of, if they are TAIL_REPEATS or more.

    Texts of less than `shortest` characters stay as they are. The shortest piece decides, from 2 characters to a
    TAIL_REPEATS-th of the text.
    """
    if len(text) < shortest:
        return text
    for length in range(2, len(text) // TAIL_REPEATS + 1):
        piece, start = text[-length:], len(text) - length
        while start >= length and text.startswith(piece, start - length):
            start -= length
        if len(text) - start >= TAIL_REPEATS * length:
            return text[: start + length]
    return text
