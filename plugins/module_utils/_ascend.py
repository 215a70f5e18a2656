# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host with Ascend NPUs has: device nodes, versions, CANN and its folders, the log of the installers, rank tables. Text and files in, data out."""

from __future__ import annotations

import datetime
import glob
import json
import os
import re

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._npu_smi import ParseError, parse_info
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import run_tool

__all__ = [
    "CONTROL_NODES",
    "DRIVER_PATHS",
    "cann_home",
    "cann_version",
    "chip_names",
    "control_nodes",
    "driver_folder",
    "driver_paths",
    "environment",
    "install_order",
    "install_steps",
    "mindspore_version",
    "npu_nodes",
    "parse_settings",
    "split_groups",
    "table_facts",
    "version_in",
]

#: Every program that uses an NPU opens these, besides its own /dev/davinciN.
CONTROL_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
#: What a container needs of the host's driver, to read. npu-smi is in one of two folders.
DRIVER_PATHS = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
)
BASE = "/usr/local/Ascend"
#: Where CANN is, the newest layout first. Before CANN 5 it had no folder of its own.
HOMES = ("cann", "ascend-toolkit/latest", "nnae/latest", "latest", "")
#: Folders below CANN's, of all layouts. Those that exist are used, in this order. %s is the processor as uname -m names it.
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
#: Chips whose devices 0 to 3 and 4 to 7 are two rings. Those of the second generation have a digit after the letter (910B1), those of A3 are Ascend910.
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


def npu_nodes(folder="/dev"):
    """Numbers of the device nodes /dev/davinciN."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        int(match.group(1))
        for match in (re.fullmatch("davinci([0-9]{1,4})", name) for name in names)
        if match
    )


def control_nodes():
    return [path for path in CONTROL_NODES if os.path.exists(path)]


def driver_paths():
    return [path for path in DRIVER_PATHS if os.path.exists(path)]


def chip_names(module, numbers, timeout=30):
    """Names of the chips by number of the device node, as npu-smi has them. Empty without an answer, and for numbers that it does not tell."""
    if not numbers:
        return {}
    run = run_tool(module, ["npu-smi", "info"], timeout)
    try:
        table = parse_info(run.stdout) if not run.cause else None
    except ParseError:
        table = None
    chips = [chip for npu in (table.npus if table else []) for chip in npu["chips"]]
    names = {chip["name"] for chip in chips}
    known = {chip["phy_id"]: chip["name"] for chip in chips if chip["phy_id"] is not None}
    if not known and len(names) == 1:
        known = dict.fromkeys(numbers, names.pop())
    elif not known and len(chips) == len(numbers):
        known = dict(zip(numbers, (chip["name"] for chip in chips)))
    return {number: known[number] for number in numbers if known.get(number)}


def split_groups(numbers, names):
    """Groups of device numbers within which a job must stay, unless it has all devices. Empty for chips without such groups."""
    if (
        not numbers
        or not names
        or not all(RINGS.fullmatch(names.get(number, "")) for number in numbers)
    ):
        return []
    return [
        group
        for group in (
            [number for number in numbers if number // RING == ring]
            for ring in range(max(numbers) // RING + 1)
        )
        if group
    ]


def parse_settings(text):
    """Values of a file with lines KEY=VALUE, by key in lower case."""
    pairs = (
        line.partition("=")
        for line in text.splitlines()
        if "=" in line and not line.lstrip().startswith("#")
    )
    return {key.strip().lower(): value.strip() for key, _equal, value in pairs}


def version_in(text):
    """The version that a file of the vendor names, as text; empty if it names none."""
    settings = parse_settings(text)
    if settings.get("version"):
        return settings["version"]
    # version.cfg: toolkit_running_version=[7.3.0.1.231:8.0.RC1]
    listed = next((value for key, value in settings.items() if key.endswith("running_version")), "")
    return listed.strip("[]").rpartition(":")[2]


def driver_folder(text):
    """Folder of the driver, from the content of /etc/ascend_install.info."""
    return (parse_settings(text).get("driver_install_path_param") or BASE).rstrip("/") + "/driver"


def cann_home(asked="", base=BASE):
    """Folder of CANN: the requested one, or the first that has operators or libraries; empty without CANN."""
    for folder in [asked] if asked else [os.path.join(base, name).rstrip("/") for name in HOMES]:
        if any(
            os.path.isdir(os.path.join(folder, inner)) for inner in ("opp", "fwkacllib", "lib64")
        ):
            return folder
    return ""


def cann_version(home, machine):
    texts = (
        (
            read_text(os.path.join(home, name % machine if "%s" in name else name))
            for name in VERSIONS
        )
        if home
        else ()
    )
    return next((version for version in map(version_in, texts) if version), "")


def mindspore_version(patterns=SITE_PACKAGES):
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


def environment(home, driver, machine, base=BASE):
    """Variables of CANN and the driver: lists of existing folders, and paths. Only plain paths, as the values become a file that shells read."""
    found = {}
    for name, folders in FOLDERS.items():
        paths = (
            [
                os.path.join(home, folder % machine if "%s" in folder else folder)
                for folder in folders
            ]
            if home
            else []
        )
        paths += (
            [os.path.join(driver, folder) for folder in OF_DRIVER]
            if name == "LD_LIBRARY_PATH"
            else []
        )
        found[name] = [
            path for path in dict.fromkeys(paths) if os.path.isdir(path) and _PLAIN.fullmatch(path)
        ]
    if home and _PLAIN.fullmatch(home):
        opp = os.path.join(home, "opp")
        found.update({"ASCEND_OPP_PATH": opp} if os.path.isdir(opp) else {})
        found.update(
            ASCEND_HOME=base,
            ASCEND_HOME_PATH=home,
            ASCEND_TOOLKIT_HOME=home,
            ASCEND_AICPU_PATH=home,
        )
    return found


# --- the order of installations ---------------------------------------------------------------------------------------------


def install_steps(driver_log, cann_log=""):
    """Successful steps of the installers, oldest first: C(at), C(what) (driver, firmware, cann) and C(action) (install, uninstall).

    C(driver_log) is /var/log/ascend_seclog/ascend_install.log, C(cann_log) the log of CANN's installer beside it.
    """
    steps = []
    for text, pattern in ((driver_log, _DONE), (cann_log, _CANN_DONE)):
        for line in text.splitlines():
            match = _STEP.match(line.strip())
            done = pattern.search(match.group(6)) if match else None
            what = "cann" if pattern is _CANN_DONE else match.group(1).lower() if match else ""
            if done and what in ("driver", "firmware", "cann"):
                steps.append(
                    {
                        "at": "%s-%s-%s %s" % match.group(2, 3, 4, 5),
                        "what": what,
                        "action": "uninstall" if done.group(1) else "install",
                    }
                )
    return sorted(steps, key=lambda step: step["at"])


def install_order(steps):
    """Whether the log shows an order, and what is wrong with it.

    On a new host the driver comes before the firmware, and CANN after the driver. If both are there already, the firmware comes before the driver. Two steps
    within a day belong together. A later pair in the right order corrects an earlier one.
    """
    present, wrong, last = set(), {}, None
    for step in steps:
        what, at = step["what"], step["at"]
        if step["action"] == "uninstall":
            present.discard(what)
            last = None
            continue
        if what == "cann":
            if "driver" not in present:
                wrong["cann"] = "CANN was installed at %s, before the driver" % at
        elif {"driver", "firmware"} <= present:
            together = last is not None and last["what"] != what and _within_a_day(last["at"], at)
            if together and what == "driver":
                wrong.pop("pair", None)
            elif together:
                wrong["pair"] = "the driver was upgraded at %s, before the firmware at %s" % (
                    last["at"],
                    at,
                )
            last = None if together else step
        elif what == "firmware" and not present:
            wrong["pair"] = "the firmware was installed at %s, before the driver" % at
        elif what == "firmware":
            wrong.pop("pair", None)
        present.add(what)
    seen = {step["what"] for step in steps if step["action"] == "install"}
    return {
        "judged": {"driver", "firmware"} <= seen,
        "problems": [wrong[key] for key in ("pair", "cann") if key in wrong],
    }


def _within_a_day(first, second):
    try:
        times = [datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S") for text in (first, second)]
    except ValueError:
        # A damaged line.
        return False
    return times[1] - times[0] <= datetime.timedelta(days=1)


# --- rank tables that exist -------------------------------------------------------------------------------------------------


def table_facts(text):
    """Format of a rank table (legacy, 1.0, 1.2; empty for anything else), its status, and the place of the first value that is not a text."""
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        return {"format": "", "status": "", "number": ""}
    version = str(table.get("version") or "")
    supernode = version == "1.2" or "super_pod_list" in table or '"super_device_id"' in text
    found = (
        "1.2"
        if supernode
        else "legacy"
        if "group_list" in table and not version
        else version
        if "server_list" in table
        else ""
    )
    return {
        "format": found,
        "status": str(table.get("status") or ""),
        "number": next(_not_texts(table, ""), ""),
    }


def _not_texts(value, place):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_texts(inner, "%s.%s" % (place, key) if place else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _not_texts(inner, "%s[%d]" % (place, number))
    elif not isinstance(value, str):
        yield place
