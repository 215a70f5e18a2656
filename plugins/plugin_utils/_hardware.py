# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compares NVLinks, PCIe links, interfaces, GPUDirect RDMA and governors with those of the same
models in the cluster. Pure functions.

A number of a data sheet is no measure: a card has no links without a bridge, a virtual machine
shows a part of the lanes, a board gives a slot fewer lanes than the card has. So the measure is the
best part of the same model, at the same place of another host if one has it there. What is worse is
a fault. What only could be better is a warning.

Hosts are data of C(name), C(gpus) of M(nvidia_smi_info), C(facts) of M(host_info), C(infiniband) of
M(infiniband_info), C(addresses), the host's own on the cluster and fabric networks, and C(rails),
the fabric network of each interface, if there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import RESET
from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import load_facts, nvlinks
from ansible_collections.trainyard.gpu.plugins.plugin_utils._verify_plan import hardware

__all__ = ["gpu_models", "problems"]

_BRIDGE = (
    "check that the bridge to the other card sits firmly. A card without a bridge has no active "
    "link"
)
_LINKS = (
    "stop the jobs on the host, then reset the GPU (%s) or reboot. " % RESET
    + "If the links do not return, have the GPU and its board inspected"
)
_LANES = (
    "reseat the card and its riser, check whether the slot shares its lanes with another one, "
    "and clean the contacts. "
    "Otherwise the board is faulty"
)
_LANES_OF_VM = (
    "ask the operator of the hypervisor why this card has fewer lanes than others of its model"
)
_LANES_OF_VMS = (
    "compare with other virtual machines of this type. If they have as many lanes, the "
    "hypervisor shows no more: "
    "skip this check with verify_overrule"
)
_SPEED = "check cable, transceiver and switch port, and the speed that is configured there"
_SLOWER_MODEL = (
    "check cable and switch port. If this model of card cannot do more, it limits the bandwidth of "
    "all hosts"
)


class _Link(NamedTuple):
    """A PCIe link: its rate, the speed of a lane in GT/s, and the number of lanes."""

    rate: float
    speed: float
    width: int


#: A number, or a tuple of numbers of which the first one counts first.
_Value = TypeVar("_Value", int, float, "_Link")


class _Best(Generic[_Value]):
    """The best part by a key, with the name of its host, and the hosts that have such a part."""

    def __init__(self) -> None:
        self.best: dict[Hashable, tuple[_Value, str]] = {}
        self.hosts: dict[Hashable, set[str]] = {}

    def add(self, key: Hashable, value: _Value, host: str) -> None:
        """Add the part of a host. Of equal ones, the first remains the best."""
        self.hosts.setdefault(key, set()).add(host)
        if key not in self.best or value > self.best[key][0]:
            self.best[key] = (value, host)

    def get(self, key: Hashable, nothing: _Value) -> tuple[_Value, str]:
        """Return the best part and its host; C(nothing) and an empty name if there is none."""
        return self.best.get(key, (nothing, ""))

    def is_elsewhere(self, key: Hashable, host: str) -> bool:
        """Return whether another host has such a part."""
        return bool(self.hosts.get(key, set()) - {host})


class Problem(TypedDict):
    """A part that is worse than it should be, in words."""

    expected: str
    found: str
    fix: str
    #: Whether it is only a warning.
    warn: bool


#: Problems of the hosts by name. A part without a problem is None.
Judged = Mapping[str, list["Problem | None"]]


class _Port(NamedTuple):
    """An interface of a card without RDMA devices.

    C(speed) is in Mbit/s, 0 without a link, and C(networks) are those of P(_networks).
    """

    model: str
    name: str
    speed: int
    networks: set[int]


def _problem(expected: str, found: str, fix: str, warn: bool = False) -> Problem:
    return {"expected": expected, "found": found, "fix": fix, "warn": warn}


# --- GPUs ---------------------------------------------------------------------------------------------------------------------


def _gpus(host: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the GPUs of a host. A GPU that does not answer has no name. Other checks report it."""
    return [gpu for gpu in host["gpus"] if gpu.get("name")]


def _name(gpu: dict[str, Any]) -> str:
    return "GPU %s (%s)" % (gpu.get("index"), gpu.get("bus_id"))


def _active(gpu: dict[str, Any]) -> list[float]:
    """Return the speeds of the active NVLinks of a GPU in GB/s."""
    return [speed for speed in gpu.get("nvlinks") or [] if speed]


def _links_in_words(count: int, speed: float = 0.0, but: str = "") -> str:
    return "%d active NVLinks%s" % (count, " %s %g GB/s" % (but or "of", speed) if count else "")


def _nvlink_problem(
    gpu: dict[str, Any],
    count: tuple[int, str],
    speed: tuple[float, str],
    model: Mapping[str, Any],
) -> Problem | None:
    """Return what is wrong with the NVLinks of a GPU.

    C(count) and C(speed) are the most active links, and the speed of the fastest, each with its
    host; C(model) is what the compatibility data has.
    """
    active, as_best = _active(gpu), "%s, as on %s" % (_links_in_words(count[0], speed[0]), count[1])
    slowest = min(active, default=0.0)
    but = "" if slowest == max(active, default=0.0) else "of at least"
    found = "%s: %s" % (_name(gpu), _links_in_words(len(active), slowest, but))
    if gpu.get("nvlinks") is None:
        # A fault, or a driver that does not list links. An answer of an earlier release has no
        # reason.
        reason = (gpu.get("unavailable") or {}).get("nvlinks")
        found = "%s: its NVLinks are unknown: %s" % (_name(gpu), reason)
        fix = "run nvidia-smi nvlink --status, and read dmesg for errors of this GPU"
        return _problem(as_best, found, fix, True) if count[0] and reason else None
    if count[0] and not active and model.get("bridge"):
        return _problem(as_best, found, _BRIDGE, True)
    if len(active) < count[0] or active and slowest < speed[0]:
        return _problem(as_best, found, _LINKS)
    if len(active) < (model.get("links") or 0):
        # No GPU of the cluster shows that it could have more.
        by_data = _links_in_words(model["links"], model["gb_s"]) + ", by the compatibility data"
        return _problem(by_data, found, _LINKS, True)
    return None


def _nvlink_problems(hosts: list[dict[str, Any]], models: Mapping[str, Any]) -> Judged:
    """Judge active NVLinks and their speed. A GPU that is alone in its host needs none.

    Where no switch connects them, and in a virtual machine that has some GPUs of a board, their
    number depends on that of the GPUs. So another host proves a fault if it has as many GPUs, or if
    the model has all links in all hosts.
    """
    counts, speeds = _Best[int](), _Best[float]()
    several = [host for host in hosts if len(host["gpus"]) > 1]

    def kinds(host: dict[str, Any], gpu: dict[str, Any]) -> tuple[Hashable, Hashable]:
        kind = gpu["name"], gpu.get("mig_mode")
        return kind + (len(host["gpus"]),), kind

    for host in several:
        for gpu in _gpus(host):
            for kind in kinds(host, gpu):
                counts.add(kind, len(_active(gpu)), host["name"])
                speeds.add(kind, max(_active(gpu), default=0.0), host["name"])

    def judged(host: dict[str, Any], gpu: dict[str, Any]) -> Problem | None:
        model = models.get(gpu["name"], {})
        of_size, of_any = (
            _nvlink_problem(gpu, counts.get(kind, 0), speeds.get(kind, 0), model)
            for kind in kinds(host, gpu)
        )
        if of_any and (of_size is None or of_size["warn"]):
            is_certain = model.get("links") and not _is_guest(gpu, host)
            return {**of_any, "warn": of_any["warn"] or not is_certain}
        return of_size

    return {host["name"]: [judged(host, gpu) for gpu in _gpus(host)] for host in several}


def _is_guest(gpu: dict[str, Any], host: dict[str, Any]) -> bool:
    """Return whether the GPU belongs to a virtual machine, which the driver does not always notice.

    The machine that lends out virtual GPUs is none.
    """
    mode = str(gpu.get("virtualization_mode") or "None")
    lent = mode != "None" and not mode.startswith("Host")
    return lent or bool(host["facts"].get("virtual_machine"))


def _width_problem(
    gpu: dict[str, Any], is_guest: bool, of_model: tuple[int, str], of_place: tuple[int, str]
) -> Problem | None:
    """Return what is wrong with the PCIe lanes of a GPU.

    C(of_model) and C(of_place) are the most lanes of a GPU of the model, and of the one at the same
    place of a host, each with the host that has it.
    """
    width, most = gpu["pcie_width"], gpu.get("pcie_width_max") or 0
    found, as_made = "%s has %d" % (_name(gpu), width), "%d PCIe lanes" % most
    if width < most and not is_guest:
        return _problem(as_made, found, _LANES)
    if width < most and width < of_model[0]:
        as_peer = "%d PCIe lanes, as a GPU of this model on %s" % of_model
        return _problem(as_peer, found, _LANES_OF_VM)
    if width < most:
        return _problem(as_made, found, _LANES_OF_VMS, True)
    if width < of_place[0]:
        # Its slot has no more, as far as it knows.
        as_peer = "%d PCIe lanes, as the GPU at the same place of %s" % of_place
        return _problem(as_peer, found, _LANES_OF_VM if is_guest else _LANES)
    return None


def _width_problems(hosts: list[dict[str, Any]], _models: Mapping[str, Any]) -> Judged:
    """Judge PCIe lanes of GPUs. An idle GPU lowers the speed of a lane, but not their number."""
    of_model, of_place = _Best[int](), _Best[int]()

    def place(host: dict[str, Any], gpu: dict[str, Any]) -> Hashable:
        return gpu["name"], gpu.get("index"), len(host["gpus"])

    for host in hosts:
        for gpu in _gpus(host):
            of_model.add(gpu["name"], gpu.get("pcie_width") or 0, host["name"])
            of_place.add(place(host, gpu), gpu.get("pcie_width") or 0, host["name"])
    return {
        host["name"]: [
            _width_problem(
                gpu,
                _is_guest(gpu, host),
                of_model.get(gpu["name"], 0),
                of_place.get(place(host, gpu), 0),
            )
            for gpu in _gpus(host)
            if gpu.get("pcie_width")
        ]
        for host in hosts
    }


# --- network ------------------------------------------------------------------------------------------------------------------


def _cards(host: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the network adapters. Facts of an earlier release have none."""
    return host["facts"].get("network_cards") or []


def _used(host: dict[str, Any]) -> dict[str, set[int]]:
    """Return the interfaces with the host's addresses on the cluster and fabric networks, each with
    the networks: the positions of the addresses.
    """
    found: dict[str, set[int]] = {}
    for interface in host["facts"].get("interfaces") or []:
        addresses = {entry["address"] for entry in interface["addresses"]}
        for network, address in enumerate(host["addresses"]):
            if address in addresses:
                found.setdefault(interface["name"], set()).add(network)
    return found


def _networks(interface: dict[str, Any], used: Mapping[str, set[int]]) -> set[int]:
    """Return the networks whose data an interface carries, also below a bond, a bridge or a
    VLAN.
    """
    names = [interface["name"], *interface["above"]]
    return {network for name in names for network in used.get(name, ())}


def _ports(host: dict[str, Any]) -> list[_Port]:
    """Return the interfaces of cards without RDMA devices, whose ports check ib-ports judges."""
    states = {entry["name"]: entry for entry in host["facts"].get("interfaces") or []}
    used = _used(host)
    found: list[_Port] = []
    for card in _cards(host):
        for interface in card["interfaces"] if not card["rdma"] else []:
            state = states.get(interface["name"], {})
            speed = state.get("speed_mbit_s") if state.get("up", True) else 0
            # The drivers of many virtual machines do not know it.
            if speed is not None:
                name, networks = interface["name"], _networks(interface, used)
                found.append(_Port(card["model"], name, speed, networks))
    return found


def _port_keys(port: _Port) -> list[tuple[Any, ...]]:
    """Return what a port is compared by.

    The names of interfaces may differ, and those that carry the data of a network may be compared
    in any case.
    """
    keys: list[tuple[Any, ...]] = [(port.model, port.name)]
    for network in sorted(port.networks):
        keys += [(port.model, network), (network,)]
    return keys


def _speed_problem(port: _Port, best: _Best[int], host: str) -> Problem | None:
    """Return what is wrong with the speed of a port. C(host) is the name of its host."""
    found = "%s: %s" % (port.name, "%d Mb/s" % port.speed if port.speed else "no link")
    for key in _port_keys(port):
        value, other = best.get(key, 0)
        if port.speed < value and other != host:
            as_peer = "%d Mb/s, as on %s" % (value, other)
            is_alike = len(key) > 1
            fix = _SPEED if is_alike else _SLOWER_MODEL
            return _problem(as_peer, found, fix, not port.networks or not is_alike)
    return None


def _speed_problems(hosts: list[dict[str, Any]], _models: Mapping[str, Any]) -> Judged:
    """Judge the speeds of interfaces.

    One without a cable is in order, if the same one of no other host has a cable.
    """
    best, ports = _Best[int](), {host["name"]: _ports(host) for host in hosts}
    for host, its in ports.items():
        for port in its:
            for key in _port_keys(port):
                best.add(key, port.speed, host)
    return {
        host["name"]: [
            *(_speed_problem(port, best, host["name"]) for port in ports[host["name"]]),
            *_duplex_problems(host),
        ]
        for host in hosts
    }


def _duplex_problems(host: dict[str, Any]) -> list[Problem]:
    """Return the interfaces of cards that send or receive, but not both at once: the two ends have
    not agreed. Facts of an earlier release do not say.
    """
    names = {interface["name"] for card in _cards(host) for interface in card["interfaces"]}
    fix = (
        "set both ends to the same speed and duplex, or both to negotiate them (ethtool -s NAME "
        "autoneg on)"
    )
    return [
        _problem("full duplex", "%s: half duplex" % interface["name"], fix, True)
        for interface in host["facts"].get("interfaces") or []
        if interface["name"] in names and interface.get("duplex") == "half"
    ]


def _rate(speed: float | None, width: int | None) -> float:
    """Return the rate of a PCIe link in GT/s of all lanes, 0 if it is unknown."""
    return speed * width if speed and width else 0.0


def _link_in_words(speed: float, width: int) -> str:
    return "%g GT/s, %d lanes" % (speed, width)


def _card_problem(
    card: dict[str, Any], peer: tuple[_Link, str], is_fault: bool, host: dict[str, Any]
) -> Problem | None:
    """Return what is wrong with the PCIe link of a card.

    C(peer) is the rate, speed and width of the best card to compare with, and its host. C(is_fault)
    tells whether it proves a fault.
    """
    rate = _rate(card["gt_s"], card["width"])
    limits = [card["gt_s_max"], card["slot_gt_s_max"], card["width_max"], card["slot_width_max"]]
    full = (min(limits[:2]), min(limits[2:])) if all(limits) else (0, 0)
    names = card["rdma"] or [each["name"] for each in card["interfaces"]] or [card["model"]]
    found = "%s (%s): %s" % (
        card["bus_id"],
        ", ".join(names),
        _link_in_words(card["gt_s"], card["width"]),
    )
    guest = host["facts"].get("virtual_machine")
    (best, speed, width), name = peer
    if rate < best:
        as_peer = "%s, as on %s" % (_link_in_words(speed, width), name)
        # At another place, the slot of the host may be made for less.
        is_certain = is_fault or rate < _rate(*full)
        return _problem(
            as_peer,
            found,
            _LANES_OF_VM if guest else _LANES,
            not is_certain or not _carries_data(card, host),
        )
    if rate < _rate(*full):
        could = "%s, of which the card and its slot are capable" % _link_in_words(*full)
        return _problem(could, found, _LANES_OF_VMS if guest else _LANES, True)
    return None


def _carries_data(card: dict[str, Any], host: dict[str, Any]) -> bool:
    """Return whether a card carries data of jobs."""
    used = _used(host)
    return bool(card["rdma"]) or any(_networks(each, used) for each in card["interfaces"])


def _card_problems(hosts: list[dict[str, Any]], _models: Mapping[str, Any]) -> Judged:
    """Judge the PCIe links of network cards, against the same model on other hosts, and against
    what the card and its slot are capable of.
    """
    best = _Best[_Link]()

    def place(card: dict[str, Any]) -> Hashable:
        return card["model"], card["bus_id"]

    known = {
        host["name"]: [card for card in _cards(host) if _rate(card["gt_s"], card["width"])]
        for host in hosts
    }
    for host, cards in known.items():
        for card in cards:
            value = _Link(_rate(card["gt_s"], card["width"]), card["gt_s"], card["width"])
            best.add(place(card), value, host)
            best.add(card["model"], value, host)

    def judged(card: dict[str, Any], host: dict[str, Any]) -> Problem | None:
        is_there = best.is_elsewhere(place(card), host["name"])
        peer = best.get(place(card) if is_there else card["model"], _Link(0.0, 0.0, 0))
        # The other cards of the host itself are at other places.
        peer = peer if peer[1] != host["name"] else (_Link(0.0, 0.0, 0), "")
        return _card_problem(card, peer, is_there, host)

    return {host["name"]: [judged(card, host) for card in known[host["name"]]] for host in hosts}


# --- GPUDirect RDMA -----------------------------------------------------------------------------------------------------------

#: Their drivers need no module of NVIDIA's beside them.
_OTHER_DRIVERS = ("efa",)
_PEER_MEMORY = (
    "load the module (modprobe nvidia-peermem) and name it in a file of /etc/modules-load.d. "
    "If it cannot be loaded, the drivers of the adapters have no "
    "peer memory: install the open kernel modules of NVIDIA's driver with Linux 5.12 or newer, "
    "whose DMA-BUF needs no module"
)
_ACS = (
    "disable Access Control Services in the firmware (BIOS) of the server, or for each of "
    "these ports with setpci -s PORT ECAP_ACS+6.w=0 at each boot. "
    "A host that passes devices on to virtual machines needs them"
)
_IOMMU = (
    "add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then "
    "update-grub) "
    "and reboot, or disable the IOMMU in the firmware"
)
_TALL = 3


def _some(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - _TALL
    return ", ".join(names[:_TALL]) + (" and %d more" % more if more > 0 else "")


def _uses_gpudirect(host: dict[str, Any]) -> bool:
    """Return whether adapters of the host could read the memory of its GPUs: of GeForce cards they
    cannot.
    """
    is_able = any("GeForce" not in gpu["name"] for gpu in _gpus(host))
    devices = host.get("infiniband", {}).get("devices") or []
    return is_able and any(
        port["state"] == "active"
        for device in devices
        if device.get("driver") not in _OTHER_DRIVERS
        for port in device["ports"]
    )


def _hindrances(host: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Return what prevents or slows GPUDirect RDMA, by kind: expected, found, fix.

    A virtual machine sees neither the switches nor the IOMMU of its server.
    """
    read, facts = host["infiniband"]["gpudirect"], host["facts"]
    found: dict[str, tuple[str, str, str]] = {}
    if not (read["peer_memory"] or read["dma_buf"]):
        found["peer_memory"] = (
            "nvidia-peermem, or DMA-BUF (Linux 5.12, open kernel modules)",
            "nvidia-peermem is not loaded, and kernel and driver have no DMA-BUF (Linux %s)"
            % facts.get("kernel", "of this host"),
            _PEER_MEMORY,
        )
    if read["redirected"] and not facts.get("virtual_machine"):
        found["redirected"] = (
            "PCIe switches that connect GPUs and adapters directly",
            "Access Control Services send their data through the CPU at the ports %s"
            % _some(read["redirected"]),
            _ACS,
        )
    # Servers with Arm CPUs are made for it.
    if (
        read["translated"]
        and not facts.get("virtual_machine")
        and facts.get("architecture") == "x86_64"
    ):
        found["translated"] = (
            "no IOMMU, or one in pass-through mode",
            "the IOMMU translates the addresses of %s" % _some(read["translated"]),
            _IOMMU,
        )
    return found


def _gpudirect_problems(hosts: list[dict[str, Any]], _models: Mapping[str, Any]) -> Judged:
    """Return the hosts whose adapters cannot read the memory of the GPUs, or only through the CPU.

    One host alone needs no network.
    """
    known = [
        host
        for host in hosts
        if _uses_gpudirect(host) and host.get("infiniband", {}).get("gpudirect")
    ]
    found = {host["name"]: _hindrances(host) for host in known} if len(known) > 1 else {}

    def problem(kind: str, expected: str, hindrance: str, fix: str) -> Problem:
        peer = next((name for name, its in found.items() if kind not in its), "")
        return _problem(expected + (", as on %s" % peer if peer else ""), hindrance, fix, True)

    return {
        name: [problem(kind, *entry) for kind, entry in its.items()] for name, its in found.items()
    }


_ALIKE = {
    "firmware": "update the firmware to that of the other hosts, or theirs, and reboot",
    "driver": "install the same driver of the adapters on all hosts",
    "release of the driver": "install the same release of the vendor's drivers (ofed_info -s) on all hosts",
    "NUMA node": (
        "put the adapter into the same slot as on the other hosts, or its data crosses the sockets "
        "there"
    ),
    "NUMA node of the GPU": (
        "put the GPU into the same slot as on the other hosts, and set the same number of NUMA "
        "nodes for each socket in the firmware"
    ),
    "link layer": "set the port to the same protocol on all hosts (mlxconfig LINK_TYPE)",
    "subnet": (
        "cable the same adapter of all hosts to the same switch: NCCL connects adapters of the "
        "same name"
    ),
    "rail": (
        "cable the same adapter of all hosts to the same switch, and give it an address of that "
        "rail: NCCL connects adapters of the same name"
    ),
    "GID index": (
        "give the interface of the adapter the same addresses as on the other hosts: "
        "NCCL_IB_GID_INDEX is one number for all"
    ),
}


def _traits(host: dict[str, Any]) -> dict[tuple[str, ...], set[Any]]:
    """Return what RDMA adapters and their active ports are like: by part and trait, and by what
    hosts that are compared have in common.

    Firmware is that of the board, the others of the place.
    """
    read = host.get("infiniband", {})
    found = _host_traits(read)
    for device in read.get("devices") or []:
        if device.get("virtual_function"):
            continue
        board = device.get("board_id") or device.get("hca_type")
        if board and device.get("firmware"):
            found.setdefault((board, "firmware"), set()).add(device["firmware"])
        for trait, key in (("driver", "driver"), ("NUMA node", "numa_node")):
            value = device.get(key)
            # -1 is a machine that does not say.
            if value not in (None, -1):
                found[(device["name"], trait)] = {value}
        for port in device.get("ports") or []:
            if port.get("state") == "active":
                name = "%s port %s" % (device["name"], port.get("port"))
                found.update(_port_traits(name, port, host.get("rails") or {}))
    return found


def _host_traits(read: Mapping[str, Any]) -> dict[tuple[str, ...], set[Any]]:
    """Return what GPUs beside the adapters, and the drivers of the adapters are like.

    GPUs are compared between hosts that have them at the same addresses. Only NVIDIA's adapters
    have drivers of its releases.
    """
    found: dict[tuple[str, ...], set[Any]] = {}
    nodes = (read.get("gpudirect") or {}).get("gpu_numa_nodes", {})
    layout = " ".join(sorted(nodes))
    for bus_id, node in nodes.items():
        found[(bus_id, "NUMA node of the GPU", layout)] = {node}
    drivers = [str(device.get("driver")) for device in read.get("devices") or []]
    if read.get("ofed") is not None and any(name.startswith("mlx") for name in drivers):
        found[("adapters", "release of the driver")] = {read["ofed"] or "that of the kernel"}
    return found


def _port_traits(
    name: str, port: dict[str, Any], rails: Mapping[str, str]
) -> dict[tuple[str, ...], set[Any]]:
    """Return what an active port is like, by its name and trait.

    C(rails) has the fabric network of interfaces.
    """
    found: dict[tuple[str, ...], set[Any]] = {}
    if port.get("link_layer"):
        found[(name, "link layer")] = {port["link_layer"]}
    gids = port.get("gids") or []
    if port.get("link_layer") == "infiniband" and gids:
        # The first half of a GID is the subnet, which the subnet manager gives. A fabric of each
        # rail has its own.
        found[(name, "subnet")] = {gids[0]["gid"][:19]}
    if port.get("transport") == "roce" and port.get("nccl_gid_index") is not None:
        found[(name, "GID index")] = {port["nccl_gid_index"]}
    if port.get("netdev") in rails:
        found[(name, "rail")] = {rails[port["netdev"]]}
    return found


def _usual(
    values: Mapping[frozenset[Any], list[str]],
) -> tuple[frozenset[Any], list[str]]:
    """Return what most hosts have, and these hosts.

    Of as many hosts on each side the first ones count.
    """
    return max(values.items(), key=lambda pair: len(pair[1]))


def _alike_problems(hosts: list[dict[str, Any]], _models: Mapping[str, Any]) -> Judged:
    """Return the adapters that differ from those of most hosts.

    What all hosts have two of is no difference.
    """
    traits = {host["name"]: _traits(host) for host in hosts}
    found: dict[str, list[Problem | None]] = {name: [] for name in traits}
    for key in sorted({key for its in traits.values() for key in its}):
        names: dict[frozenset[Any], list[str]] = {}
        for name, its in traits.items():
            if key in its:
                names.setdefault(frozenset(its[key]), []).append(name)
        usual, like = _usual(names)
        part, trait = key[:2]
        for values, others in names.items():
            for name in others if values != usual else []:
                found[name].append(
                    _problem(
                        "%s %s, as on %s" % (trait, _values(usual), _some(like)),
                        "%s: %s %s" % (part, trait, _values(values)),
                        _ALIKE[trait],
                        True,
                    )
                )
    return found


def _values(values: Collection[object]) -> str:
    """Return values in words."""
    return " and ".join(sorted(str(value) for value in values))


# --- CPUs ---------------------------------------------------------------------------------------------------------------------

#: At this governor a CPU keeps its lowest clock, unless its driver chooses the clock itself.
_SLOWEST = "powersave"
_FASTEST = "performance"
_GOVERNOR = (
    "write performance to the files /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor. "
    "That holds until the next boot: have a unit or a profile of tuned "
    "write it at each boot"
)


def _governor_problems(hosts: list[dict[str, Any]], _models: Mapping[str, Any]) -> Judged:
    """Return the hosts whose CPUs are kept slow, and if governors differ, those without the one of
    full speed.

    Other governors raise the clock under load. Virtual machines and earlier facts have none.
    """
    known: dict[str, dict[str, int]] = {}
    for host in hosts:
        if host["facts"].get("governors"):
            known[host["name"]] = host["facts"]["governors"]
    plain = {name: _plain(its) for name, its in known.items()}
    fast = [name for name, its in plain.items() if its == {_FASTEST}]
    differ = len({its for name, its in plain.items() if _SLOWEST not in known[name]}) > 1
    expected = "governor " + _FASTEST + (", as on %s" % _some(fast) if fast else "")
    found: dict[str, list[Problem | None]] = {}
    for name, its in known.items():
        if name not in fast and (_SLOWEST in its or differ):
            each = ["%s of %d CPUs" % (governor, its[governor]) for governor in sorted(its)]
            found[name] = [_problem(expected, "governor " + ", ".join(each), _GOVERNOR, True)]
    return found


def _plain(governors: Iterable[str]) -> frozenset[str]:
    """Return governors without the driver that chooses the clock itself: which one it is does not
    matter between hosts.
    """
    return frozenset(each.partition(" of ")[0] for each in governors)


_CHECKS: dict[str, Callable[[list[dict[str, Any]], Mapping[str, Any]], Judged]] = {
    "cpu-governor": _governor_problems,
    "fabric-alike": _alike_problems,
    "gpudirect": _gpudirect_problems,
    "gpu-nvlinks": _nvlink_problems,
    "gpu-pcie-width": _width_problems,
    "nic-speed": _speed_problems,
    "nic-pcie": _card_problems,
}


def gpu_models(
    hosts: list[dict[str, Any]], lookup: Callable[[str], Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return what C(lookup), a function, knows of each model of the hosts' GPUs, by name; and the
    sum of their links in GB/s, as P(_bandwidth) compares it.
    """
    names = sorted({gpu["name"] for host in hosts for gpu in _gpus(host)})
    found = {name: lookup(name) for name in names}
    return {
        name: dict(row, nvlink=round((row["links"] or 0) * row["gb_s"], 3))
        for name, row in found.items()
    }


def problems(
    hosts: list[dict[str, Any]], models: Mapping[str, Any], checks: Iterable[str] = tuple(_CHECKS)
) -> dict[str, dict[str, list[Problem]]]:
    """Return, by id of a check and host, what is worse than it should be.

    C(models) are those of gpu_models.
    """
    return {
        check: {
            name: [entry for entry in entries if entry]
            for name, entries in _CHECKS[check](hosts, models).items()
        }
        for check in checks
    }


def decide_verify_hardware(
    variables: dict[str, Any], members: list[dict[str, Any]], facts_file: str = ""
) -> dict[str, Any]:
    """Return C(models), the GPUs of the hosts by model, and C(problems).

    C(variables) are those of role verify by host, C(facts_file) is one of the site.
    """
    known = load_facts(facts_file)
    hosts = hardware(members, variables)
    models = gpu_models(hosts, lambda name: nvlinks(name, known))
    return {"models": models, "problems": problems(hosts, models)}


#: Those that preflight warns of. It does not read the links of GPUs.
_BEFORE = ("cpu-governor", "fabric-alike", "gpudirect", "nic-pcie", "nic-speed")


def decide_preflight_hardware(
    variables: Mapping[str, Mapping[str, Any]], members: list[dict[str, Any]]
) -> dict[str, dict[str, list[Problem]]]:
    """Return the problems that P(decide_verify_hardware) would find, of what is known before a
    change.

    C(variables) are those of the hosts by name: facts of role cluster, and C(__infiniband_found) of
    role infiniband.
    """
    before: dict[str, dict[str, Any]] = {}
    for member in members:
        its = variables[member["name"]]
        gpus = (its.get("cluster_stack") or {}).get("gpus") or []
        before[member["name"]] = {
            "cluster_host": its.get("cluster_host"),
            "__verify_gpus": {"gpus": [{"name": gpu["model"]} for gpu in gpus]},
            "__verify_infiniband": its.get("__infiniband_found"),
        }
    return problems(hardware(members, before), {}, _BEFORE)
