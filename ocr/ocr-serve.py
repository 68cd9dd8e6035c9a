# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "datasets>=5.2.0",
#     "httpx2>=2.9",
#     "huggingface_hub>=2.4.0",
#     "pillow>=11",
#     "psutil>=6",
#     "pypdfium2>=5.0",
#     "saturate>=0.2.0",
# ]
#
# [tool.hf-jobs]
# # The tag that most recipes were read with. Loosen to any later tag that serves the model in question.
# image = "vllm/vllm-openai:v0.29.0"
# flavor = "a10g-small"
# python = "/usr/bin/python3"
# env = { PYTHONPATH = "/usr/local/lib/python3.12/dist-packages" }
# secrets = ["HF_TOKEN"]
# timeout = "8h"
# ///
"""OCR serving: what fits this machine, its download, and an OpenAI-compatible endpoint that outlives the terminal.

    uv run ocr/ocr-serve.py list
    uv run ocr/ocr-serve.py install glm-ocr
    uv run ocr/ocr-serve.py download glm-ocr
    uv run ocr/ocr-serve.py serve glm-ocr --port 8000
    uv run ocr/ocr-endpoint-bench.py run samples --target glm-ocr=http://127.0.0.1:8000/v1
    uv run ocr/ocr-serve.py status
    uv run ocr/ocr-serve.py stop glm-ocr

MODEL is a recipe of this folder, its path, or its model's id. The server gets the flags of the recipe's own RECIPE
table; what stands behind `--` are options of the recipe, as `-- --max-pixels 1000000`. A small GPU gets a shorter
context, few pages at a time, and weights in host memory if need be (`--profile`), which is about ten times slower.
`serve` returns when GET /v1/models lists the name and a page was answered. One model per GPU. `login` asks for a device
code in the browser; no token is shown or asked for. State and logs: `~/.local/state/ocr-serve` or $OCR_SERVE_HOME.

Hardware: an NVIDIA GPU with compute capability 7.5 or higher. Apple Silicon: SERVING.md.
Output: one JSON line last on stdout. Exit code 1: the server did not become ready, or a download was cut; same command.
Licence: Apache-2.0.
Source: the rules of https://github.com/nbadino/tabularium and its test log.
"""

import argparse
import asyncio
import contextlib
import fnmatch
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path

# >>> shared imports
# isort: split
import ast
import atexit
import base64
import difflib
import functools
import hashlib
import importlib.util
import io
import ipaddress
import itertools
import math
import multiprocessing
import queue
import random
import secrets
import shlex
import signal
import tempfile
import threading
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

# <<< shared imports

HOME = Path(os.environ.get("OCR_SERVE_HOME") or Path.home() / ".local" / "state" / "ocr-serve")
SPARE_DISK = 512 << 20  # a partial and a whole file lie side by side for a moment
MARK = "OCR_SERVE_ID"  # in the environment of every process of a server: process ids are used again, this is not
OLDEST_CAPABILITY, BFLOAT16_CAPABILITY = (7, 5), (8, 0)
LOAD_GIB, CACHE_GIB, SHARE = 1.5, 2.0, 0.85  # of GPU memory: beside the weights, for the cache, and what is used at all
SMALL_TOKENS, SMALL_PAGES = 4096, 8  # of the consumer profile: longest answer, pages at a time
END_PATIENCE = 20  # seconds from SIGTERM to SIGKILL
TRIAL_SECONDS = 300
COMPILERS = range(15, 8, -1)  # versions of GCC that are looked for
COMPILER_FAILURE = re.compile(
    r"unsupported GNU version|gcc versions later than|nvcc (?:fatal|error)|Error building extension|"
    r"ninja: build stopped|cc1plus: fatal|#error -- unsupported"
)
# Starts the server, keeps its exit code, and leaves nothing of its group behind, however it ended.
KEEPER = """
import json, os, signal, subprocess, sys, time
note, command = sys.argv[1], sys.argv[2:]
server = subprocess.Popen(command)
asked = []
signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), server.terminate()))
code = server.wait()
with open(note + ".part", "w") as file:
    json.dump({"exit_code": code, "ended": time.time(), "asked": bool(asked)}, file)
os.replace(note + ".part", note)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
time.sleep(3)
os.killpg(0, signal.SIGKILL)
"""
# SGLang's words for what vLLM calls otherwise; the rest of RECIPE's engine arguments is vLLM's alone.
SGLANG_WORDS = {
    "revision": "--revision", "max_model_len": "--context-length", "gpu_memory_utilization": "--mem-fraction-static",
    "max_num_seqs": "--max-running-requests", "tensor_parallel_size": "--tp-size", "dtype": "--dtype",
    "cpu_offload_gb": "--cpu-offload-gb", "trust_remote_code": "--trust-remote-code",
}  # fmt: skip


# ---- What fits


def vendor_engine(path):
    """The name of the function by which a recipe starts a server of its authors', None where plain vLLM serves it."""
    found = re.search(r"engines=\{[^}]*\"serve\": (\w+)", Path(path).read_text().rpartition("# <<< shared part")[2])
    return found[1] if found and found[1] != "serve" else None


def weight_estimate(name, folder):
    """Bytes of the weights by the catalogue's number of parameters at two bytes each, or None."""
    catalogue = Path(folder).parent / "models.json"
    entries = json.loads(catalogue.read_text()) if catalogue.is_file() else []
    named = {entry["name"]: entry for entry in entries}
    entry = named.get(name, {})
    words = str(entry.get("params") or named.get(entry.get("variant_of"), {}).get("params") or "")
    found = re.match(r"~?([\d.]+)\s*([BM])", words)
    return int(float(found[1]) * {"B": 2e9, "M": 2e6}[found[2]]) if found else None


def fit_of(recipe, weights, card, memory, disk, installed):
    """(verdict, reason): "fits", "small" (with the consumer profile) or "no". Sizes are bytes, `card` is a GPU or None.

    `installed` says that the weights are on this disk, which then need no room.
    """
    if recipe["engine"] != "vllm":
        return "no", "runs without a server: start its file"
    if card is None:
        on_mac = platform.system() == "Darwin"
        return "no", "vLLM has no GPU engine for macOS; see SERVING.md about MLX" if on_mac else "no NVIDIA GPU here"
    if card["capability"] and card["capability"] < OLDEST_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (card["capability"], OLDEST_CAPABILITY))
        return "no", f"the GPU has compute capability {have}, vLLM needs {need}"
    if weights is None:
        return "small", "its size is not known here; `download` will tell"
    if not installed and disk < weights + SPARE_DISK:
        return "no", f"needs {gib(weights + SPARE_DISK)} of disk, {gib(disk)} are free"
    offload = offload_gib(weights, card["total"])
    if offload * GIB > weights:
        return "no", f"{gib(weights)} of weights leave no room for a page in {gib(card['total'])} of GPU memory"
    if offload and memory and memory < max(8 * GIB, 1.25 * weights + 6 * GIB):
        return "no", f"{offload} GiB of weights would go to host memory, and {gib(memory)} are too few for that"
    if offload:
        return "small", f"{offload} GiB of weights in host memory: about ten times slower"
    if is_tight(weights, card):
        return "small", "shorter context, few pages at a time"
    return "fits", f"about {gib(weights)} of weights, {gib(card['total'])} of GPU memory"


def is_tight(weights, card):
    return 1.2 * weights > 0.6 * card["total"]


def offload_gib(weights, vram):
    """GiB of weights that have to stay in host memory, 0 where all of them fit."""
    deficit = weights / GIB + LOAD_GIB + CACHE_GIB - SHARE * vram / GIB
    return max(0, -int(-deficit // 1))


def gib(size):
    return f"{size / GIB:.1f} GiB"


def command_list(options):
    from huggingface_hub.constants import HF_HUB_CACHE

    cards, memory = gpu_cards(), total_memory()
    card = max(cards, key=lambda card: card["total"], default=None)
    disk, place = free_disk(HF_HUB_CACHE)
    shown = f"{card['name']}, {gib(card['total'])}" if card else "no NVIDIA GPU"
    say(f"{shown}; {gib(memory or 0)} of memory; {gib(disk)} free at {place}")
    rows = []
    for path, table in recipe_tables(options.recipes).items():
        here = installed_weights(table["model"], table.get("revision"))
        weights = here or weight_estimate(path.stem, options.recipes)
        verdict, reason = fit_of(table, weights, card, memory, disk, bool(here))
        if vendor_engine(path):
            verdict, reason = "no", "its authors' program serves it, and its own file starts that"
        rows.append({"name": path.stem, "model": table["model"], "verdict": verdict, "reason": reason,
                     "weight_bytes": weights, "downloaded": bool(here)})  # fmt: skip
        say(f"  {path.stem:<24} {verdict:<6} {'downloaded' if here else '':<11} {reason}")
    print(json.dumps({"gpus": hardware()["gpus"], "free_disk_bytes": disk, "models": rows, "exit_code": 0}))
    return 0


# ---- Weights


def unneeded_files(names):
    """Patterns of weight files that vLLM does not read beside the others: it takes the first kind that is there."""
    kinds = [kind for kind in ("*.safetensors", "*.bin", "*.pt", "*.pth") if any(n.endswith(kind[1:]) for n in names)]
    return [*kinds[1:], "*.gguf", "*.onnx", "*.msgpack", "*.h5", "original/*"]


def installed_weights(model, revision=None):
    """Bytes of a model's weights on this disk, 0 unless config.json and all that its index names are there."""
    from huggingface_hub import try_to_load_from_cache

    folder = model
    if not os.path.isdir(model):
        config = try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(config, str):
            return 0
        folder = os.path.dirname(config)
    folder = Path(folder)
    weights = [path for kind in ("*.safetensors", "*.bin", "*.pt") for path in folder.glob(kind)]
    named = set()
    for index in folder.glob("*.index.json"):
        with contextlib.suppress(ValueError, KeyError):
            named |= set(json.loads(index.read_text())["weight_map"].values())
    if not (folder / "config.json").exists() or not weights or not all((folder / name).exists() for name in named):
        return 0
    return sum(path.stat().st_size for path in weights)


def command_download(options):
    """Fetches a model into the cache that vLLM reads. What is there already is kept: the same command resumes."""
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    table = recipe_table(find_recipe(options.model, options.recipes))
    model, revision = table["model"], table.get("revision")
    model = options.model_id or model
    try:
        info = persist(lambda: HfApi().model_info(model, revision=revision, files_metadata=True), FIRST_PATIENCE)
    except Exception as problem:
        raise Stop(
            f"{model} cannot be found on the Hub: {first_line(problem)}. "
            "For a gated model accept its terms on its page, then `ocr-serve.py login`."
        ) from problem
    sizes = {file.rfilename: file.size or 0 for file in info.siblings}
    skipped = unneeded_files(sizes)
    wanted = {name: size for name, size in sizes.items() if not any(fnmatch.fnmatch(name, kind) for kind in skipped)}
    missing = sum(
        size for name, size in wanted.items()
        if not isinstance(try_to_load_from_cache(model, name, revision=info.sha), str)
    )  # fmt: skip
    free, place = free_disk(HF_HUB_CACHE)
    total = sum(wanted.values())
    if missing and free < missing + SPARE_DISK:
        raise Stop(
            f"{model} has {gib(total)}, {gib(missing)} of it are missing, and with {SPARE_DISK >> 20} MiB to spare "
            f"that is more than the {gib(free)} free at {place} (for {HF_HUB_CACHE}). "
            "Make room there, or set HF_HOME to a folder on a larger disk."
        )
    say(f"{model}: {gib(missing)} of {gib(total)} to fetch into {HF_HUB_CACHE}, {gib(free)} free.")
    try:
        path = persist(lambda: snapshot_download(model, revision=revision or info.sha, ignore_patterns=skipped))
        if revision is None:  # the name that vLLM asks the cache for
            path = persist(lambda: snapshot_download(model, ignore_patterns=skipped))
    except KeyboardInterrupt:
        raise Stop("The download was stopped. The same command goes on where it ended.", code=1) from None
    except Exception as problem:
        raise Stop(f"The download broke off: {first_line(problem)}. The same command resumes.", code=1) from problem
    if not installed_weights(path):
        raise Stop(f"{model} is here without weights that vLLM reads: {path}. Check the repository's files.")
    print(
        json.dumps(
            {
                "model": model,
                "revision": info.sha,
                "path": path,
                "bytes": total,
                "fetched_bytes": missing,
                "exit_code": 0,
            }
        )
    )
    return 0


def command_login(options):
    """The Hub's device-code login: a URL and a code are shown, the token goes from the Hub into its file, unseen."""
    from huggingface_hub import login, whoami

    # Without a terminal the library offers no field to paste a token into. What it prints is for the human.
    with open(os.devnull) as nothing, contextlib.redirect_stdout(sys.stderr):
        stdin, sys.stdin = sys.stdin, nothing
        try:
            login(skip_if_logged_in=False)
        except Exception as problem:
            raise Stop(f"The login did not succeed: {first_line(problem)}. Start it again.") from None
        finally:
            sys.stdin = stdin
    print(json.dumps({"user": whoami()["name"], "exit_code": 0}))
    return 0


# ---- The engine's environment


def engine_folder(recipe, engine):
    version = (recipe.get("vllm") or {}).get("tested", "any") if engine == "vllm" else "any"
    return HOME / "engines" / f"{engine}-{version}"


def command_install(options):
    """Makes an environment with the vLLM that the recipe was tested with, for all recipes of that version."""
    path = find_recipe(options.model, options.recipes)
    module_table = recipe_table(path)
    if module_table["engine"] != "vllm":
        raise Stop(f"{path.name} runs without a server: uv run {path} INPUT OUTPUT.")
    folder, window = engine_folder(module_table, options.engine), module_table.get("vllm") or {}
    package = f"vllm=={window['tested']}" if options.engine == "vllm" and window.get("tested") else options.engine
    if not shutil.which("uv"):
        raise Stop(
            "uv is not on PATH; it makes the environment. See https://docs.astral.sh/uv/ , then the same command."
        )
    if (folder / "bin" / "python").exists():
        say(f"{folder} is there already.")
    else:
        free, place = free_disk(HOME)
        if free < 16 * GIB:
            raise Stop(
                f"vLLM and its CUDA libraries need about 16 GiB, and {place} has {gib(free)} free. Make room there."
            )
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        for command in (
            ["uv", "venv", "--python", "3.12", "--relocatable", part],
            ["uv", "pip", "install", "--python", part / "bin" / "python", package],
        ):
            if subprocess.run(list(map(str, command)), stdout=2).returncode:
                raise Stop(f"`{' '.join(map(str, command))}` failed; see above. The same command starts anew.", code=1)
        os.replace(part, folder)
    print(json.dumps({"engine": package, "python": str(folder / "bin" / "python"), "exit_code": 0}))
    return 0


def engine_python(recipe, options):
    """(interpreter that has the engine in a version for this recipe, version). Raises Stop."""
    from packaging.version import Version

    package, window = options.engine, (recipe.get("vllm") or {}) if options.engine == "vllm" else {}
    own = [options.python] if options.python else [
        str(engine_folder(recipe, options.engine) / "bin" / "python"), recipe.get("server_python"), sys.executable
    ]  # fmt: skip
    found = []
    for python in filter(None, own):
        probe = f"import importlib.metadata as m; print(m.version({package!r}))"
        with contextlib.suppress(OSError):
            version = subprocess.run(
                [python, "-c", probe], env=clean_environment(python), capture_output=True, text=True, timeout=120
            ).stdout.strip()
            if not version:
                continue
            too_old = Version(version) < Version(window.get("min", "0"))
            too_new = window.get("below") and Version(version) >= Version(window["below"])
            if not too_old and not too_new and version not in window.get("exclude", {}):
                return python, version
            found.append(f"{version} at {python}")
    wanted = " ".join(f"{sign}{window[key]}" for key, sign in (("min", ">="), ("below", "<")) if window.get(key))
    raise Stop(
        f"{recipe['name']} needs {package} {wanted}, and here is {', '.join(found) or 'none'}. Make an environment:\n"
        f"  ocr-serve.py install {recipe['name']}"
        + (" --engine sglang" if package == "sglang" else "")
        + "\nor name an interpreter that has it: --python PATH."
    )


# ---- Servers


def records():
    """The records of all servers that were started here, oldest first."""
    found = []
    for path in sorted((HOME / "servers").glob("*.json")):
        with contextlib.suppress(ValueError):
            found.append(json.loads(path.read_text()))
    return found


def keep(record):
    path = HOME / "servers" / f"{record['id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1))
    os.replace(part, path)


def processes_of(record):
    """The live processes of a server, told by the mark in their environment and never by a stored process id."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == record["id"] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def exit_note(record):
    """What the keeper noted when the server ended, or None."""
    path = HOME / "servers" / f"{record['id']}.exit"
    return json.loads(path.read_text()) if path.exists() else None


def state_of(record):
    """("ready" | "loading" | "silent" | "ended" | "stopped", a sentence), as it is now."""
    if record["phase"] == "stopped":
        return "stopped", "stopped on request"
    note, processes = exit_note(record), processes_of(record)
    if note or not processes:
        code = f" with exit code {note['exit_code']}" if note else ""
        killed = ", killed by a signal" if note and note["exit_code"] < 0 else ""
        return "ended", f"its process ended{code}{killed}; log: {record['log']}"
    models, error = asyncio.run(ask_models(record["url"]))
    if record["phase"] != "ready":
        return "loading", error or "not asked for a page yet"
    if record["served_name"] in (models or {}):
        return "ready", record["url"]
    return "silent", error or f"{record['url']} does not list {record['served_name']}"


async def ask_models(url):
    async with open_client(api_key(), 3) as client:
        return await served_models(client, url, 3)


def api_key():
    return os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")


def listens_on(port, processes):
    """Whether one of the processes is the one that listens on the port; True where the system does not tell."""
    import psutil

    told = False
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            asked = getattr(process, "net_connections", None) or process.connections
            connections, told = asked(kind="inet"), True
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
                return True
    return not told


def port_is_taken(host, port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return False
        except OSError:
            return True


def alive_records():
    return [
        record
        for record in records()
        if record["phase"] not in ("stopped", "ended") and not exit_note(record) and processes_of(record)
    ]


def check_free(options, gpu):
    """Raises Stop if the port is in use, or the GPU has a model of ours."""
    running = alive_records()
    same = next((record for record in running if record["port"] == options.port), None)
    if same:
        raise Stop(
            f"Port {options.port} is in use by {same['name']}, started {same['started']}. Stop it with\n"
            f"  ocr-serve.py stop {same['name']}\nor take another port: --port {options.port + 1}."
        )
    if port_is_taken(options.host, options.port):
        raise Stop(
            f"Port {options.port} is in use by a program that was not started here. "
            f"Take another one: --port {options.port + 1}."
        )
    shared = next((record for record in running if gpu is not None and record["gpu"] == gpu), None)
    if shared:
        raise Stop(
            f"GPU {gpu} has {shared['name']} already, and two models on one GPU starve each other. "
            f"Stop it (ocr-serve.py stop {shared['name']}) or name another GPU: --gpu N."
        )


def chosen_card(options):
    """The GPU to use: --gpu, else the first that has no model of ours; None where there is none. Raises Stop."""
    cards = gpu_cards()
    if options.gpu is not None:
        card = next((card for card in cards if card["index"] == options.gpu), None)
        if card is None:
            raise Stop(
                f"There is no GPU {options.gpu}; nvidia-smi shows {', '.join(c['index'] for c in cards) or 'none'}."
            )
        return card
    if not cards:
        if os.environ.get("OCR_ALLOW_CPU") == "1":
            return None
        raise Stop("nvidia-smi shows no GPU here. Set OCR_ALLOW_CPU=1 to try without; on a Mac see SERVING.md.")
    taken = {record["gpu"] for record in alive_records()}
    return next((card for card in cards if card["index"] not in taken), cards[0])


def profile_args(options, recipe, weights, card):
    """Engine arguments that the profile and the flags change, and the longest answer that is left."""
    changed, tokens = {}, None
    small = options.profile == "small" or (options.profile == "auto" and card and weights and is_tight(weights, card))
    if small:
        room = (recipe.get("image_tokens") or 4096) + SMALL_TOKENS + 512
        length = -(-room // 1024) * 1024
        if length < (recipe.get("max_model_len") or length + 1):
            changed["max_model_len"], tokens = length, SMALL_TOKENS
        changed |= {"max_num_seqs": SMALL_PAGES, "gpu_memory_utilization": SHARE}
        offload = offload_gib(weights, card["total"]) if card and weights else 0
        changed |= {"cpu_offload_gb": offload, "enforce_eager": True} if offload else {}
    if card and card["capability"] and card["capability"] < BFLOAT16_CAPABILITY:
        changed["dtype"] = "float16"  # these GPUs have no bfloat16; vLLM refuses it there
    flags = ("gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    given = {key: getattr(options, key) for key in flags if getattr(options, key) is not None}
    return changed | given, tokens


def serve_words(options, recipe, recipe_options_, args, python):
    """The command that starts the server, from the recipe's table. Raises Stop for what SGLang cannot take over."""
    host, port, name = options.host, options.port, options.name
    if recipe.get("server_command"):
        filled = {
            "{model}": recipe_options_.model,
            "{port}": str(port),
            "{max_model_len}": str(args.get("max_model_len")),
        }
        return [filled.get(word, word) for word in recipe["server_command"]]
    if options.engine == "sglang":
        if args.get("logits_processors"):
            raise Stop(f"{recipe['name']} needs a logits processor of vLLM, without which it loops. Use --engine vllm.")
        words = [python, "-m", "sglang.launch_server", "--model-path", args["model"], "--served-model-name", name]
        words += ["--host", host, "--port", str(port)]
        for key, flag in SGLANG_WORDS.items():
            if args.get(key) not in (None, False):
                words += [flag] if args[key] is True else [flag, str(args[key])]
        left = sorted(set(args) - set(SGLANG_WORDS) - {"model", "generation_config", "limit_mm_per_prompt",
                                                       "enable_prefix_caching", "mm_processor_cache_gb"})  # fmt: skip
        if left:
            say(f"SGLang gets none of vLLM's {', '.join(left)}: answers may differ from the recipe's.")
        return words
    args = args | {"served_model_name": name, "host": host, "port": port}
    args["chat_template_content_format"] = chat_arguments(recipe)["chat_template_content_format"]
    return [python, "-m", "vllm.entrypoints.cli.main", "serve", *cli_args(args)]


def older_compilers():
    """Environments that name an older GCC each, the newest first: nvcc refuses GCCs that came after it."""
    found = []
    shown = (
        subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True).stdout if shutil.which("gcc") else ""
    )
    own = int(shown.split(".")[0]) if shown.split(".")[0].strip().isdecimal() else 99
    for version in COMPILERS:
        gcc, gxx = shutil.which(f"gcc-{version}"), shutil.which(f"g++-{version}")
        if gcc and gxx and version < own:
            found.append({"CC": gcc, "CXX": gxx, "NVCC_CCBIN": gxx})
    return found


def start_server(record, command, environment):
    """Starts the server under its keeper, in a process group of its own, with a log of its own."""
    (HOME / "logs").mkdir(parents=True, exist_ok=True)
    note = HOME / "servers" / f"{record['id']}.exit"
    note.parent.mkdir(parents=True, exist_ok=True)
    with open(record["log"], "ab") as log:
        subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(note), *command], env=environment | {MARK: record["id"]},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    keep(record)


def end_server(record):
    """Ends all processes of a server: SIGTERM, and after END_PATIENCE seconds SIGKILL. Returns how many there were."""
    import psutil

    processes = processes_of(record)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=END_PATIENCE)
    for process in [*alive, *processes_of(record)]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
    return len(processes)


def wait_until_ready(record, module, options, recipe, seconds):
    """None once the server lists its name and answers a page, else why not. Only this server's own end counts."""
    deadline = time.monotonic() + seconds
    error, shown = "it was not asked yet", time.monotonic()
    while time.monotonic() < deadline:
        processes, note = processes_of(record), exit_note(record)
        if note or not processes:
            return f"it ended with exit code {note['exit_code']}" if note else "it ended"
        models, error = asyncio.run(ask_models(record["url"]))
        if models is not None and not listens_on(record["port"], processes_of(record)):
            return f"another program answers on port {record['port']}"
        if models is not None and record["served_name"] not in models:
            return f"{record['url']} lists {', '.join(models) or 'nothing'} and not {record['served_name']}"
        if models is not None:
            return asyncio.run(trial(record, module, options, recipe))
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            say(f"Waiting for {record['name']} ({int(deadline - shown)} s left); log: {record['log']}")
        time.sleep(1)
    return f"it was not ready after {seconds} s ({error})"


def trial_page(module):
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (448, 336), "white")
    ImageDraw.Draw(image).text((40, 60), "Trial page", fill="black")
    return module.Unit("trial", [module.Page(image, *image.size)])


async def trial(record, module, options, recipe):
    """None if the server answers the recipe's own request about a small page, else why not."""
    unit = trial_page(module)
    steps = getattr(module, "steps", None) or module.one_step(module.request, module.parse)
    body = module.complete(next(steps(unit, options))[0], options, recipe, unit) | {"max_tokens": 8}
    wired = module.wire(body, argparse.Namespace(model=record["served_name"]), recipe)
    trace = blank_trace(wired)
    async with open_client(api_key()) as client:
        with contextlib.suppress(asyncio.TimeoutError):
            await within(TRIAL_SECONDS, ask_endpoint(client, record["url"], wired, trace, TRIAL_SECONDS))
    if trace["outcome"] == "ok":
        return None
    return f"a trial page got no answer: {trace['error'] or f'none within {TRIAL_SECONDS} s'}"


def command_serve(options):
    path = find_recipe(options.model, options.recipes)
    module = import_recipe(path)
    if module.RECIPE["engine"] != "vllm":
        raise Stop(f"{path.name} runs without a server: uv run {path} INPUT OUTPUT.")
    words = options.recipe_words + (["--model", options.model_id] if options.model_id else [])
    if vendor_engine(path):
        raise Stop(
            f"{path.stem} is served by its authors' program, which its own file starts: uv run {path} INPUT OUTPUT. "
            "SERVING.md says how to start that program by hand; the endpoint can be measured like any other."
        )
    own, recipe = recipe_options(module, words)
    name = options.name = options.name or module.RECIPE["name"]
    card = chosen_card(options)
    check_free(options, card and card["index"])
    ended = [
        record for record in records() if record["phase"] not in ("stopped", "ended") and state_of(record)[0] == "ended"
    ]
    for record in ended:  # its group's last processes hold the GPU
        end_server(record)
        keep(record | {"phase": "ended"})
    weights = installed_weights(own.model, own.revision)
    if not weights and not options.dry_run:
        raise Stop(f"{own.model} is not on this machine, or not whole. First: ocr-serve.py download {options.model}")
    changed, tokens = profile_args(options, recipe, weights, card)
    for key in ("max_model_len", "gpu_memory_utilization"):
        if key in changed:
            setattr(own, key, changed[key])
    own.max_tokens = min(own.max_tokens, tokens or own.max_tokens)
    recipe = recipe | {"engine_args": {**recipe.get("engine_args", {}), **changed}}
    args = engine_args(own, recipe)
    python, version = (sys.executable, None) if options.dry_run else engine_python(recipe, options)
    command = serve_words(options, recipe, own, args, python)
    if options.dry_run:
        print(json.dumps({"command": command, "changed": changed, "exit_code": 0}))
        return 0
    check_lengths(own, recipe, model_config(own))
    check_room(args, [(card["free"], card["total"])] if card else [], weights, 0)
    environment = serving_environment(recipe, card, python)
    if not options.host.startswith("127.") and options.host != "localhost" and not os.environ.get("VLLM_API_KEY"):
        say(
            f"Anybody who reaches {options.host}:{options.port} can use this server. Set VLLM_API_KEY to ask for a key."
        )
    attempts = [{}, *older_compilers()]
    known = next((record["compiler"] for record in reversed(records()) if record.get("compiler")), None)
    if known in attempts:
        attempts = [known, *(attempt for attempt in attempts if attempt not in ({}, known))]
    for place, compiler in enumerate(attempts):
        began = time.monotonic()
        stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
        record = {
            "id": stamp, "name": name, "recipe": str(path), "model": own.model, "revision": own.revision,
            "served_name": name if not recipe.get("server_command") else own.model, "host": options.host,
            "port": options.port, "url": f"http://{reachable(options.host)}:{options.port}/v1",
            "gpu": card and card["index"], "engine": options.engine, "engine_version": version,
            "command": scrubbed_words(command), "changed": changed, "max_tokens": own.max_tokens, "compiler": compiler,
            "started": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
            "log": str(HOME / "logs" / f"{name}-{stamp}.log"),
            "phase": "loading",
        }  # fmt: skip
        say(f"Starting {name} on port {options.port}; log: {record['log']}")
        start_server(record, command, environment | compiler)
        try:
            problem = wait_until_ready(record, module, own, recipe, options.wait)
        except BaseException:
            end_server(record)
            keep(record | {"phase": "stopped"})
            raise
        if problem is None:
            keep(record | {"phase": "ready"})
            say(
                f"{name} is ready at {record['url']}. Measure it:\n  ocr-endpoint-bench.py run PAGES "
                f"--target {path.stem}={record['url']},model={record['served_name']}"
            )
            seconds = round(time.monotonic() - began, 1)
            print(json.dumps({"name": name, "url": record["url"], "served_name": record["served_name"],
                              "seconds": seconds, "changed": changed, "max_tokens": own.max_tokens,
                              "log": record["log"], "exit_code": 0}))  # fmt: skip
            return 0
        end_server(record)
        keep(record | {"phase": "ended", "compiler": None})
        tail = scrubbed(log_tail(record["log"]), secrets_in_environment())
        if place + 1 < len(attempts) and COMPILER_FAILURE.search(Path(record["log"]).read_text(errors="replace")):
            say(f"A kernel did not compile; trying again with {attempts[place + 1]['CC']}.")
            continue
        hint = ""
        if COMPILER_FAILURE.search(tail):
            hint = "\nA kernel did not compile, and no older GCC is left to try. Install one, e.g. gcc-12 and g++-12."
        raise Stop(f"{name} did not become ready: {problem}. Its log ends:\n{tail}{hint}", code=1)


def clean_environment(python):
    """This process's environment, without its own Python's packages where `python` is another one."""
    hidden = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in hidden}


def serving_environment(recipe, card, python):
    """The environment of the server: this one without its Python, the recipe's switches, and the GPU."""
    set_environment(recipe)
    kept = clean_environment(python)
    return kept | ({"CUDA_VISIBLE_DEVICES": card["index"]} if card else {})


def reachable(host):
    return "127.0.0.1" if host in ("0.0.0.0", "", "::") else host


def command_status(options):
    """Every server that was not stopped, as it is now; what is left of one that ended is cleared away."""
    rows = []
    for record in records():
        if (options.name and record["name"] != options.name) or record["phase"] in ("stopped", "ended"):
            continue
        state, sentence = state_of(record)
        if state == "ended":
            end_server(record)
            keep(record | {"phase": "ended", "noticed": sentence})
        rows.append({"name": record["name"], "state": state, "says": sentence, "url": record["url"],
                     "gpu": record["gpu"],
                     "model": record["model"], "started": record["started"], "log": record["log"]})  # fmt: skip
        say(f"  {record['name']:<24} {state:<8} {sentence}")
    if not rows:
        say("No server of this tool runs." if not options.name else f"No server {options.name} runs.")
    ready = all(row["state"] == "ready" for row in rows) and bool(rows or not options.name)
    code = 1 if options.name and not ready else 0
    print(json.dumps({"servers": rows, "exit_code": code}))
    return code


def command_stop(options):
    """Ends servers: the whole group of each, and nothing else."""
    if not options.name and not options.all:
        raise Stop("Name a server, or use --all. `ocr-serve.py status` shows them.")
    wanted = [record for record in records() if options.all or record["name"] == options.name]
    if not wanted:
        raise Stop(f"No server {options.name} was started here. `ocr-serve.py status` shows those that were.")
    stopped = []
    for record in wanted:
        if record["phase"] not in ("stopped", "ended") or processes_of(record):
            count = end_server(record)
            keep(record | {"phase": "stopped"})
            stopped.append(record["name"])
            say(f"{record['name']}: {count} processes ended." if count else f"{record['name']}: it had ended already.")
    print(json.dumps({"stopped": stopped, "exit_code": 0}))
    return 0


def option_parser_of_serving():
    parser = argparse.ArgumentParser(
        prog="ocr-serve.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, text, model=False):
        one = commands.add_parser(name, help=text)
        one.set_defaults(command=run)
        one.add_argument("--recipes", default=str(Path(__file__).resolve().parent), metavar="FOLDER",
                         help="where the recipes lie (default: beside this file)")  # fmt: skip
        if model:
            one.add_argument("model", metavar="MODEL", help="a recipe, its path, or its model's id")
        return one

    command("list", command_list, "the recipes, and which of them fit this machine")
    command("login", command_login, "log in to the Hub with a code in the browser")
    install = command(
        "install", command_install, "make an environment with the engine that a recipe was tested with", True
    )
    download = command("download", command_download, "fetch the weights of a model", True)
    serve = command("serve", command_serve, "start a server and wait until it answers", True)
    for one in (install, serve):
        one.add_argument("--engine", choices=["vllm", "sglang"], default="vllm", help="(default %(default)s)")
    for one in (download, serve):
        one.add_argument("--model-id", metavar="REPO", help="another checkpoint of the same kind, or a folder")
    add = serve.add_argument
    add("--port", type=int, default=8000, help="(default %(default)s)")
    add(
        "--host",
        default="127.0.0.1",
        help="0.0.0.0 lets other machines in; set VLLM_API_KEY then (default %(default)s)",
    )
    add("--name", help="the name that requests ask for (default: the recipe's)")
    add("--gpu", metavar="N", help="GPU by its number in nvidia-smi (default: the first without a model of ours)")
    add(
        "--profile",
        choices=["auto", "full", "small"],
        default="auto",
        help="small: for GPUs of 8 to 16 GB (default %(default)s)",
    )
    add("--python", metavar="PATH", help="interpreter that has the engine (default: that of `install`)")
    add("--wait", type=int, default=900, metavar="S", help="seconds until it must be ready (default %(default)s)")
    add("--gpu-memory-utilization", type=float, help="instead of the recipe's")
    add("--max-model-len", type=int, help="instead of the recipe's")
    add("--max-num-seqs", type=int, help="pages computed at once")
    add("--max-num-batched-tokens", type=int, help="tokens computed at once")
    add("--dry-run", action="store_true", help="print the command and stop")
    status = command("status", command_status, "the servers as they are now")
    status.add_argument("name", nargs="?", metavar="NAME")
    stop = command("stop", command_stop, "end a server and all its processes")
    stop.add_argument("name", nargs="?", metavar="NAME")
    stop.add_argument("--all", action="store_true", help="all of them")
    return parser


def main_of_serving():
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = option_parser_of_serving().parse_args(words[:cut])
    options.recipe_words = words[cut + 1 :]
    return exit_code_of(lambda: options.command(options))


# >>> shared part: auto  (edited in kit/, stamped by tools/sync.py)
# >>> kit/seam.py
# The types that pass between a recipe's model part and the shared part.


class Stop(Exception):
    """Ends the run with one message for the user: what happened, what was found, what to type next.

    `code` is the exit code: 2 for usage and preflight, 1 for a stop that the same command resumes.
    """

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class PageError(Exception):
    """One page cannot be read; the message is the sentence that its row gets in `ocr_error`."""


@dataclass
class Page:
    """One page as the model sees it.

    `image` is RGB, upright, on white, and already inside the recipe's image bounds. `width` and `height` are the
    pixels of the original after orientation, the space of every bbox that leaves a recipe; for a PDF page they are
    the pixels at `dpi`. `partial` says that the file ended early and the lower part is missing.
    """

    image: object
    width: int
    height: int
    dpi: int | None = None
    partial: bool = False


@dataclass
class Unit:
    """What one answer is about: a page almost always, a window of pages, a whole document, or a text cell."""

    id: str
    pages: list
    text: str | None = None


@dataclass
class Item:
    """A unit before it is decoded, as the source yields it. Picklable and small: bytes are one page's, or absent.

    `parts` holds one `(data, frame)` per page: data is the encoded bytes, a local path or an `hf://` URI, and frame
    the 0-based page of a PDF or frame of a TIFF or GIF. `row` is the row in the source split (or the position in the
    sorted file list), `page` the 1-based page within that row or file, `pages` how many it has, `name` the output
    name without suffix. `error` is set where the source holds nothing to read.
    """

    id: str
    row: int
    name: str
    parts: list = field(default_factory=list)
    text: str | None = None
    page: int = 1
    pages: int = 1
    error: str | None = None


class Answer(NamedTuple):
    """What the model said to one request. `flags` are those of `flags_of`; `logprobs` one float per output token."""

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    flags: tuple = ()
    logprobs: list | None = None


@dataclass
class Parsed:
    """A recipe's reading of one unit. `markdown` is "" for a blank page and never a sentinel.

    `blocks` is a blocks document (or None), `columns` the recipe's own output columns, `flags` what the parser
    noticed: "unparsed" (the model's protocol was broken; asked again), "repaired", or words of the recipe's own.
    `answers` are those that the reading was made of, where `steps` threw others away; None is all of them. Their flags
    become the row's.
    """

    markdown: str | None
    blocks: dict | None = None
    columns: dict = field(default_factory=dict)
    flags: list = field(default_factory=list)
    answers: list | None = None


def say(message):
    """Tells the human: stderr, flushed, so that a job log shows it at once. stdout is for the one JSON line."""
    with contextlib.suppress(OSError):  # a terminal that was closed costs no page
        print(message, file=sys.stderr, flush=True)


# <<< kit/seam.py

# >>> kit/storage.py
# Where results are kept, a folder here or in a bucket, and the patience that every write to the Hub needs.


FIRST_WAIT, LONGEST_WAIT, PATIENCE = 2.0, 60.0, 600.0  # seconds
FIRST_PATIENCE = 30.0  # before anything has been read
RECENT = 120.0  # seconds in which a run that is at work has written its next part


def persist(call, patience=None):
    """`call()`, again with growing waits while the Hub is busy: conflicts (409, 412), 408, 429, 5xx, lost connections.

    A `Retry-After` is honoured. Needed because huggingface_hub 2.4 retries neither commits nor repository creation.
    Raises the last error after `patience` (PATIENCE) seconds, any other error at once.
    """
    wait, end = FIRST_WAIT, time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        try:
            return call()
        except Exception as error:
            asked = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
            pause = max(float(asked) if asked.isdigit() else 0.0, wait * random.uniform(0.5, 1))
            if not is_passing(error) or time.monotonic() + pause > end:
                raise
            said = "The Hub answered" if hasattr(error, "response") else "The Hub cannot be reached"
            say(f"{said}: {first_line(error)}. Trying again in {pause:.0f} s.")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)


def is_passing(error):
    """Whether trying again may help: the Hub or the way to it is busy or broken for the moment."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 409, 412, 425, 429) or status >= 500
    transports = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # the client library differs by hub version
    if isinstance(error, (ConnectionError, TimeoutError)) or type(error).__module__.split(".")[0] in transports:
        return True
    if isinstance(error, RuntimeError) and "xet" in str(error).lower():  # hf_xet's failures have no class of their own
        return True
    return error.__cause__ is not None and is_passing(error.__cause__)


def first_line(error):
    """One line about an exception: its type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def unique_stamp():
    """A name part that sorts by time and is unique across processes and machines."""
    return f"{time.time_ns() // 1_000_000:013d}-{os.getpid()}-{secrets.token_hex(4)}"


def open_storage(uri):
    """A `BucketFolder` for `hf://buckets/...`, else a `LocalFolder`. Raises Stop where the bucket cannot be made."""
    return BucketFolder(uri) if uri.startswith("hf://buckets/") else LocalFolder(uri)


class LocalFolder:
    """Files under one folder. A file appears whole or not at all; what is half written lies under `.tmp`."""

    def __init__(self, path):
        self.where = str(path)
        self.root = Path(path).expanduser()
        self.scratch = self.root / ".tmp"

    def claim(self, name):
        """Takes a lock that ends with this process, or with `close` of what is returned. Raises Stop if it is taken."""
        try:
            import fcntl
        except ImportError:  # Windows
            return io.BytesIO()
        self.scratch.mkdir(parents=True, exist_ok=True)
        lock = open(self.scratch / f"{name}.lock", "wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Stop(
                f"Another run of this command is at work in {self.where}. Wait for it, or share the work by --shard "
                "0/2 and --shard 1/2.",
                code=1,
            ) from None
        except OSError:  # a mount without locks
            pass
        return lock

    def list(self):
        """The relative paths of all files, sorted."""
        found, folders = [], [str(self.root)] if self.root.is_dir() else []
        while folders:
            for entry in os.scandir(folders.pop()):
                if not entry.is_dir(follow_symlinks=False):
                    found.append(os.path.relpath(entry.path, self.root).replace(os.sep, "/"))
                elif entry.name != ".tmp":
                    folders.append(entry.path)
        return sorted(found)

    def open(self, name):
        """A binary file to read."""
        return open(self.root / name, "rb")

    def write(self, files):
        """Writes each of `files`, a dict from relative path to bytes. Raises OSError."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            part, target = self.scratch / unique_stamp(), self.root / name
            part.write_bytes(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)

    def remove(self, names):
        """Removes files, what killed runs left half written, and then the folder if it is empty."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # something else is kept there
            self.root.rmdir()
            if self.root.parent.name == ".ocr-runs":
                self.root.parent.rmdir()


class BucketFolder:
    """The same methods over a folder of a bucket, made private where it is missing. All wait out a busy Hub."""

    scratch = None

    def __init__(self, uri):
        from huggingface_hub import HfApi, HfFileSystem
        from huggingface_hub.errors import HfHubHTTPError

        owner, name, *path = uri.removeprefix("hf://buckets/").strip("/").split("/")
        self.where, self.bucket, self.prefix = uri, f"{owner}/{name}", "".join(f"{part}/" for part in path)
        self.api, self.files = HfApi(), HfFileSystem(skip_instance_cache=True)
        try:
            persist(lambda: self.api.create_bucket(self.bucket, private=True, exist_ok=True))
        except HfHubHTTPError as error:
            raise Stop(
                f"The bucket {self.bucket} cannot be made or written: {first_line(error)}. "
                "Name another place: --checkpoint hf://buckets/OWNER/NAME/FOLDER or --checkpoint FOLDER."
            ) from error

    def claim(self, name):
        """No lock, which buckets do not have: two runs at once lose no page, and pay twice. Says where it may be so."""
        written = [int(when) for path in self.list() for when in re.findall(r"-(\d{13})-\d+-[0-9a-f]{8}\.", path)]
        ago = time.time() - max(written, default=0) / 1000
        if name == "run" and ago < RECENT:  # a shard has others beside it
            say(
                f"Results were written to {self.where} {max(ago, 0):.0f} s ago. If the run that wrote them is still at "
                "work, both read the same pages: stop one, or share the work by --shard 0/2 and --shard 1/2."
            )
        return io.BytesIO()

    def list(self):
        self.files.invalidate_cache()
        tree = persist(lambda: list(self.api.list_bucket_tree(self.bucket, self.prefix or None, recursive=True)))
        return sorted(entry.path.removeprefix(self.prefix) for entry in tree if entry.type == "file")

    def open(self, name):
        return persist(lambda: self.files.open(f"hf://buckets/{self.bucket}/{self.prefix}{name}", "rb"))

    def write(self, files):
        added = [(data, self.prefix + name) for name, data in files.items()]
        if added:
            persist(lambda: self.api.batch_bucket_files(self.bucket, add=added))

    def remove(self, names):
        gone = [self.prefix + name for name in names]
        if gone:
            persist(lambda: self.api.batch_bucket_files(self.bucket, delete=gone))


# <<< kit/storage.py

# >>> kit/tool.py
# The edges of every tool: numbers and files that have to make sense, and the exit code.


NO_SUCH_PLACE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def whole_number(text):
    """An argparse type: a whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def above_zero(text):
    """An argparse type: a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def share_of_one(text):
    """An argparse type: a number from 0 to 1."""
    if not 0 <= (number := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return number


def read_utf8(path):
    """The text of a file. Raises Stop where it is in another encoding, and OSError."""
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Stop(
            f"{path} is not UTF-8 at byte {error.start}: {error.reason}. Convert it (iconv -t utf-8)."
        ) from error


def parse_json(text):
    """`json.loads(text)`. Raises ValueError also where lists or objects stand in each other too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, kind=dict):
    """What a JSON file holds. Raises Stop where it is damaged or holds something else than `kind`, and OSError."""
    try:
        value = parse_json(read_utf8(path))
    except ValueError as error:
        raise Stop(f"{path} is no JSON: {error}. Repair or remove it.") from error
    if not isinstance(value, kind):
        raise Stop(f"{path} holds {type(value).__name__} where {kind.__name__} was expected. Name another file.")
    return value


def exit_code_of(work):
    """The exit code of a tool: what `work()` returns, or the code of what ended it, told in one sentence.

    2 where a file or folder that was named is not there, not of that kind, or closed to us. 1 for what passes: Ctrl-C,
    a disk that is full, a Hub that does not answer.
    """
    try:
        return work()
    except Stop as problem:
        code, told = problem.code, problem
    except NO_SUCH_PLACE as problem:
        code, told = (2, f"{problem.filename}: {problem.strerror}. Name another.") if problem.filename else (1, problem)
    except KeyboardInterrupt:
        code, told = 1, "the same command starts again."
    except Exception as problem:
        if not (isinstance(problem, OSError) or is_passing(problem)):
            raise
        code, told = 1, f"{first_line(problem)}. The same command starts again."
    say(f"{'Error' if code == 2 else 'Stopped'}: {told}")
    return code


# <<< kit/tool.py

# >>> kit/endpoint_client.py
# One chat completion of an OpenAI-compatible endpoint, traced: what came, when, and how it failed.


MOST_BYTES = 32 << 20  # of one answer; no page has that much text, so whoever sends it will not stop
NO_MEMORY = ("out of memory", "outofmemory", "cuda error: out", "oom")


def endpoint_url(base, path):
    """The URL of `path` ("/models") below a base URL, whose query stays; a base without a path gets /v1."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=(parts.path.rstrip("/") or "/v1") + path, fragment=""))


def open_client(key=None, connect_timeout=10.0):
    """An httpx2.AsyncClient that follows no redirects and retries nothing. The deadline is the caller's."""
    import httpx2

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(headers=headers, limits=limits, timeout=httpx2.Timeout(None, connect=connect_timeout))


def blank_trace(body):
    """The trace of a call that has not begun; `outcome` stays None until it ended by itself."""
    return {
        "outcome": None, "error": None, "http_status": None, "streamed": False, "finish_reason": None,
        "reported_model": None, "usage": None, "max_tokens": body.get("max_tokens"), "wall_s": None, "ttft_s": None,
        "tokens_per_s": None, "text": "", "logprobs": None, "unread": "",
    }  # fmt: skip


async def ask_endpoint(client, url, body, trace, stall=60.0, stream=True):
    """Sends `body` to the chat completions below `url` and fills `trace` while the answer comes.

    Never raises for what the endpoint does; a cancellation (the caller's deadline) leaves the trace as far as it came.
    Outcomes: "ok", "http_4xx" and the like, "connect_error", "connection_lost", "bad_response", "timeout_stall", "oom".
    `ttft_s` is from the request to the first text, `tokens_per_s` the tokens after it over the time they took.
    """
    import httpx2

    clock = {"start": time.monotonic()}
    words = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    try:
        async with client.stream("POST", endpoint_url(url, "/chat/completions"), json=body | words) as reply:
            trace["http_status"] = reply.status_code
            if reply.status_code != 200:
                fail(trace, f"http_{reply.status_code // 100}xx", message_in(await whole_body(reply, stall)))
            elif "event-stream" in reply.headers.get("content-type", ""):
                trace["streamed"] = True
                await read_events(reply, trace, clock, stall)
            else:
                read_completion(await whole_body(reply, stall), trace)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as problem:
        fail(trace, "connect_error", f"nobody answers ({said(problem)})")
    except asyncio.TimeoutError:
        fail(trace, "timeout_stall", f"nothing came for {stall:g} s in the middle of the answer")
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as problem:
        fail(trace, "connection_lost", f"the connection broke ({said(problem)})")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        fail(trace, "bad_response", f"the answer is no chat completion ({said(problem)})")
    finally:
        end = time.monotonic()
        trace["wall_s"] = round(end - clock["start"], 4)
        if "first" in clock:
            trace["ttft_s"] = round(clock["first"] - clock["start"], 4)
        tokens = (trace["usage"] or {}).get("completion_tokens")
        if isinstance(tokens, int) and tokens > 1 and clock.get("last", 0) > clock.get("first", 0):
            trace["tokens_per_s"] = round((tokens - 1) / (clock["last"] - clock["first"]), 2)


async def within(seconds, awaitable):
    """The result, or asyncio.TimeoutError after so many seconds, whatever is awaited does then.

    Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes together with a result, and an endless
    stream has a result at any time.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=5)
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def fail(trace, outcome, error):
    if any(word in error.lower() for word in NO_MEMORY):
        outcome = "oom"
    trace["outcome"], trace["error"] = outcome, error


def said(problem):
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300].rstrip(": ")


async def pieces(reply, stall):
    """The bytes of a reply as they come. Raises asyncio.TimeoutError when `stall` seconds bring none."""
    incoming, total = reply.aiter_bytes().__aiter__(), 0
    while True:
        try:
            piece = await within(stall, incoming.__anext__())
        except StopAsyncIteration:
            return
        total += len(piece)
        if total > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB, without an end")
        yield piece


async def whole_body(reply, stall):
    return b"".join([piece async for piece in pieces(reply, stall)])


def message_in(data):
    """The message in an error body, else its beginning."""
    text = data.decode(errors="replace")
    try:
        problem = parse_json(text)
        problem = problem.get("error", problem)
        return str(problem.get("message", problem) if isinstance(problem, dict) else problem)[:500]
    except (ValueError, AttributeError):
        return text[:500]


def read_completion(data, trace):
    """Fills the trace from an answer in one piece. Without a stream there is no first token to time."""
    trace["unread"] = data[:2000].decode(errors="replace")
    reply = parse_json(data)
    choice = reply["choices"][0]
    trace["text"] = choice["message"]["content"] or ""
    trace["logprobs"] = logprobs_in(choice)
    ended(trace, reply, choice["finish_reason"])


async def read_events(reply, trace, clock, stall):
    """Fills the trace from server-sent events."""
    rest, finish, done = b"", None, False
    async for piece in pieces(reply, stall):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            trace["unread"] = line[:2000].decode(errors="replace")
            data = line.strip().removeprefix(b"data:").strip()
            if data == b"[DONE]":
                done = True
            if done or not data or not line.startswith(b"data:"):
                continue
            event = parse_json(data)
            if event.get("error"):
                raise ValueError(message_in(data))
            trace["usage"] = event.get("usage") or trace["usage"]
            trace["reported_model"] = event.get("model") or trace["reported_model"]
            for choice in event.get("choices") or []:
                text = (choice.get("delta") or {}).get("content") or ""
                if text:
                    clock["last"] = time.monotonic()
                    clock.setdefault("first", clock["last"])
                    trace["text"] += text
                if values := logprobs_in(choice):
                    trace["logprobs"] = (trace["logprobs"] or []) + values
                finish = choice.get("finish_reason") or finish
    if rest.strip() not in (b"", b"data: [DONE]", b"data:[DONE]"):
        trace["unread"] = rest[:2000].decode(errors="replace")
        raise ValueError("it ends in the middle of an event")
    if not finish:
        fail(trace, "connection_lost", "the stream ended before the answer did: no finish_reason came")
        return
    ended(trace, {"usage": trace["usage"], "model": trace["reported_model"]}, finish)


def ended(trace, reply, finish):
    trace["usage"] = reply.get("usage") if isinstance(reply.get("usage"), dict) else None
    trace["reported_model"], trace["finish_reason"] = reply.get("model"), finish
    trace["outcome"], trace["unread"] = "ok", ""


def logprobs_in(choice):
    tokens = (choice.get("logprobs") or {}).get("content")
    return [token["logprob"] for token in tokens] if tokens else None


async def served_models(client, url, seconds=30.0):
    """({name: entry} that GET /models lists, None) or (None, why not)."""
    import httpx2

    try:
        reply = await within(seconds, client.get(endpoint_url(url, "/models")))
        if reply.status_code != 200:
            return None, f"GET /models answers {reply.status_code}: {message_in(reply.content)[:200]}"
        return {entry["id"]: entry for entry in reply.json()["data"]}, None
    except asyncio.TimeoutError:
        return None, f"GET /models did not answer within {seconds:g} s"
    except (httpx2.HTTPError, OSError) as problem:
        return None, f"nobody answers GET /models ({said(problem)})"
    except (ValueError, KeyError, TypeError) as problem:
        return None, f"GET /models answers something else than a list of models ({said(problem)})"


async def engine_version(client, url):
    """What vLLM says at /version beside /v1, or None."""
    parts = urlsplit(url)
    root = urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/v1") + "/version", fragment=""))
    try:
        return str((await within(5, client.get(root))).json()["version"])
    except Exception:  # a courtesy of some servers
        return None


# <<< kit/endpoint_client.py

# >>> kit/endpoint_machine.py
# What this machine has: GPUs, memory, disk, processors; and whether a GPU is idle.


BUSY_PERCENT = 5  # of GPU use with no request running
MIB = 1 << 20


def gpu_table(*fields):
    """One dict of strings per NVIDIA GPU that may be used here; [] where nvidia-smi is missing or fails."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    try:
        shown = subprocess.run(
            query + ([f"--id={visible}"] if visible else []), capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in shown.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def gpu_cards():
    """[{"index", "name", "total", "free" (bytes), "capability" (a pair) or None, "driver"}]."""
    cards = []
    for row in gpu_table("index", "name", "memory.total", "memory.free", "compute_cap", "driver_version"):
        capability = re.fullmatch(r"(\d+)\.(\d+)", row["compute_cap"])
        total, free = (int(row[key]) * MIB if row[key].isdecimal() else 0 for key in ("memory.total", "memory.free"))
        cards.append(
            {
                "index": row["index"], "name": row["name"], "total": total, "free": free,
                "capability": (int(capability[1]), int(capability[2])) if capability else None,
                "driver": row["driver_version"],
            }
        )  # fmt: skip
    return cards


def gpu_idleness(samples=3, pause=0.5):
    """{"idle": bool, or None where no GPU shows its use, "use_percent": most that was seen, "reason"}."""
    most = None
    for sample in range(samples):
        used = [
            int(row["utilization.gpu"]) for row in gpu_table("utilization.gpu") if row["utilization.gpu"].isdecimal()
        ]
        if not used:
            return {"idle": None, "use_percent": None, "reason": "no NVIDIA GPU shows its use here"}
        most = max([most or 0, *used])
        time.sleep(pause if sample < samples - 1 else 0)
    busy = most >= BUSY_PERCENT
    reason = f"the GPU was {most} % busy before any request" if busy else None
    return {"idle": not busy, "use_percent": most, "reason": reason}


def total_memory():
    """Bytes of memory of this machine, or None."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def free_disk(path):
    """(free bytes, the folder asked): of the file system on which `path` is or would be made."""
    folder = next(parent for parent in (Path(path).absolute(), *Path(path).absolute().parents) if parent.exists())
    return shutil.disk_usage(folder).free, str(folder)


def hardware():
    """{"os", "machine", "python", "cpus", "memory_gib", "gpus"} for a report; no host name, no serial numbers."""
    memory = total_memory()
    gpus = [
        {
            "name": card["name"],
            "vram_mib": card["total"] // MIB,
            "compute_capability": card["capability"] and ".".join(map(str, card["capability"])),
            "driver": card["driver"],
        }
        for card in gpu_cards()
    ]
    return {
        "os": f"{platform.system()} {platform.release()}", "machine": platform.machine(),
        "python": sys.version.split()[0], "cpus": os.cpu_count(),
        "memory_gib": memory and round(memory / (1 << 30), 1), "gpus": gpus,
    }  # fmt: skip


# <<< kit/endpoint_machine.py

# >>> kit/endpoint_redact.py
# Keeps passwords, tokens and hosts out of reports and logs.


MASK = "***"
SECRET_WORD = re.compile(r"(?i)key|token|secret|passw|credential|auth|signature|cookie")
# What looks like a token wherever it stands: known prefixes, bearers, JSON web tokens.
TOKEN_LIKE = re.compile(
    r"(?i)\b(?:hf|sk|pk|rk|ghp|gho|glpat|xox[abp]|api|key)[_-][A-Za-z0-9_-]{8,}|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|(?<=bearer )[^\s\"',]+|(?<=basic )[A-Za-z0-9+/=]{8,}"
)
URL_IN_TEXT = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+")
SHORTEST_SECRET = 4  # characters; shorter ones would be found inside of words


def host_class(host):
    """ "loopback", "private" or "public"; a name that is no address counts by its ending."""
    host = (host or "").lower().rstrip(".")
    if host in ("loopback", "private", "public"):  # redacted before
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        if host == "localhost" or host.endswith(".localhost"):
            return "loopback"
        return "private" if "." not in host or host.endswith((".local", ".lan", ".internal", ".home")) else "public"
    return "loopback" if address.is_loopback else "private" if address.is_private else "public"


def redacted_url(url, keep_host=False):
    """The URL with scheme, kind of host, port and path only: `http://loopback:8000/v1`, `https://public/v1`.

    User, password, query, fragment, path parameters and path parts that look like tokens are left out.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return MASK
    shown = (host or "") if keep_host else host_class(host)
    shown = f"[{shown}]" if ":" in shown else shown
    path = "/".join(redacted_part(part) for part in parts.path.split("/"))
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "") + path


def redacted_part(part):
    part = part.partition(";")[0]
    opaque = len(part) >= 16 and re.search(r"\d", part) and re.search(r"[A-Za-z]", part)
    return MASK if "@" in unquote(part) or "=" in unquote(part) or opaque or TOKEN_LIKE.search(part) else part


def secrets_in_url(url):
    """User, password, and the values of query and fragment of a URL, as written and decoded."""
    try:
        parts = urlsplit(url)
        found = [parts.username if len(parts.username or "") >= 8 else "", parts.password, parts.query, parts.fragment]
    except ValueError:
        return set()
    for text in (parts.query, parts.fragment):
        found += [value for _, value in parse_qsl(text)] + [pair.partition("=")[2] for pair in text.split("&")]
    found += [pair.partition("=")[2] for piece in parts.path.split("/") for pair in piece.split(";")[1:]]
    found += [part for part in parts.path.split("/") if part and redacted_part(part) == MASK]
    return {text for word in found if word for text in (word, unquote(word)) if len(text) >= SHORTEST_SECRET}


def secrets_in_environment():
    """Values of environment variables whose name says that they are secret; paths and plain words are none."""
    named = (value for name, value in os.environ.items() if SECRET_WORD.search(name))
    return {value for value in named if len(value) >= 8 and not value.startswith("/") and re.search(r"[\d_-]", value)}


def scrubbed(value, secrets=(), keep_host=False, known_only=False):
    """A JSON-like value whose strings hold none of `secrets`, no URL's credentials and nothing that looks like a token.

    With `known_only` just the secrets go: what a model read may be a URL, and stays.
    """
    return each_text(value, lambda text: scrubbed_text(text, secrets, keep_host, known_only))


def each_text(value, change):
    """A JSON-like value with every string, keys too, as `change` makes it."""
    if isinstance(value, dict):
        return {each_text(key, change): each_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def scrubbed_text(text, secrets, keep_host, known_only):
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    if known_only:
        return text
    return TOKEN_LIKE.sub(MASK, URL_IN_TEXT.sub(lambda found: redacted_url(found[0], keep_host), text))


def without_folders(text):
    """The text with absolute paths of files cut to their names: folders tell who works where."""
    return re.sub(r"(?<![\w:/.*\]])/(?:[^\s/,=:]+/)+", "", text)


def scrubbed_words(words, secrets=()):
    """A command line without the values of flags that are named like secrets."""
    shown, hide = [], False
    for word in words:
        name, sign, _ = word.partition("=")
        secret_flag = name.startswith("-") and bool(SECRET_WORD.search(name))
        shown.append(MASK if hide else f"{name}={MASK}" if secret_flag and sign else scrubbed(word, secrets))
        hide = secret_flag and not sign
    return shown


# <<< kit/endpoint_redact.py

# >>> kit/recipes_import.py
# Recipes as files: their tables without running anything, their functions by importing the file from its path.


def recipe_table(path):
    """The RECIPE table of a recipe file as a dict, read and not run; None where the file has none."""
    _, found, rest = Path(path).read_text().partition("\nRECIPE = {\n")
    table, end, _ = rest.partition("\n}\n")
    return ast.literal_eval("{\n" + table + "\n}") if found and end else None


def recipe_tables(folder):
    """{path: RECIPE} of all recipes in a folder, by name. Raises Stop where there are none."""
    tables = {path: recipe_table(path) for path in sorted(Path(folder).glob("*.py"))}
    tables = {path: table for path, table in tables.items() if table}
    if not tables:
        raise Stop(f"{folder} holds no recipes. Name the folder ocr/ of a clone of this repository: --recipes FOLDER.")
    return tables


def find_recipe(name, folder):
    """The path of the recipe that `name` means: a path, the name of a file in `folder`, or a model id there.

    Of several recipes for one model the shortest name is the plain one. Raises Stop.
    """
    if name.endswith(".py") and Path(name).is_file():
        return Path(name)
    tables = recipe_tables(folder)
    named = [path for path in tables if path.stem == name]
    models = sorted((path for path, table in tables.items() if table["model"] == name), key=lambda p: len(p.stem))
    if named + models:
        return (named + models)[0]
    near = difflib.get_close_matches(name, [path.stem for path in tables], 3, 0.4)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" There are {', '.join(p.stem for p in tables)}."
    raise Stop(f"{name} is no recipe in {folder} and no model of one.{hint} A file is named by its path, ./x.py.")


@functools.cache
def import_recipe(path):
    """The module of a recipe file. Its functions and its shared part are what a run of that file would use."""
    spec = importlib.util.spec_from_file_location("recipe_" + Path(path).stem.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def recipe_options(module, words=()):
    """(options, recipe) as the recipe's own command line `... INPUT OUTPUT words` makes them. Raises Stop.

    `recipe` is RECIPE with what the recipe's `check` changes for these options, such as bounds in engine arguments.
    """
    parser = module.option_parser(module.RECIPE, getattr(module, "add_options", None))
    try:
        options = parser.parse_args(["ns/input", "ns/output", *map(str, words)])
        module.settle(options, module.RECIPE, {"serve": None})
        changed = module.check(options) if hasattr(module, "check") else None
    except module.Stop as problem:  # another class than Stop here: the module has its own copy
        raise Stop(str(problem), problem.code) from None
    return options, module.RECIPE | (changed or {})


# <<< kit/recipes_import.py

# >>> kit/processes.py
# Processes beside this one: in an environment of their own, and gone when this one is.


def server_environment(recipe):
    """The environment for the model's interpreter: without this one's packages where it is another interpreter."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV") if recipe.get("server_python") else ()
    return {key: value for key, value in os.environ.items() if key not in hidden}


def in_own_environment(python, packages, *command):
    """The words that run a command where only these packages are, for a version of Python; uv keeps what it fetched."""
    chosen = [word for package in packages for word in ("--with", package)]
    return ["uv", "run", "--isolated", "--no-project", "--python", python, *chosen, *command]


# vLLM's processes do not notice the death of the one that started them: they would wait, and hold the GPU, for ever.
REAPER = """
import os, signal, sys, time
parent, below = int(sys.argv[1]), set()
while os.getppid() == parent:
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parents[int(name)] = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            pass
    family = {parent}
    while more := {child for child in parents if parents[child] in family} - family:
        family |= more
    below = family - {parent, os.getpid()}
    time.sleep(1)
for child in below:
    try:
        os.kill(child, signal.SIGKILL)
    except OSError:
        pass
"""


def end_children_with_this_process():
    """Starts a watcher that kills this process's descendants once it is gone, however it went."""
    command = [sys.executable, "-c", REAPER, str(os.getpid())]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


# <<< kit/processes.py

# >>> kit/answers.py
# What one answer is worth, and the conversation about one unit: ask, check, ask again, choose, make the row.


ASK_AGAIN = {"looped", "degenerate"}
# A tail is a loop when it repeats a unit of at most LOOP_UNIT characters over at least LOOP_SPAN characters (dot
# leaders and ruled lines of forms stay below it). Compression, runs of one character counted as three: prose compresses
# 2 to 3 times, registers written to one formula 7, tables of numbers 7, loops that go on for a page 30 and more
# (the texts of tests/unit/test_answers.py; 345 blocks of a public run: prose about 2, loops 6 to 330).
LOOP_UNIT, LOOP_SPAN = 250, 200
LOOP_BYTES, LOOP_RATIO, LOOP_RATIO_TABLE = 2000, 10.0, 20.0


def flags_of(text, finish_reason):
    """Flags of one answer's text: "truncated", and "degenerate" or "looped". Nothing is ever trimmed.

    The finish reason "repetition" is that of an engine which saw the loop itself (`repetition_detection`).
    """
    flags = ["truncated"] if finish_reason == "length" else []
    words = text.split()
    if len(text.strip()) >= 20 and (len(set(text.strip())) == 1 or (len(words) >= 20 and len(set(words)) == 1)):
        return flags + ["degenerate"]
    if finish_reason == "repetition" or loops_at_end(text) or loops_at_end(text[:-50]) or compresses_like_a_loop(text):
        return flags + ["looped"]
    return flags


def loops_at_end(text):
    """True if the text ends in one unit repeated more than 4 * (1 + 3 / length) times over LOOP_SPAN characters."""
    for length in range(1, min(LOOP_UNIT, len(text) // 2) + 1):
        repeats = max(int(4 * (1 + 3 / length)) + 1, -(-LOOP_SPAN // length))
        if length * repeats <= len(text) and text.endswith(text[-length:] * repeats):
            return True
    return False


def compresses_like_a_loop(text):
    data = re.sub(r"(.)\1{3,}", r"\1\1\1", text).encode("utf-8", "replace")
    if len(data) < LOOP_BYTES:
        return False
    table = text.count("<td") >= 20 or len(re.findall(r"^\s*\|.*\|\s*$", text, re.M)) >= 10
    return len(data) / len(zlib.compress(data, 6)) > (LOOP_RATIO_TABLE if table else LOOP_RATIO)


def one_step(request, parse):
    """The `steps` of a recipe whose unit is one page (or one text cell) and one request."""

    def steps(unit, options):
        (answer,) = yield [request(subject(unit), options)]
        return parse(answer, subject(unit), options)

    return steps


def subject(unit):
    """What a recipe's function is given: the Page of a unit with one, the Unit itself for a text or several pages."""
    return unit.pages[0] if len(unit.pages) == 1 else unit


def complete(body, options, recipe, unit=None):
    """The body with the run's sampling and `max_tokens` where it names none, and every image mark given its image."""
    messages = []
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, list):
            content = [
                {"type": "image", "image": unit.pages[0].image} if part == {"type": "image"} and unit else part
                for part in content
            ]
        messages.append({**message, "content": content})
    sampling = {key: getattr(options, key) for key in recipe.get("sampling", {}) if getattr(options, key) is not None}
    return {"max_tokens": options.max_tokens, **sampling, **body, "messages": messages}


def asked_again(body, answer, options, recipe, attempt):
    """The body to ask when `answer` is not good enough, or None when asking again cannot help.

    Loops and degenerate output: warmer, with the sampling opened, since a top_p near 0 or a top_k of 1 would undo the
    temperature. Truncated: as before, with all the room that the context leaves, unless --max-tokens was given.
    """
    if isinstance(answer, Exception):
        return None
    if ASK_AGAIN & set(answer.flags):
        return None if recipe.get("lock_sampling") else warmer(body, attempt)
    room = options.max_model_len - answer.prompt_tokens - 16 if options.max_model_len else 0
    if "truncated" in answer.flags and not options.max_tokens_given and room > body["max_tokens"] * 1.1:
        return {**body, "max_tokens": room}
    return None


def warmer(body, attempt):
    warm = {**body, "temperature": min(body.get("temperature", 0.0) + 0.2 * attempt, 1.0), "top_p": 0.95}
    if "top_k" in warm:
        warm["top_k"] = -1
    return warm


def better(old, new):
    """Of two answers the one without a flag, else the one that stopped by itself, else the first."""
    rank = [(isinstance(a, Exception), bool(getattr(a, "flags", ())), getattr(a, "finish_reason", None) != "stop")
            for a in (old, new)]  # fmt: skip
    return new if rank[1] < rank[0] else old


def converse(item, unit, sha256, options, recipe, steps):
    """The conversation about one unit: a generator that yields lists of complete bodies, is sent their answers in
    the same order (an Answer each, or the exception that one request failed with), and returns the result row.

    Each flagged answer is asked again by itself at most `options.retries` times; a unit whose parser reports
    "unparsed" is read again as a whole; `attempts` counts all rounds. Page-level trouble never raises: it becomes the
    row's `error`.
    """
    started, attempts, parsed, answers, error = time.monotonic(), 0, None, [], None
    for attempt in range(1 + options.retries):
        try:
            attempts += 1
            reading, read = steps(unit, options), []
            bodies = next(reading)
            while True:
                bodies = [complete(body, options, recipe, unit) for body in bodies]
                if attempt and not recipe.get("lock_sampling"):
                    bodies = [warmer(body, attempt) for body in bodies]
                got = checked((yield bodies))
                for again in range(1, 1 + options.retries):
                    retry = {i: asked_again(body, got[i], options, recipe, again) for i, body in enumerate(bodies)}
                    retry = {i: body for i, body in retry.items() if body}
                    if not retry:
                        break
                    attempts += 1
                    for i, answer in zip(retry, checked((yield list(retry.values()))), strict=True):
                        got[i] = better(got[i], answer)
                read += got
                failed = next((a for a in got if isinstance(a, Exception)), None)
                bodies = reading.throw(failed) if failed else reading.send(got)
        except StopIteration as stop:
            if parsed is None or "unparsed" not in stop.value.flags:
                parsed, answers, error = stop.value, read, None
        except Exception as problem:  # a recipe's parser on hostile text, or a request that failed by itself
            if parsed is None:
                answers, error = read, sentence(problem)
            break
        if "unparsed" not in parsed.flags or recipe.get("lock_sampling"):
            break
    return row_of(item, unit, sha256, parsed, answers, attempts, time.monotonic() - started, error)


def checked(answers):
    return [a._replace(flags=tuple(flags_of(a.text, a.finish_reason))) if isinstance(a, Answer) else a for a in answers]


def sentence(problem):
    """An exception as one line for `ocr_error`: PageErrors are sentences already, others get their type in front."""
    text = " ".join(str(problem).split())[:500]
    return text if isinstance(problem, PageError) else f"{type(problem).__name__}: {text}".rstrip(": ")


def row_of(item, unit, sha256, parsed, answers=(), attempts=0, seconds=0.0, error=None):
    """The result row of one item: see CLAUDE.md for its keys. `unit` is None where nothing could be decoded."""
    answers = [a for a in answers if isinstance(a, Answer)]
    kept = answers if error or parsed is None or parsed.answers is None else parsed.answers
    flags = dict.fromkeys(flag for a in kept for flag in a.flags)
    if parsed is not None:
        flags |= dict.fromkeys(parsed.flags)
    if unit is not None and any(page.partial for page in unit.pages):
        flags["partial"] = None
    return {
        "id": item.id, "row": item.row, "page": item.page, "pages": item.pages, "name": item.name,
        "text": parsed.markdown if parsed and not error else None,
        "blocks": json.dumps(parsed.blocks, ensure_ascii=False) if parsed and not error and parsed.blocks else None,
        "error": error or (None if parsed else "nothing was read"),
        "flags": list(flags),
        "attempts": attempts,
        "finish_reason": kept[-1].finish_reason if kept else None,
        "prompt_tokens": sum(a.prompt_tokens for a in answers),
        "completion_tokens": sum(a.completion_tokens for a in answers),
        "seconds": round(seconds, 3),
        "sha256": sha256,
        "columns": parsed.columns if parsed and not error else {},
    }  # fmt: skip


def failed_row(item, problem):
    """The row of an item that never reached the model."""
    return row_of(item, None, None, None, error=problem if isinstance(problem, str) else sentence(problem))


# <<< kit/answers.py

# >>> kit/pages.py
# Encoded bytes, a path or a URI to one upright RGB page on white.


# A page is handed over with at most this many pixels, whatever the bounds: 150 MB as RGB. Larger ones are reduced.
PAGE_PIXELS = 50_000_000
# What the decoded file itself may take in memory: 2 gigapixels of grey, 536 megapixels of colour. JPEG, JPEG 2000
# and PDF are reduced while they are decoded and seldom come near it.
PAGE_BYTES = 2 * 2**30
# Named, so that no file starts Ghostscript (EPS, PDF) or meets a format without a signature (TGA).
PILLOW_FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP")
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MULTI_PAGE_SIGNATURES = (*TIFF_SIGNATURES, b"GIF8")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
PDFIUM_LOCK = threading.Lock()  # pdfium is not thread-safe


def open_page(data, frame=0, *, dpi=200, bounds=None):
    """One page as `Page`: RGB, upright, on white, fitted to `bounds` (see `fit`).

    `data` is the encoded bytes, a local path or an `hf://` URI; `frame` the 0-based page of a PDF or frame of a TIFF
    or GIF; `dpi` the resolution of PDF pages. 16-bit, 32-bit and float pixels are scaled to 8 bits
    (see `_value_range`). What a cut file still holds comes back as `partial`, white where nothing came.
    Raises PageError for everything that cannot be read. Sets `PIL.Image.MAX_IMAGE_PIXELS` for the process, as
    `PAGE_BYTES` takes its place.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            return _pdf_page(data, frame, dpi, bounds)
        if frame and not head.startswith(MULTI_PAGE_SIGNATURES):
            raise PageError(f"there is no page {frame + 1}: the file has one")
        try:
            image, size, partial = _pillow_decode(stream, head, frame, bounds)
        except PageError:
            raise
        except Exception as error:  # Pillow's parsers raise whatever they stumble over
            image, partial = _other_decode(stream, head, frame, error), False
            size = image.size
    orientation = _orientation(image)
    if orientation > 4:
        size = size[::-1]
    try:
        image = _flatten(image, shrink=max(1, math.isqrt(image.width * image.height // PAGE_PIXELS)))
    except Exception as error:
        raise PageError(f"the pixels ({image.mode}) cannot be turned into RGB: {error}") from error
    if partial:
        image = _whiten_missing_rows(image)
    image = _turn_upright(fit(image, bounds), orientation).convert("RGB")
    return Page(image, *size, partial=partial)


def count_pages(data):
    """Pages of a PDF, frames of a TIFF or GIF, 1 for everything else, of which only the first bytes are looked at.

    Reduced copies inside a TIFF (thumbnails, pyramid levels) are not pages, nor are the frames of an animated WebP or
    PNG. Raises PageError where there is no file, and for a broken PDF, TIFF or GIF.
    """
    with _open_stream(data) as stream:
        head = _peek(stream)
        if b"%PDF-" in head:
            with PDFIUM_LOCK:
                return len(_pdf_document(data))
        if not head.startswith(MULTI_PAGE_SIGNATURES):
            return 1
        try:
            image = _pillow_open(stream)
        except Exception:  # imagecodecs may read it, or open_page says what is wrong
            return 1
        try:
            return sum(1 for _ in _page_frames(image))
        except Exception as error:
            raise PageError(_describe(head, error)) from error


def fit(image, bounds):
    """`image` reduced, never enlarged, to `bounds` and to PAGE_PIXELS.

    `bounds` may have `max_side`, `max_pixels` and `resample` ("lanczos", the default, or "bicubic").
    """
    size = _fitted_size(image.size, bounds)
    if size == image.size:
        return image
    from PIL import Image

    resample = Image.Resampling[((bounds or {}).get("resample") or "lanczos").upper()]
    # At a gap of 3 the result is indistinguishable from a full resampling (Pillow's documentation).
    return image.resize(size, resample, reducing_gap=3.0)


def image_bounds(options, recipe):
    """The recipe's bounds for `fit`, with a recipe's own `--max-pixels` or `--max-side` (0 for none) in their place."""
    chosen = {key: getattr(options, key, None) for key in ("max_side", "max_pixels")}
    return (recipe.get("image") or {}) | {key: value for key, value in chosen.items() if value is not None}


def source_bytes(data):
    """The encoded bytes behind `data`. Raises PageError where there is nothing to read."""
    with _open_stream(data) as stream:
        return stream.read()


def sha256_of(data):
    """Hex SHA-256 of the encoded bytes behind `data`."""
    return hashlib.sha256(source_bytes(data)).hexdigest()


def _open_stream(data):
    if data is None:
        raise PageError("there is no image: the cell is empty (null)")
    if not isinstance(data, str):
        return io.BytesIO(data)
    if data.startswith("hf://"):
        return io.BytesIO(_fetch(data))
    try:
        return open(data, "rb")
    except OSError as error:
        raise PageError(f"cannot open {data}: {error.strerror}") from error


@functools.lru_cache(maxsize=1)  # the pages of one file follow each other
def _fetch(uri):
    from huggingface_hub import HfFileSystem

    try:
        return persist(lambda: HfFileSystem().cat_file(uri), patience=300)  # a worker may be silent for 600 s
    except Exception as error:
        raise PageError(f"cannot fetch {uri}: {first_line(error)}") from error


def _peek(stream):
    head = stream.read(1024)
    stream.seek(0)
    if not head:
        raise PageError("the file is empty (0 bytes)")
    return head


def _describe(head, error):
    """The sentence for a file that is no image, or a broken one."""
    start = head[:40].lstrip(b"\xef\xbb\xbf \r\n\t")
    known = {
        b"version https://git-lfs": "a Git LFS pointer; run `git lfs pull`",
        b"<!doctype html": "HTML",
        b"<html": "HTML",
        b"<svg": "SVG; render it to PNG first",
        b"<?xml": "XML",
        b"{": "JSON",
        b"pk\x03\x04": "a ZIP archive; unpack it first",
        b"\x1f\x8b": "gzip; unpack it first",
        b"%!ps": "PostScript; convert it with `ps2pdf`",
        b"at&tform": "DjVu; convert it with `ddjvu -format=pdf`",
    }
    what = next((name for signature, name in known.items() if start.lower().startswith(signature)), None)
    if what is None and start.isascii() and start.decode("ascii").isprintable():
        what = "text"
    shown = repr(start)[1:] if start.isascii() else start[:16].hex(" ")
    if what:
        return f"not an image: the file starts with {shown} (looks like {what})"
    return f"not a readable image: the file starts with {shown} ({type(error).__name__}: {error})"


def _fitted_size(size, bounds):
    bounds = bounds or {}
    max_pixels = min(bounds.get("max_pixels") or PAGE_PIXELS, PAGE_PIXELS)
    max_side = bounds.get("max_side") or max(size)
    scale = min(1.0, max_side / max(size), math.sqrt(max_pixels / math.prod(size)))
    return tuple(max(1, math.floor(side * scale + 1e-6)) for side in size)


def _pillow_open(stream):
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = PAGE_BYTES  # Pillow's own limit warns at 89 and refuses at 179 megapixels
    return Image.open(stream, formats=PILLOW_FORMATS)


def _pillow_decode(stream, head, frame, bounds):
    """The loaded image in its own mode, its size before any reduction, and whether the file ended early."""
    image = _pillow_open(stream)
    if head.startswith(MULTI_PAGE_SIGNATURES):
        number = next(itertools.islice(_page_frames(image), frame, None), None)
        if number is None:
            raise PageError(f"there is no page {frame + 1}: the file has {sum(1 for _ in _page_frames(image))}")
        image.seek(number)
    size = image.size
    target, reduction = _fitted_size(size, bounds), 0
    if image.format in ("JPEG", "MPO"):
        # Decodes to half, a quarter or an eighth where that is still inside the target: 100 ms instead of 206 for
        # 2480 x 3508 to 1540, at the same character error rate (PP-OCRv6, letters of 28 and 34 px before).
        image.draft(None, target)
    elif image.format == "JPEG2000":
        image.reduce = reduction = _jpeg2000_reduction(head, size, target)
    width, height = image.size
    needed = width * height * {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}.get(image.mode, 4)
    if image.info.get("progressive"):  # libjpeg keeps all coefficients, at full size
        needed = size[0] * size[1] * 2 * len(image.getbands())
    if needed > PAGE_BYTES:
        raise PageError(
            f"the page is too large: {size[0]} x {size[1]} pixels of {image.format} take {needed / 2**30:.1f} GiB to "
            f"decode, and {PAGE_BYTES / 2**30:.0f} GiB are allowed; scale it down first"
        )
    try:
        image.load()
    except Exception:
        if reduction:
            # Reduced decoding failed now and then in a public run. Without its head the file has no levels to use.
            stream.seek(0)
            return _pillow_decode(stream, b"", frame, bounds)
        if image.info.get("progressive"):  # without an end marker libjpeg gives nothing of a progressive file
            image.load_read = lambda size: stream.read(size) or b"\xff\xd9"
        else:
            image.tile = []  # what was decoded stays in the buffer, zero where nothing came
        image.load()
        return image, size, True
    return image, size, False


def _page_frames(image):
    """Frame numbers of the pages of a TIFF or GIF; reduced copies in a TIFF (tag 254, bit 0) are not pages."""
    if image.format == "GIF":
        yield from range(image.n_frames)
        return
    for frame in itertools.count():
        try:
            image.seek(frame)
        except EOFError:
            return
        if frame == 0 or not image.tag_v2.get(254, 0) & 1:
            yield frame


def _jpeg2000_reduction(head, size, target):
    """How many times decoding may halve the page: inside `target`, and inside the levels that the file has."""
    code = head.find(b"\xff\x52")  # the COD marker; the decomposition levels are its tenth byte
    levels = head[code + 9] if 0 <= code < len(head) - 9 else 0
    for level in range(levels, 0, -1):
        step = 2**level
        reduced = [math.ceil(side / step) for side in size]
        # Pillow rounds where OpenJPEG takes the ceiling, and fails where the two differ.
        agree = reduced == [(side + step // 2) // step for side in size]
        if agree and reduced[0] >= target[0] and reduced[1] >= target[1]:
            return level
    return 0


def _other_decode(stream, head, frame, error):
    """What Pillow cannot read: HEIC through pillow-heif, the rest through imagecodecs."""
    names = {
        b"\xff\x0a": "jpegxl",
        b"\0\0\0\x0cJXL ": "jpegxl",
        b"II\xbc": "jpegxr",
        b"\xff\xd8\xff": "jpeg",
        b"\x89PNG": "png",
        **dict.fromkeys(TIFF_SIGNATURES, "tiff"),
    }
    name = next((name for signature, name in names.items() if head.startswith(signature)), None)
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        name = "heic"
    if name is None:
        raise PageError(_describe(head, error)) from error
    stream.seek(0)
    data = stream.read()
    try:
        return _heic_decode(data) if name == "heic" else _imagecodecs_decode(name, frame, data)
    except ImportError as missing:
        library = (missing.name or "imagecodecs").partition(".")[0].replace("_", "-")
        raise PageError(f"this {name} file needs {library}: add `--with {library}` after `uv run`") from missing
    except Exception as second:
        raise PageError(_describe(head, second)) from second


def _heic_decode(data):
    import pillow_heif

    return pillow_heif.open_heif(data).to_pillow()


def _imagecodecs_decode(name, frame, data):
    import imagecodecs
    import numpy as np
    from PIL import Image

    decode = getattr(imagecodecs, f"{name}_decode")
    pixels = np.squeeze(decode(data, index=frame) if name == "tiff" else decode(data))
    if pixels.dtype != np.uint8:
        pixels = _scaled_to_8_bits(pixels, *_value_range(pixels))
    return Image.fromarray(pixels)


def _value_range(pixels):
    """The values that become 0 and 255: 0 and the top of the range that the data uses.

    Integers: the smallest of 8, 10, 12, 14, 16 bits that holds the largest value, so that a 16-bit scan is divided by
    257 and never stretched. Floats: 0 to 1, 0 to 255, 0 to 65,535. Whatever fits none of these: smallest to largest.
    """
    import numpy as np

    low, high = np.fmin.reduce(pixels, axis=None), np.fmax.reduce(pixels, axis=None)  # these pass over NaN
    if not (np.isfinite(low) and np.isfinite(high)):
        return 0, 1
    if pixels.dtype.kind == "f":
        tops = {1: 0, 255: 128, 65535: 32768}
    else:
        tops = {255: 0, 1023: 256, 4095: 1024, 16383: 4096, 65535: 16384}
    for top, least in tops.items():
        if 0 <= low and least <= high <= top:
            return 0, top
    return low, high


def _scaled_to_8_bits(pixels, low, high):
    import numpy as np

    span = float(high) - float(low) or 1.0
    scaled = (np.nan_to_num(pixels.astype(np.float32), nan=float(high)) - float(low)) * (255 / span)
    return scaled.round().clip(0, 255).astype(np.uint8)


def _flatten(image, shrink=1):
    """`image` as 8-bit L or RGB on white, its sides divided by `shrink`, in bands so that memory stays bounded."""
    from PIL import Image

    scale = None
    if image.mode.startswith(("I", "F")):
        import numpy as np

        low, high = _value_range(np.asarray(image))
        inverted = image.format == "TIFF" and image.tag_v2.get(262) == 0  # white is zero; Pillow inverts 8 bits only
        scale = (high, low) if inverted else (low, high)
    if shrink == 1 and not scale:
        return _on_white(image, None)
    rows = shrink * max(1, 2**24 // (image.width * shrink))
    flat = None
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        band = _on_white(band, scale).reduce(shrink)
        flat = flat or Image.new(band.mode, (band.width, math.ceil(image.height / shrink)))
        flat.paste(band, (0, top // shrink))
    return flat


def _on_white(image, scale):
    from PIL import Image

    if scale:
        import numpy as np

        return Image.fromarray(_scaled_to_8_bits(np.asarray(image), *scale))
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        page = Image.new("RGB", image.size, "white")
        page.paste(image, mask=image.getchannel("A"))
        return page
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _whiten_missing_rows(image):
    """White below the last row that was decoded. Raises PageError where nothing was, or nothing but one colour."""
    box = image.getbbox()
    extrema = image.crop(box).getextrema() if box else ()
    bands = extrema if extrema and isinstance(extrema[0], tuple) else (extrema,)
    if not box or all(low == high for low, high in bands):
        raise PageError("the file ends early, before anything that could be read")
    image.paste("white", (0, box[3], image.width, image.height))
    return image


def _orientation(image):
    try:
        return int(image.getexif().get(274, 1))
    except Exception:  # one bad byte in the EXIF block is no reason to lose the page
        return 1


def _turn_upright(image, orientation):
    from PIL.Image import Transpose as turn

    method = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _pdf_document(data):
    """The opened PDF; call it with PDFIUM_LOCK held."""
    if isinstance(data, str) and not data.startswith("hf://"):
        status = os.stat(data)
        return _open_pdf(data, (status.st_mtime_ns, status.st_size))
    return _open_pdf(_fetch(data) if isinstance(data, str) else bytes(data), None)


@functools.cache
def _pdfium():
    import pypdfium2

    atexit.register(_open_pdf.cache_clear)  # before pypdfium2 looks for what is still open, and complains of it
    return pypdfium2


@functools.lru_cache(maxsize=1)  # opening a PDF of 1,000 pages again for each page would take most of the time
def _open_pdf(source, version):
    pdfium = _pdfium()
    try:
        document = pdfium.PdfDocument(source)
        document.init_forms()
    except Exception as error:
        # For a PDF without pages pdfium reports its last error code, whatever file that came from.
        if getattr(error, "err_code", None) == 4 and b"/Encrypt" in source_bytes(source):  # FPDF_ERR_PASSWORD
            raise PageError("the PDF is encrypted and needs a password; remove it with `qpdf --decrypt`") from error
        raise PageError(f"the PDF is broken or has no pages ({error})") from error
    return document


def _pdf_page(data, frame, dpi, bounds):
    with PDFIUM_LOCK:
        document = _pdf_document(data)
        if frame >= len(document):
            raise PageError(f"there is no page {frame + 1}: the PDF has {len(document)}")
        try:
            page = document[frame]
            width, height = (math.ceil(points * dpi / 72) for points in page.get_size())
            scale = min(1.0, math.sqrt(PAGE_PIXELS / (width * height)))
            image = page.render(scale=scale * dpi / 72, rev_byteorder=True).to_pil()
            page.close()
        except Exception as error:
            raise PageError(f"page {frame + 1} of the PDF cannot be rendered: {error}") from error
    return Page(fit(image.convert("RGB"), bounds), width, height, dpi=dpi)


# <<< kit/pages.py

# >>> kit/workers.py
# Crash-isolated worker processes: work in parallel, results in completion order, a dead worker costs one batch.


def worker_loop(pipe, setup, work):
    """A worker's life: `state = setup()`, then `work(state, items)` for each list of items that comes in.

    A thread empties the pipe, so that the parent never blocks while this side is sending. The parent's death ends it.
    """
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # no SIGHUP on Windows
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    inbox = queue.SimpleQueue()

    def receive():
        try:
            while True:
                inbox.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    try:
        state = setup()
    except BaseException as problem:
        pipe.send(("failed", problem if isinstance(problem, Stop) else sentence(problem)))
        return
    pipe.send(("ready", None))
    threading.Thread(target=receive, daemon=True).start()
    while True:
        items = inbox.get()
        try:
            results = work(state, items)
        except Exception as problem:
            results = [PageError(sentence(problem))] * len(items)
        pipe.send(("done", results))


class Worker:
    """The parent's side of one worker process: its pipe, and the batches it holds, the first being worked on."""

    def __init__(self, setup, work):
        # spawn: forking a process that has threads or a GPU context is undefined
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=worker_loop, args=(other, setup, work), daemon=True)
        self.process.start()
        other.close()
        self.ready, self.held, self.since = False, deque(), time.monotonic()

    def give(self, batch):
        if not self.held:
            self.since = time.monotonic()
        self.held.append(batch)
        with contextlib.suppress(OSError):  # it died idle; its pipe says so to the next wait
            self.pipe.send(batch)

    def end(self):
        self.pipe.close()
        self.process.kill()
        self.process.join(5)


def in_workers(items, setup, work, count, stop, batch=1, timeout=600):
    """Yields (item, result) in completion order; a result is what `work(setup(), [item, ...])` gave, or an exception.

    At most two batches a worker are in flight, so memory does not grow with the number of items. When a worker dies
    or is silent for `timeout` seconds, the batch it was working on runs again item by item; an item that takes a
    worker down twice gets a PageError. Raises Stop if `setup` fails. A set `stop` ends admission and abandons the rest.
    """
    waiting, suspects, workers, drained = deque(), {}, [], False
    source = Ahead(items, count * batch)
    try:
        while not stop.is_set():
            while not drained and len(waiting) < count * batch:
                try:
                    item = source.get(block=False)
                except StopIteration:
                    drained = True
                    break
                if item is None:
                    break
                waiting.append(item)
            if not waiting and drained and not any(worker.held for worker in workers):
                return
            idle = sum(not worker.held for worker in workers)
            if len(workers) < count and idle * batch < len(waiting):
                workers.append(Worker(setup, work))
            for worker in sorted(workers, key=lambda worker: len(worker.held)):
                if waiting and worker.ready and len(worker.held) < 2:
                    size = 1 if waiting[0].id in suspects else batch
                    worker.give([waiting.popleft() for _ in range(min(size, len(waiting)))])
                    break
            hungry = any(worker.ready and len(worker.held) < 2 for worker in workers)
            pause = 0 if hungry and waiting else 0.02 if not drained else 0.5
            heard = wait([worker.pipe for worker in workers], pause)
            # Whoever has something to say is not silent, however long nobody took what this generator yields.
            for worker in workers:
                silent = worker.held and worker.ready and worker.pipe not in heard
                if silent and time.monotonic() - worker.since > timeout:
                    worker.process.kill()
            for pipe in heard:
                worker = next(worker for worker in workers if worker.pipe is pipe)
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):
                    yield from worker_died(worker, workers, waiting, suspects)
                    continue
                if kind == "failed":
                    raise value if isinstance(value, Stop) else Stop(f"The model could not be loaded: {value}", code=1)
                worker.since = time.monotonic()
                if kind == "ready":
                    worker.ready = True
                else:
                    yield from zip(worker.held.popleft(), value, strict=True)
    finally:
        source.close()
        for worker in workers:
            worker.end()


def worker_died(worker, workers, waiting, suspects):
    """Puts a dead worker's batches back in front of the queue; yields the item that has now taken down two."""
    worker.process.join(5)
    workers.remove(worker)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if (code or 0) < 0 else f"ended with exit code {code}"
    worker.pipe.close()
    if not worker.ready:
        raise Stop(f"A worker process {how} while it was starting; run again with --verbose to see why.", code=1)
    guilty = worker.held.popleft() if worker.held else []
    waiting.extendleft(item for batch in reversed(worker.held) for item in reversed(batch))
    for item in reversed(guilty):
        if len(guilty) == 1 and item.id in suspects:
            yield item, PageError(f"the worker process {how} twice while reading this page")
        else:
            suspects[item.id] = True
            waiting.appendleft(item)


def open_unit(item, bounds, dpi):
    """Decodes an Item: (Unit, SHA-256 of the encoded source bytes or None). Raises PageError."""
    if item.error:
        raise PageError(item.error)
    pages, sha256 = [], None
    for data, frame in item.parts:
        if item.pages == 1 and len(item.parts) == 1:
            data = source_bytes(data)
            sha256 = sha256_of(data)
        pages.append(open_page(data, frame, dpi=dpi, bounds=bounds))
    return Unit(item.id, pages, item.text), sha256


def opened_items(bounds_dpi, items):
    """`work` of the decoding workers: (Unit, sha256) or the PageError of each item."""
    results = []
    for item in items:
        try:
            results.append(open_unit(item, *bounds_dpi))
        except Exception as problem:
            results.append(problem if isinstance(problem, PageError) else PageError(sentence(problem)))
    return results


class Ahead:
    """An iterator read in a thread, `size` values ahead of the loop that takes them with `get`."""

    def __init__(self, values, size):
        self.queue, self.ended = queue.Queue(size), threading.Event()
        self.thread = threading.Thread(target=self.fill, args=(values,), daemon=True)
        self.thread.start()

    def fill(self, values):
        last = StopIteration()
        try:
            for value in values:
                if not self.put(value):
                    break
        except BaseException as problem:
            last = problem
        finally:
            getattr(values, "close", int)()
            self.put(last)

    def put(self, value):
        while not self.ended.is_set():
            try:
                self.queue.put(value, timeout=0.2)
                return True
            except queue.Full:
                pass
        return False

    def get(self, block=True):
        """The next value, or None where none is ready and `block` is false. Raises StopIteration at the end."""
        try:
            value = self.queue.get(block)
        except queue.Empty:
            return None
        if isinstance(value, BaseException):
            self.queue.put(value)
            raise value
        return value

    def close(self):
        self.ended.set()
        self.thread.join(10)


def decoded(items, options, recipe, stop):
    """Yields (item, outcome) in completion order: (Unit, sha256), or the exception that decoding ended with.

    Decoding runs in worker processes, so that a decoder that crashes cannot take an engine with it and the engine's
    process keeps its interpreter to itself.
    """
    setup = functools.partial(fixed, (image_bounds(options, recipe), options.dpi))
    return in_workers(items, setup, opened_items, worker_count(recipe), stop)


def fixed(value):
    """`setup` of a worker whose state is known beforehand; a partial of it can be pickled, a lambda cannot."""
    return value


def worker_count(recipe):
    """Cores this process may use, fewer where memory would not hold `worker_memory` bytes for each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 33
    return max(1, min(cores, int(memory * 0.7 / recipe.get("worker_memory", 1 << 30))))


# <<< kit/workers.py

# >>> kit/run.py
# The run: items to rows through an engine that may die, counted, shown and stopped in good order.


FIRST_ANSWERS = 32  # if these all fail, something is wrong with the setup and not with the pages
SUSPECTS_AT_ONCE = 16
LAST_CALL = 8  # seconds from SIGTERM to a hard exit: Jobs send SIGKILL after ten


class EngineDied(Exception):
    """The engine's process or server is gone; the units in flight are suspects."""


class Feed:
    """Decoded units for an engine. Those that were in flight when it died come last, few at a time, then alone.

    `get(block)` gives the next (item, outcome), None if none is ready, and raises StopIteration at the end; an engine
    blocks only with nothing in flight. The outcome is (Unit, sha256) or the exception that decoding ended with.
    `limit` is the most units the engine may have in flight now (None: its own window). A unit that dies alone, or for
    the third time over all runs, is an error.
    """

    def __init__(self, items, decode, deaths, size):
        self.decode, self.deaths, self.size = decode, dict(deaths), size
        self.suspects, self.given_up, self.flying, self.limit = [], [], {}, None
        self.ahead = Ahead(decode(self.unsuspected(items)), size)

    def unsuspected(self, items):
        for item in items:
            if item.id in self.deaths:
                (self.suspects if self.deaths[item.id] < 3 else self.given_up).append(item)
            else:
                yield item

    def get(self, block=True):
        while True:
            if self.given_up:
                item = self.given_up.pop()
                return item, PageError("the engine died each time while this page was being read")
            try:
                pair = self.ahead.get(block)
            except StopIteration:
                if not (self.suspects or self.given_up):
                    raise
                if self.flying:  # the next group is smaller and must not share the engine with this one
                    return None
                level = min((self.deaths[item.id] for item in self.suspects), default=0)
                group = [item for item in self.suspects if self.deaths[item.id] == level]
                self.suspects = [item for item in self.suspects if self.deaths[item.id] != level]
                self.limit = SUSPECTS_AT_ONCE if level == 1 else 1
                self.ahead = Ahead(self.decode(group), self.size)
                continue
            if pair is not None:
                self.flying[pair[0].id] = pair[0]
            return pair

    def landed(self, row):
        self.flying.pop(row["id"], None)

    def crashed(self):
        """Turns the units in flight into suspects; returns their ids."""
        for item in self.flying.values():
            self.deaths[item.id] = self.deaths.get(item.id, 0) + 1
            alone = len(self.flying) == 1
            (self.given_up if alone or self.deaths[item.id] > 2 else self.suspects).append(item)
        ids = list(self.flying)
        self.flying.clear()
        return ids


def engine_rows(engine, items, steps, options, recipe, stop, results):
    """Yields the rows of a served model. A dead engine is rebuilt up to 3 times, once more per 1,000 finished units.

    Raises Stop(1) when it keeps dying; what is finished stays finished.
    """
    feed = Feed(items, lambda group: decoded(group, options, recipe, stop), results.deaths, size=32)

    def talk(item, outcome):
        if isinstance(outcome, BaseException):
            return only(failed_row(item, outcome))
        return converse(item, *outcome, options, recipe, steps)

    finished = rebuilds = 0
    try:
        while True:
            try:
                for row in engine(feed, talk, options, recipe, stop):
                    feed.landed(row)
                    finished += 1
                    yield row
                return
            except Stop as problem:
                problem.code = 1 if rebuilds else problem.code  # it ran before: pages are finished, and more can be
                raise
            except EngineDied as death:
                ids = feed.crashed()
                results.record_death(ids)
                rebuilds += 1
                if rebuilds > 3 + finished // 1000:
                    raise Stop(
                        f"The engine died {rebuilds} times ({death}). Finished pages are safe; "
                        "the same command resumes.",
                        code=1,
                    ) from death
                say(f"The engine died with {len(ids)} units in flight ({death}); starting it again.")
    finally:
        feed.ahead.close()


def only(row):
    """A conversation that is over before it began."""
    return row
    yield


class Tally:
    """Counts of this run. `ready` is when the first answer came: everything before it is start-up."""

    def __init__(self, total, skipped, by_page=True):
        self.total, self.skipped, self.started, self.ready = total, skipped, time.monotonic(), None
        self.by_page = by_page
        self.pages = self.errors = self.asked = self.useless = self.prompt_tokens = self.completion_tokens = 0
        self.retried = 0
        self.flags, self.shown = Counter(), 0.0

    def add(self, row):
        self.ready = self.ready or time.monotonic() - (row["seconds"] or 0)
        self.pages += 1
        if self.total and self.by_page and row["page"] == 1:  # the source counts rows and files
            self.total += row["pages"] - 1
        self.errors += row["error"] is not None
        self.asked += row["attempts"] > 0
        self.retried += row["attempts"] > 1
        self.useless += row["attempts"] > 0 and (row["error"] is not None or "degenerate" in row["flags"])
        self.flags.update(row["flags"])
        self.prompt_tokens += row["prompt_tokens"]
        self.completion_tokens += row["completion_tokens"]

    @property
    def seconds(self):
        return time.monotonic() - self.ready if self.ready else 0.0

    def line(self):
        """One line for the human: pages done, pages/s, tokens/s, errors, flags, time left."""
        rate = self.pages / self.seconds if self.seconds else 0.0
        done = f"{self.pages + self.skipped:,}" + (f" of {self.total:,}" if self.total else "") + " pages"
        parts = [done, f"{rate:.2f} pages/s"]
        if self.completion_tokens and self.seconds:
            parts.append(f"{self.completion_tokens / self.seconds:,.0f} tokens/s")
        parts += [f"{self.errors} errors"] + [f"{count} {flag}" for flag, count in self.flags.most_common()]
        if rate and self.total and self.total > self.pages + self.skipped:
            left = (self.total - self.pages - self.skipped) / rate
            parts.append(f"{int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d} left")
        return ", ".join(parts)

    def show(self, last=False):
        """The line in place on a terminal, every 30 s in a log."""
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if last or now - self.shown > (0.5 if terminal else 30):
            self.shown = now
            width = shutil.get_terminal_size().columns - 1
            text = f"\r{self.line()[:width]:<{width}}" + ("\n" if last else "") if terminal else self.line() + "\n"
            sys.stderr.write(text)
            sys.stderr.flush()


def read_all(rows, results, tally, stop):
    """Puts every row into the results. Raises Stop(1) if the first answers are all useless; closes the results."""
    try:
        for row in rows:
            results.put(row)
            tally.add(row)
            tally.show()
            if tally.asked == tally.useless == FIRST_ANSWERS and not stop.is_set():
                raise Stop(
                    f"The first {FIRST_ANSWERS} answers are all errors or degenerate text, so something is wrong with "
                    f"the setup, not the pages. The last one: {row['error'] or row['text'][:80]!r}. "
                    "Run one page with --max-samples 1 --verbose; --retry-errors asks the failed pages again.",
                    code=1,
                )
    finally:
        rows.close()
        results.close()
        tally.show(last=True)


def stop_on_signals(results):
    """The event that SIGTERM, SIGINT and a closed terminal set (SIGHUP, unless nohup had it ignored).

    If the run is not over in time, finished pages are saved and it ends.
    """
    stop = threading.Event()

    def last_call():
        say("Still busy; saving what is finished and leaving. The same command resumes.")
        try:
            results.close()
        finally:
            os._exit(1)

    def handler(number, frame):
        if not stop.is_set():
            stop.set()
            say("Stopping: finished pages are being saved. The same command resumes.")
            timer = threading.Timer(LAST_CALL, last_call)
            timer.daemon = True
            timer.start()

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    hangup = getattr(signal, "SIGHUP", None)  # None on Windows
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:
        signal.signal(hangup, handler)
    return stop


def peak_memory():
    """Peak resident bytes of this process and of its largest child."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return [unit * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def report(tally, options, recipe, exit_code, **more):
    """The short table for the human and the JSON line for the machine, last on stdout."""
    own, child = peak_memory()
    startup = (tally.ready - tally.started) if tally.ready else time.monotonic() - tally.started
    summary = {
        "recipe": recipe["name"], "model": options.model, "task": options.task, "engine": options.engine,
        "input": options.input, "output": options.output,
        "pages": tally.pages, "skipped": tally.skipped, "errors": tally.errors, "flags": dict(tally.flags),
        "retried": tally.retried,
        "startup_seconds": round(startup, 1), "seconds": round(tally.seconds, 1),
        "pages_per_second": round(tally.pages / tally.seconds, 3) if tally.seconds else None,
        "prompt_tokens": tally.prompt_tokens, "completion_tokens": tally.completion_tokens,
        "peak_memory_mb": round(own / 1e6), "peak_worker_memory_mb": round(child / 1e6),
        **more, "exit_code": exit_code,
    }  # fmt: skip
    if options.price_per_hour and tally.pages:
        hours = (startup + tally.seconds) / 3600
        summary["cost_per_1000_pages"] = round(options.price_per_hour * hours / tally.pages * 1000, 4)
    for key in ("pages", "skipped", "errors", "flags", "pages_per_second", "startup_seconds", "peak_memory_mb"):
        say(f"  {key:<18} {summary[key]}")
    try:
        print(json.dumps(summary), flush=True)
    except OSError:  # nobody reads stdout any more; the run is done all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code


# <<< kit/run.py

# >>> kit/gpus.py
# The GPUs of this machine, and where to get one.


def gpus():
    """(free, total) bytes of each visible NVIDIA GPU; no CUDA context is made, so vLLM can still fork."""
    query = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        lines = subprocess.run(
            query + ([f"--id={visible}"] if visible else []), capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    numbers = [re.findall(r"\d+", line) for line in ([] if visible == "" else lines.splitlines())]
    return [(int(pair[0]) << 20, int(pair[1]) << 20) for pair in numbers if len(pair) == 2]


def needed_gpus(who, instead="On a CPU there are pp-ocrv6.py and tesseract-ocr.py."):
    """`gpus()`, for what does not run without one: raises Stop where there is none, unless OCR_ALLOW_CPU=1."""
    cards = gpus()
    if not cards and os.environ.get("OCR_ALLOW_CPU") != "1":
        raise Stop(
            f"{who} needs an NVIDIA GPU, and nvidia-smi shows none here. Use a managed one:\n{on_jobs()}\n"
            f"or set OCR_ALLOW_CPU=1 to try without. {instead}"
        )
    return cards


def this_command():
    return " ".join(map(shlex.quote, sys.argv))


def on_jobs():
    """How to run this command on a managed GPU, which sees no local files."""
    local = any(os.path.exists(word) for word in sys.argv[1:])
    hint = "\n  (with INPUT and OUTPUT on the Hub: a dataset ns/name, or hf://buckets/ns/name/folder)" if local else ""
    return f"  hf jobs uv run {this_command()}{hint}"


# <<< kit/gpus.py

# >>> kit/vllm.py
# What both vLLM engines share: engine arguments, sampling, the window, and the checks before anything is paid.


GIB = 1 << 30
# Host bytes that a prepared page holds while it is in flight: measured 44 MB at 1,540 px (1.7 MP), 268 MB at 11 MP.
BYTES_PER_PIXEL = 27
UNBOUNDED_PIXELS = 12_845_056  # a recipe without image bounds: the largest cap among the processors of its models


def set_environment(recipe):
    """Sets what vLLM reads when it is imported; values that are set already win. `recipe["environment"]` adds more."""
    defaults = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled with nvcc at start-up, which most images do not have
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the one JSON line
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "4",  # image preparation: more threads than that take turns, fewer are slower
        "TOKENIZERS_PARALLELISM": "false",
    }
    for key, value in (defaults | recipe.get("environment", {})).items():
        os.environ.setdefault(key, value)


def engine_args(options, recipe):
    """Keyword arguments of `vllm.LLM`, which are also the flags of `vllm serve` (see `cli_args`)."""
    args = {
        "model": options.model,
        "generation_config": "vllm",  # sampling is what the recipe says, not what the checkpoint suggests
        # Without a limit for videos vLLM sets memory aside for them.
        "limit_mm_per_prompt": {"image": recipe.get("pages_per_unit") or 1, "video": 0},
        "max_num_seqs": 256,
        # No two pages are alike, so both caches would only cost time and memory.
        "enable_prefix_caching": False,
        "mm_processor_cache_gb": 0,
        **recipe.get("engine_args", {}),
    }
    chosen = ("revision", "max_model_len", "gpu_memory_utilization")
    return args | {key: getattr(options, key) for key in chosen if getattr(options, key) is not None}


def cli_args(args):
    """Arguments of `vllm serve` for the keyword arguments of `vllm.LLM`: the model, then one flag per keyword."""
    words = [args["model"]]
    for key, value in args.items():
        flag = "--" + key.replace("_", "-")
        if key == "model" or value is None:
            continue
        if value is False:
            words.append("--no-" + flag[2:])
        elif value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def chat_arguments(recipe):
    """How messages become a prompt: `chat_template_content_format`, and `chat_template_kwargs` if there are any."""
    chat = recipe.get("chat", {})
    arguments = {"chat_template_content_format": chat.get("content_format", "auto")}
    return arguments | ({"chat_template_kwargs": chat["template_kwargs"]} if chat.get("template_kwargs") else {})


def messages_with(messages, picture):
    """The messages with each image part replaced by `picture(image)`."""
    return [
        {**message, "content": [picture(part["image"]) if part["type"] == "image" else part for part in content]}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def sampling_params(body):
    """`vllm.SamplingParams` of an OpenAI chat body, with the server's meaning of every key.

    Raises TypeError or ValueError for a key or value that vLLM does not know.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    values = {key: value for key, value in body.items() if key not in ("messages", *PROMPT_KEYS)}
    top = values.pop("top_logprobs", 0)
    values["logprobs"] = top if values.pop("logprobs", False) else None
    values["extra_args"] = values.pop("vllm_xargs", None)
    if values.get("structured_outputs"):
        values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
    if values.get("repetition_detection"):
        from vllm.sampling_params import RepetitionDetectionParams  # not in the oldest versions

        values["repetition_detection"] = RepetitionDetectionParams(**values["repetition_detection"])
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **values)


PROMPT_KEYS = ("chat_template_kwargs", "mm_processor_kwargs", "add_generation_prompt", "continue_final_message")


def window_size(options, recipe, engines=1):
    """Most units in flight: twice what the engines compute at once, or what a quarter of the host's memory holds."""
    bounds = image_bounds(options, recipe)
    side = bounds.get("max_side")
    pixels = bounds.get("max_pixels") or (side * side if side else UNBOUNDED_PIXELS)
    args = engine_args(options, recipe)
    unit = BYTES_PER_PIXEL * pixels * args["limit_mm_per_prompt"].get("image", 0)
    return options.window or max(1, min(2 * args["max_num_seqs"] * engines, host_memory() // 4 // max(unit, 1)))


def host_memory():
    """Bytes of memory that this process may use: the container's limit where there is one."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(memory, int(text)) if text.isdecimal() else memory


def preflight_vllm(options, recipe):
    """Checks, before anything is downloaded, that this machine can run this model as asked. Raises Stop."""
    if options.endpoint or recipe.get("server_command"):
        return
    set_environment(recipe)
    args = engine_args(options, recipe)
    cards = needed_gpus(recipe["name"])  # first: where there is none, no vLLM need be fetched
    package = check_version(recipe)
    config = model_config(options)
    check_code(args, config, package)
    check_lengths(options, recipe, config)
    weights, missing = weight_bytes(options)
    check_room(args, cards, weights, missing)
    if options.engine == "offline" and not options.engine_given and (engines := engine_count(options, recipe)) > 1:
        options.engine = "serve"
        say(f"{len(cards)} GPUs: engine serve keeps {engines} copies of the model busy; --engine offline is for one.")


def check_version(recipe):
    """The folder of the vLLM package that will run. Raises Stop if there is none or the recipe does not fit it."""
    from packaging.version import Version

    window, python = recipe.get("vllm", {}), recipe.get("server_python", sys.executable)
    tested = window.get("tested") or window.get("min")
    own = f"uv run --with vllm=={tested} {this_command()}"
    if recipe.get("server_python"):  # this vLLM and this script's packages do not go into one environment
        own = (
            f"docker run --gpus all -p 8000:8000 --entrypoint vllm vllm/vllm-openai:v{tested} "
            f"serve {recipe['model']} --max-model-len {recipe.get('max_model_len')} --generation-config vllm\n"
            f"  uv run {this_command()} --endpoint http://localhost:8000/v1"
        )
    remedy = (
        f"On your own GPU:\n  {own}\n"
        f"On a managed one, in the image that the script names:\n{on_jobs()}\n"
        "Without a GPU there are pp-ocrv6.py and tesseract-ocr.py."
    )
    probe = (
        "import importlib.metadata, importlib.util;"
        "print(importlib.metadata.version('vllm'), importlib.util.find_spec('vllm').submodule_search_locations[0])"
    )
    try:
        output = subprocess.run(
            [python, "-c", probe], env=server_environment(recipe), capture_output=True, text=True, timeout=120
        ).stdout
    except OSError:
        raise Stop(f"This model runs on vLLM {tested} under {python}, which is not there. {remedy}") from None
    version, _, package = output.strip().partition(" ")
    if not version:
        raise Stop(f"vLLM is not installed for {python}. {remedy}")
    found, excluded = Version(version), window.get("exclude", {})
    wrong = found.public in excluded or found < Version(window.get("min", "0"))
    if wrong or (window.get("below") and found >= Version(window["below"])):
        bounds = " and ".join(f"{word} {window[word]}" for word in ("min", "below") if window.get(word))
        reason = excluded.get(found.public, "") or window.get("reason", "")
        raise Stop(
            f"vLLM {version} is installed; {recipe['name']} runs on {bounds or 'others'}"
            + (f" except {', '.join(excluded)}" if excluded else "")
            + (f" ({reason})" if reason else "")
            + f". {remedy}"
        )
    return Path(package)


def engine_count(options, recipe):
    """How many copies of the model the GPUs here hold, one for each `tensor_parallel_size` of them; at least 1."""
    return max(1, len(gpus()) // (engine_args(options, recipe).get("tensor_parallel_size") or 1))


def model_config(options):
    """The model's config.json, from its folder or the Hub."""
    from huggingface_hub import hf_hub_download

    try:
        if os.path.isdir(options.model):
            path = os.path.join(options.model, "config.json")
        else:
            path = hf_hub_download(options.model, "config.json", revision=options.revision)
        return json.loads(Path(path).read_text())
    except Exception as problem:
        where = options.model + (f" at revision {options.revision}" if options.revision else "")
        raise Stop(
            f"The config.json of {where} cannot be read: {str(problem).strip().splitlines()[0]} "
            "Check --model and --revision; for a gated model accept its terms on the Hub and run `hf auth login`."
        ) from problem


def check_code(args, config, package):
    """Raises Stop if the installed vLLM does not know the model's class, or lacks a logits processor."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    wanted = args.get("hf_overrides", {}).get("architectures") or config.get("architectures") or []
    known = (package / "model_executor" / "models" / "registry.py").read_text()
    if wanted and not any(f'"{name}"' in known for name in wanted) and args.get("model_impl") != "transformers":
        if not entry_points(group="vllm.general_plugins"):
            raise Stop(
                f"The installed vLLM has no model class {' or '.join(wanted)}, which {args['model']} asks for. "
                "Check --model, or use the vLLM version that the recipe was tested with."
            )
    for name in args.get("logits_processors", []):
        module, _, attribute = name.partition(":")
        top, *rest = module.split(".")
        # A package of the script's own lies beside the script's other packages, not beside the image's vLLM.
        own = top != "vllm" and find_spec(top)
        folders = [package if top == "vllm" else package.parent / top]
        folders += map(Path, (own and own.submodule_search_locations) or ())
        paths = [p for f in folders for p in (f.joinpath(*rest, "__init__.py"), f.joinpath(*rest).with_suffix(".py"))]
        if not any(attribute in path.read_text() for path in paths if path.exists()):
            raise Stop(f"The logits processor {name} is not installed beside vLLM in {package.parent}.")


def true_context(config):
    """Tokens that the model was built for, from its config.json; None where it does not say."""
    parts = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    text = next((part for part in parts if isinstance(part, dict)), config)
    keys = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
    length = next((text[key] for key in keys if text.get(key)), None)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor") or 1
    if length and kind == "yarn":  # the length is the scaled one already in most checkpoints, the original in some
        return max(length, int(factor * rope.get("original_max_position_embeddings", 0)))
    return length and int(length * (factor if kind in ("linear", "dynamic") else 1))


def check_lengths(options, recipe, config):
    """Raises Stop unless image, prompt and answer fit --max-model-len and that fits the model."""
    context = true_context(config) or recipe.get("context")
    length = options.max_model_len or context
    if context and length > context:
        raise Stop(
            f"--max-model-len {length} is more than the {context} tokens that {options.model} was built for. "
            f"Use --max-model-len {context} or less."
        )
    prompt = max((len(text.encode()) for text in (recipe.get("tasks") or {}).values()), default=0) // 3 + 64
    images = engine_args(options, recipe)["limit_mm_per_prompt"].get("image", 0)
    needed = prompt + (recipe.get("image_tokens") or 0) * images
    if length and options.max_tokens + needed > length:
        room = length - needed
        advice = f"--max-tokens {room}" if room >= 256 else f"--max-model-len {needed + options.max_tokens}"
        raise Stop(
            f"--max-tokens {options.max_tokens} and up to {needed} tokens of image and prompt do not fit "
            f"--max-model-len {length}: long pages would be cut off. Use {advice}."
        )


def weight_bytes(options):
    """(bytes of the model's weight files, bytes of those not on this disk yet); zeros where nobody says."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    if os.path.isdir(options.model):
        files = [(path.name, path.stat().st_size, True) for path in Path(options.model).iterdir()]
    else:
        try:
            info = HfApi().model_info(options.model, revision=options.revision, files_metadata=True)
        except Exception:  # no network: what is in the cache is all there is, and vLLM will say what it misses
            return 0, 0
        names = {file.rfilename: file.size or 0 for file in info.siblings}
        here = {n: isinstance(try_to_load_from_cache(options.model, n, revision=info.sha), str) for n in names}
        files = [(name, size, here[name]) for name, size in names.items()]
    for suffix in (".safetensors", ".bin", ".pt"):
        weights = [(size, here) for name, size, here in files if name.endswith(suffix)]
        if weights:
            return sum(size for size, _ in weights), sum(size for size, here in weights if not here)
    return 0, 0


def check_room(args, cards, weights, missing):
    """Raises Stop if the weights fit neither the disk nor the GPU; warns when the GPU is nearly full."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = next(path for path in (Path(HF_HUB_CACHE), *Path(HF_HUB_CACHE).parents) if path.exists())
    free = shutil.disk_usage(cache).free
    if missing and free < missing + GIB // 2:
        raise Stop(
            f"The weights need {missing / GIB:.1f} GiB and {cache} has {free / GIB:.1f} GiB left. "
            "Make room, or set HF_HOME to a folder on a larger disk."
        )
    if not cards:
        return
    free, total = min(cards)
    share = args.get("gpu_memory_utilization") or 0.9
    if share * total > free:
        raise Stop(
            f"The GPU has {free / GIB:.1f} of {total / GIB:.1f} GiB free and vLLM would take {share:.0%} of it. "
            f"End what else runs there, or use --gpu-memory-utilization {int(free / total * 100) / 100:.2f}."
        )
    budget = share * total * (args.get("tensor_parallel_size") or 1)
    if weights >= budget and not args.get("cpu_offload_gb"):
        raise Stop(
            f"{args['model']} has {weights / GIB:.1f} GiB of weights and the GPU gives {budget / GIB:.1f} GiB. "
            "Use a larger GPU (on Jobs: --flavor)."
        )
    if budget - weights < 3 * GIB:
        say(
            f"Little GPU memory: {weights / GIB:.1f} GiB of weights in {budget / GIB:.1f} GiB leaves few pages in "
            "flight. If the start fails, use a lower --max-model-len or a larger GPU."
        )


# <<< kit/vllm.py

# >>> kit/serve.py
# Engine `serve`: an OpenAI-compatible server, started here or named by --endpoint, kept full over HTTP.


BOOT_SECONDS = 1800  # a download of the weights, and compilation
REQUEST_SECONDS = 1800  # an answer of 16,000 tokens at full load, and its time in the server's queue
PULSE_SECONDS, PULSE_PATIENCE = 5, 20  # between two looks at the server's health, and for its answer
BODIES = {"png": ("PNG", {"compress_level": 1}), "jpeg": ("JPEG", {"quality": 95})}


class Server(NamedTuple):
    """A server that answers: base URL up to /v1, its name for the model, and if it is ours its process and log."""

    url: str
    model: str
    process: object = None
    log: str | None = None

    def gone(self, what):
        """The exception for a server that is lost in the middle of a run."""
        if self.process is None:
            return Stop(f"{self.url} {what}. See to the server; then the same command resumes.", code=1)
        return EngineDied(f"the server {what}. Its log ends:\n{log_tail(self.log)}")


def serve(units, talk, options, recipe, stop):
    """Yields result rows in completion order; `units` is a `Feed`, `talk(item, outcome)` starts a `converse`.

    Once `stop` is set, what is in flight is abandoned. Raises Stop if the server does not start or is not what the
    run needs; when it is lost, EngineDied, or Stop(1) if it is an `--endpoint`.
    """
    with running_server(options, recipe, stop) as server:
        if server is None:
            return
        loop = asyncio.new_event_loop()
        rows = served_rows(server, units, talk, options, recipe, stop)
        try:
            while not stop.is_set():
                yield loop.run_until_complete(anext(rows))
        except StopAsyncIteration:
            return
        except EngineDied:
            if not stop.is_set():
                raise
        finally:
            loop.run_until_complete(rows.aclose())
            loop.close()


async def served_rows(server, units, talk, options, recipe, stop):
    """Yields the rows, with at most a window of units in flight. Raises what `Server.gone` gives.

    The window is fixed: saturate's Auto halves it when the KV cache is full, and there an OCR run is fastest.
    """
    from saturate import AdaptiveClient, Fixed

    engines = 1 if options.endpoint or recipe.get("server_command") else engine_count(options, recipe)
    window, more, tasks = window_size(options, recipe, engines), True, set()
    seconds = getattr(options, "request_timeout", REQUEST_SECONDS)
    client = AdaptiveClient(server.url, Fixed(window), credentials(), seconds, signal_source="none")
    async with client:
        client.breaker.max_open_s = 60  # seconds that a server may fail every request before it counts as lost
        pulse = asyncio.create_task(keep_watch(server))
        try:
            while not stop.is_set() and (more or tasks):
                while more and len(tasks) < min(window, units.limit or window):
                    try:
                        unit = units.get(block=False)
                    except StopIteration:
                        more = False
                        break
                    if unit is None:
                        break
                    tasks.add(asyncio.create_task(hold(talk(*unit), client, server, recipe)))
                done, _ = await asyncio.wait({pulse, *tasks}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tasks.discard(task)
                    yield task.result()
        finally:
            for task in (pulse, *tasks):
                task.cancel()
            await asyncio.gather(pulse, *tasks, return_exceptions=True)


async def hold(conversation, client, server, recipe):
    """Holds one unit's conversation with the server; returns its row."""
    answers = None
    while True:
        try:
            bodies = conversation.send(answers)
        except StopIteration as end:
            return end.value
        answers = await asyncio.gather(*(ask(body, client, server, recipe) for body in bodies))


async def ask(body, client, server, recipe):
    """The Answer to one request, or the PageError for one that fails while the server is well."""
    from saturate import FatalTransportError

    wired = await asyncio.to_thread(wire, body, server, recipe)
    try:
        reply, problem = await client.post(wired)
    except FatalTransportError:
        raise server.gone("fails every request") from None
    except ValueError as garbled:
        return PageError(f"the server sent something else than JSON ({garbled})")
    if problem is None:
        return answer_in(reply)
    if not problem.startswith("http 4"):
        await check_pulse(server)
    return PageError(f"the server did not answer this page: {problem}")


async def keep_watch(server):
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        await check_pulse(server)


async def check_pulse(server):
    """Raises what `Server.gone` gives if the process has ended, or if nobody answers three times."""
    import httpx2

    async with httpx2.AsyncClient(headers=credentials(), timeout=PULSE_PATIENCE) as client:
        for left in (2, 1, 0):
            if server.process is not None and server.process.poll() is not None:
                raise server.gone(f"ended with exit code {server.process.returncode}")
            try:
                return await client.get(f"{server.url}/models")
            except httpx2.HTTPError as problem:
                if not left:
                    raise server.gone(f"does not answer any more ({type(problem).__name__})") from problem
            await asyncio.sleep(1)


def wire(body, server, recipe):
    """The body as it travels: the server's name for the model, and pictures as data URIs."""
    kind, how = BODIES[recipe.get("body_format", "png")]

    def picture(image):
        data = io.BytesIO()
        image.save(data, kind, **how)
        text = base64.b64encode(data.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/{kind.lower()};base64,{text}"}}

    chat = chat_arguments(recipe)
    chat.pop("chat_template_content_format")  # a flag of the server
    return chat | body | {"model": server.model, "messages": messages_with(body["messages"], picture)}


def answer_in(reply):
    """The Answer in an OpenAI chat completion, or a PageError where it holds none."""
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        tokens = (choice.get("logprobs") or {}).get("content")
        return Answer(
            text="" + (choice["message"]["content"] or ""),  # a TypeError for what is no string
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            logprobs=tokens and [token["logprob"] for token in tokens],
        )
    except (KeyError, IndexError, TypeError, AttributeError) as problem:
        return PageError(f"the server's answer holds no text ({problem!r}): {str(reply)[:200]}")


@contextlib.contextmanager
def running_server(options, recipe, stop):
    """Gives a Server: the one at `--endpoint`, or one that lives as long as the context; None if `stop` came first.

    Not saturate's Engine: it has no place for an environment and a log, and takes 30 seconds to end a server.
    """
    if options.endpoint:
        url = options.endpoint.rstrip("/")
        url = url if "/" in url.partition("://")[2] else url + "/v1"
        yield Server(url, served_model(url, options))
        return
    from saturate import wait_for_health

    set_environment(recipe)
    end_children_with_this_process()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, command = f"http://127.0.0.1:{port}/v1", server_command(options, recipe, port)
    say(f"Starting {shlex.join(command)}")
    with tempfile.NamedTemporaryFile(prefix="server-", suffix=".log") as log:
        process = subprocess.Popen(
            command, env=server_environment(recipe), stdout=log, stderr=log, start_new_session=True
        )
        threading.Thread(target=end_on_stop, args=(process, stop), daemon=True).start()
        try:
            server = None
            try:
                wait_for_health(url, BOOT_SECONDS, proc=process)
                server = Server(url, served_model(url, options), process, log.name)
            except (RuntimeError, TimeoutError) as problem:
                if not stop.is_set():
                    raise Stop(f"The server did not start: {problem}. Its log ends:\n{log_tail(log.name)}") from problem
            yield server
        finally:
            end_group(process)


def server_command(options, recipe, port):
    """The words that start the server: the recipe's `server_command`, or `vllm serve` for all GPUs and cores."""
    if recipe.get("server_command"):
        filled = {"{model}": options.model, "{port}": str(port), "{max_model_len}": str(options.max_model_len)}
        return [filled.get(word, word) for word in recipe["server_command"]]
    args, replicas = engine_args(options, recipe), engine_count(options, recipe)
    # These processes prepare the pages; 6 to 8 of them kept one H200 busy on 16 cores.
    apis = max(1, min(8 * replicas, (os.cpu_count() or 1) // 2))
    args |= {"served_model_name": options.model, "host": "127.0.0.1", "port": port}
    args |= {"data_parallel_size": replicas} if replicas > 1 else {}
    args |= {"api_server_count": apis} if apis > 1 else {}
    args["chat_template_content_format"] = chat_arguments(recipe)["chat_template_content_format"]
    return [recipe.get("server_python", sys.executable), "-m", "vllm.entrypoints.cli.main", "serve", *cli_args(args)]


def end_on_stop(process, stop):
    stop.wait()
    if process.poll() is None:
        end_group(process)


def end_group(process, patience=4):
    """Ends a process and all that it started: SIGTERM, and SIGKILL for what is left after `patience` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def log_tail(path, lines=20):
    with open(path, errors="replace") as log:
        return "".join(log.readlines()[-lines:]).rstrip()


def served_model(url, options):
    """The name under which the server has the model. Raises Stop if nobody answers or it serves something else."""
    import httpx2

    try:
        reply = httpx2.get(f"{url}/models", headers=credentials(), timeout=30)
        models = {model["id"]: model for model in reply.raise_for_status().json()["data"]}
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as problem:
        raise Stop(
            f"No OpenAI-compatible server answers at {url} ({problem or type(problem).__name__}). Start one with\n"
            f"  vllm serve {options.model}\nand name it, e.g. --endpoint http://HOST:8000/v1. "
            "If it wants a key, set OPENAI_API_KEY."
        ) from problem
    if not options.endpoint and len(models) == 1:  # a vendor's command may name it in its own way
        return next(iter(models))
    if options.model not in models:
        raise Stop(f"{url} does not serve {options.model}. Use one that it serves: --model {' or '.join(models)}.")
    length = models[options.model].get("max_model_len")
    if length and options.max_tokens >= length:
        raise Stop(
            f"{url} takes {length} tokens of prompt and answer together, so --max-tokens {options.max_tokens} leaves "
            f"no room for the page. Use --max-tokens {length // 2}, or start it with a larger --max-model-len."
        )
    return options.model


def credentials():
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


# <<< kit/serve.py
# <<< shared part


if __name__ == "__main__":
    sys.exit(main_of_serving())
