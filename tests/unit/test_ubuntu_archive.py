"""The stand-in for Ubuntu's archive: dpkg can read what it builds, and its drivers depend on what
is there.
"""

from __future__ import annotations

import re
import subprocess

import pytest
import ubuntu_archive as ubuntu
import vendor_repository as vendor

RELEASES = ("noble", "jammy")
DEBIAN = """Package: libthing2t64
Source: thing (1)
Version: 2:1.0-3
Architecture: amd64
Maintainer: Debian People <people@example.org>
Depends: libc6, thing-data (= 1.0-3), other (>= 1.0-3)
Provides: libthing2 (= 1.0-3)
Section: libs
Priority: optional
Description: a thing
 of Debian's
"""


def told(path, *fields):
    command = ["dpkg-deb", "--field", str(path), *fields]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def drivers(release, later=False):
    """Packages of all drivers of a release: control paragraphs by name."""
    spec = ubuntu.specification(release)
    branches = spec["later"]["drivers"] if later else spec["drivers"]
    return {
        vendor.field(control, "Package"): (component, control)
        for driver in branches
        for component, control, _content in ubuntu.driver_packages(driver, spec["kernel"])
    }


def names(control, title):
    found = re.search(r"^%s: (.*)$" % title, control, re.MULTILINE)
    return (
        [re.split(r"[ (|]", part.strip())[0] for part in found.group(1).split(",")] if found else []
    )


def test_a_package_of_debian_gets_ubuntus_name_and_keeps_its_files(tmp_path):
    was = tmp_path / "was.deb"
    scripts = {"postinst": "#!/bin/sh\nexit 0\n", "md5sums": "0  x\n"}
    was.write_bytes(vendor.deb(DEBIAN, {"usr/lib/thing": b"content\n"}, scripts))
    entry = {"version": "1.0-3ubuntu1", "component": "main", "provides": ["libthing2"]}
    versions = {("thing-data", "1.0-3"): "1.0-3ubuntu1"}
    control, content = ubuntu.repacked("libthing2", entry, [was], versions)
    path = tmp_path / "now.deb"
    path.write_bytes(content)
    assert control.startswith("Package: libthing2\nVersion: 1.0-3ubuntu1\n")
    assert told(path, "Depends") == "libc6, thing-data (= 1.0-3ubuntu1), other (>= 1.0-3)"
    assert told(path, "Provides") == "libthing2" and told(path, "Source") == ""
    assert told(path, "Maintainer") == ubuntu.WHO
    assert told(path, "Original-Maintainer") == "Debian People <people@example.org>"
    listed = subprocess.run(
        ["dpkg-deb", "--contents", path], check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    assert "./usr/lib/thing" in listed
    assert "postinst" in ubuntu.scripts_of(ubuntu.members(path))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("later", [False, True])
def test_drivers_depend_on_what_is_there(release, later):
    """What Debian brings is named in `unchanged`, or is on every host."""
    found = {**drivers(release), **(drivers(release, later=True) if later else {})}
    there = set(found) | {
        name for _component, control in found.values() for name in names(control, "Provides")
    }
    there |= {"adduser", *ubuntu.specification(release)["unchanged"]}
    for name, (_component, control) in found.items():
        lacking = set(names(control, "Depends")) - there
        assert lacking == set(), name


def test_empty_branches_lead_to_the_next_one():
    found = drivers("noble")
    for name, leads_to in (
        ("nvidia-utils-550-server", "nvidia-utils-570-server"),
        ("nvidia-utils-570-server", "nvidia-utils-580-server"),
        ("libnvidia-compute-570", "libnvidia-compute-580"),
    ):
        component, control = found[name]
        assert component == "restricted" and "Section: non-free/oldlibs\n" in control
        assert names(control, "Depends") == [leads_to]


def test_maintainers_and_components_are_ubuntus():
    found = drivers("noble")
    assert "Maintainer: Ubuntu Core Developers" in found["nvidia-utils-580-server"][1]
    assert "Maintainer: Ubuntu Kernel Team" in found["nvidia-utils-595-server"][1]
    assert found["nvidia-fabricmanager-580"][0] == "multiverse"
    assert "580.142-0ubuntu0.24.04.1" in found["nvidia-utils-580"][1]


@pytest.mark.parametrize(
    "text, kept",
    [
        ("a (= ${binary:Version}), ${misc:Depends}", "a (= 1-1)"),
        ("a [amd64 arm64], b [!i386], c [i386], d [!amd64]", "a, b"),
        ("dkms, nvidia-dkms-580, xserver-xorg-video-nvidia-580", "nvidia-dkms-580"),
        ("", ""),
    ],
)
def test_relations_as_a_built_package_has_them(text, kept):
    assert ubuntu.relation(text, "1-1") == kept


def test_a_folder_that_lacks_a_package(tmp_path):
    with pytest.raises(ValueError, match="has no package of .*docker.io"):
        ubuntu.make(tmp_path / "archive", {"noble": tmp_path})


def test_a_security_update_is_a_package_that_dpkg_reads(tmp_path):
    """Debian compresses the control member with xz."""
    was = tmp_path / "was"
    (was / "DEBIAN").mkdir(parents=True)
    (was / "DEBIAN/control").write_text(DEBIAN, encoding="utf-8")
    subprocess.run(["dpkg-deb", "--build", "-Zxz", was, tmp_path], check=True, capture_output=True)
    path = next(tmp_path.glob("*.deb"))
    archive = ubuntu.Archive(tmp_path, ubuntu.specification("noble"))
    archive.add(DEBIAN, path.read_bytes(), "universe")
    archive.publish("libthing2t64", "2:1.0-3ubuntu0.1", ubuntu.LATER)
    made = archive.root / "pool/universe/l/libthing2t64/libthing2t64_1.0-3ubuntu0.1_amd64.deb"
    assert told(made, "Version") == "2:1.0-3ubuntu0.1"
    with pytest.raises(ValueError, match="other content in another release"):
        archive.add(DEBIAN.replace("a thing", "another"), b"", "universe")
