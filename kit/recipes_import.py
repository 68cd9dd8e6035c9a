"""Recipes as files: their tables without running anything, their functions by importing the file from its path."""

import ast
import difflib
import functools
import importlib.util
import sys
from pathlib import Path

from kit.seam import Stop


def recipe_table(path):
    """The RECIPE table of a recipe file as a dict, read and not run; None where the file has none."""
    _, found, rest = Path(path).read_text().partition("\nRECIPE = {\n")
    table, end, _ = rest.partition("\n}\n")
    return ast.literal_eval("{\n" + table + "\n}") if found and end else None


def recipe_tables(folder):
    """{path: RECIPE} of all recipes in a folder, by name. Raises Stop where there are none."""
    tables = {path: recipe_table(path) for path in sorted(Path(folder).glob("*.py"))}
    tables = {path: table for path, table in tables.items() if table}
    if not tables:
        raise Stop(f"{folder} holds no recipes. Name the folder ocr/ of a clone of this repository: --recipes FOLDER.")
    return tables


def find_recipe(name, folder):
    """The path of the recipe that `name` means: a path, the name of a file in `folder`, or a model id there.

    Of several recipes for one model the shortest name is the plain one. Raises Stop.
    """
    if name.endswith(".py") and Path(name).is_file():
        return Path(name)
    tables = recipe_tables(folder)
    named = [path for path in tables if path.stem == name]
    models = sorted((path for path, table in tables.items() if table["model"] == name), key=lambda p: len(p.stem))
    if named + models:
        return (named + models)[0]
    near = difflib.get_close_matches(name, [path.stem for path in tables], 3, 0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" There are {', '.join(p.stem for p in tables)}."
    raise Stop(f"{name} is no recipe in {folder} and no model of one.{hint} A file is named by its path, ./x.py.")


@functools.cache
def import_recipe(path):
    """The module of a recipe file. Its functions and its shared part are what a run of that file would use."""
    spec = importlib.util.spec_from_file_location("recipe_" + Path(path).stem.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def recipe_options(module, words=()):
    """(options, recipe) as the recipe's own command line `... INPUT OUTPUT words` makes them. Raises Stop.

    `recipe` is RECIPE with what the recipe's `check` changes for these options, such as bounds in engine arguments.
    """
    parser = module.option_parser(module.RECIPE, getattr(module, "add_options", None))
    try:
        options = parser.parse_args(["ns/input", "ns/output", *map(str, words)])
        module.settle(options, module.RECIPE, {"serve": None})
        changed = module.check(options) if hasattr(module, "check") else None
    except module.Stop as problem:  # another class than Stop here: the module has its own copy
        raise Stop(str(problem), problem.code) from None
    return options, module.RECIPE | (changed or {})
