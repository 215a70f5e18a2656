"""Rank tables: the source's document, the current format, and what is refused."""

import csv
import hashlib
import json
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.filter.hccl_rank_table import hccl_rank_table
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    RankTableError,
    rank_table,
    rendered,
)

FIXTURES = Path(__file__).parents[3] / "fixtures/hccl"
SOURCE = (FIXTURES / "two-servers-of-8.json").read_text(encoding="utf-8")


def devices(last, count=8):
    """The source's addresses: two devices on each of four networks.

    As npu_smi_info returns them, with more keys.
    """
    return [
        {
            "id": number,
            "address": "192.168.%d.%d" % ((number % 4 + 1) * 10, last + number // 4),
            "source": "hccn_tool",
        }
        for number in range(count)
    ]


def hosts():
    return [
        {"name": "worker-a", "server_id": "192.168.3.6", "devices": devices(1)},
        {"name": "worker-b", "server_id": "192.168.3.2", "devices": devices(3)},
    ]


def ordered(text):
    """JSON with the order of its keys."""
    return json.loads(text, object_pairs_hook=list)


def test_index_lists_every_fixture():
    with open(FIXTURES / "INDEX.tsv", encoding="utf-8", newline="") as stream:
        listed = {row["path"]: row["sha256"] for row in csv.DictReader(stream, delimiter="\t")}
    assert listed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FIXTURES.iterdir()
        if path.name != "INDEX.tsv"
    }


def test_the_document_of_the_source():
    table = rank_table(hosts(), "legacy")
    assert table == json.loads(SOURCE) and ordered(rendered(table)) == ordered(SOURCE)
    # The order of the hosts is that of the ranks, and the order in which a host lists its devices
    # does not matter.
    other = rank_table(
        [dict(host, devices=host["devices"][::-1]) for host in hosts()[::-1]], "legacy"
    )["group_list"][0]["instance_list"]
    assert [
        (each["rank_id"], each["server_id"], each["devices"][0]["device_id"])
        for each in other[6:10]
    ] == [
        ("6", "192.168.3.2", "6"),
        ("7", "192.168.3.2", "7"),
        ("8", "192.168.3.6", "0"),
        ("9", "192.168.3.6", "1"),
    ]


def test_the_current_format():
    table = hccl_rank_table(hosts())
    assert list(table) == ["version", "server_count", "server_list", "status"]
    assert (table["version"], table["server_count"], table["status"]) == ("1.0", "2", "completed")
    first, second = table["server_list"]
    assert list(first) == ["server_id", "device", "host_nic_ip"] and (
        first["server_id"],
        first["host_nic_ip"],
    ) == ("192.168.3.6", "reserve")
    assert list(first["device"][0].items()) == [
        ("device_id", "0"),
        ("device_ip", "192.168.10.1"),
        ("rank_id", "0"),
    ]
    assert [device["rank_id"] for server in (first, second) for device in server["device"]] == [
        str(rank) for rank in range(16)
    ]
    assert [device["device_id"] for device in second["device"]] == [
        str(number) for number in range(8)
    ]


def test_a_job_on_some_devices():
    """Ranks are counted, devices keep their numbers. Of 10 devices, 10 comes last."""
    some = [
        {
            "server_id": "10.0.0.1",
            "devices": [{"id": "10", "address": "10.1.0.10"}, {"id": 4, "address": "10.1.0.4"}],
        }
    ]
    assert rank_table(some)["server_list"][0]["device"] == [
        {"device_id": "4", "device_ip": "10.1.0.4", "rank_id": "0"},
        {"device_id": "10", "device_ip": "10.1.0.10", "rank_id": "1"},
    ]
    legacy = rank_table(some, "legacy", board_id="0x0000")
    assert (legacy["para_plane_nic_name"], legacy["para_plane_nic_num"], legacy["board_id"]) == (
        ["eth4", "eth10"],
        "2",
        "0x0000",
    )
    assert legacy["group_list"][0]["server_num"] == "1"


def test_the_text_is_stable():
    assert rendered(rank_table(hosts())) == rendered(
        rank_table([dict(host, devices=host["devices"][::-1]) for host in hosts()])
    )


def change(number, **values):
    changed = hosts()
    changed[number].update(values)
    return changed


@pytest.mark.parametrize(
    "given, said",
    [
        ([], "no host was given"),
        (None, "no host was given"),
        (
            change(1, devices=devices(1)),
            "device 0 of host 'worker-b' and device 0 of host 'worker-a' have the same address '192.168.10.1'",
        ),
        (
            change(1, devices=devices(3, 4)),
            r"unequal numbers of devices \(worker-a 8, worker-b 4\)",
        ),
        (
            change(0, devices=devices(1)[:7] + [{"id": 7, "address": None}]),
            "host 'worker-a': device 7 has no address; configure one with 'hccn_tool -i 7",
        ),
        (
            change(0, devices=devices(1)[:7] + [{"id": 7, "address": "10.0.0.256"}]),
            "'10.0.0.256' of device 7 is not an IP address",
        ),
        (
            change(0, devices=devices(1)[:7] + [{"id": 6, "address": "10.0.0.25"}]),
            "has device 6 twice",
        ),
        (
            change(0, devices=devices(1)[:7] + [{"id": "davinci7", "address": "10.0.0.25"}]),
            "'davinci7' is not the number of a device",
        ),
        (change(0, devices=[]), "host 'worker-a' has no device"),
        (
            change(1, server_id="192.168.3.6"),
            "server '192.168.3.6' is in the rank table twice, as 'worker-a' and 'worker-b'",
        ),
        (hosts() + hosts()[:1], "server '192.168.3.6' is in the rank table twice"),
        (change(1, server_id=""), "host 'worker-b' has no server_id"),
    ],
)
@pytest.mark.parametrize("format", ["1.0", "legacy"])
def test_refusals(given, said, format):
    with pytest.raises(RankTableError, match=said):
        rank_table(given, format)
    with pytest.raises(AnsibleFilterError, match=said):
        hccl_rank_table(given, format)


def test_other_formats_are_refused_with_the_reason():
    with pytest.raises(
        RankTableError,
        match="'1.2' was requested, which is for super nodes .*: it needs the super_device_id",
    ):
        rank_table(hosts(), "1.2")
    with pytest.raises(AnsibleFilterError, match="format '2' is not known; use one of legacy, 1.0"):
        hccl_rank_table(hosts(), 2)
