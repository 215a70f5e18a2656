# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket

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
    """Return the address of an unreachable host as the controller resolves it; '' if it does not."""
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
    """Return the addresses of NFS servers as IP address objects. C(mounts) are nfs_client_mounts by host. Names are not looked up."""
    entries = [entry for each in mounts.values() if isinstance(each, list) for entry in each]
    servers = [as_address(str(entry.get("server"))) for entry in entries if isinstance(entry, dict)]
    return [server for server in servers if server]


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
        hosts = {
            answer["item"]: {
                key: value
                for key, value in answer.items()
                if key not in NOT_THE_ANSWER and not key.startswith("_ansible")
            }
            for answer in answers
            if "interfaces" in answer
        }

        faults = [
            fault for name, answer in hosts.items() for fault in reading_faults(name, answer, HOST)
        ]
        if faults:
            return dict(result, failed=True, changed=False, msg="\n".join(faults))
        errors = {
            answer["item"]: " ".join(str(answer.get("msg", "")).split()) for answer in answers
        }

        def inventory_address(name):
            return str(hostvars[name].get("ansible_host", name))

        def given(key, names):
            return {name: hostvars[name].get(key) or "" for name in names}

        def cluster_place(name, network):
            wanted = [
                hostvars[name].get(key) or "" for key in ("cluster_address", "cluster_interface")
            ]
            return pick_address(
                hosts[name], network, *wanted, inventory_address=inventory_address(name)
            )

        # The default is the head's network, because all hosts must reach the head.
        # If the head is down, any other reachable host determines it.
        network, there = (
            args["network"],
            {name: hosts[name] for name in [args["head"]] + cluster if name in hosts},
        )
        for name in there:
            network = network or find_network(hosts[name], inventory_address(name))
        if not args["network"]:
            is_inside = all(cluster_place(name, network)[0] for name in there)
            network = cluster_network(
                network, is_inside, shared_networks(there, given("cluster_interface", there))
            )

        # Data flows only between the hosts that train. A storage-only host need not be on the fabric.
        trains = {name: info for name, info in there.items() if name in training}
        fabric_named = given("cluster_fabric_interface", trains)
        # Ranks meet in the first one, so it is one that all hosts have.
        rails = sorted(
            networks_of(args["fabric_network"]),
            key=lambda each: not all(pick_address(info, str(each))[0] for info in trains.values()),
        )
        fabric, why = ",".join(str(each) for each in rails), ""
        if not fabric:
            fabric, why = fabric_network(
                trains,
                shared_networks(trains, fabric_named),
                network,
                fabric_named,
                nfs_servers(given("nfs_client_mounts", trains)),
            )
        if why:
            self._display.display(
                "Fabric network: %s: %s. Set cluster_fabric_network to use another one."
                % (fabric, why)
            )

        members = []
        for name in cluster:
            wanted = {
                key: hostvars[name].get("cluster_" + key) or ""
                for key in ("address", "interface", "slots")
            }
            # Slots counted in an earlier run are not set by the user: after a driver was installed, GPUs count.
            counted = not int(wanted["slots"] or 0) or bool(
                hostvars[name].get("__cluster_slots_are_counted")
            )
            slots = int(wanted["slots"]) if name in training and not counted else 0
            on_fabric, rdma, rails = ("", ""), None, []
            if name in hosts:
                address, interface = cluster_place(name, network)
                slots = slots_of(hosts[name], slots, name in training)
                on_fabric = (address, interface)
                if fabric != network or fabric_named.get(name):
                    on_fabric = pick_address(
                        hosts[name], fabric, interface=fabric_named.get(name, "")
                    )
                rdma = rdma_of(hosts[name], fabric, *on_fabric)
                rails = rails_of(hosts[name], fabric, fabric_named.get(name, ""))
            else:
                address, interface = (
                    wanted["address"] or controllers_view(inventory_address(name)),
                    wanted["interface"],
                )
            members.append(
                {
                    "name": name,
                    "address": address,
                    "interface": interface,
                    "fabric_address": on_fabric[0],
                    "fabric_interface": on_fabric[1],
                    "fabric_rdma": rdma,
                    "fabric_rails": rails,
                    "addresses": own_addresses(hosts[name]) if name in hosts else [],
                    "slots": slots,
                    "slots_counted": counted,
                    "nvidia_devices": hosts.get(name, {}).get("nvidia_devices", 0),
                    "npus": hosts.get(name, {}).get("npus", 0),
                    "reachable": name in hosts,
                    "in_play": name in in_play,
                    "error": "" if name in hosts else errors.get(name) or "no answer",
                }
            )
        result.update(
            changed=False,
            network=network,
            fabric_network=fabric,
            fabric_choice=why,
            members=members,
            hosts=hosts,
        )
        return result
