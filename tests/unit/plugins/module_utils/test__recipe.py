# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
import tarfile

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import (
    Build,
    RecipeError,
    archive_image,
    base_problems,
    horovod_variables,
    layers_digest,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._image_plan import image_recipe

LAB = {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": ["gloo"]}
NCCL = {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": ["nccl"]}


def recipe(**changes):
    parts = {
        "base": "example/base:1",
        "base_archive": "",
        "requires": LAB,
        "rebuild": "auto",
        "apt": {},
        "python_packages": ["torch==2.13.0"],
        "nccl": "",
        "horovod": "0.28.1",
        "horovod_sha256": "92a4",
        "horovod_packages": [],
        "source_fixes": [],
        "cuda_architectures": [],
        "build_variables": {},
        "files": {"Dockerfile": "FROM"},
    }
    return image_recipe(dict(parts, **changes))


def probe(**changes):
    found = {
        "versions": {
            "horovod": None,
            "python": "3.11.2",
            "torch": None,
            "tensorflow": None,
            "cuda": None,
            "gcc": "12.2.0",
            "cmake": None,
        },
        "frameworks": {"pytorch": False, "tensorflow": False, "mxnet": False},
        "torch_cuda": None,
        "nccl_header": False,
        "apt": True,
        "mpirun": False,
    }
    found["versions"].update(changes.pop("versions", {}))
    found["frameworks"].update(changes.pop("frameworks", {}))
    return dict(found, **changes)


def problems(found, requires, packages=(), nccl_version="", variables=None, apt_packages=()):
    build = Build(
        "example/base:1",
        requires,
        variables or {},
        list(packages),
        list(apt_packages),
        nccl_version,
    )
    return base_problems(found, build)


def save(path, images):
    """An archive as docker save writes it: {name: layers}."""
    manifest = []
    with tarfile.open(path, "w") as archive:
        for number, (name, layers) in enumerate(images.items()):
            manifest.append({"Config": "%d.json" % number, "RepoTags": [name]})
            for member, value in (
                ("%d.json" % number, {"rootfs": {"diff_ids": layers}}),
                ("%d/layer.tar" % number, "layer"),
            ):
                data = json.dumps(value).encode()
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        data = json.dumps(manifest).encode()
        info = tarfile.TarInfo("manifest.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return str(path)


def test_the_same_recipe_has_the_same_hash_whatever_the_order_of_its_keys():
    turned = dict(reversed(list(LAB.items())))
    assert recipe()["hash"] == recipe(requires=turned)["hash"]
    assert recipe()["name"] == "trainyard/training:" + recipe()["hash"][:12]


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "example/base:2"},
        {"nccl": "2.28.9-1+cuda13.0"},
        {"horovod_sha256": "beef"},
        {"source_fixes": [{"name": "more"}]},
        {"build_variables": {"HOROVOD_DEBUG": "1"}},
        {"requires": NCCL},
        {"cuda_architectures": ["90"]},
        {"python_packages": ["torch==2.12.0"]},
        {"files": {"Dockerfile": "FROM scratch"}},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_whatever_decides_what_is_in_the_image_changes_the_hash(changes):
    assert recipe(**changes)["hash"] != recipe()["hash"]


def test_base_in_an_archive_counts_by_what_it_is_not_by_its_path(tmp_path):
    one = save(tmp_path / "one.tar", {"example/base:1": ["sha256:a"]})
    same = save(tmp_path / "same.tar", {"example/base:1": ["sha256:a"]})
    other = save(tmp_path / "other.tar", {"example/base:1": ["sha256:b"]})
    assert recipe(base_archive=one)["hash"] == recipe(base_archive=same)["hash"]
    assert recipe(base_archive=one)["hash"] != recipe(base_archive=other)["hash"]
    assert recipe(base_archive=one)["base_layers"] == ["sha256:a"]


def test_archive_without_a_tag_in_the_name_means_latest(tmp_path):
    assert archive_image(
        save(tmp_path / "x.tar", {"registry:5000/base:latest": ["sha256:a"]}), "registry:5000/base"
    )["layers"] == ["sha256:a"]


def test_archive_without_the_base_names_what_it_has(tmp_path):
    path = save(tmp_path / "x.tar", {"example/base:2": ["sha256:a"]})
    with pytest.raises(
        RecipeError,
        match=r"training_image_base_archive: .* no image named 'example/base:1' .* It has: example/base:2",
    ):
        recipe(base_archive=path)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_file_that_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="training_image_base_archive: .* cannot be read"):
        archive_image(str(path), "example/base:1")


def test_archive_with_a_folder_instead_of_its_list_is_refused(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("manifest.json")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with pytest.raises(RecipeError, match="cannot be read .*: manifest.json is no file$"):
        archive_image(str(path), "example/base:1")


def test_variables_of_the_lab():
    assert horovod_variables(LAB, [], {}) == {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
    }


def test_variables_for_nccl_and_mpi():
    variables = horovod_variables(
        {"frameworks": ["tensorflow"], "controllers": ["mpi"], "tensor_operations": ["nccl"]},
        ["80", "90"],
        {},
    )
    assert variables["HOROVOD_GPU"] == "CUDA"
    assert variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert variables["HOROVOD_NCCL_LINK"] == "SHARED"
    assert variables["HOROVOD_BUILD_CUDA_CC_LIST"] == "80,90"
    assert variables["HOROVOD_WITH_MPI"] == "1"
    assert "HOROVOD_WITHOUT_GLOO" not in variables


def test_given_variables_come_last_and_null_takes_away():
    variables = horovod_variables(
        NCCL,
        [],
        {
            "HOROVOD_NCCL_LINK": "STATIC",
            "HOROVOD_WITHOUT_MPI": None,
            "HOROVOD_NCCL_HOME": "/opt/nccl",
        },
    )
    assert variables["HOROVOD_NCCL_LINK"] == "STATIC"
    assert variables["HOROVOD_NCCL_HOME"] == "/opt/nccl"
    assert "HOROVOD_WITHOUT_MPI" not in variables


def test_layers_digest_knows_order_and_count():
    assert layers_digest(["a", "b"]) == layers_digest(("a", "b"))
    assert (
        len({layers_digest(each) for each in (["a", "b"], ["b", "a"], ["a", "b", "c"], ["a"], [])})
        == 5
    )


def test_framework_from_the_package_list_is_no_problem():
    assert problems(probe(), LAB, packages=["torch==2.13.0"]) == []


def test_framework_that_is_nowhere():
    assert problems(probe(), LAB, packages=["torchvision==0.20"]) == [
        "training_image_requires.frameworks has pytorch, but example/base:1 does not have it: add it to training_image_python_packages with its version "
        "(torch==...), or set a base that has it"
    ]


@pytest.mark.parametrize(
    "version, good",
    [
        ("2.15.1", True),
        ("2.16.1", False),
        ("2.17.0+nv25.2", False),
        ("1.15.5+nv23.3", True),
        (None, True),
    ],
)
def test_tensorflow_that_no_published_horovod_works_with_is_refused(version, good):
    found = problems(
        probe(versions={"tensorflow": version}, frameworks={"tensorflow": True}),
        dict(LAB, frameworks=["tensorflow"]),
    )
    assert (found == []) is good
    assert good or "TensorFlow %s" % version in found[0]


@pytest.mark.parametrize(
    "of_base, package, found",
    [
        (None, "tensorflow-cpu==2.16.1", "TensorFlow 2.16.1 (Keras 3) in training_image_python"),
        ("2.17.0", "tensorflow==2.15.1", ""),
        ("2.17.0", "tensorflow-datasets==4.9.0", "TensorFlow 2.17.0 (Keras 3) in example/base:1"),
        ("2.17.0", "tensorflow==2.15.1; python_version < '3.9'", "TensorFlow 2.17.0"),
        ("2.15.1", "keras==3.0.0", ""),
    ],
)
def test_a_package_replaces_the_tensorflow_of_the_base(of_base, package, found):
    told = problems(
        probe(versions={"tensorflow": of_base}, frameworks={"tensorflow": bool(of_base)}),
        dict(LAB, frameworks=["tensorflow", "pytorch"]),
        packages=["torch==2.13.0", package],
    )
    assert found in " ".join(told) and bool(told) is bool(found)


def test_nccl_on_a_cpu_base_is_refused():
    found = problems(probe(versions={"torch": "2.13.0+cpu"}, frameworks={"pytorch": True}), NCCL)
    assert len(found) == 1
    assert "training_image_requires.tensor_operations has nccl" in found[0]
    assert "no CUDA compiler" in found[0]


def test_nccl_with_a_cpu_build_of_pytorch_is_refused():
    found = problems(
        probe(
            versions={"torch": "2.13.0+cpu", "cuda": "13.0"},
            frameworks={"pytorch": True},
            nccl_header=True,
        ),
        NCCL,
    )
    assert len(found) == 1
    assert "is a CPU build" in found[0]


def test_nccl_needs_a_header_or_a_version():
    gpu = {
        "versions": {"torch": "2.11.0", "cuda": "13.0"},
        "frameworks": {"pytorch": True},
        "torch_cuda": "13.0",
    }
    assert "no nccl.h" in problems(probe(**gpu), NCCL)[0]
    assert (
        problems(
            probe(
                nccl_header=True,
                versions={"torch": "2.11.0", "cuda": "13.0"},
                frameworks={"pytorch": True},
                torch_cuda="13.0",
            ),
            NCCL,
        )
        == []
    )


def test_nccl_for_another_cuda_is_refused():
    found = problems(
        probe(
            versions={"torch": "2.4.0", "cuda": "12.6"},
            frameworks={"pytorch": True},
            torch_cuda="12.6",
        ),
        NCCL,
        nccl_version="2.28.9-1+cuda13.0",
    )
    assert found == [
        "training_image_nccl_version: '2.28.9-1+cuda13.0' is for CUDA 13, but example/base:1 has CUDA 12.6: set a build for that CUDA"
    ]


def test_base_without_apt():
    assert (
        "no apt-get"
        in problems(probe(apt=False), LAB, packages=["torch==2.13.0"], apt_packages=["git"])[0]
    )


def test_ddl_only_where_the_user_says_how():
    requires = dict(LAB, tensor_operations=["ddl"])
    assert "ddl" in problems(probe(), requires, packages=["torch==2"])[0]
    assert (
        problems(
            probe(), requires, packages=["torch==2"], variables={"HOROVOD_GPU_ALLREDUCE": "DDL"}
        )
        == []
    )


def test_a_pinned_nccl_has_to_be_for_the_bases_cuda_also_where_horovod_is_not_compiled():
    found = probe(versions={"cuda": "12.6"})
    assert problems(found, {}, nccl_version="2.25.1-1+cuda12.8") == []
    assert problems(found, {}, nccl_version="2.28.9-1+cuda13.0") == [
        "training_image_nccl_version: '2.28.9-1+cuda13.0' is for CUDA 13, but example/base:1 has CUDA 12.6: set a build for that CUDA"
    ]
