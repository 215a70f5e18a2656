# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: network_settings
short_description: Compute the network settings of NCCL, Gloo, MPI and Horovod
version_added: "0.2.0"
description:
  - Turns what role C(trainyard.gpu.cluster) has worked out into the environment variables by which ranks take the fabric network for their data and the
    cluster network for their rendezvous. Whoever starts ranks takes them from here, and lets what the user sets go before.
  - Interface names may differ between hosts for V(torchrun), whose hosts have an environment each, and for V(mpirun), which is told networks. V(horovodrun)
    gives one name to all ranks, and sets C(NCCL_SOCKET_IFNAME) to it after the environment that it is given; there they are a problem.
positional: launcher, cluster_network, fabric_network
options:
  _input:
    description: The hosts of the job, as in C(cluster_members). Those without slots have no rank, and no say.
    type: list
    elements: dict
    required: true
  launcher:
    description: What starts the ranks.
    type: str
    choices: [horovodrun, torchrun, mpirun]
    required: true
  cluster_network:
    description: Network for ssh and rendezvous as CIDR.
    type: str
    required: true
  fabric_network:
    description: Network for the data as CIDR.
    type: str
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Show what each host's ranks are told
  ansible.builtin.debug:
    msg: "{{ (cluster_members | trainyard.gpu.network_settings('torchrun', cluster_network, cluster_fabric_network)).environment }}"
"""

RETURN = r"""
_value:
  description: What ranks are told.
  type: dict
  contains:
    environment:
      description:
        - Environment variables by host. C(GLOO_SOCKET_IFNAME) and C(NCCL_SOCKET_IFNAME), with RDMA C(NCCL_IB_HCA), with RoCE C(NCCL_IB_GID_INDEX), where
          only some hosts have RDMA C(NCCL_IB_DISABLE); for Open MPI, by network, C(OMPI_MCA_oob_tcp_if_include) and C(OMPI_MCA_btl_tcp_if_include);
          for Horovod C(HOROVOD_GLOO_IFACE).
        - With V(mpirun) and V(horovodrun) it is one environment for all hosts. Where names of interfaces or devices differ, NCCL is told those of all hosts,
          as it takes what a host has; what can't be told so is left out.
      type: dict
      sample: {server-a: {GLOO_SOCKET_IFNAME: ib0, NCCL_SOCKET_IFNAME: =bond0, NCCL_IB_HCA: =mlx5_0}}
    addresses:
      description: Address on the fabric network by host; empty for a host without one.
      type: dict
      sample: {server-a: 169.254.142.62}
    interface:
      description: Interface on the fabric network for horovodrun's C(--network-interface) or C(--network-interfaces); empty where the hosts' differ.
      type: str
    problems:
      description: What stands against a job, hosts named; empty where nothing does.
      type: list
      elements: str
    notes:
      description: What is not as one may expect, and why.
      type: list
      elements: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.module_utils import _network_settings


def network_settings(members, launcher, cluster_network, fabric_network):
    if launcher not in _network_settings.LAUNCHERS:
        raise AnsibleFilterError("network_settings: launcher is %r; known are %s" % (launcher, ", ".join(_network_settings.LAUNCHERS)))
    return _network_settings.network_settings(members, launcher, cluster_network, fabric_network)


class FilterModule:
    """What NCCL, Gloo, MPI and Horovod are told of the cluster's networks."""

    def filters(self):
        return {"network_settings": network_settings}
