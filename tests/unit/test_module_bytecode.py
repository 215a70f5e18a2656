"""Bytecode of modules on the tests' hosts: compiled once, by one user, and never another's."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HOSTS = Path(__file__).resolve().parents[2] / "molecule/shared/hosts"
RUN = """
import sys
sys.path[:0] = [{hosts!r}]
import module_bytecode, zipimport
before = zipimport._compile_source
compiled = []
zipimport._compile_source = lambda path, source: (compiled.append(path), before(path, source))[1]
module_bytecode.keep({folder!r}, writer={writer})
sys.path[:0] = [{archive!r}]
import answer
print(answer.ANSWER, len(set(compiled)))
"""


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    def run(source, writer=None):
        archive = tmp_path / "modules.zip"
        with zipfile.ZipFile(archive, "w") as made:
            made.writestr("answer.py", source)
        program = RUN.format(
            hosts=str(HOSTS),
            folder=str(tmp_path / "kept"),
            archive=str(archive),
            writer=os.geteuid() if writer is None else writer,
        )
        return subprocess.run(
            [sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, check=True
        ).stdout.strip()

    return run


def test_each_source_is_compiled_once(run, tmp_path):
    assert [
        run("ANSWER = 42"),
        run("ANSWER = 42"),
        run("ANSWER = 43"),
        run("ANSWER = 42"),
        run("ANSWER = 43"),
    ] == ["42 1", "42 0", "43 1", "42 0", "43 0"]
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_others_write_nothing(run, tmp_path):
    assert [run("ANSWER = 42", writer=os.geteuid() + 1) for _time in range(2)] == ["42 1", "42 1"]
    assert not (tmp_path / "kept").exists()


def test_python_finds_it_at_its_start():
    imported, called = (
        (HOSTS / "module_bytecode.pth").read_text(encoding="utf-8").strip().split("; ")
    )
    assert (imported, called) == ("import module_bytecode", "module_bytecode.keep()")
