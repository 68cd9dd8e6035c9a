"""Publishing to a Hub: what arrives, how it joins its source, and what a Hub in trouble does to it."""

import fnmatch
import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

from kit import card as card_module
from kit import publish as publish_module
from kit import storage
from kit.publish import check_columns, check_output
from kit.results import open_results
from kit.seam import Stop
from tests.hub.loopback import LoopbackHub
from tests.unit.test_results import RECIPE, RUN, failed, make_options, make_row

PROJECT = Path(__file__).resolve().parents[2]


def png(number):
    buffer = io.BytesIO()
    PillowImage.new("RGB", (8 + number % 50, 8), (number % 256, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


class FakeSource:
    """Rows with an image, a title and an `inference_info` of an earlier run, in tables of seven."""

    identity = RUN["source"]

    def __init__(self, total=20, extra=None):
        from datasets import Features, Image, Value

        self.total = total
        self.features = Features({"image": Image(), "title": Value("string"), "inference_info": Value("string")})
        for name in extra or ():
            self.features[name] = Value("string")
        self.columns = list(self.features)

    def tables(self, columns=None):
        columns = columns or self.columns
        for first in range(0, self.total, 7):
            rows = range(first, min(first + 7, self.total))
            values = {
                "image": [{"bytes": png(n), "path": f"{n}.png"} for n in rows],
                "title": [f"title {n}" for n in rows],
                "inference_info": [json.dumps([{"model_id": "earlier"}]) for n in rows],
            }
            values = {name: values.get(name, [f"old {n}" for n in rows]) for name in columns}
            schema = pa.schema([self.features.arrow_schema.field(name) for name in columns])
            yield first, pa.table(values, schema=schema)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LoopbackHub(tmp_path_factory.mktemp("publish-hub")) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    """The Hub, as the default of clients in this process, which works in an empty folder and waits only briefly."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", server.tokens["write"])
    monkeypatch.delenv("JOB_ID", raising=False)
    for name, seconds in (("FIRST_WAIT", 0.01), ("LONGEST_WAIT", 0.05), ("PATIENCE", 20.0)):
        monkeypatch.setattr(storage, name, seconds)
    monkeypatch.chdir(tmp_path)
    yield server
    server.clear_faults()


@pytest.fixture
def repo(request):
    return "user/" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:80].strip("-").replace("--", "-")


def finish(options, rows=None, source=None, recipe=RECIPE, run=RUN):
    source = source or FakeSource()
    results = open_results(options, recipe, source, run)
    for row in map(make_row, range(source.total)) if rows is None else rows:
        if row["id"] not in results.done:
            results.put(row)
    return results.finish(source, run, {"seconds": 1})


def published(hub, repo, pattern="data/train-*", revision="main"):
    """The published rows, as `pyarrow.Table`s concatenated in the order of the files."""
    paths = sorted(fnmatch.filter(hub.files(repo, revision), pattern))
    return pa.concat_tables(pq.read_table(io.BytesIO(hub.read(repo, path, revision))) for path in paths)


def readme(hub, repo, revision="main"):
    return hub.read(repo, "README.md", revision).decode()


def test_rows_are_published_in_source_order_with_their_columns(hub, repo):
    recipe = {**RECIPE, "columns": {"language": "string", "score": "float"}}
    rows = [
        make_row(n, columns={"language": "de", "score": n / 2}, flags=["looped"] if n == 3 else []) for n in range(20)
    ]
    rows[4] = failed(4)
    said = finish(make_options(output=repo, blocks_column="blocks"), rows[::-1], recipe=recipe)
    assert f"20 pages published: {hub.url}/datasets/{repo}" in said
    table = published(hub, repo)
    assert table["title"].to_pylist() == [f"title {n}" for n in range(20)]
    assert table["markdown"].to_pylist() == [f"text {n}" if n != 4 else None for n in range(20)]
    assert table["ocr_error"].to_pylist() == [None if n != 4 else "it is torn" for n in range(20)]
    assert table["ocr_flags"].to_pylist() == [["looped"] if n == 3 else [] for n in range(20)]
    assert table["image"].to_pylist() == [{"bytes": png(n), "path": f"{n}.png"} for n in range(20)]
    assert table["score"].to_pylist()[:3] == [0.0, 0.5, 1.0] or table["score"][4].as_py() is None
    infos = [json.loads(info) for info in table["inference_info"].to_pylist()]
    assert all([entry["model_id"] for entry in info] == ["earlier", "org/model"] for info in infos)
    assert infos[0][-1]["column_name"] == "markdown"
    assert not {"page", "source_row", "image_sha256"} & set(table.column_names)
    assert not Path(".ocr-runs").exists(), "the checkpoint goes once the publish is verified"


def test_a_recipe_may_publish_what_the_result_row_holds(hub, repo):
    recipe = {**RECIPE, "row_columns": ["id", "model", "error", "finish_reason", "prompt_tokens"]}
    rows = [make_row(0, id="train-000000000", prompt_tokens=7), failed(1)]
    finish(make_options(output=repo, model="org/model"), rows, recipe=recipe)
    table = published(hub, repo)
    assert table["id"].to_pylist() == ["train-000000000", failed(1)["id"]]
    assert table["error"].to_pylist() == table["ocr_error"].to_pylist() == [None, "it is torn"]
    assert table["model"].to_pylist() == ["org/model"] * 2
    assert table["prompt_tokens"][0].as_py() == 7 and "finish_reason" in table.column_names


def test_an_id_of_the_input_stays(hub, repo):
    recipe = {**RECIPE, "row_columns": ["id", "error"]}
    finish(make_options(output=repo), [make_row(0)], FakeSource(1, extra=["id"]), recipe)
    table = published(hub, repo)
    assert table["id"].to_pylist() == ["old 0"] and table["error"].to_pylist() == [None]


def test_load_dataset_reads_what_was_published(hub, repo):
    finish(make_options(output=repo))
    finish(make_options(output=repo, config="second"), [make_row(n, text=f"second {n}") for n in range(20)])
    done = hub.python(
        """
        import sys
        from datasets import load_dataset
        first = load_dataset(sys.argv[1], split="train")
        second = load_dataset(sys.argv[1], "second", split="train")
        assert first["markdown"] == [f"text {n}" for n in range(20)], first["markdown"]
        assert [image.size for image in first["image"]] == [(8 + n, 8) for n in range(20)]
        assert second["markdown"] == [f"second {n}" for n in range(20)]
        assert second["source_row"] == list(range(20)) and second["image_sha256"][0] == "0" * 64
        print(first.features)
        """,
        repo,
    )
    assert "Image(" in done.stdout


def test_the_output_may_be_typed_as_an_address(hub, repo):
    options = make_options(output=f"hf://datasets/{repo}")
    check_output(options, RECIPE, FakeSource())
    finish(options)
    assert len(published(hub, repo)) == 20


def test_rows_without_a_result_are_left_out(hub, repo):
    finish(make_options(output=repo), [make_row(n) for n in (3, 15, 8)])
    assert published(hub, repo)["title"].to_pylist() == ["title 3", "title 8", "title 15"]


def test_a_row_of_many_pages_becomes_one_row_per_page(hub, repo):
    pages = [make_row(1, id=f"train-1/page_{p:03d}", page=p, pages=3, text=f"page {p}") for p in (3, 1, 2)]
    finish(make_options(output=repo), [make_row(2), *pages, make_row(0)])
    table = published(hub, repo)
    assert table["page"].to_pylist() == [1, 1, 2, 3, 1]
    assert table["markdown"].to_pylist() == ["text 0", "page 1", "page 2", "page 3", "text 2"]
    assert table["title"].to_pylist() == ["title 0", *["title 1"] * 3, "title 2"]
    assert [image is not None for image in table["image"].to_pylist()] == [True, True, False, False, True]


def test_columns_limits_what_is_carried(hub, repo):
    finish(make_options(output=repo, columns=["title"]))
    assert published(hub, repo).column_names == ["title", "markdown", "ocr_error", "ocr_flags", "inference_info"]
    assert [e["model_id"] for e in json.loads(published(hub, repo)["inference_info"][0].as_py())] == ["org/model"]


def test_an_existing_output_column_needs_overwrite(hub, repo):
    source = FakeSource(extra=["markdown"])
    with pytest.raises(
        Stop, match="already has the columns markdown.*--overwrite.*--columns image,title,inference_info"
    ):
        check_columns(make_options(output=repo), RECIPE, source)
    check_columns(make_options(output=repo, columns=["title"]), RECIPE, source)
    check_columns(make_options(output="./folder"), RECIPE, source)
    options = make_options(output=repo, overwrite=True)
    check_columns(options, RECIPE, source)
    finish(options, source=source)
    table = published(hub, repo)
    assert table["markdown"].to_pylist()[0] == "text 0" and table.column_names.count("markdown") == 1
    with pytest.raises(Stop, match="has no nonsense"):
        check_columns(make_options(output=repo, columns=["nonsense"]), RECIPE, source)


def test_values_that_do_not_fit_their_column_are_null(hub, repo):
    recipe = {**RECIPE, "columns": {"n": "int", "s": "string", "b": "bool"}}
    rows = [make_row(0, columns={"n": 2**70, "s": ["a"]}), make_row(1, columns={"n": 2, "b": True})]
    finish(make_options(output=repo), rows, recipe=recipe)
    table = published(hub, repo)
    assert table["n"].to_pylist() == [None, 2] and table["s"].to_pylist() == ['["a"]', None]
    assert table["b"].to_pylist() == [None, True]


def test_shards_are_limited_and_named(hub, repo, monkeypatch):
    monkeypatch.setattr(publish_module, "SHARD_BYTES", 1)
    monkeypatch.setattr(publish_module, "GROUP_ROWS", 7)
    finish(make_options(output=repo))
    names = sorted(fnmatch.filter(hub.files(repo), "data/*"))
    assert names == [f"data/train-{n:05d}-of-00003.parquet" for n in range(3)]
    assert published(hub, repo)["title"].to_pylist() == [f"title {n}" for n in range(20)]
    monkeypatch.setattr(publish_module, "SHARD_BYTES", 10**9)
    finish(make_options(output=repo, overwrite=True))
    assert fnmatch.filter(hub.files(repo), "data/*") == ["data/train-00000-of-00001.parquet"]
    assert len(published(hub, repo)) == 20


def test_pull_request(hub, repo):
    said = finish(make_options(output=repo, config="glm", create_pr=True))
    [request] = hub.pull_requests(repo)
    assert request["title"].endswith("[glm]") and request["status"] == "open"
    assert f"{hub.url}/datasets/{repo}/discussions/1" in said
    assert list(hub.files(repo)) == [".gitattributes"]
    table = published(hub, repo, "glm/*", "refs/pr/1")
    assert len(table) == 20 and table["source_row"].to_pylist() == list(range(20))
    assert "config_name: glm" in readme(hub, repo, "refs/pr/1")


def test_private(hub, repo):
    finish(make_options(output=repo, private=True))
    assert hub.api().dataset_info(repo).private
    finish(make_options(output=repo, private=True, config="more"))
    assert hub.api().dataset_info(repo).private


def test_private_refuses_a_public_repository(hub, repo):
    hub.add_files(repo, {"x.txt": "x"})
    with pytest.raises(Stop, match="is public"):
        check_output(make_options(output=repo, private=True), RECIPE, FakeSource())


def test_an_existing_config_needs_overwrite_unless_its_checkpoint_is_there(hub, repo):
    check_output(make_options(output=repo), RECIPE, FakeSource())
    finish(make_options(output=repo, keep_checkpoint=True))
    check_output(make_options(output=repo), RECIPE, FakeSource())
    before = len(hub.commits(repo))
    said = finish(make_options(output=repo))
    assert "20 pages published" in said and len(hub.commits(repo)) == before, (
        "publishing the same again changes nothing"
    )
    with pytest.raises(Stop, match="already has the config default with the split train.*--overwrite") as stop:
        check_output(make_options(output=repo), RECIPE, FakeSource())
    assert stop.value.code == 2
    for allowed in (dict(overwrite=True), dict(config="other"), dict(split="test")):
        check_output(make_options(output=repo, **allowed), RECIPE, FakeSource())


def test_a_repository_with_files_of_its_own_needs_overwrite(hub, repo):
    hub.add_files(repo, {"README.md": "# Mine\n"})
    check_output(make_options(output=repo), RECIPE, FakeSource())
    hub.add_files(repo, {"train.csv": "a\n1\n"})
    with pytest.raises(Stop, match="--overwrite"):
        check_output(make_options(output=repo), RECIPE, FakeSource())


@pytest.mark.parametrize(
    "token, message", [("read", "can only read"), ("stranger", "cannot be written"), (None, "token")]
)
def test_a_token_that_cannot_write_is_a_stop(hub, repo, monkeypatch, token, message):
    monkeypatch.setenv("HF_TOKEN", hub.tokens[token]) if token else monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(Stop, match=message) as stop:
        check_output(make_options(output=repo), RECIPE, FakeSource())
    assert stop.value.code == 2


def test_a_repository_of_others_takes_pull_requests_only(hub, repo, monkeypatch):
    hub.add_files(repo, {"README.md": "# Theirs"})
    monkeypatch.setenv("HF_TOKEN", hub.tokens["stranger"])
    with pytest.raises(Stop, match="cannot be written"):
        check_output(make_options(output=repo), RECIPE, FakeSource())
    options = make_options(output=repo, create_pr=True)
    check_output(options, RECIPE, FakeSource())
    finish(options)
    assert len(published(hub, repo, revision="refs/pr/1")) == 20


def test_check_makes_no_repository(hub, repo):
    check_output(make_options(output=repo, check=True), RECIPE, FakeSource())
    assert not hub.api().repo_exists(repo, repo_type="dataset")


ROUTES = {
    "create": "/api/repos/create",
    "preupload": "/preupload/",
    "upload": "/objects/batch|/cas/v1/",
    "commit": "/commit/",
}
FAULTS = {
    "409": dict(status=409), "412": dict(status=412), "429": dict(status=429, headers={"Retry-After": "1"}),
    "503": dict(status=503), "500": dict(status=500), "dropped": dict(drop=True), "half": dict(drop="body"),
    "slow": dict(delay=1), "lost": dict(status=502, applied=True), "cut": dict(drop=True, applied=True),
}  # fmt: skip


@pytest.mark.parametrize("create_pr", [False, True], ids=["push", "pr"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_commit_is_waited_out_and_commits_once(hub, repo, fault, create_pr):
    hub.fault("POST", f"{repo}/commit/", **FAULTS[fault], times=2)
    finish(make_options(output=repo, create_pr=create_pr))
    assert hub.requests(f"POST .*{repo}/commit/")[0]["fault"]
    assert len(published(hub, repo, revision="refs/pr/1" if create_pr else "main")) == 20
    if create_pr:
        assert len(hub.pull_requests(repo)) == 1
    else:
        assert len(hub.commits(repo)) == 2, "the first commit and ours"


BEFORE_COMMIT = [(route, fault) for route in ROUTES if route != "commit" for fault in ("429", "503", "dropped")]


@pytest.mark.parametrize("route, fault", [*BEFORE_COMMIT, ("create", "lost"), ("preupload", "409")])
def test_a_fault_before_the_commit_is_waited_out(hub, repo, route, fault):
    hub.fault("POST", ROUTES[route], **FAULTS[fault], times=2)
    finish(make_options(output=repo))
    assert len(published(hub, repo)) == 20


def test_giving_up_keeps_the_results_and_the_same_command_finishes(hub, repo, monkeypatch):
    monkeypatch.setattr(storage, "PATIENCE", 0.2)
    hub.fault("POST", f"{repo}/commit/", status=503, times=10_000)
    with pytest.raises(Stop, match="results are safe in ./.ocr-runs/.*same command") as stop:
        finish(make_options(output=repo))
    assert stop.value.code == 1
    hub.clear_faults()
    options = make_options(output=repo)
    check_output(options, RECIPE, FakeSource())
    results = open_results(options, RECIPE, FakeSource(), RUN)
    assert len(results.done) == 20, "no page is read again"
    results.finish(FakeSource(), RUN, {})
    assert len(published(hub, repo)) == 20 and not Path(".ocr-runs").exists()


def test_files_that_did_not_arrive_keep_the_checkpoint(hub, repo, monkeypatch):
    monkeypatch.setattr(publish_module, "arrived", lambda *args: False)
    with pytest.raises(Stop, match="not those that were sent"):
        finish(make_options(output=repo))
    assert list(Path(".ocr-runs").rglob("part-*"))


def test_configs_pushed_at_once_all_survive(hub, repo):
    code = """
        import sys
        sys.path.insert(0, {project!r})
        from kit import storage
        from tests.hub.test_publish import finish, make_options
        storage.FIRST_WAIT = 0.05
        finish(make_options(output=sys.argv[1], config=sys.argv[2]))
        """
    script = hub.root / "push.py"
    script.write_text(textwrap.dedent(code).format(project=str(PROJECT)))
    names = ["a", "b", "c"]
    started = [subprocess.Popen([sys.executable, script, repo, name], env=hub.env, cwd=hub.work) for name in names]
    assert [process.wait(300) for process in started] == [0, 0, 0]
    for name in names:
        assert len(published(hub, repo, f"{name}/*")) == 20
        assert f"config_name: {name}\n" in readme(hub, repo) and f"config `{name}`" in readme(hub, repo)


def test_the_card_says_how_it_was_made(hub, repo, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/ocr/fake.py", "user/scans", repo, "--api-key", "abc", "--max-tokens", "99"])
    rows = [make_row(n, flags=["looped"] if n == 5 else []) for n in range(20)]
    rows[6] = failed(6)
    finish(make_options(output=repo), rows, recipe={**RECIPE, "licence": "mit"})
    text = readme(hub, repo)
    for part in ("org/model", "`abc`", '"kind": "hub"', "temperature", "uv run fake.py user/scans", "--max-tokens 99",
                 "--api-key ***", "| Pages | `20` |", "| Failed | `1` |", '"looped": 1', "`mit`", "text 0", "text 1",
                 "text 2", "- ocr-recipes", "- uv-script"):  # fmt: skip
        assert part in text, part
    assert "text 3" not in text


def test_the_users_own_card_stays(hub, repo):
    head = "license: cc0-1.0\ntags:\n- history\nconfigs:\n- config_name: raw\n  data_files: raw.csv\n"
    hub.add_files(repo, {"README.md": f"---\n{head}---\n# My scans\n\nMine.\n", "raw.csv": "a\n1\n"})
    finish(make_options(output=repo))
    first = readme(hub, repo)
    for part in ("license: cc0-1.0", "- history", "config_name: raw", "data_files: raw.csv", "# My scans\n\nMine.\n"):
        assert part in first
    finish(make_options(output=repo, overwrite=True), [make_row(n, text="other words") for n in range(20)])
    second = readme(hub, repo)
    assert second.count("# My scans") == 1 and second.count("config_name: default") == 1
    assert "other words" in second and "text 0" not in second


def test_data_without_a_declared_config_is_declared_before_ours(hub, repo):
    finish(make_options(output=repo))
    data = {path: hub.read(repo, path) for path in hub.files(repo) if path.startswith("data/")}
    undeclared = f"{repo}-2"
    hub.add_files(undeclared, data)
    finish(make_options(output=undeclared, config="ours"))
    assert "config_name: default\n  data_files:\n  - split: train\n    path: data/train-*" in readme(hub, undeclared)


def test_a_second_split_joins_its_config(hub, repo):
    finish(make_options(output=repo))
    finish(make_options(output=repo, split="test"))
    assert len(published(hub, repo, "data/train-*")) == len(published(hub, repo, "data/test-*")) == 20
    assert readme(hub, repo).count("config_name: default") == 1
    assert "path: data/train-*" in readme(hub, repo) and "path: data/test-*" in readme(hub, repo)


def test_hostile_pages_do_not_break_the_card(hub, repo, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.tokens["write"])
    hostile = "---\nlicense: evil\n---\n```\n````\n<!-- ocr-recipes default/train ends -->\n<script>alert(1)</script>"
    rows = [make_row(n, text=hostile + f" hf_{'a' * 34}") for n in range(20)]
    rows[0]["id"] = "`x`|\n<b>"
    finish(make_options(output=repo), rows)
    finish(make_options(output=repo, overwrite=True), [make_row(n) for n in range(20)])
    text = readme(hub, repo)
    assert "evil" not in text and "<script>" not in text, "the whole section was replaced"
    assert "hf_a" not in text


def test_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-value")
    text = card_module.masked("secret-value hf_abcdefgh https://me:pw@host/x --token xyz --max-tokens 5 hf_xet")
    assert text == "*** hf_*** https://***@host/x --token *** --max-tokens 5 hf_xet"


def test_a_source_of_files_is_joined_by_id(hub, repo):
    class Pages(FakeSource):
        columns = []

        def tables(self, columns=None):
            for first, table in super().tables(columns):
                yield [f"file-{first + n}" for n in range(len(table))], table

    rows = [make_row(100 - n, id=f"file-{n}", text=f"text {n}") for n in range(20) if n != 9]
    finish(make_options(output=repo), rows, source=Pages())
    assert published(hub, repo)["markdown"].to_pylist() == [f"text {n}" for n in range(20) if n != 9]


REAL = """
import sys
sys.path.insert(0, {project!r})
from kit.results import open_results
from kit.source import open_source
from tests.unit.test_results import RECIPE, RUN, make_options, make_row

source_of, output = sys.argv[1:3]
options = make_options(
    input=source_of, output=output, image_column="image", text_column=None, id_column=None, input_config=None,
    input_revision=None, max_samples=12, shuffle=True, seed=42, dpi=200, keep_extension=False,
)
source = open_source(options, RECIPE)
results = open_results(options, RECIPE, source, {{**RUN, "source": source.identity}})
for item in source.items(results.done):
    place = dict(id=item.id, row=item.row, page=item.page, pages=item.pages, name=item.name)
    results.put(make_row(0, **place, text=item.id))
print(results.finish(source, {{**RUN, "source": source.identity}}, {{}}))
"""


def test_a_real_dataset_and_a_real_folder_as_source(hub, repo):
    finish(make_options(output=repo))
    folder = hub.work / "scans"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02d}.png").write_bytes(png(number))
    pages = [PillowImage.new("RGB", (30 + n, 30)) for n in range(3)]
    pages[0].save(folder / "05.tif", save_all=True, append_images=pages[1:])
    code = REAL.format(project=str(PROJECT))
    hub.python(code, repo, f"{repo}-2")
    table = published(hub, f"{repo}-2")
    rows = [int(title.split()[1]) for title in table["title"].to_pylist()]
    assert rows == sorted(rows) and len(rows) == 12
    assert [int(text.split("-")[1]) for text in table["markdown"].to_pylist()] == rows
    assert table["image"].to_pylist() == [{"bytes": png(n), "path": f"{n}.png"} for n in rows]
    hub.python(code.replace("max_samples=12", "max_samples=None"), "./scans", f"{repo}-3")
    table = published(hub, f"{repo}-3")
    assert table["markdown"].to_pylist() == table["file_name"].to_pylist() and len(table) == 23
    assert [page for page in table["page"].to_pylist() if page > 1] == [2, 3]
    assert table["image"][0].as_py()["bytes"] == png(0)
