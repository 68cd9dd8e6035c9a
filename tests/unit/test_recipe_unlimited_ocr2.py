"""Unlimited-OCR-2: what is asked of a window, and whose text is whose when a page loops or a mark is missing."""

import json
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kit.pages_apart import talk_apart
from kit.seam import Item, PageError
from tests.unit.recipe_file import load_recipe
from tests.unit.windows import GREEK, LOOP, TEXTS, answer_of, window_of

recipe = load_recipe("unlimited-ocr2")


def options_of(*words):
    options = recipe.option_parser(recipe.RECIPE, recipe.window_options).parse_args(["in", "out", *words])
    recipe.settle(options, recipe.RECIPE, {"serve": None})
    return options


def told(text, count, cut=False):
    return [(s.first, s.last, s.status, s.text) for s in recipe.page_spans(text, count, cut)]


def single(*statuses, texts=TEXTS):
    return [(n, n, status, text) for n, (status, text) in enumerate(zip(statuses, texts, strict=True))]


def test_body_of_a_window():
    unit = window_of(recipe, 2, (2000, 3000))
    (body,) = next(recipe.steps(unit, options_of()))
    images = [{"type": "image", "image": page.image} for page in unit.pages]
    assert body == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Multi page parsing."}, *images]}],
        "images_config": {"image_mode": "base"},
        "skip_special_tokens": False,
        "custom_logit_processor": body["custom_logit_processor"],
        "custom_params": {"ngram_size": 35, "window_size": 1024},
    }
    assert max(unit.pages[0].image.size) == 1280 and unit.pages[0].width == 2000
    complete = recipe.complete(body, options_of(), recipe.RECIPE, unit)
    assert (complete["max_tokens"], complete["temperature"]) == (28000, 0.0)


def test_the_guard_is_a_reference_to_sglangs_class(monkeypatch):
    import pickle
    import types

    body = recipe.pages_body([None, None], "", options_of())
    modules = "sglang sglang.srt sglang.srt.sampling sglang.srt.sampling.custom_logit_processor".split()
    for name in modules:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    guard = type("DeepseekOCRNoRepeatNGramLogitProcessor", (), {})
    sys.modules[modules[-1]].DeepseekOCRNoRepeatNGramLogitProcessor = guard
    assert pickle.loads(bytes.fromhex(json.loads(body["custom_logit_processor"])["callable"])) is guard
    assert "custom_logit_processor" not in recipe.pages_body([None, None], "", options_of("--no-guard"))


def test_a_page_alone_is_read_in_full_detail():
    (body,) = next(recipe.steps(window_of(recipe, 1), options_of("--max-tokens", "5000")))
    assert body["images_config"] == {"image_mode": "gundam"} and body["max_tokens"] == 5000
    assert body["messages"][0]["content"][0] == {"type": "text", "text": "document parsing."}


def test_a_window_fits_the_context():
    table = recipe.RECIPE
    pages = table["pages_per_unit"] * table["image_tokens"]
    assert pages + table["max_tokens"] + 64 <= table["max_model_len"]
    recipe.check_lengths(options_of(), table, {"language_config": {"max_position_embeddings": 32768}})
    with pytest.raises(recipe.Stop, match="--max-tokens"):
        recipe.check_lengths(options_of("--max-tokens", "30000"), table, {})


def test_every_page_has_its_text():
    assert told(answer_of(TEXTS), 4) == single("ok", "ok", "ok", "ok")
    assert told(answer_of(TEXTS).removeprefix("<PAGE>"), 4) == single("ok", "ok", "ok", "ok")
    assert told(answer_of(["", "", *TEXTS[2:]]), 4) == single("ok", "ok", "ok", "ok", texts=["", "", *TEXTS[2:]])


A, B, C, D = TEXTS


@pytest.mark.parametrize(
    "sections, cut, spans",
    [
        # a page loops, and the mark that the server forces is its last
        ([A, LOOP, C, D], False, single("ok", "looped", "ok", "ok", texts=[A, LOOP, C, D])),
        # the forced mark comes on top: one empty section too many, right behind the loop
        ([A, LOOP, "", C, D], False, single("ok", "looped", "ok", "ok", texts=[A, LOOP, C, D])),
        # as many sections as pages, but an empty one behind the loop: what follows may be one page late
        ([A, LOOP, "", C], False, single("ok", "looped", "empty", "unsure", texts=[A, LOOP, "", C])),
        (["", LOOP, C, D], False, single("empty", "looped", "ok", "ok", texts=["", LOOP, C, D])),
        # a surplus that is not explained
        ([A, LOOP, B, C, D], False, [*single("ok", "looped", texts=[A, LOOP]), (2, 3, "shifted", f"{B}\n{C}\n{D}")]),
        ([A, B, C, D, A], False, [(0, 3, "shifted", "\n".join([A, B, C, D, A]))]),
        # a mark is missing
        ([A, B + C, D], False, [(0, 3, "shifted", "\n".join([A, B + C, D]))]),
        ([A, LOOP, C], False, [*single("ok", "looped", texts=[A, LOOP]), (2, 3, "shifted", C)]),
        # the tokens ran out
        ([A, B, C[:9]], True, [*single("ok", "ok", "truncated", texts=[A, B, C[:9]]), (3, 3, "missing", "")]),
        ([A, B, LOOP], True, [*single("ok", "ok", "looped", texts=[A, B, LOOP]), (3, 3, "missing", "")]),
        ([A, LOOP, C[:9]], True, [*single("ok", "looped", texts=[A, LOOP]), (2, 3, "shifted", C[:9])]),
        ([A, B, C, D[:9]], True, single("ok", "ok", "ok", "truncated", texts=[A, B, C, D[:9]])),
        ([], True, [(0, 3, "missing", "")]),
        ([], False, [(0, 3, "missing", "")]),
        # more behind the last page, which loops: kept with it
        ([A, B, C, LOOP, D], False, single("ok", "ok", "ok", "looped", texts=[A, B, C, f"{LOOP}\n{D}"])),
    ],
)
def test_spans(sections, cut, spans):
    assert told(answer_of(sections), 4, cut) == spans


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([*TEXTS, LOOP, "", "<PAGE>", "<|det|>", "text [1, 2", GREEK]), max_size=12),
    st.integers(1, 6),
    st.booleans(),
)
def test_spans_cover_every_page_once_and_keep_all_text(sections, count, cut):
    spans = recipe.page_spans(answer_of(sections), count, cut)
    assert [n for span in spans for n in range(span.first, span.last + 1)] == list(range(count))
    kept = "".join("".join(span.text for span in spans).split())
    assert kept == "".join("".join(sections).replace("<PAGE>", "").split())
    parsed = recipe.window_parsed(window_of(recipe, count, (62, 88)), spans, strip=True)
    ends = [(span["start"], span["end"]) for span in json.loads(parsed.columns["page_spans"])]
    assert all(a <= b for a, b in ends) and ends == sorted(ends) and ends[-1][1] == len(parsed.markdown)


def read(sections, *words, count=4, first=17, size=(620, 877)):
    options, unit = options_of(*words), window_of(recipe, count, size, first)
    reading = recipe.steps(unit, options)
    next(reading)
    with pytest.raises(StopIteration) as end:
        reading.send([recipe.Answer(answer_of(sections))])
    return end.value.value


def test_a_row_says_where_each_page_is():
    result = read(TEXTS, "--strip-grounding")
    spans = json.loads(result.columns.pop("page_spans"))
    assert result.columns == {"status": "ok", "page_start": 17, "page_end": 20} and result.flags == []
    assert [(s["first"], s["last"], s["status"]) for s in spans] == [(n, n, "ok") for n in (17, 18, 19, 20)]
    said = [result.markdown[s["start"] : s["end"]] for s in spans]
    assert said[0] == "# Shipping News\n\nArrived the brig Anna from Cork." and "<|det|>" not in result.markdown
    assert result.markdown == "\n\n".join(said)


def test_the_models_text_stays_tagged():
    result = read(TEXTS)
    assert result.markdown == "\n".join(f"<PAGE>{text}" for text in TEXTS)
    span = json.loads(result.columns["page_spans"])[2]
    assert result.markdown[span["start"] : span["end"]] == TEXTS[2]


@pytest.mark.parametrize("size", [(620, 877), (1500, 500)])
def test_boxes_are_pixels_of_their_own_page(size):
    result = read(
        [A, "", "<|det|>text [0, 0, 999, 999]<|/det|>all<|det|>image [0,500, 5000, 999]<|/det|>", D], size=size
    )
    pages = result.blocks["pages"]
    width, height = size
    assert [(p["page"], p["width"], p["height"], len(p["blocks"])) for p in pages] == [
        (17, width, height, 2), (18, width, height, 0), (19, width, height, 2), (20, width, height, 1)
    ]  # fmt: skip
    assert [b["bbox"] for b in pages[2]["blocks"]] == [[0, 0, width, height], [0, round(500 / 999 * height), *size]]


def test_text_in_doubt_belongs_to_no_single_page():
    result = read([A, B + C, D], "--strip-grounding")
    (span,) = json.loads(result.columns["page_spans"])
    assert span == {"first": 17, "last": 20, "start": 0, "end": len(result.markdown), "status": "shifted"}
    assert result.columns["status"] == "partial" and result.flags == ["shifted"] and result.blocks["pages"] == []


@pytest.mark.parametrize("name", ["unlimited-ocr2", "unlimited-ocr2-saturate", "unlimited-ocr2-live"])
def test_a_page_that_cannot_be_decoded_keeps_its_place(name):
    recipe = load_recipe(name)
    unit = window_of(recipe, 3)
    unit.pages[1] = recipe.BadPage(recipe.PageError("the file is empty"))
    reading = recipe.steps(unit, options_of())
    (body,) = next(reading)
    assert len(body["messages"][0]["content"]) == 3
    with pytest.raises(StopIteration) as end:
        reading.send([recipe.Answer(answer_of([A, C]))])
    spans = json.loads(end.value.value.columns["page_spans"])
    assert [(s["first"], s["status"], s.get("error")) for s in spans] == [
        (1, "ok", None), (2, "unreadable", "the file is empty"), (3, "ok", None),
    ]  # fmt: skip
    assert end.value.value.flags == ["unreadable"] and end.value.value.columns["status"] == "partial"
    unit.pages[0] = unit.pages[2] = unit.pages[1]
    with pytest.raises(recipe.PageError, match="the file is empty"):
        next(recipe.steps(unit, options_of()))


@pytest.mark.parametrize("id, page", [("a/b/pages_0017-0032", 17), ("pages_0001-0016", 1), ("x", 1), ("x/page_003", 1)])
def test_first_page(id, page):
    assert recipe.first_page(recipe.Unit(id, [])) == page


def test_a_failed_page_alone_opens_the_others(tmp_path):
    parts = []
    for n in range(3):
        parts.append((str(tmp_path / f"{n}.png"), 0))
        Image.new("RGB", (40 + n, 30), "white").save(parts[-1][0])
    (tmp_path / "1.png").write_bytes(b"")
    item = Item("doc/pages_0001-0003", 0, "doc", parts, pages=3)
    # the kit's own, since worker processes cannot import a file that a test has loaded
    said = talk_apart(lambda item, outcome: outcome, options_of(), recipe.RECIPE, threading.Event())
    unit, sha256 = said(item, PageError("one of them failed"))
    assert [getattr(page, "width", None) for page in unit.pages] == [40, None, 42] and sha256 is None
    assert "empty" in str(unit.pages[1].problem)


def fake_python(folder, code):
    folder.mkdir(parents=True)
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then exit {code}; fi\n')
    path.chmod(0o755)
    return path


def test_the_server_runs_in_the_environment_that_has_sglang(tmp_path, monkeypatch):
    first, second = fake_python(tmp_path / "uv", 1), fake_python(tmp_path / "sglang", 0)
    monkeypatch.setenv("PATH", f"{first.parent}:{second.parent}:{recipe.os.environ['PATH']}")
    options = options_of("--server-args", "--mem-fraction-static 0.8")
    table = {**recipe.RECIPE, **recipe.check(options)}
    assert options.window == 32 and table["server_python"] == str(second)
    assert recipe.server_command(options, table, 81) == [
        str(second), "-m", "sglang.launch_server", "--model-path", "baidu/Unlimited-OCR-2", "--context-length", "32768",
        "--enable-custom-logit-processor", "--disable-overlap-schedule", "--skip-server-warmup",
        "--host", "127.0.0.1", "--port", "81", "--mem-fraction-static", "0.8",
    ]  # fmt: skip
    with pytest.raises(recipe.Stop, match="needs an NVIDIA GPU"):
        recipe.preflight_sglang(options, table)
    second.unlink()
    with pytest.raises(recipe.Stop, match="No interpreter on PATH has SGLang"):
        recipe.preflight_sglang(options, recipe.RECIPE)
    recipe.preflight_sglang(options_of("--endpoint", "http://x/v1"), recipe.RECIPE)


def test_the_authors_wheel_is_installed_once(tmp_path, monkeypatch):
    model, log = tmp_path / "model", tmp_path / "log"
    (model / "wheel").mkdir(parents=True)
    python = fake_python(tmp_path / "bin", f"$(test -e {log}; echo $?)")
    uv = tmp_path / "bin" / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{recipe.os.environ['PATH']}")
    options, table = options_of("--model", str(model)), {**recipe.RECIPE, "server_python": str(python)}
    recipe.install_wheel(options, table)
    assert not log.exists()  # there is no wheel
    wheel = model / "wheel" / "sglang-0.5.20+uocr2-py3-none-any.whl"
    wheel.write_bytes(b"")
    for _ in range(2):
        recipe.install_wheel(options, table)
    assert log.read_text().splitlines() == [f"pip install --python {python} --no-deps {wheel}"]
    log.unlink()
    uv.write_text("#!/bin/sh\necho broken >&2; exit 2\n")
    with pytest.raises(recipe.Stop, match="broken"):
        recipe.install_wheel(options, table)
