"""What a session in the container told, beside what the host knows of the container."""

from __future__ import annotations

import copy
import hashlib
import json

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _session_view as session

VIEW = {
    "share": {"device": 1, "inode": 2, "error": ""},
    "shm_bytes": 1 << 30,
    "limits": {"nofile": [20000, None]},
    "first_limits": {"nofile": [20000, None]},
    "group": {"memory": None, "cpus": None, "pids": 100, "affinity": 2, "killed": 0},
    "environment": {"A": ["0123", ""]},
    "first_environment": {"A": ["0123", ""]},
    "files": {"/etc/nccl.conf": "0123"},
    "python": {
        "version": "3.11.2",
        "error": "",
        "programs": {"python3": "/usr/bin/python3.11"},
        "packages": {"numpy": ["2.4.6", "/usr/lib/python3/dist-packages/numpy-2.4.6.dist-info"]},
        "shadows": [{"module": "random", "file": "/x/random.py", "hides": "/usr/lib/random.py"}],
        "startup": ["/usr/lib/a.pth"],
    },
    "processes": [{"pid": 7, "job": "old", "age_s": 90, "command": "python3 train.py"}],
}


def line(view):
    return "trainyard-session " + json.dumps(view)


def test_lines_of_login_files_are_not_the_view():
    assert session.parse_view("Welcome!\n%s\nbye\n" % line(VIEW)) == VIEW


def changed(*path, value):
    """The view with another value at a place."""
    view = copy.deepcopy(VIEW)
    target = view
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return line(view)


def test_texts_are_one_line_of_bounded_length():
    told = session.parse_view(
        changed("processes", 0, "command", value="a\nfatal: b\x1b[31m" + "x" * 9999)
    )
    (process,) = told["processes"]
    assert (
        process["command"].startswith("a fatal: b [31mxx")
        and len(process["command"]) == session.LONGEST
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python3: not found",
        "trainyard-session {",
        "trainyard-session []",
        "trainyard-session {}",
        "trainyard-session " + "[" * 100000,
        changed("environment", value=[1]),
        changed("environment", "A", value=5),
        changed("python", "packages", value=None),
        changed("python", "packages", "numpy", value=["1"]),
        changed("python", "shadows", value=["random"]),
        changed("python", "startup", value=[1]),
        changed("processes", 0, "pid", value="7; reboot"),
        changed("group", "memory", value="much"),
        changed("group", "killed", value=None),
        changed("share", "error", value=None),
        changed("files", value={"/etc/nccl.conf": 5}),
        changed("limits", "nofile", value="x"),
        changed("shm_bytes", value="x"),
        changed("shm_bytes", value=float("nan")),
        # No texts can be made of these.
        changed("shm_bytes", value=-(10**400)),
        changed("limits", "stack", value=[10**400, None]),
        changed("limits", "stack", value=[float("inf"), None]),
        changed("group", "pids", value=float("-inf")),
        changed("python", "startup", value=["x"] * (1 << 20)),
        changed("processes", 0, "pid", value=True),
    ],
)
def test_users_of_a_container_may_let_it_print_anything(text):
    with pytest.raises(session.NoView):
        session.parse_view(text)


def told_of(values):
    """Variables as the program tells them."""
    return {
        name: [hashlib.sha256(value.encode()).hexdigest()[:16], ""]
        for name, value in values.items()
    }


CONTAINER = told_of({"PATH": "/usr/bin", "TOKEN": "hunter2", "EMPTY": "", "HOME": "/root"})


def a_session(**values):
    return told_of({"PATH": "/usr/bin", "TOKEN": "hunter2", **values})


@pytest.mark.parametrize(
    "values, missing, changes, added",
    [
        ({}, [], [], []),
        ({"PWD": "/", "SSH_CLIENT": "10.0.0.1 1 2", "LC_ALL": "C", "SHLVL": "0"}, [], [], []),
        # Module ssh_mesh_info compares it with the container's.
        ({"PATH": "/opt/bin:/usr/bin"}, [], [], []),
        ({"TOKEN": "hunter3"}, [], ["TOKEN"], []),
        ({"PYTHONPATH": "/x"}, [], [], ["PYTHONPATH"]),
        ({"LD_LIBRARY_PATH": "/x"}, [], [], ["LD_LIBRARY_PATH"]),
    ],
)
def test_variables(values, missing, changes, added):
    told = session.environment_differences(CONTAINER, a_session(**values))
    assert (told["missing"], told["changed"], list(told["added"])) == (missing, changes, added)


def test_a_longer_library_path_is_told_for_comparison():
    container = {"LD_LIBRARY_PATH": ["0", "/a"]}
    told = session.environment_differences(container, {"LD_LIBRARY_PATH": ["1", "/evil:/a"]})
    assert told["extended"] == {"LD_LIBRARY_PATH": ["1", "/evil:/a"]} and told["added"] == {}
    assert session.environment_differences(container, container)["extended"] == {}


def test_variable_that_no_shell_passes_on():
    container = dict(CONTAINER, **told_of({"foo.bar": "1"}))
    assert session.environment_differences(container, a_session())["missing"] == []


def test_variable_that_a_session_lacks():
    those = a_session()
    del those["TOKEN"]
    assert session.environment_differences(CONTAINER, those)["missing"] == ["TOKEN"]


def test_no_value_of_a_secret_is_returned():
    those = a_session(API_KEY="s3cret")
    those["PYTHONPATH"] = ["0123", "https://user:s3cret@index/" + "x" * 500]
    told = session.environment_differences(CONTAINER, those)
    assert "s3cret" not in json.dumps(told) and "hunter2" not in json.dumps(told)
    assert told["added"]["PYTHONPATH"][1].startswith("https://***@index/")


@pytest.mark.parametrize(
    "path, origin",
    [
        ("/usr/lib/python3/random.py", "image"),
        ("/opt/x/random.py", "container"),
        ("/data1/share/random.py", "mount"),
        ("/data10/random.py", "image"),
    ],
)
def test_origin_of_a_file(tmp_path, path, origin):
    (tmp_path / "opt/x").mkdir(parents=True)
    (tmp_path / "opt/x/random.py").touch()
    assert session.origin_of(path, str(tmp_path), ["/data1", "/etc/trainyard/ssh"]) == origin
    # Without overlayfs only mounts are known.
    assert session.origin_of("/opt/x/random.py", "", []) == "image"


def test_only_what_is_not_of_the_image_hides_a_module(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x/random.py").touch()
    found = {"GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": str(tmp_path)}}}
    told = session.with_origins(found, VIEW)["python"]
    assert told["shadows"] == VIEW["python"]["shadows"] and told["startup"] == []
    assert told["packages"] == {"numpy": ["2.4.6", "image"]}
    assert session.with_origins({}, VIEW)["python"]["shadows"] == []
    found["Mounts"] = [{"Destination": "/etc"}]
    assert session.with_origins(found, VIEW)["files"] == {"/etc/nccl.conf": ["0123", "mount"]}


@pytest.mark.parametrize(
    "found, layer",
    [
        ({"GraphDriver": {"Name": "overlay2", "Data": {"UpperDir": "/a"}}}, "/a"),
        # Docker 28 and later with the image store of containerd, and the storage of rootless
        # engines.
        ({"GraphDriver": {"Name": "overlayfs", "Data": None}}, "/snapshots/7/fs"),
        ({}, "/snapshots/7/fs"),
    ],
)
def test_own_layer_of_a_container(found, layer):
    text = (
        "1 0 0:74 / / rw - overlay overlay rw,lowerdir=/x:/y,upperdir=/snapshots/7/fs,workdir=/w\n"
    )
    assert session.layer_of(found, text) == layer
    assert session.layer_of({}, text.replace("overlay ", "btrfs ", 1)) == ""
    assert session.layer_of({}, text.replace("=/snap", "=snap")) == session.layer_of({}, "") == ""


def test_settings_of_docker():
    settings = {
        "IpcMode": "private",
        "ShmSize": 64,
        "Memory": 300 << 20,
        "Ulimits": [{"Name": "nofile", "Soft": 1, "Hard": -1}],
    }
    assert session.settings_of({"HostConfig": settings}) == {
        "shm_bytes": 64,
        "ulimits": {"nofile": [1, -1]},
        "limited": ["memory 300 MiB"],
        "above": [],
    }
    settings["Mounts"] = [{"Target": "/dev/shm", "Source": "/dev/shm"}]
    assert session.settings_of({"HostConfig": settings})["shm_bytes"] == 0
    assert session.settings_of({"HostConfig": {"IpcMode": "host", "ShmSize": 64}})["shm_bytes"] == 0
