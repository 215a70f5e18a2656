"""What breaks a job of two ranks, for real: playbook train names the rank that failed first, and
its cause. Nothing here is a message that a test has written.
"""

from __future__ import annotations

import re

import job_faults
import pytest

pytestmark = pytest.mark.acceptance

FOLDER = "/data1/share/causes"
PROGRAMS = {
    **job_faults.PROGRAMS,
    "shared": """
import os, time, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(4 << 20)

if os.environ["RANK"] == "1":
    for batch in DataLoader(Rows(), batch_size=4, num_workers=2):
        time.sleep(0.1)
time.sleep(600)
""",
    "sleeper": """
import os, time, torch
import torch.distributed as dist

def load_batch():
    time.sleep(600)

dist.init_process_group("gloo")
value = torch.ones(4)
dist.all_reduce(value)
if os.environ["RANK"] == "1":
    load_batch()
dist.all_reduce(value)
""",
    "full": """
import os, time
if os.environ["RANK"] == "1":
    with open("/data1/limited/checkpoint.pt", "wb") as stream:
        # Not more, because another file system may be there.
        for _part in range(64):
            stream.write(bytes(1 << 20))
            os.fsync(stream.fileno())
time.sleep(600)
""",
}
#: Limits the memory of a container by its control group, of either version, as `docker update`
#: would. The argument is the limit in bytes, or nothing.
LIMIT = """
import sys
pid, wanted = sys.argv[1], "".join(sys.argv[2:])
for line in open("/proc/%s/cgroup" % pid):
    number, names, path = line.strip().split(":", 2)
    if (number, names) == ("0", ""):
        files = {"memory.max": wanted or "max", "memory.swap.max": "0" if wanted else "max"}
        folder = "/sys/fs/cgroup" + path
    elif "memory" in names.split(","):
        files, folder = {"memory.limit_in_bytes": wanted or "-1"}, "/sys/fs/cgroup/memory" + path
    else:
        continue
    for name, value in files.items():
        try:
            open(folder + "/" + name, "w").write(value)
        except FileNotFoundError:
            pass
"""


@pytest.fixture(name="train", scope="module")
def fixture_train(cluster):
    """Runs a program on both hosts by torchrun, and returns the run and its result."""
    cluster.on(cluster.head, job_faults.written(FOLDER, PROGRAMS))

    def run(name, **variables):
        wanted = {
            "train_launcher": "torchrun",
            "train_command": "python3 %s/%s.py" % (FOLDER, name),
            "train_timeout": 240,
        }
        done = cluster.playbook("playbooks/train.yml", "-e", dict(wanted, **variables))
        assert done.code == 2
        result = cluster.last_job()
        assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}
        return done, result

    yield run
    cluster.on(cluster.head, "rm -r %s" % FOLDER)


def is_told(cluster, run, result, *names):
    """Rank 1 is named as the first that failed, with its cause, in result.json and to the
    operator.
    """
    failed = result["first_failed"]
    assert (failed["rank"], failed["host"]) == (1, cluster.peer), failed
    assert failed["causes"][0]["id"] in names, failed["causes"]
    assert "rank 1 on host %s failed first" % cluster.peer in run.text
    assert "cause: %s." % failed["causes"][0]["cause"] in run.text
    return failed["causes"][0]


def pid_of(cluster, host):
    return cluster.on(
        host, "docker inspect --format '{{.State.Pid}}' " + cluster.container
    ).out.strip()


def test_the_memory_of_one_rank_is_full(cluster, train):
    """The container lives longer than the job, so its counters began before it."""

    def limit(size):
        words = (pid_of(cluster, cluster.peer), size, LIMIT)
        cluster.on(cluster.peer, "python3 - %s %s << 'END'\n%s\nEND" % words)

    limit(600 << 20)
    try:
        run, result = train("memory")
    finally:
        limit("")
    cause = is_told(cluster, run, result, "job_out_of_memory")
    assert re.search(r"limit 600 MiB, peak \d+ MiB", cause["cause"]), cause


def test_dev_shm_is_full(cluster, train):
    inside = "nsenter --target %s --mount " % pid_of(cluster, cluster.peer)
    read = "python3 -c 'import os; found = os.statvfs(\"/dev/shm\"); print(found.f_blocks * found.f_frsize >> 10)'"
    size = cluster.inside(cluster.peer, read).out.strip()
    cluster.on(cluster.peer, inside + "mount -o remount,size=24m /dev/shm")
    try:
        run, result = train("shared")
    finally:
        cluster.on(cluster.peer, inside + "mount -o remount,size=%sk /dev/shm" % size)
    is_told(cluster, run, result, "worker_out_of_shared_memory", "bus_error")


def test_a_killed_rank(cluster, train):
    is_told(cluster, *train("killed"), "out_of_memory_killed")


def test_a_rank_that_sleeps_in_a_collective(cluster, train):
    """The sentence is told a minute after the last output, and the job ends at its time limit."""
    for host in cluster.hosts:
        job_faults.place_py_spy(
            "docker", "exec", "-i", host, "docker", "exec", "-i", cluster.container
        )
    try:
        run, result = train("sleeper", train_hang_minutes=1, train_timeout=200)
    finally:
        for host in cluster.hosts:
            cluster.inside(host, "rm /usr/local/bin/py-spy")
    said = "rank 1 on %s is in load_batch, rank 0 on %s waits in all_reduce. Rank 1: load_batch (sleeper.py:6), sleeps"
    said %= (cluster.peer, cluster.head)
    assert result["exit_code"] == 124 and said in result["hang"], result["hang"]
    assert "for 1 minute: " + said in run.text
    folder = "/data1/share/.trainyard/jobs/%s" % result["job_id"]
    text = cluster.on(cluster.head, "cat %s/hang.txt" % folder).out
    assert text.splitlines()[0] == said and "Thread" in text and "load_batch" in text


def test_a_port_is_in_use(cluster, train):
    """One of a rank, and the one of the rendezvous."""
    is_told(cluster, *train("port"), "address_in_use")
    listen = 'import socket, time; s = socket.socket(); s.bind(("0.0.0.0", 29614)); s.listen(); time.sleep(900)'
    listener = "docker exec --detach %s python3 -c '%s'" % (cluster.container, listen)
    cluster.on(cluster.head, listener)
    try:
        run, result = train("killed", train_master_port=29614)
    finally:
        cluster.inside(cluster.head, "pkill -f [2]9614", check=False)
    assert "train_master_port: '29614' cannot be used at" in run.text
    assert "Set another port, or 0 for a free port" in result["problems"][0]


def test_a_module_is_missing_on_one_host(cluster, train):
    cluster.inside(cluster.head, "mkdir -p /tmp/only && touch /tmp/only/only_here.py")
    try:
        run, result = train("module", train_environment={"PYTHONPATH": "/tmp/only"})
    finally:
        cluster.inside(cluster.head, "rm -r /tmp/only")
    assert "only_here" in is_told(cluster, run, result, "python_module_missing")["cause"]


def test_an_image_without_the_program(cluster, train):
    """The wrong image: it lacks the command, and the launcher of the job."""
    run, result = train("killed", train_command="no-such-trainer --epochs 3")
    assert result["first_failed"]["causes"][0]["id"] in ("command_missing", "file_missing")
    assert "no-such-trainer" in run.text


def test_a_file_system_is_full(cluster, train):
    """One of the container, below the folder of the share.

    Scenario vm has quotas, which need a kernel of their own.
    """
    inside = "nsenter --target %s --mount " % pid_of(cluster, cluster.peer)
    cluster.on(
        cluster.peer,
        "mkdir -p /data1/limited && %s mount -t tmpfs -o size=8m limited /data1/limited" % inside,
    )
    try:
        run, result = train("full")
    finally:
        cluster.on(cluster.peer, "%s umount /data1/limited; rm -r /data1/limited" % inside)
    is_told(cluster, run, result, "disk_full")


def test_a_measurement_that_hangs(cluster):
    """The job of verify itself.

    A rank on the second host is stopped as soon as it runs, and the others wait until the time
    limit.
    """
    stop = 'for _try in $(seq 9000); do pkill -STOP -f "^python3 -B .*verify/all_reduce.py" && exit; sleep 0.2; done'
    cluster.on(cluster.peer, "docker exec --detach %s sh -c '%s'" % (cluster.container, stop))
    run = cluster.playbook("playbooks/verify.yml", "-e", {"verify_bandwidth_timeout": 60})
    report = cluster.last_report()
    found = {check["id"]: check["found"] for check in report["checks"]}["bandwidth-cluster"]
    # One or both of its ranks were there. Without py-spy it is not known where the others wait.
    said = (
        r"not measured: the job was stopped after its timeout of 60 s; at its end: (?:where .+ wait is not known, )?"
        r"(?:rank [23] on {host} is|ranks 2 and 3 on {host} are) stopped by a signal[,.] .*\. "
        r"See /data1/share/\.trainyard/jobs/verify-bandwidth/hang\.txt"
    )
    assert re.fullmatch(said.format(host=cluster.peer), found), found
    assert run.code == 2 and found in run.text
