"""Runs of roles and playbooks on one of the stand-ins, or on both."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from left_to_acceptance import pytest_collection_modifyitems
from role_again import playbook, role, run_playbook

__all__ = ["playbook", "pytest_collection_modifyitems", "role"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def among(monkeypatch):
    """A playbook on a cluster of some of the hosts, because a cluster has one release."""

    def run(hosts, name, *arguments, **variables):
        whole = Path(os.environ["MOLECULE_INVENTORY_FILE"])
        folder = whole.parent.with_name("inventory-" + hosts[0])
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole.parent, folder, symlinks=True)
        inventory = yaml.safe_load(whole.read_text(encoding="utf-8"))
        members = {host: inventory["all"]["hosts"][host] for host in hosts}
        inventory = {"all": {"hosts": members}, "cluster": {"hosts": members}}
        (folder / whole.name).write_text(
            yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8"
        )
        monkeypatch.setenv("MOLECULE_INVENTORY_FILE", str(folder / whole.name))
        done = run_playbook(ROOT / "playbooks" / name, *arguments, **variables)
        monkeypatch.undo()
        return done

    return run


@pytest.fixture
def alone(among):
    """A playbook on a cluster of one host."""
    return lambda host, name, **variables: among([host], name, **variables)


@pytest.fixture(scope="session")
def security_updates():
    """The archive publishes them."""
    copy = "cp --recursive /srv/ubuntu-later/dists /srv/ubuntu/"
    subprocess.run(["docker", "exec", "ubuntu-archive", "sh", "-c", copy], check=True)
