"""Worker processes: order, isolation, death, silence, memory bound, stopping."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from kit.local import local
from kit.seam import Item, PageError, Parsed, Stop
from kit.workers import Ahead, in_workers


def setup():
    return os.getpid()


def setup_fails():
    raise FileNotFoundError("weights.onnx is not there")


def setup_stops():
    raise Stop("language xyz is not installed")


def setup_dies():
    os._exit(7)


def work(state, items):
    out = []
    for item in items:
        if item.text == "raise":
            raise ValueError("bad page")
        if item.text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if item.text == "hang":
            time.sleep(60)
        if item.text == "die once" and not os.path.exists(item.name):
            open(item.name, "w").close()
            os._exit(3)
        if item.text.startswith("make "):
            open(item.text[5:], "w").close()
        if item.text.startswith("until "):
            deadline = time.monotonic() + 60
            while not os.path.exists(item.text[6:]) and time.monotonic() < deadline:
                time.sleep(0.01)
        if item.text == "big":
            out.append((item.id, "x" * 30_000_000))
        elif item.text.startswith(("make ", "until ")):
            out.append((item.id, state))
        else:
            time.sleep(float(item.text or 0))
            out.append((item.id, state))
    return out


def items(texts):
    for n, text in enumerate(texts):
        yield Item(f"i{n}", n, f"i{n}", text=text)


def run(texts, count=2, stop=None, setup=setup, **more):
    return list(in_workers(items(texts), setup, work, count, stop or threading.Event(), **more))


def test_every_item_once_in_completion_order_and_from_several_processes(tmp_path):
    # The first item takes until the seventh is begun. A worker holds two at most, so that by then others are through.
    pairs = run([f"until {tmp_path / 'flag'}", *[""] * 5, f"make {tmp_path / 'flag'}", *["0.02"] * 24])
    assert sorted(item.id for item, _ in pairs) == sorted(f"i{n}" for n in range(31))
    assert all(result[0] == item.id for item, result in pairs)
    assert pairs[0][0].id != "i0" and len({result[1] for _, result in pairs}) == 2


def test_an_exception_costs_one_item():
    pairs = {item.id: result for item, result in run(["", "raise", ""])}
    assert str(pairs["i1"]) == "ValueError: bad page" and pairs["i0"][0] == "i0" and pairs["i2"][0] == "i2"


def test_a_death_costs_one_item_and_batches_are_taken_apart():
    for batch in (1, 4):
        pairs = {item.id: result for item, result in run(["", "", "die", "", "", "", ""], batch=batch)}
        assert len(pairs) == 7
        assert isinstance(pairs["i2"], PageError) and "signal 9 twice" in str(pairs["i2"])
        assert all(pairs[f"i{n}"][0] == f"i{n}" for n in (0, 1, 3, 4, 5, 6))


def test_an_item_that_died_by_accident_is_read_the_second_time(tmp_path):
    item = Item("a", 0, str(tmp_path / "seen"), text="die once")
    ((_, result),) = in_workers(iter([item]), setup, lambda_free_work, 1, threading.Event())
    assert result == "read"


def lambda_free_work(state, items):
    work(state, [item for item in items if not os.path.exists(item.name)])
    return ["read"] * len(items)


def test_a_silent_worker_is_killed():
    pairs = {item.id: result for item, result in run(["hang", "", ""], timeout=1)}
    assert isinstance(pairs["i0"], PageError) and pairs["i1"][0] == "i1"


def test_a_setup_that_fails_stops_the_run_with_its_reason():
    with pytest.raises(Stop, match="weights.onnx is not there"):
        run([""], setup=setup_fails)
    with pytest.raises(Stop, match="language xyz") as stop:
        run([""], setup=setup_stops)
    assert stop.value.code == 2
    with pytest.raises(Stop, match="exit code 7"):
        run([""], setup=setup_dies)


def test_big_results_and_big_items_do_not_deadlock():
    big = [Item(f"i{n}", n, "n", parts=[(b"y" * 30_000_000, 0)], text="big") for n in range(6)]
    pairs = list(in_workers(iter(big), setup, work, 2, threading.Event()))
    assert len(pairs) == 6 and all(len(result[1]) == 30_000_000 for _, result in pairs)


def test_the_source_is_read_only_a_little_ahead():
    taken = []

    def slow_source():
        for item in items(["0.01"] * 200):
            taken.append(item.id)
            yield item

    most = 0
    for done, _ in enumerate(in_workers(slow_source(), setup, work, 2, threading.Event()), 1):
        most = max(most, len(taken) - done)
    assert most <= 12


def test_stop_ends_the_run_and_leaves_no_process():
    stop, read = threading.Event(), 0
    for _ in in_workers(items(["0.2"] * 500), setup, work, 2, stop):
        read += 1
        if read == 3:
            stop.set()
    assert 3 <= read <= 7, "what was in flight may still come, nothing else"
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("SpawnProcess")]


def test_a_source_that_fails_passes_its_exception_on():
    def source():
        yield from items(["", ""])
        raise Stop("the bucket does not answer", code=1)

    with pytest.raises(Stop, match="bucket"):
        list(in_workers(source(), setup, work, 1, threading.Event()))


def test_ahead_gives_values_then_none_then_the_end():
    gate = threading.Event()

    def source():
        yield 1
        gate.wait(5)
        yield 2

    ahead = Ahead(source(), 4)
    assert ahead.get() == 1 and ahead.get(block=False) is None
    gate.set()
    assert ahead.get() == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.get()


class Options:
    dpi = 200


def load(options):
    return "model"


def predict(pages, model, options):
    if any(page.image.size == (13, 13) for page in pages):
        raise MemoryError("page of 13 by 13")
    return [Parsed(f"{page.image.size} {model}") for page in pages]


@pytest.mark.parametrize("recipe", [{}, {"batch": 3}, {"device": "cuda", "batch": 3}])
def test_local_engine_reads_pages_and_keeps_bad_ones_apart(tmp_path, recipe):
    from PIL import Image

    made = []
    for n, size in enumerate([(40, 50), (13, 13), (60, 20), (70, 30)]):
        path = str(tmp_path / f"{n}.png")
        Image.new("RGB", size, "white").save(path)
        made.append(Item(f"{n}", n, f"{n}", [(path, 0)]))
    made.append(Item("4", 4, "4", error="the cell is empty (None)"))
    rows = {row["id"]: row for row in local(iter(made), Options(), recipe, threading.Event(), load, predict)}
    assert rows["0"]["text"] == "(40, 50) model" and rows["3"]["text"] == "(70, 30) model" and len(rows) == 5
    assert "page of 13 by 13" in rows["1"]["error"] and rows["1"]["text"] is None
    assert rows["4"]["error"] == "the cell is empty (None)" and rows["4"]["attempts"] == 0
    assert rows["0"]["attempts"] == 1 and len(rows["0"]["sha256"]) == 64


def test_a_worker_that_waits_to_be_read_is_not_silent():
    """What the consumer does between two results, a slow start of the engine, is no fault of the workers."""
    results, started = in_workers(items(["0.3"] * 12), setup, work, 2, threading.Event(), timeout=2), set()
    for number, (_, result) in enumerate(results):
        assert not isinstance(result, BaseException)
        started.add(result[1])
        if number in (1, 4):
            time.sleep(5)
    assert number == 11 and len(started) <= 2
