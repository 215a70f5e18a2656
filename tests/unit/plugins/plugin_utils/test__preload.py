"""Filters and the functions of decisions are loaded in ansible-core's own process, so that the
processes of the tasks have them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._decisions import DECISIONS, PLUGINS

ROOT = Path(__file__).resolve().parents[4]
# What strategy linear does with a task before it forks a process for each host.
LOAD = """
import sys
from ansible.plugins.loader import action_loader, init_plugin_loader
init_plugin_loader()
assert action_loader.get("trainyard.gpu.judge_input", class_only=True)
print(*(name for name in sys.modules if name.startswith("ansible_collections.trainyard.gpu.plugins.")))
"""


@pytest.fixture(name="loaded", scope="module")
def _loaded():
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return {name[len(PLUGINS) :] for name in done.stdout.split()}


def test_the_first_task_of_a_run_loads_all_filters(loaded):
    filters = {"filter." + path.stem for path in (ROOT / "plugins/filter").glob("*.py")}
    assert {name for name in loaded if name.startswith("filter.")} == filters


def test_the_first_task_of_a_run_loads_the_functions_of_decisions(loaded):
    """All but those that take long and serve one host of a run."""
    modules = {path.rpartition(".")[0] for path in DECISIONS.values()}
    assert modules - loaded == {
        "plugin_utils._bandwidth_checks",
        "plugin_utils._bandwidth_tool",
        "plugin_utils._session_checks",
    }
