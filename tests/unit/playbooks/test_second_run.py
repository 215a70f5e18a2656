"""A second run of site.yml on stand-in hosts: what it costs the controller in tasks and the hosts
in module runs, and that it changes nothing.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from stand_in_cluster import StandInCluster
from stand_in_hosts import MODULES, StandInHost, name_of

# They run playbooks, which takes seconds each.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
# Counted as the callback counts them: tasks that are skipped, too. Each costs the controller a
# process per host.
TASKS = 44
MODULE_RUNS = 5
# Of the arguments only what an answer depends on.
ARGUMENTS = {
    "host_info": {
        "names": ["node-0001"],
        "connect": [{"name": "node-0001", "address": "10.64.0.2", "port": 12345}],
        "paths": ["/"],
        "folders": ["/"],
    },
    "docker_engine_info": {"packages": ["docker.io"]},
    "image_info": {"names": ["trainyard/training:1"]},
    "ssh_mesh_info": {"peers": ["node-0001"]},
    "host_health_info": {"paths": ["/"]},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    return StandInCluster(tmp_path_factory.mktemp("cluster"), 2).finished()


def test_second_run_of_site_yml(cluster):
    run = cluster.playbook("site.yml")
    assert run.code == 0, run.text
    assert run.changed == {}
    assert "image-identical, container-running" in run.text
    runs = {host: Counter(names) for host, names in run.runs.items()}
    assert {host: sum(names.values()) for host, names in runs.items()} == {
        name_of(0): MODULE_RUNS,
        name_of(1): MODULE_RUNS,
    }, runs
    assert run.tasks <= TASKS
    # Horovod's check runs beside all roles: it begins with the first module run, and verify reads
    # the result.
    for number in range(2):
        name = name_of(number)
        assert StandInHost(name, cluster.folder).written["check"] == {
            "of": {
                "container": "trainyard-training",
                "ssh_host": name,
                "ssh_port": 12345,
                "frameworks": ["pytorch"],
            },
            "read": "c" * 32,
        }


ENGINE = "trainyard.gpu.docker_engine : Read the installed Docker engine"
CONTAINER = "trainyard.gpu.training_container : Read the state of the container and its unit"
KEYS = "trainyard.gpu.training_sshd : Create the keys of the container"


@pytest.mark.parametrize(
    "arguments",
    [
        # A role has changed the hosts after their questions were answered.
        ["--extra-vars", json.dumps({"cluster_answers_are_old": True})],
        # No earlier role asks for them.
        ["--tags", "docker_engine,training_container,training_sshd"],
    ],
)
def test_a_role_asks_what_no_earlier_role_knows(cluster, arguments):
    run = cluster.playbook("site.yml", *arguments)
    assert (run.code, run.changed) == (0, {}), run.text
    asked = [ENGINE, CONTAINER, KEYS]
    assert {
        host: [name for name in names if name in asked] for host, names in run.runs.items()
    } == {
        name_of(0): asked,
        name_of(1): asked,
    }


@pytest.mark.parametrize("selection", [["--tags", "preflight"], ["--skip-tags", "verify"]])
def test_horovod_is_not_checked_for_nothing(cluster, selection):
    """Only role verify reads the result."""
    for number in range(2):
        host = StandInHost(name_of(number), cluster.folder)
        host.written.pop("check", None)
        host.keep()
    run = cluster.playbook("site.yml", *selection)
    assert run.code == 0, run.text
    assert "check" not in StandInHost(name_of(0), cluster.folder).written


def test_a_limited_run_reads_the_hosts_outside_it(cluster):
    run = cluster.playbook("site.yml", "--limit", name_of(1))
    assert (run.code, run.changed) == (0, {}), run.text
    assert [name.rpartition(" : ")[2] for name in run.runs[name_of(0)]] == [
        "Gather facts about the hosts outside this play",
        "Read the training image of the head outside this run",
        "Read the keys of hosts outside this play",
    ]


SLURM = {"cluster_scheduler": "slurm", "slurm_accept_login_on_gpu_hosts": True}


@pytest.mark.parametrize(
    "enabled, tags, role, unanswered",
    [
        # The registry is first, because the hosts of jobs pull from it.
        (dict(SLURM, image_relay_images=[]), "all", "image_relay", "image_relay_info"),
        ({"image_relay_storage": "/srv/registry"}, "all", "image_relay", "image_relay_info"),
        (SLURM, "all", "slurm", "slurm_host_info"),
        # The command trainyard.
        (SLURM, "workbench", "jobs", "placed_packages"),
    ],
)
def test_site_runs_what_the_inventory_enables(cluster, enabled, tags, role, unanswered):
    """These hosts answer none of its modules, so the first one ends the run."""
    run = cluster.playbook("site.yml", "--tags", tags, "--extra-vars", json.dumps(enabled))
    assert run.code == 2
    assert "node-0000: no answer for module" in run.text
    assert ".modules.%s" % unanswered in run.text
    assert "TASK [trainyard.gpu.%s : " % role in run.text


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfWBWeD+lmc81HJ9lxOQA+NHp50RTLc67//Lm0MyXzY anna@laptop"


def test_keys_of_people_cost_no_module_run(cluster):
    """On the login host, which is the head, the run that creates the accounts also writes the keys.

    The other hosts get none.
    """
    counted = []
    for more in ({}, {"public_keys": [KEY]}):
        arguments = [
            "playbooks/shared_storage.yml",
            "--extra-vars",
            json.dumps({"shared_storage_users": [dict(name="anna", uid=2001, **more)]}),
        ]
        first, again = cluster.playbook(*arguments), cluster.playbook(*arguments)
        assert (first.code, again.code, again.changed) == (0, 0, {}), first.text + again.text
        counted.append(({host: Counter(names) for host, names in again.runs.items()}, again.tasks))
        keys = {
            name_of(number): StandInHost(name_of(number), cluster.folder).written["people"]["keys"]
            for number in range(2)
        }
        assert keys == {name_of(0): {"anna": [KEY]} if more else {}, name_of(1): {}}
    assert counted[0] == counted[1]
    assert [
        names["trainyard.gpu.shared_storage : Configure the users and groups"]
        for names in counted[1][0].values()
    ] == [1, 1], counted
    # Without people the module runs only where keys are left, and these hosts have none.
    gone = cluster.playbook("playbooks/shared_storage.yml")
    assert gone.code == 0 and not any(
        "users" in name for names in gone.runs.values() for name in names
    )


def test_input_that_uses_the_cluster_facts_is_judged_before_a_host_changes(cluster):
    run = cluster.playbook(
        "site.yml",
        "--extra-vars",
        json.dumps(
            {
                "verify_timeout": "{{ cluster_host.architecture }}",
                # The module run that reads the facts must not need them.
                "training_container_name": "{{ 'on-' ~ cluster_host.architecture }}",
                "package_sources_ca_certificates": [
                    "/etc/{{ cluster_host.architecture }}-authority.pem"
                ],
            }
        ),
    )
    assert (
        run.code == 2
        and "The input is not valid; nothing was changed." in run.text
        and "verify_timeout" in run.text
    )
    assert {host: len(names) for host, names in run.runs.items()} == {name_of(0): 1, name_of(1): 1}
    good = cluster.playbook(
        "playbooks/preflight.yml",
        "--extra-vars",
        json.dumps(
            {"training_container_environment": {"ARCHITECTURE": "{{ cluster_host.architecture }}"}}
        ),
    )
    assert good.code == 0, good.text


def keys_of(described):
    """The keys of a described value that are always there; None if the description names none."""
    return {
        name
        for name, entry in described.items()
        if entry.get("returned", "always") in ("always", "success")
    }


def check(value, described, where):
    assert keys_of(described) <= set(value) - {"changed"} <= set(described), where
    for name, entry in described.items():
        inner = entry.get("contains")
        for each in (
            (value[name] if isinstance(value.get(name), list) else [value.get(name)])
            if inner
            else []
        ):
            if isinstance(each, dict) and each and set(each) & set(inner):
                check(each, inner, "%s.%s" % (where, name))


OURS = [name for name in MODULES if (ROOT / "plugins/modules" / (name + ".py")).exists()]


@pytest.mark.parametrize(
    "module, step", [(name, "write") for name in OURS] + [("shared_storage_proof", "read")]
)
def test_answers_have_the_documented_form(module, step, tmp_path):
    (tmp_path / "recipe").write_text("1" * 64, encoding="utf-8")
    described = yaml.safe_load(
        importlib.import_module(
            "ansible_collections.trainyard.gpu.plugins.modules." + module
        ).RETURN
    )
    # Some values are returned by one of the steps only.
    for name, entry in list(described.items()):
        if entry.get("returned", "").startswith("when O(step="):
            if entry["returned"] == "when O(step=%s)" % step:
                entry["returned"] = "always"
            else:
                del described[name]
    arguments = dict(
        {
            "path": "/data1/share",
            "step": step,
            "name": "node-0000",
            "files": [{"name": "node-0001"}] if step == "read" else [],
        },
        **ARGUMENTS.get(module, {}),
    )
    check(
        StandInHost("node-0000", tmp_path).answer(
            "ansible_collections.trainyard.gpu.plugins.modules." + module, arguments
        ),
        described,
        module,
    )


def test_a_module_without_an_answer_fails(cluster):
    play = cluster.folder / "unanswered.yml"
    play.write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "cluster",
                    "gather_facts": False,
                    "tasks": [{"ansible.builtin.command": "true"}],
                }
            ]
        ),
        encoding="utf-8",
    )
    run = cluster.playbook(str(play))
    assert run.code == 2
    assert "node-0000: no answer for module ansible.modules.command" in run.text
