"""Qwen3-VL: what is asked, boxes from HTML and from comments in Markdown, broken and hostile answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

qwen = load_recipe("qwen3-vl-ocr")

HTML = """```html
<html><body>
<h2 data-bbox="92 58 540 96"> Minutes of 1894 </h2>
<p data-bbox="90 120 905 230" style="color: #111; margin: 0"> The board met at 5 &lt; 6. </p>
<ol data-bbox="90 240 700 330"><li data-bbox="95 242 690 280"> Approve accounts </li><li>No box</li></ol>
<table data-bbox="90 350 905 520" class="table1"><tr><td>Dues</td><td>12</td></tr></table>
<div class="formula.machine_printed" data-bbox="200 540 800 590"><img data-bbox="200 540 800 590"/>
<div>$$a^2$$</div></div>
<div class="image caption" data-bbox="90 610 480 900"><img data-bbox="92 612 478 860"/><p> Fig. 1 The mill </p></div>
<div class="chart" data-bbox="520 610 905 900"><img data-bbox="520 610 905 900"/>
<table><tr><td>Q1</td></tr></table></div>
<div class="music sheet" format="abc notation" data-bbox="1 2 3 4" data-polygon="1 2">X:1</div>
</body></html>
```"""
MARKDOWN = r"""# Minutes

<!-- Table (90, 350, 905, 520) -->
\begin{tabular}{ll} Dues & 12 \\ \end{tabular}

<!-- Image (92, 612, 478, 860) -->

The end <!-- not a box --> of it."""
SHEET = qwen.Page(None, 2000, 3000)
OPTIONS = {task: options_of(qwen, "--task", task) for task in ("markdown", "html", "text")}


def read(text, task="html", *words):
    options = options_of(qwen, "--task", task, *words) if words else OPTIONS[task]
    return qwen.parse(qwen.Answer(text), SHEET, options)


def blocks_of(result):
    return [(b["label"], b["raw_label"], b["bbox"], b["format"], b["content"]) for b in result.blocks["blocks"]]


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), "qwenvl markdown"),
        (("--task", "html"), "qwenvl html"),
        (("--task", "text"), "Read all the text in the image."),
        (("--prompt", "What is it?"), "What is it?"),
    ],
)
def test_body(words, prompt):
    options, page = options_of(qwen, *words), page_of(qwen, (600, 800))
    assert body_of(qwen, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 16384,
        "temperature": 0.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
    }


def test_bounds():
    options = options_of(qwen, "--max-pixels", 1_000_000)
    width, height = page_of(qwen, (2000, 3000), options).image.size
    assert width * height <= 1_000_000
    args = qwen.engine_args(options, {**qwen.RECIPE, **qwen.check(options)})
    assert args["mm_processor_kwargs"] == {"size": {"shortest_edge": 524288, "longest_edge": 1_000_000}}
    assert qwen.check(options_of(qwen))["engine_args"] == qwen.RECIPE["engine_args"]
    with pytest.raises(qwen.Stop, match="--max-pixels 1000"):
        qwen.check(options_of(qwen, "--max-pixels", 1000))


def test_worst_case_fits():
    recipe = qwen.RECIPE
    assert recipe["image"]["max_pixels"] / 32 / 32 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + 64 < recipe["max_model_len"] <= recipe["context"]


def test_html_gives_boxes():
    result = read(HTML)
    assert blocks_of(result) == [
        ("heading", "h2", [184, 174, 1080, 288], "text", "Minutes of 1894"),
        ("text", "p", [180, 360, 1810, 690], "text", "The board met at 5 < 6."),
        ("list", "li", [190, 726, 1380, 840], "text", "Approve accounts"),
        ("table", "table", [180, 1050, 1810, 1560], "html",
         '<table class="table1"><tr><td>Dues</td><td>12</td></tr></table>'),
        ("formula", "formula", [400, 1620, 1600, 1770], "latex", "$$a^2$$"),
        ("picture", "image caption", [184, 1836, 956, 2580], "text", "Fig. 1 The mill"),
        ("picture", "chart", [1040, 1830, 1810, 2700], "html", "<table><tr><td>Q1</td></tr></table>"),
        ("other", "music sheet", [2, 6, 6, 12], "text", "X:1"),
    ]  # fmt: skip
    assert result.flags == []


def test_html_loses_its_boxes_and_colours_only():
    markdown = read(HTML).markdown
    assert markdown.startswith(
        '<h2> Minutes of 1894 </h2>\n<p style="margin: 0"> The board met at 5 &lt; 6. </p>\n<ol>'
    )
    for part in ("<li>No box</li>", '<div class="formula">', "Fig. 1 The mill", "<td>Q1</td>", "X:1"):
        assert part in markdown
    for part in ("data-", "color", "```", "<body", "<html"):
        assert part not in markdown


@pytest.mark.parametrize(
    "text, markdown",
    [
        ("<p>Only text</p>", "<p>Only text</p>"),
        ("<html><body><h1>A</h1><table><tr><td>b", "<h1>A</h1><table><tr><td>b</td></tr></table>"),
        ("Just a < b and words.", "Just a < b and words."),
    ],
)
def test_html_without_boxes_is_text(text, markdown):
    result = read(text)
    assert (result.markdown, result.blocks["blocks"], result.flags) == (markdown, [], ["no_boxes"])


def test_html_that_is_cut_off_keeps_what_is_there():
    for length in range(20, len(HTML) - 20, 23):
        result = read(HTML[:length])
        assert "`" not in result.markdown and all(b["bbox"] is None or len(b["bbox"]) == 4
                                                  for b in result.blocks["blocks"])  # fmt: skip
    assert blocks_of(read('<p data-bbox="90 120 905">cut</p>')) == [("text", "p", None, "text", "cut")]


@pytest.mark.parametrize("task", ["markdown", "html", "text"])
def test_a_blank_page(task):
    result = read("```html\n```", task)
    assert (result.markdown, result.flags) == ("", [])


def test_markdown_comments_are_boxes():
    result = read(MARKDOWN, "markdown")
    assert blocks_of(result) == [
        ("table", "Table", [180, 1050, 1810, 1560], "latex", r"\begin{tabular}{ll} Dues & 12 \\ \end{tabular}"),
        ("picture", "Image", [184, 1836, 956, 2580], "text", ""),
    ]
    assert result.markdown == (
        "# Minutes\n\n\\begin{tabular}{ll} Dues & 12 \\\\ \\end{tabular}\n\nThe end <!-- not a box --> of it."
    )
    assert read(MARKDOWN, "markdown", "--keep-position-comments").markdown == MARKDOWN


def test_markdown_that_is_cut_off():
    result = read(MARKDOWN[:70], "markdown")
    assert blocks_of(result)[0][4] == MARKDOWN[:70].partition("-->\n")[2]


@pytest.mark.parametrize("task", ["text"])
def test_other_answers_stay(task):
    assert read("```markdown\n# A\n```", task).markdown == "# A"
    assert read("a ```b``` c", task).markdown == "a ```b``` c"


@pytest.mark.parametrize(
    "text",
    ["<div>" * 3000, "<p data-bbox='" * 500, "<!--" * 500, "<" * 999, '<?xml version="1.0" encoding="x"?><p>a</p>'],
)
def test_hostile_html(text):
    assert isinstance(read(text).markdown, str)


tags = st.sampled_from(["<p data-bbox='1 2 30 40'>", "</p>", "<table>", "<td data-bbox='x'>", "<ol>", "<li>",
                        "<!-- ", "<!-- Table (1,2,3,4) -->", " -->", "<img ", "/>", "&#0;", "&amp;",
                        "\\begin{tabular}"])  # fmt: skip


@given(st.lists(tags | st.text(max_size=5), max_size=20))
def test_hostile_text(pieces):
    for task in ("markdown", "html"):
        assert isinstance(read("".join(pieces), task).markdown, str)
