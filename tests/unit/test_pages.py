import functools
import io
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from kit.pages import PAGE_BYTES, PAGE_PIXELS, count_pages, fit, open_page, sha256_of, source_bytes
from kit.seam import PageError
from tests.gnarly import BROKEN, LARGE, LARGE_READABLE, READABLE, SIZE, SQUARE, built, page, saved, tiff

DPI = 144


def sides(size):
    return st.tuples(*[st.integers(1, size)] * 2)


@functools.cache
def large(name):
    return LARGE_READABLE[name].build()


def square_corner(image):
    """The corner that holds the black square: ("left" or "right", "top" or "bottom")."""
    grey = np.asarray(image.convert("L"))
    depth = SQUARE[2] + 8
    corners = {
        (x, y): grey[rows, columns].mean()
        for x, columns in (("left", slice(0, depth)), ("right", slice(-depth, None)))
        for y, rows in (("top", slice(0, depth)), ("bottom", slice(-depth, None)))
    }
    return min(corners, key=corners.get)


@pytest.mark.parametrize("name", READABLE)
def test_readable_files(name):
    case = READABLE[name]
    data = built(name)
    assert count_pages(data) == len(case.texts)
    for frame in range(len(case.texts)):
        opened = open_page(data, frame, dpi=DPI)
        assert (opened.width, opened.height) == case.size
        assert opened.image.size == case.size
        assert opened.image.mode == "RGB"
        assert opened.partial is case.partial
        assert opened.dpi == (DPI if name.endswith(".pdf") else None)
        grey = np.asarray(opened.image.convert("L"))
        assert grey.min() < 40, "black ink stays black"
        assert np.median(grey) > 225, "white paper stays white"
        assert (grey < 128).mean() < 0.2
    with pytest.raises(PageError, match=f"no page {len(case.texts) + 1}|directory out of range"):
        open_page(data, len(case.texts))


@pytest.mark.parametrize("name", [name for name in READABLE if "turned" in name])
def test_pages_are_upright(name):
    assert square_corner(open_page(built(name), dpi=DPI).image) == ("left", "top")


def test_orientation_stays_right_when_the_page_is_reduced():
    opened = open_page(built("turned-6.jpg"), bounds={"max_side": 150})
    assert opened.image.size == (150, 60)
    assert (opened.width, opened.height) == SIZE
    assert np.asarray(opened.image.convert("L"))[3:9, 3:9].max() < 60


def test_frames_differ():
    for name in ("frames.tif", "frames.gif", "pages.pdf"):
        pages = [np.asarray(open_page(built(name), frame, dpi=DPI).image) for frame in range(3)]
        assert not np.array_equal(pages[0], pages[1])
        assert not np.array_equal(pages[1], pages[2])


def test_annotations_of_a_pdf_are_drawn():
    assert square_corner(open_page(built("pages.pdf"), dpi=DPI).image) == ("left", "top")


@pytest.mark.parametrize(
    ("black", "white", "expected"),
    [
        (3000, 60_000, (3000 / 257, 60_000 / 257)),
        (0, 65_535, (0, 255)),
        (1000, 30_000, (1000 / 257, 30_000 / 257)),  # a dark 16-bit scan is not stretched
        (100, 4095, (100 / 4095 * 255, 255)),
        (10, 1000, (10 / 1023 * 255, 1000 / 1023 * 255)),
        (3, 250, (3, 250)),  # 8-bit values in 16 bits
    ],
)
def test_scale_of_16_bit_grey(black, white, expected):
    pixels = np.full((40, 60), white, np.uint16)
    pixels[10:20, 10:50] = black
    for data in (saved(Image.fromarray(pixels), "PNG"), saved(Image.fromarray(pixels), "TIFF"), tiff((pixels, 1, 0))):
        grey = np.asarray(open_page(data).image)[..., 0]
        assert grey[15, 30] == pytest.approx(expected[0], abs=1)
        assert grey[2, 2] == pytest.approx(expected[1], abs=1)


@pytest.mark.parametrize(
    ("black", "white", "expected"),
    [
        (0.1, 0.9, (25.5, 229.5)),
        (10.0, 240.0, (10, 240)),
        (257.0, 60_000.0, (1, 60_000 / 257)),
        (-5.0, 12.0, (0, 255)),  # no usual range: smallest to largest
        (np.nan, 1.0, (255, 255)),
    ],
)
def test_scale_of_floats(black, white, expected):
    pixels = np.full((40, 60), white, np.float32)
    pixels[10:20, 10:50] = black
    grey = np.asarray(open_page(saved(Image.fromarray(pixels), "TIFF")).image)[..., 0]
    assert grey[15, 30] == pytest.approx(expected[0], abs=1)
    assert grey[2, 2] == pytest.approx(expected[1], abs=1)


def test_blank_pages_stay_what_they_are():
    for value, dtype in ((65_535, np.uint16), (1.0, np.float32), (0, np.uint16), (0.0, np.float32)):
        image = open_page(saved(Image.fromarray(np.full((30, 30), value, dtype)), "TIFF")).image
        assert image.getextrema() == ((255, 255) if value else (0, 0),) * 3


def test_what_a_cut_file_lacks_is_white():
    for name in ("half.jpg", "half.png"):
        grey = np.asarray(open_page(built(name)).image.convert("L"))
        assert grey[: SIZE[1] // 4].min() < 40
        assert (grey[-SIZE[1] // 4 :] > 250).all()


def test_bounds():
    picture = Image.new("RGB", (1000, 500))
    assert fit(picture, None) is picture
    assert fit(picture, {}) is picture
    assert fit(picture, {"max_side": 2000, "max_pixels": None}) is picture
    assert fit(picture, {"max_side": 100}).size == (100, 50)
    assert fit(picture, {"max_pixels": 5000, "resample": "bicubic"}).size == (100, 50)
    assert fit(Image.new("L", (5000, 2)), {"max_side": 100}).size == (100, 1)
    with pytest.raises(KeyError):
        fit(picture, {"max_side": 100, "resample": "best"})


@given(sides(400), st.integers(1, 500), st.integers(1, 100_000))
def test_fit_keeps_its_bounds(size, max_side, max_pixels):
    width, height = fit(Image.new("L", size), {"max_side": max_side, "max_pixels": max_pixels}).size
    assert 1 <= width <= size[0] and 1 <= height <= size[1]
    assert max(width, height) <= max_side
    assert width * height <= max_pixels or min(width, height) == 1
    if size[0] <= max_side and size[1] <= max_side and size[0] * size[1] <= max_pixels:
        assert (width, height) == size


@given(sides(300))
@settings(max_examples=40, deadline=None)
def test_jpeg_2000_reduced_on_decode_at_every_size(size):
    """Pillow fails at some levels for some sizes; those have to be passed over."""
    opened = open_page(saved(Image.new("L", size, 200), "JPEG2000"), bounds={"max_side": 20})
    assert (opened.width, opened.height) == size
    assert opened.image.getextrema() == ((200, 200),) * 3


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name):
    with pytest.raises(PageError, match=BROKEN[name][1]):
        open_page(built(name))


def test_no_file():
    for function in (open_page, count_pages, source_bytes, sha256_of):
        with pytest.raises(PageError, match="null"):
            function(None)
        with pytest.raises(PageError, match="No such file"):
            function("/nowhere/page.png")


@pytest.mark.parametrize("name", ["broken.pdf", "encrypted.pdf", "empty.pdf", "zero-bytes.png"])
def test_broken_files_cannot_be_counted(name):
    with pytest.raises(PageError):
        count_pages(built(name))


def test_counting_looks_at_the_first_bytes_only():
    assert count_pages(built("turned-1.jpg")[:20]) == 1
    assert count_pages(built("palette.png")[:20]) == 1


def test_a_pdf_without_pages_is_not_called_encrypted():
    """pdfium reports its last error code for such a file, whatever file that code came from."""
    for _ in range(2):
        with pytest.raises(PageError, match="needs a password"):
            open_page(built("encrypted.pdf"))
        with pytest.raises(PageError, match="no pages"):
            open_page(built("empty.pdf"))


@pytest.mark.parametrize("name", ["pages.pdf", "frames.tif", "turned-6.jpg"])
def test_a_path_and_its_bytes_give_the_same_page(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(built(name))
    frames = count_pages(str(path))
    assert frames == count_pages(built(name))
    for frame in range(frames):
        assert open_page(str(path), frame).image == open_page(built(name), frame).image
    assert source_bytes(str(path)) == built(name)
    assert sha256_of(str(path)) == sha256_of(built(name))


def test_a_pdf_that_changes_on_disk_is_opened_again(tmp_path):
    path = tmp_path / "file.pdf"
    path.write_bytes(built("pages.pdf"))
    assert count_pages(str(path)) == 3
    path.write_bytes(built("scan.pdf"))
    assert count_pages(str(path)) == 1


def test_a_uri_is_fetched_once_for_all_its_pages(monkeypatch):
    fetched = []

    class Hub:
        def cat_file(self, uri):
            fetched.append(uri)
            if uri.endswith("missing.pdf"):
                raise FileNotFoundError(uri)
            return built("pages.pdf")

    monkeypatch.setattr("huggingface_hub.HfFileSystem", Hub)
    uri = "hf://datasets/library/scans/pages.pdf"
    for frame in range(count_pages(uri)):
        assert open_page(uri, frame).image == open_page(built("pages.pdf"), frame).image
    assert fetched == [uri]
    with pytest.raises(PageError, match="cannot fetch hf://.*missing.pdf: FileNotFoundError"):
        open_page("hf://datasets/library/scans/missing.pdf")


def test_a_large_pdf_page_is_drawn_smaller():
    opened = open_page(built("pages.pdf"), dpi=4800, bounds={"max_side": 1000})
    assert (opened.width, opened.height) == (30_000, 15_200)
    assert opened.image.size == (1000, 506)
    assert opened.width * opened.height > PAGE_PIXELS


@pytest.mark.parametrize("name", ["page.heic", "page.jxl", "float-rgb.tif"])
def test_a_missing_library_is_named(name, monkeypatch):
    library = "pillow_heif" if name.endswith("heic") else "imagecodecs"
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PageError, match=f"--with {library.replace('_', '-')}"):
        open_page(built(name))


@pytest.mark.parametrize("name", LARGE_READABLE)
def test_200_megapixels(name):
    assert LARGE[0] * LARGE[1] > 200_000_000
    whole = open_page(large(name))
    assert (whole.width, whole.height) == LARGE
    assert whole.image.width * whole.image.height <= PAGE_PIXELS
    fitted = open_page(large(name), bounds={"max_side": SIZE[0]})
    assert (fitted.width, fitted.height) == LARGE
    assert fitted.image.size == SIZE
    difference = np.asarray(fitted.image.convert("L")).astype(int) - np.asarray(page())
    assert np.abs(difference).mean() < 2


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak memory from /proc")
def test_memory_of_200_megapixels(tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(large("large-one-bit.png"))
    code = (
        "import sys; from kit.pages import open_page; open_page(sys.argv[1], bounds={'max_side': 1540});"
        "print(open('/proc/self/status').read())"  # ru_maxrss would be the parent's
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    peak = int(out.split("VmHWM:")[1].split()[0]) * 1024
    assert LARGE[0] * LARGE[1] < peak < PAGE_BYTES / 4


def test_pillow_still_refuses_cut_files_elsewhere():
    open_page(built("half.jpg"))
    open_page(built("half-progressive.jpg"))
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(built("half.jpg"))).load()


def opens_or_says_why(data):
    try:
        for frame in range(min(count_pages(data), 4)):
            opened = open_page(data, frame, dpi=30)
            assert opened.image.mode == "RGB"
            assert opened.width > 0 and opened.height > 0
    except PageError as error:
        assert len(str(error)) > 10


SIGNATURES = [b"%PDF-1.4\n", b"II*\0\x08\0\0\0", b"MM\0*", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM"]
fuzzed = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@given(st.sampled_from([b"", *SIGNATURES]), st.binary(max_size=400))
@example(b"%PDF-", b"")
@fuzzed
def test_random_bytes(signature, data):
    opens_or_says_why(signature + data)


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.filterwarnings("ignore")
def test_cut_and_damaged_files(name):
    data = built(name)
    random = np.random.default_rng(len(data))
    for length in (1, 5, 13, 40, len(data) // 3, len(data) - 30, len(data) - 1):
        opens_or_says_why(data[:length])
    for _ in range(6):
        damaged = bytearray(data)
        for position in random.integers(0, min(len(data), 2000), 3):
            damaged[position] = random.integers(256)
        opens_or_says_why(bytes(damaged))


@pytest.mark.parametrize("name", ["turned-1.jpg", "progressive.jpg", "palette.png", "clear-rgba.png"])
def test_a_cut_file_never_passes_for_a_whole_one(name):
    data = built(name)
    assert open_page(data[: len(data) * 2 // 3]).partial


def test_data_may_be_any_buffer():
    assert open_page(memoryview(built("palette.png"))).image.size == SIZE
    assert open_page(bytearray(built("pages.pdf")), dpi=DPI).image.size == (900, 456)
    assert source_bytes(bytearray(b"abc")) == b"abc"
