# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host with Ascend NPUs has: versions, CANN and its folders, the log of the installers, rank
tables. Text and files in, data out.
"""

from __future__ import annotations

import datetime
import glob
import json
import os
import re

from typing import Any, Iterable, Iterator, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._npu_smi import parse_info
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import Module, run_tool

__all__ = [
    "cann_home",
    "cann_version",
    "chip_names",
    "driver_folder",
    "environment",
    "install_order",
    "install_steps",
    "mindspore_version",
    "parse_settings",
    "split_groups",
    "table_facts",
    "version_in",
]

BASE = "/usr/local/Ascend"
#: Where CANN is, the newest layout first. Before CANN 5 it had no folder of its own.
HOMES = ("cann", "ascend-toolkit/latest", "nnae/latest", "latest", "")
#: Folders below CANN's, of all layouts. Those that exist are used, in this order. %s is the
#: processor as uname -m names it.
FOLDERS = {
    "PATH": (
        "bin",
        "compiler/ccec_compiler/bin",
        "fwkacllib/bin",
        "fwkacllib/ccec_compiler/bin",
        "ccec_compiler/bin",
    ),
    "LD_LIBRARY_PATH": (
        "lib64",
        "lib64/plugin/opskernel",
        "lib64/plugin/nnengine",
        "opp/built-in/op_impl/ai_core/tbe/op_tiling/lib/linux/%s",
        "fwkacllib/lib64",
        "add-ons",
    ),
    "PYTHONPATH": (
        "python/site-packages",
        "opp/built-in/op_impl/ai_core/tbe",
        "fwkacllib/python/site-packages",
        "opp/op_impl/built-in/ai_core/tbe",
    ),
}
#: The same below the folder of the driver.
OF_DRIVER = ("lib64", "lib64/common", "lib64/driver")
#: Files of CANN that name its version.
VERSIONS = (
    "%s-linux/ascend_toolkit_install.info",
    "%s-linux/ascend_nnae_install.info",
    "version.cfg",
    "fwkacllib/version.info",
    "compiler/version.info",
    "opp/version.info",
)
#: Chips whose devices 0 to 3 and 4 to 7 are two rings. Those of the second generation have a digit
#: after the letter (910B1), those of A3 are Ascend910.
RINGS = re.compile(r"910(A|B|ProA|ProB|PremiumA)?")
RING = 4
SITE_PACKAGES = (
    "/usr/lib/python3*/*-packages",
    "/usr/local/lib/python3*/*-packages",
    "/usr/local/python3*/lib/python3*/site-packages",
    "/opt/*/lib/python3*/site-packages",
    "/opt/*/envs/*/lib/python3*/site-packages",
    "/root/*conda3/lib/python3*/site-packages",
    "/root/*conda3/envs/*/lib/python3*/site-packages",
)

_STEP = re.compile(
    r"\[([\w-]+)\]\s*\[(\d{4})-?(\d\d)-?(\d\d)[ -](\d\d:\d\d:\d\d)\]\s*\[INFO\]:?\s*(.*)"
)
_DONE = re.compile(
    r"(?:Driver|Firmware) package (un)?(?:install|upgrade)e?d? success", re.IGNORECASE
)
_CANN_DONE = re.compile(r"\b(un)?install success", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9._+/-]+")


class Step(TypedDict):
    """A successful step of an installer.

    C(at) is its time as YYYY-MM-DD HH:MM:SS, C(what) is driver, firmware or cann, C(action) install
    or uninstall.
    """

    at: str
    what: str
    action: str


class Order(TypedDict):
    """Whether the log shows an order of installations, and what is wrong with it."""

    judged: bool
    problems: list[str]


def chip_names(module: Module, numbers: list[int], timeout: int = 30) -> dict[int, str]:
    """Names of the chips by number of the device node, as npu-smi has them.

    Empty without an answer, and for numbers that it does not tell.
    """
    if not numbers:
        return {}
    run = run_tool(module, ["npu-smi", "info"], timeout)
    try:
        table = parse_info(run.stdout) if not run.cause else None
    except ParseError:
        table = None
    if not table:
        return {}
    known = _names_by_number([chip for npu in table.npus for chip in npu["chips"]], numbers)
    found = ((number, known.get(number)) for number in numbers)
    return {number: name for number, name in found if name}


def _names_by_number(chips: list[dict[str, Any]], numbers: list[int]) -> dict[int, str | None]:
    """Names by the chips' own numbers.

    Without those, all chips have one name, or there are as many chips as device nodes.
    """
    known = {chip["phy_id"]: chip["name"] for chip in chips if chip["phy_id"] is not None}
    names = [chip["name"] for chip in chips]
    if known:
        return known
    if len(set(names)) == 1:
        return dict.fromkeys(numbers, names[0])
    return dict(zip(numbers, names)) if len(names) == len(numbers) else {}


def split_groups(numbers: list[int], names: dict[int, str]) -> list[list[int]]:
    """Groups of device numbers within which a job must stay, unless it has all devices.

    Empty for chips without such groups.
    """
    if (
        not numbers
        or not names
        or not all(RINGS.fullmatch(names.get(number, "")) for number in numbers)
    ):
        return []
    rings = [
        [number for number in numbers if number // RING == ring]
        for ring in range(max(numbers) // RING + 1)
    ]
    return [ring for ring in rings if ring]


def parse_settings(text: str) -> dict[str, str]:
    """Values of a file with lines KEY=VALUE, by key in lower case."""
    pairs = (
        line.partition("=")
        for line in text.splitlines()
        if "=" in line and not line.lstrip().startswith("#")
    )
    return {key.strip().lower(): value.strip() for key, _equal, value in pairs}


def version_in(text: str) -> str:
    """The version that a file of the vendor names, as text; empty if it names none."""
    settings = parse_settings(text)
    if settings.get("version"):
        return settings["version"]
    # version.cfg: toolkit_running_version=[7.3.0.1.231:8.0.RC1]
    listed = next((value for key, value in settings.items() if key.endswith("running_version")), "")
    return listed.strip("[]").rpartition(":")[2]


def driver_folder(text: str) -> str:
    """Folder of the driver, from the content of /etc/ascend_install.info."""
    return (parse_settings(text).get("driver_install_path_param") or BASE).rstrip("/") + "/driver"


def cann_home(requested: str = "", base: str = BASE) -> str:
    """Folder of CANN: the requested one, or the first that has operators or libraries; empty
    without CANN.
    """
    usual = [os.path.join(base, name).rstrip("/") for name in HOMES]
    for folder in [requested] if requested else usual:
        if any(
            os.path.isdir(os.path.join(folder, inner)) for inner in ("opp", "fwkacllib", "lib64")
        ):
            return folder
    return ""


def cann_version(home: str, machine: str) -> str:
    """Version of CANN in its folder; empty if none is named.

    C(machine) is the processor as C(uname -m) names it.
    """
    if not home:
        return ""
    texts = (read_text(path) for path in _below(home, VERSIONS, machine))
    return next((version for version in map(version_in, texts) if version), "")


def _below(folder: str, names: Iterable[str], machine: str) -> list[str]:
    """Paths in a folder, with the processor in names that have a place for it."""
    return [os.path.join(folder, name.replace("%s", machine)) for name in names]


def mindspore_version(patterns: Iterable[str] = SITE_PACKAGES) -> str:
    """The newest version of MindSpore in the host's own Python folders; empty without one."""
    found = [
        re.search(
            r"/mindspore(?:[_-](?:ascend|gpu|cpu))?-(\d[\w.+]*?)\.(?:dist|egg)-info$",
            path,
            re.IGNORECASE,
        )
        for pattern in patterns
        for path in glob.glob(pattern + "/[mM]ind*")
    ]
    versions = {match.group(1) for match in found if match}
    return max(
        versions,
        key=lambda version: [int(part) for part in re.findall(r"\d+", version)],
        default="",
    )


def environment(
    home: str, driver: str, machine: str, base: str = BASE
) -> dict[str, list[str] | str]:
    """Variables of CANN and the driver: lists of existing folders, and paths.

    Only plain paths, as the values become a file that shells read.
    """
    found: dict[str, list[str] | str] = {}
    for name, folders in FOLDERS.items():
        paths = _below(home, folders, machine) if home else []
        if name == "LD_LIBRARY_PATH":
            paths += _below(driver, OF_DRIVER, machine)
        found[name] = [
            path for path in dict.fromkeys(paths) if os.path.isdir(path) and _PLAIN.fullmatch(path)
        ]
    if home and _PLAIN.fullmatch(home):
        opp = os.path.join(home, "opp")
        if os.path.isdir(opp):
            found["ASCEND_OPP_PATH"] = opp
        found.update(
            ASCEND_HOME=base,
            ASCEND_HOME_PATH=home,
            ASCEND_TOOLKIT_HOME=home,
            ASCEND_AICPU_PATH=home,
        )
    return found


# --- the order of installations ---------------------------------------------------------------------------------------------


def install_steps(driver_log: str, cann_log: str = "") -> list[Step]:
    """Successful steps of the installers, oldest first.

    C(driver_log) is /var/log/ascend_seclog/ascend_install.log, C(cann_log) the log of CANN's
    installer beside it.
    """
    found = [_driver_step(line.strip()) for line in driver_log.splitlines()]
    found += [_cann_step(line.strip()) for line in cann_log.splitlines()]
    return sorted((step for step in found if step), key=lambda step: step["at"])


def _driver_step(line: str) -> Step | None:
    match = _STEP.match(line)
    what = match.group(1).lower() if match else ""
    return _step(match, what, _DONE) if match and what in ("driver", "firmware", "cann") else None


def _cann_step(line: str) -> Step | None:
    match = _STEP.match(line)
    return _step(match, "cann", _CANN_DONE) if match else None


def _step(match: re.Match[str], what: str, pattern: re.Pattern[str]) -> Step | None:
    """The step of a line of a log, None unless its message reports a success."""
    done = pattern.search(match.group(6))
    if not done:
        return None
    return {
        "at": "%s-%s-%s %s" % match.group(2, 3, 4, 5),
        "what": what,
        "action": "uninstall" if done.group(1) else "install",
    }


def install_order(steps: list[Step]) -> Order:
    """Whether the log shows an order, and what is wrong with it.

    On a new host the driver comes before the firmware, and CANN after the driver. If both are there
    already, the firmware comes before the driver. Two steps within a day belong together. A later
    pair in the right order corrects an earlier one.
    """
    present: set[str] = set()
    problems: dict[str, str] = {}
    # The first step of a pair that may follow.
    last: Step | None = None
    for step in steps:
        what = step["what"]
        if step["action"] == "uninstall":
            present.discard(what)
            last = None
            continue
        if what == "cann" and "driver" not in present:
            problems["cann"] = "CANN was installed at %s, before the driver" % step["at"]
        elif what != "cann" and {"driver", "firmware"} <= present:
            last = _judge_upgrade(last, step, problems)
        elif what == "firmware":
            _judge_first_firmware(step, present, problems)
        present.add(what)
    seen = {step["what"] for step in steps if step["action"] == "install"}
    return {
        "judged": {"driver", "firmware"} <= seen,
        "problems": [problems[key] for key in ("pair", "cann") if key in problems],
    }


def _judge_upgrade(last: Step | None, step: Step, problems: dict[str, str]) -> Step | None:
    """Judge an upgrade of the driver or the firmware, and return the step if it may be the first of
    a pair.
    """
    if last is None or last["what"] == step["what"] or not _within_a_day(last["at"], step["at"]):
        return step
    problems.pop("pair", None)
    if step["what"] == "firmware":
        problems["pair"] = "the driver was upgraded at %s, before the firmware at %s" % (
            last["at"],
            step["at"],
        )
    return None


def _judge_first_firmware(step: Step, present: set[str], problems: dict[str, str]) -> None:
    """Judge the installation of the firmware on a host that does not have both."""
    problems.pop("pair", None)
    if not present:
        problems["pair"] = "the firmware was installed at %s, before the driver" % step["at"]


def _within_a_day(first: str, second: str) -> bool:
    try:
        times = [datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S") for text in (first, second)]
    except ValueError:
        # A damaged line.
        return False
    return times[1] - times[0] <= datetime.timedelta(days=1)


# --- rank tables that exist -------------------------------------------------------------------------------------------------


def table_facts(text: str) -> dict[str, str]:
    """Format of a rank table (legacy, 1.0, 1.2; empty for anything else), its status, and the place
    of the first value that is not a text.
    """
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        return {"format": "", "status": "", "number": ""}
    return {
        "format": _table_format(table, text),
        "status": str(table.get("status") or ""),
        "number": next(_not_texts(table, ""), ""),
    }


def _table_format(table: dict[str, Any], text: str) -> str:
    version = str(table.get("version") or "")
    if version == "1.2" or "super_pod_list" in table or '"super_device_id"' in text:
        return "1.2"
    if "group_list" in table and not version:
        return "legacy"
    return version if "server_list" in table else ""


def _not_texts(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_texts(inner, "%s.%s" % (place, key) if place else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _not_texts(inner, "%s[%d]" % (place, number))
    elif not isinstance(value, str):
        yield place
