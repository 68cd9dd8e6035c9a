"""NuMarkdown: what is asked, and answers told from thoughts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

numarkdown = load_recipe("numarkdown-ocr")

THOUGHTS = "1. One heading, one table.\n2. Repeat the merged label once."
MARKDOWN = "# Stock list\n\n| Item | Note |\n|---|---|\n| Rope | 20 m<br>tarred |"
ANSWER = f"<think>\n{THOUGHTS}\n</think>\n<answer>\n{MARKDOWN}\n</answer>"


def parsed(text, *words):
    return numarkdown.parse(numarkdown.Answer(text), None, options_of(numarkdown, *words))


@pytest.mark.parametrize(
    "words, more", [((), []), (("--custom-prompt", "Convert."), [{"type": "text", "text": "Convert."}])]
)
def test_body_is_the_image_alone(words, more):
    page = page_of(numarkdown)
    assert body_of(numarkdown, page, options_of(numarkdown, *words)) == {
        "messages": [{"role": "user", "content": [{"type": "image", "image": page.image}, *more]}],
        "max_tokens": 16384,
        "temperature": 0.7,
    }


def test_worst_case_fits():
    recipe = numarkdown.RECIPE
    assert recipe["image"]["max_pixels"] / 28 / 28 == recipe["image_tokens"]
    assert recipe["engine_args"]["mm_processor_kwargs"] == {"min_pixels": 100 * 784, "max_pixels": 5000 * 784}
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 <= recipe["max_model_len"] <= recipe["context"]


@pytest.mark.parametrize(
    "text, markdown, thoughts, flags",
    [
        (ANSWER, MARKDOWN, THOUGHTS, []),
        (ANSWER + "\n<answer>again</answer>", MARKDOWN, THOUGHTS, []),
        (ANSWER.removeprefix("<think>"), MARKDOWN, THOUGHTS, []),
        (ANSWER[:-30], MARKDOWN[: -30 + len("\n</answer>")], THOUGHTS, ["repaired"]),  # cut off
        (f"<think>{THOUGHTS}</think>\n{MARKDOWN}", MARKDOWN, THOUGHTS, ["repaired"]),
        (f"<think>{THOUGHTS}</think>\n{MARKDOWN}</answer>", MARKDOWN, THOUGHTS, ["repaired"]),
        (f"<think>{THOUGHTS}\n<answer>{MARKDOWN}</answer>", MARKDOWN, THOUGHTS, []),
        (f"<answer>{MARKDOWN}</answer>", MARKDOWN, None, []),
        ("<think></think><answer></answer>", "", None, []),
        (MARKDOWN, MARKDOWN, None, []),
        ("", "", None, []),
    ],
)
def test_parse(text, markdown, thoughts, flags):
    result = parsed(text)
    assert (result.markdown, result.flags) == (markdown, flags)
    assert result.columns == {"numarkdown_reasoning": thoughts} and set(result.columns) == set(
        numarkdown.RECIPE["columns"]
    )


def test_the_whole_answer_on_request():
    result = parsed(ANSWER + "\n", "--include-thinking")
    assert (result.markdown, result.columns) == (ANSWER, {"numarkdown_reasoning": THOUGHTS})


def test_endless_thoughts_are_part_of_the_whole_answer():
    result = parsed("<think>\n" + THOUGHTS, "--include-thinking")
    assert (result.markdown, result.flags) == ("<think>\n" + THOUGHTS, ["repaired"])
    assert result.columns == {"numarkdown_reasoning": THOUGHTS}


@pytest.mark.parametrize("words, gpus", [((), None), (("--tensor-parallel-size", 2), 2)])
def test_several_gpus(words, gpus):
    options = options_of(numarkdown, *words)
    args = numarkdown.engine_args(options, {**numarkdown.RECIPE, **numarkdown.check(options)})
    assert args.get("tensor_parallel_size") == gpus and args["mm_processor_kwargs"]["max_pixels"] == 3920000


@pytest.mark.parametrize("text", ["<think>\n" + THOUGHTS, "<think>" + "hm, again. " * 4000])
def test_thoughts_are_never_the_text(text):
    with pytest.raises(numarkdown.PageError, match="within the model's thoughts.*--max-tokens"):
        parsed(text)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", "\n"])).map("".join))
def test_parse_of_any_order_of_tags(text):
    try:
        result = parsed(text)
    except numarkdown.PageError:
        assert "<think>" in text and "</think>" not in text and "<answer>" not in text
    else:
        assert set(result.flags) <= {"repaired"} and result.markdown.count("a") <= text.count("a")
