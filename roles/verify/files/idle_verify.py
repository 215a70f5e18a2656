# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""idle-verify SETTINGS: runs a playbook for hosts whose last measured check is older than some days, for clusters without a scheduler.

A systemd timer of the site's controller starts it. SETTINGS is JSON with C(days), C(reports) (the folder of reports), C(hosts) of the cluster, and C(command), the
words that start the playbook. It adds C(--limit) with a tenth of the hosts, at least one, and ends with the exit code of the playbook.
"""

from __future__ import annotations

import calendar
import json
import os
import subprocess
import sys
import time

#: Of the checks of verify: only a run that has measured the host counts.
MEASURED = "bandwidth-host"
SHARE = 10
DAY = 24 * 3600


def measured_in(report: object) -> tuple[float, set]:
    """Return when a report was made, in seconds since 1970, and the hosts that it has measured."""
    if not isinstance(report, dict):
        return 0, set()
    try:
        made = calendar.timegm(time.strptime(str(report.get("generated")), "%Y-%m-%dT%H:%M:%SZ"))
        hosts = {
            str(check["host"])
            for check in report["checks"]
            if check["id"] == MEASURED and check["verdict"] in ("pass", "warn", "fail")
        }
    except (KeyError, TypeError, ValueError):
        return 0, set()
    return made, hosts


def due(hosts: list, reports: list, days: int, now: float) -> list:
    """Return the hosts to check now: those that wait longest first."""
    last = dict.fromkeys(hosts, 0.0)
    for report in reports:
        made, measured = measured_in(report)
        for host in measured.intersection(last):
            last[host] = max(last[host], made)
    old = [host for host in sorted(hosts, key=last.get) if now - last[host] >= days * DAY]
    return old[: max(1, len(hosts) // SHARE)]


def read_reports(folder: str, since: float) -> list:
    """Return the reports of a folder that were written since a time."""
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name, "report.json")
        try:
            if os.stat(path).st_mtime >= since:
                with open(path, encoding="utf-8") as stream:
                    found.append(json.load(stream))
        except (OSError, ValueError, RecursionError):
            continue
    return found


def main(words: list) -> int:
    settings = json.loads(words[0])
    days, now = settings["days"], time.time()
    # Older reports make no host younger.
    reports = read_reports(settings["reports"], now - days * DAY)
    hosts = due(settings["hosts"], reports, days, now)
    if not hosts:
        return 0
    print("trainyard: %s: the last check is older than %d days" % (", ".join(hosts), days))
    sys.stdout.flush()
    return subprocess.call([*settings["command"], "--limit", ",".join(hosts)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
