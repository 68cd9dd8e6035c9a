"""Answers that repeat one token up to the limit, the commonest failure of these models, through every recipe.

A pattern that tries each place of a long run anew takes a minute for one of these answers.
"""

import re

import pytest

from tests.unit.recipe_file import OCR, load_recipe, options_of, page_of

SERVED = sorted(
    path.stem
    for path in OCR.glob("*.py")
    if {"request(", "steps("} & set(re.findall(r"^def (\w+\()", path.read_text(), re.M))
)
SCHEMA = ["--schema", '{"type": "object", "properties": {"a": {"type": "string"}}}']
WORDS = {"lift-extract": SCHEMA, "lfm2-extract": SCHEMA, "lfm2-vl-extract": SCHEMA}
TOKENS = [
    " ", "\n", "\t", "<", "|", "*", "$", "![", "[", "{", "\\(", "\\[", "----", "<td>", "<table>", "<fcel>", "<nl>",
    "<!--", "<loc_1>", "<otsl>", "```", "(1,2),", "<|ref|>", "<|det|>[[1, 2, 3, 4]]<|/det|>", "|a|b|\n",
    "&amp;",
]  # fmt: skip
FRAMES = [("", ""), ("x ", " y"), ("<table>", "</table>")]


@pytest.mark.parametrize("name", SERVED)
def test_an_answer_of_one_token(name):
    recipe = load_recipe(name)
    options, page = options_of(recipe, *WORDS.get(name, [])), page_of(recipe)
    steps = getattr(recipe, "steps", None) or recipe.one_step(recipe.request, recipe.parse)
    for token in TOKENS:
        for before, after in FRAMES:
            answer = recipe.Answer(before + token * (30_000 // len(token)) + after)
            reading = steps(recipe.Unit("page", [page], text="a text"), options)
            asked = next(reading)
            try:
                while True:
                    asked = reading.send([answer] * len(asked))
            except StopIteration as end:
                assert isinstance(end.value.markdown, str)
            except recipe.PageError as problem:
                assert str(problem)
