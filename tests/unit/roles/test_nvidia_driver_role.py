"""Files and tasks of role nvidia_driver that depend on what a host has: the drop-in of the daemon, and where a run stops for a reboot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "roles/nvidia_driver"
UBUNTU = ROOT / "tests/fixtures/ubuntu"


def commands(*texts):
    """Commands of the daemon as systemd reads a unit with its drop-ins: an empty value ends the list, and two dollar signs are one."""
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
