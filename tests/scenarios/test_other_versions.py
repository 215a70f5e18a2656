"""The oldest and the newest supported ansible-core, and the newest releases of the collections that
galaxy.yml depends on.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from built_collection import build, sanity
from molecule_runs import MoleculeRuns
from new_python import new_python
from other_versions import CACHE, ROOT, environment_of, newest_collections, oldest_core, run
from test_scenarios import judge

pytestmark = pytest.mark.acceptance


@pytest.fixture(name="newest", scope="module")
def _newest():
    """A folder with the newest collections, and their releases."""
    folder = CACHE / "newest_collections"
    return folder, newest_collections(folder)


def unit_tests(python, *arguments):
    """Run them as make does, with the programs of this environment."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "PYTEST_"))
    }
    # The pins are those of .venv, not of this environment.
    pins = "--deselect=tests/unit/lab/test_pins.py::test_every_package_of_the_set_up_is_pinned"
    return run(
        python,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not acceptance",
        pins,
        *arguments or ["tests/unit"],
        cwd=ROOT,
        env=dict(environment, PATH="%s:%s" % (python.parent, os.environ["PATH"])),
    )


def test_oldest_ansible_core():
    """With the pinned collections. Their releases still support it."""
    python = environment_of(
        "oldest_core", sys.executable, oldest_core(), Path(sysconfig.get_path("purelib"))
    )
    print(run(python, "-c", "import ansible; print('ansible-core', ansible.__version__)"))
    unit_tests(python)


@pytest.mark.python312
def test_newest_ansible_core(newest):
    """With the newest collections."""
    folder, releases = newest
    python = environment_of("newest_core", new_python(), "ansible-core", folder)
    print(run(python, "-c", "import ansible; print('ansible-core', ansible.__version__)"), releases)
    unit_tests(python)


# make lint runs it with the release of requirements.txt. Each release runs on its own versions of
# Python, and the first two do not run on 3.13.
SANITY = [
    pytest.param("2.17"),
    pytest.param("2.18"),
    pytest.param("2.20", marks=pytest.mark.python312),
    pytest.param("2.21", marks=pytest.mark.python312),
]


@pytest.mark.parametrize("core", SANITY)
def test_sanity(core, tmp_path):
    python = environment_of(
        "core_%s" % core,
        sys.executable if core in ("2.17", "2.18") else new_python(),
        "ansible-core~=%s.0" % core,
        Path(sysconfig.get_path("purelib")),
    )
    sanity(tmp_path, build(tmp_path), python)


def test_galaxy_yml_accepts_the_newest_collections(newest):
    from packaging.specifiers import SpecifierSet

    accepted = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["dependencies"]
    assert [
        (name, release)
        for name, release in newest[1].items()
        if name in accepted and not SpecifierSet(accepted[name]).contains(release)
    ] == []


# Those that use modules of these collections: docker_container, and in vm ufw, firewalld and mount.
@pytest.mark.scenario
@pytest.mark.parametrize("name", ["training_container", "vm"])
def test_scenario_with_the_newest_collections(name, newest, molecule_runs: MoleculeRuns):
    folder, releases = newest
    print(releases)
    # Python's path is searched before the site-packages of .venv, where the pinned ones are.
    log = "%s_newest_collections" % name
    judge(name, *molecule_runs.again(name, log, PYTHONPATH=str(folder)), log=log)
