"""When a role takes what an earlier module run of playbook site has read of its host, and when it asks the host itself."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action.normal import ActionModule as AnyModule
from ansible.template import Templar
from role_variables import role_variable
from trusted import trusted

ENGINE = {
    "docker_engine_http_proxy": "",
    "docker_engine_https_proxy": "",
    "docker_engine_no_proxy": [],
    "docker_engine_source": "distribution",
    "docker_engine_daemon_options": {},
    "docker_engine_daemon_override": [],
    "cluster_host": {"os": {"id": "debian", "version_id": "12"}},
}


@pytest.mark.parametrize(
    "variables, asks",
    [
        ({}, True),
        # It may have a password.
        ({"docker_engine_https_proxy": "http://ops:secret@proxy:3128"}, False),
        # Role package_sources changes what apt offers.
        ({"docker_engine_source": "docker_repository"}, False),
    ],
)
def test_what_is_asked_about_the_engine(variables, asks):
    question = role_variable(
        "docker_engine", "__docker_engine_early_question", **dict(ENGINE, **variables)
    )
    assert bool(question) is asks
    assert not asks or (question["candidates"], question["image_label"]) == (
        False,
        "trainyard.recipe",
    )


@pytest.mark.parametrize(
    "variables, known",
    [
        ({}, {"available": True}),
        ({"cluster_answers_are_old": True}, {}),
        # Another playbook than site.
        ({"preflight_engine": ""}, {}),
        # The module failed, or the role of the former module run was left out.
        ({"preflight_answers": {"engine": {}}}, {}),
        ({"preflight_answers": {"skipped": True}}, {}),
        # It was not asked, and answers all the same.
        ({"docker_engine_https_proxy": "http://ops:secret@proxy:3128"}, {}),
    ],
)
def test_what_is_known_about_the_engine(variables, known):
    given = {"preflight_engine": "a", "preflight_answers": {"engine": {"available": True}}}
    given.update(ENGINE, **variables)
    assert role_variable("docker_engine", "__docker_engine_known", **given) == known


STATE = {"available": True, "image": {"exists": False, "id": ""}}
CONTAINER = {
    "shared_storage_reads": {"container": "a", "sshd": "b"},
    "training_container_image": "",
    "training_container_mounts": [],
    "training_image_id": "sha256:1",
    "shared_storage_answers": {"seen": [], "container": STATE},
}
OF_IMAGE = {"available": True, "image": {"exists": True, "id": "sha256:1"}}


@pytest.mark.parametrize(
    "variables, known",
    [
        ({}, OF_IMAGE),
        # The former module run was asked for this image.
        ({"training_container_image": "nvcr.io/nvidia/pytorch:1"}, STATE),
        ({"cluster_answers_are_old": True}, {}),
        ({"shared_storage_reads": {}}, {}),
        ({"shared_storage_answers": {"seen": [], "container": {}}}, {}),
        # It was not asked, and answers all the same.
        ({"training_container_mounts": [{"source": "/srv", "target": "/srv"}]}, {}),
    ],
)
def test_what_is_known_about_the_container(variables, known):
    given = dict(CONTAINER, **variables)
    assert role_variable("training_container", "__training_container_known", **given) == known


def test_the_container_is_read_again_for_an_image_that_no_role_has_found():
    given = {name: value for name, value in CONTAINER.items() if name != "training_image_id"}
    assert role_variable("training_container", "__training_container_known", **given) == {}


def test_mounts_are_read_after_the_folders_of_people_are_made():
    mounts = [{"source": "/data1/share/vision", "target": "/vision"}]
    given = {"training_container_mounts": mounts}
    assert role_variable("training_container", "__training_container_early_question", **given) == {}


KEYS = {"changed": False, "made": [], "host_key": "ssh-ed25519 AAAA"}


@pytest.mark.parametrize(
    "keys, old, known",
    [
        (KEYS, False, KEYS),
        # It would change something, so it runs.
        (dict(KEYS, changed=True), False, {}),
        ({}, False, {}),
        # The container to which this one has logged in may have restarted since.
        (KEYS, True, {}),
    ],
)
def test_what_is_known_about_the_keys(keys, old, known):
    assert (
        role_variable(
            "training_sshd",
            "__training_sshd_known",
            shared_storage_reads={"sshd": "b"},
            shared_storage_answers={"seen": [], "sshd": keys},
            cluster_answers_are_old=old,
        )
        == known
    )


@pytest.mark.parametrize("name", ["docker_engine_info", "training_container_info", "ssh_mesh_keys"])
def test_a_known_answer_has_what_the_module_returns_and_no_more(name):
    """Ansible obeys some keys of a result. A host that has chosen them would add hosts and facts."""
    module = importlib.import_module("ansible_collections.trainyard.gpu.plugins.modules." + name)
    action = importlib.import_module("ansible_collections.trainyard.gpu.plugins.action." + name)
    documented = set(yaml.safe_load(module.RETURN))
    assert action.ActionModule.returned == documented - {"sent"}
    known = dict.fromkeys(documented, "its own")
    hostile = {
        "add_host": {"host_name": "login1", "host_vars": {"ansible_connection": "local"}},
        "add_group": "login",
        "ansible_facts": {"ansible_become_exe": "/tmp/x"},
        "ansible_stats": {"data": {}},
        "_ansible_no_log": True,
        "changed": True,
        "failed": True,
        "skipped": True,
    }
    task = SimpleNamespace(
        args={"known": {**known, **hostile}}, async_val=False, action=name, diff=False
    )
    plugin = action.ActionModule(task, None, None, DataLoader(), None, None)
    assert plugin.run(None, {}) == {**known, "changed": False, "sent": False}


@pytest.mark.parametrize(
    "known, ran",
    [
        ({}, [{"directory": "/etc/b", "port": 12345, "comment": "own"}]),
        ({"host_key": "a"}, []),
    ],
)
def test_the_question_is_evaluated_only_if_the_answer_is_not_known(monkeypatch, known, ran):
    action = importlib.import_module(
        "ansible_collections.trainyard.gpu.plugins.action.ssh_mesh_keys"
    ).ActionModule
    runs = []
    monkeypatch.setattr(AnyModule, "run", lambda self, *given: runs.append(self._task.args) or {})
    question = {"directory": "/etc/{{ name }}", "port": 12345, "comment": "of the variable"}
    variables = trusted({"question": question, "name": "b"})
    if known:
        variables["question"] = trusted("{{ undefined_variable }}")
    arguments = {"known": known, "question": "question", "comment": "own"}
    task = SimpleNamespace(args=arguments, async_val=False, action="ssh_mesh_keys", diff=False)
    plugin = action(task, None, None, DataLoader(), Templar(DataLoader(), variables), None)
    plugin.run(None, variables)
    assert runs == ran
