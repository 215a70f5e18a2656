"""nvidia_driver_info with output of apt and the distributions' tools, by command."""

from __future__ import annotations

import pytest
from ansible.module_utils import basic
from module_arguments import patch_module_args

from ansible_collections.trainyard.gpu.plugins.modules import nvidia_driver_info

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
            "dpkg-query": (0, "bash\t5.2\tii \n", ""),
            "apt-get": (0, plan, ""),
        },
        [],
    )

    def answer(self, *command):
        commands.append(command)
        return said.get(command[0], (1, "", ""))

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
