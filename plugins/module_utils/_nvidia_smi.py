# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the output of C(nvidia-smi -q -x): text in, typed data out.

The document has been the same tree since driver 270, with names that come, go and move
(C(power_readings), C(gpu_power_readings); C(clocks_throttle_reasons), C(clocks_event_reasons);
C(driver_version), C(kmd_version)). A value is '12 MiB', or a reason why there is none: 'N/A', 'Not
Supported', 'ERR!', 'Unknown Error', 'Requested functionality has been deprecated'. These texts
change, so a value is only what has the form of one; everything else is null, and the words are kept
in C(unavailable). 'N/A', 'Not Supported' and 'deprecated' are properties of a GPU. 'GPU requires
reset', 'GPU is lost', 'Unknown Error' and 'ERR!' are faults of it, in whatever value they are.

nvidia-smi prints errors of single GPUs before or after the document, or instead of it.
"""

from __future__ import annotations

import re

from bisect import bisect_left
from collections import Counter
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, TypedDict, TypeVar
from xml.etree import ElementTree
from xml.sax.saxutils import escape

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import RESET, recovery
    from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _host_health import RESET, recovery  # type: ignore[import-not-found, no-redef]
    from _quantity import quantity  # type: ignore[import-not-found, no-redef]

# Message of nvidia-smi -> cause, in this order: if there are two, the first explains the other. The
# wording is NVML's (nvmlErrorString), or nvidia-smi's for its own checks.
CAUSES = (
    ("driver_library_mismatch", r"driver/library version mismatch"),
    # The stub says as well that the driver is not loaded.
    ("library_missing", r"is a stub library"),
    (
        "driver_not_loaded",
        (
            r"couldn't communicate with the nvidia driver|driver not loaded|nvidia driver is not "
            r"loaded"
        ),
    ),
    (
        "library_missing",
        (
            r"couldn't find libnvidia-ml|nvml: (?:nvml )?shared library not found|error while "
            r"loading shared libraries"
        ),
    ),
    ("gpu_lost", r"gpu is lost|fallen off the bus|unable to determine the device handle"),
    ("access_blocked", r"access blocked by the operating system"),
    (
        "permission",
        r"insufficient permissions|permission denied|no permission|operation not permitted",
    ),
    ("no_devices", r"no devices were found|no devices found"),
    ("unknown", r"unknown error"),
)
# nvidia-smi(1), RETURN VALUE; for unknown messages.
EXIT_CODES = {4: "permission", 9: "driver_not_loaded", 12: "library_missing", 15: "gpu_lost"}

# 'GPU 0000:03:00.0:', 'GPU0000:07:00.0:' or 'GPU0: 0000:01:00.0:', the index only in the last; a
# domain has four or eight digits.
_LOST_GPU = re.compile(
    r"Unable to determine the device handle for GPU\s*?(?:\d{1,2}\s*:\s*)?"
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\s*:\s*([^\n]*)",
    re.IGNORECASE,
)
_BEGIN, _END = re.compile(r"<nvidia_smi_log\b"), re.compile(r"</nvidia_smi_log[ \t\r\n]{0,9}>")
_PROLOGUE = re.compile(r"<\?xml[^<>]*\?>|<!DOCTYPE[^<>]*>")
_MARKUP = re.compile(r"<[/!?A-Za-z][^\n]{0,80}")
_NAME, _NAME_END = "<process_name>", "</process_name>"
# The text after a process's name in every document, which no name contains by chance.
_BEHIND_NAME = re.compile(
    (
        r"</process_name>(?=[ \t\r\n]{0,99}(?:<used_memory>[^<]{0,99}</used_memory>[ "
        r"\t\r\n]{0,99})?</process_info>)"
    )
)
# Characters that XML cannot represent. Ansible keeps bytes that are not UTF-8 as lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ENTITY = re.compile(r"&amp;(amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
_ODD_DIGIT = re.compile(r"(?![0-9])\d|[\u00b2\u00b3\u00b9\u2070-\u2079\u2080-\u2089\u2460-\u2468]")
_VERSION = re.compile(r"([0-9]+(?:\.[0-9]+)+)(?:\s*\[[^]]*\])?")
# int() rejects longer numbers.
_NUMBER = r"(-?[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*"
MOST_GPUS = 256
_YES_NO = {
    "enabled": True,
    "on": True,
    "yes": True,
    "true": True,
    "active": True,
    "disabled": False,
    "off": False,
    "no": False,
    "false": False,
    "not active": False,
}
ABSENT = "not reported by this driver"
# Words in place of a value that say that the GPU is broken, or that it cannot be asked.
_FAULT = re.compile(
    r"requires? (?:a |an )?(?:reset|reboot|power)|(?:reset|reboot) (?:is )?required|unknown "
    r"error|\berr!|\bis lost\b|fallen off the bus|gpu not found"
    r"|device handle|driver not loaded|irq issue|interrupt request issue|insufficient external "
    r"power|corrupted inforom|\btimed out\b"
    r"|^\W*(?:err(?:or)?|lost|timeout|uninitialized|unavailable)\W*$",
    re.IGNORECASE,
)
#: What stops a clock: hardware protection and the power supply. Heat that software avoids is only a
#: warning.
_THROTTLED = {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
_HOT = {"sw_thermal_slowdown"}


class ParseError(ValueError):
    """The text is not output of C(nvidia-smi -q -x), or is truncated."""


#: A GPU by the keys of module nvidia_smi_info.
Gpu = Dict[str, Any]
#: The name of a value, and the words in place of it.
_Fault = Tuple[str, str]
_Value = TypeVar("_Value")


class Answer(NamedTuple):
    """C(gpu_count) is the number that nvidia-smi counted; C(gpus) those that it described;
    C(remarks) the other lines of its output.
    """

    driver_version: str | None
    cuda_version: str | None
    gpu_count: int
    gpus: list[Gpu]
    remarks: list[str]


class Lost(TypedDict):
    """A GPU that nvidia-smi cannot reach, by its bus, and why."""

    bus_id: str
    error: str


class Problem(TypedDict):
    """A problem of a GPU.

    C(id) is the check of role verify that reports it, and C(action) one of ignore, warn, stop_job
    and drain.
    """

    id: str
    action: str
    evidence: str
    fix: str


class Fabric(TypedDict):
    """The NVLink fabric of a host: whether its GPUs are part of one, and all have joined it, None
    without one; and what they say of it.
    """

    present: bool
    ready: bool | None
    states: list[str]
    statuses: list[str]
    healths: list[str]
    cliques: list[str]
    clusters: list[str]


def _check_names(gpus: list[Gpu]) -> None:
    """Each GPU has a uuid or a bus id, and no two have the same."""
    for gpu in gpus:
        if gpu["uuid"] is None and gpu["bus_id"] is None:
            raise ParseError(f"GPU {gpu['index']} has neither a uuid nor a bus id")
    for key in ("uuid", "bus_id"):
        # Published documents often have the uuid masked with zeros.
        counts = Counter(
            gpu[key] for gpu in gpus if gpu[key] is not None and gpu[key].strip("GPU-0")
        )
        twice = sorted(value for value in counts if counts[value] > 1)
        if twice:
            raise ParseError(f"two GPUs have the {key} {twice[0]}")


def parse_query(text: str) -> Answer | None:
    """The result, or None if the text contains no document."""
    text = _without_names(text)
    spans = _documents(text)
    if len(spans) > 1:
        raise ParseError(f"{len(spans)} documents in one output: nvidia-smi prints one")
    if not spans:
        for number, line in enumerate(text.splitlines(), 1):
            if "<nvidia_smi_log" in line:
                raise ParseError(
                    f"the document that begins in line {number} has no end: the output is truncated"
                )
        return None
    begin, end = spans[0]
    beside = _PROLOGUE.sub("", text[:begin]) + "\n" + text[end:]
    tag = _MARKUP.search(beside)
    if tag:
        raise ParseError(
            (
                f"'{tag[0]}' is outside of the document: the name of a process has ended it early, "
                "or the output was mixed up"
            )
        )
    root = _tree(text[begin:end], text.count("\n", 0, begin))
    _refuse_odd_digits(root)
    nodes = root.findall("gpu")
    # Values that belong to no GPU, such as the version of the driver.
    shared = [fault for node in root if node.tag != "gpu" for fault in _faults(node)]
    gpus = [_gpu(index, node, shared) for index, node in enumerate(nodes)]
    count = _count(root, gpus, lost_gpus(beside))
    _check_names(gpus)
    return Answer(
        _first_version(root, "kmd_version", "driver_version"),
        _first_version(root, "cuda_umd_version", "cuda_version"),
        count,
        gpus,
        [line.strip() for line in beside.splitlines() if line.strip()],
    )


def lost_gpus(*streams: str) -> list[Lost]:
    """GPUs that nvidia-smi reports only as unreachable: bus_id and error."""
    # A console may have wrapped the line. Names of processes are not messages of nvidia-smi.
    found = [
        (bus_id.lower(), " ".join(error.split()).rstrip(".") or "no reason given")
        for text in streams
        for bus_id, error in _LOST_GPU.findall(_beside(text))
    ]
    return [{"bus_id": bus_id, "error": error} for bus_id, error in dict.fromkeys(found)]


def why_no_answer(rc: int, stdout: str, stderr: str) -> tuple[str, str]:
    """Cause, and the line that shows it.

    For output without a document, or with an exit code other than 0.
    """
    # Its messages are short.
    lines = [
        line.strip()[:2000]
        for text in (stdout, stderr)
        for line in _beside(text).splitlines()
        if line.strip()
    ]
    for cause, pattern in CAUSES:
        for line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                return cause, line
    last = lines[-1] if lines else "nothing"
    return EXIT_CODES.get(rc, "unknown"), f"{last} (exit code {rc})"


def _without_names(text: str) -> str:
    """The text with escaped names of processes. nvidia-smi prints names literally, including tags,
    quotes and control characters.

    nvidia-smi prints each name on a separate line, so it ends with the last end tag in that line.
    In a document without line breaks, or for a name with line breaks, it ends where the rest of the
    process follows.
    """
    pieces: list[str] = []
    behind: list[int] | None = None
    at, line_begin, line_end = 0, 0, -1
    while True:
        begin = text.find(_NAME, at)
        if begin < 0:
            return "".join(pieces) + text[at:]
        begin += len(_NAME)
        end = -1
        # Only the first tag of a line can be at its beginning.
        if begin > line_end:
            line_begin, line_end = text.rfind("\n", 0, begin) + 1, text.find("\n", begin)
            line_end = len(text) if line_end < 0 else line_end
            if text[line_begin:begin].strip() == _NAME:
                end = begin + len(text[begin:line_end].rstrip()) - len(_NAME_END)
                end = end if end >= begin and text.startswith(_NAME_END, end) else -1
        if end < 0:
            behind = (
                [match.start() for match in _BEHIND_NAME.finditer(text)]
                if behind is None
                else behind
            )
            place = bisect_left(behind, begin)
            end = behind[place] if place < len(behind) else text.find(_NAME_END, begin)
        if end < 0:
            return "".join(pieces) + text[at:]
        pieces += [text[at:begin], _ENTITY.sub(_entity, escape(text[begin:end]))]
        at = end


def _entity(match: re.Match[str]) -> str:
    """Existing escapes stay, except those of characters that XML cannot represent."""
    word = match[1]
    if word[0] != "#":
        return f"&{word};"
    code = int(word[2:], 16) if word[1] == "x" else int(word[1:])
    return (
        f"&{word};"
        if code in (9, 10, 13)
        or 32 <= code < 0xD800
        or 0xE000 <= code < 0xFFFE
        or 0x10000 <= code <= 0x10FFFF
        else match[0]
    )


def _documents(text: str) -> list[tuple[int, int]]:
    """Positions of the documents."""
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        begin = _BEGIN.search(text, at)
        end = _END.search(text, begin.end()) if begin else None
        if not begin or not end:
            return spans
        spans.append((begin.start(), end.end()))
        at = end.end()


def _beside(text: str) -> str:
    """The output outside of the document.

    After a document without an end, or after several, any text may be the name of a process.
    """
    text = _without_names(text)
    first = _BEGIN.search(text)
    if not first:
        return text
    before, spans = _PROLOGUE.sub("", text[: first.start()]), _documents(text)
    behind = text[spans[0][1] :] if len(spans) == 1 else "<?"
    return before if _MARKUP.search(behind) else before + "\n" + behind


def _tree(document: str, lines_before: int) -> ElementTree.Element:
    if "<!ENTITY" in document:
        raise ParseError("the document defines entities, but nvidia-smi never does")
    try:
        return ElementTree.fromstring(_CONTROL.sub("\ufffd", document))
    except ElementTree.ParseError as exc:
        line, column = exc.position
        raise ParseError(
            f"the document is not well-formed in line {line + lines_before}, column {column}"
        ) from exc


def _refuse_odd_digits(root: ElementTree.Element) -> None:
    """int() accepts digits of other scripts or fails on them. nvidia-smi prints none, so its output
    was modified.
    """
    for node in root.iter():
        for words in [] if node.tag == "process_name" else [node.text or "", *node.attrib.values()]:
            if not words.isascii() and _ODD_DIGIT.search(words):
                raise ParseError(
                    (
                        f"{node.tag}: '{' '.join(words.split())[:80]}' has digits other than 0 to "
                        "9, which nvidia-smi never prints"
                    )
                )


def _count(root: ElementTree.Element, gpus: list[Gpu], lost: list[Lost]) -> int:
    """Number of GPUs that nvidia-smi counted.

    It describes each, or reports an error outside of the document. Drivers differ in counting the
    latter.
    """
    described = len(gpus)
    if described > MOST_GPUS:
        raise ParseError(f"the document describes {described} GPUs, more than {MOST_GPUS}")
    attached = _words(root, "attached_gpus")
    if attached is not None and _FAULT.search(attached):
        return described
    if attached is None:
        # Nothing else would reveal a GPU that was injected by the name of a process.
        if any(gpu["processes"] for gpu in gpus):
            raise ParseError(
                (
                    "the document lists processes, but has no attached_gpus, so added or lost GPUs "
                    "would not be noticed"
                )
            )
        return described
    unreachable = len({gpu["bus_id"] for gpu in lost})
    if not re.fullmatch("[0-9]{1,9}", attached) or int(attached) not in (
        described,
        described + unreachable,
    ):
        raise ParseError(
            f"attached_gpus is '{attached}', but the document describes {quantity(described, 'GPU')}"
            + (f", and {quantity(unreachable, 'GPU')} cannot be reached" if unreachable else "")
        )
    return int(attached)


def _words(node: ElementTree.Element, path: str) -> str | None:
    """The element's text; None if there is no such element or it is empty."""
    found = node.find(path)
    if found is None or found.text is None:
        return None
    return " ".join(found.text.split()) or None


def _first_version(root: ElementTree.Element, *paths: str) -> str | None:
    for path in paths:
        match = _VERSION.fullmatch(_words(root, path) or "")
        if match:
            return match[1]
    return None


class _Reader:
    """Reads values of one element, and records the reasons of missing ones."""

    def __init__(self, node: ElementTree.Element) -> None:
        self.node = node
        self.unavailable: dict[str, str] = {}

    def value(
        self, key: str, convert: Callable[[str], Optional[_Value]], *paths: str
    ) -> _Value | None:
        """Return the first value that C(convert) accepts, at the current path or at older ones.

        None if there is none: the reason is in C(unavailable) under C(key).
        """
        reason = ABSENT
        for path in paths:
            words = _words(self.node, path) or self._of_section(path)
            if words is None:
                continue
            found = convert(words)
            if found is not None:
                return found
            # The reason under the current name, which is read first, is better than that under an
            # old name.
            reason = words if reason == ABSENT else reason
        self.unavailable[key] = reason
        return None

    def _of_section(self, path: str) -> str | None:
        """'N/A' may replace a whole section."""
        section = self.node.find(path.rpartition("/")[0]) if "/" in path else None
        return _bare(section) or None if section is not None and len(section) == 0 else None

    def number(self, key: str, unit: str, *paths: str) -> float | None:
        """The number before a unit, which is a regular expression."""

        def convert(words: str) -> float | None:
            match = re.fullmatch(_NUMBER + unit, words)
            return float(match[1]) if match else None

        return self.value(key, convert, *paths)

    def integer(self, key: str, unit: str, *paths: str) -> int | None:
        """The same for whole numbers."""

        def convert(words: str) -> int | None:
            match = re.fullmatch(_NUMBER + unit, words)
            return int(match[1]) if match and "." not in match[1] else None

        return self.value(key, convert, *paths)

    def switch(self, key: str, *paths: str) -> bool | None:
        """Return whether a switch is on, None if that is not known."""
        return self.value(key, lambda words: _YES_NO.get(words.lower()), *paths)

    def text(self, key: str, *paths: str) -> str | None:
        """Return the words at the first path that has some, None if they say that there is no
        value.
        """
        return self.value(key, lambda words: None if _says_none(words) else words, *paths)


def _says_none(words: str) -> bool:
    bare = words.strip("[]").lower()
    return (
        bare in ("n/a", "not found", "no permission")
        or any(
            part in bare
            for part in (
                "not supported",
                "insufficient permissions",
                "blocked by",
                "has been deprecated",
            )
        )
        or _FAULT.search(bare) is not None
    )


def _bare(node: ElementTree.Element) -> str:
    return " ".join((node.text or "").split())


def _faults(node: ElementTree.Element) -> list[_Fault]:
    """Each fault that is in place of a value: the name of the value, and the words.

    Names that people choose are not words of nvidia-smi.
    """
    readings = [
        (part.tag, words)
        for part in node.iter()
        if part.tag not in ("process_name", "vm_name")
        for words in [_bare(part), *part.attrib.values()]
    ]
    return [
        (tag, words)
        for tag, words in readings
        if _FAULT.search(words) and not (tag == "gpu_recovery_action" and _recovery_words(words))
    ]


def _recovery_words(words: str) -> str | None:
    """The recovery action: words that are known, such as Reset, also in a longer form, or
    new ones.
    """
    is_known = recovery(words)[0] != "warn"
    return words if is_known or not _says_none(words) else None


def _gpu(index: int, node: ElementTree.Element, shared: list[_Fault]) -> Gpu:
    read = _Reader(node)
    gpu: Gpu = {
        # Position in the document, as in nvidia-smi's table and its option -i: by PCI bus id. The
        # order of minor numbers may differ.
        "index": index,
        "uuid": read.text("uuid", "uuid"),
        "name": read.text("name", "product_name"),
        "bus_id": _bus_id(node, read),
        "minor_number": read.integer("minor_number", "", "minor_number"),
        "serial": read.text("serial", "serial"),
        "architecture": read.text("architecture", "product_architecture"),
        "compute_mode": read.text("compute_mode", "compute_mode"),
        "persistence_mode": read.switch("persistence_mode", "persistence_mode"),
        "mig_mode": read.switch("mig_mode", "mig_mode/current_mig"),
        "mig_mode_pending": read.switch("mig_mode_pending", "mig_mode/pending_mig"),
        "virtualization_mode": read.text(
            "virtualization_mode", "gpu_virtualization_mode/virtualization_mode"
        ),
        "recovery_action": read.value("recovery_action", _recovery_words, "gpu_recovery_action"),
        "reset_required": read.switch("reset_required", "gpu_reset_status/reset_required"),
        "drain_and_reset_recommended": read.switch(
            "drain_and_reset_recommended", "gpu_reset_status/drain_and_reset_recommended"
        ),
        "fabric_state": read.text("fabric_state", "fabric/state"),
        "fabric_status": read.text("fabric_status", "fabric/status"),
        "fabric_health": read.text("fabric_health", "fabric/health/summary"),
        "fabric_clique": read.text("fabric_clique", "fabric/cliqueId"),
        "fabric_cluster": read.text("fabric_cluster", "fabric/clusterUuid"),
        "memory_total_mib": read.integer(
            "memory_total_mib", "Mi?B", "fb_memory_usage/total", "memory_usage/total"
        ),
        "memory_used_mib": read.integer(
            "memory_used_mib", "Mi?B", "fb_memory_usage/used", "memory_usage/used"
        ),
        "memory_free_mib": read.integer(
            "memory_free_mib", "Mi?B", "fb_memory_usage/free", "memory_usage/free"
        ),
        "utilization_gpu_percent": read.integer(
            "utilization_gpu_percent", "%", "utilization/gpu_util"
        ),
        "utilization_memory_percent": read.integer(
            "utilization_memory_percent", "%", "utilization/memory_util"
        ),
        "temperature_c": read.integer("temperature_c", "C", "temperature/gpu_temp"),
        "power_draw_w": read.number(
            "power_draw_w",
            "W",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/average_power_draw",
            "power_readings/power_draw",
        ),
        "power_limit_w": read.number(
            "power_limit_w",
            "W",
            "gpu_power_readings/current_power_limit",
            "power_readings/enforced_power_limit",
            "power_readings/power_limit",
        ),
        "ecc_mode": read.switch("ecc_mode", "ecc_mode/current_ecc"),
        "ecc_mode_pending": read.switch("ecc_mode_pending", "ecc_mode/pending_ecc"),
        "ecc_errors": {
            span: {kind: _ecc_errors(read, span, kind) for kind in ("correctable", "uncorrectable")}
            for span in ("volatile", "aggregate")
        },
        "retired_pages_pending": read.switch(
            "retired_pages_pending",
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
        ),
        "remapped_rows_pending": read.switch(
            "remapped_rows_pending", "remapped_rows/remapped_row_pending"
        ),
        "remapped_rows_failure": read.switch(
            "remapped_rows_failure", "remapped_rows/remapped_row_failure"
        ),
        "pcie_generation": read.integer(
            "pcie_generation", "", "pci/pci_gpu_link_info/pcie_gen/current_link_gen"
        ),
        "pcie_generation_max": read.integer(
            "pcie_generation_max", "", "pci/pci_gpu_link_info/pcie_gen/max_link_gen"
        ),
        "pcie_width": read.integer(
            "pcie_width", "x", "pci/pci_gpu_link_info/link_widths/current_link_width"
        ),
        "pcie_width_max": read.integer(
            "pcie_width_max", "x", "pci/pci_gpu_link_info/link_widths/max_link_width"
        ),
        "clocks_mhz": {
            kind: read.integer(f"clocks_mhz.{kind}", "MHz", f"clocks/{tag}_clock")
            for kind, tag in _CLOCKS
        },
        "clocks_max_mhz": {
            kind: read.integer(f"clocks_max_mhz.{kind}", "MHz", f"max_clocks/{tag}_clock")
            for kind, tag in _CLOCKS
        },
        "throttle_reasons": _throttle_reasons(read),
        "mig_devices": _mig_devices(node),
        "processes": _processes(read),
    }
    gpu["unavailable"] = read.unavailable
    gpu["faults"] = dict(_faults(node) + shared)
    gpu["fabric_faults"] = [
        "%s is %s" % (part.tag.replace("_", " "), _bare(part))
        for part in node.findall("fabric/health/*")
        if _bare(part).lower() in _DEGRADED.get(part.tag, ())
        or part.tag == "incorrect_configuration"
        and _bare(part).lower() not in ("", "none", "false", "no")
        and not _says_none(_bare(part))
    ]
    gpu["memory_faults"] = [
        path.rpartition("/")[2]
        for path in _MEMORY_FAULTS
        if read.switch(path, "ecc_errors/" + path)
    ]
    # Most drivers have none of them.
    for path in _MEMORY_FAULTS:
        read.unavailable.pop(path, None)
    return judge(gpu)


def judge(gpu: Gpu) -> Gpu:
    """Return the GPU with its C(problems), as all readers judge it, and whether it is C(usable)."""
    found = (
        _state_problems(gpu) + _fabric_problems(gpu) + _memory_problems(gpu) + _clock_problems(gpu)
    )
    is_usable = all(problem["action"] != "drain" for problem in found)
    return dict(gpu, problems=found, usable=is_usable)


#: Values of the fabric's health that are a fault. Others, such as False and Full, are not.
_DEGRADED = {
    "bandwidth": ("degraded",),
    "route_recovery_in_progress": ("true", "yes"),
    "route_unhealthy": ("true", "yes"),
    "access_timeout_recovery": ("true", "yes"),
}
#: What nvidia-smi says beside the counters of errors: what is said of it, the action, and what to
#: do.
_RESET_LATER = "reset GPU %%d (%s) or reboot when no job runs" % RESET
_MEMORY_FAULTS = {
    "unrepairable_memory": ("memory could not be repaired", "drain", "replace GPU %d"),
    "channel_repair_pending": (
        "the repair of a memory channel waits for a reset",
        "warn",
        _RESET_LATER,
    ),
    "tpc_repair_pending": (
        "the repair of a processor cluster waits for a reset",
        "warn",
        _RESET_LATER,
    ),
    "aggregate/sram_threshold_exceeded": (
        "its chip had more uncorrectable memory errors than NVIDIA allows",
        "warn",
        "have GPU %d inspected and replaced by its vendor",
    ),
}
_FABRIC_FIX = (
    "check that nvidia-fabricmanager.service runs on the host in the driver's version, and its "
    "log (journalctl --unit nvidia-fabricmanager). On a machine "
    "with NVLink switches of its own, check them too. Until then CUDA calls may end with error 802"
)
_RESET_FIX = (
    "stop the jobs on GPU %%d, then reset it (%s) or reboot. If it returns, replace it" % RESET
)


def _problem(check: str, action: str, gpu: Gpu, evidence: str, fix: str) -> Problem:
    name = "GPU %d (%s)" % (gpu["index"], gpu["bus_id"] or gpu["uuid"])
    return {"id": check, "action": action, "evidence": "%s: %s" % (name, evidence), "fix": fix}


def _state_problems(gpu: Gpu) -> list[Problem]:
    """What the driver says of the GPU as a whole: values that are missing because of a fault, and
    the recovery action.
    """
    found = []
    if gpu["faults"]:
        messages = "', '".join(sorted({words.strip("[]") for words in gpu["faults"].values()}))
        evidence = "nvidia-smi says '%s' in place of %s" % (messages, ", ".join(gpu["faults"]))
        fix = _RESET_FIX % gpu["index"]
        found.append(_problem("gpu-state", "drain", gpu, evidence[:300], fix))
    if gpu["recovery_action"] is not None:
        action, fix = recovery(gpu["recovery_action"])
        evidence = "the driver asks for recovery action '%s'" % gpu["recovery_action"]
        found += [_problem("gpu-state", action, gpu, evidence, fix)] * (action != "ignore")
    # Drivers before 565.
    for key, words in (
        ("reset_required", "Reset"),
        ("drain_and_reset_recommended", "Drain and Reset"),
    ):
        if gpu[key]:
            action, fix = recovery(words)
            found.append(_problem("gpu-state", action, gpu, key.replace("_", " "), fix))
    return found


def _bus_id(node: ElementTree.Element, read: _Reader) -> str | None:
    bus_id = node.get("id") or ""
    return (
        read.text("bus_id", "pci/pci_bus_id")
        if not bus_id or _says_none(bus_id)
        else bus_id.lower()
    )


def _fabric_problems(gpu: Gpu) -> list[Problem]:
    """What keeps the GPU out of the NVLink fabric.

    N/A is a GPU without one, and clique 0 and health N/A are normal.
    """
    state, status, health = gpu["fabric_state"], gpu["fabric_status"], gpu["fabric_health"]
    if state is None:
        return []
    found = []
    missing = gpu["unavailable"].get("fabric_status")
    has_status = status is not None or missing not in (None, ABSENT)
    if state.lower() != "completed" or has_status and (status or "").lower() != "success":
        evidence = "fabric state '%s', status '%s'; Completed and Success are required" % (
            state,
            status or missing,
        )
        found.append(_problem("gpu-fabric", "drain", gpu, evidence, _FABRIC_FIX))
    if health is not None and health.lower() != "healthy" or gpu["fabric_faults"]:
        evidence = "fabric health '%s'" % ", ".join([health or "unknown", *gpu["fabric_faults"]])
        action = "drain" if (health or "").lower() == "unhealthy" else "warn"
        found.append(_problem("gpu-fabric", action, gpu, evidence, _FABRIC_FIX))
    return found


def _memory_problems(gpu: Gpu) -> list[Problem]:
    """Errors since the driver was loaded and memory that cannot be repaired drain.

    What waits for a reset, or is older, does not.
    """
    errors = {span: gpu["ecc_errors"][span]["uncorrectable"] for span in ("volatile", "aggregate")}
    found = []
    if errors["volatile"]:
        evidence = "%d uncorrectable errors since the driver was loaded" % errors["volatile"]
        fix = _RESET_FIX % gpu["index"]
        found.append(_problem("gpu-ecc", "drain", gpu, evidence, fix))
    elif errors["aggregate"]:
        evidence = "uncorrectable errors: %d in its lifetime" % errors["aggregate"]
        fix = "nothing has to be done now. If errors return, replace GPU %d" % gpu["index"]
        found.append(_problem("gpu-ecc", "warn", gpu, evidence, fix))
    if gpu["retired_pages_pending"] or gpu["remapped_rows_pending"]:
        fix = _RESET_LATER % gpu["index"]
        evidence = "memory is pending retirement until a reset"
        found.append(_problem("gpu-ecc", "warn", gpu, evidence, fix))
    if gpu["remapped_rows_failure"]:
        fix = "replace GPU %d" % gpu["index"]
        found.append(_problem("gpu-ecc", "drain", gpu, "memory could not be retired", fix))
    for path, (evidence, action, fix) in _MEMORY_FAULTS.items():
        if path.rpartition("/")[2] in gpu["memory_faults"]:
            found.append(_problem("gpu-ecc", action, gpu, evidence, fix % gpu["index"]))
    return found


def _clock_problems(gpu: Gpu) -> list[Problem]:
    reasons = set(gpu["throttle_reasons"] or [])
    slowed = [reason for reason in gpu["throttle_reasons"] or [] if reason in _THROTTLED | _HOT]
    if not slowed:
        return []
    evidence = "lower clocks because of %s" % ", ".join(slowed)
    # Temperature and power change with each look, and a changed reason is written to Slurm.
    fix = "check fans, dust, airflow and room temperature, then power cables and supplies"
    action = "drain" if reasons & _THROTTLED else "warn"
    return [_problem("gpu-throttle", action, gpu, evidence, fix)]


def fabric_of(gpus: list[Gpu]) -> Fabric:
    """The NVLink fabric that the GPUs of a host are part of."""
    joined = [gpu for gpu in gpus if gpu["fabric_state"] is not None]
    bad = [
        gpu
        for gpu in joined
        for problem in gpu["problems"]
        if problem["id"] == "gpu-fabric" and problem["action"] == "drain"
    ]

    def each(key: str) -> list[str]:
        return sorted({gpu[key] for gpu in joined if gpu[key] is not None})

    return {
        "present": joined != [],
        "ready": not bad if joined else None,
        "states": each("fabric_state"),
        "statuses": each("fabric_status"),
        "healths": each("fabric_health"),
        "cliques": each("fabric_clique"),
        "clusters": each("fabric_cluster"),
    }


_CLOCKS = (("graphics", "graphics"), ("sm", "sm"), ("memory", "mem"), ("video", "video"))


def _ecc_errors(read: _Reader, span: str, kind: str) -> int | None:
    """The sum of the counters, whose parts differ by generation; null if there are none."""
    single_or_double = "single_bit" if kind == "correctable" else "double_bit"
    total = read.node.find(f"ecc_errors/{span}/{single_or_double}/total")
    nodes = (
        [total]
        if total is not None
        else [
            part
            for part in read.node.findall(f"ecc_errors/{span}/*")
            if re.match(rf"[sd]ram_{kind}(_|$)", part.tag)
        ]
    )
    texts = [" ".join((part.text or "").split()) for part in nodes]
    counted = [int(words) for words in texts if re.fullmatch("[0-9]{1,18}", words)]
    if not counted:
        read.unavailable[f"ecc_errors.{span}.{kind}"] = next(
            (words for words in texts if words), ABSENT
        )
        return None
    return sum(counted)


def _throttle_reasons(read: _Reader) -> list[str] | None:
    """Current reasons for lower clocks in NVIDIA's terms; C(gpu_idle) is one of them.

    Null if unknown.
    """
    nodes = read.node.findall("clocks_event_reasons/*") or read.node.findall(
        "clocks_throttle_reasons/*"
    )
    active, known, reason = [], False, ABSENT
    for part in nodes:
        words = " ".join((part.text or "").split())
        state = _YES_NO.get(words.lower())
        known = known or state is not None
        reason = words if state is None and words else reason
        if state:
            active.append(re.sub(r"^clocks_(?:event|throttle)_reason_", "", part.tag))
    if known:
        return active
    read.unavailable["throttle_reasons"] = reason
    return None


def _mig_devices(node: ElementTree.Element) -> list[dict[str, Any]]:
    devices = []
    for part in node.findall("mig_devices/mig_device"):
        read = _Reader(part)
        devices.append(
            {
                "index": read.integer("index", "", "index"),
                "gpu_instance_id": read.integer("gpu_instance_id", "", "gpu_instance_id"),
                "compute_instance_id": read.integer(
                    "compute_instance_id", "", "compute_instance_id"
                ),
                "memory_total_mib": read.integer(
                    "memory_total_mib", "MiB", "fb_memory_usage/total"
                ),
                "memory_used_mib": read.integer("memory_used_mib", "MiB", "fb_memory_usage/used"),
            }
        )
    return devices


def _processes(read: _Reader) -> list[dict[str, Any]] | None:
    """Null if nvidia-smi does not list them, which differs from an empty list."""
    found = read.node.find("processes")
    message = "" if found is None else _bare(found)
    if found is None or len(found) == 0 and message:
        read.unavailable["processes"] = ABSENT if found is None else message
        return None
    processes = []
    for part in found.findall("process_info"):
        each = _Reader(part)
        processes.append(
            {
                "pid": each.integer("pid", "", "pid"),
                "name": _words(part, "process_name"),
                "type": each.text("type", "type"),
                "used_memory_mib": each.integer("used_memory_mib", "Mi?B", "used_memory"),
                "gpu_instance_id": each.integer("gpu_instance_id", "", "gpu_instance_id"),
            }
        )
    return processes
