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
        ({"instance": "a", "file": path % "gpu/gpu"}, 690),
        ({"instance": "b", "file": path % "gpu/gpu"}, 710),
        ({"instance": "a", "file": path % "health/health"}, 500),
    )
    errors = vector(({"instance": "a"}, 0), ({"instance": "c"}, 1))
    assert proof.stale_files(mtimes, errors, 1000) == [
        "a: %s is 310 s old" % (path % "gpu/gpu"),
        "c: a file of metrics cannot be read",
    ]
    assert len(proof.stale_files(mtimes, errors, 2400)) == 4
    # verify writes its own when it runs.
    verify = vector(({"instance": "a", "file": path % "verify/verify"}, 0))
    assert proof.stale_files(verify, vector(), 1e9) == []


def test_gpus_without_metrics():
    assert proof.missing_gpus(vector(({"instance": "b"}, 8))) == ["b"]


def test_alertmanagers():
    assert proof.not_sent({"data": {"activeAlertmanagers": [{"url": "x"}]}}) == ""
    text = proof.not_sent(
        {"data": {"activeAlertmanagers": [], "droppedAlertmanagers": [{"url": "x"}]}}
    )
    assert text == "Prometheus knows no Alertmanager (dropped: x)"


def job(number, gpus=2, state="running", start="2026-11-26T10:00:00Z"):
    return {"id": number, "gpus": gpus, "state": state, "start_time": start}


NOW = 1795687200.0  # 2026-11-26T10:00:00Z


def test_jobs_of_gpus():
    marked = vector(({"slurm_job": "7"}, 2), ({"slurm_job": "8"}, 1), ({"slurm_job": "9"}, 4))
    jobs = [job(7), job(8, state="completing"), job(9, gpus=4), job(10, gpus=0)]
    assert proof.wrong_jobs(marked, jobs, NOW + 3600) == []
    jobs = [job(7), job(8), job(11, gpus=8), job(12, start=None, state="pending")]
    assert proof.wrong_jobs(marked, jobs, NOW + 3600) == [
        "4 GPUs have job 9, which is not in the queue",
        "job 8 has 2 GPUs, and metrics of 1",
        "job 11 has 8 GPUs, and metrics of 0",
    ]
    # Nothing is known yet of a job that has just begun.
    assert proof.wrong_jobs(vector(), [job(7)], NOW + 119) == []
    assert proof.wrong_jobs(vector(), [job(7)], NOW + 121) != []
