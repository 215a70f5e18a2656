"""What the collection costs on two hosts of this machine: tables, and bench.json.

Containers for hosts: first run of site.yml (bare hosts, Horovod is compiled), second run, run after
a container was deleted, teardown and a second one: seconds, tasks, module runs per host; and what
train.yml adds to the same horovodrun line typed by hand. Virtual machines for hosts: `make lab-vm`
by stage, a client's boot until the share is mounted, and what NFS leaves of the disk that it
serves. Containers that look as if they had GPUs: the whole GPU stack once and again on one of them,
over ssh, from the tests' repository of NVIDIA's kind; and what parsing the answer of eight GPUs and
judging 100 kB of a bandwidth test's log take. Simulated hosts: how long it takes until verify names
who is to blame for a bandwidth that falls short, where a measurement takes a second and rounds of
disjoint groups run side by side. And what judging the input takes for 64 and 1024 hosts, and a
second run of site.yml the controller for 8, 16 and 64 hosts that are answers only. And Slurm on two
hosts: the installation, a job with and without its container, a queue of 1,000 jobs, a plan of 500
people. And what Prometheus needs for 64 hosts with eight GPUs each. And what `make lab`, `make
test-fast` and `make test` take in a fresh clone. `tests/bench.py containers` (or `virtual`, `gpus`,
`verdict`, `input`, `controller`, `slurm`, `monitoring`, `make`) measures one of them alone.

A limit is the aim for a quiet machine where a module run takes 0.2 s. What is over it is marked,
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

sys.path.insert(0, str(ROOT / ".dev"))

# The paths have to be there first.
import monitoring_load
from ansible_collections.trainyard.gpu.plugins.module_utils._all_reduce import answer
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import parse_query
from eight_gpus import eight_gpus
from scheduled_lab import IMAGE, PEOPLE, ScheduledLab
from simulated_hosts import SimulatedHosts
from stand_in_cluster import StandInCluster
from stand_in_hosts import name_of
from virtual_cluster import VirtualCluster
from whole_cluster import BIN, MODULE_RUN_SECONDS, MOVED_BYTES, WholeCluster

# A yardstick is one bare module run on both hosts. What takes this many of them takes as long on
# any machine.
LIMITS = {
    "second run yardsticks": 32,
    "second run module runs per host": 10,
    "second run changed": 0,
    "second teardown module runs": 20,
    **{"second run MB %s per host" % way: most / 1e6 for way, most in MOVED_BYTES.items()},
    "train.yml adds seconds": 3,
}
GPU_LIMITS = {
    "second run seconds": 3,
    "second run module runs": 4,
    "second run changed": 0,
    "eight GPUs parsed ms": 50,
    "100 kB of log judged ms": 50,
}
# All pairs of n hosts are n-1 rounds; what is more is measured again, or was tried by halving.
VERDICT_LIMITS = {
    "64 hosts, slow card: seconds": 16,
    "64 hosts, slow link: seconds": 16,
    "64 hosts, none to blame: seconds": 72,
    "64 hosts: CPU ms": 500,
}

# Measured 1.5 s and 4.5 s, of which 1.2 s are Ansible's start.
INPUT_LIMITS = {"input of 64 hosts: CPU seconds": 4, "input of 1024 hosts: CPU seconds": 40}

# Measured 2.8 % and 230 MB. MemoryMax of the unit is 2 GB.
MONITORING_LIMITS = {
    "percent of a core": 5,
    "MB of memory": 350,
    "interval of 99 % in s": 15.1,
    "hosts that were not read": 0,
}

CONTROLLER_HOSTS = (8, 16, 64)
# Linear: a host of 64 costs what one of 8 costs.
CONTROLLER_LIMITS = {
    "second run tasks, 2 hosts": 44,
    "second run module runs per host": 10,
    "64 hosts: CPU seconds per host": 4,
    "64 hosts to 8: per host": 1.2,
}

MAKE_LIMITS = {"make lab: seconds": 360, "make test-fast: seconds": 180, "make test: seconds": 1500}

# The aims of issue 27. The memory of slurmctld is reported only.
SLURM_LIMITS = {
    "install on two bare hosts: seconds": 120,
    "a container adds to a job: seconds": 3,
    "squeue, 1,000 jobs: seconds": 0.5,
    "sbatch, 1,000 jobs: seconds": 0.5,
    "500 people applied: seconds": 20,
    "500 people unchanged: seconds": 2,
}
SLURM_JOBS = 1000


def good(run):
    if run.code:
        sys.exit("bench: the playbook ended with exit code %d" % run.code)
    return run


def row(name, run):
    return {
        "run": name,
        "seconds": round(run.seconds, 1),
        "tasks": run.tasks,
        "changed": sum(len(tasks) for tasks in run.changed.values()),
        "module_runs": run.runs,
    }


def by_hand(cluster):
    """The same horovodrun line, typed into the head's container."""
    hosts = ",".join("%s:1" % cluster.address[host] for host in cluster.hosts)
    begun = time.monotonic()
    cluster.inside(
        cluster.head,
        "cd /data1/share && env -u HOSTNAME HOROVOD_GLOO_IFACE=eth0 GLOO_SOCKET_IFNAME=eth0 "
        "horovodrun -np 2 -H %s -p %d --disable-cache --network-interface eth0 "
        "python3 /data1/share/.trainyard/examples/digits_horovod.py" % (hosts, cluster.port),
    )
    return time.monotonic() - begun


def containers():
    """Figures of the runs on containers for hosts, each limit's verdict among them."""
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
        moved = {
            way: max(now[key] - moved[key] for key in now if key[1] == way) / len(seconds)
            for way in MOVED_BYTES
        }
        rows.append(row("second run", sorted(seconds, key=lambda run: run.seconds)[1]))
        module_run = cluster.module_run_seconds()
        cluster.on(cluster.peer, "docker rm --force %s" % cluster.container)
        rows.append(row("run after a container was deleted", good(cluster.site())))
        # One after the other, and more of them than of the rest: a job's own seconds vary by more
        # than what is looked for.
        trains, hands = [], []
        for _attempt in range(7):
            trains.append(good(cluster.playbook("playbooks/train.yml")).seconds)
            hands.append(by_hand(cluster))
        added = statistics.median(trains) - statistics.median(hands)
        rows.append(row("teardown", good(cluster.playbook("playbooks/teardown.yml"))))
        rows.append(row("teardown again", good(cluster.playbook("playbooks/teardown.yml"))))
    finally:
        if not os.environ.get("KEEP"):
            cluster.lab("down", "--keep")
    measured = {
        "second run yardsticks": round(rows[1]["seconds"] / module_run, 1),
        "second run module runs per host": max(rows[1]["module_runs"].values()),
        "second run changed": sum(len(tasks) for run in seconds for tasks in run.changed.values()),
        "second teardown module runs": sum(rows[-1]["module_runs"].values()),
        **{"second run MB %s per host" % way: round(most / 1e6, 1) for way, most in moved.items()},
        "train.yml adds seconds": round(added, 1),
    }
    return {
        "module_run_seconds": round(module_run, 2),
        "runs": rows,
        "verdict": judge(measured, LIMITS),
        "train": {
            "playbook_seconds": round(statistics.median(trains), 1),
            "by_hand_seconds": round(statistics.median(hands), 1),
        },
    }


def tell_runs(result):
    print("\n%-34s %8s %6s %8s  %s" % ("", "seconds", "tasks", "changed", "module runs"))
    for entry in result["runs"]:
        print(
            "%-34s %8.1f %6d %8d  %s"
            % (
                entry["run"],
                entry["seconds"],
                entry["tasks"],
                entry["changed"],
                ", ".join("%s %d" % pair for pair in sorted(entry["module_runs"].items())),
            )
        )


def tell_verdict(result):
    for name, judged in result["verdict"].items():
        print(
            "%-34s %8.1f  at most %s: %s"
            % (name, judged["measured"], judged["limit"], "ok" if judged["ok"] else "TOO MUCH")
        )


def tell_gpus(result):
    tell_runs(result)
    tell_verdict(result)


def tell_containers(result):
    tell_runs(result)
    print(
        "%-34s %8.1f\n%-34s %8.1f\n"
        % (
            "train.yml",
            result["train"]["playbook_seconds"],
            "the same line by hand",
            result["train"]["by_hand_seconds"],
        )
    )
    print(
        "one bare module run on both hosts takes %.2f s on this machine (%.2f s where the limits were set)"
        % (result["module_run_seconds"], MODULE_RUN_SECONDS)
    )
    tell_verdict(result)


def whole_way(cluster):
    """Run what `make lab-vm` runs, its lines on the terminal.

    Returns the seconds by stage that its summary tells.
    """
    text = []
    with subprocess.Popen(
        [
            str(BIN / "python"),
            "-u",
            "lab/lab.py",
            "run",
            "--virtual",
            "--name",
            cluster.name,
            "--subnet",
            cluster.subnet,
            "--state",
            str(cluster.lab_state),
            "--inventory",
            str(cluster.inventory),
        ],
        cwd=ROOT,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            text.append(line)
    if process.returncode:
        sys.exit(
            "bench: the way to a finished job on virtual hosts ended with exit code %d"
            % process.returncode
        )
    return {
        stage: int(seconds)
        for stage, seconds in re.findall(
            r"^(lab|site\.yml|train\.yml) +(\d+)$", "".join(text[-30:]), re.MULTILINE
        )
    }


def virtual():
    """Figures of virtual machines for hosts."""
    cluster = VirtualCluster("bench", "172.30.76.0/24")
    cluster.lab("down", "--keep")
    try:
        stages = whole_way(cluster)
        speeds = {
            kind: json.loads(
                cluster.on(host, "cat /var/lib/trainyard/shared_storage.speed.json").out
            )["speed"]
            for kind, host in (("disk", cluster.server), ("nfs", cluster.client))
        }
        cluster.wait_for_boot(cluster.client, cluster.reboot(cluster.client))
        active = cluster.on(
            cluster.client,
            "systemctl show --property=ActiveEnterTimestampMonotonic --value data1-share.mount",
        ).out
    finally:
        if not os.environ.get("KEEP"):
            cluster.lab("down", "--keep")
    return {
        "stages": stages,
        "speeds": speeds,
        "boot_to_mount_seconds": round(int(active) / 1e6, 1),
    }


def tell_virtual(result):
    print("\n%-34s %8s" % ("make lab-vm", "seconds"))
    for stage, seconds in result["stages"].items():
        print("%-34s %8d" % (stage, seconds))
    print("%-34s %8.1f" % ("client: kernel's start to mount", result["boot_to_mount_seconds"]))
    print("\n%-34s %8s %8s" % ("the share", "disk", "by NFS"))
    for name, unit in (
        ("write", "mib_per_second"),
        ("read", "mib_per_second"),
        ("small_write", "files_per_second"),
        ("small_read", "files_per_second"),
    ):
        print(
            "%-34s %8.1f %8.1f"
            % (
                "%s, %s" % (name.replace("_", " files: "), unit.replace("_", " ")),
                *(result["speeds"][kind]["%s_%s" % (name, unit)] for kind in ("disk", "nfs")),
            )
        )


def milliseconds(work, text):
    """What a parser takes for a text, as a rule."""
    seconds = []
    for _attempt in range(20):
        begun = time.perf_counter()
        work(text)
        seconds.append(time.perf_counter() - begun)
    return round(1000 * statistics.median(seconds), 1)


def gpus():
    """Figures of the whole GPU stack: scenario upgrade's hosts and versions, and a CUDA toolkit, on
    hosts of the lab, so over ssh.
    """
    cluster = WholeCluster("bench", "172.30.76.0/24")
    rows = []
    cluster.lab("down", "--keep")
    with tempfile.TemporaryDirectory() as scratch:
        scenario = (
            (ROOT / "molecule/upgrade/molecule.yml")
            .read_text(encoding="utf-8")
            .replace("${MOLECULE_EPHEMERAL_DIRECTORY}", scratch)
        )
        asked = json.dumps(
            dict(
                yaml.safe_load(scenario)["provisioner"]["inventory"]["group_vars"]["cluster"],
                cuda_toolkit_versions=["12.4.1"],
            )
        )
        try:
            cluster.lab("up", "--inventory", str(cluster.inventory))
            good(
                cluster.playbook(
                    "molecule/upgrade/prepare.yml",
                    environment={
                        "MOLECULE_EPHEMERAL_DIRECTORY": scratch,
                        "MOLECULE_PROJECT_DIRECTORY": str(ROOT),
                    },
                )
            )
            stack = ["playbooks/gpu_stack.yml", "--limit", cluster.head, "--extra-vars", asked]
            rows.append(row("GPU stack", good(cluster.playbook(*stack))))
            seconds = [good(cluster.playbook(*stack)) for _attempt in range(3)]
            rows.append(row("second run", sorted(seconds, key=lambda run: run.seconds)[1]))
        finally:
            if not os.environ.get("KEEP"):
                cluster.lab("down", "--keep")
    log = (ROOT / "tests/fixtures/nccl-other/other-all_gather-patched-inline-prefix.txt").read_text(
        encoding="utf-8"
    )
    measured = {
        "second run seconds": rows[1]["seconds"],
        "second run module runs": max(rows[1]["module_runs"].values()),
        "second run changed": sum(len(tasks) for run in seconds for tasks in run.changed.values()),
        "eight GPUs parsed ms": milliseconds(parse_query, eight_gpus()),
        "100 kB of log judged ms": milliseconds(answer, log),
    }
    return {"runs": rows, "verdict": judge(measured, GPU_LIMITS)}


def verdict():
    """Figures of simulated hosts, by a clock that goes on by a second with each round."""
    rows, cpu = [], 0.0
    for count in (8, 16, 32, 64):
        for name, culprit in (
            ("slow card", {"cards": [count // 3]}),
            ("slow link", {"links": [(count // 3, count // 3 + 1)]}),
            ("none to blame", {"usual": 0.5}),
        ):
            cluster = SimulatedHosts(count, **culprit)
            begun = time.process_time()
            found = cluster.blamed()
            cpu = time.process_time() - begun
            if len(found["blame"]) != len(culprit) - ("usual" in culprit):
                sys.exit("bench: %d hosts, %s: %s" % (count, name, found))
            rows.append(
                {
                    "hosts": count,
                    "culprit": name,
                    "seconds": len(cluster.rounds),
                    "measured": sum(len(groups) for groups in cluster.rounds),
                    "pairs": count * (count - 1) // 2,
                }
            )
    measured = {
        "%d hosts, %s: seconds" % (entry["hosts"], entry["culprit"]): entry["seconds"]
        for entry in rows
    }
    measured["64 hosts: CPU ms"] = round(1000 * cpu, 1)
    return {"rows": rows, "verdict": judge(measured, VERDICT_LIMITS)}


def tell_simulated(result):
    print(
        "\n%-34s %8s %8s %8s" % ("who is to blame, simulated hosts", "seconds", "measured", "pairs")
    )
    for entry in result["rows"]:
        print(
            "%-34s %8d %8d %8d"
            % (
                "%d hosts, %s" % (entry["hosts"], entry["culprit"]),
                entry["seconds"],
                entry["measured"],
                entry["pairs"],
            )
        )
    tell_verdict(result)


def judged_input():
    """Processor time of `inventory_check` alone, for hosts that differ in their address."""
    rows, measured = [], {}
    for count in (64, 1024):
        with tempfile.TemporaryDirectory() as scratch:
            hosts = {
                "node-%04d" % number: {
                    "ansible_host": "10.0.%d.%d" % (number // 250, number % 250 + 1),
                    "cluster_slots": 8,
                }
                for number in range(count)
            }
            shared = {
                "cluster_network": "10.0.0.0/16",
                "nfs_server_clients": ["10.0.0.0/16"],
                "nccl_version": "2.21.5-1+cuda12.4",
                "training_image_base": "nvcr.io/nvidia/pytorch:25.02-py3",
                "train_environment": {"NCCL_DEBUG": "INFO"},
            }
            inventory = Path(scratch) / "hosts.yml"
            inventory.write_text(
                yaml.safe_dump({"cluster": {"hosts": hosts, "vars": shared}}), encoding="utf-8"
            )
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [
                    str(BIN / "ansible-playbook"),
                    "-i",
                    str(inventory),
                    "playbooks/inventory_check.yml",
                ],
                cwd=ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
        rows.append(
            {
                "hosts": count,
                "cpu_seconds": seconds,
                "ms_per_host": round(1000 * seconds / count, 1),
            }
        )
        measured["input of %d hosts: CPU seconds" % count] = seconds
    return {"rows": rows, "verdict": judge(measured, INPUT_LIMITS)}


def tell_input(result):
    print("\n%-34s %12s %12s" % ("inventory_check", "CPU seconds", "ms per host"))
    for entry in result["rows"]:
        print(
            "%-34s %12.1f %12.1f"
            % ("%d hosts" % entry["hosts"], entry["cpu_seconds"], entry["ms_per_host"])
        )
    tell_verdict(result)


def controller():
    """Processor time of the controller for a second run of site.yml on stand-in hosts, and what
    Ansible alone takes for as many tasks that do nothing.
    """
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        small = StandInCluster(Path(scratch) / "2", 2).finished()
        tasks = good(small.playbook("site.yml")).tasks
        for count in CONTROLLER_HOSTS:
            cluster = StandInCluster(Path(scratch) / str(count), count).finished(like=small)
            run = good(cluster.playbook("site.yml"))
            if run.changed:
                sys.exit("bench: the second run changed %s" % run.changed)
            skipped = cluster.cpu_milliseconds(
                {"ansible.builtin.debug": {"msg": ""}, "when": "false"}
            )
            sent = cluster.cpu_milliseconds({"trainyard.gpu.image_info": {"names": ["none"]}})
            module_runs = max(len(names) for names in run.runs.values())
            # Of a host other than the first one: tasks that one host does for all are not among
            # them.
            of_a_host = sum(run.recap[name_of(count - 1)][kind] for kind in ("ok", "skipped"))
            rows.append(
                {
                    "hosts": count,
                    "cpu_seconds": round(run.cpu, 1),
                    "per_host": round(run.cpu / count, 2),
                    "seconds": round(run.seconds, 1),
                    "tasks": run.tasks,
                    "module_runs": module_runs,
                    "skipped_task_ms": round(skipped, 1),
                    "module_run_ms": round(sent, 1),
                    "ansible_per_host": round(
                        (skipped * (of_a_host - module_runs) + sent * module_runs) / 1000, 2
                    ),
                }
            )
    last = rows[-1]
    measured = {
        "second run tasks, 2 hosts": tasks,
        "second run module runs per host": last["module_runs"],
        "64 hosts: CPU seconds per host": last["per_host"],
        "64 hosts to 8: per host": round(last["per_host"] / rows[0]["per_host"], 2),
    }
    return {"rows": rows, "verdict": judge(measured, CONTROLLER_LIMITS)}


def tell_controller(result):
    print(
        "\n%-34s %12s %9s %14s %14s %13s"
        % (
            "second run of site.yml: controller",
            "CPU seconds",
            "per host",
            "Ansible alone",
            "a skipped task",
            "a module run",
        )
    )
    for entry in result["rows"]:
        print(
            "%-34s %12.1f %9.2f %14.2f %11.1f ms %10.1f ms"
            % (
                "%d hosts" % entry["hosts"],
                entry["cpu_seconds"],
                entry["per_host"],
                entry["ansible_per_host"],
                entry["skipped_task_ms"],
                entry["module_run_ms"],
            )
        )
    tell_verdict(result)


def slurm():
    """Figures of Slurm on two hosts of the lab, which are bare but for the accounts of people."""
    with ScheduledLab("bench", "172.30.76.0/24").made() as cluster:
        good(cluster.playbook("playbooks/shared_storage.yml"))
        rows = [
            row("scheduler.yml", good(cluster.playbook("playbooks/scheduler.yml"))),
            row("scheduler.yml again", good(cluster.playbook("playbooks/scheduler.yml"))),
        ]
        module_run = cluster.module_run_seconds()
        cluster.make_image()
        plain = cluster.first_line_seconds(PEOPLE[0], "")
        contained = cluster.first_line_seconds(PEOPLE[0], "trainyard-run %s --" % IMAGE)
        applied, unchanged = cluster.plan_seconds()
        before = cluster.memory_mib("slurmctld")
        # Each job wants a whole host, so that all but two wait.
        for person in PEOPLE:
            cluster.as_person(
                person,
                'for number in $(seq %d); do sbatch --quiet --exclusive --output=/dev/null --wrap "sleep 3600" || exit 1; done'
                % (SLURM_JOBS // len(PEOPLE)),
            )
        waiting = len(
            cluster.on(cluster.head, "squeue --noheader --states=PENDING").out.splitlines()
        )
        if waiting < SLURM_JOBS - 2:
            sys.exit("bench: %d jobs wait, expected %d" % (waiting, SLURM_JOBS - 2))
        listed = cluster.timed(20, "squeue")
        submitted = cluster.timed(
            20,
            "su",
            PEOPLE[0],
            "-c",
            "sbatch --quiet --exclusive --output=/dev/null --chdir=/tmp --wrap 'sleep 3600'",
        )
        after = cluster.memory_mib("slurmctld")
    measured = {
        "install on two bare hosts: seconds": rows[0]["seconds"],
        "a container adds to a job: seconds": round(contained - plain, 2),
        "squeue, 1,000 jobs: seconds": round(listed[0], 3),
        "sbatch, 1,000 jobs: seconds": round(submitted[0], 3),
        "500 people applied: seconds": applied,
        "500 people unchanged: seconds": unchanged,
    }
    return {
        "module_run_seconds": round(module_run, 2),
        "runs": rows,
        "verdict": judge(measured, SLURM_LIMITS),
        "reported": {
            "first line of a job: seconds": round(plain, 2),
            "first line in a container: seconds": round(contained, 2),
            "slowest squeue of 20: seconds": round(listed[1], 3),
            "slowest sbatch of 20: seconds": round(submitted[1], 3),
            "slurmctld before the jobs: MiB": round(before, 1),
            "slurmctld with 1,000 jobs: MiB": round(after, 1),
        },
    }


def tell_slurm(result):
    tell_runs(result)
    print(
        "one bare module run on both hosts takes %.2f s on this machine"
        % result["module_run_seconds"]
    )
    for name, figure in result["reported"].items():
        print("%-34s %8.2f" % (name, figure))
    for name, judged in result["verdict"].items():
        print(
            "%-34s %8.2f  at most %s: %s"
            % (name, judged["measured"], judged["limit"], "ok" if judged["ok"] else "TOO MUCH")
        )


def monitoring():
    measured = monitoring_load.measured()
    return dict(measured, verdict=judge(measured, MONITORING_LIMITS))


def tell_monitoring(result):
    print("\nPrometheus, %d hosts with eight GPUs" % result["hosts"])
    for name, value in result.items():
        if name != "verdict":
            print("%-34s %12s" % (name, value))
    tell_verdict(result)


def make():
    """Seconds of the targets of the Makefile in a fresh clone with clean caches, one after the
    other: the first one also pays for the environment.
    """
    measured = {}
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        try:
            for target in ("lab", "test-fast", "test"):
                begun = time.monotonic()
                subprocess.run(["make", target], cwd=clone, check=True)
                measured["make %s: seconds" % target] = round(time.monotonic() - begun)
        finally:
            subprocess.run(["make", "lab-down"], cwd=clone, check=True)
    return {"verdict": judge(measured, MAKE_LIMITS)}


def judge(measured, limits):
    return {
        name: {"measured": measured[name], "limit": limit, "ok": measured[name] <= limit}
        for name, limit in limits.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "hosts", nargs="?", choices=sorted(PARTS), help="what to measure; without it all"
    )
    hosts = parser.parse_args().hosts
    asked = [hosts] if hosts else list(PARTS)
    result = {"cpus": os.cpu_count()}
    for part in asked:
        result[part] = PARTS[part][0]()
    (ROOT / "bench.json").write_text(
        json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    for part in asked:
        PARTS[part][1](result[part])
    sys.exit(
        not all(
            judged["ok"] for part in asked for judged in result[part].get("verdict", {}).values()
        )
    )


PARTS = {
    "input": (judged_input, tell_input),
    "controller": (controller, tell_controller),
    "containers": (containers, tell_containers),
    "gpus": (gpus, tell_gpus),
    "verdict": (verdict, tell_simulated),
    "virtual": (virtual, tell_virtual),
    "slurm": (slurm, tell_slurm),
    "monitoring": (monitoring, tell_monitoring),
    "make": (make, tell_verdict),
}

if __name__ == "__main__":
    main()
