"""synced_folder's part on the host, run like in Ansible; the tests set the options of the action
plugin.
"""

import hashlib
import os
from pathlib import Path

import pytest
from scripted_tools import run_module

TIME = 1700000000


def run(check=False, **arguments):
    arguments = {
        "src": "wheels",
        **arguments,
        "_ansible_check_mode": check,
        "_ansible_remote_tmp": "/tmp",
    }
    return run_module("synced_folder", arguments, check)


@pytest.fixture(name="arrived")
def fixture_arrived(tmp_path):
    """Puts a file where the action plugin has carried it to; returns what it tells the module."""

    def arrived(name, content):
        path = tmp_path / ("upload-" + name)
        path.write_bytes(content)
        return [str(path), hashlib.sha256(content).hexdigest()]

    return arrived


@pytest.fixture(name="folder")
def fixture_folder(tmp_path, arrived):
    folder = tmp_path / "wheels"
    assert run(
        dest=str(folder), files={"a.whl": [3, TIME]}, uploads={"a.whl": arrived("a.whl", b"old")}
    )["changed"]
    return folder


def test_asks_for_what_it_lacks_before_it_changes_anything(tmp_path):
    first = run(dest=str(tmp_path / "wheels"), files={"a.whl": [3, TIME]})
    assert (first["changed"], first["copied"], first["wanted"]) == (True, ["a.whl"], ["a.whl"])
    assert not (tmp_path / "wheels").exists()


def test_what_has_arrived_has_its_bytes_and_its_time(folder):
    assert (folder / "a.whl").read_bytes() == b"old"
    assert int(os.stat(folder / "a.whl").st_mtime) == TIME
    again = run(dest=str(folder), files={"a.whl": [3, TIME]})
    assert (again["changed"], again["wanted"]) == (False, [])


@pytest.mark.parametrize("seen", [[4, TIME], [3, TIME + 60]])
def test_another_size_or_time_is_another_file(folder, arrived, seen):
    assert run(dest=str(folder), files={"a.whl": seen})["wanted"] == ["a.whl"]
    run(
        dest=str(folder),
        files={"a.whl": seen},
        uploads={"a.whl": arrived("a.whl", b"newer"[: seen[0]])},
    )
    assert run(dest=str(folder), files={"a.whl": seen})["changed"] is False


def test_what_is_not_asked_for_is_removed(folder):
    told = run(check=True, dest=str(folder), files={})
    assert (told["changed"], told["removed"], list(folder.iterdir())) == (
        True,
        ["a.whl"],
        [folder / "a.whl"],
    )
    assert "a.whl  3 bytes, changed 2023-11-14 22:13:20 UTC" in told["diff"]["before"]
    run(dest=str(folder), files={})
    assert list(folder.iterdir()) == []


def test_a_file_that_was_damaged_on_its_way_is_refused(folder, arrived):
    path, digest = arrived("a.whl", b"good")
    Path(path).write_bytes(b"bad!")
    result = run(dest=str(folder), files={"a.whl": [4, TIME]}, uploads={"a.whl": [path, digest]})
    assert (
        result["failed"]
        and "'a.whl' has a different checksum on this host than on the controller. Run this again"
        in result["msg"]
    )
    assert (folder / "a.whl").read_bytes() == b"old"


def test_a_folder_of_somebody_else_is_refused(folder):
    (folder / "theirs").mkdir()
    assert "theirs' is not a regular file" in run(dest=str(folder), files={})["msg"]


def test_absent_removes_the_folder(folder):
    assert run(dest=str(folder), state="absent")["changed"]
    assert not folder.exists()
    assert run(dest=str(folder), state="absent")["changed"] is False
