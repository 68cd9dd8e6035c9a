"""A jury at work: which pairs to ask about, in which order, every answer stored at once, and what came of it."""

import io
import json
import os
import re
import signal
from collections import Counter
from datetime import datetime, timezone
from itertools import combinations
from typing import NamedTuple

from kit.bench_outputs import USABLE, load_bench
from kit.judge_prompt import CRITERIA, cap_both, criteria_of, judge_question, judged_text, prompt_identity
from kit.pages import open_page
from kit.ranking import leaderboard_text, plain_numbers, rank_boards, resolvable_gap
from kit.seam import PageError, Stop, say
from kit.storage import first_line, persist, unique_stamp
from kit.tool import exit_code_of
from kit.votes import (
    Balance,
    VoteStore,
    check_results,
    comparison_id,
    decide,
    hub_votes,
    judge_report,
    jury_verdicts,
    keyed_order,
    last_of_each,
    make_vote,
    parse_verdict,
    push_votes,
    standing,
    stored_text,
)

BOTH_ORDERS_UP_TO = 2000  # pairs of outputs; more are judged in one order each, exactly balanced
MOST_TRUNCATED = 0.2  # share of the pairs that may be shown cut
INK = 40  # levels that the darkest 20 of 100,000 pixels lie below the middle one where anything is printed


class Reply(NamedTuple):
    """What a judge said to one question. `error` says why there is no text; `status` then is "error" or "length"."""

    text: str | None
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None
    status: str = "error"
    fatal: bool = False  # this judge will answer nothing else either


class Question(NamedTuple):
    """One vote to be cast: the vote without its verdict, and the two texts as the judge is to see them."""

    vote: dict
    first: str
    second: str
    cut: tuple
    restated: bool = False


def add_judging_options(parser):
    """The options of both juries: what is judged, how, and where votes go."""
    add = parser.add_argument
    add("--criteria", default="default", help=f"{', '.join(CRITERIA)}, or a file with one criterion a line")
    add("--ignore", type=lambda text: text.split(","), default=[], metavar="LIST",
        help="differences that do not count: page-numbers,long-s,...")  # fmt: skip
    add("--orders", choices=["auto", "balanced", "both"], default="auto",
        help=f"both orders for every pair, or one, in balance (auto: both up to {BOTH_ORDERS_UP_TO})")  # fmt: skip
    add("--judge-text", choices=["plain", "raw"], default="plain", help="show texts without or with their markup")
    add("--max-text-chars", type=int, default=8000, help="longest text shown (default 8000)")
    add("--allow-truncation", action="store_true", help="go on although more than a fifth of the pairs are cut")
    add("--image-side", type=int, default=1536, help="longest side of the page image in pixels (default 1536)")
    add("--max-tokens", type=int, default=1024, help="longest answer (default 1024; judges that think need 4096)")
    add("--min-chars", type=int, default=20, help="skip pairs in which both texts are shorter (default 20)")
    add("--max-comparisons", type=int, metavar="N", help="judge at most N pairs, page by page")
    add("--limit-pairs", action="append", default=[], metavar="A:B", help="only this pair of models; repeatable")
    add("--repeat-share", type=float, default=0.05, help="share of the questions that is asked twice (0.05)")
    add("--max-invalid-rate", type=float, default=0.05, help="exit 3 if more answers cannot be counted (0.05)")
    add("--output-dir", metavar="DIR", help="where votes are kept, and the run goes on (default judged-NAME)")
    add("--save-results", metavar="REPO", help="dataset on the Hub that the votes are added to")
    add("--create-pr", action="store_true", help="add the votes as a pull request")
    add("--private", action="store_true", help="create that dataset private")
    add("--store-text", choices=["full", "excerpt", "hash"], default="excerpt",
        help="what votes keep of the texts (default: the first 500 characters)")  # fmt: skip
    add("--prior", type=float, default=0.5, help="weight of a virtual tie of every pair (default 0.5)")
    add("--bootstrap", type=int, default=1000, help="resamples of the pages for intervals (default 1000)")
    add("--dry-run", action="store_true", help="say what would be judged, show one question, and stop")


class Case:
    """What is to be judged and how: the bench, the prompt, the votes that are there, and what was left out and why."""

    def __init__(self, options, sampling):
        for name in ("max_text_chars", "image_side", "max_tokens", "bootstrap"):
            if getattr(options, name) < 1:
                raise Stop(f"--{name.replace('_', '-')} {getattr(options, name)} is not above 0.")
        self.options, self.criteria = options, criteria_of(options.criteria, options.ignore)
        self.prompt_hash, self.settings = prompt_identity(
            self.criteria, text=options.judge_text, max_text_chars=options.max_text_chars,
            image_side=options.image_side, max_tokens=options.max_tokens, **sampling,
        )  # fmt: skip
        if os.environ.get("JOB_ID") and not options.save_results:
            raise Stop("On a job the disk is gone at the end: name a dataset for the votes, --save-results ns/name.")
        if options.save_results and not options.dry_run:
            check_results(options.save_results, options.create_pr)
        self.bench = load_bench(options)
        self.folder = options.output_dir or f"judged-{self.bench.source.split('/')[-1]}"
        self.place = {key: number for number, key in enumerate(self.bench.keys)}
        self.store, self.run_id = VoteStore(self.folder), unique_stamp()
        self.there = known_votes(self.store, options.save_results)
        self.skipped, self.automatic, self.pairs = Counter(), [], []
        self.budget_exhausted, self.truncated = False, Counter()
        self._image = self._jpeg = (None, None)  # of the page that was asked for last
        self.plan()

    def begin(self):
        """Stores the ties that need no judge, those that are there already aside."""
        there = {vote["comparison_id"] for vote in self.there}
        self.store.add([vote for vote in self.automatic if vote["comparison_id"] not in there])

    def plan(self):
        """Fills `pairs` with (key, a, b, orders), page by page, and `automatic` with the ties that need no judge."""
        options, bench = self.options, self.bench
        self.shown = {
            one.name: {key: judged_text(output.text, options.judge_text) for key, output in one.outputs.items()}
            for one in bench.contestants
        }
        candidates = list(self.candidates())
        if not candidates and not self.automatic:
            raise Stop(f"Nothing to judge on {len(bench.keys)} pages. Left out: {dict(self.skipped) or 'nothing'}.")
        if options.max_comparisons is not None and len(candidates) > options.max_comparisons:
            candidates, self.budget_exhausted = candidates[: options.max_comparisons], True
        both = options.orders == "both" or (options.orders == "auto" and len(candidates) <= BOTH_ORDERS_UP_TO)
        self.orders = "both" if both else "balanced"
        self.pairs = self.with_orders(candidates)
        cut = 0
        for key, a, b in candidates:
            *_, cut_a, cut_b = cap_both(self.shown[a.name][key], self.shown[b.name][key], options.max_text_chars)
            self.truncated.update([a.name] * cut_a + [b.name] * cut_b)
            cut += cut_a or cut_b
        if cut > MOST_TRUNCATED * len(candidates) and not options.allow_truncation:
            raise Stop(
                f"{cut} of {len(candidates)} pairs would be cut at {options.max_text_chars} characters, most often "
                f"{self.truncated.most_common(1)[0][0]}. Raise --max-text-chars, or add --allow-truncation."
            )

    def candidates(self):
        """Yields (key, a, b) for a judge, in an order of pages that depends on their keys and the seed only."""
        wanted = [frozenset(pair.split(":", 1)) for pair in self.options.limit_pairs]
        names = [one.name for one in self.bench.contestants]
        if bad := [pair for pair in wanted if len(pair) != 2 or not pair <= set(names)]:
            raise Stop(f"--limit-pairs {':'.join(sorted(bad[0]))}: write A:B with two of {', '.join(names)}.")
        for key in keyed_order(self.bench.keys, self.options.seed):
            for a, b in combinations(self.bench.contestants, 2):
                if wanted and {a.name, b.name} not in wanted:
                    continue
                why = self.why_not(key, a, b)
                if why in ("identical", "both_blank"):
                    self.automatic.append(decide(self.vote(key, a, b, "auto", "ab") | {"auto": why}, "tie"))
                elif why:
                    self.skipped[why] += 1
                else:
                    yield key, a, b

    def with_orders(self, candidates):
        """The candidates with their orders: those of votes that are there, and for the others what balances them."""
        balance, earlier = Balance(self.orders, self.options.seed), {}
        for vote in self.there:
            if vote["prompt_hash"] == self.prompt_hash and self.orders == "balanced" and not vote["auto"]:
                earlier[vote["row_key"], vote["model_a"], vote["model_b"]] = vote["order"]
        for (_, a, b), order in earlier.items():
            balance.count(a, b, order)
        pairs = []
        for key, a, b in candidates:
            before = earlier.get((key, a.name, b.name))
            pairs.append((key, a, b, [before] if before else balance.take(key, a.name, b.name)))
        return pairs

    def why_not(self, key, a, b):
        """Why a pair is not put to a judge, or None: failed, identical, both_blank, blank_on_ink, short."""
        first, second = a.outputs[key], b.outputs[key]
        if first.state not in USABLE or second.state not in USABLE:
            return "failed"
        texts = self.shown[a.name][key], self.shown[b.name][key]
        if not any(texts):
            return "blank_on_ink" if self.has_ink(key) else "both_blank"
        if " ".join(texts[0].split()) == " ".join(texts[1].split()):
            return "identical"
        return "short" if max(map(len, texts)) < self.options.min_chars else None

    def has_ink(self, key):
        """Whether the page's image shows anything; where there is no image, as if it did."""
        try:
            image = self.image(key).convert("L")
        except PageError:
            return True
        image.thumbnail((400, 400))
        levels = sorted(image.tobytes())
        return levels[len(levels) // 2] - levels[len(levels) // 5000] > INK

    def image(self, key):
        """The page as the judge sees it, RGB. Raises PageError where it cannot be read."""
        if self._image[0] != key:  # the questions about one page follow each other
            found = self.bench.image(key)
            if not found:
                raise PageError("no image of this page is known; name a folder with the images, --images FOLDER")
            data, frame = found
            self._image = key, open_page(data, frame, bounds={"max_side": self.options.image_side}).image
        return self._image[1]

    def jpeg(self, key):
        """The same image, encoded for a request."""
        if self._jpeg[0] != key:
            sink = io.BytesIO()
            self.image(key).save(sink, "JPEG", quality=90)
            self._jpeg = key, sink.getvalue()
        return self._jpeg[1]

    def vote(self, key, a, b, judge, order, repeat=0, weight=1.0):
        sides = ({"name": one.name, "config": one.config, "revision": one.revision, "text": one.outputs[key].text}
                 for one in (a, b))  # fmt: skip
        keep = self.options.store_text
        return make_vote(
            key, *sides, judge, order, self.prompt_hash, repeat, run_id=self.run_id, settings=self.settings,
            sample_idx=self.place[key], weight=weight,
            facts=json.dumps(self.bench.facts(key), default=str),
            text_a=stored_text(a.outputs[key].text, keep), text_b=stored_text(b.outputs[key].text, keep),
        )  # fmt: skip

    def questions(self, judge, weight=1.0):
        """Yields what this judge has not answered yet, page by page."""
        # What a judge answered badly twice it would again; what failed on the way is worth another try.
        answered = {vote["comparison_id"] for vote in self.there if vote["parse_status"] != "error"}
        for key, a, b, orders in self.pairs:
            shown = self.shown[a.name][key], self.shown[b.name][key]
            *texts, cut_a, cut_b = cap_both(*shown, self.options.max_text_chars)
            for order in orders:
                vote = self.vote(key, a, b, judge, order, weight=weight) | {"truncated_a": cut_a, "truncated_b": cut_b}
                times = [0, 1] if int(vote["comparison_id"][:8], 16) < self.options.repeat_share * 16**8 else [0]
                for repeat in times:
                    identity = comparison_id(vote["pair_id"], judge, self.prompt_hash, order, repeat)
                    if identity not in answered:
                        again = vote | {"comparison_id": identity, "repeat": repeat}
                        first, second = texts if order == "ab" else texts[::-1]
                        yield Question(again, first, second, (cut_a, cut_b) if order == "ab" else (cut_b, cut_a))

    def prompt(self, question):
        """The text of a question. Its code is the vote's id: equal in every run, and not to be foreseen by a text."""
        code = question.vote["comparison_id"][:12]
        return judge_question(question.first, question.second, code, self.criteria, question.cut, question.restated)

    def hear(self, judge, ask, weight=1.0):
        """Puts the open questions to a judge and stores every vote; broken answers are asked for once more.

        `ask(questions)` takes an iterator and yields (question, Reply) in any order. Returns None, or the sentence
        that says why the judge gave up.
        """
        broken = []
        for again in (False, True):
            questions = (q._replace(restated=True) for q in broken) if again else self.questions(judge, weight)
            for question, reply in ask(questions):
                vote = voted(question, reply)
                if vote["parse_status"] == "invalid" and not again:
                    broken.append(question)
                if reply.fatal:
                    return reply.error
                self.store.add([vote])
        return None

    def record(self, judges, failures, spent=None):
        """What a reader of the votes needs to know of this run: sources, prompt, contestants with failures, judges."""
        return {
            "source": self.bench.source, "revision": self.bench.revision, "split": self.options.split,
            "key_columns": self.bench.key_columns, "pages": self.bench.keys, "judges": judges,
            "criteria": self.criteria, "prompt_hash": self.prompt_hash, "settings": json.loads(self.settings),
            "orders": self.orders, "seed": self.options.seed, "budget_exhausted": self.budget_exhausted,
            "pairs": len(self.pairs), "automatic": len(self.automatic), "skipped": dict(self.skipped),
            "truncated": dict(self.truncated), "judges_stopped": failures, "spent_usd": spent,
            "contestants": [
                {
                    "name": one.name, "model": one.model, "config": one.config, "revision": one.revision,
                    "column": one.column, "states": one.states(), "coverage": round(one.coverage(), 4),
                    "failed": [key for key in self.bench.keys if one.outputs[key].state == "error"],
                }
                for one in self.bench.contestants
            ],
            "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }  # fmt: skip

    def describe(self, judges):
        """Says what will be judged and what that can show."""
        names = [one.name for one in self.bench.contestants]
        gap = resolvable_gap(len({key for key, *_ in self.pairs}))
        left = f"; left out: {dict(self.skipped)}" if self.skipped else ""
        say(
            f"{len(self.pairs)} pairs of {len(names)} models to judge ({self.orders} order), "
            f"{len(self.automatic)} ties without a judge{left}. So many pages tell models apart that differ by about "
            f"{gap:.0f} Elo points or more."
        )
        for judge in judges:
            family = re.match(r"[a-z]*", judge.split("/")[-1].lower())[0]
            kin = [name for name in names if len(family) > 2 and family in name.lower()]
            if kin:
                say(f"Self-preference risk: {judge} judges its own kin, {', '.join(kin)}.")

    def finish(self, tool, judges, failures, spent=None):
        """Stores the run, publishes it, prints board and JSON line; the exit code: 0, 1 (a judge gave up), or 3."""
        self.store.add_run(self.run_id, tool, self.record(judges, failures, spent))
        votes = standing(last_of_each([*self.there, *self.store.rows()]))
        votes = [vote for vote in votes if vote["prompt_hash"] == self.prompt_hash]
        report = judge_report(votes)
        boards = rank_boards(jury_verdicts(votes), self.options.prior, self.options.bootstrap, seed=self.options.seed)
        say(leaderboard_text(boards))
        for judge, told in report.items():
            say(f"{judge}: {', '.join(f'{k} {short_figure(v)}' for k, v in told.items() if v is not None)}")
        if self.options.save_results:
            say(push_votes(self.options.save_results, self.store.rows(), self.store.runs(), self.options.create_pr,
                           self.options.private))  # fmt: skip
        bad = [judge for judge, told in report.items() if (told["invalid_rate"] or 0) > self.options.max_invalid_rate]
        for judge, why in failures.items():
            say(f"{judge} gave up: {why} Type the same command again to go on.")
        for judge in bad:
            say(f"{judge}: {report[judge]['invalid_rate']:.0%} of its answers cannot be counted. Look at raw answers.")
        say(f"Votes: {self.folder}. For tiers, pairs and a page to share: ocr-elo-bench.py {self.folder}")
        code = 1 if failures else 3 if bad else 0
        told = {
            "tool": tool, "run_id": self.run_id, "votes": len(votes), "pairs": len(self.pairs),
            "automatic": len(self.automatic), "skipped": dict(self.skipped), "orders": self.orders,
            "budget_exhausted": self.budget_exhausted, "prompt_hash": self.prompt_hash, "spent_usd": spent,
            "judges": {judge: plain_numbers(told) for judge, told in report.items()}, "judges_stopped": failures,
            "leaderboard": [row for board in boards for row in board["leaderboard"]], "output_dir": self.folder,
            "exit_code": code,
        }  # fmt: skip
        print(json.dumps(told))
        return code


def short_figure(value):
    return f"{value:.2f}" if isinstance(value, float) else value


def known_votes(store, repo=None):
    """The votes of a folder and, where it exists, of a results repository. Raises Stop where one cannot be read."""
    from huggingface_hub import HfApi

    votes = store.rows()
    if repo:
        try:
            exists = persist(lambda: HfApi().repo_exists(repo, repo_type="dataset"))
        except Exception as error:
            raise Stop(f"{repo} cannot be reached: {first_line(error)}. Check the name and HF_TOKEN.") from error
        votes = [*(hub_votes(repo)[0] if exists else []), *votes]
    return standing(last_of_each(votes))


def voted(question, reply):
    """The vote that a reply makes of a question."""
    if reply.error is not None:
        label, reason, status = None, reply.error, reply.status
    else:
        label, reason, status = parse_verdict(reply.text, reply.finish_reason)
    raw = None if label else json.dumps({"answer": (reply.text or "")[:2000]})
    return decide(
        question.vote, label, status, reason, finish_reason=reply.finish_reason, details=raw,
        prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens, latency_s=reply.seconds,
    )  # fmt: skip


def judged(work):
    """`exit_code_of(work)`, where SIGTERM and Ctrl-C cost nothing: votes are safe, the same command goes on."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def watched():
        try:
            return work()
        except KeyboardInterrupt:
            raise Stop("Every vote so far is stored; type the same command to go on.", code=1) from None

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return exit_code_of(watched)
    finally:
        signal.signal(signal.SIGTERM, before)
