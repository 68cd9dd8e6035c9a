"""GLM-OCR: what is asked, and what becomes of the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

glm = load_recipe("glm-ocr")


def parsed(text, *words):
    options = options_of(glm, *words)
    return glm.parse(glm.Answer(text), page_of(glm), options)


@pytest.mark.parametrize(
    "task, prompt",
    [("ocr", "Text Recognition:"), ("formula", "Formula Recognition:"), ("table", "Table Recognition:")],
)
def test_body(task, prompt):
    options, page = options_of(glm, "--task", task), page_of(glm)
    assert body_of(glm, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 8192,
        "temperature": 0.0,
        "top_p": 0.00001,
        "top_k": 1,
        "repetition_penalty": 1.1,
    }


def test_sampling_is_a_flag():
    body = body_of(glm, page_of(glm), options_of(glm, "--temperature", 0.4, "--max-tokens", 99))
    assert (body["temperature"], body["max_tokens"], body["top_k"]) == (0.4, 99, 1)


def test_default_task_is_ocr():
    assert options_of(glm).task == "ocr"


@pytest.mark.parametrize(
    "words, size, sent",
    [
        ((), (1240, 1754), (1240, 1754)),
        ((), (4000, 6000), (1792, 2688)),  # 4,816,896 pixels at most, the shape kept
        (("--max-pixels", 1_000_000), (2000, 2000), (1000, 1000)),
        (("--max-pixels", 1_000_000), (500, 500), (500, 500)),  # never enlarged
    ],
)
def test_image_sent(words, size, sent):
    page = page_of(glm, size, options_of(glm, *words))
    assert page.image.size == sent and (page.width, page.height) == size
    assert page.image.width * page.image.height <= 4816896


def test_worst_case_fits():
    recipe = glm.RECIPE
    assert recipe["image"]["max_pixels"] / 28 / 28 <= recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] <= recipe["context"]


@pytest.mark.parametrize(
    "text, markdown",
    [
        ("# Register\n\n$ x + 1 $ boys\n", "# Register\n\n$ x + 1 $ boys"),
        (r"\t\t Births\t1871\t\t ", r"Births\t1871"),
        (" \\t \\t\n", ""),
        (r"\theta = \tan \alpha\t", r"\theta = \tan \alpha"),
        (r"\t\theta", r"\theta"),
        (r"\text{a} \t b \quad \text", r"\text{a} \t b \quad \text"),
        ("", ""),
        ("<table><tr><td>1871</td><td>20", "<table><tr><td>1871</td><td>20"),  # cut off: as it came
        ("and so on " * 500, ("and so on " * 500).strip()),  # loops are flagged by the run, not trimmed
    ],
)
def test_parse(text, markdown):
    result = parsed(text)
    assert (result.markdown, result.blocks, result.flags) == (markdown, None, [])


@given(st.text())
def test_parse_only_strips_the_edges(text):
    assert parsed(text).markdown in text


def test_parse_of_a_long_loop_of_tabs():
    middle = "x" + r"\t " * 20_000 + "y"
    assert parsed(r"\t " * 20_000 + middle + r" \t" * 20_000).markdown == middle
