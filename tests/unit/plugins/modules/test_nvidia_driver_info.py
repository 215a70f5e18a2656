"""nvidia_driver_info with output of apt and the distributions' tools, by command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible.module_utils import basic
from module_arguments import patch_module_args

from ansible_collections.trainyard.gpu.plugins.modules import nvidia_driver_info

ROOT = Path(__file__).parents[4]
UBUNTU = ROOT / "tests/fixtures/ubuntu"
MADISON = "".join(
    " %s | %s | file:/srv/vendor/compute/cuda/repos/debian12/x86_64  Packages\n" % pair
    for pair in [
        ("nvidia-smi", "570.172.08-1"),
        ("nvidia-smi", "570.124.06-1"),
        ("nvidia-open", "570.172.08-1"),
        ("nvidia-open", "570.124.06-1"),
        ("nvidia-fabricmanager-570", "570.124.06-1"),
    ]
)
FAMILIES = [["nvidia-smi", "nvidia-open-<BR>"], ["nvidia-smi", "nvidia-open"]]


@pytest.fixture(name="host")
def fixture_host(tmp_path, monkeypatch):
    plan = "".join(
        "Inst %s (570.172.08-1 NVIDIA [amd64])\n" % name
        for name in ("libnvidia-ml1", "nvidia-smi", "nvidia-open")
    )
    said, commands = (
        {
            "apt-cache": (0, MADISON, ""),
            ("apt-cache", "show"): (0, "", ""),
            "dpkg-query": (0, "bash\t5.2\tii \n", ""),
            "apt-get": (0, plan, ""),
        },
        [],
    )

    def answer(self, *command):
        commands.append(command)
        return said.get(command[:2]) or said.get(command[0], (1, "", ""))

    monkeypatch.setattr(nvidia_driver_info.Host, "run", answer)

    def run(**arguments):
        with patch_module_args(dict(arguments, _ansible_remote_tmp=str(tmp_path))):
            results = []
            monkeypatch.setattr(
                basic.AnsibleModule, "exit_json", lambda self, **result: results.append(result)
            )
            nvidia_driver_info.main()
        return results[0]

    run.said, run.commands = said, commands
    return run


def test_the_packages_of_a_branch(host):
    told = host(
        asked=["570"], families=FAMILIES, repository="file:///srv/vendor/compute/cuda/repos"
    )
    assert (told["version"], told["problem"], told["changed"]) == ("570.172.08", "", False)
    assert told["packages"] == {
        "libnvidia-ml1": "570.172.08-1",
        "nvidia-open": "570.172.08-1",
        "nvidia-smi": "570.172.08-1",
    }
    simulated = [command for command in host.commands if command[0] == "apt-get"][0]
    assert (
        simulated[-3:] == ("install", "nvidia-smi=570.172.08-1", "nvidia-open=570.172.08-1")
        and "--simulate" in simulated
    )


def test_the_first_that_is_to_be_had_is_taken(host):
    assert host(asked=["595", "580", "570.124.06"], families=FAMILIES)["version"] == "570.124.06"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (
            {"asked": ["580"]},
            "no driver 580: available versions of nvidia-smi: 570.172.08-1, 570.124.06-1",
        ),
        (
            {"asked": ["570"], "repository": "https://elsewhere.example"},
            "no driver 570: no usable repository has nvidia-smi",
        ),
        # Of the very version, or not at all.
        (
            {"asked": ["570.172.08"], "families": [["nvidia-smi", "nvidia-fabricmanager-<BR>"]]},
            "driver 570.172.08 is incomplete: available versions of nvidia-fabricmanager-570: 570.124.06-1",
        ),
        (
            {"asked": [""], "families": [["nvidia-smi-<BR>"]]},
            "no driver : no usable repository has ",
        ),
    ],
)
def test_what_is_not_to_be_had_is_told(host, arguments, problem):
    told = host(**dict({"families": FAMILIES}, **arguments))
    assert (told["problem"], told["version"], told["packages"]) == (problem, "", {})


def test_what_apt_can_not_install_is_told(host):
    host.said["apt-get"] = (
        100,
        "The following packages have unmet dependencies:\n nvidia-open : Depends: nvidia-kernel (= 1) but it is not installable\n",
        "E: Unable to correct problems, you have held broken packages.\n",
    )
    told = host(asked=["570"], families=FAMILIES)
    assert told["problem"].startswith(
        "apt cannot install driver 570.172.08: nvidia-open : Depends: nvidia-kernel (= 1)"
    )


ARCHIVE = "http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64"
SERVER = [["nvidia-utils-<BR>-server", "nvidia-dkms-<BR>-server"]]
# As the archive of 24.04 since April 2026.
EMPTY = {
    "550": ("550.163.01-0ubuntu0.24.04.2", "570"),
    "570": ("570.211.01-0ubuntu1.24.04.1", "580"),
    "580": ("580.126.20-0ubuntu0.24.04.2", ""),
}


@pytest.fixture(name="archive")
def fixture_archive(host):
    """A host that has Ubuntu's archive, whose branches 550 and 570 are empty."""
    madison, shown = "", ""
    for branch, (version, other) in EMPTY.items():
        for name in ("nvidia-utils-%s-server", "nvidia-dkms-%s-server"):
            madison += " %s | %s | %s Packages\n" % (name % branch, version, ARCHIVE)
            shown += "Package: %s\nVersion: %s\n" % (name % branch, version)
            shown += (
                "Section: restricted/oldlibs\nDepends: %s\n\n" % (name % other)
                if other
                else "Section: restricted/libs\n\n"
            )
    host.said["apt-cache"] = (0, madison, "")
    host.said["apt-cache", "show"] = (0, shown, "")
    host.said["apt-get"] = (
        0,
        "".join(
            "Inst %s (580.126.20-0ubuntu0.24.04.2 Ubuntu:24.04/noble-updates [amd64])\n" % name
            for name in ("nvidia-utils-580-server", "nvidia-dkms-580-server")
        ),
        "",
    )
    return host


@pytest.mark.parametrize(
    "asked, version",
    [
        ("570", ""),
        ("550", ""),
        ("570.211.01", ""),
        ("580", "580.126.20"),
        ("580.126.20", "580.126.20"),
    ],
)
def test_transitional_packages_are_refused_with_the_branch_they_lead_to(archive, asked, version):
    """U4: nvidia_driver_version 570 installed 580 and held six empty packages."""
    told = archive(
        asked=[asked], families=SERVER, elsewhere=True, repository="https://nvidia.example"
    )
    assert told["version"] == version
    assert ("which leads to nvidia-utils-580-server: request driver 580" in told["problem"]) is (
        not version
    )


def test_a_recommended_branch_is_followed_to_its_content(archive):
    told = archive(asked=["550"], families=SERVER, follow=True)
    assert (told["version"], told["problem"]) == ("580.126.20", "")
    assert set(told["packages"]) == {"nvidia-utils-580-server", "nvidia-dkms-580-server"}


def test_an_older_version_with_content_is_taken(archive):
    """Such as that of another pocket."""
    old = "570.195.03-0ubuntu0.24.04.3"
    rc, madison, stderr = archive.said["apt-cache"]
    for name in ("nvidia-utils-570-server", "nvidia-dkms-570-server"):
        madison += " %s | %s | %s Packages\n" % (name, old, ARCHIVE)
    archive.said["apt-cache"] = (rc, madison, stderr)
    assert archive(asked=["570"], families=SERVER)["version"] == "570.195.03"


def test_a_family_with_one_empty_package_tells_which(archive):
    rc, shown, stderr = archive.said["apt-cache", "show"]
    paragraphs = [each for each in shown.split("\n\n") if "nvidia-utils-570-server\n" not in each]
    archive.said["apt-cache", "show"] = (rc, "\n\n".join(paragraphs), stderr)
    told = archive(asked=["570"], families=SERVER)
    assert "driver 570.211.01 is incomplete" in told["problem"]
    assert "nvidia-dkms-570-server is empty and leads to nvidia-dkms-580-server" in told["problem"]


def test_names_that_are_virtual_are_not_offered(host):
    """U7: nvidia-fabricmanager-580 is virtual in NVIDIA's repository, so the family with the real
    name is taken.
    """
    said = (UBUNTU / "apt-fabricmanager-580-virtual-cuda-repository.txt").read_text(
        encoding="utf-8"
    )
    real, version = re.search(r"provided by:\n (\S+) (\S+)", said).groups()
    repository = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64"
    lines = (UBUNTU / "cuda-repository-ubuntu2204-580.65.06.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t")[:2] for line in lines.splitlines()[1:]]
    rows += [
        [name, "580.65.06-0ubuntu1"] for name in ("libnvidia-compute-580", "cuda-drivers-580")
    ] + [[real, version]]
    host.said["apt-cache"] = (
        0,
        "".join(" %s | %s | %s  Packages\n" % (*row, repository) for row in rows),
        "",
    )
    host.said["apt-get"] = (0, "", "")
    families = [
        names.get("always", []) + names["proprietary"] + names["fabric"]
        for names in yaml.safe_load(
            (ROOT / "roles/nvidia_driver/vars/main.yml").read_text(encoding="utf-8")
        )["__nvidia_driver_data"]["families"]["nvidia_repository"]["ubuntu"]
    ]
    told = host(
        asked=["580"], families=families, repository=repository.rpartition("/ubuntu2404")[0]
    )
    assert (told["version"], told["problem"]) == ("580.65.06", "")
    assert told["packages"] == {
        "cuda-drivers-580": "580.65.06-0ubuntu1",
        "libnvidia-compute-580": "580.65.06-0ubuntu1",
        "libnvidia-gpucomp-580": "580.65.06-0ubuntu1",
        "nvidia-compute-utils-580": "580.65.06-0ubuntu1",
        "nvidia-fabricmanager": "580.65.06-1",
        "nvidia-firmware-580": "580.65.06-0ubuntu1",
        "nvidia-persistenced": "580.65.06-0ubuntu1",
        "nvidia-utils-580": "580.65.06-0ubuntu1",
    }


def test_what_the_tools_recommend(host):
    host.said["nvidia-detect"] = (
        0,
        "Checking driver support for PCI ID [10de:102d]\nIt is recommended to install the\n    nvidia-tesla-470-driver\npackage.\n",
        "",
    )
    told = host(recommended_by="nvidia-detect", device_ids=["102d"])
    assert (told["recommended"], told["branch"]) == (
        "nvidia-tesla-470-driver",
        "470",
    ) and host.commands == [("nvidia-detect", "102d")]
    assert host(recommended_by="ubuntu-drivers")["recommended"] == ""


def test_components(host, monkeypatch):
    monkeypatch.setattr(
        nvidia_driver_info.glob,
        "glob",
        lambda pattern: [pattern] if pattern.endswith("sources.list") else [],
    )
    monkeypatch.setattr(
        nvidia_driver_info,
        "read_text",
        lambda path: "deb http://mirror.example/debian bookworm main\n",
    )
    assert host(components=["non-free"], codename="bookworm")["sources"] == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: non-free\n"
    )
