"""SmolDocling and Granite-Docling: what is asked, and DocTags to Markdown and boxes through the real docling-core."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of
from tests.unit.test_true_boxes import SIZES, marked, the_mark_comes_back

smol, granite = load_recipe("smoldocling-ocr"), load_recipe("granite-docling-ocr")
both = pytest.mark.parametrize("recipe", [smol, granite], ids=["smoldocling", "granite"])

PAGE = """<doctag><page_header><loc_40><loc_12><loc_460><loc_24>Annals</page_header>
<title><loc_40><loc_25><loc_460><loc_38>The A & B <i> x_y</title>
<section_header_level_1><loc_40><loc_40><loc_460><loc_60>1. Returns</section_header_level_1>
<text><loc_40><loc_62><loc_460><loc_70>some_text & 3 < 4, *so*</text>
<otsl><loc_40><loc_80><loc_460><loc_160><caption><loc_40><loc_75><loc_460><loc_79>Table 1</caption><ched>Year\
<ched>Births<lcel><nl><fcel>1871<fcel>204<fcel>3<nl></otsl>
<otsl><loc_40><loc_161><loc_460><loc_165><ched>a<ched>b<nl><fcel>c & d<ecel><nl></otsl>
<formula><loc_40><loc_170><loc_460><loc_190>E = m c ^ { 2 }</formula>
<unordered_list><list_item><loc_40><loc_192><loc_460><loc_194>one</list_item>
<list_item><loc_40><loc_195><loc_460><loc_197>two</list_item></unordered_list>
<code><loc_40><loc_200><loc_460><loc_210><_Python_>print(1)</code>
<picture><loc_40><loc_220><loc_460><loc_400><natural_image><caption><loc_40><loc_401><loc_460><loc_405>Fig 1</caption>\
</picture>
<page_footer><loc_40><loc_480><loc_460><loc_490>7</page_footer></doctag>"""
MARKDOWN = """# The A & B <i> x_y

## 1. Returns

some_text & 3 < 4, *so*

Table 1

<table><tr><th>Year</th><th colspan="2">Births</th></tr><tr><td>1871</td><td>204</td><td>3</td></tr></table>

| a     | b   |
|-------|-----|
| c & d |     |

$$E = m c ^ { 2 }$$

- one
- two

```
print(1)
```

Fig 1"""


def read(text, recipe=granite, size=(1000, 1500), words=()):
    options = options_of(recipe, *words)
    return recipe.parse(recipe.Answer(text), page_of(recipe, size, options), options)


def blocks_in(parsed):
    return [(block["label"], block["bbox"], block["content"]) for block in parsed.blocks["blocks"]]


@pytest.mark.parametrize(
    "recipe, words, prompt",
    [
        (smol, (), "Convert this page to docling."),
        (granite, (), "Convert this page to docling."),
        (smol, ("--prompt", "Convert page to Docling."), "Convert page to Docling."),
        (granite, ("--task-mode", "chart"), "Convert chart to table."),
        (granite, ("--task", "formula"), "Convert formula to LaTeX."),
        (granite, ("--task", "code"), "Convert code to text."),
        (granite, ("--task", "table"), "Convert table to OTSL."),
        (granite, ("--custom-prompt", "Detect footer elements on the page."), "Detect footer elements on the page."),
    ],
)
def test_body(recipe, words, prompt):
    options, page = options_of(recipe, *words), page_of(recipe)
    ends = {smol: "<end_of_utterance>", granite: "<|end_of_text|>"}[recipe]
    assert body_of(recipe, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 6784,
        "temperature": 0.0,
        "skip_special_tokens": False,
        "stop": ["</doctag>", ends],
        "include_stop_str_in_output": True,
    }
    assert recipe.chat_arguments(recipe.RECIPE) == {"chat_template_content_format": "openai"}


@both
def test_worst_case_fits(recipe):
    settled = recipe.RECIPE
    prompt = max(len(text.encode()) for text in settled["tasks"].values()) // 3 + 64
    assert settled["image_tokens"] + prompt + settled["max_tokens"] <= settled["max_model_len"] == 8192


def test_where_they_differ():
    assert (smol.RECIPE["revision"], granite.RECIPE["revision"]) == (None, "untied")
    assert granite.RECIPE["engine_args"]["dtype"] == "bfloat16" and "dtype" not in smol.RECIPE["engine_args"]


@both
def test_a_page(recipe):
    parsed = read(PAGE, recipe)
    assert parsed.markdown == MARKDOWN and parsed.flags == [] and parsed.columns == {"doctags": PAGE}
    assert parsed.blocks["width"] == 1000 and parsed.blocks["height"] == 1500
    assert blocks_in(parsed)[:5] == [
        ("header", [80, 36, 920, 72], "Annals"),
        ("title", [80, 75, 920, 114], "The A & B <i> x_y"),
        ("heading", [80, 120, 920, 180], "1. Returns"),
        ("text", [80, 186, 920, 210], "some_text & 3 < 4, *so*"),
        ("caption", [80, 225, 920, 237], "Table 1"),
    ]
    kinds = [(block["label"], block["format"], block["raw_label"]) for block in parsed.blocks["blocks"]][5:]
    assert kinds == [
        ("table", "html", "table"),
        ("table", "html", "table"),
        ("formula", "latex", "formula"),
        ("list", "text", "list_item"),
        ("list", "text", "list_item"),
        ("code", "text", "code"),
        ("caption", "text", "caption"),
        ("picture", "text", "picture"),
        ("footer", "text", "page_footer"),
    ]
    assert blocks_in(parsed)[6][2] == "<table><tr><th>a</th><th>b</th></tr><tr><td>c &amp; d</td><td></td></tr></table>"


@pytest.mark.parametrize("ending", ["", "<|end_of_text|>", "<end_of_utterance>\n", "<end_of_utterance><|end_of_text|>"])
def test_end_tokens_are_no_text(ending):
    assert read(PAGE + ending).markdown == MARKDOWN
    assert read(PAGE.removesuffix("</doctag>") + ending).flags == []  # a stop string may take the last tag


def test_doctags_instead_of_markdown():
    parsed = read(PAGE, words=("--output-format", "doctags"))
    assert parsed.markdown == parsed.columns["doctags"] == PAGE and parsed.blocks


@both
def test_answers_to_other_prompts_are_not_broken_for_want_of_tags(recipe):
    words = ("--custom-prompt", "Find all 'text' elements on the page, retrieve all section headers.")
    assert (read("Births in 1871", recipe, words=words).flags, read("Births in 1871", recipe).flags) == (
        [],
        ["unparsed"],
    )
    parsed = read("<doctag><text><loc_1><loc_2><loc_30><loc_40>a", recipe, words=words)
    assert (parsed.markdown, parsed.flags, blocks_in(parsed)) == ("a", ["repaired"], [("text", [2, 6, 60, 120], "a")])


def test_a_gpu_without_bfloat16():
    args = granite.engine_args(*settled("--dtype", "float32"))
    assert (args["dtype"], granite.engine_args(*settled())["dtype"]) == ("float32", "bfloat16")


def settled(*words):
    options = options_of(granite, *words)
    return options, {**granite.RECIPE, **granite.check(options)}


@pytest.mark.parametrize("size", [(1000, 1500), (1500, 1000), (5000, 7000), (70, 33)])
def test_boxes_come_back_to_the_original(size):
    true = [size[0] // 4, size[1] // 2, size[0] // 2, size[1] * 3 // 4]
    grid = [round(500 * v / size[i % 2]) for i, v in enumerate(true)]
    locations = "".join(f"<loc_{v}>" for v in grid)
    ((label, box, content),) = blocks_in(read(f"<doctag><text>{locations}x</text></doctag>", size=size))
    assert (label, content) == ("text", "x")
    assert all(abs(found - v) <= 1 + size[i % 2] / 500 for i, (found, v) in enumerate(zip(box, true, strict=True)))


@pytest.mark.parametrize("kind", SIZES)
@both
def test_a_mark_comes_back_at_its_own_pixels(recipe, kind):
    the_mark_comes_back(recipe.RECIPE["name"], marked(kind))


@pytest.mark.parametrize(
    "text, flags, markdown, blocks",
    [
        ("", [], "", None),
        ("<doctag></doctag>", [], "", []),
        ("There is no text.", ["unparsed"], "There is no text.", None),
        ("<doctag>bare words", ["unparsed"], "bare words", None),
        (
            "<doctag><text><loc_1><loc_2><loc_30><loc_40>cut off he</te",
            ["repaired"],
            "cut off he",
            [("text", [2, 6, 60, 120], "cut off he")],
        ),
        (
            "<doctag><text><loc_1><loc_2><loc_30><loc_40>a<text><loc_1><loc_52><loc_30><loc_60>b</text></doctag>",
            ["repaired"],
            "a\n\nb",
            [("text", [2, 6, 60, 120], "a"), ("text", [2, 156, 60, 180], "b")],
        ),
        (
            "<doctag><otsl><loc_1><loc_2><loc_30><loc_40><fcel>a<fcel>b<nl><fcel>c<fc",
            ["repaired"],
            "| a   | b   |\n|-----|-----|\n| c   |     |",
            [("table", [2, 6, 60, 120], "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td></td></tr></table>")],
        ),
        (
            "<doctag><text><loc_9><loc_9><loc_9><loc_9>no area</text></doctag>",
            [],
            "no area",
            [("text", None, "no area")],
        ),
        (
            "<doctag><text><loc_400><loc_2><loc_900><loc_40>over the edge</text></doctag>",
            [],
            "over the edge",
            [("text", [800, 6, 1000, 120], "over the edge")],
        ),
    ],
)
def test_broken_answers(text, flags, markdown, blocks):
    parsed = read(text)
    assert (parsed.flags, parsed.markdown) == (flags, markdown)
    assert (parsed.blocks and blocks_in(parsed)) == blocks or (parsed.blocks, blocks) == (None, None)


@pytest.mark.parametrize("length", range(100, len(PAGE), 60))
def test_cut_anywhere(length):
    """Every word that was written before the cut is in the Markdown or in the blocks."""
    parsed = read(PAGE[:length])
    assert "unparsed" not in parsed.flags
    said = parsed.markdown + " ".join(content for _, _, content in blocks_in(parsed))
    words = re.sub(r"<[^<>]*>|<[^<>]*$", " ", PAGE[:length].replace("<i>", "")).split()
    assert [word for word in words[:-1] if word.strip("<&*,;") not in said.replace("&amp;", "&")] == []


@pytest.mark.parametrize(
    "task, text, markdown",
    [
        (
            "table",
            "<otsl><loc_1><loc_2><loc_3><loc_4><ched>a<fcel>b<nl></otsl><|end_of_text|>",
            "<table><tr><th>a</th><td>b</td></tr></table>",
        ),
        ("chart", "<chart><bar_chart><fcel>a<fcel>1<nl></chart>", "<table><tr><td>a</td><td>1</td></tr></table>"),
        ("formula", "<doctag><formula>a^2 < b</formula></doctag>", "a^2 < b"),
        ("code", "<code><_Python_>if a<b: print()</code>", "if a<b: print()"),
        ("table", "", ""),
    ],
)
def test_single_elements(task, text, markdown):
    parsed = read(text, words=("--task", task))
    assert (parsed.markdown, parsed.blocks) == (markdown, None)


pieces = st.sampled_from(
    [*re.findall(r"</?\w+>", PAGE), "<loc_9>", "<loc_99999>", "<|x|>", "<", "</", "&", "text", "\n", "<b>", "\ue000"]
)


@pytest.mark.filterwarnings("ignore:Provenance bbox")
@settings(max_examples=60)
@given(st.lists(pieces, max_size=25).map("".join))
def test_hostile_tags(text):
    parsed = read(text)
    assert isinstance(parsed.markdown, str) and set(parsed.flags) <= {"unparsed", "repaired"}
    json.dumps(parsed.blocks, ensure_ascii=False).encode()


# ---- kit/otsl.py against docling-core's reader of the same language


@st.composite
def drawn_tables(draw):
    """OTSL of a random table, and its cells as {(row, column): (row span, column span, text)}."""
    height, width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    grid, cells = {}, {}
    for row in range(height):
        for column in range(width):
            if (row, column) in grid:
                continue
            right = draw(st.integers(1, width - column))
            while any((row, place) in grid for place in range(column, column + right)):
                right -= 1
            below = draw(st.integers(1, height - row))
            # No "<" among them: docling-core takes what follows for a tag.
            text = draw(st.sampled_from(["1871", "a b", "x & y", "é", "0"]))
            # The box of an empty cell cannot be merged in this language: nothing would tell it from its neighbours.
            for r in range(row, row + below):
                for c in range(column, column + right):
                    grid[r, c] = {(True, False): "lcel", (False, True): "ucel"}.get((r == row, c == column), "xcel")
            grid[row, column] = draw(st.sampled_from(["fcel", "fcel", "ched", "rhed"]))
            if (right, below) == (1, 1) and draw(st.booleans()):
                grid[row, column], text = "ecel", ""
            cells[row, column] = (below, right, text)
    filled = {place: cells[place][2] if place in cells else "" for place in grid}
    rows = ("".join(f"<{grid[r, c]}>{filled[r, c]}" for c in range(width)) + "<nl>" for r in range(height))
    return "".join(rows), cells


@settings(max_examples=80)
@given(drawn_tables())
def test_otsl_is_read_as_docling_reads_it(drawn):
    from docling_core.types.doc.utils import parse_otsl_table_content

    otsl, cells = drawn
    theirs = {
        (cell.start_row_offset_idx, cell.start_col_offset_idx): (cell.row_span, cell.col_span, cell.text.strip())
        for cell in parse_otsl_table_content(f"<otsl>{otsl}</otsl>").table_cells
    }
    ours, taken = {}, set()
    for row, line in enumerate(etree.fromstring(granite.otsl_to_html(otsl))):
        column = 0
        for cell in line:
            while (row, column) in taken:
                column += 1
            spans = int(cell.get("rowspan", 1)), int(cell.get("colspan", 1))
            ours[row, column] = (*spans, cell.text or "")
            taken |= {(row + r, column + c) for r in range(spans[0]) for c in range(spans[1])}
    assert ours == cells == theirs
