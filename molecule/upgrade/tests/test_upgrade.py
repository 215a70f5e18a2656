"""The upgrade stops at the first host that fails; the rollback; and the output of playbook drift in
between.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import testinfra

ROOT = Path(__file__).resolve().parents[3]
SCENARIO = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
NAMES = ["upgrade-a", "upgrade-b", "upgrade-c"]
NEWER = {
    "nvidia_driver_version": "570.124.06",
    "nccl_version": "2.25.1-1+cuda12.8",
    "container_toolkit_version": "1.17.8",
}
PACKAGES = ("nvidia-smi", "libnccl2", "nvidia-container-toolkit")
FORMER_STATES, NEWER_STATES = [
    " ".join("%s hi" % version for version in versions)
    for versions in (
        ("550.54.15-1", "2.21.5-1+cuda12.4", "1.17.7-1"),
        ("570.124.06-1", "2.25.1-1+cuda12.8", "1.17.8-1"),
    )
]


def play(name, **variables):
    command = [
        "ansible-playbook",
        "--inventory",
        os.environ["MOLECULE_INVENTORY_FILE"],
        "playbooks/%s.yml" % name,
        "--extra-vars",
        json.dumps(variables),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ, ANSIBLE_FORCE_COLOR="0", ANSIBLE_NOCOLOR="1"),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    print(done.stdout)
    recap = done.stdout.rpartition("PLAY RECAP")[2]
    changed = {
        host: int(count)
        for host, count in re.findall(r"^(upgrade-\w).*?changed=(\d+)", recap, re.MULTILINE)
    }
    return SimpleNamespace(
        code=done.returncode,
        lines=done.stdout.splitlines(),
        text=" ".join(done.stdout.split()),
        changed=changed,
    )


def hosts():
    return [
        testinfra.get_host(
            "ansible://" + name, ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"], sudo=True
        )
        for name in NAMES
    ]


def listed():
    return [host.check_output("dpkg --list") for host in hosts()]


def states():
    asked = "dpkg-query --show --showformat '${Version} ${db:Status-Abbrev}\n' "
    return [
        " ".join(" ".join(host.check_output(asked + name) for name in PACKAGES).split())
        for host in hosts()
    ]


def specifications():
    """Driver whose libraries containers get."""
    return [
        re.findall(r"libnvidia-ml\.so\.(\d[\d.]*\d)", host.check_output("cat /etc/cdi/*"))[0]
        for host in hosts()
    ]


def hooks():
    path = SCENARIO / "hooks"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.fixture(scope="module", name="before")
def _before():
    return listed()


def test_nothing_has_drifted_and_nothing_is_to_be_done(before):
    run = play("drift")
    assert run.code == 0
    compared = "6 packages as configured: versions and next boot of the GPU stack, people"
    assert [line.split() for line in run.lines if re.match(r"upgrade-\w +-", line)] == [
        [name, "-", *compared.split()] for name in NAMES
    ]
    run = play("upgrade")
    assert (run.code, set(run.changed.values()), hooks(), listed()) == (0, {0}, [], before)
    assert "upgrade-c: already at the requested versions" in run.text


@pytest.mark.acceptance
def test_drift_names_what_differs_and_changes_nothing(before):
    hosts()[1].run_expect([0], "apt-mark unhold libnvidia-container1")
    run = play("drift")
    assert run.code == 2
    assert "upgrade-b libnvidia-container1 1.17.7-1, held not held" in run.text
    assert "drift on 1 of 3 hosts: upgrade-b" in run.text
    hosts()[1].run_expect([0], "apt-mark hold libnvidia-container1")
    run = play("drift", **NEWER)
    assert run.code == 2
    for found, count in (
        ("570.124.06  550.54.15", 3),
        ("2.25.1-1+cuda12.8  2.21.5-1+cuda12.4", 6),
        ("1.17.8-1  1.17.7-1", 12),
    ):
        assert (
            len(
                [
                    line
                    for line in run.lines
                    if " ".join(line.split()).endswith(" ".join(found.split()))
                ]
            )
            == count
        )
    assert listed() == before


def test_upgrade_stops_at_the_first_host_that_does_not_work(before):
    run = play("upgrade", **NEWER)
    assert run.code == 2
    assert states() == [NEWER_STATES, NEWER_STATES, FORMER_STATES]
    assert specifications()[0] == "570.124.06"
    assert listed()[2] == before[2]
    assert run.changed["upgrade-c"] == 0
    # The second host stays drained.
    assert hooks() == ["drain upgrade-a", "resume upgrade-a", "drain upgrade-b"]
    assert "upgrade_back=true" in run.text


@pytest.mark.acceptance
def test_another_try_stops_there_too(before):
    run = play("upgrade", **NEWER)
    assert run.code == 2
    assert "Failed to initialize NVML" in run.text
    assert listed()[2] == before[2]
    assert hooks() == []


def test_one_command_returns_the_hosts_of_the_upgrade(before):
    run = play("upgrade", upgrade_back=True)
    assert run.code == 0
    assert listed() == before
    assert specifications() == ["550.54.15"] * 3
    assert hooks() == ["drain upgrade-a", "resume upgrade-a", "drain upgrade-b", "resume upgrade-b"]
    assert "upgrade-c: no upgrade is recorded in" in run.text
    assert play("drift").code == 0


def test_the_way_back_is_gone_once(before):
    run = play("upgrade", upgrade_back=True)
    assert (run.code, set(run.changed.values()), listed(), hooks()) == (0, {0}, before, [])


@pytest.mark.acceptance
def test_mended_host_goes_on_and_the_first_notes_count(before):
    assert play("upgrade", **NEWER).code == 2
    hosts()[1].run_expect([0], "rm /etc/vendor-fixtures/nvidia-smi/fail-570.124.06")
    hooks()
    run = play("upgrade", **NEWER)
    assert run.code == 0
    assert states() == [NEWER_STATES] * 3
    assert hooks() == ["resume upgrade-b", "drain upgrade-c", "resume upgrade-c"]
    assert play("upgrade", upgrade_back=True, upgrade_batch=3).code == 0
    assert listed() == before
