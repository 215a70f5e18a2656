"""What a user gets from Galaxy: the built tarball, installed into an empty folder, run from an
empty folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

INVENTORY = """\
---
cluster:
  hosts:
    node-a: {ansible_host: 192.0.2.11}
    node-b: {ansible_host: 192.0.2.12}
  vars:
    cluster_network: 192.0.2.0/24
"""


def run(*command, cwd, env=None):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifact")
    done = run(BIN / "ansible-galaxy", "collection", "build", "--output-path", folder, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    return next(folder.glob("trainyard-gpu-*.tar.gz"))


@pytest.fixture(scope="module")
def installed(tarball, tmp_path_factory):
    """A folder with nothing in it, and the environment of a user who has only installed the
    tarball.
    """
    empty, collections = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("collections")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "MOLECULE_"))
    }
    # The collections that galaxy.yml depends on come with the virtual environment; its own comes
    # from the tarball alone.
    environment.update(
        ANSIBLE_COLLECTIONS_PATH="%s:%s" % (collections, sysconfig.get_path("purelib")),
        ANSIBLE_NOCOLOR="1",
        HOME=str(tmp_path_factory.mktemp("home")),
    )
    done = run(
        BIN / "ansible-galaxy",
        "collection",
        "install",
        "--no-deps",
        "--collections-path",
        collections,
        tarball,
        cwd=empty,
        env=environment,
    )
    assert done.returncode == 0, done.stdout
    return empty, environment


def playbook(installed, tmp_path, inventory, *arguments):
    empty, environment = installed
    file = tmp_path / "hosts.yml"
    file.write_text(inventory, encoding="utf-8")
    return run(
        BIN / "ansible-playbook",
        "trainyard.gpu.site",
        "-i",
        file,
        *arguments,
        cwd=empty,
        env=environment,
    )


def test_contents(tarball):
    with tarfile.open(tarball) as opened:
        names = [name.removeprefix("./") for name in opened.getnames()]
    top = {name.partition("/")[0] for name in names} - {""}
    assert top <= {
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "FILES.json",
        "LICENSE",
        "MANIFEST.json",
        "README.md",
        "changelogs",
        "docs",
        "meta",
        "playbooks",
        "plugins",
        "roles",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    for role in (ROOT / "roles").iterdir():
        assert "roles/%s/tasks/main.yml" % role.name in names
    for file in (ROOT / "playbooks").glob("**/*.yml"):
        assert str(file.relative_to(ROOT)) in names


def test_links_lead_to_files_of_the_artifact(tarball):
    """Galaxy shows README, and users read the other documents where the collection is installed.

    What only the repository has is linked by its address.
    """
    with tarfile.open(tarball) as opened:
        members = {member.name.removeprefix("./"): member for member in opened.getmembers()}
        documents = {
            name: opened.extractfile(member).read().decode("utf-8")
            for name, member in members.items()
            if name.endswith(".md")
        }
    links = [
        (name, link)
        for name, text in documents.items()
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        if not re.match("[a-z]+:", link)
    ]
    assert ("README.md", "docs/modules.md") in links and (
        "README.md",
        "docs/images/report.png",
    ) in links
    assert [
        (name, link)
        for name, link in links
        if os.path.normpath(os.path.join(os.path.dirname(name), link)) not in members
    ] == []


def test_the_picture_of_a_report_is_small(tarball):
    with tarfile.open(tarball) as opened:
        picture = opened.extractfile("docs/images/report.png").read()
    assert picture.startswith(b"\x89PNG") and 20_000 < len(picture) <= 200_000


def test_site_is_found_from_an_empty_folder(installed, tmp_path):
    done = playbook(installed, tmp_path, INVENTORY, "--list-tasks")
    assert done.returncode == 0, done.stdout
    for role in (
        "preflight",
        "docker_engine",
        "shared_storage",
        "training_image",
        "training_container",
        "training_sshd",
        "verify",
    ):
        assert role in done.stdout
    assert "[WARNING]" not in done.stdout


def public_names():
    """Return the names of what users can read with ansible-doc, by its type."""
    plugins = ROOT / "plugins"
    return {
        "module": {path.stem for path in (plugins / "modules").glob("*.py")},
        "filter": {path.stem for path in (plugins / "filter").glob("*.py")},
        "lookup": {path.stem for path in (plugins / "lookup").glob("*.py")},
        "role": {path.name for path in (ROOT / "roles").iterdir()},
    }


def test_a_user_has_only_the_file(installed, tmp_path):
    """Installed into an empty environment, the file checks README's inventory and documents
    everything.
    """
    empty, environment = installed
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(re.search(r"```yaml\n(cluster:\n.*?)```", readme, re.DOTALL).group(1))
    command = (BIN / "ansible-playbook", "trainyard.gpu.inventory_check", "-i", inventory)
    done = run(*command, cwd=empty, env=environment)
    assert done.returncode == 0, done.stdout
    assert "The input is valid" in done.stdout
    for kind, names in public_names().items():
        assert names, kind
        full = sorted("trainyard.gpu." + name for name in names)
        done = run(BIN / "ansible-doc", "--type", kind, "--json", *full, cwd=empty, env=environment)
        assert done.returncode == 0, done.stdout
        documents = json.loads(done.stdout)
        assert sorted(documents) == full
        assert [name for name, document in documents.items() if not document] == []


@pytest.mark.parametrize(
    "inventory, blamed",
    [
        ("---\nall:\n  hosts:\n    node-a: {ansible_host: 192.0.2.11}\n", "cluster"),
        (INVENTORY + "    cluster_ssh_port: 70000\n", "cluster_ssh_port"),
        (
            INVENTORY.replace("192.0.2.12", "192.0.2.11").replace(
                "ansible_host", "cluster_address"
            ),
            "cluster_address",
        ),
    ],
    ids=["no group cluster", "port 70000", "an address twice"],
)
def test_bad_input_is_refused(installed, tmp_path, inventory, blamed):
    """The refusal comes from the controller alone: nobody answers at these addresses."""
    done = playbook(installed, tmp_path, inventory)
    assert done.returncode == 2, done.stdout
    assert blamed in done.stdout
    assert "UNREACHABLE" not in done.stdout
    assert "Traceback" not in done.stdout
