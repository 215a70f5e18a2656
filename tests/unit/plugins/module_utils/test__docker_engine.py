# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import (
    ParseError,
    changed_options,
    cli_needs_buildx,
    dump_daemon_config,
    failure_reason,
    merge,
    parse_daemon_config,
    parse_installed,
    parse_policy,
    tool_version,
    upstream_version,
)

USERS = {"log-level": "warn", "log-opts": {"max-size": "100m"}, "dns": ["10.0.0.1"]}


# --- daemon.json ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "  \n", "{}", '{"debug": true}\n'])
def test_what_dockerd_reads_is_parsed(text):
    assert parse_daemon_config(text) == json.loads(text.strip() or "{}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "debug": true,\n  oops\n}', "line 3, column 3"),
        ('{"debug": true,}', "line 1, column 1[56]"),  # Python 3.13 and later name the comma
        ('{"debug": true', "line 1, column 15"),
        ("[]", "not a JSON object"),
        ('{"max-concurrent-downloads": NaN}', "NaN"),
        ("# comment\n{}", "line 1, column 1"),
    ],
)
def test_what_dockerd_refuses_is_refused_with_its_place(text, message):
    with pytest.raises(ParseError, match=message):
        parse_daemon_config(text)


@pytest.mark.parametrize("indent", ["\t", "    ", "  "])
def test_the_users_indentation_is_kept(indent):
    text = '{\n%s"debug": true\n}\n' % indent
    assert dump_daemon_config(parse_daemon_config(text), like=text) == text


# --- the merge -----------------------------------------------------------------------------------------------------------


def test_new_keys_are_added_at_any_depth_and_the_users_stay():
    merged = merge(USERS, {"live-restore": True, "log-opts": {"max-file": "3"}}, [])
    assert merged.options == {
        "log-level": "warn",
        "log-opts": {"max-size": "100m", "max-file": "3"},
        "dns": ["10.0.0.1"],
        "live-restore": True,
    }
    assert list(merged.options) == ["log-level", "log-opts", "dns", "live-restore"]
    assert merged.placed == [
        {"path": ["live-restore"], "value": True},
        {"path": ["log-opts", "max-file"], "value": "3"},
    ]
    assert merged.kept == []


def test_neither_argument_is_changed():
    current, wanted = (
        json.loads(json.dumps(USERS)),
        {"log-opts": {"max-file": "3"}, "labels": ["a=b"]},
    )
    merge(current, wanted, []).options["labels"].append("c=d")
    assert current == USERS
    assert wanted["labels"] == ["a=b"]


def test_a_value_that_is_there_already_is_nobodys_doing():
    merged = merge(USERS, {"log-level": "warn"}, [])
    assert (merged.options, merged.placed) == (USERS, [])


def test_the_users_value_stays_against_ours_and_is_named():
    merged = merge(USERS, {"log-opts": {"max-size": "10m"}, "dns": ["10.0.0.2"]}, [])
    assert merged.options == USERS
    assert merged.kept == [
        {"option": "log-opts.max-size", "value": "100m", "asked": "10m"},
        {"option": "dns", "value": ["10.0.0.1"], "asked": ["10.0.0.2"]},
    ]


@pytest.mark.parametrize("override", [["log-opts.max-size"], ["log-opts"]])
def test_ours_wins_where_that_is_asked_and_the_former_is_noted(override):
    merged = merge(USERS, {"log-level": "info", "log-opts": {"max-size": "10m"}}, [], override)
    assert merged.options["log-opts"] == {"max-size": "10m"}
    assert merged.options["log-level"] == "warn"
    assert merged.placed == [{"path": ["log-opts", "max-size"], "value": "10m", "former": "100m"}]


def test_true_is_not_one():
    assert merge({"debug": 1}, {"debug": True}, []).kept == [
        {"option": "debug", "value": 1, "asked": True}
    ]
    assert changed_options({"debug": 1}, {"debug": True}) == ["debug"]


def test_a_second_merge_changes_nothing():
    first = merge(USERS, {"live-restore": True, "log-opts": {"max-size": "10m"}}, [], ["log-opts"])
    assert (
        merge(
            first.options,
            {"live-restore": True, "log-opts": {"max-size": "10m"}},
            first.placed,
            ["log-opts"],
        )
        == first
    )


def test_what_we_placed_follows_what_is_asked():
    first = merge(USERS, {"log-opts": {"max-file": "3"}}, [])
    second = merge(first.options, {"log-opts": {"max-file": "5"}}, first.placed)
    assert second.options["log-opts"] == {"max-size": "100m", "max-file": "5"}
    assert second.kept == []


def test_what_is_not_asked_any_more_is_taken_back_exactly():
    wanted = {
        "live-restore": True,
        "log-opts": {"max-size": "10m", "max-file": "3"},
        "builder": {"gc": {"enabled": True}},
    }
    first = merge(USERS, wanted, [], ["log-opts"])
    assert first.options != USERS
    assert merge(first.options, {}, first.placed) == (USERS, [], [])


def test_what_the_user_changed_since_is_the_users():
    first = merge(USERS, {"shutdown-timeout": 20}, [])
    edited = dict(first.options, **{"shutdown-timeout": 60})
    assert merge(edited, {}, first.placed).options == edited
    assert merge(edited, {"shutdown-timeout": 20}, first.placed).kept == [
        {"option": "shutdown-timeout", "value": 60, "asked": 20}
    ]


def test_an_object_does_not_replace_a_users_value_unasked():
    merged = merge({"features": "odd"}, {"features": {"buildkit": True}}, [])
    assert merged.options == {"features": "odd"}
    assert merge(
        {"features": "odd"}, {"features": {"buildkit": True}}, [], ["features"]
    ).options == {"features": {"buildkit": True}}


# --- versions and packages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("Docker version 20.10.24+dfsg1, build 5d6db84", "20.10.24"),
        ("Docker version 28.5.1, build f8215cc", "28.5.1"),
        ("Docker version 29.0.0-rc.1, build 1234567", "29.0.0-rc.1"),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", "1.6.20"),
        ("containerd github.com/containerd/containerd/v2 v2.1.3 abc", "2.1.3"),
        ("containerd containerd.io v1.7.28 b98a3aace656320842a23f4a392a33f46af97866", "1.7.28"),
        ("", ""),
    ],
)
def test_versions_out_of_what_the_tools_print(printed, version):
    assert upstream_version(tool_version(printed)) == version


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("5:28.5.1-1~debian.12~bookworm", "28.5.1"),
        ("20.10.24+dfsg1-1+deb12u1+b6", "20.10.24"),
        ("5:29.0.0~rc.1-1~debian.12~bookworm", "29.0.0~rc.1"),
        ("v0.29.1", "0.29.1"),
        ("none", ""),
    ],
)
def test_upstream_version_of_a_package(package, version):
    assert upstream_version(package) == version


@pytest.mark.parametrize(
    ("cli", "needed"), [("20.10.24+dfsg1", False), ("23.0.0", True), ("28.5.1", True), ("", False)]
)
def test_the_command_line_needs_buildx_from_23_on(cli, needed):
    assert cli_needs_buildx(cli) is needed


POLICY = """\
docker.io:
  Installed: 20.10.24+dfsg1-1+deb12u1
  Candidate: 20.10.24+dfsg1-1+deb12u1+b6
  Version table:
     20.10.24+dfsg1-1+deb12u1+b6 500
        500 http://mirror.example.org/debian bookworm/main amd64 Packages
 *** 20.10.24+dfsg1-1+deb12u1 500
        500 http://security.example.org bookworm-security/main amd64 Packages
        100 /var/lib/dpkg/status
docker-ce:
  Installed: (none)
  Candidate: 5:28.5.0-1~debian.12~bookworm
  Version table:
     5:28.5.1-1~debian.12~bookworm 500
        500 https://mirror.example.org/debian bookworm/stable amd64 Packages
     5:28.5.0-1~debian.12~bookworm 1001
        500 https://mirror.example.org/debian bookworm/stable amd64 Packages
local:
  Installed: 1.0
  Candidate: 1.0
  Version table:
 *** 1.0 100
        100 /var/lib/dpkg/status
"""


def test_what_apt_knows():
    assert parse_policy(POLICY) == {
        "docker.io": {
            "installed": "20.10.24+dfsg1-1+deb12u1",
            "candidate": "20.10.24+dfsg1-1+deb12u1+b6",
            "origin": "http://security.example.org bookworm-security/main amd64 Packages",
            "versions": ["20.10.24+dfsg1-1+deb12u1+b6", "20.10.24+dfsg1-1+deb12u1"],
        },
        "docker-ce": {
            "installed": "",
            "candidate": "5:28.5.0-1~debian.12~bookworm",
            "origin": "",
            "versions": ["5:28.5.1-1~debian.12~bookworm", "5:28.5.0-1~debian.12~bookworm"],
        },
        "local": {"installed": "1.0", "candidate": "1.0", "origin": "", "versions": ["1.0"]},
    }


UBUNTU = Path(__file__).parents[3] / "fixtures/ubuntu"


def test_what_apt_knows_on_ubuntu():
    """Recorded on 24.04, with three pockets, and on 22.04, where the newest version is phased and
    not the candidate.
    """
    noble = parse_policy((UBUNTU / "apt-policy-containerd-runc-noble.txt").read_text())
    assert {name: state["candidate"] for name, state in noble.items()} == {
        "containerd": "2.2.1-0ubuntu1~24.04.2",
        "runc": "1.3.4-0ubuntu1~24.04.1",
    }
    assert [upstream_version(version) for version in noble["containerd"]["versions"]] == [
        "2.2.1",
        "1.7.28",
        "1.7.12",
    ]
    assert noble["runc"]["installed"] == noble["runc"]["origin"] == ""
    (jammy,) = parse_policy((UBUNTU / "apt-policy-phased-jammy.txt").read_text()).values()
    assert (jammy["candidate"], jammy["versions"][0]) == ("249.11-0ubuntu3", "249.11-0ubuntu3.3")


def test_the_version_of_ubuntus_engine():
    printed = (UBUNTU / "docker-version-noble.txt").read_text().splitlines()[0]
    assert tool_version(printed + "\n") == "28.2.2" and cli_needs_buildx("28.2.2")


def test_the_reason_is_found_in_the_journal_and_said_once():
    said = "unable to configure the Docker daemon with file /etc/docker/daemon.json: the following directives don't match any configuration option: oops"
    assert failure_reason(f"Starting docker.service\n{said}\nMain process exited\n{said}\n") == said
    assert failure_reason("one\ntwo\n") == "one\ntwo"
    assert failure_reason("") == ""


def test_dpkg_tells_what_is_installed_and_not_what_was_removed():
    text = "docker.io 20.10.24+dfsg1-1+deb12u1+b2 installed\ncontainerd 1.6.20~ds1-1+deb12u1 config-files\n"
    assert parse_installed(text) == {
        "docker.io": {
            "installed": "20.10.24+dfsg1-1+deb12u1+b2",
            "candidate": "",
            "origin": "",
            "versions": [],
        }
    }
