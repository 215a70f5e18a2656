# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse and judge the output of C(all_reduce_perf) of nccl-tests: text in, typed data out.

    # nThread 1 nGpus 1 minBytes 33554432 maxBytes 536870912 step: 2(factor) ... validation: 1 graph: 0
    #  Rank  0 Group  0 Pid 2201134 on cnode3-002 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
    #                                                              out-of-place                       in-place
    #       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        33554432       4194304    double     sum      -1   837.47   40.07   40.07       0   849.70   39.49   39.49       0
    # Out of bounds values : 0 OK
    # Avg bus bandwidth    : 43.6076

The layout has changed many times since 2015, and logs of it carry prefixes (a rank's tag, an indentation, a container's name), have lost their '#', and
have lines of NCCL and of launchers in between. So a line is recognised by its text at any position, and columns by the names in the header.

The figures of a table depend on each other: the bandwidths follow from size, time and number of ranks, and the average from all rows. If they are
inconsistent, rows were lost, damaged or mixed up. A run counts as complete only if its output shows that it is.
"""

from __future__ import annotations

import json
import math
import re

from collections import Counter
from typing import NamedTuple

from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import IN_GOOD_RUNS
from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import (
    rdma_connections,
    transports,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import find_errors
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
from ansible_collections.trainyard.gpu.plugins.module_utils._run_log import Around, remarks

# Bytes per element. For an unknown type, only the order of the sizes can be checked.
_WIDTHS = {
    "int8": 1,
    "char": 1,
    "uint8": 1,
    "int32": 4,
    "int": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float": 4,
    "double": 8,
    "bfloat16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
}
# Until NCCL 2.13 a column had the largest difference instead of the number of wrong values. These are the limits of nccl-tests, by type.
_DELTAS = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
_COLUMNS = {
    "bytes": "size",
    "N": "count",
    "op": "redop",
    "cputime": "time",
    "res": "error",
    "#wrong": "wrong",
}
_TOO_LONG = 4 * 1024

_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))|[\x00-\x08\x0b-\x1f\x7f]"
)
# A patched build prints function and line of the source before each piece of output.
_SOURCE_LINE = re.compile(r"[A-Za-z_]\w*\(\), [\w./]+:\d+, ?")
_COMMENT = re.compile(
    "nccl-tests version|Collective test|nThread|Rank |Reducing max|algbw|Out of bounds|Avg bus"
)
_STARTING = re.compile(r"Collective test starting: *(\S+)")
_CONCLUDED = re.compile(r"Collective test concluded: *(\S+)")
_BEFORE = {
    "version": (),
    "starting": ("version",),
    "config": ("version", "starting"),
    "header": ("config",),
}
_LIBRARY = re.compile(r"nccl-tests version .*nccl-library=(\d+)")
_CONFIG = re.compile(
    r"nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+)\((factor|bytes)\)(?=\s)(?:.*? validation: (\d+)(?!\d))?"
)
# Hydra and Open MPI put a rank's tag before each piece of its output, also in the middle of a line.
_TAG_INSIDE = re.compile(r"\[\d{1,6}\] |\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?")
_RANK = re.compile(
    r"Rank +(\d+) +(?:Group +(\d+) +)?(?:Pid +\d+ +)?(?:on +(\S+)|uses) +device +(\d+) +\[([0-9a-fA-Fx:.]+)\] *([^#]*)"
)
_REDUCING = re.compile(r"Reducing maxBytes to (\d+) due to memory limitation")
_HEADER = re.compile(r"\b(?:size +count|bytes +N) +type .*")
_TYPE = r"(?:u?int\d*|char|half|b?float\d*|double|b?f\d\w*|fp\d\w*)"
_ROW = re.compile(r"(?<![\w.,-])(\d+)[ \t]+(\d+)[ \t]+(" + _TYPE + r")\b(.*)")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values *: *(\d+) (OK|FAILED)\b")
_AVERAGE = re.compile(r"Avg bus bandwidth *: *(-?[\w.+-]+)(?: +(OK|FAILED)\b)?")
_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?(?:e([+-]?\d\d?))?$")
# The largest difference as C's %.0e prints it. RCCL marks one that is too large with an asterisk.
_DIFFERENCE = re.compile(r"\d(?:\.\d+)?e[+-]\d\d+$")
# A count of wrong values is 0, or 2.68435e+08 if it is large. 0.00 belongs to a different column.
_WHOLE = re.compile(r"\d+$|\d(?:\.\d+)?e[+]?\d+$")
_TIMESTAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_COMMAND = re.compile(
    r"\b(all_reduce|all_gather|alltoallv?|broadcast|gather|hypercube|reduce|reduce_scatter|scatter|sendrecv)_perf\b"
)

_NCCL_VERSION = re.compile(r"\bNCCL version (\d+\.\d+\.\d+)")
_NCCL_LINE = re.compile(r"NCCL (?:INFO|WARN|TRACE|version) ")
# A bus and an id are between the two.
_NRANKS = re.compile(r"\bn[rR]anks (\d{1,9})\b[^\n]{0,200}? Init COMPLETE")
# Names of networks contain blanks; a number after them is the adapter's. Concurrent writers truncate lines, so kinds of P2P and SHM are a list.


class Settings(NamedTuple):
    """The options of all_reduce_perf, as it prints them."""

    threads: int
    gpus: int
    min_bytes: int
    max_bytes: int | None
    step: int
    by_factor: bool
    checked: bool | None


class _Section:
    """One run of one test, or the mixed output of several concurrent runs."""

    def __init__(self, begin):
        self.begin, self.end = begin, begin
        self.heads = dict.fromkeys(("version", "starting", "config", "rank", "header"), 0)
        (
            self.name,
            self.command,
            self.concluded,
            self.settings,
            self.max_bytes,
            self.nccl_version,
        ) = "", "", "", None, None, None
        self.devices, self.unlisted, self.said = [], 1, ""
        self.columns, self.milliseconds, self.cpu_time, self.has_operation = (
            None,
            False,
            False,
            False,
        )
        # Lines below the header that are not rows.
        self.around = None
        # Each row with half a unit of the last digit of its figures, and with its line.
        self.rows, self.damaged, self.precision = [], [], []
        self.out_of_bounds, self.averages = [], []
        # Parts of another run's head below the table's header; rows after the summary; a summary that may be truncated.
        self.mixed, self.late, self.cut = False, False, False

    @property
    def closed(self):
        return len(self.averages) >= max(1, self.heads["config"], self.heads["header"])

    def takes(self, kind):
        """Whether a line of a test's head belongs to this run and not to a concurrent process."""
        if self.closed:
            return False
        if (
            kind == "rank"
            or kind == "header"
            and not self.rows
            or self.heads[kind] < max([1] + [self.heads[before] for before in _BEFORE[kind]])
        ):
            return True
        # Independent processes are rank 0 of 1 each. In a real job only one rank prints. All others are later runs.
        return {device["rank"] for device in self.devices} <= {0} and (
            self.heads["config"] > 0 or not self.rows
        )


def _value(word):
    """A printed number with half a unit of its last digit. None for N/A and everything that is not a finite number."""
    found = _NUMBER.match(word)
    if not found:
        return None
    number = float(word)
    return number, 0.5 * 10.0 ** (int(found.group(2) or 0) - len(found.group(1) or ""))


def _version(code):
    """NCCL's version from its number: 2804 is 2.8.4, 22902 is 2.29.2."""
    code = int(code)
    parts = (
        (code // 1000, code % 1000 // 100, code % 100)
        if code < 10000
        else (code // 10000, code % 10000 // 100, code % 100)
    )
    return ".".join(str(part) for part in parts)


def _sections(text):
    """Split the text into one section per test, in their order."""
    reader = _Reader(len(text))
    for raw in text.split("\n"):
        reader.take(raw)
    commands = [(found.start(), found.group(0)) for found in _COMMAND.finditer(text)]
    for section, after in zip(reader.sections, reader.sections[1:] + [None]):
        section.end = after.begin if after else len(text)
        section.command = ([""] + [name for at, name in commands if at < section.begin])[-1]
    return reader.sections


class _Reader:
    def __init__(self, length):
        self.sections, self.length, self.at = [], length, 0

    def section(self, kind=None, name=""):
        """The section that a line belongs to; a line of a test's head may open a new one."""
        last = self.sections[-1] if self.sections else None
        if last is None or kind and not last.takes(kind) or name and last.name not in ("", name):
            last = _Section(self.at)
            self.sections.append(last)
        if kind:
            last.heads[kind] += 1
            last.mixed = last.mixed or kind in ("config", "rank") and last.heads["header"] > 0
        return last

    def take(self, raw):
        """Assign one line to a section."""
        line = raw[:_TOO_LONG]
        if not line.isprintable():
            line = _CONTROL.sub("", line.replace("\t", "    "))
        if "(), " in line:
            line = _SOURCE_LINE.sub(" ", line)
        around, ended, row = (
            self.sections[-1].around if self.sections else None,
            bool(self.sections and self.sections[-1].averages),
            None,
        )
        if "NCCL INFO" not in line and "NCCL TRACE" not in line:
            if "]" in line and "NCCL " not in line:
                line = _TAG_INSIDE.sub("", line)
            row = _ROW.search(line)
            if row:
                _take_row(row, line, self.section())
            if _COMMENT.search(line):
                self._take_comment(line, self.at + len(raw) >= self.length)
        # The head of a later run does not belong to this one.
        if around and around is self.sections[-1].around:
            around.add(line[: row.start()] if row else line, ended, bool(row))
        self.at += len(raw) + 1

    def _take_comment(self, line, is_last):
        found = _LIBRARY.search(line)
        if found:
            self.section("version").nccl_version = _version(found.group(1))
        found = _STARTING.search(line)
        if found:
            self.section("starting", found.group(1)).name = found.group(1)
        found = _CONFIG.search(line)
        if found:
            threads, gpus, least, most, step = (int(word) for word in found.groups()[:5])
            checked = None if found.group(7) is None else found.group(7) != "0"
            section = self.section("config")
            section.settings = section.settings or Settings(
                threads, gpus, least, most, step, found.group(6) == "factor", checked
            )
        for found in _RANK.finditer(line):
            rank, group, host, device, bus, name = found.groups()
            self.section("rank").devices.append(
                {
                    "rank": int(rank),
                    "group": int(group or 0),
                    "host": host or "localhost",
                    "device": int(device),
                    "bus_id": bus.lower(),
                    "name": name.strip(),
                }
            )
        found = _REDUCING.search(line)
        if found:
            self.section().max_bytes = int(found.group(1))
        found = _HEADER.search(line)
        if found:
            section = self.section("header")
            words = found.group(0).split()
            section.columns, section.has_operation = (
                _columns(words),
                bool({"redop", "op"} & set(words)),
            )
            section.around = section.around or Around(line[: found.start()])
            # The names from 2015 to 2018, when times were in milliseconds.
            section.milliseconds, section.cpu_time = (
                found.group(0).startswith("bytes"),
                "cputime" in found.group(0),
            )
        found = _OUT_OF_BOUNDS.search(line)
        if found:
            self.section().out_of_bounds.append(
                {
                    "count": int(found.group(1)),
                    "ok": found.group(2) == "OK" and int(found.group(1)) == 0,
                }
            )
        found = _AVERAGE.search(line)
        if found:
            section = self.section()
            section.averages.append((found.group(1), found.group(2)))
            # Six digits are printed, without trailing zeros. With fewer digits at the end of the text, the rest may be missing, unless the rows agree.
            section.cut = (
                is_last
                and found.end() == len(line)
                and 0 < len(re.sub(r"e.*|\D", "", found.group(1)).lstrip("0")) < 6
            )
        found = _CONCLUDED.search(line)
        if found and self.sections:
            self.sections[-1].concluded = found.group(1)


def _columns(words):
    """Names of the columns that a header has for each of the two placements. None if it cannot be parsed."""
    names = [_COLUMNS.get(word, word.lstrip("#")) for word in words]
    if names[-1] == "timestamp":
        names.pop()
    if "time" not in names:
        return None
    right = names[names.index("time") :]
    half = right.index("time", 1) if "time" in right[1:] else 0
    if (
        not half
        or right[:half] != right[half:]
        or not {"algbw", "busbw"} <= set(right)
        or not {"wrong", "error"} & set(right)
    ):
        return None
    return right[:half]


def _take_row(found, line, section):
    section.late = section.late or section.closed
    if not section.columns:
        section.damaged.append(line)
        return
    size, count, kind, rest = found.groups()
    words = _TIMESTAMP.sub("", rest).split()
    names = section.columns
    left, right = words[: -2 * len(names)], words[-2 * len(names) :]
    placements = [dict(zip(names, right[: len(names)])), dict(zip(names, right[len(names) :]))]
    # Collectives without an operation or a root leave these columns blank.
    redop = next((word for word in left if not _NUMBER.match(word)), None)
    root = next((int(word) for word in left if re.match(r"-?\d+$", word)), None)
    # All-reduce has an operation. A row without it has lost an unknown field.
    lost = (
        redop in (None, "none") and section.has_operation and section.name.startswith("all_reduce")
    )
    uneven = section.name.startswith("all_reduce") and not _is_whole(int(size), int(count), kind)
    if (
        lost
        or uneven
        or len(right) < 2 * len(names)
        or len(left) > 2
        or len(left) != (redop is not None) + (root is not None)
    ):
        section.damaged.append(line)
        return
    row = {"size_bytes": int(size), "count": int(count), "type": kind, "redop": redop, "root": root}
    exact = {}
    for name, placement in zip(("out_of_place", "in_place"), placements):
        taken = _placement(placement, kind, section.milliseconds)
        if taken is None:
            section.damaged.append(line)
            return
        row[name], exact[name] = taken
    section.rows.append(row)
    section.precision.append((exact, line))


def _is_whole(size, count, kind):
    """Whether that many elements have that many bytes."""
    return (
        count * _WIDTHS[kind] == size
        if kind in _WIDTHS
        else count * (size // max(count, 1)) == size
    )


def _placement(words, kind, milliseconds):
    """One half of a row, and its figures with half a unit of their last digit. None if one is not a valid number."""
    values = {name: _value(words[name]) for name in ("time", "algbw", "busbw")}
    # A time of 0 is not possible.
    if None in values.values() or values["time"][0] <= 0:
        return None
    if milliseconds:
        values["time"] = tuple(1000.0 * part for part in values["time"])
    word = words.get("wrong", words.get("error"))
    is_marked = word.endswith("*")
    word = word.rstrip("*")
    found = _value(word)
    if found is None and word != "N/A":
        return None
    wrong, error = None, None
    if found and "error" in words:
        if not _DIFFERENCE.match(word):
            return None
        error = found[0]
        wrong = int(is_marked or not 0 <= error <= _DELTAS.get(kind, 0.0))
    elif found:
        if not _WHOLE.match(word) or found[0] != int(found[0]):
            return None
        wrong = int(found[0])
    placement = {
        "time_us": values["time"][0],
        "algbw_gb_s": values["algbw"][0],
        "busbw_gb_s": values["busbw"][0],
        "wrong": wrong,
    }
    if error is not None:
        placement["error"] = error
    return placement, values


def _is_all_reduce(section):
    """Whether it is this collective; None if unknown, as in a run that ended before its table."""
    if section.name:
        return section.name.startswith("all_reduce")
    if not section.rows:
        return None if section.command in ("", "all_reduce_perf") else False
    # Reduce has a root, reduce-scatter counts only a rank's part, and all others have no operation.
    return all(
        row["redop"] not in (None, "none")
        and row["root"] in (None, -1)
        and _is_whole(row["size_bytes"], row["count"], row["type"])
        for row in section.rows
    )


def _document(text):
    """The one section of the tool's JSON (option -J); None if the text is not such a document, or is truncated."""
    try:
        told = json.loads(text)
        section, config = _Section(0), told["config"]
        section.name = section.concluded = re.split(r"[/\\]", told["args"][0])[-1]
        section.nccl_version = _version(told["nccl_version"])
        # The document has the requested largest size, and not the one that fits the GPUs' memory.
        section.settings = Settings(
            config["nthreads"],
            config["ngpus"],
            config["minimum_bytes"],
            None,
            config.get("step_factor") or config["step_bytes"],
            "step_factor" in config,
            config["validation"] != 0,
        )
        for device in config["devices"]:
            section.devices.append(
                {
                    "rank": device["rank"],
                    "group": device["group"],
                    "host": device["hostname"],
                    "device": device["device"],
                    "bus_id": device["device_hex"].lower(),
                    "name": device["device_info"],
                }
            )
        # Each process lists its first GPU only.
        section.unlisted = config["nthreads"] * config["ngpus"]
        section.heads["header"], section.columns = 1, True
        for result in told.get("results", []):
            _take_result(result, section)
        # The first versions misspelt two keys.
        average = told.get("average_bus_bandwidth", told.get("average_bus_bandwidith"))
        if average and "out_of_bounds" in told and "end_time" in told:
            section.averages.append(
                (
                    "%.6f" % float(average.get("bandwidth", average.get("bandwidith"))),
                    "FAILED" if average["okay"] == "false" else None,
                )
            )
            count = told["out_of_bounds"]["count"]
            section.out_of_bounds.append(
                {"count": count, "ok": told["out_of_bounds"]["okay"] == "true" and count == 0}
            )
        # Not the whole text, because it contains the environment with its secrets.
        section.said = "\n".join(error for error in told.get("errors", []) if error)
        return section
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ):
        return None


def _plain(number):
    """A number of the document in the form of the text output."""
    return "%d" % number if number == int(number) else "%r" % number


def _take_result(result, section):
    """Read a row of the document. An aborted run leaves out values."""
    row, exact = (
        {
            "size_bytes": result["size"],
            "count": result["count"],
            "type": result["type"],
            "redop": result["redop"],
            "root": int(result["root"]),
        },
        {},
    )
    for name in ("out_of_place", "in_place"):
        placement = result.get(name) or {}
        section.cpu_time = section.cpu_time or "cpu_time" in placement
        figures = {
            "time": placement.get("time", placement.get("cpu_time")),
            "algbw": placement.get("alg_bw"),
            "busbw": placement.get("bus_bw"),
        }
        words = {
            key: "N/A" if value is None else "%.6f" % float(value) for key, value in figures.items()
        }
        taken = _placement(
            dict(
                words,
                wrong="N/A" if placement.get("nwrong") is None else _plain(placement["nwrong"]),
            ),
            row["type"],
            False,
        )
        if taken is None:
            section.damaged.append("size %d" % row["size_bytes"])
            return
        row[name], exact[name] = taken
    section.rows.append(row)
    section.precision.append((exact, "size %d" % row["size_bytes"]))


def _reason(name, cause, fix, line=None):
    return {
        "id": name,
        "cause": cause,
        "fix": fix,
        "source": None,
        "line": line and " ".join(line.split())[:500],
    }


def _known(text):
    """Known errors in the text as reasons, each once, in the order of find_errors. Good runs have lines of some, too."""
    found = {}
    for error in find_errors(text):
        if error["id"] not in IN_GOOD_RUNS:
            reason = _reason(error["id"], error["cause"], error["fix_operator"], error["line"])
            found.setdefault(error["id"], dict(reason, source=error["source"]))
    return list(found.values())


AGAIN = "run it again, and keep its complete output"


def _asked_sizes(section, sizes, width):
    """The sizes that this run prints, at most one more than it has. Sizes are whole numbers of elements."""
    settings = section.settings
    most = section.max_bytes or settings.max_bytes
    size, asked = min(settings.min_bytes, most or settings.min_bytes), []
    while (most is None or size <= most) and len(asked) <= len(sizes):
        asked.append(size - size % width)
        after = size * settings.step if settings.by_factor else size + settings.step
        if after <= size:
            break
        size = after
    # The document does not show its end, so growing sizes are one cycle.
    cycle = next(
        (number for number in range(1, len(sizes)) if sizes[number] < sizes[number - 1]), len(sizes)
    )
    return asked if most is not None else asked[:cycle]


def _regular(sizes, width):
    """Whether sizes grow by one factor or one step, except for rounding to whole elements."""
    if len(sizes) < 2:
        return True
    factor, step = round(sizes[-1] / sizes[-2]), sizes[-1] - sizes[-2]
    pairs = list(zip(sizes, sizes[1:]))
    return step > 0 and (
        all(abs(after - before * factor) < factor * width for before, after in pairs)
        or all(abs(after - before - step) < width for before, after in pairs)
    )


def _uneven(tables):
    """Whether the tables of a run without a list of its options differ: all types have the same operations and as many rows."""
    kinds = {}
    for kind, redop, root in tables:
        kinds.setdefault(kind, set()).add((redop, root))
    return len({len(sizes) for sizes in tables.values()}) > 1 or any(
        operations != next(iter(kinds.values())) for operations in kinds.values()
    )


def _missing_size(section):
    """What is wrong with the sequence of sizes as text; None if nothing is."""
    tables = {}
    for row in section.rows:
        tables.setdefault((row["type"], row["redop"], row["root"]), []).append(row["size_bytes"])
    if not section.settings and _uneven(tables):
        return "the types have different numbers of rows"
    for (kind, _redop, _root), sizes in tables.items():
        width = _WIDTHS.get(kind)
        if section.settings and width:
            asked = _asked_sizes(section, sizes, width)
            if sizes != asked * (len(sizes) // max(len(asked), 1)):
                missing = next((size for size in asked if size not in sizes), None)
                return (
                    "the sizes differ from the requested ones"
                    if missing is None
                    else "the row of %d bytes is missing" % missing
                )
        elif (
            not _regular([size for size in sizes if size], width or 8)
            or 0 in sizes[sizes.count(0) :]
        ):
            return "the sizes do not grow evenly from row to row"
    return None


def _misfit(section, ranks):
    """The line of the first row whose figures contradict each other, or the number of ranks."""
    least, most = 0.0, 2.0
    for row, (exact, line) in zip(section.rows, section.precision):
        if row["size_bytes"] < row["count"] or row["count"] * _WIDTHS.get(row["type"], 0) not in (
            0,
            row["size_bytes"],
        ):
            return line
        for (time, time_half), (algbw, algbw_half), (busbw, busbw_half) in (
            tuple(exact[name][key] for key in ("time", "algbw", "busbw"))
            for name in ("out_of_place", "in_place")
        ):
            if min(time, algbw, busbw) < 0:
                return line
            fastest = row["size_bytes"] / 1e3 / (time - time_half) if time > time_half else math.inf
            slowest = row["size_bytes"] / 1e3 / (time + time_half) if time else 0.0
            if (
                not section.cpu_time
                and not slowest * 0.999 - algbw_half <= algbw <= fastest * 1.001 + algbw_half
            ):
                return line
            if algbw > algbw_half:
                least, most = (
                    max(least, (busbw - busbw_half) / (algbw + algbw_half)),
                    min(most, (busbw + busbw_half) / (algbw - algbw_half)),
                )
            factor = 2.0 * (ranks - 1) / ranks if ranks else None
            if (
                least > most + 1e-6
                or factor is not None
                and not least - 1e-6 <= factor <= most + 1e-6
            ):
                return line
    return None


def _mean(section):
    """The average of the rows, the maximum loss by rounding, and the usual loss by rounding."""
    halves = [
        exact[name]["busbw"]
        for exact, _line in section.precision
        for name in ("out_of_place", "in_place")
    ]
    mean, half = (sum(column) / len(halves) for column in zip(*halves))
    return mean, half, math.sqrt(sum(part * part / 3 for _figure, part in halves)) / len(halves)


def _is_whole_average(section):
    """Whether the last word of the log, which may be truncated, matches the average of the rows like a complete one."""
    word = section.averages[0][0]
    mean, half, deviation = _mean(section)
    # Trailing zeros are not printed.
    return not ("." in word and word[-1] in ".0") and abs(mean - float(word)) <= min(
        half, 3 * deviation
    ) + 1e-5 * abs(mean)


def _mixed(section):
    """Whether several runs wrote at the same time, as reasons."""
    copies = Counter(device["rank"] for device in section.devices)
    runs = max(
        section.heads["config"],
        section.heads["header"],
        len(section.averages),
        1 + section.mixed,
        *copies.values(),
    )
    if runs < 2:
        return []
    moved = any(row["in_place"]["busbw_gb_s"] for row in section.rows)
    if set(copies) == {0} or (section.rows and not moved):
        return [
            _reason(
                "mpi_not_built",
                "%d runs of one rank each wrote at the same time: they are independent, and nothing was moved between "
                "GPUs" % runs,
                "build nccl-tests with MPI=1, and start it with the mpirun of the same MPI",
            )
        ]
    return [
        _reason(
            "several_runs",
            "%d runs wrote at the same time, so their rows cannot be distinguished" % runs,
            AGAIN + ", one run at a time",
        )
    ]


def _damaged(section, ranks):
    """Rows that cannot be used, as reasons."""
    if section.damaged or section.late:
        line = section.damaged[0] if section.damaged else None
        told = (
            "%d rows cannot be parsed" % len(section.damaged) if line else "rows follow the summary"
        )
        return [_reason("damaged_rows", told, AGAIN, line)]
    misfit = _misfit(section, ranks) if section.rows else None
    if not misfit:
        return []
    told = ", or not %d ranks" % ranks if ranks else ""
    return [
        _reason("damaged_rows", "the figures of a row are inconsistent%s" % told, AGAIN, misfit)
    ]


def _has_summary(section):
    """Whether the run has printed its whole summary, once."""
    average = _value(section.averages[0][0]) if section.averages else None
    is_cut = section.cut and not _is_whole_average(section)
    is_of_other = section.concluded not in ("", section.name or section.concluded)
    return (
        len(section.out_of_bounds) == 1 and average is not None and not is_cut and not is_of_other
    )


def _missing_rows(section):
    """Which rows of a run with a summary are missing, as reasons."""
    missing = _missing_size(section)
    average = _value(section.averages[0][0])[0]
    mean, half, deviation = _mean(section)
    lost = min(half, 4 * deviation) + 1e-5 * abs(mean) + 1e-6
    if not missing and abs(mean - average) > lost:
        missing = "the average is %g GB/s, but that of the rows is %.6g" % (average, mean)
    return [_reason("rows_missing", "rows are missing: %s" % missing, AGAIN)] if missing else []


def _incomplete(section, ranks):
    """Why it is not a whole run, as reasons."""
    found = _mixed(section)
    if not section.columns or not section.rows:
        found.append(
            _reason("no_table", "there is no table of results", AGAIN + " on stdout and stderr")
        )
    found += _damaged(section, ranks)
    if not section.rows:
        return found
    if not _has_summary(section):
        found.append(
            _reason(
                "no_summary",
                "its summary is missing or truncated: the run did not complete",
                "find out what ended it, and run it again",
            )
        )
    return found or _missing_rows(section)


def _incorrect(section, ranks):
    """Why its results are no proof, as reasons."""
    found = []
    cells = [
        (row, row[name]["wrong"]) for row in section.rows for name in ("out_of_place", "in_place")
    ]
    unchecked = [row for row, wrong in cells if wrong is None]
    if unchecked or section.settings and section.settings.checked is False:
        found.append(
            _reason(
                "not_checked",
                "the results were not checked (-c 0), so '0 OK' is meaningless",
                "run it with -c 1",
            )
        )
    wrong = [row["size_bytes"] for row, wrong in cells if wrong]
    if wrong or any(not bounds["ok"] for bounds in section.out_of_bounds):
        found.append(
            _reason(
                "wrong_values",
                "results are wrong" + (", from %d bytes on" % wrong[0] if wrong else ""),
                "don't train on these GPUs: test each host alone, then pairs, to find the GPU, link or adapter that damages data",
            )
        )
    if any(verdict == "FAILED" for _average, verdict in section.averages):
        found.append(
            _reason(
                "below_environment",
                "the average is below NCCL_TESTS_MIN_BW",
                "find out what limits it, or set the variable to a lower value",
            )
        )
    return found + _unmoved(section, ranks)


def _has_value(section, key):
    """Whether a row has a value other than 0."""
    return any(row[name][key] for row in section.rows for name in ("out_of_place", "in_place"))


def _unmoved(section, ranks):
    """Why almost nothing was moved between GPUs, as reasons."""
    busbw = _has_value(section, "busbw_gb_s")
    if ranks == 1 or not ranks and not busbw and _has_value(section, "algbw_gb_s"):
        return [
            _reason(
                "one_rank",
                "one rank ran, so nothing was moved between GPUs",
                "start it with two or more ranks, and check that it was built with MPI=1",
            )
        ]
    if not section.rows or busbw:
        return []
    return [
        _reason(
            "nothing_moved",
            "no row shows a bandwidth: almost nothing was moved",
            "measure larger sizes, such as -b 8 -e 1G",
        )
    ]


def _devices(section):
    """GPUs of the ranks that take part: all, unless NCCL_TESTS_SPLIT has made groups."""
    group = next((device["group"] for device in section.devices if device["rank"] == 0), 0)
    return [device for device in section.devices if device["group"] == group]


def _gpu(device):
    """Key of a GPU. A bus id without domain may be ambiguous."""
    return (device["host"], device["bus_id"]) + (
        () if ":" in device["bus_id"] else (device["device"],)
    )


def _count_ranks(section, words):
    """Number of ranks that take part; None if unknown, or if the list has gaps."""
    if section.unlisted > 1:
        return len(section.devices) * section.unlisted
    if section.devices:
        numbers = sorted({device["rank"] for device in section.devices})
        each = section.settings.threads * section.settings.gpus if section.settings else 1
        return (
            len({device["rank"] for device in _devices(section)})
            if numbers == list(range(len(numbers))) and len(numbers) % max(each, 1) == 0
            else None
        )
    said = set(_NRANKS.findall(words))
    return int(said.pop()) if len(said) == 1 else None


def _told(section):
    """The data of a section, without a verdict."""
    cells = [
        row[name]["busbw_gb_s"] for row in section.rows for name in ("out_of_place", "in_place")
    ]
    average = _value(section.averages[0][0]) if section.averages else None
    return {
        "rows": section.rows,
        "avg_busbw_gb_s": average[0] if average else None,
        "max_busbw_gb_s": max(cells) if cells else None,
        "out_of_bounds": section.out_of_bounds[0]
        if section.out_of_bounds
        else {"count": None, "ok": None},
    }


def _other(section):
    """A section that is not judged."""
    if _is_all_reduce(section) is not False:
        return dict(_told(section), name="all_reduce_perf", complete=not _incomplete(section, None))
    name = (
        section.name
        or (section.command if section.command != "all_reduce_perf" else "")
        or "unknown"
    )
    # Other collectives have other formulas, so only rows and summary count.
    whole = bool(
        section.rows
        and section.columns
        and not section.damaged
        and len(section.averages) == len(section.out_of_bounds) == 1
        and not section.cut
    )
    return dict(_told(section), name=name, complete=whole)


def parse_size(value, name):
    """Bytes of a size in nccl-tests' notation: 8, 512K, 1G. ValueError names the option."""
    found = re.match(r"(\d+(?:\.\d+)?) *([KMG]?)$", str(value).strip().upper())
    size = int(float(found.group(1)) * 1024 ** " KMG".index(found.group(2) or " ")) if found else 0
    if size < 1:
        raise ValueError(
            "%s: '%s' is not a valid size. Give a number of bytes above 0, or one with suffix K, M or G, such as 512M"
            % (name, value)
        )
    return size


def check_bounds(
    expected_ranks=None, expected_hosts=None, min_busbw_gb_s=None, judge_from_bytes=None
):
    """The requirements as numbers for answer(). ValueError names an invalid value and the valid ones."""
    bounds = {
        "judge_from_bytes": None
        if judge_from_bytes in (None, "")
        else parse_size(judge_from_bytes, "judge_from_bytes")
    }
    for name, value, least in (
        ("expected_ranks", expected_ranks, 2),
        ("expected_hosts", expected_hosts, 1),
    ):
        if value is not None and (
            isinstance(value, bool) or not re.match(r"\d+$", str(value)) or int(value) < least
        ):
            raise ValueError(
                "%s: '%s' is not valid. Give a whole number, %d or more" % (name, value, least)
            )
        bounds[name] = None if value is None else int(value)
    try:
        threshold = None if min_busbw_gb_s is None else float(min_busbw_gb_s)
    except (TypeError, ValueError):
        threshold = -1.0
    if isinstance(min_busbw_gb_s, bool) or threshold is not None and not 0 < threshold < math.inf:
        raise ValueError(
            "min_busbw_gb_s: '%s' is not a valid bandwidth. Give a number of GB/s above 0, such as 180 or 9.5"
            % min_busbw_gb_s
        )
    bounds["min_busbw_gb_s"] = threshold
    return bounds


def _read(text):
    """Sections of the text, and the text. ParseError if it is other text."""
    # Web pages have no-break spaces, and Windows files begin with a byte order mark.
    text = re.sub(r"\r\n?", "\n", text).replace("\u00a0", " ").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        section = _document(text)
        if not section:
            raise ParseError(
                "line 1: this begins like all_reduce_perf's JSON, but has a different structure or is truncated; give its complete output"
            )
        section.end = len(section.said)
        return [section], section.said
    return _sections(text), text


def _nothing(sections, text, rc):
    """Why there is no run of all_reduce_perf, as reasons. ParseError if it is other text, and not the output of a failed command."""
    if not sections and not rc and not _known(text) and not _NCCL_LINE.search(text):
        line = next((line.strip() for line in text.split("\n") if line.strip()), "")
        raise ParseError(
            "line 1: '%s' is not the beginning of output of all_reduce_perf" % line[:200]
            if line
            else "the text is empty"
        )
    names = sorted({_other(section)["name"] for section in sections})
    return [
        _reason(
            "no_all_reduce",
            "it contains no run of all_reduce_perf"
            + (", but of %s" % ", ".join(names) if names else ""),
            "run all_reduce_perf, or give its log",
        )
    ]


def _take_document(section, document):
    """Replace the rounded rows of the text by those of the document if both are of the same complete run."""
    exact = _document(document) if document.strip() else None
    if (
        exact
        and _is_all_reduce(exact)
        and exact.averages
        and max(section.heads["config"], section.heads["header"], len(section.averages)) == 1
    ):
        section.rows, section.precision, section.damaged, section.late = (
            exact.rows,
            exact.precision,
            exact.damaged,
            False,
        )
        section.averages, section.out_of_bounds, section.columns = (
            exact.averages,
            exact.out_of_bounds,
            section.columns or exact.columns,
        )


def _unexpected(sections):
    """Whether a log without an exit code has a whole table, but is not that of a whole run."""
    found = [
        section.around.unexpected(section is not sections[-1])
        for section in sections
        if section.around and _is_all_reduce(section) is not False
    ]
    # Lines at the end of the log apply to all runs in it.
    if sections and sections[-1].around and _is_all_reduce(sections[-1]) is False:
        found.append(sections[-1].around.unexpected_end())
    line = next((line for line in found if line), None)
    return (
        []
        if line is None
        else [
            _reason(
                "unexpected_output",
                "a line inside or below the table of results is not printed by a run that completes",
                "check the line: a process ended, or wrote between the rows. "
                + AGAIN[0].upper()
                + AGAIN[1:],
                line,
            )
        ]
    )


def _shared(devices):
    counts = Counter(_gpu(device) for device in devices)
    names = ", ".join(sorted("%s (%s)" % gpu[:2] for gpu, ranks in counts.items() if ranks > 1))
    return (
        [
            _reason(
                "shared_gpu",
                "several ranks used one GPU: %s" % names,
                "start at most as many ranks on a host as it has GPUs",
            )
        ]
        if names
        else []
    )


def _too_few(name, asked, found):
    if asked is None or found == asked:
        return []
    return [
        _reason(
            name,
            "%d %s are requested, and %s took part"
            % (asked, name, "an unknown number" if found is None else found),
            "check which are missing in 'devices', and give the launcher all hosts with all their slots",
        )
    ]


def _too_slow(asked, found, judge_from_bytes):
    if asked is None or found is not None and found >= asked:
        return []
    if found is None:
        return [
            _reason(
                "no_large_rows",
                "no row is large enough to judge the bandwidth"
                + (", from %d bytes on" % judge_from_bytes if judge_from_bytes else ""),
                "measure larger sizes, or judge smaller ones",
            )
        ]
    return [
        _reason(
            "bandwidth",
            "the bus bandwidth is %.6g GB/s, at least %g are requested" % (found, asked),
            "check 'transports' and the links between the hosts; measure hosts alone and in pairs to find the slow one",
        )
    ]


def _reasons_of(ours, ranks):
    """Why the first of the runs of all_reduce_perf was not complete, and all reasons, with those of its later runs."""
    first = ours[0]
    missing = _incomplete(first, ranks)
    reasons = missing + _incorrect(first, ranks)
    if not {"mpi_not_built", "several_runs"} & {reason["id"] for reason in missing}:
        reasons += _shared(_devices(first))
    if any(_incomplete(section, None) or _incorrect(section, None) for section in ours[1:]):
        reasons.append(
            _reason(
                "later_run",
                "a later run of all_reduce_perf in this log was not complete and correct",
                "judge each run by its own log",
            )
        )
    return missing, reasons


def _judged(rows, judge_from_bytes):
    """The average bus bandwidth of the judged rows, None without one."""
    largest = max([row["size_bytes"] for row in rows], default=0)
    least = largest if judge_from_bytes is None else judge_from_bytes
    cells = [
        row[name]["busbw_gb_s"]
        for row in rows
        for name in ("out_of_place", "in_place")
        if row["size_bytes"] >= least
    ]
    return sum(cells) / len(cells) if cells else None


def _judged_by(asked):
    """What the verdict is of, from the requested values by name."""
    return ["complete", "correct"] + [name for name in asked if asked[name] is not None]


def _nccl_version(section, words):
    return section.nccl_version or next(iter(_NCCL_VERSION.findall(words)), None)


def _participants(section, words):
    """C(ranks), C(hosts) and C(gpus) of a run, None if unknown, and its C(devices). C(words) are its lines and those before it."""
    ranks, devices = _count_ranks(section, words), _devices(section)
    # A list with gaps does not show all participants.
    listed = devices if ranks is not None else []
    return {
        "ranks": ranks,
        "hosts": len({device["host"] for device in listed}) or None,
        "gpus": len({_gpu(device) for device in listed}) * section.unlisted or None,
        "devices": [
            {key: device[key] for key in ("rank", "host", "device", "bus_id", "name")}
            for device in devices
        ],
    }


def answer(
    text,
    document="",
    rc=None,
    expected_ranks=None,
    expected_hosts=None,
    min_busbw_gb_s=None,
    judge_from_bytes=None,
):
    """The data of a log and its verdict. C(document) is the tool's JSON of the same run. C(rc) is the command's exit code. It is None for a log, whose lines
    then must show that nothing was aborted. ParseError if it is other text."""
    sections, text = _read(text)
    ours = [section for section in sections if _is_all_reduce(section) is not False]
    first = ours[0] if ours else _Section(0)
    _take_document(first, document)
    begin, end = 0, len(text)
    if ours:
        # Lines of NCCL before the first test belong to it, too.
        begin, end = 0 if first is sections[0] else first.begin, first.end
    words = text[begin:end]
    taken = _participants(first, words)
    missing, reasons = (
        _reasons_of(ours, taken["ranks"]) if ours else [_nothing(sections, text, rc)] * 2
    )
    # An error before a whole run does not concern that run.
    reasons = _known(text[begin if missing else first.begin : end]) + reasons
    if rc is None and not reasons:
        reasons = _unexpected(sections)
    if rc:
        reasons.append(
            _reason("exit_code", "the command ended with exit code %d" % rc, "read its output")
        )
    bandwidth = _judged(first.rows, judge_from_bytes)
    asked = {"ranks": expected_ranks, "hosts": expected_hosts, "bandwidth": min_busbw_gb_s}
    reasons += (
        _too_few("ranks", expected_ranks, taken["ranks"])
        + _too_few("hosts", expected_hosts, taken["hosts"])
        + _too_slow(min_busbw_gb_s, bandwidth, judge_from_bytes)
    )
    return dict(
        _told(first),
        judged_busbw_gb_s=None if bandwidth is None else round(bandwidth, 3),
        nccl_version=_nccl_version(first, words),
        transports=transports(words),
        over_rdma=rdma_connections(words),
        complete=not missing,
        passed=not reasons,
        judged=_judged_by(asked),
        reasons=reasons,
        remarks=remarks(text[first.begin if ours else 0 : end]),
        other_collectives=[_other(section) for section in sections if section is not first],
        **taken,
    )
