# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of the portal. Data of the helper in, HTML out, by Jinja2 with autoescape: every text of a person stays a text.

The templates are page_*.html beside this file. No page needs a script, and none has a style or a script of its own, which the policy of the service forbids.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from urllib.parse import urlencode

import jinja2

#: Slurm's states in the words of the command trainyard, as roles/jobs/files/_slurm_client.py has them.
STATES = {
    "pending": "waiting",
    "configuring": "starting",
    "completing": "ending",
    "completed": "done",
    "cancelled": "stopped",
    "timeout": "out of time",
    "out_of_memory": "out of memory",
    "node_fail": "host failed",
    "boot_fail": "host failed",
    "deadline": "out of time",
    "requeue_hold": "held",
}
#: Colours of states, classes of the style sheet. Each word says the same without its colour.
TONES = {
    "running": "good",
    "done": "done",
    "waiting": "wait",
    "starting": "wait",
    "ending": "wait",
    "held": "wait",
    "stopped": "done",
}
FILTERS = ("waiting", "running", "done", "failed", "stopped", "out of time", "out of memory")
PERIODS = (("1d", "last day"), ("7d", "last week"), ("30d", "last month"), ("365d", "last year"))
#: Seconds between two looks of a page that is open.
LIVE_SECONDS = 5


def word(state: str) -> str:
    """Return a state of Slurm as the command trainyard calls it."""
    return STATES.get(state, str(state).replace("_", " "))


def tone(state: str) -> str:
    """Return the class of the style sheet for a state."""
    return TONES.get(word(state), "bad")


def short_time(stamp: object) -> str:
    """Return a time of Slurm for people without a script, in UTC. Scripts show it in the zone of the browser."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\dZ", str(stamp or ""))
    return "%s %s UTC" % match.groups() if match else "-"


def shown(value: object) -> str:
    """Return a value as a text, a dash for nothing."""
    if value is None or value == "" or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def gigabytes(mebibytes: object) -> str:
    """Return an amount of memory in GB."""
    return "%.4g" % (mebibytes / 1024) if isinstance(mebibytes, (int, float)) else "-"


def plain(text: str) -> str:
    """Return a text of the table of keys, which is Markdown, without its marks."""
    return str(text).replace("`", "")


def sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def address_of(url: object) -> str:
    """Return the address of a service on the person's own computer, empty if it is none.

    The folder of the job has it, and its program may write there.
    """
    text = str(url or "")
    return text if re.match(r"http://localhost:[0-9]+/", text) else ""


def environment() -> jinja2.Environment:
    """Return the templates with their filters."""
    found = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__))),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,
    )
    found.filters.update(
        word=word,
        tone=tone,
        short_time=short_time,
        shown=shown,
        gb=gigabytes,
        plain=plain,
        sentence=sentence,
    )
    return found


TEMPLATES = environment()


def render(name: str, frame: dict, **values: object) -> str:
    """Return a page.

    :param name: of the template, without page_ and .html.
    :param frame: C(prefix) of the service, C(hub), the hub's part of addresses if it has another host name, and C(person).
    """
    return TEMPLATES.get_template("page_%s.html" % name).render(
        page=name, live_seconds=LIVE_SECONDS, **frame, **values
    )


class Silence:
    """Since when Slurm does not answer, as far as people have asked. C(since) is empty while it does."""

    def __init__(self) -> None:
        self.since = ""

    def take(self, answer: dict, now: datetime.datetime) -> None:
        """Take an answer of the helper. A person with too many requests says nothing about Slurm."""
        if "error" not in answer or not (answer["no_answer"] or answer.get("busy")):
            self.since = ""
        elif not answer.get("busy"):
            self.since = self.since or now.strftime("%Y-%m-%dT%H:%M:%SZ")


def problem_lines(message: object) -> list:
    """Return the lines of an error. The form is standard input, so messages name no line of a file."""
    return [re.sub(r"^-: (line \d+: )?", "", line) for line in str(message).split("\n")]


def problems_by_field(message: str, fields: list) -> tuple:
    """Return the problems of each field of the form by its name, and those of no field."""
    names = {about["name"] for about in fields}
    labels = {about["name"].partition(".")[0]: about["name"] for about in fields}
    found, others = {}, []
    for line in problem_lines(message) if message else []:
        key, colon, text = line.partition(": ")
        name = key if key in names else labels.get(key)
        if colon and name:
            found.setdefault(name, []).append(text)
        else:
            others.append(line)
    return found, others


def pager(query: dict, page: int, pages: int) -> dict:
    """Return the query strings of the pages before and after, empty at the ends."""

    def at(number: int) -> str:
        if not 1 <= number <= pages:
            return ""
        return "?" + urlencode(
            dict({key: value for key, value in query.items() if value}, page=number)
        )

    return {"page": page, "pages": pages, "before": at(page - 1), "after": at(page + 1)}


def options_of(about: dict, choices: dict) -> list:
    """Return the values of a field with a list, as pairs of value and text. C(choices) are those of the helper."""
    name = about["name"]
    if about["control"] == "boolean":
        return [("false", "no"), ("true", "yes")]
    if about["choices"]:
        return [(entry, entry) for entry in about["choices"]]
    found = {
        "host_class": choices["classes"],
        "workspace_id": choices["accounts"],
        "priority": choices.get("priorities") or [],
    }.get(name)
    if found:
        return [("", "any" if name == "host_class" else "the default one")] + [
            (entry, entry) for entry in found
        ]
    return []


def fields_of(choices: dict, values: dict, problems: dict) -> list:
    """Return the fields of the form with their values, options and problems."""
    found = []
    for about in choices["fields"]:
        name = about["name"]
        value = values.get(name, "")
        entries = options_of(about, choices)
        if about["control"] == "boolean":
            value = value or "false"
        selected = value or about["default"]
        if entries and selected not in [entry for entry, _text in entries]:
            # Kept, so that what was sent is not changed by the form.
            entries = entries + [(selected, selected)]
        suggestions = []
        if name == "worker_image":
            suggestions = choices["images"] + choices["saved"]
        found.append(
            dict(
                about,
                value=value,
                options=entries,
                selected=selected,
                suggestions=suggestions,
                problems=problems.get(name, []),
            )
        )
    return found


def values_of(arguments: dict) -> dict:
    """Return the texts that a browser has sent, by the names of their fields. The helper drops those that the form does not have."""
    found = {}
    for name, texts in arguments.items():
        if name != "_xsrf" and texts:
            found[name] = texts[-1].decode("utf-8", "replace")
    return found


def asked(arguments: dict) -> dict:
    """Return the filter of the list of jobs from the query of an address: C(state), C(name), C(since) and C(page)."""
    values = values_of(arguments)
    found = {"state": "", "since": "1d", "name": values.get("name", "")[:100], "page": 1}
    if values.get("state") in FILTERS:
        found["state"] = values["state"]
    if values.get("since") in dict(PERIODS):
        found["since"] = values["since"]
    if re.fullmatch(r"[1-9][0-9]{0,5}", values.get("page", "")):
        found["page"] = int(values["page"])
    return found


def curve(samples: list, width: int = 600, height: int = 80) -> list:
    """Return the lines of a curve of percents for SVG, as texts of points. A sample that is not known ends a line.

    :param samples: pairs of a number that grows, such as a minute, and a percent or None.
    """
    if not samples:
        return []
    first, last = samples[0][0], samples[-1][0]
    span = max(1, last - first)
    lines, points = [], []
    for at, percent in samples:
        if percent is None:
            lines, points = lines + [points], []
            continue
        level = min(100.0, max(0.0, float(percent)))
        x = (at - first) * width / span
        points.append("%.1f,%.1f" % (x, height - level * height / 100))
    return [" ".join(points) for points in lines + [points] if points]


def curves_of(usage: list) -> list:
    """Return the curves of the GPUs of a job: C(name), C(lines) for SVG, C(last) percent and C(mean) percent."""
    found = []
    for gpu in usage:
        samples = [
            (at, percent)
            for at, percent in gpu.get("minutes") or []
            if isinstance(at, int) and (percent is None or isinstance(percent, (int, float)))
        ]
        known = [percent for _at, percent in samples if percent is not None]
        if known:
            found.append(
                {
                    "name": "%s, GPU %s" % (gpu["host"], gpu["gpu"]),
                    "lines": curve(samples),
                    "least": min(known),
                    "most": max(known),
                    "mean": sum(known) / len(known),
                    "count": len(samples),
                }
            )
    return found


#: Curves of a job from Prometheus: title, metric of role monitoring_host, factor to the unit, and unit. A browser sends none of it.
CURVES = (
    ("GPU use", "trainyard_gpu_utilization_ratio", 100, "%"),
    ("GPU memory", "trainyard_gpu_memory_used_bytes", 1 / (1 << 30), "GiB"),
    ("Power", "trainyard_gpu_power_watts", 1, "W"),
    ("Temperature", "trainyard_gpu_temperature_celsius", 1, "\u00b0C"),
)
#: Points of a curve at most, and those of all GPUs in one picture: a page with 64 GPUs stays small. Seconds between two points at least.
MOST_POINTS, ALL_POINTS, LEAST_STEP = 400, 6000, 15


def seconds_of(stamp: str) -> float:
    """Return a time of Slurm in seconds since 1970."""
    moment = datetime.datetime.fromisoformat(stamp.rstrip("Z") + "+00:00")
    return moment.timestamp()


def curve_queries(job: dict, now: float) -> list:
    """Return the parameters of the queries for the curves of a job, over its own time. None has a text of a person in it.

    C(job) is what Slurm has told the person, so it is one of theirs.
    """
    if not job["started"]:
        return []
    start = seconds_of(job["started"])
    end = max(start, seconds_of(job["ended"]) if job["ended"] else now)
    points = max(2, min(MOST_POINTS, ALL_POINTS // max(1, job["gpus"])))
    step = max(LEAST_STEP, math.ceil((end - start) / (points - 1)))
    of_job = "%s and on (instance, uuid) (trainyard_gpu_job == %d)"
    return [
        urlencode(
            {
                "query": of_job % (metric, int(job["id"])),
                "start": "%.0f" % start,
                "end": "%.0f" % end,
                "step": step,
            }
        )
        for _title, metric, _factor, _unit in CURVES
    ]


def series_of(answer: object, factor: float) -> list:
    """Return the series of an answer of Prometheus: C(name), and C(samples), pairs of seconds and value in the unit of the curve."""
    data = answer.get("data") if isinstance(answer, dict) else None
    found = []
    for entry in (data or {}).get("result") or []:
        labels = entry.get("metric") or {}
        samples = []
        for at, text in entry.get("values") or []:
            value = float(text) * factor
            samples.append((float(at), value if math.isfinite(value) else None))
        name = "%s, GPU %s" % (labels.get("instance", "?"), labels.get("gpu", "?"))
        if any(value is not None for _at, value in samples):
            found.append({"name": name, "samples": samples})
    return sorted(found, key=lambda each: each["name"])


def panels_of(answers: list) -> list:
    """Return the curves of a job for its page. C(answers) are those to P(curve_queries), None where there is none."""
    panels = []
    for (title, _metric, factor, unit), answer in zip(CURVES, answers):
        try:
            series = series_of(answer, factor)
        except (TypeError, ValueError, AttributeError):
            # Not from a Prometheus.
            series = []
        if series:
            panels.append(_panel(title, unit, series))
    return panels


def _panel(title: str, unit: str, series: list) -> dict:
    """Return one picture with the curves of all GPUs."""
    known = []
    for each in series:
        values = [value for _at, value in each["samples"] if value is not None]
        each["mean"] = sum(values) / len(values)
        known += values
    top = 100.0 if unit == "%" else max(known) or 1.0
    lines = []
    for number, each in enumerate(series):
        percents = [
            (at, None if value is None else value * 100 / top) for at, value in each["samples"]
        ]
        lines += [{"points": points, "colour": number % 8} for points in curve(percents)]
    return {
        "title": title,
        "unit": unit,
        "lines": lines,
        "least": min(known),
        "most": max(known),
        "top": top,
        "series": series,
        "odd": odd_words(title, unit, series),
    }


def odd_words(title: str, unit: str, series: list) -> str:
    """Return a sentence about a GPU that draws much less power than its peers, empty without one.

    A GPU that waits for others in a collective looks used, but needs less power.
    """
    if title != "Power" or len(series) < 2:
        return ""
    least = min(series, key=lambda each: each["mean"])
    others = [each["mean"] for each in series if each is not least]
    mean = sum(others) / len(others)
    if least["mean"] > 0.75 * mean:
        return ""
    return "%s draws %.0f %s on average, the others %.0f %s" % (
        least["name"],
        least["mean"],
        unit,
        mean,
        unit,
    )


def slow_words(usage: list) -> str:
    """Return a sentence about a GPU that is less used than its peers in the job, empty without one.

    In a synchronous job all GPUs wait for the slowest one, so one that differs by half is a finding.
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


def reasons(queue: list | None) -> list:
    """Return how many jobs wait for each reason, the most frequent first. C(queue) is of P(_slurm_metrics.waiting)."""
    found = {}
    for entry in queue or []:
        name = str(entry.get("reason") or "").replace("_", " ").partition(",")[0]
        jobs, gpus = found.get(name, (0, 0))
        found[name] = (jobs + 1, gpus + int(entry.get("gpus") or 0))
    rows = [
        {"reason": name or "none yet", "jobs": pair[0], "gpus": pair[1]}
        for name, pair in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["jobs"], row["reason"]))


def csv(rows: list, keys: tuple) -> str:
    """Return a table as CSV. A cell that a program for tables would take for a formula begins with an apostrophe."""
    lines = [",".join(keys)]
    for row in rows:
        cells = []
        for key in keys:
            text = str(row.get(key, ""))
            text = "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text
            cells.append('"%s"' % text.replace('"', '""') if re.search(r'[",\n\r]', text) else text)
        lines.append(",".join(cells))
    return "\r\n".join(lines) + "\r\n"
