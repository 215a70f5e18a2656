# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of InfiniBand and RoCE between two looks of the health program: ports that went down,
flaps, and errors by their rate.

A counter since the boot says nothing about today, so the last look is kept. The thresholds are
those of NVIDIA/NVSentinel's monitor of network cards (symbol errors, recoveries), leptonai/gpud (a
port is down after 4 minutes, three flaps) and NVIDIA's health-validation.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils import _files, _infiniband
except ImportError:
    # On a host, the health program has the folder of shared modules.
    import _files
    import _infiniband

SYSFS = "/sys/class/infiniband"
#: Counter: events, in so many seconds, above which the port is a fault.
RATES = {
    "symbol_error": (120, 3600),
    "link_error_recovery": (5, 60),
}
#: Those above which NVSentinel warns: the log has them, and the node stays in service.
REMARKED = {
    "port_rcv_errors": (10, 1),
    "port_xmit_discards": (100, 1),
    "local_ack_timeout_err": (1, 1),
    "roce_slow_restart": (10, 1),
}
#: The same of priority flow control. Discards count as those of a port. A pause storm is one that
#: the adapter has ended itself, with losses.
PFC = {
    "pfc_discards": (100, 1),
    "pfc_storms": (0, 1),
}
#: Of the adapter itself. Their folder differs.
OF_HARDWARE = ("local_ack_timeout_err", "roce_slow_restart")
DOWN_SECONDS = 240
FLAPS, FLAP_SECONDS = 3, 12 * 3600
#: Counters of 32 bits stop at their end, and cards count from zero after a reset.
LEAST_SECONDS = 30


def line_of(path: str) -> str:
    return _files.read(path).strip()


def number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def no_statistics(_interface: str) -> str:
    return ""


def read_ports(root: str = SYSFS, *, statistics: Callable[[str], str] = no_statistics) -> dict:
    """Return the ports of the host: whether each is active, and its counters.

    C(link_downed) of RoCE is of its interface, where the card does not count it.

    C(statistics) returns what C(ethtool -S) prints of an interface.
    """
    ports = {}
    for folder in sorted(glob.glob(root + "/*/ports/*")):
        device = os.path.basename(os.path.dirname(os.path.dirname(folder)))
        name = "%s/%s" % (device, os.path.basename(folder))
        counters = {
            counter: number(line_of("%s/%s/%s" % (folder, place_of(counter), counter)))
            for counter in [*RATES, *REMARKED, "link_downed"]
        }
        if line_of(folder + "/link_layer") == "Ethernet":
            paths = sorted(glob.glob(root + "/%s/device/net/*/carrier_changes" % device))
            changes = [number(line_of(path)) for path in paths]
            # Down and up again are two changes.
            counters["link_downed"] = max((each // 2 for each in changes if each), default=0)
            counters.update(flow_control(paths, statistics))
        ports[name] = {
            "active": line_of(folder + "/state").endswith("ACTIVE"),
            "counters": {key: value for key, value in counters.items() if value is not None},
        }
    return ports


def flow_control(paths: list[str], statistics: Callable[[str], str]) -> dict[str, int]:
    """Return the losses of priority flow control of the interfaces to which these files belong.

    Representors of virtual functions do not count any.
    """
    found = {}
    for path in paths:
        pfc = _infiniband.parse_pfc(statistics(os.path.basename(os.path.dirname(path))))
        for counter in PFC:
            count = pfc.get(counter[len("pfc_") :])
            if count is not None:
                found[counter] = max(count, found.get(counter, 0))
    return found


def place_of(counter: str) -> str:
    return "hw_counters" if counter in OF_HARDWARE else "counters"


def judge(former: dict, ports: dict[str, dict], boot: str, now: float) -> tuple[list, dict]:
    """Return the faults of ports as pairs of check and text, and what to keep for the next look,
    with the new C(remarks) of this one.

    C(former) is what the last look has kept, of any form. After a boot the first look only counts:
    a port without a cable is no fault. Verify compares with others.
    """
    known = former.get("ports") if isinstance(former, dict) and former.get("boot") == boot else None
    known = known if isinstance(known, dict) else {}
    found, kept, remarks = [], {}, []
    for name in sorted(set(ports) | set(known)):
        last = known.get(name)
        last = last if isinstance(last, dict) else {}
        port = ports.get(name, {"active": False, "counters": {}})
        entry, faults = judge_port(name, last, port, now)
        remarks += remark(name, last, entry)
        # One that has never been active has no cable, or belongs to nobody.
        if entry["was_active"]:
            found += faults
        kept[name] = entry
    return found, {"boot": boot, "ports": kept, "remarks": remarks}


def remark(name: str, last: dict, entry: dict) -> list[str]:
    """Return what is worth a line of the log, once until an hour has passed without it.

    Notes it in what is kept of the port.
    """
    former = last.get("remarked") if isinstance(last.get("remarked"), dict) else {}
    now, found = entry["time"], []
    since = last.get("time") if isinstance(last.get("time"), (int, float)) else now
    before = last.get("counters") if isinstance(last.get("counters"), dict) else {}
    entry["remarked"] = {}
    for counter, (events, span) in {**REMARKED, **PFC}.items():
        more, seen = grown(before, entry["counters"], counter), former.get(counter)
        is_bad = now - since >= LEAST_SECONDS and more > (now - since) / span * events
        was_bad = isinstance(seen, (int, float)) and now - seen < 3600
        if is_bad and not was_bad:
            found.append("%s of %s: %d in %d s" % (counter, name, more, now - since))
        if is_bad or was_bad:
            entry["remarked"][counter] = now if is_bad else seen
    return found


def judge_port(name: str, last: dict, port: dict, now: float) -> tuple[dict, list]:
    """Return what is kept of a port, and its faults."""
    since = last.get("time") if isinstance(last.get("time"), (int, float)) else now
    before = last.get("counters") if isinstance(last.get("counters"), dict) else {}
    more = {
        counter: grown(before, port["counters"], counter) for counter in [*RATES, "link_downed"]
    }
    down = None if port["active"] else last.get("down") or now
    entry = {
        "time": now,
        "counters": port["counters"],
        "was_active": bool(port["active"] or last.get("was_active")),
        "down": down,
        "flaps": flaps_of(last, more["link_downed"], now),
        "bad": bad_counters(last, more, now - since, now),
    }
    faults = []
    if down is not None and now - down >= DOWN_SECONDS:
        faults.append(("ib-ports", "%s is down" % name))
    if len(entry["flaps"]) >= FLAPS:
        # Without the number, as each change of the words is a new reason.
        faults.append(("ib-flaps", "%s went down %d times or more in 12 h" % (name, FLAPS)))
    for counter in entry["bad"]:
        row = (counter, name, *RATES[counter])
        faults.append(("ib-counters", "%s of %s: more than %d in %d s" % row))
    return entry, faults


def flaps_of(last: dict, more: int, now: float) -> list[float]:
    """Return when the port went down in the last hours."""
    known = [each for each in last.get("flaps") or [] if isinstance(each, (int, float))]
    return [each for each in known if now - FLAP_SECONDS < each <= now] + [now] * min(more, FLAPS)


def bad_counters(last: dict, more: dict, seconds: float, now: float) -> dict[str, float]:
    """Return the counters that grow too fast, and when they last did.

    A fault ends after an hour without it.
    """
    known = last.get("bad") if isinstance(last.get("bad"), dict) else {}
    found = {}
    for counter, (events, span) in RATES.items():
        bad = known.get(counter)
        if seconds >= LEAST_SECONDS and more[counter] > max(1.0, seconds / span) * events:
            bad = now
        if isinstance(bad, (int, float)) and now - bad < 3600:
            found[counter] = bad
    return found


def grown(before: dict, now: dict, counter: str) -> int:
    """Return by how much a counter has grown. One that was reset counts from zero."""
    then, value = before.get(counter), now.get(counter)
    if not isinstance(then, int) or value is None:
        return 0
    return value - then if value >= then else value
