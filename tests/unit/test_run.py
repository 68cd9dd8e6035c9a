"""The run loop: engines that die, suspects, the first answers, stopping, the JSON line."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
from PIL import Image

from kit.answers import failed_row, one_step
from kit.run import EngineDied, Tally, engine_rows, read_all, report
from kit.seam import Answer, Item, Parsed, Stop

OPTIONS = SimpleNamespace(
    dpi=200, retries=0, max_tokens=10, max_tokens_given=False, max_model_len=100, price_per_hour=None,
    model="m", task="ocr", engine="fake", input="in", output="out",
)  # fmt: skip
RECIPE = {"name": "fake", "sampling": {}, "image": {}}


class Results:
    def __init__(self, deaths=()):
        self.deaths, self.recorded, self.rows, self.closed = dict(deaths), [], [], False

    def record_death(self, ids):
        self.recorded.append(sorted(ids))

    def put(self, row):
        self.rows.append(row)

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for n in range(60):
        Image.new("RGB", (20, 20), "white").save(folder / f"{n:02d}.png")
    (folder / "05.png").write_text("not an image")
    return [Item(f"{n:02d}", n, f"{n:02d}", [(str(folder / f"{n:02d}.png"), 0)]) for n in range(60)]


def fake_engine(killers, window=8, starts=None, most=None):
    """An engine that holds `window` units and dies when a killer is among them; records how many it held."""

    def engine(feed, talk, options, recipe, stop):
        (starts if starts is not None else []).append(1)
        flying, more, tries = {}, True, 0
        while more or flying:
            while more and len(flying) < min(window, feed.limit or window):
                try:
                    pair = feed.get(block=not flying)
                except StopIteration:
                    more = False
                    break
                if pair is None:
                    tries += 1
                    time.sleep(0.1)
                    if tries > 8:
                        break
                    continue
                tries = 0
                talking = talk(*pair)
                try:
                    next(talking)
                    flying[pair[0].id] = talking
                except StopIteration as over:
                    yield over.value
            if most is not None:
                most.append(sorted(flying))
            tries = 0
            if killers & set(flying):
                raise EngineDied("killed by signal 9")
            if not flying:
                continue
            id, talking = flying.popitem()
            try:
                talking.send([Answer(f"text of {id}")])
            except StopIteration as over:
                yield over.value

    return engine


def read(pages, engine, results=None):
    results = results or Results()
    steps = one_step(lambda page, options: {"messages": []}, lambda answer, page, options: Parsed(answer.text))
    rows = engine_rows(engine, iter(pages), steps, OPTIONS, RECIPE, threading.Event(), results)
    return {row["id"]: row for row in rows}, results


def test_a_healthy_engine_reads_everything_once(pages):
    rows, results = read(pages, fake_engine(set()))
    assert len(rows) == 60 and results.recorded == []
    assert rows["07"]["text"] == "text of 07" and "text file" in rows["05"]["error"] or rows["05"]["error"]


def test_a_killer_page_ends_as_one_error_row_and_the_others_are_read(pages):
    starts, held = [], []
    rows, results = read(pages, fake_engine({"20"}, starts=starts, most=held))
    assert len(rows) == 60 and "died" in rows["20"]["error"]
    assert all(rows[f"{n:02d}"]["text"] == f"text of {n:02d}" for n in range(60) if n not in (5, 20))
    assert len(starts) == 4 and len(results.recorded) == 3 and results.recorded[-1] == ["20"]


def test_a_page_that_killed_runs_before_is_last_and_alone(pages):
    held = []
    rows, _ = read(pages, fake_engine({"20"}, most=held), Results({"20": 2}))
    assert "died" in rows["20"]["error"] and len(rows) == 60
    assert held[-1] == [] and ["20"] in held and not any("20" in ids and len(ids) > 1 for ids in held)
    rows, results = read(pages, fake_engine({"20"}), Results({"20": 3}))
    assert "died" in rows["20"]["error"] and results.recorded == []


def test_an_engine_that_keeps_dying_stops_the_run_resumably(pages):
    def dies(feed, talk, options, recipe, stop):
        feed.get()
        raise EngineDied("out of memory")
        yield

    with pytest.raises(Stop, match="died 4 times .*out of memory.*the same command resumes") as stop:
        read(pages, dies)
    assert stop.value.code == 1


def rows_of(texts):
    for n, text in enumerate(texts):
        row = failed_row(Item(f"{n}", n, f"{n}"), "the server says no")
        yield row | {"attempts": 1} | ({"text": text, "error": None} if text else {})


def test_the_first_answers_all_useless_stop_the_run():
    results = Results()
    with pytest.raises(Stop, match="something is wrong with the setup") as stop:
        read_all(rows_of([None] * 100), results, Tally(100, 0), threading.Event())
    assert stop.value.code == 1 and len(results.rows) == 32 and results.closed


def test_pages_that_cannot_be_decoded_do_not_count_as_answers():
    rows = (row | {"attempts": 0} for row in rows_of([None] * 100))
    tally = Tally(100, 0)
    read_all(rows, Results(), tally, threading.Event())
    assert tally.errors == tally.pages == 100


def test_one_good_answer_among_the_first_lets_the_run_go_on():
    tally = Tally(100, 0)
    read_all(rows_of([None] * 20 + ["fine"] + [None] * 60), Results(), tally, threading.Event())
    assert tally.pages == 81 and tally.errors == 80


def test_the_last_line_on_stdout_is_the_summary(capsys):
    tally = Tally(10, 4)
    read_all(rows_of(["a", None, "b"]), Results(), tally, threading.Event())
    assert report(tally, OPTIONS, RECIPE, 3, published="there") == 3
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["pages"], summary["skipped"], summary["errors"], summary["exit_code"]) == (3, 4, 1, 3)
    assert summary["published"] == "there" and "cost_per_1000_pages" not in summary and "pages_per_second" in err


def test_cost_needs_a_price(capsys):
    tally = Tally(2, 0)
    read_all(rows_of(["a", "b"]), Results(), tally, threading.Event())
    tally.started -= 3600
    report(tally, SimpleNamespace(**{**vars(OPTIONS), "price_per_hour": 2.5}), RECIPE, 0)
    assert json.loads(capsys.readouterr().out)["cost_per_1000_pages"] == pytest.approx(1250, rel=0.01)
