"""Decision nccl_pair: one resolver and one pin, for hosts and for images."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.filter.decide import decide
from ansible_collections.trainyard.gpu.plugins.plugin_utils._vendor_source import nccl_pair


def test_a_release_for_a_cuda():
    pair = nccl_pair("2.10.3", "11.4.4")
    assert pair["version"] == "2.10.3-1+cuda11.4" and pair["known"]
    assert pair["packages"] == ["libnccl2=2.10.3-1+cuda11.4", "libnccl-dev=2.10.3-1+cuda11.4"]


def test_the_pin_names_both_and_wins_over_everything():
    lines = nccl_pair("2.21.5-1+cuda12.4")["preferences"].splitlines()
    assert lines[1:] == [
        "Package: libnccl2 libnccl-dev",
        "Pin: version 2.21.5-1+cuda12.4",
        "Pin-Priority: 1001",
    ]
    # The image recipe has the very text.
    assert (
        nccl_pair("2.21.5", "12.4")["preferences"] == nccl_pair("2.21.5-1+cuda12.4")["preferences"]
    )


def test_a_pair_that_the_facts_do_not_have():
    pair = nccl_pair("2.99.1", "12.4", "ubuntu2204")
    assert (pair["version"], pair["known"]) == ("2.99.1-1+cuda12.4", False) and pair["nearest"]
    assert all("+cuda12." in version for version in pair["nearest"])


def test_a_directory_without_it():
    assert not nccl_pair("2.21.5-1+cuda12.4", directory="debian12")["known"]
    assert nccl_pair("2.21.5-1+cuda12.4", directory="ubuntu2204")["known"]


def test_an_empty_request_has_an_empty_answer():
    assert nccl_pair("") == {
        "version": "",
        "known": False,
        "nearest": [],
        "packages": [],
        "preferences": "",
    }


def test_a_version_that_preferences_cannot_hold():
    with pytest.raises(
        AnsibleFilterError,
        match="^nccl_pair: '2.21.5 x-1.cuda12.4' cannot be written as field: it is empty or has white space",
    ):
        decide("2.21.5 x", "nccl_pair", "12.4")
