"""A request that cannot be met is rejected, and the container is left alone."""

from __future__ import annotations

import re

import pytest

HOST = "training-container-a"
testinfra_hosts = ["ansible://" + HOST]


@pytest.mark.acceptance
def test_missing_image_and_runtime_are_rejected(host, role):
    started = "docker inspect --format '{{.Id}} {{.State.StartedAt}}' trainyard-training"
    before = host.check_output(started)
    run = role(
        training_container_image="trainyard/training:absent", training_container_runtime="absent"
    )
    assert run.code != 0
    assert "image trainyard/training:absent is not on this host" in run.text
    assert re.search(r"has no runtime absent \(it has .*runc", run.text)
    assert host.check_output(started) == before
