"""Loads a recipe as it stands in ocr/, stamped shared part and all, and gives its functions what the run would."""

import functools
import importlib.util
import sys
from pathlib import Path

from PIL import Image

OCR = Path(__file__).resolve().parents[2] / "ocr"


@functools.cache
def load_recipe(name):
    """The module of ocr/<name>.py; its file name need not be an identifier."""
    spec = importlib.util.spec_from_file_location("recipe_" + name.replace("-", "_"), OCR / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def options_of(recipe, *words):
    """The namespace that the command line `<recipe> in out <words>` becomes, settled as the run settles it."""
    own = getattr(recipe, "add_options", None) or getattr(recipe, "window_options", None)
    options = recipe.option_parser(recipe.RECIPE, own).parse_args(["in", "out", *map(str, words)])
    recipe.settle(options, recipe.RECIPE, {"serve": None, "offline": None})
    return options


def page_of(recipe, size=(1240, 1754), options=None):
    """A white page of that size in pixels, fitted to the recipe's bounds as the decoding workers do it."""
    bounds = recipe.image_bounds(options, recipe.RECIPE)
    return recipe.Page(recipe.fit(Image.new("RGB", size, "white"), bounds), *size)


def body_of(recipe, page, options):
    """The body that the engine gets: `request`, with sampling, `max_tokens` and the image filled in."""
    unit = recipe.Unit("page-1", [page])
    return recipe.complete(recipe.request(page, options), options, recipe.RECIPE, unit)
