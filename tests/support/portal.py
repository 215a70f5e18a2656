"""The pages of the portal with recorded data of 64 hosts and 10,000 jobs, without a hub and without
Slurm: make portal

It serves them on a port of this machine, made again at each load, so that a changed template or
style sheet is seen at once. `portal.py FOLDER [PATH...]` writes their pictures: light, dark and 390
pixels wide. `portal.py docs` writes those of docs/images.
"""

from __future__ import annotations

import contextlib
import datetime
import email
import http.server
import importlib.util
import itertools
import json
import math
import sys
import threading
import urllib.parse
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "roles/jupyterhub/files"
COMMAND = ROOT / "roles/jobs/files"
#: Where tests of the hub keep its packages, one of which has its style sheet.
PACKAGES = ROOT / ".cache/hub/packages"
PREFIX = "/services/jobs/"
FRAME = {"prefix": PREFIX, "hub": "", "person": "anna", "is_operator": True}
#: The token by which JupyterHub knows that a form or a script is of its page.
XSRF = "secret"
#: The time of all pages and the end of the curves, as seconds: 2026-10-31 16:00.
NOW = 1793462400
#: The number of the newest job.
NEWEST = 10000
#: Hosts of the jobs that pages show.
HOSTS_OF = {
    9990: ["gpu-12"],
    9996: ["gpu-20", "gpu-21"],
    9998: ["gpu-03", "gpu-63"],
    9999: ["gpu-31", "gpu-32"],
}
#: Who runs the jobs of others, and for which account. anna's are of vision.
OTHERS = (("ben", "language"), ("carla", "robotics"), ("dave", "language"))
#: Hosts out of service: reason, since so many hours, and the check that fails.
AWAY = {
    "gpu-07": ("trainyard: GPU 3 has fallen off the bus (Xid 79)", 20, "gpu-xid"),
    "gpu-40": ("trainyard: port 1 of mlx5_2 is not active", 6, "ib-ports"),
}
#: The use of the GPUs of some jobs in percent. Those of the others are busy.
IDLE = {"9000": 7, "9990": 9, "9039": 10}
#: Slurm's reasons in words.
WORDS = {
    "Priority": "other jobs are before it",
    "Resources": "the hosts that it can use are busy",
    "AssocGrpGRES": "its group uses all of its GPUs",
}
#: A text that no page may take for anything else.
HOSTILE = "\"><script>alert(1)</script>'{{ 7*7 }}"
STATES = ("completed", "failed", "cancelled", "timeout", "out_of_memory", "node_fail")


def load(name: str, folder: Path = FILES) -> object:
    """Return a program or a module of a role, as its file is now."""
    spec = importlib.util.spec_from_file_location("portal_" + name, folder / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    # A class of it may look for its module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stamp(hours_ago: float) -> str:
    """Return a time of Slurm so many hours before NOW."""
    moment = datetime.datetime.fromtimestamp(NOW - 3600 * hours_ago, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def a_job(number: int, state: str = "completed", **changes: object) -> dict:
    """Return a job as the command trainyard lists it. The newest one is of eight hours ago."""
    age = 8 + (NEWEST - number) * 0.1
    started = None if state == "pending" else stamp(age - 0.2)
    ended = None if state in ("pending", "running") else stamp(age - 3)
    hosts = HOSTS_OF.get(number) or [
        "gpu-%02d" % (2 * number % 64),
        "gpu-%02d" % (2 * number % 64 + 1),
    ]
    return dict(
        {
            "id": str(number),
            "name": "bert_%d" % number,
            "state": state,
            "account": "vision",
            "priority": "normal",
            "workers": 2,
            "gpus": 16,
            "hosts": [] if state == "pending" else hosts,
            "reason": "Priority" if state == "pending" else "",
            "submitted": stamp(age),
            "started": started,
            "ended": ended,
            "start_estimate": stamp(age - 10) if state == "pending" else None,
            "exit_code": 1 if state == "failed" else None if ended is None else 0,
            "limit_minutes": 600,
            "restarts": 0,
        },
        **changes,
    )


def waiting_job(number: int) -> dict:
    """Return the newest job of anna, as the queue has it."""
    why = "other jobs are before it; place 3 of 41 in the queue"
    start = stamp(-1.5)
    return a_job(number, "pending", workers=1, gpus=8, why=why, start_estimate=start)


def many_jobs(count: int) -> list:
    """Return jobs, the newest first."""
    found = [a_job(number, STATES[(number + 1) % len(STATES)]) for number in range(1, count - 2)]
    found += [a_job(count - 2, "running"), a_job(count - 1, "running"), waiting_job(count)]
    return found[::-1]


def nodes(count: int = 64) -> list:
    """Return hosts as `trainyard nodes` has them. Most are full."""
    found = []
    for number in range(count):
        name = "gpu-%02d" % number
        reason, hours, _check = AWAY.get(name, ("", 0, ""))
        used = (number // 6 * 5) % 9 if number % 6 == 0 else 8
        free = {"cpus": 8 * (8 - used), "memory_mib": 131072 * (8 - used), "gpus": 8 - used}
        found.append(
            {
                "name": name,
                "states": ["idle", "drain"] if reason else ["mixed"],
                "available": not reason,
                "reason": reason,
                "since": stamp(hours) if reason else None,
                "classes": ["h100" if number < 48 else "a100"],
                "cpus": 64,
                "memory_mib": 1048576,
                "gpus": 8,
                "free": dict.fromkeys(free, 0) if reason else free,
            }
        )
    return found


def used_of(host: dict) -> int:
    """Return how many GPUs of a host jobs have."""
    return host["gpus"] - host["free"]["gpus"] if host["available"] else 0


def running() -> list:
    """Return the jobs of all people that run. They have the GPUs that P(nodes) has not as free."""
    instance = a_job(9990, "running", name="main", gpus=1, workers=1)
    found = [a_job(9998, "running"), a_job(9999, "running"), instance]
    taken = {host for job in found for host in job["hosts"]}
    for job in found:
        job["person"] = "anna"
    others = [host for host in nodes() if used_of(host) and host["name"] not in taken]
    for number, host in enumerate(others):
        person, account = ("eve", "vision") if number == 1 else OTHERS[number % len(OTHERS)]
        more = {"person": person, "account": account, "hosts": [host["name"]]}
        more.update(workers=1, gpus=used_of(host), limit_minutes=10080)
        found.append(a_job(9000 + number, "running", **more))
    return found


def gpus_of(jobs: list, key: str) -> dict:
    """Return the GPUs of jobs by C(account) or C(person)."""
    found = {}
    for job in jobs:
        found[job[key]] = found.get(job[key], 0) + job["gpus"]
    return found


def use_of(job: dict, host: str, gpu: int) -> float:
    """Return the use of a GPU of a job now, from 0 to 1. One of job 9998 is slow."""
    if job["id"] == "9998":
        return 0.31 if (host, gpu) == ("gpu-03", 5) else 0.97
    return IDLE.get(job["id"], 98 - (gpu * 7 + int(host[-2:]) * 3) % 13) / 100


def free_classes(hosts: list) -> list:
    """Return the free GPUs of each class of hosts."""
    found = {}
    for host in hosts:
        name = host["classes"][0]
        mine = found.setdefault(name, {"name": name, "gpus": 0, "free": 0})
        mine["gpus"] += host["gpus"]
        mine["free"] += host["free"]["gpus"]
    return [found[name] for name in sorted(found)]


def home() -> dict:
    """Return what the helper answers for the first page."""
    jobs, hosts = running(), nodes()
    ended = [a_job(9997, "cancelled"), a_job(9996, "failed")]
    return {
        "message": "Maintenance on Friday from 18:00 UTC. Jobs that would not end before do not start.",
        "instances": [job for job in jobs if job["name"] == "main"],
        "jobs": [waiting_job(NEWEST), a_job(9999, "running"), a_job(9998, "running"), *ended],
        "classes": free_classes(hosts),
        "out_of_service": [host for host in hosts if not host["available"]],
        "accounts": [
            {
                "account": "vision",
                "gpus": 64,
                "gpus_used": gpus_of(jobs, "account")["vision"],
                "person_gpus": None,
                "person_gpus_used": gpus_of(jobs, "person")["anna"],
            },
        ],
    }


def usage(percent: int = 90) -> list:
    """Return the use of the GPUs of a job, one of which is slow."""
    found = []
    for rank, host in enumerate(HOSTS_OF[9998]):
        for gpu in range(8):
            hour = 31 if (rank, gpu) == (0, 5) else percent
            found.append(
                {
                    "host": host,
                    "worker": rank,
                    "gpu": gpu,
                    "percent": hour + 3,
                    "memory_mib": 57220,
                    "memory_total_mib": 81559,
                    "hour_percent": hour,
                    "hour_memory_mib": 58900,
                }
            )
    return found


def minutes() -> list:
    """Return the curves of the first host of that job, as its runner has kept them."""
    found = []
    for gpu in range(8):
        level = 31 if gpu == 5 else 90
        samples = []
        for minute in range(60):
            at = NOW // 60 - 60 + minute
            samples.append((at, min(100, level + (minute * (gpu + 3)) % 9)))
        samples[20 + gpu] = (samples[20 + gpu][0], None)
        found.append({"host": "gpu-03", "gpu": gpu, "minutes": samples})
    return found


def workers(hosts: tuple = tuple(HOSTS_OF[9998])) -> list:
    """Return the CPUs and the memory of the workers of a job."""
    found = []
    for rank, host in enumerate(hosts):
        ats = range(NOW // 60 - 60, NOW // 60)
        cpus = [(at, 40 + (at * (rank + 3)) % 11) for at in ats]
        memory = [(at, min(402, 300 + 5 * rank + 4 * number)) for number, at in enumerate(ats)]
        name = "worker %d on %s" % (rank, host)
        found.append({"name": name, "cpus": cpus, "memory_gb": memory})
    return found


def matrix(rows: list) -> dict:
    """Return an answer of Prometheus over a time.

    C(rows) are labels, and values from the oldest to the newest, two minutes apart.
    """
    result = []
    for labels, values in rows:
        begin = NOW - 120 * len(values)
        pairs = [[begin + 120 * at, str(value)] for at, value in enumerate(values)]
        result.append({"metric": labels, "values": pairs})
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def vector(rows: list) -> dict:
    """Return an answer of Prometheus of now. C(rows) are labels and value."""
    result = [{"metric": labels, "value": [NOW, str(value)]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def wave(at: float, low: float, high: float, length: float) -> float:
    """Return a value that goes up and down between two others."""
    return low + (high - low) * (1 + math.sin(at / length)) / 2


def prometheus(metric: str, gpus: int = 8, hosts: tuple = ("gpu-03",)) -> dict:
    """Return what Prometheus answers for a job, one of whose GPUs draws less power and is less
    used. Each epoch ends with a checkpoint, for which the GPUs wait.
    """
    levels = {"utilization": 0.97, "memory_used": 6e10, "power": 640, "temperature": 61}
    slow = {"utilization": 0.32, "power": 0.6}
    name = next(name for name in levels if name in metric)
    rows = []
    for host, gpu in itertools.product(hosts, range(gpus)):
        is_slow = (host, gpu) == ("gpu-03", 5)
        own = levels[name] * (slow.get(name, 1) if is_slow else 1)
        values = []
        for at in range(240):
            noise = 1 + ((at * (gpu + 3)) % 7 - 3) / 100
            pauses = at % 60 in (0, 1) and name != "memory_used"
            values.append(own * noise * (0.75 if name == "temperature" else 0.12) ** pauses)
        rows.append(({"instance": host, "gpu": str(gpu)}, values))
    return matrix(rows)


def before_now(gpus: int, depth: float, length: float) -> list:
    """Return the GPUs of an account in the last six hours, up to those that it has now, in steps of
    a host.
    """
    lows = [wave(back - length * math.pi / 2, 0, depth, length) for back in range(180)]
    return [gpus - 8 * round(low) for low in lows[::-1]]


def told_of_cluster(hosts: list) -> dict:
    """Return what Prometheus answers for the page of the cluster."""
    jobs = running()
    now = gpus_of(jobs, "account")
    curves = {
        "language": before_now(now["language"], 11, 14),
        "robotics": before_now(now["robotics"], 7, 25),
        "vision": before_now(now["vision"], 3, 31),
    }
    accounts = [({"account": name}, values) for name, values in curves.items()]
    busy = [sum(values) for values in zip(*curves.values())]
    # A GPU without a job needs 70 W.
    watts = [560 * gpus + 70 * (496 - gpus) + 900 * (at % 9) for at, gpus in enumerate(busy)]
    power = [({}, watts)]
    by_host = {host: job for job in jobs for host in job["hosts"]}
    uses, health = [], []
    for host in hosts:
        name, used = host["name"], used_of(host)
        for gpu in range(host["gpus"] if host["available"] else 0):
            ratio = use_of(by_host[name], name, gpu) if gpu < used else 0
            uses.append(({"instance": name, "gpu": str(gpu)}, ratio))
        for check in ("driver", "gpu-count", "gpu-ecc", "gpu-xid", "ib-ports", "share", "space"):
            passes = name not in AWAY or AWAY[name][2] != check
            health.append(({"instance": name, "check": check}, int(passes)))
    return {
        "accounts": matrix(accounts),
        "power": matrix(power),
        "use": vector(uses),
        "health": vector(health),
    }


def mean_use(job: dict) -> float:
    """Return the mean use of the GPUs of a job, from 0 to 1."""
    each = job["gpus"] // len(job["hosts"])
    uses = [use_of(job, host, gpu) for host in job["hosts"] for gpu in range(each)]
    return sum(uses) / len(uses)


def told_of_operators() -> dict:
    """Return what Prometheus answers for the page of operators."""
    alerts = [
        {
            "state": "firing",
            "labels": {"alertname": "ShareNearlyFull", "severity": "warn"},
            "annotations": {
                "summary": "/data1/share has little space left, or will be full tomorrow"
            },
            "activeAt": stamp(3.5)[:-1] + ".123Z",
        },
        {
            "state": "firing",
            "labels": {"alertname": "GpuXid", "severity": "page"},
            "annotations": {
                "summary": "gpu-07: Xid 79 of 0000:3b:00.0: no new jobs should run there"
            },
            "activeAt": stamp(20)[:-1] + ".5Z",
        },
        {
            "state": "firing",
            "labels": {"alertname": "InfinibandPortDown", "severity": "page"},
            "annotations": {"summary": "gpu-40: port 1 of mlx5_2 is not active (state 1)"},
            "activeAt": stamp(6)[:-1] + ".25Z",
        },
        {"state": "pending", "labels": {"alertname": "HostDown"}, "annotations": {}},
    ]
    return {
        "alerts": {"status": "success", "data": {"alerts": alerts}},
        "verify": vector(
            [
                ({"__name__": "trainyard_verify_timestamp_seconds"}, NOW - 50000),
                ({"__name__": "trainyard_verify_passed"}, 0),
                (
                    {
                        "__name__": "trainyard_verify_check_passed",
                        "check": "gpu-xid",
                        "host": "gpu-07",
                    },
                    0,
                ),
                (
                    {
                        "__name__": "trainyard_verify_check_passed",
                        "check": "share",
                        "host": "gpu-08",
                    },
                    1,
                ),
            ]
        ),
        "jobs": vector([({"slurm_job": job["id"]}, mean_use(job)) for job in running()]),
    }


def of_all() -> dict:
    """Return what the helper answers for the page of operators."""
    people, jobs = [("anna", "vision"), *OTHERS, ("eve", "vision")], running()
    for number, entry in enumerate(queue()):
        person, account = people[0] if entry["id"] == NEWEST else people[1 + number % 4]
        more = {"person": person, "account": account, "reason": entry["reason"]}
        more.update(gpus=entry["gpus"], workers=entry["workers"], why=reason_words(entry["reason"]))
        jobs.append(a_job(entry["id"], "pending", **more))
    used = []
    for number, (person, account) in enumerate(people):
        hours = 4100.5 - 700 * number
        row = {"account": account, "user": person, "jobs": 40 + number}
        row.update(failed=number, gpu_hours=hours, gpu_hours_measured=hours - 12)
        row.update(gpu_hours_idle=round(hours * 0.4 / (number + 1), 1))
        row.update(wait_median_minutes=9 + 7 * number, wait_90_minutes=95 + 31 * number)
        used.append(dict(row, mean_use=0.55 + 0.08 * number))
    found = {"jobs": jobs, "nodes": nodes(), "people": used, "month": stamp(0)[:7]}
    return dict(found, months=["2026-%02d" % month for month in range(10, 0, -1)])


def shown_job(**changes: object) -> dict:
    """Return a job as `trainyard show` has it."""
    more = {
        "folder": "/data1/share/.trainyard/jobs/anna/9998",
        "log": "/data1/share/.trainyard/jobs/anna/.out/9998.log",
        "result": None,
        "why": "",
        "efficiency": {
            "CPU used": "71 % of 128 CPUs",
            "memory used": "402.1 GB at most, by one worker",
        },
        "endpoints": [
            {
                "service": "tensorboard",
                "state": "ready",
                "why": "",
                "command": "ssh -N -L 6006:/run/trainyard/jobs/9998/task.0.0/tensorboard.sock anna@job-9998",
                "url": "http://localhost:6006/",
            }
        ],
        "usage": usage(97),
    }
    return dict(a_job(9998, "running"), **dict(more, **changes))


def failed_job() -> dict:
    """Return a job that has failed, with its cause."""
    cause = {
        "cause": "a GPU has run out of memory",
        "fix": "Use a smaller batch, or more GPUs",
    }
    result = {
        "problems": ["worker 1 on host gpu-21 ended with exit code 1"],
        "warnings": ["host gpu-20: GPU 5 stayed idle"],
        "first_failed": {"rank": 1, "host": "gpu-21", "causes": [cause], "lines": []},
    }
    more = {"usage": [], "endpoints": [], "result": result}
    more["folder"] = "/data1/share/.trainyard/jobs/anna/9996"
    return shown_job(**dict(a_job(9996, "failed"), **more))


def choices() -> dict:
    """Return what a person may choose in the form of a job."""
    sys.path.insert(0, str(COMMAND))
    try:
        fields = load("_job_file", COMMAND).form_fields()
    finally:
        sys.path.remove(str(COMMAND))
    return {
        "fields": fields,
        "classes": ["a100", "h100"],
        "images": ["trainyard/training:1", "pytorch:2.5"],
        "saved": ["front:5000/anna/tools:1"],
        "accounts": ["vision"],
        "priorities": ["low", "normal", "high"],
        "gpus": {"most": 64, "why": "your accounts have 64 GPUs, so 64 at most"},
    }


def queue() -> list:
    """Return waiting jobs of all people, without names."""
    reasons = (*WORDS, "ReqNodeNotAvail, UnavailableNodes:gpu-07")
    found = []
    for number in range(41):
        entry = {"id": NEWEST if number == 40 else 9900 + number, "partition": "train"}
        entry.update(reason=reasons[number % 4], gpus=8, workers=1)
        found.append(entry)
    return found


def reason_words(reason: str) -> str:
    """Return why a job waits, in words."""
    return WORDS.get(reason, "hosts that it needs are out of service")


def job_values(job: dict, log: str, curves: list, pages: object) -> dict:
    """Return the values of the page of a job, as the service has them."""
    charts, result = load("_charts"), job.get("result") or {}
    each, hosts = job["gpus"] // job["workers"], tuple(job["hosts"])
    answers = [prometheus(metric, each, hosts) for _title, metric, *_more in charts.CURVES]
    panels = charts.panels_of(answers)
    panels += charts.hour_panels([], workers(hosts))
    return {
        "job": job,
        "result": result,
        "failed": result.get("first_failed") or {},
        "ssh": ""
        if job["ended"]
        else "ssh -o 'ProxyCommand=ssh anna@front trainyard attach --stdio {0}' anna@job-{0}".format(
            job["id"]
        ),
        "endpoints": [
            dict(each, address=pages.address_of(each["url"])) for each in job["endpoints"]
        ],
        "panels": panels if curves else [],
        "has_prometheus": bool(curves),
        "spans": charts.SPANS,
        "span": "",
        "slow": charts.slow_words(job["usage"]),
        "latest": pages.latest_end(job),
        "cost": pages.cost_words(job, home()["accounts"]),
        "opens": pages.folder_addresses("", job["folder"], "/data1/share"),
        "rank": None,
        "ranks": job["workers"],
        "log": log,
        "from_byte": 0,
        "next_byte": len(log),
        "log_address": "%sjob/%s/log?rank=" % (PREFIX, job["id"]),
        "xsrf": XSRF,
    }


def listed(pages: object) -> str:
    """Return the first page of a list of 10,000 jobs."""
    query = {"state": "", "since": "365d", "name": "", "page": 1}
    jobs = many_jobs(10000)
    return pages.render(
        "jobs",
        FRAME,
        jobs=jobs[:50],
        total=len(jobs),
        query=query,
        filters=pages.FILTERS,
        periods=pages.PERIODS,
        pager=pages.pager(dict(query, page=""), 1, 200),
    )


def form(pages: object, sent: dict, said: str = "", **more: object) -> str:
    """Return the form of a job with what was sent, and what the command has said to it."""
    offered = choices()
    by_field, others = pages.problems_by_field(said, offered["fields"])
    return pages.render(
        "new",
        FRAME,
        problems=others,
        fields=pages.fields_of(offered, sent, by_field),
        more=sent.get("more", ""),
        gpus_why=offered["gpus"]["why"],
        xsrf=XSRF,
        **more,
    )


def refused_form(pages: object) -> str:
    """Return a form with faults."""
    sent = {
        "name": "my job",
        "worker_gpu": "99",
        "command": "python3 train.py",
        "worker_image": "pytorch:2.5",
        "more": "environment: {NCCL_DEBUG: INFO}",
    }
    said = (
        "-: line 1: name: 'my job' is not valid; use 1 to 27 letters, digits and '_'\n"
        "-: worker_gpu: a worker needs 99 GPUs, but the largest host of this cluster has 8; use less"
    )
    return form(pages, sent, said)


def of_job(pages: object, job: dict, curves: list) -> str:
    """Return the page of a job with a log."""
    line = "[0 %s] step %%d loss %%.4f\n" % job["hosts"][0]
    log = "".join(line % (step, 4 / (1 + step)) for step in range(400))
    return pages.render("job", FRAME, **job_values(job, log, curves, pages))


def of_instance(pages: object) -> str:
    """Return the page of an instance: what it takes, its curves, and when it is stopped."""
    gpu = dict(usage(41)[0], host="gpu-12", memory_mib=9120, hour_memory_mib=9120)
    job = shown_job(
        **a_job(9990, "running", name="main", gpus=1, workers=1, limit_minutes=1440),
        folder=None,
        endpoints=[],
        usage=[gpu],
        efficiency={},
    )
    settings = {"idle_minutes": 120, "idle_gpu_minutes": 60}
    values = job_values(job, "JupyterLab is ready\n", minutes(), pages)
    return pages.render("job", FRAME, **values, is_instance=True, idle=pages.idle_words(settings))


def cluster_values(hosts: list, waiting: list | None, told: dict) -> dict:
    """Return the values of the page of the cluster, as the service has them.

    C(told) are the answers of Prometheus.
    """
    charts = load("_charts")
    reasons = load("_instance").queue_by_reason(waiting or [], reason_words)
    return {
        "nodes": hosts,
        "classes": free_classes(hosts),
        "queue": waiting,
        "reasons": reasons,
        "in_service": sum(host["available"] for host in hosts),
        "xsrf": XSRF,
        "panels": charts.cluster_panels(told),
        "uses": charts.uses_of(told.get("use")),
        "health": charts.health_of(told.get("health")),
    }


def of_cluster(pages: object) -> str:
    """Return the page of the cluster."""
    hosts = nodes()
    return pages.render("cluster", FRAME, **cluster_values(hosts, queue(), told_of_cluster(hosts)))


def bare_cluster(pages: object) -> str:
    """Return the page of a cluster without monitoring."""
    return pages.render("cluster", FRAME, **cluster_values(nodes(), None, {}))


def months() -> list:
    """Return what a person has used in a year."""
    found = []
    for back in range(12):
        month = "%04d-%02d" % (2026 if back < 10 else 2025, (10 - back - 1) % 12 + 1)
        for account in ("language", "vision"):
            hours = round(wave(back * 3 + len(account), 40, 900, 4), 1)
            row = {"month": month, "account": account, "jobs": 20 + back, "failed": back % 4}
            row.update(gpu_hours=hours, gpu_hours_measured=hours if back < 4 else 0.0)
            row.update(gpu_hours_idle=round(hours / 9, 1), mean_use=0.71 if back < 4 else None)
            found.append(dict(row, wait_median_minutes=12 + back, wait_90_minutes=120 + back))
    return found


def of_usage(pages: object) -> str:
    """Return the page of usage."""
    group = {"month": stamp(0)[:7], "account": "vision", "gpu_hours": 9123.4, "jobs": 812}
    group.update(gpu_hours_measured=9000.1, gpu_hours_idle=811.5)
    most = max(row["gpu_hours"] for row in months())
    return pages.render("usage", FRAME, months=months(), groups=[group], most=most)


def operator_values(answer: dict, told: dict, pages: object) -> dict:
    """Return the values of the page of operators, as the service has them."""
    charts = load("_charts")
    found = pages.by_waste(answer["jobs"], charts.busy_of(told["jobs"]))
    return {
        "alerts": charts.alerts_of(told["alerts"]),
        "verify": charts.verify_of(told["verify"]),
        "has_report": True,
        "away": [node for node in answer["nodes"] if not node["available"]],
        "nodes": answer["nodes"],
        "people": answer["people"],
        "month": answer["month"],
        "months": answer["months"],
        "jobs": found[: pages.OF_PAGE],
        "running": sum(job["state"] == "running" for job in found),
        "waiting": sum(job["state"] == "pending" for job in found),
        "pager": pages.pager({}, 1, 2),
        "xsrf": XSRF,
    }


def of_operators(pages: object) -> str:
    """Return the page of operators."""
    values = operator_values(of_all(), told_of_operators(), pages)
    return pages.render("operators", FRAME, **values)


def of_any_job(pages: object) -> str:
    """Return the page of a job of somebody else, as operators see it."""
    values = job_values(shown_job(), "", minutes(), pages)
    keys = ("job", "panels", "has_prometheus", "spans", "span", "latest", "xsrf")
    shown = {key: values[key] for key in keys}
    return pages.render("job", FRAME, of_person="ben", log=None, **shown)


def empty_home(pages: object) -> str:
    """Return the first page of somebody new."""
    values = dict(home(), message="", instances=[], jobs=[], out_of_service=[])
    return pages.render("home", FRAME, **values)


def of_problem(pages: object) -> str:
    """Return the page that people see while Slurm does not answer."""
    said = "Slurm does not answer ('Unable to contact slurm controller'). Start the controller on its host"
    return pages.render("problem", FRAME, heading="Jobs", problems=[said], since=stamp(0.2))


#: Pages by their path below PREFIX.
PAGES = {
    "": lambda pages: pages.render("home", FRAME, xsrf=XSRF, **home()),
    "jobs": listed,
    "job/9998": lambda pages: of_job(pages, shown_job(), minutes()),
    "job/9996": lambda pages: of_job(pages, failed_job(), []),
    "job/9990": of_instance,
    "new": refused_form,
    "cluster": of_cluster,
    "usage": of_usage,
    "operators": of_operators,
    "operators/job/9998": of_any_job,
    "new-person": empty_home,
    "cluster-bare": bare_cluster,
    "problem": of_problem,
}


def hub_file(path: str) -> bytes:
    """Return a file of JupyterHub's own, such as its style sheet.

    Nothing if its package is not here (make acceptance fetches it).
    """
    for wheel in sorted(PACKAGES.glob("jupyterhub-[0-9]*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith("share/jupyterhub/static/" + path):
                    return archive.read(name)
    return b""


TYPES = {"css": "text/css", "js": "text/javascript"}


def sent_texts(kind: str, body: bytes) -> dict:
    """Return the texts of a form that a browser has sent."""
    if not kind.startswith("multipart/"):
        return dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True))
    whole = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\n\n" + body)
    found = {}
    for part in whole.get_payload():
        name = part.get_param("name", header="Content-Disposition")
        found[name] = part.get_payload(decode=True).decode()
    return found


def checked_form(sent: dict) -> str:
    """Return the form of a job that the command has found to be valid."""
    pages = load("_jobs_page")
    told = {"file": "name: %s\n" % sent["name"], "script": "#!/bin/bash\n"}
    told.update(cost="it asks for no GPU", start_estimate=stamp(-1.5))
    return form(pages, sent, checked=told)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the pages as the files are now, under the policy of the service."""

    #: As the service sends it without subdomains.
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'"

    def is_refused(self, path: str) -> bool:
        """Return whether JupyterHub would not take the cookie of this request: one that a script
        makes without the token of its page.
        """
        made_by = self.headers.get("Sec-Fetch-Mode", "navigate")
        is_page = path.startswith(PREFIX) and not path.startswith(PREFIX + "static/")
        return is_page and made_by != "navigate" and self.headers.get("X-XSRFToken") != XSRF

    def do_GET(self):
        path = self.path.partition("?")[0]
        if self.is_refused(path):
            return self.send_error(403)
        body, kind = b"", TYPES.get(path.rpartition(".")[2], "text/html; charset=utf-8")
        if path.startswith("/hub/static/"):
            body = hub_file(path[len("/hub/static/") :])
        elif path.startswith(PREFIX + "static/pages."):
            body = (FILES / path.rpartition("/")[2]).read_bytes()
        elif path.endswith("/log"):
            begin = int(self.path.rpartition("from=")[2])
            text = "[0 gpu-03] byte %d of the log, %s\n" % (begin, HOSTILE)
            piece = {"text": text, "start": begin, "next": begin + len(text), "ended": False}
            body, kind = json.dumps(piece).encode(), "application/json"
        elif path == "/":
            body = ("<meta http-equiv=refresh content='0; url=%s'>" % PREFIX).encode()
        elif path.startswith(PREFIX):
            draw = PAGES.get(path[len(PREFIX) :])
            body = draw(load("_jobs_page")).encode() if draw else b""
        return self.answer(body, kind)

    def answer(self, body, kind):
        """Send a page or a file, or that there is none."""
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", self.policy)
        self.end_headers()
        return self.wfile.write(body)

    def do_POST(self):
        """Keep what a form has sent, and lead to the page that the service leads to."""
        path = self.path[len(PREFIX) :]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = sent_texts(self.headers["Content-Type"], body)
        if sent.pop("_xsrf", "") != XSRF:
            return self.send_error(403)
        self.server.sent.append((path, sent))
        if sent.get("do") == "check":
            return self.answer(checked_form(sent).encode(), "text/html; charset=utf-8")
        place = {"new": "job/9998", "operators": "operators"}.get(path, path.rpartition("/")[0])
        self.send_response(303)
        self.send_header("Location", PREFIX + place)
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def log_message(self, *_arguments):
        """Say nothing."""


@contextlib.contextmanager
def server(port: int = 0, sent: list | None = None):
    """Serve the pages on a port of this machine.

    C(sent) gets the path and the texts of each form that a browser sends.
    """
    found = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found.sent = [] if sent is None else sent
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield "http://127.0.0.1:%d" % found.server_address[1]
    finally:
        found.shutdown()
        found.server_close()


def pictures(folder: Path, paths: list) -> None:
    """Write the pictures of pages, of all of them if C(paths) is empty."""
    # Its fixture needs pytest, which pages do not.
    from web_driver import Driver

    folder.mkdir(parents=True, exist_ok=True)
    driver = Driver()
    try:
        with server() as url, driver.open(width=1300, height=950) as browser:
            for path in paths or PAGES:
                name = (path or "home").replace("/", "-")
                for theme in ("light", "dark"):
                    browser.go(url + PREFIX + path)
                    browser.run("localStorage.setItem('jupyterhub-bs-theme', arguments[0])", theme)
                    browser.go(url + PREFIX + path)
                    browser.picture(folder / ("%s-%s.png" % (name, theme)))
                with browser.phone():
                    browser.go(url + PREFIX + path)
                    browser.picture(folder / ("%s-390.png" % name))
                    wide = browser.run("return document.documentElement.scrollWidth")
                    assert wide <= 390, "%s is %d pixels wide" % (name, wide)
    finally:
        driver.close()


#: Pages whose pictures are in docs/images, by the middle of their names.
OF_DOCS = {
    "home": "",
    "jobs": "jobs",
    "job": "job/9998",
    "failed": "job/9996",
    "new": "new",
    "instance": "job/9990",
    "cluster": "cluster",
    "usage": "usage",
    "operators": "operators",
}
#: A picture is at most so high, and ends where no part of the page is cut: the lowest such place.
MOST_HEIGHT = 1350
END = """
const most = arguments[0];
const boxes = parts => [...document.querySelectorAll(parts)].map(each => each.getBoundingClientRect());
const all = boxes('h1, h2, main p, tr, .card, .field, .cells li, .tiles li, .filter, .actions, pre, main > ul');
const ends = boxes('main p, tr, .card, .field, pre').map(box => box.bottom).filter(end => end <= most);
const whole = ends.filter(end => !all.some(box => box.top < end - 1 && box.bottom > end + 1));
return Math.ceil(Math.max(...whole));
"""


def docs_pictures(folder: Path) -> None:
    """Write the pictures of the documentation: each page in the light, in the dark, and on
    a phone.
    """
    from web_driver import Driver

    driver = Driver()
    try:
        with server() as url, driver.open(width=1300, height=MOST_HEIGHT + 160) as browser:
            browser.command("Emulation.setScrollbarsHidden", hidden=True)
            browser.go(url + PREFIX)
            for name, path in OF_DOCS.items():
                for theme, end in (("dark", "_dark"), ("light", "")):
                    browser.run("localStorage.setItem('jupyterhub-bs-theme', arguments[0])", theme)
                    browser.go(url + PREFIX + path)
                    docs_picture(browser, folder / ("portal_%s%s.png" % (name, end)))
                with browser.phone(height=MOST_HEIGHT + 20):
                    browser.go(url + PREFIX + path)
                    docs_picture(browser, folder / ("portal_%s_phone.png" % name))
    finally:
        driver.close()


def docs_picture(browser: object, picture: Path) -> None:
    """Write the picture of the page that a browser shows, down to a place between two parts."""
    from PIL import Image, ImageOps

    # A focus may be anywhere.
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    bottom = browser.run(END, MOST_HEIGHT)
    browser.picture(picture)
    made = Image.open(picture).convert("RGB")
    made = made.crop((0, 0, made.width, min(bottom, made.height)))
    # The ground goes on below the last part.
    ground = made.getpixel((3, made.height - 3))
    made = ImageOps.expand(made, (0, 0, 0, 16), ground)
    palette = Image.new("P", (1, 1))
    palette.putpalette(palette_of(made))
    made.quantize(palette=palette, dither=Image.Dither.NONE).save(picture, optimize=True)


def palette_of(made: object) -> list:
    """Return 256 colours of a picture: the most frequent ones, and of others one of each hue, so
    that a state keeps its colour that only one word has.
    """
    found = sorted(made.getcolors(made.width * made.height), reverse=True)
    colours = [colour for _count, colour in found[:64]]
    hues = {}
    for _count, colour in found[64:]:
        hues.setdefault(tuple(part >> 4 for part in colour), colour)
    colours += list(hues.values())[: 256 - len(colours)]
    return [part for colour in colours for part in colour]


def main(arguments: list) -> None:
    if arguments == ["docs"]:
        return docs_pictures(ROOT / "docs/images")
    if arguments:
        return pictures(Path(arguments[0]), arguments[1:])
    with server(8053) as url:
        print("The portal with recorded data: %s (Ctrl-C ends)" % url)
        if not hub_file("css/style.min.css"):
            print("JupyterHub's style sheet is not in %s; `make acceptance` fetches it" % PACKAGES)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
