# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "gradio>=6.31",
#     "datasets>=5.2.0",
#     "huggingface_hub>=2.4.0",
#     "pyarrow>=18",
#     "numpy>=1.26",
#     "scipy>=1.11",
#     "rapidfuzz>=3.9",
#     "nh3>=0.3",
#     "pillow>=11",
#     "pypdfium2>=5.0",
#     "imagecodecs>=2025.3.30",
#     "pillow-heif>=1.1",
# ]
# ///
"""OCR human evaluation: blind votes on pairs of readings in the browser, and how far the judges agree with them.

    uv run ocr/ocr-human-eval.py user/scans-bench --judge-results user/scans-bench-results --annotator ada
    uv run ocr/ocr-human-eval.py out/pp-ocrv6 out/tesseract-ocr --images samples --store votes
    uv run ocr/ocr-human-eval.py --report --store votes --judge-results judged

A page and two anonymous readings: A or the left arrow, B or the right arrow, T or the down arrow for a tie, X for both
bad, S to skip, U to take the last vote back, D for the next way to show the texts. Several people may vote at the same
address under their own names. Every vote is on the disk before the next pair is shown; the same command goes on, and
a vote stays with the two texts that were seen, whatever is judged or run again later.

Shown are pairs drawn at random and pairs on which the judges disagree, these first; some come again with the sides
changed. Names, ratings and agreement are shown once the round is closed. Votes count as those of judge `human:NAME` in
ocr-elo-bench.py. The last line on stdout is JSON.
"""

import argparse
import html
import json
import os
import re
import signal
import sys
import threading
import time
import unicodedata
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

# >>> shared imports
# isort: split
import atexit
import contextlib
import functools
import hashlib
import io
import itertools
import math
import random
import secrets
import shutil
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

# <<< shared imports

TOOL = "ocr-human-eval/1"
REASONS = ("omission", "hallucination", "misread", "order", "table", "other")
VIEWS = ("text", "diff", "rendered")
MOST_SHOWN = 20_000  # characters of one reading: a loop of a million would stop the browser
APART = 10  # a repeated pair comes again after at least so many others
ENOUGH = 30  # votes before a round can be closed early
CLOSE_ENOUGH = 0.10  # upper bound of hard disagreement below which more votes change little
RENDERED_TAGS = set(
    "p br hr b i em strong s del u sub sup code pre blockquote ul ol li dl dt dd h1 h2 h3 h4 h5 h6 table thead tbody "
    "tfoot tr th td caption".split()
)


def eval_parser():
    parser = argparse.ArgumentParser(
        prog="ocr-human-eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add_bench_options(add)
    add("--judge-results", action="append", default=[], metavar="PLACE", help="votes of judges: folder, file, dataset")
    add("--pairs-file", metavar="FILE", help="show only these pairs: one pair_id a line")
    add("--n", type=int, default=100, help="pairs to show, repeats aside (default 100)")
    add("--design", choices=["mixed", "random", "disputed"], default="mixed",
        help="at random, those that judges dispute, or 70 %% and 30 %% (default mixed)")  # fmt: skip
    add("--repeat-share", type=float, default=0.1, help="share of the pairs that comes again, swapped (default 0.1)")
    add("--annotator", metavar="NAME", help="who votes (default: the page asks)")
    add("--show", choices=VIEWS, default="text", help="how texts are shown at first (default text)")
    add("--image-side", type=int, default=2400, help="longest side of the page image in pixels (default 2400)")
    add("--blind-judge", action=argparse.BooleanOptionalAction, default=True,
        help="hide names and agreement until a round is closed (default)")  # fmt: skip
    add("--store", metavar="DIR", help="where votes are kept (default human-NAME)")
    add("--store-text", choices=["full", "excerpt", "hash"], default="excerpt",
        help="what votes keep of the texts (default: the first 500 characters)")  # fmt: skip
    add("--push", metavar="REPO", help="results dataset that gets the votes when this ends")
    add("--create-pr", action="store_true", help="push as a pull request")
    add("--private", action="store_true", help="create that dataset private")
    add("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1, this machine only)")
    add("--port", type=int, default=7860, help="port to listen at (default 7860; 0: any that is free)")
    add("--auth-env", metavar="NAME", help="environment variable with user:password pairs, by commas")
    add("--bootstrap", type=int, default=1000, help="resamples of the pages for intervals (default 1000)")
    add("--report", action="store_true", help="print what the votes say and stop")
    return parser


# ---- What is shown to whom


class Pair(NamedTuple):
    """Two readings of one page; `a` and `b` are dicts with name, config, revision and text, `a` sorting first.

    `inclusion` is the probability with which the design draws the pair, `design` by which part it was drawn.
    """

    id: str
    key: str
    a: dict
    b: dict
    inclusion: float = 1.0
    design: str = "random"


class Showing(NamedTuple):
    """One question to one annotator. `order` "ab" shows `pair.a` on the left; `repeat` 1 is the hidden second time."""

    id: str
    pair: Pair
    order: str
    repeat: int


def comparable_pairs(bench):
    """Yields the pairs of readings that a person can tell apart: none that failed, none with the same text."""
    for key in bench.keys:
        plain = {}
        for one in bench.contestants:
            output = one.outputs[key]
            if output.state in USABLE:
                words = unicodedata.normalize("NFC", to_plain_text(output.text or "")).split()
                side = {"name": one.name, "config": one.config, "revision": one.revision, "text": output.text}
                plain[one.name] = (side, words)
        for (a, first), (b, second) in combinations([plain[name] for name in sorted(plain)], 2):
            if first != second:
                sha = content_hash(a["text"]), content_hash(b["text"])
                yield Pair(pair_id(key, a["name"], sha[0], b["name"], sha[1]), key, a, b)


def disputed_pairs(votes):
    """Ids of the pairs on which judges disagree with one another, or one judge with itself in the other order."""
    said = defaultdict(set)
    for vote in valid_votes(votes):
        if not is_human(vote["judge"]) and not vote["auto"]:
            said[vote["pair_id"]].add(vote["winner"])
    return {pair for pair, winners in said.items() if len(winners) > 1}


def chosen_pairs(pairs, disputed, n, design, seed):
    """The pairs to be shown, in order, with their inclusion probabilities; disputed ones first.

    The draw depends on the pairs' contents and the seed only, so it stays the same when rows move or models are added
    to a repository elsewhere. Of every pair of models about the same number of pages is drawn.
    """
    quarrel = [pair for pair in pairs if pair.id in disputed]
    share = {"random": 0.0, "disputed": 1.0, "mixed": 0.3}[design]
    extra = min(round(n * share), len(quarrel))
    count = min(n - extra, len(pairs)) if design != "disputed" else 0
    by_models = defaultdict(list)
    rank = {id_: number for number, id_ in enumerate(keyed_order([pair.id for pair in pairs], seed))}
    for pair in sorted(pairs, key=lambda pair: rank[pair.id]):
        by_models[pair.a["name"], pair.b["name"]].append(pair)
    rounds = [group[turn] for turn in range(len(pairs)) for group in by_models.values() if turn < len(group)]
    drawn = rounds[:count]
    at_random = Counter((pair.a["name"], pair.b["name"]) for pair in drawn)
    taken = {pair.id for pair in drawn}
    added = [pair for pair in sorted(quarrel, key=lambda pair: rank[pair.id]) if pair.id not in taken][:extra]
    left = sum(pair.id not in taken for pair in quarrel)

    def with_probability(pair, name):
        models = pair.a["name"], pair.b["name"]
        chance = at_random[models] / len(by_models[models])
        if pair.id in disputed and left:
            chance += (1 - chance) * len(added) / left
        return pair._replace(inclusion=round(chance, 6), design=name)

    shown = [with_probability(pair, "disputed") for pair in added]
    shown += [with_probability(pair, "random") for pair in drawn]
    return pages_apart_order(shown)


def pages_apart_order(pairs):
    """The pairs in about the same order, but never two of one page in a row where that can be helped."""
    waiting, ordered = list(pairs), []
    while waiting:
        last = ordered[-1].key if ordered else None
        at = next((n for n, pair in enumerate(waiting) if pair.key != last), 0)
        ordered.append(waiting.pop(at))
    return ordered


def showings(pairs, annotator, votes, repeat_share, seed):
    """What an annotator is shown, in order: every pair once, some again with the sides changed.

    Sides are balanced over each pair of models. `votes` are those that the annotator has cast: their order stands.
    """
    judge = f"human:{annotator}"
    cast = {vote["pair_id"]: vote["order"] for vote in votes if vote["judge"] == judge and not vote["repeat"]}
    balance, shown, later = Balance("balanced", f"{seed}/{judge}"), [], []
    for pair in pairs:
        models = pair.a["name"], pair.b["name"]
        if order := cast.get(pair.id):
            balance.count(*models, order)
        else:
            order = balance.take(pair.key, *models)[0]
        shown.append(Showing(comparison_id(pair.id, judge, "", order), pair, order, 0))
        chosen = int(content_hash(f"{seed}/{judge}/{pair.id}")[:8], 16) < repeat_share * 16**8
        if chosen and len(shown) + APART <= len(pairs):
            swapped = "ba" if order == "ab" else "ab"
            later.append((len(shown), Showing(comparison_id(pair.id, judge, "", swapped, 1), pair, swapped, 1)))
    for before, (place, again) in enumerate(later):
        shown.insert(place + before + APART, again)
    return shown


class Booth:
    """The pairs, and the votes of everybody who votes here. Methods may be called from several threads.

    `votes` maps comparison ids to the last vote with that id, withdrawn ones included.
    """

    def __init__(self, bench, pairs, folder, options):
        self.bench, self.pairs, self.options = bench, pairs, options
        self.main = VoteStore(folder)
        self.votes = {vote["comparison_id"]: vote for vote in self.main.rows()}
        self.stores, self.plans, self.lock = {}, {}, threading.RLock()
        self.run_id = f"human-{unique_stamp()}"

    def plan(self, annotator):
        with self.lock:
            if annotator not in self.plans:
                standing_votes = standing(list(self.votes.values()))
                options = self.options
                self.plans[annotator] = showings(
                    self.pairs, annotator, standing_votes, options.repeat_share, options.seed
                )
            return self.plans[annotator]

    def has_vote(self, showing):
        vote = self.votes.get(showing.id)
        return vote is not None and vote["parse_status"] != "withdrawn"

    def pending(self, annotator):
        return [showing for showing in self.plan(annotator) if not self.has_vote(showing)]

    def of(self, annotator):
        """The standing votes of an annotator, in the order in which they were cast."""
        own = [vote for vote in standing(list(self.votes.values())) if vote["judge"] == f"human:{annotator}"]
        return sorted(own, key=lambda vote: vote["created_at"])

    def vote(self, annotator, seen, label, reasons=(), confidence=None, seconds=None):
        """Stores a vote on what was seen; False where that is no open question (a second click, a stale page)."""
        with self.lock:
            showing = next((one for one in self.pending(annotator) if one.id == seen), None)
            if showing is None or self.closed(annotator):
                return False
            pair, keep = showing.pair, self.options.store_text
            details = {"tool": TOOL, "reasons": list(reasons), "confidence": confidence, "inclusion": pair.inclusion,
                       "design": pair.design, "both_bad": label == "both_bad"}  # fmt: skip
            vote = make_vote(
                pair.key, pair.a, pair.b, f"human:{annotator}", showing.order, repeat=showing.repeat,
                facts=json.dumps(self.bench.facts(pair.key), default=str), details=json.dumps(details),
                text_a=stored_text(pair.a["text"], keep), text_b=stored_text(pair.b["text"], keep), latency_s=seconds,
                sample_idx=self.bench.keys.index(pair.key), run_id=self.run_id,
            )  # fmt: skip
            said = {"both_bad": "tie", "skip": None}.get(label, label)
            reason = ", ".join(reasons) or None
            self.keep(annotator, decide(vote, said, "skip" if label == "skip" else "ok", reason))
            return True

    def undo(self, annotator):
        """Withdraws the last standing vote of an annotator on a pair of this bench; False where there is none."""
        with self.lock:
            here = {showing.id for showing in self.plan(annotator)}
            own = [vote for vote in self.of(annotator) if vote["comparison_id"] in here]
            if not own or self.closed(annotator):
                return False
            self.keep(annotator, decide(own[-1], None, "withdrawn"))
            return True

    def keep(self, annotator, vote):
        store = self.stores.setdefault(annotator, VoteStore(self.main.folder))  # a file of its own for everybody
        store.add([vote])
        self.votes[vote["comparison_id"]] = vote

    def close(self, annotator):
        """Ends an annotator's round; returns the sentence that says why it cannot be ended yet, or None."""
        with self.lock:
            done, left = len(self.of(annotator)), len(self.pending(annotator))
            if left and done < ENOUGH:
                return f"{done} votes so far; a round can be closed after {min(ENOUGH, done + left)}."
            self.main.add_run(f"closed-{short_hash(annotator)}", TOOL, {"closed": annotator, "votes": done})
            return None

    def closed(self, annotator):
        return (self.main.folder / f"run-closed-{short_hash(annotator)}.json").exists()


def clean_name(text):
    """An annotator's name as it stands in votes: letters, digits, dot, dash; None where nothing is left."""
    name = re.sub(r"[^\w.@-]+", "-", unicodedata.normalize("NFC", text or "").strip()).strip("-.")
    return name[:60] or None


# ---- What the votes say


def clopper_pearson(hits, count, level=0.95):
    """The exact interval of a share; (None, None) of nothing."""
    from scipy.special import betaincinv

    if not count:
        return None, None
    tail = (1 - level) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return low, high


def kappas(tables, linear=False):
    """Cohen's kappa of each of an array of tables (..., 3, 3) over A, tie, B; NaN where both always say one word.

    `linear` counts a tie against a winner as half a disagreement.
    """
    import numpy as np

    places = np.arange(3)
    apart = np.abs(places[:, None] - places) / 2 if linear else (places[:, None] != places).astype(float)
    total = tables.sum(axis=(-1, -2), keepdims=True)
    share = tables / np.where(total, total, np.nan)
    expected = share.sum(-1, keepdims=True) * share.sum(-2, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = (apart * expected).sum((-1, -2))
        return np.where(chance > 0, 1 - (apart * share).sum((-1, -2)) / chance, np.nan)


def two_raters(both, bootstrap=1000, seed=42):
    """How two raters agree. `both` holds (page, label, label, weight) with labels A, tie, B; figures as a dict.

    Soft is a tie on one side only, hard opposite winners, both with exact intervals. Intervals of agreement and kappa
    come from drawing the pages anew. `weighted` figures count each pair by the inverse of its chance to be shown. None
    where there is nothing to count.
    """
    import numpy as np

    place = {"A": 0, "tie": 1, "B": 2}
    pages = {page: number for number, page in enumerate(sorted({page for page, *_ in both}))}
    tables = np.zeros((max(1, len(pages)), 2, 3, 3))
    for page, first, second, weight in both:
        tables[pages[page], 0, place[first], place[second]] += 1
        tables[pages[page], 1, place[first], place[second]] += weight
    plain, weighted = tables.sum(0)
    count, same = int(plain.sum()), int(np.trace(plain))
    hard = int(plain[0, 2] + plain[2, 0])
    soft, decisive = count - same - hard, int(plain[0, 0] + plain[2, 2]) + hard
    draws = np.random.default_rng(seed).multinomial(len(tables), [1 / len(tables)] * len(tables), size=bootstrap)
    drawn = np.tensordot(draws, tables, 1)

    def agreed(part):
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.trace(part, axis1=-2, axis2=-1) / part.sum((-1, -2))

    def figure(function, column):
        value, values = function(tables.sum(0)[column]), function(drawn[:, column])
        known = values[~np.isnan(values)]
        ends = np.quantile(known, [0.025, 0.975]) if len(known) > bootstrap / 2 else (np.nan, np.nan)
        return [None if np.isnan(number) else round(float(number), 4) for number in (value, *ends)]

    found = {"n": count, "pages": len(pages), "soft": soft, "hard": hard, "decisive": decisive}
    for name, hits in (("soft", soft), ("hard", hard)):
        found[f"{name}_low"], found[f"{name}_high"] = clopper_pearson(hits, count)
    found["decisive_accuracy"] = ratio(decisive - hard, decisive)
    found |= {"agreement": figure(agreed, 0), "weighted_agreement": figure(agreed, 1), "kappa": figure(kappas, 0)}
    found["linear_kappa"] = figure(lambda part: kappas(part, linear=True), 0)
    return found


def krippendorff_alpha(units):
    """Krippendorff's alpha for nominal labels. `units` are lists of labels, one for each pair; None if undefined."""
    coincidences = Counter()
    for labels in units:
        for first, second in ((a, b) for n, a in enumerate(labels) for m, b in enumerate(labels) if n != m):
            coincidences[first, second] += 1 / (len(labels) - 1)
    totals = Counter()
    for (first, _), count in coincidences.items():
        totals[first] += count
    n = sum(totals.values())
    expected = n * n - sum(count**2 for count in totals.values())
    if n <= 1 or not expected:
        return None
    observed = sum(count for (first, second), count in coincidences.items() if first != second)
    return 1 - (n - 1) * observed / expected


def own_consistency(votes):
    """(repeats that got the same answer, repeats) of one annotator: the second time the sides were changed."""
    said = defaultdict(dict)
    for vote in votes:
        if vote["winner"]:
            said[vote["pair_id"]][vote["repeat"] or 0] = vote["winner"]
    both = [times for times in said.values() if {0, 1} <= set(times)]
    return sum(times[0] == times[1] for times in both), len(both)


def labels_by_pair(votes):
    """{pair_id: (page, label)} of the verdicts that these votes amount to, automatic ties aside."""
    verdicts = jury_verdicts([vote for vote in votes if not vote["auto"]])
    return {v["pair_id"]: (v["row_key"], v["winner"]) for v in verdicts if v["winner"]}


def human_report(votes, judge_votes, bootstrap=1000, seed=42):
    """What human votes say, of themselves and beside those of judges, as a JSON-able dict."""
    humans = [vote for vote in votes if is_human(vote["judge"])]
    by_name = defaultdict(list)
    for vote in humans:
        by_name[vote["judge"].removeprefix("human:")].append(vote)
    machine = [vote for vote in judge_votes if not is_human(vote["judge"]) and not vote["auto"]]
    weight = {}
    for vote in humans:
        weight[vote["pair_id"]] = 1 / (json.loads(vote["details"] or "{}").get("inclusion") or 1.0)
    everyone = labels_by_pair(humans)

    def beside(first, second):
        pairs = sorted(set(first) & set(second))
        both = [(first[pair][0], first[pair][1], second[pair][1], weight.get(pair, 1.0)) for pair in pairs]
        return two_raters(both, bootstrap, seed)

    annotators = {}
    for name, own in sorted(by_name.items()):
        same, repeats = own_consistency(own)
        details = [json.loads(vote["details"] or "{}") for vote in own]
        seconds = sorted(vote["latency_s"] for vote in own if vote["latency_s"] is not None)
        annotators[name] = {
            "votes": len(valid_votes(own)), "skipped": sum(vote["parse_status"] == "skip" for vote in own),
            "ties": sum(vote["winner"] == "tie" for vote in valid_votes(own)),
            "both_bad": sum(bool(detail.get("both_bad")) for detail in details), "repeats": repeats,
            "repeats_same": same, "median_seconds": seconds[len(seconds) // 2] if seconds else None,
            "reasons": dict(Counter(word for detail in details for word in detail.get("reasons", ()))),
        }  # fmt: skip
    alone = {name: labels_by_pair(own) for name, own in sorted(by_name.items())}
    units = defaultdict(list)
    for labels in alone.values():
        for pair, (_, label) in labels.items():
            units[pair].append(label)
    judges = {judge: labels_by_pair([vote for vote in machine if vote["judge"] == judge])
              for judge in sorted({vote["judge"] for vote in machine})}  # fmt: skip
    against = {judge: beside(everyone, labels) for judge, labels in judges.items()}
    if len(judges) > 1:
        against["the jury"] = beside(everyone, labels_by_pair(machine))
    return {
        "annotators": annotators,
        "between_annotators": [{"a": a, "b": b, **beside(alone[a], alone[b])} for a, b in combinations(alone, 2)],
        "alpha": krippendorff_alpha([labels for labels in units.values() if len(labels) > 1]),
        "judges": against, "boards": rank_boards(jury_verdicts(humans), bootstrap=bootstrap, seed=seed),
    }  # fmt: skip


def report_text(report, with_judges=True):
    """A report for people."""
    lines = []
    for name, own in report["annotators"].items():
        said = f"{name}: {own['votes']} votes, {own['ties']} ties, {own['skipped']} skipped"
        if own["repeats"]:
            low, high = clopper_pearson(own["repeats_same"], own["repeats"])
            said += f"; {own['repeats_same']} of {own['repeats']} repeats alike ({low:.0%} to {high:.0%})"
        lines.append(said)
    if not with_judges:
        return "\n".join(lines)
    for pair in report["between_annotators"]:
        lines.append(f"{pair['a']} and {pair['b']}: {agreement_line(pair)}")
    if report["alpha"] is not None:
        lines.append(f"Krippendorff's alpha of all annotators: {report['alpha']:.2f}")
    for judge, figures in report["judges"].items():
        lines.append(f"{judge} and humans: {agreement_line(figures)}")
        if figures["n"] and figures["hard_high"] < CLOSE_ENOUGH:
            lines.append(f"  Hard disagreement is below {CLOSE_ENOUGH:.0%}: more votes would change little here.")
    return "\n".join([*lines, "", leaderboard_text(report["boards"])]).strip()


def agreement_line(figures):
    if not figures["n"]:
        return "no pair in common"
    share, low, high = figures["agreement"]
    said = f"{figures['n']} pairs, {share:.0%} alike"
    if figures["weighted_agreement"][0] is not None and figures["weighted_agreement"] != figures["agreement"]:
        said += f" ({figures['weighted_agreement'][0]:.0%} weighted for how pairs were drawn)"
    kappa, low, high = figures["kappa"]
    said += "; kappa undefined" if kappa is None else f"; kappa {kappa:.2f}"
    said += "" if kappa is None or low is None else f" ({low:.2f} to {high:.2f})"
    for name in ("soft", "hard"):
        said += f"; {figures[name]} {name} ({figures[f'{name}_low']:.1%} to {figures[f'{name}_high']:.1%})"
    return said


# ---- What the browser gets


def page_html(showing, image):
    """The page; `data-id` says what is on the screen, and comes back with the vote. `image` is a data URI or None."""
    shown = f'<img src="{image}" alt="the page">' if image else "<p>No image of this page is known (--images).</p>"
    return f'<div id="shown" data-id="{showing.id}">{shown}</div>'


def cut_text(text):
    """A reading as far as it is shown, and a note on what is left out."""
    text = text or ""
    if not text.strip():
        return "", "(no output)"
    left = len(text) - MOST_SHOWN
    return text[:MOST_SHOWN], f"(... {left:,} more characters)" if left > 0 else ""


def texts_html(first, second, view):
    """Two readings as HTML in which nothing of theirs is markup; in view "diff" with the words that differ marked."""
    (first, note), (second, other) = cut_text(first), cut_text(second)
    bodies = word_marks(first, second) if view == "diff" else (html.escape(first), html.escape(second))
    return [
        f'<pre class="reading" dir="auto">{body}<i>{said}</i></pre>'
        for body, said in zip(bodies, (note, other), strict=True)
    ]


def word_marks(first, second):
    """Both texts escaped, with `mark` around the words that the other does not have there."""
    from rapidfuzz.distance import Indel

    sides = [re.findall(r"\s+|\w+|[^\w\s]", text) for text in (first, second)]
    words = [[token for token in side if not token.isspace()] for side in sides]
    changed = (set(), set())
    for code in Indel.opcodes(*words):
        if code.tag != "equal":
            changed[0].update(range(code.src_start, code.src_end))
            changed[1].update(range(code.dest_start, code.dest_end))
    marked = []
    for tokens, places in zip(sides, changed, strict=True):
        parts, number = [], 0
        for token in tokens:
            text = html.escape(token)
            if not token.isspace():
                text = f"<mark>{text}</mark>" if number in places else text
                number += 1
            parts.append(text)
        marked.append("".join(parts))
    return marked


def rendered_markdown(text):
    """A reading for a Markdown component: no pictures (they would be fetched), and only tags that cannot act."""
    import nh3

    text, note = cut_text(text)
    text = re.sub(r"!\[", "[", text)
    spans = {"td": {"colspan", "rowspan"}, "th": {"colspan", "rowspan"}}
    return nh3.clean(text, tags=RENDERED_TAGS, attributes=spans) + (f"\n\n*{note}*" if note else "")


CSS = """
#shown { max-height: 82vh; overflow: auto; border: 1px solid #8886; }
#shown img { width: calc(100% * var(--zoom, 1)); max-width: none; }
.reading { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 78vh; overflow: auto; font-size: 0.95rem; }
.reading mark { background: #ffd54f; color: #000; }
"""
HEAD = """<script>
(() => {
  const keys = {a: 'vote-A', ArrowLeft: 'vote-A', b: 'vote-B', ArrowRight: 'vote-B', t: 'vote-tie',
    ArrowDown: 'vote-tie', x: 'vote-both_bad', s: 'vote-skip', u: 'undo', d: 'next-view'};
  let zoom = 1;
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.closest('textarea, [contenteditable], input:not([type=radio]):not([type=checkbox])')) return;
    const step = {'+': 1.25, '=': 1.25, '-': 0.8, '0': 0}[event.key];
    if (step !== undefined) {
      zoom = step ? zoom * step : 1;
      document.documentElement.style.setProperty('--zoom', zoom);
    }
    const button = document.getElementById(keys[event.key.length === 1 ? event.key.toLowerCase() : event.key]);
    if (button && !button.disabled && button.offsetParent) { event.preventDefault(); button.click(); }
  });
})();
</script>"""
# What is on the screen goes with the click, so that a second click cannot hit a pair that has not been seen.
SEEN = "(seen, ...rest) => [document.getElementById('shown')?.dataset.id || '', ...rest]"


def page_picture(bench, side):
    """A function from a page's key to its image as a data URI, or None; the last ones are kept."""
    import base64
    import io

    @lru_cache(16)
    def picture(key):
        found = bench.image(key)
        if not found:
            return None
        try:
            image = open_page(*found, bounds={"max_side": side}).image
        except PageError as problem:
            say(f"{key}: {problem}")
            return None
        sink = io.BytesIO()
        image.save(sink, "JPEG", quality=88)
        return "data:image/jpeg;base64," + base64.b64encode(sink.getvalue()).decode()

    return picture


def build_app(booth, judge_votes, options):
    """The Gradio app. All state is in the booth; a browser session holds the annotator's name and a clock."""
    import gradio as gr

    picture = page_picture(booth.bench, options.image_side)

    def screen(name, view):
        """Updates of every component, for whoever `name` is."""
        waiting = booth.pending(name) if name else []
        is_over = not waiting or booth.closed(name)
        asking = gr.update(visible=not name)
        if is_over:
            if not name:
                told = "Type your name to begin."
            else:
                told = "The round is closed." if booth.closed(name) else "That was the last pair. Thank you."
                told += " What the votes say is under Results."
            bodies, rendered, page, buttons = ["", ""], ["", ""], f"<p id='over'>{told}</p>", False
        else:
            showing = waiting[0]
            sides = [showing.pair.a["text"], showing.pair.b["text"]][:: 1 if showing.order == "ab" else -1]
            bodies = ["", ""] if view == "rendered" else texts_html(*sides, view)
            rendered = [rendered_markdown(side) for side in sides] if view == "rendered" else ["", ""]
            page, buttons = page_html(showing, picture(showing.pair.key)), True
            if len(waiting) > 1:
                threading.Thread(target=picture, args=(waiting[1].pair.key,), daemon=True).start()
        total = len(booth.plan(name)) if name else 0
        progress = f"<span id='progress'>{total - len(waiting)} of {total}</span> {html.escape(name or '')}"
        return [
            name, time.time(), asking, gr.update(visible=bool(name)), page, *bodies, *rendered, progress, [], None,
            *[gr.update(interactive=buttons)] * 5,
        ]  # fmt: skip

    def name_of(request):
        return getattr(request, "username", None) or options.annotator or request.query_params.get("annotator")

    def arrive(view, request: gr.Request):
        # What is in the field by now may be half a name, and who has pressed Start by now must not be sent back.
        name = name_of(request)
        return screen(clean_name(name), view) if name else gr.skip()

    def begin(typed, view, request: gr.Request):
        return screen(clean_name(name_of(request) or typed), view)

    def voting(label):
        def vote(seen, name, since, view, reasons, confidence):
            if name and seen:
                booth.vote(name, seen, label, reasons or (), confidence, round(time.time() - since, 2))
            return screen(name, view)

        return vote

    def undo(name, view):
        if name:
            booth.undo(name)
        return screen(name, view)

    def results(name, closing):
        told = booth.close(name) if name and closing else None
        open_to_see = bool(name and booth.closed(name)) or not options.blind_judge
        report = human_report(standing(list(booth.votes.values())), judge_votes, options.bootstrap, options.seed)
        text = report_text(report, with_judges=open_to_see) or "No votes yet."
        if not open_to_see:
            text += "\n\nNames, ratings and judges are shown when you have closed your round."
        return f"<pre id='results'>{html.escape(text)}{chr(10) + html.escape(told) if told else ''}</pre>"

    with gr.Blocks(title="OCR: which reading is better?", analytics_enabled=False, fill_width=True) as app:
        name, since, seen = gr.State(None), gr.State(0.0), gr.Textbox(visible=False)
        with gr.Tab("Vote"):
            with gr.Row(visible=not options.annotator) as who:
                typed = gr.Textbox(label="Your name", elem_id="annotator")
                start = gr.Button("Start", elem_id="start")
            with gr.Column(visible=False) as room:
                with gr.Row():
                    buttons = [
                        gr.Button(word, elem_id=f"vote-{label}", min_width=60)
                        for label, word in (("A", "A is better (A)"), ("B", "B is better (B)"), ("tie", "Tie (T)"),
                                            ("both_bad", "Both bad (X)"), ("skip", "Skip (S)"))
                    ]  # fmt: skip
                    back = gr.Button("Take back (U)", elem_id="undo", min_width=60)
                    turn = gr.Button("Show differently (D)", elem_id="next-view", min_width=60)
                    progress = gr.HTML()
                with gr.Row():
                    view = gr.Radio(VIEWS, value=options.show, label="Texts as", elem_id="view")
                    reasons = gr.CheckboxGroup(REASONS, label="What decided it (not needed)")
                    confidence = gr.Radio([1, 2, 3], label="How sure (not needed)")
            with gr.Row():
                page = gr.HTML()
                with gr.Column():
                    gr.Markdown("**A**")
                    left, left_rendered = gr.HTML(elem_id="left"), gr.Markdown(sanitize_html=True)
                with gr.Column():
                    gr.Markdown("**B**")
                    right, right_rendered = gr.HTML(elem_id="right"), gr.Markdown(sanitize_html=True)
        with gr.Tab("Results"):
            look = gr.Button("Show", elem_id="show-results")
            close = gr.Button("Close my round and show everything", elem_id="close-round")
            told = gr.HTML()
        everything = [name, since, who, room, page, left, right, left_rendered, right_rendered, progress, reasons,
                      confidence, *buttons]  # fmt: skip
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        app.load(arrive, [view], everything, **quiet)
        start.click(begin, [typed, view], everything, **quiet)
        typed.submit(begin, [typed, view], everything, **quiet)
        for button, label in zip(buttons, ("A", "B", "tie", "both_bad", "skip"), strict=True):
            sent = [seen, name, since, view, reasons, confidence]
            button.click(voting(label), sent, everything, js=SEEN, **quiet)
        back.click(undo, [name, view], everything, **quiet)
        view.input(screen, [name, view], everything, **quiet)
        turn.click(lambda shown: VIEWS[(VIEWS.index(shown) + 1) % 3], view, view, **quiet).then(
            screen, [name, view], everything, **quiet
        )
        look.click(lambda who: results(who, False), name, told, **quiet)
        close.click(lambda who: results(who, True), name, told, **quiet)
    return app


# ---- The run


def credentials(variable):
    """[(user, password)] of an environment variable. Raises Stop(2)."""
    if not variable:
        return None
    pairs = [tuple(word.split(":", 1)) for word in os.environ.get(variable, "").split(",") if ":" in word]
    if not pairs:
        raise Stop(f"--auth-env {variable}: set it to user:password, several by commas.")
    return pairs


def free_port(host):
    import socket

    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def serve(booth, judge_votes, options):
    """Runs the app until SIGINT or SIGTERM."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    import gradio as gr

    app, stop = build_app(booth, judge_votes, options), threading.Event()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}  # none from the network
    port = options.port or free_port(options.host)
    try:
        _, url, _ = app.launch(
            server_name=options.host, server_port=port, auth=credentials(options.auth_env), prevent_thread_lock=True,
            quiet=True, share=False, css=CSS, head=HEAD, theme=gr.themes.Base(**fonts), footer_links=[], ssr_mode=False,
        )  # fmt: skip
    except OSError as error:
        raise Stop(f"Port {port} of {options.host} cannot be used: {error}. Type --port 0 for any.") from error
    say(f"Vote at {url} (Ctrl-C ends; votes are in {booth.main.folder})")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(1.0):
        pass
    app.close()


def store_folder(options):
    return options.store or f"human-{Path(options.bench[0]).name if options.bench else 'votes'}"


def evaluate(options):
    """Serves or reports; returns the exit code."""
    if not 0 <= options.repeat_share <= 1 or min(options.n, options.image_side, options.bootstrap) < 1:
        raise Stop("--repeat-share lies between 0 and 1; --n, --image-side and --bootstrap count from 1.")
    if options.annotator and not (clean := clean_name(options.annotator)):
        raise Stop(f"--annotator {options.annotator!r}: write a name with letters or digits.")
    elif options.annotator:
        options.annotator = clean
    if options.push:
        check_results(options.push, options.create_pr)
    folder = store_folder(options)
    judge_votes = [vote for place in options.judge_results for vote in read_votes(place)[0]]
    if options.report:
        if not Path(folder).expanduser().is_dir():
            raise Stop(f"There is no folder {folder} with votes. Name it with --store DIR.")
    else:
        if not 0 <= options.port <= 65535:
            raise Stop(f"--port {options.port} is no port. Name one from 1 to 65535, or 0 for any.")
        credentials(options.auth_env)
        VoteStore(folder)
        bench = load_bench(options)
        pairs = list(comparable_pairs(bench))
        if options.pairs_file:
            try:
                wanted = set(Path(options.pairs_file).read_text().split())
            except (OSError, UnicodeDecodeError) as error:
                raise Stop(f"--pairs-file {options.pairs_file} cannot be read: {first_line(error)}.") from error
            pairs = [pair for pair in pairs if pair.id in wanted]
            if not pairs:
                raise Stop(f"--pairs-file {options.pairs_file} names no pair of these readings: ids, by white space.")
        if not pairs:
            raise Stop("No two readings of a page differ, so there is nothing to vote on.")
        disputed = disputed_pairs(judge_votes)
        if options.design == "disputed" and not disputed & {pair.id for pair in pairs}:
            raise Stop("--design disputed: name the votes of at least two judges, or of both orders: --judge-results.")
        chosen = chosen_pairs(pairs, disputed, options.n, options.design, options.seed)
        quarrel = sum(pair.design == "disputed" for pair in chosen)
        say(f"{len(chosen)} of {len(pairs)} pairs to vote on, {quarrel} of them because judges disagree.")
        serve(Booth(bench, chosen, folder, options), judge_votes, options)
    store = VoteStore(folder)
    votes = store.votes()
    report = human_report(votes, judge_votes, options.bootstrap, options.seed)
    say(report_text(report, with_judges=options.report or not options.blind_judge) or "No votes yet.")
    if options.push:
        say(push_votes(options.push, store.rows(), store.runs(), options.create_pr, options.private))
    if not options.report and options.blind_judge:
        report = {"annotators": report["annotators"]}
    print(json.dumps({"store": str(folder), **report, "exit_code": 0}, ensure_ascii=False), flush=True)
    return 0


def run_eval():
    """The exit code: 0 done, 1 stopped (the votes are kept and the same command goes on), 2 usage."""
    return exit_code_of(lambda: evaluate(eval_parser().parse_args()))


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
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

# >>> kit/answers.py
# What one answer is worth, and the conversation about one unit: ask, check, ask again, choose, make the row.


ASK_AGAIN = {"looped", "degenerate"}
# A tail is a loop when it repeats a unit of at most LOOP_UNIT characters over at least LOOP_SPAN characters (dot
# leaders and ruled lines of forms stay below it). Compression, runs of one character counted as three: prose compresses
# 2 to 3 times, registers written to one formula 7, tables of numbers 7, loops that go on for a page 30 and more
# (the texts of tests/unit/test_answers.py; 345 blocks of a public run: prose about 2, loops 6 to 330).
LOOP_UNIT, LOOP_SPAN = 250, 200
LOOP_BYTES, LOOP_RATIO, LOOP_RATIO_TABLE = 2000, 10.0, 20.0


def flags_of(text, finish_reason):
    """Flags of one answer's text: "truncated", and "degenerate" or "looped". Nothing is ever trimmed.

    The finish reason "repetition" is that of an engine which saw the loop itself (`repetition_detection`).
    """
    flags = ["truncated"] if finish_reason == "length" else []
    words = text.split()
    if len(text.strip()) >= 20 and (len(set(text.strip())) == 1 or (len(words) >= 20 and len(set(words)) == 1)):
        return flags + ["degenerate"]
    if finish_reason == "repetition" or loops_at_end(text) or loops_at_end(text[:-50]) or compresses_like_a_loop(text):
        return flags + ["looped"]
    return flags


def loops_at_end(text):
    """True if the text ends in one unit repeated more than 4 * (1 + 3 / length) times over LOOP_SPAN characters."""
    for length in range(1, min(LOOP_UNIT, len(text) // 2) + 1):
        repeats = max(int(4 * (1 + 3 / length)) + 1, -(-LOOP_SPAN // length))
        if length * repeats <= len(text) and text.endswith(text[-length:] * repeats):
            return True
    return False


def compresses_like_a_loop(text):
    data = re.sub(r"(.)\1{3,}", r"\1\1\1", text).encode("utf-8", "replace")
    if len(data) < LOOP_BYTES:
        return False
    table = text.count("<td") >= 20 or len(re.findall(r"^\s*\|.*\|\s*$", text, re.M)) >= 10
    return len(data) / len(zlib.compress(data, 6)) > (LOOP_RATIO_TABLE if table else LOOP_RATIO)


def one_step(request, parse):
    """The `steps` of a recipe whose unit is one page (or one text cell) and one request."""

    def steps(unit, options):
        (answer,) = yield [request(subject(unit), options)]
        return parse(answer, subject(unit), options)

    return steps


def subject(unit):
    """What a recipe's function is given: the Page of a unit with one, the Unit itself for a text or several pages."""
    return unit.pages[0] if len(unit.pages) == 1 else unit


def complete(body, options, recipe, unit=None):
    """The body with the run's sampling and `max_tokens` where it names none, and every image mark given its image."""
    messages = []
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, list):
            content = [
                {"type": "image", "image": unit.pages[0].image} if part == {"type": "image"} and unit else part
                for part in content
            ]
        messages.append({**message, "content": content})
    sampling = {key: getattr(options, key) for key in recipe.get("sampling", {}) if getattr(options, key) is not None}
    return {"max_tokens": options.max_tokens, **sampling, **body, "messages": messages}


def asked_again(body, answer, options, recipe, attempt):
    """The body to ask when `answer` is not good enough, or None when asking again cannot help.

    Loops and degenerate output: warmer, with the sampling opened, since a top_p near 0 or a top_k of 1 would undo the
    temperature. Truncated: as before, with all the room that the context leaves, unless --max-tokens was given.
    """
    if isinstance(answer, Exception):
        return None
    if ASK_AGAIN & set(answer.flags):
        return None if recipe.get("lock_sampling") else warmer(body, attempt)
    room = options.max_model_len - answer.prompt_tokens - 16 if options.max_model_len else 0
    if "truncated" in answer.flags and not options.max_tokens_given and room > body["max_tokens"] * 1.1:
        return {**body, "max_tokens": room}
    return None


def warmer(body, attempt):
    warm = {**body, "temperature": min(body.get("temperature", 0.0) + 0.2 * attempt, 1.0), "top_p": 0.95}
    if "top_k" in warm:
        warm["top_k"] = -1
    return warm


def better(old, new):
    """Of two answers the one without a flag, else the one that stopped by itself, else the first."""
    rank = [(isinstance(a, Exception), bool(getattr(a, "flags", ())), getattr(a, "finish_reason", None) != "stop")
            for a in (old, new)]  # fmt: skip
    return new if rank[1] < rank[0] else old


def converse(item, unit, sha256, options, recipe, steps):
    """The conversation about one unit: a generator that yields lists of complete bodies, is sent their answers in
    the same order (an Answer each, or the exception that one request failed with), and returns the result row.

    Each flagged answer is asked again by itself at most `options.retries` times; a unit whose parser reports
    "unparsed" is read again as a whole; `attempts` counts all rounds. Page-level trouble never raises: it becomes the
    row's `error`.
    """
    started, attempts, parsed, answers, error = time.monotonic(), 0, None, [], None
    for attempt in range(1 + options.retries):
        try:
            attempts += 1
            reading, read = steps(unit, options), []
            bodies = next(reading)
            while True:
                bodies = [complete(body, options, recipe, unit) for body in bodies]
                if attempt and not recipe.get("lock_sampling"):
                    bodies = [warmer(body, attempt) for body in bodies]
                got = checked((yield bodies))
                for again in range(1, 1 + options.retries):
                    retry = {i: asked_again(body, got[i], options, recipe, again) for i, body in enumerate(bodies)}
                    retry = {i: body for i, body in retry.items() if body}
                    if not retry:
                        break
                    attempts += 1
                    for i, answer in zip(retry, checked((yield list(retry.values()))), strict=True):
                        got[i] = better(got[i], answer)
                read += got
                failed = next((a for a in got if isinstance(a, Exception)), None)
                bodies = reading.throw(failed) if failed else reading.send(got)
        except StopIteration as stop:
            if parsed is None or "unparsed" not in stop.value.flags:
                parsed, answers, error = stop.value, read, None
        except Exception as problem:  # a recipe's parser on hostile text, or a request that failed by itself
            if parsed is None:
                answers, error = read, sentence(problem)
            break
        if "unparsed" not in parsed.flags or recipe.get("lock_sampling"):
            break
    return row_of(item, unit, sha256, parsed, answers, attempts, time.monotonic() - started, error)


def checked(answers):
    return [a._replace(flags=tuple(flags_of(a.text, a.finish_reason))) if isinstance(a, Answer) else a for a in answers]


def sentence(problem):
    """An exception as one line for `ocr_error`: PageErrors are sentences already, others get their type in front."""
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, PageError) else f"{type(problem).__name__}: {text}".rstrip(": ")


def row_of(item, unit, sha256, parsed, answers=(), attempts=0, seconds=0.0, error=None):
    """The result row of one item: see CLAUDE.md for its keys. `unit` is None where nothing could be decoded."""
    answers = [a for a in answers if isinstance(a, Answer)]
    kept = answers if error or parsed is None or parsed.answers is None else parsed.answers
    flags = dict.fromkeys(flag for a in kept for flag in a.flags)
    if parsed is not None:
        flags |= dict.fromkeys(parsed.flags)
    if unit is not None and any(page.partial for page in unit.pages):
        flags["partial"] = None
    return {
        "id": item.id, "row": item.row, "page": item.page, "pages": item.pages, "name": item.name,
        "text": parsed.markdown if parsed and not error else None,
        "blocks": json.dumps(parsed.blocks, ensure_ascii=False) if parsed and not error and parsed.blocks else None,
        "error": error or (None if parsed else "nothing was read"),
        "flags": list(flags),
        "attempts": attempts,
        "finish_reason": kept[-1].finish_reason if kept else None,
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "completion_tokens": sum(a.completion_tokens for a in answers),
        "seconds": round(seconds, 3),
        "sha256": sha256,
        "columns": parsed.columns if parsed and not error else {},
    }  # fmt: skip


def failed_row(item, problem):
    """The row of an item that never reached the model."""
    return row_of(item, None, None, None, error=problem if isinstance(problem, str) else sentence(problem))


# <<< kit/answers.py

# >>> kit/blocks.py
# The blocks document: one form for every model's boxes, so that one exporter serves all.


BLOCK_LABELS = (
    "title", "header", "footer", "page_number", "heading", "text", "list", "caption", "footnote", "table", "formula",
    "picture", "code", "form", "toc", "reference", "seal", "other",
)  # fmt: skip


def blocks_document(page, blocks, size=None):
    """Blocks document of one page: pixels of the original, x right, y down, clipped to the page.

    `blocks` are dicts with `bbox` [x0, y0, x1, y1] and any of `label`, `content`, `format` ("html", "latex",
    "markdown", "text"), `confidence`, `raw_label`; their order is the reading order. `size` is the
    (width, height) of the space the boxes are in: (1000, 1000) for normalised ones, `page.image.size` for pixels of
    what the model saw (the default). A box that is no four numbers, or has no area on the page, becomes null: its
    content stays. Raises ValueError for a label outside BLOCK_LABELS.
    """
    width, height = size or page.image.size
    document = {"schema": "ocr-blocks/1", "width": page.width, "height": page.height, "blocks": []}
    if page.dpi:
        document["dpi"] = page.dpi
    for order, block in enumerate(blocks):
        label = block.get("label", "text")
        if label not in BLOCK_LABELS:
            raise ValueError(f"unknown block label {label!r}; choose one of {', '.join(BLOCK_LABELS)}")
        document["blocks"].append(
            {
                "order": order,
                "label": label,
                "bbox": box_on_page(block.get("bbox"), page, width, height),
                "content": block.get("content", ""),
                "format": block.get("format", "text"),
                "confidence": block.get("confidence"),
                "raw_label": block.get("raw_label", label),
            }
        )
    return document


def box_on_page(box, page, width, height):
    """Box in a `width` x `height` space as [x0, y0, x1, y1] whole pixels of the original page, or None."""
    try:
        x0, y0, x1, y1 = (float(value) for value in box)
        x0, x1 = sorted((x0 * page.width / width, x1 * page.width / width))
        y0, y1 = sorted((y0 * page.height / height, y1 * page.height / height))
        x0, x1 = (min(max(round(x), 0), page.width) for x in (x0, x1))
        y0, y1 = (min(max(round(y), 0), page.height) for y in (y0, y1))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return [x0, y0, x1, y1] if x0 < x1 and y0 < y1 else None


# <<< kit/blocks.py

# >>> kit/grounding.py
# Text with boxes as DeepSeek-OCR and Unlimited-OCR write it: readers of both dialects, their Markdown and blocks.


# An open vocabulary: what is not here becomes "other" and keeps its word in `raw_label`.
GROUNDING_LABELS = {
    "title": "title", "doc_title": "title", "sub_title": "heading", "paragraph_title": "heading",
    "section_title": "heading", "text": "text", "paragraph": "text", "aside_text": "text", "list": "list",
    "table": "table", "image": "picture", "figure": "picture", "picture": "picture", "chart": "picture",
    "caption": "caption", "image_caption": "caption", "figure_caption": "caption", "table_caption": "caption",
    "chart_caption": "caption", "figure_title": "caption", "table_title": "caption", "image_title": "caption",
    "equation": "formula", "formula": "formula", "display_formula": "formula", "code": "code", "algorithm": "code",
    "code_block": "code", "header": "header", "page_header": "header", "footer": "footer", "page_footer": "footer",
    "page_number": "page_number", "footnote": "footnote", "page_footnote": "footnote", "table_footnote": "footnote",
    "image_footnote": "footnote", "toc": "toc", "table_of_contents": "toc", "reference": "reference",
    "ref_text": "reference", "seal": "seal", "form": "form",
}  # fmt: skip
BOX = re.compile(r"\[\s*(-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+(?:\.\d+)?){3})\s*\]")
END_TOKEN = "<｜end▁of▁sentence｜>"


def ref_spans(text):
    """Spans of DeepSeek-OCR's dialect, `<|ref|>label<|/ref|><|det|>[[x0, y0, x1, y1], ...]<|/det|>text`.

    A span is (label, boxes, text): boxes of 4 numbers, maybe none; label None for text outside of spans. A span that
    is broken or cut off keeps what is whole.
    """
    before, *pieces = text.replace(END_TOKEN, "").split("<|ref|>")
    spans = [(None, [], before)]
    for piece in pieces:
        label, closed, rest = piece.partition("<|/ref|>")
        if not closed:
            spans.append((None, [], "" if piece.strip().isidentifier() else piece))
            continue
        det = re.match(r"\s*<\|det\|>(?:(.*?)<\|/det\|>|[\s\d.,\[\]-]*)", rest, re.DOTALL)
        inside = det[0] if det else ""
        spans.append((label.strip(), boxes_in(inside), rest[len(inside) :]))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def det_spans(text):
    """Spans, as of `ref_spans`, of Unlimited-OCR's dialect, `<|det|>label [x0, y0, x1, y1]<|/det|>text`."""
    before, *pieces = re.sub(r"<\|/?ref\|>", "", text.replace(END_TOKEN, "")).split("<|det|>")
    spans = [(None, [], before)]
    for piece in pieces:
        inside, closed, after = piece.partition("<|/det|>")
        if not closed:
            inside = re.match(r"[\w ]*\[[\d\s.,-]*\]?|", piece)[0]
            after = "" if piece.strip().isidentifier() else piece[len(inside) :]
        spans.append((inside.partition("[")[0].strip() or None, boxes_in(inside), after))
    return [(label, boxes, said.strip()) for label, boxes, said in spans if label or boxes or said.strip()]


def boxes_in(text):
    return [[float(number) for number in found.split(",")] for found in BOX.findall(text)]


def spans_markdown(spans):
    """The text of all spans in their order; pictures have none, they are in the blocks."""
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(text for _, _, text in spans if text))


def spans_blocks(spans):
    """Blocks for `blocks_document` with the size (999, 999): one per box. Of several boxes the first has the text."""
    blocks = []
    for label, boxes, text in spans:
        kind = GROUNDING_LABELS.get((label or "text").lower().replace(" ", "_"), "other")
        form = "html" if text.startswith("<table") else "latex" if kind == "formula" else "markdown"
        for place, box in enumerate(boxes or ([None] if text else [])):
            blocks.append(
                {
                    "bbox": box,
                    "label": kind,
                    "raw_label": label or "text",
                    "format": form,
                    "content": "" if place else text,
                }
            )
    return blocks


def ref_parsed(text, page, asked, said_in_tags=False):
    r"""Parsed of an answer in DeepSeek-OCR's dialect, as upstream's scripts make it: tags gone, `\coloneqq` and
    `\eqqcolon` as `:=` and `=:`; "unparsed" where boxes were `asked` for and none came.

    With `said_in_tags` the tagged words are the text itself, unless a text follows them; then they are a label.
    """
    if said_in_tags and text.rfind("<|/ref|>") < text.rfind("<|ref|>"):
        text += "<|/ref|>"  # cut off within the text
    spans = ref_spans(text.replace("\\coloneqq", ":=").replace("\\eqqcolon", "=:"))
    if said_in_tags:
        spans = [(label if said else "text", boxes, said or label) for label, boxes, said in spans]
    boxed = any(boxes for _, boxes, _ in spans)
    blocks = blocks_document(page, spans_blocks(spans), (999, 999)) if boxed else None
    return Parsed(spans_markdown(spans), blocks, flags=["unparsed"] if asked and spans and not boxed else [])


# <<< kit/grounding.py

# >>> kit/plain_text.py
# What a reader would see of an OCR answer: one text for judge and scorer, whatever markup a model writes.


PLAIN_HTML_BLOCKS = (
    "address article aside blockquote body br caption center col colgroup dd details div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section select "
    "summary table tbody td tfoot th thead title tr ul"
).split()
PLAIN_HTML_INLINE = (
    "a abbr b bdi bdo big button chem cite code del dfn em font i img input ins kbd label mark math meta link q "
    "ruby rp rt s samp small span strike strong sub sup svg time tt u var wbr"
).split()
# Tags of models: Nanonets (page_number, watermark, signature), page wrappers, answers of reasoning models.
PLAIN_MODEL_TAGS = ["answer", "image", "otsl", "page", "page_number", "signature", "watermark"]
PLAIN_DOCTAGS = (
    "chart checkbox_selected checkbox_unselected code doctag document_index footnote formula inline key "
    "key_value_region list_item ordered_list page_break page_footer page_header paragraph picture reference text "
    "title unordered_list value"
).split()
# A tag ends before the next "<", so that the search stays linear on hostile text; a tag cut off at the end counts.
PLAIN_BLOCK_TAG, PLAIN_INLINE_TAG, PLAIN_DOC_TAG = (
    re.compile(rf"</?(?:{'|'.join(names)})(?=[\s/>]|\Z)[^<>]*(?:>|\Z)", re.IGNORECASE)
    for names in (
        PLAIN_HTML_BLOCKS + PLAIN_MODEL_TAGS,
        PLAIN_HTML_INLINE,
        [*PLAIN_DOCTAGS, r"section_header_level_\d+"],
    )
)
PLAIN_UNSEEN = re.compile(
    r"<(script|style|template|think)(?=[\s>])[^<>]*>.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE
)
PLAIN_HTML_TABLE = re.compile(r"<table(?=[\s>])[^<>]*>.*?(?:</table\s*>|\Z)", re.DOTALL | re.IGNORECASE)
PLAIN_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
PLAIN_FRONT_MATTER = re.compile(r"\A\s*---\n(?:[\w-]+:[^\n]*\n)+---(?:\n|\Z)")
PLAIN_FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[\w+-]*[ \t]*$", re.MULTILINE)
PLAIN_RULE = re.compile(r"[-*_=](?:[ \t]*[-*_=]){2,}")
PLAIN_TABLE_LINE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?[ \t]*)?")
PLAIN_MATH = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:[^\\]|\\[^\[\]])+)\\\]|\\\(((?:[^\\]|\\[^()])+)\\\)|(?<![\\$\w])\$(?![\s$])([^$\n]{1,500}?)(?<![\s\\])\$(?![\d$])",
)
PLAIN_CELL = "\0"  # stands between two cells until the end: no printed bar is taken for it


def to_plain_text(text, cell=" | "):
    """Plain text of Markdown, HTML, OTSL, DocTags or grounded text: words in their order, no markup.

    Rows of tables become lines with `cell` between the cells. Removed are boxes and their labels, page wrappers, front
    matter, fences, pictures, comments, hidden HTML, and the marks of headings, lists, emphasis and formulas; LaTeX
    inside of formulas stays. Angle brackets that are no known tag (`<torn>`, `<illegible>`) stay. Blank lines are at
    most one in a row. Never raises on a str; cut and broken markup is read as far as it goes.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace(PLAIN_CELL, " ")
    text = re.sub(r"[^\S\n]+", " ", text)
    if "<|ref|>" in text:
        text = spans_markdown(ref_spans(text))
    elif "<|det|>" in text:
        text = spans_markdown(det_spans(text))
    text = PLAIN_UNSEEN.sub("\n", text)
    text = PLAIN_FENCE.sub("", PLAIN_FRONT_MATTER.sub("", text))
    text = drop_tags(text)
    text = drop_markdown(text)
    text = re.sub(rf"[^\S\n]*{PLAIN_CELL}[^\S\n]*", cell.replace("\\", r"\\"), re.sub(r"[^\S\n]+", " ", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def drop_tags(text):
    if re.search(r"<(?:loc_\d+|doctag)>", text):
        text = PLAIN_DOC_TAG.sub("\n", re.sub(r"<loc_\d+>", "", text))
    # OTSL: a token opens a cell; continuations of merged cells have no text.
    text = re.sub(r"(?<![ \t])[ \t]*<nl>[ \t]*", "\n", re.sub(r"<(?:lcel|ucel|xcel)>", "", text))
    text = re.sub(r"(?:(?<=\n)|\A|(?<=<otsl>))[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", "", text)
    text = re.sub(r"(?<![ \t])[ \t]*<(?:fcel|ecel|ched|rhed|srow)>", PLAIN_CELL, text)
    text = PLAIN_HTML_TABLE.sub(lambda found: plain_table(found[0]), text)
    text = PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub("\n", text))
    return PLAIN_ENTITY.sub(lambda found: html.unescape(found[0]), text)


def plain_table(table):
    table = re.sub(r"</(?:caption|thead|tbody|tr)\s*>|<tr(?=[\s>])[^<>]*>", "\n\n", " ".join(table.split()), flags=re.I)
    table = re.sub(r"<t[dh](?=[\s/>])[^<>]*>", PLAIN_CELL, table, flags=re.IGNORECASE)
    rows = (
        PLAIN_INLINE_TAG.sub("", PLAIN_BLOCK_TAG.sub(" ", row)).strip().removeprefix(PLAIN_CELL)
        for row in table.split("\n")
    )
    return "\n\n" + "\n".join(row for row in rows if row) + "\n\n"


def drop_markdown(text):
    text = re.sub(r"!\[[^\[\]\n]*\]\([^)\n]*\)", "", text)
    text = re.sub(r"\[([^\[\]\n]+)\]\((?:https?:|mailto:|#|/|\./)[^)\n]*\)", r"\1", text)
    text = re.sub(r"\[\^([^\]\s]{1,20})\]:?", r"\1", text)
    text = PLAIN_MATH.sub(lambda found: next(filter(None, found.groups())).strip(), text)
    text = "\n".join(plain_lines(text.split("\n")))
    inside = r"([^{0}\s](?:(?:[^{0}\n]|\n(?!\n))*[^{0}\s])?)"
    for mark in (r"\*\*", r"(?<![*\w\\])\*(?!\*)", r"\*\*", r"(?<![\w\\])__?"):
        letter = "_" if "_" in mark else "*"
        close = {r"\*\*": r"\*\*", "_": r"__?(?!\w)"}.get(letter if letter == "_" else mark, r"\*(?![*\w])")
        text = re.sub(mark + inside.format(letter) + close, r"\1", text)
    text = re.sub(r"~~([^~\n]+)~~", r"\1", text)
    text = re.sub(r"`([^`\n]+)`", r"\1", text)
    return re.sub(r"\\([\\`*_{}\[\]()#+\-.!|$%&<>~])", r"\1", text)


def plain_lines(lines):
    in_table = False
    for number, line in enumerate(lines):
        line = line.strip()
        if PLAIN_TABLE_LINE.fullmatch(line):
            in_table = True
            continue
        if PLAIN_RULE.fullmatch(line):
            continue
        opens = number + 1 < len(lines) and "|" in line and PLAIN_TABLE_LINE.fullmatch(lines[number + 1].strip())
        in_table = bool(opens) or (in_table and "|" in line)
        if in_table or (line.startswith("|") and line.endswith("|") and line.count("|") > 1):
            inner = line.removeprefix("|")
            inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
            yield PLAIN_CELL.join(part.strip() for part in re.split(r"(?<!\\)\|", inner))
            continue
        line = re.sub(r"^(?:> ?)+", "", line)
        line = re.sub(r"^#{1,6}(?:[ \t]+|$)", "", line)
        line = re.sub(r"^[-*+] \[([ xX])\] ", lambda found: "☐ " if found[1] == " " else "☑ ", line)
        yield re.sub(r"^[-*+•][ \t]+", "", line)


# <<< kit/plain_text.py

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

# >>> kit/bench_outputs.py
# The outputs of several models over the same pages, joined on what identifies a page and never on its position.


# What may identify a page, the surest first; the first that is filled and unique in every output decides. Rows of a
# multi-page file share all but the page number.
PAGE_KEYS = (
    ("image_sha256",),
    ("image_sha256", "source_row"),
    ("b_number", "page_index"),
    ("source_row",),
    ("id",),
    ("file_name",),
    ("name",),
)
PAGE_NUMBERS = ("ocr_page", "page")  # the first that is there: `page` may be a column of the input's own
TEXT_NAMES = ("markdown", "ocr", "text")  # names of text columns; "text" only as it stands
NOT_TEXT = re.compile(r"(^|_)(error|flags|status|page|info|blocks|sha256|finish_reason)$")
SUSPECT_FLAGS = {"truncated", "looped", "degenerate", "unparsed"}
GOOD_STATUS = {"", "ok", "success", "done", "completed"}
USABLE = ("ok", "blank", "suspect")


class Output(NamedTuple):
    """One model's reading of one page. `state`:

    "ok"; "error", with the reason in `error` and no text; "blank", nothing visible; "suspect", with the reasons in
    `flags`: a loop, an answer cut at the token limit, or a broken protocol.
    """

    text: str | None
    state: str
    error: str | None = None
    flags: tuple = ()


@dataclass
class Contestant:
    """One model's run: `outputs` maps a page's key to its `Output`, for every page of the bench.

    `name` is unique in the bench: the model id, or `short (config)` where two runs have the same model. `revision` is
    the commit that was read, None for a folder. `kind` is the column's type, `missing` how many pages it has no row
    for. `info` is the entry of `inference_info` that both `model` and `column` are from ({} where there is none).
    """

    name: str
    model: str
    config: str
    revision: str | None
    column: str
    kind: str
    info: dict
    outputs: dict = field(default_factory=dict)
    missing: int = 0

    def coverage(self):
        """Pages with usable output by pages attempted."""
        return sum(output.state in USABLE for output in self.outputs.values()) / max(1, len(self.outputs))

    def states(self):
        """How many pages are in each state."""
        return dict(Counter(output.state for output in self.outputs.values()))


@dataclass
class Bench:
    """All runs over the same pages.

    `keys` are the pages in a stable order; `key_columns` what they are made of; `image(key)` gives `(data, frame)` for
    `open_page`, or None where no image is known; `facts(key)` the columns of the input that all runs carry, for
    strata; `source` the dataset or folders, `revision` the commit of its main branch or None.
    """

    source: str
    revision: str | None
    contestants: list
    keys: list
    key_columns: tuple
    pages: dict = field(repr=False, default_factory=dict)  # key -> (table, row number) of the first run with the page
    images: object = field(repr=False, default=None)

    def facts(self, key):
        table, row = self.pages[key]
        return {name: values[row] for name, values in table.facts.items()}

    def image(self, key):
        table, row = self.pages[key]
        return table.image(row) or (self.images(table, row) if self.images else None)


@dataclass
class Table:
    """The rows of one config or folder before they are joined: `columns` maps names to lists, images left out.

    `image(row)` gives `(data, frame)` or None, `types` the type of every column as text, `facts` are the columns of
    the input (strings, numbers).
    """

    config: str
    revision: str | None
    columns: dict
    types: dict
    image: object
    facts: dict = field(default_factory=dict)


def add_bench_options(add):
    """The options that say which outputs to read; `add` is `parser.add_argument`."""
    add("bench", metavar="BENCH", nargs="*", help="dataset ns/name with one config per model, or one folder per model")
    add("--configs", nargs="+", metavar="NAME", help="these configs only")
    add("--columns", nargs="+", metavar="NAME", help="these text columns of one table only")
    add("--from-prs", action="store_true", help="only configs in open pull requests, whose titles end with [CONFIG]")
    add("--text-column", action="append", default=[], metavar="CONFIG=COLUMN", help="where a config has its text")
    add("--row-key", metavar="COLUMN", help="column that identifies a page (default: image_sha256, then others)")
    add("--assume-aligned", action="store_true", help="row n of every config is the same page; nothing is checked")
    add("--split", default="train", help="split of the dataset (default train)")
    add("--images", metavar="FOLDER", help="folder with the page images, where the outputs do not hold them")
    add("--max-samples", type=whole_number, metavar="N", help="N pages only, drawn at random")
    add("--seed", type=int, default=42, help="seed of every draw (default 42)")


def load_bench(options, least=2):
    """The `Bench` of at least `least` runs that the options of `add_bench_options` name, described on stderr.

    Discovery: `--columns`; `--configs`; `--from-prs`; folders; else open pull requests and the configs of the main
    branch (without `default`, a pull request wins), else all text columns of one table. Raises Stop where outputs are
    missing, ambiguous, or cannot be joined.
    """
    places = [options.bench] if isinstance(options.bench, str) else options.bench
    if not places:
        raise Stop("Name a dataset (ns/name) with one config per model, or one folder per model.")
    chosen = dict(word.split("=", 1) for word in options.text_column if "=" in word)
    if bad := [word for word in options.text_column if "=" not in word]:
        raise Stop(f"--text-column {bad[0]}: write CONFIG=COLUMN.")
    folders = [place for place in places if os.path.isdir(os.path.expanduser(place))]
    if folders and len(folders) < len(places):
        raise Stop(f"{next(p for p in places if p not in folders)} is no folder here; name folders or one dataset.")
    if folders:
        tables, revision = [folder_table(place) for place in model_folders(folders)], None
        # The outputs of one bench lie side by side. Only the name of the folder around them: results are published.
        source = os.path.basename(os.path.commonpath([os.path.abspath(os.path.expanduser(p)) for p in folders]))
        runs = [(table, *text_of_config(table, chosen.get(table.config))) for table in tables]
    elif len(places) == 1 and re.fullmatch(r"[\w.-]+/[\w.-]+", places[0]):
        source = places[0]
        tables, revision, flat = hub_tables(source, options)
        if flat:
            runs = [(tables[0], column, info) for column, info in text_columns(tables[0], options.columns).items()]
        else:
            runs = [(table, *text_of_config(table, chosen.get(table.config))) for table in tables]
    else:
        raise Stop(f"{places[0]} is no folder here; name one dataset (ns/name), or one folder per model.")
    if unknown := set(chosen) - {table.config for table in tables}:
        raise Stop(f"--text-column: no config {min(unknown)}. There are {', '.join(t.config for t in tables)}.")
    if len(runs) < least:
        raise Stop(f"Only one run, {runs[0][0].config} ({runs[0][1]}), and it takes {least}: --configs or --columns.")
    bench = join_runs(runs, options)
    bench.source, bench.revision = source, revision
    if options.images:
        if not os.path.isdir(os.path.expanduser(options.images)):
            raise Stop(f"--images {options.images} is no folder here.")
        bench.images = lambda table, row: image_in_folder(options.images, table, row)
    if options.max_samples and options.max_samples < len(bench.keys):
        drawn = set(random.Random(options.seed).sample(sorted(bench.keys), options.max_samples))
        bench.keys = [key for key in bench.keys if key in drawn]
        for contestant in bench.contestants:
            contestant.outputs = {key: contestant.outputs[key] for key in bench.keys}
    describe_bench(bench)
    return bench


def describe_bench(bench):
    """Says what was understood of every run, before anything is spent: column, type, states, an excerpt."""
    say(f"{len(bench.keys):,} pages of {bench.source}, told apart by {' and '.join(bench.key_columns)}:")
    for one in bench.contestants:
        text = next((o.text for o in one.outputs.values() if o.state == "ok"), "")
        excerpt = " ".join(text.split())[:60]
        states = ", ".join(f"{count} {state}" for state, count in sorted(one.states().items()))
        say(f"  {one.name}: column {one.column} ({one.kind}) of {one.config}; {states}; {excerpt!r}")
        if one.missing:
            say(f"    {one.missing} of {len(bench.keys)} pages have no row in {one.config} and count as errors")


# ---- What is there


def hub_tables(repo, options):
    """(tables, commit of the main branch, whether it is one table with a column per model) of a Hub dataset."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        revision = persist(lambda: api.dataset_info(repo), FIRST_PATIENCE).sha
        requests = {} if options.columns else pull_request_configs(api, repo)
    except Exception as error:
        raise Stop(f"The dataset {repo} cannot be read: {first_line(error)}. Check the name and HF_TOKEN.") from error
    names = [] if options.columns or options.from_prs else main_configs(repo, revision)
    if options.from_prs and not requests:
        raise Stop(f"{repo} has no open pull request whose title ends with [CONFIG]. Leave --from-prs out.")
    if options.columns or (not requests and names in ([], ["default"])):
        config = (options.configs or names or [None])[0]
        return [hub_table(repo, config, revision, options.split)], revision, True
    found = {name: revision for name in names if name != "default" or options.configs} | requests
    if unknown := sorted(set(options.configs or ()) - set(found)):
        raise Stop(f"{repo} has no config {', '.join(unknown)}. It has {', '.join(found)}.")
    wanted = options.configs or list(found)
    return [hub_table(repo, name, found[name], options.split) for name in wanted], revision, False


def pull_request_configs(api, repo):
    """{config: commit} of the open pull requests whose title ends with [CONFIG]; of two, the newer one."""
    found = {}
    listed = partial(api.get_repo_discussions, repo, repo_type="dataset", discussion_type="pull_request")
    for request in sorted(persist(lambda: list(listed())), key=lambda request: request.num):
        name = re.search(r"\[([^\[\]]+)\]\s*$", request.title)
        if request.status not in ("open", "draft") or not name:
            continue
        if name[1] in found:
            say(f"Two open pull requests of {repo} hold the config {name[1]}: the newer one, {request.num}, is read.")
        ref = f"refs/pr/{request.num}"
        found[name[1]] = persist(lambda ref=ref: api.dataset_info(repo, revision=ref)).sha
    return found


def main_configs(repo, revision):
    from datasets import get_dataset_config_names

    try:
        return persist(lambda: get_dataset_config_names(repo, revision=revision))
    except Exception:  # a repository without data of its own, whose runs are all in pull requests
        return []


def hub_table(repo, config, revision, split):
    """One config of a Hub dataset as a `Table`. Images stay on disk, undecoded. Raises Stop."""
    from datasets import Image, load_dataset

    try:
        rows = persist(lambda: load_dataset(repo, config, split=split, revision=revision))
    except Exception as error:
        raise Stop(f"The config {config} of {repo} ({revision}) cannot be read: {first_line(error)}.") from error
    pictures = [name for name, feature in rows.features.items() if isinstance(feature, Image)]
    for name in pictures:
        rows = rows.cast_column(name, Image(decode=False))
    plain = [name for name, f in rows.features.items() if name not in pictures and getattr(f, "dtype", "") != "binary"]
    columns = rows.select_columns(plain).to_dict()
    types = {name: getattr(rows.features[name], "dtype", "list") for name in plain}

    def image(row):
        cell = rows[row][pictures[0]] if pictures else None
        data = cell and (cell.get("bytes") or cell.get("path"))
        return (data, max(0, page_number(columns, row) - 1)) if data else None

    return Table(config or "default", revision, columns, types, image, passed_through(columns, types))


def page_number(columns, row):
    name = next((name for name in PAGE_NUMBERS if name in columns), None)
    value = columns[name][row] if name else None
    return value if isinstance(value, int) else 1


def passed_through(columns, types):
    """The columns that describe the page rather than a reading of it: short strings and numbers."""
    own = {"inference_info", "source_row", "image_sha256", *PAGE_NUMBERS}
    return {
        name: values
        for name, values in columns.items()
        if name not in own and not NOT_TEXT.search(name) and types[name] in ("string", "int64", "int32", "bool")
        and all(value is None or len(str(value)) <= 200 for value in values)
    }  # fmt: skip


def model_folders(folders):
    """The folders that hold outputs: those named, or the subfolders of one that holds a folder for each model."""
    found = []
    for folder in map(Path, map(os.path.expanduser, folders)):
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
        runs = [path for path in below if (path / "_run").is_dir()]
        found += runs if runs and not (folder / "_run").is_dir() else [folder]
    return found


def folder_table(folder):
    """What a recipe (or anyone) wrote into a folder, `NAME.md` with or without `NAME.json`, as a `Table`.

    The pages that failed are those of `_run/errors-*.jsonl`, unless their `.md` is there.
    """
    folder = Path(folder)
    texts = {}
    for path in sorted(folder.rglob("*.md")):
        name = path.relative_to(folder).as_posix()
        if not any(part.startswith((".", "_")) for part in name.split("/")):
            texts[name.removesuffix(".md")] = path
    notes = {}
    for path in sorted(folder.glob("_run/errors-*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            try:
                note = parse_json(line)
                notes[note["name"]] = note
            except (ValueError, KeyError, TypeError) as error:
                raise Stop(f"{path} is damaged: {first_line(error)}. Repair or remove it.") from error
    if not texts and not notes:
        raise Stop(f"{folder} holds no .md files: no outputs to compare. Name the folder that a recipe wrote to.")
    rows = []
    for name in sorted(set(texts) | set(notes)):
        page = {"name": name, "text": None, "error": None, "flags": [], "page": 1}
        if name in texts:
            side = texts[name].with_name(texts[name].name.removesuffix(".md") + ".json")
            page |= read_json(side) if side.exists() else {}
            page |= {"name": name, "text": read_utf8(texts[name]), "error": None}
        else:
            page |= notes[name]
        rows.append(page)
    fields = {"name": "name", "id": "id", "image_sha256": "sha256", "page": "page", "markdown": "text",
              "ocr_error": "error", "ocr_flags": "flags", "finish_reason": "finish_reason",
              "inference_info": "inference_info"}  # fmt: skip
    columns = {name: [row.get(key) for row in rows] for name, key in fields.items()}
    # The column's own name in the run does not matter here: a folder has one text per page.
    for entries in filter(None, columns["inference_info"]):
        entries[-1]["column_name"] = "markdown"
    if not all(columns["id"]):  # written by something else: the name is all that there is
        del columns["id"]
    types = dict.fromkeys(columns, "string")
    facts = {"folder": [os.path.dirname(row["name"]) for row in rows]}
    return Table(folder.name, None, columns, types, lambda row: None, facts)


def image_in_folder(folder, table, row):
    """`(path, frame)` of a page's image below `folder`, by the id or the name that its output has; None if none."""
    page = page_number(table.columns, row)
    for column in ("id", "file_name", "name"):
        said = (table.columns.get(column) or {row: None})[row]
        stem = re.sub(r"/page_\d+$", "", said) if isinstance(said, str) else ""
        path = os.path.join(os.path.expanduser(folder), stem)
        if stem and os.path.isfile(path):
            return path, page - 1
        there = os.path.dirname(path)
        for name in sorted(os.listdir(there)) if stem and os.path.isdir(there) else ():
            if os.path.splitext(name)[0] == os.path.basename(path) and not name.endswith((".md", ".json", ".txt")):
                return os.path.join(there, name), page - 1
    return None


# ---- Which column, which model


def info_entries(table):
    """The entries of the first `inference_info` that is filled: a JSON list, but objects and strings are met too."""
    for value in table.columns.get("inference_info") or ():
        try:
            entries = parse_json(value) if isinstance(value, str) else value
        except ValueError:
            continue
        entries = entries if isinstance(entries, list) else [entries]
        if entries := [entry for entry in entries if isinstance(entry, dict)]:
            return entries
    return []


def column_of(entry):
    return entry.get("column_name") or entry.get("output_column")


def text_of_config(table, chosen=None):
    """(text column, entry of inference_info) of a config: both from the last entry, the run that made the config.

    `chosen` is the column of `--text-column`, with the last entry that names it. Raises Stop where several columns
    could be the text, or none.
    """
    entries, strings = info_entries(table), [name for name, kind in table.types.items() if "string" in kind]
    if chosen:
        if chosen not in table.columns:
            raise Stop(f"--text-column: {table.config} has no column {chosen}. It has {', '.join(table.columns)}.")
        return chosen, next((entry for entry in reversed(entries) if column_of(entry) == chosen), {})
    if entries and column_of(entries[-1]) in table.columns:
        return column_of(entries[-1]), entries[-1]
    candidates = [name for name in strings if not NOT_TEXT.search(name)]
    for word in TEXT_NAMES:
        found = [name for name in candidates if name == word or (word != "text" and word in name)]
        if len(found) > 1:
            raise Stop(
                f"{table.config} has several text columns: {', '.join(found)}. "
                f"Type --text-column {table.config}={found[0]}, or the other."
            )
        if found:
            return found[0], entries[-1] if entries and not column_of(entries[-1]) else {}
    raise Stop(
        f"{table.config} has no column that looks like text; it has {', '.join(table.columns)}. "
        f"Type --text-column {table.config}=COLUMN."
    )


def text_columns(table, columns=None):
    """{text column: entry} of a table with a column for each model.

    Those of `columns`, those that inference_info names, or those whose name says so. Raises Stop where there is none.
    """
    named = {column_of(entry): entry for entry in info_entries(table)}
    if unknown := [name for name in columns or () if name not in table.columns]:
        raise Stop(f"--columns: no column {', '.join(unknown)}. There are {', '.join(table.columns)}.")
    found = columns or [name for name in named if name in table.columns]
    if not found:
        found = [
            name
            for name, kind in table.types.items()
            if "string" in kind and not NOT_TEXT.search(name) and any(word in name for word in TEXT_NAMES)
        ]
    if not found:
        raise Stop(f"No text column among {', '.join(table.columns)}; name them: --columns NAME NAME.")
    return {name: named.get(name, {}) for name in found}


# ---- The state of one output


def classify(text, error=None, flags=(), finish_reason=None, status=None):
    """The `Output` of one page. `text` None is an error; a sentinel of other tools is one too, a heading is not."""
    status = str(status or "").strip().lower()
    if isinstance(error, str) and error.strip():
        return Output(None, "error", error.strip())
    if status not in GOOD_STATUS and not status.startswith("partial"):
        return Output(None, "error", f"status {status}")
    if not isinstance(text, str):
        return Output(None, "error", "no text")
    if is_sentinel(text):
        return Output(None, "error", f"the text is {text.strip()}")
    flags = [flag for flag in flags or () if flag in SUSPECT_FLAGS] + (["partial"] if status else [])[: status != "ok"]
    flags += [flag for flag in flags_of(text, finish_reason) if flag not in flags]
    if flags:
        return Output(text, "suspect", flags=tuple(flags))
    return Output(text, "ok" if to_plain_text(text) else "blank")


def is_sentinel(text):
    """One bracketed token in capitals whose last word is ERROR or FAILED, at most 40 characters and 4 words.

    The rule of the public bench: what other scripts wrote where a page failed, and no heading in brackets.
    """
    found = re.fullmatch(r"\s*\[([A-Z][A-Z _-]*)\]\s*", text)
    words = re.split(r"[ _-]+", found[1].strip()) if found else []
    return bool(words) and len(text.strip()) <= 40 and len(words) <= 4 and words[-1] in ("ERROR", "FAILED")


def output_at(table, column, row, alone):
    """The `Output` of one row; `alone` says that the table's status columns are about this text column."""
    columns = table.columns

    def cell(*names):
        return next((columns[name][row] for name in names if name in columns and columns[name][row] is not None), None)

    if not alone:
        return classify(columns[column][row], cell(f"{column}_error"), status=cell(f"{column}_status"))
    loops = cell("looped_blocks")
    flags = list(cell("ocr_flags") or ()) + (["looped"] if isinstance(loops, int) and loops else [])
    error = cell("ocr_error", f"{column}_error", "error")
    return classify(columns[column][row], error, flags, cell("finish_reason"), cell(f"{column}_status", "status"))


# ---- Joining


def join_runs(runs, options):
    """The `Bench` of (table, column, entry) triples. Raises Stop where nothing safe joins them."""
    tables = list({id(table): table for table, _, _ in runs}.values())
    key_columns, keys_of = page_keys(tables, options.row_key, options.assume_aligned)
    pages = {}
    for table in tables:
        for row, key in enumerate(keys_of[id(table)]):
            pages.setdefault(key, (table, row))
    contestants = []
    for (table, column, info), name in zip(runs, contestant_names(runs), strict=True):
        entries = info_entries(table)
        alone = len(runs) == len(tables) or (bool(entries) and column_of(entries[-1]) == column)
        rows = {key: row for row, key in enumerate(keys_of[id(table)])}
        model = info.get("model_id") or info.get("model_name") or (table.config if len(tables) > 1 else column)
        one = Contestant(name, model, table.config, table.revision, column, table.types.get(column, "string"), info)
        for key in pages:
            there = key in rows
            one.outputs[key] = output_at(table, column, rows[key], alone) if there else Output(None, "error", "no row")
        one.missing = len(pages) - len(rows)
        contestants.append(one)
    contestants.sort(key=lambda one: one.name)
    return Bench("", None, contestants, list(pages), key_columns, pages)


def page_keys(tables, row_key=None, assume_aligned=False):
    """(columns of the key, {id(table): list of keys}). A key is a string.

    The first of PAGE_KEYS that is filled and unique in every table, and that every table shares pages by. Positions
    are keys only with `assume_aligned`, or where there is but one table.
    """

    def numbered(columns):
        page = next((name for name in PAGE_NUMBERS if all(name in table.columns for table in tables)), None)
        return [columns] + [(*columns, page)] * bool(page)

    tried = [option for columns in ([(row_key,)] if row_key else PAGE_KEYS) for option in numbered(columns)]
    reasons = []
    for columns in dict.fromkeys(tried):
        said = " and ".join(columns)
        if lacking := [table.config for table in tables if any(name not in table.columns for name in columns)]:
            reasons += [f"{said}: not in {', '.join(lacking)}"] if len(lacking) < len(tables) or row_key else []
            continue
        keys = {id(table): list(zip(*(table.columns[name] for name in columns), strict=True)) for table in tables}
        if any(None in key for rows in keys.values() for key in rows):
            reasons.append(f"{said}: empty in some rows")
        elif any(len(set(rows)) < len(rows) for rows in keys.values()):
            reasons.append(f"{said}: the same in several rows")
        elif not set.intersection(*map(set, keys.values())):
            reasons.append(f"{said}: no page is in all of them")
        else:
            return columns, {table: ["/".join(map(str, key)) for key in rows] for table, rows in keys.items()}
    lengths = {len(next(iter(table.columns.values()))) for table in tables}
    if len(tables) == 1 or (assume_aligned and len(lengths) == 1):
        if not row_key:
            return ("row number",), {id(table): [f"row-{n}" for n in range(max(lengths))] for table in tables}
    if assume_aligned and not row_key:
        raise Stop(f"--assume-aligned: the outputs have {', '.join(map(str, sorted(lengths)))} rows.")
    raise Stop(
        "Nothing says which rows are the same page. Tried "
        + ("; ".join(reasons) or "columns that none has")
        + ". Name a column that is unique per page, --row-key COLUMN, or, if you know that all have the same rows in "
        "the same order, type --assume-aligned."
    )


def contestant_names(runs):
    """A unique name for each run: its model id, or `short (config)` where a model runs twice."""
    flat = len({id(table) for table, _, _ in runs}) == 1
    labels = [column if flat else table.config for table, column, _ in runs]
    models = [
        info.get("model_id") or info.get("model_name") or label
        for (_, _, info), label in zip(runs, labels, strict=True)
    ]
    counts = Counter(models)
    names = [
        f"{model.split('/')[-1]} ({label})" if counts[model] > 1 else model
        for model, label in zip(models, labels, strict=True)
    ]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise Stop(f"Two runs would both be called {twice}. Rename a folder or choose with --configs.")
    return names


# <<< kit/bench_outputs.py

# >>> kit/pages.py
# Encoded bytes, a path or a URI to one upright RGB page on white.


# A page is handed over with at most this many pixels, whatever the bounds: 150 MB as RGB. Larger ones are reduced.
PAGE_PIXELS = 50_000_000
# What the decoded file itself may take in memory: 2 gigapixels of grey, 536 megapixels of colour. JPEG, JPEG 2000
# and PDF are reduced while they are decoded and seldom come near it.
PAGE_BYTES = 2 * 2**30
# Named, so that no file starts Ghostscript (EPS, PDF) or meets a format without a signature (TGA).
PILLOW_FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP")
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MULTI_PAGE_SIGNATURES = (*TIFF_SIGNATURES, b"GIF8")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
PDFIUM_LOCK = threading.Lock()  # pdfium is not thread-safe


def open_page(data, frame=0, *, dpi=200, bounds=None):
    """One page as `Page`: RGB, upright, on white, fitted to `bounds` (see `fit`).

    `data` is the encoded bytes, a local path or an `hf://` URI; `frame` the 0-based page of a PDF or frame of a TIFF
    or GIF; `dpi` the resolution of PDF pages. 16-bit, 32-bit and float pixels are scaled to 8 bits
    (see `_value_range`). What a cut file still holds comes back as `partial`, white where nothing came.
    Raises PageError for everything that cannot be read. Sets `PIL.Image.MAX_IMAGE_PIXELS` for the process, as
    `PAGE_BYTES` takes its place.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            return _pdf_page(data, frame, dpi, bounds)
        if frame and not head.startswith(MULTI_PAGE_SIGNATURES):
            raise PageError(f"there is no page {frame + 1}: the file has one")
        try:
            image, size, partial = _pillow_decode(stream, head, frame, bounds)
        except PageError:
            raise
        except Exception as error:  # Pillow's parsers raise whatever they stumble over
            image, partial = _other_decode(stream, head, frame, error), False
            size = image.size
    orientation = _orientation(image)
    if orientation > 4:
        size = size[::-1]
    try:
        image = _flatten(image, shrink=max(1, math.isqrt(image.width * image.height // PAGE_PIXELS)))
    except Exception as error:
        raise PageError(f"the pixels ({image.mode}) cannot be turned into RGB: {error}") from error
    if partial:
        image = _whiten_missing_rows(image)
    image = _turn_upright(fit(image, bounds), orientation).convert("RGB")
    return Page(image, *size, partial=partial)


def count_pages(data):
    """Pages of a PDF, frames of a TIFF or GIF, 1 for everything else, of which only the first bytes are looked at.

    Reduced copies inside a TIFF (thumbnails, pyramid levels) are not pages, nor are the frames of an animated WebP or
    PNG. Raises PageError where there is no file, and for a broken PDF, TIFF or GIF.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            with PDFIUM_LOCK:
                return len(_pdf_document(data))
        if not head.startswith(MULTI_PAGE_SIGNATURES):
            return 1
        try:
            image = _pillow_open(stream)
        except Exception:  # imagecodecs may read it, or open_page says what is wrong
            return 1
        try:
            return sum(1 for _ in _page_frames(image))
        except Exception as error:
            raise PageError(_describe(head, error)) from error


def fit(image, bounds):
    """`image` reduced, never enlarged, to `bounds` and to PAGE_PIXELS.

    `bounds` may have `max_side`, `max_pixels` and `resample` ("lanczos", the default, or "bicubic").
    """
    size = _fitted_size(image.size, bounds)
    if size == image.size:
        return image
    from PIL import Image

    resample = Image.Resampling[((bounds or {}).get("resample") or "lanczos").upper()]
    # At a gap of 3 the result is indistinguishable from a full resampling (Pillow's documentation).
    return image.resize(size, resample, reducing_gap=3.0)


def image_bounds(options, recipe):
    """The recipe's bounds for `fit`, with a recipe's own `--max-pixels` or `--max-side` (0 for none) in their place."""
    chosen = {key: getattr(options, key, None) for key in ("max_side", "max_pixels")}
    return (recipe.get("image") or {}) | {key: value for key, value in chosen.items() if value is not None}


def source_bytes(data):
    """The encoded bytes behind `data`. Raises PageError where there is nothing to read."""
    with _open_stream(data) as stream:
        return stream.read()


def sha256_of(data):
    """Hex SHA-256 of the encoded bytes behind `data`."""
    return hashlib.sha256(source_bytes(data)).hexdigest()


def _open_stream(data):
    if data is None:
        raise PageError("there is no image: the cell is empty (null)")
    if not isinstance(data, str):
        return io.BytesIO(data)
    if data.startswith("hf://"):
        return io.BytesIO(_fetch(data))
    try:
        return open(data, "rb")
    except OSError as error:
        raise PageError(f"cannot open {data}: {error.strerror}") from error


@functools.lru_cache(maxsize=1)  # the pages of one file follow each other
def _fetch(uri):
    from huggingface_hub import HfFileSystem

    try:
        return persist(lambda: HfFileSystem().cat_file(uri), patience=300)  # a worker may be silent for 600 s
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def _peek(stream):
    head = stream.read(1024)
    stream.seek(0)
    if not head:
        raise PageError("the file is empty (0 bytes)")
    return head


def _describe(head, error):
    """The sentence for a file that is no image, or a broken one."""
    start = head[:40].lstrip(b"\xef\xbb\xbf \r\n\t")
    known = {
        b"version https://git-lfs": "a Git LFS pointer; run `git lfs pull`",
        b"<!doctype html": "HTML",
        b"<html": "HTML",
        b"<svg": "SVG; render it to PNG first",
        b"<?xml": "XML",
        b"{": "JSON",
        b"pk\x03\x04": "a ZIP archive; unpack it first",
        b"\x1f\x8b": "gzip; unpack it first",
        b"%!ps": "PostScript; convert it with `ps2pdf`",
        b"at&tform": "DjVu; convert it with `ddjvu -format=pdf`",
    }
    what = next((name for signature, name in known.items() if start.lower().startswith(signature)), None)
    if what is None and start.isascii() and start.decode("ascii").isprintable():
        what = "text"
    shown = repr(start)[1:] if start.isascii() else start[:16].hex(" ")
    if what:
        return f"not an image: the file starts with {shown} (looks like {what})"
    return f"not a readable image: the file starts with {shown} ({type(error).__name__}: {error})"


def _fitted_size(size, bounds):
    bounds = bounds or {}
    max_pixels = min(bounds.get("max_pixels") or PAGE_PIXELS, PAGE_PIXELS)
    max_side = bounds.get("max_side") or max(size)
    scale = min(1.0, max_side / max(size), math.sqrt(max_pixels / math.prod(size)))
    return tuple(max(1, math.floor(side * scale + 1e-6)) for side in size)


def _pillow_open(stream):
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = PAGE_BYTES  # Pillow's own limit warns at 89 and refuses at 179 megapixels
    return Image.open(stream, formats=PILLOW_FORMATS)


def _pillow_decode(stream, head, frame, bounds):
    """The loaded image in its own mode, its size before any reduction, and whether the file ended early."""
    image = _pillow_open(stream)
    if head.startswith(MULTI_PAGE_SIGNATURES):
        number = next(itertools.islice(_page_frames(image), frame, None), None)
        if number is None:
            raise PageError(f"there is no page {frame + 1}: the file has {sum(1 for _ in _page_frames(image))}")
        image.seek(number)
    size = image.size
    target, reduction = _fitted_size(size, bounds), 0
    if image.format in ("JPEG", "MPO"):
        # Decodes to half, a quarter or an eighth where that is still inside the target: 100 ms instead of 206 for
        # 2480 x 3508 to 1540, at the same character error rate (PP-OCRv6, letters of 28 and 34 px before).
        image.draft(None, target)
    elif image.format == "JPEG2000":
        image.reduce = reduction = _jpeg2000_reduction(head, size, target)
    width, height = image.size
    needed = width * height * {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)
    if image.info.get("progressive"):  # libjpeg keeps all coefficients, at full size
        needed = size[0] * size[1] * 2 * len(image.getbands())
    if needed > PAGE_BYTES:
        raise PageError(
            f"the page is too large: {size[0]} x {size[1]} pixels of {image.format} take {needed / 2**30:.1f} GiB to "
            f"decode, and {PAGE_BYTES / 2**30:.0f} GiB are allowed; scale it down first"
        )
    try:
        image.load()
    except Exception:
        if reduction:
            # Reduced decoding failed now and then in a public run. Without its head the file has no levels to use.
            stream.seek(0)
            return _pillow_decode(stream, b"", frame, bounds)
        if image.info.get("progressive"):  # without an end marker libjpeg gives nothing of a progressive file
            image.load_read = lambda size: stream.read(size) or b"\xff\xd9"
        else:
            image.tile = []  # what was decoded stays in the buffer, zero where nothing came
        image.load()
        return image, size, True
    return image, size, False


def _page_frames(image):
    """Frame numbers of the pages of a TIFF or GIF; reduced copies in a TIFF (tag 254, bit 0) are not pages."""
    if image.format == "GIF":
        yield from range(image.n_frames)
        return
    for frame in itertools.count():
        try:
            image.seek(frame)
        except EOFError:
            return
        if frame == 0 or not image.tag_v2.get(254, 0) & 1:
            yield frame


def _jpeg2000_reduction(head, size, target):
    """How many times decoding may halve the page: inside `target`, and inside the levels that the file has."""
    code = head.find(b"\xff\x52")  # the COD marker; the decomposition levels are its tenth byte
    levels = head[code + 9] if 0 <= code < len(head) - 9 else 0
    for level in range(levels, 0, -1):
        step = 2**level
        reduced = [math.ceil(side / step) for side in size]
        # Pillow rounds where OpenJPEG takes the ceiling, and fails where the two differ.
        agree = reduced == [(side + step // 2) // step for side in size]
        if agree and reduced[0] >= target[0] and reduced[1] >= target[1]:
            return level
    return 0


def _other_decode(stream, head, frame, error):
    """What Pillow cannot read: HEIC through pillow-heif, the rest through imagecodecs."""
    names = {
        b"\xff\x0a": "jpegxl",
        b"\0\0\0\x0cJXL ": "jpegxl",
        b"II\xbc": "jpegxr",
        b"\xff\xd8\xff": "jpeg",
        b"\x89PNG": "png",
        **dict.fromkeys(TIFF_SIGNATURES, "tiff"),
    }
    name = next((name for signature, name in names.items() if head.startswith(signature)), None)
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        name = "heic"
    if name is None:
        raise PageError(_describe(head, error)) from error
    stream.seek(0)
    data = stream.read()
    try:
        return _heic_decode(data) if name == "heic" else _imagecodecs_decode(name, frame, data)
    except ImportError as missing:
        library = (missing.name or "imagecodecs").partition(".")[0].replace("_", "-")
        raise PageError(f"this {name} file needs {library}: add `--with {library}` after `uv run`") from missing
    except Exception as second:
        raise PageError(_describe(head, second)) from second


def _heic_decode(data):
    import pillow_heif

    return pillow_heif.open_heif(data).to_pillow()


def _imagecodecs_decode(name, frame, data):
    import imagecodecs
    import numpy as np
    from PIL import Image

    decode = getattr(imagecodecs, f"{name}_decode")
    pixels = np.squeeze(decode(data, index=frame) if name == "tiff" else decode(data))
    if pixels.dtype != np.uint8:
        pixels = _scaled_to_8_bits(pixels, *_value_range(pixels))
    return Image.fromarray(pixels)


def _value_range(pixels):
    """The values that become 0 and 255: 0 and the top of the range that the data uses.

    Integers: the smallest of 8, 10, 12, 14, 16 bits that holds the largest value, so that a 16-bit scan is divided by
    257 and never stretched. Floats: 0 to 1, 0 to 255, 0 to 65,535. Whatever fits none of these: smallest to largest.
    """
    import numpy as np

    low, high = np.fmin.reduce(pixels, axis=None), np.fmax.reduce(pixels, axis=None)  # these pass over NaN
    if not (np.isfinite(low) and np.isfinite(high)):
        return 0, 1
    if pixels.dtype.kind == "f":
        tops = {1: 0, 255: 128, 65535: 32768}
    else:
        tops = {255: 0, 1023: 256, 4095: 1024, 16383: 4096, 65535: 16384}
    for top, least in tops.items():
        if 0 <= low and least <= high <= top:
            return 0, top
    return low, high


def _scaled_to_8_bits(pixels, low, high):
    import numpy as np

    span = float(high) - float(low) or 1.0
    scaled = (np.nan_to_num(pixels.astype(np.float32), nan=float(high)) - float(low)) * (255 / span)
    return scaled.round().clip(0, 255).astype(np.uint8)


def _flatten(image, shrink=1):
    """`image` as 8-bit L or RGB on white, its sides divided by `shrink`, in bands so that memory stays bounded."""
    from PIL import Image

    scale = None
    if image.mode.startswith(("I", "F")):
        import numpy as np

        low, high = _value_range(np.asarray(image))
        inverted = image.format == "TIFF" and image.tag_v2.get(262) == 0  # white is zero; Pillow inverts 8 bits only
        scale = (high, low) if inverted else (low, high)
    if shrink == 1 and not scale:
        return _on_white(image, None)
    rows = shrink * max(1, 2**24 // (image.width * shrink))
    flat = None
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band = _on_white(band, scale).reduce(shrink)
        flat = flat or Image.new(band.mode, (band.width, math.ceil(image.height / shrink)))
        flat.paste(band, (0, top // shrink))
    return flat


def _on_white(image, scale):
    from PIL import Image

    if scale:
        import numpy as np

        return Image.fromarray(_scaled_to_8_bits(np.asarray(image), *scale))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        page = Image.new("RGB", image.size, "white")
        page.paste(image, mask=image.getchannel("A"))
        return page
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _whiten_missing_rows(image):
    """White below the last row that was decoded. Raises PageError where nothing was, or nothing but one colour."""
    box = image.getbbox()
    extrema = image.crop(box).getextrema() if box else ()
    bands = extrema if extrema and isinstance(extrema[0], tuple) else (extrema,)
    if not box or all(low == high for low, high in bands):
        raise PageError("the file ends early, before anything that could be read")
    image.paste("white", (0, box[3], image.width, image.height))
    return image


def _orientation(image):
    try:
        return int(image.getexif().get(274, 1))
    except Exception:  # one bad byte in the EXIF block is no reason to lose the page
        return 1


def _turn_upright(image, orientation):
    from PIL.Image import Transpose as turn

    method = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _pdf_document(data):
    """The opened PDF; call it with PDFIUM_LOCK held."""
    if isinstance(data, str) and not data.startswith("hf://"):
        status = os.stat(data)
        return _open_pdf(data, (status.st_mtime_ns, status.st_size))
    return _open_pdf(_fetch(data) if isinstance(data, str) else bytes(data), None)


@functools.cache
def _pdfium():
    import pypdfium2

    atexit.register(_open_pdf.cache_clear)  # before pypdfium2 looks for what is still open, and complains of it
    return pypdfium2


@functools.lru_cache(maxsize=1)  # opening a PDF of 1,000 pages again for each page would take most of the time
def _open_pdf(source, version):
    pdfium = _pdfium()
    try:
        document = pdfium.PdfDocument(source)
        document.init_forms()
    except Exception as error:
        # For a PDF without pages pdfium reports its last error code, whatever file that came from.
        if getattr(error, "err_code", None) == 4 and b"/Encrypt" in source_bytes(source):  # FPDF_ERR_PASSWORD
            raise PageError("the PDF is encrypted and needs a password; remove it with `qpdf --decrypt`") from error
        raise PageError(f"the PDF is broken or has no pages ({error})") from error
    return document


def _pdf_page(data, frame, dpi, bounds):
    with PDFIUM_LOCK:
        document = _pdf_document(data)
        if frame >= len(document):
            raise PageError(f"there is no page {frame + 1}: the PDF has {len(document)}")
        try:
            page = document[frame]
            width, height = (math.ceil(points * dpi / 72) for points in page.get_size())
            scale = min(1.0, math.sqrt(PAGE_PIXELS / (width * height)))
            image = page.render(scale=scale * dpi / 72, rev_byteorder=True).to_pil()
            page.close()
        except Exception as error:
            raise PageError(f"page {frame + 1} of the PDF cannot be rendered: {error}") from error
    return Page(fit(image.convert("RGB"), bounds), width, height, dpi=dpi)


# <<< kit/pages.py

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
    sys.exit(run_eval())
