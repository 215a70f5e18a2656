# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the supervisor of the training container is told, and what differs on a host."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_services as services
from ansible_collections.trainyard.gpu.plugins.plugin_utils._container_plan import (
    drift,
    service_faults,
)

PROGRAMS = {"supervisor.py": "run()\n", "services.py": "x = 1\n"}
REVISION = "0123456789" * 4
NOTEBOOKS = {"repository": "https://git.example.org/notebooks.git", "revision": REVISION}
JUPYTER = {"name": "jupyterlab"}
AIAA = {
    "name": "aiaa",
    "address": "cluster",
    "command": "serve --host {address} --port {port} --cert {certificate} --key={key} 'a b' {other}",
}
INSIDE, TLS = "/etc/trainyard/services/inside", "/etc/trainyard/services/tls"
OF_CERTIFICATE = [
    TLS + "/ca.pem",
    TLS + "/ca.key",
    TLS + "/services.pem",
    TLS + "/services.key",
    INSIDE + "/services.pem",
    INSIDE + "/services.key",
]


def request(*wanted, notebooks=None, **more):
    return dict(
        {
            "services": list(wanted),
            "notebooks": notebooks or {},
            "address": "10.0.0.11",
            "workdir": "/data1/share",
            "host_name": "server-a",
            "service_programs": PROGRAMS,
        },
        **more,
    )


def empty(**more):
    """A host without anything of it."""
    paths = dict.fromkeys(
        [
            "/etc/trainyard/services",
            INSIDE,
            INSIDE + "/config.json",
            INSIDE + "/jupyterlab.token",
            INSIDE + "/aiaa.token",
            services.TREE,
        ],
        "",
    )
    return dict(
        {
            "paths": paths,
            "files": {},
            "services": {"files": [], "config": "", "states": {}, "certificate_days": None},
            "notebooks": {"revision": ""},
            "npus": {"devices": [], "mounts": []},
        },
        **more,
    )


def planned(found, asked):
    return services.plan(found, asked, PROGRAMS)


def finished(asked):
    """A host on which the role has done its work."""
    found = empty()
    plan = planned(found, asked)
    for entry in plan["tokens"] + plan["files"]:
        found["paths"][entry["path"]] = entry["mode"]
        if "content" in entry:
            found["services"]["files"].append(entry["path"])
            found["files"][entry["path"]] = hashlib.sha256(entry["content"].encode()).hexdigest()
    if plan["certificate"]:
        found["services"]["files"] += OF_CERTIFICATE
        found["services"]["certificate_days"] = 397
    found["services"].update(
        config=plan["config"],
        states={name: {"state": "ready", "why": ""} for name in plan["names"]},
    )
    if asked["notebooks"]:
        found["notebooks"]["revision"], found["paths"][services.TREE] = (
            asked["notebooks"]["revision"],
            "0755",
        )
    return found


def config_of(*wanted, **more):
    files = planned(empty(), request(*wanted, **more))["files"]
    assert files[-1]["path"] == INSIDE + "/config.json" and files[-1]["mode"] == "0600"
    return json.loads(files[-1]["content"])["services"]


def test_without_services_nothing_is_done():
    plan = planned(empty(), request())
    assert (
        plan["differ"],
        plan["files"],
        plan["absent"],
        plan["tokens"],
        plan["certificate"],
        plan["checkout"],
        plan["lost"],
    ) == (False, [], [], [], {}, False, [])
    assert services.mounts(request()) == [] and plan["packages"] == []
    assert (
        planned(empty(), request(AIAA, notebooks=NOTEBOOKS))["packages"] == ["git", "openssl"]
        and planned(empty(), request(JUPYTER))["packages"] == []
    )


def test_jupyterlab():
    assert config_of(JUPYTER) == [
        {
            "name": "jupyterlab",
            "address": "127.0.0.1",
            "port": 8890,
            "folder": "/data1/share",
            "command": [],
            "certificate": "",
            "key": "",
            "token_file": "/etc/trainyard/services/jupyterlab.token",
        }
    ]
    assert config_of(JUPYTER, notebooks=NOTEBOOKS)[0]["folder"] == "/claraDevDay"
    assert (
        config_of(dict(JUPYTER, workdir="/claraDevDay/scripts", port=8891), notebooks=NOTEBOOKS)[0][
            "folder"
        ]
        == "/claraDevDay/scripts"
    )
    assert planned(empty(), request(JUPYTER))["told"] == [
        "jupyterlab: http://127.0.0.1:8890, token in %s/jupyterlab.token" % INSIDE
    ]
    assert planned(empty(), request(dict(JUPYTER, address="cluster")))["told"] == [
        "jupyterlab: https://10.0.0.11:8890, token in %s/jupyterlab.token, authority %s/ca.pem"
        % (INSIDE, TLS)
    ]


def test_a_command_gets_its_place():
    [entry] = config_of(AIAA)
    folder = "/etc/trainyard/services/services"
    assert entry["command"] == [
        "serve",
        "--host",
        "10.0.0.11",
        "--port",
        "5000",
        "--cert",
        folder + ".pem",
        "--key=%s.key" % folder,
        "a b",
        "{other}",
    ]
    assert (entry["token_file"], entry["certificate"], entry["key"]) == (
        "",
        folder + ".pem",
        folder + ".key",
    )
    [entry] = config_of(
        {"name": "x", "port": 5001, "command": "serve {address}:{port} {token_file}"}
    )
    assert (
        entry["command"] == ["serve", "127.0.0.1:5001", "/etc/trainyard/services/x.token"]
        and entry["token_file"] == entry["command"][2]
    )
    plan = planned(
        empty(), request({"name": "x", "port": 5001, "command": "serve"}, address="2001:db8::1")
    )
    assert plan["tokens"] == [] and plan["told"] == ["x: 127.0.0.1 port 5001"]


def test_tokens_are_secret_and_stay():
    plans = [planned(empty(), request(JUPYTER)) for _number in range(2)]
    [former, token] = [plan["tokens"][-1] for plan in plans]
    assert (token["path"], token["mode"], token["replace"]) == (
        INSIDE + "/jupyterlab.token",
        "0600",
        False,
    )
    assert (
        re.fullmatch("[0-9a-f]{48}\n", token["content"]) and token["content"] != former["content"]
    )
    assert [entry["mode"] for entry in plans[0]["tokens"][:-1]] == ["0700", "0700"]
    others = {name: value for name, value in plans[0].items() if name != "tokens"}
    assert former["content"].strip() not in json.dumps(others)
    assert planned(finished(request(JUPYTER)), request(JUPYTER))["tokens"] == []


def test_the_container_gets_no_key_of_the_authority():
    asked = request(JUPYTER, AIAA, notebooks=NOTEBOOKS)
    assert services.mounts(asked) == [
        {"source": INSIDE, "target": "/etc/trainyard/services", "read_only": True},
        {"source": "/var/lib/trainyard/notebooks/tree", "target": "/claraDevDay"},
    ]
    assert planned(empty(), asked)["certificate"] == {
        "folder": TLS,
        "name": "services",
        "addresses": ["10.0.0.11"],
        "names": ["server-a"],
        "copy_to": INSIDE,
        "renew_days": 60,
    }
    # A name that a certificate cannot have.
    assert planned(empty(), request(AIAA, host_name="gpu_a"))["certificate"]["names"] == []
    assert services.mounts(request(notebooks=dict(NOTEBOOKS, target="/nb", read_only=True))) == [
        {"source": "/var/lib/trainyard/notebooks/tree", "target": "/nb", "read_only": True}
    ]


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(JUPYTER),
        request(JUPYTER, AIAA, notebooks=NOTEBOOKS),
        request(notebooks=NOTEBOOKS),
    ],
)
def test_a_finished_host_does_not_differ(asked):
    found = finished(asked)
    assert drift(found, asked) == [] and planned(found, asked)["differ"] is False
    assert (
        drift(empty(), asked) == []
        if not asked["services"] and not asked["notebooks"]
        else drift(empty(), asked) != []
    )


ALL = request(JUPYTER, AIAA, notebooks=NOTEBOOKS)


def test_what_differs():
    found = finished(ALL)
    found["paths"].update({INSIDE + "/jupyterlab.token": "0644", INSIDE: "0755"})
    found["files"][INSIDE + "/supervisor.py"] = "other"
    del found["files"][INSIDE + "/services.py"]
    found["services"]["files"].remove(TLS + "/ca.key")
    found["services"]["files"].append(INSIDE + "/gone.token")
    found["services"]["certificate_days"] = 59
    found["services"]["states"] = {
        "jupyterlab": {"state": "failed", "why": "it ended with exit code 1: no"}
    }
    found["notebooks"]["revision"] = "f" * 40
    assert [(entry["what"], entry["asked"], entry["found"]) for entry in drift(found, ALL)] == [
        (INSIDE + "/services.py", "as configured", "absent"),
        (INSIDE + "/supervisor.py", "as configured", "another content"),
        (INSIDE + "/jupyterlab.token", "mode 0600", "mode 0644"),
        (INSIDE, "mode 0700", "mode 0755"),
        (TLS + "/ca.key", "present", "absent"),
        (INSIDE + "/gone.token", "absent", "present"),
        ("certificate of the services", "valid for 60 days", "valid for 59 days"),
        ("notebooks in /var/lib/trainyard/notebooks/tree", REVISION, "f" * 40),
        (
            "service jupyterlab",
            "ready on 127.0.0.1 port 8890",
            "failed: it ended with exit code 1: no",
        ),
        ("service aiaa", "ready on 10.0.0.11 port 5000", "not started"),
    ]
    assert planned(found, ALL)["differ"] and planned(found, ALL)["checkout"]


def test_a_changed_service_differs():
    found = finished(ALL)
    asked = request(JUPYTER, dict(AIAA, port=5001), notebooks=NOTEBOOKS)
    assert [entry["what"] for entry in drift(found, asked)] == [INSIDE + "/config.json"]
    assert planned(found, asked)["config"] != found["services"]["config"]


def test_what_is_no_longer_configured_is_removed():
    found = finished(ALL)
    assert planned(found, request(JUPYTER, notebooks=NOTEBOOKS))["absent"] == OF_CERTIFICATE
    assert planned(finished(request(JUPYTER)), request({"name": "x", "port": 1, "command": "x"}))[
        "absent"
    ] == [INSIDE + "/jupyterlab.token"]
    gone = planned(found, request())
    assert (
        gone["differ"]
        and set(found["services"]["files"]) < set(gone["absent"])
        and gone["absent"][-3:] == [INSIDE, TLS, "/etc/trainyard/services"]
    )
    # The notebooks stay, because people work in them.
    assert not any("notebooks" in path for path in gone["absent"]) and not gone["checkout"]


def test_folders_that_were_deleted_under_the_container():
    found = finished(ALL)
    found["paths"].update({INSIDE: "", services.TREE: ""})
    plan = planned(found, ALL)
    assert plan["lost"] == [INSIDE, services.TREE] and plan["checkout"]
    # Without tokens, the folder is made for the certificate.
    asked = request(AIAA)
    assert [entry["path"] for entry in planned(empty(), asked)["tokens"]] == [
        "/etc/trainyard/services",
        INSIDE,
    ]


@pytest.mark.parametrize(
    "kind, wanted, names",
    [
        ("port", [{"name": "x", "command": "x"}], ["x"]),
        ("port", [JUPYTER, {"name": "aiaa", "command": "x"}], []),
        ("port", [{"name": "x", "port": "many", "command": "x"}], ["x"]),
        ("port", [None, {"port": 0}], [None]),
        ("ports", [JUPYTER, {"name": "x", "port": "8890", "command": "x"}], ["jupyterlab", "x"]),
        ("ports", [JUPYTER, AIAA], []),
        ("ssh", [{"name": "x", "port": 12345, "command": "x"}], ["x"]),
        ("ssh", [JUPYTER], []),
        ("command", [JUPYTER, {"name": "aiaa"}], ["aiaa"]),
        ("command", [AIAA, dict(JUPYTER, command="jupyter lab")], []),
        ("tls", [AIAA, dict(JUPYTER, address="cluster")], []),
        ("tls", [dict(AIAA, command="x {certificate} key")], ["aiaa"]),
        ("tls", [dict(AIAA, address="local", command="x")], []),
        ("tls", [dict(AIAA, command=5)], ["aiaa"]),
    ],
)
def test_rules_between_keys_and_services(kind, wanted, names):
    assert service_faults(wanted, kind, 12345) == names
