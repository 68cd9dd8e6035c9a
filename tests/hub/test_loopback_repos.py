"""Unmodified huggingface_hub and datasets clients against the loopback Hub's repos."""

import re

import pytest

LARGE = "bytes(range(256)) * 4000"  # 1 MB with NUL bytes: goes to LFS


@pytest.fixture(params=["xet", "plain-small-pages"])
def any_hub(request, start_hub):
    """With Xet, and without it over HTTP with listings in pages of three."""
    if request.param == "xet":
        return start_hub(run_jobs=False)
    hub = start_hub(run_jobs=False, page=3)
    hub.env["HF_HUB_DISABLE_XET"] = "1"
    return hub


def uses_xet(hub):
    return "HF_HUB_DISABLE_XET" not in hub.env


def test_files_of_a_repo(any_hub):
    any_hub.python(f"""
        import pathlib, pytest
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        api, repo, large = HfApi(), dict(repo_id="user/files", repo_type="dataset"), {LARGE}
        assert api.whoami()["name"] == "user"
        assert api.create_repo(**repo).repo_id == "user/files"
        assert api.create_repo(**repo, exist_ok=True).repo_id == "user/files"
        with pytest.raises(HfHubHTTPError, match="409"):
            api.create_repo(**repo)
        assert api.repo_exists(**repo) and not api.repo_exists("user/none", repo_type="dataset")

        api.upload_file(path_or_fileobj=b"plain text", path_in_repo="notes/a b.txt", **repo)
        api.upload_file(path_or_fileobj=large, path_in_repo="large.bin", **repo)
        folder = pathlib.Path("folder/deep")
        folder.mkdir(parents=True)
        for i in range(8):
            (folder / f"{{i}}.txt").write_text(str(i))
        api.upload_folder(folder_path="folder", path_in_repo="tree", **repo)

        files = api.list_repo_files(**repo)
        assert len(files) == 11 and "notes/a b.txt" in files and "tree/deep/7.txt" in files, files
        top = {{entry.path for entry in api.list_repo_tree(**repo)}}
        assert top == {{".gitattributes", "large.bin", "notes", "tree"}}, top
        info = {{entry.path: entry for entry in api.get_paths_info(paths=["large.bin", "notes", "no"], **repo)}}
        assert info.keys() == {{"large.bin", "notes"}} and info["large.bin"].lfs.size == len(large)

        for path, content in {{"notes/a b.txt": b"plain text", "large.bin": large}}.items():
            assert pathlib.Path(hf_hub_download(filename=path, **repo)).read_bytes() == content
        local = pathlib.Path(snapshot_download(**repo, allow_patterns=["tree/**"], local_dir="local"))
        assert sorted(p.name for p in local.rglob("*.txt")) == [f"{{i}}.txt" for i in range(8)]
        assert (pathlib.Path(snapshot_download(**repo)) / "large.bin").read_bytes() == large

        operations = [CommitOperationDelete("tree/"), CommitOperationAdd("b.txt", b"b")]
        commit = api.create_commit(operations=operations, commit_message="swap", **repo)
        assert api.file_exists(filename="b.txt", **repo) and not api.file_exists(filename="tree/deep/1.txt", **repo)
        assert api.file_exists(filename="tree/deep/1.txt", revision=commit.oid, **repo) is False
        titles = [entry.title for entry in api.list_repo_commits(**repo)]
        assert titles[0] == "swap" and titles[-1] == "initial commit" and len(titles) == 5, titles

        stale = api.list_repo_commits(**repo)[1].commit_id
        with pytest.raises(HfHubHTTPError, match="412"):
            api.upload_file(path_or_fileobj=b"c", path_in_repo="c", parent_commit=stale, **repo)

        api.create_branch(branch="old", revision=stale, **repo)
        api.create_tag(tag="v1", **repo)
        refs = api.list_repo_refs(**repo)
        assert {{b.name for b in refs.branches}} == {{"main", "old"}} and [t.name for t in refs.tags] == ["v1"]
        assert api.file_exists(filename="tree/deep/1.txt", revision="old", **repo)
        api.upload_file(path_or_fileobj=b"x", path_in_repo="x", revision="old", **repo)
        assert not api.file_exists(filename="x", **repo)
        api.delete_branch(branch="old", **repo)
        api.delete_tag(tag="v1", **repo)
        assert len(api.list_repo_refs(**repo).branches) == 1

        assert [d.id for d in api.list_datasets(author="user")] == ["user/files"]
        api.delete_repo(**repo)
        assert not api.repo_exists(**repo)
    """)
    assert bool(any_hub.requests(r"POST /cas/v1/xorbs/")) == uses_xet(any_hub)
    assert bool(any_hub.requests(r"PUT /lfs/")) != uses_xet(any_hub)


def test_missing_things_have_their_own_errors(hub):
    hub.add_files("user/some", {"a.txt": "a"})
    hub.python("""
        import pytest
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
        )

        api = HfApi()
        for token in (None, False):
            with pytest.raises(RepositoryNotFoundError):
                api.dataset_info("user/none", token=token)
            with pytest.raises(RepositoryNotFoundError):
                hf_hub_download("user/none", "a.txt", repo_type="dataset", token=token)
        with pytest.raises(RepositoryNotFoundError):
            api.upload_file(path_or_fileobj=b"", path_in_repo="a", repo_id="user/none", repo_type="dataset")
        with pytest.raises(RepositoryNotFoundError):
            api.dataset_info("nobody-has-this")
        with pytest.raises(EntryNotFoundError):
            hf_hub_download("user/some", "b.txt", repo_type="dataset")
        with pytest.raises(EntryNotFoundError):
            list(api.list_repo_tree("user/some", "folder", repo_type="dataset"))
        with pytest.raises(RevisionNotFoundError):
            api.dataset_info("user/some", revision="other")
        with pytest.raises(HfHubHTTPError, match="Invalid user token"):
            api.whoami(token="hf_wrong")
    """)


def test_pull_requests_and_cards(hub):
    hub.python("""
        from huggingface_hub import CommitOperationAdd, DatasetCard, HfApi, get_repo_discussions
        from huggingface_hub.errors import BadRequestError
        import pytest

        api, repo = HfApi(), dict(repo_id="user/prs", repo_type="dataset")
        api.create_repo(**repo)
        api.upload_file(path_or_fileobj=b"old", path_in_repo="kept.txt", **repo)
        first = api.upload_file(path_or_fileobj=b"1", path_in_repo="one.txt", create_pr=True, **repo)
        assert first.pr_num == 1 and first.pr_revision == "refs/pr/1" and first.pr_url.endswith("/discussions/1")
        api.upload_file(path_or_fileobj=b"2", path_in_repo="two.txt", revision="refs/pr/1", **repo)
        second = api.create_pull_request(title="second", description="words", **repo)
        talk = api.create_discussion(title="talk", **repo)
        api.comment_discussion(discussion_num=talk.num, comment="hello", **repo)
        api.rename_discussion(discussion_num=talk.num, new_title="talked", **repo)
        api.change_discussion_status(discussion_num=talk.num, new_status="closed", **repo)

        assert [(d.num, d.is_pull_request, d.status) for d in api.get_repo_discussions(**repo)] == [
            (3, False, "closed"), (2, True, "draft"), (1, True, "open")
        ]
        assert [d.num for d in api.get_repo_discussions(**repo, discussion_type="pull_request")] == [2, 1]
        details = api.get_discussion_details(discussion_num=1, **repo)
        assert [e.type for e in details.events] == ["comment", "commit", "commit"]
        assert details.target_branch == "refs/heads/main"

        api.upload_file(path_or_fileobj=b"new", path_in_repo="kept.txt", **repo)
        api.merge_pull_request(discussion_num=1, **repo)
        read = lambda path: open(api.hf_hub_download(filename=path, **repo)).read()
        assert [read(path) for path in ("kept.txt", "one.txt", "two.txt")] == ["new", "1", "2"]
        assert api.get_discussion_details(discussion_num=1, **repo).status == "merged"

        card = DatasetCard("---\\nlicense: mit\\n---\\n# Title\\n")
        card.push_to_hub("user/prs")
        assert "# Title" in DatasetCard.load("user/prs").text
        card.text += "More."
        card.push_to_hub("user/prs", create_pr=True)
        broken = [CommitOperationAdd("README.md", b"---\\na: [\\n---\\n")]
        with pytest.raises((BadRequestError, ValueError)):
            api.create_commit(operations=broken, commit_message="broken", **repo)
    """)
    assert [(pull["num"], pull["status"]) for pull in hub.pull_requests("user/prs")] == [
        (4, "open"),
        (2, "draft"),
        (1, "merged"),
    ]
    assert hub.read("user/prs", "README.md").startswith(b"---\nlicense: mit")


def test_datasets_out_and_in(any_hub):
    any_hub.python("""
        import io
        import datasets
        from datasets import Dataset, load_dataset
        from huggingface_hub import HfApi
        from PIL import Image

        if __name__ == "__main__":
            rows = Dataset.from_dict({"n": list(range(500)), "text": [f"row {i}" for i in range(500)]})
            rows.push_to_hub("user/out")
            assert load_dataset("user/out", split="train")["n"] == list(range(500))
            stream = load_dataset("user/out", split="train", streaming=True)
            assert [row["n"] for row in stream.take(3)] == [0, 1, 2]

            rows.select(range(20)).push_to_hub("user/out", "small", split="test")
            assert load_dataset("user/out", "small", split="test").num_rows == 20
            assert datasets.get_dataset_config_names("user/out") == ["default", "small"]
            rows.select(range(7)).push_to_hub("user/out", "small", split="test")
            assert load_dataset("user/out", "small", split="test").num_rows == 7

            info = rows.select(range(5)).push_to_hub("user/out", "proposed", create_pr=True)
            assert info.pr_num == 1
            assert load_dataset("user/out", "proposed", revision="refs/pr/1", split="train").num_rows == 5
            assert "proposed" not in datasets.get_dataset_config_names("user/out")

            pages = []
            for shade in range(6):
                buffer = io.BytesIO()
                Image.effect_noise((200, 200), 50 + shade).save(buffer, "PNG")
                pages.append({"bytes": buffer.getvalue(), "path": None})
            images = Dataset.from_dict({"image": pages}).cast_column("image", datasets.Image())
            images.push_to_hub("user/images", max_shard_size="60KB", private=True)
            shards = [f for f in HfApi().list_repo_files("user/images", repo_type="dataset") if "parquet" in f]
            assert len(shards) > 1, shards
            assert [row["image"].size for row in load_dataset("user/images", split="train")] == [(200, 200)] * 6
            assert HfApi().dataset_info("user/images").private

            api = HfApi()
            api.create_repo("user/folder", repo_type="dataset")
            for i in range(5):
                api.upload_file(
                    path_or_fileobj=pages[i]["bytes"], path_in_repo=f"scans/{i}.png",
                    repo_id="user/folder", repo_type="dataset",
                )
            folder = load_dataset("user/folder", split="train")
            assert folder.num_rows == 5 and folder[0]["image"].size == (200, 200)
            assert sum(1 for _ in load_dataset("user/folder", split="train", streaming=True)) == 5
    """)
    shards = [path for path in any_hub.files("user/out") if path.endswith(".parquet")]
    assert shards == ["data/train-00000-of-00001.parquet", "small/test-00000-of-00001.parquet"]
    assert b"config_name: small" in any_hub.read("user/out", "README.md")
    if not uses_xet(any_hub):
        assert any_hub.requests(r"cursor="), "pages of three were never followed"


def test_filesystem(any_hub):
    any_hub.python("""
        import pytest
        from huggingface_hub import HfApi, HfFileSystem

        HfApi().create_repo("user/fs", repo_type="dataset")
        fs, root = HfFileSystem(), "datasets/user/fs"
        for i in range(5):
            with fs.open(f"{root}/parts/{i}.bin", "wb") as file:
                file.write(bytes([i]) * 1000)
        fs.invalidate_cache()
        assert len(fs.glob(f"{root}/parts/*.bin")) == 5
        assert sorted(p.rsplit("/")[-1] for p in fs.ls(root, detail=False)) == [".gitattributes", "parts"]
        assert fs.cat(f"{root}/parts/3.bin") == bytes([3]) * 1000
        with fs.open(f"{root}/parts/4.bin") as file:
            file.seek(990)
            assert file.read() == bytes([4]) * 10
        assert fs.info(f"{root}/parts/1.bin")["size"] == 1000
        fs.rm(f"{root}/parts/0.bin")
        assert not fs.exists(f"{root}/parts/0.bin") and fs.exists(f"{root}/parts/1.bin")
        with pytest.raises(FileNotFoundError):
            fs.cat(f"{root}/none.txt")
        fs.rm(f"{root}/parts", recursive=True)
        assert fs.glob(f"{root}/parts/*") == []
    """)
    assert list(any_hub.files("user/fs")) == [".gitattributes"]


def test_tokens_allow_what_they_should(hub):
    hub.add_files("user/open", {"a.txt": "a"})
    hub.add_files("user/hidden", {"a.txt": "a"}, private=True)
    hub.add_files("user/gated", {"a.txt": "a"})
    hub.python(
        """
        import pytest, sys
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

        read, stranger = sys.argv[1:]
        owner, anonymous = HfApi(), HfApi(token=False)
        reader, other = HfApi(token=read), HfApi(token=stranger)
        data = dict(repo_type="dataset")
        new = dict(path_or_fileobj=b"b", path_in_repo="b.txt", **data)

        assert owner.whoami()["auth"]["accessToken"]["role"] == "write"
        assert reader.whoami()["auth"]["accessToken"]["role"] == "read"
        assert reader.hf_hub_download("user/hidden", "a.txt", **data)
        owner.auth_check("user/open", write=True, **data)
        for api in (reader, other):
            for refused in (
                lambda api=api: api.upload_file(repo_id="user/open", **new),
                lambda api=api: api.create_repo("user/new", **data),
                lambda api=api: api.create_bucket("user/new"),
                lambda api=api: api.auth_check("user/open", write=True, **data),
            ):
                with pytest.raises(HfHubHTTPError, match="403"):
                    refused()
        with pytest.raises(HfHubHTTPError, match="401"):
            anonymous.create_repo("user/new", **data)
        other.create_repo("stranger/own", **data)
        assert other.upload_file(repo_id="user/open", create_pr=True, **new).pr_num == 1
        owner.create_repo("org/shared", **data)

        for api in (anonymous, other):
            with pytest.raises(RepositoryNotFoundError):
                api.dataset_info("user/hidden")
        owner.update_repo_settings("user/gated", gated="manual", **data)
        for api in (anonymous, other):
            assert api.dataset_info("user/gated").gated == "manual"
            for refused in (api.hf_hub_download, lambda *a, api=api, **k: api.auth_check(a[0], **k)):
                with pytest.raises(GatedRepoError):
                    refused("user/gated", "a.txt", **data)
        assert owner.hf_hub_download("user/gated", "a.txt", **data)
        """,
        hub.tokens["read"],
        hub.tokens["stranger"],
    )
    refused = [entry for entry in hub.requests() if entry["status"] == 403 and entry["method"] == "POST"]
    assert {entry["user"] for entry in refused} == {"user", "stranger"}
    assert list(hub.files("user/open")) == [".gitattributes", "a.txt"]


def test_the_log_and_the_in_process_client(hub):
    commit = hub.add_files("user/log", {"a.txt": "a", "b/c.txt": "c"})
    assert hub.requests() == []
    assert hub.api().dataset_info("user/log").sha == commit
    assert hub.api("read").whoami()["auth"]["accessToken"]["role"] == "read"
    assert [(e["method"], e["url"], e["status"]) for e in hub.requests()] == [
        ("GET", "/api/datasets/user/log", 200),
        ("GET", "/api/whoami-v2", 200),
    ]
    assert len(hub.requests(r"^GET /api/datasets/")) == 1
    assert [c["title"] for c in hub.commits("user/log")] == ["add files", "initial commit"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", hub.url)
