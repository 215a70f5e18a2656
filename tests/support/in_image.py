"""For scenarios' conftest.py: a command in an image without a network.

The scenario's tests have a fixture `image` with its name.
"""

from __future__ import annotations

import pytest


@pytest.fixture
def in_image(host, image):
    # Gloo looks its own host name up: without a network only this one resolves.
    def run(script, name=image):
        return host.check_output(
            "docker run --rm --network none --hostname localhost --entrypoint sh %s -c %s",
            name,
            script,
        )

    return run
