"""Running a job's command on this machine.

A volume becomes a temporary folder with the content of its repo or bucket, which lies elsewhere than the mount path:
where the command, its arguments (also after `=`) and the environment name that path, the folder's is put instead. On
Linux as root the folder is a mount of its own in the job's namespace, read-only where the volume is, so that
`os.path.ismount` holds as on the service; elsewhere it is a plain folder. New and changed files of a writable bucket go
back to it when the job ends, however it ends.

Known simplifications: the command is not isolated; files appear in the bucket at the end of the job, not as they are
closed; deleting in a mounted bucket does nothing; the image's own environment is this machine's, without its Hub login.
"""

import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import traceback
from pathlib import Path

from tests.hub.loopback.buckets import put_contents
from tests.hub.loopback.state import timestamp
from tests.hub.loopback.storage import read_file
from tests.hub.loopback.xet import read_xet


def kill(job, number=signal.SIGTERM):
    """Signal the command and its children; nothing where it has not started or has ended."""
    if job.process and job.process.poll() is None:
        os.killpg(job.process.pid, number)


def volume_contents(hub, volume):
    """Yield (path, bytes) of what a volume shows, `path` narrowing it to a folder."""
    prefix = volume["path"].strip("/") + "/" if volume.get("path") else ""
    if volume["type"] == "bucket":
        files = hub.buckets[volume["source"]].files
        contents = ((path, lambda f=file: read_xet(hub, f["xetHash"])) for path, file in files.items())
    else:
        repo = hub.repos[volume["type"], volume["source"]]
        revision = volume.get("revision") or "main"
        tree = repo.commits[repo.refs.get(revision, revision)].tree
        contents = ((path, lambda f=file: read_file(hub, f)) for path, file in tree.items())
    for path, read in contents:
        if path.startswith(prefix):
            yield path.removeprefix(prefix), read()


def fill(hub, volume, folder):
    """Write a volume's content; returns {path: what its file looked like}, to find changes later."""
    for path, data in volume_contents(hub, volume):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return snapshot(folder)


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


def write_back(hub, volume, folder, before):
    if read_only(volume):
        return
    prefix = volume["path"].strip("/") + "/" if volume.get("path") else ""
    changed = [path for path, look in snapshot(folder).items() if before.get(path) != look]
    contents = {prefix + path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(changed)}
    put_contents(hub, hub.buckets[volume["source"]], contents)


def relocated(text, folders):
    """`text` with each mount path that starts it, or stands after `=`, replaced by its folder."""
    for mount, folder in folders.items():
        text = re.sub(rf"(^|=){re.escape(mount)}(?=/|$)", lambda m, folder=folder: f"{m[1]}{folder}", text)
    return text


def environment(hub, job, folders, home):
    """This machine's environment without its Hub settings, then the job's; secrets only where they were asked for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    given = {name: relocated(str(value), folders) for name, value in (job.spec.get("environment") or {}).items()}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "JOB_ID": job.id, "PYTHONUNBUFFERED": "1"}
    return {**kept, **own, **given, **(job.spec.get("secrets") or {})}


@functools.cache
def can_mount():
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]  # gone with its namespace
    return subprocess.run(probe, capture_output=True).returncode == 0


def read_only(volume):
    return volume["type"] != "bucket" or bool(volume.get("readOnly"))


MOUNT = """
mount -t tmpfs none "$1"
shift
while [ "$1" != -- ]; do
    mkdir -p "$3"
    mount -o "bind,$1" "$2" "$3"
    shift 3
done
shift
exec "$@"
"""


def placed(volumes, top):
    """Where the command sees its volumes, {mount path: folder}, and the prefix of the command that makes it so.

    A tmpfs at `top` holds the mounts: `os.path.ismount` tells a mount by its device, which must not be its parent's.
    """
    if not can_mount():
        return {volume["mountPath"]: str(folder) for volume, folder in volumes}, []
    folders, binds = {}, []
    for index, (volume, folder) in enumerate(volumes):
        target = folders[volume["mountPath"]] = f"{top}/{index}"
        binds += ["ro" if read_only(volume) else "rw", str(folder), target]
    return folders, ["unshare", "--mount", "sh", "-ec", MOUNT, "sh", str(top), *binds, "--"]


def execute(hub, job, volumes, work):
    """Run the command to its end, logging its lines; returns its exit code. `volumes`: pairs (volume, folder)."""
    top = work.with_name("mounts")
    top.mkdir()
    folders, prefix = placed(volumes, top)
    command = [relocated(part, folders) for part in job.spec["command"]]
    job.process = subprocess.Popen(
        prefix + command,
        env=environment(hub, job, folders, work / "hf-home"),
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(job.spec.get("timeoutSeconds") or 1800, kill, (job, signal.SIGKILL))
    timer.start()
    for line in job.process.stdout:
        job.log(line.rstrip("\n"))
    code = job.process.wait()
    timer.cancel()
    return code


def run_job(hub, job):
    """Run a job from its volumes to its final stage."""
    stage, message = "COMPLETED", None
    try:
        with tempfile.TemporaryDirectory(prefix="job-", dir=hub.root) as temporary:
            work = Path(temporary, "work")
            work.mkdir()
            volumes = []
            for index, volume in enumerate(job.spec.get("volumes") or []):
                folder = Path(temporary, f"volume-{index}")
                folder.mkdir()
                volumes.append((volume, folder, fill(hub, volume, folder)))
            if job.stage == "SCHEDULING":
                job.stage, job.started = "RUNNING", timestamp()
                code = execute(hub, job, [(volume, folder) for volume, folder, _ in volumes], work)
                if code:
                    stage, message = "ERROR", f"Job failed with exit code: {code}"
                for volume, folder, before in volumes:
                    write_back(hub, volume, folder, before)
    except Exception as error:
        traceback.print_exc()
        job.log(f"loopback Hub: {error!r}")
        stage, message = "ERROR", repr(error)
    job.finished = timestamp()
    if job.stage != "CANCELED":
        job.stage, job.message = stage, message
