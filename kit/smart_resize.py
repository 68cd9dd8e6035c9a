"""The size that Qwen2-VL's image processor gives an image."""

import math


def smart_resize(width, height, factor, min_pixels, max_pixels):
    """(width, height) after the processor: multiples of `factor`, the area between the bounds, the shape kept.

    The rule of transformers 5.19, whose own order is (height, width) and which refuses shapes beyond 200 to 1.
    """
    new_width, new_height = (round(side / factor) * factor for side in (width, height))
    if new_width * new_height > max_pixels:
        scale = math.sqrt(width * height / max_pixels)
        return tuple(max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
    if new_width * new_height < min_pixels:
        scale = math.sqrt(min_pixels / (width * height))
        return tuple(math.ceil(side * scale / factor) * factor for side in (width, height))
    return new_width, new_height
