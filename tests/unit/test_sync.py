import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import sync

ROOT = Path(__file__).resolve().parents[2]

SEAM = '''"""Types that pass."""

from dataclasses import dataclass, field


@dataclass
class Parsed:
    """A reading."""

    markdown: str
    flags: list = field(default_factory=list)
'''
PAGES = '''"""Pages in, pixels out.

More about it.
"""

import os
import re

from kit.seam import Parsed

LIMIT = 7  # bytes


def open_page(path):
    return Parsed(re.sub("a", "b", os.fspath(path)[:LIMIT]))
'''
CLI = '''"""The command line."""

import sys
from dataclasses import field

from kit.pages import open_page


def main(recipe, engines):
    print(recipe["name"], open_page("abc").markdown, field, file=sys.stderr)
    return 0
'''
RECIPE = '''# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Toy OCR: text from toys.

    uv run ocr/toy.py INPUT OUTPUT

Licence: MIT.
"""

import re

RECIPE = {
    "name": "toy",
    "task": "ocr",  # the usual
    "sampling": {"temperature": 0.0},  # card
    "word": "été",  # café
}


def parse(answer):
    return Parsed(re.sub("x", "", answer))


# >>> shared part: auto


if __name__ == "__main__":
    raise SystemExit(main(RECIPE, {"a": parse, "b": re.sub}))
'''


@pytest.fixture
def house(tmp_path):
    for name, text in {"kit/seam.py": SEAM, "kit/pages.py": PAGES, "kit/cli.py": CLI, "ocr/toy.py": RECIPE}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(house, *arguments):
    command = [sys.executable, "-S", str(ROOT / "tools/sync.py"), "--root", str(house), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def problems_of(house):
    return sync.plan(house)[1]


def stamped(house):
    texts, problems = sync.plan(house)
    assert problems == []
    return texts["ocr/toy.py"]


def test_stamps_the_closure_and_the_file_runs(house):
    assert run(house).stdout == "ocr/toy.py\n"
    ran = subprocess.run([sys.executable, "toy.py"], cwd=house / "ocr", capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stderr.startswith("toy bbc")


def test_bodies_are_byte_identical_and_imports_are_merged(house):
    text = stamped(house)
    for module in (SEAM, PAGES, CLI):
        last_import = [node for node in ast.parse(module).body if isinstance(node, ast.Import | ast.ImportFrom)][-1]
        assert "".join(module.splitlines(keepends=True)[last_import.end_lineno :]).strip("\n") in text
    block = text[text.index("# >>> shared imports") : text.index("# <<< shared imports")]
    assert block.splitlines()[2:-1] == ["import os", "import sys", "from dataclasses import dataclass, field"]
    assert "from kit" not in text
    assert [line for line in text.splitlines() if line.startswith(("# >>>", "# <<<"))] == [
        "# >>> shared imports",
        "# <<< shared imports",
        f"# >>> shared part: auto  {sync.NOTE}",
        "# >>> kit/seam.py",
        "# <<< kit/seam.py",
        "# >>> kit/pages.py",
        "# <<< kit/pages.py",
        "# >>> kit/cli.py",
        "# <<< kit/cli.py",
        "# <<< shared part",
    ]


def test_stamped_files_pass_ruff(house):
    run(house)
    command = [sys.executable, "-m", "ruff"]
    files = ["--config", str(ROOT / "pyproject.toml"), str(house / "ocr/toy.py")]
    for arguments in (["check", *files], ["format", "--check", *files]):
        ran = subprocess.run(command + arguments, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_is_idempotent_and_check_is_silent_then(house):
    run(house)
    once = (house / "ocr/toy.py").read_text()
    again = run(house)
    assert (again.returncode, again.stdout) == (0, "")
    assert (house / "ocr/toy.py").read_text() == once
    assert run(house, "--check").returncode == 0


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kit/pages.py", "LIMIT = 7", "LIMIT = 8"),
        ("ocr/toy.py", "LIMIT = 7", "LIMIT = 9"),
        ("ocr/toy.py", "import os\n", ""),
        ("kit/cli.py", "import sys\n", "import sys\nimport zlib\n"),
    ],
)
def test_drift_is_a_diff_and_exit_1(house, file, old, new):
    run(house)
    path = house / file
    path.write_text(path.read_text().replace(old, new, 1))
    found = run(house, "--check")
    assert found.returncode == 1
    assert found.stdout.startswith("--- ocr/toy.py\n+++ ocr/toy.py")
    before = (house / "ocr/toy.py").read_text()
    assert run(house).returncode == 0 and run(house, "--check").returncode == 0
    assert (house / "ocr/toy.py").read_text() != before


def test_edits_of_the_model_part_survive(house):
    run(house)
    path = house / "ocr/toy.py"
    path.write_text(path.read_text().replace('"the usual"', "").replace("import re\n", "import json\nimport re\n", 1))
    text = stamped(house)
    assert "import json\nimport re\n\n# >>> shared imports" in text and text.count("import re\n") == 1


def test_an_own_import_is_not_repeated(house):
    path = house / "ocr/toy.py"
    path.write_text(
        path.read_text().replace("import re\n", "import os\nimport re\nfrom dataclasses import dataclass\n", 1)
    )
    block = stamped(house).partition("# >>> shared imports")[2].partition("# <<<")[0]
    assert block.split("\n")[2:-2] == ["import sys", "from dataclasses import field"]


def test_named_modules_must_be_closed(house):
    path = house / "ocr/toy.py"
    path.write_text(RECIPE.replace("auto", "seam cli"))
    assert problems_of(house) == [
        "ocr/toy.py: asks for kit/cli.py, which imports kit/pages.py; add `pages` to the marker line, "
        "or write `# >>> shared part: auto`"
    ]
    path.write_text(RECIPE.replace("auto", "seam pages cli"))
    assert problems_of(house) == []


def test_a_missing_module_stops_only_who_needs_it(house):
    (house / "ocr/other.py").write_text(RECIPE.replace("auto", "seam gone"))
    texts, problems = sync.plan(house)
    assert "ocr/toy.py" in texts and "ocr/other.py" not in texts
    assert problems == ["kit/gone.py: no such module; write it, or take `gone` off the marker lines that name it"]


def test_a_name_that_kit_does_not_define(house):
    (house / "kit/pages.py").write_text(PAGES.replace("import Parsed", "import Parsed, Unparsed"))
    assert any("imports `Unparsed`, which kit/seam.py does not define" in problem for problem in problems_of(house))


def test_names_are_unique_across_kit(house):
    (house / "kit/extra.py").write_text("LIMIT = 3\n")
    assert problems_of(house) == ["kit/pages.py: `LIMIT` is also defined in kit/extra.py; rename one"]


@pytest.mark.parametrize("line", ["LIMIT = 1", "def open_page():\n    return 1", "class Parsed:\n    x = 1"])
def test_the_model_part_may_not_redefine_kit(house, line):
    path = house / "ocr/toy.py"
    path.write_text(RECIPE.replace("RECIPE = {", f"{line}\nRECIPE = {{", 1).replace("auto", "seam pages cli"))
    (problem,) = problems_of(house)
    assert problem.startswith("ocr/toy.py: `") and "defined in ocr/toy.py and defined in kit/" in problem


def test_one_name_for_two_imports(house):
    (house / "kit/cli.py").write_text(CLI.replace("import sys\n", "import sys\nfrom shutil import re\n"))
    assert any("`re` is imported by `import re`" in problem for problem in problems_of(house))


def test_local_names_do_not_pull_modules_in(house):
    (house / "kit/extra.py").write_text("def answer():\n    return 1\n")
    assert "kit/extra.py" not in stamped(house)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import numpy", "not in the standard library"),
        ("from kit.seam import Parsed as P", "import the name as it is"),
        ("import kit.seam", "write `from kit.<module> import <name>`"),
        ("from . import seam", "write `from kit.<module> import <name>`"),
        ("from __future__ import annotations", "leave it out"),
        ("def f():\n    from kit.seam import Parsed\n    return Parsed", "move it to top level"),
        ("def f(:", "does not parse"),
    ],
)
def test_modules_that_cannot_be_stamped(house, line, what):
    (house / "kit/extra.py").write_text(line + "\n")
    (problem,) = problems_of(house)
    assert problem.startswith("kit/extra.py:") and what in problem


def test_a_shared_part_without_its_end(house):
    run(house)
    path = house / "ocr/toy.py"
    path.write_text(path.read_text().replace("# <<< shared part\n", ""))
    assert "put back its last line" in problems_of(house)[0]
    assert run(house).returncode == 1


def test_a_name_that_is_nowhere(house):
    path = house / "ocr/toy.py"
    path.write_text(RECIPE.replace("main(RECIPE", "mian(RECIPE"))
    assert problems_of(house) == [
        "ocr/toy.py: `mian` is defined neither here nor in kit/; correct it, or wait for its module"
    ]


def test_named_files_only(house):
    (house / "ocr/other.py").write_text(RECIPE)
    assert run(house, "ocr/other.py").stdout == "ocr/other.py\n"
    missing = run(house, "ocr/none.py")
    assert missing.returncode == 1 and "no such recipe" in missing.stderr


def test_long_from_imports_are_wrapped():
    imports = {sync.Import("collections", name, None) for name in ("Counter", "deque", "OrderedDict", "UserDict")}
    assert sync.import_lines(imports) == ["from collections import Counter, OrderedDict, UserDict, deque"]
    imports = {sync.Import("os", f"a_rather_long_name_{i}", None) for i in range(6)}
    assert sync.import_lines(imports)[0].startswith("from os import (\n    a_rather_long_name_0,\n")
    assert sync.import_lines({sync.Import("os.path", None, "p"), sync.Import("re", "I", "J")}) == [
        "import os.path as p",
        "from re import I as J",
    ]


# ---- Variants and documents


def entry(**fields):
    whole = {
        "name": "toy", "model": "lab/toy", "revision": None, "title": "Toy OCR", "params": "1B", "backend": "vllm",
        "engine_default": "offline", "image": "lab/image:v1", "flavor": "l4x1", "vllm": ">=0.29", "tasks": ["ocr"],
        "output": "markdown", "blocks_column": None, "licence": "MIT", "support": "supported", "engine_tested": None,
        "languages": {"list": ["English", "Thai"], "claim": "two", "evidence": "named-list"}, "sources": [],
        "notes": None,
    }  # fmt: skip
    return {**whole, **fields}


def write_catalogue(house, *entries):
    (house / "models.json").write_text(sync.json.dumps(entries))


def test_a_variant_is_its_base_with_other_defaults(house):
    variant = {
        "name": "toy-bucket", "variant_of": "toy", "title": "Toy OCR, buckets", "summary": "text from toys in buckets.",
        "defaults": {"task": "table", "sampling.temperature": 0.5, "word": "naïve", "more": None},
        "engine_default": "b", "says": {"INPUT": "hf://buckets/INPUT"},
    }  # fmt: skip
    write_catalogue(house, entry(), variant)
    run(house)
    text = (house / "ocr/toy-bucket.py").read_text()
    table = sync.recipe_node(ast.parse(text), "toy-bucket.py")
    assert ast.literal_eval(table) == {
        "name": "toy-bucket",
        "task": "table",
        "sampling": {"temperature": 0.5},
        "word": "naïve",
        "more": None,
    }
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring.startswith("Toy OCR, buckets: text from toys in buckets.\n\nMade from ocr/toy.py")
    assert "uv run ocr/toy-bucket.py hf://buckets/INPUT" in docstring
    base = (house / "ocr/toy.py").read_text()
    assert 'main(RECIPE, {"b": re.sub, "a": parse})' in text
    same, told = text.partition("def parse")[2], base.partition("def parse")[2]
    assert same == told.replace('{"a": parse, "b": re.sub}', '{"b": re.sub, "a": parse}')
    assert run(house, "--check").returncode == 0
    (house / "ocr/toy-bucket.py").write_text(text + "# edited\n")
    assert "-# edited" in run(house, "--check").stdout


def test_a_variant_of_a_key_that_is_not_there(house):
    write_catalogue(house, entry(), {"name": "v", "variant_of": "toy", "defaults": {"sampling.top_p": 1.0}})
    assert "has no RECIPE value `sampling.top_p`" in problems_of(house)[0]
    write_catalogue(house, entry(), {"name": "v", "variant_of": "gone", "defaults": {}})
    assert "no entry `gone`" in problems_of(house)[0]
    write_catalogue(house, entry(), {"name": "v", "variant_of": "toy", "defaults": {}, "says": {"gone": "here"}})
    assert "does not say 'gone'" in problems_of(house)[0]


def test_documents_come_from_the_catalogue(house):
    write_catalogue(house, entry())
    (house / "README.md").write_text("# R\n\n<!-- recipes:begin -->\nold\n<!-- recipes:end -->\n\nafter\n")
    (house / "CLAUDE.md").write_text("<!-- status:begin -->\n<!-- status:end -->\n")
    run(house)
    readme = (house / "README.md").read_text()
    assert "old" not in readme and readme.startswith("# R\n") and readme.endswith("\nafter\n")
    assert "| [`toy`](ocr/toy.py) | [lab/toy](https://huggingface.co/lab/toy) | 1B |" in readme
    assert "| MIT | GPU, `l4x1` | supported |" in readme
    assert "| `toy` | vllm | offline | >=0.29 | `lab/image:v1` | no |" in (house / "CLAUDE.md").read_text()
    languages = (house / "LANGUAGES.md").read_text()
    assert "| [`toy`](ocr/toy.py) | 2 | named-list | two |" in languages and "| Thai | `toy` |" in languages
    write_catalogue(house, entry(params="2B"))
    assert "+| [`toy`](ocr/toy.py) | [lab/toy](https://huggingface.co/lab/toy) | 2B" in run(house, "--check").stdout


def test_documents_without_their_marks(house):
    write_catalogue(house, entry())
    (house / "README.md").write_text("# R\n")
    assert problems_of(house) == [
        "README.md: has no <!-- recipes:begin --> and <!-- recipes:end -->; put the two lines where the table belongs"
    ]


def test_the_catalogue_must_be_json(house):
    (house / "models.json").write_text("[,]")
    assert "models.json: is not JSON" in problems_of(house)[0]
