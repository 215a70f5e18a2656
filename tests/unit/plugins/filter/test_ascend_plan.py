# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of role ascend: what keeps NPUs from working, where hosts differ, the environment as
shells read it, the rank table, and drift.
"""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._ascend_plan import (
    ascend_drift,
    ascend_plan,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _ascend_plan as plan_of

HOME = "/usr/local/Ascend/ascend-toolkit/latest"


def reading(**changes):
    devices = [
        {"path": "/dev/davinci%d" % number, "group": "HwHiAiUser", "mode": "0660"}
        for number in range(2)
    ]
    devices += [
        {"path": path, "group": "HwHiAiUser", "mode": "0660"}
        for path in ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
    ]
    return dict(
        {
            "architecture": "aarch64",
            "devices": devices,
            "missing_devices": [],
            "driver": {"path": "/usr/local/Ascend/driver", "version": "1.72.T2.100.B020"},
            "firmware": {"path": "/usr/local/Ascend/firmware", "version": "1.72.T5.0.B050"},
            "group": {"name": "HwHiAiUser", "exists": True, "missing": []},
            "cann": {"path": HOME, "version": "8.0.RC1"},
            "mindspore": "",
            "processes": "unlimited",
            "install_order": {"judged": True, "problems": []},
            "environment": {
                "PATH": [HOME + "/bin"],
                "LD_LIBRARY_PATH": [HOME + "/lib64", "/usr/local/Ascend/driver/lib64"],
                "PYTHONPATH": [],
                "ASCEND_OPP_PATH": HOME + "/opp",
            },
            "rank_tables": {},
            "files": {},
        },
        **changes,
    )


def npus(first=1, **changes):
    return dict(
        {
            "available": True,
            "cause": None,
            "fix": None,
            "npu_count": 2,
            "npus": [{"name": "910A"}, {"name": "910A"}],
            "findings": [],
            "devices": [
                {"id": number, "address": "10.1.%d.%d" % (number, first)} for number in range(2)
            ],
        },
        **changes,
    )


def wanted(**changes):
    return dict(
        {
            "versions": {"driver": "", "firmware": ""},
            "format": "1.0",
            "format_problems": [],
            "addresses": {"a": "10.0.0.1", "b": "10.0.0.2"},
            "absent": [],
        },
        **changes,
    )


def plan(a=None, b=None, npus_a=None, npus_b=None, **changes):
    return ascend_plan(
        {
            "readings": {"a": a or reading(), "b": b or reading()},
            "npus": {"a": npus_a or npus(1), "b": npus_b or npus(2)},
        },
        wanted(**changes),
    )


def after(told, name, found):
    """The host after a run of the role."""
    contents = {
        entry["path"]: entry["content"]
        for entry in told["hosts"][name]["files"]
        if "content" in entry
    }
    table = plan_of.rendered(
        plan_of.rank_table(
            [
                {"server_id": member["address"], "devices": npus(number)["devices"]}
                for number, member in enumerate(told["members"], 1)
            ],
            told["format"],
            board_id=told["board_id"],
        )
    )
    return dict(
        found,
        files={
            path: hashlib.sha256(text.encode()).hexdigest()
            for path, text in dict(contents, **{plan_of.TABLE: table}).items()
        },
    )


def test_good_hosts_and_a_second_run():
    told = plan()
    assert (told["problems"], told["warnings"]) == ([], [])
    assert told["members"] == [
        {"name": "a", "address": "10.0.0.1"},
        {"name": "b", "address": "10.0.0.2"},
    ]
    host = told["hosts"]["a"]
    assert (host["differs"], host["table_differs"], host["absent"], host["changed"]) == (
        True,
        True,
        [],
        [plan_of.ENVIRONMENT, plan_of.TABLE],
    )
    assert host["summary"] == (
        "2 NPUs (910A), driver 1.72.T2.100.B020, firmware 1.72.T5.0.B050. CANN 8.0.RC1 in %s."
        % HOME
    )
    again = plan(after(told, "a", reading()), after(told, "b", reading()))["hosts"]["a"]
    assert (again["differs"], again["table_differs"], again["changed"]) == (False, False, [])


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"driver": {"path": "/usr/local/Ascend/driver", "version": ""}},
            "/usr/local/Ascend/driver has no version.info, so no driver is installed",
        ),
        (
            {"firmware": {"path": "/usr/local/Ascend/firmware", "version": ""}},
            "so no firmware is installed; install the vendor's package, first the driver",
        ),
        ({"missing_devices": ["/dev/hisi_hdc"]}, "no /dev/hisi_hdc; load the driver"),
        ({"devices": reading()["devices"][2:]}, "no /dev/davinciN; load the driver"),
        (
            {"group": {"name": "HwHiAiUser", "exists": False, "missing": []}},
            "group 'HwHiAiUser' does not exist",
        ),
    ],
)
def test_what_keeps_npus_from_working(changes, said):
    (text,) = plan(b=reading(**changes))["problems"]
    assert text.startswith("b: ") and said in text


def test_an_npu_smi_that_fails():
    (text,) = plan(
        npus_a=npus(available=False, cause="driver_not_loaded", fix="reboot", npus=[], devices=[])
    )["problems"]
    assert text == "a: npu-smi: driver_not_loaded: reboot", (
        "its missing addresses are no problem of their own"
    )


def test_versions_are_compared_as_text():
    assert plan(b=reading(driver={"path": "/d", "version": "1.72.T2.100.B021"}))["problems"] == [
        "the hosts have different versions of the driver: 1.72.T2.100.B020 on a, 1.72.T2.100.B021 on b; install one of them on all hosts"
    ]
    # As numbers they would be equal.
    one, other = (
        reading(firmware={"path": "/f", "version": version}) for version in ("7.1", "7.10")
    )
    assert "the firmware: 7.1 on a, 7.10 on b" in plan(one, other)["problems"][0]
    asked = {"driver": "23.0.rc2", "firmware": "1.72.T5.0.B050"}
    assert plan(versions=asked)["problems"] == [
        "ascend_driver_version is '23.0.rc2', found: 1.72.T2.100.B020 on a, b; install that version, or correct the variable"
    ]


def test_warnings():
    finding = {
        "kind": "address_differs",
        "device": 1,
        "found": "10.1.1.1",
        "expected": "10.1.1.9",
        "fix": "correct the file",
    }
    told = plan(npus_b=npus(2, findings=[finding]))
    assert (
        told["warnings"]
        == ["b: address_differs of device 1: found 10.1.1.1, expected 10.1.1.9; correct the file"]
        and told["problems"] == []
    )
    people = {"name": "HwHiAiUser", "exists": True, "missing": ["anna", "bert"]}
    assert plan(reading(group=people))["warnings"] == [
        "a: anna, bert may not use the NPUs, as they are not in group 'HwHiAiUser'; run: usermod -aG HwHiAiUser NAME"
    ]
    everyone = [dict(entry, mode="0666", group="root") for entry in reading()["devices"]]
    assert plan(reading(group=people, devices=everyone))["warnings"] == [], "--install-for-all"
    closed = [dict(reading()["devices"][0], group="root")] + reading()["devices"][1:]
    assert plan(reading(devices=closed))["warnings"] == [
        "a: /dev/davinci0 belongs to group 'root' with mode 0660; reinstall the driver, or use chgrp HwHiAiUser and chmod 0660"
    ]


def test_the_summary_tells_a_limit_of_processes_and_a_missing_cann():
    text = plan(reading(processes="4096", cann={"path": "", "version": ""}))["hosts"]["a"][
        "summary"
    ]
    assert "There is no CANN on the host" in text and "at most 4096 processes (ulimit -u)" in text


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"npus_b": npus(1)},
            "device 0 of host 'b' and device 0 of host 'a' have the same address '10.1.0.1'",
        ),
        (
            {"npus_b": npus(2, devices=npus(2)["devices"][:1])},
            "unequal numbers of devices (a 2, b 1)",
        ),
        (
            {
                "npus_b": npus(
                    2, devices=[{"id": 0, "address": None}, {"id": 1, "address": "10.1.1.2"}]
                )
            },
            "host 'b': device 0 has no address",
        ),
        (
            {"format_problems": ["rank table format '1.2' was requested"]},
            "rank table format '1.2' was requested",
        ),
    ],
)
def test_a_rank_table_that_cannot_be(changes, said):
    (text,) = plan(**changes)["problems"]
    assert said in text and ("set ascend_rank_table_format to none" in text or "1.2" in text)


def test_hosts_that_write_no_table():
    had = {plan_of.TABLE: "0" * 64}
    limited = plan(reading(files=had), absent=["c"])
    assert limited["warnings"] == [
        "the rank table is not written, because it needs all hosts, and c is not in this run"
    ]
    assert (limited["hosts"]["a"]["table_differs"], limited["hosts"]["a"]["absent"]) == (False, [])
    none = plan(reading(files=had), format="")["hosts"]
    assert (none["a"]["absent"], none["a"]["differs"], none["b"]["absent"]) == (
        [plan_of.TABLE],
        True,
        [],
    )
    # One NPU needs no table, and often has no address.
    alone = ascend_plan(
        {
            "readings": {"a": reading()},
            "npus": {"a": npus(1, devices=[{"id": 0, "address": None}])},
        },
        wanted(),
    )
    assert (alone["problems"], alone["hosts"]["a"]["changed"]) == ([], [plan_of.ENVIRONMENT])


def test_a_table_of_the_old_format_names_the_board():
    assert plan(format="legacy")["board_id"] == "0x0020"
    assert (
        plan(reading(architecture="x86_64"), reading(architecture="x86_64"), format="legacy")[
            "board_id"
        ]
        == "0x0000"
    )


def read_by(shell, text, times=1, **environment):
    """The variables after a shell has read the file."""
    show = 'printf "%s\\n" "$PATH" "${LD_LIBRARY_PATH-unset}" "${PYTHONPATH-unset}" "${ASCEND_OPP_PATH-unset}"'
    done = subprocess.run(
        [shell, "-euc", text * times + show],
        env=dict({"PATH": "/usr/bin:/bin"}, **environment),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_environment_as_shells_read_it(shell):
    text = plan_of.environment_file(reading()["environment"])
    libraries = HOME + "/lib64:/usr/local/Ascend/driver/lib64"
    assert read_by(shell, text) == [HOME + "/bin:/usr/bin:/bin", libraries, "unset", HOME + "/opp"]
    assert read_by(shell, text, times=2, LD_LIBRARY_PATH="/opt/lib") == [
        HOME + "/bin:/usr/bin:/bin",
        libraries + ":/opt/lib",
        "unset",
        HOME + "/opp",
    ]


def test_processes_are_raised_to_the_hard_limit_and_no_further():
    text = plan_of.environment_file({})
    limited = "ulimit -S -u 500; ulimit -H -u 600; %s\nulimit -S -u"
    assert (
        subprocess.run(
            ["bash", "-euc", limited % text], capture_output=True, text=True, check=True
        ).stdout
        == "600\n"
    )


def test_drift():
    told = plan()
    assert ascend_drift(told, "a", reading()) == [
        {"what": path, "asked": "as planned", "found": "missing"}
        for path in (plan_of.ENVIRONMENT, plan_of.TABLE)
    ]
    done = after(told, "a", reading())
    assert ascend_drift(plan(done), "a", done) == []
    changed = dict(done, files=dict(done["files"], **{plan_of.TABLE: "0" * 64}))
    assert ascend_drift(plan(changed), "a", changed) == [
        {"what": plan_of.TABLE, "asked": "as planned", "found": "changed"}
    ]
    broken = plan(
        done, reading(driver={"path": "/d", "version": "2"}, missing_devices=["/dev/hisi_hdc"])
    )
    found = [row["found"] for row in ascend_drift(broken, "a", done)]
    assert len(found) == 1 and "different versions of the driver" in found[0], (
        "of the other host only what concerns both"
    )
    assert ascend_drift(plan(done, format=""), "a", done) == [
        {"what": plan_of.TABLE, "asked": "absent", "found": "present"}
    ]


def test_the_plan_is_data():
    json.dumps(plan())
