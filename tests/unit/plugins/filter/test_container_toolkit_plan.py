"""The container toolkit of a host: packages, Docker's options, CDI specifications and the check,
from the facts of a host and the request.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_toolkit_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import (
    load_facts,
    toolkit_version,
)

ROLE = Path(__file__).parents[4] / "roles/container_toolkit"
VERSION, DRIVER = "1.17.8-1", "550.54.15"
OWN, OTHER = "/etc/cdi/trainyard-nvidia.yaml", "/var/run/cdi/nvidia.yaml"
NAMES = [
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
]
RUNTIME = {"args": [], "path": "nvidia-container-runtime"}
CGROUPFS, SYSTEMD = ["native.cgroupdriver=cgroupfs"], ["native.cgroupdriver=systemd"]


def packages(version=VERSION, held=True, names=NAMES):
    return {name: {"version": version, "held": held, "broken": False} for name in names}


def host(**more):
    """gpu_stack_info's result on a host that is as requested."""
    return dict(
        {
            "packages": packages(),
            "library": DRIVER,
            "loaded": DRIVER,
            "reboot_required_reason": "",
            "cdi": [specification(OWN)],
        },
        **more,
    )


def specification(path, library=DRIVER):
    return {"path": path, "library": library}


def engine(options=None, placed=("runtimes.nvidia", "exec-opts"), pending=False, **more):
    """docker_engine_info's result on that host. C(placed) empty: the role has set no option."""
    there = {
        "log-opts": {"max-size": "50m"},
        "runtimes": {"crun": {"path": "/usr/bin/crun"}, "nvidia": RUNTIME},
        "exec-opts": CGROUPFS,
    }
    noted = {
        "placed": [{"path": path.split("."), "value": "x"} for path in placed],
        "former_text": "{}",
        "pending": pending,
    }
    return dict(
        {
            "available": True,
            "version": "20.10.24",
            "runtimes": ["crun", "nvidia", "runc"],
            "cgroup_driver": "cgroupfs",
            "daemon_config": {"options": there if options is None else options, "error": ""},
            "record": {"daemon_config": noted} if placed else {},
        },
        **more,
    )


def plan(found=None, of_engine=None, version=VERSION, said="", **request):
    asked = dict(
        {"is_asked": True, "recommended": False, "keep_gpus": True, "cdi": True}, **request
    )
    decide = _container_toolkit_plan.container_toolkit_plan
    return decide(
        {
            "stack": host() if found is None else found,
            "engine": engine() if of_engine is None else of_engine,
            "runtimes": said,
        },
        {**asked, "version": version, "specification": OWN},
    )


def steps(told):
    return {
        name
        for name in (
            "packages_differ",
            "is_left_alone",
            "restarts",
            "configures",
            "updates_cdi",
            "is_checked",
            "cgroups_by_systemd",
        )
        if told[name]
    }


def test_nothing_is_to_be_done_on_a_host_that_is_as_requested():
    assert steps(plan()) == set()


def test_all_four_are_requested_at_one_version():
    told = plan(version="1.17.7-1")
    assert told["asked"] == dict.fromkeys(NAMES, "1.17.7-1")
    assert told["packages"] == [name + "=1.17.7-1" for name in NAMES]
    # A recommendation is not compared with what is installed, and nothing is required of a host
    # without a GPU.
    assert plan(recommended=True)["asked"] == plan(is_asked=False)["asked"] == {}


@pytest.mark.parametrize(
    "changes, differ",
    [
        ({}, False),
        ({"packages": packages("1.17.7-1")}, True),
        ({"packages": packages(held=False)}, True),
        ({"packages": packages(names=NAMES[1:])}, True),
        ({"packages": dict(packages(), **packages("1.17.6-1", names=NAMES[:1]))}, True),
        (
            {
                "packages": dict(
                    packages(),
                    **{"linux-image-amd64": {"version": "6.1.1-1", "held": False, "broken": False}},
                )
            },
            False,
        ),
        ({"packages": {}}, True),
    ],
)
def test_packages_that_differ_are_installed_and_the_gpus_are_checked_again(changes, differ):
    told = plan(host(**changes))
    assert (told["packages_differ"], told["is_checked"]) == (differ, differ)


def test_an_upgrade_restarts_nothing():
    """The hook of --gpus is there already, so containers run on."""
    assert steps(plan(version="1.17.9-1")) == {"packages_differ", "is_checked"}


def test_a_new_toolkit_needs_a_restart():
    """Docker looks for the hook of --gpus when it starts."""
    assert steps(plan(host(packages={}))) >= {"restarts", "configures"}
    # Not on a fresh host alone: the engine may have started before its file was changed.
    assert steps(plan(of_engine=engine(runtimes=["crun", "runc"]))) == {
        "restarts",
        "configures",
        "is_checked",
    }
    assert steps(plan(of_engine=engine(cgroup_driver="systemd"))) == {
        "restarts",
        "configures",
        "is_checked",
    }


def test_options_of_docker():
    assert plan()["options"] == {"exec-opts": CGROUPFS, "runtimes": {"nvidia": RUNTIME}}
    assert plan(keep_gpus=False)["options"] == {"runtimes": {"nvidia": RUNTIME}}
    # The switch for CDI exists since 25.
    assert plan(of_engine=engine(version="28.5.1"))["options"] == {
        "exec-opts": CGROUPFS,
        "features": {"cdi": True},
        "runtimes": {"nvidia": RUNTIME},
    }
    assert [
        ("features" in plan(of_engine=engine(version=version))["options"])
        for version in ("", "24.0.9", "25.0.0")
    ] == [False, False, True]
    assert "features" not in plan(of_engine=engine(version="28.5.1"), cdi=False)["options"]


def test_runtimes_are_those_that_nvidia_ctk_prints():
    printed = '{"runtimes": {"nvidia": {"args": ["--debug"], "path": "nvidia-container-runtime"}}}'
    assert plan(said=printed)["options"]["runtimes"] == {
        "nvidia": {"args": ["--debug"], "path": "nvidia-container-runtime"}
    }
    # Check mode runs no nvidia-ctk.
    assert (
        plan(said="{}")["options"]["runtimes"]
        == plan(said="")["options"]["runtimes"]
        == {"nvidia": RUNTIME}
    )


@pytest.mark.parametrize(
    "of_engine, request_, configures",
    [
        ({}, {}, False),
        ({"options": {"exec-opts": CGROUPFS}}, {}, True),
        ({"options": {"runtimes": {"nvidia": RUNTIME}}}, {}, True),
        # An option that is no longer requested is taken back.
        ({}, {"keep_gpus": False}, True),
        (
            {"options": {"runtimes": {"nvidia": RUNTIME}}, "placed": ("runtimes.nvidia",)},
            {"keep_gpus": False},
            False,
        ),
        # An interrupted run.
        ({"pending": True}, {}, True),
        ({"version": "25.0.0"}, {}, True),
        (
            {
                "version": "25.0.0",
                "options": {
                    "runtimes": {"nvidia": RUNTIME},
                    "exec-opts": CGROUPFS,
                    "features": {"cdi": False},
                },
            },
            {},
            False,
        ),
        ({"version": "25.0.0"}, {"cdi": False}, False),
        (
            {
                "options": {
                    "runtimes": {"nvidia": RUNTIME},
                    "exec-opts": CGROUPFS,
                    "features": {"cdi": True},
                },
                "version": "25.0.0",
                "placed": ("runtimes.nvidia", "exec-opts", "features.cdi"),
            },
            {"cdi": False},
            True,
        ),
    ],
)
def test_docker_is_configured_when_an_option_is_missing_or_no_longer_requested(
    of_engine, request_, configures
):
    told = plan(of_engine=engine(**of_engine), **request_)
    assert (told["configures"], told["restarts"], told["is_checked"]) == (
        configures,
        False,
        configures,
    )


def test_the_users_own_cgroup_driver_is_kept_and_reported():
    own = engine(
        {"runtimes": {"nvidia": RUNTIME}, "exec-opts": SYSTEMD},
        placed=("runtimes.nvidia",),
        cgroup_driver="systemd",
    )
    assert steps(plan(of_engine=own)) == {"cgroups_by_systemd"}
    assert steps(plan(of_engine=own, keep_gpus=False)) == set()


@pytest.mark.parametrize(
    "entries, changes, request_, state, stale, of_others",
    [
        ([specification(OWN)], {}, {}, "as it is", [], []),
        ([], {}, {}, "file", [], []),
        # A new driver: nvidia-ctk writes the libraries' names into the specification.
        ([specification(OWN, "535.183.01")], {}, {}, "file", [OWN], []),
        ([], {}, {"cdi": False}, "as it is", [], []),
        ([specification(OWN)], {}, {"cdi": False}, "absent", [], []),
        ([specification(OWN, "535.183.01")], {}, {"cdi": False}, "absent", [], []),
        # From 1.18 on the toolkit writes its own specification at boot. It is the only one then,
        # and is kept fresh.
        ([specification(OWN), specification(OTHER)], {}, {}, "absent", [], []),
        ([specification(OTHER)], {}, {}, "as it is", [], []),
        ([specification(OTHER, "535.183.01")], {}, {}, "as it is", [OTHER], [OTHER]),
        (
            [specification(OWN, "535.183.01"), specification(OTHER, "535.183.01")],
            {},
            {},
            "absent",
            [OWN, OTHER],
            [OTHER],
        ),
        ([specification(OTHER, "535.183.01")], {}, {"cdi": False}, "as it is", [], []),
        # One that names no library.
        ([specification(OTHER, "")], {}, {}, "as it is", [], []),
        # A driver that does not answer yet.
        ([], {"loaded": ""}, {}, "as it is", [], []),
        ([specification(OWN, "535.183.01")], {"loaded": "535.183.01"}, {}, "as it is", [], []),
        ([specification(OWN)], {"loaded": "", "library": ""}, {}, "as it is", [], []),
    ],
)
def test_specifications(entries, changes, request_, state, stale, of_others):
    told = plan(host(cdi=entries, **changes), **request_)
    assert (told["own_state"], told["stale"], told["stale_of_others"]) == (state, stale, of_others)
    assert told["updates_cdi"] is (state != "as it is" or of_others != [])
    # Its removal alone is no reason to start a container.
    assert told["is_checked"] is (state == "file" or of_others != [])


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, ""),
        ({"loaded": ""}, "the driver is not loaded"),
        (
            {
                "loaded": "535.183.01",
                "reboot_required_reason": "the loaded kernel module is 535.183.01, the libraries are 550.54.15",
            },
            "the loaded kernel module is 535.183.01, the libraries are 550.54.15",
        ),
        ({"library": ""}, "the driver has no libraries"),
    ],
)
def test_reasons_not_to_check_the_gpus_in_a_container(changes, reason):
    assert plan(host(**changes))["no_proof_because"] == reason


def test_a_toolkit_that_the_role_did_not_install_is_left_alone():
    installed = host(packages=packages(held=False))
    others = engine(placed=())
    assert plan(installed, others, recommended=True)["is_left_alone"]
    # A version is requested; the role has installed it; Docker does not know it; packages of
    # several versions; a package is missing; a new driver.
    assert not plan(installed, others)["is_left_alone"]
    assert not plan(installed, engine(), recommended=True)["is_left_alone"]
    assert not plan(installed, engine(placed=(), runtimes=["runc"]), recommended=True)[
        "is_left_alone"
    ]
    assert not plan(
        host(packages=dict(packages(), **packages("1.17.7-1", names=NAMES[:2]))),
        others,
        recommended=True,
    )["is_left_alone"]
    assert not plan(host(packages=packages(names=NAMES[1:])), others, recommended=True)[
        "is_left_alone"
    ]
    assert not plan(host(cdi=[specification(OTHER, "535.183.01")]), others, recommended=True)[
        "is_left_alone"
    ]


def test_recommended_version_is_for_a_host_without_a_toolkit():
    recommended = toolkit_version("recommended", {}, load_facts())
    fresh = plan(
        host(packages={}, cdi=[]),
        engine({}, placed=(), runtimes=["runc"], cgroup_driver="systemd"),
        recommended,
        recommended=True,
    )
    assert fresh["packages"] == ["%s=%s" % (name, recommended) for name in NAMES]
    assert steps(fresh) == {
        "packages_differ",
        "restarts",
        "configures",
        "updates_cdi",
        "is_checked",
    }
    # Once installed, by the role, nothing is left to be done.
    assert (
        steps(
            plan(version=toolkit_version("recommended", packages(), load_facts()), recommended=True)
        )
        == set()
    )


def test_facts_that_are_not_known_yet():
    """Before the host is read, the plan has the request; role verify does not read the engine."""
    assert plan({}, {})["asked"] == dict.fromkeys(NAMES, VERSION)
    assert plan(host(), {})["no_proof_because"] == ""
    # The registered result of a task that was skipped.
    assert (
        plan({"changed": False, "skipped": True}, {})["no_proof_because"]
        == "the driver is not loaded"
    )


def read(name):
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


def evaluated(expression, **given):
    variables = dict(
        trusted(dict(read("vars/main.yml"), **read("defaults/main.yml"))),
        inventory_hostname="server-a",
        **given,
    )
    return Templar(DataLoader(), variables).template(trusted(expression))


def when(task, **given):
    return evaluated("{{ %s }}" % task["when"], **given)


@pytest.mark.parametrize(
    "version, gpus, applies, reported",
    [
        ("recommended", 2, True, False),
        ("1.17.8", 2, True, False),
        ("", 2, False, None),
        ("recommended", 0, False, None),
        ("1.17.8", 0, True, True),
        ("", 0, False, None),
    ],
)
def test_hosts_without_a_gpu_and_without_a_request(version, gpus, applies, reported):
    given = {"container_toolkit_version": version, "cluster_host": {"nvidia_devices": gpus}}
    [start] = read("tasks/main.yml")
    assert when(start, **given) is applies
    if applies:
        report, install = read("tasks/on_each_host.yml")
        assert (when(report, **given), when(install, **given)) == (reported, not reported)
        assert (
            evaluated(report["ansible.builtin.debug"]["msg"], **given)
            == "server-a: no NVIDIA GPU on this host, so no container toolkit is installed"
        )


def test_the_role_s_variables_reach_the_plan():
    request = {"container_toolkit_version": "1.17.8", "cluster_host": {"nvidia_devices": 2}}
    given = {
        "container_toolkit_keep_gpus": "false",
        "container_toolkit_cdi": "no",
        "cluster_stack": host(),
        "__container_toolkit_engine": engine(),
        "__container_toolkit_output": {"skipped": True},
    }
    told = evaluated("{{ __container_toolkit_plan }}", **request, **given)
    assert told == plan(keep_gpus=False, cdi=False)
    assert (told["own_state"], told["options"]) == ("absent", {"runtimes": {"nvidia": RUNTIME}})
    # Before anything is registered.
    assert evaluated("{{ __container_toolkit_plan.asked }}", **request) == dict.fromkeys(
        NAMES, VERSION
    )


def test_the_image_of_the_check():
    assert evaluated("{{ __container_toolkit_image }}") == "trainyard/sees-gpus:latest"
    assert (
        evaluated("{{ __container_toolkit_image }}", container_toolkit_proof_image="site/cuda:12.4")
        == "site/cuda:12.4"
    )
