# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: network_settings
short_description: Compute the network settings of NCCL, Gloo, MPI and Horovod
version_added: "0.2.0"
description:
  - Converts the networks from role C(trainyard.gpu.cluster) to environment variables. With these,
    ranks use the fabric network for data and the cluster network for their rendezvous. Programs
    that start ranks use these variables, and variables set by the user override them.
  - Interface names may differ between hosts for V(torchrun) and V(mindspore), which have an
    environment per host, and for V(mpirun), which uses networks. With V(horovodrun) they must be
    the same, because it passes one name to all ranks and overrides C(NCCL_SOCKET_IFNAME) with it.
positional: launcher, cluster_network, fabric_network
options:
  _input:
    description: The hosts of the job, as in C(cluster_members). Hosts without slots have no ranks
      and are ignored.
    type: list
    elements: dict
    required: true
  launcher:
    description: The launcher of the ranks, as in C(train_launcher).
    type: str
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
- name: Report the environment of each host's ranks
  ansible.builtin.debug:
    msg: "{{ (cluster_members | trainyard.gpu.network_settings('torchrun', cluster_network,
      cluster_fabric_network)).environment }}"
"""

RETURN = r"""
_value:
  description: The settings of the ranks.
  type: dict
  contains:
    environment:
      description:
        - Environment variables by host. C(GLOO_SOCKET_IFNAME) and C(NCCL_SOCKET_IFNAME), with RDMA
          C(NCCL_IB_HCA), with RoCE C(NCCL_IB_GID_INDEX), if only some hosts have RDMA
          C(NCCL_IB_DISABLE); for Open MPI, by network, C(OMPI_MCA_oob_tcp_if_include) and
          C(OMPI_MCA_btl_tcp_if_include); for Horovod C(HOROVOD_GLOO_IFACE).
        - With V(mpirun) and V(horovodrun) it is one environment for all hosts. If names of
          interfaces or devices differ, NCCL gets those of all hosts, because it uses those that a
          host has. Other differing settings are left out.
      type: dict
      sample: {server-a: {GLOO_SOCKET_IFNAME: ib0, NCCL_SOCKET_IFNAME: =bond0, NCCL_IB_HCA: =mlx5_0}}
    addresses:
      description: Address on the fabric network by host; empty for a host without one.
      type: dict
      sample: {server-a: 169.254.142.62}
    interface:
      description: Interface on the fabric network for horovodrun's C(--network-interface) or
        C(--network-interfaces); empty if it differs between hosts.
      type: str
    problems:
      description: Problems that prevent a job, with the hosts; empty if there are none.
      type: list
      elements: str
    notes:
      description: Unexpected settings, with the reason.
      type: list
      elements: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _network_settings


def network_settings(members, launcher, cluster_network, fabric_network):
    if launcher not in _network_settings.LAUNCHERS:
        raise AnsibleFilterError(
            "network_settings: launcher is %r; use one of %s"
            % (launcher, ", ".join(_network_settings.LAUNCHERS))
        )
    return _network_settings.network_settings(members, launcher, cluster_network, fabric_network)


class FilterModule:
    """Filters for the network settings of NCCL, Gloo, MPI and Horovod."""

    def filters(self):
        return {"network_settings": network_settings}
