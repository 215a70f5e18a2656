"""Role ascend on stand-in hosts, of which two have NPUs: what it writes and costs, what it refuses,
drift, and preflight's rules.
"""

from __future__ import annotations

import json

import pytest
import yaml
from stand_in_cluster import StandInCluster
from stand_in_hosts import StandInHost, name_of

# They run playbooks, which takes seconds each.
pytestmark = pytest.mark.slow

ENVIRONMENT, TABLE = "/etc/trainyard/ascend.sh", "/etc/trainyard/hccl.json"
FIRST, SECOND = name_of(0), name_of(1)
DRIFT = [
    {
        "hosts": "cluster",
        "gather_facts": False,
        "tasks": [
            {
                "ansible.builtin.include_role": {
                    "name": "trainyard.gpu.ascend",
                    "tasks_from": "drift",
                }
            },
            {
                "ansible.builtin.debug": {
                    "msg": "{{ inventory_hostname }}: {{ ascend_differences | map(attribute='what') | join(' ') or 'none' }}"
                }
            },
        ],
    }
]


@pytest.fixture(name="cluster", scope="module")
def _cluster(tmp_path_factory):
    """The first two of three hosts have NPUs."""
    cluster = StandInCluster(tmp_path_factory.mktemp("cluster"), 3)
    set_up(cluster)
    return cluster


def set_up(cluster, **changes):
    (cluster.folder / "npus.json").write_text(
        json.dumps({name: dict({"count": 8}, **changes.get(name, {})) for name in (FIRST, SECOND)}),
        encoding="utf-8",
    )


def run(cluster, *arguments, **variables):
    return cluster.playbook(
        "playbooks/gpu_stack.yml",
        "--tags",
        "ascend",
        "--extra-vars",
        json.dumps(variables),
        *arguments,
    )


def written(cluster, name):
    return {
        path
        for path, found in StandInHost(name, cluster.folder).written["files"].items()
        if found and path in (ENVIRONMENT, TABLE)
    }


def test_two_runs(cluster):
    first = run(cluster)
    assert first.code == 0, first.text
    assert (
        written(cluster, FIRST) == written(cluster, SECOND) == {ENVIRONMENT, TABLE}
        and written(cluster, name_of(2)) == set()
    )
    assert "8 NPUs (910A), driver 1.72.T2.100.B020" in first.text
    again = run(cluster)
    assert (again.code, again.changed) == (0, {}), again.text
    assert [len(again.runs[name_of(number)]) for number in range(3)] == [3, 3, 1], (
        "the cluster's facts, and two readings of the NPUs"
    )


def test_hosts_that_differ_are_refused(cluster):
    set_up(
        cluster,
        **{
            SECOND: {
                "ascend_info": {
                    "driver": {"path": "/usr/local/Ascend/driver", "version": "1.72.T2.100.B021"}
                }
            }
        },
    )
    try:
        refused = run(cluster)
        assert (
            refused.code == 2
            and "different versions of the driver: 1.72.T2.100.B020 on %s, 1.72.T2.100.B021 on %s"
            % (FIRST, SECOND)
            in refused.text
        )
        assert run(cluster, ascend_npus="none").code == 0
    finally:
        set_up(cluster)


def test_a_limited_run_leaves_the_table_alone(cluster):
    limited = run(cluster, "--limit", FIRST)
    assert (limited.code, limited.changed) == (0, {}), limited.text
    assert "it needs all hosts, and %s is not in this run" % SECOND in limited.text


def test_required_npus(cluster):
    refused = run(cluster, ascend_npus="required")
    assert refused.code == 2 and "%s: found no NPU on the PCI bus" % name_of(2) in refused.text


def test_another_format_drift_and_no_table(cluster):
    play = cluster.folder / "drift.yml"
    play.write_text(yaml.safe_dump(DRIFT), encoding="utf-8")
    good = cluster.playbook(str(play))
    assert (
        good.code == 0
        and ["%s: none" % name_of(number) in good.text for number in range(3)] == [True] * 3
    ), good.text
    old = {"preflight_image_facts": {"mindspore": "0.7.0"}}
    differs = cluster.playbook(str(play), "--extra-vars", json.dumps(old))
    assert "%s: %s" % (FIRST, TABLE) in differs.text
    changed = run(cluster, **old)
    assert set(changed.changed) == {FIRST, SECOND}, changed.text
    gone = run(cluster, ascend_rank_table_format="none")
    assert gone.code == 0 and written(cluster, FIRST) == {ENVIRONMENT}, gone.text


def test_preflight(cluster):
    set_up(
        cluster,
        **{
            SECOND: {
                "ascend_info": {
                    "install_order": {
                        "judged": True,
                        "problems": ["the firmware was installed before the driver"],
                    }
                }
            }
        },
    )
    try:
        warned = cluster.playbook("playbooks/preflight.yml")
        assert warned.code == 0 and "WARN ascend-order: %s" % SECOND in warned.text, warned.text
        refused = cluster.playbook(
            "playbooks/preflight.yml",
            "--extra-vars",
            json.dumps({"ascend_rank_table_format": "1.2"}),
        )
        assert (
            refused.code == 2
            and "BLOCK rank-table-format" in refused.text
            and "super_device_id" in refused.text
        )
    finally:
        set_up(cluster)
