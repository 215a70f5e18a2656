"""What Prometheus answers about hosts and files, as findings."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils import _monitoring_proof as proof


def vector(*rows):
    return {"data": {"result": [{"metric": metric, "value": [0, str(v)]} for metric, v in rows]}}


def test_hosts():
    answer = vector(({"instance": "a"}, 1), ({"instance": "b"}, 0), ({"instance": "old"}, 1))
    assert proof.hosts_up(answer, ["a", "b", "c"]) == {"missing": ["b", "c"], "strange": ["old"]}
    assert proof.hosts_up({}, ["a"])["missing"] == ["a"]


def test_files():
    path = "/var/lib/trainyard/metrics/%s.prom"
    mtimes = vector(
        ({"instance": "a", "file": path % "gpu/gpu"}, 920),
        ({"instance": "b", "file": path % "gpu/gpu"}, 930),
        ({"instance": "a", "file": path % "health/health"}, -490),
        ({"instance": "a", "file": path % "host/host"}, 710),
        ({"instance": "a", "file": path % "slurm/slurm"}, 849),
    )
    errors = vector(({"instance": "a"}, 0), ({"instance": "c"}, 1))
    # Five intervals of each program.
    assert proof.stale_files(mtimes, errors, 1000, 15) == [
        "a: %s is 80 s old" % (path % "gpu/gpu"),
        "a: %s is 151 s old" % (path % "slurm/slurm"),
        "c: a file of metrics cannot be read",
    ]
    assert len(proof.stale_files(mtimes, errors, 1000, 30)) == 2
    assert len(proof.stale_files(mtimes, errors, 1011, 15)) == 6
    # verify writes its own when it runs.
    verify = vector(({"instance": "a", "file": path % "verify/verify"}, 0))
    assert proof.stale_files(verify, vector(), 1e9, 15) == []


def test_gpus_without_metrics():
    assert proof.missing_gpus(vector(({"instance": "b"}, 8))) == ["b"]


def test_gpus_that_the_driver_counts():
    answer = vector(({"instance": "b"}, 7), ({"instance": "a"}, 8), ({"instance": "npu"}, 16))
    assert proof.counted_gpus(answer, {"a": 8, "b": 8, "c": 4}) == [
        "b: the driver counts 8 GPUs, and there are metrics of 7"
    ]


def test_a_marked_alert():
    [alert] = proof.marked_alert("x1", NOW)
    assert alert["labels"] == {"alertname": "TrainyardTest", "mark": "x1"}
    assert alert["endsAt"] == "2026-11-26T10:00:10Z"
    assert proof.arrived([{"labels": {}}, alert], "x1") == ""
    for alerts in ([], [alert]):
        assert proof.arrived(alerts, "x2").endswith("does not have it")


def test_alertmanagers():
    assert proof.not_sent({"data": {"activeAlertmanagers": [{"url": "x"}]}}) == ""
    text = proof.not_sent(
        {"data": {"activeAlertmanagers": [], "droppedAlertmanagers": [{"url": "x"}]}}
    )
    assert text == "Prometheus knows no Alertmanager (dropped: x)"


def job(number, gpus=2, state="running", start="2026-11-26T10:00:00Z"):
    return {"id": number, "gpus": gpus, "state": state, "start_time": start}


NOW = 1795687200.0  # 2026-11-26T10:00:00Z


def marked(*rows):
    """What the metrics have: number of the job, host, and device number of each GPU."""
    return proof.marked_gpus(
        vector(
            *(
                ({"instance": host, "minor": str(minor), "uuid": "GPU-%s%s" % (host, minor)}, job)
                for job, host, minor in rows
            )
        )
    )


def test_jobs_of_gpus():
    found = marked((7, "a", 0), (7, "a", 1), (8, "b", 0), *((9, "c", minor) for minor in range(4)))
    jobs = [job(7), job(8, state="completing"), job(9, gpus=4), job(10, gpus=0)]
    assert proof.wrong_jobs(found, jobs, {}, NOW + 3600) == []
    # In the order of squeue.
    jobs = [job(11, gpus=8), job(8), job(7), job(12, start=None, state="pending")]
    assert proof.wrong_jobs(found, jobs, {}, NOW + 3600) == [
        "4 GPUs have job 9, which is not in the queue",
        "job 8 has 2 GPUs, and metrics of 1",
        "job 11 has 8 GPUs, and metrics of 0",
    ]
    assert proof.wrong_jobs(marked((9, "a", 0)), [job(7, gpus=1)], {}, NOW + 3600) == [
        "1 GPU has job 9, which is not in the queue",
        "job 7 has 1 GPU, and metrics of 0",
    ]
    # Nothing is known yet of a job that has just begun.
    assert proof.wrong_jobs({}, [job(7)], {}, NOW + 119) == []
    assert proof.wrong_jobs({}, [job(7)], {}, NOW + 121) != []


def test_a_job_on_other_gpus():
    """As many as Slurm has given away, and not these: a host whose device numbers have a gap."""
    lists = {"a": [0, 1, 3, 4], "b": [0, 1]}
    given = {7: proof.given_devices(job(7, gpus=3), {"a": [2, 3], "b": [0]}, lists)}
    assert given[7] == {("a", 3), ("a", 4), ("b", 0)}
    jobs = [job(7, gpus=3)]
    right = marked((7, "a", 3), (7, "a", 4), (7, "b", 0))
    assert proof.wrong_jobs(right, jobs, given, NOW + 3600) == []
    # Positions that were taken for device numbers, and a neighbour's GPU.
    for wrong, told in (
        (marked((7, "a", 2), (7, "a", 3), (7, "b", 0)), "a: 2, 3; b: 0"),
        (marked((7, "a", 3), (7, "a", 4), (7, "b", 1)), "a: 3, 4; b: 1"),
    ):
        assert proof.wrong_jobs(wrong, jobs, given, NOW + 3600) == [
            "job 7 has the device numbers a: 3, 4; b: 0, and metrics of " + told
        ]
    # Of a host without a list, and of a job that has just ended, only the number is known.
    assert proof.given_devices(job(7, gpus=3), {"a": [2, 3], "b": [0]}, {"a": [0]}) is None
    assert proof.given_devices(job(7), {}, lists) is None
    assert proof.wrong_jobs(marked((7, "a", 0), (7, "a", 1)), [job(7)], {7: None}, NOW + 3600) == []


def test_a_gpu_without_a_device_number():
    answer = vector(({"instance": "a", "minor": "", "uuid": "GPU-1"}, 7))
    assert proof.marked_gpus(answer) == {7: {("a", "GPU-1")}}


def test_a_job_with_a_gpu_without_a_device_number():
    """Beside one that has a number: numbers and UUIDs of a host have no order of their own."""
    found = marked((7, "a", 10), (7, "a", 2))
    found[7].add(("a", "GPU-1"))
    given = {7: {("a", 0), ("a", 2), ("a", 10)}}
    assert proof.wrong_jobs(found, [job(7, gpus=3)], given, NOW + 3600) == [
        "job 7 has the device numbers a: 0, 2, 10, and metrics of a: 2, 10, GPU-1"
    ]
