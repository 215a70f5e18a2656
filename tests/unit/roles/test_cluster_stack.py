"""One reading of the GPU stack has what each role needs of it, and a role that changes the stack
has it read again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROLES = Path(__file__).parents[3] / "roles"
SHARING = {
    "nvidia_driver": "nvidia_driver",
    "cuda_toolkit": "cuda_toolkit",
    "nccl": "nccl",
    "container_toolkit": "container_toolkit",
}


def read(path):
    return yaml.safe_load((ROLES / path).read_text(encoding="utf-8"))


READ = read("cluster/tasks/stack.yml")[0]["trainyard.gpu.gpu_stack_info"]


def texts(role):
    """The role without its removal, which reads the stack by itself."""
    paths = sorted((ROLES / role / "tasks").glob("*.yml")) + [ROLES / role / "vars/main.yml"]
    return {
        # There are two main.yml.
        path.relative_to(ROLES): path.read_text(encoding="utf-8")
        for path in paths
        if not path.name.startswith("remove")
    }


@pytest.mark.parametrize("role", SHARING)
def test_no_role_reads_the_stack_by_itself(role):
    assert [name for name, text in texts(role).items() if "gpu_stack_info:" in text] == []
    assert [
        name
        for name, text in texts(role).items()
        if "tasks_from: stack" in text and "cluster_stack_is_current" in text
    ] != []


@pytest.mark.parametrize("role", SHARING)
def test_its_record_is_read(role):
    path = read("%s/vars/main.yml" % role)["__%s_record" % role]
    assert path == (READ["record"] if role == "nvidia_driver" else READ["records"][role])


@pytest.mark.parametrize(
    "role, names",
    [
        ("nvidia_driver", ["modprobe_file", "unattended_file", "preferences", "unit", "drop_in"]),
        ("cuda_toolkit", ["profile", "link_record"]),
        ("nccl", ["preferences", "package_record"]),
    ],
)
def test_its_files_are_read(role, names):
    variables = read("%s/vars/main.yml" % role)
    assert [
        name for name in names if variables["__%s_%s" % (role, name)] not in READ["files"]
    ] == []
    # Each file that the role looks up.
    lookup = re.compile(
        r"cluster_stack\.files\[__%s_(\w+)\]|__%s_(\w+) in cluster_stack\.files" % (role, role)
    )
    assert {
        name
        for text in texts(role).values()
        for found in lookup.findall(text)
        for name in found
        if name
    } <= set(names)


@pytest.mark.parametrize(
    "path",
    [
        "nvidia_driver/tasks/files.yml",
        "nvidia_driver/tasks/install.yml",
        "nccl/tasks/repository.yml",
        "nccl/tasks/source.yml",
        "nccl_tests/tasks/build.yml",
        "container_toolkit/tasks/configure.yml",
        "docker_engine/tasks/install_and_configure.yml",
        "upgrade/tasks/restore_packages.yml",
    ],
)
def test_a_change_has_it_read_again(path):
    """By the next role that needs it. Role cuda_toolkit reads it at its end."""
    assert "tasks_from: forget_stack" in (ROLES / path).read_text(encoding="utf-8")
    assert read("cluster/tasks/forget_stack.yml")[0]["ansible.builtin.set_fact"] == {
        "cluster_stack_is_current": False
    }
    assert (
        read("cluster/tasks/forget.yml")[0]["ansible.builtin.set_fact"]["cluster_stack_is_current"]
        is False
    )
