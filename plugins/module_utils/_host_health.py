# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Health of a host's GPUs, clock and file systems: output of dmesg, journalctl, timedatectl, chronyc and stat in, data out."""

from __future__ import annotations

import re

__all__ = ["ParseError", "parse_chronyc", "parse_gpu_errors", "parse_stat", "parse_timedatectl"]

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
    seconds since the boot. Lines that are cut before the code aren't counted: nothing can be said of them.
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
    return list(found.values())


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
