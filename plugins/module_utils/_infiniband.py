# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""InfiniBand and RoCE devices: texts of sysfs, or what the tools print, in; typed data out.

Everything is brought to sysfs's own names first: C(fw_ver), C(ports/1/state), C(ports/1/gids/3),
and so on, relative to a device's folder in C(/sys/class/infiniband); a link is the last part of
what it leads to. The tools say less than sysfs does, in other words for the same values. A value
that isn't there, or has not the form of one, is null, and C(unavailable) has the reason.
"""

from __future__ import annotations

import ipaddress
import re

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
    TypeVar,
    Union,
)

from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import parse_pfc
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "describe_device",
    "module_states",
    "parse_ibdev2netdev",
    "parse_ibstat",
    "parse_ibstatus",
    "parse_ibv_devinfo",
    "parse_pfc",
]

ABSENT = "not there"
NOT_ASSIGNED = "not assigned (all zeros)"
# PortState and PortPhysicalState of the InfiniBand specification, in the notation of the kernel
# (sysfs, ibstatus), of ibstat and of ibv_devinfo.
STATES = {
    "nop": "nop",
    "down": "down",
    "init": "init",
    "initializing": "init",
    "initialize": "init",
    "armed": "armed",
    "active": "active",
    "activedefer": "active_defer",
}
PHYSICAL_STATES = {
    "sleep": "sleep",
    "polling": "polling",
    "disabled": "disabled",
    "portconfigurationtraining": "training",
    "linkup": "link_up",
    "linkerrorrecovery": "link_error_recovery",
    "phytest": "phy_test",
}
LINK_LAYERS = {"infiniband": "infiniband", "ethernet": "ethernet"}
# Returned key -> files, in counters_ext of older kernels and in counters. Data are counted in units
# of four octets, one per lane of a 4X link.
COUNTERS = (
    ("xmit_bytes", "port_xmit_data_64", "port_xmit_data", 4),
    ("rcv_bytes", "port_rcv_data_64", "port_rcv_data", 4),
    ("xmit_packets", "port_xmit_packets_64", "port_xmit_packets", 1),
    ("rcv_packets", "port_rcv_packets_64", "port_rcv_packets", 1),
    ("unicast_xmit_packets", "port_unicast_xmit_packets", "unicast_xmit_packets", 1),
    ("unicast_rcv_packets", "port_unicast_rcv_packets", "unicast_rcv_packets", 1),
    ("multicast_xmit_packets", "port_multicast_xmit_packets", "multicast_xmit_packets", 1),
    ("multicast_rcv_packets", "port_multicast_rcv_packets", "multicast_rcv_packets", 1),
)
# A port that has only 32-bit counters, which stop at their maximum, lacks the unicast counter.
_WIDE, _END_OF_32_BITS = "unicast_xmit_packets", 0xFFFFFFFF
ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "port_xmit_wait",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
)
# Vendor counters of loss, retries and congestion.
HARDWARE = (
    "out_of_sequence",
    "out_of_buffer",
    "packet_seq_err",
    "implied_nak_seq_err",
    "duplicate_request",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "req_transport_retries_exceeded",
    "req_rnr_retries_exceeded",
    "rx_icrc_encapsulated",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
)

_GUID = re.compile(r"(?:0x)?([0-9a-f]{4}):?([0-9a-f]{4}):?([0-9a-f]{4}):?([0-9a-f]{4})")
_ZEROS = re.compile(r"(?:0x)?[0:]{16,}")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?: Gb/sec(?: \((\d+)X(?: ([A-Z]+\d*))?\))?)?")
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
# Of a switch's embedded port: 'pf0vf3', 'c1pf0sf2'.
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+[vs]f\d+")


_Value = TypeVar("_Value")
#: A device or a port by the keys of module infiniband_info.
Device = Dict[str, Any]
Port = Dict[str, Any]
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]
#: Texts by their paths in sysfs.
Texts = Dict[str, str]
#: Texts of each device, and the error lines of the tool.
Listed = Tuple[Dict[str, Texts], List[str]]


class Gid(TypedDict):
    """An entry in use. C(ndev) is its interface, C(address) is None for InfiniBand."""

    index: int
    gid: str
    type: str | None
    ndev: str | None
    address: str | None


# --- a device -----------------------------------------------------------------------------------------------
class _Reader:
    """Values by the names of sysfs. A null value has its reason in C(unavailable)."""

    def __init__(
        self,
        texts: Mapping[str, str],
        errors: Mapping[str, str],
        absent: str,
        folder: str = "",
    ) -> None:
        self.texts, self.errors, self.absent, self.folder = texts, errors, absent, folder
        self.unavailable: dict[str, str] = {}

    def words(self, path: str) -> str | None:
        """Return the words of a file, None if it was not read."""
        text = self.texts.get(self.folder + path)
        return None if text is None else " ".join(text.split())

    def why_not(self, path: str) -> str:
        """Return why a file has no value: the error, or the words that are none."""
        words = self.words(path)
        return (
            self.errors.get(self.folder + path) or self.absent
            if words is None
            else words or "empty"
        )

    def value(self, key: str, path: str, form: Callable[[str], Optional[_Value]]) -> _Value | None:
        """The value that C(form) parses from the text, None if it does not match."""
        words = self.words(path)
        found = form(words) if words is not None else None
        if found is None:
            self.unavailable[key] = (
                NOT_ASSIGNED if _ZEROS.fullmatch(words or "") else self.why_not(path)
            )
        return found

    def below(self, folder: str) -> set[str]:
        """Names of entries directly in a folder, or further below."""
        beginning = self.folder + folder + "/"
        return {
            path[len(beginning) :].split("/")[0]
            for path in list(self.texts) + list(self.errors)
            if path.startswith(beginning)
        }


def _text(words: str) -> str | None:
    return words or None


def _number(words: str) -> int | None:
    return int(words) if re.fullmatch(r"[0-9]{1,20}", words) else None


def _local_id(words: str) -> int | None:
    """'0x33bf', '13247'."""
    return int(words, 16) if re.fullmatch(r"0x[0-9a-f]{1,8}", words) else _number(words)


def _guid(words: str) -> str | None:
    match = _GUID.fullmatch(words.lower())
    return (
        ":".join(match.groups())
        if match and any(part.strip("0") for part in match.groups())
        else None
    )


def _guid_of_port(words: str) -> str | None:
    """Its own text, or the lower half of its first GID, which the tools use."""
    return _guid(words[20:] if _GID.fullmatch(words.lower()) else words)


def _one_of(names: Mapping[str, str]) -> Callable[[str], Optional[str]]:
    """A form for words of a table, in the notations of sysfs and the tools."""

    def form(words: str) -> str | None:
        """'4: ACTIVE', 'Active', 'PORT_ACTIVE (4)'."""
        plain = re.sub(r"^\d+: ?|^PORT_| ?\(\d+\)$", "", words)
        return names.get(re.sub(r"[ _]", "", plain).lower())

    return form


def _speed_of_lanes(words: str) -> float | None:
    """'16.0 GT/s PCIe'; 'Unknown' without a link."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) GT/s.*", words)
    return float(match.group(1)) if match else None


def _bus_id(words: str) -> str | None:
    return words if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", words) else None


def _lanes(words: str) -> int | None:
    # 0 and 255 mean no link.
    return _number(words) if words not in ("0", "255") else None


def describe_device(
    name: str,
    texts: Mapping[str, str],
    errors: Mapping[str, str] | None = None,
    absent: str = ABSENT,
    networks: Sequence[Network] = (),
) -> Device:
    """A device.

    C(errors) has the reasons for unreadable files; C(networks) are those of the fabric, for ports
    with several addresses.
    """
    errors = errors or {}
    read = _Reader(texts, errors, absent)
    device: Device = {
        "name": name,
        "hca_type": read.value("hca_type", "hca_type", _text),
        "firmware": read.value("firmware", "fw_ver", _text),
        "board_id": read.value("board_id", "board_id", _text),
        "node_description": read.value("node_description", "node_desc", _text),
        "node_guid": read.value("node_guid", "node_guid", _guid),
        "system_image_guid": read.value("system_image_guid", "sys_image_guid", _guid),
        "bus_id": read.value("bus_id", "device", _bus_id),
        "driver": read.value("driver", "device/driver", _text),
        "numa_node": read.value("numa_node", "device/numa_node", _number),
        "pcie_gt_s": read.value("pcie_gt_s", "device/current_link_speed", _speed_of_lanes),
        "pcie_gt_s_max": read.value("pcie_gt_s_max", "device/max_link_speed", _speed_of_lanes),
        "pcie_width": read.value("pcie_width", "device/current_link_width", _lanes),
        "pcie_width_max": read.value("pcie_width_max", "device/max_link_width", _lanes),
        "physical_function": read.value("physical_function", "device/physfn", _bus_id),
    }
    # Tools do not report the PCI bus, and software devices are not on it.
    device["virtual_function"] = (
        device["physical_function"] is not None if device["bus_id"] else None
    )
    if not device["bus_id"]:
        read.unavailable["virtual_function"] = read.unavailable["bus_id"]
    elif not device["virtual_function"]:
        read.unavailable["physical_function"] = "not a virtual function"
    device["unavailable"] = read.unavailable
    numbers = sorted(
        int(number) for number in read.below("ports") if re.fullmatch(r"[0-9]{1,3}", number)
    )
    device["ports"] = [
        _port(number, read, _Reader(texts, errors, absent, "ports/%d/" % number), networks)
        for number in numbers
    ]
    return device


#: Transports of Ethernet by the type of the node.
_ETHERNET = {"1: CA": "roce", "4: RNIC": "iwarp"}


def _port(number: int, device: _Reader, read: _Reader, networks: Sequence[Network]) -> Port:
    port: Port = {
        "port": number,
        "link_layer": read.value("link_layer", "link_layer", _one_of(LINK_LAYERS)),
        "state": read.value("state", "state", _one_of(STATES)),
        "physical_state": read.value("physical_state", "phys_state", _one_of(PHYSICAL_STATES)),
        **_rate(read),
        "lid": read.value("lid", "lid", _local_id),
        "sm_lid": read.value("sm_lid", "sm_lid", _local_id),
    }
    for key in ("rate_gb_s", "width", "speed"):
        if port[key] is None:
            read.unavailable[key] = read.why_not("rate")
    port["transport"] = _transport(port["link_layer"], device, read)
    port["unavailable"] = read.unavailable
    port["gids"] = _gids(read, port["transport"])
    of_guid = [path for path in ("port_guid", "default_gid") if read.words(path) is not None]
    port["port_guid"] = read.value("port_guid", [*of_guid, "gids/0"][0], _guid_of_port)
    port["netdev"] = _netdev(number, port, device, read)
    port["netdev_state"], port["bond_members"] = _netdev_state(port["netdev"], device, read)
    port["nccl_gid_index"], reason = _nccl_gid_index(port, networks)
    if reason:
        read.unavailable["nccl_gid_index"] = reason
    port["counters"] = _counters(read)
    port["errors"] = _numbers(read, "counters", "errors", ERRORS)
    port["hw_counters"] = _numbers(read, "hw_counters", "hw_counters", HARDWARE)
    statistics = device.texts.get(STATISTICS % port["netdev"])
    if port["transport"] == "roce" and statistics:
        port["pfc"] = parse_pfc(statistics)
    return port


# --- addresses ----------------------------------------------------------------------------------------------------------------


def _rate(read: _Reader) -> dict[str, Any]:
    """C(rate_gb_s) in Gb/s, number of lanes as C(width), and C(speed), the name of a lane's rate,
    such as HDR.
    """
    rate, width, speed = None, None, None
    match = _RATE.fullmatch(read.words("rate") or "")
    if match:
        rate, speed = float(match.group(1)), match.group(3)
        width = int(match.group(2)) if match.group(2) else None
    return {"rate_gb_s": rate, "width": width, "speed": speed}


def _transport(link_layer: str | None, device: _Reader, read: _Reader) -> str | None:
    """What carries RDMA.

    Ethernet has RoCE on channel adapters, and iWARP or a vendor's own protocol on others.
    """
    if link_layer == "infiniband":
        return link_layer
    kind = device.words("node_type") or device.absent
    if link_layer == "ethernet" and kind in _ETHERNET:
        return _ETHERNET[kind]
    read.unavailable["transport"] = (
        "node type: " + kind if link_layer else read.why_not("link_layer")
    )
    return None


def _gids(read: _Reader, transport: str | None) -> list[Gid] | None:
    """The entries in use, in order.

    The kernel reports 'IB/RoCE v1' for both InfiniBand and RoCE v1.
    """
    names = read.below("gids")
    if not names:
        read.unavailable["gids"] = read.absent
        return None
    gids: list[Gid] = []
    for index in sorted(int(name) for name in names if re.fullmatch(r"[0-9]{1,5}", name)):
        words = (read.words("gids/%d" % index) or "").lower()
        if not _GID.fullmatch(words):
            read.unavailable["gids.%d" % index] = read.why_not("gids/%d" % index)
        elif words.replace(":", "").strip("0"):
            kind_words = read.words("gid_attrs/types/%d" % index)
            kind = _kind_of_gid(kind_words, transport)
            if kind is None:
                read.unavailable["gids.%d.type" % index] = read.why_not(
                    "gid_attrs/types/%d" % index
                )
            address = ipaddress.IPv6Address(words)
            gids.append(
                {
                    "index": index,
                    "gid": words,
                    "type": kind,
                    "ndev": read.words("gid_attrs/ndevs/%d" % index) or None,
                    "address": str(address.ipv4_mapped or address) if transport == "roce" else None,
                }
            )
    return gids


def _kind_of_gid(words: str | None, transport: str | None) -> str | None:
    if words == "IB/RoCE v1":
        return {"infiniband": "IB", "roce": "RoCE v1"}.get(transport or "")
    return words if words == "RoCE v2" else None


def _routable(port: Port, networks: Sequence[Network]) -> list[dict[str, Any]]:
    """The RoCE v2 GIDs of a port inside the networks, or without networks those of its own
    interface.
    """
    # In IPv4, 169.254/16 may be the fabric. In IPv6, every interface has a link-local address.
    routable: list[dict[str, Any]] = [
        gid
        for gid in port["gids"]
        if gid["type"] == "RoCE v2"
        and ("." in gid["address"] or not gid["address"].startswith("fe80:"))
    ]
    if networks:
        return [
            gid
            for gid in routable
            if any(ipaddress.ip_address(gid["address"]) in network for network in networks)
        ]
    # A VLAN interface is in another network than the port's own. NCCL uses IPv4 by default.
    routable = [gid for gid in routable if port["netdev"] in (None, gid["ndev"])]
    return [gid for gid in routable if "." in gid["address"]] or routable


def _nccl_gid_index(port: Port, networks: Sequence[Network]) -> tuple[int | None, str]:
    """Index for NCCL_IB_GID_INDEX, or None and the reason."""
    if port["transport"] != "roce":
        return None, "only RoCE needs one"
    if port["gids"] is None:
        return None, port["unavailable"]["gids"]
    routable = _routable(port, networks)
    if len(routable) == 1:
        return routable[0]["index"], ""
    if not routable:
        return None, "no RoCE v2 address" + (
            " in %s" % ", ".join(str(network) for network in networks)
            if networks
            else " but link-local ones"
        )
    return None, "several RoCE v2 addresses: " + ", ".join(
        "%s (%d)" % (gid["address"], gid["index"]) for gid in routable
    )


# --- interfaces ---------------------------------------------------------------------------------------------------------------


def _netdev(number: int, port: Port, device: _Reader, read: _Reader) -> str | None:
    """The port's interface, including a bond: by its GIDs for Ethernet, else by the port number of
    interfaces of the same card.
    """
    words = read.words("netdev")
    if words is not None:
        if not words:
            read.unavailable["netdev"] = "no interface"
        return words or None
    by_gid = (
        [gid["ndev"] for gid in port["gids"] or [] if gid["ndev"]]
        if port["link_layer"] == "ethernet"
        else []
    )
    if by_gid:
        # The first entries are the default ones of the port's own interface. Those of VLANs follow.
        return str(by_gid[0])
    found = [
        name
        for name in sorted(device.below("device/net"))
        if _port_of(device, "device/net/%s/" % name) == number
    ]
    if len(found) != 1:
        read.unavailable["netdev"] = (
            "several interfaces: " + ", ".join(found) if found else device.absent
        )
        return None
    return found[0]


def _port_of(device: _Reader, folder: str) -> int | None:
    """Port number of an interface; None for stacked interfaces, and for representors of virtual
    functions.
    """
    if device.words(folder + "parent") or _REPRESENTOR.fullmatch(
        device.words(folder + "phys_port_name") or ""
    ):
        return None
    # Drivers before Linux 3.15 number ports by dev_id, and have no dev_port, or 0.
    indexes = [
        _number(device.words(folder + "dev_port") or ""),
        _local_id(device.words(folder + "dev_id") or ""),
    ]
    numbers = [index + 1 for index in indexes if index is not None]
    return max(numbers) if numbers else None


def _netdev_state(
    netdev: str | None, device: _Reader, read: _Reader
) -> tuple[str | None, list[str] | None]:
    """State in the kernel, up or down, and the members of a bond."""
    if netdev is None:
        read.unavailable.update(
            netdev_state=read.unavailable["netdev"], bond_members=read.unavailable["netdev"]
        )
        return None, None
    words = read.words("netdev_state")
    state = (
        words if words is not None else device.words("net/%s/operstate" % netdev) or ""
    ).lower()
    if not state:
        read.unavailable["netdev_state"] = device.why_not("net/%s/operstate" % netdev)
    if words is not None:
        read.unavailable["bond_members"] = device.absent
        return state or None, None
    return state or None, (device.words("net/%s/bonding/slaves" % netdev) or "").split()


# --- counters -----------------------------------------------------------------------------------------------------------------


def _counters(read: _Reader) -> dict[str, int | None]:
    values = {}
    for key, extended, plain, factor in COUNTERS:
        path = "counters_ext/" + extended
        if read.words(path) is None:
            path = "counters/" + plain
        count = read.value("counters." + key, path, _number)
        if (
            count == _END_OF_32_BITS
            and path.startswith("counters/")
            and read.words("counters/" + _WIDE) is None
        ):
            read.unavailable["counters." + key] = "at its maximum of 32 bits"
            count = None
        values[key] = None if count is None else count * factor
    return values


def _numbers(read: _Reader, folder: str, key: str, names: Iterable[str]) -> dict[str, int | None]:
    """The counters that the port has, which depend on the hardware."""
    there = read.below(folder)
    return {
        name: read.value("%s.%s" % (key, name), "%s/%s" % (folder, name), _number)
        for name in names
        if name in there
    }


#: Among a device's texts: what the driver of an interface counts.
STATISTICS = "net/%s/statistics"


# --- output of the tools -------------------------------------------------------------------------------------------------------


class _Listing:
    """Devices in one tool's output, by sysfs's names. C(remarks) are error lines of the tool."""

    def __init__(self, text: str, tool: str) -> None:
        self.tool = tool
        self.devices: dict[str, Texts] = {}
        self.remarks: list[str] = []
        # Output copied from a terminal begins with the prompt.
        self.lines = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not re.match(r".*[#$] ?%s\b" % tool, line.strip())
        ]

    def fault(self, number: int, line: str, why: str) -> ParseError:
        """Return the error for a line that cannot be parsed."""
        return ParseError("line %d of %s: %s: %s" % (number, self.tool, why, line))

    def device(self, number: int, line: str, name: str, may_exist: bool = False) -> Texts:
        """Return the texts of a device, which is added if it is new.

        ParseError: it is not new, unless it C(may_exist).
        """
        if name in self.devices and not may_exist:
            raise self.fault(number, line, "a second %s" % name)
        return self.devices.setdefault(name, {})

    def note(self, number: int, line: str, texts: Texts, path: str, value: str) -> None:
        """Add a text under its path of sysfs. ParseError: the path has one."""
        if path in texts:
            raise self.fault(number, line, "repeated")
        texts[path] = value

    def refuse_half(self, counted: bool) -> None:
        """Each port ends with its link layer, so that truncation is detected, even in the middle of
        a value.
        """
        for name, texts in self.devices.items():
            ports = sorted(_Reader(texts, {}, ABSENT).below("ports"))
            count = texts.pop("ports", "no number of") if counted else str(len(ports))
            if count != str(len(ports)):
                raise ParseError(
                    "%s: %s has %s ports, but %d are described: the output is truncated"
                    % (self.tool, name, count, len(ports))
                )
            for port in ports:
                if _is_half(texts.get("ports/%s/link_layer" % port, "")):
                    raise ParseError(
                        "%s: port %s of %s ends without its link layer: the output is truncated"
                        % (self.tool, port, name)
                    )


def _is_half(layer: str) -> bool:
    """Return whether a link layer was cut off.

    A word that is not known, such as Unknown, is complete.
    """
    known = (*LINK_LAYERS, "unspecified", "unknown")
    return layer.lower() not in known and any(name.startswith(layer.lower()) for name in known)


_IBSTAT = {
    "CA type": "hca_type",
    "Number of ports": "ports",
    "Firmware version": "fw_ver",
    "Node GUID": "node_guid",
    "System image GUID": "sys_image_guid",
}
_IBSTAT_PORT = {
    "State": "state",
    "Physical state": "phys_state",
    "Rate": "rate",
    "Base lid": "lid",
    "SM lid": "sm_lid",
    "Port GUID": "port_guid",
    "Link layer": "link_layer",
}
_IBSTATUS_PORT = {
    "default gid": "default_gid",
    "base lid": "lid",
    "sm lid": "sm_lid",
    "state": "state",
    "phys state": "phys_state",
    "rate": "rate",
    "link_layer": "link_layer",
}
_DEVINFO = {
    "transport": "node_type",
    "fw_ver": "fw_ver",
    "node_guid": "node_guid",
    "sys_image_guid": "sys_image_guid",
    "board_id": "board_id",
    "phys_port_cnt": "ports",
}
_DEVINFO_PORT = {
    "state": "state",
    "sm_lid": "sm_lid",
    "port_lid": "lid",
    "link_layer": "link_layer",
}


def _sections(
    listing: _Listing,
    device_line: str,
    port_line: str,
    of_device: Mapping[str, str],
    of_port: Mapping[str, str],
) -> Listed:
    """Listings of 'key: value', a device's and then its ports'.

    Indentation is ignored, because copies have lost it.
    """
    texts: Texts | None = None
    folder = ""
    for number, line in listing.lines:
        device, port = re.fullmatch(device_line, line), re.fullmatch(port_line, line)
        key, colon, value = (part.strip() for part in line.partition(":"))
        if re.match(r"ib(panic|warn|error)\b|Failed to ", line):
            listing.remarks.append(line)
        elif device:
            texts, folder = listing.device(number, line, device.group(1)), ""
        elif not colon or texts is None:
            raise listing.fault(number, line, "not a line of a device")
        elif port:
            folder = "ports/%d/" % int(port.group(1))
            if any(path.startswith(folder) for path in texts):
                raise listing.fault(number, line, "a second port %s" % port.group(1))
        elif key in (of_port if folder else of_device):
            listing.note(
                number, line, texts, folder + (of_port if folder else of_device)[key], value
            )
    listing.refuse_half(counted=True)
    return listing.devices, listing.remarks


def parse_ibstat(text: str) -> Listed:
    """Texts of each device by sysfs's names, and the tool's errors."""
    devices, remarks = _sections(
        _Listing(text, "ibstat"), r"CA '([^']+)'", r"Port (\d{1,3}):", _IBSTAT, _IBSTAT_PORT
    )
    # iWARP has no management datagrams, which ibstat uses.
    return {name: dict(texts, node_type="1: CA") for name, texts in devices.items()}, remarks


def parse_ibv_devinfo(text: str) -> Listed:
    """The same for ibv_devinfo, which reports the board but no rate."""
    if re.fullmatch(r"\s*No IB devices found\s*", text):
        return {}, []
    devices, remarks = _sections(
        _Listing(text, "ibv_devinfo"),
        r"hca_id:\s*(\S+)",
        r"port:\s*(\d{1,3})",
        _DEVINFO,
        _DEVINFO_PORT,
    )
    kinds = {"InfiniBand (0)": "1: CA", "iWARP (1)": "4: RNIC"}
    return {
        name: dict(texts, node_type=kinds.get(texts.get("node_type", ""), "unknown"))
        for name, texts in devices.items()
    }, remarks


def parse_ibstatus(text: str) -> Listed:
    """The same for ibstatus, which has a section per port, and reports the rate with width and
    speed.
    """
    listing = _Listing(text, "ibstatus")
    texts: Texts | None = None
    folder = ""
    for number, line in listing.lines:
        begin = re.fullmatch(r"Infiniband device '([^']+)' port (\d{1,3}) status:", line)
        key, colon, value = (part.strip() for part in line.partition(":"))
        if line.startswith("Fatal error:"):
            listing.remarks.append(line)
        elif begin:
            texts = listing.device(number, line, begin.group(1), may_exist=True)
            folder = "ports/%d/" % int(begin.group(2))
            if any(path.startswith(folder) for path in texts):
                raise listing.fault(number, line, "a second port %s" % begin.group(2))
        elif not colon or texts is None:
            raise listing.fault(number, line, "not a line of a port")
        elif key in _IBSTATUS_PORT:
            listing.note(number, line, texts, folder + _IBSTATUS_PORT[key], value)
    listing.refuse_half(counted=False)
    return listing.devices, listing.remarks


def parse_ibdev2netdev(text: str) -> Listed:
    """The interface of each port and its state, under keys that sysfs does not have."""
    listing = _Listing(text, "ibdev2netdev")
    for number, line in listing.lines:
        match = re.fullmatch(
            (
                r"(?:[0-9a-f]{4,}:[0-9a-f:.]+ )?(\S+) (?:.* )?port (\d{1,3}) (?:\([^)]*\) )?==> "
                r"(?:(\S+) )?\((\w+)\)"
            ),
            # Wrappers print it in columns.
            " ".join(line.split()),
        )
        if not match:
            raise listing.fault(number, line, "not the line of a port")
        texts, folder = (
            listing.device(number, line, match.group(1), may_exist=True),
            "ports/%d/" % int(match.group(2)),
        )
        listing.note(number, line, texts, folder + "netdev", match.group(3) or "")
        listing.note(number, line, texts, folder + "netdev_state", match.group(4))
    return listing.devices, listing.remarks


# --- kernel modules -----------------------------------------------------------------------------------------------------------


def module_states(
    names: Iterable[str], loaded: Iterable[str], dependencies: str, builtin: str
) -> dict[str, str]:
    """V(loaded), V(available) or V(missing) by name, from the running kernel's modules.dep and
    modules.builtin.
    """
    states = dict.fromkeys(names, "missing")
    present = set(loaded) | _modules_in(builtin)
    available = _modules_in(dependencies)
    for name in states:
        if name in present:
            states[name] = "loaded"
        elif name in available:
            states[name] = "available"
    return states


def _modules_in(text: str) -> set[str]:
    return {
        match.replace("-", "_")
        for match in re.findall(
            r"^(?:[^:\s]*/)?([^:/\s]+)\.ko(?:\.\w+)?(?::|$)", text, re.MULTILINE
        )
    }
