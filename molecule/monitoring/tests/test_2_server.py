"""Prometheus reads all hosts, closed to everybody else, and tells of a host that is down. A second run changes nothing."""

from __future__ import annotations

import json
import shlex
import time

ROLE = "monitoring_server"
testinfra_hosts = ["ansible://monitoring-a"]
TLS = "/etc/trainyard/monitoring/tls"
GET = "curl --silent --fail --max-time 10 --cacert %s/ca.pem --cert %s/client.pem --key %s/client.key "


def query(host, expression):
    command = GET % (TLS, TLS, TLS) + "--get https://localhost:9090/api/v1/query --data-urlencode "
    text = host.check_output(command + shlex.quote("query=" + expression))
    return json.loads(text)["data"]["result"]


def wait(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(2)


def test_all_hosts_are_read(host):
    wait(lambda: len(query(host, 'up{job="host"} == 1')) == 2)
    wait(lambda: query(host, 'trainyard_share_answers{instance="monitoring-b"}'))


def test_no_port_is_open_to_others(host):
    for port in (9090, 9093, 9094):
        assert not host.socket("tcp://172.30.112.21:%d" % port).is_listening
    assert not host.socket("tcp://127.0.0.1:9094").is_listening
    person = "su nobody -s /bin/sh -c 'curl --silent --insecure --max-time 5 https://localhost:9090/metrics'"
    assert host.run(person).rc != 0


def test_a_second_run_changes_nothing(playbook):
    done = playbook("monitoring.yml")
    assert (done.code, done.changed) == (0, 0), done.output


def test_a_host_that_is_down(host):
    unit = "prometheus-node-exporter"
    other = host.get_host("ansible://monitoring-b")
    other.run_expect([0], "systemctl stop " + unit)
    wait(lambda: query(host, 'ALERTS{alertname="HostDown",alertstate="firing"}'))
    other.run_expect([0], "systemctl start " + unit)


def test_teardown_leaves_nothing(playbook, host):
    done = playbook("teardown.yml")
    assert done.code == 0, done.output
    assert "prometheus" not in host.check_output("dpkg --list | grep '^[ih]' || true")
    assert not host.user("prometheus").exists
    for path in ("/etc/trainyard/monitoring", "/var/lib/trainyard/metrics", "/var/lib/prometheus"):
        assert not host.file(path).exists
