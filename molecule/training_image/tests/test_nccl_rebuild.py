"""A base like NVIDIA's, whose Horovod has MPI but no NCCL: the role detects this, installs and
holds the NCCL packages, and compiles Horovod with both.

Real are Docker's build, apt and its signatures, MPI, pip, the compiler and what it links. Stand-ins
are PyTorch, nvcc, what is in NCCL's packages, and Horovod's source, which takes Horovod's
variables. Scenario nccl_rebuild has Horovod itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._horovod import parse_check_build

HOST = "training-image-a"
testinfra_hosts = ["ansible://" + HOST]

FOLDER = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
REPOSITORY = "http://172.30.85.51:8000/compute/cuda/repos"
VENDOR = json.loads(FOLDER.joinpath("vendor/vendor.json").read_text(encoding="utf-8"))
# The repository has a newer version for another CUDA.
VERSION, RELEASE, CODE = "2.21.5-1+cuda12.4", "2.21.5", 22105
PACKAGES = ("libnccl2", "libnccl-dev")
SOURCE = FOLDER / "wheels/horovod-0.28.1.tar.gz"
VARIABLES = {
    "training_image_base_archive": "",
    "training_image_apt_packages": [],
    "training_image_cuda_architectures": ["90"],
    "training_image_requires": {
        "frameworks": ["pytorch"],
        "controllers": ["gloo"],
        "tensor_operations": ["nccl"],
    },
    "training_image_nccl_version": VERSION,
    "training_image_horovod_sha256": hashlib.sha256(SOURCE.read_bytes()).hexdigest(),
    "training_image_horovod_build_packages": ["setuptools==79.0.1", "wheel==0.45.1"],
    "training_image_horovod_dependencies": [],
    "package_sources_nvidia_cuda_url": REPOSITORY,
    "package_sources_nvidia_cuda_key_fingerprint": VENDOR["fingerprint"],
    "package_sources_nvidia_keyring_checksum": "sha256:"
    + VENDOR["sha256"]["compute/cuda/repos/ubuntu2204/x86_64/cuda-keyring_1.1-1_all.deb"],
}


def images(host):
    return set(
        host.check_output(
            "docker image ls --filter label=trainyard.recipe --format '{{.Repository}}:{{.Tag}}'"
        ).split()
    )


@pytest.fixture(name="built", scope="module")
def fixture_built(host, role):
    """The run of the role, and the built image."""
    before = images(host)
    run = role(training_image_base="site/pytorch:with_mpi", **VARIABLES)
    new = images(host) - before
    yield run, new
    for name in new:
        host.check_output("docker image rm %s", name)


@pytest.fixture(name="image", scope="module")
def fixture_image(built):
    run, names = built
    assert run.code == 0
    [name] = names
    return name


# Reads everything from an image in one container.
QUESTIONS = {
    "table": "horovodrun --check-build",
    "variables": "cat /usr/local/lib/python3*/dist-packages/horovod/torch/variables.json",
    "packages": "dpkg-query --show --showformat '${Package} ${Version}\n' 'libnccl*'",
    "held": "apt-mark showhold",
    "compiled": 'python3 -c \'import horovod.torch as h; print(h.compiled("compiled_nccl"), h.compiled("compiled_standard"))\'',
    "library": "ldd /usr/local/lib/python3*/dist-packages/horovod/torch/*.so | sed -n 's/.*libnccl.* => \\([^ ]*\\) .*/\\1/p' | xargs readlink --canonicalize",
    "ranks": "mpirun --allow-run-as-root --oversubscribe -np 2 python3 -c 'import horovod.torch as h; print(\"ranks\", h.init())'",
    "python": "python3 -m pip list --format freeze",
    "sources": "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null; ls /etc/apt/preferences.d /var/lib/apt/lists",
    # Of bind mounts, BuildKit leaves the mount points.
    "left": "find /run/trainyard /tmp/trainyard-* ! -type d 2> /dev/null || true",
}


def answers(host, name, *questions):
    script = "".join(
        "echo; echo '== %s'; %s\n" % (question, QUESTIONS[question]) for question in questions
    )
    said = host.check_output(
        "docker run --rm --network none --hostname localhost --entrypoint sh %s -c %s", name, script
    )
    return dict(part.partition("\n")[::2] for part in said.split("\n== ")[1:])


@pytest.fixture(name="found", scope="module")
def fixture_found(host, image):
    return answers(host, image, *QUESTIONS)


@pytest.fixture(name="base", scope="module")
def fixture_base(host):
    return answers(host, "site/pytorch:with_mpi", "table", "python")


@pytest.mark.acceptance
def test_mpi_that_cannot_be_kept_is_refused_before_anything_is_built(host, role):
    before = images(host)
    run = role(training_image_base="site/pytorch:without_mpi", **VARIABLES)
    assert run.code != 0 and images(host) == before
    assert (
        "the Horovod of site/pytorch:without_mpi has controllers.mpi, but it cannot be kept: the base has no mpicxx"
        in run.text
    )
    assert 'set HOROVOD_WITHOUT_MPI to \\"1\\" in training_image_build_variables' in run.text


def test_nccl_is_ticked_where_it_was_not_and_all_else_is_kept(built, base, found):
    before, after = parse_check_build(base["table"]), parse_check_build(found["table"])
    assert (
        before.controllers == {"mpi": True, "gloo": True} and not before.tensor_operations["nccl"]
    )
    assert after == before._replace(tensor_operations=dict(before.tensor_operations, nccl=True))
    assert (
        "kept from the Horovod of site/pytorch:with_mpi: controllers.mpi, tensor_operations.mpi, tensor_operations.gloo"
        in built[0].text
    )


def test_horovod_is_built_with_exactly_these_variables(found):
    assert json.loads(found["variables"]) == {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": "90",
    }


def test_both_packages_are_at_the_requested_version_and_held(built, found):
    assert sorted(found["packages"].splitlines()) == [
        "%s %s" % (name, VERSION) for name in sorted(PACKAGES)
    ]
    assert sorted(found["held"].split()) == sorted(PACKAGES)
    assert "NCCL %s: requested by training_image_nccl_version" % VERSION in built[0].text


def test_apt_keeps_them_against_a_newer_version(host, image):
    """With the preference only, because held packages are kept anyway."""
    policy = host.check_output(
        "docker run --rm --volume /srv/vendor/compute/cuda/repos/ubuntu2204/x86_64/3bf863cc.pub:/key.asc:ro --entrypoint sh %s -c %s",
        image,
        "echo 'deb [signed-by=/key.asc] %s/ubuntu2204/x86_64/ /' > /etc/apt/sources.list && apt-mark unhold %s >&2 && apt-get update >&2 "
        "&& apt-cache policy %s && apt-get --simulate dist-upgrade"
        % (REPOSITORY, " ".join(PACKAGES), " ".join(PACKAGES)),
    )
    assert policy.count("Candidate: %s\n" % VERSION) == 2 and "2.27.7-1+cuda13.0" in policy, policy
    assert "0 upgraded, 0 newly installed" in policy, policy


def test_horovod_is_compiled_with_the_pair_and_by_the_fixes_of_its_source(found):
    assert found["compiled"].split() == [str(CODE), "201703"]
    assert found["library"].strip().endswith("/libnccl.so." + RELEASE)


def test_mpirun_s_ranks_load_it(found):
    assert found["ranks"].splitlines() == ["ranks 2"] * 2


def test_image_says_what_was_decided(host, image):
    labels = json.loads(
        host.check_output("docker image inspect --format '{{json .Config.Labels}}' %s", image)
    )
    assert labels["trainyard.nccl"] == VERSION
    assert set(labels["trainyard.horovod"].split()) == {
        "frameworks.pytorch",
        "controllers.gloo",
        "controllers.mpi",
        "tensor_operations.nccl",
        "tensor_operations.mpi",
        "tensor_operations.gloo",
    }


def test_nothing_of_the_build_stays(host, image, base, found):
    assert found["python"].split() == base["python"].split()
    assert found["sources"].split() == [
        "/etc/apt/preferences.d:",
        "trainyard-nccl",
        "/var/lib/apt/lists:",
        "partial",
    ]
    assert found["left"].split() == []
    assert "172.30.85.51" not in host.check_output(
        "docker history --no-trunc %s && docker inspect %s", image, image
    )
