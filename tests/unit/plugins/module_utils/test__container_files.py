"""Changed files of a container: layers as in overlayfs, with a FIFO instead of its device 0/0,
which only root can create.
"""

from __future__ import annotations

import os
import stat

import pytest
from ansible_collections.trainyard.gpu.plugins.module_utils import _container_files
from ansible_collections.trainyard.gpu.plugins.module_utils._container_files import (
    changed_in_layers,
    parse_diff,
)


@pytest.fixture(name="layers")
def fixture_layers(tmp_path, monkeypatch):
    opaque = set()
    monkeypatch.setattr(
        _container_files, "_is_whiteout", lambda found: stat.S_ISFIFO(found.st_mode)
    )
    monkeypatch.setattr(_container_files, "_is_opaque", lambda path: path in opaque)

    def write(layer, path, content="", mode=0o755):
        file = tmp_path / layer / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(file)
        else:
            file.write_text(content, encoding="utf-8")
            file.chmod(mode)
        return file

    def changed():
        return changed_in_layers(
            str(tmp_path / "container"), [str(tmp_path / "last"), str(tmp_path / "base")]
        )

    write("base", "usr/local/bin/horovodrun", "the program")
    write("base", "opt/conda/lib/python3.8/site.py", "import sys")
    (tmp_path / "last").mkdir()
    (tmp_path / "container").mkdir()
    write.changed, write.opaque, write.root = changed, opaque, tmp_path
    return write


def test_an_unchanged_container_has_no_changed_files(layers):
    assert layers.changed() == []


@pytest.mark.parametrize(
    "path, content, found",
    [
        ("usr/local/bin/horovodrun", None, [("/usr/local/bin/horovodrun", "deleted")]),
        (
            "usr/local/bin/horovodrun",
            "another program",
            [("/usr/local/bin/horovodrun", "modified")],
        ),
        ("opt/conda/lib", None, [("/opt/conda/lib", "deleted")]),
        # Touched, and as it was.
        ("usr/local/bin/horovodrun", "the program", []),
        # Added.
        ("usr/local/bin/other", "a program", []),
        ("opt/conda/lib/python3.8/new/module.py", "", []),
        # What a running container writes.
        ("usr/share/mime/cache", "x", []),
        ("root/.cache/pip/x", "x", []),
        ("tmp/x", "x", []),
        ("etc/ld.so.cache", "x", []),
    ],
)
def test_a_single_change_is_found(layers, path, content, found):
    for name in ("usr/share/mime/cache", "etc/ld.so.cache", "tmp/x"):
        layers("base", name, "before")
    layers("container", path, content)
    assert layers.changed() == found


def test_what_may_no_longer_be_run(layers):
    layers("container", "usr/local/bin/horovodrun", "the program", mode=0o644)
    assert layers.changed() == [("/usr/local/bin/horovodrun", "modified")]


@pytest.mark.parametrize(
    "path",
    [
        "opt/conda/lib/__pycache__/a.cpython-38.pyc",
        "usr/lib/python3/a.pyc",
        "usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "usr/bin/nvidia-smi",
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
    ],
)
def test_caches_and_the_driver_s_files(layers, path):
    layers("base", path, "before")
    layers("container", path, "after")
    assert layers.changed() == []


def test_folder_that_was_moved_away_and_back(layers):
    """It is a new folder then, which hides the image's: what it has like that one is unchanged,
    what it lacks is deleted.
    """
    layers("base", "usr/lib/packaging/a.py", "a")
    layers("base", "usr/lib/packaging/b.py", "b")
    layers.opaque.add(str(layers.root / "container/usr/lib/packaging"))
    layers("container", "usr/lib/packaging/a.py", "a")
    layers("container", "usr/lib/packaging/b.py", "b")
    assert layers.changed() == []
    (layers.root / "container/usr/lib/packaging/b.py").unlink()
    assert layers.changed() == [("/usr/lib/packaging/b.py", "deleted")]


def test_what_a_later_layer_of_the_image_has_deleted_is_no_part_of_it(layers):
    layers("base", "usr/bin/old", "old")
    layers("last", "usr/bin/old", None)
    layers("container", "usr/bin/old", "a user's")
    # In a folder that the last layer has made again.
    layers("base", "usr/lib/again/x", "old")
    layers.opaque.add(str(layers.root / "last/usr/lib/again"))
    layers("last", "usr/lib/again/y", "new")
    layers("container", "usr/lib/again/x", "a user's")
    assert layers.changed() == []


def test_symbolic_links(layers):
    for layer, target in (("base", "python3.8"), ("container", "python3.9")):
        (layers.root / layer / "usr/bin").mkdir(parents=True, exist_ok=True)
        (layers.root / layer / "usr/bin/python3").symlink_to(target)
    assert layers.changed() == [("/usr/bin/python3", "modified")]


def test_as_many_as_are_read(layers):
    for number in range(30):
        layers("base", "usr/bin/%02d" % number, "before")
        layers("container", "usr/bin/%02d" % number, "after")
    assert len(layers.changed()) == 20


def test_docker_diff():
    said = (
        "C /root\nA /root/.ssh\nC /usr\nC /usr/local\nC /usr/local/bin\nD /usr/local/bin/horovodrun\nA /usr/local/bin/mine\nC /usr/lib\n"
        "C /usr/lib/x.so\nC /usr/lib/python3\nA /usr/lib/python3/__pycache__\nC /etc\nC /etc/hosts\n"
    )
    assert parse_diff(said) == [
        ("/usr/local/bin/horovodrun", "deleted"),
        ("/usr/lib/x.so", "modified"),
    ]
