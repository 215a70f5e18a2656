"""Decision cuda_toolkits: names, versions and missing packages of a host."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._cuda_toolkits import cuda_toolkits


def installed(**versions):
    return {
        name.replace("_", "-"): {"version": version, "held": True}
        for name, version in versions.items()
    }


def test_several_side_by_side():
    plan = cuda_toolkits(["12.4.1", "11.8", "12.10.0-2"])
    assert plan["packages"] == [
        "cuda-toolkit-12-4=12.4.1-1",
        "cuda-toolkit-11-8",
        "cuda-toolkit-12-10=12.10.0-2",
    ]
    assert plan["asked"] == {
        "cuda-toolkit-12-4": "12.4.1-1",
        "cuda-toolkit-11-8": "11.8",
        "cuda-toolkit-12-10": "12.10.0-2",
    }
    assert list(plan["folders"]) == [
        "/usr/local/cuda-12.4",
        "/usr/local/cuda-11.8",
        "/usr/local/cuda-12.10",
    ]
    # As numbers, not as text.
    assert plan["chosen"] == "/usr/local/cuda-12.10" and plan["lacks_packages"]
    assert "*-11-8" in plan["holds"] and "cuda-toolkit-12-4-*" in plan["holds"]
    assert cuda_toolkits(["12.4.1", "11.8"], chosen="11.8.0")["chosen"] == "/usr/local/cuda-11.8"


@pytest.mark.parametrize(
    "cudnn, packages",
    [
        (
            "9.1.0.70-1",
            [
                "libcudnn9-cuda-12=9.1.0.70-1",
                "libcudnn9-headers-cuda-12=9.1.0.70-1",
                "libcudnn9-dev-cuda-12=9.1.0.70-1",
            ],
        ),
        (
            "8.9.7.29-1+cuda12.2",
            ["libcudnn8=8.9.7.29-1+cuda12.2", "libcudnn8-dev=8.9.7.29-1+cuda12.2"],
        ),
        ("", []),
    ],
)
def test_cudnn_by_generation(cudnn, packages):
    assert cuda_toolkits(["12.2"], cudnn=cudnn)["packages"][1:] == packages


def test_what_a_host_has():
    stack = {
        "packages": installed(cuda_toolkit_12_4="12.4.1-1"),
        "cuda": {"/usr/local/cuda-12.4": {"release": "12.4"}},
    }
    for version, lacks in (("12.4.1", False), ("12.4", False), ("12.4.0", True), ("12.6", True)):
        assert cuda_toolkits([version], found=stack)["lacks_packages"] is lacks, version
    assert cuda_toolkits(["12.4"], found=stack)["wrong"] == []
    assert cuda_toolkits(["12.4", "11.8"], found=stack)["wrong"] == [
        "/usr/local/cuda-11.8/bin/nvcc is missing or gives no output, not 11.8"
    ]
    stack["packages"]["cuda-toolkit-12-4"]["held"] = False
    assert cuda_toolkits(["12.4"], found=stack)["lacks_packages"]
    stack["cuda"]["/usr/local/cuda-12.4"]["release"] = "12.6"
    assert cuda_toolkits(["12.4"], found=stack)["wrong"] == [
        "/usr/local/cuda-12.4/bin/nvcc is 12.6, not 12.4"
    ]


def test_runfiles():
    runfile = {"version": "11.4.4", "url": "file:///a.run"}
    assert cuda_toolkits([], [runfile])["missing_runfiles"] == [
        dict(runfile, folder="/usr/local/cuda-11.4")
    ]
    assert cuda_toolkits([], [runfile])["new_folders"] == ["/usr/local/cuda-11.4"]
    # Something else is in the folder: that will not be ours to remove.
    assert (
        cuda_toolkits([], [runfile], found={"cuda": {"/usr/local/cuda-11.4": {"release": "11.3"}}})[
            "new_folders"
        ]
        == []
    )
    plan = cuda_toolkits(
        [], [runfile], found={"cuda": {"/usr/local/cuda-11.4": {"release": "11.4"}}}
    )
    assert (
        plan["missing_runfiles"] == []
        and plan["packages"] == []
        and not plan["lacks_packages"]
        and plan["priority"] == 114
    )


def test_an_empty_request_plans_nothing():
    plan = cuda_toolkits([])
    assert (
        plan["chosen"],
        plan["packages"],
        plan["folders"],
        plan["wrong"],
        plan["lacks_packages"],
    ) == ("", [], {}, [], False)
