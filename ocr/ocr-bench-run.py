# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "datasets>=5.2.0",
#     "huggingface_hub>=2.4.0",
#     "pyarrow>=18",
# ]
# ///
"""OCR bench run: several models over the same pages, each a config of one dataset (a pull request) or a folder.

    uv run ocr/ocr-bench-run.py user/scans user/scans-bench --models glm-ocr,lighton-ocr2,pp-ocrv6 --max-samples 50
    uv run ocr/ocr-bench-run.py samples --local --models pp-ocrv6,tesseract-ocr --output-dir out
    uv run ocr/ocr-bench-run.py --list-models

Without `--local` every model is a job on the Hub, on the machine and image that its recipe names. Pinned before
anything starts: the recipe's text, the model's revision, the input's revision. `--dry-run` shows what would be
submitted and what it may cost. The state file records every job; the same command goes on after a stop.

Hardware: none here; each recipe says what it needs. With `--local` that is this machine, one model after another.
Output: OUTPUT, a dataset with one open pull request per model, titled `... [CONFIG]`; or DIR/CONFIG/*.md. Each is read
back and checked: pages, failed pages, columns, the same pages for all. The last line on stdout is JSON.
Licence: Apache-2.0.
Source: the launch contract is that of https://github.com/davanstrien/ocr-bench.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

# >>> shared imports
# isort: split
import html
import io
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

# <<< shared imports

# The keys of [tool.hf-jobs] as `hf jobs uv run` of huggingface_hub 2.4.0 takes them; run_uv_job reads none of them.
JOB_KEYS = set(
    "image flavor python timeout name namespace network_group network_aliases env secrets labels volumes".split()
)
HEADER = re.compile(r"^# /// script\n((?:#(?: .*)?\n)+)# ///$", re.MULTILINE)
DEFAULT_FLAVOR, DEFAULT_TIMEOUT = "cpu-basic", 1800  # what a job gets that names neither
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
SCHEMA = "ocr-bench-run/1"
ENDED = ("COMPLETED", "ERROR", "CANCELED", "DELETED")
FINISHED, WAITING = ("done", "missed", "existing"), ("planned", "submitting", "running")
TAIL = 30  # lines kept of what a failed run said last

# What went wrong: told by the job's own message, then by what the recipe said last.
CAUSES_IN_MESSAGE = (
    ("timeout", r"timed?[ -]?out|deadline"),
    ("capacity", r"capacity|unschedulable|preempt|evict|no (machine|node|hardware|resource)s? (is |are )?available"),
    ("payment", r"payment|credit|billing|quota"),
)
CAUSES_IN_LOG = (
    ("memory", r"out of memory|OutOfMemory|Cannot allocate memory"),
    ("access", r"gated|GatedRepo|\b40[13]\b|Unauthorized|Forbidden"),
    ("packages", r"ModuleNotFoundError|ImportError|No solution found when resolving"),
)
PASSING = ("timeout", "capacity")  # the only ones that another attempt can cure


def bench_parser():
    parser = argparse.ArgumentParser(
        prog="ocr-bench-run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("input", metavar="INPUT", nargs="?", help="what every recipe reads: a Hub dataset, bucket, or (--local) folder")
    add("output", metavar="OUTPUT", nargs="?", help="Hub dataset ns/name that gets a pull request per model")
    add("--models", action="append", default=[], metavar="A,B", help="recipes by name, NAME as CONFIG=NAME, or x.py")
    add("--arguments", action="append", default=[], metavar="CONFIG='--task x'", help="more options for one recipe")
    add("--local", action="store_true", help="run here, one model after another, instead of as jobs")
    add("--output-dir", metavar="DIR", help="with --local: a folder per model instead of OUTPUT")
    add("--launcher", default="uv run", help="with --local: what starts a recipe (default: uv run)")
    add("--input-config", help="config of the input dataset")
    add("--split", default="train", help="split of the input dataset (default train)")
    add("--revision", help="revision of the input dataset (default: the newest, pinned for all models)")
    add("--image-column", default="image", help="column with the page images (default image)")
    add("--max-samples", type=int, metavar="N", help="read only N rows or files")
    add("--shuffle", action="store_true", help="draw the rows of --max-samples at random")
    add("--seed", type=int, default=42, help="seed of --shuffle (default 42)")
    add("--private", action="store_true", help="create OUTPUT private")
    add("--on-existing", choices=("error", "skip", "replace"), default="error",
        help="what to do with a model whose config OUTPUT already has (default error)")  # fmt: skip
    add("--catalog", metavar="FILE", help="models.json, a file or URL; recipes are read from ocr/ beside it")
    add("--recipe-revision", metavar="SHA", help="commit of the recipes, where --catalog is a URL with a revision")
    add("--flavor", help="hardware for all jobs (default: what each recipe names)")
    add("--timeout", help="longest time of one attempt, e.g. 45m or 2h (default: what each recipe names)")
    add("--attempts", type=int, default=2, help="runs of a model that meets a timeout or no capacity (default 2)")
    add("--max-concurrent", type=int, metavar="N", help="jobs at the same time (default: all)")
    add("--budget-usd", type=float, metavar="X", help="refuse a plan that is expected to cost more, and cancel at X")
    add("--pages-per-second", type=float, default=1.0, help="assumed for the estimate (default 1)")
    add("--startup-minutes", type=float, default=10.0, help="assumed for the estimate (default 10)")
    add("--namespace", help="who runs and pays the jobs (default: the user of the token)")
    add("--label", action="append", default=[], metavar="K=V", help="label on every job")
    add("--job-token-env", metavar="NAME", help="variable with the token that jobs get (default: your own token)")
    add("--state", metavar="FILE", help="state file (default ./.ocr-runs/bench/<output>.json)")
    add("--resume", action="store_true", help="go on with the run in the state file, with its models and settings")
    add(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait for the jobs (default), or submit only",
    )
    add("--poll", type=float, default=30.0, metavar="S", help="seconds between looks at the jobs (default 30)")
    add("--cancel-on-exit", action="store_true", help="cancel running jobs on Ctrl-C (default: they go on)")
    add("--max-error-rate", type=float, default=0.05, help="exit 3 where more pages of a model failed (default 0.05)")
    add("--merge", choices=("never", "on-success"), default="never", help="merge checked pull requests (default never)")
    add("--judge", metavar="COMMAND", help="run this when all models are done; {output} stands for OUTPUT or DIR")
    add("--list-models", action="store_true", help="list the recipes and stop")
    add("--dry-run", action="store_true", help="show what would run and what it may cost, and stop")
    return parser


def settle_bench(options):
    """The options, checked against each other. Raises Stop(2)."""
    if options.output_dir and not options.local:
        raise Stop("--output-dir is a folder here, which a job cannot write: add --local, or name OUTPUT instead.")
    if not options.resume or not options.state:
        if not options.input or bool(options.output) == bool(options.output_dir):
            raise Stop("Name INPUT and either OUTPUT (a dataset ns/name) or --local --output-dir DIR.")
        if options.output and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", options.output):
            raise Stop(f"OUTPUT {options.output} is no dataset ns/name. For a folder: --local --output-dir DIR")
        if not options.local and not on_hub(options.input):
            raise Stop(f"{options.input} is here, where no job can read it. Add --local, or put it on the Hub.")
    if options.output_dir:
        options.output_dir = os.path.abspath(os.path.expanduser(options.output_dir))  # a/b would be a dataset
        if os.path.exists(options.output_dir) and not os.path.isdir(options.output_dir):
            raise Stop(f"--output-dir {options.output_dir} is a file. Name a folder.")
    if options.budget_usd is not None and not options.wait:
        raise Stop("--budget-usd is watched while waiting; leave --no-wait out.")
    if not options.wait and (options.local or options.max_concurrent or options.judge):
        raise Stop("--no-wait submits all jobs at once and ends; leave --local, --max-concurrent and --judge out.")
    check_program("--launcher", options.launcher if options.local else None)
    check_program("--judge", options.judge)
    counts = [n for n in (options.attempts, options.max_samples, options.max_concurrent) if n is not None]
    if min(counts) < 1 or options.poll <= 0:
        raise Stop("--attempts, --max-samples and --max-concurrent count from 1, and --poll is above 0.")
    if options.pages_per_second <= 0 or options.startup_minutes < 0 or not 0 <= options.max_error_rate <= 1:
        raise Stop("--pages-per-second is above 0, --startup-minutes not below, --max-error-rate between 0 and 1.")
    if bad := [label for label in options.label if "=" not in label]:
        raise Stop(f"--label {bad[0]}: write K=V.")
    return options


def check_program(flag, command):
    """Raises Stop(2) where an option's command cannot be split into words, or its program is not here."""
    try:
        words = shlex.split(command) if command is not None else [sys.executable]
    except ValueError as error:
        raise Stop(f"{flag} {command}: {error}. Quote it for the shell as one word.") from error
    if not words or not shutil.which(words[0]):
        raise Stop(f"{flag} {command}: there is no program {words[0] if words else ''} here.")


def on_hub(place):
    """Whether an INPUT is on the Hub by the rule of the recipes: `ns/name` unless that path exists here, or `hf://`."""
    if place.startswith("hf://"):
        return True
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", place)) and not os.path.exists(place)


def seconds_of(duration):
    """Seconds of "90", "45m", "8h" or a number. Raises Stop(2)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", str(duration).strip())
    if not found:
        raise Stop(f"{duration!r} is no duration. Write seconds, or 45m, 8h, 1d.")
    return round(float(found[1]) * SECONDS[found[2]])


# ---- The catalogue and the recipes


def read_text(place):
    """The text of a file here or at a URL. Raises Stop(2)."""
    if not re.match(r"https?://", place):
        try:
            return Path(place).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Stop(f"{place} cannot be read: {first_line(error)}.") from error
    from urllib.request import urlopen

    def fetch():
        with urlopen(place, timeout=60) as response:
            return response.read().decode("utf-8")

    try:
        return persist(fetch, patience=30)
    except (OSError, UnicodeDecodeError) as error:
        raise Stop(f"{place} cannot be fetched: {first_line(error)}.") from error


def catalogue_place(options):
    """Where models.json is: `--catalog` at `--recipe-revision`, or beside the folder of this file."""
    beside = Path(__file__).resolve().parent.parent / "models.json"
    if not options.catalog and not beside.is_file():
        raise Stop(
            "No models.json beside this file. Type --catalog <raw URL>/models.json, the URL this file came from."
        )
    place = options.catalog or str(beside)
    if not options.recipe_revision:
        return place
    pattern = r"(/(?:raw|resolve)/|//raw\.[^/]+/[^/]+/[^/]+/)(?:refs/heads/)?[^/]+/"
    pinned, found = re.subn(pattern, rf"\g<1>{options.recipe_revision}/", place, count=1)
    if not found:
        raise Stop(
            f"--recipe-revision: no revision to replace in {place}. Check out that commit, or write it in --catalog."
        )
    return pinned


def read_catalogue(place):
    """The entries of models.json by name, variants with what they take from their base. Raises Stop(2)."""
    try:
        entries = {entry["name"]: entry for entry in parse_json(read_text(place))}
        return {name: entries.get(entry.get("variant_of"), {}) | entry for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise Stop(f"{place} is no catalogue of recipes: {first_line(error)}.") from error


def list_models(entries):
    rows = [("recipe", "model", "size", "runs on", "support", "notes")]
    for name, entry in entries.items():
        rows.append((name, entry["model"], entry["params"] or "", entry["flavor"] or "cpu", entry["support"],
                     entry.get("notes") or ""))  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(5)]
    for *cells, notes in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + f"  {notes}".rstrip())
    print(json.dumps({"models": list(entries), "exit_code": 0}))
    return 0


def chosen_models(options):
    """{config: recipe name or path} of `--models`. Raises Stop(2)."""
    chosen = {}
    for word in filter(None, (word.strip() for given in options.models for word in given.split(","))):
        config, _, name = word.rpartition("=")
        config = config or Path(name).stem
        if not re.fullmatch(r"[\w.-]+", config) or config == "default":
            raise Stop(
                f"--models {word}: {config!r} cannot name a config. Write CONFIG=NAME with letters, digits, . _ -"
            )
        if config in chosen:
            raise Stop(f"--models names {config} twice. Write CONFIG={name} for the second one.")
        chosen[config] = name
    return chosen


def recipe_of(name, entries, place):
    """(where it is, text, catalogue entry) of a recipe. Raises Stop(2)."""
    if name.endswith(".py"):
        return name, read_text(name), {}
    if name not in entries:
        raise Stop(f"There is no recipe {name} in {place}. --list-models shows them.")
    source = f"{place.rpartition('/')[0]}/ocr/{name}.py"
    return source, read_text(source), entries[name]


def header_of(text, shown):
    """The [tool.hf-jobs] table of a recipe, {} without one. Raises Stop(2) for a header that the CLI would refuse."""
    import tomllib

    found = HEADER.search(text.replace("\r\n", "\n"))
    try:
        table = tomllib.loads(re.sub(r"(?m)^# ?", "", found[1])).get("tool", {}).get("hf-jobs", {}) if found else {}
    except tomllib.TOMLDecodeError as error:
        raise Stop(f"{shown}: the metadata block is not TOML ({error}).") from error
    if unknown := sorted(set(table) - JOB_KEYS):
        raise Stop(f"{shown}: [tool.hf-jobs] has no key {', '.join(unknown)}; it has {', '.join(sorted(JOB_KEYS))}.")
    return table


def table_of(text, shown):
    """The literal RECIPE table. Raises Stop(2) where there is none."""
    with contextlib.suppress(SyntaxError, ValueError, TypeError):
        for node in ast.parse(text.partition("\n# >>> shared part")[0]).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "RECIPE":
                return ast.literal_eval(node.value)
    raise Stop(f"{shown} has no literal RECIPE table, so it is no recipe of this kind.")


# ---- The state


def new_state(options):
    """A state without runs. `settings` is what all models share; `revision` the input's commit, once it is known."""
    shared = "input output output_dir local input_config split revision image_column max_samples shuffle seed".split()
    settings = {name: getattr(options, name) for name in shared}
    return {"schema": SCHEMA, "id": secrets.token_hex(4), "settings": settings, "revision": None, "runs": {}}


def state_path(options):
    slug = re.sub(r"[^\w.-]+", "--", (options.output or options.output_dir or "").strip("/"))
    return Path(options.state or f"./.ocr-runs/bench/{slug}.json")


def open_state(options):
    """(path, state): that of the file, or a new one. Raises Stop(2) where the file is of another run."""
    path = state_path(options)
    if not path.exists():
        if options.resume:
            raise Stop(f"--resume: there is no state file {path}. Name it with --state FILE.")
        return path, new_state(options)
    try:
        state = parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise Stop(f"{path} cannot be read: {first_line(error)}. Name another with --state.") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise Stop(f"{path} is no state file of this tool. Name another with --state.")
    if options.resume:
        vars(options).update(state["settings"])
    old, new = state["settings"], new_state(options)["settings"]
    if differs := [name for name in new if old.get(name) != new[name]]:
        said = "; ".join(f"{name} was {old.get(name)!r} and is {new[name]!r}" for name in differs)
        raise Stop(
            f"The state file {path} is of another run: {said}. Type --resume to go on with that one, "
            f"or --state {path.with_stem(path.stem + '-2')} to begin another."
        )
    return path, state


def save_state(path, state):
    """Replaces the state file in one step; what it says survives a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(part, "w") as file:
        json.dump(state, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


# ---- The plan


def planned_run(config, name, options, entries, place, folder):
    """(record of one model in the state file, text of its recipe), before it has run.

    The recipe is kept under its own SHA-256, so that a resumed run starts what it began with, and uv finds the
    environment that it built for that path.
    """
    source, text, entry = recipe_of(name, entries, place)
    recipe, job, digest = table_of(text, source), header_of(text, source), hashlib.sha256(text.encode()).hexdigest()
    window = recipe.get("vllm") or {}
    run = {
        "recipe": recipe["name"], "script": str(folder / digest[:16] / Path(source).name), "script_url": source,
        "script_sha256": digest, "model": recipe["model"], "model_revision": recipe.get("revision"),
        "weights_on_hub": recipe.get("engine") == "vllm" or entry.get("backend") == "transformers",
        "vllm": window.get("tested") or window.get("min"), "job": job, "image": job.get("image"),
        "flavor": options.flavor or job.get("flavor") or DEFAULT_FLAVOR,
        "timeout": seconds_of(options.timeout or job.get("timeout") or DEFAULT_TIMEOUT),
        "more": more_arguments(config, options), "arguments": [], "status": "planned", "cause": None,
        "attempts": 0, "job_id": None, "url": None, "namespace": None, "stage": None, "created_at": None,
        "started_at": None, "finished_at": None, "pull_request": None, "superseded": [], "revision": None, "rows": None,
        "errors": None, "problems": [], "cost_usd": 0.0, "failure_tail": [],
    }  # fmt: skip
    return run, text


def more_arguments(config, options):
    """The words of `--arguments CONFIG=...` for one config."""
    words = []
    for given in options.arguments:
        name, _, line = given.partition("=")
        words += shlex.split(line) if name == config else []
    return words


def recipe_arguments(config, run, state):
    """The command line of a recipe after its name."""
    asked = state["settings"]
    place = asked["output"] or f"{asked['output_dir']}/{config}"
    words = [asked["input"], place, "--split", asked["split"], "--seed", str(asked["seed"])]
    words += ["--image-column", asked["image_column"]]
    for flag, value in (
        ("--input-revision", state["revision"]),
        ("--input-config", asked["input_config"]),
        ("--max-samples", asked["max_samples"]),
    ):
        words += [flag, str(value)] if value else []
    words += ["--shuffle"] * asked["shuffle"]
    if asked["output"]:
        words += ["--config", config, "--create-pr"]
    if run["weights_on_hub"] and run["model_revision"]:
        words += ["--revision", run["model_revision"]]
    return words + run["more"]


def check_inputs(api, options, state):
    """Pins the revision of the input and makes OUTPUT, which proves that the token may. Raises Stop(2).

    A Hub that cannot be reached for a minute raises what it answered.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    asked = state["settings"]
    try:
        if asked["output"] and not options.dry_run:
            if persist(api.whoami, patience=60).get("auth", {}).get("accessToken", {}).get("role") == "read":
                raise Stop("The Hub token can only read. Set HF_TOKEN to one that can write, or type: hf auth login")
        if not state["runs"] and on_hub(asked["input"]) and "://" not in asked["input"]:
            info = persist(lambda: api.dataset_info(asked["input"], revision=asked["revision"]), patience=60)
            state["revision"] = info.sha
        if asked["output"] and not options.dry_run:
            make = {"repo_type": "dataset", "private": options.private or None, "exist_ok": True}
            persist(lambda: api.create_repo(asked["output"], **make), patience=60)
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        if is_passing(error):
            raise
        raise Stop(
            f"The Hub refuses {asked['input']} or {asked['output']}: {first_line(error)}. "
            "Check the names and the token (hf auth whoami)."
        ) from error


def pin_model(api, run):
    """Pins the model's revision; a gated model that this token cannot read is found here. Raises as `check_inputs`."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        persist(lambda: api.auth_check(run["model"]), patience=60)
        run["model_revision"] = persist(lambda: api.model_info(run["model"], revision=run["model_revision"])).sha
    except (HfHubHTTPError, OSError) as error:
        if is_passing(error):
            raise
        raise Stop(
            f"The model {run['model']} of {run['recipe']} cannot be read: {first_line(error)}. "
            f"If it asks for conditions, accept them on its page; or leave {run['recipe']} out of --models."
        ) from error


def config_in_title(title):
    """The config that a pull request carries: the text in the last brackets, where these end its title."""
    found = re.search(r"\[([^\[\]]+)\]\s*$", title)
    return found and found[1]


def pull_requests(api, repo):
    """The open pull requests of a dataset as {config: [numbers, newest first]}."""
    found = {}
    listed = partial(api.get_repo_discussions, repo, repo_type="dataset", discussion_type="pull_request")
    for request in sorted(persist(lambda: list(listed())), key=lambda request: -request.num):
        config = config_in_title(request.title)
        if config and request.status in ("open", "draft"):
            found.setdefault(config, []).append(request.num)
    return found


def configs_on_main(api, repo):
    """Configs that the main branch has, by its card or by a folder of that name."""
    info = persist(lambda: api.dataset_info(repo))
    declared = (info.card_data.get("configs") if info.card_data else None) or []
    folders = {file.rfilename.split("/")[0] for file in info.siblings or [] if file.rfilename.endswith(".parquet")}
    return folders | {entry.get("config_name") for entry in declared if isinstance(entry, dict)}


def settle_existing(api, new, options, state):
    """Decides about models whose config OUTPUT already has. Raises Stop(2) unless `--on-existing` says what to do."""
    from huggingface_hub.errors import RepositoryNotFoundError

    repo = state["settings"]["output"]
    try:
        requests, main = pull_requests(api, repo), configs_on_main(api, repo)
    except RepositoryNotFoundError:  # a dry run has not made it
        requests, main = {}, set()
    taken = [config for config in new if config in requests or config in main]
    if taken and options.on_existing == "error":
        raise Stop(
            f"{repo} already has {', '.join(taken)}. Type --on-existing skip to keep and check what is there, "
            "--on-existing replace to run again and close the old pull requests, or CONFIG=NAME for another config."
        )
    for config, run in new.items():
        run["superseded"] = requests.get(config, [])
        if config in taken and options.on_existing == "skip":
            run["status"], run["pull_request"] = "existing", next(iter(run["superseded"]), None)
            run["superseded"] = []
        if config in main:
            run["arguments"].append("--overwrite")


def plan(api, options, state, path):
    """Adds the models that the state does not have yet; returns {path: text} of their recipes, to be kept.

    Nothing has been started or written when it raises Stop(2).
    """
    chosen, asked, new, kept = chosen_models(options), state["settings"], {}, {}
    if not chosen and not state["runs"]:
        raise Stop("Name models: --models glm-ocr,lighton-ocr2,pp-ocrv6. --list-models shows them.")
    if unknown := {given.partition("=")[0] for given in options.arguments} - set(chosen):
        raise Stop(f"--arguments names {', '.join(sorted(unknown))}, which --models does not.")
    missing = {config: name for config, name in chosen.items() if config not in state["runs"]}
    by_name = any(not name.endswith(".py") for name in missing.values())
    place = catalogue_place(options) if by_name else ""
    entries = read_catalogue(place) if by_name else {}
    for config, name in missing.items():
        new[config], text = planned_run(config, name, options, entries, place, path.parent / "recipes")
        kept[new[config]["script"]] = text
        if not asked["local"] and not options.dry_run:
            job_secrets(new[config], options)
    if asked["output"] or on_hub(asked["input"]):
        check_inputs(api, options, state)
    for config, run in new.items():
        if run["weights_on_hub"] and not run["model_revision"]:
            pin_model(api, run)
        run["arguments"] = recipe_arguments(config, run, state)
    if asked["output"] and new:
        settle_existing(api, new, options, state)
    state["runs"].update(new)
    return kept


def prices(api):
    """{flavor: USD per hour} as the Jobs API states them; {} where it does not answer."""
    per_hour = {"second": 3600, "minute": 60, "hour": 1}
    try:
        listed = persist(api.list_jobs_hardware, patience=30)
    except Exception as error:
        say(f"The prices of the hardware are unknown: {first_line(error)}.")
        return {}
    units = [(item, per_hour.get(item.unit_label.rstrip("s"))) for item in listed]
    return {item.name: item.unit_cost_usd * unit for item, unit in units if unit}


def show_plan(options, state, price):
    """Tells what will run and what it may cost; returns the expected cost of what is left, None where unknown."""
    pages, total, most = state["settings"]["max_samples"], 0.0, 0.0
    for config, run in state["runs"].items():
        line = f"  {config}: {run['recipe']} {run['script_sha256'][:12]}, {run['model']}"
        line += f"@{run['model_revision'][:12]}" if run["model_revision"] else ""
        if run["status"] not in WAITING and not retriable(run):
            say(f"{line}: {run['status']}")
            continue
        if not state["settings"]["local"]:
            hourly = price.get(run["flavor"])
            line += f"; {run['flavor']}, {run['image'] or 'the default image'}, at most {run['timeout'] / 3600:g} h"
            hours = (options.startup_minutes / 60 + pages / options.pages_per_second / 3600) if pages else None
            expected = None if hourly is None or hours is None else hourly * min(hours, run["timeout"] / 3600)
            total = None if total is None or expected is None else total + expected
            most = None if most is None or hourly is None else most + hourly * run["timeout"] / 3600
            line += "; price unknown" if hourly is None else f" at ${hourly:.2f}/h"
            line += "" if expected is None else f", about ${expected:.2f}"
        say(line)
        say(f"      {Path(run['script']).name} {shlex.join(run['arguments'])}")
    if pages:
        say(
            f"With {pages} pages two models can be told apart if they are {resolvable_elo(pages):.0f} Elo points apart."
        )
    if state["settings"]["local"]:
        return 0.0
    about = "unknown" if total is None else f"${total:.2f}"
    say(
        f"Expected cost: {about} ({options.startup_minutes:g} min of start-up and {options.pages_per_second:g} pages/s "
        f"assumed{'' if pages else '; give --max-samples'}). At most "
        f"{'unknown' if most is None else f'${most:.2f}'} per attempt, when every job runs to its timeout."
    )
    return total


def resolvable_elo(pages):
    """The smallest Elo difference that a sign test on that many pages finds with 80 % power at the 5 % level."""
    share = min(0.5 + 1.4 / math.sqrt(pages), 0.999)  # (1.96 + 0.84) / 2 standard errors of a share near one half
    return 400 * math.log10(share / (1 - share))


def retriable(run):
    return run["status"] in ("failed", "stopped")


# ---- Jobs on the Hub


def job_secrets(run, options):
    """{name: value} of what a recipe's header asks for, from this environment. Raises Stop(2) where one is missing."""
    from huggingface_hub import get_token

    found = {}
    for name in run["job"].get("secrets", []):
        source = options.job_token_env if name == "HF_TOKEN" and options.job_token_env else name
        value = os.environ.get(source) or (get_token() if source == "HF_TOKEN" else None)
        if not value:
            raise Stop(
                f"{run['recipe']} needs the secret {name}, and {source} is not set here. Set it, or: hf auth login"
            )
        found[name] = value
    return found


def labels_of(config, run, state, options):
    """Labels by which a job of this run is found again, also when the answer to its submission was lost."""
    given = dict(label.split("=", 1) for label in options.label)
    return given | {"ocr-bench": state["id"], "config": config, "attempt": str(run["attempts"])}


def submitted_job(api, labels, namespace):
    """The job that carries these labels already, or None."""
    wanted = {name: labels[name] for name in ("ocr-bench", "config", "attempt")}
    return next(iter(api.list_jobs(labels=wanted, namespace=namespace)), None)


def submit(api, config, run, state, options):
    """Submits one job, once: an answer that was lost, or a kill between the two, does not make a second one."""
    from huggingface_hub import Volume
    from huggingface_hub.utils import parse_hf_mount

    header, namespace = run["job"], options.namespace or run["job"].get("namespace")
    labels = (header.get("labels") or {}) | labels_of(config, run, state, options)
    mounts = [parse_hf_mount(word) for word in header.get("volumes", [])]
    volumes = [
        Volume(type=mount.source.type, source=mount.source.id, mount_path=mount.mount_path, read_only=mount.read_only,
               path=mount.source.path_in_repo or None, revision=mount.source.revision or None)
        for mount in mounts
    ]  # fmt: skip

    def attempt():
        if job := submitted_job(api, labels, namespace):
            return job
        with contextlib.redirect_stdout(sys.stderr):  # it prints, and stdout is for the JSON line
            return api.run_uv_job(
                run["script"], script_args=run["arguments"], python=header.get("python"), image=header.get("image"),
                env=header.get("env"), secrets=job_secrets(run, options), flavor=run["flavor"], timeout=run["timeout"],
                name=header.get("name") or f"ocr-bench-{config}", labels=labels, volumes=volumes or None,
                network_group=header.get("network_group"), network_aliases=header.get("network_aliases"),
                namespace=namespace,
            )  # fmt: skip

    return persist(attempt)


def start_job(api, config, run, state, options, save):
    if run["status"] != "submitting":  # one that was being submitted when this was killed is looked for first
        run["attempts"] += 1
        run.update(status="submitting", cause=None, failure_tail=[], problems=[], job_id=None, stage=None)
        save()
    job = submit(api, config, run, state, options)
    run.update(status="running", job_id=job.id, url=job.url, namespace=job.owner.name if job.owner else None)
    note_job(run, job, {})
    save()
    say(f"{config}: attempt {run['attempts']} is job {job.url}")


def note_job(run, job, price):
    """Copies what the Jobs API says about a job into its run."""
    times = {name: getattr(job, name) for name in ("created_at", "started_at", "finished_at")}
    run.update(stage=str(getattr(job.status.stage, "value", job.status.stage)))
    run.update({name: value.isoformat() if value else None for name, value in times.items()})
    run["attempt_cost_usd"] = round(hours_of(run) * price.get(run["flavor"], 0.0), 4)


def hours_of(run):
    """Hours that the machine of a run's last attempt has been held."""
    if not run["started_at"]:
        return 0.0
    end = datetime.fromisoformat(run["finished_at"]) if run["finished_at"] else datetime.now(timezone.utc)
    return max(0.0, (end - datetime.fromisoformat(run["started_at"])).total_seconds()) / 3600


def look_at_job(api, config, run, options, price, save):
    """Reads a job's stage; where it has ended, decides what that means."""
    namespace = run.get("namespace") or options.namespace
    job = persist(lambda: api.inspect_job(job_id=run["job_id"], namespace=namespace))
    before = run["stage"]
    note_job(run, job, price)
    if run["stage"] in ENDED:
        tail = []
        with contextlib.suppress(Exception):  # logs may be gone; the stage is what counts
            tail = list(api.fetch_job_logs(job_id=run["job_id"], namespace=namespace, tail=TAIL))[-TAIL:]
        finish_attempt(run, tail, job.status.message or "")
        say(f"{config}: {run['stage']}" + (f", {run['cause']}" if run["cause"] else ""))
    elif run["stage"] != before:
        say(f"{config}: {run['stage']}")
    save()


def finish_attempt(run, tail, message, code=None):
    """Sets the status after an attempt: "ran" (to be checked), "planned" (once more) or "failed" with its cause.

    `tail` is what the recipe said last, its JSON line included; `code` its exit code where known.
    """
    if code is None:
        found = re.search(r"exit code:? *(-?\d+)", message)
        code = int(found[1]) if found else last_json(tail).get("exit_code")
    run["cost_usd"] = round(run["cost_usd"] + run.pop("attempt_cost_usd", 0.0), 4)
    if run["stage"] == "COMPLETED" or code == 3:
        run.update(status="ran", cause=None)
        return
    run["cause"] = cause_of(run, tail, message, code)
    run["failure_tail"] = [without_secrets(line) for line in [*tail[-TAIL:], message] if line]
    again = run["cause"] in PASSING and run["attempts"] < run["limit"]
    run["status"] = "planned" if again else "failed"


def cause_of(run, tail, message, code=None):
    """One word for why an attempt failed: a key of CAUSES_IN_MESSAGE or CAUSES_IN_LOG, canceled, preflight or other."""
    if run["stage"] in ("CANCELED", "DELETED"):
        return "canceled"
    for cause, pattern in CAUSES_IN_MESSAGE:
        if re.search(pattern, message, re.IGNORECASE):
            return cause
    if hours_of(run) * 3600 >= run["timeout"]:  # however the service words it
        return "timeout"
    log = "\n".join(tail)
    for cause, pattern in CAUSES_IN_LOG:
        if re.search(pattern, log):
            return cause
    return {2: "preflight", 137: "memory", -9: "memory"}.get(code, "other")


def last_json(lines):
    """The last line that is a JSON object, as a dict; {} without one."""
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return {}


def without_secrets(text):
    """`text` without tokens: what looks like one, and the values of this environment's own."""
    for name, value in os.environ.items():
        if re.search(r"TOKEN|SECRET|PASSWORD|API_KEY", name) and len(value) >= 8:
            text = text.replace(value, "***")
    return re.sub(r"\bhf_\w{6,}", "hf_***", text)


def spent(state):
    return sum(run["cost_usd"] + run.get("attempt_cost_usd", 0.0) for run in state["runs"].values())


def run_jobs(api, state, options, price, save, interrupted):
    """Submits and watches until no job is left. Raises Stop(1) where the budget is used up.

    Raises KeyboardInterrupt once `interrupted` is set, between two requests: one that a signal breaks off can leave
    the connections to the Hub locked.
    """
    runs = state["runs"]

    def check_interrupt():
        if interrupted.is_set():
            raise KeyboardInterrupt

    while True:
        for config, run in runs.items():
            check_interrupt()
            if run["status"] == "running":
                look_at_job(api, config, run, options, price, save)
        if options.budget_usd is not None and spent(state) >= options.budget_usd:
            cancel_jobs(api, state, options, save, "budget")
            raise Stop(
                f"${spent(state):.2f} are spent, which is the budget. Finished pages are kept: the same command with "
                "a higher --budget-usd goes on.", 1
            )  # fmt: skip
        free = (options.max_concurrent or len(runs)) - sum(run["status"] == "running" for run in runs.values())
        waiting = [config for config, run in runs.items() if run["status"] in ("planned", "submitting")]
        for config in waiting[: max(0, free)]:
            check_interrupt()
            start_job(api, config, runs[config], state, options, save)
        if not options.wait or all(run["status"] not in WAITING for run in runs.values()):
            return
        interrupted.wait(options.poll)


def cancel_jobs(api, state, options, save, cause):
    """Cancels what runs, and what was being submitted when this was interrupted."""
    for config, run in state["runs"].items():
        if run["status"] in ("running", "submitting"):
            namespace = run.get("namespace") or options.namespace or run["job"].get("namespace")
            labels = labels_of(config, run, state, options)
            with contextlib.suppress(Exception):  # it may just have ended, or never have come to be
                job = run["job_id"] or persist(partial(submitted_job, api, labels, namespace), patience=30).id
                api.cancel_job(job_id=job, namespace=namespace)
            run.update(status="stopped", cause=cause, stage="CANCELED")
            run["cost_usd"] = round(run["cost_usd"] + run.pop("attempt_cost_usd", 0.0), 4)
            say(f"{config}: canceled ({cause})")
    save()


# ---- On this machine


def local_command(run, options):
    """The command that runs a recipe here. vLLM recipes leave vllm to the image of a job, so it is added for uv."""
    command = shlex.split(options.launcher)
    if options.launcher == "uv run" and run["vllm"]:
        command += ["--with", f"vllm=={run['vllm']}"]
    return [*command, run["script"], *run["arguments"]]


def run_here(state, options, save):
    """Runs the models one after another, each in its own process with what it says passed on."""
    for config, run in state["runs"].items():
        while run["status"] == "planned":
            run["attempts"] += 1
            run.update(status="running", stage="RUNNING", cause=None, failure_tail=[], problems=[], finished_at=None)
            run["started_at"] = datetime.now(timezone.utc).isoformat()
            save()
            command = local_command(run, options)
            say(f"{config}: {shlex.join(command)}")
            code, tail, late = watched(command, run["timeout"] if options.timeout else None)
            run["finished_at"] = datetime.now(timezone.utc).isoformat()
            run["stage"] = "COMPLETED" if code == 0 else "ERROR"
            finish_attempt(run, tail, "timeout" if late else "", code)
            say(f"{config}: exit code {code}" + (f", {run['cause']}" if run["cause"] else ""))
            save()


def watched(command, timeout=None):
    """(exit code, last lines, whether it was stopped at the timeout) of a command whose output goes to stderr."""
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except OSError as error:
        return 127, [f"{command[0]} cannot be started: {first_line(error)}"], False
    tail, late = deque(maxlen=TAIL), threading.Event()

    def stop():
        late.set()
        process.terminate()  # a recipe saves what is finished, and the next attempt goes on

    timer = threading.Timer(timeout, stop) if timeout else None
    try:
        if timer:
            timer.start()
        for line in process.stdout:
            say(line.rstrip("\n"))
            tail.append(line.rstrip("\n"))
        return process.wait(), list(tail), late.is_set()
    finally:
        if timer:
            timer.cancel()
        if process.poll() is None:
            process.terminate()
            process.wait()


# ---- Checking what came out


def check_outputs(api, state, options, save):
    """Reads back every output: "done", "missed" with the problems found, or "failed" where there is none."""
    runs, repo, tables = state["runs"], state["settings"]["output"], {}
    if not any(run["status"] in ("ran", "existing", "missed") for run in runs.values()):
        return
    read = {config: run for config, run in runs.items() if run["status"] in ("ran", *FINISHED)}
    requests = pull_requests(api, repo) if repo else {}
    for config, run in read.items():
        run["problems"] = []
        try:
            if (table := output_of(api, config, run, state["settings"], requests)) is None:
                run.update(status="failed", cause="no output")
                continue
            tables[config] = (table, *text_of_config(table))
            run["problems"] += contract_problems(tables[config], bool(repo))
        except Stop as problem:
            run["problems"].append(str(problem))
    if tables:
        compare_pages(tables, runs, options)
    for config, run in read.items():
        if run["status"] != "failed":
            run["status"] = "missed" if run["problems"] else "done"
        if run["status"] == "done" and repo:
            close_superseded(api, repo, config, run)
            if options.merge == "on-success" and run["pull_request"] in requests.get(config, []):
                merge_request(api, repo, config, run)
    save()


def output_of(api, config, run, asked, requests):
    """What one run left, as a `Table`; None where it left nothing. Raises Stop where it cannot be read."""
    if not asked["output"]:
        folder = run["arguments"][1]
        return folder_table(folder) if os.path.isdir(folder) else None
    if run["status"] != "existing":
        newer = [number for number in requests.get(config, []) if number not in run["superseded"]]
        run["pull_request"] = next(iter(newer), run["pull_request"])
        if not run["pull_request"]:
            return None
        run["superseded"] += newer[1:]  # what an attempt left that failed after publishing
    ref = f"refs/pr/{run['pull_request']}" if run["pull_request"] else None
    run["revision"] = persist(lambda: api.dataset_info(asked["output"], revision=ref)).sha
    return hub_table(asked["output"], config, run["revision"], asked["split"])


def contract_problems(run, published):
    """What keeps judge and scorer from using an output: (table, column, entry) without what they join and read by."""
    table, column, info = run
    if not next(iter(table.columns.values()), []):
        yield "it has no rows"
    if published:
        if not info.get("model_id") or info.get("column_name") != column:
            yield f"inference_info does not say which model wrote {column}"
        for name in ("source_row", "image_sha256"):
            values = table.columns.get(name)
            if not values or all(value is None for value in values):
                yield f"the column {name} is missing or empty"


def compare_pages(tables, runs, options):
    """Counts pages and failures of each run, and finds pages that one run lacks and another has."""
    try:
        joined = join_runs(list(tables.values()), argparse.Namespace(row_key=None, assume_aligned=False))
    except Stop as problem:
        for config in tables:
            runs[config]["problems"].append(f"the outputs cannot be joined: {problem}")
        return
    for one in joined.contestants:
        run, states = runs[one.config], one.states()
        rows = len(joined.keys) - one.missing
        errors = states.get("error", 0) - one.missing
        lengths = sorted(len(output.text) for output in one.outputs.values() if output.text is not None)
        short = sum(length < 20 for length in lengths)
        middle, longest = (lengths[len(lengths) // 2], lengths[-1]) if lengths else (None, None)
        run.update(rows=rows, errors=errors, median_chars=middle, longest_chars=longest, under_20_chars=short)
        if one.missing:
            run["problems"].append(f"{one.missing} of {len(joined.keys)} pages are missing that another model has")
        if errors > max(2, options.max_error_rate * rows):  # the gate of the recipes
            run["problems"].append(f"{errors} of {rows} pages failed")
        if rows and errors == rows:
            run["problems"].append("no page was read")


def close_superseded(api, repo, config, run):
    """Closes the pull requests that a checked run replaces: two open ones with one config would be ambiguous."""
    for number in run["superseded"]:
        persist(lambda number=number: api.change_discussion_status(
            repo, number, "closed", repo_type="dataset", comment=f"Replaced by pull request {run['pull_request']}."
        ))  # fmt: skip
        say(f"{config}: closed pull request {number}, which {run['pull_request']} replaces")
    run["superseded"] = []


def merge_request(api, repo, config, run):
    try:
        persist(lambda: api.merge_pull_request(repo, run["pull_request"], repo_type="dataset"), patience=60)
        say(f"{config}: merged pull request {run['pull_request']}")
    except Exception as error:
        say(f"{config}: pull request {run['pull_request']} cannot be merged and stays open: {first_line(error)}")


# ---- The run


def outcome(state):
    """The exit code that the models' runs have earned: 0 all done, 1 some are not, 3 a check was missed."""
    statuses = [run["status"] for run in state["runs"].values()]
    return 1 if any(status not in (*FINISHED, "ran") for status in statuses) else 3 if "missed" in statuses else 0


def summarise(state, path, judge_code=None):
    """The table for the human and the JSON line for the machine; returns the exit code: the judge's where it ran."""
    runs, asked, code = state["runs"], state["settings"], outcome(state)
    for config, run in runs.items():
        words = [f"{run['rows']} pages, {run['errors']} failed" if run["rows"] is not None else ""]
        words += [f"pull request {run['pull_request']}" if run["pull_request"] else "", run["cause"] or ""]
        words += [f"${run['cost_usd']:.2f}" if run["cost_usd"] else "", *run["problems"]]
        say(f"  {config:<24} {run['status']:<8} " + "; ".join(filter(None, words)))
        if run["status"] == "failed":
            say("\n".join(f"      {line}" for line in run["failure_tail"][-8:]))
    if code == 1:
        say("Not finished. " + resume_line(path))
    brief = ("status cause rows errors pull_request revision job_id attempts cost_usd problems median_chars "
             "longest_chars under_20_chars").split()  # fmt: skip
    summary = {
        "output": asked["output"] or asked["output_dir"], "input": asked["input"], "revision": state["revision"],
        "models": {config: {key: run.get(key) for key in brief} for config, run in runs.items()},
        "cost_usd": round(spent(state), 4), "state": str(path), "judge_exit_code": judge_code,
        "exit_code": judge_code or code,
    }  # fmt: skip
    print(json.dumps(summary, ensure_ascii=False), flush=True)
    return summary["exit_code"]


def resume_line(path):
    return f"Go on with the same command, or: uv run ocr-bench-run.py --resume --state {shlex.quote(str(path))}"


def bench(options):
    """Plans, runs and checks; returns the exit code."""
    from huggingface_hub import HfApi

    path, state = open_state(options)
    api, runs, local = HfApi(), state["runs"], state["settings"]["local"]
    save = partial(save_state, path, state)
    kept = plan(api, options, state, path)
    at = f" at {state['revision'][:12]}" if state["revision"] else ""
    say(f"{len(runs)} models over {state['settings']['input']}{at}; state in {path}")
    price = {} if local else prices(api)
    expected = show_plan(options, state, price)
    if options.budget_usd is not None and not local:
        if expected is None:
            raise Stop(
                "--budget-usd: the cost cannot be estimated. Add --max-samples, and --flavor with a known price."
            )
        if spent(state) + expected > options.budget_usd:
            raise Stop(f"--budget-usd {options.budget_usd:g} is below the expected ${spent(state) + expected:.2f}.")
    if options.dry_run:
        print(json.dumps({"runs": runs, "expected_usd": expected, "exit_code": 0}, ensure_ascii=False))
        return 0
    for script, text in kept.items():
        Path(script).parent.mkdir(parents=True, exist_ok=True)
        Path(script).write_text(text)
    for run in runs.values():
        run["limit"] = run["attempts"] + options.attempts
        if retriable(run) or (local and run["status"] == "running"):  # here nothing runs on without this process
            run["status"] = "planned"
    save()
    interrupted = threading.Event()

    def interrupt(*_):
        if local or interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        say("Stopping when the Hub has answered; a second signal does not wait.")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    try:
        if local:
            run_here(state, options, save)
        else:
            run_jobs(api, state, options, price, save, interrupted)
    except KeyboardInterrupt:
        if local:
            for run in runs.values():
                run["status"] = "stopped" if run["status"] == "running" else run["status"]
        elif options.cancel_on_exit:
            cancel_jobs(api, state, options, save, "stopped")
        else:
            say("The jobs go on without this; --cancel-on-exit would have canceled them.")
        save()
        return summarise(state, path)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    if not options.wait:
        say(f"Submitted. To wait for them and check what comes out: {resume_line(path)}")
        jobs = {config: run["job_id"] for config, run in runs.items()}
        print(json.dumps({"jobs": jobs, "state": str(path), "exit_code": 0}))
        return 0
    check_outputs(api, state, options, save)
    judge_code = judge(state, options.judge) if options.judge and outcome(state) == 0 else None
    return summarise(state, path, judge_code)


def judge(state, command):
    """Runs the command of --judge on the outputs; returns its exit code, 1 where a signal ended it."""
    target = state["settings"]["output"] or state["settings"]["output_dir"]
    words = [word.replace("{output}", target) for word in shlex.split(command)]
    say(f"Judging: {shlex.join(words)}")
    code = subprocess.run(words, stdout=2).returncode  # stdout is for the one JSON line
    say(f"The judge ended with exit code {code}.")
    return code if code >= 0 else 1


def run_bench():
    """The exit code: 0 all models done, 1 some are not and the same command goes on, 2 usage, 3 a check was missed."""
    options = bench_parser().parse_args()
    if options.list_models:
        return exit_code_of(lambda: list_models(read_catalogue(catalogue_place(options))))
    return exit_code_of(lambda: bench(settle_bench(options)))  # everything done so far is in the state file


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
# <<< shared part


if __name__ == "__main__":
    sys.exit(run_bench())
