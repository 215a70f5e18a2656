"""Environments with other releases of ansible-core and of the collections that galaxy.yml depends
on, kept in .cache.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache/other_versions"
# What the unit tests import and run. In the releases of requirements.txt, but what belongs to
# ansible-core comes as that wants it.
PACKAGES = [
    "hypothesis",
    "jsonschema",
    "matplotlib",
    "mock",
    "pytest",
    "pytest-mock",
    "pytest-xdist",
    "requests",
    "yamllint",
]
OF_ANSIBLE_CORE = ("ansible-core", "resolvelib")


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **options,
    )
    assert done.returncode == 0, "%s: exit code %d\n%s" % (
        command[0],
        done.returncode,
        done.stdout[-12000:],
    )
    return done.stdout


def oldest_core():
    """As a requirement for pip: the release that meta/runtime.yml names, with its fixes."""
    requires = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))[
        "requires_ansible"
    ]
    return "ansible-core~=%s" % re.fullmatch(r">=(\d+\.\d+\.\d+)", requires).group(1)


def collections_of(wheel, folder):
    """Unpack the collections that galaxy.yml depends on, and what they need, from a wheel of
    package ansible. Returns their releases.
    """
    wanted = [
        *yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["dependencies"],
        "community.library_inventory_filtering_v1",
    ]
    prefixes = tuple("ansible_collections/%s/" % name.replace(".", "/") for name in wanted)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder, [name for name in opened.namelist() if name.startswith(prefixes)])
    return {
        name: yaml.safe_load((folder / prefix / "MANIFEST.json").read_text(encoding="utf-8"))[
            "collection_info"
        ]["version"]
        for name, prefix in zip(wanted, prefixes)
    }


def newest_collections(folder):
    """Those of the newest release of package ansible, in an empty folder. Returns their
    releases.
    """
    shutil.rmtree(folder, ignore_errors=True)
    # pip would look for a release that suits this Python. The collections do not depend on it.
    run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--ignore-requires-python",
        "--only-binary",
        ":all:",
        "--dest",
        folder,
        "ansible",
    )
    wheel = next(folder.glob("ansible-*.whl"))
    releases = collections_of(wheel, folder)
    wheel.unlink()
    return releases


def environment_of(name, python, core, collections):
    """A virtual environment with a release of ansible-core.

    An older one is replaced. Returns the path of its Python.
    """
    folder = CACHE / name
    run(python, "-m", "venv", "--clear", folder)
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [
        line for line in lines if "==" in line and line.partition("==")[0] not in OF_ANSIBLE_CORE
    ]
    (folder / "constraints.txt").write_text("\n".join(pins), encoding="utf-8")
    run(
        folder / "bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        folder / "constraints.txt",
        core,
        *PACKAGES,
    )
    # Where the collections are in .venv too.
    packages = Path(
        run(
            folder / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
        ).strip()
    )
    (packages / "ansible_collections").symlink_to(
        collections / "ansible_collections", target_is_directory=True
    )
    return folder / "bin/python"
