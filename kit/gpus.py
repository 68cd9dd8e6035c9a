"""The GPUs of this machine, and where to get one."""

import os
import re
import shlex
import subprocess
import sys

from kit.seam import Stop


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
