"""Qianfan-OCR: what is asked in each mode, thoughts, layout answers whole and broken, boxes in pixels."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

qianfan = load_recipe("qianfan-ocr")

LAYOUT = (
    "Extract all layout elements from this image.\n"
    "Output in JSON format. Each element must include:\n"
    "1.  `bbox`: `[x1, y1, x2, y2]`\n"
    "2.  `category`: One of ['abstract', 'algorithm', 'aside_text', 'chart', 'content', 'display_formula', "
    "'inline_formula', 'doc_title', 'figure_title', 'footer', 'footer_image', 'footnote', 'formula_number', 'header', "
    "'header_image', 'image', 'number', 'paragraph_title', 'reference', 'reference_content', 'seal', 'table', 'text', "
    "'vertical_text', 'vision_footnote']\n\n"
    "**Important**: Do not include any extracted text in the output."
)


def parsed(text, *words, size=(2000, 3000)):
    return qianfan.parse(qianfan.Answer(text), page_of(qianfan, size), options_of(qianfan, *words))


def boxes_of(result):
    return [(block["raw_label"], block["label"], block["bbox"]) for block in result.blocks["blocks"]]


# ---- Requests


@pytest.mark.parametrize(
    "words, prompt, temperature",
    [
        ((), "Parse this document to Markdown.", 0.0),
        (("--prompt-mode", "table"), "Extract tables to HTML format.", 0.0),
        (("--task", "formula"), "Extract formulas to LaTeX.", 0.0),
        (("--task", "chart"), "What trends are shown in this chart?", 0.0),
        (("--task", "scene"), "Extract all visible text from the image.", 0.0),
        (("--task", "element-text"), "Please extract the text from the image.", 0.0),
        (("--task", "element-formula"), "Please convert the formula in the image to LaTeX.", 0.0),
        (("--task", "element-table"), "Please convert the table in the image to HTML.", 0.0),
        (("--task", "layout"), LAYOUT, 0.0),
        (("--task", "kie", "--custom-prompt", "Name as JSON."), "Name as JSON.", 0.0),
        (("--think",), "Parse this document to Markdown.<think>", 0.0),
        (("--task", "parse", "--temperature", 0.0), qianfan.RECIPE["tasks"]["parse"], 0.0),
        (("--task", "parse"), qianfan.RECIPE["tasks"]["parse"], 0.3),
    ],
)
def test_body(words, prompt, temperature):
    options, page = options_of(qianfan, *words), page_of(qianfan)
    assert body_of(qianfan, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 16384,
        "temperature": temperature,
        "top_p": 1.0,
        "skip_special_tokens": False,
    }


def test_the_long_prompt_is_whole():
    prompt = qianfan.RECIPE["tasks"]["parse"]
    assert prompt.startswith("You are an AI assistant specialized in converting document images (one or multiple")
    assert prompt.endswith("\n- Do not include any explanations, metadata, or comments.")
    assert [line for line in prompt.splitlines() if line[:1].isdigit()] == [
        "1. Pages:", "2. Text Recognition:", "3. Reading Order:", "4. Mathematical Formulas:", "5. Tables:",
        "6. Images:", "7. Unreadable or Missing Content:", "8. Output Requirements:",
    ]  # fmt: skip
    assert "\n  --- Page N ---\n" in prompt and "\n  ![label](<box>[[x1, y1, x2, y2]]</box>)\n" in prompt
    assert "\n  $$\n  ...\n  $$\n" in prompt


def test_dense_pages_are_cut_into_more_tiles():
    options = options_of(qianfan, "--dense")
    args = qianfan.engine_args(options, {**qianfan.RECIPE, **qianfan.check(options)})
    assert args["mm_processor_kwargs"] == {"min_dynamic_patch": 8, "max_dynamic_patch": 24}
    assert "mm_processor_kwargs" not in body_of(qianfan, page_of(qianfan), options), "servers refuse it"
    with pytest.raises(qianfan.Stop, match="--mm-processor-kwargs"):
        qianfan.check(options_of(qianfan, "--dense", "--endpoint", "http://localhost:1/v1"))
    assert (24 + 1) * 256 == qianfan.RECIPE["image_tokens"]


def test_key_information_without_a_prompt_stops_before_anything_starts():
    with pytest.raises(qianfan.Stop, match="--custom-prompt") as stop:
        qianfan.check(options_of(qianfan, "--task", "kie"))
    assert stop.value.code == 2
    qianfan.check(options_of(qianfan, "--task", "kie", "--custom-prompt", "Name as JSON."))


def test_worst_case_fits():
    recipe = qianfan.RECIPE
    longest = max(map(len, recipe["tasks"].values()))
    needed = recipe["image_tokens"] + recipe["max_tokens"] + longest // 3 + 64
    assert needed <= recipe["max_model_len"] <= recipe["context"]


# ---- Markdown and thoughts

MARKDOWN = "# Harbour dues\n\n<table><tr><td>Port</td></tr></table>\n![seal](<box>[[702, 810, 880, 955]]</box>)"
RAW = MARKDOWN.replace("702, 810, 880, 955", "<COORD_702>, <COORD_810>, <COORD_880>, <COORD_955>")
THOUGHTS = """<box>[[<COORD_061>, <COORD_053>, <COORD_933>, <COORD_220>]]</box>
<label>table</label>
<brief>prices for three ports</brief>

<box>[<COORD_000>, <COORD_271>, <COORD_925>, <COORD_999>]</box>
<label>text</label>
<brief>closing note</brief>"""
REGIONS = [("table", "table", [122, 159, 1866, 660]), ("text", "text", [0, 813, 1850, 2997])]


@pytest.mark.parametrize("raw", [RAW, RAW + "<|im_end|>", RAW + "\n<|im_end|>\n<|endoftext|>", MARKDOWN])
def test_pictures_in_the_text(raw):
    result = parsed(raw)
    assert (result.markdown, result.flags, result.columns) == (MARKDOWN, [], {"qianfan_reasoning": None})
    assert boxes_of(result) == [("seal", "seal", [1404, 2430, 1760, 2865])]


@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_thoughts_give_regions(opening):
    result = parsed(f"{opening}{THOUGHTS}\n</think>\n{RAW}<|im_end|>", "--think")
    assert (result.markdown, result.flags) == (MARKDOWN, [])
    assert boxes_of(result) == REGIONS
    assert result.columns["qianfan_reasoning"].startswith("<box>[[61, 53, 933, 220]]</box>\n<label>table</label>")
    assert set(result.columns) == set(qianfan.RECIPE["columns"])


def test_the_whole_answer_on_request():
    result = parsed(f"<think>{THOUGHTS}</think>{RAW}", "--think", "--include-thinking")
    assert result.markdown.startswith("<think><box>[[61") and result.markdown.endswith(MARKDOWN)


@pytest.mark.parametrize("text", ["<think>" + THOUGHTS, THOUGHTS[:40], "", RAW])
def test_thoughts_are_never_the_text(text):
    with pytest.raises(qianfan.PageError, match="within the model's thoughts.*--max-tokens"):
        parsed(text, "--think")


@pytest.mark.parametrize("text", ["", "# Only text", "<table><tr><td>" * 3000, "![image](<box>[[1, 2", "<COORD_12"])
def test_text_without_boxes(text):
    result = parsed(text)
    assert (result.markdown, result.blocks, result.flags) == (text, None, [])


# ---- Layout


def cell(box, category):
    return {"bbox": "[" + ", ".join(f"<COORD_{v:03}>" for v in box) + "]", "category": category}


CELLS = [cell([159, 40, 840, 92], "doc_title"), cell([100, 120, 900, 480], "table"), cell([0, 0, 999, 30], "logo")]
FOUND = [
    ("doc_title", "title", [318, 120, 1680, 276]),
    ("table", "table", [200, 360, 1800, 1440]),
    ("logo", "other", [0, 0, 1998, 90]),
]
JSON = json.dumps(CELLS)


@pytest.mark.parametrize(
    "text, found, flags",
    [
        (JSON, FOUND, []),
        (f"```json\n{JSON}\n```<|im_end|>", FOUND, []),
        (JSON.replace('"[', "[").replace(']"', "]").replace("<COORD_040>", "40"), FOUND, []),
        (JSON[:-60], FOUND[:2], ["repaired"]),
        (JSON[:-3], FOUND[:2], ["repaired"]),
        (json.dumps([CELLS[0]] * 40)[:-9], FOUND[:1], ["repaired"]),
        ("[]", [], []),
        (json.dumps([{"category": "text"}, {"bbox": "[1, 2]", "category": "text"}]), [("text", "text", None)], []),
    ],
)
def test_layout(text, found, flags):
    result = parsed(text, "--task", "layout")
    assert boxes_of(result) == found
    assert (result.flags, result.markdown) == (flags, "")
    assert (result.blocks["width"], result.blocks["height"]) == (2000, 3000)


@pytest.mark.parametrize("text", ["I see a table.", "", "!" * 500])
def test_no_layout_is_asked_again(text):
    result = parsed(text, "--task", "layout")
    assert (result.markdown, result.blocks, result.flags) == (text, None, ["unparsed"])


def test_every_category_of_the_prompt_has_a_label():
    named = LAYOUT.partition("One of [")[2].partition("]")[0]
    assert {name.strip(" '") for name in named.split(",")} == set(qianfan.QIANFAN_LABELS)
    assert set(qianfan.QIANFAN_LABELS.values()) <= set(qianfan.BLOCK_LABELS)


PIECES = [
    "<think>",
    "</think>",
    "<box>[[1,2,3,4]]</box>",
    "<label>",
    "</label>",
    "<COORD_007>",
    '[{"bbox": "',
    "a",
    "]",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text(), st.sampled_from(["ocr", "layout"]))
def test_parse_never_raises(text, task):
    assert isinstance(parsed(text, "--task", task).markdown, str)


@pytest.mark.parametrize("task", ["ocr", "layout"])
def test_endless_thoughts_are_part_of_the_whole_answer(task):
    result = parsed("<think>" + THOUGHTS, "--task", task, "--think", "--include-thinking")
    assert result.markdown.startswith("<think><box>[[61") and result.flags == ["unparsed"]
    assert result.columns["qianfan_reasoning"] == result.markdown.removeprefix("<think>")
