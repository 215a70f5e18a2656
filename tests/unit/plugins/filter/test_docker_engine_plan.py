"""The Docker engine of a host: which one stays, what is installed from where, which files, and what
teardown keeps.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _docker_engine_plan

ROLE = Path(__file__).parents[4] / "roles/docker_engine"
CATALOG = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))[
    "__docker_engine_catalog"
]
SOURCES = "/etc/apt/sources.list.d/trainyard-docker.sources"
NO_PACKAGE = {"installed": "", "candidate": "", "origin": "", "versions": []}
DEBIAN = {"docker.io": "20.10.24+dfsg1-1+deb12u1", "containerd": "1.6.20~ds1-1+deb12u1"}
VENDOR = {
    "docker-ce": "5:28.5.1-1~debian.12~bookworm",
    "docker-ce-cli": "5:28.5.1-1~debian.12~bookworm",
    "containerd.io": "1.7.28-1",
}
OURS = {
    "packages": ["docker.io", "containerd", "python3-requests"],
    "group": False,
    "forwarding": True,
}


def host(version="", installed=(), **more):
    """docker_engine_info's result; without an engine."""
    names = {name for parts in CATALOG.values() for name in parts.values() if name} | {
        "python3-requests",
        "apparmor",
    }
    packages = {
        name: dict(NO_PACKAGE, installed=dict(installed).get(name, "")) for name in sorted(names)
    }
    runs = version != ""
    return dict(
        {
            "packages": packages,
            "version": version,
            "record": {},
            "files": {},
            "available": runs,
            "service": {"loaded": runs, "active": runs, "enabled": runs},
            "containers_running": 0,
            "environment_in_force": True,
            "python_requests": True,
            "apparmor_required": False,
            "buildx_version": "",
            "buildx_required": False,
            "compose_version": "",
            "daemon_config": {"differs": False},
            "group": False,
            "forwarding": False,
        },
        **more,
    )


def debians(**more):
    """With the distribution's engine, compose and all that it needs."""
    return host("20.10.24", DEBIAN, **dict({"compose_version": "1.29.2"}, **more))


def vendors(**more):
    return host(
        "28.5.1",
        VENDOR,
        **dict(
            {"buildx_version": "0.29.1", "buildx_required": True, "compose_version": "2.40.0"},
            **more,
        ),
    )


def plan(
    found, system="debian-12", offered=None, simulated=None, leaving=None, contents="", **asked
):
    request = dict(
        {
            "source": "distribution",
            "version": "",
            "minimum_version": "20.10",
            "replace": False,
            "interrupt": False,
            "sources": SOURCES,
            "drop_in_went": False,
            "catalog": CATALOG,
            "system": system,
        },
        **asked,
    )
    return _docker_engine_plan.decide_docker_engine_plan(
        {
            "engine": found,
            "offered": offered,
            "simulated": simulated,
            "leaving": leaving,
            "contents": contents,
        },
        request,
    )


def offers(versions):
    """What apt offers of the packages of both sources: the newest version is the candidate."""
    offered = {name: dict(NO_PACKAGE) for parts in CATALOG.values() for name in parts.values()}
    for name, known in versions.items():
        offered[name] = dict(NO_PACKAGE, versions=known, candidate=known[0])
    return offered


def test_an_engine_of_snap_is_refused_with_the_way_out():
    """Ubuntu's installer offers it. An engine of packages beside it would want the same socket."""
    for found in (host("27.5.1", snap=True), host(snap=True), debians(snap=True)):
        told = plan(found, system="ubuntu-24.04")
        assert "is a snap" in told["refusal"] and "snap remove docker" in told["refusal"]
    # A result of an earlier release, and an engine without snap.
    assert plan(debians())["refusal"] == plan(debians(snap=False))["refusal"] == ""


def test_a_fresh_host_gets_the_distributions_engine():
    told = plan(host(python_requests=False, apparmor_required=True))
    assert (told["refusal"], told["is_good"], told["lacks_packages"]) == ("", False, True)
    assert (told["installed_family"], told["asked_family"]) == ("", "debian-12")
    # The engine of Debian 12 is one package with its command line, and builds with BuildKit without
    # a plugin.
    assert told["absent"] == ["docker.io", "containerd"]
    assert told["extras"] == ["python3-requests", "apparmor", "docker-compose"]
    assert plan(host(), "debian-13")["absent"] == ["docker.io", "docker-cli", "containerd"]
    assert plan(host(buildx_required=True), "ubuntu-24.04")["extras"] == [
        "docker-buildx",
        "docker-compose-v2",
    ]


def test_a_fresh_host_gets_the_vendors_engine_if_requested():
    told = plan(host(), source="docker_repository")
    assert (told["absent"], told["extras"]) == (
        ["docker-ce", "docker-ce-cli", "containerd.io"],
        ["docker-buildx-plugin", "docker-compose-plugin"],
    )
    assert told["has_repository"] and told["asked_family"] == "docker_repository"


def test_an_engine_that_is_new_enough_is_left_alone_whatever_its_source():
    for told in (
        plan(debians()),
        plan(debians(), source="docker_repository"),
        plan(vendors()),
        plan(host("24.0.7", python_requests=True)),
    ):
        assert (
            told["refusal"],
            told["is_good"],
            told["lacks_packages"],
            told["needs_configuring"],
            told["has_repository"],
        ) == ("", True, False, False, False)
    assert (
        plan(debians())["parts"]["engine"] == "docker.io"
        and plan(vendors())["parts"]["engine"] == "docker-ce"
    )
    # An engine without a package.
    assert (plan(host("24.0.7"))["installed_family"], plan(host("24.0.7"))["parts"]) == (
        "unknown",
        {},
    )


@pytest.mark.parametrize(
    "version, minimum_version, good",
    [
        ("", "20.10", True),
        ("", "28.5.1", True),
        ("", "28.5.2", False),
        ("", "99", False),
        ("28.5.1", "20.10", True),
        ("28.5", "20.10", False),
        ("5:28.5.1-1~debian.12~bookworm", "20.10", True),
        ("28.5.0", "20.10", False),
        ("28.5.10", "20.10", False),
        ("20.10.24", "20.10", False),
    ],
)
def test_versions_that_the_installed_engine_meets(version, minimum_version, good):
    assert plan(vendors(), version=version, minimum_version=minimum_version)["is_good"] is good


def test_a_release_candidate_is_a_different_version():
    candidate = host("28.0.0", {"docker-ce": "5:28.0.0~rc.1-1~debian.12~bookworm"})
    assert not plan(candidate, version="28.0.0")["is_good"] and plan(candidate)["is_good"]
    # Without a package the engine's own version counts.
    assert plan(host("24.0.7"), version="24.0.7")["is_good"]


def test_an_engine_of_another_source_that_is_too_old_is_not_replaced_unless_allowed():
    told = plan(debians(), source="docker_repository", minimum_version="99")
    assert told["refusal"] == (
        "the installed engine '20.10.24' (20.10.24+dfsg1-1+deb12u1) is not the requested version (docker_engine_version 'any', "
        "docker_engine_minimum_version '99'), and docker_engine_source 'docker_repository' would replace it. Set docker_engine_replace to true, use the source "
        "that it came from, or request a version that it meets."
    )
    assert (
        plan(debians(), source="docker_repository", minimum_version="99", replace=True)["refusal"]
        == ""
    )
    # An upgrade within the source replaces nothing.
    assert plan(debians(), minimum_version="99")["refusal"] == ""
    unknown = plan(host("19.3.9"), version="28.5.1")
    assert (
        "the installed engine '19.3.9' (from an unknown package)" in unknown["refusal"]
        and "docker_engine_version '28.5.1'" in unknown["refusal"]
    )


def test_a_system_without_packages_is_refused_unless_its_engine_is_good():
    told = plan(host(), "debian-11")
    assert (
        "docker_engine_source 'distribution' has no packages for 'debian-11'" in told["refusal"]
        and told["absent"] == []
    )
    assert (
        plan(host("24.0.7"), "debian-11")["refusal"]
        == plan(host(), "debian-11", source="docker_repository")["refusal"]
        == ""
    )


def test_a_command_line_that_cannot_build_is_refused():
    """From 23 on BuildKit needs the plugin."""
    assert plan(debians(buildx_required=True))["cannot_build"]
    assert not plan(debians())["cannot_build"] and not plan(vendors())["cannot_build"]
    # The distribution has no package for it; the vendor's is installed.
    assert plan(debians(buildx_required=True))["extras"] == []
    assert plan(vendors(buildx_version=""))["extras"] == ["docker-buildx-plugin"]


def test_compose_is_added_to_engines_of_the_role_alone():
    assert (
        plan(debians(compose_version=""))["wants_compose"],
        plan(debians(compose_version=""))["extras"],
    ) == (False, [])
    ours = plan(debians(compose_version="", record=OURS))
    assert (ours["is_ours"], ours["wants_compose"], ours["extras"], ours["lacks_packages"]) == (
        True,
        True,
        ["docker-compose"],
        True,
    )
    assert not plan(debians(record=OURS))["wants_compose"]
    assert not plan(host("24.0.7"))["wants_compose"]


def test_apts_entry_stays_the_only_one():
    known = host()
    known["packages"]["docker-ce"]["candidate"] = VENDOR["docker-ce"]
    assert not plan(known, source="docker_repository")["has_repository"]
    # The role's own entry stays.
    assert plan(dict(known, files={SOURCES: "1"}), source="docker_repository")["has_repository"]
    assert plan(vendors(files={SOURCES: "1"}), source="docker_repository")["has_repository"]
    assert not plan(vendors(files={SOURCES: "1"}))["has_repository"]


def test_a_requested_version_is_pinned():
    assert (
        plan(vendors(), version="28.5.1")["pinned"] == ["docker-ce", "docker-ce-cli"]
        and plan(vendors())["pinned"] == []
    )
    assert plan(debians(), version="20.10.24")["pinned"] == ["docker.io"]
    # The package of an unknown engine cannot be pinned.
    assert plan(host("24.0.7"), version="24.0.7")["pinned"] == []


def test_what_apt_installs():
    offered = offers(
        {
            "docker-ce": ["5:28.5.1-1~d", "5:20.10.24-1~d", "5:20.10.2-1~d"],
            "docker-compose-plugin": ["2.40.0-1"],
        }
    )
    told = plan(host(), source="docker_repository", version="20.10.24", offered=offered)
    assert (told["versions"], told["chosen"], told["is_offered"]) == (
        ["5:28.5.1-1~d", "5:20.10.24-1~d", "5:20.10.2-1~d"],
        "5:20.10.24-1~d",
        True,
    )
    # Engine and command line have one version. A plugin that the source does not offer is omitted.
    assert told["transaction"] == [
        "docker-ce=5:20.10.24-1~d",
        "docker-ce-cli=5:20.10.24-1~d",
        "containerd.io",
        "docker-compose-plugin",
    ]
    newest = plan(host(), source="docker_repository", offered=offered)
    assert newest["chosen"] == "5:28.5.1-1~d" and newest["is_offered"]
    debian = plan(
        host(python_requests=False),
        offered=offers({"docker.io": ["20.10.24+dfsg1-1"], "docker-compose": ["1.29.2-3"]}),
    )
    assert debian["transaction"] == [
        "docker.io=20.10.24+dfsg1-1",
        "containerd",
        "python3-requests",
        "docker-compose",
    ]


@pytest.mark.parametrize(
    "offered, asked, is_offered",
    [
        ({"docker.io": ["20.10.24+dfsg1-1"]}, {}, True),
        ({"docker.io": ["20.10.24+dfsg1-1"]}, {"minimum_version": "23.0"}, False),
        ({"docker.io": ["20.10.24+dfsg1-1"]}, {"version": "28.5.1"}, False),
        ({"docker.io": ["20.10.24+dfsg1-1"]}, {"version": "20.10"}, False),
        # The requested version counts alone.
        (
            {"docker.io": ["20.10.24+dfsg1-1"]},
            {"version": "20.10.24", "minimum_version": "23.0"},
            True,
        ),
        ({}, {}, False),
        (
            {"docker-ce": ["5:28.5.1-1~d"]},
            {"source": "docker_repository", "minimum_version": "28.5.1"},
            True,
        ),
        (
            {"docker-ce": ["5:28.5.1-1~d"]},
            {"source": "docker_repository", "minimum_version": "28.5.2"},
            False,
        ),
    ],
)
def test_a_version_that_apt_does_not_offer_is_refused(offered, asked, is_offered):
    assert plan(host(), offered=offers(offered), **asked)["is_offered"] is is_offered


def test_an_engine_that_stays_needs_no_offer():
    told = plan(debians(python_requests=False), offered={})
    assert (told["is_offered"], told["versions"], told["chosen"], told["transaction"]) == (
        True,
        [],
        "",
        ["python3-requests"],
    )


@pytest.mark.parametrize(
    "found, offered, asked, transaction",
    [
        # A host without lists.
        (
            host(python_requests=False, apparmor_required=True),
            {},
            {},
            [
                "docker.io=20.10 or newer",
                "containerd",
                "python3-requests",
                "apparmor",
                "docker-compose",
            ],
        ),
        (
            host(),
            {},
            {"version": "20.10.24"},
            ["docker.io=20.10.24", "containerd", "docker-compose"],
        ),
        # Docker's repository is added by the run.
        (
            host(),
            {"docker.io": ["20.10.24+dfsg1-1"]},
            {"source": "docker_repository"},
            [
                "docker-ce=20.10 or newer",
                "docker-ce-cli=20.10 or newer",
                "containerd.io",
                "docker-buildx-plugin",
                "docker-compose-plugin",
            ],
        ),
        # The lists are older than the request.
        (
            host("28.5.1", VENDOR),
            {"docker-ce": ["5:28.5.1-1~d"]},
            {"source": "docker_repository", "minimum_version": "29"},
            [
                "docker-ce=29 or newer",
                "docker-ce-cli=29 or newer",
                "containerd.io",
                "docker-buildx-plugin",
                "docker-compose-plugin",
            ],
        ),
        # The engine stays.
        (debians(python_requests=False), {}, {}, ["python3-requests"]),
    ],
)
def test_check_mode_shows_the_request_if_the_lists_lack_it(found, offered, asked, transaction):
    assert plan(found, offered=offers(offered), **asked)["transaction"] == transaction


SIMULATED = {
    "installed": ["docker.io", "tini", "libc6"],
    "removed": ["podman", "docker-ce"],
    "replaced": {"runc": "1.1.5-1", "libc6": "2.36-9"},
    "held": [],
}


def test_what_apt_would_do():
    told = plan(host(), simulated=SIMULATED, replace=True)
    assert (told["removed"], told["restarting"], told["apt_refusal"]) == (
        ["podman", "docker-ce"],
        ["runc", "docker-ce"],
        "",
    )
    # Check mode and a run without packages simulate nothing.
    for simulated in (None, {"skipped": True}):
        told = plan(host(), simulated=simulated)
        assert (told["removed"], told["restarting"], told["apt_refusal"]) == ([], [], "")


@pytest.mark.parametrize(
    "running, simulated, asked, reasons",
    [
        (
            0,
            SIMULATED,
            {},
            ["would remove podman, docker-ce (set docker_engine_replace to true to allow this)"],
        ),
        (
            2,
            SIMULATED,
            {"replace": True},
            [
                "would upgrade or remove runc, docker-ce, which would stop 2 running containers "
                "(set docker_engine_interrupt_containers to true to allow this)"
            ],
        ),
        (2, SIMULATED, {"replace": True, "interrupt": True}, []),
        (
            2,
            dict(SIMULATED, removed=[]),
            {},
            [
                "would upgrade or remove runc, which would stop 2 running containers "
                "(set docker_engine_interrupt_containers to true to allow this)"
            ],
        ),
        (0, dict(SIMULATED, removed=[]), {}, []),
        # Other packages run no containers.
        (2, dict(SIMULATED, removed=[], replaced={"libc6": "2.36-9"}), {}, []),
        # A hold is the site's, whatever else is allowed.
        (
            2,
            dict(SIMULATED, held=["runc"]),
            {"replace": True, "interrupt": True},
            [
                "would change runc, held at the installed version (lift the hold with apt-mark unhold to allow this)"
            ],
        ),
    ],
)
def test_what_apt_would_do_is_refused_unless_allowed(running, simulated, asked, reasons):
    told = plan(
        host(containers_running=running),
        offered=offers({"docker.io": ["20.10.24+dfsg1-1"]}),
        simulated=simulated,
        **asked,
    )["apt_refusal"]
    assert told == (
        "nothing was installed: installing docker.io=20.10.24+dfsg1-1 containerd "
        + ", and ".join(reasons)
        if reasons
        else ""
    )


def test_refusals_are_named_together():
    told = plan(host(containers_running=1), simulated=dict(SIMULATED, held=["podman"]))[
        "apt_refusal"
    ]
    assert [
        word in told
        for word in (
            "docker_engine_replace",
            "docker_engine_interrupt_containers",
            "apt-mark unhold",
        )
    ] == [True] * 3


def test_the_state_before_the_first_run_is_recorded():
    assert plan(host(forwarding=False))["former_state"] == {"group": False, "forwarding": False}
    # OURS is the record of release 0.2.0, with the values beside the packages.
    noted = {
        "packages": OURS["packages"],
        "notes": {"group": OURS["group"], "forwarding": OURS["forwarding"]},
    }
    for record in (OURS, noted, dict(noted, group=True, forwarding=False)):
        assert plan(host(record=record, group=True, forwarding=False))["former_state"] == {
            "group": False,
            "forwarding": True,
        }
        assert plan(debians(record=record))["is_ours"]
    # A record of daemon options alone.
    assert plan(debians(record={"daemon_config": {"placed": []}}, group=True))["former_state"] == {
        "group": True,
        "forwarding": False,
    }


@pytest.mark.parametrize(
    "changes, asked, restarts, stands_still, needs_configuring",
    [
        ({}, {}, False, False, False),
        ({"daemon_config": {"differs": True}}, {}, False, False, True),
        ({"environment_in_force": False}, {}, True, False, True),
        ({}, {"drop_in_went": True}, True, False, True),
        ({"service": {"loaded": True, "active": False, "enabled": True}}, {}, False, True, True),
        ({"service": {"loaded": True, "active": True, "enabled": False}}, {}, False, True, True),
        # A stopped engine reads its environment when it starts.
        (
            {
                "service": {"loaded": True, "active": False, "enabled": True},
                "environment_in_force": False,
            },
            {"drop_in_went": True},
            False,
            True,
            True,
        ),
        # A site's own service may run the engine.
        (
            {"service": {"loaded": False, "active": False, "enabled": False}},
            {},
            False,
            False,
            False,
        ),
    ],
)
def test_the_running_engine(changes, asked, restarts, stands_still, needs_configuring):
    told = plan(debians(**changes), **asked)
    assert (told["restarts"], told["stands_still"], told["needs_configuring"]) == (
        restarts,
        stands_still,
        needs_configuring,
    )


NOTHING = {"removed": ["docker.io", "containerd"], "kept": [], "needed_by": []}
USERS_TOOL = {"removed": [], "kept": ["docker.io"], "needed_by": ["users-tool"]}


@pytest.mark.parametrize(
    "found, leaving, contents, along, stay, goes",
    [
        (debians(record=OURS), NOTHING, "", [], False, True),
        # The user's containers, images or volumes.
        (debians(record=OURS), NOTHING, "4d1f", [], True, False),
        # A package of the user's needs it.
        (debians(record=OURS), USERS_TOOL, "", ["users-tool"], True, False),
        # What is in it is unknown.
        (debians(record=OURS, available=False), NOTHING, "", [], True, False),
        # An engine without a record is the user's.
        (debians(), {"skipped": True}, "", [], False, False),
        (debians(record={"packages": ["python3-requests"]}), NOTHING, "4d1f", [], False, False),
        (
            debians(record={"packages": ["python3-requests"]}),
            USERS_TOOL,
            "",
            ["users-tool"],
            True,
            False,
        ),
        (host(record=OURS), NOTHING, "", [], False, False),
    ],
)
def test_what_teardown_keeps(found, leaving, contents, along, stay, goes):
    told = plan(found, leaving=leaving, contents=contents)
    assert (told["taken_along"], told["packages_stay"], told["goes"]) == (along, stay, goes)


KEYRING, ENVIRONMENT, DROP_IN = (
    "/etc/apt/keyrings/docker.asc",
    "/etc/trainyard/docker.environment",
    "/etc/systemd/system/docker.service.d/proxy.conf",
)


def digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


NO_WORK = {
    "refusal": "",
    "lacks_packages": False,
    "needs_configuring": False,
    "cannot_build": False,
    "has_repository": True,
    "pinned": [],
}


def files(contents, found, key_checksum="", needs=None, **changes):
    entries = [
        dict(
            {"path": path, "content": contents.get(path, ""), "mode": "0644"},
            **({"needs": needs} if needs else {}),
        )
        for path in (KEYRING, SOURCES, ENVIRONMENT, DROP_IN)
    ]
    return _docker_engine_plan.docker_engine_files(
        dict(NO_WORK, **changes),
        entries,
        found,
        KEYRING,
        key_checksum,
        [KEYRING, ENVIRONMENT, DROP_IN],
    )


def test_no_files_are_requested():
    assert files({}, {}) == {
        "checksums": {},
        "differ": False,
        "downloads_key": False,
        "files": [],
        "has_work": False,
    }
    assert files({}, {SOURCES: "1"})["files"] == [{"path": SOURCES, "state": "absent"}]


def test_files_are_written_with_their_folders_and_others_are_removed():
    told = files(
        {ENVIRONMENT: "HTTP_PROXY=http://p\n", SOURCES: "Types: deb\n"},
        {ENVIRONMENT: "old", DROP_IN: "1"},
    )
    assert told["differ"] and told["checksums"] == {
        ENVIRONMENT: digest("HTTP_PROXY=http://p\n"),
        SOURCES: digest("Types: deb\n"),
    }
    assert told["files"] == [
        {"path": "/etc/trainyard", "state": "directory"},
        {"path": SOURCES, "content": "Types: deb\n", "mode": "0644"},
        {"path": ENVIRONMENT, "content": "HTTP_PROXY=http://p\n", "mode": "0644"},
        {"path": DROP_IN, "state": "absent"},
    ]
    assert not files({SOURCES: "Types: deb\n"}, {SOURCES: digest("Types: deb\n")})["differ"]


def test_a_key_that_the_host_downloads_is_compared_by_its_checksum():
    told = files({}, {}, "sha256:" + "AB" * 32)
    assert (told["checksums"], told["differ"], told["downloads_key"]) == (
        {KEYRING: "ab" * 32},
        True,
        True,
    )
    assert told["files"] == [{"path": "/etc/apt/keyrings", "state": "directory"}]
    there = files({}, {KEYRING: "ab" * 32}, "sha256:" + "AB" * 32)
    assert (there["differ"], there["downloads_key"]) == (False, False)
    # Without the role's repository no key is needed.
    assert files({}, {}, "sha256:" + "AB" * 32, has_repository=False)["downloads_key"] is False
    # The site's own key is one of the files.
    assert not files({KEYRING: "a key"}, {})["downloads_key"]


def test_a_file_is_absent_without_what_it_needs():
    told = files(
        {SOURCES: "Types: deb\n"}, {SOURCES: "1"}, needs="has_repository", has_repository=False
    )
    assert told["files"] == [{"path": SOURCES, "state": "absent"}]
    assert files({SOURCES: "Types: deb\n"}, {}, needs="has_repository")["files"] == [
        {"path": SOURCES, "content": "Types: deb\n", "mode": "0644"}
    ]
    assert files({SOURCES: "Types: deb\n"}, {}, needs="pinned")["files"] == []
    assert files(
        {SOURCES: "Package: @pinned@\n"}, {}, needs="pinned", pinned=["docker-ce", "docker-ce-cli"]
    )["files"][0]["content"] == ("Package: docker-ce docker-ce-cli\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"refusal": "x"},
        {"lacks_packages": True},
        {"needs_configuring": True},
        {"cannot_build": True},
    ],
)
def test_a_host_has_work_if_anything_differs(changes):
    assert files({}, {}, **changes)["has_work"] is True
    assert files({}, {SOURCES: "1"})["has_work"] is True and files({}, {})["has_work"] is False


def evaluated(expression, **given):
    texts = {}
    for name in ("vars/main.yml", "defaults/main.yml"):
        texts.update(yaml.safe_load((ROLE / name).read_text(encoding="utf-8")))
    variables = dict(
        trusted(texts),
        cluster_host={"os": {"id": "debian", "version_id": "12", "codename": "bookworm"}},
        ansible_search_path=[str(ROLE)],
        cluster_members=[{"address": "10.0.0.11"}, {"address": ""}],
        **given,
    )
    return Templar(DataLoader(), variables).template(trusted("{{ %s }}" % expression))


def test_the_role_s_variables_reach_the_plan():
    known = debians(record=OURS, python_requests=False, files={DROP_IN: "1"}, containers_running=1)
    assert evaluated("__docker_engine_plan", __docker_engine_found=known) == plan(known)
    asked = {
        "docker_engine_source": "docker_repository",
        "docker_engine_version": "28.5.1",
        "docker_engine_minimum_version": "23.0",
        "docker_engine_replace": "yes",
        "docker_engine_interrupt_containers": "yes",
    }
    offered = offers({"docker-ce": ["5:28.5.1-1~d"]})
    registered = {
        "__docker_engine_offered": {"packages": offered},
        "__docker_engine_simulated": dict(SIMULATED, held=["runc"]),
        "__docker_engine_leaving": USERS_TOOL,
        "__docker_engine_has": {"stdout": "4d1f"},
    }
    told = evaluated("__docker_engine_plan", __docker_engine_found=known, **asked, **registered)
    assert told == plan(
        known,
        source="docker_repository",
        version="28.5.1",
        minimum_version="23.0",
        replace=True,
        interrupt=True,
        offered=offered,
        simulated=dict(SIMULATED, held=["runc"]),
        leaving=USERS_TOOL,
        contents="4d1f",
    )
    assert (
        told["transaction"][0] == "docker-ce=5:28.5.1-1~d"
        and told["restarting"] == ["runc", "docker-ce"]
        and told["packages_stay"]
    )


def test_an_engine_without_changes_has_no_work_and_the_plan_is_made_once(monkeypatch):
    """Once per use: a host without changes waits for the controller meanwhile."""
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _docker_engine_plan

    made, make = [], _docker_engine_plan.docker_engine_plan
    monkeypatch.setattr(
        _docker_engine_plan,
        "docker_engine_plan",
        lambda *arguments: made.append(1) or make(*arguments),
    )
    (when,) = [
        task["when"]
        for task in yaml.safe_load((ROLE / "tasks/main.yml").read_text(encoding="utf-8"))
        if "when" in task
    ]
    assert evaluated(when, __docker_engine_found=debians(record=OURS)) is False and len(made) == 1
    # A pinned version is no reason to make it again.
    pinned = evaluated(
        "__docker_engine_file_plan.files",
        __docker_engine_found=debians(record=OURS),
        docker_engine_version="20.10.24",
    )
    assert len(made) == 2 and "Package: docker.io\n" in pinned[0]["content"]
    # An engine without compose is left alone.
    assert evaluated(when, __docker_engine_found=debians(compose_version="")) is False
    assert evaluated(when, __docker_engine_found=debians(buildx_required=True)) is True
    assert evaluated(when, __docker_engine_found=host()) is True


def test_a_drop_in_that_was_removed_needs_a_restart():
    placed = {"changed_paths": [evaluated("__docker_engine_drop_in")]}
    assert (
        evaluated(
            "__docker_engine_plan.restarts",
            __docker_engine_found=debians(),
            __docker_engine_placed=placed,
        )
        is True
    )
    assert (
        evaluated(
            "__docker_engine_plan.restarts",
            __docker_engine_found=debians(),
            __docker_engine_placed={"skipped": True},
        )
        is False
    )
    # One that was written counts through the environment.
    proxy = {"docker_engine_http_proxy": "http://proxy.example.org:3128"}
    assert (
        evaluated(
            "__docker_engine_plan.restarts",
            __docker_engine_found=debians(),
            __docker_engine_placed=placed,
            **proxy,
        )
        is False
    )


def test_the_role_s_files():
    assert evaluated("__docker_engine_file_plan", __docker_engine_found=debians())["files"] == []
    pinned = evaluated(
        "__docker_engine_file_plan",
        __docker_engine_found=host(),
        docker_engine_source="docker_repository",
        docker_engine_version="28.5.1",
        docker_engine_http_proxy="http://proxy.example.org:3128",
    )
    contents = {entry["path"].rpartition("/")[2]: entry.get("content") for entry in pinned["files"]}
    assert (
        "Package: docker-ce docker-ce-cli\nPin: version /^([0-9]+:)?28"
        in contents["trainyard-docker"]
    )
    assert (
        "Suites: bookworm" in contents["trainyard-docker.sources"]
        and "NO_PROXY=" in contents["docker_engine.environment"]
    )
    assert pinned["downloads_key"] and list(contents)[:3] == [
        "keyrings",
        "trainyard",
        "docker.service.d",
    ]
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
    with_key = evaluated(
        "__docker_engine_file_plan",
        __docker_engine_found=host(),
        docker_engine_source="docker_repository",
        docker_engine_repository_key=key,
    )
    assert not with_key["downloads_key"] and with_key["files"][1]["content"] == key


def test_packages_that_are_read():
    assert evaluated("__docker_engine_requested_packages") == [
        "docker.io",
        "containerd",
        "docker-compose",
        "docker-ce",
        "docker-ce-cli",
        "containerd.io",
        "docker-buildx-plugin",
        "docker-compose-plugin",
        "python3-requests",
        "apparmor",
    ]
