from __future__ import annotations

from left_to_acceptance import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]
