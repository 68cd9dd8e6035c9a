"""The smoke set: what is drawn is what the truth says, the same each time; the check notices what got worse."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.unit.recipe_file import load_recipe

FEW = ["book-skewed", "table-merged", "blank-noisy", "fraktur", "chinese", "three-columns-jpeg"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    assert load_recipe("ocr-smoke").main([str(folder), "--only", *FEW]) == 0
    return folder


def test_every_page_has_its_truth_and_its_strata(pages):
    smoke = load_recipe("ocr-smoke")
    notes = {note["name"]: note for note in map(json.loads, (pages / "pages.jsonl").read_text().splitlines())}
    assert set(notes) == set(FEW) and notes["fraktur"]["language"] == "de (Fraktur)"
    assert (pages / "blank-noisy.txt").read_text() == "" and (pages / "three-columns-jpeg.jpg").is_file()
    assert 24 <= len(smoke.PAGES) <= 30 and len({spec.name for spec in smoke.PAGES}) == len(smoke.PAGES)
    assert {spec.quality for spec in smoke.PAGES} == {"clean", "skewed", "noisy", "low contrast", "jpeg"}
    truths = smoke.read_truth_folder(pages)
    assert set(truths) == set(FEW) and truths["chinese"].text.startswith("修伞的人")
    (table,) = smoke.tables_in(truths["table-merged"].blocks["blocks"][1]["content"])
    assert table[0][0] == ("Ferry", 2, 1) and table[2] == [("North line", 1, 5)]
    assert truths["book-skewed"].text.count("ſ") == 0 < truths["fraktur"].text.count("ſ")


@pytest.mark.parametrize("name", ["book-skewed", "table-merged", "fraktur", "chinese", "three-columns-jpeg"])
def test_boxes_hold_all_that_is_printed(pages, name):
    page = next(path for path in pages.glob(f"{name}.*") if path.suffix in (".png", ".jpg"))
    ink = np.asarray(Image.open(page).convert("L")) < 90
    document = json.loads((pages / f"{name}.json").read_text())
    assert (document["width"], document["height"]) == ink.shape[::-1]
    for block in document["blocks"]:
        x0, y0, x1, y1 = block["bbox"]
        inside = ink[y0 : y1 + 1, x0 : x1 + 1]
        assert inside.any(), block
        if block["label"] != "table" and not name.endswith("skewed"):  # tight: ink at all four sides
            rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
            assert rows[0] < 6 and columns[0] < 6 and len(inside) - rows[-1] < 8, block
        ink[max(0, y0 - 3) : y1 + 3, max(0, x0 - 3) : x1 + 3] = False
    assert ink.mean() <= (0.01 if name.startswith("three") else 0)  # rules between columns are no text


def test_no_letter_is_missing_from_its_font():
    """A font draws the same box for every letter that it does not have."""
    smoke = load_recipe("ocr-smoke")
    faces = {"serif": smoke.GREEK + smoke.RUSSIAN + smoke.POLISH_CZECH + smoke.NOTED + smoke.NOTES + smoke.FRENCH,
             "garamond": smoke.LONG_S, "fraktur": smoke.FRAKTUR, "cjk": smoke.CHINESE + smoke.JAPANESE,
             "hand": smoke.LETTER, "sans": smoke.LIST}  # fmt: skip
    for face, texts in faces.items():
        font = smoke.font_of(face, 40)
        missing = bytes(font.getmask("\ue123"))
        assert not [letter for letter in set("".join(texts)) - {" "} if bytes(font.getmask(letter)) == missing], face


def test_the_same_seed_gives_the_same_bytes(pages, tmp_path):
    smoke = load_recipe("ocr-smoke")
    smoke.main([str(tmp_path / "again"), "--only", "book-skewed", "blank-noisy"])
    smoke.main([str(tmp_path / "other"), "--only", "blank-noisy", "--seed", "1"])
    for name in ("book-skewed.png", "blank-noisy.png", "book-skewed.json"):
        assert (pages / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert (pages / "blank-noisy.png").read_bytes() != (tmp_path / "other/blank-noisy.png").read_bytes()


def test_a_reading_that_got_worse_is_noticed(pages, tmp_path, capsys):
    smoke = load_recipe("ocr-smoke")
    read, figures = tmp_path / "read", tmp_path / "figures.json"
    read.mkdir()
    for name in FEW:
        (read / f"{name}.md").write_text((pages / f"{name}.txt").read_text())
    words = [str(pages), "--check", f"model={read}", "--baseline", str(figures)]
    assert smoke.main(words) == 2 and "write them: --update" in capsys.readouterr().err
    assert smoke.main([*words, "--update"]) == 0
    assert json.loads(figures.read_text())["model"]["cer"] == 0
    assert smoke.main(words) == 0
    (read / "chinese.md").write_text("?")
    (read / "fraktur.md").unlink()
    capsys.readouterr()
    assert smoke.main(words) == 3
    said = capsys.readouterr()
    assert "page chinese has CER" in said.err and "1 pages failed, 0 before" in said.err
    assert json.loads(said.out.splitlines()[-1])["exit"] == 3
    assert smoke.main([str(pages), "--check", f"other={read}", "--baseline", str(figures)]) == 2
    smoke.main([str(tmp_path / "fewer"), "--only", "blank"])
    (read / "blank.md").write_text("")
    assert smoke.main([str(tmp_path / "fewer"), "--check", f"model={read}", "--baseline", str(figures)]) == 2
    assert "another page set" in capsys.readouterr().err
    assert smoke.main([str(tmp_path / "x"), "--only", "no-such-page"]) == 2
