"""The name of an environment, and the commands that fill it."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import (
    _program_environment as environment,
)


def test_the_name_depends_on_the_content_only():
    name = environment.folder_name("3.11", "a==1", "{}", '{\n  "version": "1"\n}')
    assert len(name) == 12 and name == environment.folder_name(
        "3.11", "a==1", "{}", '{\n  "version": "1"\n}'
    )
    # Where the archives are is not part of it: they have checksums.
    assert environment.folder_name(
        "3.11", "", "", 'a\n"resolved": "file:/x"\nb'
    ) == environment.folder_name("3.11", "", "", "a\nb")
    others = [
        environment.folder_name(*arguments)
        for arguments in (
            ("3.12", "a==1", "{}", "l"),
            ("3.11", "a==2", "{}", "l"),
            ("3.11", "a==1", "{}", "m"),
        )
    ]
    assert len({name, *others}) == 4


def test_pip_takes_wheels_with_checksums_only():
    command = environment.pip_command("/opt/e-1", "/tmp/r.txt", "")
    assert (
        command[0] == "/opt/e-1/bin/python"
        and {"--require-hashes", "--only-binary=:all:"} <= set(command)
        and "--no-index" not in command
    )
    assert {"--no-index", "--find-links=/srv/p"} <= set(
        environment.pip_command("/opt/e-1", "/tmp/r.txt", "/srv/p")
    )


def test_npm_runs_no_script_of_a_package():
    command, variables = environment.npm_command(
        "/opt/e-1", "/opt/e-1/lib/w", "/tmp/npm", True, "https://npm.example.org/", "/etc/ca.pem"
    )
    assert command[:3] == [
        "/opt/e-1/bin/node",
        "/opt/e-1/lib/w/lib/node_modules/npm/bin/npm-cli.js",
        "ci",
    ]
    assert {"--ignore-scripts", "--offline"} <= set(command) and variables["HOME"] == "/tmp/npm"
    assert (
        variables["npm_config_registry"] == "https://npm.example.org/"
        and variables["npm_config_cafile"] == "/etc/ca.pem"
    )
    command, variables = environment.npm_command(
        "/opt/e-1", "/opt/e-1/lib/w", "/tmp/npm", False, "", ""
    )
    assert "--offline" not in command and not {"npm_config_registry", "npm_config_cafile"} & set(
        variables
    )


@pytest.mark.parametrize(
    "command, program, used",
    [
        ("/opt/e-1/bin/python\0/opt/e/bin/jupyterhub\0", "/usr/bin/python3.11", True),
        ("node\0", "/opt/e-1/lib/node", True),
        ("/opt/e-12/bin/python\0", "/usr/bin/python3.11", False),
        ("/opt/e/bin/node\0", "/other", False),
    ],
)
def test_folders_in_use_stay(command, program, used):
    assert environment.is_used("/opt/e-1", [("sh", "/bin/sh"), (command, program)]) is used


def test_the_end_of_an_output():
    assert (
        environment.last_lines("a\n\nb\nc\n", 2) == "b | c"
        and environment.last_lines("") == "it printed nothing"
    )
