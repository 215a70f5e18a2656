# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host with NPUs has: versions of the vendor's files, layouts of CANN, the order of
installations, and rank tables.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _ascend as ascend
from ansible_collections.trainyard.gpu.plugins.module_utils import _pci as pci
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import Run

# Lines that the installers print and log, as published.
DRIVER = "[Driver] [%s] [INFO]Driver package installed successfully! Reboot needed for installation/upgrade to take effect! \n"
FIRMWARE = (
    "[Firmware] [%s] [INFO]Firmware package installed successfully! Reboot now or after driver installation for the installation/upgrade to take "
    "effect.\n"
)
CANN = "[Toolkit] [%s] [INFO] CANN-ncs-6.3.0.1.241-linux.aarch64.run --full --quiet --nox11 --install-for-all install success\n"
GONE = "[Driver] [%s] [INFO]Driver package uninstalled successfully! Uninstallation takes effect immediately.\n"
FIRMWARE_GONE = "[Firmware] [%s] [INFO]Firmware package uninstalled successfully! Uninstallation takes effect immediately.\n"
FIRST, SECOND, THIRD, FOURTH = (
    "2025-03-31 09:51:36",
    "2025-03-31 09:53:32",
    "2026-01-10 08:00:00",
    "2026-01-10 08:30:00",
)
CANN_EARLY, CANN_LATE = "20250330-10:00:00", "20250401-10:00:00"


def order(driver_log, cann_log=""):
    return ascend.install_order(ascend.install_steps(driver_log, cann_log))


def test_steps_of_the_logs():
    noise = (
        "[Driver] [2025-03-31 09:50:07] [INFO]Start time: 2025-03-31 09:50:07\n[Driver] [2025-03-31 09:50:08] [ERROR]Driver package installed "
        "successfully\nno line of it\n"
    )
    steps = ascend.install_steps(noise + DRIVER % FIRST + FIRMWARE % SECOND, CANN % CANN_EARLY)
    assert [(step["at"], step["what"], step["action"]) for step in steps] == [
        ("2025-03-30 10:00:00", "cann", "install"),
        (FIRST, "driver", "install"),
        (SECOND, "firmware", "install"),
    ]
    old = "[Driver] [2020-08-01 10:00:00] [INFO]Driver package install success! Reboot needed for installation/upgrade to take effect!\n"
    assert ascend.install_steps(old)[0]["what"] == "driver"
    upgraded = "[Firmware] [2025-08-20 17:20:01] [INFO]Firmware package upgraded successfully! Reboot now\n"
    assert (
        ascend.install_steps(upgraded + GONE % THIRD)[0]["action"] == "install"
        and ascend.install_steps(GONE % THIRD)[0]["action"] == "uninstall"
    )


@pytest.mark.parametrize(
    "driver_log, cann_log, problems",
    [
        (DRIVER % FIRST + FIRMWARE % SECOND, "", []),
        (DRIVER % FIRST + FIRMWARE % SECOND, CANN % CANN_LATE, []),
        (
            FIRMWARE % FIRST + DRIVER % SECOND,
            "",
            ["the firmware was installed at %s, before the driver" % FIRST],
        ),
        (
            DRIVER % FIRST + FIRMWARE % SECOND,
            CANN % CANN_EARLY,
            ["CANN was installed at 2025-03-30 10:00:00, before the driver"],
        ),
        # An upgrade, in the right and in the wrong order.
        (DRIVER % FIRST + FIRMWARE % SECOND + FIRMWARE % THIRD + DRIVER % FOURTH, "", []),
        (
            DRIVER % FIRST + FIRMWARE % SECOND + DRIVER % THIRD + FIRMWARE % FOURTH,
            "",
            ["the driver was upgraded at %s, before the firmware at %s" % (THIRD, FOURTH)],
        ),
        # A date that does not exist.
        (
            DRIVER % FIRST
            + FIRMWARE % SECOND
            + DRIVER % "2026-13-45 08:00:00"
            + FIRMWARE % "2026-13-45 09:00:00",
            "",
            [],
        ),
        # A driver alone, half a year later a firmware alone: no pair.
        (
            DRIVER % FIRST + FIRMWARE % SECOND + DRIVER % "2025-08-01 00:00:00" + FIRMWARE % THIRD,
            "",
            [],
        ),
        # A later upgrade in the right order corrects the first one, and so does a new beginning.
        (FIRMWARE % FIRST + DRIVER % SECOND + FIRMWARE % THIRD + DRIVER % FOURTH, "", []),
        (
            FIRMWARE % FIRST
            + DRIVER % SECOND
            + GONE % "2025-12-01 00:00:00"
            + FIRMWARE_GONE % "2025-12-01 00:01:00"
            + DRIVER % THIRD
            + FIRMWARE % FOURTH,
            "",
            [],
        ),
    ],
)
def test_order_of_installations(driver_log, cann_log, problems):
    assert order(driver_log, cann_log) == {"judged": True, "problems": problems}


def test_an_order_that_no_log_shows():
    assert [
        order(text)["judged"] for text in ("", DRIVER % FIRST, FIRMWARE % FIRST, "rotated\n")
    ] == [False] * 4


LINES = st.builds(
    "[{}] [{}] [INFO]{} package {} success\n".format,
    st.sampled_from(["Driver", "Firmware", "Toolkit"]),
    st.from_regex(r"\A20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\Z"),
    st.sampled_from(["Driver", "Firmware"]),
    st.sampled_from(["installed", "uninstalled"]),
)


@settings(derandomize=True, deadline=None, database=None, max_examples=150)
@given(st.lists(st.one_of(LINES, st.text(max_size=40)), max_size=8).map("".join))
def test_any_log_is_judged(text):
    """Also with a date that does not exist."""
    found = order(text, text)
    assert isinstance(found["judged"], bool) and all(
        isinstance(problem, str) for problem in found["problems"]
    )
    assert set(ascend.table_facts(text)) == {"format", "status", "number"} and isinstance(
        ascend.version_in(text), str
    )


def test_versions_are_texts():
    assert (
        ascend.version_in("Version=1.72.T2.100.B020\nfirmware_version=1.0\n") == "1.72.T2.100.B020"
    )
    assert (
        ascend.version_in(
            "package_name=Ascend-cann-toolkit\nversion=8.0.RC1\ninnerversion=V100R001\n"
        )
        == "8.0.RC1"
    )
    assert (
        ascend.version_in("# version: 1.0\nruntime_running_version=[7.3.0.1.231:8.0.RC1]\n")
        == "8.0.RC1"
    )
    assert ascend.version_in("") == ascend.version_in("nothing\n") == ""
    assert ascend.driver_folder("Driver_Install_Path_Param=/opt/Ascend/\n") == "/opt/Ascend/driver"
    assert ascend.driver_folder("") == "/usr/local/Ascend/driver"


def folders(root, *names):
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)


def test_cann_with_folders_of_today(tmp_path):
    folders(
        tmp_path,
        "ascend-toolkit/latest/bin",
        "ascend-toolkit/latest/lib64",
        "ascend-toolkit/latest/python/site-packages",
        "ascend-toolkit/latest/compiler/ccec_compiler/bin",
        "ascend-toolkit/latest/opp/built-in/op_impl/ai_core/tbe",
        "driver/lib64/driver",
        "ascend-toolkit/latest/aarch64-linux",
    )
    home = ascend.cann_home(base=str(tmp_path))
    (tmp_path / "ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info").write_text(
        "version=8.0.RC1\n", encoding="utf-8"
    )
    (tmp_path / "ascend-toolkit/latest/opp/version.info").write_text(
        "Version=7.3.0.1.231\n", encoding="utf-8"
    )
    assert (home, ascend.cann_version(home, "aarch64")) == (
        str(tmp_path / "ascend-toolkit/latest"),
        "8.0.RC1",
    )
    assert ascend.cann_version(home, "x86_64") == "7.3.0.1.231"
    found = ascend.environment(home, str(tmp_path / "driver"), "aarch64", base=str(tmp_path))
    assert found["PATH"] == [home + "/bin", home + "/compiler/ccec_compiler/bin"]
    assert found["LD_LIBRARY_PATH"] == [
        home + "/lib64",
        str(tmp_path / "driver/lib64"),
        str(tmp_path / "driver/lib64/driver"),
    ]
    assert found["PYTHONPATH"] == [
        home + "/python/site-packages",
        home + "/opp/built-in/op_impl/ai_core/tbe",
    ]
    assert (found["ASCEND_OPP_PATH"], found["ASCEND_HOME"], found["ASCEND_HOME_PATH"]) == (
        home + "/opp",
        str(tmp_path),
        home,
    )
    folders(tmp_path, "cann/opp")
    assert ascend.cann_home(base=str(tmp_path)) == str(tmp_path / "cann"), "8.5 and later"


def test_cann_with_the_folders_of_the_guide(tmp_path):
    folders(
        tmp_path,
        "fwkacllib/bin",
        "fwkacllib/ccec_compiler/bin",
        "fwkacllib/lib64",
        "opp/op_impl/built-in/ai_core/tbe",
        "add-ons",
    )
    (tmp_path / "fwkacllib/version.info").write_text("Version=1.72.T2.100.B020\n", encoding="utf-8")
    home = ascend.cann_home(base=str(tmp_path))
    assert (home, ascend.cann_version(home, "aarch64")) == (str(tmp_path), "1.72.T2.100.B020")
    found = ascend.environment(home, "/nowhere", "aarch64", base=home)
    assert found["PATH"] == [home + "/fwkacllib/bin", home + "/fwkacllib/ccec_compiler/bin"]
    assert (
        found["PYTHONPATH"] == [home + "/opp/op_impl/built-in/ai_core/tbe"]
        and found["ASCEND_OPP_PATH"] == home + "/opp"
    )
    assert found["LD_LIBRARY_PATH"] == [home + "/fwkacllib/lib64", home + "/add-ons"]


def test_a_host_without_cann(tmp_path):
    folders(tmp_path, "driver/lib64")
    assert (
        ascend.cann_home(base=str(tmp_path))
        == ascend.cann_home(requested=str(tmp_path / "none"))
        == ascend.cann_version("", "aarch64")
        == ""
    )
    assert ascend.environment("", str(tmp_path / "driver"), "aarch64") == {
        "PATH": [],
        "PYTHONPATH": [],
        "LD_LIBRARY_PATH": [str(tmp_path / "driver/lib64")],
    }


def test_a_folder_whose_name_a_shell_would_read_is_left_out(tmp_path):
    home = tmp_path / "$(id)"
    folders(home, "opp", "bin")
    assert ascend.environment(str(home), "/nowhere", "aarch64") == {
        "PATH": [],
        "PYTHONPATH": [],
        "LD_LIBRARY_PATH": [],
    }


def test_mindspore_of_the_host(tmp_path):
    assert ascend.mindspore_version([str(tmp_path)]) == ""
    folders(
        tmp_path,
        "mindspore-2.3.1.dist-info",
        "mindspore_ascend-1.10.1.dist-info",
        "mindinsight-2.4.0.dist-info",
        "mindspore",
    )
    assert ascend.mindspore_version([str(tmp_path)]) == "2.3.1"


def npu_smi(*chips):
    """An answer of npu-smi with (name, Phy-ID or None) of each chip."""
    rule = "+---------------------------+---------------+----------------------------------------------------+\n"
    text = (
        rule
        + "| npu-smi 25.2.3                   Version: 25.2.3                                               |\n"
        + rule
    )
    text += "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|\n"
    text += (
        "| Chip  %s              | Bus-Id        | AICore(%%)   Memory-Usage(MB)  HBM-Usage(MB)        |\n"
        % ("Phy-ID" if chips[0][1] is not None else "")
    )
    text += rule
    for number, (name, phy_id) in enumerate(chips):
        text += (
            "| %d %s | OK | 90.0 46 0 / 0 |\n| 0 %s | 0000:%02d:00.0 | 0 0 / 0 4175 / 65536 |\n%s"
            % (number, name, "" if phy_id is None else phy_id, number + 1, rule)
        )
    return text


def test_names_of_chips_by_device_file(monkeypatch):
    answer = []
    monkeypatch.setattr(ascend, "run_tool", lambda module, command, timeout: answer[0])
    assert ascend.chip_names(None, []) == {}, "without a device file npu-smi is not asked"
    answer[:] = [Run(0, npu_smi(("910B1", None), ("910B1", None)), "")]
    assert ascend.chip_names(None, [2, 6]) == {2: "910B1", 6: "910B1"}
    answer[:] = [Run(0, npu_smi(("Ascend910", 6), ("310P3", 2)), "")]
    assert ascend.chip_names(None, [2, 6, 7]) == {2: "310P3", 6: "Ascend910"}
    answer[:] = [Run(0, npu_smi(("910A", None), ("910B", None)), "")]
    assert (
        ascend.chip_names(None, [0, 1]) == {0: "910A", 1: "910B"}
        and ascend.chip_names(None, [0, 1, 2]) == {}
    )
    answer[:] = [Run(127, "", "", "not_installed", "npu-smi is not on the PATH")]
    assert ascend.chip_names(None, [0]) == {}
    answer[:] = [
        Run(
            0,
            "+------------+\n| npu-smi 1 Version: 1 |\n+-----------+\n| a\n| npu-smi 1 Version: 1 |\n",
            "",
        )
    ]
    assert ascend.chip_names(None, [0]) == {}


def test_rings_of_the_first_generation():
    eight = list(range(8))
    for name in ("910A", "910B", "910ProB", "910"):
        assert ascend.split_groups(eight, dict.fromkeys(eight, name)) == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]
    for name in ("910B1", "910B2C", "Ascend910", "310P3"):
        assert ascend.split_groups(eight, dict.fromkeys(eight, name)) == []
    assert ascend.split_groups([4, 5], {4: "910A", 5: "910A"}) == [[4, 5]]
    assert (
        ascend.split_groups(eight, {})
        == ascend.split_groups([], {})
        == ascend.split_groups([0, 1], {0: "910A"})
        == []
    )


LEGACY = {
    "board_id": "0x0020",
    "group_count": "1",
    "group_list": [{"device_num": "8"}],
    "status": "completed",
}
CURRENT = {
    "version": "1.0",
    "server_count": "1",
    "server_list": [{"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}]}],
    "status": "completed",
}


@pytest.mark.parametrize(
    "table, found",
    [
        (LEGACY, {"format": "legacy", "status": "completed", "number": ""}),
        (CURRENT, {"format": "1.0", "status": "completed", "number": ""}),
        (
            dict(CURRENT, status="initializing"),
            {"format": "1.0", "status": "initializing", "number": ""},
        ),
        (
            dict(CURRENT, server_count=1),
            {"format": "1.0", "status": "completed", "number": "server_count"},
        ),
        (
            dict(LEGACY, group_list=[{"device_num": "8"}, {"device_num": 8}]),
            {"format": "legacy", "status": "completed", "number": "group_list[1].device_num"},
        ),
        (dict(CURRENT, version="1.2"), {"format": "1.2", "status": "completed", "number": ""}),
        (
            dict(CURRENT, server_list=[{"device": [{"super_device_id": "0"}]}]),
            {"format": "1.2", "status": "completed", "number": ""},
        ),
        ([], {"format": "", "status": "", "number": ""}),
        ({"version": "1.0"}, {"format": "", "status": "", "number": ""}),
    ],
)
def test_rank_tables_that_exist(table, found):
    assert ascend.table_facts(json.dumps(table)) == found
    assert ascend.table_facts("{") == {"format": "", "status": "", "number": ""}


def test_device_files(tmp_path):
    for name in ("davinci10", "davinci2", "davinci_manager", "davinci", "vdavinci1"):
        (tmp_path / name).touch()
    assert pci.npu_nodes(str(tmp_path)) == [2, 10] and pci.npu_nodes(str(tmp_path / "none")) == []
