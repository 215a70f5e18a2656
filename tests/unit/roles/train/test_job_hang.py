# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job that does not end: when it counts as one, what its processes and NCCL say, and the sentence
that comes out.
"""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.roles.train.files import _job_hang

#: What P(_job_hang.collect) has found of real ranks that were made to hang: Gloo of PyTorch 2.13
#: and py-spy 0.4.3, recorded by record.py in this folder.
RECORDED = Path(__file__).resolve().parents[3] / "fixtures/job_hang"


# --- whether a job makes progress ---


def looks(minutes, *entries):
    """Return at which of the entries (seconds, bytes of output, lines of watchers) a job counts as
    hanging.
    """
    progress = _job_hang.Progress(minutes, 0)
    return [at for at, size, watched in entries if progress.look(at, size, watched)]


def idle(percent=0, moved=0, memory=0):
    return {"now": [[percent, 900, 24576, memory]], "sent_bytes": moved, "received_bytes": 0}


def test_a_job_without_output_work_and_bytes_is_told_once():
    assert looks(10, *((at, 5, [idle()]) for at in range(0, 3000, 60))) == [600]
    # The default of jobs.
    assert looks(0, *((at, 5, [idle()]) for at in range(0, 3000, 60))) == []


@pytest.mark.parametrize(
    "busy, hangs",
    [
        (lambda at: (at, []), []),
        (lambda at: (5, [idle(percent=97, memory=30)]), []),
        (lambda at: (5, [idle(), idle(moved=at * 1000000)]), []),
        # The kernel of a collective that waits: the GPU is in use, and its memory is not.
        (lambda at: (5, [idle(percent=100, memory=0)]), [600]),
        # What hosts send without training: logs, metrics, files of the share.
        (lambda at: (5, [idle(moved=at * 20000)]), [600]),
        # Nothing is known but the output.
        (lambda at: (5, []), [600]),
        (lambda at: (5, [{}]), [600]),
        (lambda at: (5, [{"now": [[None, None, None, None]], "sent_bytes": None}]), [600]),
        # An nvidia-smi that does not tell the use of the memory.
        (lambda at: (5, [{"now": [[97, 900, 24576]]}]), []),
    ],
)
def test_each_sign_of_progress_counts(busy, hangs):
    assert looks(10, *((at, *busy(at)) for at in range(0, 1200, 60))) == hangs


def test_a_job_that_goes_on_can_hang_again():
    def size(at):
        return 5 if at < 1200 else 6

    assert looks(10, *((at, size(at), [idle()]) for at in range(0, 3600, 60))) == [600, 1800]


# --- NCCL's RAS ---

COUNTS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def ras_json(counts, missing=(), size=None, errors=()):
    """NCCL's answer in JSON, in the form of its documentation.

    C(counts) are AllReduce operations of each rank.
    """
    return json.dumps(
        {
            "nccl_version": "2.28.9",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2026-11-30 08:00:00",
            "communicators_count": 1,
            "communicators": [
                {
                    "hash": "0x1f",
                    "secondary_hash": "0x2e:0x3d",
                    "size": size or len(counts) + len(missing),
                    "ranks_count": len(counts),
                    "missing_ranks_count": len(missing),
                    "ranks": [
                        {
                            "rank": rank,
                            "host": "10.1.0.%d" % (rank // 2 + 1),
                            "pid": 100 + rank,
                            "cuda_dev": rank % 2,
                            "nvml_dev": rank % 2,
                            "status": {
                                "init_state": 0,
                                "async_error": 6 if rank in errors else 0,
                                "finalize_called": False,
                                "destroy_flag": False,
                                "abort_flag": False,
                            },
                            "collective_counts": dict(dict.fromkeys(COUNTS, 0), AllReduce=count),
                        }
                        for rank, count in counts.items()
                    ],
                    "missing_ranks": [
                        {
                            "rank": rank,
                            "host": "10.1.0.%d" % (rank // 2 + 1),
                            "pid": 100 + rank,
                            "cuda_dev": 0,
                            "nvml_dev": 0,
                            "status": {"unresponsive": True, "considered_dead": is_dead},
                        }
                        for rank, is_dead in missing
                    ],
                }
            ],
            "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
        },
        indent=2,
    )


def ras_text(errors="", warnings="", status="RUNNING", said="OK"):
    """NCCL's answer in text, in the form of its documentation."""
    return (
        "NCCL version 2.26.2 compiled with CUDA 12.8\nCUDA runtime version 12080, driver version 12080\n\n"
        "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n"
        "      2          2            1          4        4\n\nCommunicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n"
        "    0         1         2         2         4         4  %8s  %s\n\nErrors\n======\n\n%sWarnings\n========\n\n%s"
        % (status, said, errors, warnings)
    )


BEHIND = (
    "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    "  3 ranks have launched up to operation 6650\n"
    "  Rank 3 has launched up to operation 6649 -- GPU 1 managed by process 103 on node 10.1.0.2\n\n"
)
# Of 2.24 and 2.25, and several ranks.
OLD_BEHIND = (
    "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different collective operation counts\n"
    "  2 ranks have launched up to operation 6650\n  2 ranks have launched up to operation 6649\n"
    "  Rank 2 -- GPU 0 managed by process 102 on node 10.1.0.2\n  Rank 3 -- GPU 1 managed by process 103 on node 10.1.0.2\n"
)
NEVER = (
    "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    "  3 ranks have launched up to operation 7\n"
    "  Rank 3 has not launched any operations -- GPU 1 (NVML 5) managed by process 103 on node 10.1.0.2\n\n"
)
INCOMPLETE = (
    "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 103 on node 10.1.0.2 managing GPU 1\n\n"
    "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n"
    "  Rank 3 -- GPU 1 managed by process 103 on node 10.1.0.2\n\n"
)
OLD_INCOMPLETE = (
    "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 103 on node 10.1.0.2 managing GPU 1\n\n"
    "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 3\n\n"
)
STATUS = (
    "#0-0 (9e17999afaa87dbb) MISMATCH\n  Communicator ranks have different status\n  3 ranks have status RUNNING\n"
    "  Rank 3 has status INIT -- GPU 1 managed by process 103 on node 10.1.0.2\n\n"
)
FAILED = (
    "#0-0 (27a079b828ff1a75) ERROR\n  Asynchronous error on 1 rank\n"
    "  Rank 2 reported Remote process error -- GPU 0 managed by process 102 on node 10.1.0.2\n\n"
)


@pytest.mark.parametrize(
    "text, missing, behind, errors",
    [
        (ras_json({0: 7, 1: 7}), [], [], []),
        (ras_json({0: 6650, 1: 6650, 2: 6650, 3: 6649}), [], [("AllReduce", 3, 6649, 6650)], []),
        (ras_json({0: 7, 1: 7, 2: 7}, [(3, False)]), [(3, False)], [], []),
        (ras_json({0: 7, 1: 7, 2: 7}, [(3, True)]), [(3, True)], [], []),
        (ras_json({0: 7, 1: 7}, errors=[1]), [], [], ["rank 1 has the error 6 of NCCL"]),
        (ras_text(), [], [], []),
        (ras_text(warnings=BEHIND), [], [("AllReduce", 3, 6649, 6650)], []),
        (
            ras_text(warnings=OLD_BEHIND),
            [],
            [("collective", 2, 6649, 6650), ("collective", 3, 6649, 6650)],
            [],
        ),
        (ras_text(warnings=NEVER), [], [("AllReduce", 3, 0, 7)], []),
        (ras_text(errors=INCOMPLETE), [(3, False)], [], []),
        (ras_text(errors=OLD_INCOMPLETE), [(3, False)], [], []),
        (ras_text(warnings=STATUS), [], [], []),
        (ras_text(errors=FAILED), [], [], ["rank 2 reports: Remote process error"]),
        ("{", [], [], ["NCCL's answer cannot be read"]),
        ('{"communicators": [{"size": []}]}', [], [], ["NCCL's answer cannot be read"]),
        ("", [], [], []),
    ],
)
def test_what_nccl_says(text, missing, behind, errors):
    found = _job_hang.parse_ras(text)
    assert [(each["rank"], each["is_dead"]) for each in found["missing"]] == missing
    keys = ("operation", "rank", "count", "others")
    assert [tuple(each[key] for key in keys) for each in found["behind"]] == behind
    assert found["errors"] == errors


class Nccl(socketserver.StreamRequestHandler):
    """Speaks the protocol of NCCL's RAS as its documentation and the client of NCCL have it.

    The server has C(texts) by format.
    """

    def handle(self):
        form = "text"
        for line in self.rfile:
            words = line.decode().strip().lower()
            self.server.said.append(words)
            if words.startswith("client protocol "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif words.startswith("set format ") and words.split()[-1] in self.server.texts:
                form = words.split()[-1]
                self.wfile.write(b"OK\n")
            elif words == "verbose status":
                self.wfile.write(self.server.texts[form].encode())
                return
            else:
                self.wfile.write(b"ERROR: Unknown command %s\n" % line.strip())


@pytest.fixture(name="nccl")
def _nccl():
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

    servers = []

    def start(handler=Nccl, **texts):
        server = Server(("127.0.0.1", 0), handler)
        server.texts, server.said = texts, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server, "127.0.0.1:%d" % server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_nccl_is_asked_for_json_and_an_older_one_for_text(nccl):
    server, address = nccl(text=ras_text(), json=ras_json({0: 7, 1: 7}))
    assert _job_hang.ask_ras(address) == {"text": ras_json({0: 7, 1: 7}), "said": ""}
    assert server.said == ["client protocol 2", "set format json", "verbose status"]
    _server, address = nccl(text=ras_text(warnings=BEHIND))
    assert _job_hang.ask_ras(address)["text"] == ras_text(warnings=BEHIND)
    _server, address = nccl(text=ras_text())
    assert _job_hang.ask_ras(address.replace("127.0.0.1", "localhost"))["text"] == ras_text()


class Web(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class Stopped(Nccl):
    """A process that was stopped: the kernel accepts for it, and nobody answers.

    The one of the next connection does.
    """

    def handle(self):
        self.server.connections = getattr(self.server, "connections", 0) + 1
        if self.server.connections > 1:
            super().handle()
        else:
            time.sleep(3)


def test_another_program_and_a_rank_that_is_stopped(nccl, monkeypatch):
    monkeypatch.setattr(_job_hang, "RAS_SECONDS", 0.5)
    _server, address = nccl(Web)
    assert "a different program answers there" in _job_hang.ask_ras(address)["said"]
    _server, address = nccl(Stopped, text=ras_text())
    assert _job_hang.ask_ras(address)["text"] == ras_text()
    server, address = nccl()
    server.shutdown()
    server.server_close()
    assert _job_hang.ask_ras(address) == {
        "text": "",
        "said": "NCCL does not listen at %s (RAS, since NCCL 2.24)" % address,
    }
    assert _job_hang.ask_ras("nothing")["text"] == ""


# --- which process is a rank ---


def process(pid, parent, command, signs, **more):
    program = command.split()[0].rpartition("/")[2]
    return dict(
        {
            "pid": pid,
            "parent": parent,
            "inner": pid,
            "state": "S",
            "has_terminal": False,
            "program": "python3.11" if program == "python3" else program,
            "command": command.split(),
            "signs": signs,
            "path": "",
            "ras": "",
        },
        **more,
    )


def ranks_of(*entries):
    found = _job_hang.leaders({entry["pid"]: entry for entry in entries})
    return [(kind, number, _job_hang.main_process(group)["pid"]) for kind, number, group in found]


OF_JOB = {"TRAINYARD_WORKER_INDEX": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
WORKER = {"TRAINYARD_WORKER_INDEX": "1"}


def of_rank(rank, **more):
    return dict({"RANK": str(rank), "WORLD_SIZE": "4", "GROUP_RANK": "1"}, **more)


@pytest.mark.parametrize(
    "entries, ranks",
    [
        # Playbook train: rank.py, the rank, and what loads its data.
        (
            [
                process(10, 1, "python3 /usr/local/lib/trainyard/rank python3 t.py", of_rank(2)),
                process(11, 10, "python3 t.py", of_rank(2)),
                process(12, 11, "python3 t.py", of_rank(2)),
                process(20, 1, "python3 /usr/local/lib/trainyard/rank sh -c t", of_rank(3)),
                process(21, 20, "sh -c t", of_rank(3)),
                process(22, 21, "python3 t.py", of_rank(3)),
            ],
            [("rank", 2, 11), ("rank", 3, 22)],
        ),
        # A PyTorchJob gives torchrun itself the variables of a rank.
        (
            [
                process(10, 1, "bash /jobs/7/command.sh", OF_JOB),
                process(11, 10, "python3 /usr/bin/torchrun t.py", OF_JOB),
                process(12, 11, "python3 t.py", of_rank(2, **WORKER)),
                process(13, 11, "python3 t.py", of_rank(3, **WORKER)),
            ],
            [("rank", 2, 12), ("rank", 3, 13)],
        ),
        # A PyTorchJob without a launcher. Jupyter and a terminal of the person run beside it.
        (
            [
                process(9, 1, "python3 /usr/local/lib/trainyard/services run", OF_JOB),
                process(10, 1, "bash /jobs/7/command.sh", OF_JOB),
                process(11, 10, "python3 t.py", OF_JOB),
                process(30, 1, "bash", OF_JOB, has_terminal=True),
            ],
            [("rank", 1, 11)],
        ),
        # Kind Job: no ranks are known.
        (
            [
                process(10, 1, "bash /jobs/7/command.sh", WORKER),
                process(11, 10, "timeout 5 t", WORKER),
                process(12, 11, "/opt/simulate", WORKER),
            ],
            [("worker", 1, 12)],
        ),
        # Ranks of Horovod, which sshd has started. Their worker is no rank.
        (
            [
                process(10, 1, "python3 /usr/local/bin/trainyard-launch serve", WORKER),
                process(20, 1, "python3 t.py", {"HOROVOD_RANK": "1", "RANK": "0"}),
            ],
            [("rank", 1, 20)],
        ),
        # An interactive job has nothing but its terminal.
        ([process(30, 1, "bash", WORKER, has_terminal=True)], [("worker", 1, 30)]),
        ([], []),
    ],
)
def test_the_process_of_each_rank(entries, ranks):
    assert ranks_of(*entries) == ranks


# --- where ranks wait, and the sentence ---


def dump(*frames, name="MainThread"):
    lines = ["    %s (%s:%d)" % frame for frame in frames]
    return (
        'Process 7: python3\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 7 (idle): "%s"\n%s\n'
        % (
            name,
            "\n".join(lines),
        )
    )


def entry(rank, *frames, **more):
    text = dump(*frames) if frames else ""
    return dict(
        {
            "kind": "rank",
            "rank": rank,
            "pid": 1000 + rank,
            "inner": 100 + rank,
            "command": "python3 t.py",
            "state": "S",
            "wchan": "",
            "kernel": "",
            "dump": text,
            "said": ""
            if text
            else "py-spy may not read the process (kernel.yama.ptrace_scope is 1)",
            "children": [],
        },
        **more,
    )


def hosts(*ranks, each=2, ras=None, **silent):
    """Answers of hosts with two ranks each."""
    found = []
    for begin in range(0, len(ranks), each):
        found.append(
            {
                "host": "gpu-" + "abcdefgh"[begin // each],
                "ranks": list(ranks[begin : begin + each]),
                "ras": None,
            }
        )
    if ras is not None:
        found[0]["ras"] = {"text": ras, "said": ""}
    return found + [{"host": name.replace("_", "-"), "said": said} for name, said in silent.items()]


C10D = "torch/distributed/distributed_c10d.py"
REDUCES = (
    ("all_reduce", C10D, 2810),
    ("wrapper", "torch/distributed/c10d_logger.py", 83),
    ("step", "t.py", 40),
    ("<module>", "t.py", 90),
)
GATHERS = (("all_gather_object", C10D, 3000), *REDUCES[1:])
NESTED = (("all_gather", C10D, 3600), REDUCES[1], ("all_gather_object", C10D, 3000), *REDUCES[1:])
LATER = (*REDUCES[:2], ("evaluate", "t.py", 70), REDUCES[3])
LOADS = (
    ("__getitem__", "data.py", 31),
    ("fetch", "torch/utils/data/_utils/fetch.py", 54),
    ("_next_data", "torch/utils/data/dataloader.py", 789),
    ("step", "t.py", 38),
)
SAVES = (
    ("_save", "torch/serialization.py", 900),
    ("save", "torch/serialization.py", 600),
    LOADS[3],
)
WAITS_FOR_WORKERS = (
    ("wait", "threading.py", 331),
    ("get", "queue.py", 180),
    ("_try_get_data", "torch/utils/data/dataloader.py", 1200),
    ("step", "t.py", 38),
)
BACKWARD = (("_engine_run_backward", "torch/autograd/graph.py", 824), REDUCES[2])
HOROVOD = (
    ("synchronize", "horovod/torch/mpi_ops.py", 1260),
    ("step", "horovod/torch/optimizer.py", 300),
    ("main", "h.py", 9),
)
OWN = (("simulate", "t.py", 5), ("<module>", "t.py", 90))
ACCEPTS = (("accept", "socket.py", 295), ("wait_for_others", "t.py", 12), OWN[1])
ASKS = (("connect", "socket.py", 837), ("load", "t.py", 8), OWN[1])
INIT = (
    ("_store_based_barrier", C10D, 500),
    ("_new_process_group_helper", C10D, 1400),
    ("init_process_group", C10D, 1200),
    ("main", "t.py", 3),
)


@pytest.mark.parametrize(
    "answers, said",
    [
        (
            hosts(entry(0, *REDUCES), entry(1, *REDUCES), entry(2, *REDUCES), entry(3, *LOADS)),
            "rank 3 on gpu-b is in dataloader, the others wait in all_reduce. Rank 3: __getitem__ (data.py:31)",
        ),
        (
            hosts(entry(0, *REDUCES), entry(1, *LOADS, wchan="hrtimer_nanosleep"), each=1),
            "rank 1 on gpu-b is in dataloader, rank 0 on gpu-a waits in all_reduce. Rank 1: __getitem__ (data.py:31), sleeps",
        ),
        (
            hosts(
                entry(0, *REDUCES),
                entry(
                    1,
                    *WAITS_FOR_WORKERS,
                    children=[{"state": "D", "wchan": "rpc_wait_bit_killable"}] * 2,
                ),
                each=1,
            ),
            "rank 1 on gpu-b is in dataloader, rank 0 on gpu-a waits in all_reduce. "
            "Rank 1: step (t.py:38), 2 processes of it wait for the file server (NFS)",
        ),
        (
            hosts(entry(0, *NESTED), entry(1, *NESTED), entry(2, *NESTED), entry(3, *REDUCES)),
            "rank 3 on gpu-b waits in all_reduce, the others wait in all_gather_object: they do not call the same operations",
        ),
        (
            hosts(entry(0, *REDUCES), entry(1, *LATER), each=1),
            "both ranks wait in all_reduce, but at different lines: rank 0 on gpu-a at step (t.py:40), rank 1 on gpu-b at evaluate (t.py:70)",
        ),
        (
            hosts(*(entry(rank, *REDUCES) for rank in range(4))),
            "all 4 ranks wait in all_reduce. None is behind, so check the network between the hosts",
        ),
        (
            hosts(
                *(entry(rank, *BACKWARD) for rank in range(4)),
                ras=ras_json({0: 6650, 1: 6650, 2: 6650, 3: 6649}),
            ),
            "all 4 ranks wait in backward. Rank 3 on gpu-b has started 6649 AllReduce operations, others 6650",
        ),
        (
            hosts(*(entry(rank, *BACKWARD) for rank in range(4)), ras=ras_text(errors=INCOMPLETE)),
            "all 4 ranks wait in backward. NCCL has no answer from rank 3 on gpu-b",
        ),
        (
            hosts(*(entry(rank, *BACKWARD) for rank in range(3)), entry(3, state="T")),
            "rank 3 on gpu-b is stopped by a signal, the others wait in backward. py-spy may not read the process (kernel.yama.ptrace_scope is 1)",
        ),
        (
            hosts(
                *(entry(rank, *BACKWARD) for rank in range(2)),
                *(entry(rank, state="T") for rank in (2, 3)),
            ),
            "ranks 2 and 3 on gpu-b are stopped by a signal, the others wait in backward. "
            "py-spy may not read the process (kernel.yama.ptrace_scope is 1)",
        ),
        (
            hosts(
                *(entry(rank, *BACKWARD) for rank in range(2)),
                *(entry(rank, *LATER, state="T") for rank in (2, 3)),
            ),
            "ranks 2 and 3 on gpu-b are stopped by a signal, in evaluate (t.py:70), the others wait in backward",
        ),
        # Each word of the kernel for two ranks, and for one.
        (
            hosts(
                *(entry(rank, state="Z") for rank in (0, 1)),
                *(entry(rank, wchan="nfs_wait_bit") for rank in (2, 3)),
                *(entry(rank, wchan="hrtimer_nanosleep") for rank in (4, 5)),
                entry(6, state="t"),
            ),
            "rank 6 on gpu-d is stopped by a debugger, ranks 0 and 1 on gpu-a have ended, "
            "ranks 2 and 3 on gpu-b wait for the file server (NFS), ranks 4 and 5 on gpu-c sleep. "
            "py-spy may not read the process (kernel.yama.ptrace_scope is 1)",
        ),
        (
            hosts(
                entry(0, *REDUCES),
                entry(1, *WAITS_FOR_WORKERS, children=[{"state": "Z", "wchan": ""}]),
            ),
            "rank 1 on gpu-a is in dataloader, rank 0 on gpu-a waits in all_reduce. Rank 1: step (t.py:38), 1 process of it has ended",
        ),
        (
            hosts(*(entry(rank, *BACKWARD) for rank in range(2)), ras=ras_json({0: 2, 1: 1})),
            "both ranks wait in backward. Rank 1 on gpu-a has started 1 AllReduce operation, others 2",
        ),
        (
            hosts(
                entry(0, *HOROVOD),
                entry(1, *SAVES, state="D", wchan="nfs_wait_bit_killable"),
                each=1,
            ),
            "rank 1 on gpu-b is in checkpoint, rank 0 on gpu-a waits in synchronize. Rank 1: step (t.py:38), waits for the file server (NFS)",
        ),
        (
            hosts(entry(0, *INIT), entry(1, *OWN), entry(2, *INIT), entry(3, *OWN)),
            "ranks 1 and 3 are in simulate, the others wait in init_process_group. Rank 1: simulate (t.py:5)",
        ),
        (
            hosts(
                entry(0, *REDUCES),
                entry(1, *REDUCES),
                gpu_b="ssh: connect to host 10.0.0.2 port 12345: No route to host",
            ),
            "both ranks wait in all_reduce. None is behind, so check the network between the hosts. No answer from host gpu-b",
        ),
        (
            hosts(entry(0), entry(1), each=1),
            "where ranks 0 and 1 wait is not known. py-spy may not read the process (kernel.yama.ptrace_scope is 1)",
        ),
        (
            hosts(entry(0, wchan="futex_wait_queue"), entry(1, wchan="pipe_read"), each=1),
            "where rank 0 on gpu-a waits is not known, rank 1 on gpu-b waits for a pipe. py-spy may not read the process (kernel.yama.ptrace_scope is 1)",
        ),
        (hosts(entry(0, *OWN)), "rank 0 on gpu-a is in simulate. Rank 0: simulate (t.py:5)"),
        (
            hosts(entry(0, *ACCEPTS)),
            "rank 0 on gpu-a is in wait_for_others. Rank 0: wait_for_others (t.py:12)",
        ),
        (
            hosts(entry(0, *ASKS)),
            "rank 0 on gpu-a is in a network request. Rank 0: load (t.py:8)",
        ),
        (hosts(gpu_a="it did not answer within 60 s"), "no answer from host gpu-a"),
        ([{"host": "gpu-a", "ranks": [], "ras": None}], "the job has no process of a rank"),
    ],
)
def test_the_sentence(answers, said):
    assert _job_hang.sentence(answers) == said


@pytest.mark.parametrize(
    "kind, said",
    [
        (
            "sleep",
            "rank 1 on gpu-b is in wait_for_lock, rank 0 on gpu-a waits in all_reduce. Rank 1: wait_for_lock (record.py:43), sleeps",
        ),
        (
            "operations",
            "rank 0 on gpu-a waits in all_reduce, rank 1 on gpu-b waits in recv: they do not call the same operations",
        ),
        (
            "lines",
            "both ranks wait in all_reduce, but at different lines: rank 0 on gpu-a at reduce (record.py:46), rank 1 on gpu-b at rank_of (record.py:61)",
        ),
        (
            "load",
            "rank 1 on gpu-b is in dataloader, rank 0 on gpu-a waits in all_reduce. Rank 1: __getitem__ (record.py:39), sleeps",
        ),
        (
            "workers",
            "rank 1 on gpu-b is in dataloader, rank 0 on gpu-a waits in all_reduce. "
            "Rank 1: rank_of (record.py:67), a process of it: __getitem__ (record.py:39), sleeps",
        ),
        (
            "backward",
            "rank 1 on gpu-b is in wait_for_lock, rank 0 on gpu-a waits in backward. Rank 1: wait_for_lock (record.py:43), sleeps",
        ),
        (
            "pipe",
            "rank 1 on gpu-b is in rank_of, rank 0 on gpu-a waits in all_reduce. Rank 1: rank_of (record.py:63), waits for a pipe",
        ),
        (
            "init",
            "rank 1 on gpu-b is in wait_for_lock, rank 0 on gpu-a waits in init_process_group. Rank 1: wait_for_lock (record.py:43), sleeps",
        ),
        (
            "stopped",
            "rank 1 on gpu-b is stopped by a signal, in rank_of (record.py:65), rank 0 on gpu-a waits in all_reduce",
        ),
    ],
)
def test_the_sentence_of_real_ranks(kind, said):
    ranks = json.loads((RECORDED / (kind + ".json")).read_text(encoding="utf-8"))
    answers = [
        {"host": "gpu-" + "ab"[rank["rank"]], "ranks": [rank], "ras": None} for rank in ranks
    ]
    assert _job_hang.sentence(answers) == said
    assert "--- rank 1\nprocess " in _job_hang.report(answers, said)


def test_the_sentence_of_many_ranks_is_one_line():
    ranks = [entry(rank, *(LOADS if rank % 3 else REDUCES)) for rank in range(512)]
    said = _job_hang.sentence(hosts(*ranks, each=64))
    assert said.startswith("ranks 1, 2, 4, 5 and 337 more are in dataloader, the others wait in")
    assert len(said) < 300


def test_nothing_that_a_program_has_chosen_reaches_a_terminal():
    bad = (("evil\x1b[2J", "t\x07.py", 1),)
    answers = hosts(entry(0, *bad, command="python3 \x1b]0;x\x07"))
    text = _job_hang.report(answers, _job_hang.sentence(answers))
    assert not [sign for sign in text if sign < " " and sign != "\n"]
    assert "evil?[2J" in text


def test_a_thread_that_trains_counts_if_the_main_one_only_waits():
    text = dump(("wait", "threading.py", 331), ("main", "t.py", 9))
    text += 'Thread 8 (idle): "Thread-1"\n' + "\n".join(
        "    %s (%s:%d)" % frame for frame in REDUCES
    )
    found = _job_hang.place(entry(0, dump=text))
    assert (found["kind"], found["label"]) == (_job_hang.WAITS, "all_reduce")


# --- for real ---


@pytest.fixture(name="sleepers")
def _sleepers(tmp_path):
    """Two ranks that hang: one sleeps, and one waits for a pipe. Their job has the ID of
    this test.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    job = "unit-%d" % os.getpid()
    programs = {0: ["sleep", "300"], 1: ["cat", str(pipe)]}
    children = [
        subprocess.Popen(
            command,
            env=dict(os.environ, TRAINYARD_JOB_ID=job, RANK=str(rank), WORLD_SIZE="2"),
            stdin=subprocess.DEVNULL,
        )
        for rank, command in programs.items()
    ]
    yield job, children
    for child in children:
        child.kill()
        child.wait()


def test_the_kernel_says_where_processes_wait(sleepers):
    job, children = sleepers
    deadline = time.monotonic() + 10
    said = ""
    while not said.startswith("rank 0 on here sleeps, rank 1 on here waits for a pipe"):
        assert time.monotonic() < deadline, said
        found = _job_hang.collect(job)
        said = _job_hang.sentence([dict(found, host="here")])
    assert [each["pid"] for each in found["ranks"]] == [child.pid for child in children]
    assert _job_hang.collect("unit") == {"ranks": [], "ras": None}


def test_the_workers_answer_by_files(sleepers, tmp_path):
    """As runner, worker and trainyard do. The second worker never answers."""
    job, _children = sleepers
    ended = threading.Event()

    def worker():
        while not ended.wait(0.1):
            _job_hang.answer(str(tmp_path), job, 0)

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    try:
        answers = _job_hang.ask(str(tmp_path), ["gpu-a", "gpu-b"], 4)
    finally:
        ended.set()
        thread.join(10)
    said = _job_hang.tell(str(tmp_path), answers)
    assert said.startswith("rank 0 on gpu-a sleeps, rank 1 on gpu-a waits for a pipe")
    assert "No answer from host gpu-b" in said
    text = (tmp_path / _job_hang.FILE).read_text(encoding="utf-8")
    assert text.splitlines()[0] == said
    assert "--- rank 1\nprocess " in text and "its worker did not answer within 4 s" in text
    assert (tmp_path / _job_hang.FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "found", [{}, {"ranks": 5}, {"ranks": [{}]}, {"ranks": [{"rank": "x", "kind": []}]}, {"ras": 7}]
)
def test_an_answer_that_is_none(tmp_path, found):
    def lie():
        path = tmp_path / _job_hang.ASKED
        while not path.exists():
            time.sleep(0.01)
        mark = path.read_text(encoding="utf-8").strip()
        (tmp_path / "hang.0.json").write_text(json.dumps(dict(found, asked=mark)), encoding="utf-8")

    thread = threading.Thread(target=lie, daemon=True)
    thread.start()
    answers = _job_hang.ask(str(tmp_path), ["gpu-a"], 5)
    thread.join(5)
    assert _job_hang.tell(str(tmp_path), answers)


def test_why_py_spy_says_nothing(tmp_path, monkeypatch):
    program = tmp_path / "py-spy"
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = process(os.getpid(), 1, "python3 t.py", {}, path="")
    assert "neither on the host nor in the image" in _job_hang._dump(alone, str(tmp_path), 1e12)[1]
    for code, said in (
        (1, "Permission Denied: Try running again with elevated permissions"),
        (1, "Error: Failed to find python version from target process"),
    ):
        program.write_text("#!/bin/sh\necho '%s' >&2\nexit %d\n" % (said, code), encoding="utf-8")
        program.chmod(0o755)
        told = _job_hang._dump(alone, str(tmp_path), 1e12)[1]
        assert told == (
            "py-spy may not read the process" if "Permission" in said else "py-spy: " + said
        )
    scope = tmp_path / "sys/kernel/yama"
    scope.mkdir(parents=True)
    (scope / "ptrace_scope").write_text("1\n", encoding="ascii")
    program.write_text("#!/bin/sh\necho 'Operation not permitted' >&2\nexit 1\n", encoding="utf-8")
    told = _job_hang._dump(alone, str(tmp_path), 1e12)[1]
    assert told == "py-spy may not read the process (kernel.yama.ptrace_scope is 1)"


def test_a_program_that_is_not_python_needs_no_py_spy(tmp_path, monkeypatch):
    """all_reduce_perf: nobody is sent to install what cannot help."""
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = process(os.getpid(), 1, "all_reduce_perf -b 8", {}, path="")
    told = _job_hang._dump(alone, str(tmp_path), 1e12)
    said = "the program all_reduce_perf is not Python, so py-spy cannot say where it waits"
    assert told == ("", said)


def test_py_spy_of_the_image_is_taken(tmp_path, monkeypatch):
    """Its path is one below the root of the container's process."""
    monkeypatch.setenv("PATH", "/nowhere")
    bin_ = tmp_path / "77/root/opt/bin"
    bin_.mkdir(parents=True)
    program = bin_ / "py-spy"
    program.write_text(
        '#!/bin/sh\necho "Thread 1 (idle)"\necho "    f (t.py:1)"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    alone = process(77, 1, "python3 t.py", {}, path="/usr/bin:/opt/bin")
    assert _job_hang._dump(alone, str(tmp_path), 1e12) == ("Thread 1 (idle)\n    f (t.py:1)\n", "")


@pytest.mark.parametrize("has_own", [True, False])
def test_py_spy_of_a_rootless_container(tmp_path, monkeypatch, has_own):
    """Files of the container can be opened in its user namespace only, also by the person. A
    program of the image runs inside of the container, by its path and number there.
    """
    monkeypatch.setenv("PATH", "%s:/usr/bin:/bin" % tmp_path)
    for name, number in (("self", 1), ("77", 2)):
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns/user").symlink_to("user:[%d]" % number)
    image = tmp_path / "image"
    image.mkdir()
    said = '#!/bin/sh\ntest "$ENTERED" || { echo Permission denied >&2; exit 1; }\necho "Thread 1 of %s, $4"\n'
    for name, path in (("host", tmp_path / "py-spy"), ("image", image / "py-spy")):
        path.write_text(said % name, encoding="utf-8")
        path.chmod(0o755 if has_own or name == "image" else 0o644)
    enters = tmp_path / "nsenter"
    enters.write_text(
        '#!/bin/sh\necho "$@" >> "%s/words"\n'
        'while test "$1" != --target; do shift; done; shift 2\nENTERED=1 exec "$@"\n' % tmp_path,
        encoding="utf-8",
    )
    enters.chmod(0o755)
    monkeypatch.delenv("ENTERED", raising=False)
    path = "/nowhere:%s\n/etc:%s" % (tmp_path, image)
    alone = dict(process(77, 1, "python3 t.py", {}, path=path), inner=5)
    told = _job_hang._dump(alone, str(tmp_path), 1e12)
    assert told == ("Thread 1 of %s\n" % ("host, 77" if has_own else "image, 5"), "")
    words = (tmp_path / "words").read_text(encoding="utf-8").splitlines()
    inside = "--user --mount --pid --preserve-credentials --target 77 "
    own = "--user --preserve-credentials --target 77 %s/py-spy dump " % tmp_path
    assert words[0].startswith(inside + "sh -c ")
    assert words[-1].startswith(own if has_own else "%s%s/py-spy dump " % (inside, image))


def test_what_was_not_looked_at_is_not_claimed():
    told = "rank 1 on b is in load, rank 0 on a waits in all_reduce"
    end = ": %s. See /share/j/hang.txt" % told
    words = [_job_hang.warning(minutes, told, "/share/j") for minutes in (0, 1, 10)]
    watched = "no output, no work of its GPUs and no bytes on its network for "
    assert words == ["at its end" + end, watched + "1 minute" + end, watched + "10 minutes" + end]
    assert _job_hang.warning(10, told, "/share/j", False) == "no output for 10 minutes" + end


def test_the_program_of_a_container_prints_one_line():
    code = "import _job_hang; _job_hang.main('no-such-job', True)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=os.path.dirname(_job_hang.__file__),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout) == {"ranks": [], "ras": None}


@pytest.mark.parametrize(
    "text",
    [
        '{"communicators":[{"size":1e999}]}',
        '{"a":' + "[" * 100000,
        '{"communicators":[{"size":-1e999}]}',
    ],
    ids=["infinite", "nested", "minus-infinite"],
)
def test_an_answer_that_no_nccl_gives_ends_no_job(text):
    found = _job_hang.parse_ras(text)
    assert found["missing"] == [] and found["behind"] == []


def test_sentences_of_an_answer_have_no_control_characters():
    found = _job_hang.parse_ras(ras_json({0: 7, 1: 7}))
    found["errors"] = ["rank 1 reports: a\x1b[2Jb"]
    told = _job_hang._of_ras([], found)
    assert "\x1b" not in " ".join(told) and "rank 1 reports: a" in " ".join(told)
