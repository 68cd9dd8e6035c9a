"""Content of repo files: plain blobs by git or SHA-256 id, and LFS files that live in Xet."""

import hashlib
import os
import threading

from tests.hub.loopback.state import File
from tests.hub.loopback.xet import read_xet, xet_file


def git_oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def put_blob(hub, name, data):
    path = hub.root / "blobs" / name
    if not path.exists():
        partial = path.with_suffix(f".{threading.get_ident()}")
        partial.write_bytes(data)
        os.replace(partial, path)


def regular_file(hub, data):
    put_blob(hub, git_oid(data), data)
    return File(len(data), git_oid(data))


def lfs_file(hub, sha256):
    """The LFS file of that SHA-256 from wherever its bytes arrived, or None where they never did."""
    blob = hub.root / "blobs" / sha256
    if sha256 in hub.xet_hashes:
        size = xet_file(hub, hub.xet_hashes[sha256]).size
    elif blob.exists():
        size = blob.stat().st_size
    else:
        return None
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    return File(size, git_oid(pointer), sha256)


def read_file(hub, file):
    if file.sha256 in hub.xet_hashes:
        return read_xet(hub, hub.xet_hashes[file.sha256])
    return (hub.root / "blobs" / (file.sha256 or file.oid)).read_bytes()
