"""LightOnOCR, the first generation: what is asked, which model, and what becomes of the answer."""

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

lighton = load_recipe("lighton-ocr")


def test_body_holds_one_image_and_no_text():
    options, page = options_of(lighton), page_of(lighton)
    assert body_of(lighton, page, options) == {
        "messages": [{"role": "user", "content": [{"type": "image", "image": page.image}]}],
        "max_tokens": 5000,
        "temperature": 0.2,
        "top_p": 0.9,
    }


@pytest.mark.parametrize(
    "words, model",
    [
        ((), "lightonai/LightOnOCR-1B-1025"),
        (("--vocab-size", "151k"), "lightonai/LightOnOCR-1B-1025"),
        (("--vocab-size", "32k"), "lightonai/LightOnOCR-0.9B-32k-1025"),
        (("--vocab-size", "16k"), "lightonai/LightOnOCR-0.9B-16k-1025"),
        (("--model", "./mine"), "./mine"),
    ],
)
def test_models(words, model):
    assert options_of(lighton, *words).model == model


def test_no_such_vocabulary(capsys):
    with pytest.raises(SystemExit):
        options_of(lighton, "--vocab-size", "8k")
    assert "8k" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, size, sent",
    [
        ((), (3080, 1540), (1540, 770)),
        ((), (600, 800), (600, 800)),  # never enlarged
        (("--target-size", 1024), (1024, 2048), (512, 1024)),
        (("--no-resize",), (3000, 4000), (3000, 4000)),
    ],
)
def test_image_sent(words, size, sent):
    assert page_of(lighton, size, options_of(lighton, *words)).image.size == sent


def test_worst_case_fits():
    recipe = lighton.RECIPE
    assert (recipe["image"]["max_side"] / 28) ** 2 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] == recipe["context"]


@pytest.mark.parametrize("text", ["# Annual return\n\n$n=12$", r"Fares rose from \$3 to \$5.", "<table><tr><td>18", ""])
def test_parse_keeps_the_text(text):
    result = lighton.parse(lighton.Answer(f"\n{text} \n"), None, options_of(lighton))
    assert (result.markdown, result.blocks, result.flags) == (text, None, [])


def test_math_between_escaped_dollars_is_repaired_as_the_client_does():
    assert lighton.parse(lighton.Answer(r"Let \$x^2 + 1\$ be."), None, None).markdown == "Let $x^2 + 1$ be."
