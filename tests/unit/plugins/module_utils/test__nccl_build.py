"""One parser for versions of NCCL's packages."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild


@pytest.mark.parametrize("text, parts", [
    ("2.8.4-1+cuda11.0", ("2.8.4", 1, "11.0")),
    ("2.3.5-2+cuda9.2", ("2.3.5", 2, "9.2")),
    ("2.28.9-10+cuda13.0", ("2.28.9", 10, "13.0")),
])
def test_a_build_of_any_revision(text, parts):
    build = NcclBuild.parse(text)
    assert build == parts and str(build) == text and build.cuda_major == int(parts[2].split(".")[0])


@pytest.mark.parametrize("text", [
    "", "2.8.4", "2.8.4-1", "2.8.4+cuda11.0", "2.8.4-1+cuda11", "2.8.4-1+cuda11.0 ", "2.8.4-1+cuda11.0\n", "v2.8.4-1+cuda11.0", "2-1+cuda11.0",
])
def test_what_names_no_build(text):
    assert NcclBuild.parse(text) is None
