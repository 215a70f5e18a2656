"""The bandwidth job on four hosts, one with a slow card: real ranks and sums, in four containers of
the training image on one network.

Whole, by the role and between hosts of their own, in tests/scenarios/test_bandwidth.py. This one is
fast enough for `make test`.
"""

from __future__ import annotations

import base64
import json
import re

import pytest

NAMES = ["four-a", "four-b", "four-c", "four-d"]
NETWORK, SUBNET = "four-hosts", "172.30.77"
FOLDER = "/var/lib/four-hosts"
# Without a fault they reach some tenths of a GB/s together, 0.003 on two cores shared by forty
# processes. With this rate they reach 0.0005.
RATE = "4mbit burst 32kb latency 400ms"
ASKED = {"fraction": 0.7, "min_busbw_gb_s": 0.0012, "peer_fraction": 0.02, "drop_percent": 100}
PLAN = {
    "hosts": [{"name": name, "slots": 2} for name in NAMES],
    "at_once": 1,
    "largest": {"gloo": 1 << 18, "nccl": 1 << 18},
    "history": {},
    "asked": ASKED,
}
# Both ranks of a host, with one import of torch between them.
RANKS = """
import os, runpy, sys
import torch
sys.path.insert(0, "/programs")
first = int(os.environ["RANK"])
second = os.fork()
os.environ.update(RANK=str(first + (second == 0)), LOCAL_RANK=str(int(second == 0)))
try:
    runpy.run_path("/programs/all_reduce.py", run_name="__main__")
except SystemExit:
    pass
if second:
    sys.exit(os.waitpid(second, 0)[1])
"""


def address(number):
    return "%s.%d" % (SUBNET, 11 + number)


@pytest.fixture(name="four")
def fixture_four(cluster):
    """Four containers of the first host's image, each with an address, that wait for a start
    signal.
    """
    clear = "docker rm --force %s; docker network rm %s; rm -rf %s" % (
        " ".join(NAMES),
        NETWORK,
        FOLDER,
    )
    cluster.on(cluster.head, clear, check=False)
    cluster.on(
        cluster.head,
        "mkdir -p %s/programs && docker network create --subnet %s.0/24 %s"
        % (FOLDER, SUBNET, NETWORK),
    )
    # The files that the role copies with the program.
    parts = re.findall(
        r"__verify_collection\s+~\s+'/(\S+\.py)'",
        (cluster.root / "roles/verify/vars/main.yml").read_text(encoding="utf-8"),
    )
    files = {part.rpartition("/")[2]: (cluster.root / part).read_bytes() for part in parts}
    assert "all_reduce.py" in files
    files["ranks.py"] = RANKS.encode()
    for name, content in files.items():
        cluster.on(
            cluster.head,
            "echo %s | base64 --decode > %s/programs/%s"
            % (base64.b64encode(content).decode(), FOLDER, name),
        )
    variables = {
        "MASTER_ADDR": address(0),
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "8",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "TRAINYARD_JOB_DIR": "/found",
        "TRAINYARD_BANDWIDTH": base64.b64encode(json.dumps(PLAN).encode()).decode(),
    }
    image = cluster.inspect(cluster.head)["Image"]
    for number, name in enumerate(NAMES):
        given = " ".join("--env %s=%s" % each for each in dict(variables, RANK=2 * number).items())
        cluster.on(
            cluster.head,
            "docker run --detach --name %s --network %s --ip %s %s --volume %s/programs:/programs:ro --volume %s:/found "
            "--entrypoint sleep %s 600"
            % (name, NETWORK, address(number), given, FOLDER, FOLDER, image),
        )
    yield NAMES
    cluster.on(cluster.head, clear, check=False)


def measured(cluster):
    """Start all ranks and wait for them. Return the result of the job."""
    command = " & ".join(
        "docker exec %s python3 -B /programs/ranks.py > %s/%s.log 2>&1" % (name, FOLDER, name)
        for name in NAMES
    )
    cluster.on(cluster.head, command + " & wait; cat %s/four-a.log" % FOLDER)
    return json.loads(cluster.on(cluster.head, "cat %s/bandwidth.json" % FOLDER).out)


def test_the_slow_one_of_four_is_named(cluster, four):
    pid = cluster.on(
        cluster.head, "docker inspect --format '{{.State.Pid}}' " + four[3]
    ).out.strip()
    cluster.on(
        cluster.head,
        "nsenter --target %s --net tc qdisc add dev eth0 root tbf rate %s" % (pid, RATE),
    )
    found = measured(cluster)
    runs = {run["id"]: run for run in found["runs"]}
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [
        ("host", [four[3]])
    ] and found["suspect"] == [four[3]], found
    assert not runs["cluster"]["passed"] and runs["group:four-a,four-b,four-c"]["passed"]
    assert {row["in_place"]["wrong"] for run in runs.values() for row in run["rows"]} == {0}
