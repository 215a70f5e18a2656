"""The counter of module runs counts what a host has to do, and nothing that the controller does
alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# They run playbooks, which takes seconds each.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

PLAYBOOK = """\
---
- hosts: one, two
  gather_facts: false
  tasks:
    - {name: say, ansible.builtin.debug: {msg: hello}}
    - {name: judge, ansible.builtin.assert: {that: "1 == 1"}}
    - {name: note, ansible.builtin.set_fact: {noted: 1}}
    - {name: group, ansible.builtin.group_by: {key: grouped}}
    - {name: include, ansible.builtin.include_tasks: {file: more.yml}}
    - {name: look, ansible.builtin.stat: {path: /}}
    - {name: look thrice, ansible.builtin.stat: {path: /}, loop: [1, 2, 3]}
    - {name: try thrice, ansible.builtin.stat: {path: /}, register: tried, until: tried.attempts == 3, retries: 3, delay: 0}
    - {name: not at all, ansible.builtin.stat: {path: /}, when: noted == 2}
    - {name: for one, ansible.builtin.stat: {path: /}, run_once: true, delegate_to: two}
    - {name: for others, ansible.builtin.stat: {path: /}, loop: [two, three], delegate_to: "{{ item }}", when: inventory_hostname == 'one'}
"""


def test_counts(tmp_path):
    (tmp_path / "play.yml").write_text(PLAYBOOK, encoding="utf-8")
    (tmp_path / "more.yml").write_text(
        "---\n- {name: say more, ansible.builtin.debug: {msg: hello}}\n", encoding="utf-8"
    )
    record = tmp_path / "runs.jsonl"
    environment = dict(
        os.environ,
        ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/callback"),
        ANSIBLE_CALLBACKS_ENABLED="module_runs",
        ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        TRAINYARD_RUNS=str(record),
        ANSIBLE_NOCOLOR="1",
    )
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            "one,two",
            "-c",
            "local",
            tmp_path / "play.yml",
        ],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = json.loads(record.read_text(encoding="utf-8"))
    once = [
        "look",
        "look thrice",
        "look thrice",
        "look thrice",
        "try thrice",
        "try thrice",
        "try thrice",
    ]
    assert found["runs"] == {
        "one": once,
        "two": once + ["for one", "for others"],
        "three": ["for others"],
    }
    assert found["tasks"] == 12
    assert found["changed"] == {"one": ["group"], "two": ["group"]}
    assert "module runs: one 7, three 1, two 9 (12 tasks" in done.stdout
