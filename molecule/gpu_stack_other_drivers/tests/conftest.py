"""Fixtures of this scenario's tests."""

from __future__ import annotations

from left_to_acceptance import pytest_collection_modifyitems
from role_again import role

__all__ = ["pytest_collection_modifyitems", "role"]
