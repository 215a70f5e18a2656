"""The real daemons of the distribution with the files of the plan: who gets an answer, what is
read, and an alert that arrives at a receiver.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import grafana_dashboards
import pytest
from eight_gpus import eight_gpus
from monitoring_daemons import FILES, Monitoring
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.module_utils import (
    _metrics,
    _nvidia_smi,
    _slurm_metrics,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _monitoring_plan as planned

# They start daemons, which takes seconds.
pytestmark = pytest.mark.slow

JOB = 4711


#: Seconds in place of hours.
IDLE = (
    'count by (slurm_job) (count_values by (instance, uuid) ("slurm_job", trainyard_gpu_job > 0)'
    " and on (instance, uuid) (max_over_time(trainyard_gpu_utilization_ratio[2s]) < 0.01))"
)
SHORT = {
    "GpuLost": {"for": "0s"},
    "ShareNearlyFull": {"for": "0s"},
    "GpuAllocatedButIdle": {"for": "0s", "expr": IDLE},
}


def gpus_of(answer, number, idle=False):
    """The families of some of the GPUs. The first one has a job, and does not use it."""
    gpus = [dict(gpu) for gpu in answer.gpus[:number]]
    if idle:
        gpus[0].update(utilization_gpu_percent=0, minor_number=0)
    return _metrics.gpu_families(answer._replace(gpus=gpus, gpu_count=number), {0: JOB})


DRAINED = {
    "name": "gpu-a",
    "states": ["idle", "drain"],
    "reason": "a fan",
    "reason_time": "2026-01-01T00:00:00Z",
    "reason_user": "root",
    "gpus": [{"total": 8, "used": 0}],
}


@pytest.fixture(scope="module")
def monitoring(tmp_path_factory):
    made = Monitoring(tmp_path_factory.mktemp("monitoring"), rules=SHORT)
    made.answer = _nvidia_smi.parse_query(eight_gpus())
    made.metrics("gpu", gpus_of(made.answer, 8))
    share = [("/share", (1000, 500))]
    made.metrics("host", _metrics.share_families(share))
    for name in ("prometheus-node-exporter", "prometheus-alertmanager", "prometheus"):
        made.start(name)
    try:
        made.wait(lambda: made.query('up{job="host"} == 1'))
        yield made
    finally:
        for name in list(made.children):
            made.stop(name)
        made.receiver.stop()


def test_metrics_arrive_under_the_name_of_the_host(monitoring):
    [row] = monitoring.query("trainyard_gpus")
    assert row["metric"]["instance"] == "front" and row["value"][1] == "8"
    [row] = monitoring.wait(lambda: monitoring.query("count(trainyard_gpu_job == %d)" % JOB))
    assert int(row["value"][1]) >= 1
    # None of our labels had to be renamed.
    assert monitoring.query('{exported_job=~".+"}') == []
    assert monitoring.query('{exported_instance=~".+"}') == []
    assert monitoring.query("node_textfile_scrape_error")[0]["value"][1] == "0"


@pytest.mark.parametrize("daemon", [0, 1, 2])
@pytest.mark.parametrize("certificate", ["", "host"])
def test_nobody_else_gets_an_answer(monitoring, daemon, certificate):
    port = monitoring.ports[daemon]
    assert monitoring.wait(lambda: monitoring.get(port, "/metrics"))
    with pytest.raises(OSError):
        monitoring.get(port, "/metrics", certificate)
    with pytest.raises(OSError):
        urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10)


def test_a_client_of_another_authority(monitoring, tmp_path):
    run_module(
        "own_certificate",
        {
            "folder": str(tmp_path / "tls"),
            "name": "client",
            "usage": "client",
            "names": ["front"],
            "_ansible_remote_tmp": str(tmp_path),
        },
        False,
    )
    context = ssl.create_default_context(cafile=str(monitoring.tls / "ca.pem"))
    context.load_cert_chain(tmp_path / "tls/client.pem", tmp_path / "tls/client.key")
    with pytest.raises(OSError):
        urllib.request.urlopen(
            "https://127.0.0.1:%d/metrics" % monitoring.ports[0], timeout=10, context=context
        )


def test_no_gossip(monitoring):
    text = monitoring.get(monitoring.ports[2], "/api/v2/status")
    assert json.loads(text)["cluster"]["status"] == "disabled"


@contextlib.contextmanager
def proof_of(monitoring, hosts):
    """Module monitoring_proof, whose ports are those of a host, as verify runs it."""
    from ansible_collections.trainyard.gpu.plugins.modules import monitoring_proof

    asked = {
        "folder": str(monitoring.tls),
        "hosts": [
            {"name": name, "address": "127.0.0.%d" % (at + 1)} for at, name in enumerate(hosts)
        ],
        "address": "127.0.0.3",
        "port": monitoring.ports[0],
        "has_alertmanager": True,
        "has_scheduler": False,
        "counts": {"front": 8},
        "interval": 60,
        "timeout": 5,
        "certificate": "",
        "key": "",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitoring_proof, "PROMETHEUS", monitoring.ports[1])
        patch.setattr(monitoring_proof, "ALERTMANAGER", monitoring.ports[2])
        yield monitoring_proof.Proof(asked)


def test_verify_reads_it(monitoring):
    with proof_of(monitoring, hosts=["front", "gone"]) as proof:
        found = proof.read()
        assert (found["missing"], found["strange"], found["stale"]) == (["gone"], [], [])
        assert (found["alerts"], found["receivers"]) == ("", ["hook", "nobody"])
        told = json.loads(monitoring.get(monitoring.ports[2], "/api/v2/alerts"))
        of_test = [row for row in told if row["labels"]["alertname"] == "TrainyardTest"]
        assert [row["receivers"] for row in of_test] == [[{"name": "nobody"}]]
        proof.params["counts"] = {"front": 7}
        text = "front: the driver counts 7 GPUs, and there are metrics of 8"
        assert proof.read()["stale"] == [text]
        assert proof.open_doors() == []
        # A daemon whose settings somebody has changed.
        web = monitoring.folder / "etc/web.yml"
        text = web.read_text(encoding="utf-8")
        web.write_text(
            text.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"), encoding="utf-8"
        )
        try:
            told = proof.open_doors()
        finally:
            web.write_text(text, encoding="utf-8")
        assert "front answers on port %d without a certificate" % monitoring.ports[0] in told


def test_verify_tells_keys_that_everybody_can_read(monitoring, monkeypatch):
    """And what a person without the certificate of the authority gets."""
    from ansible_collections.trainyard.gpu.plugins.modules import monitoring_proof

    with tempfile.TemporaryDirectory() as folder, proof_of(monitoring, hosts=["front"]) as proof:
        os.chmod(folder, 0o755)
        values = Path(folder) / "host.prom"
        values.write_text("x", encoding="utf-8")
        monkeypatch.setattr(monitoring_proof, "VALUES", (str(values),))
        for mode, expected in ((0o640, []), (0o644, ["%s can be read" % values])):
            values.chmod(mode)
            assert proof.open_doors() == expected
        values.chmod(0o640)
        # The key of a site's certificate.
        for name in ("host.pem", "host.key"):
            shutil.copy(monitoring.tls / name, folder)
        key = Path(folder) / "host.key"
        proof.params.update(certificate=folder + "/host.pem", key=str(key))
        for mode, expected in ((0o600, []), (0o644, ["%s can be read" % key])):
            key.chmod(mode)
            assert proof.open_doors() == expected
        identity = monitoring_proof.as_nobody(lambda: [os.getuid(), os.getgid(), os.getgroups()])
        assert identity == [65534, 65534, []]
        # Somebody who listens in the place of a daemon, and never ends his answer.
        monkeypatch.setattr(monitoring_proof, "CHILD_SECONDS", 1)
        with pytest.raises(ValueError, match="nobody did not end within 1 s"):
            monitoring_proof.as_nobody(lambda: time.sleep(60))


def test_a_new_certificate_needs_no_restart(monitoring):
    def serial():
        text = ssl.get_server_certificate(("127.0.0.1", monitoring.ports[0]))
        return subprocess.run(
            ["openssl", "x509", "-noout", "-serial"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def served():
        with socket.create_connection(("127.0.0.1", monitoring.ports[0]), 10) as raw:
            context = ssl.create_default_context(cafile=str(monitoring.tls / "ca.pem"))
            context.load_cert_chain(monitoring.tls / "client.pem", monitoring.tls / "client.key")
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped:
                return wrapped.getpeercert()["serialNumber"]

    before = served()
    (monitoring.tls / "host.key").unlink()
    monitoring.sign()
    assert served() != before
    assert monitoring.wait(lambda: monitoring.query('up{job="host"} == 1'))


def test_alerts_reach_a_webhook_and_a_mailbox(monitoring):
    """A lost GPU, a full share, a drained node, and a job that does not use its GPUs."""
    monitoring.metrics("gpu", gpus_of(monitoring.answer, 7, idle=True))
    monitoring.metrics("host", _metrics.share_families([("/share", (1000, 1))]))
    monitoring.metrics("slurm", _slurm_metrics.queue_families([DRAINED], [], [], time.time()))
    expected = {"GpuLost", "ShareNearlyFull", "NodeOutOfService", "GpuAllocatedButIdle"}

    def told():
        alerts = [alert for message in monitoring.receiver.got for alert in message["alerts"]]
        names = {alert["labels"]["alertname"] for alert in alerts}
        return alerts if expected <= names else None

    by_name = {alert["labels"]["alertname"]: alert for alert in monitoring.wait(told)}
    lost = by_name["GpuLost"]["annotations"]
    assert lost["summary"].startswith("front: the driver counts 7 GPUs")
    assert lost["documentation"].endswith("docs/monitoring.md#gpulost")
    assert "gpu-a is out of service" in by_name["NodeOutOfService"]["annotations"]["summary"]
    idle = by_name["GpuAllocatedButIdle"]
    # Its number, and no name.
    assert idle["labels"]["slurm_job"] == str(JOB) and "user" not in idle["labels"]

    def mailed():
        text = "".join(mail["mail"] for mail in monitoring.receiver.mails)
        return monitoring.receiver.mails if all(name in text for name in expected) else None

    assert monitoring.wait(mailed)[0]["to"] == ["ops@example.org"]


def of_another_authority(folder, name, **options):
    """A certificate as a site has it: its path, that of its key, and the text of its authority."""
    asked = {"folder": str(folder), "name": name, "_ansible_remote_tmp": str(folder.parent)}
    told = run_module("own_certificate", dict(asked, **options), False)
    return str(folder / (name + ".pem")), str(folder / (name + ".key")), told["ca"]


def test_a_certificate_of_the_site(tmp_path):
    """Daemons show it, and a client of the same authority reads nothing."""
    names = {"names": ["front", "localhost"], "addresses": ["127.0.0.1"]}
    certificate, key, ca = of_another_authority(tmp_path / "site", "host", **names)
    client, client_key, _ca = of_another_authority(
        tmp_path / "site", "client", names=["front"], usage="client"
    )
    made = Monitoring(tmp_path, certificate=certificate, key=key, ca=ca)
    for name in ("prometheus-node-exporter", "prometheus-alertmanager", "prometheus"):
        made.start(name)
    try:
        jobs = {"host", "prometheus", "alertmanager"}
        read = 'up{job=~"host|prometheus|alertmanager"} == 1'
        assert made.wait(lambda: {row["metric"]["job"] for row in made.query(read)} == jobs)
        assert not (made.tls / "host.pem").exists()
        context = ssl.create_default_context(cafile=str(made.tls / "ca.pem"))
        context.load_cert_chain(client, client_key)
        for port in made.ports[:3]:
            assert made.get(port, "/metrics")
            with pytest.raises(OSError):
                urllib.request.urlopen(
                    "https://127.0.0.1:%d/metrics" % port, timeout=10, context=context
                )
        with proof_of(made, hosts=["front"]) as proof:
            proof.params.update(certificate=certificate, key=key)
            assert proof.open_doors() == []
            # Without it nothing is tried, which proves nothing.
            proof.params.update(certificate="", key="")
            with pytest.raises(FileNotFoundError):
                proof.open_doors()
        options = planned.read_options(dict(made.wanted, host="front"))
        told = {"packages": ["openssl"], "records": [], "units": {}, "folder": str(made.tls)}
        told.update(records=[str(tmp_path / "none")], **names)
        told.update({key: options[key] for key in ("trusted", "certificate", "key", "renew_days")})
        found = run_module("monitoring_info", told, True)
        assert found["certificate"] == [] and found["authority"]
        found = run_module("monitoring_info", dict(told, names=["other"]), True)
        assert found["certificate"] != []
        found = run_module("monitoring_info", dict(told, key=str(tmp_path / "none")), True)
        assert found["certificate"] == ["%s does not exist" % (tmp_path / "none")]
    finally:
        for name in list(made.children):
            made.stop(name)
        made.receiver.stop()


def test_a_file_that_is_gone_ends_the_curve(monitoring):
    (monitoring.folder / "metrics/gpu/gpu.prom").unlink()
    assert monitoring.wait(lambda: not monitoring.query("trainyard_gpus"))
    assert monitoring.query("node_textfile_scrape_error")[0]["value"][1] == "0"
    monitoring.metrics("gpu", gpus_of(monitoring.answer, 8))


@pytest.fixture(scope="module")
def recorded(monitoring):
    """Each case that a dashboard shows: a lost GPU, an idle job, one that waits, a drained node, a check that fails, and a port of InfiniBand."""
    monitoring.metrics("gpu", gpus_of(monitoring.answer, 8))
    assert monitoring.wait(lambda: monitoring.query("trainyard_gpus == 8"))
    monitoring.metrics("gpu", gpus_of(monitoring.answer, 7, idle=True))
    port = ({"device": "mlx5_0", "port": "1"}, 5e9)
    sent = "node_infiniband_port_data_transmitted_bytes_total"
    monitoring.metrics(
        "host",
        [
            *_metrics.share_families([("/share", (1000, 1))]),
            _metrics.cpu_family("cpu 1 2 3 4 5 6 7 8", 100),
            _metrics.Family(sent, "counter", "Sent.", [port]),
        ],
    )
    monitoring.metrics("health", [_metrics.health_family([("gpu-xid", "Xid 79")])])
    job = {"id": JOB, "account": "vision", "partition": "train", "user": "anna", "gpus": 1}
    job.update(reason="Priority", submit_time="2026-01-01T00:00:00Z", eligible_time=None)
    jobs = [dict(job, state="running"), dict(job, id=JOB + 1, state="pending")]
    quota = [{"account": "vision", "user": "", "gpus": {"used": 1, "limit": 4}}]
    monitoring.metrics("slurm", _slurm_metrics.queue_families([DRAINED], jobs, quota, time.time()))


@pytest.mark.parametrize("name", list(grafana_dashboards.BOARDS))
def test_dashboards(monitoring, recorded, name):
    """Without a Grafana: Prometheus has values for each expression, and the panels do not overlap."""
    board = json.loads((FILES / "dashboards" / (name + ".json")).read_text(encoding="utf-8"))
    assert board == grafana_dashboards.board(name), "run make docs"
    cells, seen = set(), set()
    for panel in board["panels"]:
        assert panel["title"] and panel["id"] not in seen
        seen.add(panel["id"])
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not own & cells, panel["title"]
        cells |= own
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            text = target["expr"]
            for variable, value in (
                ("$slurm_job", str(JOB)),
                ("$host", "front"),
                ("$__range:1m", "5m:1s"),
            ):
                text = text.replace(variable, value)
            try:
                monitoring.query(text)
            except urllib.error.HTTPError as error:
                raise AssertionError("%s: %s" % (panel["title"], error.read().decode())) from error
            assert monitoring.wait(lambda text=text: monitoring.query(text)), panel["title"]


def load(name):
    spec = importlib.util.spec_from_file_location(name, FILES / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_use_of_a_job(monitoring):
    """The expressions of job_usage: the last sums of an ended job, and the jobs whose GPUs are
    idle.
    """
    job_usage = load("job_usage")
    sums = {}
    values = [
        (at, {"gpu": str(at), "uuid": "GPU-%d" % at, "use": at * 0.5, "watts": 100.0, "memory": 9})
        for at in (0, 1)
    ]

    def told(job):
        jobs = {0: job, 1: job}
        _metrics.add_sample(sums, jobs, values, 60)
        keys = [({"gpu": str(at), "uuid": "GPU-%d" % at}, at) for at in (0, 1)]
        use = [(labels, at * 0.5) for labels, at in keys]
        families = _metrics.sum_families(sums) + _metrics._job_family(keys, jobs)
        text = "Share of the last sample period in which a kernel ran."
        families += [_metrics.Family("trainyard_gpu_utilization_ratio", "gauge", text, use)]
        monitoring.metrics("gpu", families)

    def ask(expression):
        return job_usage.query(expression, time.time(), monitoring.ports[1], str(monitoring.tls))

    def seen(job, minutes):
        measured = job_usage._usage.measured(
            job_usage.sums_of(ask(job_usage.sums_query(job, 600, 1)))
        )
        return measured if measured.get("seconds") == 60 * minutes * 2 else None

    told(70)
    assert monitoring.wait(lambda: seen(70, 1))
    told(70)
    found = monitoring.wait(lambda: seen(70, 2))
    assert (found["seen"], found["used"], found["use"], found["idle"]) == (2, 1, 0.25, 0.5)
    # The next job has the GPUs. The sums of the former one are still known.
    told(71)
    assert monitoring.wait(lambda: seen(71, 1))
    assert seen(70, 2)
    assert seen(72, 1) is None
    # Both GPUs had another job a minute ago; the other one is in use.
    assert ask(job_usage.idle_query(1, 15)) == []
    expression = job_usage.idle_query(1, 15).replace("[1m]", "[3s]").replace(">= 3", ">= 2")

    def idle():
        return [(row["metric"]["slurm_job"], row["value"][1]) for row in ask(expression)]

    assert monitoring.wait(lambda: idle() == [("71", "1")])
    # A wrong certificate or no Prometheus is no answer, and not an empty one.
    with pytest.raises(job_usage.NoAnswer):
        job_usage.query("up", time.time(), 1, str(monitoring.tls))
    with pytest.raises(job_usage.NoAnswer, match="parse error"):
        ask("up(")


def test_verify_tells_that_alertmanager_is_down(monitoring):
    """The last one: Prometheus sends its next alert a minute after it could not."""
    monitoring.stop("prometheus-alertmanager")
    with proof_of(monitoring, hosts=["front"]) as proof:
        assert "does not answer" in proof.read()["alerts"]
