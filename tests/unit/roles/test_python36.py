# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs inside an image runs in the Python of its base: that of Clara Train 3.1 and of NGC's images before 20.12 is 3.6. It is run by a real one here."""

from __future__ import annotations

import glob
import json
import os
import pathlib
import shutil
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
# pyenv's own first: the python3.6 that it puts in PATH may be a script that refuses.
PYTHON = next(iter(sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.6.*/bin/python3.6")))), None) or shutil.which("python3.6")


def needs_python(test):
    """The test, or, where there is no such Python, one that says so: this is about the machine and not about the collection."""
    if PYTHON:
        return test

    def without():
        print("skipped: there is no CPython 3.6 on this machine, neither ~/.pyenv/versions/3.6.* nor python3.6 in PATH")

    return without


# Programs, and what lies beside them, by path. Those of other roles come in here too: what an image is asked to run is one list.
FILES = [
    "roles/training_image/files/steps.py",
    "roles/training_image/files/rank.py",
    "roles/training_image/files/nccl_tests.py",
    "roles/nccl_tests/files/nccl_tests_from_source.py",
    "roles/nccl/files/source_build.py",
    "roles/verify/files/all_reduce.py",
    "plugins/module_utils/_bandwidth.py",
    "plugins/module_utils/_blame.py",
]
EXAMPLES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "roles/train/files/examples").glob("*.py"))


def run(*arguments, text=None, **environment):
    # Nothing of the tests' own Python: no coverage, no path.
    done = subprocess.run([PYTHON, "-E", *arguments], input=text, env=dict({"PATH": os.environ["PATH"]}, **environment), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stdout
    return done.stdout


@needs_python
def test_it_compiles():
    """All in one process, as starting one is what takes time. The program of trainyard_job.py that goes to hosts as text is one of them."""
    sweep = next(part for part in (ROOT / "roles/train/files/trainyard_job.py").read_text(encoding="utf-8").split('SWEEP = r"""')[1:]).split('"""')[0]
    sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES + EXAMPLES}
    sources["SWEEP"] = sweep
    program = "import json, sys\nfor name, text in sorted(json.load(sys.stdin).items()):\n    compile(text, name, 'exec')\n    print(name)\n"
    assert run("-c", program, text=json.dumps(sources)).split() == sorted(sources)


@needs_python
def test_the_probe_answers():
    """As role training_image runs it in a base: through standard input, with nothing mounted."""
    steps = (ROOT / "roles/training_image/files/steps.py").read_text(encoding="utf-8")
    found = json.loads(run("-", "probe", json.dumps({"variables": {}}), text=steps).splitlines()[-1])
    assert found["versions"]["python"].startswith("3.6.") and set(found["frameworks"]) == {"pytorch", "tensorflow", "mxnet"}


@needs_python
def test_the_modules_of_the_bandwidth_job_do_their_work():
    """Its other half needs PyTorch; what is the collection's own is imported as it lies beside it."""
    program = ("import sys; sys.path.insert(0, %r); import _bandwidth, _blame; "
               "print(_bandwidth.__name__, _blame.__name__)" % str(ROOT / "plugins/module_utils"))
    assert run("-c", program).split() == ["_bandwidth", "_blame"]


@needs_python
def test_a_rank_is_run_and_leaves_its_result(tmp_path):
    run(str(ROOT / "roles/training_image/files/rank.py"), "/bin/sh", "-c", "echo hello", TRAINYARD_JOB_DIR=str(tmp_path), RANK="0", WORLD_SIZE="1",
        LOCAL_RANK="0")
    assert (tmp_path / "rank.0.log").read_text() == "hello\n"
    assert json.loads((tmp_path / "rank.0.json").read_text())["exit_code"] == 0


def test_the_pins_have_one_release_for_each_python():
    """pip evaluates the markers by itself; here it is seen that exactly one pin of each package is for each Python, 3.6 included."""
    from packaging.requirements import Requirement

    given = yaml.safe_load((ROOT / "roles/training_image/defaults/main.yml").read_text(encoding="utf-8"))
    for variable in ("training_image_horovod_build_packages", "training_image_horovod_dependencies", "training_image_pip_packages"):
        for python in ("3.6", "3.7", "3.8", "3.9", "3.12", "3.13"):
            chosen = [wish.name for wish in map(Requirement, given[variable]) if not wish.marker or wish.marker.evaluate({"python_version": python})]
            assert len(chosen) == len(set(chosen)), (variable, python, chosen)
            names = {wish.name for wish in map(Requirement, given[variable])}
            assert names - set(chosen) <= {"pyparsing"}, (variable, python)
