#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_log_info
short_description: Find the causes of a failure in the log of a job
version_added: "0.4.0"
description:
  - Searches a log for messages of drivers, CUDA, NCCL, PyTorch, launchers, containers, Slurm and
    storage, and says what they mean and what to do.
  - U(https://github.com/trainyard/gpu/blob/main/docs/errors.md) lists the messages. The job may
    have run anywhere.
  - Of a log of more than 32 MiB, the first and the last 16 MiB are searched.
options:
  log:
    description: Text of the log.
    type: str
  log_file:
    description: Path of the log on the host.
    type: path
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Find out why a job failed
  trainyard.gpu.job_log_info:
    log_file: /data1/share/train.log
  register: job_log

- name: Report the first cause
  ansible.builtin.debug:
    msg: "line {{ job_log.causes[0].line_number }}: {{ job_log.causes[0].cause }}. {{
      job_log.causes[0].fix }}"
  when: job_log.causes != []
"""

RETURN = r"""
causes:
  description:
    - What was wrong, the first cause first. Empty if the log has no known message.
    - Messages that only say that something failed are returned if the log has no cause. Messages
      that follow from another failure are returned if it has nothing else.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Title of the message in
        U(https://github.com/trainyard/gpu/blob/main/docs/errors.md). It is never renamed.
      type: str
      sample: worker_out_of_shared_memory
    cause:
      description: What is wrong.
      type: str
      sample: /dev/shm of the container is full. Workers of a data loader pass their batches through
        it
    fix:
      description: What the person whose job it was does about it, in the words of a job file.
      type: str
      sample: raise worker_shared_memory, or use fewer workers of the data loader
    fix_operator:
      description: What the operator of the cluster does about it, in variables and playbooks.
      type: str
      sample: raise training_container_shm_size and run training_environment.yml
    line:
      description: The line that shows it, at most 500 characters.
      type: str
    line_number:
      description: Number of the line in the log, from 1.
      type: int
lines:
  description:
    - If no message in RV(causes) is a cause, the first lines of a rank that look like one. Empty
      otherwise.
    - Without a known message and without such a line, the last lines of the log.
  returned: success
  type: list
  elements: dict
  contains:
    line:
      description: The line, at most 500 characters.
      type: str
    line_number:
      description: Number of the line in the log, from 1.
      type: int
"""

import io

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import answer, read_log


def main() -> None:
    module = AnsibleModule(
        argument_spec={"log": {"type": "str"}, "log_file": {"type": "path"}},
        mutually_exclusive=[("log", "log_file")],
        required_one_of=[("log", "log_file")],
        supports_check_mode=True,
    )
    text, path = module.params["log"], module.params["log_file"]
    try:
        if text is not None:
            log = read_log(io.BytesIO(text.encode("utf-8", "surrogateescape")))
        else:
            with open(path, "rb") as stream:
                log = read_log(stream)
    except OSError as error:
        module.fail_json(
            msg=(
                f"log_file: {path}: {error.strerror}. Give the path of a log on this host, or its "
                "text in 'log'"
            )
        )
    module.exit_json(changed=False, **answer(log))


if __name__ == "__main__":
    main()
