"""A signed repository of the vendor's kind, made on the fly: packages of NVIDIA's names, versions
and dependencies, whose programs replay fixtures.

`make` builds, in a folder that any web server can serve,
    compute/cuda/repos/<directory>/x86_64/    as developer.download.nvidia.com has it, cuda-keyring packages and libnccl (in Ubuntu's directories only) included
    libnvidia-container/                      as nvidia.github.io has it: gpgkey, stable/deb/amd64/, stable/deb/nvidia-container-toolkit.list
    runfiles/                                 self-extracting installers of the driver and of CUDA, each with its .sha256sum
    vendor.json                               the key's fingerprint, and the sha256 of the keyring packages and of the installers, by path
What is in there, and where it was read, is in vendor/packages.yml. Nothing in it is NVIDIA's: the programs are ours, in vendor/programs. What nvidia-smi
says, a test puts into /etc/vendor-fixtures/nvidia-smi (vendor/programs/nvidia-smi tells how); without it, it says what the real one says without a driver.
A key of its own signs it all, thrown away with the folder. The debs are written here, not by dpkg-deb, so that some hundred of them take a second or two.

    python tests/support/vendor_repository.py make FOLDER [--expired-key] [--only driver --only nccl] [--url http://172.30.1.24:8000]
    python tests/support/vendor_repository.py publish FOLDER DIRECTORY FAMILY VERSION
    python tests/support/vendor_repository.py withdraw FOLDER DIRECTORY PACKAGE VERSION      (* for any)
    python tests/support/vendor_repository.py foreign FOLDER ORIGIN NAME=VERSION…    (a signed repository of somebody else's, such as a PPA)
    python tests/support/vendor_repository.py serve FOLDER [--address A] [--port P] [--gone-after N]
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from email.utils import formatdate
from pathlib import Path

import yaml

DATA = Path(__file__).parent / "vendor"
FIXTURES = Path(__file__).parents[1] / "fixtures"
CUDA = "compute/cuda/repos"
TOOLKIT = "libnvidia-container/stable/deb"
KEY = ".signing-key.asc"
# For an expired key: it is made and signs in a year that is over, and is good for the next one
# alone.
PAST = "20200101T000000!"
CUDATOOLS = "cudatools <cudatools@nvidia.com>"
FIELDS = [
    "pre_depends",
    "depends",
    "recommends",
    "suggests",
    "conflicts",
    "breaks",
    "replaces",
    "provides",
]


# --- files of the formats -------------------------------------------------------------------------------------------------


def tar_gz(entries):
    """entries: by path, what lies there: bytes, or bytes and a mode, or a text that a symbolic link
    leads to. Same entries, same bytes.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folders = {str(parent) for path in entries for parent in Path(path).parents} - {".", "/"}
        for folder in ["", *sorted(folders)]:
            info = tarfile.TarInfo("./%s" % folder.strip("/"))
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for path, entry in sorted(entries.items()):
            info = tarfile.TarInfo("./%s" % path.strip("/"))
            if isinstance(entry, str):
                info.type, info.linkname = tarfile.SYMTYPE, entry
                tar.addfile(info)
                continue
            content, mode = entry if isinstance(entry, tuple) else (entry, 0o644)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), 1, mtime=0)


def deb(control, files, scripts=None):
    """A Debian package: control is its paragraph; scripts, by name, are what lies beside it
    (postinst, triggers …).
    """
    beside = {
        name: (
            text.encode(),
            0o755 if name in ("preinst", "postinst", "prerm", "postrm") else 0o644,
        )
        for name, text in (scripts or {}).items()
    }
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", tar_gz({"control": control.encode(), **beside})),
        ("data.tar.gz", tar_gz(files)),
    ]
    return ar(members)


def ar(members):
    """The archive that a Debian package is: names and contents, in this order."""
    packed = b"!<arch>\n"
    for name, content in members:
        packed += (
            b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name.encode(), 0, 0, 0, b"100644", len(content))
            + content
            + b"\n" * (len(content) % 2)
        )
    return packed


def shared_library(soname):
    """The least that ldconfig takes for a library of this machine's kind: an ELF header, and a
    dynamic section with nothing but the library's name.
    """
    strings = b"\0" + soname.encode() + b"\0"
    headers, dynamic_size = 64 + 2 * 56, 5 * 16
    at_strings = headers + dynamic_size
    size = at_strings + len(strings)
    header = (
        b"\x7fELF"
        + bytes([2, 1, 1, 0])
        + bytes(8)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    dynamic = struct.pack(
        "<IIQQQQQQ", 2, 4, headers, headers, headers, dynamic_size, dynamic_size, 8
    )
    # DT_SONAME, DT_STRTAB, DT_STRSZ, DT_SYMTAB (nothing is looked up in it), DT_NULL
    entries = struct.pack("<10Q", 14, 1, 5, at_strings, 10, len(strings), 6, headers, 0, 0)
    return header + load + dynamic + entries + strings


# --- what the packages are ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def load():
    with open(DATA / "packages.yml", encoding="utf-8") as stream:
        return yaml.safe_load(stream)


def fill(text, names):
    """Text of packages.yml or of a program, with @name@ put in.

    An unknown name is an error, not an empty text.
    """
    return re.sub(r"@([a-z_]+)@", lambda match: str(names[match.group(1)]), text)


def names_of(family, version):
    """What may stand between two @ for one version of a family; version is a text, or a mapping
    with more names.
    """
    more = dict(version) if isinstance(version, dict) else {"version": version}
    upstream = re.match(r"\d+(?:\.\d+)*", str(more["version"])).group()
    numbers = [int(number) for number in upstream.split(".")] + [0, 0]
    series = ".".join(upstream.split(".")[:2])
    names = {
        "upstream": upstream,
        "branch": numbers[0],
        "tail": "-%d" % numbers[0] if numbers[0] < 590 else "",
        "series": series,
        "dashed": series.replace(".", "-"),
        "family": family["name"],
        "major": numbers[0],
        "minor": numbers[1],
        "patch": numbers[2],
        "nccl_code": numbers[0] * 10000 + numbers[1] * 100 + numbers[2],
        "driver_cuda": load()["driver_cuda"].get(numbers[0], ""),
        "nvcc_text": nvcc_text(str(more.get("compiler", ""))),
        **more,
    }
    return {name: str(value) for name, value in names.items()}


def nvcc_text(compiler):
    """What an nvcc says, by its package's version: a fixture where there is one, else the words of
    packages.yml.
    """
    if not compiler:
        return ""
    answer = load()["nvcc"][compiler.split("-")[0]]
    text = (
        (FIXTURES / "nvcc" / answer["fixture"]).read_text(encoding="utf-8")
        if "fixture" in answer
        else answer["text"]
    )
    # Some were pasted as comments.
    return "".join(line.removeprefix("# ") for line in text.splitlines(keepends=True))


def program(name, names):
    return fill((DATA / "programs" / name).read_text(encoding="utf-8"), names).encode()


def content(entry, names):
    """One of a package's files: {program: …}, {library: soname}, {link: target}, {text: …}."""
    if "program" in entry:
        return program(entry["program"], names), 0o755
    if "library" in entry:
        return shared_library(fill(entry["library"], names))
    if "link" in entry:
        return fill(entry["link"], names)
    return fill(entry["text"], names).encode(), 0o644


def applies(package, names):
    """Whether a family has a package in that version: names changed with the branches."""
    branch = int(names["branch"])
    return package.get("since", 0) <= branch <= package.get("until", branch)


def packages(family, version):
    """The packages of a family in one version: control paragraph, files and scripts of each."""
    names = names_of(family, version)
    for package in family["packages"]:
        if not applies(package, names):
            continue
        name = fill(package["name"], names)
        lines = [
            "Package: %s" % name,
            "Version: %s" % fill(package.get("version", "@version@"), names),
            "Architecture: %s" % package.get("arch", "amd64"),
            "Maintainer: %s" % package.get("maintainer", family.get("maintainer", CUDATOOLS)),
            "Section: %s" % family.get("section", "devel"),
            "Priority: optional",
            "Installed-Size: 8",
        ]
        if package.get("source", family.get("source")):
            lines.append("Source: %s" % package.get("source", family.get("source")))
        if package.get("multi_arch"):
            lines.append("Multi-Arch: %s" % package["multi_arch"])
        for field in FIELDS:
            if package.get(field):
                lines.append(
                    "%s: %s"
                    % (
                        field.replace("_", "-").title(),
                        ", ".join(fill(relation, names) for relation in package[field]),
                    )
                )
        lines.append(
            "Description: %s\n of the tests' own making; holds nothing of NVIDIA's"
            % package.get("description", name)
        )
        files = {
            fill(path, names): content(entry, names)
            for path, entry in package.get("files", {}).items()
        }
        files["usr/share/doc/%s/README" % name] = b"Made by tests/support/vendor_repository.py.\n"
        scripts = {script: fill(text, names) for script, text in package.get("scripts", {}).items()}
        # As debhelper does it.
        settings = sorted(path for path in files if path.startswith("etc/"))
        if settings:
            scripts["conffiles"] = "".join("/%s\n" % path for path in settings)
        if any("library" in entry for entry in package.get("files", {}).values()):
            scripts["triggers"] = "activate-noawait ldconfig\n"
        yield "\n".join(lines) + "\n", files, scripts


# --- the key --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def keyring():
    """gpg with a home of its own, whose path is short enough for its agent's socket."""
    home = tempfile.mkdtemp(prefix="vr", dir="/tmp")
    os.chmod(home, 0o700)

    def gpg(*arguments, data=None):
        return subprocess.run(
            [
                "gpg",
                "--homedir",
                home,
                "--batch",
                "--quiet",
                "--no-tty",
                "--pinentry-mode",
                "loopback",
                "--passphrase",
                "",
                *arguments,
            ],
            input=data,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout

    try:
        yield gpg
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)


def past(folder):
    """Options for a key that has expired since: gpg would not sign with it today."""
    return ["--faked-system-time", PAST] if (folder / ".expired").exists() else []


def make_key(folder, expired):
    (folder / ".expired").touch() if expired else (folder / ".expired").unlink(missing_ok=True)
    with keyring() as gpg:
        gpg(
            *past(folder),
            "--quick-generate-key",
            "cudatools of the tests <cudatools@nvidia.com>",
            "ed25519",
            "sign",
            "1y" if expired else "never",
        )
        (folder / KEY).write_bytes(gpg("--armor", "--export-secret-keys"))
        public = {"armored": gpg("--armor", "--export"), "binary": gpg("--export")}
    return public


def sign(folder, where):
    """Release, Release.gpg and InRelease of one directory."""
    with keyring() as gpg:
        gpg("--import", str(folder / KEY))
        release = (where / "Release").read_bytes()
        (where / "InRelease").write_bytes(
            gpg(*past(folder), "--armor", "--clear-sign", data=release)
        )
        (where / "Release.gpg").write_bytes(
            gpg(*past(folder), "--armor", "--detach-sign", data=release)
        )


# --- one directory of debs ------------------------------------------------------------------------------------------------


def stanza(path, control):
    """A package as the index has it."""
    content_of = path.read_bytes()
    lines = control.rstrip("\n").split("\nDescription: ")
    return "%s\nFilename: ./%s\nSize: %d\nMD5sum: %s\nSHA1: %s\nSHA256: %s\nDescription: %s\n" % (
        lines[0],
        path.name,
        len(content_of),
        hashlib.md5(content_of).hexdigest(),
        hashlib.sha1(content_of).hexdigest(),
        hashlib.sha256(content_of).hexdigest(),
        lines[1],
    )


def field(text, name):
    return re.search(r"^%s: (.*)$" % name, text, re.MULTILINE).group(1)


def read_index(where):
    index = where / "Packages"
    return (
        [
            text + "\n"
            for text in index.read_text(encoding="utf-8").strip("\n").split("\n\n")
            if text
        ]
        if index.exists()
        else []
    )


def write_index(folder, where, stanzas, origin, label):
    stanzas = sorted(stanzas, key=lambda text: (field(text, "Package"), field(text, "Version")))
    index = "\n".join(stanzas).encode()
    (where / "Packages").write_bytes(index)
    (where / "Packages.gz").write_bytes(gzip.compress(index, 6, mtime=0))
    names = ["Packages", "Packages.gz"]
    # A minute back: a host whose clock is a second behind would call it not valid yet.
    made = past(folder) and time.time() - 86400 or time.time() - 60
    lines = [
        "Origin: %s" % origin,
        "Label: %s" % label,
        "Architectures: amd64",
        "Date: %s" % formatdate(made).replace("-0000", "UTC"),
    ]
    for title, function in [
        ("MD5Sum", hashlib.md5),
        ("SHA1", hashlib.sha1),
        ("SHA256", hashlib.sha256),
    ]:
        lines.append("%s:" % title)
        for name in names:
            entry = (where / name).read_bytes()
            lines.append(" %s %16d %s" % (function(entry).hexdigest(), len(entry), name))
    (where / "Release").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sign(folder, where)


def add(where, package):
    control, files, scripts = package
    name, version, arch = (field(control, key) for key in ("Package", "Version", "Architecture"))
    # An epoch isn't in a file's name.
    path = where / ("%s_%s_%s.deb" % (name, version.split(":")[-1], arch))
    path.write_bytes(deb(control, files, scripts))
    return stanza(path, control)


def place(folder, directory):
    """Where a directory of packages.yml lies, and whose it says it is."""
    if directory == "container_toolkit":
        # As apt-cache policy shows the older directories beside it (excerpt 28913247563); of this
        # one nobody quotes it.
        return (
            folder / TOOLKIT / "amd64",
            "https://nvidia.github.io/libnvidia-container",
            "NVIDIA CORPORATION <cudatools@nvidia.com>",
        )
    return folder / CUDA / directory / "x86_64", "NVIDIA", "NVIDIA CUDA"


def keyring_package(directory, version, public, url):
    """cuda-keyring, of the layout that NVIDIA's has: keyring, source and pin.

    The source names the real host, as a firm's mirror of it would.
    """
    source = "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] %s/%s/x86_64/ /\n" % (
        url,
        directory,
    )
    control = (
        "Package: cuda-keyring\nVersion: %s\nArchitecture: all\nMaintainer: cudatools <cudatools@nvidia.com>\nSection: multiverse/devel\n"
        "Priority: optional\nInstalled-Size: 11\nDescription: GPG keyring for the CUDA repository\n of the tests' own making\n"
        % version
    )
    files = {
        "usr/share/keyrings/cuda-archive-keyring.gpg": public["binary"],
        "etc/apt/sources.list.d/cuda-%s-x86_64.list" % directory: source.encode(),
    }
    scripts = {"conffiles": "/etc/apt/sources.list.d/cuda-%s-x86_64.list\n" % directory}
    if directory.startswith("ubuntu"):
        files["etc/apt/preferences.d/cuda-repository-pin-600"] = PIN
        scripts["conffiles"] += "/etc/apt/preferences.d/cuda-repository-pin-600\n"
    return control, files, scripts


PIN = b"""Package: nsight-compute
Pin: origin *ubuntu.com*
Pin-Priority: -1

Package: nsight-systems
Pin: origin *ubuntu.com*
Pin-Priority: -1

Package: *
Pin: release l=NVIDIA CUDA
Pin-Priority: 600
"""


# --- self-extracting files ------------------------------------------------------------------------------------------------


def self_extracting(title, inner, target, files):
    """A shell script with an archive behind it, of the vendor's kind."""
    archive = tar_gz(files)
    names = {
        "title": title,
        "inner": inner,
        "target": target,
        "sum": hashlib.md5(archive).hexdigest(),
    }
    lines = program("runfile", {**names, "lines": 0}).count(b"\n")
    return program("runfile", {**names, "lines": lines}) + archive


def driver_runfile(version):
    names = names_of({"name": "driver"}, str(version))
    data = load()["runfiles"]["driver"]
    options = []
    for kind in ("flag", "boolean", "argument"):
        for name in data[kind]:
            options.append(
                "%s %s %s %s"
                % (name, kind, data["letters"].get(name, "-"), data["since"].get(name, 0))
            )
    names["options"] = "\n".join(options)
    files = {
        name: (program(name, names), 0o755)
        for name in ("nvidia-installer", "nvidia-smi", "nvidia-persistenced")
    }
    files["dkms.conf"] = program("dkms.conf", names)
    for library in ("libnvidia-ml", "libcuda"):
        files["%s.so.%s" % (library, version)] = shared_library("%s.so.1" % library)
    name = "NVIDIA-Linux-x86_64-%s" % version
    return "%s.run" % name, self_extracting(
        "NVIDIA Accelerated Graphics Driver for Linux-x86_64 %s" % version,
        "nvidia-installer",
        name,
        files,
    )


def cuda_runfile(entry):
    names = names_of({"name": "cuda"}, entry)
    library = "toolkit/targets/x86_64-linux/lib"
    driver_name, driver = driver_runfile(entry["driver"])
    files = {
        "cuda-installer": (program("cuda-installer", names), 0o755),
        driver_name: (driver, 0o755),
        "toolkit/bin/nvcc": (program("nvcc", names), 0o755),
        "toolkit/bin/cuda-uninstaller": (program("cuda-uninstaller", names), 0o755),
        "toolkit/lib64": "targets/x86_64-linux/lib",
        "%s/libcudart.so.%s" % (library, names["branch"]): "libcudart.so.%s" % names["upstream"],
        "%s/libcudart.so.%s" % (library, names["upstream"]): shared_library(
            "libcudart.so.%s" % names["branch"]
        ),
    }
    name = "cuda_%s_%s_linux.run" % (entry["version"], entry["driver"])
    return name, self_extracting(
        "CUDA %s Installer" % entry["version"],
        "cuda-installer",
        "cuda-%s" % entry["version"],
        files,
    )


def make_runfiles(folder):
    """Both kinds, each with the checksum beside it that NVIDIA publishes for the driver's."""
    folder.mkdir()
    data = load()["runfiles"]
    for name, made in [driver_runfile(version) for version in data["driver"]["versions"]] + [
        cuda_runfile(entry) for entry in data["cuda"]["versions"]
    ]:
        (folder / name).write_bytes(made)
        (folder / (name + ".sha256sum")).write_text(
            "%s  %s\n" % (hashlib.sha256(made).hexdigest(), name), encoding="utf-8"
        )


# --- what tests call ------------------------------------------------------------------------------------------------------


def make(folder, expired_key=False, only=(), url="https://developer.download.nvidia.com"):
    """Build everything, or of the families only some. url: what cuda-keyring's source names.

    An earlier build in that folder is replaced.
    """
    folder, data = Path(folder), load()
    for part in ("compute", "libnvidia-container", "runfiles"):
        shutil.rmtree(folder / part, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    public = make_key(folder, expired_key)
    families = [family for family in data["families"] if not only or family["name"] in only]
    for directory in data["directories"]:
        where, origin, label = place(folder, directory["name"])
        where.mkdir(parents=True)
        stanzas = []
        for family in families:
            if directory["name"] in family["directories"]:
                stanzas += [
                    add(where, package)
                    for version in family["versions"]
                    for package in packages(family, version)
                ]
        for version in directory.get("keyrings", []):
            stanzas.append(
                add(
                    where,
                    keyring_package(directory["name"], version, public, "%s/%s" % (url, CUDA)),
                )
            )
        if directory.get("keyrings"):
            (where / "3bf863cc.pub").write_bytes(public["armored"])
            (where / "cuda-archive-keyring.gpg").write_bytes(public["binary"])
            (where / ("cuda-%s.pin" % directory["name"])).write_bytes(PIN)
        write_index(folder, where, stanzas, origin, label)
    toolkit = folder / TOOLKIT
    (folder / "libnvidia-container/gpgkey").write_bytes(public["armored"])
    (toolkit / "nvidia-container-toolkit.list").write_text(
        "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n#deb https://nvidia.github.io/libnvidia-container/experimental/deb/$(ARCH) /\n",
        encoding="utf-8",
    )
    if not only or "runfiles" in only:
        make_runfiles(folder / "runfiles")
    (folder / "vendor.json").write_text(
        json.dumps(described(folder, public), indent=1) + "\n", encoding="utf-8"
    )
    return folder


def described(folder, public):
    """What a scenario has to give a role: the key's fingerprint, and checksums by path."""
    with keyring() as gpg:
        listed = gpg(
            "--with-colons", "--import-options", "show-only", "--import", data=public["binary"]
        ).decode()
    files = sorted(folder.glob("compute/cuda/repos/*/x86_64/cuda-keyring_*.deb")) + sorted(
        folder.glob("runfiles/*.run")
    )
    return {
        "fingerprint": re.search(r"^fpr:+([0-9A-F]{40}):", listed, re.MULTILINE).group(1),
        "sha256": {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
    }


def make_foreign(folder, origin, offers):
    """A repository of somebody else's, signed by a key of its own (key.asc): packages of these
    names and versions, with nothing in them.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.asc").write_bytes(make_key(folder, False)["armored"])
    control = (
        "Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: Somebody <somebody@example.org>\nSection: misc\nPriority: optional\n"
        "Description: a package of the tests' own making\n"
    )
    write_index(
        folder,
        folder,
        [
            add(
                folder,
                (control % (name, version), {"usr/share/doc/%s/README" % name: b"Nothing.\n"}, {}),
            )
            for name, version in offers
        ],
        origin,
        origin,
    )


def publish(folder, directory, family, version):
    """Add one version of a family to a directory, as the vendor does overnight."""
    folder = Path(folder)
    where, origin, label = place(folder, directory)
    found = [
        entry
        for entry in load()["families"]
        if entry["name"] == family and directory in entry["directories"]
    ]
    if not found:
        raise ValueError("%s has no family %s" % (directory, family))
    known = next(
        (
            entry
            for entry in found[0]["versions"] + found[0].get("later", [])
            if entry == version or isinstance(entry, dict) and entry["version"] == version
        ),
        version,
    )
    new = [add(where, package) for package in packages(found[0], known)]
    files = {field(text, "Filename") for text in new}
    write_index(
        folder,
        where,
        [text for text in read_index(where) if field(text, "Filename") not in files] + new,
        origin,
        label,
    )


def withdraw(folder, directory, package, version="*"):
    """Take packages away, by patterns of name and version, as the vendor does with old ones."""
    folder = Path(folder)
    where, origin, label = place(folder, directory)
    stanzas = read_index(where)
    gone = [
        text
        for text in stanzas
        if fnmatch.fnmatchcase(field(text, "Package"), package)
        and fnmatch.fnmatchcase(field(text, "Version"), version)
    ]
    if not gone:
        raise ValueError("%s has no %s %s" % (directory, package, version))
    for text in gone:
        (where / field(text, "Filename")).unlink()
    write_index(folder, where, [text for text in stanzas if text not in gone], origin, label)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files; after as many requests as the server was given it says nothing any more, as a mirror
    that goes away in the middle.
    """

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.gone_after is not None and len(self.server.asked) > self.server.gone_after:
            self.close_connection = True
            return
        super().do_GET()

    def log_message(self, format, *args):
        if self.server.loud:
            super().log_message(format, *args)


def server(folder, address="127.0.0.1", port=0, gone_after=None, loud=False):
    made = http.server.ThreadingHTTPServer(
        (address, port), functools.partial(Handler, directory=str(folder))
    )
    made.asked, made.gone_after, made.loud = [], gone_after, loud
    return made


@contextlib.contextmanager
def serve(folder, address="127.0.0.1", port=0, gone_after=None):
    """Yields the server: its url, asked (what it was asked for, so far) and gone_after, which may
    be set while it runs.
    """
    running = server(folder, address, port, gone_after)
    running.url = "http://%s:%d" % running.server_address[:2]
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def main(arguments=None):
    parser = argparse.ArgumentParser(description="a repository of NVIDIA's kind, for tests")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make")
    command.add_argument("folder", type=Path)
    command.add_argument("--expired-key", action="store_true")
    command.add_argument(
        "--only",
        action="append",
        default=[],
        choices=sorted({family["name"] for family in load()["families"]} | {"runfiles"}),
    )
    command.add_argument("--url", default="https://developer.download.nvidia.com")
    for name in ("publish", "withdraw"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("directory")
        command.add_argument("family" if name == "publish" else "package")
        command.add_argument("version")
    command = commands.add_parser("foreign")
    command.add_argument("folder", type=Path)
    command.add_argument("origin")
    command.add_argument("offers", nargs="+")
    command = commands.add_parser("serve")
    command.add_argument("folder", type=Path)
    command.add_argument("--address", default="127.0.0.1")
    command.add_argument("--port", type=int, default=8000)
    command.add_argument("--gone-after", type=int)
    asked = parser.parse_args(arguments)
    if asked.command == "make":
        make(asked.folder, asked.expired_key, asked.only, asked.url)
    elif asked.command == "foreign":
        make_foreign(asked.folder, asked.origin, [offer.split("=") for offer in asked.offers])
    elif asked.command == "publish":
        publish(asked.folder, asked.directory, asked.family, asked.version)
    elif asked.command == "withdraw":
        withdraw(asked.folder, asked.directory, asked.package, asked.version)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            server(
                asked.folder, asked.address, asked.port, asked.gone_after, loud=True
            ).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
