"""For a scenario's conftest.py: tests marked acceptance run when `make acceptance` runs, which
tests/support/molecule_runs.py says.
"""

from __future__ import annotations

import os


def pytest_collection_modifyitems(config, items):
    heavy = [item for item in items if item.get_closest_marker("acceptance")]
    if heavy and not os.environ.get("TRAINYARD_ACCEPTANCE"):
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]
        print("left to make acceptance: %s" % ", ".join(item.name for item in heavy))
