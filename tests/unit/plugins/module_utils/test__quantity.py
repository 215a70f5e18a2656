"""A number and its noun."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity


def test_singular_and_plural():
    assert [quantity(count, "GPU") for count in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
