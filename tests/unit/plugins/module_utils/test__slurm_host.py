"""What a host tells about itself for Slurm: slurmd -C, the kernel's topology, control groups,
units.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_host import (
    ParseError,
    cgroups,
    hardware_of,
    key_digest,
    memory_total_mib,
    parse_slurmd_hardware,
    parse_units,
    release,
    sockets_of,
)

# Debian 12 and 13, as printed.
SLURMD_C = "NodeName=h3-12 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=24105\nUpTime=0-08:33:02\n"
MEMINFO = "MemTotal:       24683656 kB\nMemFree:        16484680 kB\n"
V2 = "25 1 0:22 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "".join(
    "72%d 720 0:3%d / /sys/fs/cgroup/%s rw,relatime - cgroup cgroup rw,%s\n"
    % (number, number, name, name)
    for number, name in enumerate(("cpuset", "memory", "devices", "freezer"))
)
HYBRID = V1 + "730 720 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    "version, expected",
    [
        ("22.05.8-4+deb12u3", "22.05"),
        ("23.11.4-1.2ubuntu5", "23.11"),
        ("21.08.5-2ubuntu1", "21.08"),
        ("1:24.11.5-4", "24.11"),
        ("24.11", "24.11"),
        ("", ""),
        (None, ""),
        ("0.5.15-2", ""),
        ("22.0512-1", ""),
    ],
)
def test_release(version, expected):
    assert release(version) == expected


def test_hardware_by_slurmd():
    assert parse_slurmd_hardware(SLURMD_C) == {
        "cpus": 2,
        "boards": 1,
        "sockets": 1,
        "cores_per_socket": 2,
        "threads_per_core": 1,
        "real_memory": 24105,
    }
    two_boards = SLURMD_C.replace("Boards=1", "Boards=2").replace(
        "SocketsPerBoard=1", "SocketsPerBoard=4"
    )
    assert parse_slurmd_hardware(two_boards)["sockets"] == 8
    # Not installed, or without a line: the kernel is asked instead.
    assert parse_slurmd_hardware("") == {} and parse_slurmd_hardware("slurmd: error: hwloc\n") == {}
    with pytest.raises(ParseError, match="no number for RealMemory in: 'NodeName=a"):
        parse_slurmd_hardware(
            "NodeName=a CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1\n"
        )


def packages(sockets, cores, threads, interleaved=False, first=0):
    """The package of each CPU.

    The kernel numbers the second threads after all cores; some firmware numbers the sockets in
    turn. C(first) is the id of CPU 0's.
    """
    each = [(socket, core) for socket in range(sockets) for core in range(cores)]
    if interleaved:
        each = [(socket, core) for core in range(cores) for socket in range(sockets)]
    return {cpu: str(socket ^ first) for cpu, (socket, dummy) in enumerate(each * threads)}


@pytest.mark.parametrize(
    "cpulist, those, expected",
    [
        # Two sockets of 32 cores with two threads each, as on an HGX H100 host.
        ("0-31,64-95\n", packages(2, 32, 2), [0]),
        ("32-63,96-127\n", packages(2, 32, 2), [1]),
        # Without hyper-threads.
        ("32-63", packages(2, 32, 1), [1]),
        # Dell numbers the sockets in turn.
        ("0,2,4,6,8,10,12,14", packages(2, 4, 2, interleaved=True), [0]),
        ("1,3,5,7,9,11,13,15", packages(2, 4, 2, interleaved=True), [1]),
        # Package 1 has CPU 0: it is Slurm's first.
        ("0-3", packages(2, 4, 1, first=1), [0]),
        # A quarter of a socket (NPS4), and both sockets, as in a virtual machine.
        ("24-31", packages(2, 32, 2), [0]),
        ("0-127", packages(2, 32, 2), [0, 1]),
        # CPUs that are offline or not for this host, and no answer.
        ("0-31,64-95", packages(2, 32, 1), [0]),
        ("200-207", packages(2, 4, 1), []),
        ("", packages(2, 4, 1), []),
    ],
)
def test_sockets_near_a_device(cpulist, those, expected):
    assert sockets_of(cpulist, those) == expected


def test_hardware_by_the_kernel():
    assert memory_total_mib(MEMINFO) == 24105
    with pytest.raises(ParseError, match="MemTotal"):
        memory_total_mib("MemFree: 3 kB\n")
    two_sockets = [
        (str(package), str(core)) for package in range(2) for core in range(4) for dummy in range(2)
    ]
    found = hardware_of(two_sockets, MEMINFO)
    assert (
        found["cpus"],
        found["sockets"],
        found["cores_per_socket"],
        found["threads_per_core"],
    ) == (16, 2, 4, 2)
    # A container that may use five of the 16.
    found = hardware_of(two_sockets[3:8], MEMINFO)
    assert (
        found["cpus"],
        found["sockets"],
        found["cores_per_socket"],
        found["threads_per_core"],
    ) == (5, 1, 5, 1)


@pytest.mark.parametrize(
    "mountinfo, controllers, container, expected",
    [
        (V2, "cpuset cpu io memory pids\n", "", (2, True, "")),
        (V2, "cpuset cpu io memory pids\n", "lxc", (2, False, "the host is a container (lxc)")),
        # Some ARM boards start without it.
        (
            V2,
            "cpuset cpu io pids\n",
            "",
            (2, False, "the kernel has no control group controller memory"),
        ),
        (V2, "cpu io memory pids\n", "", (2, True, "")),
        (V1, "", "", (1, True, "")),
        (HYBRID, "", "", (1, True, "")),
        (HYBRID, "", "docker", (1, False, "the host is a container (docker)")),
        (
            V1.replace("/freezer rw", "/freezer ro"),
            "",
            "",
            (1, False, "the kernel has no control group controller freezer"),
        ),
        (
            "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
            "",
            "",
            (0, False, "no control groups are mounted"),
        ),
    ],
)
def test_control_groups(mountinfo, controllers, container, expected):
    found = cgroups(mountinfo, controllers, container, True)
    assert (found["version"], found["usable"], found["why"]) == expected


def test_cpus_can_be_limited_only_with_the_controller_cpuset():
    assert (
        cgroups(V2, "cpuset cpu io memory pids\n", "", False)["cores"]
        and not cgroups(V2, "cpu io memory pids\n", "", False)["cores"]
    )
    assert (
        cgroups(V1, "", "", False)["cores"]
        and not cgroups(V1.replace("/cpuset rw", "/cpuset ro"), "", "", False)["cores"]
    )


def test_swap_is_limited_by_version_2_only_if_the_kernel_counts_it():
    assert (
        cgroups(V2, "cpu memory pids\n", "", True)["swap"]
        and not cgroups(V2, "cpu memory pids\n", "", False)["swap"]
    )
    assert not cgroups(V1, "", "", True)["swap"]


def test_units():
    text = (
        "Id=munge.service\nLoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nUser=munge\nRuntimeDirectory=munge\n\n"
        "Id=sackd.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\nUser=\nRuntimeDirectory=\n"
    )
    found = parse_units(text)
    assert found["munge.service"] == {
        "loaded": True,
        "active": True,
        "enabled": True,
        "state": "active/running",
        "user": "munge",
        "runtime_directory": "munge",
    }
    assert (
        not found["sackd.service"]["loaded"] and found["sackd.service"]["state"] == "inactive/dead"
    )
    assert parse_units("") == {}


def test_keys_are_compared_without_showing_them():
    assert key_digest(b"k" * 128, "run 1") == key_digest(b"k" * 128, "run 1")
    assert key_digest(b"k" * 128, "run 1") != key_digest(b"l" * 128, "run 1")
    # Another run says nothing about this one.
    assert key_digest(b"k" * 128, "run 1") != key_digest(b"k" * 128, "run 2")
    assert key_digest(b"", "run 1") == "" and key_digest(b"k", "") == ""
    assert len(key_digest(b"k", "s")) == 16
