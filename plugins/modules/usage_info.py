#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_info
short_description: Return who has used the GPUs of a Slurm cluster in a month
version_added: "0.4.0"
description:
  - Returns GPU hours, waits and failed jobs of each account and person in a month from C(sacct),
    and how well the GPUs were used if monitoring has measured it.
  - Of a job that runs over the end of a month, each month has its part. Months are in UTC.
  - If Slurm gives no answer, that is a result, with the reason and what to do.
options:
  month:
    description: Month such as V(2026-11). Empty means the present one.
    type: str
    default: ""
  timeout:
    description: Time limit in seconds for C(sacct).
    type: int
    default: 120
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
attributes:
  platform:
    platforms: debian
requirements:
  - C(sacct), as root or as a person with C(AdminLevel=Operator)
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Read who has used the GPUs
  trainyard.gpu.usage_info:
    month: 2026-11
  register: used
"""

RETURN = r"""
available:
  description: Whether Slurm has answered.
  returned: success
  type: bool
cause:
  description: Why it has not, as module M(trainyard.gpu.slurm_info) names it. Null if it has.
  returned: success
  type: str
fix:
  description: What was found, and what to do. Null if Slurm has answered.
  returned: success
  type: str
month:
  description: The month.
  returned: success
  type: str
people:
  description: A row of each person of each account, sorted.
  returned: success
  type: list
  elements: dict
  contains:
    account:
      description: Account.
      type: str
    user:
      description: Name of the person. Empty in RV(accounts).
      type: str
    jobs:
      description: Jobs that ran in the month.
      type: int
    failed:
      description: Jobs that failed, ran out of time or memory, or lost their host in the month.
      type: int
    gpu_hours:
      description: Hours of allocated GPUs, to four decimals, as all hours here.
      type: float
    gpu_hours_measured:
      description: Hours of which the use was measured.
      type: float
    gpu_hours_idle:
      description: Measured hours with a use below 5 %.
      type: float
    mean_use:
      description: Mean use in the measured hours, from 0 to 1. Null if nothing was measured.
      type: float
    energy_kwh:
      description: Energy that the GPUs drew for measured jobs.
      type: float
    wait_median_minutes:
      description: Median of the minutes that jobs waited. Null if none started in the month.
      type: int
    wait_90_minutes:
      description: Minutes that 90 % of the jobs did not exceed. Null if none started in the month.
      type: int
accounts:
  description: The same of each account.
  returned: success
  type: list
  elements: dict
lines:
  description: RV(accounts) as the lines of a table.
  returned: success
  type: list
  elements: str
csv:
  description: RV(people) as CSV. Texts that a spreadsheet would take for a formula begin with an
    apostrophe.
  returned: success
  type: str
html:
  description: RV(accounts) and RV(people) as a page.
  returned: success
  type: str
"""

import datetime
import time
import uuid

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm, _usage
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_commands import NoAnswer, Slurm


def main():
    module = AnsibleModule(
        argument_spec={
            "month": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    today = datetime.datetime.now(datetime.timezone.utc).date()
    try:
        month, begin, end = _usage.month_of(module.params["month"], today)
    except ValueError as error:
        module.fail_json(msg="month: %s" % error)
    slurm, sign = Slurm(module), "|%s|" % uuid.uuid4().hex
    command = _slurm.finished_command(sign, *_usage.span_of(begin, end), with_admin_comment=True)
    failure = {"cause": None, "fix": None}
    try:
        jobs = slurm.read(command, lambda text: _slurm.parse_finished(text, sign, True))
    except NoAnswer as error:
        jobs, failure = [], {"cause": error.cause, "fix": str(error)}
    until = min(end, time.time())
    people = _usage.usage_rows(jobs, begin, until)
    accounts = _usage.usage_rows(jobs, begin, until, by_person=False)
    module.exit_json(
        changed=False,
        available=failure["cause"] is None,
        month=month,
        people=people,
        accounts=accounts,
        lines=_usage.as_lines(accounts),
        csv=_usage.as_csv(people),
        html=_usage.as_html(month, accounts, people),
        **failure,
    )


if __name__ == "__main__":
    main()
