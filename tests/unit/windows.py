"""Windows of pages for the tests of Unlimited-OCR-2: units, and answers as the model writes them (invented)."""

from PIL import Image

TEXTS = [
    "<|det|>title [101, 80, 890, 131]<|/det|># Shipping News\n<|det|>text [98, 150, 480, 420]<|/det|>"
    "Arrived the brig Anna from Cork.",
    "<|det|>page_number [480, 960, 520, 980]<|/det|>18\n<|det|>text [98, 150, 900, 420]<|/det|>"
    "The society met on the fourth of May and read the minutes of the year before.",
    "<|det|>image [500, 150, 900, 420]<|/det|>\n<|det|>table [98, 450, 900, 700]<|/det|>"
    "<table><tr><td>Port</td><td>Ships that came in</td></tr><tr><td>Cork</td><td>14</td></tr></table>",
    "<|det|>text [98, 150, 480, 420]<|/det|>Corn is dearer by two pence; hay and straw as they were last week.",
]
GREEK = "<|det|>text [1, 2, 3, 4]<|/det|>Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν"
LOOP = "<|det|>text [98, 150, 480, 420]<|/det|>" + ", ".join(["and the sum of the squares is"] * 30)


def answer_of(sections):
    return "\n".join(f"<PAGE>{section}" for section in sections)


def window_of(recipe, count, size=(620, 877), first=1):
    """A Unit of blank pages of that size in pixels, fitted as the decoding workers do it."""
    bounds = recipe.image_bounds(None, recipe.RECIPE)
    pages = [recipe.Page(recipe.fit(Image.new("RGB", size, "white"), bounds), *size) for _ in range(count)]
    return recipe.Unit(f"doc/pages_{first:04d}-{first + count - 1:04d}", pages)
