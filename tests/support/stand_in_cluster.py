"""A cluster of hosts that exist only as answers (stand_in_hosts), and its playbooks as a user runs
them: what they cost the controller.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import yaml
from stand_in_hosts import NETWORK, address_of, name_of
from whole_cluster import BIN, ROOT, PlaybookRun

# The image's recipe depends on files of the role, so it is asked of the role: all hosts have an
# image of it.
PREPARE = [
    {
        "hosts": "cluster[0]",
        "gather_facts": False,
        "tasks": [
            {
                "ansible.builtin.include_role": {
                    "name": "trainyard.gpu.training_image",
                    "tasks_from": "read_image",
                }
            },
            {
                "ansible.builtin.copy": {
                    "content": "{{ training_image_recipe }}",
                    "dest": "{{ recipe_file }}",
                    "mode": "0644",
                },
                "delegate_to": "localhost",
                "vars": {"ansible_connection": "local"},
            },
        ],
    }
]


class StandInCluster:
    def __init__(self, folder, count):
        """An inventory of C(count) hosts that are as before the first run.

        What they remember lies in C(folder).
        """
        self.folder, self.count = Path(folder), count
        self.inventory = self.folder / "inventory"
        self.inventory.mkdir(parents=True)
        hosts = {name_of(number): {"ansible_host": address_of(number)} for number in range(count)}
        variables = {
            "ansible_connection": "stand_in",
            "ansible_user": "ops",
            "ansible_python_interpreter": "/usr/bin/python3",
            "cluster_network": NETWORK,
            "shared_storage_backend": "existing",
        }
        (self.inventory / "hosts.yml").write_text(
            yaml.safe_dump({"cluster": {"hosts": hosts, "vars": variables}}), encoding="utf-8"
        )
        recipe, prepare = self.folder / "recipe", self.folder / "prepare.yml"
        recipe.write_text("none yet", encoding="utf-8")
        prepare.write_text(yaml.safe_dump(PREPARE), encoding="utf-8")
        prepared = self.playbook(
            str(prepare), "--extra-vars", json.dumps({"recipe_file": str(recipe)})
        )
        assert prepared.code == 0, prepared.text

    def playbook(self, name, *arguments, environment=None):
        """Run a playbook; seconds of the clock and of the processor, and what the callback
        counted.
        """
        record = self.folder / "runs.jsonl"
        record.unlink(missing_ok=True)
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("ANSIBLE_", "MOLECULE_"))
        }
        clean.update(
            PATH="%s:%s" % (BIN, os.environ["PATH"]),
            ANSIBLE_NOCOLOR="1",
            PYTHONPATH=str(ROOT / "tests/support"),
            TRAINYARD_STAND_IN=str(self.folder),
            ANSIBLE_CONNECTION_PLUGINS=str(ROOT / "tests/connection"),
            ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/callback"),
            ANSIBLE_CALLBACKS_ENABLED="module_runs",
            TRAINYARD_RUNS=str(record),
            **(environment or {}),
        )
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [str(BIN / "ansible-playbook"), name, "-i", str(self.inventory), *arguments],
            cwd=ROOT,
            env=clean,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        counted = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        return PlaybookRun(
            code=done.returncode,
            text=done.stdout,
            seconds=time.monotonic() - begun,
            cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            tasks=counted.get("tasks"),
            changed={host: tasks for host, tasks in counted.get("changed", {}).items() if tasks},
            runs=counted.get("runs", {}),
            recap=counted.get("recap", {}),
        )

    def finished(self, like=None):
        """Run site.yml for the first time: from now on it changes nothing.

        With hosts that are almost as those of another cluster it has less to do.
        """
        for number in range(self.count if like else 0):
            shutil.copy(
                like.folder / (name_of(1) + ".json"), self.folder / (name_of(number) + ".json")
            )
        first = self.playbook("site.yml")
        assert first.code == 0, first.text
        return self

    def cpu_milliseconds(self, *tasks):
        """What one task of a play costs for each host: 20 of them more in a play, and how much
        longer the controller computes.
        """
        seconds = []
        for count in (1, 21):
            play = self.folder / "play.yml"
            play.write_text(
                yaml.safe_dump(
                    [
                        {
                            "hosts": "cluster",
                            "gather_facts": False,
                            "become": True,
                            "tasks": list(tasks) * count,
                        }
                    ]
                ),
                encoding="utf-8",
            )
            run = self.playbook(str(play))
            assert run.code == 0, run.text
            seconds.append(run.cpu)
        return 1000 * (seconds[1] - seconds[0]) / 20 / self.count / len(tasks)
