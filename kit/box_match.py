"""Which boxes are the same: intersection over union, and the best pairs."""


def overlap_table(true, read):
    """IoU of every true with every read box, shape (true, read); boxes are [x0, y0, x1, y1] in one space."""
    import numpy as np

    a, b = np.asarray(true, float).reshape(-1, 1, 4), np.asarray(read, float).reshape(1, -1, 4)
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    common = sides[..., 0] * sides[..., 1]
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (a, b)]
    return common / np.maximum(areas[0] + areas[1] - common, 1e-9), common


def match_boxes(true, read, least=0.5, labels=None):
    """IoUs of the pairs of boxes with the largest sum of IoU among pairs of at least `least`.

    `labels` are two lists of labels where boxes match only their own kind. Taking pairs in order finds fewer.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    if not len(true) or not len(read):
        return []
    overlaps = overlap_table(true, read)[0]
    overlaps[overlaps < least] = 0
    if labels:
        overlaps[np.asarray(labels[0])[:, None] != np.asarray(labels[1])[None, :]] = 0
    return [float(overlaps[pair]) for pair in zip(*linear_sum_assignment(-overlaps), strict=True) if overlaps[pair]]
