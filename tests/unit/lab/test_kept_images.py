from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import images

PACK = Path(images.__file__).with_name("wheel_of_horovod.py")
TAG = "00123456789abcdef"


def test_an_archive_is_named_after_its_inputs_and_replaces_the_former_one(tmp_path):
    for name in ("host-000000000000.tar", "host-aaaaaaaaaaaa.tar", "training-base-0.tar"):
        (tmp_path / name).write_text("")
    recipe = SimpleNamespace(name="host", image="trainyard-lab/host:aaaaaaaaaaaa")
    assert images.archive_of(recipe, tmp_path) == tmp_path / "host-aaaaaaaaaaaa.tar"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "host-aaaaaaaaaaaa.tar",
        "training-base-0.tar",
    ]


def test_an_engine_without_images_gets_the_archive_of_the_hosts_without_a_build(
    tmp_path, monkeypatch
):
    recipe = SimpleNamespace(name="host", image="trainyard-lab/host:aaaaaaaaaaaa", make=None)
    monkeypatch.setattr(images, "Recipe", lambda *_inputs: recipe)
    built, commands = [], []

    def make(target, _log):
        if not target.exists():
            built.append(target.name)
            target.write_text("")

    def docker(*command):
        commands.append(command[0])
        return SimpleNamespace(stdout="")

    recipe.make = make
    for _engine in range(2):
        assert images.host_image(SimpleNamespace(docker=docker), tmp_path, None) == recipe.image
    assert built == ["host-aaaaaaaaaaaa.tar"]
    assert commands == ["images", "import", "tag"] * 2


def test_the_installed_horovod_is_packed_as_a_wheel_that_pip_installs(tmp_path):
    ast.parse(PACK.read_text(), feature_version=(3, 6))
    site = tmp_path / "site"
    metadata = "horovod-0.28.1.dist-info"
    for name, text in {
        "horovod/__init__.py": "VERSION = '0.28.1'\n",
        "horovod/__pycache__/__init__.cpython-311.pyc": "",
        metadata + "/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        metadata
        + "/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
        metadata + "/INSTALLER": "pip\n",
        metadata + "/direct_url.json": "{}\n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    names = [str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()]
    names += ["../../../bin/horovodrun", metadata + "/RECORD"]
    (site / metadata / "RECORD").write_text("".join("%s,,\n" % name for name in names))
    subprocess.run([sys.executable, PACK, TAG, tmp_path], check=True, env={"PYTHONPATH": str(site)})
    wheel = tmp_path / ("horovod-0.28.1-%s-py3-none-any.whl" % TAG)
    with zipfile.ZipFile(wheel) as archive:
        assert sorted(archive.namelist()) == sorted(
            ["horovod/__init__.py"]
            + [metadata + "/" + name for name in ("METADATA", "RECORD", "WHEEL")]
        )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path / "again", wheel], check=True)
    assert (tmp_path / "again/horovod/__init__.py").read_text() == "VERSION = '0.28.1'\n"


class Head:
    """A lab whose first host has compiled Horovod."""

    hosts = {"lab-a": "172.30.77.11", "lab-b": "172.30.77.12"}

    def __init__(self, log):
        self.log, self.packed = log, []
        self.engine = SimpleNamespace(docker=self.docker)

    def on(self, host, *command, check=True):
        assert host == "lab-a"
        if command[:2] == ("docker", "run"):
            self.packed.append(command[-2])
        return SimpleNamespace(stdout=self.log if command[0] == "cat" else "trainyard/training:1\n")

    def docker(self, action, _source, target):
        assert action == "cp"
        Path(target).mkdir()
        Path(target, "horovod-0.28.1-%s-cp311-cp311-linux_x86_64.whl" % self.packed[-1]).touch()


def test_horovod_is_kept_once_and_reaches_the_folder_of_wheels(tmp_path):
    target = tmp_path / "wheels-1"
    target.mkdir()
    for tag in ("0aaa", "0bbb"):
        lab = Head("Found: gcc 12.2.0\nInputs of the compilation: %s\n" % tag)
        for _run in range(2):
            images.keep_horovod(lab, tmp_path)
        assert lab.packed == [tag]
        (target / "torch.whl").touch()
        assert images.with_horovod(target, tmp_path) == target
        assert sorted(path.name for path in target.iterdir()) == [
            "horovod-0.28.1-%s-cp311-cp311-linux_x86_64.whl" % tag,
            "torch.whl",
        ]
    # The base had one that was kept.
    lab = Head("The Horovod of the base is kept")
    images.keep_horovod(lab, tmp_path)
    assert lab.packed == []
