"""What site.yml and train.yml cost on two hosts of this machine: a table, and bench.json.

First run (bare hosts; Horovod is compiled where its image isn't kept from before), second run, run after a container was deleted: seconds,
tasks, module runs per host. And what
train.yml adds to the same horovodrun line typed by hand.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from whole_cluster import MODULE_RUN_SECONDS, MOVED_BYTES, WholeCluster  # the path has to be there first

LIMITS = {"second run seconds": 12, "second run module runs per host": 28, "second run changed": 0,
          **{"second run MB %s per host" % way: most / 1e6 for way, most in MOVED_BYTES.items()}, "train.yml adds seconds": 3}


def good(run):
    if run.code:
        sys.exit("bench: the playbook ended with exit code %d" % run.code)
    return run


def row(name, run):
    return {"run": name, "seconds": round(run.seconds, 1), "tasks": run.tasks, "changed": sum(len(tasks) for tasks in run.changed.values()),
            "module_runs": run.runs}


def by_hand(cluster):
    """The same horovodrun line, typed into the head's container."""
    hosts = ",".join("%s:1" % cluster.address[host] for host in cluster.hosts)
    begun = time.monotonic()
    cluster.inside(cluster.head, "cd /data1/share && env -u HOSTNAME HOROVOD_GLOO_IFACE=eth0 GLOO_SOCKET_IFNAME=eth0 "
                   "horovodrun -np 2 -H %s -p %d --disable-cache --network-interface eth0 "
                   "python3 /data1/share/.trainyard/examples/digits_horovod.py" % (hosts, cluster.port))
    return time.monotonic() - begun


def main():
    cluster = WholeCluster("bench", "172.30.76.0/24")
    rows = []
    # Of a bench that was killed.
    cluster.lab("down", "--keep")
    try:
        cluster.lab("up", "--inventory", str(cluster.inventory))
        rows.append(row("first run", good(cluster.site())))
        moved = cluster.moved_bytes()
        seconds = [good(cluster.site()) for _attempt in range(3)]
        now = cluster.moved_bytes()
        moved = {way: max(now[key] - moved[key] for key in now if key[1] == way) / len(seconds) for way in MOVED_BYTES}
        rows.append(row("second run", sorted(seconds, key=lambda run: run.seconds)[1]))
        module_run = cluster.module_run_seconds()
        cluster.on(cluster.peer, "docker rm --force %s" % cluster.container)
        rows.append(row("run after a container was deleted", good(cluster.site())))
        trains, hands = [], []
        for _attempt in range(3):
            trains.append(good(cluster.playbook("playbooks/train.yml")).seconds)
            hands.append(by_hand(cluster))
        added = statistics.median(trains) - statistics.median(hands)
    finally:
        if not os.environ.get("KEEP"):
            cluster.lab("down", "--keep")
    measured = {"second run seconds": rows[1]["seconds"], "second run module runs per host": max(rows[1]["module_runs"].values()),
                "second run changed": sum(len(tasks) for run in seconds for tasks in run.changed.values()),
                **{"second run MB %s per host" % way: round(most / 1e6, 1) for way, most in moved.items()},
                "train.yml adds seconds": round(added, 1)}
    verdict = {name: {"measured": measured[name], "limit": limit, "ok": measured[name] <= limit} for name, limit in LIMITS.items()}
    result = {"cpus": os.cpu_count(), "module_run_seconds": round(module_run, 2), "runs": rows, "verdict": verdict,
              "train": {"playbook_seconds": round(statistics.median(trains), 1), "by_hand_seconds": round(statistics.median(hands), 1)}}
    (ROOT / "bench.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    print("\n%-34s %8s %6s %8s  %s" % ("", "seconds", "tasks", "changed", "module runs"))
    for entry in rows:
        print("%-34s %8.1f %6d %8d  %s" % (entry["run"], entry["seconds"], entry["tasks"], entry["changed"], ", ".join(
            "%s %d" % pair for pair in sorted(entry["module_runs"].items()))))
    print("%-34s %8.1f\n%-34s %8.1f\n" % ("train.yml", result["train"]["playbook_seconds"], "the same line by hand", result["train"]["by_hand_seconds"]))
    print("one bare module run on both hosts takes %.2f s on this machine (%.2f s where the limits were set)" % (module_run, MODULE_RUN_SECONDS))
    for name, judged in verdict.items():
        print("%-34s %8.1f  at most %s: %s" % (name, judged["measured"], judged["limit"], "ok" if judged["ok"] else "TOO MUCH"))
    sys.exit(not all(judged["ok"] for judged in verdict.values()))


if __name__ == "__main__":
    main()
