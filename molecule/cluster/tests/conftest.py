from __future__ import annotations

import os

import pytest
from whole_cluster import WholeCluster


@pytest.fixture(scope="session")
def cluster():
    return WholeCluster("cluster", "172.30.78.0/24")


@pytest.fixture(params=["cluster-a", "cluster-b"])
def host_name(request):
    return request.param


def pytest_collection_modifyitems(config, items):
    """The heavy ones run when `make acceptance` runs: tests/scenarios says so."""
    heavy = [item for item in items if item.get_closest_marker("acceptance")]
    if heavy and not os.environ.get("TRAINYARD_ACCEPTANCE"):
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]
        print("left to make acceptance: %s" % ", ".join(item.name for item in heavy))
