"""SGLang with a build that a model's authors ship in the model's repository: installed, checked, started."""

import os
import shutil
import subprocess
from pathlib import Path

from kit.gpus import gpus, needed_gpus, on_jobs, this_command
from kit.pages_apart import talk_apart
from kit.processes import server_environment
from kit.seam import Stop, say
from kit.serve import serve
from kit.vllm import check_lengths, check_room, model_config, weight_bytes

BUDGET_SECONDS = 3600  # for one window with all its retries; the client's 300 end before the answer does


def sglang_python(recipe):
    """The interpreter that has SGLang: the recipe's, else the first on PATH past uv's environment. None if none."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    for python in [recipe["server_python"], *(os.path.join(folder, "python3") for folder in folders)]:
        if os.access(python, os.X_OK) and runs(python, probe, recipe):
            return python
    return None


def runs(python, code, recipe):
    return not subprocess.run(
        [python, "-c", code], env=server_environment(recipe), stderr=subprocess.DEVNULL
    ).returncode


def sglang_server(options, recipe):
    """The keys of RECIPE for a server on this machine: its interpreter, all GPUs, the words of --server-args."""
    python = sglang_python(recipe) or recipe["server_python"]
    replicas = ["--dp-size", str(len(gpus()))] if len(gpus()) > 1 else []
    command = [python, *recipe["server_command"], *replicas, *options.server_args]
    return {"server_python": python, "server_command": command}


def preflight_sglang(options, recipe):
    """Raises Stop where SGLang, a GPU, or room for the model is missing here. A server at --endpoint has its own."""
    if options.endpoint:
        return
    if not sglang_python(recipe):
        raise Stop(
            f"No interpreter on PATH has SGLang. Run in the image that the script names:\n{on_jobs()}\n"
            f"or start a server as SERVING.md says and name it:\n  uv run {this_command()} --endpoint http://HOST:30000"
        )
    cards = needed_gpus(recipe["name"], "A server elsewhere is named with --endpoint URL.")
    check_lengths(options, recipe, model_config(options))
    check_room({"model": options.model}, cards, *weight_bytes(options))
    if cards and min(total for _, total in cards) < 40 << 30:
        say("Less than 48 GB of GPU memory: windows of pages crowd one another out there. Use a larger GPU if you can.")


def model_wheel(options):
    """Local path of the newest SGLang wheel in the model's folder or repository, or None. Raises Stop."""
    from huggingface_hub import HfApi, hf_hub_download

    if os.path.isdir(options.model):
        wheels = sorted(map(str, Path(options.model).rglob("sglang*.whl")))
        return wheels[-1] if wheels else None
    try:
        files = HfApi().list_repo_files(options.model, revision=options.revision)
        wheels = sorted(name for name in files if Path(name).match("sglang*.whl"))
        return hf_hub_download(options.model, wheels[-1], revision=options.revision) if wheels else None
    except Exception as problem:
        raise Stop(
            f"The files of {options.model} cannot be had: {problem}. Check --model and the network."
        ) from problem


def install_wheel(options, recipe):
    """Puts the authors' build of SGLang into the server's environment, unless it is there already. Raises Stop."""
    wheel, python = model_wheel(options), recipe["server_python"]
    if not wheel:
        say(f"{options.model} has no SGLang wheel; the installed SGLang has to know the model.")
        return
    version = Path(wheel).name.split("-")[1]
    if runs(python, f"import importlib.metadata as m, sys; sys.exit(m.version('sglang') != {version!r})", recipe):
        return
    pip = ["uv", "pip", "install", "--python", python] if shutil.which("uv") else [python, "-m", "pip", "install"]
    done = subprocess.run([*pip, "--no-deps", wheel], capture_output=True, text=True)  # its pins are those of the image
    if done.returncode:
        raise Stop(f"{Path(wheel).name} cannot be installed for {python}:\n{done.stdout[-500:]}{done.stderr[-1500:]}")
    say(f"Installed {Path(wheel).name} for {python}.")


def serve_sglang(units, talk, options, recipe, stop):
    """Engine `serve` with the authors' SGLang, for windows of pages; units and rows as of `serve`."""
    yield from serve(units, *prepared_server(talk, options, recipe, stop), recipe, stop)


def prepared_server(talk, options, recipe, stop):
    """(talk, options) with what windows need: the wheel installed, patience, and pages that fail by themselves."""
    from saturate import transport

    transport.RETRY_BUDGET_S = BUDGET_SECONDS
    options.request_timeout = BUDGET_SECONDS
    if not options.endpoint:
        install_wheel(options, recipe)
    return talk_apart(talk, options, recipe, stop), options
