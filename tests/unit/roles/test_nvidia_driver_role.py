"""Files and tasks of role nvidia_driver that depend on what a host has: the drop-in of the daemon,
and where a run stops for a reboot.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import BESIDE

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "roles/nvidia_driver"
UBUNTU = ROOT / "tests/fixtures/ubuntu"


def commands(*texts):
    """Commands of the daemon as systemd reads a unit with its drop-ins: an empty value ends the
    list, and two dollar signs are one.
    """
    found = []
    for line in "\n".join(texts).splitlines():
        name, sign, value = line.partition("=")
        if name == "ExecStart" and sign:
            found = found + [value.replace("$$", "$")] if value else []
    return found


DROP_IN = (ROLE / "files/persistence.conf").read_text(encoding="utf-8")


def test_persistence_mode_is_not_switched_off_by_ubuntus_unit():
    """U6, practice 7: all branches of Ubuntu have the flag."""
    unit = (UBUNTU / "nvidia-persistenced.service").read_text(encoding="utf-8")
    assert "--no-persistence-mode" in commands(unit)[0]
    assert len(commands(unit, DROP_IN)) == 1
    assert "--no-persistence-mode" not in commands(unit, DROP_IN)[0]
    status = (UBUNTU / "systemctl-status-nvidia-persistenced-jammy.txt").read_text(encoding="utf-8")
    assert "--no-persistence-mode" in status and "static;" in status
    # Of NVIDIA's installer and of Debian, too: what the drop-in starts is the daemon.
    assert commands(
        (ROLE / "files/nvidia-persistenced.service").read_text(encoding="utf-8"), DROP_IN
    )


@pytest.mark.parametrize(
    "users, arguments",
    [
        (["nvidia-persistenced"], "--user nvidia-persistenced"),
        (["nvpd"], "--user nvpd"),
        (["nvidia-persistenced", "nvpd"], "--user nvidia-persistenced"),
        # NVIDIA's installer makes none.
        ([], ""),
    ],
)
def test_the_daemon_runs_as_the_user_of_its_package(tmp_path, users, arguments):
    for name, text in (
        ("id", 'case " %s " in *" $1 "*) exit 0 ;; esac; exit 1' % " ".join(users)),
        ("nvidia-persistenced", 'echo "$@"'),
    ):
        (tmp_path / name).write_text("#!/bin/sh\n%s\n" % text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    command = commands(DROP_IN)[0].replace("/usr/bin/", "%s/" % tmp_path)
    found = subprocess.run(
        re.fullmatch(r"(/bin/sh) (-c) \"(.*)\"", command).groups(),
        env={"PATH": "%s:/usr/bin:/bin" % tmp_path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == arguments and found.stderr == ""


def test_ubuntus_user_of_the_daemon_is_removed():
    """U10. Its package makes it and does not remove it."""
    script = (UBUNTU / "nvidia-compute-utils.postinst").read_text(encoding="utf-8")
    user = re.search(r'NVPD_USER="(.*)"', script).group(1)
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    assert {"user:" + user, "user:nvpd"} <= set(variables["__nvidia_driver_traces"])


def the_task(path, words):
    """The one task of a file whose name contains the words."""
    (found,) = [
        task
        for task in yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
        if words in task["name"]
    ]
    return found


def last_roles(**variables):
    """The roles that end playbook gpu_stack."""
    task = the_task("playbooks/tasks/gpu_stack.yml", "check for a due reboot")
    host = {"nvidia_devices": 1, "npus": 0}
    templar = Templar(DataLoader(), dict({"cluster_host": host}, **variables))
    return templar.template(trust_as_template(task["loop"]))


def test_the_run_stops_after_the_gpu_stack_if_a_host_waits_for_a_reboot():
    """Practice 5: it went on for an hour and ended in the training container."""
    reason = "the kernel module nouveau is loaded, and blocks NVIDIA's module"
    assert last_roles() == last_roles(nvidia_driver_reboot_due="") == ["container_toolkit"]
    assert last_roles(nvidia_driver_reboot_due=reason) == ["container_toolkit", "nvidia_driver"]
    stop = the_task("roles/nvidia_driver/tasks/waiting.yml", "waits for a reboot")
    told = Templar(
        DataLoader(), {"inventory_hostname": "gpu-a", "nvidia_driver_reboot_due": reason}
    ).template(trust_as_template(stop["ansible.builtin.fail"]["msg"]))
    assert told.startswith(
        "gpu-a: reboot this host and run the playbook again, or set nvidia_driver_allow_reboot to true"
    )
    assert reason in told


@pytest.mark.parametrize(
    "reason, allowed, needed, passes",
    [
        ("driver 550 is loaded, and 570 is requested", False, True, False),
        ("driver 550 is loaded, and 570 is requested", True, True, True),
        ("", False, True, True),
        # A host that is not changed is not drained either, and its check tells the rest.
        ("the libraries are newer", False, False, True),
    ],
)
def test_an_upgrade_stops_before_the_first_host_is_drained(reason, allowed, needed, passes):
    """Practice 6.

    Playbook upgrade reads all hosts with this file in a play of its own, which ends for all if one
    fails.
    """
    check = the_task("roles/upgrade/tasks/ask.yml", "may be rebooted")
    variables = {
        "inventory_hostname": "gpu-a",
        "__upgrade_plan": {"reboot": reason, "needed": needed},
        "nvidia_driver_may_reboot": allowed,
    }
    templar = Templar(DataLoader(), variables)
    condition = trust_as_template("{{ %s }}" % check["ansible.builtin.assert"]["that"])
    assert bool(templar.template(condition)) is passes
    told = templar.template(trust_as_template(check["ansible.builtin.assert"]["fail_msg"]))
    assert reason in told and "No host was changed" in told
    first = yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text(encoding="utf-8"))[1]
    assert first["any_errors_fatal"] is True
    assert first["tasks"][0]["ansible.builtin.include_role"]["tasks_from"] == "ask"


def test_fabric_manager_is_enabled_and_its_link_recorded_for_teardown():
    write = the_task("roles/nvidia_driver/tasks/fabric.yml", "Enable Fabric Manager")
    files = write["trainyard.gpu.managed_files"]["files"]
    link = next(entry for entry in files if entry.get("state") == "link")
    record = next(entry for entry in files if "content" in entry)
    variables = {
        "__nvidia_driver_wants": "/etc/systemd/system/multi-user.target.wants",
        "__nvidia_driver_fabric": {"version": "580.95.05"},
    }
    templar = Templar(DataLoader(), variables)
    noted = json.loads(
        templar.template(
            trust_as_template(record["content"].replace("to_nice_json(indent=2)", "to_json"))
        )
    )
    assert noted["links"] == [templar.template(trust_as_template(link["path"]))]
    # The keys by which the plan knows that the driver is not the role's.
    assert set(noted) == BESIDE


def test_no_program_of_ours_reads_the_gpus_while_the_driver_changes():
    """Also if the installation fails. Playbook upgrade, which has stopped the reader itself, starts it later."""
    tasks = yaml.safe_load((ROLE / "tasks/install.yml").read_text(encoding="utf-8"))
    [change] = [task for task in tasks if "always" in task]
    stop, install, forget = change["block"]
    assert forget["ansible.builtin.include_role"]["tasks_from"] == "forget_answers"
    assert stop["ansible.builtin.systemd_service"] == {
        "name": "trainyard-metrics-gpu.service",
        "state": "stopped",
    }
    assert "runfile" in install["ansible.builtin.include_tasks"]
    # A host that has got its GPUs after its metrics.
    missing = "Could not find the requested service trainyard-metrics-gpu.service: host"
    templar = Templar(loader=DataLoader())
    for answer, stops in (
        ({"failed": True, "msg": missing}, False),
        ({"failed": True, "msg": "Unable to stop service"}, True),
        ({"changed": True}, False),
    ):
        templar.available_variables = {stop["register"]: answer}
        failed = templar.template(trust_as_template("{{ %s }}" % stop["failed_when"]))
        assert failed is stops
    [start] = change["always"]
    assert start["ansible.builtin.systemd_service"]["state"] == "started"
    templar = Templar(loader=DataLoader())
    known = {"/etc/trainyard/monitoring": []}
    for folders, gpus, has_reader in ((known, 8, True), (known, 0, False), ({}, 8, False)):
        templar.available_variables = {"cluster_host": {"folders": folders, "nvidia_devices": gpus}}
        condition = trust_as_template("{{ %s }}" % stop["when"])
        assert templar.template(condition) is has_reader
    # What systemd said before the task, if it was not skipped.
    for answer, had_run in (
        ({"changed": True, "status": {"ActiveState": "active"}}, True),
        ({"changed": True, "status": {"ActiveState": "activating"}}, True),
        ({"changed": False, "status": {"ActiveState": "inactive"}}, False),
        ({"changed": False, "skipped": True}, False),
    ):
        templar.available_variables = {stop["register"]: answer}
        assert templar.template(trust_as_template("{{ %s }}" % start["when"])) is had_run
