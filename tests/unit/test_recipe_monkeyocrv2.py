"""MonkeyOCRv2: both steps, single tasks, layouts that are broken, the authors' program, and a whole run."""

import io
import json
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.unit.recipe_file import load_recipe, options_of
from tests.unit.whole_run import whole_run

monkey = load_recipe("monkeyocrv2")
LAYOUT_PROMPT = "Please output the categories and coordinates of the document elements in reading order."
TEXT_PROMPT = "Please output the text content from the image."
FORMULA_PROMPT = "Please write out the expression of the formula in the image using LaTeX format."
TABLE_PROMPT = "Please extract the table from the image and represent it in OTSL format."
END2END_PROMPT = (
    "List the document elements in reading order, including their categories, coordinates, and the content of each "
    "element."
)
LAYOUT = (
    "[{'bbox': [100, 50, 900, 90], 'label': 'Title'}, {'bbox': [100, 110, 900, 300], 'label': 'Text'}, "
    "{'bbox': [100, 320, 900, 640], 'label': 'Table'}, {'bbox': [100, 660, 500, 900], 'label': 'Picture'}, "
    "{'bbox': [520, 660, 900, 700], 'label': 'Formula'}, {'bbox': [520, 710, 900, 730], 'label': 'Footnote'}, "
    "{'bbox': [400, 950, 600, 980], 'label': 'Page-footer'}]"
)
SAID = {
    TEXT_PROMPT: ["Annual\nreport", "In the year\ufffd 1871", "1 So", "7"],
    TABLE_PROMPT: ["<fcel>Year<fcel>[img][10, 20, 30, 40][/img]<nl><fcel>1898<ecel><nl>"],
    FORMULA_PROMPT: ["$E = mc^2 \\quad (3)$"],
}
TABLE = "<table><tr><td>Year</td><td><img/></td></tr><tr><td>1898</td><td></td></tr></table>"
MARKDOWN = f"# Annual\n# report\n\nIn the year 1871\n\n{TABLE}\n\n$$\nE = mc^2\n$$\n3\n\n1 So"


def page(width=1000, height=2000, seen=None):
    return monkey.Page(Image.new("RGB", seen or (width, height), "white"), width, height)


def talk(layout, texts=None, *words, sheet=None):
    """([[(prompt, size, max_tokens)]] of each round, Parsed)."""
    options = options_of(monkey, *words)
    reading = monkey.steps(monkey.Unit("1", [sheet or page()]), options)
    rounds, bodies, answers = [], next(reading), [monkey.Answer(layout)]
    left = {prompt: list(answers) for prompt, answers in (texts or {}).items()}
    try:
        while True:
            asked = []
            for body in bodies:
                image, text = body["messages"][0]["content"]
                asked.append((text["text"], image["image"].size, body["max_tokens"]))
            rounds.append(asked)
            bodies = reading.send(answers)
            prompts = [body["messages"][0]["content"][1]["text"] for body in bodies]
            answers = [monkey.Answer(left[prompt].pop(0) if left else "x") for prompt in prompts]
    except StopIteration as end:
        return rounds, end.value


def test_a_page_in_two_steps():
    rounds, result = talk(LAYOUT, SAID)
    ((prompt, size, most),) = rounds[0]
    assert (prompt, most) == (LAYOUT_PROMPT, 4096) and 1_000_000 < size[0] * size[1] <= 1003520
    assert abs(size[0] / size[1] - 0.5) < 0.01, "the shape of the page is kept"
    assert [asked[0] for asked in rounds[1]] == [
        TEXT_PROMPT, TEXT_PROMPT, TABLE_PROMPT, FORMULA_PROMPT, TEXT_PROMPT, TEXT_PROMPT,
    ]  # fmt: skip
    assert rounds[1][0][1] == (800, 80) and {asked[2] for asked in rounds[1]} == {5000}
    assert (result.markdown, result.flags) == (MARKDOWN, [])
    blocks = result.blocks["blocks"]
    assert [b["label"] for b in blocks] == ["title", "text", "table", "picture", "formula", "footnote", "footer"]
    assert blocks[0]["bbox"] == [100, 100, 900, 180] and blocks[6]["content"] == "7"
    assert talk(LAYOUT, SAID, "--keep-header-footer")[1].markdown == MARKDOWN + "\n\n7"


@pytest.mark.parametrize("size", [(1000, 1400), (1400, 1000)])
def test_boxes_are_pixels_of_the_original(size):
    sheet = page(*size, seen=(size[0] // 3, size[1] // 3))
    (block,) = talk("[{'bbox': [900, 200, 100, 250], 'label': 'Text'}]", sheet=sheet)[1].blocks["blocks"]
    assert block["bbox"] == [size[0] // 10, size[1] // 5, size[0] * 9 // 10, size[1] // 4]


def test_pictures_are_sized_as_the_model_was_trained():
    assert talk("[]", sheet=page(100, 100))[0][0][0][1] == (1001, 1001), "small pages are enlarged"
    assert talk("[]", sheet=page(1500, 1500))[0][0][0][1] == (1001, 1001)
    assert talk("[]", None, "--max-pixels", 10_000, sheet=page(1500, 1500))[0][0][0][1] == (100, 100)
    whole = "[{'bbox': [0, 0, 1000, 1000], 'label': 'Text'}]"
    assert talk(whole, sheet=page(100, 100))[0][1][0][1] == (100, 100), "blocks are not"
    thin = "[{'bbox': [0, 0, 1000, 1], 'label': 'Text'}, {'bbox': [5, 5, 5, 5], 'label': 'Text'}]"
    rounds, result = talk(thin, sheet=page(3000, 3000))
    assert len(rounds) == 1 and [b["content"] for b in result.blocks["blocks"]] == ["", ""]


def test_everything_in_one_answer():
    answer = LAYOUT.replace("'label': 'Title'", "'label': 'Title', 'content': 'Rolls {of} \"it\"'")
    rounds, result = talk(answer, None, "--end2end")
    assert rounds == [[(END2END_PROMPT, rounds[0][0][1], 12288)]]
    assert result.markdown == '# Rolls {of} "it"' and len(result.blocks["blocks"]) == 7


@pytest.mark.parametrize(
    "task, prompt, most, answer, markdown",
    [
        ("text", TEXT_PROMPT, 12288, " words\nmore ", "words\nmore"),
        ("formula", FORMULA_PROMPT, 12288, "x", "$$\nx\n$$"),
        ("table", TABLE_PROMPT, 4096, "<fcel>a<nl>", "<table><tr><td>a</td></tr></table>"),
    ],
)
def test_single_tasks(task, prompt, most, answer, markdown):
    rounds, result = talk(answer, None, "--task", task)
    assert [(asked[0], asked[2]) for asked in rounds[0]] == [(prompt, most)]
    assert result.markdown == markdown and result.blocks is None


@pytest.mark.parametrize(
    "text, found, flags",
    [
        ("", [], []),
        ("[]", [], []),
        ("nothing of the kind", [], ["unparsed"]),
        ("[{'bbox': [1, 2, 3, 4], 'label': 'Text'}, {'bbox': [5, 6", [("Text", [1, 2, 3, 4], "")], ["repaired"]),
        ("[{'bbox': [1, 2, 3, 4], 'label': 'Tab", [("Tab", [1.0, 2.0, 3.0, 4.0], "")], ["repaired"]),
        (
            "[{'bbox': [1, 2, 3, 4], 'label': 'Text', 'content': 'he said {so} and th",
            [("Text", [1.0, 2.0, 3.0, 4.0], "he said {so} and th")],
            ["repaired"],
        ),
        ("[{'bbox': 'x', 'label': 3, 'content': None}]", [("Text", "x", "")], []),
        ("[1, 2]", [], ["unparsed"]),
    ],
)
def test_broken_layouts(text, found, flags):
    assert monkey.elements(text) == ([{"label": a, "bbox": b, "content": c} for a, b, c in found], flags)


@pytest.mark.parametrize(
    "text, block",
    [
        ("x", "$$\nx\n$$"),
        ("$$ x \\tag{4} $$", "$$\nx\n$$\n4"),
        ("x" + " \\quad" * 9 + " y", "$$\nx \\quad y\n$$"),
        (
            "\\begin{align}a \\\\ b \\qquad (2.1)\\end{align}",
            "$$\n\\begin{align}\na \\\\ b\n\\end{align}\n$$\n2.1",
        ),
    ],
)
def test_displayed(text, block):
    assert monkey.displayed(text) == block


@settings(max_examples=40)
@given(st.text(max_size=80) | st.lists(st.sampled_from(LAYOUT.split("'"))).map("'".join))
def test_hostile_text(text):
    for kind in ("Title", "Formula", "Table"):
        assert isinstance(monkey.content_of(kind, text), str)
    found, _ = monkey.elements(text)
    json.dumps(monkey.markdown_and_blocks(page(50, 80), found, options_of(monkey)))
    for item in found:
        monkey.crop(page(50, 80), item["bbox"])


def test_the_authors_program_is_fetched_once_and_started(monkeypatch, tmp_path):
    archive = tmp_path / "code.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        member = tarfile.TarInfo(f"MonkeyOCRv2-{monkey.COMMIT}/parsing/serve.py")
        member.size = 4
        packed.addfile(member, io.BytesIO(b"pass"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(monkey, "SOURCE", "file:///nowhere/code.tar.gz")
    with pytest.raises(monkey.Stop, match="cannot be fetched"):
        monkey.model_code()
    monkeypatch.setattr(monkey, "SOURCE", archive.as_uri())
    folder = monkey.model_code()
    archive.unlink()
    assert monkey.model_code() == folder and (folder / "parsing" / "serve.py").read_text() == "pass"
    words = monkey.monkey_command(options_of(monkey, "--max-model-len", 15000), monkey.RECIPE, folder, "/weights")
    assert words[1:4] == [str(folder / "parsing" / "serve.py"), "--model-path", "/weights"]
    own, vllm = words[4 : words.index("--")], words[words.index("--") + 1 :]
    assert own == [
        "--gpu-memory-utilization", "0.8", "--max-model-len", "15000", "--max-num-batched-tokens", "16384",
        "--served-model-name", "zenosai/MonkeyOCRv2-S-Parsing", "--host", "127.0.0.1", "--port", "{port}",
    ]  # fmt: skip
    assert vllm == ["--max-num-seqs", "128", "--no-enable-prefix-caching", "--generation-config", "vllm"]


def test_further_names_of_shared_options_do_not_tell_runs_apart():
    assert options_of(monkey, "--retry-repeat").retries == 3
    assert options_of(monkey).own_options == ["picture_pixels", "keep_header_footer"]


def test_a_whole_run(tmp_path):
    def behave(prompt, size):
        return {LAYOUT_PROMPT: LAYOUT, TABLE_PROMPT: "<fcel>a<nl>", FORMULA_PROMPT: "x"}.get(prompt, f"{size}")

    pages = {"page": Image.new("RGB", (1000, 2000), "grey")}
    summary, texts, blocks, seen = whole_run("monkeyocrv2", tmp_path, pages, behave, model=monkey.RECIPE["model"])
    assert (summary["pages"], summary["errors"], summary["flags"]) == (1, 0, {})
    assert texts["page"].startswith("# (800, 80)\n\n(800, 380)\n\n<table><tr><td>a</td></tr></table>\n\n$$\nx\n$$")
    assert blocks["page"]["blocks"][0]["bbox"] == [100, 100, 900, 180] and len(seen) == 7
