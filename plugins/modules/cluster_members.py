#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_members
short_description: Compute each cluster host's address, interface and slots
version_added: "0.1.0"
description:
  - Combines the results of M(trainyard.gpu.host_info) on each host with the inventory variables
    (C(cluster_address), C(cluster_interface), C(cluster_fabric_interface), C(cluster_slots),
    C(ansible_host)), in the order of group C(cluster).
  - Runs on the controller only and needs no connection. Role C(trainyard.gpu.cluster) uses it.
  - If it chooses the fabric network among several, it reports the choice and the reason.
  - Interfaces of container engines (C(docker0), C(br-...), C(veth...)) are used only if the
    inventory names them or their address.
options:
  answers:
    description: Results of M(trainyard.gpu.host_info), each with the host's inventory name in
      C(item). A host without a result counts as not reachable.
    type: list
    elements: dict
    default: []
  registered:
    description: Name of the variable in which each host of the play has registered its result of
      M(trainyard.gpu.host_info). They are added to O(answers).
    type: str
    default: ''
    version_added: "0.4.0"
  head:
    description: Inventory name of the head. Its network is the cluster network if O(network) is
      empty.
    type: str
    required: true
  network:
    description:
      - Cluster network as CIDR. Empty means the network of the head's inventory address, else of
        its default route. If a host has no address in that network, it is the only IPv4 network
        that all hosts share, if there is exactly one.
    type: str
    default: ''
  fabric_network:
    description:
      - Network of the fast fabric as CIDR, or a list of the networks of its rails. Empty means the
        fastest IPv4 network that all training hosts share, by the rates of RDMA devices and the
        speeds of interfaces, or all of those that are equally fast, without the network of an
        address in C(nfs_client_mounts). It is the cluster network if there is no other, if that one
        is as fast, or if rates and speeds are not known.
    type: raw
    default: ''
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the facts of all hosts
  trainyard.gpu.host_info:
  delegate_to: "{{ item }}"
  loop: "{{ groups['cluster'] }}"
  run_once: true
  register: gathered

- name: Compute the cluster
  trainyard.gpu.cluster_members:
    head: "{{ groups['cluster'] | first }}"
    answers: "{{ gathered.results }}"
  run_once: true
  register: computed

- name: Gather the facts of the hosts in the play
  trainyard.gpu.host_info:
  register: asked

- name: Compute the cluster from the results of the hosts in the play
  trainyard.gpu.cluster_members:
    head: "{{ groups['cluster'] | first }}"
    registered: asked
  run_once: true
  register: computed
"""

RETURN = r"""
network:
  description: The cluster network as CIDR; empty if it could not be determined.
  returned: success
  type: str
  sample: 10.0.0.0/24
fabric_network:
  description: The fabric network as CIDR, or the networks of its rails, with commas.
  returned: success
  type: str
  sample: 169.254.0.0/16
fabric_choice:
  description: Why this network was chosen; empty if there was no choice.
  returned: success
  type: str
members:
  description: Every host of group C(cluster), in rank order.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Inventory name.
      type: str
    address:
      description: Address on the cluster network; empty if the host has none.
      type: str
    interface:
      description: Interface that carries the address; empty if it could not be determined.
      type: str
    fabric_address:
      description: Address on the fabric network; empty if the host has none.
      type: str
    fabric_interface:
      description: Interface that carries the fabric address; empty if it could not be determined.
      type: str
    fabric_rails:
      description: Place of the host in each of several fabric networks - C(network), C(address) and
        C(interface). Empty if there is one network.
      type: list
      elements: dict
      version_added: "0.4.0"
    fabric_rdma:
      description: RDMA devices that carry the host's data on the fabric network; null if there are
        none, or if the host has faster ones.
      type: dict
      contains:
        transport:
          description: V(infiniband) or V(roce).
          type: str
        rate_gb_s:
          description: Rate of each in Gb/s; null if the device reports none.
          type: float
        devices:
          description:
            - Their names, with the port if a device has several. With InfiniBand these are all
              active ports of that rate, with RoCE those with an address in the fabric network.
          type: list
          elements: str
          sample: [mlx5_0, mlx5_1]
        gid_index:
          description: Index of the address in the GID tables with RoCE; null with InfiniBand, or if
            it differs between the devices.
          type: int
    addresses:
      description: All addresses of its interfaces, except those of a link and of bridges of
        container engines. Empty if the host could not be reached.
      type: list
      elements: str
      version_added: "0.4.0"
    slots:
      description: Number of ranks on the host. It is 0 if the host could not be reached and the
        inventory sets none, and for hosts outside of group C(gpu) if that exists.
      type: int
    slots_counted:
      description: Whether the slots follow from the host's GPUs or NPUs instead of the inventory.
      type: bool
    nvidia_devices:
      description: Number of NVIDIA GPUs on the PCI bus, 0 if the host could not be reached.
      type: int
      version_added: "0.4.0"
    npus:
      description: Number of Ascend NPUs, 0 if the host could not be reached.
      type: int
      version_added: "0.4.0"
    reachable:
      description: Whether the host answered.
      type: bool
    in_play:
      description: Whether the host is still in the play.
      type: bool
    error:
      description: Why the host could not be reached; empty if it answered.
      type: str
hosts:
  description: Result of each reached host, by inventory name.
  returned: success
  type: dict
"""
