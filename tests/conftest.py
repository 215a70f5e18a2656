"""Order and report of the test run: what takes milliseconds comes first, the cluster scenario last."""

from __future__ import annotations

ORDER = ["tests/unit/", "tests/lab/", "tests/lint/", "tests/scenarios/"]
# It makes the training image that the scenarios after it load, so that Horovod is compiled once.
COMPILES = "test_scenario[cluster]"


def pytest_collection_modifyitems(items):
    def rank(item):
        place = next((number for number, prefix in enumerate(ORDER) if item.nodeid.startswith(prefix)), 0)
        if not item.name.startswith("test_scenario["):
            return place, 0
        return place, 2 if item.name == COMPILES else 3 if "training_" in item.name or "nccl_" in item.name else 1

    items.sort(key=rank)


def pytest_deselected(items):
    DESELECTED.extend(items)


def pytest_terminal_summary(terminalreporter, config):
    """`make test` leaves the heavy ones out: say which, so that green is not taken for more than it is."""
    left_out = [item.nodeid for item in DESELECTED if item.get_closest_marker("acceptance")]
    if left_out:
        terminalreporter.write_line("not run here (-m '%s'), make acceptance runs them:" % config.getoption("-m"))
        for nodeid in left_out:
            terminalreporter.write_line("  " + nodeid)


DESELECTED = []
