"""The names of the packages that roles install exist in Ubuntu, or another package provides
them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _job_container_plan,
    _jobs_plan,
    _jupyterhub_plan,
    _slurm_plan,
)

ROOT = Path(__file__).resolve().parents[3]
UBUNTU = ROOT / "tests/fixtures/ubuntu"
FACTS = yaml.safe_load((UBUNTU / "facts.yml").read_text(encoding="utf-8"))
SYSTEMS = {"jammy": "ubuntu-22.04", "noble": "ubuntu-24.04"}
SLURM = {"jammy": "21.08", "noble": "23.11"}
# A list of names in the tasks of a role, or in its variables.
LITERAL = re.compile(r"packages: \[([^\]{}\"]+)\]")


def names_in(release):
    """Names of packages that exist."""
    facts = FACTS[release]["packages"].items()
    found = {name for name, fact in facts if fact.get("seen", "") is not None}
    return found.union(*FACTS[release]["names"].values())


def provided_in(release):
    """Names without a package that others provide."""
    facts = FACTS[release]["packages"].values()
    return {name for fact in facts for name in fact.get("provides", [])} - names_in(release)


def values(role):
    return yaml.safe_load((ROOT / "roles" / role / "vars/main.yml").read_text())


def of_the_texts():
    """The literal lists of all roles' tasks and variables."""
    found = set()
    for path in sorted((ROOT / "roles").glob("*/tasks/*.yml")) + sorted(
        (ROOT / "roles").glob("*/vars/*.yml")
    ):
        for words in LITERAL.findall(path.read_text(encoding="utf-8")):
            found |= {word.strip() for word in words.split(",")}
    return found


def of_docker(release):
    return set(values("docker_engine")["__docker_engine_catalog"][SYSTEMS[release]].values())


def of_driver():
    """The two families of the archive, for branch 580 and the kernel of the flavour generic."""
    found = {"ubuntu-drivers-common", "gcc", "make", "dkms", "linux-headers-generic"}
    for family in values("nvidia_driver")["__nvidia_driver_data"]["families"]["distribution"][
        "ubuntu"
    ]:
        for names in family.values():
            found |= {name.replace("<BR>", "580").replace("<FLAVOUR>", "generic") for name in names}
    return found


def of_slurm(release):
    reading = {"packages": {}, "candidates": dict.fromkeys(names_in(release), "1")}
    return {
        name
        for roles in (["controller"], ["node"], ["login"])
        for name in _slurm_plan.packages(reading, SLURM[release], roles)
    }


def of_plans():
    return {
        *_job_container_plan.PACKAGES,
        *_jupyterhub_plan.PACKAGES_OF_HUB,
        *_jupyterhub_plan.PACKAGES_OF_NOTEBOOK,
        *_jupyterhub_plan.PACKAGES_OF_FIREWALL,
        *_jupyterhub_plan.PACKAGES_OF_BUILD,
        _jobs_plan.YAML,
        "rclone",
    }


def used_in(release):
    """Names of all packages that roles install."""
    infiniband = set(re.findall(r"'([a-z0-9-]+)'", values("infiniband")["__infiniband_packages"]))
    return (
        of_the_texts()
        | of_docker(release)
        | of_driver()
        | of_slurm(release)
        | of_plans()
        | infiniband
        | {"python3-requests", "apparmor", *values("image_relay")["__image_relay_packages"]}
    )


@pytest.mark.parametrize("release", SYSTEMS)
def test_every_name_of_a_package_exists(release):
    used = used_in(release)
    assert len(used) > 60
    assert sorted(used - names_in(release) - provided_in(release)) == []


@pytest.mark.parametrize("release, provided", [("jammy", set()), ("noble", {"libpmix2"})])
def test_only_these_names_are_provided_by_another_package(release, provided):
    """module placed_packages accepts such a name. Each is one that a person should know of."""
    assert used_in(release) & provided_in(release) == provided
    assert FACTS[release]["packages"]["slurmctld"]["seen"].startswith(SLURM[release])


@pytest.mark.parametrize("release", SYSTEMS)
def test_names_that_are_recalled(release):
    """Each is used, and where something was read about one it has the component that was
    recalled.
    """
    facts = FACTS[release]["packages"]
    recalled = [(name, part) for part, names in FACTS[release]["names"].items() for name in names]
    assert len(recalled) == len(dict(recalled))
    assert sorted(set(dict(recalled)) - used_in(release)) == []
    for name, component in recalled:
        assert facts.get(name, {}).get("component") in (None, component), name


@pytest.mark.parametrize(
    "release, file",
    [
        ("noble", "apt-install-mpich-noble.txt"),
        ("noble", "podman-packages-noble.txt"),
        ("jammy", "slurm-packages-jammy.txt"),
        ("jammy", "control-relations-580-server-jammy.txt"),
        ("noble", "control-relations-580-server-noble.txt"),
        ("noble", "control-relations-580-noble.txt"),
    ],
)
def test_names_that_real_outputs_have(release, file):
    """A name that roles use, and whose spelling an output has with another ending, is spelled so
    (libpmix2 was libpmix2t64).
    """
    text = (UBUNTU / file).read_text(encoding="utf-8")
    real = set(
        re.findall(r"^Package: (\S+)|^([a-z0-9][a-z0-9.+-]+)\b| amd64 ([a-z0-9.+-]+) ", text, re.M)
    )
    real = {name for names in real for name in names if name}
    wrong = {name for name in used_in(release) - provided_in(release) if name + "t64" in real}
    assert wrong == set() and real & names_in(release)
