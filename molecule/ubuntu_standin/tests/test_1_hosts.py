"""What the GPU stack leaves on hosts that say they are Ubuntu, and what preflight says of them."""

from __future__ import annotations

import pytest

testinfra_hosts = ["ansible://cluster"]
RELEASES = {"ubuntu-noble": ("noble", "24.04"), "ubuntu-jammy": ("jammy", "22.04")}
DRIVER = "dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\n' '*nvidia*-580-*' | grep ' hi'"


def name_of(host):
    return host.backend.get_hostname()


def test_preflight_finds_nothing_on_each(host, alone):
    done = alone(name_of(host), "preflight.yml")
    assert done.code == 0 and "BLOCK" not in done.text
    assert "drv-mixed-source" not in done.text


def test_the_driver_is_the_one_that_ubuntu_drivers_recommends(host):
    _codename, version = RELEASES[name_of(host)]
    found = dict(line.split()[:2] for line in host.check_output(DRIVER).splitlines())
    assert {
        "nvidia-utils-580-server",
        "nvidia-compute-utils-580-server",
        "libnvidia-compute-580-server",
        "nvidia-dkms-580-server-open",
    } <= set(found)
    assert {each.rpartition("-0ubuntu0.")[2][:5] for each in found.values()} == {version}
    assert {each.partition("-")[0] for each in found.values()} == {"580.126.20"}


def test_persistence_mode_is_on(host):
    """Ubuntu's unit says --no-persistence-mode."""
    shown = host.check_output("systemctl show nvidia-persistenced --property=ExecStart")
    assert "nvidia-persistenced" in shown and "--no-persistence-mode" not in shown


def test_the_engine_is_ubuntus(host):
    _codename, version = RELEASES[name_of(host)]
    assert host.package("docker.io").version == "28.2.2-0ubuntu1~%s.1" % version
    for name in ("docker-buildx", "docker-compose-v2", "containerd", "runc"):
        assert host.package(name).is_installed
    assert host.service("docker").is_running and host.service("docker").is_enabled
    assert host.run("docker info").rc == 0
    # A container with an init needs it, and no package of Debian's remains to bring it.
    assert host.run("docker-init --version").rc == 0


def test_the_distributions_own_sources_are_as_they_were(host):
    codename, _version = RELEASES[name_of(host)]
    policy = host.check_output("apt-cache policy")
    assert "o=Ubuntu,a=%s,n=%s," % (codename, codename) in policy and "Debian" not in policy


@pytest.mark.acceptance
def test_preflight_refuses_a_cluster_of_two_releases_with_slurm(playbook):
    asked = {"slurm_gpu_type": "h100", "slurm_accept_login_on_gpu_hosts": True}
    done = playbook("preflight.yml", cluster_scheduler="slurm", **asked)
    assert done.code != 0
    assert "BLOCK slurm-releases: ubuntu-noble" in done.text
    assert "Slurm 23.11 is newer than 21.08 of the scheduler ubuntu-jammy" in done.text
