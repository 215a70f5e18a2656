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


def test_gpus_without_metrics():
    assert proof.missing_gpus(vector(({"instance": "b"}, 8))) == ["b"]


def test_alertmanagers():
    assert proof.not_sent({"data": {"activeAlertmanagers": [{"url": "x"}]}}) == ""
    text = proof.not_sent(
        {"data": {"activeAlertmanagers": [], "droppedAlertmanagers": [{"url": "x"}]}}
    )
    assert text == "Prometheus knows no Alertmanager (dropped: x)"
