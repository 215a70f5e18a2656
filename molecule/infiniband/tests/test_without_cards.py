"""A host without an InfiniBand or RoCE adapter."""

from __future__ import annotations

from packages_left import packages_that_differ

HOST = "infiniband-b"
testinfra_hosts = ["ansible://" + HOST]


def test_nothing_was_done(host):
    assert packages_that_differ(host, alone=True) == []
    assert (
        host.check_output("find /etc /var/lib/trainyard -path '*infiniband*' 2>/dev/null || true")
        == ""
    )


def test_the_role_says_why(role):
    run = role()
    assert (run.code, run.changed) == (0, 0)
    assert "no InfiniBand or RoCE adapter is on the PCI bus" in run.text
