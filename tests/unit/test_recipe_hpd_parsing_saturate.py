"""HPD-Parsing: what is asked, the blocks of its answers, loops counted per block, and the fork's command."""

import json
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of
from tests.unit.whole_run import whole_run

hpd = load_recipe("hpd-parsing-saturate")
OPTIONS = options_of(hpd)
ANSWER = (
    "<BLOCK>title [85, 64, 912, 118]<CHILD>Annual Report<BLOCK>list [90, 130, 900, 300]"
    "<BLOCK>text [95, 135, 890, 180]<FORK><CHILD>First item \\( x^2 \\)<BLOCK>table [90, 320, 900, 600]<CHILD>"
    "<table><tr><td>1</td></tr></table><BLOCK>formula [200, 620, 700, 690]<CHILD>\\[\nE=mc^2\n\\]"
    "<BLOCK>chart [90, 700, 500, 900]<CHILD>made up<BLOCK>page_number [480, 950, 520, 970]<CHILD>7"
)
MARKDOWN = "Annual Report\n\nFirst item \\( x^2 \\)\n\n<table><tr><td>1</td></tr></table>\n\n\\(E=mc^2\\)\n\n7"


def parsed(text, *words, size=(1000, 2000)):
    page = hpd.Page(Image.new("RGB", (500, 1000)), *size)
    return hpd.parse(hpd.Answer(text), page, options_of(hpd, *words))


@pytest.mark.parametrize("words, prompt", [((), "document parsing with fork."), (("--no-fork",), "document parsing.")])
def test_request(words, prompt):
    options = options_of(hpd, *words)
    page = page_of(hpd, (2600, 3600), options)
    assert page.image.size == (2600, 3600), "never reduced"
    body = body_of(hpd, page, options)
    image, text = body.pop("messages")[0]["content"]
    assert image["image"].size == (2600, 3600) and text == {"type": "text", "text": prompt}
    assert body == {"max_tokens": 8000, "temperature": 0.0, "repetition_penalty": 1.0}
    assert page_of(hpd, (2600, 3600), options_of(hpd, "--max-pixels", 1_000_000)).image.size < (1000, 1200)
    assert options_of(hpd, "--server", "http://h/v1").endpoint == "http://h/v1"


def test_a_page():
    result = parsed(ANSWER)
    assert (result.markdown, result.flags, result.columns) == (MARKDOWN, [], {"looped_blocks": 0})
    blocks = result.blocks["blocks"]
    assert [b["label"] for b in blocks] == ["title", "list", "text", "table", "formula", "picture", "page_number"]
    assert blocks[0]["bbox"] == [85, 128, 912, 236] and blocks[5]["content"] == ""
    assert parsed(ANSWER, size=(3000, 500)).blocks["blocks"][0]["bbox"] == [255, 32, 2736, 59]
    assert parsed(ANSWER, "--keep-raw").columns == {"looped_blocks": 0, "hpd_raw": ANSWER}


@pytest.mark.parametrize(
    "text, kinds, boxes, markdown, flags",
    [
        ("", [], [], "", []),
        ("No blocks at all.", [], [], "No blocks at all.", ["unparsed"]),
        ("thoughts <BLOCK>text [1, 2, 3, 4]<CHILD>a", ["text"], [[1, 4, 3, 8]], "a", []),
        ("<BLOCK>text [10.5 20, -5,30]<CHILD>a<FORK>b", ["text"], [[0, 40, 10, 60]], "a", []),
        ("<BLOCK>text [1, 2]<CHILD>a", ["text"], [None], "a", []),
        ("<BLOCK>text [900, 2000, 1500, 3000]<CHILD>a", ["text"], [None], "a", []),
        ("<BLOCK>title [1, 2, 30, 4]<CHILD>a<BLOCK>text [1, 2", ["title", "text"], [[1, 4, 30, 8], None], "a", []),
        ("<BLOCK>text [1, 2, 30, 4]straight on", ["text"], [[1, 4, 30, 8]], "straight on", []),
        ("<BLOCK>[1, 2, 3, 4]<CHILD>a<BLOCK>", [], [], "<BLOCK>[1, 2, 3, 4]<CHILD>a<BLOCK>", ["unparsed"]),
    ],
)
def test_broken_answers(text, kinds, boxes, markdown, flags):
    result = parsed(text)
    assert [b["raw_label"] for b in result.blocks["blocks"]] == kinds
    assert [b["bbox"] for b in result.blocks["blocks"]] == boxes
    assert (result.markdown, result.flags) == (markdown, flags)


def test_looped_blocks_are_counted():
    words = random.Random(1).choices(
        "the mill stands on river Ouse since year of our Lord and was let to".split(), k=600
    )
    prose, loop = " ".join(f"{word}{place}" for place, word in enumerate(words)), "and so on " * 300
    rows = "".join(f"<tr><td>{place}</td><td>{place * place}</td></tr>" for place in range(200))
    answer = "".join(f"<BLOCK>{kind} [1, 1, 9, 9]<CHILD>{text}" for kind, text in [
        ("text", prose), ("text", loop), ("table", f"<table>{rows}</table>"), ("table", "<tr><td></td></tr>" * 300),
        ("text", "short " * 20),
    ])  # fmt: skip
    result = parsed(answer)
    assert result.columns == {"looped_blocks": 2} and loop.strip() in result.markdown


@pytest.mark.parametrize(
    "text, tidy, cut",
    [
        ("  plain words, kept as they are  ", "plain words, kept as they are", False),
        ("[Non-Text]", "", False),
        ("The image is too blurry to recognize any text content.", "", False),
        ("The image contains no text or characters. It is a line. Therefore the result is an empty string.", "", False),
        ("\\[\nE=mc^2", "\\(E=mc^2\\)", False),
        ("\\[\na \\\\\nb = c\n\\]", "\\[\na \\\\\nb = c\n\\]", False),
        ("<table><tr><td>1</td></tr>", "<table><tr><td>1</td></tr></table>", False),
        ("\\(a\\) \\(b\\)", "\\(a\\)\n\n\\(b\\)", False),
        ("6 ÷ 2", "\\( 6 \\div 2 \\)", False),
        ("\\(x \\tag{3}\\)", "\\(x \\)", False),
        ("\\(\\left( a+b \\right)\\)", "\\(( a+b )\\)", False),
        ("\\(\\left( \\frac{a}{b} \\right)\\)", "\\(\\left( \\frac{a}{b} \\right)\\)", False),
        ("\\(\\left[ a \\right)\\)", "\\(\\left[ a \\right)\\)", False),
        ("\\(a \\quad \\quad \\dots\\)", "\\(a\\)", True),
        ("\\(a \\cdots \\cdots \\cdots\\)", "\\(a \\cdots\\)", True),
        ("\\(A \\supset B\\)", "\\(A \\supset B\\)", False),
        ("\\(a ≤ 速度\\)", "\\(a \\leq \\text{速度}\\)", False),
        ("3 × 4 = 12\nthree times four", "\\( 3 \\times 4 = 12 \\)\nthree times four", False),
        ("sin x = 1", "\\( sin x = 1 \\)", False),
        ("1871-1872\n12/5/1871\n020-7946", "1871-1872\n12/5/1871\n020-7946", False),
        ("x = 1 and \\(y\\)\nz = 2", "x = 1 and \\(y\\)\n\\( z = 2 \\)", False),
        ("===", "===", False),
        ("<b>x = 1</b>", "<b>x = 1</b>", False),
    ],
)
def test_tidied(text, tidy, cut):
    assert hpd.tidied(text) == (tidy, cut)


def test_what_is_cut_off_is_flagged():
    assert parsed("<BLOCK>formula [1, 1, 9, 9]<CHILD>\\(a \\quad \\quad \\)").flags == ["trimmed"]


@settings(max_examples=40)
@given(st.text(max_size=80) | st.lists(st.sampled_from(ANSWER.split("<"))).map("<".join))
def test_hostile_text(text):
    result = parsed(text)
    json.dumps(result.blocks)
    assert isinstance(hpd.tidied(text)[0], str)


def test_the_servers_command(monkeypatch, tmp_path):
    options, recipe = options_of(hpd, "--model", str(tmp_path)), {**hpd.RECIPE}
    with pytest.raises(hpd.Stop, match="no P-MTP/config.json"):
        hpd.weights_folder(options)
    (tmp_path / "P-MTP").mkdir()
    (tmp_path / "P-MTP" / "config.json").write_text("{}")
    monkeypatch.setattr(hpd, "VENV", tmp_path / "nowhere")
    words = hpd.fork_command(options, recipe, hpd.weights_folder(options))
    assert words[:9] == [
        "uv", "run", "--isolated", "--no-project", "--python", "3.12", "--with", hpd.WHEEL, "vllm",
    ]  # fmt: skip
    flags = words[9:]
    assert flags[:2] == ["serve", str(tmp_path)]
    for flag, value in [
        ("--max-model-len", "16384"), ("--attention-backend", "FLASHINFER"), ("--limit-mm-per-prompt", '{"image": 1}'),
        ("--attention-config", '{"use_prefill_query_quantization": true}'), ("--port", "{port}"),
        ("--gpu-memory-utilization", "0.9"),
    ]:  # fmt: skip
        assert flags[flags.index(flag) + 1] == value
    head = json.loads(flags[flags.index("--speculative-config") + 1])
    assert head == {"method": "medusa", "model": str(tmp_path / "P-MTP"), "num_speculative_tokens": 6}
    assert {"--trust-remote-code", "--enable-chunked-prefill", "--enable-prefix-caching"} <= set(flags)
    assert not {"--max-num-seqs", "--mm-processor-cache-gb", "--revision"} & set(flags)
    monkeypatch.setattr(hpd, "VENV", tmp_path)
    assert hpd.fork_command(options, recipe, str(tmp_path))[:2] == [str(tmp_path / "vllm"), "serve"]


def test_preflight(monkeypatch):
    preflight = hpd.preflight_vendor
    here = preflight.__globals__
    monkeypatch.delenv("OCR_ALLOW_CPU", raising=False)
    monkeypatch.setitem(here, "gpus", lambda: [])
    preflight(options_of(hpd, "--endpoint", "http://h/v1"), hpd.RECIPE)
    with pytest.raises(hpd.Stop, match="needs an NVIDIA GPU"):
        preflight(OPTIONS, hpd.RECIPE)
    monkeypatch.setitem(here, "gpus", lambda: [(20 << 30, 24 << 30)])
    monkeypatch.setitem(here, "weight_bytes", lambda options: (2 << 30, 0))
    monkeypatch.setitem(here, "model_config", lambda options: {"llm_config": {"max_position_embeddings": 40960}})
    monkeypatch.setitem(here, "shutil", SimpleNamespace(which=lambda name: None))
    with pytest.raises(hpd.Stop, match="pip install uv"):
        preflight(OPTIONS, hpd.RECIPE)


def test_columns():
    assert hpd.check(OPTIONS) == {}
    assert hpd.check(options_of(hpd, "--keep-raw"))["columns"] == {"looped_blocks": "int", "hpd_raw": "string"}
    with pytest.raises(hpd.Stop, match="is taken"):
        hpd.check(options_of(hpd, "--keep-raw", "--raw-column", "markdown"))


def test_a_whole_run(tmp_path):
    def behave(prompt, size):
        return ANSWER if size == (300, 400) else ("<BLOCK>text [0, 0, 500, 500]<CHILD>" + "so on " * 900, "length")

    pages = {"good": Image.new("RGB", (300, 400)), "loop": Image.new("RGB", (100, 100))}
    summary, texts, blocks, seen = whole_run(
        "hpd-parsing-saturate", tmp_path, pages, behave, "--retries", 0, "--model", "HPD-Parsing", model="HPD-Parsing"
    )
    assert (summary["pages"], summary["errors"]) == (2, 0) and {"looped", "truncated"} <= set(summary["flags"])
    assert texts["good"] == MARKDOWN and blocks["good"]["blocks"][0]["bbox"] == [26, 26, 274, 47]
    assert blocks["loop"]["blocks"][0]["bbox"] == [0, 0, 50, 50]
    assert all("jpeg" in body["messages"][0]["content"][0]["image_url"]["url"][:20] for body in seen)
