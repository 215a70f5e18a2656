# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether Prometheus reads all hosts, and nobody else does: its answers in, findings out.

Pure functions.
"""

from __future__ import annotations

import datetime

from typing import Any, Iterable, Tuple, Union

from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_metrics import seconds_of

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity

__all__ = [
    "MARKED",
    "SETTLED",
    "arrived",
    "counted_gpus",
    "given_devices",
    "hosts_up",
    "marked_alert",
    "marked_gpus",
    "missing_gpus",
    "not_sent",
    "settled_jobs",
    "stale_files",
    "wrong_jobs",
]

#: Seconds between two texts of a writer, by the end of its path. That of the GPUs has the interval
#: of the site, and verify writes when it runs.
WRITTEN = {"/health.prom": 300, "/host.prom": 60, "/slurm.prom": 30, "/verify.prom": float("inf")}
#: Intervals after which a file is old.
OLD = 5
#: Seconds after which a test alert has ended. Alertmanager waits longer before it tells a receiver.
TEST_SECONDS = 10


#: Seconds after its start in which the GPUs of a job get its number: until the next look at them,
#: and the next one of Prometheus.
SETTLED = 120
#: Query for the job of each GPU, with its device number. GPUs of a job that has just ended are not
#: in it.
MARKED = (
    "trainyard_gpu_info * on (instance, uuid) group_left () (trainyard_gpu_job > 0 and "
    "trainyard_gpu_job == trainyard_gpu_job offset %ds)"
) % (SETTLED // 2)


#: A GPU: its host, and its device number or, where that is not known, its UUID.
Gpu = Tuple[str, Union[int, str]]


def _vector(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the series in an answer of Prometheus."""
    rows: list[dict[str, Any]] | None = (answer.get("data") or {}).get("result")
    return rows or []


def hosts_up(answer: dict[str, Any], hosts: list[str]) -> dict[str, list[str]]:
    """Return C(missing), hosts that Prometheus does not read, and C(strange), what it reads beside
    them.

    :param answer: Prometheus' answer to C(up{job="host"}).
    """
    states = {row["metric"].get("instance", ""): float(row["value"][1]) for row in _vector(answer)}
    return {
        "missing": sorted(host for host in hosts if states.get(host) != 1),
        "strange": sorted(set(states) - set(hosts)),
    }


def stale_files(
    mtimes: dict[str, Any], errors: dict[str, Any], now: float, interval: float
) -> list[str]:
    """Return what is wrong with the files of metrics, as one text for each host and file.

    :param mtimes: the answer to C(node_textfile_mtime_seconds).
    :param errors: the answer to C(node_textfile_scrape_error).
    :param now: Prometheus' time in seconds since 1970.
    :param interval: seconds between two texts of the GPUs.
    """
    found = []
    for row in _vector(mtimes):
        path, host = row["metric"].get("file", ""), row["metric"].get("instance", "")
        age = now - float(row["value"][1])
        known = [seconds for end, seconds in WRITTEN.items() if path.endswith(end)]
        if age > OLD * (known[0] if known else interval):
            found.append("%s: %s is %d s old" % (host, path, age))
    for row in _vector(errors):
        if float(row["value"][1]):
            found.append("%s: a file of metrics cannot be read" % row["metric"].get("instance", ""))
    return sorted(found)


def missing_gpus(answer: dict[str, Any]) -> list[str]:
    """Return hosts whose GPUs are not measured, from the answer to the expected GPUs unless there
    are metrics of them.
    """
    return sorted(row["metric"].get("instance", "") for row in _vector(answer))


def counted_gpus(answer: dict[str, Any], counts: dict[str, int]) -> list[str]:
    """Return the hosts of which the metrics have another number of GPUs than their driver counts.

    :param answer: Prometheus' answer to C(trainyard_gpus).
    :param counts: the number of GPUs by host, as its driver has told it now.
    """
    found = []
    for row in _vector(answer):
        host, number = row["metric"].get("instance", ""), int(float(row["value"][1]))
        if number != counts.get(host, number):
            text = "%s: the driver counts %s, and there are metrics of %d"
            found.append(text % (host, quantity(counts[host], "GPU"), number))
    return sorted(found)


def _is_settled(job: dict[str, Any], now: float) -> bool:
    """Return whether a job has begun long enough ago."""
    start = seconds_of(job["start_time"])
    return start is not None and start + SETTLED < now


def settled_jobs(jobs: list[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """Return the running jobs with GPUs that the metrics must know by now, by number.

    :param jobs: what P(_slurm.parse_jobs) returns.
    :param now: the time in seconds since 1970.
    """
    running = [job for job in jobs if job["state"] == "running" and job["gpus"]]
    return sorted(
        (job for job in running if _is_settled(job, now)),
        key=lambda job: job["id"],
    )


def given_devices(
    job: dict[str, Any], positions: dict[str, list[int]], lists: dict[str, list[int]]
) -> set[Gpu] | None:
    """Return each GPU that Slurm has given to a job, None if they cannot be told.

    :param positions: the positions of its GPUs in Slurm's list of each host.
    :param lists: the device numbers of each host in the order of Slurm's list.
    """
    found: set[Gpu] = {
        (host, lists[host][position])
        for host, places in positions.items()
        for position in places
        if position < len(lists.get(host, []))
    }
    return found if len(found) == job["gpus"] else None


def _devices(gpus: Iterable[Gpu]) -> str:
    """Return GPUs for people, by host.

    UUIDs come after the numbers, with which they cannot be compared.
    """
    hosts: dict[str, list[str]] = {}
    for host, _is_uuid, gpu in sorted((host, isinstance(gpu, str), gpu) for host, gpu in gpus):
        hosts.setdefault(host, []).append(str(gpu))
    texts = ["%s: %s" % (host, ", ".join(names)) for host, names in hosts.items()]
    return "; ".join(texts) or "none"


def marked_gpus(answer: dict[str, Any]) -> dict[int, set[Gpu]]:
    """Return the GPUs of each job, as the metrics have them.

    :param answer: Prometheus' answer to MARKED.
    """
    found: dict[int, set[Gpu]] = {}
    for row in _vector(answer):
        labels, number = row["metric"], int(float(row["value"][1]))
        minor = labels.get("minor", "")
        # A GPU whose device number is not known counts by its UUID.
        gpu = int(minor) if minor.isdigit() else labels.get("uuid", "")
        found.setdefault(number, set()).add((labels.get("instance", ""), gpu))
    return found


def wrong_jobs(
    marked: dict[int, set[Gpu]],
    jobs: list[dict[str, Any]],
    given: dict[int, set[Gpu] | None],
    now: float,
) -> list[str]:
    """Return what is wrong with the jobs of GPUs, as Slurm has given them away and as the metrics
    have them.

    :param marked: what P(marked_gpus) returns.
    :param jobs: what P(_slurm.parse_jobs) returns, with jobs that have just ended.
    :param given: the GPUs of each job as P(given_devices) returns them. Of a job without them only the number of GPUs is compared.
    :param now: the time in seconds since 1970.
    """
    known = {job["id"] for job in jobs}
    found = []
    for number, gpus in sorted(marked.items()):
        if number not in known:
            words = "1 GPU has" if len(gpus) == 1 else "%d GPUs have" % len(gpus)
            found.append("%s job %d, which is not in the queue" % (words, number))
    for job in settled_jobs(jobs, now):
        gpus, expected = marked.get(job["id"], set()), given.get(job["id"])
        if len(gpus) != job["gpus"]:
            text = "job %d has %s, and metrics of %d"
            found.append(text % (job["id"], quantity(job["gpus"], "GPU"), len(gpus)))
        elif expected is not None and gpus != expected:
            found.append(
                "job %d has the device numbers %s, and metrics of %s"
                % (job["id"], _devices(expected), _devices(gpus))
            )
    return found


def not_sent(answer: dict[str, Any]) -> str:
    """Return why Prometheus sends its alerts nowhere, empty if it knows an Alertmanager.

    :param answer: that of /api/v1/alertmanagers.
    """
    data = answer.get("data") or {}
    if data.get("activeAlertmanagers"):
        return ""
    dropped = ", ".join(row.get("url", "") for row in data.get("droppedAlertmanagers") or [])
    return "Prometheus knows no Alertmanager" + (" (dropped: %s)" % dropped if dropped else "")


def marked_alert(mark: str, now: float) -> list[dict[str, Any]]:
    """Return the alerts to send to Alertmanager, whose route for this name has no receiver.

    :param mark: a text by which it is found again.
    :param now: the time in seconds since 1970.
    """
    end = datetime.datetime.fromtimestamp(now + TEST_SECONDS, datetime.timezone.utc)
    labels = {"alertname": "TrainyardTest", "mark": mark}
    return [{"labels": labels, "endsAt": end.strftime("%Y-%m-%dT%H:%M:%SZ")}]


def arrived(alerts: list[dict[str, Any]], mark: str) -> str:
    """Return why a test alert has not arrived, empty if it has.

    :param alerts: what Alertmanager has.
    :param mark: that of P(marked_alert).
    """
    marks = [alert["labels"].get("mark") for alert in alerts]
    return "" if mark in marks else "Alertmanager has taken a test alert, and does not have it"
