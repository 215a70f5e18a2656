# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Positions of GPUs in Slurm, device numbers, indexes of nvidia-smi, and names of CDI."""

from __future__ import annotations

import json
import random

import _gpu_numbers as numbers
import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan

INFORMATION = """Model: 		 NVIDIA H100 80GB HBM3
IRQ:   		 258
GPU UUID: 	 GPU-8f3a1111-0000
Video BIOS: 	 96.00.74.00.0d
Bus Type: 	 PCIe
Bus Location: 	 0000:3b:00.0
Device Minor: 	 3
GPU Excluded:	 No
"""


def card(minor, bus=None, model="NVIDIA A100-SXM4-80GB"):
    return {
        "minor": minor,
        "model": model,
        "uuid": "GPU-%08x-0000" % (0xA0 + minor),
        "bus": "0000:%02x:00.0" % (minor if bus is None else bus),
    }


def host(nodes, driver=()):
    return {"nodes": list(nodes), "driver": list(driver)}


#: Four A100 around a display card, whose address lies between theirs. gres.conf: Type=a100
#: File=/dev/nvidia[0-2,4], Type=dgx File=/dev/nvidia3.
DGX = {"nodes": "/dev/nvidia%d", "cdi": "nvidia.com/gpu", "positions": [0, 1, 2, 4, 3]}
DGX_HOST = host(
    range(5),
    [card(0), card(1), card(2), card(3, model="NVIDIA DGX Display"), card(4)],
)
#: File=/dev/nvidia2,/dev/nvidia3,/dev/nvidia5,/dev/nvidia7.
GAPS = {"nodes": "/dev/nvidia%d", "cdi": "nvidia.com/gpu", "positions": [2, 3, 5, 7]}
GAPS_HOST = host([2, 3, 5, 7])


@pytest.mark.parametrize(
    "text, found", [("0,2-3", [0, 2, 3]), ("", []), ("GPU-8f3a,1", [1]), ("1023", [1023])]
)
def test_numbers_of_gpus(text, found):
    assert numbers.numbers_of(text) == found


@pytest.mark.parametrize("text", ["1024", "0-999999999999"])
def test_numbers_that_no_gpu_has(text):
    with pytest.raises(numbers.DeviceError, match="has GPUs after the number 1023"):
        numbers.numbers_of(text)


def test_what_the_driver_says_of_a_gpu():
    assert numbers.parse_information(INFORMATION) == {
        "minor": 3,
        "model": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-8f3a1111-0000",
        "bus": "0000:3b:00.0",
    }
    assert numbers.parse_information(INFORMATION.replace("Model", "Mode"))["model"] == ""
    assert numbers.parse_information("Model: x\n") is None and numbers.parse_information("") is None


@pytest.mark.parametrize(
    "environment, constrained, found",
    [
        ({}, False, []),
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, False, [2, 3]),
        ({"SLURM_STEP_GPUS": "2-3", "CUDA_VISIBLE_DEVICES": "0,1"}, True, [2, 3]),
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "3"}, False, [3]),
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, True, [3]),
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0"}, False, []),
        # A task that is bound: Slurm names its GPUs only, and still counts those of the step.
        ({"SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "1"}, True, [3]),
        # A prolog of Slurm 25.11.
        ({"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "GPU-a1"}, False, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, False, []),
    ],
)
def test_only_the_gpus_of_the_task(environment, constrained, found):
    assert numbers.positions_of(environment, constrained) == found


@pytest.mark.parametrize(
    "kinds, there, environment, devices",
    [
        (DGX, DGX_HOST, {"SLURM_STEP_GPUS": "0,1,2,3"}, [0, 1, 2, 4]),
        (DGX, DGX_HOST, {"SLURM_STEP_GPUS": "4"}, [3]),
        (DGX, DGX_HOST, {"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3"}, [4]),
        (DGX, host(range(5)), {"SLURM_STEP_GPUS": "3"}, [4]),
        (GAPS, GAPS_HOST, {"SLURM_STEP_GPUS": "0"}, [2]),
        (GAPS, GAPS_HOST, {"SLURM_STEP_GPUS": "2-3"}, [5, 7]),
        # Without a driver, as in CI, and of a list of a former release there is none.
        ({"nodes": "/dev/nvidia%d"}, host(range(4)), {"SLURM_STEP_GPUS": "1,3"}, [1, 3]),
        ({}, host(range(2), [card(0), card(1)]), {"SLURM_STEP_GPUS": "1"}, [1]),
    ],
)
def test_devices_of_a_task(kinds, there, environment, devices):
    assert numbers.of_task(environment, {"gpus": kinds}, there) == devices


@pytest.mark.parametrize("constrained, visible", [(False, "3"), (True, "1")])
def test_a_job_leaves_out_gpus_of_its_own(constrained, visible):
    config = {"gpus": DGX, "constrain_devices": constrained}
    told = {"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": visible}
    assert numbers.of_task(told, config, DGX_HOST) == [4]


@pytest.mark.parametrize(
    "visible, devices",
    [("GPU-000000a4-0000", [4]), ("GPU-000000a4", [4]), ("GPU-ffff", [2, 4]), ("MIG-1", [2, 4])],
)
def test_gpus_by_uuid(visible, devices):
    """Slurm sets them with C(env_uuid)."""
    told = {"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": visible}
    assert numbers.of_task(told, {"gpus": DGX}, DGX_HOST) == devices


@pytest.mark.parametrize(
    "positions, kinds, there, words",
    [
        # A release without the list.
        ([2], {"nodes": "/dev/nvidia%d"}, host([0, 1, 3]), "device numbers 0, 1, 3, and no list"),
        ([0], {}, DGX_HOST, "of the models NVIDIA A100-SXM4-80GB, NVIDIA DGX Display, and no list"),
        ([0], {"nodes": "/dev/davinci%d"}, host([4, 5]), "device numbers 4, 5, and no list"),
        ([4], GAPS, GAPS_HOST, "its list has 4: device numbers 2, 3, 5, 7"),
        ([1], GAPS, host([3, 5, 7]), "its list has /dev/nvidia2, which this host does not have"),
        ([3], GAPS, host([2, 3, 5]), "its list has /dev/nvidia7, which this host does not have"),
        ([0], {}, host([]), "/dev/nvidia0, which this host does not have"),
        ([1], GAPS, host([2, 3, 5, 7], [card(2), card(5)]), "driver has the device numbers 2, 5"),
    ],
)
def test_a_host_that_differs_is_refused(positions, kinds, there, words):
    with pytest.raises(numbers.DeviceError, match=words) as told:
        numbers.devices_of(positions, kinds, there)
    assert "run playbook scheduler" in str(told.value)


def test_a_later_device_may_be_missing():
    assert numbers.devices_of([0, 1], GAPS, host([2, 3, 5])) == [2, 3]
    assert numbers.devices_of([], {}, host([0, 7])) == []


@pytest.mark.parametrize(
    "kinds, there, fault, missing",
    [
        (DGX, DGX_HOST, "", ""),
        (GAPS, GAPS_HOST, "", ""),
        (GAPS, host([2, 3, 5, 7, 8]), "2, 3, 5, 7, and the host has 2, 3, 5, 7, 8", ""),
        (GAPS, host([2, 3, 5]), "and the host has 2, 3, 5", "and the host has 2, 3, 5"),
        (GAPS, host([2, 3, 5, 7], [card(2)]), "and the host has 2", "and the host has 2"),
        ({"positions": [0]}, host([]), "0, and the host has none", "0, and the host has none"),
        ({}, host([0, 2]), "no list of the order", "no list of the order"),
        ({}, host(range(8)), "", ""),
        ({}, host([]), "", ""),
    ],
)
def test_the_list_and_the_host(kinds, there, fault, missing):
    for words, told in (
        (fault, numbers.list_fault(kinds, there)),
        (missing, numbers.list_fault(kinds, there, only_missing=True)),
    ):
        assert words in told and bool(words) == bool(told)


def test_indexes_of_nvidia_smi():
    """By PCI address, which may have another order than the device numbers."""
    turned = host([0, 1, 2, 3], [card(0, 0xC1), card(1, 0x81), card(2, 0x41), card(3, 0x01)])
    assert numbers.indexes([0, 1, 3], {}, turned) == [3, 2, 0]
    assert numbers.indexes([4, 3], DGX, DGX_HOST) == [4, 3]
    assert numbers.indexes([5, 7], GAPS, GAPS_HOST) == [2, 3]
    far = host([0, 1], [dict(card(0), bus="00010000:01:00.0"), dict(card(1), bus="0000:ff:00.0")])
    assert numbers.indexes([0, 1], {}, far) == [1, 0]


TOOLKIT = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia4
    - path: /dev/dri/card1
    - hostPath: /dev/dri/renderD128
      path: /dev/dri/renderD128
    hooks:
    - args:
      - nvidia-ctk
      hookName: createContainer
      path: /usr/bin/nvidia-ctk
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "1"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia-caps/nvidia-cap3
  name: "1:0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia4
  name: all
kind: nvidia.com/gpu
mounts:
- containerPath: /usr/bin/nvidia-smi
  hostPath: /usr/bin/nvidia-smi
"""
INDENTED = TOOLKIT.partition("devices:\n")
INDENTED = (
    INDENTED[0]
    + INDENTED[1]
    + "".join("  %s\n" % line for line in INDENTED[2].partition("kind:")[0].splitlines())
    + "kind: nvidia.com/gpu\n"
)
OWN = _job_container_plan.cdi_specification([0, 4], ["/dev/nvidiactl", "/dev/nvidia-uvm-tools"])
KINDS = {"cdi": "nvidia.com/gpu", "nodes": "/dev/nvidia%d"}


@pytest.mark.parametrize(
    "text, kind",
    [
        ('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}', "nvidia.com/gpu"),
        ('{\n  "kind": "nvidia.com/gpu"\n}', "nvidia.com/gpu"),
        ("---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n", "nvidia.com/gpu"),
        ("kind: 'vendor.com/net'\n", "vendor.com/net"),
        ("# kind: nvidia.com/gpu\n", ""),
        ("", ""),
    ],
)
def test_kind_of_a_specification(text, kind):
    assert numbers.cdi_kind(text) == kind


@pytest.mark.parametrize(
    "texts, names",
    [
        ([TOOLKIT], ["0", "1"]),
        ([INDENTED], ["0", "1"]),
        ([OWN], ["4", "0"]),
        (["kind: other.com/gpu\n", TOOLKIT], ["0", "1"]),
        # By UUID only.
        ([TOOLKIT.replace('"0"', "GPU-a4").replace('"1"', "GPU-a0")], ["GPU-a4", "GPU-a0"]),
        # Without a description that can be read: the index.
        ([], ["1", "0"]),
        (
            ["kind: nvidia.com/gpu\ndevices: {}\n", '{"kind": "nvidia.com/gpu", "devices": 3}'],
            ["1", "0"],
        ),
    ],
)
def test_names_of_cdi(texts, names):
    """They are neither positions nor device numbers: nvidia-ctk counts by PCI address."""
    assert numbers.cdi_names([4, 0], KINDS, host([0, 4], [card(0), card(4)]), texts) == names


def test_a_device_without_a_name_of_cdi():
    with pytest.raises(numbers.DeviceError, match="describes /dev/nvidia7. Tell the operator"):
        numbers.cdi_names([0, 7], KINDS, host([0, 4, 7]), [TOOLKIT])


def test_damaged_specifications_raise_nothing():
    chosen = random.Random(48)
    for text in (TOOLKIT, OWN):
        for _try in range(300):
            begin = chosen.randrange(len(text))
            numbers.cdi_devices(text[:begin] + text[begin + chosen.randrange(40) :])
    for value in (3, None, [], {"devices": [3]}, {"devices": {"a": 1}}):
        numbers.cdi_devices(json.dumps(value))


def test_reading_a_host(tmp_path):
    for number in (0, 3, 11):
        (tmp_path / ("gpu%d" % number)).touch()
    (tmp_path / "gpu1x").touch()
    kinds = {"nodes": str(tmp_path / "gpu%d")}
    assert numbers.read_host(kinds) == {"nodes": [0, 3, 11], "driver": []}
    (tmp_path / "a.json").write_text("{}", encoding="ascii")
    (tmp_path / "a.txt").write_text("no", encoding="ascii")
    assert numbers.read_specifications([str(tmp_path), "/none"]) == ["{}"]


def test_the_driver_counts_for_its_own_devices_only(tmp_path, monkeypatch):
    """A host that is a container sees all GPUs of the driver."""
    for minor, bus in ((3, "0000:3b:00.0"), (4, "0000:5e:00.0")):
        (tmp_path / bus).mkdir()
        text = INFORMATION.replace("Minor: \t 3", "Minor: \t %d" % minor)
        (tmp_path / bus / "information").write_text(text, encoding="ascii")
    (tmp_path / "nvidia3").touch()
    monkeypatch.setattr(numbers, "NODES", str(tmp_path / "nvidia%d"))
    told = numbers.read_host({}, str(tmp_path))
    assert told["nodes"] == [3] and [each["minor"] for each in told["driver"]] == [3]
    assert numbers.read_host({"nodes": str(tmp_path / "davinci%d")}, str(tmp_path))["driver"] == []
