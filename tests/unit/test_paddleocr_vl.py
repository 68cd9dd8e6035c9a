"""PaddleX's conversions: formulas, charts, spotted lines, and where a loop is cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.paddleocr_vl import paddle_markdown, spotted_blocks, spotted_lines, trim_paddle_loop


@pytest.mark.parametrize(
    "task, text, markdown",
    [
        ("ocr", "Parish of St. Mary\nBirths in 1871\n", "Parish of St. Mary\nBirths in 1871"),
        ("ocr", r"for $5 a \( x \) b", "for $5 a  $  x  $ b"),  # a price stays
        ("formula", r"\[ E = mc^{2} \]", "$$  E = mc^{2}  $$"),
        ("formula", r"\[\[ a \]\] $", "$$  a  $$"),
        ("formula", r"$ E \[", r"$ E \["),  # no pair: as it is
        ("table", r"<fcel>a & b<fcel>\(x\)<nl>", "<table><tr><td>a &amp; b</td><td>$ x $</td></tr></table>"),
        ("table", "<fcel>a<nl><fcel>b" + "<ecel>" * 900, "<table><tr><td>a</td></tr><tr><td>b</td></tr></table>"),
        ("table", "no table", "no table"),
        ("chart", "Year | Births\n1871 | 204\n1872", "Year | Births\n1871 | 204\n1872"),
        ("chart", "Year | Births | b\n1871 | 204\n", "| Year | Births | b |\n| --- | --- | --- |\n| 1871 | 204 |  |"),
        ("chart", "| a | b |\n|---|:-:|\n| 1 | |", "| a | b |\n| --- | --- |\n| 1 |  |"),
        ("seal", "", ""),
    ],
)
def test_markdown(task, text, markdown):
    assert paddle_markdown(text, task) == markdown


def test_tables_can_stay_otsl():
    assert paddle_markdown(r"<fcel>\(x\)<nl>", "table", otsl=True) == "<fcel> $ x $<nl>"


LOCS = "".join(f"<|LOC_{n}|>" for n in (120, 88, 310, 90, 308, 121, 118, 119))


@pytest.mark.parametrize(
    "text",
    [
        f"Rue Haute{LOCS}No. 14{LOCS}",
        f"<|TEXT_START|>Rue Haute<|TEXT_END|><|LOC_BEGIN|>{LOCS}<|LOC_END|>\n<|TEXT_START|>No. 14<|TEXT_END|>{LOCS}",
    ],
)
def test_spotted(text):
    lines = spotted_lines(text)
    assert [said for said, _ in lines] == ["Rue Haute", "No. 14"]
    assert [block["bbox"] for block in spotted_blocks(lines)] == [[118, 88, 310, 121]] * 2


@pytest.mark.parametrize(
    "text, lines",
    [
        ("", []),
        ("no places", [("no places", None)]),
        ("a<|LOC_1|><|LOC_2|>", [("a", None)]),  # cut off
        (f"a{LOCS}b", [("a", [120, 88, 310, 90, 308, 121, 118, 119]), ("b", None)]),
        (f"{LOCS}", [("", [120, 88, 310, 90, 308, 121, 118, 119])]),
        (f"a{LOCS}<|LOC_7|>", [("a", [120, 88, 310, 90, 308, 121, 118, 119])]),
    ],
)
def test_spotted_broken(text, lines):
    assert spotted_lines(text) == lines


@given(st.lists(st.sampled_from(["<|LOC_5|>", "<|TEXT_START|>", "<|LOC_END|>", "a", " ", "\n"])).map("".join))
def test_spotted_loses_no_text(text):
    assert "".join(said for said, _ in spotted_lines(text)).count("a") == text.count("a")


ODD = "The register of baptisms and burials in the parish, kept by the curate."


@pytest.mark.parametrize(
    "text, table, kept",
    [
        ("ab" * 20, False, "ab" * 20),  # below 50 characters
        ("ab" * 50, False, "ab"),
        ("ab" * 900, True, "ab" * 900),  # a table below 5000
        ("<ecel>" * 900, True, "<ecel>"),
        (ODD + " and so on" * 20, False, ODD),
        (ODD * 3 + " and so on" * 5, False, ODD * 3 + " and so on" * 5),  # less than half
        (ODD + "\n" + "ditto\n" * 30, False, "ditto"),
        (ODD + "\n" + "ditto\n" * 9, False, ODD + "\n" + "ditto\n" * 9),
        ((ODD + "\n") * 3 + "ditto\n" * 11, False, (ODD + "\n") * 3 + "ditto\n" * 11),  # less than 80 %
        (ODD, False, ODD),
        (" " * 60, False, ""),
        ("\n" * 60, False, "\n" * 60),
    ],
)
def test_loops(text, table, kept):
    assert trim_paddle_loop(text, table).strip() == kept.strip()


@given(st.text("ab \n", max_size=400), st.integers(1, 40))
def test_loops_of_any_text(text, times):
    for table in (False, True):
        kept = trim_paddle_loop(text * times, table)
        assert re.sub(r"\s", "", kept) in re.sub(r"\s", "", text * times)
