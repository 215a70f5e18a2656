"""Decision upgrade_plan: which hosts need an upgrade, and which work after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._upgrade_plan import (
    plan,
    services as service_updates,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import parse_policy

UBUNTU = Path(__file__).parents[3] / "fixtures/ubuntu"
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


def upgrade_plan(stack, snapshot, packages=None, driver="", smi=None):
    requested = {"driver": driver}
    if packages is not None:
        requested["packages"] = packages
    return plan({"stack": stack, "snapshot": snapshot, "smi": smi}, requested)


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
    assert upgrade_plan(STACK, {}, smi=WORKS)["faults"] == []
    assert upgrade_plan(broken, {}, smi=FAILS)["faults"] == [
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


def of_dpkg(status="ii"):
    return {"version": "1", "status": status, "automatic": False}


def test_updates_of_services_are_those_that_unattended_upgrades_leave():
    listed = dict.fromkeys(["docker.io", "libslurm40t64:amd64", "openssl", "libmunge2"], of_dpkg())
    listed.update(runc=of_dpkg("hi"), podman=of_dpkg("rc"))
    names = service_updates(listed)
    assert names == {
        "names": ["docker.io", "libmunge2", "libslurm40t64"],
        "install": [],
        "left": [],
    }
    policy = {
        "docker.io": {
            "installed": "28.2.2-0ubuntu1~24.04.1",
            "candidate": "28.2.2-0ubuntu1~24.04.2",
        },
        "libmunge2": {"installed": "0.5.15-4build1", "candidate": "0.5.15-4build1"},
        "libslurm40t64": {"installed": "23.11.4-1.2ubuntu5", "candidate": "23.11.4-1.2ubuntu5.1"},
    }
    assert service_updates(listed, policy)["install"] == [
        "docker.io=28.2.2-0ubuntu1~24.04.2",
        "libslurm40t64=23.11.4-1.2ubuntu5.1",
    ]
    # A repository of the site may have another release, which needs an order over all hosts.
    policy["libslurm40t64"]["candidate"] = "25.05.3-1"
    told = service_updates(listed, policy)
    assert told["install"] == ["docker.io=28.2.2-0ubuntu1~24.04.2"]
    assert (
        "Slurm 25.05" in told["left"][0] and "upgrade slurmdbd, then slurmctld" in told["left"][0]
    )
    # As apt-cache said on 24.04: -updates is ahead of -security.
    recorded = parse_policy((UBUNTU / "apt-policy-containerd-runc-noble.txt").read_text())
    for state in recorded.values():
        state["installed"] = state["versions"][1]
    assert service_updates(dict.fromkeys(recorded, of_dpkg()), recorded)["install"] == [
        "containerd=2.2.1-0ubuntu1~24.04.2",
        "runc=1.3.4-0ubuntu1~24.04.1",
    ]
    # A package that apt no longer knows stays.
    assert (
        service_updates(listed, {"docker.io": dict.fromkeys(["installed", "candidate"], "")})[
            "install"
        ]
        == []
    )
