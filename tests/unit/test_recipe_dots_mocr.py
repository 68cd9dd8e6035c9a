"""dots.mocr: what is asked in each mode, layout answers whole and broken, and boxes in pixels of the original."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

dots = load_recipe("dots-mocr")

MARK = "<|img|><|imgpad|><|endofimg|>"
LAYOUT_ALL = (
    "Please output the layout information from the PDF image, including each layout element's bbox, its category, and "
    "the corresponding text content within the bbox.\n\n"
    "1. Bbox format: [x1, y1, x2, y2]\n\n"
    "2. Layout Categories: The possible categories are ['Caption', 'Footnote', 'Formula', 'List-item', 'Page-footer', "
    "'Page-header', 'Picture', 'Section-header', 'Table', 'Text', 'Title'].\n\n"
    "3. Text Extraction & Formatting Rules:\n"
    "    - Picture: For the 'Picture' category, the text field should be omitted.\n"
    "    - Formula: Format its text as LaTeX.\n"
    "    - Table: Format its text as HTML.\n"
    "    - All Others (Text, Title, etc.): Format their text as Markdown.\n\n"
    "4. Constraints:\n"
    "    - The output text must be the original text from the image, with no translation.\n"
    "    - All layout elements must be sorted according to human reading order.\n\n"
    "5. Final Output: The entire output must be a single JSON object.\n"
)
LAYOUT_ONLY = (
    "Please output the layout information from this PDF image, including each layout's bbox and its category. The bbox "
    "should be in the format [x1, y1, x2, y2]. The layout categories for the PDF document include ['Caption', "
    "'Footnote', 'Formula', 'List-item', 'Page-footer', 'Page-header', 'Picture', 'Section-header', 'Table', 'Text', "
    "'Title']. Do not output the corresponding text. The layout result should be in JSON format."
)
GROUNDING = "Extract text from the given bounding box on the image (format: [x1, y1, x2, y2]).\nBounding Box:\n"


# ---- Requests


@pytest.mark.parametrize(
    "words, prompt, sampling",
    [
        ((), "Extract the text content from this image.", (0.1, 1.0)),
        (("--task", "layout-all"), LAYOUT_ALL, (0.1, 1.0)),
        (("--prompt-mode", "layout-only"), LAYOUT_ONLY, (0.1, 1.0)),
        (("--task", "web-parsing"), "Parsing the layout info of this webpage image with format json:\n", (0.1, 1.0)),
        (("--task", "scene-spotting"), "Detect and recognize the text in the image.", (0.1, 1.0)),
        (("--task", "grounding-ocr"), GROUNDING + "[0, 0, 1232, 1764]", (0.1, 1.0)),
        (("--task", "grounding-ocr", "--bbox", 124, 88, 620, 877), GROUNDING + "[123, 88, 616, 882]", (0.1, 1.0)),
        (
            ("--task", "svg"),
            'Please generate the SVG code based on the image.viewBox="0 0 1240 1754"',
            (0.9, 1.0),
        ),
        (
            ("--task", "svg", "--temperature", 0.1),
            'Please generate the SVG code based on the image.viewBox="0 0 1240 1754"',
            (0.1, 1.0),
        ),
    ],
)
def test_body(words, prompt, sampling):
    options, page = options_of(dots, *words), page_of(dots)
    assert body_of(dots, page, options) == {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image", "image": page.image}, {"type": "text", "text": MARK + prompt}],
            }
        ],
        "max_tokens": 16384,
        "temperature": sampling[0],
        "top_p": sampling[1],
    }


def test_general_has_a_system_turn_and_its_own_sampling():
    options, page = options_of(dots, "--task", "general", "--custom-prompt", "Who is this?"), page_of(dots)
    body = body_of(dots, page, options)
    assert body["messages"] == [
        {"role": "system", "content": "You are a helpful assistant."},
        {
            "role": "user",
            "content": [{"type": "image", "image": page.image}, {"type": "text", "text": MARK + "Who is this?"}],
        },
    ]
    assert (body["temperature"], body["top_p"]) == (0.1, 0.9)


@pytest.mark.parametrize("task", ["ocr", "layout-all", "grounding-ocr", "svg"])
def test_a_prompt_of_ones_own_wins_and_its_answer_stays_as_it_is(task):
    options, page = options_of(dots, "--task", task, "--custom-prompt", "Read {the} names."), page_of(dots)
    (message,) = body_of(dots, page, options)["messages"]
    assert message["content"][1]["text"] == MARK + "Read {the} names."
    parsed = dots.parse(dots.Answer(' [{"bbox": [1, 2, 3, 4]}] '), page, options)
    assert (parsed.markdown, parsed.blocks, parsed.flags) == ('[{"bbox": [1, 2, 3, 4]}]', None, [])


def test_general_without_a_prompt_stops_before_anything_starts():
    with pytest.raises(dots.Stop, match="--custom-prompt") as stop:
        dots.check(options_of(dots, "--task", "general"))
    assert stop.value.code == 2
    dots.check(options_of(dots, "--task", "general", "--custom-prompt", "Who is this?"))


def test_svg_names_the_size_that_is_sent():
    options = options_of(dots, "--task", "svg", "--max-pixels", 250_000)
    body = body_of(dots, page_of(dots, (1000, 1000), options), options)
    assert body["messages"][0]["content"][1]["text"].endswith('viewBox="0 0 500 500"')


def test_messages_are_joined_as_a_string():
    assert dots.chat_arguments(dots.RECIPE) == {"chat_template_content_format": "string"}


def test_worst_case_fits():
    recipe = dots.RECIPE
    assert recipe["image"]["max_pixels"] / 28 / 28 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + len(LAYOUT_ALL) // 3 + 64 <= recipe["max_model_len"]
    assert recipe["max_model_len"] <= recipe["context"]


# ---- The model's pixels


@pytest.mark.parametrize(
    "size, seen",
    [
        ((1240, 1754), (1232, 1764)),  # each side to the nearest multiple of 28
        ((1754, 1240), (1764, 1232)),
        ((2800, 2800), (2800, 2800)),
        ((3360, 3360), (3360, 3360)),  # 11,289,600 pixels exactly
        ((3517, 3209), (3500, 3192)),  # rounded up beyond the limit, so reduced and rounded down
        ((30, 30), (56, 56)),  # below 3,136 pixels, so enlarged
        ((2, 300), (28, 700)),
    ],
)
def test_smart_resize(size, seen):
    assert dots.smart_resize(*size, 28, 3136, 11289600) == seen


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_smart_resize_keeps_its_bounds(width, height):
    seen = dots.smart_resize(width, height, 28, 3136, 11289600)
    assert all(side % 28 == 0 and side >= 28 for side in seen)
    if max(width, height) / min(width, height) < 100:
        assert 3136 <= seen[0] * seen[1] <= 11289600


PAGES = {
    "portrait": ((1240, 1754), ()),
    "landscape": ((1754, 1240), ()),
    "large": ((6000, 8000), ()),
    "reduced": ((2480, 3508), ("--max-pixels", 1_000_000)),
    "tiny": ((40, 30), ()),
}


@pytest.mark.parametrize("kind", PAGES)
def test_boxes_come_back_to_the_original(kind):
    """A model that sees true boxes in its own pixels: they return within a pixel of its grid."""
    size, words = PAGES[kind]
    options = options_of(dots, "--task", "layout-all", *words)
    page = page_of(dots, size, options)
    seen = dots.seen_size(page)
    assert all(side % 28 == 0 for side in seen)
    width, height = size
    true = [[0, 0, width, height], [width // 4, height // 2, width // 2, height * 3 // 4], [width // 2, 0, width, 9]]
    boxes = [[round(v * seen[i % 2] / size[i % 2]) for i, v in enumerate(box)] for box in true]
    text = json.dumps([{"bbox": box, "category": "Text", "text": "x"} for box in boxes])
    blocks = dots.parse(dots.Answer(text), page, options).blocks
    assert (blocks["width"], blocks["height"]) == size
    for block, box in zip(blocks["blocks"], true, strict=True):
        for axis, (found, wanted) in enumerate(zip(block["bbox"], box, strict=True)):
            assert abs(found - wanted) <= 1 + size[axis % 2] / seen[axis % 2]


def test_grounding_sends_what_layout_would_return():
    page = page_of(dots, (2480, 3508))
    options = options_of(dots, "--task", "grounding-ocr", "--bbox", 248, 350, 1240, 1754)
    text = dots.request(page, options)["messages"][0]["content"][1]["text"]
    sent = json.loads(text.rpartition("\n")[2])
    assert sent == [249, 349, 1246, 1750]  # the model sees 2492 x 3500
    back = dots.box_on_page(sent, page, *dots.seen_size(page))
    assert all(abs(a - b) <= 2 for a, b in zip(back, options.bbox, strict=True))


# ---- Layout answers


def cell(bbox, category, text=None):
    return {"bbox": bbox, "category": category} | ({} if text is None else {"text": text})


CELLS = [
    cell([90, 20, 1100, 50], "Page-header", "Parish of Hope"),
    cell([102, 88, 905, 141], "Title", "# Annual return"),
    cell([102, 170, 905, 402], "Table", '<table><tr><td colspan="2">1871</td><td>204</td></tr></table>'),
    cell([102, 430, 905, 470], "Formula", "E = mc^{2}"),
    cell([300, 500, 700, 900], "Picture"),
    cell([102, 920, 905, 980], "Text", 'He said "no",\nand left {"bbox": nothing}.'),
    cell([102, 990, 905, 1010], "List-item", "- baptisms"),
    cell([600, 1700, 640, 1720], "Page-footer", "7"),
]
BODY = [
    "# Annual return",
    '<table><tr><td colspan="2">1871</td><td>204</td></tr></table>',
    "$$\nE = mc^{2}\n$$",
    'He said "no",\nand left {"bbox": nothing}.',
    "- baptisms",
]


def read(text, *words):
    return dots.parse(dots.Answer(text), page_of(dots), options_of(dots, "--task", "layout-all", *words))


def texts_of(result):
    return [block["content"] for block in result.blocks["blocks"]]


def test_whole_answer():
    result = read(json.dumps(CELLS))
    assert result.markdown == "\n\n".join(BODY)
    assert result.flags == [] and result.columns == {}
    blocks = result.blocks["blocks"]
    assert [(b["label"], b["raw_label"], b["format"]) for b in blocks] == [
        ("header", "Page-header", "markdown"),
        ("title", "Title", "markdown"),
        ("table", "Table", "html"),
        ("formula", "Formula", "latex"),
        ("picture", "Picture", "markdown"),
        ("text", "Text", "markdown"),
        ("list", "List-item", "markdown"),
        ("footer", "Page-footer", "markdown"),
    ]
    assert texts_of(result) == [c.get("text", "") for c in CELLS]
    assert [b["order"] for b in blocks] == list(range(8))


def test_math_in_a_code_span_is_math():
    cells = [cell([1, 2, 300, 40], "Text", " `$x$` "), cell([1, 52, 300, 90], "Text", "`$HOME` and `$x$`")]
    assert read(json.dumps(cells)).markdown == "$x$\n\n`$HOME` and `$x$`"


def test_headers_and_footers_can_stay():
    result = read(json.dumps(CELLS), "--keep-headers-footers")
    assert result.markdown == "\n\n".join(["Parish of Hope", *BODY, "7"])


@pytest.mark.parametrize("indent", [None, 2])
def test_a_fence_is_no_damage(indent):
    result = read(f"```json\n{json.dumps(CELLS, indent=indent)}\n```")
    assert result.markdown == "\n\n".join(BODY) and result.flags == []


def damaged(edit):
    return edit(json.dumps(CELLS))


@pytest.mark.parametrize(
    "text",
    [
        damaged(lambda s: s.replace("}, {", "}{")),
        damaged(lambda s: s.replace("}, {", "}\n{")),
        damaged(lambda s: s[:-1]),  # no closing bracket
        damaged(lambda s: s[1:]),  # no opening one
        damaged(lambda s: s[:-1] + ",]"),
        damaged(lambda s: '{"layout": ' + s + "}"),
        damaged(lambda s: "Here it is:\n" + s + "\nDone."),
        damaged(lambda s: s.replace('\\"2\\"', '"2"')),  # quotes in HTML not escaped
        damaged(lambda s: s[:-2]),  # the last object half closed
        damaged(lambda s: s[:-3]),
    ],
)
def test_damage_that_costs_nothing(text):
    result = read(text)
    assert result.flags == ["repaired"]
    assert texts_of(result) == [c.get("text", "") for c in CELLS]
    assert all(block["bbox"] for block in result.blocks["blocks"])


@pytest.mark.parametrize("length", range(60, len(json.dumps(CELLS)), 7))
def test_truncated_anywhere(length):
    """Every whole cell survives, and of the half one what was there."""
    text = json.dumps(CELLS)[:length]
    result = read(text)
    assert result.flags == ["repaired"]
    whole = text.count("}, {")
    assert texts_of(result)[:whole] == [c.get("text", "") for c in CELLS][:whole]
    assert len(texts_of(result)) <= whole + 1


def test_half_a_table_is_kept():
    result = read('[{"bbox": [1, 2, 300, 400], "category": "Table", "text": "<table><tr><td>18\\n71</td><td>\\"a\\')
    assert result.markdown == '<table><tr><td>18\n71</td><td>"a\\'
    assert result.blocks["blocks"][0]["bbox"] is not None and result.flags == ["repaired"]


def test_latex_that_is_not_escaped():
    result = read(r'[{"bbox": [1, 2, 30, 40], "category": "Formula", "text": "\alpha + \lambda"}]')
    assert result.markdown == "$$\n\\alpha + \\lambda\n$$" and result.flags == ["repaired"]


def test_a_loop_keeps_its_first_round():
    one = json.dumps(cell([1, 2, 300, 40], "Text", "again"))
    result = read("[" + ", ".join([json.dumps(CELLS[1])] + [one] * 400) + ', {"bbox": [1, 2')
    assert texts_of(result)[:2] == ["# Annual return", "again"] and len(texts_of(result)) == 2
    moving = [json.dumps(cell([1, y, 300, y + 9], "Text", "again")) for y in range(0, 900, 10)]
    assert texts_of(read("[" + ", ".join(moving))) == ["again"]


def test_equal_cells_of_a_whole_answer_stay():
    ditto = [cell([1, y, 300, y + 9], "Text", "ditto") for y in range(0, 90, 10)]
    result = read(json.dumps(ditto))
    assert len(texts_of(result)) == 9 and result.flags == []


@pytest.mark.parametrize(
    "bbox", [[1, 2, 3], [1, 2, 3, 4, 5], [9, 9, 9, 9], [5000, 5000, 6000, 6000], "1 2 3 4", None, {}, [0, 0, None, 1]]
)
def test_a_bad_box_costs_the_box_only(bbox):
    result = read(json.dumps([cell(bbox, "Text", "kept")]))
    assert result.markdown == "kept" and result.blocks["blocks"][0]["bbox"] is None


def test_boxes_are_clipped_to_the_page():
    (block,) = read(json.dumps([cell([-40, -1, 99999, 882], "Text", "x")])).blocks["blocks"]
    assert block["bbox"] == [0, 0, 1240, 877]


def test_a_blank_page():
    result = read("[]")
    assert (result.markdown, result.blocks["blocks"], result.flags) == ("", [], [])


@pytest.mark.parametrize(
    "text", ["", "  ", "The page is empty.", "{", "null", "17", "[1, 2]", "[" * 100_000, "!" * 500]
)
def test_no_layout_at_all(text):
    result = read(text)
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, ["unparsed"])


def test_unknown_categories_are_other():
    (block,) = read(json.dumps([cell([1, 2, 300, 40], "Stamp", "PAID")])).blocks["blocks"]
    assert (block["label"], block["raw_label"]) == ("other", "Stamp")


def test_half_an_emoji_can_be_written():
    result = read('[{"bbox": [1, 2, 300, 40], "category": "Text", "text": "\\ud83d!"}]')
    assert result.markdown.encode() and json.dumps(result.blocks, ensure_ascii=False).encode()


def test_layout_only_gives_boxes_and_no_text():
    text = json.dumps([{"bbox": c["bbox"], "category": c["category"]} for c in CELLS])
    result = dots.parse(dots.Answer(text), page_of(dots), options_of(dots, "--task", "layout-only"))
    assert result.markdown == "" and len(result.blocks["blocks"]) == 8 and result.flags == []


@pytest.mark.parametrize("task", ["ocr", "web-parsing", "scene-spotting", "grounding-ocr", "svg", "general"])
@pytest.mark.parametrize("text", ["Annual return", "<svg>", json.dumps(CELLS)[:90], "", "x " * 900])
def test_other_tasks_give_the_text_as_it_is(task, text):
    result = dots.parse(dots.Answer(f" {text}\n"), page_of(dots), options_of(dots, "--task", task))
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, [])


@pytest.mark.parametrize(
    "latex, shown",
    [
        ("E = mc^{2}", "$$\nE = mc^{2}\n$$"),
        ("$$ a_1 $$", "$$\na_1\n$$"),
        ("$$ a_1", "$$\na_1\n$$"),
        (r"\[ \frac{a}{b} \]", "$$\n\\frac{a}{b}\n$$"),
        ("where $x$ is small", "where $x$ is small"),
        (r"see \[x_1\] and \(y\)", r"see \[x_1\] and \(y\)"),
        (r"\(x_1\)", r"\(x_1\)"),
        ("a_1 \\\\[2pt] b_2", "$$\na_1 \\\\[2pt] b_2\n$$"),
        ("$x$", "$x$"),
        ("Equation three", "Equation three"),
        ("`a^2`", "$$\na^2\n$$"),
        (r"\documentclass{article}\usepackage[x]{amsmath}\begin{document}a^2\end{document}", "$$\na^2\n$$"),
        ("$$", ""),
        ("", ""),
    ],
)
def test_formulas(latex, shown):
    assert dots.display_formula(latex) == shown


keys = st.sampled_from(["bbox", "category", "text", "other"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(list(dots.DOTS_LABELS)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(values, st.integers(0, 400), st.text(max_size=5))
def test_hostile_json(value, cut, noise):
    text = json.dumps(value)
    for hostile in (text, text[:cut], text[:cut] + noise + text[cut:], text.replace('\\"', '"')):
        result = read(hostile)
        assert isinstance(result.markdown, str) and set(result.flags) <= {"repaired", "unparsed"}
        if result.blocks:
            for block in result.blocks["blocks"]:
                x0, y0, x1, y1 = block["bbox"] or (0, 0, 1, 1)
                assert 0 <= x0 < x1 <= 1240 and 0 <= y0 < y1 <= 1754
            json.dumps(result.blocks, ensure_ascii=False).encode()


@given(st.text(alphabet='{}[]",:\\ bboxcategorytext0123456789nu', max_size=300))
def test_hostile_text(text):
    result = read(text)
    assert result.flags == ["unparsed"] or result.blocks is not None


def test_pages_are_reduced_to_what_the_model_takes():
    assert dots.RECIPE["image"]["max_pixels"] == dots.DOTS_PIXELS[1]
    assert dots.RECIPE["image_tokens"] == dots.DOTS_PIXELS[1] // 28**2
