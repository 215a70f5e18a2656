"""One parser for versions of NCCL's packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.filter.nccl_build import nccl_build
from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild


@pytest.mark.parametrize(
    "text, parts",
    [
        ("2.8.4-1+cuda11.0", ("2.8.4", 1, "11.0")),
        ("2.3.5-2+cuda9.2", ("2.3.5", 2, "9.2")),
        ("2.28.9-10+cuda13.0", ("2.28.9", 10, "13.0")),
    ],
)
def test_a_build_of_any_revision(text, parts):
    build = NcclBuild.parse(text)
    assert build == parts and str(build) == text and build.cuda_major == int(parts[2].split(".")[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2.8.4",
        "2.8.4-1",
        "2.8.4+cuda11.0",
        "2.8.4-1+cuda11",
        "2.8.4-1+cuda11.0 ",
        "2.8.4-1+cuda11.0\n",
        "v2.8.4-1+cuda11.0",
        "2-1+cuda11.0",
        "2.8-1+cuda11.0",
        "2.8.4-1+cuda11.0.1",
        "\u0662.8.4-1+cuda11.0",
    ],
)
def test_what_names_no_build(text):
    assert NcclBuild.parse(text) is None


@pytest.mark.parametrize(
    "text, is_one",
    [
        ("2.8.4", True),
        ("2.28.9", True),
        ("2.8", False),
        ("2.8.4-1", False),
        ("2.8.4\n", False),
        ("\u0662.8.4", False),
    ],
)
def test_a_release_alone(text, is_one):
    assert NcclBuild.is_release(text) is is_one


def test_the_filter_has_the_parts_and_empty_ones_for_what_names_no_build():
    assert nccl_build("2.21.5-2+cuda12.4") == {
        "release": "2.21.5",
        "revision": 2,
        "cuda": "12.4",
        "cuda_major": 12,
    }
    assert nccl_build("2.21.5") == {"release": "2.21.5", "revision": 0, "cuda": "", "cuda_major": 0}
    assert (
        nccl_build("")
        == nccl_build("2.21.5-1")
        == nccl_build(["2.21.5-1+cuda12.4"])
        == {"release": "", "revision": 0, "cuda": "", "cuda_major": 0}
    )


def test_no_rule_takes_a_version_apart_by_itself():
    files = sorted((Path(__file__).parents[4] / "roles").glob("*/meta/*rules.yml"))
    files = [path.read_text(encoding="utf-8") for path in files if "cuda_toolkit" not in path.parts]
    # cuDNN, of role cuda_toolkit, writes its versions in another form.
    assert len(files) > 15 and not [
        line
        for text in files
        for line in text.splitlines()
        if re.search(r"(\[\+\]|\\\+|'\+)cuda", line)
    ]
