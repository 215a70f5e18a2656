from __future__ import annotations

import pytest
from whole_cluster import WholeCluster


@pytest.fixture(scope="session")
def cluster():
    return WholeCluster("cluster", "172.30.78.0/24")


@pytest.fixture(params=["cluster-a", "cluster-b"])
def host_name(request):
    return request.param
