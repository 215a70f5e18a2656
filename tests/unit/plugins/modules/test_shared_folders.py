"""shared_folders, run as Ansible runs it, on folders of this machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

DEV = Path(__file__).parents[4] / ".dev"


def run(tmp_path, folders, state="present", check=False):
    arguments = {"folders": folders, "record": str(tmp_path / "record.json"), "state": state, "_ansible_check_mode": check, "_ansible_remote_tmp": "/tmp"}
    done = subprocess.run([sys.executable, "-m", "ansible_collections.trainyard.gpu.plugins.modules.shared_folders"], env=dict(os.environ, PYTHONPATH=str(DEV)),
                          input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}), capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


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
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    assert subprocess.run([sys.executable, "-c", write, str(inner / "file")], check=False).returncode == 0
    run(tmp_path, [{"path": str(share), "mode": "0755"}])


@pytest.mark.parametrize("folder, said", [({"path": "relative"}, "is not absolute"), ({"path": "/x", "mode": "rwx"}, "no octal number")])
def test_bad_input_is_named(tmp_path, folder, said):
    assert said in run(tmp_path, [folder])["msg"]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "share").write_text("")
    assert "is no folder" in run(tmp_path, [{"path": str(tmp_path / "share")}])["msg"]
