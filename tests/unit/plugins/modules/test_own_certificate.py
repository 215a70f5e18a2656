"""own_certificate, run like in Ansible with the machine's openssl."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest
from scripted_tools import run_module


@pytest.fixture(name="run")
def _run(tmp_path):
    def run(check=False, **arguments):
        arguments = dict({"folder": str(tmp_path / "tls"), "name": "hub", "names": ["localhost"], "addresses": ["127.0.0.1"]}, **arguments)
        return run_module("own_certificate", dict(arguments, _ansible_remote_tmp=str(tmp_path)), check)
    return run


def spoken(folder, ca, name):
    """Whether a client that trusts the authority accepts the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hub.pem", folder / "hub.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        client, _address = listener.accept()
        try:
            context.wrap_socket(client, server_side=True).close()
        except OSError:
            client.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        with socket.create_connection(listener.getsockname()) as raw:
            ssl.create_default_context(cadata=ca).wrap_socket(raw, server_hostname=name).close()
        return True
    except ssl.SSLCertVerificationError:
        return False
    finally:
        listener.close()


def test_a_certificate_that_clients_accept(run, tmp_path):
    folder = tmp_path / "tls"
    told = run(check=True)
    assert told["changed"] and told["ca"] == "" and not folder.exists()
    made = run()
    assert made["changed"] and made["certificate_changed"] and made["reasons"] == ["there is none"] and "BEGIN CERTIFICATE" in made["ca"]
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {"ca.pem": 0o644, "ca.key": 0o600, "hub.pem": 0o644, "hub.key": 0o600}
    assert spoken(folder, made["ca"], "localhost") and spoken(folder, made["ca"], "127.0.0.1") and not spoken(folder, made["ca"], "other.example.org")
    again = run()
    assert not again["changed"] and again["ca"] == made["ca"] and again["reasons"] == []


def test_a_certificate_for_all_names_below_one(run, tmp_path):
    ca = run(names=["*.hub.test"])["ca"]
    assert spoken(tmp_path / "tls", ca, "anna.hub.test") and not spoken(tmp_path / "tls", ca, "hub.test") and not spoken(tmp_path / "tls", ca, "a.b.hub.test")


@pytest.mark.parametrize("change, reason", [({"names": ["localhost", "hub.example.org"]}, "it has other names"), ({"addresses": []}, "it has other names"),
                                            ({"renew_days": 398}, "it ends on ")])
def test_the_authority_stays(run, tmp_path, change, reason):
    ca = run()["ca"]
    former = (tmp_path / "tls/hub.pem").read_text()
    assert run(check=True, **change)["reasons"][0].startswith(reason) and (tmp_path / "tls/hub.pem").read_text() == former
    made = run(**change)
    assert made["changed"] and made["reasons"][0].startswith(reason) and made["ca"] == ca and (tmp_path / "tls/hub.pem").read_text() != former
    assert spoken(tmp_path / "tls", ca, "localhost")


def test_a_certificate_of_another_authority_is_replaced(run, tmp_path):
    run()
    (tmp_path / "tls/ca.pem").unlink()
    (tmp_path / "tls/ca.key").unlink()
    assert run()["reasons"] == ["there is none"] and spoken(tmp_path / "tls", run()["ca"], "localhost")


def test_an_authority_with_another_key_is_replaced(run, tmp_path):
    ca = run()["ca"]
    (tmp_path / "tls/ca.key").write_bytes((tmp_path / "tls/hub.key").read_bytes())
    assert not run()["changed"]
    names = ["localhost", "hub.example.org"]
    made = run(names=names)
    assert made["changed"] and made["ca"] != ca and spoken(tmp_path / "tls", made["ca"], "localhost") and not run(names=names)["changed"]


def test_removal_of_the_last_certificate_leaves_other_files(run, tmp_path):
    """As releases up to 0.2.0 of role training_image left one."""
    run()
    (tmp_path / "tls/ca.crt").write_text("of another role")
    assert run(state="absent")["changed"] and [path.name for path in (tmp_path / "tls").iterdir()] == ["ca.crt"]


def test_removal_leaves_what_others_use(run, tmp_path):
    folder = tmp_path / "tls"
    run()
    (folder / "registry.pem").write_text("of another role")
    assert run(check=True, state="absent")["changed"] and (folder / "hub.key").exists()
    assert run(state="absent")["changed"] and {path.name for path in folder.iterdir()} == {"ca.pem", "ca.key", "registry.pem"}
    (folder / "registry.pem").unlink()
    assert run(state="absent")["changed"] and not folder.exists() and not run(state="absent")["changed"]


def test_copies_without_the_key_of_the_authority(run, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    assert run(copy_to=str(copies), check=True)["changed"] and list(copies.iterdir()) == []
    run(copy_to=str(copies))
    assert {path.name: path.stat().st_mode & 0o777 for path in copies.iterdir()} == {"hub.pem": 0o644, "hub.key": 0o600}
    assert not run(copy_to=str(copies))["changed"]
    (copies / "hub.key").write_text("another key")
    assert run(copy_to=str(copies), check=True)["changed"] and run(copy_to=str(copies))["changed"]
    for changes in ({}, {"names": ["other.example.org"]}):
        told = run(copy_to=str(copies), **changes)
        assert told["changed"] is bool(changes) and all((copies / name).read_text() == (tmp_path / "tls" / name).read_text() for name in ("hub.pem", "hub.key"))


@pytest.mark.parametrize("change, problem", [({"names": ["a\nb"]}, "cannot be in a certificate"), ({"names": ["a,DNS:b"]}, "cannot be in a certificate"),
                                             ({"names": ["a.*.org"]}, "cannot be in a certificate"), ({"names": ["*"]}, "cannot be in a certificate"),
                                             ({"addresses": ["1.2.3"]}, "cannot be in a certificate"), ({"names": [], "addresses": []}, "there is none"),
                                             ({"executable": "/nowhere/openssl"}, "is not installed")])
def test_bad_input(run, tmp_path, change, problem):
    assert problem in run(**change)["msg"] and not (tmp_path / "tls").exists()
