"""verify.yml measures with what the image has: Horovod's own all-reduce for real, and all_reduce_perf, whose words are a real log's as no host has a GPU."""

from __future__ import annotations

import subprocess

import pytest
from whole_cluster import ROOT

# As slow as two cores that have other work: whether it measures is asked here, not how fast the network is.
ASKED = {"verify_bandwidth_min_gb_s": 0.001, "verify_bandwidth_peer_fraction": 0.02, "verify_bandwidth_drop_percent": 100}
LOG = (ROOT / "tests/fixtures/all_reduce_perf/polaris-2node-8gpu.txt").read_text(encoding="utf-8")
# Four ranks a host. For one host alone it has the first four, and the bus bandwidth that four ranks have.
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
import os, sys
hosts = [entry.split(":")[0] for entry in sys.argv[sys.argv.index("-H") + 1].split(",")]
program = sys.argv.index("all_reduce_perf")
os.execvpe("all_reduce_perf", sys.argv[program:], dict(os.environ, REPLAY_HOSTS=",".join(hosts)))
"""


def checks(report, *ids):
    return {check["id"]: (check["verdict"], check["found"]) for check in report["checks"] if check["id"] in ids}


def test_horovod_measures_where_it_is_asked_to(cluster):
    """As in an image with TensorFlow alone. Two hosts, two ranks each, over the port that jobs use."""
    run = cluster.playbook("playbooks/verify.yml", "-e", {"verify_bandwidth_tool": "horovod", **ASKED})
    report = cluster.last_report()
    bandwidth = report["bandwidth"]
    assert run.code == 0 and (bandwidth["tool"], bandwidth["collective"]) == ("horovod", "horovod")
    assert [(each["id"], each["ranks"], each["passed"]) for each in bandwidth["runs"]] == [
        ("host:%s" % cluster.head, 2, True), ("host:%s" % cluster.peer, 2, True), ("cluster", 2, True)]
    rows = [row["in_place"] for each in bandwidth["runs"] for row in each["rows"]]
    assert len(rows) >= 9 and {row["wrong"] for row in rows} == {0} and min(row["busbw_gb_s"] for row in rows) > 0
    assert {verdict for verdict, _found in checks(report, "bandwidth-host", "bandwidth-cluster").values()} == {"pass"}


@pytest.fixture(name="replayed")
def fixture_replayed(cluster):
    def put(host, path, content):
        subprocess.run(["docker", "exec", "-i", host, "docker", "exec", "-i", cluster.container, "sh", "-c", "cat > %s && chmod 755 %s" % (path, path)],
                       input=content, text=True, check=True)

    def replay(log):
        for host in cluster.hosts:
            put(host, "/root/all_reduce_perf.log", log)
            put(host, "/usr/local/bin/all_reduce_perf", REPLAY)
            put(host, "/usr/local/bin/mpirun", MPIRUN)
        # What nvidia-smi would tell of the containers.
        run = cluster.playbook("playbooks/verify.yml", "-e", {"__verify_bandwidth_gpus": {host: 4 for host in cluster.hosts}})
        return run, cluster.last_report()

    yield replay
    for host in cluster.hosts:
        cluster.inside(host, "rm -f /root/all_reduce_perf.log /usr/local/bin/all_reduce_perf /usr/local/bin/mpirun")


@pytest.mark.acceptance
def test_a_good_run_of_all_reduce_perf_is_in_the_report(replayed):
    run, report = replayed(LOG)
    assert run.code == 0 and (report["bandwidth"]["tool"], report["bandwidth"]["collective"]) == ("all_reduce_perf", "nccl")
    whole = next(each for each in report["bandwidth"]["runs"] if each["id"] == "cluster")
    assert (whole["ranks"], whole["passed"], whole["judged"]) == (8, True, ["complete", "correct", "ranks", "hosts"])
    assert len(whole["rows"]) > 10 and whole["rows"][0]["out_of_place"]["wrong"] == 0
    assert {verdict for verdict, _found in checks(report, "bandwidth-host", "bandwidth-cluster").values()} == {"pass"}


def test_a_run_of_all_reduce_perf_with_wrong_values_fails_the_verdict(replayed):
    """However fast it was."""
    run, report = replayed(LOG.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 5 FAILED"))
    assert run.code == 2 and report["verdict"] == "fail" and report["bandwidth"]["tool"] == "all_reduce_perf"
    verdict, found = checks(report, "bandwidth-cluster")["bandwidth-cluster"]
    assert verdict == "fail" and "results are wrong" in found and "don't train on these GPUs" in found
