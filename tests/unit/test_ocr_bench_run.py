"""The coordinator's plan: what it reads from recipes, what it would start, and what a failure means."""

import argparse
import json
import shlex
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from tests.unit.recipe_file import load_recipe

bench = load_recipe("ocr-bench-run")

RECIPE = '''# /// script
# requires-python = ">=3.10"
# dependencies = []
#
# [tool.hf-jobs]
# image = "vllm/vllm-openai:v0.29.0"
# flavor = "l4x1"
# timeout = "2h"
# env = { PYTHONPATH = "/x" }
# secrets = ["HF_TOKEN"]
# ///
"""A recipe."""
RECIPE = {"name": "one", "model": "org/one", "revision": "abc", "engine": "vllm", "vllm": {"tested": "0.29.0"}}
'''


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def catalogue(tmp_path):
    """models.json with a recipe beside it, and a variant."""
    (tmp_path / "ocr").mkdir()
    (tmp_path / "ocr" / "one.py").write_text(RECIPE)
    entries = [
        {
            "name": "one",
            "model": "org/one",
            "params": "1B",
            "flavor": "l4x1",
            "support": "supported",
            "backend": "vllm",
        },
        {"name": "one-bucket", "variant_of": "one"},
    ]
    (tmp_path / "models.json").write_text(json.dumps(entries))
    return str(tmp_path / "models.json")


def options_of(line):
    return bench.settle_bench(bench.bench_parser().parse_args(shlex.split(line)))


def run_of(recipe, line="user/in user/out"):
    return bench.planned_run("one", str(recipe), options_of(line), {}, "", recipe.parent)[0]


# ---- what recipes say


def test_the_jobs_table_is_read_as_the_cli_reads_it():
    table = bench.header_of(RECIPE, "one.py")
    assert table["flavor"] == "l4x1" and table["env"] == {"PYTHONPATH": "/x"} and table["secrets"] == ["HF_TOKEN"]
    assert bench.header_of(RECIPE.replace("\n", "\r\n"), "one.py") == table
    assert bench.header_of("print()\n", "x.py") == {}
    with pytest.raises(bench.Stop, match="no key gpu"):
        bench.header_of(RECIPE.replace("flavor", "gpu"), "one.py")
    with pytest.raises(bench.Stop, match="not TOML"):
        bench.header_of(RECIPE.replace('"l4x1"', "l4x1"), "one.py")


def test_a_run_takes_machine_and_time_from_the_recipe_unless_told_otherwise(recipe):
    run = run_of(recipe)
    assert (run["flavor"], run["timeout"], run["image"]) == ("l4x1", 7200, "vllm/vllm-openai:v0.29.0")
    assert (run["model"], run["model_revision"], run["vllm"], run["weights_on_hub"]) == (
        "org/one",
        "abc",
        "0.29.0",
        True,
    )
    told = run_of(recipe, "user/in user/out --flavor h200 --timeout 45m")
    assert (told["flavor"], told["timeout"]) == ("h200", 2700)
    recipe.write_text('"""No header."""\nRECIPE = {"name": "one", "model": "m", "engine": "local"}\n')
    bare = run_of(recipe)
    assert (bare["flavor"], bare["timeout"], bare["weights_on_hub"]) == ("cpu-basic", 1800, False)
    recipe.write_text("RECIPE = dict(name=1)")
    with pytest.raises(bench.Stop, match="no literal RECIPE"):
        run_of(recipe)


def test_models_are_named_by_recipe_config_or_file(catalogue):
    assert bench.chosen_models(options_of("user/in user/out --models a,b --models free=a,./x/y.py")) == {
        "a": "a", "b": "b", "free": "a", "y": "./x/y.py"}  # fmt: skip
    for words in ("a,a", "default=a", "'a b=a'"):
        with pytest.raises(bench.Stop, match="CONFIG=NAME|twice"):
            bench.chosen_models(options_of(f"user/in user/out --models {words}"))
    entries = bench.read_catalogue(catalogue)
    assert entries["one-bucket"]["model"] == "org/one"
    assert bench.recipe_of("one", entries, catalogue)[1] == RECIPE
    with pytest.raises(bench.Stop, match="no recipe two"):
        bench.recipe_of("two", entries, catalogue)


def test_every_recipe_of_the_collection_can_be_planned():
    place = bench.catalogue_place(options_of("user/in user/out"))
    entries = bench.read_catalogue(place)
    for name in entries:
        run, text = bench.planned_run(name, name, options_of("user/in user/out"), entries, place, bench.Path("x"))
        assert run["recipe"] == name and run["model"] == entries[name]["model"] and run["timeout"] >= 1800
        assert run["flavor"] == entries[name]["flavor"] and text.startswith("# /// script")


@pytest.mark.parametrize(
    ("place", "pinned"),
    [
        ("https://raw.host.test/o/r/main/models.json", "https://raw.host.test/o/r/SHA/models.json"),
        (
            "https://raw.host.test/o/r/refs/heads/main/models.json",
            "https://raw.host.test/o/r/SHA/models.json",
        ),
        ("https://hub.test/datasets/o/r/raw/main/models.json", "https://hub.test/datasets/o/r/raw/SHA/models.json"),
        ("https://hub.test/o/r/resolve/v1/models.json", "https://hub.test/o/r/resolve/SHA/models.json"),
    ],
)
def test_the_recipes_revision_is_put_into_their_address(place, pinned):
    options = argparse.Namespace(catalog=place, recipe_revision="SHA")
    assert bench.catalogue_place(options) == pinned
    with pytest.raises(bench.Stop, match="--recipe-revision"):
        bench.catalogue_place(argparse.Namespace(catalog="/here/models.json", recipe_revision="SHA"))


# ---- what is started


def test_every_recipe_gets_the_same_pages_pinned(recipe):
    line = "user/in user/out --split test --max-samples 5 --shuffle --seed 7 --input-config c"
    line += " --arguments one='--task free'"
    state = bench.new_state(options_of(line)) | {"revision": "f00"}
    words = bench.recipe_arguments("one", run_of(recipe, line), state)
    assert words[:2] == ["user/in", "user/out"] and words[-2:] == ["--task", "free"]
    said = shlex.join(words)
    for part in ("--split test", "--seed 7", "--input-revision f00", "--input-config c", "--max-samples 5", "--shuffle",
                 "--config one --create-pr", "--revision abc"):  # fmt: skip
        assert part in said
    local = options_of("in --local --output-dir out")
    words = bench.recipe_arguments("one", run_of(recipe), bench.new_state(local))
    assert words[1] == bench.os.path.abspath("out/one") and not {"--config", "--create-pr", "--shuffle"} & set(words)
    assert words[words.index("--seed") + 1] == "42"  # always said, never left to the recipe's default


def test_on_this_machine_vllm_is_added_for_uv_only(recipe):
    run = run_of(recipe) | {"arguments": ["a", "b"]}
    assert bench.local_command(run, options_of("in --local --output-dir o"))[:4] == [
        "uv",
        "run",
        "--with",
        "vllm==0.29.0",
    ]
    assert bench.local_command(run, options_of("in --local --output-dir o --launcher python3"))[0] == "python3"


@pytest.mark.parametrize(
    "line",
    [
        "user/in",
        "user/in user/out --output-dir x",
        "user/in user/out --output-dir x --local",
        "./in user/out",
        "user/in ./out",
        "user/in user/out --no-wait --budget-usd 3",
        "user/in user/out --no-wait --local",
        "user/in user/out --attempts 0",
        "user/in user/out --max-samples 0",
        "user/in user/out --label x",
        "user/in user/out --timeout soon --models one",
    ],
)
def test_contradictions_are_refused_before_anything_starts(line, recipe):
    with pytest.raises(bench.Stop) as stopped:
        options = options_of(line)
        bench.planned_run("one", str(recipe), options, {}, "", recipe.parent)
    assert stopped.value.code == 2


def test_the_state_file_belongs_to_one_run_and_replaces_itself_whole(tmp_path):
    line = f"user/in user/out --max-samples 5 --state {tmp_path}/s/state.json"
    path, state = bench.open_state(options_of(line))
    bench.save_state(path, state)
    assert bench.open_state(options_of(line)) == (path, state) and [p.name for p in path.parent.iterdir()] == [
        "state.json"
    ]
    with pytest.raises(bench.Stop, match="max_samples was 5 and is 6.*--resume"):
        bench.open_state(options_of(line.replace("--max-samples 5", "--max-samples 6")))
    resumed = options_of(f"--resume --state {path}")
    assert bench.open_state(resumed)[1] == state and (resumed.input, resumed.max_samples) == ("user/in", 5)
    with pytest.raises(bench.Stop, match="no state file"):
        bench.open_state(options_of("user/in user/out --resume --state nowhere.json"))
    for text in ("{", "[]", '{"schema": "other"}'):
        path.write_text(text)
        with pytest.raises(bench.Stop, match="--state"):
            bench.open_state(options_of(line))


def test_the_estimate_counts_start_up_and_pages_and_never_more_than_the_timeout(recipe, capsys):
    options = options_of("user/in user/out --max-samples 3600 --pages-per-second 2 --startup-minutes 30")
    state = bench.new_state(options)
    state["runs"] = {"one": run_of(recipe), "done": run_of(recipe) | {"status": "done"}}
    assert bench.show_plan(options, state, {"l4x1": 0.80}) == pytest.approx(0.80)  # half an hour twice
    assert "At most $1.60" in capsys.readouterr().err
    state["runs"]["one"]["timeout"] = 900
    assert bench.show_plan(options, state, {"l4x1": 0.80}) == pytest.approx(0.20)
    assert bench.show_plan(options, state, {}) is None
    # the four sample sizes of the specification: 80 % power, 5 % level
    for pages, elo in ((780, 35), (195, 70), (85, 108), (47, 147)):
        assert bench.resolvable_elo(pages) == pytest.approx(elo, abs=4)


# ---- what a failure means


def ended(stage="ERROR", timeout=3600, seconds=60, attempts=1, limit=2):
    end = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    times = {"started_at": "2026-01-01T00:00:00+00:00", "finished_at": end.isoformat()}
    limits = {"timeout": timeout, "attempts": attempts, "limit": limit}
    return {"stage": stage, "cost_usd": 0.5, "attempt_cost_usd": 0.25, **limits, **times}


@pytest.mark.parametrize(
    ("message", "tail", "cause", "status"),
    [
        ("Job timed out", [], "timeout", "planned"),
        ("Scheduling failure: no capacity", [], "capacity", "planned"),
        ("402: not enough credits", [], "payment", "failed"),
        ("Job failed with exit code: 1", ["torch.OutOfMemoryError: CUDA out of memory"], "memory", "failed"),
        ("Job failed with exit code: 137", [], "memory", "failed"),
        ("Job failed with exit code: 1", ["ModuleNotFoundError: No module named 'x'"], "packages", "failed"),
        ("Job failed with exit code: 2", ["Error: 403 Client Error. Cannot access gated repo"], "access", "failed"),
        ("Job failed with exit code: 2", ["Error: --task x"], "preflight", "failed"),
        ("Job failed with exit code: 1", ["httpx.ReadTimeout: timed out"], "other", "failed"),
        (None, [], "other", "failed"),
    ],
)
def test_only_timeouts_and_missing_capacity_are_tried_again(message, tail, cause, status):
    run = ended()
    bench.finish_attempt(run, tail, message or "")
    assert (run["cause"], run["status"], run["cost_usd"]) == (cause, status, 0.75)
    last = ended(attempts=2)
    bench.finish_attempt(last, tail, message or "")
    assert last["status"] == "failed"


def test_a_job_that_ran_to_its_limit_timed_out_however_that_is_worded():
    run = ended(timeout=120, seconds=121)
    bench.finish_attempt(run, ["12 of 50 pages"], "Job failed with exit code: -9")
    assert run["cause"] == "timeout" and run["failure_tail"][0] == "12 of 50 pages"


def test_too_many_failed_pages_is_a_result_to_check_and_no_failure():
    for tail, message in (([], "Job failed with exit code: 3"), (['{"pages": 9, "exit_code": 3}', ""], "")):
        run = ended()
        bench.finish_attempt(run, tail, message)
        assert run["status"] == "ran"
    run = ended("CANCELED")
    bench.finish_attempt(run, [], "")
    assert (run["status"], run["cause"]) == ("failed", "canceled")


def test_what_is_kept_of_a_log_holds_no_token(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "s3cretvalue")
    run = ended()
    bench.finish_attempt(run, ["curl -H 'Bearer hf_abcdefghij' s3cretvalue"], "")
    assert "hf_abc" not in json.dumps(run) and "s3cret" not in json.dumps(run)


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("OCR with x [glm-ocr]", "glm-ocr"),
        ("[a] b [c]", "c"),
        ("[a] b", None),
        ("a", None),
        ("a []", None),
        ("x [y] ", "y"),
    ],
)
def test_a_pull_request_carries_the_config_in_its_last_brackets(title, config):
    assert bench.config_in_title(title) == config


def test_what_the_output_has_already_is_refused_kept_or_replaced(recipe):
    """`one` has two open pull requests, `two` is on the main branch, `three` is new."""
    requests = ((3, "one", "open"), (7, "one", "draft"), (5, "three", "closed"))
    listed = [SimpleNamespace(num=number, title=f"OCR [{name}]", status=status) for number, name, status in requests]
    card = {"configs": [{"config_name": "two"}]}
    head = SimpleNamespace(card_data=card, siblings=[SimpleNamespace(rfilename="README.md")])
    api = SimpleNamespace(get_repo_discussions=lambda *_, **__: listed, dataset_info=lambda repo: head)

    def settled_by(choice):
        options = options_of(f"user/in user/out --on-existing {choice}")
        runs = {config: run_of(recipe) for config in ("one", "two", "three")}
        bench.settle_existing(api, runs, options, bench.new_state(options))
        return runs

    with pytest.raises(bench.Stop, match="already has one, two"):
        settled_by("error")
    kept = settled_by("skip")
    assert [run["status"] for run in kept.values()] == ["existing", "existing", "planned"]
    assert [run["pull_request"] for run in kept.values()] == [7, None, None]
    again = settled_by("replace")
    assert {run["status"] for run in again.values()} == {"planned"}
    assert [run["superseded"] for run in again.values()] == [[7, 3], [], []]
    assert [run["arguments"] for run in again.values()] == [[], ["--overwrite"], []]


def table_of(config, hashes, texts, **more):
    columns = {"image_sha256": hashes, "source_row": list(range(len(hashes))), "markdown": texts, **more}
    columns["inference_info"] = [json.dumps([{"model_id": f"org/{config}", "column_name": "markdown"}])] * len(hashes)
    types = dict.fromkeys(columns, "string")
    return bench.Table(config, "sha", columns, types, None)


def test_outputs_are_checked_for_pages_failures_and_columns():
    pages = [f"{n:064x}" for n in range(10)]
    good = table_of("good", pages, ["some words of a page"] * 10)
    short = table_of("short", pages[:8], ["some words of a page"] * 8)
    broken = table_of("broken", pages[::-1], [None] * 4 + ["some words of a page"] * 6)
    tables = {table.config: (table, *bench.text_of_config(table)) for table in (good, short, broken)}
    runs = {config: {"problems": []} for config in tables}
    bench.compare_pages(tables, runs, options_of("user/in user/out"))
    assert runs["good"]["problems"] == [] and (runs["good"]["rows"], runs["good"]["errors"]) == (10, 0)
    assert runs["short"]["problems"] == ["2 of 10 pages are missing that another model has"]
    assert runs["broken"]["problems"] == ["4 of 10 pages failed"] and runs["broken"]["rows"] == 10

    assert list(bench.contract_problems(tables["good"], True)) == []
    bare = bench.Table("bare", "sha", {"markdown": ["a"]}, {"markdown": "string"}, None)
    found = list(bench.contract_problems((bare, *bench.text_of_config(bare)), True))
    assert len(found) == 3 and "inference_info" in found[0] and "source_row" in found[1]
    assert list(bench.contract_problems((bare, *bench.text_of_config(bare)), False)) == []
    empty = table_of("empty", [], [])
    assert "no rows" in next(bench.contract_problems((empty, "markdown", {}), True))
