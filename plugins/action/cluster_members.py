# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket

from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils._cluster import as_address, find_network, pick_address, slots_of

# What a module result carries besides the answer.
NOT_THE_ANSWER = ("changed", "failed", "invocation", "unreachable", "msg", "deprecations", "warnings", "item", "ansible_loop_var")


def controllers_view(host):
    """Return the address of a host that could not be asked, as the controller knows it; '' where it doesn't."""
    if as_address(host):
        return host
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    addresses = [answer[4][0] for answer in answers]
    # The controller's own idea of a loopback name is no address that another host could use.
    return next((address for address in addresses if not as_address(address).is_loopback), "")


class ActionModule(ActionBase):
    """Put together, on the controller, what every host of the cluster has answered."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("answers", "head", "network", "fabric_network"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "answers": {"type": "list", "elements": "dict", "required": True},
                "head": {"type": "str", "required": True},
                "network": {"type": "str", "default": ""},
                "fabric_network": {"type": "str", "default": ""},
            }
        )
        hostvars = task_vars["hostvars"]
        cluster = list(task_vars["groups"]["cluster"])
        in_play = set(task_vars["ansible_play_hosts"])
        # The hosts that train: all, where there is no group gpu.
        training = task_vars["groups"].get("gpu") or cluster
        hosts = {
            answer["item"]: {key: value for key, value in answer.items() if key not in NOT_THE_ANSWER and not key.startswith("_ansible")}
            for answer in args["answers"]
            if "interfaces" in answer
        }

        errors = {answer["item"]: " ".join(str(answer.get("msg", "")).split()) for answer in args["answers"]}

        def inventory_address(name):
            return str(hostvars[name].get("ansible_host", name))

        # Without a word from the user it is the head's network, as all must reach the head.
        # Where the head is down, any other host that is there tells.
        network = args["network"]
        for name in [args["head"]] + cluster:
            if not network and name in hosts:
                network = find_network(hosts[name], inventory_address(name))

        members = []
        for name in cluster:
            given = hostvars[name]
            wanted = {key: given.get("cluster_" + key) or "" for key in ("address", "interface", "slots")}
            # What an earlier judgement counted is no word of the user's: a driver that has come since makes GPUs count.
            counted = not int(wanted["slots"] or 0) or bool(given.get("__cluster_slots_are_counted"))
            slots = int(wanted["slots"]) if name in training and not counted else 0
            fabric = ("", "")
            if name in hosts:
                address, interface = pick_address(hosts[name], network, wanted["address"], wanted["interface"], inventory_address(name))
                slots = slots_of(hosts[name], slots, name in training)
                fabric = pick_address(hosts[name], args["fabric_network"]) if args["fabric_network"] else (address, interface)
            else:
                address, interface = wanted["address"] or controllers_view(inventory_address(name)), wanted["interface"]
            members.append(
                {
                    "name": name,
                    "address": address,
                    "interface": interface,
                    "fabric_address": fabric[0],
                    "fabric_interface": fabric[1],
                    "slots": slots,
                    "slots_counted": counted,
                    "reachable": name in hosts,
                    "in_play": name in in_play,
                    "error": "" if name in hosts else errors.get(name) or "no answer",
                }
            )
        result.update(changed=False, network=network, members=members, hosts=hosts)
        return result
