# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
from typing import NamedTuple

from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.plugin_utils._cluster import (
    as_address,
    cluster_network,
    fabric_network,
    find_network,
    networks_of,
    own_addresses,
    pick_address,
    rails_of,
    rdma_of,
    shared_networks,
    slots_of,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import HOST, reading_faults

# Keys of a module result other than its data.
NOT_THE_ANSWER = (
    "changed",
    "failed",
    "invocation",
    "unreachable",
    "msg",
    "deprecations",
    "warnings",
    "item",
    "ansible_loop_var",
)


def controllers_view(host):
    """Return the address of an unreachable host as the controller resolves it; '' if it
    does not.
    """
    if as_address(host):
        return host
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    addresses = [answer[4][0] for answer in answers]
    # A loopback address on the controller is useless for other hosts.
    return next((address for address in addresses if not as_address(address).is_loopback), "")


def nfs_servers(mounts):
    """Return the addresses of NFS servers as IP address objects.

    C(mounts) are nfs_client_mounts by host. Names are not looked up.
    """
    entries = [entry for each in mounts.values() if isinstance(each, list) for entry in each]
    servers = [as_address(str(entry.get("server"))) for entry in entries if isinstance(entry, dict)]
    return [server for server in servers if server]


class Hosts:
    """The answers of the hosts by name, and what the inventory says about each."""

    def __init__(self, answers, hostvars):
        self._hostvars = hostvars
        self.found = {
            answer["item"]: {
                key: value
                for key, value in answer.items()
                if key not in NOT_THE_ANSWER and not key.startswith("_ansible")
            }
            for answer in answers
            if "interfaces" in answer
        }
        #: The messages of the hosts on one line.
        self.errors = {
            answer["item"]: " ".join(str(answer.get("msg", "")).split()) for answer in answers
        }

    def inventory_address(self, name):
        return str(self._hostvars[name].get("ansible_host", name))

    def value(self, name, key):
        return self._hostvars[name].get(key) or ""

    def given(self, key, names):
        return {name: self.value(name, key) for name in names}

    def place(self, name, network):
        """Return (address, interface) of a host on the cluster network."""
        return pick_address(
            self.found[name],
            network,
            self.value(name, "cluster_address"),
            self.value(name, "cluster_interface"),
            inventory_address=self.inventory_address(name),
        )


class Fabric(NamedTuple):
    """The networks for data, separated by commas, and why they were chosen if nobody set them.

    C(named) are the interfaces that the inventory names. C(separate): it is not the cluster
    network.
    """

    network: str
    why: str
    named: dict
    separate: bool


def chosen_network(hosts, head, cluster):
    """Return the cluster network where nobody set it.

    It is the head's network, because all hosts must reach the head. If the head is down, any other
    reachable host determines it.
    """
    found = {name: hosts.found[name] for name in [head] + cluster if name in hosts.found}
    network = ""
    for name in found:
        network = network or find_network(found[name], hosts.inventory_address(name))
    is_inside = all(hosts.place(name, network)[0] for name in found)
    shared = shared_networks(found, hosts.given("cluster_interface", found))
    return cluster_network(network, is_inside, shared)


def chosen_fabric(hosts, trains, requested, network):
    """Return the Fabric.

    C(trains) are the answers of the hosts that train, C(network) is the cluster network.

    Data flows only between the hosts that train. A storage-only host need not be on the fabric.
    """
    named = hosts.given("cluster_fabric_interface", trains)

    def is_missing(rail):
        return not all(pick_address(info, str(rail))[0] for info in trains.values())

    # Ranks meet in the first one, so it is one that all hosts have.
    fabric, why = ",".join(str(each) for each in sorted(networks_of(requested), key=is_missing)), ""
    if not fabric:
        servers = nfs_servers(hosts.given("nfs_client_mounts", trains))
        fabric, why = fabric_network(
            trains, shared_networks(trains, named), network, named, servers
        )
    return Fabric(fabric, why, named, fabric != network)


def places(hosts, name, network, fabric):
    """Return the addresses, interfaces and RDMA devices of a host on both networks."""
    info = hosts.found.get(name)
    if info is None:
        address = hosts.value(name, "cluster_address")
        return {
            "address": address or controllers_view(hosts.inventory_address(name)),
            "interface": hosts.value(name, "cluster_interface"),
            "fabric_address": "",
            "fabric_interface": "",
            "fabric_rdma": None,
            "fabric_rails": [],
            "addresses": [],
        }
    named = fabric.named.get(name, "")
    address, interface = on_fabric = hosts.place(name, network)
    if fabric.separate or named:
        on_fabric = pick_address(info, fabric.network, interface=named)
    return {
        "address": address,
        "interface": interface,
        "fabric_address": on_fabric[0],
        "fabric_interface": on_fabric[1],
        "fabric_rdma": rdma_of(info, fabric.network, *on_fabric),
        "fabric_rails": rails_of(info, fabric.network, named),
        "addresses": own_addresses(info),
    }


def slots(hosts, name, trains):
    """Return C(slots) of a host, and whether they are C(slots_counted) and not set by the user.

    Slots counted in an earlier run are not set by the user: after a driver was installed, GPUs
    count.
    """
    requested = int(hosts.value(name, "cluster_slots") or 0)
    counted = not requested or bool(hosts.value(name, "__cluster_slots_are_counted"))
    number = 0 if counted or not trains else requested
    if name in hosts.found:
        number = slots_of(hosts.found[name], number, trains)
    return {"slots": number, "slots_counted": counted}


def members_of(hosts, cluster, training, in_play, networks):
    """Return what the roles know of each host. C(networks) are the cluster network and the
    fabric.
    """
    members = []
    for name in cluster:
        found = hosts.found.get(name, {})
        error = "" if name in hosts.found else hosts.errors.get(name) or "no answer"
        members.append(
            {
                "name": name,
                **places(hosts, name, *networks),
                **slots(hosts, name, name in training),
                "nvidia_devices": found.get("nvidia_devices", 0),
                "npus": found.get("npus", 0),
                "reachable": name in hosts.found,
                "in_play": name in in_play,
                "error": error,
            }
        )
    return members


class ActionModule(ActionBase):
    """Combines the answers of all hosts of the cluster on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("answers", "registered", "head", "network", "fabric_network"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "answers": {"type": "list", "elements": "dict", "default": []},
                "registered": {"type": "str", "default": ""},
                "head": {"type": "str", "required": True},
                "network": {"type": "str", "default": ""},
                "fabric_network": {"type": "raw", "default": ""},
            }
        )
        hostvars = task_vars["hostvars"]
        cluster = list(task_vars["groups"]["cluster"])
        in_play = set(task_vars["ansible_play_hosts"])
        answers = list(args["answers"])
        if args["registered"]:
            answers += [
                dict(hostvars[name].get(args["registered"]) or {}, item=name)
                for name in task_vars["ansible_play_hosts_all"]
            ]
        # The hosts that train: all of them without a group gpu.
        training = task_vars["groups"].get("gpu") or cluster
        hosts = Hosts(answers, hostvars)
        faults = [
            fault
            for name, answer in hosts.found.items()
            for fault in reading_faults(name, answer, HOST)
        ]
        if faults:
            return dict(result, failed=True, changed=False, msg="\n".join(faults))

        network = args["network"] or chosen_network(hosts, args["head"], cluster)
        trains = {
            name: hosts.found[name]
            for name in dict.fromkeys([args["head"]] + cluster)
            if name in hosts.found and name in training
        }
        fabric = chosen_fabric(hosts, trains, args["fabric_network"], network)
        if fabric.why:
            self._display.display(
                "Fabric network: %s: %s. Set cluster_fabric_network to use another one."
                % (fabric.network, fabric.why)
            )
        result.update(
            changed=False,
            network=network,
            fabric_network=fabric.network,
            fabric_choice=fabric.why,
            members=members_of(hosts, cluster, training, in_play, (network, fabric)),
            hosts=hosts.found,
        )
        return result
