"""Xiaomi-OCR-0: what is asked in each task, math and tables, repetition, and the two servers."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, page_of

xiaomi = load_recipe("xiaomi-ocr-0-saturate")

DOCUMENT = (
    "Extract all information from the main body of the document image and represent it in markdown format, ignoring "
    "headers and footers. Tables should be expressed in OTSL format, formulas in the document should be represented "
    "using LATEX format, and the parsing should be organized according to the reading order."
)
INVENTORY = r"""## Inventory of 1902

The balance is \(x^2+1\) and in full
\[ \frac{a}{b} \]

Stock, by the pound:<fcel>Item<fcel>Price<lcel><nl><ucel><fcel>old<fcel>new<nl><fcel>Salt<ecel><fcel>4d<nl>

Signed."""
SHEET = xiaomi.Page(None, 2000, 3000)


def options_of(*words):
    options = xiaomi.option_parser(xiaomi.RECIPE, xiaomi.add_options).parse_args(["in", "out", *map(str, words)])
    xiaomi.settle(options, xiaomi.RECIPE, {"serve": None, "vllm": None, "sglang": None})
    return options


OPTIONS = options_of()


def read(text, *words):
    return xiaomi.parse(xiaomi.Answer(text), SHEET, options_of(*words) if words else OPTIONS)


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), DOCUMENT),
        (("--task", "text"), "Extract the text in the image."),
        (("--task", "table"), "Parse the table in the image into OTSL."),
        (("--task", "formula"), "Identify the formula in the image and represent it using LATEX format."),
        (
            ("--task", "kie"),
            "Extract the key information from the document image as a JSON object. Use concise field names. Return "
            "JSON only; use an empty string for missing values.",
        ),
        (
            ("--task", "kie", "--schema", '{"Name": "", "été": ""}'),
            "Extract key information in the image\n\nPlease output the key information in JSON format according to the "
            'following schema:\n{\n    "Name": "",\n    "été": ""\n}',
        ),
        (
            ("--task", "vqa", "--question", "Which year?"),
            "Which year?\nAnswer the question using a single word or phrase.",
        ),
    ],
)
def test_body_has_the_text_first(words, prompt):
    options, page = options_of(*words), page_of(xiaomi, (600, 800))
    assert body_of(xiaomi, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": prompt}, {"type": "image", "image": page.image}]}
        ],
        "max_tokens": 12000,
        "temperature": 0.0,
        "top_p": 0.8,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    assert xiaomi.chat_arguments(xiaomi.RECIPE)["chat_template_kwargs"] == {"enable_thinking": False}


def test_worst_case_fits():
    recipe = xiaomi.RECIPE
    assert (recipe["image"]["max_side"] / 32) ** 2 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + len(DOCUMENT) // 3 + 64 <= recipe["max_model_len"]
    assert recipe["context"] is None  # not found


def test_the_schema_of_kie_comes_from_a_file_too(tmp_path):
    (tmp_path / "fields.json").write_text('{"name": ""}')
    assert options_of("--task", "kie", "--schema", tmp_path / "fields.json").schema == {"name": ""}
    with pytest.raises(xiaomi.Stop, match="no such file"):
        options_of("--schema", "fields.json")
    with pytest.raises(xiaomi.Stop, match="names no fields"):
        xiaomi.check(options_of("--task", "kie", "--schema", "{}"))


def test_longest_edge():
    options = options_of("--longest-edge", 1024)
    assert page_of(xiaomi, (2048, 1024), options).image.size == (1024, 512)
    assert OPTIONS.max_samples is None and options_of("--limit", 7).max_samples == 7


@pytest.mark.parametrize(
    "text, stored, valid",
    [('```json\n{"Name": "É"}\n```', '{"Name": "É"}', True), ('{"Name": "É', '{"Name": "É', False), ("", "", False)],
)
def test_key_information_is_json(text, stored, valid):
    result = read(text, "--task", "kie")
    assert (result.markdown, result.columns["markdown_valid"]) == (stored, valid)
    assert (result.columns["markdown_error"] is None) == valid
    columns = xiaomi.check(options_of("--task", "kie"))["columns"]
    assert set(columns) == set(result.columns)


def test_a_question_is_needed():
    options = options_of("--task", "vqa")
    assert xiaomi.request(None, options)["messages"][0]["content"][0]["text"].startswith("\nAnswer")  # --dry-run asks
    with pytest.raises(xiaomi.Stop, match="--question"):
        xiaomi.check(options_of("--task", "vqa"))


def test_servers():
    assert OPTIONS.engine == "serve" and xiaomi.check(OPTIONS) == {}
    assert "--gdn-prefill-backend triton" in " ".join(xiaomi.cli_args(xiaomi.engine_args(OPTIONS, xiaomi.RECIPE)))
    assert xiaomi.check(options_of("--engine", "vllm")) == {}
    options = options_of("--engine", "sglang")
    recipe = {**xiaomi.RECIPE, **xiaomi.check(options)}
    assert xiaomi.server_command(options, recipe, 81) == [
        sys.executable, "-m", "sglang.launch_server", "--model-path", "xiaomi-research/Xiaomi-OCR-0",
        "--context-length", "16384", "--host", "127.0.0.1", "--port", "81",
    ]  # fmt: skip
    with pytest.raises(xiaomi.Stop, match="uv run --with sglang"):
        xiaomi.preflight(options, recipe)


def test_a_whole_page():
    result = read(INVENTORY)
    assert result.markdown == (
        "## Inventory of 1902\n\nThe balance is  $ x^2+1 $ and in full\n $$ \\frac{a}{b} $$ \n\n"
        "Stock, by the pound:\n\n"
        '<table><tr><td rowspan="2">Item</td><td colspan="2">Price</td></tr><tr><td>old</td><td>new</td></tr>'
        "<tr><td>Salt</td><td></td><td>4d</td></tr></table>\n\nSigned."
    )
    assert result.flags == [] and result.blocks is None


@pytest.mark.parametrize(
    "text, shown",
    [
        (r"\[\[ a \]\]", " $$ a $$ "),
        (r"$$\[ a \]$$", " $$ a $$ "),
        (r"$\[a\]$", " $$ a $$ "),
        (r"so $ \(a\) $ is", "so  $ a $ is"),
        (r"$\(a\) and \(b\)$", "$ $ a $ and  $ b $$"),
        ("\\(a\nb\\)", " $ a\nb $"),
        (r"cut off \(a", r"cut off \(a"),
        (r"costs $5 or \$6", r"costs $5 or \$6"),
    ],
)
def test_math(text, shown):
    assert xiaomi.math_in_dollars(text) == shown


@pytest.mark.parametrize(
    "text, shown",
    [
        ("```\n<fcel>a<nl>\n\n<fcel>b\n```\n\n<fcel>c<nl>", "```\n<fcel>a<nl>\n\n<fcel>b\n```\n\n<table>"),
        ("<fcel>a < b & c<nl>", "<table><tr><td>a &lt; b &amp; c</td></tr></table>"),
        ("<fcel>a<fcel>b", "<table><tr><td>a</td><td>b</td></tr></table>"),
        ("plain\n\n\ntext", "plain\n\n\ntext"),
        ("", ""),
    ],
)
def test_tables(text, shown):
    assert read(text).markdown.startswith(shown)


def test_a_loop_that_stopped_by_itself_is_flagged_and_cut():
    text = " ".join(map(str, range(2000))) + " und der" * 900
    (answer,) = xiaomi.checked([xiaomi.Answer(text, "stop")])
    assert answer.flags == ("looped",)
    result = xiaomi.parse(answer, SHEET, OPTIONS)
    assert result.flags == ["trimmed"] and result.markdown.endswith("1998 1999 und der")


@pytest.mark.parametrize("task", ["text", "vqa"])
def test_other_tasks_give_the_text_as_it_is(task):
    assert read(" {<fcel>} \\(a\\)\n", "--task", task).markdown == r"{<fcel>} \(a\)"


@given(st.lists(st.sampled_from([*r"\[ \] \( \) $ $$ ``` <fcel> <ecel> <lcel> <ucel> <xcel> <nl> a".split(), "\n\n"])))
def test_hostile_text(pieces):
    assert isinstance(read("".join(pieces)).markdown, str)
