"""Quotas, refusals, priorities and drained nodes, as people and operators meet them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

MAY_LOG_IN = Path(__file__).with_name("may_log_in.py").read_text(encoding="utf-8")
ROLE = "slurm_accounts"


@pytest.fixture(autouse=True)
def _idle(cluster):
    cluster.idle()
    yield
    cluster.idle()


def test_an_account_over_its_quota_waits_while_others_run(cluster):
    first, second = cluster.submit("anna", "--gpus=2"), cluster.submit("anna", "--gpus=1")
    other = cluster.submit("ben", "--gpus=4")
    assert (
        cluster.state_of(first, "RUNNING")[0] == cluster.state_of(other, "RUNNING")[0] == "RUNNING"
    )
    cluster.wait(
        "the second job waits for its account",
        lambda: cluster.job(second)[:2] == ("PENDING", "AssocGrpGRES"),
    )
    cluster.on(cluster.head, "scancel " + first)
    assert cluster.state_of(second, "RUNNING")[0] == "RUNNING"


def test_what_can_never_run_is_refused_at_submit(cluster):
    assert "Requested node configuration is not available" in cluster.refused(
        "ben", "--nodes=1", "--gpus-per-node=5"
    )
    # More than the account's quota: the job would wait for ever.
    assert "AssocMaxGRES" in cluster.refused("anna", "--gpus=3") or "policy" in cluster.refused(
        "anna", "--gpus=3"
    )


def test_a_job_without_gpus_cannot_take_all_cpus(cluster):
    """Account vision has 2 of 8 GPUs, so half of the CPUs."""
    assert "policy" in cluster.refused("anna", "--nodes=2", "--ntasks-per-node=8", "--gpus=0")
    first = cluster.submit(
        "anna", "--cpus-per-task=8", "--nodelist=" + cluster.head, "--gpus=0", "--mem=100"
    )
    second = cluster.submit(
        "anna", "--cpus-per-task=8", "--nodelist=" + cluster.peer, "--gpus=0", "--mem=100"
    )
    cluster.state_of(first, "RUNNING")
    cluster.wait(
        "the second job waits for its account",
        lambda: cluster.job(second)[:2] == ("PENDING", "AssocGrpCpuLimit"),
    )
    # Memory, too.
    assert "policy" in cluster.refused("anna", "--nodes=2", "--mem=6000")
    cluster.state_of(cluster.submit("ben", "--gpus=4"), "RUNNING")


def test_one_person_cannot_fill_the_list_of_jobs(cluster):
    for _each in range(2):
        cluster.submit("anna", "--hold", "--array=1-1000")
    assert "AssocMaxSubmitJobLimit" in cluster.refused("anna", "--hold")
    cluster.state_of(cluster.submit("ben", "--gpus=1"), "RUNNING")


def test_no_job_without_an_end(cluster):
    assert "time limit" in cluster.refused("anna", "--time=365-0").lower()
    numbers = [cluster.submit(person) for person in ("anna", "ben")]
    # The account of ben has a limit of its own.
    told = [
        cluster.on(cluster.head, "squeue --noheader --format=%%l --jobs=%s" % number).out
        for number in numbers
    ]
    assert told == ["30-00:00:00", "10:00:00"]


def test_a_person_without_an_account_is_refused(cluster):
    assert "Invalid account" in cluster.refused("carla", "--gpus=1")
    assert "Invalid account" in cluster.refused("anna", "--account=language", "--gpus=1")


def test_a_job_sees_its_gpus_as_its_person(cluster):
    told = cluster.as_person(
        "anna", 'srun --quiet --gpus=2 sh -c "id -un; echo \\$CUDA_VISIBLE_DEVICES"'
    ).out.split()
    assert told == ["anna", "0,1"]


def test_a_login_does_not_limit_the_locked_memory_of_a_job(cluster):
    told = cluster.as_person("anna", 'ulimit -S -l 64 && srun --quiet sh -c "ulimit -l"').out
    limit = cluster.on(
        cluster.head, "prlimit --pid $(pidof -s slurmd) --memlock --noheadings --raw --output=SOFT"
    ).out
    assert told == (limit if limit == "unlimited" else str(int(limit) // 1024)) != "64"


def test_an_array_and_jobs_that_depend_on_it(cluster):
    array = cluster.submit("ben", "--array=0-2", "--gpus=1", command="sleep 5")
    after = cluster.submit("ben", "--dependency=afterok:" + array, command="true")
    otherwise = cluster.submit(
        "ben", "--dependency=afternotok:" + array, "--kill-on-invalid-dep=yes", command="true"
    )
    assert cluster.job(after)[:2] == cluster.job(otherwise)[:2] == ("PENDING", "Dependency")
    cluster.state_of(after, "COMPLETED", seconds=120)
    cluster.state_of(otherwise, "CANCELLED", seconds=120)
    tasks = "sacct --noheader --parsable2 --allocations --format=JobID,State --jobs=" + array
    expected = ["%s_%d|COMPLETED" % (array, index) for index in range(3)]
    cluster.wait(
        "accounting has the tasks",
        lambda: sorted(cluster.on(cluster.head, tasks).out.splitlines()) == expected,
    )


def test_a_higher_priority_takes_the_hosts_and_the_job_comes_back(cluster):
    low = cluster.submit(
        "ben",
        "--qos=low",
        "--nodes=2",
        "--gpus-per-node=4",
        "--requeue",
        command='test -n \\"\\$SLURM_RESTART_COUNT\\" || sleep 3600',
    )
    cluster.state_of(low, "RUNNING")
    # Of the other account: a job waits for the quota of its own one, whatever its priority.
    high = cluster.submit("anna", "--qos=high", "--nodes=1", "--gpus-per-node=2")
    cluster.state_of(high, "RUNNING", seconds=150)
    assert cluster.job(low)[0] in ("PENDING", "COMPLETING")
    cluster.on(cluster.head, "scancel " + high)
    cluster.state_of(low, "COMPLETED", seconds=200)
    assert "Restarts=1" in cluster.on(cluster.head, "scontrol show job " + low).out


def test_a_drained_node_gets_no_job_and_is_resumed_for_the_right_reason_only(cluster):
    def change(state, reason=""):
        told = "nodes=%s state=%s" % (cluster.peer, state) + (
            " reason='%s'" % reason if reason else ""
        )
        return cluster.module(cluster.head, "slurm_node_state", told)

    assert change("drain", "trainyard: test: the link is slow")["drained"] == [cluster.peer]
    jobs = [cluster.submit("ben", "--nodes=1", "--gpus-per-node=4") for _each in range(2)]
    assert cluster.state_of(jobs[0], "RUNNING")[2] == cluster.head
    cluster.wait("the second job waits", lambda: cluster.job(jobs[1])[1] not in ("None", ""))
    assert cluster.job(jobs[1])[0] == "PENDING"
    assert change("resume")["resumed"] == [cluster.peer]
    assert cluster.state_of(jobs[1], "RUNNING", seconds=120)[2] == cluster.peer
    cluster.idle()
    # Drained by somebody else.
    cluster.on(
        cluster.head, "scontrol update nodename=%s state=drain reason='new memory'" % cluster.peer
    )
    told = change("resume")
    assert told["resumed"] == [] and [entry["name"] for entry in told["kept"]] == [cluster.peer]
    assert cluster.nodes()[cluster.peer] == "drained"
    cluster.on(cluster.head, "scontrol update nodename=%s state=resume" % cluster.peer)


def test_people_log_in_to_a_training_host_only_with_a_job_on_it(cluster):
    def allowed(host):
        # A program that cannot run at all ends with another code.
        codes = {
            user: cluster.on(
                host, "python3 -c %s %s" % (shlex.quote(MAY_LOG_IN), user), check=False
            ).code
            for user in ("root", "anna", "ben")
        }
        assert set(codes.values()) <= {0, 9}, codes
        return [user for user, code in codes.items() if code == 0]

    # The head is a login host.
    assert allowed(cluster.head) == ["root", "anna", "ben"] and allowed(cluster.peer) == ["root"]
    number = cluster.submit("anna", "--nodelist=" + cluster.peer)
    cluster.state_of(number, "RUNNING")
    assert allowed(cluster.peer) == ["root", "anna"]
    cluster.on(cluster.head, "systemctl stop slurmctld")
    cluster.on(cluster.peer, "systemctl stop slurmd")
    try:
        assert "root" in allowed(cluster.peer)
    finally:
        cluster.on(cluster.head, "systemctl start slurmctld")
        cluster.on(cluster.peer, "systemctl start slurmd")
    cluster.on(cluster.head, "scancel " + number)
    cluster.wait("the job is gone", lambda: allowed(cluster.peer) == ["root"])
    run = cluster.playbook("scheduler.yml", slurm_ssh_needs_job=False)
    assert (
        run.code == 0
        and list(run.changed) == [cluster.peer]
        and allowed(cluster.peer) == ["root", "anna", "ben"]
    ), run.text[-3000:]
    assert (
        cluster.on(cluster.peer, "dpkg --verify openssh-server | grep /etc/", check=False).out == ""
    )
    run = cluster.playbook("scheduler.yml")
    assert run.code == 0 and allowed(cluster.peer) == ["root"], run.text[-3000:]


def test_members_follow_the_inventory(cluster):
    more = [
        {"name": "vision", "gpus": 2, "members": ["anna", "carla"]},
        {"name": "language", "gpus": 8, "members": []},
    ]
    run = cluster.playbook("people.yml", slurm_accounts=more)
    assert run.code == 0, run.text[-3000:]
    cluster.state_of(cluster.submit("carla", "--gpus=1"), "RUNNING")
    assert "Invalid account" in cluster.refused("ben", "--gpus=1")
    cluster.on(cluster.head, "scancel --user=carla")
    assert cluster.playbook("people.yml").code == 0
    assert "Invalid account" in cluster.refused("carla", "--gpus=1")
    cluster.state_of(cluster.submit("ben", "--gpus=1"), "RUNNING")


def test_a_member_without_an_account_on_the_scheduler_is_named(cluster):
    run = cluster.playbook(
        "scheduler.yml",
        shared_storage_users=[{"name": "dora", "uid": 2004}],
        slurm_accounts=[{"name": "vision", "members": ["dora"]}],
    )
    assert (
        run.code == 2
        and "dora are members in slurm_accounts, but have no account on the scheduler. Run playbook people"
        in run.text
    )
    assert run.changed == {}
