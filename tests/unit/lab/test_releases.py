"""Images of another release than this machine's."""

from __future__ import annotations

import images
import machine
import pytest
from process import LabError

OWN = [
    (True, "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates"),
    (False, "deb http://mirror.example/debian bookworm-backports main"),
]


def read(codename):
    return OWN if codename == "bookworm" else []


def test_the_machines_own_release_has_its_sources():
    assert images.sources_of("bookworm", "bookworm", read) == OWN


def test_another_release_of_the_distribution_has_them_with_its_name():
    deb822, line = (text for _is_deb822, text in images.sources_of("trixie", "bookworm", read))
    assert deb822.endswith("Suites: trixie trixie-updates")
    assert line == "deb http://mirror.example/debian trixie-backports main"


@pytest.mark.parametrize("own", ["bookworm", "", "sid"])
def test_for_another_distribution_mmdebstrap_knows_the_archive(own):
    assert images.sources_of("noble", own, read) == []


@pytest.mark.parametrize(
    "own, asked, components",
    [
        # Ubuntu has python3-pip, docker.io and others in universe, of which mmdebstrap takes nothing by itself.
        ("bookworm", "noble", ["--components=main,restricted,universe,multiverse"]),
        ("bookworm", "jammy", ["--components=main,restricted,universe,multiverse"]),
        ("noble", "trixie", ["--components=main"]),
        # The machine's own sources name them.
        ("bookworm", "bookworm", []),
        ("bookworm", "trixie", []),
    ],
)
def test_components_of_the_archive_that_mmdebstrap_knows(monkeypatch, own, asked, components):
    monkeypatch.setenv("LAB_RELEASE", asked)
    monkeypatch.setattr(machine, "os_release", lambda: {"VERSION_CODENAME": own})
    monkeypatch.setattr(machine, "read_apt_sources", read)
    monkeypatch.setattr(machine, "apt_proxies", lambda: [])
    options = images.Recipe("host", images.HOST_PACKAGES, images.HOST_HOOKS).options
    assert [word for word in options if word.startswith("--components")] == components


@pytest.mark.parametrize(
    "distribution, own, package",
    [
        ("ubuntu", "debian", "ubuntu-archive-keyring"),
        ("ubuntu", "ubuntu", "ubuntu-keyring"),
        ("debian", "ubuntu", "debian-archive-keyring"),
    ],
)
def test_the_package_with_the_keys_has_another_name_on_debian(
    monkeypatch, tmp_path, distribution, own, package
):
    asked = []
    monkeypatch.setitem(images.KEYRINGS, distribution, str(tmp_path / "keyring.gpg"))
    monkeypatch.setattr(machine, "install", lambda *names: asked.extend(names))
    images.install_keys(distribution, own)
    assert asked == [package]
    (tmp_path / "keyring.gpg").touch()
    images.install_keys(distribution, own)
    assert asked == [package]


def test_a_machine_without_keys_is_told_where_they_come_from(monkeypatch, tmp_path):
    """Debian 12 has no package with Ubuntu's."""

    def install(*names):
        raise LabError("E: Unable to locate package %s" % names)

    monkeypatch.setitem(images.KEYRINGS, "ubuntu", str(tmp_path / "keyring.gpg"))
    monkeypatch.setattr(machine, "install", install)
    with pytest.raises(
        LabError,
        match=r"ubuntu-archive-keyring\nThis machine has no keys of the archive of Ubuntu: copy \S+keyring.gpg from a machine",
    ):
        images.install_keys("ubuntu", "debian")


def test_the_release_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("LAB_RELEASE", "jammy")
    assert images.release() == "jammy"
    monkeypatch.setenv("LAB_RELEASE", "focal")
    with pytest.raises(LabError, match="'focal' is not a release that the lab supports: use one"):
        images.release()


def test_the_release_of_the_machine(monkeypatch):
    monkeypatch.delenv("LAB_RELEASE", raising=False)
    monkeypatch.setattr(machine, "os_release", lambda: {"VERSION_CODENAME": "noble"})
    assert images.release() == "noble"
    monkeypatch.setattr(machine, "os_release", lambda: {"PRETTY_NAME": "Some Linux"})
    with pytest.raises(LabError, match="this machine is 'Some Linux'"):
        images.release()


def test_virtual_hosts_have_a_kernel_of_their_distribution():
    """linux-image-cloud-amd64 is a package of Debian's alone."""
    kernels = {name: images.KERNELS[of] for name, of in images.DISTRIBUTION_OF.items()}
    assert kernels["noble"] == kernels["jammy"] == "linux-image-virtual"
    assert kernels["trixie"] == "linux-image-cloud-amd64"
    assert set(images.DISTRIBUTION_OF) == set(images.PYTHON_OF)
    assert not [name for name in images.VIRTUAL_PACKAGES if name.startswith("linux-")]
