#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_members
short_description: Compute each cluster host's address, interface and slots
version_added: "0.1.0"
description:
  - Puts together what M(trainyard.gpu.host_info) has answered on each host with what the inventory says
    (C(cluster_address), C(cluster_interface), C(cluster_fabric_interface), C(cluster_slots), C(ansible_host)), in the order of group C(cluster).
  - Runs on the controller only, and needs no connection. Role C(trainyard.gpu.cluster) is where it is used.
  - Where it chooses the fabric network among several, it says so, and why.
  - Interfaces of container engines (C(docker0), C(br-...), C(veth...)) are taken only where the inventory names them, or their address.
options:
  answers:
    description: Results of M(trainyard.gpu.host_info), each with the host's inventory name in C(item). A host without an answer counts as not reachable.
    type: list
    elements: dict
    required: true
  head:
    description: Inventory name of the head, whose network is the cluster's where O(network) is empty.
    type: str
    required: true
  network:
    description:
      - Cluster network as CIDR. Empty means the network that carries the head's inventory address, else its default route; where a host has no address
        in it, the only IPv4 network that all hosts share, if there is one.
    type: str
    default: ''
  fabric_network:
    description:
      - Network of the fast fabric as CIDR. Empty means the fastest IPv4 network that all hosts that train share, by the rates of RDMA devices and the
        speeds of interfaces; the cluster network where there is no other, or where these don't tell the fastest.
    type: str
    default: ''
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Ask all hosts
  trainyard.gpu.host_info:
  delegate_to: "{{ item }}"
  loop: "{{ groups['cluster'] }}"
  run_once: true
  register: asked

- name: Work out the cluster
  trainyard.gpu.cluster_members:
    head: "{{ groups['cluster'] | first }}"
    answers: "{{ asked.results }}"
  run_once: true
  register: worked_out
"""

RETURN = r"""
network:
  description: The cluster network as CIDR; empty where it could not be told.
  returned: success
  type: str
  sample: 10.0.0.0/24
fabric_network:
  description: The fabric network as CIDR.
  returned: success
  type: str
  sample: 169.254.0.0/16
fabric_choice:
  description: Why it is that one; empty where nothing was to choose.
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
      description: Address on the cluster network; empty where the host has none.
      type: str
    interface:
      description: Interface that carries the address; empty where it could not be told.
      type: str
    fabric_address:
      description: Address on the fabric network; empty where the host has none.
      type: str
    fabric_interface:
      description: Interface that carries the fabric address; empty where it could not be told.
      type: str
    fabric_rdma:
      description: RDMA devices that carry the host's data on the fabric network; null without any, and where the host has faster ones.
      type: dict
      contains:
        transport:
          description: V(infiniband) or V(roce).
          type: str
        rate_gb_s:
          description: Rate of each in Gb/s; null where it tells none.
          type: float
        devices:
          description:
            - Their names, with the port where a device has several. With InfiniBand every active port of that rate, with RoCE those with an address in the
              fabric network.
          type: list
          elements: str
          sample: [mlx5_0, mlx5_1]
        gid_index:
          description: Index of the address in the GID tables with RoCE; null with InfiniBand, and where the devices have it at different ones.
          type: int
    slots:
      description: Number of ranks the host takes; 0 where it could not be asked and the inventory doesn't say, and outside of group C(gpu) where there is one.
      type: int
    slots_counted:
      description: Whether the slots follow from the host's GPUs, and are not what the inventory says.
      type: bool
    reachable:
      description: Whether the host has answered.
      type: bool
    in_play:
      description: Whether the play still runs on the host.
      type: bool
    error:
      description: Why the host could not be asked; empty where it has answered.
      type: str
hosts:
  description: What each host that was reached has answered, by inventory name.
  returned: success
  type: dict
"""
