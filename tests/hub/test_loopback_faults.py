"""Each kind of injected fault, as real clients see it."""

import re
import time

import pytest

COMMIT = r"/api/datasets/user/repo/commit/"
UPLOAD = """
    import sys
    from huggingface_hub import HfApi
    HfApi().upload_file(path_or_fileobj=b"b", path_in_repo="b.txt", repo_id="user/repo", repo_type="dataset")
"""


@pytest.fixture
def repo_hub(hub):
    hub.add_files("user/repo", {"a.txt": "a" * 100_000})
    return hub


def test_status_faults_reach_the_client(repo_hub):
    """What the client does not retry, it raises, once per fault, with the headers that were set."""
    for status in (409, 412, 429, 500, 503):
        repo_hub.fault("POST", COMMIT, status=status, headers={"Retry-After": "7"})
    repo_hub.python("""
        import pytest
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        new = dict(path_or_fileobj=b"b", path_in_repo="b.txt", repo_id="user/repo", repo_type="dataset")
        for status in (409, 412, 429, 500, 503):
            with pytest.raises(HfHubHTTPError) as failure:
                HfApi().upload_file(**new)
            assert failure.value.response.status_code == status, failure.value
            assert failure.value.response.headers["Retry-After"] == "7"
        HfApi().upload_file(**new)
    """)
    commits = [(entry["status"], entry["fault"]) for entry in repo_hub.requests(f"POST {COMMIT}")]
    assert commits == [(409, True), (412, True), (429, True), (500, True), (503, True), (200, False)]
    assert len(repo_hub.commits("user/repo")) == 3  # the initial one, add_files, and the one that got through
    assert [fault["times"] for fault in repo_hub.faults()] == [0] * 5


def test_times_after_and_clearing(repo_hub):
    api = repo_hub.api()
    repo_hub.fault("GET", r"/whoami", status=400, times=2, after=1)
    answers = []
    for _ in range(5):
        try:
            answers.append(api.whoami()["name"])
        except Exception as error:
            answers.append(error.response.status_code)
    assert answers == ["user", 400, 400, "user", "user"]

    repo_hub.fault("GET|HEAD", r"/api/", status=400, times=100)
    assert not repo_hub.requests("nothing") and repo_hub.files("user/repo")  # look-ups are not hit
    repo_hub.clear_faults()
    assert api.whoami()["name"] == "user" and repo_hub.faults() == []
    with pytest.raises(RuntimeError, match="400"):
        repo_hub.fault("GET", "/", stauts=500)
    with pytest.raises(RuntimeError, match="needs a status"):
        repo_hub.fault("GET", "/")


def test_retried_requests_succeed(repo_hub):
    """Bucket batches, Xet tokens and the content store are retried by the clients themselves."""
    repo_hub.fault("POST", r"/api/buckets/user/b/batch", status=503)
    repo_hub.fault("GET", r"xet-write-token", status=503)
    repo_hub.fault("POST", r"/cas/v1/xorbs/", status=503)
    repo_hub.python("""
        from huggingface_hub import HfApi
        HfApi().create_bucket("user/b")
        HfApi().batch_bucket_files("user/b", add=[(b"content", "x.txt")])
    """)
    assert repo_hub.bucket_read("user/b", "x.txt") == b"content"
    assert {e["url"].split("/")[-1][:5] for e in repo_hub.requests() if e["fault"]} >= {"batch", "xet-w"}
    assert [fault["times"] for fault in repo_hub.faults()] == [0, 0, 0]


def test_dropped_connections(repo_hub):
    """Before the commit: nothing happened. After it: the client fails all the same, but the commit stands."""
    repo_hub.fault("POST", COMMIT, drop=True)
    done = repo_hub.python(UPLOAD, check=False)
    assert done.returncode == 1 and re.search("disconnected|reset", done.stderr), done.stderr
    assert "b.txt" not in repo_hub.files("user/repo")

    repo_hub.fault("POST", COMMIT, drop=True, applied=True)
    done = repo_hub.python(UPLOAD, check=False)
    assert done.returncode == 1, done.stderr
    assert "b.txt" in repo_hub.files("user/repo")
    assert [entry["status"] for entry in repo_hub.requests(f"POST {COMMIT}")] == [None, None]


def test_a_commit_that_stands_though_its_answer_says_otherwise(repo_hub):
    repo_hub.fault("POST", COMMIT, status=504, applied=True)
    done = repo_hub.python(UPLOAD, check=False)
    assert done.returncode == 1 and "504" in done.stderr, done.stderr
    assert "b.txt" in repo_hub.files("user/repo")


def test_a_download_cut_in_half_is_resumed(repo_hub):
    repo_hub.fault("GET", r"/resolve/main/a.txt", drop="body")
    repo_hub.python("""
        from huggingface_hub import hf_hub_download
        path = hf_hub_download("user/repo", "a.txt", repo_type="dataset")
        assert open(path).read() == "a" * 100_000
    """)
    downloads = repo_hub.requests(r"GET /datasets/user/repo/resolve/main/a.txt")
    assert [entry["fault"] for entry in downloads] == [True, False]


def test_slow_answers(repo_hub):
    repo_hub.fault("GET", r"/whoami", delay=1.5)
    start = time.time()
    assert repo_hub.api().whoami()["name"] == "user"
    assert time.time() - start >= 1.5
    entry = repo_hub.requests("/whoami")[0]
    assert entry["seconds"] >= 1.5 and entry["status"] == 200 and entry["fault"]

    repo_hub.fault("HEAD", r"/resolve/", delay=60)
    repo_hub.python(
        """
        from huggingface_hub import hf_hub_download
        hf_hub_download("user/repo", "a.txt", repo_type="dataset")
        """,
        env={"HF_HUB_ETAG_TIMEOUT": "1"},
    )
    heads = repo_hub.requests("^HEAD")
    assert [entry["status"] for entry in heads] == [None, 200], "a client that waits 1 s gives up and asks again"


def test_push_to_hub_dies_of_a_conflict_on_the_commit(repo_hub):
    """The reason why publishing needs a retry of its own: only what comes before the commit is retried."""
    repo_hub.fault("POST", COMMIT, status=412)
    repo_hub.fault("POST", r"/preupload/", status=503, after=2)  # a push asks twice: for its data and for its card
    repo_hub.python("""
        import pytest
        from datasets import Dataset
        from huggingface_hub.errors import HfHubHTTPError

        rows = Dataset.from_dict({"n": [1, 2]})
        with pytest.raises(HfHubHTTPError, match="412"):
            rows.push_to_hub("user/repo", "one")
        rows.push_to_hub("user/repo", "two")
    """)
    assert [path for path in repo_hub.files("user/repo") if path.endswith(".parquet")] == [
        "two/train-00000-of-00001.parquet"
    ]
    assert [entry["status"] for entry in repo_hub.requests("/preupload/")] == [200, 200, 503, 200, 200]
