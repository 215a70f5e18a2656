"""slurm_probe, run like in Ansible.

Slurm's commands are scripts; the job "runs" when squeue is asked.
"""

from __future__ import annotations

import base64
import json
import os

import pytest
from scripted_tools import run_module, scripts
from slurm_queue import JOBS, MARK, a_job

CONFIG = """ClusterName             = trainyard
SLURM_VERSION           = 22.05.8
TaskPlugin              = task/affinity
Slurmctld(primary) at n1 is UP
"""
NODE = "NodeName=%s Arch=x86_64 CPUAlloc=0 CPUTot=8 Gres=gpu:h100:4 NodeAddr=%s RealMemory=8000 AllocMem=0 State=%s Partitions=train%s\n"
PARTITION = "PartitionName=train AllowAccounts=ALL AllowQos=ALL Default=YES State=UP Nodes=n1,n2 TotalNodes=2 TRES=cpu=16\n"
PERSON = "nobody"
SEEN = {
    "node": "n1",
    "uid": 65534,
    "gid": 65534,
    "gpus": [0],
    "visible": 1,
    "devices": {"0": ["c", 195, 0, "ENXIO"]},
    "driver": False,
    "share": "",
}
OURS = " Reason=trainyard: verify: bad [root@2026-11-26T04:00:00]"


def a_probe(number, node, state="COMPLETED", reason="None", **changes):
    result = dict(SEEN, node=node, **changes)
    comment = (
        "trainyard:" + base64.urlsafe_b64encode(json.dumps(result).encode()).decode()
        if state == "COMPLETED"
        else ""
    )
    text = a_job(number, node if state != "PENDING" else "", state, PERSON)
    # The comment is the last field, the reason the eleventh.
    fields = text[:-1].split(MARK)
    fields[-2], fields[10] = comment, reason
    return MARK.join(fields) + "\n"


class Cluster:
    def __init__(self, folder, script):
        self.folder = folder
        for name, text in (
            ("config", CONFIG),
            (
                "nodes",
                NODE % ("n1", "n1", "IDLE+MAINTENANCE", "")
                + NODE % ("n2", "n2", "IDLE+MAINTENANCE", ""),
            ),
            ("partitions", PARTITION),
            ("jobs", ""),
            ("log", ""),
        ):
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "share").mkdir()
        os.chmod(folder / "share", 0o777)
        script(
            "scontrol",
            "case \"$*\" in *'show config'*) cat %(at)s/config;; *'show partitions'*) cat %(at)s/partitions;; "
            "*'show nodes'*) if [ -s %(at)s/submitted ] && [ -e %(at)s/nodes-after ]; then cat %(at)s/nodes-after; else cat %(at)s/nodes; fi;; "
            '*) echo "scontrol $*" >> %(at)s/log;; esac' % {"at": folder},
        )
        # What ran is gone after it was cancelled.
        script(
            "scancel",
            'echo "scancel $*" >> %(at)s/log; [ ! -s %(at)s/submitted ] || : > %(at)s/jobs'
            % {"at": folder},
        )
        script(
            "squeue", "[ -s %(at)s/submitted ] || exit 0\n" % {"at": folder} + JOBS % (MARK, folder)
        )
        script(
            "sbatch",
            'echo "sbatch $*" >> %(at)s/log; env > %(at)s/environment; number=$(($(cat %(at)s/submitted 2> /dev/null || echo 0) + 1)); '
            "echo $number > %(at)s/submitted; [ ! -e %(at)s/refuse ] || { cat %(at)s/refuse >&2; exit 1; }; echo $number"
            % {"at": folder},
        )

    def put(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def log(self, word=""):
        return [
            line
            for line in (self.folder / "log").read_text(encoding="utf-8").splitlines()
            if word in line
        ]


@pytest.fixture(name="cluster")
def fixture_cluster(tmp_path, monkeypatch):
    script = scripts(tmp_path, monkeypatch)
    # The person finds the scripts, too. After the options of runuser come env, -i and the
    # variables.
    script(
        "runuser",
        'shift 4\nfor word; do case $word in PATH=*) word=PATH=%s/bin:/usr/bin:/bin;; esac; set -- "$@" "$word"; shift; done\n'
        'exec env "$@"' % tmp_path,
    )
    return Cluster(tmp_path, script)


def act(cluster, **arguments):
    given = {
        "nodes": ["n1", "n2"],
        "person": PERSON,
        "account": "vision",
        "program": "print('job')\n",
        "timeout": 10,
    }
    return run_module("slurm_probe", dict(given, **arguments))


def verdicts(told):
    assert "probes" in told, told
    return [(each["node"], each["job"], each["verdict"], each["found"]) for each in told["probes"]]


def test_a_job_on_each_node(cluster):
    cluster.put("jobs", a_probe(1, "n1") + a_probe(2, "n2"))
    told = act(
        cluster,
        reservation="trainyard-verify",
        folder=str(cluster.folder / "share"),
        image="trainyard/training:1",
    )
    assert (
        verdicts(told)
        == [("n1", 1, "pass", "job 1 of nobody ran"), ("n2", 2, "pass", "job 2 of nobody ran")]
        and not told["changed"]
    )
    (first, second) = cluster.log("sbatch")
    assert (
        "--nodelist=n1 " in first
        and "--nodelist=n2 " in second
        and "--account=vision" in first
        and "--reservation=trainyard-verify" in first
    )
    cancel = "scancel --name=trainyard-probe --user=nobody"
    update = "scontrol update reservationname=trainyard-verify users%s=nobody"
    # Before and after; the person may use the reservation in between.
    assert [line for line in cluster.log() if line not in (first, second)] == [
        cancel,
        update % "+",
        cancel,
        update % "-",
    ]
    environment = (cluster.folder / "environment").read_text(encoding="utf-8")
    assert (
        "USER=nobody\n" in environment
        and "TRAINYARD_PROBE_PROGRAM=print('job')\n" in environment
        and "ANSIBLE" not in environment
    )
    asked = json.loads(environment.partition("TRAINYARD_PROBE=")[2].partition("\n")[0])
    assert (
        asked["node"] == "n2"
        and asked["image"] == "trainyard/training:1"
        and asked["seconds"] == 10
        and asked["all_devices"] == ["/dev/nvidia", "/dev/davinci"]
    )
    assert asked["folder"].startswith(
        str(cluster.folder / "share") + "/.trainyard-probe."
    ) and asked["folder"].endswith(asked["token"])
    assert os.listdir(cluster.folder / "share") == []


def test_the_folders_of_a_killed_run_are_removed(cluster):
    (cluster.folder / "share/.trainyard-probe.old").mkdir()
    (cluster.folder / "share/work").mkdir()
    cluster.put("jobs", a_probe(1, "n1"))
    assert (
        verdicts(act(cluster, nodes=["n1"], folder=str(cluster.folder / "share")))[0][2] == "pass"
    )
    assert os.listdir(cluster.folder / "share") == ["work"]


def test_a_job_that_never_starts_is_cancelled(cluster):
    cluster.put(
        "jobs",
        a_probe(1, "n1", "PENDING", "Resources") + a_probe(2, "n2", "PENDING", "AssocGrpGRES"),
    )
    told = act(cluster, folder=str(cluster.folder / "share"))
    assert verdicts(told) == [
        ("n1", 1, "fail", "job 1 of nobody did not start within 10 s: Resources"),
        ("n2", 2, "not_made", "job 2 of nobody did not start within 10 s: AssocGrpGRES"),
    ]
    assert (
        told["seconds"] >= 10
        and len(cluster.log("scancel")) == 2
        and os.listdir(cluster.folder / "share") == []
    )


def test_a_job_that_slurm_refuses(cluster):
    cluster.put(
        "refuse",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
    )
    assert verdicts(act(cluster, nodes=["n1"])) == [
        (
            "n1",
            None,
            "fail",
            "Slurm refuses the job of nobody: Requested node configuration is not available",
        )
    ]


def test_nodes_that_start_no_jobs(cluster):
    cluster.put(
        "nodes",
        NODE % ("n1", "n1", "IDLE+DRAIN", " Reason=new disk [root@2026-11-26T04:00:00]")
        + NODE % ("n2", "n2", "IDLE+DRAIN", OURS),
    )
    # Without a reservation, a resumed node would get other jobs.
    assert verdicts(act(cluster, nodes=["n1", "n2", "n3"])) == [
        ("n1", None, "not_made", "the node is idle, drain: new disk"),
        ("n2", None, "not_made", "the node is idle, drain: trainyard: verify: bad"),
        ("n3", None, "not_made", "the scheduler has no node of this name"),
    ]
    assert cluster.log("sbatch") == cluster.log("nodename") == []


def test_a_node_that_trainyard_has_drained_is_tried_and_stays_drained(cluster):
    cluster.put(
        "nodes",
        NODE % ("n1", "n1", "IDLE+DRAIN+MAINTENANCE", OURS)
        + NODE % ("n2", "n2", "DOWN+DRAIN+NOT_RESPONDING", OURS),
    )
    cluster.put("jobs", a_probe(1, "n1", uid=0))
    told = verdicts(act(cluster, reservation="trainyard-verify"))
    assert told[0][2] == "fail" and told[1][1:3] == (None, "not_made")
    assert [
        line for line in cluster.log() if "nodename" in line or "sbatch" in line or "users" in line
    ] == [
        "scontrol update reservationname=trainyard-verify users+=nobody",
        "scontrol update nodename=n1 state=resume",
        cluster.log("sbatch")[0],
        "scontrol update nodename=n1 state=drain reason=trainyard: verify: bad",
        "scontrol update reservationname=trainyard-verify users-=nobody",
    ]


def test_the_reason_of_a_node_that_the_job_took_out_of_service(cluster):
    cluster.put("jobs", a_probe(1, "n1", "FAILED") + a_probe(2, "n2"))
    cluster.put(
        "nodes-after",
        NODE % ("n1", "n1", "IDLE+DRAIN", " Reason=Prolog error [slurm@2026-11-26T04:00:00]")
        + NODE % ("n2", "n2", "IDLE", ""),
    )
    assert verdicts(act(cluster)) == [
        (
            "n1",
            1,
            "fail",
            "job 1 of nobody ended without a result: failed; the node is idle, drain: Prolog error",
        ),
        ("n2", 2, "pass", "job 2 of nobody ran"),
    ]


def test_a_folder_that_cannot_be_made(cluster):
    told = act(cluster, reservation="trainyard-verify", folder="/proc/1/none")
    assert told["failed"] and told["msg"].startswith(
        "nobody cannot create a folder in '/proc/1/none' on this host: "
    )
    # What was prepared is undone.
    assert cluster.log("users-=nobody") and cluster.log("sbatch") == []


def test_slurm_that_does_not_answer(cluster):
    (cluster.folder / "bin/scontrol").unlink()
    told = act(cluster)
    assert told["failed"] and told["cause"] == "not_installed"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"nodes": ["n[1-2]"]}, "nodes: 'n[1-2]' is not valid"),
        ({"person": "-x"}, "person: '-x' is not valid"),
        ({"account": "a,b"}, "account: 'a,b' is not valid"),
        ({"reservation": "a b"}, "reservation: 'a b' is not valid"),
        ({"folder": "share"}, "folder: 'share' is not an absolute path"),
        ({"timeout": 9}, "timeout: 9 is too low; use 10 or more"),
        (
            {"person": "noone-of-this-name"},
            "person: 'noone-of-this-name' has no account on this host",
        ),
    ],
)
def test_bad_options(cluster, arguments, said):
    assert act(cluster, **arguments)["msg"].startswith(said) and cluster.log() == []
