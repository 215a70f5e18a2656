from __future__ import annotations

import subprocess
import sys

import pytest
from left_to_acceptance import pytest_collection_modifyitems
from whole_cluster import ROOT, WholeCluster

__all__ = ["pytest_collection_modifyitems"]


@pytest.fixture(scope="session")
def cluster():
    # This machine's next build from the same inputs takes it, instead of compiling.
    subprocess.run(
        [
            sys.executable,
            "lab/lab.py",
            "keep",
            "--name",
            "cluster",
            "--state",
            ".cache/cluster/state",
        ],
        cwd=ROOT,
        check=True,
    )
    return WholeCluster("cluster", "172.30.78.0/24")


@pytest.fixture(params=["cluster-a", "cluster-b"])
def host_name(request):
    return request.param
