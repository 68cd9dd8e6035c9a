# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "huggingface_hub>=2.4.0",
#     "pyarrow>=18",
#     "numpy>=1.26",
#     "scipy>=1.11",
# ]
#
# [tool.hf-jobs]
# flavor = "cpu-basic"
# timeout = "1h"
# secrets = ["HF_TOKEN"]
# ///
"""Leaderboard from stored votes: ratings with intervals, tiers, pairs, and what the votes cannot say.

    uv run ocr/ocr-elo-bench.py judged-scans --html leaderboard.html
    uv run ocr/ocr-elo-bench.py user/bench-results --from-prs --push user/bench-results
    uv run ocr/ocr-elo-bench.py --mode pointwise --pointwise scores.jsonl --metric cer --lower-is-better

SOURCE is a folder of votes (what ocr-jury-bench.py, ocr-vllm-judge.py and ocr-human-eval.py write), a .jsonl or
.parquet file, or a results dataset on the Hub; several are read as one. No model is called.

Ratings are Bradley-Terry on the Elo scale (1500 is the mean); intervals come from drawing the pages anew. Models in one
tier cannot be told apart from its best by these votes. A model that won or lost everything gets no number, and models
that no vote links get no common ranking. Failed pages are left out and shown as coverage; a second ranking counts them
as losses. `--method elo` is the sequential rating of old tables, for comparison only: it depends on the order of votes.
"""

import argparse
import csv
import html
import json
import math
import re
import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

# >>> shared imports
# isort: split
import contextlib
import hashlib
import io
import os
import random
import secrets
import shutil
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NamedTuple

# <<< shared imports

SENSITIVITY_DRAWS = 50  # resamples where only the order of the models is looked at


def parser_of_options():
    parser = argparse.ArgumentParser(
        prog="ocr-elo-bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", nargs="*", help="folder, file or results dataset with votes")
    add("--from-prs", action="store_true", help="also votes in open pull requests of a results dataset")
    add("--mode", choices=["pairwise", "pointwise", "both"], default="pairwise", help="votes, scores of pages, or both")
    add("--pointwise", metavar="FILE", help="table with model, row_key and a score: .jsonl, .json, .csv, .parquet")
    add("--metric", default="score", help="column of that table (default score)")
    add("--lower-is-better", action="store_true", help="of that column, as for error rates")
    add("--method", choices=["bt", "elo"], default="bt", help="bt, or the sequential Elo of old tables")
    add("--tie-model", choices=["half", "davidson"], default="half", help="a tie is half a win, or has its own chance")
    add("--jury", choices=["majority", "votes"], default="majority", help="how several judges become one verdict")
    add("--prior", type=float, default=0.5, help="weight of a virtual tie of every pair compared (default 0.5)")
    add("--cluster", default="row_key", metavar="COLUMN", help="what is drawn anew: the page, or a column such as book")
    add("--bootstrap", type=int, default=1000, help="resamples (default 1000)")
    add("--ci", type=float, default=0.95, help="level of the intervals (default 0.95)")
    add("--min-pages", type=int, default=20, help="give no ranks below so many pages (default 20)")
    add("--judges", metavar="LIST", help="count these judges only, by commas (default: all but humans)")
    add("--orders", choices=["all", "consistent"], default="all", help="only pairs with one verdict in both orders")
    add("--models", metavar="LIST", help="these models only, by commas")
    add("--exclude-auto-ties", action="store_true", help="leave out pairs with equal texts")
    add(
        "--failures", choices=["exclude", "lose"], default="exclude", help="what a page is to a model that failed on it"
    )
    add("--by", metavar="COLUMN", help="a board for every value of a column of the pages too, e.g. language")
    add("--prompt", metavar="HASH", help="votes by this prompt only, where several were used")
    add("--mix", action="store_true", help="count votes by different prompts together")
    add("--compare", metavar="SOURCE", help="another leaderboard.json, folder or dataset: how far the order differs")
    add("--format", choices=["table", "md", "json"], default="table", help="what is printed (default table)")
    add("--out", metavar="DIR", help="write leaderboard.json, leaderboard.md and tables there")
    add("--html", metavar="FILE", help="write one static page that opens offline")
    add("--push", metavar="REPO", help="put the board into this results dataset, whose votes are counted too")
    add("--create-pr", action="store_true", help="as a pull request")
    add("--title", default="OCR leaderboard", help="title of the page and the card")
    add("--seed", type=int, default=42, help="seed of the resampling (default 42)")
    return parser


# ---- Reading and choosing votes


def gather(options):
    """(votes, run records) of all sources, the same vote once. Raises Stop."""
    from huggingface_hub import HfApi

    sources = list(options.source)
    if options.push and options.push not in sources:
        if persist(lambda: HfApi().repo_exists(options.push, repo_type="dataset")):
            sources.append(options.push)  # its board must not lose votes that are only there
    votes, runs = [], {}
    for source in sources:
        found, described = read_votes(source, options.from_prs)
        say(f"{source}: {len(found):,} votes")
        votes += found
        runs |= {run["run_id"]: json.loads(run["record"]) for run in described}
    return last_of_each(votes), list(runs.values())


def choose(votes, options):
    """The votes that the options ask for. Raises Stop where different questions would be mixed."""
    if options.models:
        wanted = set(options.models.split(","))
        seen = {vote[side] for vote in votes for side in ("model_a", "model_b")}
        if unknown := sorted(wanted - seen):
            raise Stop(f"--models: no votes on {', '.join(unknown)}. There are {', '.join(sorted(seen))}.")
        votes = [vote for vote in votes if vote["model_a"] in wanted and vote["model_b"] in wanted]
    if options.exclude_auto_ties:
        votes = [vote for vote in votes if not vote["auto"]]
    hashes = Counter(vote["prompt_hash"] or "" for vote in votes if not is_human(vote["judge"]))
    if options.prompt:
        votes = [vote for vote in votes if vote["prompt_hash"] == options.prompt or is_human(vote["judge"])]
    elif len(hashes) > 1 and not options.mix:
        said = ", ".join(f"{count} by {name or 'an unknown prompt'}" for name, count in hashes.most_common())
        raise Stop(
            f"These votes answer different questions: {said}. Criteria, text or image differed. "
            f"Choose one, --prompt {hashes.most_common(1)[0][0]}, or count them together, --mix."
        )
    if options.orders == "consistent":
        said = defaultdict(lambda: defaultdict(set))
        for vote in valid_votes(votes):
            said[vote["pair_id"], vote["judge"]][vote["order"]].add(vote["winner"])
        firm = {key for key, orders in said.items() if len(orders) == 2 and len(set().union(*orders.values())) == 1}
        votes = [vote for vote in votes if vote["auto"] or (vote["pair_id"], vote["judge"]) in firm]
    return votes


def jury_of(votes, options):
    """The judges that count, sorted. Raises Stop for a name that has cast no vote."""
    there = sorted({vote["judge"] for vote in votes if not vote["auto"]})
    if not options.judges:
        machines = [judge for judge in there if not is_human(judge)]
        return machines or there
    wanted = there if options.judges == "all" else options.judges.split(",")
    if unknown := [judge for judge in wanted if judge not in there]:
        raise Stop(f"--judges: no votes by {', '.join(unknown)}. There are {', '.join(there)}.")
    return sorted(wanted)


def failures_of(runs):
    """({model: pages attempted}, {model: pages failed}) of all runs that describe themselves."""
    attempted, failed = defaultdict(set), defaultdict(set)
    for run in runs:
        for one in run.get("contestants", ()):
            attempted[one["name"]] |= set(run["pages"])
            failed[one["name"]] |= set(one["failed"])
    return attempted, failed


def lost_by_failure(verdicts, attempted, failed):
    """Verdicts for the pages on which one of two models failed: the other wins."""
    judged = {(verdict["row_key"], verdict["model_a"], verdict["model_b"]) for verdict in verdicts}
    added = []
    for a, b in combinations(sorted(attempted), 2):
        for key in sorted(attempted[a] & attempted[b]):
            if (key in failed[a]) != (key in failed[b]) and (key, a, b) not in judged:
                winner = "B" if key in failed[a] else "A"
                added.append({
                    "row_key": key, "model_a": a, "model_b": b, "pair_id": None, "facts": None, "auto": "failure",
                    "judges": 0, "winner": winner, "score": float(winner == "A"), "agreement": "auto",
                })  # fmt: skip
    return sorted([*verdicts, *added], key=lambda verdict: (verdict["row_key"], verdict["model_a"], verdict["model_b"]))


def fact_of(verdict, column):
    return str(json.loads(verdict["facts"] or "{}").get(column))


def cluster_by(verdicts, column):
    """What resampling draws together, as a function of a verdict. Raises Stop where the pages have no such column."""
    if column == "row_key":
        return lambda verdict: verdict["row_key"]
    if not any(column in json.loads(verdict["facts"] or "{}") for verdict in verdicts):
        known = sorted({name for verdict in verdicts for name in json.loads(verdict["facts"] or "{}")})
        raise Stop(f"The pages have no column {column}. They have {', '.join(known) or 'none'}.")
    return lambda verdict: fact_of(verdict, column)


# ---- Reports


def pairwise_report(options):
    """Everything that votes say, as one JSON-able dict."""
    votes, runs = gather(options)
    votes = choose(votes, options)
    if not votes:
        raise Stop("No votes. Name a folder or dataset that a judge has written to.")
    jury = jury_of(votes, options)
    verdicts = jury_verdicts(votes, jury, method=options.jury)
    attempted, failed = failures_of(runs)
    with_failures = lost_by_failure(verdicts, attempted, failed)
    if options.failures == "lose" and not attempted:
        raise Stop("--failures lose: these votes come without the description of a run, so failures are not known.")
    main = with_failures if options.failures == "lose" else verdicts
    if not any(verdict["score"] is not None for verdict in main):
        raise Stop(f"None of {len(votes)} votes can be counted: {dict(Counter(v['parse_status'] for v in votes))}.")
    settings = {
        "prior": options.prior, "bootstrap": options.bootstrap, "ci": options.ci, "seed": options.seed,
        "cluster": cluster_by(main, options.cluster), "min_pages": options.min_pages, "tie_model": options.tie_model,
    }  # fmt: skip
    boards = rank_boards(main, **settings)
    add_coverage(boards, attempted, failed)
    quick = settings | {"bootstrap": SENSITIVITY_DRAWS}
    report = {
        "boards": boards, "jury": jury, "judges": judge_report([v for v in votes if v["judge"] in jury]),
        "between_judges": between_judges(votes, jury), "votes": len(votes), "failures": options.failures,
        "verdicts": len(main), "unresolved": sum(verdict["score"] is None for verdict in main),
        "automatic": sum(verdict["auto"] is not None for verdict in main), "prior": options.prior, "ci": options.ci,
        "never_judged": sorted(set(attempted) - {model for board in boards for model in board["models"]}),
        "sensitivity": sensitivity(boards, votes, jury, main, quick, options), "runs": [brief(run) for run in runs],
    }  # fmt: skip
    if len(with_failures) > len(verdicts):
        other = verdicts if options.failures == "lose" else with_failures
        name = "failures_excluded" if options.failures == "lose" else "failures_count_as_losses"
        report[name] = [ranking_of(board) for board in rank_boards(other, **quick)]
    if options.by:
        cluster_by(main, options.by)
        values = sorted({fact_of(verdict, options.by) for verdict in main})
        report["by"] = {
            "column": options.by,
            "boards": {v: rank_boards([d for d in main if fact_of(d, options.by) == v], **settings) for v in values},
        }
    humans = [vote for vote in votes if is_human(vote["judge"])]
    if humans and not any(is_human(judge) for judge in jury):
        by_human = jury_verdicts(humans)
        report["humans"] = agreement(verdicts, by_human) | {
            "votes": len(humans), "order": [ranking_of(board) for board in rank_boards(by_human, **quick)],
        }  # fmt: skip
    if options.method == "elo":
        say("Sequential Elo depends on the order of the votes: averages over 200 random orders, no result to publish.")
        report["sequential_elo"] = {
            model: {"elo": round(mean, 1), "sd_over_orders": round(deviation, 1)}
            for model, (mean, deviation) in sequential_elo(main, seed=options.seed).items()
        }
    return report, main


def brief(run):
    """A run's record without the lists of pages."""
    kept = {key: value for key, value in run.items() if key != "pages"} | {"n_pages": len(run.get("pages", ()))}
    kept["contestants"] = [{**one, "failed": len(one.get("failed", ()))} for one in run.get("contestants", ())]
    return kept


def add_coverage(boards, attempted, failed):
    """Adds coverage, failed_outputs and status (ranked, degraded, unbounded, insufficient) to the leaderboard rows."""
    for board in boards:
        for row in board["leaderboard"]:
            pages, bad = len(attempted.get(row["model"], ())), len(failed.get(row["model"], ()))
            row["coverage"] = round(1 - bad / pages, 4) if pages else None
            row["failed_outputs"] = bad if pages else None
            row["status"] = (
                "insufficient" if row["rank"] is None else "unbounded" if row["elo"] is None
                else "degraded" if bad else "ranked"
            )  # fmt: skip


def ranking_of(board):
    return [row["model"] for row in board["leaderboard"]]


def kendall(first, second):
    """Kendall's tau of two orders over the models that both have; None with fewer than two."""
    common = [model for model in first if model in second]
    pairs = list(combinations(common, 2))
    agree = sum(second.index(a) < second.index(b) for a, b in pairs)
    return round((2 * agree - len(pairs)) / len(pairs), 4) if pairs else None


def sensitivity(boards, votes, jury, verdicts, settings, options):
    """Kendall's tau between the main order and that under other assumptions, for the largest board."""
    main = ranking_of(boards[0])

    def tau(other, **changes):
        others = rank_boards(other, **(settings | changes))
        return kendall(main, ranking_of(others[0])) if others else None

    told = {f"prior {prior}": tau(verdicts, prior=prior) for prior in (0.1, 0.5, 1.0)}
    told["ties half"] = tau(verdicts, tie_model="half")
    told["ties davidson"] = tau(verdicts, tie_model="davidson")
    told["without automatic ties"] = tau([v for v in verdicts if v["auto"] not in ("identical", "both_blank")])
    for judge in jury if len(jury) > 1 else ():
        rest = [other for other in jury if other != judge]
        told[f"without {judge}"] = tau(jury_verdicts(votes, rest, method=options.jury))
    return told


def between_judges(votes, jury):
    """Agreement of every two judges on the pairs that both decided."""
    alone = {judge: jury_verdicts([v for v in votes if v["judge"] == judge and not v["auto"]]) for judge in jury}
    return [{"a": a, "b": b, **agreement(alone[a], alone[b])} for a, b in combinations(jury, 2)]


def agreement(first, second):
    """How two raters agree on the pairs that both decided: share, soft and hard disagreement, Cohen's kappa.

    Hard is opposite winners, with its exact (Clopper-Pearson) interval; soft is a tie on one side only. kappa is None
    where both always say the same word.
    """
    from scipy.special import betaincinv

    labels = [
        {v["pair_id"]: v["winner"] for v in side if v["winner"] and v["agreement"] != "auto"}
        for side in (first, second)
    ]
    both = [(labels[0][pair], labels[1][pair]) for pair in labels[0] if pair in labels[1]]
    count = len(both)
    if not count:
        return {"n": 0}
    same, hard = sum(a == b for a, b in both), sum({a, b} == {"A", "B"} for a, b in both)
    shares = [Counter(side) for side in zip(*both, strict=True)]
    chance = sum(shares[0][label] * shares[1][label] for label in LABELS) / count**2
    return {
        "n": count, "agreement": round(same / count, 4), "soft": count - same - hard, "hard": hard,
        "hard_low": round(float(betaincinv(hard, count - hard + 1, 0.025)), 4) if hard else 0.0,
        "hard_high": round(float(betaincinv(hard + 1, count - hard, 0.975)), 4) if hard < count else 1.0,
        "kappa": round((same / count - chance) / (1 - chance), 4) if chance < 1 else None,
    }  # fmt: skip


def compared(report, source, options):
    """The order of another board beside ours, and Kendall's tau."""
    path = Path(source).expanduser()
    if path.suffix == ".json" and path.is_file():
        boards = json.loads(path.read_text())["boards"]
    else:
        votes, _ = read_votes(source, options.from_prs)
        boards = rank_boards(jury_verdicts(choose(votes, options)), options.prior, SENSITIVITY_DRAWS)
    if not boards:
        raise Stop(f"--compare {source}: no votes that can be counted.")
    mine, other = ranking_of(report["boards"][0]), ranking_of(boards[0])
    moved = {model: other.index(model) - mine.index(model) for model in mine if model in other}
    return {"source": str(source), "order": other, "kendall_tau": kendall(mine, other), "moved": moved}


# ---- Scores of pages


def read_scores(path, metric):
    """{model: {page: score}} of a table with model, a page (row_key, key, page or id) and the metric. Raises Stop."""
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            rows = parquet_rows(path.read_bytes(), path)
        elif path.suffix == ".csv":
            with open(path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        else:
            rows = list(jsonl_rows(path)) if path.suffix == ".jsonl" else parse_json(path.read_text())
            rows = rows.get("pages", []) if isinstance(rows, dict) else rows
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError("no list of rows, each with model, page and score")
    except (OSError, ValueError) as error:
        raise Stop(f"--pointwise {path} cannot be read: {first_line(error)}.") from error
    scores, wrong = defaultdict(dict), []
    for number, row in enumerate(rows, 1):
        page = next((row[name] for name in ("row_key", "key", "page", "id") if row.get(name) not in (None, "")), None)
        value = row.get(metric)
        if value in (None, ""):  # this page has no such score
            continue
        try:
            value = float(value)
        except (TypeError, ValueError):
            value = math.nan
        if not row.get("model") or page is None or not math.isfinite(value) or page in scores[row["model"]]:
            wrong.append(f"row {number}: model {row.get('model')}, page {page}, {metric} {row.get(metric)!r}")
            continue
        scores[row["model"]][str(page)] = value
    if wrong:
        raise Stop(f"{path} has rows that cannot be used, or twice: {'; '.join(wrong[:5])}.")
    if not scores:
        known = sorted({name for row in rows for name in row})
        raise Stop(f"{path} has no {metric}. Name a column, --metric NAME: {', '.join(known) or 'it is empty'}.")
    return dict(scores)


def pointwise_report(options):
    """Means over the pages that all models have a score for, with page-wise bootstrap intervals and tiers."""
    import numpy as np

    if not options.pointwise:
        raise Stop(f"--mode {options.mode} needs the scores of the pages: --pointwise FILE.")
    scores = read_scores(options.pointwise, options.metric)
    models, sign = sorted(scores), -1 if options.lower_is_better else 1
    pages = sorted(set.intersection(*(set(of_model) for of_model in scores.values())))
    if not pages:
        raise Stop(f"{options.pointwise}: no page has a score of every model.")
    table = np.array([[scores[model][page] for model in models] for page in pages])
    weights = np.random.default_rng(options.seed).multinomial(len(pages), [1 / len(pages)] * len(pages),
                                                              size=options.bootstrap)  # fmt: skip
    draws, means = weights @ table / len(pages), table.mean(axis=0)
    low, high = interval_levels(options.ci, len(pages))
    order = sorted(range(len(models)), key=lambda i: (-sign * means[i], models[i]))
    tiers = tier_numbers(order, sign * means, sign * draws, options.ci, len(pages))
    ranked = len(pages) >= options.min_pages
    rows = [
        plain_numbers({
            "model": models[i], "rank": rank if ranked else None, "tier": tiers[i] if ranked else None,
            "mean": means[i], "low": np.quantile(draws[:, i], low), "high": np.quantile(draws[:, i], high),
            "n_pages": len(scores[models[i]]),
        })
        for rank, i in enumerate(order, 1)
    ]  # fmt: skip
    left = {model: len(of_model) - len(pages) for model, of_model in scores.items() if len(of_model) > len(pages)}
    statements = [] if ranked else [f"Only {len(pages)} pages: no ranks are given (--min-pages {options.min_pages})."]
    statements += [f"{n} pages of {model} are left out: other models have no score there." for model, n in left.items()]
    return {"metric": options.metric, "lower_is_better": options.lower_is_better, "pages": len(pages),
            "leaderboard": rows, "statements": statements}  # fmt: skip


# ---- Writing it down


BOARD_HEAD = ["Tier", "Ranks", "Model", "Elo", "95 % interval", "P(best)", "Won", "W-L-T", "Pages", "Coverage"]


def board_cells(row, ci=0.95):
    """The cells of one leaderboard row as text; a model without a finite rating has no number in any of them."""
    elo = f"{row['elo']:.0f}" if row["elo"] is not None else "none"
    ends = f"{row['elo_low']:.0f} to {row['elo_high']:.0f}" if row["elo"] is not None else "see below"
    ranks = "-" if not row["rank"] else f"{row['rank_low']}-{row['rank_high']}"
    best = "-" if row["p_best"] is None else f"{row['p_best']:.0%}"
    coverage = "-" if row.get("coverage") is None else f"{row['coverage']:.1%}"
    return [str(row["tier"] or "-"), ranks, row["model"], elo, ends, best, f"{row['win_rate']:.0%}",
            f"{row['wins']}-{row['losses']}-{row['ties']}", str(row["n_pages"]), coverage]  # fmt: skip


def pair_cells(pair):
    rate = f"{pair['win_rate_a']:.0%} ({pair['ci_low']:.0%} to {pair['ci_high']:.0%})"
    gap = (
        "none"
        if pair["elo_diff"] is None
        else f"{pair['elo_diff']:.0f} ({pair['diff_low']:.0f} to {pair['diff_high']:.0f})"
    )
    said = pair["statement"] or ("told apart" if pair["resolved"] else "cannot be told apart")
    return [pair["model_a"], pair["model_b"], str(pair["n"]), rate, gap, said]


PAIR_HEAD = ["Better", "Other", "Pages", "Won (interval)", "Elo difference (interval)", ""]


def heads(report):
    """BOARD_HEAD with the level of this report's intervals."""
    return [name.replace("95", f"{report['ci'] * 100:g}") for name in BOARD_HEAD]


def markdown_table(head, rows):
    def line(cells):
        return "| " + " | ".join(re.sub(r"([|\\`*_<>\[\]])", r"\\\1", str(cell)) for cell in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *map(line, rows)])


def markdown_report(report, title):
    """The report as Markdown, for the card and leaderboard.md."""
    parts = [f"## {title}", ""]
    for board in report.get("boards", ()):
        parts += [markdown_table(heads(report), map(board_cells, board["leaderboard"])), ""]
        parts += [f"- {said}" for said in board["statements"]] + [""] * bool(board["statements"])
        parts += ["Pairs:", "", markdown_table(PAIR_HEAD, map(pair_cells, board["pairs"])), ""]
    if report.get("never_judged"):
        parts += [f"Not rated, because no output could be judged: {', '.join(report['never_judged'])}.", ""]
    if told := report.get("pointwise"):
        rows = [[r["tier"] or "-", r["model"], f"{r['mean']:.4g}", f"{r['low']:.4g} to {r['high']:.4g}", r["n_pages"]]
                for r in told["leaderboard"]]  # fmt: skip
        parts += [f"{told['metric']}, mean of {told['pages']} pages:", ""]
        parts += [markdown_table(["Tier", "Model", "Mean", "Interval", "Pages"], rows), ""]
        parts += [f"- {said}" for said in told["statements"]]
    if "boards" in report:
        parts += [method_text(report)]
    return "\n".join(parts)


def method_text(report):
    judges = "; ".join(
        f"{judge}: {told['votes']} votes, ties {percent(told['tie_rate'])}, same verdict in both orders "
        f"{percent(told['consistency'])}, surplus of what stood first {percent(told['fairness'])}, not countable "
        f"{percent(told['invalid_rate'])}"
        for judge, told in report["judges"].items()
    )
    return (
        f"{report['verdicts']} verdicts ({report['automatic']} without a judge, {report['unresolved']} open) from "
        f"{report['votes']} votes. Bradley-Terry, ties half, a virtual tie of weight {report['prior']} for every pair; "
        f"intervals ({report['ci']:.0%}) from drawing the pages anew. Models of one tier cannot be told apart from its "
        f"best, all pairs taken together. Pages on which a model failed "
        + ("count as lost." if report["failures"] == "lose" else "are left out: see coverage.")
        + f" Judges: {judges or 'none'}."
    )


def percent(share):
    return "-" if share is None else f"{share:.1%}"


STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #2a78c5; --good: 34 139 80; --bad: 200 70 50 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto } th, td { padding: .35rem .6rem; text-align: left; border-bottom: 1px solid var(--line) }
th { font-weight: 600 } tr.head td { border-top: 2px solid currentColor } td.bar { width: 22rem; min-width: 12rem }
svg { display: block; width: 100%; height: 1.1rem } .said { border-left: 4px solid var(--bar); padding: .3rem .8rem }
.heat td { text-align: center; min-width: 3.5rem } small, details { opacity: .85 }
"""


def html_page(report, title):
    """One static page without scripts or outside resources; every text in it is escaped."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for board in report.get("boards", ()):
        parts += [f'<p class="said">{html.escape(said)}</p>' for said in board["statements"]]
        parts += [html_board(board, report), html_heat(board)]
        parts.append("<details><summary>All pairs</summary>" + html_table(PAIR_HEAD, map(pair_cells, board["pairs"]))
                     + "</details>")  # fmt: skip
    if report.get("never_judged"):
        parts.append(f"<p>Not rated, no output could be judged: {html.escape(', '.join(report['never_judged']))}.</p>")
    if told := report.get("pointwise"):
        rows = [[r["tier"] or "-", r["model"], f"{r['mean']:.4g}", f"{r['low']:.4g} to {r['high']:.4g}", r["n_pages"]]
                for r in told["leaderboard"]]  # fmt: skip
        parts.append(f"<h2>{html.escape(told['metric'])}, mean of {told['pages']} pages</h2>")
        parts.append(html_table(["Tier", "Model", "Mean", "Interval", "Pages"], rows))
        parts += [f'<p class="said">{html.escape(said)}</p>' for said in told["statements"]]
    for value, boards in report.get("by", {}).get("boards", {}).items():
        parts.append(f"<h2>{html.escape(report['by']['column'])}: {html.escape(value)}</h2>")
        parts += [html_table(heads(report), map(board_cells, board["leaderboard"])) for board in boards]
    if "boards" in report:
        parts.append(f"<h2>Method</h2><p>{html.escape(method_text(report))}</p>")
        rows = [[name, "-" if tau is None else f"{tau:.2f}"] for name, tau in report["sensitivity"].items()]
        parts.append(html_table(["Under another assumption", "Kendall's tau with this order"], rows))
        runs = html.escape(json.dumps(report["runs"], indent=1, ensure_ascii=False, default=str))
        parts.append(f"<details><summary>Where the votes come from</summary><pre>{runs}</pre></details>")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def html_table(head, rows):
    def cells(row, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) + "</tr>"

    return f'<div class="wide"><table>{cells(head, "th")}{"".join(cells(row, "td") for row in rows)}</table></div>'


def html_board(board, report):
    """The leaderboard with a drawing of each interval on one common scale."""
    rated = [row for row in board["leaderboard"] if row["elo"] is not None]
    left, right = (min(r["elo_low"] for r in rated), max(r["elo_high"] for r in rated)) if rated else (0, 1)
    rows, tier = [], None
    for row in board["leaderboard"]:
        drawing = ""
        if row["elo"] is not None:
            at = [100 * (row[name] - left) / max(right - left, 1) for name in ("elo_low", "elo", "elo_high")]
            drawing = (
                '<svg viewBox="0 0 100 10" preserveAspectRatio="none">'
                f'<rect x="{at[0]:.1f}" y="4" width="{max(at[2] - at[0], 0.5):.1f}" height="2" fill="var(--bar)"/>'
                f'<rect x="{max(at[1] - 0.4, 0):.1f}" y="1" width="0.8" height="8" fill="var(--bar)"/></svg>'
            )
        opens = ' class="head"' if row["tier"] != tier and tier is not None else ""
        tier = row["tier"]
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in board_cells(row))
        rows.append(f'<tr{opens}>{cells}<td class="bar">{drawing}</td></tr>')
    head = "".join(f"<th>{html.escape(name)}</th>" for name in [*heads(report), ""])
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def html_heat(board):
    """Win rates of the row's model against the column's."""
    names = ranking_of(board)
    rates = {}
    for pair in board["pairs"]:
        rates[pair["model_a"], pair["model_b"]] = pair["win_rate_a"]
        rates[pair["model_b"], pair["model_a"]] = 1 - pair["win_rate_a"]
    rows = []
    for a in names:
        cells = [f"<th>{html.escape(a)}</th>"]
        for b in names:
            rate = rates.get((a, b))
            colour = "" if rate is None else f"rgb(var(--{'good' if rate > 0.5 else 'bad'}) / {abs(rate - 0.5):.2f})"
            cells.append(f'<td style="background: {colour}">{"" if rate is None else f"{rate:.0%}"}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ["won against", *names])
    return f'<div class="wide"><table class="heat"><tr>{head}</tr>{"".join(rows)}</table></div>'


def leaderboard_rows(report):
    return [{"board": n, **row} for n, board in enumerate(report["boards"]) for row in board["leaderboard"]]


LEADERBOARD_FIELDS = {
    **dict.fromkeys(("board", "rank", "rank_low", "rank_high", "tier", "wins", "losses", "ties", "n_pages",
                     "n_comparisons", "failed_outputs"), "int64"),
    **dict.fromkeys(("model", "status"), "string"),
    **dict.fromkeys(("elo", "elo_low", "elo_high", "elo_with_prior", "p_best", "win_rate", "coverage"), "float64"),
}  # fmt: skip
PAIR_FIELDS = {
    **dict.fromkeys(("model_a", "model_b", "statement"), "string"),
    **dict.fromkeys(("n", "wins_a", "wins_b", "ties"), "int64"),
    **dict.fromkeys(("win_rate_a", "ci_low", "ci_high", "elo_diff", "diff_low", "diff_high"), "float64"),
    **dict.fromkeys(("resolved", "robust"), "bool_"),
}
VERDICT_FIELDS = {
    **dict.fromkeys(("row_key", "pair_id", "model_a", "model_b", "winner", "agreement", "auto", "facts"), "string"),
    "score": "float64",
    "judges": "int64",
}


def derived_tables(report, verdicts):
    """{config: parquet bytes} of what was computed from the votes."""
    pairs = [pair for board in report["boards"] for pair in board["pairs"]]
    return {
        "leaderboard": parquet_bytes(leaderboard_rows(report), LEADERBOARD_FIELDS),
        "pairs": parquet_bytes(pairs, PAIR_FIELDS),
        "verdicts": parquet_bytes(verdicts, VERDICT_FIELDS),
    }


def push_board(options, report, verdicts):
    """Replaces the computed tables and our section of the card in the results dataset; votes are not touched."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    tables = derived_tables(report, verdicts)

    def attempt():
        api.create_repo(options.push, repo_type="dataset", exist_ok=True)
        head = api.dataset_info(options.push)
        changes = [CommitOperationAdd(f"{name}/train.parquet", data) for name, data in tables.items()]
        there = {file.rfilename.split("/")[0] for file in head.siblings} & {"comparisons", "runs"}
        card = markdown_report(report, options.title)
        changes += results_card(api, options.push, head, [*tables, *sorted(there)], card, "leaderboard")
        done = api.create_commit(
            options.push, changes, repo_type="dataset", parent_commit=head.sha, create_pr=options.create_pr,
            commit_message=f"Leaderboard from {report['votes']} votes",
        )  # fmt: skip
        return done.pr_url or f"{api.endpoint}/datasets/{options.push}"

    try:
        return persist(attempt)
    except Exception as error:
        raise Stop(f"The board could not be put into {options.push}: {first_line(error)}.", code=1) from error


def run(options):
    if not options.source and options.mode != "pointwise" and not options.push:
        raise Stop("Name a folder, file or dataset with votes.")
    if not 0 < options.ci < 1 or options.prior <= 0 or options.bootstrap < 1:
        raise Stop("--ci lies between 0 and 1, and --prior and --bootstrap are above 0.")
    report, verdicts = {}, []
    if options.mode != "pointwise":
        report, verdicts = pairwise_report(options)
    if options.mode != "pairwise" or options.pointwise:
        report["pointwise"] = pointwise_report(options)
    if options.compare and "boards" in report:
        report["compare"] = compared(report, options.compare, options)
    told = {"tool": "ocr-elo-bench", **report}
    if options.out:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "leaderboard.json").write_text(json.dumps(told, indent=1, ensure_ascii=False), "utf-8")
        (folder / "leaderboard.md").write_text(markdown_report(report, options.title) + "\n", "utf-8")
        for name, data in (derived_tables(report, verdicts) if verdicts else {}).items():
            (folder / f"{name}.parquet").write_bytes(data)
        say(f"Written to {folder}.")
    if options.html:
        Path(options.html).write_text(html_page(report, options.title), "utf-8")
        say(f"Page: {options.html}")
    if options.push and verdicts:
        say(f"Leaderboard: {push_board(options, report, verdicts)}")
    if options.format == "md":
        print(markdown_report(report, options.title))
    elif options.format == "json":
        print(json.dumps(told, indent=1))
    else:
        say(leaderboard_text(report.get("boards", [])))
        for row in report.get("pointwise", {}).get("leaderboard", ()):
            say(f"{row['tier'] or '-':>4}  {row['model']}  {row['mean']:.4g} ({row['low']:.4g} to {row['high']:.4g})")
        for model, rating in report.get("sequential_elo", {}).items():
            say(f"  sequential Elo of {model}: {rating['elo']} +- {rating['sd_over_orders']} by order alone")
    line = {key: told.get(key) for key in ("tool", "votes", "verdicts", "unresolved", "automatic", "jury", "judges")}
    line |= {"leaderboard": leaderboard_rows(report) if "boards" in report else report["pointwise"]["leaderboard"]}
    line |= {"statements": [s for board in report.get("boards", ()) for s in board["statements"]]}
    line |= {key: told[key] for key in ("sensitivity", "compare", "humans", "sequential_elo") if key in told}
    print(json.dumps(line | {"exit_code": 0}))
    return 0


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
# >>> kit/ranking.py
# Ratings from verdicts: Bradley-Terry with a prior, intervals by resampling pages, tiers.


POINTS = 400 / math.log(10)  # Elo points a logit
PRIOR = 0.5  # weight of the virtual tie that every pair gets which was compared at all
MIN_PAGES = 20  # below, a ranking says more about the draw of the pages than about the models


def rank_boards(verdicts, prior=PRIOR, bootstrap=1000, ci=0.95, seed=42, cluster=None, min_pages=MIN_PAGES,
                tie_model="half"):  # fmt: skip
    """A board for every group of models that verdicts link, the largest first: no common rating joins two groups.

    `verdicts` are those of `jury_verdicts`; unresolved ones are left out. `cluster(verdict)` is what is drawn together
    when pages are resampled (default the page). A board is a dict: models, pages, comparisons, leaderboard (rows, best
    first), pairs (rows), tiers (lists of names), statements (sentences on what the votes cannot say), status ("ranked"
    or "insufficient": fewer than `min_pages` pages, so no ranks), tie_model, nu.

    `elo` is null where no finite rating exists, because a model (or group) won or lost all of its comparisons with the
    rest; `elo_with_prior` then only serves to sort. Raises ValueError for a prior of 0 and where a fit does not
    converge.
    """
    if prior <= 0:
        raise ValueError(f"a prior of {prior} leaves models that win or lose everything without a finite rating")
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    counted = [verdict for verdict in verdicts if verdict["score"] is not None]
    models = sorted({verdict[side] for verdict in counted for side in ("model_a", "model_b")})
    place = {model: number for number, model in enumerate(models)}
    played = np.zeros((len(models), len(models)))
    for verdict in counted:
        played[place[verdict["model_a"]], place[verdict["model_b"]]] = 1
    groups, labels = connected_components(played, directed=False) if models else (0, [])
    boards = []
    for group in range(groups):
        members = [model for model, label in zip(models, labels, strict=True) if label == group]
        own = [verdict for verdict in counted if verdict["model_a"] in members]
        boards.append(one_board(members, own, prior, bootstrap, ci, seed, cluster, min_pages, tie_model))
    boards.sort(key=lambda board: (-len(board["models"]), board["models"]))
    if len(boards) > 1:
        said = " and ".join("{" + ", ".join(board["models"]) + "}" for board in boards)
        for board in boards:
            board["statements"].insert(0, f"No comparison links {said}: there is no common ranking, only one for each.")
    return boards


def one_board(models, verdicts, prior, bootstrap, ci, seed, cluster, min_pages, tie_model):
    import numpy as np

    wins, ties = win_tables(models, verdicts, cluster or (lambda verdict: verdict["row_key"]))
    total, drawn = wins.sum(0), ties.sum(0)
    virtual = prior / 2 * ((total + total.T) > 0)
    nu = None
    if tie_model == "davidson":
        strengths, nu = fit_davidson(total - drawn / 2, drawn, virtual)
        # L-BFGS a thousand times would take minutes: the intervals keep their shape and move with the estimate.
        shift = strengths - fit_strengths((total + virtual)[None])[0]
    else:
        strengths, shift = fit_strengths((total + virtual)[None])[0], 0.0
    weights = np.random.default_rng(seed).multinomial(len(wins), [1 / len(wins)] * len(wins), size=bootstrap)
    resampled = (weights @ wins.reshape(len(wins), -1)).reshape(bootstrap, *total.shape)
    draws = fit_strengths(resampled + virtual) + shift

    groups, statements = separation(models, total, strengths)
    main = max(groups, key=lambda group: (len(group), total[group][:, group].sum()))
    strengths = POINTS * (strengths - strengths[main].mean())
    draws = POINTS * (draws - draws[:, main].mean(axis=1, keepdims=True))
    low, high = interval_levels(ci, len(wins))
    order = sorted(range(len(models)), key=lambda i: (-strengths[i], models[i]))
    ranks = 1 + (draws[:, None, :] > draws[:, :, None]).sum(axis=2)
    pages = len({verdict["row_key"] for verdict in verdicts})
    ranked = pages >= min_pages
    if not ranked:
        statements.insert(0, f"Only {pages} pages were compared, and a ranking takes {min_pages}: no ranks are given.")
    tiers = tier_numbers(order, strengths, draws, ci, len(wins))
    bounded = set(main) if len(main) > 1 else set()
    rows = [
        {
            "model": models[i],
            "rank": position if ranked else None,
            "rank_low": int(np.quantile(ranks[:, i], 0.5 - ci / 2, method="lower")) if ranked else None,
            "rank_high": int(np.quantile(ranks[:, i], 0.5 + ci / 2, method="higher")) if ranked else None,
            "tier": tiers[i] if ranked else None,
            "elo": 1500 + strengths[i] if i in bounded else None,
            "elo_low": 1500 + np.quantile(draws[:, i], low) if i in bounded else None,
            "elo_high": 1500 + np.quantile(draws[:, i], high) if i in bounded else None,
            "elo_with_prior": 1500 + strengths[i],
            "p_best": float((ranks[:, i] == 1).mean()) if ranked else None,
            **record_of(models[i], verdicts),
        }
        for position, i in enumerate(order, 1)
    ]
    return {
        "models": models,
        "pages": pages,
        "comparisons": len(verdicts),
        "leaderboard": [plain_numbers(row) for row in rows],
        "pairs": pair_rows(models, order, verdicts, strengths, draws, groups, resampled, low, high),
        "tiers": [[models[i] for i in order if tiers[i] == n] for n in sorted(set(tiers.values()))] if ranked else [],
        "statements": statements,
        "status": "ranked" if ranked else "insufficient",
        "tie_model": tie_model,
        "nu": nu,
        "prior": prior,
    }


def win_tables(models, verdicts, cluster):
    """Two arrays (clusters, models, models): points of the row's model against the column's, and ties, both ways."""
    import numpy as np

    place = {model: number for number, model in enumerate(models)}
    names = sorted({cluster(verdict) for verdict in verdicts}, key=str)
    row = {name: number for number, name in enumerate(names)}
    wins = np.zeros((len(names), len(models), len(models)))
    ties = np.zeros_like(wins)
    for verdict in verdicts:
        at, a, b = row[cluster(verdict)], place[verdict["model_a"]], place[verdict["model_b"]]
        wins[at, a, b] += verdict["score"]
        wins[at, b, a] += 1 - verdict["score"]
        if verdict["score"] == 0.5:
            ties[at, a, b] += 1
            ties[at, b, a] += 1
    return wins, ties


def fit_strengths(wins):
    """Bradley-Terry strengths in logits with mean 0, shape (draws, models), for win tables (draws, models, models).

    Newton's method on the concave log-likelihood sum of wins_ij * log(sigmoid(theta_i - theta_j)), all draws at once.
    The tables need a finite optimum, which connected ones have once the prior is added. Raises ValueError where the
    gradient does not fall below 1e-8.
    """
    import numpy as np
    from scipy.special import expit

    count, games = wins.shape[-1], wins + wins.transpose(0, 2, 1)
    theta, each = np.zeros(wins.shape[:2]), np.arange(count)
    for _ in range(100):
        chance = expit(theta[:, :, None] - theta[:, None, :])
        gradient = (wins - games * chance).sum(axis=2)
        if np.abs(gradient).max() < 1e-8:
            return theta - theta.mean(axis=1, keepdims=True)
        curve = games * chance * (1 - chance)
        hessian = -curve + 1 / count
        hessian[:, each, each] += curve.sum(axis=2)
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        theta += step / np.maximum(1, np.abs(step).max(axis=1, keepdims=True))
    raise ValueError("the ratings do not converge; a prior above 0 gives every connected table a finite optimum")


def fit_davidson(wins, ties, virtual):
    """(strengths in logits with mean 0, nu): ties with a chance of their own, nu * sqrt(p_i * p_j) (Davidson 1970).

    `wins` without ties; `virtual` is added to it.
    """
    import numpy as np
    from scipy.optimize import minimize

    wins, count = wins + virtual, len(wins)
    games = wins + wins.T + ties

    def negative(values):
        theta, log_nu = values[:-1], values[-1]
        half = (theta[:, None] - theta[None, :]) / 2
        total = np.logaddexp(np.logaddexp(half, -half), log_nu)  # of one game, both sides divided by sqrt(p_i * p_j)
        win, tie = np.exp(half - total), np.exp(log_nu - total)
        likelihood = (wins * (half - total)).sum() + (ties * (log_nu - total)).sum() / 2
        by_theta = (wins + ties / 2 - games * (win + tie / 2)).sum(axis=1)
        by_nu = (ties - games * tie).sum() / 2
        return 0.5e-6 * log_nu**2 - likelihood, np.append(-by_theta, 1e-6 * log_nu - by_nu)

    found = minimize(negative, np.append(np.zeros(count), -1.0), jac=True, method="L-BFGS-B", options={"gtol": 1e-8})
    return found.x[:-1] - found.x[:-1].mean(), float(np.exp(found.x[-1]))


def separation(models, wins, strengths):
    """(groups, sentences): groups of models between which wins and ties go both ways, and what lies between them.

    Only within a group do the votes determine finite ratings (Ford 1957).
    """
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(wins > 0, directed=True, connection="strong")
    groups = [np.flatnonzero(labels == label) for label in range(count)]
    groups.sort(key=lambda group: -strengths[group].mean())
    sentences = []
    for group in groups if count > 1 else ():
        rest = np.setdiff1d(np.arange(len(models)), group)
        won, lost = (round(table.sum()) for table in (wins[np.ix_(group, rest)], wins[np.ix_(rest, group)]))
        names = ", ".join(models[i] for i in group)
        if not lost:
            said = f"won all {won} of its comparisons with the others. It is better; by how much"
        elif not won:
            said = f"lost all {lost} of its comparisons with the others. It is worse; by how much"
        else:
            said = f"won all {won} comparisons with those below and lost all {lost} with those above. By how much"
        sentences.append(f"{names} {said}, these votes cannot say: no rating is given.")
    if count > 1 and max(map(len, groups)) > 1:  # the group that has ratings is described by them
        main = max(groups, key=lambda group: (len(group), wins[group][:, group].sum()))
        names = ", ".join(models[i] for i in main)
        sentences = [said for said in sentences if not said.startswith(f"{names} ")]
    return [list(group) for group in groups], sentences


def interval_levels(ci, clusters):
    """The quantiles of bootstrap draws for an interval of nominal level `ci`, widened for few clusters.

    The expanded percentile interval (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"): the plain one
    is too narrow by sqrt((n - 1) / n) and by the difference between the normal and Student's distribution.
    """
    from scipy.special import ndtr, ndtri

    tail = float(ndtr(widened(ci, clusters) * ndtri(0.5 - ci / 2)))
    return tail, 1 - tail


def widened(ci, clusters):
    """By how much an interval from resampling so many clusters is to be wider than its draws say."""
    from scipy.special import ndtri, stdtrit

    if clusters < 2:
        return 1e9  # nothing can be said
    return math.sqrt(clusters / (clusters - 1)) * stdtrit(clusters - 1, 0.5 - ci / 2) / ndtri(0.5 - ci / 2)


def tier_numbers(order, strengths, draws, ci, clusters):
    """{model: tier from 1}: the best model without a tier opens one, and those that cannot be told from it join.

    Told apart is a difference outside of its simultaneous interval: all pairs together are right in `ci` of all samples
    (the bootstrap of the largest studentised difference). With intervals for one pair alone, four equal models were
    split into tiers in a quarter of all simulations (benchmarks/judges.py).
    """
    import numpy as np

    # Rows are models, columns their rivals. Draws are skewed where one side wins nearly always, so that the spread
    # towards 0 is that of the draws below the estimate.
    short = np.maximum(0, strengths[:, None] - strengths[None, :] - (draws[:, :, None] - draws[:, None, :]))
    below = np.sqrt((short**2).sum(axis=0) / np.maximum(1, (short > 0).sum(axis=0)))
    largest = (short / np.maximum(below, 1e-9)).max(axis=(1, 2))
    reach = np.quantile(largest, ci) * below * widened(ci, clusters)
    tiers, number, head = {}, 0, None
    for i in order:
        if head is None or strengths[head] - strengths[i] > reach[head, i]:
            head, number = i, number + 1
        tiers[i] = number
    return tiers


def record_of(model, verdicts):
    """Wins, losses, ties, win rate (ties half), pages and comparisons of one model."""
    points = Counter()
    keys, score = set(), 0.0
    for verdict in verdicts:
        if model in (verdict["model_a"], verdict["model_b"]):
            own = verdict["score"] if verdict["model_a"] == model else 1 - verdict["score"]
            points["wins" if own > 0.5 else "losses" if own < 0.5 else "ties"] += 1
            score += own
            keys.add(verdict["row_key"])
    games = sum(points.values())
    return {**{name: points[name] for name in ("wins", "losses", "ties")}, "win_rate": score / games,
            "n_pages": len(keys), "n_comparisons": games}  # fmt: skip


def pair_rows(models, order, verdicts, strengths, draws, groups, resampled, low, high):
    """One row for every pair that was compared, the better model as `model_a`: counts, win rate, difference, both with
    intervals; `resolved` where the interval of the difference excludes 0, `robust` where 95 % of draws agree in sign.

    `elo_diff` is null between groups that `separation` keeps apart; `statement` then says what is known.
    """
    import numpy as np

    games = Counter()
    for verdict in verdicts:
        a, b, score = verdict["model_a"], verdict["model_b"], verdict["score"]
        games[a, b, label_side(score)] += 1
        games[b, a, label_side(1 - score)] += 1
        games[a, b, "points"] += score
        games[b, a, "points"] += 1 - score
    of = {i: number for number, group in enumerate(groups) for i in group}
    rows = []
    for position, i in enumerate(order):
        for j in order[position + 1 :]:
            a, b = models[i], models[j]
            won, lost, tied = (games[a, b, side] for side in ("won", "lost", "tied"))
            count = won + lost + tied
            if not count:
                continue
            gaps = draws[:, i] - draws[:, j]
            bottom, top = np.quantile(gaps, [low, high])
            played = resampled[:, i, j] + resampled[:, j, i]
            rates = resampled[played > 0, i, j] / played[played > 0]
            rate = games[a, b, "points"] / count
            ends = np.quantile(rates, [low, high]) if 0 < rate < 1 else wilson(rate, count)
            row = {"model_a": a, "model_b": b, "n": count, "wins_a": won, "wins_b": lost, "ties": tied}
            row |= {"win_rate_a": rate, "ci_low": ends[0], "ci_high": ends[1], "elo_diff": strengths[i] - strengths[j]}
            row |= {"diff_low": bottom, "diff_high": top, "resolved": bool(bottom > 0 or top < 0)}
            row |= {"robust": bool((gaps > 0).mean() >= 0.95), "statement": None}
            if of[i] != of[j]:
                row |= dict.fromkeys(("elo_diff", "diff_low", "diff_high"))
                better = "never lost to" if rate == 1 else "is only linked by wins of one side to"
                row["statement"] = f"{a} {better} {b} ({won}-{lost}): a difference in points cannot be given."
            rows.append(plain_numbers(row))
    return rows


def label_side(score):
    return "won" if score > 0.5 else "lost" if score < 0.5 else "tied"


def wilson(rate, count, z=1.959964):
    """Wilson's interval of a share."""
    middle, spread = rate + z * z / (2 * count), z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count**2))
    return (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)


def plain_numbers(row):
    """Floats of NumPy become floats with five decimals, which JSON takes and a person can read."""
    return {
        key: round(float(value), 5) if isinstance(value, float) or hasattr(value, "dtype") else value
        for key, value in row.items()
    }


def resolvable_gap(pages):
    """The smallest gap in Elo points that this many pages show with 80 % power at the 5 % level, one vote a page."""
    gap = 0.25  # win rate above one half; sqrt(n) * gap = z_0.975 / 2 + z_0.8 * sqrt(1 / 4 - gap^2), by iteration
    for _ in range(100):
        gap = min(0.499, (0.97998 + 0.84162 * math.sqrt(0.25 - gap * gap)) / math.sqrt(max(pages, 1)))
    return POINTS * math.log((0.5 + gap) / (0.5 - gap))


def sequential_elo(verdicts, orders=200, seed=42, k=32):
    """{model: (mean, standard deviation)} of the sequential Elo rating over random orders of the same verdicts.

    For comparison with old tables only: the rating depends on the order, as the deviation shows.
    """
    import random

    counted = [verdict for verdict in verdicts if verdict["score"] is not None]
    shuffler, seen = random.Random(seed), {}
    for _ in range(orders):
        shuffler.shuffle(counted)
        ratings = {}
        for verdict in counted:
            a, b = verdict["model_a"], verdict["model_b"]
            first, second = ratings.get(a, 1500.0), ratings.get(b, 1500.0)
            gain = k * (verdict["score"] - 1 / (1 + 10 ** ((second - first) / 400)))
            ratings[a], ratings[b] = first + gain, second - gain
        for model, rating in ratings.items():
            seen.setdefault(model, []).append(rating)
    means = {model: math.fsum(values) / len(values) for model, values in sorted(seen.items())}
    return {
        model: (mean, math.sqrt(math.fsum((value - mean) ** 2 for value in seen[model]) / len(seen[model])))
        for model, mean in means.items()
    }


def leaderboard_text(boards):
    """The boards as aligned text for a terminal: tier, rank interval, model, rating with interval, record."""
    lines = []
    for board in boards:
        width = max(len(model) for model in board["models"])
        lines.append(f"{'tier':>4} {'ranks':>7}  {'model':<{width}}  {'Elo':>5} {'interval':>11}  {'won':>5} {'n':>5}")
        for row in board["leaderboard"]:
            ranks = f"{row['rank_low']}-{row['rank_high']}" if row["rank"] else "-"
            elo = f"{row['elo']:.0f}" if row["elo"] is not None else "none"
            ends = f"{row['elo_low']:.0f}-{row['elo_high']:.0f}" if row["elo"] is not None else "-"
            lines.append(
                f"{row['tier'] or '-':>4} {ranks:>7}  {row['model']:<{width}}  {elo:>5} {ends:>11}  "
                f"{row['win_rate']:>5.0%} {row['n_comparisons']:>5}"
            )
        lines += [f"  {said}" for said in board["statements"]]
    return "\n".join(lines)


# <<< kit/ranking.py

# >>> kit/seam.py
# The types that pass between a recipe's model part and the shared part.


class Stop(Exception):
    """Ends the run with one message for the user: what happened, what was found, what to type next.

    `code` is the exit code: 2 for usage and preflight, 1 for a stop that the same command resumes.
    """

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class PageError(Exception):
    """One page cannot be read; the message is the sentence that its row gets in `ocr_error`."""


@dataclass
class Page:
    """One page as the model sees it.

    `image` is RGB, upright, on white, and already inside the recipe's image bounds. `width` and `height` are the
    pixels of the original after orientation, the space of every bbox that leaves a recipe; for a PDF page they are
    the pixels at `dpi`. `partial` says that the file ended early and the lower part is missing.
    """

    image: object
    width: int
    height: int
    dpi: int | None = None
    partial: bool = False


@dataclass
class Unit:
    """What one answer is about: a page almost always, a window of pages, a whole document, or a text cell."""

    id: str
    pages: list
    text: str | None = None


@dataclass
class Item:
    """A unit before it is decoded, as the source yields it. Picklable and small: bytes are one page's, or absent.

    `parts` holds one `(data, frame)` per page: data is the encoded bytes, a local path or an `hf://` URI, and frame
    the 0-based page of a PDF or frame of a TIFF or GIF. `row` is the row in the source split (or the position in the
    sorted file list), `page` the 1-based page within that row or file, `pages` how many it has, `name` the output
    name without suffix. `error` is set where the source holds nothing to read.
    """

    id: str
    row: int
    name: str
    parts: list = field(default_factory=list)
    text: str | None = None
    page: int = 1
    pages: int = 1
    error: str | None = None


class Answer(NamedTuple):
    """What the model said to one request. `flags` are those of `flags_of`; `logprobs` one float per output token."""

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: tuple = ()
    logprobs: list | None = None


@dataclass
class Parsed:
    """A recipe's reading of one unit. `markdown` is "" for a blank page and never a sentinel.

    `blocks` is a blocks document (or None), `columns` the recipe's own output columns, `flags` what the parser
    noticed: "unparsed" (the model's protocol was broken; asked again), "repaired", or words of the recipe's own.
    `answers` are those that the reading was made of, where `steps` threw others away; None is all of them. Their flags
    become the row's.
    """

    markdown: str | None
    blocks: dict | None = None
    columns: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    answers: list | None = None


def say(message):
    """Tells the human: stderr, flushed, so that a job log shows it at once. stdout is for the one JSON line."""
    with contextlib.suppress(OSError):  # a terminal that was closed costs no page
        print(message, file=sys.stderr, flush=True)


# <<< kit/seam.py

# >>> kit/storage.py
# Where results are kept, a folder here or in a bucket, and the patience that every write to the Hub needs.


FIRST_WAIT, LONGEST_WAIT, PATIENCE = 2.0, 60.0, 600.0  # seconds
FIRST_PATIENCE = 30.0  # before anything has been read
RECENT = 120.0  # seconds in which a run that is at work has written its next part


def persist(call, patience=None):
    """`call()`, again with growing waits while the Hub is busy: conflicts (409, 412), 408, 429, 5xx, lost connections.

    A `Retry-After` is honoured. Needed because huggingface_hub 2.4 retries neither commits nor repository creation.
    Raises the last error after `patience` (PATIENCE) seconds, any other error at once.
    """
    wait, end = FIRST_WAIT, time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        try:
            return call()
        except Exception as error:
            asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
            pause = max(float(asked) if asked.isdigit() else 0.0, wait * random.uniform(0.5, 1))
            if not is_passing(error) or time.monotonic() + pause > end:
                raise
            said = "The Hub answered" if hasattr(error, "response") else "The Hub cannot be reached"
            say(f"{said}: {first_line(error)}. Trying again in {pause:.0f} s.")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)


def is_passing(error):
    """Whether trying again may help: the Hub or the way to it is busy or broken for the moment."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 409, 412, 425, 429) or status >= 500
    transports = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # the client library differs by hub version
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.split(".")[0] in transports:
        return True
    if isinstance(error, RuntimeError) and "xet" in str(error).lower():  # hf_xet's failures have no class of their own
        return True
    return error.__cause__ is not None and is_passing(error.__cause__)


def first_line(error):
    """One line about an exception: its type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def unique_stamp():
    """A name part that sorts by time and is unique across processes and machines."""
    return f"{time.time_ns() // 1_000_000:013d}-{os.getpid()}-{secrets.token_hex(4)}"


def open_storage(uri):
    """A `BucketFolder` for `hf://buckets/...`, else a `LocalFolder`. Raises Stop where the bucket cannot be made."""
    return BucketFolder(uri) if uri.startswith("hf://buckets/") else LocalFolder(uri)


class LocalFolder:
    """Files under one folder. A file appears whole or not at all; what is half written lies under `.tmp`."""

    def __init__(self, path):
        self.where = str(path)
        self.root = Path(path).expanduser()
        self.scratch = self.root / ".tmp"

    def claim(self, name):
        """Takes a lock that ends with this process, or with `close` of what is returned. Raises Stop if it is taken."""
        try:
            import fcntl
        except ImportError:  # Windows
            return io.BytesIO()
        self.scratch.mkdir(parents=True, exist_ok=True)
        lock = open(self.scratch / f"{name}.lock", "wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Stop(
                f"Another run of this command is at work in {self.where}. Wait for it, or share the work by --shard "
                "0/2 and --shard 1/2.",
                code=1,
            ) from None
        except OSError:  # a mount without locks
            pass
        return lock

    def list(self):
        """The relative paths of all files, sorted."""
        found, folders = [], [str(self.root)] if self.root.is_dir() else []
        while folders:
            for entry in os.scandir(folders.pop()):
                if not entry.is_dir(follow_symlinks=False):
                    found.append(os.path.relpath(entry.path, self.root).replace(os.sep, "/"))
                elif entry.name != ".tmp":
                    folders.append(entry.path)
        return sorted(found)

    def open(self, name):
        """A binary file to read."""
        return open(self.root / name, "rb")

    def write(self, files):
        """Writes each of `files`, a dict from relative path to bytes. Raises OSError."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            part, target = self.scratch / unique_stamp(), self.root / name
            part.write_bytes(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)

    def remove(self, names):
        """Removes files, what killed runs left half written, and then the folder if it is empty."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # something else is kept there
            self.root.rmdir()
            if self.root.parent.name == ".ocr-runs":
                self.root.parent.rmdir()


class BucketFolder:
    """The same methods over a folder of a bucket, made private where it is missing. All wait out a busy Hub."""

    scratch = None

    def __init__(self, uri):
        from huggingface_hub import HfApi, HfFileSystem
        from huggingface_hub.errors import HfHubHTTPError

        owner, name, *path = uri.removeprefix("hf://buckets/").strip("/").split("/")
        self.where, self.bucket, self.prefix = uri, f"{owner}/{name}", "".join(f"{part}/" for part in path)
        self.api, self.files = HfApi(), HfFileSystem(skip_instance_cache=True)
        try:
            persist(lambda: self.api.create_bucket(self.bucket, private=True, exist_ok=True))
        except HfHubHTTPError as error:
            raise Stop(
                f"The bucket {self.bucket} cannot be made or written: {first_line(error)}. "
                "Name another place: --checkpoint hf://buckets/OWNER/NAME/FOLDER or --checkpoint FOLDER."
            ) from error

    def claim(self, name):
        """No lock, which buckets do not have: two runs at once lose no page, and pay twice. Says where it may be so."""
        written = [int(when) for path in self.list() for when in re.findall(r"-(\d{13})-\d+-[0-9a-f]{8}\.", path)]
        ago = time.time() - max(written, default=0) / 1000
        if name == "run" and ago < RECENT:  # a shard has others beside it
            say(
                f"Results were written to {self.where} {max(ago, 0):.0f} s ago. If the run that wrote them is still at "
                "work, both read the same pages: stop one, or share the work by --shard 0/2 and --shard 1/2."
            )
        return io.BytesIO()

    def list(self):
        self.files.invalidate_cache()
        tree = persist(lambda: list(self.api.list_bucket_tree(self.bucket, self.prefix or None, recursive=True)))
        return sorted(entry.path.removeprefix(self.prefix) for entry in tree if entry.type == "file")

    def open(self, name):
        return persist(lambda: self.files.open(f"hf://buckets/{self.bucket}/{self.prefix}{name}", "rb"))

    def write(self, files):
        added = [(data, self.prefix + name) for name, data in files.items()]
        if added:
            persist(lambda: self.api.batch_bucket_files(self.bucket, add=added))

    def remove(self, names):
        gone = [self.prefix + name for name in names]
        if gone:
            persist(lambda: self.api.batch_bucket_files(self.bucket, delete=gone))


# <<< kit/storage.py

# >>> kit/tool.py
# The edges of every tool: numbers and files that have to make sense, and the exit code.


NO_SUCH_PLACE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def whole_number(text):
    """An argparse type: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def above_zero(text):
    """An argparse type: a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def share_of_one(text):
    """An argparse type: a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return number


def read_utf8(path):
    """The text of a file. Raises Stop where it is in another encoding, and OSError."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Stop(
            f"{path} is not UTF-8 at byte {error.start}: {error.reason}. Convert it (iconv -t utf-8)."
        ) from error


def parse_json(text):
    """`json.loads(text)`. Raises ValueError also where lists or objects stand in each other too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, kind=dict):
    """What a JSON file holds. Raises Stop where it is damaged or holds something else than `kind`, and OSError."""
    try:
        value = parse_json(read_utf8(path))
    except ValueError as error:
        raise Stop(f"{path} is no JSON: {error}. Repair or remove it.") from error
    if not isinstance(value, kind):
        raise Stop(f"{path} holds {type(value).__name__} where {kind.__name__} was expected. Name another file.")
    return value


def exit_code_of(work):
    """The exit code of a tool: what `work()` returns, or the code of what ended it, told in one sentence.

    2 where a file or folder that was named is not there, not of that kind, or closed to us. 1 for what passes: Ctrl-C,
    a disk that is full, a Hub that does not answer.
    """
    try:
        return work()
    except Stop as problem:
        code, told = problem.code, problem
    except NO_SUCH_PLACE as problem:
        code, told = (2, f"{problem.filename}: {problem.strerror}. Name another.") if problem.filename else (1, problem)
    except KeyboardInterrupt:
        code, told = 1, "the same command starts again."
    except Exception as problem:
        if not (isinstance(problem, OSError) or is_passing(problem)):
            raise
        code, told = 1, f"{first_line(problem)}. The same command starts again."
    say(f"{'Error' if code == 2 else 'Stopped'}: {told}")
    return code


# <<< kit/tool.py

# >>> kit/votes.py
# Votes on pairs of outputs: one record for every judge and order, kept append-only, counted by strict rules.


LABELS = ("A", "B", "tie")
VALUE = {"A": 1.0, "tie": 0.5, "B": 0.0}  # of one vote, for model_a
SWAPPED = {"A": "B", "B": "A", "tie": "tie"}
# The record of one vote. `model_a` sorts before `model_b`. `order` is "ab" where model_a was shown first and "ba" where
# second; `raw_label` is what was said of what was shown, `winner` the same in canonical order, null where nothing can
# be counted; `parse_status` then says why: invalid, refused, error, length, skip, withdrawn. `auto` is null, identical
# or both_blank: a tie without a judge. `repeat` counts how often the same judge was asked the same in the same order.
# `facts` (columns of the page), `settings` and `details` (what only one tool knows) are JSON.
VOTE_FIELDS = {
    **dict.fromkeys(("comparison_id", "pair_id", "run_id", "row_key", "model_a", "model_b", "config_a", "config_b",
                     "revision_a", "revision_b", "judge", "order", "raw_label", "winner", "parse_status",
                     "finish_reason", "reason", "sha_a", "sha_b", "auto", "prompt_hash", "settings", "facts",
                     "text_a", "text_b", "details", "created_at"), "string"),
    **dict.fromkeys(("sample_idx", "repeat", "chars_a", "chars_b", "prompt_tokens", "completion_tokens"), "int64"),
    **dict.fromkeys(("truncated_a", "truncated_b"), "bool_"),
    **dict.fromkeys(("weight", "latency_s"), "float64"),
}  # fmt: skip
RUN_FIELDS = dict.fromkeys(("run_id", "created_at", "tool", "record"), "string")
EXCERPT_CHARS = 500


def content_hash(text):
    """Hex SHA-256 of a text (None counts as its own value), of which ids are made."""
    return hashlib.sha256(b"\0" if text is None else text.encode("utf-8", "surrogatepass")).hexdigest()


def short_hash(value):
    """12 hex digits that stand for a JSON-able value, such as a prompt with its settings."""
    return content_hash(json.dumps(value, sort_keys=True, ensure_ascii=False))[:12]


def pair_id(row_key, model_a, sha_a, model_b, sha_b):
    """What two outputs of one page are, whoever judges them: 32 hex digits.

    Of the content and not of commits or positions, so that a vote stays with what was seen when a repository grows,
    rows move, or the outputs come from folders.
    """
    return content_hash(json.dumps(sorted([[model_a, sha_a], [model_b, sha_b]]) + [row_key]))[:32]


def comparison_id(pair, judge, prompt_hash, order, repeat=0):
    """The id of one vote: the pair (`pair_id`), who is asked, how, in which order, and which time."""
    return content_hash(json.dumps([pair, judge, prompt_hash or "", order, repeat]))[:32]


def make_vote(row_key, a, b, judge, order, prompt_hash="", repeat=0, **fields):
    """A vote without a verdict yet. `a` and `b` are dicts with name, config, revision and text, `a` sorting first.

    The ids are made of the whole texts; `chars` count what is there, and `fields` are further VOTE_FIELDS.
    """
    if not a["name"] < b["name"]:
        raise ValueError(f"{a['name']!r} does not sort before {b['name']!r}")
    pair = pair_id(row_key, a["name"], content_hash(a["text"]), b["name"], content_hash(b["text"]))
    vote = dict.fromkeys(VOTE_FIELDS)
    vote |= {"row_key": row_key, "judge": judge, "order": order, "prompt_hash": prompt_hash, "repeat": repeat}
    vote |= {"pair_id": pair, "comparison_id": comparison_id(pair, judge, prompt_hash, order, repeat), "weight": 1.0}
    for side, output in (("a", a), ("b", b)):
        vote |= {
            f"model_{side}": output["name"],
            f"config_{side}": output.get("config"),
            f"revision_{side}": output.get("revision"),
            f"sha_{side}": content_hash(output["text"]),
            f"chars_{side}": len(output["text"] or ""),
        }
    return vote | fields


def decide(vote, label, status="ok", reason=None, **fields):
    """`vote` with its verdict. `label` is of the outputs as shown, or None where `status` says why there is none."""
    winner = None if label is None else label if vote["order"] == "ab" else SWAPPED[label]
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    said = {"raw_label": label, "winner": winner, "parse_status": status, "reason": reason, "created_at": now}
    return vote | said | fields


def stored_text(text, policy):
    """What a vote keeps of an output's text by `--store-text`: all ("full"), its beginning ("excerpt"), or None."""
    return {"full": text, "excerpt": text and text[:EXCERPT_CHARS], "hash": None}[policy]


# ---- Reading a verdict


def parse_verdict(text, finish_reason="stop", labels=LABELS):
    """(label or None, reason or None, status) of a judge's answer; never a tie that it did not say.

    Status: "ok", one JSON object and nothing else; "repaired", one found inside other text; "invalid"; "length", cut
    off; "refused", no answer at all. Labels count whatever their case, and nothing else counts.
    """
    if finish_reason == "length":
        return None, None, "length"
    if not isinstance(text, str) or not text.strip():
        return None, None, "refused" if finish_reason in ("content_filter", "refusal") else "invalid"
    said = re.sub(r"\A\s*<think>.*?</think>", "", text, flags=re.S).strip()
    objects = [found for found in json_objects(said) if "winner" in found]
    if len(objects) != 1:
        return None, None, "invalid"
    known = {label.lower(): label for label in labels}
    winner, reason = objects[0]["winner"], objects[0].get("reason")
    label = known.get(winner.strip().lower()) if isinstance(winner, str) else None
    reason = reason if isinstance(reason, str) else None
    if label is None:
        return None, reason, "invalid"
    try:
        whole = isinstance(json.loads(text, strict=False), dict)
    except (ValueError, RecursionError):
        whole = False
    return label, reason, "ok" if whole else "repaired"


def json_objects(text):
    """The outermost JSON objects in a text, in order. One with a key twice counts for nothing."""

    def unique(pairs):
        return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else {"winner": None}

    # Not strict: grammars of engines let bare line ends and other control characters into a reason.
    decoder, found, at = json.JSONDecoder(object_pairs_hook=unique, strict=False), [], text.find("{")
    tries = 100  # braces that open no JSON: hostile text must not cost its square
    while at >= 0 and tries:
        try:
            value, end = decoder.raw_decode(text, at)
            found.append(value)
        except (ValueError, RecursionError):
            end, tries = at + 1, tries - 1
        at = text.find("{", end)
    return found


# ---- Planning


def keyed_order(keys, seed):
    """The keys in an order that depends on nothing but themselves and the seed."""
    return sorted(keys, key=lambda key: content_hash(f"{seed}/{key}"))


class Balance:
    """Which side is shown first, so that of every pair's pages exactly half, or half but one, are swapped.

    The side that has been first less often is taken, and a hash decides where both are equal: no pattern repeats from
    batch to batch. `orders` is "balanced" (one order a page) or "both". Orders of votes that exist are told by `count`.
    """

    def __init__(self, orders, seed):
        self.orders, self.seed, self.first = orders, seed, Counter()

    def count(self, model_a, model_b, order):
        self.first[model_a, model_b, order] += 1

    def take(self, row_key, model_a, model_b):
        """The orders in which this pair is to be judged on this page: a list of "ab" and "ba"."""
        if self.orders == "both":
            return ["ab", "ba"]
        ab, ba = (self.first[model_a, model_b, order] for order in ("ab", "ba"))
        coin = int(content_hash(f"{self.seed}/{model_a}/{model_b}/{row_key}")[0], 16) % 2
        order = "ab" if ab < ba or (ab == ba and coin) else "ba"
        self.count(model_a, model_b, order)
        return [order]


# ---- Keeping votes


class VoteStore:
    """Votes in a folder: `votes-*.jsonl`, one file for every process, each line flushed to the disk before `add` ends.

    Nothing is ever overwritten: of several votes with one id the last counts, so an undo is a vote too. `runs()` are
    the descriptions of the runs, `run-*.json`.
    """

    def __init__(self, folder):
        self.folder = Path(folder).expanduser()
        if self.folder.exists() and not self.folder.is_dir():
            raise Stop(f"{folder} is a file. Votes are kept in a folder: name another.")
        self.path = self.folder / f"votes-{unique_stamp()}.jsonl"

    def add(self, votes):
        """Appends votes. Raises OSError."""
        if not votes:
            return
        lines = "".join(json.dumps({name: vote.get(name) for name in VOTE_FIELDS}) + "\n" for vote in votes)
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def add_run(self, run_id, tool, record):
        """Writes (or replaces) the description of a run, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        row = {"run_id": run_id, "created_at": unique_stamp()[:13], "tool": tool, "record": json.dumps(record)}
        part = self.folder / f".run-{run_id}.part"
        part.write_text(json.dumps(row))
        os.replace(part, self.folder / f"run-{run_id}.json")

    def rows(self):
        """The last vote of each id, withdrawn ones too: what `push_votes` takes. Raises Stop where one is damaged."""
        return last_of_each(row for path in sorted(self.folder.glob("votes-*.jsonl")) for row in jsonl_rows(path))

    def votes(self):
        """The votes that count or could: `rows()` without those withdrawn."""
        return standing(self.rows())

    def runs(self):
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("run-*.json"))]


def jsonl_rows(path):
    """Yields the objects of a JSONL file; a last line that a kill cut short is left out. Raises Stop."""
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            if number == len(lines):
                say(f"{path}: the last line was cut short and is left out.")
                return
            raise Stop(f"{path}, line {number}: {first_line(error)}. Repair or remove that line.") from error
        yield row


def last_of_each(votes):
    """The votes with each id once, as it was cast last, in the place where it was cast first."""
    kept = {}
    for vote in votes:
        kept[vote.get("comparison_id") or len(kept)] = vote
    return list(kept.values())


def standing(votes):
    """The votes without those that were withdrawn."""
    return [vote for vote in votes if vote.get("parse_status") != "withdrawn"]


def read_votes(source, from_prs=False):
    """(votes, runs) of a folder, a .jsonl or .parquet file, or a results repository on the Hub, checked and canonical.

    `from_prs` also reads the open pull requests of the repository. Raises Stop where something cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        store = VoteStore(path)
        rows = store.rows()
        for file in sorted(path.glob("*.parquet")):
            rows += parquet_rows(file.read_bytes(), file)
        runs = store.runs()
    elif path.is_file() and path.suffix in (".jsonl", ".parquet"):
        rows = list(jsonl_rows(path)) if path.suffix == ".jsonl" else parquet_rows(path.read_bytes(), path)
        runs = []
    elif path.is_file():
        raise Stop(f"{source} is no file of votes. Name a folder, a .jsonl or .parquet file, or a dataset ns/name.")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        rows, runs = hub_votes(source, from_prs)
    else:
        raise Stop(f"{source} is no folder or file here, and no dataset ns/name.")
    return standing(last_of_each(canonical_votes(rows, source))), runs


def parquet_rows(data, name):
    """The rows of a parquet file, of which `data` is the bytes. Raises Stop where it is damaged."""
    import pyarrow.parquet as pq

    try:
        return pq.read_table(io.BytesIO(data)).to_pylist()
    except Exception as error:
        raise Stop(f"{name} cannot be read: {first_line(error)}. Repair or remove it; nothing was written.") from error


def hub_votes(repo, from_prs=False):
    """(votes, runs) as they stand in a results repository and, with `from_prs`, in its open pull requests."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        heads = [persist(lambda: api.dataset_info(repo))]
        if from_prs:
            requests = persist(lambda: list(api.get_repo_discussions(repo, repo_type="dataset")))
            for request in sorted(requests, key=lambda request: request.num):
                if request.is_pull_request and request.status in ("open", "draft"):
                    ref = f"refs/pr/{request.num}"
                    heads.append(persist(lambda ref=ref: api.dataset_info(repo, revision=ref)))
        return repo_rows(api, repo, heads, "comparisons"), repo_rows(api, repo, heads, "runs")
    except Stop:
        raise
    except Exception as error:
        raise Stop(f"The results {repo} cannot be read: {first_line(error)}. Nothing was written.", code=1) from error


def repo_rows(api, repo, heads, folder):
    """The rows of all parquet files of a folder, each file once though several revisions hold it."""
    rows, seen = [], set()
    for head in heads:
        for file in sorted(file.rfilename for file in head.siblings):
            if file.startswith(f"{folder}/") and file.endswith(".parquet") and (file not in seen):
                seen.add(file)
                path = persist(
                    lambda file=file, sha=head.sha: api.hf_hub_download(repo, file, repo_type="dataset", revision=sha)
                )
                rows += parquet_rows(Path(path).read_bytes(), f"{repo}/{file}")
    return rows


def canonical_votes(rows, source):
    """Votes in our form: `model_a` sorts first and labels are A, B or tie; tables of the public bench are understood.

    Raises Stop that names the rows where a label is unknown, a model plays itself, or a name is missing.
    """
    votes, wrong = [], []
    for number, row in enumerate(rows, 1):
        label, a, b = row.get("winner"), row.get("model_a"), row.get("model_b")
        known = {"a": "A", "b": "B", "tie": "tie", a: "A", b: "B"}
        if label is not None:
            label = known.get(label.lower() if isinstance(label, str) and len(label) <= 3 else label, "?")
        if not (isinstance(a, str) and isinstance(b, str)) or a == b or label == "?":
            wrong.append(f"row {number}: {a} against {b}, winner {row.get('winner')!r}")
            continue
        vote = dict.fromkeys(VOTE_FIELDS) | {name: row[name] for name in VOTE_FIELDS if name in row}
        vote |= {"winner": label, "parse_status": row.get("parse_status") or ("ok" if label else "invalid")}
        if a > b:
            vote |= {"winner": label and SWAPPED[label], "order": {"ab": "ba", "ba": "ab"}.get(vote["order"])}
            for name in ("model", "config", "revision", "sha", "chars", "truncated", "text"):
                vote[f"{name}_a"], vote[f"{name}_b"] = vote[f"{name}_b"], vote[f"{name}_a"]
        if not vote["comparison_id"]:  # a table of the public bench: one verdict of its whole jury for a page
            key = str(row.get("sample_idx", row.get("row_key", number)))
            is_auto = row.get("agreement") == "auto"
            vote |= {"row_key": key, "judge": "auto" if is_auto else "jury", "auto": "identical" if is_auto else None}
            pair = pair_id(key, vote["model_a"], "", vote["model_b"], "")
            vote |= {"pair_id": pair, "comparison_id": comparison_id(pair, vote["judge"], "", None), "repeat": 0}
        votes.append(vote)
    if wrong:
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise Stop(f"{source} holds votes that cannot be counted: {'; '.join(wrong[:5])}{more}. Correct the table.")
    return votes


# ---- The results repository


def parquet_bytes(rows, fields):
    """Rows as a parquet file with a declared schema, so that a column of nulls keeps its type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({name: getattr(pa, kind)() for name, kind in fields.items()})
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{n: row.get(n) for n in fields} for row in rows], schema=schema), sink)
    return sink.getvalue()


def check_results(repo, create_pr=False):
    """Raises Stop where votes could not be added to `repo` in the end, before anybody votes. Nothing is made."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    api = HfApi()
    try:
        validate_repo_id(repo)
        role = persist(api.whoami, FIRST_PATIENCE).get("auth", {}).get("accessToken", {}).get("role")
        if persist(lambda: api.repo_exists(repo, repo_type="dataset"), FIRST_PATIENCE) and not create_pr:
            persist(lambda: api.auth_check(repo, repo_type="dataset", write=True), FIRST_PATIENCE)
    except Exception as error:
        raise Stop(
            f"Votes cannot be put into {repo}: {first_line(error)}. Check the name (ns/name) and the token "
            "(hf auth whoami), or leave them here and add them later."
        ) from error
    if role == "read":
        raise Stop("The Hub token can only read. Set HF_TOKEN to one that can write, or type: hf auth login")


def push_votes(repo, votes, runs, create_pr=False, private=False):
    """Adds what `repo` does not have yet as new files, and returns a sentence with the address.

    A file that is there is never changed or removed, so votes of others stay whatever happens. Raises Stop (code 1)
    where the votes that are there cannot be read or the Hub cannot be convinced; then nothing was written.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api, stamp = HfApi(), unique_stamp()

    def attempt():
        api.create_repo(repo, repo_type="dataset", private=private or None, exist_ok=True)
        there, known_runs = hub_votes(repo)
        if any(not vote.get("comparison_id") for vote in there):
            raise Stop(f"{repo} holds results of another tool. Name another repository.")
        known = {vote["comparison_id"]: vote.get("created_at") or "" for vote in last_of_each(there)}
        new = [vote for vote in votes if known.get(vote["comparison_id"], "") < (vote.get("created_at") or "~")]
        new_runs = [run for run in runs if run not in known_runs]
        head = api.dataset_info(repo)
        changes = [CommitOperationAdd(f"comparisons/{stamp}.parquet", parquet_bytes(new, VOTE_FIELDS))] * bool(new)
        changes += [CommitOperationAdd(f"runs/{stamp}.parquet", parquet_bytes(new_runs, RUN_FIELDS))] * bool(new_runs)
        if not changes:
            return f"{repo} has all {len(votes)} votes already."
        changes += results_card(api, repo, head, ["comparisons", "runs"])
        done = api.create_commit(
            repo, changes, repo_type="dataset", parent_commit=head.sha, create_pr=create_pr,
            commit_message=f"Add {len(new)} votes",
        )  # fmt: skip
        return f"{len(new)} votes added: {done.pr_url or f'{api.endpoint}/datasets/{repo}'}"

    try:
        return persist(attempt)
    except Stop:
        raise
    except Exception as error:
        raise Stop(
            f"The votes could not be added to {repo}: {first_line(error)}. They are safe; type the same command again.",
            code=1,
        ) from error


def results_card(api, repo, head, configs, section=None, first=None):
    """The commit operation (a list with one, or none) that declares configs, each the files of its folder.

    `section` replaces the part of the card between our markers, `first` names the config that is shown first.
    """
    from huggingface_hub import CommitOperationAdd, DatasetCard

    old = "---\n{}\n---\n"
    if any(file.rfilename == "README.md" for file in head.siblings):
        path = api.hf_hub_download(repo, "README.md", repo_type="dataset", revision=head.sha)
        old = Path(path).read_text("utf-8")
    card = DatasetCard(old, ignore_metadata_errors=True)
    entries = {entry["config_name"]: entry for entry in card.data.get("configs") or []}
    for name in configs:
        entries.setdefault(name, {"config_name": name, "data_files": f"{name}/*.parquet"})
    if first:
        entries = {name: {k: v for k, v in entry.items() if k != "default"} for name, entry in entries.items()}
        entries[first]["default"] = True
    card.data["configs"] = list(entries.values())
    card.data["tags"] = sorted({*(card.data.get("tags") or []), "ocr", "ocr-bench", "leaderboard"})
    begin, end = "<!-- ocr-bench begins -->", "<!-- ocr-bench ends -->"
    if section is not None and begin in card.text and end in card.text:
        card.text = card.text.split(begin)[0] + f"{begin}\n{section}\n{end}" + card.text.split(end, 1)[1]
    elif section is not None:
        card.text = card.text.rstrip() + f"\n\n{begin}\n{section}\n{end}\n"
    elif not card.text.strip():
        card.text = f"\n# {repo.split('/')[-1]}\n\nVotes on OCR outputs, one row per judge and order.\n"
    new = str(card)
    return [CommitOperationAdd("README.md", new.encode())] * (new != old)


# ---- Counting


def is_human(judge):
    return (judge or "").startswith("human:")


def valid_votes(votes):
    """The votes with a verdict, repeats aside."""
    return [vote for vote in votes if vote["winner"] in LABELS and not vote.get("repeat")]


def jury_verdicts(votes, judges=None, quorum=None, method="majority"):
    """One verdict for every page and pair, as dicts, in an order that does not depend on that of votes or judges.

    A judge's score for model_a is the mean of its orders: win and win 1, win and tie 0.75, win and loss 0.5. With
    `method` "majority" the winner of several judges is the label with the most weight, and a tie where two labels
    have the most; "votes" takes the weighted mean of scores. `quorum` (half of the judges, rounded up) judges must have
    voted, or `winner` and `score` are None. Keys: row_key, pair_id, model_a, model_b, winner, score, agreement ("2/3",
    "auto"), judges, auto, facts.
    """
    votes = valid_votes(votes)
    jury = sorted(judges or {vote["judge"] for vote in votes if not vote["auto"]})
    quorum = quorum or -(-len(jury) // 2)
    by_pair = defaultdict(list)
    for vote in votes:
        if vote["auto"] or vote["judge"] in jury:
            by_pair[vote["row_key"], vote["model_a"], vote["model_b"]].append(vote)
    verdicts = []
    for key in sorted(by_pair):
        cast = by_pair[key]
        verdict = dict(zip(("row_key", "model_a", "model_b"), key, strict=True))
        verdict |= {"pair_id": cast[0]["pair_id"], "facts": cast[0]["facts"], "auto": cast[0]["auto"], "judges": 0}
        if any(vote["auto"] for vote in cast):
            auto = next(vote["auto"] for vote in cast if vote["auto"])
            verdicts.append(verdict | {"winner": "tie", "score": 0.5, "agreement": "auto", "auto": auto})
            continue
        scores, weights = judge_scores(cast)
        labels = Counter()
        for judge, score in scores.items():
            labels[label_of(score)] += weights[judge]
        top = [label for label, weight in labels.items() if weight >= max(labels.values()) - 1e-9]
        winner = top[0] if len(top) == 1 else "tie"
        score = VALUE[winner]
        if method == "votes" or len(scores) == 1:
            score = sum(scores[judge] * weights[judge] for judge in sorted(scores)) / sum(weights.values())
            winner = label_of(score)
        agree = sum(label_of(score) == winner for score in scores.values())
        verdict |= {"winner": winner, "score": score, "agreement": f"{agree}/{len(scores)}", "judges": len(scores)}
        verdicts.append(verdict if len(scores) >= quorum else verdict | {"winner": None, "score": None})
    return verdicts


def judge_scores(votes):
    """({judge: score for model_a}, {judge: weight}) of the valid votes on one page and pair."""
    values, weights = defaultdict(list), {}
    for vote in votes:
        values[vote["judge"]].append(VALUE[vote["winner"]])
        weights[vote["judge"]] = 1.0 if vote["weight"] is None else vote["weight"]
    return {judge: sum(given) / len(given) for judge, given in sorted(values.items())}, weights


def label_of(score):
    return "tie" if abs(score - 0.5) < 1e-9 else "A" if score > 0.5 else "B"


def judge_report(votes):
    """{judge: figures}: how far its position, its silence and its mistakes in form may be trusted.

    `consistency` is the share of the pairs judged in both orders that got the same verdict in both; `fairness` the
    surplus of wins of what was shown first, by decisive votes, with the exact binomial `fairness_p`; `repeat_agreement`
    the share of repeated questions that got the same answer. None where there is nothing to count.
    """
    from scipy.special import bdtr  # scipy.stats takes seconds to import

    report = {}
    for judge in sorted({vote["judge"] for vote in votes if not vote["auto"]}):
        asked = [vote for vote in votes if vote["judge"] == judge and not vote["auto"]]
        counted = valid_votes(asked)
        first = sum(vote["raw_label"] == "A" for vote in counted)
        decisive = first + sum(vote["raw_label"] == "B" for vote in counted)
        by_pair, again = defaultdict(dict), defaultdict(set)
        for vote in counted:
            by_pair[vote["pair_id"]][vote["order"]] = vote["winner"]
        for vote in asked:
            if vote["winner"] in LABELS:
                again[vote["pair_id"], vote["order"], vote["prompt_hash"]].add((vote["repeat"], vote["winner"]))
        both = [set(orders.values()) for orders in by_pair.values() if {"ab", "ba"} <= set(orders)]
        repeated = [{winner for _, winner in said} for said in again.values() if len({n for n, _ in said}) > 1]
        statuses = Counter(vote["parse_status"] for vote in asked)
        invalid = sum(statuses[status] for status in ("invalid", "length", "refused", "error"))
        report[judge] = {
            "votes": len(counted),
            "statuses": dict(sorted(statuses.items())),
            "invalid_rate": ratio(invalid, len(asked)),
            "tie_rate": ratio(len(counted) - decisive, len(counted)),
            "fairness": ratio(2 * first - decisive, decisive),
            "fairness_p": min(1.0, 2 * float(bdtr(min(first, decisive - first), decisive, 0.5))) if decisive else None,
            "consistency": ratio(sum(len(said) == 1 for said in both), len(both)),
            "both_orders": len(both),
            "repeat_agreement": ratio(sum(len(said) == 1 for said in repeated), len(repeated)),
        }
    return report


def ratio(part, whole):
    return part / whole if whole else None


# <<< kit/votes.py
# <<< shared part

if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: run(parser_of_options().parse_args())))
