# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: hccl_rank_table
short_description: Build the HCCL rank table of hosts with NPUs
version_added: "0.4.0"
description:
  - Builds the document that HCCL, and so MindSpore and PyTorch on Ascend NPUs, reads from
    C(RANK_TABLE_FILE).
  - Ranks are counted over all hosts, in the order of the hosts and of the numbers of their devices.
    Every value is a string, numbers included.
  - It refuses a host without devices, a device without an address, two devices with one address,
    unequal numbers of devices, and a server or device that is listed twice.
options:
  _input:
    description: The hosts in rank order, each with C(server_id), its address, and C(devices), as
      M(trainyard.gpu.npu_smi_info) returns them. C(name) is for messages.
    type: list
    elements: dict
    required: true
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
author:
  - trainyard maintainers (@trainyard)
seealso:
  - plugin: trainyard.gpu.npu_smi_info
    plugin_type: module
"""

EXAMPLES = r"""
- name: Write the rank table of two devices on one host
  ansible.builtin.copy:
    dest: /data1/share/hccl.json
    content: "{{ hosts | trainyard.gpu.hccl_rank_table | to_nice_json }}"
    mode: "0644"
  vars:
    hosts:
      - name: gpu-a
        server_id: 192.168.3.6
        devices: [{id: 0, address: 192.168.10.1}, {id: 1, address: 192.168.20.1}]
"""

RETURN = r"""
_value:
  description: The rank table.
  type: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    RankTableError,
    rank_table,
)


def hccl_rank_table(hosts, format="1.0", board_id="0x0020", chip_info="910"):
    try:
        return rank_table(hosts, str(format), board_id, chip_info)
    except RankTableError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filter hccl_rank_table."""

    def filters(self):
        return {"hccl_rank_table": hccl_rank_table}
