"""The names of the packages that roles install exist in Ubuntu, or another package provides them."""

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
RELEASES = yaml.safe_load((ROOT / "tests/fixtures/ubuntu/packages.yml").read_text())
SYSTEMS = {"jammy": "ubuntu-22.04", "noble": "ubuntu-24.04"}
COMPONENTS = ("main", "universe", "restricted", "multiverse")
# A list of names in the tasks of a role, or in its variables.
LITERAL = re.compile(r"packages: \[([^\]{}\"]+)\]")


def names_in(release):
    return {name for component in COMPONENTS for name in RELEASES[release][component]}


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
        for name in _slurm_plan.packages(reading, RELEASES[release]["release"], roles)
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


@pytest.mark.parametrize("release", RELEASES)
def test_every_name_of_a_package_exists(release):
    infiniband = set(re.findall(r"'([a-z0-9-]+)'", values("infiniband")["__infiniband_packages"]))
    used = of_the_texts() | of_docker(release) | of_driver() | of_slurm(release) | of_plans()
    used |= {
        "python3-requests",
        "apparmor",
        *infiniband,
        *values("image_relay")["__image_relay_packages"],
    }
    known = names_in(release) | set(RELEASES[release]["provided"])
    assert len(used) > 60 and sorted(used - known) == []


def test_only_these_names_are_provided_by_another_package():
    """module placed_packages accepts such a name. Each is one that a person should know of."""
    assert "libpmix2" in of_slurm("noble") and "libpmix2" not in names_in("noble")
    assert "libpmix2" not in of_slurm("jammy")
    for release, facts in RELEASES.items():
        used = of_the_texts() | of_docker(release) | of_driver() | of_slurm(release) | of_plans()
        assert used & set(facts["provided"]) == set(facts["provided"])
        assert set(facts["provided"].values()) <= names_in(release)
