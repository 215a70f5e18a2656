"""Prometheus reads all hosts and their GPUs, closed to everybody else, and alerts of real faults
reach a webhook and a mailbox.
"""

from __future__ import annotations

ROLE = "monitoring_server"
ADDRESS, PEER = "172.30.112.21", "172.30.112.22"
UNIT = "prometheus-node-exporter"
OPS = ["ops@example.org"]


def test_all_hosts_are_read(front, wait):
    wait(lambda: len(front.query('up{job="host"} == 1')) == 2)
    rows = wait(lambda: front.query("trainyard_host_cpu_seconds_total{mode='idle'}"))
    assert {row["metric"]["instance"] for row in rows} <= {"monitoring-a", "monitoring-b"}


def test_gpus_are_read_by_one_nvidia_smi(front, other, wait):
    rows = wait(lambda: front.query("trainyard_gpu_info"))
    told = {row["metric"]["minor"]: row["metric"]["uuid"][:12] for row in rows}
    assert told == {"%d" % minor: "GPU-%08x" % at for at, minor in enumerate([0, 1, 3, 4])}
    assert {row["metric"]["instance"] for row in rows} == {"monitoring-b"}
    assert other.run("pgrep --full --count '[n]vidia-smi -q -x -l 15$'") == "1\n"


def test_no_port_is_open_to_others(front, other):
    for port in (9090, 9093, 9094):
        assert not front.host.socket("tcp://%s:%d" % (ADDRESS, port)).is_listening
        assert other.get("%s:%d" % (ADDRESS, port), certificate="host")[0] != 0
    assert not front.host.socket("tcp://127.0.0.1:9094").is_listening
    assert not front.host.socket("udp://127.0.0.1:9094").is_listening


def test_a_gpu_that_disappears_and_a_full_share(front, other, received, wait):
    assert front.query("trainyard_gpus")[0]["value"][1] == "4"
    other.gpus(minors=[0, 1, 3])
    # Over the share of this host only.
    other.run(
        "mount -t tmpfs -o size=1m full /data1/share && dd if=/dev/zero of=/data1/share/fill || true"
    )
    try:
        other.run("systemctl start trainyard-metrics-host.service")
        lost, mailed = wait(lambda: received.told("GpuLost", "monitoring-b"), 240)
        assert (lost["severity"], mailed) == ("page", OPS)
        least = front.query("min(trainyard_share_available_bytes / trainyard_share_size_bytes)")
        assert float(least[0]["value"][1]) < 0.05
        full, mailed = wait(lambda: received.told("ShareNearlyFull", path="/data1/share"), 240)
        assert (full["severity"], mailed) == ("warn", OPS)
        firing = front.query('ALERTS{alertstate="firing"}')
        assert {"GpuLost", "ShareNearlyFull"} <= {row["metric"]["alertname"] for row in firing}
    finally:
        other.run("umount /data1/share")
        other.gpus()
        other.run("systemctl start trainyard-metrics-host.service")
    wait(lambda: not front.query('ALERTS{alertname="GpuLost"}'))


def test_a_driver_that_hangs_leaves_no_flat_line(front, other, wait):
    other.run("touch /var/spool/hang")
    try:
        wait(lambda: not front.query("trainyard_gpus"))
        assert not other.host.file("/var/lib/trainyard/metrics/gpu/gpu.prom").exists
        assert front.query('up{job="host",instance="monitoring-b"}')[0]["value"][1] == "1"
    finally:
        other.run("rm /var/spool/hang")
    wait(lambda: front.query("trainyard_gpus == 4"))


def test_a_host_that_is_down(front, other, received, wait):
    with other.paused():
        down, mailed = wait(lambda: received.told("HostDown", "monitoring-b"), 240)
    assert (down["severity"], mailed) == ("page", OPS)
    wait(lambda: len(front.query('up{job="host"} == 1')) == 2)


def test_a_new_certificate_needs_no_restart(front, other, playbook):
    def serial():
        get = "openssl s_client -connect %s:9100 < /dev/null 2> /dev/null | openssl x509 -noout -serial"
        return front.run(get % PEER)

    started = "systemctl show --property=ActiveEnterTimestampMonotonic " + UNIT
    before, begun = serial(), other.run(started)
    other.run("rm /etc/trainyard/monitoring/tls/host.key")
    done = playbook("monitoring.yml")
    assert done.code == 0, done.output
    assert serial() != before and other.run(started) == begun
    assert front.get(PEER + ":9100")[0] == 0


def test_verify_and_drift(front, playbook):
    """verify knows the metrics, and writes its own verdict for them. drift finds what somebody has
    changed.
    """
    playbook("verify.yml")
    report = front.run("cat /var/lib/trainyard/metrics/verify/verify.prom")
    for check in ("metrics-up", "metrics-fresh", "metrics-closed", "alerts-path"):
        line = 'trainyard_verify_check_passed{check="%s",host="monitoring-a"} 1\n' % check
        assert line in report, report
    path = "/etc/trainyard/monitoring/web.yml"
    front.run("echo '# changed' >> " + path)
    assert "web.yml" in playbook("drift.yml").output
    # The playbook repairs it.
    done = playbook("monitoring.yml")
    assert done.code == 0, done.output
    assert "# changed" not in front.run("cat " + path)


def test_the_second_run_changes_nothing(playbook):
    """After faults, new certificates and verify."""
    done = playbook("monitoring.yml")
    assert (done.code, done.changed) == (0, 0), done.output
