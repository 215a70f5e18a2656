"""disk_quotas, run like in Ansible, with fake repquota and setquota for one file system with user
quotas.
"""

from __future__ import annotations

import json
import os
import sys

import pytest
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.modules import disk_quotas

REPQUOTA = """#!{python}
import json, sys
if "--user" not in sys.argv:
    sys.exit(1)
print("User,BlockStatus,FileStatus,BlockUsed,BlockSoftLimit,BlockHardLimit,BlockGrace,FileUsed,FileSoftLimit,FileHardLimit,FileGrace")
for number, (soft, hard, inodes, most) in json.load(open("{state}")).items():
    print("#%s,ok,ok,20,%d,%d,0,2,%d,%d,0" % (number, soft, hard, inodes, most))
"""
SETQUOTA = """#!{python}
import json, sys
kind, number, *limits, mount = sys.argv[1:]
state = json.load(open("{state}"))
state[number] = [int(limit) for limit in limits]
json.dump(state, open("{state}", "w"))
"""


@pytest.fixture
def quotas(tmp_path):
    state = tmp_path / "state.json"
    for name, text in (("repquota", REPQUOTA), ("setquota", SETQUOTA)):
        (tmp_path / name).write_text(text.format(python=sys.executable, state=state))
        (tmp_path / name).chmod(0o755)

    def run(*asked, former=False, check=False):
        arguments = {
            "record": str(tmp_path / "record.json"),
            "state": "former" if former else "present",
            "_ansible_check_mode": check,
            "quotas": [
                dict(zip(("kind", "id", "limit_mib"), each), path=str(tmp_path)) for each in asked
            ],
            "_ansible_remote_tmp": "/tmp",
        }
        return run_module(
            "disk_quotas", arguments, check, PATH="%s:%s" % (tmp_path, os.environ["PATH"])
        )

    def limits(new=None):
        if new is not None:
            state.write_text(json.dumps(new))
        return json.loads(state.read_text())

    run.limits, run.record = limits, tmp_path / "record.json"
    run.limits({"0": [0, 0, 0, 0], "2001": [900, 1000, 5, 6]})
    return run


def test_hard_limits_are_set_and_everything_else_stays(quotas):
    assert len(quotas(("user", 2001, 10), ("user", 2002, 20), check=True)["limited"]) == 2
    assert (
        quotas.limits() == {"0": [0, 0, 0, 0], "2001": [900, 1000, 5, 6]}
        and not quotas.record.exists()
    )
    assert len(quotas(("user", 2001, 10), ("user", 2002, 20))["limited"]) == 2
    assert quotas.limits() == {
        "0": [0, 0, 0, 0],
        "2001": [900, 10240, 5, 6],
        "2002": [0, 20480, 0, 0],
    }
    assert quotas(("user", 2001, 10), ("user", 2002, 20))["changed"] is False


def test_where_none_are_on_it_says_so(quotas):
    result = quotas(("group", 3001, 10))
    assert (
        result["changed"] is False
        and "no group quotas are on" in result["unsupported"][0]["reason"]
    )


def test_former_limits_come_back_unless_someone_has_set_others(quotas):
    others = ("user", 2002, 20), ("user", 2003, 30)
    quotas(("user", 2001, 10), *others)
    # The first run's finding counts, not what an earlier one has left.
    quotas(("user", 2001, 0), *others)
    quotas(("user", 2001, 15), *others)
    quotas.limits(dict(quotas.limits(), **{"2003": [0, 77, 0, 0]}))
    assert len(quotas(former=True, check=True)["limited"]) == 2
    assert quotas.limits()["2001"] == [900, 15360, 5, 6]
    result = quotas(former=True)
    assert [each["id"] for each in result["limited"]] == [2001, 2002]
    assert quotas.limits() == {
        "0": [0, 0, 0, 0],
        "2001": [900, 1000, 5, 6],
        "2002": [0, 0, 0, 0],
        "2003": [0, 77, 0, 0],
    }
    assert not quotas.record.exists()
    assert quotas(former=True)["changed"] is False


def test_one_that_is_no_longer_asked_for_is_set_back(quotas):
    quotas(("user", 2001, 10), ("user", 2002, 20))
    assert [each["id"] for each in quotas(("user", 2002, 20))["limited"]] == [2001]
    assert quotas.limits() == {
        "0": [0, 0, 0, 0],
        "2001": [900, 1000, 5, 6],
        "2002": [0, 20480, 0, 0],
    }
    quotas.limits(dict(quotas.limits(), **{"2002": [0, 77, 0, 0]}))
    assert quotas()["changed"] is False and not quotas.record.exists()


def test_one_file_system_has_one_limit_for_each(quotas):
    refused = quotas(("user", 2001, 10), ("user", 2002, 20), ("user", 2001, 30))
    assert refused["failed"] and "one limit for user 2001: set 10 or 30 MiB" in refused["msg"]
    assert (
        quotas.limits() == {"0": [0, 0, 0, 0], "2001": [900, 1000, 5, 6]}
        and not quotas.record.exists()
    )


def test_on_an_nfs_server_its_administrator_sets_them(monkeypatch):
    place = {
        "path": "/mnt/user",
        "type": "nfs4",
        "source": "nas.example:/export/home",
        "options": [],
    }
    quotas = object.__new__(disk_quotas.Quotas)
    quotas.unsupported, quotas.record = [], {}
    monkeypatch.setattr(quotas, "limits", None, raising=False)
    quotas.present({"path": "/mnt/user/anna", "kind": "user", "id": 2001, "limit_mib": 10}, place)
    [told] = quotas.unsupported
    assert told["path"] == "/mnt/user/anna"
    assert (
        "NFS server nas.example" in told["reason"]
        and "setquota --user 2001 0 10240 0 0 on its file system" in told["reason"]
    )
