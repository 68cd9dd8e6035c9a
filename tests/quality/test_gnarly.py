"""Real OCR reads the known text of every difficult file, once `open_page` has opened it."""

import logging

import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

from kit.pages import count_pages, open_page
from tests.gnarly import LARGE_READABLE, READABLE, built

# half.jpg ends inside its only line of text; tests/unit looks at what is left of it
PAGES = [(name, frame) for name, case in READABLE.items() for frame in range(len(case.texts)) if name != "half.jpg"]


@pytest.fixture(scope="module")
def read():
    rapidocr = pytest.importorskip("rapidocr")
    logging.getLogger("RapidOCR").setLevel(logging.ERROR)
    # The classifier of upside-down lines turns upright ones; 320 px suffice for a page with 40 px letters.
    engine = rapidocr.RapidOCR(params={"Global.use_cls": False, "Det.limit_side_len": 320})

    def read(image):
        result = engine(np.asarray(image)[:, :, ::-1])
        return " ".join(result.txts or ())

    return read


def character_error_rate(found, expected):
    found, expected = ("".join(text.split()) for text in (found, expected))
    return Levenshtein.distance(found, expected) / len(expected)


@pytest.mark.parametrize(("name", "frame"), PAGES)
def test_text_is_read(name, frame, read):
    opened = open_page(built(name), frame, dpi=144, bounds={"max_side": 900})
    found = read(opened.image)
    assert character_error_rate(found, READABLE[name].texts[frame]) <= 0.05, found


def test_every_frame_is_counted():
    assert all(count_pages(built(name)) == len(case.texts) for name, case in READABLE.items())


@pytest.mark.parametrize("name", LARGE_READABLE)
def test_text_of_200_megapixels_is_read(name, read):
    opened = open_page(LARGE_READABLE[name].build(), bounds={"max_side": 1540})
    found = read(opened.image)
    assert character_error_rate(found, LARGE_READABLE[name].texts[0]) <= 0.05, found
