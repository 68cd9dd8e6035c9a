"""Scenarios for the engines as the tests run them: python mechanics.py SCENARIO MODEL ENGINE; one JSON row per line."""

import json
import multiprocessing
import os
import signal
import sys
import threading
from types import SimpleNamespace

from kit.offline import offline
from kit.run import EngineDied
from kit.serve import serve
from tests.engine.conftest import CPU_ARGS

RECIPE = {"name": "tiny", "image": {"max_pixels": 300_000}, "engine_args": CPU_ARGS}
MAX_MODEL_LEN = 1024


class Units:
    """What `Feed` is to an engine; from `alone` on, one unit at a time."""

    limit = None

    def __init__(self, units, alone=None):
        self.units, self.alone, self.given = units, alone, 0

    def get(self, block=True):
        if self.given == len(self.units):
            raise StopIteration
        if self.given == self.alone:
            self.limit = 1
        self.given += 1
        return self.units[self.given - 1]


def page(number):
    """A page like no other: 17 sizes, so 17 counts of image tokens, and its own colours and text."""
    from PIL import Image, ImageDraw

    columns, rows = 3 + number % 17, 4 + number * 7 % 5
    image = Image.new("RGB", (28 * columns, 28 * rows), (number * 37 % 256, number * 91 % 256, number * 13 % 256))
    ImageDraw.Draw(image).text((5, 5), f"{number} " * 4, fill=(255 - number % 256, 20, number * 5 % 256))
    return image, columns * rows


def body(image, text="Read.", **keys):
    content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], "temperature": 0.0, "max_tokens": 16, **keys}


def seen(answer):
    """An answer as JSON."""
    if isinstance(answer, Exception):
        return {"error": f"{type(answer).__name__}: {answer}"}
    return {"text": answer.text, "finish": answer.finish_reason, "prompt": answer.prompt_tokens,
            "completion": answer.completion_tokens, "logprobs": answer.logprobs}  # fmt: skip


def ask_once(name, request):
    (answer,) = yield [request]
    return {"id": name, **seen(answer)}


def numbered(count):
    """Pages 0 to count - 1; page n is told to say exactly 4 + 5 n mod 31 tokens."""
    for number in range(count):
        image, tokens = page(number)
        length = 4 + number * 5 % 31
        yield f"page {number}", body(image, max_tokens=length, min_tokens=length, ignore_eos=True)


def special():
    """One request for each limit and each way to fail, and for every key that needs translation."""
    from PIL import Image

    image, _ = page(3)
    yield "max_tokens", body(image, max_tokens=7, ignore_eos=True)
    yield "max_model_len", body(image, max_tokens=MAX_MODEL_LEN - 24, ignore_eos=True)
    yield "prompt too long", body(image, text="x" * 2 * MAX_MODEL_LEN)
    yield "too narrow", body(Image.new("RGB", (9000, 30)))
    yield "no image", {"messages": [{"role": "user", "content": "Hello."}], "temperature": 0.0, "max_tokens": 5}
    yield "logprobs", body(image, logprobs=True, max_tokens=6, ignore_eos=True)
    yield "stop", body(image, max_tokens=60, stop=["\n", "7", "q", ">"], repetition_penalty=1.3)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    yield "schema", body(image, structured_outputs={"json": schema}, max_tokens=200, top_k=5, seed=1)
    yield "system", {
        "messages": [{"role": "system", "content": "Be exact."}, *body(image)["messages"]],
        "temperature": 0.0, "max_tokens": 12, "chat_template_kwargs": {"unused": True}, "ignore_eos": True,
    }  # fmt: skip


def in_steps(name, count):
    """Asks for `count` pages at once, then once more about what was said first."""
    answers = yield [body(page(number)[0], max_tokens=5, ignore_eos=True) for number in range(count)]
    (last,) = yield [body(page(count)[0], text=f"{len(answers)} answers", max_tokens=9, ignore_eos=True)]
    return {"id": name, "first": [seen(answer) for answer in answers], "last": seen(last)}


def talk(name, what):
    return in_steps(name, what) if isinstance(what, int) else ask_once(name, what)


def show(row):
    print(json.dumps(row), flush=True)


def main(scenario, model, engine):
    options = SimpleNamespace(model=model, revision=None, max_model_len=MAX_MODEL_LEN, max_tokens=16, window=None,
                              gpu_memory_utilization=None, endpoint=None)  # fmt: skip
    run = {"offline": offline, "serve": serve}[engine]
    stop = threading.Event()
    if scenario == "answers":  # many together, the first again one at a time, then the special ones
        pages = list(numbered(200))
        again = [(f"again {name}", request) for name, request in pages[:25]]
        together = [*pages[:100], ("steps", 3), *pages[100:], *special()]
        units = Units([*together, *again], alone=len(together))
        for row in run(units, talk, options, RECIPE, stop):
            show(row)
    elif scenario == "death":  # the engine's process is killed after ten rows, then a second engine does the rest
        left = dict(numbered(40))
        try:
            for number, row in enumerate(run(Units(list(left.items())), talk, options, RECIPE, stop)):
                show(row)
                del left[row["id"]]
                if number == 9:
                    for child in multiprocessing.active_children():
                        os.kill(child.pid, signal.SIGKILL)
        except EngineDied as death:
            show({"died": str(death)})
        for row in run(Units(list(left.items())), talk, options, RECIPE, stop):
            show(row)
    elif scenario == "long":  # pages that take for ever, for a signal in the middle
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        endless = {"max_tokens": 800, "min_tokens": 800}  # beside at most 152 tokens of image
        units = [("short", body(page(0)[0])), *((f"long {name}", request | endless) for name, request in numbered(200))]
        for row in run(Units(units), talk, options, RECIPE, stop):
            show(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
