from __future__ import annotations

import pytest
from left_to_acceptance import pytest_collection_modifyitems
from virtual_cluster import VirtualCluster

__all__ = ["pytest_collection_modifyitems"]


@pytest.fixture(scope="session")
def cluster():
    return VirtualCluster("vm", "172.30.79.0/24")
