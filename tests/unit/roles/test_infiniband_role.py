"""What role infiniband decides on by what a host has, as far as variables decide it; scenario
infiniband does it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROLE = Path(__file__).parents[3] / "roles/infiniband"
NAMES, MODULES = (
    "/etc/udev/rules.d/60-rdma-persistent-naming.rules",
    "/etc/modules-load.d/trainyard-infiniband.conf",
)
LIMITS = [
    "/etc/security/limits.d/trainyard-infiniband.conf",
    "/etc/systemd/system.conf.d/trainyard-infiniband.conf",
]
TOOLS = ["rdma-core", "ibverbs-providers", "ibverbs-utils", "infiniband-diags"]
INFINIBAND = {"driver": "mlx5_core", "infiniband": True}
ROCE = {"driver": "mlx5_core", "infiniband": False}
PORT = {
    "port": 1,
    "transport": "roce",
    "state": "active",
    "rate_gb_s": 100.0,
    "netdev": "eth0",
    "nccl_gid_index": 3,
    "gids": [],
}


def read(name):
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


def decided(*names, adapters=(INFINIBAND,), missing=(), loaded=(), **given):
    """Values of the role's variables.

    C(missing) are modules that the kernel lacks, C(loaded) those that are loaded.
    """
    asked = {key: given.pop(key) for key in list(given) if key.startswith("infiniband_")}
    states = {
        name: "missing" if name in missing else "loaded" if name in loaded else "available"
        for name in ("mlx5_ib", "mlx4_ib", "ib_uverbs", "rdma_ucm", "ib_umad", "ib_ipoib")
    }
    found = dict(
        {
            "ofed": "",
            "packages": {},
            "files": {},
            "devices": [],
            "adapters": list(adapters),
            "kernel_modules": states,
            "fix": None,
        },
        **given,
    )
    variables = {
        name: trust_as_template(value) if isinstance(value, str) else value
        for name, value in read("vars/main.yml").items()
    }
    variables["__infiniband_placed_paths"] = [
        trust_as_template(path) for path in variables["__infiniband_placed_paths"]
    ]
    variables.update(
        dict(read("defaults/main.yml"), **asked),
        __infiniband_found=found,
        ansible_search_path=[str(ROLE)],
    )
    templar = Templar(DataLoader(), variables)
    values = [
        templar.template(
            variables.get("__infiniband_" + name)
            or trust_as_template("{{ __infiniband_plan.%s }}" % name)
        )
        for name in names
    ]
    return values[0] if len(values) == 1 else values


def text(name):
    return (ROLE / "files" / name).read_text(encoding="utf-8")


def checksum(content):
    return hashlib.sha256(content.encode()).hexdigest()


OWN_NAMES = {NAMES: checksum(text("names.rules"))}


@pytest.mark.parametrize(
    "adapters, expected",
    [
        ([INFINIBAND], ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad", "ib_ipoib"]),
        # IP over InfiniBand is for InfiniBand.
        ([ROCE, ROCE], ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad"]),
        (
            [{"driver": "mlx4_core", "infiniband": True}, ROCE],
            ["mlx4_ib", "mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad", "ib_ipoib"],
        ),
        # Another maker's, whose driver makes devices by itself, or one that no driver has.
        (
            [{"driver": "hfi1", "infiniband": False}, {"driver": "", "infiniband": False}],
            ["ib_uverbs", "rdma_ucm", "ib_umad"],
        ),
    ],
)
def test_modules(adapters, expected):
    assert decided("modules", adapters=adapters) == expected


def test_modules_by_what_is_there():
    kinds = [
        {"name": "mlx5_0", "ports": [dict(PORT, transport=kind)]} for kind in ("roce", "infiniband")
    ]
    # A card that calls itself a network card on the bus may be set to InfiniBand.
    assert (
        decided("modules", adapters=[ROCE], devices=kinds)[-1] == "ib_ipoib"
        and decided("modules", adapters=[ROCE], devices=kinds[:1])[-1] == "ib_umad"
    )
    modules, unloaded, lacking = decided(
        "modules",
        "unloaded",
        "lacking",
        missing=["ib_ipoib", "mlx4_ib"],
        loaded=["mlx5_ib", "ib_uverbs"],
    )
    assert (modules, unloaded, lacking) == (
        ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad"],
        ["rdma_ucm", "ib_umad"],
        ["ib_ipoib"],
    )


def test_packages():
    assert decided("missing_packages") == TOOLS
    assert decided(
        "missing_packages", infiniband_perftest="yes", packages={"rdma-core": "44"}
    ) == TOOLS[1:] + ["perftest"]
    assert decided("missing_packages", infiniband_tools="false", infiniband_perftest=True) == []


def test_vendors_ofed_keeps_packages_and_modules_to_itself():
    missing, modules, unloaded, checksums = decided(
        "missing_packages", "modules", "unloaded", "checksums", ofed="MLNX_OFED_LINUX-5.8-3.0.7.0"
    )
    assert (missing, modules, unloaded, list(checksums)) == ([], [], [], LIMITS)


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, True),
        ({"infiniband_persistent_names": "true"}, False),
        # It came with the host, whose devices have had its names for long.
        ({"packages": {"rdma-core": "44"}}, False),
        ({"packages": {"rdma-core": "44"}, "files": OWN_NAMES}, True),
        (
            {
                "packages": {"rdma-core": "44"},
                "files": OWN_NAMES,
                "infiniband_persistent_names": True,
            },
            False,
        ),
        ({"files": {NAMES: checksum("# mine\n")}}, False),
        ({"infiniband_tools": False}, False),
        ({"ofed": "MLNX_OFED_LINUX-5.8-3.0.7.0"}, False),
    ],
)
def test_names_of_devices(given, expected):
    keeps, checksums = decided("keeps_names", "checksums", **given)
    assert (keeps, NAMES in checksums) == (expected, expected)


def test_files_and_what_is_no_longer_asked_for():
    contents = {
        entry["path"]: entry["content"] for entry in decided("contents", infiniband_memlock=4096)
    }
    assert list(contents) == [NAMES, MODULES] + LIMITS
    assert contents[MODULES].splitlines()[1:] == [
        "mlx5_ib",
        "ib_uverbs",
        "rdma_ucm",
        "ib_umad",
        "ib_ipoib",
    ]
    assert contents[LIMITS[0]].splitlines()[1:] == ["* - memlock 4096", "root - memlock 4096"]
    assert contents[LIMITS[1]].splitlines()[1:] == ["[Manager]", "DefaultLimitMEMLOCK=4096K"]
    assert (
        "DefaultLimitMEMLOCK=infinity\n" in [entry["content"] for entry in decided("contents")][3]
    )
    assert list(decided("checksums", infiniband_memlock="")) == [NAMES, MODULES]
    # The user's own is none of the role's to remove.
    there = {NAMES: checksum("# mine\n"), LIMITS[0]: "0" * 64}
    assert decided("own_paths", files=there) == LIMITS[:1] and decided(
        "own_paths", files=OWN_NAMES
    ) == [NAMES]


def test_nothing_to_do():
    packages = dict.fromkeys(TOOLS, "44")
    everything = ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad", "ib_ipoib"]
    files = decided("checksums", packages=packages, files=OWN_NAMES)
    whole = {"packages": packages, "files": files, "loaded": everything}
    assert decided("is_as_requested", **whole) is True
    for changes in (
        {"packages": {}},
        {"loaded": everything[:-1]},
        {"files": OWN_NAMES},
        {"files": dict(files, **{LIMITS[0]: "0" * 64})},
        {"infiniband_memlock": ""},
        {"infiniband_persistent_names": True},
        {"infiniband_perftest": True},
    ):
        assert decided("is_as_requested", **dict(whole, **changes)) is False, changes


def test_ports_that_are_reported():
    devices = [
        {
            "name": "mlx5_0",
            "ports": [
                PORT,
                dict(
                    PORT,
                    port=2,
                    transport=None,
                    state=None,
                    rate_gb_s=None,
                    netdev=None,
                    nccl_gid_index=None,
                ),
            ],
        }
    ]
    ports, summary = decided("ports", "summary", devices=devices, missing=["ib_ipoib"], ofed="")
    assert ports[0] == {
        "device": "mlx5_0",
        "port": 1,
        "transport": "roce",
        "state": "active",
        "rate_gb_s": 100.0,
        "netdev": "eth0",
        "gid_index": 3,
    }
    assert summary == (
        "mlx5_0 port 1: roce, active, 100.0 Gb/s, eth0. mlx5_0 port 2: unknown transport, unknown state, ? Gb/s, no interface. "
        "The running kernel has no module ib_ipoib; on Ubuntu, linux-modules-extra may have it."
    )
