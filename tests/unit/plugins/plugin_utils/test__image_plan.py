"""What a build does with its base: the parts that it keeps, the NCCL that it installs, and its
problems.
"""

from __future__ import annotations

import copy
from pathlib import Path

import ansible.template
import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from scripted_tools import run_module, scripts
from trusted import trust_as_template, trusted

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._image_plan import (
    decide_image_plan as image_plan,
)

SECTIONS = {
    "frameworks": ("tensorflow", "pytorch", "mxnet"),
    "controllers": ("mpi", "gloo"),
    "tensor_operations": ("nccl", "ddl", "ccl", "mpi", "gloo"),
}
REQUIRES = {"frameworks": ["tensorflow"], "controllers": ["gloo"], "tensor_operations": ["nccl"]}
CLARA = "nvcr.io/nvidia/clara-train-sdk:v3.1.01"


def horovod(*ticked, available=True, cause=None):
    found = {
        section: {name: "%s.%s" % (section, name) in ticked for name in names}
        for section, names in SECTIONS.items()
    }
    return dict(found, available=available, cause=cause)


CLARA_HOROVOD = horovod(
    "frameworks.tensorflow",
    "frameworks.pytorch",
    "controllers.mpi",
    "controllers.gloo",
    "tensor_operations.mpi",
    "tensor_operations.gloo",
)


def probe(**changes):
    """Clara Train 3.1.01, as the audit describes it, with no NCCL."""
    found = {
        "versions": {"python": "3.6.9", "cuda": "11.0", "torch": "1.6.0", "tensorflow": "1.15.5"},
        "os": {"id": "ubuntu", "version_id": "18.04"},
        "frameworks": {"tensorflow": True, "pytorch": True, "mxnet": False},
        "architecture": "x86_64",
        "nccl_header": False,
        "mpi_compiler": True,
        "apt": True,
        "packages": {"libnccl2": None, "libnccl-dev": None},
    }
    for key, value in changes.items():
        found[key] = dict(found[key], **value) if isinstance(found[key], dict) else value
    return found


def plan(found=None, had=CLARA_HOROVOD, vendor=None, **requested):
    asked = {
        "requires": REQUIRES,
        "build_variables": {},
        "cuda_architectures": [],
        "nccl_version": "",
        "compiles": True,
        "has_repositories": False,
    }
    return image_plan(
        {"probe": probe() if found is None else found, "horovod": had},
        dict(asked, base=CLARA, vendor=vendor or {}, facts_file="", **requested),
    )


def test_what_the_base_s_horovod_had_is_kept():
    made = plan()
    assert made["problems"] == []
    assert made["kept"] == [
        "frameworks.pytorch",
        "controllers.mpi",
        "tensor_operations.mpi",
        "tensor_operations.gloo",
    ]
    assert made["requires"] == {
        "frameworks": ["tensorflow", "pytorch"],
        "controllers": ["gloo", "mpi"],
        "tensor_operations": ["nccl", "mpi", "gloo"],
    }
    assert made["variables"]["HOROVOD_WITH_MPI"] == made["variables"]["HOROVOD_WITH_PYTORCH"] == "1"
    assert not {"HOROVOD_WITHOUT_MPI", "HOROVOD_WITHOUT_PYTORCH"} & set(made["variables"])
    assert any(
        "kept from the Horovod of %s: frameworks.pytorch, controllers.mpi" % CLARA in line
        for line in made["report"]
    )
    assert "controllers.mpi" in made["labels"]["trainyard.horovod"].split()


def test_what_is_requested_is_not_changed():
    before = copy.deepcopy(REQUIRES)
    plan()
    assert before == REQUIRES


def test_without_a_compilation_nothing_is_decided():
    made = plan(compiles=False, found={})
    assert (
        made["requires"] == REQUIRES
        and made["kept"] == made["problems"] == made["report"] == []
        and made["nccl"]["version"] == ""
    )


def test_a_build_variable_of_the_user_s_takes_a_part_away():
    made = plan(build_variables={"HOROVOD_WITHOUT_MPI": "1"})
    assert (
        "mpi" not in made["requires"]["controllers"] + made["requires"]["tensor_operations"]
        and made["problems"] == []
    )
    assert (
        made["variables"]["HOROVOD_WITHOUT_MPI"] == "1"
        and "HOROVOD_WITH_MPI" not in made["variables"]
    )
    assert any(
        "HOROVOD_WITHOUT_MPI in training_image_build_variables disables it" in line
        for line in made["report"]
    )


@pytest.mark.parametrize("value", ["0", 0, "", "true", True, None])
def test_only_1_takes_a_part_away(value):
    made = plan(build_variables={"HOROVOD_WITHOUT_MPI": value, "HOROVOD_WITHOUT_PYTORCH": value})
    assert "mpi" in made["requires"]["controllers"] and "pytorch" in made["requires"]["frameworks"]
    assert made["variables"]["HOROVOD_WITH_MPI"] == "1" and not any(
        "disables it" in line for line in made["report"]
    )
    assert "mpi" not in plan(build_variables={"HOROVOD_WITHOUT_MPI": 1})["requires"]["controllers"]


def test_mpi_that_cannot_be_compiled_is_refused_and_the_way_out_is_named():
    text = " ".join(plan(probe(mpi_compiler=False))["problems"])
    assert "has controllers.mpi, but it cannot be kept: the base has no mpicxx" in text
    assert 'set HOROVOD_WITHOUT_MPI to "1" in training_image_build_variables' in text


def test_nccl_that_cannot_be_compiled_is_refused():
    had = horovod("frameworks.pytorch", "tensor_operations.nccl")
    requires = {
        "frameworks": ["tensorflow", "pytorch"],
        "controllers": ["gloo"],
        "tensor_operations": [],
    }
    text = " ".join(plan(probe(versions={"cuda": None}), had, requires=requires)["problems"])
    assert (
        "has tensor_operations.nccl, but it cannot be kept: the base has no CUDA compiler" in text
    )


def test_ddl_is_refused_unless_the_variables_build_it():
    had = horovod("frameworks.tensorflow", "tensor_operations.ddl")
    assert "tensor_operations.ddl, but it cannot be kept" in plan(had=had)["problems"][0]
    assert plan(had=had, build_variables={"HOROVOD_GPU_ALLREDUCE": "DDL"})["problems"] == []


def test_a_framework_that_the_base_has_lost_is_no_loss():
    made = plan(probe(frameworks={"pytorch": False}))
    assert "pytorch" not in made["requires"]["frameworks"] and made["problems"] == []
    assert any("no longer has the framework" in line for line in made["report"])


def test_a_table_that_cannot_be_had_is_told():
    made = plan(had=horovod(available=False, cause="import_error"))
    assert (
        made["kept"] == []
        and "are unknown" in made["report"][0]
        and "import_error" in made["report"][0]
    )
    assert plan(had=horovod(available=False, cause="not_installed"))["report"][0].startswith(
        "NCCL "
    )


# --- NCCL -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "system, cuda, version",
    [
        (("ubuntu", "18.04"), "11.0", "2.8.4-1+cuda11.0"),
        (("ubuntu", "18.04"), "10.2", "2.15.5-1+cuda10.2"),
        (("ubuntu", "20.04"), "11.4", "2.11.4-1+cuda11.4"),
        (("ubuntu", "22.04"), "12.4", "2.25.1-1+cuda12.4"),
        (("ubuntu", "24.04"), "13.0", "2.27.7-1+cuda13.0"),
        # No build for 12.7 is known: the one for 12.6, which all its drivers run.
        (("ubuntu", "24.04"), "12.7", "2.23.4-1+cuda12.6"),
        # Debian takes the Ubuntu whose C library isn't newer.
        (("debian", "12"), "12.6", "2.23.4-1+cuda12.6"),
    ],
)
def test_the_pair_follows_compiler_and_distribution(system, cuda, version):
    made = plan(probe(versions={"cuda": cuda}, os=dict(zip(("id", "version_id"), system))))
    assert (made["nccl"]["version"], made["nccl"]["vendor"], made["problems"]) == (
        version,
        True,
        [],
    )
    assert made["labels"]["trainyard.nccl"] == version
    assert any(
        version in line and "CUDA %s (nvcc), %s %s" % ((cuda,) + system) in line
        for line in made["report"]
    )


def test_the_repository_is_that_of_the_image_s_distribution_and_its_key_is_known():
    source = plan()["source"]
    assert (
        source["uri"]
        == "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu1804/x86_64/"
    )
    assert source["key_url"].endswith("/ubuntu1804/x86_64/3bf863cc.pub") and source[
        "key_fingerprints"
    ] == ["EB693B3035CD5710E231E123A4B469963BF863CC"]
    mirror = plan(
        vendor={
            "cuda_url": "https://mirror.example.org/cuda",
            "keyring_checksum": "",
            "cuda_fingerprint": "ab" * 20,
        }
    )
    assert mirror["source"][
        "uri"
    ] == "https://mirror.example.org/cuda/ubuntu1804/x86_64/" and mirror["source"][
        "key_fingerprints"
    ] == ["AB" * 20]
    assert mirror["retired"]["fingerprints"] == ["AB" * 20]


def test_the_checksum_of_a_site_s_keyring_package_is_used():
    source = plan(
        vendor={
            "cuda_url": "https://mirror.example.org/cuda",
            "keyring_checksum": "sha256:" + "cd" * 32,
        }
    )["source"]
    assert source["key_checksums"] == ["sha256:" + "cd" * 32] and source["key_fingerprints"] == []
    assert (
        source["key_url"]
        == "https://mirror.example.org/cuda/ubuntu1804/x86_64/cuda-keyring_1.1-1_all.deb"
    )


def test_a_version_that_the_user_sets_wins_and_so_do_his_repositories():
    made = plan(nccl_version="2.15.5-1+cuda11.0", has_repositories=True)
    assert made["nccl"]["version"] == "2.15.5-1+cuda11.0" and made["nccl"]["vendor"] is False
    assert plan(nccl_version="2.15.5-1+cuda11.0")["nccl"]["vendor"] is True


@pytest.mark.parametrize(
    "changes, requested",
    [
        (
            {
                "nccl_header": True,
                "packages": {"libnccl2": "2.7.8-1+cuda11.0", "libnccl-dev": "2.7.8-1+cuda11.0"},
            },
            {},
        ),
        ({"nccl_header": True}, {}),
        (
            {},
            {
                "requires": {
                    "frameworks": ["tensorflow"],
                    "controllers": ["gloo"],
                    "tensor_operations": ["gloo"],
                }
            },
        ),
        ({}, {"compiles": False}),
        ({}, {"build_variables": {"HOROVOD_NCCL_HOME": "/opt/nccl"}}),
    ],
)
def test_nothing_is_installed_that_is_not_needed(changes, requested):
    made = plan(probe(**changes), **requested)
    assert (made["nccl"]["version"], made["nccl"]["vendor"], made["problems"]) == (
        "",
        False,
        [],
    ) and "trainyard.nccl" not in made["labels"]


def test_a_header_for_another_cuda_does_not_fit():
    made = plan(
        probe(
            nccl_header=True,
            packages={"libnccl-dev": "2.7.8-1+cuda10.2", "libnccl2": "2.7.8-1+cuda10.2"},
        )
    )
    assert (
        made["nccl"]["version"] == "2.8.4-1+cuda11.0"
        and "libnccl-dev 2.7.8-1+cuda10.2, which is for another CUDA" in made["nccl"]["why"]
    )


def test_the_library_that_the_base_has_stays():
    assert (
        plan(probe(packages={"libnccl2": "2.7.8-1+cuda11.0"}))["nccl"]["version"]
        == "2.7.8-1+cuda11.0"
    )


def test_what_is_installed_already_needs_no_repository():
    made = plan(
        probe(packages={"libnccl2": "2.8.4-1+cuda11.0", "libnccl-dev": "2.8.4-1+cuda11.0"}),
        nccl_version="2.8.4-1+cuda11.0",
    )
    assert made["nccl"]["version"] == "2.8.4-1+cuda11.0" and made["nccl"]["vendor"] is False


def test_a_system_that_nvidia_has_nothing_for():
    text = " ".join(plan(probe(os={"id": "alpine", "version_id": "3.20"}))["problems"])
    assert (
        "no build for CUDA 11.0" in text
        and "alpine 3.20" in text
        and "set training_image_nccl_version" in text
    )
    text = " ".join(
        plan(probe(os={"id": "alpine", "version_id": "3.20"}), nccl_version="2.8.4-1+cuda11.0")[
            "problems"
        ]
    )
    assert "NVIDIA has no apt repository for alpine 3.20" in text


def image(layers=("sha256:1", "sha256:2"), recipe="ab12", intact=True):
    return {
        "name": "trainyard/training:ab12",
        "present": layers != (),
        "layers": list(layers),
        "recipe": recipe,
        "intact": intact,
    }


BEHIND = [
    ({}, []),
    # Not on the host; the layers of another build; the same layers by another recipe.
    ({"server-b": image((), "")}, ["server-b"]),
    ({"server-c": image(("sha256:1", "sha256:3"))}, ["server-c"]),
    ({"server-b": image(recipe="cd34")}, ["server-b"]),
    (
        {"server-b": image((), ""), "server-c": image(("sha256:2", "sha256:1"))},
        ["server-b", "server-c"],
    ),
]


@pytest.mark.parametrize("changed, behind", BEHIND)
def test_hosts_whose_image_differs_from_the_heads(changed, behind):
    images = dict(dict.fromkeys(("server-a", "server-b", "server-c"), image()), **changed)
    assert _image_plan.hosts_behind(images.items(), "server-a", image()) == behind
    # The head is never behind itself, even if its own image is the one that differs.
    assert (
        _image_plan.hosts_behind(
            dict(images, **{"server-a": image(())}).items(), "server-a", image()
        )
        == behind
    )


@pytest.mark.parametrize(
    "engines, everywhere",
    [
        ([{"images": [dict(image(), name="x:1")]}] * 2, True),
        # Of another recipe, changed, of another name, or not read.
        ([{"images": [dict(image(), name="x:1")]}, {"images": []}], False),
        ([{"images": [dict(image(), name="x:1")]}, {}], False),
        ([{"images": [dict(image(), name="x:1")]}, {"images": [dict(image(), name="x:2")]}], False),
        ([{"images": [dict(image(), name="x:1", intact=False)]}] * 2, False),
        ([{"images": [dict(image(recipe="cd34"), name="x:1")]}] * 2, False),
        (
            [{"images": [dict(image(layers), name="x:1")]} for layers in (("a",), ("b",))],
            False,
        ),
    ],
)
def test_whether_all_hosts_have_the_image(engines, everywhere):
    recipe = image()["recipe"]
    assert _image_plan.image_is_everywhere(engines, "x:1", recipe) is everywhere


@pytest.mark.parametrize("changed, behind", BEHIND)
def test_the_role_compares_the_images_of_its_hosts(changed, behind):
    images = dict(dict.fromkeys(("server-a", "server-b", "server-c"), image()), **changed)
    text = yaml.safe_load(
        (Path(__file__).parents[4] / "roles/training_image/vars/main.yml").read_text(
            encoding="utf-8"
        )
    )["__training_image_behind"]
    variables = {
        "ansible_play_hosts": list(images),
        "cluster_head": "server-a",
        "__training_image_head": image(),
        "hostvars": {
            host: {"__training_image_answer": {"images": [found]}} for host, found in images.items()
        },
    }
    assert (
        Templar(DataLoader(), variables).template(
            getattr(ansible.template, "trust_as_template", str)(text)
        )
        == behind
    )


@pytest.mark.parametrize(
    "table, lacks",
    [
        ("cb-0.28.1-pytorch-mpi-gloo-nccl.txt", ""),
        ("cb-0.28.1-pytorch-gloo-nccl-cuda13.txt", "controllers.mpi, tensor_operations.mpi"),
        ("cb-0.28.1-pytorch-archer2-cpu.txt", "tensor_operations.nccl"),
    ],
)
def test_an_image_that_lacks_something_after_the_build_is_refused(
    tmp_path, monkeypatch, table, lacks
):
    """P1.5: what is required, and what the base had.

    Scenario cluster compiles such an image in `make acceptance`.
    """
    root = Path(__file__).parents[4]
    [build] = [
        entry["block"]
        for entry in yaml.safe_load(
            (root / "roles/training_image/tasks/build.yml").read_text(encoding="utf-8")
        )
        if entry["name"] == "Build and check the image"
    ]
    tasks = {task["name"]: task for task in build}
    had = horovod(
        "frameworks.pytorch",
        "controllers.mpi",
        "controllers.gloo",
        "tensor_operations.mpi",
        "tensor_operations.gloo",
    )
    requires = {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": ["nccl"]}
    variables = {
        "__training_image_plan": plan(had=had, requires=requires),
        "__training_image_compiles": True,
        "training_image_requires": requires,
        "__training_image_candidate": "trainyard/training:candidate",
        "cluster_head": "server-a",
        "__training_image_log": "/var/log/x",
    }

    def value(text):
        return Templar(DataLoader(), variables).template(trusted(text))

    options = value(
        tasks["Read the build options of the new image's Horovod"][
            "trainyard.gpu.horovod_build_info"
        ]
    )
    assert options["image"] == "trainyard/training:candidate" and options["import_required"] is True
    script = scripts(tmp_path, monkeypatch)(
        "horovodrun", "cat %s" % (root / "tests/fixtures/horovod" / table)
    )
    variables["__training_image_horovod"] = run_module(
        "horovod_build_info", {"executable": script, "requires": options["requires"]}
    )
    refusal = tasks["Fail if the new image's Horovod lacks a requirement"]
    assert Templar(DataLoader(), variables).template(
        trust_as_template("{{ %s }}" % refusal["when"])
    ) is bool(lacks)
    message = value(refusal["ansible.builtin.fail"]["msg"])
    assert (
        "its Horovod lacks %s (training_image_requires, and what the base had: controllers.mpi, tensor_operations.mpi"
        % lacks
        in message
    )
    # Before it gets the name by which containers use it.
    assert list(tasks).index("Fail if the new image's Horovod lacks a requirement") < list(
        tasks
    ).index("Add the image name and the digest of its layers")


@pytest.mark.parametrize(
    "own, head, on, words",
    [
        (image(), image(), "server-b", ""),
        (image(), image(), "server-a", ""),
        # The tag of the head points to another image: the other hosts have the right one.
        (image(intact=False), image(intact=False), "server-a", "was replaced or changed"),
        (image(), image(("other",), intact=False), "server-b", ""),
        (image(), image(recipe="cd34"), "server-b", ""),
        (image(("other",)), image(), "server-b", "other layers than that of the head, server-a"),
        (image(intact=False), image(), "server-b", "was replaced or changed"),
        (image(recipe="cd34"), image(), "server-b", "of another recipe (cd34)"),
        (image(()), image(), "server-b", "does not exist"),
    ],
)
def test_the_host_whose_image_differs_from_the_recipe_is_named(own, head, on, words):
    hosts = {"own": on, "head": "server-a"}
    found = _image_plan.image_problem(own, head, image()["recipe"], "x:1", hosts)
    assert words in found and bool(found) is bool(words)
    assert not found or ("copies it from" in found) is (on != "server-a")
