# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A page of one or two reports: one file without scripts and external resources.

The templates escape all text from hosts. Curves need matplotlib. Without it the page has only their numbers and says so.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re

from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._report import NAMED, NOT_MADE, PEAK, SEVERITY, between, merged, names_in, not_made

WORDS = {"pass": "pass", "warn": "warning", "fail": "fail", "skipped": "skipped", "not_evaluated": "not made", "": "not there"}
SIGNS = {"pass": "✓", "warn": "!", "fail": "✕", "skipped": "–", "not_evaluated": "?", "": "·"}
# The slow runs matter; 64 hosts have 2016 pairs.
SLOWEST = 12
# Up to this number every host has a distinguishable curve and its own column.
HOSTS_NAMED = 8
LABEL = 28
# Placeholder colours for matplotlib, which the page replaces by the colours of its two themes.
INK, GRID, NOW, OLD, BAD, NEED = ("#%02d%02d%02d" % (number, number, number) for number in range(1, 7))
_COLOURS = {INK: "var(--ink)", GRID: "var(--grid)", NOW: "var(--now)", OLD: "var(--old)", BAD: "var(--fail)", NEED: "var(--warn)"}


def has_matplotlib():
    return importlib.util.find_spec("matplotlib") is not None


def render(report, published, suspect_file, earlier=()):
    """The page of one report. C(earlier) are earlier reports of this cluster, newest first."""
    titles = {check["id"]: check["title"] for check in published}
    return _environment().get_template("report.html.j2").render(
        report=report,
        title="%s: %s" % (report["cluster"], report["verdict"]),
        headline=headline(report, titles),
        gpus=sum(host.get("gpus", 0) for host in report["hosts"]),
        suspect_file=suspect_file,
        groups=groups(report, published),
        matrix=matrix(report, published),
        changes=changes_by_host(report["changes"], titles),
        counts={word: sum(entry["verdict"] == verdict for entry in report["checks"]) for verdict, word in WORDS.items() if verdict},
        meanings=merged(report["explanations"]),
        versions=versions([report]),
        whole=_run(report, "cluster"),
        alone=slowest([run for run in report["bandwidth"]["runs"] if run["id"].startswith("host:")]),
        pairs=slowest([run for run in report["bandwidth"]["runs"] if between(run["id"])]),
        charts=charts(report, earlier),
        curves_missing=bool(report["bandwidth"]["runs"]) and not has_matplotlib(),
        earlier=[other for other in earlier if other["bandwidth"]["runs"]],
        titles=titles,
    )


def render_comparison(before, now, published, changes):
    """The page that compares two reports."""
    both, titles = [before, now], {check["id"]: check["title"] for check in published}
    return _environment().get_template("compare.html.j2").render(
        both=both,
        title="%s: %s and %s" % (now["cluster"], before["generated"], now["generated"]),
        headlines=[headline(report, titles) for report in both],
        changes=changes_by_host(changes, titles),
        matrices=[matrix(report, published) for report in both],
        versions=[versions([report]) for report in both],
        charts=comparison_charts(before, now, changes),
        runs=_side_by_side(both),
        curves_missing=any(report["bandwidth"]["runs"] for report in both) and not has_matplotlib(),
        titles=titles,
    )


def _environment():
    environment = Environment(loader=FileSystemLoader(os.path.dirname(__file__)), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)
    environment.filters.update(when=when, words=WORDS.get, sign=SIGNS.get, busbw=busbw, size=size, among=among)
    return environment


# --- data of the templates ------------------------------------------------------------------------------------------------------


def when(generated):
    return generated.replace("T", " ").replace("Z", " UTC")


def busbw(value):
    return "–" if value is None else "%.3g" % value if value < 1000 else "%.0f" % value


def size(count):
    """1048576: 1 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return "%g %s" % (round(count, 2), unit)
        count /= 1024.0
    return ""


def headline(report, titles):
    """One sentence with the suspects."""
    if report["verdict"] == "pass":
        made = sum(entry["verdict"] == "pass" for entry in report["checks"])
        return "All %d checks on %s have passed." % (made, quantity(len(report["hosts"]), "host"))
    bad = list(dict.fromkeys(titles.get(entry["id"], entry["id"]) for verdict in ("fail", "warn") for entry in report["checks"] if entry["verdict"] == verdict))
    reasons = "; ".join(report["reasons"])
    text = reasons[:1].upper() + reasons[1:] + (": %s" % ", ".join(bad) if 0 < len(bad) <= NAMED and len(report["reasons"]) == 1 else "") + "."
    for entry in report["blame"]:
        text += " At fault: %s." % ("the link between " + " and ".join(entry["names"]) if entry["kind"] == "link" else ", ".join(entry["names"]))
    return text


def among(names, report):
    """Hosts as text. If there are many, all of them are given as a number."""
    known = [host["name"] for host in report["hosts"]]
    told = [name for name in known if any(name in names_in(text, report["hosts"]) for text in names)]
    return "all %d hosts" % len(known) if len(told) == len(known) > 3 else ", ".join(told)


def groups(report, published):
    """What to do: findings that differ only in their host are merged, and those that fail the verdict come first."""
    lacking = not_made(report["checks"], report["hosts"], published, report["required"])
    kinds = [("fail", [entry for entry in report["checks"] if entry["verdict"] == "fail"]), ("not_evaluated", lacking),
             ("warn", [entry for entry in report["checks"] if entry["verdict"] == "warn"])]
    found = []
    for kind, entries in kinds:
        same = {}
        for entry in entries:
            # All checks of a host that did not answer are one item.
            key = (entry["found"], entry["fix"], "" if kind == "not_evaluated" else entry["id"] + entry["expected"] + entry["source"])
            group = same.setdefault(key, dict(entry, kind=kind, hosts=[], ids=[]))
            group["hosts"] += [entry["host"]] if entry["host"] not in group["hosts"] else []
            group["ids"] += [entry["id"]] if entry["id"] not in group["ids"] else []
        found += same.values()
    return found


def matrix(report, published):
    """The table of checks and hosts.

    Columns are hosts; those of many hosts that are alike in all checks share one. Rows are checks in the published order, each with a cell for each column.
    C(others) are the checks of which there is no finding.
    """
    findings = {}
    for entry in report["checks"]:
        for name in names_in(entry["host"], report["hosts"]):
            findings.setdefault((entry["id"], name), []).append(entry)
    for entries in findings.values():
        entries.sort(key=lambda entry: SEVERITY.index(entry["verdict"]))
    lacking = {entry["id"] for entry in not_made(report["checks"], report["hosts"], published, report["required"])}
    known = {check["id"]: check for check in published}
    ids = list(known) + [name for name in dict.fromkeys(entry["id"] for entry in report["checks"]) if name not in known]

    def worst(check_id, name):
        return findings[check_id, name][-1] if (check_id, name) in findings else {"verdict": "", "found": ""}

    alike = {}
    for host in report["hosts"]:
        column = tuple(worst(check_id, host["name"])["verdict"] for check_id in ids)
        alike.setdefault(column if len(report["hosts"]) > HOSTS_NAMED else host["name"], []).append(host["name"])
    # Problems come first.
    columns = sorted(alike.values(), key=len) if len(report["hosts"]) > HOSTS_NAMED else list(alike.values())
    rows, others = [], []
    for check_id in ids:
        check = known.get(check_id, {"title": check_id, "checked": ""})
        cells = [worst(check_id, names[0]) for names in columns]
        if not any(entry["verdict"] for entry in cells):
            others.append(check["title"])
            continue
        texts = {entry["found"] for entry in cells}
        rows.append({"title": check["title"], "checked": check["checked"], "cells": cells,
                     "lacking": check_id in lacking,
                     # A reason that is the same for all hosts is shown as text.
                     "reason": cells[0] if len(texts) == 1 and all(entry["verdict"] in NOT_MADE for entry in cells) else None})
    return {"columns": [{"text": names[0] if len(names) == 1 else "%d hosts" % len(names), "names": ", ".join(names)} for names in columns],
            "rows": rows, "others": others}


def changes_by_host(changes, titles):
    """Equal changes on one host, such as one that is down, are merged into one line."""
    found = {}
    for change in changes:
        entry = found.setdefault((change["host"], change["before"], change["now"]), dict(change, whats=[]))
        entry["whats"].append(titles.get(change["what"], change["what"]))
    return [dict(entry, what=", ".join(entry["whats"])) for entry in found.values()]


def versions(reports):
    """Versions of each component, and their hosts."""
    found = {}
    for report in reports:
        for name, components in report["versions"].items():
            for component, version in components.items():
                found.setdefault(component, {}).setdefault(version or "none", []).append(name)
    hosts = {name for report in reports for name in report["versions"]}
    return [{"component": component, "differs": len(by_version) > 1,
             "entries": [{"version": version, "hosts": "all hosts" if len(names) == len(hosts) else ", ".join(names)} for version, names in by_version.items()]}
            for component, by_version in found.items()]


def slowest(runs):
    """Failed and slowest runs of many, with their share of the fastest, and the number of all runs."""
    most = max((run["max_busbw_gb_s"] or 0 for run in runs), default=0)
    shown = runs if len(runs) <= SLOWEST else sorted(runs, key=lambda run: (run["passed"], run["max_busbw_gb_s"] or 0))[:SLOWEST]
    return {"count": len(runs), "shown": [dict(run, share=100 * (run["max_busbw_gb_s"] or 0) / most if most else 0) for run in shown]}


def _side_by_side(reports):
    ids = list(dict.fromkeys(run["id"] for report in reports for run in report["bandwidth"]["runs"] if not between(run["id"])))
    by_id = [{run["id"]: run for run in report["bandwidth"]["runs"]} for report in reports]
    return [{"id": run_id, "both": [runs.get(run_id) for runs in by_id]} for run_id in ids]


# --- curves -----------------------------------------------------------------------------------------------------------------------


def points(run):
    """Size and bus bandwidth of each measured row."""
    measured = [(row["size_bytes"], row["out_of_place"] or row["in_place"]) for row in run["rows"]]
    return [(count, values["busbw_gb_s"]) for count, values in measured if count and values and values["busbw_gb_s"] is not None]


def _run(report, run_id):
    return next((run for run in report["bandwidth"]["runs"] if run["id"] == run_id), None)


class Line(NamedTuple):
    """One curve. A curve without a label is not in the legend."""

    points: list
    colour: str
    label: str = ""
    width: float = 1.4
    alpha: float = 1.0


def charts(report, earlier):
    """The charts of one report: across the cluster with earlier runs, and per host."""
    if not has_matplotlib():
        return []
    found = []
    whole = _run(report, "cluster")
    if whole:
        before = [(other, _run(other, "cluster")) for other in earlier if other["bandwidth"]["collective"] == report["bandwidth"]["collective"]]
        lines = [Line(points(run), OLD, "", 1.2, 1.0 if number == 0 else 0.5) for number, (other, run) in enumerate(before) if run]
        if lines:
            lines[0] = lines[0]._replace(label="the previous run" if len(lines) == 1 else "%d previous runs" % len(lines))
        # The last curve is on top.
        lines = lines[::-1] + [Line(points(whole), NOW if whole["passed"] else BAD, "this run", 2.2)]
        found.append(_chart("Across hosts", lines, _needed(whole)))
    alone = [run for run in report["bandwidth"]["runs"] if run["id"].startswith("host:")]
    if alone:
        good = [run for run in alone if run["passed"]]
        few = len(alone) <= HOSTS_NAMED
        lines = [Line(points(run), NOW, run["hosts"][0] if few else "" if number else "%d hosts that pass" % len(good)) for number, run in enumerate(good)]
        lines += [Line(points(run), BAD, run["hosts"][0], 2.2) for run in alone if not run["passed"]]
        found.append(_chart("On each host alone", lines, _needed(alone[0]), tell_apart=few))
    return [chart for chart in found if chart]


def comparison_charts(before, now, changes):
    """Across the cluster, and hosts alone whose bandwidth differs."""
    if not has_matplotlib():
        return []
    told = {change["host"] for change in changes if change["what"].startswith(PEAK)}
    found = []
    for run_id in dict.fromkeys(run["id"] for report in (before, now) for run in report["bandwidth"]["runs"] if not between(run["id"])):
        name = run_id.partition(":")[2]
        if run_id == "cluster" or name in told:
            runs = [(report, _run(report, run_id)) for report in (before, now)]
            lines = [Line(points(run), colour, when(report["generated"]), width) for (report, run), colour, width in zip(runs, (OLD, NOW), (1.4, 2.2)) if run]
            found.append(_chart(name or "Across hosts", lines))
    return [chart for chart in found if chart][:HOSTS_NAMED]


def _needed(run):
    return run["expected"]["required_gb_s"]


def _chart(title, lines, needed=None, tell_apart=False):
    """None if there is nothing to draw. With C(tell_apart) each line gets another marker, because colours mean pass and fail here."""
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    marks = ("o", "s", "^", "D", "v", "P", "X", "*") if tell_apart else ("o",)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}):
        figure = Figure(figsize=(4.4, 2.9), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for number, line in enumerate(lines):
            # A dollar sign would begin a formula, and a long name would take the space of the curves.
            label = line.label if len(line.label) <= LABEL else line.label[:LABEL - 1] + "…"
            axes.plot(*zip(*line.points), color=line.colour, linewidth=line.width, marker=marks[number % len(marks)], markersize=3 + line.width / 2,
                      alpha=line.alpha, label=label.replace("$", r"\$") or "_unnamed")
        if needed:
            axes.axhline(needed, color=NEED, linewidth=1.2, linestyle=(0, (5, 3)), label="required")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(lambda value, dummy: size(value))
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(base=2, numticks=7))
        axes.set_ylabel("bus bandwidth, GB/s", color=INK)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK, length=0)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(GRID)
        axes.patch.set_alpha(0)
        figure.patch.set_alpha(0)
        axes.legend(loc="best", frameon=False, labelcolor=INK)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = drawn.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text[text.index("<svg"):], flags=re.DOTALL)
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    # The font of the page, and ids that are unique in the page.
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    prefix = re.sub(r"\W", "-", title)
    text = re.sub(r"(\bid=\"|href=\"#|url\(#)", lambda match: match.group(1) + prefix + "-", text)
    box = re.search(r"viewBox=\"[^\"]*\"", text).group(0)
    text = "<svg %s role=\"img\" aria-label=\"%s\" xmlns:xlink=\"http://www.w3.org/1999/xlink\">%s" % (box, escape(title), text[text.index(">") + 1:])
    return {"title": title, "svg": Markup(text)}
