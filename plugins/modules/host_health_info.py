#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_health_info
short_description: Gather a host's GPU errors, clock state and free space
version_added: "0.2.0"
description:
  - Reads the parts of a host's health that driver tools do not report. What cannot be determined is
    null or an error text and not a failure, because checks decide on it.
  - The task fails only for invalid options, or if a tool's output cannot be parsed.
options:
  gpu_errors:
    description:
      - Whether to read errors of NVIDIA's drivers from the kernel log of this boot, with
        C(journalctl), or with C(dmesg) if the journal has none.
      - The last 100000 lines of the journal are read. The kernel's buffer, which dmesg reads, may
        have lost the oldest lines. On a host of a scheduler, the health program keeps the errors
        for which the host must not get new jobs, and they are returned, too.
    type: bool
    default: true
  clock:
    description: Whether to check clock synchronization, with C(timedatectl), or with C(chronyc) if
      that is missing.
    type: bool
    default: true
  paths:
    description: Absolute paths whose file systems are checked for free space. For a path that does
      not exist, its nearest existing parent is used.
    type: list
    elements: path
    default: []
  certificates:
    description: Absolute paths of certificates as PEM whose ends are read with C(openssl). A file
      that does not exist is left out.
    type: list
    elements: path
    default: []
    version_added: "0.4.0"
  firewalls:
    description: Units of this collection that load a table of nftables,
      V(trainyard-jobs-firewall.service) or V(trainyard-instances.service).
    type: list
    elements: str
    choices: [trainyard-jobs-firewall.service, trainyard-instances.service]
    default: []
    version_added: "0.4.0"
  slurm_gpus:
    description: Whether to compare the list of GPUs or NPUs in the order of Slurm, of role
      C(job_container), with the devices of the host.
    type: bool
    default: false
    version_added: "0.4.0"
  fabric_ports:
    description:
      - Whether to judge the ports of InfiniBand and RoCE adapters since the last look of the health program, which runs on hosts of a scheduler every
        5 minutes.
    type: bool
    default: false
    version_added: "0.4.0"
  horovod:
    description: Options of M(trainyard.gpu.horovod_build_info) for a container. With them,
      RV(horovod) is what that module returns.
    type: dict
    default: {}
    version_added: "0.4.0"
  session:
    description:
      - What to read in a session of the training container. If empty, nothing is.
      - Its keys are C(container), C(ssh_host), C(ssh_port), the text C(program) of a Python program
        of role P(trainyard.gpu.verify#role), the shared folder C(share), and C(timeout).
    type: dict
    default: {}
    version_added: "0.4.0"
  timeout:
    description: Seconds, 1 or more, after which a tool is killed. A file server that does not
      answer takes that long.
    type: int
    default: 10
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
requirements:
  - C(stat) of coreutils
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the health of the host
  trainyard.gpu.host_health_info:
    paths: [/, /data1/share]
  register: health

- name: Report which GPUs have fallen off the bus
  ansible.builtin.debug:
    msg: "{{ health.gpu_errors | selectattr('kind', 'eq', 'Xid') | selectattr('code', 'eq', 79) |
      map(attribute='device') }}"

- name: Stop if a GPU must not get new jobs
  ansible.builtin.assert:
    that: health.gpu_errors | rejectattr('ended') | selectattr('action', 'eq', 'drain') | list == []
"""

RETURN = r"""
kernel_log:
  description: Where RV(gpu_errors) was read.
  returned: always
  type: dict
  contains:
    source:
      description: V(journalctl) or V(dmesg); empty if neither has it, or if it was not requested.
      type: str
    error:
      description: Why it cannot be read; empty if it was read.
      type: str
gpu_errors:
  description:
    - The errors of this boot, one entry per device and code; null if the log was not read. The
      worst line since the last reset of the device decides.
    - A lost GPU without its own Xid (C(fallen off the bus)) counts as Xid 79.
  returned: always
  type: list
  elements: dict
  contains:
    kind:
      description: V(Xid) of a GPU, V(SXid) of an NVSwitch.
      type: str
    device:
      description: PCI address in lower case, as the driver writes it.
      type: str
      sample: "0000:3b:00"
    code:
      description: Number of the error in NVIDIA's catalogue.
      type: int
      sample: 79
    text:
      description: Text after the code in the worst line since the last reset of the device, of
        equal ones in the last.
      type: str
      sample: pid=1234, name=python3, GPU has fallen off the bus.
    cause:
      description: Meaning of the code in NVIDIA's catalogue.
      type: str
      version_added: "0.4.0"
      sample: the GPU has fallen off the bus
    action:
      description:
        - What the readers of this collection do about it, by NVIDIA's catalogue and the text of the
          line.
        - V(ignore) - nothing.
        - V(warn) - report it. Codes that are not in the collection's table are reported, too.
        - V(stop_job) - report it. A program caused it, or only the program on the GPU has to start
          again.
        - V(drain) - the host must not get new jobs, until RV(gpu_errors[].ended) is true.
      type: str
      choices: [ignore, warn, stop_job, drain]
      version_added: "0.4.0"
      sample: drain
    ended:
      description: Whether a reset of the device, a load of the driver or a boot came after the last
        line.
      type: bool
      version_added: "0.4.0"
    fix:
      description: What to do about it.
      type: str
      version_added: "0.4.0"
      sample: remove the host from service and reboot it. If the error returns, check power,
        cooling, slot and riser
    count:
      description: Number of occurrences.
      type: int
    earlier_boots:
      description:
        - Number of earlier boots in the last 30 days in which the same device had the same error.
          From 2 on, another reboot does not help.
        - V(0) if no error of this boot is open and drains, and if the journal keeps one boot only.
      type: int
      version_added: "0.4.0"
    first_s:
      description: First occurrence in seconds since the boot; null if the log has no times.
      type: float
    last_s:
      description: Last occurrence in seconds since the boot; null if the log has no times.
      type: float
clock:
  description: Clock synchronization.
  returned: always
  type: dict
  contains:
    synchronized:
      description: Whether the clock is synchronized with a time server; null if unknown.
      type: bool
    source:
      description: V(timedatectl) or V(chronyc); empty if neither answers, or if it was not
        requested.
      type: str
    error:
      description: Why the state is unknown; empty if it is known.
      type: str
docker_config_error:
  description:
    - Why the Docker engine cannot start with its configuration file, from its own output or from
      known limits.
    - Empty if it can start, and if there is no such file.
  returned: always
  type: str
docker_config_warnings:
  description: Values of that file that prevent containers from starting, or that have no effect.
  returned: always
  type: list
  elements: str
  version_added: "0.4.0"
file_systems:
  description: File system of each of O(paths).
  returned: always
  type: dict
  sample: {/data1/share: {free_bytes: 81050435584, inodes: 16777216, inodes_free: 16310117, error: ""}}
  contains:
    free_bytes:
      description: Free space for an unprivileged user, in bytes; null if unknown.
      type: int
    inodes:
      description: Number of files that it can hold. V(0) on file systems without a limit.
      type: int
    inodes_free:
      description: Number of files that can still be created.
      type: int
    error:
      description: Why the state is unknown, such as no answer from the file server; empty if it is
        known.
      type: str
firewalls:
  description: The state of each of O(firewalls), by unit.
  returned: always
  type: dict
  sample: {trainyard-jobs-firewall.service: {fault: "not loaded", active: false, enabled: false}}
  version_added: "0.4.0"
  contains:
    fault:
      description: How the table that the kernel has differs from the one that was loaded last.
        Empty if it does not.
      type: str
    active:
      description: Whether the unit is active.
      type: bool
    enabled:
      description: Whether the unit starts with the host.
      type: bool
slurm_gpus:
  description: The list of GPUs or NPUs in the order of Slurm. Empty without O(slurm_gpus).
  returned: always
  type: dict
  sample: {listed: [0, 1, 2, 4, 3], fault: ""}
  version_added: "0.4.0"
  contains:
    listed:
      description: The device number of each. If the host has no list, the numbers of its devices,
        which Slurm then counts in their own order.
      type: list
      elements: int
    fault:
      description: How the list differs from the devices of the host, or why it has to have one.
        Empty if nothing is wrong.
      type: str
fabric_ports:
  description: Ports of InfiniBand and RoCE adapters. Empty without O(fabric_ports).
  returned: always
  type: dict
  version_added: "0.4.0"
  contains:
    looked:
      description: Whether the health program has looked at them since the boot. Otherwise nothing is known.
      type: bool
    problems:
      description:
        - What is wrong. C(check) is V(ib-ports), V(ib-flaps) or V(ib-counters), C(text) says what, and C(drains) whether the health program drains the node for
          it.
      type: list
      elements: dict
      sample: [{check: ib-counters, text: "symbol_error of mlx5_0/1: more than 120 in 3600 s", drains: true}]
horovod:
  description: What M(trainyard.gpu.horovod_build_info) returns. Empty without O(horovod), and if
    Horovod's table cannot be read.
  returned: always
  type: dict
  version_added: "0.4.0"
session:
  description:
    - What a session of O(session) finds in C(view), such as its limits, its variables without their
      values, and its Python. C(settings) is what Docker has set for the container, C(jobs) are the
      running jobs that this host has started, C(share) is the shared folder on the host.
    - If there was no session, C(cause) and C(evidence) tell why.
  returned: always
  type: dict
  version_added: "0.4.0"
certificates:
  description: Those of O(certificates) that exist, by path. Of a chain, the first certificate
    counts.
  returned: always
  type: dict
  sample: {/etc/trainyard/registry/tls/registry.pem: {ends: "2027-12-29", days: 397, error: ""}}
  version_added: "0.4.0"
  contains:
    ends:
      description: Day on which the certificate ends, in UTC; null if unknown.
      type: str
    days:
      description: Whole days until then, negative after the end; null if unknown.
      type: int
    error:
      description: Why the end is unknown; empty if it is known.
      type: str
"""

import datetime
import json
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.trainyard.gpu.plugins.module_utils import _fabric
from ansible_collections.trainyard.gpu.plugins.module_utils._daemon_check import daemon_config_state
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_numbers import (
    list_fault,
    read_host,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import (
    ParseError,
    boots_of,
    parse_chronyc,
    parse_gpu_errors,
    parse_stat,
    parse_timedatectl,
    with_boots,
    with_record,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._horovod_check import (
    BUILD_OPTIONS,
    UnreadableTable,
    build_info,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nft_table import TABLES, read_firewall
from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import (
    ParseError as CertificateError,
    not_after,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._session_view import (
    SESSION_OPTIONS,
    session_view,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import check_timeout, run_tool

# The journal keeps messages that the kernel's buffer has lost. In a container it is empty.
LOGS = (
    [
        "journalctl",
        "--dmesg",
        "--boot",
        "--lines=100000",
        "--output=short-monotonic",
        "--no-pager",
        "--quiet",
    ],
    ["dmesg"],
)
#: Errors of earlier boots. The name of the boot is in no other format.
EARLIER = [
    "journalctl",
    "_TRANSPORT=kernel",
    "--grep=Xid|fallen off the bus",
    "--since=-30d",
    "--lines=10000",
    "--output=json",
    "--no-pager",
    "--quiet",
]
CLOCKS = (
    (["timedatectl", "show", "--property=NTPSynchronized"], parse_timedatectl),
    (["chronyc", "-c", "tracking"], parse_chronyc),
)
#: Of role job_container, for programs on the host.
JOB_CONFIG = "/etc/trainyard/job/config.json"
#: Of the health program of role job_container, on hosts of a scheduler.
RECORD = "/var/lib/trainyard/health.json"
PORTS = "/var/lib/trainyard/health.ports.json"
BOOT = "/proc/sys/kernel/random/boot_id"
NOTHING = {"free_bytes": None, "inodes": None, "inodes_free": None}


def why(run):
    """Why a tool gave no answer, in one line."""
    return (
        run.evidence
        or (run.stderr.strip().splitlines() or ["exit code %d without output" % run.rc])[-1]
    )


def first_answer(module, commands):
    """Name and output of the first command that prints something; else the errors of all."""
    errors = []
    for command in commands:
        run = run_tool(module, command, module.params["timeout"])
        if not run.cause and run.rc == 0 and run.stdout.strip():
            return command[0], run.stdout, ""
        errors.append("%s: %s" % (command[0], why(run)))
    return "", "", "; ".join(errors)


def remembered(text: str) -> str:
    """Return the kernel's log with the errors of GPUs that it has forgotten since the health
    program has seen them.
    """
    try:
        with open(RECORD, encoding="utf-8") as record, open(BOOT, encoding="utf-8") as boot:
            found, number = json.load(record), boot.read().strip()
    except (OSError, ValueError):
        return text
    return with_record(found, number, text) if isinstance(found, dict) else text


def compared_with_earlier_boots(module: AnsibleModule, errors: list[dict]) -> list[dict]:
    """Count the earlier boots with the same errors, if an error counts.

    A journal that cannot be searched, or that keeps only this boot, has none.
    """
    if not any(error["action"] == "drain" and not error["ended"] for error in errors):
        return with_boots(errors, {}, "")
    run = run_tool(module, EARLIER, module.params["timeout"])
    boots = {} if run.cause or run.rc else boots_of(run.stdout)
    return with_boots(errors, boots, read_text(BOOT).strip())


def file_system(module, path):
    # With a tool, because a system call of our own could not be interrupted if a file server does
    # not answer.
    run = run_tool(
        module,
        ["stat", "--file-system", "--format=%S %a %c %d", "--", path],
        module.params["timeout"],
    )
    if path != "/" and "No such file" in run.stderr:
        return file_system(module, os.path.dirname(path))
    if run.cause or run.rc != 0:
        return dict(NOTHING, error=why(run))
    return dict(parse_stat(run.stdout), error="")


def certificate(module, path):
    run = run_tool(
        module, ["openssl", "x509", "-noout", "-enddate", "-in", path], module.params["timeout"]
    )
    if run.cause or run.rc != 0:
        return {"ends": None, "days": None, "error": why(run)}
    try:
        end = not_after(run.stdout)
    except CertificateError as error:
        return {"ends": None, "days": None, "error": str(error)}
    left = end - datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    return {"ends": end.strftime("%Y-%m-%d"), "days": left.days, "error": ""}


def slurm_gpus() -> dict:
    """Compare the list that programs of the host use with its devices."""
    try:
        kinds = json.loads(read_text(JOB_CONFIG) or "{}").get("gpus") or {}
    except (ValueError, AttributeError) as error:
        return {"listed": [], "fault": "%s cannot be read: %s" % (JOB_CONFIG, error)}
    host = read_host(kinds)
    return {"listed": kinds.get("positions", host["nodes"]), "fault": list_fault(kinds, host)}


def fabric_ports(module: AnsibleModule) -> dict:
    """Judge the ports as the health program does, since its last look. Nothing is kept."""
    if not module.params["fabric_ports"]:
        return {}
    try:
        former = json.loads(read_text(PORTS) or "null")
    except ValueError:
        former = None
    boot = read_text(BOOT).strip()
    if not _fabric.has_looked(former, boot):
        return {"looked": False, "problems": []}
    found = _fabric.problems(former, _fabric.read_ports(), boot, time.time())
    return {"looked": True, "problems": found}


def suboptions(module: AnsibleModule, name: str, spec: dict) -> dict:
    """Return the validated content of an option that is a dictionary."""
    judged = ArgumentSpecValidator(spec).validate(module.params[name])
    if judged.error_messages:
        module.fail_json(msg="%s: %s" % (name, "; ".join(judged.error_messages)))
    return judged.validated_parameters


def horovod_of(module: AnsibleModule) -> dict:
    """Return what module horovod_build_info would return, empty if nothing is requested or the
    table cannot be read.
    """
    if not module.params["horovod"]:
        return {}
    try:
        return build_info(module, suboptions(module, "horovod", BUILD_OPTIONS))
    except UnreadableTable:
        return {}


def read_kernel_log(module):
    """Return the source of the kernel log and why it cannot be read, and the GPU errors in it, None
    if nobody knows. Raises ParseError.
    """
    kernel_log, gpu_errors = {"source": "", "error": ""}, None
    if module.params["gpu_errors"]:
        kernel_log["source"], text, kernel_log["error"] = first_answer(module, LOGS)
        if kernel_log["source"]:
            gpu_errors = parse_gpu_errors(remembered(text))
            gpu_errors = compared_with_earlier_boots(module, gpu_errors)
    return kernel_log, gpu_errors


def read_clock(module):
    """Return whether the clock is synchronized, None if nobody knows, and who says so.

    Raises ParseError.
    """
    clock = {"synchronized": None, "source": "", "error": ""}
    if module.params["clock"]:
        commands = [command for command, dummy in CLOCKS]
        clock["source"], text, clock["error"] = first_answer(module, commands)
        if clock["source"]:
            parsers = {command[0]: parse for command, parse in CLOCKS}
            clock["synchronized"] = parsers[clock["source"]](text)
    return clock


def read_session(module):
    """Return the view of a session in a container, empty if it is not asked for."""
    if not module.params["session"]:
        return {}
    return session_view(module, suboptions(module, "session", SESSION_OPTIONS))


def main():
    module = AnsibleModule(
        argument_spec={
            "gpu_errors": {"type": "bool", "default": True},
            "clock": {"type": "bool", "default": True},
            "paths": {"type": "list", "elements": "path", "default": []},
            "certificates": {"type": "list", "elements": "path", "default": []},
            "firewalls": {
                "type": "list",
                "elements": "str",
                "choices": list(TABLES),
                "default": [],
            },
            "slurm_gpus": {"type": "bool", "default": False},
            "fabric_ports": {"type": "bool", "default": False},
            "horovod": {"type": "dict", "default": {}},
            "session": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    relative = [path for path in module.params["paths"] if not os.path.isabs(path)]
    if relative:
        module.fail_json(
            msg="paths: '%s' is not absolute; give paths that begin with /" % "', '".join(relative)
        )
    check_timeout(module)

    try:
        kernel_log, gpu_errors = read_kernel_log(module)
        clock = read_clock(module)
        file_systems = {path: file_system(module, path) for path in module.params["paths"]}
    except ParseError as error:
        module.fail_json(
            msg=(
                "%s. Read the same on the host. If it is complete, report it as a fault of the "
                "collection"
            )
            % error
        )
    certificates = {
        path: certificate(module, path)
        for path in module.params["certificates"]
        if os.path.exists(path)
    }
    error, warnings = daemon_config_state(module)
    module.exit_json(
        changed=False,
        kernel_log=kernel_log,
        gpu_errors=gpu_errors,
        clock=clock,
        file_systems=file_systems,
        certificates=certificates,
        firewalls={unit: read_firewall(module, unit) for unit in module.params["firewalls"]},
        slurm_gpus=slurm_gpus() if module.params["slurm_gpus"] else {},
        fabric_ports=fabric_ports(module),
        horovod=horovod_of(module),
        session=read_session(module),
        docker_config_error=error,
        docker_config_warnings=warnings,
    )


if __name__ == "__main__":
    main()
