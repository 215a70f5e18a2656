"""The toolkit on a host with GPUs and a user's daemon.json; changes of driver, toolkit and options;
and what teardown leaves.
"""

from __future__ import annotations

import json

import pytest
from packages_left import packages_that_differ

HOST = "gpu-stack-b"
ROLE = "container_toolkit"
testinfra_hosts = ["ansible://" + HOST]
CONFIG = "/etc/docker/daemon.json"
SPECIFICATION = "/etc/cdi/trainyard-nvidia.yaml"
PACKAGES = "libnvidia-container-tools libnvidia-container1 nvidia-container-toolkit nvidia-container-toolkit-base"


def states(host):
    """Version and state of the four packages, without duplicates."""
    return set(
        host.check_output(
            "dpkg-query --show --showformat '${Version} ${db:Status-Abbrev}\n' " + PACKAGES
        ).splitlines()
    )


def started(host):
    return host.check_output(
        "systemctl show docker.service --property=ExecMainStartTimestampMonotonic --value"
    )


def new_driver(host, version):
    """As after an upgrade and the reboot that it needs."""
    host.run_expect([0], f"/srv/gpu_host.sh {version} 2")


def test_all_four_are_at_the_version_that_is_asked_for_and_held(host):
    assert states(host) == {"1.17.7-1 hi "}
    assert "nvidia" not in host.check_output("apt-get --simulate dist-upgrade | grep ^Inst || true")


def test_users_options_stay_beside_the_runtime(host):
    assert json.loads(host.file(CONFIG).content_string) == {
        "log-opts": {"max-size": "50m"},
        "runtimes": {
            "crun": {"path": "/usr/bin/crun"},
            "nvidia": {"args": [], "path": "nvidia-container-runtime"},
        },
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
    }
    assert host.file(CONFIG).mode == 0o640
    assert {"crun", "nvidia", "runc"} <= set(
        json.loads(host.check_output("docker info --format '{{json .Runtimes}}'"))
    )
    assert host.check_output("docker info --format '{{.CgroupDriver}}'") == "cgroupfs"


def test_containers_see_the_gpus_by_either_way(host):
    """The role's own check has passed and left nothing. This test uses a user's image."""
    assert host.check_output("docker image ls --quiet") == ""
    # A shell, and the programs of the test's nvidia-smi.
    host.run_expect(
        [0],
        "tar --create --dereference --directory / bin/sh $(for tool in sleep sh cat cut sed awk; do command -v $tool; "
        "ldd $(command -v $tool) | grep -o '/[^ ]*'; done | sed 's|^/||' | sort --unique) | docker import - of-the-user",
    )
    host_says = host.check_output("nvidia-smi -L")
    assert len(host_says.splitlines()) == 2
    for way in ("--gpus all", "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=all"):
        assert (
            host.check_output(f"docker run --rm --network none {way} of-the-user nvidia-smi -L")
            == host_says
        )
    refused = host.run(
        "docker run --rm --network none of-the-user cat /etc/vendor-fixtures/nvidia-smi/xml"
    )
    assert refused.rc != 0


def test_specification_names_the_library_of_the_driver(host):
    assert "libnvidia-ml.so.550.54.15" in host.file(SPECIFICATION).content_string
    assert "nvidia.com/gpu=all" in host.check_output("nvidia-ctk cdi list")


def test_new_driver_gets_a_new_specification_and_the_engine_runs_on(host, role):
    before = started(host)
    new_driver(host, "570.124.06")
    assert role().changed == 1
    assert "libnvidia-ml.so.570.124.06" in host.file(SPECIFICATION).content_string
    assert "550.54.15" not in host.file(SPECIFICATION).content_string
    assert started(host) == before


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_run_keeps_the_specification(role):
    assert role().changed == 0


@pytest.mark.acceptance
def test_specification_of_somebody_elses_is_the_only_one_and_is_kept_fresh(host, role):
    """From 1.18 on the toolkit writes its own specification at boot."""
    host.run_expect([0], f"mkdir -p /var/run/cdi && cp {SPECIFICATION} /var/run/cdi/nvidia.yaml")
    assert role().changed == 1
    assert not host.file(SPECIFICATION).exists
    new_driver(host, "550.54.15")
    assert role().changed == 1
    assert "libnvidia-ml.so.550.54.15" in host.file("/var/run/cdi/nvidia.yaml").content_string
    assert not host.file(SPECIFICATION).exists
    host.run_expect([0], "rm /var/run/cdi/nvidia.yaml")
    assert role().changed == 1
    assert host.file(SPECIFICATION).exists


@pytest.mark.acceptance
def test_driver_that_waits_for_a_reboot_gets_no_proof(host, role):
    host.run_expect([0], "sed -i s/550.54.15/535.183.01/ /proc/driver/nvidia/version")
    run = role(container_toolkit_version="1.17.6")
    assert (run.code, states(host)) == (0, {"1.17.6-1 hi "})
    assert (
        "the GPUs are not checked in a container: the loaded kernel module is 535.183.01, the libraries are 550.54.15"
        in run.text
    )
    host.run_expect([0], "sed -i s/535.183.01/550.54.15/ /proc/driver/nvidia/version")


@pytest.mark.acceptance
def test_specification_of_another_tool_replaces_the_role_s_and_is_regenerated(host, role):
    """Both in one run.

    It requests the installed version, which an earlier test of make acceptance has changed.
    """
    host.run_expect([0], f"mkdir -p /var/run/cdi && cp {SPECIFICATION} /var/run/cdi/nvidia.yaml")
    new_driver(host, "535.183.01")
    assert (
        role(container_toolkit_version=host.package("nvidia-container-toolkit").version).changed
        == 2
    )
    assert not host.file(SPECIFICATION).exists
    assert "libnvidia-ml.so.535.183.01" in host.file("/var/run/cdi/nvidia.yaml").content_string
    host.run_expect([0], "rm /var/run/cdi/nvidia.yaml")
    # The next run writes the role's own specification again. Later tests switch to the other two
    # drivers.
    new_driver(host, "570.124.06")


@pytest.fixture
def container(host):
    host.run_expect(
        [0], "docker run --detach --network none --name of-the-user of-the-user sleep infinity"
    )
    yield lambda: host.check_output(
        "docker inspect --format '{{.State.Running}} {{.State.StartedAt}}' of-the-user"
    )
    host.run_expect([0], "docker rm --force of-the-user")


def test_upgrade_takes_all_four_and_stops_nobody(host, role, container):
    before, since = started(host), container()
    run = role(container_toolkit_version="1.17.8-1")
    assert run.code == 0
    assert "a container sees 2 GPUs" in run.text
    assert (states(host), started(host), container()) == ({"1.17.8-1 hi "}, before, since)


def test_restart_that_would_stop_a_container_is_refused_before_anything_changes(
    host, role, container
):
    since, text = container(), host.file(CONFIG).content_string
    refused = role(container_toolkit_version="1.17.7", container_toolkit_keep_gpus=False)
    assert refused.code != 0
    assert "would stop: of-the-user" in refused.text
    assert (states(host), container(), host.file(CONFIG).content_string) == (
        {"1.17.8-1 hi "},
        since,
        text,
    )


@pytest.mark.acceptance
def test_users_own_cgroup_driver_stays_and_the_user_is_told(host, role):
    assert role(container_toolkit_version="1.17.8", container_toolkit_keep_gpus=False).code == 0
    there = json.loads(host.file(CONFIG).content_string)
    assert "exec-opts" not in there
    host.run_expect([0], "cp /etc/docker/daemon.json /srv/without.json")
    there["exec-opts"] = ["native.cgroupdriver=systemd"]
    host.run_expect([0], f"printf '%s' '{json.dumps(there)}' > {CONFIG}")
    run = role(container_toolkit_version="1.17.8")
    assert (run.code, run.changed) == (0, 0)
    assert "containers lose their GPUs" in run.text
    host.run_expect([0], f"cat /srv/without.json > {CONFIG}")
    assert role(container_toolkit_version="1.17.8").code == 0
    assert "exec-opts" in json.loads(host.file(CONFIG).content_string)


@pytest.mark.acceptance
def test_version_that_nobody_has_is_refused_with_the_nearest(host, role):
    run = role(container_toolkit_version="1.17.99")
    assert run.code != 0
    assert "1.17.8-1" in run.text
    assert states(host) == {"1.17.8-1 hi "}


@pytest.mark.acceptance
def test_image_that_is_not_on_the_host_is_no_proof(host, role):
    new_driver(host, "535.183.01")
    run = role(
        container_toolkit_version="1.17.8", container_toolkit_proof_image="somebody/elses:latest"
    )
    assert run.code != 0
    assert "somebody/elses" in run.text


def test_what_the_container_says_has_to_be_what_the_host_says(host, role):
    """A hook that provides other GPUs than the host's, like a broken toolkit."""
    host.run_expect(
        [0],
        "docker image rm of-the-user; cp /usr/local/bin/nvidia-container-runtime-hook /srv/hook && "
        "echo 'sed -i s/H100/A100/ \"$root/etc/vendor-fixtures/nvidia-smi/xml\"' >> /usr/local/bin/nvidia-container-runtime-hook",
    )
    new_driver(host, "550.54.15")
    run = role(container_toolkit_version="1.17.8")
    assert run.code != 0
    assert "A100" in run.text
    assert host.check_output("docker image ls --quiet") == ""
    host.run_expect([0], "cp /srv/hook /usr/local/bin/nvidia-container-runtime-hook")
    assert role("verify", container_toolkit_version="1.17.8").code == 0


def test_teardown_leaves_what_the_user_had(host, role):
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
    assert host.file(CONFIG).content_string == host.check_output("cat /srv/daemon.json")
    assert host.file(CONFIG).mode == 0o640
    assert "nvidia" not in host.check_output("docker info --format '{{json .Runtimes}}'")
    assert not host.file("/etc/cdi").exists
    assert (
        host.check_output(
            "find /etc /var/lib/trainyard -name '*container?toolkit*' -o -name '*nvidia-container*'"
        )
        .replace("/etc/apt/sources.list.d/trainyard-nvidia-container.sources", "")
        .replace("/etc/apt/keyrings/trainyard-nvidia-container.gpg", "")
        .split()
        == []
    )


@pytest.mark.acceptance
def test_recommended_version_is_for_a_host_without_a_toolkit(host, role):
    run = role(container_toolkit_version="recommended")
    assert (run.code, states(host)) == (
        0,
        {"1.17.8-1 hi "},
    ) and "a container sees 2 GPUs" in run.text
    again = role(container_toolkit_version="recommended")
    assert (again.code, again.changed) == (0, 0)
    # The same toolkit, installed by somebody else: neither held nor configured.
    host.run_expect(
        [0],
        f"mkdir /srv/records && mv /var/lib/trainyard/placed.d/container_toolkit.* /srv/records && apt-mark unhold {PACKAGES}",
    )
    others = role(container_toolkit_version="recommended")
    assert (others.code, others.changed, states(host)) == (
        0,
        0,
        {"1.17.8-1 ii "},
    ) and "it is left alone" in others.text
    host.run_expect([0], "mv /srv/records/* /var/lib/trainyard/placed.d/ && rmdir /srv/records")
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
