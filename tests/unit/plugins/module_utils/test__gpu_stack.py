"""Driver, CUDA and NCCL of a host, and conclusions from them."""

import base64
import csv
import re
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._apt_sources import (
    entries,
    list_prefix,
    location,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._driver import keep_out
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    ParseError,
    drift,
    driver_pinned,
    driver_sources,
    grub_default,
    holds_old_key,
    is_foreign,
    is_kept_out,
    is_nvidias,
    leads_to,
    library_version,
    next_kernel,
    package_origins,
    parse_dkms_status,
    parse_driver_offers,
    parse_module_name,
    parse_nccl_header,
    parse_nvcc,
    parse_nvrm,
    parse_origins,
    parse_packages,
    parse_policy,
    parse_release,
    parse_sources,
    parse_transitional,
    reboot_required_reason,
    upstream,
    version_key,
    will_break_on_next_boot,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import parse_installed

NVCC = Path(__file__).parents[3] / "fixtures/nvcc"
with open(NVCC / "INDEX.tsv", encoding="utf-8", newline="") as index:
    ROWS = list(csv.DictReader(index, delimiter="\t"))
# Outputs of Ubuntu hosts, and lists of its archive and of NVIDIA's repository.
UBUNTU = Path(__file__).parents[3] / "fixtures/ubuntu"
CANONICAL = "Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>"
CUDATOOLS = "cudatools <cudatools@nvidia.com>"
OLD, NEW = "6.1.0-18-amd64", "6.1.0-25-amd64"


@pytest.mark.parametrize("row", ROWS, ids=[row["path"] for row in ROWS])
def test_every_nvcc(row):
    facts = dict(fact.split("=") for fact in row["expected_key_facts"].split("; "))
    assert parse_nvcc((NVCC / row["path"]).read_text(encoding="utf-8")) == facts


def test_nvcc_of_hosts_that_differ_and_none():
    texts = [
        (NVCC / name).read_text(encoding="utf-8") for name in ("nvcc-11.5.txt", "nvcc-12.8.txt")
    ]
    with pytest.raises(ParseError, match="11.5.119, 12.8.93"):
        parse_nvcc("".join(texts))
    assert parse_nvcc("nvcc: command not found") is None and parse_nvcc(texts[0][:150]) is None


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 00:04:01 UTC 2024\nGCC version:  gcc version 12.2.0\n",
            {"version": "535.161.08", "open": False},
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)  Wed Feb\n",
            {"version": "570.124.06", "open": True},
        ),
        (
            "NVRM version: NVIDIA UNIX aarch64 Kernel Module  595.80  Mon\n",
            {"version": "595.80", "open": False},
        ),
        ("", None),
        (" \n", None),
    ],
)
def test_loaded_module(text, expected):
    assert parse_nvrm(text) == expected


def test_what_is_no_loaded_module():
    with pytest.raises(ParseError, match="nouveau"):
        parse_nvrm("nouveau 1.3.1")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("insmod /lib/modules/6.1.0-18-amd64/updates/dkms/nvidia.ko.xz \n", ""),
        # Debian's nvidia-kernel-support, where the driver is the host's GLX alternative.
        ("install modprobe -i nvidia-current $CMDLINE_OPTS \n", "nvidia-current"),
        (
            "insmod /lib/modules/6.1.0-18-amd64/kernel/drivers/i2c/i2c-core.ko \ninstall modprobe -i nvidia-tesla-470 $CMDLINE_OPTS\n",
            "nvidia-tesla-470",
        ),
        # As users write them.
        (
            "install /sbin/modprobe --ignore-install nvidia; /usr/bin/nvidia-modprobe -c 0\n",
            "nvidia",
        ),
        ("install /bin/false\n", ""),
        ("", ""),
    ],
)
def test_name_of_the_module_on_disk(text, expected):
    assert parse_module_name(text) == expected


def test_dkms_of_all_ages():
    text = """nvidia/535.183.01, 6.1.0-18-amd64, x86_64: installed
nvidia-current/535.183.01, 6.1.0-25-amd64, x86_64: installed (WARNING! Diff between built and installed module!)
nvidia/570.124.06: added
nvidia, 470.103.01, 5.4.0-99-generic, x86_64: built
zfs/2.1.11, 6.1.0-18-amd64, x86_64: installed (Original modules exist)
nvidia/595.91.07, 6.11.0-29-generic, x86_64: installed (Differences between built and installed modules)
hid-xpadneo, v0.9.5, 6.1.0-18-amd64, x86_64: installed
mlnx-ofed-kernel/24.10.OFED.24.10.1.1.4.1, 6.1.0-18-amd64, x86_64: installed (original_module exists)

"""
    found = parse_dkms_status(text)
    assert [
        (entry["module"], entry["version"], entry["kernel"], entry["state"], entry["differs"])
        for entry in found
    ] == [
        ("nvidia", "535.183.01", OLD, "installed", False),
        ("nvidia-current", "535.183.01", NEW, "installed", True),
        ("nvidia", "570.124.06", "", "added", False),
        ("nvidia", "470.103.01", "5.4.0-99-generic", "built", False),
        ("zfs", "2.1.11", OLD, "installed", False),
        ("nvidia", "595.91.07", "6.11.0-29-generic", "installed", True),
        ("hid-xpadneo", "v0.9.5", OLD, "installed", False),
        ("mlnx-ofed-kernel", "24.10.OFED.24.10.1.1.4.1", OLD, "installed", False),
    ]
    with pytest.raises(ParseError, match="no such thing"):
        parse_dkms_status("no such thing")


def row(name, version, status="ii ", maintainer=CANONICAL, section="restricted/libs", depends=""):
    """A line of dpkg-query."""
    return "\t".join([name, version, status, maintainer, section, depends]) + "\n"


def test_a_library_that_is_there_for_i386_too():
    """On a workstation with Steam. apt-mark has held the one of amd64, and dpkg lists the other one after it."""
    text = row("libnvidia-compute-580:amd64", "580.95.05-0ubuntu1", "hi ") + row(
        "libnvidia-compute-580:i386", "580.95.05-0ubuntu1"
    )
    assert parse_packages(text)["libnvidia-compute-580"]["held"]
    assert parse_packages(row("libnvidia-compute-580:i386", "580"))
    listed = text.replace(":amd64", "").replace(":i386", "")
    short = "".join("\t".join(line.split("\t")[:3]) + "\n" for line in listed.splitlines())
    assert parse_installed(short)["libnvidia-compute-580"]["held"]


def test_packages():
    text = (
        row(
            "nvidia-driver",
            "535.183.01-1~deb12u1",
            maintainer="Debian NVIDIA Maintainers <x@debian.org>",
        )
        + row("libnccl2", "2.21.5-1+cuda12.4", "hi ", CUDATOOLS)
        + row("libnvidia-ml1:amd64", "535", "iU ", "X <x@nvidia.com.example>")
        + row("cuda", "12.4", "rc ", CUDATOOLS)
        + row("old", "1", "un ", "")
    )
    one = {"held": False, "broken": False, "by_nvidia": False, "leads_to": ""}
    assert parse_packages(text) == {
        "nvidia-driver": dict(one, version="535.183.01-1~deb12u1"),
        "libnccl2": dict(one, version="2.21.5-1+cuda12.4", held=True, by_nvidia=True),
        "libnvidia-ml1": dict(one, version="535", broken=True),
    }
    with pytest.raises(ParseError, match="half"):
        parse_packages("half a line")


def control(name):
    """Paragraphs of a debian/control, as fields by package."""
    text = (UBUNTU / name).read_text(encoding="utf-8")
    return [
        dict(re.findall(r"^(\S+): *(.*)$", paragraph, re.MULTILINE))
        for paragraph in text.split("\n\n")
        if paragraph.startswith("Package:")
    ]


@pytest.mark.parametrize(
    "file, branch",
    [
        ("control-relations-535-server-noble.txt", ""),
        ("control-relations-570-server-noble.txt", "580"),
        ("control-relations-580-noble.txt", ""),
        ("control-relations-580-server-jammy.txt", ""),
        ("control-relations-580-server-noble.txt", ""),
        ("control-relations-595-server-noble.txt", ""),
    ],
)
def test_transitional_packages_of_ubuntus_archive(file, branch):
    """U4: all 22 packages of 570-server are empty since April 2026."""
    fields = control(file)
    text = "".join(
        row(
            each["Package"],
            "1.2-0ubuntu1",
            section=each.get("Section", "restricted/libs"),
            depends=each.get("Depends", ""),
        )
        for each in fields
    )
    assert len(fields) >= 10
    for name, package in parse_packages(text).items():
        own = re.search(r"-\d{3}", name).group()
        assert package["leads_to"] == (name.replace(own, "-" + branch) if branch else "")


@pytest.mark.parametrize(
    "name, section, depends, other",
    [
        # Without its section a package tells it by its dependency.
        (
            "nvidia-dkms-535-server-open",
            "kernel",
            "nvidia-dkms-580-server-open",
            "nvidia-dkms-580-server-open",
        ),
        (
            "linux-modules-nvidia-535-generic",
            "kernel",
            "linux-modules-nvidia-580-generic",
            "linux-modules-nvidia-580-generic",
        ),
        ("libnvidia-ml1", "non-free/oldlibs", "libnvidia-ml2 (>= 1) | x, libc6", "libnvidia-ml2"),
        ("libnvidia-ml1", "non-free/oldlibs", "", ""),
        # Not the same package of another branch.
        (
            "nvidia-driver-580-open",
            "libs",
            "nvidia-dkms-580-open (= 1), nvidia-firmware-580-580.95",
            "",
        ),
        ("cuda-drivers-570", "libs", "nvidia-driver-570 (= 1)", ""),
        (
            "linux-modules-nvidia-580-generic",
            "kernel",
            "linux-modules-nvidia-580-6.8.0-85-generic (= 6.8.0-85.85)",
            "",
        ),
    ],
)
def test_where_a_package_leads_to(name, section, depends, other):
    assert leads_to(name, section, depends) == other


def test_transitional_packages_of_apt():
    shown = (
        "Package: nvidia-utils-570-server\nVersion: 570.211.01-0ubuntu1.24.04.1\nSection: restricted/oldlibs\nDepends: nvidia-utils-580-server\n"
        "Description-en: Transitional package\n for nvidia-utils-580-server\n\n"
        "Package: nvidia-utils-570-server\nVersion: 570.195.03-0ubuntu0.24.04.1\nSection: restricted/libs\nDepends: nvidia-kernel-common-570-server,\n"
        "         libc6\nDescription: NVIDIA binaries\n\nPackage: x\nVersion: 1\nDescription: (transitional package)\nDepends: yy\n"
    )
    assert parse_transitional(shown) == {
        ("nvidia-utils-570-server", "570.211.01-0ubuntu1.24.04.1"): "nvidia-utils-580-server",
        ("x", "1"): "yy",
    }
    assert parse_transitional("") == {}


def package(version="550.54.15-1", held=False, by_nvidia=False, leads_to="", **more):
    return dict(
        {
            "version": version,
            "held": held,
            "broken": False,
            "by_nvidia": by_nvidia,
            "leads_to": leads_to,
        },
        **more,
    )


def sources(packages, madison="", noted=None, nvidia=(), foreign=(), archive=(), runfile=False):
    """Origins of a driver by what apt offers."""
    found = {name: dict(entry) for name, entry in packages.items()}
    offers = parse_origins(
        madison, {"nvidia_repository": nvidia, "other_repository": foreign, "distribution": archive}
    )
    for name, origin in package_origins(packages, offers, noted).items():
        found[name]["origin"] = origin
    return driver_sources(found, runfile)


def offers(where, *pairs):
    return "".join(" %s | %s | %s Packages\n" % (pair + (where,)) for pair in pairs)


NVIDIAS = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64 "
ARCHIVE = "http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64"


def test_where_a_driver_is_from():
    assert sources({}) == []
    assert sources(
        {"nvidia-driver": package("535.183.01-1~deb12u1"), "libnvidia-container1": package()}
    ) == ["distribution"]
    assert sources(
        {
            "nvidia-utils-550": package("550.54.15-0ubuntu0.24.04.1"),
            "cuda-drivers-550": package("550.90.12-1", by_nvidia=True),
        },
        runfile=True,
    ) == ["distribution", "nvidia_repository", "runfile"]
    assert sources({"libnccl2": package(), "nvidia-container-toolkit": package()}) == []


def test_nvidias_driver_for_ubuntu_has_ubuntus_maintainer():
    """U3, practice 1: the second run refused it, and preflight advised to purge it."""
    info = (UBUNTU / "deb-info-nvidia-driver-550-cuda-repository-jammy.txt").read_text(
        encoding="utf-8"
    )
    fields = dict(re.findall(r"^ ?(\S+): *(.*)$", info, re.MULTILINE))
    name, version = fields["Package"], fields["Version"]
    installed = parse_packages(
        row(name, version, maintainer=fields["Maintainer"])
        + row("cuda-drivers-550", "550.54.15-1", maintainer=CUDATOOLS)
    )
    assert not installed[name]["by_nvidia"]
    offered = offers(NVIDIAS, (name, version), ("cuda-drivers-550", "550.54.15-1"))
    assert sources(installed, offered) == ["nvidia_repository"]
    # After the repository was switched off, or without lists.
    assert sources(installed) == ["nvidia_repository"]


@pytest.mark.parametrize(
    "heading", (UBUNTU / "versions-by-branch.txt").read_text(encoding="utf-8").splitlines()
)
def test_every_version_of_the_archive_is_the_archives(heading):
    """By apt, and by the version if apt has it no more."""
    branch, version = re.match(r"nvidia-graphics-drivers-(\S+) \((\S+)\)", heading).groups()
    installed = {"nvidia-utils-" + branch: package(version)}
    assert sources(installed, offers(ARCHIVE, ("nvidia-utils-" + branch, version))) == [
        "distribution"
    ]
    assert sources(installed) == ["distribution"]


@pytest.mark.parametrize(
    "name",
    re.findall(
        r"^\S+",
        (UBUNTU / "cuda-repository-ubuntu2404-sbsa-580.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    ),
)
def test_every_version_of_nvidia_is_nvidias(name):
    package_name, version = name.split("_")[:2]
    installed = {package_name: package(version)}
    assert sources(installed, offers(NVIDIAS, (package_name, version))) == ["nvidia_repository"]
    assert sources(installed) == ["nvidia_repository"]


def test_the_form_of_a_version_is_not_its_origin():
    """The archive of a development release has versions as NVIDIA's repository has them."""
    installed = {"nvidia-utils-580": package("580.95.05-0ubuntu1")}
    archive = "http://archive.ubuntu.com/ubuntu questing/restricted amd64"
    assert sources(installed, offers(archive, ("nvidia-utils-580", "580.95.05-0ubuntu1"))) == [
        "distribution"
    ]
    both = offers(archive, ("nvidia-utils-580", "580.95.05-0ubuntu1")) + offers(
        NVIDIAS, ("nvidia-utils-580", "580.95.05-0ubuntu1")
    )
    assert sources(installed, both) == ["distribution"]
    # NVIDIA's metapackage, of which there is one, decides.
    with_metapackage = dict(
        installed, **{"cuda-drivers-580": package("580.95.05-0ubuntu1", by_nvidia=True)}
    )
    assert sources(with_metapackage, both) == ["nvidia_repository"]
    assert sources(
        with_metapackage, both + offers(NVIDIAS, ("cuda-drivers-580", "580.95.05-0ubuntu1"))
    ) == ["nvidia_repository"]


def mixed(leads_to=""):
    """Installed packages of a real host: a former branch of the archive, a newer one of NVIDIA's
    repository, half configured.
    """
    lines = (UBUNTU / "dpkg-l-mixed-550-transitional-580-cuda-noble.txt").read_text(
        encoding="utf-8"
    )
    return parse_packages(
        "".join(
            row(
                name,
                version,
                status + " ",
                depends=leads_to and name.split(":")[0].replace("-550", leads_to),
            )
            for status, name, version in (line.split()[:3] for line in lines.splitlines())
        )
    )


def test_several_origins_on_one_host_are_told_apart():
    installed = mixed()
    offered = "".join(
        offers(
            NVIDIAS if entry["version"].startswith("580.") else ARCHIVE, (name, entry["version"])
        )
        for name, entry in installed.items()
    )
    origins = package_origins(installed, parse_origins(offered))
    assert {name for name, origin in origins.items() if origin == "nvidia_repository"} == {
        name for name in installed if installed[name]["version"] == "580.95.05-0ubuntu1"
    }
    assert (
        installed["nvidia-driver-580-open"]["broken"]
        and installed["nvidia-dkms-580-open"]["broken"]
    )
    assert sources(installed, offered) == ["distribution", "nvidia_repository"]
    # The empty packages of the archive are no second driver.
    assert sources(mixed("-580"), offered) == ["nvidia_repository"]
    # A PPA has a part of it, too.
    ppa = offers(PPA + " noble/main amd64", ("nvidia-utils-575", "575.64.03-0ubuntu0~gpu24.04.1"))
    installed["nvidia-utils-575"] = package("575.64.03-0ubuntu0~gpu24.04.1")
    assert sources(installed, offered + ppa, foreign=[(PPA, "noble")]) == [
        "distribution",
        "nvidia_repository",
        "other_repository",
    ]


@pytest.mark.parametrize(
    "file", ["dpkg-l-550-archive-hwe-noble.txt", "dpkg-l-550-server-archive-noble.txt"]
)
def test_a_driver_of_the_archive_is_whole(file):
    """Its signed modules have the version of their kernel, and the toolkit is of another
    repository.
    """
    lines = (UBUNTU / file).read_text(encoding="utf-8").splitlines()
    installed = parse_packages(
        "".join(
            row(name, version, status + " ")
            for status, name, version in (line.split()[:3] for line in lines)
        )
    )
    assert [name for name in installed if installed[name]["leads_to"]] == []
    assert sources(installed) == ["distribution"]


def test_an_unattended_upgrade_moves_a_driver_to_another_repository():
    """A driver of NVIDIA's repository that was neither held nor excluded, by apt's own log."""
    log = (UBUNTU / "apt-history-570-cuda-repository-to-archive-jammy.txt").read_text(
        encoding="utf-8"
    )
    upgraded = re.search(r"^Upgrade: (.*)$", log, re.MULTILINE).group(1)
    pairs = re.findall(r"(\S+):amd64 \((\S+), (\S+)\)", upgraded)
    archive = "http://archive.ubuntu.com/ubuntu jammy-security/restricted amd64"
    nvidia = NVIDIAS.replace("2404", "2204")
    offered = offers(nvidia, *((name, old) for name, old, _new in pairs))
    offered += offers(archive, *((name, new) for name, _old, new in pairs))
    before = {name: package(old) for name, old, _new in pairs}
    after = {name: package(new) for name, _old, new in pairs}
    assert len(pairs) == 9
    assert sources(before, offered) == ["nvidia_repository"]
    assert sources(after, offered) == ["distribution"]
    halfway = dict(before, **{"nvidia-utils-570": after["nvidia-utils-570"]})
    assert sources(halfway, offered) == ["distribution", "nvidia_repository"]


def test_mirrors_and_local_repositories_of_nvidia_are_nvidias():
    installed = {"nvidia-utils-570": package("570.172.08-0ubuntu1")}
    pair = ("nvidia-utils-570", "570.172.08-0ubuntu1")
    local = "file:/var/nvidia-driver-local-repo-ubuntu2404-570.172.08 "
    mirror = "http://mirror.example/gpu "
    assert sources(installed, offers(local, pair)) == ["nvidia_repository"]
    assert sources(
        installed, offers(mirror, pair), nvidia=[("http://mirror.example/gpu/", "/")]
    ) == ["nvidia_repository"]
    assert sources(installed, offers(mirror, pair)) == ["distribution"]
    # A mirror of the distribution whose name has the word.
    lab = "http://nvidia-lab.example/ubuntu"
    assert not is_nvidias("a.list", lab, "Ubuntu") and is_nvidias("a.list", lab, "")
    assert sources(
        installed, offers(lab + " noble/restricted amd64", pair), archive=[(lab, "noble")]
    ) == ["distribution"]
    own = "/etc/apt/sources.list.d/trainyard-nvidia-cuda.sources"
    assert is_nvidias(own, "http://mirror.example/gpu", "aptly")
    assert not is_foreign(own, "http://mirror.example/gpu", "aptly")


def test_origins_that_unattended_upgrades_take_are_the_distributions():
    """As its log has them, those of Ubuntu Pro among them."""
    log = (UBUNTU / "unattended-upgrades-log-allowed-origins-bionic.txt").read_text()
    origins = set(re.findall(r"o=([^,]+),a=", log))
    assert origins == {"Ubuntu", "UbuntuESM", "UbuntuESMApps"}
    assert not any(is_foreign("a.list", "http://archive.example/", origin) for origin in origins)


def test_what_the_role_installed_is_of_its_source():
    """Without a question to apt in the second run. The rest of a build is of the same source."""
    installed = {
        "nvidia-utils-570": package("570.172.08-0ubuntu1"),
        "libnvidia-compute-570": package("570.172.08-0ubuntu1"),
    }
    noted = {"nvidia-utils-570": "distribution"}
    assert package_origins(installed, {}, noted) == dict.fromkeys(installed, "distribution")


def test_packages_of_another_source_are_not_the_distributions():
    packages = {
        "nvidia-utils-570": package("570.172.08-0ubuntu0~gpu1"),
        "libnvidia-ml1": package("550.54.15-1"),
    }
    ppa = offers(PPA + " noble/main amd64", ("nvidia-utils-570", "570.172.08-0ubuntu0~gpu1"))
    foreign = [(PPA, "noble")]
    assert sources(packages, ppa, foreign=foreign) == ["distribution", "other_repository"]
    # A version that the archive has, too, is the archive's.
    ours = offers(ARCHIVE, ("nvidia-utils-570", "570.172.08-0ubuntu0~gpu1"))
    assert sources(packages, ppa + ours, foreign=foreign) == ["distribution"]


PPA = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"


@pytest.mark.parametrize(
    "path, uri, origin, foreign",
    [
        ("a.list", PPA, "LP-PPA-graphics-drivers", True),
        ("a.list", "http://mirror.example/debian", "Debian", False),
        ("a.list", "http://mirror.example/ubuntu", "Ubuntu", False),
        ("a.list", "http://mirror.example/debian", "Debian Backports", False),
        ("a.list", "https://esm.ubuntu.com/infra/ubuntu", "UbuntuESM", False),
        ("a.list", "https://esm.ubuntu.com/fips-updates/ubuntu", "UbuntuFIPSUpdates", False),
        ("a.list", "https://esm.ubuntu.com/realtime/ubuntu", "UbuntuRealtimeKernel", False),
        ("a.list", "https://apt.pop-os.org/release", "pop-os-release", True),
        ("a.list", "http://mirror.example/x", "", True),
        ("a.list", "http://mirror.example/x", "NVIDIA", False),
        ("a.list", "http://mirror.example/compute/cuda/repos/debian12/x86_64", "", False),
        (
            "a.list",
            "https://ppa.launchpadcontent.net/nvidia-people/ppa/ubuntu",
            "LP-PPA-nvidia-people",
            True,
        ),
        # Declared in package_sources_apt_repositories.
        ("/etc/apt/sources.list.d/trainyard.sources", "http://mirror.example/x", "aptly", False),
        ("a.list", "http://mirror.example/x", "Debian of somebody", True),
    ],
)
def test_which_sources_are_foreign(path, uri, origin, foreign):
    assert is_foreign(path, uri, origin) is foreign
    assert (
        parse_release(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\nOrigin: %s\nLabel: x\n" % origin
        )
        == origin
    )


@pytest.mark.parametrize(
    "uri, suite, prefix",
    [
        ("http://deb.debian.org/debian/", "bookworm", "deb.debian.org_debian_dists_bookworm_"),
        ("https://user:word@mirror.example:8080/a_b", "./", "mirror.example:8080_a%5fb_._"),
        ("file:///srv/ppa", "/", "_srv_ppa_"),
        ("file:/srv/ppa/", "jammy", "_srv_ppa_dists_jammy_"),
    ],
)
def test_apts_names_of_lists(uri, suite, prefix):
    assert list_prefix(uri, suite) == prefix


def test_the_drivers_packages_in_an_index():
    text = (
        "Package: nvidia-driver-570\nArchitecture: amd64\nVersion: 570.172.08-0ubuntu0~gpu1\nDescription: x\n nvidia\n\n"
        "Package: nvidia-settings\nVersion: 575.1-0\n\nPackage: libnvidia-compute-570\nVersion: 570.172.08-0ubuntu0~gpu1\n"
    )
    assert parse_driver_offers(text) == {
        "nvidia-driver-570": ["570.172.08-0ubuntu0~gpu1"],
        "libnvidia-compute-570": ["570.172.08-0ubuntu0~gpu1"],
    }
    assert (
        parse_driver_offers("Package: docker-ce\nVersion: 5:28\nDescription: for nvidia-driver\n")
        == {}
    )


def test_what_keeps_a_source_out():
    source = {"uri": PPA, "origin": "LP-PPA-graphics-drivers", "own_origin": True}
    assert is_kept_out(source, {"a": keep_out([source])})
    assert is_kept_out(
        source,
        {
            "a": "Package: x\nPin: version 1\n\nPackage: *\nPin: release o=LP-PPA-graphics-drivers\nPin-Priority: -10\n"
        },
    )
    assert not is_kept_out(source, {}) and not is_kept_out(
        source, {"a": keep_out([source]).replace("-1", "100")}
    )
    # Apt could not tell it from a mirror on the same host, or from a repository that is used.
    for alike in (dict(source, origin=""), dict(source, own_origin=False)):
        assert keep_out([alike]) == "" and not is_kept_out(alike, {"a": keep_out([source])})
    assert keep_out([]) == "" and keep_out([source, source]).count("Package:") == 1


def test_what_pins_a_driver():
    pin = "Package: src:nvidia-graphics-drivers*:any cuda-drivers*\nPin: version 550.54*\nPin-Priority: 1000\n"
    assert (
        driver_pinned({"nvidia-driver-pinning-580": package()}, {}) == "nvidia-driver-pinning-580"
    )
    assert driver_pinned({"cuda-drivers": package(held=True)}, {}) == "hold of cuda-drivers"
    assert (
        driver_pinned({}, {"/etc/apt/preferences.d/driver": pin}) == "/etc/apt/preferences.d/driver"
    )
    # NVIDIA's own file prefers a repository, not a version; and NCCL is no driver.
    assert (
        driver_pinned(
            {"cuda-drivers": package(), "libnccl2": package(held=True)},
            {
                "/etc/apt/preferences.d/cuda-repository-pin-600": "Package: nsight-compute\nPin: origin *ubuntu.com*\nPin-Priority: -1\n\n"
                "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
            },
        )
        == ""
    )


def test_repositories_of_nvidia():
    one_line = """# deb https://off.example/nvidia /
deb [arch=amd64 signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /
deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /
deb http://mirror.example/debian bookworm main
"""
    assert parse_sources(one_line, "a.list") == [
        {
            "path": "a.list",
            "uri": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
            "suites": ["/"],
            "signed_by": "/usr/share/keyrings/cuda-archive-keyring.gpg",
        },
        {
            "path": "a.list",
            "uri": "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
            "suites": ["/"],
            "signed_by": "",
        },
    ]
    deb822 = """Types: deb
URIs: https://mirror.example/compute/cuda/repos/ubuntu2204/x86_64/
  http://mirror.example/debian
Suites: /
# why
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDM=

Types: deb
URIs: https://developer.download.nvidia.com/compute/cuda/repos/debian11/x86_64
Suites: /
Enabled: no
"""
    found = parse_sources(deb822, "b.sources")
    assert [(entry["uri"], entry["suites"]) for entry in found] == [
        ("https://mirror.example/compute/cuda/repos/ubuntu2204/x86_64", ["/"])
    ]
    assert found[0]["signed_by"].startswith("-----BEGIN PGP")


def test_the_key_until_2022():
    old, new = (
        b"\x99\x01\xf6\x0f\x4b\x3d\x7f\xa2\xaf\x80\x00",
        b"\x99\x01\xa4\xb4\x69\x96\x3b\xf8\x63\xcc\x00",
    )
    armor = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: GnuPG v1\n\n%s\n=ab12\n-----END PGP PUBLIC KEY BLOCK-----\n"
    assert holds_old_key(b"x" + old) and holds_old_key(armor % base64.b64encode(b"pad" + old))
    assert (
        not holds_old_key(new)
        and not holds_old_key(armor % base64.b64encode(new))
        and not holds_old_key(armor % b"?")
    )


def test_candidates():
    text = """nvidia-driver:
  Installed: (none)
  Candidate: 535.183.01-1~deb12u1
  Version table:
     535.183.01-1~deb12u1 500
        500 file:/nowhere bookworm/non-free amd64 Packages
libnccl2:
  Installed: 2.21.5-1+cuda12.4
  Candidate: (none)
"""
    assert parse_policy(text) == {
        "nvidia-driver": {"installed": "", "candidate": "535.183.01-1~deb12u1"},
        "libnccl2": {"installed": "2.21.5-1+cuda12.4", "candidate": ""},
    }


def test_versions():
    assert version_key("470.239.06") > version_key("470.57.02") and version_key(
        "1:535.183.01-0ubuntu1"
    ) == (535, 183, 1)
    assert (upstream("535.183.01-1~deb12u1"), upstream("1:535.183.01-0ubuntu1"), upstream("")) == (
        "535.183.01",
        "535.183.01",
        "",
    )
    with pytest.raises(ParseError):
        version_key("latest")
    assert (
        library_version("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.183.01")
        == "535.183.01"
    )
    assert (
        library_version("/usr/lib/libnvidia-ml.so.1")
        == library_version("/stubs/libnvidia-ml.so")
        == ""
    )


def test_the_kernel_that_boots_next():
    kernels = [NEW, OLD, "6.1.0-9-amd64"]
    assert (
        next_kernel(kernels) == NEW
        and next_kernel(kernels, OLD) == OLD
        and next_kernel(kernels, "gone") == NEW
        and next_kernel([]) == ""
    )
    assert next_kernel(["5.15.0-99-generic", "5.15.0-100-generic"]) == "5.15.0-100-generic"


@pytest.mark.parametrize(
    "state, said",
    [
        (
            dict(
                loaded="535.1", modules={OLD: "535.1"}, library="535.1", running=OLD, boots_next=OLD
            ),
            "",
        ),
        (
            dict(
                loaded="535.1", modules={OLD: "570.2"}, library="570.2", running=OLD, boots_next=OLD
            ),
            "nvidia-smi and CUDA fail",
        ),
        (
            dict(loaded="535.1", modules={OLD: "570.2"}, library="", running=OLD, boots_next=OLD),
            "the one on disk for kernel 6.1.0-18-amd64 is 570.2",
        ),
        (
            dict(loaded="", modules={NEW: "535.1"}, library="535.1", running=OLD, boots_next=NEW),
            "the running kernel 6.1.0-18-amd64 has no driver",
        ),
        (
            dict(
                loaded="",
                modules={NEW: "535.1"},
                library="535.1",
                running=OLD,
                boots_next=NEW,
                has_gpu=False,
            ),
            "",
        ),
        # To load it is enough.
        (dict(loaded="", modules={OLD: "535.1"}, library="535.1", running=OLD, boots_next=OLD), ""),
        (dict(loaded="", modules={}, library="", running=OLD, boots_next=OLD), ""),
    ],
)
def test_why_a_reboot_is_needed(state, said):
    reason = reboot_required_reason(**state)
    assert said in reason and bool(said) is bool(reason)


@pytest.mark.parametrize(
    "state, said",
    [
        (dict(modules={OLD: "535.1", NEW: "535.1"}, library="535.1", boots_next=NEW), ""),
        (
            dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW),
            "its headers, which are missing",
        ),
        (
            dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW, headers=[NEW]),
            "has no NVIDIA module",
        ),
        (
            dict(modules={NEW: "535.1"}, library="570.2", boots_next=NEW),
            "with module 535.1, but the libraries are 570.2",
        ),
        (dict(modules={}, library="", boots_next=NEW), ""),
        (dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW, has_gpu=False), ""),
    ],
)
def test_what_breaks_at_the_next_boot(state, said):
    reason = will_break_on_next_boot(**state)
    assert said in reason and bool(said) is bool(reason)


def test_drift():
    found = {
        "nvidia-driver": "535.183.01-1~deb12u1",
        "libnccl2": "2.21.5-1+cuda12.4",
        "cuda-toolkit-12-4": "12.4.1-1",
    }
    assert (
        drift(
            {"nvidia-driver": "535", "libnccl2": "2.21.5-1+cuda12.4", "nouveau-firmware": "absent"},
            found,
        )
        == []
    )
    assert drift(
        {
            "nvidia-driver": "53",
            "libnccl2": "2.21.5-1+cuda12.2",
            "cuda-toolkit-12-4": "absent",
            "libnccl-dev": "2.21.5-1+cuda12.4",
        },
        found,
    ) == [
        {"name": "cuda-toolkit-12-4", "asked": "absent", "found": "12.4.1-1"},
        {"name": "libnccl-dev", "asked": "2.21.5-1+cuda12.4", "found": "absent"},
        {"name": "libnccl2", "asked": "2.21.5-1+cuda12.2", "found": "2.21.5-1+cuda12.4"},
        {"name": "nvidia-driver", "asked": "53", "found": "535.183.01-1~deb12u1"},
    ]


def test_nccl_s_header():
    assert (
        parse_nccl_header(
            '#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n#define NCCL_SUFFIX ""\n'
        )
        == "2.21.5"
    )
    assert parse_nccl_header("#define NCCL_MAJOR 2\n") == ""


@pytest.mark.parametrize(
    "settings, environment, kernel",
    [
        ("GRUB_DEFAULT=0\n", "", ""),
        ("", "", ""),
        ("GRUB_DEFAULT=saved\n", "saved_entry=gnulinux-6.1.0-18-amd64-advanced-0d6c\n", OLD),
        ("GRUB_DEFAULT=0\n", "saved_entry=gnulinux-6.1.0-18-amd64-advanced-0d6c\n", ""),
        ("#GRUB_DEFAULT=1\nGRUB_DEFAULT='1>gnulinux-6.1.0-25-amd64-recovery-0d6c'\n", "", NEW),
        (
            "GRUB_DEFAULT=0\n",
            "next_entry=Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-18-amd64\n",
            OLD,
        ),
    ],
)
def test_what_grub_was_told(settings, environment, kernel):
    assert grub_default(settings, environment) == kernel


@pytest.mark.parametrize(
    "uri",
    [
        # job-failures.md, section 2, class N.
        "https://mirror.example.org:443/cuda/x86_64/",
        "http://mirror.example.org:80/cuda/x86_64",
        "HTTPS://Mirror.Example.org:443/cuda//x86_64/.",
        "https://me:word@mirror.example.org:443/cuda/x86_64/",
        "mirror+https://mirror.example.org:443/cuda/x86_64/",
        "https://mirror.example.org:/cuda/x86_64",
    ],
)
def test_the_port_of_a_scheme_is_no_other_repository(uri):
    assert location(uri) == location("https://mirror.example.org/cuda/x86_64")
    assert {entry["location"] for entry in entries("a.list", "deb %s /\n" % uri)} == {
        "mirror.example.org/cuda/x86_64"
    }


@pytest.mark.parametrize(
    "uri, place",
    [
        ("https://mirror.example.org:80/a", "mirror.example.org:80/a"),
        ("http://mirror.example.org:443/a", "mirror.example.org:443/a"),
        ("http://mirror.example.org:8080/a", "mirror.example.org:8080/a"),
        ("http://[2001:db8::80]/a", "[2001:db8::80]/a"),
        ("http://[2001:db8::1]:80/a", "[2001:db8::1]/a"),
        ("file:/srv/a:80/b", "srv/a:80/b"),
    ],
)
def test_another_port_is_another_repository(uri, place):
    assert location(uri) == place
