# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which network, address, interface and number of slots each host of a cluster has. Pure functions over what M(host_info) returned."""

from __future__ import annotations

import ipaddress

from ansible_collections.trainyard.gpu.plugins.module_utils._host import is_virtual_interface

__all__ = ["as_address", "find_network", "pick_address", "slots_of"]


def as_address(text):
    """Return text as an IP address object, None where it isn't one (a name, nothing)."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _candidates(info, include_virtual=False):
    """List (interface name, address, network) of the interfaces that are up and that a cluster may run on."""
    return [
        (interface["name"], ipaddress.ip_address(entry["address"]), ipaddress.ip_interface("%s/%d" % (entry["address"], entry["prefix"])).network)
        for interface in info["interfaces"]
        if interface["up"] and (include_virtual or not is_virtual_interface(interface["name"]))
        for entry in interface["addresses"]
    ]


def find_network(info, inventory_address):
    """Return the network (CIDR) that carries the host's inventory address, else its default route; '' where neither does."""
    candidates = _candidates(info)
    wanted = as_address(inventory_address)
    for dummy, address, network in candidates:
        if address == wanted:
            return str(network)
    # Behind a translated or forwarded address no interface carries it.
    for version in (4, 6):
        for name, address, network in candidates:
            if name == info["default_interface"] and address.version == version and not (version == 6 and address.is_link_local):
                return str(network)
    return ""


def pick_address(info, network, address="", interface="", inventory_address=""):
    """Return (address, interface) of a host inside the network.

    A given address or interface is taken as it is and only completed; otherwise the inventory's own address goes first.
    ('', '') where the host has no address in the network.
    """
    # A bridge that is named, by its name or its address, is the user's own choice.
    found = _candidates(info, include_virtual=bool(address or interface))
    if address:
        wanted = as_address(address)
        names = [name for name, candidate, dummy in found if candidate == wanted]
        return address, interface or (names[0] if names else "")
    inside = ipaddress.ip_network(network, strict=False) if network else None
    found = [(name, candidate) for name, candidate, dummy in found if inside is not None and candidate in inside and interface in ("", name)]
    found.sort(key=lambda entry: entry[1] != as_address(inventory_address))
    return (str(found[0][1]), found[0][0]) if found else ("", interface)


def slots_of(info, slots, trains=True):
    """Return how many ranks the host takes: as asked, or one for each GPU, or one where there is no GPU; none where group gpu leaves it out."""
    return (slots or max(1, info["gpus"])) if trains else 0
