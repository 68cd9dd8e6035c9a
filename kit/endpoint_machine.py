"""What this machine has: GPUs, memory, disk, processors; and whether a GPU is idle."""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

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
