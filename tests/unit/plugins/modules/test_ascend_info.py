# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ascend_info: on this machine, which has no NPU, and with files of a host that has some."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.modules import ascend_info


def test_a_host_without_npus(tmp_path):
    own = tmp_path / "own"
    own.write_text("x", encoding="utf-8")
    found = run_module(
        "ascend_info",
        {
            "files": [str(own), str(tmp_path / "none")],
            "rank_tables": [str(own)],
            "cann": str(tmp_path),
        },
        check=True,
    )
    assert (found["changed"], found["devices"], found["driver"]["version"], found["cann"]) == (
        False,
        [],
        "",
        {"path": "", "version": ""},
    )
    assert found["missing_devices"] == ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert list(found["files"]) == [str(own)] and found["rank_tables"] == {
        str(own): {"format": "", "status": "", "number": ""}
    }
    assert found["install_order"] == {"judged": False, "problems": []} and found["processes"]


def test_a_path_of_cann_has_to_be_absolute():
    assert "cann: 'latest' is not absolute; give a path that begins with /" in str(
        run_module("ascend_info", {"cann": "latest"}, check=True)
    )


def test_device_files_with_group_and_mode(tmp_path, monkeypatch):
    (tmp_path / "davinci1").touch(mode=0o600)
    os.chmod(tmp_path / "davinci1", 0o660)
    monkeypatch.setattr(ascend_info, "npu_nodes", lambda: [])
    monkeypatch.setattr(
        ascend_info, "CONTROL_NODES", (str(tmp_path / "davinci1"), str(tmp_path / "gone"))
    )
    (found,) = ascend_info.devices()
    assert (found["path"], found["mode"]) == (str(tmp_path / "davinci1"), "0660")

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(ascend_info.grp, "getgrgid", nobody)
    assert ascend_info.device(str(tmp_path))["group"] == str(os.stat(tmp_path).st_gid)


@pytest.mark.parametrize(
    "people, missing",
    [(["anna"], []), (["bert"], ["bert"]), (["carl"], []), (["nobody-of-this-host"], [])],
)
def test_people_outside_of_the_group(monkeypatch, people, missing):
    def account(name):
        return SimpleNamespace(pw_gid={"anna": 100, "bert": 100, "carl": 1500}[name])

    monkeypatch.setattr(ascend_info.pwd, "getpwnam", account)
    monkeypatch.setattr(
        ascend_info.grp, "getgrnam", lambda name: SimpleNamespace(gr_gid=1500, gr_mem=["anna"])
    )
    assert ascend_info.group_of("HwHiAiUser", people) == {
        "name": "HwHiAiUser",
        "exists": True,
        "missing": missing,
    }


def test_a_group_that_does_not_exist():
    assert ascend_info.group_of("no-such-group", ["anna"]) == {
        "name": "no-such-group",
        "exists": False,
        "missing": [],
    }
