# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the sbatch script of a job. Data in, text out. The script is plain sbatch: it works without the command trainyard."""

from __future__ import annotations

import shlex

import _job_file

#: On training hosts: what the script runs.
PROGRAM = "/usr/local/lib/trainyard/jobs/job"
#: In Slurm's comment of each job. The command shows jobs without it, too.
MARK = "trainyard"
#: What only sbatch reads. The rest of the file is in the script.
OF_SBATCH = (
    "priority",
    "preemptible",
    "interactive",
    "max_minutes",
    "workspace_id",
    "host_class",
    "retries",
)


def options(job, place):
    """Return the options of sbatch, in the order in which the script has them.

    :param job: from P(_job_file.read_job_file).
    :param place: C(output), the path of the log with C(%j) for the job's number, C(workdir), the folder in which the workers start, C(mail), whether
        Slurm sends e-mail, and C(mark), Slurm's comment if it is not the one of jobs.
    """
    # Slurm charges the content of /dev/shm to the memory of the job.
    memory = job["worker_memory"] + (job["worker_shared_memory"] or 0)
    found = [
        "--job-name=" + job["name"],
        "--comment=" + place.get("mark", MARK),
        "--nodes=%d" % job["worker_count"],
        "--ntasks-per-node=1",
        "--cpus-per-task=%d" % job["worker_cpu"],
        "--mem=%dM" % memory,
    ]
    found += ["--gpus-per-node=%d" % job["worker_gpu"]] if job["worker_gpu"] else []
    found += ["--account=" + job["workspace_id"]] if job["workspace_id"] else []
    found += ["--qos=" + job["priority"]] if job["priority"] else []
    found += ["--nice=%d" % job["nice"]] if job["nice"] else []
    found += ["--constraint=" + job["host_class"]] if job["host_class"] else []
    found += ["--time=%d" % job["max_minutes"]] if job["max_minutes"] else []
    if job["interactive"]:
        return found + ["--chdir=" + place["workdir"]]
    # The helper of the hub has limits of memory and CPU time, which are not those of its jobs.
    found.append("--propagate=NONE")
    # A job that is preempted goes on in the same log.
    found += [
        "--requeue" if job["preemptible"] else "--no-requeue",
        "--open-mode=append",
        "--chdir=" + place["workdir"],
        "--output=" + place["output"],
    ]
    return found + (["--mail-type=END,FAIL,REQUEUE"] if place.get("mail") else [])


def heredoc_mark(text):
    """Return a line that ends a here-document and is not in the text."""
    mark, number = "END_OF_JOB", 0
    while mark in text.split("\n"):
        number += 1
        mark = "END_OF_JOB_%d" % number
    return mark


def quoted(option):
    """Return an option for an #SBATCH line. sbatch reads quotes and # in these lines as a shell does."""
    return shlex.quote(option)


def script(job, values, place):
    """Return the script. C(values) are those of the job file, which the job keeps as spec.yml; C(place) as in P(options)."""
    kept = {str(key): value for key, value in values.items()}
    # With what was chosen for the person.
    kept.update(worker_image=job["worker_image"])
    text = _job_file.to_yaml(kept)
    mark = heredoc_mark(text)
    return "\n".join(
        ["#!/bin/bash"]
        + ["#SBATCH " + quoted(option) for option in options(job, place)]
        + [
            "",
            "# Starts the workers by srun, each in its container, and writes result.json into the folder of the job.",
            "exec %s run <<'%s'" % (PROGRAM, mark),
            text.rstrip("\n"),
            mark,
            "",
        ]
    )


def interactive_command(job, place, path=""):
    """Return the command of an interactive job: its only worker has the terminal of the person. C(path) is a file with the job's command, if there is one."""
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
