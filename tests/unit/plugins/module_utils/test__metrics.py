"""Metrics of recorded GPUs, NPUs, queues and reports: judged by promtool, and by what the values
mean.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path

import pytest
from eight_gpus import eight_gpus
from prometheus import check_metrics

from ansible_collections.trainyard.gpu.plugins.module_utils import (
    _bandwidth,
    _host_health,
    _metrics,
    _npu_smi,
    _nvidia_smi,
    _slurm,
    _slurm_metrics,
)

FIXTURES = Path(__file__).parents[3] / "fixtures"
MARK = "|7b1f9c42e0d85a36|"
#: One of two nodes is drained since a minute before.
NOW = 1795000000.0


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def answers() -> dict:
    """What the parser says of each document that it accepts."""
    found = {}
    for path in sorted(FIXTURES.glob("nvidia-smi-xml/*.xml")):
        try:
            found[path.stem] = _nvidia_smi.parse_query(text_of(path))
        except _nvidia_smi.ParseError:
            # Who published it has changed the number of its GPUs.
            continue
    return found


def tables() -> dict:
    found = {}
    for path in sorted(FIXTURES.glob("npu-smi/npu-[0-9]*.txt")):
        table = _npu_smi.parse_info(text_of(path))
        if table is not None and not table.cut:
            found[path.stem] = table
    return found


def queue(version: str, name: str = "idle") -> list:
    read = FIXTURES / "slurm" / version
    jobs = [path for path in sorted(read.glob("jobs*.txt"))][0]
    return _slurm_metrics.queue_families(
        _slurm.parse_nodes(text_of(read / ("nodes-%s.txt" % name))),
        _slurm.parse_jobs(text_of(jobs), MARK),
        [],
        NOW,
    )


ANSWERS, TABLES = answers(), tables()
HOST = [
    *_metrics.share_families([("/share", (4000, 1000)), ("/dead", None)]),
    _metrics.certificate_family({"/etc/a.pem": 1.8e9}),
    _metrics.cpu_family("cpu  100 0 50 1000 5 0 1 0 0 0\ncpu0 1 1\n", 100),
]
REPORT = {
    "verdict": "warn",
    "checks": [
        {"id": "gpu-count", "host": "a", "verdict": "pass"},
        {"id": "gpu-count", "host": "a, b", "verdict": "fail"},
        {"id": "all-reduce", "host": "b", "verdict": "skipped"},
        {"id": "share", "host": "b", "verdict": "warn"},
    ],
}
GROUPS = {
    **{name: _metrics.gpu_families(answer, {}) for name, answer in ANSWERS.items()},
    **{name: _metrics.npu_families(table, {}) for name, table in TABLES.items()},
    "slurm 22.05": queue("22.05"),
    "slurm 24.11": queue("24.11"),
    "host": HOST,
    "verify": _metrics.verify_families(REPORT, 1.7e9),
    "health": [
        _metrics.health_family([("share", ""), ("gpu-count", "1 of 2")]),
        _metrics.drains_family([{"event": "drain", "checks": ["share"], "time": 1.7e9}], 1.7e9),
    ],
}


def values(families: list, name: str) -> list:
    return [sample for family in families if family.name == name for sample in family.samples]


def test_there_are_documents_of_each_kind():
    assert len(ANSWERS) >= 14 and len(TABLES) >= 4


def test_promtool_accepts_all_texts():
    for name, families in GROUPS.items():
        text = _metrics.render(families)
        assert text and check_metrics(text) == "", name


def test_names_and_labels():
    units = re.compile(
        r"_(ratio|bytes|celsius|watts|hertz|seconds|joules|total|info|width|width_max|pending|failed|throttled|processes|usable|job|jobs|gpus|passed|answers"
        r"|allocated|used|limit|state|drains)$"
    )
    for group, families in GROUPS.items():
        for family in families:
            assert re.fullmatch(r"trainyard_[a-z_]+", family.name), group
            assert units.search(family.name), family.name
            assert (family.kind == "counter") == family.name.endswith("_total")
            for labels, _value in family.samples:
                # Prometheus has these itself, and would rename ours.
                assert not {"job", "instance"} & set(labels), family.name


def test_no_family_is_in_two_files():
    """node_exporter drops one of the series, and its own metric of errors stays 0."""
    files = [
        {family.name for family in _metrics.gpu_families(ANSWERS["tesla-t4"], {})},
        {family.name for family in HOST} | {"trainyard_gpu_xid_errors_total"},
        *({family.name for family in GROUPS[name]} for name in ("slurm 22.05", "verify", "health")),
    ]
    assert sum(map(len, files)) == len(set().union(*files))


def test_what_the_driver_does_not_report_has_no_sample():
    gtx = ANSWERS["gtx-1070-ti"]
    text = _metrics.render(_metrics.gpu_families(gtx))
    assert gtx.gpus[0]["remapped_rows_pending"] is None
    assert "remapped" not in text and "ecc_errors" not in text and "trainyard_gpu_job" not in text
    assert "trainyard_gpus 1\n" in text


def test_base_units():
    gpu = ANSWERS["h100-80gb-hbm3-v13-580"].gpus[0]
    families = _metrics.gpu_families(ANSWERS["h100-80gb-hbm3-v13-580"])
    labels, used = values(families, "trainyard_gpu_memory_used_bytes")[0]
    assert labels == {"gpu": "0", "uuid": gpu["uuid"]}
    assert used == gpu["memory_used_mib"] * 1048576
    assert values(families, "trainyard_gpu_utilization_ratio")[0][1] <= 1
    clocks = {
        labels["clock"]: value for labels, value in values(families, "trainyard_gpu_clock_hertz")
    }
    assert clocks["sm"] == gpu["clocks_mhz"]["sm"] * 1000000


def test_a_faulty_gpu_is_not_usable():
    text = text_of(FIXTURES / "gpu-state/gpu-requires-reset.txt")
    answer = _nvidia_smi.parse_query(text)
    usable = [
        value for _labels, value in values(_metrics.gpu_families(answer), "trainyard_gpu_usable")
    ]
    assert False in usable


def test_the_job_is_found_by_the_device_number():
    """nvidia-smi counts by PCI address, and the number of the device may be another one."""
    answer = _nvidia_smi.parse_query(eight_gpus())
    gpus = [dict(gpu, minor_number=7 - gpu["index"]) for gpu in answer.gpus]
    answer, number = answer._replace(gpus=gpus), 4
    jobs = dict(
        (labels["gpu"], value)
        for labels, value in values(
            _metrics.gpu_families(answer, {number: 12345678}), "trainyard_gpu_job"
        )
    )
    assert jobs == {str(index): 12345678 if index == 3 else 0 for index in range(8)}
    assert "} 12345678\n" in _metrics.render(_metrics.gpu_families(answer, {number: 12345678}))


def test_npus_have_the_families_of_gpus():
    table = TABLES["npu-1.8.21-8x910A"]
    families = _metrics.npu_families(table, {5: 77})
    assert values(families, "trainyard_gpus") == [({}, 8)]
    names = {family.name for family in _metrics.gpu_families(ANSWERS["tesla-t4"], {})}
    assert {family.name for family in families} <= names
    uuids = [labels["uuid"] for labels, _value in values(families, "trainyard_gpu_info")]
    assert len(set(uuids)) == 8
    jobs = {labels["gpu"]: value for labels, value in values(families, "trainyard_gpu_job")}
    assert jobs["5"] == 77 and sum(jobs.values()) == 77
    total = values(families, "trainyard_gpu_memory_total_bytes")
    assert {value for _labels, value in total} == {table.npus[0]["memory_total_mib"] << 20}


def test_chips_of_one_npu_are_told_apart():
    families = _metrics.npu_families(TABLES["npu-25.2.3-a3-8x2-processes"])
    labels = [tuple(sorted(labels.items())) for labels, _ in values(families, "trainyard_gpu_info")]
    assert len(set(labels)) == len(labels) == 16


def test_active_nvlinks():
    status = (
        "GPU 0: NVIDIA H100 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        "GPU 1: NVIDIA H100 (UUID: GPU-b)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
        "GPU 2: NVIDIA H100 (UUID: GPU-c)\n\tUnable to read it\n"
    )
    family = _metrics.nvlink_family(
        _bandwidth.nvlinks(status), {"GPU-a": "0", "GPU-b": "1", "GPU-c": "2"}
    )
    assert [(labels["gpu"], value) for labels, value in family.samples] == [("0", 1), ("1", 2)]


# --- sums of jobs ---


def sample(use=0.5, watts=300.0, memory=1000, uuid="GPU-1"):
    return {"gpu": "0", "uuid": uuid, "use": use, "watts": watts, "memory": memory}


def test_sums_belong_to_one_job():
    sums: dict = {}
    for use in (0.5, 0.01, 1.0):
        _metrics.add_sample(sums, {3: 7}, [(3, sample(use))], 15)
    own = sums["GPU-1"]
    assert own["job"] == 7 and own["seconds"] == 45 and own["busy"] == 30
    assert own["use"] == pytest.approx(22.65) and own["joules"] == pytest.approx(13500)
    # The next job begins at 0, and a free GPU has none.
    _metrics.add_sample(sums, {3: 8}, [(3, sample(memory=5))], 15)
    assert sums["GPU-1"]["seconds"] == 15 and sums["GPU-1"]["memory"] == 5
    _metrics.add_sample(sums, {}, [(3, sample())], 15)
    assert sums == {}


def test_what_was_not_measured_is_not_idle():
    """A GPU in MIG mode reports no use."""
    sums: dict = {}
    _metrics.add_sample(sums, {3: 7}, [(3, sample(use=None, watts=None, memory=None))], 15)
    assert sums["GPU-1"]["seconds"] == 0 and sums["GPU-1"]["busy"] == 0
    assert check_metrics(_metrics.render(_metrics.sum_families(sums))) == ""


# --- the kernel log ---

LOG = (
    "[ 10.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    "[ 11.0] NVRM: Xid (PCI:0000:3b:00): 13, pid=1, Graphics Exception\n"
    "[ 12.0] NVRM: Xid (PCI:0000:3b:00): 13, pid=1, Graphics Exception\n"
)


def test_an_xid_has_the_action_of_the_table():
    errors = _host_health.parse_gpu_errors(LOG)
    cards = [{"bus": "00000000:3B:00.0", "uuid": "GPU-x", "minor": 2, "model": "H100"}]
    family = _metrics.xid_family(errors, _metrics.count_errors({}, errors), cards)
    told = {labels["code"]: (labels["action"], value) for labels, value in family.samples}
    assert told == {
        "79": (_host_health.XIDS[79].action, 1),
        "13": (_host_health.XIDS[13].action, 2),
    }
    assert {(labels["gpu"], labels["uuid"]) for labels, _ in family.samples} == {("0", "GPU-x")}
    assert check_metrics(_metrics.render([family])) == ""


def test_a_count_does_not_fall_when_the_log_forgets_lines():
    """Prometheus would take it for a counter that began again, and count the rest as new errors."""
    lines = LOG.splitlines(keepends=True)
    counted: dict = {}
    totals = []
    for text in (LOG, "".join(lines[2:]), "".join(lines[2:]) + lines[2].replace("12.0", "13.0")):
        counted = _metrics.count_errors(counted, _host_health.parse_gpu_errors(text))
        totals.append(counted["Xid 0000:3b:00 13"]["total"])
    assert totals == [2, 2, 3]


# --- text and files ---


def test_labels_are_one_line_that_can_be_printed():
    family = _metrics.Family(
        "trainyard_x_info", "gauge", "x", [({"a": 'b"c\\d\ne\x1b[2J' + "y" * 300}, 1)]
    )
    text = _metrics.render([family])
    assert text.count("\n") == 3 and "\x1b" not in text and check_metrics(text) == ""
    assert r"b\"c\\d e?[2J" in text and "y" * 161 not in text


def test_numbers():
    family = _metrics.Family(
        "trainyard_x_ratio",
        "gauge",
        "x",
        [({"n": str(n)}, v) for n, v in enumerate([True, 0.5, 3.0, math.inf, 99999999])],
    )
    words = [line.rpartition(" ")[2] for line in _metrics.render([family]).splitlines()[2:]]
    assert words == ["1", "0.5", "3", "NaN", "99999999"]


def test_a_file_is_new_each_time_and_only_for_its_group(tmp_path):
    path = tmp_path / "gpu.prom"
    _metrics.write(str(path), "a 1\n")
    os.utime(path, (1, 1))
    _metrics.write(str(path), "a 1\n")
    assert path.stat().st_mtime > 1 and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["gpu.prom"]
    with pytest.raises(OSError):
        _metrics.write(str(tmp_path / "none" / "x"), "a")


# --- Slurm ---


def test_states_and_reasons_of_nodes():
    node = {
        "name": "a",
        "states": ["idle", "drain"],
        "reason": "trainyard: verify: 1 of 2 GPUs",
        "reason_user": "root",
        "reason_time": "2026-11-30T03:00:00Z",
        "gpus": [{"model": "h100", "total": 8, "used": 2}],
    }
    now = _slurm_metrics.seconds_of("2026-11-30T04:00:00Z")
    families = _slurm_metrics.queue_families([node], [], [], now)
    assert values(families, "trainyard_slurm_node_state") == [({"node": "a", "state": "drain"}, 1)]
    [(labels, age)] = values(families, "trainyard_slurm_node_reason_age_seconds")
    assert labels["by"] == "trainyard" and age == 3600
    assert values(families, "trainyard_slurm_node_gpus_allocated") == [({"node": "a"}, 2)]


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["idle"], "idle"),
        (["down", "drain"], "down"),
        (["idle", "not_responding"], "down"),
        (["mixed", "fail"], "drain"),
        (["idle", "maintenance"], "maintenance"),
    ],
)
def test_the_state_that_decides(states, state):
    assert _slurm_metrics.node_state({"states": states}) == state


def job():
    values = {"id": 1, "account": "a", "user": "anna", "partition": "p", "gpus": 4}
    values.update(state="pending", reason="Resources", eligible_time=None)
    return dict(values, submit_time="2026-11-30T03:00:00Z")


def test_how_long_jobs_wait():
    now = _slurm_metrics.seconds_of("2026-11-30T04:00:00Z")
    jobs = [
        job(),
        dict(job(), submit_time="2026-11-30T02:00:00Z", reason="Nodes required are DOWN: secret"),
        dict(job(), eligible_time="2026-12-24T00:00:00Z", reason="BeginTime"),
        dict(job(), state="running", id=9),
    ]
    families = _slurm_metrics.queue_families([], jobs, [], now)
    waits = {
        labels["reason"]: value
        for labels, value in values(families, "trainyard_slurm_oldest_wait_seconds")
    }
    # A text of Slurm is no label: each would be a series.
    assert waits == {"Resources": 3600, "other": 7200, "BeginTime": 0}
    assert values(families, "trainyard_slurm_gpus_allocated") == [
        ({"account": "a", "partition": "p"}, 4)
    ]


def test_only_one_family_names_people():
    families = _slurm_metrics.queue_families([], [dict(job(), state="running")], [], NOW)
    named = {family.name for family in families if "anna" in json.dumps(family.samples)}
    assert named == {"trainyard_slurm_job_info"}


def test_quotas():
    usage = [
        {"account": "a", "user": "", "gpus": {"used": 3, "limit": 8}},
        {"account": "b", "user": "", "gpus": {"used": 0, "limit": None}},
        {"account": "a", "user": "anna", "gpus": {"used": 3, "limit": None}},
    ]
    families = _slurm_metrics.queue_families([], [], usage, NOW)
    text = _metrics.render(families)
    assert 'account_gpus_limit{account="a"} 8\n' in text
    assert 'account_gpus_limit{account="b"}' not in text and "anna" not in text


# --- verify ---


def test_the_worst_verdict_of_a_check_and_host_counts():
    families = _metrics.verify_families(REPORT, 1.7e9)
    checks = {
        (labels["check"], labels["host"]): value
        for labels, value in values(families, "trainyard_verify_check_passed")
    }
    assert checks == {("gpu-count", "a"): False, ("gpu-count", "b"): False, ("share", "b"): True}
    assert values(families, "trainyard_verify_passed") == [({}, True)]
