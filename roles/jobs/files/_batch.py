# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the sbatch script of a job.

Data in, text out. The script is plain sbatch: it works without the command trainyard.
"""

from __future__ import annotations

import shlex

import _job_file
import _job_text

#: On training hosts: what the script runs.
PROGRAM = "/usr/local/lib/trainyard/jobs/job"
#: In Slurm's comment of each job. The command shows jobs without it, too.
MARK = "trainyard"


def options(job: dict, place: dict) -> list:
    """Return the options of sbatch, in the order in which the script has them.

    :param job: from P(_job_file.judge).
    :param place: C(output), the path of the log with C(%j) for the job's number, C(workdir), the folder in which the workers start, C(mail), whether
        Slurm sends e-mail, C(mail_default), when it does for jobs without the key C(mail), and C(mark), Slurm's comment if it is not the one of jobs.
    """
    # Slurm charges the content of /dev/shm to the memory of the job.
    memory = job["worker_memory"] + (job["worker_shared_memory"] or 0)
    found = []
    for key in _job_file.TABLE:
        if key.sbatch and job[key.name]:
            found.append(key.sbatch % job[key.name] if "%" in key.sbatch else key.sbatch)
    found += ["--mem=%dM" % memory, "--ntasks-per-node=1", "--comment=" + place.get("mark", MARK)]
    if job["nice"]:
        found.append("--nice=%d" % job["nice"])
    found.append("--chdir=" + place["workdir"])
    if job["interactive"]:
        return found
    if "--requeue" not in found:
        found.append("--no-requeue")
    # The helper of the hub has limits of memory and CPU time, which are not those of its jobs. A
    # job that is preempted goes on in the same log.
    found += ["--propagate=NONE", "--open-mode=append", "--output=" + place["output"]]
    events = mail_events(job, place)
    if events:
        types = [_job_file.MAIL_TYPES[event] for event in events]
        found.append("--mail-type=" + ",".join(types))
    # Two keys may have the same option.
    return list(dict.fromkeys(found))


def mail_events(job: dict, place: dict) -> list:
    """Return when Slurm sends mails about a job: as the job says, else its person, else as
    usual.
    """
    if not place.get("mail"):
        return []
    for chosen in (job["mail"], place.get("mail_default")):
        if chosen is not None:
            return list(chosen)
    return _job_file.USUAL_MAIL


def heredoc_mark(text):
    """Return a line that ends a here-document and is not in the text."""
    mark, number = "END_OF_JOB", 0
    while mark in text.split("\n"):
        number += 1
        mark = "END_OF_JOB_%d" % number
    return mark


def quoted(option):
    """Return an option for an #SBATCH line. sbatch reads quotes and # in these lines as a shell
    does.
    """
    return shlex.quote(option)


def script(job: dict, spec: str, place: dict) -> str:
    """Return the script.

    C(spec) is the job file, which the job keeps as spec.yml; C(place) as in P(options).
    """
    text = _job_text.sealed(job, spec)
    mark = heredoc_mark(text)
    return "\n".join(
        ["#!/bin/bash"]
        + ["#SBATCH " + quoted(option) for option in options(job, place)]
        + [
            "",
            (
                "# Starts the workers by srun, each in its container, and writes result.json into "
                "the folder of the job."
            ),
            (
                "# trainyard submit has judged the text below. It cannot be edited here: change "
                "the job file, and submit that."
            ),
            "exec %s run <<'%s'" % (PROGRAM, mark),
            text.rstrip("\n"),
            mark,
            "",
        ]
    )


def interactive_command(job, place, path=""):
    """Return the command of an interactive job: its only worker has the terminal of the person.

    C(path) is a file with the job's command, if there is one.
    """
    shared = ["--shm-size=%dm" % job["worker_shared_memory"]] if job["worker_shared_memory"] else []
    # As of a batch job: bash, if the image has it.
    shell = [
        "sh",
        "-c",
        'exec $(command -v bash || echo sh) %s"$1"' % ("" if path else "-c "),
        "sh",
    ]
    return (
        ["srun"]
        + options(job, place)
        + ["--pty", "trainyard-run"]
        + shared
        + [job["worker_image"], "--"]
        + shell
        + [path or job["command"]]
    )
