"""Lines below the table of a good run, by the program that prints them, and the same lines for a
failed run.
"""

import time

import pytest
from test__run_log import ENDS, PLAIN, TAGGED, put

from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import answer
from ansible_collections.trainyard.gpu.plugins.module_utils._epilogues import is_ending

GOOD = {
    "jobs of shells": """
[1]+  Done                    mpirun -n 2 ./all_reduce_perf -b 8 -e 1G
[1]+  Done                    timeout 600 mpirun -n 2 ./all_reduce_perf -b 8 -e 1G > error.log
[1] + Done                       ./all_reduce_perf
[1]-  Done                    ./all_reduce_perf  (wd: ~/nccl-tests)
[1]  + 4711 done       mpirun -n 2 ./all_reduce_perf
[1]    Done                          ./all_reduce_perf
[1]+  Done""",
    "exit codes": """
ExitCode: 0
EXIT_CODE=0
exit_code: 0
"ExitCode": 0,
ExitCode=0:0
Exit status = 0
return code 0
returncode: 0
RC: 0
Job 77 ended with status 0
Job 4711 finished on gx1 at Thu Jul  9 16:04:02 UTC 2026 with exit code 0
exit code 0 after 41 s
Process 4711 exits successfully.
Program terminated normally
task completed normally with an exit code of 0
0""",
    "sentences": """
PASS
PASSED
TEST PASSED
RESULT: PASS
*** PASS ***
Cleaning up
Cleaning up...
Cleanup done
Removing temporary files
Finished on gx1
Job allreduce_2n finished successfully
All done, goodbye!
No errors found.
1 passed, 0 failed
Errors: 0
2/2 ranks finished
1 of 1 tests passed
100 % done
END OF JOB
##### END OF JOB #####
\u2705 Done
2026-07-09 16:04:02
1720540000""",
    "logging": """
2026-07-09 16:04:02,123 INFO finished
2026-07-09 16:04:02,123 - root - INFO - finished
2026-07-09 16:04:02,123 [INFO] finished
INFO:root:finished
INFO: Cleaning up image...
2026-07-09 16:04:02.123 | INFO     | __main__:main:12 - finished
I0709 16:04:02.123456  4711 main.cc:12] done
time="2026-07-09T16:04:02Z" level=info msg="job finished"
2026-07-09T16:04:02.123456789Z stdout F done""",
    "script": """
Script done, file is typescript
Script done, output log file is 'typescript'.
Script done, output log file is 'typescript', timing file is 't.log'.
Script done.
Script done on 2026-07-09 16:04:02+00:00 [COMMAND_EXIT_CODE="0"]
Script done on Thu 09 Jul 2026 04:04:02 PM UTC""",
    "time": """
real	0m41.204s
       41.20 real       181.50 user        20.11 sys
./all_reduce_perf -b 8 -e 1G  181.50s user 20.11s system 489% cpu 41.204 total
181.500u 20.110s 0:41.20 489.0%	0+0k 0+16io 0pf+0w
Executed in   41.20 secs    fish           external
   usr time  181.50 secs    0.00 micros  181.50 secs""",
    "Slurm": """
srun: gx1: task 0: Completed
srun: gx1: tasks 0-7: Completed
srun: launch/slurm: _task_finish: gx1: task 0: Completed
srun: Received task exit notification for 1 task of StepId=4711.0 (status=0x0000).
srun: Complete StepId=4711.0 received
salloc: Relinquishing job allocation 4711
Job ID: 4711
User/Group: ops/ops
State: COMPLETED (exit code 0)
CPU Efficiency: 50.00% of 00:06:40 core-walltime
Memory Utilized: 1.00 GB
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
4711               nccl        gpu       acct         32  COMPLETED      0:0
4711.batch        batch                  acct         16  COMPLETED      0:0""",
    "PBS": """
Begin PBS Epilogue Thu Jul  9 16:04:02 EDT 2026
Job ID:           4711.pbs
Job Name:         killer
Resources Used:   cput=00:00:41,mem=1024kb,walltime=00:00:41
Exit Value:       0
End PBS Epilogue Thu Jul  9 16:04:02 EDT 2026
                  Resource Usage on 2026-07-09 16:04:02:
   Exit Status:        0
   NCPUs Requested:    48                     NCPUs Used: 48
   Walltime requested: 00:10:00            Walltime Used: 00:00:41
qsub: job 4711.pbs completed""",
    "LSF": """
Resource usage summary:
    CPU time :                                   181.50 sec.
    Max Memory :                                 1024 MB
    Delta Memory :                               -
The output (if any) is above this job summary.
<<Job is finished>>""",
    "Kubernetes": """
pod "x" deleted
pod "x" deleted from default namespace
mpijob.kubeflow.org "x" deleted
job.batch/x condition met
Session ended, resume using 'kubectl attach x -c x -i -t' command when the pod is running
NAME              READY   STATUS      RESTARTS   AGE
x-launcher-7f9    0/1     Completed   0          2m
default   x-worker-0   1/1     Running     0          2m
NAME   COMPLETIONS   DURATION   AGE
x      1/1           41s        2m
x      Complete      1/1        41s   2m
release "x" uninstalled""",
    "containers and units": """
nccl-1 exited with code 0
 Container x-worker-1  Stopping
 \u2714 Container x-worker-1  Removed    0.1s
 Network x_default  Removed
Stopping x_worker_1 ... done
Removing network x_default
[+] Running 2/2
[+] down 3/3
Finished with result: success
Main processes terminated with: code=exited, status=0/SUCCESS
Service runtime: 41.204s
CPU time consumed: 3min 21.610s""",
    "CI": """
Cleaning up orphan processes
##[endgroup]
Post job cleanup.
2026-07-09T16:04:02.1234567Z Evaluate and set job outputs
Complete job name: nccl
section_end:1720540000:step_script
Cleaning up project directory and file based variables
Job succeeded
Finished: SUCCESS
[Pipeline] }
[Pipeline] End of Pipeline
1/1 Test #1: nccl .............................   Passed   41.20 sec
100% tests passed, 0 tests failed out of 1
ok 1 - all_reduce""",
    "shells and tools": """
make[1]: Leaving directory '/opt/nccl-tests'
Unloading cuda/12.4
  Unloading requirement: gcc/12.2.0
The following modules were not unloaded:
  (Use "module --force purge" to unload all):
  1) slurm/23.11   2) craype/2.7
[screen is terminating]
[detached (from session 0)]
Generating '/tmp/nsys-report-1a2b.qdstrm'
[1/1] [========================100%] report1.nsys-rep
Generated:
    /tmp/report1.nsys-rep""",
}
# The same about a run that did not succeed.
BAD = """
[1]+  Exit 1                  mpirun -n 2 ./all_reduce_perf
[1]+  Killed                  mpirun -n 2 ./all_reduce_perf
[1]+  Done(1)                 mpirun -n 2 ./all_reduce_perf
[1]  + 4711 exit 137   mpirun -n 2 ./all_reduce_perf
[1]+  Stopped                 ./all_reduce_perf
[1]+  Segmentation fault      ./all_reduce_perf
ExitCode: 1
ExitCode=0:9
ExitCode=0:15
Exit code: 0:9
Exit status = 271
EXIT_CODE=137
"ExitCode": 137,
Exit Status:        271 (Linux Signal 15 SIGTERM Termination)
Job 77 ended with status 1
Job 77 ended with status 77
Job 0 ended with status 9
exit 0 of 137
result: 1
137
1
FAIL
not ok 1 - all_reduce
RESULT: FAIL
TEST NOT PASSED
0 passed
0 tests passed
1 passed, 1 failed
15/16 ranks finished successfully
3 of 4 tests passed
Errors: 1
10 failed
Time is up
Cleaning up after kill
time limit reached
no result
rank 3 exited
worker 0 exited
Job finished on rc137
2026-07-09 16:04:02,123 ERROR finished
2026-07-09 16:04:02,123 INFO job lost
INFO:root:killed
time="2026-07-09T16:04:02Z" level=error msg="job finished"
Script done on 2026-07-09 16:04:02+00:00 [COMMAND_EXIT_CODE="137"]
Script killed, file is typescript
Command exited with non-zero status 1
Command terminated by signal 9
State: FAILED (exit code 1)
State: OUT_OF_MEMORY (exit code 0)
State: TIMEOUT (exit code 0)
State: CANCELLED (exit code 0)
4711               nccl        gpu       acct         32     FAILED      1:0
4711               nccl        gpu       acct         32 OUT_OF_ME+    0:125
4711               nccl        gpu       acct         32  COMPLETED      1:0
srun: error: gx1: task 0: Exited with exit code 1
srun: error: gx1: task 0: Killed
srun: Received task exit notification for 1 task of StepId=4711.0 (status=0x0009).
Exit Value:       271
Walltime requested: 00:10:00   Exit Status: 271
Resources Used: killed
Exited with exit code 137.
TERM_OWNER: job killed by owner.
Sender: LSF System <lsfadmin@gx1>
pod default/x terminated (Error)
pod "x" force deleted
x-launcher-7f9    0/1     Error       0          2m
x-launcher-7f9    0/1     OOMKilled   0          2m
x-launcher-7f9    1/1     Running     3          2m
x      0/1           41s        2m
x      Failed        0/1        41s   2m
command terminated with exit code 137
error: unable to upgrade connection: container not found ("x")
nccl-1 exited with code 137
Aborting on container exit...
Container x-worker-1  Killed
[+] Running 1/2
Finished with result: exit-code
Finished with result: oom-kill
Main processes terminated with: code=killed, status=9/KILL
##[error]Process completed with exit code 1.
Terminate orphan process: pid (4711) (all_reduce_perf)
ERROR: Job failed: exit code 1
Finished: FAILURE
Finished: ABORTED
1/1 Test #1: nccl .............................***Failed   41.20 sec
0% tests passed, 1 tests failed out of 1
make: *** [Makefile:12: run] Error 137
make[1]: *** [run] Killed
[1612345678.123456] [n1:77   :0]  mpool.c:43 UCX ERROR no memory
[1612345678.123456] [n1:77   :0]  Killed
n1:77   :80   [0] Killed
""".strip("\n").split("\n")
REPORT = """
------------------------------------------------------------
Sender: LSF System <lsfadmin@gx1>
Subject: Job 4711: <nccl> in cluster <c1> Done

Job <nccl> was submitted from host <login1> by user <ops> in cluster <c1> at Thu Jul  9 16:03:21 2026
Job was executed on host(s) <16*gx1>, in queue <normal>, as user <ops> in cluster <c1> at Thu Jul  9 16:03:22 2026
                            <16*gx2>
</home/ops> was used as the home directory.
</home/ops/nccl-tests> was used as the working directory.
Started at Thu Jul  9 16:03:22 2026
Terminated at Thu Jul  9 16:04:02 2026
Results reported at Thu Jul  9 16:04:02 2026

Your job looked like:

------------------------------------------------------------
# LSBATCH: User input
#!/bin/bash
trap 'kill 0' ERR
echo ------------------------------------------------------------
mpirun ./build/all_reduce_perf -b 8 -e 1G -f 2 -g 1 || exit 137

------------------------------------------------------------

Successfully completed.

Resource usage summary:

    CPU time :                                   181.50 sec.
    Max Memory :                                 1024 MB
    Turnaround time :                            42 sec.

The output (if any) is above this job summary.

PS:

Read file <err.4711> for stderr output of this job.
"""


def passes(text):
    told = answer(text)
    assert [reason["id"] for reason in told["reasons"]] in ([], ["unexpected_output"])
    return told["passed"]


@pytest.mark.parametrize("who", GOOD)
def test_a_good_run_may_end_with_it(who):
    lines = GOOD[who].strip("\n").split("\n")
    for line in lines:
        assert passes(put(PLAIN, line, "end")), line
    assert passes(put(TAGGED, "\n".join(lines), "end"))
    # Nothing of it may interrupt the table, and nothing of it hides what follows.
    assert not passes(put(PLAIN, lines[0], "within")) and not passes(
        put(PLAIN, "\n".join(lines), "end") + "\nKilled\n"
    )


@pytest.mark.parametrize("line", BAD)
def test_the_same_of_a_run_that_failed(line):
    for text in (PLAIN, TAGGED):
        assert answer(put(text, line, "end"))["reasons"], line


def test_nothing_that_ends_a_run_is_an_ending():
    assert [
        line for line in ENDS + BAD if is_ending(line.strip()) and not line.startswith("===")
    ] == []


def test_ucx_pads():
    """PIDs in containers are small."""
    for place in ("within", "end"):
        for line in (
            "[1612345678.123456] [n1:77   :0]  mpool.c:43 UCX WARN object 0x55d0 was not returned to mpool ucp_requests",
            "[1612345678.123456] [n1:77   :0 ]         mpool.c:43   UCX  WARN  object 0x55d0 was not returned to mpool ucp_requests",
            "[1612345678.123456] [   n1:   77: a]  mpool.c:43   UCX  WARN  x",
            "[1612345678.123456] [n1:7    :0]    tl_ucp.c:43   TL_UCP WARN  x",
            "n1:77   :80   [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
            "n1:   77:   80 [ 0] misc/ibvwrap.cc:120 NCCL WARN x",
            "libfabric:   77:1720540000::core:core:ofi_hmem_init():421<warn> x",
        ):
            assert passes(put(PLAIN, line, place)), line


def test_the_report_of_lsf():
    assert passes(PLAIN + REPORT)
    for old, new in (
        ("> Done", "> Exited"),
        ("> Done", "> Done\nOh dear"),
        (
            "Resource usage",
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nResource usage",
        ),
        ("Successfully completed.\n", ""),
    ):
        assert REPORT.count(old) and not passes(PLAIN + REPORT.replace(old, new))
    # Its script is its own.
    assert not passes(PLAIN + REPORT + "trap 'kill 0' ERR\n")
    told = answer(PLAIN + REPORT.replace("Successfully completed.", "Exited with exit code 137."))
    assert [reason["id"] for reason in told["reasons"]] == ["out_of_memory_killed"]
    assert not told["passed"]


def test_compose_ends_the_others_once_one_has_ended():
    down = "Aborting on container exit...\n Container x-worker-1  Stopping\n Container x-worker-1  Stopped\n"
    assert passes(PLAIN + "\nx-launcher-1 exited with code 0\n" + down)
    assert not passes(PLAIN + "\n" + down) and not passes(
        PLAIN + "\nx-launcher-1 exited with code 1\n" + down
    )


@pytest.mark.parametrize(
    "begin",
    ["Post job cleanup.", "##[group]Run actions/upload-artifact@v4", "Running after_script"],
)
def test_another_step_prints_what_it_likes(begin):
    assert passes(PLAIN + "\n" + begin + "\nTemporarily overriding HOME='/home/runner/work'\n")
    assert not passes(PLAIN + "\n" + begin + "\n##[error]Process completed with exit code 137.\n")


@pytest.mark.parametrize(
    "line",
    [
        "> " * 2000,
        "[1] " * 1000 + "x",
        "a" * 4000,
        "0 of " * 800,
        "Script done on " + "1 " * 2000,
        "\u2705" * 4000,
        "INFO: " * 600 + "x",
        "[" + " " * 4000,
        "n1:1   :" * 500,
        "ok " * 1300,
        "1) a " * 800,
        "Removed " * 500,
    ],
)
def test_no_line_takes_long(line):
    began = time.process_time()
    answer(PLAIN + "\n" + line + "\n")
    assert time.process_time() - began < 1
