"""Decision slurm_plan: Slurm's files for clusters of many shapes, and what is wrong with hosts and
variables.
"""

from __future__ import annotations

import copy
import hashlib
import re
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_accounts import faults
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _slurm_sessions,
    _slurm_ssh,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_conf import parse_conf

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "slurm_plan"
VERSIONS = {
    "21.08": "21.08.5-2ubuntu1",
    "22.05": "22.05.8-4+deb12u3",
    "23.11": "23.11.4-1.2ubuntu5",
    "24.11": "24.11.5-4+deb13u1",
}
SERVICE = {
    "loaded": True,
    "active": False,
    "enabled": False,
    "state": "inactive/dead",
    "user": "",
    "runtime_directory": "",
}
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


def reading(name, release="22.05", gpus=8, model=H100, memory=1031000, cpus=128, **more):
    """What slurm_host_info returns."""
    services = {
        unit: dict(SERVICE)
        for unit in ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd")
    }
    if release >= "23.11":
        services["slurmctld"].update(user="slurm", runtime_directory="slurmctld")
        services["slurmdbd"].update(user="slurm", runtime_directory="slurmdbd")
    found = {
        "hostname": name,
        "release": release,
        "packages": {},
        "candidates": {"slurmd": VERSIONS.get(release, release)},
        "hardware": {
            "cpus": cpus,
            "boards": 1,
            "sockets": 2,
            "cores_per_socket": cpus // 4,
            "threads_per_core": 2,
            "real_memory": memory,
        },
        "gpus": [
            {"path": "/dev/nvidia%d" % minor, "minor": minor, "model": model}
            for minor in range(gpus)
        ],
        "container": "",
        "cgroup": {"version": 2, "usable": True, "why": "", "cores": True, "swap": True},
        "dbus": True,
        "services": services,
        "texts": {},
        "record": {},
        "munge_key": {"exists": True, "private": True, "digest": "k"},
        "mail_program": "/usr/bin/mail",
        "pmix_folder": "",
        "pmix_link": "",
    }
    return dict(found, **more)


def cluster(*names, **more):
    return {name: reading(name, **more) for name in names}


def plan(readings=None, hosts=None, **more):
    readings = cluster("a", "b") if readings is None else readings
    hosts = list(readings) if hosts is None else hosts
    members = more.pop(
        "members",
        [{"name": name, "address": "10.0.0.%d" % number} for number, name in enumerate(hosts, 11)],
    )
    return _slurm_plan.decide_slurm_plan(
        readings,
        {
            "hosts": hosts,
            "scheduler": more.pop("scheduler", hosts[0]),
            "members": members,
            **more,
        },
    )


def good(*arguments, **more):
    """The plan of a cluster without a problem.

    Where the tests have hosts without limits, the site has accepted it.
    """
    more.setdefault("accept_no_limits", True)
    found = plan(*arguments, **more)
    assert found["problems"] == [] and found["complete"]
    return found


def text(found, name, part="controller_files"):
    return next(entry["content"] for entry in found[part] if entry["path"].endswith(name))


def conf(*arguments, **more):
    return parse_conf(text(good(*arguments, **more), "/slurm.conf"))


def problem(pattern, *arguments, **more):
    found = plan(*arguments, **more)
    assert not found["complete"] and "controller_files" not in found
    assert [sentence for sentence in found["problems"] if re.search(pattern, sentence)], found[
        "problems"
    ]
    return found["problems"]


def again(found, readings, scheduler="a"):
    """The readings of the next run: the scheduler has the files of the plan."""
    later = copy.deepcopy(readings)
    later[scheduler]["texts"] = {
        entry["path"]: entry["content"] for entry in found["controller_files"]
    }
    return later


# Shapes of clusters.


def test_two_models_and_a_host_without_gpu():
    """The file as a whole, for reading."""
    readings = dict(
        cluster("gpu1", "gpu2"),
        cpu1=reading("cpu1", gpus=0, memory=250000, cpus=64),
        old1=reading("old1", model=A100, gpus=4),
    )
    found = good(
        readings,
        partitions=[
            {"name": "train", "hosts": ["all"], "default": True, "max_minutes": 4320},
            {"name": "interactive", "hosts": ["old1"], "max_minutes": 480, "priorities": ["high"]},
        ],
        node_features={"gpu2": ["ib"]},
        options={"TmpFS": "/scratch"},
    )
    assert text(found, "/slurm.conf") == (FIXTURES / "two_models.slurm.conf").read_text(
        encoding="utf-8"
    )
    assert text(found, "/gres.conf").splitlines()[1:] == [
        "NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[0-7] Flags=nvidia_gpu_env",
        "NodeName=gpu2 Name=gpu Type=h100 File=/dev/nvidia[0-7] Flags=nvidia_gpu_env",
        "NodeName=old1 Name=gpu Type=a100 File=/dev/nvidia[0-3] Flags=nvidia_gpu_env",
    ]
    assert found["node_names"] == ["gpu1", "gpu2", "cpu1", "old1"] and found["warnings"] == []


@pytest.mark.parametrize("release", sorted(VERSIONS))
def test_one_host_of_every_release(release):
    found = good(cluster("a", release=release))
    told = parse_conf(text(found, "/slurm.conf"))
    assert (
        list(told["nodes"]) == ["a"]
        and told["partitions"]["train"]["default"] == "YES"
        and found["release"] == release
    )
    assert (
        told["options"]["slurmctldparameters"] == "enable_configless"
        and "slurmdparameters" not in told["options"]
    )
    # Unknown to earlier releases, where it would be fatal.
    assert told["options"].get("debugflags", "") == ("GLOB_SILENCE" if release >= "23.11" else "")
    # cgroup/v2 came with 22.05.
    assert told["options"]["proctracktype"] == (
        "proctrack/cgroup" if release >= "22.05" else "proctrack/linuxproc"
    )
    assert "CgroupAutomount" not in text(found, "/cgroup.conf")
    assert ("innodb_buffer_pool_size=%dM" % (2048 if release >= "23.11" else 512)) in text(
        found, "slurm.cnf", "database_files"
    )
    # Where the unit has a user of its own, it cannot write in /run.
    assert told["options"]["slurmctldpidfile"] == (
        "/run/slurmctld/slurmctld.pid" if release >= "23.11" else "/run/slurmctld.pid"
    )
    assert (
        "PidFile=/run/slurmdbd/slurmdbd.pid" in text(found, "/slurmdbd.conf", "slurmdbd_files")
    ) == (release >= "23.11")


def test_64_hosts_of_two_models():
    readings = {
        "n%02d" % number: reading("n%02d" % number, model=H100 if number <= 40 else A100)
        for number in range(1, 65)
    }
    found = good(readings)
    told = parse_conf(text(found, "/slurm.conf"))
    assert len(told["nodes"]) == 64 and len(text(found, "/gres.conf").splitlines()) == 65
    assert (
        told["nodes"]["n40"]["gres"] == "gpu:h100:8"
        and told["nodes"]["n41"]["gres"] == "gpu:a100:8"
    )
    assert [node["features"] for node in found["nodes"]].count(["h100"]) == 40
    # The order of the inventory.
    assert found["node_names"] == list(readings)


def test_two_models_in_one_host():
    gpus = [
        {
            "path": "/dev/nvidia%d" % minor,
            "minor": minor,
            "model": H100 if minor in (0, 1, 4) else A100,
        }
        for minor in (0, 1, 2, 4)
    ]
    found = good({"a": reading("a", gpus=0, **{}) | {"gpus": gpus}})
    assert parse_conf(text(found, "/slurm.conf"))["nodes"]["a"]["gres"] == "gpu:h100:3,gpu:a100:1"
    assert text(found, "/gres.conf").splitlines()[1:] == [
        "NodeName=a Name=gpu Type=h100 File=/dev/nvidia[0-1,4] Flags=nvidia_gpu_env",
        "NodeName=a Name=gpu Type=a100 File=/dev/nvidia2 Flags=nvidia_gpu_env",
    ]
    assert found["nodes"][0]["features"] == ["h100", "a100"]
    assert found["nodes"][0]["gpu_numbers"] == [0, 1, 4, 2]


@pytest.mark.parametrize(
    "minors, display, numbers, files",
    [
        # Four A100 around a display card.
        (range(5), 3, [0, 1, 2, 4, 3], ["/dev/nvidia[0-2,4]", "/dev/nvidia3"]),
        # The display card comes first: so does its type in Gres.
        (range(5), 0, [0, 1, 2, 3, 4], ["/dev/nvidia0", "/dev/nvidia[1-4]"]),
        ([2, 3, 5, 7], None, [2, 3, 5, 7], ["/dev/nvidia[2-3,5,7]"]),
    ],
)
def test_numbers_of_devices_in_the_order_of_slurm(minors, display, numbers, files):
    gpus = [
        {
            "path": "/dev/nvidia%d" % minor,
            "minor": minor,
            "model": "NVIDIA DGX Display" if minor == display else A100,
        }
        for minor in minors
    ]
    found = good({"a": reading("a") | {"gpus": gpus}})
    assert found["nodes"][0]["gpu_numbers"] == numbers
    lines = text(found, "/gres.conf").splitlines()[1:]
    assert [line.partition("File=")[2].split()[0] for line in lines] == files


HARDWARE = {"sockets": 2, "cores_per_socket": 32}
HALVES = {str(number): [number // 4] for number in range(8)}


@pytest.mark.parametrize(
    "sockets, kernel, lines",
    [
        (HALVES, HARDWARE, ["[0-3] Cores=0-31", "[4-7] Cores=32-63"]),
        # In turn: Slurm still counts the GPUs in the order of their numbers.
        (
            {"0": [0], "1": [0], "2": [1], "3": [0], "4": [0], "5": [1], "6": [1], "7": [1]},
            HARDWARE,
            ["[0-1] Cores=0-31", "2 Cores=32-63", "[3-4] Cores=0-31", "[5-7] Cores=32-63"],
        ),
        # Both sockets, as in a virtual machine, or none: nothing to say.
        ({str(number): [0, 1] for number in range(8)}, HARDWARE, ["[0-7]"]),
        ({"0": [], "7": [1]}, HARDWARE, ["[0-6]", "7 Cores=32-63"]),
        ({}, HARDWARE, ["[0-7]"]),
        # slurmd calls something else a socket, or these are facts of an earlier release.
        (HALVES, {"sockets": 8, "cores_per_socket": 8}, ["[0-7]"]),
        (HALVES, {}, ["[0-7]"]),
    ],
)
def test_cores_near_each_gpu(sockets, kernel, lines):
    found = good({"a": reading("a", gpu_sockets=sockets, kernel_hardware=kernel)})
    assert text(found, "/gres.conf").splitlines()[1:] == [
        "NodeName=a Name=gpu Type=h100 File=/dev/nvidia%s Flags=nvidia_gpu_env" % line
        for line in lines
    ]
    assert found["nodes"][0]["gpu_numbers"] == list(range(8))


def test_cores_of_one_socket_or_of_a_lab():
    """All GPUs are near the only socket. A lab's containers claim CPUs, so there are no sockets."""
    one = {"sockets": 1, "cores_per_socket": 64}
    told = reading("a", gpu_sockets=HALVES, kernel_hardware=one)
    told["hardware"].update(one)
    assert "Cores=" not in text(good({"a": told}), "/gres.conf")
    told = reading("a", gpu_sockets=HALVES, kernel_hardware=HARDWARE, container="docker")
    lab = good({"a": told}, node_hardware={"a": {"cpus": 4}})
    assert "Cores=" not in text(lab, "/gres.conf")


def test_npus():
    """They are gres/gpu, so that quotas count them."""
    npus = [
        {"path": "/dev/davinci%d" % minor, "minor": minor, "model": "Ascend910B1"}
        for minor in range(8)
    ]
    found = good({"a": reading("a") | {"gpus": npus}})
    assert text(found, "/gres.conf").splitlines()[1:] == [
        "NodeName=a Name=gpu Type=ascend910b1 File=/dev/davinci[0-7] Flags=nvidia_gpu_env"
    ]
    assert parse_conf(text(found, "/slurm.conf"))["nodes"]["a"]["gres"] == "gpu:ascend910b1:8"
    assert found["nodes"][0]["features"] == ["ascend910b1"]
    assert found["nodes"][0]["gpu_numbers"] == list(range(8))


def test_no_gpu_at_all():
    found = good(cluster("a", gpus=0))
    told = parse_conf(text(found, "/slurm.conf"))
    # Quotas on GPUs can be made all the same, and the first GPU needs no restart.
    assert (
        told["options"]["grestypes"] == "gpu"
        and "gres" not in told["nodes"]["a"]
        and "defcpupergpu" not in told["partitions"]["train"]
    )
    assert len(text(found, "/gres.conf").splitlines()) == 1


def test_a_scheduler_outside_of_the_training_hosts():
    readings = dict(
        cluster("a", "b"),
        head=reading(
            "head",
            gpus=0,
            release="24.11",
            cgroup={"version": 1, "usable": False, "why": "x", "cores": False, "swap": False},
        ),
    )
    readings["a"]["release"] = readings["b"]["release"] = "23.11"
    members = [
        {"name": "a", "address": "10.0.0.1"},
        {"name": "b", "address": "10.0.0.2"},
        {"name": "head", "address": "10.0.0.9"},
    ]
    found = good(
        readings, ["a", "b"], scheduler="head", members=members, login_hosts=["head", "a", "front"]
    )
    told = parse_conf(text(found, "/slurm.conf"))
    assert (
        list(told["nodes"]) == ["a", "b"] and told["options"]["slurmctldhost"] == "head(10.0.0.9)"
    )
    # Only the hosts that run jobs decide how jobs are limited.
    assert found["cgroups"] and "AccountingStorageHost=10.0.0.9" in text(found, "/slurm.conf")
    # The others have the file already: the scheduler itself, or /run/slurm/conf of slurmd.
    assert list(found["login_files"]) == ["front"]
    assert "--conf-server 10.0.0.9:6817" in text(found, "trainyard.conf", "node_files")


def test_an_inventory_name_that_is_not_the_host_name():
    assert (
        conf({"node-1": reading("ip-10-0-0-1")})["nodes"]["node-1"]["nodehostname"] == "ip-10-0-0-1"
    )
    assert "nodehostname" not in conf(cluster("a"))["nodes"]["a"]


def test_containers_of_the_lab():
    lab = cluster(
        "a",
        "b",
        container="docker",
        cpus=4,
        cgroup={
            "version": 1,
            "usable": False,
            "why": "the host is a container (docker)",
            "cores": False,
            "swap": False,
        },
    )
    found = good(
        lab,
        node_hardware={
            "a": {"cpus": 8, "real_memory": 8000},
            "b": {"cpus": 8, "real_memory": 8000},
        },
    )
    told = parse_conf(text(found, "/slurm.conf"))
    assert (
        told["nodes"]["a"]["cpus"] == "8"
        and told["nodes"]["a"]["corespersocket"] == "8"
        and told["options"]["slurmdparameters"] == "config_overrides"
    )
    # slurmctld calls Contain an error without proctrack/cgroup.
    assert (
        told["options"]["prologflags"] == "Alloc" and told["options"]["taskplugin"] == "task/none"
    )
    assert "CgroupPlugin" not in text(found, "/cgroup.conf")
    assert [sentence for sentence in found["warnings"] if "a: the host is a container" in sentence]
    # Without the variable they are described as they are.
    assert (
        "slurmdparameters" not in conf(lab)["options"]
        and conf(lab)["options"]["taskplugin"] == "task/affinity"
    )
    for host in lab.values():
        host["release"] = "24.11"
    assert "CgroupPlugin=disabled" in text(good(lab), "/cgroup.conf")
    problem(
        "b: its hardware is set by a variable, but it is not a container",
        cluster("a", "b"),
        node_hardware={"b": {"cpus": 8}},
    )


def test_the_weakest_host_decides_about_control_groups():
    readings = cluster("a", "b", "c")
    assert "ConstrainDevices=yes" in text(
        good(readings), "/cgroup.conf"
    ) and "ConstrainSwapSpace=yes" in text(good(readings), "/cgroup.conf")
    told = parse_conf(text(good(readings), "/slurm.conf"))["options"]
    assert (
        told["taskplugin"] == "task/affinity,task/cgroup"
        and told["prologflags"] == "Contain"
        and told["jobacctgathertype"] == "jobacct_gather/cgroup"
    )
    readings["b"]["cgroup"] = {
        "version": 1,
        "usable": True,
        "why": "",
        "cores": True,
        "swap": False,
    }
    assert "ConstrainSwapSpace" not in text(good(readings), "/cgroup.conf")
    readings["c"]["cgroup"] = {
        "version": 1,
        "usable": False,
        "why": "no memory controller",
        "cores": False,
        "swap": False,
    }
    found = good(readings)
    assert not found["cgroups"] and "# No limits: c: no memory controller." in text(
        found, "/cgroup.conf"
    )
    assert (
        parse_conf(text(found, "/slurm.conf"))["options"]["proctracktype"] == "proctrack/linuxproc"
    )
    assert [
        sentence
        for sentence in good(cluster("a", dbus=False))["warnings"]
        if "install dbus" in sentence
    ]


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {
                "cgroup": {
                    "version": 1,
                    "usable": False,
                    "why": "the host is a container (docker)",
                    "cores": False,
                    "swap": False,
                }
            },
            ["the host is a container (docker)", "use a machine in place of a container"],
        ),
        (
            {
                "cgroup": {
                    "version": 2,
                    "usable": False,
                    "why": "the kernel has no control group controller memory",
                    "cores": True,
                    "swap": False,
                }
            },
            ["controller memory", "cgroup_enable=memory"],
        ),
        (
            {"release": "21.08"},
            [
                "Slurm 21.08 does not know control groups version 2",
                "systemd.unified_cgroup_hierarchy=0",
                "Ubuntu 24.04",
            ],
        ),
    ],
)
def test_a_host_without_limits_stops_the_run(changes, said):
    # Slurm 22.05 would not start on a cluster whose scheduler has 21.08, so that all hosts have one
    # release.
    readings = dict(
        cluster(
            "a",
            release=changes.get("release", "22.05"),
            cgroup={"version": 1, "usable": True, "why": "", "cores": True, "swap": False},
        ),
        b=reading("b", **changes),
    )
    found = plan(readings)
    assert [sentence.split(":")[0] for sentence in found["problems"]] == ["b"] and not found[
        "complete"
    ]
    for word in said + ["'slurm_accept_no_limits: true' in the variables of group cluster"]:
        assert word in found["problems"][0]
    assert good(readings)["cgroups"] is False
    # Only hosts that run jobs count.
    assert (
        plan(readings, ["a"])["complete"]
        and plan(
            dict(readings, c=readings["b"]),
            ["a"],
            scheduler="b",
            members=[{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.12"}],
        )["complete"]
    )


def test_a_kernel_without_cpuset_limits_memory_and_devices():
    readings = cluster("a", "b", dbus=False)
    readings["b"]["cgroup"] = {
        "version": 2,
        "usable": True,
        "why": "",
        "cores": False,
        "swap": True,
    }
    found = good(readings)
    told = text(found, "/cgroup.conf")
    assert (
        "ConstrainCores" not in told
        and "ConstrainDevices=yes" in told
        and "ConstrainRAMSpace=yes" in told
    )
    assert (
        parse_conf(text(found, "/slurm.conf"))["options"]["taskplugin"]
        == "task/affinity,task/cgroup"
    )
    assert [
        sentence for sentence in found["warnings"] if "CPUs, because b has no" in sentence
    ] and [line for line in found["warnings"] if "dbus" in line]


def test_a_kernel_that_does_not_count_swap_limits_memory_and_devices():
    readings = cluster("a", "b")
    readings["b"]["cgroup"]["swap"] = False
    found = good(readings)
    told = text(found, "/cgroup.conf")
    # slurmd: "ConstrainSwapSpace is enabled but there is no support for swap in the memory cgroup
    # controller", and it ends.
    assert (
        "ConstrainSwapSpace" not in told
        and "ConstrainRAMSpace=yes" in told
        and "ConstrainCores=yes" in told
    )
    assert (
        "swap of jobs is not limited, because the kernel of b does not count it"
        in found["warnings"]
    )
    assert not [sentence for sentence in good(cluster("a"))["warnings"] if "swap" in sentence]


# Hardware and its changes.


@pytest.mark.parametrize(
    "model, expected",
    [
        (H100, "h100"),
        (A100, "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("Quadro RTX 8000", "rtx8000"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA TITAN V", "titanv"),
        ("Tesla T4", "t4"),
        ("NVIDIA H100 NVL", "h100"),
        ("Ascend 910B", "910b"),
        ("", ""),
        (None, ""),
        ("NVIDIA", ""),
    ],
)
def test_type_of_a_model(model, expected):
    assert _slurm_plan.gpu_type(model) == expected


def test_models_that_the_driver_does_not_tell():
    silent = cluster("a", model="")
    found = good(silent)
    assert parse_conf(text(found, "/slurm.conf"))["nodes"]["a"][
        "gres"
    ] == "gpu:8" and "Type=" not in text(found, "/gres.conf")
    assert [sentence for sentence in found["warnings"] if "set slurm_gpu_type" in sentence]
    assert conf(silent, gpu_models={"a": [H100] * 8})["nodes"]["a"]["gres"] == "gpu:h100:8"
    assert conf(silent, gpu_types={"a": "lab"})["nodes"]["a"]["gres"] == "gpu:lab:8"
    problem(
        "a: the driver reports 9 GPUs, but there are 8 device nodes",
        silent,
        gpu_models={"a": [H100] * 9},
    )


def test_memory_is_kept_for_the_system():
    assert conf(cluster("a", memory=1031000))["nodes"]["a"]["realmemory"] == str(1031000 - 8192)
    assert conf(cluster("a", memory=24105))["nodes"]["a"]["realmemory"] == str(24105 - 512)
    assert conf(cluster("a", memory=400))["nodes"]["a"]["realmemory"] == "1"


def test_another_kernel_does_not_change_the_node():
    readings = cluster("a", "b")
    first = good(readings)
    later = again(first, readings)
    for memory in (1031000, 1030900, 1031300):
        later["a"]["hardware"]["real_memory"] = memory
        found = good(later)
        assert text(found, "/slurm.conf") == text(first, "/slurm.conf")
        assert (
            not found["effect"]["restart_slurmctld"]
            and not found["effect"]["reconfigure"]
            and not found["effect"]["first"]
        )
    # More memory is used.
    later["a"]["hardware"]["real_memory"] = 2062000
    assert parse_conf(text(good(later), "/slurm.conf"))["nodes"]["a"]["realmemory"] == str(
        2062000 - 8192
    )


def test_a_host_that_lost_something():
    readings = cluster("a", "b")
    later = again(good(readings), readings)
    for change, pattern in (
        ({"gpus": later["b"]["gpus"][:7]}, "b: 7 GPUs found, 8 configured"),
        (
            {"hardware": dict(later["b"]["hardware"], real_memory=768000)},
            "b: 768000 MiB of memory found, 1022808 configured",
        ),
        ({"hardware": dict(later["b"]["hardware"], cpus=64)}, "b: 64 CPUs found, 128 configured"),
    ):
        smaller = dict(later, b=dict(later["b"], **change))
        assert len(problem(pattern, smaller)) == 1
        assert good(smaller, accept_smaller=["b"])["effect"]["restart_slurmctld"]


def test_a_host_that_does_not_answer():
    readings = cluster("a", "b", "c")
    first = good(readings)
    later = again(first, readings)
    del later["c"]
    found = good(later, ["a", "b", "c"])
    # Its node stays as it was: jobs may run there.
    assert (
        parse_conf(text(found, "/slurm.conf"))["nodes"]["c"]
        == parse_conf(text(first, "/slurm.conf"))["nodes"]["c"]
    )
    assert (
        "NodeName=c Name=gpu Type=h100" in text(found, "/gres.conf")
        and found["effect"]["removed"] == []
    )
    assert (
        not found["effect"]["restart_slurmctld"]
        and "c: the host does not answer; its node stays as it is" in found["warnings"]
    )
    # One that never was a node waits.
    found = good(later, ["a", "b", "c", "d"], partitions=[{"name": "p", "hosts": ["a", "d"]}])
    assert (
        "d" not in found["node_names"]
        and parse_conf(text(found, "/slurm.conf"))["partitions"]["p"]["nodes"] == "a"
    )
    # A name that begins like another one's.
    assert "NodeName=c1" not in text(found, "/gres.conf")


def test_defaults_of_a_job():
    readings = dict(
        cluster("a"), b=reading("b", cpus=64, gpus=4, memory=257024), c=reading("c", gpus=0)
    )
    told = conf(
        readings, partitions=[{"name": "p", "default": True}, {"name": "q", "hosts": ["c"]}]
    )["partitions"]
    # The smallest share of any host, so that jobs that name nothing fit side by side everywhere.
    assert (
        told["p"]["defmempercpu"] == str((257024 - 5140) // 64)
        and told["p"]["defcpupergpu"] == "16"
    )
    assert "defcpupergpu" not in told["q"]


# Partitions, priorities, options.


def test_hosts_of_partitions():
    groups = {"fast": ["b", "outside"], "web": ["outside"]}
    entries = [
        {"name": "train", "default": True},
        {"name": "dev", "hosts": ["fast"], "max_minutes": 60, "priorities": ["high", "low"]},
        {"name": "one", "hosts": "a"},
        {"name": "both", "hosts": ["b", "a", "fast"]},
    ]
    told = conf(partitions=entries, groups=groups)["partitions"]
    assert [told[name]["nodes"] for name in ("train", "dev", "one", "both")] == [
        "a,b",
        "b",
        "a",
        "a,b",
    ]
    assert (
        told["dev"]["maxtime"] == "60"
        and told["dev"]["allowqos"] == "high,low"
        and told["train"]["maxtime"] == "43200"
    )
    assert [told[name]["default"] for name in told] == ["YES", "NO", "NO", "NO"]
    problem(
        "slurm_partitions: 'x' has the host 'web', which is neither a training host nor a group with one",
        partitions=[{"name": "x", "hosts": ["web"]}],
        groups=groups,
    )


@pytest.mark.parametrize(
    "partitions, pattern",
    [
        ([{"name": "a", "hosts": ["ghost"]}], "'a' has the host 'ghost'"),
        ([{"name": "a"}, {"name": "b"}], "no partition is the default"),
        (
            [{"name": "a", "default": True}, {"name": "b", "default": True}],
            "a, b are all the default",
        ),
        ([{"name": "a", "default": True}, {"name": "a"}], "'a' is listed 2 times"),
        ([{"name": "DEFAULT"}], "'DEFAULT' is not a valid name"),
        ([{"name": "a b"}], "'a b' is not a valid name"),
        ([{"name": "a\nNodeName=x"}], "is not a valid name"),
        ([{}], "'' is not a valid name"),
        ([{"name": "a", "max_minutes": -1}], "max_minutes '-1'"),
        ([{"name": "a", "max_minutes": "1 day"}], "max_minutes '1 day'"),
        (
            [{"name": "a", "priorities": ["urgent"]}],
            "the priority 'urgent', which is not in slurm_priorities",
        ),
    ],
)
def test_wrong_partitions(partitions, pattern):
    assert len(problem(pattern, partitions=partitions)) == 1


@pytest.mark.parametrize(
    "priorities, pattern",
    [
        (
            [{"name": "a", "preempts": ["b"]}, {"name": "b", "preempts": ["a"]}],
            "a > b > a preempt each other in a circle",
        ),
        ([{"name": "a", "preempts": ["a"]}], "a > a preempt each other"),
        (
            [
                {"name": "a", "preempts": ["b"]},
                {"name": "b", "preempts": ["c"]},
                {"name": "c", "preempts": ["b"]},
            ],
            "b > c > b",
        ),
        ([{"name": "a", "preempts": ["ghost"]}], "preempts 'ghost', which is not in the list"),
        ([{"name": "A"}], "'A' is not a valid name"),
        ([{"name": "root"}], "'root' is not a valid name"),
        ([{"name": "a"}, {"name": "a"}], "'a' is listed 2 times"),
        ([{"name": "a", "priority": -1}], "the priority '-1'"),
        ([{"name": "a", "priority": "high"}], "the priority 'high'"),
    ],
)
def test_wrong_priorities(priorities, pattern):
    assert len(problem(pattern, priorities=priorities)) == 1


def test_priorities():
    assert good()["qos"] == ["low", "normal", "high"]
    assert good(
        priorities=[{"name": "a", "priority": 1}, {"name": "b", "priority": 2, "preempts": ["a"]}]
    )["qos"] == ["a", "b"]


def test_root_has_no_jobs():
    assert conf()["options"]["disablerootjobs"] == "YES"
    assert conf(options={"disablerootjobs": "yes"})["options"]["disablerootjobs"] == "yes"


def test_options_of_the_site():
    told = conf(
        options={
            "KillWait": 60,
            "slurmctldparameters": "idle_on_node_suspend,enable_configless",
            "DisableRootJobs": True,
            "JobSubmitPlugins": ["lua", "require_timelimit"],
            "SchedulerParameters": "bf_interval=5, bf_continue",
        }
    )["options"]
    # Ours is replaced, whatever the case of the key. A list has both.
    assert (
        told["killwait"] == "60"
        and told["slurmctldparameters"] == "enable_configless,idle_on_node_suspend"
    )
    assert told["disablerootjobs"] == "YES" and told["jobsubmitplugins"] == "lua,require_timelimit"
    assert told["schedulerparameters"] == "bf_interval=5, bf_continue"
    assert (
        len(
            [
                line
                for line in text(good(options={"killwait": 60}), "/slurm.conf").splitlines()
                if line.lower().startswith("killwait")
            ]
        )
        == 1
    )


@pytest.mark.parametrize(
    "options, pattern",
    [
        (
            {"PartitionName": "x Nodes=ALL"},
            "'PartitionName' is set by the roles: set slurm_partitions; remove it",
        ),
        ({"proctracktype": "proctrack/pgid"}, "'proctracktype' is set by the roles: it follows"),
        ({"AuthType": "auth/none"}, "munge is the only"),
        (
            {"AccountingStoreFlags": "job_comment,job_env"},
            "'job_comment,job_env', which is refused: other people",
        ),
        ({"PrivateData": "none"}, "which is refused"),
        ({"DisableRootJobs": False}, "'NO', which is refused: a job as root"),
        ({"disablerootjobs": "0"}, "'0', which is refused: a job as root"),
        ({"DisableRootJobs": "off"}, "'off', which is refused: a job as root"),
        ({"PlugStackConfig": "/tmp/x"}, "which is refused: the daemons run"),
        ({"SlurmdParameters": "config_overrides"}, "it hides memory and GPUs"),
        ({"ReconfigFlags": "KeepPartInfo"}, "a change of slurm_partitions"),
        ({"KillWait": "30\nSlurmUser=root"}, "use a text without line breaks"),
        ({"KillWait": "30 # x"}, "without line breaks, quotes, '#'"),
        ({"KillWait": "30\\"}, "a backslash at its end"),
        ({"KillWait": ""}, "use a text"),
        ({"KillWait": None}, "no text or number"),
        ({"Kill Wait": 3}, "is not a key of slurm.conf"),
        ({"KillWait": 3, "killwait": 4}, "the same key as 'KillWait'"),
    ],
)
def test_refused_options(options, pattern):
    assert len(problem(pattern, options=options)) == 1


def test_every_owned_key_is_decided_or_explained():
    written = {line.split("=")[0].lower() for line in text(good(), "/slurm.conf").splitlines()}
    # Keys of the plan that a site may change are the only ones outside of the two tables.
    assert set(_slurm_plan.OWNED) - written <= {
        "controlmachine",
        "credtype",
        "downnodes",
        "include",
        "nodeset",
        "slurmctldaddr",
        "slurmctldport",
        "slurmdport",
        "slurmduser",
    }


# Hosts that do not fit together.


@pytest.mark.parametrize(
    "scheduler, node, pattern",
    [
        ("22.05", "24.11", "b: Slurm 24.11 is newer than 22.05 of the scheduler a"),
        (
            "24.11",
            "22.05",
            "b: Slurm 22.05 is too old for 24.11 of the scheduler a, which talks to 23.02 and later",
        ),
        ("24.11", "", "b: no Slurm is installed or installable"),
        ("22.05", "20.11", "b: Slurm 20.11 found; expected 21.08 to 24.11"),
        (
            "23.11",
            "21.08",
            "b: Slurm 21.08 is too old for 23.11 of the scheduler a, which talks to 22.05 and later",
        ),
    ],
)
def test_releases_that_do_not_meet(scheduler, node, pattern):
    problem(pattern, {"a": reading("a", release=scheduler), "b": reading("b", release=node)})


def test_advice_about_releases_is_possible():
    """A scheduler on the host that is named works with all others, or none is named."""

    def problems(scheduler, **releases):
        readings = {name: reading(name, release=value) for name, value in releases.items()}
        names = ["a", "b"]
        return plan(readings, names, scheduler=scheduler, accept_no_limits=True)["problems"]

    for scheduler in "ab":
        (text,) = problems(scheduler, a="21.08", b="23.11")
        assert "Set cluster_scheduler_host" not in text and "slurm_packages_source to" in text
    (text,) = problems("a", a="22.05", b="23.11")
    assert "Set cluster_scheduler_host to b, whose Slurm 23.11 works with that of all" in text
    assert problems("b", a="22.05", b="23.11") == []
    # A scheduler that is no training host may move to an older one.
    (text,) = [text for text in problems("c", a="22.05", b="23.11", c="24.11") if "a: " in text[:3]]
    assert "too old for 24.11" in text and "Set cluster_scheduler_host to b" in text


@pytest.mark.parametrize(
    "scheduler, node", [("22.05", "21.08"), ("23.11", "22.05"), ("24.11", "23.11")]
)
def test_releases_that_meet(scheduler, node):
    found = good({"a": reading("a", release=scheduler), "b": reading("b", release=node)})
    # The older one must understand the files.
    assert ("GLOB_SILENCE" in text(found, "/slurm.conf")) == (node >= "23.11")


def test_what_slurm_cannot_use():
    problem("b/c: not a valid node name", {"a": reading("a"), "b/c": reading("b")})
    problem("ALL: not a valid node name", cluster("a", "ALL"))
    problem(
        "b: the host has no address on the cluster network",
        members=[{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": ""}],
    )
    problem("a: the scheduler has no address", members=[{"name": "b", "address": "10.0.0.2"}])
    problem(
        "address 10.0.0.1: both a and b have it",
        members=[{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.1"}],
    )
    problem(
        "host name ubuntu: a and b have the same", {"a": reading("ubuntu"), "b": reading("ubuntu")}
    )
    problem("slurm_node_features: a has the feature 'x,y'", node_features={"a": ["x,y"]})
    problem("slurm_cluster_name: 'My Cluster'", cluster_name="My Cluster")
    problem("a: the scheduler was not read", {"b": reading("b")}, ["a", "b"])
    problem(
        "no training host was read", {"head": reading("head")}, ["a"], scheduler="head", members=[]
    )


def test_all_problems_at_once():
    found = plan(
        partitions=[{"name": "x", "hosts": ["ghost"]}],
        options={"AuthType": "x"},
        priorities=[{"name": "A"}],
        cluster_name="",
    )
    assert len(found["problems"]) == 4


def test_classes_of_accounts():
    accounts = [{"name": "vision", "hosts_classes": ["h100", "h200"]}, {"name": "nlp"}]
    assert good(accounts=accounts)["warnings"] == [
        "slurm_accounts: 'vision' names the host class 'h200', which no host has; hosts have h100"
    ]


def test_munge_keys():
    readings = cluster("a", "b", "c", "d")
    assert good(readings)["munge_hosts"] == []
    readings["c"]["munge_key"] = {"exists": True, "private": True, "digest": "other"}
    readings["d"]["munge_key"]["private"] = False
    assert good(readings)["munge_hosts"] == ["c", "d"]
    # Read without a salt: nothing is known.
    for found in readings.values():
        found["munge_key"] = {"exists": True, "private": True, "digest": ""}
    assert good(readings)["munge_hosts"] == ["b", "c", "d"]


def test_a_cluster_of_the_site():
    foreign = {"/etc/slurm/slurm.conf": "ClusterName=theirs\n"}
    assert (
        len(
            problem(
                "a: /etc/slurm/slurm.conf was not written by these roles, so a Slurm cluster of the site runs",
                {"a": reading("a", texts=foreign)},
            )
        )
        == 1
    )
    problem(
        "b: /etc/slurm/slurm.conf was not written by these roles, so Slurm's commands",
        {"a": reading("a"), "b": reading("b", texts=foreign)},
    )
    # A former login host has ours.
    ours = {"/etc/slurm/slurm.conf": text(good(), "/slurm.conf")}
    assert good({"a": reading("a", texts=ours), "b": reading("b", texts=ours)})["absent"] == {
        "b": ["/etc/slurm/slurm.conf"]
    }


# Files and commands.


def test_mariadb_of_the_site():
    assert "skip-networking" in text(good(), "slurm.cnf", "database_files")
    ours = cluster("a", packages={"mariadb-server": "10.11", "slurmctld": VERSIONS["22.05"]})
    # It may serve others by network.
    assert "skip-networking" not in text(good(ours), "slurm.cnf", "database_files")
    ours["a"]["record"] = {"packages": ["mariadb-server"]}
    assert "skip-networking" in text(good(ours), "slurm.cnf", "database_files")


def test_secrets_and_owners():
    entry = good()["slurmdbd_files"][0]
    # slurmdbd refuses a file that others can read.
    assert (
        entry["mode"] == "0600"
        and entry["owner"] == "slurm"
        and "StoragePass" not in entry["content"]
    )
    assert (
        good()["sql"][1]
        == "CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket"
    )


def test_the_pmix_library_of_debian_12():
    folder = "/usr/lib/x86_64-linux-gnu/pmix2/lib"
    link = {"path": folder + "/libpmix.so", "state": "link", "src": "libpmix.so.2"}
    for release, target, expected in (
        ("22.05", "", [link]),
        ("22.05", "libpmix.so.2", [link]),
        ("22.05", "libpmix.so.2.6.2", []),
        ("24.11", "", []),
        ("21.08", "", []),
    ):
        found = good(cluster("a", release=release, pmix_folder=folder, pmix_link=target))
        assert found["pmix_files"]["a"] == expected
    assert (
        "libpmix2" in good()["packages"]["a"]
        and "libpmix2" not in good(cluster("a", release="24.11"))["packages"]["a"]
    )


def test_packages():
    known = {
        "slurmd": VERSIONS["22.05"],
        "libpam-slurm-adopt": "1",
        "libpam-slurm": "1",
        "slurm-wlm-mysql-plugin": "1",
    }
    found = good(cluster("a", "b", "c", candidates=known), login_hosts=["b"])["packages"]
    assert found["a"] == [
        "munge",
        "slurm-client",
        "slurmctld",
        "slurmdbd",
        "mariadb-server",
        "iproute2",
        "slurm-wlm-mysql-plugin",
        "slurmd",
        "libpam-slurm-adopt",
        "libpam-slurm",
        "libpmix2",
    ]
    # pam_slurm_adopt only where nobody logs in for other reasons.
    assert not {"libpam-slurm-adopt", "libpam-slurm"} & set(found["b"]) and {
        "libpam-slurm-adopt",
        "libpam-slurm",
    } <= set(found["c"])


PAM_FILES = {
    "/etc/pam.d/sshd": "@include common-account\n@include common-session\n",
    "/etc/pam.d/common-session": "session optional pam_systemd.so\n",
}


def test_who_can_log_in():
    files = dict(PAM_FILES)
    readings = cluster(
        "a",
        "b",
        "c",
        packages={"libpam-slurm-adopt": "1", "libpam-slurm": "1"},
        texts=files,
        login_user="ops",
        files={},
    )
    rules = {
        name: entry["rule"] for name, entry in good(readings, login_hosts=["b"])["ssh"].items()
    }
    # a is the scheduler, and runs jobs. On b people log in.
    assert rules == {"a": "adopt", "b": "none", "c": "adopt"}
    readings["a"]["cgroup"] = {
        "version": 1,
        "usable": False,
        "why": "it is a container",
        "cores": False,
        "swap": False,
    }
    found = good(readings, login_hosts=["b"], ssh={"users": ["monitor"]})
    assert (
        found["ssh"]["c"]["rule"] == "slurm"
        and "user in root:ops:monitor\n" in found["ssh"]["c"]["steps"][0]["files"][0]["content"]
    )
    assert good(readings, ssh={"needs_job": False})["ssh"]["c"]["rule"] == "none"
    assert _slurm_plan.slurm_needs(found, readings["c"], "c", "a")["ssh"]
    ours = {**files, "/etc/pam.d/sshd": found["ssh"]["c"]["steps"][0]["files"][0]["content"]}
    second = dict(readings, c=dict(readings["c"], login_user="second", texts=ours))
    warned = [
        sentence for sentence in good(second, login_hosts=["b"])["warnings"] if "before" in sentence
    ]
    assert warned == [
        "c: '%s', who ran Ansible before, needs a job there from now on; add the name to slurm_ssh_users to keep the access"
        % name
        for name in ("ops", "monitor")
    ]
    readings["c"]["packages"] = dict.fromkeys(found["packages"]["c"], "1")
    assert ("/etc/pam.d/sshd", "changed") in drift(good(readings, login_hosts=["b"]), readings, "c")
    # One that had no part in Slurm for a while.
    readings["c"]["texts"] = ours
    step = {
        "files": [{"path": "/etc/pam.d/sshd", "content": files["/etc/pam.d/sshd"]}],
        "absent": [],
    }
    assert good(readings, hosts=["a", "b"])["ssh"]["c"]["steps"] == [step]


def test_nobody_logs_in_without_a_job_to_a_scheduler_that_runs_jobs():
    readings = cluster("a", "b", packages={"libpam-slurm-adopt": "1"}, texts=PAM_FILES)
    readings["front"] = reading(
        "front", gpus=0, packages={"libpam-slurm-adopt": "1"}, texts=PAM_FILES
    )
    found = good(readings, hosts=["a", "b"], login_hosts=["front"])
    assert {name: rule["rule"] for name, rule in found["ssh"].items()} == {
        "a": "adopt",
        "b": "adopt",
        "front": "none",
    }
    paths = [entry["path"] for step in found["ssh"]["a"]["steps"] for entry in step["files"]]
    assert {_slurm_sessions.MANAGER, _slurm_sessions.HIDING_UNIT, _slurm_ssh.SSHD} <= set(paths)
    told = text(
        {"steps": [entry for step in found["ssh"]["a"]["steps"] for entry in step["files"]]},
        "/sessions.json",
        "steps",
    )
    assert '"only_in_jobs": true' in told
    # A login host stays open, also if it is the scheduler, and so does a scheduler that runs no
    # jobs.
    for more in (
        {"hosts": ["a", "b"], "login_hosts": ["a"]},
        {"hosts": ["b"], "scheduler": "a", "login_hosts": ["front"]},
    ):
        members = [
            {"name": name, "address": "10.0.1.%d" % number}
            for number, name in enumerate(readings, 1)
        ]
        assert good(readings, members=members, **more)["ssh"]["a"]["rule"] == "none"


def test_a_host_where_the_rule_is_impossible_is_reported():
    readings = cluster("a", "b", texts={"/etc/pam.d/sshd": "auth required pam_unix.so\n"})
    assert [
        sentence
        for sentence in good(readings, login_hosts=["a"])["warnings"]
        if "without a job" in sentence
    ] == [
        "b: people can log in without a job: /etc/pam.d/sshd has no line '@include common-account'; add it, or set slurm_ssh_needs_job to false"
    ]


def test_without_scripts_and_mail():
    told = parse_conf(
        text(
            good(cluster("a", mail_program=""), scripts={"prolog": "", "epilog": "", "health": ""}),
            "/slurm.conf",
        )
    )
    assert not {
        "prolog",
        "epilog",
        "healthcheckprogram",
        "healthcheckinterval",
        "prologepilogtimeout",
    } & set(told["options"])
    # The default would be a program that is missing, which is an error in the log at each start.
    assert told["options"]["mailprog"] == "/bin/true"
    assert conf(scripts={"health": "/opt/h"})["options"]["healthcheckprogram"] == "/opt/h"


def test_slurm_conf_is_validated_by_a_program_of_the_scheduler():
    found = good()
    program = found["check_files"][-1]
    assert (
        found["validate"] == program["path"] + " %s"
        and program["mode"] == "0755"
        and program["content"].startswith("#!/bin/sh\n")
    )
    assert [entry["path"] for entry in found["check_files"][:2]] == [
        "/usr/local/lib/trainyard",
        "/usr/local/lib/trainyard/slurm",
    ]
    assert [entry.get("validate") for entry in found["controller_files"]] == [
        None,
        None,
        found["validate"],
    ]
    assert found["controller_files"][2]["path"] == "/etc/slurm/slurm.conf"


def test_no_value_breaks_a_line():
    for entry in good(options={"TmpFS": "/x"})["controller_files"]:
        assert (
            entry["content"].endswith("\n")
            and "\n\n" not in entry["content"]
            and not re.search(r"[^\x20-\x7e\n]", entry["content"])
        )


# What a host still needs, and how it differs.

RUNNING = dict(SERVICE, loaded=True, active=True, enabled=True, state="active/running")


def finished(found, readings, scheduler="a"):
    """The readings of hosts on which the plan has been carried out."""
    later = copy.deepcopy(readings)
    for name, host in later.items():
        host["packages"] = dict.fromkeys(found["packages"].get(name, []), "1")
        host["services"] = {
            unit: dict(RUNNING if name == scheduler or unit in ("munge", "slurmd") else SERVICE)
            for unit in host["services"]
        }
        host["files"] = {
            entry["path"]: hashlib.sha256(entry["content"].encode("utf-8")).hexdigest()
            for entry in found["node_files"]
            if "content" in entry
        }
    files = found["database_files"] + found["slurmdbd_files"] + found["check_files"]
    later[scheduler]["files"].update(
        {
            entry["path"]: hashlib.sha256(entry["content"].encode("utf-8")).hexdigest()
            for entry in files
            if "content" in entry
        }
    )
    later[scheduler]["texts"] = {
        entry["path"]: entry["content"] for entry in found["controller_files"]
    }
    for name, rule in found["ssh"].items():
        later[name]["texts"].update(
            {
                entry["path"]: entry["content"]
                for step in rule["steps"]
                for entry in step["files"]
                if "content" in entry
            }
        )
    # The installed MariaDB is ours.
    later[scheduler]["record"] = {"packages": ["mariadb-server"]}
    return later


def needs(found, readings, name):
    return {
        part
        for part, wanted in _slurm_plan.slurm_needs(found, readings[name], name, "a").items()
        if wanted
    }


def drift(found, readings, name):
    return [
        (row["what"], row["found"])
        for row in _slurm_plan.slurm_drift(found, readings[name], name, "a")
    ]


def test_what_a_new_host_needs():
    readings = {name: dict(host, files={}) for name, host in cluster("a", "b").items()}
    found = good(readings)
    assert needs(found, readings, "a") == {
        "install",
        "munge",
        "database",
        "accounting",
        "controller",
        "node",
        "ssh",
    }
    assert needs(found, readings, "b") == {"install", "munge", "node", "ssh"}
    assert drift(found, readings, "b")[0][1].startswith("no packages munge, slurm-client")
    # A host of the cluster without a part in Slurm, and one that was not read.
    assert needs(dict(found, packages={}, node_names=[], ssh={}), readings, "b") == set()
    assert _slurm_plan.slurm_needs(found, {"skipped": True}, "b", "a") == dict.fromkeys(
        _slurm_plan.slurm_needs(found, readings["b"], "b", "a"), False
    )


def test_a_finished_cluster_needs_nothing():
    readings = {name: dict(host, files={}) for name, host in cluster("a", "b").items()}
    later = finished(good(readings), readings)
    found = good(later)
    assert (
        found["installed"] == ["a", "b"]
        and not found["changes"]
        and not found["pending"]
        and found["in_the_way"] == []
    )
    assert [needs(found, later, name) for name in "ab"] == [set(), set()] and [
        drift(found, later, name) for name in "ab"
    ] == [[], []]


@pytest.mark.parametrize(
    "name, change, expected, row",
    [
        (
            "a",
            lambda host: host["services"]["mariadb"].update(active=False, state="inactive/dead"),
            {"database"},
            ("mariadb", "inactive/dead, enabled"),
        ),
        (
            "a",
            lambda host: host["services"]["slurmdbd"].update(enabled=False),
            {"accounting"},
            ("slurmdbd", "active/running, disabled"),
        ),
        (
            "a",
            lambda host: host["services"]["slurmctld"].update(active=False),
            {"controller"},
            ("slurmctld", "active/running, enabled"),
        ),
        (
            "b",
            lambda host: host["services"]["slurmd"].update(active=False),
            {"node"},
            ("slurmd", "active/running, enabled"),
        ),
        (
            "b",
            lambda host: host["services"]["munge"].update(active=False),
            {"munge"},
            ("munge", "active/running, enabled"),
        ),
        (
            "b",
            lambda host: host["munge_key"].update(digest="other"),
            {"munge"},
            ("munge key", "different, or readable by others"),
        ),
        (
            "a",
            lambda host: host["files"].update({"/etc/slurm/slurmdbd.conf": "x"}),
            {"accounting"},
            ("/etc/slurm/slurmdbd.conf", "missing or changed"),
        ),
        (
            "a",
            lambda host: host["files"].pop("/usr/local/lib/trainyard/slurm/check-slurm-conf"),
            {"controller"},
            ("/usr/local/lib/trainyard/slurm/check-slurm-conf", "missing or changed"),
        ),
        (
            "a",
            lambda host: host["texts"].update(
                {"/etc/slurm/gres.conf": "# Managed by Ansible (trainyard.gpu).\n"}
            ),
            {"controller", "node"},
            ("/etc/slurm/gres.conf", "missing or changed"),
        ),
        (
            "b",
            lambda host: host["files"].clear(),
            {"node"},
            ("/etc/systemd/system/slurmd.service.d/trainyard.conf", "missing or changed"),
        ),
        (
            "b",
            lambda host: host["texts"].update(
                {
                    "/etc/slurm/slurm.conf": "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n"
                }
            ),
            {"node"},
            None,
        ),
        (
            "b",
            lambda host: host["packages"].pop("slurmd"),
            {"install"},
            ("Slurm", "no packages slurmd"),
        ),
    ],
)
def test_what_was_changed_by_hand(name, change, expected, row):
    readings = {name: dict(host, files={}) for name, host in cluster("a", "b").items()}
    later = finished(good(readings), readings)
    change(later[name])
    found = good(later)
    assert needs(found, later, name) == expected
    assert row is None or row in drift(found, later, name)


@pytest.mark.parametrize(
    "compared, expected",
    [
        ((), {"a": ["options", "c"], "b": ["b"], "c": ["c"]}),
        (("a", "b", "c"), {"a": ["options"], "b": ["b"], "c": ["c"]}),
        # As with --limit: no problem is lost, and none is told twice.
        (("b", "c"), {"b": ["options", "b"], "c": ["c"]}),
        (("c",), {"c": ["options", "b", "c"]}),
        (("a",), {"a": ["options", "b", "c"]}),
    ],
)
def test_a_cluster_that_cannot_be_planned(compared, expected):
    found = {
        "complete": False,
        "hosts": ["a", "b"],
        "problems": ["slurm_options: Nonsense", "b: its CPUs", "c: its release"],
    }
    word = {"slurm_options: Nonsense": "options", "b: its CPUs": "b", "c: its release": "c"}
    told = {
        name: [
            word[row["found"]] for row in _slurm_plan.slurm_drift(found, {}, name, "a", compared)
        ]
        for name in expected
    }
    assert told == expected


def test_a_host_that_is_no_training_host_any_more():
    readings = {name: dict(host, files={}) for name, host in cluster("a", "b").items()}
    later = finished(good(readings), readings)
    found = good(later, ["a"], members=[{"name": "a", "address": "10.0.0.11"}])
    assert needs(found, later, "b") == {"leave", "ssh"}
    assert drift(found, later, "b")[-1] == ("slurmd", "configured") and (
        "/etc/cron.allow",
        "changed",
    ) in drift(found, later, "b")
    assert found["in_the_way"] == [
        {
            "arguments": ["--nodelist=b"],
            "why": "node b is no longer configured. Drain it and wait, or cancel the jobs",
        }
    ]


def test_jobs_that_a_change_would_end():
    readings = cluster("a", "b")
    later = again(
        good(readings, partitions=[{"name": "p", "default": True}, {"name": "q"}]), readings
    )
    assert [
        entry["arguments"] for entry in good(later, partitions=[{"name": "p"}])["in_the_way"]
    ] == [["--partition=q"]]
    weaker = copy.deepcopy(later)
    weaker["b"]["cgroup"] = {
        "version": 1,
        "usable": False,
        "why": "x",
        "cores": False,
        "swap": False,
    }
    told = good(weaker, partitions=[{"name": "p", "default": True}, {"name": "q"}])["in_the_way"]
    assert [entry["arguments"] for entry in told] == [[]] and "jobacctgathertype" in told[0]["why"]


def test_an_interrupted_run_is_completed():
    readings = {name: dict(host, files={}) for name, host in cluster("a", "b").items()}
    first = good(readings)
    assert (
        first["pending_files"][-1]["path"] == "/var/lib/trainyard/slurm/pending.json"
        and first["changes"]
    )
    later = finished(first, readings)
    # The files were written, and nothing was restarted.
    later["a"]["texts"][first["pending_files"][-1]["path"]] = first["pending_files"][-1]["content"]
    found = good(later)
    assert (
        found["pending"]
        and found["changes"]
        and found["effect"]["restart_slurmctld"]
        and found["effect"]["restart_slurmd"] == ["a", "b"]
    )
    assert needs(found, later, "a") == {"controller", "node"} and needs(found, later, "b") == {
        "node"
    }
    assert ("Slurm", "an earlier run was interrupted") in drift(found, later, "a")
    # A node that has gone meanwhile is not waited for.
    assert good({"a": later["a"]}, ["a"])["effect"]["restart_slurmd"] == ["a"]
    for broken in ('{"first": tr', "[]"):
        later["a"]["texts"][first["pending_files"][-1]["path"]] = broken
        assert good(later)["effect"]["restart_slurmctld"] and good(later)["effect"]["reconfigure"]


def test_a_former_scheduler_that_still_runs():
    readings = cluster("a", "b")
    ours = {"/etc/slurm/slurm.conf": text(good(), "/slurm.conf")}
    readings["b"] = reading("b", texts=ours)
    readings["b"]["services"]["slurmctld"]["active"] = True
    problem("b: slurmctld still runs here, but the scheduler is a", readings)
    # That of a site has another sentence.
    readings["b"]["texts"] = {"/etc/slurm/slurm.conf": "ClusterName=theirs\n"}
    assert len(problem("b: /etc/slurm/slurm.conf was not written by these roles", readings)) == 1
    readings["b"]["texts"] = ours
    readings["b"]["services"]["slurmctld"]["active"] = False
    assert good(readings)["absent"] == {"b": ["/etc/slurm/slurm.conf"]}


@pytest.mark.parametrize(
    ("gpus", "limits", "shares"),
    [
        # A job without GPUs cannot keep the hosts of all others busy.
        (0, {}, (128, 999)),
        (4, {}, (128, 999)),
        (12, {}, (192, 1499)),
        (0, {"share": "10"}, (25, 200)),
        # Who may use all GPUs has no other limit.
        (16, {}, None),
        (None, {}, None),
        (0, {"share": 100}, None),
    ],
)
def test_cpus_and_memory_of_an_account_follow_its_gpus(gpus, limits, shares):
    account = (
        {"name": "a", "members": []} if gpus is None else {"name": "a", "members": [], "gpus": gpus}
    )
    [planned, _train] = good(accounts=[account], limits=limits)["accounts"]
    assert planned["defaults"] == dict(
        {} if shares is None else {"cpus": shares[0], "memory_gb": shares[1]},
        max_jobs_per_person=500,
        max_submitted_per_person=2000,
    )


def test_the_default_cpus_and_memory_of_an_account_suffice_for_its_gpus():
    for gpus in range(1, 16):
        found = good(accounts=[{"name": "a", "gpus": gpus}], limits={"share": 1})
        defaults, partition = found["accounts"][0]["defaults"], found["partitions"][0]
        cpus = gpus * partition["cpus_per_gpu"]
        assert (
            cpus <= defaults["cpus"]
            and cpus * partition["memory_per_cpu"] <= 1024 * defaults["memory_gb"]
        )


def test_a_host_that_does_not_answer_still_counts_for_the_limits_of_accounts():
    readings = cluster("a", "b")
    first = good(readings, accounts=[{"name": "a", "gpus": 0}])
    later = again(first, readings)
    del later["b"]
    assert (
        good(later, hosts=["a", "b"], accounts=[{"name": "a", "gpus": 0}])["accounts"]
        == first["accounts"]
    )


def test_times():
    def times(partition, **limits):
        line = conf(partitions=[dict(partition, name="p")], limits=limits)["partitions"]["p"]
        return line["maxtime"], line.get("defaulttime")

    assert (
        times({}) == ("43200", None)
        and times({"max_minutes": 0}) == ("INFINITE", None)
        and times({}, max_minutes=0) == ("INFINITE", None)
    )
    assert times({"max_minutes": 60}, default_minutes=1440) == ("60", "60") and times(
        {}, default_minutes="1440"
    ) == ("43200", "1440")
    assert times({"max_minutes": 0, "default_minutes": 5}, default_minutes=1440) == (
        "INFINITE",
        "5",
    )
    assert times({"default_minutes": 0}, default_minutes=1440) == ("43200", None)


def test_accounts_for_the_module():
    accounts = [{"name": "vision", "gpus": 4, "hosts_classes": ["h100"], "members": ["anna"]}]
    found = good(cluster("a", missing_people=["anna"]), accounts=accounts, cluster_name="lab")
    defaults = {
        "cpus": 64,
        "memory_gb": 500,
        "max_jobs_per_person": 500,
        "max_submitted_per_person": 2000,
    }
    train = found["accounts"].pop()
    # Slurm's own user has jobs, without limits.
    assert (train["name"], train["members"], "defaults" in train) == (
        "trainyard-train",
        ["slurm"],
        False,
    )
    assert faults([train], []) == []
    assert (
        found["accounts"]
        == [{"name": "vision", "gpus": 4, "members": ["anna"], "defaults": defaults}]
        and found["cluster_name"] == "lab"
        and found["missing_people"] == ["anna"]
    )


def test_a_plan_with_problems():
    readings = cluster("a", "b")
    found = plan(readings, priorities=[{"name": "A"}])
    assert needs(found, readings, "a") == set() and drift(found, readings, "b") == []
    assert [row[0] for row in drift(found, readings, "a")] == [
        "Slurm"
    ] and "'A' is not a valid name" in drift(found, readings, "a")[0][1]


def test_a_problem_is_shown_for_its_host():
    readings = dict(cluster("a", "b"), b=reading("b", release="20.11"))
    found = plan(readings)
    assert drift(found, readings, "a") == [] and drift(found, readings, "b")[0][1].startswith(
        "b: Slurm 20.11 found"
    )


def test_checks_for_the_input_rules():
    assert _slurm_plan.priority_problems([{"name": "a", "preempts": ["a"]}]) == [
        "slurm_priorities: a > a preempt each other in a circle; jobs would requeue each other without end. Remove one of these 'preempts'"
    ]
    assert _slurm_plan.priority_problems([]) == [] == _slurm_plan.option_problems({"TmpFS": "/x"})
    assert len(_slurm_plan.option_problems({"AuthType": "auth/none"})) == 1
