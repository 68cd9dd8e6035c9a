"""Judging and ranking on simulated judges: is what the votes say what is true, and are the intervals honest?

    python benchmarks/judges.py            every experiment; a few minutes on one core
    python benchmarks/judges.py --runs 50  a quick look

Models have known strengths; every page favours some of them at random (a page effect for each model, SD 1 logit), and
every judge prefers what it is shown first: 60 to 40 between equals. Votes go the way of the tools: `Balance` decides
the order, `jury_verdicts` counts, `rank_boards` rates. The truth is the rating of infinitely many pages. The last line
on stdout is one JSON object.
"""

import argparse
import json
import math
import platform
import random
import sys
import time
from itertools import combinations, product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kit.ranking import POINTS, fit_strengths, rank_boards, sequential_elo  # noqa: E402
from kit.votes import SWAPPED, Balance, decide, judge_report, jury_verdicts, make_vote  # noqa: E402

BIAS = math.log(0.6 / 0.4)  # logits for what is shown first: 60 to 40 between equals
STRENGTHS = {"m1": 0.9, "m2": 0.5, "m3": 0.0, "m4": -0.4, "m5": -1.0}  # logits


def simulate(strengths, pages, draw, orders="balanced", judges=1, page_effect=1.0, tie=0.1, bias=BIAS, seed=0):
    """Votes on all pairs of all pages. `draw` is a `random.Random`; `tie` the share of votes that are ties."""
    votes, balance = [], Balance(orders, seed)
    for number in range(pages):
        key = f"page-{number}"
        shown = {name: value + draw.gauss(0, page_effect) for name, value in strengths.items()}
        for a, b in combinations(sorted(strengths), 2):
            for order in balance.take(key, a, b):
                for judge in range(judges):
                    gap = (shown[a] - shown[b]) * (1 if order == "ab" else -1) + bias
                    label = "tie" if draw.random() < tie else "A" if draw.random() < sigmoid(gap) else "B"
                    outputs = ({"name": name, "text": f"{name} read {key}"} for name in (a, b))
                    votes.append(decide(make_vote(key, *outputs, f"judge-{judge}", order), label))
    return votes


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def truth(strengths, page_effect=1.0, bias=BIAS, judges=1, tie=0.1):
    """The ratings in Elo points that infinitely many pages in balanced order would give (mean 0)."""
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    names = sorted(strengths)
    wins = np.zeros((len(names), len(names)))
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if i != j:
                gaps = strengths[a] - strengths[b] + math.sqrt(2) * page_effect * nodes
                score = sum(jury_score(1 / (1 + np.exp(-gaps + first)), judges, tie) for first in (bias, -bias)) / 2
                wins[i, j] = (score * weights).sum() / weights.sum()
    return dict(zip(names, POINTS * fit_strengths(wins[None])[0], strict=True))


def jury_score(chance, judges, tie):
    """The expected score of a majority of independent judges who win with `chance` where they do not tie."""
    total = 0
    for said in product((1, 0, 0.5), repeat=judges):
        counts = [said.count(value) for value in (1, 0, 0.5)]
        top = [value for value, count in zip((1, 0, 0.5), counts, strict=True) if count == max(counts)]
        share = ((1 - tie) * chance) ** counts[0] * ((1 - tie) * (1 - chance)) ** counts[1] * tie ** counts[2]
        total = total + share * (top[0] if len(top) == 1 else 0.5)
    return total


def boards_of(votes, bootstrap, **settings):
    boards = rank_boards(jury_verdicts(votes), bootstrap=bootstrap, **settings)
    assert len(boards) == 1
    return boards[0]


def coverage(runs, bootstrap, pages, orders, judges, strengths=STRENGTHS):
    """How often the 95 % intervals hold the truth, of ratings and of differences, and how often the order is right."""
    real, hits, gap_hits, total, gaps, right = truth(strengths, judges=judges), 0, 0, 0, 0, 0
    false_tiers = 0
    for run in range(runs):
        board = boards_of(simulate(strengths, pages, random.Random(run), orders, judges, seed=run), bootstrap, seed=run)
        for row in board["leaderboard"]:
            total += 1
            hits += row["elo"] is not None and row["elo_low"] <= 1500 + real[row["model"]] <= row["elo_high"]
        for pair in board["pairs"]:
            gaps += 1
            gap = real[pair["model_a"]] - real[pair["model_b"]]
            gap_hits += pair["diff_low"] is not None and pair["diff_low"] <= gap <= pair["diff_high"]
        found = [row["model"] for row in board["leaderboard"]]
        right += found == sorted(real, key=lambda name: -real[name])
        false_tiers += any(
            real[low] > real[high] + 1e-9
            for upper, lower in combinations(board["tiers"], 2)
            for high in upper
            for low in lower
        )
    return {
        "pages": pages, "orders": orders, "judges": judges, "runs": runs,
        "coverage_ratings": round(hits / total, 4), "coverage_differences": round(gap_hits / gaps, 4),
        "order_right": round(right / runs, 3), "a_tier_in_the_wrong_order": round(false_tiers / runs, 3),
    }  # fmt: skip


def equal_models(runs, bootstrap, pages=200, orders="balanced"):
    """Four models of one strength under a biased judge: the mean rating of each, and what tiers claim."""
    equal = dict.fromkeys(("m1", "m2", "m3", "m4"), 0.0)
    sums, one_tier, largest, fairness, tie_rates = dict.fromkeys(equal, 0.0), 0, 0.0, 0.0, 0.0
    for run in range(runs):
        votes = simulate(equal, pages, random.Random(run), orders, page_effect=0.0, seed=run)
        board = boards_of(votes, bootstrap, seed=run)
        for row in board["leaderboard"]:
            sums[row["model"]] += row["elo"] - 1500
            largest = max(largest, abs(row["elo"] - 1500))
        one_tier += len(board["tiers"]) == 1
        report = judge_report(votes)["judge-0"]
        fairness, tie_rates = fairness + report["fairness"], tie_rates + report["tie_rate"]
    return {
        "pages": pages, "orders": orders, "runs": runs,
        "mean_ratings": {name: round(value / runs, 2) for name, value in sums.items()},
        "largest_rating_of_one_run": round(largest, 1), "one_tier": round(one_tier / runs, 3),
        "fairness_seen": round(fairness / runs, 3), "tie_rate": round(tie_rates / runs, 3),
    }  # fmt: skip


def clear_statements():
    """What is said where the votes have no number: ten wins to none, and two groups that never met."""

    def votes(pair, results):
        a, b = ({"name": name, "text": name} for name in pair)
        for number, label in enumerate(results):
            vote = make_vote(f"{pair}-{number}", a, b, "judge", "ab" if number % 2 else "ba")
            yield decide(vote, label if vote["order"] == "ab" else SWAPPED[label])

    ten = [*votes(("a", "b"), ["A"] * 10), *votes(("b", "c"), ["A", "B", "A", "B", "A"])]
    apart = [*votes(("a", "b"), "ABAAB"), *votes(("c", "d"), "ABBBA")]
    said = {}
    for name, cast in (("ten_to_none", ten), ("disconnected", apart)):
        boards = rank_boards(jury_verdicts(cast), bootstrap=100, min_pages=1)
        rows = [row for board in boards for row in board["leaderboard"]]
        said[name] = {
            "boards": len(boards),
            "elo": {row["model"]: row["elo"] and round(row["elo"]) for row in rows},
            "statements": sorted({sentence for board in boards for sentence in board["statements"]}),
        }
    return said


def order_dependence(pages=100):
    """How far sequential Elo moves when the same votes are read in another order."""
    verdicts = jury_verdicts(simulate(STRENGTHS, pages, random.Random(1)))
    ratings = sequential_elo(verdicts)
    return {"verdicts": len(verdicts), "mean_sd_points": round(sum(sd for _, sd in ratings.values()) / len(ratings), 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="simulations for each experiment (default 400)")
    parser.add_argument("--bootstrap", type=int, default=400, help="resamples of the pages (default 400)")
    options = parser.parse_args()
    import numpy
    import scipy

    started, said = time.monotonic(), {}
    experiments = {
        "equal": lambda: equal_models(options.runs, options.bootstrap),
        "equal_both_orders": lambda: equal_models(options.runs, options.bootstrap, 100, "both"),
        "coverage_50": lambda: coverage(options.runs, options.bootstrap, 50, "balanced", 1),
        "coverage_100": lambda: coverage(options.runs, options.bootstrap, 100, "balanced", 1),
        "coverage_50_both": lambda: coverage(options.runs, options.bootstrap, 50, "both", 1),
        "coverage_50_jury": lambda: coverage(options.runs // 2, options.bootstrap, 50, "balanced", 3),
        "statements": clear_statements,
        "sequential_elo": order_dependence,
    }
    for name, experiment in experiments.items():
        said[name] = experiment()
        print(f"{name}: {json.dumps(said[name])}", flush=True)
    versions = {"python": platform.python_version(), "numpy": numpy.__version__, "scipy": scipy.__version__}
    print(json.dumps({"benchmark": "judges", **said, "seconds": round(time.monotonic() - started), **versions}))


if __name__ == "__main__":
    main()
