"""A host without NPUs beside two that have some."""

from __future__ import annotations

import pytest

HOST = "ascend-c"
testinfra_hosts = ["ansible://" + HOST]


def test_nothing_was_done(host):
    assert not host.file("/etc/trainyard").exists


@pytest.mark.usefixtures("host")
def test_required_npus_are_missed(role):
    run = role(ascend_npus="required")
    assert (
        run.code != 0
        and "found no NPU on the PCI bus and no /dev/davinciN, but ascend_npus is 'required'"
        in run.text
    )
    assert (role().code, role().changed) == (0, 0)
