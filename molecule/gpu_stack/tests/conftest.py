"""Fixtures of this scenario's tests, and their order: those of a host one after the other, those of
several hosts side by side.
"""

from __future__ import annotations

import re

from left_to_acceptance import pytest_collection_modifyitems
from role_again import role
from xdist.scheduler import LoadScopeScheduling

__all__ = ["pytest_collection_modifyitems", "role"]


class ByHost(LoadScopeScheduling):
    """The hosts do not depend on each other.

    A mark for xdist's own --dist=loadgroup has no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid):
        return re.search(r"ansible://(gpu-stack-\w)", nodeid).group(1)


def pytest_xdist_make_scheduler(config, log):
    return ByHost(config, log)
