# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""clean-store on layers with rights, on real files."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[4] / "roles/job_container/files/clean_store.py"
SPEC = importlib.util.spec_from_file_location("clean_store", FILE)
clean_store = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(clean_store)
# As setcap cap_setuid=ep writes it.
CAP_SETUID = bytes.fromhex("0100000280000000000000000000000000000000")


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def store(tmp_path):
    """A store as podman leaves it with umask 077: the folder of the layer is closed."""
    top = tmp_path / "images"
    diff = top / "overlay" / "layer" / "diff"
    (diff / "usr" / "bin").mkdir(parents=True)
    (top / "overlay" / "l").mkdir()
    (top / "overlay" / "l" / "LINK").symlink_to("../layer/diff")
    (top / "overlay-images").mkdir()
    (top / "overlay-images" / "images.json").write_text("[]", encoding="ascii")
    program = diff / "usr" / "bin" / "program"
    program.write_text("#!/bin/sh\n", encoding="ascii")
    program.chmod(0o6775)
    (diff / "usr" / "open").mkdir()
    (diff / "usr" / "open").chmod(0o3777)
    (diff / "usr" / "secret").write_text("", encoding="ascii")
    (diff / "usr" / "secret").chmod(0o600)
    (diff / "link").symlink_to("/etc/shadow")
    for path in (top, top / "overlay", top / "overlay" / "layer", top / "overlay-images"):
        path.chmod(0o700)
    (top / "overlay-images" / "images.json").chmod(0o600)
    return top


def test_people_can_read_everything_and_get_no_rights(store):
    diff = store / "overlay" / "layer" / "diff"
    clean_store.clean_store(str(store))
    assert mode(diff / "usr" / "bin" / "program") == 0o755
    assert mode(diff / "usr" / "open") == 0o1755
    assert mode(diff / "usr" / "secret") == 0o644
    opened = [
        store,
        store / "overlay",
        store / "overlay" / "layer",
        store / "overlay" / "l",
        store / "overlay-images",
    ]
    assert {mode(path) for path in opened} == {0o755}
    assert mode(store / "overlay-images" / "images.json") == 0o644
    assert clean_store.is_marked(str(store))


def test_capabilities_go(store):
    program = store / "overlay" / "layer" / "diff" / "usr" / "bin" / "program"
    os.setxattr(program, "security.capability", CAP_SETUID)
    clean_store.clean_store(str(store))
    assert "security.capability" not in os.listxattr(program)


def test_devices_are_closed_and_marks_of_removed_files_stay(store):
    diff = store / "overlay" / "layer" / "diff"
    for name, number in (("disk", os.makedev(7, 0)), ("removed", os.makedev(0, 0))):
        os.mknod(diff / name, 0o666 | stat.S_IFCHR, number)
    clean_store.clean_store(str(store))
    assert (mode(diff / "disk"), mode(diff / "removed")) == (0, 0o644)


def test_a_layer_is_closed_until_all_of_it_is_clean(store, monkeypatch):
    program = store / "overlay" / "layer" / "diff" / "usr" / "bin" / "program"
    seen = []
    real = os.chmod

    def watched(path, wanted):
        if str(path).startswith(str(store / "overlay")) and program.exists():
            reachable = all(
                mode(folder) & 0o001
                for folder in (store, store / "overlay", store / "overlay" / "layer")
            )
            seen.append(reachable and bool(mode(program) & 0o6000))
        real(path, wanted)

    monkeypatch.setattr(clean_store.os, "chmod", watched)
    clean_store.clean_store(str(store))
    assert seen != [] and True not in seen


def test_only_new_layers_are_looked_at_in_a_clean_store(store, monkeypatch):
    clean_store.clean_store(str(store))
    new = store / "overlay" / "new"
    new.mkdir(mode=0o700)
    trees = []
    monkeypatch.setattr(
        clean_store, "clean_tree", lambda path: trees.append(os.path.relpath(path, store))
    )
    clean_store.clean_store(str(store))
    assert sorted(trees) == ["overlay-images", "overlay/new"]


def test_a_store_of_an_earlier_release_is_cleaned_as_a_whole(store):
    for path in (store, store / "overlay", store / "overlay" / "layer"):
        path.chmod(0o755)
    clean_store.clean_store(str(store))
    assert mode(store / "overlay" / "layer" / "diff" / "usr" / "bin" / "program") == 0o755


def test_a_tree_deeper_than_the_recursion_of_python(store):
    here = os.getcwd()
    diff = store / "overlay" / "layer" / "diff"
    try:
        os.chdir(diff)
        for _level in range(1200):
            os.mkdir("d")
            os.chdir("d")
        clean_store.clean_store(str(store))
    finally:
        os.chdir(here)
        # pytest cannot remove it.
        subprocess.run(["rm", "-rf", str(diff)], check=True)


def test_the_mark_is_the_one_that_the_module_knows():
    from ansible_collections.trainyard.gpu.plugins.module_utils import _job_container

    assert clean_store.VERSION == _job_container.CLEAN_MARK
    assert _job_container.store_is_open("1\n", [0o755, 0o40711]) and _job_container.store_is_open(
        "1\n", []
    )
    assert not _job_container.store_is_open(
        "1\n", [0o755, 0o700]
    ) and not _job_container.store_is_open("", [0o755])
