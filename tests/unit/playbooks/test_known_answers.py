"""When a role takes what an earlier module run of playbook site has read of its host, and when it asks the host itself."""

from __future__ import annotations

import pytest
from role_variables import role_variable

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
    ],
)
def test_what_is_known_about_the_engine(variables, known):
    given = {"preflight_engine": "a", "preflight_answers": {"engine": {"available": True}}}
    given.update(variables)
    assert role_variable("docker_engine", "__docker_engine_known", **given) == known
