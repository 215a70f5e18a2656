"""training_container_info, run like in Ansible; docker, systemctl and journalctl are scripts that
print real output.
"""

import hashlib
import json
import os
import time
from types import SimpleNamespace

import pytest
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.module_utils import _training_container

CONTAINER = {
    "Id": "c" * 64,
    "Name": "/trainyard-training",
    "Image": "sha256:aa",
    "State": {"Running": True, "StartedAt": "2026-11-20T12:41:28Z"},
    "HostConfig": {"RestartPolicy": {"Name": "no"}},
    "Config": {
        "Labels": {"trainyard.managed": "true", "trainyard.settings": "0123"},
        "Env": ["HTTPS_PROXY=http://user:pass@proxy:3128"],
    },
}
IMAGE = {"Id": "sha256:aa", "RootFS": {"Layers": []}, "Config": {"Labels": {}}}
UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "NeedDaemonReload": "no",
    "FragmentPath": "",
}


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    (tmp_path / "bin").mkdir()

    def script(name, body):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def run(docker=None, unit=None, **arguments):
        if docker is not None:
            script("docker", docker)
        properties = "\n".join(
            f"{name}={value}" for name, value in {**UNIT, **(unit or {})}.items()
        )
        script("systemctl", f"/bin/cat <<'EOF'\n{properties}\nEOF")
        script("journalctl", "echo 'no such device'")
        arguments = {
            "name": "trainyard-training",
            "image": "trainyard/training:0123",
            **arguments,
            "_ansible_remote_tmp": "/tmp",
        }
        return run_module("training_container_info", arguments, PATH=f"{tmp_path}/bin:/nowhere")

    return run


def prints(*found, missing=""):
    return f"""/bin/cat <<'EOF'
{json.dumps(found)}
EOF
{f'echo "Error: No such object: {missing}" >&2; exit 1' if missing else ""}"""


def test_the_proof_of_the_share_answers_the_same(run, tmp_path):
    """Not if a file is not as it was written: the run ends then."""
    told = run(prints(CONTAINER, IMAGE), paths=["/no/such"])
    proof = {
        "path": str(tmp_path),
        "step": "read",
        "timeout": 0,
        "container": {
            "name": "trainyard-training",
            "image": "trainyard/training:0123",
            "paths": ["/no/such"],
        },
    }
    along = run_module("shared_storage_proof", proof, PATH=f"{tmp_path}/bin:/nowhere")
    told = {key: value for key, value in told.items() if key not in ("changed", "invocation")}
    assert along["container"] == told and along["sshd"] == {}
    lost = {"name": "b", "file": "b.0", "checksum": "0", "uid": 0, "gid": 0, "mode": "0640"}
    along = run_module("shared_storage_proof", dict(proof, files=[lost]))
    assert (along["seen"][0]["cause"], along["container"], along["sshd"]) == ("missing", {}, {})


def test_all_is_there(run, tmp_path):
    tmp_path.chmod(0o750)
    told = run(prints(CONTAINER, IMAGE), paths=[str(tmp_path), "/no/such"])
    assert (told["available"], told["cause"], told["changed"]) == (True, "", False)
    assert told["image"] == {"exists": True, "id": "sha256:aa"}
    assert told["container"] == {
        "exists": True,
        "running": True,
        "id": "c" * 64,
        "image_id": "sha256:aa",
        "started_at": "2026-11-20T12:41:28Z",
        "managed": True,
        "settings": "0123",
        "restart_policy": "no",
        "paused": False,
        "changed_files": [],
        "busy": [],
        "departures": [],
        "limited": [],
        "resolv_conf": "",
    }
    assert told["runtimes"] == []
    assert told["unit"] == {
        "loaded": True,
        "foreign": "",
        "active": True,
        "state": "active",
        "enabled": True,
        "reload_needed": False,
        "drop_ins": [],
        "engine": "",
        "log": [],
    }
    assert told["paths"] == {str(tmp_path): "0750", "/no/such": ""}
    assert told["services"] == {
        "files": [],
        "config": "",
        "states": {},
        "certificate_days": None,
    } and told["notebooks"] == {"revision": ""}


@pytest.mark.parametrize(
    "first_line, foreign",
    [("# Placed by trainyard.gpu.training_container.", False), ("[Unit]", True), ("", True)],
)
def test_unit_of_someone_else(run, tmp_path, first_line, foreign):
    path = tmp_path / "trainyard-training.service"
    path.write_text(f"{first_line}\n[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    assert run(prints(CONTAINER, IMAGE), unit={"FragmentPath": str(path)})["unit"]["foreign"] == (
        str(path) if foreign else ""
    )


def test_limits_that_somebody_has_set_and_who_would_lose_a_process(run):
    """docker update changes HostConfig and not the label with the settings."""
    limited = {**CONTAINER, "HostConfig": {**CONTAINER["HostConfig"], "Memory": 300 << 20}}
    top = TOP + "107 106 python3 python3 train.py\n"
    told = run(
        f"if [ $1 = top ]; then /bin/cat <<'EOF'\n{top}EOF\nexit; fi\n[ $1 = diff ] && exit\n"
        + prints(limited, IMAGE)
    )["container"]
    assert (told["limited"], told["busy"]) == (["memory 300 MiB"], ["python3"])
    # Another one's is not ours to judge.
    other = {**limited, "Config": {"Labels": None}}
    assert run(prints(other, IMAGE))["container"]["limited"] == []


def test_drop_ins_and_the_engine(run, tmp_path):
    path = tmp_path / "x.conf"
    path.write_text(
        "[Service]\nRestart=no\n ExecStartPre = /bin/false\n# Nice=1\n", encoding="utf-8"
    )
    engine = "\n\nId=docker.service\nUnitFileState=disabled"
    told = run(
        prints(CONTAINER, IMAGE),
        unit={"Id": "trainyard-training.service", "DropInPaths": f"{path}{engine}"},
    )["unit"]
    assert told["drop_ins"] == [{"path": str(path), "keys": ["ExecStartPre", "Restart"]}]
    assert (told["engine"], told["enabled"]) == ("disabled", True)


def test_checksums_of_files(run, tmp_path):
    (tmp_path / "environment").write_text("A=1\n", encoding="utf-8")
    told = run(prints(CONTAINER, IMAGE), files=[f"{tmp_path}/environment", "/no/such"])
    assert told["files"] == {f"{tmp_path}/environment": hashlib.sha256(b"A=1\n").hexdigest()}


def layered(tmp_path):
    """An image's layer with a program, and a container's in which it was written to."""
    for layer in ("image", "container"):
        (tmp_path / layer / "usr/bin").mkdir(parents=True)
        (tmp_path / layer / "usr/bin/tool").write_text(layer, encoding="utf-8")
    return {
        **CONTAINER,
        "GraphDriver": {
            "Name": "overlay2",
            "Data": {"UpperDir": f"{tmp_path}/container", "LowerDir": f"/no/such:{tmp_path}/image"},
        },
    }


TOP = """PID                 PPID                COMMAND             COMMAND
100                 90                  docker-init         /sbin/docker-init -- /usr/local/lib/trainyard/entrypoint
101                 100                 entrypoint          /bin/sh /usr/local/lib/trainyard/entrypoint
102                 101                 sshd                sshd: /usr/sbin/sshd -D -e -f /etc/trainyard/ssh/sshd_config [listener] 1 of 10-100 startups
106                 102                 sshd                sshd: root@notty
"""


@pytest.mark.parametrize("rows, busy", [("", []), ("107 106 sh sh train.sh\n", ["sh"])])
def test_files_that_were_changed_in_the_container(run, tmp_path, rows, busy):
    top = TOP + rows
    told = run(
        f"if [ $1 = top ]; then /bin/cat <<'EOF'\n{top}EOF\nexit; fi\n"
        + prints(layered(tmp_path), IMAGE)
    )["container"]
    assert (told["changed_files"], told["busy"]) == (["/usr/bin/tool (modified)"], busy)
    # Another one's is not ours to judge.
    assert (
        run(prints({**layered(tmp_path / "other"), "Config": {"Labels": None}}, IMAGE))[
            "container"
        ]["changed_files"]
        == []
    )


def test_files_without_overlayfs(run):
    diff = "C /usr\nC /usr/bin\nD /usr/bin/tool\n"
    told = run(
        f"if [ $1 = diff ]; then /bin/cat <<'EOF'\n{diff}EOF\nexit; fi\n[ $1 = top ] && exit\n"
        + prints(CONTAINER, IMAGE)
    )
    assert told["container"]["changed_files"] == ["/usr/bin/tool (deleted)"]


def test_runtimes_and_a_pause(run):
    runtimes = '{"runc": {}, "nvidia": {}}'
    told = run(
        f"if [ $1 = info ]; then echo '{runtimes}'; exit; fi\n"
        + prints({**CONTAINER, "State": {**CONTAINER["State"], "Paused": True}}, IMAGE),
        runtime="nvidia",
    )
    assert told["runtimes"] == ["nvidia", "runc"] and told["container"]["paused"]


def test_no_password_of_the_environment_is_returned(run):
    assert "pass@proxy" not in json.dumps(run(prints(CONTAINER, IMAGE)))


def test_container_deleted_by_hand(run):
    told = run(prints(IMAGE, missing="trainyard-training"), unit={"ActiveState": "activating"})
    assert told["available"] and told["image"]["exists"] and not told["container"]["exists"]
    assert (
        told["unit"]["state"] == "activating"
        and not told["unit"]["active"]
        and told["unit"]["log"] == ["no such device"]
    )


def test_container_of_someone_else(run):
    assert not run(prints({**CONTAINER, "Config": {"Labels": None}}, IMAGE))["container"]["managed"]


def test_a_host_without_docker_and_unit(run):
    told = run(unit={"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""})
    assert (told["available"], told["cause"]) == (False, "not_installed") and told["fix"]
    assert (
        not told["unit"]["loaded"]
        and not told["unit"]["enabled"]
        and not told["container"]["exists"]
    )


def test_engine_that_does_not_answer(run):
    told = run(
        "echo '[]'; echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock.' >&2; exit 1"
    )
    assert (told["available"], told["cause"]) == (
        False,
        "engine_unavailable",
    ) and "Cannot connect" in told["fix"]


def test_one_that_dies_again_and_again_is_waited_for_in_vain(run):
    steady = prints(CONTAINER, IMAGE)
    restless = prints({**CONTAINER, "State": {"Running": True, "StartedAt": "@"}}, IMAGE).replace(
        "/bin/cat", "/bin/sed s/@/$(/bin/date +%N)/"
    )
    began = time.monotonic()
    run(steady, wait=30)
    assert time.monotonic() - began < 10
    began = time.monotonic()
    run(restless, wait=4)
    assert time.monotonic() - began >= 4


@pytest.mark.parametrize(
    "theirs, host, engine, changes, outdated",
    [
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.1\n", "{}", {}, False),
        # Newer engines write remarks of their own into it.
        (
            "# Generated by Docker Engine.\nnameserver 10.0.0.1\n",
            "search x\nnameserver 10.0.0.1\n",
            "",
            {},
            False,
        ),
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.2\nnameserver 10.0.0.1\n", "{}", {}, True),
        (
            "nameserver 10.0.0.2\nnameserver 10.0.0.1\n",
            "nameserver 10.0.0.1\nnameserver 10.0.0.2\n",
            "not json",
            {},
            True,
        ),
        ("", "nameserver 10.0.0.1\n", "{}", {}, False),
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.2\n", '{"dns": ["10.0.0.1"]}', {}, False),
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.2\n", "{}", {"Dns": ["10.0.0.1"]}, False),
        ("nameserver 10.0.0.1\n", "nameserver 10.0.0.2\n", "{}", {"NetworkMode": "bridge"}, False),
    ],
)
def test_a_containers_name_servers(monkeypatch, theirs, host, engine, changes, outdated):
    files = {
        "/var/lib/docker/containers/c/resolv.conf": theirs,
        "/etc/resolv.conf": host,
        "/etc/docker/daemon.json": engine,
    }
    monkeypatch.setattr(_training_container, "read_text", files.get)
    found = dict(
        CONTAINER,
        ResolvConfPath="/var/lib/docker/containers/c/resolv.conf",
        HostConfig=dict({"NetworkMode": "host", "Dns": []}, **changes),
    )
    assert _training_container.outdated_resolv_conf(found) == (
        "/var/lib/docker/containers/c/resolv.conf" if outdated else ""
    )
    assert _training_container.outdated_resolv_conf(dict(found, State={"Running": False})) == ""


STATES = {"jupyterlab": {"state": "ready", "why": ""}}


@pytest.fixture(name="supervised")
def fixture_supervised(tmp_path, monkeypatch):
    """What the module reads of a container: the state that its supervisor wrote, as the process of
    this test sees it.
    """
    path = tmp_path / "status.json"
    monkeypatch.setattr(_training_container, "STATUS", str(path))

    def read(content):
        path.unlink(missing_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif content is not None:
            path.symlink_to(content)
        return _training_container.supervised(os.getpid())

    return read


def test_states_of_services(supervised):
    assert supervised(json.dumps({"config": "0123", "services": STATES})) == ("0123", STATES)
    assert supervised(json.dumps({"config": "0123", "services": {}})) == ("0123", {})


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"config": "0123", "services": {"a": {}}}',
        '{"config": "0123", "services": [1]}',
        "\0",
        '{"a": ',
    ],
)
def test_states_that_somebody_in_the_container_has_changed(supervised, content):
    assert supervised(content) == ("", {})


def test_a_link_in_the_container_is_not_followed(supervised, tmp_path):
    (tmp_path / "of-the-host").write_text(
        json.dumps({"config": "0123", "services": STATES}), encoding="utf-8"
    )
    assert supervised(tmp_path / "of-the-host") == ("", {})


def test_a_pipe_in_the_container_does_not_stop_the_module(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(_training_container, "STATUS", str(tmp_path / "pipe"))
    assert _training_container.supervised(os.getpid()) == ("", {})


def test_files_certificate_and_revision(run, tmp_path):
    for name in ("inside/a.token", "tls/ca.pem"):
        (tmp_path / "services" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "services" / name).write_text("x", encoding="utf-8")
    (tmp_path / "HEAD").write_text("0123456789" * 4 + "\n", encoding="utf-8")
    (tmp_path / "bin/openssl").write_text(
        "#!/bin/sh\necho 'notAfter=Jan  2 00:00:00 2090 GMT'\n", encoding="utf-8"
    )
    (tmp_path / "bin/openssl").chmod(0o755)
    options = {
        "services_folder": str(tmp_path / "services"),
        "certificate": str(tmp_path / "services/tls/ca.pem"),
        "repository": str(tmp_path),
    }
    told = run(prints(CONTAINER, IMAGE), **options)
    assert told["services"]["files"] == [
        str(tmp_path / "services/inside/a.token"),
        str(tmp_path / "services/tls/ca.pem"),
    ]
    assert (
        told["services"]["certificate_days"] > 20000
        and told["notebooks"]["revision"] == "0123456789" * 4
    )
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (tmp_path / "bin/openssl").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    told = run(prints(CONTAINER, IMAGE), **options)
    assert (told["services"]["certificate_days"], told["notebooks"]["revision"]) == (None, "")


@pytest.mark.parametrize(
    "config, states, done",
    [
        ("0123", {"a": "ready"}, True),
        ("0123", {"a": "ready", "b": "starting"}, False),
        ("0123", {"a": "failed"}, False),
        ("0123", {"a": "refused"}, True),
        ("4567", {"a": "ready"}, False),
        ("", {}, False),
    ],
)
def test_services_are_awaited(config, states, done):
    found = {
        "services": {
            "config": config,
            "states": {name: {"state": state, "why": ""} for name, state in states.items()},
        }
    }
    module = SimpleNamespace(params={"services_config": "0123"})
    assert _training_container.serves(module, found) is done
    assert (
        _training_container.serves(SimpleNamespace(params={"services_config": ""}), found) is True
    )
