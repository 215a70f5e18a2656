# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A page of one or two reports: one file without scripts and external resources.

The templates escape all text from hosts. Curves need matplotlib. Without it the page has only their
numbers and says so.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import math
import os
import re

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._report import (
    NAMED,
    NOT_MADE,
    PEAK,
    SEVERITY,
    Change,
    Entries,
    Report,
    between,
    merged,
    names_in,
    not_made,
)

WORDS = {
    "pass": "pass",
    "warn": "warning",
    "fail": "fail",
    "skipped": "skipped",
    "not_evaluated": "not made",
    "": "not there",
}
SIGNS = {"pass": "✓", "warn": "!", "fail": "✕", "skipped": "–", "not_evaluated": "?", "": "·"}
# The slow runs matter; 64 hosts have 2016 pairs.
SLOWEST = 12
# Up to this number every host has a distinguishable curve, its own column, and its name in a list
# of hosts.
HOSTS_NAMED = 8
# Longer names are shortened beside a curve, and may be broken in a line.
LABEL, LINE = 18, 28
# Placeholder colours for matplotlib, which the page replaces by the colours of its themes.
INK, GRID, NOW, OLD, BAD, NEED, *HOSTS = (
    "#%02d%02d%02d" % (number, number, number) for number in range(1, 7 + HOSTS_NAMED)
)
_COLOURS = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    NOW: "var(--now)",
    OLD: "var(--old)",
    BAD: "var(--fail)",
    NEED: "var(--warn)",
    **{colour: "var(--host-%d)" % number for number, colour in enumerate(HOSTS, 1)},
}
# A marker for each of them, for those who cannot tell the colours apart.
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
# A height of text in a chart, as a part of the chart's. Labels are as far apart at least.
LINE_HEIGHT = 0.075
# Width and height of a small chart, and the room for the strokes at its edges.
PANEL, EDGE = (160, 70), 3
#: Result of a run of module nccl_all_reduce. Bandwidths are in GB/s, sizes in bytes.
Run = Mapping[str, Any]
#: A place in a chart: a size in bytes, and a bandwidth in GB/s.
Point = tuple[int, float]
#: What has to be reached in GB/s, with its label.
Need = tuple[float, str]
#: A place in a drawing, across and down.
Place = tuple[float, float]


class Crew(TypedDict):
    """Hosts as C(text), and their C(names) where the text has only the number of them."""

    text: str
    names: str


class Chart(TypedDict):
    """A chart of the page: one drawing C(svg), or a small one for each host in C(panels)."""

    title: str
    svg: str
    panels: list[dict[str, Any]]


class SmallCharts(Chart):
    """Small charts for many hosts, of which the C(first) are shown before the others."""

    note: str
    first: int


def has_matplotlib() -> bool:
    """Return whether the controller has matplotlib, which draws the charts."""
    return importlib.util.find_spec("matplotlib") is not None


def render(
    report: Report, published: Entries, suspect_file: str, earlier: Sequence[Report] = ()
) -> str:
    """The page of one report. C(earlier) are earlier reports of this cluster, newest first."""
    titles = {check["id"]: check["title"] for check in published}
    return (
        _environment(report["hosts"])
        .get_template("report.html.j2")
        .render(
            report=report,
            title="%s: %s" % (report["cluster"], report["verdict"]),
            headline=headline(report, titles),
            gpus=sum(host.get("gpus", 0) for host in report["hosts"]),
            suspect_file=suspect_file,
            groups=groups(report, published),
            matrix=matrix(report, published),
            changes=grouped_changes(report["changes"], titles, report["hosts"]),
            counts={
                word: sum(entry["verdict"] == verdict for entry in report["checks"])
                for verdict, word in WORDS.items()
                if verdict
            },
            meanings=merged(report["explanations"]),
            heat=heat_maps(report.get("burn_in", [])),
            versions=versions([report]),
            whole=_run(report, "cluster"),
            alone=slowest(
                [run for run in report["bandwidth"]["runs"] if run["id"].startswith("host:")]
            ),
            pairs=slowest([run for run in report["bandwidth"]["runs"] if between(run["id"])]),
            charts=charts(report, earlier),
            curves_missing=bool(report["bandwidth"]["runs"]) and not has_matplotlib(),
            earlier=[other for other in earlier if other["bandwidth"]["runs"]],
            titles=titles,
        )
    )


def render_comparison(
    before: Report, now: Report, published: Entries, changes: Sequence[Change]
) -> str:
    """The page that compares two reports."""
    both, titles = [before, now], {check["id"]: check["title"] for check in published}
    return (
        _environment(now["hosts"])
        .get_template("compare.html.j2")
        .render(
            both=both,
            title="%s: %s and %s" % (now["cluster"], before["generated"], now["generated"]),
            headlines=[headline(report, titles) for report in both],
            changes=grouped_changes(changes, titles, now["hosts"]),
            matrices=[matrix(report, published) for report in both],
            versions=[versions([report]) for report in both],
            charts=comparison_charts(before, now, changes),
            runs=_side_by_side(both),
            curves_missing=any(report["bandwidth"]["runs"] for report in both)
            and not has_matplotlib(),
            titles=titles,
        )
    )


def _environment(hosts: Entries) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(os.path.dirname(__file__)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = _pattern(hosts)
    environment.filters.update(
        when=when,
        words=WORDS.get,
        sign=SIGNS.get,
        busbw=busbw,
        size=size,
        among=among,
        crew=functools.partial(crew, hosts=hosts),
        unbroken=functools.partial(unbroken, names=names),
    )
    return environment


# --- data of the templates ------------------------------------------------------------------------------------------------------


def when(generated: str) -> str:
    """Return the time of a report as the page shows it: 2026-11-30 22:30:21 UTC."""
    return generated.replace("T", " ").replace("Z", " UTC")


def busbw(value: float | None) -> str:
    """A bandwidth in GB/s with three digits at least."""
    if value is None:
        return "–"
    return "%.3g" % value if value < 1000 else "%.0f" % value


def size(count: float) -> str:
    """1048576: 1 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return "%g %s" % (round(count, 2), unit)
        count /= 1024.0
    return "%g GiB" % round(count, 2)


def headline(report: Report, titles: Mapping[str, str]) -> str:
    """One sentence with the suspects."""
    if report["verdict"] == "pass":
        made = sum(entry["verdict"] == "pass" for entry in report["checks"])
        return "All %d checks on %s have passed." % (made, quantity(len(report["hosts"]), "host"))
    bad = list(
        dict.fromkeys(
            titles.get(entry["id"], entry["id"])
            for verdict in ("fail", "warn")
            for entry in report["checks"]
            if entry["verdict"] == verdict
        )
    )
    reasons = "; ".join(report["reasons"])
    text = (
        reasons[:1].upper()
        + reasons[1:]
        + (": %s" % ", ".join(bad) if 0 < len(bad) <= NAMED and len(report["reasons"]) == 1 else "")
        + "."
    )
    for entry in report["blame"]:
        text += " At fault: %s." % (
            "the link between " + " and ".join(entry["names"])
            if entry["kind"] == "link"
            else ", ".join(entry["names"])
        )
    return text


def among(names: Sequence[str], report: Report) -> Crew:
    """The hosts of findings, as P(crew) has them."""
    known = [host["name"] for host in report["hosts"]]
    return crew(
        [name for name in known if any(name in names_in(text, report["hosts"]) for text in names)],
        report["hosts"],
    )


def crew(names: Sequence[str], hosts: Entries) -> Crew:
    """The text of some hosts."""
    known = [host["name"] for host in hosts]
    absent = [name for name in known if name not in names]
    if len(names) > NAMED and not absent:
        return {"text": "all %d hosts" % len(known), "names": ""}
    if len(names) <= HOSTS_NAMED:
        return {"text": ", ".join(names), "names": ""}
    if len(absent) <= NAMED:
        return {"text": "all hosts except %s" % ", ".join(absent), "names": ""}
    return {"text": quantity(len(names), "host"), "names": ", ".join(names)}


def _pattern(hosts: Entries) -> re.Pattern[str] | None:
    """The names of hosts as words of a text, the longest first: one may begin with another.

    None if there is none to find.
    """
    names = sorted(
        (re.escape(host["name"]) for host in hosts if len(host["name"]) <= LINE),
        key=len,
        reverse=True,
    )
    return re.compile(r"(?<![\w.-])(%s)(?![\w-]|\.\w)" % "|".join(names)) if names else None


def unbroken(text: str, names: re.Pattern[str] | None) -> Markup:
    """The text as HTML, in which no host's name is broken at the end of a line."""
    parts: list[str] = names.split(text) if names else [text]
    # Every other part is what the pattern has found.
    parts[1::2] = [Markup('<span class="name">%s</span>') % name for name in parts[1::2]]
    return Markup("").join(parts)


def groups(report: Report, published: Entries) -> list[dict[str, Any]]:
    """What to do: findings that differ only in their host are merged, and those that fail the
    verdict come first.
    """
    lacking = not_made(report["checks"], report["hosts"], published, report["required"])
    kinds: list[tuple[str, Entries]] = [
        ("fail", [entry for entry in report["checks"] if entry["verdict"] == "fail"]),
        ("not_evaluated", lacking),
        ("warn", [entry for entry in report["checks"] if entry["verdict"] == "warn"]),
    ]
    found: list[dict[str, Any]] = []
    for kind, entries in kinds:
        same: dict[tuple[str, str, str], dict[str, Any]] = {}
        for entry in entries:
            # All checks of a host that did not answer are one item.
            key = (
                entry["found"],
                entry["fix"],
                ""
                if kind == "not_evaluated"
                else entry["id"] + entry["expected"] + entry["source"],
            )
            group = same.setdefault(key, dict(entry, kind=kind, hosts=[], ids=[]))
            group["hosts"] += [entry["host"]] if entry["host"] not in group["hosts"] else []
            group["ids"] += [entry["id"]] if entry["id"] not in group["ids"] else []
        found += same.values()
    return found


def _columns(hosts: Entries, column_of: Callable[[str], tuple[str, ...]]) -> list[list[str]]:
    """Return the names of the hosts of each column.

    Those of many hosts that are alike in all checks share one.
    """
    if len(hosts) <= HOSTS_NAMED:
        return [[host["name"]] for host in hosts]
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        alike.setdefault(column_of(host["name"]), []).append(host["name"])
    # Problems come first.
    return sorted(alike.values(), key=len)


def _same_reason(cells: Entries) -> Mapping[str, Any] | None:
    """Return the first of the cells if none was made for the same reason, which is then shown as
    text.
    """
    if len({entry["found"] for entry in cells}) == 1 and all(
        entry["verdict"] in NOT_MADE for entry in cells
    ):
        return cells[0]
    return None


def matrix(report: Report, published: Entries) -> dict[str, Any]:
    """The table of checks and hosts.

    Columns are hosts; those of many hosts that are alike in all checks share one. Rows are checks
    in the published order, each with a cell for each column. C(others) are the checks of which
    there is no finding.
    """
    findings: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in report["checks"]:
        for name in names_in(entry["host"], report["hosts"]):
            findings.setdefault((entry["id"], name), []).append(entry)
    worst: dict[tuple[str, str], Mapping[str, Any]] = {
        key: max(reversed(entries), key=lambda entry: SEVERITY.index(entry["verdict"]))
        for key, entries in findings.items()
    }
    lacking = {
        entry["id"]
        for entry in not_made(report["checks"], report["hosts"], published, report["required"])
    }
    known: dict[str, Mapping[str, Any]] = {check["id"]: check for check in published}
    ids = list(dict.fromkeys([*known, *(entry["id"] for entry in report["checks"])]))

    def cell(check_id: str, name: str) -> Mapping[str, Any]:
        return worst.get((check_id, name), {"verdict": "", "found": ""})

    columns = _columns(
        report["hosts"],
        lambda name: tuple(cell(check_id, name)["verdict"] for check_id in ids),
    )
    rows, others = [], []
    for check_id in ids:
        check = known.get(check_id, {"title": check_id, "checked": ""})
        cells = [cell(check_id, names[0]) for names in columns]
        if not any(entry["verdict"] for entry in cells):
            others.append(check["title"])
            continue
        rows.append(
            {
                "title": check["title"],
                "checked": check["checked"],
                "cells": cells,
                "lacking": check_id in lacking,
                "reason": _same_reason(cells),
            }
        )
    return {
        "columns": [{"text": _heading(names), "names": ", ".join(names)} for names in columns],
        "rows": rows,
        "others": others,
    }


def _heading(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "%d hosts" % len(names)


def heat_maps(devices: Entries) -> list[dict[str, Any]]:
    """Return the tables of a burn-in: for each kind of device the tests as columns and the devices
    as rows, the slowest host first.

    A cell has the share of the median of the model, and a class for its colour.
    """
    tables = []
    for kind, title in (
        ("gpu", "GPUs"),
        ("cpu", "CPU ranks"),
        ("hca", "Network cards"),
        ("host", "Disks"),
    ):
        own = [device for device in devices if device["kind"] == kind and device["rates"]]
        tests = list(dict.fromkeys(test for device in own for test in device["rates"]))
        by_host: dict[str, list[Mapping[str, Any]]] = {}
        for device in own:
            by_host.setdefault(device["host"], []).append(device)
        if own:
            hosts = sorted(by_host.items(), key=lambda pair: min(map(_slowest, pair[1])))
            tables.append(
                {
                    "title": title,
                    "tests": tests,
                    "hosts": [
                        (name, [_heat_row(device, tests) for device in group])
                        for name, group in hosts
                    ],
                }
            )
    return tables


def _slowest(device: Mapping[str, Any]) -> float:
    """The lowest share of the median, below all others if the device has failed."""
    lowest: float = min(device["relative"].values(), default=1.0)
    return lowest - 1 if device["verdict"] == "fail" else lowest


def _heat_row(device: Mapping[str, Any], tests: list[str]) -> dict[str, Any]:
    cells = []
    for test in tests:
        rate, share = device["rates"].get(test), device["relative"].get(test)
        heat = "none" if share is None else str(min(9, max(0, round((1 - share) * 100))))
        unit = "TFLOP/s" if test.startswith("matmul") else "GB/s"
        text = busbw(rate)
        if rate is not None and share is not None:
            text = "%.0f %%" % (100 * share)
        title = "" if rate is None else "%.4g %s" % (rate, unit)
        cells.append({"heat": heat, "text": text, "said": title})
    return {"device": device, "cells": cells}


def grouped_changes(
    changes: Iterable[Change], titles: Mapping[str, str], hosts: Entries
) -> list[dict[str, Any]]:
    """Rows of changes: one for all hosts on which a fact changed alike, and one for all facts that
    changed alike on the same hosts, such as one that is down.

    If a fact changed in more ways than can be read, such as the addresses of many hosts, it has one
    row too, with the hosts in C(each).
    """
    alike: dict[str, dict[tuple[str, str], list[str]]] = {}
    for change in changes:
        rows = alike.setdefault(_fact(change, titles), {})
        names = rows.setdefault((change["before"], change["now"]), [])
        if change["host"]:
            names.extend(change["host"].split(", "))
    merged_rows: dict[Any, dict[str, Any]] = {}
    for fact, rows in alike.items():
        if len(rows) > HOSTS_NAMED:
            merged_rows[fact] = _row_of_many(fact, rows, hosts)
            continue
        for (before, now), names in rows.items():
            row = merged_rows.setdefault(
                (tuple(names), before, now),
                {
                    "whats": [],
                    "hosts": crew(names, hosts),
                    "before": before,
                    "now": now,
                    "each": [],
                },
            )
            row["whats"].append(fact)
            row["what"] = ", ".join(row["whats"])
    return list(merged_rows.values())


def _row_of_many(
    fact: str, rows: Mapping[tuple[str, str], list[str]], hosts: Entries
) -> dict[str, Any]:
    """The row of a fact that changed in many ways. C(rows) has the hosts of each of them."""
    return {
        "what": fact,
        "hosts": crew([name for names in rows.values() for name in names], hosts),
        "before": _span([before for before, now in rows]),
        "now": _span([now for before, now in rows]),
        "each": [(", ".join(names), before, now) for (before, now), names in rows.items()],
    }


def _fact(change: Change, titles: Mapping[str, str]) -> str:
    """What has changed, without the host."""
    if change["what"] == "%shost %s" % (PEAK, change["host"]):
        return PEAK + "host alone"
    return titles.get(change["what"], change["what"])


def _span(texts: list[str]) -> str:
    """Several values as one: bandwidths from the lowest to the highest."""
    texts = list(dict.fromkeys(texts))
    if len(texts) == 1:
        return texts[0]
    found = [re.fullmatch(r"([\d.]+) GB/s(?: \(([+-]\d+) %\))?", text) for text in texts]
    bandwidths = [match for match in found if match]
    if len(bandwidths) < len(texts):
        return "%d values" % len(texts)
    values = sorted(float(match.group(1)) for match in bandwidths)
    percents = sorted(int(match.group(2)) for match in bandwidths if match.group(2))
    text = "%.3g to %.3g GB/s" % (values[0], values[-1])
    return text + (" (%+d to %+d %%)" % (percents[0], percents[-1]) if percents else "")


def versions(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Versions of each component, and their hosts."""
    found: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        for name, components in report["versions"].items():
            for component, version in components.items():
                found.setdefault(component, {}).setdefault(version or "none", []).append(name)
    names = dict.fromkeys(name for report in reports for name in report["versions"])
    hosts = [{"name": name} for name in names]
    return [
        {
            "component": component,
            "differs": len(by_version) > 1,
            "entries": [
                {"version": version, "hosts": _with_version(those, hosts)}
                for version, those in by_version.items()
            ],
        }
        for component, by_version in found.items()
    ]


def _with_version(names: list[str], hosts: Entries) -> Crew:
    """The hosts that have a version, of those whose versions are known."""
    if len(names) == len(hosts):
        return {"text": "all hosts", "names": ""}
    return crew(names, hosts)


def slowest(runs: Sequence[Run]) -> dict[str, Any]:
    """Failed and slowest runs of many, with their share of the fastest, and the number of
    all runs.
    """
    most = max((run["max_busbw_gb_s"] or 0 for run in runs), default=0)
    shown = list(runs)
    if len(runs) > SLOWEST:
        shown.sort(key=lambda run: (run["passed"], run["max_busbw_gb_s"] or 0))
    return {
        "count": len(runs),
        # Without any bandwidth all shares are 0.
        "shown": [
            dict(run, share=100 * (run["max_busbw_gb_s"] or 0) / (most or 1))
            for run in shown[:SLOWEST]
        ],
    }


def _run_ids(reports: Sequence[Report]) -> list[str]:
    """The ids of the runs of these reports, without those of the search for suspects."""
    runs = [run for report in reports for run in report["bandwidth"]["runs"]]
    return list(dict.fromkeys(run["id"] for run in runs if not between(run["id"])))


def _side_by_side(reports: Sequence[Report]) -> list[dict[str, Any]]:
    by_id = [{run["id"]: run for run in report["bandwidth"]["runs"]} for report in reports]
    return [
        {"id": run_id, "both": [runs.get(run_id) for runs in by_id]} for run_id in _run_ids(reports)
    ]


# --- curves -----------------------------------------------------------------------------------------------------------------------


def points(run: Run) -> list[Point]:
    """Size and bus bandwidth of each measured row."""
    measured = [(row["size_bytes"], row["out_of_place"] or row["in_place"]) for row in run["rows"]]
    return [
        (count, values["busbw_gb_s"])
        for count, values in measured
        if count and values and values["busbw_gb_s"] is not None
    ]


def _run(report: Report, run_id: str) -> Run | None:
    return next((run for run in report["bandwidth"]["runs"] if run["id"] == run_id), None)


class Line(NamedTuple):
    """One curve. A curve without a label is one of a group, of which another has the label."""

    points: list[Point]
    colour: str
    label: str = ""
    width: float = 1.4
    alpha: float = 1.0


class HostChart(NamedTuple):
    """What is drawn for one host: the lines, and what is required. C(run) has its numbers."""

    name: str
    run: Run
    lines: list[Line]
    needed: list[Need]


def _chart_across_hosts(report: Report, earlier: Sequence[Report], run: Run) -> Chart | None:
    """The chart of a run of the whole cluster, with those of earlier reports behind it."""
    collective = report["bandwidth"]["collective"]
    before = [
        _run(other, "cluster")
        for other in earlier
        if other["bandwidth"]["collective"] == collective
    ]
    lines = []
    for number, former in enumerate(before):
        if former:
            lines.append(Line(points(former), OLD, "", 1.2, 1.0 if number == 0 else 0.5))
    if lines:
        label = "previous run" if len(lines) == 1 else "%d previous runs" % len(lines)
        lines[0] = lines[0]._replace(label=label)
    # The last curve is on top.
    colour = NOW if run["passed"] else BAD
    lines = lines[::-1] + [Line(points(run), colour, "this run", 2.2)]
    return _chart("Across hosts", lines, _needed([("required", run)]))


def _chart_of_each_host(runs: Sequence[Run]) -> Chart | None:
    """The chart of runs on single hosts, or a small one for each of many hosts."""
    if len(runs) > HOSTS_NAMED:
        entries = []
        for run in runs:
            line = Line(points(run), NOW if run["passed"] else BAD)
            needed = _needed([("required", run)])
            entries.append(HostChart(run["hosts"][0], run, [line], needed))
        return _small_multiples("On each host alone", entries, band=True)
    lines = []
    for run, colour in zip(runs, HOSTS):
        name, width = _short(run["hosts"][0]), 1.4
        if not run["passed"]:
            name, width = "%s %s" % (SIGNS["fail"], name), 2.2
        lines.append(Line(points(run), colour, name, width))
    return _chart("On each host alone", lines, _needed([("required", runs[0])]), MARKS)


def charts(report: Report, earlier: Sequence[Report]) -> list[Chart]:
    """The charts of one report: across the cluster with earlier runs, and per host."""
    if not has_matplotlib():
        return []
    found, whole = [], _run(report, "cluster")
    if whole:
        found.append(_chart_across_hosts(report, earlier, whole))
    alone = [run for run in report["bandwidth"]["runs"] if run["id"].startswith("host:")]
    if alone:
        found.append(_chart_of_each_host(alone))
    return [chart for chart in found if chart]


def _compared_runs(before: Report, now: Report, run_id: str) -> list[tuple[str, Run, Line]]:
    """Return [(word, run, line)] of a run in two reports, as far as they have it."""
    found = []
    for word, report, colour, width in (("before", before, OLD, 1.4), ("after", now, NOW, 2.2)):
        run = _run(report, run_id)
        if run:
            found.append((word, run, Line(points(run), colour, word, width)))
    return found


def comparison_charts(before: Report, now: Report, changes: Iterable[Change]) -> list[Chart]:
    """Across the cluster, and hosts alone whose bandwidth differs."""
    if not has_matplotlib():
        return []
    changed = {change["host"] for change in changes if change["what"].startswith(PEAK)}
    whole, alone = [], []
    for run_id in _run_ids([before, now]):
        name = run_id.partition(":")[2]
        if run_id == "cluster":
            whole.append(_compared("Across hosts", _compared_runs(before, now, run_id)))
        elif name in changed:
            alone.append(_compared(name, _compared_runs(before, now, run_id)))
    found = [_chart(entry.name, entry.lines, entry.needed) for entry in whole]
    if len(alone) > HOSTS_NAMED:
        found.append(_small_multiples("Hosts alone whose peak differs", alone))
    else:
        found += [_chart(entry.name, entry.lines, entry.needed) for entry in alone]
    return [chart for chart in found if chart]


def _compared(name: str, runs: list[tuple[str, Run, Line]]) -> HostChart:
    """What is drawn of a run in two reports.

    The numbers are those of the second one, if it has the run.
    """
    needed = _needed([(word, run) for word, run, line in runs])
    return HostChart(name, runs[-1][1], [line for word, run, line in runs], needed)


def _needed(runs: Sequence[tuple[str, Run]]) -> list[Need]:
    """What runs have to reach, with a label. Those of two runs are one if they do not differ."""
    values: dict[str, list[tuple[str, float]]] = {}
    for word, run in runs:
        value = run["expected"]["required_gb_s"]
        if value:
            values.setdefault(busbw(value), []).append((word, value))
    found = []
    for entries in values.values():
        word, value = entries[0]
        label = "required" if len(entries) == len(runs) else "required " + word
        found.append((value, label))
    return found


def _short(name: str) -> str:
    """Names of hosts differ at the end as often as at the beginning."""
    return name if len(name) <= LABEL else name[: LABEL // 2 - 1] + "…" + name[-LABEL // 2 :]


def _apart(heights: list[float]) -> list[float]:
    """The same heights from 0 to 1, moved as far as their labels need, in the given order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved, least = list(heights), 0.0
    for place in order:
        moved[place] = least = max(moved[place], least)
        least += LINE_HEIGHT
    most = 1.0
    for place in reversed(order):
        moved[place] = most = min(moved[place], most)
        most -= LINE_HEIGHT
    return moved


def _ticks(sizes: list[int]) -> list[int]:
    """At most five of the measured sizes, with the last."""
    step = max(1, math.ceil(len(sizes) / 5.0))
    return sizes[::-1][::step][::-1]


def _chart(
    title: str,
    lines: list[Line],
    needed: Sequence[Need] = (),
    marks: Sequence[str] = ("o",),
) -> Chart | None:
    """None if there is nothing to draw.

    Each line has its label beside its last point, and C(marks) in turn.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    highest = [value for line in lines for count, value in line.points]
    highest += [value for value, label in needed]
    top = 1.08 * max(highest) or 1.0
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}):
        figure = Figure(figsize=(4.4, 2.9), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for number, line in enumerate(lines):
            axes.plot(
                *zip(*line.points),
                color=line.colour,
                linewidth=line.width,
                marker=marks[number % len(marks)],
                markersize=3 + line.width / 2,
                alpha=line.alpha,
            )
        for value, _label in needed:
            axes.axhline(value, color=NEED, linewidth=1.2, linestyle=(0, (5, 3)))
        _draw_axes(axes, sorted({count for line in lines for count, value in line.points}), top)
        figure.patch.set_alpha(0)
        _draw_labels(axes, lines, needed, top)
        drawn = io.StringIO()
        figure.savefig(
            drawn,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return {"title": title, "svg": Markup(_of_page(drawn.getvalue(), title)), "panels": []}


def _draw_axes(axes: Any, sizes: list[int], top: float) -> None:
    """Draw the axes of matplotlib for these sizes, and bandwidths up to C(top)."""
    import matplotlib

    axes.set_xscale("log", base=2)
    axes.set_ylim(0, top)
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 4.0, sizes[0] * 4.0)
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xticks(_ticks(sizes), [size(count) for count in _ticks(sizes)])
    axes.set_ylabel("bus bandwidth, GB/s", color=INK)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    axes.patch.set_alpha(0)


def _draw_labels(axes: Any, lines: list[Line], needed: Sequence[Need], top: float) -> None:
    """Draw the labels beside the ends of the lines and of what is needed.

    C(top) is the highest value of the chart.
    """
    labels: list[tuple[float, str, str, Place, Any]] = [
        (line.points[-1][1] / top, line.label, line.colour, line.points[-1], axes.transData)
        for line in lines
        if line.label
    ]
    labels += [
        (value / top, label, NEED, (1.0, value / top), axes.transAxes) for value, label in needed
    ]
    # From high to low, and in their order where several end at the same height.
    labels.sort(key=lambda entry: -entry[0])
    heights = _apart([entry[0] - number * 1e-9 for number, entry in enumerate(labels)])
    for (_height, label, colour, end, transform), height in zip(labels, heights):
        # A dollar sign would begin a formula.
        axes.annotate(
            label.replace("$", r"\$"),
            end,
            (1.06, height),
            transform,
            axes.transAxes,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def _of_page(text: str, title: str) -> str:
    """Return a drawing as a part of the page: with its colours and font, and with ids that are
    unique in it.
    """
    text = re.sub(
        r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*",
        "",
        text[text.index("<svg") :],
        flags=re.DOTALL,
    )
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    prefix = re.sub(r"\W", "-", title)
    text = re.sub(r"(\bid=\"|href=\"#|url\(#)", lambda match: match.group(1) + prefix + "-", text)
    box = re.findall(r"viewBox=\"[^\"]*\"", text)[0]
    text = '<svg %s role="img" aria-label="%s" xmlns:xlink="http://www.w3.org/1999/xlink">%s' % (
        box,
        escape(title),
        text[text.index(">") + 1 :],
    )
    return text


# --- small charts for many hosts -------------------------------------------------------------------------------------------------------


def _band(drawn: list[Point], place: Callable[[int, float], Place]) -> str:
    """The range of all hosts at each size, as a path."""
    everyone: dict[int, list[float]] = {}
    for count, value in sorted(drawn):
        everyone.setdefault(count, []).append(value)
    edge = [place(count, max(values)) for count, values in everyone.items()]
    edge += [place(count, min(values)) for count, values in reversed(everyone.items())]
    return '<path d="%sZ" style="fill: var(--grid)"/>' % _path(edge)


def _worst_first(entries: Sequence[HostChart]) -> list[HostChart]:
    """Those of which there is something to draw: failed runs, then slow ones."""
    return sorted(
        (entry for entry in entries if any(line.points for line in entry.lines)),
        key=lambda entry: (entry.run["passed"], entry.run["max_busbw_gb_s"] or 0),
    )


def _small_multiples(
    title: str, entries: Sequence[HostChart], band: bool = False
) -> SmallCharts | None:
    """A small chart for each host, all with the same axes.

    Failed and slow hosts come first. With C(band) each chart shows the range of all hosts behind
    the host's own curve.
    """
    entries = _worst_first(entries)
    if not entries:
        return None
    drawn = [point for entry in entries for line in entry.lines for point in line.points]
    sizes = sorted({count for count, value in drawn})
    required = [value for entry in entries for value, label in entry.needed]
    top = max([value for count, value in drawn] + required)
    place = functools.partial(_place, sizes=sizes, top=top)
    behind = _band(drawn, place) if band else ""
    note = "From %s to %s, and from 0 to %s GB/s. Dashed: required." % (
        size(sizes[0]),
        size(sizes[-1]),
        busbw(top),
    )
    note += " Grey: the range of all %d hosts." % len(entries) if band else " Grey: before."
    return {
        "title": title,
        "svg": "",
        "note": note,
        "first": SLOWEST,
        "panels": [_panel(entry, place, behind) for entry in entries],
    }


def _place(count: int, value: float, sizes: list[int], top: float) -> Place:
    """Where a bandwidth at a size is in a small chart, in its own units from the upper left."""
    width, height = (length - 2 * EDGE for length in PANEL)
    across = (
        (math.log2(count) - math.log2(sizes[0])) / (math.log2(sizes[-1]) - math.log2(sizes[0]))
        if len(sizes) > 1
        else 0.5
    )
    return EDGE + width * across, EDGE + height * (1 - value / top if top else 1)


def _path(places: Iterable[Place]) -> str:
    return "M" + "L".join("%.1f %.1f" % place for place in places)


def _panel(entry: HostChart, place: Callable[[int, float], Place], behind: str) -> dict[str, Any]:
    name, run, lines, needed = entry
    text = behind
    for value, dummy in needed:
        text += '<path d="M%d %.1fH%d" style="stroke: var(--warn); stroke-dasharray: 4 3"/>' % (
            EDGE,
            place(1, value)[1],
            PANEL[0] - EDGE,
        )
    for line in lines:
        if line.points:
            places = [place(*point) for point in line.points]
            text += '<path d="%s" style="fill: none; stroke: %s; stroke-width: 2"/>' % (
                _path(places),
                _COLOURS[line.colour],
            )
            text += '<circle cx="%.1f" cy="%.1f" r="2.5" style="fill: %s"/>' % (
                *places[-1],
                _COLOURS[line.colour],
            )
    speed = "%s GB/s" % busbw(run["max_busbw_gb_s"])
    return {
        "name": name,
        "said": speed,
        "passed": run["passed"],
        "svg": Markup('<svg viewBox="0 0 %d %d" role="img" aria-label="%s: %s">%s</svg>')
        % (*PANEL, name, speed, Markup(text)),
    }
