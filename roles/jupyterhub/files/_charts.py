# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charts of the portal: queries for Prometheus, and its answers as lines of SVG with their axes.

Data in, data out.

The browser sends none of these queries. Of a person only the name and the number of a job are part
of one. Charts are drawn here, so they need no script.
"""

from __future__ import annotations

import datetime
import math
import re
from urllib.parse import urlencode

#: Size of a picture in its own units. The style sheet stretches it.
WIDTH, HEIGHT = 1000, 100
#: Points of a curve at most, and those of all curves of a picture: a page with 512 GPUs stays
#: small. Seconds between two points at least.
MOST_POINTS, ALL_POINTS, LEAST_STEP = 240, 2400, 15
#: Seconds of a picture at most: longer than Prometheus keeps what it has.
MOST_SECONDS = 400 * 86400
#: Shorter times before the end of a job that its page offers, in seconds, with their words.
SPANS = {"1d": (86400, "last day"), "6h": (21600, "last 6 hours"), "1h": (3600, "last hour")}
#: Curves of a picture, and samples of an hour, at most. The folder of a job has what its person
#: writes there.
MOST_SERIES, HOUR = 1024, 60
#: Colours of the style sheet.
COLOURS = 8
#: Seconds of the curves of the cluster, and between two of their points.
CLUSTER_SECONDS, CLUSTER_STEP = 6 * 3600, 120
#: A name that can be part of a query.
PERSON = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
#: Curves of a job: title, metric of role monitoring_host, factor to the unit, and unit.
CURVES = (
    ("GPU use", "trainyard_gpu_utilization_ratio", 100, "%"),
    ("GPU memory", "trainyard_gpu_memory_used_bytes", 1 / (1 << 30), "GiB"),
    ("Power", "trainyard_gpu_power_watts", 1, "W"),
    ("Temperature", "trainyard_gpu_temperature_celsius", 1, "\u00b0C"),
)
#: Curves of its workers: title, expression, factor and unit.
OF_WORKERS = (
    (
        "CPUs in use",
        'rate(trainyard_job_cpu_seconds_total{slurm_job="%(job)d"}[%(window)ds])',
        1,
        "CPUs",
    ),
    ("Memory", 'trainyard_job_memory_bytes{slurm_job="%(job)d"}', 1 / (1 << 30), "GiB"),
)
#: Seconds in which the reader of a host, which runs each minute, has written several values.
WORKER_WINDOW = 240


def seconds_of(stamp: str) -> float:
    """Return a time of Slurm in seconds since 1970."""
    moment = datetime.datetime.fromisoformat(stamp.rstrip("Z") + "+00:00")
    return moment.timestamp()


def stamp_of(seconds: float) -> str:
    """Return a time as Slurm's are written, such as 2026-11-30T04:00:00Z."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- queries ----------------------------------------------------------------------------------------------------------------


def ranged(query: str, start: float, end: float, step: int) -> str:
    """Return the address of a query over a time, below that of Prometheus' interface."""
    values = {"query": query, "start": "%.0f" % start, "end": "%.0f" % end, "step": step}
    return "query_range?" + urlencode(values)


def instant(query: str) -> str:
    """Return the address of a query of now."""
    return "query?" + urlencode({"query": query})


def _of_person(job: dict, person: str) -> str:
    """Return the part of a query that leaves nothing unless a job is one of a person.

    C(job) comes from a program that runs as the person, who can change its answer. So whose job it
    is, the metrics of the scheduler say.
    """
    return 'and on () trainyard_slurm_job_info{slurm_job="%d",user="%s"}' % (int(job["id"]), person)


def seconds_before_end(span: str) -> int:
    """Return the seconds of one of C(SPANS). All the time of a job for another text."""
    return SPANS.get(span, (MOST_SECONDS,))[0]


def _span(job: dict, now: float, curves: int, seconds: int) -> tuple[float, float, int]:
    """Return begin and end of a picture of a job that has started, and the seconds between two
    points of it.

    :param curves: how many the picture has.
    :param seconds: before the end of the job, or before now.
    """
    start = seconds_of(job["started"])
    end = max(start, seconds_of(job["ended"]) if job["ended"] else now)
    # The times come from a program that runs as the person.
    start = max(start, end - seconds)
    points = max(2, min(MOST_POINTS, ALL_POINTS // max(1, curves)))
    return start, end, max(LEAST_STEP, math.ceil((end - start) / (points - 1)))


def curve_queries(job: dict, now: float, person: str, span: str = "") -> list:
    """Return the addresses of the queries for the curves of the GPUs of a job, over its own
    time or the end of it, one of C(SPANS).
    """
    if not job["started"] or not PERSON.fullmatch(person):
        return []
    over = _span(job, now, job["gpus"], seconds_before_end(span))
    of_job = "and on (instance, uuid) (trainyard_gpu_job == %d)" % int(job["id"])
    of_person = _of_person(job, person)
    return [
        ranged("%s %s %s" % (metric, of_job, of_person), *over)
        for _title, metric, _factor, _unit in CURVES
    ]


def worker_queries(job: dict, now: float, person: str, span: str = "") -> list:
    """Return the addresses of the queries for the CPUs and the memory of each worker of a job, over
    its own time or the end of it, one of C(SPANS).
    """
    if not job["started"] or not PERSON.fullmatch(person):
        return []
    start, end, step = _span(job, now, int(job["workers"]), seconds_before_end(span))
    values = {"job": int(job["id"]), "window": max(WORKER_WINDOW, 2 * step)}
    of_person = _of_person(job, person)
    return [
        ranged("%s %s" % (expression % values, of_person), start, end, step)
        for _title, expression, _factor, _unit in OF_WORKERS
    ]


def cluster_queries(now: float, sees_others: bool) -> dict:
    """Return the addresses of the queries for the page of the cluster by what they answer.

    C(sees_others): also what others use, without names.
    """
    found = {"health": instant("trainyard_health_check_passed")}
    if sees_others:
        over = (now - CLUSTER_SECONDS, now, CLUSTER_STEP)
        found["accounts"] = ranged("sum by (account) (trainyard_slurm_gpus_allocated)", *over)
        found["power"] = ranged("sum(trainyard_gpu_power_watts)", *over)
        found["use"] = instant("trainyard_gpu_utilization_ratio")
    return found


#: For operators. The number of the job becomes a label, as in the rules of role monitoring.
OF_OPERATORS = {
    "alerts": "alerts",
    "verify": instant('{__name__=~"trainyard_verify_(passed|timestamp_seconds|check_passed)"}'),
    "jobs": instant(
        "avg by (slurm_job) (avg_over_time(trainyard_gpu_utilization_ratio[1h]) * on "
        "(instance, uuid) group_left (slurm_job)"
        ' count_values by (instance, uuid) ("slurm_job", trainyard_gpu_job > 0))'
    ),
}


# --- answers ----------------------------------------------------------------------------------------------------------------


def results_of(answer: object) -> list:
    """Return the series of an answer of Prometheus as they are, none if it is not from a
    Prometheus.
    """
    data = answer.get("data") if isinstance(answer, dict) else None
    found = data.get("result") if isinstance(data, dict) else None
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, dict)]


def values_of(answer: object) -> list:
    """Return the values of an answer of now, as pairs of labels and number."""
    found = []
    for each in results_of(answer):
        try:
            value = float(each["value"][1])
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        if math.isfinite(value) and isinstance(each.get("metric"), dict):
            found.append((each["metric"], value))
    return found


def series_of(answer: object, factor: float, name: str = "{instance}, GPU {gpu}") -> list:
    """Return the series of an answer over a time: C(name), and C(samples), pairs of seconds and
    value in the unit of the chart.
    """
    found = []
    for entry in results_of(answer):
        labels = {"instance": "?", "gpu": "?", "account": "?"}
        samples = []
        try:
            labels.update(entry.get("metric") or {})
            for at, text in entry.get("values") or []:
                value = float(text) * factor
                samples.append((float(at), value if math.isfinite(value) else None))
        except (TypeError, ValueError):
            return []
        if any(value is not None for _at, value in samples):
            found.append({"name": name.format_map(labels), "samples": samples})
    return sorted(found, key=lambda each: each["name"])


# --- pictures ---------------------------------------------------------------------------------------------------------------


def nice_top(value: float) -> float:
    """Return the end of an axis that holds a value: a number of few digits."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(
        step * size
        for step in (1, 1.2, 1.6, 2, 2.5, 3, 4, 5, 6, 8, 10)
        if value <= step * size * 1.0001
    )


def amount(value: float) -> str:
    """Return a number for people."""
    return "%.0f" % value if value >= 10 or value == int(value) else "%.3g" % value


def _xy(at: float, value: float, span: tuple, top: float) -> tuple:
    """Return the place of a sample in a picture."""
    begin, end = span
    level = min(1.0, max(0.0, value / top))
    return round((at - begin) * WIDTH / max(1.0, end - begin)), round(HEIGHT * (1 - level), 1)


def _text(places: list) -> str:
    """Return points as SVG has them. Those within a level line are left out."""
    kept = []
    for place in places:
        if len(kept) > 1 and kept[-1][1] == kept[-2][1] == place[1]:
            kept[-1] = place
        else:
            kept.append(place)
    return " ".join("%d,%g" % place for place in kept)


def lines_of(samples: list, span: tuple, top: float) -> list:
    """Return the lines of a curve. A sample that is not known ends one."""
    lines, places = [], []
    for at, value in samples:
        if value is None:
            lines, places = lines + [places], []
        else:
            places.append(_xy(at, value, span, top))
    return [_text(places) for places in lines + [places] if places]


def _frame(title: str, unit: str, series: list, top: float) -> dict:
    """Return what lines and areas have in common: the axes, the names of the curves, and a sentence
    for who does not see the picture.
    """
    times = [at for each in series for at, _value in each["samples"]]
    begin, end = min(times), max(times)
    known = []
    legend = []
    for number, each in enumerate(series):
        values = [value for _at, value in each["samples"] if value is not None]
        known += values
        mean = sum(values) / len(values)
        legend.append({"name": each["name"], "colour": number % COLOURS, "mean": mean})
    return {
        "title": title,
        "unit": unit,
        "span": (begin, end),
        "top": top,
        "marks": [amount(top), amount(top / 2), "0"],
        "times": [stamp_of(begin), stamp_of((begin + end) / 2), stamp_of(end)],
        "least": min(known),
        "most": max(known),
        "legend": legend,
        "lines": [],
        "areas": [],
        "odd": "",
    }


def chart(title: str, unit: str, series: list, top: float = 0) -> dict:
    """Return a picture with a curve for each series.

    C(top) is the end of the axis, that of the largest value if it is 0.
    """
    known = [value for each in series for _at, value in each["samples"] if value is not None]
    found = _frame(title, unit, series, top or nice_top(max(known)))
    for number, each in enumerate(series):
        for points in lines_of(each["samples"], found["span"], found["top"]):
            found["lines"].append({"points": points, "of": number, "colour": number % COLOURS})
    found["odd"] = odd_words(title, unit, series)
    return found


def stacked(title: str, unit: str, series: list) -> dict:
    """Return a picture with an area for each series, on top of the one before.

    A sample that a series does not have is 0.
    """
    times = sorted({at for each in series for at, _value in each["samples"]})
    before = dict.fromkeys(times, 0.0)
    layers = []
    for each in series:
        values = {at: value or 0.0 for at, value in each["samples"]}
        above = {at: before[at] + values.get(at, 0.0) for at in times}
        layers.append((before, above))
        before = above
    found = _frame(title, unit, series, nice_top(max(before.values())))
    for number, (low, high) in enumerate(layers):
        edges = []
        for side in (high, low):
            places = [_xy(at, side[at], found["span"], found["top"]) for at in times]
            edges.append(_text(places))
        # The lower edge goes back.
        points = " ".join([edges[0], *reversed(edges[1].split(" "))])
        found["areas"].append({"points": points, "of": number, "colour": number % COLOURS})
    return found


def panels_of(answers: list) -> list:
    """Return the charts of a job for its page.

    C(answers) are those to P(curve_queries), None where there is none.
    """
    return _panels(CURVES, answers, "{instance}, GPU {gpu}")


def worker_panels(answers: list) -> list:
    """Return the charts of the workers of a job, each with the name of its host.

    C(answers) are those to P(worker_queries).
    """
    return _panels(OF_WORKERS, answers, "{instance}")


def _panels(curves: tuple, answers: list, name: str) -> list:
    panels = []
    for (title, _query, factor, unit), answer in zip(curves, answers):
        series = series_of(answer, factor, name)
        if series:
            panels.append(chart(title, unit, series, 100.0 if unit == "%" else 0))
    return panels


def odd_words(title: str, unit: str, series: list) -> str:
    """Return a sentence about a GPU that draws much less power than its peers, empty without one.

    A GPU that waits for others in a collective looks used, but needs less power.
    """
    if title != "Power" or len(series) < 2:
        return ""
    means = []
    for each in series:
        values = [value for _at, value in each["samples"] if value is not None]
        means.append((sum(values) / len(values), each["name"]))
    least, name = min(means)
    mean = (sum(value for value, _name in means) - least) / (len(means) - 1)
    if least > 0.75 * mean:
        return ""
    words = "%s draws %.0f %s on average, the others %.0f %s"
    return words % (name, least, unit, mean, unit)


# --- what the runner of a job has kept --------------------------------------------------------------------------------------


def _numbers(minutes: object) -> list:
    """Return pairs of seconds and number of what the folder of a job has by minute.

    The job's program may write there.
    """
    found = []
    for at, value in (minutes or [])[-HOUR:]:
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if isinstance(at, int) and 0 < at < 1 << 31 and (value is None or is_number):
            found.append((60.0 * at, value))
    return found


def hour_panels(usage: list, workers: list) -> list:
    """Return the charts of the last hour of a job, as its runner has kept them, without Prometheus.

    :param usage: C(host), C(gpu), and C(minutes), pairs of minute and percent, of each GPU.
    :param workers: C(name), and C(cpus) and C(memory_gb), pairs of minute and value, of each worker.
    """
    groups = [("GPU use, last hour", "%", 100.0, [])]
    groups += [("CPUs in use, last hour", "CPUs", 0, []), ("Memory, last hour", "GB", 0, [])]
    for gpu in usage[:MOST_SERIES]:
        name = "%s, GPU %s" % (gpu["host"], gpu["gpu"])
        groups[0][3].append({"name": name, "samples": _numbers(gpu.get("minutes"))})
    for worker in workers[:MOST_SERIES]:
        for group, key in zip(groups[1:], ("cpus", "memory_gb")):
            samples = _numbers(worker.get(key))
            group[3].append({"name": worker["name"], "samples": samples})
    panels = []
    for title, unit, top, series in groups:
        known = []
        for each in series:
            if any(value is not None for _at, value in each["samples"]):
                known.append(each)
        if known:
            panels.append(chart(title, unit, known, top))
    return panels


def slow_words(usage: list) -> str:
    """Return a sentence about a GPU that is less used than its peers in the job, empty without one.

    In a synchronous job all GPUs wait for the slowest one, so one that differs by half is a
    finding.
    """
    known = [gpu for gpu in usage if isinstance(gpu.get("hour_percent"), (int, float))]
    if len(known) < 2:
        return ""
    least = min(known, key=lambda gpu: gpu["hour_percent"])
    others = [gpu["hour_percent"] for gpu in known if gpu is not least]
    mean = sum(others) / len(others)
    if mean < 20 or least["hour_percent"] * 2 > mean:
        return ""
    return (
        "GPU %s of %s was busy for %.0f %% of the last hour, the others for %.0f %% on average"
        % (
            least["gpu"],
            least["host"],
            least["hour_percent"],
            mean,
        )
    )


# --- the cluster ------------------------------------------------------------------------------------------------------------


def uses_of(answer: object) -> dict:
    """Return the use of each GPU now in percent, in the order of their numbers, by host."""
    found = {}
    for labels, value in values_of(answer):
        number = str(labels.get("gpu", ""))
        order = (len(number), number)
        found.setdefault(str(labels.get("instance", "")), []).append((order, round(100 * value)))
    return {host: [percent for _at, percent in sorted(gpus)] for host, gpus in found.items()}


def health_of(answer: object) -> dict:
    """Return the checks of the health program: C(checks), their names, and C(hosts), for each
    C(name) and C(passed) in their order, None if not known.
    """
    hosts = {}
    for labels, value in values_of(answer):
        mine = hosts.setdefault(str(labels.get("instance", "")), {})
        mine[str(labels.get("check", ""))] = value == 1
    checks = sorted({check for mine in hosts.values() for check in mine})
    rows = []
    for name in sorted(hosts):
        passed = [hosts[name].get(check) for check in checks]
        rows.append({"name": name, "passed": passed, "good": False not in passed})
    return {"checks": checks, "hosts": rows}


def cluster_panels(answers: dict) -> list:
    """Return the charts of the cluster from the answers to P(cluster_queries)."""
    panels = []
    accounts = series_of(answers.get("accounts"), 1, "{account}")
    if accounts:
        panels.append(stacked("GPUs in use by account", "GPUs", accounts))
    power = series_of(answers.get("power"), 1 / 1000, "all GPUs")
    if power:
        panels.append(chart("Power of all GPUs", "kW", power))
    return panels


def alerts_of(answer: object) -> list | None:
    """Return the alerts that fire, the severe ones first. None if Prometheus does not answer."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("alerts"), list):
        return None
    found = []
    for each in data["alerts"]:
        if not isinstance(each, dict) or each.get("state") != "firing":
            continue
        labels, notes = each.get("labels") or {}, each.get("annotations") or {}
        found.append(
            {
                "name": str(labels.get("alertname", "")),
                "severity": str(labels.get("severity", "")),
                "summary": str(notes.get("summary", "")),
                "since": str(each.get("activeAt", ""))[:19] + "Z",
            }
        )
    return sorted(found, key=lambda each: (each["severity"] != "page", each["since"]))


def verify_of(answer: object) -> dict | None:
    """Return the last verdict of playbook verify: C(at), C(passed) and C(failed), pairs of check
    and host. None if it is not known.
    """
    found = {"at": "", "passed": None, "failed": []}
    for labels, value in values_of(answer):
        name = labels.get("__name__")
        if name == "trainyard_verify_timestamp_seconds":
            found["at"] = stamp_of(value)
        elif name == "trainyard_verify_passed":
            found["passed"] = value == 1
        elif name == "trainyard_verify_check_passed" and value == 0:
            found["failed"].append((str(labels.get("check", "")), str(labels.get("host", ""))))
    found["failed"].sort()
    return None if found["passed"] is None else found


def busy_of(answer: object) -> dict:
    """Return the mean use of the GPUs of each job in the last hour in percent, by its number."""
    found = {}
    for labels, value in values_of(answer):
        found[str(labels.get("slurm_job", ""))] = round(100 * value)
    return found
