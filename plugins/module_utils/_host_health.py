# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Health of a host's GPUs, clock and file systems: output of dmesg, journalctl, timedatectl,
chronyc and stat in, data out.

The table of Xids is used by all readers: modules, rules of role verify, the health program of role
job_container, and the readers of logs.
"""

from __future__ import annotations

import json
import re

from typing import Any, Callable, Dict, NamedTuple, TypedDict

__all__ = [
    "ACTIONS",
    "CATALOGUE",
    "XIDS",
    "ParseError",
    "device_of",
    "judged",
    "meaning",
    "parse_chronyc",
    "parse_gpu_errors",
    "parse_stat",
    "parse_timedatectl",
    "recovery",
    "remember",
    "told_lines",
    "with_record",
]

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"
#: What each reader does, the least first: nothing; tell it; name it in the result of the job that
#: ran; give no new jobs to the host.
ACTIONS = ("ignore", "warn", "stop_job", "drain")


#: An error of a GPU or an NVSwitch, as P(parse_gpu_errors) returns it.
GpuError = Dict[str, Any]


class Meaning(TypedDict):
    """What an error means: C(action) is one of ACTIONS, C(fix) is what to do, and C(signature) the
    title of a section in docs/errors.md.
    """

    cause: str
    action: str
    fix: str
    signature: str


class FileSystem(TypedDict):
    """Free bytes for an unprivileged user, number of files and free ones."""

    free_bytes: int
    inodes: int
    inodes_free: int


class Xid(NamedTuple):
    """An error of a GPU.

    C(action) is one of ACTIONS, C(advice) a key of ADVICE, and C(signature) the title of a section
    in docs/errors.md. C(since) is the first release of the driver whose recovery action covers the
    error, 0 if none does. C(counter) is the value of nvidia-smi that shows the same fault: C(ecc)
    or C(remap).
    """

    cause: str
    action: str
    advice: str
    signature: str = "xid_notice"
    since: int = 0
    counter: str = ""


_RETURNS = "If the error returns, replace "
#: A reader of metrics holds the GPUs, so that a reset fails while it runs.
RESET = "nvidia-smi --gpu-reset, with monitoring after systemctl stop trainyard-metrics-gpu"
#: What to do. For errors of programs it is for the person whose job it was, otherwise for the
#: operator.
ADVICE = {
    "nothing": "nothing has to be done",
    "program": (
        "check the program. If other programs have the same error on this GPU only, the GPU is "
        "faulty"
    ),
    "commands": (
        "check the program. If it returns with other programs, check the PCIe link of the GPU "
        "(slot, riser, cable)"
    ),
    "earlier": "look for the error before it. It also follows each end of a job by force",
    "restart": (
        "start the job again. The memory is repaired by a reset of the GPU (%s) when no job runs"
    )
    % RESET,
    "engine": "start the job again. If the error returns, check the driver's version, then the GPU",
    "later": "reset the GPU (%s) or reboot when no job runs" % RESET,
    "reset": "stop the jobs on the GPU, then reset it (%s) or reboot. " % RESET
    + _RETURNS
    + "the GPU",
    "link": "reset the GPUs (%s) or reboot. " % RESET
    + _RETURNS
    + "the GPU, its bridge or the NVSwitch",
    "bus": (
        "remove the host from service and reboot it. If the error returns, check power, cooling, "
        "slot and riser"
    ),
    "power": "remove the host from service, and connect the power cables of the GPU",
    "firmware": (
        "reboot the host. If the error returns, update driver and firmware, or replace the GPU"
    ),
    "recovery": "run the reported action",
    "watch": "no action is needed now. If the error returns often, ask the vendor of the server",
    "driver": "no action is needed now. If the error returns, update driver and firmware",
    "catalogue": "look it up at docs.nvidia.com/deploy/xid-errors",
    "switch": "restart Fabric Manager, then reboot. " + _RETURNS + "the NVSwitch or its cable",
    "switch_notice": (
        "no action is needed now. If the error returns often, check the NVSwitch and its cables"
    ),
}


def _each(codes: list[int], row: Xid) -> dict[int, Xid]:
    return dict.fromkeys(codes, row)


_PROGRAM = "xid_program"
_MEMORY = "xid_memory"
_RESET = "xid_reset"
_LINK = "xid_nvlink"
#: The only list of Xids, complete as of NVIDIA's catalogue of 2025-10 (CATALOGUE, "Analyzing Xid
#: errors with the Xid catalog"): what it says to do at once decides. An IGNORE of an error that an
#: operator should know is a warning. Codes that are not here are warnings, because the catalogue
#: grows.
XIDS = {
    **_each(
        [*range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47]
        + [*range(49, 54), *range(55, 60), 65, 73, 81, 87, 90, 91, *range(111, 119)]
        + [*range(122, 126), 138],
        Xid("an error that NVIDIA's catalogue lists as unused", "warn", "catalogue"),
    ),
    **_each(
        [39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)],
        Xid("an error of a copy engine", "stop_job", "engine", _PROGRAM),
    ),
    **_each(
        [68, 83, 84, 88, 89, 96, 97, 98],
        Xid("an error of a video decoder", "stop_job", "engine", _PROGRAM),
    ),
    **_each(
        [82, *range(99, 106)],
        Xid("an error of a JPEG decoder", "stop_job", "engine", _PROGRAM),
    ),
    **_each(
        [86, 139],
        Xid("an error of the optical flow accelerator", "stop_job", "engine", _PROGRAM),
    ),
    8: Xid("the GPU stopped the work of a program", "stop_job", "program", _PROGRAM),
    11: Xid("the commands of a program were corrupted", "stop_job", "program", _PROGRAM),
    13: Xid("a program caused a fault of the graphics engine", "stop_job", "program", _PROGRAM),
    14: Xid("a test message", "ignore", "nothing"),
    25: Xid("a program sent illegal commands", "stop_job", "program", _PROGRAM),
    31: Xid("a program used memory that is not its own", "stop_job", "program", _PROGRAM),
    32: Xid("the commands sent to the GPU were corrupted", "stop_job", "commands", _PROGRAM),
    37: Xid("an error of the driver's firmware", "warn", "driver"),
    38: Xid("the watchdog of the driver's firmware ran out", "warn", "driver"),
    43: Xid("a program's work on the GPU was stopped", "stop_job", "program", _PROGRAM),
    44: Xid("a fault while the GPU changed to another program", "warn", "driver"),
    45: Xid(
        "a program's work was removed after another error or a kill",
        "stop_job",
        "earlier",
        _PROGRAM,
    ),
    46: Xid("the GPU stopped processing", "drain", "reset", _RESET),
    48: Xid("an uncorrectable memory error (double bit)", "drain", "reset", _MEMORY, 565, "ecc"),
    54: Xid("the auxiliary power of the GPU is not connected", "drain", "power", _RESET),
    60: Xid("an error of the video processor", "stop_job", "engine", _PROGRAM),
    61: Xid("the GPU's own controller halted at a breakpoint", "warn", "catalogue"),
    62: Xid("the GPU's own controller halted", "drain", "reset", _RESET, 565),
    63: Xid("a memory page or row is pending retirement", "warn", "later", _MEMORY, 565),
    64: Xid("a memory page or row could not be retired", "drain", "reset", _MEMORY, 565, "remap"),
    66: Xid("an illegal access by the driver", "warn", "driver"),
    67: Xid("an illegal access by the driver", "warn", "driver"),
    69: Xid("a program caused a fault of the graphics engine", "stop_job", "program", _PROGRAM),
    74: Xid("an NVLink failed", "drain", "link", _LINK, 565),
    78: Xid("a vGPU could not start", "warn", "driver"),
    # The driver was seen to recommend a reset where a reboot was needed (NVIDIA/NVSentinel#1494),
    # so its recovery action does not decide here.
    79: Xid("the GPU has fallen off the bus", "drain", "bus", "xid_off_the_bus"),
    80: Xid("corrupted data was sent to the GPU", "stop_job", "program", _PROGRAM),
    92: Xid("a high rate of corrected memory errors", "warn", "watch", _MEMORY),
    93: Xid("the GPU's memory of settings (infoROM) is worn out", "warn", "watch"),
    94: Xid(
        "an uncorrectable memory error that affected one program only",
        "stop_job",
        "restart",
        _MEMORY,
        565,
    ),
    95: Xid(
        "an uncorrectable memory error that may have affected any program",
        "drain",
        "reset",
        _MEMORY,
        565,
        "ecc",
    ),
    106: Xid("a test message", "ignore", "nothing"),
    107: Xid("a test message", "ignore", "nothing"),
    108: Xid("an unused error of NVLink", "ignore", "nothing"),
    109: Xid("a switch between programs timed out", "drain", "reset", _RESET, 570),
    110: Xid("a security fault", "drain", "reset", _RESET, 565),
    119: Xid("the GPU's system processor (GSP) does not answer", "drain", "firmware", "xid_gsp"),
    120: Xid("the GPU's system processor (GSP) failed", "drain", "firmware", "xid_gsp", 565),
    121: Xid("a corrected error between the chips (C2C)", "ignore", "nothing"),
    136: Xid("the training of an NVLink failed", "drain", "link", _LINK, 565),
    137: Xid("a program used remote memory that is not its own", "stop_job", "program", _PROGRAM),
    140: Xid("an unrecovered memory error", "drain", "reset", _MEMORY),
    141: Xid("an error of CUDA's fast path", "warn", "driver"),
    142: Xid("an error of a video encoder", "warn", "driver"),
    143: Xid("the GPU could not be initialized", "drain", "firmware", _RESET, 575),
    # The word in the message decides, see meaning().
    **_each([*range(144, 151)], Xid("an NVLink failed", "drain", "link", _LINK, 565)),
    151: Xid("the rotation of a key failed", "drain", "firmware", _RESET),
    152: Xid("an error of the deep learning accelerator", "warn", "driver"),
    153: Xid("the deep learning accelerator did not answer in time", "warn", "driver"),
    # The action in the message decides, see meaning().
    154: Xid(
        "the driver reports the required recovery action", "warn", "recovery", "xid_recovery", 565
    ),
    # Links that are put to sleep are logged, too.
    155: Xid("an NVLink went down", "warn", "watch", _LINK),
    156: Xid("a part of the GPU was retired", "drain", "reset", _RESET, 565),
    157: Xid("a part of the GPU could not be retired", "warn", "watch"),
    158: Xid("the GPU did not answer in time", "drain", "reset", _RESET),
    159: Xid("an error between the GPU and the CPU's memory", "warn", "driver"),
    160: Xid("a channel was retired", "warn", "watch"),
    161: Xid("a channel could not be retired", "warn", "watch"),
    **_each([162, 163, 164, 165], Xid("an event of power smoothing", "warn", "watch")),
    166: Xid("an error of NVLink's encryption", "warn", "driver"),
    167: Xid("a PCIe transfer did not end in time", "warn", "watch"),
    168: Xid("the GPU runs with less memory", "warn", "watch", _MEMORY),
    169: Xid("the GPU's security processor halted", "warn", "driver"),
    170: Xid("an interrupt of NVLink in confidential computing", "warn", "driver"),
    171: Xid(
        "details of an uncorrectable memory error (DRAM), see Xid 48", "warn", "watch", _MEMORY
    ),
    172: Xid(
        "details of an uncorrectable memory error (SRAM), see Xid 48", "warn", "watch", _MEMORY
    ),
}
_UNKNOWN = Xid("an error that is not listed in the collection", "warn", "catalogue")
_SWITCH = {
    True: Xid("an NVSwitch reports an error", "drain", "switch", "sxid_fatal"),
    False: Xid("an NVSwitch reports an error", "warn", "switch_notice", "sxid_notice"),
}
#: What a driver says must be done with a GPU, in nvidia-smi (driver 565 and later) and in Xid 154,
#: without the words that only one of the two has.
_RECOVERIES = {
    "none": ("ignore", ADVICE["nothing"]),
    "reset": (
        "drain",
        "stop the jobs on the GPU, then reset it (%s). If that fails, reboot the host" % RESET,
    ),
    "reboot": ("drain", "stop the jobs on the host, then reboot it"),
    "drain p2p": (
        "drain",
        (
            "stop all jobs on the host that connect GPUs, then read the action again. Reset the "
            "GPU if it stays (%s)"
        )
        % RESET,
    ),
    "drain and reset": (
        "drain",
        "let the jobs on the host end, then reset the GPU (%s)" % RESET,
    ),
}

# What a message of the kernel that counts begins with, behind what dmesg, journalctl and syslog put
# in front. Other messages have words of people, such as the name of the file in which a program has
# crashed. Those two programs indent the further lines of a message.
_SPEAKER = re.compile(
    r"(?:(?:<\d{1,3}>|\[[^][]{1,40}\]|kern *:\w+ *:|[A-Z][a-z]{2} +\d{1,2} "
    r"[\d:.]+|\d{4}-\d\d-\d\dT[\d:.,+Z-]+)\s{0,9}){0,5}(?:[\w.-]{1,255} kernel:\s{0,9})?"
    r"(?:\[[^][]{1,40}\]\s{0,9}){0,3}(?:NVRM: |nvidia|(?:vfio-)?pci |GPU reset executed: "
    r"|Linux version |-- (?:Boot|Reboot))"
)
# NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
# Old drivers have no 'PCI:'. With MIG an instance follows the device: (PCI:0000:c1:00 GPU-I:04).
_XID = re.compile(
    (
        r"NVRM: (?P<kind>Xid) \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)(?: [^)]*)?\): "
        r"(?P<code>\d{1,9})(?:, *(?P<text>.*))?$"
    )
)
# nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up. Two more lines of
# each have registers.
_SXID = re.compile(
    (
        r"nvidia-nvswitch\d+: (?P<kind>SXid) \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): "
        r"(?P<code>\d{1,9}), *(?P<text>(?:Non-f|F)atal\b.*)$"
    )
)
# The equivalent of Xid 79 over three lines, if no Xid could be written.
_LOST_BEGINS = re.compile(r"NVRM: The NVIDIA GPU (?P<device>[0-9A-Fa-f:.]+)\s*$")
_LOST = "fallen off the bus"
_LOST_CODE, _LOST_LINES = 79, 3
# What ends errors. A load of the driver writes the first line at its begin, and the second one
# after it has looked for GPUs.
_LOADS = re.compile(r"nvidia-nvlink: Nvlink Core is being initialized")
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX\b.*\bKernel Module\b")
# A program of a person may have the first two words as its name, which is in the kernel's lines
# about it.
_BOOTS = re.compile(r"(?:^|[\]:] )Linux version \d+\.\d+\S* \(|^-- (?:Boot|Reboot)\b")
_PROBED = re.compile(r"nvidia-nvswitch\d*: Probing device (?P<device>[0-9A-Fa-f:.]+)")
_RESET_DONE = re.compile(
    r"\b(?:nvidia|vfio-pci|pci|NVRM: GPU(?: at PCI:)?) "
    r"?(?P<device>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+?):? "
    r"(?:.*\b)?(?:reset done|reset (?:was |has "
    r")?(?:completed?|succeeded|successful)|(?:was|has been) reset)\b",
    re.IGNORECASE,
)
_EXECUTED = re.compile(
    r"GPU reset executed: (?P<uuid>GPU-[0-9A-Fa-f-]+)(?!.*success: *false)", re.IGNORECASE
)
_UUID = re.compile(
    r"NVRM: GPU at PCI:(?P<device>[0-9a-f:.]+): (?P<uuid>GPU-[0-9a-f-]+)", re.IGNORECASE
)
# The last such word counts: the name of a program, which a person has chosen, comes before it.
_NONFATAL = re.compile(r".*\bnon-?fatal\b(?!.*\bfatal\b)", re.IGNORECASE)
# changed from 0x0 (None) to 0x1 (GPU Reset Required)
_CHANGED = re.compile(r".*\bto 0x[0-9A-Fa-f]+ \(([^()]*)\)|.*\(([^()]*)\)\.?\s*$")
# Each line that is looked at has one of these.
_WORDS = re.compile(r"Xid|NVRM|nvidia-nv|[Rr]eset|Linux version|-- (?:Boot|Reboot)|" + _LOST)
# [  123.456789] of dmesg, and of journalctl's short-monotonic.
_STAMP = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]")


class ParseError(ValueError):
    """Unexpected output of a tool; the message names the line."""


def recovery(words: str) -> tuple[str, str]:
    """Return the action, and what to do, of a recovery action in the words of nvidia-smi or of Xid
    154. Unknown words are a warning.
    """
    bare = re.sub(r"^(?:gpu|node) | required$", "", " ".join(words.lower().split()))
    return _RECOVERIES.get(
        bare, ("warn", "look up '%s' at docs.nvidia.com/deploy/xid-errors" % words)
    )


def device_of(bus_id: str) -> str:
    """Return the device of a PCI bus id as an Xid names it: without the function, in lower case,
    its domain with four digits.
    """
    bare = re.sub(r"\.[0-9a-f]$", "", bus_id.lower())
    match = re.match(r"([0-9a-f]{1,8}):(.+)$", bare)
    return "%04x:%s" % (int(match.group(1), 16), match.group(2)) if match else bare


def meaning(kind: str, code: int, text: str) -> Meaning:
    """Return what an error means and what to do. C(text) is what follows the code in its line."""
    row = _SWITCH[text.startswith("Fatal")] if kind == "SXid" else XIDS.get(code, _UNKNOWN)
    action, fix = row.action, ADVICE[row.advice]
    if kind == "Xid" and code == 154:
        changed = _CHANGED.match(text)
        if changed:
            action, fix = recovery(changed.group(changed.lastindex or 0))
    if kind == "Xid" and 144 <= code <= 150 and _NONFATAL.match(text):
        action, fix = "warn", ADVICE["watch"]
    return {"cause": row.cause, "action": action, "fix": fix, "signature": row.signature}


class _Log:
    """The errors of a kernel log, with what has ended them. Lines are given in their order."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], GpuError] = {}
        # Devices by the UUID of their GPU.
        self.uuids: dict[str, str] = {}
        self.lost, self.lost_at = "", 0
        # Since the boot, of the last line with a time.
        self.seconds: float | None = None
        self.loads = False

    def read(self, line: str, number: int, at: int, is_message: bool) -> None:
        """Read a line.

        C(number) counts the lines, C(at) is its position in the text, and C(is_message) tells
        whether a message that counts begins with it.
        """
        stamp = _STAMP.match(line)
        # The other lines of a message have no prefix.
        self.seconds = float(stamp.group(1)) if stamp else self.seconds
        begins = _LOST_BEGINS.search(line)
        if begins and is_message:
            self.lost, self.lost_at = begins.group("device"), number
        match = _XID.search(line) or _SXID.search(line)
        if match and is_message:
            kind, device, code, text = match.group("kind", "device", "code", "text")
            self.add(kind, device, int(code), (text or "").strip(), at)
        elif self.lost and number - self.lost_at < _LOST_LINES and _LOST in line:
            # An Xid has the device without its function.
            device = re.sub(r"\.\d$", "", self.lost)
            self.add("Xid", device, _LOST_CODE, "GPU has %s" % _LOST, at)["unprobed"] = True
        elif is_message:
            self.read_end(line)

    def add(self, kind: str, device: str, code: int, text: str, at: int) -> GpuError:
        """Count an error and return its entry.

        C(at) is the position of the message in the log, and the time is that of the last stamp, in
        seconds after the boot.
        """
        key = (kind, device.lower(), code)
        meant = dict(meaning(kind, code, text), text=text, at=at)
        is_none = kind == "Xid" and code == 154 and meant["action"] == "ignore"
        if is_none:
            self.end(lambda entry: _same(entry, key[1]))
        entry = self.found.setdefault(
            key,
            {
                "kind": kind,
                "device": key[1],
                "code": code,
                "count": 0,
                "first_s": self.seconds,
                "ended": True,
            },
        )
        # The worst text since the last reset decides, and of a recovery action the last one.
        if (
            entry["ended"]
            or code == 154
            or ACTIONS.index(meant["action"]) >= ACTIONS.index(entry["action"])
        ):
            entry.update(meant)
        entry.update(count=entry["count"] + 1, last_s=self.seconds, ended=is_none, unprobed=False)
        return entry

    def end(self, is_over: Callable[[GpuError], bool]) -> None:
        """Mark the errors that are over as ended."""
        for entry in self.found.values():
            entry["ended"] = entry["ended"] or is_over(entry)

    def read_end(self, line: str) -> None:
        """Read a line of a boot, of a load of the driver, or of a reset."""
        if _BOOTS.search(line) or _LOADS.search(line):
            self.loads = True
            self.end(lambda _entry: True)
            return
        if _LOADED.search(line):
            # The GPUs that this load has not found are still missing.
            if not self.loads:
                self.end(lambda entry: not entry["unprobed"])
            self.loads = False
            for entry in self.found.values():
                entry["unprobed"] = False
            return
        probed, done = _PROBED.search(line), _RESET_DONE.search(line)
        executed, named = _EXECUTED.search(line), _UUID.search(line)
        if probed:
            # All GPUs of an NVSwitch are reset together with it.
            device = probed.group("device").lower()
            self.end(lambda entry: entry["kind"] == "Xid" or _same(entry, device))
        elif done:
            self.end(lambda entry: _same(entry, done.group("device")))
        elif named:
            self.uuids[named.group("uuid").lower()] = named.group("device")
        elif executed and executed.group("uuid").lower() in self.uuids:
            device = self.uuids[executed.group("uuid").lower()]
            self.end(lambda entry: _same(entry, device))


def _same(entry: GpuError, device: str) -> bool:
    return device_of(entry["device"]) == device_of(device)


def _read(text: str, is_mixed: bool = False) -> _Log:
    """Read a log.

    Its errors are in the order of their first line. A mixed log has lines of programs, too, whose
    writers put anything in front.
    """
    log, at = _Log(), 0
    # Names may have other characters that end a line for splitlines().
    for number, line in enumerate(text.split("\n")):
        if _WORDS.search(line):
            log.read(line.rstrip(), number, at, is_mixed or _SPEAKER.match(line) is not None)
        at += len(line) + 1
    return log


_PUBLIC = ("kind", "device", "code", "text", "count", "first_s", "last_s")


def parse_gpu_errors(text: str) -> list[GpuError]:
    """Return the errors that NVIDIA's drivers have written into the kernel log, one entry for each
    device and code, in the order of their first line.

    An entry has C(kind) (Xid of a GPU, SXid of an NVSwitch), C(device), C(code), C(count), and
    C(first_s) and C(last_s), which are seconds since the boot. C(cause), C(action) and C(fix) are
    its meaning, by the worst line since the last reset of the device, whose C(text) it has.
    C(ended) says that a reset, a load of the driver or a boot came after the last line. Lines that
    are cut before the code aren't counted: nothing can be said of them.
    """
    names = (*_PUBLIC, "cause", "action", "ended", "fix")
    return [{name: entry[name] for name in names} for entry in _read(text).found.values()]


def told_lines(text: str) -> list[tuple[int, GpuError]]:
    """Return the errors of GPUs that a reader of logs tells, with the position of each in the text:
    those that have not ended and that are not ignored.
    """
    if "Xid (" not in text and _LOST not in text:
        return []
    return [
        (entry["at"], entry)
        for entry in _read(text, is_mixed=True).found.values()
        if not entry["ended"] and entry["action"] != "ignore"
    ]


def judged(
    errors: list[GpuError], gpus: list[dict[str, Any]], driver: str | None
) -> list[GpuError]:
    """Return the errors that count now: not those that have ended or are ignored, each with the
    C(action) that is left beside the state of the card.

    C(gpus) are those of nvidia-smi, and C(driver) is the version of the loaded driver. The state of
    the card is newer than the log: an error that the recovery action of this driver covers no
    longer drains if that is None, and neither does one whose counter or flag is clear.
    """
    cards = {device_of(gpu["bus_id"]): gpu for gpu in gpus if gpu.get("bus_id")}
    return [
        _repeated(_beside(error, cards.get(device_of(error["device"])), driver))
        for error in errors
        if not error["ended"] and error["action"] != "ignore"
    ]


#: A reboot has been tried, and has not helped.
MOST_BOOTS = 2


def _repeated(error: GpuError) -> GpuError:
    boots = error.get("earlier_boots") or 0
    if boots < MOST_BOOTS or error["action"] != "drain":
        return error
    return dict(
        error,
        fix="do not reboot again: the same error came in %d earlier boots. Remove the host from "
        "service, "
        "and have the GPU, its slot and its power supply inspected" % boots,
    )


def boots_of(text: str) -> dict[str, str]:
    """Return the kernel's lines by ID of the boot, from C(journalctl --output=json).

    A message that is not UTF-8 is left out.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            message, boot = entry["MESSAGE"], entry["_BOOT_ID"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(message, str) and isinstance(boot, str):
            found.setdefault(boot.replace("-", ""), []).append(message)
    return {boot: "\n".join(lines) for boot, lines in found.items()}


def with_boots(errors: list[GpuError], boots: dict[str, str], now: str) -> list[GpuError]:
    """Return the errors with C(earlier_boots), the number of boots before this one, whose ID is
    C(now), in which the same device had the same error.
    """
    seen = [
        {(kind, device_of(device), code) for kind, device, code in _read(text).found}
        for boot, text in boots.items()
        if boot != now.replace("-", "")
    ]

    def count(error: GpuError) -> int:
        key = (error["kind"], device_of(error["device"]), error["code"])
        return sum(key in found for found in seen)

    return [dict(error, earlier_boots=count(error)) for error in errors]


def _beside(error: GpuError, gpu: dict[str, Any] | None, driver: str | None) -> GpuError:
    row = XIDS.get(error["code"]) if error["kind"] == "Xid" else None
    if error["action"] != "drain" or row is None or gpu is None:
        return error
    release = re.match(r"\d+", driver or "")
    covers = row.since and release and int(release.group()) >= row.since
    is_clear = covers and (gpu["recovery_action"] or "").lower() == "none"
    if row.counter == "ecc":
        is_clear = is_clear or gpu["ecc_errors"]["volatile"]["uncorrectable"] == 0
    if row.counter == "remap":
        is_clear = is_clear or gpu["remapped_rows_failure"] is False
    if not is_clear:
        return error
    return dict(
        error,
        action="warn",
        fix=(
            "nothing has to be done now, because the GPU itself reports no fault. If the error "
            "returns, replace the GPU"
        ),
    )


def remember(record: dict[str, Any], boot: str, text: str) -> tuple[str, dict[str, Any]]:
    """Return the kernel log with what its buffer has forgotten, and the record for the next call.

    C(record) is what the last call has returned, C(boot) the id of the boot, and C(text) what dmesg
    has now. The record has the lines of errors that have not ended, the last line that was read,
    and those that name GPUs.
    """
    kept = record if record.get("boot") == boot else {}
    lines = [line for line in text.split("\n") if _WORDS.search(line)]
    last = kept.get("last")
    seen = len(lines) - lines[::-1].index(last) if last in lines else 0
    whole = "\n".join([*kept.get("named", []), *kept.get("open", []), *lines[seen:]])
    log = _read(whole)
    still = [
        entry for entry in log.found.values() if not entry["ended"] and entry["action"] == "drain"
    ]
    # A driver writes them once, maybe long before an error that drains.
    named = ["NVRM: GPU at PCI:%s: %s" % (device, uuid) for uuid, device in log.uuids.items()]
    opened = ["[%.6f] %s" % (entry["last_s"] or 0, _line(entry)) for entry in still]
    last = lines[-1] if lines else last
    return whole, {"boot": boot, "last": last, "named": named, "open": opened}


def with_record(record: dict[str, Any], boot: str, text: str) -> str:
    """Return a kernel log with the errors that it lacks, from the record that P(remember) has made
    in this boot.
    """
    if record.get("boot") != boot:
        return text
    known = _read(text).found
    lacking = [
        line for line in record.get("open") or [] if not _read(line).found.keys() & known.keys()
    ]
    named = record.get("named") or [] if lacking else []
    return "\n".join([*named, *lacking, text])


def _line(entry: GpuError) -> str:
    if entry["kind"] == "SXid":
        return "nvidia-nvswitch0: SXid (PCI:%(device)s): %(code)d, %(text)s" % entry
    return "NVRM: Xid (PCI:%(device)s): %(code)d, %(text)s" % entry


def parse_timedatectl(text: str) -> bool:
    """Return whether the clock is synchronized, from C(timedatectl show
    --property=NTPSynchronized).
    """
    value = text.strip()
    if value not in ("NTPSynchronized=yes", "NTPSynchronized=no"):
        raise ParseError("timedatectl: neither yes nor no: %.80r" % value)
    return value.endswith("yes")


def parse_chronyc(text: str) -> bool:
    """Return whether the clock is synchronized, from C(chronyc -c tracking), whose last field is
    the leap status.
    """
    fields = text.strip().split(",")
    if len(fields) < 14:
        raise ParseError("chronyc -c tracking: not its 14 fields: %.80r" % text.strip())
    return fields[-1] != "Not synchronised"


def parse_stat(text: str) -> FileSystem:
    """Parse C(stat --file-system --format='%S %a %c %d')."""
    match = re.match(r"(\d+) (\d+) (\d+) (\d+)$", text.strip())
    if not match:
        raise ParseError("stat --file-system: not its four numbers: %.80r" % text.strip())
    size, blocks, inodes, free = (int(number) for number in match.groups())
    return {"free_bytes": size * blocks, "inodes": inodes, "inodes_free": free}
