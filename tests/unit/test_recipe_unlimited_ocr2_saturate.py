"""Unlimited-OCR-2 with a second reading: what is read again, and that it replaces that page alone."""

import json

import pytest
from PIL import Image

from kit import pages as kit_pages
from tests.unit.recipe_file import load_recipe
from tests.unit.windows import LOOP, TEXTS, answer_of, window_of

recipe = load_recipe("unlimited-ocr2-saturate")
OPTIONS = recipe.option_parser(recipe.RECIPE, recipe.window_options).parse_args(["in", "out"])
recipe.settle(OPTIONS, recipe.RECIPE, {"serve": None})
A, B, C, D = TEXTS
SECOND = "<|det|>text [1, 2, 300, 400]<|/det|>Read a second time, and now it is all there."


def talk(window, alone, count=4):
    """(Parsed, pages read again): `window` is the answer to the window, `alone` maps pages to theirs."""
    unit = window_of(recipe, count)
    asked = {id(page.image): n for n, page in enumerate(unit.pages)}
    reading, again = recipe.steps(unit, OPTIONS), []
    bodies, answer = next(reading), window
    try:
        while True:
            if isinstance(answer, Exception):
                bodies = reading.throw(answer)
            else:
                text, cut = answer if isinstance(answer, tuple) else (answer, "stop")
                bodies = reading.send([recipe.Answer(text, cut)])
            (body,) = bodies
            text, image = body["messages"][0]["content"]
            assert text["text"] == "document parsing." and body["images_config"] == {"image_mode": "gundam"}
            again.append(asked[id(image["image"])])
            answer = alone[again[-1]]
    except StopIteration as end:
        return end.value, again


def pages_of(parsed):
    spans = json.loads(parsed.columns["page_spans"])
    assert [(s["first"], s["last"]) for s in spans] == [(n, n) for n in range(1, len(spans) + 1)]
    return [(s["status"], parsed.markdown[s["start"] : s["end"]]) for s in spans]


def ok(*texts):
    return [("ok", text) for text in texts]


def test_a_whole_window_is_read_once():
    parsed, again = talk(answer_of(TEXTS), {})
    assert again == [] and pages_of(parsed) == ok(*TEXTS) and parsed.flags == []
    assert parsed.columns["pages_reread"] == 0 and parsed.columns["status"] == "ok"


def test_a_looping_page_and_its_empty_neighbour_are_read_again():
    parsed, again = talk(answer_of([A, LOOP, "", D]), {1: B, 2: C})
    assert again == [1, 2] and pages_of(parsed) == ok(*TEXTS)
    assert parsed.columns["pages_reread"] == 2 and parsed.columns["status"] == "ok" and parsed.flags == ["repaired"]
    assert [len(page["blocks"]) for page in parsed.blocks["pages"]] == [2, 2, 2, 1]
    assert [answer.text for answer in parsed.answers] == [B, C], "the window's loop is not in the row any more"


def test_pages_that_stand_one_too_late_are_found_and_read_again():
    parsed, again = talk(answer_of([LOOP, "", B, C]), {0: A, 1: B, 2: C, 3: D})
    assert again == [0, 1, 2, 3] and pages_of(parsed) == ok(*TEXTS)


def test_the_search_for_pages_that_stand_too_late_ends_where_they_stand_right():
    parsed, again = talk(answer_of([LOOP, "", B, SECOND, D]), {0: A, 1: B, 2: C}, count=5)
    assert again == [0, 1, 2] and pages_of(parsed) == ok(A, B, C, SECOND, D)


def test_an_empty_page_may_be_blank():
    parsed, again = talk(answer_of([A, LOOP, "", D]), {1: B, 2: ""})
    assert again == [1, 2] and pages_of(parsed) == ok(A, B, "", D)


def test_a_missing_mark_sends_every_page_back():
    parsed, again = talk(answer_of([A, B + C, D]), dict(enumerate(TEXTS)))
    assert again == [0, 1, 2, 3] and pages_of(parsed) == ok(*TEXTS)


def test_what_stands_before_a_loop_is_kept():
    parsed, again = talk(answer_of([A, LOOP, C]), {1: B, 2: C, 3: D})
    assert again == [1, 2, 3] and pages_of(parsed) == ok(*TEXTS)


def test_a_page_that_loops_again_keeps_its_first_reading():
    parsed, again = talk(answer_of([A, LOOP, C, D]), {1: f"{LOOP}, and more"})
    assert again == [1] and pages_of(parsed) == [*ok(A), ("looped", LOOP), *ok(C, D)]
    assert parsed.flags == ["looped"] and parsed.columns["status"] == "partial"
    assert [answer.text for answer in parsed.answers] == [answer_of([A, LOOP, C, D])]


def test_the_end_of_a_window_that_was_cut_off_is_read_again():
    parsed, again = talk((answer_of([A, B, C[:9]]), "length"), {2: C, 3: (D[:9], "length")})
    assert again == [2, 3] and pages_of(parsed) == [*ok(A, B, C), ("truncated", D[:9])]


def test_a_window_that_fails_is_read_page_by_page():
    failure = recipe.PageError("the server did not answer this page: timeout")
    parsed, again = talk(failure, {0: A, 1: failure, 2: C, 3: D})
    assert again == [0, 1, 2, 3] and pages_of(parsed) == [*ok(A), ("failed", ""), *ok(C, D)]
    with pytest.raises(recipe.PageError, match="timeout"):
        talk(failure, dict.fromkeys(range(4), failure))
    with pytest.raises(recipe.PageError, match="timeout"):
        talk(failure, {}, count=1)


def test_a_failed_second_reading_keeps_the_first():
    parsed, again = talk(answer_of([A, LOOP, C, D]), {1: recipe.PageError("busy")})
    assert again == [1] and pages_of(parsed)[1] == ("looped", LOOP) and parsed.columns["pages_reread"] == 0


@pytest.mark.parametrize(
    "one, other, same",
    [
        (B, B.replace("minutes", "minuets"), True),
        (B, D, False),
        ("", "", False),
        (B, "", False),
        ("本日は晴天なり、波も静かなり。港に船が三隻入った", "本日は晴天なり、波も静かなり。港に船が二隻入った", True),
        ("本日は晴天なり、波も静かなり。港に船が三隻入った", "昨夜の火事は隣町まで見えたという話である", False),
    ],
)
def test_same_page(one, other, same):
    assert recipe.same_page(one, other) is recipe.same_page(other, one) is same


def test_jpeg_2000_is_decoded_small_and_in_full_where_that_fails(tmp_path, monkeypatch):
    from PIL import Jpeg2KImagePlugin

    page, loaded, broken = Image.linear_gradient("L").resize((2560, 2048)), [], [False]
    page.save(tmp_path / "page.jp2", num_resolutions=4)
    load = Jpeg2KImagePlugin.Jpeg2KImageFile.load

    def watched(self):
        loaded.append(self._reduce)
        if broken[0] and self._reduce:
            raise OSError("broken data stream when reading image file")
        return load(self)

    monkeypatch.setattr(Jpeg2KImagePlugin.Jpeg2KImageFile, "load", watched)
    for broken[0], tried in ((False, 1), (True, 0)):
        loaded.clear()
        opened = kit_pages.open_page(str(tmp_path / "page.jp2"), bounds=recipe.RECIPE["image"])
        assert (opened.width, opened.height, opened.partial) == (2560, 2048, False)
        assert opened.image.size == (1280, 1024) and opened.image.getpixel((640, 900))[0] > 200
        assert loaded[0] == 1 and tried in loaded and (0 in loaded) is broken[0]


def test_users_of_saturate_files_find_their_columns():
    assert recipe.RECIPE["row_columns"][:2] == ["id", "error"] and recipe.RECIPE["columns"]["pages_reread"] == "int"
