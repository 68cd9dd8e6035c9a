"""Unmodified huggingface_hub, fsspec and datasets clients against the loopback Hub's buckets."""

import pytest


@pytest.fixture(params=[1000, 3], ids=["one-page", "pages-of-three"])
def paged_hub(request, start_hub):
    return start_hub(run_jobs=False, page=request.param)


def test_buckets(paged_hub):
    paged_hub.python("""
        import os, pathlib, pytest
        from huggingface_hub import HfApi
        from huggingface_hub.errors import BucketNotFoundError, HfHubHTTPError

        api, large = HfApi(), os.urandom(3 << 20)
        url = api.create_bucket("user/work", private=True)
        assert url.bucket_id == "user/work"
        api.create_bucket("user/work", exist_ok=True)
        with pytest.raises(HfHubHTTPError, match="409"):
            api.create_bucket("user/work")
        for i in range(4):
            api.create_bucket(f"user/more-{i}")
        assert len(list(api.list_buckets("user"))) == 5

        pathlib.Path("local.txt").write_text("from a file")
        small = [(b"%d" % i, f"runs/part-{i}.parquet") for i in range(8)]
        more = [("local.txt", "a b.txt"), (large, "large.bin"), (b"", "empty")]
        api.batch_bucket_files("user/work", add=more + small)
        info = api.bucket_info("user/work")
        assert info.private and info.total_files == 11, info
        files = {f.path: f for f in api.list_bucket_tree("user/work", recursive=True) if f.type == "file"}
        assert len(files) == 11 and files["large.bin"].size == len(large)
        top = {f.path for f in api.list_bucket_tree("user/work")}
        assert top == {"a b.txt", "large.bin", "empty", "runs"}, top
        lexical = {f.path for f in api.list_bucket_tree("user/work", "runs/part-1", recursive=True)}
        assert lexical == {"runs/part-1.parquet"}
        assert [f.path for f in api.get_bucket_paths_info("user/work", ["empty", "none"])] == ["empty"]

        wanted = [("large.bin", "got.bin"), ("empty", "got.empty"), ("a b.txt", "got.txt")]
        api.download_bucket_files("user/work", files=wanted)
        assert pathlib.Path("got.bin").read_bytes() == large
        assert pathlib.Path("got.empty").read_bytes() == b"" and pathlib.Path("got.txt").read_text() == "from a file"

        xet = files["large.bin"].xet_hash
        api.batch_bucket_files("user/work", copy=[("bucket", "user/work", xet, "copy.bin")], delete=["empty"])
        names = {f.path for f in api.list_bucket_tree("user/work", recursive=True)}
        assert "copy.bin" in names and "empty" not in names
        with pytest.raises(Exception) as failure:
            api.batch_bucket_files("user/work", delete=["none"])
        assert type(failure.value).__name__ == "BucketBatchError" and failure.value.failures

        folder = pathlib.Path("up/deep")
        folder.mkdir(parents=True)
        for i in range(5):
            (folder / f"{i}.txt").write_text(str(i))
        api.sync_bucket("up", "hf://buckets/user/work/synced")
        api.sync_bucket("hf://buckets/user/work/synced", "down")
        assert sorted(p.read_text() for p in pathlib.Path("down").rglob("*.txt")) == list("01234")

        api.move_bucket("user/work", "user/moved")
        with pytest.raises(BucketNotFoundError):
            api.bucket_info("user/work")
        api.delete_bucket("user/more-0")
        assert len(list(api.list_buckets("user"))) == 4
    """)
    files = paged_hub.bucket_files("user/moved")
    assert files["copy.bin"] == 3 << 20 and files["synced/deep/4.txt"] == 1
    assert paged_hub.bucket_read("user/moved", "a b.txt") == b"from a file"
    followed = {entry["url"].split("?")[0] for entry in paged_hub.requests("cursor=")}
    listed = {"/api/buckets/user", "/api/buckets/user/work/tree"}
    assert followed >= listed if paged_hub.page == 3 else not followed


@pytest.mark.parametrize("xet", [True, False], ids=["xet", "reads-over-http"])
def test_bucket_filesystem_and_datasets(hub, xet):
    hub.python(
        """
        from datasets import Dataset, load_dataset
        from huggingface_hub import HfApi, HfFileSystem

        HfApi().create_bucket("user/fs")
        fs, root = HfFileSystem(), "buckets/user/fs"
        for name in ("a.txt", "deep/b.txt"):
            with fs.open(f"{root}/{name}", "wb") as file:
                file.write(name.encode() * 100)
        fs.invalidate_cache()
        assert fs.cat(f"{root}/deep/b.txt") == b"deep/b.txt" * 100
        with fs.open(f"{root}/a.txt") as file:
            file.seek(495)
            assert file.read() == b"a.txt"
        assert fs.exists(f"{root}/a.txt") and not fs.exists(f"{root}/c.txt")
        assert len(fs.find(root)) == 2 and fs.glob(f"{root}/*.txt") == [f"{root}/a.txt"]
        fs.rm(f"{root}/a.txt")
        assert [p.rsplit("/")[-1] for p in fs.find(root)] == ["b.txt"]

        Dataset.from_dict({"n": [1, 2, 3]}).push_to_hub("buckets/user/fs/table")
        assert load_dataset("buckets/user/fs/table", split="train")["n"] == [1, 2, 3]
        rows = load_dataset("parquet", data_files="hf://buckets/user/fs/table/**/*.parquet", split="train")
        assert rows.num_rows == 3
        """,
        env={"HF_HUB_DISABLE_XET": None if xet else "1"},
    )
    assert bool(hub.requests(r"GET /buckets/user/fs/resolve/")) or xet
    assert hub.bucket_read("user/fs", "deep/b.txt") == b"deep/b.txt" * 100


def test_processes_write_to_one_bucket_at_once(hub):
    hub.python("""
        import multiprocessing
        from huggingface_hub import HfApi

        def write(worker):
            for i in range(4):
                HfApi().batch_bucket_files("user/many", add=[(f"{worker} {i}".encode() * 500, f"{worker}/{i}.txt")])

        if __name__ == "__main__":
            HfApi().create_bucket("user/many")
            with multiprocessing.get_context("spawn").Pool(3) as pool:
                pool.map(write, range(3))
    """)
    assert len(hub.bucket_files("user/many")) == 12
    assert hub.bucket_read("user/many", "2/3.txt") == b"2 3" * 500


def test_buckets_filled_by_the_fixture(hub):
    hub.bucket_add("user/seed", {"page.png": b"\x89PNG" * 1000, "sub/text.txt": "words"})
    assert hub.bucket_files("user/seed") == {"page.png": 4000, "sub/text.txt": 5}
    hub.python("""
        from huggingface_hub import HfApi
        HfApi().download_bucket_files("user/seed", files=[("page.png", "page.png")])
        assert open("page.png", "rb").read() == b"\\x89PNG" * 1000
    """)


def test_a_client_cache_that_outlived_its_server_fails_at_once(hub, start_hub, tmp_path):
    """A client that believes its chunks are on the server sends a shard naming xorbs that are not there."""
    write = """
        import sys
        from huggingface_hub import HfApi
        HfApi().create_bucket("user/b", exist_ok=True)
        HfApi().batch_bucket_files("user/b", add=[(bytes(range(256)) * 2000, "x.bin")])
    """
    hub.python(write)
    for path in (hub.root / "xorbs").iterdir():
        path.unlink()
    done = hub.python(write, check=False)
    assert done.returncode == 1 and "400" in done.stderr, done.stderr
    assert [entry["status"] for entry in hub.requests("POST /cas/v1/shards")] == [200, 400]
