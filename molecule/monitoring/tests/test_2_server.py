"""Prometheus reads all hosts, closed to everybody else, and its alerts reach a webhook and a mailbox. Teardown leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROLE = "monitoring_server"
ROOT = Path(__file__).resolve().parents[3]
ADDRESS = "172.30.112.21"
UNIT = "prometheus-node-exporter"
LEFT = ("/etc/trainyard/monitoring", "/var/lib/trainyard/metrics", "/var/lib/prometheus")


@pytest.fixture(scope="module")
def received(front):
    """What the webhook and the mailbox of the scenario's receiver get, as texts."""
    program = (ROOT / "tests/support/alert_receivers.py").read_text(encoding="utf-8")
    front.run("cat > /root/receivers.py << 'END'\n%s\nEND" % program)
    front.run(
        "systemd-run --unit=receivers --collect python3 /root/receivers.py 8025 8026 /root/received"
    )
    yield lambda: front.host.run("cat /root/received").stdout.splitlines()
    front.run("systemctl stop receivers")


def test_all_hosts_are_read(front, wait):
    wait(lambda: len(front.query('up{job="host"} == 1')) == 2)
    rows = wait(lambda: front.query("trainyard_host_cpu_seconds_total{mode='idle'}"))
    assert {row["metric"]["instance"] for row in rows} <= {"monitoring-a", "monitoring-b"}


def test_no_port_is_open_to_others(front, other):
    for port in (9090, 9093, 9094):
        assert not front.host.socket("tcp://%s:%d" % (ADDRESS, port)).is_listening
        assert other.get("%s:%d" % (ADDRESS, port), certificate="host")[0] != 0
    assert not front.host.socket("tcp://127.0.0.1:9094").is_listening
    assert not front.host.socket("udp://127.0.0.1:9094").is_listening


def test_a_host_that_is_down(front, other, received, wait):
    """With a shortened time. The other alerts of the host are held back."""
    other.run("systemctl stop " + UNIT)
    try:
        wait(lambda: front.query('ALERTS{alertname="HostDown",alertstate="firing"}'))

        def told():
            lines = [json.loads(line) for line in received()]
            alerts = [alert for line in lines for alert in line.get("alerts", [])]
            down = [alert for alert in alerts if alert["labels"]["alertname"] == "HostDown"]
            mails = [line for line in lines if "HostDown" in line.get("mail", "")]
            # Hosts in containers have other alerts, too, such as that of the clock.
            return (down, mails) if down and mails else None

        down, mails = wait(told, 180)
    finally:
        other.run("systemctl start " + UNIT)
    assert down[0]["labels"]["instance"] == "monitoring-b"
    assert mails[0]["to"] == ["ops@example.org"]
    wait(lambda: len(front.query('up{job="host"} == 1')) == 2)


def test_a_new_certificate_needs_no_restart(front, other, playbook):
    def serial():
        get = "openssl s_client -connect 172.30.112.22:9100 < /dev/null 2> /dev/null | openssl x509 -noout -serial"
        return front.run(get)

    started = "systemctl show --property=ActiveEnterTimestampMonotonic " + UNIT
    before, begun = serial(), other.run(started)
    other.run("rm /etc/trainyard/monitoring/tls/host.pem")
    done = playbook("monitoring.yml")
    assert done.code == 0, done.output
    assert serial() != before and other.run(started) == begun
    assert front.get("172.30.112.22:9100")[0] == 0


def test_verify_and_drift(front, playbook):
    """verify knows the metrics, and writes its own verdict for them. drift finds what somebody has changed."""
    playbook("verify.yml")
    report = front.run("cat /var/lib/trainyard/metrics/verify/verify.prom")
    for check in ("metrics-up", "metrics-closed", "alerts-path"):
        line = 'trainyard_verify_check_passed{check="%s",host="monitoring-a"} 1\n' % check
        assert line in report, report
    path = "/etc/trainyard/monitoring/web.yml"
    front.run("cp -p %s /root/web.yml && echo '# changed' >> %s" % (path, path))
    assert "web.yml" in playbook("drift.yml").output
    front.run("cp -p /root/web.yml %s" % path)


def test_teardown_leaves_nothing(front, other, playbook):
    done = playbook("teardown.yml")
    assert done.code == 0, done.output
    for host in (front, other):
        assert "prometheus" not in host.run("dpkg --list | grep '^[ih]' || true")
        assert not host.host.user("prometheus").exists and not host.host.group("prometheus").exists
        for path in LEFT:
            assert not host.host.file(path).exists, path
        units = host.run("ls /etc/systemd/system")
        assert "trainyard" not in units and "prometheus" not in units
        for port in (9090, 9093, 9100):
            assert not host.host.socket("tcp://%d" % port).is_listening
