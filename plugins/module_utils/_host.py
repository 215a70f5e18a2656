# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsers for facts of a Linux host: text of /proc, /etc and ``ip`` in, dictionaries out.

Nothing here accesses the host, so every function can be tested with text alone.
"""

from __future__ import annotations

import ipaddress
import json
import re

from typing import Any, Collection, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "container_ids",
    "default_interface",
    "is_virtual_interface",
    "is_virtual_machine",
    "listening_sockets",
    "hugepages",
    "memory_mib",
    "own_name_addresses",
    "parse_ip_addresses",
    "parse_os_release",
]

# Interfaces of container engines, libvirt and overlay networks. docker0 has the same address on
# every host, so a job that uses such an interface hangs.
_VIRTUAL_INTERFACE = re.compile(
    r"^(lo|docker.*|br-.*|veth.*|virbr\d.*|cni.*|flannel.*|cali.*|kube-.*|podman\d+|lxcbr\d+)$"
)
_TCP_LISTEN = "0A"


class Release(TypedDict):
    """Values of an os-release file. Texts are empty if it lacks them."""

    id: str
    version_id: str
    codename: str
    id_like: list[str]


class Socket(TypedDict):
    """A listening socket."""

    address: str
    port: int
    inode: str


def parse_os_release(text: str) -> Release:
    """Return id, version_id, codename and id_like of an os-release file."""
    values = {}
    for line in text.splitlines():
        match = re.match(r"""^([A-Z0-9_]+)=(?:"([^"]*)"|'([^']*)'|(\S*))\s*$""", line.strip())
        if match:
            values[match.group(1)] = next((g for g in match.groups()[1:] if g is not None), "")
    return {
        "id": values.get("ID", "linux"),
        "version_id": values.get("VERSION_ID", ""),
        "codename": values.get("VERSION_CODENAME", ""),
        "id_like": values.get("ID_LIKE", "").split(),
    }


def is_virtual_interface(name: str) -> bool:
    """Return whether an interface belongs to a container engine or the like, or is the loopback."""
    return bool(_VIRTUAL_INTERFACE.match(name))


def is_virtual_machine(cpuinfo: str, dmi: str) -> bool:
    """Return whether a host runs on a hypervisor, from /proc/cpuinfo and DMI's modalias.

    Only x86 processors say so themselves.
    """
    return bool(
        re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)
        or re.search(r":(?:svn|pn)[^:]*(?:QEMU|KVM|VMware|VirtualBox|VirtualMachine)", dmi)
    )


def parse_ip_addresses(text: str) -> list[dict[str, Any]]:
    """Return the interfaces of C(ip -j addr): name, addresses with prefix, whether up with a
    carrier, MTU in bytes.

    Temporary addresses of IPv6 are left out: the kernel replaces them every day.
    """
    try:
        links = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise ParseError("ip -j addr printed no JSON: %s: %.80r" % (error, text)) from error
    return [
        {
            # A veth pair is listed as 'eth0@if12': the part after @ is the other end and not the
            # name.
            "name": link["ifname"].split("@")[0],
            "addresses": [
                {"address": entry["local"], "prefix": entry["prefixlen"]}
                for entry in link.get("addr_info", [])
                if "local" in entry and not entry.get("temporary")
            ],
            "up": "UP" in link.get("flags", []) and "NO-CARRIER" not in link["flags"],
            "mtu": link.get("mtu"),
        }
        for link in links
        if "ifname" in link
    ]


def default_interface(route: str, ipv6_route: str = "") -> str:
    """Return the interface of the default route in /proc/net/route (else /proc/net/ipv6_route); ''
    if there is none.
    """
    candidates = []
    for line in route.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and fields[1] == "00000000" and fields[7] == "00000000":
            candidates.append((int(fields[6]), fields[0]))
    if not candidates:
        for line in ipv6_route.splitlines():
            fields = line.split()
            if (
                len(fields) >= 10
                and fields[0] == "0" * 32
                and fields[1] == "00"
                and fields[9] != "lo"
            ):
                candidates.append((int(fields[5], 16), fields[9]))
    return min(candidates)[1] if candidates else ""


def memory_mib(meminfo: str) -> int:
    """Return MemTotal of /proc/meminfo in MiB."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.M)
    if not match:
        raise ParseError("no MemTotal in /proc/meminfo: %.80r" % meminfo)
    return int(match.group(1)) // 1024


#: Drivers of CPUs that choose the clock themselves, also with governor powersave.
_OWN_CLOCK = ("intel_pstate", "amd-pstate-epp")


def governors(texts: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the number of CPUs by governor, from the governor and the driver of each CPU.

    With a driver that chooses the clock itself, the governor has the name of the driver beside it.
    """
    found: dict[str, int] = {}
    for governor, driver in texts:
        name = governor.strip()
        if driver.strip() in _OWN_CLOCK and name != "performance":
            name += " of " + driver.strip()
        if name:
            found[name] = found.get(name, 0) + 1
    return found


def hugepages(counts: dict[str, str]) -> dict[str, int]:
    """Return the number of huge pages by their size, such as C(2M): of C(counts), the text of
    nr_hugepages by the name of its folder, hugepages-2048kB.

    A size that the CPU does not have has no folder. Text that is no number is left out.
    """
    found = {}
    for folder, text in counts.items():
        size = re.fullmatch(r"hugepages-(\d+)kB", folder)
        if size and text.strip().isdigit():
            kib = int(size.group(1))
            unit, divisor = next(
                pair for pair in (("G", 1 << 20), ("M", 1 << 10), ("K", 1)) if kib % pair[1] == 0
            )
            found["%d%s" % (kib // divisor, unit)] = int(text)
    return found


def _proc_address(text: str) -> str:
    """Turn the kernel's hexadecimal address (host byte order by 32-bit word) into the usual
    form.
    """
    raw = bytes.fromhex(text)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = ipaddress.ip_address(words)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def listening_sockets(tcp: str, ports: Collection[int]) -> list[Socket]:
    """Return address, port and inode of the listening sockets of /proc/net/tcp or tcp6 on the given
    ports.
    """
    found: list[Socket] = []
    for line in tcp.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _TCP_LISTEN:
            continue
        address, dummy, port = fields[1].rpartition(":")
        if int(port, 16) in ports:
            found.append(
                {"address": _proc_address(address), "port": int(port, 16), "inode": fields[9]}
            )
    return found


def own_name_addresses(hosts: str, hostname: str) -> list[str]:
    """Return the addresses of the host's own name in /etc/hosts, in its order."""
    lines = [line.partition("#")[0].split() for line in hosts.splitlines()]
    return list(dict.fromkeys(words[0] for words in lines if hostname in words[1:]))


def container_ids(cgroup: str) -> list[str]:
    """Return the container ids in a /proc/PID/cgroup, outermost first, each once."""
    return list(dict.fromkeys(re.findall(r"\b[0-9a-f]{64}\b", cgroup)))
