"""Fixtures of this scenario's tests."""

from __future__ import annotations

from left_to_acceptance import pytest_collection_modifyitems
from role_again import playbook

__all__ = ["playbook", "pytest_collection_modifyitems"]
