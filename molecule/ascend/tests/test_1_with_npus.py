"""Hosts with eight NPUs each: their environment and rank table, what is refused, drift, preflight's
rules, and what teardown leaves.
"""

from __future__ import annotations

import json
import os

import pytest
import testinfra

HOST = "ascend-a"
testinfra_hosts = ["ansible://" + HOST]
ENVIRONMENT, TABLE = "/etc/trainyard/ascend.sh", "/etc/trainyard/hccl.json"
HOME = "/usr/local/Ascend/ascend-toolkit/latest"
DRIVER, HCCN_TOOL = (
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/driver/tools/hccn_tool",
)


def test_the_rank_table_has_both_hosts(host):
    table = json.loads(host.file(TABLE).content_string)
    assert (table["version"], table["server_count"], table["status"]) == ("1.0", "2", "completed")
    assert [server["server_id"] for server in table["server_list"]] == [
        "172.30.97.21",
        "172.30.97.22",
    ]
    devices = [device for server in table["server_list"] for device in server["device"]]
    assert [device["rank_id"] for device in devices] == [str(rank) for rank in range(16)]
    assert [device["device_ip"] for device in devices[7:9]] == ["10.1.7.1", "10.1.0.2"]
    peer = testinfra.get_host(
        "ansible://ascend-b", ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"], sudo=True
    )
    assert peer.file(TABLE).content_string == host.file(TABLE).content_string, (
        "the same file on all hosts"
    )


def test_a_login_reads_the_environment(host):
    shown = host.check_output(
        "su - alice -c '. %s && echo $PATH && echo $LD_LIBRARY_PATH && echo $PYTHONPATH && echo $ASCEND_OPP_PATH && ulimit -u && "
        "ulimit -H -u'",
        ENVIRONMENT,
    ).splitlines()
    assert shown[0].startswith("%s/bin:%s/compiler/ccec_compiler/bin:" % (HOME, HOME))
    assert (
        shown[1]
        == "%s/lib64:/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64/driver" % HOME
    )
    assert shown[2:4] == [
        "%s/python/site-packages:%s/opp/built-in/op_impl/ai_core/tbe" % (HOME, HOME),
        HOME + "/opp",
    ]
    assert shown[4] == shown[5]


@pytest.mark.usefixtures("host")
def test_the_role_tells_what_it_has_found(role):
    run = role(shared_storage_users=[{"name": "alice", "uid": 2101}, {"name": "bob", "uid": 2102}])
    assert (run.code, run.changed) == (0, 0)
    assert (
        "8 NPUs (910A), driver 1.72.T2.100.B020, firmware 1.72.T5.0.B050. CANN 8.0.RC1 in %s."
        % HOME
        in run.text
    )
    assert "bob may not use the NPUs, as they are not in group 'HwHiAiUser'" in run.text


def test_an_earlier_table_stays_if_a_host_is_not_in_the_run(host, role):
    """The role runs on one host here."""
    before = host.file(TABLE).content_string
    run = role()
    assert (
        "the rank table is not written, because it needs all hosts, and ascend-b is not in this run"
        in run.text
    )
    assert host.file(TABLE).content_string == before


def test_files_that_were_changed_come_back_and_drift_tells_them(host, playbook):
    host.run_expect([0], "echo x >> %s; rm %s" % (ENVIRONMENT, TABLE))
    drift = playbook("drift.yml")
    assert (
        drift.code == 2
        and "/etc/trainyard/ascend.sh as planned changed" in drift.text
        and "/etc/trainyard/hccl.json as planned missing" in drift.text
    )
    again = playbook("gpu_stack.yml", "--tags", "ascend")
    assert (again.code, again.changed) == (0, 2), again.text
    assert "/etc/trainyard/" not in playbook("drift.yml").text
    assert playbook("gpu_stack.yml", "--tags", "ascend").changed == 0


@pytest.mark.parametrize(
    "break_it, repair, said",
    [
        (
            "echo Version=1.72.T2.100.B021 > " + DRIVER,
            "echo Version=1.72.T2.100.B020 > " + DRIVER,
            "different versions of the driver: 1.72.T2.100.B021 on ascend-a, 1.72.T2.100.B020 on ascend-b",
        ),
        (
            "mv /dev/hisi_hdc /dev/kept",
            "mv /dev/kept /dev/hisi_hdc",
            "ascend-a: no /dev/hisi_hdc; load the driver",
        ),
        (
            "mv /usr/local/bin/npu-smi /srv",
            "mv /srv/npu-smi /usr/local/bin",
            "ascend-a: npu-smi: not_installed",
        ),
        (
            "chmod 0644 " + HCCN_TOOL,
            "chmod 0755 " + HCCN_TOOL,
            "has no address; configure one with 'hccn_tool",
        ),
    ],
)
def test_broken_hosts_are_refused_and_nothing_changes(host, playbook, break_it, repair, said):
    before = host.file(TABLE).content_string
    host.run_expect([0], break_it)
    try:
        run = playbook("gpu_stack.yml", "--tags", "ascend")
        assert run.code == 2 and said in run.text, run.text
        assert run.changed == 0 and host.file(TABLE).content_string == before
    finally:
        host.run_expect([0], repair)
    assert playbook("gpu_stack.yml", "--tags", "ascend", ascend_npus="none").code == 0


@pytest.mark.usefixtures("host")
def test_rules_of_preflight(playbook):
    run = playbook("preflight.yml")
    assert (
        "ascend-order" in run.text
        and "the firmware was installed at 2025-03-31 09:51:36, before the driver" in run.text
    )
    refused = playbook("preflight.yml", ascend_rank_table_format="1.2")
    assert (
        refused.code == 2
        and "rank-table-format" in refused.text
        and "it needs the super_device_id of each device" in refused.text
    )
    old = playbook(
        "preflight.yml",
        ascend_rank_table_format="1.0",
        preflight_image_facts={"mindspore": "0.7.0"},
    )
    assert old.code == 2 and "MindSpore 0.7.0 reads 'legacy'" in old.text


def test_a_table_of_the_old_format(host, playbook):
    run = playbook(
        "gpu_stack.yml", "--tags", "ascend", preflight_image_facts={"mindspore": "0.7.0"}
    )
    assert (run.code, run.changed) == (0, 2)
    table = json.loads(host.file(TABLE).content_string)
    assert (table["group_list"][0]["device_num"], table["chip_info"], table["status"]) == (
        "16",
        "910",
        "completed",
    )


def test_no_table_if_none_is_wanted(host, playbook):
    run = playbook("gpu_stack.yml", "--tags", "ascend", ascend_rank_table_format="none")
    assert (run.code, run.changed, host.file(TABLE).exists) == (0, 2, False)


def test_teardown_leaves_what_the_vendor_installed(host, role):
    assert role("remove").code == 0
    left = host.check_output(
        "find /etc /usr/local -type f ! -name '*-' -exec sha256sum {} + -o -type l -printf '%p -> %l\\n' | sort | "
        "diff /srv/files - || true"
    )
    assert left == ""
    assert role("remove").changed == 0
