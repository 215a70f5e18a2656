"""Which roles teardown runs, by the traces that it has found."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _teardown_plan

ROLES = ["train", "image_relay", "slurm", "training_container", "shared_storage", "docker_engine"]
RECORDS = "/var/lib/trainyard/placed.d/"


@pytest.mark.parametrize(
    "found, roles",
    [
        ([[], []], []),
        # The playbook removes these folders itself.
        ([["/var/lib/trainyard", "/var/lib/trainyard/placed.d"]], []),
        # What a removal keeps: packages that others need, accounts, exports, images and notebooks
        # of people.
        ([[RECORDS + "docker_engine.json"], []], ["docker_engine"]),
        (
            [[RECORDS + "slurm.packages.json"], [RECORDS + "shared_storage.accounts.json"]],
            ["slurm", "shared_storage"],
        ),
        ([[RECORDS + "nfs_server.folders.json"]], ["shared_storage"]),
        ([["/var/lib/trainyard/image_relay/registry/docker"]], ["image_relay"]),
        ([["/var/lib/trainyard/notebooks"]], ["training_container"]),
        # Anything else may belong to any role.
        ([[RECORDS + "docker_engine.json"], ["/etc/trainyard"]], ROLES),
        ([["/var/lib/trainyard/bin"]], ROLES),
        ([["/var/lib/trainyard/notebooks_of_the_site"]], ROLES),
        ([[RECORDS + "role_of_another_release.json"]], ROLES),
        ([["1f2e3d4c5b6a"]], ROLES),
    ],
)
def test_roles_with_something_left(found, roles):
    assert _teardown_plan.teardown_roles(found, ROLES) == roles
