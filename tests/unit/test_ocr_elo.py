"""The leaderboard: ratings, intervals, tiers, what cannot be said, and the tool that writes it all down."""

import json
import random
import re
from itertools import combinations

import numpy as np
import pytest

from kit.ranking import (
    fit_davidson,
    fit_strengths,
    interval_levels,
    rank_boards,
    resolvable_gap,
    sequential_elo,
)
from kit.votes import SWAPPED, VoteStore, decide, jury_verdicts, make_vote, push_votes
from tests.unit.recipe_file import load_recipe
from tests.unit.test_votes import results  # noqa: F401

elo = load_recipe("ocr-elo-bench")


def vote(pair, winner, key, judge="judge", order="ab", prompt="hash", text="", **fields):
    sides = [{"name": name, "text": f"{text}{name} {key}", "config": name, "revision": None} for name in pair]
    shown = winner if order == "ab" else SWAPPED.get(winner)
    return decide(make_vote(key, *sides, judge, order, prompt, **fields), shown, "ok" if winner else "invalid")


def series(pair, winners, prefix="p", **fields):
    return [vote(pair, winner, f"{prefix}{n}", **fields) for n, winner in enumerate(winners)]


def graded(pages=30, models="abcd", judge="judge", seed=1, **fields):
    """Votes in which an earlier letter wins four times out of five."""
    draw = random.Random(seed)
    return [
        vote(pair, "A" if draw.random() < 0.8 else "B", f"p{n}", judge, "ab" if n % 2 else "ba", **fields)
        for n in range(pages)
        for pair in combinations(models, 2)
    ]


def board(votes, **settings):
    (only,) = rank_boards(jury_verdicts(votes), **{"bootstrap": 200, **settings})
    return only


def by_model(found):
    return {row["model"]: row for row in found["leaderboard"]}


# ---- The fit


def test_two_models_have_the_rating_of_their_odds():
    strengths = fit_strengths(np.array([[[0.0, 3.0], [1.0, 0.0]]]))[0]
    assert strengths[0] - strengths[1] == pytest.approx(np.log(3))


def test_the_fit_is_that_of_choix():
    """`choix.ilsr_pairwise(5, games, alpha=0)` of choix 0.4.1 for the 300 games of this table, centred."""
    wins = [[0, 20, 25, 25, 23], [8, 0, 17, 17, 21], [6, 11, 0, 18, 20], [14, 10, 7, 0, 25], [7, 5, 11, 10, 0]]
    expected = [0.805569, 0.281347, -0.071191, -0.177252, -0.838473]
    assert fit_strengths(np.array([wins], float))[0] == pytest.approx(expected, abs=2e-6)


def test_there_is_no_fit_without_a_prior():
    with pytest.raises(ValueError, match="prior"):
        board(series("ab", "A" * 10), prior=0)


def test_davidson_gives_ties_a_chance_of_their_own():
    wins, ties = np.array([[0.0, 30.0], [30.0, 0.0]]), np.array([[0.0, 15.0], [15.0, 0.0]])
    strengths, nu = fit_davidson(wins, ties, np.zeros((2, 2)))
    assert strengths == pytest.approx([0, 0], abs=1e-4) and nu == pytest.approx(0.5, rel=1e-3)
    half, davidson = (board(graded(), tie_model=model) for model in ("half", "davidson"))
    assert [row["model"] for row in half["leaderboard"]] == [row["model"] for row in davidson["leaderboard"]]


def test_sample_sizes_are_those_of_the_power_calculation():
    assert resolvable_gap(195) == pytest.approx(70, abs=3) and resolvable_gap(47) == pytest.approx(147, abs=6)


def test_intervals_widen_for_few_pages():
    tails = [interval_levels(0.95, pages)[0] for pages in (10, 50, 5000)]
    assert tails[0] < tails[1] < tails[2] and tails[2] == pytest.approx(0.025, abs=1e-4)


# ---- Boards


def test_the_order_of_rows_changes_no_digit():
    votes = graded()
    shuffled = random.Random(5).sample(votes, len(votes))
    assert board(votes) == board(shuffled)


def test_ten_to_none_is_a_sentence_and_no_number():
    found = board(series("ab", "A" * 10) + series("bc", "ABABA", "q"), min_pages=1)
    rows = by_model(found)
    assert [row["model"] for row in found["leaderboard"]] == ["a", "b", "c"]
    assert rows["a"]["elo"] is rows["a"]["elo_low"] is None and rows["b"]["elo"] > rows["c"]["elo"]
    assert np.isfinite([row["elo_with_prior"] for row in rows.values()]).all()
    assert any(
        "a won all 10 of its comparisons" in said and "no rating is given" in said for said in found["statements"]
    )
    (pair,) = [pair for pair in found["pairs"] if pair["model_b"] == "b"]
    assert pair["elo_diff"] is None and "10-0" in pair["statement"] and pair["ci_low"] < 1 == pair["ci_high"]


def test_only_ten_to_none_leaves_nobody_a_number():
    found = board(series("ab", "A" * 30))
    assert [row["elo"] for row in found["leaderboard"]] == [None, None]
    assert len(found["statements"]) == 2 and [row["tier"] for row in found["leaderboard"]] == [1, 2]


def test_groups_that_never_met_have_no_common_ranking():
    boards = rank_boards(jury_verdicts(series("ab", "ABAAB") + series("cd", "ABBBA")), bootstrap=50, min_pages=1)
    assert [one["models"] for one in boards] == [["a", "b"], ["c", "d"]]
    assert all("No comparison links {a, b} and {c, d}" in one["statements"][0] for one in boards)


def test_few_pages_get_no_ranks():
    found = board(graded(pages=12))
    assert found["status"] == "insufficient" and "Only 12 pages" in found["statements"][0]
    assert all(row["rank"] is row["tier"] is row["p_best"] is None for row in found["leaderboard"])


def test_equal_models_share_a_tier_and_unequal_ones_do_not():
    equal = board([vote(pair, "AB"[n % 2], f"p{n}") for n in range(40) for pair in combinations("abc", 2)])
    assert len(equal["tiers"]) == 1 and not any(pair["resolved"] for pair in equal["pairs"])
    found = board(graded(pages=80))
    assert found["leaderboard"][0]["model"] == "a" and found["leaderboard"][-1]["model"] == "d"
    assert len(found["tiers"]) > 1 and found["leaderboard"][0]["p_best"] > 0.5
    extremes = [pair for pair in found["pairs"] if pair["model_b"] == "d" and pair["model_a"] == "a"]
    assert extremes[0]["resolved"] and extremes[0]["robust"] and extremes[0]["diff_low"] > 0


def test_a_clear_winner_is_told_apart_though_its_draws_are_skewed():
    found = board(series("ab", "A" * 22 + "B" * 2), bootstrap=1000)
    assert found["tiers"] == [["a"], ["b"]] and found["leaderboard"][0]["elo"] is not None


def test_pages_and_not_comparisons_are_drawn():
    """Five equal verdicts on each page are not five times the evidence."""
    votes = [vote("ab", "A" if n % 3 else "B", f"p{n}") for n in range(30)]
    copies = [{**verdict, "facts": n} for n, verdict in enumerate(5 * jury_verdicts(votes))]
    by_page, by_verdict = (
        rank_boards(copies, bootstrap=400, cluster=cluster)[0]["leaderboard"][0]
        for cluster in (None, lambda verdict: verdict["facts"])
    )
    assert by_page["elo_high"] - by_page["elo_low"] > 1.7 * (by_verdict["elo_high"] - by_verdict["elo_low"])


def test_sequential_elo_depends_on_the_order():
    ratings = sequential_elo(jury_verdicts(graded()), orders=50)
    assert all(deviation > 5 for _, deviation in ratings.values())
    assert ratings["a"][0] > ratings["d"][0]


# ---- The tool


@pytest.fixture
def judged(tmp_path):
    """A folder with the votes of two judges and a human on 30 pages, and the description of the run."""
    store = VoteStore(tmp_path / "judged")
    facts = [json.dumps({"language": "de" if n % 2 else "en"}) for n in range(30)]
    cast = graded() + graded(judge="second", seed=2)
    store.add([{**one, "facts": facts[int(one["row_key"][1:])]} for one in cast])
    store.add(graded(judge="human:eva", seed=3, models="abc", prompt=""))
    pages = [f"p{n}" for n in range(32)]
    failed = {"a": pages[30:], "b": [], "c": [], "d": [], "e": pages}
    contestants = [{"name": name, "failed": keys, "coverage": 0, "states": {}} for name, keys in failed.items()]
    store.add_run("run", "test", {"pages": pages, "contestants": contestants, "source": "x"})
    return store.folder


def run(*words):
    return elo.run(elo.parser_of_options().parse_args([*map(str, words), "--bootstrap", "100"]))


def told(capsys, *words):
    assert run(*words) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_whole_report(judged, tmp_path, capsys):
    said = told(capsys, judged, "--out", tmp_path / "out", "--html", tmp_path / "x.html", "--by", "language")
    assert said["jury"] == ["judge", "second"] and said["leaderboard"][0]["model"] == "a"
    report = json.loads((tmp_path / "out" / "leaderboard.json").read_text())
    assert report["boards"][0]["leaderboard"][0]["coverage"] == pytest.approx(30 / 32, abs=1e-4)
    assert report["never_judged"] == ["e"], "a model whose every page failed is named and not rated"
    assert set(report["by"]["boards"]) == {"de", "en"} and report["humans"]["n"] == 90
    assert 0 < report["humans"]["agreement"] < 1 and report["between_judges"][0]["n"] == 180
    assert set(report["sensitivity"]) >= {"prior 0.1", "ties davidson", "without judge", "without second"}
    assert "failures_count_as_losses" in report
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "leaderboard.json", "leaderboard.md", "leaderboard.parquet", "pairs.parquet", "verdicts.parquet"}  # fmt: skip


def test_failures_may_count_as_losses(judged, capsys):
    excluded, lost = told(capsys, judged), told(capsys, judged, "--failures", "lose")
    wins = [{row["model"]: row["losses"] for row in said["leaderboard"]} for said in (excluded, lost)]
    assert wins[1]["a"] == wins[0]["a"] + 6 and "e" in wins[1] and "e" not in wins[0]


def test_different_prompts_are_not_mixed_unasked(judged, capsys):
    VoteStore(judged).add(graded(judge="third", prompt="other"))
    with pytest.raises(elo.Stop, match="different questions.*--prompt"):
        run(judged)
    assert told(capsys, judged, "--prompt", "other")["jury"] == ["third"]
    assert told(capsys, judged, "--mix")["jury"] == ["judge", "second", "third"]


def test_judges_models_and_orders_can_be_chosen(judged, capsys):
    assert told(capsys, judged, "--judges", "second")["jury"] == ["second"]
    assert {row["model"] for row in told(capsys, judged, "--models", "a,b")["leaderboard"]} == {"a", "b"}
    for words in (("--judges", "nobody"), ("--models", "a,x"), ("--cluster", "nothere"), ("--by", "nothere")):
        with pytest.raises(elo.Stop):
            run(judged, *words)
    both = VoteStore(judged.parent / "both")
    for key, order_ba in (("p1", "A"), ("p2", "B")):
        both.add([vote("ab", "A", key), vote("ab", order_ba, key, order="ba")])
    said = told(capsys, both.folder, "--orders", "consistent")
    assert said["verdicts"] == 1


def test_clusters_are_columns_of_the_pages(judged, capsys):
    said = told(capsys, judged, "--cluster", "language")
    assert said["leaderboard"][0]["elo"] is not None


def test_the_page_opens_offline_and_escapes_everything(tmp_path, capsys):
    store = VoteStore(tmp_path / "judged")
    names = ("<script>alert(1)</script>", "b|pipe")
    store.add([vote(names, "AB"[n % 2], f"p{n}") for n in range(25)])
    run(store.folder, "--html", tmp_path / "x.html", "--format", "md", "--title", "<b>Mine</b>")
    page, said = (tmp_path / "x.html").read_text(), capsys.readouterr().out
    assert "<script" not in page and "&lt;script&gt;" in page and "<b>Mine" not in page
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", page), "nothing is loaded from anywhere"
    assert r"b\|pipe" in said and "| <script" not in said


def test_another_board_is_compared(judged, tmp_path, capsys):
    run(judged, "--out", tmp_path / "old")
    said = told(capsys, judged, "--judges", "second", "--compare", tmp_path / "old" / "leaderboard.json")
    assert -1 <= said["compare"]["kendall_tau"] <= 1 and set(said["compare"]["moved"]) == set("abcd")


def test_old_ratings_only_with_a_warning(judged, capsys):
    run(judged, "--method", "elo")
    said = capsys.readouterr()
    assert "depends on the order" in said.err
    assert json.loads(said.out.splitlines()[-1])["sequential_elo"]["a"]["sd_over_orders"] > 0


def test_scores_of_pages_rank_pointwise(tmp_path, capsys):
    draw, path = random.Random(1), tmp_path / "scores.jsonl"
    rows = [{"model": m, "row_key": f"p{n}", "cer": c + draw.random() / 50} for n in range(25) for m, c in
            (("good", 0.01), ("bad", 0.3), ("same", 0.011))]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows + [{"model": "good", "row_key": "extra", "cer": 0.0}])))
    said = told(capsys, "--mode", "pointwise", "--pointwise", path, "--metric", "cer", "--lower-is-better")
    assert [row["tier"] for row in said["leaderboard"]] == [1, 1, 2] and said["leaderboard"][2]["model"] == "bad"
    assert all(row["low"] <= row["mean"] <= row["high"] for row in said["leaderboard"])
    for metric in ("nothere", "model"):
        with pytest.raises(elo.Stop):
            run("--mode", "pointwise", "--pointwise", path, "--metric", metric)


def test_agreement_counts_soft_and_hard_apart():
    first = jury_verdicts(series("ab", ["A"] * 15))
    assert elo.agreement(first, first) | {"hard_high": 0} == {
        "n": 15, "agreement": 1, "soft": 0, "hard": 0, "hard_low": 0, "hard_high": 0, "kappa": None}  # fmt: skip
    assert elo.agreement(first, first)["hard_high"] == pytest.approx(0.218, abs=0.001), "15 votes prove little"
    other = jury_verdicts(series("ab", ["A"] * 5 + ["tie"] * 5 + ["B"] * 5, judge="h"))
    found = elo.agreement(first, other)
    assert (found["soft"], found["hard"], found["agreement"]) == (5, 5, pytest.approx(1 / 3, abs=1e-4))


def test_the_board_goes_to_the_hub_with_the_votes_that_are_there(results, judged, tmp_path, capsys):  # noqa: F811
    push_votes("user/board", series("ab", ["A", "B"] * 15, "hub-"), [])
    with pytest.raises(elo.Stop, match="No votes"):
        run(tmp_path)
    said = told(capsys, judged, "--push", "user/board")
    assert said["votes"] == 180 * 2 + 90 + 30
    api = results.api()
    files = {file.rfilename for file in api.dataset_info("user/board").siblings}
    assert {"leaderboard/train.parquet", "pairs/train.parquet", "verdicts/train.parquet"} < files
    card = api.hf_hub_download("user/board", "README.md", repo_type="dataset")
    text = open(card).read()
    assert "OCR leaderboard" in text and "default: true" in text and "comparisons/*.parquet" in text
    run(judged, "--push", "user/board", "--title", "Again")
    assert (
        open(api.hf_hub_download("user/board", "README.md", repo_type="dataset")).read().count("ocr-bench begins") == 1
    )
