"""What breaks: keys, the database, settings.

Jobs go on, an error says what to do, and the next run repairs it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest

pytestmark = pytest.mark.acceptance

ROLE = "slurm_controller"
DUMPS = "/var/lib/trainyard/slurm/dumps"
STATE, SPOOL = "/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd"
CLOCK, UNIT = "/usr/local/lib/clock", "/run/systemd/system/munge.service.d"


@contextlib.contextmanager
def files_with(folder, words):
    """The files that had one of the words while they existed below a folder, and the number of all
    files, as ([paths], [count]).
    """
    seen, done = {}, threading.Event()

    def watch():
        while not done.is_set():
            for path in [path for path in folder.rglob("*") if path not in seen]:
                with contextlib.suppress(OSError):
                    content = path.read_bytes()
                    if content:
                        seen[path] = any(word in content for word in words)
            time.sleep(0.002)

    thread, found = threading.Thread(target=watch), ([], [])
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found[0].extend(path for path, has_word in seen.items() if has_word)
        found[1].append(len(seen))


def test_a_munge_key_that_differs(cluster, tmp_path, monkeypatch):
    cluster.idle()
    cluster.on(
        cluster.peer,
        "head --bytes=128 /dev/urandom > /etc/munge/munge.key && systemctl restart munge",
    )
    told = cluster.module(cluster.peer, "slurm_info", "gather=nodes")
    assert (told["available"], told["cause"]) == (False, "auth"), told
    assert "Compare the clocks ('date') and the checksums of /etc/munge/munge.key" in told["fix"], (
        told
    )
    # A credential of the scheduler tells which of the two it is.
    credential = cluster.on(cluster.head, "munge --no-input --restrict-uid=0").out
    told = cluster.module(cluster.peer, "slurm_info", "gather=nodes credential=" + credential)
    assert (
        told["cause"] == "auth_key"
        and "Copy /etc/munge/munge.key from the controller to this host and restart munge"
        in told["fix"]
    ), told
    drifted = cluster.playbook("drift.yml")
    assert drifted.code == 2 and "munge key that of %s" % cluster.head in drifted.text
    # As with the ansible.cfg of a site: modules pass through files on the controller. The key does
    # not.
    for name in ("ANSIBLE_PIPELINING", "ANSIBLE_SSH_PIPELINING"):
        monkeypatch.setenv(name, "false")
    monkeypatch.setenv("ANSIBLE_LOCAL_TEMP", str(tmp_path))
    key = cluster.on(cluster.head, "base64 --wrap=0 /etc/munge/munge.key").out
    with files_with(tmp_path, [key[:40].encode(), b"base64 --decode > /etc/munge"]) as (
        with_key,
        count,
    ):
        run = cluster.playbook("scheduler.yml")
    assert run.code == 0 and list(run.changed) == [cluster.peer], run.changed
    assert with_key == [] and count[0] > 5, (with_key, count)
    monkeypatch.undo()
    assert cluster.module(cluster.peer, "slurm_info", "gather=nodes")["available"]
    assert cluster.playbook("drift.yml").code == 0


def test_a_database_that_is_stopped(cluster):
    running = cluster.submit("ben", "--gpus=1")
    cluster.state_of(running, "RUNNING")
    cluster.on(cluster.head, "systemctl stop mariadb slurmdbd")
    try:
        # Jobs go on, and new ones are accepted: slurmctld knows the accounts.
        later = cluster.submit("ben", "--gpus=1", command="sleep 1")
        assert cluster.job(running)[0] == "RUNNING" and cluster.state_of(
            later, "COMPLETED", "COMPLETING"
        )
        told = cluster.module(
            cluster.head, "slurm_accounts", "cluster=trainyard record=/root/none.json timeout=1"
        )
        assert "Check that slurmdbd runs" in told["msg"], told
    finally:
        run = cluster.playbook("scheduler.yml")
    assert run.code == 0, run.text[-3000:]
    assert cluster.job(running)[0] == "RUNNING"
    cluster.wait(
        "the accounting catches up",
        lambda: (
            "COMPLETED"
            in cluster.on(cluster.head, "sacct --noheader --jobs=%s --format=state" % later).out
        ),
        120,
    )
    cluster.idle()


def test_a_stopped_controller(cluster):
    cluster.idle()
    running = cluster.submit("ben", "--nodelist=" + cluster.peer, "--gpus=1")
    cluster.state_of(running, "RUNNING")
    cluster.on(cluster.head, "systemctl stop slurmctld")
    try:
        for host in cluster.hosts:
            told = cluster.module(host, "slurm_info", "gather=nodes timeout=60")
            assert (told["available"], told["cause"]) == (False, "controller_down"), told
            assert (
                "Start the controller on its host ('systemctl start slurmctld')" in told["fix"]
            ), told
        drifted = cluster.playbook("drift.yml")
        assert drifted.code == 2 and "slurmctld" in drifted.text
        # The job goes on.
        assert cluster.on(cluster.peer, "pgrep --count --exact slurmstepd").out != "0"
    finally:
        run = cluster.playbook("scheduler.yml")
    assert run.code == 0 and list(run.changed) == [cluster.head], run.text[-3000:]
    assert cluster.job(running)[0] == "RUNNING"
    cluster.idle()


def test_clocks_that_differ(cluster):
    """Of munged alone: a container has the clock of its machine."""
    cluster.idle()
    cluster.on(
        cluster.peer,
        "mkdir -p %s && cd %s && apt-get --quiet --quiet download libfaketime && dpkg-deb --extract libfaketime_*.deb ."
        % (CLOCK, CLOCK),
    )
    library = cluster.on(cluster.peer, "ls %s/usr/lib/*/faketime/libfaketimeMT.so.1" % CLOCK).out
    cluster.on(
        cluster.peer,
        "mkdir -p {0} && printf '[Service]\\nEnvironment=LD_PRELOAD={1} FAKETIME=+10m FAKETIME_DONT_FAKE_MONOTONIC=1\\n' > {0}/clock.conf "
        "&& systemctl daemon-reload && systemctl restart munge".format(UNIT, library),
    )
    try:
        found = cluster.verify(verify_measure_bandwidth=False)
    finally:
        # slurmd registers when it starts. The controller asks a node that is down only every few
        # minutes.
        cluster.on(
            cluster.peer,
            "rm -r %s %s && systemctl daemon-reload && systemctl restart munge slurmd"
            % (UNIT, CLOCK),
        )
    (check,) = found["scheduler-answers", cluster.peer]
    assert (check["verdict"], check["found"]) == ("fail", "auth_clock"), check
    assert (
        "Synchronise the clocks of this host and the controller. MUNGE refuses credentials"
        in check["fix"]
    ), check
    (check,) = found["scheduler-answers", cluster.head]
    assert check["verdict"] == "pass", check
    cluster.wait(
        "the peer answers again",
        lambda: cluster.module(cluster.peer, "slurm_info", "gather=nodes")["available"],
    )
    cluster.idle()


def is_full(found, host, folder):
    (check,) = [each for each in found["free-space", host] if folder in each["found"]]
    assert check["verdict"] == "fail" and check["found"].startswith("%s: 0 MiB" % folder), check
    assert check["fix"] == "free space there, or lower verify_free_mib or verify_free_inodes", check


def test_a_scheduler_without_space(cluster):
    cluster.idle()
    running = cluster.submit("ben", "--nodelist=" + cluster.peer, "--gpus=1")
    cluster.state_of(running, "RUNNING")
    with cluster.full(cluster.head, STATE):
        found = cluster.verify(verify_measure_bandwidth=False)
        # slurmctld has removed files of former jobs meanwhile.
        cluster.on(cluster.head, "! dd if=/dev/zero of=%s/more bs=4k 2> /dev/null" % STATE)
        told = cluster.refused("ben", "--gpus=1")
    is_full(found, cluster.head, STATE)
    assert "I/O error writing script/environment to file" in told
    assert cluster.job(running)[0] == "RUNNING"
    cluster.state_of(cluster.submit("ben", "--gpus=1", command="sleep 1"), "COMPLETED")
    cluster.idle()


def test_a_node_without_space(cluster):
    """Slurm drains the node after the first job that it cannot start there."""
    cluster.idle()
    with cluster.full(cluster.peer, SPOOL):
        found = cluster.verify()
    is_full(found, cluster.peer, SPOOL)
    (check,) = found["scheduler-job", cluster.peer]
    assert check["verdict"] == "fail" and check["found"].endswith(": SlurmdSpoolDir is full"), check
    (check,) = found["scheduler-job", cluster.head]
    assert check["verdict"] == "pass", check
    cluster.nothing_is_left_of_verify()
    cluster.on(cluster.head, "scontrol update nodename=%s state=resume" % cluster.peer)
    cluster.idle()
    cluster.state_of(
        cluster.submit("ben", "--nodelist=" + cluster.peer, "--gpus=1", command="sleep 1"),
        "COMPLETED",
    )
    cluster.idle()


def test_settings_that_slurm_would_refuse_do_not_go_live(cluster):
    cluster.idle()
    before = cluster.on(cluster.head, "sha256sum /etc/slurm/slurm.conf").out
    refused = cluster.playbook("scheduler.yml", slurm_options={"SchedulerType": "sched/nothing"})
    assert refused.code == 2 and "sched/nothing" in refused.text
    assert cluster.on(cluster.head, "sha256sum /etc/slurm/slurm.conf").out == before
    assert set(cluster.nodes().values()) == {"idle"}
    # The run was interrupted before the change, and there is nothing left to do.
    run = cluster.playbook("scheduler.yml")
    assert run.code == 0 and cluster.on(cluster.head, "ls /var/lib/trainyard/slurm").out == "dumps"


def test_a_change_ends_no_job(cluster):
    running = cluster.submit("ben", "--gpus=1")
    cluster.state_of(running, "RUNNING")
    # One option that slurmctld reads while it runs, and one for which 22.05 restarts the daemons.
    changed = cluster.playbook(
        "scheduler.yml", slurm_options={"KillWait": 31}, slurm_node_features=["fast"]
    )
    assert changed.code == 0, changed.text[-3000:]
    assert "KillWait = 31" in " ".join(cluster.on(cluster.head, "scontrol show config").out.split())
    assert cluster.job(running)[0] == "RUNNING"
    assert cluster.playbook("scheduler.yml").code == 0
    assert cluster.job(running)[0] == "RUNNING"
    cluster.idle()


def test_a_change_that_would_end_a_job_is_refused(cluster):
    running = cluster.submit("ben", "--nodelist=" + cluster.peer, "--gpus=1")
    cluster.state_of(running, "RUNNING")
    refused = cluster.playbook("scheduler.yml", slurm_partitions=[{"name": "other"}])
    assert (
        refused.code == 2
        and "jobs %s would end, because partition train is no longer configured" % running
        in refused.text
    )
    assert (
        cluster.job(running)[0] == "RUNNING"
        and "PartitionName=train " in cluster.on(cluster.head, "cat /etc/slurm/slurm.conf").out
    )
    cluster.idle()


def test_a_host_leaves_and_comes_back_while_a_job_runs(cluster):
    """As docs/shared-cluster.md says: the host is removed from group gpu, and added to it."""
    cluster.idle()
    fewer = cluster.ephemeral / "fewer.yml"
    fewer.write_text(
        json.dumps(
            {
                "gpu": {"hosts": {cluster.head: {}}},
                "cluster": {"hosts": {cluster.peer: {"cluster_slots": 0}}},
            }
        ),
        encoding="utf-8",
    )
    stays, goes = (
        cluster.submit("ben", "--nodelist=" + host, "--gpus=1") for host in cluster.hosts
    )
    for number in (stays, goes):
        cluster.state_of(number, "RUNNING")
    refused = cluster.playbook("scheduler.yml", "--inventory", str(fewer))
    assert (
        refused.code == 2 and "jobs %s would end" % goes in refused.text and refused.changed == {}
    ), refused.text[-3000:]
    cluster.on(cluster.head, "scancel " + goes)
    cluster.wait("the job is gone", lambda: cluster.nodes()[cluster.peer] == "idle")
    left = cluster.playbook("scheduler.yml", "--inventory", str(fewer))
    assert left.code == 0, left.text[-3000:]
    assert list(cluster.nodes()) == [cluster.head] and cluster.job(stays)[0] == "RUNNING"
    assert cluster.on(cluster.peer, "pgrep slurmd", check=False).out == ""
    assert cluster.playbook("drift.yml", "--inventory", str(fewer)).code == 0
    back = cluster.playbook("scheduler.yml")
    assert back.code == 0, back.text[-3000:]
    cluster.state_of(
        cluster.submit("ben", "--nodelist=" + cluster.peer, "--gpus=1"), "RUNNING", seconds=90
    )
    assert cluster.job(stays)[0] == "RUNNING"
    cluster.idle()


def test_an_upgrade_waits_for_the_jobs_of_its_host(cluster):
    """What role upgrade does before and after a change. Scenario upgrade has the change."""

    def tasks(name, **variables):
        include = {
            "name": "Run the tasks",
            "ansible.builtin.include_role": {"name": "trainyard.gpu.upgrade", "tasks_from": name},
        }
        play = cluster.ephemeral / "upgrade.yml"
        play.write_text(
            json.dumps(
                [
                    {
                        "name": name,
                        "hosts": cluster.peer,
                        "gather_facts": False,
                        "become": True,
                        "tasks": [include],
                    }
                ]
            ),
            encoding="utf-8",
        )
        return cluster.playbook(play, **variables)

    cluster.idle()
    number = cluster.submit("ben", "--nodelist=" + cluster.peer, "--gpus=1")
    cluster.state_of(number, "RUNNING")
    busy = tasks("drain", upgrade_wait_for_jobs=5)
    assert busy.code == 2 and number in busy.text, busy.text[-3000:]
    assert cluster.job(number)[0] == "RUNNING" and cluster.nodes()[cluster.peer] == "draining"
    cluster.on(cluster.head, "scancel " + number)
    assert tasks("drain", upgrade_wait_for_jobs=60).code == 0
    assert (cluster.nodes()[cluster.peer], cluster.reason(cluster.peer)) == (
        "drained",
        "trainyard: upgrade",
    )
    assert tasks("resume").code == 0
    # Slurm 24.11 marks it with * until the node has answered once more.
    cluster.wait("the host is free", lambda: cluster.nodes()[cluster.peer] == "idle")
    # Drained by somebody else before, and after the upgrade.
    cluster.on(
        cluster.head, "scontrol update nodename=%s state=drain reason='new disk'" % cluster.peer
    )
    for name in ("drain", "resume"):
        assert tasks(name).code == 0
    assert (cluster.nodes()[cluster.peer], cluster.reason(cluster.peer)) == ("drained", "new disk")
    cluster.on(cluster.head, "scontrol update nodename=%s state=resume" % cluster.peer)
    cluster.idle()


def test_a_dump_is_restored(cluster):
    cluster.on(cluster.head, "systemctl start trainyard-slurm-dump.service")
    name = cluster.on(cluster.head, "ls %s | grep nightly | tail -n 1" % DUMPS).out
    assert cluster.on(
        cluster.head, "stat --format '%%a' %s %s/%s" % (DUMPS, DUMPS, name)
    ).out.split() == ["700", "600"]
    cluster.on(cluster.head, "sacctmgr --immediate delete user ben account=language")
    # As role slurm_controller's README says.
    cluster.on(
        cluster.head,
        "systemctl stop slurmctld slurmdbd && zcat %s/%s | mariadb && systemctl start slurmdbd && sleep 5 && systemctl start slurmctld"
        % (DUMPS, name),
    )
    cluster.wait(
        "the restored account",
        lambda: (
            "ben"
            in cluster.on(
                cluster.head,
                "sacctmgr --noheader --parsable2 show assoc where account=language format=user",
                check=False,
            ).out
        ),
        60,
    )
    cluster.wait("all nodes are idle", lambda: set(cluster.nodes().values()) == {"idle"}, 90)


def test_only_the_last_dumps_are_kept(cluster):
    cluster.on(
        cluster.head,
        "for day in 1 2 3; do touch %s/nightly-2020-01-0${day}T00-00-00Z.sql.gz; done" % DUMPS,
    )
    cluster.on(cluster.head, "/usr/local/lib/trainyard/slurm/dump-accounting nightly 2 " + DUMPS)
    left = cluster.on(cluster.head, "ls %s | grep nightly" % DUMPS).out.split()
    assert len(left) == 2 and not [name for name in left if "2020" in name]


def test_apt_dumps_before_it_upgrades(cluster):
    before = cluster.on(cluster.head, "ls %s | grep -c upgrade || true" % DUMPS).out
    cluster.on(
        cluster.head,
        "printf '/var/cache/apt/archives/hello_1_amd64.deb\\n' | /usr/local/lib/trainyard/slurm/dump-accounting upgrade 14 "
        + DUMPS,
    )
    assert cluster.on(cluster.head, "ls %s | grep -c upgrade || true" % DUMPS).out == before == "0"
    cluster.on(
        cluster.head,
        "DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet --assume-yes --reinstall install slurmdbd",
    )
    assert cluster.on(cluster.head, "ls %s | grep -c upgrade" % DUMPS).out == "1"
    assert (
        "CREATE TABLE"
        in cluster.on(cluster.head, "zcat %s/upgrade-*.sql.gz | head --lines=200" % DUMPS).out
    )
    # Without a dump there is no upgrade.
    cluster.on(cluster.head, "chattr +i %s || mount --bind -o ro %s %s" % (DUMPS, DUMPS, DUMPS))
    try:
        done = cluster.on(
            cluster.head,
            "DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet --assume-yes --reinstall install slurmdbd",
            check=False,
        )
        assert done.code != 0 and "dump-accounting" in done.text
    finally:
        cluster.on(cluster.head, "umount %s 2> /dev/null || chattr -i %s" % (DUMPS, DUMPS))
