"""needrestart and unattended-upgrades as Ubuntu Server has them: neither ends a job."""

from __future__ import annotations

import pytest

HOST = "ubuntu-noble"
testinfra_hosts = ["ansible://" + HOST]
SERVICE = """[Service]
ExecStart=/usr/bin/sleep infinity
"""
# As an upgrade of libc6 does.
NEW_LIBC = (
    "cd /usr/lib/x86_64-linux-gnu && cp --preserve libc.so.6 libc.new && mv libc.new libc.so.6"
)


@pytest.fixture
def services(host):
    """A unit of the collection and one of the site, both with an old libc.

    Returns what reads their processes.
    """
    units = ("trainyard-training", "site")
    for unit in units:
        host.run_expect([0], f"printf '%s' '{SERVICE}' > /etc/systemd/system/{unit}.service")
    host.run_expect([0], "systemctl daemon-reload && systemctl start %s" % " ".join(units))
    host.run_expect([0], NEW_LIBC)
    yield lambda unit: host.check_output("systemctl show --property=MainPID --value %s", unit)
    host.run_expect([0], "systemctl stop %s" % " ".join(units))
    for unit in units:
        host.run_expect([0], "rm /etc/systemd/system/%s.service" % unit)
    host.run_expect([0], "systemctl daemon-reload")


def place(host, state, packages=()):
    return host.ansible(
        "trainyard.gpu.placed_packages",
        "record=/var/lib/trainyard/placed.d/test.json state=%s packages=%s"
        % (state, ",".join(packages)),
        check=False,
        become=True,
    )


def test_packages_of_the_collection_restart_nothing(host, services):
    before = services("trainyard-training"), services("site")
    assert place(host, "present", ["numactl"])["changed"]
    assert (services("trainyard-training"), services("site")) == before
    place(host, "absent")


def test_apt_by_hand_restarts_the_sites_service_and_not_the_container(host, services):
    before = services("trainyard-training"), services("site")
    host.run_expect([0], "DEBIAN_FRONTEND=noninteractive apt-get install --yes numactl")
    assert services("site") != before[1], "needrestart did not run: this test says nothing"
    assert services("trainyard-training") == before[0]
    host.run_expect([0], "apt-get purge --yes --auto-remove numactl libnuma1")


def test_a_name_that_another_package_provides(host):
    """libpmix2 is libpmix2t64 on Ubuntu 24.04."""
    try:
        assert place(host, "present", ["libpmix2"]).get("changed")
        assert host.package("libpmix2t64").is_installed
        assert not place(host, "present", ["libpmix2"])["changed"]
        place(host, "absent")
        assert not host.package("libpmix2t64").is_installed
    finally:
        host.run("apt-get purge --yes --auto-remove libpmix2t64")


@pytest.mark.acceptance
def test_nfs_as_far_as_the_kernel_goes(role, host):
    """The hosts are containers with the kernel of the machine, which has no NFS: Ubuntu's packages come and go as the roles of NFS ask for them."""
    nfs = {
        "package_sources_install_packages": ["nfs-kernel-server"],
        "package_sources_install_record": "nfs_server",
    }
    done = role("install", of="package_sources", **nfs)
    assert done.code == 0, done.text[-3000:]
    for name in ("nfs-kernel-server", "nfs-common"):
        assert host.package(name).version == "1:2.6.4-3ubuntu5.1"
    again = role("install", of="package_sources", **nfs)
    assert (again.code, again.changed) == (0, 0), again.text[-3000:]
    assert role("uninstall", of="package_sources", **nfs).code == 0
    for name in ("nfs-kernel-server", "nfs-common"):
        assert not host.package(name).is_installed


@pytest.mark.usefixtures("security_updates")
def test_unattended_upgrades_leave_driver_and_engine(host):
    host.run_expect([0], "DEBIAN_FRONTEND=noninteractive apt-get install --yes numactl")
    host.run_expect([0], "apt-get update --quiet=2")
    assert "28.2.2-0ubuntu1~24.04.2" in host.check_output("apt-cache madison docker.io")
    told = host.check_output("unattended-upgrade --dry-run --verbose 2>&1")
    upgraded = " ".join(
        line.rpartition(":")[2] for line in told.splitlines() if "will be upgraded" in line
    )
    host.run_expect([0], "apt-get purge --yes --auto-remove numactl libnuma1")
    # The update of a package that no job needs.
    assert upgraded.split() == ["numactl"], told
