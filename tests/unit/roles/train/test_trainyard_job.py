# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job runner's pure parts: from a specification to commands, from the ranks' records to a
verdict.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from shared_modules import FOLDERS

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _launchers
from ansible_collections.trainyard.gpu.roles.train.files import _job_result, _job_watch

ROOT = Path(__file__).resolve().parents[4]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job = load(ROOT / "roles" / "train" / "files" / "trainyard_job.py")

CLUSTER = {
    "head": "lab-a",
    "port": 12345,
    "share": "/data1/share",
    "container": "trainyard-training",
    "hosts": [
        {"name": "lab-a", "address": "172.30.77.11", "interface": "eth0", "slots": 1},
        {"name": "lab-b", "address": "172.30.77.12", "interface": "eth0", "slots": 1},
    ],
}
NETWORK = {
    "interface": "eth0",
    "notes": [],
    "problems": [],
    "environment": {
        name: {
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "=eth0",
            "HOROVOD_GLOO_IFACE": "eth0",
        }
        for name in ("lab-a", "lab-b")
    },
}
JOB_DIR = "/data1/share/.trainyard/jobs/j1"


def spec(**changes):
    given = {
        "job_id": "j1",
        "launcher": "horovodrun",
        "command": ["python3", "train.py", "--name", "a b"],
        "hosts": [{"name": "lab-a", "slots": 1}, {"name": "lab-b", "slots": 2}],
        "environment": {},
        "workdir": "/data1/share",
        "network": NETWORK,
        "timeout": 0,
        "start_timeout": 60,
        "controller": "auto",
    }
    given.update(changes)
    return given


def hosts(**changes):
    return job.resolve(spec(**changes), CLUSTER)


def head_command(given, hosts, port, container, image, version=None, launcher="horovodrun"):
    """The command of a launcher that runs on the head."""
    given = dict(given, launcher=launcher)
    told = job.launch_description(given, hosts, 0, {"ssh": port}, JOB_DIR)
    variables, command = job.launcher_command(given, hosts[0], dict(told, version=version), JOB_DIR)
    return job.on_head(given, container, image, variables, command)


def host_command(given, hosts, index, port, version=None, launcher="torchrun"):
    """The command of a launcher that runs on each host."""
    given = dict(given, launcher=launcher)
    told = job.launch_description(given, hosts, index, {"master": port}, JOB_DIR)
    variables, command = job.launcher_command(
        given, hosts[index], dict(told, version=version), JOB_DIR
    )
    return job.through_ssh(given, hosts[index], variables, command)


def record(rank, address, code=0, checksum="c", slot=0):
    return {
        "rank": rank,
        "slot": slot,
        "addresses": ["127.0.0.1", "172.17.0.1", address],
        "exit_code": code,
        "hostname": "h" + address[-2:],
        "container_id": "f" * 64,
        "report": {"checksum": checksum},
    }


def test_slots_come_from_the_specification_and_addresses_from_the_cluster():
    assert hosts() == [
        {
            "name": "lab-a",
            "slots": 1,
            "address": "172.30.77.11",
            "fabric_address": "172.30.77.11",
            "network": NETWORK["environment"]["lab-a"],
        },
        {
            "name": "lab-b",
            "slots": 2,
            "address": "172.30.77.12",
            "fabric_address": "172.30.77.12",
            "network": NETWORK["environment"]["lab-b"],
        },
    ]
    assert job.placement(hosts()) == [
        {"rank": 0, "host": "lab-a", "slot": 0},
        {"rank": 1, "host": "lab-b", "slot": 0},
        {"rank": 2, "host": "lab-b", "slot": 1},
    ]


def test_unknown_host_is_named():
    with pytest.raises(job.JobError, match="host lab-c is not in .*: run site.yml first"):
        hosts(hosts=[{"name": "lab-c", "slots": 1}])


def test_torchrun_takes_what_each_host_is_told():
    network = dict(
        NETWORK,
        environment={
            "lab-a": {"NCCL_SOCKET_IFNAME": "=eth0"},
            "lab-b": {"NCCL_SOCKET_IFNAME": "=ens3", "NCCL_IB_HCA": "=mlx5_0"},
        },
    )
    command = host_command(spec(launcher="torchrun"), hosts(network=network), 1, 29500)
    assert {"NCCL_SOCKET_IFNAME==ens3", "NCCL_IB_HCA==mlx5_0"} <= set(shlex.split(command[-1]))
    # The user's word.
    given = spec(launcher="torchrun", environment={"NCCL_IB_HCA": "mlx5_7"})
    assert "NCCL_IB_HCA=mlx5_7" in shlex.split(
        host_command(given, hosts(network=network), 1, 29500)[-1]
    )


def test_horovodrun_is_told_of_nccl_before_and_behind():
    told = {
        "NCCL_SOCKET_IFNAME": "=ib0",
        "NCCL_IB_HCA": "=mlx5_0",
        "OMPI_MCA_btl_tcp_if_include": "169.254.0.0/16",
    }
    network = dict(
        NETWORK, interface="ib0", environment={name: told for name in ("lab-a", "lab-b")}
    )
    command = head_command(spec(network=network), hosts(network=network), 12345, "c", [])
    line = command[command.index("horovodrun") :]
    assert line[line.index("--network-interface") : line.index(job.RANK[0])] == [
        "--network-interface",
        "ib0",
        "env",
        "NCCL_IB_HCA==mlx5_0",
        "NCCL_SOCKET_IFNAME==ib0",
    ]
    assert "OMPI_MCA_btl_tcp_if_include=169.254.0.0/16" in command[: command.index("horovodrun")]


def test_horovodrun_line():
    command = head_command(
        spec(),
        hosts(),
        12345,
        "trainyard-training",
        ["PATH=/opt/bin:/bin", "LD_LIBRARY_PATH=/opt/lib"],
    )
    line = command[command.index("horovodrun") :]
    assert line == [
        "horovodrun",
        "-np",
        "3",
        "-hostfile",
        JOB_DIR + "/hosts",
        "-p",
        "12345",
        "--disable-cache",
        "--start-timeout",
        "60",
        "--network-interface",
        "eth0",
        "env",
        "NCCL_SOCKET_IFNAME==eth0",
    ] + job.RANK + ["python3", "train.py", "--name", "a b"]
    before = command[: command.index("horovodrun")]
    assert before[:7] == [
        "docker",
        "exec",
        "--workdir",
        "/data1/share",
        "trainyard-training",
        "env",
        "-i",
    ]
    assert {
        "PATH=/opt/bin:/bin",
        "LD_LIBRARY_PATH=/opt/lib",
        "HOME=/root",
        "PYTHONUNBUFFERED=1",
        "TRAINYARD_JOB_ID=j1",
        "HOROVOD_GLOO_IFACE=eth0",
        "TRAINYARD_JOB_DIR=" + JOB_DIR,
    } <= set(before)


def test_host_file():
    """P3.3: a line `worker slots=8` for each worker."""
    assert _launchers.host_text(hosts()) == "172.30.77.11 slots=1\n172.30.77.12 slots=2\n"


# github horovod/horovod: 6285f3f8 brought the plural, v0.25.0 is the first release with it.
@pytest.mark.parametrize(
    "version, option",
    [
        ("0.19.2", "--network-interface"),
        ("0.24.3", "--network-interface"),
        ("0.25.0", "--network-interfaces"),
        ("0.28.1", "--network-interfaces"),
        ("1.0.0rc1", "--network-interfaces"),
        (None, "--network-interface"),
        ("master", "--network-interface"),
    ],
)
def test_interface_option_follows_the_version(version, option):
    line = head_command(spec(), hosts(), 12345, "c", [], version)
    assert line[line.index("60") + 1 :][:2] == [option, "eth0"]


@pytest.mark.parametrize(
    "version, launcher",
    [
        (None, ["torchrun"]),
        ("2.13.0+cpu", ["torchrun"]),
        ("1.10.0a0+git36449ea", ["torchrun"]),
        ("1.9.1", ["python3", "-m", "torch.distributed.run"]),
        ("1.8.1", ["python3", "-m", "torch.distributed.launch", "--use_env"]),
        ("1.5.0", ["python3", "-m", "torch.distributed.launch", "--use_env"]),
    ],
)
def test_older_pytorch_has_no_torchrun(version, launcher):
    words = shlex.split(host_command(spec(launcher="torchrun"), hosts(), 0, 1234, version)[-1])
    assert words[words.index("--nnodes=2") - len(launcher) : words.index("--nnodes=2")] == launcher
    # The former launcher refuses an option that it does not know.
    assert ("--rdzv_conf=timeout=60" in words) == ("--use_env" not in words)
    assert words[words.index("--no_python") :] == ["--no_python"] + job.RANK + [
        "python3",
        "train.py",
        "--name",
        "a b",
    ]


@pytest.mark.parametrize("on_fabric, address", [(True, "169.254.142.62"), (False, "172.30.77.11")])
def test_ranks_meet_on_the_fabric_network(on_fabric, address):
    """P5.6: the master address is the one on the InfiniBand network.

    Role verify's job, which searches for broken ways, meets on the cluster network.
    """
    network = dict(NETWORK, addresses={"lab-a": "169.254.142.62", "lab-b": ""})
    given = dict(
        spec(launcher="torchrun", network=network),
        **({"master_on_fabric": True} if on_fabric else {}),
    )
    for index in (0, 1):
        command = host_command(given, job.resolve(given, CLUSTER), index, 1234)
        words = shlex.split(command[-1])
        assert "--master_addr=" + address in words
        # ssh stays where host keys are known.
        assert command[-2] == CLUSTER["hosts"][index]["address"]


def test_a_host_without_a_fabric_address_is_met_on_the_cluster_network():
    given = spec(network=dict(NETWORK, addresses={"lab-a": ""}), master_on_fabric=True)
    assert job.master_address(given, job.resolve(given, CLUSTER)) == "172.30.77.11"


@pytest.mark.parametrize("launcher", ["horovodrun", "torchrun"])
def test_chosen_devices_reach_the_ranks(launcher):
    """horovodrun forwards no CUDA_VISIBLE_DEVICES, so it is set behind it."""
    given = spec(launcher=launcher, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    words = (
        head_command(given, hosts(), 12345, "c", [])
        if launcher == "horovodrun"
        else shlex.split(host_command(given, hosts(), 0, 1234)[-1])
    )
    last = len(words) - words[::-1].index("env")
    assert "CUDA_VISIBLE_DEVICES=0,1" in words[last : words.index(job.RANK[0], last)]


def prepared(tmp_path, monkeypatch, **changes):
    monkeypatch.setattr(job, "CLUSTER", str(tmp_path / "cluster.json"))
    local = [
        dict(host, address="127.0.0.%d" % number) for number, host in enumerate(CLUSTER["hosts"], 1)
    ]
    (tmp_path / "cluster.json").write_text(
        json.dumps(dict(CLUSTER, share=str(tmp_path), hosts=local)), encoding="utf-8"
    )
    return job.Job(dict(spec(**changes), command="true"))


def test_master_port(tmp_path, monkeypatch):
    assert prepared(tmp_path, monkeypatch).master_port() > 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(
            job.JobError,
            match="train_master_port: '%d' cannot be used at 127.0.0.1 on host lab-a: .*. Set another port, or 0"
            % port,
        ):
            prepared(tmp_path, monkeypatch, master_port=port).master_port()
    assert prepared(tmp_path, monkeypatch, master_port=port).master_port() == port


@pytest.mark.parametrize(
    "file, text, version",
    [
        (
            "version.py",
            "__all__ = ['x']\n__version__ = '1.10.0a0+git36449ea'\ncuda = '11.4'\n",
            "1.10.0a0+git36449ea",
        ),
        ("version.py", 'from typing import Optional\n__version__: str = "2.13.0"\n', "2.13.0"),
        ("__init__.py", "from framework.runner import run\n\n__version__ = '0.28.1'\n", "0.28.1"),
        ("__init__.py", "import nothing_there\n", None),
        (None, "", None),
    ],
)
def test_version_of_a_package_that_is_not_imported(tmp_path, monkeypatch, file, text, version):
    if file:
        (tmp_path / "framework").mkdir()
        (tmp_path / "framework/__init__.py").touch()
        (tmp_path / "framework" / file).write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launched = prepared(tmp_path, monkeypatch)
    assert launched.version("framework", ["env"]) == version
    assert launched.versions == ({"framework": version} if version else {})


def test_a_proxy_s_password_is_in_no_command_line():
    image = [
        "http_proxy=http://user:s3cret@proxy:3128",
        "HTTPS_PROXY=http://user:s3cret@proxy:3128",
        "no_proxy=.example.org",
        "all_proxy=socks5://proxy",
    ]
    command = head_command(spec(), hosts(), 12345, "c", image)
    assert "s3cret" not in str(command) and {
        "no_proxy=.example.org",
        "all_proxy=socks5://proxy",
    } <= set(command)


def test_mpirun_line():
    """Root starts the ranks through the containers' ssh, with the variables that the others
    have.
    """
    given = spec(environment={"NCCL_DEBUG": "WARN"})
    command = head_command(given, hosts(), 12345, "c", ["PATH=/opt/bin:/bin"], launcher="mpirun")
    line = command[command.index("mpirun") :]
    assert line[: line.index("-x")] == [
        "mpirun",
        "--allow-run-as-root",
        "-np",
        "3",
        "--hostfile",
        JOB_DIR + "/hosts",
        "--bind-to",
        "none",
        "--map-by",
        "slot:OVERSUBSCRIBE",
        "--mca",
        "plm_rsh_args",
        "-p 12345",
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "^openib",
        "--mca",
        "btl_vader_single_copy_mechanism",
        "none",
    ]
    passed = [line[at + 1] for at, word in enumerate(line) if word == "-x"]
    assert passed == [
        "GLOO_SOCKET_IFNAME=eth0",
        "HOROVOD_CONTROLLER=mpi",
        "HOROVOD_GLOO_IFACE=eth0",
        "NCCL_DEBUG=WARN",
        "NCCL_SOCKET_IFNAME==eth0",
        "PYTHONUNBUFFERED=1",
        "TRAINYARD_JOB_DIR=" + JOB_DIR,
        "TRAINYARD_JOB_ID=j1",
    ]
    end = len(line) - line[::-1].index("-x") + 1
    assert line[end:] == job.RANK + ["python3", "train.py", "--name", "a b"]
    before = command[: command.index("mpirun")]
    assert {"PATH=/opt/bin:/bin", "HOME=/root", "TRAINYARD_JOB_ID=j1"} <= set(before)


def test_mpirun_with_as_many_ranks_on_each_host_says_how_many():
    two = hosts(hosts=[{"name": "lab-a", "slots": 2}, {"name": "lab-b", "slots": 2}])
    line = head_command(spec(), two, 12345, "c", [], launcher="mpirun")
    assert line[line.index("--map-by") + 1] == "ppr:2:node:OVERSUBSCRIBE"


MPIRUN = {
    "echo 'mpirun (Open MPI) 4.1.4'; echo; echo 'Report bugs to http://www.open-mpi.org/'": "4.1.4",
    "echo 'mpirun (Open MPI) 5.0.7'": "5.0.7",
    "echo HYDRA build details:": None,
    "echo 'exec: \"mpirun\": executable file not found in $PATH' >&2; exit 126": None,
    "true": None,
}


@pytest.mark.parametrize("answer, version", MPIRUN.items())
def test_mpirun_of_open_mpi_is_needed(tmp_path, monkeypatch, answer, version):
    (tmp_path / "docker").write_text("#!/bin/sh\n%s\n" % answer, encoding="utf-8")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    launched = prepared(tmp_path, monkeypatch, launcher="mpirun")
    if version:
        launched.mpi_version()
        assert launched.versions == {"openmpi": version}
        return
    with pytest.raises(
        job.JobError,
        match="'mpirun' needs Open MPI in the training image, but mpirun in container trainyard-training on host lab-a answers: "
        "(HYDRA|exec: .*not found|nothing).*. Add mpirun to training_image_tools and run site.yml, or set another launcher",
    ):
        launched.mpi_version()


def test_horovodrun_on_one_host_is_given_no_interface():
    alone = hosts(hosts=[{"name": "lab-a", "slots": 2}])
    assert "--network-interface" not in head_command(spec(), alone, 12345, "c", [])


def test_horovodrun_line_with_controller_and_environment():
    command = head_command(
        spec(controller="gloo", environment={"NCCL_SOCKET_IFNAME": "bond0"}),
        hosts(),
        12345,
        "c",
        [],
    )
    line = command[command.index("horovodrun") :]
    assert "--gloo" in line
    assert line[line.index("env") : line.index(job.RANK[0])] == ["env", "NCCL_SOCKET_IFNAME=bond0"]


def test_torchrun_line():
    command = host_command(spec(launcher="torchrun"), hosts(), 1, 40001)
    assert command[0] == "ssh"
    assert "StrictHostKeyChecking=yes" in command
    assert command[-2] == "172.30.77.12"
    words = shlex.split(command[-1])
    assert words[:3] == ["cd", "/data1/share", "&&"]
    assert words[words.index("torchrun") :] == [
        "torchrun",
        "--nnodes=2",
        "--nproc_per_node=2",
        "--node_rank=1",
        "--master_addr=172.30.77.11",
        "--master_port=40001",
        "--rdzv_conf=timeout=60",
        "--no_python",
    ] + job.RANK + ["python3", "train.py", "--name", "a b"]


@pytest.mark.parametrize(
    ("line", "stripped"),
    [
        (b"[1]<stdout>:[1 lab-b] epoch 1\n", b"[1 lab-b] epoch 1\n"),
        (b"[1,0]<stderr>:[0 lab-a] x\n", b"[0 lab-a] x\n"),
        (b"[0]<stderr>:ssh: Could not resolve\n", b"[0]<stderr>:ssh: Could not resolve\n"),
        (b"[0 lab-a] a line\n", b"[0 lab-a] a line\n"),
    ],
)
def test_strip_prefix(line, stripped):
    assert job.strip_prefix(line) == stripped


def verdict(records):
    places = job.placement(
        hosts(hosts=[{"name": "lab-a", "slots": 1}, {"name": "lab-b", "slots": 1}])
    )
    rows = job.rank_rows(places, hosts(), records)
    return rows, job.judge(places, rows, JOB_DIR)


def test_a_good_run():
    rows, problems = verdict({0: record(0, "172.30.77.11"), 1: record(1, "172.30.77.12")})
    assert problems == []
    assert [
        (row["rank"], row["host"], row["slot"], row["exit_code"], row["checksum"]) for row in rows
    ] == [(0, "lab-a", 0, 0, "c"), (1, "lab-b", 0, 0, "c")]
    assert _job_result.exit_code(0, rows, problems, False) == 0


def test_both_ranks_on_one_host():
    rows, problems = verdict({0: record(0, "172.30.77.11"), 1: record(1, "172.30.77.11", slot=1)})
    assert problems == ["rank 1 belongs on host lab-b, but ran on lab-a"]
    assert _job_result.exit_code(0, rows, problems, False) == 1


def test_a_rank_outside_the_cluster():
    assert verdict({0: record(0, "172.30.77.11"), 1: record(1, "10.0.0.99")})[1] == [
        "rank 1 belongs on host lab-b, but ran on h99, which has no address of the cluster"
    ]


def test_different_parameters():
    problems = verdict(
        {
            0: record(0, "172.30.77.11", checksum="a" * 64),
            1: record(1, "172.30.77.12", checksum="b" * 64),
        }
    )[1]
    assert problems == [
        "the ranks do not have the same parameters after training: rank 0 has aaaaaaaaaaaa, rank 1 has bbbbbbbbbbbb"
    ]


def test_commands_that_report_nothing_are_good():
    assert (
        verdict(
            {
                0: record(0, "172.30.77.11", checksum=None),
                1: record(1, "172.30.77.12", checksum=None),
            }
        )[1]
        == []
    )


def test_only_one_rank_reports():
    assert (
        len(verdict({0: record(0, "172.30.77.11"), 1: record(1, "172.30.77.12", checksum=None)})[1])
        == 1
    )


def test_the_order_of_the_ends_is_that_of_this_host(capfd):
    output = job.Output()
    for line in (
        b"[1 lab-b] trainyard: rank ended with exit code 137\n",
        b"[0 lab-a] [2 lab-c] trainyard: rank ended with exit code 1\n",
        b"[0 lab-a] trainyard: rank ended with exit code 1\r\n",
        b"[0 lab-a] trainyard: rank ended with exit code 1\n",
    ):
        output.write(line)
    assert sorted(output.ends) == [0, 1] and output.ends[1] <= output.ends[0]
    capfd.readouterr()


def test_the_rank_that_failed_first_is_told_to_the_operator():
    rows = [
        dict(_job_result.row(rank, "lab-%d" % rank, 0, record), seen=seen)
        for rank, record, seen in (
            (0, {"exit_code": 1, "hostname": "a", "started": 100, "seconds": 5}, 12.0),
            (1, {"exit_code": 137, "hostname": "b", "started": 900, "seconds": 5}, 11.0),
        )
    ]
    memory = {"lab-1": {"limit": 300 << 20, "peak": 300 << 20, "oom_kills": 1}}
    failed = _job_result.first_failed(rows, {}, {}, memory)
    lines = _job_result.failure_lines("rank", failed, "fix_operator")
    assert lines[0].startswith("rank 1 on host lab-1 failed first")
    assert "limit 300 MiB, peak 300 MiB" in lines[1] and "worker_memory" not in lines[1]
    assert lines[2] == "ended because of it: rank 0 (exit code 1)"


def test_failed_killed_and_missing_ranks():
    rows, problems = verdict(
        {0: record(0, "172.30.77.11", code=143), 1: record(1, "172.30.77.12", code=3)}
    )
    assert (
        problems[1] == "rank 1 on host lab-b ended with exit code 3. Log: %s/rank.1.log" % JOB_DIR
    )
    assert _job_result.exit_code(1, rows, problems, False) == 3
    rows, problems = verdict(
        {0: record(0, "172.30.77.11", code=143), 1: record(1, "172.30.77.12", code=None)}
    )
    assert (
        "rank 1 on host lab-b was killed and has no exit code. Log: %s/rank.1.log" % JOB_DIR
        in problems
    )
    assert _job_result.exit_code(137, rows, problems, False) == 137
    assert verdict({0: record(0, "172.30.77.11")})[1][0] == "rank 1 did not start on host lab-b"
    assert verdict({})[1] == ["no rank has started"]


@pytest.mark.parametrize(
    "code, kills, told",
    [(137, 1, True), (1, 2, True), (137, 0, False), (137, None, False), (0, 1, False)],
)
def test_memory_that_was_full_is_told_with_the_rank(code, kills, told):
    """The kernel kills the rank, or a worker of it that loads data.

    Records of an older image do not have it.
    """
    failed = dict(record(1, "172.30.77.12", code=code), oom_kills=kills)
    rows, problems = verdict({0: record(0, "172.30.77.11"), 1: failed})
    said = "host lab-b ended with exit code %d. Memory was full, and the kernel killed %s of" % (
        code,
        kills,
    )
    assert any(said in problem for problem in problems) is told
    assert "oom_kills" not in _job_result.entries(rows)[1]


def test_a_launcher_that_succeeds_needs_the_report_of_each_rank():
    rows, _problems = verdict({0: record(0, "172.30.77.11")})
    assert _job_result.exit_code(0, rows, [], False) == 1
    # Two jobs of one rank each, in place of one of two.
    alone = dict(record(1, "172.30.77.12"), world_size=1)
    rows, problems = verdict({0: record(0, "172.30.77.11"), 1: alone})
    assert problems == [
        "rank 1 on host lab-b took part in a job of 1 ranks in place of 2: the launcher has started separate jobs"
    ]
    assert "world_size" not in _job_result.entries(rows)[0]


def test_a_flood_of_output_is_stored_once(tmp_path):
    log = tmp_path / "job.log"
    with open(log, "ab") as stream:
        output = job.Output(stream.fileno(), most=4096)
        output.write(b"torchrun: a line of the launcher\n")
        output.copy(b"[1]<stdout>:[0 lab-a] %d\n" % number for number in range(5000))
    text = log.read_text()
    assert len(text) < 5000 and text.endswith("[0 lab-a] 4999\n")
    assert text.startswith("trainyard: %s\n" % job.SHORTENED)
    assert text.count("torchrun: a line of the launcher") == 1


def test_output_to_a_pipe_is_not_shortened():
    read, write = os.pipe()
    output = job.Output(write, most=10)
    output.write(b"[0 a] 12345\n")
    output.write(b"[0 a] 67890\n")
    assert os.read(read, 100) == b"[0 a] 12345\n[0 a] 67890\n"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    "text, words", [(None, "does not exist"), ('{"hosts": [', "is damaged on this host")]
)
def test_a_damaged_file_of_the_cluster_is_told(tmp_path, monkeypatch, text, words):
    """To run site.yml does not help then: it compares keys with that file, and stops."""
    monkeypatch.setattr(job, "CLUSTER", str(tmp_path / "cluster.json"))
    if text:
        (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(job.JobError, match=words) as caught:
        job.read_cluster()
    assert not text or "remove it if you trust the current keys" in str(caught.value)


def failed(rank, code, ended):
    return _job_result.row(
        rank, "lab-a", 0, {"exit_code": code, "hostname": "h", "started": 100, "seconds": ended}
    )


@pytest.mark.parametrize(
    "rows, code",
    [
        # Rank 1 used up the memory, so the kernel killed it. Its peer lost it a moment later.
        ([failed(0, 1, 7.2), failed(1, 137, 7.0)], 137),
        # Rank 0 failed. The launcher stopped rank 1, which did not end by SIGTERM.
        ([failed(0, 3, 7.0), failed(1, 137, 10.0)], 3),
        # Stopped ranks are no failures of their own, however early they end.
        ([failed(0, 143, 6.9), failed(1, 3, 7.0)], 3),
        # Not the one with the lowest number.
        ([failed(0, 1, 7.5), failed(1, 7, 7.0)], 7),
        # A rank of which no end is recorded.
        ([failed(0, 1, None), failed(1, 7, 7.0)], 7),
    ],
)
def test_the_first_failure_gives_the_exit_code(rows, code):
    """Both runners judge so. An out-of-memory kill is what an operator has to know."""
    assert _job_result.own_failures(rows)[0]["exit_code"] == code
    assert _job_result.exit_code(1, rows, [], False) == code


def test_timeout_and_stop_stay_what_they_are():
    rows = verdict({0: record(0, "172.30.77.11", code=1), 1: record(1, "172.30.77.12", code=143)})[
        0
    ]
    assert _job_result.exit_code(job.TIMED_OUT, rows, ["x"], True) == 124
    assert _job_result.exit_code(job.STOPPED, rows, ["x"], True) == 143


def test_sweep_ends_what_carries_the_id_and_nothing_else():
    victim = subprocess.Popen(["sleep", "60"], env={"TRAINYARD_JOB_ID": "unit-test-1"})
    # Longer id, same beginning.
    other = subprocess.Popen(["sleep", "60"], env={"TRAINYARD_JOB_ID": "unit-test-12"})
    try:
        done = subprocess.run(
            [sys.executable, "-", "unit-test-1"],
            input=job.SWEEP.encode(),
            stdout=subprocess.PIPE,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (0, b"1")
        assert victim.wait(timeout=5) == -15
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        victim.kill()
        victim.wait()


def test_sweep_looks_again_where_one_look_saw_nothing(monkeypatch):
    """As while a process is being executed: its environment can't be read yet."""
    victim = subprocess.Popen(["sleep", "60"], env={"TRAINYARD_JOB_ID": "unit-test-2"})
    looks, listed = [], os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path: looks.append(path) or (listed(path) if len(looks) > 2 else [])
    )
    monkeypatch.setattr(sys, "argv", ["-", "unit-test-2"])
    try:
        with pytest.raises(SystemExit) as ended:
            exec(job.SWEEP, {})
        assert ended.value.code == 0
        assert victim.wait(timeout=5) == -15
    finally:
        victim.kill()
        victim.wait()


def seen(**changes):
    return dict(
        {
            "interface": "mlx5_0",
            "rdma": True,
            "sent_bytes": 4000000,
            "received_bytes": 5000000,
            "peaks": [97, 98],
            "looks": 3,
            "error": "",
        },
        **changes,
    )


def watched(wanted, found):
    return job.watched(spec(watch={"lab-a": wanted}), {"lab-a": found} if found else {})


def test_busy_gpus_and_the_fabric_s_bytes():
    gpus, fabric, warnings = watched({"count": 2, "devices": []}, seen())
    assert gpus == {
        "lab-a": {"requested": 2, "busy": 2, "idle": [], "peak_utilization": [97, 98], "looks": 3}
    }
    assert fabric == {
        "lab-a": {
            "interface": "mlx5_0",
            "rdma": True,
            "sent_bytes": 4000000,
            "received_bytes": 5000000,
        }
    }
    assert warnings == []


def test_idle_gpus_are_named():
    gpus, _fabric, warnings = watched({"count": 4, "devices": []}, seen(peaks=[97, 98, 0, 3]))
    assert gpus["lab-a"]["idle"] == [2, 3]
    assert warnings == [
        "host lab-a: GPU 2 (0 % at most), GPU 3 (3 % at most) stayed idle, although the job requested 4. Check how its command chooses "
        "its GPUs, and CUDA_VISIBLE_DEVICES"
    ]


@pytest.mark.parametrize(
    "found, warning",
    [
        (
            {"said": "Permission denied (publickey)."},
            "host lab-a was not watched: Permission denied (publickey).",
        ),
        (None, "host lab-a was not watched: the job's runner ended before the watcher reported"),
        (
            seen(peaks=[], looks=0, error="nvidia-smi has shown no GPU"),
            "host lab-a: it is not known whether the job used the GPUs that it requested (2): nvidia-smi has shown no GPU",
        ),
        (
            seen(peaks=[None, None]),
            "host lab-a: it is not known whether the job used the GPUs that it requested (2): nvidia-smi reported the utilization of 0",
        ),
    ],
)
def test_what_is_not_known_is_said(found, warning):
    gpus, _fabric, warnings = watched({"count": 2, "devices": []}, found)
    assert warnings == [warning] and gpus["lab-a"]["busy"] is None


def test_a_host_without_gpus_has_counters():
    assert watched({"count": 0, "devices": []}, seen(peaks=[], looks=0))[2] == []


@pytest.mark.parametrize(
    "watch, environment, written",
    [
        ({"lab-a": {"count": 8}}, {}, True),
        ({"lab-a": {"count": 0}}, {}, False),
        ({}, {}, False),
        ({"lab-a": {"count": 8}}, {"NCCL_DEBUG": "WARN"}, False),
    ],
)
def test_nccl_says_how_it_connects(watch, environment, written):
    told = job.nccl_log(spec(watch=watch, environment=environment), JOB_DIR)
    assert told == (
        {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT",
            "NCCL_DEBUG_FILE": JOB_DIR + "/nccl.%h.%p",
        }
        if written
        else {}
    )
    given = spec(watch=watch, environment=environment)
    assert ("NCCL_DEBUG=INFO" in head_command(given, hosts(), 12345, "c", [])) == written
    assert ("NCCL_DEBUG=INFO" in shlex.split(host_command(given, hosts(), 0, 1)[-1])) == written


def test_nccl_s_transport_is_read_from_its_log(tmp_path, monkeypatch):
    launched = prepared(tmp_path, monkeypatch)
    launched.prepare_directory()
    folder = Path(launched.job_dir)
    (folder / "rank.0.log").write_text(
        "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n",
        encoding="utf-8",
    )
    assert launched.nccl_transport() == ["NET/IB"]
    (folder / "nccl.a.7").write_text(
        "a:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC\n", encoding="utf-8"
    )
    assert launched.nccl_transport() == ["P2P/IPC"]
    # Of this job, not of one that had its id before.
    launched.prepare_directory()
    assert launched.nccl_transport() == []


SMI = """#!/bin/sh
test "$2" = --format=csv,noheader,nounits || exit 9
echo 97, 900, 24576; echo 0, 1, 24576
"""


@pytest.fixture(name="local")
def fixture_local(tmp_path, monkeypatch):
    """A job whose hosts are this machine: ssh is a shell here.

    Its nvidia-smi shows two GPUs, one of which works.
    """
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI, encoding="utf-8")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    monkeypatch.setattr(
        job,
        "SSH",
        [sys.executable, "-c", "import os, sys; os.execvp('sh', ['sh', '-c', sys.argv[2]])"],
    )
    for path in (Path(module.__file__) for module in (_bandwidth, _job_watch)):
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(
            text.replace("LATER_SECONDS = 1, 10, 5", "LATER_SECONDS = 0.05, 10, 5"),
            encoding="utf-8",
        )
    monkeypatch.setattr(job, "__file__", str(tmp_path / "trainyard_job.py"))
    monkeypatch.syspath_prepend(tmp_path)
    network = dict(
        NETWORK,
        environment={
            name: {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
            for name in ("lab-a", "lab-b")
        },
    )
    launched = prepared(
        tmp_path,
        monkeypatch,
        job_id="unit-%d" % os.getpid(),
        network=network,
        watch={"lab-a": {"count": 2, "devices": []}, "lab-b": {"count": 0, "devices": []}},
    )
    launched.prepare_directory()
    return launched


def test_every_host_is_watched_and_nothing_is_left(local):
    local.start_watching()
    deadline = time.monotonic() + 10
    while (
        not all(watcher.last for watcher in local.watchers) or not local.watchers[0].last["looks"]
    ):
        assert time.monotonic() < deadline, [watcher.message for watcher in local.watchers]
        time.sleep(0.02)
        # A packet, so that the counters of lo grow.
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
    local.stop_watching()
    found = local.what_was_seen()
    assert found["gpus"] == {
        "lab-a": {
            "requested": 2,
            "busy": 1,
            "idle": [1],
            "peak_utilization": [97, 0],
            "looks": found["gpus"]["lab-a"]["looks"],
        },
        "lab-b": {"requested": 0, "busy": 0, "idle": [], "peak_utilization": [], "looks": 0},
    }
    assert [found["fabric"][name]["interface"] for name in ("lab-a", "lab-b")] == [
        "lo",
        "lo",
    ] and found["fabric"]["lab-a"]["sent_bytes"] > 0
    assert len(found["warnings"]) == 1 and "GPU 1 (0 % at most) stayed idle" in found["warnings"][0]
    assert all(watcher.process.wait(5) == 0 for watcher in local.watchers)


@pytest.mark.parametrize(
    "ssh, said",
    [
        (["no-such-ssh"], "no-such-ssh"),
        (["sh", "-c", "echo Connection refused; exit 255"], "Connection refused"),
    ],
)
def test_a_watcher_that_cannot_start_is_a_warning(local, monkeypatch, ssh, said):
    monkeypatch.setattr(job, "SSH", ssh)
    local.start_watching()
    for watcher in local.watchers:
        watcher.join(5)
    local.stop_watching()
    assert [
        said in warning and "was not watched" in warning
        for warning in local.what_was_seen()["warnings"]
    ] == [True, True]


def test_a_watcher_that_hangs_is_not_waited_for(local, monkeypatch):
    monkeypatch.setattr(job, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(job, "watch_command", lambda spec, host, size: ["sleep", "1000"])
    local.start_watching()
    begun = time.monotonic()
    local.stop_watching()
    assert time.monotonic() - begun < 2 and "did not answer" in local.what_was_seen()["warnings"][0]
    assert [watcher.process.wait(5) for watcher in local.watchers] == [-9, -9]


def test_without_the_watchers_files_the_job_goes_on(local, monkeypatch, capfd):
    monkeypatch.setattr(job, "__file__", "/nowhere/trainyard_job.py")
    local.start_watching()
    local.stop_watching()
    assert "the job is not watched" in capfd.readouterr().out and local.watchers == []


def mindspore_spec(**changes):
    return spec(
        **dict(
            {
                "launcher": "mindspore",
                "mindspore": {"start": "auto", "rank_table": "", "folder": ""},
                "master_on_fabric": True,
            },
            **changes,
        )
    )


def test_mindspore_runs_on_each_host():
    command = host_command(
        mindspore_spec(environment={"GLOG_v": "1"}), hosts(), 1, 1, launcher="mindspore"
    )
    assert command[-2] == "172.30.77.12"
    words = shlex.split(command[-1])
    assert words[:4] == ["cd", "/data1/share", "&&", "exec"]
    assert {
        "TRAINYARD_JOB_ID=j1",
        "TRAINYARD_LAUNCH_JOB=%s/launch.1.json" % JOB_DIR,
        "GLOG_v=1",
    } <= set(words)
    assert words[words.index("python3") :] == [
        "python3",
        JOB_DIR + "/trainyard_launch.py",
        "mindspore",
        "--",
        "python3",
        "train.py",
        "--name",
        "a b",
    ]


def test_what_the_launcher_of_a_host_is_told():
    network = dict(NETWORK, addresses={"lab-a": "169.254.1.1", "lab-b": "169.254.1.2"})
    given = mindspore_spec(
        network=network,
        environment={"ASCEND_RT_VISIBLE_DEVICES": "4,5"},
        hosts=[{"name": "lab-a", "slots": 2}, {"name": "lab-b", "slots": 2}],
    )
    told = job.launch_description(
        given, job.resolve(given, CLUSTER), 1, {"master": 29500}, JOB_DIR, "/data1/hccl.json"
    )
    # The rank table has the addresses of the cluster network as server_id, and the devices' numbers
    # on the host.
    assert told["entries"] == [
        {
            "address": "172.30.77.11",
            "fabric_address": "169.254.1.1",
            "slots": 2,
            "local": 0,
            "devices": [4, 5],
        },
        {
            "address": "172.30.77.12",
            "fabric_address": "169.254.1.2",
            "slots": 2,
            "local": 0,
            "devices": [4, 5],
        },
    ]
    assert (told["index"], told["count"], told["ports"], told["master_address"]) == (
        1,
        2,
        {"master": 29500},
        "169.254.1.1",
    )
    assert (
        told["seconds"],
        told["folder"],
        told["records"],
        told["start"],
        told["rank_table"],
    ) == (60, JOB_DIR, JOB_DIR, "auto", "/data1/hccl.json")
    given["mindspore"]["folder"] = "/scratch"
    assert (
        job.launch_description(given, job.resolve(given, CLUSTER), 0, {}, JOB_DIR)["folder"]
        == "/scratch/j1"
    )


#: msrun as far as this test needs it. tests/unit/roles/job_container/test_launch_mindspore.py has
#: one with all of its habits.
MSRUN = """#!/bin/sh
for word; do case $word in --node_rank=*) node=${word#*=};; --local_worker_num=*) count=${word#*=};; --worker_num=*) all=${word#*=};; esac; done
while case $1 in --*) true;; *) false;; esac; do shift; done
local=0; children=
while test $local -lt $count; do
    RANK_ID=$((node * count + local)) DEVICE_ID=$local RANK_SIZE=$all "$@" & children="$children $!"; local=$((local + 1))
done
code=0
for child in $children; do wait $child || code=1; done
exit $code
"""


@pytest.fixture(name="ranks")
def fixture_ranks(local, tmp_path, monkeypatch):
    """A job of four ranks on two hosts that are both this machine, with a stand-in for msrun."""
    (tmp_path / "msrun").write_text(MSRUN, encoding="utf-8")
    (tmp_path / "msrun").chmod(0o755)
    text = (ROOT / "roles/job_container/files/trainyard_launch.py").read_text(encoding="utf-8")
    rank = ROOT / "roles/training_image/files/rank.py"
    (tmp_path / "trainyard_launch.py").write_text(
        text.replace('"/usr/local/lib/trainyard/rank"', '"%s"' % rank), encoding="utf-8"
    )
    (tmp_path / "_launchers.py").write_bytes(Path(_launchers.__file__).read_bytes())
    # Both hosts have the addresses of this machine. The first finds itself.
    monkeypatch.setattr(
        job,
        "sweep_host",
        lambda job_id, host, is_head, real=job.sweep_host: real(job_id, host, True),
    )
    return lambda command, **changes: job.Job(
        dict(
            mindspore_spec(
                **dict(
                    {
                        "job_id": "unit-ranks-%d" % os.getpid(),
                        "workdir": str(tmp_path),
                        "network": NETWORK,
                        "timeout": 60,
                        "watch": {},
                        "hosts": [{"name": "lab-a", "slots": 2}, {"name": "lab-b", "slots": 2}],
                    },
                    **changes,
                )
            ),
            command=command,
        )
    )


def result_of(launched):
    code = launched.run()
    return code, json.loads(Path(launched.result_path).read_text(encoding="utf-8"))


def test_four_ranks_of_mindspore(ranks, tmp_path):
    (tmp_path / "report.sh").write_text(
        'echo $RANK_ID of $RANK_SIZE on $DEVICE_ID in $PWD; echo \'{"checksum": "c"}\' > $TRAINYARD_RANK_REPORT\n',
        encoding="utf-8",
    )
    launched = ranks("sh report.sh")
    _code, result = result_of(launched)
    assert [
        (row["rank"], row["slot"], row["exit_code"], row["checksum"]) for row in result["ranks"]
    ] == [(0, 0, 0, "c"), (1, 1, 0, "c"), (2, 0, 0, "c"), (3, 1, 0, "c")]
    folder = Path(launched.job_dir)
    told = [
        (folder / ("rank.%d.log" % rank)).read_text(encoding="utf-8").split() for rank in range(4)
    ]
    assert [words[:5] for words in told] == [
        ["0", "of", "4", "on", "0"],
        ["1", "of", "4", "on", "1"],
        ["2", "of", "4", "on", "0"],
        ["3", "of", "4", "on", "1"],
    ]
    assert len({words[6] for words in told}) == 4, "a folder for each"
    assert result["launcher"] == "mindspore" and not [
        problem for problem in result["problems"] if "belongs on host" not in problem
    ]


@pytest.mark.parametrize(
    "how, code, problem",
    [("exit 3", 3, "ended with exit code 3"), ("kill -9 $$", 137, "ended with exit code 137")],
)
def test_a_failed_rank_of_mindspore_ends_the_job(ranks, how, code, problem):
    launched = ranks("sh -c 'test $RANK_ID != 3 || %s; sleep 1000'" % how)
    begun = time.monotonic()
    found, result = result_of(launched)
    assert found == code and time.monotonic() - begun < 40
    assert [
        each for each in result["problems"] if each.startswith("rank 3 on host lab-b " + problem)
    ], result["problems"]
    assert job.sweep_host(launched.spec["job_id"], {}, True) is None


def test_a_job_that_hangs_tells_where_its_ranks_wait(ranks, tmp_path, monkeypatch):
    """As soon as all ranks wait. Then the job is stopped, and its result has what was found."""
    (tmp_path / "_job_hang.py").write_bytes(Path(job._job_hang.__file__).read_bytes())
    monkeypatch.setattr(job, "LOOK_SECONDS", 0.2)
    os.mkfifo(tmp_path / "pipe")
    # Its path tells that it is not the rank itself.
    source = ROOT / "roles/training_image/files/rank.py"
    wrapper = tmp_path / "trainyard/rank"
    wrapper.parent.mkdir()
    wrapper.write_bytes(source.read_bytes())
    launch = tmp_path / "trainyard_launch.py"
    text = launch.read_text(encoding="utf-8")
    launch.write_text(text.replace(str(source), str(wrapper)), encoding="utf-8")
    command = "echo $NCCL_RAS_ADDR; test $RANK_ID = 2 && exec cat pipe; exec sleep 1000"
    (tmp_path / "t.sh").write_text(
        command.replace("pipe", str(tmp_path / "pipe")), encoding="utf-8"
    )
    launched = ranks("sh %s/t.sh" % tmp_path, hang_minutes=10, timeout=0)
    assert launched.progress.seconds == 600
    hang = job._job_hang

    def look(_now, _size, _watched):
        launched.stopped = bool(launched.hang)
        found = hang.collect(launched.spec["job_id"])
        said = hang.sentence([dict(found, host="here")])
        is_first = launched.telling is None
        # On a busy machine more than a minute may have passed, which the sentence would tell.
        launched.progress.since = time.monotonic()
        # Not while the three still are a shell, which becomes sleep: the runner would then see
        # another state than this look.
        waits = "rank 2 on here waits for a pipe, ranks 0, 1 and 3 on here sleep"
        return is_first and said.startswith(waits)

    monkeypatch.setattr(launched.progress, "look", look)
    code, result = result_of(launched)
    assert code == 143 and result["hang"] in result["warnings"], result
    said = (Path(launched.job_dir) / "hang.txt").read_text(encoding="utf-8")
    first = said.splitlines()[0]
    assert first.startswith("rank 2 on lab-a waits for a pipe, ranks 0, 1 and 3 on lab-a sleep")
    assert result["hang"] == "at its end: %s. See %s/hang.txt" % (first, launched.job_dir)
    assert "=== host lab-b\n" in said
    told = (Path(launched.job_dir) / "rank.3.log").read_text(encoding="utf-8")
    assert told == "127.0.0.1:%d\n" % launched.spec["ras_port"]
    # Without hang_minutes nothing is asked, at the time limit either.
    quiet = ranks("sleep 1000", timeout=2)
    code, result = result_of(quiet)
    assert (code, result["hang"]) == (124, None)
    assert not (Path(quiet.job_dir) / "hang.txt").exists()
    assert "ras_port" not in quiet.spec


def test_a_job_that_reaches_its_limit_tells_where_it_was(ranks, tmp_path, monkeypatch):
    (tmp_path / "_job_hang.py").write_bytes(Path(job._job_hang.__file__).read_bytes())
    launched = ranks("sh -c 'while :; do echo; sleep 0.2; done'", hang_minutes=10, timeout=3)
    code, result = result_of(launched)
    assert code == 124 and result["hang"].startswith("at its end: ")
    # A host whose container does not answer.
    monkeypatch.setattr(job, "SSH", ["sh", "-c", "echo No route to host >&2; exit 255"])
    launched.tell_where_it_waits()
    said = (Path(launched.job_dir) / "hang.txt").read_text(encoding="utf-8")
    assert said.startswith("no answer from hosts lab-a, lab-b\n") and "No route to host" in said


def test_the_rank_table_is_copied_for_the_containers(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "RANK_TABLE", str(tmp_path / "of-role-ascend"))
    launched = ranks("true", mindspore={})
    launched.prepare_directory()
    assert launched.prepare_mindspore() == ""
    (tmp_path / "of-role-ascend").write_text("a table", encoding="utf-8")
    copied = launched.prepare_mindspore()
    assert copied == launched.job_dir + "/hccl.json"
    assert Path(copied).read_text(encoding="utf-8") == "a table"
    launched.commands()
    told = json.loads((Path(launched.job_dir) / "launch.1.json").read_text(encoding="utf-8"))
    assert told["rank_table"] == copied
    launched = ranks("true", mindspore={"rank_table": "/nowhere/hccl.json"})
    with pytest.raises(
        job.JobError,
        match="train_rank_table: '/nowhere/hccl.json' cannot be read on host lab-a: No such file or directory. Name a rank table",
    ):
        launched.commands()


def test_without_the_launcher_s_file_the_job_says_so(ranks, monkeypatch, tmp_path):
    (tmp_path / "trainyard_launch.py").unlink()
    code, result = result_of(ranks("true"))
    assert (
        code == 1
        and "trainyard_launch.py cannot be copied into the job's folder" in result["problems"][0]
    )


def test_a_job_of_another_role_is_not_watched(tmp_path, monkeypatch):
    launched = prepared(tmp_path, monkeypatch)
    launched.start_watching()
    assert launched.watchers == [] and launched.what_was_seen() == {
        "gpus": {},
        "fabric": {},
        "nccl_transport": [],
        "warnings": [],
    }


def shell(script):
    return ["sh", "-c", script]


@pytest.fixture(name="queued")
def fixture_queued(tmp_path, monkeypatch):
    """Runs a job whose command waits in a queue: its exit code and problems, and the time of the
    launcher's start.
    """

    def run(queue, command="true", stop_after=0.0):
        launched = prepared(tmp_path, monkeypatch, queue=queue)
        started = []
        monkeypatch.setattr(
            launched, "commands", lambda: started.append(time.monotonic()) or [shell(command)]
        )
        monkeypatch.setattr(job, "sweep", lambda *_arguments: [])
        monkeypatch.setattr(job, "REPORT_SECONDS", 0)
        monkeypatch.setattr(job.signal, "signal", lambda *_arguments: None)
        if stop_after:
            threading.Timer(stop_after, lambda: setattr(launched, "stopped", True)).start()
        code = launched.run()
        assert launched.allocation is None or launched.allocation.process.poll() is not None
        return (
            code,
            json.loads(Path(launched.result_path).read_text(encoding="utf-8"))["problems"],
            started,
        )

    return run


def test_a_job_starts_when_its_hosts_are_free_and_gives_them_back(queued, tmp_path):
    begun = time.monotonic()
    over = tmp_path / "over"
    code, problems, started = queued(shell("sleep 0.5; echo granted; cat; echo > %s" % over))
    assert started and started[0] - begun > 0.5 and over.exists()
    # The ranks of this test write no records.
    assert code == 1 and problems[0] == "no rank has started"


@pytest.mark.parametrize(
    "queue, problem",
    [
        (
            shell("echo refused >&2; exit 1"),
            "Slurm gave the job no hosts, see the lines of salloc in ",
        ),
        (["no-such-setpriv"], "no-such-setpriv cannot be started on host lab-a: "),
    ],
)
def test_a_job_that_slurm_refuses_is_not_started(queued, queue, problem):
    code, problems, started = queued(queue)
    assert code == 1 and problems[0].startswith(problem) and started == []


def test_a_job_ends_when_slurm_takes_its_hosts(queued):
    begun = time.monotonic()
    code, problems, started = queued(shell("echo granted; exec sleep 0.5"), "exec sleep 60")
    assert code == job.STOPPED and "Slurm ended the job: it was cancelled" in problems[0]
    assert started and time.monotonic() - begun < 30


def test_a_stopped_job_leaves_the_queue(queued):
    begun = time.monotonic()
    code, problems, started = queued(["sleep", "60"], stop_after=0.5)
    assert code == job.STOPPED and problems[0] == "the job was stopped before it ended"
    assert started == [] and time.monotonic() - begun < 30


def test_a_killed_runner_gives_the_hosts_back(tmp_path):
    over = tmp_path / "over"
    program = (
        "import importlib.util, sys, time\n"
        "spec = importlib.util.spec_from_file_location('job', sys.argv[1])\n"
        "job = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(job)\n"
        "allocation = job.Allocation(sys.argv[2:])\nallocation.granted.wait()\n"
        "print('has them', flush=True)\ntime.sleep(60)\n"
    )
    words = shell("echo granted; cat; echo > %s" % over)
    command = [sys.executable, "-c", program, job.__file__, *words]
    environment = dict(os.environ, PYTHONPATH=":".join(FOLDERS))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as runner:
        assert runner.stdout.readline() == b"has them\n" and not over.exists()
        runner.kill()
    deadline = time.monotonic() + 20
    while not over.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_summary_ends_with_the_problems():
    rows, problems = verdict({0: record(0, "172.30.77.11"), 1: record(1, "172.30.77.11")})
    gpus, fabric, warnings = watched({"count": 2, "devices": []}, seen(peaks=[97, 0]))
    lines = job.summary(
        {
            "job_id": "j1",
            "world_size": 2,
            "launcher": "torchrun",
            "ranks": rows,
            "metrics": {"loss": 0.1, "accuracy": 0.97},
            "seconds": {"total": 9.0},
            "problems": problems,
            "gpus": gpus,
            "fabric": fabric,
            "nccl_transport": ["NET/IB"],
            "warnings": warnings,
        }
    )
    assert lines[0] == "job j1: 2 ranks by torchrun in 9.0 s"
    assert lines[3:6] == [
        "accuracy 0.97  loss 0.1",
        "host lab-a  mlx5_0  sent 4.0 MB  received 5.0 MB  GPUs busy 1 of 2",
        "NCCL connected the ranks by NET/IB",
    ]
    assert lines[-2].startswith("warning: host lab-a: GPU 1 (0 % at most) stayed idle")
    assert lines[-1] == "failed: rank 1 belongs on host lab-b, but ran on lab-a"
