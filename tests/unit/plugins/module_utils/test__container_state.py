"""How a running container differs from its settings: texts of the kernel, of docker and of systemd,
and a real process for what is read below /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _container_state as state
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import parse_mountinfo

OUTSIDE = """21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 21 0:50 / /data1/share rw,relatime - nfs4 head:/data1/share rw,vers=4.2
31 21 0:51 / /mnt/old ro,relatime - ext4 /dev/sdb1 ro
"""
INSIDE = """421 340 0:74 / / rw,relatime - overlay overlay rw,lowerdir=/x,upperdir=/y
440 423 0:88 / /dev/shm rw,nosuid - tmpfs shm rw,size=1048576k
442 421 8:1 /data1 /data1 rw,relatime - ext4 /dev/sda1 rw
443 442 0:50 / /data1/share rw,relatime - nfs4 head:/data1/share rw,vers=4.2
447 421 8:1 /etc/trainyard/ssh /etc/trainyard/ssh ro,relatime - ext4 /dev/sda1 rw
"""
SETTINGS = {
    "IpcMode": "private",
    "ShmSize": 1 << 30,
    "Mounts": [
        {"Source": "/data1", "Target": "/data1"},
        {"Source": "/etc/trainyard/ssh", "Target": "/etc/trainyard/ssh", "ReadOnly": True},
    ],
}
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            67108864             67108864             bytes
Max open files            %s              20000                files
Max locked memory         unlimited            unlimited            bytes
Max realtime timeout      unlimited            unlimited            us
"""


@pytest.fixture(name="told")
def fixture_told(tmp_path):
    """Differences of mounts for these texts.

    A container without links has the same paths as this empty folder.
    """

    def told(inside=INSIDE, settings=None, outside=OUTSIDE, share="/data1/share"):
        mounts = parse_mountinfo(inside)
        settings = dict(SETTINGS, **(settings or {}))
        return state.mount_faults(
            settings, str(tmp_path), mounts, parse_mountinfo(outside), share
        ) + state.shm_faults(settings, mounts)

    return told


def without(path, text=INSIDE):
    return "".join(line + "\n" for line in text.splitlines() if f" {path} " not in line)


def test_a_container_as_it_was_started(told):
    assert told() == []
    # A share on the host's own disk.
    assert told(without("/data1/share"), outside=without("/data1/share", OUTSIDE)) == []


@pytest.mark.parametrize(
    "inside, fault",
    [
        (without("/data1/share"), "/data1/share is not mounted in the container"),
        (
            INSIDE.replace("/data1/share rw", "/data1/share ro"),
            "/data1/share is read-only in the container",
        ),
        (
            INSIDE.replace("share rw,vers", "share ro,vers"),
            "/data1/share is read-only in the container",
        ),
        (INSIDE.replace("/data1 rw", "/data1 ro"), "/data1 is read-only in the container"),
        (without("/etc/trainyard/ssh"), "/etc/trainyard/ssh is not mounted in the container"),
        (INSIDE.replace("1048576k", "64k"), "/dev/shm in the container has 64 KiB, not 1 GiB"),
        (without("/dev/shm"), "/dev/shm is not mounted in the container"),
        # Another server under the same path.
        (
            INSIDE.replace("head:/data1/share", "old:/data1/share"),
            "/data1/share is not mounted in the container",
        ),
    ],
)
def test_mounts_that_were_lost(told, inside, fault):
    assert told(inside) == [fault]


def test_mounts_that_only_look_lost(told):
    # The host's /dev/shm has the host's size.
    assert told(without("/dev/shm"), {"IpcMode": "host"}) == []
    # What the host has read-only, the container has so, too.
    mounts = SETTINGS["Mounts"] + [{"Source": "/mnt/old", "Target": "/old"}]
    assert told(INSIDE + "450 421 0:51 / /old ro - ext4 /dev/sdb1 ro\n", {"Mounts": mounts}) == []
    assert told(OUTSIDE and INSIDE, share="") == []


def test_a_target_with_links_of_the_container(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "here").symlink_to("var/./run/../run")
    assert state.resolved(str(tmp_path), "/var/run/x") == "/run/x"
    assert state.resolved(str(tmp_path), "/here/x") == "/run/x"
    assert state.resolved(str(tmp_path), "/") == "/"
    (tmp_path / "loop").symlink_to("loop")
    assert state.resolved(str(tmp_path), "/loop/x")


def test_limits_that_sshd_lost():
    ours, its = state.parse_limits(LIMITS % 20000), state.parse_limits(LIMITS % 64)
    assert ours == {
        "stack": ("67108864", "67108864"),
        "nofile": ("20000", "20000"),
        "memlock": ("unlimited", "unlimited"),
    }
    assert state.limit_faults(ours, ours) == state.limit_faults(ours, {}) == []
    assert state.limit_faults(ours, its) == [
        "sshd in the container has the limit nofile 64:20000, the container 20000:20000"
    ]


VARIABLES = "PATH=/usr/bin\0HOME=/root\0TOKEN=hunter2\0LINES=a\nb\0"
WRITTEN = "PATH=/usr/bin\nTOKEN=hunter2\nLINES=a b\n"


@pytest.mark.parametrize(
    "written, names",
    [
        (WRITTEN, ""),
        # An image with another entrypoint, or a container that is starting.
        (None, ""),
        (WRITTEN + "PYTHONPATH=/opt/x\n", "PYTHONPATH"),
        (WRITTEN.replace("hunter2", "hunter3"), "TOKEN"),
        (WRITTEN.replace("TOKEN=hunter2\n", ""), "TOKEN"),
        ("", "LINES, PATH, TOKEN"),
        # A second line of a value that somebody added may be secret.
        (WRITTEN + "A=b\nhunter4\n", "(a line without a name), A"),
    ],
)
def test_variables_that_sessions_get(written, names):
    told = state.variable_faults(written, VARIABLES)
    assert "hunter" not in str(told) and bool(told) is bool(names)
    assert not names or "sets %s otherwise" % names in told[0]
    assert state.variable_faults(WRITTEN, "") == []


def test_variables_that_a_shell_does_not_pass_on():
    """As the entrypoint: dash leaves out names with other characters, and some shells do not.

    A restart would change nothing.
    """
    variables = VARIABLES + "foo.bar=1\0BASH_FUNC_x%%=() { :; }\0"
    for written in (WRITTEN, WRITTEN + "foo.bar=1\n"):
        assert state.variable_faults(written, variables) == []
    assert state.variable_faults(WRITTEN + "foo.bar=2\n", variables)


def test_a_folder_of_the_host_as_shared_memory(told):
    """It has the host's size, which a restart does not change."""
    mounts = SETTINGS["Mounts"] + [{"Source": "/dev/shm", "Target": "/dev/shm"}]
    assert told(INSIDE.replace("1048576k", "64k"), {"Mounts": mounts}) == []


def test_a_file_in_a_container_is_read_without_leaving_it(tmp_path):
    (tmp_path / "outside").write_text("secret", encoding="utf-8")
    root = tmp_path / "root"
    (root / "home").mkdir(parents=True)
    (root / "link").symlink_to("/home")
    for name in ("here", "there"):
        (root / "home/environment").unlink(missing_ok=True)
        if name == "here":
            (root / "home/environment").write_text("A=1\n", encoding="utf-8")
        else:
            (root / "home/environment").symlink_to(tmp_path / "outside")
        found = state.inside_text(str(root), "/link/environment")
        assert found == ("A=1\n" if name == "here" else None)
    (root / "home/environment").unlink()
    os.mkfifo(root / "home/environment")
    assert state.inside_text(str(root), "/home/environment") in ("", None)


@pytest.mark.parametrize(
    "settings, texts",
    [
        ({}, []),
        # As engines of different age write that there is none.
        ({"Memory": 0, "NanoCpus": 0, "CpuQuota": -1, "PidsLimit": None, "CpusetCpus": ""}, []),
        ({"PidsLimit": -1}, []),
        ({"Memory": 300 << 20}, ["memory 300 MiB"]),
        ({"NanoCpus": 500000000}, ["0.5 CPUs"]),
        ({"CpuQuota": 20000, "CpuPeriod": 100000}, ["0.2 CPUs"]),
        ({"CpuQuota": 20000, "CpuPeriod": 0}, ["0.2 CPUs"]),
        ({"CpusetMems": "0"}, ["only memory of NUMA nodes 0"]),
        ({"CpusetCpus": "0-1", "PidsLimit": 12}, ["only CPUs 0-1", "12 processes"]),
    ],
)
def test_limits_that_docker_update_sets(settings, texts):
    assert state.limited(settings) == texts


ID = "c" * 64


@pytest.mark.parametrize(
    "cgroup, group, files, limits",
    [
        (
            "0::/system.slice/docker-%s.scope",
            "",
            {"memory.max": "max", "cpu.max": "max 100000"},
            [],
        ),
        ("0::/system.slice/docker-%s.scope", "", {"memory.max": "314572800"}, ["memory 300 MiB"]),
        ("0::/system.slice/docker-%s.scope", "", {"memory.high": "1048576"}, ["memory 1 MiB"]),
        ("0::/system.slice/docker-%s.scope", "", {"cpu.max": "50000 100000"}, ["0.5 CPUs"]),
        (
            "4:memory:/docker/%s\n0::/",
            "memory",
            {"memory.limit_in_bytes": "9223372036854771712"},
            [],
        ),
        ("4:memory:/docker/%s", "memory", {"memory.limit_in_bytes": "1048576"}, ["memory 1 MiB"]),
        (
            "7:cpu,cpuacct:/docker/%s",
            "cpu",
            {"cpu.cfs_quota_us": "20000", "cpu.cfs_period_us": "100000"},
            ["0.2 CPUs"],
        ),
        (
            "7:cpu,cpuacct:/docker/%s",
            "cpu",
            {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
            [],
        ),
    ],
)
def test_limits_of_control_groups_that_docker_has_not_set(tmp_path, cgroup, group, files, limits):
    """As `systemctl set-property` makes them: of the container's own group, which a restart
    replaces, and of one above it.
    """
    cgroup = cgroup % ID
    own = cgroup.splitlines()[0].split(":")[-1]
    for path in (own, own.rpartition("/")[0]):
        folder = tmp_path / group / path[1:]
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n", encoding="ascii")
        root = str(tmp_path)
        above = [{"group": path, "limits": limits}] if limits and path != own else []
        assert state.groups_above(cgroup, ID, root) == above
        (fault,) = state.group_faults({}, cgroup, ID, root) or [""]
        assert bool(fault) == bool(limits) and ", ".join(limits) in fault
    # docker update has set it, so Docker has to be told, or the engine's groups are not seen from
    # here.
    assert state.group_faults({"Memory": 300 << 20}, cgroup, ID, root) == []
    assert state.group_faults({}, cgroup, "d" * 64, root) == state.groups_above("", ID, root) == []


@pytest.mark.parametrize(
    "command, above, other",
    [
        # The entrypoint's own, in older and newer releases of OpenSSH, and as it begins a session.
        ("/usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config", [], False),
        (
            "sshd: /usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config [listener] 0 of 200-400 startups",
            [],
            False,
        ),
        ("/usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config -R", [], False),
        ("sshd: root@notty", [], False),
        ("sshd: root [priv]", [], False),
        ("sshd: [accepted]", [], False),
        ("/usr/sbin/sshd -p 2222 -o PasswordAuthentication=yes", [], True),
        ("sshd: /usr/sbin/sshd -p 2222 [listener] 0 of 10-100 startups", [], True),
        ("sshd: /usr/sbin/sshd [listener] 0 of 10-100 startups", [], True),
        ("/usr/sbin/sshd", ["sh"], True),
        ("/usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config -o PermitRootLogin=yes", [], True),
        # A program of another name, and a server that is not OpenSSH.
        ("sshd: /tmp/x -f /tmp/c [listener] 0 of 10-100 startups", [], True),
        ("/tmp/sshd -D -e -f /etc/trainyard/ssh/sshd_config", [], True),
        ("/usr/sbin/dropbear -p 2222", [], True),
        # Sessions of newer releases, and other programs.
        ("/usr/lib/openssh/sshd-session -D -e -f /etc/trainyard/ssh/sshd_config -R", [], False),
        ("sshd-session: root@pts/0", [], False),
        ("vim /etc/ssh/sshd_config", [], False),
        # A service of the inventory.
        ("/usr/sbin/sshd -D -p 2222", ["python3 -B " + state.SUPERVISOR + " /run/x", "sh"], False),
    ],
)
def test_another_sshd_in_a_container(command, above, other):
    assert state.other_sshd(command, above) is other


def test_another_sshd_is_found_among_processes(tmp_path, monkeypatch):
    """Started by docker exec, it is in the container's namespace of process IDs, but not below its
    first process.
    """
    sshd = tmp_path / "sshd"
    sshd.symlink_to("/bin/sleep")
    told = ["another sshd runs in the container: %s -- 60" % sshd]
    with (
        subprocess.Popen([sshd, "--", "60"]) as process,
        subprocess.Popen(["sleep", "60"]) as first,
    ):
        try:
            for _attempt in range(200):
                if state.LISTENS.match(state.command_of(process.pid)):
                    break
                subprocess.run(["sleep", "0.05"], check=True)
            # Where the container shares the processes of the host, the host's own sshd is none of
            # its.
            assert state.sshd_faults(os.getpid()) == told and state.sshd_faults(first.pid) == []
            inside = {process.pid: "pid:[2]", first.pid: "pid:[2]"}
            monkeypatch.setattr(state, "namespace_of", lambda pid: inside.get(pid, "pid:[1]"))
            assert state.sshd_faults(first.pid) == told
            found = {"State": {"Running": True, "Pid": first.pid}, "HostConfig": {}}
            assert state.departures(dict(found, Path=state.ENTRYPOINT)) == told
            # Another image may start several.
            assert state.departures(found) == []
            inside[process.pid] = "pid:[3]"
            assert state.sshd_faults(first.pid) == []
        finally:
            process.kill()
            first.kill()
    assert state.sshd_faults(0) == []


def test_units():
    text = "Id=a.service\nLoadState=loaded\nX=b=c\n\nId=docker.service\nUnitFileState=masked\n"
    assert state.parse_units(text) == {
        "a.service": {"Id": "a.service", "LoadState": "loaded", "X": "b=c"},
        "docker.service": {"Id": "docker.service", "UnitFileState": "masked"},
    }
    assert state.parse_units("") == {}


def test_the_sshd_of_a_container_is_found_and_its_limits_are_read(tmp_path):
    """A tree of processes as in a container: init, entrypoint, sshd. Only sshd has a lower
    limit.
    """
    sshd = tmp_path / "sshd"
    sshd.symlink_to("/bin/sleep")
    child = f"import subprocess; subprocess.run(['sh', '-c', 'ulimit -n 64; exec {sshd} 60'])"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], start_new_session=True) as first:
        try:
            for _attempt in range(200):
                found = state.listening_sshd(first.pid)
                if found:
                    break
                subprocess.run(["sleep", "0.05"], check=True)
            found = {"State": {"Running": True, "Pid": first.pid}, "HostConfig": {}}
            (fault,) = state.departures(found)
            # An entrypoint of another image, which has the limit, too: a restart would set it
            # again.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(state, "parent_of", lambda process: process)
                assert state.departures(found) == []
                assert state.departures(dict(found, Path=state.ENTRYPOINT)) == [fault]
        finally:
            os.killpg(first.pid, 9)
    assert "sshd in the container has the limit nofile 64:64" in fault
    assert state.departures({"State": {"Running": False, "Pid": 0}, "HostConfig": {}}) == []
    assert not Path("/proc/%d/root" % first.pid).exists()
