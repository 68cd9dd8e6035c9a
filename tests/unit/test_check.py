"""Each rule of tools/check.py: a good recipe passes, and each small change to it gives one finding."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check, pins, sync

ROOT = Path(__file__).resolve().parents[2]

KIT = {
    "seam.py": '''"""Types."""


class Parsed:
    def __init__(self, markdown):
        self.markdown = markdown
''',
    "vllm.py": '''"""The engine."""

import os


def offline(recipe, parse):
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    import vllm

    return vllm.LLM(recipe["model"], max_model_len=recipe["max_model_len"]), parse
''',
    "cli.py": '''"""The command line."""


def check_columns(recipe):
    return recipe["output_column"], recipe.get("blocks_column"), recipe["name"], recipe["engine"]


def main(recipe, engines, request=None, parse=None, load=None, predict=None):
    keys = ["model", "revision", "context", "max_model_len", "max_tokens", "tasks", "task", "sampling"]
    return check_columns(recipe), [recipe[key] for key in keys], recipe["image"], recipe["vllm"], engines
''',
}
GOOD = '''# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "datasets>=5.2.0",
#     "pillow>=12.0",
#     "tokenizers>=0.22,<0.24",  # 0.24 renames the class that the processor loads; loosen when vLLM does
# ]
#
# [tool.hf-jobs]
# # The model's class came with this release; any later tag once a page was read on it: loosen then.
# image = "vllm/vllm-openai:v0.29.0"
# flavor = "a10g-small"
# python = "/usr/bin/python3"
# env = { PYTHONPATH = "/usr/local/lib/python3.12/dist-packages" }
# secrets = ["HF_TOKEN"]
# timeout = "4h"
# ///
"""Toy-OCR: pages to Markdown with tables.

    hf jobs uv run URL/ocr/toy-ocr.py user/scans user/scans-ocr
    uv run --with vllm==0.29.0 ocr/toy-ocr.py user/scans user/scans-ocr

An old CLI needs --image vllm/vllm-openai:v0.29.0 --python /usr/bin/python3 -e PYTHONPATH=/usr/local/lib/....

Hardware: one GPU with 16 GB.
Output: Markdown, tables as HTML.
Licence: MIT.
Sources: https://huggingface.co/lab/toy-ocr
"""

import re

RECIPE = {
    "name": "toy-ocr",
    "model": "lab/toy-ocr",  # card
    "revision": None,  # card gives none
    "engine": "vllm",
    "context": 32768,  # config.json, max_position_embeddings
    "max_model_len": 16384,  # fits 6144 image tokens and max_tokens
    "max_tokens": 8192,  # card
    "image_tokens": 6144,  # longest_edge of the processor / 28 / 28
    # prompts of the card, verbatim
    "tasks": {"ocr": "Text Recognition:", "table": "Table Recognition:"},
    "task": "ocr",
    "sampling": {
        "temperature": 0.0,  # card
        "top_p": 1.0,  # card gives none
    },
    "image": {"max_pixels": 4816896},  # preprocessor_config.json
    "vllm": {"min": "0.29", "exclude": {"0.30.0": "its image lacks a class"}},  # class registered since
    "output_column": "markdown",
}


def request(page, options):
    return {"text": "a # b", "image": page}


def parse(answer, page, options):
    return Parsed(re.sub(r"\\\\t", "", answer.text))


# >>> shared part: auto


if __name__ == "__main__":
    raise SystemExit(main(RECIPE, {"offline": offline}, request=request, parse=parse))
'''
ENTRY = {
    "name": "toy-ocr", "model": "lab/toy-ocr", "revision": None, "title": "Toy-OCR", "params": "1B", "backend": "vllm",
    "engine_default": "offline", "image": "vllm/vllm-openai:v0.29.0", "flavor": "a10g-small",
    "vllm": ">=0.29, !=0.30.0", "tasks": ["ocr", "table"], "output": "markdown", "blocks_column": None,
    "licence": "MIT", "support": "supported", "languages": {"evidence": "not-stated"}, "engine_tested": None,
    "sources": [], "notes": None,
}  # fmt: skip
LOCAL = {
    '"engine": "vllm"': '"engine": "local"',
    "def request(page, options):\n    return": "def load(options):\n    page = 1\n    return",
    "def parse(answer, page, options):": "def predict(answer, model, options):",
    "request=request, parse=parse": "load=load, predict=predict",
    '{"offline": offline}': '{"local": load}',
}


@pytest.fixture
def stamp(tmp_path):
    """Stamps a recipe text with the small kit above."""
    folder = tmp_path / "kit"
    folder.mkdir()
    for name, text in KIT.items():
        (folder / name).write_text(text)
    return lambda text: sync.stamp(text, sync.Kit(folder))


def findings(stamp, *edits, entry=ENTRY, name="toy-ocr.py"):
    text = GOOD
    for old, new in edits:
        assert old in text, f"{old!r} is not in the good recipe"
        text = text.replace(old, new)
    with contextlib.suppress(sync.Problem):
        text = stamp(text)
    return check.check_text(f"ocr/{name}", text, entry)


def test_the_good_recipe_passes(stamp):
    assert findings(stamp) == []


def test_a_good_local_recipe_passes_without_image(stamp):
    header = GOOD[GOOD.index("# # The model's class") : GOOD.index("# flavor")]
    entry = {**ENTRY, "backend": "onnx", "image": None, "engine_default": "local"}
    edits = [*LOCAL.items(), (header, "")]
    edits += [('# python = "/usr/bin/python3"\n', ""), ('# env = { PYTHONPATH = "/usr/local/lib/python3.12/', "# X")]
    edits += [('# Xdist-packages" }\n', ""), ('"sampling": {', '"sampling": {  # unused')]
    assert findings(stamp, *edits, entry=entry) == []


BAD = {
    "no metadata": ("# /// script\n", "# script\n", "has 0 metadata blocks"),
    "broken metadata": ('requires-python = ">=3.10"', "requires-python = >=3.10", "metadata is not TOML"),
    "no requires-python": ('# requires-python = ">=3.10"\n', "", "lacks `requires-python`"),
    "dotted table": ("[tool.hf-jobs]", "[tool.hf.jobs]", "`[tool.hf]` is read by nothing"),
    "unknown job key": ('# timeout = "4h"', '# timeout = "4h"\n# gpu = "a"', "`gpu` is no key of [tool.hf-jobs]"),
    "secrets table": ('secrets = ["HF_TOKEN"]', 'secrets = { HF_TOKEN = "" }', "`secrets` has the wrong type"),
    "number in env": ("env = { ", "env = { A = 1, ", "holds a value that is no string"),
    "no timeout": ('# timeout = "4h"\n', "", "[tool.hf-jobs] lacks `timeout`"),
    "no flavor": ('# flavor = "a10g-small"\n', "", "[tool.hf-jobs] lacks `flavor`"),
    "no token": ('["HF_TOKEN"]', "[]", "`secrets` lacks HF_TOKEN"),
    "no python": ('# python = "/usr/bin/python3"\n', "", "[tool.hf-jobs] lacks `python`"),
    "no PYTHONPATH": ("PYTHONPATH = ", "OTHER = ", "an image without `python` and `PYTHONPATH`"),
    "moving image": ("vllm-openai:v0.29.0", "vllm-openai:latest", "image `vllm/vllm-openai:latest` moves"),
    "old image": ("vllm-openai:v0.29.0", "vllm-openai:v0.10.2", "would hide the script's own"),
    "two interpreters": (
        '"engine": "vllm",',
        '"engine": "vllm",\n    "server_python": "/usr/bin/python3",  # the image',
        "`server_python` keeps the image's packages apart",
    ),
    "new Python": ("import re\n", "import re\nfrom datetime import UTC\n", "`UTC` came with Python 3.11"),
    "flags not named": ("--image vllm/vllm-openai:v0.29.0", "--image ...", "the docstring does not name `vllm/vllm"),
    "path not named": ("-e PYTHONPATH=/usr", "-e /usr", "the docstring does not name `PYTHONPATH`"),
    "pin without reason": (
        "  # 0.24 renames the class that the processor loads; loosen when vLLM does",
        "",
        "`tokenizers>=0.22,<0.24` is pinned without a reason",
    ),
    "pin for ever": ("; loosen when vLLM does", "", "does not say what loosens it"),
    "image without reason": (
        "# # The model's class came with this release; any later tag once a page was read on it: loosen then.\n",
        "",
        "`image vllm/vllm-openai:v0.29.0` is pinned without a reason",
    ),
    "exclusion": ('"pillow>=12.0"', '"pillow!=12.1"', "`pillow!=12.1` is pinned without a reason"),
    "arrow cap": ('"pillow>=12.0",', '"pillow>=12.0",\n#     "pyarrow<18",  # until x', "`pyarrow<18` caps pyarrow"),
    "git dependency": ('"pillow>=12.0"', '"pillow @ git+https://x/y"', "is pinned without a reason"),
    "reserved mount": ("Hardware: one", "-v hf://buckets/u/b:/data\n\nHardware: one", "mounts on /data"),
    "kit import": ("import re\n", "import re\n\nfrom kit.seam import Page\n", "imports `kit.seam`, which is not there"),
    "relative import": ("import re\n", "import re\n\nfrom . import seam\n", "imports `.`, which is not there"),
    "heavy import": ("import re\n", "import re\n\nimport torch\n", "imports `torch` at top level"),
    "undeclared": ('    return {"text"', '    import lxml\n\n    return {"text"', "add `lxml` to dependencies"),
    "late guard": (
        '    return {"text"',
        '    import os\n\n    import vllm\n\n    os.environ["VLLM_X"] = "1"\n    return {"text"',
        "`VLLM_X` is set after vllm was imported",
    ),
    "sentinel": ('"a # b"', '"[OCR ERROR]"', "writes a sentinel text"),
    "bare sentinel": ('"a # b"', '"[FAILED]"', "writes a sentinel text"),
    "transfer": ('"a # b"', '"HF_HUB_ENABLE_HF_TRANSFER"', "which does nothing any more"),
    "token": ('"a # b"', '"hf_' + "a1B2" * 8 + '"', "looks like a token"),
    "no title": ("Toy-OCR: pages to Markdown", "Pages to Markdown", "open it with `<Title>: <what comes out>`"),
    "no command": ("ocr/toy-ocr.py user", "ocr/toy.py user", "shows no command with `toy-ocr.py`"),
    "no hardware": ("Hardware: one", "Needs one", "does not say `Hardware: ...`"),
    "no output": ("Output: Markdown", "Gives Markdown", "does not say `Output: ...`"),
    "no licence": ("Licence: MIT", "Free: MIT", "does not say `Licence: ...`"),
    "no source": ("Sources: ", "See: ", "does not say `Source: ...`"),
    "computed table": ('"max_tokens": 8192', '"max_tokens": 2 * int("4096")', "RECIPE is no literal table"),
    "other name": ('"name": "toy-ocr"', '"name": "toy"', "RECIPE names `toy`"),
    "other engine": ('"engine": "vllm"', '"engine": "llama"', "no engine `llama`"),
    "other task": ('"task": "ocr"', '"task": "all"', "the default task is not among the tasks"),
    "no parse": ("def parse(", "def parses(", "needs the functions parse and request or steps"),
    "unsourced": ("  # config.json, max_position_embeddings", "", "RECIPE `context` has no source"),
    "unsourced inside": ('"temperature": 0.0,  # card', '"temperature": 0.0,', "`sampling.temperature` has no source"),
    "unsourced prompts": ("    # prompts of the card, verbatim\n", "", "RECIPE `tasks` has no source"),
    "no room": ('"max_tokens": 8192', '"max_tokens": 16384', "max_tokens 16384 leaves no room in max_model_len 16384"),
    "above context": ('"context": 32768', '"context": 8192', "max_model_len 16384 is above the model's context 8192"),
    "no room for image": ('"image_tokens": 6144', '"image_tokens": 8192', "max_tokens 8192 + image 8192 does not fit"),
    "context unknown": ('"context": 32768', '"context": None', "`context` is None"),
    "no bounds": ('"image": {"max_pixels": 4816896}', '"image": {}', "states no image bounds"),
    "no bounds at all": (
        '    "image": {"max_pixels": 4816896},  # preprocessor_config.json\n',
        "",
        "RECIPE lacks `image`",
    ),
    "dead key": ('"vllm": {"min"', '"windows": {"min"', "nothing reads RECIPE `windows`"),
    "no shared part": ("# >>> shared part: auto\n", "", "has no shared part"),
    "unknown function": ("parse=parse)", "parse=parse, load=load)", "passes `load` to main, which is not defined"),
    "no main": ("raise SystemExit(main(RECIPE", "raise SystemExit(print(RECIPE", "does not call main"),
}


CONSEQUENCES = {
    "no metadata", "broken metadata", "dotted table", "computed table", "other engine", "two interpreters",
    "no parse", "no shared part", "unknown function", "no main",
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_each_rule_finds_its_fault(stamp, case):
    old, new, what = BAD[case]
    found = findings(stamp, (old, new))
    assert any(what in line for line in found), found
    assert all(line.startswith("ocr/toy-ocr.py:") and "; " in line for line in found)
    if case not in CONSEQUENCES:
        assert len(found) <= 2, found


def test_a_missing_guard_of_columns(stamp, monkeypatch):
    monkeypatch.setitem(KIT, "cli.py", KIT["cli.py"])
    text = stamp(GOOD).replace("return check_columns(recipe), ", "return ")
    assert [line for line in check.check_text("ocr/toy-ocr.py", text, ENTRY) if "never calls check_columns" in line]


def test_a_missing_guard_of_vllm(stamp):
    text = stamp(GOOD).replace("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_OTHER")
    found = check.check_text("ocr/toy-ocr.py", text, ENTRY)
    assert found == [
        "ocr/toy-ocr.py:1: never sets VLLM_USE_FLASHINFER_SAMPLER; "
        "stamp the module that sets it before vllm is imported"
    ]


def test_lines_are_those_of_the_fault(stamp):
    (found,) = findings(stamp, ('"top_p": 1.0,  # card gives none', '"top_p": 1.0,'))
    number = int(found.split(":")[1])
    assert '"top_p"' in stamp(GOOD).splitlines()[number - 1]


@pytest.mark.parametrize("name", ["surya.py", "lift.py", "json.py", "datasets.py"])
def test_names_that_hide_a_package(stamp, name):
    edits = [("toy-ocr.py", name), ('"name": "toy-ocr"', f'"name": "{name[:-3]}"')]
    found = findings(stamp, *edits, name=name)
    assert len(found) == 1 and "hides the package" in found[0]


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("model", "lab/other", "model is 'lab/toy-ocr', models.json says 'lab/other'"),
        ("revision", "abc", "revision is None, models.json says 'abc'"),
        ("image", None, "image is 'vllm/vllm-openai:v0.29.0', models.json says None"),
        ("flavor", "l4x1", "flavor is 'a10g-small', models.json says 'l4x1'"),
        ("blocks_column", "toy_blocks", "blocks_column is None, models.json says 'toy_blocks'"),
        ("vllm", ">=0.29", "vllm is '>=0.29, !=0.30.0', models.json says '>=0.29'"),
        ("engine_default", "serve", "engine_default is 'offline', models.json says 'serve'"),
        ("title", "Toy", "title is 'Toy-OCR', models.json says 'Toy'"),
        ("backend", "onnx", "models.json says backend 'onnx'"),
        ("tasks", ["ocr"], "models.json says ['ocr']"),
        ("licence", "Apache-2.0", "models.json says licence 'Apache-2.0'"),
    ],
)
def test_the_catalogue_agrees(stamp, field, value, what):
    (found,) = findings(stamp, entry={**ENTRY, field: value})
    assert what in found


def test_a_recipe_without_entry(stamp):
    assert findings(stamp, entry=None) == ["ocr/toy-ocr.py:1: has no entry `toy-ocr` in models.json; add one"]


TOOL = '''# /// script
# requires-python = ">=3.10"
# dependencies = ["huggingface_hub>=2.4.0"]
# ///
"""Run OCR recipes: one job per model.

    uv run ocr/ocr-run.py SOURCE OUTPUT
"""

import sys


def main():
    from huggingface_hub import HfApi

    return HfApi


if __name__ == "__main__":
    sys.exit(main())
'''


def test_a_tool_keeps_only_what_applies_to_it():
    assert check.check_text("ocr/ocr-run.py", TOOL) == []
    found = check.check_text("ocr/ocr-run.py", TOOL.replace("import sys", "import numpy"))
    assert len(found) == 1 and "imports `numpy` at top level" in found[0]
    found = check.check_text("ocr/ocr-run.py", TOOL.replace("import HfApi", "import HfApi\n    import duckdb"))
    assert len(found) == 1 and "add `duckdb` to dependencies" in found[0]
    found = check.check_text("ocr/ocr-run.py", TOOL.replace("OUTPUT\n", "OUTPUT -v hf://buckets/a/b:/data\n"))
    assert len(found) == 1 and "mounts on /data" in found[0]


def test_an_optional_import_needs_no_dependency():
    text = TOOL.replace(
        "    return HfApi",
        "    try:\n        import duckdb\n    except ImportError:\n        duckdb = None\n    return HfApi",
    )
    assert check.check_text("ocr/ocr-run.py", text) == []


def test_what_does_not_parse():
    assert check.check_text("ocr/x.py", "def f(:\n")[0].startswith("ocr/x.py:1: does not parse")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"colour": "red"}, "`colour` is no field"),
        ({"params": 3}, "`params` is 3; wrong type"),
        ({"support": "works"}, "`support` is 'works'; write one of supported"),
        ({"languages": {"evidence": "some"}}, "language evidence 'some'"),
        ({"languages": {"evidence": "named-list"}}, "named-list without a list"),
        ({"languages": {"evidence": "count-claim"}}, "count-claim without a count"),
        ({"name": "gone"}, "no recipe ocr/gone.py"),
    ],
)
def test_entries_of_the_catalogue(change, what):
    assert list(check.check_entries([ENTRY], {"toy-ocr"})) == []
    found = list(check.check_entries([{**ENTRY, **change}], {"toy-ocr"}))
    assert len(found) == 1 and what in found[0]


def test_an_entry_without_a_field_and_one_twice():
    short = {key: value for key, value in ENTRY.items() if key != "notes"}
    assert "lacks `notes`" in list(check.check_entries([short], {"toy-ocr"}))[0]
    assert "stands twice" in list(check.check_entries([ENTRY, ENTRY], {"toy-ocr"}))[-1]


def test_the_command(tmp_path):
    for name, text in KIT.items():
        (tmp_path / "kit").mkdir(exist_ok=True)
        (tmp_path / "kit" / name).write_text(text)
    (tmp_path / "ocr").mkdir()
    (tmp_path / "ocr/toy-ocr.py").write_text(GOOD)
    (tmp_path / "models.json").write_text(json.dumps([ENTRY]))

    def run(tool):
        command = [sys.executable, "-S", str(ROOT / "tools" / tool), "--root", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = run("check.py")
    assert found.returncode == 1 and "ocr/toy-ocr.py:1: is not what tools/sync.py makes; run it" in found.stdout
    assert run("sync.py").returncode == 0
    found = run("check.py")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "no findings\n")


def test_pins_with_reason_and_candidate(tmp_path, capsys):
    path = tmp_path / "toy-ocr.py"
    path.write_text(GOOD)
    assert pins.main([str(path), "--offline", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(pin["kind"], pin["pin"]) for pin in found] == [
        ("dependency", "tokenizers>=0.22,<0.24"),
        ("image", "vllm/vllm-openai:v0.29.0"),
        ("window", "vllm >=0.29, !=0.30.0"),
    ]
    assert found[0]["reason"] == "0.24 renames the class that the processor loads; loosen when vLLM does"
    assert found[1]["reason"].startswith("The model's class came with this release")
    assert found[2]["reason"] == "0.30.0: its image lacks a class"
    for pin in found:
        assert pin["newest"] == "not looked up" and GOOD.splitlines()[pin["line"] - 1]


def test_pins_without_an_index(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert pins.candidate({"package": "tokenizers", "pin": "tokenizers<1"}, offline=False) == "not looked up"
