# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""trainyard-launch: commands of the launchers, files of the job's sshd, and how the workers of a
step find each other.
"""

from __future__ import annotations

import ast
import importlib.util
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _launchers

PROGRAM = (
    Path(__file__).resolve().parents[4]
    / "roles"
    / "job_container"
    / "files"
    / "trainyard_launch.py"
)


def load():
    spec = importlib.util.spec_from_file_location("trainyard_launch", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


launch = load()


def job(**changes):
    return dict(
        {
            "job": "7",
            "step": "0",
            "index": 0,
            "count": 2,
            "ports": {"ssh": 11022, "master": 11023, "control": 11024},
            "interface": "eth0",
            "entries": [
                {"address": "10.0.0.1", "slots": 2, "local": 0},
                {"address": "10.0.0.2", "slots": 1, "local": 0},
            ],
            "keys": {
                "user_private": "USER",
                "user_public": "ssh-ed25519 AAAAuser trainyard job\n",
                "host_private": "HOST",
                "host_public": "ssh-ed25519 AAAAhost trainyard job\n",
            },
        },
        **changes,
    )


def test_torchrun_has_a_static_rendezvous():
    """A stranger who reaches the store of c10d runs code as the owner of the job, because agents
    unpickle what it holds.
    """
    command = launch.command_of(
        "torchrun",
        job(index=1),
        ["--nproc-per-node=4", "train.py", "--rdzv-backend=c10d", "--nnodes", "1:2"],
    )
    assert command == [
        "torchrun",
        "--nnodes=2",
        "--nproc_per_node=1",
        "--node_rank=1",
        "--master_addr=10.0.0.1",
        "--master_port=11023",
        "--local_addr=10.0.0.2",
        "--nproc-per-node=4",
        "train.py",
        "--rdzv-backend=c10d",
        "--nnodes",
        "1:2",
    ]
    assert "--node_rank=0" in launch.command_of(
        "torchrun", job(), ["-m", "torch.utils.x", "--rdzv-id=1"]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--rdzv-backend=c10d", "train.py"],
        ["--rdzv_conf", "timeout=9", "train.py"],
        ["--nnodes=1:2", "train.py"],
        ["--standalone", "--max-restarts", "3", "--nnodes", "1:2", "-m", "train"],
    ],
)
def test_torchrun_with_a_rendezvous_of_the_user(words):
    command = launch.command_of("torchrun", job(), words)
    assert (
        "--rdzv_backend=c10d" in command[:4]
        and "--rdzv_endpoint=10.0.0.1:11023" in command
        and "--rdzv_conf=is_host=1" in command
    )
    assert command[-len(words) :] == words, "the last of several equal options counts"


def test_horovodrun():
    assert launch.command_of("horovodrun", job(), ["python3", "train.py"]) == [
        "horovodrun",
        "-np",
        "3",
        "-hostfile",
        "/run/trainyard/hosts",
        "-p",
        "11022",
        "--network-interface",
        "eth0",
        "python3",
        "train.py",
    ]
    assert "--network-interface" not in launch.command_of("horovodrun", job(interface=""), ["x"]), (
        "hosts with different names"
    )
    alone = job(count=1, entries=[{"address": "10.0.0.1", "slots": 2, "local": 0}])
    assert launch.command_of("horovodrun", alone, ["x"]) == [
        "horovodrun",
        "-np",
        "2",
        "-H",
        "localhost:2",
        "x",
    ], "one host needs no sshd"


def test_mpirun():
    environment = launch.launch_environment(
        {
            "PATH": "/opt/bin",
            "SLURM_JOB_ID": "7",
            "SLURM_NODELIST": "a",
            "PMI_RANK": "0",
            "OMPI_MCA_btl_tcp_if_include": "ib0",
            "TRAINYARD_NETWORK": "10.0.0.0/24",
            "TRAINYARD_FABRIC": "10.1.0.0/24",
            "PRTE_MCA_plm_slurm_args": "x",
        },
        "mpirun",
    )
    assert launch.command_of("mpirun", job(), ["-np", "2", "x"]) == [
        "mpirun",
        "--hostfile",
        "/run/trainyard/hosts",
        "-np",
        "2",
        "x",
    ]
    assert environment["PATH"] == "/run/trainyard/bin:/opt/bin", (
        "the ssh that checks host keys comes first"
    )
    assert environment["SLURM_JOB_ID"] == "7" and not {
        "SLURM_NODELIST",
        "PMI_RANK",
        "PRTE_MCA_plm_slurm_args",
    } & set(environment)
    assert environment["OMPI_MCA_btl_tcp_if_include"] == "ib0", "the user's setting wins"
    assert (
        environment["OMPI_MCA_oob_tcp_if_include"]
        == environment["PRTE_MCA_prte_if_include"]
        == "10.0.0.0/24"
    )
    assert (
        environment["OMPI_MCA_plm"] == "rsh"
        and environment["PRTE_MCA_plm_ssh_agent"] == "/run/trainyard/bin/ssh"
    )


def test_a_command_that_calls_the_launcher_itself(monkeypatch):
    assert launch.command_of("run", job(), ["./train.sh", "-x"]) == ["./train.sh", "-x"]
    assert (
        launch.launch_environment({"SLURM_NODELIST": "a"}, "run")["OMPI_MCA_plm_rsh_agent"]
        == "/run/trainyard/bin/ssh"
    ), "for mpirun in it"
    # trainyard-launch in this command: the other workers run their sshd already.
    ran = []
    monkeypatch.setattr(launch, "read_job", job)
    monkeypatch.setattr(launch, "run", lambda command, environment: ran.append(command) or 0)
    monkeypatch.setenv(launch.READY, "0")
    assert launch.main(["horovodrun", "x"]) == 0 and ran[0][0] == "horovodrun"
    # One that another step has left in the environment counts for nothing.
    monkeypatch.setenv(launch.READY, "1")
    monkeypatch.setattr(launch, "lead", lambda *_arguments: 7)
    monkeypatch.setattr(launch, "write_files", lambda *_arguments: None)
    monkeypatch.setattr(launch, "find", lambda *_arguments: "/usr/bin/ssh")
    assert launch.main(["horovodrun", "x"]) == 7


def test_torchrun_keeps_what_slurm_says():
    assert launch.launch_environment({"SLURM_NODELIST": "a"}, "torchrun")["SLURM_NODELIST"] == "a"


def test_the_sshd_of_the_job_accepts_one_key_of_one_user():
    files = {
        name: (text, mode)
        for name, text, mode in launch.files(
            job(index=1), "alice", "/usr/bin/ssh", {"TOKEN": "it's"}
        )
    }
    lines = files["ssh/sshd_config"][0].splitlines()
    assert {
        "Port 11022",
        "ListenAddress 10.0.0.2",
        "AllowUsers alice",
        "AuthenticationMethods publickey",
        "UsePAM no",
        "PermitRootLogin no",
        "AuthorizedKeysFile /run/trainyard/ssh/authorized_keys",
        "AllowTcpForwarding no",
        "ForceCommand /run/trainyard/bin/session",
    } <= set(lines)
    assert files["ssh/authorized_keys"][0] == job()["keys"]["user_public"]
    assert (
        files["ssh/known_hosts"][0]
        == "[10.0.0.1]:11022 ssh-ed25519 AAAAhost\n[10.0.0.2]:11022 ssh-ed25519 AAAAhost\n"
    )
    assert (
        "StrictHostKeyChecking yes" in files["ssh/config"][0]
        and "UserKnownHostsFile /run/trainyard/ssh/known_hosts" in files["ssh/config"][0]
    )
    assert "-o StrictHostKeyChecking=yes" in files["bin/ssh"][0], (
        "horovodrun sets no, and ssh takes the first value"
    )
    assert all(not mode & 0o077 for _text, mode in files.values())


def test_sessions_have_the_environment_of_their_worker(tmp_path):
    text = {
        name: text
        for name, text, _mode in launch.files(job(), "alice", "/usr/bin/ssh", {"A": "it's $HOME"})
    }
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh" / "environment").write_text(text["ssh/environment"], encoding="utf-8")
    program = tmp_path / "session"
    program.write_text(
        text["bin/session"].replace("/run/trainyard", str(tmp_path)), encoding="utf-8"
    )
    done = subprocess.run(
        ["sh", str(program)],
        env={"SSH_ORIGINAL_COMMAND": 'echo "$A"; exit 4'},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("it's $HOME\n", 4)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def local(**changes):
    return job(
        entries=[
            {"address": "127.0.0.1", "slots": 1, "local": 0},
            {"address": "127.0.0.1", "slots": 1, "local": 0},
        ],
        ports={"ssh": 1, "master": 2, "control": free_port()},
        **changes,
    )


def test_workers_wait_for_each_other_and_end_together():
    first, said = local(), []
    workers = launch.Workers(first)
    other = threading.Thread(
        target=lambda: said.append(launch.lines_of(launch.connect(dict(first, index=1), 20)))
    )
    other.start()
    workers.wait(20)
    workers.end(3)
    other.join()
    assert said == ["end 3"]


def test_a_worker_without_the_key_is_not_accepted():
    first = local()
    stranger = dict(first, index=1, keys={"user_private": "GUESS"})
    workers, said = launch.Workers(first), []
    other = threading.Thread(
        target=lambda: said.append(launch.lines_of(launch.connect(stranger, 5)))
    )
    other.start()
    with pytest.raises(launch.Refused, match="worker 1 did not start its sshd within 1"):
        workers.wait(1)
    other.join()
    assert said == [""]


def test_a_worker_that_goes_ends_the_launcher(capfd):
    first = local()
    workers = launch.Workers(first)
    connections = []
    other = threading.Thread(
        target=lambda: connections.append(launch.connect(dict(first, index=1), 20))
    )
    other.start()
    workers.wait(20)
    other.join()
    connections[0].close()
    child = subprocess.Popen(["sleep", "60"])
    workers.watch(child)
    assert child.wait(20) == -15 and workers.lost == 1


def test_outside_of_a_container(tmp_path, capsys):
    with pytest.raises(launch.Refused, match="this is not a container of trainyard-run"):
        launch.read_job(str(tmp_path))
    for words in ([], ["torchrun"], ["rm", "-rf"]):
        with pytest.raises(launch.Refused, match="usage"):
            launch.main(words)


def test_a_missing_program_names_the_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        launch.Refused, match="the image has no no-such-program; use an image with some-package"
    ):
        launch.find("no-such-program", "some-package")


def test_the_program_is_python_3_6():
    """Old training images have it."""
    for path in (PROGRAM, Path(_launchers.__file__)):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))
