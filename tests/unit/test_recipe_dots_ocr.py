"""dots.ocr and its 1.5 release: what differs from dots.mocr, whose tests hold for the layout that they share."""

import json

import pytest

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

dots, mocr, later = load_recipe("dots-ocr"), load_recipe("dots-mocr"), load_recipe("dots-ocr-1.5")


@pytest.mark.parametrize("task", ["ocr", "layout-all", "layout-only"])
def test_body(task):
    """The prompts are those of dots.mocr; the image's mark, which its chat template places, is not in the text."""
    options, page = options_of(dots, "--task", task), page_of(dots)
    prompt = dots.RECIPE["tasks"][task]
    assert prompt == mocr.RECIPE["tasks"][task]
    assert body_of(dots, page, options) == {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": page.image}, {"type": "text", "text": prompt}]}
        ],
        "max_tokens": 16384,
        "temperature": 0.1,
        "top_p": 1.0,
    }
    assert dots.chat_arguments(dots.RECIPE) == {"chat_template_content_format": "auto"}


def test_the_whole_page_or_a_box_in_the_pixels_that_the_model_sees():
    options = options_of(dots, "--task", "grounding-ocr")
    (message,) = body_of(dots, page_of(dots), options)["messages"]
    assert message["content"][1]["text"] == (
        "Extract text from the given bounding box on the image (format: [x1, y1, x2, y2]).\n"
        "Bounding Box:\n[0, 0, 1232, 1764]"
    )
    options = options_of(dots, "--task", "grounding-ocr", "--bbox", 124, 88, 620, 877)
    (message,) = body_of(dots, page_of(dots), options)["messages"]
    assert message["content"][1]["text"].endswith("[123, 88, 616, 882]")


@pytest.mark.parametrize("size", [(1240, 1754), (1754, 1240), (6000, 8000), (40, 30)])
def test_boxes_come_back_to_the_original(size):
    options = options_of(dots, "--task", "layout-all")
    page = page_of(dots, size, options)
    seen, true = dots.seen_size(page), [size[0] // 4, size[1] // 2, size[0] // 2, size[1] * 3 // 4]
    box = [round(v * seen[i % 2] / size[i % 2]) for i, v in enumerate(true)]
    text = json.dumps([{"bbox": box, "category": "Table", "text": "<table></table>"}])
    parsed = dots.parse(dots.Answer(text), page, options)
    (block,) = parsed.blocks["blocks"]
    assert (block["label"], block["format"], parsed.markdown) == ("table", "html", "<table></table>")
    for axis, (found, wanted) in enumerate(zip(block["bbox"], true, strict=True)):
        assert abs(found - wanted) <= 1 + size[axis % 2] / seen[axis % 2]


@pytest.mark.parametrize(
    "text, flags, markdown",
    [
        ("[]", [], ""),
        ('[{"bbox": [1, 2, 300, 40], "category": "Text", "text": "half a li', ["repaired"], "half a li"),
        ("", ["unparsed"], ""),
        ("There is nothing on this page.", ["unparsed"], "There is nothing on this page."),
        ('[{"bbox": [9, 9, 9, 9], "category": "Text", "text": "no area"}]', [], "no area"),
        ('[{"bbox": [1, 2, 30, 40], "category": "Page-footer", "text": "7"}]', [], ""),
    ],
)
def test_layout_answers(text, flags, markdown):
    parsed = dots.parse(dots.Answer(text), page_of(dots), options_of(dots, "--task", "layout-all"))
    assert (parsed.flags, parsed.markdown) == (flags, markdown)
    assert (parsed.blocks is None) == ("unparsed" in flags)


def test_a_prompt_of_ones_own():
    options = options_of(dots, "--prompt-mode", "layout-all", "--custom-prompt", "Read the names.")
    (message,) = body_of(dots, page_of(dots), options)["messages"]
    assert message["content"][1]["text"] == "Read the names."
    parsed = dots.parse(dots.Answer("[Ann, Ben]"), page_of(dots), options)
    assert (parsed.markdown, parsed.blocks, parsed.flags) == ("[Ann, Ben]", None, [])


def test_text_is_taken_as_it_is():
    assert dots.parse(dots.Answer(" [1] {x}\n"), page_of(dots), options_of(dots)).markdown == "[1] {x}"


def test_worst_case_fits():
    recipe = dots.RECIPE
    longest = max(map(len, recipe["tasks"].values()))
    assert recipe["image"]["max_pixels"] / 28 / 28 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] + longest // 3 + 64 <= recipe["max_model_len"]


def test_1_5_is_dots_mocr_with_other_weights():
    assert later.RECIPE == {**mocr.RECIPE, "name": "dots-ocr-1.5", "model": "davanstrien/dots.ocr-1.5"}
    body = body_of(later, page_of(later), options_of(later, "--task", "web-parsing"))
    assert body["messages"][0]["content"][1]["text"].startswith("<|img|><|imgpad|><|endofimg|>Parsing the layout")


def test_pages_are_reduced_to_what_the_model_takes():
    assert dots.RECIPE["image"]["max_pixels"] == dots.DOTS_PIXELS[1]
    assert dots.RECIPE["image_tokens"] == dots.DOTS_PIXELS[1] // 28**2
