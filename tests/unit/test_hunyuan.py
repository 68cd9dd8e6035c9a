"""The forms in which HunyuanOCR writes places: whole, broken, and hostile."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import hunyuan
from kit.hunyuan import read_spots, spots_blocks
from kit.seam import Stop

LOT7, LOT8 = ("Lot 7", [88, 40, 512, 77], None), ("Lot 8", [88, 90, 512, 126], None)
META = "<hy-meta><layout>{}</layout><{}>{}</{}></hy-meta>"


@pytest.mark.parametrize(
    "text, spots",
    [
        ('[{"box":[88,40,512,77],"text":"Lot 7"}, {"bbox":[88,90,512,126],"text":"Lot 8"}]', [LOT7, LOT8]),
        ('```json\n[{"box": [88, 40, 512, 77], "text": "Lot 7"}]\n```', [LOT7]),
        ("Lot 7(88,40),(512,77)Lot 8(88, 90), (512, 126)", [LOT7, LOT8]),
        ("A (b), c(1,2),(3,4)\n(d) 5(5,6),(7,8)", [("A (b), c", [1, 2, 3, 4], None), ("(d) 5", [5, 6, 7, 8], None)]),
        ("<ref>Lot 7</ref><quad>(88,40),(512,77)</quad><ref>Lot 8</ref><quad>(88,90),(512,126)</quad>", [LOT7, LOT8]),
        ("<quad><pos_88><pos_40><pos_512><pos_77></quad><ref>Lot 7</ref>", [LOT7]),
        (
            "Lot 7" + META.format("section_title", "poly", "(88,40),(512,40),(512,77),(88,77)", "poly")
            + META.format("figure", "quad", "(1,2),(3,4)", "quad"),
            [("Lot 7", [88, 40, 512, 77], "section_title"), ("", [1, 2, 3, 4], "figure")],
        ),
        (
            json.dumps([{"layout_type": "table", "bbox": "(88,40),(512,40),(512,77),(88,77)", "text": "<table>"},
                        {"layout_type": "figure", "bbox": "(1,2),(3,4)"}]),
            [("<table>", [88, 40, 512, 77], "table"), ("", [1, 2, 3, 4], "figure")],
        ),
        ('[{"box": [[1, 2], [3, 2], [3, 4], [1, 4]], "text": "a"}]', [("a", [1, 2, 3, 4], None)]),
        ("没有文字", []),
        ("", []),
        ("[]", []),
    ],
)  # fmt: skip
def test_forms(text, spots):
    assert read_spots(text) == (spots, [])


@pytest.mark.parametrize(
    "text, spots, flags",
    [
        ('[{"box":[88,40,512,77],"text":"Lot 7"},{"box":[88,90', [LOT7], ["repaired"]),
        ('[{"box":[88,40,512,77],"text":"Lot 7"},\n{"box":[88,90,512,126],"text":"Lot 8', [LOT7, LOT8], ["repaired"]),
        (
            "Sale<ref>Lot 7</ref><quad>(88,40),(512,77)</quad>\nand\n<ref>Lot 8</ref><quad>(88,90),(512,126)</quad>end",
            [("Sale", None, None), LOT7, ("and", None, None), LOT8, ("end", None, None)],
            ["repaired"],
        ),
        ('[{"box":[88,40,512,77],"text":"Lot 7"}{"box":[88,90,512,126],"text":"Lot 8"}]', [LOT7, LOT8], ["repaired"]),
        ('[{"box":[1,2,3],"text":"a"},{"box":[88,40,512,77],"text":"Lot 7"}]', [("a", None, None), LOT7], []),
        ("Lot 7(88,40),(512,77)Lot 8(88,9", [LOT7, ("Lot 8(88,9", None, None)], []),
        ("<ref>Lot 7</ref><quad>(88,40),(512,77)</quad><ref>Lot 8", [LOT7, ("Lot 8", None, None)], []),
        ("<ref>Lot</ref><ref>Lot 7</ref><quad>(88,40),(512,77)</quad>", [("Lot", None, None), LOT7], []),
        ("a" + META.format("p", "poly", "(1,2),(3,4)", "poly") + "b<hy-meta><lay",
         [("a", [1, 2, 3, 4], "p"), ("b", None, None)], []),
        ("The page is empty.", [], ["unparsed"]),
        ("{", [], ["unparsed"]),
        ("[" * 99_999, [], ["unparsed"]),
        ("!" * 500, [], ["unparsed"]),
        ("17", [], ["unparsed"]),
    ],
)  # fmt: skip
def test_broken(text, spots, flags):
    assert read_spots(text) == (spots, flags)


def test_blocks():
    blocks = spots_blocks([LOT7, ("<table>", [1, 2, 3, 4], "table"), ("x", None, "stamp"), ("# A", None, "para_title")])
    assert [(b["label"], b["raw_label"], b["format"]) for b in blocks] == [
        ("text", "text", "text"),
        ("table", "table", "html"),
        ("other", "stamp", "markdown"),
        ("heading", "para_title", "markdown"),
    ]


@pytest.mark.parametrize(
    "vllm, transformers, endpoint, fits",
    [("0.24.0", "5.12.1", None, True), ("0.24.0", "5.13.0", None, False), ("0.25.1", "5.16.0", None, True),
     ("0.24.0", "5.13.0", "http://x", True)],
)  # fmt: skip
def test_versions(monkeypatch, vllm, transformers, endpoint, fits):
    monkeypatch.setattr("importlib.metadata.version", {"vllm": vllm, "transformers": transformers}.get)
    options = SimpleNamespace(endpoint=endpoint)
    if fits:
        return hunyuan.check_transformers(options)
    with pytest.raises(Stop, match="transformers<5.13"):
        hunyuan.check_transformers(options)


PIECES = ["(1,2)", ",", "(3, 4)", "<ref>", "</ref>", "<quad>", "</quad>", "<hy-meta>", "</hy-meta>", "<poly>", "{", "}",
          "[", '"box":', "1", '"text":', '"', "a", "\n", "<layout>", "</layout>"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text())
def test_hostile(text):
    spots, flags = read_spots(text)
    assert flags in ([], ["repaired"], ["unparsed"])
    json.dumps(spots_blocks(spots), ensure_ascii=False).encode()


VALUE = st.sampled_from([None, 1e400, -3, 10**400, "(1,2),(3,4)", "\ud83d", {}, True, []])


@given(st.lists(st.dictionaries(st.sampled_from(["box", "bbox", "text", "layout_type"]), VALUE | st.lists(VALUE))))
def test_hostile_json(items):
    spots, _ = read_spots(json.dumps(items))
    json.dumps(spots_blocks(spots), ensure_ascii=False).encode()
