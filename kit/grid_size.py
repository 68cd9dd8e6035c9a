"""The size that Datalab's clients give a page before they send it."""

import math


def grid_size(width, height, grid=28, min_pixels=39424, max_pixels=1531904):
    """(width, height) in multiples of `grid` pixels, near the given shape, within the bounds.

    `scale_to_fit` of github.com/datalab-to/lift: an image beyond a bound is scaled to it first, and what rounding adds
    beyond `max_pixels` is taken off column by column or row by row, whichever keeps the shape better.
    """
    scale = math.sqrt(min(max(1, min_pixels / (width * height)), max_pixels / (width * height)))
    columns, rows = (max(1, round(side * scale / grid)) for side in (width, height))
    while columns * rows * grid * grid > max_pixels and columns * rows > 1:
        narrower = abs((columns - 1) / rows - width / height) if columns > 1 else math.inf
        lower = abs(columns / (rows - 1) - width / height) if rows > 1 else math.inf
        if narrower < lower:
            columns -= 1
        else:
            rows -= 1
    return columns * grid, rows * grid
