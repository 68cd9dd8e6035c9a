"""The recipes that need no GPU, run as users run them over samples/, and their text compared with the truth."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.quality.score import character_error_rate, normal

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = ROOT / "samples"

# Bounds on the character error rate, with what was measured (rapidocr 3.10.0, tesseract 5.3.0, tessdata_fast 4.1.0).
PP_OCRV6 = {
    "english": 0.01,  # 0.0 %
    "two-columns": 0.01,  # 0.0 %
    "newspaper": 0.01,  # 0.0 %
    "table": 0.01,  # 0.3 %
    "german-french": 0.01,  # 0.0 %
    "european": 0.01,  # 0.2 %: its alphabet has no inverted exclamation mark
    "chinese": 0.01,  # 0.0 %
    "worn-scan": 0.01,  # 0.0 %
    "report": 0.01,  # 0.0 %
    "letters": 0.01,  # 0.0 %
    "long-s": 0.05,  # 2.7 %: its alphabet has no long s, it reads f or s
    "fraktur": 0.10,  # 6.0 %
    "blank": 0.0,
}
# 0.0 % but for newspaper and german-french 0.1, european 0.2, chinese 1.8, worn-scan 3.9, table 4.0 (it reads the rules
# as "|"), fraktur 4.7 %.
TESSERACT = {
    "eng": {
        "english": 0.02, "two-columns": 0.02, "newspaper": 0.02, "report": 0.02, "letters": 0.02, "table": 0.06,
        "worn-scan": 0.06, "blank": 0.0,
    },
    "deu+fra": {"german-french": 0.02},
    "Latin": {"european": 0.02},
    "Fraktur": {"fraktur": 0.07},
    "chi_sim": {"chinese": 0.04},
}  # fmt: skip


def run(recipe, pages, out, *options):
    """Runs a recipe as a user does; returns its JSON line. No network: proxies and the Hub point nowhere."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, str(ROOT / "ocr" / recipe), str(pages), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def pages_of(stem, out):
    """(read, true) text of every page of a sample; the recipe writes one file per page."""
    truths = (SAMPLES / f"{stem}.txt").read_text(encoding="utf-8").split("\f")
    files = [out / f"{stem}.md"] if len(truths) == 1 else sorted((out / stem).glob("page_*.md"))
    assert len(files) == len(truths), f"{stem} has {len(truths)} pages and {len(files)} were written"
    return [(file.read_text(encoding="utf-8"), truth) for file, truth in zip(files, truths, strict=True)]


def error_rates(stem, out, **policy):
    rates = [character_error_rate(read, truth, **policy) for read, truth in pages_of(stem, out)]
    print(f"{out.name:14} {stem:14} {' '.join(f'{100 * rate:.2f} %' for rate in rates)}")
    return rates


@pytest.fixture(scope="module")
def pp_ocrv6(tmp_path_factory):
    out = tmp_path_factory.mktemp("quality") / "pp-ocrv6"
    report = run("pp-ocrv6.py", SAMPLES, out)
    assert report["pages"] == 15 and report["errors"] == 0
    return out


@pytest.mark.parametrize("stem", PP_OCRV6)
def test_pp_ocrv6(pp_ocrv6, stem):
    assert max(error_rates(stem, pp_ocrv6)) <= PP_OCRV6[stem]


def test_every_sample_has_a_bound():
    stems = {path.stem for path in SAMPLES.glob("*.txt")}
    assert stems == set(PP_OCRV6) == {p.stem for p in SAMPLES.iterdir() if p.suffix in (".png", ".jpg", ".tif", ".pdf")}


@pytest.mark.parametrize("stem", ["english", "two-columns", "newspaper", "worn-scan"])
def test_pp_ocrv6_paragraphs(pp_ocrv6, stem):
    ((read, truth),) = pages_of(stem, pp_ocrv6)
    assert [part.count("\n") for part in read.split("\n\n")] == [
        part.count("\n") for part in truth.strip().split("\n\n")
    ]


def test_pp_ocrv6_boxes(pp_ocrv6):
    """Each block lies on the ink of its line: text of the blocks is the text of the page, top line above the next."""
    document = json.loads((pp_ocrv6 / "english.json").read_text())["blocks"]
    assert (document["schema"], document["width"], document["height"]) == ("ocr-blocks/1", 1100, 940)
    blocks = document["blocks"]
    truth = (SAMPLES / "english.txt").read_text(encoding="utf-8")
    assert normal(" ".join(block["content"] for block in blocks)) == normal(truth)
    assert [block["order"] for block in blocks] == list(range(len(blocks)))
    assert all(0.5 < block["confidence"] <= 1 for block in blocks)
    tops = [block["bbox"][1] for block in blocks]
    assert tops == sorted(tops)
    # The first line was drawn from x = 110, its capital letters start near y = 117.
    x0, y0, x1, y1 = blocks[0]["bbox"]
    assert 95 <= x0 <= 112 and 100 <= y0 <= 120 and 140 <= y1 <= 160 and 960 <= x1 <= 990


def test_pp_ocrv6_boxes_are_pixels_of_the_original(tmp_path):
    """A page above the bound of the recipe is reduced for reading; its boxes are not."""
    from PIL import Image

    page = Image.open(SAMPLES / "english.png").convert("L").crop((0, 60, 1100, 300))
    (tmp_path / "in").mkdir()
    page.resize((8800, 1920), Image.Resampling.BICUBIC).save(tmp_path / "in" / "large.png")
    run("pp-ocrv6.py", tmp_path / "in", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "large.json").read_text())["blocks"]
    assert (document["width"], document["height"]) == (8800, 1920)
    x0, y0, x1, y1 = document["blocks"][0]["bbox"]
    assert abs(x0 - 8 * 108) < 120 and abs(x1 - 8 * 975) < 120 and abs((y0 + y1) / 2 - 8 * 71) < 60
    truth = (SAMPLES / "english.txt").read_text(encoding="utf-8").splitlines()[:4]
    assert character_error_rate((tmp_path / "out" / "large.md").read_text(), " ".join(truth)) <= 0.02


def test_pp_ocrv6_reads_skewed_columns_and_tables_in_order(tmp_path):
    from PIL import Image

    (tmp_path / "in").mkdir()
    for stem, degrees in {"newspaper": -1.9, "table": 1.9}.items():
        page = Image.open(SAMPLES / f"{stem}.png").convert("L")
        sheet = Image.new("L", (page.width + 80, page.height + 80), 255)
        sheet.paste(page, (40, 40))
        sheet.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=255).save(tmp_path / "in" / f"{stem}.png")
    run("pp-ocrv6.py", tmp_path / "in", tmp_path / "skewed")
    for stem in ("newspaper", "table"):
        assert max(error_rates(stem, tmp_path / "skewed")) <= 0.01  # 0.0 and 0.3 %


def languages():
    if not shutil.which("tesseract"):
        return set()
    listing = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True)
    return set(listing.stdout.split())


@pytest.fixture(scope="module")
def tesseract(tmp_path_factory):
    """A function from a `--lang` to the folder with its readings; skips where data for it is not installed."""
    done = {}

    def read(lang):
        missing = set(lang.split("+")) - languages()
        if missing:
            pytest.skip(f"Tesseract has no data for {' '.join(sorted(missing))} here")
        if lang not in done:
            folder = tmp_path_factory.mktemp("tesseract")
            (folder / "in").mkdir()
            for page in SAMPLES.iterdir():
                if page.stem in TESSERACT[lang] and page.suffix != ".txt":
                    shutil.copy(page, folder / "in")
            report = run("tesseract-ocr.py", folder / "in", folder / f"tesseract-{lang}", "--lang", lang, "--hocr")
            assert report["errors"] == 0
            done[lang] = folder / f"tesseract-{lang}"
        return done[lang]

    return read


@pytest.mark.parametrize(("lang", "stem"), [(lang, stem) for lang, stems in TESSERACT.items() for stem in stems])
def test_tesseract(tesseract, lang, stem):
    assert max(error_rates(stem, tesseract(lang))) <= TESSERACT[lang][stem]


def test_tesseract_blocks(tesseract):
    document = json.loads((tesseract("eng") / "english.json").read_text())["blocks"]
    truth = (SAMPLES / "english.txt").read_text(encoding="utf-8")
    assert [block["content"] for block in document["blocks"]] == [line for line in truth.splitlines() if line]
    x0, y0, x1, y1 = document["blocks"][0]["bbox"]
    assert 105 <= x0 <= 115 and 110 <= y0 <= 120 and 140 <= y1 <= 150 and 960 <= x1 <= 980


def test_tesseract_hocr(tesseract):
    """Every word of the page is in the hOCR column, and nothing else."""
    hocr = json.loads((tesseract("eng") / "english.json").read_text())["columns"]["hocr"]
    words = [word.text for word in ElementTree.fromstring(hocr).iter() if word.get("class") == "ocrx_word"]
    assert " ".join(words) == normal((SAMPLES / "english.txt").read_text(encoding="utf-8"))


def test_tesseract_names_the_package_of_a_missing_language(tmp_path):
    if "eng" not in languages():
        pytest.skip("Tesseract is not installed here")
    command = [sys.executable, str(ROOT / "ocr" / "tesseract-ocr.py"), str(SAMPLES), str(tmp_path / "out")]
    environment = {name: value for name, value in os.environ.items() if name != "JOB_ID"}
    done = subprocess.run(
        [*command, "--lang", "eng+uzb_cyrl+Cyrillic"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2
    assert "apt install tesseract-ocr-uzb-cyrl tesseract-ocr-script-cyrl" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("read", "truth", "policy", "rate"),
    [
        ("", "", {}, 0.0),
        ("x", "", {}, 1.0),
        ("a  b\n\nc", "a b c", {}, 0.0),
        ("abcd", "abce", {}, 0.25),
        ("ab cd", "cd ab", {}, 0.8),
        ("u\u0308ber", "\u00fcber", {}, 0.0),
        ("\u017fo", "so", {}, 0.5),
        ("\u017fo", "so", {"long_s": "fold"}, 0.0),
    ],
)
def test_character_error_rate(read, truth, policy, rate):
    assert character_error_rate(read, truth, **policy) == pytest.approx(rate)


def test_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="keep or fold"):
        character_error_rate("a", "b", long_s="drop")
