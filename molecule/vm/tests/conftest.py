from __future__ import annotations

import pytest
from virtual_cluster import VirtualCluster


@pytest.fixture(scope="session")
def cluster():
    return VirtualCluster("vm", "172.30.79.0/24")
