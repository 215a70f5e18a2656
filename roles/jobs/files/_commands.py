# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subcommands of trainyard for jobs that exist, and for the cluster."""

from __future__ import annotations

import datetime
import fnmatch
import importlib
import json
import os
import pwd
import re
import shlex
import socket
import sys
import time

import _files
import _job_limits
import _slurm
from _messages import Refused
from _output import (
    FAILED,
    GOOD,
    NO_ANSWER,
    amount,
    gigabytes,
    lasted,
    local,
    out,
    painted,
    printable,
    table,
)
from _quantity import quantity
from _site import Site
from _slurm_client import (
    ACTIVE,
    ALL,
    GIB,
    NoAnswer,
    RECENT,
    WAITING,
    accounts_now,
    active_jobs,
    ask,
    ended_jobs,
    find,
    minimal,
    month_jobs,
    nodes_now,
    number_of,
    numbers_of,
    of_active,
    of_ended,
    parsed,
    sentence,
    usage_now,
    word,
)
from _submit import submit_values

#: Where messages that the table lacks can be reported.
REPORTS = "https://github.com/trainyard/gpu/issues"
#: Socket of the link service (role jupyterhub). The kernel reports the caller's uid.
LOGIN_SOCKET = "/run/trainyard-hub/login.sock"
#: Of role monitoring on the scheduler's host: what each account has used in this month.
ACCOUNT_USAGE = (
    os.environ.get("TRAINYARD_ACCOUNT_USAGE") or "/var/lib/trainyard/usage/accounts.json"
)
#: Seconds between two looks at a log.
LOOK = 0.5
#: On training hosts: what lets ssh into a job.
DOOR = "/usr/local/lib/trainyard/jobs/door"
#: Ports on the person's own computer, for the addresses that `show` prints.
PORTS = {"jupyter": 8888, "tensorboard": 6006}
#: In the folder of a job that makes no progress: where its ranks wait. P(_job_hang) writes it.
HANG_FILE, MOST_HANG = "hang.txt", 64 << 20
#: Seconds for which `why` waits for the workers of a job.
ANSWER_SECONDS = 45
#: States that `list` can choose.
STATES_OF_JOBS = (
    *ACTIVE,
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "out_of_memory",
    "node_fail",
    "boot_fail",
    "deadline",
    "revoked",
)
#: Seconds for which `tensorboard` waits for its job.
READY_SECONDS = 120


def all_jobs(since: datetime.timedelta) -> list:
    """Return the jobs of the person that were waiting, running or ended in this time, the oldest
    first.
    """
    # The controller first, so that a job which ends in between is in one of the answers. sacct does
    # not list a job of the last second or two.
    known = [of_active(job) for job in active_jobs("--states=all")]
    jobs = {job["id"]: job for job in map(of_ended, ended_jobs(since))}
    jobs.update(
        {
            job["id"]: job
            for job in known
            if job["state"] in ACTIVE or job["id"] not in jobs or jobs[job["id"]]["state"] in ACTIVE
        }
    )
    return sorted(jobs.values(), key=lambda job: (job["submitted"] or "", job["id"]))


def since_of(text: str) -> datetime.timedelta:
    """Return the time of --since: minutes, hours, days or weeks, or the time since a date."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text)
    if match:
        unit = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[match.group(2)]
        return datetime.timedelta(**{unit: int(match.group(1))})
    try:
        moment = datetime.datetime.fromisoformat(text).astimezone()
    # In some zones the first day of all has no time in UTC.
    except (ValueError, OverflowError):
        raise Refused(
            (
                "--since: '%.40s' is not a time; use 30m, 12h, 7d or 2w, or a date such as "
                "2026-01-31 or 2026-01-31T18:00"
            )
            % text
        ) from None
    return max(datetime.timedelta(0), datetime.datetime.now(datetime.timezone.utc) - moment)


def states_of(text: str) -> set:
    """Return the states of --state, in Slurm's words."""
    found = set()
    known = {word(state) for state in STATES_OF_JOBS}
    for part in text.lower().split(","):
        same = {state for state in STATES_OF_JOBS if part.strip() in (state, word(state))}
        if not same:
            raise Refused(
                "--state: '%.40s' is not a state of jobs; use %s%s"
                % (part, ", ".join(sorted(known)), _job_limits.near(part, known))
            )
        found |= same
    return found


def chosen_jobs(options) -> list:
    """Return the jobs that the options of `list` choose."""
    since = ALL if options.all else RECENT
    if options.since:
        since = since_of(options.since)
    states = states_of(options.state) if options.state else None
    pattern = (options.name or "").lower()
    if not re.search(r"[*?\[]", pattern):
        pattern = "*%s*" % pattern
    found = []
    for job in all_jobs(since):
        if states is not None and job["state"] not in states:
            continue
        if fnmatch.fnmatchcase(job["name"].lower(), pattern):
            found.append(job)
    return found


def none_words(options) -> str:
    """Return that there are no jobs, and how to see more."""
    chosen = [name for name in ("state", "name") if getattr(options, name)]
    words = "no jobs"
    if chosen:
        words += " with this " + " and this ".join(chosen)
    if options.all:
        return words
    words += " since %s" % options.since if options.since else " in the last day"
    return words + "; `trainyard list --all` shows older ones"


def show_jobs(found: list) -> None:
    """Print a table of jobs."""
    today = datetime.datetime.now().date()
    rows = []
    for job in found:
        where = ",".join(job["hosts"]) or job["reason"] or "-"
        if job["state"] in WAITING and not job["hosts"]:
            # Without numbers, which `why` asks for.
            where = _job_limits.why(job, [], []).partition(";")[0]
        rows.append(
            (
                job["id"],
                job["name"],
                word(job["state"]),
                job["account"],
                job["workers"],
                job["gpus"],
                local(job["submitted"], today),
                lasted(job),
                where,
            )
        )
    heads = ("JOB", "NAME", "STATE", "ACCOUNT", "WORKERS", "GPUS", "SUBMITTED", "RUNS", "HOSTS")
    table(heads, rows)


def list_jobs(options):
    def show(found):
        if found:
            show_jobs(found)
        else:
            print(none_words(options))

    if options.watch is None:
        return out(options, chosen_jobs(options), show)
    if options.json or not sys.stdout.isatty():
        raise Refused("--watch: this needs a terminal, and no --json; leave out --watch")
    if options.watch < 1:
        raise Refused("--watch: %d is no time; use seconds from 1 on" % options.watch)
    while True:
        found = chosen_jobs(options)
        # The top left corner, and what was there before.
        print("\x1b[H\x1b[2Jevery %d s, Ctrl-C ends\n" % options.watch)
        show(found)
        sys.stdout.flush()
        time.sleep(options.watch)


def start_words(job: dict) -> str:
    """Return when a job that waits is expected to start, as the end of a sentence.

    Empty if Slurm does not say so.
    """
    start = job["start_estimate"]
    return "; expected start %s" % local(start) if start else ""


def reason_words(job):
    """Return why a job waits, its place in the queue, and when it is expected to start."""
    person, nodes = pwd.getpwuid(os.getuid()).pw_name, nodes_now()
    words = _job_limits.why(job, usage_now(person), nodes)
    place = place_of(job)
    if place:
        words += "; place %d of %d in the queue" % (place["place"], place["queued"])
        if job["reason"] == "Priority" and place["first_reason"] not in ("Priority", ""):
            first = {"reason": place["first_reason"], "account": "of that job"}
            words += ", whose first job waits: " + _job_limits.why(first, [], nodes)
    return words + start_words(job)


def place_of(job: dict) -> dict | None:
    """Return the place of a waiting job in the queue. None if that is not known on this host."""
    queue = Site().queue()
    return _job_limits.place(queue, job["id"]) if queue else None


def state_words(site, job, result):
    """Return why a job waits, or why one that has ended left no result, as far as that is known."""
    if job["state"] in WAITING:
        return reason_words(job)
    if job["state"] == "running":
        return hang_words(site, job)
    if job["state"] in ACTIVE or not job["started"] or result:
        return ""
    problem = site.write_problem()
    return "it has left no result: " + problem if problem else ""


def show_job(found: dict) -> None:
    """Print what show has found of a job."""
    why = ": " + found["why"] if found["why"] else ""
    state = painted(word(found["state"]))
    print("job %s  %s  %s%s" % (found["id"], printable(found["name"]), state, why))
    for name, value in job_rows(found):
        print("%-12s%s" % (name, printable(value)))
    show_usage(found["usage"])
    for endpoint in found["endpoints"]:
        print("%-12s%s" % (endpoint["service"], printable(endpoint_words(endpoint))))
    if found["result"]:
        show_result(found["result"])


def job_rows(found: dict) -> list:
    """Return the rows of show, name and value of each."""
    rows = [
        ("account", found["account"]),
        ("priority", found["priority"]),
        ("workers", found["workers"]),
        ("GPUs", found["gpus"]),
        ("hosts", ", ".join(found["hosts"]) or "-"),
        ("submitted", local(found["submitted"])),
        ("started", local(found["started"])),
        ("runs", lasted(found)),
        ("log", found["log"]),
        ("folder", found["folder"] or "-"),
    ]
    if found["exit_code"] is not None:
        rows.append(("exit code", found["exit_code"]))
    return rows + list((found["efficiency"] or {}).items())


def show_result(result: dict) -> None:
    """Print the problems of a result, and lines and causes of the rank that failed first."""
    warnings = ["warning: " + warning for warning in result["warnings"]]
    for line in result["problems"] + warnings + copied_words(result):
        print(printable(line))
    failed = result.get("first_failed") or {}
    for line in failed.get("lines") or []:
        print("  | " + printable(line))
    for cause in failed.get("causes") or []:
        print(printable("cause: %s. %s" % (cause["cause"], sentence(cause["fix"]))))
    others = [
        "worker %s (exit code %s)" % (each["rank"], each["exit_code"])
        for each in failed.get("consequences") or []
    ]
    if others:
        print("ended because of it: " + printable(", ".join(others)))


def told_of(site: Site, number: str) -> dict:
    """Return what show tells of a job."""
    job = find(number)
    result = site.result_of(number) if job["state"] not in WAITING else None
    running = job["state"] == "running"
    return dict(
        job,
        folder=site.folder_of(number),
        log=site.log_of(number),
        result=result,
        why=state_words(site, job, result),
        efficiency=efficiency(number, of_gpus(site, number, job, result))
        if job["started"]
        else None,
        endpoints=endpoints(site, number) if running else [],
        usage=usage(site, number, job["hosts"]) if running else [],
    )


def several(options, found: list, show) -> int:
    """Print what was found of one job, or of each of several."""
    if len(found) == 1:
        return out(options, found[0], show)

    def each(entries):
        for at, entry in enumerate(entries):
            if at and show is show_job:
                print()
            show(entry)

    return out(options, found, each)


def show(options):
    site = Site()
    return several(options, [told_of(site, number) for number in numbers_of(options.id)], show_job)


def copied_words(result):
    """Return what became of the copy to the person's own storage."""
    copied = result.get("copied")
    if not copied:
        return []
    return (
        ["results copied to " + copied["to"]]
        if copied["ok"]
        else ["warning: the results were not copied to %s: %s" % (copied["to"], copied["said"])]
    )


def of_gpus(site, number, job, result):
    """Return how much of its GPUs a job that has ended has used, in words.

    Empty if nothing has measured it.
    """
    hosts = ((result or {}).get("gpus") or {}).values()
    requested = sum(host.get("requested") or 0 for host in hosts)
    if not requested or any(host.get("busy") is None for host in hosts):
        return ""
    hour = [
        gpu["hour_percent"]
        for gpu in usage(site, number, job["hosts"])
        if gpu["hour_percent"] is not None
    ]
    average = ", %d %% on average in the last hour" % (sum(hour) / len(hour)) if hour else ""
    return "%d of %d were busy%s" % (sum(host["busy"] for host in hosts), requested, average)


def ssh_words(site, number):
    """Return the words of ssh on the person's own computer, and the name of the job for it."""
    login = site.config.get("login") or "LOGIN"
    return [
        "ssh",
        "-o",
        "ProxyCommand=ssh %s@%s trainyard attach --stdio %s" % (site.person, login, number),
        "-o",
        "HostKeyAlias=jobs-of-" + site.person,
    ], "%s@job-%s" % (site.person, number)


def endpoints(site, number):
    """Return the services of a running job: how they are, and how the person's own computer reaches
    them.
    """
    services = (site.job_of(number) or {}).get("services") or {}
    words, name = ssh_words(site, number)
    found = (
        [
            {
                "service": "ssh",
                "state": "ready",
                "why": "",
                "command": shlex.join(words + [name]),
                "url": None,
            }
        ]
        if services.get("ssh")
        else []
    )
    for service, status in sorted((site.json_of(number, "services.json") or {}).items()):
        port, ready = PORTS[service], status["state"] == "ready"
        command = (
            shlex.join(words + ["-N", "-L", "%d:%s" % (port, status["socket"]), name])
            if ready
            else None
        )
        url = (
            "http://localhost:%d/%s"
            % (port, "?token=" + status["token"] if status["token"] else "")
            if ready
            else None
        )
        found.append(
            {
                "service": service,
                "state": status["state"],
                "why": status.get("why") or "",
                "command": command,
                "url": url,
            }
        )
    return found


def endpoint_words(endpoint):
    if endpoint["state"] != "ready":
        return endpoint["state"] + (": " + endpoint["why"] if endpoint["why"] else "")
    return endpoint["command"] + ("   then open " + endpoint["url"] if endpoint["url"] else "")


def shown_gpus(devices: list, count: int):
    """Return which of the GPUs that nvidia-smi shows are those of a job.

    Where Slurm limits the devices of a job, it shows only its own.
    """
    is_limited = not devices or max(devices) >= count or len(devices) >= count
    return range(count) if is_limited else devices


def hour_use(minutes: list, gpu: int) -> dict:
    """Return C(hour_percent) and C(hour_memory_mib) of a GPU, None where nothing was measured.

    C(minutes) are those of a watcher.
    """
    samples = [minute["gpus"][gpu] for minute in minutes if gpu < len(minute["gpus"])]
    count = sum(sample[1] for sample in samples)
    memory = [sample[2] for sample in samples if sample[2] is not None]
    return {
        "hour_percent": round(sum(sample[0] for sample in samples) / count) if count else None,
        "hour_memory_mib": max(memory, default=None),
    }


def usage(site, number, hosts):
    """Return the use of each GPU of a running job: now, and in the last hour."""
    found = []
    for rank, host in enumerate(hosts):
        reading = site.json_of(number, "watch.%d.json" % rank) or {}
        now, minutes = reading.get("now") or [], reading.get("minutes") or []
        devices = [int(device) for device in reading.get("devices") or [] if device.isdigit()]
        for gpu in shown_gpus(devices, len(now)):
            last_hour = hour_use(minutes, gpu)
            found.append(
                dict(
                    host=host,
                    worker=rank,
                    gpu=gpu,
                    percent=now[gpu][0],
                    memory_mib=now[gpu][1],
                    memory_total_mib=now[gpu][2],
                    **last_hour,
                )
            )
    return found


def minutes_of(site: Site, number: str, hosts: list) -> list:
    """Return the use of each GPU of a job by minute, as far as its watch has kept it: C(host),
    C(gpu), and C(minutes), pairs of minute and mean percent.
    """
    found = []
    for rank, host in enumerate(hosts):
        minutes = (site.json_of(number, "watch.%d.json" % rank) or {}).get("minutes") or []
        for gpu in range(max((len(minute["gpus"]) for minute in minutes), default=0)):
            samples = []
            for minute in minutes:
                total, count = (minute["gpus"][gpu] if gpu < len(minute["gpus"]) else (0, 0))[:2]
                samples.append((minute["minute"], round(total / count, 1) if count else None))
            found.append({"host": host, "gpu": gpu, "minutes": samples})
    return found


def worker_minutes_of(site: Site, number: str, hosts: list) -> list:
    """Return the CPUs and the memory of each worker of a job by minute, as far as its watch has
    kept them: C(name), and C(cpus) and C(memory_gb), pairs of minute and value.
    """
    found = []
    for rank, host in enumerate(hosts):
        loads = (site.json_of(number, "watch.%d.json" % rank) or {}).get("loads") or []
        cpus = [(each["minute"], each["cpus"]) for each in loads]
        memory = [(each["minute"], each["memory_gb"]) for each in loads]
        name = "worker %d on %s" % (rank, host)
        found.append({"name": name, "cpus": cpus, "memory_gb": memory})
    return found


def show_usage(found):
    def figure(value, unit):
        return "?" if value is None else "%d %s" % (value, unit)

    if found:
        table(
            ("HOST", "GPU", "NOW", "MEMORY", "LAST HOUR", "MEMORY AT MOST"),
            [
                (
                    gpu["host"],
                    gpu["gpu"],
                    figure(gpu["percent"], "%"),
                    "%s of %s"
                    % (figure(gpu["memory_mib"], "MiB"), figure(gpu["memory_total_mib"], "MiB")),
                    figure(gpu["hour_percent"], "%"),
                    figure(gpu["hour_memory_mib"], "MiB"),
                )
                for gpu in found
            ],
        )


def measured_use(text: str, number: str) -> dict:
    """Return what Slurm has measured of a job, from the lines of sacct.

    :return: C(cpu) seconds of all steps, C(seconds) that the job ran on C(cpus), the most C(memory) of a step in MB, the time C(limit) in minutes as text,
        and the summary of its GPUs, C(told), or None.
    """
    found = {"cpu": 0.0, "seconds": 0, "cpus": 0, "memory": 0.0, "limit": "", "told": None}
    for line in text.splitlines():
        fields = line.split("|", 7)
        if len(fields) != 8:
            continue
        if fields[0] == number:
            found["seconds"], found["cpus"] = int(fields[1] or 0), int(fields[2] or 0)
            found["limit"] = fields[6]
            found["told"] = usage_library().parse_summary(fields[7]) if fields[7] else None
        else:
            found["cpu"] += cpu_seconds(fields[3])
            memory = float(re.sub(r"[^0-9.]", "", fields[4]) or 0)
            found["memory"] = max(found["memory"], memory)
    return found


def shares_used(measured: dict) -> dict:
    """Return in words how much of its CPUs, memory and time a job has used.

    C(measured) is of P(measured_use).
    """
    found = {}
    cpu, seconds, cpus = measured["cpu"], measured["seconds"], measured["cpus"]
    if cpu and seconds and cpus:
        found["CPU used"] = "%.0f %% of %s" % (100 * cpu / (seconds * cpus), quantity(cpus, "CPU"))
    if measured["memory"]:
        found["memory used"] = "%.1f GB at most, by one worker" % (measured["memory"] / GIB)
    limit = measured["limit"]
    if seconds and limit.isdigit() and int(limit):
        share = 100 * seconds / (60 * int(limit))
        found["time used"] = "%.0f %% of %s" % (share, quantity(int(limit), "minute"))
    return found


def efficiency(number, gpus):
    """Return how much of its CPUs, memory and time a job has used, as far as Slurm has measured it,
    and of its GPUs, in words.
    """
    kept = {"GPUs used": gpus} if gpus else {}
    try:
        text = ask(
            [
                "sacct",
                "--noheader",
                "--parsable2",
                "--noconvert",
                "--units=M",
                "--jobs=" + number,
                # The last one is any text of an administrator.
                "--format=JobIDRaw,ElapsedRaw,AllocCPUS,TotalCPU,MaxRSS,ReqMem,TimelimitRaw,AdminComment",
            ]
        )
    except NoAnswer:
        # The controller has told the rest, without the database.
        return kept
    measured = measured_use(text, number)
    summary = measured["told"]
    if summary:
        # Of all the time, also for jobs of sbatch and srun.
        notes = usage_library().notes(summary)
        kept["GPU use"] = usage_library().words(summary)
        if notes:
            kept["note"] = "; ".join(notes)
    return dict(shares_used(measured), **kept)


def cpu_seconds(text):
    """Return the seconds of [days-][hours:]minutes:seconds[.fraction]."""
    days, _dash, rest = text.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part or 0)
    return total + int(days or 0) * 86400


def logs(options):
    site, number = Site(), number_of(options.id)
    path = site.log_of(number, options.rank)
    if options.follow and options.json:
        raise Refused("--json: a log that is followed has no end; leave out --follow, or --json")
    if options.tail is not None and options.tail < 0:
        raise Refused("--tail: %d is no number of lines; use 0 or more" % options.tail)
    if not options.follow:
        if not os.path.exists(path):
            job = find(number)
            raise Refused(
                "job %s has no log yet: it is %s" % (number, word(job["state"]))
                if job["state"] in ACTIVE
                else "%s does not exist%s"
                % (
                    path,
                    ""
                    if options.rank is None
                    else "; the workers of the job are 0 to %d" % (job["workers"] - 1),
                )
            )
        with _files.open_regular(path) as stream:
            skip_to_tail(stream, options.tail)
            if options.json:
                return out(
                    options,
                    {
                        "id": number,
                        "rank": options.rank,
                        "log": path,
                        "text": stream.read().decode("utf-8", "replace"),
                    },
                    None,
                )
            copy(stream)
        return GOOD
    return follow(number, path, options.tail)


def skip_to_tail(stream, lines: int | None) -> None:
    """Move to the last lines of a file, without reading what is before them."""
    if lines is None:
        return
    end = at = stream.seek(0, os.SEEK_END)
    kept = b""
    # One more: the last line has its end, too.
    while at > 0 and kept.count(b"\n") <= lines:
        size = min(1 << 16, at)
        at -= size
        stream.seek(at)
        kept = stream.read(size) + kept
    tail = kept.splitlines(True)[-lines:] if lines else []
    stream.seek(end - len(b"".join(tail)))


def copy(stream):
    size = 0
    for chunk in iter(lambda: stream.read(1 << 16), b""):
        sys.stdout.buffer.write(chunk)
        size += len(chunk)
    sys.stdout.buffer.flush()
    return size


def tell_waiting(number, message):
    """Say why a job waits, if that is not what was C(message) last.

    Return whether the job has ended, and what was told.
    """
    jobs = [job for job in active_jobs() if str(job["id"]) == number]
    waiting = of_active(jobs[0]) if jobs and jobs[0]["state"] in WAITING else None
    words = "job %s is waiting: %s" % (number, reason_words(waiting)) if waiting else ""
    if not words or words == message:
        return not jobs, message
    print("trainyard: " + words, file=sys.stderr)
    return not jobs, words


def follow(number, path, tail=None):
    """Print a log while it grows, from its last C(tail) lines on, until its job has ended.

    The exit code tells how.
    """
    stream, looked, ended, message = None, 0.0, False, ""
    try:
        while True:
            if stream is None and os.path.exists(path):
                stream = _files.open_regular(path)
                skip_to_tail(stream, tail)
            grown = copy(stream) if stream else 0
            if not grown and ended:
                break
            if not grown and time.monotonic() - looked > 2:
                looked = time.monotonic()
                # Once more after the end, for what was written meanwhile.
                ended, message = tell_waiting(number, message)
            time.sleep(LOOK)
    finally:
        if stream:
            stream.close()
    job = find(number)
    if job["state"] == "completed":
        return GOOD
    print("trainyard: job %s: %s" % (number, word(job["state"])), file=sys.stderr)
    return FAILED


def stop(options):
    numbers, problems = [], []
    for number in numbers_of(options.id):
        try:
            job = find(number)
        except Refused as error:
            problems.append(str(error))
            continue
        if job["state"] in ACTIVE:
            numbers.append(number)
        else:
            problems.append("job %s has already ended (%s)" % (number, word(job["state"])))
    if numbers:
        ask(["scancel", *numbers])
    if problems:
        # The others are stopped all the same.
        raise Refused("\n".join(problems + ["job %s is being stopped" % each for each in numbers]))
    return several(
        options,
        [{"id": number, "stopped": True} for number in numbers],
        lambda value: print("job %s is being stopped" % value["id"]),
    )


def attach(options):
    # As in ssh's ProxyCommand, where %h is the name of the job.
    number = number_of(
        options.id[4:] if options.stdio and options.id.startswith("job-") else options.id
    )
    job = find(number)
    if job["state"] != "running":
        raise Refused(
            "job %s is %s; only a running job can be entered" % (number, word(job["state"]))
        )
    if not 0 <= options.rank < len(job["hosts"]):
        raise Refused(
            "job %s has no worker %d; its workers are 0 to %d"
            % (number, options.rank, len(job["hosts"]) - 1)
        )
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    command = [
        "srun",
        "--jobid=" + number,
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=" + job["hosts"][options.rank],
        "--quiet",
    ]
    if options.stdio:
        # Otherwise slurmstepd keeps what follows the last line end.
        command += ["--unbuffered", DOOR, "serve", Site().write_keys(), str(options.rank)]
        os.execvpe(command[0], command, minimal(os.environ))
    command += ["--pty"] if terminal else ["--unbuffered"]
    command += ["trainyard-run", "--enter=%d" % options.rank] + ["--root"] * options.root
    command += ["--"] + (options.command or ["sh", "-c", "exec $(command -v bash || echo sh)"])
    sys.stdout.flush()
    os.execvpe(command[0], command, minimal(os.environ))
    return NO_ANSWER


def tensorboard(options):
    """A job whose only service is TensorBoard."""
    site = Site()
    folder = os.path.abspath(os.path.expanduser(options.folder))
    if not os.path.isdir(folder):
        raise Refused("%s is not a folder" % options.folder)
    if not site.is_shared(folder):
        raise Refused(
            (
                "%s is on this host only; use a folder below %s or %s, which the hosts of the job "
                "have, too"
            )
            % (folder, site.home, site.config["share"])
        )
    values = {
        "name": "tensorboard",
        "worker_memory": "2",
        "max_minutes": "240",
        "services": [{"tensorboard": folder}],
        "command": "exec python3 /usr/local/lib/trainyard/services wait",
    }
    return submit_values(
        options,
        site,
        values,
        "tensorboard",
        lambda site, number: tell_address(options, site, number),
    )


def tell_address(options, site, number):
    """Wait until the service of a new job answers, and say how to open it."""
    deadline, job, found = time.monotonic() + READY_SECONDS, None, []
    while time.monotonic() < deadline:
        job = find(number)
        found = endpoints(site, number) if job["state"] == "running" else []
        if job["state"] not in ACTIVE or any(endpoint["state"] != "starting" for endpoint in found):
            break
        time.sleep(1)
    answer = {"id": number, "state": job["state"], "endpoints": found}

    def lines(_told):
        print("job %s %s" % (number, word(job["state"])))
        for endpoint in found:
            print("%-12s%s" % (endpoint["service"], printable(endpoint_words(endpoint))))
        if job["state"] in WAITING:
            print(
                "it waits: %s. `trainyard show %s` has the address when it runs"
                % (reason_words(job), number)
            )

    out(options, answer, lines)
    return (
        FAILED
        if job["state"] not in ACTIVE or any(endpoint["state"] == "failed" for endpoint in found)
        else GOOD
    )


def hang_words(site: Site, job: dict) -> str:
    """Return where the ranks of a job that makes no progress wait, as its runner has found it.

    Empty if it has found nothing, or there was output since.
    """
    path = os.path.join(site.folder_of(job["id"]) or "", HANG_FILE)
    try:
        found = os.stat(path).st_mtime
        message = _files.read_regular(path, MOST_HANG).partition("\n")[0]
    except OSError:
        return ""
    logs = [site.log_of(job["id"], rank) for rank in range(len(job["hosts"]))]
    if any(os.path.exists(log) and os.stat(log).st_mtime > found for log in logs):
        return ""
    return "it makes no progress: %s. See %s" % (message, path)


def where_it_waits(site: Site, job: dict) -> str:
    """Ask the workers of a job where they wait, and return that as a sentence.

    Empty if none of them can answer.
    """
    readings = [
        site.json_of(job["id"], "watch.%d.json" % rank) for rank in range(len(job["hosts"]))
    ]
    if not any((each or {}).get("answers") for each in readings):
        return ""
    folder = site.folder_of(job["id"])
    library = importlib.import_module("_job_hang")
    print("trainyard: asking the workers where they wait", file=sys.stderr)
    message = library.tell(folder, library.ask(folder, job["hosts"], ANSWER_SECONDS))
    return "%s. See %s" % (message, os.path.join(folder, HANG_FILE))


def progress_words(job: dict) -> str:
    """Return whether a job that runs makes progress, as the end of a sentence.

    Empty if its logs do not show it.
    """
    site, number = Site(), job["id"]
    workers = []
    for rank, host in enumerate(job["hosts"]):
        try:
            quiet = max(0.0, time.time() - os.stat(site.log_of(number, rank)).st_mtime)
        except OSError:
            quiet = None
        workers.append({"worker": rank, "host": host, "quiet": quiet})
    known = hang_words(site, job)
    if known:
        return "; " + known
    if _job_limits.is_quiet(workers):
        known = where_it_waits(site, job)
    percents = [gpu["percent"] for gpu in usage(site, number, job["hosts"])]
    words = _job_limits.progress(number, workers, percents)
    return "".join("; " + each for each in (known, words) if each)


def why_of(number: str) -> dict:
    """Return what why tells of a job."""
    job = find(number)
    if job["state"] in WAITING:
        words = "queued: " + reason_words(job)
    elif job["state"] in ACTIVE:
        words = "it does not wait: it is %s%s" % (word(job["state"]), progress_words(job))
    else:
        words = "it has ended: %s%s%s" % (
            word(job["state"]),
            ", exit code %d" % job["exit_code"] if job["exit_code"] else "",
            first_cause(Site().result_of(job["id"])) if job["state"] != "completed" else "",
        )
    return {"id": job["id"], "state": job["state"], "why": words}


def why(options):
    return several(
        options,
        [why_of(number) for number in numbers_of(options.id)],
        lambda value: print("job %s: %s" % (value["id"], printable(value["why"]))),
    )


def first_cause(result: dict | None) -> str:
    """Return which worker failed first, and why, as the end of a sentence.

    Empty if the result does not say so.
    """
    failed = (result or {}).get("first_failed")
    if not failed:
        hang = (result or {}).get("hang")
        return "; " + hang if hang else ""
    who = "; worker %s on %s failed first" % (failed.get("rank", "?"), failed.get("host", "?"))
    causes = failed.get("causes") or []
    if causes:
        return "%s: %s. %s" % (who, causes[0]["cause"], sentence(causes[0]["fix"]))
    lines = failed.get("lines") or []
    return who + (": " + lines[0] if lines else "")


def explain(options):
    """Say what the messages in a log mean. The log may be from anywhere."""
    library = importlib.import_module("_log_causes")
    if options.file == "-":
        found = library.answer(library.read_log(sys.stdin.buffer))
    else:
        with open(options.file, "rb") as stream:
            found = library.answer(library.read_log(stream))

    def tell(_found):
        for cause in found["causes"]:
            print("line %d: %s" % (cause["line_number"], printable(cause["line"])))
            print("  cause: %s (%s)" % (printable(cause["cause"]), cause["id"]))
            print("  what to do: %s" % printable(cause["fix"]))
        if not found["causes"]:
            print(
                "no known message. %s"
                % ("These lines may say why:" if found["lines"] else "The log is empty")
            )
        elif found["lines"]:
            print("that is not yet why. These lines may say it:")
        for line in found["lines"]:
            print("line %d: %s" % (line["line_number"], printable(line["line"])))
        if found["lines"]:
            print("report lines that should be known, without secrets: " + REPORTS)

    return out(options, dict(found, file=options.file), tell)


def quota(options):
    site = Site()
    accounts, usage = accounts_now(site.person), usage_now(site.person)
    times = _job_limits.times_of(parsed(_slurm.PARTITIONS, _slurm.parse_partitions))
    images = registry_use(site)
    for entry in accounts:
        # Only the controller knows it.
        del entry["submitted"]
        entry.update(times, **images)
        for used in usage:
            if used["account"] == entry["account"] and used["user"] in ("", site.person):
                entry.update(_job_limits.used_of(used))

    def lines(found):
        if not found:
            print(
                (
                    "you have no account on this cluster; ask the operator to add you to a group "
                    "in slurm_accounts"
                )
            )
            return
        table(
            ("ACCOUNT", "GPUS USED", "GPUS", "YOURS USED", "YOURS", "MINUTES", "PRIORITIES"),
            [
                (
                    entry["account"],
                    entry.get("gpus_used", 0),
                    amount(entry["gpus"]),
                    entry.get("person_gpus_used", 0),
                    amount(entry["person_gpus"]),
                    amount(entry["max_minutes"]),
                    ",".join(entry["qos"]),
                )
                for entry in found
            ],
        )
        print()
        rows = [line for entry in found for line in limit_lines(entry)]
        table(("LIMIT", "ACCOUNT", "USED", "AT MOST"), rows + image_lines(found[0]))

    return out(options, accounts, lines)


def usage_library():
    """Return the module of usage. Only here: other commands need not wait for it."""
    return importlib.import_module("_usage")


def month_usage(options):
    """Print the use of GPUs in a month: the own one, and that of others as far as Slurm
    shows it.
    """
    _usage = usage_library()
    now = datetime.datetime.now(datetime.timezone.utc)
    try:
        month, begin, end = _usage.month_of(options.month, now.date())
    except ValueError as error:
        raise Refused("--month: %s" % error) from error
    if not re.fullmatch(r"[a-z0-9_.-]{0,64}", options.account):
        raise Refused(
            "--account: '%.40s' is no account; `trainyard quota` shows yours" % options.account
        )
    if options.csv and options.json:
        raise Refused("--csv: leave out --csv, or --json")
    jobs = month_jobs(*_usage.span_of(begin, end), options.account)
    rows = _usage.usage_rows(jobs, begin, min(end, now.timestamp()))
    found = {"month": month, "people": rows, "account": account_usage(month, options.account)}
    if options.csv:
        sys.stdout.write(_usage.as_csv(rows))
        return GOOD
    return out(options, found, show_month)


def account_usage(month: str, account: str) -> dict | None:
    """Return what an account has used in a month, if the site shows it to people. It names
    nobody.
    """
    sums = _files.read_json(ACCOUNT_USAGE)
    if not account or not isinstance(sums, dict) or sums.get("month") != month:
        return None
    found = [row for row in sums["accounts"] if row["account"] == account]
    return found[0] if found else None


def show_month(found: dict) -> None:
    if not found["people"]:
        print("no jobs in %s" % found["month"])
    else:
        print("\n".join(usage_library().as_lines(found["people"])))
    if found["account"]:
        print("\nall of the account:")
        print("\n".join(usage_library().as_lines([found["account"]])))


def limit_lines(entry: dict) -> list:
    """Return the limits of an account beside GPUs, for the table of quota."""
    longest = entry["partition_minutes"]
    usual = entry["default_minutes"]
    if entry["max_minutes"] is not None:
        # Slurm gives the limit of the account to a job that names no time.
        longest = usual = min(entry["max_minutes"], longest or entry["max_minutes"])
    lines = (
        ("CPUs", entry.get("cpus_used", 0), amount(entry["cpus"])),
        ("memory (GB)", gigabytes(entry.get("memory_used_mib", 0)), gigabytes(entry["memory_mib"])),
        ("your running jobs", entry.get("jobs_used", 0), amount(entry["max_jobs"])),
        (
            "your waiting and running jobs",
            entry.get("submitted_used", 0),
            amount(entry["max_submitted"]),
        ),
        ("minutes of a job", "-", amount(longest)),
        ("minutes of a job without max_minutes", "-", amount(usual)),
    )
    return [(name, entry["account"], used, limit) for name, used, limit in lines]


def image_lines(entry: dict) -> list:
    """Return the line of the registry for the table of quota, none without a registry."""
    used, limit = entry["registry_used_mib"], entry["registry_mib"]
    if used is None:
        return []
    return [("your images in the registry (GB)", "-", gigabytes(used), gigabytes(limit))]


def registry_use(site: Site) -> dict:
    """Return how much of the registry the images of the person use, in MiB.

    None if that is not known, or if there is no registry of the cluster.
    """
    registry = importlib.import_module("_registry")
    nothing = {"registry_mib": None, "registry_used_mib": None}
    if not os.path.isdir(registry.LOGINS):
        return nothing
    try:
        return dict(nothing, **registry.space(site.person))
    except registry.RegistryError as error:
        words = printable(str(error))
        print("trainyard: the space of your images is not known: %s" % words, file=sys.stderr)
        return nothing


def node_history(options):
    """List when hosts were out of service in the last month, and why."""
    since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=30)
    command = _slurm.events_command(since.strftime("%Y-%m-%dT%H:%M:%S"))

    def lines(entries):
        table(
            ("HOST", "SINCE", "UNTIL", "WHY"),
            [
                (entry["node"], local(entry["start"]), local(entry["end"]), entry["reason"] or "-")
                for entry in entries
            ],
        )

    events = parsed(command, _slurm.parse_events)
    return out(
        options,
        events,
        lines if events else lambda _none: print("no host was out of service in the last 30 days"),
    )


def node_row(node: dict) -> dict:
    """Return what people may see of a host: states, reason, and what is free."""
    return dict(
        name=node["name"],
        states=node["states"],
        available=node["available_for_jobs"],
        reason=node["reason"],
        since=node["reason_time"] if node["reason"] else None,
        classes=node["features"],
        cpus=node["cpus"],
        memory_mib=node["memory_mib"],
        gpus=_job_limits.gpus_of(node),
        free=_job_limits.free(node),
    )


def node_rows(known: list) -> list:
    """Return P(node_row) of each host."""
    return [node_row(node) for node in known]


def node_cells(entry: dict) -> tuple:
    """Return the cells of a host of P(node_row) in the table of hosts."""
    return (
        entry["name"],
        "in service" if entry["available"] else "out of service",
        "%d of %d" % (entry["free"]["cpus"], entry["cpus"]),
        "%.0f of %.0f" % (entry["free"]["memory_mib"] / GIB, entry["memory_mib"] / GIB),
        "%d of %d" % (entry["free"]["gpus"], entry["gpus"]),
        ",".join(entry["classes"]) or "-",
    )


def nodes(options):
    if options.history:
        return node_history(options)
    known = nodes_now()
    found = node_rows(known)

    def lines(entries):
        table(
            ("HOST", "STATE", "FREE CPUS", "FREE GB", "FREE GPUS", "CLASSES"),
            [node_cells(entry) for entry in entries],
        )
        for line in away_lines(known):
            print(printable(line))
        print(_job_limits.largest_worker(known))

    return out(options, found, lines)


def away_lines(known: list) -> list:
    """Return a line for each host that is out of service: why, who has said so, and since when."""
    lines = []
    for node in known:
        if node["available_for_jobs"]:
            continue
        line = "%s is out of service: %s" % (node["name"], _job_limits.away_reason(node))
        if node["reason_time"]:
            line += ", since %s" % local(node["reason_time"])
        lines.append(line)
    return lines


def images(options):
    """List the images of the hosts, the approved ones of the site's registry with what is in them
    (role image_relay), and those that the person has saved.
    """
    site = Site()
    (saved, problem), names, approved = site.saved(), site.catalogue(), Site.approved()
    found = [{"name": name} for name in names] + [
        entry for entry in approved if entry["name"] not in names
    ]
    found += [{"name": name, "saved": True} for name in saved]
    if problem:
        print("trainyard: " + printable(problem), file=sys.stderr)

    def lines(entries):
        for entry in entries:
            known = ["%s %s" % pair for pair in sorted((entry.get("frameworks") or {}).items())] + (
                entry.get("platforms") or []
            )
            print(
                "  ".join(
                    [printable(entry["name"])]
                    + ["saved by you"] * entry.get("saved", False)
                    + known
                )
            )

    return out(
        options,
        found,
        lines if found else lambda _none: print("this cluster has no catalogue of images"),
    )


def login(options):
    """Print a link for the browser. It is not an argument of a program, and no log has it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(LOGIN_SOCKET)
            answer = json.loads(b"".join(iter(lambda: connection.recv(4096), b"")).decode())
    except FileNotFoundError:
        raise Refused(
            (
                "this host has no hub for the browser; use the first login host, or ask the "
                "operator for jupyterhub_enabled"
            )
        ) from None
    except (OSError, ValueError) as error:
        raise NoAnswer(
            "the hub gives no link (%s); tell the operator to look at service trainyard-hub-links"
            % error
        ) from error
    if "error" in answer:
        raise Refused(answer["error"])
    return out(
        options,
        answer,
        lambda found: print(
            "%s\nOpen it within %d seconds. It is valid once, for you alone."
            % (found["url"], found["seconds"])
        ),
    )
