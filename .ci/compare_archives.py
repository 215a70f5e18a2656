#!/usr/bin/env python3
"""Compare what the tests believe of Ubuntu's archives with indexes of the real ones.

    apt-get indextargets --format '$(COMPONENT) $(FILENAME)' 'Identifier: Packages' | .ci/compare_archives.py RELEASE
    .ci/compare_archives.py RELEASE --names      prints the names of the packages that exist

The input has a component and a path of an index on each line. tests/fixtures/ubuntu/facts.yml is compared: names, components, maintainers, relations, and
which packages are transitional. Versions move, so they are not. Prints each difference, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

FACTS = Path(__file__).resolve().parents[1] / "tests/fixtures/ubuntu/facts.yml"
TRANSITIONAL = re.compile(r"transitional|dummy package", re.IGNORECASE)


class Package(NamedTuple):
    """A package of an index. fields: its paragraph's, one line each."""

    component: str
    fields: dict[str, str]

    @property
    def depends(self) -> list[str]:
        """Names that it depends on, alternatives among them."""
        text = ",".join(self.fields.get(name, "") for name in ("Pre-Depends", "Depends"))
        return [
            name for name in re.split(r"\s*(?:\([^)]*\))?\s*[,|]\s*|\s*\([^)]*\)", text) if name
        ]

    @property
    def provides(self) -> list[str]:
        """Names that it provides."""
        return re.findall(r"(?:^|,)\s*([^\s,(]+)", self.fields.get("Provides", ""))

    @property
    def is_transitional(self) -> bool:
        """Whether it is empty and leads to another package."""
        return "oldlibs" in self.fields.get("Section", "") or bool(
            TRANSITIONAL.search(self.fields.get("Description", ""))
        )


def packages_of(text: str, component: str) -> dict[str, list[Package]]:
    """Return the packages of an index by name. Lines that continue a field are left out, because no compared field has any."""
    found: dict[str, list[Package]] = {}
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line[0].isspace()]
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        if "Package" in fields:
            found.setdefault(fields["Package"], []).append(Package(component, fields))
    return found


def differences(facts: dict[str, dict], archive: dict[str, list[Package]]) -> list[str]:
    """Return what differs between the facts about a release's packages and its archive, one line for each difference."""
    found = []
    for name, fact in facts.items():
        packages = archive.get(name, [])
        if "seen" in fact and fact["seen"] is None:
            if packages:
                found.append(f"{name}: the facts say that it does not exist, and it does")
        elif packages:
            found += [f"{name}: {told}" for told in differing(fact, packages)]
        else:
            found.append(f"{name}: not in the archive{provided(name, archive)}")
    return found


def provided(name: str, archive: dict[str, list[Package]]) -> str:
    """Return which packages provide a name, as the end of a sentence."""
    names = {
        package.fields["Package"]
        for packages in archive.values()
        for package in packages
        if name in package.provides
    }
    return f", a virtual name of {', '.join(sorted(names))}" if names else ""


def differing(fact: dict, packages: list[Package]) -> list[str]:
    """Return what differs between the facts about a package and its versions in the pockets of the archive. One that agrees is enough."""
    found = []
    components = sorted({package.component for package in packages})
    if fact.get("component") and fact["component"] not in components:
        found.append(f"component '{components[0]}', expected '{fact['component']}'")
    maintainers = sorted({package.fields.get("Maintainer", "") for package in packages})
    if fact.get("maintainer") and fact["maintainer"] not in maintainers:
        found.append(f"maintainer '{maintainers[0]}', expected '{fact['maintainer']}'")
    branch = str(fact.get("transitional_to", ""))
    empty = [package for package in packages if package.is_transitional]
    if branch and not empty:
        found.append(f"has content, expected a transitional package that leads to {branch}")
    elif branch and not any(leads_to(package, branch) for package in empty):
        found.append(f"depends on '{empty[0].fields.get('Depends', '')}', expected branch {branch}")
    elif empty and not branch:
        found.append(f"transitional, depends on '{empty[-1].fields.get('Depends', '')}'")
    for title in ("depends", "provides"):
        for relation in fact.get(title, []):
            names = {plain(each) for each in relation.split("|")}
            told = {each for package in packages for each in getattr(package, title)}
            # "libcuda-X.Y-1" stands for many names, and a driver's version is a part of some.
            if not any(matching(each, told) for each in names):
                found.append(f"{title} has no '{relation}'")
    return found


def leads_to(package: Package, branch: str) -> bool:
    """Whether a transitional package depends on one of the branch, such as '580-server'."""
    return any(re.search(rf"-{re.escape(branch)}(-open)?$", name) for name in package.depends)


def plain(relation: str) -> str:
    """Return the name of a relation."""
    return relation.partition("(")[0].strip()


def matching(name: str, names: set[str]) -> bool:
    """Whether one of the names is this one, whatever version of a driver is a part of it."""
    parts = re.split(r"(\d+(?:\.\d+)+|X\.Y)", name)
    pattern = r"[\d.]+".join(re.escape(part) for part in parts[::2])
    return any(re.fullmatch(pattern, each) for each in names)


def text_of(path: str) -> str:
    """Return the content of an index, which apt may have compressed."""
    if path.endswith((".lz4", ".gz", ".xz", ".zst")):
        helper = ["/usr/lib/apt/apt-helper", "cat-file", path]
        return subprocess.run(helper, check=True, text=True, stdout=subprocess.PIPE).stdout
    return Path(path).read_text(encoding="utf-8")


def main() -> int:
    """Compare the indexes of the input with the facts about the release of the command line."""
    release = sys.argv[1]
    facts = yaml.safe_load(FACTS.read_text(encoding="utf-8"))[release]["packages"]
    if sys.argv[2:] == ["--names"]:
        print(*(name for name, fact in facts.items() if fact.get("seen", "") is not None))
        return 0
    archive: dict[str, list[Package]] = {}
    for line in sys.stdin:
        component, path = line.split()
        for name, packages in packages_of(text_of(path), component).items():
            archive.setdefault(name, []).extend(packages)
    if not archive:
        print(f"{release}: no index to compare with. Run apt-get update first", file=sys.stderr)
        return 2
    found = differences(facts, archive)
    for told in found:
        print(f"{release}: {told}")
    print(f"{release}: {len(facts)} packages compared, {len(found)} differences", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
