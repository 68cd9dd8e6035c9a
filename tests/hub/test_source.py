"""Datasets, buckets and files on the Hub as a stream of pages, read by unmodified clients."""

import io
import json
import subprocess
import sys

import pytest
from PIL import Image

from tests.hub.loopback import LoopbackHub
from tests.hub.loopback.client import PROJECT

CLIENT = """
import argparse, io, json, sys
sys.path.insert(0, {project!r})
from kit.seam import Stop
from kit.source import open_source
from kit.pages import source_bytes
from PIL import Image

class Done(dict):
    def pages(self, unit_id):
        return self.get(unit_id)

DEFAULTS = dict(output="user/out", text_column=None, image_column="image", id_column=None, split="train",
    input_config=None, input_revision=None, max_samples=None, shuffle=False, seed=42, shard=None, dpi=72,
    keep_extension=False)

def shade(part):
    data, frame = part
    try:
        image = Image.open(io.BytesIO(source_bytes(data)))
        image.seek(frame)
        return image.convert("RGB").getpixel((1, 1))[0]
    except Exception as error:
        return type(error).__name__

def read(case):
    recipe, done, tables = case.pop("recipe", {{}}), Done(case.pop("done", {{}})), case.pop("tables", False)
    try:
        source = open_source(argparse.Namespace(**{{**DEFAULTS, **case}}), recipe)
        told = dict(describe=source.describe, identity=source.identity, total=source.total, columns=source.columns)
        if tables:
            told["features"] = repr(source.features)
            told["tables"] = [[start, table.num_rows, table.column_names,
                [cell and (cell["bytes"] or b"").hex() for cell in table.column("image").to_pylist()]
                if "image" in table.column_names else None]
                for start, table in source.tables(None if tables is True else tables)]
            return told
        told["items"] = [dict(id=item.id, name=item.name, row=item.row, page=item.page, pages=item.pages,
            error=item.error, text=item.text, shades=[shade(part) for part in item.parts],
            uris=[data for data, _ in item.parts if isinstance(data, str)]) for item in source.items(done)]
        return told
    except Stop as stop:
        return dict(code=stop.code, stop=str(stop))

for line in sys.stdin:
    print(json.dumps([read(case) for case in json.loads(line)]), flush=True)
"""


class Client:
    """A process in which `read` gives what `open_source` makes of each case (options, `recipe`, `done`, `tables`)."""

    def __init__(self, hub):
        code = CLIENT.format(project=str(PROJECT))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=hub.env,
            cwd=hub.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, *cases):
        self.process.stdin.write(json.dumps(cases) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def read(hub, *cases):
    """What a fresh client reads."""
    client = Client(hub)
    try:
        return client.read(*cases)
    finally:
        client.close()


def png(shade):
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def pages(format, count):
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (30, 20), (shade, 0, 0)) for shade in range(count)]
    frames[0].save(buffer, format, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def parquet(cells, group=4, **columns):
    """A parquet file as `datasets` writes it, with image cells of (bytes or None, path), or None."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Value
    from datasets import Image as ImageFeature

    kinds = {name: Value("string" if isinstance(values[0], str) else "int64") for name, values in columns.items()}
    schema = Features({"image": ImageFeature(), **kinds}).arrow_schema
    images = [cell and {"bytes": cell[0], "path": cell[1]} for cell in cells]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": images, **columns}, schema=schema), buffer, row_group_size=group)
    return buffer.getvalue()


CARD = """---
configs:
- config_name: first
  data_files:
  - {split: train, path: "one/train-*.parquet"}
  - {split: test, path: "one/test-*.parquet"}
- config_name: second
  data_files: two/*.parquet
---
"""


def shaded(first, count, **more):
    return parquet(
        [(png(n), f"{n}.png") for n in range(first, first + count)],
        title=[f"title {n}" for n in range(first, first + count)],
        number=list(range(first, first + count)),
        **more,
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A Hub with datasets of several kinds and a bucket, and its client, for tests that only read."""
    with LoopbackHub(tmp_path_factory.mktemp("hub")) as hub:
        fill(hub)
        hub.client = Client(hub)
        yield hub
        hub.client.close()


def fill(hub):
    hub.add_files("user/scans", {f"data/train-0000{n}-of-00003.parquet": shaded(10 * n, 10) for n in range(3)})
    hub.add_files(
        "user/configs",
        {
            "README.md": CARD,
            "one/train-0.parquet": shaded(0, 2),
            "one/test-0.parquet": shaded(50, 3),
            "two/a.parquet": shaded(70, 1),
        },
    )
    cells = [
        (png(0), "a.png"),
        None,
        (b"no image", "b.png"),
        (None, None),
        (pages("TIFF", 3), "c.tif"),
        (pages("PDF", 2), "d.pdf"),
        (b"%PDF-1.7 broken", "e.pdf"),
        (None, "elsewhere/f.png"),
        (None, "/etc/hostname"),
        (None, "https://example.com/x.png"),
        (b"", "g.png"),
    ]
    hub.add_files("user/hostile", {"train.parquet": parquet(cells, kind=["x"] * 11), "elsewhere/f.png": png(99)})
    folder = {f"train/{name}.png": png(n) for n, name in enumerate(["a", "b", "x [1]#ü"])}
    folder["train/metadata.jsonl"] = "\n".join(
        json.dumps({"file_name": f"{name}.png", "text": name.upper()}) for name in ["a", "b", "x [1]#ü", "missing"]
    )
    hub.add_files("user/folder", folder)
    lines = [{"image": f"hf://datasets/user/folder/train/{name}.png", "key": name} for name in "ab"]
    lines += [{"image": f"{hub.url}/datasets/user/folder/resolve/main/train/x%20%5B1%5D%23%C3%BC.png", "key": "ü/1"}]
    lines += [{"image": None, "key": "n"}]
    hub.add_files("user/lines", {"data.jsonl": "\n".join(map(json.dumps, lines))})
    hub.bucket_add(
        "user/shelf",
        {
            "in/b.png": png(2), "in/a [1].png": png(1), "in/sub/Ü #?.png": png(3), "in/doc.pdf": pages("PDF", 2),
            "in/.x/y.png": png(9), "in/_run/z.png": png(9), "in/out/page.png": png(9), "in/t.tif": pages("TIFF", 2),
            "inside/no.png": png(9),
        },
    )  # fmt: skip


def test_parquet_rows_in_source_order(filled):
    [told] = filled.client.read({"input": "user/scans"})
    assert [item["id"] for item in told["items"]] == [f"train-{row:09d}" for row in range(30)]
    assert [item["shades"] for item in told["items"]] == [[row] for row in range(30)]
    assert [item["row"] for item in told["items"]] == list(range(30))
    assert told["total"] == 30 and told["columns"] == ["image", "title", "number"]
    sha = filled.commits("user/scans")[0]["id"]
    assert told["identity"] == {
        "kind": "hub", "uri": "user/scans", "revision": sha, "config": "default", "split": "train",
        "column": "image", "id_column": None,
    }  # fmt: skip
    for words in ("user/scans", sha[:7], "default", "train", "image", "30 rows"):
        assert words in told["describe"]


def test_config_split_and_column_are_chosen_or_listed(filled):
    test, second, no_config, bad_config, bad_split, bad_column, not_image, missing, revision, text = filled.client.read(
        {"input": "hf://datasets/user/configs", "input_config": "first", "split": "test"},
        {"input": "user/configs", "input_config": "second"},
        {"input": "user/configs"},
        {"input": "user/configs", "input_config": "third"},
        {"input": "user/configs", "input_config": "first", "split": "validation"},
        {"input": "user/scans", "image_column": "page"},
        {"input": "user/scans", "image_column": "number"},
        {"input": "user/nowhere"},
        {"input": "user/scans", "input_revision": "v9"},
        {"input": "user/scans", "text_column": "image"},
    )
    assert [item["id"] for item in test["items"]] == [f"test-{row:09d}" for row in range(3)]
    assert [item["shades"] for item in test["items"]] == [[50], [51], [52]]
    assert [item["shades"] for item in second["items"]] == [[70]]
    for told, words in [
        (no_config, ["first, second", "--input-config"]),
        (bad_config, ["first, second", "--input-config"]),
        (bad_split, ["'validation'", "train, test", "--split"]),
        (bad_column, ["'page'", "image, title, number", "--image-column image"]),
        (not_image, ["number", "int64", "--image-column image"]),
        (missing, ["user/nowhere", "hf auth login"]),
        (revision, ["'v9'", "--input-revision"]),
        (text, ["image", "struct", "--text-column"]),
    ]:
        assert told["code"] == 2 and all(word in told["stop"] for word in words), told


def test_one_bad_cell_is_one_bad_item(filled):
    [told, tables] = filled.client.read({"input": "user/hostile"}, {"input": "user/hostile", "tables": True})
    items = {item["id"].removeprefix("train-00000"): item for item in told["items"]}
    assert list(items) == [
        "0000", "0001", "0002", "0003", "0004", "0004/page_002", "0004/page_003", "0005", "0005/page_002", "0006",
        "0007", "0008", "0009", "0010",
    ]  # fmt: skip
    assert items["0001"]["error"] == items["0003"]["error"] == "the cell is empty (None)"
    assert items["0002"]["error"] is None  # what is no image is found out where it is decoded
    assert [items[id]["shades"] for id in ("0004", "0004/page_002", "0004/page_003")] == [[0], [1], [2]]
    assert [(items[id]["page"], items[id]["pages"]) for id in ("0004", "0004/page_003")] == [(1, 3), (3, 3)]
    assert items["0005"]["pages"] == 2 and items["0005"]["name"] == "train-000000005"
    assert "PDF" in items["0006"]["error"] and items["0007"]["shades"] == [99]
    assert all("not on the Hub" in items[id]["error"] for id in ("0008", "0009"))
    assert "empty" in items["0010"]["error"]
    images = [image for _, _, _, column in tables["tables"] for image in column]
    assert images[0] == png(0).hex() and images[7] == png(99).hex() and images[1] is None
    assert images[8] is None, "a file of this machine must not be published"


def test_rows_that_are_done_are_left_out(filled):
    done = {f"train-{row:09d}": 1 for row in (0, 2, 3, 6, 7, 8, 9, 10)}
    done |= {"train-000000004": 3, "train-000000004/page_002": 3, "train-000000005": 2, "train-000000005/page_002": 2}
    [told] = filled.client.read({"input": "user/hostile", "done": done})
    assert [item["id"] for item in told["items"]] == ["train-000000001", "train-000000004/page_003"]


def test_an_image_folder_is_read_by_path(filled):
    told, again, tables = filled.client.read(
        {"input": "user/folder"},
        {"input": "user/folder", "done": {"train-000000000": 1, "train-000000003": 1}},
        {"input": "user/folder", "tables": True},
    )
    assert [item["shades"] for item in told["items"]] == [[0], [1], [2], ["PageError"]]
    sha = filled.commits("user/folder")[0]["id"]
    assert told["items"][2]["uris"] == [f"hf://datasets/user/folder@{sha}/train/x [1]#ü.png"]
    assert [item["row"] for item in again["items"]] == [1, 2]
    [[start, count, columns, images]] = tables["tables"]
    assert (start, count, columns) == (0, 4, ["image", "text"]) and "Image(" in tables["features"]
    assert images == [png(0).hex(), png(1).hex(), png(2).hex(), None]


def test_addresses_in_lines_and_an_id_column(filled):
    told, unknown = filled.client.read(
        {"input": "user/lines", "id_column": "key"}, {"input": "user/lines", "id_column": "id"}
    )
    assert [(item["id"], item["name"], item["shades"], item["error"]) for item in told["items"]] == [
        ("a", "a", [0], None),
        ("b", "b", [1], None),
        ("ü/1", "ü%2F1", [2], None),
        ("n", "n", [], "the cell is empty (None)"),
    ]
    assert told["total"] == 4 and told["identity"]["id_column"] == "key"
    assert unknown["code"] == 2 and "'id'" in unknown["stop"] and "image, key" in unknown["stop"]


def test_ids_must_be_unique_and_there(filled):
    filled.add_files("user/twice", {"a.parquet": parquet([None] * 3, key=["x", "y", "x"])})
    filled.add_files("user/null", {"a.parquet": parquet([None] * 3, key=["x", "y", None])})
    filled.add_files("user/pages", {"a.parquet": parquet([None] * 3, key=["x", "a/page_1", "x/page_002"])})
    titles, numbers, twice, null, pages = filled.client.read(
        {"input": "user/scans", "id_column": "title", "done": {"title 3": 1}, "max_samples": 6},
        {"input": "user/scans", "id_column": "number", "max_samples": 2},
        {"input": "user/twice", "id_column": "key"},
        {"input": "user/null", "id_column": "key"},
        {"input": "user/pages", "id_column": "key"},
    )
    assert [item["id"] for item in titles["items"]] == [f"title {n}" for n in (0, 1, 2, 4, 5)]
    assert [item["id"] for item in numbers["items"]] == ["0", "1"]
    assert twice["code"] == null["code"] == pages["code"] == 2
    assert "'x/page_002' could also be a page" in pages["stop"]
    assert "'x' occurs 2 times" in twice["stop"] and "1 of 3 rows have none" in null["stop"]


def test_an_empty_entry_among_the_pages_of_a_row_is_one_bad_page(filled):
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink, cell = io.BytesIO(), pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pages = [{"bytes": png(0), "path": None}, None, {"bytes": None, "path": None}, {"bytes": png(3), "path": None}]
    pq.write_table(pa.table({"image": pa.array([pages], pa.list_(cell))}), sink)
    filled.add_files("user/lists", {"a.parquet": sink.getvalue()})
    [told] = filled.client.read({"input": "user/lists"})
    assert [item["shades"] for item in told["items"]] == [[0], ["PageError"], ["PageError"], [3]]
    assert [item["id"][-9:] for item in told["items"]] == ["000000000", "/page_002", "/page_003", "/page_004"]


def test_text_cells(filled):
    [told] = filled.client.read({"input": "user/scans", "text_column": "title", "max_samples": 2})
    assert [(item["text"], item["shades"]) for item in told["items"]] == [("title 0", []), ("title 1", [])]
    [told] = filled.client.read({"input": "user/folder", "recipe": {"input": "text"}, "max_samples": 2})
    assert [item["text"] for item in told["items"]] == ["A", "B"] and told["identity"]["column"] == "text"


def test_samples_and_shards(filled):
    drawn = {"max_samples": 7, "shuffle": True}
    cases = [{"input": name, **more} for name in ("user/scans", "user/folder") for more in (
        {"max_samples": 2}, {"shard": (0, 3)}, {"shard": (1, 3)}, {"shard": (2, 3)}
    )]  # fmt: skip
    *told, once, again, shuffled_folder, tables = filled.client.read(
        *cases,
        {"input": "user/scans", **drawn},
        {"input": "user/scans", **drawn, "seed": 42},
        {"input": "user/folder", "max_samples": 2, "shuffle": True},
        {"input": "user/scans", **drawn, "tables": True},
    )
    for (first, *shards), rows in ((told[:4], 30), (told[4:], 4)):
        assert [item["row"] for item in first["items"]] == [0, 1]
        parts = [[item["row"] for item in shard["items"]] for shard in shards]
        assert parts == [list(range(index, rows, 3)) for index in range(3)]
    assert [shard["total"] for shard in told[1:4]] == [10, 10, 10]
    rows = [item["row"] for item in once["items"]]
    assert rows == sorted(rows) == [item["row"] for item in again["items"]] and len(rows) == 7 == once["total"]
    assert len(shuffled_folder["items"]) == 2
    published = [start + n for start, count, _, _ in tables["tables"] for n in range(count)]
    assert published == rows


def test_windows_over_rows(filled):
    recipe = {"pages_per_unit": 8}
    [whole] = filled.client.read({"input": "user/scans", "recipe": recipe})
    ids = [item["id"] for item in whole["items"]]
    assert ids == [f"train/pages_{a:04d}-{b:04d}" for a, b in ((1, 8), (9, 16), (17, 24), (25, 30))]
    assert whole["items"][1]["shades"] == list(range(8, 16)) and whole["items"][1]["row"] == 8
    rest, first, second, documents = filled.client.read(
        {"input": "user/scans", "recipe": recipe, "done": {ids[0]: 8, ids[3]: 30}},
        {"input": "user/scans", "recipe": recipe, "shard": (0, 2)},
        {"input": "user/scans", "recipe": recipe, "shard": (1, 2)},
        {"input": "user/hostile", "recipe": {"pages_per_unit": None}},
    )
    assert [item["id"] for item in rest["items"]] == ids[1:3]
    assert sorted(item["id"] for item in first["items"] + second["items"]) == ids
    assert [item["id"] for item in documents["items"]] == [f"train-{row:09d}" for row in range(11)]
    assert documents["items"][4]["shades"] == [0, 1, 2]


def test_tables_equal_the_source(filled):
    everything, light = filled.client.read(
        {"input": "user/scans", "tables": True}, {"input": "user/scans", "tables": ["title", "number"]}
    )
    assert "'image': Image(" in everything["features"]
    row = 0
    for start, count, columns, images in everything["tables"]:
        assert start == row and columns == ["image", "title", "number"]
        assert images == [png(n).hex() for n in range(row, row + count)]
        row += count
    assert row == 30
    assert {tuple(columns) for _, _, columns, _ in light["tables"]} == {("title", "number")}


def test_a_bucket(filled):
    told, globbed, single, nothing, missing, tables = filled.client.read(
        {"input": "hf://buckets/user/shelf/in", "output": "hf://buckets/user/shelf/in/out"},
        {"input": "hf://buckets/user/shelf/in/**/*.png"},
        {"input": "hf://buckets/user/shelf/in/a [1].png"},
        {"input": "hf://buckets/user/shelf/in/*.jpg"},
        {"input": "hf://buckets/user/none/in"},
        {"input": "hf://buckets/user/shelf/in", "tables": True, "output": "hf://buckets/user/shelf/in/out"},
    )
    ids = ["a [1].png", "b.png", "doc.pdf/page_001", "doc.pdf/page_002", "t.tif/page_001", "t.tif/page_002"]
    assert [item["id"] for item in told["items"]] == [*ids, "sub/Ü #?.png"]
    assert [item["shades"] for item in told["items"] if ".pdf" not in item["id"]] == [[1], [2], [0], [1], [3]]
    assert [item["id"] for item in globbed["items"]] == ["a [1].png", "b.png", "out/page.png", "sub/Ü #?.png"]
    assert [item["id"] for item in single["items"]] == ["a [1].png"]
    assert nothing["code"] == missing["code"] == 2 and ".png" in nothing["stop"] and "user/none" in missing["stop"]
    [[names, count, _, images]] = tables["tables"]
    assert names == [item["id"] for item in told["items"]] and count == 7
    assert images[0] == png(1).hex() and images[2].startswith("ffd8")


def test_files_of_a_dataset_repository(filled):
    told, folder = filled.client.read(
        {"input": "hf://datasets/user/folder/train/*.png"},
        {"input": "hf://datasets/user/folder/train", "max_samples": 1},
    )
    assert [item["id"] for item in told["items"]] == ["a.png", "b.png", "x [1]#ü.png"]
    assert [item["shades"] for item in told["items"]] == [[0], [1], [2]]
    assert told["identity"]["revision"] == filled.commits("user/folder")[0]["id"]
    assert [item["id"] for item in folder["items"]] == ["a.png"]


def sent(hub, name):
    """How many requests for the content of a file were answered."""
    return len([entry for entry in hub.requests(f"GET .*/resolve/.*{name}") if entry["status"] in (200, 206)])


def test_resuming_fetches_only_the_row_groups_that_are_left(hub):
    for n in range(3):
        hub.add_files("user/scans", {f"data/train-0000{n}-of-00003.parquet": shaded(10 * n, 10)})
    done = {f"train-{row:09d}": 1 for row in range(30) if row != 13}
    [told] = read(hub, {"input": "user/scans", "done": done})
    assert [item["row"] for item in told["items"]] == [13]
    footers = sent(hub, "train-00000")
    assert footers == sent(hub, "train-00002") and sent(hub, "train-00001") > footers


PUSH_IN_BETWEEN = """
def open_scans(**more):
    return open_source(argparse.Namespace(input="user/scans", **{**DEFAULTS, **more}), {})

source = open_scans()
items = source.items(Done())
seen = [shade(next(items).parts[0])]
from huggingface_hub import CommitOperationAdd, HfApi
path = "data/train-00000-of-00001.parquet"
other = HfApi().hf_hub_download("user/other", path, repo_type="dataset")
HfApi().create_commit("user/scans", repo_type="dataset", commit_message="x", operations=[
    CommitOperationAdd(path, other)])
seen += [shade(item.parts[0]) for item in items]
published = [cell["title"] for _, table in source.tables(["title"]) for cell in table.to_pylist()]
newest, pinned = open_scans(), open_scans(input_revision=source.identity["revision"])
first = [shade(next(opened.items(Done())).parts[0]) for opened in (newest, pinned)]
print(json.dumps([seen, published, first, source.identity == pinned.identity, source.identity == newest.identity]))
"""


def test_the_revision_is_pinned_when_the_run_starts(hub):
    """The dataset changes after its footers were read; all that is read later comes from the first revision."""
    hub.add_files("user/scans", {"data/train-00000-of-00001.parquet": shaded(0, 20, group=5)})
    hub.add_files("user/other", {"data/train-00000-of-00001.parquet": shaded(100, 20, group=5)})
    code = CLIENT.format(project=str(PROJECT)).rpartition("for line in")[0] + PUSH_IN_BETWEEN
    seen, published, first, same_as_pinned, same_as_newest = json.loads(hub.python(code).stdout.splitlines()[-1])
    assert seen == list(range(20)) and published == [f"title {n}" for n in range(20)]
    assert first == [100, 0] and same_as_pinned and not same_as_newest


@pytest.mark.parametrize("fault", [{"status": 503}, {"drop": "body"}])
def test_reading_survives_a_fault(hub, fault):
    hub.add_files("user/scans", {"data/train-00000-of-00001.parquet": shaded(0, 20, group=5)})
    hub.add_files("user/plain", {f"train/{n}.tif": pages("TIFF", 2) for n in range(2)})
    hub.fault("GET", "/resolve/", times=3, after=3, **fault)
    parquet_told, files = read(hub, {"input": "user/scans"}, {"input": "hf://datasets/user/plain/train"})
    assert [item["shades"] for item in parquet_told["items"]] == [[n] for n in range(20)]
    assert [item["shades"] for item in files["items"]] == [[0], [1], [0], [1]]
    assert [entry for entry in hub.requests("GET .*/resolve/") if entry["fault"]]
