"""The blocks document: one form for every model's boxes, so that one exporter serves all."""

BLOCK_LABELS = (
    "title", "header", "footer", "page_number", "heading", "text", "list", "caption", "footnote", "table", "formula",
    "picture", "code", "form", "toc", "reference", "seal", "other",
)  # fmt: skip


def blocks_document(page, blocks, size=None):
    """Blocks document of one page: pixels of the original, x right, y down, clipped to the page.

    `blocks` are dicts with `bbox` [x0, y0, x1, y1] and any of `label`, `content`, `format` ("html", "latex",
    "markdown", "text"), `confidence`, `raw_label`; their order is the reading order. `size` is the
    (width, height) of the space the boxes are in: (1000, 1000) for normalised ones, `page.image.size` for pixels of
    what the model saw (the default). A box that is no four numbers, or has no area on the page, becomes null: its
    content stays. Raises ValueError for a label outside BLOCK_LABELS.
    """
    width, height = size or page.image.size
    document = {"schema": "ocr-blocks/1", "width": page.width, "height": page.height, "blocks": []}
    if page.dpi:
        document["dpi"] = page.dpi
    for order, block in enumerate(blocks):
        label = block.get("label", "text")
        if label not in BLOCK_LABELS:
            raise ValueError(f"unknown block label {label!r}; choose one of {', '.join(BLOCK_LABELS)}")
        document["blocks"].append(
            {
                "order": order,
                "label": label,
                "bbox": box_on_page(block.get("bbox"), page, width, height),
                "content": block.get("content", ""),
                "format": block.get("format", "text"),
                "confidence": block.get("confidence"),
                "raw_label": block.get("raw_label", label),
            }
        )
    return document


def box_on_page(box, page, width, height):
    """Box in a `width` x `height` space as [x0, y0, x1, y1] whole pixels of the original page, or None."""
    try:
        x0, y0, x1, y1 = (float(value) for value in box)
        x0, x1 = sorted((x0 * page.width / width, x1 * page.width / width))
        y0, y1 = sorted((y0 * page.height / height, y1 * page.height / height))
        x0, x1 = (min(max(round(x), 0), page.width) for x in (x0, x1))
        y0, y1 = (min(max(round(y), 0), page.height) for y in (y0, y1))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return [x0, y0, x1, y1] if x0 < x1 and y0 < y1 else None
