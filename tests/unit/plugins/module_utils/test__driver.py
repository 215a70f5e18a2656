"""The packages of a driver, from output of apt and the distributions' tools, as on Debian 12."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from role_variables import role_variable

from ansible_collections.trainyard.gpu.plugins.module_utils._driver import (
    branch_of,
    closure,
    expand,
    fits,
    is_driver,
    lacking_components,
    parse_nvidia_detect,
    parse_simulated_versions,
    parse_ubuntu_drivers,
    pin,
    resolve,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import parse_madison

# Outputs of Ubuntu hosts.
UBUNTU = Path(__file__).parents[3] / "fixtures/ubuntu"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos"
MADISON = """
 nvidia-smi | 570.172.08-1 | https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
 nvidia-smi | 550.54.15-1 | https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
 nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free amd64 Packages
 nvidia-smi | 535.261.03-1 | http://mirror.example/debian bookworm/non-free Sources
 nvidia-persistenced | 535.171.04-1~deb12u1 | http://mirror.example/debian bookworm/contrib amd64 Packages
"""
# nvidia-detect 535.261.03-1 of Debian 12, asked about an H100, an A100, a Tesla K40c and a GPU that
# it doesn't know.
H100 = """Checking driver support for PCI ID [10de:2330]
Your card is supported by the default drivers.
It is recommended to install the
    nvidia-driver
package.
"""
A100 = """Checking driver support for PCI ID [10de:20b2]
Your card is supported by all driver versions.
Your card is also supported by the NVIDIA Linux Open GPU Kernel Module.
Your card is also supported by the Tesla 470 drivers series.
It is recommended to install the
    nvidia-driver
package.
"""
K40 = """Checking driver support for PCI ID [10de:102d]
Your card is supported by the Tesla 470 drivers series.
It is recommended to install the
    nvidia-tesla-470-driver
package.
"""
UNKNOWN = """Checking driver support for PCI ID [10de:2901]
Uh oh. Your card is not supported by any driver version up to 535.261.03.
A newer driver may add support for your card.
Newer driver releases may be available in backports, unstable or experimental.
"""


@pytest.mark.parametrize(
    "text, package",
    [
        (H100, "nvidia-driver"),
        (H100 + A100, "nvidia-driver"),
        (K40, "nvidia-tesla-470-driver"),
        (UNKNOWN, ""),
        (H100 + K40, ""),
        (H100 + UNKNOWN, ""),
        ("", ""),
        ("No NVIDIA GPU detected.\n", ""),
        ("nvidia-driver\n", ""),
    ],
)
def test_what_nvidia_detect_recommends(text, package):
    assert parse_nvidia_detect(text) == package


@pytest.mark.parametrize(
    "text, package",
    [
        (
            "nvidia-driver-535-server, (kernel modules provided by linux-modules-nvidia-535-server-generic)\n",
            "nvidia-driver-535-server",
        ),
        ("nvidia-driver-570-server-open\n", "nvidia-driver-570-server-open"),
        (
            "== /sys/devices/pci0000:00/0000:00:1e.0 ==\nvendor   : NVIDIA Corporation\ndriver   : nvidia-driver-550 - third-party non-free\n"
            "driver   : nvidia-driver-535-server - distro non-free recommended\ndriver   : xserver-xorg-video-nouveau - distro free builtin\n",
            "nvidia-driver-535-server",
        ),
        ("driver   : nvidia-driver-550 - distro non-free\n", ""),
        ("", ""),
        ("ERROR:root:could not open aplay -l\n", ""),
    ],
)
def test_what_ubuntu_drivers_recommends(text, package):
    assert parse_ubuntu_drivers(text) == package


@pytest.mark.parametrize(
    "file, package",
    [
        ("devices-gtx1660super-focal.txt", "nvidia-driver-470"),
        ("devices-gtx980-noble.txt", "nvidia-driver-535"),
        # U9: NVIDIA's repository is configured, and its package is recommended.
        ("devices-rtx2000ada-cuda-repository-noble.txt", "nvidia-driver-580-server-open"),
        ("devices-rtx3070-focal.txt", "nvidia-driver-535-server-open"),
        ("devices-rtx3090.txt", "nvidia-driver-535-server-open"),
        ("list-focal.txt", "nvidia-driver-460"),
        ("list-gpgpu-recommended-noble.constructed.txt", "nvidia-driver-580-server-open"),
        # A package of another repository has no signed modules.
        (
            "list-gpgpu-recommended-third-party-first.constructed.txt",
            "nvidia-driver-580-server-open",
        ),
    ],
)
def test_what_ubuntu_drivers_recommends_on_real_hosts(file, package):
    assert (
        parse_ubuntu_drivers((UBUNTU / ("ubuntu-drivers-" + file)).read_text(encoding="utf-8"))
        == package
    )


def test_a_branch_of_another_repository_is_the_archives_newest():
    text = (
        "driver   : nvidia-driver-610-open - third-party non-free recommended\n"
        "driver   : nvidia-driver-570-server - distro non-free\ndriver   : nvidia-driver-580-server - distro non-free\n"
        "driver   : nvidia-driver-580-open - distro non-free\n"
    )
    assert parse_ubuntu_drivers(text) == "nvidia-driver-580-open"
    assert parse_ubuntu_drivers(text.splitlines()[0] + "\n") == ""
    # Without signed modules only the other command tells whose package it is.
    assert parse_ubuntu_drivers("nvidia-driver-610-open\n", text) == "nvidia-driver-580-open"
    assert parse_ubuntu_drivers("nvidia-driver-570-server\n", text) == "nvidia-driver-570-server"


def test_offers_of_one_repository_and_of_the_others():
    assert parse_madison(MADISON)["nvidia-smi"] == ["570.172.08-1", "550.54.15-1", "535.261.03-1"]
    assert parse_madison(MADISON, NVIDIA + "/") == {"nvidia-smi": ["570.172.08-1", "550.54.15-1"]}
    assert parse_madison(MADISON, NVIDIA, there=False)["nvidia-smi"] == ["535.261.03-1"]
    assert "nvidia-persistenced" not in parse_madison(
        MADISON, without=["http://mirror.example/debian/ bookworm"]
    )
    assert parse_madison(
        MADISON,
        without=["http://mirror.example/debian bookworm-backports", NVIDIA + "/debian12/x86_64 /"],
    )["nvidia-smi"] == ["535.261.03-1"]
    assert parse_madison(
        MADISON + " nvidia-smi | 999-1 | file:/srv/ppa ./ Packages\n",
        NVIDIA,
        there=False,
        without=["file:///srv/ppa/ ./"],
    )["nvidia-smi"] == ["535.261.03-1"]
    assert parse_madison("N: Unable to locate package nvidia-smi\n") == {}


@pytest.mark.parametrize(
    "version, asked, good",
    [
        ("570.172.08-0ubuntu1", "570", True),
        ("570.172.08-0ubuntu1", "570.172.08", True),
        ("570.172.08-0ubuntu1", "570.172.08-0ubuntu1", True),
        ("1:570.172.08-1", "570.172", True),
        ("570.172.08-1", "57", False),
        ("570.172.08-1", "570.17", False),
        ("570.172.08-1", "570.172.08-0ubuntu1", False),
        ("570.172.08-1", "", True),
        ("(none)", "570", False),
    ],
)
def test_versions_that_fit(version, asked, good):
    assert fits(version, asked) is good


def test_branches():
    texts = (
        "570",
        "570.172.08-1",
        "1:570.172.08-1",
        "nvidia-driver-535-server",
        "nvidia-tesla-470-driver",
        "nvidia-driver",
        "",
    )
    assert [branch_of(text) for text in texts] == ["570", "570", "570", "535", "470", "", ""]
    families = [["nvidia-smi"], ["nvidia-tesla-<BR>-smi", "nvidia-persistenced"]]
    assert expand(families, "470.256.02") == [
        ["nvidia-smi"],
        ["nvidia-tesla-470-smi", "nvidia-persistenced"],
    ]
    assert expand(families, "") == [["nvidia-smi"]]


def test_the_family_that_is_whole_wins():
    offers = {
        "nvidia-smi": ["570.172.08-1", "550.54.15-1"],
        "nvidia-open": ["570.172.08-1"],
        "nvidia-open-550": ["535.1-1"],
    }
    first, second = ["nvidia-smi", "nvidia-open-570"], ["nvidia-smi", "nvidia-open"]
    assert resolve([first, second], offers, "570") == {"names": second, "version": "570.172.08-1"}
    # Where none is whole the first one is told of, as what is missing of it is the problem.
    assert resolve([first], offers, "570") == {"names": first, "version": "570.172.08-1"}
    assert resolve([["nvidia-smi", "nvidia-open"]], offers, "550")["version"] == "550.54.15-1"
    assert resolve([first, second], offers, "580") is None and resolve([], offers, "") is None


def test_a_daemon_of_another_branch_is_not_taken_if_the_driver_has_its_own():
    """In NVIDIA's repository for Ubuntu it is in nvidia-compute-utils up to 570, and a package of
    its own from 580 on.
    """
    families = [["nvidia-utils-570", "nvidia-persistenced"], ["nvidia-utils-570"]]
    offers = {
        "nvidia-utils-570": ["570.172.08-0ubuntu1"],
        "nvidia-persistenced": ["580.95.05-0ubuntu1"],
    }
    assert resolve(families, offers, "570")["names"] == families[1]
    # Debian's is older than its driver.
    assert resolve(families[:1], offers, "570")["names"] == families[0]
    offers["nvidia-persistenced"].append("570.172.08-0ubuntu1")
    assert resolve(families, offers, "570")["names"] == families[0]


def test_an_installed_version_that_fits_stays():
    offers = {"nvidia-smi": ["570.172.08-1", "570.124.06-1"]}
    assert resolve([["nvidia-smi"]], offers, "570", "570.124.06")["version"] == "570.124.06-1"
    assert resolve([["nvidia-smi"]], offers, "570", "550.54.15")["version"] == "570.172.08-1"


def test_all_that_belongs_to_the_driver_is_named():
    simulated = parse_simulated_versions(
        "Inst libnvidia-ml1 [550.54.15-1] (570.172.08-1 NVIDIA:1.0 [amd64])\nInst nvidia-smi (570.172.08-1 NVIDIA:1.0 [amd64]) []\n"
        "Inst nvidia-persistenced (535.171.04-1~deb12u1 Debian:12.15/oldstable [amd64])\nInst dkms (3.0.10-8 Debian [all])\n"
        "Remv nvidia-kernel-dkms [550.54.15-1]\nConf nvidia-smi (570.172.08-1 NVIDIA:1.0 [amd64])\n"
    )
    assert simulated["libnvidia-ml1"] == "570.172.08-1" and "nvidia-kernel-dkms" not in simulated
    installed = {
        "libcuda1": "570.172.08-1",
        "libnvidia-cfg1": "550.54.15-1",
        "nvidia-container-toolkit": "1.17.7-1",
        "libnvidia-container1": "1.17.7-1",
    }
    names = ["nvidia-smi", "nvidia-persistenced", "libcuda1"]
    assert closure(
        names, {"nvidia-smi": ["570.172.08-1"]}, "570.172.08-1", simulated, installed
    ) == {
        "libcuda1": "570.172.08-1",
        "libnvidia-ml1": "570.172.08-1",
        "nvidia-persistenced": "535.171.04-1~deb12u1",
        "nvidia-smi": "570.172.08-1",
    }


def test_a_pin_takes_one_version_alone():
    assert "Pin: version /^([0-9]+:)?570[.]172[.]08[-+~]/\nPin-Priority: 1001\n" in pin(
        "1:570.172.08-0ubuntu1"
    )
    assert (
        is_driver("libnvcuvid1")
        and is_driver("linux-modules-nvidia-535-server-generic")
        and not is_driver("cuda-toolkit-12-4")
    )


DEB822 = """Types: deb
# comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/
Suites: /

Types: deb-src
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
"""


def test_components_are_added_for_the_hosts_own_mirror():
    assert lacking_components({"debian.sources": DEB822}, "bookworm", ["contrib", "non-free"]) == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: contrib non-free\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    ours = (
        DEB822
        + "\nTypes: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: contrib non-free\n"
    )
    assert lacking_components({"debian.sources": ours}, "bookworm", ["contrib", "non-free"]) == ""
    assert (
        lacking_components(
            {"debian.sources": "Enabled: no\n" + DEB822.replace("# comment\n", "")},
            "bookworm",
            ["contrib"],
        )
        == ""
    )


def test_components_of_real_hosts():
    """Both stanzas of 24.04 get what they lack, each line of 22.04 its own."""
    noble = (UBUNTU / "ubuntu-sources-noble-mirror.sources").read_text(encoding="utf-8")
    assert lacking_components({"a.sources": noble}, "noble", ["restricted", "multiverse"]) == ""
    bare = noble.replace(" restricted multiverse", "")
    found = lacking_components({"a.sources": bare}, "noble", ["restricted", "multiverse"])
    assert re.findall(r"Suites: (.*)\nComponents: (.*)", found) == [
        ("noble noble-updates", "restricted multiverse"),
        ("noble-security", "restricted multiverse"),
    ]
    jammy = (UBUNTU / "sources-list-jammy.list").read_text(encoding="utf-8")
    assert lacking_components({"/etc/apt/sources.list": jammy}, "jammy", ["restricted"]) == ""
    found = lacking_components({"/etc/apt/sources.list": jammy}, "jammy", ["multiverse"])
    assert "Signed-By" not in found and re.findall(r"Suites: (.*)\nComponents: (.*)", found) == [
        ("jammy", "multiverse"),
        ("jammy-updates", "multiverse"),
    ]


def test_components_of_a_host_with_the_former_format():
    text = (
        "deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/ubuntu jammy main universe # here\n"
        "deb http://mirror.example/ubuntu jammy-security main restricted\n# deb http://other.example/ubuntu jammy main\n"
        "deb-src http://x/ubuntu jammy main\n"
        "deb http://ppa.example/graphics jammy main\n"
    )
    found = lacking_components({"/etc/apt/sources.list": text}, "jammy", ["restricted"])
    assert found.startswith(
        "Types: deb\nURIs: http://mirror.example/ubuntu\nSuites: jammy\nComponents: restricted\nArchitectures: amd64\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
    )
    assert "jammy-security" not in found and "other.example" not in found and "ppa" not in found


def test_a_key_inside_the_entry_comes_along():
    text = DEB822.replace(
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END",
    )
    assert (
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END\n"
        in lacking_components({"a.sources": text}, "bookworm", ["contrib"])
    )


def test_components_of_an_earlier_run_stay_in_the_file():
    """Driver 580 needed restricted, and 595 needs multiverse, too."""
    own = role_variable("nvidia_driver", "__nvidia_driver_sources_file")
    site = "deb http://mirror.example/ubuntu noble main universe\n"
    first = lacking_components({"a.list": site}, "noble", ["restricted"])
    both = lacking_components({"a.list": site, own: first}, "noble", ["restricted", "multiverse"])
    assert "Components: restricted\n" in first
    assert "Components: restricted multiverse\n" in both


# Entries of a site whose mirror needs options, and of a snapshot of Ubuntu's archive, which is older than its Release file allows.
WITH_OPTIONS = (
    "deb [trusted=no check-valid-until=no lang=en,de] http://mirror.example/ubuntu jammy main\n"
)
SNAPSHOT = """Types: deb
URIs: https://snapshot.example/ubuntu/20260101T000000Z/
Suites: noble noble-updates noble-security
Components: main universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
Check-Valid-Until: no
"""


@pytest.mark.parametrize(
    "path, text, codename, added",
    [
        (
            "site.list",
            WITH_OPTIONS,
            "jammy",
            "Types: deb\nURIs: http://mirror.example/ubuntu\nSuites: jammy\nComponents: restricted\n"
            "Languages: en de\nTrusted: no\nCheck-Valid-Until: no\n",
        ),
        (
            "ubuntu.sources",
            SNAPSHOT,
            "noble",
            SNAPSHOT.replace("main universe", "restricted").replace(
                "Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\nCheck-Valid-Until: no\n",
                "Check-Valid-Until: no\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n",
            ),
        ),
    ],
)
def test_apt_reads_the_entries_of_a_host_and_what_is_added(tmp_path, path, text, codename, added):
    """Apt refuses all its lists if one suite is trusted in one entry and not in another."""
    assert lacking_components({path: text}, codename, ["restricted"]) == added
    (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "added.sources").write_text(added, encoding="utf-8")
    apt = ["apt-get", "indextargets", "--option", "Dir::Etc::SourceParts=%s" % tmp_path]
    apt += ["--option", "Dir::Etc::SourceList=/dev/null"]
    done = subprocess.run(apt, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
