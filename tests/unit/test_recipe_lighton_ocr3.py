"""LightOnOCR-3: what is asked in both modes, markers and boxes, and dollars that were escaped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.escaped_dollars import repair_escaped_dollars
from tests.unit.recipe_file import body_of, load_recipe, options_of, page_of

lighton = load_recipe("lighton-ocr3")

PAGE = r"""![header](88,22,410,40) Parish of Kilmore
![title](120,60,880,102) # Register of Births
![text](90,130,490,360) The clerk records that the sum of \$x+y\$ was paid and that
![text+](510,130,905,220) the balance was carried over.
![list](92,380,470,470)
- first entry
- second entry
![table](90,500,905,720)
<table><tr><th>Year</th><th>No.</th></tr><tr><td>1871</td><td>204</td></tr></table>
![formula](200,735,800,780) $$a^2+b^2=c^2$$
![chart](90,790,480,930) <table><tr><td>Q1</td><td>12</td></tr></table>
![image](520,790,905,930) Engraving of a stone bridge over a river.
![page_number](480,955,520,975) 14
"""
BODY = """# Register of Births

The clerk records that the sum of $x+y$ was paid and that the balance was carried over.

- first entry
- second entry

<table><tr><th>Year</th><th>No.</th></tr><tr><td>1871</td><td>204</td></tr></table>

$$a^2+b^2=c^2$$

<table><tr><td>Q1</td><td>12</td></tr></table>

Engraving of a stone bridge over a river."""


SHEET = lighton.Page(None, 2000, 3000)
OPTIONS = {mode: options_of(lighton, "--mode", mode) for mode in ("plain", "grounding")}


def read(text, *words, mode="grounding"):
    options = options_of(lighton, "--mode", mode, *words) if words else OPTIONS[mode]
    return lighton.parse(lighton.Answer(text), SHEET, options)


def contents(result):
    return [(b["raw_label"], b["content"]) for b in result.blocks["blocks"]]


@pytest.mark.parametrize(
    "mode, text", [("plain", []), ("grounding", [{"type": "text", "text": "grounding"}])]
)  # fmt: skip
def test_body(mode, text):
    options, page = options_of(lighton, "--mode", mode), page_of(lighton)
    assert body_of(lighton, page, options) == {
        "messages": [{"role": "user", "content": [{"type": "image", "image": page.image}, *text]}],
        "max_tokens": 4096,
        "temperature": 0.2,
        "top_p": 0.9,
    }
    assert lighton.chat_arguments(lighton.RECIPE)["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    "words, size, sent",
    [
        ((), (2048, 4096), (1024, 2048)),
        ((), (1000, 1400), (1000, 1400)),  # never enlarged
        (("--longest-edge", 3000), (3000, 2000), (3000, 2000)),
    ],
)
def test_image_sent(words, size, sent):
    assert page_of(lighton, size, options_of(lighton, *words)).image.size == sent


def test_worst_case_fits():
    recipe = lighton.RECIPE
    assert (recipe["image"]["max_side"] / 32) ** 2 == recipe["image_tokens"]
    assert recipe["image_tokens"] + recipe["max_tokens"] < recipe["max_model_len"] <= recipe["context"]


def test_the_1b_is_another_architecture():
    with pytest.raises(lighton.Stop, match="lighton-ocr2.py"):
        lighton.check(options_of(lighton, "--model", "lightonai/LightOnOCR-3-1B"))
    lighton.check(options_of(lighton, "--model", "lightonai/LightOnOCR-3-0.8B"))


# ---- Grounding


def test_a_whole_page():
    result = read(PAGE)
    assert result.markdown == "Parish of Kilmore\n\n" + BODY + "\n\n14" and result.flags == []
    blocks = result.blocks["blocks"]
    assert [b["label"] for b in blocks] == (
        "header title text text list table formula picture picture page_number".split()
    )
    assert [b["format"] for b in blocks] == ["markdown"] * 5 + ["html", "latex", "html"] + ["markdown"] * 2
    assert blocks[1]["bbox"] == [240, 180, 1760, 306] and blocks[3]["raw_label"] == "text+"


def test_headers_and_footers_can_be_dropped():
    result = read(PAGE, "--drop-headers-footers")
    assert result.markdown == BODY and len(result.blocks["blocks"]) == 10


def test_a_dropped_or_empty_block_ends_a_paragraph():
    text = "![text](1,1,9,9) a\n![footer](1,9,9,10) x\n![text+](1,1,9,9) b\n![image](1,1,9,9)\n![text+](1,1,9,9) c"
    assert read(text, "--drop-headers-footers").markdown == "a\n\nb\n\nc"
    assert read(text).markdown == "a\n\nx b\n\nc"


def test_a_second_half_at_the_start_stands_alone():
    assert read("![text+](1,1,9,9) from the page before").markdown == "from the page before"


def test_an_ordinary_image_is_no_marker():
    text = "![text](1,2,30,40) see ![image](image_1.png) and ![x](1,2,3)"
    assert contents(read(text)) == [("text", "see ![image](image_1.png) and ![x](1,2,3)")]


def test_unknown_labels_and_bad_boxes_keep_their_text():
    result = read("![stamp](1,2,30,40) PAID\n![text](900,10,900,10) a\n![text](0,0,99999999999999999999,500) b")
    blocks = result.blocks["blocks"]
    assert (blocks[0]["label"], blocks[0]["raw_label"]) == ("other", "stamp")
    assert [b["bbox"] for b in blocks[1:]] == [None, [0, 0, 2000, 1500]]
    assert result.markdown == "PAID\n\na\n\nb"


def test_text_before_the_first_marker_stays():
    result = read("The page:\n![text](1,2,30,40) a")
    assert result.markdown == "The page:\n\na" and result.flags == ["repaired"]
    assert result.blocks["blocks"][0]["bbox"] is None


@pytest.mark.parametrize("cut", ["![te", "![text", "![text+]", "![text](", "![text](90,1", "![text](90, 130,490,"])
def test_a_marker_that_was_cut_off(cut):
    result = read("![text](1,2,30,40) a\n" + cut)
    assert contents(result) == [("text", "a")] and result.flags == ["repaired"]


@pytest.mark.parametrize("text", ["No page here.", "the the " * 600, "![image](image_1.png)", "!" * 500])
def test_no_marker_at_all(text):
    result = read(text)
    assert (result.markdown, result.blocks, result.flags) == (text.strip(), None, ["unparsed"])


def test_a_blank_page():
    result = read("\n")
    assert (result.markdown, result.blocks["blocks"], result.flags) == ("", [], [])


def test_plain_gives_the_text_and_no_blocks():
    result = read(f"\n{BODY}\n", mode="plain")
    assert (result.markdown, result.blocks, result.flags) == (BODY, None, [])


@given(st.text(alphabet="![]()text+0123456789, \n$\\", max_size=300) | st.text())
def test_hostile_text(text):
    for mode in ("plain", "grounding"):
        result = read(text, mode=mode)
        assert isinstance(result.markdown, str) and set(result.flags) <= {"repaired", "unparsed"}


# ---- Escaped dollars


@pytest.mark.parametrize(
    "text, repaired",
    [
        (r"sum of \$x+y\$ paid", "sum of $x+y$ paid"),
        (r"\$x^2$ and $y\$", "$x^2$ and $y$"),
        (r"$a$ is \$\frac{\sqrt{a}}{b} + \text{two words}\$", r"$a$ is $\frac{\sqrt{a}}{b} + \text{two words}$"),
        (r"\$[0, 1)\$, \$x_{1}, \dots, x_{n}\$", r"$[0, 1)$, $x_{1}, \dots, x_{n}$"),
        ("\\$\\begin{cases} a \\\\\n b \\end{cases}\\$", "$\\begin{cases} a \\\\\n b \\end{cases}$"),
    ],
)
def test_math_is_repaired(text, repaired):
    assert repair_escaped_dollars(text) == repaired


@pytest.mark.parametrize(
    "text",
    [
        r"from \$3 to \$5.", r"\$5 and $6", r"\$10-\$20", r"A total of \$4,120 for $n=12$ parishes.",  # prices
        r"US\$x\$", r"HK\$ y\$", r"\$word\$", r"\$ , \$", r"\$two words\$", r"\$a}\$", r"\$)a(\$", r"\$,a\$",
        "\\$a\nb\\$", "\\$a\n\nb\\$", "<td>\\$5</td><td>\\$6</td>", r"\\$x\\$",
        r"`\$x\$`", "```\n\\$x\\$\n```", "    \\$x\\$", r"<pre>\$x\$</pre>", r"<a b='\$x\$'>", r"<!-- \$x\$ -->",
        r"https://a.b/\$x\$", r"[a](b/\$x\$)", r"[a]: b/\$x\$", r"$$\$x\$$$", r"\(\$x\$\)", r"\$", "", "$",
    ],
)  # fmt: skip
def test_all_else_stays(text):
    assert repair_escaped_dollars(text) == text


@given(st.text(alphabet="\\$ax1 ,{}<>`\n()[]", max_size=80))
def test_only_backslashes_before_dollars_go(text):
    assert repair_escaped_dollars(text).replace("\\", "") == text.replace("\\", "")
