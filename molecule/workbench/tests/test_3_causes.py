"""What breaks a job of two workers, for real: `trainyard why`, `trainyard show` and the page of the
job name the worker that failed first, and its cause.
"""

from __future__ import annotations

import json
import subprocess

import job_faults
import pytest
from test_2_hub import Hub

pytestmark = pytest.mark.acceptance
ROLE = "jobs"
PROGRAMS = {
    **job_faults.PROGRAMS,
    "shared": """
import os, time
from multiprocessing.shared_memory import SharedMemory
if os.environ["RANK"] == "1":
    batches = SharedMemory(create=True, size=256 << 20)
    batches.buf[:] = bytes(256 << 20)
time.sleep(600)
""",
    "sleeper": """
import os, socket, time

def load_batch():
    time.sleep(600)

def wait_for_others(port):
    with socket.socket() as server:
        server.bind((os.environ["TRAINYARD_WORKER_ADDRESS"], port))
        server.listen()
        server.accept()

print("step 1", flush=True)
if os.environ["RANK"] == "1":
    load_batch()
wait_for_others(int(os.environ["MASTER_PORT"]))
""",
}
FOLDER = "/data1/share/user/alice/causes"


@pytest.fixture(name="hub", scope="module")
def _hub(cluster):
    return Hub(cluster)


@pytest.fixture(name="submit", scope="module")
def _submit(cluster):
    """Submits a job of two workers that runs a program."""
    cluster.as_person("alice", job_faults.written(FOLDER, PROGRAMS))

    def run(name, **values):
        wanted = {
            "name": "cause_" + name,
            "kind": "PyTorchJob",
            "worker_count": "2",
            "worker_memory": "1",
            "worker_image": "site/tools:1",
            "command": "python3 -u %s/%s.py" % (FOLDER, name),
        }
        text = "".join("%s: %s\n" % item for item in dict(wanted, **values).items())
        return cluster.submit("alice", text)

    yield run
    cluster.as_person("alice", "rm -r " + FOLDER)
    cluster.nothing_left("alice")


def is_told(cluster, hub, number, *names):
    """Worker 1 is named with its cause, by all that a person may ask.

    Worker 0 is named as a consequence.
    """
    job = cluster.ends("alice", number)
    assert job["state"] == "failed", job
    failed = job["result"]["first_failed"]
    assert (failed["rank"], failed["host"]) == (1, cluster.peer), failed
    cause = failed["causes"][0]
    assert cause["id"] in names, failed
    assert [each["rank"] for each in failed["consequences"]] == [0]
    said = "worker 1 on %s failed first: %s." % (cluster.peer, cause["cause"])
    assert said in cluster.trainyard("alice", "why", number).out
    assert "cause: %s." % cause["cause"] in cluster.trainyard("alice", "show", number).out
    page = hub.browser("alice").ask("/services/jobs/job/" + number).text
    assert cause["cause"].split("'")[0][:60] in page, page
    return cause


@pytest.fixture(name="little_memory")
def _little_memory(cluster):
    """The second host may use 400 MiB more than now. Files that were read give way, and count as
    nothing.

    Slurm does not limit memory in containers, so the limit is the one of the host.
    """
    folder = "/sys/fs/cgroup"
    if cluster.on(cluster.peer, "test -e %s/memory.stat" % folder, check=False).code:
        folder += "/memory"
    text = cluster.on(
        cluster.peer,
        "cd %s && cat memory.current 2> /dev/null || cat memory.usage_in_bytes; cat memory.stat"
        % folder,
    ).out
    current, *rows = text.splitlines()
    counts = {name: int(value) for name, value in (row.split() for row in rows)}
    # Those of version 1 that begin with total have the groups below, too, as all of version 2.
    begin = "total_" if "total_active_file" in counts else ""
    files = counts[begin + "active_file"] + counts[begin + "inactive_file"]
    used = int(current) - files

    def limit(size):
        subprocess.run(
            ["docker", "update", "--memory", str(size), "--memory-swap", str(size), cluster.peer],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    limit(used + (400 << 20))
    yield
    # A limit that was set cannot be removed again.
    limit(1 << 42)


def test_the_memory_of_one_worker_is_full(cluster, hub, submit, little_memory):
    cause = is_told(cluster, hub, submit("memory"), "job_out_of_memory")
    assert "limit" in cause["cause"] and "raise worker_memory" in cause["fix"]


def test_dev_shm_is_full(cluster, hub, submit):
    """The program says nothing: the kernel ends it, and only its exit code is left."""
    number = submit("shared", worker_shared_memory="0.05")
    cause = is_told(cluster, hub, number, "bus_error")
    assert "worker_shared_memory" in cause["fix"]


def test_a_killed_worker(cluster, hub, submit):
    is_told(cluster, hub, submit("killed"), "out_of_memory_killed")


def test_a_port_is_in_use(cluster, hub, submit):
    is_told(cluster, hub, submit("port"), "address_in_use")


def test_a_module_is_missing_on_one_host(cluster, hub, submit):
    """/usr/local/lib/only of worker 0 has it: a folder of the host's own, by its /tmp."""
    command = (
        'test "$RANK" = 1 || { mkdir -p /tmp/only && touch /tmp/only/only_here.py; }; '
        "PYTHONPATH=/tmp/only python3 -u %s/module.py" % FOLDER
    )
    number = submit("module", command=json.dumps(command))
    assert "only_here" in is_told(cluster, hub, number, "python_module_missing")["cause"]


def test_a_wrong_image(cluster, hub, submit):
    """One that this cluster does not have is refused, and one without the program is named."""
    said = cluster.refused(
        2,
        "submit",
        "-",
        text="name: wrong\nworker_image: site/torch:9\nworker_memory: 1\ncommand: 'true'\n",
    )
    assert "worker_image: 'site/torch:9' is not an image of this cluster" in said
    command = 'test "$RANK" = 0 && sleep 600; exec torchrun train.py'
    is_told(cluster, hub, submit("killed", command=json.dumps(command)), "command_missing")


def test_the_quota_of_the_group_is_full(cluster, hub, submit):
    """Its first job uses both GPUs. The second waits, and why tells for what."""
    first = submit("sleeper", worker_gpu="1")
    cluster.ends("alice", first, "running")
    second = submit("sleeper", worker_gpu="1")
    said = "group vision uses 2 of its 2 GPUs"
    cluster.wait("the reason", lambda: said in cluster.trainyard("alice", "why", second).out)
    assert said in hub.browser("alice").ask("/services/jobs/job/" + second).text
    for number in (second, first):
        cluster.trainyard("alice", "stop", number)


def test_a_worker_that_sleeps_while_the_other_waits(cluster, hub, submit):
    """The runner notices it after a minute, and asks both hosts. py-spy of the host reads the
    person's containers, as the person.
    """
    for host in cluster.hosts:
        job_faults.place_py_spy("docker", "exec", "-i", host)
    try:
        number = submit("sleeper", hang_minutes="1")
        cluster.ends("alice", number, "running")
        folder = "%s/alice/%s" % (cluster.folder, number)
        cluster.wait(
            "hang.txt",
            lambda: cluster.on(cluster.head, "test -e %s/hang.txt" % folder, check=False).code == 0,
            240,
        )
        text = cluster.as_person("alice", "cat %s/hang.txt" % folder).out
        said = text.splitlines()[0]
        assert "rank 1 on %s is in load_batch" % cluster.peer in said, text
        assert "rank 0 on %s is in wait_for_others" % cluster.head in said, text
        assert "load_batch (sleeper.py:5), sleeps" in said, text
        told = "it makes no progress: " + said
        assert told in cluster.trainyard("alice", "why", number).out
        assert told in cluster.trainyard("alice", "show", number, "--json").out
        page = hub.browser("alice").ask("/services/jobs/job/" + number).text
        assert "is in load_batch" in page
        assert said in cluster.trainyard("alice", "logs", number).out
        # Nobody else reads it.
        assert cluster.as_person("bob", "cat %s/hang.txt" % folder, check=False).code
        cluster.trainyard("alice", "stop", number)
        job = cluster.ends("alice", number)
        assert said in job["result"]["hang"]
        assert said in cluster.trainyard("alice", "why", number).out
    finally:
        for host in cluster.hosts:
            cluster.on(host, "rm -f /usr/local/bin/py-spy")
