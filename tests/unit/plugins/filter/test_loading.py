"""Ansible loads all filters of a collection for the first one that a task uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
LOAD = """
import sys
from ansible.plugins.loader import filter_loader, init_plugin_loader
init_plugin_loader([%r])
assert filter_loader.get("trainyard.gpu.quoted")
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("ansible_collections.trainyard.gpu.plugins.")))
"""
# Modules with long regular expressions, or that import them.
HEAVY = {
    "_all_reduce",
    "_run_log",
    "_epilogues",
    "_compat",
    "_gpu_stack",
    "_bandwidth",
    "_error_signatures",
    "_log_causes",
    "_driver_plan",
}


def test_no_filter_makes_the_others_slow():
    done = subprocess.run(
        [sys.executable, "-c", LOAD % str(ROOT / ".dev")],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert {"quoted", "decide", "_decisions"} <= loaded
    assert loaded & HEAVY == set()
    assert [name for name in loaded if name.endswith("_plan")] == []
