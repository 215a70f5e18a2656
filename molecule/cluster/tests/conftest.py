from __future__ import annotations

import pytest
from left_to_acceptance import pytest_collection_modifyitems
from whole_cluster import WholeCluster

__all__ = ["pytest_collection_modifyitems"]


@pytest.fixture(scope="session")
def cluster():
    return WholeCluster("cluster", "172.30.78.0/24")


@pytest.fixture(params=["cluster-a", "cluster-b"])
def host_name(request):
    return request.param
