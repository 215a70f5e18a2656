"""What jobs find in the containers: each fault on the second of two or three hosts, and what only
looks like one.
"""

from __future__ import annotations

import copy

import pytest
from stand_in_hosts import SESSION

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _verify_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._session_checks import CHECKS, findings

VIEW, GIB = SESSION["view"], 1 << 30


def a_session(*changes):
    """A session in order but for C(changes), each the keys and the value."""
    session = copy.deepcopy(SESSION)
    for *path, last, value in changes:
        target = session
        for key in path:
            target = target[key]
        target[last] = value
    return session


def told(running=(), **sessions):
    found = findings(sessions, None if running is None else list(running), "/data1/share")
    assert set(found) == set(CHECKS)
    assert all(
        entry["expected"] and entry["fix"] and "\n" not in entry["found"]
        for entries in found.values()
        for entry in entries
    )
    return [
        (check, entry["host"], entry["warn"], entry["found"])
        for check, entries in found.items()
        for entry in entries
    ]


def test_hosts_in_order():
    assert told(a=a_session(), b=a_session(), c=a_session()) == []
    # A session that could not be read is told by the rule, and does not keep the others from being
    # judged.
    assert told(a=a_session(), b={"cause": "ssh_failed", "view": {}}, c={}) == []
    # As when no host has a container yet, or all are left out.
    assert told() == told(a={}) == []


VIEWED = ("view",)
FAULTS = [
    (
        "container-share",
        [("view", "share", "error", "Read-only file system")],
        "a job cannot write to /data1/share: Read-only file system",
    ),
    ("container-share", [("view", "share", "device", 8)], "differs from the folder of the host"),
    ("container-share", [("view", "share", "inode", 8)], "differs from the folder of the host"),
    ("container-limits", [("view", "shm_bytes", 65536)], "/dev/shm in the container has 64 KiB"),
    ("container-limits", [("view", "limits", "nofile", [64, 64])], "has the limit nofile 64"),
    ("container-limits", [("view", "limits", "nofile", [64, 20000])], "has the limit nofile 64"),
    (
        "container-limits",
        [("view", "limits", "stack", [65536, 65536])],
        "has the limit stack 64 KiB",
    ),
    (
        "container-limits",
        [("view", "group", "memory", 300 << 20), ("settings", "limited", ["memory 300 MiB"])],
        "the container is limited to memory 300 MiB",
    ),
    # By a control group above the container.
    ("container-limits", [("view", "group", "memory", GIB)], "limited to memory 1 GiB"),
    ("container-limits", [("view", "group", "cpus", 0.1)], "limited to 0.1 CPUs"),
    ("container-limits", [("view", "group", "affinity", 2)], "limited to 2 of 8 CPUs"),
    ("container-limits", [("view", "group", "pids", 12)], "limited to 12 processes"),
    (
        "container-limits",
        [("view", "group", "pids", 9000), ("settings", "limited", ["9000 processes"])],
        "limited to 9000 processes",
    ),
    ("container-limits", [("view", "group", "killed", 3)], "warn: out of memory"),
    ("session-environment", [("view", "environment", "missing", ["A"])], "lacks variable A"),
    (
        "session-environment",
        [("view", "environment", "changed", ["A"])],
        "another value of variable A",
    ),
    (
        "session-environment",
        [("view", "environment", "added", {"PYTHONPATH": ["0", "/opt/x"]})],
        "variable PYTHONPATH, which neither image nor container sets: /opt/x",
    ),
    (
        "session-environment",
        [("view", "environment", "added", {"NCCL_ALGO": ["0", ""]})],
        "variable NCCL_ALGO",
    ),
    (
        "session-environment",
        [
            (
                "view",
                "python",
                "shadows",
                [{"module": "random", "file": "/x/random.py", "hides": "/usr/lib/random.py"}],
            )
        ],
        "module random of /x/random.py hides /usr/lib/random.py",
    ),
    ("session-environment", [("view", "python", "startup", ["/x/a.pth"])], "Python runs /x/a.pth"),
    (
        "session-environment",
        [("view", "python", "error", "python3 does not start: no")],
        "does not start",
    ),
    (
        "session-environment",
        [("view", "python", "programs", "python3", ["/opt/bin/python3", "container"])],
        "python3 is /opt/bin/python3",
    ),
    (
        "session-environment",
        [("view", "python", "packages", "numpy", ["1.0", "container"])],
        "other versions of packages than on other hosts: numpy 1.0",
    ),
    (
        "session-environment",
        [("view", "python", "packages", "debugpy", ["1.0", "container"])],
        "warn: Python finds packages that neither the image nor other hosts have: debugpy 1.0",
    ),
    (
        "leftover-processes",
        [
            (
                "view",
                "processes",
                [{"pid": 7, "job": "old", "age_s": 7300, "command": "python3 t.py"}],
            )
        ],
        "warn: job old has ended, but its processes run: PID 7 (python3 t.py, 2 h)",
    ),
    (
        "leftover-processes",
        [("view", "processes", [{"pid": 7, "job": "", "age_s": 90, "command": "burn"}])],
        "warn: busy processes are of no job: PID 7 (burn, 1 min)",
    ),
]


@pytest.mark.parametrize("check, changes, text", FAULTS)
@pytest.mark.parametrize("others", ["a", "ac"])
def test_each_fault_is_told_of_the_host_that_has_it(others, check, changes, text):
    sessions = {name: a_session() for name in others}
    ((told_check, host, warn, found),) = told(**sessions, b=a_session(*changes))
    assert (told_check, host, warn) == (check, "b", text.startswith("warn: "))
    assert text.replace("warn: ", "") in found


@pytest.mark.parametrize(
    "changes, warns",
    [
        # The login files of the image set it, but it decides what is loaded.
        ([("view", "environment", "added", {"PYTHONPATH": ["0", "/opt/x"]})], True),
        ([("view", "environment", "added", {"EDITOR": ["0", ""]})], False),
        ([("view", "python", "packages", "debugpy", ["1.0", "container"])], False),
        ([("view", "python", "startup", ["/x/a.pth"])], True),
    ],
)
def test_what_all_hosts_have_only_warns(changes, warns):
    found = told(a=a_session(*changes), b=a_session(*changes))
    assert [(entry[1], entry[2]) for entry in found] == (
        [("a", True), ("b", True)] if warns else []
    )


def test_one_host_alone_is_compared_with_the_image():
    changes = ("view", "environment", "added", {"PYTHONPATH": ["0", "/opt/x"]})
    ((_check, _host, warn, _text),) = told(a=a_session(changes))
    assert warn
    shadow = {"module": "random", "file": "/x/random.py", "hides": "/usr/lib/random.py"}
    ((_check, _host, warn, _text),) = told(a=a_session(("view", "python", "shadows", [shadow])))
    assert not warn


def test_without_a_majority_the_host_with_the_change_is_named():
    """Of two hosts, what is of the image speaks for one of them."""
    changed = a_session(("view", "python", "packages", "numpy", ["1.0", "mount"]))
    assert {entry[1] for entry in told(a=changed, b=a_session())} == {"a"}
    # Without any sign, both.
    unknown = a_session(("view", "python", "packages", "numpy", ["1.0", "image"]))
    assert {entry[1] for entry in told(a=unknown, b=a_session())} == {"a", "b"}


def test_a_variable_that_most_hosts_have():
    having = ("view", "environment", "added", {"FOO": ["0", ""]})
    ((_check, host, warn, text),) = told(a=a_session(having), b=a_session(), c=a_session(having))
    assert (host, warn) == ("b", False) and "lacks variable FOO" in text


def test_limits_of_containers_are_compared_between_hosts():
    lower = [("view", key, "nofile", [1024, 1024]) for key in ("limits", "first_limits")]
    ((check, host, warn, text),) = told(a=a_session(), b=a_session(*lower))
    assert (check, host, warn) == ("container-limits", "b", True) and "nofile 1024" in text
    # The kernel derives one from the memory, and the plan sets the other.
    for name, ulimits in (("nproc", [64 << 20, 64 << 20]), ("stack", [-1, -1])):
        lower = [("view", key, name, [1 << 20, 1 << 20]) for key in ("limits", "first_limits")]
        higher = [("view", key, name, [None, None]) for key in ("limits", "first_limits")]
        settings = [
            ("settings", "ulimits", {"stack": those}) for those in (ulimits, [1 << 20, 1 << 20])
        ]
        assert told(a=a_session(*higher, settings[0]), b=a_session(*lower, settings[1])) == [], name


def test_a_limit_above_the_container():
    above = ("settings", "above", [{"group": "/system.slice", "limits": ["memory 2 GiB"]}])
    ((check, host, warn, text),) = told(a=a_session(), b=a_session(above))
    assert (check, host, warn) == ("container-limits", "b", True)
    assert "/system.slice above the container is limited to memory 2 GiB" in text


def test_healthy_oddities():
    # Docker's default on systemd is a share of the kernel's, /dev/shm of the host has its size, and
    # a cgroup of version 1 knows no counter.
    odd = a_session(
        ("view", "group", "pids", 4915),
        ("settings", "shm_bytes", 0),
        ("view", "shm_bytes", 8 << 30),
        ("share", {"device": None, "inode": None}),
    )
    assert told(a=a_session(), b=odd) == []


def test_library_path_that_is_longer_on_one_host():
    def extended(text):
        return ("view", "environment", "extended", {"LD_LIBRARY_PATH": [text, text]})

    evil, compat = extended("/evil:/a"), extended("/usr/local/cuda/compat/lib:/a")
    ((_check, host, warn, text),) = told(a=a_session(), b=a_session(evil))
    assert (host, warn) == ("b", False) and "LD_LIBRARY_PATH of the container to /evil:/a" in text
    assert told(a=a_session(evil), b=a_session(evil)) == []
    # NGC's images, on hosts with different drivers.
    assert [entry[1:3] for entry in told(a=a_session(), b=a_session(compat))] == [("b", True)]


def test_settings_of_nccl_in_a_file_of_one_host():
    mine = ("view", "files", {"/etc/nccl.conf": ["0123", "container"]})
    ((check, host, warn, text),) = told(a=a_session(), b=a_session(mine))
    assert (check, host, warn) == ("session-environment", "b", False) and "/etc/nccl.conf" in text
    assert told(a=a_session(mine), b=a_session(mine)) == []
    other = ("view", "files", {"/etc/nccl.conf": ["4567", "mount"]})
    # training_container_mounts of each host.
    assert {entry[2] for entry in told(a=a_session(), b=a_session(other))} == {True}
    image = ("view", "files", {"/etc/nccl.conf": ["0123", "image"]})
    assert [entry[1] for entry in told(a=a_session(image), b=a_session(other))] == ["b"]
    ((_check, host, _warn, text),) = told(a=a_session(image), b=a_session(), c=a_session(image))
    assert host == "b" and "lacks /etc/nccl.conf" in text


def test_a_head_without_gpus_has_no_nvidia_smi():
    having = [("view", "python", "programs", "nvidia-smi", ["/usr/bin/nvidia-smi", "container"])]
    assert told(a=a_session(), b=a_session(*having), c=a_session(*having)) == []
    other = ("view", "python", "programs", "nvidia-smi", ["/opt/nvidia-smi", "mount"])
    found = told(a=a_session(), b=a_session(*having), c=a_session(*having), d=a_session(other))
    assert "d" in {entry[1] for entry in found} and "a" not in {entry[1] for entry in found}


def test_processes_of_a_running_job():
    process = {"pid": 7, "job": "now", "age_s": 90, "command": "python3"}
    running = a_session(("view", "processes", [process]))
    assert told(("now",), a=a_session(), b=running) == []
    # The head is not part of the run, so it is not known which jobs run.
    assert told(None, b=running) == []
    assert [entry[0] for entry in told((), b=running)] == ["leftover-processes"]


def test_a_job_that_another_host_has_started_has_not_ended():
    """The head of the cluster was changed, or the job was started with another inventory."""
    variables = {
        name: {"__verify_health": {"session": {"jobs": jobs}}}
        for name, jobs in (("a", ["now"]), ("b", ["older"]), ("c", None))
    }
    variables["d"] = {}
    members, names = [{"name": name} for name in "abcd"], list("abcd")
    assert _verify_plan.sessions(members, names, variables, "a")[1] == ["now", "older"]
    for head in "cd":
        assert _verify_plan.sessions(members, names, variables, head)[1] is None
