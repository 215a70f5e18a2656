"""job_log_info, run like in Ansible."""

from __future__ import annotations

from scripted_tools import run_module

LOG = "step 1\n[rank1]: RuntimeError: DataLoader worker (pid 3110) is killed by signal: Bus error.\nEADDRINUSE: port\n"


def test_a_log_and_its_file(tmp_path):
    (tmp_path / "job.log").write_text(LOG, encoding="utf-8")
    by_text = run_module("job_log_info", {"log": LOG}, check=True)
    by_path = run_module("job_log_info", {"log_file": str(tmp_path / "job.log")}, check=True)
    assert by_text["causes"] == by_path["causes"] and by_text["changed"] is False
    first, second = by_text["causes"]
    assert set(first) == {"id", "cause", "fix", "fix_operator", "line", "line_number"}
    assert (first["id"], first["line_number"]) == ("worker_out_of_shared_memory", 2)
    assert "worker_shared_memory" in first["fix"]
    assert "training_container_shm_size" in first["fix_operator"]
    assert (second["id"], second["line_number"]) == ("address_in_use", 3)
    assert by_text["lines"] == []


def test_a_log_without_a_known_message():
    told = run_module("job_log_info", {"log": "a\nodd thing failed\nb\n"}, check=False)
    assert told["causes"] == []
    assert told["lines"] == [{"line": "odd thing failed", "line_number": 2}]


def test_a_file_that_is_not_there(tmp_path):
    told = run_module("job_log_info", {"log_file": str(tmp_path / "no.log")}, check=False)
    assert told["failed"] and "No such file or directory. Give the path" in told["msg"]
