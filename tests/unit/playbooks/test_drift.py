"""Playbook drift, against this machine under two names, and a third that does not answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# They run playbooks, which takes seconds each.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
INVENTORY = {
    "cluster": {
        "hosts": {
            "server-a": {"ansible_host": "127.0.0.1", "ansible_connection": "local"},
            "server-b": {"ansible_host": "127.0.0.2", "ansible_connection": "local"},
            "server-c": {"ansible_host": "127.0.0.3", "ansible_port": 1},
        },
        "vars": {"ansible_become": False, "ansible_python_interpreter": sys.executable},
    }
}
# These hosts have no NCCL. A fact of a role, such as upgrade_asked, is refused in the input.
NOWHERE = json.dumps({"nccl_version": "2.21.5", "nccl_cuda": "12.4"})


@pytest.mark.parametrize(
    "limit, variables, code, rows",
    [
        (
            "server-a,server-b",
            "{}",
            0,
            ["server-a - 0 packages as configured", "server-b - 0 packages as configured"],
        ),
        (
            "server-b,server-a",
            NOWHERE,
            2,
            [
                "server-a libnccl2 2.21.5-1+cuda12.4 absent",
                "server-b libnccl2 2.21.5-1+cuda12.4 absent",
                "drift on 2 of 2 hosts: server-a, server-b",
            ],
        ),
        (
            "all",
            NOWHERE,
            4,
            [
                "server-a libnccl2 2.21.5-1+cuda12.4 absent",
                "server-b libnccl2 2.21.5-1+cuda12.4 absent",
                "server-c - - did not answer",
            ],
        ),
    ],
    ids=["none", "drift", "a host that does not answer"],
)
def test_every_host_is_in_the_table(tmp_path, limit, variables, code, rows):
    path = tmp_path / "hosts.yml"
    path.write_text(json.dumps(INVENTORY), encoding="utf-8")
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(path),
            "playbooks/drift.yml",
            "--limit",
            limit,
            "--extra-vars",
            variables,
        ],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=dict(os.environ, ANSIBLE_NOCOLOR="1"),
    )
    assert done.returncode == code, done.stdout
    for row in rows:
        assert row in " ".join(done.stdout.split()), done.stdout
    assert "changed=1" not in done.stdout
