"""Modules that programs on hosts share: each program finds what it imports, and files are read and
written safely.
"""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import _files
import _messages
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "/usr/local/lib/trainyard/shared"
#: Programs and modules that run on hosts, by role. Others of these roles run in containers, or have
#: no module.
ON_HOSTS = {
    "job_container": [
        "_disk_limit",
        "_drains",
        "_gpu_users",
        "_images",
        "_job_ports",
        "epilog",
        "health",
        "host_check",
        "prolog",
        "trainyard_run",
    ],
    "jobs": [
        "_batch",
        "_command_line",
        "_commands",
        "_job_file",
        "_job_limits",
        "_job_text",
        "_output",
        "_overview",
        "_site",
        "_slurm_client",
        "_submit",
        "door",
        "job",
        "trainyard",
    ],
    "jupyterhub": ["_idle", "_notebook", "look", "server", "trainyard_notebook"],
    "image_relay": ["relay"],
    "slurm_controller": ["idle_checks"],
    "monitoring": ["gpu_reader", "host_reader", "slurm_reader"],
    "train": ["_job_result", "_job_watch"],
    "host_library": [
        path.stem for path in sorted((ROOT / "roles/host_library/files").glob("*.py"))
    ],
}
#: It is loaded by a configuration that has the line, as modules are by programs.
LOADED = {"trainyard_notebook"}


def placed():
    """The names of the modules in the list of the role."""
    variables = yaml.safe_load(
        (ROOT / "roles/host_library/vars/main.yml").read_text(encoding="utf-8")
    )
    paths = [entry["path"] for entry in variables["__host_library_files"]]
    return {path.rpartition("/")[2][: -len(".py")] for path in paths if path.endswith(".py")}


def imported(tree):
    """The names that a program imports, also those in functions and by importlib."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            if isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def trees():
    for role, names in ON_HOSTS.items():
        for name in names:
            path = ROOT / "roles" / role / "files" / (name + ".py")
            yield role, name, ast.parse(path.read_text(encoding="utf-8"))


def needs_of(tree):
    """The modules of ours that a program imports."""
    return {name for name in imported(tree) if name.startswith("_") and name != "__future__"}


def test_programs_import_what_is_beside_them_or_shared():
    lost, used = [], set()
    for role, name, tree in trees():
        needs = needs_of(tree)
        lost += ["%s: %s" % (name, module) for module in needs - set(ON_HOSTS[role]) - placed()]
        used |= needs
    assert lost == []
    # Others of them import the first two. trainyard-run mounts the other one in containers.
    assert placed() - used == {"_parse_error", "_finding", "_launchers"}


def test_programs_look_there_before_they_import():
    wrong = []
    for _role, name, tree in trees():
        is_program = not name.startswith("_") or name == "_job_ports"
        lines = ["sys.path.insert(0, %s)" % word for word in (repr(FOLDER), "SHARED")]
        begins = [node.lineno for node in tree.body if ast.unparse(node) in lines]
        imports = [node.lineno for node in tree.body if needs_of(node)]
        has_line = bool(begins) and begins[0] < min(imports, default=sys.maxsize)
        if is_program and name not in LOADED and imports and not has_line:
            wrong.append(name)
    assert wrong == []


def test_services_load_none_of_them():
    """Otherwise a module that changes would have to restart them: jupyterhub_restarts knows
    none.
    """
    files = ROOT / "roles/jupyterhub/files"
    services = ("jupyterhub_config", "jobs_page", "links")
    waiting, seen = list(services), set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        tree = ast.parse((files / (name + ".py")).read_text(encoding="utf-8"))
        found = set(imported(tree)) - seen
        assert not found & placed(), name
        waiting += [each for each in found if (files / (each + ".py")).exists()]
    assert {"trainyard_hub", "_helper", "_watch", "_instance"} <= seen


def test_no_other_folder_is_searched():
    """Root runs some of them where people choose names of files."""
    folders = set()
    for _role, _name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("sys.path."):
                folders.add(ast.unparse(node.args[-1]))
    assert folders == {repr(FOLDER), "SHARED", "LIBRARY", "os.path.dirname(path)"}


def test_what_cannot_be_read_is_empty(tmp_path):
    (tmp_path / "log").write_bytes(b"one\ntwo\xff\n")
    assert _files.read(str(tmp_path / "log")) == "one\ntwo\ufffd\n"
    assert _files.read_bytes(str(tmp_path / "log"), 5) == b"two\xff\n"
    assert _files.read(str(tmp_path)) == _files.read(str(tmp_path / "none")) == ""


@pytest.mark.parametrize("text", ["{", "[" * 100000, ""])
def test_damaged_json(tmp_path, text):
    (tmp_path / "file").write_text(text, encoding="utf-8")
    assert _files.read_json(str(tmp_path / "file")) is None
    with pytest.raises((ValueError, RecursionError)):
        _files.load_json(str(tmp_path / "file"), {})


def test_missing_json(tmp_path):
    path = str(tmp_path / "file")
    assert _files.read_json(path) is None and _files.load_json(path, {}) == {}
    with pytest.raises(FileNotFoundError):
        _files.load_json(path)
    (tmp_path / "file").write_text(json.dumps({"a": 1}), encoding="utf-8")
    assert _files.read_json(path) == _files.load_json(path) == {"a": 1}


def test_only_regular_files_of_a_limited_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError):
            _files.read_regular(str(tmp_path / name))
    (tmp_path / "text").write_text("12345", encoding="utf-8")
    assert _files.read_regular(str(tmp_path / "text"), 5) == "12345"
    with pytest.raises(OSError, match="more than 4 characters"):
        _files.read_regular(str(tmp_path / "text"), 4)


def test_private_files_are_replaced_in_one_step(tmp_path):
    path = tmp_path / "file"
    path.write_text("a", encoding="utf-8")
    path.chmod(0o644)
    # One that others can read is replaced, also with the same content.
    _files.write_private(str(path), "a")
    first = path.stat()
    assert stat.S_IMODE(first.st_mode) == 0o600 and os.listdir(tmp_path) == ["file"]
    _files.write_private(str(path), "a")
    assert path.stat().st_ino == first.st_ino
    _files.write_private(str(path), "ä")
    assert path.stat().st_ino != first.st_ino and path.read_text(encoding="utf-8") == "ä"
    # A link in its place is replaced, and in the place of the new file it is refused.
    path.unlink()
    path.symlink_to(tmp_path / "other")
    _files.write_private(str(path), "b")
    assert not path.is_symlink() and not (tmp_path / "other").exists()
    (tmp_path / ("file.%d" % os.getpid())).symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        _files.write_private(str(path), "c")
    assert not (tmp_path / "other").exists()


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError):
        _files.write_private(str(tmp_path / "file"), "a")
    assert os.listdir(tmp_path) == ["file"]


def test_others_read_a_file_with_another_mode(tmp_path):
    path = tmp_path / "file"
    for mode in (0o644, 0o600, 0o640):
        _files.write_private(str(path), "a", mode)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_lines_of_a_log_need_no_room(capfd):
    _messages.say("one")
    _messages.say("two", 2)
    assert capfd.readouterr() == ("trainyard: one\n", "trainyard: two\n")
    with open("/dev/full", "wb", buffering=0) as full:
        _messages.say("three", full.fileno())


def test_modules_are_quick_to_load():
    """Each prolog loads _files."""
    code = "import sys; sys.path.insert(0, %r); import _files; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code % str(ROOT / "plugins/module_utils")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"typing", "subprocess", "tempfile"} & set(ast.literal_eval(done.stdout))
