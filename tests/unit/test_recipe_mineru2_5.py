"""MinerU2.5: both steps through the authors' package, as bodies, as blocks, beside their client, and as a whole run."""

import base64
import io
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.recipe_file import load_recipe, options_of
from tests.unit.test_serve import completion, standing_in
from tests.unit.whole_run import whole_run

mineru = load_recipe("mineru2.5")
OPTIONS = options_of(mineru)


def box(corners, kind, rotate="up", tail=""):
    return f"<|box_start|>{corners}<|box_end|><|ref_start|>{kind}<|ref_end|><|rotate_{rotate}|>{tail}"


LAYOUT = "\n".join(
    [
        box("062 041 938 079", "doc_title"),
        box("062 100 490 320", "text"),
        box("510 100 938 400", "table"),
        box("062 340 490 420", "text", tail="txt_contd_tgt"),
        box("062 440 490 500", "equation"),
        box("062 520 490 900", "image"),
        box("100 925 400 940", "image_caption"),
        box("510 420 600 900", "text", "right"),
        box("450 950 550 990", "page_number"),
    ]
)
SAID = {
    "\nText Recognition:": ["Rolls of\nthe mill", "In the year 1871 \\(n\\) were", "born.", "Fig. 1", "sideways", "7"],
    "\nTable Recognition:": ["<fcel>Year<fcel>Births<lcel><nl><ucel><fcel>boys<fcel>girls<nl><fcel>1871<fcel>1<ecel>"],
    "\nFormula Recognition:": ["E = mc^{2}"],
}
TABLE = (
    '<table><tr><td rowspan="2">Year</td><td colspan="2">Births</td></tr><tr><td>boys</td><td>girls</td></tr>'
    "<tr><td>1871</td><td>1</td><td></td></tr></table>"
)
MARKDOWN = (
    f"# Rolls of the mill\n\nIn the year 1871 $n$ were born.\n\n{TABLE}\n\n$$\nE = mc^{{2}}\n$$\n\nFig. 1\n\nsideways"
)


def page(width=1000, height=1400):
    image = Image.new("RGB", (width, height), "white")
    return mineru.Page(image, width, height)


def said(text, *flags):
    return mineru.Answer(text, flags=flags)


def prompt_of(body):
    return body["messages"][1]["content"][1]["text"]


def talk(layout, texts=None, options=OPTIONS, sheet=None):
    """(bodies of each round, Parsed); `texts` gives the answers to each prompt in their order, else the prompt."""
    reading = mineru.steps(mineru.Unit("1", [sheet or page()]), options)
    rounds, answers = [next(reading)], [said(layout)]
    left = {prompt: list(answers) for prompt, answers in (texts or {}).items()}
    try:
        while True:
            rounds.append(reading.send(answers))
            answers = [said(left[prompt_of(b)].pop(0) if left else prompt_of(b)) for b in rounds[-1]]
    except StopIteration as end:
        return rounds, end.value


def test_the_layout_request():
    sheet = page(700, 2000)
    (body,) = next(mineru.steps(mineru.Unit("1", [sheet]), OPTIONS))
    body = mineru.complete(body, OPTIONS, mineru.RECIPE, mineru.Unit("1", [sheet]))
    system, user = body.pop("messages")
    assert system == {"role": "system", "content": "You are a helpful assistant."}
    image, text = user["content"]
    assert image["image"].size == (1036, 1036) and text == {"type": "text", "text": "\nLayout Detection:"}
    assert body == {
        "max_tokens": 6000, "temperature": 0.0, "top_p": 0.01, "top_k": 1, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "skip_special_tokens": False,
        "vllm_xargs": {"no_repeat_ngram_size": 100, "debug": False},
    }  # fmt: skip


def test_the_blocks_requests():
    rounds, _ = talk(LAYOUT, SAID)
    asked = [(prompt_of(b).strip(), b["presence_penalty"], b["frequency_penalty"]) for b in rounds[1]]
    text, table = ("Text Recognition:", 1.0, 0.05), ("Table Recognition:", 1.0, 0.005)
    assert asked == [text, text, table, text, ("Formula Recognition:", 1.0, 0.05), text, text, text]
    sizes = [body["messages"][1]["content"][0]["image"].size for body in rounds[1]]
    assert sizes[0] == (876, 54) and sizes[2] == (428, 420)
    assert sizes[6] == (672, 90), "turned upright"
    assert sizes[7] == (100, 56)


def test_small_and_long_blocks_are_made_readable():
    layout = box("0 0 1000 10", "text") + box("100 100 110 900", "text")
    sizes = [b["messages"][1]["content"][0]["image"].size for b in talk(layout)[0][1]]
    assert all(min(size) >= 28 and max(size) <= 50 * min(size) for size in sizes)


def test_a_page():
    _, result = talk(LAYOUT, SAID)
    assert result.markdown == MARKDOWN and result.flags == []
    blocks = result.blocks["blocks"]
    assert [b["label"] for b in blocks] == [
        "title", "text", "table", "text", "formula", "picture", "caption", "text", "page_number",
    ]  # fmt: skip
    assert blocks[0]["bbox"] == [62, 57, 938, 111] and blocks[2]["bbox"] == [510, 140, 938, 560]
    assert (blocks[2]["format"], blocks[4]["format"], blocks[5]["content"]) == ("html", "latex", "")
    assert blocks[4]["content"] == "\\[\nE = mc^{2}\n\\]" and blocks[8]["raw_label"] == "page_number"


@pytest.mark.parametrize("size", [(1000, 1400), (1400, 1000), (333, 777)])
def test_boxes_are_pixels_of_the_original(size):
    sheet = mineru.Page(Image.new("RGB", (100, 100)), *size)  # reduced before it was read
    (block,) = talk(box("100 200 900 250", "text"), sheet=sheet)[1].blocks["blocks"]
    width, height = size
    assert block["bbox"] == [round(width * 0.1), round(height * 0.2), round(width * 0.9), round(height * 0.25)]


def test_paratext_and_pictures_on_request():
    _, result = talk(LAYOUT, SAID, options_of(mineru, "--keep-paratext"))
    assert result.markdown == MARKDOWN + "\n\n7"
    chart = "<|class_start|>natural_image<|class_end|><|caption_start|>A mill<|caption_end|>"
    rounds, result = talk(
        box("062 520 490 900", "image"), {"\nImage Analysis:": [chart]}, options_of(mineru, "--image-analysis")
    )
    assert len(rounds[1]) == 1 and result.blocks["blocks"][0]["label"] == "picture"


def test_no_base64_in_the_table():
    layout = box("100 100 900 900", "table") + box("200 200 400 400", "image")
    reading = mineru.steps(mineru.Unit("1", [page()]), OPTIONS)
    next(reading)
    (body,) = reading.send([said(layout)])
    picture = body["messages"][1]["content"][0]["image"]
    assert picture.size == (800, 1120) and picture.getcolors(1) is None, "a code stands in the picture's place"
    with pytest.raises(StopIteration) as end:
        reading.send([said("<fcel>A<fcel>B<nl>")])
    assert end.value.value.markdown == "<table><tr><td>A</td><td>B</td></tr></table>"
    assert "base64" not in str(end.value.value)


@pytest.mark.parametrize(
    "layout, markdown, flags",
    [
        ("", "", []),
        ("A page of words.", "", ["unparsed"]),
        ("<|box_start|>1 2 3", "", ["unparsed"]),
        (box("100 100 100 400", "text"), "", ["unparsed"]),
        (box("100 100 1200 400", "text"), "", ["unparsed"]),
        (box("900 400 100 100", "nonsense"), "", ["unparsed"]),
        ("<fcel>1871<fcel>204<nl>", "<table><tr><td>1871</td><td>204</td></tr></table>", ["repaired"]),
        (box("900 400 100 100", "text") + "\n<|box_start|>062 04", "\nText Recognition:".strip(), []),
        (box("0 0 999 999", "text") * 2, "\nText Recognition:".strip(), []),
    ],
)
def test_broken_layouts(layout, markdown, flags):
    result = talk(layout)[1]
    assert (result.markdown, result.flags) == (markdown, flags)


def test_nothing_to_read_in_a_block():
    for answer in ("[Non-Text]", "", "  "):
        assert talk(box("100 100 900 900", "text"), {"\nText Recognition:": [answer]})[1].markdown == ""


@settings(max_examples=30)
@given(st.text(max_size=80) | st.lists(st.sampled_from(LAYOUT.split("|"))).map("|".join), st.text(max_size=40))
def test_hostile_text(layout, text):
    reading, answers = mineru.steps(mineru.Unit("1", [page(80, 100)]), OPTIONS), [said(layout)]
    next(reading)
    try:
        while True:
            answers = [said(text) for _ in reading.send(answers)]
    except StopIteration as end:
        assert isinstance(end.value.markdown, str)


def test_the_guard_is_found_beside_the_script(tmp_path):
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (models / "registry.py").write_text("")
    args = {"model": "m", **mineru.RECIPE["engine_args"]}
    mineru.check_code(args, {}, tmp_path / "vllm")
    for missing in ("mineru_vl_utils:Missing", "no_such_package:Guard", "vllm.missing:Guard"):
        with pytest.raises(mineru.Stop, match=f"logits processor {missing} is not installed"):
            mineru.check_code({**args, "logits_processors": [missing]}, {}, tmp_path / "vllm")


def asked(body):
    """What a body asks: the model's words, the picture's pixels and the sampling; not how they are packed."""
    system, user = body["messages"]
    picture, text = user["content"]
    if picture["type"] == "image_url":
        picture = Image.open(io.BytesIO(base64.b64decode(picture["image_url"]["url"].partition(",")[2])))
    else:
        picture = picture["image"]
    rest = {key: value for key, value in body.items() if key not in ("model", "messages", "max_tokens")}
    return repr((system["content"], text["text"], picture.size, zlib.crc32(picture.tobytes()), sorted(rest.items())))


@pytest.mark.parametrize(
    "words, extra",
    [
        ([], box("520 120 700 300", "image")),
        (["--image-analysis"], box("520 120 700 300", "image")),
        ([], box("510 100 938 400", "equation_block")),
    ],
    ids=["a picture in the table", "image analysis", "a block of equations"],
)
def test_it_asks_and_reads_as_the_authors_client_does(words, extra, monkeypatch):
    """Their client over HTTP, its repairs and all, against the recipe's own steps: the same page, model and answers."""
    from mineru_vl_utils import MinerUClient
    from mineru_vl_utils.post_process import table_image_processor

    monkeypatch.setattr(table_image_processor, "_generate_uid", lambda: "ACDG")  # drawn by lot, over a table's picture
    layout = LAYOUT + extra
    said = {
        "\nLayout Detection:": layout,
        "\nText Recognition:": "under_scores and \\[a^{2}\\] in  a line",
        "\nTable Recognition:": SAID["\nTable Recognition:"][0] + "<fcel>[ACDG]<nl>",
        "\nFormula Recognition:": "\\[ \\left( x_{1}_{2} \\right \\]",
        "\nImage Analysis:": "<|class_start|>chart<|class_end|><|sub_class_start|>bar<|sub_class_end|>"
        "<|caption_start|>A mill<|caption_end|><|content_start|>| a | b |\n|---|---|\n| 1 | 2 |<|content_end|>",
    }
    sheet, bodies = page(), []
    for place in range(0, 1400, 7):
        sheet.image.paste((place % 255, 90, 30), (place % 900, place, place % 900 + 90, place + 5))

    def behave(body):
        bodies.append(body)
        return 200, completion(said[prompt_of(body)])

    with standing_in(behave, [mineru.RECIPE["model"]]) as server:
        client = MinerUClient(
            "http-client", server_url=f"http://127.0.0.1:{server.server_address[1]}", use_tqdm=False,
            image_analysis=bool(words), max_retries=0,
        )  # fmt: skip
        theirs = client.two_step_extract(sheet.image)
    options = options_of(mineru, *words)
    rounds, result = talk(layout, {prompt: [answer] * 20 for prompt, answer in said.items()}, options, sheet)
    unit = mineru.Unit("1", [sheet])
    ours = [mineru.complete(body, options, mineru.RECIPE, unit) for body in sum(rounds, [])]
    assert sorted(map(asked, ours)) == sorted(map(asked, bodies)) and len(ours) >= 9
    contents = [re.sub(r'<img src="data:[^"]*"/>', "<img/>", block.content or "").strip() for block in theirs]
    found = result.blocks["blocks"]
    assert [(b["raw_label"], b["content"]) for b in found] == [
        (b.type, c) for b, c in zip(theirs, contents, strict=True)
    ]
    pixels = [[round(v * (1000, 1400)[n % 2]) for n, v in enumerate(b.bbox)] for b in theirs]
    assert [b["bbox"] for b in found] == pixels


def test_a_whole_run(tmp_path):
    def behave(prompt, size):
        said = {"\nLayout Detection:": LAYOUT, "\nText Recognition:": f"{size}", "\nFormula Recognition:": "x"}
        return said.get(prompt, "<fcel>1<nl>")

    pages = {"page": Image.new("RGB", (1000, 1400), "grey")}
    summary, texts, blocks, seen = whole_run("mineru2.5", tmp_path, pages, behave, model=mineru.RECIPE["model"])
    assert (summary["pages"], summary["errors"], summary["flags"]) == (1, 0, {})
    assert texts["page"].startswith("# (876, 54)\n\n(428, 308) (428, 112)\n\n<table><tr><td>1</td></tr></table>")
    assert blocks["page"]["blocks"][2]["bbox"] == [510, 140, 938, 560]
    assert len(seen) == 9 and all(body["skip_special_tokens"] is False for body in seen)
