"""Deliberate faults. A run of site.yml repairs or reports each of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import pytest


@pytest.fixture
def healed(cluster):
    """Check after the test that the cluster is repaired and that a second run changes nothing."""
    yield
    for source in cluster.hosts:
        for target in cluster.hosts:
            assert cluster.login(source, target).code == 0
    assert cluster.layers(cluster.head) == cluster.layers(cluster.peer)
    again = cluster.site()
    assert (again.code, again.changed) == (0, {})


# In CI the next but one test has the container created again, and scenario training_container.
@pytest.mark.acceptance
def test_container_deleted(cluster, healed):
    cluster.on(cluster.peer, "docker rm --force %s" % cluster.container)
    run = cluster.site()
    assert run.code == 0
    assert set(run.changed) == {cluster.peer}
    assert cluster.inspect(cluster.peer)["State"]["Running"]


def test_sshd_killed(cluster):
    """Its supervisor restarts it without a run."""
    started = cluster.inspect(cluster.peer)["State"]["StartedAt"]
    # The brackets prevent pkill from matching its own shell.
    cluster.on(
        cluster.peer, "pkill --full --signal KILL '[s]shd.*-f /etc/trainyard/ssh/sshd_config'"
    )
    assert ":12345 " not in cluster.on(cluster.peer, "ss -Htln").out
    cluster.wait(
        "sshd on port 12345", 10, lambda: cluster.login(cluster.head, cluster.peer).code == 0
    )
    assert cluster.inspect(cluster.peer)["State"]["StartedAt"] == started


def test_container_changed_and_sshd_frozen(cluster, healed):
    """verify reports both faults.

    A run of site.yml recreates the one container and restarts only sshd in the other.
    """
    program = cluster.inside(cluster.peer, "readlink -f $(command -v horovodrun)").out.strip()
    former, started = (
        cluster.inspect(cluster.peer)["Id"],
        cluster.inspect(cluster.head)["State"]["StartedAt"],
    )
    cluster.inside(cluster.peer, "mv %s /root/" % program)
    cluster.inside(cluster.head, "kill -STOP $(cat /run/trainyard-sshd.pid)")
    run = cluster.playbook("playbooks/verify.yml")
    assert run.code == 2
    report = cluster.last_report()
    failed = {
        (check["id"], check["host"]): check
        for check in report["checks"]
        if check["verdict"] == "fail"
    }
    assert "%s (deleted)" % program in failed["container-running", cluster.peer]["found"]
    assert ("container-running", cluster.head) not in failed
    assert any(
        check_id == "ssh-mesh"
        and "(no_banner)" in check["found"]
        and "firewall" not in check["found"].replace("no firewall", "")
        for (check_id, _host), check in failed.items()
    )
    assert not any("nstall Horovod" in check["fix"] for check in failed.values())
    healing = cluster.site()
    assert healing.code == 0
    assert (
        cluster.inspect(cluster.peer)["Id"] != former
        and cluster.inspect(cluster.head)["State"]["StartedAt"] == started
    )


@pytest.mark.acceptance
def test_host_key_of_a_peer_changed(cluster):
    """As after a break-in or a reinstallation: no job runs, and site.yml names the host."""
    key = "/etc/trainyard/ssh/ssh_host_ed25519_key"
    cluster.on(
        cluster.peer,
        "mkdir /root/kept && mv %s %s.pub /root/kept && ssh-keygen -q -t ed25519 -N '' -f %s && systemctl restart %s"
        % (key, key, key, cluster.container),
    )
    cluster.wait(
        "sshd on port 12345", 15, lambda: "12345" in cluster.on(cluster.peer, "ss -Htln").out
    )
    try:
        job = cluster.playbook("playbooks/train.yml")
        assert job.code == 2
        assert "Host key verification failed" in job.text
        named = cluster.site()
        assert named.code == 2
        blamed = [line for line in named.text.splitlines() if "host key" in line.lower()]
        assert blamed and any(cluster.peer in line for line in blamed)
    finally:
        cluster.on(
            cluster.peer,
            "mv -f /root/kept/* /etc/trainyard/ssh/ && rmdir /root/kept && systemctl restart %s"
            % cluster.container,
        )
    cluster.wait(
        "sshd on port 12345", 15, lambda: cluster.login(cluster.head, cluster.peer).code == 0
    )
    again = cluster.site()
    assert (again.code, again.changed) == (0, {})


@pytest.mark.acceptance
def test_horovod_that_cannot_be_imported_any_more(cluster):
    """--check-build still lists PyTorch, but a job would fail in its first line."""
    package = cluster.inside(
        cluster.peer, "cd / && python3 -c 'import packaging; print(packaging.__path__[0])'"
    ).out.strip()
    cluster.inside(cluster.peer, "mv %s /root/kept" % package)
    try:
        assert "[X] PyTorch" in cluster.inside(cluster.peer, "horovodrun --check-build").out
        run = cluster.playbook("playbooks/verify.yml")
        assert run.code == 2
        assert re.search(
            r"FAIL horovod-build: %s\n.*behind port 12345, Horovod lacks frameworks.pytorch.*No module named 'packaging'"
            % cluster.peer,
            run.text,
        )
    finally:
        cluster.inside(cluster.peer, "mv /root/kept %s" % package)
    assert cluster.playbook("playbooks/verify.yml").code == 0


@pytest.mark.acceptance
def test_all_that_is_wrong_is_told_at_once(cluster):
    """No fault hides another on any host.

    The report has all of them, because it is written before the play fails.
    """
    cluster.on(cluster.peer, "systemctl stop %s" % cluster.container)
    try:
        run = cluster.playbook("playbooks/verify.yml", "-e", {"verify_free_mib": 1 << 40})
    finally:
        cluster.on(cluster.peer, "systemctl start %s" % cluster.container)
    assert run.code == 2 and run.changed == {}
    report = cluster.last_report()
    failed = {
        (check["id"], check["host"]) for check in report["checks"] if check["verdict"] == "fail"
    }
    assert report["verdict"] == "fail"
    assert failed >= {
        ("container-running", cluster.peer),
        ("free-space", cluster.head),
        ("free-space", cluster.peer),
    }
    # The side that does not answer is named, and not the one whose logins fail.
    assert ("ssh-mesh", cluster.peer) in failed
    assert ("ssh-mesh", cluster.head) not in failed
    assert ("container-running", cluster.head) not in failed and (
        "shared-storage",
        cluster.peer,
    ) not in failed
    assert all(
        re.search(r"^FAIL %s: .*%s" % (check_id, host), run.text, re.MULTILINE)
        for check_id, host in failed
    )
    cluster.wait(
        "sshd on port 12345", 15, lambda: cluster.login(cluster.head, cluster.peer).code == 0
    )


# What `docker update` and a shell on the host can change, without any file of ours.
FAULTS_OF_A_CONTAINER = """
set -eu
pid=$(docker inspect --format '{{.State.Pid}}' NAME)
sshd=$(docker exec NAME cat /run/trainyard-sshd.pid)
nsenter --target $pid --mount --pid umount --lazy /data1/share
nsenter --target $pid --mount --pid mount -o remount,size=64k /dev/shm
docker exec NAME sh -c "prlimit --nofile=64:64 --pid $sshd"
docker update --memory 3g --memory-swap 3g NAME
docker exec NAME sh -c 'mkdir -p /root/.ssh /opt/hides && echo "version = 1" > /opt/hides/json.py'
docker exec NAME sh -c 'echo PYTHONPATH=/opt/hides >> /root/.ssh/environment'
ssh-keygen -q -t ed25519 -N "" -C stranger -f /tmp/stranger
cat /tmp/stranger.pub >> /etc/trainyard/ssh/authorized_keys
mkdir -p /etc/systemd/system/NAME.service.d
printf '[Service]\nRestart=no\n' > /etc/systemd/system/NAME.service.d/site.conf
systemctl daemon-reload
"""


@pytest.mark.acceptance
def test_what_only_jobs_would_notice(cluster, healed):
    """Ansible finds the container running and its sshd answering. verify names each fault of the
    one host, site repairs all but the drop-in, which is not ours.
    """
    drop_in = "/etc/systemd/system/%s.service.d" % cluster.container
    cluster.on(cluster.peer, FAULTS_OF_A_CONTAINER.replace("NAME", cluster.container))
    try:
        run = cluster.playbook("playbooks/verify.yml")
        assert run.code == 2 and run.changed == {}
        checks = cluster.last_report()["checks"]
        failed = {
            (check["id"], check["host"]) for check in checks if check["verdict"] in ("fail", "warn")
        }
        for check_id in (
            "container-share",
            "container-limits",
            "session-environment",
            "foreign-access",
            "unit-as-planned",
        ):
            assert (check_id, cluster.peer) in failed
            assert (check_id, cluster.head) not in failed
        told = "\n".join(str(check["found"]) for check in checks if check["host"] == cluster.peer)
        for fault in ("PYTHONPATH", "stranger", "64", "Restart"):
            assert fault in told
    finally:
        cluster.on(cluster.peer, "rm -r %s /tmp/stranger*; systemctl daemon-reload" % drop_in)
    assert cluster.site().code == 0
    assert "stranger" not in cluster.on(cluster.peer, "cat /etc/trainyard/ssh/authorized_keys").out
    assert cluster.playbook("playbooks/verify.yml").code == 0


# In CI, scenario training_image tests this and the next fault with a small image.
@pytest.mark.acceptance
def test_image_removed_on_one_host(cluster, healed):
    image = cluster.inspect(cluster.peer)["Config"]["Image"]
    cluster.on(
        cluster.peer,
        "systemctl stop %s; docker rm --force %s; docker rmi --force %s"
        % (cluster.container, cluster.container, image),
    )
    run = cluster.site()
    assert run.code == 0
    assert cluster.head not in run.changed or not [
        task for task in run.changed[cluster.head] if "uild" in task and "training_image" in task
    ]
    assert cluster.inspect(cluster.peer, image)["RootFS"]["Layers"] == cluster.layers(cluster.head)


@pytest.mark.acceptance
def test_image_edited_on_one_host(cluster, healed):
    """docker commit with the same tag: name and label are those of the recipe, but the layers
    differ.
    """
    image = cluster.inspect(cluster.peer)["Config"]["Image"]
    cluster.on(
        cluster.peer,
        "docker run --name edit --entrypoint sh %s -c 'echo edited > /usr/local/lib/edited' && docker commit edit %s && docker rm edit"
        % (image, image),
    )
    assert cluster.inspect(cluster.peer, image)["RootFS"]["Layers"] != cluster.layers(cluster.head)
    run = cluster.site()
    assert run.code == 0
    assert cluster.inspect(cluster.peer, image)["RootFS"]["Layers"] == cluster.layers(cluster.head)
    assert (
        cluster.on(
            cluster.peer,
            "docker run --rm --entrypoint cat %s /usr/local/lib/edited" % image,
            check=False,
        ).code
        != 0
    )


@pytest.mark.acceptance
@pytest.mark.parametrize("who", ["peer", "head"])
def test_one_host_down(cluster, healed, who):
    """Nothing changes on the other hosts, and a host that starts again rejoins the cluster by
    itself.
    """
    down = getattr(cluster, who)
    other = next(host for host in cluster.hosts if host != down)
    cluster.on(other, "docker rm --force %s" % cluster.container)
    subprocess.run(["docker", "stop", "--time", "60", down], check=True, stdout=subprocess.DEVNULL)
    try:
        run = cluster.site()
        assert run.code == 4
        assert run.changed == {}
        assert down in run.text
        # With --limit the run continues without it and reports that it was not verified.
        limited = cluster.site("--limit", other)
        assert limited.code == 0
        assert set(limited.changed) == {other}
        assert re.search("Not verified for hosts outside this play: %s" % down, limited.text)
    finally:
        subprocess.run(["docker", "start", down], check=True, stdout=subprocess.DEVNULL)
    cluster.wait(
        "the container of the host that came back",
        90,
        lambda: (
            cluster.on(
                down,
                "docker inspect --format '{{.State.Running}}' %s" % cluster.container,
                check=False,
            ).out
            == "true\n"
        ),
    )
    run = cluster.site()
    assert run.code == 0


@pytest.mark.acceptance
def test_killed_in_the_middle_of_the_compile(cluster, healed):
    """SIGKILL ten seconds after the start of the compilation, first for the operator's
    ansible-playbook, then for the build.
    """
    other = {
        "training_image_rebuild": "always",
        "training_image_build_variables": {"MAKEFLAGS": "-j2"},
    }
    former = cluster.inspect(cluster.head)["Id"]
    log = cluster.state / "killed.log"

    def compiling():
        return re.search(
            r"Building CXX object|building 'horovod|Running setup.py|bdist_wheel",
            log.read_text(encoding="utf-8", errors="replace"),
        )

    def start():
        with open(log, "w", encoding="utf-8") as output:
            return cluster.start("site.yml", "-e", other, output=output)

    operator = start()
    cluster.wait("the compile", 300, compiling)
    begun = time.monotonic()
    cluster.wait("ten seconds", 11, lambda: time.monotonic() - begun > 10)
    os.killpg(operator.pid, signal.SIGKILL)
    operator.wait()
    builds = "systemctl show --property ActiveState,MainPID trainyard-image-build"
    orphan = cluster.on(cluster.head, builds).out
    assert "ActiveState=active" in orphan

    # A second run attaches to the running build instead of starting another.
    operator = start()
    cluster.wait("lines of the orphan's compile", 120, compiling)
    assert cluster.on(cluster.head, builds).out == orphan
    cluster.on(cluster.head, "systemctl kill --signal=KILL --kill-whom=all trainyard-image-build")
    assert operator.wait(120) == 2
    said = log.read_text(encoding="utf-8")
    assert (
        "trainyard-image-build" in said and cluster.head in said and "/var/log/trainyard/" in said
    )
    assert (
        cluster.inspect(cluster.head)["Id"] == former
        and cluster.inspect(cluster.head)["State"]["Running"]
    )

    assert cluster.playbook("site.yml", "-e", other).code == 0
    assert cluster.inspect(cluster.head)["Id"] != former
    # Back to the former recipe: its image still exists, or is rebuilt.
    assert cluster.site().code == 0
