"""The scorer: metrics against reference implementations and worked cases, joining, failures, gates, the Hub."""

import csv
import io
import json
import random
import subprocess
import sys
import warnings

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.metrics_blocks import clean_latex, formulas_in, match_boxes, score_blocks, score_formulas
from kit.metrics_facts import check_fact, read_facts
from kit.metrics_order import order_free
from kit.metrics_stats import holm, paired_p_value, ratio_interval
from kit.metrics_tables import score_tables, tables_in, teds
from kit.metrics_text import (
    bag_scores,
    confusions,
    edit_counts,
    error_rate,
    graphemes,
    is_unspaced,
    normal_text,
    words_of,
)
from kit.scoring import Truth, score_page
from kit.seam import Stop
from tests.unit.recipe_file import OCR, load_recipe

letters = st.text("abc d", min_size=1, max_size=30).map(str.strip).filter(bool)


# ---- Text


@given(letters, letters)
def test_errors_are_those_of_jiwer(true, read):
    for ours, theirs in (
        (edit_counts(true, read), jiwer.process_characters(true, read)),
        (edit_counts(true.split(), read.split()), jiwer.process_words(true, read)),
    ):
        kinds = (ours["substitutions"], ours["insertions"], ours["deletions"])
        assert kinds == (theirs.substitutions, theirs.insertions, theirs.deletions)
        rate = theirs.cer if hasattr(theirs, "cer") else theirs.wer
        assert error_rate(ours) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("true", "read", "errors", "rate"),
    [
        ("abc", "abd", 1, 1 / 3), ("abc", "", 3, 1.0), ("", "", 0, 0.0), ("", "abc", 3, 1.0), ("ab", "abcdef", 4, 2.0),
        ("u\u0308a\u0364", "u\u0308a", 1, 0.5),  # two characters that a reader sees, whatever they are made of
        ("e\u0301", "\u00e9", 0, 0.0), ("日本語", "日木語", 1, 1 / 3),
    ],
)  # fmt: skip
def test_character_errors_by_hand(true, read, errors, rate):
    counts = edit_counts(graphemes(normal_text(true)), graphemes(normal_text(read)))
    assert (counts["errors"], error_rate(counts)) == (errors, pytest.approx(rate))


def test_words_are_those_of_unicode_without_punctuation():
    # Read off dinglehopper 0.11 for the same sentence.
    assert words_of("Hello, world! it's 3.14 — don't stop. AT&T $5 + a_b 12:30") == [
        "Hello", "world", "it's", "3.14", "don't", "stop", "AT", "T", "5", "a_b", "12", "30",
    ]  # fmt: skip
    assert is_unspaced("山脚下 有一家 shop") and not is_unspaced("a word 山") and not is_unspaced("12")


@pytest.mark.parametrize(
    ("profile", "text", "normal"),
    [
        ("diplomatic", "a\tb\r\n\u200bc “d”", "a b\nc “d”"),
        ("standard", "Wort-\nteil und Nord-\nSee „a“ – b…", 'Wortteil und Nord-See "a" - b...'),
        ("standard", "ſ ﬁ", "ſ ﬁ"),
        ("lenient", "Daſs ﬁnden, aͤ ½!", "dass finden ä 1 2"),
    ],
)
def test_profiles(profile, text, normal):
    assert normal_text(text, profile) == normal
    assert normal_text(normal, profile) == normal
    with pytest.raises(ValueError, match="choose diplomatic"):
        normal_text(text, "none")


def test_words_and_blocks_free_of_order():
    assert bag_scores("a b b c".split(), "b a x".split()) == (pytest.approx(2 / 3), 0.5, pytest.approx(4 / 7))
    assert bag_scores([], []) == (1, 1, 1) and bag_scores(["a"], []) == (0, 0, 0)
    blocks = ["The first block says one thing.", "A second block, longer than the first one, says more.", "Third."]
    turned = " ".join([blocks[1].replace("longer", "lonqer"), blocks[0], blocks[2]])
    free = order_free(blocks, turned)
    assert (free["errors"], free["order_errors"], free["order_pairs"]) == (1, 1, 3) and free["found"][0] == 1
    straight = edit_counts(" ".join(blocks), turned)
    assert straight["errors"] > 30  # what order alone does to the plain rate
    assert order_free(blocks, "")["errors"] == sum(map(len, blocks))
    assert order_free(["abc"], "abc and what nobody printed")["errors"] == len("and what nobody printed")
    assert order_free([], "abc")["errors"] == 3
    assert confusions("fine", "flne") == {("i", "l"): 1}


# ---- Tables


def html_of(rows):
    said = ""
    for row in rows:
        spans = [f' rowspan="{high}"' * (high > 1) + f' colspan="{wide}"' * (wide > 1) for _, high, wide in row]
        cells = zip(spans, row, strict=True)
        said += "<tr>" + "".join(f"<td{span}>{cell[0]}</td>" for span, cell in cells) + "</tr>"
    return f"<table>{said}</table>"


def random_table(draw):
    def cell():
        return (
            "".join(draw.choice("ab1") for _ in range(draw.randint(0, 4))),
            draw.choice([1, 1, 2]),
            draw.choice([1, 2]),
        )

    return [[cell() for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 4))]


def test_teds_is_that_of_table_recognition_metric():
    from table_recognition_metric import TEDS

    draw = random.Random(5)
    for number in range(40):
        true, read = random_table(draw), random_table(draw)
        if number % 2:  # alike but for one cell, as real readings are, so that rows in common are left out
            read = [list(row) for row in true]
            read[draw.randrange(len(read))][0] = ("zz", 1, 1)
        pages = [f"<html><body>{html_of(rows)}</body></html>" for rows in (true, read)]
        for structure_only in (False, True):
            theirs = TEDS(structure_only=structure_only)(*pages)
            assert teds(true, read, structure_only) == pytest.approx(theirs, abs=1e-9)
        assert tables_in(html_of(true)) == [true]


def test_tables_are_found_in_every_markup():
    plain = [[("a", 1, 1), ("b", 1, 1)], [("1", 1, 1), ("", 1, 1)]]
    for text in (
        "x\n\n| a | b |\n|---|---|\n| 1 | |\n\ny",
        "<table><thead><tr><th><b>a</b></th><th>b</th></tr></thead><tbody><tr><td>1<td></table>",
        "<otsl><ched>a<ched>b<nl><fcel>1<ecel><nl></otsl>",
    ):
        assert tables_in(text) == [plain]
    assert tables_in("<table><tr><td colspan='x' rowspan=0>a</td></tr></table> | no | table |") == [[[("a", 1, 1)]]]
    assert tables_in("<table>") == [] and tables_in("prose") == []


def test_missing_and_extra_tables_and_one_that_is_too_large(monkeypatch):
    one, other = [[("a", 1, 1)]], [[("b", 1, 1), ("c", 1, 1)]]
    scores = score_tables([one, other], [other])
    assert scores["teds"] == [0.0, 1.0] and scores["extra"] == 0
    assert score_tables([one], [other, one])["teds"] == [1.0] and score_tables([one], [other, one])["extra"] == 1
    monkeypatch.setattr("kit.metrics_tables.MOST_NODE_PAIRS", 2)
    assert score_tables([one], [other])["teds"] == [None]


# ---- Boxes, formulas, facts


def test_boxes_are_matched_for_the_largest_sum():
    # The case of IoUs [[0.59, 0.52], [0.92, 0.23]]: in list order one pair is found, together two.
    true, read = [[0, 0, 100, 100], [0, 0, 100, 64]], [[0, 0, 100, 59], [0, 0, 52, 100]]
    assert len(match_boxes(true, read)) == 2
    assert match_boxes(true, read, labels=(["text", "text"], ["table", "table"])) == []
    assert match_boxes([], read) == []


def document(boxes, width=200, height=100):
    blocks = [{"label": "text", "bbox": box, "content": "x", "format": "text"} for box in boxes]
    return {"schema": "ocr-blocks/1", "width": width, "height": height, "blocks": blocks}


def test_lines_are_told_from_paragraphs_and_sizes_are_brought_together():
    true = document([[0, 0, 100, 40], [100, 0, 200, 100]])
    lines = document([[0, 0, 100, 19], [0, 21, 100, 40], [100, 0, 200, 100], None])
    scores = score_blocks(true, lines)
    assert (scores["matches"], scores["split"], scores["merged"]) == (1, 1, 0)
    assert scores["area_common"] / scores["area_true"] == pytest.approx(0.986, abs=0.001)
    half = document([[0, 0, 50, 20], [50, 0, 100, 50]], 100, 50)
    assert score_blocks(true, half)["matches_75"] == 2
    assert score_blocks(true, document([[0, 0, 200, 100]]))["merged"] == 1
    assert score_blocks(true, None) is None and score_blocks(document([None]), lines) is None
    with pytest.raises(ValueError, match="width"):
        score_blocks(true, {"blocks": []})


def test_formulas():
    assert formulas_in(r"a $x^{2} + y$ \[ \dfrac ab \tag{1} \] <math>z</math> costs $5") == ["x^2+y", r"\fracab", "z"]
    assert clean_latex(r"\left( \mathrm{d} x \right)") == "(dx)"
    assert score_formulas(["ab", "cd"], ["cd"]) == [0.0, 1.0] and score_formulas(["a"], []) == [0.0]


@pytest.mark.parametrize(
    ("fact", "holds"),
    [
        ({"type": "present", "text": "the “wheel” turned"}, True),
        ({"type": "present", "text": "the wheel turnet", "max_diffs": 3}, True),
        ({"type": "present", "text": "THE"}, False),
        ({"type": "present", "text": "THE", "case_sensitive": False}, True),
        ({"type": "present", "text": "last words", "first_n": 10}, False),
        ({"type": "absent", "text": "Page 37"}, True),
        ({"type": "order", "before": "heading", "after": "last"}, True),
        ({"type": "order", "before": "last", "after": "heading"}, False),
        ({"type": "table", "cell": "2", "up": "B", "left": "1", "top_heading": "B", "left_heading": "1"}, True),
        ({"type": "table", "cell": "2", "right": "1"}, False),
        ({"type": "math", "math": "x^{2}"}, True),
        ({"type": "math", "math": "x \\cdot x"}, None),
        ({"type": "format", "text": "A heading", "format": "heading"}, True),
        ({"type": "format", "text": "wheel", "format": "bold"}, False),
        ({"type": "baseline"}, True),
        ({"type": "baseline", "max_length": 3}, False),
        ({"type": "footnote", "marker": "1", "appears_before_marker": "turned"}, True),
        ({"type": "footnote", "marker": "2"}, False),
    ],
)
def test_facts(fact, holds):
    page = '# A heading\n\nthe "wheel" turned[^1]\n\n| A | B |\n|---|---|\n| 1 | 2 |\n\n$x^2$ last words'
    assert check_fact(fact, page) is holds
    if fact["type"] in ("present", "order", "table", "format", "footnote", "baseline"):
        assert check_fact({"max_length": None} | fact, "") is (fact.get("max_length") is not None)


def test_facts_belong_to_pages_and_must_be_facts(tmp_path):
    lines = [{"pdf": "a/x.pdf", "page": 2, "id": "1", "type": "baseline"},
             {"pdf": "a/x.pdf", "page": 1, "id": "2", "type": "baseline", "checked": "rejected"}]  # fmt: skip
    path = tmp_path / "facts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert set(read_facts(path)) == {"a/x/page_002", "a/x_pg2"}
    path.write_text('{"pdf": "x.pdf", "page": 1, "type": "smell"}')
    with pytest.raises(Stop, match="line 1: unknown type 'smell'"):
        read_facts(path)


# ---- How sure


def test_intervals_and_tests():
    low, high = ratio_interval([1, 2, 3, 0, 5, 2], [100] * 6, resamples=500)
    assert 0 < low < 13 / 600 < high < 0.05
    assert ratio_interval([1], [10]) == (None, None) and ratio_interval([0, 0], [0, 0]) == (None, None)
    assert ratio_interval([0, 0, 0], [5, 5, 5], 100) == (0, 0)
    assert paired_p_value([0.1, 0.2, 0.05, 0.3, 0.1, 0.2]) == pytest.approx(2 / 64)  # all 64 sign patterns
    assert paired_p_value([0.0, 0.0]) == 1
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]) and holm([]) == []


# ---- Whole runs


@pytest.fixture
def score(tmp_path, monkeypatch, capsys):
    """`score(*words)` runs the tool in `tmp_path` and returns (exit code, JSON line, what a person was told)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = load_recipe("ocr-score").main([*map(str, words), "--jobs", "1", "--bootstrap", "50"])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]) if said.out else None, said.err

    return run


def write(folder, texts):
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_every_true_page_counts(score, tmp_path):
    truth = tmp_path / "truth"
    write(truth, {"a.txt": "one page", "a.png": "", "b.txt": "", "b.png": "", "doc.txt": "first\fsecond", "doc.pdf": "",
                  "sub/c.md": "| a | b |\n|---|---|\n| 1 | 2 |", "sub/c.jpg": "", "README.md": "not a page",
                  "pages.jsonl": '{"name": "a", "language": "en"}\n'})  # fmt: skip
    write(tmp_path / "good", {"a.md": "one **page**", "b.md": "", "doc/page_001.md": "first",
                              "doc/page_002.md": "second", "more.md": "?",
                              "sub/c.md": "<table><tr><td>a<td>b<tr><td>1<td>2</table>"})  # fmt: skip
    write(tmp_path / "bad", {"a.md": "one pane", "b.md": "words", "sub/c.md": "a b 1 2"})
    code, line, said = score("good", "poor=bad", "--truth", truth, "--by", "language", "--max-cer", "0.3")
    assert code == line["exit"] == 3 and "poor: cer is" in said and len(line["missed"]) == 1
    good, poor = line["runs"]["good"], line["runs"]["poor"]
    assert (good["pages"], good["failed"], good["cer"], good["teds"]) == (5, 0, 0, 1)
    assert (poor["pages"], poor["failed"], poor["coverage"], poor["teds"]) == (5, 2, 0.6, 0)
    # 1 letter of a, 5 of b's words, 5 + 6 letters of the pages that are not there; 8 + 5 + 6 + 7 true ones
    assert poor["cer"] == pytest.approx(17 / 26)
    summary = json.loads((tmp_path / "scores/summary.json").read_text())
    assert summary["runs"]["poor"]["cer_read"] == pytest.approx(6 / 15) and summary["runs"]["poor"]["invented"] == 1
    assert summary["pairs"][0]["a_better"] == 4 and set(summary["groups"]) == {"en", "None"}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "scores/pages.csv").read_text())))
    assert len(rows) == 10 and {row["error"] for row in rows if row["state"] == "error"} == {"no output"}
    assert "| doc/page_002 | 0.00% | failed 100.00% |" in (tmp_path / "scores/report.md").read_text()
    assert {"run": "poor", "true": "g", "read": "n", "count": "1"} in list(
        csv.DictReader(io.StringIO((tmp_path / "scores/confusions.csv").read_text()))
    )
    assert score("good", "--truth", truth, "--max-cer", "0", "--min-coverage", "1")[0] == 0


def test_errors_that_a_recipe_noted_and_boxes(score, tmp_path):
    truth, out = tmp_path / "truth", tmp_path / "out"
    page = document([[0, 0, 100, 40]])
    write(truth, {"a.json": json.dumps(page), "b.txt": "text"})
    failure = {"id": "b.png", "name": "b", "error": "cannot be read"}
    write(out, {"a.md": "x", "a.json": json.dumps({"id": "a.png", "name": "a", "blocks": page}),
                "_run/errors-1.jsonl": json.dumps(failure)})  # fmt: skip
    code, line, _ = score(out, "--truth", truth)
    assert code == 0 and line["runs"]["out"]["failed"] == 1 and line["runs"]["out"]["box_f1"] == 1
    assert "cannot be read" in (tmp_path / "scores/pages.csv").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["out"], "Name the ground truth"),
        (["out", "--truth", "empty"], "holds no ground truth"),
        (["nothing-here", "--truth", "truth"], "is no folder here"),
        (["out", "--truth", "other"], "no output for any page"),
        (["out", "x=out", "out", "--truth", "truth"], "would both be called out"),
        (["out", "--truth", "truth", "--by", "colour"], "--by colour"),
        (["out", "--truth", "twice"], "two texts for a"),
    ],
)
def test_usage(score, tmp_path, words, said):
    write(tmp_path / "out", {"a.md": "a"})
    write(tmp_path / "truth", {"a.txt": "a"})
    write(tmp_path / "other", {"z.txt": "z"})
    write(tmp_path / "twice", {"a.txt": "a", "a.html": "a"})
    (tmp_path / "empty").mkdir()
    code, line, told = score(*words)
    assert code == 2 and line is None and said in told


def test_a_page_with_everything_on_it():
    truth = Truth("<p>H<sup>2</sup>O</p><table><tr><td>1</td></tr></table>\n\n$$a+b$$", None, [{"type": "baseline"}])
    from kit.bench_outputs import Output

    row = score_page(truth, Output("H2O\n\n| 1 |\n|---|\n\n\\[a + b\\]", "ok"))
    assert (row["teds"], row["formula"], row["facts_passed"], row["words_f1"]) == (1, 1, 1, 1) and row["cer"] < 0.4
    lost = score_page(truth, Output(None, "error", "crash"))
    assert (lost["cer"], lost["teds"], lost["formula"], lost["missed"]) == (1, 0, 0, False)
    loop = score_page(Truth("a"), Output("ab " * 200_000, "suspect", None, ("looped",)))
    assert loop["cut"] and loop["read_length"] < 11_000


def test_a_dataset_with_its_truth_beside_the_readings(hub):
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = json.dumps([{"model_id": "org/model", "column_name": "markdown"}])
    table = pa.table({"id": ["1", "2", "3"], "text": ["one", "two", "three"], "lang": ["en", "en", "de"],
                      "markdown": ["one", None, "# three"], "ocr_error": [None, "crashed", None],
                      "inference_info": [info] * 3})  # fmt: skip
    data = io.BytesIO()
    pq.write_table(table, data)
    hub.add_files("user/read", {"data/train-00000-of-00001.parquet": data.getvalue()})
    command = [
        sys.executable,
        OCR / "ocr-score.py",
        "user/read",
        "--truth-column",
        "text",
        "--by",
        "lang",
        "--jobs",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=hub.env, cwd=hub.work, timeout=300)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout.splitlines()[-1])["runs"]["markdown"]
    assert (scores["pages"], scores["failed"]) == (3, 1) and scores["cer"] == pytest.approx(3 / 11)
    assert "crashed" in (hub.work / "scores/pages.csv").read_text()


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ratio_interval([0, 0, 4], [5, 5, 5], 100)[1] > 0
