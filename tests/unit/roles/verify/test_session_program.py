"""The program that a job's session runs, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._session_view import parse_view

ROOT = Path(__file__).parents[4]
PROGRAM = (ROOT / "roles/verify/files/session.py").read_text(encoding="utf-8")


@pytest.fixture(name="view")
def fixture_view(tmp_path):
    """What the program tells, as the module reads it.

    It is called like there, with the variables of a session.
    """
    (tmp_path / "share").mkdir()

    def view(folder=None, limits="", **variables):
        command = [sys.executable, "-I", "-c", PROGRAM, str(folder or tmp_path / "share")]
        run = subprocess.run(
            ["sh", "-c", limits + 'exec "$@"', "sh", *command],
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **variables},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return parse_view(run.stdout)

    return view


def test_a_session_in_order(view, tmp_path):
    told = view()
    status = os.stat(tmp_path / "share")
    assert told["share"] == {"device": status.st_dev, "inode": status.st_ino, "error": ""}
    assert list((tmp_path / "share").iterdir()) == []
    assert told["shm_bytes"] > 0 and told["group"]["affinity"] == len(os.sched_getaffinity(0))
    assert set(told["limits"]) == set(told["first_limits"])
    assert told["python"]["version"] == sys.version.split()[0] and told["python"]["error"] == ""
    assert told["python"]["packages"]["pytest"][1].endswith("-info")


def test_a_share_that_cannot_be_used(view, tmp_path):
    assert view("/proc/sys")["share"]["error"]
    assert view(tmp_path / "none")["share"]["error"] == "No such file or directory"


def test_limits_of_the_session(view):
    told = view(limits="ulimit -n 64; ulimit -c 0; ")
    assert told["limits"]["nofile"] == [64, 64] and told["limits"]["core"] == [0, 0]
    assert told["first_limits"]["nofile"] != [64, 64]


def test_no_value_of_a_variable_but_few_leaves_the_container(view):
    told = view(API_TOKEN="s3cret", PYTHONPATH="/opt/x", LD_PRELOAD="")
    assert "s3cret" not in json.dumps(told)
    assert (
        told["environment"]["PYTHONPATH"][1] == "/opt/x"
        and told["environment"]["API_TOKEN"][1] == ""
    )
    assert view(API_TOKEN="other")["environment"]["API_TOKEN"] != told["environment"]["API_TOKEN"]


def test_files_that_work_like_variables(view, tmp_path):
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_DISABLE=1\n", encoding="ascii")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/rc").write_text("\n", encoding="ascii")
    told = view(HOME=str(tmp_path))["files"]
    assert str(tmp_path / ".nccl.conf") in told and str(tmp_path / ".ssh/rc") not in told
    assert "DISABLE" not in str(told)


@pytest.mark.parametrize(
    "most, high, limit",
    [("max", "max", None), ("2048", "max", 2048), ("max", "1024", 1024), ("", "", None)],
)
def test_memory_of_the_control_group(most, high, limit):
    """Above memory.high, the kernel slows the processes down."""
    program = {"__name__": "session"}
    exec(compile(PROGRAM, "session.py", "exec"), program)
    program["group_file"] = lambda name, _old: {"memory.max": most, "memory.high": high}[name]
    assert program["memory"]() == limit


def test_a_module_that_hides_another(view, tmp_path):
    """The program itself must not import it: a broken json would end it."""
    (tmp_path / "hidden").mkdir()
    for name in ("random.py", "json.py", "numpy_like.py"):
        (tmp_path / "hidden" / name).write_text("raise SystemExit('hidden')\n", encoding="utf-8")
    # Without __init__.py it hides nothing.
    (tmp_path / "hidden/email").mkdir()
    told = view(PYTHONPATH=str(tmp_path / "hidden"))["python"]
    assert {(entry["module"], entry["file"]) for entry in told["shadows"]} == {
        ("random", str(tmp_path / "hidden/random.py")),
        ("json", str(tmp_path / "hidden/json.py")),
    }
    assert all(
        "/random.py" in entry["hides"] or "json" in entry["hides"] for entry in told["shadows"]
    )


def test_another_version_and_what_runs_at_each_start(view, tmp_path):
    folder = tmp_path / "mine"
    (folder / "pytest-0.1.dist-info").mkdir(parents=True)
    (folder / "sitecustomize.py").write_text("", encoding="utf-8")
    told = view(PYTHONPATH=str(folder))["python"]
    assert told["packages"]["pytest"] == ["0.1", str(folder / "pytest-0.1.dist-info")]
    assert str(folder / "sitecustomize.py") in told["startup"]


def test_python_that_does_not_start(view, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)\n", encoding="utf-8")
    assert "python3 does not start" in view(PYTHONPATH=str(tmp_path))["python"]["error"]


def test_processes_of_jobs(view):
    environment = {"PATH": "/usr/bin:/bin", "TRAINYARD_JOB_DIR": "/data1/share/.trainyard/jobs/old"}
    with subprocess.Popen(["sleep", "60"], env=environment) as child:
        try:
            time.sleep(0.1)
            told = view()["processes"]
        finally:
            child.kill()
    (process,) = [entry for entry in told if entry["pid"] == child.pid]
    assert (process["job"], process["command"]) == ("old", "sleep 60") and process["age_s"] < 60
