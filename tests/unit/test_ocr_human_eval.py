"""Human votes: which pairs are shown, what is stored, and what the votes say beside the judges'."""

import argparse
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipe_file import load_recipe

human = load_recipe("ocr-human-eval")


def bench_of(texts):
    """A bench from {model: {page: text or None}}."""
    contestants = []
    for name, pages in texts.items():
        outputs = {key: human.classify(text) for key, text in pages.items()}
        contestants.append(human.Contestant(name, name, name, None, "markdown", "string", {}, outputs))
    keys = list(next(iter(texts.values())))
    table = human.Table("x", None, {"id": keys}, {"id": "string"}, lambda row: None, {"kind": ["print"] * len(keys)})
    return human.Bench("here", None, contestants, keys, ("id",), {key: (table, row) for row, key in enumerate(keys)})


def three_models(pages=40):
    return bench_of({name: {f"p{n}": f"{name} reads page {n}" for n in range(pages)} for name in ("a", "b", "c")})


def options_of(**changes):
    plain = {"repeat_share": 0.0, "seed": 42, "store_text": "excerpt"}
    return argparse.Namespace(**plain | changes)


def booth_of(folder, pages=6, **changes):
    bench = three_models(pages)
    return human.Booth(bench, list(human.comparable_pairs(bench)), folder, options_of(**changes))


# ---- which pairs


def test_pairs_without_a_visible_difference_or_with_a_failure_are_never_shown():
    pages = ["same", "spaces", "failed", "blank", "one-blank", "differs"]
    first, second = (
        ["# Title\n\nwords", "a  b", None, "", "", "x"],
        ["**Title** words", "a\nb", "text", "  ", "text", "y"],
    )
    bench = bench_of({"a": dict(zip(pages, first, strict=True)), "b": dict(zip(pages, second, strict=True))})
    pairs = list(human.comparable_pairs(bench))
    assert [pair.key for pair in pairs] == ["one-blank", "differs"]
    assert human.cut_text(pairs[0].a["text"]) == ("", "(no output)")


def judged(pair, judge, winner, order="ab", **more):
    vote = human.make_vote(pair.key, pair.a, pair.b, judge, order)
    return human.decide(vote, winner if order == "ab" else human.SWAPPED[winner]) | more


def test_disputed_pairs_come_first_and_carry_their_probability():
    pairs = list(human.comparable_pairs(three_models()))  # 120
    quarrel = pairs[:30]
    votes = [judged(pair, "x", "A") for pair in pairs] + [judged(pair, "y", "B") for pair in quarrel]
    disputed = human.disputed_pairs(votes)
    assert disputed == {pair.id for pair in quarrel}
    chosen = human.chosen_pairs(pairs, disputed, 40, "mixed", 42)
    assert [pair.design for pair in chosen] == ["disputed"] * 12 + ["random"] * 28
    assert len({pair.id for pair in chosen}) == 40
    assert all(first.key != second.key for first, second in zip(chosen, chosen[1:], strict=False))
    plain = [pair for pair in chosen if pair.id not in disputed]
    assert {pair.inclusion for pair in plain} <= {round(9 / 40, 6), round(10 / 40, 6)}
    assert all(pair.inclusion > 0.4 for pair in chosen if pair.id in disputed)
    assert human.chosen_pairs(random.Random(1).sample(pairs, 120), disputed, 40, "mixed", 42) != []
    shuffled = human.chosen_pairs(random.Random(1).sample(pairs, 120), disputed, 40, "disputed", 42)
    assert {pair.id for pair in shuffled} == disputed
    assert len(human.chosen_pairs(pairs, set(), 40, "mixed", 42)) == 40
    assert len(human.chosen_pairs(pairs, disputed, 500, "random", 42)) == 120


def test_inclusion_probabilities_are_those_of_the_draw():
    """Over many seeds each pair is shown as often as its probability says, so that weighting by it is fair."""
    pairs = list(human.comparable_pairs(three_models(20)))  # 60
    disputed = {pair.id for pair in pairs[::4]}
    often, said = dict.fromkeys((pair.id for pair in pairs), 0), {}
    for seed in range(300):
        for pair in human.chosen_pairs(pairs, disputed, 20, "mixed", seed):
            often[pair.id] += 1 / pair.inclusion
            said[pair.id] = pair.inclusion
    totals = [
        sum(often[pair.id] for pair in pairs if (pair.id in disputed) == quarrel) / 300 for quarrel in (True, False)
    ]
    assert totals[0] == pytest.approx(15, rel=0.06) and totals[1] == pytest.approx(45, rel=0.06)


def test_sides_are_balanced_and_repeats_come_swapped_and_later():
    pairs = list(human.comparable_pairs(three_models()))
    shown = human.showings(pairs, "ada", [], 0.2, 42)
    once = [one for one in shown if not one.repeat]
    for models in (("a", "b"), ("a", "c"), ("b", "c")):
        orders = [one.order for one in once if (one.pair.a["name"], one.pair.b["name"]) == models]
        assert abs(orders.count("ab") - orders.count("ba")) <= 1 and len(orders) == 40
    again = [one for one in shown if one.repeat]
    assert 10 <= len(again) <= 40
    place = {one.id: number for number, one in enumerate(shown)}
    for one in again:
        first = next(other for other in once if other.pair.id == one.pair.id)
        assert one.order != first.order and place[one.id] - place[first.id] > human.APART
    assert not any(one.repeat for one in human.showings(pairs[: human.APART], "ada", [], 1.0, 42))
    other = human.showings(pairs, "bob", [], 0.2, 42)
    assert [one.pair.id for one in other if not one.repeat] == [one.pair.id for one in once]
    assert [one.order for one in other if not one.repeat] != [one.order for one in once]


# ---- what is stored


def test_votes_are_stored_resumed_taken_back_and_stay_with_what_was_seen(tmp_path):
    booth = booth_of(tmp_path)
    first, second, third = booth.pending("ada")[:3]
    assert booth.vote("ada", first.id, "A", ["omission"], 2, 3.5) and booth.vote("ada", second.id, "both_bad")
    assert not booth.vote("ada", first.id, "B") and not booth.vote(
        "ada", "nothing", "A"
    )  # a second click, a stale page
    assert booth.vote("bob", booth.pending("bob")[0].id, "skip")
    assert booth.undo("ada") and booth.pending("ada")[0].id == second.id
    assert booth.vote("ada", second.id, "tie") and booth.pending("ada")[0].id == third.id

    again = booth_of(tmp_path)
    assert [one.id for one in again.pending("ada")] == [one.id for one in booth.pending("ada")]
    votes = {vote["comparison_id"]: vote for vote in human.read_votes(tmp_path)[0]}
    assert votes[first.id]["judge"] == "human:ada" and votes[first.id]["latency_s"] == 3.5
    shown = [first.pair.a["name"], first.pair.b["name"]][:: 1 if first.order == "ab" else -1]
    assert shown[0] == {"A": first.pair.a["name"], "B": first.pair.b["name"]}[votes[first.id]["winner"]]
    details = json.loads(votes[first.id]["details"])
    assert details["reasons"] == ["omission"] and details["confidence"] == 2 and details["inclusion"] == 1.0
    assert json.loads(votes[first.id]["facts"]) == {"kind": "print"}
    assert votes[second.id]["winner"] == "tie" and not json.loads(votes[second.id]["details"])["both_bad"]

    # rows move, a model is added, another text changes: the votes stay with the pairs that were seen
    texts = {name: {f"p{n}": f"{name} reads page {n}" for n in reversed(range(6))} for name in ("d", "c", "b", "a")}
    bench = bench_of(texts)
    grown = human.Booth(bench, list(human.comparable_pairs(bench)), tmp_path, options_of())
    left = {one.pair.id for one in grown.pending("ada")}
    assert len(left) == 36 - 2 and not {first.pair.id, second.pair.id} & left
    texts[first.pair.a["name"]][first.pair.key] += " corrected"
    bench = bench_of(texts)
    changed = human.Booth(bench, list(human.comparable_pairs(bench)), tmp_path, options_of())
    assert len(changed.pending("ada")) > len(left)


def test_a_round_can_be_closed_when_it_is_done_and_then_stays_as_it_is(tmp_path):
    booth = booth_of(tmp_path, pages=2)
    assert "can be closed after 6" in booth.close("ada")
    while booth.pending("ada"):
        assert booth.vote("ada", booth.pending("ada")[0].id, "A")
    assert booth.close("ada") is None and booth.closed("ada") and not booth.undo("ada")
    assert booth_of(tmp_path, pages=2).closed("ada") and not booth.closed("bob")
    assert booth_of(tmp_path, pages=2).vote("bob", booth.pending("bob")[0].id, "B")


@pytest.mark.parametrize(
    ("typed", "name"),
    [("Ada L.", "Ada-L"), ("../../x", "x"), ("  ", None), (None, None), ("é", "é"), ("a" * 99, "a" * 60)],
)
def test_names_are_made_safe(typed, name):
    assert human.clean_name(typed) == name


# ---- what the votes say


def test_exact_intervals():
    for hits, count, low, high in ((0, 15, 0, 0.218), (0, 30, 0, 0.116), (10, 100, 0.049, 0.176), (5, 5, 0.478, 1)):
        assert human.clopper_pearson(hits, count) == pytest.approx((low, high), abs=0.0006)
    assert human.clopper_pearson(0, 0) == (None, None)
    assert human.clopper_pearson(0, 36)[1] < human.CLOSE_ENOUGH < human.clopper_pearson(0, 35)[1]


def test_kappa_of_known_tables():
    # Cohen (1960), table 1 of three categories, is 0.492 from these shares
    table = np.array([[88, 14, 18], [10, 40, 10], [2, 6, 12]], dtype=float)
    assert float(human.kappas(table)) == pytest.approx(0.492, abs=0.001)
    one_word = np.zeros((3, 3))
    one_word[0, 0] = 9
    assert np.isnan(human.kappas(one_word)) and np.isnan(human.kappas(np.zeros((3, 3))))
    soft, hard = np.diag([5.0, 5, 5]), np.diag([5.0, 5, 5])
    soft[0, 1], hard[0, 2] = 3, 3
    assert human.kappas(soft, linear=True) > human.kappas(hard, linear=True)


def test_alpha_of_a_known_table():
    # Krippendorff (2011), Computing Krippendorff's Alpha-Reliability, section C: nominal alpha 0.743
    rows = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    units = [[value for value in unit if value is not None] for unit in zip(*rows, strict=True)]
    assert human.krippendorff_alpha([unit for unit in units if len(unit) > 1]) == pytest.approx(0.743, abs=0.001)
    assert human.krippendorff_alpha([["A", "A"]] * 3) is None and human.krippendorff_alpha([]) is None


def test_soft_and_hard_disagreement_are_told_apart_with_intervals():
    both = (
        [("p1", "A", "A", 1.0)] * 6
        + [("p2", "A", "tie", 1.0)] * 3
        + [("p3", "A", "B", 4.0)]
        + [("p4", "B", "B", 1.0)] * 2
    )
    found = human.two_raters(both, bootstrap=200)
    assert (found["n"], found["pages"], found["soft"], found["hard"], found["decisive"]) == (12, 4, 3, 1, 9)
    assert found["agreement"][0] == pytest.approx(8 / 12, abs=1e-4) and found["weighted_agreement"][0] == pytest.approx(
        8 / 15, abs=1e-4
    )
    assert found["decisive_accuracy"] == pytest.approx(8 / 9)
    low, high = found["kappa"][1:]
    assert low < found["kappa"][0] < high and (found["hard_low"], found["hard_high"]) == human.clopper_pearson(1, 12)
    assert human.two_raters([], bootstrap=10)["n"] == 0
    same = human.two_raters([("p", "A", "A", 1.0)] * 9, bootstrap=50)
    assert same["kappa"] == [None, None, None] and same["agreement"][0] == 1.0


def test_a_report_names_annotators_repeats_and_judges(tmp_path):
    booth = booth_of(tmp_path, pages=30, repeat_share=0.3)
    pairs = list(human.comparable_pairs(booth.bench))
    for name in ("ada", "bob"):
        while waiting := booth.pending(name):
            first, right = waiting[0], "A" if waiting[0].order == "ab" else "B"  # always the model that sorts first
            booth.vote(name, first.id, "tie" if first.repeat else right)
    judges = [judged(pair, "small", "A") for pair in pairs]
    judges += [judged(pair, "wrong", "B" if n % 3 else "A", order="ba") for n, pair in enumerate(pairs)]
    report = human.human_report(list(booth.votes.values()), judges, bootstrap=100)
    ada = report["annotators"]["ada"]
    assert ada["votes"] == 90 and ada["repeats"] > 5 and ada["repeats_same"] == 0
    assert report["between_annotators"][0]["agreement"][0] == 1.0
    assert report["judges"]["small"]["agreement"][0] == 1.0 and report["judges"]["small"]["hard"] == 0
    assert report["judges"]["wrong"]["hard"] == 60 and "the jury" in report["judges"]
    assert [row["model"] for row in report["boards"][0]["leaderboard"]] == ["a", "b", "c"]
    text = human.report_text(report)
    assert "kappa" in text and "more votes would change little" in text and "small and humans: 90 pairs" in text
    assert "small" not in human.report_text(report, with_judges=False)
    json.dumps(report)


# ---- what the browser gets


def test_nothing_of_a_reading_is_markup():
    hostile = "<img src=x onerror=alert(1)> <script>alert(1)</script> & </pre> ![](http://tracker.test/x.png)"
    for view in ("text", "diff"):
        for side in human.texts_html(hostile, hostile + " more", view):
            inner = side.removeprefix('<pre class="reading" dir="auto">').replace("<mark>", "").replace("</mark>", "")
            assert "<" not in inner.replace("<i></i></pre>", "")
    rendered = human.rendered_markdown(
        hostile + "\n\n<table onclick=x><tr><td colspan=2 style='x'>cell</td></tr></table>"
    )
    assert "![" not in rendered and not any(word in rendered for word in ("<img", "<script", "onclick", "style"))
    assert '<td colspan="2">cell</td>' in rendered


@given(st.text(max_size=300), st.text(max_size=300))
def test_marks_change_no_text_and_mark_what_differs(first, second):
    marked = human.word_marks(first, second)
    for text, side in zip((first, second), marked, strict=True):
        assert side.replace("<mark>", "").replace("</mark>", "") == human.html.escape(text)
    if first == second:
        assert "<mark>" not in "".join(marked)


def test_a_loop_is_cut_before_it_reaches_the_browser():
    left, right = human.texts_html("loop " * 100_000, "", "diff")
    assert len(left) < 3 * human.MOST_SHOWN * 5 and "480,000 more characters" in left and "(no output)" in right
