# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""job_usage SETTINGS: keeps the use of GPUs of each ended job in its AdminComment, and stops jobs
that leave all of their GPUs idle, if the site has a limit.

A timer starts it on the scheduler's host, as Slurm's own user, who sees all jobs in spite of
PrivateData. What Prometheus could not answer is asked again.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.parse

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
import _messages
import _metrics
import _slurm
import _usage
from _quantity import quantity

TLS = "/etc/trainyard/monitoring/tls"
#: What was told of idle jobs, in the folder of this user.
STATE = "/var/lib/trainyard/metrics/slurm/idle.json"
#: What each account has used in this month, for command trainyard. It names nobody.
ACCOUNTS = "/var/lib/trainyard/usage/accounts.json"
ACCOUNTS_SECONDS = 3600
PORT, SECONDS = 9090, 20
#: Ended jobs that are looked at, and how many of them get their use in one run.
DAYS, MOST = 2, 200
#: Jobs whose use Slurm may refuse to keep before a run ends.
MOST_REFUSED = 5
#: Seconds after the end of a job in which its last values arrive.
SETTLED = 90
#: The sums of a job only rise, so the last ones are sufficient: those of the last minutes, or of
#: the last day if a GPU was lost before the end.
WINDOWS = ((600, 15), (86400, 120))
#: Seconds between the warning of a job and its end.
GRACE = 1800
#: Share of the looks at a GPU that are needed to call it idle.
SEEN = 0.8
#: Begin of the comment of instances of the hub, which has a limit of its own.
INSTANCE = "trainyard instance"


class NoAnswer(Exception):
    """Slurm or Prometheus does not answer. The message says what it said."""


def ask(command: list[str], text: str | None = None) -> str:
    """Return the output of a command. NoAnswer: it fails, or does not end in time."""
    try:
        done = subprocess.run(
            command,
            input=None if text is None else text.encode(),
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
            env=_slurm.command_environment(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer("%s: %s" % (command[0], error)) from error
    if done.returncode:
        message = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise NoAnswer("%s: %s" % (command[0], message[-300:] or "exit code %d" % done.returncode))
    return done.stdout.decode("utf-8", "replace")


def query(expression: str, moment: float, port: int = PORT, folder: str = TLS) -> list[dict]:
    """Return the series of an expression at a time, each with C(metric) and C(value).

    NoAnswer: Prometheus gives none.
    """
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression, "time": "%.3f" % moment})
    try:
        context = ssl.create_default_context(cafile=folder + "/ca.pem")
        context.load_cert_chain(folder + "/client.pem", folder + "/client.key")
        connection = http.client.HTTPSConnection(
            "localhost", port, timeout=SECONDS, context=context
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            found = json.loads(answer.read().decode("utf-8", "replace"))
        finally:
            connection.close()
        if found["status"] != "success":
            raise NoAnswer("Prometheus: %s" % found.get("error"))
        return found["data"]["result"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise NoAnswer("Prometheus: %s: %s" % (type(error).__name__, error)) from error


# --- pure functions ---


def sums_query(number: int, seconds: int, step: int) -> str:
    """Return the expression for the last sums of a job on each of its GPUs, by kind."""
    return (
        "max by (instance, uuid, kind) "
        '(max_over_time((label_replace({__name__=~"trainyard_gpu_job_.+"}, "kind", "$1", '
        '"__name__", "trainyard_gpu_job_(.+)")'
        " and on (instance, uuid) (trainyard_gpu_job == %d))[%ds:%ds]))" % (number, seconds, step)
    )


def idle_query(minutes: int, interval: int) -> str:
    """Return the expression for the number of GPUs that each job has, and has not used for some
    minutes.
    """
    window = "[%dm]" % minutes
    return (
        'count by (slurm_job) (count_values by (instance, uuid) ("slurm_job", '
        "trainyard_gpu_job > 0)"
        " and on (instance, uuid) (min_over_time(trainyard_gpu_job%s) == "
        "max_over_time(trainyard_gpu_job%s))"
        " and on (instance, uuid) (max_over_time(trainyard_gpu_utilization_ratio%s) < %g)"
        " and on (instance, uuid) (count_over_time(trainyard_gpu_utilization_ratio%s) >= %d))"
        % (window, window, window, _metrics.BUSY, window, SEEN * minutes * 60 / interval)
    )


def sums_of(series: list[dict]) -> list[dict]:
    """Return the sums of each GPU, by kind."""
    found: dict[tuple, dict] = {}
    for row in series:
        key = (row["metric"].get("instance"), row["metric"].get("uuid"))
        found.setdefault(key, {})[row["metric"].get("kind")] = float(row["value"][1])
    return list(found.values())


def address_of(job: dict) -> str:
    """Return the number by which sacctmgr changes this job only.

    The plain number of a task of an array may be that of the whole array.
    """
    return job["id"] if re.fullmatch("[0-9]+_[0-9]+", job["id"]) else str(job["raw_id"])


def without_summary(jobs: list[dict], now: float) -> list[dict]:
    """Return the ended jobs with GPUs that have run and have no summary, those that ended first
    before others.
    """
    found = []
    for job in jobs:
        if not job["gpus"] or job["start_time"] is None or job["end_time"] is None:
            continue
        is_settled = seconds_of(job["end_time"]) + SETTLED < now
        if is_settled and not _usage.is_summary(job["admin_comment"]):
            found.append(job)
    return sorted(found, key=lambda job: job["end_time"])[:MOST]


def seconds_of(text: str) -> float:
    return datetime.datetime.fromisoformat(text.rstrip("Z") + "+00:00").timestamp()


def all_idle(jobs: list[dict], counts: dict[int, int]) -> list[dict]:
    """Return the running jobs all of whose GPUs are idle.

    Instances of the hub and jobs of this collection are left alone.

    :param jobs: what P(_slurm.parse_jobs) returns.
    :param counts: idle GPUs by number of the job.
    """
    return [
        job
        for job in jobs
        if job["state"] == "running"
        and 0 < job["gpus"] <= counts.get(job["id"], 0)
        and not job["comment"].startswith(INSTANCE)
        and job["account"] != _slurm.TRAIN_ACCOUNT
    ]


def warning(job: dict, minutes: int) -> str:
    """Return what a job is told that has not used its GPUs for some minutes."""
    if job["gpus"] == 1:
        words, use = "the GPU of job %d has not been used" % job["id"], "it"
    else:
        words = "none of the %d GPUs of job %d has been used" % (job["gpus"], job["id"])
        use = "one"
    return "%s for %s. The job is stopped in %d minutes unless it uses %s" % (
        words,
        quantity(minutes, "minute"),
        GRACE // 60,
        use,
    )


def decisions(state: dict, idle: list[dict], running: set[int], now: float) -> tuple:
    """Return jobs to warn, jobs to stop, and what to remember of jobs: when each was warned, and
    when it was stopped.

    :param told: what this function has returned last, by number of the job as text.
    :param running: numbers of all running jobs.
    """
    warn, stop, kept = [], [], {}
    for key, entry in state.items():
        # A stopped job is known until its use is written.
        if entry.get("stopped") and entry["stopped"] + DAYS * 86400 > now:
            kept[key] = entry
    for job in idle:
        key = str(job["id"])
        warned = (state.get(key) or {}).get("warned")
        if warned is None:
            warn.append(job)
            kept[key] = {"warned": now}
        elif now - warned < GRACE:
            kept[key] = {"warned": warned}
        elif job["id"] in running:
            stop.append(job)
            kept[key] = {"warned": warned, "stopped": now}
    return warn, stop, kept


# --- the queue ---


def mark() -> str:
    return "t" + os.urandom(8).hex()


def known_jobs(begin: float, end: float) -> list[dict]:
    """Return the jobs of a time, with their AdminComment."""
    sign = mark()
    command = _slurm.finished_command(sign, *_usage.span_of(begin, end), with_admin_comment=True)
    return _slurm.parse_finished(ask(command), sign, with_admin_comment=True)


def measure(job: dict) -> dict:
    """Return what Prometheus knows of an ended job."""
    begin, end = seconds_of(job["start_time"]), seconds_of(job["end_time"])
    rows: list[dict] = []
    for seconds, step in WINDOWS:
        window = int(min(seconds, end - begin + SETTLED))
        # The sums are those of a look, which may come after the end.
        more = sums_of(query(sums_query(job["raw_id"], window, step), end + SETTLED / 3))
        rows = more if len(more) > len(rows) else rows
        if len(rows) >= job["gpus"] or seconds >= end - begin:
            break
    return _usage.measured(rows)


def keep(job: dict, text: str) -> None:
    """Write the AdminComment of a job."""
    command = "sacctmgr --immediate modify job where".split()
    ask([*command, "jobid=" + address_of(job), "set", "admincomment=" + text])


def write_summaries(settings: dict, now: float) -> None:
    """Keep the use of ended jobs in Slurm.

    A job that Slurm refuses to change does not keep the others waiting.
    """
    state, refused = read_state(), []
    for job in without_summary(known_jobs(now - DAYS * 86400, now + 60), now):
        was_stopped = (state.get(str(job["raw_id"])) or {}).get("stopped")
        minutes = settings["idle_minutes"] if was_stopped else 0
        text = _usage.summary_text(job["gpus"], measure(job), minutes)
        try:
            keep(job, text)
        except NoAnswer as error:
            refused.append("job %s: %s" % (address_of(job), error))
            if len(refused) == MOST_REFUSED:
                break
            continue
        values = _usage.parse_summary(text)
        found = _usage.notes(values) if values else []
        if found and settings["mail"] and job["seconds"] >= GRACE:
            send(
                job["user"],
                "Job %s, %s: use of GPUs" % (address_of(job), job["name"]),
                "\n".join([_usage.words(values) + "."] + found),
            )
    if refused:
        raise NoAnswer("; ".join(refused))


def read_state() -> dict:
    found = _files.read_json(STATE)
    return found if isinstance(found, dict) else {}


def send(user: str, subject: str, text: str) -> None:
    """Send a mail by the program of Slurm's MailProg, if the host has it."""
    found = re.search(r"^MailProg\s*=\s*(/\S+)$", ask(_slurm.CONFIG), re.MULTILINE)
    if not found or not os.access(found.group(1), os.X_OK):
        return
    try:
        ask([found.group(1), "-s", _messages.printable(subject), user], text + "\n")
    except NoAnswer as error:
        print("trainyard: %s" % error, file=sys.stderr)


def tell(job: dict, text: str) -> None:
    """Tell a person about a job: in its log, and by mail."""
    try:
        ask(["scontrol", "notify", str(job["id"]), "trainyard: " + text])
    except NoAnswer as error:
        # A job that has just ended.
        print("trainyard: %s" % error, file=sys.stderr)
    send(job["user"], "Job %d, %s: idle GPUs" % (job["id"], job["name"]), text)


def end_idle_jobs(settings: dict, now: float) -> None:
    """Warn jobs that leave all of their GPUs idle, and stop those that go on so."""
    minutes = settings["idle_minutes"]
    if not minutes:
        return
    sign = mark()
    jobs = _slurm.parse_jobs(ask(_slurm.jobs_command(sign)), sign)
    rows = query(idle_query(minutes, settings["interval"]), now)
    counts = {}
    for row in rows:
        number = row["metric"].get("slurm_job", "")
        if number.isdigit():
            counts[int(number)] = int(float(row["value"][1]))
    running = {job["id"] for job in jobs if job["state"] == "running"}
    warn, stop, kept = decisions(read_state(), all_idle(jobs, counts), running, now)
    for job in warn:
        tell(job, warning(job, minutes))
    for job in stop:
        tell(job, "job %d is stopped: it has not used its GPUs since the warning" % job["id"])
        ask(["scancel", str(job["id"])])
    _files.write_private(STATE, json.dumps(kept))


def publish_accounts(settings: dict, now: float) -> None:
    """Write what each account has used in this month, each hour, if the site lets people see it."""
    if settings["people_see"] != "occupancy":
        return
    with contextlib.suppress(FileNotFoundError):
        if now - os.stat(ACCOUNTS).st_mtime < ACCOUNTS_SECONDS:
            return
    today = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).date()
    month, begin, _end = _usage.month_of("", today)
    rows = _usage.usage_rows(known_jobs(begin, now + 60), begin, now, by_person=False)
    text = json.dumps({"month": month, "at": int(now), "accounts": rows})
    _files.write_private(ACCOUNTS, text, 0o644)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as stream:
        settings = json.load(stream)
    failed = []
    for step in (end_idle_jobs, write_summaries, publish_accounts):
        try:
            step(settings, time.time())
        except (NoAnswer, _slurm.ParseError) as error:
            failed.append(str(error))
    if failed:
        sys.exit("trainyard: " + "; ".join(failed))


if __name__ == "__main__":
    main()
