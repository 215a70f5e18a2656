# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads slurm.conf and its relatives, and works out which daemons a change of them concerns.

Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypedDict

# Releases in their order. A daemon talks to daemons of earlier releases, see REACH.
RELEASES = (
    "20.02",
    "20.11",
    "21.08",
    "22.05",
    "23.02",
    "23.11",
    "24.05",
    "24.11",
    "25.05",
    "25.11",
    "26.05",
)
# From this release on scontrol(1) says of reconfigure: "this command operates by creating new
# processes for the daemons", so that nearly all is read anew.
NEW_RECONFIGURE = "23.11"

# scontrol(1) since 23.11: "This will not be able to change the daemons' listening TCP port settings
# or authentication mechanism." The rest are the identity of the cluster and where its state is: a
# daemon that goes on in a new process keeps the former one open.
_RESTART_ALWAYS = (
    "authtype",
    "authalttypes",
    "clustername",
    "communicationparameters",
    "slurmctldport",
    "slurmdport",
    "slurmuser",
    "statesavelocation",
)

# slurm.conf(5) of 21.08 and 22.05: "A restart of slurmctld is required for changes to this
# parameter to take effect."
_RESTART_CONTROLLER_BEFORE = (
    "accountingstorageenforce",
    "maxjobcount",
    "schedulerparameters",
    "selecttypeparameters",
    "slurmctldhost",
    "slurmctldparameters",
)
# The same for slurmctld and slurmd, and what both load once: plugins. Their keys end so:
# ProctrackType, TaskPlugin, JobSubmitPlugins, GresTypes.
_RESTART_BOTH_BEFORE = re.compile(r"(type|types|plugin|plugins|dir)$|^maxnodecount$")
# These keys end in Type or Plugin too, but only slurmctld loads the plugin.
_CONTROLLER_PLUGINS = (
    "accountingstoragetype",
    "jobcomptype",
    "jobsubmitplugins",
    "preempttype",
    "prioritytype",
    "schedulertype",
    "sitefactorplugin",
)
# Of a node's line, slurmctld reads these anew without a restart. All other values size its tables:
# slurm.conf(5), NODE CONFIGURATION: "Changes in a node's configuration (e.g. adding memory,
# changing processor count, etc.) require restarting both the slurmctld daemon and the slurmd
# daemons."
_LIGHT_NODE_KEYS = ("feature", "features", "weight", "reason")


class Conf(TypedDict):
    """A file of Slurm.

    All keys are in lower case. C(nodes) and C(partitions) have the values of each name.
    """

    options: dict[str, str]
    nodes: dict[str, dict[str, str]]
    partitions: dict[str, dict[str, str]]
    lines: list[str]


class Effect(TypedDict):
    """What a change of the files needs.

    C(first): there was no slurm.conf. C(restart_slurmd) are nodes. C(reasons) say why daemons
    restart, C(needs_idle) why no job may run meanwhile. C(added) and C(removed) are nodes.
    """

    first: bool
    reconfigure: bool
    restart_slurmctld: bool
    restart_slurmd: list[str]
    reasons: list[str]
    needs_idle: list[str]
    added: list[str]
    removed: list[str]
    removed_partitions: list[str]


def is_before(release: str, other: str) -> bool:
    """Return whether a release is older than another one. The names compare as text."""
    return bool(release) and release < other


def distance(older: str, newer: str) -> int | None:
    """Return how many releases lie from C(older) to C(newer), None if one is not known."""
    if older not in RELEASES or newer not in RELEASES:
        return None
    return RELEASES.index(newer) - RELEASES.index(older)


def reach(release: str) -> int:
    """Return how many releases back a daemon talks.

    24.11 was the first to support three earlier releases instead of two.
    """
    return 2 if is_before(release, "24.11") else 3


def expand(names: str) -> list[str]:
    """Return the names of a Slurm host list: a, b[1-3,07]-x."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        match = re.match(r"([^\[]*)\[([^\]]*)\](.*)$", part)
        if not match:
            found.append(part)
            continue
        for piece in match.group(2).split(","):
            first, dash, last = piece.partition("-")
            if dash and first.isdigit() and last.isdigit():
                numbers = [
                    str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)
                ]
            else:
                numbers = [piece]
            found += expand(
                ",".join(match.group(1) + number + match.group(3) for number in numbers)
            )
    return found


def _lines(text: str | None) -> list[str]:
    """Return the lines without comments, with continued lines joined, as slurm's parser
    reads them.
    """
    joined = re.sub(r"\\\n", " ", text or "")
    lines = (re.sub(r"(?<!\\)#.*", "", line).strip() for line in joined.split("\n"))
    return [" ".join(line.split()) for line in lines if line]


def _pairs(line: str) -> list[tuple[str, str]]:
    """Return (key, value) of each setting of a line."""
    return [
        (key, quoted or plain)
        for key, quoted, plain in re.findall(r'(\w+)\s*=\s*(?:"([^"]*)"|(\S+))', line)
    ]


def parse_conf(text: str | None) -> Conf:
    """Return the content of slurm.conf, or of a file like it. Of gres.conf only the lines
    matter.
    """
    found: Conf = {"options": {}, "nodes": {}, "partitions": {}, "lines": _lines(text)}
    tables = {"nodename": found["nodes"], "partitionname": found["partitions"]}
    defaults: dict[str, dict[str, str]] = {kind: {} for kind in tables}
    for line in found["lines"]:
        pairs = _pairs(line)
        kind = pairs[0][0].lower() if pairs else ""
        if kind not in tables:
            _add_options(found["options"], pairs)
            continue
        values = {key.lower(): value for key, value in pairs[1:]}
        if pairs[0][1] == "DEFAULT":
            defaults[kind].update(values)
            continue
        for name in expand(pairs[0][1]):
            tables[kind][name] = dict(defaults[kind], **values)
    return found


def _add_options(options: dict[str, str], pairs: list[tuple[str, str]]) -> None:
    """Add the settings of a line. The last value of a key counts."""
    for name, value in pairs:
        key = name.lower()
        # SlurmctldHost may be given several times.
        if key == "slurmctldhost" and key in options:
            value = "%s,%s" % (options[key], value)
        options[key] = value


def gpus_of(node: Mapping[str, str] | None) -> int:
    """Return the number of GPUs of a parsed node."""
    counts: list[int] = []
    for part in (node or {}).get("gres", "").split(","):
        match = re.match(r"gpu(?::(?!\d+(?:\(|$))[^:()]+)?(?::(\d+))?(?:\(.*)?$", part)
        if match:
            counts.append(int(match.group(1) or 1))
    return sum(counts)


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return the keys whose values differ, sorted."""
    return sorted(key for key in set(old) | set(new) if old.get(key) != new.get(key))


def _concerned(old: list[str], new: list[str]) -> set[str] | None:
    """Return the nodes in those lines of gres.conf that differ. C(None) means all."""
    different = set(old) ^ set(new)
    names: set[str] = set()
    for line in different:
        pairs = dict((key.lower(), value) for key, value in _pairs(line))
        if "nodename" not in pairs:
            return None
        names.update(expand(pairs["nodename"]))
    return names


class _Needs:
    """What a change needs, as far as the files have been compared.

    C(releases) are those of slurmd by node. slurmctld restarts if C(controller) is true, slurmd on
    the nodes C(daemons).
    """

    def __init__(self, controller: str, releases: dict[str, str]) -> None:
        self.controller_release = controller
        self.releases = releases
        self.reconfigure = False
        self.controller = False
        self.daemons: set[str] = set()
        self.reasons: list[str] = []
        self.idle: list[str] = []

    def all(self, reason: str) -> None:
        """Restart slurmctld and each slurmd."""
        self.controller = True
        self.some(self.releases, reason)

    def some(self, names: Iterable[str], reason: str) -> None:
        """Restart slurmd of these nodes."""
        self.daemons.update(name for name in names if name in self.releases)
        self.reasons.append(reason)

    def is_old(self, release: str) -> bool:
        """Return whether a release is before NEW_RECONFIGURE."""
        return is_before(release, NEW_RECONFIGURE)

    def option(self, key: str) -> None:
        """Choose for one key of slurm.conf."""
        if key in _RESTART_ALWAYS:
            self.all("%s is read at start only" % key)
            return
        self.reconfigure = True
        needs_slurmd = bool(_RESTART_BOTH_BEFORE.search(key)) and key not in _CONTROLLER_PLUGINS
        if self.is_old(self.controller_release) and (
            needs_slurmd or key in _RESTART_CONTROLLER_BEFORE or key in _CONTROLLER_PLUGINS
        ):
            self.controller = True
            self.reasons.append(
                "slurmctld %s reads %s at start only" % (self.controller_release, key)
            )
        if needs_slurmd:
            old = [name for name, release in self.releases.items() if self.is_old(release)]
            if old:
                self.some(old, "slurmd before %s reads %s at start only" % (NEW_RECONFIGURE, key))
        if key == "jobacctgathertype" and any(
            self.is_old(release) for release in [self.controller_release, *self.releases.values()]
        ):
            # slurm.conf(5) of 22.05: "Only change this configuration parameter when there are no
            # running job steps."
            self.idle.append("%s changes messages between the daemons" % key)
        if key == "switchtype":
            # slurm.conf(5): "records of all jobs in any state may be lost."
            self.idle.append("%s makes slurmctld forget all jobs" % key)

    def nodes(self, reason: str) -> None:
        """Choose for a change of the set of nodes or of their size."""
        self.reconfigure = True
        if self.is_old(self.controller_release):
            self.controller = True
            self.reasons.append("slurmctld %s: %s" % (self.controller_release, reason))
        old = [name for name, release in self.releases.items() if self.is_old(release)]
        if old:
            self.some(old, "slurmd before %s: %s" % (NEW_RECONFIGURE, reason))


def _note_nodes(needs: _Needs, before: Conf, after: Conf) -> None:
    """Note what a change of slurm.conf needs. C(before) and C(after) are parsed."""
    for key in _changed(before["options"], after["options"]):
        needs.option(key)
    if set(before["nodes"]) != set(after["nodes"]):
        # scontrol(1) before 23.11: "must also be restarted if nodes are added to or removed from
        # the cluster."
        needs.nodes("added and removed nodes are read at start only")
    for name in sorted(set(before["nodes"]) & set(after["nodes"])):
        keys = _changed(before["nodes"][name], after["nodes"][name])
        needs.reconfigure = needs.reconfigure or bool(keys)
        if any(key not in _LIGHT_NODE_KEYS for key in keys):
            needs.nodes("the line of %s is read at start only" % name)
    needs.reconfigure = needs.reconfigure or before["lines"] != after["lines"]


def _note_gres(needs: _Needs, before: list[str], after: list[str]) -> None:
    """Note what a change of the lines of gres.conf needs."""
    if before == after:
        return
    needs.reconfigure = True
    names = _concerned(before, after)
    stale = [
        name
        for name, release in needs.releases.items()
        if needs.is_old(release) and (names is None or name in names)
    ]
    if stale:
        sentence = "slurmd before %s opens the devices of gres.conf at start"
        needs.some(stale, sentence % NEW_RECONFIGURE)


def _note_cgroup(needs: _Needs, before: dict[str, str], after: dict[str, str]) -> None:
    """Note what a change of the keys of cgroup.conf needs."""
    if before == after:
        return
    # cgroup.conf(5) of all releases: restart, SIGHUP or scontrol reconfigure. The plugin itself is
    # loaded once.
    needs.reconfigure = True
    stale = [name for name, release in needs.releases.items() if needs.is_old(release)]
    if stale and before.get("cgroupplugin") != after.get("cgroupplugin"):
        sentence = "slurmd before %s loads cgroupplugin at start only"
        needs.some(stale, sentence % NEW_RECONFIGURE)


def effect(
    old: Mapping[str, str],
    new: Mapping[str, str],
    controller: str,
    releases: Mapping[str, str],
) -> Effect:
    """Return what a change of the files needs so that it is in force and running jobs go on.

    C(old) and C(new) have the texts C(slurm), C(gres), C(cgroup) and C(mpi). C(controller) is the
    release of slurmctld, C(releases) that of slurmd by node. A start of slurmctld and slurmd ends
    no job: slurmctld recovers its state, and slurmd finds its slurmstepd processes again. slurmctld
    goes first, because a configless slurmd gets the files from it.
    """
    needs = _Needs(controller, dict(releases))
    before, after = parse_conf(old.get("slurm")), parse_conf(new.get("slurm"))
    nothing: Effect = {
        "first": False,
        "reconfigure": False,
        "restart_slurmctld": False,
        "restart_slurmd": [],
        "reasons": [],
        "needs_idle": [],
        "added": [],
        "removed": [],
        "removed_partitions": [],
    }
    if not before["lines"]:
        return {
            **nothing,
            "first": True,
            "restart_slurmctld": True,
            "restart_slurmd": sorted(releases),
            "reasons": ["there was no slurm.conf"],
            "added": sorted(after["nodes"]),
        }
    _note_nodes(needs, before, after)
    _note_gres(needs, _lines(old.get("gres")), _lines(new.get("gres")))
    _note_cgroup(
        needs, parse_conf(old.get("cgroup"))["options"], parse_conf(new.get("cgroup"))["options"]
    )
    if _lines(old.get("mpi")) != _lines(new.get("mpi")):
        needs.reconfigure = True
    # A restarted slurmctld has read the files. Daemons that are not restarted still hold the former
    # ones. A slurmctld that goes on gives a restarted slurmd the files that it read last, so it
    # comes first.
    kept = set(needs.releases) - needs.daemons
    return {
        **nothing,
        "reconfigure": needs.reconfigure and (not needs.controller or bool(kept)),
        "restart_slurmctld": needs.controller,
        "restart_slurmd": sorted(needs.daemons),
        "reasons": _once(needs.reasons),
        "needs_idle": _once(needs.idle),
        "added": sorted(set(after["nodes"]) - set(before["nodes"])),
        "removed": sorted(set(before["nodes"]) - set(after["nodes"])),
        "removed_partitions": sorted(set(before["partitions"]) - set(after["partitions"])),
    }


def _once(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(texts))
