# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subcommands of trainyard that submit a job: submit and clone."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import io
import os
import re
import shlex
import sys

import _batch
import _job_file
import _job_limits
import _job_text
import _slurm
from _messages import Refused
from _output import NO_ANSWER, local, moment_of, out
from _quantity import quantity
from _site import Site
from _slurm_client import (
    NoAnswer,
    accounts_now,
    ask,
    minimal,
    nodes_now,
    number_of,
    parsed,
    start_of,
    usage_now,
)

#: A job in a script of P(_batch.script).
SEALED = re.compile(r"<<'(END_OF_JOB\w*)'\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
#: Seconds from now on in which an expected start is "now": Slurm rounds its times.
NOW_SECONDS = 60


def read_file(path):
    try:
        if path == "-":
            return read_input()
        with open(path, encoding="utf-8-sig") as stream:
            return stream.read(_job_text.MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise Refused(
            "%s: the file is no text in UTF-8" % ("standard input" if path == "-" else path)
        ) from None
    except OSError as error:
        raise Refused("%s: %s" % (path, error.strerror)) from error


def read_input():
    # Not by the locale of the person, which may take any byte for a character. The hub's program
    # gives a text.
    if not hasattr(sys.stdin, "buffer"):
        return sys.stdin.read(_job_text.MAX_BYTES + 1)
    stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    try:
        return stream.read(_job_text.MAX_BYTES + 1)
    finally:
        stream.detach()


def submit(options):
    site = Site()
    return submit_text(options, site, read_file(options.file), options.file)


def submit_text(options, site, text, origin):
    """Submit a job file, and print its number."""
    try:
        values = _job_text.read_job_text(text, _job_file.KEYS)
    except _job_text.TextError as error:
        raise Refused("%s: %s" % (origin, error)) from error
    return submit_values(options, site, values, origin)


def judged(options, site, values: dict, origin: str) -> tuple:
    """Return the values with the changes of the command line, and their job."""
    try:
        values = _job_file.changed(values, options.set)
        job = _job_file.judge(
            values, site.config.get("priorities") or [], site.config.get("default_image") or ""
        )
    except _job_file.JobFileError as error:
        raise Refused(
            "\n".join("%s: %s" % (origin, problem) for problem in error.problems)
        ) from error
    return values, job


def submit_values(options, site, values, origin, then=None):
    """Submit the job that the values of a job file describe, and print its number.

    C(then) is called with the number instead.
    """
    if not options.dry_run:
        site.check_folder()
    values, job = judged(options, site, values, origin)
    place = site.place(job)
    state = state_of(site)
    problems = site_problems(site, job, state)
    if problems:
        raise Refused(
            "\n".join("%s: %s" % (origin, with_line(values, problem)) for problem in problems)
        )
    for warning in warnings_of(job):
        print("trainyard: " + warning, file=sys.stderr)
    if job["interactive"]:
        return start_interactive(options, site, job, place)
    # With what was chosen for the person.
    kept = dict(values, worker_image=job["worker_image"], **chosen_folder(job, place))
    script = _batch.script(job, _job_file.to_yaml(kept), place)
    of_quota = (job, state["usage"], _job_limits.accounts_of(state["usage"], site.person))
    estimate = {"cost": _job_limits.cost(*of_quota), "start_estimate": None}
    if not then and not _job_limits.exceeds_quota(*of_quota):
        estimate["start_estimate"] = start_of(script, minimal(os.environ))
    if options.dry_run:
        if not options.json:
            print("trainyard: " + expected(estimate), file=sys.stderr)
        return out(
            options, dict(estimate, script=script), lambda value: sys.stdout.write(value["script"])
        )
    number = hand_over(site, job, script, values, origin)
    if then:
        return then(site, number)
    estimate.update(id=number, name=job["name"], log=site.log_of(number))

    def lines(_told):
        print("job %s submitted. Follow it with: trainyard logs -f %s" % (number, number))
        print(expected(estimate))

    return out(options, estimate, lines)


def hand_over(site, job: dict, script: str, values: dict, origin: str) -> str:
    """Give a job to Slurm, and return its number."""
    try:
        return ask(["sbatch", "--parsable"], script, minimal(os.environ)).strip().partition(";")[0]
    except Refused as error:
        problems = qos_problems(site, job, str(error)) or full_problems(site, job, str(error))
        if not problems:
            raise
        raise Refused(
            "\n".join("%s: %s" % (origin, with_line(values, problem)) for problem in problems)
        ) from error


def expected(estimate: dict) -> str:
    """Return what a job costs and when it is expected to start, in words."""
    start = estimate["start_estimate"]
    if not start:
        return estimate["cost"] + "; Slurm does not say when it starts"
    wait = moment_of(start) - datetime.datetime.now(datetime.timezone.utc)
    when = "now" if wait.total_seconds() < NOW_SECONDS else "at " + local(start)
    return "%s; it is expected to start %s" % (estimate["cost"], when)


def with_line(values, problem):
    """Return a problem, which begins with its key, with the line of the key in the file."""
    key = problem.partition(":")[0]
    line = next((getattr(each, "line", 0) for each in values if each == key), 0)
    return "line %d: %s" % (line, problem) if line else problem


def chosen_folder(job, place):
    """Return the folder in which the job starts as a value of its file, if the file has none, so
    that a clone starts there, too.
    """
    return (
        {"workdir": place["workdir"]}
        if not job["workdir"] and _job_file.is_folder(place["workdir"])
        else {}
    )


def state_of(site) -> dict:
    """Return what the controller says of the cluster: C(partitions), C(usage) and C(hosts)."""
    # Side by side: each of them waits for the controller. The database, which knows the QOS of
    # accounts, too, takes ten times as long.
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        partitions = pool.submit(parsed, _slurm.PARTITIONS, _slurm.parse_partitions)
        usage, hosts = pool.submit(usage_now, site.person), pool.submit(nodes_now)
    return {
        "partitions": partitions.result(),
        "usage": usage.result(),
        "hosts": hosts.result(),
    }


def site_problems(site, job, state=None):
    """Return why the cluster can never run the job.

    C(state) is of P(state_of), which is asked otherwise.
    """
    state = state or state_of(site)
    hosts, partitions = state["hosts"], state["partitions"]
    approved = []
    # A damaged catalogue does not keep jobs from running.
    with contextlib.suppress(Refused):
        approved = site.approved()
    return (
        _job_limits.account_problems(
            job, _job_limits.accounts_of(state["usage"], site.person), site.person
        )
        + _job_limits.host_problems(job, hosts, partitions)
        + _job_limits.image_problems(job, site.catalogue(), site.config.get("registries") or [])
        + folder_problems(job, site)
        + _job_limits.platform_problems(job, approved, hosts, partitions)
        + (
            ["copy_results: this cluster has no rclone (jobs_rclone); remove the key"]
            if job["copy_results"] and not site.config.get("rclone")
            else []
        )
        + (
            ["mail: this cluster sends no mails (jobs_mail); remove the key"]
            if job["mail"] and not site.config.get("mail")
            else []
        )
    )


def qos_problems(site, job, message):
    """Return in words why sbatch has refused a QOS.

    Only the database knows which ones an account has, so it is asked afterwards.
    """
    if not job["priority"] or "qos" not in message.lower():
        return []
    return _job_limits.account_problems(job, accounts_now(site.person), site.person)


def full_problems(site: Site, job: dict, message: str) -> list:
    """Return in words that the person has too many jobs, if sbatch has refused one for its policy.

    A job without an account was not judged before.
    """
    if "policy" not in message.lower() and "Assoc" not in message:
        return []
    problems = []
    for entry in _job_limits.accounts_of(usage_now(site.person), site.person):
        if job["workspace_id"] in ("", entry["account"]):
            problems += _job_limits.full_problems(entry)
    return problems


def folder_problems(job, site):
    found = []
    folder = job["services"]["tensorboard"]
    path = site.in_home(folder)
    # The job may be the one that makes it.
    if (
        folder
        and os.path.lexists(path)
        and not (os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK))
    ):
        found.append("services: tensorboard: '%s' is not a folder that you can read" % folder)
    folder = job["workdir"]
    path = site.in_home(folder)
    if folder and not site.is_shared(path):
        found.append(
            "workdir: '%s' is not in a container of a job; use a folder below %s or %s"
            % (folder, site.home, site.config["share"])
        )
    elif folder and not (os.path.isdir(path) and os.access(path, os.X_OK)):
        found.append(
            "workdir: '%s' is not a folder that you can enter; create it, or use another one"
            % folder
        )
    return found


def warnings_of(job):
    found = []
    if re.search(r"\bsleep\s+(?:infinity|inf)\b", job["command"]):
        end = (
            "after %s" % quantity(job["max_minutes"], "minute")
            if job["max_minutes"]
            else "at the time limit of the queue"
        )
        found.append(
            (
                "the command sleeps for ever, so the job keeps its CPUs and GPUs until you stop "
                "it, or until it ends %s"
            )
            % end
        )
    return found


def start_interactive(options, site, job, place):
    if options.dry_run:
        return out(
            options,
            {"script": shlex.join(_batch.interactive_command(job, place))},
            lambda value: print(value["script"]),
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(
            "interactive: the job needs your terminal, and there is none here; with ssh, use ssh -t"
        )
    sys.stdout.flush()
    command = _batch.interactive_command(job, place, site.keep_command(job["command"]))
    os.chdir(place["workdir"])
    os.execvpe(command[0], command, minimal(os.environ))
    return NO_ANSWER


def file_of(site: Site, number: str) -> str:
    """Return the job file of a job.

    One that has not started has it in its script, which the controller keeps.
    """
    try:
        return site.values_of(number)
    except Refused as error:
        try:
            script = ask(["scontrol", "write", "batch_script", number, "-"])
            found = SEALED.search(script)
            return _job_text.opened(found.group(2) if found else "")[1]
        except (Refused, NoAnswer, _job_text.SealError):
            raise error from None


def clone(options):
    site, number = Site(), number_of(options.id)
    return submit_text(options, site, file_of(site, number), "job %s" % number)
