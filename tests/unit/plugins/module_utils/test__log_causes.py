"""Causes of a failure from logs: all readers, what is told first, what is shown if nothing is
known, and how long it takes.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.util
import io
import json
import sys
import time
import types
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _all_reduce, _log_causes
from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
    CAUSE,
    IN_GOOD_RUNS,
    SIGNATURES,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import (
    answer,
    causes,
    find_errors,
    log_of,
    read_log,
    unknown_lines,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import explain

ROOT = Path(__file__).resolve().parents[4]
FIXTURES = ROOT / "tests/fixtures"
LOGS = FIXTURES / "job-logs"
# As on hosts, programs find these in one folder.
for folder in ("roles/job_container/files", "roles/jobs/files", "roles/train/files"):
    sys.path.insert(0, str(ROOT / folder))


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_of_logs", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job, commands = load("roles/jobs/files/job.py"), load("roles/jobs/files/_commands.py")
ROW = {"rank": 0, "host": "a", "exit_code": 1, "hostname": "a", "ended": 1.0}
#: By fixture: the entry of each line. One whose lines belong together has one.
with open(LOGS / "INDEX.tsv", encoding="utf-8", newline="") as stream:
    INDEX = {row["path"]: row for row in csv.DictReader(stream, delimiter="\t")}
LINES = {
    name: row["expected_key_facts"].partition("=")[2].split(",") for name, row in INDEX.items()
}


def whole_logs(name):
    """Yield the name of each log in a file of fixtures, the entry that comes first, and the text."""
    text = (FIXTURES / "whole-logs" / name).read_text(encoding="utf-8")
    for part in text.split("##### ")[1:]:
        title, _end, log = part.partition("\n")
        called, _colon, expected = title.partition(": ")
        yield called, expected, log


FAILED, HEALTHY = list(whole_logs("failed.log")), list(whole_logs("healthy.log"))


def of_report(text):
    return [(told["signature"], told["fix"]) for told in explain(text)]


def of_job(text):
    failed = job.first_failed([dict(ROW)], {0: text})
    return [(cause["id"], cause["fix"]) for cause in failed["causes"]]


def of_train(text):
    failed = job.first_failed([dict(ROW)], {0: text})
    lines = job._job_result.failure_lines("rank", failed, "fix_operator")
    fixes = {cause["id"]: cause["fix_operator"] for cause in failed["causes"]}
    said = [line for line in lines if line.startswith("cause: ")]
    # Each is told with the fix for the operator.
    assert len(said) == len(failed["causes"])
    assert all(cause["fix_operator"][1:] in line for cause, line in zip(failed["causes"], said))
    return list(fixes.items())


def of_nccl(text):
    reasons = _all_reduce.answer(text, rc=1)["reasons"]
    return [(reason["id"], reason["fix"]) for reason in reasons]


def of_module(text):
    found = answer(read_log(io.BytesIO(text.encode())))
    return [(cause["id"], cause["fix_operator"]) for cause in found["causes"]]


def of_command(text):
    """trainyard explain -, as JSON."""
    said, stdin = io.StringIO(), sys.stdin
    sys.stdin = types.SimpleNamespace(buffer=io.BytesIO(text.encode()))
    try:
        with contextlib.redirect_stdout(said):
            assert commands.explain(types.SimpleNamespace(file="-", json=True)) == 0
    finally:
        sys.stdin = stdin
    return [(cause["id"], cause["fix"]) for cause in json.loads(said.getvalue())["causes"]]


#: Each reader, and which fix it tells.
READERS = {
    of_report: "operator",
    of_train: "operator",
    of_nccl: "operator",
    of_module: "operator",
    of_job: "person",
    of_command: "person",
}


def sides():
    for name, ids in LINES.items():
        text = (LOGS / name).read_text(encoding="utf-8")
        yield (name, text, ids[0])
        if len(ids) > 1:
            for number, (line, expected) in enumerate(zip(text.splitlines(), ids), 1):
                yield ("%s:%d" % (name, number), line, expected)
    for index, signature in enumerate(SIGNATURES):
        for number, text in enumerate(signature.examples, 1):
            if signature.patterns:
                yield ("%s-%d:%d" % (signature.id, index, number), text, signature.id)


ALL = list(sides())
FIXES = {
    side: {
        signature.id: [
            getattr(other, side).split("{")[0].lower()
            for other in SIGNATURES
            if other.id == signature.id
        ]
        for signature in SIGNATURES
    }
    for side in ("person", "operator")
}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_the_right_cause_in_all_readers(reader):
    """Every line of the fixtures and every example of the table, between other lines and with the
    prefix of a launcher.
    """
    wrong = []
    for name, line, expected in ALL:
        if reader is of_nccl and expected in IN_GOOD_RUNS:
            continue
        told = reader("step 1 loss 0.1\n[1,0]<stderr>:%s\nstep 2 loss 0.1\n" % line)
        if not told or told[0][0] != expected:
            wrong.append((name, told[:2]))
        elif not expected.startswith(("xid", "sxid")):
            fix = told[0][1].lower()
            if not any(fix.startswith(begin) for begin in FIXES[READERS[reader]][expected]):
                wrong.append((name, fix))
    assert wrong == []
    assert len({expected for _name, _line, expected in ALL}) >= 150


def test_the_index_has_every_fixture():
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in LOGS.glob("*.txt")
    }
    assert {name: row["sha256"] for name, row in INDEX.items()} == found


def first_of(reader, logs):
    return [(name, next(iter(reader(text)), ("",))[0]) for name, _expected, text in logs]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_the_first_cause_of_whole_logs(reader):
    """Logs of several ranks, with what launchers and the other ranks print before and after."""
    logs = [log for log in FAILED if reader is not of_nccl or log[1] not in IN_GOOD_RUNS]
    assert len(logs) > 100
    assert first_of(reader, logs) == [(name, expected) for name, expected, _text in logs]


def test_logs_of_good_runs_have_no_cause():
    assert len(HEALTHY) > 40
    told = [(name, [cause["id"] for cause in causes(text)]) for name, _none, text in HEALTHY]
    assert told == [(name, []) for name, _none, _text in HEALTHY]


def test_what_good_runs_print_hides_no_cause():
    """Warnings and further tries of a run come before its failure."""
    noise = "".join(text for _name, _none, text in HEALTHY)
    # A rank that only waits, or that goes on without a GPU, has no other cause than such a message.
    weak = {"horovod-stall", "jax-without-gpu"}
    logs = [(name, first, noise + text) for name, first, text in FAILED if name not in weak]
    found = [(name, causes(text)[0]["id"]) for name, _first, text in logs]
    assert found == [(name, first) for name, first, _text in logs]


TRY = "[W1112 socket.cpp:752] [c10d] The client socket has failed to connect to [gpu-a]:29500 (errno: 111 - Connection refused).\n"
MORE = "step 1 loss 0.2\nstep 2 loss 0.1\n"


@pytest.mark.parametrize(
    "text, expected",
    [
        # A further try is told as long as nothing shows that it was successful.
        (TRY, ["master_unreachable"]),
        (MORE + TRY * 3, ["master_unreachable"]),
        (TRY * 3000, ["master_unreachable"]),
        (TRY + MORE, []),
        (MORE + TRY + "training finished\n", []),
        (TRY + MORE + "OddError: seven of nine\n", ["master_unreachable"]),
        (TRY + MORE + "Segmentation fault (core dumped)\n", ["segmentation_fault"]),
        (TRY + MORE + "ncclSystemError: \n", ["master_unreachable", "nccl_system_error"]),
        # Warnings of a consequence are left out, too, and others are told.
        ("[W TCPStore.cpp:1] [c10d] recvValue failed on SocketImpl(fd=3)\n" + MORE, []),
        ("[E TCPStore.cpp:1] [c10d] recvValue failed on SocketImpl(fd=3)\n" + MORE, ["store_lost"]),
        ("UserWarning: Found no NVIDIA driver on your system\n" + MORE, ["no_gpu"]),
        ("NCCL WARN Call to connect to 10.1.0.2<1> failed : x\n" + MORE, ["connect_failed"]),
    ],
)
def test_a_program_that_goes_on(text, expected):
    assert [cause["id"] for cause in causes(text)] == expected


def test_a_further_try_hides_no_unknown_error_of_a_job():
    failed = job.first_failed([dict(ROW)], {0: TRY + UNKNOWN + TORCHRUN})
    assert [cause["id"] for cause in failed["causes"]] == ["master_unreachable"]
    assert failed["lines"] == ["OddError: seven of nine"]
    lines = job._job_result.failure_lines("rank", failed, "fix")
    assert lines[0] == "rank 0 on host a failed first. Lines of its log that may say why:"


def test_the_reason_of_a_kill_takes_its_place():
    killed, busy = "srun: error: gpu-b: task 9: Killed\n", "EADDRINUSE: port\n"
    reason = "slurmstepd: error: Detected 2 oom_kill events in StepId=7.0.\n"
    names = ["job_out_of_memory", "out_of_memory_killed", "address_in_use"]
    assert [cause["id"] for cause in causes(killed + busy + reason)] == names
    names = ["address_in_use", "job_out_of_memory", "out_of_memory_killed"]
    assert [cause["id"] for cause in causes(busy + reason + killed)] == names
    assert [cause["id"] for cause in causes(busy + killed + reason)] == names


PREFIXES = [
    "[1,3]<stderr>:",
    "3: ",
    "[rank3]: ",
    "[3]<stderr>:",
    "[3 gpu-b] ",
    "2026-03-14T10:21:14.702 ",
    "[2026-03-14 10:21:14] ",
    "[default0]:",
    "[default0]:[rank3]: ",
    "[rank: 3] ",
    "worker-1: [rank8]: ",
    "gpu-b: ",
    "2026-03-14T10:21:14.123456789Z stderr F ",
    "Mar 14 10:21:14 gpu-b trainyard[12]: ",
    "2026-03-14 10:21:14.702 | ERROR    | __main__:main:12 - ",
    "E0314 10:21:14.702000 2041 train.py:12] ",
    "\x1b[36m(train pid=12, ip=10.0.0.2)\x1b[0m ",
    "\x1b[1;31mERROR\x1b[0m: ",
    " 42%|####      | 420/1000 [00:10<00:14, 41.0it/s]\r 42%|####      | 421/1000\r",
]
UNKNOWN = """\
step 1
Traceback (most recent call last):
  File "train.py", line 4, in <module>
    raise Odd('it failed')
OddError: seven of nine
"""


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_of_launchers(prefix):
    for signature in SIGNATURES:
        for line in signature.examples if signature.patterns else []:
            assert find_errors(prefix + line)[0]["id"] == signature.id, prefix + line
    if prefix.endswith("\r"):
        return
    # Of an unknown failure, the traceback's last line is left. A logger says of other lines that
    # they are errors.
    text = "".join(prefix + line + "\n" for line in UNKNOWN.splitlines())
    *others, shown = unknown_lines(text)
    assert shown["line"].endswith("OddError: seven of nine") and "\x1b" not in shown["line"]
    assert shown["line_number"] == 5
    assert [line["line_number"] for line in others] == ([1] if "ERROR" in prefix else [])


def test_the_lines_of_ranks_are_mixed():
    text = "".join(
        "[rank%d]: %s\n" % (rank, line.replace("seven", "rank %d, seven" % rank))
        for line in UNKNOWN.splitlines()
        for rank in (1, 0, 2)
    )
    assert [(line["line"], line["line_number"]) for line in unknown_lines(text)] == [
        ("[rank1]: OddError: rank 1, seven of nine", 13),
        ("[rank0]: OddError: rank 0, seven of nine", 14),
        ("[rank2]: OddError: rank 2, seven of nine", 15),
    ]


def test_what_is_shown_of_a_progress_bar_s_line():
    """A bar draws itself again after each CR, and a message may follow it in the same line."""
    bar = "".join("\r%3d%%|####      | %d/1000" % (step // 10, step) for step in range(1000))
    (told,) = causes("step 1\n%s\r%s" % (bar, END))
    assert (told["line"], told["line_number"]) == (END.strip(), 2)
    (shown,) = unknown_lines("step 1\n%s\rOddError: seven of nine\n" % bar)
    assert (shown["line"], shown["line_number"]) == ("OddError: seven of nine", 2)
    (told,) = causes("x" * 3000 + " " + END)
    assert told["line"].endswith(END.strip()) and len(told["line"]) < 300
    (told,) = causes(
        "\x1b[1;91mRuntimeError: \x1b[0mshape \x1b[1m'[2, 3]'\x1b[0m is invalid for input of size 5"
    )
    assert told["id"] == "shape_mismatch" and "\x1b" not in told["line"]


TORCHRUN = """\
E0314 10:21:14.702000 2041 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 2107) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-14_10:21:14
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 2107)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
TRAILERS = {
    "torchrun": TORCHRUN,
    "horovodrun": "Process 3 exit with status code 1.\nTerminating remaining workers after failure of Process 3.\nTraceback (most recent call last):\n"
    '  File "/usr/local/bin/horovodrun", line 8, in <module>\n    sys.exit(run_commandline())\n'
    "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The first process to do so was:\n"
    "Process name: 3\nExit code:    1\n",
    "mpirun": "--------------------------------------------------------------------------\nPrimary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n--------------------------------------------------------------------------\n"
    "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n"
    "  Process name: [[23,1],3]\n  Exit code:    1\n",
    "srun": "srun: error: gpu-a: task 3: Exited with exit code 1\nsrun: Terminating StepId=4711.0\n"
    "slurmstepd: error: *** STEP 4711.0 ON gpu-a CANCELLED AT 2026-04-15T19:07:03 ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    "srun: error: gpu-b: task 4: Terminated\n",
    "accelerate": 'Traceback (most recent call last):\n  File "/usr/local/bin/accelerate", line 8, in <module>\n    sys.exit(main())\n'
    "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' returned non-zero exit status 1.\n",
    "elastic, older": "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 2107) of binary: /usr/bin/python3\n"
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 2108 closing signal SIGTERM\n",
    "elastic, newer": "W0314 10:21:14.702000 2041 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 2108 closing signal SIGTERM\n"
    "W0314 10:21:14.702000 2041 torch/distributed/elastic/multiprocessing/api.py:916] Unable to shutdown process 2108 via Signals.SIGTERM\n",
    "prterun": "prterun detected that one or more processes exited with non-zero status,\nthus causing the job to be terminated. The first process to do so was:\n\n"
    "   Process name: [prterun-gpu-a-12@1,3]\n   Exit code:    1\n",
    "MPI_Abort": "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n\n"
    "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n",
    "srun of ranks": "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: gpu-b: tasks 0-3: Exited with exit code 1\n"
    "srun: error: gpu-a: tasks 4-7: Terminated\n",
    "msrun": "[ERROR] ME(12:1,MainProcess):2026-03-14 [_api.py:312] Worker process 123 exit with exception. Error code: 1.\n"
    "[WARNING] ME(12) There's worker exits with exception, kill all other workers.\n[ERROR] ME(12) Time out nodes are ['1']\n"
    "RuntimeError: Distributed job exited with exception. Please check logs in directory: log.\n",
    "pdsh": "pdsh@gpu-a: gpu-b: ssh exited with exit code 1\n",
    "ray": "(raylet) [2026-03-14 10:21:14,702 E 12 12] worker_pool.cc:550: Some workers have not registered within the timeout.\n"
    "ray.exceptions.RayTaskError(OddError): ray::train() (pid=12)\n",
    "hydra": "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
    "wandb": "wandb: Synced 5 W&B file(s), 0 media file(s)\nwandb: WARNING The new W&B backend becomes opt-out in version 0.18.0\n",
    "lightning": "Epoch 3:  42%|####      | 420/1000\rEpoch 3:  42%|####      | 421/1000\n"
    "[rank0]:[W1101 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit\n",
    "multiprocessing": "Exception ignored in atexit callback: <function _exit_function at 0x7f>\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap\n    self.run()\n',
    "deepspeed": "[2026-03-14 10:21:14,702] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 2107\n"
    "[2026-03-14 10:21:14,702] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', 'train.py'] exits with return code = 1\n",
}


@pytest.mark.parametrize("name", TRAILERS)
def test_what_launchers_print_last_changes_nothing(name):
    for signature in SIGNATURES:
        if not signature.patterns or signature.rank > CAUSE:
            continue
        text = "step 1\n%s\n%s" % (signature.examples[0], TRAILERS[name])
        assert causes(text)[0]["id"] == signature.id, signature.examples[0]
    # Nor are its lines shown if nothing is known, by any reader. What it says of the end does not
    # hide the cause.
    shown = [line["line"] for line in unknown_lines(UNKNOWN + TRAILERS[name] * 2)]
    assert shown == ["OddError: seven of nine"]
    found = answer(log_of(UNKNOWN + TRAILERS[name] * 2))
    assert [line["line"] for line in found["lines"]] == ["OddError: seven of nine"]
    told = explain(UNKNOWN + TRAILERS[name])
    assert [each["line"] for each in told if not each["signature"]] == ["OddError: seven of nine"]
    failed = job.first_failed([dict(ROW)], {0: UNKNOWN + TRAILERS[name]})
    assert failed["lines"] == ["OddError: seven of nine"]
    lines = job._job_result.failure_lines("rank", failed, "fix")
    assert lines[0] == "rank 0 on host a failed first. Lines of its log that may say why:"


def test_each_once_and_in_the_order_of_the_log():
    ssh, system, failed = (
        next(signature.examples[0] for signature in SIGNATURES if signature.id == name)
        for name in ("ssh_failed", "nccl_system_error", "process_failed")
    )
    text = "\n".join([failed, system, ssh, ".. gpu-a pid 353404: Test failure common.cu:377", ssh])
    told = find_errors(text)
    assert [(error["id"], error["line_number"]) for error in told] == [
        ("ssh_failed", 3),
        ("nccl_system_error", 2),
        ("process_failed", 1),
    ]
    assert [error["id"] for error in causes(text)] == ["ssh_failed"]
    assert [error["id"] for error in causes("\n".join([failed, system]))] == ["nccl_system_error"]
    assert find_errors(text[::-1]) == []
    # Two causes: the first one of the log is told first.
    full, busy = "OSError: [Errno 28] No space left on device", "EADDRINUSE: port"
    assert [error["id"] for error in causes(full + "\n" + busy)] == ["disk_full", "address_in_use"]
    assert [error["id"] for error in causes(busy + "\n" + full)] == ["address_in_use", "disk_full"]


def test_whose_memory_was_full():
    """As the kernel writes it: the first line is the same in both cases."""
    first = "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    of_group = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,oom_memcg=/slurm/job_7\n"
    )
    of_host = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom\n"
    assert causes(first + of_group)[0]["id"] == "job_out_of_memory"
    assert causes(first + of_host)[0]["id"] == "host_out_of_memory"
    assert causes(first)[0]["id"] == "host_out_of_memory"


def test_a_second_object_of_one_kind_is_told():
    full = "OSError: [Errno 28] No space left on device: '%s'"
    text = "\n".join(
        [full % "/data1/a.pt", full % "/data1/b.pt", full % "/scratch/c.pt"]
        + ["ModuleNotFoundError: No module named '%s'" % name for name in "abcdefg"]
    )
    assert [(error["id"], error["line_number"]) for error in causes(text)] == [
        ("disk_full", 1),
        ("disk_full", 3),
        ("python_module_missing", 4),
        ("python_module_missing", 5),
        ("python_module_missing", 6),
    ]
    shared = (
        "NCCL WARN Error: failed to extend /dev/shm/nccl-X, error: No space left on device (28)\n"
    )
    assert [error["id"] for error in causes(shared + full % "/data1/a.pt")] == [
        "shared_memory_small",
        "disk_full",
    ]


def test_figures_of_the_line_are_in_the_words():
    (told,) = find_errors("Invalid number of GPUs: 8 requested but only 4 were found.")
    assert "8" in told["cause"] and "at most 4 GPUs" in told["fix"]
    (told,) = find_errors("x: error while loading shared libraries: libnccl.so.2: cannot open")
    assert "libnccl.so.2" in told["cause"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        ("all is well\n", []),
        ("errors: 0 of 17 terrors\n", []),
        (
            "first error\n\nSegfolt: job   failed\nsecond error\nthird error\n",
            [("first error", 1), ("Segfolt: job failed", 3), ("second error", 4)],
        ),
        # Of the rank that has the first one, before those of the others.
        (
            "[rank1]: odd failure\n[rank0]: other failure\n[rank1]: odd failure\n[rank1]: second failure\n",
            [
                ("[rank1]: odd failure", 1),
                ("[rank1]: second failure", 4),
                ("[rank0]: other failure", 2),
            ],
        ),
        (
            "UserWarning: old\nwarning: odd\nit failed\n",
            [("it failed", 3), ("warning: odd", 2)],
        ),
        # torchrun alone says nothing.
        (TORCHRUN, []),
    ],
)
def test_what_is_not_known_is_told_as_it_is(text, expected):
    assert [(line["line"], line["line_number"]) for line in unknown_lines(text)] == expected


def test_no_answer_is_never_empty():
    found = answer(log_of("a\n\nb\nc\nd\ne\nf\n"))
    assert found["causes"] == []
    assert [(line["line"], line["line_number"]) for line in found["lines"]] == [
        ("b", 3),
        ("c", 4),
        ("d", 5),
        ("e", 6),
        ("f", 7),
    ]
    assert answer(log_of("")) == {"causes": [], "lines": []}


@pytest.mark.parametrize(
    "name",
    [
        "polaris-128node-512gpu",
        "efa-2xt4-tagged-nccl-info",
        "v100-2node-patched-prefix-run",
        "h100-10node-80gpu-2.17.8-many-collectives",
    ],
)
def test_good_logs_say_nothing(name):
    text = (FIXTURES / ("all_reduce_perf/%s.txt" % name)).read_text(encoding="utf-8")
    assert [error for error in find_errors(text) if error["id"] not in IN_GOOD_RUNS] == []


def test_every_good_log_stays_good():
    """Lines of complete, correct runs are no causes for nccl_all_reduce."""
    for path in sorted((FIXTURES / "all_reduce_perf").glob("*.txt")):
        if path.name.startswith("fail"):
            continue
        with contextlib.suppress(_all_reduce.ParseError):
            told = _all_reduce.answer(path.read_text(encoding="utf-8"), rc=0)
            if told["passed"]:
                assert told["reasons"] == [], path.name


END = "RuntimeError: DataLoader worker (pid 3110) is killed by signal: Bus error.\n"
STEPS = "step %d: training loss for the model failed to decrease, gradient error %d of rank\n"


def seconds(call):
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def test_100_kb_take_50_ms():
    lines = "".join(STEPS % (number, number * 7) for number in range(1250)) + END
    text = (lines + "gx1:21:27 [0] NCCL INFO Channel 00/02 :    0   1   2   3   4   5\n" * 20)[
        :100000
    ]
    causes(text)
    taken = min(seconds(lambda: causes(text))[0] for _time in range(5))
    assert taken < 0.05, taken


STEP = "x y z loss 0.123 epoch 7 "
CLIENT = "[c10d] The client socket has failed to connect to [gpu-a]:29500 (errno: 111 - Connection refused). "


@pytest.mark.parametrize("before", ["", "a: "])
def test_the_words_of_trailers_are_those_of_their_pattern(before):
    """A search for the words is only quicker."""
    for path in sorted((FIXTURES / "whole-logs").glob("*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            expected = bool(_log_causes._TRAILER.search(before + line))
            assert _log_causes._is_trailer(before + line) is expected, line


#: What a program may print by the megabyte, and what a pattern could try again at each position.
HOSTILE = {
    "lines": "".join(STEPS % (number, number * 7) for number in range(12500)).encode(),
    "bytes": bytes(range(256)) * 4096,
    "one line": b"step 1 failed, " * 65536,
    "colours": b"\x1b[31mstep 1 failed\x1b[0m \x1b[1;32m0.1\x1b[0m\n" * 20000,
    "half a colour": b"\x1b[" * 500000,
    "progress bar": b"\r 42%|####      | 420/1000 failed" * 30000,
    "blanks": b" " * 999999 + b"\n",
    "digits": b"0123456789" * 100000,
    "brackets": b"[[((<{" * 100000,
    "frames": b'  File "train.py", line 4, in f\n    error\n' * 20000,
    "beginnings": b"ibv_reg_mr failed NCCL WARN Connect to Call to No space left on device: '/\n"
    * 12000,
    "retries": ("WARNING Retrying in 5 s: connection refused " + STEP * 319 + "\n").encode() * 125,
    "clients": (CLIENT + STEP * 316 + "\n").encode() * 125,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_100_mb_take_5_s_and_little_memory(kind):
    part = HOSTILE[kind]

    class Stream:
        left, whole = 100 << 20, b""
        largest = 0

        def read(self, size):
            self.largest = max(self.largest, size)
            while len(self.whole) < size:
                self.whole += part
            found = self.whole[: min(size, self.left)]
            self.left -= len(found)
            return found

    stream = Stream()
    taken, log = seconds(lambda: read_log(stream))
    searched, _found = seconds(lambda: answer(log))
    assert taken + searched < 5, (taken, searched)
    assert len(log.text) <= 2 * _log_causes.PART_BYTES + 100
    assert stream.largest <= _log_causes.PART_BYTES


@pytest.mark.parametrize("size", [0, 1, 100, 1000, 3000, 9999])
def test_lines_are_numbered_in_the_whole_log(monkeypatch, size):
    monkeypatch.setattr(_log_causes, "PART_BYTES", 500)
    monkeypatch.setattr(_log_causes, "_CHUNK", 64)
    text = "x\n" * size + END
    number = size + 1
    for log in (read_log(io.BytesIO(text.encode())), log_of(text)):
        (found,) = causes(log)
        assert (found["id"], found["line_number"]) == ("worker_out_of_shared_memory", number)
    (found,) = causes(read_log(io.BytesIO((END + "x\n" * size).encode())))
    assert found["line_number"] == 1


def test_bytes_that_are_no_text():
    log = read_log(io.BytesIO(b"\xff\xfe\x00\n" + END.encode() + b"\xc3\n"))
    assert [(found["id"], found["line_number"]) for found in causes(log)] == [
        ("worker_out_of_shared_memory", 2)
    ]
