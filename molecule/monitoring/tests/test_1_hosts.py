"""node_exporter on each host: who gets an answer, and what people on the host can read."""

from __future__ import annotations

ROLE = "monitoring_host"
testinfra_hosts = ["ansible://monitoring-b"]
TLS = "/etc/trainyard/monitoring/tls"
URL = "https://172.30.112.22:9100/metrics"


def test_only_the_cluster_address_listens(host):
    assert host.socket("tcp://172.30.112.22:9100").is_listening
    assert not host.socket("tcp://127.0.0.1:9100").is_listening
    assert host.service("trainyard-metrics-host.timer").is_enabled


def test_the_certificate_of_a_host_is_no_client(host):
    get = "curl --silent --show-error --max-time 5 --cacert %s/ca.pem" % TLS
    for more in ("", " --cert %s/host.pem --key %s/host.key" % (TLS, TLS)):
        assert host.run(get + more + " " + URL).rc != 0


def test_people_read_nothing(host):
    for path in (TLS + "/host.key", "/var/lib/trainyard/metrics/host/host.prom"):
        assert host.file(path).exists
        assert host.run("su nobody -s /bin/sh -c 'cat %s'" % path).rc != 0
