# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether Prometheus reads all hosts, and nobody else does: its answers in, findings out. Pure functions."""

from __future__ import annotations

__all__ = ["hosts_up", "missing_gpus", "not_sent", "stale_files"]

#: Seconds after which a file is old, by the end of its path. slurmd runs the health program each five minutes.
OLD = {"/health.prom": 1800}
_OLD = 300


def _vector(answer: dict) -> list[dict]:
    return (answer.get("data") or {}).get("result") or []


def hosts_up(answer: dict, hosts: list[str]) -> dict[str, list[str]]:
    """Return C(missing), hosts that Prometheus does not read, and C(strange), what it reads beside them.

    :param answer: Prometheus' answer to C(up{job="host"}).
    """
    states = {row["metric"].get("instance", ""): float(row["value"][1]) for row in _vector(answer)}
    return {
        "missing": sorted(host for host in hosts if states.get(host) != 1),
        "strange": sorted(set(states) - set(hosts)),
    }


def stale_files(mtimes: dict, errors: dict, now: float) -> list[str]:
    """Return what is wrong with the files of metrics, as one text for each host and file.

    :param mtimes: the answer to C(node_textfile_mtime_seconds).
    :param errors: the answer to C(node_textfile_scrape_error).
    :param now: Prometheus' time in seconds since 1970.
    """
    found = []
    for row in _vector(mtimes):
        path, host = row["metric"].get("file", ""), row["metric"].get("instance", "")
        age = now - float(row["value"][1])
        limits = [limit for end, limit in OLD.items() if path.endswith(end)]
        if age > (limits[0] if limits else _OLD):
            found.append("%s: %s is %d s old" % (host, path, age))
    for row in _vector(errors):
        if float(row["value"][1]):
            found.append("%s: a file of metrics cannot be read" % row["metric"].get("instance", ""))
    return sorted(found)


def missing_gpus(answer: dict) -> list[str]:
    """Return hosts whose GPUs are not measured, from the answer to the expected GPUs unless there are metrics of them."""
    return sorted(row["metric"].get("instance", "") for row in _vector(answer))


def not_sent(answer: dict) -> str:
    """Return why Prometheus sends its alerts nowhere, empty if it knows an Alertmanager.

    :param answer: that of /api/v1/alertmanagers.
    """
    data = answer.get("data") or {}
    if data.get("activeAlertmanagers"):
        return ""
    dropped = ", ".join(row.get("url", "") for row in data.get("droppedAlertmanagers") or [])
    return "Prometheus knows no Alertmanager" + (" (dropped: %s)" % dropped if dropped else "")
