"""The driver of a host, from the compatibility data and the role's packages, and problems found
before anything changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat, _driver_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import load_facts
from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import recommended_branches

PPA = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"
KERNEL, NEXT = "6.1.0-18-amd64", "6.1.0-25-amd64"
DATA = dict(
    yaml.safe_load(
        (Path(__file__).parents[4] / "roles/nvidia_driver/vars/main.yml").read_text(
            encoding="utf-8"
        )
    )["__nvidia_driver_data"],
    system="debian",
)
# K80, P100, V100, T4, A100, L40S, H100, B200
IDS = {
    "Kepler": "102d",
    "Pascal": "15f8",
    "Volta": "1db6",
    "Turing": "1eb8",
    "Ampere": "20b2",
    "Ada": "26b9",
    "Hopper": "2330",
    "Blackwell": "2901",
}


def package(version, held=False, by_nvidia=False):
    return {"version": version, "held": held, "broken": False, "by_nvidia": by_nvidia}


def host(*generations, **more):
    images = {
        name: package("6.1.1-1")
        for name in ("linux-image-" + KERNEL, "linux-image-" + NEXT, "linux-image-amd64")
    }
    return dict(
        {
            "gpus": [
                {"bus_id": "0000:01:00.0", "device_id": IDS.get(name, name), "model": ""}
                for name in generations
            ],
            "nvswitches": 0,
            "running_kernel": KERNEL,
            "next_kernel": NEXT,
            "modules": {KERNEL: "", NEXT: ""},
            "headers": [KERNEL],
            "packages": images,
            "driver_sources": [],
            "secure_boot": None,
            "module_keys_enrolled": [],
            "loaded": "",
            "library": "",
            "record": {},
            "foreign_sources": [],
        },
        **more,
    )


def plan(
    found,
    source="nvidia_repository",
    version="570",
    kernel_module="auto",
    fabric_manager="auto",
    recommended="",
    **data,
):
    return _compat.decide_nvidia_driver_plan(
        {"stack": found, "recommended": recommended},
        {
            "source": source,
            "version": version,
            "kernel_module": kernel_module,
            "fabric_manager": fabric_manager,
            "data": dict(DATA, **data),
        },
    )


@pytest.mark.parametrize(
    "generation, version, kind",
    [
        ("Kepler", "470", "proprietary"),
        ("Volta", "580", "proprietary"),
        ("Turing", "550", "proprietary"),
        ("Ampere", "570", "open"),
        ("Hopper", "535", "proprietary"),
        ("Hopper", "560.28.03", "open"),
        ("Blackwell", "570", "open"),
    ],
)
def test_kernel_module_by_generation(generation, version, kind):
    told = plan(host(generation), version=version)
    assert (told["kernel_module"], told["problems"]) == (kind, [])


@pytest.mark.parametrize(
    "generations, version, kernel_module, problem",
    [
        (
            ["Blackwell"],
            "570",
            "proprietary",
            "nvidia_driver_kernel_module is 'proprietary', but Blackwell (10de:2901) works only with the open one",
        ),
        (
            ["Volta"],
            "570",
            "open",
            "nvidia_driver_kernel_module is 'open', but Volta (10de:1db6) works only with the proprietary one",
        ),
        (["Kepler"], "470", "open", "works only with the proprietary one"),
        (
            ["Pascal", "Blackwell"],
            "580",
            "auto",
            "Blackwell (10de:2901) needs the open kernel module, but that does not support Pascal (10de:15f8)",
        ),
        (["fffe"], "570", "auto", "an unknown GPU (10de:fffe) is not in the compatibility data"),
        (
            ["Turing"],
            "470",
            "open",
            "driver 470 has no open kernel module, which exists from 515 on",
        ),
    ],
)
def test_kernel_modules_that_are_refused(generations, version, kernel_module, problem):
    assert (
        problem
        in plan(host(*generations), version=version, kernel_module=kernel_module)["problems"][0]
    )


def test_an_unknown_gpu_goes_with_what_is_said():
    assert plan(host("fffe"), kernel_module="open")["problems"] == []
    # A known one beside it tells.
    assert plan(host("fffe", "Blackwell"))["kernel_module"] == "open"


def test_packages_by_source_and_system():
    assert plan(host("Hopper"))["families"][0] == [
        "nvidia-smi",
        "libcuda1",
        "nvidia-persistenced",
        "nvidia-open-<BR>",
    ]
    assert plan(host("Volta"))["families"][0][-1] == "cuda-drivers-<BR>"
    assert (
        plan(host("Hopper"), system="ubuntu", source="distribution", version="535")["families"][0][
            -1
        ]
        == "nvidia-dkms-<BR>-server"
    )
    assert (
        plan(host("Hopper"), source="distribution", version="535")["families"][0][-1]
        == "nvidia-kernel-dkms"
    )
    # A container has its host's kernel.
    told = plan(
        host("Hopper", next_kernel="", modules={}, headers=[]), source="distribution", version="535"
    )
    assert (
        not told["own_kernel"]
        and "nvidia-kernel-dkms" not in told["families"][0]
        and told["headers"] == []
        and told["problems"] == []
    )
    assert plan(host("Hopper"), source="runfile", version="570.172.08")["families"] == []


def test_fabric_manager_comes_with_an_nvswitch_alone():
    assert plan(host("Hopper"))["fabric_manager"] is False
    told = plan(host("Hopper", nvswitches=4))
    assert (
        told["fabric_manager"]
        and [names[-1] for names in told["families"]]
        == ["nvidia-fabricmanager-<BR>"] * 2 + ["nvidia-fabricmanager"] * 2
    )
    assert plan(host("Hopper", nvswitches=4), fabric_manager="never")["fabric_manager"] is False
    assert (
        "no Fabric Manager"
        in plan(host("Hopper", nvswitches=4), source="distribution")["problems"][0]
    )
    assert (
        "NVIDIA's installer does not include"
        in plan(host("Hopper"), source="runfile", version="570.172.08", fabric_manager="always")[
            "problems"
        ][0]
    )


NVSWITCHES = {"nvswitches": 4, "driver_sources": ["nvidia_repository"], "loaded": "580.95.05"}
THEIRS = {
    "nvidia-utils-580": dict(package("580.95.05-0ubuntu1"), origin="nvidia_repository"),
    "libnvidia-compute-580": dict(package("580.95.05-0ubuntu1"), origin="nvidia_repository"),
    # Of the archive, empty.
    "nvidia-utils-550": dict(
        package("550.163.01-0ubuntu0.24.04.2"), origin="distribution", leads_to="nvidia-utils-580"
    ),
}


def beside(more=None, generations=("Hopper",), **asked):
    found = host(*generations, **dict(dict(NVSWITCHES, packages=THEIRS), **(more or {})))
    return plan(
        found,
        **dict({"version": "recommended", "source": "distribution", "system": "ubuntu"}, **asked),
    )


def test_fabric_manager_is_installed_beside_a_driver_that_stays():
    """Practice 15: CUDA fails with error 802 on HGX, and the role left the driver alone."""
    told = beside()
    assert told["stays"] == "580.95.05 from packages of NVIDIA's repository"
    assert told["fabric_manager_beside"] == {
        "families": [["nvidia-fabricmanager"], ["nvidia-fabricmanager-<BR>"]],
        "version": "580.95.05",
        "source": "nvidia_repository",
    }
    of_archive = {name: dict(entry, origin="distribution") for name, entry in THEIRS.items()}
    told = beside({"driver_sources": ["distribution"], "packages": of_archive}, source="runfile")
    assert told["fabric_manager_beside"] == {
        "families": [["nvidia-fabricmanager-<BR>"]],
        "version": "580.95.05",
        "source": "distribution",
    }
    assert told["components"] == ["restricted", "multiverse"]


@pytest.mark.parametrize(
    "more, asked",
    [
        ({"nvswitches": 0}, {}),
        ({}, {"fabric_manager": "never"}),
        # It is there, or came with nvlink5.
        ({"packages": dict(THEIRS, **{"nvidia-fabricmanager": package("580.95.05-1")})}, {}),
        # The role installs all of the driver.
        ({}, {"version": "580"}),
        # Nothing has it for these.
        ({"driver_sources": ["runfile"]}, {}),
        ({"driver_sources": ["distribution", "nvidia_repository"]}, {}),
        ({"driver_sources": ["distribution"]}, {"system": "debian"}),
        ({"driver_sources": []}, {}),
    ],
)
def test_fabric_manager_is_left_out_where_it_is_there_or_can_not_be(more, asked):
    assert beside(more, **asked)["fabric_manager_beside"] == {}


def test_record_of_fabric_manager_does_not_make_the_driver_the_roles():
    record = {"fabric_manager": "580.95.05", "links": ["x"]}
    assert beside({"record": record})["stays"] != ""
    assert beside({"record": {"packages": {"nvidia-utils-580": "1"}, "links": []}})["stays"] == ""


def test_nvswitches_of_b200_and_b300_need_nvlsm():
    """Practice 24: the host does not see them as PCI bridges."""
    board = host(*["Blackwell"] * 8)
    told = plan(board, version="580", system="ubuntu")
    assert told["fabric_manager"] and {names[-1] for names in told["families"]} == {
        "nvlink5-<BR>",
        "nvlink5",
    }
    assert told["problems"] == []
    assert plan(host(*["3182"] * 8), version="580", system="debian")["fabric_manager"]
    refused = plan(board, version="580", system="ubuntu", source="distribution")["problems"]
    assert "have no nvlsm, which the NVSwitches of HGX B200 and B300 need" in refused[0]
    # A virtual machine with a part of the board, and GB200, whose switches are elsewhere.
    assert not plan(host("Blackwell", "Blackwell"))["fabric_manager"]
    assert not plan(host(*["2941"] * 8))["fabric_manager"]
    assert not plan(board, fabric_manager="never")["fabric_manager"]


@pytest.mark.parametrize(
    "asked, names",
    [
        ({"version": "recommended"}, ["restricted"]),
        ({"version": "580.126.20"}, ["restricted"]),
        ({"version": "580", "fabric_manager": "always"}, ["restricted", "multiverse"]),
        ({"version": "595"}, ["restricted", "multiverse"]),
        ({"version": "595", "source": "nvidia_repository"}, []),
        ({"version": "535", "system": "debian"}, ["contrib", "non-free", "non-free-firmware"]),
    ],
)
def test_components_that_hold_the_driver(asked, names):
    """Practice 18: Fabric Manager is in multiverse, on 24.04 driver 595, too."""
    told = plan(host("Hopper"), **dict({"source": "distribution", "system": "ubuntu"}, **asked))
    assert told["components"] == names


def test_headers_of_the_kernel_that_runs_and_of_the_next():
    assert plan(host("Hopper"))["headers"] == ["linux-headers-" + NEXT, "linux-headers-amd64"]
    found = host("Hopper", headers=[KERNEL, NEXT])
    found["packages"]["linux-headers-amd64"] = package("6.1.1-1")
    assert plan(found)["headers"] == []
    own = host("Hopper", headers=[], packages={})
    assert (plan(own)["headers"], plan(own)["kernels_without_package"]) == ([], [KERNEL, NEXT])


def test_secure_boot_is_noticed_before():
    assert "Secure Boot is on" in plan(host("Hopper", secure_boot=True))["problems"][0]
    assert (
        plan(host("Hopper", secure_boot=True, module_keys_enrolled=["/var/lib/dkms/mok.pub"]))[
            "problems"
        ]
        == []
    )
    # Ubuntu signs modules itself, by flavour of the kernel.
    found = host(
        "Hopper", secure_boot=True, packages={"linux-image-generic": package("5.15.0.100")}
    )
    told = plan(found, source="distribution", version="535", system="ubuntu")
    assert (
        told["problems"] == []
        and told["families"][0][-1] == "linux-modules-nvidia-<BR>-server-generic"
        and told["headers"] == []
    )


@pytest.mark.parametrize(
    "images, modules",
    [
        # A virtual machine: its kernel is that of generic, and no modules of virtual exist.
        (["linux-image-virtual"], ["generic"]),
        (["linux-image-virtual-hwe-24.04"], ["generic-hwe-24.04"]),
        (["linux-image-virtual", "linux-image-generic"], ["generic"]),
        (["linux-image-nvidia-hwe-22.04"], ["nvidia-hwe-22.04"]),
        # A host whose kernels are installed by name, so that none is replaced.
        ([], [KERNEL, NEXT]),
    ],
)
def test_signed_modules_of_each_kernel(images, modules):
    packages = {name: package("6.8.0-85.85") for name in images}
    packages.update({"linux-image-" + each: package("6.8.0-85.85") for each in (KERNEL, NEXT)})
    found = host("Hopper", secure_boot=True, packages=packages)
    told = plan(found, source="distribution", version="580", system="ubuntu")
    assert told["problems"] == [] and told["signed"]
    signed = [name for name in told["families"][0] if name.startswith("linux-modules-")]
    assert signed == ["linux-modules-nvidia-<BR>-server-open-" + each for each in modules]


@pytest.mark.parametrize(
    "source, there, ways",
    [
        (
            "nvidia_repository",
            {"nvidia-driver": package("535.261.03-1"), "nvidia-smi": package("535.261.03-1")},
            "apt-get purge nvidia-driver nvidia-smi",
        ),
        (
            "distribution",
            {"cuda-drivers-550": package("550.54.15-1", by_nvidia=True)},
            "apt-get purge cuda-drivers-550",
        ),
        ("runfile", {"libcuda1": package("535.261.03-1")}, "apt-get purge libcuda1"),
    ],
)
def test_a_driver_from_elsewhere_is_refused(source, there, ways):
    sources = (
        ["nvidia_repository"]
        if any(entry["by_nvidia"] for entry in there.values())
        else ["distribution"]
    )
    told = plan(
        host(
            "Hopper",
            packages=dict(
                there, **{"nvidia-container-toolkit": package("1.17.7-1", by_nvidia=True)}
            ),
            driver_sources=sources,
        ),
        source=source,
        version="550.54.15",
    )
    assert (
        "is installed, but nvidia_driver_source is" in told["problems"][0]
        and "(%s)" % ways in told["problems"][0]
    )


def test_advice_keeps_a_healthy_driver():
    """Practice 1: the advice of a second run was to purge the driver."""
    utils = dict(package("570.172.08-0ubuntu1"), origin="nvidia_repository")
    found = host(
        "Hopper",
        packages={"nvidia-utils-570": utils},
        driver_sources=["nvidia_repository"],
        library="570.172.08",
    )
    assert plan(found, version="570")["problems"] == []
    told = plan(found, source="distribution", version="570")["problems"][0]
    assert "set nvidia_driver_source to 'nvidia_repository' to keep that driver, or" in told
    # Of three origins only the packages of the others are named.
    three = dict(
        found,
        packages={
            "nvidia-utils-570": utils,
            "nvidia-dkms-570": dict(package("570.172.08-0ubuntu0~gpu1"), origin="other_repository"),
            "libnvidia-compute-570": dict(
                package("570.172.08-0ubuntu0.24.04.1"), origin="distribution"
            ),
        },
        driver_sources=["distribution", "nvidia_repository", "other_repository"],
    )
    told = plan(three, version="570")["problems"][0]
    assert "(apt-get purge libnvidia-compute-570 nvidia-dkms-570)" in told and "to keep" not in told


def test_a_driver_of_another_apt_source_is_refused_or_stays_and_the_source_is_kept_out():
    there = host(
        "Hopper",
        packages={"nvidia-utils-570": package("570.172.08-0ubuntu0~gpu1")},
        driver_sources=["other_repository"],
        library="570.172.08",
        foreign_sources=[
            {
                "uri": PPA,
                "origin": "LP-PPA-graphics-drivers",
                "own_origin": True,
                "path": "/etc/apt/sources.list.d/ppa.list",
                "suite": "noble",
            }
        ],
    )
    told = plan(there, source="distribution", version="535")
    assert (
        "from packages of another apt source, such as a PPA is installed, but nvidia_driver_source is 'distribution'"
        in told["problems"][0]
    )
    assert "apt-get purge nvidia-utils-570" in told["problems"][0]
    assert "Pin: release o=LP-PPA-graphics-drivers\nPin-Priority: -1\n" in told["keep_out"]
    assert (
        plan(there, source="distribution", version="recommended")["stays"]
        == "570.172.08 from packages of another apt source, such as a PPA"
    )
    assert plan(host("Hopper"))["keep_out"] == ""
    assert (told["foreign_uris"], told["foreign_files"], told["without"]) == (
        [PPA],
        ["/etc/apt/sources.list.d/ppa.list"],
        [PPA + " noble"],
    )


def test_a_driver_that_is_there_stays_unless_one_is_asked_for():
    there = host(
        "Hopper",
        packages={"cuda-drivers-550": package("550.54.15-1", by_nvidia=True)},
        driver_sources=["nvidia_repository"],
        loaded="550.54.15",
    )
    told = plan(there, source="distribution", version="recommended")
    assert (told["stays"], told["problems"]) == (
        "550.54.15 from packages of NVIDIA's repository",
        [],
    )
    assert plan(there, source="distribution", version="535")["problems"] != []
    # One that was recommended here is the role's own.
    assert (
        plan(
            dict(there, record={"packages": {"cuda-drivers-550": "550.54.15-1"}}),
            version="recommended",
        )["stays"]
        == ""
    )
    assert plan(host("Hopper"), version="recommended")["stays"] == ""


def test_an_installers_driver_below_packages_is_refused():
    told = plan(host("Hopper", driver_sources=["runfile"]))
    assert (
        "a driver from NVIDIA's installer is installed" in told["problems"][0]
        and "(nvidia-uninstall)" in told["problems"][0]
    )


def test_a_host_is_as_asked_by_what_it_has():
    found = host("Hopper")
    noted = {
        "asked": plan(found)["key"],
        "version": "570.172.08",
        "packages": {"nvidia-smi": "570.172.08-1", "libcuda1": "570.172.08-1"},
    }
    packages = {
        name: package(version, held=True, by_nvidia=True)
        for name, version in noted["packages"].items()
    }
    good = dict(found, record=noted, packages=packages, driver_sources=["nvidia_repository"])
    assert plan(good)["installed"] and plan(good)["former"] == ["570.172.08"]
    assert (
        not plan(good, version="580")["installed"]
        and not plan(good, kernel_module="open")["installed"]
    )
    assert not plan(dict(good, record={}))["installed"]
    for broken in ({"held": False}, {"version": "570.124.06-1"}, {"broken": True}):
        assert not plan(
            dict(good, packages=dict(packages, libcuda1=dict(packages["libcuda1"], **broken)))
        )["installed"]
    assert not plan(dict(good, packages={"nvidia-smi": packages["nvidia-smi"]}))["installed"]


@pytest.mark.parametrize(
    "more, done",
    [
        ({"library": "570.172.08", "driver_sources": ["runfile"]}, True),
        ({"library": "570.172.08", "loaded": "570.172.08"}, True),
        ({"library": "550.54.15", "driver_sources": ["runfile"]}, False),
        ({}, False),
        ({"loaded": "570.172.08"}, False),
    ],
)
def test_an_installer_is_not_run_again(more, done):
    assert plan(host("Hopper", **more), source="runfile", version="570.172.08")["installed"] is done


def test_what_is_recommended():
    facts = load_facts()
    newest = recommended_branches(facts, ["Hopper"])
    assert newest == sorted(newest, reverse=True) and "580" in newest and "610" not in newest
    # The last branch for these.
    assert recommended_branches(facts, ["Volta", "Hopper"]) == ["580"]
    assert plan(host("Volta"), version="recommended")["asked"] == ["580"]
    assert (
        "no supported branch supports all GPUs"
        in plan(host("Kepler"), version="recommended")["problems"][0]
    )
    told = plan(host("Hopper"), source="distribution", version="recommended")
    assert (told["asked"], told["recommended_by"]) == ([""], "nvidia-detect")
    assert plan(host("Kepler"), source="distribution", version="recommended", recommended="470")[
        "asked"
    ] == ["470"]


DAEMON, MANAGER = "nvidia-persistenced.service", "nvidia-fabricmanager.service"
WANTS = "/etc/systemd/system/multi-user.target.wants"
IDLE = {"loaded": False, "active": False, "enabled": False}


def state(
    more=None,
    changes=None,
    source="nvidia_repository",
    version="570",
    daemon=None,
    manager=None,
    **asked,
):
    """C(more) is of the host as it was read, C(changes) of the plan."""
    found = host(
        "Hopper",
        **dict(
            {
                "services": {
                    DAEMON: dict(IDLE, **(daemon or {})),
                    MANAGER: dict(IDLE, **(manager or {})),
                },
                "nouveau_loaded": False,
                "reboot_required_reason": "",
                "will_break_on_next_boot": "",
            },
            **(more or {}),
        ),
    )
    planned = dict(plan(host("Hopper"), version="570"), **(changes or {}))
    read = {name: asked.pop(name) for name in ("offered", "recommended") if name in asked}
    return _driver_plan.decide_nvidia_driver_state(
        {"stack": found, **read},
        {
            "plan": planned,
            "source": source,
            "version": version,
            "wants": WANTS,
            "log": "/var/log/driver.log",
            **asked,
        },
    )


def test_services_are_enabled_by_links_where_their_units_are():
    told = state()
    assert (told["services"], told["placed_links"]) == ([DAEMON], [WANTS + "/" + DAEMON])
    assert told["links"] == [
        {"path": WANTS + "/" + DAEMON, "src": "/lib/systemd/system/" + DAEMON, "state": "link"}
    ]
    assert (
        state(source="runfile", version="570.172.08")["links"][0]["src"]
        == "/etc/systemd/system/" + DAEMON
    )
    assert state(changes={"fabric_manager": True}, persistence=False)["services"] == [MANAGER]
    assert state(persistence=False)["services"] == state(persistence=False)["links"] == []


def test_link_that_the_site_made_is_not_removed():
    assert state(daemon={"enabled": True})["placed_links"] == []
    assert state({"record": {"links": [WANTS + "/" + DAEMON]}}, daemon={"enabled": True})[
        "placed_links"
    ] == [WANTS + "/" + DAEMON]
    # Each once.
    assert state({"record": {"links": [WANTS + "/" + DAEMON]}})["placed_links"] == [
        WANTS + "/" + DAEMON
    ]


@pytest.mark.parametrize(
    "daemon, installed, enables",
    [
        # The unit comes with the packages that are installed in the same run.
        ({}, False, True),
        ({"loaded": True}, False, True),
        ({"loaded": True}, True, True),
        ({}, True, False),
        ({"loaded": True, "enabled": True}, False, False),
    ],
)
def test_service_is_enabled_if_its_unit_exists_or_comes(daemon, installed, enables):
    assert state(changes={"installed": installed}, daemon=daemon)["enables"] is enables


@pytest.mark.parametrize(
    "loaded, daemon, starts",
    [
        ("570.172.08", {"loaded": True}, True),
        ("570.172.08", {"loaded": True, "active": True}, False),
        ("570.172.08", {}, False),
        ("", {"loaded": True}, False),
    ],
)
def test_services_are_started_where_a_module_is_loaded(loaded, daemon, starts):
    assert state({"loaded": loaded}, daemon=daemon)["starts"] is starts
    # A module of another version than the libraries has no use for them until the next boot.
    waits = {"loaded": loaded, "reboot_required_reason": "the libraries are newer"}
    assert state(waits, daemon=daemon)["starts"] is False


@pytest.mark.parametrize(
    "more, changes, loads",
    [
        ({"modules": {KERNEL: "570.172.08"}}, {}, True),
        ({"modules": {KERNEL: ""}}, {}, False),
        ({"modules": {}}, {}, False),
        ({"modules": {KERNEL: "570.172.08"}, "loaded": "535.1"}, {}, False),
        ({"modules": {KERNEL: "570.172.08"}, "nouveau_loaded": True}, {}, False),
        # A container has its host's kernel.
        ({"modules": {KERNEL: "570.172.08"}}, {"own_kernel": False}, False),
    ],
)
def test_module_is_loaded_if_nothing_prevents_it(more, changes, loads):
    assert state(more, changes)["loads"] is loads


WAY = "Reboot the host when its jobs allow it, or set nvidia_driver_allow_reboot to true."


@pytest.mark.parametrize(
    "more, allow, reason, message",
    [
        ({}, False, "", ""),
        (
            {"reboot_required_reason": "the module is older"},
            False,
            "the module is older",
            "a reboot is needed: the module is older. " + WAY,
        ),
        (
            {"reboot_required_reason": "the module is older"},
            True,
            "the module is older",
            "a reboot is needed: the module is older.",
        ),
        # It would come back without its driver.
        (
            {
                "reboot_required_reason": "the module is older",
                "will_break_on_next_boot": "kernel 6.2 has no module",
            },
            False,
            "the module is older",
            "a reboot is needed: the module is older. the next boot will break the driver: kernel 6.2 has no module.",
        ),
        (
            {"will_break_on_next_boot": "kernel 6.2 has no module"},
            False,
            "",
            "the next boot will break the driver: kernel 6.2 has no module.",
        ),
        (
            {"nouveau_loaded": True},
            True,
            "the kernel module nouveau is loaded, and blocks NVIDIA's module",
            "a reboot is needed: the kernel module nouveau is loaded, and blocks NVIDIA's module.",
        ),
        ({"nouveau_loaded": True, "loaded": "570.172.08"}, True, "", ""),
    ],
)
def test_reboot_and_what_it_does(more, allow, reason, message):
    told = state(more, allow_reboot=allow)
    assert (told["reboot_reason"], told["next_boot"]) == (reason, message)
    assert state(more, {"own_kernel": False})["reboot_reason"] == ""


def test_packages_have_the_version_that_is_offered():
    offered = {
        "version": "570.172.08",
        "packages": {"nvidia-smi": "570.172.08-1", "libcuda1": "570.172.08-1"},
    }
    told = state(offered=offered, recommended={"recommended": "nvidia-driver", "branch": "570"})
    assert told["packages"] == ["libcuda1=570.172.08-1", "nvidia-smi=570.172.08-1"]
    assert told["record"] == {
        "asked": plan(host("Hopper"))["key"],
        "version": "570.172.08",
        "recommended": "nvidia-driver",
        "packages": offered["packages"],
        "links": [WANTS + "/" + DAEMON],
        "former": [],
    }


@pytest.mark.parametrize(
    "version, more, offered, said",
    [
        # U4: packages of 570 were there, and the libraries of 580.
        ("570", {"library": "580.126.20"}, "570.211.01", "the libraries are 580.126.20"),
        # In the second run, too.
        ("570", {"library": "580.126.20"}, "", "the libraries are 580.126.20"),
        (
            "570.172.08-0ubuntu1",
            {"library": "570.211.01", "modules": {KERNEL: "", NEXT: "550.54.15"}},
            "",
            "the libraries are 570.211.01 and the kernel module of %s is 550.54.15" % NEXT,
        ),
        ("recommended", {"library": "550.54.15"}, "580.126.20", "the libraries are 550.54.15"),
        ("570", {"library": "570.172.08", "modules": {NEXT: "570.172.08"}}, "570.172.08", ""),
        ("recommended", {"library": "580.126.20"}, "", ""),
        ("570", {}, "", ""),
    ],
)
def test_the_driver_tells_its_version_itself(version, more, offered, said):
    answer = {"version": offered, "packages": {}} if offered else {}
    assert state(more, version=version, offered=answer)["unlike"] == said


@pytest.mark.parametrize(
    "changes, first",
    [
        ({}, "nvidia-open-570"),
        ({"asked": [""]}, "nvidia-open-recommended"),
        ({"asked": []}, "nvidia-open-recommended"),
    ],
)
def test_packages_before_apt_has_lists(changes, first):
    assert state(changes=changes, offered={"version": "", "packages": {}})["packages"][-1] == first
    assert (
        state(changes=dict(changes, families=[]), offered={"version": "", "packages": {}})[
            "packages"
        ]
        == []
    )


def test_packages_of_the_former_driver():
    record = {
        "packages": {"cuda-drivers-550": "550.54.15-1", "nvidia-smi": "550.54.15-1"},
        "former": ["cuda-drivers-535", "nvidia-smi"],
    }
    told = state(
        {"record": record},
        offered={"version": "570.172.08", "packages": {"nvidia-smi": "570.172.08-1"}},
    )
    assert told["record"]["former"] == ["cuda-drivers-550", "cuda-drivers-535"]
    # Of them, those that are still installed.
    there = {
        "record": {"former": ["cuda-drivers-550", "cuda-drivers-535"]},
        "packages": {"cuda-drivers-535": package("535.1")},
    }
    assert state(there)["left_over"] == ["cuda-drivers-535"]


@pytest.mark.parametrize(
    "version, changes, more, flags",
    [
        ("570.172.08", {}, {}, ["--dkms", "--kernel-module-type=open"]),
        ("550.54.15", {}, {}, ["--dkms", "--kernel-module-build-directory=kernel-open"]),
        ("550.54.15", {"kernel_module": "proprietary"}, {}, ["--dkms"]),
        (
            "570.172.08",
            {"kernel_module": "proprietary"},
            {"loaded": "550.54.15"},
            [
                "--dkms",
                "--allow-installation-with-running-driver",
                "--kernel-module-type=proprietary",
            ],
        ),
        ("535.261.03", {"kernel_module": "proprietary"}, {"loaded": "525.60.13"}, ["--dkms"]),
        # A container has its host's kernel.
        ("550.54.15", {"own_kernel": False}, {}, ["--no-kernel-modules"]),
        ("470.256.02", {"own_kernel": False}, {}, ["--no-kernel-module"]),
    ],
)
def test_flags_of_the_installer(version, changes, more, flags):
    assert (
        state(more, changes, source="runfile", version=version)["flags"]
        == ["--silent", "--log-file-name=/var/log/driver.log"] + flags
    )
