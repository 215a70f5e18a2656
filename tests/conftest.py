"""Order, pace and report of the test run: what takes milliseconds comes first, the cluster scenario
last.
"""

from __future__ import annotations

import collections
import os
import sys

import pytest
from ansible.plugins.loader import init_plugin_loader
from ansible.utils.collection_loader import AnsibleCollectionConfig
from cpu_costs import COSTS, told
from molecule_runs import SIDE_BY_SIDE, MoleculeRuns, cores_between, ticks
from new_python import NO_NEW, new_python
from old_python import NONE, old_python
from real_gpu import what_the_gpu_lacks

# The collection is found as ansible-core finds it. Its finder comes first, whatever test imports
# the collection's code first.
if AnsibleCollectionConfig.collection_finder is None:
    init_plugin_loader()

ORDER = [
    "tests/unit/",
    "tests/lint/test_artifact.py",
    "tests/lint/test_house_rules.py",
    "tests/lint/test_roles.py",
    "tests/lint/",
    "tests/scenarios/",
]
LINTERS = "tests/lint/test_tools.py"
SLOWEST = [
    "test_scenario[cluster]",
    "test_bandwidth.py",
    "test_scenario[vm]",
    "test_scenario_with_the_newest_collections[vm]",
    "test_scenario[nccl_rebuild]",
    "test_driver_on_virtual_machine.py",
    "test_on_virtual_machines",
    "test_a_cluster_that_groups_share",
    "test_killed_in_every_stage_and_run_again",
    "test_killed_and_taken_down",
    "test_hosts_of_a_user_s_own_image",
]


def pytest_collection_modifyitems(config, items):
    # Beside other workers the linters come first: they are processes of their own, and ansible-lint
    # takes longer than any file of tests.
    order = [LINTERS, *ORDER] if os.environ.get("PYTEST_XDIST_WORKER") else ORDER
    # Neither run nor passed: deselected, so that the closing line counts them, and named below.
    for marker, (find, reason) in NEEDS.items():
        without = [item for item in items if item.get_closest_marker(marker)]
        if without and not find():
            MISSING[reason() if callable(reason) else reason] = without
            config.hook.pytest_deselected(items=list(without))
            items[:] = [item for item in items if item not in without]

    def rank(item):
        place = next(
            (number for number, prefix in enumerate(order) if item.nodeid.startswith(prefix)), 0
        )
        return place, next(
            (number for number, name in enumerate(SLOWEST) if name in (item.name, item.path.name)),
            -1,
        )

    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def molecule_runs(request, tmp_path_factory):
    """The selected scenarios start at once: the tests before them need one core at most."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal = os.fdopen(
            os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace", buffering=1
        )
    asked = [
        item.callspec.params["scenario"]
        for item in request.session.items
        if "scenario" in getattr(getattr(item, "callspec", None), "params", ())
    ]
    acceptance = "not acceptance" not in request.config.getoption("-m")
    terminal.write("\n" if asked else "")
    runs = MoleculeRuns(asked, tmp_path_factory.mktemp("runs"), acceptance, terminal.write)
    yield runs
    runs.end()
    terminal.close()
    PACE.extend(
        "%-20s %s" % (name, pace.told(runs.begun))
        for name, pace in sorted(runs.pace.items(), key=lambda entry: entry[1].begun)
    )
    if PACE:
        PACE.append(cores_between(runs.ticks, ticks()))


def pytest_collection_finish():
    """Also in each worker of xdist, which sends it with its first report."""
    COSTS.charge(STARTED, sum(COSTS.taken(STARTED).values()))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "teardown":
        report.cpu_seconds = COSTS.taken(item.nodeid.partition("::")[0])


def pytest_runtest_logreport(report):
    SPENT.update(getattr(report, "cpu_seconds", {}))


def pytest_deselected(items):
    DESELECTED.extend(items)


def pytest_terminal_summary(terminalreporter, config):
    """Where the minutes went. `make test` leaves the heavy tests out: name them, so that green is
    not taken for more than it is.
    """
    if PACE:
        terminalreporter.write_line(
            "seconds of the scenarios and of their steps, %d side by side:" % SIDE_BY_SIDE
        )
        for line in PACE:
            terminalreporter.write_line("  " + line)
    for line in told(SPENT):
        terminalreporter.write_line(line)
    missing = [item.nodeid for without in MISSING.values() for item in without]
    left_out = [
        item.nodeid
        for item in DESELECTED
        if item.get_closest_marker("acceptance") and item.nodeid not in missing
    ]
    for reason, without in MISSING.items():
        terminalreporter.write_line("not run here, as %s:" % reason)
        for item in without:
            terminalreporter.write_line("  " + item.nodeid)
    if left_out:
        terminalreporter.write_line(
            "not run here (-m '%s'), make acceptance runs them:" % config.getoption("-m")
        )
        for nodeid in left_out:
            terminalreporter.write_line("  " + nodeid)


DESELECTED = []
# What a marked test needs, by marker. The tests that were not run for lack of it, by reason.
NEEDS = {
    "python36": (lambda: old_python(), NONE),
    "python312": (lambda: new_python(), NO_NEW),
    "gpu": (lambda: not what_the_gpu_lacks(), what_the_gpu_lacks),
}
MISSING = {}
PACE = []
SPENT = collections.Counter()
STARTED = "start of pytest and collection of the tests"
