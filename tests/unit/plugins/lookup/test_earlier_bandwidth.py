"""Bandwidths of earlier runs, from their reports."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import lookup_loader

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth

HOSTS = ["node-a", "node-b"]


def earlier(folder, **options):
    lookup = lookup_loader.get("trainyard.gpu.earlier_bandwidth")
    return lookup.run(
        [str(folder)],
        {},
        **dict({"hosts": HOSTS, "sizes": {"gloo": 1 << 24, "nccl": 1 << 30}}, **options),
    )


def pack(folder, name, busbw, hosts=HOSTS, collective="gloo", cluster="lab", checks=()):
    """A pack whose cluster run did so many GB/s, and whose first host twice as many alone.

    One host has no cluster run.
    """
    runs = []
    for run_id, members, value in [("cluster", hosts, busbw)][: len(hosts) - 1] + [
        ("host:" + hosts[0], hosts[:1], 2 * busbw)
    ]:
        rows = [
            _bandwidth.row(size, size / value / 1e9, 2, 0) for size in _bandwidth.sizes(1 << 24)
        ]
        runs.append({"id": run_id, "hosts": members, "passed": True, "rows": rows})
    path = folder / name / "report.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "cluster": cluster,
                "checks": list(checks),
                "bandwidth": {"collective": collective, "runs": runs},
            }
        ),
        encoding="utf-8",
    )
    return path


def test_no_folder(tmp_path):
    assert earlier(tmp_path / "gone") == [{"gloo": {}, "nccl": {}}]


def test_newest_count(tmp_path):
    for name, busbw in (
        ("20261101T000000Z", 1),
        ("20261102T000000Z", 1),
        ("20261103T000000Z", 2),
        ("20261104T000000Z", 3),
    ):
        pack(tmp_path, name, busbw)
    assert earlier(tmp_path, packs=3) == [{"gloo": {"cluster": 2, "host:node-a": 4}, "nccl": {}}]
    assert earlier(tmp_path, packs=0) == [{"gloo": {}, "nccl": {}}]


def test_what_is_no_history_is_passed_over(tmp_path):
    pack(tmp_path, "1", 1)
    pack(tmp_path, "2", 5, hosts=["node-b", "node-a"])
    pack(tmp_path, "3", 5, collective="nccl")
    for name, text in (
        ("4", "{"),
        ("5", "{}"),
        ("6", "[]"),
        ("7", '{"schema_version": 1, "bandwidth": {}}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text, encoding="utf-8")
    assert earlier(tmp_path)[0]["gloo"]["cluster"] == 1


@pytest.mark.parametrize(
    "check_id, host, verdict, found",
    [
        ("gpu-nvlinks", "node-a", "fail", {}),
        ("gpu-pcie-width", "node-a", "not_evaluated", {}),
        ("gpus-present", "node-a", "fail", {}),
        # The other host's run alone stays.
        ("nic-pcie", "node-b", "fail", {"host:node-a": 4}),
        ("ib-ports", "node-b", "fail", {"host:node-a": 4}),
        ("nic-speed", "node-a, node-b", "fail", {}),
        ("gpu-ecc", "node-a", "warn", {"cluster": 2, "host:node-a": 4}),
        ("gpu-throttle", "node-a", "skipped", {"cluster": 2, "host:node-a": 4}),
        ("clock-step", "node-a", "fail", {"cluster": 2, "host:node-a": 4}),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_run_on_broken_hardware_is_no_history(tmp_path, check_id, host, verdict, found, named):
    check = {"id": check_id, "host": host, "verdict": verdict}
    path = pack(tmp_path, "1", 2, checks=[check])
    assert earlier(tmp_path, **({"pack": str(path)} if named else {}))[0]["gloo"] == found


def test_named_pack(tmp_path):
    pack(tmp_path, "2", 9)
    assert earlier(tmp_path, pack=str(pack(tmp_path, "1", 1)))[0]["gloo"]["cluster"] == 1


@pytest.mark.parametrize(
    "text, said",
    [
        (None, "it cannot be read: No such file or directory"),
        ("{", "it is not JSON"),
        ('{"schema_version": 1}', "it is not a report of verify with a bandwidth"),
    ],
)
def test_named_pack_that_is_none(tmp_path, text, said):
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(
        AnsibleLookupError, match="verify_bandwidth_history: .*report.json: " + said
    ):
        earlier(tmp_path, pack=str(path))


def test_named_pack_of_another_cluster(tmp_path):
    path = pack(tmp_path, "1", 1, hosts=["other-a", "other-b"])
    with pytest.raises(
        AnsibleLookupError, match="is a report of other-a, other-b, and this run has node-a, node-b"
    ):
        earlier(tmp_path, pack=str(path))


def test_hosts_of_another_cluster_may_have_the_same_names(tmp_path):
    pack(tmp_path, "1", 1)
    pack(tmp_path, "2", 9, cluster="other")
    assert earlier(tmp_path, packs=1, cluster="lab")[0]["gloo"]["cluster"] == 1
    assert earlier(tmp_path, packs=1)[0]["gloo"]["cluster"] == 9


@pytest.mark.parametrize("of, said", [("other", "other"), ("", "without a name")])
def test_named_pack_of_a_cluster_of_another_name(tmp_path, of, said):
    path = pack(tmp_path, "1", 1, cluster=of)
    with pytest.raises(AnsibleLookupError) as caught:
        earlier(tmp_path, pack=str(path), cluster="lab")
    assert str(caught.value) == (
        "verify_bandwidth_history: %s is a report of cluster %s, and this is cluster lab (verify_cluster_name). Name a report.json of cluster lab, "
        "or leave it empty" % (path, said)
    )


def test_named_pack_of_one_host(tmp_path):
    path = pack(tmp_path, "1", 1, hosts=HOSTS[:1])
    assert earlier(tmp_path, pack=str(path), hosts=HOSTS[:1], cluster="lab")[0]["gloo"] == {
        "host:node-a": 2
    }
    with pytest.raises(
        AnsibleLookupError, match="is a report of node-a, and this run has node-b. Name"
    ):
        earlier(tmp_path, pack=str(path), hosts=HOSTS[1:])


def test_named_pack_in_which_nothing_was_measured(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(
        '{"schema_version": 1, "cluster": "lab", "bandwidth": {"runs": []}}', encoding="utf-8"
    )
    with pytest.raises(
        AnsibleLookupError, match="is a report of no hosts, because nothing was measured then"
    ):
        earlier(tmp_path, pack=str(path))
