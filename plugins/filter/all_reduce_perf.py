# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: all_reduce_perf
short_description: Parse and judge an all_reduce_perf log
version_added: "0.2.0"
author:
  - trainyard maintainers (@trainyard)
description:
  - Judges an existing log, like M(trainyard.gpu.nccl_all_reduce) with its option
    O(trainyard.gpu.nccl_all_reduce#module:log).
  - The template fails for other text and for invalid options.
positional: expected_ranks, expected_hosts, min_busbw_gb_s, judge_from_bytes
options:
  _input:
    description: The log in any layout since 2015, with or without a rank's tag or a container's
      name before each line, or the tool's JSON.
    type: str
    required: true
  expected_ranks:
    description: Number of ranks that must have taken part, 2 or more.
    type: int
  expected_hosts:
    description: Number of hosts that must have taken part.
    type: int
  min_busbw_gb_s:
    description: Required average bus bandwidth of the judged rows in GB/s.
    type: float
  judge_from_bytes:
    description: Smallest size of the judged rows, such as V(256M). By default only the largest size
      is judged.
    type: str
seealso:
  - module: trainyard.gpu.nccl_all_reduce
"""

EXAMPLES = r"""
- name: Check for 16 ranks on two hosts, and 180 GB/s for large messages
  ansible.builtin.assert:
    that: judged.passed
    fail_msg: "{{ judged.reasons | map(attribute='cause') | join('; ') }}"
  vars:
    judged: "{{ job.stdout | trainyard.gpu.all_reduce_perf(expected_ranks=16, expected_hosts=2,
      min_busbw_gb_s=180, judge_from_bytes='1G') }}"
"""

RETURN = r"""
_value:
  description:
    - The values that M(trainyard.gpu.nccl_all_reduce) returns for a log - RV(_value.rows),
      RV(_value.avg_busbw_gb_s), RV(_value.passed), RV(_value.reasons) and all others.
  type: dict
  contains:
    rows:
      description: Rows of the first run of all_reduce_perf.
      type: list
      elements: dict
    avg_busbw_gb_s:
      description: Average bus bandwidth as printed.
      type: float
    passed:
      description: Whether the run was complete and correct, and met all requirements.
      type: bool
    reasons:
      description: Why it did not pass.
      type: list
      elements: dict
"""

from ansible.errors import AnsibleFilterError


def all_reduce_perf(
    log, expected_ranks=None, expected_hosts=None, min_busbw_gb_s=None, judge_from_bytes=None
):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one
    # that a task uses.
    from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import (
        answer,
        check_bounds,
    )

    if not isinstance(log, str):
        raise AnsibleFilterError(
            "all_reduce_perf: the input is a %s; give the log as text" % type(log).__name__
        )
    try:
        return answer(
            str(log),
            bounds=check_bounds(expected_ranks, expected_hosts, min_busbw_gb_s, judge_from_bytes),
        )
    except ValueError as error:
        raise AnsibleFilterError("all_reduce_perf: %s" % error) from error


class FilterModule:
    """Filters that judge logs of nccl-tests."""

    def filters(self):
        return {"all_reduce_perf": all_reduce_perf}
