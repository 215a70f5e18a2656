"""ssh_mesh_keys, run like in Ansible, with the real ssh-keygen; docker is a script if needed."""

import hashlib
import json
import os
import socket
import threading

import pytest
from scripted_tools import run_module


#: What docker inspect says, in a shell script. The container's first process is this one.
INSPECTED = "echo '%s'" % json.dumps(
    [
        {
            "Id": "c" * 64,
            "Image": "sha256:0123",
            "State": {"Pid": os.getpid()},
            "HostConfig": {},
            "Config": {"Env": None, "User": ""},
        }
    ]
)


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    def run(check=False, **arguments):
        arguments = {
            "directory": f"{tmp_path}/ssh",
            "record": f"{tmp_path}/cluster.json",
            "comment": "server-a",
            **arguments,
            "_ansible_check_mode": check,
            "_ansible_remote_tmp": "/tmp",
        }
        return run_module("ssh_mesh_keys", arguments, check, PATH=f"{tmp_path}/bin:/usr/bin:/bin")

    return run


def test_makes_both_pairs_once(run, tmp_path):
    first = run()
    folder = tmp_path / "ssh"
    assert (
        first["changed"]
        and not first["rotated"]
        and first["made"] == [f"{folder}/ssh_host_ed25519_key", f"{folder}/id_ed25519"]
    )
    assert (folder / "id_ed25519.pub").read_text() == first["public_key"] + " server-a\n"
    assert {
        path.name: oct(path.stat().st_mode & 0o777)
        for path in [folder, *folder.iterdir()]
        if not path.suffix
    } == {"ssh": "0o700", "id_ed25519": "0o600", "ssh_host_ed25519_key": "0o600"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "id_ed25519",
        "id_ed25519.pub",
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
    ]
    again = run()
    assert not again["changed"] and (again["host_key"], again["public_key"]) == (
        first["host_key"],
        first["public_key"],
    )


def test_files_are_told_with_checksum_and_permissions(run, tmp_path):
    config = tmp_path / "config"
    config.write_text("Port 12345\n")
    config.chmod(0o640)
    told = run(files=[str(config), f"{tmp_path}/none"])
    assert told["checksums"] == {str(config): hashlib.sha256(b"Port 12345\n").hexdigest()}
    assert told["permissions"] == {str(config): "0640"}


def test_no_private_key_in_the_result(run, tmp_path):
    text = json.dumps(run())
    private = (tmp_path / "ssh/id_ed25519").read_text().splitlines()
    assert "PRIVATE" not in text and not any(line in text for line in private)


def test_check_mode_makes_nothing(run, tmp_path):
    told = run(check=True)
    assert told["changed"] and (told["host_key"], told["public_key"]) == ("", "")
    assert not (tmp_path / "ssh").exists()


def test_the_proof_of_the_share_answers_as_in_check_mode(run, tmp_path):
    def along():
        options = {"directory": f"{tmp_path}/ssh", "record": f"{tmp_path}/cluster.json"}
        proof = {"path": str(tmp_path), "step": "read", "sshd": options}
        return run_module("shared_storage_proof", proof)["sshd"]

    missing = along()
    assert missing["changed"] and missing["host_key"] == "" and not (tmp_path / "ssh").exists()
    run()
    told = run(check=True)
    assert along() == {key: value for key, value in told.items() if key != "invocation"}
    # The role then asks the module itself, which says what is wrong.
    (tmp_path / "cluster.json").write_text("{")
    assert along() == {}


def test_rotation(run):
    first = run()
    told = run(check=True, rotate=True)
    assert told["changed"] and told["rotated"] and told["host_key"] == first["host_key"]
    second = run(rotate=True)
    assert (
        second["changed"]
        and second["rotated"]
        and second["host_key"] != first["host_key"]
        and second["public_key"] != first["public_key"]
    )
    assert not run()["changed"]


def test_what_is_open_or_wrong_beside_the_private_key_is_mended(run, tmp_path):
    first = run()
    key = tmp_path / "ssh/ssh_host_ed25519_key"
    key.chmod(0o644)
    key.with_suffix(".pub").write_text("ssh-ed25519 AAAA other\n")
    second = run()
    assert second["changed"] and second["host_key"] == first["host_key"]
    assert oct(key.stat().st_mode & 0o777) == "0o600" and key.with_suffix(
        ".pub"
    ).read_text().startswith(first["host_key"])
    assert not run()["changed"]


def test_private_key_that_is_none_fails(run, tmp_path):
    run()
    (tmp_path / "ssh/id_ed25519").write_text("garbage\n")
    told = run()
    assert told["failed"] and f"{tmp_path}/ssh/id_ed25519 is not a private key" in told["msg"]


def test_record_is_returned(run, tmp_path):
    record = {
        "hosts": [{"name": "a", "host_key": "ssh-ed25519 AAAA", "public_key": "ssh-ed25519 BBBB"}]
    }
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    assert run()["recorded"] == record


def test_record_that_can_not_be_read_stops_before_keys_are_made(run, tmp_path):
    (tmp_path / "cluster.json").write_text("{")
    told = run()
    assert told["failed"] and f"{tmp_path}/cluster.json" in told["msg"]
    assert not list((tmp_path / "ssh").iterdir())


def test_sshd_that_has_not_read_its_newest_file(run, tmp_path):
    """Its pid file, which it writes when it has read its files, is looked at through the
    container's /proc/<pid>/root: here our own.
    """
    run()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(f"#!/bin/sh\n{INSPECTED}\n")
    (tmp_path / "bin/docker").chmod(0o755)
    pid_file = tmp_path / "sshd.pid"
    asked = {"container": "trainyard-training", "pid_file": str(pid_file)}
    assert run(**asked)["sshd"] == {"running": False, "reload_needed": False, "frozen": False}
    pid_file.write_text("1")
    assert run(**asked)["sshd"] == {"running": True, "reload_needed": False, "frozen": False}
    assert run(**asked)["image_id"] == "sha256:0123"
    os.utime(pid_file, (1, 1))
    assert run(**asked)["sshd"] == {"running": True, "reload_needed": True, "frozen": False}


@pytest.mark.parametrize("greeting, frozen", [(b"SSH-2.0-OpenSSH_9.2\r\n", False), (b"", True)])
def test_sshd_that_does_not_answer(run, tmp_path, greeting, frozen):
    """The kernel accepts the connection, as it does for a process that is stopped."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(f"#!/bin/sh\n{INSPECTED}\n")
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "sshd.pid").write_text("1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet():
            connection, _address = listener.accept()
            with connection:
                connection.sendall(greeting)

        if greeting:
            threading.Thread(target=greet, daemon=True).start()
        asked = {
            "container": "x",
            "pid_file": f"{tmp_path}/sshd.pid",
            "address": "127.0.0.1",
            "port": listener.getsockname()[1],
            "timeout": 1,
        }
        assert run(**asked)["sshd"]["frozen"] is frozen
    # Nobody listens: it is being started.
    assert run(**asked)["sshd"]["frozen"] is False


def test_logins_are_tried_only_if_nothing_changes(run, tmp_path):
    """Otherwise they would not show the state after the run.

    Here the container's docker exec answers, as if its ssh were missing.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(
        f"#!/bin/sh\ncase $1 in inspect) {INSPECTED};; *) echo; exit 127;; esac\n"
    )
    (tmp_path / "bin/docker").chmod(0o755)
    pid_file = tmp_path / "sshd.pid"
    pid_file.write_text("1")
    asked = {"container": "x", "pid_file": str(pid_file), "peers": ["server-a"]}
    # It creates the keys.
    assert run(**asked)["logins"] == {}
    os.utime(pid_file)
    told = run(**asked)["logins"]
    assert (told["available"], told["container"]["id"]) == (False, "c" * 64)
    assert run(**dict(asked, peers=[]))["logins"] == {}
    # An sshd with an older file.
    os.utime(pid_file, (1, 1))
    assert run(**asked)["logins"] == {}


def test_logins_and_sshd_are_asked_in_one_docker_exec(run, tmp_path):
    """It takes longer than they do.

    The container's tools are scripts, and docker exec runs them on this machine.
    """
    (tmp_path / "bin").mkdir()
    tools = {
        "docker": f"case $1 in inspect) {INSPECTED}; exit;; esac\necho exec >> {tmp_path}/log\n"
        'while [ "$1" != /bin/sh ]; do shift; done\nexec "$@"',
        "ssh": '[ "$1" = -Q ] && exec echo mlkem768x25519-sha256\n{ echo Connection refused; } >&2; exit 255',
    }
    for name, body in tools.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "sshd.pid").write_text("1", encoding="utf-8")
    asked = {"container": "x", "pid_file": f"{tmp_path}/sshd.pid", "peers": ["server-a", "b"]}
    first = run(**asked)
    assert (first["logins"], first["post_quantum"]) == ({}, True)
    os.utime(tmp_path / "sshd.pid")
    (tmp_path / "log").unlink()
    told = run(**asked)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "exec\n"
    assert (told["post_quantum"], told["effective"]) == (True, {})
    assert [login["name"] for login in told["logins"]["logins"]] == ["server-a", "b"]
    assert (told["logins"]["available"], told["logins"]["container"]["id"]) == (True, "c" * 64)


@pytest.mark.parametrize(
    "known, post_quantum",
    [
        ("curve25519-sha256 curve25519-sha256@libssh.org ecdh-sha2-nistp256", False),
        ("curve25519-sha256 sntrup761x25519-sha512@openssh.com", True),
        ("curve25519-sha256 mlkem768x25519-sha256", True),
    ],
)
def test_post_quantum_exchange_is_told_by_the_container_s_own_ssh(
    run, tmp_path, known, post_quantum
):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(
        f"#!/bin/sh\ncase $1 in exec) printf '%s\\n' {known};; *) {INSPECTED};; esac\n"
    )
    (tmp_path / "bin/docker").chmod(0o755)
    assert run(container="x")["post_quantum"] is post_quantum
    assert run()["post_quantum"] is False


def test_who_can_log_in_is_told(run, tmp_path):
    """The keys of the file, the settings that sshd takes from its file, and where something
    listens. Nothing of it is changed.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(
        f'#!/bin/sh\ncase $1 in exec) echo curve25519-sha256; echo --trainyard--; echo "asked ${{5##*sshd -T -f }}";\n'
        f"printf 'port 12345\\nlistenaddress 10.0.0.1:1\\nlistenaddress [::]:1\\n';; *) {INSPECTED};; esac\n"
    )
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh/authorized_keys").write_text("# ours\nssh-ed25519 AAAA a\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        told = run(check=True, container="x", port=port)
        with socket.create_server(("::1", port), family=socket.AF_INET6):
            assert run(check=True, port=port)["listens"] == ["127.0.0.1", "::1"]
    assert told["authorized"] == ["# ours", "ssh-ed25519 AAAA a"] and told["listens"] == [
        "127.0.0.1"
    ]
    assert told["effective"] == {
        "asked": [f"{tmp_path}/ssh/sshd_config; fi"],
        "port": ["12345"],
        "listenaddress": ["10.0.0.1:1", "[::]:1"],
    }
    without = run(check=True, directory=f"{tmp_path}/none", port=port)
    assert (without["authorized"], without["effective"], without["listens"]) == ([], {}, [])


def test_container_whose_sshd_is_not_root(run, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(
        "#!/bin/sh\n%s\n" % INSPECTED.replace('"User": ""', '"User": "1000:1000"')
    )
    (tmp_path / "bin/docker").chmod(0o755)
    told = run(container="x")
    assert (
        told["failed"]
        and "runs as user '1000:1000'" in told["msg"]
        and "docker exec --user" in told["msg"]
    )


def test_no_container(run, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(
        "#!/bin/sh\necho 'Error: No such container: x' >&2\nexit 1\n"
    )
    (tmp_path / "bin/docker").chmod(0o755)
    told = run(container="x")
    assert told["image_id"] == "" and told["sshd"] == {
        "running": False,
        "reload_needed": False,
        "frozen": False,
    }
