"""For scenarios' conftest.py: a role once more on one host, or a playbook on all of them, with
other variables than the scenario's.

The role is C(of), else C(ROLE) of the tests' module, else the one that the scenario is named after.
C(shown) is the value of the variable C(shows) then.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_playbook(path, *arguments, **variables):
    """A run of a playbook with other variables than the scenario's: exit code, text, output as it
    was printed, and the number of changes on all hosts.
    """
    command = [
        "ansible-playbook",
        "--inventory",
        os.environ["MOLECULE_INVENTORY_FILE"],
        str(path),
        *arguments,
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
    recap = done.stdout.rpartition("PLAY RECAP")[2]
    return SimpleNamespace(
        code=done.returncode,
        text=" ".join(done.stdout.split()),
        output=done.stdout,
        changed=sum(
            int(word.partition("=")[2]) for word in recap.split() if word.startswith("changed=")
        ),
    )


@pytest.fixture(scope="session")
def playbook():
    """One of the collection's playbooks, by the name of its file."""
    return lambda name, *arguments, **variables: run_playbook(
        ROOT / "playbooks" / name, *arguments, **variables
    )


@pytest.fixture(scope="module")
def role(request):
    scenario = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
    name = request.module.HOST
    usual = getattr(request.module, "ROLE", os.environ["MOLECULE_SCENARIO_NAME"])

    def run(tasks="main", of=None, shows=None, **variables):
        role_name = "trainyard.gpu." + (of or usual)
        include = {
            "name": "Apply the role",
            "ansible.builtin.include_role": {"name": role_name, "tasks_from": tasks},
        }
        show = (
            [{"name": "Show the variable", "ansible.builtin.debug": {"var": shows}}]
            if shows
            else []
        )
        path = scenario / ("role-%s.yml" % name)
        path.write_text(
            json.dumps(
                [
                    {
                        "name": "Again",
                        "hosts": name,
                        "gather_facts": False,
                        "become": True,
                        "tasks": [include] + show,
                    }
                ]
            ),
            encoding="utf-8",
        )
        done = run_playbook(path, **variables)
        done.shown = (
            json.JSONDecoder().raw_decode(done.output.rpartition("ok: [%s] => " % name)[2])[0][
                shows
            ]
            if shows and done.code == 0
            else None
        )
        return done

    return run
