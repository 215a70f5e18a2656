"""Debian's real driver, as recommended by its own tool for the GPU, on a host without a kernel and
a real GPU.
"""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

HOST = "other-drivers-a"
ROLE = "nvidia_driver"
testinfra_hosts = ["ansible://" + HOST]


def test_recommended_driver_is_debians_and_held(host):
    version = host.package("nvidia-smi").version
    assert version.startswith("535.")
    assert host.check_output("apt-mark showhold").split().count("nvidia-smi") == 1
    assert "libnvidia-ml1" in host.check_output("apt-mark showhold")
    assert host.package("libnvidia-ml1").version == version
    # A container uses its host's kernel.
    assert not host.package("nvidia-kernel-dkms").is_installed
    assert (
        '"recommended": "nvidia-driver"'
        in host.file("/var/lib/trainyard/placed.d/nvidia_driver.json").content_string
    )


def test_a_ppa_is_reported_and_never_used(host):
    """Its driver is 999.10, newer than Debian's: without the role's preference apt would install it
    and its dependencies.
    """
    assert host.run("dpkg-query --show | grep -F 999.10").stdout == ""
    told = host.ansible("trainyard.gpu.gpu_stack_info", check=False)
    assert [
        (source["path"], source["origin"], source["kept_out"]) for source in told["foreign_sources"]
    ] == [("/etc/apt/sources.list.d/graphics-drivers.list", "LP-PPA-graphics-drivers", True)]
    assert told["foreign_sources"][0]["packages"]["nvidia-smi"] == ["999.10-1"]
    assert "999.10" not in host.check_output("apt-get --simulate --ignore-hold dist-upgrade")
    assert "Candidate: 999" not in host.check_output(
        "apt-cache policy nvidia-smi nvidia-support nvidia-driver"
    )


@pytest.mark.acceptance
def test_without_the_preferences_the_ppa_would_win(host):
    ours = "/etc/apt/preferences.d/trainyard-nvidia-driver"
    host.run_expect([0], f"mv {ours} /srv/")
    try:
        assert "Candidate: 999.10-1" in host.check_output("apt-cache policy nvidia-smi")
        assert "Inst nvidia-smi" in host.check_output(
            "apt-get --simulate --ignore-hold dist-upgrade"
        )
        assert not host.ansible("trainyard.gpu.gpu_stack_info", check=False)["foreign_sources"][0][
            "kept_out"
        ]
    finally:
        host.run_expect([0], f"mv /srv/trainyard-nvidia-driver {ours}")


def test_real_tool_says_why_it_can_not_work(host):
    said = host.ansible("trainyard.gpu.nvidia_smi_info", check=False)
    assert (said["available"], said["cause"]) == (False, "driver_not_loaded")
    told = host.ansible("trainyard.gpu.gpu_stack_info", check=False)
    assert (
        told["driver_sources"] == ["distribution"]
        and told["loaded"] == ""
        and host.package("libnvidia-ml1").version.startswith(told["library"])
    )


def test_daemon_is_left_out_where_there_is_no_module(host):
    """Enabled and not failed. Without the role's drop-in it fails."""
    folder = "/etc/systemd/system/nvidia-persistenced.service.d"
    assert host.service("nvidia-persistenced").is_enabled
    assert host.check_output("systemctl is-failed nvidia-persistenced || true") == "inactive"
    host.run_expect([0], f"mv {folder} /srv/; systemctl daemon-reload")
    try:
        host.run("systemctl start nvidia-persistenced")
        assert host.check_output("systemctl is-failed nvidia-persistenced") == "failed"
    finally:
        host.run_expect(
            [0],
            f"mv /srv/{folder.rpartition('/')[2]} {folder}; systemctl daemon-reload; systemctl reset-failed nvidia-persistenced",
        )
    host.run_expect([0], "systemctl start nvidia-persistenced")
    assert host.check_output("systemctl is-failed nvidia-persistenced || true") == "inactive"


def test_components_come_from_the_hosts_own_mirror(host):
    ours = host.file("/etc/apt/sources.list.d/trainyard-nvidia-driver.sources").content_string
    mirrors = host.check_output(
        "grep --recursive --no-filename --only-matching 'https*://[^ ]*' --exclude 'trainyard*' /etc/apt | sort -u"
    ).split()
    assert "Components: contrib non-free non-free-firmware" in ours
    assert set(line.split()[1] for line in ours.splitlines() if line.startswith("URIs:")) <= set(
        mirrors
    )


def test_teardown_leaves_what_was_there(host, role):
    # The playbook has also run this role.
    assert role("remove", of="package_sources").code == 0
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
    assert host.check_output("apt-mark showhold") == ""
    # Playbook teardown removes the folder if it is empty.
    host.run_expect([0], "rmdir /etc/trainyard")
    assert host.check_output("find /etc -name '*trainyard*'") == ""
