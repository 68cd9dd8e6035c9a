"""Engine `local`: `load` and `predict` in worker processes, for models that are not served."""

import functools
import os
import time

from kit.answers import flags_of, row_of, sentence, subject
from kit.pages import image_bounds
from kit.seam import Answer, Page, PageError, Unit, say
from kit.workers import decoded, in_workers, opened_items, worker_count


def local(items, options, recipe, stop, load, predict):
    """Yields result rows in completion order.

    On the CPU every worker decodes and predicts by itself, one worker a core (fewer where `worker_memory` bytes each
    would not fit in memory), and the libraries inside get one thread each. With recipe["device"] "cuda", decoding
    workers feed one predicting worker, in batches of `recipe["batch"]` pages.
    """
    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS")})
    reading = functools.partial(local_setup, load, options)
    batch = recipe.get("batch", 1)
    if recipe.get("device") == "cuda":
        opened = (Opened(item, outcome) for item, outcome in decoded(items, options, recipe, stop))
        work = functools.partial(predict_opened, predict)
        pairs = in_workers(opened, reading, work, 1, stop, batch, recipe.get("timeout", 600))
        pairs = ((pair.item, result) for pair, result in pairs)
    else:
        work = functools.partial(predict_items, predict, image_bounds(options, recipe))
        say(f"Loading the model, in at most {worker_count(recipe)} processes.")
        pairs = in_workers(items, reading, work, worker_count(recipe), stop, batch, recipe.get("timeout", 600))
    for item, result in pairs:
        if isinstance(result, BaseException):
            yield row_of(item, None, None, None, attempts=int(isinstance(result, ReadError)), error=sentence(result))
        else:
            yield local_row(item, *result)


class ReadError(PageError):
    """The model failed on a page that could be decoded: it was asked, unlike about a page that could not."""


def local_setup(load, options):
    return load(options), options


class Opened:
    """A decoded item on its way to the predicting worker; `outcome` as in `Ahead.get`."""

    def __init__(self, item, outcome):
        self.item, self.outcome, self.id = item, outcome, item.id


def predict_items(predict, bounds, state, items):
    """`work` of the CPU workers: decode, then predict."""
    return predict_outcomes(predict, state, opened_items((bounds, state[1].dpi), items))


def predict_opened(predict, state, opened):
    """`work` of the GPU worker: the pages come decoded."""
    return predict_outcomes(predict, state, [pair.outcome for pair in opened])


def predict_outcomes(predict, state, outcomes):
    """Predicts the pages of all decodable items together; (Parsed, partial, sha256, seconds) or an error each.

    A batch that fails as a whole is predicted again item by item, so that one page cannot cost its neighbours.
    """
    model, options = state
    good = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    started = time.monotonic()
    try:
        parsed = predict([subject(unit) for unit, _ in good], model, options) if good else []
    except Exception as problem:
        if len(good) > 1:
            return [predict_outcomes(predict, state, [outcome])[0] for outcome in outcomes]
        failed = ReadError(sentence(problem))
        return [outcome if isinstance(outcome, BaseException) else failed for outcome in outcomes]
    seconds = (time.monotonic() - started) / max(len(good), 1)
    results = iter(parsed)
    return [
        outcome
        if isinstance(outcome, BaseException)
        else (next(results), any(page.partial for page in outcome[0].pages), outcome[1], seconds)
        for outcome in outcomes
    ]


def local_row(item, parsed, partial, sha256, seconds):
    """The row of a predicted page, with the same test for loops and degenerate text as served models get."""
    parsed.flags += [flag for flag in flags_of(parsed.markdown or "", "stop") if flag not in parsed.flags]
    unit = Unit(item.id, [Page(None, 0, 0, partial=partial)])
    return row_of(item, unit, sha256, parsed, [Answer(parsed.markdown or "")], 1, seconds)
