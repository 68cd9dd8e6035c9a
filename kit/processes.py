"""Processes beside this one: in an environment of their own, and gone when this one is."""

import os
import subprocess
import sys


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
