"""What the server remembers: one `Hub`, with its repos, buckets, jobs, log and faults."""

import hashlib
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path


def timestamp(seconds=None):
    """ISO time in UTC with milliseconds, as the Hub writes it; now unless Unix seconds are given."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@dataclass(frozen=True)
class Token:
    user: str
    role: str  # "write" or "read"
    orgs: tuple[str, ...] = ()
    internal: bool = False  # the server's own requests and the tests' look-ups: not logged, never hit by a fault


@dataclass(frozen=True)
class File:
    """A file of a repo. `oid` is the git blob (of the pointer for LFS files), `sha256` is set for LFS files."""

    size: int
    oid: str
    sha256: str | None = None


@dataclass
class Commit:
    oid: str
    tree: dict[str, File]
    title: str
    description: str
    parent: str | None
    author: str
    date: str = field(default_factory=timestamp)


@dataclass
class Repo:
    id: str
    kind: str  # "model", "dataset" or "space"
    private: bool = False
    gated: str | bool = False
    created: str = field(default_factory=timestamp)
    refs: dict[str, str] = field(default_factory=dict)  # branch, tag or refs/pr/N -> commit oid
    tags: set[str] = field(default_factory=set)
    commits: dict[str, Commit] = field(default_factory=dict)
    discussions: list[dict] = field(default_factory=list)

    def add_commit(self, ref, tree, title, author, description=""):
        parent = self.refs.get(ref)
        oid = hashlib.sha1(f"{time.time_ns()} {title} {parent}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, tree, title, description, parent, author)
        self.refs[ref] = oid
        return self.commits[oid]


@dataclass
class Bucket:
    id: str
    private: bool = False
    created: str = field(default_factory=timestamp)
    files: dict[str, dict] = field(default_factory=dict)  # path -> size, xetHash, mtime, uploadedAt


@dataclass
class Hub:
    root: Path
    page: int = 1000
    run_jobs: bool = False
    url: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)  # held for every change
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    jobs: dict[str, "object"] = field(default_factory=dict)
    schedules: dict[str, dict] = field(default_factory=dict)
    xet_files: dict[str, "object"] = field(default_factory=dict)  # Xet hash -> xet.XetFile
    xet_hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 -> Xet hash
    log: list[dict] = field(default_factory=list)
    faults: list["object"] = field(default_factory=list)

    def __post_init__(self):
        for name in ("blobs", "xorbs"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
