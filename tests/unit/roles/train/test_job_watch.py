"""Observation of a running job: GPUs, counters of the fabric, NCCL's connections."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
from ansible_collections.trainyard.gpu.roles.train.files import _job_watch


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("%s\n" % text, encoding="utf-8")
    return str(root)


def port(device, link_layer="InfiniBand", sent=0, received=0):
    folder = "class/infiniband/%s/ports/1/" % device
    return {
        folder + "state": "4: ACTIVE",
        folder + "rate": "200 Gb/sec (4X HDR)",
        folder + "link_layer": link_layer,
        folder + "counters/port_xmit_data": sent,
        folder + "counters/port_rcv_data": received,
        folder + "counters/unicast_xmit_packets": 1,
    }


GROUP = "system.slice/docker-1.scope"


@pytest.mark.parametrize(
    "own, files, expected",
    [
        # A container, whose own group is the root of what it sees.
        (
            "0::/",
            {
                "memory.max": 314572800,
                "memory.peak": 314572000,
                "memory.events": "low 0\noom 3\noom_kill 2",
            },
            (314572800, 314572000, 2),
        ),
        # A container that lives longer than its limit: docker update --memory.
        ("0::/", {"memory.max": 314572800, "memory.peak": 6234832896}, (314572800, 314572800, 0)),
        # A step of Slurm: the limit is at the job, and the kill is counted there and above.
        (
            "0::/job_7/step_0",
            {
                "memory.max": "max",
                "job_7/memory.max": 1 << 30,
                "job_7/memory.events": "oom_kill 1",
                "job_7/step_0/memory.max": 1 << 31,
                "job_7/step_0/memory.events": "oom_kill 0",
            },
            (1 << 30, None, 1),
        ),
        ("0::/../../x", {"x/memory.max": "max", "x/memory.events": "oom_kill 4"}, (None, None, 0)),
        (
            "12:memory:/%s\n1:cpu:/%s" % (GROUP, GROUP),
            {
                "memory/memory.limit_in_bytes": 9223372036854771712,
                "memory/%s/memory.limit_in_bytes" % GROUP: 314572800,
                "memory/%s/memory.max_usage_in_bytes" % GROUP: 314572800,
                "memory/%s/memory.oom_control"
                % GROUP: "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
            },
            (314572800, 314572800, 1),
        ),
        ("", {}, (None, None, 0)),
    ],
)
def test_memory_of_control_groups(tmp_path, own, files, expected):
    root = tree(tmp_path / "cgroup", files)
    (tmp_path / "own").write_text(own + "\n", encoding="utf-8")
    found = _job_watch.memory(root, str(tmp_path / "own"))
    assert (found["limit"], found["peak"], found["oom_kills"]) == expected


@pytest.mark.parametrize(
    "requested, devices, peaks, busy, idle",
    [
        # P1.10: the GPUs asked for must be busy.
        (2, [], [97, 96], 2, []),
        (4, [], [97, 96, 0, 0], 2, [2, 3]),
        (8, [], [97, 0, 95, 96, 4, 97, 99, 98], 6, [1, 4]),
        # Fewer ranks than GPUs, and no word on which.
        (2, [], [0, 0, 97, 96], 2, []),
        (2, [], [97, 0, 0, 0], 1, [1]),
        # Chosen GPUs: others that are busy belong to a different job.
        (2, ["2", "3"], [97, 96, 98, 0], 1, [3]),
        (2, ["2", "3"], [0, 0, 98, 97], 2, []),
        (1, ["GPU-8932f937"], [0, 97], 1, []),
        (0, [], [], 0, []),
        # MIG mode, no nvidia-smi, fewer GPUs than requested.
        (2, [], [None, None], None, []),
        (2, [], [], None, []),
        (2, [], [97, None], None, []),
        (1, [], [97, None], 1, []),
    ],
)
def test_requested_gpus(requested, devices, peaks, busy, idle):
    assert _job_watch.seen_gpus(requested, devices, peaks) == {
        "requested": requested,
        "busy": busy,
        "idle": idle,
    }


@pytest.mark.parametrize(
    "with_gpus, told, interface, sent",
    [
        (True, {"NCCL_IB_HCA": "=mlx5_0", "NCCL_SOCKET_IFNAME": "=bond0"}, "mlx5_0", 4000),
        (
            True,
            {"NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=bond0"},
            "bond0",
            70,
        ),
        # Gloo over the adapter's own interface; its port counts it too. That of RoCE does not.
        (False, {"NCCL_IB_HCA": "=mlx5_0", "GLOO_SOCKET_IFNAME": "bond0"}, "mlx5_0", 4000),
        (False, {"NCCL_IB_HCA": "=mlx5_9", "GLOO_SOCKET_IFNAME": "bond0"}, "bond0", 70),
        (False, {"GLOO_SOCKET_IFNAME": "bond0"}, "bond0", 70),
        (False, {}, "", None),
    ],
)
def test_what_carries_the_data(tmp_path, monkeypatch, with_gpus, told, interface, sent):
    """P5.7: port_xmit_data counts units of 4 bytes."""
    net = {"class/net/bond0/statistics/tx_bytes": 100, "class/net/bond0/statistics/rx_bytes": 200}
    sysfs = tree(
        tmp_path, {**net, **port("mlx5_0", sent=1000), **port("mlx5_9", "Ethernet", sent=50)}
    )
    for name in ("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_job_watch, "output", lambda *command: "")
    lines = []

    class Sink:
        def write(self, line):
            lines.append(json.loads(line))

        def flush(self):
            # While the job runs, both have sent.
            tree(
                tmp_path,
                {
                    **{path: value + 70 for path, value in net.items()},
                    **port("mlx5_0", sent=2000, received=3),
                    **port("mlx5_9", "Ethernet", sent=51),
                },
            )

    read_end, write_end = os.pipe()
    os.close(write_end)
    with os.fdopen(read_end) as source:
        _job_watch.watch(with_gpus, source, Sink(), sysfs)
    assert len(lines) == 2 and [lines[-1][name] for name in ("interface", "sent_bytes")] == [
        interface,
        sent,
    ]
    assert lines[0]["sent_bytes"] in (0, None)


def test_counters_that_begin_anew_are_no_traffic(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    counted = iter([[500, 500], [600, 600], [3, 3]])
    monkeypatch.setattr(_job_watch, "counters", lambda cards, sysfs: next(counted))
    lines = []
    read_end, write_end = os.pipe()
    os.close(write_end)
    sink = type(
        "Sink",
        (),
        {"write": lambda self, line: lines.append(json.loads(line)), "flush": lambda self: None},
    )()
    with os.fdopen(read_end) as source:
        _job_watch.watch(False, source, sink, str(tmp_path))
    assert [line["sent_bytes"] for line in lines] == [100, None]


def test_the_highest_use_of_each_gpu_counts(monkeypatch):
    told = iter(
        [
            "0, 1, 90\n12, 2, 90\n",
            "97, 3, 90\n[N/A], [N/A], 90\n",
            "no devices were found\n",
            "",
            "3, 4, 90\n5, 5, 90\n",
        ]
    )
    monkeypatch.setattr(_job_watch, "output", lambda *command: next(told))
    gpus, seen = _job_watch._Gpus(), []
    for _look in range(5):
        gpus.look()
        seen.append((gpus.peaks, gpus.looks, gpus.error))
    assert seen[:2] == [([0, 12], 1, ""), ([97, 12], 2, "")]
    assert (
        seen[2][:2] == seen[3][:2] == ([97, 12], 2)
        and "no devices were found" in seen[2][2]
        and seen[3][2] == "nvidia-smi has shown no GPU"
    )
    assert seen[4] == ([97, 12], 3, "") and gpus.now == [[3, 4, 90], [5, 5, 90]]


def test_a_call_of_nvidia_smi_that_hangs_delays_no_end(tmp_path):
    """As a child of the runner has it: the modules beside each other, the end of its input, and a
    driver that does not answer.
    """
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 3\n", encoding="utf-8")
    smi.chmod(0o755)
    for module in (_bandwidth, _job_watch):
        shutil.copy(module.__file__, tmp_path)
    code = (
        "import os, sys; sys.path.insert(0, %r); import _job_watch\ntry:\n    _job_watch.watch(True)\nfinally:\n    os._exit(0)"
        % str(tmp_path)
    )
    environment = dict(
        os.environ,
        PATH="%s:%s" % (tmp_path, os.environ["PATH"]),
        PYTHONPATH="",
        PYTHONDONTWRITEBYTECODE="1",
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as watcher:
        assert json.loads(watcher.stdout.readline())["looks"] == 0
        begun = time.monotonic()
        watcher.stdin.close()
        assert json.loads(watcher.stdout.readline())["peaks"] == []
        assert watcher.wait(10) == 0 and time.monotonic() - begun < 5


def test_lost_data_of_a_host(tmp_path):
    sysfs, proc = tmp_path / "sys", tmp_path / "proc"
    (sysfs / "class/net/eth0/statistics").mkdir(parents=True)
    (proc / "net").mkdir(parents=True)
    (sysfs / "class/net/eth0/mtu").write_text("1400\n")

    def counters(sent, resent, dropped):
        (sysfs / "class/net/eth0/statistics/rx_dropped").write_text("%d\n" % dropped)
        (proc / "net/snmp").write_text(
            "Ip: Forwarding\nIp: 1\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 %d %d\n"
            % (sent, resent)
        )
        return _job_watch.losses([{"name": "eth0", "rdma": False}], str(sysfs), str(proc))

    before, after = counters(1000, 7, 90), counters(5000, 207, 3)
    assert _bandwidth.grown(before, after) == {
        "tcp": [4000, 200],
        # Started anew, by a reload of the driver.
        "cards": {"eth0 rx_dropped": 3},
        "mtu": {"eth0": 1400},
    }
    assert _job_watch.losses([], str(tmp_path), str(tmp_path)) == {
        "tcp": [],
        "cards": {},
        "mtu": {},
    }


def test_packets_that_flow_control_has_lost(tmp_path, monkeypatch):
    """Of the interface of a RoCE card, two of whose priorities have lost some. InfiniBand has none."""
    lines = {"ens1": "rx_prio3_discards: 7\nrx_prio4_discards: 2\nrx_prio3_pause: 99"}
    lines["ens2"] = "tx_pause_storm_error_events: 1"
    for card, layer, names in (("mlx5_0", "Ethernet", lines), ("mlx5_1", "InfiniBand", ["ib1"])):
        port = tmp_path / "class/infiniband" / card / "ports/1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(layer + "\n")
        for name in names:
            (port.parents[1] / "device/net" / name).mkdir(parents=True)
    found = _job_watch.lost_by_flow_control("mlx5_0", str(tmp_path), lines.__getitem__)
    assert found == {"mlx5_0 pfc_discards": 9, "mlx5_0 pfc_storms": 1}
    assert _job_watch.lost_by_flow_control("mlx5_1", str(tmp_path), lines.__getitem__) == {}
    monkeypatch.setattr(_job_watch.lost_by_flow_control, "__defaults__", ("", lines.__getitem__))
    cards = [{"name": "mlx5_0", "rdma": True}]
    told = _job_watch.losses(cards, str(tmp_path), str(tmp_path))["cards"]
    assert told == {"mlx5_0 pfc_discards": 9, "mlx5_0 pfc_storms": 1}


@pytest.mark.parametrize(
    "own, files, found",
    [
        (
            "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
            {
                "system.slice/slurmstepd.scope/job_12/cpu.stat": "usage_usec 2500000\nuser_usec 1",
                "system.slice/slurmstepd.scope/job_12/memory.current": "4096",
            },
            {"cpu_seconds": 2.5, "memory": 4096},
        ),
        (
            "5:memory:/slurm/uid_7/job_12/step_0\n4:cpu,cpuacct:/slurm/uid_7/job_12/step_0",
            {
                "memory/slurm/uid_7/job_12/memory.usage_in_bytes": "8192",
                "cpuacct/slurm/uid_7/job_12/cpuacct.usage": "1500000000",
            },
            {"cpu_seconds": 1.5, "memory": 8192},
        ),
        # slurmd's own group has the processes of all jobs.
        (
            "0::/system.slice/slurmd.service",
            {"system.slice/slurmd.service/memory.current": "5"},
            {"cpu_seconds": None, "memory": None},
        ),
        ("", {}, {"cpu_seconds": None, "memory": None}),
    ],
)
def test_what_a_job_uses_of_its_host(tmp_path, own, files, found):
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    (tmp_path / "own").write_text(own + "\n", encoding="utf-8")
    assert _job_watch.load(str(tmp_path / "cgroup"), str(tmp_path / "own")) == found
