"""TeleOCR: both steps, boxes and outlines, broken layouts, the plugin's command, and a whole run."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.recipe_file import load_recipe, options_of
from tests.unit.whole_run import whole_run

tele = load_recipe("teleocr")
OPTIONS = options_of(tele)
LAYOUT = "\n".join(
    [
        "<box:62 41 938 79><label:title><up>",
        "<box:62 100 490 320><label:text><up>",
        "<box:510 100 938 400><label:table><up>",
        "<box:62 340 490 420><label:equation><up>",
        "<box:62 440 490 500><label:image><up>",
        "<box:62 520 490 900><label:char><up>",
        "<box:510 420 600 900><label:seal><right>",
        "<box:510 420 600 900><label:code><up>",
        "<box:450 950 550 990><label:page_number><up>",
    ]
)
TEXT = "\nPlease output the text content from the image."
SAID = {
    TEXT: ["Rolls of\nthe mill", "In the year 1871", "\\[ E = mc^2 \\]", "7"],
    "\nThis is the image of a table. Please output the table in OTSL format.": ["<fcel>Year<fcel>1871<nl>"],
    "\nThis is a scientific figure. Please extract the table implied by this figure.": ["<fcel>a<nl><fcel>b<nl>"],
    "\nSeal Recognition:": ["PAID"],
    "\nThe image contains a code snippet, please output the parsing result.": ["print(1)"],
}
MARKDOWN = "\n\n".join(
    [
        "# Rolls of the mill", "In the year 1871", "<table><tr><td>Year</td><td>1871</td></tr></table>",
        "$$\nE = mc^2\n$$", "<table><tr><td>a</td></tr><tr><td>b</td></tr></table>", "PAID", "```\nprint(1)\n```",
    ]
)  # fmt: skip


def page(width=1000, height=1400, seen=None):
    return tele.Page(Image.new("RGB", seen or (width, height), "white"), width, height)


def parts(body):
    image, text = body["messages"][1]["content"]
    return image["image"], text["text"]


def talk(layout, texts=None, options=OPTIONS, sheet=None):
    """(bodies of each round, Parsed)."""
    reading = tele.steps(tele.Unit("1", [sheet or page()]), options)
    rounds, answers = [next(reading)], [tele.Answer(layout)]
    left = {prompt: list(answers) for prompt, answers in (texts or {}).items()}
    try:
        while True:
            rounds.append(reading.send(answers))
            answers = [tele.Answer(left[parts(b)[1]].pop(0) if left else "x") for b in rounds[-1]]
    except StopIteration as end:
        return rounds, end.value


@pytest.mark.parametrize(
    "words, prompt",
    [
        ((), "\nAnalyze the image layout."),
        (("--layout-mode", "segmentation"), "\nMulti-point Layout Segmentation Analysis."),
    ],
)
def test_the_layout_request(words, prompt):
    options, unit = options_of(tele, *words), tele.Unit("1", [page(500, 2000)])
    (body,) = next(tele.steps(unit, options))
    body = tele.complete(body, options, tele.RECIPE, unit)
    image, text = parts(body)
    assert body.pop("messages")[0] == {"role": "system", "content": "You are a helpful assistant."}
    assert (image.size, text) == ((1036, 1036), prompt)
    assert body == {
        "max_tokens": 8192, "temperature": 0.0, "top_p": 0.01, "top_k": 1, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "skip_special_tokens": False,
        "vllm_xargs": {"no_repeat_ngram_size": 100},
    }  # fmt: skip


def test_a_page():
    rounds, result = talk(LAYOUT, SAID)
    asked = [(body["presence_penalty"], body["frequency_penalty"]) for body in rounds[1]]
    assert asked == [(1.0, f) for f in (0.05, 0.05, 0.005, 0.05, 0.005, 0.005, 0.05, 0.05)]
    sizes = [parts(body)[0].size for body in rounds[1]]
    assert sizes[:2] == [(876, 53), (428, 308)] and sizes[5] == (672, 90), "turned upright"
    assert (result.markdown, result.flags) == (MARKDOWN, [])
    blocks = result.blocks["blocks"]
    assert [b["label"] for b in blocks] == [
        "title", "text", "table", "formula", "picture", "picture", "seal", "code", "page_number",
    ]  # fmt: skip
    assert blocks[0]["bbox"] == [62, 57, 938, 111] and blocks[8]["content"] == "7"
    assert talk(LAYOUT, SAID, options_of(tele, "--keep-paratext"))[1].markdown == MARKDOWN + "\n\n7"


def test_formulas_are_asked_for_as_text_unless_told_otherwise():
    equation = "<box:1 1 500 500><label:equation><up>"
    assert parts(talk(equation)[0][1][0])[1] == TEXT
    (body,) = talk(equation, options=options_of(tele, "--formula-prompt"))[0][1]
    assert parts(body)[1] == ("\nPlease write out the expression of the formula in the image using LaTeX format.")


def test_outlines():
    sheet = tele.Page(Image.new("RGB", (1000, 1000), "white"), 2000, 3000)
    layout = "<box:100 100 500 100 500 500><label:text><up>"
    rounds, result = talk(layout, options=options_of(tele, "--layout-mode", "segmentation"), sheet=sheet)
    picture = parts(rounds[1][0])[0]
    assert picture.size == (400, 400)
    assert picture.getpixel((390, 10)) == (255, 255, 255) and picture.getpixel((10, 390)) == (0, 0, 0)
    assert result.blocks["blocks"][0]["bbox"] == [200, 300, 1000, 1500]


@pytest.mark.parametrize("size", [(1000, 1400), (1400, 1000)])
def test_boxes_are_pixels_of_the_original(size):
    sheet = page(*size, seen=(size[0] // 3, size[1] // 3))
    (block,) = talk("<box:900 250 100 200><label:text><up>", sheet=sheet)[1].blocks["blocks"]
    assert block["bbox"] == [size[0] // 10, size[1] // 5, size[0] * 9 // 10, size[1] // 4]


@pytest.mark.parametrize(
    "layout, kinds, asked, flags",
    [
        ("", [], 0, []),
        ("no layout", [], 0, ["unparsed"]),
        ("<box:1 2 3><label:text><up>", [], 0, ["unparsed"]),
        ("<box:1 2 3 4 5><label:text><up>", [], 0, ["unparsed"]),
        ("<box:1 2 3 1004><label:text><up>", [], 0, ["unparsed"]),
        ("<box:1 2 30 40><label:novel><up>", [], 0, ["unparsed"]),
        ("<box:1 2 30 40><label:TEXT><up><box:5 5", ["text"], 1, []),
        ("<box:1 2 30 40><label:text>", ["text"], 1, []),
        ("<box:5 5 5 9><label:text><up>", ["text"], 0, []),
    ],
)
def test_broken_layouts(layout, kinds, asked, flags):
    rounds, result = talk(layout)
    assert [b["raw_label"] for b in result.blocks["blocks"]] == kinds and result.flags == flags
    assert sum(map(len, rounds[1:])) == asked


def test_pictures_are_of_a_size_that_the_model_can_read():
    for corners, seen in [
        ("0 0 1000 10", (1000, 1000)),
        ("0 0 10 1000", (1000, 1000)),
        ("0 0 1000 1000", (2600, 2600)),
    ]:
        (body,) = talk(f"<box:{corners}><label:text><up>", sheet=page(seen=seen))[0][1]
        width, height = parts(body)[0].size
        assert min(width, height) >= 28 and max(width, height) <= 50 * min(width, height)
        assert width * height <= 6_010_000


@settings(max_examples=40)
@given(st.text(max_size=80) | st.lists(st.sampled_from(LAYOUT.split("<"))).map("<".join), st.text(max_size=30))
def test_hostile_text(layout, text):
    for block in tele.layout_blocks(layout):
        tele.cut_out(Image.new("RGB", (90, 70)), block)
        for kind in ("table", "equation", "title", "code"):
            assert isinstance(tele.markdown_of(kind, tele.content_of(kind, text)), str)
    json.dumps(tele.document_of(page(), tele.layout_blocks(layout)))


def test_the_plugins_server(monkeypatch):
    started = []
    monkeypatch.setattr(tele, "serve", lambda units, talk, options, recipe, stop: started.append(recipe) or iter(()))
    list(tele.serve_plugin(None, None, OPTIONS, tele.RECIPE, None))
    words = started[0]["server_command"]
    assert words[:10] == [
        "uv", "run", "--isolated", "--no-project", "--python", "3.12", "--with", tele.PLUGIN, "vllm", "serve",
    ]  # fmt: skip
    assert words[words.index("--logits-processors") + 1] == "TeleOCR.vlm_utils:TeleOCRLogitsProcessor"
    assert words[words.index("--port") + 1] == "{port}" and words[words.index("--max-model-len") + 1] == "16384"
    list(tele.serve_plugin(None, None, options_of(tele, "--endpoint", "http://h/v1"), tele.RECIPE, None))
    assert "server_command" not in started[1]


def test_a_whole_run(tmp_path):
    def behave(prompt, size):
        return LAYOUT if prompt == "\nAnalyze the image layout." else f"{size}"

    pages = {"page": Image.new("RGB", (1000, 1400), "grey")}
    summary, texts, blocks, seen = whole_run("teleocr", tmp_path, pages, behave, model=tele.RECIPE["model"])
    assert (summary["pages"], summary["errors"], summary["flags"]) == (1, 0, {}) and len(seen) == 9
    assert texts["page"].startswith("# (876, 53)\n\n(428, 308)\n\n(428, 420)\n\n$$\n(428, 112)\n$$")
    assert blocks["page"]["blocks"][2]["bbox"] == [510, 140, 938, 560]
