"""The recipe of the role's variables. nccl-tests in the training image: what is requested goes into
the recipe and nothing else does, and what the build step makes of an image.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

from ansible_collections.trainyard.gpu.plugins.plugin_utils._image_plan import image_recipe

ROLES = Path(__file__).parents[4] / "roles"
ROLE = ROLES / "training_image"
ASKED = {
    "training_image_nccl_tests_tag": "v2.17.10",
    "training_image_nccl_tests_checksum": "sha256:" + "ab" * 32,
}


def decided(name, **given):
    variables = trusted(
        {
            key: value
            for path in ("vars/main.yml", "defaults/main.yml")
            for key, value in yaml.safe_load((ROLE / path).read_text(encoding="utf-8")).items()
        }
    )
    variables.update(
        given,
        role_path=str(ROLE),
        ansible_search_path=[str(ROLE)],
        cluster_members=[],
        cluster_head="a",
    )
    return Templar(DataLoader(), variables).template(variables["__training_image_" + name])


@pytest.mark.parametrize(
    "name, value",
    [
        ("base", "site/base:2"),
        ("requires", {"frameworks": ["tensorflow"]}),
        ("rebuild", "always"),
        ("tools", []),
        ("apt_packages", ["libjpeg-dev"]),
        ("python_packages", ["scikit-learn==1.5.2"]),
        ("nccl_version", "2.28.9-1+cuda13.0"),
        ("horovod_version", "0.28.2"),
        ("horovod_sha256", "0" * 64),
        ("horovod_build_packages", []),
        ("horovod_dependencies", []),
        ("pip_packages", []),
        ("source_fixes", [{"name": "ours"}]),
        ("cuda_architectures", ["90"]),
        ("build_variables", {"HOROVOD_DEBUG": "1"}),
    ],
)
def test_another_value_is_another_image(name, value):
    assert (
        image_recipe(decided("recipe", **{"training_image_" + name: value}))["hash"]
        != image_recipe(decided("recipe"))["hash"]
    )


def test_an_image_without_them_is_the_same_as_ever():
    recipe = decided("recipe")
    assert recipe == decided("recipe_without_nccl_tests") and "nccl_tests" not in json.dumps(recipe)
    assert recipe["files"]["Dockerfile"] == (ROLE / "files/Dockerfile").read_text(encoding="utf-8")


def test_what_decides_on_them_is_in_the_recipe():
    name = image_recipe(decided("recipe", **ASKED))["name"]
    assert name != image_recipe(decided("recipe"))["name"]
    assert (
        name
        != image_recipe(decided("recipe", **dict(ASKED, training_image_nccl_tests_tag="v2.17.9")))[
            "name"
        ]
    )
    assert (
        name
        != image_recipe(
            decided(
                "recipe", **dict(ASKED, training_image_nccl_tests_checksum="sha256:" + "cd" * 32)
            )
        )["name"]
    )
    # Of another mirror the same archive is as good.
    assert (
        name
        == image_recipe(
            decided(
                "recipe",
                training_image_nccl_tests_url="https://mirror.example/v2.17.10.tar.gz",
                **ASKED,
            )
        )["name"]
    )
    dockerfile = decided("recipe", **ASKED)["files"]["Dockerfile"]
    # Whatever comes before stays in the build's cache.
    assert dockerfile.startswith(
        (ROLE / "files/Dockerfile").read_text(encoding="utf-8") + "\n# nccl-tests"
    )


def test_what_the_step_is_given():
    files = {
        entry["path"]: entry.get("content")
        for entry in decided("nccl_tests_files", training_image_cuda_architectures=["90"], **ASKED)
    }
    folder = "/var/lib/trainyard/image/"
    assert json.loads(files[folder + "nccl_tests.json"]) == {
        "tag": "v2.17.10",
        "url": "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.10.tar.gz",
        "checksum": "ab" * 32,
        "compute_capabilities": ["90"],
    }
    for role, name in (
        ("training_image", "steps.py"),
        ("training_image", "nccl_tests.py"),
        ("nccl_tests", "nccl_tests_from_source.py"),
        ("nccl", "source_build.py"),
    ):
        assert files[folder + "nccl_tests/" + name] == (ROLES / role / "files" / name).read_text(
            encoding="utf-8"
        )


@pytest.fixture(name="step")
def fixture_step(tmp_path, monkeypatch):
    """The step in a base that has everything; a test changes what it is about."""
    for role in ("training_image", "nccl_tests", "nccl"):
        monkeypatch.syspath_prepend(str(ROLES / role / "files"))
    for name in ("steps", "nccl_tests", "nccl_tests_from_source", "source_build"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import nccl_tests as step

    makefile = "default:\n\tmkdir -p build\n\techo '$(MPI) $(MPI_HOME) $(NVCC_GENCODE)' > build/all_reduce_perf\n\tchmod 755 build/all_reduce_perf\n"
    with tarfile.open(tmp_path / "tests.tar.gz", "w:gz") as tar:
        for name, text in (("Makefile", makefile), ("src/Makefile", ""), ("src/all_reduce.cu", "")):
            info = tarfile.TarInfo("nccl-tests-2.17.10/" + name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    (tmp_path / "arguments.json").write_text(
        json.dumps(
            {
                "tag": "v2.17.10",
                "url": (tmp_path / "tests.tar.gz").as_uri(),
                "checksum": hashlib.sha256((tmp_path / "tests.tar.gz").read_bytes()).hexdigest(),
                "compute_capabilities": ["90"],
            }
        ),
        encoding="utf-8",
    )
    for name, text in (
        (
            "cuda/include/nccl.h",
            "#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n",
        ),
        ("mpi/include/mpi.h", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "library/bin").mkdir(parents=True)
    step.linked = {"libnccl.so.2": "/usr/lib/libnccl.so.2", "libmpi.so.40": "/mpi/lib/libmpi.so.40"}
    monkeypatch.setattr(step, "ARGUMENTS", str(tmp_path / "arguments.json"))
    monkeypatch.setattr(step.steps, "LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(step.steps, "use_site", lambda: None)
    monkeypatch.setattr(step.steps, "cuda_home", lambda: str(tmp_path / "cuda"))
    monkeypatch.setattr(step.source, "libraries", lambda path: step.linked)
    monkeypatch.setattr(step.tests, "nccl_version", lambda path: "2.21.5")
    monkeypatch.setattr(step, "nccl_home", lambda cuda_home: cuda_home)
    monkeypatch.setattr(
        step.shutil,
        "which",
        lambda name: str(tmp_path / "mpi/bin/mpirun") if name == "mpirun" else "/usr/bin/" + name,
    )
    return step


def test_built_with_what_the_image_has(step, tmp_path):
    step.main()
    program = tmp_path / "library/bin/all_reduce_perf"
    assert (
        program.read_text(encoding="utf-8")
        == "1 %s/mpi -gencode=arch=compute_90,code=sm_90\n" % tmp_path
    )
    assert os.access(program, os.X_OK) and [
        path.name for path in (tmp_path / "library/bin").iterdir()
    ] == ["all_reduce_perf"]


def test_without_mpirun_there_is_no_mpi_in_them(step, tmp_path, monkeypatch):
    monkeypatch.setattr(
        step.shutil, "which", lambda name: None if name == "mpirun" else "/usr/bin/" + name
    )
    del step.linked["libmpi.so.40"]
    step.main()
    assert (tmp_path / "library/bin/all_reduce_perf").read_text(encoding="utf-8").startswith("0 ")


def test_a_compiler_is_installed_where_it_is_missing(step, monkeypatch):
    had = step.shutil.which
    monkeypatch.setattr(
        step.shutil, "which", lambda name: None if name in ("c++", "make") else had(name)
    )
    called = []
    monkeypatch.setattr(
        step.steps, "apt", lambda: contextlib.nullcontext(lambda *words: called.append(words))
    )
    step.main()
    assert called == [("install", "g++", "make")]


def test_nothing_is_installed_that_is_not_proved(step, tmp_path):
    step.linked["libnccl.so.2"] = ""
    with pytest.raises(step.source.StepError, match="the loader does not find libnccl.so.2"):
        step.main()
    assert not list((tmp_path / "library/bin").iterdir())


def test_bases_that_lack_what_it_takes(step, tmp_path, monkeypatch):
    (tmp_path / "mpi/include/mpi.h").unlink()
    monkeypatch.setattr(step.glob, "glob", lambda pattern: [])
    with pytest.raises(
        step.source.StepError,
        match="the base has mpirun but no mpi.h.* add mpirun to training_image_tools",
    ):
        step.main()
    monkeypatch.setattr(step.steps, "cuda_home", lambda: None)
    with pytest.raises(
        step.source.StepError,
        match="the base has no nvcc.*: use a base with CUDA's development files",
    ):
        step.main()
