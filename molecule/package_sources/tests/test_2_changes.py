"""The variables or the host change; the last test removes everything. The order matters."""

from __future__ import annotations

import hashlib
import shutil

import pytest

HEAD, PEER = "package-sources-a", "package-sources-b"
testinfra_hosts = ["ansible://" + HEAD]
WHEELS = "/var/lib/trainyard/wheels"


def held(host):
    return dict(
        reversed(line.split())
        for line in host.check_output(f"cd {WHEELS} && sha256sum *").splitlines()
    )


def lying_in(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.suffix in (".whl", ".gz")
    }


def test_wheels_are_on_the_head_alone(host, scenario):
    assert held(host) == lying_in(scenario / "wheels")
    assert len(held(host)) == 2
    assert host.file(f"{WHEELS}/horovod-0.28.1.tar.gz").user == "root"
    peer = host.get_host(
        "ansible://" + PEER, ansible_inventory=str(scenario / "inventory"), sudo=True
    )
    assert not peer.file(WHEELS).exists


@pytest.mark.acceptance
def test_differences_of_wheels_are_healed_and_nothing_else_is_touched(
    host, role, scenario, tmp_path
):
    host.run_expect([0], f"truncate --size=3 {WHEELS}/horovod-0.28.1.tar.gz")
    shutil.copy(scenario / "wheels/horovod-0.28.1.tar.gz", tmp_path)
    (tmp_path / "torch-2.14.0-py3-none-any.whl").write_text(
        "a newer one, in place of the one before", encoding="utf-8"
    )
    run = role(package_sources_wheels_dir=str(tmp_path))
    assert run.changed == {HEAD: 1, PEER: 0}
    assert held(host) == lying_in(tmp_path)
    assert role().changed == {HEAD: 1, PEER: 0}
    assert held(host) == lying_in(scenario / "wheels")


def test_a_secret_is_not_printed(host, role):
    run = role(package_sources_http_proxy="http://operator:an0ther@172.30.83.24:3128")
    assert run.changed == {HEAD: 1, PEER: 1}
    assert "an0ther" in host.file("/etc/trainyard/site/environment").content_string
    assert "an0ther" not in run.text
    assert "s3cret" not in run.text


@pytest.mark.acceptance
def test_authority_is_withdrawn_by_itself(host, role, scenario):
    before = host.check_output("grep --count BEGIN /etc/ssl/certs/ca-certificates.crt")
    assert role(package_sources_ca_certificates=[str(scenario / "site-ca.pem")]).code == 0
    assert (
        int(host.check_output("grep --count BEGIN /etc/ssl/certs/ca-certificates.crt"))
        == int(before) - 1
    )
    assert len(host.file("/usr/local/share/ca-certificates").listdir()) == 1
    host.run_expect([0], "openssl verify /srv/site/index.pem")
    host.run_expect([2], "openssl verify /srv/site/other-ca.pem")
    assert host.check_output("find /etc/ssl/certs -xtype l") == ""


@pytest.mark.acceptance
def test_run_that_was_cut_short_is_made_up_for(host, role, scenario):
    # As after the test before, but the certificate is in its folder and not yet in the system's
    # bundle.
    host.run_expect(
        [0],
        "mv /usr/local/share/ca-certificates /tmp/kept && update-ca-certificates --fresh && mv /tmp/kept /usr/local/share/ca-certificates",
    )
    host.run_expect([2], "openssl verify /srv/site/index.pem")
    assert role(package_sources_ca_certificates=[str(scenario / "site-ca.pem")]).code == 0
    host.run_expect([0], "openssl verify /srv/site/index.pem")


def test_teardown_leaves_no_trace_under_etc(host, role):
    assert role("remove").code == 0
    assert not host.file(WHEELS).exists
    after = host.check_output(
        "find /etc /usr/local/share -type f -exec sha256sum {} + -o -type l -printf '%p -> %l\\n' | sort"
    )
    assert after == host.check_output("cat /srv/before")
