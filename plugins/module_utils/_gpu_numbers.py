# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Numbers of GPUs and NPUs.

There are four kinds, which are equal only on a host with one model and no gap.

- The position in Slurm's list of the host, from 0: in C(SLURM_JOB_GPUS), C(SLURM_STEP_GPUS), and C(IDX) of scontrol. The list has the types in the order of
  C(Gres) in slurm.conf, and of each type the files of gres.conf. File names play no part in it: the first of C(File=/dev/nvidia[2-3,5]) is 0.
- The device number N of C(/dev/nvidiaN) or C(/dev/davinciN).
- The index of nvidia-smi, which is that of the PCI addresses.
- The number in a container or in a job whose devices Slurm constrains, from 0 again: in C(CUDA_VISIBLE_DEVICES).

Programs on hosts import this module from one folder with others, and modules import it from the
collection.
"""

from __future__ import annotations

import glob
import json
import re

from typing import Any, Dict, Iterable, Mapping, TypedDict

__all__ = [
    "CDI_FOLDERS",
    "DeviceError",
    "by_address",
    "cdi_devices",
    "cdi_kind",
    "cdi_names",
    "devices_of",
    "indexes",
    "list_fault",
    "numbers_of",
    "of_task",
    "parse_information",
    "positions_of",
    "read_host",
    "read_specifications",
]

#: No host has more GPUs.
MOST_GPUS = 1024
#: The driver of NVIDIA has a folder for each GPU here. Everybody may read it.
DRIVER = "/proc/driver/nvidia/gpus"
#: Where podman looks for CDI specifications.
CDI_FOLDERS = ("/etc/cdi", "/run/cdi")
NODES = "/dev/nvidia%d"
#: Key of the list in C(gpus) of /etc/trainyard/job/config.json: the device number by position.
LIST = "positions"
WAY_OUT = "run playbook scheduler, which writes the list of Slurm and that of the host"


#: C(gpus) of config.json of role job_container: C(positions), C(nodes) and C(cdi).
Kinds = Dict[str, Any]


class Card(TypedDict):
    """What the driver says of a GPU: the number of its device node, and its PCI address as
    C(bus).
    """

    minor: int
    model: str
    uuid: str
    bus: str


class Host(TypedDict):
    """C(nodes) are the numbers of the device nodes, C(driver) is what the driver says of each of
    them, if it is loaded.
    """

    nodes: list[int]
    driver: list[Card]


class DeviceError(ValueError):
    """The devices of a job cannot be told. The message says why, and what the operator has
    to do.
    """


# --- pure functions ---


def numbers_of(text: str) -> list[int]:
    """Return the numbers of 0,2-3.

    Names (UUIDs) are left out. DeviceError: a number that no GPU has.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.match(r"(\d+)(?:-(\d+))?$", part.strip())
        if not match:
            continue
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last >= MOST_GPUS:
            raise DeviceError("'%.80s' has GPUs after the number %d" % (text, MOST_GPUS - 1))
        found += range(first, last + 1)
    return found


def parse_information(text: str) -> Card | None:
    """Return a file /proc/driver/nvidia/gpus/*/information, None if it names no device node."""
    values = dict(re.findall(r"^([A-Z][A-Za-z ]*?):[ \t]*(\S.*?)[ \t]*$", text, re.M))
    minor = values.get("Device Minor", "")
    if not re.match(r"\d{1,4}$", minor):
        return None
    return {
        "minor": int(minor),
        "model": values.get("Model", ""),
        "uuid": values.get("GPU UUID", ""),
        "bus": values.get("Bus Location", ""),
    }


def positions_of(environment: Mapping[str, str], constrained: bool) -> list[int]:
    """Return the positions of the task's GPUs in Slurm's list of this host.

    SLURM_STEP_GPUS has those of the step, and of a task that is bound to some of them only these.
    SLURM_JOB_GPUS has those of the job: in its batch script, and in prolog and epilog, where
    CUDA_VISIBLE_DEVICES has UUIDs from Slurm 25.11 on. A job itself may leave some out by
    CUDA_VISIBLE_DEVICES, whose numbers are positions, too, unless Slurm constrains devices: then
    they count the GPUs of the step from 0.
    """
    step = numbers_of(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or "")
    visible = numbers_of(environment.get("CUDA_VISIBLE_DEVICES") or "")
    if not step or not visible or len(visible) >= len(step):
        return step
    return (
        [step[number] for number in visible if number < len(step)]
        if constrained
        else [number for number in visible if number in step]
    )


def _words(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _path(kinds: Kinds, number: int) -> str:
    return str(kinds.get("nodes") or NODES) % number


def _unlisted_fault(host: Host) -> str:
    """Return why the list of a host cannot be known, or empty: without a list only 0, 1, 2 and so
    on of one model have the order of Slurm's.
    """
    models = sorted({card["model"] for card in host["driver"]})
    if host["nodes"] == list(range(len(host["nodes"]))) and len(models) < 2:
        return ""
    return "it has the device numbers %s%s, and no list of the order in which Slurm counts them" % (
        _words(host["nodes"]),
        " of the models %s" % ", ".join(models) if len(models) > 1 else "",
    )


def devices_of(positions: list[int], kinds: Kinds, host: Host) -> list[int]:
    """Return the device numbers at some positions.

    DeviceError: the host differs from the list, or has none and needs one.

    slurmd leaves out a file that does not exist when it starts. Later ones then have another
    position, so that nothing before may be missing either.

    :param kinds: C(gpus) of the host's config.json.
    :param host: what P(read_host) returns.
    """
    listed = kinds.get(LIST)
    if not positions:
        return []
    if listed is None:
        fault = _unlisted_fault(host)
        if fault:
            raise DeviceError(
                "Slurm has given the job GPU %s of this host, but %s. Tell the operator to %s"
                % (_words(positions), fault, WAY_OUT)
            )
        listed = list(range(max(positions) + 1))
    elif max(positions) >= len(listed):
        raise DeviceError(
            (
                "Slurm has given the job GPU %s of this host, but its list has %d: device numbers "
                "%s. Tell the operator to %s"
            )
            % (_words(positions), len(listed), _words(listed), WAY_OUT)
        )
    needed = listed[: max(positions) + 1]
    missing = [_path(kinds, number) for number in needed if number not in host["nodes"]]
    if missing:
        raise DeviceError(
            (
                "Slurm has given the job GPU %s of this host, and its list has %s, which this host "
                "does not have. Tell the operator to repair the host, or to %s"
            )
            % (_words(positions), ", ".join(missing), WAY_OUT)
        )
    found = [listed[position] for position in positions]
    minors = [card["minor"] for card in host["driver"]]
    strange = [_path(kinds, number) for number in found if minors and number not in minors]
    if strange:
        raise DeviceError(
            (
                "Slurm has given the job %s, but the driver has the device numbers %s. Tell the "
                "operator to repair the GPU, or to %s"
            )
            % (", ".join(strange), _words(sorted(minors)), WAY_OUT)
        )
    return found


def list_fault(kinds: Kinds, host: Host, only_missing: bool = False) -> str:
    """Return how the list of a host differs from its devices, or empty.

    If the driver is loaded, only what it knows counts.

    :param only_missing: whether a device that is not in the list is no fault: no job gets it.
    """
    listed = kinds.get(LIST)
    if listed is None:
        return _unlisted_fault(host)
    minors = [card["minor"] for card in host["driver"]]
    found = [number for number in host["nodes"] if not minors or number in minors]
    if not set(listed) - set(found) and (only_missing or set(listed) == set(found)):
        return ""
    return "Slurm's list has the device numbers %s, and the host has %s" % (
        _words(listed),
        _words(found),
    )


def _bus(card: Card) -> list[int]:
    """Return the PCI address as numbers, whatever the length of its domain."""
    return [int(part, 16) for part in re.findall(r"[0-9A-Fa-f]+", card["bus"])]


def by_address(cards: Iterable[Card]) -> list[Card]:
    """Return what the driver says of GPUs in the order of their PCI addresses, which is that of
    nvidia-smi.
    """
    return sorted(cards, key=_bus)


def indexes(devices: list[int], kinds: Kinds, host: Host) -> list[int]:
    """Return the indexes by which nvidia-smi knows devices: the order of their PCI addresses,
    without the driver that of the device numbers.
    """
    order = [card["minor"] for card in by_address(host["driver"])]
    order = order or sorted(kinds.get(LIST) or host["nodes"])
    places = {number: order.index(number) for number in order}
    return [places.get(number, number) for number in devices]


def of_uuids(devices: list[int], text: str, host: Host) -> list[int]:
    """Return the devices that CUDA_VISIBLE_DEVICES names by UUID, which may be shortened.

    All of them if it names none that is known here.
    """
    names = [part.strip() for part in text.split(",") if part.strip().startswith("GPU-")]
    uuids = {card["minor"]: card["uuid"] for card in host["driver"]}
    found = [
        number
        for number in devices
        if any(uuids.get(number, "").startswith(name) for name in names)
    ]
    return found or devices


def of_task(environment: Mapping[str, str], config: dict[str, Any], host: Host) -> list[int]:
    """Return the device numbers of a task on this host, in the order of Slurm.

    :param config: the content of config.json.
    :param host: what P(read_host) returns.
    """
    positions = positions_of(environment, config.get("constrain_devices", False))
    found = devices_of(positions, config["gpus"], host)
    return of_uuids(found, environment.get("CUDA_VISIBLE_DEVICES") or "", host)


def cdi_kind(text: str) -> str:
    """Return the kind of a CDI specification in JSON or YAML, such as nvidia.com/gpu.

    It is empty if there is none.
    """
    found = re.search(
        r"""^[\s{,]*["']?kind["']?\s*:\s*["']?([\w.-]+/[\w.-]+)""", text, re.M
    ) or re.search(r'"kind"\s*:\s*"([^"]+)"', text)
    return found.group(1) if found else ""


def _json_devices(document: Any) -> dict[str, list[str]]:
    """Return the paths of the nodes of each device of a CDI specification.

    AttributeError and TypeError: it has another form.
    """
    found = {}
    for device in document.get("devices") or []:
        nodes = (device.get("containerEdits") or {}).get("deviceNodes") or []
        found[str(device.get("name"))] = [node.get("path") for node in nodes]
    return found


def _yaml_devices(text: str) -> dict[str, list[str]]:
    """Return what P(_json_devices) returns, of YAML as nvidia-ctk writes it: one key per line."""
    section = re.search(r"^devices:[^\n]*\n((?:[ -][^\n]*\n|\n)*)", text + "\n", re.M)
    if not section:
        return {}
    lines = section.group(1)
    indent = lines[: len(lines) - len(lines.lstrip(" "))]
    found = {}
    for item in re.split("^%s- " % indent, lines, flags=re.M)[1:]:
        keys = "%s  %s" % (indent, item)
        name = re.search(r"""^%s  name: *["']?([^"'\n]*)""" % indent, keys, re.M)
        if name:
            paths = re.findall(r"""^[ -]*path: *["']?([^"'\s]+)""", keys, re.M)
            found[name.group(1).strip()] = paths
    return found


def cdi_devices(text: str) -> dict[str, list[str]]:
    """Return the paths of the device nodes of each device of a CDI specification, by the name of
    the device. Empty if it cannot be read.
    """
    try:
        return _json_devices(json.loads(text))
    except (ValueError, RecursionError):
        return _yaml_devices(text)
    except (AttributeError, TypeError):
        return {}


def cdi_names(
    devices: list[int], kinds: Kinds, host: Host, specifications: Iterable[str]
) -> list[str]:
    """Return the names by which CDI knows devices. nvidia-ctk names them by index or by UUID, and
    role job_container by device number.

    The name is looked up by the device node in the specifications. If these name no node of a GPU,
    the index of nvidia-smi is the name. DeviceError: they name others only.

    :param specifications: the texts of all specifications of the host.
    """
    names = _names_by_path(kinds["cdi"], specifications)
    if not names:
        return [str(index) for index in indexes(devices, kinds, host)]
    paths = [_path(kinds, number) for number in devices]
    missing = [path for path in paths if path not in names]
    if missing:
        raise DeviceError(
            (
                "no CDI specification describes %s. Tell the operator to run playbooks gpu_stack "
                "and scheduler"
            )
            % ", ".join(missing)
        )
    return [names[path] for path in paths]


def _names_by_path(kind: str, specifications: Iterable[str]) -> dict[str, str]:
    """Return the names of devices of a kind that have one node with a number, by the path of this
    node.
    """
    names: dict[str, str] = {}
    for text in specifications:
        found = cdi_devices(text) if cdi_kind(text) == kind else {}
        for name, paths in found.items():
            numbered = [path for path in paths if re.match(r"/dev/\w+?\d+$", str(path))]
            # Not one of all GPUs, and not a part of one (MIG).
            if len(numbered) == 1 and name != "all" and not re.search("^MIG-|:", name):
                names.setdefault(numbered[0], name)
    return names


# --- the host ---


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def read_host(kinds: Kinds, driver: str = DRIVER) -> Host:
    """Return the numbers of the device nodes, and what the driver of NVIDIA says of each of them,
    if it is loaded.

    A host that is a container sees all GPUs of the driver, and has nodes of its own only.
    """
    pattern = kinds.get("nodes") or NODES
    head = pattern.replace("%d", "")
    ends = [path[len(head) :] for path in glob.glob(head + "[0-9]*")]
    nodes = sorted(int(end) for end in ends if end.isdigit())
    if pattern != NODES:
        return {"nodes": nodes, "driver": []}
    cards = [parse_information(_read(path)) for path in glob.glob(driver + "/*/information")]
    return {"nodes": nodes, "driver": [card for card in cards if card and card["minor"] in nodes]}


def read_specifications(folders: Iterable[str] = CDI_FOLDERS) -> list[str]:
    """Return the texts of the CDI specifications of this host."""
    paths = [path for folder in folders for path in sorted(glob.glob(folder + "/*"))]
    return [_read(path) for path in paths if path.endswith((".json", ".yaml"))]
