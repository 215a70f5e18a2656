#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_all_reduce
short_description: Measure and judge NCCL's all-reduce over GPUs and hosts
version_added: "0.2.0"
description:
  - Runs C(all_reduce_perf) of nccl-tests, or reads a log of it (O(log), O(log_file)), and returns
    the measurement and whether it is valid.
  - RV(passed) is true only for a complete run with checked and correct results, in which all ranks
    took part and which reached the requested bandwidth. RV(judged) lists what was judged,
    RV(reasons) every objection with a fix.
  - Logs of every layout since 2015 are accepted, also with a rank's tag or a container's name
    before each line, without C(#), and with lines of NCCL and of launchers in between. The tool's
    JSON is accepted too, and a run uses it if its nccl-tests can write it.
  - Inconsistent figures are rejected. The bandwidths must match size, time and number of ranks, and
    the average must match the rows.
  - A log has no exit code, so its lines must show that the run was not aborted. Any line is allowed
    above the table. Between the rows, only lines of NCCL, UCX, libfabric and late warnings of Open
    MPI are allowed. Below the summary, lines of shells, launchers, schedulers, Kubernetes, compose
    and CI systems about a successful job are allowed as well. Any other line, or an exit code other
    than 0, is V(unexpected_output).
  - A tool that is missing or hangs, and failing GPUs and links, are results. The task fails for
    invalid options, for more GPUs than the host has, and for text that is not output of
    all_reduce_perf.
author:
  - trainyard maintainers (@trainyard)
options:
  log:
    description: Text of a log to judge. Nothing is run.
    type: str
  log_file:
    description: Path on the host of a log to judge. Nothing is run.
    type: path
  gpus:
    description: Number of GPUs per host that take part. Required for a run.
    type: int
  launcher:
    description:
      - V(direct) - one process on this host, with all its GPUs.
      - V(mpirun_per_host) - with C(mpirun), one process per host, with all of its GPUs.
      - V(mpirun_per_gpu) - with C(mpirun), one process per GPU, like a training job.
      - With C(mpirun), nccl-tests must have been built with C(MPI=1).
    type: str
    choices: [direct, mpirun_per_host, mpirun_per_gpu]
    default: direct
  hosts:
    description: Addresses of the hosts for C(mpirun), in the order of their ranks. The first is the
      host of this task.
    type: list
    elements: str
    default: []
  ssh_port:
    description: Port of the containers' sshd, through which C(mpirun) reaches the other hosts.
    type: int
    default: 12345
  mpi_network:
    description:
      - Network (CIDR) or interface for C(mpirun)'s own traffic, the same on all hosts. Set the one
        for NCCL in O(environment).
      - Open MPI 5.0.7 warns of a network and uses all interfaces for its daemons. There, only an
        interface name restricts them.
    type: str
  mpirun:
    description: Name on the PATH, or path, of C(mpirun) (Open MPI) where it runs.
    type: str
    default: mpirun
  executable:
    description: Name on the PATH, or path, of C(all_reduce_perf) where it runs, the same on all
      hosts.
    default: all_reduce_perf
  environment:
    description: Environment variables of all ranks, such as C(NCCL_DEBUG), which RV(transports)
      needs.
    type: dict
    default: {}
  min_bytes:
    description: Smallest size in bytes, or with suffix K, M or G (C(-b)).
    type: str
    default: "8"
  max_bytes:
    description: Largest size (C(-e)). The tool lowers it if the GPUs have too little memory.
    type: str
    default: 1G
  step_factor:
    description: Factor from one size to the next, 2 or more (C(-f)).
    type: int
    default: 2
  iterations:
    description: Measured iterations per size, 1 or more (C(-n)).
    type: int
    default: 20
  warmup_iterations:
    description: Iterations before the measurement, 0 or more (C(-w)).
    type: int
    default: 5
  timeout:
    default: 600
  expected_ranks:
    description: Number of ranks that must have taken part, 2 or more. For a run the default is all
      GPUs of all hosts.
    type: int
  expected_hosts:
    description: Number of hosts that must have taken part. For a run the default is all of
      O(hosts).
    type: int
  min_busbw_gb_s:
    description:
      - Required average bus bandwidth of the judged rows in GB/s (10⁹ bytes per second).
      - Compared without a tolerance.
    type: float
  judge_from_bytes:
    description:
      - Smallest size of the judged rows, such as V(256M). Small sizes show the latency and not the
        bandwidth.
      - By default only the largest size is judged.
    type: str
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
attributes:
  check_mode:
    support: partial
    details:
      - A log is judged in check mode too. A run is skipped, because it uses all GPUs.
  diff_mode:
    support: N/A
    details:
      - This module does not change anything.
requirements:
  - nccl-tests and, for launchers with C(mpirun), Open MPI
seealso:
  - plugin: trainyard.gpu.all_reduce_perf
    plugin_type: filter
  - name: Meaning of the figures
    description: How nccl-tests computes algorithm and bus bandwidth.
    link: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

EXAMPLES = r"""
- name: Measure eight GPUs of one host
  trainyard.gpu.nccl_all_reduce:
    container: trainyard-training
    gpus: 8
  register: alone

- name: Check that all hosts reach 180 GB/s for messages of 256 MiB and more
  trainyard.gpu.nccl_all_reduce:
    container: trainyard-training
    launcher: mpirun_per_gpu
    hosts: "{{ groups['cluster'] | map('extract', hostvars, 'cluster_address') }}"
    gpus: 8
    environment:
      NCCL_DEBUG: INFO
      NCCL_SOCKET_IFNAME: "=eth0"
    min_busbw_gb_s: 180
    judge_from_bytes: 256M
  register: together
  failed_when: together.failed or not together.passed

- name: Check the log of a manual run
  trainyard.gpu.nccl_all_reduce:
    log_file: /data1/share/all_reduce.log
    expected_ranks: 16
    expected_hosts: 2
"""

RETURN = r"""
available:
  description: Whether there is anything to judge - the tool was found and ended, or a log was
    given.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - no such executable there.
    - V(library_missing) - it lacks a shared library.
    - V(timeout) - it did not end within O(timeout). The other values contain its output so far.
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon denied access.
  type: str
  returned: success
  sample: not_installed
fix:
  description: What to do about RV(cause), with the line of output that shows it; null if
    RV(available) is true.
  type: str
  returned: success
  sample: "build nccl-tests, or set its all_reduce_perf in 'executable'. It said: all_reduce_perf:
    not found"
passed:
  description: Whether RV(complete) is true, the results are correct, and everything in RV(judged)
    was met.
  type: bool
  returned: success
  sample: true
complete:
  description: Whether the output is one whole run with rows for all requested sizes and the
    summary.
  type: bool
  returned: success
  sample: true
judged:
  description: What was judged - V(complete), V(correct), and if requested V(ranks), V(hosts) and
    V(bandwidth).
  type: list
  elements: str
  returned: success
  sample: [complete, correct, ranks]
reasons:
  description: All objections to RV(passed). Recognised errors come first, causes before what
    follows from them.
  type: list
  elements: dict
  returned: success
  contains:
    id:
      description:
        - Name of the reason. It is never renamed.
        - Of the run - V(no_all_reduce), V(no_table), V(no_summary), V(rows_missing),
          V(damaged_rows), V(several_runs), V(mpi_not_built), V(later_run), V(one_rank),
          V(nothing_moved), V(shared_gpu), V(not_checked), V(wrong_values), V(below_environment),
          V(unexpected_output), V(exit_code).
        - Of the requirements - V(ranks), V(hosts), V(bandwidth), V(no_large_rows).
        - Of errors in the output - a title of
          U(https://github.com/trainyard/gpu/blob/main/docs/errors.md), such as V(duplicate_gpu).
        - Of RV(cause) - the same value.
      type: str
    cause:
      description: What is wrong.
      type: str
    fix:
      description: What to do about it.
      type: str
    source:
      description: Documentation of the error; null for conclusions from the figures.
      type: str
    line:
      description: The line that shows it; null if no single line does.
      type: str
  sample:
    - id: mpi_not_built
      cause: "2 runs of one rank each wrote at the same time: they are independent, and nothing was
        moved between GPUs"
      fix: build nccl-tests with MPI=1, and start it with the mpirun of that very MPI
      source: null
      line: null
remarks:
  description: Lines that are no objection to RV(passed), but report a fault of a port or a detour
    of the data.
  type: list
  elements: dict
  returned: success
  version_added: "0.4.0"
  contains:
    id:
      description: V(port_event), V(gpudirect_disabled) or V(last_error).
      type: str
    host:
      description: Name of the host whose NCCL wrote the line; null if the line does not have it.
      type: str
    cause:
      description: What the line says.
      type: str
    fix:
      description: What to do about it.
      type: str
    line:
      description: The line.
      type: str
rows:
  description: Rows of the first run of all_reduce_perf, as printed.
  type: list
  elements: dict
  returned: success
  contains:
    size_bytes:
      description: Size of the message in bytes.
      type: int
    count:
      description: Elements.
      type: int
    type:
      description: Type of the elements.
      type: str
    redop:
      description: Operation, usually V(sum).
      type: str
    root:
      description: V(-1), because all-reduce has no root; null in layouts without this column.
      type: int
    out_of_place:
      description:
        - Result in another buffer - time_us (microseconds), algbw_gb_s and busbw_gb_s (GB/s), wrong
          (number of wrong values, null if they were not checked).
        - In layouts that print the largest difference, error has that difference, and wrong is 1 if
          nccl-tests rejects it.
      type: dict
    in_place:
      description: Result in the same buffer, with the same keys.
      type: dict
  sample:
    - size_bytes: 536870912
      count: 67108864
      type: double
      redop: sum
      root: -1
      out_of_place: {time_us: 11591.0, algbw_gb_s: 46.32, busbw_gb_s: 46.32, wrong: 0}
      in_place: {time_us: 11556.7, algbw_gb_s: 46.46, busbw_gb_s: 46.46, wrong: 0}
avg_busbw_gb_s:
  description: Average over all sizes as printed by the tool, in GB/s; null if it printed none.
    Small sizes lower it.
  type: float
  returned: success
  sample: 43.6076
max_busbw_gb_s:
  description: Highest bus bandwidth of all rows, in GB/s.
  type: float
  returned: success
  sample: 46.46
judged_busbw_gb_s:
  description: Average over the rows selected by O(judge_from_bytes), in GB/s. It is compared with
    O(min_busbw_gb_s).
  type: float
  returned: success
  sample: 46.39
out_of_bounds:
  description:
    - The tool's count of wrong values, and whether it is 0; null if it printed none.
    - Meaningless if nothing was checked.
  type: dict
  returned: success
  sample: {count: 0, ok: true}
ranks:
  description: Number of ranks that took part; null if the log does not show it.
  type: int
  returned: success
  sample: 2
hosts:
  description: Number of their hosts; null if the log does not show it.
  type: int
  returned: success
  sample: 2
gpus:
  description: Number of GPUs that they used; null if the log does not show it. Less than RV(ranks)
    if ranks shared a GPU.
  type: int
  returned: success
  sample: 2
devices:
  description: The ranks - rank, host, device, bus_id, name. A JSON document has only the first GPU
    of each process.
  type: list
  elements: dict
  returned: success
nccl_version:
  description: Version of the NCCL library; null if the log does not show it.
  type: str
  returned: success
  sample: 2.29.2
transports:
  description:
    - Transports between ranks in NCCL's log, without the adapter's number - V(NET/IB),
      V(NET/Socket), V(NET/AWS Libfabric), V(P2P/CUMEM), V(SHM/direct) ...
    - Empty without C(NCCL_DEBUG=INFO). V(NET/IB) is RDMA over InfiniBand or RoCE.
  type: list
  elements: str
  returned: success
  sample: [NET/IB, P2P/CUMEM]
over_rdma:
  description:
    - What NCCL's log names of connections over InfiniBand or RoCE, by host as it is named in the
      log. The name is empty if lines have none. Hosts without such connections are not named.
    - C(gpudirect) tells whether any reads the memory of GPUs directly (C(GDRDMA)), C(devices) has
      the numbers of the network devices in use.
  type: dict
  returned: success
  version_added: "0.4.0"
  sample: {server-a: {gpudirect: true, devices: [0, 1]}}
other_collectives:
  description: Other tests in the same log, and later runs of this test - name, complete, rows,
    avg_busbw_gb_s, max_busbw_gb_s, out_of_bounds.
  type: list
  elements: dict
  returned: success
command:
  description: The command.
  type: list
  elements: str
  returned: when it was run
  sample: [all_reduce_perf, -b, "8", -e, "1073741824", -f, "2", -g, "8", -w, "5", -n, "20", -c, "1"]
output:
  description: Its complete output, stderr after stdout.
  type: str
  returned: when it was run
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import (
    ParseError,
    answer,
    check_bounds,
    parse_size,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._launchers import LAUNCHERS
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    check_names,
    run_tool,
    tool_options,
)

FIXES = {
    "not_installed": (
        "build nccl-tests, or set its all_reduce_perf in 'executable' (and Open MPI's mpirun in "
        "'mpirun')"
    ),
    "library_missing": "install it, or add its folder to LD_LIBRARY_PATH where the ranks run",
    "timeout": (
        "find the host or link that hangs (run it on each host alone, then on pairs), or raise "
        "'timeout'"
    ),
    "container_not_running": "start container {container}",
    "engine_unavailable": "install and start Docker on this host, and run the task as root",
}

# nccl-tests before 2.17 exits successfully at an unknown option, so check for the option first. The
# folder is new, so that no file is overwritten.
DOCUMENT = "trainyard: the same as JSON"
SHELL = """\
program=$1 mark=$2; shift 2
for word in "$program" "$1"; do
  command -v -- "$word" > /dev/null || { echo "$word: not found" >&2; exit 127; }
done
case $("$program" -h 2>&1) in
  *--output_file*) ;;
  *) exec "$@" ;;
esac
folder=$(mktemp -d) || exec "$@"
trap 'rm -rf "$folder"; exit 143' TERM INT HUP
"$@" -J "$folder/result.json"
code=$?
if [ -s "$folder/result.json" ]; then
  printf '\\n%s\\n' "$mark"
  cat "$folder/result.json"
fi
rm -rf "$folder"
exit $code
"""


def check_numbers(module):
    """Fail for a number that is missing or out of its range."""
    params = module.params
    for name, least in (
        ("gpus", 1),
        ("step_factor", 2),
        ("iterations", 1),
        ("warmup_iterations", 0),
        ("timeout", 1),
        ("ssh_port", 1),
    ):
        if params[name] is None:
            module.fail_json(
                msg=(
                    f"{name} is missing: set the number of GPUs per host that take part in the "
                    "run, or give a log in 'log' or 'log_file'"
                )
            )
        if params[name] < least:
            module.fail_json(msg=f"{name}: '{params[name]}' is too small; set {least} or more")
    if params["ssh_port"] > 65535:
        module.fail_json(
            msg=f"ssh_port: '{params['ssh_port']}' is not a valid port; set 1 to 65535"
        )


def check_words(module):
    """Fail for names of variables and hosts that are not valid."""
    params = module.params
    check_names(module, "container")
    for name in params["environment"]:
        if not re.match(r"[A-Za-z_]\w*$", name):
            module.fail_json(
                msg=(
                    f"environment: '{name}' is not a valid variable name; use letters, digits and "
                    "underscores"
                )
            )
    for host in params["hosts"]:
        if not re.match(r"[A-Za-z0-9][\w.-]*$", host):
            module.fail_json(
                msg=(
                    f"hosts: '{host}' is not a valid host name or IPv4 address; use one such as "
                    "gpu-a or 10.0.0.11"
                )
            )


def check(module):
    """Check the options of a run before it begins. Returns the range of sizes in bytes."""
    params = module.params
    check_numbers(module)
    check_words(module)
    if len(set(params["hosts"])) < len(params["hosts"]):
        module.fail_json(
            msg=f"hosts: '{', '.join(params['hosts'])}' names a host twice; list each host once"
        )
    if bool(params["hosts"]) is (params["launcher"] == "direct"):
        module.fail_json(
            msg=f"hosts: launcher '{params['launcher']}' "
            + (
                "runs on this host only; remove 'hosts', or set a launcher with mpirun"
                if params["hosts"]
                else "needs the addresses of the hosts; set 'hosts'"
            )
        )
    if params["gpus"] * max(1, len(params["hosts"])) < 2:
        module.fail_json(
            msg=(
                "gpus: '1' GPU has no other to exchange data with; set 2 or more, or use several "
                "hosts with mpirun"
            )
        )
    try:
        least, most = (parse_size(params[name], name) for name in ("min_bytes", "max_bytes"))
    except ValueError as error:
        module.fail_json(msg=str(error))
    if least > most:
        module.fail_json(
            msg=(
                f"min_bytes: '{params['min_bytes']}' is larger than max_bytes "
                f"'{params['max_bytes']}'; set a smaller or equal size"
            )
        )
    return least, most


def command_line(params, least, most):
    """The command line."""
    per_gpu = params["launcher"] == "mpirun_per_gpu"
    test = [
        params["executable"],
        "-b",
        str(least),
        "-e",
        str(most),
        "-f",
        str(params["step_factor"]),
        "-g",
        "1" if per_gpu else str(params["gpus"]),
        "-w",
        str(params["warmup_iterations"]),
        "-n",
        str(params["iterations"]),
        "-c",
        "1",
    ]
    if params["launcher"] == "direct":
        variables = [f"{name}={value}" for name, value in sorted(params["environment"].items())]
        return (["env"] + variables if variables else []) + test
    slots = params["gpus"] if per_gpu else 1
    job = {
        "as_root": True,
        "mpirun": params["mpirun"],
        "entries": [{"address": host, "slots": slots} for host in params["hosts"]],
        "ports": {"ssh": params["ssh_port"]},
        "mpi_network": params["mpi_network"],
        "environment": params["environment"],
    }
    return LAUNCHERS["mpirun"].command(job, test)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **tool_options(600, "all_reduce_perf"),
            "log": {"type": "str"},
            "log_file": {"type": "path"},
            "gpus": {"type": "int"},
            "launcher": {
                "type": "str",
                "choices": ["direct", "mpirun_per_host", "mpirun_per_gpu"],
                "default": "direct",
            },
            "hosts": {"type": "list", "elements": "str", "default": []},
            "ssh_port": {"type": "int", "default": 12345},
            "mpi_network": {"type": "str"},
            "mpirun": {"type": "str", "default": "mpirun"},
            "environment": {"type": "dict", "default": {}},
            "min_bytes": {"type": "str", "default": "8"},
            "max_bytes": {"type": "str", "default": "1G"},
            "step_factor": {"type": "int", "default": 2},
            "iterations": {"type": "int", "default": 20},
            "warmup_iterations": {"type": "int", "default": 5},
            "expected_ranks": {"type": "int"},
            "expected_hosts": {"type": "int"},
            "min_busbw_gb_s": {"type": "float"},
            "judge_from_bytes": {"type": "str"},
        },
        mutually_exclusive=[("log", "log_file")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        bounds = check_bounds(
            *(
                params[name]
                for name in (
                    "expected_ranks",
                    "expected_hosts",
                    "min_busbw_gb_s",
                    "judge_from_bytes",
                )
            )
        )
    except ValueError as error:
        module.fail_json(msg=str(error))
    if params["log"] is None and params["log_file"] is None:
        run(module, bounds)
    else:
        judge(module, bounds)


def judge(module, bounds):
    """Judge a log that is there."""
    text, where = module.params["log"], module.params["log_file"] or "log"
    if text is None:
        try:
            with open(where, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        except OSError as error:
            module.fail_json(
                msg=(
                    f"log_file: {where}: {error.strerror}. Give the path of a log on this host, or "
                    "its text in 'log'"
                )
            )
    try:
        result = answer(text, bounds=bounds)
    except ParseError as error:
        module.fail_json(
            msg=f"{where}: {error}. Give the whole output of all_reduce_perf, stdout and stderr"
        )
    module.exit_json(changed=False, available=True, cause=None, fix=None, **result)


def cause_of(done, result, by_id):
    """Return the cause for which nothing could be measured, and its evidence.

    Both are empty without one.
    """
    if not done.cause and "library_missing" in by_id and not result["rows"]:
        return "library_missing", by_id["library_missing"]["line"]
    if not done.cause and done.rc == 127:
        return "not_installed", (done.stderr.strip() or "exit code 127").splitlines()[-1]
    return done.cause, done.evidence


def fix_of(cause, evidence, container):
    """Return what to do about a cause, None without one."""
    if not cause:
        return None
    return f"{FIXES[cause].format(container=container)}. It said: {evidence}"


def run(module, bounds):
    """Run it, and judge what it says."""
    params = module.params
    least, most = check(module)
    hosts = max(1, len(params["hosts"]))
    for name, all_of_them in (
        ("expected_ranks", params["gpus"] * hosts),
        ("expected_hosts", hosts),
    ):
        bounds[name] = all_of_them if bounds[name] is None else bounds[name]
    command = command_line(params, least, most)
    if module.check_mode:
        module.exit_json(
            changed=False,
            skipped=True,
            msg="a run keeps all GPUs busy: it is skipped in check mode",
            command=command,
        )

    done = run_tool(
        module,
        ["sh", "-c", SHELL, "sh", params["executable"], DOCUMENT, *command],
        params["timeout"],
        container=params["container"],
    )
    printed, _mark, document = done.stdout.partition("\n" + DOCUMENT + "\n")
    output = printed + "\n" + done.stderr
    try:
        result = answer(output, document, done.rc, bounds)
    except ParseError as error:
        module.fail_json(
            msg=f"{params['executable']} ended with exit code 0, but this isn't what "
            f"all_reduce_perf prints: {error}. Set executable to "
            "all_reduce_perf of nccl-tests",
            stdout=printed,
            stderr=done.stderr,
        )
    by_id = {reason["id"]: reason for reason in result["reasons"]}
    if "too_many_gpus" in by_id:
        reason = by_id["too_many_gpus"]
        module.fail_json(
            msg=(
                f"gpus: {params['gpus']}: {reason['cause']}. {reason['fix']}. It said: "
                f"{reason['line']}"
            ),
            output=output,
            command=command,
        )

    cause, evidence = cause_of(done, result, by_id)
    fix = fix_of(cause, evidence, params["container"])
    if cause and cause not in by_id:
        result["reasons"].insert(
            0,
            {
                "id": cause,
                "cause": f"nothing could be measured to the end: {evidence}",
                "fix": fix,
                "source": None,
                "line": None,
            },
        )
    module.exit_json(
        changed=False,
        available=not cause,
        cause=cause or None,
        fix=fix,
        command=command,
        output=output,
        **result,
    )


if __name__ == "__main__":
    main()
