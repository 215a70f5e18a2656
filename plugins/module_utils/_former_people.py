# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes, timers and account entries of former people on a host, for module shared_accounts."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from typing import Sequence

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._people_plan import (
    Process,
    Range,
    parse_process,
    parse_shadow,
    processes_to_end,
)

__all__ = ["Processes", "ranges_of", "shadow_entries", "timers_of"]

_AT_FOLDERS = ("/var/spool/cron/atjobs", "/var/spool/cron/atspool")
_SECONDS_TO_END = 10


def shadow_entries() -> dict[str, dict[str, str]]:
    """Return {name: {"password": ..., "expires": ...}} of the host's own accounts."""
    return parse_shadow(read_text("/etc/shadow"))


def ranges_of(name: str) -> list[Range]:
    """Return the ranges (first, end) of a person's subordinate ids."""
    ranges = set()
    for path in ("/etc/subuid", "/etc/subgid"):
        for line in read_text(path).splitlines():
            owner, _colon, numbers = line.partition(":")
            first, _colon, count = numbers.partition(":")
            if owner == name and first.isdigit() and count.isdigit():
                ranges.add((int(first), int(first) + int(count)))
    return sorted(ranges)


def timers_of(name: str, uid: int) -> dict[str, str]:
    """Return {path: what it is} of what would start programs of a person without a login."""
    found = {
        "/var/spool/cron/crontabs/" + name: "crontab",
        "/var/lib/systemd/linger/" + name: "lingering",
    }
    for folder in _AT_FOLDERS:
        names = os.listdir(folder) if os.path.isdir(folder) else []
        found.update({os.path.join(folder, each): "at job" for each in names})
    return dict(item for item in sorted(found.items()) if _is_of(item, uid))


def _is_of(item: tuple[str, str], uid: int) -> bool:
    """Return whether a timer (path, what it is) exists and is of a person."""
    path, what = item
    try:
        entry = os.lstat(path)
    except FileNotFoundError:
        return False
    # All at jobs are in one folder. The other files have the name of the person.
    return what != "at job" or entry.st_uid == uid


class Processes:
    """The processes of the host, read once."""

    def __init__(self) -> None:
        self.found: dict[int, Process] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                process = self._read(int(name))
                if process:
                    self.found[int(name)] = process

    @staticmethod
    def _read(pid: int) -> Process | None:
        """Return a process, None if it has ended."""
        texts = []
        for name in ("status", "cgroup"):
            try:
                with open("/proc/%d/%s" % (pid, name), encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
            except OSError:
                return None
        return parse_process(*texts)

    def callers(self) -> set[int]:
        """Return the uids of this process and of those that started it."""
        uids: set[int] = set()
        pid = os.getpid()
        while pid in self.found:
            uids |= self.found[pid]["uids"]
            pid = self.found[pid]["parent"]
        return uids

    @staticmethod
    def is_foreign(pid: int) -> bool:
        """Whether a process is in a container of root's engine.

        People have no pid namespace without a user namespace.
        """
        spaces = []
        for name in ("pid", "user"):
            try:
                own = os.readlink("/proc/%d/ns/%s" % (pid, name))
                spaces.append(own == os.readlink("/proc/1/ns/" + name))
            except OSError:
                return False
        is_of_the_host, has_its_users = spaces
        return has_its_users and not is_of_the_host

    def split(self, uid: int, ranges: Sequence[Range]) -> tuple[list[int], list[int]]:
        """Return (pids of a former person to end, pids of the person's jobs)."""
        return processes_to_end(self.found, uid, ranges, self.is_foreign)

    def end(self, uid: int, ranges: Sequence[Range]) -> list[int]:
        """End what is no job of a person, also what starts meanwhile.

        Returns the pids that are left.
        """
        deadline = time.monotonic() + _SECONDS_TO_END
        while True:
            left = Processes().split(uid, ranges)[0]
            if not left or time.monotonic() >= deadline:
                return left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
