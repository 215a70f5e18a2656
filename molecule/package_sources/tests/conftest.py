"""Runs the role again with other variables than the scenario's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from left_to_acceptance import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def scenario():
    return Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])


@pytest.fixture(scope="module")
def role(scenario):
    def run(tasks="main", **variables):
        include = {
            "name": "Run the role",
            "ansible.builtin.include_role": {
                "name": "trainyard.gpu.package_sources",
                "tasks_from": tasks,
            },
        }
        playbook = scenario / "role.yml"
        playbook.write_text(
            json.dumps(
                [
                    {
                        "name": "Again",
                        "hosts": "cluster",
                        "gather_facts": False,
                        "become": True,
                        "tasks": [include],
                    }
                ]
            ),
            encoding="utf-8",
        )
        command = [
            "ansible-playbook",
            "--diff",
            "-v",
            "--inventory",
            os.environ["MOLECULE_INVENTORY_FILE"],
            str(playbook),
            "--extra-vars",
            json.dumps(variables),
        ]
        plain = dict(os.environ, ANSIBLE_FORCE_COLOR="0", ANSIBLE_NOCOLOR="1")
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=plain,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        print(done.stdout)
        recap = {
            line.split()[0]: int(line.partition("changed=")[2].split()[0])
            for line in done.stdout.rpartition("PLAY RECAP")[2].splitlines()
            if "changed=" in line
        }
        return SimpleNamespace(code=done.returncode, text=done.stdout, changed=recap)

    return run
