"""Outputs of several models: what is found, which column and model it is, what state it is in, and how pages join."""

import argparse
import json
from pathlib import Path

import pytest

from kit.bench_outputs import (
    Table,
    add_bench_options,
    classify,
    contestant_names,
    info_entries,
    is_sentinel,
    join_runs,
    load_bench,
    page_keys,
    text_columns,
    text_of_config,
)
from kit.seam import Stop


def options_of(*words):
    parser = argparse.ArgumentParser()
    add_bench_options(parser.add_argument)
    return parser.parse_args(list(map(str, words)))


def table(config, **columns):
    return Table(config, "sha-" + config, columns, dict.fromkeys(columns, "string"), lambda row: None)


def info(**entry):
    return json.dumps([entry])


def write_run(folder, texts, model=None, errors=(), sha=True):
    """A folder as a recipe writes it: `texts` maps names to texts, `errors` are names that failed."""
    (folder / "_run").mkdir(parents=True)
    for number, (name, text) in enumerate(texts.items()):
        stem, _, number_of_page = name.partition("/page_")
        (folder / f"{name}.md").parent.mkdir(exist_ok=True)
        (folder / f"{name}.md").write_text(text)
        page = {"id": f"{stem}.pdf/page_{number_of_page}" if number_of_page else f"{name}.png", "name": name}
        page |= {"page": int(number_of_page or 1), "flags": [], "finish_reason": "stop"}
        page |= {"sha256": f"sha-{number}" if sha else None}
        page["inference_info"] = [{"model_id": model or f"org/{folder.name}", "column_name": "text"}]
        (folder / f"{name}.json").write_text(json.dumps(page))
    notes = [
        {"id": f"{name}.png", "name": name, "row": 0, "page": 1, "pages": 1, "error": "no page"} for name in errors
    ]
    (folder / "_run" / "errors-1.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))


def test_folders_are_joined_and_failures_are_pages_too(tmp_path):
    write_run(tmp_path / "a", {"p1": "one", "p2": "", "p3": "three"})
    write_run(tmp_path / "b", {"p3": "drei", "p1": "eins"}, errors=["p2"])
    bench = load_bench(options_of(tmp_path / "a", tmp_path / "b"))
    assert [one.name for one in bench.contestants] == ["org/a", "org/b"]
    assert sorted(bench.keys) == ["p1.png", "p2.png", "p3.png"]
    a, b = bench.contestants
    assert a.states() == {"ok": 2, "blank": 1} and a.coverage() == 1
    assert b.outputs["p2.png"].state == "error" and b.outputs["p2.png"].error == "no page"
    assert b.coverage() == pytest.approx(2 / 3)
    assert b.outputs["p3.png"].text == "drei", "by name, not by position"


def test_one_folder_of_folders_is_the_same(tmp_path):
    for name in "ab":
        write_run(tmp_path / "all" / name, {"p1": name})
    assert len(load_bench(options_of(tmp_path / "all")).contestants) == 2


def test_images_are_found_beside_the_outputs(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, {"p1": "x", "x/page_002": "y"}, sha=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "p1.png").write_bytes(b"picture")
    (tmp_path / "in" / "x.pdf").write_bytes(b"%PDF-")
    bench = load_bench(options_of(tmp_path / "a", tmp_path / "b", "--images", tmp_path / "in"))
    assert bench.image("p1.png") == (str(tmp_path / "in" / "p1.png"), 0)
    assert bench.image("x.pdf/page_002") == (str(tmp_path / "in" / "x.pdf"), 1)


def test_samples_are_drawn_by_seed_and_stay_in_all_runs(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, {f"p{n}": "x" for n in range(20)})
    words = (tmp_path / "a", tmp_path / "b", "--max-samples", 5)
    one, two, other = (load_bench(options_of(*words, "--seed", seed)) for seed in (1, 1, 2))
    assert one.keys == two.keys != other.keys and len(one.keys) == 5
    assert all(list(c.outputs) == one.keys for c in one.contestants)


def test_a_single_run_is_refused_unless_one_is_enough(tmp_path):
    write_run(tmp_path / "a", {"p1": "x"})
    with pytest.raises(Stop, match="Only one run"):
        load_bench(options_of(tmp_path / "a"))
    assert len(load_bench(options_of(tmp_path / "a"), least=1).contestants) == 1


# ---- Column and model


def test_column_and_model_come_from_the_same_last_entry():
    entries = json.dumps([
        {"model_id": "org/old", "column_name": "text"}, {"model_id": "org/new", "column_name": "markdown"},
    ])  # fmt: skip
    both = table("c", text=["old"], markdown=["new"], inference_info=[entries])
    column, entry = text_of_config(both)
    assert (column, entry["model_id"]) == ("markdown", "org/new")
    assert text_of_config(both, "text")[1]["model_id"] == "org/old"


def test_what_other_scripts_wrote_as_info_is_understood():
    assert info_entries(table("c", inference_info=[None, "no json", '{"model_id": "m"}'])) == [{"model_id": "m"}]
    column, entry = text_of_config(
        table("c", page=["x"], inference_info=['[{"model_id": "m", "output_column": "page"}]'])
    )
    assert (column, entry["model_id"]) == ("page", "m")


def test_without_info_names_decide_and_two_candidates_stop():
    assert text_of_config(table("c", title=["x"], markdown=["y"], ocr_error=[None]))[0] == "markdown"
    assert text_of_config(table("c", my_ocr=["x"], ocr_flags=["[]"], ocr_page=["1"]))[0] == "my_ocr"
    assert text_of_config(table("c", text=["x"], full_text=["y"]))[0] == "text"
    with pytest.raises(Stop, match="--text-column c="):
        text_of_config(table("c", markdown_a=["x"], markdown_b=["y"]))
    with pytest.raises(Stop, match="no column that looks like text"):
        text_of_config(table("c", title=["x"]))


def test_flat_tables_give_a_run_for_every_entry():
    entries = json.dumps([{"model_id": "m1", "column_name": "a"}, {"model_id": "m2", "column_name": "b"}])
    flat = table("default", a=["x"], b=["y"], c=["z"], inference_info=[entries])
    assert {name: entry["model_id"] for name, entry in text_columns(flat).items()} == {"a": "m1", "b": "m2"}
    assert list(text_columns(flat, ["a", "c"])) == ["a", "c"]
    bench = join_runs([(flat, column, entry) for column, entry in text_columns(flat).items()], options_of("x"))
    assert bench.key_columns == ("row number",) and [c.name for c in bench.contestants] == ["m1", "m2"]


def test_one_model_with_two_settings_stays_two_runs():
    runs = [(table(name), "markdown", {"model_id": "org/model"}) for name in ("fast", "slow")]
    assert contestant_names(runs) == ["model (fast)", "model (slow)"]


# ---- States


@pytest.mark.parametrize("text, sentinel", [
    ("[OCR ERROR]", True), ("[OCR FAILED]", True), (" [IMAGE FAILED] ", True), ("[ERROR]", True),
    ("[THE COMEDY OF ERRORS]", False), ("[TRIAL AND ERROR CORRECTED]", False), ("[error]", False), ("ERROR", False),
    ("[A LONG HEADING WITH MANY WORDS AND ERROR]", False), ("[OCR ERROR] and text", False), ("", False),
])  # fmt: skip
def test_sentinels_of_other_scripts_and_no_headings(text, sentinel):
    assert is_sentinel(text) == sentinel


@pytest.mark.parametrize("arguments, state", [
    (("words",), "ok"), ((None,), "error"), (("words", "it broke"), "error"), (("[OCR ERROR]",), "error"),
    (("",), "blank"), ((" \n<!-- page 3 -->\n<div></div> ",), "blank"), (("words", "", ["looped"]), "suspect"),
    (("words", None, (), "length"), "suspect"), (("ab" * 5000,), "suspect"),
    (("words", None, (), "stop", "ok"), "ok"), (("words", None, (), "stop", "partial_failed"), "suspect"),
    (("words", None, (), "stop", "failed"), "error"), (("words", None, (), "stop", "error: no"), "error"),
    (("words", None, ["turned"]), "ok"),
])  # fmt: skip
def test_four_states(arguments, state):
    output = classify(*arguments)
    assert output.state == state
    assert (output.text is None) == (state == "error") and bool(output.error) == (state == "error")


# ---- Joining


def joined(*tables, **settings):
    return page_keys(list(tables), **settings)


def test_a_shuffled_config_is_joined_by_the_image():
    a = table("a", image_sha256=["x", "y", "z"], markdown=["1", "2", "3"])
    b = table("b", image_sha256=["z", "x", "y"], markdown=["3", "1", "2"])
    bench = join_runs([(t, "markdown", {}) for t in (a, b)], options_of("x"))
    assert all(
        one.outputs[key].text == {"x": "1", "y": "2", "z": "3"}[key] for one in bench.contestants for key in "xyz"
    )


def test_missing_rows_count_as_errors_and_never_shift_others():
    a = table("a", image_sha256=["x", "y"], markdown=["1", "2"])
    b = table("b", image_sha256=["y"], markdown=["2"])
    bench = join_runs([(t, "markdown", {}) for t in (a, b)], options_of("x"))
    assert bench.contestants[1].missing == 1
    assert bench.contestants[1].outputs["x"].error == "no row" and bench.contestants[1].outputs["y"].text == "2"


def test_an_image_that_is_there_twice_needs_more_than_the_image():
    a = table("a", image_sha256=["x", "x"], source_row=[0, 7])
    assert joined(a, a)[0] == ("image_sha256", "source_row")
    pages = table("a", image_sha256=["x", "x"], page=[1, 2])
    assert joined(pages, pages)[0] == ("image_sha256", "page")


def test_keys_that_prove_nothing_are_not_used():
    constant = table("a", image_sha256=[None, None], id=["same", "same"])
    with pytest.raises(Stop, match="image_sha256: empty in some rows.*id: the same in several rows"):
        joined(constant, table("b", image_sha256=["x", "y"], id=["1", "2"]))
    with pytest.raises(Stop, match="no page is in all of them"):
        joined(table("a", id=["1"]), table("b", id=["2"]))


def test_positions_only_on_request_and_with_equal_lengths():
    a, b = table("a", markdown=["1", "2"]), table("b", markdown=["1", "2"])
    with pytest.raises(Stop, match="--assume-aligned"):
        joined(a, b)
    assert joined(a, b, assume_aligned=True)[1][id(a)] == ["row-0", "row-1"]
    with pytest.raises(Stop, match="1, 2 rows"):
        joined(a, table("b", markdown=["1"]), assume_aligned=True)


def test_a_row_key_of_the_user_is_used_or_refused():
    a, b = table("a", isbn=["1", "2"], id=["x", "y"]), table("b", isbn=["2", "1"], id=["x", "y"])
    assert joined(a, b, row_key="isbn")[0] == ("isbn",)
    with pytest.raises(Stop, match="nothere"):
        joined(a, b, row_key="nothere")


def test_a_sentinel_only_model_has_no_coverage():
    a = table("a", id=["1", "2"], markdown=["[OCR ERROR]", "[OCR FAILED]"])
    b = table("b", id=["1", "2"], markdown=["x", "y"])
    first, second = join_runs([(t, "markdown", {}) for t in (a, b)], options_of("x")).contestants
    assert (first.coverage(), second.coverage()) == (0, 1)


def test_status_columns_of_one_run_say_nothing_about_another_in_the_same_table():
    entries = json.dumps([{"model_id": "m1", "column_name": "a"}, {"model_id": "m2", "column_name": "b"}])
    flat = table("default", a=["x"], b=[None], ocr_error=["it broke"], inference_info=[entries])
    first, second = join_runs([(flat, c, e) for c, e in text_columns(flat).items()], options_of("x")).contestants
    assert first.outputs["row-0"].state == "ok" and second.outputs["row-0"].error == "it broke"


# ---- From the Hub

ON_THE_HUB = """
import argparse, io, json, sys
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow
from kit.bench_outputs import add_bench_options, load_bench
from kit.seam import Stop

def png(number):
    sink = io.BytesIO()
    Pillow.new("RGB", (8, 8), (number, 0, 0)).save(sink, "PNG")
    return {"bytes": sink.getvalue(), "path": None}

def push(config, rows, title=None, **settings):
    info = json.dumps([{"model_id": f"org/{config}", "column_name": "markdown"}])
    table = {"image": [png(n) for n in rows], "markdown": [f"{config} {n}" for n in rows],
             "ocr_error": [None for n in rows], "image_sha256": [f"sha-{n}" for n in rows],
             "inference_info": [info for n in rows]}
    features = Features({"image": Image(), **{name: Value("string") for name in list(table)[1:]}})
    data = Dataset.from_dict(table, features=features)
    data.push_to_hub("user/bench", config, commit_message=title or f"OCR [{config}]", **settings)

push("main-model", [0, 1, 2])
push("pr-model", [2, 0, 1], create_pr=True)
push("broken", [0], title="Something else", create_pr=True)

def load(*words):
    parser = argparse.ArgumentParser()
    add_bench_options(parser.add_argument)
    try:
        bench = load_bench(parser.parse_args(["user/bench", *words]))
    except Stop as problem:
        return {"stop": str(problem)}
    key = bench.keys[0]
    return {"names": [one.name for one in bench.contestants], "key": bench.key_columns,
            "joined": all(one.outputs[k].text.split()[1] == k[-1] for one in bench.contestants for k in bench.keys),
            "revisions": [one.revision for one in bench.contestants],
            "image": bench.image(key)[0] == png(int(key[-1]))["bytes"]}

print(json.dumps([load(), load("--from-prs"), load("--configs", "main-model", "nothere")]))
"""


def test_configs_and_pull_requests_of_a_dataset_are_joined(hub):
    root = str(Path(__file__).resolve().parents[2])
    automatic, only, unknown = json.loads(
        hub.python(ON_THE_HUB, env={"PYTHONPATH": root}, timeout=600).stdout.splitlines()[-1]
    )
    assert automatic["names"] == ["org/main-model", "org/pr-model"] and automatic["key"] == ["image_sha256"]
    assert automatic["joined"] and automatic["image"]
    assert len(set(automatic["revisions"])) == 2 and all(len(sha) == 40 for sha in automatic["revisions"])
    assert "Only one run, pr-model" in only["stop"]
    assert "no config nothere" in unknown["stop"]
