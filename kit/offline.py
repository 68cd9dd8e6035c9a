"""Engine `offline`: vLLM in this process, kept full: pages enter while others are answered, and it is never drained."""

import multiprocessing
import threading
from collections import deque
from multiprocessing.connection import wait

from kit.processes import end_children_with_this_process
from kit.run import EngineDied
from kit.seam import Answer, PageError, Stop
from kit.vllm import (
    PROMPT_KEYS,
    chat_arguments,
    engine_args,
    messages_with,
    sampling_params,
    set_environment,
    window_size,
)

# Requests admitted between two steps: preparing a page takes longer than a step, and while this process prepares
# pages it takes no answers.
BURST = 2


def offline(units, talk, options, recipe, stop):
    """Yields result rows in completion order; `units` is a `Feed`, `talk(item, outcome)` starts a `converse`.

    The requests of a unit already begun go before new units. Once `stop` is set, what is in flight is abandoned.
    Raises Stop if vLLM does not start, EngineDied if it ends while units are in flight.
    """
    llm = load_engine(options, recipe)
    from vllm.v1.engine.exceptions import EngineDeadError  # not before load_engine: vllm reads the environment

    chat, window = chat_arguments(recipe), window_size(options, recipe)
    waiting, flying, more = deque(), {}, True  # (exchange, place, body); request number -> (exchange, place)
    try:
        while not stop.is_set() and (more or waiting or flying):
            answered = []
            for _ in range(BURST):
                if len(flying) >= min(window, units.limit or window):
                    break
                if more and not waiting:
                    try:
                        unit = units.get(block=not flying)
                    except StopIteration:
                        more = False
                        break
                    if unit is None:
                        break
                    exchange = Exchange(talk(*unit), waiting)
                    if exchange.row:
                        yield exchange.row
                if waiting:
                    exchange, place, body = waiting.popleft()
                    try:
                        flying[enqueue(llm, body, chat)] = exchange, place
                    except EngineDeadError:
                        raise
                    except Exception as problem:  # this request's own: the prompt is too long, the image too narrow
                        answered.append((exchange, place, problem))
            if flying:  # a step with nothing in flight would wait for ever
                for output in llm.llm_engine.step():
                    if output.finished:
                        answered.append((*flying.pop(request_number(output.request_id)), answer_of(output)))
            for exchange, place, answer in answered:
                exchange.take(place, answer)
                if exchange.row:
                    yield exchange.row
    except EngineDeadError as problem:
        if not stop.is_set():  # a Ctrl-C ends the engine's process too
            raise EngineDied("vLLM's engine process ended; what it logged stands above") from problem
    finally:
        llm.llm_engine.engine_core.shutdown()


class Exchange:
    """A unit's conversation: hands over its answers once all are there, and puts what it asks next on `waiting`.

    `row` is the result row once the conversation is over.
    """

    def __init__(self, conversation, waiting):
        self.conversation, self.waiting, self.answers, self.row = conversation, waiting, None, None
        self.turn()

    def take(self, place, answer):
        self.answers[place] = answer
        self.missing -= 1
        if not self.missing:
            self.turn()

    def turn(self):
        try:
            bodies = self.conversation.send(self.answers)
            while not bodies:
                bodies = self.conversation.send([])
        except StopIteration as end:
            self.row = end.value
        else:
            self.answers, self.missing = [None] * len(bodies), len(bodies)
            self.waiting.extend((self, place, body) for place, body in enumerate(bodies))


def load_engine(options, recipe):
    """A `vllm.LLM` whose processes end with this one, even if it is killed. Raises Stop if it does not start."""
    set_environment(recipe)
    end_children_with_this_process()
    try:
        from vllm import LLM

        llm = LLM(**engine_args(options, recipe))
    except Exception as problem:
        raise Stop(f"vLLM did not start: {problem} What the engine logged stands above.") from problem
    threading.Thread(target=tell_of_death, args=(llm.llm_engine.engine_core,), daemon=True).start()
    return llm


def tell_of_death(core):
    """Makes `step` raise when the engine's process is killed: vLLM 0.32 waits for ever unless it ends by itself."""
    from vllm.v1.engine.exceptions import EngineDeadError

    wait([child.sentinel for child in multiprocessing.active_children() if "EngineCore" in child.name])
    core.outputs_queue.put(EngineDeadError())


def enqueue(llm, body, chat):
    """Starts one request; returns its number. Raises what vLLM raises for this request."""
    arguments = {key: body[key] for key in PROMPT_KEYS if key in body}
    messages = messages_with(body["messages"], lambda image: {"type": "image_pil", "image_pil": image})
    (request,) = llm.enqueue_chat([messages], sampling_params(body), use_tqdm=False, **(chat | arguments))
    return request_number(request)


def request_number(request):
    """vLLM 0.32 names a request "7-a1b2c3d4" when it enters and "7" when it comes out."""
    return request.partition("-")[0]


def answer_of(output):
    """The Answer in a finished `vllm.RequestOutput`, or the PageError for one that the engine gave up."""
    said = output.outputs[0]
    if said.finish_reason not in ("stop", "length", "repetition"):
        return PageError(f"vLLM ended the request with {said.finish_reason!r}")
    logprobs = said.logprobs and [at[token].logprob for at, token in zip(said.logprobs, said.token_ids, strict=False)]
    prompt_tokens = len(output.prompt_token_ids or ())
    return Answer(said.text, said.finish_reason, prompt_tokens, len(said.token_ids), logprobs=logprobs)
