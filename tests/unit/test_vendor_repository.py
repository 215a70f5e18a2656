"""The vendor's repository that the scenarios use: apt itself judges it, in a root of its own; nothing of this machine's changes."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import vendor_repository as vendor


class Apt:
    """apt with folders of its own, and the sources that a test gives it."""

    def __init__(self, root):
        self.root = root
        for folder in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "dpkg"):
            (root / folder).mkdir(parents=True)
        (root / "dpkg/status").touch()
        # The machine's own settings, a proxy among them, have no say.
        self.settings = root / "apt.conf"
        self.settings.write_text(
            f'Dir "{root}";\nDir::State "{root}/state";\nDir::State::status "{root}/dpkg/status";\nDir::Cache "{root}/cache";\nDir::Etc "{root}/etc";\n'
            'Dir::Bin::methods "/usr/lib/apt/methods/";\nDir::Bin::solvers "/usr/lib/apt/solvers/";\nDir::Bin::planners "/usr/lib/apt/planners/";\n'
            'APT::Architecture "amd64";\nAPT::Architectures { "amd64"; };\nAPT::Sandbox::User "root";\nAcquire::http::Proxy "false";\nAcquire::Languages "none";\n',
            encoding="utf-8")

    def run(self, *command):
        return subprocess.run(command, env={**os.environ, "APT_CONFIG": str(self.settings), "LC_ALL": "C"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)

    def source(self, url, key):
        (self.root / "etc/sources.list").write_text(f"deb [signed-by={key}] {url} /\n", encoding="utf-8")

    def update(self):
        return self.run("apt-get", "update", "--error-on=any")

    def plan(self, *packages):
        """What apt would unpack, by package; or why it won't."""
        done = self.run("apt-get", "install", "--simulate", "--no-install-recommends", *packages)
        return dict(re.findall(r"^Inst (\S+) \((\S+) ", done.stdout, re.MULTILINE)) if done.returncode == 0 else done.stdout


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
    return vendor.make(tmp_path_factory.mktemp("vendor"))


def directory(folder, name):
    return vendor.place(folder, name)[0]


@pytest.fixture(name="apt")
def fixture_apt(tmp_path, folder):
    def made(name, url=None):
        found = Apt(tmp_path / name)
        found.source(url or f"file:{directory(folder, name)}", key(folder))
        assert found.update().returncode == 0, found.update().stdout
        return found

    return made


def key(folder):
    return directory(folder, "debian12") / "cuda-archive-keyring.gpg"


def test_what_apt_sees(apt):
    debian, ubuntu, toolkit = apt("debian12"), apt("ubuntu2204"), apt("container_toolkit")
    pairs = ubuntu.run("apt-cache", "madison", "libnccl2").stdout
    assert [line.split("|")[1].strip() for line in pairs.splitlines()][:3] == ["2.27.7-1+cuda13.0", "2.27.3-1+cuda12.9", "2.25.1-1+cuda12.8"]
    assert debian.run("apt-cache", "madison", "libnccl2").stdout == "" and debian.run("apt-cache", "madison", "nvidia-driver").stdout.count("\n") == 10
    assert "release o=NVIDIA,l=NVIDIA CUDA" in debian.run("apt-cache", "policy").stdout
    # What is asked of others is only what every host has.
    asked = re.findall(r"Depends: (.*)", "".join(found.run("apt-cache", "unmet").stdout for found in (debian, ubuntu, toolkit)))
    assert set(asked) == {"adduser"}
