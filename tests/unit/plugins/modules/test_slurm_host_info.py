"""slurm_host_info on a fake host: programs that are missing or answer, device nodes, the
munge key.
"""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from ansible_collections.trainyard.gpu.plugins.modules import slurm_host_info

INSTALLED = "munge\t0.5.15-2+deb12u1\tii \nslurmd\t22.05.8-4+deb12u3\tii \nsackd\t\tun \n"
POLICY = "slurmd:\n  Installed: (none)\n  Candidate: 24.11.5-4\n  Version table:\nsackd:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"


class FakeModule:
    """Programs by the first word and what they print."""

    def __init__(self, programs, **params):
        self.programs, self.commands = programs, []
        self.params = dict(
            {
                "packages": [],
                "munge_key": "/none",
                "munge_salt": "",
                "texts": [],
                "folders": [],
                "record": None,
            },
            **params,
        )

    def get_bin_path(self, name, opt_dirs=None):
        return name if name in self.programs else None

    def run_command(self, command):
        self.commands.append(command)
        return 0, self.programs[command[0]], ""


def host(programs=None, **params):
    return slurm_host_info.Host(FakeModule(programs or {}, **params))


def test_a_host_without_any_program():
    bare = host()
    assert (
        bare.packages() == {}
        and bare.candidates({}) == {}
        and not bare.services()["slurmd"]["loaded"]
    )
    assert set(bare.services()) == set(slurm_host_info.SERVICES)


def test_a_package_that_provides_a_requested_name_counts():
    """libpmix2 is libpmix2t64 on Ubuntu 24.04. Without it every run would install again,
    and fail.
    """
    rows = "munge\t0.5.15\tii \nslurm-client\t23.11.4-1.2ubuntu5\tii \n"
    every = "libpmix2t64\t5.0.1-4.1build1\tii \tlibpmix2 (= 5.0.1-4.1build1)\n"
    bare = host({"dpkg-query": ""}, packages=["libpmix2"])
    texts = [rows, "slurm-client\t23.11.4-1.2ubuntu5\tii \t\nold\t\tun \tlibpmix2\n" + every]
    bare.output = lambda *words: texts.pop(0)
    assert bare.packages()["libpmix2"] == "5.0.1-4.1build1" and not texts


def test_packages():
    found = host({"dpkg-query": INSTALLED}, packages=["podman"])
    assert found.packages() == {"munge": "0.5.15-2+deb12u1", "slurmd": "22.05.8-4+deb12u3"}
    assert found.module.commands[0][-1] == "podman"


def test_apt_is_asked_on_hosts_without_slurm_only():
    assert host({"apt-cache": POLICY}).candidates({"munge": "1"}) == {"slurmd": "24.11.5-4"}
    installed = host({"apt-cache": POLICY})
    assert installed.candidates({"slurmctld": "1"}) == {} and installed.module.commands == []


def test_device_nodes(monkeypatch):
    nodes = [
        "/dev/nvidia10",
        "/dev/nvidia2",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-caps",
        "/dev/nvidia0",
    ]
    information = {
        "/proc/driver/nvidia/gpus/0000:01/information": "Model: NVIDIA H100\nDevice Minor: 2\n"
    }
    monkeypatch.setattr(
        slurm_host_info.glob,
        "glob",
        lambda pattern: nodes if pattern.startswith("/dev") else list(information),
    )
    monkeypatch.setattr(slurm_host_info, "read_text", information.get)
    assert host().gpus() == [
        {"path": "/dev/nvidia0", "minor": 0, "model": ""},
        {"path": "/dev/nvidia2", "minor": 2, "model": "NVIDIA H100"},
        {"path": "/dev/nvidia10", "minor": 10, "model": ""},
    ]


def test_sockets_near_each_gpu(monkeypatch):
    """By the local CPUs of its PCI device. CPUs 0, 2, 4, 6 are on package 0."""
    texts = {
        "/sys/devices/system/cpu/cpu%d/topology/physical_package_id" % cpu: "%d\n" % (cpu % 2)
        for cpu in range(8)
    }
    for bus, minor, near in (("1b", 1, "0,2,4,6"), ("c3", 0, "1,3,5,7"), ("d1", 2, "")):
        address = "0000:%s:00.0" % bus
        texts["/proc/driver/nvidia/gpus/%s/information" % address] = "Device Minor: %d\n" % minor
        texts["/sys/bus/pci/devices/%s/local_cpulist" % address] = near + "\n"
    texts["/proc/driver/nvidia/gpus/0000:e1:00.0/information"] = "Model: Unknown\n"
    monkeypatch.setattr(slurm_host_info.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(slurm_host_info, "read_text", lambda path: texts.get(path, ""))
    monkeypatch.setattr(
        slurm_host_info.glob,
        "glob",
        lambda pattern: [path for path in texts if path.endswith("/information")],
    )
    assert host().gpu_sockets() == {"1": [0], "0": [1], "2": []}


@pytest.mark.parametrize(
    "names, models",
    [
        ({0: "910B1", 4: "910B1"}, ["Ascend910B1", "Ascend910B1"]),
        ({0: "Ascend910", 4: "310P3"}, ["Ascend910", "Ascend310P3"]),
        ({}, ["", ""]),
    ],
)
def test_npus_on_a_host_without_gpus(monkeypatch, names, models):
    monkeypatch.setattr(slurm_host_info.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(slurm_host_info, "npu_nodes", lambda: [0, 4])
    monkeypatch.setattr(slurm_host_info, "chip_names", lambda module, numbers: names)
    assert host().gpus() == [
        {"path": "/dev/davinci%d" % minor, "minor": minor, "model": model}
        for minor, model in zip((0, 4), models)
    ]


def test_the_munge_key_is_not_returned(tmp_path):
    key = tmp_path / "munge.key"
    assert host(munge_key=str(key), munge_salt="s").munge_key() == {
        "exists": False,
        "private": False,
        "digest": "",
    }
    key.write_bytes(b"secret" * 20)
    key.chmod(0o600)
    found = host(munge_key=str(key), munge_salt="s").munge_key()
    assert found["exists"] and found["private"] and "secret" not in str(found)
    key.chmod(0o640)
    assert not host(munge_key=str(key)).munge_key()["private"]


def test_folders_and_texts(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\n", encoding="utf-8")
    found = host(
        texts=[str(tmp_path / "s*.conf"), str(tmp_path / "none")],
        folders=[str(tmp_path), str(tmp_path / "none")],
    )
    assert found.texts() == {str(conf): "ClusterName=c\n"} and list(found.free_mib()) == [
        str(tmp_path)
    ]


def test_people_without_an_account():
    assert (
        slurm_host_info.account("root") == 0
        and slurm_host_info.account("nobody-has-this-name") is None
    )


def test_operators(monkeypatch):
    accounts = [
        pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))
        for name, uid, gid in (
            ("root", 0, 0),
            ("ops", 1500, 1500),
            ("chief", 1501, 27),
            ("member", 1502, 1502),
            ("anna", 2001, 2001),
        )
    ]
    monkeypatch.setattr(slurm_host_info.pwd, "getpwall", lambda: accounts)
    monkeypatch.setattr(
        slurm_host_info.pwd, "getpwnam", {entry.pw_name: entry for entry in accounts}.__getitem__
    )
    monkeypatch.setattr(
        slurm_host_info.grp,
        "getgrnam",
        {"sudo": grp.struct_group(("sudo", "x", 27, ["member", "gone"]))}.__getitem__,
    )
    assert slurm_host_info.operators(["ops", "", "nobody"], ["sudo", "none"]) == {
        "root": 0,
        "ops": 1500,
        "chief": 1501,
        "member": 1502,
    }


def test_owners_of_crontabs(tmp_path):
    (tmp_path / "tab").write_text("", encoding="ascii")
    me = os.getuid()
    assert (
        slurm_host_info.owners(str(tmp_path)) == {pwd.getpwuid(me).pw_name: me}
        and slurm_host_info.owners(str(tmp_path / "none")) == {}
    )


def test_link_target(tmp_path):
    (tmp_path / "libpmix.so").symlink_to("libpmix.so.2")
    assert slurm_host_info.link_target(str(tmp_path / "libpmix.so")) == "libpmix.so.2"
    assert slurm_host_info.link_target(str(tmp_path / "none")) == ""


@pytest.mark.parametrize("allowed", [{0, 1}, {0}])
def test_cpus_of_the_host(monkeypatch, allowed):
    monkeypatch.setattr(slurm_host_info.os, "sched_getaffinity", lambda pid: allowed)
    monkeypatch.setattr(
        slurm_host_info,
        "read_text",
        lambda path: "MemTotal: 2048 kB\n" if path == "/proc/meminfo" else "",
    )
    found = host().kernel_hardware()
    assert (
        found["cpus"] == len(allowed)
        and found["cores_per_socket"] == len(allowed)
        and found["real_memory"] == 2
    )


@pytest.mark.parametrize(
    "sudo, loginuid, expected",
    [("ops", "0", "ops"), ("", "0\n", "root"), ("", "4294967295", ""), ("", "", "")],
)
def test_the_user_who_logged_in(monkeypatch, sudo, loginuid, expected):
    monkeypatch.setenv("SUDO_USER", sudo)
    monkeypatch.setattr(
        slurm_host_info, "read_text", lambda path: {"/proc/self/loginuid": loginuid}[path]
    )
    assert slurm_host_info.login_user() == expected
