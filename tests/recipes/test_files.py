"""What holds for every file of ocr/, whichever model it is for. None of these tests has a network."""

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools import check, sync

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "ocr").glob("*.py"))
RECIPES = [path for path in FILES if re.search(r"(?m)^RECIPE = ", path.read_text())]
ENTRIES = {entry["name"]: entry for entry in sync.load_catalogue(ROOT)}

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)

# What a recipe that extracts cannot do without.
SCHEMA = '{"type": "object", "properties": {"total": {"type": "number"}}}'

# Runs a file as a program. What it imports outside the standard library fails where MODULES is "none"; connecting
# fails always, and is said on stderr so that a file which swallows the error is still caught.
GUARDED = """
import os, runpy, socket, sys

class OnlyTheStandardLibrary:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "org"}:  # pickle asks for Jython's org.python
            sys.exit(f"imports {name}")

def connect(self, address, *rest):
    print("CONNECTS TO", address, file=sys.stderr)
    raise OSError("no network in this test")

if os.environ["MODULES"] == "none":
    sys.meta_path.insert(0, OnlyTheStandardLibrary())
socket.socket.connect = socket.socket.connect_ex = connect
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(tmp_path):
    """Runs a command in an empty folder, with an empty home and a Hub that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port, and nobody answers
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH") if key in os.environ}
        environment = {**kept, "HOME": str(tmp_path), "HF_ENDPOINT": address, "NO_COLOR": "1", "COLUMNS": "120"}

        def run(*command, **more):
            return subprocess.run(
                [str(word) for word in command],
                env={**environment, **more},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        yield run


def json_documents(text):
    """All JSON documents that stand in a text one after the other."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} == set(ENTRIES)
    assert set(RECIPES) <= set(FILES) and RECIPES


@every_file
def test_metadata(path):
    header = check.HEADER.search(path.read_text())
    metadata = tomllib.loads(re.sub(r"(?m)^# ?", "", header["body"]))
    python = SpecifierSet(metadata["requires-python"])
    assert all(version in python for version in ("3.11.7", "3.12.1")), "must run where the jobs and this test run"
    requirements = [Requirement(text) for text in metadata["dependencies"]]
    names = [requirement.name for requirement in requirements]
    assert len(names) == len(set(names)), "a package stands twice"
    for requirement in requirements:
        assert requirement.specifier or requirement.url, f"{requirement} has no floor"
    if any(version in python for version in ("3.10.0",)):
        ast.parse(path.read_text(), feature_version=(3, 10))


@every_file
def test_help_imports_nothing_heavy(path, run):
    shown = run(sys.executable, "-c", GUARDED, path, "--help", MODULES="none")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("usage: ") and "CONNECTS" not in shown.stderr


@every_recipe
def test_dry_run_needs_no_network(path, run):
    schema = ["--schema", SCHEMA] if "required=True" in check.File(path.name, path.read_text()).own else []
    words = ["user/scans", "user/scans-ocr", "--dry-run", *schema]
    shown = run(sys.executable, "-c", GUARDED, path, *words, MODULES="all")
    assert shown.returncode == 0 and "CONNECTS" not in shown.stderr, shown.stderr
    settings, *requests = json_documents(shown.stdout)
    recipe = check.File(path.name, path.read_text()).recipe
    assert settings["settings"]["model"] == recipe["model"] == ENTRIES[path.stem]["model"]
    assert settings["settings"]["task"] == recipe.get("task")
    if recipe["engine"] == "vllm":
        (request,) = requests
        assert request["request"]["messages"][-1]["role"] == "user"


@every_recipe
def test_usage_errors_exit_2(path, run):
    shown = run(sys.executable, path, "user/scans")
    assert shown.returncode == 2 and "OUTPUT" in shown.stderr


@every_file
def test_the_jobs_command_accepts_it(path, run):
    beside = Path(sys.executable).with_name("hf")
    hf = beside if beside.exists() else shutil.which("hf")
    shown = run(hf, "jobs", "uv", "run", "--dry-run", path, "user/scans", "user/scans-ocr")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "(dry run) Job not submitted." in shown.stdout
    job = check.File(path.name, path.read_text()).job
    for key in ("image", "flavor", "timeout", "python"):
        if key in job:
            assert re.search(rf"(?m)^  {key} +{re.escape(str(job[key]))} \(from script\)$", shown.stdout), key


@every_file
def test_conventions(path):
    assert check.check_text(f"ocr/{path.name}", path.read_text(), ENTRIES.get(path.stem)) == []


@pytest.fixture(scope="module")
def planned():
    return sync.plan(ROOT)


@every_file
def test_the_shared_part_is_that_of_kit(path, planned):
    texts, problems = planned
    assert [problem for problem in problems if path.name in problem] == []
    assert path.read_text() == texts[f"ocr/{path.name}"], "run `python3 tools/sync.py`"


def test_catalogue_and_documents(planned):
    texts, problems = planned
    assert problems == []
    documents = {name: text for name, text in texts.items() if not name.startswith("ocr/")}
    assert [name for name, _, _ in sync.drift(ROOT, documents)] == [], "run `python3 tools/sync.py`"
    assert list(check.check_entries(ENTRIES.values(), {path.stem for path in RECIPES})) == []
