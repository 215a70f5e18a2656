# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""idle-verify SETTINGS: runs a playbook for hosts whose last measured check is older than some
days, for clusters without a scheduler.

A systemd timer of the site's controller starts it. SETTINGS is JSON with C(days), C(reports) (the
folder of reports), C(hosts) of the cluster, and C(command), the words that start the playbook. It
adds C(--limit) with a tenth of the hosts, at least one, and ends with the exit code of the
playbook.
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


def seen_in(report: object) -> tuple[float, set, set]:
    """Return when a report was made, in seconds since 1970, the hosts that it names, and those that
    it has measured.
    """
    try:
        made = calendar.timegm(time.strptime(str(report["generated"]), "%Y-%m-%dT%H:%M:%SZ"))
        named = {host for check in report["checks"] for host in check["host"].split(", ")}
        measured = {
            check["host"]
            for check in report["checks"]
            if check["id"] == MEASURED and check["verdict"] in ("pass", "warn", "fail")
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0, set(), set()
    return made, named, measured


def due(hosts: list, reports: list, days: int, now: float) -> list:
    """Return the hosts to check now.

    Those come first whose last try is oldest, so that one that is down does not keep the others
    waiting.
    """
    tried, last = dict.fromkeys(hosts, 0.0), dict.fromkeys(hosts, 0.0)
    for report in reports:
        made, named, measured = seen_in(report)
        tried.update({host: max(tried[host], made) for host in named.intersection(hosts)})
        last.update({host: max(last[host], made) for host in measured.intersection(hosts)})
    old = [host for host in sorted(hosts, key=tried.get) if now - last[host] >= days * DAY]
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
