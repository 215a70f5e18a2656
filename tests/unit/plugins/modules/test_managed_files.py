"""managed_files, run like in Ansible: a process with its arguments as JSON."""

import os
import stat

import pytest
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import full_access


def run(*files, check=False):
    arguments = {"files": list(files), "_ansible_check_mode": check, "_ansible_remote_tmp": "/tmp"}
    return run_module("managed_files", arguments, check)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_makes_what_is_asked_and_then_nothing(tmp_path):
    files = [
        {"path": f"{tmp_path}/d", "state": "directory", "mode": "0700"},
        {"path": f"{tmp_path}/d/secret", "content": "s\n", "mode": "0600"},
        {"path": f"{tmp_path}/d/copy", "src": "/etc/hostname"},
        {"path": f"{tmp_path}/d/link", "state": "link", "src": "secret"},
    ]
    first = run(*files)
    assert first["changed_paths"] == [entry["path"] for entry in files[1:3]] + [
        files[0]["path"],
        files[3]["path"],
    ]
    assert mode(f"{tmp_path}/d") == 0o700 and mode(f"{tmp_path}/d/secret") == 0o600
    assert os.readlink(f"{tmp_path}/d/link") == "secret"
    assert run(*files)["changed"] is False


def test_absent_removes_files_links_and_folders_that_are_then_empty(tmp_path):
    for name in ("ours/inner", "filled"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("ours/inner/file", "filled/file_of_the_user"):
        (tmp_path / name).write_text("x")
    (tmp_path / "ours/link").symlink_to("/etc/hostname")
    paths = [
        f"{tmp_path}/{name}"
        for name in ("ours/inner/file", "ours/link", "ours/inner", "ours", "filled", "never_there")
    ]
    arguments = {"absent": paths, "_ansible_check_mode": False, "_ansible_remote_tmp": "/tmp"}
    told = run_module("managed_files", arguments, False)
    assert (
        told["changed_paths"] == paths[:4]
        and (tmp_path / "filled/file_of_the_user").exists()
        and not (tmp_path / "ours").exists()
    )
    assert run_module("managed_files", arguments, False)["changed"] is False


def test_absent_comes_before_files_and_a_refused_content_keeps_both(tmp_path):
    (tmp_path / "name").symlink_to("elsewhere")
    arguments = {
        "absent": [f"{tmp_path}/name"],
        "files": [
            {"path": f"{tmp_path}/name", "state": "directory"},
            {"path": f"{tmp_path}/name/b", "content": "bad"},
        ],
        "_ansible_check_mode": False,
        "_ansible_remote_tmp": "/tmp",
    }
    arguments["files"][1]["validate"] = "grep -q good %s"
    assert (
        run_module("managed_files", arguments, False)["failed"]
        and os.readlink(tmp_path / "name") == "elsewhere"
    )
    arguments["files"][1]["content"] = "good"
    assert (
        run_module("managed_files", arguments, False)["changed"]
        and (tmp_path / "name/b").read_text() == "good"
    )


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({}, "one of the following is required: files, absent"),
        ({"absent": ["relative"]}, "path is not absolute"),
    ],
)
def test_absent_refuses(arguments, text):
    told = run_module(
        "managed_files",
        dict(arguments, _ansible_check_mode=False, _ansible_remote_tmp="/tmp"),
        False,
    )
    assert told["failed"] and text in told["msg"]


def test_check_mode_tells_and_does_nothing(tmp_path):
    told = run({"path": f"{tmp_path}/f", "content": "x"}, check=True)
    assert told["changed_paths"] == [f"{tmp_path}/f"]
    assert not (tmp_path / "f").exists()


def test_one_refused_content_leaves_every_file_as_it_was(tmp_path):
    (tmp_path / "a").write_text("old")
    told = run(
        {"path": f"{tmp_path}/a", "content": "new"},
        {"path": f"{tmp_path}/b", "content": "bad", "validate": "grep -q good %s"},
    )
    assert told["failed"] and f"{tmp_path}/b" in told["msg"] and "grep -q good" in told["msg"]
    assert (tmp_path / "a").read_text() == "old"
    assert not (tmp_path / "b").exists()


def test_a_mode_is_corrected_without_touching_the_content(tmp_path):
    path = tmp_path / "f"
    path.write_text("x")
    path.chmod(0o666)
    before = path.stat().st_ino
    assert run({"path": str(path), "content": "x", "mode": "0640"})["changed"]
    assert mode(path) == 0o640 and path.stat().st_ino == before


def test_replace_false_keeps_what_is_there(tmp_path):
    (tmp_path / "f").write_text("mine")
    assert run({"path": f"{tmp_path}/f", "content": "ours", "replace": False})["changed"] is False
    assert (tmp_path / "f").read_text() == "mine"


def test_a_link_is_replaced_itself_not_what_it_points_to(tmp_path):
    (tmp_path / "target").write_text("keep")
    (tmp_path / "f").symlink_to("target")
    assert run({"path": f"{tmp_path}/f", "content": "new"})["changed"]
    assert (tmp_path / "target").read_text() == "keep" and not (tmp_path / "f").is_symlink()


def test_absent_removes_only_what_is_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/theirs").write_text("x")
    assert run({"path": f"{tmp_path}/empty", "state": "absent"})["changed"]
    refused = run({"path": f"{tmp_path}/full", "state": "absent"})
    assert refused["failed"] and "theirs" in refused["msg"]
    assert run({"path": f"{tmp_path}/empty", "state": "absent"})["changed"] is False


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"path": "relative", "content": "x"}, "absolute"),
        ({"path": "/tmp/x"}, "content or src, and not both; set one of them"),
        (
            {"path": "/tmp/x", "content": "x", "src": "/etc/hostname"},
            "content or src, and not both; set one of them",
        ),
        ({"path": "/tmp/x", "state": "link"}, "its target"),
        ({"path": "/tmp/x", "state": "absent", "content": "x"}, "takes neither content nor src"),
        ({"path": "/tmp", "content": "x"}, "is a directory"),
        ({"path": "/tmp/never-there/x", "src": "/nonexistent"}, "/nonexistent"),
        ({"path": "/tmp/trainyard-never", "content": "x", "validate": "true"}, "%s"),
    ],
)
def test_bad_entries_are_refused_by_name(entry, words):
    told = run(entry)
    assert told["failed"] and words in told["msg"]


def test_check_mode_of_removing_a_folder_with_what_lies_in_it(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("")
    files = [
        {"path": f"{tmp_path}/d/f", "state": "absent"},
        {"path": f"{tmp_path}/d", "state": "absent"},
    ]
    told = run(*files, check=True)
    assert (
        told["changed_paths"] == [f"{tmp_path}/d/f", f"{tmp_path}/d"]
        and (tmp_path / "d/f").exists()
    )
    (tmp_path / "d/other").write_text("")
    assert "is not empty: it still contains other" in run(*files, check=True)["msg"]
    kept = run(files[0], dict(files[1], leave_filled=True), check=True)
    assert "msg" not in kept and kept["changed_paths"] == [f"{tmp_path}/d/f"]
    (tmp_path / "d/other").unlink()
    assert run(*files)["changed_paths"] == told["changed_paths"] and not (tmp_path / "d").exists()


def test_a_new_folder_leaves_a_default_access_list_whole(tmp_path):
    """The shared folder's list lets a root that NFS has squashed write: it must be able to in what
    is made there, too.
    """
    os.setxattr(tmp_path, "system.posix_acl_default", full_access(b"", 0o755, 4242, True))
    run(
        {"path": f"{tmp_path}/open", "state": "directory"},
        {"path": f"{tmp_path}/shut", "state": "directory", "mode": "0755"},
    )
    # With a list the group's bits are the most that the list's users get.
    assert (mode(f"{tmp_path}/open") & 0o070, mode(f"{tmp_path}/shut") & 0o070) == (0o070, 0o050)


def test_what_is_not_there_may_stay_away(tmp_path):
    entry = {"path": f"{tmp_path}/f", "content": "new", "create": False}
    assert run(entry)["changed"] is False and not (tmp_path / "f").exists()
    (tmp_path / "f").write_text("old")
    assert (
        run(entry)["changed_paths"] == [f"{tmp_path}/f"] and (tmp_path / "f").read_text() == "new"
    )
