"""Later runs: rejected ones, and runs without changes."""

from __future__ import annotations

import re
import subprocess
import sysconfig

import pytest


@pytest.mark.parametrize(
    "asked, refused",
    [
        (
            {"training_image_base": "example/nowhere:1"},
            "training_image_base_archive: .* has no image named 'example/nowhere:1'",
        ),
        (
            {
                "training_image_requires": {
                    "frameworks": ["pytorch"],
                    "controllers": ["gloo"],
                    "tensor_operations": ["nccl"],
                }
            },
            "tensor_operations has nccl, .* no CUDA compiler",
        ),
    ],
    ids=["an unavailable base", "NCCL on a CPU base"],
)
def test_refused_before_the_container_is_touched(cluster, asked, refused):
    before = [
        (container["Id"], container["State"]["StartedAt"])
        for container in map(cluster.inspect, cluster.hosts)
    ]
    run = cluster.playbook("playbooks/training_environment.yml", "-e", asked)
    assert run.code == 2
    assert re.search(refused, run.text)
    assert [
        (container["Id"], container["State"]["StartedAt"])
        for container in map(cluster.inspect, cluster.hosts)
    ] == before


def only_the_image(cluster, **asked):
    return cluster.playbook(
        "playbooks/training_environment.yml", "--tags", "training_image", "-e", asked
    )


@pytest.mark.acceptance
def test_a_base_that_has_what_is_required_is_not_compiled_again(cluster):
    """The finished image as the base of another. It has Horovod and the tools."""
    former, layers = cluster.inspect(cluster.head)["Config"]["Image"], cluster.layers(cluster.head)
    run = only_the_image(cluster, training_image_base=former, training_image_base_archive="")
    assert run.code == 0
    assert "Building CXX object" not in run.text
    names = set(
        cluster.on(
            cluster.head, "docker image ls --format '{{.Repository}}:{{.Tag}}' trainyard/training"
        ).out.split()
    )
    [name] = names - {former}
    for host in cluster.hosts:
        assert cluster.inspect(host, name)["RootFS"]["Layers"][: len(layers)] == layers
    # A second run changes nothing.
    again = only_the_image(cluster, training_image_base=former, training_image_base_archive="")
    assert (again.code, again.changed) == (0, {})
    for host in cluster.hosts:
        cluster.on(host, "docker image rm %s" % name)


@pytest.mark.acceptance
def test_an_image_that_lacks_something_after_the_build_is_refused(cluster):
    """A real compilation without a required feature.

    Horovod's build succeeds, its table lists PyTorch, and import horovod.torch works.
    """
    before = [cluster.inspect(host)["State"]["StartedAt"] for host in cluster.hosts]
    run = only_the_image(
        cluster,
        training_image_rebuild="always",
        training_image_build_variables={
            "HOROVOD_WITH_PYTORCH": None,
            "HOROVOD_WITHOUT_PYTORCH": "1",
        },
    )
    assert run.code == 2
    assert "lacks frameworks.pytorch, controllers.gloo, tensor_operations.gloo" in run.text
    # The image is kept for inspection, under an unused name.
    assert (
        cluster.on(cluster.peer, "docker image ls --quiet trainyard/training").out
        == cluster.inspect(cluster.peer)["Image"].split(":")[1][:12] + "\n"
    )
    assert before == [cluster.inspect(host)["State"]["StartedAt"] for host in cluster.hosts]


@pytest.mark.acceptance
def test_one_host_alone(cluster):
    """--limit: the other host is not changed, and its data is kept."""
    run = cluster.site("--limit", cluster.peer)
    assert run.code == 0
    assert run.changed == {}
    for source in cluster.hosts:
        for target in cluster.hosts:
            assert cluster.login(source, target).code == 0


@pytest.mark.acceptance
def test_the_artifact_does_the_same_from_an_empty_folder(cluster, tmp_path):
    """The collection as installed by ansible-galaxy changes nothing on the cluster created by the
    checkout.
    """
    collections, empty = tmp_path / "collections", tmp_path / "empty"
    empty.mkdir()
    environment = {
        "ANSIBLE_COLLECTIONS_PATH": "%s:%s" % (collections, sysconfig.get_path("purelib"))
    }

    def galaxy(*arguments):
        subprocess.run(
            ["ansible-galaxy", "collection", *map(str, arguments)],
            cwd=cluster.root,
            env=cluster.environment(**environment),
            check=True,
        )

    galaxy("build", "--output-path", tmp_path)
    galaxy(
        "install", "--no-deps", "--collections-path", collections, next(tmp_path.glob("*.tar.gz"))
    )
    run = cluster.playbook("trainyard.gpu.site", cwd=empty, environment=environment)
    assert run.code == 0
    assert run.changed == {}
