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


def test_a_person_reads_nothing(front, other):
    """With a shell on the host of Prometheus and without one, by ports, sockets, files, processes
    and the log.
    """
    for host in (front, other):
        assert host.intrude("alice") == {
            "answers": [],
            "sockets": [],
            "files": [],
            "processes": [],
            "journal": "",
        }
    # The same program finds all of it as root.
    found = front.intrude("root")
    assert set(found["processes"]) == {"environ", "fd", "maps"} and found["journal"]
    for path in ("%s/host.key" % TLS, "%s/client.key" % TLS):
        assert path in found["files"]
    assert "/var/lib/trainyard/metrics/host/host.prom" in found["files"]
