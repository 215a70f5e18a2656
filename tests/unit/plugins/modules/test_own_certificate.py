"""own_certificate, run like in Ansible with the machine's openssl."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading

import pytest
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.module_utils import _own_certificate


@pytest.fixture(name="run")
def _run(tmp_path):
    def run(check=False, **arguments):
        arguments = dict(
            {
                "folder": str(tmp_path / "tls"),
                "name": "hub",
                "names": ["localhost"],
                "addresses": ["127.0.0.1"],
            },
            **arguments,
        )
        return run_module(
            "own_certificate", dict(arguments, _ansible_remote_tmp=str(tmp_path)), check
        )

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
    assert (
        made["changed"]
        and made["certificate_changed"]
        and made["reasons"] == ["there is none"]
        and "BEGIN CERTIFICATE" in made["ca"]
    )
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "hub.pem": 0o644,
        "hub.key": 0o600,
    }
    assert (
        spoken(folder, made["ca"], "localhost")
        and spoken(folder, made["ca"], "127.0.0.1")
        and not spoken(folder, made["ca"], "other.example.org")
    )
    again = run()
    assert not again["changed"] and again["ca"] == made["ca"] and again["reasons"] == []


def test_a_certificate_for_all_names_below_one(run, tmp_path):
    ca = run(names=["*.hub.test"])["ca"]
    assert (
        spoken(tmp_path / "tls", ca, "anna.hub.test")
        and not spoken(tmp_path / "tls", ca, "hub.test")
        and not spoken(tmp_path / "tls", ca, "a.b.hub.test")
    )


@pytest.mark.parametrize(
    "change, reasons, same",
    [
        (
            {"names": ["localhost", "hub.example.org"]},
            ["the authority is limited to other names", "it has other names"],
            False,
        ),
        (
            {"addresses": []},
            ["the authority is limited to other names", "the authority did not sign it"],
            False,
        ),
        ({"renew_days": 398}, ["it ends on "], True),
    ],
)
def test_the_key_of_the_authority_stays(run, tmp_path, change, reasons, same):
    ca = run()["ca"]
    files = {
        name: (tmp_path / "tls" / name).read_text() for name in ("hub.pem", "ca.key", "ca.pem")
    }
    assert (
        run(check=True, **change)["reasons"][0].startswith(reasons[0])
        and (tmp_path / "tls/hub.pem").read_text() == files["hub.pem"]
    )
    assert (tmp_path / "tls/ca.pem").read_text() == files["ca.pem"]
    made = run(**change)
    assert made["changed"] and [
        told.startswith(reason) for told, reason in zip(made["reasons"], reasons)
    ] == [True] * len(reasons)
    assert (made["ca"] == ca) is same and (tmp_path / "tls/hub.pem").read_text() != files["hub.pem"]
    assert (tmp_path / "tls/ca.key").read_text() == files["ca.key"] and spoken(
        tmp_path / "tls", made["ca"], "localhost"
    )
    assert run(**change)["changed"] is same


def unlimited(folder):
    """Write the authority as releases before 0.4.0 wrote it: with the same key, and without
    constraints.
    """
    config = folder.parent / "former.cnf"
    text = _own_certificate.authority_config(["a"], [])
    config.write_text(
        "".join(line for line in text.splitlines(keepends=True) if "nameConstraints" not in line)
    )
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-new",
            "-sha256",
            "-key",
            folder / "ca.key",
            "-days",
            "7300",
            "-config",
            config,
            "-out",
            folder / "ca.pem",
        ],
        check=True,
    )
    return (folder / "ca.pem").read_text()


@pytest.mark.parametrize("names", [{}, {"names": [], "addresses": ["127.0.0.1"]}])
def test_an_authority_of_before_is_limited_and_its_copies_go_on_to_serve(run, tmp_path, names):
    run(**names)
    former = unlimited(tmp_path / "tls")
    certificate = (tmp_path / "tls/hub.pem").read_text()
    assert (
        run(check=True, **names)["reasons"] == ["the authority is not limited to names"]
        and (tmp_path / "tls/ca.pem").read_text() == former
    )
    made = run(**names)
    assert (
        made["changed"]
        and made["reasons"] == ["the authority is not limited to names"]
        and not made["certificate_changed"]
    )
    assert (tmp_path / "tls/hub.pem").read_text() == certificate and not run(**names)["changed"]
    # A browser that trusts the former one, and a host that has the new one.
    assert spoken(tmp_path / "tls", former, "127.0.0.1") and spoken(
        tmp_path / "tls", made["ca"], "127.0.0.1"
    )


@pytest.mark.parametrize(
    "names, addresses, accepted",
    [
        (["hub.test"], ["10.0.0.1"], True),
        (["hub.test", "*.hub.test"], [], True),
        (["anna.hub.test"], [], True),
        (["front"], [], True),
        ([], ["fd00::1"], True),
        ([], ["10.0.0.1"], True),
        (["www.example.org"], [], False),
        (["hub.test", "www.example.org"], [], False),
        (["nothub.test"], [], False),
        ([], ["10.0.0.2"], False),
        ([], ["fd00::2"], False),
        (["test"], [], False),
    ],
)
@pytest.mark.parametrize("kinds", ["both", "names", "addresses"])
def test_the_authority_signs_nothing_for_others(tmp_path, kinds, names, addresses, accepted):
    """Its key is worth nothing for a site that it is not for."""
    own = (
        ["*.hub.test", "hub.test", "front"] if kinds != "addresses" else [],
        ["10.0.0.1", "fd00::1"] if kinds != "names" else [],
    )

    def openssl(*arguments):
        return subprocess.run(
            ["openssl", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    (tmp_path / "ca.cnf").write_text(_own_certificate.authority_config(*own))
    (tmp_path / "leaf.cnf").write_text(_own_certificate.certificate_config(names, addresses))
    for key in ("ca", "leaf"):
        assert (
            openssl(
                "genpkey",
                "-algorithm",
                "EC",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-out",
                key + ".key",
            ).returncode
            == 0
        )
    assert (
        openssl(
            "req", "-x509", "-new", "-key", "ca.key", "-config", "ca.cnf", "-out", "ca.pem"
        ).returncode
        == 0
    )
    assert (
        openssl(
            "req", "-new", "-key", "leaf.key", "-config", "leaf.cnf", "-out", "leaf.csr"
        ).returncode
        == 0
    )
    assert (
        openssl(
            "x509",
            "-req",
            "-in",
            "leaf.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-set_serial",
            "7",
            "-extfile",
            "leaf.cnf",
            "-extensions",
            "certificate",
            "-out",
            "leaf.pem",
        ).returncode
        == 0
    )
    told = openssl("verify", "-CAfile", "ca.pem", "leaf.pem")
    good = (
        accepted and not (names and kinds == "addresses") and not (addresses and kinds == "names")
    )
    assert (told.returncode == 0) is good, told.stdout + told.stderr
    if not good:
        assert "subtree violation" in told.stdout + told.stderr
    shown = openssl("x509", "-in", "ca.pem", "-noout", "-ext", "nameConstraints").stdout
    assert "critical" in shown and _own_certificate.permitted(shown) == set(
        _own_certificate.constraints(*own)
    )


def test_two_certificates_of_one_authority(run, tmp_path):
    """The authority is for both, and is not written again by each run."""
    run()
    made = run(name="registry", names=["registry.test"], addresses=["10.0.0.1"])
    assert (
        made["changed"]
        and made["certificate_changed"]
        and spoken(tmp_path / "tls", made["ca"], "localhost")
    )
    assert (
        not run()["changed"]
        and not run(name="registry", names=["registry.test"], addresses=["10.0.0.1"])["changed"]
    )


def test_a_certificate_of_another_authority_is_replaced(run, tmp_path):
    run()
    (tmp_path / "tls/ca.pem").unlink()
    (tmp_path / "tls/ca.key").unlink()
    assert run()["reasons"] == ["there is none"] and spoken(
        tmp_path / "tls", run()["ca"], "localhost"
    )


def test_an_authority_with_another_key_is_replaced(run, tmp_path):
    ca = run()["ca"]
    (tmp_path / "tls/ca.key").write_bytes((tmp_path / "tls/hub.key").read_bytes())
    assert not run()["changed"]
    names = ["localhost", "hub.example.org"]
    made = run(names=names)
    assert (
        run(names=names)["reasons"] == []
        and made["changed"]
        and made["ca"] != ca
        and spoken(tmp_path / "tls", made["ca"], "localhost")
        and not run(names=names)["changed"]
    )


def test_removal_of_the_last_certificate_leaves_other_files(run, tmp_path):
    """As releases up to 0.2.0 of role training_image left one."""
    run()
    (tmp_path / "tls/ca.crt").write_text("of another role")
    assert run(state="absent")["changed"] and [
        path.name for path in (tmp_path / "tls").iterdir()
    ] == ["ca.crt"]


def test_removal_leaves_what_others_use(run, tmp_path):
    folder = tmp_path / "tls"
    run()
    (folder / "registry.pem").write_text("of another role")
    assert run(check=True, state="absent")["changed"] and (folder / "hub.key").exists()
    assert run(state="absent")["changed"] and {path.name for path in folder.iterdir()} == {
        "ca.pem",
        "ca.key",
        "registry.pem",
    }
    (folder / "registry.pem").unlink()
    assert (
        run(state="absent")["changed"]
        and not folder.exists()
        and not run(state="absent")["changed"]
    )


def test_copies_without_the_key_of_the_authority(run, tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    assert run(copy_to=str(copies), check=True)["changed"] and list(copies.iterdir()) == []
    run(copy_to=str(copies))
    assert {path.name: path.stat().st_mode & 0o777 for path in copies.iterdir()} == {
        "hub.pem": 0o644,
        "hub.key": 0o600,
    }
    assert not run(copy_to=str(copies))["changed"]
    (copies / "hub.key").write_text("another key")
    assert run(copy_to=str(copies), check=True)["changed"] and run(copy_to=str(copies))["changed"]
    for changes in ({}, {"names": ["other.example.org"]}):
        told = run(copy_to=str(copies), **changes)
        assert told["changed"] is bool(changes) and all(
            (copies / name).read_text() == (tmp_path / "tls" / name).read_text()
            for name in ("hub.pem", "hub.key")
        )


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"names": ["a\nb"]}, "cannot be in a certificate"),
        ({"names": ["a,DNS:b"]}, "cannot be in a certificate"),
        ({"names": ["a.*.org"]}, "cannot be in a certificate"),
        ({"names": ["*"]}, "cannot be in a certificate"),
        ({"addresses": ["1.2.3"]}, "cannot be in a certificate"),
        ({"names": [], "addresses": []}, "there is none"),
        ({"executable": "/nowhere/openssl"}, "is not installed"),
    ],
)
def test_bad_input(run, tmp_path, change, problem):
    assert problem in run(**change)["msg"] and not (tmp_path / "tls").exists()


# --- certificates of other hosts, and of clients ---


def request_of(run, folder, **more):
    return run(folder=str(folder), name="host", names=[], addresses=[], state="request", **more)


def ends(path):
    text = subprocess.run(
        ["openssl", "x509", "-in", path, "-noout", "-text"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return text


def signed(run, request, **more):
    entry = {"name": "host-b", "names": ["b.example"], "addresses": ["192.0.2.7"]}
    return run(
        names=["front"],
        addresses=[],
        usage="client",
        requests=[dict(entry, request=request, **more)],
    )


def test_a_host_keeps_its_key(run, tmp_path):
    first = request_of(run, tmp_path / "b")
    assert first["changed"] and "CERTIFICATE REQUEST" in first["request"]
    assert (tmp_path / "b/host.key").stat().st_mode & 0o777 == 0o600
    again = request_of(run, tmp_path / "b")
    assert not again["changed"]
    made = signed(run, again["request"])
    pem = made["signed"]["host-b"]
    assert made["changed"] and pem == (tmp_path / "tls/host-b.pem").read_text(encoding="utf-8")
    assert not (tmp_path / "tls/host-b.key").exists()
    (tmp_path / "b/host.pem").write_text(pem, encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "b/host.pem", tmp_path / "b/host.key")
    # Another request of the same key is no reason to sign again, and neither is none.
    assert not signed(run, request_of(run, tmp_path / "b")["request"])["changed"]
    kept = signed(run, "")
    assert not kept["changed"] and kept["signed"]["host-b"] == pem


def test_a_new_key_is_signed(run, tmp_path):
    before = signed(run, request_of(run, tmp_path / "b")["request"])["signed"]["host-b"]
    (tmp_path / "b/host.key").unlink()
    again = signed(run, request_of(run, tmp_path / "b")["request"])
    assert again["changed"] and again["signed"]["host-b"] != before
    assert again["reasons"] == ["host-b: it has another key"]


def test_other_names_are_signed_and_permitted(run, tmp_path):
    request = request_of(run, tmp_path / "b")["request"]
    signed(run, request)
    made = signed(run, request, names=["c.example"])
    assert "the authority is limited to other names" in made["reasons"]
    assert any("host-b" in reason for reason in made["reasons"])
    text = ends(tmp_path / "tls/host-b.pem")
    assert "DNS:c.example" in text and "b.example" not in text
    check = subprocess.run(
        ["openssl", "verify", "-CAfile", tmp_path / "tls/ca.pem", tmp_path / "tls/host-b.pem"],
        capture_output=True,
        check=False,
    )
    assert check.returncode == 0


def test_a_certificate_has_one_purpose(run, tmp_path):
    signed(run, request_of(run, tmp_path / "b")["request"])
    client, server = ends(tmp_path / "tls/hub.pem"), ends(tmp_path / "tls/host-b.pem")
    assert "TLS Web Client Authentication" in client and "Server Auth" not in client
    assert "TLS Web Server Authentication" in server and "Client Auth" not in server


def test_the_word_of_a_host_is_not_used(run, tmp_path):
    """Root of a host can ask for the name of another one, and to be an authority."""
    key, request = tmp_path / "k", tmp_path / "r"
    subprocess.run(
        ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        + ["-keyout", key, "-subj", "/CN=front", "-addext", "subjectAltName=DNS:front"]
        + ["-addext", "basicConstraints=CA:TRUE", "-addext", "extendedKeyUsage=clientAuth"]
        + ["-out", request],
        check=True,
        capture_output=True,
    )
    signed(run, request.read_text(encoding="utf-8"))
    text = ends(tmp_path / "tls/host-b.pem")
    assert (
        "DNS:b.example, IP Address:192.0.2.7" in text and "front" not in text.partition("Issuer")[0]
    )
    assert "DNS:front" not in text and "CA:TRUE" not in text and "Client Auth" not in text
    assert "Subject: CN = host-b" in text


@pytest.mark.parametrize(
    "text",
    ["no request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"],
)
def test_a_text_that_is_no_request(run, text):
    assert "is no request" in signed(run, text)["msg"]


def test_a_name_that_leaves_the_folder(run, tmp_path):
    request = request_of(run, tmp_path / "b")["request"]
    assert "cannot be the name of a file" in signed(run, request, name="../x")["msg"]


def test_a_group_reads_keys(run, tmp_path):
    import grp
    import os

    name = grp.getgrgid(os.getgid()).gr_name
    (tmp_path / "copy").mkdir()
    run(group=name, copy_to=str(tmp_path / "copy"))
    request_of(run, tmp_path / "b", group=name)
    for path in ("tls/hub.key", "copy/hub.key", "b/host.key"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o640, path
    assert (tmp_path / "tls/ca.key").stat().st_mode & 0o777 == 0o600
    # One whose mode somebody has changed is corrected.
    (tmp_path / "copy/hub.key").chmod(0o644)
    assert run(group=name, copy_to=str(tmp_path / "copy"))["changed"]
    assert (tmp_path / "copy/hub.key").stat().st_mode & 0o777 == 0o640
    assert "does not exist" in request_of(run, tmp_path / "d", group="none-such")["msg"]


def test_check_mode_of_requests(run, tmp_path):
    made = request_of(run, tmp_path / "b", check=True)
    assert made["changed"] and made["request"] == "" and not (tmp_path / "b").exists()
