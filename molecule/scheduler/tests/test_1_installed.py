"""What the run has left: nodes with their GPUs, no password, and nothing that others can read."""

from __future__ import annotations

import re

ROLE = "slurm"


def test_nodes_are_in_service_with_their_gpus(cluster):
    told = cluster.on(cluster.head, "sinfo --noheader --Node --format '%N %T %G'").out.splitlines()
    assert told == ["%s idle gpu:h100:4" % name for name in cluster.hosts]


def test_one_munge_key_that_others_cannot_read(cluster):
    assert (
        len({cluster.on(host, "sha256sum < /etc/munge/munge.key").out for host in cluster.hosts})
        == 1
    )
    assert {
        cluster.on(host, "stat --format '%a %U' /etc/munge/munge.key").out for host in cluster.hosts
    } <= {"400 munge", "600 munge"}
    # The temporary file of the copy.
    assert cluster.on(cluster.peer, "ls /etc/munge").out == "munge.key"


def test_the_munge_key_is_not_on_the_controller(cluster):
    key = cluster.on(cluster.head, "base64 --wrap=0 /etc/munge/munge.key").out
    found = [
        path
        for path in cluster.ephemeral.rglob("*")
        if path.is_file() and key[:40] in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


def test_root_has_no_jobs(cluster):
    """A job of root would be outside of every quota."""
    config = cluster.on(cluster.head, "scontrol show config").out
    assert re.search(r"^DisableRootJobs +=\s+yes$", config, re.MULTILINE | re.IGNORECASE)
    told = cluster.on(cluster.head, "srun --immediate=10 hostname", check=False)
    assert told.code != 0 and "Invalid user id" in told.text
    told = cluster.on(cluster.head, "sbatch --output=/dev/null --wrap hostname", check=False)
    assert told.code != 0 and "Invalid user id" in told.text
    # Role train waits in the queue as Slurm's own user, who cannot log in.
    shell = cluster.on(cluster.head, "getent passwd slurm").out.split(":")[-1]
    assert shell in ("/usr/sbin/nologin", "/bin/false")
    assert cluster.on(cluster.head, "passwd --status slurm").out.split()[1] == "L"


def test_no_password_and_no_network(cluster):
    assert "Pass" not in cluster.on(cluster.head, "cat /etc/slurm/slurmdbd.conf").out
    assert (
        cluster.on(cluster.head, "stat --format '%a %U' /etc/slurm/slurmdbd.conf").out
        == "600 slurm"
    )
    # A server of the site may have other clients.
    assert (
        "mariadbd" in cluster.on(cluster.head, "ss --listening --tcp --numeric --processes").out
    ) == cluster.has_site_services
    told = cluster.sql("SHOW GRANTS FOR 'slurm'@'localhost'")
    assert "unix_socket" in told and "slurm_acct_db" in told
    # A person is not the system user slurm.
    assert (
        cluster.as_person(
            "anna", 'mariadb --user=slurm slurm_acct_db --execute "SHOW TABLES"', check=False
        ).code
        != 0
    )


def test_the_peer_is_configless(cluster):
    # The package has a configuration for plug-ins there.
    assert not [
        name
        for name in cluster.on(cluster.peer, "ls /etc/slurm").out.split()
        if not name.startswith("plugstack.conf")
    ]
    assert cluster.on(
        cluster.peer, "srun --version"
    ).code == 0 and cluster.nodes() == dict.fromkeys(cluster.hosts, "idle")


def test_a_second_run_changes_nothing_and_asks_the_scheduler_three_times_at_most(cluster):
    run = cluster.playbook("scheduler.yml")
    assert (run.code, run.changed) == (0, {}), run.text[-3000:]
    ours = {
        host: {name: count for name, count in names.items() if "trainyard.gpu.slurm" in name}
        for host, names in run.runs.items()
    }
    assert sum(ours[cluster.head].values()) <= 3 and sum(ours[cluster.peer].values()) <= 3, ours


def test_drift_finds_nothing(cluster):
    run = cluster.playbook("drift.yml")
    assert run.code == 0 and run.text.count("as configured") == 2


def test_people_is_a_playbook_of_its_own(cluster):
    run = cluster.playbook("people.yml")
    assert (run.code, run.changed) == (0, {}), run.text[-3000:]
