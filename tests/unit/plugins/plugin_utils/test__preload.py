"""Filters are loaded in ansible-core's own process, so that the processes of the tasks have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
# What strategy linear does with a task before it forks a process for each host.
LOAD = """
import sys
from ansible.plugins.loader import action_loader, init_plugin_loader
init_plugin_loader()
assert action_loader.get("trainyard.gpu.judge_input", class_only=True)
print(*(name for name in sys.modules if name.startswith("ansible_collections.trainyard.gpu.plugins.filter.")))
"""


def test_the_first_task_of_a_run_loads_all_filters():
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    names = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert names == {path.stem for path in (ROOT / "plugins/filter").glob("*.py")}
