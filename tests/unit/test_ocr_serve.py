"""The serving manager: what fits, downloads, and servers that start, fail, die and stop, with a stand-in engine."""

import contextlib
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest

from tests.unit.endpoints import free_port, nvidia_smi
from tests.unit.recipe_file import load_recipe

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "ocr" / "ocr-serve.py"
GIB = 1 << 30
RECIPE = {"name": "x", "engine": "vllm", "model": "m", "image_tokens": 2000, "max_model_len": 16384}

# What stands for the interpreter with vLLM: it tells a version, and as a server behaves as $STAND_IN says.
ENGINE = """#!{python}
import json, os, subprocess, sys, time
sys.path.insert(0, {root!r})
if sys.argv[1] == "-c":
    print(os.environ.get("STAND_IN_VERSION", "0.29.0"))
    sys.exit()
manner = os.environ.get("STAND_IN", "well")
value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
print("argv", json.dumps(sys.argv[1:]), "CC", os.environ.get("CC"), os.environ.get("NVCC_CCBIN"), flush=True)
if manner == "die":
    print("RuntimeError: no room for the KV cache", flush=True)
    sys.exit(7)
if manner == "compile" and not os.environ.get("NVCC_CCBIN"):
    print("#error -- unsupported GNU version! gcc versions later than 12 are not supported!", flush=True)
    sys.exit(1)
subprocess.Popen(["sleep", "600"])
from tests.unit.endpoints import Endpoint, Handler
name = "other" if manner == "wrong name" else value("--served-model-name")
server = Endpoint("404" if manner == "404" else "well", model=name)
server.server_close()
server.server_address = ("127.0.0.1", int(value("--port")))
import socket
server.socket = socket.socket()
server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.server_bind()
server.server_activate()
server.serve_forever()
"""


@pytest.fixture(scope="module")
def tool():
    return load_recipe("ocr-serve")


@pytest.fixture
def model(tmp_path):
    """A checkpoint's folder as far as the checks look."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["GlmOcr"], "max_position_embeddings": 131072}))
    (folder / "model.safetensors").write_bytes(b"\0" * 1000)
    return folder


@pytest.fixture
def run(tool, tmp_path, model):
    """`run(command, *words, **environment)`: the tool in this process, with a stand-in for vLLM and its own state."""
    engine = tmp_path / "engine"
    engine.write_text(ENGINE.format(python=sys.executable, root=str(ROOT)))
    engine.chmod(0o755)
    home = tmp_path / "state"

    def run(command, *words, **environment):
        if command == "serve":
            words = ("glm-ocr", "--model-id", model, "--python", engine, *words)
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(tool, "HOME", home))
            stack.enter_context(mock.patch.object(sys, "argv", list(map(str, [TOOL, command, *words]))))
            stack.enter_context(mock.patch.dict(os.environ, {"OCR_ALLOW_CPU": "1", **environment}))
            stack.enter_context(contextlib.redirect_stdout(stdout))
            stack.enter_context(contextlib.redirect_stderr(stderr))
            code = tool.main_of_serving()
        last = json.loads(stdout.getvalue().splitlines()[-1]) if stdout.getvalue().strip() else None
        return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue(), last=last)

    run.home = home
    yield run
    for process in marked(home):
        with contextlib.suppress(psutil.Error):
            process.kill()


def marked(home):
    names = {path.stem for path in (home / "servers").glob("*")}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("OCR_SERVE_ID") in names and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


# --- servers ---------------------------------------------------------------------------------------------------------


def test_a_server_from_start_to_stop(run):
    port = free_port()
    started = run("serve", "--port", port)
    assert started.returncode == 0, started.stderr
    assert started.last["url"] == f"http://127.0.0.1:{port}/v1" and started.last["served_name"] == "glm-ocr"
    words = Path(started.last["log"]).read_text()
    assert "--served-model-name" in words and "--max-model-len" in words and "--generation-config" in words

    second = run("serve", "--port", port)
    assert second.returncode == 2
    assert f"Port {port} is in use by glm-ocr" in second.stderr and f"--port {port + 1}" in second.stderr
    assert [row["state"] for row in run("status").last["servers"]] == ["ready"]

    assert run("stop", "glm-ocr").last["stopped"] == ["glm-ocr"]
    assert not marked(run.home), "its children are gone too"
    assert run("status").last["servers"] == [] and Path(started.last["log"]).exists()


def test_a_killed_server_is_noticed_and_leaves_nothing_behind(run):
    port = free_port()
    assert run("serve", "--port", port).returncode == 0
    server = next(p for p in marked(run.home) if "vllm.entrypoints.cli.main" in p.cmdline() and "-c" not in p.cmdline())
    server.send_signal(signal.SIGKILL)
    for _ in range(600):
        if not marked(run.home):
            break
        time.sleep(0.1)
    noticed = run("status", "glm-ocr")
    (row,) = noticed.last["servers"]
    assert row["state"] == "ended" and "exit code -9, killed by a signal" in row["says"] and noticed.returncode == 1
    assert not marked(run.home)
    again = run("serve", "--port", port)
    assert again.returncode == 0, "nothing of the dead one is blamed on the next"
    run("stop", "--all")


@pytest.mark.parametrize(
    "manner, said",
    [("die", "exit code 7"), ("wrong name", "lists other and not glm-ocr"), ("404", "a trial page got no answer")],
)
def test_a_server_that_does_not_become_ready_is_ended_and_says_why(run, manner, said):
    done = run("serve", "--port", free_port(), "--wait", "240", STAND_IN=manner)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Its log ends:" in done.stderr and ("no room for the KV cache" in done.stderr) == (manner == "die")
    assert not marked(run.home) and run("status").last["servers"] == []


def test_one_model_per_gpu(run, tmp_path):
    path = nvidia_smi(tmp_path / "bin")
    first = run("serve", "--port", free_port(), PATH=path)
    assert first.returncode == 0, first.stderr
    assert run("status", PATH=path).last["servers"][0]["gpu"] == "0"
    second = run("serve", "--port", free_port(), "--name", "second", PATH=path)
    assert second.returncode == 2 and "GPU 0 has glm-ocr already" in second.stderr
    assert "shows 0" in run("serve", "--port", free_port(), "--gpu", "3", PATH=path).stderr
    run("stop", "--all", PATH=path)


def test_a_port_of_a_stranger_is_left_alone(run):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen(256)
        done = run("serve", "--port", held.getsockname()[1])
    assert done.returncode == 2 and "a program that was not started here" in done.stderr
    assert not (run.home / "servers").exists()


def test_a_kernel_that_does_not_compile_is_tried_with_an_older_gcc(run, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("gcc", "gcc-12", "g++-12", "gcc-11", "g++-11"):
        (folder / name).write_text("#!/bin/sh\necho 13\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = run("serve", "--port", free_port(), STAND_IN="compile", PATH=path)
    assert done.returncode == 0, done.stderr
    assert f"trying again with {folder / 'gcc-12'}" in done.stderr
    assert str(folder / "g++-12") in Path(done.last["log"]).read_text()
    assert len(list((run.home / "logs").iterdir())) == 2, "each attempt has a log of its own"
    run("stop", "--all")
    again = run("serve", "--port", free_port(), STAND_IN="compile", PATH=path)
    assert again.returncode == 0 and "trying again" not in again.stderr, "what helped is remembered"
    run("stop", "--all")


def test_a_model_that_is_not_here_and_an_engine_of_the_wrong_version(run, model):
    wrong = run("serve", "--port", free_port(), STAND_IN_VERSION="0.11.0")
    assert wrong.returncode == 2 and "0.11.0 at" in wrong.stderr and "ocr-serve.py install glm-ocr" in wrong.stderr
    (model / "model.safetensors").unlink()
    done = run("serve", "--port", free_port())
    assert done.returncode == 2 and "ocr-serve.py download glm-ocr" in done.stderr


def test_flags_behind_two_dashes_are_the_recipes(run):
    done = run("serve", "--dry-run", "--max-num-seqs", "4", "--", "--max-model-len", "9000")
    words = done.last["command"]
    assert words[words.index("--max-model-len") + 1] == "9000" and words[words.index("--max-num-seqs") + 1] == "4"
    sglang = run("serve", "--dry-run", "--engine", "sglang").last["command"]
    assert sglang[1:3] == ["-m", "sglang.launch_server"] and sglang[sglang.index("--context-length") + 1] == "16384"


def test_names_that_are_not_there(run):
    assert "Did you mean" in run("download", "glm-orc").stderr
    stopped = run("stop", "nobody")
    assert stopped.returncode == 2 and "No server nobody" in stopped.stderr


# --- what fits -------------------------------------------------------------------------------------------------------


def card(gib, capability=(8, 9)):
    return {"index": "0", "name": "GPU", "total": gib * GIB, "free": gib * GIB, "capability": capability, "driver": "1"}


@pytest.mark.parametrize(
    "weights, gpu, disk, verdict, reason",
    [
        (2, card(24), 100, "fits", "about 2.0 GiB of weights"),
        (2, None, 100, "no", "no NVIDIA GPU"),
        (2, card(24, (7, 0)), 100, "no", "compute capability 7.0, vLLM needs 7.5"),
        (2, card(24), 2, "no", "needs 2.5 GiB of disk, 2.0 GiB are free"),
        (6, card(8), 100, "small", "3 GiB of weights in host memory"),
        (9, card(16), 100, "small", "shorter context"),
        (1, card(4), 100, "no", "1.0 GiB of weights leave no room for a page"),
        (60, card(24), 1000, "no", "to host memory"),
        (None, card(24), 100, "small", "not known"),
    ],
)
def test_what_fits(tool, monkeypatch, weights, gpu, disk, verdict, reason):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    size = weights and int(weights * GIB)
    found = tool.fit_of(RECIPE, size, gpu, 32 * GIB, disk * GIB, False)
    assert (found[0], reason in found[1]) == (verdict, True), found


def test_a_mac_is_told_about_mlx(tool, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "MLX" in tool.fit_of(RECIPE, GIB, None, 32 * GIB, 100 * GIB, False)[1]
    assert tool.fit_of(RECIPE | {"engine": "local"}, GIB, None, 0, 0, False)[0] == "no"


def test_the_small_profile(tool):
    asked = SimpleNamespace(profile="auto", gpu_memory_utilization=None, max_model_len=None, max_num_seqs=None,
                            max_num_batched_tokens=None)  # fmt: skip
    assert tool.profile_args(asked, RECIPE, 2 * GIB, card(24)) == ({}, None)
    changed, tokens = tool.profile_args(asked, RECIPE, 6 * GIB, card(8))
    assert changed == {"max_model_len": 7168, "max_num_seqs": 8, "gpu_memory_utilization": 0.85, "cpu_offload_gb": 3,
                       "enforce_eager": True} and tokens == 4096  # fmt: skip
    assert tool.profile_args(asked, RECIPE, 2 * GIB, card(16, (7, 5)))[0] == {"dtype": "float16"}
    asked.max_num_seqs = 2
    assert tool.profile_args(asked, RECIPE, 6 * GIB, card(8))[0]["max_num_seqs"] == 2


def test_sglang_is_not_given_what_it_cannot_do(tool):
    asked = SimpleNamespace(host="h", port=1, name="n", engine="sglang")
    with pytest.raises(tool.Stop, match="logits processor"):
        tool.serve_words(asked, RECIPE, None, {"model": "m", "logits_processors": ["a:b"]}, "python")
    words = tool.serve_words(asked, RECIPE, None, {"model": "m", "trust_remote_code": True, "dtype": "half"}, "python")
    assert words[-3:] == ["--dtype", "half", "--trust-remote-code"]


def test_vendor_commands_are_filled_in(tool):
    recipe = RECIPE | {"server_command": ["vendor", "{model}", "--port", "{port}", "{max_model_len}"]}
    own = SimpleNamespace(model="m")
    asked = SimpleNamespace(host="h", port=81, name="n", engine="vllm")
    assert tool.serve_words(asked, recipe, own, {"max_model_len": 9}, "p") == ["vendor", "m", "--port", "81", "9"]


def test_what_the_authors_serve_is_left_to_the_recipe(tool):
    kinds = {path.stem: tool.vendor_engine(path) for path in (ROOT / "ocr").glob("*.py")}
    assert kinds["glm-ocr"] is kinds["dots-mocr"] is None
    assert kinds["monkeyocrv2"] == "serve_monkey" and kinds["teleocr"] == "serve_plugin"


def test_list_reads_the_catalogue(run):
    done = run("list")
    rows = {row["name"]: row for row in done.last["models"]}
    assert rows["glm-ocr"]["weight_bytes"] == 1_800_000_000 and not rows["glm-ocr"]["downloaded"]
    assert rows["tesseract-ocr"]["verdict"] == "no" and done.returncode == 0
    assert "authors' program" in rows["monkeyocrv2"]["reason"]


# --- downloads and login ---------------------------------------------------------------------------------------------


@pytest.fixture
def filled(hub, tmp_path):
    """A Hub with a checkpoint in several formats; (hub, the tool's environment)."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["GlmOcr"]}')
    (folder / "model.safetensors").write_bytes(os.urandom(200_000))
    (folder / "pytorch_model.bin").write_bytes(b"\1" * 300_000)
    (folder / "model.gguf").write_bytes(b"\2" * 300_000)
    hub.api().create_repo("user/tiny")
    hub.api().upload_folder(repo_id="user/tiny", folder_path=folder)
    return hub


def download(hub, *words, **environment):
    done = subprocess.run(
        [sys.executable, str(TOOL), "download", "glm-ocr", "--model-id", "user/tiny", *words],
        env={**hub.env, **environment}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    done.last = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None
    return done


def test_downloads(filled):
    home = Path(filled.env["HF_HOME"])
    code = (
        "import runpy, shutil, sys\n"
        "shutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9, 512 * 2**20 + 150_000)\n"
        f"sys.argv = [{str(TOOL)!r}, 'download', 'glm-ocr', '--model-id', 'user/tiny']\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    full = subprocess.run([sys.executable, "-c", code], env=filled.env, capture_output=True, text=True, timeout=240)
    assert full.returncode == 2, full.stderr
    assert "512 MiB to spare" in full.stderr and "0.5 GiB free at" in full.stderr and str(home) in full.stderr
    assert not (home / "hub").exists(), "a full disk is noticed before anything is made"

    first = download(filled)
    assert first.returncode == 0, first.stderr
    names = {path.name for path in Path(first.last["path"]).iterdir()}
    assert {"config.json", "model.safetensors"} <= names and not names & {"pytorch_model.bin", "model.gguf"}
    assert first.last["fetched_bytes"] >= 200_000
    assert download(filled).last["fetched_bytes"] == 0, "what is there is kept"

    missing = download(filled, "--model-id", "user/nothing")
    assert missing.returncode == 2 and "user/nothing cannot be found" in missing.stderr
    assert "ocr-serve.py login" in missing.stderr


class DeviceLogin(BaseHTTPRequestHandler):
    """The Hub's device-code login, confirmed at the second question."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked += self.path == "/oauth/token"
        if self.path == "/oauth/device":
            self.answer({"device_code": "the-device-code", "user_code": "ABCD-1234", "interval": 0, "expires_in": 60,
                         "verification_uri": f"{self.server.url}/device"})  # fmt: skip
        elif self.server.asked < 2:
            self.answer({"error": "authorization_pending"}, 400)
        else:
            self.answer({"access_token": "hf_unseentoken1234567890", "expires_in": 3600})

    def do_GET(self):
        self.answer({"name": "somebody", "type": "user", "auth": {"accessToken": {"displayName": "x", "role": "read"}}})

    def answer(self, reply, status=200):
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


class DeviceServer(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def test_login_shows_a_code_and_never_a_token(tmp_path):
    server = DeviceServer(("127.0.0.1", 0), DeviceLogin)
    server.url, server.asked = f"http://127.0.0.1:{server.server_port}", 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, str(TOOL), "login"], capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
        env={**environment, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_UPDATE_CHECK": "1"},
    )  # fmt: skip
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    assert "ABCD-1234" in done.stderr and "/device" in done.stderr
    assert json.loads(done.stdout) == {"user": "somebody", "exit_code": 0}
    assert "hf_unseen" not in done.stdout + done.stderr
    assert (tmp_path / "token").read_text() == "hf_unseentoken1234567890"


def test_installing_is_left_to_uv(run, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(
        '#!/bin/sh\necho "$@" >> ' + str(tmp_path / "asked") + "\n"
        '[ "$1" = venv ] && mkdir -p "$5/bin" && touch "$5/bin/python"\nexit 0\n'
    )
    (folder / "uv").chmod(0o755)
    done = run("install", "glm-ocr", PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "vllm==0.29.0" in (tmp_path / "asked").read_text() and done.last["python"].endswith("vllm-0.29.0/bin/python")
