# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a running container and its unit differ from the way in which they were started: what docker,
systemd and the kernel tell in, texts out.
"""

from __future__ import annotations

import os
import re

from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    Mount,
    mount_of,
    parse_mountinfo,
)

__all__ = [
    "departures",
    "has_own_shm",
    "in_words",
    "limited",
    "parse_drop_in",
    "parse_limits",
    "parse_units",
]

SHM = "/dev/shm"
#: A size of tmpfs is rounded up to pages.
SHM_SHARE = 0.99
#: In the kernel's table of limits -> as Docker calls them.
LIMITS = {
    "Max cpu time": "cpu",
    "Max file size": "fsize",
    "Max data size": "data",
    "Max stack size": "stack",
    "Max core file size": "core",
    "Max processes": "nproc",
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max address space": "as",
}
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
MOST_LINKS = 40
GROUPS = "/sys/fs/cgroup"
MEMORY_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")
CPU_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
#: From here on, a number means no limit in version 1.
BOUNDLESS = 1 << 60
#: Of role training_image. It writes the variables of the container for sessions, except for those
#: that sshd sets itself.
ENTRYPOINT = "/usr/local/lib/trainyard/entrypoint"
OF_SESSIONS = "/root/.ssh/environment"
OF_SSHD = re.compile(r"(HOME|HOSTNAME|LOGNAME|OLDPWD|PWD|SHELL|SHLVL|TERM|USER|_)=")
#: A shell does not pass on variables with other names, and the entrypoint is one. A line of the
#: file without a name may be a part of a secret.
NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
MOST_BYTES = 1 << 20
#: A listening sshd, whose title is its command, in newer releases whatever its program is called.
#: Sessions have another title. Others are Dropbear.
LISTENS = re.compile(r"sshd: \S.* \[listener\]|(/\S*/)?(sshd|dropbear)( -|$)")
#: As the entrypoint starts its own.
OUR_SSHD = re.compile(
    r"/usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config( -R)?($| \[listener\])"
)
#: Of role training_container. A service may be an sshd.
SUPERVISOR = "/etc/trainyard/services/supervisor.py"


class Group(TypedDict):
    """A control group, and its limits in words."""

    group: str
    limits: list[str]


def in_words(size: int) -> str:
    """A size in bytes with the largest unit in which it is 1 or more."""
    for unit, factor in UNITS:
        if size >= factor:
            return ("%.1f" % (size / factor)).replace(".0", "") + " " + unit
    return "%d bytes" % size


def limited(settings: dict[str, Any]) -> list[str]:
    """Limits that C(docker inspect) has in HostConfig, and that can be changed while the container
    runs.
    """
    found = []
    if (settings.get("Memory") or 0) > 0:
        found.append("memory %s" % in_words(settings["Memory"]))
    if (settings.get("NanoCpus") or 0) > 0:
        found.append("%g CPUs" % (settings["NanoCpus"] / 1e9))
    elif (settings.get("CpuQuota") or 0) > 0:
        found.append("%g CPUs" % (settings["CpuQuota"] / (settings.get("CpuPeriod") or 100000)))
    if settings.get("CpusetCpus"):
        found.append("only CPUs %s" % settings["CpusetCpus"])
    if settings.get("CpusetMems"):
        found.append("only memory of NUMA nodes %s" % settings["CpusetMems"])
    if (settings.get("PidsLimit") or 0) > 0:
        found.append("%d processes" % settings["PidsLimit"])
    return found


def parse_limits(text: str) -> dict[str, tuple[str, str]]:
    """Soft and hard limit of a process by Docker's name, from /proc/PID/limits.

    They are in bytes or numbers, or V(unlimited).
    """
    found = {}
    for line in text.splitlines():
        for title, name in LIMITS.items():
            words = line[len(title) :].split()
            if line.startswith(title + " ") and len(words) > 1:
                found[name] = (words[0], words[1])
    return found


def limit_faults(
    ours: dict[str, tuple[str, str]], of_sshd: dict[str, tuple[str, str]]
) -> list[str]:
    """Limits of the container's first process that its sshd lost, whose sessions have those of
    sshd.
    """
    return [
        "sshd in the container has the limit %s %s:%s, the container %s:%s"
        % ((name,) + of_sshd[name] + ours[name])
        for name in sorted(ours)
        if name in of_sshd and of_sshd[name] != ours[name]
    ]


def size_of(options: list[str]) -> int | None:
    """The size of a tmpfs in bytes. None if it has no limit that mountinfo tells."""
    for option in options:
        match = re.match(r"size=(\d+)([kmg]?)$", option)
        if match:
            return int(match.group(1)) << {"": 0, "k": 10, "m": 20, "g": 30}[match.group(2)]
    return None


def has_own_shm(settings: dict[str, Any]) -> bool:
    """Whether /dev/shm is the container's own, which Docker mounts, and not a folder of the
    host.
    """
    targets = [(mount.get("Target") or "").rstrip("/") for mount in settings.get("Mounts") or []]
    return settings.get("IpcMode") in ("private", "shareable") and SHM not in targets


def shm_faults(settings: dict[str, Any], inside: list[Mount]) -> list[str]:
    """Whether /dev/shm has the size that Docker has set."""
    if not has_own_shm(settings):
        return []
    mount, requested = mount_of(SHM, inside), settings.get("ShmSize") or 0
    if mount["path"] != SHM:
        return ["%s is not mounted in the container" % SHM]
    size = size_of(mount["options"])
    if size is None or size >= requested * SHM_SHARE:
        return []
    return ["%s in the container has %s, not %s" % (SHM, in_words(size), in_words(requested))]


def resolved(root: str, path: str) -> str:
    """A path in a container without links. C(root) is the container's root as this machine
    sees it.
    """
    steps, done, links = [step for step in path.split("/") if step], "", 0
    while steps:
        step = steps.pop(0)
        if step == "..":
            done = done.rpartition("/")[0]
            continue
        here = done + "/" + step
        if step == "." or not os.path.islink(root + here) or links == MOST_LINKS:
            done = done if step == "." else here
            continue
        links += 1
        target = os.readlink(root + here)
        done = "" if target.startswith("/") else done
        steps = [part for part in target.split("/") if part] + steps
    return done or "/"


def share_faults(share: str, root: str, inside: list[Mount], outside: list[Mount]) -> list[str]:
    """Whether the container sees the share that the host sees."""
    there = mount_of(os.path.realpath(share), outside)
    here = mount_of(resolved(root, share), inside)
    if (here["type"], here["source"]) != (there["type"], there["source"]):
        return ["%s is not mounted in the container" % share]
    if "ro" in here["options"] and "ro" not in there["options"]:
        return ["%s is read-only in the container" % share]
    return []


def mount_faults(
    settings: dict[str, Any], root: str, inside: list[Mount], outside: list[Mount], share: str
) -> list[str]:
    """Mounts of the container's settings that it lost, or that are read-only in it alone."""
    found = []
    for mount in settings.get("Mounts") or []:
        target = resolved(root, mount.get("Target") or "/")
        here = mount_of(target, inside)
        source = mount_of(os.path.realpath(mount.get("Source") or "/"), outside)
        if here["path"] != target:
            found.append("%s is not mounted in the container" % target)
        elif (
            not mount.get("ReadOnly")
            and "ro" in here["own_options"]
            and "ro" not in source["options"]
        ):
            found.append("%s is read-only in the container" % target)
    return found + (share_faults(share, root, inside, outside) if share else [])


def inside_text(root: str, path: str) -> str | None:
    """The text of a file in a container, whose users may have put a link or a pipe there.

    None if it has no such file.
    """
    try:
        handle = os.open(
            root + resolved(root, os.path.dirname(path)) + "/" + os.path.basename(path),
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK,
        )
        with open(handle, "rb") as stream:
            return stream.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def variable_faults(written: str | None, variables: str) -> list[str]:
    """Variables that the container's file for sessions lacks, changes or adds.

    C(variables) are those of its first process, with a zero byte after each.

    Only names are told, because values may be secrets.
    """
    entries = [entry.replace("\n", " ") for entry in variables.split("\0")]
    requested = {entry for entry in entries if NAMED.match(entry) and not OF_SSHD.match(entry)}
    if written is None or not requested:
        return []
    found = {line for line in written.split("\n") if line}
    # Some shells pass on variables with other names.
    lines = (found ^ requested) - {entry for entry in entries if not NAMED.match(entry)}
    names = sorted({name_in(line) for line in lines})
    return [
        "%s in the container sets %s otherwise than the container" % (OF_SESSIONS, ", ".join(names))
    ] * bool(names)


def name_in(line: str) -> str:
    """The name of the variable that a line sets."""
    match = NAMED.match(line)
    return match.group(1) if match else "(a line without a name)"


def bound(text: str) -> float | None:
    """The first number of a file of a control group. None if it sets no limit."""
    words = text.split()
    value = float(words[0]) if words and words[0].isdigit() else 0
    return value if 0 < value < BOUNDLESS else None


def group_limits(folder: str) -> list[str]:
    """Limits of memory and CPUs that a control group has itself, in version 2 or 1."""
    texts = {name: read_text(folder + "/" + name) for name in MEMORY_FILES + CPU_FILES}
    sizes = [size for size in (bound(texts[name]) for name in MEMORY_FILES) if size]
    quota = bound(texts["cpu.max"]) or bound(texts["cpu.cfs_quota_us"])
    period = bound(texts["cpu.max"].partition(" ")[2]) or bound(texts["cpu.cfs_period_us"])
    found = ["memory %s" % in_words(int(min(sizes)))] if sizes else []
    return found + (["%g CPUs" % (quota / period)] if quota and period else [])


def groups_of(cgroup: str, root: str = GROUPS) -> dict[str, list[str]]:
    """Limits of a process's control groups by path, its own first.

    C(cgroup) is the text of /proc/PID/cgroup. Groups without a limit are left out.
    """
    found: dict[str, list[str]] = {}
    for line in cgroup.splitlines():
        _number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        for controller in {"memory", "cpu", ""} & set(controllers.split(",")):
            steps = path.strip("/").split("/")
            for length in range(len(steps), 0, -1):
                group = "/".join(steps[:length])
                limits = group_limits("%s/%s/%s" % (root, controller, group)) if group else []
                found.setdefault("/" + group, []).extend(limits)
    return {group: limits for group, limits in found.items() if limits}


def own_group(cgroup: str, container: str) -> str:
    """The path of a container's own control group, empty if it is not known by the
    container's ID.
    """
    paths = [line.split(":", 2)[-1] for line in cgroup.splitlines()]
    return next((path for path in paths if container and container in path.rpartition("/")[2]), "")


def group_faults(
    settings: dict[str, Any], cgroup: str, container: str, root: str = GROUPS
) -> list[str]:
    """Limits of the container's own control group that Docker has not set.

    Docker makes a new group at each start.
    """
    limits = groups_of(cgroup, root).get(own_group(cgroup, container), [])
    return [
        "the control group of the container is limited to %s, which Docker has not set"
        % ", ".join(limits)
    ] * bool(limits and not limited(settings))


def groups_above(cgroup: str, container: str, root: str = GROUPS) -> list[Group]:
    """Limited control groups above the container's own, each with C(group) and C(limits).

    The container does not see them.
    """
    own = own_group(cgroup, container)
    return [
        {"group": group, "limits": limits}
        for group, limits in groups_of(cgroup, root).items()
        if own and own.startswith(group + "/")
    ]


def children(process: int) -> list[int]:
    """Process IDs of the children of a process. Empty if the kernel does not tell."""
    return [
        int(word)
        for word in read_text("/proc/%d/task/%d/children" % (process, process)).split()
        if word.isdigit()
    ]


def listening_sshd(first: int) -> int:
    """The host's process ID of the container's sshd, 0 if there is none.

    Its parent is the entrypoint, whose parent is C(first), or that is the entrypoint.
    """
    for parent in [first] + children(first):
        for process in children(parent):
            if read_text("/proc/%d/comm" % process).strip() == "sshd":
                return process
    return 0


def parent_of(process: int) -> int:
    """The process ID of the parent, 0 if the process has ended."""
    fields = read_text("/proc/%d/stat" % process).rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def command_of(process: int) -> str:
    """The command line of a process, or the title that it has given itself, as far as it can be
    printed.
    """
    text = read_text("/proc/%d/cmdline" % process).replace("\0", " ").strip()[:200]
    strange = {character for character in text if not character.isprintable()}
    return text.translate(dict.fromkeys(map(ord, strange), " "))


def other_sshd(command: str, above: list[str]) -> bool:
    """Whether a command is that of an sshd that the entrypoint has not started.

    C(above) are the commands of its parents.
    """
    return (
        bool(LISTENS.match(command))
        and not OUR_SSHD.match(command.replace("sshd: ", "", 1))
        and not any(SUPERVISOR in parent for parent in above)
    )


def namespace_of(process: int) -> str:
    """The namespace of process IDs that a process is in, empty if it has ended."""
    try:
        return os.readlink("/proc/%d/ns/pid" % process)
    except OSError:
        return ""


def parents_of(process: int) -> dict[int, str]:
    """The commands of a process's parents, by process ID. A parent may end meanwhile."""
    found, parent = {}, parent_of(process)
    while parent > 1 and parent not in found:
        found[parent] = command_of(parent)
        parent = parent_of(parent)
    return found


def sshd_faults(first: int) -> list[str]:
    """Servers in a container beside its own, which let somebody in by other rules.

    A restart ends them.

    C(first) is the container's first process. Where it shares the processes of the host, only those
    below it are the container's.
    """
    namespace = namespace_of(first)
    found: set[str] = set()
    is_shared = namespace == namespace_of(os.getpid())
    for name in os.listdir("/proc") if namespace else []:
        if not name.isdigit() or namespace_of(int(name)) != namespace:
            continue
        command = command_of(int(name))
        above = parents_of(int(name)) if LISTENS.match(command) else {}
        if other_sshd(command, list(above.values())) and (first in above or not is_shared):
            found.add("another sshd runs in the container: %s" % command)
    return sorted(found)


def departures(found: dict[str, Any], share: str = "") -> list[str]:
    """How a running container differs from its settings.

    C(found) is its entry of C(docker inspect). Reads below /proc of this host.
    """
    first = found["State"].get("Pid", 0)
    text = read_text("/proc/%d/mountinfo" % first) if first else ""
    if not found["State"]["Running"] or not text:
        return []
    inside, outside = parse_mountinfo(text), parse_mountinfo(read_text("/proc/self/mountinfo"))
    settings, root = found["HostConfig"], "/proc/%d/root" % first
    sshd = listening_sshd(first)
    # The entrypoint of another image may set limits for its sshd, and would set them again after a
    # restart.
    limits_of = first if found.get("Path") == ENTRYPOINT else parent_of(sshd) if sshd else first
    return (
        mount_faults(settings, root, inside, outside, share)
        + shm_faults(settings, inside)
        + group_faults(settings, read_text("/proc/%d/cgroup" % first), found.get("Id", ""))
        + variable_faults(
            inside_text(root, OF_SESSIONS) if found.get("Path") == ENTRYPOINT else None,
            read_text("/proc/%d/environ" % first),
        )
        + limit_faults(
            parse_limits(read_text("/proc/%d/limits" % limits_of)),
            parse_limits(read_text("/proc/%d/limits" % sshd)) if sshd else {},
        )
        # That of another image may start several.
        + (sshd_faults(first) if found.get("Path") == ENTRYPOINT else [])
    )


def parse_units(text: str) -> dict[str, dict[str, str]]:
    """Properties by unit from C(systemctl show) of several units.

    A unit without the property Id counts as the one with the empty name.
    """
    units = {}
    for block in text.split("\n\n"):
        properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if properties:
            units[properties.get("Id", "")] = properties
    return units


def parse_drop_in(text: str) -> list[str]:
    """Names of the settings that a drop-in of a unit makes, sorted."""
    return sorted(set(re.findall(r"^[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=", text, re.MULTILINE)))
