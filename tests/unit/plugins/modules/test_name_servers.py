"""name_servers, run like in Ansible, with temporary files."""

from __future__ import annotations

import pytest
from scripted_tools import run_module, scripts

OWN = "# by hand\nsearch example.org\nnameserver 192.0.2.1\noptions ndots:2\n"


@pytest.fixture(name="host")
def fixture_host(tmp_path, monkeypatch):
    script = scripts(tmp_path, monkeypatch)
    script("systemctl", f'echo "$@" >> {tmp_path}/calls')
    (tmp_path / "resolv.conf").write_text(OWN, encoding="utf-8")

    def run(*servers, check=False):
        return run_module(
            "name_servers",
            {
                "servers": list(servers),
                "resolv_conf": str(tmp_path / "resolv.conf"),
                "drop_in": str(tmp_path / "resolved.conf.d/trainyard.conf"),
            },
            check,
        )

    run.folder, run.file = tmp_path, tmp_path / "resolv.conf"
    return run


def test_before_those_that_are_there(host):
    assert (
        host("192.0.2.53", check=True)["changed"] and host.file.read_text(encoding="utf-8") == OWN
    )
    told = host("192.0.2.53", "192.0.2.54")
    assert (told["changed"], told["by"], told["rewritten_by"]) == (True, "resolv.conf", "")
    lines = host.file.read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in lines if line.startswith("nameserver")] == [
        "192.0.2.53",
        "192.0.2.54",
        "192.0.2.1",
    ]
    assert not host("192.0.2.53", "192.0.2.54")["changed"]
    assert host("192.0.2.55")["changed"] and "192.0.2.53" not in host.file.read_text(
        encoding="utf-8"
    )
    # What a user adds meanwhile stays.
    with host.file.open("a", encoding="utf-8") as stream:
        stream.write("options rotate\n")
    assert host()["changed"] and host.file.read_text(encoding="utf-8") == OWN + "options rotate\n"
    assert not host()["changed"]


def test_the_file_is_replaced_at_once(host):
    """A crash leaves the former file or the new one, never a part."""
    inode = host.file.stat().st_ino
    assert (
        host("192.0.2.53")["changed"]
        and host.file.stat().st_ino != inode
        and host.file.stat().st_mode & 0o777 == 0o644
    )
    assert [path.name for path in host.folder.iterdir() if "resolv" in path.name] == ["resolv.conf"]


def test_a_file_that_something_else_writes(host):
    (host.folder / "run").mkdir()
    host.file.rename(host.folder / "run/resolv.conf")
    host.file.symlink_to(host.folder / "run/resolv.conf")
    assert host("192.0.2.53")["rewritten_by"] == str(host.folder / "run/resolv.conf")
    assert host.file.is_symlink()


def test_systemd_resolved_is_told_by_a_drop_in(host):
    (host.folder / "systemd/resolve").mkdir(parents=True)
    host.file.rename(host.folder / "systemd/resolve/stub-resolv.conf")
    host.file.symlink_to(host.folder / "systemd/resolve/stub-resolv.conf")
    told = host("192.0.2.53", "192.0.2.54")
    assert (
        told["changed"]
        and told["by"] == "systemd-resolved"
        and host.file.read_text(encoding="utf-8") == OWN
    )
    assert "DNS=192.0.2.53 192.0.2.54\nDomains=~.\n" in (
        host.folder / "resolved.conf.d/trainyard.conf"
    ).read_text(encoding="utf-8")
    assert not host("192.0.2.53", "192.0.2.54")["changed"]
    assert host()["changed"] and not (host.folder / "resolved.conf.d").exists()
    assert (host.folder / "calls").read_text(
        encoding="utf-8"
    ) == "restart systemd-resolved.service\n" * 2


def test_lines_whose_end_is_gone_stay(host):
    host("192.0.2.53")
    text = "".join(
        line
        for line in host.file.read_text(encoding="utf-8").splitlines(True)
        if "End of" not in line
    )
    host.file.write_text(text, encoding="utf-8")
    assert not host()["changed"] and host.file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "server", ["ns.example.org", "192.0.2.53 x", "192.0.2.53\noptions debug", ""]
)
def test_what_is_no_address_reaches_no_file(host, server):
    assert (
        "is not an address" in host(server)["msg"] and host.file.read_text(encoding="utf-8") == OWN
    )
