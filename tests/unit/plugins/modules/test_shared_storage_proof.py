"""shared_storage_proof, run like in Ansible."""

import json
import os
import subprocess

import pytest
from scripted_tools import run_module


def run(path, step, check=False, **arguments):
    arguments = {
        "path": str(path),
        "step": step,
        **arguments,
        "_ansible_check_mode": check,
        "_ansible_remote_tmp": "/tmp",
    }
    return run_module("shared_storage_proof", arguments, check)


def test_what_one_writes_the_other_reads_and_nothing_is_left(tmp_path):
    written = [run(tmp_path, "write", name=name) for name in ("a", "b")]
    assert [(told["cause"], told["changed"]) for told in written] == [("", False), ("", False)]
    seen = run(tmp_path, "read", files=[told["proof"] for told in written])["seen"]
    assert [(entry["name"], entry["cause"]) for entry in seen] == [("a", ""), ("b", "")]
    run(tmp_path, "remove")
    assert not list(tmp_path.iterdir())


def test_the_only_reader_takes_what_it_has_seen(tmp_path):
    a, b = [run(tmp_path, "write", name=name)["proof"] for name in ("a", "b")]
    assert run(tmp_path, "read", files=[b], take=True)["seen"][0]["cause"] == ""
    assert [file.name for file in (tmp_path / ".trainyard/proof").iterdir()] == [a["file"]]
    assert run(tmp_path, "read", files=[a], take=True)["seen"][0]["cause"] == ""
    assert not list(tmp_path.iterdir())


def test_what_is_not_as_it_should_be_is_not_taken(tmp_path):
    proof = run(tmp_path, "write", name="a")["proof"]
    file = tmp_path / ".trainyard/proof" / proof["file"]
    file.write_bytes(b"stale")
    assert (
        run(tmp_path, "read", files=[proof], take=True, timeout=1)["seen"][0]["cause"] == "differs"
    )
    assert file.read_bytes() == b"stale"


def test_check_mode_takes_nothing(tmp_path):
    proof = run(tmp_path, "write", name="a")["proof"]
    assert run(tmp_path, "read", files=[proof], take=True, check=True)["seen"][0]["cause"] == ""
    assert (tmp_path / ".trainyard/proof" / proof["file"]).exists()


def test_folder_that_is_not_shared(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    proof = run(tmp_path / "a", "write", name="a")["proof"]
    run(tmp_path / "b", "write", name="b")
    assert run(tmp_path / "b", "read", files=[proof], timeout=1)["seen"][0]["cause"] == "missing"


def test_content_that_differs(tmp_path):
    proof = run(tmp_path, "write", name="a")["proof"]
    (tmp_path / ".trainyard/proof" / proof["file"]).write_bytes(b"stale")
    assert run(tmp_path, "read", files=[proof], timeout=1)["seen"][0]["cause"] == "differs"


def test_file_that_comes_late_is_waited_for(tmp_path):
    proof = run(tmp_path, "write", name="a")["proof"]
    file = tmp_path / ".trainyard/proof" / proof["file"]
    hidden = file.rename(tmp_path / "hidden")
    with subprocess.Popen(["sh", "-c", f"sleep 3; mv {hidden} {file}"]):
        seen = run(tmp_path, "read", files=[proof])["seen"][0]
    assert seen["cause"] == "" and seen["seconds"] > 0.4


def test_jobs_stay_and_the_rest_of_an_interrupted_proof_goes(tmp_path):
    (tmp_path / ".trainyard/jobs").mkdir(parents=True)
    first = run(tmp_path, "write", name="a")["proof"]["file"]
    run(tmp_path, "write", name="ab")
    run(tmp_path, "write", name="a")
    names = [file.name for file in (tmp_path / ".trainyard/proof").iterdir()]
    assert len(names) == 2 and first not in names
    run(tmp_path, "remove")
    assert [path.name for path in (tmp_path / ".trainyard").iterdir()] == ["jobs"]


def test_check_mode_writes_nothing(tmp_path):
    told = run(tmp_path, "write", name="a", check=True)
    assert (told["cause"], told["proof"]) == ("", {}) and not list(tmp_path.iterdir())


def test_folder_that_is_missing_or_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "none", "write", name="a")["cause"] == "missing"
    assert run(tmp_path / "file", "write", name="a")["cause"] == "no_directory"
    assert not run(tmp_path / "none", "remove").get("failed")


def test_folder_that_refuses_to_be_written():
    told = run("/proc", "write", name="a")
    assert told["cause"] in ("not_writable", "missing") and told["error"] and told["proof"] == {}


@pytest.mark.parametrize(
    "spoil, cause",
    [
        (lambda file: os.chown(file, 1234, 0), "owner_differs"),
        (lambda file: file.chmod(0o644), "mode_differs"),
        (lambda file: file.with_name(file.name + ".unfinished").write_text(""), "not_renamed"),
    ],
    ids=["owner", "mode", "rename"],
)
def test_file_that_is_not_as_it_was_written(tmp_path, spoil, cause):
    proof = run(tmp_path, "write", name="a")["proof"]
    assert run(tmp_path, "read", files=[proof])["seen"][0]["cause"] == ""
    spoil(tmp_path / ".trainyard/proof" / proof["file"])
    assert run(tmp_path, "read", files=[proof], timeout=1)["seen"][0]["cause"] == cause


def test_space_and_what_was_measured_of_the_same_mount(tmp_path):
    told = run(tmp_path, "write", name="a")
    assert 0 < told["space"]["free_mib"] <= told["space"]["total_mib"] and told["speed"] == {}
    record = tmp_path / "speed.json"
    for mount, expected in (
        (told["mount"], {"write_mib_per_second": 1.0}),
        (dict(told["mount"], source="elsewhere"), {}),
    ):
        record.write_text(json.dumps({"mount": mount, "speed": {"write_mib_per_second": 1.0}}))
        assert run(tmp_path, "write", name="a", speed_record=str(record))["speed"] == expected
