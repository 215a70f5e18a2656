"""shared_folders, run like in Ansible, on folders of this machine."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from scripted_tools import run_module
from ansible.module_utils import basic
from module_arguments import patch_module_args

from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import access_list, full_access
from ansible_collections.trainyard.gpu.plugins.modules import shared_folders


def run(tmp_path, folders, state="present", check=False):
    arguments = {
        "folders": folders,
        "record": str(tmp_path / "record.json"),
        "state": state,
        "_ansible_check_mode": check,
        "_ansible_remote_tmp": "/tmp",
    }
    return run_module("shared_folders", arguments, check)


def mode(path):
    return "%04o" % stat.S_IMODE(path.stat().st_mode)


def test_makes_what_is_missing_and_takes_it_away_again(tmp_path):
    share = tmp_path / "data1" / "share"
    asked = [{"path": str(share), "mode": "2775"}]
    assert run(tmp_path, asked, check=True)["changed"] is True
    assert not share.exists()
    assert run(tmp_path, asked)["changed_paths"] == [str(share)]
    assert mode(share) == "2775"
    assert run(tmp_path, asked)["changed"] is False
    result = run(tmp_path, [], "former")
    assert result["changed"] is True and not (tmp_path / "data1").exists()
    assert not (tmp_path / "record.json").exists()
    assert run(tmp_path, [], "former")["changed"] is False


def test_what_holds_something_stays(tmp_path):
    share = tmp_path / "share"
    run(tmp_path, [{"path": str(share)}])
    (share / "result").write_text("of a user")
    result = run(tmp_path, [], "former")
    assert result["kept"] == [str(share)] and (share / "result").exists()


def test_a_folder_of_the_user_s_is_as_it_was_before(tmp_path):
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o750)
    asked = [{"path": str(share), "mode": "2770", "owner": 2001, "group": 3001}]
    assert run(tmp_path, asked)["changed"] is True
    assert (mode(share), share.stat().st_uid, share.stat().st_gid) == ("2770", 2001, 3001)
    # What was there when the first run came counts, not what an earlier run has left.
    run(tmp_path, [{"path": str(share), "mode": "0700"}])
    assert run(tmp_path, [], "former")["changed"] is True
    assert (mode(share), share.stat().st_uid, share.stat().st_gid) == ("0750", 0, 0)


def open_to_all(folder):
    """Let each user of the machine reach a folder. /tmp may be above it, and keeps its own mode."""
    for each in (folder, *folder.parents):
        if not each.stat().st_mode & stat.S_ISVTX:
            each.chmod(0o755)


def test_one_more_user_may_do_everything_in_it(tmp_path):
    share = tmp_path / "share"
    asked = [{"path": str(share), "mode": "2775", "full_access_uid": 65534}]
    result = run(tmp_path, asked)
    if "no POSIX access lists" in result.get("msg", ""):
        assert result["failed"]
        return
    assert run(tmp_path, asked)["changed"] is False
    inner = share / "made" / "later"
    inner.mkdir(parents=True)
    write = "import os, sys; os.setgid(65534); os.setuid(65534); open(sys.argv[1], 'w').close(); os.unlink(sys.argv[1])"
    open_to_all(tmp_path)
    assert (
        subprocess.run([sys.executable, "-c", write, str(inner / "file")], check=False).returncode
        == 0
    )
    run(tmp_path, [{"path": str(share), "mode": "0755"}])


@pytest.fixture
def share(tmp_path):
    """A share with the list that lets root of all hosts write, and in it the tree of an earlier
    release.
    """
    asked = [{"path": str(tmp_path / "share"), "mode": "2775", "full_access_uid": 65534}]
    assert "failed" not in run(tmp_path, asked)
    person = tmp_path / "share" / "user" / "anna"
    (person / "deep" / "er").mkdir(parents=True)
    (person / "deep" / "file").write_text("", encoding="ascii")
    (person / "link").symlink_to("/etc")
    os.mkfifo(person / "deep" / "pipe")
    return tmp_path / "share"


def of_nobody(*paths):
    """The paths whose lists have an entry of user 65534."""
    found = []
    for path in paths:
        for name in (shared_folders.ACCESS, shared_folders.DEFAULT):
            if any(
                owner == 65534
                for _tag, _permissions, owner in access_list(shared_folders.read_list(path, name))
            ):
                found.append(path.name)
    return sorted(set(found))


PERSON = {"owner": 2001, "group": 2001, "mode": "0700", "without_uid": 65534}


def test_a_folder_of_a_person_below_the_share_is_closed_for_root_of_the_hosts(tmp_path, share):
    anna, ben = share / "user" / "anna", share / "user" / "ben"
    below = [anna, anna / "deep", anna / "deep" / "er", anna / "deep" / "file", share / "user"]
    assert of_nobody(*below) == ["anna", "deep", "er", "file", "user"]
    asked = [
        {"path": str(share / "user"), "without_uid": 65534},
        dict(PERSON, path=str(anna)),
        dict(PERSON, path=str(ben)),
    ]
    assert run(tmp_path, asked, check=True)["changed"] and of_nobody(anna) == ["anna"]
    assert run(tmp_path, asked)["changed_paths"] == [str(share / "user"), str(anna), str(ben)]
    assert of_nobody(*below, ben) == [] and of_nobody(share) == ["share"]
    assert (mode(anna), mode(ben), mode(share)) == ("0700", "0700", "2775")
    assert run(tmp_path, asked)["changed"] is False
    # The umask of the person counts again.
    make = "import os, sys; os.setgid(2001); os.setuid(2001); os.umask(0o077); os.mkdir(sys.argv[1]); open(sys.argv[1] + '/key', 'w').close()"
    open_to_all(tmp_path)
    subprocess.run([sys.executable, "-c", make, str(ben / "ssh")], check=True)
    assert (mode(ben / "ssh"), mode(ben / "ssh" / "key")) == ("0700", "0600")


def test_entries_of_the_site_in_a_folder_of_a_person_stay(tmp_path, share):
    anna = share / "user" / "anna"
    site = full_access(os.getxattr(anna, shared_folders.DEFAULT), 0o700, 1234, True)
    os.setxattr(anna, shared_folders.DEFAULT, site)
    asked = [dict(PERSON, path=str(anna))]
    run(tmp_path, asked)
    assert of_nobody(anna) == []
    assert [
        owner
        for tag, _permissions, owner in access_list(os.getxattr(anna, shared_folders.DEFAULT))
        if tag == 2
    ] == [1234]
    assert run(tmp_path, asked)["changed"] is False


def test_a_run_that_was_cut_off_begins_again(tmp_path, share, monkeypatch):
    anna = share / "user" / "anna"
    found = shared_folders.state_of(str(anna))
    shared_folders.free_tree(str(anna), found, 65534)
    assert of_nobody(anna) == ["anna"], "its own entry says that the work is not finished"
    assert shared_folders.read_list(anna, shared_folders.DEFAULT) == b""


@pytest.mark.parametrize(
    "folder, said",
    [
        ({"path": "relative"}, "is not an absolute path"),
        ({"path": "/x", "mode": "rwx"}, "give an octal number"),
    ],
)
def test_bad_input_is_named(tmp_path, folder, said):
    assert said in run(tmp_path, [folder])["msg"]


def test_a_link_to_a_folder_of_the_system_is_refused_before_anything_is_changed(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    result = run(
        tmp_path,
        [
            {"path": str(tmp_path / "share")},
            {"path": str(tmp_path / "link" / "trainyard-share"), "mode": "2775"},
        ],
        check=True,
    )
    assert (
        "leads by a symbolic link to '/etc/trainyard-share'" in result["msg"]
        and not (tmp_path / "share").exists()
    )
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/srv/trainyard-no-such-folder")
    assert run(tmp_path, [{"path": str(tmp_path / "link" / "share")}], check=True)["msg"].endswith(
        "link/share'"
    )


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "share").write_text("")
    assert "is not a folder" in run(tmp_path, [{"path": str(tmp_path / "share")}])["msg"]


# --- an NFS server that takes root for another user ---
# Of the kernel it is the same question: this root is user 65534 to the one who owns the folders.
# Only the file system's type is made up.

CLONE_NEWUSER = 0x10000000
IDS = {"uid": (2001, 2002), "gid": (2001, 2002, 3001)}


@pytest.fixture(name="nas")
def fixture_nas(monkeypatch):
    """Run the module as such a root.

    Its folders are real root's, below a tree that everybody may pass.
    """
    root = Path(tempfile.mkdtemp(prefix="trainyard-nas-", dir="/tmp"))
    root.chmod(0o755)
    (root / "placed").mkdir()
    (root / "placed").chmod(0o777)
    mounts = root / "mountinfo"
    mounts.write_text(
        "1 1 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / %s rw - nfs4 nas.example:/export/home rw\n"
        % (root / "tree"),
        encoding="utf-8",
    )
    (root / "tree").mkdir()
    monkeypatch.setattr(shared_folders.nfs_place, "__defaults__", (str(mounts),))

    def child(ready, answer, folders, state):
        os.close(answer[0])
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
            os.write(answer[1], json.dumps({"unshare": os.strerror(ctypes.get_errno())}).encode())
            os._exit(0)
        os.write(answer[1], b"\n")
        os.read(ready, 1)
        os.setgroups([0])
        os.setgid(0)
        os.setuid(0)
        told = []
        monkeypatch.setattr(
            basic.AnsibleModule, "exit_json", lambda self, **result: told.append(result)
        )
        monkeypatch.setattr(
            basic.AnsibleModule,
            "fail_json",
            lambda self, msg, **result: told.append(dict(result, failed=True, msg=msg)),
        )
        with patch_module_args(
            {
                "folders": folders,
                "record": str(root / "placed/record.json"),
                "state": state,
                "_ansible_remote_tmp": str(root / "placed"),
            }
        ):
            shared_folders.main()
        os.write(answer[1], json.dumps(told[0]).encode())
        os._exit(0)

    def run(*folders, state="present"):
        ready, answer = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            try:
                child(ready[0], answer, list(folders), state)
            finally:
                os._exit(1)
        os.close(answer[1])
        with os.fdopen(answer[0], encoding="utf-8") as stream:
            first = stream.readline()
            for kind, ids in IDS.items() if first == "\n" else ():
                Path("/proc/%d/%s_map" % (pid, kind)).write_text(
                    "0 65534 1\n" + "".join("%d %d 1\n" % (number, number) for number in ids),
                    encoding="utf-8",
                )
            os.write(ready[1], b"x")
            said = first.strip() + stream.read()
        os.waitpid(pid, 0)
        told = json.loads(said)
        assert "unshare" not in told, "the kernel gives no user namespaces: %s" % told["unshare"]
        return told

    run.tree, run.record = root / "tree", root / "placed/record.json"
    yield run
    shutil.rmtree(root)


ANNA = {"owner": 2001, "group": 3001, "mode": "0700"}


def test_a_server_that_squashes_root_says_no_and_its_administrator_is_told_what_to_do(nas):
    asked = [
        {"path": str(nas.tree)},
        dict(ANNA, path=str(nas.tree / "anna")),
        {"path": str(nas.tree / "v s"), "owner": 0, "group": 3001, "mode": "2770"},
    ]
    told = nas(*asked)
    assert told["failed"] and told["changed_paths"] == [] and not nas.record.exists()
    assert told["commands"] == {
        "nas.example": [
            "mkdir -p /export/home/anna && chown 2001:3001 /export/home/anna && chmod 0700 /export/home/anna",
            "mkdir -p '/export/home/v s' && chown 0:3001 '/export/home/v s' && chmod 2770 '/export/home/v s'",
        ]
    }
    assert (
        "2 folders cannot be created" in told["msg"]
        and "root_squash" in told["msg"]
        and "chown 2001:3001 /export/home/anna" in told["msg"]
    )
    # The administrator does it.
    for commands in told["commands"].values():
        for command in commands:
            subprocess.run(command.replace("/export/home", str(nas.tree)), shell=True, check=True)
    assert nas(*asked) == {
        "changed": False,
        "changed_paths": [],
        "kept": [],
        "unprotected": [],
        "diff": [],
    }
    # A wrong group is nothing that is accepted.
    os.chown(nas.tree / "v s", 0, 2002)
    assert len(nas(*asked)["commands"]["nas.example"]) == 1


def test_a_folder_that_the_nfs_client_still_remembers_as_absent(nas, monkeypatch):
    """The administrator made it on the server.

    The client asks again only when mkdir is told that it exists.
    """
    asked = [{"path": str(nas.tree)}, dict(ANNA, path=str(nas.tree / "anna"))]
    subprocess.run(
        "mkdir {0} && chown 2001:3001 {0} && chmod 0700 {0}".format(nas.tree / "anna"),
        shell=True,
        check=True,
    )
    real_mkdir, real_lexists, forgotten = os.mkdir, os.path.lexists, {str(nas.tree / "anna")}

    def mkdir(path, *mode):
        forgotten.discard(path)
        real_mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(
        os.path, "lexists", lambda path: path not in forgotten and real_lexists(path)
    )
    assert nas(*asked) == {
        "changed": False,
        "changed_paths": [],
        "kept": [],
        "unprotected": [],
        "diff": [],
    }
    assert not nas.record.exists()


def test_a_missing_folder_is_made_as_its_person_where_the_server_lets_them(nas):
    nas.tree.chmod(0o1777)
    asked = dict(ANNA, path=str(nas.tree / "anna"))
    assert nas(asked)["changed_paths"] == [asked["path"]]
    assert (
        mode(nas.tree / "anna"),
        (nas.tree / "anna").stat().st_uid,
        (nas.tree / "anna").stat().st_gid,
    ) == ("0700", 2001, 3001)
    assert nas(asked)["changed"] is False
    # What root may not even look into stays. (Of anna's, this root is more than a server's.)
    os.chown(nas.tree / "anna", 0, 0)
    assert (
        nas(state="former")["kept"] == [asked["path"]]
        and (nas.tree / "anna").is_dir()
        and not nas.record.exists()
    )


def test_what_a_squashed_root_makes_where_everybody_may_is_made_again_by_its_person(
    nas, monkeypatch
):
    """To the server root is its nobody (here: 2002), who may make a folder there and may not give
    it away.
    """
    nas.tree.chmod(0o1777)
    real_mkdir, real_chown = os.mkdir, os.chown

    def mkdir(path, *mode):
        real_mkdir(path, *mode)
        if os.geteuid() == 0:
            real_chown(path, 2002, 2002)

    def chown(*_arguments):
        raise PermissionError

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "chown", chown)
    asked = dict(ANNA, path=str(nas.tree / "anna"))
    assert nas(asked)["changed_paths"] == [asked["path"]]
    assert (
        mode(nas.tree / "anna"),
        (nas.tree / "anna").stat().st_uid,
        (nas.tree / "anna").stat().st_gid,
    ) == ("0700", 2001, 3001)


def test_a_mode_is_set_by_the_person_whose_folder_it_is(nas):
    (nas.tree / "anna").mkdir(0o755)
    os.chown(nas.tree / "anna", 2001, 3001)
    assert nas(dict(ANNA, path=str(nas.tree / "anna")))["changed"] is True
    assert mode(nas.tree / "anna") == "0700"


def test_a_refusal_that_is_not_a_server_s_is_told_as_it_is(nas):
    os.chmod(nas.tree.parent, 0o755)
    told = nas(dict(ANNA, path=str(nas.tree.parent / "local" / "anna")))
    assert told["failed"] and "Permission denied" in told["msg"] and "commands" not in told
