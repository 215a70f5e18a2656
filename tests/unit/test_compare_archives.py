"""The weekly comparison with the archives of Ubuntu, NVIDIA and Docker, against indexes that are
made from what the tests believe of them.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vendor_repository as vendor
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".ci/compare_archives.py"
RELEASES = ("jammy", "noble")
spec = importlib.util.spec_from_file_location("compare_archives", PROGRAM)
compare = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = compare
spec.loader.exec_module(compare)


def index(release, **changed):
    """Paragraphs of an archive that is as the facts say, by component.

    C(changed): fields of packages instead, or None for no package.
    """
    found = {}
    for name, fact in compare.facts_of(release).items():
        fields = {
            "Package": name,
            "Version": str(fact.get("seen") or "1"),
            "Maintainer": fact.get("maintainer", "Ubuntu Developers <ubuntu@example.org>"),
            "Section": "misc",
            "Depends": ", ".join(fact.get("depends", [])),
            "Provides": ", ".join(fact.get("provides", [])).replace("X.Y", "12.4"),
            "Description": name,
        }
        if fact.get("transitional_to"):
            fields["Section"] = "restricted/oldlibs"
            stem = name.partition("-5")[0]
            fields["Depends"] = "%s-%s" % (stem, fact["transitional_to"])
        if fact.get("seen", "") is None or changed.get(name, "") is None:
            continue
        component = changed.get(name, {}).pop("component", fact.get("component", "main"))
        fields.update(changed.get(name, {}))
        text = "".join("%s: %s\n" % field for field in fields.items() if field[1])
        found.setdefault(component, []).append(text + " a line that continues\n")
    return found


def compared(release, **changed):
    archive = {}
    for component, paragraphs in index(release, **changed).items():
        archive.update(compare.packages_of("\n".join(paragraphs), component))
    return compare.differences(compare.facts_of(release), archive)


@pytest.mark.parametrize("release", RELEASES)
def test_an_archive_as_the_facts_say(release):
    assert compared(release) == []


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"libpmix2t64": None}, ["libpmix2t64: not in the archive"]),
        (
            {"runc": None, "crun": {"Provides": "oci (= 1), runc"}},
            ["runc: not in the archive, a virtual name of crun"],
        ),
        ({"munge": {"component": "main"}}, ["munge: component 'main', expected 'universe'"]),
        (
            {"nvidia-utils-595-server": {"Maintainer": "NVIDIA <n@example.org>"}},
            [
                "nvidia-utils-595-server: maintainer 'NVIDIA <n@example.org>', expected 'Ubuntu Kernel Team "
                "<kernel-team@lists.ubuntu.com>'"
            ],
        ),
        (
            {"nvidia-utils-580-server": {"Section": "restricted/oldlibs", "Depends": "x"}},
            [
                "nvidia-utils-580-server: transitional, depends on 'x'",
                "nvidia-utils-580-server: depends has no 'nvidia-kernel-common-580-server-580.126.20'",
            ],
        ),
        (
            {"nvidia-utils-550": {"Section": "misc", "Depends": "nvidia-utils-570"}},
            ["nvidia-utils-550: has content, expected a transitional package that leads to 570"],
        ),
        (
            {"nvidia-utils-550-server": {"Depends": "nvidia-utils-580-server"}},
            [
                "nvidia-utils-550-server: depends on 'nvidia-utils-580-server', expected branch 570-server"
            ],
        ),
        ({"libpmix2t64": {"Provides": ""}}, ["libpmix2t64: provides has no 'libpmix2'"]),
        (
            {"podman": {"Depends": "conmon, crun, netavark"}},
            ["podman: depends has no 'golang-github-containers-common'"],
        ),
    ],
)
def test_a_difference_is_named(changed, told):
    assert compared("noble", **changed) == told


def test_a_driver_of_a_newer_version_is_no_difference():
    """Versions move. They are a part of names, too."""
    moved = {"Depends": "nvidia-kernel-common-580-server-580.142"}
    assert compared("noble", **{"nvidia-utils-580-server": moved}) == []


def test_a_package_that_should_not_be_there():
    archive = {"slurm-wlm-mysql-plugin": [compare.Package("universe", {"Package": "x"})]}
    facts = {"slurm-wlm-mysql-plugin": {"seen": None}}
    assert compare.differences(facts, archive) == [
        "slurm-wlm-mysql-plugin: the facts say that it does not exist, and it does"
    ]


def test_a_newer_pocket_does_not_hide_the_facts():
    """An archive has several versions of a package. One that agrees is enough."""
    fact = {"component": "main", "maintainer": "A"}
    packages = [compare.Package("main", {"Maintainer": each}) for each in ("B", "A")]
    assert compare.differing(fact, packages) == []


def run(release, lines, *options):
    return subprocess.run(
        [sys.executable, PROGRAM, release, *options],
        input="".join(lines),
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("release", RELEASES)
def test_the_program(release, tmp_path):
    lines = []
    for component, paragraphs in index(release, munge=None).items():
        path = tmp_path / component
        path.write_text("\n".join(paragraphs), encoding="utf-8")
        lines.append("%s http://archive.ubuntu.com/ubuntu/ %s\n" % (component, path))
    done = run(release, lines)
    assert (done.returncode, done.stdout) == (1, "%s: munge: not in the archive\n" % release)
    assert "compared, 1 differences" in done.stderr


@pytest.mark.parametrize("option", [(), ("--vendors",)])
def test_without_an_index_nothing_is_compared(option):
    done = run("noble", [], *option)
    assert done.returncode == 2 and "Run apt-get update first" in done.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_names_whose_installation_is_simulated(release):
    """All that exist, with those that are only named; of the vendors what the roles install."""
    names = run(release, [], "--names").stdout.split()
    assert {"gcc", "munge", "nvidia-dkms-580"} < set(names)
    assert "slurm-wlm-mysql-plugin" in names if release == "noble" else "libpmix2" in names
    assert ("slurm-wlm-mysql-plugin" in names) == (release == "noble")
    vendors = set(run(release, [], "--names", "--vendors").stdout.split())
    assert {"nvidia-open-580", "nvidia-fabricmanager", "containerd.io"} < vendors
    assert "nvidia-container-toolkit" in vendors and not any("<" in name for name in vendors)


# NVIDIA's and Docker's repositories: the stand-in of the tests, read by apt itself.

URI = "https://download.docker.com/linux/ubuntu"
APT = """deb [signed-by=%(made)s.asc arch=amd64] file:%(made)s/compute/cuda/repos/ubuntu2404/x86_64/ /
deb [signed-by=%(made)s.asc arch=amd64] file:%(made)s/libnvidia-container/stable/deb/amd64/ /
"""


@pytest.fixture(name="vendors")
def _vendors(tmp_path):
    """A function that compares the stand-in with what the tests believe of it, after it was
    changed.
    """
    made = tmp_path / "made"
    vendor.make(made, only=("driver_ubuntu", "nccl", "toolkit"))
    (tmp_path / "made.asc").write_bytes((made / "libnvidia-container/gpgkey").read_bytes())
    # Docker's packages, and the builds of NCCL that the stand-in leaves out.
    rows = yaml.safe_load((ROOT / "plugins/plugin_utils/compat/nccl.yml").read_text())["nccl"]
    paragraphs = [
        "Package: libnccl2\nVersion: %s\nMaintainer: x\n" % row["deb_version"]
        for row in rows["debs"]
        if "ubuntu2404" in row["dirs"]
    ]
    (tmp_path / "nccl").write_text("\n".join(paragraphs), encoding="utf-8")

    def compared(without=""):
        docker = [name for name in compare.docker_packages() if name != without]
        text = "\n".join("Package: %s\nVersion: 1\nMaintainer: x\n" % name for name in docker)
        (tmp_path / "docker").write_text(text, encoding="utf-8")
        (tmp_path / "sources.list").write_text(APT % {"made": made}, encoding="utf-8")
        for folder in ("lists/partial", "cache/archives/partial", "parts", "state"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "status").touch()
        options = {
            "Dir::Etc::SourceList": "sources.list",
            "Dir::Etc::SourceParts": "parts",
            "Dir::State": "state",
            "Dir::State::Lists": "lists",
            "Dir::State::status": "status",
            "Dir::Cache": "cache",
        }
        apt = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
        for name, path in options.items():
            apt += ["-o", "%s=%s" % (name, tmp_path / path)]
        subprocess.run([*apt, "update"], check=True, capture_output=True)
        script = (ROOT / ".ci/archives").read_text(encoding="utf-8")
        form = re.search(r"--format '([^']+)' '([^']+)'", script)
        listed = subprocess.run(
            [*apt, "indextargets", "--format", *form.groups()],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout.splitlines(keepends=True)
        assert len(listed) == 2
        cuda = "https://x/compute/cuda/repos/ubuntu2404/x86_64/"
        listed += ["stable %s/ %s\n" % (URI, tmp_path / "docker")]
        listed += ["$(COMPONENT) %s %s\n" % (cuda, tmp_path / "nccl")]
        done = run("noble", listed, "--vendors")
        assert done.returncode == int(bool(done.stdout)), done.stderr
        return [line.removeprefix("noble: ") for line in done.stdout.splitlines()]

    return made, compared


def test_repositories_as_the_tests_believe(vendors):
    _made, compared = vendors
    assert compared() == []


def test_what_a_vendor_has_changed_is_named(vendors):
    made, compared = vendors
    vendor.withdraw(made, "ubuntu2404", "nvidia-persistenced")
    index = made / "compute/cuda/repos/ubuntu2404/x86_64"
    stanzas = vendor.read_index(index)
    changed = [
        text.replace("Maintainer: Ubuntu Core Developers", "Maintainer: cudatools")
        if "Package: nvidia-utils-580\n" in text
        else text.replace(", nvlsm (>= 2025.10.12)", "")
        for text in stanzas
    ]
    vendor.write_index(made, index, changed, "NVIDIA", "NVIDIA CUDA")
    found = compared(without="docker-compose-plugin")
    missing = "no version %d in the archive, a virtual name of nvidia-compute-utils-535, "
    missing += "nvidia-compute-utils-550, nvidia-compute-utils-570"
    assert [line for line in found if not line.startswith(("nvidia-utils", "nvlink5"))] == [
        "nvidia-persistenced: " + missing % 580,
        "nvidia-persistenced: " + missing % 590,
        "docker-compose-plugin: not in the archive",
    ]
    (told,) = [line for line in found if line.startswith("nvidia-utils")]
    assert told.startswith("nvidia-utils-580: maintainer 'cudatools <")
    assert "nvlink5-580: depends has no 'nvlsm (>= 2025.10.12)'" in found


def test_a_build_of_nccl_that_is_gone():
    archive = {"libnccl2": []}
    found = compare.nccl_differences("ubuntu2404", archive)
    assert "libnccl2: no version 2.27.3-1+cuda12.9, which the compatibility data has" in found


@pytest.mark.parametrize("release", RELEASES)
def test_sources_of_the_vendors(release):
    """The URLs and keys of the roles' defaults."""
    rows = [row.split(" ", 2) for row in compare.sources(release)]
    assert [name for name, _key, _line in rows] == ["cuda", "toolkit", "docker"]
    assert all(key.startswith("https://") for _name, key, _line in rows)
    assert compare.directory_of(release) in rows[0][2] and release in rows[2][2]
    # What the comparison knows a repository by.
    uris = [line.split("] ")[1].split()[0] + "/" for _name, _key, line in rows]
    assert re.search(compare.CUDA, uris[0]).group(1) == compare.directory_of(release)
    assert compare.TOOLKIT in uris[1] and compare.DOCKER in uris[2]
