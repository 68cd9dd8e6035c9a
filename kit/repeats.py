"""Cuts a repetition off the end of a long answer, as the clients of several models do."""

REPEATS_FROM, REPEATS_UNIT, REPEATS_SPAN, REPEATS_COUNT = 8000, 200, 100, 5


def trim_repeats(text):
    """The text with one round of what its end repeats; texts below REPEATS_FROM characters stay as they are.

    The rule of the clients of OvisOCR2 and Xiaomi-OCR-0: the shortest unit of at most REPEATS_UNIT characters that
    fills at least REPEATS_SPAN characters and REPEATS_COUNT rounds. A last round that was cut short stays too.
    """
    if len(text) < REPEATS_FROM:
        return text
    for unit in range(1, REPEATS_UNIT + 1):
        run = unit
        while run < len(text) and text[-run - 1] == text[unit - run - 1]:
            run += 1
        if run >= max(REPEATS_SPAN, REPEATS_COUNT * unit):
            return text[: len(text) - run + unit + run % unit]
    return text
