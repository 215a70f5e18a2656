"""node_exporter on each host: who gets an answer, and what people on the host can read."""

from __future__ import annotations

import pytest

ROLE = "monitoring_host"
TLS = "/etc/trainyard/monitoring/tls"
EXPORTER = "172.30.112.22:9100"


def test_only_the_cluster_address_listens(other):
    assert other.host.socket("tcp://" + EXPORTER).is_listening
    assert not other.host.socket("tcp://127.0.0.1:9100").is_listening
    assert other.host.service("trainyard-metrics-host.timer").is_enabled


def test_prometheus_host_gets_an_answer(front):
    code, text = front.get(EXPORTER)
    assert code == 0 and "node_load1" in text


@pytest.mark.parametrize("certificate", ["", "host"])
def test_nobody_else_does(front, other, certificate):
    for host in (front, other):
        code, text = host.get(EXPORTER, certificate=certificate)
        assert code != 0 and "node_load1" not in text


def test_people_read_nothing(front, other):
    """With a shell on the host. The files belong to root and to the group of the daemons."""
    paths = ["%s/host.key" % TLS, "/var/lib/trainyard/metrics/host/host.prom"]
    for host in (front, other):
        for path in paths + ["%s/client.key" % TLS] * (host is front):
            assert host.host.file(path).exists, path
            assert host.host.run("runuser -u nobody -- cat %s" % path).rc != 0, path
    # Nor without a certificate, on the ports of the loopback address.
    for port in (9090, 9093):
        code, text = front.get("localhost:%d" % port, certificate="")
        assert code != 0 and text == ""
        code, text = front.get("localhost:%d" % port, before="runuser -u nobody -- ")
        assert code != 0 and text == ""
