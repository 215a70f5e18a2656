"""What many hosts with eight GPUs cost Prometheus: targets under TLS on addresses of the loopback
network, the files of role monitoring, the real daemon.

As a program, it is the targets: monitoring_load.py FOLDER PORT, where FOLDER has a certificate
NAME.pem for each host, its key, the authority, and the text.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HOSTS, SECONDS = 64, 400
#: Values that change at each look, by a share of themselves.
RESTLESS = re.compile(
    r"_(utilization_ratio|power_watts|temperature_celsius|used_bytes|clock_hertz|avail_bytes|load1)\b"
)
#: Counters that rise on a bad day only. Their alerts are not those of a cluster that works.
CALM = re.compile(r"error|downed|recovery|discards|dropped")
#: Of each port of InfiniBand. This machine has none.
PORT_COUNTERS = (
    "port_data_received_bytes port_data_transmitted_bytes port_packets_received port_packets_transmitted unicast_packets_received unicast_packets_transmitted"
    " multicast_packets_received multicast_packets_transmitted link_downed link_error_recovery symbol_error local_link_integrity_errors"
    " port_errors_received port_discards_received port_discards_transmitted port_constraint_errors_received port_constraint_errors_transmitted"
    " port_receive_remote_physical_errors port_receive_switch_relay_errors port_transmit_wait excessive_buffer_overrun_errors vl15_dropped"
).split()
TICKS = os.sysconf("SC_CLK_TCK")


def address(number: int) -> str:
    return "127.0.1.%d" % (number + 1)


def varied(lines: list[str], looks: int, chance: random.Random) -> str:
    """Return the text of one look: counters rise, and measured values change."""
    found = []
    for line in lines:
        name, _space, value = line.rpartition(" ")
        if line.startswith("#"):
            found.append(line)
        elif name.partition("{")[0].endswith("_total") and not CALM.search(name):
            found.append("%s %r" % (name, float(value) + looks * chance.randrange(1, 2000)))
        elif RESTLESS.search(name):
            found.append("%s %.6g" % (name, float(value) * chance.uniform(0.9, 1.1)))
        else:
            found.append(line)
    return "\n".join(found) + "\n"


def infiniband(ports: int = 8) -> str:
    """Return what node_exporter tells of the ports of a host with as many as GPUs."""
    found = []
    for number in range(ports):
        labels = '{device="mlx5_%d",port="1"}' % number
        found += ["node_infiniband_%s_total%s 0" % (name, labels) for name in PORT_COUNTERS]
        found.append("node_infiniband_state_id%s 4" % labels)
    return "\n".join(found) + "\n"


def serve(folder: Path, port: int) -> None:
    """Answer as each of the hosts, until this process is stopped."""
    lines = (folder / "text").read_text(encoding="utf-8").splitlines()
    for number, certificate in enumerate(sorted(folder.glob("sim-*.pem"))):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, folder / "host.key")
        looks, chance = [0], random.Random(number)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self, looks=looks, chance=chance):
                looks[0] += 1
                text = varied(lines, looks[0], chance).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_arguments):
                pass

        server = http.server.ThreadingHTTPServer((address(number), port), Handler)
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Event().wait()


def used(pid: int) -> tuple[float, float]:
    """Return the seconds of CPU that a process has had, and the MB of memory that it has."""
    fields = Path("/proc/%d/stat" % pid).read_text(encoding="ascii").rpartition(")")[2].split()
    status = Path("/proc/%d/status" % pid).read_text(encoding="ascii")
    kib = int(re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE).group(1))
    return (int(fields[11]) + int(fields[12])) / TICKS, kib * 1024 / 1e6


def size(folder: Path) -> int:
    """Return the bytes that the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def measured(hosts: int = HOSTS, seconds: float = SECONDS) -> dict:
    """Return what Prometheus needs for some hosts with eight GPUs each, with all rules of
    the role.
    """
    from eight_gpus import eight_gpus
    from monitoring_daemons import Monitoring

    from ansible_collections.trainyard.gpu.plugins.module_utils import _metrics, _nvidia_smi

    class Simulated(Monitoring):
        """At the intervals of the role."""

        seconds = {}

    names = [{"name": "sim-%03d" % number, "address": address(number)} for number in range(hosts)]
    with tempfile.TemporaryDirectory() as scratch:
        cluster, targets = Simulated(Path(scratch), names), None
        try:
            answer = _nvidia_smi.parse_query(eight_gpus())
            jobs = {0: 4711}
            cluster.metrics("gpu", _metrics.gpu_families(answer, jobs))
            cluster.start("prometheus-node-exporter")
            text = cluster.wait(lambda: cluster.get(cluster.ports[0], "/metrics"))
            (cluster.tls / "text").write_text(text + infiniband(), encoding="utf-8")
            for name, certificate in cluster.signed.items():
                path = cluster.tls / (name.replace("host-", "") + ".pem")
                path.write_text(certificate, encoding="utf-8")
            targets = subprocess.Popen(
                [sys.executable, __file__, str(cluster.tls), str(cluster.ports[0])]
            )
            cluster.start("prometheus-alertmanager")
            cluster.start("prometheus")

            def one(expression):
                rows = cluster.query(expression)
                return float(rows[0]["value"][1]) if rows else 0.0

            read = 'count(up{job="host"} == 1)'
            cluster.wait(lambda: one(read) == hosts + 1, 120)
            pid = cluster.children["prometheus"].pid
            samples = "sum(prometheus_tsdb_head_samples_appended_total)"
            # Its own counters are as old as the last look at itself.
            before, begun, counted = used(pid), time.monotonic(), one(samples)
            time.sleep(seconds)
            after, passed = used(pid), time.monotonic() - begun
            return {
                "hosts": hosts,
                "seconds": round(passed),
                "load": os.getloadavg()[1],
                "series": int(one("prometheus_tsdb_head_series")),
                "samples": int(one(samples) - counted),
                "percent of a core": round(100 * (after[0] - before[0]) / passed, 1),
                "MB of memory": round(after[1]),
                "MB of disk": round(size(cluster.folder / "data") / 1e6, 1),
                "scrape of 99 % in ms": round(
                    1000 * one('quantile(0.99, scrape_duration_seconds{job="host"})')
                ),
                "interval of 99 % in s": round(
                    one('max(prometheus_target_interval_length_seconds{quantile="0.99"})'), 3
                ),
                "all rules in ms": round(
                    1000 * one("sum(prometheus_rule_group_last_duration_seconds)"), 1
                ),
                "hosts that were not read": hosts + 1 - int(one(read)),
            }
        finally:
            for name in list(cluster.children):
                cluster.stop(name)
            cluster.receiver.stop()
            if targets:
                targets.kill()
                targets.wait()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(measured(), indent=1))
