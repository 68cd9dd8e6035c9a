"""Equal pieces at the end of a long answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.tail import TAIL_REPEATS, trim_tail

BODY = "".join(f"line {n}\n" for n in range(300))


@pytest.mark.parametrize(
    "end, kept",
    [
        ("again. " * 10, "again. "),
        ("again. " * 400, "again. "),
        ("again. " * 9, "again. " * 9),
        ("again. " * 400 + "stop", "again. " * 400 + "stop"),
        ("." * 500, ".."),
        ("\n" + "x" * 60 + "y" * 3, "\n" + "x" * 60 + "y" * 3),
        (f"{'a long piece ' * 5}|" * 12, f"{'a long piece ' * 5}|"),
        ("", ""),
    ],
)
def test_one_piece_stays(end, kept):
    assert trim_tail(BODY + end, 2000) == BODY + kept


def test_short_texts_stay():
    text = "again. " * 285
    assert len(text) == 1995
    assert trim_tail(text, 1996) == text
    assert trim_tail(text, 1995) == "again. "


@given(st.text("ab", max_size=40), st.text("abc", min_size=2, max_size=7), st.integers(TAIL_REPEATS, 30))
def test_what_is_cut_was_repetition(start, piece, times):
    text = start + piece * times
    kept = trim_tail(text, 0)
    assert text.startswith(kept) and len(kept) <= len(text) - len(piece)
    cut = text[len(kept) :]
    assert any(kept.endswith(unit) and unit * (len(cut) // len(unit)) == cut
               for length in range(2, len(cut) + 1) if (unit := cut[:length]) and len(cut) % length == 0)  # fmt: skip
