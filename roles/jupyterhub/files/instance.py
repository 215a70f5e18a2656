# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts, watches and stops the jobs of instances, and answers for the pages of jobs.

The hub runs it as the person, by sudo and as_person.

The hub may run nothing else. It has no arguments: the request is JSON on its standard input, with
the token of the server in it, and the answer is JSON on its standard output. It judges and submits
by the modules of the command trainyard. The hub cannot end it, because it runs as somebody else: it
ends itself, and as_person kills it a little later.
"""

import argparse
import codecs
import concurrent.futures
import contextlib
import ctypes
import datetime
import importlib
import io
import json
import os
import re
import resource
import shlex
import signal
import sys
import types
import uuid

import _instance

JOBS, SHARED = "/usr/local/lib/trainyard/jobs", "/usr/local/lib/trainyard/shared"
#: Modules of the command trainyard.
OF_COMMAND = (
    "_slurm_client",
    "_site",
    "_output",
    "_submit",
    "_commands",
    "_command_line",
    "_overview",
)
#: On training hosts.
PROGRAM = "/usr/local/lib/trainyard/notebook/server"
MAX_BYTES = 1 << 20
#: Bytes of an answer. The hub reads no more.
MAX_ANSWER = 8 << 20
#: Bytes of a log in an answer. A page shows the last ones.
LOG_BYTES = 100000
#: Lines of the log of an instance that did not start.
FAILURE_LINES = 12
#: Jobs of a page of the list, and months of the page of usage.
OF_PAGE, OF_MONTHS = 50, 12
#: Seconds for a request, less than as_person and the hub have. Seconds of CPU time, and bytes of
#: memory, also for each command of Slurm.
SECONDS, CPU_SECONDS, MEMORY = 130, 60, 1 << 30
#: prctl(2), looked up here: between fork and exec, a process with threads could wait for ever.
PRCTL = ctypes.CDLL(None).prctl
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4


class OutOfTime(Exception):
    """The request has taken too long."""


def limit():
    """Limit what this process and its children use.

    The first to be killed on a host without memory is this one, and not the hub, which has the same
    unit.
    """

    def end(_number, _frame):
        raise OutOfTime

    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("1000")
    # Other processes of the person cannot trace it.
    prctl(PR_SET_DUMPABLE, 0)


def prctl(option, value):
    PRCTL(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def end_with_parent():
    """Preparation of a command of Slurm: it ends with the helper, even if its owner has
    stopped it.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def command():
    """Return what this program calls of the modules of the command trainyard."""
    sys.path[:0] = [JOBS, SHARED]
    sys.dont_write_bytecode = True
    importlib.import_module("_slurm_client").BEFORE_START = end_with_parent
    found = types.SimpleNamespace()
    for name in OF_COMMAND:
        vars(found).update(vars(importlib.import_module(name)))
    return found


def choices(trainyard, site, _request):
    # The page works without it. A registry that does not answer must not delay or break the page.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(site.saved)
        found = of_slurm(trainyard, site)
        saved, found["saved_problem"] = pending.result()
        found["saved"] = _instance.allowed(saved, found["registries"])
    found["fields"] = trainyard._job_file.form_fields()
    found["priorities"] = [entry["name"] for entry in site.config.get("priorities") or []]
    return found


def of_slurm(trainyard, site):
    nodes = [
        {
            "cpus": node["cpus"],
            "memory_gb": node["memory_mib"] // trainyard.GIB,
            "gpus": trainyard._job_limits.gpus_of(node),
            "classes": node["features"],
        }
        for node in trainyard.nodes_now()
    ]
    approved = []
    # A damaged catalogue does not keep instances from starting.
    with contextlib.suppress(trainyard.Refused):
        approved = [entry["name"] for entry in site.approved()]
    accounts = trainyard._job_limits.accounts_of(trainyard.usage_now(site.person), site.person)
    return _instance.choices_of(
        accounts,
        nodes,
        site.catalogue(),
        site.config.get("default_image") or "",
        approved,
        site.config.get("registries") or [],
    )


def start(trainyard, site, request):
    site.check_folder()
    values = _instance.job_values(request["name"], request["values"])
    try:
        job = trainyard._job_file.judge(
            values, site.config.get("priorities") or [], site.config.get("default_image") or ""
        )
    except trainyard._job_file.JobFileError as error:
        raise trainyard.Refused("; ".join(error.problems)) from error
    problems = trainyard.site_problems(site, job)
    if problems:
        raise trainyard.Refused("; ".join(problems))
    # Slurm gives the number of the job later.
    words, name = trainyard.ssh_words(site, "NUMBER")
    path = write_secret(
        os.path.join(site.folder, ".instances"),
        {
            "name": job["name"],
            "image": job["worker_image"],
            "shared_memory": job["worker_shared_memory"],
            "environment": request["environment"],
            "identity": request["identity"],
            "ssh": shlex.join(words + [name]),
            "folders": [site.home, site.config["share"]],
        },
    )
    place = {
        "output": os.path.join(site.folder, ".out", "%j.log"),
        "workdir": site.home,
        "mark": _instance.MARK,
    }
    options = [trainyard._batch.quoted(option) for option in trainyard._batch.options(job, place)]
    try:
        text = trainyard.ask(
            ["sbatch", "--parsable"],
            _instance.script(options, PROGRAM, shlex.quote(path)),
            trainyard.minimal(os.environ),
        )
    except (trainyard.Refused, trainyard.NoAnswer):
        os.unlink(path)
        raise
    return {"job": text.strip().partition(";")[0], "file": os.path.basename(path)}


def write_secret(folder, content):
    """Write what the job reads and removes.

    It has a new name each time, which no host has looked for before.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    path = os.path.join(folder, uuid.uuid4().hex + ".json")
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600),
        "w",
        encoding="utf-8",
    ) as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    return path


def status(trainyard, _site, request):
    for job in trainyard.active_jobs():
        if str(job["id"]) == str(request["job"]):
            found = trainyard.of_active(job)
            waits = found["state"] in trainyard.WAITING
            return {
                "state": found["state"],
                "waits": waits,
                "hosts": found["hosts"],
                "why": in_utc(trainyard, found, trainyard.reason_words(found)) if waits else "",
                "started": found["started"],
                "limit_minutes": found["limit_minutes"],
            }
    ended = {"state": "ended", "waits": False, "hosts": [], "why": ""}
    return dict(ended, started=None, limit_minutes=None)


def failure(trainyard, site, request):
    """Why an instance ended before it was ready: known causes in its log, and the end of the log."""
    library, found = importlib.import_module("_log_causes"), {"causes": [], "log": ""}
    path = site.log_of(str(request["job"]), None)
    with contextlib.suppress(OSError), trainyard._files.open_regular(path) as stream:
        for each in library.answer(library.read_log(stream))["causes"][:1]:
            entry = {"cause": each["cause"], "fix": trainyard.sentence(each["fix"])}
            found["causes"].append(entry)
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_BYTES))
        lines = stream.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
        found["log"] = "\n".join(lines[-FAILURE_LINES:])
    return found


def in_utc(trainyard, job, words):
    """Return the words of the command about a job that waits without its zone, which is that of
    this host and not the person's.
    """
    start = job["start_estimate"]
    shown = "; expected start %s UTC" % start[:16].replace("T", " ") if start else ""
    return words.replace(trainyard.start_words(job), shown) if start else words


def stop(trainyard, site, request):
    if status(trainyard, site, request)["state"] != "ended":
        trainyard.ask(["scancel", str(request["job"])])
    # A job that has not started has not read it.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(site.folder, ".instances", request["file"]))
    return {"stopped": True}


def by_command(trainyard, words, text=None):
    """Return what the command trainyard prints as JSON."""
    printed, usual = io.StringIO(), sys.stdin
    try:
        sys.stdin = io.StringIO(text or "")
        with contextlib.redirect_stdout(printed):
            code = trainyard.main(words + ["--json"])
    finally:
        sys.stdin = usual
    found = json.loads(printed.getvalue())
    if code:
        raise (trainyard.NoAnswer if code == trainyard.NO_ANSWER else trainyard.Refused)(
            found["error"]
        )
    return found


def home(trainyard, site, _request):
    """What the person has, what is free, and the jobs of the last day."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        pending = pool.submit(trainyard.all_jobs, trainyard.RECENT)
        hosts = pool.submit(trainyard.nodes_now)
        usage = pool.submit(trainyard.usage_now, site.person)
        active = pool.submit(trainyard.active_jobs)
    nodes, used = hosts.result(), usage.result()
    marked = {str(job["id"]) for job in active.result() if job["comment"] == _instance.MARK}
    queue = site.queue() or []
    found = list(reversed(pending.result()))
    instances, others = [], []
    for job in found:
        if job["state"] in trainyard.WAITING:
            job["why"] = why_words(trainyard, job, used, nodes, queue)
        (instances if job["id"] in marked else others).append(job)
    return {
        "instances": instances,
        "jobs": others[:OF_PAGE],
        "classes": trainyard._job_limits.free_classes(nodes),
        "out_of_service": [row for row in trainyard.node_rows(nodes) if not row["available"]],
        "accounts": trainyard.quota_of(used, site.person),
    }


def why_words(trainyard, job, usage, nodes, queue):
    """Return why a job waits, and its place in the queue. The page has the time of its start."""
    words = trainyard._job_limits.why(job, usage, nodes)
    if job["state"] != "pending":
        return words
    place = trainyard._job_limits.place(queue, job["id"])
    if not place:
        return words + "; place in the queue not known"
    return words + "; place %d of %d in the queue" % (place["place"], place["queued"])


def jobs(trainyard, site, request):
    """A page of the list, the newest jobs first."""
    options = argparse.Namespace(
        all=False, state=request["state"], since=request["since"], name=request["name"]
    )
    found = list(reversed(trainyard.chosen_jobs(options)))
    pages = max(1, -(-len(found) // OF_PAGE))
    page = min(request["page"], pages)
    shown = found[(page - 1) * OF_PAGE : page * OF_PAGE]
    waiting = [each for each in shown if each["state"] in trainyard.WAITING]
    if waiting:
        used, nodes = trainyard.usage_now(site.person), trainyard.nodes_now()
        queue = site.queue() or []
        for each in waiting:
            each["why"] = why_words(trainyard, each, used, nodes, queue)
    return {"jobs": shown, "total": len(found), "page": page, "pages": pages}


def job(trainyard, site, request):
    number = str(request["job"])
    found = by_command(trainyard, ["show", number])
    if found["state"] in trainyard.WAITING:
        # The page has the time of its start in the zone of the browser.
        found["why"] = found["why"].replace(trainyard.start_words(found), "")
        found.update(trainyard.place_of(found) or {})
    words, name = trainyard.ssh_words(site, number)
    active = [] if found["ended"] else trainyard.active_jobs()
    marked = {str(each["id"]) for each in active if each["comment"] == _instance.MARK}
    return {
        "job": found,
        "is_instance": number in marked,
        "accounts": trainyard.quota_of(trainyard.usage_now(site.person), site.person),
        "share": site.config["share"],
        "curves": trainyard.minutes_of(site, number, found["hosts"]),
        "workers": trainyard.worker_minutes_of(site, number, found["hosts"]),
        "ssh": shlex.join(words + [name]) if found["state"] == "running" else "",
    }


def log(trainyard, site, request):
    """The log of a job from a byte on, or its end.

    Its folder is the person's own, so the job need not be looked up for it.
    """
    number, start = str(request["job"]), request["start"]
    found = {"text": "", "start": max(0, start), "next": max(0, start), "ended": False}
    # Its person may have put anything in its place.
    path = site.log_of(number, request["rank"])
    with contextlib.suppress(OSError), trainyard._files.open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if start < 0 or start > size:
            start = max(0, size - LOG_BYTES)
        stream.seek(start)
        data = stream.read(LOG_BYTES)
        # The beginning of a character at the end of the piece is left to the next one.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        left = len(decoder.getstate()[0])
        found.update(text=text, start=start, next=start + len(data) - left)
    found["ended"] = not found["text"] and status(trainyard, site, request)["state"] == "ended"
    return found


def cluster(trainyard, site, _request):
    known, queue = trainyard.nodes_now(), site.queue()

    def say(reason):
        return trainyard._job_limits.why({"reason": reason, "account": "of the job"}, [], known)

    return {
        "nodes": trainyard.node_rows(known),
        "classes": trainyard._job_limits.free_classes(known),
        "queue": queue,
        "reasons": _instance.queue_by_reason(queue or [], say),
    }


def last_months(now):
    """Return the months whose usage pages show, the newest first, such as 2026-11."""
    found = []
    for back in range(OF_MONTHS):
        whole = now.year * 12 + now.month - 1 - back
        found.append("%04d-%02d" % (whole // 12, whole % 12 + 1))
    return found


def usage(trainyard, site, _request):
    """What the person has used in each of the last months, the newest first, and what the person's
    groups have in this one.
    """
    library, now = trainyard.usage_library(), datetime.datetime.now(datetime.timezone.utc)
    months = last_months(now)
    spans = [library.month_of(month, now.date()) for month in months]
    span = library.span_of(spans[-1][1], spans[0][2])
    jobs = trainyard.month_jobs(*span, person=site.person)
    rows = []
    for month, begin, end in spans:
        for row in library.usage_rows(jobs, begin, min(end, now.timestamp())):
            rows.append(dict(row, month=month))
    groups = []
    for account in sorted({job["account"] for job in jobs}):
        sums = trainyard.account_usage(months[0], account)
        groups += [dict(sums, month=months[0])] if sums else []
    columns = ("month", *library.COLUMNS)
    return {"months": rows, "groups": groups, "csv": library.as_csv(rows, columns)}


def operators(trainyard, _site, request):
    """What Slurm shows an operator: the jobs of all people, the hosts, and what each person has
    used in a month, most idle hours first.
    """
    library, now = trainyard.usage_library(), datetime.datetime.now(datetime.timezone.utc)
    months = last_months(now)
    month = request["month"] or months[0]
    if month not in months:
        known = (month, months[-1], months[0])
        raise trainyard.Refused("'%s' is not a month of this page; use one from %s to %s" % known)
    _month, begin, end = library.month_of(month, now.date())
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        active, hosts = pool.submit(trainyard.jobs_of_all), pool.submit(trainyard.nodes_now)
        used = pool.submit(trainyard.month_jobs, *library.span_of(begin, end))
    nodes = hosts.result()
    found = []
    for entry in active.result():
        waits = entry["state"] in trainyard.WAITING
        why = trainyard._job_limits.why(entry, [], nodes) if waits else ""
        found.append(dict(trainyard.of_active(entry), person=entry["user"], why=why))
    people = library.usage_rows(used.result(), begin, min(end, now.timestamp()))
    people.sort(key=lambda row: (-row["gpu_hours_idle"], -row["gpu_hours"]))
    return {
        "jobs": found,
        "nodes": trainyard.node_rows(nodes),
        "people": people,
        "csv": library.as_csv(people),
        "month": month,
        "months": months,
    }


def any_job(trainyard, site, request):
    """A job of any person, as far as Slurm shows it to this one.

    Its folder and log are private: this helper reads them with no rights but the person's own.
    """
    number = str(request["job"])
    found = trainyard.find_of_all(number)
    comment = trainyard.usage_library().parse_summary(found.pop("admin_comment"))
    found["efficiency"] = {"GPU use": trainyard.usage_library().words(comment)} if comment else {}
    found["why"] = ""
    if found["state"] in trainyard.WAITING:
        found["why"] = trainyard._job_limits.why(found, [], trainyard.nodes_now())
    return {"job": found, "log": log_of_person(trainyard, site, found["person"], number)}


def log_of_person(trainyard, site, person, number):
    """Return the end of the log of a job of somebody, None if this person may not read it or there
    is none.
    """
    if not re.fullmatch(_instance.ACCOUNT, person):
        return None
    path = os.path.join(site.config["jobs"], person, ".out", number + ".log")
    try:
        with trainyard._files.open_regular(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_BYTES))
            return stream.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def node(trainyard, _site, request):
    """Drain or resume a host as the person, whose rights Slurm knows."""
    known = {each["name"] for each in trainyard.nodes_now()}
    if request["node"] not in known:
        raise trainyard.Refused("'%s' is not a host of this cluster" % request["node"])
    words = ["scontrol", "update", "NodeName=" + request["node"]]
    if request["do"] == "drain":
        words += ["State=DRAIN", "Reason=" + request["reason"].strip()]
    else:
        words.append("State=RESUME")
    trainyard.ask(words)
    return {"node": request["node"]}


def stop_job(trainyard, _site, request):
    return {"job": by_command(trainyard, ["stop", str(request["job"])])["id"]}


def clone(trainyard, _site, request):
    return {"job": by_command(trainyard, ["clone", str(request["job"])])["id"]}


def job_text(trainyard, request):
    """Return the job file of a form: its fields, then the other keys as they were typed."""
    values = _instance.of_jobs_form(request["values"], trainyard._job_file.form_fields())
    more = request["values"].get("more", "").replace("\r\n", "\n").strip("\n")
    return trainyard._job_file.to_yaml(values) + (more + "\n" if more else "")


def submit(trainyard, _site, request):
    return {"job": by_command(trainyard, ["submit", "-"], job_text(trainyard, request))["id"]}


def check(trainyard, _site, request):
    text = job_text(trainyard, request)
    return dict(by_command(trainyard, ["submit", "-", "--dry-run"], text), file=text)


def values(trainyard, site, request):
    """Return the texts of the form for the file of a job, or for one that the person has sent."""
    text = request.get("text")
    if text is None:
        text = trainyard.file_of(site, trainyard.number_of(str(request["job"])))
    try:
        found = trainyard._job_text.read_job_text(text, trainyard._job_file.KEYS)
    except trainyard._job_text.TextError as error:
        raise trainyard.Refused(str(error)) from error
    texts, others = _instance.form_of(found, trainyard._job_file.form_fields())
    return {"values": dict(texts, more=trainyard._job_file.to_yaml(others))}


DO = {
    "choices": choices,
    "start": start,
    "status": status,
    "failure": failure,
    "stop": stop,
    "home": home,
    "jobs": jobs,
    "job": job,
    "log": log,
    "cluster": cluster,
    "usage": usage,
    "values": values,
    "check": check,
    "stop_job": stop_job,
    "clone": clone,
    "submit": submit,
    "operators": operators,
    "any_job": any_job,
    "node": node,
}


def main():
    limit()
    trainyard = command()
    try:
        request = _instance.request_of(sys.stdin.read(MAX_BYTES))
        if os.getuid() == 0:
            raise trainyard.Refused("root has no instances")
        found = DO[request["action"]](trainyard, trainyard.Site(), request)
    except (trainyard.Refused, _instance.RequestError) as error:
        found = {"error": str(error), "no_answer": False}
    except trainyard.NoAnswer as error:
        found = {"error": str(error), "no_answer": True}
    except OutOfTime:
        found = {
            "error": "the request has taken longer than %d s; try again later" % SECONDS,
            "no_answer": True,
        }
    except MemoryError:
        found = {
            "error": "the request needs more than %d MiB of memory" % (MEMORY >> 20),
            "no_answer": False,
        }
    text = json.dumps(found)
    if len(text) > MAX_ANSWER:
        text = json.dumps(
            {"error": "the answer is larger than %d MiB" % (MAX_ANSWER >> 20), "no_answer": False}
        )
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
