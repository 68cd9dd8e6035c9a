"""One mark on a page, through every recipe with boxes: it comes back at its own pixels, however the page lay.

The stand-in for a model looks for the mark in the picture that it is sent, and answers in the model's own words and
numbers. So what is tested is the whole way: turned upright, reduced, resized or squared for the model, and back.
"""

import functools
import io
import json
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from tests.unit.recipe_file import load_recipe, options_of

# The space of each model's numbers, and how it writes one box. `{}` are its four numbers.
ANSWERS = {
    "lighton-ocr3": (1000, "![table]({},{},{},{}) x"),
    "dots-ocr": ("pixels", '[{{"bbox": [{}, {}, {}, {}], "category": "Table", "text": "x"}}]'),
    "dots-mocr": ("pixels", '[{{"bbox": [{}, {}, {}, {}], "category": "Table", "text": "x"}}]'),
    "unlimited-ocr-vllm": (999, "<|det|>table [{}, {}, {}, {}]<|/det|>x"),
    "unlimited-ocr2": (999, "<PAGE><|det|>table [{}, {}, {}, {}]<|/det|>x"),
    "surya-ocr": (1000, '<div data-label="Table" data-bbox="{} {} {} {}"><table></table></div>'),
    "qwen3-vl-ocr": (1000, '<table data-bbox="{} {} {} {}"><tr><td>x</td></tr></table>'),
    "hpd-parsing-saturate": (1000, "<BLOCK>table [{}, {}, {}, {}]<CHILD>x"),
    "mineru2.5": (1000, "<|box_start|>{:03} {:03} {:03} {:03}<|box_end|><|ref_start|>table<|ref_end|><|rotate_up|>"),
    "teleocr": (1000, "<box:{} {} {} {}><label:table><up>"),
    "monkeyocrv2": (1000, "[{{'bbox': [{}, {}, {}, {}], 'label': 'Table'}}]"),
    "smoldocling-ocr": (500, "<doctag><otsl><loc_{}><loc_{}><loc_{}><loc_{}><fcel>x<nl></otsl></doctag>"),
    "granite-docling-ocr": (500, "<doctag><otsl><loc_{}><loc_{}><loc_{}><loc_{}><fcel>x<nl></otsl></doctag>"),
}
READ_HERE = [name for name in ANSWERS if "docling" not in name]  # those are read in test_recipe_docling.py
WORDS = {
    "lighton-ocr3": ["--task", "grounding"],
    "dots-ocr": ["--task", "layout-all"],
    "dots-mocr": ["--task", "layout-all"],
    "qwen3-vl-ocr": ["--task", "html"],
}
SIZES = {"portrait": (1230, 1710), "landscape": (1710, 1230), "turned by EXIF": (1230, 1710), "small": (480, 390)}


def marked(kind):
    """(JPEG of a page with one black mark, the mark's true box in the upright page, the page's size)."""
    width, height = SIZES[kind]
    box = [width * 3 // 10, height * 6 // 10, width * 8 // 10, height * 7 // 10]
    image, exif, file = Image.new("RGB", (width, height), "white"), Image.Exif(), io.BytesIO()
    ImageDraw.Draw(image).rectangle([box[0], box[1], box[2] - 1, box[3] - 1], "black")
    if kind == "turned by EXIF":
        image, exif[274] = image.transpose(Image.Transpose.ROTATE_90), 6  # 6: to be turned clockwise
    image.save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue(), box, (width, height)


@pytest.fixture(scope="module", params=SIZES)
def sheet(request):
    return marked(request.param)


def opened(recipe, data, options):
    return recipe.open_page(data, bounds=recipe.image_bounds(options, recipe.RECIPE))


def mark_in(image, space):
    """The mark's box in a picture, in the space of a model's numbers, or in pixels."""
    box = image.convert("L").point(lambda value: 255 * (value < 128)).getbbox()
    assert box, "no mark in the picture that was sent"
    if space == "pixels":
        return box
    return [round(value * space / image.size[place % 2]) for place, value in enumerate(box)]


def near(found, true, size, grid):
    """Within a pixel, and what the model's numbers cannot tell apart."""
    assert found is not None
    for place, (one, other) in enumerate(zip(found, true, strict=True)):
        assert abs(one - other) <= 2 + size[place % 2] / grid, (found, true)


@pytest.mark.parametrize("name", READ_HERE)
def test_boxes_of_answers(name, sheet):
    the_mark_comes_back(name, sheet)


def the_mark_comes_back(name, sheet):
    data, true, size = sheet
    recipe, (space, form) = load_recipe(name), ANSWERS[name]
    options = options_of(recipe, *WORDS.get(name, []))
    page = opened(recipe, data, options)
    assert (page.width, page.height) == size
    steps = getattr(recipe, "steps", None) or recipe.one_step(recipe.request, recipe.parse)
    unit = recipe.Unit("pages_0001-0001", [page])
    reading = steps(unit, options)
    (body,) = [recipe.complete(body, options, recipe.RECIPE, unit) for body in next(reading)]
    (picture,) = [part["image"] for part in body["messages"][-1]["content"] if part["type"] == "image"]
    if space == "pixels":  # as the model's own processor resizes it
        picture = picture.resize(recipe.seen_size(page))
    answers = [recipe.Answer(form.format(*mark_in(picture, space)))]
    try:
        while True:
            asked = reading.send(answers)
            for body in asked:  # the blocks that are cut out hold the mark and next to nothing else
                (crop,) = [part["image"] for part in body["messages"][-1]["content"] if part["type"] == "image"]
                black = crop.convert("L").point(lambda value: 255 * (value < 128)).histogram()[255]
                assert black > 0.93 * crop.width * crop.height
            answers = [recipe.Answer("<fcel>x<nl>")] * len(asked)
    except StopIteration as end:
        document = end.value.blocks
    if "pages" in document:
        (document,) = document["pages"]
    (block,) = document["blocks"]
    assert (document["width"], document["height"]) == size and block["label"] == "table"
    near(block["bbox"], true, size, min(page.image.size) if space == "pixels" else space)


def test_spotted_lines(sheet):
    """PaddleOCR-VL doubles small pages before it looks; its numbers are 1000ths of either."""
    data, true, size = sheet
    recipe = load_recipe("paddleocr-vl-1.5")
    options = recipe.option_parser(recipe.RECIPE, recipe.add_options).parse_args(["in", "out", "--task", "spotting"])
    page = opened(recipe, data, options)
    x0, y0, x1, y1 = mark_in(recipe.prepared(page, options)[0], 1000)
    corners = "".join(f"<|LOC_{value}|>" for value in (x0, y0, x1, y0, x1, y1, x0, y1))
    (block,) = recipe.parse(recipe.Answer("x" + corners), page, options).blocks["blocks"]
    near(block["bbox"], true, size, 1000)


def test_regions_of_engines_and_sdks(sheet):
    """Boxes in pixels of the picture that an engine was given (Falcon-OCR, MiniCPM-OCR), or of the page itself."""
    data, true, size = sheet
    falcon, mini, layout = (load_recipe(name) for name in ("falcon-ocr", "minicpm-ocr", "pp-doclayout"))
    page = opened(falcon, data, None)
    region = {"category": "table", "bbox": mark_in(page.image, "pixels"), "score": 1, "text": falcon.FalconText("x")}
    (block,) = falcon.region_page(page, [region]).blocks["blocks"]
    near(block["bbox"], true, size, max(page.image.size))

    page = opened(mini, data, None)
    rows = [{"bbox": mark_in(page.image, "pixels"), "label": "table", "text": "x"}]
    (block,) = mini.blocks_document(page, mini.regions(rows))["blocks"]
    near(block["bbox"], true, size, max(page.image.size))

    class Numbers(list):
        def tolist(self):
            return list(self)

    page = opened(layout, data, None)
    found = {"boxes": Numbers([list(map(float, true))]), "scores": Numbers([0.9]), "labels": [0]}
    options = types.SimpleNamespace(layout_nms=True)
    (block,) = layout.layout_of(page, found, {0: "table"}, options).blocks["blocks"]
    assert page.image.size == size and block["bbox"] == true


# ---- Damaged answers


@functools.cache
def small(name):
    """(recipe, options, a small page without much on it) for answers by the hundred."""
    recipe = load_recipe(name)
    options = options_of(recipe, *WORDS.get(name, []))
    image = Image.new("RGB", (120, 160), "white")
    image.paste("black", (10, 10, 60, 90))
    return recipe, options, recipe.Page(image, 240, 310)


numbers = st.integers(-50, 2000) | st.sampled_from([0, 1, 499, 500, 501, 999, 1000, 10**30])
boxes = st.tuples(numbers, numbers, numbers, numbers)


@pytest.mark.parametrize("name", READ_HERE)
@settings(max_examples=12)
@given(st.lists(boxes, max_size=3), st.integers(0, 300), st.text(max_size=6))
def test_a_damaged_answer_keeps_what_is_on_the_page(name, drawn, cut, noise):
    """Boxes outside, turned round and without area; an answer that is cut off, or has noise in the middle."""
    recipe, options, page = small(name)
    whole = "\n".join(ANSWERS[name][1].format(*box) for box in drawn)
    for text in (whole, whole[:cut], whole[:cut] + noise + whole[cut:], whole[cut:]):
        steps = getattr(recipe, "steps", None) or recipe.one_step(recipe.request, recipe.parse)
        reading = steps(recipe.Unit("pages_0001-0001", [page]), options)
        asked, said = next(reading), text
        try:
            while True:
                asked, said = reading.send([recipe.Answer(said)] * len(asked)), noise
        except StopIteration as end:
            parsed = end.value
        parsed.markdown.encode()
        for document in (parsed.blocks or {}).get("pages", [parsed.blocks or {"blocks": []}]):
            json.dumps(document)
            for block in document["blocks"]:
                x0, y0, x1, y1 = block["bbox"] or (0, 0, 1, 1)
                assert 0 <= x0 < x1 <= page.width and 0 <= y0 < y1 <= page.height


json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
rows = st.dictionaries(st.sampled_from(["bbox", "label", "text", "content", "status"]), json_values, max_size=5)


@given(
    st.lists(rows | json_values, max_size=4) | st.dictionaries(st.sampled_from(["blocks", "crop_blocks"]), json_values)
)
def test_what_an_sdk_says_of_a_page_may_be_anything(result):
    mini = load_recipe("minicpm-ocr")
    json.dumps(mini.blocks_document(small("hpd-parsing-saturate")[2], mini.regions(result)))
