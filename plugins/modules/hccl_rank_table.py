#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hccl_rank_table
short_description: Write the HCCL rank table of the cluster
version_added: "0.4.0"
description:
  - Builds the document that HCCL, and so MindSpore and PyTorch on Ascend NPUs, reads from
    C(RANK_TABLE_FILE), from the hosts of the inventory and the results of
    M(trainyard.gpu.npu_smi_info) on them.
  - Ranks are counted over all hosts, in the order of the hosts and of the numbers of their devices.
    Every value is a string, numbers included.
  - It refuses a host without devices, a device without an address, two devices with one address,
    unequal numbers of devices, and a server or device that is listed twice.
  - The table is built on the controller. With O(path), it is written on the host of the task if it
    differs.
options:
  hosts:
    description:
      - The hosts in rank order, each with C(server_id), its address, and C(devices), a list of
        C(id) and C(address). C(name) is for messages.
      - Required without O(registered).
    type: list
    elements: dict
  registered:
    description: Name of the variable in which each host has registered its result of
      M(trainyard.gpu.npu_smi_info).
    type: str
  members:
    description:
      - With O(registered), the hosts in rank order, each with C(name) and C(address).
      - Without it, they are the hosts of group C(npu), or of C(cluster) if there is no such group,
        in the order of the inventory. Their address is C(cluster_address), else C(ansible_host).
    type: list
    elements: dict
  format:
    description:
      - V(1.0) has a list of servers.
      - V(legacy) has no version, and a list of instances. MindSpore before 1.0 reads it.
      - V(1.2), for super nodes, is refused, because the tools of a host do not report the super
        node of a device.
    type: str
    default: "1.0"
  board_id:
    description: Only in format V(legacy) - V(0x0020) for hosts with ARM processors, V(0x0000) for
      x86.
    type: str
    default: "0x0020"
  chip_info:
    description: Only in format V(legacy) - the chip.
    type: str
    default: "910"
  path:
    description: Absolute path of the file on the host. Without it, nothing is written.
    type: path
  mode:
    description: Mode of the file.
    type: str
    default: "0644"
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: posix
author:
  - trainyard maintainers (@trainyard)
seealso:
  - module: trainyard.gpu.npu_smi_info
  - plugin: trainyard.gpu.hccl_rank_table
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Gather the devices of each host
  trainyard.gpu.npu_smi_info:
  register: npu

- name: Write the rank table on each host
  trainyard.gpu.hccl_rank_table:
    registered: npu
    path: /etc/trainyard/hccl.json
"""

RETURN = r"""
table:
  description: The rank table.
  returned: success
  type: dict
text:
  description: Its text, as it is written. It is the same for the same hosts.
  returned: success
  type: str
ranks:
  description: Number of ranks.
  returned: success
  type: int
  sample: 16
changed_paths:
  description: The path, if the file was changed, or would be in check mode.
  returned: if O(path) is given
  type: list
  elements: str
  sample: [/etc/trainyard/hccl.json]
"""
