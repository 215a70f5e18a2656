# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What trainyard says without a subcommand, and what the shell completes."""

from __future__ import annotations

import concurrent.futures
import importlib
import os
import pwd

import _job_file
import _job_limits
from _commands import away_lines, show_jobs
from _messages import Refused
from _output import GOOD, amount, out, printable
from _quantity import quantity
from _site import Site
from _slurm_client import (
    NoAnswer,
    RECENT,
    WAITING,
    active_jobs,
    ended_jobs,
    nodes_now,
    of_active,
    usage_now,
)

#: Jobs of the person that the overview shows.
SHOWN = 10
#: What a shell completes itself, as this is the first line of the answer.
FILES, FOLDERS = "-files", "-folders"
#: Subcommands with numbers of jobs: whether only those of active jobs make sense.
WITH_JOBS = {
    "show": False,
    "logs": False,
    "why": False,
    "clone": False,
    "stop": True,
    "attach": True,
}


def overview(options):
    """Say what the person has, what is free, and what to type next."""
    person = pwd.getpwuid(os.getuid()).pw_name
    # Side by side: each of them waits for the controller.
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        jobs = pool.submit(active_jobs)
        hosts, usage = pool.submit(nodes_now), pool.submit(usage_now, person)
    mine = [of_active(job) for job in jobs.result()]
    found = {
        "jobs": sorted(mine, key=lambda job: int(job["id"])),
        "classes": _job_limits.free_classes(hosts.result()),
        "out_of_service": away_lines(hosts.result()),
        "accounts": quota_of(usage.result(), person),
    }
    return out(options, found, _show_overview)


def quota_of(usage: list, person: str) -> list:
    """Return the GPUs of each account of a person: limits, and what is in use."""
    found = []
    for entry in _job_limits.accounts_of(usage, person):
        mine = {key: entry[key] for key in ("account", "gpus", "person_gpus")}
        for used in usage:
            if used["account"] == entry["account"] and used["user"] in ("", person):
                key = "person_gpus_used" if used["user"] else "gpus_used"
                mine[key] = used["gpus"]["used"]
        found.append(mine)
    return found


def _show_overview(found: dict) -> None:
    jobs = found["jobs"]
    waiting = sum(job["state"] in WAITING for job in jobs)
    print("you have %d running and %d waiting jobs" % (len(jobs) - waiting, waiting))
    if jobs:
        show_jobs(jobs[-SHOWN:])
    for entry in found["classes"]:
        gpus, verb = quantity(entry["gpus"], "GPU"), "is" if entry["gpus"] == 1 else "are"
        print("%d of %s %s free (%s)" % (entry["free"], gpus, verb, printable(entry["name"])))
    for line in found["out_of_service"]:
        print(printable(line))
    for entry in found["accounts"]:
        print(
            "group %s uses %s of %s GPU%s, you use %s"
            % (
                printable(entry["account"]),
                entry.get("gpus_used", 0),
                amount(entry["gpus"]),
                "" if entry["gpus"] == 1 else "s",
                entry.get("person_gpus_used", 0),
            )
        )
    print("next: trainyard submit job.yml, trainyard list, trainyard --help")


# --- completion ---------------------------------------------------------------------------------------------------------------


def typed(words: list) -> tuple:
    """Return the finished words of a command line, the one that is being typed, and how much of it
    the shell keeps.

    bash makes words of their own of = and :, and replaces only what follows the last of them.
    """
    done, current = [], ""
    glue = False
    for text in words:
        if text in ("=", ":") and (done or current):
            current += text
            glue = True
        elif glue:
            current += text
            glue = False
        else:
            if current:
                done.append(current)
            current = text
    kept = max(current.rfind("="), current.rfind(":")) + 1
    return done, current, kept


def complete(options):
    """Print what the last word of a command line can be, one in each line.

    Errors are none: a shell would show them in the middle of a line.
    """
    try:
        found = candidates(options.words[1:])
    except (Refused, NoAnswer, OSError):
        found = []
    print("\n".join(found))
    return GOOD


def candidates(words: list) -> list:
    """Return what the last word can be. C(words) are those after the name of the command."""
    known = importlib.import_module("_command_line")
    done, current, kept = typed(words)
    if not done:
        found = [*known.SUBCOMMANDS, "--help"]
    elif done[0] not in known.SUBCOMMANDS:
        found = []
    elif done[-1] == "--set":
        found = _of_set(current)
    elif done[-1] == "--state":
        found = ["running", "waiting", "failed", "done", "stopped"]
    elif current.startswith("-"):
        found = known.options_of(done[0])
    elif done[0] in ("submit", "explain"):
        return [FILES]
    elif done[0] == "tensorboard":
        return [FOLDERS]
    elif done[0] in WITH_JOBS:
        found = _numbers(WITH_JOBS[done[0]])
    else:
        found = []
    fit = sorted({word for word in found if word.startswith(current)}, key=found.index)
    return [word[kept:] for word in fit]


def _numbers(only_active: bool) -> list:
    """Return the numbers of the person's jobs, the newest first."""
    numbers = {str(job["id"]) for job in active_jobs()}
    if not only_active:
        numbers.update(str(job["raw_id"]) for job in ended_jobs(RECENT))
    return sorted(numbers, key=int, reverse=True)


def _of_set(current: str) -> list:
    """Return keys with their sign, and the values of a key with choices."""
    key = current.partition("=")[0]
    if "=" not in current:
        return [name + "=" for name in _job_file.KEYS]
    if key == "worker_image":
        site = Site()
        return ["%s=%s" % (key, name) for name in image_names(site)]
    if key == "priority":
        return ["%s=%s" % (key, entry["name"]) for entry in Site().config.get("priorities") or []]
    choices = []
    for entry in _job_file.TABLE:
        if entry.name == key:
            choices = entry.accepts.choices or ["true", "false"] * (entry.default == "false")
    return ["%s=%s" % (key, choice) for choice in choices]


def image_names(site: Site) -> list:
    """Return the names of the images of hosts and of the site's registry."""
    return list(site.catalogue()) + [
        entry["name"] for entry in site.approved() if entry["name"] not in site.catalogue()
    ]
