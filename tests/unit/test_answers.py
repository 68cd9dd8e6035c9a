"""Flags, asking again, and the conversation about one unit."""

import random
from types import SimpleNamespace

import pytest

from kit.answers import better, complete, converse, failed_row, flags_of, one_step
from kit.seam import Answer, Item, Page, PageError, Parsed, Unit

PROSE = " ".join(
    f"In the year {1700 + n} the parish counted {n * 7 % 311} births and {n * 13 % 97} burials, as clerk {n} wrote."
    for n in range(60)
)


def table(rows, columns, seed=0):
    rng = random.Random(seed)
    cells = (f"<td>{rng.choice([rng.randint(0, 9999), '', '-'])}</td>" for _ in range(rows * columns))
    return (
        "<table>"
        + "".join(f"<tr>{''.join(next(cells) for _ in range(columns))}</tr>" for _ in range(rows))
        + "</table>"
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "Annual return", PROSE, table(40, 8), table(200, 12),
        "Contents\n" + "\n".join(f"Chapter {n} {'.' * 80} {n * 9}" for n in range(1, 60)),
        "Name: " + "_" * 120, "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 8, "la la la", "!" * 5, "- " * 12,
    ],
)  # fmt: skip
def test_honest_text_has_no_flag(text):
    assert flags_of(text, "stop") == []


@pytest.mark.parametrize(
    "text, flag",
    [
        (PROSE + " and so on" * 40, "looped"),
        (PROSE + "\n" + "The same line stands here again.\n" * 9, "looped"),
        (PROSE + "0" * 400, "looped"),
        (PROSE + "<tr><td></td><td></td></tr>" * 30 + "</table>", "looped"),
        (PROSE + "ab" * 150 + "</td></tr></table> Done.", "looped"),
        (
            "\n".join(["First stanza of the song, sung by all the people there.", "Second stanza, by few."] * 40),
            "looped",
        ),
        ("!" * 300, "degenerate"),
        ("the " * 40, "degenerate"),
    ],
)
def test_loops_and_degenerate_text_are_found(text, flag):
    assert flags_of(text, "stop") == [flag]
    assert flags_of(text, "length") == ["truncated", flag]


def options(**changes):
    base = dict(
        max_tokens=100, max_tokens_given=False, max_model_len=1000, retries=1, temperature=0.0, top_k=1, task="ocr"
    )
    return SimpleNamespace(**{**base, **changes})


RECIPE = {"sampling": {"temperature": 0.0, "top_k": 1}}


def request(page, options):
    return {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "OCR:"}]}]}


def parse(answer, page, options):
    if "boom" in answer.text:
        raise ValueError("cannot be parsed")
    return Parsed(answer.text.strip(), flags=["unparsed"] if "{" in answer.text else [])


def talk(answers, recipe=RECIPE, steps=None, item=None, unit=None, **changes):
    """Drives a conversation with canned answers; returns the row and the bodies that were asked."""
    item, unit = item or Item("a", 3, "a"), unit or Unit("a", [Page("IMAGE", 10, 20)])
    conversation = converse(item, unit, "5a", options(**changes), recipe, steps or one_step(request, parse))
    asked, answers = [], iter(answers)
    try:
        bodies = next(conversation)
        while True:
            asked += bodies
            bodies = conversation.send([next(answers) for _ in bodies])
    except StopIteration as stop:
        return stop.value, asked


def test_one_answer_makes_one_row():
    row, asked = talk([Answer(" text ", "stop", 7, 5)])
    assert asked == [
        {
            "max_tokens": 100, "temperature": 0.0, "top_k": 1,
            "messages": [
                {"role": "user", "content": [{"type": "image", "image": "IMAGE"}, {"type": "text", "text": "OCR:"}]}
            ],
        }
    ]  # fmt: skip
    assert row["text"] == "text" and row["error"] is None and row["flags"] == [] and row["attempts"] == 1
    assert (row["row"], row["prompt_tokens"], row["completion_tokens"], row["sha256"]) == (3, 7, 5, "5a")


def test_a_blank_page_is_empty_text_and_no_error():
    row, _ = talk([Answer("")])
    assert row["text"] == "" and row["error"] is None


def test_a_loop_is_asked_again_warmer_and_the_better_answer_kept():
    row, asked = talk([Answer("so on " * 90), Answer("so on")])
    assert row["text"] == "so on" and row["flags"] == [] and row["attempts"] == 2
    assert asked[1]["temperature"] == pytest.approx(0.2) and asked[1]["top_p"] == 0.95 and asked[1]["top_k"] == -1


def test_a_loop_that_stays_is_kept_whole_and_flagged():
    first = Answer("and so on " * 90, "length")
    row, asked = talk([first, Answer("or so on " * 90, "length")])
    assert row["text"] == first.text.strip() and row["flags"] == ["truncated", "looped"] and len(asked) == 2


def test_locked_sampling_is_not_asked_again():
    _, asked = talk([Answer("so on " * 90)], recipe={**RECIPE, "lock_sampling": True})
    assert len(asked) == 1


def test_no_retries_when_benchmarking():
    _, asked = talk([Answer("so on " * 90)], retries=0)
    assert len(asked) == 1


def test_truncated_gets_the_room_that_the_context_leaves():
    row, asked = talk([Answer(PROSE, "length", 200, 100), Answer(PROSE + " end", "stop", 200, 300)])
    assert asked[1]["max_tokens"] == 1000 - 200 - 16 and asked[1]["temperature"] == 0.0
    assert row["flags"] == [] and row["text"].endswith("end")


@pytest.mark.parametrize("changes", [{"max_tokens_given": True}, {"max_model_len": 310}])
def test_truncated_is_final_without_room_or_against_the_users_limit(changes):
    row, asked = talk([Answer(PROSE, "length", 200, 100)], **changes)
    assert len(asked) == 1 and row["flags"] == ["truncated"] and row["text"] == PROSE


def test_unparsed_is_read_again_and_the_first_kept_if_no_better():
    row, asked = talk([Answer("{"), Answer("fine")])
    assert row["text"] == "fine" and row["flags"] == [] and asked[1]["temperature"] == pytest.approx(0.2)
    row, _ = talk([Answer("{1"), Answer("{2")])
    assert row["text"] == "{1" and row["flags"] == ["unparsed"]


def test_a_failed_request_and_a_failing_parser_are_error_rows():
    row, _ = talk([ValueError("prompt of 9000 tokens is too long")])
    assert row["text"] is None and row["error"] == "ValueError: prompt of 9000 tokens is too long"
    row, _ = talk([Answer("boom", "stop", 7, 5)])
    assert row["text"] is None and row["error"] == "ValueError: cannot be parsed" and row["prompt_tokens"] == 7


def layout_then_crops(unit, options):
    (layout,) = yield [request(unit.pages[0], options)]
    crops = [
        {"messages": [{"role": "user", "content": [{"type": "image", "image": f"crop{n}"}]}], "max_tokens": 9}
        for n in range(int(layout.text))
    ]
    answers = (yield crops) if crops else []
    return Parsed("\n\n".join(answer.text for answer in answers))


def test_layout_then_crops_asks_again_only_for_the_crop_that_looped():
    row, asked = talk(
        [Answer("3"), Answer("one"), Answer("x " * 300), Answer("three"), Answer("two")], steps=layout_then_crops
    )
    assert row["text"] == "one\n\ntwo\n\nthree" and row["attempts"] == 2
    images = [body["messages"][0]["content"][0]["image"] for body in asked]
    assert images == ["IMAGE", "crop0", "crop1", "crop2", "crop1"] and asked[1]["max_tokens"] == 9
    assert talk([Answer("0")], steps=layout_then_crops)[0]["text"] == ""


def turned(unit, options):
    (sideways,) = yield [request(unit.pages[0], options)]
    (upright,) = yield [request(unit.pages[0], options)]
    keeps_both = upright.text == "unlike"
    return Parsed(upright.text, answers=None if keeps_both else [upright])


def test_flags_are_those_of_the_answers_that_the_reading_rests_on():
    locked, loop = RECIPE | {"lock_sampling": True}, Answer("so on " * 90, "length", 5, 100)
    row, _ = talk([loop, Answer("upright", "stop", 5, 2)], steps=turned, recipe=locked)
    assert (row["text"], row["flags"], row["finish_reason"]) == ("upright", [], "stop")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (10, 102), "what it cost counts all the same"
    row, _ = talk([Answer("fine"), loop], steps=turned, recipe=locked)
    assert (row["flags"], row["finish_reason"]) == (["truncated", "looped"], "length")
    row, _ = talk([loop, Answer("unlike")], steps=turned, recipe=locked)
    assert row["flags"] == ["truncated", "looped"]
    row, _ = talk([loop, ValueError("too long")], steps=turned, recipe=locked)
    assert row["error"] and row["flags"] == ["truncated", "looped"]


def with_fallback(unit, options):
    try:
        (answer,) = yield [request(unit.pages[0], options)]
    except TimeoutError:
        (answer,) = yield [{"messages": [{"role": "user", "content": "again"}]}]
    return Parsed(answer.text)


def test_steps_may_catch_a_failed_request_and_fall_back():
    row, asked = talk([TimeoutError("slow"), Answer("second way")], steps=with_fallback)
    assert row["text"] == "second way" and row["error"] is None and asked[1]["messages"][0]["content"] == "again"


def test_better_prefers_no_flag_then_a_natural_stop_then_the_first():
    a, b = Answer("a", "length", flags=("truncated",)), Answer("b", "stop")
    assert better(a, b) is b and better(b, a) is b
    flagged = Answer("c", "stop", flags=("looped",))
    assert better(a, flagged) is flagged and better(flagged, Answer("d", "stop", flags=("looped",))) is flagged
    assert better(a, ValueError()) is a


def test_a_partial_page_is_flagged_and_an_undecodable_one_never_asked():
    row, _ = talk([Answer("half")], unit=Unit("a", [Page("IMAGE", 1, 1, partial=True)]))
    assert row["flags"] == ["partial"]
    row = failed_row(Item("a", 1, "a"), PageError("the file is empty (0 bytes)"))
    assert row["error"] == "the file is empty (0 bytes)" and row["text"] is None and row["attempts"] == 0


def test_complete_lets_the_body_overrule_the_run():
    body = complete({"messages": [], "max_tokens": 3, "temperature": 0.9}, options(), RECIPE)
    assert (body["max_tokens"], body["temperature"], body["top_k"]) == (3, 0.9, 1)
