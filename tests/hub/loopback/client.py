"""`LoopbackHub`: start a server, look into it, inject faults, and run clients against it. Standard library only."""

import base64
import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

PROJECT = Path(__file__).resolve().parents[3]
TOKENS = {"write": "hf_write", "read": "hf_read", "stranger": "hf_stranger"}


class LoopbackHub:
    """A server in its own process, with its own folder and, for the clients, a fresh `HF_HOME`.

    url     where it listens
    env     environment for client processes: endpoint, token, HF_HOME, no progress bars, no telemetry
    tokens  "write" and "read" (both of `user`, who is in the organisation `org`), "stranger" (another user's)
    work    an empty folder, the working directory of `run`
    """

    def __init__(self, root, page=1000, run_jobs=True):
        self.root = Path(root).resolve()
        self.work = self.root / "work"
        self.work.mkdir(parents=True)
        self.tokens, self.page = dict(TOKENS), page
        command = [sys.executable, "-m", "tests.hub.loopback", "--root", str(self.root), "--page", str(page)]
        with open(self.root / "server.log", "w") as log:
            self.process = subprocess.Popen(
                command + ["--run-jobs"] * run_jobs, cwd=PROJECT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the loopback Hub did not start:\n{(self.root / 'server.log').read_text()}")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.env = {
            **inherited,
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": self.tokens["write"],
            "HF_HOME": str(self.root / "hf-home"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def close(self):
        """Stop the server and its running jobs. Raises AssertionError if a defect of its own failed a request."""
        try:
            self.call("DELETE", "/_loopback/jobs")
            defects = [entry for entry in self.requests() if "defect" in entry]
        finally:
            self.process.terminate()
            self.process.wait(10)
        assert not defects, f"defects of the loopback Hub: {defects}\n{(self.root / 'server.log').read_text()[-4000:]}"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    # What happened, and what shall happen

    def requests(self, pattern=None):
        """The requests so far, oldest first, whose "METHOD /path?query" matches the regular expression `pattern`.

        Each is a dict: method, url, status (None if dropped or not answered yet), fault (bool), bytes, user, time,
        seconds. Requests of the server itself and of this class are left out.
        """
        log = self.call("GET", "/_loopback/requests")
        return [entry for entry in log if re.search(pattern or "", f"{entry['method']} {entry['url']}")]

    def fault(self, method, path, **settings):
        """Inject a fault (settings and their meaning: faults.py), e.g. `fault("POST", "/commit/", status=503)`.

        `method` and `path` are regular expressions; settings are status, headers, body, delay, drop, applied, times=1,
        after=0.
        """
        self.call("POST", "/_loopback/faults", {"method": method, "path": path, **settings})

    def faults(self):
        """The faults with the hits that each has left in `times`."""
        return self.call("GET", "/_loopback/faults")

    def clear_faults(self):
        self.call("DELETE", "/_loopback/faults")

    # Running clients

    def run(self, args, *, env=None, cwd=None, timeout=120, check=True):
        """Run `python args...` as a client and return the CompletedProcess (text, stdout, stderr).

        A script path relative to the project is found there. `env` adds variables; None as a value removes one. Raises
        AssertionError with the output where `check` and the exit code is not 0.
        """
        args = [str(arg) for arg in args]
        if (PROJECT / args[0]).is_file():
            args[0] = str(PROJECT / args[0])
        return self._execute([sys.executable, *args], env, cwd, timeout, check)

    def python(self, code, *args, **settings):
        """Run a piece of (indented) Python as a client; arguments are in `sys.argv[1:]`. Settings as for `run`."""
        script = self.root / "scripts" / f"{len(list(self.root.glob('scripts/*')))}.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(textwrap.dedent(code))
        return self.run([script, *args], **settings)

    def cli(self, *args, env=None, cwd=None, timeout=120, check=True):
        """Run `hf args...`."""
        return self._execute([str(Path(sys.executable).with_name("hf")), *map(str, args)], env, cwd, timeout, check)

    def _execute(self, command, env, cwd, timeout, check):
        merged = {name: value for name, value in {**self.env, **(env or {})}.items() if value is not None}
        done = subprocess.run(
            command, env=merged, cwd=cwd or self.work, timeout=timeout, capture_output=True, text=True
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)}\nexit code {done.returncode}\n"
                f"--- stdout\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-6000:]}"
            )
        return done

    def api(self, token="write"):
        """An `HfApi` for use inside the test process, where `HF_ENDPOINT` came too late. Prefer it for reading."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.url, token=self.tokens.get(token, token))

    # Looking into it and filling it, without a client, unlogged and untouched by faults

    def call(self, method, path, body=None, raw=False):
        """One request of the server's own; `body` is bytes or sent as JSON, the answer parsed unless `raw`."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Authorization": "Bearer hf_internal"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return content if raw else json.loads(content)

    def files(self, repo_id, revision="main", kind="dataset"):
        """{path: size} of a repo at a revision."""
        tree = self.call("GET", f"/api/{kind}s/{repo_id}/tree/{quote(revision, safe='')}?recursive=1&limit=100000")
        return {entry["path"]: entry["size"] for entry in tree if entry["type"] == "file"}

    def read(self, repo_id, path, revision="main", kind="dataset"):
        """The bytes of a repo's file."""
        prefix = "" if kind == "model" else f"{kind}s/"
        return self.call("GET", f"/{prefix}{repo_id}/resolve/{quote(revision, safe='')}/{quote(path)}", raw=True)

    def commits(self, repo_id, revision="main", kind="dataset"):
        """Commits of a revision, newest first: id, title, message, date, authors."""
        return self.call("GET", f"/api/{kind}s/{repo_id}/commits/{quote(revision, safe='')}?limit=100000")

    def pull_requests(self, repo_id, kind="dataset"):
        """Pull requests, newest first: num, title, status, events and more."""
        return self.call("GET", f"/api/{kind}s/{repo_id}/discussions?type=pull_request")["discussions"]

    def add_files(self, repo_id, files, kind="dataset", private=False, message="add files"):
        """Commit {path: bytes or str} to main of a repo, made if missing. None becomes LFS."""
        namespace, name = repo_id.split("/")
        try:
            repo = {"organization": namespace, "name": name, "type": kind, "private": private}
            self.call("POST", "/api/repos/create", repo)
        except RuntimeError as error:
            if ": 409 " not in str(error):
                raise
        lines = [{"key": "header", "value": {"summary": message}}]
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            lines.append({"key": "file", "value": {"path": path, "content": base64.b64encode(data).decode()}})
        body = "\n".join(json.dumps(line) for line in lines).encode()
        return self.call("POST", f"/api/{kind}s/{repo_id}/commit/main", body)["commitOid"]

    def bucket_files(self, bucket_id):
        """{path: size} of a bucket."""
        tree = self.call("GET", f"/api/buckets/{bucket_id}/tree?recursive=1&limit=100000")
        return {entry["path"]: entry["size"] for entry in tree}

    def bucket_read(self, bucket_id, path):
        return self.call("GET", f"/buckets/{bucket_id}/resolve/{quote(path)}", raw=True)

    def bucket_add(self, bucket_id, files):
        """Put {path: bytes or str} into a bucket, made if missing."""
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            self.call("PUT", f"/_loopback/buckets/{bucket_id}/{quote(path)}", data)

    def jobs(self):
        """Submitted jobs, oldest first: id, spec (as sent, secrets included), logs."""
        return self.call("GET", "/_loopback/jobs")
