"""What INPUT means, and files as a stream of pages. No network."""

import argparse
import gc
import os
import pickle

import pytest
from PIL import Image

from kit.dataset import steady
from kit.files import FileSource
from kit.items import Spool, is_finished, safe_name, where, windows
from kit.seam import Item, Stop
from kit.source import open_source


class Done(dict):
    """Ids that are done, with the pages that each recorded."""

    def pages(self, unit_id):
        return self.get(unit_id)


def options(**given):
    defaults = dict(
        input=None, output="user/out", text_column=None, image_column="image", id_column=None, split="train",
        input_config=None, input_revision=None, max_samples=None, shuffle=False, seed=42, shard=None, dpi=72,
        keep_extension=False,
    )  # fmt: skip
    return argparse.Namespace(**{**defaults, **given})


def source_of(folder, recipe=None, **given):
    return open_source(options(input=str(folder), **given), recipe or {})


def ids(source, done=()):
    return [item.id for item in source.items(Done(done))]


def picture(path, pages=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [Image.new("RGB", (40, 50), (9 * number, 0, 0)) for number in range(pages)]
    more = {"save_all": True, "append_images": frames[1:]} if pages > 1 else {}
    frames[0].save(path, **more)
    return path


@pytest.fixture
def scans(tmp_path, monkeypatch):
    """A folder with every kind of name, as the working directory's `scans`."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scans"
    for name in ("b.png", "a.JPG", "sub/Ä ü.png", "sub/x[1]*?.png", ".hidden.png", ".cache/c.png", "_run/d.png"):
        picture(folder / name)
    picture(folder / "doc.pdf", 3)
    picture(folder / "single.pdf")
    picture(folder / "multi.tif", 2)
    picture(folder / "one.tiff")
    picture(folder / "moving.gif", 2)
    (folder / "notes.txt").write_text("not a page")
    return folder


ALL = [
    "a.JPG", "b.png", "doc.pdf/page_001", "doc.pdf/page_002", "doc.pdf/page_003", "moving.gif/page_001",
    "moving.gif/page_002", "multi.tif/page_001", "multi.tif/page_002", "one.tiff", "single.pdf/page_001",
    "sub/x[1]*?.png", "sub/Ä ü.png",
]  # fmt: skip


@pytest.mark.parametrize(
    "text, expected",
    [
        ("ns/name", ("hub", "ns/name")),
        ("hf://datasets/ns/name", ("hub", "ns/name")),
        ("hf://datasets/ns/name/", ("hub", "ns/name")),
        ("hf://datasets/ns/name/a/*.pdf", ("hub-files", "hf://datasets/ns/name/a/*.pdf")),
        ("hf://datasets/ns/name@refs/pr/1/a.pdf", ("hub-files", "hf://datasets/ns/name@refs/pr/1/a.pdf")),
        ("hf://buckets/ns/name", ("bucket", "hf://buckets/ns/name")),
        ("hf://buckets/ns/name/a/b/", ("bucket", "hf://buckets/ns/name/a/b")),
        ("word", ("local", "word")),
        ("folder/", ("local", "folder/")),
        ("page.png", ("local", "page.png")),
        ("./ns/name", ("local", "./ns/name")),
        ("../name", ("local", "../name")),
        ("/a/b", ("local", "/a/b")),
        ("a/*.png", ("local", "a/*.png")),
        ("scans/sub", ("local", "scans/sub")),
        ("~/x", ("local", os.path.expanduser("~/x"))),
    ],
)
def test_where_says_what_a_name_means(scans, text, expected):
    assert where(text) == expected


@pytest.mark.parametrize(
    "text, words",
    [
        ("a/b/c", "./a/b/c"),
        ("https://huggingface.co/datasets/ns/name", "Type ns/name"),
        ("hf://ns/name", "hf://datasets/ns/name"),
        ("hf://datasets/name", "ns/name"),
        ("hf://datasets/ns/name@main", "--input-revision"),
        ("hf://buckets/ns", "hf://buckets/ns/name"),
        ("s3://bucket/x", "local path"),
        ("a b/c", "./a b/c"),
        ("", "For this folder type a dot"),
    ],
)
def test_where_refuses_nonsense_and_says_what_to_type(text, words):
    with pytest.raises(Stop, match=".*") as stopped:
        where(text)
    assert words in str(stopped.value) and text in str(stopped.value) and stopped.value.code == 2


def test_a_folder_gives_its_pages_in_order(scans):
    source = source_of("scans")
    items = list(source.items(Done()))
    assert [item.id for item in items] == ALL
    assert [item.row for item in items] == [0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8]
    assert [(item.page, item.pages) for item in items[2:5]] == [(1, 3), (2, 3), (3, 3)]
    assert [item.name for item in items if "sub" in item.id or "doc" in item.id] == [
        "doc/page_001", "doc/page_002", "doc/page_003", "sub/x[1]*?", "sub/Ä ü"
    ]  # fmt: skip
    assert items[4].parts == [(str(scans / "doc.pdf"), 2)]
    assert source.total == 9 and source.columns == [] and "9 of 9 files" in source.describe
    assert source.identity == open_source(options(input=str(scans), seed=1), {}).identity


def test_one_file_and_a_glob(scans):
    assert ids(source_of("scans/doc.pdf")) == ["doc.pdf/page_001", "doc.pdf/page_002", "doc.pdf/page_003"]
    assert ids(source_of("scans/*.png")) == ["b.png"]
    assert ids(source_of("scans/**/*.png")) == ["b.png", "sub/x[1]*?.png", "sub/Ä ü.png"]
    assert ids(source_of("scans/sub/x[1]*?.png")) == ["x[1]*?.png"]


@pytest.mark.parametrize("name, words", [("nothing", "no such file"), ("scans/notes.txt", ".png"), ("empty", ".pdf")])
def test_nothing_to_read_is_a_stop(scans, name, words):
    (scans.parent / "empty").mkdir()
    with pytest.raises(Stop, match=name) as stopped:
        source_of(f"./{name}")
    assert words in str(stopped.value) and stopped.value.code == 2


def test_two_inputs_with_one_output_name(scans):
    picture(scans / "sub/Ä ü.jpg")
    with pytest.raises(Stop, match="sub/Ä ü.*--keep-extension"):
        source_of("scans", output="out")
    kept = source_of("scans", output="out", keep_extension=True)
    names = [item.name for item in kept.items(Done())]
    assert {"sub/Ä ü.png", "sub/Ä ü.jpg", "doc.pdf/page_001"} <= set(names) and len(set(names)) == len(names)
    assert len(ids(source_of("scans", output="user/out"))) == len(ALL) + 1


def test_the_output_folder_is_no_input(scans):
    picture(scans / "out/page.png")
    assert "out/page.png" in ids(source_of("scans"))
    assert ids(source_of("scans", output="scans/out")) == ALL
    assert "out/page.png" in ids(source_of("scans", output="scans/outer"))
    assert ids(source_of("scans/sub", output="scans")) == ["x[1]*?.png", "Ä ü.png"]
    assert "b.png" in ids(source_of("scans", output="."))
    (scans / "notes.md").write_text("# Notes")
    with pytest.raises(Stop, match="overwritten"):
        source_of("scans", {"input": "text"}, output="./scans")


def test_a_broken_document_is_one_item_with_the_reason(scans):
    (scans / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing more")
    (scans / "empty.tif").write_bytes(b"")
    items = {item.id: item for item in source_of("scans").items(Done())}
    assert len(items) == len(ALL) + 2
    for name in ("broken.pdf", "empty.tif"):
        assert items[name].error and items[name].parts == [] and items[name].pages == 1
    assert all(item.error is None for id, item in items.items() if id in ALL)


def test_what_is_done_is_not_opened(scans, monkeypatch):
    opened = []
    monkeypatch.setattr("kit.items.count_pages", lambda data: opened.append(os.path.basename(data)) or 3)
    done = {id: 3 if "doc" in id else 2 if "page" in id else 1 for id in ALL} | {"single.pdf/page_001": 1}
    assert ids(source_of("scans"), done) == [] and opened == []
    del done["doc.pdf/page_002"]
    assert ids(source_of("scans"), done) == ["doc.pdf/page_002"] and opened == ["doc.pdf"]
    assert ids(source_of("scans"), {"broken.pdf": 1, "doc.pdf": 1})[:3] == ["a.JPG", "b.png", "moving.gif/page_001"]


@pytest.mark.parametrize("recipe", [{}, {"pages_per_unit": 2}, {"pages_per_unit": None}])
def test_shards_are_a_partition(scans, recipe):
    whole = ids(source_of("scans", recipe))
    shards = [ids(source_of("scans", recipe, shard=(index, 3))) for index in range(3)]
    assert sorted(sum(shards, [])) == sorted(whole) and len(set(whole)) == len(whole)
    assert sum(source_of("scans", recipe, shard=(index, 3)).total for index in range(3)) == 9


def test_samples_are_the_first_or_drawn_by_the_seed(tmp_path):
    for number in range(20):
        picture(tmp_path / f"{number:02d}.png")
    assert ids(source_of(tmp_path, max_samples=2)) == ["00.png", "01.png"]
    assert len(ids(source_of(tmp_path, max_samples=99))) == 20
    # random.Random(42).sample(range(20), 5): a seed means the same rows for good
    assert ids(source_of(tmp_path, max_samples=5, shuffle=True)) == ["00.png", "03.png", "07.png", "08.png", "16.png"]
    assert ids(source_of(tmp_path, max_samples=5, shuffle=True, seed=7)) != ids(
        source_of(tmp_path, max_samples=5, shuffle=True)
    )
    drawn = [ids(source_of(tmp_path, max_samples=5, shuffle=True, shard=(index, 2))) for index in range(2)]
    assert sorted(sum(drawn, [])) == ids(source_of(tmp_path, max_samples=5, shuffle=True))


def test_text_files(tmp_path):
    (tmp_path / "a.md").write_text("# Ä", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    picture(tmp_path / "c.png")
    first, second = source_of(tmp_path, {"input": "text"}).items(Done())
    assert (first.id, first.text, first.parts) == ("a.md", "# Ä", []) and "UTF-8" in second.error
    [(names, table)] = source_of(tmp_path, {"input": "text"}).tables()
    assert names == ["a.md", "b.txt"] and table.column("text").to_pylist() == ["# Ä", None]


def test_tables_of_files(scans):
    (scans / "sub/Ö.pdf").write_bytes(b"%PDF-1.7 broken")
    source = source_of("scans")
    [(names, table)] = source.tables()
    assert names == table.column("file_name").to_pylist() == [*ALL, "sub/Ö.pdf"]
    images = dict(zip(names, table.column("image").to_pylist(), strict=True))
    assert images["a.JPG"] == {"bytes": (scans / "a.JPG").read_bytes(), "path": "a.JPG"}
    assert images["multi.tif/page_002"]["bytes"].startswith(b"\xff\xd8") and images["sub/Ö.pdf"] is None
    decoded = source.features["image"].decode_example(images["multi.tif/page_002"])
    assert decoded.size == (40, 50) and abs(decoded.getpixel((5, 5))[0] - 9) < 4
    [(_, light)] = source.tables(["file_name"])
    assert light.column_names == ["file_name"]
    [(sampled, _)] = source_of("scans", max_samples=3, shard=(0, 2)).tables()
    assert sampled == ALL[:5]


def test_windows_of_a_document(scans):
    items = list(source_of("scans", {"pages_per_unit": 2}).items(Done()))
    assert [item.id for item in items] == [
        "pages_0001-0002", "doc.pdf/pages_0001-0002", "doc.pdf/pages_0003-0003", "moving.gif/pages_0001-0002",
        "multi.tif/pages_0001-0002", "pages_0006-0006", "single.pdf/page_001", "sub/pages_0001-0002",
    ]  # fmt: skip
    by_id = {item.id: item for item in items}
    assert by_id["doc.pdf/pages_0003-0003"].parts == [(str(scans / "doc.pdf"), 2)]
    assert (by_id["doc.pdf/pages_0003-0003"].page, by_id["doc.pdf/pages_0003-0003"].pages) == (3, 3)
    assert [os.path.basename(path) for path, _ in by_id["pages_0001-0002"].parts] == ["a.JPG", "b.png"]
    [(names, table)] = source_of("scans", {"pages_per_unit": 2}).tables()
    assert names == [item.id for item in items]


def test_windows_resume(scans, monkeypatch):
    recipe = {"pages_per_unit": 2}
    whole = {item.id: item.pages for item in source_of("scans", recipe).items(Done())}
    for missing in whole:
        done = {id: pages for id, pages in whole.items() if id != missing}
        assert ids(source_of("scans", recipe), done) == [missing]
    opened = []
    monkeypatch.setattr("kit.items.count_pages", lambda data: opened.append(os.path.basename(data)) or 1)
    assert ids(source_of("scans", recipe), whole) == [] and opened == ["one.tiff"]


def test_a_whole_document_is_one_unit(scans):
    recipe = {"pages_per_unit": None}
    items = {item.id: item for item in source_of("scans", recipe).items(Done())}
    assert [(frame, items["doc.pdf"].name) for _, frame in items["doc.pdf"].parts] == [
        (0, "doc"),
        (1, "doc"),
        (2, "doc"),
    ]
    assert list(items) == [
        "a.JPG", "b.png", "doc.pdf", "moving.gif", "multi.tif", "one.tiff", "single.pdf", "sub/x[1]*?.png",
        "sub/Ä ü.png",
    ]  # fmt: skip
    assert ids(source_of("scans", recipe), {"doc.pdf": 3}) == [id for id in items if id != "doc.pdf"]


def test_windows_start_where_they_would_without_gaps():
    pages = [Item(f"d/page_{n:03d}", 0, "d", parts=[("x", n)], page=n, pages=7) for n in (1, 2, 3, 4, 6, 7)]
    grouped = list(windows(iter(pages), 3, lambda item: ("d", "d", item.page)))
    assert [(item.id, len(item.parts)) for item in grouped] == [
        ("d/pages_0001-0003", 3), ("d/pages_0004-0004", 1), ("d/pages_0006-0006", 1), ("d/pages_0007-0007", 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "done, n, expected",
    [
        ({}, 1, False),
        ({"x": 1}, 1, True),
        ({"x": 3}, 1, False),
        ({"x": 3, "x/page_002": 3, "x/page_003": 3}, 1, True),
        ({"x/page_001": 2}, 1, False),
        ({"x/page_001": 2, "x/page_002": 2}, 1, True),
        ({"x/page_002": 2}, 1, False),
        ({"x": None}, 1, True),
        ({"x": 9}, None, True),
        ({"x/pages_0001-0004": 6}, 4, False),
        ({"x/pages_0001-0004": 6, "x/pages_0005-0006": 6}, 4, True),
        ({"x/pages_0001-0003": 3}, 4, True),
    ],
)
def test_is_finished_goes_by_what_the_first_page_recorded(done, n, expected):
    assert is_finished("x", Done(done), n) is expected


def test_a_spool_goes_with_its_last_user():
    spool = Spool(".tif")
    item = Item("a", 0, "a", parts=[(spool, 0)])
    travelled = pickle.loads(pickle.dumps(item)).parts[0][0]
    assert type(travelled) is str and travelled == spool and travelled.endswith(".tif")
    del spool
    gc.collect()
    assert os.path.exists(travelled)
    del item
    gc.collect()
    assert not os.path.exists(travelled)


def test_reading_goes_on_behind_the_last_row_after_a_lost_connection(monkeypatch):
    monkeypatch.setattr("kit.storage.time.sleep", lambda seconds: None)
    opened = []

    def open_at(row):
        opened.append(row)
        for start in range(row, 6, 2):
            if start == 4 and len(opened) < 3:
                raise ConnectionError("reset by peer")
            yield list(range(start, start + 2)), f"table {start}"

    assert [rows for rows, _ in steady(open_at)] == [[0, 1], [2, 3], [4, 5]]
    assert opened == [0, 4, 4]


def test_an_error_that_stays_is_a_stop_that_resumes():
    def open_at(row):
        raise ValueError("not a parquet file")
        yield

    with pytest.raises(Stop, match="not a parquet file.*The same command resumes") as stopped:
        list(steady(open_at))
    assert stopped.value.code == 1


@pytest.mark.parametrize("unit_id", ["a/b", "..", ".hidden", "a\0b", "C:\\x", "x?*", "Ü 1", "a%2Fb", "", "x" * 500])
def test_safe_names_are_distinct_and_stay_in_the_folder(unit_id):
    name = safe_name(unit_id)
    assert not set(name) & set('/\\\0:?*"<>|') and name not in (".", "..") and len(name.encode()) < 256
    assert name != safe_name(unit_id + "/") and safe_name("Ü 1") == "Ü 1"


def test_a_list_of_many_files_is_all_that_is_held(tmp_path, monkeypatch):
    """Nothing is opened by listing, and one document at a time by reading."""
    for number in range(50):
        (tmp_path / f"{number}.pdf").write_bytes(b"x")
    opened = []
    monkeypatch.setattr("kit.items.count_pages", lambda data: opened.append(data) or 1)
    source = open_source(options(input=str(tmp_path)), {})
    assert isinstance(source, FileSource) and opened == []
    items = source.items(Done())
    next(items), next(items)
    assert len(opened) == 2
