"""LightOnOCR-2: what is asked, and what becomes of the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

lighton = load_recipe("lighton-ocr2")


def test_body_holds_one_image_and_no_text():
    options, page = options_of(lighton), page_of(lighton)
    assert body_of(lighton, page, options) == {
        "messages": [{"role": "user", "content": [{"type": "image", "image": page.image}]}],
        "max_tokens": 4096,
        "temperature": 0.2,
        "top_p": 0.9,
    }


@pytest.mark.parametrize(
    "words, size, sent",
    [
        ((), (3080, 1540), (1540, 770)),
        ((), (1540, 3080), (770, 1540)),
        ((), (600, 800), (600, 800)),  # never enlarged
        (("--target-size", 1024), (1024, 2048), (512, 1024)),
        (("--target-size", 4000), (1024, 2048), (1024, 2048)),
        (("--no-resize",), (3000, 4000), (3000, 4000)),
    ],
)
def test_image_sent(words, size, sent):
    page = page_of(lighton, size, options_of(lighton, *words))
    assert page.image.size == sent and (page.width, page.height) == size


def test_worst_case_fits():
    recipe = lighton.RECIPE
    assert (recipe["image"]["max_side"] / 28) ** 2 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] < recipe["max_model_len"] <= recipe["context"]


def test_versions_that_do_not_work_are_excluded_and_the_image_is_not():
    window = lighton.RECIPE["vllm"]
    assert {"0.27.1", "0.30.0"} == set(window["exclude"])
    assert window["tested"] == "0.22.1" and all(reason for reason in window["exclude"].values())


@pytest.mark.parametrize(
    "text",
    [
        "# Annual return\n\nTotal: \\$4,120 for $n=12$ parishes.\n\n<table><tr><td>1871</td><td>204</td></tr></table>",
        r"Fares rose from \$3 to \$5.",  # the dollars stay escaped
        "<table><tr><td>18",
        "the the " * 600,
        "![image](image_1.png) 120,300,880,610",
        "",
    ],
)
def test_parse_keeps_the_text(text):
    result = lighton.parse(lighton.Answer(f"\n{text} \n"), page_of(lighton), options_of(lighton))
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, [])


def test_math_between_escaped_dollars_is_repaired_as_the_client_does():
    text = r"Let \$x^2 + 1\$ be, at US\$5 and \$6."
    assert lighton.parse(lighton.Answer(text), None, None).markdown == r"Let $x^2 + 1$ be, at US\$5 and \$6."


@given(st.text())
def test_parse_takes_nothing_but_backslashes(text):
    markdown = lighton.parse(lighton.Answer(text), None, None).markdown
    assert markdown.replace("\\", "") == text.strip().replace("\\", "")
