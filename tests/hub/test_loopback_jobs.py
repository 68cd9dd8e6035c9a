"""The `hf` command line and HfApi against the loopback Hub's jobs, which really run."""

import sys
import textwrap

import pytest

from tests.hub.loopback import runner

SCRIPT = textwrap.dedent("""
    # /// script
    # requires-python = ">=3.10"
    # dependencies = []
    # [tool.hf-jobs]
    # image = "vllm/vllm-openai:v0.23.0"
    # flavor = "a10g-small"
    # timeout = "10m"
    # secrets = ["HF_TOKEN"]
    # env = { MODE = "fast", CACHE = "/out/cache" }
    # labels = { kind = "test" }
    # ///
    import os, pathlib, sys

    source, target = map(pathlib.Path, sys.argv[1:3])
    target.mkdir(parents=True, exist_ok=True)
    for page in sorted(source.iterdir()):
        (target / f"{page.stem}.md").write_text(page.read_text().upper())
        print("read", page.name, flush=True)
    print("mounts", os.path.ismount(source), os.path.ismount(target.parent), "writable", os.access(source, os.W_OK))
    print("mode", os.environ["MODE"], "token", os.environ.get("HF_TOKEN"), "job", len(os.environ["JOB_ID"]))
    print("cache", os.path.isdir(os.path.dirname(os.environ["CACHE"])), "hub", os.environ["HF_ENDPOINT"])
    sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
""").lstrip()


@pytest.fixture
def jobs_hub(hub):
    hub.add_files("user/scripts", {"recipe.py": SCRIPT}, kind="model")
    hub.script_url = f"{hub.url}/user/scripts/raw/main/recipe.py"
    return hub


def test_a_dry_run_submits_nothing(jobs_hub):
    (jobs_hub.work / "recipe.py").write_text(SCRIPT)
    for script in ("recipe.py", jobs_hub.script_url):
        done = jobs_hub.cli("jobs", "uv", "run", "--dry-run", script, "/in", "/out/x")
        for shown in ("a10g-small", "vllm/vllm-openai:v0.23.0", "MODE", "HF_TOKEN", "(from script)"):
            assert shown in done.stdout, done.stdout
    (jobs_hub.work / "wrong.py").write_text(SCRIPT.replace("flavor =", "gpu ="))
    done = jobs_hub.cli("jobs", "uv", "run", "--dry-run", "wrong.py", check=False)
    assert done.returncode == 1 and "gpu" in done.stdout + done.stderr
    assert not jobs_hub.jobs() and not jobs_hub.requests(r"^POST /api/(jobs|buckets)")


def test_a_job_runs_from_a_url_with_mounted_buckets(jobs_hub):
    jobs_hub.bucket_add("user/scans", {"in/a.txt": "alpha", "in/b.txt": "beta"})
    jobs_hub.bucket_add("user/texts", {"old.md": "kept"})
    mounts = ["-v", "hf://buckets/user/scans/in:/in:ro", "-v", "hf://buckets/user/texts:/out"]
    run = ["jobs", "uv", "run", "--python", sys.executable, "-e", "MODE=slow", *mounts, jobs_hub.script_url, "/in"]
    done = jobs_hub.cli(*run, "/out/run")
    assert "read a.txt" in done.stdout and "read b.txt" in done.stdout
    assert "mode slow token hf_write job 24" in done.stdout and f"cache True hub {jobs_hub.url}" in done.stdout
    if runner.can_mount():
        assert "mounts True True writable False" in done.stdout
    assert jobs_hub.bucket_files("user/texts") == {"old.md": 4, "run/a.md": 5, "run/b.md": 4}
    assert jobs_hub.bucket_read("user/texts", "run/a.md") == b"ALPHA"
    assert jobs_hub.bucket_files("user/scans") == {"in/a.txt": 5, "in/b.txt": 4}

    spec = jobs_hub.jobs()[0]["spec"]
    assert spec["flavor"] == "a10g-small" and spec["dockerImage"] == "vllm/vllm-openai:v0.23.0"
    assert spec["timeoutSeconds"] == 600 and spec["labels"]["kind"] == "test"
    assert spec["command"][-3:] == ["/data/recipe.py", "/in", "/out/run"]
    assert {volume["mountPath"] for volume in spec["volumes"]} == {"/data", "/in", "/out"}

    done = jobs_hub.cli(*run, "/out/failed", "3", check=False)
    assert done.returncode == 1 and "read b.txt" in done.stdout
    assert jobs_hub.bucket_read("user/texts", "failed/b.md") == b"BETA"  # what a failed job wrote stays


def test_jobs_over_the_api(jobs_hub):
    jobs_hub.python("""
        import pytest, sys, time
        from huggingface_hub import HfApi, Volume
        from huggingface_hub.errors import HfHubHTTPError

        api = HfApi()

        def run(code, **settings):
            return api.run_job(image="any", command=[sys.executable, "-c", code], **settings)

        job = run("import os; print(os.environ['A'], os.environ.get('HF_TOKEN'))", env={"A": "1"}, labels={"k": "v"})
        assert api.wait_for_job(job.id).status.stage == "COMPLETED"
        logs = list(api.fetch_job_logs(job_id=job.id))
        assert logs == ["1 None"], logs  # no token unless the job asks for one

        hidden = run("import os; print(os.environ['S'])", secrets={"S": "word"})
        assert list(api.fetch_job_logs(job_id=hidden.id, follow=True)) == ["word"]

        failed = run("raise SystemExit(3)")
        assert api.wait_for_job(failed.id).status.stage == "ERROR"
        assert "3" in api.inspect_job(job_id=failed.id).status.message

        slow = run("import time; print('on', flush=True); time.sleep(60)")
        api.wait_for_job(slow.id, stages=["RUNNING"])
        api.cancel_job(job_id=slow.id)
        assert api.inspect_job(job_id=slow.id).status.stage == "CANCELED"
        late = run("import time; time.sleep(60)", timeout=1)
        assert api.wait_for_job(late.id).status.stage == "ERROR"

        assert [j.id for j in api.list_jobs(labels={"k": "v"})] == [job.id]
        assert {j.id for j in api.list_jobs(status="COMPLETED")} == {job.id, hidden.id}
        again = api.rerun_job(job_id=job.id)
        assert again.id != job.id and api.wait_for_job(again.id).status.stage == "COMPLETED"

        volume = Volume(type="model", source="user/scripts", mount_path="/repo", path="", read_only=True)
        command = [sys.executable, "-c", "import os, sys; print(os.listdir(sys.argv[1]))", "/repo"]
        listing = api.run_job(image="any", command=command, volumes=[volume])
        assert "recipe.py" in list(api.fetch_job_logs(job_id=listing.id, follow=True))[0]

        with pytest.raises(HfHubHTTPError, match="403"):
            run("1", namespace="stranger")
        with pytest.raises(HfHubHTTPError, match="403"):
            run("1", token="hf_read")

        plan = api.create_scheduled_job(image="any", command=["true"], schedule="@daily")
        assert [s.id for s in api.list_scheduled_jobs()] == [plan.id]
        api.suspend_scheduled_job(scheduled_job_id=plan.id)
        assert api.inspect_scheduled_job(scheduled_job_id=plan.id).suspend
        api.delete_scheduled_job(scheduled_job_id=plan.id)
        assert list(api.list_scheduled_jobs()) == []
    """)
    secrets = [job["spec"].get("secrets") for job in jobs_hub.jobs()]
    assert {"S": "word"} in secrets
