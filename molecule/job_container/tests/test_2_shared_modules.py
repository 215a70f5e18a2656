"""The modules that the programs import: whose they are, and what happens if one is missing."""

from __future__ import annotations

ROLE = "host_library"
HOST = "job-container-b"
SHARED = "/usr/local/lib/trainyard/shared"
testinfra_hosts = ["ansible://" + HOST]


def test_a_missing_module_is_told_and_comes_back(host, role):
    assert host.check_output("find %s ! -user root -o -perm /022" % SHARED) == ""
    drift = {"tasks": "drift", "shows": "host_library_differences"}
    assert role(**drift).shown == []
    host.run_expect([0], "rm %s/_files.py" % SHARED)
    (row,) = role(**drift).shown
    assert (row["what"], row["found"]) == (SHARED, "missing or changed: _files.py")
    assert role(of="job_container").changed == 1 and role(**drift).shown == []


def test_they_stay_while_a_program_needs_them(host, role):
    assert role(tasks="remove").changed == 0 and host.file(SHARED + "/_files.py").exists
