"""The compatibility data and its queries."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import version_key
from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import ROLES

FACTS = _compat.load_facts()


@pytest.fixture(name="compat")
def fixture_compat():
    return _compat.Compatibility(FACTS)


def rows(value, path=""):
    if isinstance(value, dict):
        if "conf" in value:
            yield path, value
        for key, inner in value.items():
            yield from rows(inner, "%s.%s" % (path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from rows(inner, "%s[%d]" % (path, number))


def test_every_row_says_how_sure_it_is_and_where_it_was_read():
    seen, legend = 0, pathlib.Path(_compat.FOLDER, "README.md").read_text(encoding="utf-8")
    for path, row in rows(FACTS):
        seen += 1
        assert row["conf"] in ("high", "medium", "low"), path
        for source in row.get("src", []):
            assert "| %s | " % source in legend, "%s: %s" % (path, source)
    assert seen > 300


def test_every_table_is_read_by_a_question():
    """What no code reads misleads: a maintainer changes it and nothing happens."""
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in pathlib.Path(_compat.__file__).parent.glob("*.py")
    )
    unread = [
        (top, table)
        for top, tables in FACTS.items()
        for table in tables
        if 'facts["%s"]["%s"]' % (top, table) not in code
    ]
    # By the test of the recommended version, and by that of decision vendor_source, whose own list
    # of directories must not contradict it.
    assert unread == [("container_toolkit", "versions"), ("nccl", "dir_status")]


def test_versions_are_texts_that_can_be_compared():
    for row in FACTS["cuda"]["toolkits"]:
        for name in ("cuda", "series", "toolkit_driver", "minor_compat_min"):
            assert row[name] is None or isinstance(row[name], str) and version_key(row[name]), row
    for row in FACTS["nccl"]["debs"]:
        build = NcclBuild.parse(row["deb_version"])
        assert build and (build.release, build.cuda) == (row["nccl"], row["cuda"]), row


@pytest.mark.parametrize(
    "device_id, generation",
    [
        ("102d", "Kepler"),
        ("17c2", "Maxwell"),
        ("15f8", "Pascal"),
        ("1b06", "Pascal"),
        ("1db6", "Volta"),
        ("1eb8", "Turing"),
        ("20b2", "Ampere"),
        ("2204", "Ampere"),
        ("2330", "Hopper"),
        ("2684", "Ada"),
        ("2901", "Blackwell"),
        ("2b85", "Blackwell"),
        ("0a20", None),
        ("ffff", None),
    ],
)
def test_generation(compat, device_id, generation):
    assert compat.generation(device_id) == generation


def test_no_device_is_of_two_generations():
    ranges = sorted(
        (int(first, 16), int(last, 16))
        for entry in FACTS["cuda"]["gpu_device_ids"]
        for first, last in entry["ranges"]
    )
    assert all(first <= last for first, last in ranges)
    assert all(before[1] < after[0] for before, after in zip(ranges, ranges[1:]))


@pytest.mark.parametrize(
    "version, floor, lower",
    [
        ("470.57.02", "470.239.06", True),
        ("470.239.06", "470.57.02", False),
        ("535", "535.54.03", True),
        ("525.60.13", "525.60.13", False),
        ("580", "525.60.13", False),
    ],
)
def test_versions_are_compared_field_by_field(version, floor, lower):
    assert _compat.below(version, floor) is lower


def test_floors(compat):
    assert compat.minor_compat_min("12.4") == "525.60.13"
    assert compat.minor_compat_min("13.0.1") == "580.65.06"
    # No minor version compatibility there, and no such major.
    assert compat.minor_compat_min("10.2") is None and compat.minor_compat_min("99.0") is None
    assert compat.toolkit("11.4.4")["toolkit_driver"] == "470.82.01"
    assert compat.toolkit("12.4")["cuda"] == "12.4.0"
    # NGC says more fields than a toolkit's version has: 12.4.1 of 12.4.1.003 isn't told apart, its
    # series is.
    assert compat.toolkit("12.4.0.041")["series"] == "12.4"
    assert compat.toolkit("12.7") is None


def test_forward_compatibility_of_data_center_gpus(compat):
    assert compat.forward_compatible("470.82.01", "12.4") is True
    assert compat.forward_compatible("450.80.02", "12.4") is False
    assert compat.forward_compatible("470.42.01", "12.4") is False
    assert compat.forward_compatible("470.82.01", "13.0") is None


def test_branches(compat):
    assert (
        compat.branch("535.183.01")["status"] == "eol"
        and compat.branch("580")["status"] == "supported"
    )
    assert compat.branch("999.1") is None
    assert (
        compat.nccl_cuda_major_max("535.183.01") == 12
        and compat.nccl_cuda_major_max("580") == 13
        and compat.nccl_cuda_major_max("999") is None
    )


def test_nccl_pair(compat):
    assert compat.nccl_pair("2.21.5", "12.4.1", "ubuntu2204")["version"] == "2.21.5-1+cuda12.4"
    assert compat.nccl_pair("2.21.5-1+cuda12.4", "", "ubuntu2204") == {
        "version": "2.21.5-1+cuda12.4",
        "known": True,
        "nearest": ["2.21.5-1+cuda12.4", "2.21.5-1+cuda12.5", "2.20.5-1+cuda12.4"],
    }
    # An exact version stays, even one that no table has: apt decides.
    assert compat.nccl_pair("2.99.1-1+cuda12.4", "", "ubuntu2204")["version"] == "2.99.1-1+cuda12.4"
    assert compat.nccl_pair("2.99.1-1+cuda12.4", "", "ubuntu2204")["known"] is False
    unknown = compat.nccl_pair("2.21.5", "12.6", "ubuntu2204")
    assert (unknown["version"], unknown["known"], unknown["nearest"][0]) == (
        "",
        False,
        "2.21.5-1+cuda12.5",
    )
    # The procedures' two pairs, and where they can't come from.
    assert (
        compat.nccl_pair("2.8.4-1+cuda11.0", "", "ubuntu1804")["known"]
        and compat.nccl_pair("2.10.3-1+cuda11.4", "", "ubuntu2004")["known"]
    )
    debian = compat.nccl_pair("2.21.5", "12.4", "debian12")
    assert (debian["version"], debian["known"], debian["nearest"][0]) == (
        "2.21.5-1+cuda12.4",
        False,
        "2.21.5-1+cuda12.4",
    )


def test_keyrings(compat):
    assert compat.keyring("ubuntu2404", "1.0-1")["exists"] is False
    assert len(compat.keyring("debian12")["sha256"]) == 64
    assert compat.keyring("debian99") == {"exists": None, "sha256": ""}
    sums = [
        row["sha256_1.1-1"]
        for row in FACTS["driver_packages"]["cuda_keyring"]["rows"]
        if "sha256_1.1-1" in row
    ]
    assert len(sums) == len(set(sums))


@pytest.mark.parametrize(
    "asked, installed, meant",
    [
        ("recommended", None, "1.17.8-1"),
        ("recommended", "1.19.0-1", "1.19.0-1"),
        ("1.17.7", "1.19.0-1", "1.17.7-1"),
        ("1.17.7-2", None, "1.17.7-2"),
        ("", "1.19.0-1", ""),
    ],
)
def test_container_toolkit(asked, installed, meant):
    packages = (
        {"nvidia-container-toolkit": {"version": installed, "held": False}} if installed else {}
    )
    assert _compat.toolkit_version(asked, packages, FACTS) == meant


def test_recommended_container_toolkit_is_safe_and_exists():
    recommended = FACTS["container_toolkit"]["recommended"]["version"]
    assert recommended in FACTS["container_toolkit"]["versions"]
    assert all(
        version_key(recommended) >= version_key(row["fixed"])
        for row in FACTS["container_toolkit"]["security_floor"]
    )
    assert recommended not in [row["version"] for row in FACTS["container_toolkit"]["known_bad"]]


def test_what_has_no_release_for_an_old_python():
    assert _compat.too_new(
        "3.6.9",
        ["cmake==3.31.6", "cmake==3.28.4", "cmake", "psutil==7.0.0", "PyYAML==6.0.2"],
        FACTS,
    ) == [
        "cmake==3.31.6 (3.28.4 is the last for Python 3.6)",
        "PyYAML==6.0.2 (6.0.1 is the last for Python 3.6)",
    ]
    assert (
        _compat.too_new("3.8", ["cmake==9.9"], FACTS)
        == _compat.too_new("", ["cmake==9.9"], FACTS)
        == []
    )
    assert (
        _compat.too_new(
            "3.6",
            ["cmake==3.31.6; python_version >= '3.7'", "cmake==3.31.6; sys_platform == 'linux'"],
            FACTS,
        )
        == []
    )


def test_the_pins_of_the_role_have_a_release_for_every_python():
    given = yaml.safe_load(
        (pathlib.Path(ROLES) / "training_image/defaults/main.yml").read_text(encoding="utf-8")
    )
    packages = [
        package
        for name in ("horovod_build_packages", "horovod_dependencies", "pip_packages")
        for package in given["training_image_" + name]
    ]
    assert len(packages) > 20 and [
        _compat.too_new(python, packages, FACTS) for python in ("3.6", "3.7")
    ] == [[], []]


def test_clara_train_as_far_as_it_is_known():
    requires = {
        "frameworks": ["tensorflow", "pytorch"],
        "controllers": ["gloo"],
        "tensor_operations": ["nccl"],
    }
    image = _compat.image_fit(
        "nvcr.io/nvidia/clara-train-sdk:v3.1.01", FACTS, {}, _compat.ImageRequest(requires=requires)
    )
    assert (image["python"], image["cuda"], image["directory"], image["nccl_build"]) == (
        "3.6",
        "11.0",
        "ubuntu1804",
        "2.8.4-1+cuda11.0",
    )
    assert "tensor_operations.nccl" in image["lacks"] and image["had"] == [
        "controllers.mpi",
        "tensor_operations.mpi",
    ]


@pytest.mark.parametrize(
    "model, links, gb_s, bridge, known",
    [
        ("NVIDIA A100-SXM4-80GB", 12, 25.0, False, True),
        ("A100-SXM4-40GB", 12, 25.0, False, True),
        ("NVIDIA H100 80GB HBM3", 18, 26.562, False, True),
        ("NVIDIA H200", 18, 26.562, False, True),
        ("NVIDIA GB200", 18, 53.125, False, True),
        ("NVIDIA B300 SXM6 AC", 18, 53.125, False, True),
        ("NVIDIA H20", 18, 26.562, False, True),
        ("NVIDIA H800", 8, 25.0, False, True),
        ("NVIDIA H800 PCIe", None, 0.0, True, True),
        # They have links only with a bridge.
        ("NVIDIA H100 NVL", None, 0.0, True, True),
        ("NVIDIA H200 NVL", None, 0.0, True, True),
        ("NVIDIA A100 80GB PCIe", None, 0.0, True, True),
        ("NVIDIA A100-PCIE-40GB", None, 0.0, True, True),
        ("NVIDIA GeForce RTX 3090", None, 0.0, True, False),
        ("NVIDIA L40S", 0, 0.0, False, True),
        ("Tesla T4", 0, 0.0, False, True),
        # A mesh, of which a virtual machine may have a part.
        ("Tesla V100-SXM2-32GB", None, 0.0, False, False),
        ("NVIDIA H999", None, 0.0, False, False),
        ("", None, 0.0, False, False),
    ],
)
def test_nvlinks_of_a_model(model, links, gb_s, bridge, known):
    assert _compat.nvlinks(model, FACTS) == {
        "links": links,
        "gb_s": gb_s,
        "bridge": bridge,
        "known": known,
    }


@pytest.mark.parametrize(
    "name, device_id, is_one",
    [
        # job-failures.md, section 2, class O.
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "", True),
        ("NVIDIA L40G", "", True),
        ("NVIDIA A100X", "", True),
        ("NVIDIA PG509-210", "", True),
        ("NVIDIA A100-PG506-217", "", True),
        ("NVIDIA A30X", "", True),
        ("NVIDIA RTX PRO 4500 Blackwell Server Edition", "", True),
        ("Tesla K40m", "", True),
        ("NVIDIA Tesla X99", "", True),
        ("Tesla V100S-PCIE-32GB", "", True),
        ("GRID V100DX-32C", "", True),
        ("NVIDIA H100XM-80C", "", True),
        ("NVIDIA H20-3e", "", True),
        ("NVIDIA A100-SXM4-80GB", "", True),
        ("NVIDIA GH200 480GB", "", True),
        ("NVIDIA T4G", "", True),
        # Without a driver, and with a driver that has another name for it.
        ("", "20b0", True),
        ("Graphics Device", "2330", True),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "2bb1", False),
        ("NVIDIA GeForce RTX 4090", "2684", False),
        ("NVIDIA RTX A4000", "24b0", False),
        ("NVIDIA RTX A2000", "", False),
        ("NVIDIA T400 4GB", "1ff2", False),
        ("NVIDIA T1000", "", False),
        ("Quadro P4000", "", False),
        ("Quadro RTX 6000", "", False),
        ("NVIDIA RTX6000-Ada-48Q", "", False),
        ("NVIDIA CMP 170HX", "20c2", False),
        ("P102-100", "", False),
        ("NVIDIA PG132-500", "", False),
        ("NVIDIA TITAN V", "1d81", False),
        ("", "", False),
    ],
)
def test_gpus_of_data_centers(name, device_id, is_one):
    assert _compat.is_data_center(name, FACTS, device_id) is is_one


def test_a_gpu_without_a_name_is_judged_by_its_device():
    stack = {"loaded": "", "library": "", "loaded_is_open": False, "packages": {}}

    def judged(*gpus):
        those = [{"device_id": number, "model": model} for number, model in gpus]
        found = dict(stack, gpus=those, container_toolkit="")
        return _compat.gpu_fit(found, FACTS, "ubuntu2404")["data_center"]

    assert judged(("20b0", "")) is True
    assert judged(("20b0", ""), ("2684", "")) is None
    assert judged(("2684", "NVIDIA GeForce RTX 4090"), ("20b0", "")) is False
