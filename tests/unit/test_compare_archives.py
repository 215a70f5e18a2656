"""The weekly comparison with Ubuntu's archives, against indexes that are made from what the tests believe of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".ci/compare_archives.py"
FACTS = yaml.safe_load((ROOT / "tests/fixtures/ubuntu/facts.yml").read_text(encoding="utf-8"))
RELEASES = ("jammy", "noble")
spec = importlib.util.spec_from_file_location("compare_archives", PROGRAM)
compare = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = compare
spec.loader.exec_module(compare)


def index(release, **changed):
    """Paragraphs of an archive that is as the facts say, by component. C(changed): fields of packages instead, or None for no package."""
    found = {}
    for name, fact in FACTS[release]["packages"].items():
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
    return compare.differences(FACTS[release]["packages"], archive)


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


def run(release, lines):
    return subprocess.run(
        [sys.executable, PROGRAM, release],
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
        lines.append("%s %s\n" % (component, path))
    done = run(release, lines)
    assert (done.returncode, done.stdout) == (1, "%s: munge: not in the archive\n" % release)
    assert "packages compared, 1 differences" in done.stderr


def test_without_an_index_nothing_is_compared():
    done = run("noble", [])
    assert done.returncode == 2 and "Run apt-get update first" in done.stderr
