"""The dashboards of role monitoring for Grafana, from one table. `make docs` writes them, so that
each expression stands once and can be checked without Grafana.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "roles/monitoring/files/dashboards"
HOST = '{instance=~"$host"}'
OF_JOB = " and on (instance, uuid) (trainyard_gpu_job == $slurm_job)"
IDLE = (
    'count by (slurm_job) (count_values by (instance, uuid) ("slurm_job", trainyard_gpu_job > 0)'
    " and on (instance, uuid) (max_over_time(trainyard_gpu_utilization_ratio[30m]) < 0.01))"
)
ALLOCATED = "count(trainyard_gpu_job > 0) or vector(0)"
SLURM_JOBS = "label_values(trainyard_slurm_job_info, slurm_job)"
#: Title, variables (name and query), and panels: kind, title, unit and expressions.
BOARDS = {
    "cluster": (
        "Cluster",
        [],
        [
            ("stat", "GPUs with a job", "none", [ALLOCATED]),
            ("stat", "GPUs", "none", ["sum(trainyard_gpus)"]),
            ("stat", "Mean GPU use", "percentunit", ["avg(trainyard_gpu_utilization_ratio)"]),
            ("stat", "Power of the GPUs", "watt", ["sum(trainyard_gpu_power_watts)"]),
            (
                "timeseries",
                "GPUs in use by account",
                "none",
                ["sum by (account) (trainyard_slurm_account_gpus_used)"],
            ),
            (
                "timeseries",
                "Waiting jobs by account",
                "none",
                ['sum by (account) (trainyard_slurm_jobs{state="pending"})'],
            ),
            (
                "timeseries",
                "Quota in use",
                "percentunit",
                [
                    "trainyard_slurm_account_gpus_used / on (account) trainyard_slurm_account_gpus_limit"
                ],
            ),
            (
                "timeseries",
                "Busy, allocated, present",
                "none",
                [
                    "count(trainyard_gpu_utilization_ratio > 0.05) or vector(0)",
                    ALLOCATED,
                    "sum(trainyard_gpus)",
                ],
            ),
            (
                "state-timeline",
                "Nodes out of service",
                "none",
                ['trainyard_slurm_node_state{state=~"drain|down"}'],
            ),
            (
                "status-history",
                "Mean GPU use of each host",
                "percentunit",
                ["avg by (instance) (trainyard_gpu_utilization_ratio)"],
            ),
        ],
    ),
    "hosts": (
        "Hosts and health",
        [("host", "label_values(trainyard_gpus, instance)")],
        [
            ("table", "Alerts", "none", ['ALERTS{alertstate="firing"}']),
            ("table", "Failed health checks", "none", ["trainyard_health_check_passed == 0"]),
            ("timeseries", "Temperature", "celsius", ["trainyard_gpu_temperature_celsius" + HOST]),
            ("timeseries", "Power", "watt", ["trainyard_gpu_power_watts" + HOST]),
            ("timeseries", "Throttled", "none", ["trainyard_gpu_throttled" + HOST]),
            (
                "timeseries",
                "Processors in use",
                "percentunit",
                [
                    '1 - sum by (instance) (rate(trainyard_host_cpu_seconds_total{mode=~"idle|iowait",instance=~"$host"}[5m]))'
                    " / sum by (instance) (rate(trainyard_host_cpu_seconds_total%s[5m]))" % HOST
                ],
            ),
            (
                "timeseries",
                "InfiniBand sent",
                "Bps",
                ["rate(node_infiniband_port_data_transmitted_bytes_total%s[5m])" % HOST],
            ),
            (
                "timeseries",
                "Free share",
                "percentunit",
                ["trainyard_share_available_bytes%s / trainyard_share_size_bytes" % HOST],
            ),
        ],
    ),
    "job": (
        "Job",
        [("slurm_job", SLURM_JOBS)],
        [
            ("timeseries", "GPU use", "percentunit", ["trainyard_gpu_utilization_ratio" + OF_JOB]),
            ("timeseries", "GPU memory", "bytes", ["trainyard_gpu_memory_used_bytes" + OF_JOB]),
            ("timeseries", "Power", "watt", ["trainyard_gpu_power_watts" + OF_JOB]),
            (
                "timeseries",
                "Temperature",
                "celsius",
                ["trainyard_gpu_temperature_celsius" + OF_JOB],
            ),
            (
                "stat",
                "GPU hours of the shown time",
                "none",
                ["sum(sum_over_time((trainyard_gpu_job == bool $slurm_job)[$__range:1m])) / 60"],
            ),
        ],
    ),
    "usage": (
        "Usage",
        [],
        [
            (
                "timeseries",
                "Mean number of GPUs in use by account",
                "none",
                ["sum by (account) (avg_over_time(trainyard_slurm_account_gpus_used[1h]))"],
            ),
            (
                "timeseries",
                "Longest wait",
                "s",
                ["max by (partition, reason) (trainyard_slurm_oldest_wait_seconds)"],
            ),
            ("table", "Idle GPUs by job", "none", [IDLE]),
            (
                "timeseries",
                "GPU use of allocated GPUs",
                "percentunit",
                [
                    "avg(trainyard_gpu_utilization_ratio and on (instance, uuid) (trainyard_gpu_job > 0))"
                ],
            ),
        ],
    ),
}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _target(kind: str, number: int, expression: str) -> dict:
    return {
        "refId": chr(65 + number),
        "expr": expression,
        "datasource": _SOURCE,
        "instant": kind in ("stat", "table"),
        "format": "table" if kind == "table" else "time_series",
    }


def _panels(rows: list) -> list[dict]:
    """Return the panels from left to right, each row as high as its first panel."""
    found, x, y, height = [], 0, 0, 0
    for number, (kind, title, unit, expressions) in enumerate(rows, 1):
        width, own = (6, 4) if kind == "stat" else (12, 8)
        if x + width > 24 or own != height:
            x, y, height = 0, y + height, own
        found.append(
            {
                "id": number,
                "type": kind,
                "title": title,
                "gridPos": {"x": x, "y": y, "w": width, "h": own},
                "datasource": _SOURCE,
                "fieldConfig": {"defaults": {"unit": unit, "custom": {}}, "overrides": []},
                "options": {},
                "targets": [_target(kind, at, text) for at, text in enumerate(expressions)],
            }
        )
        x += width
    return found


def board(name: str) -> dict:
    title, variables, rows = BOARDS[name]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    asked = [
        {
            "name": variable,
            "type": "query",
            "query": query,
            "datasource": _SOURCE,
            "refresh": 2,
            "includeAll": variable == "host",
            "multi": variable == "host",
        }
        for variable, query in variables
    ]
    return {
        "uid": "trainyard-" + name,
        "title": "trainyard: " + title,
        "tags": ["trainyard"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "1m",
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [source, *asked]},
        "panels": _panels(rows),
    }


def text(name: str) -> str:
    return json.dumps(board(name), indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in BOARDS:
        (FOLDER / (each + ".json")).write_text(text(each), encoding="utf-8")
