"""Votes on pairs of outputs: one record for every judge and order, kept append-only, counted by strict rules."""

import hashlib
import io
import json
import os
import re
from collections import Counter, defaultdict
from datetime import datetime, timezone
from pathlib import Path

from kit.seam import Stop, say
from kit.storage import FIRST_PATIENCE, first_line, persist, unique_stamp
from kit.tool import parse_json

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
