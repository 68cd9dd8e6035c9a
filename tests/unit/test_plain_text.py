"""One plain text of every markup that models write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.plain_text import to_plain_text


@pytest.mark.parametrize(
    ("markup", "plain"),
    [
        ("# Title\n\nSome **bold**, *it* and ***both***, __u__, _v_.", "Title\n\nSome bold, it and both, u, v."),
        ("snake_case 2*3*4 ____ a * b", "snake_case 2*3*4 ____ a * b"),
        ("中文**粗体**中文", "中文粗体中文"),
        ("- a\n* b\n• c\n1. d\n- [ ] e\n- [x] f", "a\nb\nc\n1. d\n☐ e\n☑ f"),
        ("> said\n\n---\n\nend", "said\n\nend"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 \\| 3 |\n\na | b", "a | b\n1 | 2 | 3\n\na | b"),
        ("a | b\n--- | ---\n1 | 2\n\nz", "a | b\n1 | 2\n\nz"),
        ("<table><tr><td>a</td><td rowspan=2>b &amp; c<br/>d</td></tr><tr><th>x</th></tr></table>", "a | b & c d\nx"),
        ("<TABLE><TR><TD>a<TD>b<TR><TD>c</TABLE>", "a | b\nc"),
        ("x<sup>2</sup> <b>y</b><br>z <torn> <illegible>", "x2 y\nz <torn> <illegible>"),
        ("<style>p {}</style><p>a</p><!-- b --><p>c</p>", "a\n\nc"),
        ("<think>the page says", ""),
        ("AT&T &lt;1&gt; &copy &section", "AT&T <1> &copy &section"),
        ("<|ref|>text<|/ref|><|det|>[[1,2,3,4]]<|/det|>\nHello", "Hello"),
        ("<|det|>text [1,2,3,4]<|/det|>Hello<|det|>title [1,2", "Hello"),
        ("<otsl><ched>A<ched>B<nl><fcel>1<lcel><nl><ecel><fcel>c<nl></otsl>", "A | B\n1\n| c"),
        ("<doctag><text><loc_1><loc_2>body</text><page_footer>3</page_footer></doctag>", "body\n\n3"),
        ("---\nprimary_language: en\nis_table: False\n---\nText", "Text"),
        ("---\n\na: no front matter", "a: no front matter"),
        ("```markdown\n# Hi\n```", "Hi"),
        ("<page_number>3</page_number><watermark>X</watermark>", "3\n\nX"),
        ("$x^2$ costs $5 and $6, \\(a\\) \\[b\\] $$c$$", "x^2 costs $5 and $6, a b c"),
        ("foo\\_bar \\* \\#1", "foo_bar * #1"),
        ("note[^1]\n\n[^1]: [a](http://b) ![i](x.png)", "note1\n\n1 a"),
        ("a\r\nb\fc\u00a0 d", "a\nb\nc d"),
        ("<td colspan=", ""),
        ("", ""),
    ],
)
def test_markup_becomes_what_a_reader_sees(markup, plain):
    assert to_plain_text(markup) == plain


def test_cells_stand_as_the_caller_wants():
    table = "<table><tr><td>a</td><td></td><td>c | d</td></tr></table>"
    assert to_plain_text(table, cell=" ") == "a c | d"
    assert to_plain_text("| a | b |\n|---|---|\n| 1 | 2 |", cell="\t").split("\n")[1] == "1 2"  # white space is folded


def test_long_loops_of_broken_markup_are_read_through():
    for piece in (
        "<b '",
        "**a ",
        "<td ",
        "<table>",
        "<!--",
        "\\[",
        "[a",
        "![",
        "<|ref|>",
        "|-\n",
        "`",
        " <nl> \t",
        "[^",
    ):
        assert len(to_plain_text(piece * 20_000)) <= 20_000 * len(piece)


PIECES = [*"<>/|*_#$&;[]()!`~-\\\n\r ab1", "<td>", "<table>", "<nl>", "<fcel>", "<|det|>"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_text_makes_it_fail_and_plain_letters_stay(text):
    plain = to_plain_text(text)
    assert plain == plain.strip() and "\n\n\n" not in plain and "\0" not in plain
    assert to_plain_text("Zz zZ\n\n" + text).startswith("Zz zZ") or "<|" in text
