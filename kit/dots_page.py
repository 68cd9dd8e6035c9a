"""How the models of the dots.ocr family see a page: the size of its image, and boxes in that size."""

from kit.smart_resize import smart_resize

DOTS_PIXELS = (3136, 11289600)  # fewest and most; github.com/rednote-hilab/dots.ocr at 36d7248, consts.py


def seen_size(page):
    """(width, height) in pixels of the page's image as the model sees it, the space of its boxes."""
    return smart_resize(*page.image.size, 28, *DOTS_PIXELS)


def box_as_seen(box, page):
    """A box in pixels of the original, or None for the whole page, in whole pixels of what the model sees."""
    scales = [seen / original for seen, original in zip(seen_size(page), (page.width, page.height), strict=True)]
    return [int(x * scale) for x, scale in zip(box or [0, 0, page.width, page.height], scales * 2, strict=True)]
