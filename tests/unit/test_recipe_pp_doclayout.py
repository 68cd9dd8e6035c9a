"""PP-DocLayoutV3: detections to blocks. The real class runs in tests/engine/test_local_models.py."""

import json

import pytest

from tests.unit.recipe_file import load_recipe

layout = load_recipe("pp-doclayout")
NAMES = {0: "text", 1: "doc_title", 2: "table", 3: "ornament"}


class Numbers(list):
    """As much of a tensor as the recipe uses."""

    def tolist(self):
        return list(self)


def options(*words):
    return layout.option_parser(layout.RECIPE, layout.add_options).parse_args(["in", "out", *map(str, words)])


def read(boxes, *words, size=(1000, 1400), polygons=True):
    result = {
        "boxes": Numbers(box for box, _, _ in boxes),
        "labels": Numbers(label for _, label, _ in boxes),
        "scores": Numbers(score for _, _, score in boxes),
    }
    if polygons:
        result["polygon_points"] = [[(b[0], b[1]), (b[2], b[1]), (b[2], b[3])] for b, _, _ in boxes]
    page = layout.Page(None, *size)
    return layout.layout_of(page, result, NAMES, options(*words))


def test_blocks_keep_order_labels_and_pixels():
    parsed = read([([100.4, 50, 900, 99.6], 1, 0.98765), ([100, 120, 500, 700], 0, 0.9), ([0, 0, 30, 30], 3, 0.51)])
    found = [(b["label"], b["raw_label"], b["bbox"], b["confidence"]) for b in parsed.blocks["blocks"]]
    assert found == [
        ("title", "doc_title", [100, 50, 900, 100], 0.9877),
        ("text", "text", [100, 120, 500, 700], 0.9),
        ("other", "ornament", [0, 0, 30, 30], 0.51),
    ]
    assert parsed.markdown == "" and (parsed.blocks["width"], parsed.blocks["height"]) == (1000, 1400)
    assert json.loads(parsed.columns["layout_polygons"])[1] == [[100, 120], [500, 120], [500, 700]]


@pytest.mark.parametrize("size", [(1000, 1400), (1400, 1000)])
def test_boxes_outside_and_without_area(size):
    parsed = read([([-50, -50, 9999, 20], 0, 0.9), ([500, 500, 500, 900], 2, 0.8)], size=size)
    assert [block["bbox"] for block in parsed.blocks["blocks"]] == [[0, 0, size[0], 20], None]


def test_doubles_are_dropped_and_neighbours_are_not():
    boxes = [
        ([100, 100, 500, 300], 0, 0.7),
        ([102, 101, 503, 302], 0, 0.9),  # the same element, surer
        ([102, 101, 503, 303], 2, 0.8),  # the same place, by another label: IoU 0.995
        ([100, 100, 500, 330], 2, 0.6),  # IoU 0.86 with the text: another label may lie there
        ([120, 120, 300, 200], 2, 0.6),  # inside
        ([100, 310, 500, 500], 0, 0.6),
    ]
    kept = [block["bbox"] for block in read(boxes).blocks["blocks"]]
    assert kept == [[102, 101, 503, 302], [100, 100, 500, 330], [120, 120, 300, 200], [100, 310, 500, 500]]
    assert len(read(boxes, "--no-layout-nms").blocks["blocks"]) == 6
    assert len(json.loads(read(boxes).columns["layout_polygons"])) == len(kept)


def test_no_detections_and_models_without_outlines():
    parsed = read([])
    assert (parsed.blocks["blocks"], parsed.columns, parsed.flags) == ([], {"layout_polygons": None}, [])
    parsed = read([([1, 1, 9, 9], 0, 0.9)], polygons=False)
    assert parsed.columns == {"layout_polygons": None} and len(parsed.blocks["blocks"]) == 1


def test_every_label_is_one_of_the_blocks_documents():
    assert set(layout.LAYOUT_LABELS.values()) <= set(layout.BLOCK_LABELS) and len(layout.LAYOUT_LABELS) == 25


def test_overlap():
    assert layout.overlap([0, 0, 10, 10], [0, 0, 10, 10]) == 1
    assert layout.overlap([0, 0, 10, 10], [5, 0, 15, 10]) == pytest.approx(1 / 3)
    assert layout.overlap([0, 0, 10, 10], [10, 0, 20, 10]) == layout.overlap([0, 0, 0, 0], [0, 0, 0, 0]) == 0


def test_devices(monkeypatch):
    monkeypatch.setattr(layout, "gpus", list)
    chosen = options()
    assert layout.check(chosen) == {} and chosen.device == "cpu"
    with pytest.raises(layout.Stop, match="--device cpu"):
        layout.check(options("--device", "gpu"))
    monkeypatch.setattr(layout, "gpus", lambda: [(1, 2)])
    assert layout.check(options("--batch-size", 4)) == {"device": "cuda", "batch": 4}
    assert options("--model-name", "PaddlePaddle/x").model == "PaddlePaddle/x"
