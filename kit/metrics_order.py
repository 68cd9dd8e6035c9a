"""How much of a page was read, whatever the order: true blocks found in the read text, and the order they stand in."""

LEAST_SIMILARITY = 0.5  # below, a block counts as not found: unrelated prose reaches 0.3 to 0.45


def find_blocks(blocks, read):
    """Where each true block stands in the read text, whatever the order: a list of (start, end, errors) or None.

    Longest first, each takes the best matching span of what the others have left. It counts as found from
    LEAST_SIMILARITY on. Spans are never shared, and a block that was torn apart is found in its largest piece only.
    """
    free, found = [(0, len(read))] if read else [], [None] * len(blocks)
    for index in sorted(range(len(blocks)), key=lambda i: (-len(blocks[i]), i)):
        block = blocks[index]
        spans = [best_span(block, read, start, end) for start, end in free] if block else []
        best = min(spans, default=None, key=lambda span: (span[2], span[0]))
        if best is None or best[2] > (1 - LEAST_SIMILARITY) * max(len(block), best[1] - best[0]):
            continue
        found[index] = best
        start, end = next(piece for piece in free if piece[0] <= best[0] and best[1] <= piece[1])
        free.remove((start, end))
        free += [piece for piece in ((start, best[0]), (best[1], end)) if piece[0] < piece[1]]
        free.sort()
    return found


def best_span(block, read, start, end):
    """(start, end, errors) of the span in read[start:end] that is most like the block, the shortest of equal ones.

    Sellers' algorithm, in the window where rapidfuzz finds the best match of the block's length.
    """
    import numpy as np
    from rapidfuzz.fuzz import partial_ratio_alignment

    if end - start > len(block):
        place = partial_ratio_alignment(block, read[start:end])
        margin = 5 + len(block) // 10  # insertions push text over the edges of a window of the block's length
        start, end = max(start, start + place.dest_start - margin), min(end, start + place.dest_end + margin)
    true, window = (np.array(list(map(ord, text)), np.int64) for text in (block, read[start:end]))
    # A cell holds errors * size + (size - 1 - where the span starts): one comparison decides on both.
    size = len(window) + 1
    steps = np.arange(size) * size
    row = np.arange(size)[::-1].copy()
    for letter in true:
        changed = row[:-1] + size * (window != letter)
        above = row + size
        above[1:] = np.minimum(above[1:], changed)
        row = np.minimum.accumulate(above - steps) + steps
    errors, last = divmod(int(row.min()), size)
    return start + size - 1 - last, start + int(row.argmin()), errors


def order_free(blocks, read):
    """{"errors", "length", "order_errors", "order_pairs", "found"} of true blocks (texts, in reading order).

    `errors`: edits inside the found spans, and the characters of blocks not found or those read beside, what is more.
    `order_errors` of `order_pairs`: pairs of found blocks that stand the other way round (Kendall's distance).
    `found`: one similarity per block, 0 to 1.
    """
    spans = find_blocks(blocks, read)
    lost = sum(len(block) for block, span in zip(blocks, spans, strict=True) if not span)
    pieces, end = [], 0
    for span in sorted(filter(None, spans)):
        pieces.append(read[end : span[0]])
        end = span[1]
    beside = sum(len(piece.strip()) for piece in [*pieces, read[end:]])
    errors = sum(span[2] for span in spans if span) + max(lost, beside)
    starts = [span[0] for span in spans if span]
    pairs = [(a, b) for place, a in enumerate(starts) for b in starts[place + 1 :]]
    found = [
        1 - span[2] / max(len(block), span[1] - span[0], 1) if span else 0.0
        for block, span in zip(blocks, spans, strict=True)
    ]
    return {
        "errors": errors,
        "length": sum(map(len, blocks)),
        "order_errors": sum(a > b for a, b in pairs),
        "order_pairs": len(pairs),
        "found": found,
    }
