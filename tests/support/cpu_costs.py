"""CPU seconds of a test run by its parts: test files, linters, scenarios.

A part has the seconds of pytest's own processes and of the processes that they have waited for, by
getrusage. Hosts of scenarios are not children of pytest: theirs are in their control groups, if the
Docker engine gives them one. The engine itself and containers inside the hosts are in no part.
"""

from __future__ import annotations

import collections
import os
import re
import resource
import subprocess
import threading
from pathlib import Path

# The labels by which lab/hosts.py and molecule/shared/create.yml name whose a host is.
HOSTS_OF = '{{.ID}} {{.Label "trainyard.molecule"}} {{.Label "trainyard.lab"}}'
# By cgroup version and driver: the file of a container's group, what its number is called, and how
# many of it are a second.
GROUPS = (
    ("cpuacct/docker/%s/cpuacct.usage", r"(\d+)", 1e9),
    ("cpuacct/system.slice/docker-%s.scope/cpuacct.usage", r"(\d+)", 1e9),
    ("docker/%s/cpu.stat", r"usage_usec (\d+)", 1e6),
    ("system.slice/docker-%s.scope/cpu.stat", r"usage_usec (\d+)", 1e6),
)
# Scenarios are counted in threads, while a test of this process may have changed PATH for its own
# programs.
PATH = os.environ.get("PATH", os.defpath)
OF_CHILDREN_TOO = slice(
    11, 15
)  # utime, stime, cutime, cstime, counted from the state of the process


def seconds_of(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def seconds_of_process(pid: int) -> float:
    """Return the CPU seconds of a running process and of the children that it has waited for, 0 if
    it has ended.
    """
    try:
        stat = Path("/proc/%d/stat" % pid).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    ticks = stat.rpartition(")")[2].split()[OF_CHILDREN_TOO]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def seconds_of_container(identifier: str, root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPU seconds of a container's control group, 0 if there is none under the names
    that Docker uses.
    """
    for name, pattern, unit in GROUPS:
        path = root / (name % identifier)
        if path.exists():
            return int(re.search(pattern, path.read_text(encoding="ascii")).group(1)) / unit
    return 0.0


def hosts_of(scenario: str) -> list:
    """Return the identifiers of a scenario's running hosts."""
    done = subprocess.run(
        ["docker", "ps", "--no-trunc", "--format", HOSTS_OF],
        text=True,
        capture_output=True,
        check=False,
        env=dict(os.environ, PATH=PATH),
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return [row[0] for row in rows if scenario in row[1:]]


class Costs:
    """What this process has spent since it was asked last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Helpers that live as long as this process, and are counted while they run.
        self.helpers = set()
        self.apart = collections.Counter()
        self.apart_of_children = 0.0
        self.before = 0.0

    def charge(self, part: str, seconds: float) -> None:
        """Add seconds that are no child's of this process."""
        with self.lock:
            self.apart[part] += seconds

    def waited_for(self, process: subprocess.Popen, part: str) -> int:
        """Wait for a process, charge its seconds to a part of its own, and return its exit code."""
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        with self.lock:
            self.apart[part] += seconds_of(usage)
            self.apart_of_children += seconds_of(usage)
        return process.returncode

    def taken(self, part: str) -> dict:
        """Return the seconds by part since the last call.

        What is not charged to another part is that of C(part).
        """
        with self.lock:
            now = sum(map(seconds_of_process, self.helpers)) - self.apart_of_children
            for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
                now += seconds_of(resource.getrusage(whose))
            found, self.apart = self.apart, collections.Counter()
            found[part] += now - self.before
            self.before = now
        return dict(found)


COSTS = Costs()


def told(parts: dict, count: int = 10) -> list:
    """Return the lines of the report: the sum, and the most expensive parts.

    None if nothing has run.
    """
    if not parts:
        return []
    lines = [
        "CPU seconds: %d, the %d most expensive of %d parts:"
        % (round(sum(parts.values())), min(count, len(parts)), len(parts))
    ]
    dearest = sorted(parts.items(), key=lambda entry: (-entry[1], entry[0]))[:count]
    return lines + ["%7.1f  %s" % (seconds, part) for part, seconds in dearest]
