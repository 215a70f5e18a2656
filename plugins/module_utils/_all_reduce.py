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

The layout has changed many times since 2015, and logs of it carry prefixes (a rank's tag, an
indentation, a container's name), have lost their '#', and have lines of NCCL and of launchers in
between. So a line is recognised by its text at any position, and columns by the names in the
header.

The figures of a table depend on each other: the bandwidths follow from size, time and number of
ranks, and the average from all rows. If they are inconsistent, rows were lost, damaged or mixed up.
A run counts as complete only if its output shows that it is.
"""

from __future__ import annotations

import json
import math
import re

from collections import Counter
from typing import Any, Dict, List, Literal, NamedTuple, Tuple, TypedDict
from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import IN_GOOD_RUNS
from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import (
    rdma_connections,
    transports,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import find_errors
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
from ansible_collections.trainyard.gpu.plugins.module_utils._run_log import (
    Around,
    Remark,
    remarks,
)

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
# Until NCCL 2.13 a column had the largest difference instead of the number of wrong values. These
# are the limits of nccl-tests, by type.
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
    (
        r"nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: "
        r"(\d+)\((factor|bytes)\)(?=\s)(?:.*? validation: (\d+)(?!\d))?"
    )
)
# Hydra and Open MPI put a rank's tag before each piece of its output, also in the middle of a line.
_TAG_INSIDE = re.compile(r"\[\d{1,6}\] |\[\d{1,6},\d{1,6}\]<std(?:out|err)>: ?")
_RANK = re.compile(
    (
        r"Rank +(\d+) +(?:Group +(\d+) +)?(?:Pid +\d+ +)?(?:on +(\S+)|uses) +device +(\d+) "
        r"+\[([0-9a-fA-Fx:.]+)\] *([^#]*)"
    )
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
# Names of networks contain blanks; a number after them is the adapter's. Concurrent writers
# truncate lines, so kinds of P2P and SHM are a list.

#: The two halves of a row.
Place = Literal["out_of_place", "in_place"]
PLACES: tuple[Place, Place] = ("out_of_place", "in_place")
#: A printed number with half a unit of its last digit.
Figure = Tuple[float, float]
#: Time, algbw and busbw of the two halves of a row.
Exact = Dict[str, Dict[str, Figure]]


class Settings(NamedTuple):
    """The options of all_reduce_perf, as it prints them."""

    threads: int
    gpus: int
    min_bytes: int
    max_bytes: int | None
    step: int
    by_factor: bool
    checked: bool | None


class Device(TypedDict):
    """A GPU of a rank. C(bus_id) is in lower case."""

    rank: int
    group: int
    host: str
    device: int
    bus_id: str
    name: str


class _Measured(TypedDict):
    """Time in microseconds, bandwidths in GB/s, and number of wrong values, None if they were not
    checked.
    """

    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None


class Placement(_Measured, total=False):
    """One half of a row. C(error) is the largest difference, which versions until NCCL 2.13
    print.
    """

    error: float


class _RowHead(TypedDict):
    size_bytes: int
    count: int
    type: str
    redop: str | None
    root: int | None


class Row(_RowHead):
    """A row of the table."""

    out_of_place: Placement
    in_place: Placement


class OutOfBounds(TypedDict):
    """Number of wrong values that the summary tells, and its verdict. None without a summary."""

    count: int | None
    ok: bool | None


class Reason(TypedDict):
    """Why a run does not pass.

    C(source) names where a known error is described, C(line) is the line that shows it.
    """

    id: str
    cause: str
    fix: str
    source: str | None
    line: str | None


class Bounds(TypedDict, total=False):
    """The requirements on a run. A missing or null one does not count."""

    expected_ranks: int | None
    expected_hosts: int | None
    min_busbw_gb_s: float | None
    judge_from_bytes: int | None


class _Told(TypedDict):
    rows: list[Row]
    avg_busbw_gb_s: float | None
    max_busbw_gb_s: float | None
    out_of_bounds: OutOfBounds


class Other(_Told):
    """A section of a log that is not judged."""

    name: str
    complete: bool


class _Participants(TypedDict):
    ranks: int | None
    hosts: int | None
    gpus: int | None
    devices: list[dict[str, Any]]


class Answer(_Told, _Participants):
    """The data of a run and its verdict."""

    judged_busbw_gb_s: float | None
    nccl_version: str | None
    transports: list[str]
    over_rdma: dict[str, Any]
    complete: bool
    passed: bool
    judged: list[str]
    reasons: list[Reason]
    remarks: list[Remark]
    other_collectives: list[Other]


class _Section:
    """One run of one test, or the mixed output of several concurrent runs."""

    def __init__(self, begin: int) -> None:
        self.begin, self.end = begin, begin
        self.heads = dict.fromkeys(("version", "starting", "config", "rank", "header"), 0)
        self.name, self.command, self.concluded = "", "", ""
        self.settings: Settings | None = None
        self.max_bytes: int | None = None
        self.nccl_version: str | None = None
        self.devices: list[Device] = []
        self.unlisted, self.message = 1, ""
        # None without a header that can be parsed.
        self.columns: list[str] | None = None
        self.milliseconds, self.cpu_time, self.has_operation = False, False, False
        # Lines below the header that are not rows.
        self.around: Around | None = None
        self.rows: list[Row] = []
        self.damaged: list[str] = []
        # Of each row its figures with half a unit of their last digit, and its line.
        self.precision: list[tuple[Exact, str]] = []
        self.out_of_bounds: list[OutOfBounds] = []
        # The printed number, and OK or FAILED if it was compared.
        self.averages: list[tuple[str, str | None]] = []
        # Parts of another run's head below the table's header; rows after the summary; a summary
        # that may be truncated.
        self.mixed, self.late, self.cut = False, False, False

    @property
    def closed(self) -> bool:
        """Whether each run that began in this section has printed its average bandwidth."""
        return len(self.averages) >= max(1, self.heads["config"], self.heads["header"])

    @property
    def average(self) -> Figure | None:
        """The first printed average, None without one or if it is not a number."""
        return _value(self.averages[0][0]) if self.averages else None

    def placements(self) -> list[Placement]:
        """Both halves of all rows."""
        return [row[place] for row in self.rows for place in PLACES]

    def takes(self, kind: str) -> bool:
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
        # Independent processes are rank 0 of 1 each. In a real job only one rank prints. All others
        # are later runs.
        return {device["rank"] for device in self.devices} <= {0} and (
            self.heads["config"] > 0 or not self.rows
        )


def _value(word: str) -> Figure | None:
    """A printed number with half a unit of its last digit.

    None for N/A and everything that is not a finite number.
    """
    found = _NUMBER.match(word)
    if not found:
        return None
    number = float(word)
    return number, 0.5 * 10.0 ** (int(found.group(2) or 0) - len(found.group(1) or ""))


def _version(code: int) -> str:
    """NCCL's version from its number: 2804 is 2.8.4, 22902 is 2.29.2."""
    parts = (
        (code // 1000, code % 1000 // 100, code % 100)
        if code < 10000
        else (code // 10000, code % 10000 // 100, code % 100)
    )
    return ".".join(str(part) for part in parts)


def _sections(text: str) -> list[_Section]:
    """Split the text into one section per test, in their order."""
    reader = _Reader(len(text))
    for raw in text.split("\n"):
        reader.take(raw)
    commands = [(found.start(), found.group(0)) for found in _COMMAND.finditer(text)]
    ends = [section.begin for section in reader.sections[1:]] + [len(text)]
    for section, end in zip(reader.sections, ends):
        section.end = end
        section.command = ([""] + [name for at, name in commands if at < section.begin])[-1]
    return reader.sections


class _Reader:
    """Assigns the lines of a text of C(length) characters to sections."""

    def __init__(self, length: int) -> None:
        self.sections: list[_Section] = []
        self.length, self.at = length, 0

    def section(self, kind: str = "", name: str = "") -> _Section:
        """The section that a line belongs to; a line of a test's head may open a new one."""
        last = self.sections[-1] if self.sections else None
        if last is None or kind and not last.takes(kind) or name and last.name not in ("", name):
            last = _Section(self.at)
            self.sections.append(last)
        if kind:
            last.heads[kind] += 1
            last.mixed = last.mixed or kind in ("config", "rank") and last.heads["header"] > 0
        return last

    def take(self, raw: str) -> None:
        """Assign one line to a section."""
        line = raw[:_TOO_LONG]
        if not line.isprintable():
            line = _CONTROL.sub("", line.replace("\t", "    "))
        if "(), " in line:
            line = _SOURCE_LINE.sub(" ", line)
        around = self.sections[-1].around if self.sections else None
        ended = bool(self.sections and self.sections[-1].averages)
        row = None
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

    def _take_comment(self, line: str, is_last: bool) -> None:
        self._take_options(line)
        self._take_devices(line)
        found = _REDUCING.search(line)
        if found:
            self.section().max_bytes = int(found.group(1))
        found = _HEADER.search(line)
        if found:
            self._take_header(line, found)
        self._take_summary(line, is_last)

    def _take_options(self, line: str) -> None:
        """Take the lines before the list of devices."""
        found = _LIBRARY.search(line)
        if found:
            self.section("version").nccl_version = _version(int(found.group(1)))
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

    def _take_devices(self, line: str) -> None:
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

    def _take_header(self, line: str, found: re.Match[str]) -> None:
        section = self.section("header")
        words = found.group(0).split()
        section.columns = _columns(words)
        section.has_operation = bool({"redop", "op"} & set(words))
        section.around = section.around or Around(line[: found.start()])
        # The names from 2015 to 2018, when times were in milliseconds.
        section.milliseconds = found.group(0).startswith("bytes")
        section.cpu_time = "cputime" in found.group(0)

    def _take_summary(self, line: str, is_last: bool) -> None:
        """Take the lines below the table."""
        found = _OUT_OF_BOUNDS.search(line)
        if found:
            count = int(found.group(1))
            self.section().out_of_bounds.append(
                {"count": count, "ok": found.group(2) == "OK" and count == 0}
            )
        found = _AVERAGE.search(line)
        if found:
            section = self.section()
            section.averages.append((found.group(1), found.group(2)))
            # Six digits are printed, without trailing zeros. With fewer digits at the end of the
            # text, the rest may be missing, unless the rows agree.
            section.cut = (
                is_last
                and found.end() == len(line)
                and 0 < len(re.sub(r"e.*|\D", "", found.group(1)).lstrip("0")) < 6
            )
        found = _CONCLUDED.search(line)
        if found and self.sections:
            self.sections[-1].concluded = found.group(1)


def _columns(words: list[str]) -> list[str] | None:
    """Names of the columns that a header has for each of the two placements.

    None if it cannot be parsed.
    """
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


def _take_row(found: re.Match[str], line: str, section: _Section) -> None:
    """Take a row of the table, which C(found) has found in the line."""
    section.late = section.late or section.closed
    if not section.columns:
        section.damaged.append(line)
        return
    size, count, kind, rest = found.groups()
    words = _TIMESTAMP.sub("", rest).split()
    names = section.columns
    left, right = words[: -2 * len(names)], words[-2 * len(names) :]
    # Collectives without an operation or a root leave these columns blank.
    redop = next((word for word in left if not _NUMBER.match(word)), None)
    root = next((int(word) for word in left if re.match(r"-?\d+$", word)), None)
    head: _RowHead = {
        "size_bytes": int(size),
        "count": int(count),
        "type": kind,
        "redop": redop,
        "root": root,
    }
    is_complete = len(right) >= 2 * len(names) and len(left) == (redop is not None) + (
        root is not None
    )
    if not is_complete or _is_damaged(head, section):
        section.damaged.append(line)
        return
    one = _placement(dict(zip(names, right)), kind, section.milliseconds)
    other = _placement(dict(zip(names, right[len(names) :])), kind, section.milliseconds)
    if one is None or other is None:
        section.damaged.append(line)
        return
    section.rows.append({**head, "out_of_place": one[0], "in_place": other[0]})
    section.precision.append(({"out_of_place": one[1], "in_place": other[1]}, line))


def _is_damaged(head: _RowHead, section: _Section) -> bool:
    """Whether a row of an all-reduce has lost a field or a digit."""
    if not section.name.startswith("all_reduce"):
        return False
    # All-reduce has an operation. A row without it has lost an unknown field.
    is_lost = head["redop"] in (None, "none") and section.has_operation
    return is_lost or not _is_whole(head["size_bytes"], head["count"], head["type"])


def _is_whole(size: int, count: int, kind: str) -> bool:
    """Whether that many elements have that many bytes."""
    return (
        count * _WIDTHS[kind] == size
        if kind in _WIDTHS
        else count * (size // max(count, 1)) == size
    )


def _placement(
    words: dict[str, str], kind: str, milliseconds: bool
) -> tuple[Placement, dict[str, Figure]] | None:
    """One half of a row, and its figures with half a unit of their last digit.

    None if one is not a valid number.
    """
    values = {}
    for name in ("time", "algbw", "busbw"):
        value = _value(words[name])
        if value is None:
            return None
        values[name] = value
    # A time of 0 is not possible.
    if values["time"][0] <= 0:
        return None
    if milliseconds:
        time, half = values["time"]
        values["time"] = 1000.0 * time, 1000.0 * half
    word = words.get("wrong", words.get("error", ""))
    if not _is_result(word.rstrip("*"), "error" in words):
        return None
    placement: Placement = {
        "time_us": values["time"][0],
        "algbw_gb_s": values["algbw"][0],
        "busbw_gb_s": values["busbw"][0],
        "wrong": None,
    }
    found = _value(word.rstrip("*"))
    if found and "error" in words:
        is_small = 0 <= found[0] <= _DELTAS.get(kind, 0.0)
        placement["wrong"] = int(word.endswith("*") or not is_small)
        placement["error"] = found[0]
    elif found:
        placement["wrong"] = int(found[0])
    return placement, values


def _is_result(word: str, is_error: bool) -> bool:
    """Whether a word has the form of the largest difference, or of the number of wrong values; N/A
    if they were not checked.
    """
    found = _value(word)
    if found is None:
        return word == "N/A"
    if is_error:
        return _DIFFERENCE.match(word) is not None
    return _WHOLE.match(word) is not None and found[0] == int(found[0])


def _is_all_reduce(section: _Section) -> bool | None:
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


def _document(text: str) -> _Section | None:
    """The one section of the tool's JSON (option -J); None if the text is not such a document, or
    is truncated.
    """
    try:
        document = json.loads(text)
        section, config = _Section(0), document["config"]
        section.name = section.concluded = re.split(r"[/\\]", document["args"][0])[-1]
        section.nccl_version = _version(int(document["nccl_version"]))
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
        # Rows are not read by columns.
        section.heads["header"], section.columns = 1, ["size"]
        for result in document.get("results", []):
            _take_result(result, section)
        # The first versions misspelt two keys.
        average = document.get("average_bus_bandwidth", document.get("average_bus_bandwidith"))
        if average and "out_of_bounds" in document and "end_time" in document:
            section.averages.append(
                (
                    "%.6f" % float(average.get("bandwidth", average.get("bandwidith"))),
                    "FAILED" if average["okay"] == "false" else None,
                )
            )
            count = document["out_of_bounds"]["count"]
            section.out_of_bounds.append(
                {"count": count, "ok": document["out_of_bounds"]["okay"] == "true" and count == 0}
            )
        # Not the whole text, because it contains the environment with its secrets.
        section.message = "\n".join(error for error in document.get("errors", []) if error)
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


def _plain(number: float) -> str:
    """A number of the document in the form of the text output."""
    return "%d" % number if number == int(number) else "%r" % number


def _take_result(result: dict[str, Any], section: _Section) -> None:
    """Read a row of the document. An aborted run leaves out values."""
    head: _RowHead = {
        "size_bytes": result["size"],
        "count": result["count"],
        "type": result["type"],
        "redop": result["redop"],
        "root": int(result["root"]),
    }
    taken = []
    for place in PLACES:
        found = result.get(place) or {}
        section.cpu_time = section.cpu_time or "cpu_time" in found
        half = _placement(_words_of(found), head["type"], False)
        if half is None:
            section.damaged.append("size %d" % head["size_bytes"])
            return
        taken.append(half)
    (out_of_place, one), (in_place, other) = taken
    section.rows.append({**head, "out_of_place": out_of_place, "in_place": in_place})
    section.precision.append(
        ({"out_of_place": one, "in_place": other}, "size %d" % head["size_bytes"])
    )


def _words_of(placement: dict[str, Any]) -> dict[str, str]:
    """The figures of a half of a row of the document, in the form of the text output."""
    figures = {
        "time": placement.get("time", placement.get("cpu_time")),
        "algbw": placement.get("alg_bw"),
        "busbw": placement.get("bus_bw"),
    }
    words = dict.fromkeys(figures, "N/A")
    words.update(
        (key, "%.6f" % float(value)) for key, value in figures.items() if value is not None
    )
    wrong = placement.get("nwrong")
    words["wrong"] = "N/A" if wrong is None else _plain(wrong)
    return words


def _reason(name: str, cause: str, fix: str, line: str | None = None) -> Reason:
    return {
        "id": name,
        "cause": cause,
        "fix": fix,
        "source": None,
        "line": line and " ".join(line.split())[:500],
    }


def _known(text: str) -> list[Reason]:
    """Known errors in the text as reasons, each once, in the order of find_errors.

    Good runs have lines of some, too.
    """
    found: dict[str, Reason] = {}
    for error in find_errors(text):
        if error["id"] not in IN_GOOD_RUNS:
            reason = _reason(error["id"], error["cause"], error["fix_operator"], error["line"])
            reason["source"] = error["source"]
            found.setdefault(error["id"], reason)
    return list(found.values())


AGAIN = "run it again, and keep its complete output"


def _requested_sizes(
    settings: Settings, max_bytes: int | None, sizes: list[int], width: int
) -> list[int]:
    """The sizes that a run prints, at most one more than it has.

    Sizes are whole numbers of elements.

    C(max_bytes) is the largest size that fits the GPUs' memory, if it is less than the requested
    one.
    """
    most = max_bytes or settings.max_bytes
    size = min(settings.min_bytes, most or settings.min_bytes)
    requested: list[int] = []
    while (most is None or size <= most) and len(requested) <= len(sizes):
        requested.append(size - size % width)
        after = size * settings.step if settings.by_factor else size + settings.step
        if after <= size:
            break
        size = after
    # The document does not show its end, so growing sizes are one cycle.
    cycle = next(
        (number for number in range(1, len(sizes)) if sizes[number] < sizes[number - 1]), len(sizes)
    )
    return requested if most is not None else requested[:cycle]


def _regular(sizes: list[int], width: int) -> bool:
    """Whether sizes grow by one factor or one step, except for rounding to whole elements."""
    if len(sizes) < 2:
        return True
    factor, step = round(sizes[-1] / sizes[-2]), sizes[-1] - sizes[-2]
    pairs = list(zip(sizes, sizes[1:]))
    return step > 0 and (
        all(abs(after - before * factor) < factor * width for before, after in pairs)
        or all(abs(after - before - step) < width for before, after in pairs)
    )


#: The sizes of the rows by type, operation and root.
_Tables = Dict[Tuple[str, "str | None", "int | None"], List[int]]


def _uneven(tables: _Tables) -> bool:
    """Whether the tables of a run without a list of its options differ: all types have the same
    operations and as many rows.
    """
    kinds: dict[str, set[tuple[str | None, int | None]]] = {}
    for kind, redop, root in tables:
        kinds.setdefault(kind, set()).add((redop, root))
    return len({len(sizes) for sizes in tables.values()}) > 1 or any(
        operations != next(iter(kinds.values())) for operations in kinds.values()
    )


def _missing_size(section: _Section) -> str | None:
    """What is wrong with the sequence of sizes as text; None if nothing is."""
    tables: _Tables = {}
    for row in section.rows:
        tables.setdefault((row["type"], row["redop"], row["root"]), []).append(row["size_bytes"])
    if not section.settings and _uneven(tables):
        return "the types have different numbers of rows"
    for (kind, _redop, _root), sizes in tables.items():
        width = _WIDTHS.get(kind)
        if section.settings and width:
            message = _missing_requested(section.settings, section.max_bytes, sizes, width)
            if message:
                return message
        elif not _is_growing(sizes, width or 8):
            return "the sizes do not grow evenly from row to row"
    return None


def _missing_requested(
    settings: Settings, max_bytes: int | None, sizes: list[int], width: int
) -> str | None:
    """How the sizes of a table differ from the requested ones as text; None if they do not."""
    requested = _requested_sizes(settings, max_bytes, sizes, width)
    if sizes == requested * (len(sizes) // max(len(requested), 1)):
        return None
    missing = next((size for size in requested if size not in sizes), None)
    if missing is None:
        return "the sizes differ from the requested ones"
    return "the row of %d bytes is missing" % missing


def _is_growing(sizes: list[int], width: int) -> bool:
    """Whether sizes grow evenly. Only the first ones may be 0."""
    is_regular = _regular([size for size in sizes if size], width)
    return is_regular and 0 not in sizes[sizes.count(0) :]


def _misfit(section: _Section, ranks: int | None) -> str | None:
    """The line of the first row whose figures contradict each other, or the number of ranks."""
    # The limits of busbw / algbw that all rows so far have in common.
    least, most = 0.0, 2.0
    for row, (exact, line) in zip(section.rows, section.precision):
        width = _WIDTHS.get(row["type"], 0)
        if row["size_bytes"] < row["count"] or row["count"] * width not in (0, row["size_bytes"]):
            return line
        for place in PLACES:
            time, algbw, busbw = (exact[place][key] for key in ("time", "algbw", "busbw"))
            if min(time[0], algbw[0], busbw[0]) < 0:
                return line
            if not section.cpu_time and not _fits_time(row["size_bytes"], time, algbw):
                return line
            if algbw[0] > algbw[1]:
                least = max(least, (busbw[0] - busbw[1]) / (algbw[0] + algbw[1]))
                most = min(most, (busbw[0] + busbw[1]) / (algbw[0] - algbw[1]))
            if not _fits_ranks(least, most, ranks):
                return line
    return None


def _fits_time(size: int, time: Figure, algbw: Figure) -> bool:
    """Whether a bandwidth follows from a size in bytes and a time in microseconds."""
    fastest = size / 1e3 / (time[0] - time[1]) if time[0] > time[1] else math.inf
    slowest = size / 1e3 / (time[0] + time[1]) if time[0] else 0.0
    return slowest * 0.999 - algbw[1] <= algbw[0] <= fastest * 1.001 + algbw[1]


def _fits_ranks(least: float, most: float, ranks: int | None) -> bool:
    """Whether there is a factor between two limits, and it is the one of an all-reduce of so many
    ranks, if that is known.
    """
    if least > most + 1e-6:
        return False
    return not ranks or least - 1e-6 <= 2.0 * (ranks - 1) / ranks <= most + 1e-6


def _mean(section: _Section) -> tuple[float, float, float]:
    """The average of the rows, the maximum loss by rounding, and the usual loss by rounding."""
    halves = [exact[place]["busbw"] for exact, _line in section.precision for place in PLACES]
    mean, half = (sum(column) / len(halves) for column in zip(*halves))
    return mean, half, math.sqrt(sum(part * part / 3 for _figure, part in halves)) / len(halves)


def _is_whole_average(section: _Section) -> bool:
    """Whether the last word of the log, which may be truncated, matches the average of the rows
    like a complete one.
    """
    word = section.averages[0][0]
    mean, half, deviation = _mean(section)
    # Trailing zeros are not printed.
    return not ("." in word and word[-1] in ".0") and abs(mean - float(word)) <= min(
        half, 3 * deviation
    ) + 1e-5 * abs(mean)


def _mixed(section: _Section) -> list[Reason]:
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
                "%d runs of one rank each wrote at the same time: they are independent, and "
                "nothing was moved between "
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


def _damaged(section: _Section, ranks: int | None) -> list[Reason]:
    """Rows that cannot be used, as reasons."""
    if section.damaged or section.late:
        line = section.damaged[0] if section.damaged else None
        message = (
            "%d rows cannot be parsed" % len(section.damaged) if line else "rows follow the summary"
        )
        return [_reason("damaged_rows", message, AGAIN, line)]
    misfit = _misfit(section, ranks) if section.rows else None
    if not misfit:
        return []
    message = ", or not %d ranks" % ranks if ranks else ""
    return [
        _reason("damaged_rows", "the figures of a row are inconsistent%s" % message, AGAIN, misfit)
    ]


def _has_summary(section: _Section) -> bool:
    """Whether the run has printed its whole summary, once."""
    is_cut = section.cut and not _is_whole_average(section)
    is_of_other = section.concluded not in ("", section.name or section.concluded)
    is_there = len(section.out_of_bounds) == 1 and section.average is not None
    return is_there and not is_cut and not is_of_other


def _missing_rows(section: _Section) -> list[Reason]:
    """Which rows of a run with a summary are missing, as reasons."""
    missing = _missing_size(section)
    mean, half, deviation = _mean(section)
    lost = min(half, 4 * deviation) + 1e-5 * abs(mean) + 1e-6
    if not missing and section.average and abs(mean - section.average[0]) > lost:
        message = "the average is %g GB/s, but that of the rows is %.6g"
        missing = message % (section.average[0], mean)
    return [_reason("rows_missing", "rows are missing: %s" % missing, AGAIN)] if missing else []


def _incomplete(section: _Section, ranks: int | None) -> list[Reason]:
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


def _incorrect(section: _Section, ranks: int | None) -> list[Reason]:
    """Why its results are no proof, as reasons."""
    found = _not_checked(section) + _wrong_values(section)
    if any(verdict == "FAILED" for _average, verdict in section.averages):
        found.append(
            _reason(
                "below_environment",
                "the average is below NCCL_TESTS_MIN_BW",
                "find out what limits it, or set the variable to a lower value",
            )
        )
    return found + _unmoved(section, ranks)


def _not_checked(section: _Section) -> list[Reason]:
    """Whether the values were not compared with the expected ones, as reasons."""
    is_off = section.settings is not None and section.settings.checked is False
    if not is_off and all(half["wrong"] is not None for half in section.placements()):
        return []
    return [
        _reason(
            "not_checked",
            "the results were not checked (-c 0), so '0 OK' is meaningless",
            "run it with -c 1",
        )
    ]


def _wrong_values(section: _Section) -> list[Reason]:
    """Whether the rows or the summary have wrong values, as reasons."""
    wrong = [row["size_bytes"] for row in section.rows for place in PLACES if row[place]["wrong"]]
    if not wrong and all(bounds["ok"] for bounds in section.out_of_bounds):
        return []
    return [
        _reason(
            "wrong_values",
            "results are wrong" + (", from %d bytes on" % wrong[0] if wrong else ""),
            (
                "don't train on these GPUs: test each host alone, then pairs, to find the GPU, "
                "link or adapter that damages data"
            ),
        )
    ]


def _moved(section: _Section, is_bus: bool) -> bool:
    """Whether a row has a bandwidth other than 0: of the bus, or of the algorithm."""
    if is_bus:
        return any(half["busbw_gb_s"] for half in section.placements())
    return any(half["algbw_gb_s"] for half in section.placements())


def _unmoved(section: _Section, ranks: int | None) -> list[Reason]:
    """Why almost nothing was moved between GPUs, as reasons."""
    busbw = _moved(section, is_bus=True)
    if ranks == 1 or not ranks and not busbw and _moved(section, is_bus=False):
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


def _devices(section: _Section) -> list[Device]:
    """GPUs of the ranks that take part: all, unless NCCL_TESTS_SPLIT has made groups."""
    group = next((device["group"] for device in section.devices if device["rank"] == 0), 0)
    return [device for device in section.devices if device["group"] == group]


def _gpu(device: Device) -> tuple[str, ...]:
    """Key of a GPU: its host and its bus id.

    One without domain may be ambiguous, then also its number on the host.
    """
    key = device["host"], device["bus_id"]
    return key if ":" in device["bus_id"] else (*key, str(device["device"]))


def _count_ranks(section: _Section, words: str) -> int | None:
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
    counts = set(_NRANKS.findall(words))
    return int(counts.pop()) if len(counts) == 1 else None


def _told(section: _Section) -> _Told:
    """The data of a section, without a verdict."""
    cells = [half["busbw_gb_s"] for half in section.placements()]
    nothing: OutOfBounds = {"count": None, "ok": None}
    return {
        "rows": section.rows,
        "avg_busbw_gb_s": section.average[0] if section.average else None,
        "max_busbw_gb_s": max(cells) if cells else None,
        "out_of_bounds": section.out_of_bounds[0] if section.out_of_bounds else nothing,
    }


def _other(section: _Section) -> Other:
    """A section that is not judged."""
    if _is_all_reduce(section) is not False:
        return {
            **_told(section),
            "name": "all_reduce_perf",
            "complete": not _incomplete(section, None),
        }
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
    return {**_told(section), "name": name, "complete": whole}


def parse_size(value: object, name: str) -> int:
    """Bytes of a size in nccl-tests' notation: 8, 512K, 1G. ValueError names the option."""
    found = re.match(r"(\d+(?:\.\d+)?) *([KMG]?)$", str(value).strip().upper())
    size = int(float(found.group(1)) * 1024 ** " KMG".index(found.group(2) or " ")) if found else 0
    if size < 1:
        raise ValueError(
            (
                "%s: '%s' is not a valid size. Give a number of bytes above 0, or one with suffix "
                "K, M or G, such as 512M"
            )
            % (name, value)
        )
    return size


def _whole_number(value: Any, name: str, least: int) -> int | None:
    """A requirement as a number, None without one.

    ValueError names it if it is not a whole number of at least C(least).
    """
    if value is None:
        return None
    if isinstance(value, bool) or not re.match(r"\d+$", str(value)) or int(value) < least:
        raise ValueError(
            "%s: '%s' is not valid. Give a whole number, %d or more" % (name, value, least)
        )
    return int(value)


def check_bounds(
    expected_ranks: object = None,
    expected_hosts: object = None,
    min_busbw_gb_s: Any = None,
    judge_from_bytes: object = None,
) -> Bounds:
    """The requirements as numbers for answer(), from numbers and texts of users.

    ValueError names an invalid value and the valid ones.
    """
    bounds: Bounds = {
        "judge_from_bytes": None
        if judge_from_bytes in (None, "")
        else parse_size(judge_from_bytes, "judge_from_bytes"),
        "expected_ranks": _whole_number(expected_ranks, "expected_ranks", 2),
        "expected_hosts": _whole_number(expected_hosts, "expected_hosts", 1),
    }
    try:
        threshold = None if min_busbw_gb_s is None else float(min_busbw_gb_s)
    except (TypeError, ValueError):
        threshold = -1.0
    if isinstance(min_busbw_gb_s, bool) or threshold is not None and not 0 < threshold < math.inf:
        raise ValueError(
            (
                "min_busbw_gb_s: '%s' is not a valid bandwidth. Give a number of GB/s above 0, "
                "such as 180 or 9.5"
            )
            % min_busbw_gb_s
        )
    bounds["min_busbw_gb_s"] = threshold
    return bounds


def _read(text: str) -> tuple[list[_Section], str]:
    """Sections of the text, and the text. ParseError if it is other text."""
    # Web pages have no-break spaces, and Windows files begin with a byte order mark.
    text = re.sub(r"\r\n?", "\n", text).replace("\u00a0", " ").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        section = _document(text)
        if not section:
            raise ParseError(
                (
                    "line 1: this begins like all_reduce_perf's JSON, but has a different "
                    "structure or is truncated; give its complete output"
                )
            )
        section.end = len(section.message)
        return [section], section.message
    return _sections(text), text


def _nothing(sections: list[_Section], text: str, rc: int | None) -> list[Reason]:
    """Why there is no run of all_reduce_perf, as reasons.

    ParseError if it is other text, and not the output of a failed command.
    """
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


def _take_document(section: _Section, document: str) -> None:
    """Replace the rounded rows of the text by those of the document if both are of the same
    complete run.
    """
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


def _unexpected(sections: list[_Section]) -> list[Reason]:
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
                (
                    "a line inside or below the table of results is not printed by a run that "
                    "completes"
                ),
                "check the line: a process ended, or wrote between the rows. "
                + AGAIN[0].upper()
                + AGAIN[1:],
                line,
            )
        ]
    )


def _shared(devices: list[Device]) -> list[Reason]:
    """Whether several ranks used one GPU, as reasons."""
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


def _too_few(name: str, requested: int | None, found: int | None) -> list[Reason]:
    """Whether another number of ranks or hosts took part than requested, as reasons."""
    if requested is None or found == requested:
        return []
    return [
        _reason(
            name,
            "%d %s are requested, and %s took part"
            % (requested, name, "an unknown number" if found is None else found),
            (
                "check which are missing in 'devices', and give the launcher all hosts with all "
                "their slots"
            ),
        )
    ]


def _too_slow(
    requested: float | None, found: float | None, judge_from_bytes: int | None
) -> list[Reason]:
    """Whether the bandwidth in GB/s is below the requested one, or unknown, as reasons."""
    if requested is None or found is not None and found >= requested:
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
            "the bus bandwidth is %.6g GB/s, at least %g are requested" % (found, requested),
            (
                "check 'transports' and the links between the hosts; measure hosts alone and in "
                "pairs to find the slow one"
            ),
        )
    ]


def _reasons_of(ours: list[_Section], ranks: int | None) -> tuple[list[Reason], list[Reason]]:
    """Why the first of the runs of all_reduce_perf was not complete, and all reasons, with those of
    its later runs.
    """
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


def _judged(rows: list[Row], judge_from_bytes: int | None) -> float | None:
    """The average bus bandwidth of the judged rows in GB/s, None without one."""
    largest = max([row["size_bytes"] for row in rows], default=0)
    least = largest if judge_from_bytes is None else judge_from_bytes
    judged = [row for row in rows if row["size_bytes"] >= least]
    cells = [row[place]["busbw_gb_s"] for row in judged for place in PLACES]
    return sum(cells) / len(cells) if cells else None


def _judged_by(bounds: Bounds) -> list[str]:
    """What the verdict is of."""
    requested = {
        "ranks": bounds.get("expected_ranks"),
        "hosts": bounds.get("expected_hosts"),
        "bandwidth": bounds.get("min_busbw_gb_s"),
    }
    return ["complete", "correct"] + [
        name for name, value in requested.items() if value is not None
    ]


def _nccl_version(section: _Section, words: str) -> str | None:
    return section.nccl_version or next(iter(_NCCL_VERSION.findall(words)), None)


def _participants(section: _Section, words: str) -> _Participants:
    """C(ranks), C(hosts) and C(gpus) of a run, None if unknown, and its C(devices).

    C(words) are its lines and those before it.
    """
    ranks, devices = _count_ranks(section, words), _devices(section)
    # A list with gaps does not show all participants.
    listed = devices if ranks is not None else []
    return {
        "ranks": ranks,
        "hosts": len({device["host"] for device in listed}) or None,
        "gpus": len({_gpu(device) for device in listed}) * section.unlisted or None,
        "devices": [
            {key: value for key, value in device.items() if key != "group"} for device in devices
        ],
    }


def _span(ours: list[_Section], sections: list[_Section], length: int) -> tuple[int, int]:
    """Where the text of the first of the runs begins and ends in a log of C(length) characters.

    Without a run it is all of it.
    """
    if not ours:
        return 0, length
    # Lines of NCCL before the first test belong to it, too.
    return 0 if ours[0] is sections[0] else ours[0].begin, ours[0].end


def answer(
    text: str, document: str = "", rc: int | None = None, bounds: Bounds | None = None
) -> Answer:
    """The data of a log and its verdict.

    C(document) is the tool's JSON of the same run. C(rc) is the command's exit code. It is None for
    a log, whose lines then must show that nothing was aborted. C(bounds) are the requirements.
    ParseError if it is other text.
    """
    bounds = bounds or {}
    sections, text = _read(text)
    ours = [section for section in sections if _is_all_reduce(section) is not False]
    first = ours[0] if ours else _Section(0)
    _take_document(first, document)
    begin, end = _span(ours, sections, len(text))
    words = text[begin:end]
    taken = _participants(first, words)
    if ours:
        missing, reasons = _reasons_of(ours, taken["ranks"])
    else:
        missing = reasons = _nothing(sections, text, rc)
    # An error before a whole run does not concern that run.
    reasons = _known(text[begin if missing else first.begin : end]) + reasons
    if rc is None and not reasons:
        reasons = _unexpected(sections)
    if rc:
        reasons.append(
            _reason("exit_code", "the command ended with exit code %d" % rc, "read its output")
        )
    judge_from_bytes = bounds.get("judge_from_bytes")
    bandwidth = _judged(first.rows, judge_from_bytes)
    reasons += (
        _too_few("ranks", bounds.get("expected_ranks"), taken["ranks"])
        + _too_few("hosts", bounds.get("expected_hosts"), taken["hosts"])
        + _too_slow(bounds.get("min_busbw_gb_s"), bandwidth, judge_from_bytes)
    )
    return {
        **_told(first),
        "judged_busbw_gb_s": None if bandwidth is None else round(bandwidth, 3),
        "nccl_version": _nccl_version(first, words),
        "transports": transports(words),
        "over_rdma": rdma_connections(words),
        "complete": not missing,
        "passed": not reasons,
        "judged": _judged_by(bounds),
        "reasons": reasons,
        "remarks": remarks(text[first.begin : end]),
        "other_collectives": [_other(section) for section in sections if section is not first],
        **taken,
    }
