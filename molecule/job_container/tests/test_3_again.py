"""The role again: another image under the same name, a person who leaves, and the removal."""

from __future__ import annotations

import pytest
from jobs import STORAGE, Job, left
from packages_left import packages_that_differ
from test_1_jobs import in_store

HOST = "job-container-a"
testinfra_hosts = ["ansible://" + HOST]
OWN_CDI, OTHER_CDI = "/etc/cdi/trainyard-job.json", "/etc/cdi/nvidia.json"
USERS = [{"name": "alice", "uid": 2101}]


def images(host):
    return host.check_output(
        "podman --root %s/images --runroot /run/trainyard/images --storage-driver overlay images --all --quiet --no-trunc"
        % STORAGE
    ).split()


def test_another_image_of_the_name_is_loaded_while_a_job_runs(host, role):
    former = images(host)
    with Job(host, 201) as job:
        pid = job.begin("sleep 1000")
        host.run_expect(
            [0],
            "docker run --name again site/tools:1 touch /new && docker export again | docker import - site/tools:1 && docker rm again",
        )
        run = role()
        assert (run.code, run.changed) == (0, 2), "the record and the image"
        assert set(former) < set(images(host)) and host.run("kill -0 %s" % pid).rc == 0
        with Job(host, 202) as other:
            assert other.run("ls /new").rc == 0
    assert role().changed == 0


def test_a_store_of_an_earlier_release_is_cleaned(host, role):
    """Its layers are open, with what people would become root by, and nothing is mounted.

    The next run mounts and cleans it, and the one after changes nothing.
    """
    store = STORAGE + "/images"
    program = in_store(host, "usr/bin/who-am-i")
    host.run_expect(
        [0],
        "systemctl stop $(systemd-escape --path --suffix=mount %s) && rm %s/trainyard-clean && chmod u+s %s"
        % (store, store, program),
    )
    as_bob = "setpriv --reuid=bob --regid=bob --init-groups " + program
    assert "(root)" in host.check_output(as_bob)
    assert differences(role) == [(store, "not mounted so"), (store, "not cleaned")]
    assert role().changed == 2 and "(root)" not in host.check_output(as_bob)
    assert role().changed == 0 and differences(role) == []


def differences(role):
    run = role(tasks="drift", shows="job_container_differences")
    assert run.code == 0 and run.changed == 0
    return [(row["what"], row["found"]) for row in run.shown]


def test_drift_is_told_and_gone_after_the_role(host, role):
    assert differences(role) == []
    host.run_expect(
        [0],
        "echo NCCL_DEBUG=INFO >> /etc/trainyard/job/environment && rm /usr/local/lib/trainyard/slurm/epilog && sed -i /^bob:340656128:/d /etc/subgid",
    )
    # The line that useradd has written is not the one that the plan has first.
    line = host.check_output("grep ^bob: /etc/subgid")
    assert differences(role) == [
        ("/etc/trainyard/job/environment", "changed"),
        ("/etc/subgid", line),
        ("/usr/local/lib/trainyard/slurm/epilog", "missing"),
    ]
    assert role().code == 0 and differences(role) == []


def test_a_table_that_somebody_has_emptied_is_drift_and_comes_back(host, role):
    """The unit is active, and the rules that close the ports of jobs are gone."""
    host.run_expect([0], "nft flush table inet trainyard_jobs")
    ((what, fault),) = differences(role)
    assert what == "firewall of jobs" and fault.startswith("chain "), fault
    run = role()
    assert (run.code, run.changed) == (0, 1) and differences(role) == []


def test_refresh_leaves_one_description_of_the_gpus(host, role):
    """As playbook upgrade does after it has installed or removed a container toolkit, which
    describes them, too.
    """
    own = host.file(OWN_CDI).content_string
    host.run_expect([0], "cp %s %s" % (OWN_CDI, OTHER_CDI))
    assert role(tasks="refresh").changed == 1 and not host.file(OWN_CDI).exists
    assert role(tasks="refresh").changed == 0
    with Job(host, 204) as job:
        assert job.run("ls /dev/nvidia0").rc == 0
    host.run_expect([0], "rm %s" % OTHER_CDI)
    assert role(tasks="refresh").changed == 1 and host.file(OWN_CDI).content_string == own
    with Job(host, 205) as job:
        assert job.run("ls /dev/nvidia0").rc == 0


def test_the_range_of_a_person_who_leaves_goes(host, role):
    assert role(shared_storage_users=USERS).changed == 2
    assert (
        "bob:340656128" not in host.file("/etc/subuid").content_string
        and "bob:" in host.file("/etc/subuid").content_string
    )


@pytest.mark.parametrize("point", ["/proc/sys", "/var/lib/trainyard/containers"])
def test_a_host_that_cannot_run_containers_is_refused(host, role, point):
    # The image store is a mount below it.
    host.run_expect(
        [0],
        "mount -t tmpfs none %s" % point
        if point == "/proc/sys"
        else "umount --recursive %s" % point,
    )
    run = role()
    host.run_expect(
        [0],
        "umount %s" % point
        if point == "/proc/sys"
        else "mount --bind /var/lib/docker/of-jobs %s" % point,
    )
    assert (
        run.code == 2
        and (
            "systempaths=unconfined"
            if point == "/proc/sys"
            else "is on overlay, on which containers cannot be stored"
        )
        in run.text
    )


def test_removal_leaves_nothing(host, role):
    job = Job(host, 203)
    host.run_expect([0], job.as_root("prolog"))
    job.begin("sleep 1000")
    # A boot with podman's package does.
    host.run_expect(
        [0],
        "systemd-tmpfiles --create --boot --prefix=/var/lib/cni && test -d /var/lib/cni/networks",
    )
    run = role(tasks="remove")
    assert run.code == 0 and left(host) == ""
    assert packages_that_differ(host, alone=True) == []
    now = host.check_output(
        "find /etc /usr/local ! -name '*-' -type f -exec sha256sum {} + -o ! -name '*-' -printf '%p %m %U %l\\n' | sort"
    )
    assert set(now.splitlines()) ^ set(host.check_output("cat /srv/files").splitlines()) == set()
    assert not host.file("/var/lib/containers").exists and not host.file("/var/lib/cni").exists
    assert (
        host.check_output(
            "ls -A %s; ls -A /var/lib/trainyard/placed.d; ls -A /run/trainyard" % STORAGE
        )
        == ""
    )
    assert role(tasks="remove").changed == 0
