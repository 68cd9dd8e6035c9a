"""Jobs: submit, list, follow, cancel, rerun, label, schedule.

Known simplifications: flavor and image are recorded, not honoured; schedules never fire by themselves; ports are not
exposed; no metrics. Without `--run-jobs` a job completes at once without having run.
"""

import asyncio
import json
import os
import threading
from dataclasses import dataclass, field

from starlette.responses import StreamingResponse

from tests.hub.loopback.auth import need_login, need_write
from tests.hub.loopback.http import HubError, paged, route
from tests.hub.loopback.runner import kill, run_job
from tests.hub.loopback.state import timestamp

ACTIVE = ("SCHEDULING", "RUNNING")
HARDWARE = {
    "name": "cpu-basic",
    "prettyName": "CPU Basic",
    "cpu": "2 vCPU",
    "ram": "16 GB",
    "ephemeralStorage": "50 GB",
    "accelerator": None,
    "unitCostMicroUSD": 167,
    "unitCostUSD": 0.000167,
    "unitLabel": "minute",
}


def new_id():
    return os.urandom(12).hex()


@dataclass
class Job:
    owner: str
    spec: dict  # as submitted
    initiator: str = "user"
    id: str = field(default_factory=new_id)
    created: str = field(default_factory=timestamp)
    started: str | None = None
    finished: str | None = None
    stage: str = "SCHEDULING"
    message: str | None = None
    lines: list[dict] = field(default_factory=list)  # timestamp, data
    process: object = None

    def log(self, text):
        self.lines.append({"timestamp": timestamp(), "data": text})

    def json(self):
        owner = {"id": f"id-{self.owner}", "name": self.owner}
        return {
            **self.spec,
            "secrets": {name: "***" for name in self.spec.get("secrets") or {}},
            "id": self.id,
            "createdAt": self.created,
            "startedAt": self.started,
            "finishedAt": self.finished,
            "owner": {**owner, "type": "user"},
            "initiator": {**owner, "type": self.initiator},
            "status": {"stage": self.stage, "message": self.message},
        }


def start_job(hub, owner, spec, initiator="user"):
    job = Job(owner, spec, initiator)
    job.log("===== Job started")
    hub.jobs[job.id] = job
    if hub.run_jobs:
        threading.Thread(target=run_job, args=(hub, job), daemon=True).start()
    else:
        job.log("not run: the loopback Hub was started without --run-jobs")
        job.stage = "COMPLETED"
    return job.json()


def get_job(request, namespace, job_id):
    need_login(request)
    job = request.hub.jobs.get(job_id)
    if job is None or job.owner != namespace:
        raise HubError(404, "Job not found")
    return job


@route("GET", "/api/jobs/hardware")
def hardware(request):
    return [HARDWARE]


@route("POST", "/api/jobs/{namespace}")
def submit(request, namespace):
    need_write(request, namespace)
    return start_job(request.hub, namespace, request.json())


@route("GET", "/api/jobs/{namespace}")
def list_jobs(request, namespace):
    need_login(request)
    stages, wanted = request.query.get("stage"), [pair.split("=", 1) for pair in request.query.get("label", [])]
    found = []
    for job in reversed(list(request.hub.jobs.values())):
        labels = job.spec.get("labels") or {}
        if job.owner == namespace and (not stages or job.stage in stages):
            if all(labels.get(key) == value for key, value in wanted):
                found.append(job.json())
    return paged(request, found)


@route("GET", "/api/jobs/{namespace}/{job_id}")
def job_info(request, namespace, job_id):
    return get_job(request, namespace, job_id).json()


@route("GET", "/api/jobs/{namespace}/{job_id}/logs")
def job_logs(request, namespace, job_id):
    """Server-sent events, until the job has ended and every line is out."""
    job, tail = get_job(request, namespace, job_id), request.param("tail")

    async def events():
        sent = max(0, len(job.lines) - int(tail)) if tail else 0
        while True:
            over = job.stage not in ACTIVE
            for line in job.lines[sent:]:
                sent += 1
                yield f"data: {json.dumps(line)}\n\n"
            if over:
                return
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


@route("POST", "/api/jobs/{namespace}/{job_id}/cancel")
def cancel(request, namespace, job_id):
    job = get_job(request, namespace, job_id)
    need_write(request, namespace)
    if job.stage in ACTIVE:
        job.stage = "CANCELED"
        kill(job)
    return job.json()


@route("POST", "/api/jobs/{namespace}/{job_id}/duplicate")
def rerun(request, namespace, job_id):
    need_write(request, namespace)
    return start_job(request.hub, namespace, get_job(request, namespace, job_id).spec, "duplicated-job")


@route("PUT", "/api/jobs/{namespace}/{job_id}/labels")
def change_labels(request, namespace, job_id):
    job = get_job(request, namespace, job_id)
    need_write(request, namespace)
    job.spec = {**job.spec, "labels": request.json()["labels"]}
    return job.json()


def get_schedule(request, namespace, schedule_id):
    need_login(request)
    schedule = request.hub.schedules.get(schedule_id)
    if schedule is None or schedule["owner"]["name"] != namespace:
        raise HubError(404, "Scheduled job not found")
    return schedule


@route("POST", "/api/scheduled-jobs/{namespace}")
def create_schedule(request, namespace):
    need_write(request, namespace)
    schedule = {
        "id": new_id(),
        "createdAt": timestamp(),
        "suspend": False,
        "concurrency": False,
        "status": {"lastJob": None, "nextJobRunAt": timestamp()},
        "owner": {"id": f"id-{namespace}", "name": namespace, "type": "user"},
        **request.json(),
    }
    request.hub.schedules[schedule["id"]] = schedule
    return schedule


@route("GET", "/api/scheduled-jobs/{namespace}")
def list_schedules(request, namespace):
    need_login(request)
    return [schedule for schedule in request.hub.schedules.values() if schedule["owner"]["name"] == namespace]


@route("GET", "/api/scheduled-jobs/{namespace}/{schedule_id}")
def schedule_info(request, namespace, schedule_id):
    return get_schedule(request, namespace, schedule_id)


@route("DELETE", "/api/scheduled-jobs/{namespace}/{schedule_id}")
def delete_schedule(request, namespace, schedule_id):
    get_schedule(request, namespace, schedule_id)
    need_write(request, namespace)
    del request.hub.schedules[schedule_id]


@route("POST|PUT", "/api/scheduled-jobs/{namespace}/{schedule_id}/{action}")
def change_schedule(request, namespace, schedule_id, action):
    schedule = get_schedule(request, namespace, schedule_id)
    need_write(request, namespace)
    if action == "run":
        return start_job(request.hub, namespace, schedule["jobSpec"], "scheduled-job")
    if action in ("suspend", "resume"):
        schedule["suspend"] = action == "suspend"
    elif action == "schedule":
        schedule["schedule"] = request.json()["schedule"]
    elif action == "labels":
        schedule["jobSpec"]["labels"] = request.json()["labels"]
    else:
        raise HubError(404, f"no such action: {action}")
    return schedule
