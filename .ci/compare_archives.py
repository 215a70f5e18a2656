#!/usr/bin/env python3
"""Compare what the tests believe of the archives of Ubuntu, NVIDIA and Docker with indexes of the
real ones.

    apt-get indextargets --format '$(COMPONENT) $(REPO_URI) $(FILENAME)' 'Identifier: Packages' | .ci/compare_archives.py RELEASE [--vendors]
    .ci/compare_archives.py RELEASE --names [--vendors]    prints the names of the packages whose installation apt simulates
    .ci/compare_archives.py RELEASE --sources              prints the sources of the vendors: name, URL of the key, and a line for apt

The input has a component, the repository's URI and a path of an index on each line. Of Ubuntu,
tests/fixtures/ubuntu/facts.yml is compared: names, components, maintainers, relations, and which
packages are transitional. Of the vendors: what tests/support/vendor_repository.py makes, the builds
of NCCL in the compatibility data, and the names of Docker's packages in role docker_engine.
Versions move, so they are not compared, except NCCL's. Prints each difference, and exits with 1 if
there is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
FACTS = ROOT / "tests/fixtures/ubuntu/facts.yml"
# Where the repository of a URI is NVIDIA's: of CUDA, with its directory, or of the container
# toolkit. The last is Docker's.
CUDA, TOOLKIT, DOCKER = r"/compute/cuda/repos/(\w+)/", "/libnvidia-container/", "docker.com/"
# Names that only the stand-in has. In NVIDIA's repository packages have these names, or the virtual
# name differs.
OF_THE_STANDIN = re.compile(r".*(-any|--\S+)")
# The branch whose packages apt simulates.
BRANCH = "580"
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
    """Return the packages of an index by name.

    Lines that continue a field are left out, because no compared field has any.
    """
    found: dict[str, list[Package]] = {}
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line[0].isspace()]
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        if "Package" in fields:
            found.setdefault(fields["Package"], []).append(Package(component, fields))
    return found


def differences(facts: dict[str, dict], archive: dict[str, list[Package]]) -> list[str]:
    """Return what differs between the facts about a release's packages and its archive, one line
    for each difference.
    """
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
    """Return what differs between the facts about a package and its versions in the pockets of the
    archive. One that agrees is enough.
    """
    components = sorted({package.component for package in packages})
    maintainers = sorted({package.fields.get("Maintainer", "") for package in packages})
    return [
        *other_value("component", fact, components),
        *other_value("maintainer", fact, maintainers),
        *other_branch(str(fact.get("transitional_to", "")), packages),
        *missing_relations("depends", fact, packages),
        *missing_relations("provides", fact, packages),
    ]


def other_value(name: str, fact: dict, found: list[str]) -> list[str]:
    """Return a difference if a fact is known, and no package has its value."""
    if not fact.get(name) or fact[name] in found:
        return []
    return [f"{name} '{found[0]}', expected '{fact[name]}'"]


def other_branch(branch: str, packages: list[Package]) -> list[str]:
    """Return a difference if packages are transitional and should not be, or the other way round,
    or if they lead to another branch than this one.
    """
    empty = [package for package in packages if package.is_transitional]
    if branch and not empty:
        return [f"has content, expected a transitional package that leads to {branch}"]
    if branch and not any(leads_to(package, branch) for package in empty):
        return [f"depends on '{empty[0].fields.get('Depends', '')}', expected branch {branch}"]
    if empty and not branch:
        return [f"transitional, depends on '{empty[-1].fields.get('Depends', '')}'"]
    return []


def missing_relations(title: str, fact: dict, packages: list[Package]) -> list[str]:
    """Return the relations of a fact, C(depends) or C(provides), that no package has."""
    told = {each for package in packages for each in getattr(package, title)}
    found = []
    for relation in fact.get(title, []):
        names = {plain(each) for each in relation.split("|")}
        # "libcuda-X.Y-1" stands for many names, and a driver's version is a part of some.
        if not any(matching(each, told) for each in names):
            found.append(f"{title} has no '{relation}'")
    return found


COLLECTION = "ansible_collections.trainyard.gpu"


def is_importable() -> bool:
    """Return whether the collection can be imported, as in tests with Ansible."""
    if COLLECTION in sys.modules:
        return True
    try:
        return importlib.util.find_spec(COLLECTION) is not None
    except ModuleNotFoundError:
        return False


def link_collection() -> None:
    """Let files of this checkout import each other as parts of the collection, if it is not
    installed here.

    Ansible's own loader would lack the metadata of a collection that is only linked.
    """
    if is_importable():
        return
    for name, folders in (
        ("ansible_collections", []),
        ("ansible_collections.trainyard", []),
        (COLLECTION, [str(ROOT)]),
    ):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = folders


def module_of(path: str) -> ModuleType:
    """Load a file of the repository that needs no Ansible."""
    link_collection()
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values_of(path: str) -> Any:
    """Content of a YAML file of the repository."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def facts_of(release: str) -> dict[str, dict]:
    """What is known of the packages of a release. Of those that are only named, the component."""
    facts = values_of(FACTS)[release]
    named = {
        name: {"component": component}
        for component, names in facts["names"].items()
        for name in names
    }
    return {**named, **facts["packages"]}


def directory_of(release: str) -> str:
    """The directory of CUDA's repository for a release, such as ubuntu2404."""
    return "ubuntu" + values_of(FACTS)[release]["release"]["version_id"].replace(".", "")


def docker_packages() -> dict[str, dict]:
    """Docker's packages, of which nothing but the names is compared."""
    catalog = values_of("roles/docker_engine/vars/main.yml")["__docker_engine_catalog"]
    return {name: {} for name in catalog["docker_repository"].values()}


def vendor_differences(directory: str, archive: dict[str, list[Package]]) -> list[str]:
    """Return what differs between the stand-in for a directory of NVIDIA's and its repository, one
    line for each difference.
    """
    vendor = module_of("tests/support/vendor_repository.py")
    found = []
    for family in vendor.load()["families"]:
        for version in family["versions"] if directory in family["directories"] else []:
            for control, _files, _scripts in vendor.packages(family, version):
                ((name, (ours,)),) = packages_of(control, "").items()
                found += [f"{name}: {told}" for told in unlike(ours, name, archive)]
    return list(dict.fromkeys(found))


def unlike(ours: Package, name: str, archive: dict[str, list[Package]]) -> list[str]:
    """Return what differs between a package of the stand-in and those of the same branch in the
    archive.
    """
    branch = ours.fields["Version"].partition(".")[0]
    packages = [
        each for each in archive.get(name, []) if each.fields["Version"].startswith(f"{branch}.")
    ]
    if not packages:
        return [f"no version {branch} in the archive{provided(name, archive)}"]
    relations = {
        title: [
            each.strip()
            for each in ours.fields.get(title.title(), "").split(",")
            if each and not OF_THE_STANDIN.fullmatch(plain(each))
        ]
        for title in ("depends", "provides")
    }
    return differing({"maintainer": ours.fields["Maintainer"], **relations}, packages)


def nccl_differences(directory: str, archive: dict[str, list[Package]]) -> list[str]:
    """Return the builds of NCCL that the compatibility data has in a directory, and the repository
    has not.
    """
    versions = {package.fields["Version"] for package in archive.get("libnccl2", [])}
    rows = values_of("plugins/plugin_utils/compat/nccl.yml")["nccl"]["debs"]
    return [
        f"libnccl2: no version {row['deb_version']}, which the compatibility data has"
        for row in rows
        if "x86_64" in row["dirs"].get(directory, []) and row["deb_version"] not in versions
    ]


def sources(release: str) -> list[str]:
    """The vendors' sources: name, URL of the key, and apt's line.

    URLs and keys are those of the roles.
    """
    vendor = module_of("plugins/plugin_utils/_vendor_source.py")
    facts = values_of(FACTS)[release]["release"]
    host = {
        "architecture": "x86_64",
        "os": {"id": facts["id"], "version_id": facts["version_id"]},
    }
    cuda = vendor.vendor_source("cuda", host, {"with_key": False})
    toolkit = vendor.vendor_source("container_toolkit", host, {"with_key": False})
    docker = values_of("roles/docker_engine/defaults/main.yml")["docker_engine_repository_url"]
    docker = f"{docker}/{facts['id']}"
    rows = [
        ("cuda", cuda["uri"] + vendor.PUBLIC_KEY, f"{cuda['uri']} /"),
        ("toolkit", toolkit["key_url"], f"{toolkit['uri']} /"),
        ("docker", f"{docker}/gpg", f"{docker} {facts['codename']} stable"),
    ]
    return [
        f"{name} {key} deb [arch=amd64 signed-by=/etc/apt/keyrings/{name}.asc] {place}"
        for name, key, place in rows
    ]


def vendor_names() -> list[str]:
    """Names of the vendors' packages that roles install: the driver of one branch with either
    kernel module, the toolkit, and Docker.
    """
    data = values_of("roles/nvidia_driver/vars/main.yml")["__nvidia_driver_data"]
    family = data["families"]["nvidia_repository"]["ubuntu"][0]
    driver = [name.replace("<BR>", BRANCH) for names in family.values() for name in names]
    return [*driver, "nvidia-container-toolkit", "libnvidia-container-tools", *docker_packages()]


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


def read_archives(lines: list[str]) -> dict[str, dict[str, list[Package]]]:
    """Return the packages of the input's indexes: of C(ubuntu), C(docker), C(container_toolkit),
    and of each directory of CUDA's.
    """
    found: dict[str, dict[str, list[Package]]] = {}
    for line in lines:
        component, uri, path = line.split()
        cuda = re.search(CUDA, uri)
        whose = cuda.group(1) if cuda else "ubuntu"
        whose = "container_toolkit" if TOOLKIT in uri else "docker" if DOCKER in uri else whose
        archive = found.setdefault(whose, {})
        for name, packages in packages_of(text_of(path), component).items():
            archive.setdefault(name, []).extend(packages)
    return found


def compared(release: str, archives: dict, vendors: bool) -> list[str] | None:
    """Return the differences, None if an index of the compared archives is not there."""
    directory = directory_of(release)
    wanted = [directory, "container_toolkit", "docker"] if vendors else ["ubuntu"]
    if not all(archives.get(whose) for whose in wanted):
        return None
    if not vendors:
        return differences(facts_of(release), archives["ubuntu"])
    return [
        *vendor_differences(directory, archives[directory]),
        *nccl_differences(directory, archives[directory]),
        *vendor_differences("container_toolkit", archives["container_toolkit"]),
        *differences(docker_packages(), archives["docker"]),
    ]


def main() -> int:
    """Compare the indexes of the input with what is believed of the release of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    for option in ("--vendors", "--names", "--sources"):
        parser.add_argument(option, action="store_true")
    asked = parser.parse_args()
    release = asked.release
    if asked.sources:
        print(*sources(release), sep="\n")
        return 0
    if asked.names:
        facts = facts_of(release).items()
        ours = [name for name, fact in facts if fact.get("seen", "") is not None]
        print(*(vendor_names() if asked.vendors else ours))
        return 0
    found = compared(release, read_archives(list(sys.stdin)), asked.vendors)
    if found is None:
        print(
            f"{release}: an index to compare with is missing. Run apt-get update first",
            file=sys.stderr,
        )
        return 2
    for told in found:
        print(f"{release}: {told}")
    print(f"{release}: compared, {len(found)} differences", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
