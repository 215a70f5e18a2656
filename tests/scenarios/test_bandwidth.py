"""Bandwidth on four hosts of a lab: one link is slowed, then one network card, then one host's CPU.

Each is found and named, and nobody is when it is gone.

And nccl_all_reduce's own mpirun, between the containers of all four.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from whole_cluster import ROOT, WholeCluster

pytestmark = [pytest.mark.acceptance, pytest.mark.scenario]

# One at a time, as the hosts share this machine's cores. Whole and healthy they do some tenths of a
# GB/s together; what is slowed here, about a hundredth.
ASKED = {
    "verify_bandwidth_at_once": 1,
    "verify_bandwidth_min_gb_s": 0.03,
    "verify_bandwidth_peer_fraction": 0.4,
    "verify_bandwidth_drop_percent": 100,
}
RATE = "100mbit burst 64kb latency 200ms"
# PyTorch and Open MPI without Horovod, which nothing here needs and which takes minutes to compile.
IMAGE = {
    "training_image_requires": {"frameworks": [], "controllers": [], "tensor_operations": []},
    "training_image_tools": ["sudo", "mpirun"],
    "training_image_apt_packages": ["python3-mpi4py"],
}

# Between two hosts, beside the job, which moves some 600 MB/s: half as much at least.
SINK = """
import socket
with socket.create_server(("", 9999)) as server:
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
"""
FLOOD = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 9999)) as connection:
    while True:
        connection.sendall(bytes(1 << 20))
        time.sleep(0.002)
"""

# all_reduce_perf where there is no GPU: a real log of eight ranks, whose list of ranks is the one
# that MPI has brought together here.
LOG = ROOT / "tests/fixtures/all_reduce_perf/polaris-2node-8gpu.txt"
REPLAY = """#!/usr/bin/python3
import os, re, socket, sys
if "-h" in sys.argv:
    sys.exit("USAGE: all_reduce_perf [-g,--ngpus <gpus per thread>]")
from mpi4py import MPI
gpus, first = int(sys.argv[sys.argv.index("-g") + 1]), int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
mine = [(os.getpid(), socket.gethostname(), gpu, gpu) for gpu in range(first * gpus, (first + 1) * gpus)]
world = MPI.COMM_WORLD
ranks = [rank for process in world.allgather(mine) for rank in process]
print(socket.gethostname(), "has", os.environ["NCCL_SOCKET_IFNAME"], os.environ["NCCL_IB_HCA"], file=sys.stderr)
if world.Get_rank() == 0:
    for line in open("/root/all_reduce_perf.log"):
        rank = re.match("#  Rank +([0-9]+)", line)
        print(re.sub("Pid.*0x..", lambda _: "Pid %6d on %s device %2d [0x%02x" % ranks[int(rank[1])], line) if rank else line, end="")
"""


class FourHosts(WholeCluster):
    def __init__(self):
        super().__init__("bandwidth", "172.30.74.0/24")
        self.hosts = ["bandwidth-%s" % letter for letter in "abcd"]
        self.address = {host: "172.30.74.%d" % number for number, host in enumerate(self.hosts, 11)}

    def told(self, tasks, content, **more):
        """Run tasks on all hosts. Returns what the template of JSON is then, and the run."""
        found = self.state / "found.json"
        found.unlink(missing_ok=True)
        kept = {
            "ansible.builtin.copy": {"content": content, "dest": str(found), "mode": "0644"},
            "delegate_to": "localhost",
            "become": False,
            "run_once": True,
            "changed_when": False,
        }
        play = {
            "hosts": "cluster",
            "gather_facts": False,
            "become": True,
            "any_errors_fatal": True,
            "tasks": [*tasks, kept],
            **more,
        }
        path = self.state / "bandwidth.yml"
        path.write_text(json.dumps([play]), encoding="utf-8")
        run = self.playbook(str(path), "--extra-vars", ASKED)
        assert run.code == 0
        return json.loads(found.read_text(encoding="utf-8")), run

    def measured(self):
        """Run role verify's bandwidth part. Returns what it has found, and the run."""
        names = ("verify_bandwidth_checks", "verify_bandwidth", "verify_blame", "verify_suspect")
        answer, run = self.told(
            [
                {
                    "ansible.builtin.include_role": {
                        "name": "trainyard.gpu.verify",
                        "tasks_from": "bandwidth",
                    }
                }
            ],
            "{{ {%s} | to_json }}" % ", ".join("'%s': %s" % (name, name) for name in names),
            vars={"verify_report_dir": str(self.state / "reports")},
        )
        print(
            json.dumps(
                {
                    "seconds": run.seconds,
                    "checks": answer["verify_bandwidth_checks"],
                    "blame": answer["verify_blame"],
                },
                indent=1,
            )
        )
        return answer, run

    def all_reduce(self, **options):
        """Run nccl_all_reduce in the first host's container, over all hosts, with two GPUs each.

        Returns what it has returned.
        """
        options = {
            "container": self.container,
            "launcher": "mpirun_per_gpu",
            "hosts": list(self.address.values()),
            "gpus": 2,
            "max_bytes": "1G",
            "mpi_network": self.subnet,
            "timeout": 60,
            "environment": {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"},
            **options,
        }
        answer, _run = self.told(
            [{"trainyard.gpu.nccl_all_reduce": options, "run_once": True, "register": "told"}],
            "{{ told | to_json }}",
        )
        print(answer["output"], json.dumps(answer["reasons"], indent=1))
        return answer


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster():
    cluster = FourHosts()
    cluster.lab("down", "--keep")
    cluster.lab("up", "--hosts", "4", "--inventory", str(cluster.inventory))
    assert cluster.site("--extra-vars", IMAGE).code == 0
    yield cluster
    cluster.lab("down", "--keep")


@pytest.fixture(name="slow")
def fixture_slow(cluster):
    """Traffic of a host, or of a host to another one, through a narrow bucket; away again at the
    end.
    """
    slowed = []

    def slow(host, to=None):
        slowed.append(host)
        commands = ["tc qdisc add dev eth0 root tbf rate " + RATE]
        if to:
            commands = ["tc qdisc add dev eth0 root handle 1: htb default 10"]
            commands += [
                "tc class add dev eth0 parent 1: classid 1:%d htb rate 10gbit burst 1mb quantum 60000"
                % number
                for number in (4, 10)
            ]
            commands += [
                "tc qdisc add dev eth0 parent 1:4 tbf rate " + RATE,
                "tc filter add dev eth0 parent 1: protocol ip u32 match ip dst %s/32 flowid 1:4"
                % cluster.address[to],
            ]
        cluster.on(host, " && ".join(commands))

    yield slow
    for host in slowed:
        cluster.on(host, "tc qdisc del dev eth0 root")


def verdicts(answer):
    return {
        (check["id"], check["host"]): check["verdict"]
        for check in answer["verify_bandwidth_checks"]
    }


def good(cluster):
    each = {
        (check_id, host): verdict
        for check_id, verdict in (
            ("bandwidth-host", "pass"),
            ("fabric-counters", "pass"),
            ("gpus-busy", "skipped"),
        )
        for host in cluster.hosts
    }
    return {
        **each,
        ("bandwidth-cluster", ", ".join(cluster.hosts)): "pass",
        ("nccl-transport", ", ".join(cluster.hosts)): "skipped",
    }


def blamed(answer):
    return [(entry["kind"], entry["names"]) for entry in answer["verify_blame"]]


def test_good(cluster):
    answer, run = cluster.measured()
    assert verdicts(answer) == good(cluster) and answer["verify_suspect"] == []
    bandwidth = answer["verify_bandwidth"]
    assert (
        bandwidth["collective"] == "gloo"
        and [each["id"] for each in bandwidth["runs"]][-1] == "cluster"
    )
    rows = bandwidth["runs"][-1]["rows"]
    assert [row["size_bytes"] for row in rows] == [65536, 262144, 1048576, 4194304, 16777216] and {
        row["in_place"]["wrong"] for row in rows
    } == {0}
    # It measures; what it leaves on the share is its own.
    assert run.changed == {}


@pytest.fixture(name="replayed", scope="module")
def fixture_replayed(cluster):
    """all_reduce_perf in all containers, because no host has a GPU."""

    def put(host, path, content, mode):
        subprocess.run(
            [
                "docker",
                "exec",
                "-i",
                host,
                "docker",
                "exec",
                "-i",
                cluster.container,
                "sh",
                "-c",
                "cat > %s && chmod %s %s" % (path, mode, path),
            ],
            input=content,
            text=True,
            check=True,
        )

    for host in cluster.hosts:
        put(host, "/root/all_reduce_perf.log", LOG.read_text(encoding="utf-8"), "644")
        put(host, "/usr/local/bin/all_reduce_perf", REPLAY, "755")
    yield lambda host, content: put(host, "/usr/local/bin/all_reduce_perf", content, "755")
    for host in cluster.hosts:
        cluster.inside(host, "rm /root/all_reduce_perf.log /usr/local/bin/all_reduce_perf")


@pytest.mark.parametrize("launcher", ["mpirun_per_gpu", "mpirun_per_host"])
def test_all_reduce_by_mpirun(cluster, replayed, launcher):
    """MPI's own rendezvous and allgather, through the containers' sshd, from the head alone: every
    host has its two ranks, in order, and its variables.
    """
    assert replayed
    answer = cluster.all_reduce(launcher=launcher)
    assert answer["passed"] and (answer["ranks"], answer["hosts"], answer["gpus"]) == (8, 4, 8)
    assert [(rank["host"], rank["device"]) for rank in answer["devices"]] == [
        (host, gpu) for host in cluster.hosts for gpu in (0, 1)
    ]
    assert {host + " has =eth0 =mlx5_0,mlx5_1" for host in cluster.hosts} <= set(
        answer["output"].splitlines()
    )


def test_all_reduce_that_cannot_start_or_hangs(cluster, replayed):
    port = "-p tcp --dport %d -j REJECT --reject-with tcp-reset" % cluster.port
    cluster.on("bandwidth-c", "iptables -I INPUT " + port)
    try:
        answer = cluster.all_reduce()
    finally:
        cluster.on("bandwidth-c", "iptables -D INPUT " + port)
    assert (
        not answer["passed"]
        and answer["reasons"][0]["id"] == "ssh_failed"
        and cluster.address["bandwidth-c"] in answer["reasons"][0]["line"]
    )

    replayed("bandwidth-d", "#!/bin/sh\nexec sleep 1000\n")
    answer = cluster.all_reduce(timeout=15)
    replayed("bandwidth-d", REPLAY)
    assert (answer["passed"], answer["cause"]) == (False, "timeout")
    for host in cluster.hosts:
        # Nothing is left that keeps a GPU.
        assert (
            cluster.inside(
                host, 'pgrep -f "[a]ll_reduce_perf|[s]leep 1000|[o]rted|[m]pirun"', check=False
            ).out
            == ""
        ), host
    assert cluster.all_reduce()["passed"]


def test_one_link(cluster, slow):
    slow("bandwidth-b", to="bandwidth-c")
    slow("bandwidth-c", to="bandwidth-b")
    answer, _run = cluster.measured()
    assert blamed(answer) == [("link", ["bandwidth-b", "bandwidth-c"])] and answer[
        "verify_suspect"
    ] == ["bandwidth-c"]
    assert verdicts(answer) == {
        **good(cluster),
        ("bandwidth-cluster", ", ".join(cluster.hosts)): "fail",
    }


def test_one_card(cluster, slow):
    slow("bandwidth-d")
    answer, _run = cluster.measured()
    assert blamed(answer) == [("host", ["bandwidth-d"])] and answer["verify_suspect"] == [
        "bandwidth-d"
    ]
    assert "network card" in answer["verify_blame"][0]["evidence"]


def test_one_cpu(cluster):
    limit = "docker update --cpu-period 100000 --cpu-quota %s " + cluster.container
    cluster.on("bandwidth-c", limit % "20000")
    try:
        answer, _run = cluster.measured()
    finally:
        cluster.on("bandwidth-c", limit % "-1")
    assert blamed(answer) == [("host", ["bandwidth-c"])]
    assert (
        verdicts(answer)["bandwidth-host", "bandwidth-c"] == "fail"
        and "alone" in answer["verify_blame"][0]["evidence"]
    )


def test_verify_names_the_suspect_and_goes_on_without_it(cluster, slow):
    """The whole playbook, as a user runs it: verdict, evidence, and the group that later runs leave
    out.
    """
    slow("bandwidth-d")
    asked = ["--extra-vars", {**ASKED, **IMAGE}]
    run, report = cluster.playbook("playbooks/verify.yml", *asked), cluster.last_report()
    assert (run.code, report["verdict"], report["suspect"]) == (2, "fail", ["bandwidth-d"])
    assert {
        (check["id"], check["host"]) for check in report["checks"] if check["verdict"] == "fail"
    } == {("bandwidth-cluster", ", ".join(cluster.hosts))}
    assert "host bandwidth-d: each of the 3 pairs measured with it" in run.text
    suspects = cluster.inventory / ".trainyard/reports/suspect.yml"
    rest = cluster.playbook(
        "playbooks/verify.yml", "-i", str(suspects), "--limit", "cluster:!suspect", *asked
    )
    report = cluster.last_report()
    assert rest.code == 0 and {host["name"] for host in report["hosts"]} == set(cluster.hosts) - {
        "bandwidth-d"
    }
    assert ("bandwidth-cluster", "pass") in {
        (check["id"], check["verdict"]) for check in report["checks"]
    }
    # Nothing was measured that would take it back.
    assert "bandwidth-d" in suspects.read_text(encoding="utf-8")


def counted(answer):
    return {
        check["host"][-1]: (check["verdict"], check["found"])
        for check in answer["verify_bandwidth_checks"]
        if check["id"] == "fabric-counters"
    }


def test_other_traffic(cluster):
    """The job is as fast as it should be, or nearly; that something else sends over the same cards,
    only their counters tell.
    """
    cluster.on("bandwidth-c", "systemd-run --unit sink --collect python3 -c '%s'" % SINK)
    cluster.on(
        "bandwidth-b",
        "systemd-run --unit flood --collect python3 -c '%s' %s"
        % (FLOOD, cluster.address["bandwidth-c"]),
    )
    try:
        answer, _run = cluster.measured()
    finally:
        # The other end goes with the connection.
        cluster.on("bandwidth-b", "systemctl stop flood")
    counters = counted(answer)
    assert {host: verdict for host, (verdict, _found) in counters.items()} == {
        "a": "pass",
        "b": "warn",
        "c": "warn",
        "d": "pass",
    }, counters
    assert answer["verify_blame"] == []


def test_data_that_goes_another_way(cluster):
    """Two hosts have a second network, and routes to each other over it: the job is fast, and the
    fabric's cards have not carried all of it.
    """
    network = "trainyard-bandwidth-other"
    other = {"bandwidth-b": "172.30.119.12", "bandwidth-c": "172.30.119.13"}
    subprocess.run(
        ["docker", "network", "create", "--subnet", "172.30.119.0/24", network],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        for host, address in other.items():
            subprocess.run(
                ["docker", "network", "connect", "--ip", address, network, host], check=True
            )
        for host, peer in (("bandwidth-b", "bandwidth-c"), ("bandwidth-c", "bandwidth-b")):
            cluster.on(host, "ip route add %s/32 via %s" % (cluster.address[peer], other[peer]))
        answer, _run = cluster.measured()
    finally:
        # The routes go with their interfaces.
        for host in other:
            subprocess.run(
                ["docker", "network", "disconnect", "--force", network, host], check=False
            )
        subprocess.run(["docker", "network", "rm", network], check=True, stdout=subprocess.DEVNULL)
    counters = counted(answer)
    assert {host: verdict for host, (verdict, _found) in counters.items()} == {
        "a": "pass",
        "b": "fail",
        "c": "fail",
        "d": "pass",
    }, counters
    assert answer["verify_blame"] == []


def test_good_again(cluster):
    answer, _run = cluster.measured()
    assert verdicts(answer) == good(cluster) and answer["verify_blame"] == []


def test_job_that_cannot_run(cluster):
    """As with an image that lacks PyTorch: the reason is a finding, and the play goes on to it."""
    torchrun = cluster.inside("bandwidth-b", "command -v torchrun").out.strip()
    cluster.inside("bandwidth-b", "mv %s %s.away" % (torchrun, torchrun))
    try:
        answer, _run = cluster.measured()
    finally:
        cluster.inside("bandwidth-b", "mv %s.away %s" % (torchrun, torchrun))
    assert set(verdicts(answer).values()) == {"skipped"} and answer["verify_blame"] == []
    assert "bandwidth-b" in answer["verify_bandwidth_checks"][0]["found"]
