"""Filter upgrade_plan: which hosts need an upgrade, and which work after it."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.filter.upgrade import upgrade_plan

STACK = {
    "packages": {"libnccl2": {"version": "2.21.5-1+cuda12.4", "held": True, "broken": False}},
    "library": "550.54.15",
    "record": {},
    "reboot_required_reason": "",
    "will_break_on_next_boot": "",
}
ASKED = {"libnccl2": "2.21.5-1+cuda12.4"}
NEWER = {"libnccl2": "2.25.1-1+cuda12.8"}
SKIPPED = {"changed": False, "skipped": True, "skip_reason": "Conditional result was False"}
WORKS = {"available": True, "cause": None, "fix": None}
FAILS = {
    "available": False,
    "cause": "unknown",
    "fix": "read the log: Failed to initialize NVML: Unknown Error",
}


@pytest.mark.parametrize("smi", [None, {}, SKIPPED, WORKS])
def test_a_host_as_requested_is_left_alone(smi):
    assert upgrade_plan(STACK, {}, ASKED, "550", smi) == {
        "needed": False,
        "over": True,
        "faults": [],
        "reboot": "",
    }


def test_every_difference_is_a_sentence():
    told = upgrade_plan(
        dict(STACK, reboot_required_reason="the loaded one is older"), {}, NEWER, 570
    )
    assert told["needed"] and told["faults"] == [
        "driver: requested '570', found '550.54.15'.",
        "libnccl2: requested '2.25.1-1+cuda12.8', found '2.21.5-1+cuda12.4'.",
        "driver: requested 'the one on disk', found 'the loaded one is older'.",
    ]


def test_a_host_whose_nvidia_smi_fails_does_not_work_as_often_as_it_is_tried():
    """Nothing is left to upgrade on it, but it stops a second run, too."""
    told = upgrade_plan(STACK, {"before": {}, "driver": {}, "works": False}, ASKED, smi=FAILS)
    assert told == {
        "needed": False,
        "over": False,
        "faults": ["nvidia-smi: unknown: read the log: Failed to initialize NVML: Unknown Error."],
        "reboot": "",
    }


@pytest.mark.parametrize(
    "noted, over",
    [({}, True), ({"before": {}, "works": True}, True), ({"before": {}, "works": False}, False)],
)
def test_an_upgrade_is_over_when_its_host_works(noted, over):
    assert upgrade_plan(STACK, noted, ASKED)["over"] is over


def test_after_a_rollback_only_faults_of_the_host_count():
    broken = dict(
        STACK, packages={"libnccl2": {"version": "2.21.5-1+cuda12.4", "held": True, "broken": True}}
    )
    assert upgrade_plan(STACK, smi=WORKS)["faults"] == []
    assert upgrade_plan(broken, smi=FAILS)["faults"] == [
        "libnccl2: 2.21.5-1+cuda12.4, broken off.",
        "nvidia-smi: unknown: read the log: Failed to initialize NVML: Unknown Error.",
    ]


@pytest.mark.parametrize(
    "changes, driver, reason",
    [
        ({}, "570", "driver 550.54.15 is loaded, and 570 is requested"),
        ({}, "550.90.12-0ubuntu1", "driver 550.54.15 is loaded, and 550.90.12 is requested"),
        ({}, "550", ""),
        ({}, "", ""),
        # Nothing is loaded: the new module can be.
        ({"loaded": ""}, "570", ""),
        # Somebody has replaced the libraries before.
        ({"reboot_required_reason": "the libraries are newer"}, "550", "the libraries are newer"),
        # A container has the kernel of its host.
        ({"next_kernel": ""}, "570", ""),
    ],
)
def test_a_reboot_is_known_before_the_first_host_is_drained(changes, driver, reason):
    """Practice 6: the first host was drained and then failed by the check."""
    host = dict(STACK, loaded="550.54.15", next_kernel="6.8.0-85-generic")
    assert upgrade_plan(dict(host, **changes), {}, ASKED, driver)["reboot"] == reason
