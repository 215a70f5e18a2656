"""Decisions training_container_plan and training_container_faults: what is missing, the options for
Docker, and when nothing has to be done.
"""

from __future__ import annotations

import hashlib
import json
import re
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template, trusted

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_plan

ROLE = Path(__file__).parents[4] / "roles/training_container"
# ansible-core 2.17 and 2.18 look up files of services although there are none.
PATHS_OF_ROLE = {"role_path": str(ROLE), "ansible_search_path": [str(ROLE)]}
UNIT = {"path": "/etc/systemd/system/job.service", "content": "[Unit]\n", "mode": "0644"}
FILES = [
    {"path": "/etc/trainyard", "state": "directory", "mode": "0755"},
    {"path": "/etc/trainyard/ssh", "state": "directory", "mode": "0700"},
    UNIT,
]
PATHS = {
    "/data1": "0755",
    "/dev/infiniband": "",
    "/etc/trainyard/site": "",
    "/etc/trainyard/site/ca-bundle.crt": "",
    "/etc/trainyard/site/pip.conf": "",
    "/etc/trainyard": "0755",
    "/etc/trainyard/ssh": "0700",
    UNIT["path"]: "0644",
}
CONTAINER = {
    "exists": True,
    "running": True,
    "id": "c",
    "image_id": "i",
    "managed": True,
    "settings": "",
    "restart_policy": "no",
    "paused": False,
    "changed_files": [],
    "busy": [],
}
SERVICE = {
    "loaded": True,
    "foreign": "",
    "active": True,
    "state": "active",
    "enabled": True,
    "reload_needed": False,
}
ASKED = {
    "name": "job",
    "image": "site/image:1",
    "gpus": "none",
    "npus": True,
    "shm_size": "auto",
    "ulimits": {"memlock": -1, "stack": "67108864"},
    "environment": {},
    "mounts": [],
    "devices": [],
    "capabilities": ["IPC_LOCK"],
    "workdir": "/data1/share",
    "engine_options": {
        "ipc_mode": "",
        "runtime": "",
        "tty": False,
        "interactive": False,
        "user": "",
    },
    "repair_own_name": False,
    "address": "10.0.0.11",
    "share": "/data1/share",
    "share_root": "/data1",
    "ssh_dir": "/etc/trainyard/ssh",
    "site_dir": "/etc/trainyard/site",
    "env_file": "/etc/trainyard/site/environment",
    "infiniband": "/dev/infiniband",
    "services": [],
    "notebooks": {},
    "host_name": "server-a",
    "service_programs": {"supervisor.py": "run()\n"},
}
HOST = {"gpus": 2, "memory_mib": 257000, "own_name_in_hosts": [], "own_name_repaired": False}


def found(container=None, unit=None, image=None, **more):
    return dict(
        {
            "available": True,
            "cause": "",
            "fix": "",
            "runtimes": ["runc"],
            "image": dict({"exists": True, "id": "i"}, **(image or {})),
            "container": dict(CONTAINER, **(container or {})),
            "unit": dict(SERVICE, **(unit or {})),
            "paths": PATHS,
            "services": {"files": [], "config": "", "states": {}, "certificate_days": None},
            "notebooks": {"revision": ""},
            "npus": {"devices": [], "mounts": []},
            "files": {UNIT["path"]: hashlib.sha256(UNIT["content"].encode()).hexdigest()},
        },
        **more,
    )


def engine(**options):
    return {"engine_options": dict(ASKED["engine_options"], **options)}


def plan(state=None, host=None, **asked):
    return _container_plan.plan(
        state or found(), dict(ASKED, **asked), dict(HOST, **(host or {})), FILES
    )


def settings(state=None, **asked):
    return plan(state, **asked)["settings"]


@pytest.mark.parametrize(
    "state, host, asked, problem",
    [
        (
            found(available=False, cause="not_installed", fix="run gpu_stack.yml"),
            {},
            {},
            "the Docker engine is missing (not_installed): run gpu_stack.yml",
        ),
        (
            found(),
            {},
            {"image": ""},
            "no image is set: run role training_image before, or set training_container_image",
        ),
        (
            found(image={"exists": False}),
            {},
            {},
            "image site/image:1 is not on this host: run role training_image, or correct training_container_image",
        ),
        (
            found({"managed": False}),
            {},
            {},
            "a container job exists that this collection did not create: rename it, or set training_container_name",
        ),
        (
            found(unit={"foreign": "/etc/systemd/system/job.service"}),
            {},
            {},
            "the role would replace the unit /etc/systemd/system/job.service, which this collection did not install: set training_container_name",
        ),
        (
            found(runtimes=["io.containerd.runc.v2", "runc"]),
            {},
            engine(runtime="absent"),
            "Docker on this host has no runtime absent (it has io.containerd.runc.v2, runc): run role container_toolkit for nvidia, or correct "
            "training_container_runtime",
        ),
        (
            found(
                {
                    "changed_files": ["/usr/bin/ldd (modified)", "/bin/a (deleted)"],
                    "busy": ["python3", "sh"],
                }
            ),
            {},
            {},
            "files of the image were changed in the running container (/usr/bin/ldd (modified), /bin/a (deleted)). It must be recreated, but this would end its "
            "processes (python3, sh): end the job, or stop it together with the container (systemctl stop job.service), then run training_environment.yml again",
        ),
        (
            found(),
            {"gpus": 0},
            {"gpus": "all"},
            'training_container_gpus is "all", but the driver of this host reports no GPU: load the driver with gpu_stack.yml, which says if a reboot is due, or set it to none',
        ),
        (
            found(),
            {"gpus": 0},
            {"gpus": [0, 1]},
            "training_container_gpus is [0, 1], but the driver of this host reports no GPU: load the driver with gpu_stack.yml, which says if a reboot is due, or set it to none",
        ),
        (
            found(paths=dict(PATHS, **{"/data1": ""})),
            {},
            {},
            "/data1 does not exist on this host, but it must contain the shared folder /data1/share: run role shared_storage",
        ),
        (
            found(),
            {},
            {"mounts": [{"source": "/opt/data", "target": "/x"}]},
            "/opt/data does not exist on this host: correct training_container_mounts or training_container_devices",
        ),
        (
            found(),
            {},
            {"devices": ["/dev/fuse"]},
            "/dev/fuse does not exist on this host: correct training_container_mounts or training_container_devices",
        ),
    ],
)
def test_what_is_missing(state, host, asked, problem):
    told = plan(state, host, **asked)
    assert told["problems"] == [problem] and told["as_asked"] is False


def test_what_is_no_problem():
    assert plan()["problems"] == []
    # Without an engine, neither its images nor its runtimes are known.
    assert (
        len(
            plan(
                found(available=False, image={"exists": False}, runtimes=[]),
                **engine(runtime="nvidia"),
            )["problems"]
        )
        == 1
    )
    # Changed files of a container without a job: it is recreated.
    assert plan(found({"changed_files": ["/usr/bin/ldd (modified)"]}))["problems"] == []
    assert (
        plan(host={"gpus": 0})["problems"] == []
        and plan(found(runtimes=["nvidia"]), gpus="all", **engine(runtime="nvidia"))["problems"]
        == []
    )
    assert (
        plan(
            found(paths=dict(PATHS, **{"/opt": "0755"})),
            mounts=[{"source": "/opt", "target": "/x"}],
        )["problems"]
        == []
    )


@pytest.mark.parametrize(
    "container, unit, image, fault",
    [
        ({"running": False}, {}, {}, "container job does not run"),
        # docker rm --force: it has no image, and is not of another one.
        (
            {"exists": False, "running": False, "image_id": ""},
            {},
            {},
            "container job does not exist",
        ),
        ({"paused": True}, {}, {}, "container job is paused"),
        (
            {"changed_files": ["/usr/bin/ldd (modified)"]},
            {},
            {},
            "files of the image were changed in the running container: /usr/bin/ldd (modified)",
        ),
        ({}, {"active": False, "state": "failed"}, {}, "job.service is failed"),
        ({}, {"enabled": False}, {}, "job.service is not enabled, so it will not start at boot"),
        ({}, {}, {"id": "j"}, "the container was created from another image than site/image:1"),
        # Not also "does not run" and "another image", which both follow from it.
        (
            {"exists": False, "running": False, "image_id": ""},
            {"active": False, "state": "activating"},
            {},
            "container job does not exist",
        ),
    ],
)
def test_faults_of_a_container_that_should_run(container, unit, image, fault):
    state = found(container, unit, image)
    assert (
        _container_plan.faults(state, "job", "site/image:1") == [fault]
        and plan(state)["as_asked"] is False
    )
    assert _container_plan.faults(found(), "job", "site/image:1") == []


def as_planned(**changes):
    """A container with the label of its settings."""
    return found({"settings": plan()["hash"], **changes})


@pytest.mark.parametrize(
    "container, recreate",
    [
        ({"limited": ["memory 300 MiB"]}, True),
        ({"departures": ["/data1/share is read-only in the container"]}, False),
    ],
)
def test_what_was_changed_around_a_running_container_is_healed(container, recreate):
    assert plan(as_planned())["as_asked"] and not plan(as_planned())["restart"]
    told = plan(as_planned(**container))
    assert (told["as_asked"], told["recreate"], told["restart"]) == (False, recreate, not recreate)
    assert told["problems"] == []
    # A job would end.
    (problem,) = plan(as_planned(busy=["python3"], **container))["problems"]
    assert ("memory 300 MiB" if recreate else "/data1/share is read-only") in problem
    assert ("recreated" if recreate else "restarted") in problem and "(python3)" in problem


def drop_in(*keys):
    return {"drop_ins": [{"path": "/etc/systemd/system/job.service.d/x.conf", "keys": list(keys)}]}


@pytest.mark.parametrize(
    "container, unit, files, text, by_hand, warn",
    [
        (
            {"restart_policy": "always"},
            {},
            None,
            "restart policy of the container is always",
            False,
            False,
        ),
        ({"settings": "old"}, {}, None, "created with other settings", False, False),
        ({}, {"reload_needed": True}, None, "was changed after systemd read it", False, False),
        ({}, {"engine": "disabled"}, None, "docker.service is disabled", False, False),
        ({}, {"engine": "masked"}, None, "docker.service is masked", False, False),
        (
            {},
            {},
            {UNIT["path"]: "another"},
            "is not the one that this release installs",
            False,
            False,
        ),
        (
            {},
            drop_in("ExecStartPre", "Nice", "Restart"),
            None,
            "sets ExecStartPre, Restart of job.service",
            True,
            False,
        ),
        ({}, drop_in("ConditionPathExists"), None, "sets ConditionPathExists", True, False),
        (
            {},
            drop_in("Environment", "LimitNOFILE"),
            None,
            "sets Environment, LimitNOFILE",
            True,
            True,
        ),
        ({}, drop_in(), None, "sets nothing", True, True),
    ],
)
def test_what_would_start_at_the_next_boot(container, unit, files, text, by_hand, warn):
    state = as_planned(**container)
    state["unit"].update(unit)
    state["files"] = files or state["files"]
    (fault,) = plan(state)["faults"]
    assert text in fault["found"] and (fault["by_hand"], fault["warn"]) == (by_hand, warn)
    # What a person has written stays, and does not make the role work at each run.
    assert plan(state)["as_asked"] is (by_hand or "docker.service" in text)


def test_a_mount_of_a_site_that_was_lost():
    """Check container-share has the share, and the limits are those of container-limits."""
    lost = ["/data1/share is read-only in the container", "/mnt is not mounted in the container"]
    told = plan(as_planned(departures=lost + ["/dev/shm is not mounted in the container"]))
    assert [fault["found"] for fault in told["faults"]] == lost[1:]
    drift = _container_plan.drift
    rows = drift(as_planned(departures=lost), ASKED, [], told["faults"])
    assert [row["found"] for row in rows] == [lost[1], lost[0]]


def test_a_second_sshd_is_ended_by_a_restart():
    said = "another sshd runs in the container: /usr/sbin/sshd -p 2222"
    state = as_planned(departures=[said])
    (fault,) = plan(state)["faults"]
    assert (fault["found"], fault["by_hand"], fault["warn"]) == (said, False, False)
    assert "who started it" in fault["fix"] and plan(state)["as_asked"] is False


def test_a_container_as_planned_has_no_faults():
    state = as_planned()
    assert plan(state)["faults"] == []
    # Facts of a host that has an older release of the module.
    assert "drop_ins" not in state["unit"] and "departures" not in state["container"]
    state["unit"]["engine"] = "enabled"
    assert plan(state)["faults"] == []
    assert plan(found({"exists": False, "settings": ""}))["faults"] == []


def test_drift_names_container_and_unit_once_each():
    state = as_planned(restart_policy="always", limited=["memory 300 MiB"])
    drift = _container_plan.drift
    told = drift(
        state, ASKED, ["job.service is failed", "service a: failed"], plan(state)["faults"]
    )
    assert [entry["found"] for entry in told] == [
        "job.service is failed",
        plan(state)["faults"][0]["found"],
        "limited to memory 300 MiB",
    ]
    assert {entry["what"] for entry in told} == {"training container"}
    # A host that never had one.
    state = found({"exists": False}, {"loaded": False})
    assert drift(state, ASKED, ["container job does not exist"], []) == []


def test_mounts_and_environment():
    assert [mount["target"] for mount in settings()["mounts"]] == [
        "/data1",
        "/etc/trainyard/ssh",
    ] and settings()["env"] == {}
    site = "/etc/trainyard/site"
    paths = dict(
        PATHS,
        **{
            site: "0755",
            site + "/ca-bundle.crt": "0644",
            site + "/pip.conf": "0644",
            "/opt": "0755",
        },
    )
    state = found(paths=paths, files={site + "/environment": "abc", UNIT["path"]: "def"})
    told = settings(
        state,
        mounts=[{"source": "/opt", "target": "/x", "read_only": True}],
        environment={"THREADS": 1, "DEBUG": True, "PIP_CONFIG_FILE": "/mine"},
    )
    assert told["mounts"] == [
        {"type": "bind", "source": "/data1", "target": "/data1", "propagation": "rslave"},
        {
            "type": "bind",
            "source": "/etc/trainyard/ssh",
            "target": "/etc/trainyard/ssh",
            "read_only": True,
        },
        {"type": "bind", "source": site, "target": site, "read_only": True},
        {"type": "bind", "source": "/opt", "target": "/x", "read_only": True},
    ]
    # Docker accepts strings only, and the user's own variables win.
    assert told["env"] == {
        "SSL_CERT_FILE": site + "/ca-bundle.crt",
        "REQUESTS_CA_BUNDLE": site + "/ca-bundle.crt",
        "PIP_CONFIG_FILE": "/mine",
        "THREADS": "1",
        "DEBUG": "True",
    }
    assert told["env_file"] == {site + "/environment": "abc"}


@pytest.mark.parametrize(
    "memory, asked, size",
    [(257000, "auto", "125g"), (1000, "auto", "1g"), (257000, "128m", "128m")],
)
def test_shared_memory(memory, asked, size):
    assert plan(host={"memory_mib": memory}, shm_size=asked)["settings"]["shm_size"] == size


def test_npus():
    there = found(
        npus={
            "devices": ["/dev/davinci0", "/dev/davinci_manager"],
            "mounts": ["/usr/local/Ascend/driver"],
        }
    )
    given = settings(there, devices=["/dev/fuse"])
    assert given["devices"] == ["/dev/fuse", "/dev/davinci0", "/dev/davinci_manager"]
    assert {
        "source": "/usr/local/Ascend/driver",
        "target": "/usr/local/Ascend/driver",
        "read_only": True,
        "type": "bind",
    } in given["mounts"]
    assert settings(there, npus=False) == settings(), "an NPU belongs to one container at a time"


def test_limits_and_devices():
    assert settings()["ulimits"] == ["memlock:-1:-1", "stack:67108864:67108864"]
    assert settings(devices=["/dev/fuse"])["devices"] == ["/dev/fuse"]
    there = found(paths=dict(PATHS, **{"/dev/infiniband": "0755"}))
    assert settings(there, devices=["/dev/fuse"])["devices"] == ["/dev/fuse", "/dev/infiniband"]


@pytest.mark.parametrize(
    "gpus, requests",
    [
        ("none", []),
        ("all", [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]),
        ([0, 1], [{"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": [["gpu"]]}]),
        (
            ["GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a"],
            [
                {
                    "driver": "nvidia",
                    "device_ids": ["GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a"],
                    "capabilities": [["gpu"]],
                }
            ],
        ),
    ],
)
def test_gpus(gpus, requests):
    assert settings(gpus=gpus)["device_requests"] == requests


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ipc_mode": "host"},
        {"runtime": "runc"},
        {"tty": True, "interactive": True},
        {"user": "root"},
    ],
)
def test_options_are_part_of_the_hash_if_they_are_set(options):
    told = plan(**engine(**options))
    assert told["options"] == options and (told["hash"] == plan()["hash"]) is (not options)


def test_hash_is_that_of_former_releases():
    """Made by the former expression: settings | combine(options) | to_json(sort_keys=true) |
    hash('sha256'). Another hash recreates every container.
    """
    assert plan()["hash"] == "d3e1bb59a8a7438a57dd98a14703e6327fe978c37b893f6b2983558d76b9c740"
    told = plan(
        gpus="all",
        environment={"GREETING": "h\u00e4llo", "N": 1},
        repair_own_name=True,
        host={"own_name_repaired": True},
        **engine(ipc_mode="host", tty=True, interactive=True),
    )
    assert told["hash"] == "bc83637665a51740cdfa737bffe9972f676688c80e94e49c0633231e65075f1b"


@pytest.mark.parametrize(
    "asked, in_hosts, repaired, as_asked, anew",
    [
        (False, ["127.0.1.1"], False, True, False),
        (False, ["10.0.0.11"], False, True, False),
        # No longer asked for.
        (False, ["10.0.0.11"], True, False, False),
        (True, ["127.0.1.1"], False, False, True),
        (True, ["::1"], False, False, True),
        (True, ["10.0.0.11"], True, True, True),
        # The container is left alone where nothing was to be repaired.
        (True, ["10.0.0.11"], False, True, False),
        (True, [], False, True, False),
        # The host has another address by now; somebody has added a line again.
        (True, ["10.0.0.99"], True, False, True),
        (True, ["127.0.1.1", "10.0.0.11"], True, False, True),
    ],
)
def test_own_name(asked, in_hosts, repaired, as_asked, anew):
    told = plan(
        host={"own_name_in_hosts": in_hosts, "own_name_repaired": repaired}, repair_own_name=asked
    )
    assert (told["own_name_as_asked"], told["hash"] != plan()["hash"]) == (as_asked, anew)


@pytest.mark.parametrize(
    "state",
    [
        {"container": {"settings": "of other settings"}},
        {"container": {"restart_policy": "always"}},
        {"unit": {"reload_needed": True}},
        {"files": {}},
        {"files": {UNIT["path"]: "another"}},
        {"paths": dict(PATHS, **{"/etc/trainyard/ssh": "0755"})},
        {"paths": dict(PATHS, **{UNIT["path"]: "0600"})},
        {"unit": {"active": False}},
    ],
)
def test_what_is_as_asked_is_left_alone(state):
    good = {"settings": plan()["hash"]}
    assert plan(found(good))["as_asked"] is True
    assert (
        plan(found(**dict(state, container=dict(good, **state.get("container", {})))))["as_asked"]
        is False
    )


@pytest.mark.parametrize("tty, repair", [(False, False), ("true", "true"), ("no", "no")])
def test_the_role_s_variables_are_the_request(tty, repair):
    """Of the defaults, and of numbers and truth values as text."""
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    assert set(variables["__training_container_request"]) == set(ASKED)
    variables.update(
        yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8")),
        training_container_name="job",
        training_container_image="site/image:1",
        training_container_gpus="none",
        training_container_tty=tty,
        training_container_repair_own_name=repair,
        **PATHS_OF_ROLE,
    )
    variables["__training_container_files"] = FILES

    state = found()
    templar = Templar(
        DataLoader(),
        dict(
            trusted(variables),
            cluster_share_path="/data1/share",
            cluster_address="10.0.0.11",
            cluster_host=HOST,
            training_container_state=state,
            inventory_hostname="server-a",
            cluster_scheduler="none",
        ),
    )
    told = templar.template(trust_as_template("{{ __training_container_plan }}"))
    wanted = plan(
        state,
        ulimits={"core": 0, "memlock": -1, "stack": 67108864},
        repair_own_name=repair == "true",
        **engine(tty=tty == "true", interactive=tty == "true"),
    )
    assert told == wanted and told["problems"] == []
    assert templar.template(trust_as_template("{{ __training_container_faults }}")) == []


SPECS = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text(encoding="utf-8"))
OPTIONS = SPECS["argument_specs"]["main"]["options"]
ENGINE_OPTIONS = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))[
    "__training_container_request"
]["engine_options"]


@pytest.mark.parametrize("name", ENGINE_OPTIONS)
def test_docker_container_gets_the_value_of_the_variable(name):
    """Numbers and truth values as text, as with -e name=value."""
    [variable] = re.findall(r"training_container_\w+", ENGINE_OPTIONS[name])
    given, value = {"str": ("x", "x"), "bool": ("yes", True), "int": ("7", 7)}[
        OPTIONS[variable]["type"]
    ]
    template = trusted({name: ENGINE_OPTIONS[name]})
    options = Templar(DataLoader(), {variable: given}).template(template)
    assert plan(**engine(**options))["options"] == {name: value}


INSIDE = "/etc/trainyard/services/inside"
SERVICES = [
    {"name": "jupyterlab"},
    {"name": "aiaa", "address": "cluster", "command": "serve {certificate} {key}"},
]
NOTEBOOKS = {"repository": "https://git.example.org/notebooks.git", "revision": "0123456789" * 4}


@pytest.mark.parametrize(
    "services, notebooks, paths, files, certificate, repository",
    [
        ([], {}, [], [], "", ""),
        (
            SERVICES,
            NOTEBOOKS,
            [
                "/etc/trainyard/services",
                INSIDE,
                INSIDE + "/config.json",
                INSIDE + "/jupyterlab.token",
                INSIDE + "/aiaa.token",
                "/var/lib/trainyard/notebooks/tree",
            ],
            [INSIDE + "/supervisor.py", INSIDE + "/services.py", INSIDE + "/config.json"],
            "/etc/trainyard/services/tls/services.pem",
            "/var/lib/trainyard/notebooks/repository",
        ),
        (
            SERVICES[:1],
            {},
            [
                "/etc/trainyard/services",
                INSIDE,
                INSIDE + "/config.json",
                INSIDE + "/jupyterlab.token",
            ],
            [INSIDE + "/supervisor.py", INSIDE + "/services.py", INSIDE + "/config.json"],
            "",
            "",
        ),
    ],
)
def test_what_the_role_reads_of_services(
    services, notebooks, paths, files, certificate, repository
):
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    variables.update(
        yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8")),
        training_container_name="job",
    )
    templar = Templar(
        DataLoader(),
        dict(
            trusted(variables),
            cluster_share_path="/data1/share",
            cluster_address="10.0.0.11",
            role_path=str(ROLE),
            training_container_services=services,
            training_container_notebooks=notebooks,
        ),
    )

    def value(name):
        return templar.template(trust_as_template("{{ __training_container_%s }}" % name))

    assert value("paths")[8:] == paths and value("checked_files")[2:] == files
    assert (value("certificate"), value("repository")) == (certificate, repository)
    if services:
        assert value("service_programs") == {
            "supervisor.py": (ROLE / "files/supervisor.py").read_text(encoding="utf-8"),
            "services.py": (ROLE.parent / "jobs/files/services.py").read_text(encoding="utf-8"),
        }


def test_services_and_notebooks_are_mounted():
    told = plan(services=SERVICES, notebooks=NOTEBOOKS, mounts=[{"source": "/opt", "target": "/x"}])
    assert [
        (mount["source"], mount["target"], mount.get("read_only", False))
        for mount in told["settings"]["mounts"]
    ][2:] == [
        ("/opt", "/x", False),
        (INSIDE, "/etc/trainyard/services", True),
        ("/var/lib/trainyard/notebooks/tree", "/claraDevDay", False),
    ]
    assert told["services"]["names"] == ["jupyterlab", "aiaa"]


def test_a_container_whose_services_do_not_serve_is_not_as_asked():
    asked = {"services": [{"name": "x", "port": 5001, "command": "serve"}]}
    plain = plan(**asked)
    paths = dict(PATHS, **{entry["path"]: entry["mode"] for entry in plain["services"]["files"]})
    files = {
        entry["path"]: hashlib.sha256(entry["content"].encode()).hexdigest()
        for entry in plain["services"]["files"] + [UNIT]
        if "content" in entry
    }
    told = {
        "files": [path for path in files if path.startswith(INSIDE)],
        "config": plain["services"]["config"],
        "certificate_days": None,
        "states": {"x": {"state": "ready", "why": ""}},
    }
    state = found({"settings": plain["hash"]}, paths=paths, files=files, services=told)
    assert (
        plan(state, **asked)["as_asked"] is True
        and _container_plan.faults(state, "job", "site/image:1", ["x"]) == []
    )
    failed = dict(
        state, services=dict(told, states={"x": {"state": "failed", "why": "no disk space"}})
    )
    assert plan(failed, **asked)["as_asked"] is False and _container_plan.faults(
        failed, "job", "site/image:1", ["x"]
    ) == ["service x: failed: no disk space"]
    assert _container_plan.faults(found(), "job", "site/image:1", ["x"]) == [
        "service x: not started"
    ]


class Engine(BaseHTTPRequestHandler):
    """As much of Docker 20.10 as module docker_container needs to create a container.

    It keeps what it was sent.
    """

    def answer(self, code, body):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_request(self, code="-", size="-"):
        """A client at a Unix socket has no address to write down."""

    def do_GET(self):
        path = self.path.split("?")[0].rpartition("/v1.41")[2]
        image = {"Id": "sha256:1", "RepoTags": ["site/image:1"], "Config": {}}
        known = {
            "/version": {"ApiVersion": "1.41", "MinAPIVersion": "1.12"},
            "/images/json": [image],
            "/images/sha256:1/json": image,
            "/containers/json": [],
            "/containers/made/json": {"Id": "made", "Config": {}, "HostConfig": {}},
        }
        self.answer(
            200 if path in known else 404, known.get(path, {"message": "no such thing: " + path})
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path.split("?")[0].rpartition("/v1.41")[2], body))
        self.answer(201, {"Id": "made", "Warnings": []})


@pytest.fixture(name="created")
def fixture_created(tmp_path):
    """Returns a function that runs the task that creates the container, with these variables of the
    role, and returns what Docker was asked for.
    """
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    variables.update(yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8")))
    tasks = yaml.safe_load((ROLE / "tasks/container.yml").read_text(encoding="utf-8"))
    [task] = [task for task in tasks if task["name"] == "Create the container"]
    module = "community.docker.docker_container"
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def create(**chosen):
            server.asked = []
            state = found(
                {"exists": False, "running": False, "managed": False}, runtimes=["nvidia", "runc"]
            )
            facts = {
                "cluster_share_path": "/data1/share",
                "cluster_address": "10.0.0.11",
                "cluster_host": dict(HOST, nvidia_devices=2),
                "groups": {},
                "training_container_state": state,
                "inventory_hostname": "server-a",
                "cluster_scheduler": "none",
                "omit": "(left out)",
                **PATHS_OF_ROLE,
            }
            templar = Templar(
                DataLoader(),
                dict(
                    trusted(dict(variables, training_container_image="site/image:1", **chosen)),
                    **facts,
                ),
            )
            assert (
                templar.template(trust_as_template("{{ __training_container_plan.problems }}"))
                == []
            )
            arguments = templar.template(trusted(task["module_defaults"][module]))
            arguments.update(
                (key, value)
                for key, value in templar.template(trusted(task[module])).items()
                if value != "(left out)"
            )
            arguments.update(
                docker_host="unix://" + server.server_address, _ansible_remote_tmp="/tmp"
            )
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "ansible_collections.community.docker.plugins.modules.docker_container",
                ],
                text=True,
                check=False,
                input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert done.returncode == 0 and json.loads(done.stdout)["changed"], (
                done.stdout + done.stderr
            )
            [(path, body)] = server.asked
            assert path == "/containers/create"
            return body

        yield create
        server.shutdown()


@pytest.mark.parametrize(
    "gpus, requests", [("none", []), ("all", [(-1, None)]), (["1", "3"], [(None, ["1", "3"])])]
)
def test_docker_is_asked_for_the_gpus(created, gpus, requests):
    """No scenario can start this container: its hosts have no GPU."""
    asked = created(training_container_gpus=gpus)["HostConfig"].get("DeviceRequests", [])
    assert [(request["Count"], request["DeviceIDs"]) for request in asked] == requests
    assert all(
        (request["Driver"], request["Capabilities"]) == ("nvidia", [["gpu"]]) for request in asked
    )


def test_docker_is_asked_for_what_the_guide_has(created):
    """P1.2. Hosts of scenarios may not raise memlock to unlimited."""
    body = created(
        training_container_gpus="all",
        training_container_shm_size="126g",
        training_container_runtime="nvidia",
        training_container_tty=True,
        training_container_ipc="host",
        training_container_name="clara",
        training_container_workdir="/data1/share/work",
        training_container_mounts=[
            {"source": "/data1", "target": "/claraDevDay", "read_only": True}
        ],
    )
    host = body["HostConfig"]
    assert (host["NetworkMode"], host["IpcMode"], host["Runtime"], host["ShmSize"]) == (
        "host",
        "host",
        "nvidia",
        126 << 30,
    )
    assert host["Ulimits"] == [
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "memlock", "Soft": -1, "Hard": -1},
        {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
    ]
    assert (body["Image"], body["Tty"], body["OpenStdin"], body["WorkingDir"]) == (
        "site/image:1",
        True,
        True,
        "/data1/share/work",
    )
    assert (host["CapAdd"], host["RestartPolicy"]["Name"]) == (["IPC_LOCK"], "no")
    assert [
        (mount["Source"], mount["Target"], bool(mount["ReadOnly"])) for mount in host["Mounts"]
    ] == [
        ("/data1", "/data1", False),
        ("/etc/trainyard/ssh", "/etc/trainyard/ssh", True),
        ("/data1", "/claraDevDay", True),
    ]
