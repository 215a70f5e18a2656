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
  - Runs C(all_reduce_perf) of nccl-tests, or reads a log of it (O(log), O(log_file)), and says what was measured and whether it is worth anything.
  - RV(passed) is true only for a run that came to its end, whose results were checked and are right, in which all ranks took part, and which
    reached what was asked for. RV(judged) names what was judged, RV(reasons) everything that speaks against it, each with a fix.
  - A log is taken in every layout since 2015, with a rank's tag or a container's name before each line, without its C(#), and with the lines of NCCL
    and of launchers in between. The tool's own JSON is taken too, and preferred in a run, where this nccl-tests writes it.
  - Figures that don't fit each other are not believed. The bandwidths follow from size, time and number of ranks, the average from all rows.
  - A log has no exit code, so its lines must show that nothing was ended. Above the table any line is allowed. Between its rows only NCCL, UCX,
    libfabric and late warnings of Open MPI are, below its summary also what shells, launchers, schedulers, Kubernetes, compose and CI systems
    print of a job that has succeeded. Any other line is V(unexpected_output), and so is an exit code other than 0.
  - A tool that is missing or hangs, GPUs and links that fail, are results. The task fails for bad options, for more GPUs than there are, and for a text that
    is something else.
author:
  - trainyard maintainers (@trainyard)
options:
  log:
    description: Text of a log that is to be judged. Nothing is run.
    type: str
  log_file:
    description: Path on the host of a log that is to be judged. Nothing is run.
    type: path
  gpus:
    description: GPUs of each host that take part. Needed for a run.
    type: int
  launcher:
    description:
      - V(direct) - one process on this host, with all its GPUs.
      - V(mpirun_per_host) - by C(mpirun), one process a host, with all its GPUs.
      - V(mpirun_per_gpu) - by C(mpirun), one process a GPU, as a training job has it.
      - With C(mpirun), nccl-tests must have been built with C(MPI=1).
    type: str
    choices: [direct, mpirun_per_host, mpirun_per_gpu]
    default: direct
  hosts:
    description: Addresses of the hosts for C(mpirun), in the order of their ranks; the first is the one on which this task runs.
    type: list
    elements: str
    default: []
  ssh_port:
    description: Port of the containers' sshd, by which C(mpirun) reaches the other hosts.
    type: int
    default: 12345
  mpi_network:
    description:
      - Network (CIDR) or interface for what C(mpirun) itself sends, the same on all hosts. NCCL's is set in O(environment).
      - Open MPI 5.0.7 warns of a network and takes all interfaces for its daemons; there, an interface's name is what keeps them to it.
    type: str
  mpirun:
    description: Name on the PATH, or path, of C(mpirun) (Open MPI), where it is run.
    type: str
    default: mpirun
  executable:
    description: Name on the PATH, or path, of C(all_reduce_perf), where it is run; the same on all hosts.
    default: all_reduce_perf
  environment:
    description: Variables for all ranks, such as C(NCCL_DEBUG), without which RV(transports) stays empty.
    type: dict
    default: {}
  min_bytes:
    description: Smallest size, in bytes, or with K, M or G behind it (C(-b)).
    type: str
    default: "8"
  max_bytes:
    description: Largest size (C(-e)). The tool lowers it where the GPUs' memory is too small.
    type: str
    default: 1G
  step_factor:
    description: Factor from one size to the next, 2 or more (C(-f)).
    type: int
    default: 2
  iterations:
    description: Measured iterations of each size, 1 or more (C(-n)).
    type: int
    default: 20
  warmup_iterations:
    description: Iterations before, which aren't measured, 0 or more (C(-w)).
    type: int
    default: 5
  timeout:
    default: 600
  expected_ranks:
    description: Ranks that must have taken part, 2 or more. In a run, all GPUs of all hosts are expected without it.
    type: int
  expected_hosts:
    description: Hosts that must have taken part. In a run, all of O(hosts) are expected without it.
    type: int
  min_busbw_gb_s:
    description:
      - Bus bandwidth in GB/s (10⁹ bytes a second) that must be reached on average over the rows that are judged.
      - Compared as it is, without a tolerance.
    type: float
  judge_from_bytes:
    description:
      - Size from which on rows are judged, such as V(256M). Small sizes show the latency, not the bandwidth.
      - Without it, the largest size is judged.
    type: str
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
attributes:
  check_mode:
    support: partial
    details:
      - A log is judged in check mode too. A run, which keeps all GPUs busy, is skipped.
  diff_mode:
    support: N/A
    details:
      - This module does not change anything.
requirements:
  - nccl-tests and, for O(launcher) with C(mpirun), Open MPI
seealso:
  - plugin: trainyard.gpu.all_reduce_perf
    plugin_type: filter
  - name: What the figures mean
    description: How nccl-tests counts algorithm and bus bandwidth.
    link: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

EXAMPLES = r"""
- name: Eight GPUs of one host
  trainyard.gpu.nccl_all_reduce:
    container: trainyard-training
    gpus: 8
  register: alone

- name: All hosts, one rank a GPU; at least 180 GB/s for messages of 256 MiB and more
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

- name: Judge a log of a run by hand
  trainyard.gpu.nccl_all_reduce:
    log_file: /data1/share/all_reduce.log
    expected_ranks: 16
    expected_hosts: 2
"""

RETURN = r"""
available:
  description: Whether there is anything to judge - the tool was found and came to an end, or a log was given.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - no such executable there.
    - V(library_missing) - it lacks a shared library.
    - V(timeout) - no end within O(timeout). What it had printed is in the other values.
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon refused.
  type: str
  returned: success
  sample: not_installed
fix:
  description: What to do about RV(cause), with the line of output that shows it; null when RV(available) is true.
  type: str
  returned: success
  sample: "build nccl-tests, or name its all_reduce_perf in «executable». It said: all_reduce_perf: not found"
passed:
  description: Whether RV(complete), and correct, and everything in RV(judged) was met.
  type: bool
  returned: success
  sample: true
complete:
  description: Whether a whole run is there, its rows for all sizes that were asked for and its summary, and nothing of another.
  type: bool
  returned: success
  sample: true
judged:
  description: What was judged - V(complete), V(correct), and where they were asked for V(ranks), V(hosts) and V(bandwidth).
  type: list
  elements: str
  returned: success
  sample: [complete, correct, ranks]
reasons:
  description: Everything that speaks against RV(passed), errors that were recognised first, in the order in which they were printed.
  type: list
  elements: dict
  returned: success
  contains:
    id:
      description:
        - Name of the reason, which is never renamed.
        - Of the run - V(no_all_reduce), V(no_table), V(no_summary), V(rows_missing), V(damaged_rows), V(several_runs), V(mpi_not_built), V(later_run),
          V(one_rank), V(nothing_moved), V(shared_gpu), V(not_checked), V(wrong_values), V(below_environment), V(unexpected_output), V(exit_code).
        - Of what was asked for - V(ranks), V(hosts), V(bandwidth), V(no_large_rows).
        - Of errors - V(too_many_gpus), V(duplicate_gpu), V(option_unsupported), V(cuda_stub_library), V(driver_too_old), V(no_kernel_image),
          V(fabric_manager), V(no_gpu), V(ecc_error), V(gpu_out_of_memory), V(gpu_fault), V(shared_memory_small), V(memlock_limit), V(no_socket_interface),
          V(fabric_error), V(connect_failed), V(nccl_mismatch), V(library_missing), V(ssh_denied), V(ssh_host_key), V(ssh_failed), V(not_enough_slots),
          V(run_as_root), V(executable_missing), V(daemon_failed), V(cxi_resources), V(pmi_port), V(time_limit), V(remote_process_exited), V(nccl_system_error),
          V(nccl_cuda_error), V(nccl_failure), V(cuda_failure), V(test_timeout), V(segmentation_fault), V(out_of_memory_killed), V(process_failed),
          V(test_failure).
        - Of RV(cause) - the same word.
      type: str
    cause:
      description: What is wrong, in words.
      type: str
    fix:
      description: What to do about it.
      type: str
    source:
      description: Where it is described; null for what follows from the figures.
      type: str
    line:
      description: The line that shows it; null where no one line does.
      type: str
  sample:
    - id: mpi_not_built
      cause: "2 runs of one rank each wrote at the same time: they know nothing of each other, and nothing was moved between GPUs"
      fix: build nccl-tests with MPI=1, and start it with the mpirun of that very MPI
      source: null
      line: null
rows:
  description: Rows of the first run of all_reduce_perf, as they were printed.
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
      description: Operation, V(sum) as a rule.
      type: str
    root:
      description: V(-1), as all-reduce has no root; null in layouts without this column.
      type: int
    out_of_place:
      description:
        - Result in another buffer - time_us (microseconds), algbw_gb_s and busbw_gb_s (GB/s), wrong (number of wrong values, null where they weren't checked).
        - In layouts that print the largest difference, error is that, and wrong is 1 where nccl-tests does not let it pass.
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
  description: Average over all sizes that the tool printed, in GB/s; null where it didn't. Small sizes lower it.
  type: float
  returned: success
  sample: 43.6076
max_busbw_gb_s:
  description: The best of all rows, in GB/s.
  type: float
  returned: success
  sample: 46.46
judged_busbw_gb_s:
  description: Average over the rows that O(judge_from_bytes) says, in GB/s, which O(min_busbw_gb_s) is compared with.
  type: float
  returned: success
  sample: 46.39
out_of_bounds:
  description:
    - The tool's own count of wrong values, and whether it was none; null where it printed nothing.
    - Says nothing where nothing was checked.
  type: dict
  returned: success
  sample: {count: 0, ok: true}
ranks:
  description: Ranks that worked together; null where the log doesn't say.
  type: int
  returned: success
  sample: 2
hosts:
  description: Hosts that they ran on; null where the log doesn't say.
  type: int
  returned: success
  sample: 2
gpus:
  description: GPUs that they used; null where the log doesn't say. Less than RV(ranks) where two shared one.
  type: int
  returned: success
  sample: 2
devices:
  description: The ranks - rank, host, device, bus_id, name. A JSON document has only the first GPU of each process.
  type: list
  elements: dict
  returned: success
nccl_version:
  description: Version of the NCCL library that ran; null where the log doesn't say.
  type: str
  returned: success
  sample: 2.29.2
transports:
  description:
    - Ways between ranks that NCCL's log names, without the adapter's number - V(NET/IB), V(NET/Socket), V(NET/AWS Libfabric), V(P2P/CUMEM), V(SHM/direct) ...
    - Empty without C(NCCL_DEBUG=INFO). V(NET/IB) is RDMA, by InfiniBand or RoCE.
  type: list
  elements: str
  returned: success
  sample: [NET/IB, P2P/CUMEM]
other_collectives:
  description: Other tests in the same log, and later runs of this one - name, complete, rows, avg_busbw_gb_s, max_busbw_gb_s, out_of_bounds.
  type: list
  elements: dict
  returned: success
command:
  description: What was run.
  type: list
  elements: str
  returned: when it was run
  sample: [all_reduce_perf, -b, "8", -e, "1073741824", -f, "2", -g, "8", -w, "5", -n, "20", -c, "1"]
output:
  description: Everything that it printed, stderr after stdout.
  type: str
  returned: when it was run
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import ParseError, answer, check_bounds, parse_size
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import check_names, run_tool, tool_options

FIXES = {
    "not_installed": "build nccl-tests, or name its all_reduce_perf in «executable» (and Open MPI's mpirun in «mpirun»)",
    "library_missing": "install it, or add its folder to LD_LIBRARY_PATH where the ranks run",
    "timeout": "see which host or link hangs (run it on each host alone, then on pairs), or raise «timeout»",
    "container_not_running": "start container {container}",
    "engine_unavailable": "install and start Docker on this host, and run the task as root",
}

# nccl-tests before 2.17 ends, as if nothing were wrong, at an option that it doesn't know. So it is asked first. The folder is new: it overwrites no file.
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


def check(module):
    """Look at the options of a run before it begins. Returns the range of sizes in bytes."""
    params = module.params
    for name, least in (("gpus", 1), ("step_factor", 2), ("iterations", 1), ("warmup_iterations", 0), ("timeout", 1), ("ssh_port", 1)):
        if params[name] is None:
            module.fail_json(msg=f"{name} is missing: say how many GPUs of each host take part in the run, or give a log in «log» or «log_file»")
        if params[name] < least:
            module.fail_json(msg=f"{name}: {params[name]} is too small: {least} or more")
    if params["ssh_port"] > 65535:
        module.fail_json(msg=f"ssh_port: {params['ssh_port']} is no port: 1 to 65535")
    check_names(module, "container")
    for name in params["environment"]:
        if not re.match(r"[A-Za-z_]\w*$", name):
            module.fail_json(msg=f"environment: «{name}» is no name of a variable: letters, digits and _")
    for host in params["hosts"]:
        if not re.match(r"[A-Za-z0-9][\w.-]*$", host):
            module.fail_json(msg=f"hosts: «{host}» is no name or IPv4 address")
    if len(set(params["hosts"])) < len(params["hosts"]):
        module.fail_json(msg=f"hosts: {', '.join(params['hosts'])}: a host is named twice")
    if bool(params["hosts"]) is (params["launcher"] == "direct"):
        module.fail_json(msg=f"hosts: launcher «{params['launcher']}» " + (
            "runs on this host only: take «hosts» away, or launch it with mpirun" if params["hosts"] else "needs the addresses of the hosts"))
    if params["gpus"] * max(1, len(params["hosts"])) < 2:
        module.fail_json(msg="gpus: one GPU alone has nothing to send to another: 2 or more, or several hosts with mpirun")
    try:
        least, most = (parse_size(params[name], name) for name in ("min_bytes", "max_bytes"))
    except ValueError as error:
        module.fail_json(msg=str(error))
    if least > most:
        module.fail_json(msg=f"min_bytes: {params['min_bytes']} is larger than max_bytes, which is {params['max_bytes']}: the smaller size comes first")
    return least, most


def command_line(params, least, most):
    """What is run, word for word."""
    per_gpu = params["launcher"] == "mpirun_per_gpu"
    test = [params["executable"], "-b", str(least), "-e", str(most), "-f", str(params["step_factor"]), "-g", "1" if per_gpu else str(params["gpus"]),
            "-w", str(params["warmup_iterations"]), "-n", str(params["iterations"]), "-c", "1"]
    variables = [f"{name}={value}" for name, value in sorted(params["environment"].items())]
    if params["launcher"] == "direct":
        return (["env"] + variables if variables else []) + test
    slots = params["gpus"] if per_gpu else 1
    network = params["mpi_network"]
    return [
        params["mpirun"], "--allow-run-as-root", "-np", str(slots * len(params["hosts"])), "-H", ",".join(f"{host}:{slots}" for host in params["hosts"]),
        # Open MPI 5 counts no slots for a host that is named by an address of its own (openpmix/prrte#2258), so the places are said, and not counted.
        "--bind-to", "none", "--map-by", f"ppr:{slots}:node:OVERSUBSCRIBE", "--mca", "plm_rsh_args", f"-p {params['ssh_port']}",
        # MPI only brings the ranks together; its own use of the fabric's adapters fails more often than TCP.
        "--mca", "pml", "ob1", "--mca", "btl", "^openib",
        *(["--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network] if network else []),
        *[word for variable in variables for word in ("-x", variable)], *test]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **tool_options(600, "all_reduce_perf"),
            "log": {"type": "str"},
            "log_file": {"type": "path"},
            "gpus": {"type": "int"},
            "launcher": {"type": "str", "choices": ["direct", "mpirun_per_host", "mpirun_per_gpu"], "default": "direct"},
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
        bounds = check_bounds(*(params[name] for name in ("expected_ranks", "expected_hosts", "min_busbw_gb_s", "judge_from_bytes")))
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
            module.fail_json(msg=f"log_file: {where}: {error.strerror}. Give the path of a log on this host, or its text in «log»")
    try:
        told = answer(text, **bounds)
    except ParseError as error:
        module.fail_json(msg=f"{where}: {error}. Give the whole output of all_reduce_perf, stdout and stderr")
    module.exit_json(changed=False, available=True, cause=None, fix=None, **told)


def run(module, bounds):
    """Run it, and judge what it says."""
    params = module.params
    least, most = check(module)
    hosts = max(1, len(params["hosts"]))
    for name, all_of_them in (("expected_ranks", params["gpus"] * hosts), ("expected_hosts", hosts)):
        bounds[name] = all_of_them if bounds[name] is None else bounds[name]
    command = command_line(params, least, most)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="a run keeps all GPUs busy: it is skipped in check mode", command=command)

    done = run_tool(module, ["sh", "-c", SHELL, "sh", params["executable"], DOCUMENT, *command], params["timeout"], container=params["container"])
    printed, _mark, document = done.stdout.partition("\n" + DOCUMENT + "\n")
    output = printed + "\n" + done.stderr
    try:
        told = answer(output, document, done.rc, **bounds)
    except ParseError as error:
        module.fail_json(msg=f"{params['executable']} ended with exit code 0, but this isn't what it prints: {error}", stdout=printed, stderr=done.stderr)
    by_id = {reason["id"]: reason for reason in told["reasons"]}
    if "too_many_gpus" in by_id:
        reason = by_id["too_many_gpus"]
        module.fail_json(msg=f"gpus: {params['gpus']}: {reason['cause']}. {reason['fix']}. It said: {reason['line']}", output=output, command=command)

    cause, evidence = done.cause, done.evidence
    if not cause and "library_missing" in by_id and not told["rows"]:
        cause, evidence = "library_missing", by_id["library_missing"]["line"]
    elif not cause and done.rc == 127:
        cause, evidence = "not_installed", (done.stderr.strip() or "exit code 127").splitlines()[-1]
    fix = f"{FIXES[cause].format(container=params['container'])}. It said: {evidence}" if cause else None
    if cause and cause not in by_id:
        told["reasons"].insert(0, {"id": cause, "cause": f"nothing could be measured to the end: {evidence}", "fix": fix, "source": None, "line": None})
    module.exit_json(changed=False, available=not cause, cause=cause or None, fix=fix, command=command, output=output, **told)


if __name__ == "__main__":
    main()
