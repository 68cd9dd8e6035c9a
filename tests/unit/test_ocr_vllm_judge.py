"""The offline jury against an object that behaves like vLLM's engine; the real one is in tests/engine/test_judge.py."""

import json
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest
from PIL import Image, ImageDraw

from kit.votes import VoteStore
from tests.unit.recipe_file import load_recipe
from tests.unit.test_ocr_jury import SHOWN, longer_wins

judge = load_recipe("ocr-vllm-judge")


class EngineDeadError(Exception):
    pass


class FakeEngine:
    """Takes requests like `vllm.LLM` and answers a few at every step, the last first; one prompt may be refused."""

    def __init__(self, verdict, longest=10**6, dies_after=None):
        self.verdict, self.longest, self.dies_after = verdict, longest, dies_after
        self.waiting, self.asked, self.stopped = [], [], False
        self.llm_engine = self
        self.engine_core = SimpleNamespace(shutdown=lambda: setattr(self, "stopped", True))

    def enqueue_chat(self, messages, sampling, **arguments):
        ((image, text),) = [message["content"] for message in messages[0]]
        if len(text["text"]) > self.longest:
            raise ValueError("The decoder prompt (length 9000) is longer than the maximum model length of 4096.")
        self.asked.append((image["image_pil"].size, text["text"], sampling))
        self.waiting.append((f"{len(self.asked)}", text["text"]))
        return [f"{len(self.asked)}-abcdef"]

    def step(self):
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            raise EngineDeadError
        done, self.waiting = self.waiting[-3:][::-1], self.waiting[:-3]
        for number, text in done:
            said, finish = self.verdict(text)
            answer = SimpleNamespace(text=said, finish_reason=finish, token_ids=[1, 2], logprobs=None)
            yield SimpleNamespace(request_id=number, finished=True, prompt_token_ids=[0] * 9, outputs=[answer])


class Anything(SimpleNamespace):
    FINAL_ONLY = "final"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Three runs over 6 pages with images, and the modules of vLLM that the judge names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCR_ALLOW_CPU", "1")
    monkeypatch.delenv("JOB_ID", raising=False)
    names = ["vllm", "vllm.sampling_params", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.exceptions"]
    for name in names:
        module = ModuleType(name)
        module.SamplingParams = module.StructuredOutputsParams = module.RequestOutputKind = Anything
        module.EngineDeadError = EngineDeadError
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(judge, "preflight_vllm", lambda options, recipe: None)
    (tmp_path / "in").mkdir()
    for n in range(6):
        image = Image.new("RGB", (300, 400), "white")
        ImageDraw.Draw(image).text((20, 20), f"page {n}", fill="black")
        image.save(tmp_path / "in" / f"p{n}.png")
        for model, words in (("long", 30), ("mid", 20), ("short", 10)):
            (tmp_path / model).mkdir(exist_ok=True)
            (tmp_path / model / f"p{n}.md").write_text(f"Page {n} " + "word " * words)
    return tmp_path


def longer(text):
    return longer_wins(None, {side: said for _, side, said in SHOWN.findall(text)}), "stop"


def run(monkeypatch, engines, *words, judges=("org/judge",)):
    """Runs the tool with one engine (or exception) for each judge that starts; `started` are their arguments."""
    waiting, started = list(engines), []

    def load(options, recipe):
        started.append((options, recipe))
        engine = waiting.pop(0)
        if isinstance(engine, Exception):
            raise engine
        return engine

    monkeypatch.setattr(judge, "load_engine", load)
    specs = [word for name in judges for word in ("--judge-model", name)]
    options = ["long", "mid", "short", "--images", "in", "--output-dir", "votes", "--bootstrap", "50",
               "--max-model-len", "4096", "--repeat-share", "0", *specs, *words]  # fmt: skip
    code = judge.judged(lambda: judge.run(judge.parser_of_options().parse_args(list(map(str, options)))))
    return code, started


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_all_pairs_in_both_orders_held_to_the_schema(bench, monkeypatch, capsys):
    engine = FakeEngine(longer)
    code, ((settings, recipe),) = run(monkeypatch, [engine])
    assert code == 0 and engine.stopped
    said = last_line(capsys)
    assert [row["model"] for row in said["leaderboard"]] == ["long", "mid", "short"]
    assert said["judges"]["org/judge"]["votes"] == len(engine.asked) == 36
    size, _, sampling = engine.asked[0]
    assert size == (300, 400) and sampling.temperature == 0 and sampling.max_tokens == 1024
    assert sampling.structured_outputs.json["properties"]["winner"]["enum"] == ["A", "B", "tie"]
    assert (settings.model, settings.max_model_len) == ("org/judge", 4096)
    assert recipe["engine_args"]["trust_remote_code"] is False, "code of strangers runs on request only"


def test_questions_about_one_page_follow_each_other(bench, monkeypatch):
    engine = FakeEngine(longer)
    run(monkeypatch, [engine])
    pages = [text.split("Page ")[1][0] for _, text, _ in engine.asked]
    assert sum(a != b for a, b in zip(pages, pages[1:], strict=False)) == 5


def test_one_prompt_that_is_too_long_voids_one_comparison_and_not_the_judge(bench, monkeypatch, capsys):
    """In the public script one such prompt raised inside the only call, and every verdict of the judge was empty."""
    (bench / "long" / "p3.md").write_text("Page 3 " + "long " * 1500)
    engine = FakeEngine(longer, longest=6000)
    assert run(monkeypatch, [engine], "--max-invalid-rate", 0.2)[0] == 0
    votes = VoteStore("votes").votes()
    assert Counter(vote["parse_status"] for vote in votes) == {"ok": 32, "length": 4}
    assert {(vote["row_key"], vote["model_a"]) for vote in votes if vote["parse_status"] == "length"} == {
        ("p3", "long")
    }


def test_juries_run_one_after_the_other_and_keep_every_vote(bench, monkeypatch, capsys):
    def shorter(text):
        said = json.loads(longer(text)[0])
        return json.dumps({"reason": "x", "winner": {"A": "B", "B": "A"}[said["winner"]]}), "stop"

    engines = [FakeEngine(longer), FakeEngine(shorter)]
    code, started = run(monkeypatch, engines, judges=("org/one", "org/two"))
    assert code == 0 and len(started) == 2 and all(engine.stopped for engine in engines)
    votes = VoteStore("votes").votes()
    assert Counter(vote["judge"] for vote in votes) == {"org/one": 36, "org/two": 36}
    rows = last_line(capsys)["leaderboard"]
    assert {row["ties"] for row in rows} == {12}, "two judges who disagree tie, whoever is named first"
    first = {row["model"]: row["elo"] for row in rows}
    (bench / "votes").rename(bench / "before")
    run(monkeypatch, [FakeEngine(shorter), FakeEngine(longer)], judges=("org/two", "org/one"))
    assert {row["model"]: row["elo"] for row in last_line(capsys)["leaderboard"]} == first


def test_invalid_answers_are_asked_once_more_and_cut_ones_counted(bench, monkeypatch, capsys):
    engine = FakeEngine(
        lambda text: ('{"reason": "so lo', "length") if "Page 0 " in text else ('{"winner": "?"}', "stop")
    )
    assert run(monkeypatch, [engine])[0] == 3
    statuses = Counter(vote["parse_status"] for vote in VoteStore("votes").votes())
    assert statuses == {"length": 6, "invalid": 30} and len(engine.asked) == 36 + 30
    assert last_line(capsys)["leaderboard"] == []


def test_a_judge_that_does_not_start_is_skipped_and_said(bench, monkeypatch, capsys):
    engines = [judge.Stop("vLLM did not start: out of memory"), FakeEngine(longer)]
    assert run(monkeypatch, engines, judges=("org/big", "org/small"))[0] == 1
    said = last_line(capsys)
    assert "out of memory" in said["judges_stopped"]["org/big"] and said["judges"]["org/small"]["votes"] == 36


def test_an_engine_that_dies_loses_only_what_was_in_flight(bench, monkeypatch, capsys):
    monkeypatch.setattr(judge, "IN_FLIGHT", 4)
    assert run(monkeypatch, [FakeEngine(longer, dies_after=20)])[0] == 1
    kept = len(VoteStore("votes").votes())
    assert 15 <= kept <= 20 and "engine ended" in capsys.readouterr().err
    engine = FakeEngine(longer)
    assert run(monkeypatch, [engine])[0] == 0
    assert len(engine.asked) == 36 - kept and len(VoteStore("votes").votes()) == 36


def test_a_finished_judge_is_not_started_again(bench, monkeypatch, capsys):
    run(monkeypatch, [FakeEngine(longer)])
    assert run(monkeypatch, []) == (0, [])


def test_a_missing_image_is_an_error_of_that_page(bench, monkeypatch, capsys):
    (bench / "in" / "p2.png").unlink()
    assert run(monkeypatch, [FakeEngine(longer)], "--max-invalid-rate", 0.2)[0] == 0
    bad = [vote for vote in VoteStore("votes").votes() if vote["parse_status"] == "error"]
    assert {vote["row_key"] for vote in bad} == {"p2"} and "--images" in bad[0]["reason"]


def test_the_context_is_that_of_the_longest_pair(bench, monkeypatch):
    monkeypatch.setattr(judge, "model_config", lambda options: {"max_position_embeddings": 32768})
    words = ["long", "mid", "--images", "in", "--judge-model", "org/judge"]
    options = judge.parser_of_options().parse_args(words)
    case = judge.Case(options, {})
    (bench / "long" / "p0.md").write_text("字" * 7000)
    (bench / "mid" / "p0.md").write_text("语" * 7000)
    longer_case = judge.Case(options, {})
    one, two = (judge.engine_of(judge.judges_of(options)[0], c, options)[0].max_model_len for c in (case, longer_case))
    assert 4096 < one < 8192 and 14000 < two - one + 1024 < 16000, "one token a character: 4,096 could not hold it"
    monkeypatch.setattr(judge, "model_config", lambda options: {"max_position_embeddings": 8192})
    assert judge.engine_of(judge.judges_of(options)[0], longer_case, options)[0].max_model_len == 8192


def test_without_a_gpu_nothing_starts(bench, monkeypatch, capsys):
    monkeypatch.delenv("OCR_ALLOW_CPU")
    monkeypatch.setattr(judge, "gpus", list)
    assert run(monkeypatch, [])[0] == 2
    assert "ocr-jury-bench.py" in capsys.readouterr().err


def test_kin_of_a_judge_are_named(bench, monkeypatch, capsys):
    (bench / "short").rename(bench / "qwen3-vl-ocr")
    options = judge.parser_of_options().parse_args(["long", "qwen3-vl-ocr", "--images", "in", "--dry-run"])
    assert judge.run(options) == 0
    assert "Self-preference risk" in capsys.readouterr().err
    for words in (["--judge-model", "a/b", "--judge-model", "a/b"], ["--judge-model", "a/b@0"]):
        with pytest.raises(judge.Stop):
            judge.judges_of(judge.parser_of_options().parse_args(["x", *words]))
