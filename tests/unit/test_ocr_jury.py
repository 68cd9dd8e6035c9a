"""The API jury against a stand-in server: what is asked, what counts, what is stored, how it goes on."""

import base64
import io
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image, ImageDraw

from kit.votes import VoteStore
from tests.unit.recipe_file import load_recipe

jury = load_recipe("ocr-jury-bench")
SHOWN = re.compile(r"\[(\w+) ([AB]) begins\]\n(.*?)\n\[\1 \2 ends\]", re.S)


def longer_wins(body, texts):
    a, b = len(texts.get("A", "")), len(texts.get("B", ""))
    return json.dumps({"reason": "longer", "winner": "A" if a > b else "B" if b > a else "tie"})


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, status, value, **headers):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(text))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200, {"data": [{"id": "test/judge"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        content = body["messages"][0]["content"]
        texts = {side: text for _, side, text in SHOWN.findall(content[1]["text"])}
        with self.server.lock:
            self.server.bodies.append((body, dict(self.headers)))
            number = len(self.server.bodies)
        said = self.server.judge(body, texts, number)
        if isinstance(said, tuple):
            return self.answer(said[0], {"error": said[1]}, **(said[2] if len(said) > 2 else {}))
        message, finish = (said, "stop") if isinstance(said, str) else (said["text"], said["finish"])
        usage = {"prompt_tokens": 1000, "completion_tokens": 10}
        choice = {"message": {"content": message}, "finish_reason": finish}
        return self.answer(200, {"model": body["model"], "choices": [choice], "usage": usage})


@pytest.fixture
def server():
    """A server whose `judge(body, texts, number)` gives a text, {"text", "finish"}, or (status, error[, headers])."""
    made = Server(("127.0.0.1", 0), Handler)
    made.bodies, made.lock = [], threading.Lock()
    made.judge = lambda body, texts, number: longer_wins(body, texts)
    made.url = f"http://127.0.0.1:{made.server_port}/v1"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """Three runs over 8 pages with images: `long` has more text than `mid`, and that more than `short`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jury, "FIRST_PAUSE", 0.001)
    for name in ("JOB_ID", "OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "in").mkdir()
    for n in range(8):
        image = Image.new("RGB", (300, 400), "white")
        ImageDraw.Draw(image).text((20, 20), f"page {n}", fill="black")
        image.save(tmp_path / "in" / f"p{n}.png")
        for model, words in (("long", 30), ("mid", 20), ("short", 10)):
            (tmp_path / model).mkdir(exist_ok=True)
            (tmp_path / model / f"p{n}.md").write_text(f"Page {n} " + "word " * words)
    return tmp_path


def run(server, *words, judges=("test/judge",)):
    specs = [word for judge in judges for word in ("--judge", f"{server.url}:{judge}")]
    options = ["long", "mid", "short", "--images", "in", "--output-dir", "votes", "--bootstrap", "50", *specs, *words]
    return jury.judged(lambda: jury.run(jury.parser_of_options().parse_args(list(map(str, options)))))


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_every_pair_is_asked_in_both_orders_and_the_truth_comes_out(outputs, server, capsys):
    assert run(server) == 0
    said = last_line(capsys)
    assert [row["model"] for row in said["leaderboard"]] == ["long", "mid", "short"]
    told = said["judges"]["test/judge"]
    assert (told["votes"], told["consistency"], told["fairness"], told["invalid_rate"]) == (48, 1, 0, 0)
    body, headers = server.bodies[1]  # the first is the preflight's
    image, text = body["messages"][0]["content"]
    picture = Image.open(io.BytesIO(base64.b64decode(image["image_url"]["url"].partition(",")[2])))
    assert picture.size == (300, 400) and "Criteria" in text["text"]
    schema = body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["reason", "winner"], "the reason is written before the label"
    assert schema["properties"]["winner"]["enum"] == ["A", "B", "tie"] and "Authorization" not in headers
    votes = VoteStore("votes").votes()
    assert Counter(vote["order"] for vote in votes if not vote["repeat"]) == {"ab": 24, "ba": 24}
    assert all(vote["prompt_tokens"] == 1000 and vote["settings"] and vote["text_a"] for vote in votes)


def test_nothing_is_asked_twice_and_a_new_judge_joins(outputs, server, capsys):
    run(server, "--max-samples", 4)
    asked = len(server.bodies)
    assert run(server, "--max-samples", 4) == 0 and len(server.bodies) == asked
    first = last_line(capsys)
    assert run(server, "--max-samples", 4, judges=("test/judge", "test/second")) == 0
    assert {body["model"] for body, _ in server.bodies[asked:]} == {"test/second"}
    assert set(last_line(capsys)["judges"]) == {"test/judge", "test/second"} > set(first["judges"])


def test_an_interrupted_run_ends_with_the_same_tables(outputs, server, capsys):
    class Interrupted(BaseException):
        pass

    run(server, "--output-dir", "whole", "--max-samples", 5)
    whole = last_line(capsys)["leaderboard"]
    store = jury.VoteStore
    add, left = store.add, [10]

    def breaking(self, votes):
        left[0] -= 1
        if not left[0]:
            raise Interrupted
        add(self, votes)

    store.add = breaking
    try:
        with pytest.raises(Interrupted):
            run(server, "--output-dir", "broken", "--max-samples", 5)
    finally:
        store.add = add
    assert 0 < len(VoteStore("broken").votes()) < 30
    assert run(server, "--output-dir", "broken", "--max-samples", 5) == 0
    assert last_line(capsys)["leaderboard"] == whole
    ids = [vote["comparison_id"] for vote in VoteStore("broken").rows()]
    assert len(ids) == len(set(ids))


def test_orders_are_balanced_exactly_on_request(outputs, server, capsys):
    assert run(server, "--orders", "balanced", "--repeat-share", 0) == 0
    orders = Counter((v["model_a"], v["model_b"], v["order"]) for v in VoteStore("votes").votes())
    assert set(orders.values()) == {4} and len(orders) == 6


def test_a_judge_that_takes_the_first_is_seen_through(outputs, server, capsys):
    server.judge = lambda body, texts, number: '{"reason": "first", "winner": "A"}'
    assert run(server) == 0
    said = last_line(capsys)
    told = said["judges"]["test/judge"]
    assert (told["consistency"], told["fairness"]) == (0, 1)
    assert [row["elo"] for row in said["leaderboard"]] == pytest.approx([1500] * 3, abs=0.01)


def test_broken_answers_are_asked_once_more_and_never_are_ties(outputs, server, capsys):
    def judge(body, texts, number):
        again = "not such an object" in body["messages"][0]["content"][1]["text"]
        return '{"winner": "neither"}' if "Page 3 " in str(texts) or not again else longer_wins(body, texts)

    server.judge = judge
    assert run(server, "--repeat-share", 0) == 3, "6 of 48 answers cannot be counted"
    votes = VoteStore("votes").votes()
    bad = [vote for vote in votes if vote["parse_status"] == "invalid"]
    assert {vote["row_key"] for vote in bad} == {"p3"} and len(bad) == 6
    assert all(vote["winner"] is None and "neither" in vote["details"] for vote in bad)
    assert not any(vote["winner"] == "tie" for vote in votes)
    assert last_line(capsys)["judges"]["test/judge"]["invalid_rate"] == pytest.approx(6 / 48, abs=1e-4)


def test_a_prompt_that_is_too_long_costs_one_comparison(outputs, server, capsys):
    def judge(body, texts, number):
        too_long = "Page 5 " in str(texts) and number > 1
        return (400, "maximum context length is 4096 tokens") if too_long else longer_wins(body, texts)

    server.judge = judge
    assert run(server, "--repeat-share", 0, "--max-invalid-rate", 0.2) == 0
    assert Counter(vote["parse_status"] for vote in VoteStore("votes").votes()) == {"ok": 42, "length": 6}


def test_what_passes_is_waited_out(outputs, server, capsys):
    seen = Counter()

    def judge(body, texts, number):
        text = body["messages"][0]["content"][1]["text"]
        seen[text] += 1
        return (429, "busy", {"retry_after": 0}) if seen[text] < 3 else longer_wins(body, texts)

    server.judge = judge
    assert run(server, "--max-samples", 3) == 0
    assert {vote["parse_status"] for vote in VoteStore("votes").votes()} == {"ok"}


def test_a_wrong_key_stops_before_anything_is_asked(outputs, server, capsys, monkeypatch):
    server.judge = lambda body, texts, number: (401, "who are you")
    assert run(server) == 2
    assert "--api-key-env" in capsys.readouterr().err and len(server.bodies) == 1
    monkeypatch.setenv("MY_KEY", "secret-value")
    server.judge = lambda body, texts, number: longer_wins(body, texts)
    assert run(server, "--api-key-env", "MY_KEY", "--max-samples", 2) == 0
    assert server.bodies[-1][1]["Authorization"] == "Bearer secret-value"
    kept = "".join(path.read_text() for path in (outputs / "votes").iterdir())
    assert "secret-value" not in kept + str(capsys.readouterr())


def test_a_judge_that_keeps_failing_is_given_up_and_the_others_go_on(outputs, server, capsys):
    def judge(body, texts, number):
        return (418, "teapot") if body["model"] == "test/bad" and number > 3 else longer_wins(body, texts)

    server.judge = judge
    assert run(server, "--concurrency", 2, judges=("test/bad", "test/good")) == 1
    said = last_line(capsys)
    assert "teapot" in said["judges_stopped"]["test/bad"] and said["judges"]["test/good"]["votes"] == 48
    calls = sum(body["model"] == "test/bad" for body, _ in server.bodies)
    assert calls < 20, "ten failures in a row are enough"
    server.judge = lambda body, texts, number: longer_wins(body, texts)
    assert run(server, judges=("test/bad", "test/good")) == 0, "the same command asks what is missing"
    assert last_line(capsys)["judges"]["test/bad"]["votes"] == 48


def test_another_model_than_asked_for_is_noticed(outputs, server, capsys):
    server.judge = lambda body, texts, number: body.update(model="other/model") or longer_wins(body, texts)
    assert run(server) == 2
    assert "other/model answered instead of test/judge" in capsys.readouterr().err


def test_money_is_counted_and_ends_the_run_cleanly(outputs, server, capsys):
    assert run(server, "--price-in", 1.0, "--budget-usd", 0.02, "--concurrency", 1) == 0
    said = last_line(capsys)
    assert said["budget_exhausted"] and 0.02 <= said["spent_usd"] <= 0.023
    assert run(server, "--budget-usd", 1) == 2


def test_equal_texts_are_ties_without_a_judge_and_failures_are_not_judged(outputs, server, capsys):
    (outputs / "mid" / "p0.md").write_text("# Page 0\n\n" + "word " * 30)  # the same but for markup
    (outputs / "mid" / "p1.md").write_text("[OCR ERROR]")
    for model in ("long", "mid", "short"):
        (outputs / model / "p2.md").write_text("x" if model == "mid" else "y z")
    for model in ("long", "mid"):
        (outputs / model / "p3.md").write_text("")
    Image.new("RGB", (300, 400), "white").save(outputs / "in" / "p3.png")
    (outputs / "long" / "p4.md").write_text("")
    (outputs / "mid" / "p4.md").write_text(" ")
    assert run(server) == 0
    said = last_line(capsys)
    assert said["skipped"] == {"failed": 2, "short": 2, "blank_on_ink": 1} and said["automatic"] == 3
    autos = {vote["row_key"]: vote["auto"] for vote in VoteStore("votes").votes() if vote["auto"]}
    assert autos == {"p0": "identical", "p2": "identical", "p3": "both_blank"}
    asked = [body["messages"][0]["content"][1]["text"] for body, _ in server.bodies]
    assert any("(no output)" in text for text in asked), "one blank side is judged"
    assert not any("OCR ERROR" in text for text in asked)
    record = json.loads(VoteStore("votes").runs()[0]["record"])
    assert [one["failed"] for one in record["contestants"]] == [[], ["p1"], []]


def test_too_much_truncation_is_refused_before_anything_is_paid(outputs, server, capsys):
    assert run(server, "--max-text-chars", 50) == 2
    assert "--allow-truncation" in capsys.readouterr().err and not server.bodies
    assert run(server, "--max-text-chars", 50, "--allow-truncation", "--max-samples", 2) == 0
    assert all(vote["truncated_a"] for vote in VoteStore("votes").votes())


def test_one_question_is_shown_without_any_call(outputs, server, capsys):
    assert run(server, "--dry-run") == 0
    assert "Criteria" in last_line(capsys)["prompt"] and not server.bodies


@pytest.mark.parametrize("spec, url, model, weight", [
    ("org/model", jury.ROUTER, "org/model", 1), ("novita:org/model@0.5", jury.ROUTER, "org/model:novita", 0.5),
    ("http://h:8000/v1", "http://h:8000/v1", None, 1), ("http://h:8000/v1:org/m@2", "http://h:8000/v1", "org/m", 2),
])  # fmt: skip
def test_judges_are_named_by_model_or_address(spec, url, model, weight):
    judge = jury.judge_of(spec)
    assert (judge["url"], judge["model"], judge["weight"]) == (url, model, weight)


def test_the_hubs_token_goes_to_the_hub_only(monkeypatch):
    options = jury.parser_of_options().parse_args(["x", "--judge", "y"])
    monkeypatch.setenv("HF_TOKEN", "hub")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert jury.key_of(jury.judge_of("org/model"), options) == "hub"
    assert jury.key_of(jury.judge_of("https://huggingface.co.evil.example/v1:m"), options) is None
    for wrong in ("model", "ftp://x/v1", "org/model@0"):
        with pytest.raises(jury.Stop):
            jury.judge_of(wrong)
