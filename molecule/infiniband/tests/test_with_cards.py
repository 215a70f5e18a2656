"""A host with an InfiniBand card and a RoCE card: what the role installs and keeps, and what
teardown leaves.
"""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

from ansible_collections.trainyard.gpu.plugins.module_utils._infiniband import (
    describe_device,
    parse_ibstatus,
)

HOST = "infiniband-a"
testinfra_hosts = ["ansible://" + HOST]
MODULES = "/etc/modules-load.d/trainyard-infiniband.conf"
LIMITS = "/etc/security/limits.d/trainyard-infiniband.conf"
NAMES = "/etc/udev/rules.d/60-rdma-persistent-naming.rules"


def limits(host):
    """Limits of a user's login, of root's login and of a service, in KiB."""
    return [
        host.check_output(command)
        for command in (
            "su - ops -c 'ulimit -l'",
            "su - -c 'ulimit -l'",
            "systemd-run --quiet --wait --pipe sh -c 'ulimit -l'",
        )
    ]


def test_tools_are_there_and_see_the_cards(host):
    for package in (
        "rdma-core",
        "ibverbs-providers",
        "ibverbs-utils",
        "infiniband-diags",
        "perftest",
    ):
        assert host.package(package).is_installed
    devices, remarks = parse_ibstatus(host.check_output("ibstatus"))
    first, second = (
        describe_device(name, texts)["ports"][0] for name, texts in sorted(devices.items())
    )
    assert (list(sorted(devices)), remarks) == (["mlx5_0", "mlx5_1"], [])
    assert (first["link_layer"], first["state"], first["rate_gb_s"], first["lid"]) == (
        "infiniband",
        "active",
        400.0,
        0x4B,
    )
    assert (second["link_layer"], second["state"], second["rate_gb_s"]) == (
        "ethernet",
        "active",
        100.0,
    )


def test_modules_are_loaded_and_will_be_at_the_next_boot(host):
    assert sorted(host.check_output("ls /sys/module").split()) == [
        "ib_umad",
        "ib_uverbs",
        "mlx5_core",
        "mlx5_ib",
        "rdma_ucm",
    ]
    listed = [
        line for line in host.file(MODULES).content_string.splitlines() if not line.startswith("#")
    ]
    # Not ib_ipoib, which this kernel lacks.
    assert listed == ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad"]


def test_memory_may_be_locked_by_logins_and_services(host):
    assert limits(host) == ["4096", "4096", "4096"]


def test_what_is_no_longer_asked_for_goes_and_the_vendors_ofed_is_left_to_itself(host, role):
    host.run_expect(
        [0],
        "printf '#!/bin/sh\\necho MLNX_OFED_LINUX-5.8-3.0.7.0:\\n' > /usr/local/bin/ofed_info && chmod +x /usr/local/bin/ofed_info && "
        "rmdir /sys/module/ib_umad",
    )
    run = role(infiniband_memlock="")
    assert (run.code, run.changed) == (0, 1)
    assert "MLNX_OFED_LINUX-5.8-3.0.7.0 is installed and has its own tools" in run.text
    assert (
        not host.file(MODULES).exists
        and not host.file("/sys/module/ib_umad").exists
        and not host.file(LIMITS).exists
    )
    assert host.check_output(
        "systemctl show --property=DefaultLimitMEMLOCK --value"
    ) == host.check_output("cat /srv/memlock")
    host.run_expect([0], "rm /usr/local/bin/ofed_info")


def test_limits_and_modules_come_back_and_the_ports_are_told_apart(host, role):
    run = role(infiniband_memlock=2048)
    assert (run.code, run.changed, limits(host)) == (0, 2, ["2048", "2048", "2048"])
    assert host.file("/sys/module/ib_umad").is_directory
    assert (
        "mlx5_0 port 1: infiniband, active, 400.0 Gb/s, ibs1. mlx5_1 port 1: roce, active, 100.0 Gb/s, eth0."
        in run.text
    )
    assert "The running kernel has no module ib_ipoib" in run.text


def test_names_stay_as_the_kernel_gives_them(host):
    assert host.file("/lib/udev/rules.d/60-rdma-persistent-naming.rules").contains("rdma_rename")
    assert [
        line for line in host.file(NAMES).content_string.splitlines() if not line.startswith("#")
    ] == []


@pytest.mark.acceptance
def test_names_change_if_requested(host, role):
    assert role(infiniband_memlock=2048, infiniband_persistent_names=True).changed == 1
    assert not host.file(NAMES).exists


def test_teardown_leaves_what_the_user_had(host, role):
    """Including a user's file that replaces rdma-core's rule."""
    host.run_expect([0], f"echo '# mine' > {NAMES}")
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
    assert host.file(NAMES).content_string == "# mine\n"
    host.run_expect([0], f"rm {NAMES}")
    now = host.check_output(
        "find /etc -type f ! -name '*-' -exec sha256sum {} + -o -type l -printf '%p -> %l\\n' | sort"
    )
    assert set(now.splitlines()) ^ set(host.check_output("cat /srv/files").splitlines()) == set()
    assert host.check_output(
        "systemctl show --property=DefaultLimitMEMLOCK --value"
    ) == host.check_output("cat /srv/memlock")
