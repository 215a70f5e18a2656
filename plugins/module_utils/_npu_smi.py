# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the output of C(npu-smi info), C(hccn_tool -ip -g) and /etc/hccn.conf: text in, typed data
out.

The table has a heading of two rows, and for every chip a row of each kind. The widths differ
between releases, and so do the columns: C(Chip), C(Chip Device) (310, 310P), C(Chip Phy-ID) (A3),
or neither (950), and HBM only where a chip has it. So values are assigned by the words of the
heading. A card with two chips has both rows twice. npu-smi leaves out a row whose values it cannot
read.

A value is a number or two numbers with a slash. Everything else (C(NA), C(-)) is null, and
C(unavailable) has the original text.
"""

from __future__ import annotations

import ipaddress
import re

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, TypedDict

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _parse_error import ParseError  # type: ignore[import-not-found, no-redef]

# Message of npu-smi -> cause, in this order: if there are several, the first explains the others.
CAUSES = (
    ("library_missing", r"error while loading shared libraries|cannot open shared object file"),
    ("device_in_use", r"because the device is used"),
    ("no_devices", r"there is no npu card on this server"),
    ("permission", r"permission denied|operation not permitted|not permitted"),
)
# Codes of dcmi_interface_api.h. npu-smi prints 'ret is -8005' and ends with the code's last byte.
CODES = {
    -8002: "permission",
    -8005: "driver_not_loaded",
    -8006: "no_answer",
    -8007: "no_devices",
    -8008: "no_devices",
    -8009: "no_answer",
    -8010: "no_answer",
    -8011: "no_answer",
    -8012: "not_ready",
    -8017: "not_ready",
    -8020: "device_in_use",
}
# npu-smi prints one of these for each chip, the best first.
HEALTHY = "OK"
ABSENT = "not reported by this version"
MOST_CHIPS = 256

_CODE = re.compile(r"\bret is (-[0-9]{4})\b")
_RULE = re.compile(r"\+[-=+]{8,}\+")
_TITLE = re.compile(r"npu-smi\s+(\S+)\s+Version\s*:\s*(\S*)", re.IGNORECASE)
_IDLE = re.compile(r"No running processes found in NPU\s+([0-9]{1,9})", re.IGNORECASE)
_HEADING_WORD = re.compile(r"NPU Util\(%\)|NPU ID|\S+", re.IGNORECASE)
_VALUE = re.compile(r"(?:[0-9]+|NA|-)\s*/\s*(?:[0-9]+|NA|-)|\S+")
# int() rejects longer numbers.
_WHOLE = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,9})?")
_PAIR = re.compile(r"(\S+?)\s*/\s*(\S+)")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
# Word of the heading, without its unit -> keys of the value.
_COLUMNS = {
    "power": ("power_w",),
    "temp": ("temperature_c",),
    "hugepages-usage": ("hugepages_used", "hugepages_total"),
    "aicore": ("utilization_percent",),
    "npu util": ("utilization_percent",),
    "memory-usage": ("memory_used_mib", "memory_total_mib"),
    "hbm-usage": ("hbm_used_mib", "hbm_total_mib"),
}
_KEYS = tuple(key for keys in dict.fromkeys(_COLUMNS.values()) for key in keys)
_ADDRESS = re.compile(r"^\s*ipaddr\s*:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_NETMASK = re.compile(r"^\s*netmask\s*:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_SETTING = re.compile(r"(address|netmask)_([0-9]{1,9})\s*=\s*(\S+)", re.IGNORECASE)


#: Rows of a table: the number of the line, and its cells, None for a rule.
_Rows = List[Tuple[int, Optional[List[str]]]]
#: A row with cells.
_Row = Tuple[int, List[str]]
#: An NPU or a chip, by the keys of module npu_smi_info.
Npu = Dict[str, Any]
Chip = Dict[str, Any]
#: Processes by the number of their NPU.
_Processes = Dict[int, List[Dict[str, Any]]]


class Table(NamedTuple):
    """C(cut) is empty for a complete table, else it says what is missing.

    C(remarks) are the lines beside the table.
    """

    tool_version: str | None
    driver_version: str | None
    npus: list[Npu]
    remarks: list[str]
    cut: str


class Address(TypedDict):
    """Address and netmask of a device, None if they are not told."""

    address: str | None
    netmask: str | None


class Finding(TypedDict):
    """A fault of a device; of the host if C(device) is None."""

    kind: str
    device: int | None
    found: str
    expected: str
    fix: str


class _Lines(NamedTuple):
    """C(torn) tells the first line without an end, and C(is_last) whether it is the last one.

    C(remarks) are the lines beside the table.
    """

    rows: _Rows
    remarks: list[str]
    torn: str
    is_last: bool


def parse_info(text: str) -> Table | None:
    """The table of C(npu-smi info), or None if the text has none."""
    rows, remarks, torn, is_last = _rows(text)
    titles = _titles(rows)
    if not titles:
        return None
    title_at, title = titles[0]
    if torn and not is_last:
        raise ParseError(torn)
    if len(titles) > 1:
        raise ParseError(
            f"line {rows[title_at][0]} begins a table, and another one follows: npu-smi prints one"
        )
    tool_version, driver_version = title.groups()
    cut = torn
    if not cut and rows[-1][1] is not None:
        cut = f"line {rows[-1][0]} is its last, and no rule follows"
    chips_at, processes_at = _headings(rows, title_at)
    if chips_at is None:
        return Table(tool_version, driver_version or None, [], remarks, cut or "it has no heading")
    chips, missing = _chips(rows, chips_at, processes_at)
    processes = _processes(rows, processes_at) if processes_at is not None else {}
    return Table(
        tool_version, driver_version or None, _npus(chips, processes), remarks, cut or missing
    )


def _titles(rows: _Rows) -> list[tuple[int, re.Match[str]]]:
    """Places of the rows with the versions of npu-smi and of the driver."""
    found = []
    for place, (_number, cells) in enumerate(rows):
        match = _TITLE.search(cells[0]) if cells else None
        if match:
            found.append((place, match))
    return found


def _rows(text: str) -> _Lines:
    rows: _Rows = []
    remarks: list[str] = []
    torn, is_last = "", True
    lines = [
        (number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()
    ]
    for number, line in lines:
        is_last = not torn
        if _RULE.fullmatch(line):
            rows.append((number, None))
        elif line[0] == "|" and line[-1] == "|" and len(line) > 1:
            cells = line[1:-1].split("|")
            # No table has more than four columns. The third may be the name of a process.
            cells[2:-1] = ["|".join(cells[2:-1])] if len(cells) > 4 else cells[2:-1]
            rows.append((number, [cell.strip() for cell in cells]))
        elif line[0] in "|+":
            # Only the last line of a table that was cut may have no end.
            torn = torn or f"line {number} has no end: '{line[:80]}'"
        else:
            remarks.append(line)
    return _Lines(rows, remarks, torn, is_last)


def _headings(rows: _Rows, title: int) -> tuple[int | None, int | None]:
    """Places of the second row of the heading of chips, and of the heading of processes.

    None if there is none.
    """
    chips = processes = None
    for place in range(title + 1, len(rows)):
        names = _names(rows, place)
        if not names or not names[0].startswith("npu"):
            continue
        if processes is None and len(names) > 1 and "process id" in names:
            processes = place
        elif chips is None and "health" in names and "bus-id" in _names(rows, place + 1):
            chips = place + 1
    return chips, processes


def _names(rows: _Rows, place: int) -> list[str]:
    """The cells of a row in lower case. None for a rule, and behind the last row."""
    cells = rows[place][1] if place < len(rows) else None
    return [cell.lower() for cell in cells or []]


def _chips(rows: _Rows, heading: int, end: int | None) -> tuple[list[Chip], str]:
    """The chips in the order of the table, and what is missing of it."""
    first, second = rows[heading - 1][1] or [], rows[heading][1] or []
    chips: list[Chip] = []
    missing = ""
    for group in _groups(rows[heading + 1 : end]):
        if len(group) == 2:
            chips.append(_chip(first, second, group[0], group[1]))
        elif len(group) > 2:
            raise ParseError(
                f"line {group[2][0]} is a third row of a chip: '{_shown(group[2][1])}'"
            )
        elif not missing:
            missing = (
                f"line {group[0][0]} is the only one of two rows of a chip: '{_shown(group[0][1])}'"
            )
    if len(chips) > MOST_CHIPS:
        raise ParseError(f"the table has {len(chips)} chips, more than {MOST_CHIPS}")
    _refuse_twins(chips)
    return chips, missing


def _groups(rows: _Rows) -> list[list[_Row]]:
    """Rows between rules.

    A table that was cut has no rule at its end. Its last group is judged as the others.
    """
    groups: list[list[_Row]] = [[]]
    for number, cells in rows:
        if cells is None:
            groups.append([])
        else:
            groups[-1].append((number, cells))
    return [group for group in groups if group]


def _refuse_twins(chips: list[Chip]) -> None:
    """ParseError if two chips have the same number, bus or Phy-ID."""
    for key, keys in (
        ("npu and chip", ("npu", "id")),
        ("bus id", ("bus_id",)),
        ("Phy-ID", ("phy_id",)),
    ):
        values = [
            ", ".join(str(chip[name]) for name in keys)
            for chip in chips
            if chip[keys[0]] is not None
        ]
        twice = sorted({each for each in values if values.count(each) > 1})
        if twice:
            raise ParseError(f"two chips have the same {key}: '{twice[0]}'")


def _check_columns(heading: list[str], number: int, cells: list[str]) -> None:
    if len(cells) != len(heading):
        raise ParseError(f"line {number} has other columns than the heading: '{_shown(cells)}'")


def _named_words(headings: list[str], cells: list[str]) -> dict[str, str]:
    """The words of some cells, by the words of their headings."""
    names = [word.lower() for word in _words(headings)]
    return dict(zip(names, " ".join(cells).split()))


def _whole_or_none(word: str | None) -> int | None:
    return int(word) if word and _WHOLE.fullmatch(word) else None


def _chip(first: list[str], second: list[str], one_row: _Row, other_row: _Row) -> Chip:
    """A chip from its two rows, by the two rows of the heading."""
    (number_one, one), (number_two, two) = one_row, other_row
    _check_columns(first, number_one, one)
    _check_columns(second, number_two, two)
    health_at = [cell.lower() for cell in first].index("health")
    bus_at = [cell.lower() for cell in second].index("bus-id")
    # 'NPU Name' in one cell, or in two.
    npu, _blank, name = " ".join(one[:health_at]).partition(" ")
    words = _named_words(second[:bus_at], two[:bus_at])
    bus_id = two[bus_at].lower()
    chip: Chip = {
        "npu": _whole(npu, number_one, "NPU"),
        # Without a column there is one chip for each NPU.
        "id": _whole(words["chip"], number_two, "Chip") if "chip" in words else 0,
        "name": name.strip() or None,
        "health": one[health_at] or None,
        "phy_id": _whole_or_none(words.get("phy-id")),
        "logic_id": _whole_or_none(words.get("device")),
        "bus_id": bus_id if _BUS_ID.fullmatch(bus_id) else None,
    }
    if any("chip" in cell.lower() for cell in second[:bus_at]) and "chip" not in words:
        raise ParseError(f"line {number_two} has no number of a chip: '{_shown(two)}'")
    values = {
        **_values(first[health_at + 1 :], one[health_at + 1 :], number_one),
        **_values(second[bus_at + 1 :], two[bus_at + 1 :], number_two),
    }
    for key in _KEYS:
        chip[key] = _number(values[key], key) if key in values else None
    sources = dict(
        values, phy_id=words.get("phy-id"), logic_id=words.get("device"), bus_id=two[bus_at]
    )
    missing = [*_KEYS, "phy_id", "logic_id", "bus_id", "name", "health"]
    chip["unavailable"] = {key: sources.get(key) or ABSENT for key in missing if chip[key] is None}
    return chip


def _words(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in _HEADING_WORD.findall(cell)]


def _values(heading: list[str], cells: list[str], number: int) -> dict[str, str]:
    """The texts of the values by key.

    As many values as words of the heading are in the same order, else each is below its word.
    """
    found: dict[str, str] = {}
    for names, cell in zip(heading, cells):
        words = [
            (match.start(), match[0].lower().partition("(")[0].strip())
            for match in _HEADING_WORD.finditer(names)
        ]
        values = list(_VALUE.finditer(cell))
        if len(values) != len(words):
            raise ParseError(
                (
                    f"line {number} has {len(values)} values for the {len(words)} columns "
                    f"'{' '.join(names.split())}': '{cell}'"
                )
            )
        for (_start, word), value in zip(words, values):
            keys = _COLUMNS.get(word, ())
            pair = _PAIR.fullmatch(value[0]) if len(keys) == 2 else None
            found.update(zip(keys, pair.groups() if pair else [value[0]] * len(keys)))
    return found


def _whole(text: str, number: int, column: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ParseError(f"line {number}: '{text}' in column {column} is not a number")
    return int(text)


def _number(text: str, key: str) -> float | None:
    if not _NUMBER.fullmatch(text) or (key != "power_w" and "." in text):
        return None
    return float(text) if key == "power_w" else int(text)


def _shown(cells: list[str]) -> str:
    return " | ".join(cells)[:80]


def _processes(rows: _Rows, heading: int) -> _Processes:
    """{NPU: [processes]}. An NPU that the table does not mention has no key."""
    names = _names(rows, heading)
    process_id = names.index("process id")
    has_chip = any("chip" in name for name in names[:process_id])
    found: _Processes = {}
    for number, cells in rows[heading + 1 :]:
        if cells is None:
            continue
        idle = _IDLE.match(cells[0])
        if idle:
            found.setdefault(int(idle[1]), [])
            continue
        ids = " ".join(cells[:process_id]).split()
        if (
            len(cells) != len(names)
            or len(ids) != 1 + has_chip
            or not all(map(_WHOLE.fullmatch, ids))
            or not _WHOLE.fullmatch(cells[process_id])
        ):
            raise ParseError(f"line {number} is no row of a process: '{_shown(cells)}'")
        found.setdefault(int(ids[0]), []).append(
            {
                "chip": int(ids[1]) if has_chip else 0,
                "pid": int(cells[process_id]),
                "name": cells[process_id + 1] or None,
                "memory_mib": int(cells[-1]) if _WHOLE.fullmatch(cells[-1]) else None,
            }
        )
    return found


def _npus(chips: list[Chip], processes: _Processes) -> list[Npu]:
    npus: dict[int, Npu] = {}
    for chip in chips:
        npu = npus.setdefault(
            chip["npu"],
            {
                "id": chip["npu"],
                "name": chip["name"],
                "health": None,
                "power_w": None,
                "memory_used_mib": None,
                "memory_total_mib": None,
                "chips": [],
                "processes": processes.get(chip["npu"]),
            },
        )
        npu["chips"].append({key: value for key, value in chip.items() if key != "npu"})
    for npu in npus.values():
        healths = [chip["health"] for chip in npu["chips"]]
        npu["health"] = next((health for health in healths if health != HEALTHY), HEALTHY)
        powers = [chip["power_w"] for chip in npu["chips"] if chip["power_w"] is not None]
        # Of a card with two chips, npu-smi reports the power once.
        npu["power_w"] = round(sum(powers), 1) if powers else None
        for key in ("used", "total"):
            values = [_memory(chip, key) for chip in npu["chips"]]
            npu[f"memory_{key}_mib"] = None if None in values else sum(values)
    return list(npus.values())


def _memory(chip: Chip, key: str) -> int | None:
    """MiB of memory that are used or there: HBM if the chip has it.

    Chips with HBM report 0 / 0 for other memory, or that of their control CPU.
    """
    kind = "hbm" if chip["hbm_total_mib"] else "memory"
    mib: int | None = chip[f"{kind}_{key}_mib"]
    return mib


def why_no_answer(rc: int, stdout: str, stderr: str) -> tuple[str, str]:
    """Cause, and the line that shows it.

    For output without a table, or with an exit code other than 0.
    """
    lines = [
        line.strip()[:2000]
        for text in (stdout, stderr)
        for line in text.splitlines()
        if line.strip()
    ]
    lines = [line for line in lines if line[0] not in "|+"]
    for cause, pattern in CAUSES:
        for line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                return cause, line
    for line in lines:
        code = _CODE.search(line)
        if code and int(code[1]) in CODES:
            return CODES[int(code[1])], line
    last = lines[-1] if lines else "nothing"
    return "unknown", f"{last} (exit code {rc})"


def parse_address(text: str) -> tuple[str | None, str | None]:
    """(address, netmask) of C(hccn_tool -i N -ip -g). None for what it does not say."""
    return _address(_ADDRESS, text), _address(_NETMASK, text)


def _address(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match and is_address(match[1]) else None


def parse_conf(text: str) -> dict[int, Address]:
    """{device: {address, netmask}} of /etc/hccn.conf.

    As for hccn_tool, the last of several lines for a device counts.
    """
    found: dict[int, Address] = {}
    for line in text.splitlines():
        setting = _SETTING.fullmatch(line.strip())
        if setting and is_address(setting[3]):
            its = found.setdefault(int(setting[2]), {"address": None, "netmask": None})
            if setting[1].lower() == "address":
                its["address"] = setting[3]
            else:
                its["netmask"] = setting[3]
    return {device: found[device] for device in sorted(found) if found[device]["address"]}


def is_address(text: str) -> bool:
    """Whether a text is an address of IPv4 or IPv6."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def merged_devices(
    devices: list[int],
    live: dict[int, tuple[str | None, str | None]],
    reasons: dict[int, str],
    configured: dict[int, Address],
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """The addresses of devices (Phy-IDs) and the findings about them.

    The live answer wins over /etc/hccn.conf.

    C(live) has address and netmask that a device answered with, C(reasons) why one did not answer.
    """
    merged: list[dict[str, Any]] = []
    findings: list[Finding] = []
    seen: dict[str | None, int] = {}
    nothing: Address = {"address": None, "netmask": None}
    for device in devices:
        now, netmask = live.get(device) or (None, None)
        file = configured.get(device) or nothing
        address = now or file["address"]
        source = "hccn_conf" if address else None
        merged.append(
            {
                "id": device,
                "address": address,
                "netmask": netmask if now else file["netmask"],
                "source": "hccn_tool" if now else source,
                "live_address": now,
                "configured_address": file["address"],
                "reason": None if now else reasons.get(device),
            }
        )
        if now and file["address"] and now != file["address"]:
            findings.append(
                _finding(
                    "address_differs",
                    device,
                    now,
                    file["address"],
                    (
                        f"set the address again ('hccn_tool -i {device} -ip -s address ...' also "
                        "writes /etc/hccn.conf), or correct the file"
                    ),
                )
            )
        if not address:
            findings.append(
                _finding(
                    "address_missing",
                    device,
                    reasons.get(device) or "none",
                    "an address",
                    (
                        f"configure one with 'hccn_tool -i {device} -ip -s address ADDRESS netmask "
                        "NETMASK'"
                    ),
                )
            )
        elif address in seen:
            findings.append(
                _finding(
                    "address_duplicate",
                    device,
                    address,
                    f"an address that device {seen[address]} does not have",
                    "give each device of the cluster an address of its own",
                )
            )
        seen.setdefault(address, device)
    return merged, findings


def unhealthy(npus: list[Npu]) -> list[Finding]:
    """Findings about chips that are not healthy."""
    return [
        _finding(
            "unhealthy",
            npu["id"],
            f"chip {chip['id']}: {chip['health']}",
            HEALTHY,
            (
                f"read 'npu-smi info -t health -i {npu['id']} -c {chip['id']}' and 'npu-smi info "
                f"-t err-count -i {npu['id']}'"
            ),
        )
        for npu in npus
        for chip in npu["chips"]
        if chip["health"] != HEALTHY
    ]


def _finding(kind: str, device: int | None, found: str, expected: str, fix: str) -> Finding:
    return {
        "kind": kind,
        "device": device,
        "found": found,
        "expected": expected,
        "fix": fix,
    }


def device_nodes_finding(nodes: list[int], npus: list[Npu]) -> list[Finding]:
    """A finding if the host has other devices than npu-smi has described, else an empty list.

    Without any device file nothing is known.
    """
    chips = sum(len(npu["chips"]) for npu in npus)
    if not nodes or not npus or len(nodes) == chips:
        return []
    return [
        _finding(
            "device_nodes_differ",
            None,
            f"{chips} chips in the table of npu-smi",
            f"{len(nodes)}, as many as files /dev/davinciN",
            (
                "a chip that npu-smi cannot read is left out: read 'dmesg' and /var/log/npu, and "
                "reset or replace it"
            ),
        )
    ]
