"""The command line of every recipe: options, what is checked before anything is paid, and the exit code."""

import argparse
import contextlib
import json
import logging
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from kit.answers import complete, one_step
from kit.items import where
from kit.publish import check_columns, check_output
from kit.results import open_results
from kit.run import Tally, engine_rows, read_all, report, stop_on_signals
from kit.seam import Page, Stop, Unit, say
from kit.source import open_source

PACKAGES = "vllm sglang torch transformers saturate onnxruntime rapidocr datasets huggingface_hub pillow pypdfium2"
UNSHOWN = ("own_options", "max_tokens_given", "engine_given")  # what settle notes down, and argparse's own


def option_parser(recipe, add_options=None):
    """The parser: INPUT OUTPUT, what to read, how to read it, where it goes; then the recipe's own options."""
    parser = argparse.ArgumentParser(
        prog=f"{recipe['name']}.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("input", metavar="INPUT", help="Hub dataset ns/name, hf:// URI, folder, glob, image or PDF")
    add("output", metavar="OUTPUT", help="Hub dataset ns/name, hf://buckets/ns/name/prefix, or folder")
    tasks = list(recipe.get("tasks") or {})
    add("--task", "--mode", "--prompt-mode", "--task-mode", choices=tasks or None, default=recipe.get("task"),
        help=f"what to do with a page (default {recipe.get('task')})")  # fmt: skip
    add("--image-column", default="image", help="column with the page images (default image)")
    add("--text-column", help="column with text to read instead of images")
    add("--id-column", help="column with unique ids (default: split and row number)")
    add("--output-column", default=recipe.get("output_column", "markdown"), help="text column (default %(default)s)")
    add("--blocks-column", default=recipe.get("blocks_column"), help="blocks column (default %(default)s)")
    add("--overwrite", action="store_true", help="replace output columns or an output config that exist already")
    add("--split", default="train", help="split of the input dataset (default train)")
    add("--input-config", help="config of the input dataset")
    add("--input-revision", help="revision of the input dataset (default: the newest, then kept)")
    add("--max-samples", "--limit", type=positive, metavar="N", help="read only N rows or files")
    add("--shuffle", action="store_true", help="draw the rows of --max-samples at random")
    add("--seed", type=int, default=42, help="seed of --shuffle (default 42)")
    add("--shard", type=shard_pair, metavar="I/N", help="read every Nth row from I, 0 <= I < N; publishes nothing")
    add("--dpi", "--pdf-dpi", type=positive, default=recipe.get("dpi", 200),
        help="resolution of PDF pages (default %(default)s)")  # fmt: skip
    add("--keep-extension", action="store_true", help="name files x.png.md, for inputs that differ by suffix only")

    engines = recipe.get("engines") or (["offline", "serve"] if recipe["engine"] == "vllm" else [recipe["engine"]])

    def served(*flags, help, **how):
        """An option that a recipe whose model only runs in worker processes takes, and lists if it has such a key."""
        unused = engines == ["local"] and flags[0].strip("-").replace("-", "_") not in recipe
        add(*flags, help=argparse.SUPPRESS if unused else help, **how)

    add("--engine", choices=engines, help=f"how the model runs ({', '.join(engines)}; default: the faster here)")
    served("--endpoint", metavar="URL", help="OpenAI-compatible server that runs already, e.g. http://host:8000/v1")
    add("--model", default=recipe["model"], help="model id or folder (default %(default)s)")
    add("--revision", default=recipe.get("revision"), help="revision of the model (default %(default)s)")
    served("--max-model-len", type=positive, default=recipe.get("max_model_len"), help="context (default %(default)s)")
    served("--max-tokens", type=positive, help=f"longest answer (default {recipe.get('max_tokens')})")
    share = (recipe.get("engine_args") or {}).get("gpu_memory_utilization")
    served("--gpu-memory-utilization", type=float, default=share, help="share of GPU memory (default %(default)s)")
    served("--window", "--batch-size", type=positive, help="pages in flight (default: from the engine and the memory)")
    served("--retries", type=int, default=1, help="times a looping or broken answer is asked again (default 1)")
    for key, value in (recipe.get("sampling") or {}).items():
        by_task = recipe.get("task_sampling", {}).items()
        default = ", ".join([str(value), *(f"{own[key]} for {task}" for task, own in by_task if key in own)])
        add("--" + key.replace("_", "-"), type=type(value), help=f"{key} (default {default})")

    add("--config", help="config of the output dataset")
    add("--create-pr", action="store_true", help="publish as a pull request")
    add("--private", action="store_true", help="create the output dataset private")
    add("--hf-token", action=Token, metavar="TOKEN", default=argparse.SUPPRESS,
        help="token of the Hub; HF_TOKEN in the environment shows it to fewer eyes")  # fmt: skip
    add("--columns", type=lambda text: [c for c in text.split(",") if c], help="input columns to keep, by commas")
    add("--checkpoint", metavar="DIR", help="where finished pages are kept until they are published")
    add("--keep-checkpoint", action=argparse.BooleanOptionalAction, default=recipe.get("keep_checkpoint", False),
        help="leave the checkpoint in its place after publishing")  # fmt: skip
    add("--retry-errors", action="store_true", help="ask again for pages that failed in an earlier run")
    add("--max-error-rate", type=float, default=0.05, help="exit 3 if more pages fail, and 3 do (default 0.05)")
    add("--price-per-hour", type=float, metavar="USD", help="price of the machine, for cost per 1,000 pages")
    add("--dry-run", action="store_true", help="print the settings and one request; no network")
    add("--check", action="store_true", help="check everything that can be checked before the run, then stop")
    add("--verbose", action="store_true", help="show what the libraries log")
    if add_options:
        shared = {action.dest for action in parser._actions}
        own = parser.add_argument_group(f"options of {recipe['name']}")
        add_options(own)
        names = [action.dest for action in own._group_actions]
        parser.set_defaults(own_options=[name for name in names if name not in shared])  # without further names
    return parser


class Token(argparse.Action):
    """Puts a token where the Hub's client looks for it, and takes it out of the command that messages quote."""

    def __call__(self, parser, options, token, flag=None):
        if token:
            os.environ["HF_TOKEN"] = token
            pairs = zip(sys.argv, [*sys.argv[1:], ""], strict=True)
            sys.argv = [word for word, after in pairs if token not in word and after != token]


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


def shard_pair(text):
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text}: write I/N with 0 <= I < N, e.g. 0/4 to 3/4")
    return int(index), int(count)


def settle(options, recipe, engines):
    """Fills in what depends on other options. Raises Stop(2) for options that contradict each other."""
    options.max_tokens_given = options.max_tokens is not None
    options.max_tokens = options.max_tokens or recipe.get("max_tokens")
    for key, value in ((recipe.get("sampling") or {}) | recipe.get("task_sampling", {}).get(options.task, {})).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    if options.endpoint:
        options.engine = "serve"
    options.engine_given = options.engine is not None
    options.engine = options.engine or next(iter(engines))
    if options.engine not in engines:
        raise Stop(f"--engine {options.engine}: {recipe['name']} runs with {', '.join(engines)}.")
    if options.max_model_len and options.max_tokens and options.max_tokens >= options.max_model_len:
        raise Stop(
            f"--max-tokens {options.max_tokens} leaves no room for the page within --max-model-len "
            f"{options.max_model_len}. Try --max-tokens {options.max_model_len // 2}."
        )
    if options.output_column == options.blocks_column:
        raise Stop(f"--output-column and --blocks-column are both {options.output_column!r}; name two columns.")
    if options.retries < 0 or not 0 <= options.max_error_rate <= 1 or not (options.price_per_hour or 0) >= 0:
        raise Stop("--retries and --price-per-hour start at 0, and --max-error-rate lies between 0 and 1.")
    kind, path = where(options.output)
    if kind == "local" and os.environ.get("JOB_ID") and not on_mount(path):
        raise Stop(
            f"OUTPUT {options.output} is a folder on the job's own disk, which is gone when the job ends. "
            "Name a Hub dataset (ns/name), a bucket (hf://buckets/ns/name/prefix), or a folder on a mount (-v)."
        )


def on_mount(path):
    """True if the path lies on a mounted volume rather than on the root file system."""
    path = Path(path).resolve()
    return any(map(os.path.ismount, [path, *path.parents][:-1]))


def versions():
    """Installed versions of the packages that a result depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in PACKAGES.split():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def run_facts(options, recipe, source):
    """What identifies a run (model, revision, task, the recipe's own options, source) and what else describes it."""
    return {
        "recipe": recipe["name"], "model": options.model, "revision": options.revision, "task": options.task,
        "options": {name: getattr(options, name) for name in getattr(options, "own_options", ())},
        "source": source.identity, "engine": options.engine, "versions": versions(),
        "sampling": {key: getattr(options, key) for key in recipe.get("sampling") or {}},
        "max_tokens": options.max_tokens, "max_model_len": options.max_model_len,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip


def show_settings(options, recipe, steps):
    """--dry-run: the settings, and for served models one request for a blank page, as JSON on stdout."""
    settings = {name: value for name, value in vars(options).items() if name not in UNSHOWN}
    print(json.dumps({"settings": settings}, indent=2, default=str))
    if steps:
        from PIL import Image

        page = Page(Image.new("RGB", (1240, 1754), "white"), 1240, 1754)
        unit = Unit("dry-run", [] if recipe.get("input") == "text" else [page], "Text of one cell.")
        bodies = [complete(body, options, recipe, unit) for body in next(steps(unit, options))]
        shown = {"request": bodies[0]}
        print(json.dumps(shown, indent=2, ensure_ascii=False, default=lambda image: f"image of {image.size}"))
    return 0


def main(recipe, engines, request=None, parse=None, steps=None, load=None, predict=None, add_options=None, check=None,
         preflight=None):  # fmt: skip
    """Runs a recipe; returns the exit code: 0 done, 1 stopped and resumable, 2 usage or preflight, 3 too many errors.

    `engines` maps engine names to functions, the default first. `preflight(options, recipe)` is the engines' check,
    `check(options)` the recipe's own; both raise Stop. `check` may return keys of RECIPE that these options change.
    """
    steps = steps or (one_step(request, parse) if request else None)
    results = None
    try:
        options = option_parser(recipe, add_options).parse_args()
        logging.basicConfig(level=logging.INFO if options.verbose else logging.ERROR, stream=sys.stderr)
        settle(options, recipe, engines)
        if options.dry_run:
            return show_settings(options, recipe, steps)
        if check:
            recipe = {**recipe, **(check(options) or {})}
        if preflight and options.engine != "local":
            preflight(options, recipe)
        source = open_source(options, recipe)
        say(f"Reading {source.describe}; writing {' '.join(where(options.output))}.")
        check_columns(options, recipe, source)
        check_output(options, recipe, source)
        run = run_facts(options, recipe, source)
        if options.check:
            say("Everything that can be checked beforehand is in order.")
            return 0
        results = open_results(options, recipe, source, run)
        stop = stop_on_signals(results)
        by_page = recipe.get("pages_per_unit", 1) == 1
        total = source.total and source.total + (results.done.extra_pages() if by_page else 0)
        tally = Tally(total, len(results.done), by_page)
        engine, items = engines[options.engine], source.items(results.done)
        if steps and options.engine != "local":
            rows = engine_rows(engine, items, steps, options, recipe, stop, results)
        else:
            rows = engine(items, options, recipe, stop, load, predict)
        read_all(rows, results, tally, stop)
        if stop.is_set():
            return report(tally, options, recipe, 1)
        earlier = results.done.failed()
        published = results.finish(source, run, card_counts(tally))
        say(published)
        errors = max(tally.errors + earlier, results.done.failed())  # the writer may have refused a page's name
        failed = errors > max(2, options.max_error_rate * (tally.pages + tally.skipped))
        return report(tally, options, recipe, 3 if failed else 0, earlier_errors=earlier, published=published)
    except Stop as problem:
        say(f"{'Error' if problem.code == 2 else 'Stopped'}: {problem}")
        return problem.code
    finally:
        if results:
            results.close()


def card_counts(tally):
    """The counts that go on the card."""
    return {"pages": tally.pages, "errors": tally.errors, "flags": dict(tally.flags), "seconds": round(tally.seconds)}
