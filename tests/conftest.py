"""Order and report of the test run: what takes milliseconds comes first, the cluster scenario last."""

from __future__ import annotations

ORDER = ["tests/unit/", "tests/lint/", "tests/scenarios/"]
SLOWEST = ["test_scenario[cluster]", "test_scenario[nccl_rebuild]", "test_killed_in_every_stage_and_run_again", "test_killed_and_taken_down"]


def pytest_collection_modifyitems(items):
    def rank(item):
        place = next((number for number, prefix in enumerate(ORDER) if item.nodeid.startswith(prefix)), 0)
        return place, SLOWEST.index(item.name) if item.name in SLOWEST else -1

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
