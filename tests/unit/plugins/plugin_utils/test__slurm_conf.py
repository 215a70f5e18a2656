"""slurm.conf is read as slurm reads it, and a change of it restarts no more than it must."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_conf import (
    distance,
    effect,
    expand,
    gpus_of,
    parse_conf,
    reach,
)

CONF = """# Heading
ClusterName=c
KillWait=30
SelectType=select/cons_tres
SlurmctldParameters=enable_configless
NodeName=a NodeAddr=10.0.0.1 CPUs=8 RealMemory=1000 Gres=gpu:h100:4 Feature=h100 Weight=5
NodeName=b NodeAddr=10.0.0.2 CPUs=8 RealMemory=1000 Gres=gpu:h100:4 Feature=h100 Weight=5
PartitionName=train Nodes=a,b Default=YES
"""
GRES = "NodeName=a Name=gpu Type=h100 File=/dev/nvidia[0-3]\nNodeName=b Name=gpu Type=h100 File=/dev/nvidia[0-3]\n"
OLD, NEW = "22.05", "24.11"
NOTHING = (False, False, [])


def change(slurm=CONF, release=OLD, nodes=None, before=CONF, **more):
    old = dict({"slurm": before, "gres": GRES, "cgroup": "ConstrainCores=yes\n"})
    new = dict(old, slurm=slurm, **more)
    return effect(old, new, release, nodes or {"a": release, "b": release})


def told(*arguments, **more):
    found = change(*arguments, **more)
    return found["restart_slurmctld"], found["reconfigure"], found["restart_slurmd"]


@pytest.mark.parametrize(
    "names, expected",
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10]-x", ["n08-x", "n09-x", "n10-x"]),
        ("a,r[1-2]n[1-2]", ["a", "r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_host_lists(names, expected):
    assert expand(names) == expected


@pytest.mark.parametrize(
    "gres, count",
    [
        ("gpu:h100:4", 4),
        ("gpu:h100:4,gpu:a100:2", 6),
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:h100", 1),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:2(S:0)", 2),
        ("shard:32,gpu:1", 1),
        ("nic:2", 0),
        ("", 0),
    ],
)
def test_number_of_gpus(gres, count):
    assert gpus_of({"gres": gres}) == count and gpus_of({}) == 0


def test_a_file_as_people_write_it():
    found = parse_conf(
        'clustername = c # ours\nSchedulerParameters="bf_interval=5, x"\nNodeName=DEFAULT CPUs=4\nNodeName=n[1-2] \\\n  RealMemory=10\n'
        "SlurmctldHost=a\nSlurmctldHost=b\nPartitionName=p Nodes=n[1-2]\n"
    )
    assert found["options"]["clustername"] == "c" and found["options"]["slurmctldhost"] == "a,b"
    assert found["options"]["schedulerparameters"] == "bf_interval=5, x"
    assert found["nodes"] == {
        "n1": {"cpus": "4", "realmemory": "10"},
        "n2": {"cpus": "4", "realmemory": "10"},
    }
    assert found["partitions"]["p"]["nodes"] == "n[1-2]" and parse_conf(None)["lines"] == []


def test_the_first_file():
    found = effect({}, {"slurm": CONF}, OLD, {"a": OLD, "b": OLD})
    assert (
        found["first"]
        and found["restart_slurmctld"]
        and found["restart_slurmd"] == ["a", "b"]
        and not found["reconfigure"]
    )


def test_no_change():
    assert told() == NOTHING
    # Comments and blanks are none.
    assert told("# Other\n\n" + CONF.replace("=30", "=30  # seconds")) == NOTHING
    assert told(gres="# x\n" + GRES, cgroup="# y\nConstrainCores=yes\n") == NOTHING


@pytest.mark.parametrize("release", [OLD, NEW])
@pytest.mark.parametrize(
    "before, after",
    [
        ("KillWait=30", "KillWait=60"),
        ("Default=YES", "Default=YES MaxTime=60"),
        ("Nodes=a,b", "Nodes=a"),
        ("Feature=h100 Weight=5\nNodeName=b", "Feature=h100,fast Weight=2\nNodeName=b"),
        ("PartitionName=train", "PartitionName=dev Nodes=a\nPartitionName=train"),
    ],
)
def test_what_every_release_reads_anew(release, before, after):
    assert told(CONF.replace(before, after), release) == (False, True, [])


def test_a_key_that_slurmctld_reads_at_start():
    for key in (
        "MaxJobCount=5",
        "AccountingStorageEnforce=limits",
        "SchedulerParameters=bf_interval=9",
        "PriorityType=priority/basic",
    ):
        # The nodes must get the file too.
        assert told(CONF + key + "\n") == (True, True, []), key
        assert told(CONF + key + "\n", NEW) == (False, True, []), key


def test_a_plugin_that_both_load_at_start():
    after = CONF.replace("cons_tres", "linear")
    assert told(after) == (True, False, ["a", "b"])
    assert told(after, NEW) == (False, True, [])
    assert told(CONF + "ProctrackType=proctrack/cgroup\n") == (True, False, ["a", "b"])
    assert told(CONF + "TaskPlugin=task/cgroup\n") == (True, False, ["a", "b"])
    # A plugin of slurmctld alone.
    assert told(CONF + "JobSubmitPlugins=lua\n") == (True, True, [])


def test_what_no_release_reads_anew():
    for key in ("SlurmctldPort=7000", "AuthType=auth/none", "StateSaveLocation=/x"):
        for release in (OLD, NEW):
            assert told(CONF + key + "\n", release) == (True, False, ["a", "b"]), key


def test_an_added_and_a_removed_node():
    more = CONF + "NodeName=c NodeAddr=10.0.0.3 CPUs=8\n"
    found = change(more, nodes={"a": OLD, "b": OLD, "c": OLD})
    assert (
        found["added"] == ["c"]
        and found["restart_slurmctld"]
        and found["restart_slurmd"] == ["a", "b", "c"]
        and not found["reconfigure"]
    )
    assert told(more, NEW, nodes={"a": NEW, "b": NEW, "c": NEW}) == (False, True, [])
    found = change(CONF, before=more)
    assert found["removed"] == ["c"] and found["restart_slurmctld"]
    assert change(CONF.replace("PartitionName=train", "PartitionName=x"))["removed_partitions"] == [
        "train"
    ]


def test_a_node_that_changed():
    after = CONF.replace("NodeAddr=10.0.0.2 CPUs=8", "NodeAddr=10.0.0.2 CPUs=16")
    assert told(after) == (True, False, ["a", "b"]) and told(after, NEW) == (False, True, [])


def test_mixed_releases():
    more = CONF + "NodeName=c NodeAddr=10.0.0.3 CPUs=8\n"
    # The new slurmctld needs no restart, the older slurmd does.
    assert told(more, "23.11", nodes={"a": "22.05", "b": "23.11", "c": "23.11"}) == (
        False,
        True,
        ["a"],
    )


def test_gres_conf():
    after = GRES.replace(
        "NodeName=b Name=gpu Type=h100 File=/dev/nvidia[0-3]",
        "NodeName=b Name=gpu Type=h100 File=/dev/nvidia[1-4]",
    )
    # Only the host whose devices changed.
    assert told(gres=after) == (False, True, ["b"]) and told(gres=after, release=NEW) == (
        False,
        True,
        [],
    )
    assert told(gres=GRES + "Name=nic File=/dev/x\n") == (False, True, ["a", "b"])


def test_cgroup_conf():
    assert (
        told(cgroup="ConstrainCores=no\n")
        == (False, True, [])
        == told(cgroup="ConstrainCores=no\n", release=NEW)
    )
    # slurmctld hands out what it read last, so it is reconfigured although every slurmd is
    # restarted.
    assert told(cgroup="ConstrainCores=yes\nCgroupPlugin=cgroup/v1\n") == (False, True, ["a", "b"])
    assert told(cgroup="ConstrainCores=yes\nCgroupPlugin=disabled\n", release=NEW) == (
        False,
        True,
        [],
    )
    assert told(mpi="PMIxDebug=1\n") == (False, True, [])


def test_changes_under_which_no_job_may_run():
    after = CONF + "JobAcctGatherType=jobacct_gather/cgroup\n"
    assert change(after)["needs_idle"] and not change(after, NEW)["needs_idle"]
    assert change(CONF + "SwitchType=switch/x\n", NEW)["needs_idle"]
    assert not change(CONF + "KillWait=9\n")["needs_idle"]


@pytest.mark.parametrize(
    "older, newer, steps",
    [
        ("22.05", "24.11", 4),
        ("22.05", "23.11", 2),
        ("23.11", "24.11", 2),
        ("22.05", "22.05", 0),
        ("19.05", "22.05", None),
    ],
)
def test_distance(older, newer, steps):
    assert distance(older, newer) == steps
    assert reach("22.05") == reach("24.05") == 2 and reach("24.11") == 3
