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
  - Judges a log that exists already, as M(trainyard.gpu.nccl_all_reduce) does with its option O(trainyard.gpu.nccl_all_reduce#module:log).
  - A text that is something else, and an option that can't be used, fail the template.
positional: expected_ranks, expected_hosts, min_busbw_gb_s, judge_from_bytes
options:
  _input:
    description: The log, of any layout since 2015, with or without a rank's tag or a container's name before each line; or the tool's own JSON.
    type: str
    required: true
  expected_ranks:
    description: Ranks that must have taken part, 2 or more.
    type: int
  expected_hosts:
    description: Hosts that must have taken part.
    type: int
  min_busbw_gb_s:
    description: Bus bandwidth in GB/s that must be reached on average over the rows that are judged.
    type: float
  judge_from_bytes:
    description: Size from which on rows are judged, such as V(256M). Without it, the largest size is.
    type: str
seealso:
  - module: trainyard.gpu.nccl_all_reduce
"""

EXAMPLES = r"""
- name: Sixteen ranks on two hosts, and 180 GB/s for large messages
  ansible.builtin.assert:
    that: judged.passed
    fail_msg: "{{ judged.reasons | map(attribute='cause') | join('; ') }}"
  vars:
    judged: "{{ job.stdout | trainyard.gpu.all_reduce_perf(expected_ranks=16, expected_hosts=2, min_busbw_gb_s=180, judge_from_bytes='1G') }}"
"""

RETURN = r"""
_value:
  description:
    - What M(trainyard.gpu.nccl_all_reduce) returns of a log, with the same keys - RV(_value.rows), RV(_value.avg_busbw_gb_s), RV(_value.passed),
      RV(_value.reasons) and all others.
  type: dict
  contains:
    rows:
      description: Rows of the first run of all_reduce_perf.
      type: list
      elements: dict
    avg_busbw_gb_s:
      description: Average bus bandwidth that it printed.
      type: float
    passed:
      description: Whether the run was complete and correct, and everything that was asked for was met.
      type: bool
    reasons:
      description: Why it was not.
      type: list
      elements: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import answer, check_bounds


def all_reduce_perf(log, expected_ranks=None, expected_hosts=None, min_busbw_gb_s=None, judge_from_bytes=None):
    if not isinstance(log, str):
        raise AnsibleFilterError("all_reduce_perf: a log is text, this is a %s" % type(log).__name__)
    try:
        return answer(str(log), **check_bounds(expected_ranks, expected_hosts, min_busbw_gb_s, judge_from_bytes))
    except ValueError as error:
        raise AnsibleFilterError("all_reduce_perf: %s" % error) from error


class FilterModule:
    """Logs of nccl-tests, judged."""

    def filters(self):
        return {"all_reduce_perf": all_reduce_perf}
