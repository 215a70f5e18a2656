# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""trainyard-launch mindspore: what each rank is given, and that none is left when a rank, the
launcher or another host ends. The ranks are real processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _launchers
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _rank_table
from ansible_collections.trainyard.gpu.roles.job_container.files import trainyard_launch as launch

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = ROOT / "roles/job_container/files/trainyard_launch.py"
HOST = socket.gethostname()


def job(*slots, index=0, **changes):
    entries = [
        {"address": "10.0.0.%d" % number, "slots": count, "local": 0}
        for number, count in enumerate(slots or (2, 2), 1)
    ]
    return dict(
        {
            "job": "7",
            "step": "0",
            "index": index,
            "count": len(entries),
            "entries": entries,
            "ports": {"ssh": 1, "master": 29500, "control": 3},
            "interface": "eth0",
            "keys": {},
        },
        **changes,
    )


def devices(asked, *lists, **changes):
    for entry, numbers in zip(asked["entries"], lists):
        entry["devices"] = list(numbers)
    return dict(asked, **changes)


def table(form="1.0", hosts=2, count=8):
    """As module hccl_rank_table writes it."""
    return _rank_table.rank_table(
        [
            {
                "name": "h%d" % number,
                "server_id": "10.0.0.%d" % number,
                "devices": [
                    {"id": device, "address": "192.168.%d.%d" % (number, device + 1)}
                    for device in range(count)
                ],
            }
            for number in range(1, hosts + 1)
        ],
        form,
    )


# --- decisions ---


@pytest.mark.parametrize(
    "slots, ranks",
    [
        ((8, 8), [range(8), range(8, 16)]),
        ((8,), [range(8)]),
        ((4, 4, 4), [range(4), range(4, 8), range(8, 12)]),
    ],
)
def test_ranks_are_unique_over_all_servers(slots, ranks):
    """Source 002 gives both servers the ranks 0 to 7. P3.2; with one server 8 ranks."""
    given = []
    for index, count in enumerate(slots):
        asked = job(*slots, index=index)
        each = [
            launch.rank_environment(
                launch.mindspore_environment({}, asked), asked, local, "/t.json"
            )
            for local in range(count)
        ]
        assert [int(environment["RANK_ID"]) for environment in each] == list(ranks[index])
        assert [environment["DEVICE_ID"] for environment in each] == [
            str(local) for local in range(count)
        ]
        assert {(environment["RANK_SIZE"], environment["DEVICE_NUM"]) for environment in each} == {
            (str(sum(slots)), str(count))
        }
        given += [environment["RANK_ID"] for environment in each]
    assert len(set(given)) == sum(slots)


def test_both_names_of_the_rank_table_are_one_file():
    """MindSpore before 2 reads MINDSPORE_HCCL_CONFIG_PATH first, then RANK_TABLE_FILE."""
    inherited = {
        "RANK_TABLE_FILE": "/old",
        "MINDSPORE_HCCL_CONFIG_PATH": "/older",
        "MS_ROLE": "MS_WORKER",
        "MS_SCHED_HOST": "10.9.9.9",
        "A": "b",
    }
    found = launch.rank_environment(
        launch.mindspore_environment(inherited, job()), job(), 0, "/t.json"
    )
    assert (
        found["RANK_TABLE_FILE"] == found["MINDSPORE_HCCL_CONFIG_PATH"] == "/t.json"
        and found["A"] == "b"
    )
    # It would take its connections from there.
    assert not {"MS_ROLE", "MS_SCHED_HOST"} & set(found)


def test_msrun_gets_nothing_of_a_rank_table():
    inherited = dict.fromkeys(launch.OF_RANK_TABLE, "x")
    assert not set(launch.mindspore_environment(inherited, job())) & {
        "RANK_TABLE_FILE",
        "MINDSPORE_HCCL_CONFIG_PATH",
        "RANK_ID",
        "DEVICE_ID",
    }


def test_the_command_of_msrun():
    asked = job(4, 4, index=1, seconds=90)
    assert _launchers.msrun(asked, "/w/host-b", ["python", "launch", "rank", "x"]) == [
        "msrun",
        "--worker_num=8",
        "--local_worker_num=4",
        "--master_addr=10.0.0.1",
        "--master_port=29500",
        "--node_rank=1",
        "--log_dir=/w/host-b/msrun",
        "--join=True",
        "--cluster_time_out=90",
        "python",
        "launch",
        "rank",
        "x",
    ]
    assert "--master_addr=169.254.1.1" in _launchers.msrun(
        dict(asked, master_address="169.254.1.1"), "/w", []
    ), "of the fabric"
    assert "--cluster_time_out=600" in _launchers.msrun(job(), "/w", [])


def test_log_levels_and_addresses_of_a_rank():
    """slog.conf of source 002 has become two variables."""
    found = launch.mindspore_environment({}, job(index=1, seconds=300))
    assert (found["GLOG_v"], found["ASCEND_GLOBAL_LOG_LEVEL"], found["HCCL_CONNECT_TIMEOUT"]) == (
        "3",
        "3",
        "300",
    )
    assert found["HCCL_IF_IP"] == found["MS_WORKER_IP"] == "10.0.0.2"
    found = launch.mindspore_environment(
        {"GLOG_v": "1", "ASCEND_GLOBAL_LOG_LEVEL": "0", "RANK_SIZE": "99", "DEVICE_NUM": "99"},
        job(),
    )
    assert (found["GLOG_v"], found["ASCEND_GLOBAL_LOG_LEVEL"]) == ("1", "0"), (
        "the user's values win"
    )
    assert (found["RANK_SIZE"], found["DEVICE_NUM"]) == ("4", "2"), (
        "those that number the ranks do not"
    )
    on_fabric = job()
    on_fabric["entries"][0]["fabric_address"] = "169.254.1.1"
    assert launch.mindspore_environment({}, on_fabric)["MS_WORKER_IP"] == "169.254.1.1"


@pytest.mark.parametrize(
    "asked, has_msrun, path, ranks, start",
    [
        ("auto", True, "", 4, "msrun"),
        ("auto", True, "/t", 4, "msrun"),
        ("auto", False, "/t", 4, "rank_table"),
        ("rank_table", True, "/t", 4, "rank_table"),
        ("msrun", True, "/t", 4, "msrun"),
        ("auto", False, "", 1, "rank_table"),
        ("rank_table", True, "", 1, "rank_table"),
    ],
)
def test_msrun_where_mindspore_has_it(asked, has_msrun, path, ranks, start):
    assert launch.mindspore_start(asked, has_msrun, path, ranks) == start


@pytest.mark.parametrize(
    "asked, has_msrun, path, said",
    [
        ("msrun", False, "/t", "--start=msrun: the image has no msrun"),
        ("auto", False, "", "the image has no msrun, and there is no rank table; name one"),
        ("rank_table", True, "", "--start=rank_table was requested, and there is no rank table"),
    ],
)
def test_no_way_to_connect_the_ranks(asked, has_msrun, path, said):
    with pytest.raises(launch.Refused, match=said):
        launch.mindspore_start(asked, has_msrun, path, 2)


def test_options_end_at_the_command():
    assert launch.mindspore_options(
        ["--start=msrun", "--rank-table=/t", "train.py", "--folder=x"]
    ) == (
        {"start": "msrun", "rank-table": "/t", "folder": ""},
        ["python3", "train.py", "--folder=x"],
    )
    assert launch.mindspore_options(["--", "bash", "-c", "x"])[1] == ["bash", "-c", "x"]
    for words, said in (
        (["--ranks=2", "x"], "'--ranks=2' is not an option"),
        (["-v", "x"], "'-v' is not an option"),
        (["--start=mpi", "x"], "'mpi' is not possible"),
        (["--start=auto"], "there is no command"),
    ):
        with pytest.raises(launch.Refused, match=said):
            launch.mindspore_options(words)


@pytest.mark.parametrize(
    "asked, said",
    [
        (job(4, 2), "as many ranks on each host, but they have 10.0.0.1 4, 10.0.0.2 2"),
        (
            job(
                entries=[
                    {"address": "10.0.0.1", "slots": 1, "local": 0},
                    {"address": "10.0.0.1", "slots": 1, "local": 1},
                ]
            ),
            "one worker per host",
        ),
    ],
)
def test_what_would_number_ranks_twice_is_refused(asked, said):
    with pytest.raises(launch.Refused, match=said):
        launch.check_ranks(asked)


@pytest.mark.parametrize(
    "chip, numbers, good",
    [
        ("910", [0, 1], True),
        ("910", [4, 5, 6, 7], True),
        ("910A", range(8), True),
        ("910", [2, 3, 4, 5], False),
        ("910ProB", [0, 4], False),
        ("910B3", [0, 4], True),
        ("310P", [0, 4], True),
        ("", [0, 4], True),
    ],
)
def test_devices_of_a_910_are_of_one_ring(chip, numbers, good):
    if good:
        launch.check_rings({"10.0.0.1": numbers}, chip)
    else:
        with pytest.raises(
            launch.Refused,
            match="host 10.0.0.1: NPUs .* of an Ascend %s cannot work together" % chip,
        ):
            launch.check_rings({"10.0.0.1": numbers}, chip)


@pytest.mark.parametrize("form", ["legacy", "1.0"])
def test_the_table_of_all_servers_stays_what_it_is(form):
    for asked in (job(8, 8), devices(job(8, 8), range(8), range(8))):
        assert json.dumps(launch.job_table(table(form), asked)) == json.dumps(table(form))


def test_a_job_on_npus_4_to_7_of_one_server():
    """device_id is the one of the host; DEVICE_ID counts the devices of the container."""
    asked = job(
        4, entries=[{"address": "10.0.0.2", "slots": 4, "local": 0, "devices": [4, 5, 6, 7]}]
    )
    found = launch.job_table(table(), asked)
    assert found["server_count"] == "1" and found["server_list"] == [
        {
            "server_id": "10.0.0.2",
            "host_nic_ip": "reserve",
            "device": [
                {
                    "device_id": str(number),
                    "device_ip": "192.168.2.%d" % (number + 1),
                    "rank_id": str(number - 4),
                }
                for number in range(4, 8)
            ],
        }
    ]
    assert launch.rank_environment({}, asked, 0, "/t")["DEVICE_ID"] == "0"
    legacy = launch.job_table(table("legacy"), asked)
    assert (
        legacy["group_list"][0]["instance_count"],
        legacy["group_list"][0]["server_num"],
        legacy["para_plane_nic_name"],
    ) == ("4", "1", ["eth4", "eth5", "eth6", "eth7"])
    assert [instance["rank_id"] for instance in legacy["group_list"][0]["instance_list"]] == [
        "0",
        "1",
        "2",
        "3",
    ]


def test_ranks_follow_the_order_of_the_workers():
    asked = job(2, 2)
    asked["entries"].reverse()
    found = launch.job_table(table(count=2), asked)
    assert [
        (server["server_id"], [device["rank_id"] for device in server["device"]])
        for server in found["server_list"]
    ] == [("10.0.0.2", ["0", "1"]), ("10.0.0.1", ["2", "3"])]


@pytest.mark.parametrize(
    "found, asked, said",
    [
        (
            table(hosts=1),
            job(8, 8),
            "the rank table has devices none of host 10.0.0.2, but the job needs 8 there",
        ),
        (
            table(count=4),
            devices(job(2, 2), [4, 5], [4, 5]),
            "has devices 0, 1, 2, 3 of host 10.0.0.1, but the job needs 4, 5 there",
        ),
        (table(), job(4, 4), "the job needs 4 there"),
        (dict(table(), status="initializing"), job(8, 8), "status is 'initializing'"),
        ({"status": "completed"}, job(), "has neither the form"),
        ([], job(), "has neither the form"),
        (
            table("legacy"),
            devices(job(2, 2), [3, 4], [3, 4]),
            "NPUs 3, 4 of an Ascend 910 cannot work together",
        ),
    ],
)
def test_a_table_that_does_not_fit(found, asked, said):
    with pytest.raises(launch.Refused, match=said):
        launch.job_table(found, asked)


def test_a_rank_that_starts_while_processes_are_listed_has_not_ended(tmp_path, monkeypatch):
    def listed():
        """A rank of this process ID starts after the list was made."""
        (tmp_path / "pid.0").write_text("4711", encoding="ascii")
        return {1: 0}

    monkeypatch.setattr(launch, "parents", listed)
    ranks = launch.Ranks(job(1), {"records": str(tmp_path), "folder": str(tmp_path)}, str(tmp_path))
    ranks.look()
    assert [each["end"] for each in ranks.ranks] == [None] and launch.failures(ranks.ranks) == []
    # It is not in a later list.
    ranks.look()
    assert ranks.ranks[0]["end"] and launch.failures(ranks.ranks) == ranks.ranks


def test_the_rank_that_failed_is_named_and_not_those_that_msrun_has_killed():
    def ended(rank, code, end=1.0):
        return {"rank": rank, "code": code, "end": end}

    assert [
        each["rank"]
        for each in launch.failures(
            [ended(0, None), ended(1, 143), ended(2, 0), ended(3, 3, 2.0), ended(4, 0, None)]
        )
    ] == [3]
    assert [
        each["rank"]
        for each in launch.failures([ended(0, None, 2.0), ended(1, None, 1.0), ended(2, 0)])
    ] == [1]
    assert launch.failures([ended(0, 0), ended(1, None, None)]) == []


def test_ranks_that_have_not_trained_the_same():
    assert launch.common_report(
        {0: {"checksum": "a", "metrics": {"x": 1}}, 1: {"checksum": "a"}}
    ) == ({"checksum": "a", "metrics": {"x": 1}}, "")
    assert launch.common_report({0: {}, 1: {}}) == ({}, "")
    assert launch.common_report({2: {"checksum": "a" * 64}, 3: {}})[1].endswith(
        "rank 2 has aaaaaaaaaaaa, rank 3 has none"
    )


# --- real ranks ---

#: Of MindSpore's msrun: a scheduler on the first host, workers in sessions of their own, and no
#: answer to SIGTERM.
MSRUN = (
    """#!%s
import os, signal, subprocess, sys, time
words = sys.argv[1:]
options = {}
while words[0].startswith("--"):
    name, _equal, value = words.pop(0)[2:].partition("=")
    options[name] = value
assert words[0] in ("python", "python3"), words
first, count = int(options["node_rank"]) * int(options["local_worker_num"]), int(options["local_worker_num"])
os.makedirs(options["log_dir"], exist_ok=True)
assert not {"RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH", "RANK_ID", "DEVICE_ID"} & set(os.environ)
def start(name, **more):
    with open(options["log_dir"] + "/" + name, "w") as log:
        return subprocess.Popen(words, env=dict(os.environ, RANK_SIZE=options["worker_num"], **more), stdout=log, stderr=log, start_new_session=True)
scheduler = start("scheduler.log", RANK_ID="0", MS_ROLE="MS_SCHED") if options["node_rank"] == "0" else None
workers = [start("worker_%%d.log" %% (first + each), RANK_ID=str(first + each), DEVICE_ID=str(each), MS_ROLE="MS_WORKER") for each in range(count)]
failed = False
while any(worker.poll() is None for worker in workers) and not failed:
    failed = any(worker.poll() for worker in workers)
    time.sleep(0.05)
for worker in workers:
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
if scheduler:
    scheduler.wait()
sys.exit(1 if failed or any(worker.wait() for worker in workers) else 0)
"""
    % sys.executable
)

#: A rank. Without MindSpore it also is the scheduler, which ends with the file that the last rank
#: has written.
TRAIN = """
import json, os, subprocess, sys, time
what, shared = sys.argv[1], sys.argv[2]
if os.environ.get("MS_ROLE") == "MS_SCHED":
    while not os.path.exists(shared + "/done"):
        time.sleep(0.05)
    sys.exit(0)
rank = os.environ["RANK_ID"]
print("here", rank, flush=True)
import helper
with open(shared + "/seen." + rank, "w") as stream:
    json.dump({"environment": dict(os.environ), "folder": os.getcwd(), "helper": helper.__file__}, stream)
with open(os.environ["TRAINYARD_RANK_REPORT"], "w") as stream:
    json.dump({"checksum": what + (rank if what == "differ" else "")}, stream)
if what == "exit" and rank == "3":
    sys.exit(3)
if what == "kill" and rank == "3":
    os.kill(os.getpid(), 9)
if what in ("exit", "kill", "wait"):
    time.sleep(1000)
while not all(os.path.exists(shared + "/seen.%d" % each) for each in range(int(sys.argv[3]), int(os.environ["RANK_SIZE"]))):
    time.sleep(0.05)
if what == "slow" and rank in "01":
    time.sleep(3)
if what == "daemon":
    # In another session, without an output, and deaf to what ends others.
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open(shared + "/done", "w").close()
"""


class Host:
    """A host's part of a job: its trainyard-launch, which a test starts and ends."""

    def __init__(self, folder, mark, msrun=True):
        self.folder, self.mark = folder, mark
        self.work, self.bin = folder / "work", folder / "bin"
        for path in (self.work, self.bin, folder / "job"):
            path.mkdir(parents=True)
        (self.work / "train.py").write_text(TRAIN, encoding="utf-8")
        (self.work / "helper.py").write_text("", encoding="utf-8")
        (self.work / "run.sh").write_text("", encoding="utf-8")
        self.program = folder / "trainyard-launch"
        rank = ROOT / "roles/training_image/files/rank.py"
        self.program.write_text(
            PROGRAM.read_text(encoding="utf-8").replace(
                '"/usr/local/lib/trainyard/rank"', '"%s"' % rank
            ),
            encoding="utf-8",
        )
        (folder / "_launchers.py").write_bytes(Path(_launchers.__file__).read_bytes())
        (self.bin / "python3").symlink_to(sys.executable)
        if msrun:
            (self.bin / "msrun").write_text(MSRUN, encoding="utf-8")
            (self.bin / "msrun").chmod(0o755)
        self.variables = {
            "PATH": "%s:/usr/bin:/bin" % self.bin,
            "TRAINYARD_JOB_ID": mark,
            "TRAINYARD_JOB_DIR": str(folder / "job"),
            "RANK_ID": "77",
            "RANK_TABLE_FILE": "/inherited",
            "PMI_RANK": "5",
        }

    def start(self, asked, *words, **variables):
        (self.folder / "job.json").write_text(json.dumps(asked), encoding="utf-8")
        with open(self.folder / "output", "w", encoding="utf-8") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(self.program), "mindspore", *words],
                cwd=self.work,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(
                    self.variables, TRAINYARD_LAUNCH_JOB=str(self.folder / "job.json"), **variables
                ),
            )
        return self.process

    def output(self):
        return (self.folder / "output").read_text(encoding="utf-8")

    def seen(self, rank):
        return json.loads((self.folder / ("seen.%d" % rank)).read_text(encoding="utf-8"))

    def wait_for(self, *ranks):
        deadline = time.monotonic() + 30
        while not all(
            (self.folder / ("seen.%d" % rank)).exists() and self.seen_whole(rank) for rank in ranks
        ):
            assert time.monotonic() < deadline and self.process.poll() is None, self.output()
            time.sleep(0.05)

    def seen_whole(self, rank):
        try:
            return self.seen(rank)
        except ValueError:
            return None

    def left(self):
        """Processes of the job, by its ID in their environment, as the sweep of role train finds
        them.
        """
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if b"TRAINYARD_JOB_ID=" + self.mark.encode() in (
                    path / "environ"
                ).read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def nothing_left(self, seconds=10):
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.left() == []


@pytest.fixture(name="host", params=["msrun", "rank_table"])
def fixture_host(request, tmp_path):
    host = Host(
        tmp_path, "unit-mindspore-%d-%s" % (os.getpid(), request.param), request.param == "msrun"
    )
    host.way = request.param
    (tmp_path / "hccl.json").write_text(json.dumps(table(count=2)), encoding="utf-8")
    host.variables["TRAINYARD_RANK_TABLE"] = str(tmp_path / "hccl.json")
    yield host
    host.process.kill()
    host.process.wait()
    assert host.nothing_left(), host.left()


def command(host, what="same"):
    # Only the ranks of this host come.
    return ["train.py", what, str(host.folder), "2"]


def test_each_rank_has_its_own_folder_and_environment(host):
    report = host.folder / "report"
    assert (
        host.start(job(index=1), *command(host), TRAINYARD_RANK_REPORT=str(report)).wait(60) == 0
    ), host.output()
    for rank in (2, 3):
        seen, folder = host.seen(rank), host.folder / "job" / HOST / ("rank.%d" % rank)
        environment = seen["environment"]
        assert seen["folder"] == str(folder) and seen["helper"] == str(folder / "helper.py")
        assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
            "env.log",
            "helper.py",
            "rank.%d.json" % rank,
            "rank.%d.log" % rank,
            "rank.%d.report" % rank,
            "run.sh",
            "train.py",
        ]
        assert (folder / ("rank.%d.log" % rank)).read_text(encoding="utf-8") == "here %d\n" % rank
        lines = (folder / "env.log").read_text(encoding="utf-8").splitlines()
        assert {
            "RANK_ID=%d" % rank,
            "RANK_SIZE=4",
            "DEVICE_ID=%d" % (rank - 2),
            "DEVICE_NUM=2",
        } <= set(lines)
        assert (folder / "env.log").stat().st_mode & 0o077 == 0, "it may have secrets"
        assert environment["TRAINYARD_JOB_DIR"] == str(host.folder / "job"), "checkpoints go there"
        tables = {
            environment.get(name) for name in ("RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH")
        }
        assert tables == (
            {None} if host.way == "msrun" else {str(folder.parent / "rank_table.json")}
        )
    assert {"[2 %s] here 2" % HOST, "[3 %s] here 3" % HOST} <= set(host.output().splitlines()), (
        "each line once, with its rank"
    )
    assert host.output().count("here 2") == 1
    assert json.loads(report.read_text(encoding="utf-8")) == {"checksum": "same"}
    assert host.left() == []


def test_the_scheduler_of_msrun_is_no_rank(host):
    """On the first host msrun runs the command once more."""
    if host.way == "rank_table":
        host.variables.pop("TRAINYARD_RANK_TABLE")
    asked = job(2) if host.way == "msrun" else job(1)
    assert host.start(asked, "train.py", "same", str(host.folder), "0").wait(60) == 0, host.output()
    folders = {path.name for path in (host.folder / "job" / HOST).iterdir()}
    assert folders == (
        {"msrun", "scheduler", "rank.0", "rank.1"} if host.way == "msrun" else {"rank.0"}
    )


def test_a_folder_on_a_local_disk(host):
    local = host.folder / "scratch"
    assert host.start(job(index=1), "--folder=%s" % local, *command(host)).wait(60) == 0, (
        host.output()
    )
    assert (
        host.seen(2)["folder"] == str(local / HOST / "rank.2")
        and not (host.folder / "job" / HOST).exists()
    )


def test_records_go_where_role_train_looks_for_them(host):
    records = host.folder / "job"
    assert host.start(job(index=1, records=str(records)), *command(host)).wait(60) == 0, (
        host.output()
    )
    assert [
        json.loads((records / ("rank.%d.json" % rank)).read_text(encoding="utf-8"))["slot"]
        for rank in (2, 3)
    ] == [0, 1]


@pytest.mark.parametrize(
    "what, code, said",
    [("exit", 3, "ended with exit code 3"), ("kill", 137, "ended with exit code 137")],
)
def test_a_rank_that_fails_is_named_and_ends_the_others(host, what, code, said):
    begun = time.monotonic()
    assert host.start(job(index=1), *command(host, what)).wait(60) == code, host.output()
    assert time.monotonic() - begun < 30
    log = host.folder / "job" / HOST / "rank.3" / "rank.3.log"
    named = [
        line for line in host.output().splitlines() if line.startswith("trainyard-launch: rank")
    ]
    assert named == ["trainyard-launch: rank 3 on %s %s. Log: %s" % (HOST, said, log)]
    assert host.left() == []


def test_ranks_that_differ_fail(host):
    assert host.start(job(index=1), *command(host, "differ")).wait(60) == 1
    assert (
        "do not have the same parameters after training: rank 2 has differ2, rank 3 has differ3"
        in host.output()
    )


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_ranks_end_with_the_launcher(host, number, code):
    host.start(job(index=1), *command(host, "wait"))
    host.wait_for(2, 3)
    host.process.send_signal(number)
    assert host.process.wait(30) == code
    assert host.nothing_left(), host.left()


def test_what_a_rank_has_left_ends_with_the_launcher(host):
    assert host.start(job(index=1), *command(host, "daemon")).wait(60) == 0, host.output()
    assert host.left() == []


def test_a_killed_msrun_leaves_no_rank(host):
    host.start(job(index=1), *command(host, "wait"))
    host.wait_for(2, 3)
    os.kill(
        next(pid for pid, parent in launch.parents().items() if parent == host.process.pid),
        signal.SIGKILL,
    )
    assert host.process.wait(30) in (137, 143) and host.left() == []
    assert "was killed" in host.output() or "msrun ended with exit code 137" in host.output(), (
        host.output()
    )


# --- hosts of one job ---


def pair(tmp_path, way="msrun"):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        control = probe.getsockname()[1]
    asked = dict(
        job(), ports={"ssh": 1, "master": 2, "control": control}, keys={"user_private": "KEY"}
    )
    for entry in asked["entries"]:
        entry["address"] = "127.0.0.1"
    hosts = [
        Host(
            tmp_path / str(index),
            "unit-mindspore-pair-%d-%d" % (os.getpid(), index),
            way == "msrun",
        )
        for index in (0, 1)
    ]
    return asked, hosts


def test_all_hosts_end_with_a_failed_rank(tmp_path):
    asked, hosts = pair(tmp_path)
    for index, host in enumerate(hosts):
        host.start(dict(asked, index=index), *command(host, "exit"))
    assert hosts[1].process.wait(60) == 3 and hosts[0].process.wait(60) == 1, hosts[0].output()
    assert (
        "trainyard-launch: worker 1 on 127.0.0.1 has gone" in hosts[0].output()
        and "rank 3 on" in hosts[1].output()
    )
    assert [host.left() for host in hosts] == [[], []]


@pytest.mark.parametrize("lives", [True, False])
def test_a_scheduler_of_a_launcher_that_has_ended_does_not_start(tmp_path, lives):
    """The launcher was killed while msrun started the scheduler, so nothing is left that would end
    it.
    """
    with subprocess.Popen(["sleep", "60"]) as launcher:
        if not lives:
            # It stays a zombie, as its parent has not waited for it.
            launcher.kill()
            time.sleep(0.2)
        settings = {"launcher": launcher.pid, "folder": str(tmp_path), "workdir": str(tmp_path)}
        (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "rank", "sh", "-c", "echo started"],
            env=dict(
                os.environ,
                MS_ROLE="MS_SCHED",
                PYTHONPATH=str(ROOT / "plugins/module_utils"),
                **{launch.SETTINGS: str(tmp_path / "settings.json")},
            ),
            stdout=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        launcher.kill()
    expected = (0, b"started\n") if lives else (launch.NOT_STARTED, b"")
    assert (done.returncode, done.stdout) == expected


def test_a_host_that_goes_ends_the_others(tmp_path):
    asked, hosts = pair(tmp_path)
    for index, host in enumerate(hosts):
        host.start(dict(asked, index=index), *command(host, "wait"))
    hosts[0].wait_for(0, 1)
    hosts[1].wait_for(2, 3)
    hosts[0].process.kill()
    assert hosts[1].process.wait(30) == 1
    assert [host.nothing_left() for host in hosts] == [True, True]


def test_hosts_that_end_one_after_the_other_are_good(tmp_path):
    asked, hosts = pair(tmp_path)
    for index, host in enumerate(hosts):
        # The ranks of the second host end before those of the first.
        host.start(dict(asked, index=index), "train.py", "slow", str(tmp_path), str(2 * index))
    assert [host.process.wait(60) for host in hosts] == [0, 0], (
        hosts[0].output() + hosts[1].output()
    )


def test_a_host_that_never_comes(tmp_path, monkeypatch):
    asked, _hosts = pair(tmp_path)
    monkeypatch.setattr(
        launch.Workers,
        "wait",
        lambda self, seconds=1, task="", real=launch.Workers.wait: real(self, 1, task),
    )
    with pytest.raises(launch.Refused, match="worker 1 did not start its ranks within 1 seconds"):
        launch.meet(asked)


def test_a_missing_rank_program_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "RANK", "/nowhere/rank")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(launch.Refused, match="/nowhere/rank is missing in the container"):
        launch.mindspore(job(1), ["true"], {"PATH": "/usr/bin"})
    assert list(tmp_path.iterdir()) == [] and threading.active_count() < 10
