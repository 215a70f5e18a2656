"""verify.yml measures with the tools in the image: with Horovod's all-reduce, and with
all_reduce_perf, which replays a real log because no host has a GPU.

What the replay of all_reduce_perf says to have reduced, mpirun sends from host to host by ssh, so
that the hosts' counters have something to count.
"""

from __future__ import annotations

import subprocess

import pytest
from whole_cluster import ROOT

# Low limits for two busy cores, on which 64 KiB may take 0.1 s. The test checks whether verify
# measures, not the speed of the network.
ASKED = {
    "verify_bandwidth_min_gb_s": 0.0001,
    "verify_bandwidth_peer_fraction": 0.01,
    "verify_bandwidth_drop_percent": 100,
}


def up_to_1_mib(log):
    """The log of a run with -e 1M, for which two hosts must move 98 MB instead of 100 GB."""
    lines, busbw = [], []
    for line in log.splitlines():
        words = line.split()
        is_row = len(words) == 13 and words[0].isdigit()
        if is_row and int(words[0]) > 1 << 20:
            continue
        if is_row:
            busbw += [float(words[7]), float(words[11])]
        if "Avg bus bandwidth" in line:
            line = "# Avg bus bandwidth    : %.6g" % (sum(busbw) / len(busbw))
        lines.append(line.replace("maxBytes 1073741824", "maxBytes 1048576"))
    return "\n".join(lines) + "\n"


LOG = up_to_1_mib(
    (ROOT / "tests/fixtures/all_reduce_perf/polaris-2node-8gpu.txt").read_text(encoding="utf-8")
)
ENOUGH = 120_000_000
# Four ranks per host. A single host has the first four, with the bus bandwidth of four ranks.
REPLAY = """#!/usr/bin/python3
# Built with libmpi, as far as the question to the image goes.
import os, re, sys
if "-h" in sys.argv:
    sys.exit("USAGE: all_reduce_perf [-g,--ngpus <gpus per thread>]")
hosts, busbw = os.environ.get("REPLAY_HOSTS", "alone").split(","), []
for line in open("/root/all_reduce_perf.log"):
    rank = re.match("#  Rank +([0-9]+)", line)
    if rank and int(rank[1]) >= 4 * len(hosts):
        continue
    if rank:
        line = re.sub(" on +[^ ]+ ", " on %s " % hosts[int(rank[1]) // 4], line)
    words = line.split()
    if len(hosts) == 1 and len(words) == 13 and words[0].isdigit():
        words[7], words[11] = ("%.2f" % (float(words[place]) * 1.5) for place in (6, 10))
        busbw += [float(words[7]), float(words[11])]
        line = " ".join(words) + "\\n"
    elif busbw and "Avg bus bandwidth" in line:
        line = "# Avg bus bandwidth    : %.6g\\n" % (sum(busbw) / len(busbw))
    print(line, end="")
"""
MPIRUN = """#!/usr/bin/python3
import os, subprocess, sys
hosts = [entry.split(":")[0] for entry in sys.argv[sys.argv.index("-H") + 1].split(",")]
send = "head -c %d /dev/zero"
for host in hosts[1:]:
    ssh = "ssh %%s %%s 'cat > /dev/null; %%s' > /dev/null" %% (sys.argv[sys.argv.index("plm_rsh_args") + 1], host, send)
    subprocess.run("%%s | %%s" %% (send, ssh), shell=True, check=True)
program = sys.argv.index("all_reduce_perf")
os.execvpe("all_reduce_perf", sys.argv[program:], dict(os.environ, REPLAY_HOSTS=",".join(hosts)))
"""
# Prints the utilization of four GPUs repeatedly, and fails for all other queries.
SMI = """#!/bin/sh
case "$*" in
  *-lms*) while :; do printf '0, 98\\n1, 97\\n2, 99\\n3, 96\\n'; sleep 0.2; done ;;
esac
"""


def checks(report, *ids):
    return {
        check["id"]: (check["verdict"], check["found"])
        for check in report["checks"]
        if check["id"] in ids
    }


def verdicts(report, check_id):
    found = {
        check["host"]: (check["verdict"], check["found"])
        for check in report["checks"]
        if check["id"] == check_id
    }
    print(check_id, found)
    return {host: verdict for host, (verdict, _found) in found.items()}


@pytest.mark.acceptance
def test_horovod_measures_where_it_is_asked_to(cluster):
    """As in an image with TensorFlow only: two hosts with two ranks each, through the port for
    jobs.
    """
    run = cluster.playbook(
        "playbooks/verify.yml", "-e", {"verify_bandwidth_tool": "horovod", **ASKED}
    )
    report = cluster.last_report()
    bandwidth = report["bandwidth"]
    assert run.code == 0 and (bandwidth["tool"], bandwidth["collective"]) == ("horovod", "horovod")
    assert [(each["id"], each["ranks"], each["passed"]) for each in bandwidth["runs"]] == [
        ("host:%s" % cluster.head, 2, True),
        ("host:%s" % cluster.peer, 2, True),
        ("cluster", 2, True),
    ]
    rows = [row["in_place"] for each in bandwidth["runs"] for row in each["rows"]]
    assert (
        len(rows) >= 9
        and {row["wrong"] for row in rows} == {0}
        and min(row["busbw_gb_s"] for row in rows) > 0
    )
    assert {
        verdict
        for verdict, _found in checks(report, "bandwidth-host", "bandwidth-cluster").values()
    } == {"pass"}
    # Gloo's ring under Horovod, checked with the counters of both hosts' interfaces.
    assert verdicts(report, "fabric-counters") == {cluster.head: "pass", cluster.peer: "pass"}


@pytest.fixture(name="replayed")
def fixture_replayed(cluster):
    def put(host, path, content):
        subprocess.run(
            [
                "docker",
                "exec",
                "-i",
                host,
                "docker",
                "exec",
                "-i",
                cluster.container,
                "sh",
                "-c",
                "cat > %s && chmod 755 %s" % (path, path),
            ],
            input=content,
            text=True,
            check=True,
        )

    def replay(log, moved=ENOUGH, **more):
        for host in cluster.hosts:
            put(host, "/root/all_reduce_perf.log", log)
            put(host, "/usr/local/bin/all_reduce_perf", REPLAY)
            put(host, "/usr/local/bin/mpirun", MPIRUN % moved)
            put(host, "/usr/local/bin/nvidia-smi", SMI)
        # The output of nvidia-smi in the containers.
        run = cluster.playbook(
            "playbooks/verify.yml",
            "-e",
            {
                "__verify_bandwidth_gpus": {host: 4 for host in cluster.hosts},
                "verify_bandwidth_drop_percent": 100,
                **more,
            },
        )
        return run, cluster.last_report()

    yield replay
    for host in cluster.hosts:
        cluster.inside(
            host,
            "rm -f /root/all_reduce_perf.log /usr/local/bin/all_reduce_perf /usr/local/bin/mpirun /usr/local/bin/nvidia-smi",
        )


def watchers_have_ended(cluster):
    """Return whether no process that watched the hosts is left."""
    # In brackets, so that the pattern does not match the shells that have it in their own command
    # line.
    return [
        cluster.inside(host, 'pgrep -f "[h]ost_watch.py|[n]vidia-smi"', check=False).out
        for host in cluster.hosts
    ] == ["", ""]


@pytest.mark.acceptance
def test_a_good_run_of_all_reduce_perf_is_in_the_report(cluster, replayed):
    run, report = replayed(LOG)
    assert run.code == 0 and (report["bandwidth"]["tool"], report["bandwidth"]["collective"]) == (
        "all_reduce_perf",
        "nccl",
    )
    whole = next(each for each in report["bandwidth"]["runs"] if each["id"] == "cluster")
    assert (whole["ranks"], whole["passed"], whole["judged"]) == (
        8,
        True,
        ["complete", "correct", "ranks", "hosts"],
    )
    assert len(whole["rows"]) > 10 and whole["rows"][0]["out_of_place"]["wrong"] == 0
    assert {
        verdict
        for verdict, _found in checks(report, "bandwidth-host", "bandwidth-cluster").values()
    } == {"pass"}
    for check_id in ("gpus-busy", "fabric-counters"):
        assert verdicts(report, check_id) == {cluster.head: "pass", cluster.peer: "pass"}
    assert report["blame"] == [] and watchers_have_ended(cluster)


@pytest.mark.acceptance
def test_a_run_of_all_reduce_perf_whose_data_went_another_way(cluster, replayed):
    """The run is as fast as the good one, but the fabric's cards carried only a tenth of
    the data.
    """
    run, report = replayed(LOG, ENOUGH // 10)
    assert run.code == 2 and {
        verdict
        for verdict, _found in checks(report, "bandwidth-host", "bandwidth-cluster").values()
    } == {"pass"}
    assert verdicts(report, "fabric-counters") == {cluster.head: "fail", cluster.peer: "fail"}


@pytest.mark.acceptance
def test_who_is_to_blame_for_a_bad_run_of_all_reduce_perf(cluster, replayed):
    """Its values are wrong and it is too slow, which is the verdict.

    The PyTorch job, which is also too slow, names the link.
    """
    run, report = replayed(
        LOG.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 5 FAILED"),
        verify_bandwidth_min_gb_s=1000,
    )
    assert (
        run.code == 2
        and report["verdict"] == "fail"
        and report["bandwidth"]["tool"] == "all_reduce_perf"
    )
    runs = {each["id"]: each for each in report["bandwidth"]["runs"]}
    assert [each for each in runs if each.startswith(("host:", "cluster"))] == [
        "host:%s" % cluster.head,
        "host:%s" % cluster.peer,
        "cluster",
    ]
    assert runs["cluster"]["ranks"] == 8
    verdict, found = checks(report, "bandwidth-cluster")["bandwidth-cluster"]
    assert (
        verdict == "fail"
        and "results are wrong" in found
        and "don't train on these GPUs" in found
        and "by PyTorch's all-reduce" in found
    )
    assert [(entry["kind"], entry["names"]) for entry in report["blame"]] == [
        ("link", list(cluster.hosts))
    ]
    assert report["suspect"] == [cluster.peer]
    # The hosts' cards carried the reported data, and the GPUs were in use.
    for check_id in ("gpus-busy", "fabric-counters"):
        assert verdicts(report, check_id) == {cluster.head: "pass", cluster.peer: "pass"}
    assert watchers_have_ended(cluster)
