"""A stand-in for Ubuntu's archive: Debian's programs under Ubuntu's names, versions, components,
maintainers and relations, signed, C(Origin: Ubuntu).

`make` builds FOLDER/ubuntu, which a web server can serve as Ubuntu's own, FOLDER/ubuntu-later,
which a test copies over it to publish security updates, and FOLDER/ubuntu-archive-keyring.gpg. What
it holds is in ubuntu/RELEASE.yml: repacked packages (Debian's files, Ubuntu's control), NVIDIA's
driver (empty packages with the relations of tests/fixtures/ubuntu/control-relations-*), and
everything else of the folder of Debian's packages as it is, because the others depend on it.
Nothing here was read from an archive of Ubuntu.

    python tests/support/ubuntu_archive.py packages RELEASE [--rest]      (Debian's packages that `make` needs, for apt-get install --download-only)
    python tests/support/ubuntu_archive.py make FOLDER RELEASE=DEBS... [--rest]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from email.utils import formatdate
from pathlib import Path

import vendor_repository as vendor
import yaml

SPECIFICATIONS = Path(__file__).parent / "ubuntu"
FIXTURES = Path(__file__).parents[1] / "fixtures/ubuntu"
COMPONENTS = ["main", "restricted", "universe", "multiverse"]
POCKETS = ["", "-updates", "-security"]
# What -security has after the tests have published it.
LATER = "later"
WHO = "Ubuntu Developers <ubuntu-devel-discuss@lists.ubuntu.com>"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
RELATIONS = ("Depends", "Provides", "Conflicts", "Replaces")
# There is nothing to build and no X, as in vendor/packages.yml.
REDUCED = re.compile(r"dkms\b|xserver-xorg-video-nvidia")
# Debian 12 has neither of them. They do nothing but say what they are.
PLUGIN = """#!/bin/sh
if [ "$1" = docker-cli-plugin-metadata ]; then
    echo '{"SchemaVersion":"0.1.0","Vendor":"the tests","Version":"v@upstream@"}'
else
    echo "@family@ v@upstream@"
fi
"""
# Replays what a test has put there. Without it the tool knows no device.
RECOMMENDER = """#!/bin/sh
case "$*" in *--gpgpu*) answer=list-gpgpu-recommended ;; *) answer=devices ;; esac
cat "/etc/vendor-fixtures/ubuntu-drivers/$answer" 2>/dev/null || true
"""


def specification(release):
    """What ubuntu/RELEASE.yml says."""
    return yaml.safe_load((SPECIFICATIONS / ("%s.yml" % release)).read_text(encoding="utf-8"))


def parts(spec, rest):
    """The repacked packages by their names on Ubuntu, with those of the tests that are left to
    acceptance if C(rest).
    """
    return {**spec["repacked"], **(spec["rest"]["repacked"] if rest else {})}


def wanted(spec, rest):
    """Names of Debian's packages that the archive is made of."""
    names = {
        source for name, entry in parts(spec, rest).items() for source in entry.get("from", [name])
    }
    return sorted(names | set(spec["unchanged"]) | set(spec["rest"]["unchanged"] if rest else []))


# --- Debian's packages ----------------------------------------------------------------------------------------------------


def members(path):
    """The members of a package, by name."""
    data, found, place = path.read_bytes(), {}, 8
    while place < len(data):
        name, size = data[place : place + 16].decode().strip(), int(data[place + 48 : place + 58])
        found[name.rstrip("/")] = data[place + 60 : place + 60 + size]
        place += 60 + size + size % 2
    return found


def scripts_of(found):
    """What lies beside a package's files, by name: content and mode."""
    name = next(name for name in found if name.startswith("control.tar"))
    packed = found[name]
    if name.endswith(".zst"):
        packed = subprocess.run(
            ["zstd", "--decompress", "--stdout"], input=packed, stdout=subprocess.PIPE, check=True
        ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {
            entry.name.removeprefix("./"): (tar.extractfile(entry).read(), entry.mode)
            for entry in tar
            if entry.isfile()
        }


def merged(paths):
    """The files of several packages as the member of one."""
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            subprocess.run(["dpkg-deb", "--extract", str(path), folder], check=True)
        packed = subprocess.run(
            [
                "tar",
                "--create",
                "--use-compress-program=gzip -1",
                "--owner=root",
                "--group=root",
                "--directory",
                folder,
                ".",
            ],
            stdout=subprocess.PIPE,
            check=True,
        )
    return {"data.tar.gz": packed.stdout}


def replaced(control, name, value):
    """A control paragraph with another value of a field, in its place, or without the field."""
    line = "%s: %s\n" % (name, value) if value else ""
    pattern = re.compile(r"^%s: .*\n(?: .*\n)*" % name, re.MULTILINE)
    if pattern.search(control):
        return pattern.sub(lambda _found: line, control, count=1)
    return control.replace("\nDescription:", "\n%sDescription:" % line, 1)


def repacked(name, entry, paths, versions):
    """One of Debian's packages under Ubuntu's name and version.

    C(versions) are Ubuntu's by Debian's name and version, which relations name.
    """
    found = members(paths[0])
    beside = scripts_of(found)
    control = beside["control"][0].decode()
    old = vendor.field(control, "Maintainer")
    for (package, was), now in versions.items():
        control = re.sub(
            r"\b(%s(?::any)?) \((>?=) %s\)" % (re.escape(package), re.escape(was)),
            r"\1 (\2 %s)" % now,
            control,
        )
    for title in RELATIONS:
        if title.lower() in entry:
            control = replaced(control, title, ", ".join(entry[title.lower()]))
    for title, value in (
        ("Source", ""),
        ("Built-Using", ""),
        ("Package", name),
        ("Version", entry["version"]),
        ("Maintainer", WHO),
        ("Original-Maintainer", old),
    ):
        control = replaced(control, title, value)
    # Checksums of Debian's files, which dpkg does not need.
    beside.pop("md5sums", None)
    beside["control"] = (control.encode(), 0o644)
    data = (
        merged(paths)
        if len(paths) > 1
        else {each: found[each] for each in found if each.startswith("data.tar")}
    )
    packed = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", vendor.tar_gz(beside)),
        *data.items(),
    ]
    return control, vendor.ar(packed)


# --- NVIDIA's driver ------------------------------------------------------------------------------------------------------


def relation(text, version):
    """The relations of a paragraph of debian/control as a built package of amd64 has them."""
    text = re.sub(r"\$\{(?:binary|source):Version\}", version, text)
    kept = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        architectures = re.search(r"\[(.*?)\]", each)
        listed = architectures.group(1).split() if architectures else []
        here = "amd64" in listed or all(name.startswith("!") for name in listed)
        if here and "!amd64" not in listed and "${" not in each and not REDUCED.match(each):
            kept.append(re.sub(r"\s*\[.*?\]", "", each))
    return ", ".join(kept)


def paragraphs(driver):
    """The packages of a branch: their fields, by the branch and version of C(driver) in place of
    those of its fixture.
    """
    text = (FIXTURES / ("control-relations-%s.txt" % driver["relations"])).read_text("utf-8")
    for was, now in driver.get("instead", {}).items():
        text = text.replace(str(was), str(now))
    head, *packages = text.strip().split("\n\n")
    who = vendor.field(head, "Maintainer")
    for package in packages:
        fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line)
        yield {"Maintainer": who, **fields}


def driver_files(name, names, driver):
    """Files and scripts of a driver's package: what the roles look at, and nothing of NVIDIA's."""
    upstream = names["upstream"]
    if name.startswith("libnvidia-compute-"):
        files = {}
        for library in ("libnvidia-ml.so", "libcuda.so"):
            files["%s/%s.%s" % (LIBRARIES, library, upstream)] = vendor.shared_library(
                library + ".1"
            )
            files["%s/%s.1" % (LIBRARIES, library)] = "%s.%s" % (library, upstream)
        return files, {"triggers": "activate-noawait ldconfig\n"}
    if name.startswith("nvidia-utils-"):
        return {"usr/bin/nvidia-smi": (vendor.program("nvidia-smi", names), 0o755)}, {}
    if name.startswith("nvidia-compute-utils-"):
        postinst = (FIXTURES / "nvidia-compute-utils.postinst").read_text("utf-8")
        return {
            "usr/bin/nvidia-persistenced": (vendor.program("nvidia-persistenced", names), 0o755),
            "usr/lib/systemd/system/nvidia-persistenced.service": (
                FIXTURES / "nvidia-persistenced.service"
            ).read_bytes(),
        }, {"postinst": postinst.replace("#DEBHELPER#", "")}
    if name.startswith("nvidia-kernel-source-"):
        folder = "nvidia-srv" if driver["suffix"] else "nvidia"
        path = "usr/src/%s-%s/dkms.conf" % (folder, upstream)
        return {path: vendor.program("dkms.conf", names)}, {}
    return {}, {}


def paragraph(name, version, fields):
    """A control paragraph of an empty package."""
    lines = ["Package: " + name, "Version: " + version]
    lines += ["%s: %s" % (title, value) for title, value in fields.items() if value]
    return "\n".join(
        [*lines, "Priority: optional", "Installed-Size: 8", "Description: %s" % name, ""]
    )


def empty(name, version, fields, files=None, scripts=None):
    """A package of the tests' own making: its control paragraph and itself."""
    description = fields.pop("Description", "of the tests' own making")
    fields = {"Architecture": "amd64", "Maintainer": WHO, **fields}
    control = paragraph(name, version, fields).replace(
        "Description: %s" % name, "Description: %s" % description
    )
    files = {**(files or {}), "usr/share/doc/%s/README" % name: b"Not Ubuntu's package.\n"}
    return control, vendor.deb(control, files, scripts)


def driver_packages(driver, kernel):
    """Component, control paragraph and package of each package of a driver's branch."""
    version, suffix = driver["version"], driver["suffix"]
    names = vendor.names_of({"name": "driver_ubuntu"}, version)
    tail = "-%d%s" % (driver["branch"], suffix)
    for fields in paragraphs(driver):
        name = fields.pop("Package")
        fields.update({title: relation(fields.get(title, ""), version) for title in RELATIONS})
        fields["Architecture"] = "amd64"
        fields.setdefault("Section", "restricted/libs")
        beside = ({}, {})
        if not driver.get("transitional"):
            beside = driver_files(name, names, driver)
        yield ("restricted", *empty(name, version, fields, *beside))
    if driver.get("transitional"):
        return
    # Which the fixtures leave out.
    for part in ("encode", "extra", "gl", "fbc1"):
        needed = "libnvidia-compute%s (= %s)" % (tail, version)
        yield (
            "restricted",
            *empty("libnvidia-%s%s" % (part, tail), version, {"Depends": needed}),
        )
    yield (
        "restricted",
        *empty("nvidia-firmware%s-%s" % (tail, names["upstream"]), version, {}),
    )
    # Signed by Canonical, at the kernel's version.
    at = kernel["version"] + "+1"
    for opened in ("", "-open"):
        signed = "linux-modules-nvidia%s%s-%s" % (tail, opened, kernel["flavour"])
        exact = signed.replace(kernel["flavour"], "%(abi)s-%(flavour)s" % kernel)
        relations = {"Depends": "nvidia-kernel-common" + tail}
        yield ("restricted", *empty(exact, at, relations))
        yield ("restricted", *empty(signed, at, {"Depends": "%s (= %s)" % (exact, at)}))
    if suffix:
        unit = "nvidia-fabricmanager.service"
        files = {
            "usr/bin/nv-fabricmanager": (vendor.program("nv-fabricmanager", names), 0o755),
            "usr/lib/systemd/system/" + unit: vendor.program(unit, names),
        }
        name = "nvidia-fabricmanager-%d" % driver["branch"]
        yield ("multiverse", *empty(name, version, {}, files))


# --- the archive ----------------------------------------------------------------------------------------------------------


class Archive:
    """One release: packages by pocket and component, and where they lie in the pool."""

    def __init__(self, folder, spec):
        self.folder, self.root, self.spec = folder, folder / "ubuntu", spec
        self.stanzas = {
            (pocket, component): [] for pocket in [*POCKETS, LATER] for component in COMPONENTS
        }
        self.kept = {}

    def add(self, control, content, component, pocket=""):
        """Put a package into the pool and its paragraph into an index."""
        name, version, architecture = (
            vendor.field(control, key) for key in ("Package", "Version", "Architecture")
        )
        where = self.root / "pool" / component / name[0] / name
        where.mkdir(parents=True, exist_ok=True)
        path = where / ("%s_%s_%s.deb" % (name, version.split(":")[-1], architecture))
        if path.exists() and path.read_bytes() != content:
            raise ValueError("%s has other content in another release: change its version" % path)
        path.write_bytes(content)
        self.kept[name] = (control, content, component)
        head, _, tail = control.rstrip("\n").partition("\nDescription: ")
        self.stanzas[pocket, component].append(
            "%s\nFilename: %s\nSize: %d\nSHA256: %s\nDescription: %s\n"
            % (
                head,
                path.relative_to(self.root),
                len(content),
                hashlib.sha256(content).hexdigest(),
                tail.split("\n")[0],
            )
        )

    def publish(self, name, version, pocket):
        """The same package at another version in another pocket."""
        control, content, component = self.kept[name]
        found = {}
        with tempfile.NamedTemporaryFile(suffix=".deb") as file:
            file.write(content)
            file.flush()
            found = members(Path(file.name))
        beside = scripts_of(found)
        control = replaced(control, "Version", version)
        beside["control"] = (control.encode(), 0o644)
        data = {each: found[each] for each in found if each.startswith("data.tar")}
        packed = [
            ("debian-binary", b"2.0\n"),
            ("control.tar.gz", vendor.tar_gz(beside)),
            *data.items(),
        ]
        self.add(control, vendor.ar(packed), component, pocket)

    def write(self, pocket, content, root):
        """The indexes of a pocket, with the packages that were added to the pocket C(content), and
        its signed Release.
        """
        release, suite = self.spec["release"], self.spec["release"]["codename"] + pocket
        where, listed = root / "dists" / suite, []
        for component in COMPONENTS:
            text = "\n".join(self.stanzas[content, component]).encode()
            target = where / component / "binary-amd64"
            target.mkdir(parents=True, exist_ok=True)
            (target / "Packages").write_bytes(text)
            (target / "Packages.gz").write_bytes(gzip.compress(text, 1))
            listed += [target / "Packages", target / "Packages.gz"]
        sums = [
            " %s %d %s"
            % (
                hashlib.sha256(path.read_bytes()).hexdigest(),
                path.stat().st_size,
                path.relative_to(where),
            )
            for path in listed
        ]
        # A minute back, as in vendor_repository.
        date = formatdate(time.time() - 60).replace("-0000", "UTC")
        lines = [
            "Origin: Ubuntu",
            "Label: Ubuntu",
            "Suite: " + suite,
            "Version: %s" % release["version"],
            "Codename: " + release["codename"],
            "Date: " + date,
            "Architectures: amd64",
            "Components: " + " ".join(COMPONENTS),
            "Description: Ubuntu %s" % release["version"],
            "SHA256:",
            *sums,
        ]
        (where / "Release").write_text("\n".join(lines) + "\n", encoding="utf-8")
        vendor.sign(self.folder, where)


def make_release(folder, spec, debs, rest):
    """One release in the archive of a folder, from a folder of Debian's packages."""
    archive, found, versions = Archive(folder, spec), {}, {}
    for path in sorted(debs.glob("*.deb")):
        found[path.name.partition("_")[0]] = path
    absent = [name for name in wanted(spec, rest) if name not in found]
    if absent:
        raise ValueError("%s has no package of %s" % (debs, ", ".join(absent)))
    repack = parts(spec, rest)
    for name, entry in repack.items():
        for source in entry.get("from", [name]):
            control = scripts_of(members(found[source]))["control"][0].decode()
            versions[source, vendor.field(control, "Version")] = entry["version"]
    for name, entry in repack.items():
        paths = [found[source] for source in entry.get("from", [name])]
        archive.add(*repacked(name, entry, paths, versions), entry["component"])
    taken = {source for source, _version in versions}
    for name in sorted(set(found) - taken):
        control = scripts_of(members(found[name]))["control"][0].decode()
        archive.add(control, found[name].read_bytes(), "universe")
    for driver in spec["drivers"]:
        for component, control, content in driver_packages(driver, spec["kernel"]):
            archive.add(control, content, component)
    for name, version in spec.get("plugins", {}).items():
        family = name.removesuffix("-v2")
        text = vendor.fill(PLUGIN, vendor.names_of({"name": family}, version))
        plugin = {"usr/libexec/docker/cli-plugins/" + family: (text.encode(), 0o755)}
        archive.add(*empty(name, version, {}, plugin), "universe")
    tool = {"usr/bin/ubuntu-drivers": (RECOMMENDER.encode(), 0o755)}
    archive.add(
        *empty("ubuntu-drivers-common", spec["ubuntu_drivers_common"], {}, tool), "restricted"
    )
    for name, version in spec["updates"].items():
        archive.publish(name, version, "-updates")
    for name, version in spec["later"]["packages"].items():
        archive.publish(name, version, LATER)
    for driver in spec["later"]["drivers"]:
        for component, control, content in driver_packages(driver, spec["kernel"]):
            archive.add(control, content, component, LATER)
    for pocket in POCKETS:
        archive.write(pocket, pocket, archive.root)
    archive.write("-security", LATER, folder / "ubuntu-later")


def make(folder, releases, rest=False):
    """Build the archive of several releases, C({name: folder of Debian's packages}).

    An earlier one in that folder is replaced.
    """
    for name in ("ubuntu", "ubuntu-later"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    public = vendor.make_key(folder, False)
    (folder / "ubuntu-archive-keyring.gpg").write_bytes(public["binary"])
    for release, debs in releases.items():
        make_release(folder, specification(release), debs, rest)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="a stand-in for Ubuntu's archive, for tests")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("packages")
    command.add_argument("release")
    command.add_argument("--rest", action="store_true")
    command = commands.add_parser("make")
    command.add_argument("folder", type=Path)
    command.add_argument("releases", nargs="+", metavar="RELEASE=DEBS")
    command.add_argument("--rest", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.command == "packages":
        print(" ".join(wanted(specification(asked.release), asked.rest)))
    else:
        pairs = (pair.partition("=") for pair in asked.releases)
        make(asked.folder, {name: Path(debs) for name, _, debs in pairs}, asked.rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
