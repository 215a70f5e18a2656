# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Health of a host's GPUs, clock and file systems: output of dmesg, journalctl, timedatectl, chronyc and stat in, data out."""

from __future__ import annotations

import re

from typing import NamedTuple

__all__ = [
    "XIDS",
    "ParseError",
    "meaning",
    "parse_chronyc",
    "parse_gpu_errors",
    "parse_stat",
    "parse_timedatectl",
]


class Action(NamedTuple):
    """What to do about an error. With C(stops) the GPU must no longer be used. Otherwise a program caused the error, or the GPU continues."""

    stops: bool
    fix: str


class Xid(NamedTuple):
    """An error of a GPU. With C(drains) the health program of role job_container drains the node. C(signature) is its title in docs/errors.md."""

    cause: str
    action: str
    drains: bool = False
    signature: str = ""


#: Causes and actions are from NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors).
ACTIONS = {
    "program": Action(
        False,
        "check the program. If other programs have the same error on this GPU only, the GPU is faulty",
    ),
    "earlier": Action(False, "look for the error before it"),
    "later": Action(False, "reset the GPU or reboot when no job runs"),
    "reset": Action(
        True,
        "stop the jobs on the GPU, then reset it (nvidia-smi --gpu-reset) or reboot. If the error returns, replace the GPU",
    ),
    "link": Action(
        True,
        "reset the GPUs or reboot. If the error returns, replace the GPU, its bridge or the NVSwitch",
    ),
    "bus": Action(
        True,
        "remove the host from service and reboot it. If the error returns, check power, cooling, slot and riser",
    ),
    "firmware": Action(
        True,
        "reboot the host. If the error returns, update driver and firmware, or replace the GPU",
    ),
    "recovery": Action(True, "run the reported action"),
    "catalogue": Action(False, "look it up at docs.nvidia.com/deploy/xid-errors"),
    "switch": Action(
        True,
        "restart Fabric Manager, then reboot. If the error returns, replace the NVSwitch or its cable",
    ),
}
#: The only list of Xids: rule gpu-xid of role verify, the health program and docs/errors.md read it.
XIDS = {
    13: Xid("a program caused a fault of the graphics engine", "program", signature="xid_program"),
    31: Xid("a program used memory that is not its own", "program", signature="xid_program"),
    32: Xid("the commands sent to the GPU were corrupted", "program"),
    43: Xid("a program's work on the GPU was stopped", "program", signature="xid_program"),
    45: Xid(
        "a program's work was removed after another error or a kill",
        "earlier",
        signature="xid_program",
    ),
    46: Xid("the GPU stopped processing", "reset"),
    48: Xid("an uncorrectable memory error (double bit)", "reset", True, "xid_memory"),
    61: Xid("the GPU's own controller halted at a breakpoint", "reset"),
    62: Xid("the GPU's own controller halted", "reset", True),
    63: Xid("a memory page or row is pending retirement", "later", True, "xid_memory"),
    64: Xid("a memory page or row could not be retired", "reset", True, "xid_memory"),
    69: Xid("a program caused a fault of the graphics engine", "program"),
    74: Xid("an NVLink failed", "link", True, "xid_nvlink"),
    79: Xid("the GPU has fallen off the bus", "bus", True, "xid_off_the_bus"),
    92: Xid("a high rate of corrected memory errors", "reset", True),
    94: Xid(
        "an uncorrectable memory error that affected one program only", "later", True, "xid_memory"
    ),
    95: Xid(
        "an uncorrectable memory error that may have affected any program",
        "reset",
        True,
        "xid_memory",
    ),
    109: Xid("a switch between programs timed out", "reset"),
    110: Xid("a security fault", "reset"),
    119: Xid("the GPU's system processor (GSP) does not answer", "firmware", True, "xid_gsp"),
    120: Xid("the GPU's system processor (GSP) failed", "firmware", True, "xid_gsp"),
    121: Xid("a corrected error between the chips (C2C)", "later"),
    137: Xid("a program used remote memory that is not its own", "program"),
    140: Xid("an unrecovered memory error", "reset", True),
    143: Xid("the GPU could not be initialized", "firmware"),
    **dict.fromkeys(range(144, 151), Xid("an NVLink failed", "link")),
    154: Xid("the driver reports the required recovery action", "recovery"),
    156: Xid("memory was retired", "later"),
    157: Xid("memory could not be retired", "reset"),
    158: Xid("the GPU did not answer in time", "reset"),
}
_UNKNOWN = Xid("an error that is not listed in the collection", "catalogue")
_SWITCH = Xid("an NVSwitch reports an error", "switch")

# NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
# Old drivers have no 'PCI:'. With MIG an instance follows the device: (PCI:0000:c1:00 GPU-I:04).
_XID = re.compile(
    r"NVRM: (?P<kind>Xid) \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)(?: [^)]*)?\): (?P<code>\d+)(?:, *(?P<text>.*))?$"
)
# nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up. Two more lines of each have registers.
_SXID = re.compile(
    r"nvidia-nvswitch\d+: (?P<kind>SXid) \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): (?P<code>\d+), *(?P<text>(?:Non-f|F)atal\b.*)$"
)
# The equivalent of Xid 79 over three lines, if no Xid could be written.
_LOST_BEGINS = re.compile(r"NVRM: The NVIDIA GPU (?P<device>[0-9A-Fa-f:.]+)\s*$")
_LOST = "fallen off the bus"
_LOST_CODE, _LOST_LINES = 79, 3
# [  123.456789] of dmesg, and of journalctl's short-monotonic.
_STAMP = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]")


class ParseError(ValueError):
    """Unexpected output of a tool; the message names the line."""


def parse_gpu_errors(text):
    """Return the errors that NVIDIA's drivers have written into the kernel log, one entry for each device and code, in the order of their first line.

    An entry has C(kind) (Xid of a GPU, SXid of an NVSwitch), C(device), C(code), C(text) of the last line, C(count), and C(first_s) and C(last_s), which are
    seconds since the boot. C(cause), C(stops) and C(fix) are its meaning. Lines that are cut before the code aren't counted: nothing can be said of them.
    """
    found = {}
    lost, lost_at, seconds = "", 0, None
    for number, line in enumerate(text.splitlines()):
        line = line.rstrip()
        stamp = _STAMP.match(line)
        # The other lines of a message have no prefix.
        seconds = float(stamp.group(1)) if stamp else seconds
        begins = _LOST_BEGINS.search(line)
        if begins:
            lost, lost_at = begins.group("device"), number
        match = _XID.search(line) or _SXID.search(line)
        if match:
            kind, device, code, said = match.group("kind", "device", "code", "text")
        elif lost and number - lost_at < _LOST_LINES and _LOST in line:
            # An Xid has the device without its function.
            kind, device, code, said = (
                "Xid",
                re.sub(r"\.\d$", "", lost),
                _LOST_CODE,
                "GPU has %s" % _LOST,
            )
        else:
            continue
        key = (kind, device.lower(), int(code))
        entry = found.setdefault(
            key,
            {
                "kind": kind,
                "device": key[1],
                "code": key[2],
                "text": "",
                "count": 0,
                "first_s": seconds,
                "last_s": None,
            },
        )
        entry.update(text=(said or "").strip(), count=entry["count"] + 1, last_s=seconds)
    return [
        dict(entry, **meaning(entry["kind"], entry["code"], entry["text"]))
        for entry in found.values()
    ]


def meaning(kind: str, code: int, text: str) -> dict:
    """Return the cause of an error, whether the GPU must no longer be used, and what to do."""
    known = XIDS.get(code, _UNKNOWN) if kind == "Xid" else _SWITCH
    action = ACTIONS[known.action]
    # Some errors say themselves that nothing has to be done. An NVSwitch says it of each.
    is_harmless = "Nonfatal" in text or text.endswith("(None)")
    is_fatal = kind == "Xid" or text.startswith("Fatal")
    return {
        "cause": known.cause,
        "stops": action.stops and is_fatal and not is_harmless,
        "fix": action.fix,
    }


def parse_timedatectl(text):
    """Return whether the clock is synchronized, from C(timedatectl show --property=NTPSynchronized)."""
    said = text.strip()
    if said not in ("NTPSynchronized=yes", "NTPSynchronized=no"):
        raise ParseError("timedatectl: neither yes nor no: %.80r" % said)
    return said.endswith("yes")


def parse_chronyc(text):
    """Return whether the clock is synchronized, from C(chronyc -c tracking), whose last field is the leap status."""
    fields = text.strip().split(",")
    if len(fields) < 14:
        raise ParseError("chronyc -c tracking: not its 14 fields: %.80r" % text.strip())
    return fields[-1] != "Not synchronised"


def parse_stat(text):
    """Parse C(stat --file-system --format='%S %a %c %d'): free bytes for an unprivileged user, number of files and free ones."""
    match = re.match(r"(\d+) (\d+) (\d+) (\d+)$", text.strip())
    if not match:
        raise ParseError("stat --file-system: not its four numbers: %.80r" % text.strip())
    size, blocks, inodes, free = (int(number) for number in match.groups())
    return {"free_bytes": size * blocks, "inodes": inodes, "inodes_free": free}
