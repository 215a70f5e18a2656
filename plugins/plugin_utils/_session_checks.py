# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What jobs find in the training containers, against the plan and between hosts. Pure functions.

C(sessions) has RV(trainyard.gpu.host_health_info#module:session) of each host whose session was
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._container_state import in_words
from ansible_collections.trainyard.gpu.plugins.plugin_utils._verify_plan import (
    sessions as sessions_of,
)

__all__ = ["CHECKS", "findings"]

SHARE, LIMITS, SESSION, LEFT = CHECKS = (
    "container-share",
    "container-limits",
    "session-environment",
    "leftover-processes",
)
SITE = "run training_environment.yml"
#: A file system of memory is rounded up to pages.
SHM_SHARE = 0.99
#: The kernel derives these from the host's memory, so they differ between hosts.
BY_MEMORY = ("nproc",)
#: Sizes in bytes.
SIZES = ("as", "core", "data", "fsize", "memlock", "stack")
#: Fewer processes are too few for the threads of a training job.
FEW_PROCESSES = 4096
#: Variables that change what Python or the linker loads, without any other sign.
DECISIVE = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "BASH_ENV",
)
LIBRARIES = "LD_LIBRARY_PATH"
#: CUDA's compatibility folder of NGC's images.
COMPAT = "/usr/local/cuda/compat/lib"
#: The toolkit puts it into containers with GPUs, and the head may have none.
OF_GPUS = ("nvidia-smi",)
MOST = 5
#: Value and origin ("image", if it is from there) of each name on one host.
Table = dict[str, list[str]]
#: RV(trainyard.gpu.host_health_info#module:session) by host.
Sessions = dict[str, dict[str, Any]]


class Finding(TypedDict):
    """What is wrong on a host. C(warn): jobs run nevertheless."""

    host: str
    found: str
    expected: str
    fix: str
    warn: bool


def finding(host: str, found: str, expected: str, fix: str, warn: bool = False) -> Finding:
    """Return a finding of a check on one host. C(warn): jobs run nevertheless."""
    return {"host": host, "found": found, "expected": expected, "fix": fix, "warn": warn}


def share_findings(host: str, session: dict[str, Any], share: str) -> list[Finding]:
    """Return the finding of a host on which a job cannot write to the share, none otherwise."""
    inside, outside = session["view"]["share"], session.get("share") or {}
    expected = "%s can be written in the container, and is the same folder as on the host" % share
    fix = SITE + (
        ", which restarts the container if no job runs in it. If the host has the same error, "
        "see check shared-storage"
    )
    if inside["error"]:
        return [
            finding(host, "a job cannot write to %s: %s" % (share, inside["error"]), expected, fix)
        ]
    known = (outside.get("device"), outside.get("inode"))
    if None not in known and known != (inside["device"], inside["inode"]):
        return [
            finding(
                host,
                (
                    "%s in the container differs from the folder of the host, so jobs write to a "
                    "disk of the host"
                )
                % share,
                expected,
                fix,
            )
        ]
    return []


def limit_text(name: str, value: int | None) -> str:
    """Return a limit as people read it: those of SIZES are bytes. None is no limit."""
    if value is None:
        return "unlimited"
    return in_words(value) if name in SIZES else str(value)


def below(value: int | None, other: int | None) -> bool:
    """Whether a limit is lower than another one. None is no limit."""
    return value is not None and (other is None or value < other)


def best(values: list[int | None]) -> int | None:
    """The highest of some limits. None is no limit."""
    bounds = [value for value in values if value is not None]
    return max(bounds) if len(bounds) == len(values) else None


def boundless(value: int | None) -> int | None:
    """A limit of Docker, which has -1 for none, as None for none."""
    return None if value == -1 else value


def planned_limits(host: str, session: dict[str, Any]) -> list[Finding]:
    """Limits of a session against those of the container, which Docker has set."""
    view, ulimits = session["view"], session["settings"]["ulimits"]
    found = []
    for name, ours in sorted(view["limits"].items()):
        first = view["first_limits"].get(name, ours)
        requested = [boundless(value) for value in ulimits.get(name, first)]
        if any(below(value, other) for value, other in zip(ours, requested)):
            found.append(
                finding(
                    host,
                    "a session has the limit %s %s" % (name, limit_text(name, ours[0])),
                    "%s, the limit of the container" % limit_text(name, requested[0]),
                    (
                        "%s, which restarts the container if its sshd has the limit. Otherwise a "
                        "login file in the container (such as ~/.bashrc) sets it"
                    )
                    % SITE,
                )
            )
    return found


def _inside_limits(session: dict[str, Any]) -> list[str]:
    """Return the limits that processes in the container find, in words."""
    group, settings = session["view"]["group"], session["settings"]
    inside = []
    if group["memory"] is not None:
        inside.append("memory %s" % in_words(group["memory"]))
    if group["cpus"] is not None:
        inside.append("%g CPUs" % group["cpus"])
    if group["affinity"] < settings["cpus"]:
        inside.append("%d of %d CPUs" % (group["affinity"], settings["cpus"]))
    limits_processes = any("processes" in text for text in settings["limited"])
    if group["pids"] is not None and (group["pids"] < FEW_PROCESSES or limits_processes):
        inside.append("%d processes" % group["pids"])
    return inside


def group_limits(host: str, session: dict[str, Any]) -> list[Finding]:
    """Memory, CPUs and processes of the container's control group, which the plan does not
    limit.
    """
    limited = session["settings"]["limited"]
    expected = "no limit of the container's memory, CPUs and processes, as in the plan"
    found = []
    inside = _inside_limits(session) or limited
    if inside:
        fix = (
            SITE + ", which creates the container again without the limits if no job runs in it"
            if limited
            else SITE
            + ", which restarts the container if no job runs in it. If the limit returns, raise "
            "that of the control group above the container "
            "(systemctl show docker.service system.slice), or of this machine"
        )
        texts = "the container is limited to %s" % ", ".join(inside)
        found.append(finding(host, texts, expected, fix))
    for entry in session["settings"].get("above") or []:
        unit = entry["group"].rpartition("/")[2]
        found.append(
            finding(
                host,
                "control group %s above the container is limited to %s"
                % (entry["group"], ", ".join(entry["limits"])),
                expected,
                (
                    "if you do not need the limit, remove it: `systemctl cat %s` shows who sets "
                    "it, and `systemctl revert %s` removes your own settings"
                )
                % (unit, unit),
                warn=True,
            )
        )
    return found + _killed(host, session["view"]["group"]["killed"])


def _killed(host: str, count: int) -> list[Finding]:
    """Processes that the kernel has killed because the memory was full."""
    if not count:
        return []
    text = (
        "out of memory: since the start of the container, the kernel has killed %d of its processes"
        % count
    )
    fix = (
        "give jobs more memory or less data. The kernel log names the processes (journalctl "
        "--dmesg | grep -i oom). "
        "A restart of the container resets the counter"
    )
    return [finding(host, text, "no such process", fix, warn=True)]


def shm_findings(host: str, session: dict[str, Any]) -> list[Finding]:
    """Return the finding of a host whose /dev/shm is smaller than requested, none otherwise."""
    requested, ours = session["settings"]["shm_bytes"], session["view"]["shm_bytes"]
    if ours >= requested * SHM_SHARE:
        return []
    return [
        finding(
            host,
            "/dev/shm in the container has %s" % in_words(ours),
            "%s, as Docker has set it" % in_words(requested),
            SITE + ", which restarts the container if no job runs in it",
        )
    ]


def peer_limits(sessions: Sessions) -> list[Finding]:
    """Limits of containers that those of other hosts exceed."""
    found = []
    tables = {host: session["view"]["first_limits"] for host, session in sessions.items()}
    names = sorted({name for table in tables.values() for name in table} - set(BY_MEMORY))
    for name in names:
        values = {host: table[name][0] for host, table in tables.items() if name in table}
        highest = best(list(values.values()))
        for host, value in values.items():
            if below(value, highest) and name not in sessions[host]["settings"]["ulimits"]:
                found.append(
                    finding(
                        host,
                        "the container has the limit %s %s" % (name, limit_text(name, value)),
                        "%s, as on other hosts" % limit_text(name, highest),
                        (
                            "set training_container_ulimits.%s for all hosts, or correct the "
                            "limits of Docker (systemctl show docker.service, daemon.json)"
                        )
                        % name,
                        warn=True,
                    )
                )
    return found


def _overridden_variables(host: str, session: dict[str, Any]) -> list[Finding]:
    """Variables that image or container set, and a session does not have as they are."""
    table = session["view"]["environment"]
    wrong = [("lacks", name) for name in table["missing"]]
    wrong += [("has another value of", name) for name in table["changed"]]
    return [
        finding(
            host,
            "a session %s variable %s, which image or container sets" % (what, name),
            "the value of image and container",
            (
                "correct the login files in the container (~/.ssh/environment, ~/.bashrc, "
                "/etc/profile.d), or restart the container when no job runs in it"
            ),
        )
        for what, name in wrong
    ]


def _added_variable(host: str, name: str, value: list[str] | None, everywhere: bool) -> Finding:
    """The finding about a variable that login files set. C(value) is None where they do not."""
    text = "a session has variable %s, which neither image nor container sets" % name
    if value is None:
        text = "a session lacks variable %s, which the sessions of other hosts have" % name
    elif value[1]:
        text += ": %s" % value[1]
    return finding(
        host,
        text,
        "the environment of image and container, as on all hosts",
        "remove it from the login files in the container (~/.ssh/environment, ~/.bashrc, "
        "/etc/profile.d), or set it for all hosts in "
        "training_container_environment",
        warn=everywhere,
    )


def variable_findings(sessions: Sessions) -> list[Finding]:
    """Variables of sessions that image and container do not set."""
    found = []
    for host, session in sessions.items():
        found += _overridden_variables(host, session)
    added = {host: session["view"]["environment"]["added"] for host, session in sessions.items()}
    for name in _names(added.values()):
        values = _values(added, name)
        everywhere = len(set(values.values())) == 1
        if everywhere and name not in DECISIVE:
            continue
        found += [
            _added_variable(host, name, added[host].get(name), everywhere)
            for host in odd_ones(values)
        ]
    return found


def _names(tables: Iterable[Iterable[str]]) -> list[str]:
    """Return the names in any of some tables."""
    return sorted({name for table in tables for name in table})


def _values(tables: dict[str, Table], name: str) -> dict[str, str]:
    """Return a name's value by host, empty where the host does not have it."""
    return {host: table.get(name, ["", ""])[0] for host, table in tables.items()}


def _changed(tables: dict[str, Table], name: str) -> set[str]:
    """Return the hosts whose value of a name is not from the image."""
    return {host for host, table in tables.items() if table.get(name, ["", "image"])[1] != "image"}


def library_findings(sessions: Sessions) -> list[Finding]:
    """Sessions whose LD_LIBRARY_PATH is longer than the container's, but not on all hosts."""
    tables = {
        host: session["view"]["environment"].get("extended") or {}
        for host, session in sessions.items()
    }
    values = _values(tables, LIBRARIES)
    if len(set(values.values())) < 2:
        return []
    # On a host with another driver.
    warn = all(not table or COMPAT in table[LIBRARIES][1].split(":") for table in tables.values())
    found = []
    for host in odd_ones(values):
        text = "a session does not extend %s of the container, as on other hosts" % LIBRARIES
        if values[host]:
            text = "a session extends %s of the container to %s" % (
                LIBRARIES,
                tables[host][LIBRARIES][1],
            )
        found.append(
            finding(
                host,
                text,
                "the same folders on all hosts",
                "correct the login files in the container (~/.bashrc, /etc/profile.d). NGC's "
                "images add %s where the driver is older than their CUDA: "
                "install the same driver on all hosts" % COMPAT,
                warn=warn,
            )
        )
    return found


def odd_ones(values: dict[str, str]) -> list[str]:
    """The hosts at fault for a difference: all if they agree, else those without the most frequent
    value. In a tie, those with a value.
    """
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return list(values)
    if counts[0][1] > counts[1][1]:
        return [host for host, value in values.items() if value != counts[0][0]]
    return [host for host, value in values.items() if value] or list(values)


def blamed(values: dict[str, str], changed: set[str]) -> list[str]:
    """The hosts at fault where C(values) differ: those of C(changed), whose value is not from the
    image, else those without the most frequent value.
    """
    at_fault = [host for host in values if host in changed]
    return at_fault if at_fault and len(at_fault) < len(values) else odd_ones(values)


def python_findings(sessions: Sessions) -> list[Finding]:
    """Pythons that do not start, or are of another version than on other hosts, and programs."""
    pythons = {host: session["view"]["python"] for host, session in sessions.items()}
    expected = "the same Python and programs on all hosts, as in the image"
    found = [
        finding(
            host,
            python["error"],
            "a python3 that starts",
            "correct the login files in the container, such as ~/.ssh/environment",
        )
        for host, python in pythons.items()
        if python["error"]
    ]
    versions = {host: python["version"] for host, python in pythons.items()}
    if len(set(versions.values())) > 1:
        for host in odd_ones(versions):
            text = "python3 is version %s, on other hosts %s" % (
                versions[host],
                ", ".join(sorted(set(versions.values()) - {versions[host]})),
            )
            found.append(finding(host, text, expected, SITE))
    programs = {host: python["programs"] for host, python in pythons.items()}
    for name in _names(programs.values()):
        found += _program_findings(name, programs, expected)
    return found


def _program_findings(name: str, programs: dict[str, Table], expected: str) -> list[Finding]:
    """The hosts where the name of a program leads to other paths than elsewhere.

    C(programs) has those of all hosts.
    """
    paths = _values(programs, name)
    if name in OF_GPUS:
        paths = {host: path for host, path in paths.items() if name in programs[host]}
    if len(set(paths.values())) < 2:
        return []
    fix = "correct PATH in the login files of the container, or remove the other %s" % name
    return [
        finding(host, "%s is %s" % (name, paths[host] or "not found"), expected, fix)
        for host in blamed(paths, _changed(programs, name))
    ]


def _differing_packages(
    tables: dict[str, Table],
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return (by host, packages with other versions than elsewhere; packages only this host
    has).
    """
    differ: dict[str, list[str]] = {}
    extra: dict[str, list[str]] = {}
    for name in _names(tables.values()):
        values = _values(tables, name)
        if len(set(values.values())) == 1:
            continue
        changed = _changed(tables, name)
        # Somebody tries a package that the image does not have: no import of a job finds another
        # one for that.
        is_extra = all(host in changed or not values[host] for host in values)
        versions = {value for value in values.values() if value}
        place = extra if is_extra and len(versions) == 1 else differ
        for host in blamed(values, changed):
            place.setdefault(host, []).append("%s %s" % (name, values[host] or "missing"))
    return differ, extra


def _first(texts: list[str]) -> str:
    """Return the first of some texts, and how many are not shown."""
    more = len(texts) - MOST
    return ", ".join(texts[:MOST]) + (", and %d more" % more if more > 0 else "")


def package_findings(sessions: Sessions) -> list[Finding]:
    """Packages with another version than on other hosts, and packages of one host that are not of
    the image.
    """
    differ, extra = _differing_packages(
        {host: session["view"]["python"]["packages"] for host, session in sessions.items()}
    )
    found = []
    for table, warn, what in (
        (differ, False, "other versions of packages than on other hosts"),
        (extra, True, "packages that neither the image nor other hosts have"),
    ):
        for host, texts in table.items():
            found.append(
                finding(
                    host,
                    "Python finds %s: %s" % (what, _first(texts)),
                    "the packages of the image on all hosts",
                    (
                        "remove it in the container (pip uninstall, or its folder in PYTHONPATH), "
                        "or install it for all hosts with training_image_python_packages"
                    ),
                    warn,
                )
            )
    return found


def file_findings(sessions: Sessions) -> list[Finding]:
    """Files of settings, such as NCCL's and the linker's, that differ between hosts."""
    tables = {host: session["view"].get("files") or {} for host, session in sessions.items()}
    found = []
    for path in _names(tables.values()):
        values = _values(tables, path)
        if len(set(values.values())) == 1:
            continue
        # Mounts are of the inventory, which may give hosts with other networks other settings.
        planned = {table[path][1] for table in tables.values() if path in table} == {"mount"}
        for host in blamed(values, _changed(tables, path)):
            text = "a session lacks %s, which those of other hosts have" % path
            if values[host]:
                text = "a session has %s with another content than on other hosts" % path
            found.append(
                finding(
                    host,
                    text,
                    "the same file on all hosts, or none",
                    (
                        "remove %s in the container, or put it into the image "
                        "(training_image_base) for all hosts"
                    )
                    % path,
                    warn=planned,
                )
            )
    return found


def shadow_findings(sessions: Sessions) -> list[Finding]:
    """Modules that hide others, and startup files of Python, that are not of the image."""
    tables = {}
    for host, session in sessions.items():
        python = session["view"]["python"]
        tables[host] = {
            (entry["module"], entry["file"]): "module %s of %s hides %s"
            % (entry["module"], entry["file"], entry["hides"])
            for entry in python["shadows"]
        }
        tables[host].update(
            (("", path), "Python runs %s at each start" % path) for path in python["startup"]
        )
    found = []
    for host, table in tables.items():
        elsewhere = [set(other) for name, other in tables.items() if name != host]
        for key, text in list(table.items())[:MOST]:
            everywhere = bool(elsewhere) and all(key in other for other in elsewhere)
            found.append(
                finding(
                    host,
                    text + ", and is not of the image",
                    "the modules of the image on all hosts",
                    (
                        "rename or remove %s, or remove its folder from PYTHONPATH in the login "
                        "files of the container"
                    )
                    % key[1],
                    warn=everywhere,
                )
            )
    return found


def age_text(seconds: int) -> str:
    """Return an age in seconds in its largest whole unit, such as 3 h."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return "%d %s" % (seconds // length, unit)
    return "%d s" % seconds


def process_findings(
    host: str, session: dict[str, Any], running: list[str] | None
) -> list[Finding]:
    """Processes in the container of jobs that have ended, and busy ones of no job.

    C(running) are IDs of jobs, None if the head was not asked.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for process in session["view"]["processes"]:
        if process["job"] and (running is None or process["job"] in running):
            continue
        found.setdefault(process["job"], []).append(process)
    return [_left_processes(host, job, those) for job, those in sorted(found.items())]


def _left_processes(host: str, job: str, processes: list[dict[str, Any]]) -> Finding:
    """The finding about processes of a job that has ended, or of none if C(job) is empty."""
    shown = _first(
        [
            "PID %d (%s, %s)" % (entry["pid"], entry["command"], age_text(entry["age_s"]))
            for entry in processes
        ]
    )
    what = "busy processes are of no job"
    if job:
        what = "job %s has ended, but its processes run" % job
    return finding(
        host,
        "%s: %s" % (what, shown),
        "no process of a job that has ended",
        "run in the container: kill %s" % " ".join(str(entry["pid"]) for entry in processes),
        warn=True,
    )


def findings(sessions: Sessions, running: list[str] | None, share: str) -> dict[str, list[Finding]]:
    """Findings by check. C(running) are the IDs of all running jobs, None if they are unknown."""
    sessions = {host: session for host, session in sessions.items() if session.get("view")}
    found: dict[str, list[Finding]] = {check: [] for check in CHECKS}
    for host, session in sessions.items():
        found[SHARE] += share_findings(host, session, share)
        found[LIMITS] += (
            planned_limits(host, session)
            + group_limits(host, session)
            + shm_findings(host, session)
        )
        found[LEFT] += process_findings(host, session, running)
    found[LIMITS] += peer_limits(sessions)
    found[SESSION] += (
        variable_findings(sessions)
        + library_findings(sessions)
        + file_findings(sessions)
        + python_findings(sessions)
        + package_findings(sessions)
        + shadow_findings(sessions)
    )
    return found


def decide_verify_sessions(
    variables: dict[str, Any],
    members: list[dict[str, Any]],
    share: str,
    head: str,
    names: list[str],
) -> dict[str, list[Finding]]:
    """Return findings about the sessions of the containers, by the ID of their check.

    C(variables) are those of role verify by host, C(members) the hosts of the cluster, C(share) is
    the path of the shared folder, C(head) the host that knows the running jobs. Sessions are those
    that the hosts C(names) have read; a host without one is left out.
    """
    found, running = sessions_of(members, names, variables, head)
    return findings(found, running, share)
