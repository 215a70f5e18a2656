# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm as the command trainyard asks it, and its jobs in the words of the command."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import time
import uuid

import _job_limits
import _slurm
from _messages import Refused

#: Seconds in which one of Slurm's commands has to answer.
TIMEOUT = 60
#: Seconds in which the accounting has to learn of a job that has ended.
ACCOUNTING_SECONDS = 20
#: How far back `list` looks for jobs that have ended, without and with --all.
RECENT, ALL = datetime.timedelta(days=1), datetime.timedelta(days=365)
#: What runs in the process of a command of Slurm before the command. The helper of the hub sets it.
BEFORE_START = None
GIB = 1024
ACTIVE = (
    "pending",
    "configuring",
    "running",
    "completing",
    "suspended",
    "requeued",
    "requeue_hold",
    "special_exit",
    "stopped",
    "signaling",
    "stage_out",
    "resizing",
    "requeue_fed",
    "preempted",
)
WAITING = ("pending", "configuring", "requeued", "requeue_hold", "special_exit", "requeue_fed")
#: Slurm's words in those of the command.
STATES = {
    "pending": "waiting",
    "configuring": "starting",
    "completing": "ending",
    "completed": "done",
    "cancelled": "stopped",
    "timeout": "out of time",
    "out_of_memory": "out of memory",
    "node_fail": "host failed",
    "boot_fail": "host failed",
    "deadline": "out of time",
    "requeue_hold": "held",
}


class NoAnswer(Exception):
    """Slurm does not answer. The message is for the person."""


def minimal(environment):
    """Return the environment of sbatch: a job must not depend on what its person has set in a
    shell, nor give it away.
    """
    kept = {
        name: environment[name]
        for name in ("HOME", "USER", "LOGNAME", "LANG", "TERM", "SLURM_CONF", "SLURM_CONF_SERVER")
        if name in environment
    }
    # A site may have Slurm in a folder of its own.
    folders = [
        os.path.dirname(shutil.which("sbatch", path=environment.get("PATH")) or "/usr/bin/sbatch"),
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
    ]
    return dict(kept, PATH=":".join(dict.fromkeys(folders)), SHELL="/bin/bash")


def ask(command, text=None, environment=None, with_errors=False):
    """Return what a command of Slurm prints, if asked also as errors.

    Raises NoAnswer, or Refused if Slurm refuses a job.
    """
    environment = environment or _slurm.command_environment(os.environ)
    try:
        done = subprocess.run(
            command,
            input=None if text is None else text.encode(),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if text is None else None,
            timeout=TIMEOUT,
            check=False,
            preexec_fn=BEFORE_START,
        )
    except FileNotFoundError:
        raise NoAnswer(
            "%s is not installed on this host. %s"
            % (command[0], sentence(_slurm.FIXES["not_installed"]))
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            "'%s' gave no answer within %d s. %s"
            % (command[0], TIMEOUT, sentence(_slurm.FIXES["timeout"]))
        ) from None
    stdout, stderr = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    if done.returncode:
        cause, evidence = _slurm.why_no_answer(done.returncode, stdout, stderr)
        if cause in ("failed", "permission"):
            raise Refused("%s: %s" % (command[0], re.sub(r"^\w+: (?:error: )?", "", evidence)))
        raise NoAnswer(
            "Slurm does not answer ('%s'). %s" % (evidence, sentence(_slurm.FIXES[cause]))
        )
    return stdout + stderr if with_errors else stdout


def start_of(script: str, environment: dict) -> str | None:
    """Return when Slurm would start a new job, which it is not given. None if it cannot say."""
    command = ["sbatch", "--test-only", "--parsable"]
    try:
        # The time is in the zone of the command.
        output = ask(command, script, dict(environment, TZ="UTC0", LC_ALL="C"), with_errors=True)
    except (Refused, NoAnswer):
        # The real one says why.
        return None
    found = re.search(
        r"to start at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}) ", output
    )
    return found.group(1) + "Z" if found else None


def sentence(text):
    return text[:1].upper() + text[1:]


def parsed(command, parse):
    try:
        return parse(ask(command))
    except _slurm.ParseError as error:
        raise NoAnswer("%s printed something unexpected: %s" % (command[0], error)) from error


def active_jobs(*options):
    mark = "|%s|" % uuid.uuid4().hex
    return parsed(
        _slurm.jobs_command(mark) + ["--me"] + list(options),
        lambda text: _slurm.parse_jobs(text, mark),
    )


def jobs_of_all() -> list:
    """Return the waiting and running jobs that Slurm shows the person: all of them to an
    operator.
    """
    mark = "|%s|" % uuid.uuid4().hex
    return parsed(_slurm.jobs_command(mark), lambda text: _slurm.parse_jobs(text, mark))


def ended_jobs(since, number=None):
    """Return the jobs of the person in the accounting, also those that still run."""
    mark = "|%s|" % uuid.uuid4().hex
    start = (datetime.datetime.now(datetime.timezone.utc) - since).strftime("%Y-%m-%dT%H:%M:%S")
    command = [word for word in _slurm.finished_command(mark, start) if word != "--allusers"] + (
        ["--jobs=" + number] if number else []
    )
    return parsed(command, lambda text: _slurm.parse_finished(text, mark))


def month_jobs(begin, end, account="", person=""):
    """Return the jobs of a time that the person may see, with what was measured of them: the own
    ones, and all of them for an operator.
    """
    mark = "|%s|" % uuid.uuid4().hex
    command = _slurm.finished_command(mark, begin, end, with_admin_comment=True)
    command += ["--accounts=" + account] if account else []
    if person:
        command = [word for word in command if word != "--allusers"] + ["--user=" + person]
    return parsed(command, lambda text: _slurm.parse_finished(text, mark, True))


def nodes_now():
    return parsed(_slurm.NODES, _slurm.parse_nodes)


def accounts_now(person):
    return _job_limits.accounts_of(parsed(_slurm.ASSOCIATIONS, _slurm.parse_associations), person)


def usage_now(person):
    return parsed(_slurm.usage_command(person), _slurm.parse_usage)


def number_of(text):
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise Refused("'%.40s' is not the number of a job; `trainyard list` shows yours" % text)
    return text


def numbers_of(texts: list) -> list:
    """Return the numbers of jobs, each once. They may be one text with commas between them."""
    words = ",".join(texts).split(",")
    return list(dict.fromkeys(number_of(word) for word in words))


def find(number):
    """Return a job as a dict with the keys of list. Refused if it is not one of the person."""
    for dummy in range(ACCOUNTING_SECONDS):
        for job in active_jobs():
            if str(job["id"]) == number:
                return of_active(job)
        for job in reversed(ended_jobs(ALL, number)):
            if str(job["raw_id"]) == number:
                return of_ended(job)
        # The controller knows of a job that has just ended before the accounting does.
        if number not in [str(job["id"]) for job in active_jobs("--states=all")]:
            break
        time.sleep(1)
    raise Refused("you have no job %s; `trainyard list --all` shows yours" % number)


def find_of_all(number: str) -> dict:
    """Return a job that Slurm shows the person, the own ones and to an operator those of all
    people, as a dict with the keys of list, its C(person) and its C(admin_comment). Refused without
    one.
    """
    for job in jobs_of_all():
        if str(job["id"]) == number:
            return dict(of_active(job), person=job["user"], admin_comment="")
    mark = "|%s|" % uuid.uuid4().hex
    start = (datetime.datetime.now(datetime.timezone.utc) - ALL).strftime("%Y-%m-%dT%H:%M:%S")
    command = _slurm.finished_command(mark, start, with_admin_comment=True)
    command.append("--jobs=" + number)
    for job in reversed(parsed(command, lambda text: _slurm.parse_finished(text, mark, True))):
        if str(job["raw_id"]) == number:
            return dict(of_ended(job), person=job["user"], admin_comment=job["admin_comment"])
    raise Refused("Slurm shows you no job %s" % number)


def of_active(job):
    return {
        "id": str(job["id"]),
        "name": job["name"],
        "state": job["state"],
        "account": job["account"],
        "priority": job["qos"],
        "workers": job["node_count"],
        "gpus": job["gpus"],
        "hosts": job["nodes"],
        "reason": job["reason"],
        "submitted": job["submit_time"],
        "started": job["start_time"],
        "ended": None if job["state"] in ACTIVE else job["end_time"],
        "start_estimate": job["start_estimate"],
        "exit_code": None,
        "limit_minutes": job["limit_minutes"],
        "restarts": job["restarts"],
    }


def of_ended(job):
    # A task of an array has a number of its own, by which squeue and scancel know it. sacct also
    # calls it 12_1.
    return {
        "id": str(job["raw_id"]),
        "name": job["name"],
        "state": job["state"],
        "account": job["account"],
        # slurmdbd reports 'Unknown' for a QOS that it does not know yet.
        "priority": "" if job["qos"] == "Unknown" else job["qos"],
        "workers": len(job["nodes"]),
        "gpus": job["gpus"],
        "hosts": job["nodes"],
        "reason": job["reason"],
        "submitted": job["submit_time"],
        "started": job["start_time"],
        "ended": job["end_time"],
        "start_estimate": None,
        "exit_code": job["exit_code"] or (128 + job["signal"] if job["signal"] else 0),
        "limit_minutes": None,
        "restarts": 0,
    }


def word(state):
    return STATES.get(state, state.replace("_", " "))
