# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs inside an image runs in the Python of its base: that of Clara Train 3.1 and of NGC's
images before 20.12 is 3.6. It is run by a real one here.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import pytest
import yaml
from old_python import NONE, old_python

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tests/support/inside_images.py"
# Programs, and what lies beside them, by path. Those of other roles come in here too: what an image
# has to run is one list.
FILES = [
    "roles/training_image/files/steps.py",
    "roles/training_image/files/rank.py",
    "roles/training_image/files/nccl_tests.py",
    "roles/nccl_tests/files/nccl_tests_from_source.py",
    "roles/nccl/files/source_build.py",
    "roles/verify/files/all_reduce.py",
    "roles/verify/files/horovod_all_reduce.py",
    "roles/verify/files/host_watch.py",
    "roles/verify/files/probe.py",
    "roles/verify/files/session.py",
    "plugins/module_utils/_apt_sources.py",
    "plugins/module_utils/_openpgp.py",
    "plugins/module_utils/_bandwidth.py",
    "plugins/module_utils/_blame.py",
    "plugins/module_utils/_launchers.py",
    "roles/job_container/files/trainyard_launch.py",
    "roles/train/files/_job_hang.py",
    "roles/train/files/_job_watch.py",
    "roles/training_container/files/supervisor.py",
    "roles/jobs/files/services.py",
    "roles/job_container/files/trainyard_root.py",
]
EXAMPLES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "roles/train/files/examples").glob("*.py")
)
CASES = re.findall(
    r"\w+", PROGRAM.read_text(encoding="utf-8").partition("\nCASES = (")[2].partition(")")[0]
)
needs_python = pytest.mark.python36


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


job = load("roles/train/files/trainyard_job.py", "trainyard_job")


def run(*arguments, text=None, python=None, **environment):
    # Nothing of the tests' own Python: no coverage, no path.
    done = subprocess.run(
        [python or old_python(), "-E", *arguments],
        input=text,
        env=dict({"PATH": os.environ["PATH"]}, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.lru_cache(maxsize=None)
def work_done(python):
    """What comes of the work of all cases with that Python; one process, as starting one is what
    takes time.
    """
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(run("-B", str(PROGRAM), str(ROOT), folder, python=python))


def test_the_list_is_whole():
    """What the roles put into images and beside the ranks, and what their programs import of the
    collection.
    """
    given = "".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in ("roles/training_image/vars/main.yml", "roles/verify/vars/main.yml")
    )
    names = {
        name.lstrip("_")
        for name in re.findall(r"'(?:[^'\n]*/)?(\w+\.py)'", given)
        + [name + ".py" for name in job.WATCH_FILES]
    }
    # A host runs it, the controller of the site.
    names.remove("idle_verify.py")
    assert (
        {"steps.py", "openpgp.py", "all_reduce.py", "job_watch.py"}
        # idle_verify.py runs on the controller.
        <= names - {"idle_verify.py"}
        <= {os.path.basename(path).lstrip("_") for path in FILES}
    )


@needs_python
def test_it_compiles():
    """With the programs of trainyard_job.py that go to hosts as text."""
    sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES + EXAMPLES}
    sources.update(SWEEP=job.SWEEP, VERSION=job.VERSION, WATCH_START=job.WATCH_START)
    program = "import json, sys\nfor name, text in sorted(json.load(sys.stdin).items()):\n    compile(text, name, 'exec')\n    print(name)\n"
    assert run("-c", program, text=json.dumps(sources)).split() == sorted(sources)


@needs_python
def test_the_probe_answers():
    """As role training_image runs it in a base: through standard input, with nothing mounted."""
    steps = (ROOT / "roles/training_image/files/steps.py").read_text(encoding="utf-8")
    found = json.loads(
        run("-", "probe", json.dumps({"variables": {}}), text=steps).splitlines()[-1]
    )
    assert found["versions"]["python"].startswith("3.6.") and set(found["frameworks"]) == {
        "pytorch",
        "tensorflow",
        "mxnet",
    }


@needs_python
@pytest.mark.parametrize("case", CASES)
def test_work_is_done_as_by_a_new_python(case):
    """By 3.6 and by the Python of the tests, on the same input: builds of sources, the probe's
    parts, both bandwidth jobs, the watcher.
    """
    old, new = work_done(old_python()), work_done(sys.executable)
    assert (
        old["python"] == [3, 6] and old["cases"][case] == new["cases"][case] and old["cases"][case]
    )


@needs_python
def test_what_a_job_has_left_is_swept():
    left = subprocess.Popen(
        ["sleep", "60"], env={"TRAINYARD_JOB_ID": "python36-1", "PATH": os.environ["PATH"]}
    )
    try:
        assert run("-", "python36-1", text=job.SWEEP) == "1\n"
        assert left.wait(10) == -15
    finally:
        left.kill()
        left.wait()


@needs_python
def test_the_version_of_a_package_is_read(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod/__init__.py").write_text(
        "from horovod.nothing import x\n__version__ = '0.19.2'\n", encoding="utf-8"
    )
    program = "import sys; sys.path.insert(0, %r)\n" % str(tmp_path) + job.VERSION
    assert (
        run("-", "horovod", text=program) == "0.19.2\n"
        and run("-", "no_such_package", text=program) == ""
    )


@needs_python
def test_a_host_is_watched_until_the_input_ends():
    """As the runner starts it: both modules come by the input, and nothing of them lies there."""
    sources = [
        (
            name,
            next(ROOT / path for path in FILES if path.endswith("/%s.py" % name)).read_text(
                encoding="utf-8"
            ),
        )
        for name in job.WATCH_FILES
    ]
    program = job.watch_program(sources, False)
    seen = [
        json.loads(line)
        for line in run(
            "-c", job.WATCH_START, str(len(program.encode())), text=program
        ).splitlines()
    ]
    assert seen and set(seen[-1]) >= {"interface", "sent_bytes", "received_bytes", "peaks"}


@needs_python
def test_a_host_is_watched_from_begin_to_end(tmp_path):
    """The program itself, beside its modules, in an image without PyTorch.

    The process that looks at the GPUs ends with it.
    """
    for path in FILES:
        if path.endswith(
            (
                "host_watch.py",
                "/all_reduce.py",
                "_bandwidth.py",
                "_blame.py",
                "_job_hang.py",
                "_job_watch.py",
            )
        ):
            (tmp_path / os.path.basename(path)).write_text(
                (ROOT / path).read_text(encoding="utf-8"), encoding="utf-8"
            )
    program = str(tmp_path / "host_watch.py")
    assert set(json.loads(run("-B", program, "begin", "20"))) == {
        "cards",
        "gpus",
        "interface",
        "nics",
        "p2p",
        "counters",
        "by_card",
        "lost",
    }
    ended = json.loads(run("-B", program, "end"))
    assert set(ended) == {"cards", "counters", "by_card", "lost", "peaks"}
    # On a busy machine the watcher is still there for a moment.
    deadline = time.monotonic() + 10
    while subprocess.run(["pgrep", "-f", program], stdout=subprocess.PIPE, check=False).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_python
def test_a_rank_is_run_and_leaves_its_result(tmp_path):
    run(
        str(ROOT / "roles/training_image/files/rank.py"),
        "/bin/sh",
        "-c",
        "echo hello",
        TRAINYARD_JOB_DIR=str(tmp_path),
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
    )
    assert (tmp_path / "rank.0.log").read_text() == "hello\n"
    assert json.loads((tmp_path / "rank.0.json").read_text())["exit_code"] == 0


def test_without_a_cpython_3_6_the_report_says_so(monkeypatch):
    """Where there is none, what needs it is deselected, as nothing that was not run counts as
    passed, and named at the end.
    """
    conftest = load("tests/conftest.py", "conftest_of_tests")
    monkeypatch.setattr(conftest, "old_python", lambda: "")
    there = SimpleNamespace(
        nodeid="tests/unit/x.py::there",
        name="there",
        path=pathlib.Path("x.py"),
        get_closest_marker=lambda name: None,
    )
    needs = SimpleNamespace(
        nodeid="tests/unit/x.py::needs",
        name="needs",
        path=there.path,
        get_closest_marker=lambda name: name == "python36" or None,
    )
    items, deselected, lines = [needs, there], [], []
    config = SimpleNamespace(
        hook=SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    )
    conftest.pytest_collection_modifyitems(config, items)
    conftest.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), config)
    assert (
        items == [there]
        and deselected == [needs]
        and lines == ["not run here, as %s:" % NONE, "  tests/unit/x.py::needs"]
    )
    # Where there is one, all are run.
    monkeypatch.setattr(conftest, "old_python", lambda: "/usr/bin/python3.6")
    conftest.MISSING.clear()
    items = [needs, there]
    conftest.pytest_collection_modifyitems(config, items)
    assert set(map(id, items)) == {id(needs), id(there)} and conftest.MISSING == {}


def test_the_pins_have_one_release_for_each_python():
    """pip evaluates the markers by itself; here it is seen that exactly one pin of each package is
    for each Python, 3.6 included.
    """
    from packaging.requirements import Requirement

    given = yaml.safe_load(
        (ROOT / "roles/training_image/defaults/main.yml").read_text(encoding="utf-8")
    )
    for variable in (
        "training_image_horovod_build_packages",
        "training_image_horovod_dependencies",
        "training_image_pip_packages",
    ):
        for python in ("3.6", "3.7", "3.8", "3.9", "3.12", "3.13"):
            chosen = [
                wish.name
                for wish in map(Requirement, given[variable])
                if not wish.marker or wish.marker.evaluate({"python_version": python})
            ]
            assert len(chosen) == len(set(chosen)), (variable, python, chosen)
            names = {wish.name for wish in map(Requirement, given[variable])}
            assert names - set(chosen) <= {"pyparsing"}, (variable, python)
