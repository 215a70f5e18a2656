"""Logs of all_reduce_perf without an exit code: any line about an aborted run fails it, and the
surroundings of a good run do not.
"""

from pathlib import Path

import all_reduce_output
import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import answer
from ansible_collections.trainyard.gpu.plugins.module_utils._run_log import Around

FIXTURES = Path(__file__).parents[3] / "fixtures/all_reduce_perf"
TAGGED = (FIXTURES / "karpenter-tagged-run1.txt").read_text(encoding="utf-8")
PLAIN = (FIXTURES / "sophia-2node-16gpu-ok.txt").read_text(encoding="utf-8")
MANY = (FIXTURES / "h100-smoke-2node-2.17.8-two-collectives.txt").read_text(encoding="utf-8")
SESSION = (FIXTURES / "v100-2node-patched-prefix-run.txt").read_text(encoding="utf-8")
# What ends a run, as printed by Slurm, Open MPI, hydra, PALS, the loader, libc, shells, containers
# and schedulers.
ENDS = """
slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.
slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.batch. Some of your processes may have been killed by the cgroup out-of-memory handler.
slurmstepd: error: *** STEP 4711.0 ON gx1 CANCELLED AT 2026-07-09T16:03:21 ***
slurmstepd-gx1: error: *** JOB 4711 ON gx1 CANCELLED AT 2026-07-09T16:03:21 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: Force Terminated StepId=4711.0
srun: job 4711 CANCELLED
srun: launch/slurm: _task_finish: Received task exit notification for 1 task of StepId=4711.0 (status=0x0009).
salloc: Job allocation 4711 has been revoked.
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD with errorcode 1.
[gx1:04711] *** Process received signal ***
[gx1:04711] 3 more processes have sent help message help-mpi-api.txt / mpi_abort
[gx1:04711] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 2198
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 4711 RUNNING AT gx1
=   EXIT CODE: 137
[proxy:0:0@gx1] HYD_pmcd_pmip_control_cmd_cb (pm/pmiserv/pmip_cb.c:480): assert (!closed) failed
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
x3001c0s13b0n0.hsn.cm.polaris.alcf.anl.gov: rank 3 died from signal 9
x3001c0s13b0n0: rank 0 exited with code 1
Application 4711 exit codes: 137
Killed
/bin/bash: line 1:  4711 Killed                  ./build/all_reduce_perf -b 8 -e 1G -f 2 -g 8
Terminated
terminate called after throwing an instance of 'std::runtime_error'
  what():  unhandled
Bus error (core dumped)
Aborted (core dumped)
Hangup
Quit
Alarm clock
User defined signal 1
Illegal instruction
Floating point exception (core dumped)
double free or corruption (!prev)
malloc(): invalid size (unsorted)
*** stack smashing detected ***: terminated
all_reduce_perf: symbol lookup error: /usr/lib/libnccl.so.2: undefined symbol: ibv_query_ece
all_reduce_perf: common.cu:412: void run(): Assertion `x' failed.
./all_reduce_perf: error while loading shared libraries: libmpi.so.40: cannot open shared object file: No such file or directory
command terminated with exit code 137
exit code 137
Exit code: 137
rc=137
Exit status: 137
worker-0 exited with code 137
+ exit 137
make: *** [Makefile:12: run] Error 137
error: timed out waiting for the condition
Error from server (NotFound): pods "worker-0" not found
Connection to gx1 closed by remote host.
client_loop: send disconnect: Broken pipe
TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.
=>> PBS: job killed: walltime 612 exceeded limit 600
Message from syslogd@gx1 at Jul  9 16:03:21 ...
NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus.
[gx1:4711:0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))
[1720540000.123456] [gx1:4711:0]           mpool.c:55   UCX  ERROR Failed to allocate memory
gx1:4711:4720 [0] NCCL INFO comm 0x7f9c0c000f60 rank 1 nranks 2 cudaDev 0 busId f5000 - Abort COMPLETE
The job exceeded its memory
Oh dear
""".strip("\n").split("\n")
# What surrounds a good run, before its table: whatever it is.
BEFORE = """
Loading cuda/12.4
  Loading requirement: gcc/12.2.0
The following have been reloaded with a version change:
  1) openmpi/4.1.5 => openmpi/4.1.6
Lmod is automatically replacing "gcc/11" with "gcc/12".
Authorization required, but no authorization protocol specified
[gx1:04711] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168
[gx1:04711] mca_base_component_repository_open: unable to open mca_op_avx: /usr/lib/mca_op_avx.so: undefined symbol: ompi_op_avx_functions_avx (ignored)
WARNING: There was an error initializing an OpenFabrics device.
MPI startup(): PMI server not found. Please set I_MPI_PMI_LIBRARY variable if it is not a singleton case.
[0] MPI startup(): Intel(R) MPI Library, Version 2021.12  Build 20240213
srun: warning: can't honor --ntasks-per-node set to 8 which does not match the requested tasks 16. Ignoring --ntasks-per-node.
slurmstepd: task_p_pre_launch: Using sched_affinity for tasks
perl: warning: Setting locale failed.
ERROR: ld.so: object '/opt/darshan.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.
[1720540000.123456] [gx1:4711:0]     ucp_context.c:1774 UCX  WARN  UCP API version is incompatible: required >= 1.17, actual 1.15.0
""".strip("\n").split("\n")
# Between its rows: libraries.
WITHIN = """
gx1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
[2026-07-09 16:03:21] gx1:4711:4720 [0] misc/ibvwrap.cc:120 NCCL WARN Call to ibv_query_ece is not supported
gx1:4711:4720 [0] transport/net_ib.cc:1201 NCCL WARN NET/IB : gx1:2 async event on mlx5_0:1: client reregistration event
gx1:4711:4720 [0] 93.120 ncclLaunchKernel:1201 NCCL TRACE done
gx1:4711:4720 [0] NCCL INFO NET/OFI Libfabric provider associates MRs with domains
[1720540000.123456] [gx1:4711:0]     ucp_context.c:1774 UCX  WARN  UCP version is incompatible, required: 1.17, actual: 1.15
[1720540000.123456] [gx1:4711:0]          parser.c:2036 UCX  INFO  UCX_* env variables: UCX_TLS=rc UCX_NET_DEVICES=mlx5_0:1
libfabric:4711:1720540000::core:core:ofi_hmem_init():421<warn> Failed to initialize hmem iface FI_HMEM_ROCR: No data available
[gx1:0:4711 - context.c:743][2026-07-09 16:03:21] INFO job (ID: 4711) resource request quota: ( osts:0 user_data_per_ost:0 )
[gx1:04711] 3 more processes have sent help message help-mpi-btl-openib.txt / error in device init
[gx1:04711] 15 more processes have sent help message help-mpi-btl-base.txt / btl:no-nics
[gx1:04711] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
Warning: Permanently added '[10.0.0.2]:12345' (ED25519) to the list of known hosts.
srun: job 4711 queued and waiting for resources
srun: job 4711 has been allocated resources
salloc: Granted job allocation 4711
# Errors with asterisks indicate errors that have exceeded the maximum threshold.
ops@gx1:~/nccl-tests$ ./build/all_reduce_perf -b 8 -e 1G -g 8
[root@gx1 build]# ./all_reduce_perf -b 8 -e 256M -f 2 -g 2
> ./build/all_reduce_perf -b 8 -e 128M -f 2 -g 4
""".strip("\n").split("\n")
# Below its summary: libraries that close down, scripts, shells, schedulers.
AFTER = (
    WITHIN
    + """
gx1:4711:4711 [0] NCCL INFO comm 0x7f9c0c000f60 rank 1 nranks 2 cudaDev 0 busId f5000 - Destroy COMPLETE
[1720540000.123456] [gx1:4711:0]           mpool.c:55   UCX  WARN  object 0x55d0 was not returned to mpool ucp_requests
==========================================
Job 4711 finished at Thu Jul  9 16:04:02 UTC 2026
Thu Jul  9 16:04:02 UTC 2026
Thu 09 Jul 2026 04:04:02 PM UTC
End time: 2026-07-09T16:04:02Z
Done.
*** All tests completed successfully ***
Exit code: 0
rc=0
exit status 0
Elapsed time: 41 s
Total runtime: 00:00:41
real	0m41.204s
user	3m1.5s
sys 0.41
181.50user 20.11system 0:41.20elapsed 489%CPU (0avgtext+0avgdata 1024000maxresident)k
0inputs+16outputs (0major+112233minor)pagefaults 0swaps
	Maximum resident set size (kbytes): 1024000
	Signals delivered: 0
	Exit status: 0
+ exit 0
+ date
worker-0 exited with code 0
Connection to gx1 closed.
logout
salloc: Relinquishing job allocation 4711
srun: launch/slurm: _task_finish: gx1: task 0: Completed
srun: launch/slurm: _task_finish: Received task exit notification for 1 task of StepId=4711.0 (status=0x0000).
Application 0b6a3bb2 resources: utime=181s stime=20s maxrss=1024000KB inblock=0 oublock=16 minflt=112233 majflt=0 nvcsw=1 nivcsw=2
[ops@gx1 nccl-tests]$
root@gx1:~/nccl-tests#
bash-5.2# exit
# GPU memory usage     : Initialization 1.35 GB | User-Allocated 1.50 GB | Collective 96.0 MB | Total  2.94 GB
# error: NET/IB : mlx5_4:1 Got async event : port error
(base) ops@gx1:~$ ls
```
""".strip("\n").split("\n")
)
WARNING = """--------------------------------------------------------------------------
WARNING: Open MPI accepted a TCP connection from what appears to be a
another Open MPI process but cannot find a corresponding process
entry for that peer.

  Local host: gx1
  PID:        4711
--------------------------------------------------------------------------"""
ABORT = """--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
with errorcode 1.
--------------------------------------------------------------------------"""


def put(text, line, place):
    """The text with the line in a place of it, behind the same tag as the other lines."""
    lines = text.split("\n")
    header = next(number for number, each in enumerate(lines) if "algbw" in each)
    footer = next(number for number, each in enumerate(lines) if "Avg bus bandwidth" in each)
    at = {
        "before": 0,
        "above": header,
        "below the header": header + 1,
        "within": header + 6,
        "above the summary": footer - 1,
        "in the summary": footer,
        "after": footer + 1,
        "end": len(lines),
    }[place]
    tag = lines[header].partition("#")[0]
    return "\n".join(lines[:at] + [tag + each for each in line.split("\n")] + lines[at:])


def reasons(text):
    return [reason["id"] for reason in answer(text)["reasons"]]


@pytest.mark.parametrize("line", [line for line in ENDS if not line.startswith("====")] + [ABORT])
def test_what_ends_a_run_fails_it(line):
    for text in (PLAIN, TAGGED):
        for place in (
            "below the header",
            "within",
            "above the summary",
            "in the summary",
            "after",
            "end",
        ):
            told = answer(put(text, line, place))
            assert not told["passed"] and told["reasons"], place
    # Whatever else is in the log: a later run, or a shell's prompt.
    assert reasons(put(MANY, line, "within")) and reasons(put(MANY, line, "end"))
    # An exit code of 0, which only a run has, is believed.
    assert answer(put(PLAIN, "Oh dear", "after"), rc=0)["passed"]


@pytest.mark.parametrize(
    "place, lines",
    [
        ("before", BEFORE + ENDS),
        ("above", WITHIN),
        ("within", WITHIN + [WARNING]),
        ("in the summary", WITHIN + [WARNING]),
        ("after", AFTER + [WARNING]),
        ("end", AFTER + [WARNING]),
    ],
)
def test_what_surrounds_a_good_run_does_not(place, lines):
    for text in (PLAIN, TAGGED, MANY, all_reduce_output.text()):
        for line in lines:
            if not (place == "before" and text is TAGGED):
                told = answer(put(text, line, place))
                assert told["passed"], (line, told["reasons"])


def test_the_line_is_named():
    told = answer(put(PLAIN, "Oh dear", "after"))
    assert [(reason["id"], reason["line"]) for reason in told["reasons"]] == [
        ("unexpected_output", "Oh dear")
    ] and told["complete"]


@pytest.mark.parametrize(
    "glued", ["Killed", "Killed ", "[gx1:04711] *** Process received signal *** "]
)
def test_text_attached_to_a_line_fails_the_run(glued):
    for mark in ("1048576 ", "# Out of bounds", "# Avg bus"):
        line = next(line for line in PLAIN.split("\n") if line.strip().startswith(mark))
        for changed in (glued + line, line + " " + glued):
            assert reasons(PLAIN.replace(line, changed)), changed


def test_behind_a_prompt_only_failures_count():
    prompt = PLAIN + "root@gx1:~# cat notes\nsomething else\n"
    assert answer(prompt)["passed"]
    for line in ("Killed", "Aborted (core dumped)", "exit code 137"):
        assert reasons(prompt + line + "\n") == ["unexpected_output"]
    assert reasons(
        put(SESSION, "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.", "end")
    ) == ["job_out_of_memory"]


BETWEEN = """--------------------------------------------------------------------------
Two mutually-exclusive MCA variables were specified.  This can result
in undefined behavior, such as ignoring the components.
--------------------------------------------------------------------------
There was an error initializing an OpenFabrics device.
CASE2
Started: 2026-01-01T10:00:00+00:00
"""


def test_text_between_two_runs_belongs_to_neither():
    assert reasons(PLAIN + BETWEEN + PLAIN) == []
    assert reasons(PLAIN + BETWEEN) == ["unexpected_output"]
    # The end of a process does.
    known = ["job_out_of_memory", "job_out_of_memory", "step_cancelled", "node_failed"]
    unknown = ["Killed", "Aborted (core dumped)", "rc=137", "Exit code: 137"]
    expected = [*zip(ENDS, known), *((line, "unexpected_output") for line in unknown)]
    for line, reason in expected:
        assert reasons(PLAIN + line + "\n" + BETWEEN + PLAIN) == [reason], line


def test_several_hosts_before_the_lines():
    names = ["alpha: ", "beta: "]
    lines = [names[number % 2] + line for number, line in enumerate(PLAIN.split("\n"))]
    assert answer("\n".join(lines))["passed"]
    for line in ("alpha: Killed", "alpha: Oh dear", "Killed: ", "gamma: exit code 137"):
        assert reasons("\n".join(lines + [line])) == ["unexpected_output"], line
    # A sentence before a row is no name.
    assert reasons(PLAIN.replace("     1048576 ", "Oh dear      1048576 ") + "Oh dear\n")


@pytest.mark.parametrize(
    "before, line, expected",
    [
        ("pod/worker-7 INFO ", "pod/worker-12 INFO ", None),
        ("pod/worker-7 INFO ", "pod/worker-12 INFO # ", None),
        ("pod/worker-7 INFO ", "pod/worker-12 INFO Killed", "pod/worker-12 INFO Killed"),
        ("", "Killed:", "Killed:"),
        ("", "Killed |", "Killed |"),
        ("[1,0]<stdout>:#", "[1,3]<stderr>:", None),
        ("gx1: ", "gx2: gx2:1:2 [0] NCCL INFO x", None),
    ],
)
def test_tags(before, line, expected):
    around = Around(before)
    around.add(line, True, False)
    assert around.unexpected(False) == expected
