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
