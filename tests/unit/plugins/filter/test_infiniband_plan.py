"""Decision infiniband_plan alone. tests/unit/roles/test_infiniband_role.py has the same decisions
together with the role's variables and templates.
"""

from __future__ import annotations

import hashlib

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _infiniband_plan

NAMES, MODULES = (
    "/etc/udev/rules.d/60-rdma-persistent-naming.rules",
    "/etc/modules-load.d/trainyard-infiniband.conf",
)
RULE = "# Managed by trainyard.gpu.\n"
OWN = {NAMES: hashlib.sha256(RULE.encode()).hexdigest()}
CARD = {"driver": "mlx5_core", "infiniband": True}
PORT = {
    "port": 1,
    "transport": "infiniband",
    "state": "active",
    "rate_gb_s": 400.0,
    "netdev": "ibs1",
    "nccl_gid_index": None,
    "gids": [],
}


def plan(persistent_names=False, **found):
    given = dict(
        {
            "ofed": "",
            "packages": {},
            "files": {},
            "devices": [],
            "adapters": [CARD],
            "kernel_modules": {},
            "fix": None,
        },
        **found,
    )
    return _infiniband_plan.infiniband_plan(
        given,
        {
            "packages": ["rdma-core", "ibverbs-utils"],
            "placed_paths": [MODULES, NAMES],
            "names_file": NAMES,
            "names_rule": RULE,
            "persistent_names": persistent_names,
        },
    )


def test_before_the_host_is_read():
    told = _infiniband_plan.infiniband_plan(
        {},
        {
            "packages": ["rdma-core"],
            "placed_paths": [NAMES],
            "names_file": NAMES,
            "names_rule": RULE,
            "persistent_names": False,
        },
    )
    assert told["kernel_modules"] == [
        "mlx5_ib",
        "mlx4_ib",
        "ib_uverbs",
        "rdma_ucm",
        "ib_umad",
        "ib_ipoib",
    ]
    assert (told["own_paths"], told["ports"], told["summary"]) == ([], [], "")


@pytest.mark.parametrize(
    "states, modules, unloaded, lacking",
    [
        ({}, ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad", "ib_ipoib"], [], []),
        # Of another maker's adapter nothing is said.
        (
            {
                "mlx4_ib": "missing",
                "ib_ipoib": "missing",
                "rdma_ucm": "available",
                "mlx5_ib": "loaded",
            },
            ["mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad"],
            ["rdma_ucm"],
            ["ib_ipoib"],
        ),
    ],
)
def test_modules(states, modules, unloaded, lacking):
    told = plan(kernel_modules=states)
    assert (told["modules"], told["unloaded"], told["lacking"]) == (modules, unloaded, lacking)


def test_the_vendors_ofed_has_its_own():
    told = plan(
        ofed="MLNX_OFED_LINUX-5.8", kernel_modules={"ib_ipoib": "missing", "ib_umad": "available"}
    )
    assert (
        told["modules"],
        told["unloaded"],
        told["lacking"],
        told["missing_packages"],
        told["keeps_names"],
    ) == ([], [], [], [], False)
    assert told["summary"] == "MLNX_OFED_LINUX-5.8 is installed and has its own tools and modules."


@pytest.mark.parametrize(
    "persistent, packages, files, keeps, own",
    [
        (False, {}, {}, True, []),
        (True, {}, {}, False, []),
        (False, {"rdma-core": "44"}, {}, False, []),
        (False, {"rdma-core": "44"}, OWN, True, [NAMES]),
        # Requested for the next boot: the role's rule goes, the user's stays.
        (True, {"rdma-core": "44"}, OWN, False, [NAMES]),
        (True, {}, {NAMES: "0" * 64, MODULES: "1" * 64}, False, [MODULES]),
        (False, {}, {NAMES: "0" * 64}, False, []),
    ],
)
def test_names_of_devices(persistent, packages, files, keeps, own):
    told = plan(persistent_names=persistent, packages=packages, files=files)
    assert (told["keeps_names"], told["own_paths"]) == (keeps, own)


def test_what_is_reported():
    devices = [
        {
            "name": "mlx5_0",
            "ports": [
                PORT,
                dict(PORT, port=2, transport=None, state=None, rate_gb_s=None, netdev=None),
            ],
        }
    ]
    told = plan(
        devices=devices,
        fix="load the driver",
        kernel_modules={"ib_umad": "missing", "ib_ipoib": "missing"},
    )
    assert told["ports"][0] == {
        "device": "mlx5_0",
        "port": 1,
        "transport": "infiniband",
        "state": "active",
        "rate_gb_s": 400.0,
        "netdev": "ibs1",
        "gid_index": None,
    }
    assert told["summary"] == (
        "mlx5_0 port 1: infiniband, active, 400.0 Gb/s, ibs1. mlx5_0 port 2: unknown transport, unknown state, ? Gb/s, no interface. load the driver. "
        "The running kernel has no module ib_umad, ib_ipoib; on Ubuntu, linux-modules-extra may have it."
    )
