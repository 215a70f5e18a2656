# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of InfiniBand and RoCE between two looks of the health program: ports that went down,
flaps, and errors by their rate. Role verify looks, too, and keeps nothing.

A counter since the boot says nothing about today, so the last look is kept. The thresholds are
those of NVIDIA/NVSentinel's monitor of network cards (symbol errors, recoveries), leptonai/gpud (a
port is down after 4 minutes, three flaps) and NVIDIA's health-validation.
"""

from __future__ import annotations

import glob
import os
from typing import Any, Callable, Dict, List, Tuple, TypedDict

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _files
except ImportError:
    # On a host, the health program has the folder of shared modules.
    import _bandwidth  # type: ignore[import-not-found,no-redef]
    import _files  # type: ignore[import-not-found,no-redef]

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
#: Pairs of a check and a text.
Faults = List[Tuple[str, str]]
#: What is known of a port, by keys. Texts of files may be of any form.
Port = Dict[str, Any]


class Problem(TypedDict):
    """What is wrong with a port. C(drains) is whether the health program drains a node for it."""

    check: str
    text: str
    drains: bool


#: Counters of 32 bits stop at their end, and cards count from zero after a reset.
LEAST_SECONDS = 30


def line_of(path: str) -> str:
    """Return the text of a file in sysfs without its line break; empty if it cannot be read."""
    return _files.read(path).strip()


def number(text: str) -> int | None:
    """Return the number that a text of digits stands for, None for other texts."""
    return int(text) if text.isdigit() else None


def read_ports(
    root: str = SYSFS, *, statistics: Callable[[str], str] = _bandwidth.driver_statistics
) -> dict[str, Port]:
    """Return the ports of the host: whether each is active, and its counters.

    C(link_downed) of RoCE is of its interface, where the card does not count it.

    C(statistics) returns what the driver of an interface counts.
    """
    ports: dict[str, Port] = {}
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
    found: dict[str, int] = {}
    for path in paths:
        pfc = _bandwidth.parse_pfc(statistics(os.path.basename(os.path.dirname(path))))
        for counter in PFC:
            count = pfc.get(counter[len("pfc_") :])
            if count is not None:
                found[counter] = max(count, found.get(counter, 0))
    return found


def place_of(counter: str) -> str:
    """Return the folder of a counter, below that of its port in sysfs."""
    return "hw_counters" if counter in OF_HARDWARE else "counters"


def judge(
    former: Any, ports: dict[str, Port], boot: str, now: float
) -> tuple[Faults, dict[str, Any]]:
    """Return the faults of ports as pairs of check and text, and what to keep for the next look,
    with the new C(remarks) of this one.

    C(former) is what the last look has kept, of any form. After a boot the first look only counts:
    a port without a cable is no fault. Verify compares with others.
    """
    known = former.get("ports") if isinstance(former, dict) and former.get("boot") == boot else None
    known = known if isinstance(known, dict) else {}
    found: Faults = []
    kept: dict[str, Port] = {}
    remarks: list[str] = []
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


def problems(former: Any, ports: dict[str, Port], boot: str, now: float) -> list[Problem]:
    """Return what is wrong with ports now and since the last look of the health program.

    Unlike the log of the health program, this repeats what was worth a line in the last hour.
    """
    faults, kept = judge(former, ports, boot, now)
    found: list[Problem] = [
        {"check": check, "text": text, "drains": True} for check, text in faults
    ]
    limits = {**REMARKED, **PFC}
    for name, port in kept["ports"].items():
        for counter in port["remarked"]:
            text = "%s of %s: more than %d in %d s" % (counter, name, *limits[counter])
            found.append({"check": "ib-counters", "text": text, "drains": False})
    return found


def has_looked(former: Any, boot: str) -> bool:
    """Return whether the health program has looked at ports since the boot."""
    known = former.get("ports") if isinstance(former, dict) else None
    return isinstance(known, dict) and bool(known) and former.get("boot") == boot


def remark(name: str, last: Port, entry: Port) -> list[str]:
    """Return what is worth a line of the log, once until an hour has passed without it.

    Notes it in what is kept of the port.
    """
    known = last.get("remarked")
    former = known if isinstance(known, dict) else {}
    now = entry["time"]
    found: list[str] = []
    since, before = before_of(last, now)
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


def before_of(last: Port, now: float) -> tuple[float, dict[str, Any]]:
    """Return the time of the last look and its counters; of a port that is new, now and none."""
    since, counters = last.get("time"), last.get("counters")
    return (
        since if isinstance(since, (int, float)) else now,
        counters if isinstance(counters, dict) else {},
    )


def judge_port(name: str, last: Port, port: Port, now: float) -> tuple[Port, Faults]:
    """Return what is kept of a port, and its faults."""
    since, before = before_of(last, now)
    more = {
        counter: grown(before, port["counters"], counter) for counter in [*RATES, "link_downed"]
    }
    former = last.get("down")
    since_down = former if isinstance(former, (int, float)) else now
    down = None if port["active"] else since_down or now
    entry = {
        "time": now,
        "counters": port["counters"],
        "was_active": bool(port["active"] or last.get("was_active")),
        "down": down,
        "flaps": flaps_of(last, more["link_downed"], now),
        "bad": bad_counters(last, more, now - since, now),
    }
    faults: Faults = []
    if down is not None and now - down >= DOWN_SECONDS:
        faults.append(("ib-ports", "%s is down" % name))
    if len(entry["flaps"]) >= FLAPS:
        # Without the number, as each change of the words is a new reason.
        faults.append(("ib-flaps", "%s went down %d times or more in 12 h" % (name, FLAPS)))
    for counter in entry["bad"]:
        row = (counter, name, *RATES[counter])
        faults.append(("ib-counters", "%s of %s: more than %d in %d s" % row))
    return entry, faults


def flaps_of(last: Port, more: int, now: float) -> list[float]:
    """Return when the port went down in the last hours."""
    former = last.get("flaps")
    known = former if isinstance(former, list) else []
    known = [each for each in known if isinstance(each, (int, float))]
    return [each for each in known if now - FLAP_SECONDS < each <= now] + [now] * min(more, FLAPS)


def bad_counters(last: Port, more: dict[str, int], seconds: float, now: float) -> dict[str, float]:
    """Return the counters that grow too fast, and when they last did.

    A fault ends after an hour without it.
    """
    former = last.get("bad")
    known = former if isinstance(former, dict) else {}
    found: dict[str, float] = {}
    for counter, (events, span) in RATES.items():
        bad = known.get(counter)
        if seconds >= LEAST_SECONDS and more[counter] > max(1.0, seconds / span) * events:
            bad = now
        if isinstance(bad, (int, float)) and now - bad < 3600:
            found[counter] = bad
    return found


def grown(before: dict[str, Any], now: dict[str, int], counter: str) -> int:
    """Return by how much a counter has grown. One that was reset counts from zero."""
    then, value = before.get(counter), now.get(counter)
    if not isinstance(then, int) or value is None:
        return 0
    return value - then if value >= then else value
