"""Every tool ends with 2 and one sentence on what cannot be used, whichever way it was named."""

import base64
import json
import shlex
import sys
from functools import cache
from types import ModuleType

import pytest

from kit.tool import exit_code_of
from tests.unit.recipe_file import OCR

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
RUNS, JUDGE = "bench/a bench/b --images img", "--judge http://127.0.0.1:1/v1:m"
TARGET = "run img --target glm-ocr=http://127.0.0.1:1/v1"
JOB = "a/b c/d --models glm-ocr"


@cache
def code_of(tool):
    path = OCR / f"{tool}.py"
    return compile(path.read_text("utf-8"), str(path), "exec")


def run(tool, words, monkeypatch):
    """The exit code of a tool, run as its file is."""
    main = ModuleType("__main__")
    main.__file__ = str(OCR / f"{tool}.py")
    monkeypatch.setattr(sys, "argv", [main.__file__, *shlex.split(words)])
    monkeypatch.setitem(sys.modules, "__main__", main)  # where dataclasses look for the names of their fields' types
    with pytest.raises(SystemExit) as ended:
        exec(code_of(tool), main.__dict__)
    return ended.value.code


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with two runs over two pages, and files of every wrong kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCR_SERVE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OCR_ALLOW_CPU", raising=False)
    monkeypatch.delenv("JOB_ID", raising=False)
    for name in ("a", "b"):
        (tmp_path / "bench" / name).mkdir(parents=True)
        for page in ("p0", "p1"):
            (tmp_path / "bench" / name / f"{page}.md").write_text(
                f"What {name} read of {page}, in some words or other."
            )
    for folder in ("img", "empty", "truth", "latin", "notes", "cut"):
        (tmp_path / folder).mkdir()
    for page in ("p0", "p1"):
        (tmp_path / "img" / f"{page}.png").write_bytes(PIXEL)
        (tmp_path / "truth" / f"{page}.txt").write_text("Some words.")
    (tmp_path / "latin" / "p0.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "notes" / "p0.txt").write_text("x")
    (tmp_path / "notes" / "pages.jsonl").write_text("{")
    (tmp_path / "cut" / "p0.md").write_text("x")
    (tmp_path / "cut" / "p0.json").write_text("{")
    files = {"file.txt": b"x", "bad.json": b"{", "list.json": b"[1]", "number.json": b"7", "bad.jsonl": b"no\n{}\n",
             "deep.json": b"[" * 100_000, "deep.jsonl": b"[" * 100_000 + b"\n{}\n", "bad.parquet": b"PAR1",
             "bad.csv": b"\xff\xfe\0"}  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)


CASES = {
    "ocr-elo-bench": {
        "": "Name a folder", "nowhere": "nowhere", "empty": "No votes", "file.txt": "no file of votes",
        "bad.json": "no file of votes", "bad.jsonl": "line 1", "bad.parquet": "bad.parquet", "s3://x": "s3://x",
        "--mode pointwise": "--pointwise", "--mode pointwise --pointwise none.csv": "none.csv",
        "--mode pointwise --pointwise bad.parquet": "bad.parquet", "--mode pointwise --pointwise bad.csv": "bad.csv",
        "--mode pointwise --pointwise list.json": "no list of rows", "--ci 2 empty": "--ci",
        "--mode pointwise --pointwise number.json": "no list of rows", "deep.jsonl": "line 1",
        "--mode pointwise --pointwise deep.json": "nested too deeply",
    },
    "ocr-jury-bench": {
        RUNS: "--judge", f"nowhere {JUDGE}": "nowhere", f"file.txt {JUDGE}": "file.txt", f"empty {JUDGE}": "empty",
        f"bench/a cut --images img {JUDGE}": "p0.json", f"bench/a bench/b --images none {JUDGE}": "--images none",
        f"{RUNS} --judge nobody": "--judge nobody", f"{RUNS} {JUDGE} --extra-body x": "--extra-body",
        f"{RUNS} {JUDGE} --criteria none.txt": "none.txt", f"{RUNS} {JUDGE} --output-dir file.txt": "file.txt",
        f"{RUNS} {JUDGE} --max-samples 0": "--max-samples", f"{RUNS} {JUDGE} --budget-usd 1": "--price-in",
    },
    "ocr-vllm-judge": {
        "": "Name a dataset", "nowhere": "nowhere", "file.txt": "file.txt", RUNS: "needs an NVIDIA GPU",
        f"{RUNS} --engine-args x": "--engine-args", f"{RUNS} --output-dir file.txt": "file.txt",
    },
    "ocr-score": {
        "": "OUTPUTS", "nowhere --truth truth": "nowhere", "bench/a": "--truth", "bench/a --truth none": "none",
        "bench/a --truth empty": "empty", "bench/a --truth latin": "not UTF-8", "cut --truth truth": "p0.json",
        "bench/a --truth notes": "pages.jsonl", "bench/a --truth truth --facts none": "none",
        "bench/a --truth truth --facts bad.jsonl": "line 1", "bench/a --truth truth --out file.txt": "file.txt",
        "bench/a --truth truth --facts deep.jsonl": "nested too deeply",
        "bench/a --truth truth --bootstrap 0": "--bootstrap", "bench/a --truth truth --by x": "--by x",
    },
    "ocr-smoke": {
        "": "OUT", "file.txt": "file.txt", "img/p0.png/x": "img/p0.png", "drawn --only x": "no page x",
        "truth --check x=bench/a --baseline bad.json": "bad.json", "truth --check x=bench/a": "--baseline",
        "truth --check x=bench/a --baseline number.json": "number.json",
        "truth --check x=bench/a --baseline deep.json": "nested too deeply",
        "truth --check x=none --baseline f.json --update": "none",
    },
    "ocr-export": {
        "nowhere out": "nowhere", "empty out": "empty", "cut s3://x": "s3://x", "cut out --formats x": "--formats",
        "cut out --dpi 0": "--dpi", "cut out --quality 0": "--quality", "cut out --max-samples 0": "--max-samples",
        "cut out --images none": "none", "cut out --max-error-rate 7": "--max-error-rate",
    },
    "ocr-human-eval": {
        "": "Name a dataset", "nowhere": "nowhere", "empty bench/a": "empty", f"{RUNS} --n 0": "--n",
        "bench/a bench/b --images none": "--images none", f"{RUNS} --port 99999": "--port 99999",
        f"{RUNS} --auth-env NOT_THERE": "NOT_THERE", f"{RUNS} --store file.txt": "file.txt",
        f"{RUNS} --judge-results bad.jsonl": "line 1", f"{RUNS} --pairs-file none": "none",
        f"{RUNS} --judge-results deep.jsonl": "nested too deeply", f"{RUNS} --pairs-file deep.json": "deep.json",
        f"{RUNS} --pairs-file number.json": "number.json", f"{RUNS} --report --store none": "none",
    },
    "ocr-bench-run": {
        "": "Name INPUT", "a/b c/d": "--models", "a/b c/d --models x": "no recipe x", f"{JOB} --catalog none": "none",
        f"{JOB} --catalog deep.json": "deep.json", "--resume --state deep.json": "deep.json",
        f"{JOB} --catalog bad.json": "bad.json", f"{JOB} --catalog number.json": "number.json",
        "--resume --state none.json": "none.json", "--resume --state bad.json": "bad.json",
        f"{JOB} --timeout x": "no duration", f"{JOB} --attempts 0": "--attempts", f"{JOB} --label x": "--label x",
        "img here --models glm-ocr": "here", "a/b c/d --models ./none.py": "none.py",
        f"{JOB} --no-wait --judge true": "--judge", f"{JOB} --judge \"'a\"": "--judge",
        f"{JOB} --judge 'no-such-program {{output}}'": "no-such-program",
        "img --local --output-dir o --models pp-ocrv6 --launcher \"'a\"": "--launcher",
        "img --local --output-dir o --models pp-ocrv6 --launcher no-such-program": "no-such-program",
        "img --local --output-dir file.txt --models pp-ocrv6": "file.txt",
    },
    "ocr-serve": {
        "": "COMMAND", "serve x": "no recipe", "serve glm-ocr --recipes empty": "empty", "stop x": "x",
        "serve pp-ocrv6": "without a server", "install pp-ocrv6": "without a server", "serve ./none.py": "none.py",
        "install x": "no recipe", "serve glm-ocr": "no GPU", "serve glm-ocr --port x": "--port",
    },
    "ocr-endpoint-bench": {
        "": "COMMAND", "run img": "--target", "run img --target x": "--target x", f"{TARGET},timeout=x": "timeout=",
        f'{TARGET} --target "glm-ocr=http://h/v1,args=\'x"': "args=", f"{TARGET},key=NOT_THERE": "NOT_THERE",
        f"{TARGET} --out file.txt": "file.txt", f"{TARGET} --out bench": "bench", f"{TARGET} --gold none": "none",
        f"{TARGET} --repeat 0": "--repeat", f"{TARGET} --timeout 0": "--timeout", "page number.json": "number.json",
        "page deep.json": "nested too deeply",
        f"{TARGET} --concurrency 0": "--concurrency", "page none.json": "none.json", "page bad.json": "bad.json",
        TARGET.replace("img", "nowhere"): "nowhere", TARGET.replace("img", "empty"): "empty",
        f"{TARGET} --fail-under 7": "--fail-under", "adapters --recipes none": "none",
    },
}  # fmt: skip


def test_every_tool_has_its_cases():
    assert set(CASES) == {path.stem for path in OCR.glob("ocr-*.py")}


@pytest.mark.parametrize("tool, words", [(tool, words) for tool, cases in CASES.items() for words in cases])
def test_what_cannot_be_used(tool, words, place, monkeypatch, capsys):
    code = run(tool, words, monkeypatch)
    told = capsys.readouterr()
    assert code == 2, told.err
    assert CASES[tool][words] in told.err and not told.out


@pytest.mark.parametrize(
    "problem, code, said",
    [
        (FileNotFoundError(2, "No such file or directory", "votes"), 2, "Error: votes: No such file or directory"),
        (PermissionError(13, "Permission denied", "/out"), 2, "Error: /out: Permission denied"),
        (OSError(28, "No space left on device"), 1, "Stopped: OSError: [Errno 28] No space left on device"),
        (ConnectionError("reset"), 1, "Stopped: ConnectionError: reset"),
        (KeyboardInterrupt(), 1, "Stopped"),
    ],
)
def test_what_passes_and_what_does_not(problem, code, said, capsys):
    def work():
        raise problem

    assert exit_code_of(work) == code and capsys.readouterr().err.startswith(said)


def test_a_fault_of_ours_is_shown_whole():
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 / 0)
    assert exit_code_of(lambda: json.loads("3")) == 3
