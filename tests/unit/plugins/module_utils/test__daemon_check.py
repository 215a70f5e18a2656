"""dockerd's errors about its configuration file, with output of 20.10 and 26.1."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.gpu.plugins.module_utils import _daemon_check
from ansible_collections.trainyard.gpu.plugins.module_utils._daemon_check import (
    daemon_config_state,
    flags_of,
    verdict,
)


@pytest.mark.parametrize(
    "said, found",
    [
        (
            "unable to configure the Docker daemon with file /tmp/x: the following directives don't match any configuration option: x\n",
            "the following directives don't match any configuration option: x",
        ),
        (
            "unable to configure the Docker daemon with file /tmp/x: json: cannot unmarshal string into Go struct field Config.debug of type bool\n",
            "json: cannot unmarshal string into Go struct field Config.debug of type bool",
        ),
        (
            'time="2026-11-24T21:48:11Z" level=info msg="Starting up"\ndockerd needs to be started with root privileges. To run dockerd in rootless mode',
            "",
        ),
        # Not in the file's own words.
        ("unable to parse logging level: loud\n", "unable to parse logging level: loud"),
        ("conflict labels for a=c and a=b\n", "conflict labels for a=c and a=b"),
        ("", ""),
    ],
)
def test_verdict(said, found):
    assert verdict(said) == found


def test_the_options_of_the_unit():
    said = (
        "ExecStart={ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS ; "
        "ignore_errors=no ; pid=52 ; code=(null) ; status=0/0 }\n"
    )
    assert flags_of(said) == ["-H", "fd://", "--containerd=/run/containerd/containerd.sock"]
    assert flags_of("") == []


class Module:
    """Without dockerd the file is only parsed."""

    def get_bin_path(self, name, opt_dirs=()):
        return None


@pytest.mark.parametrize(
    "content, found, warned",
    [
        ('{"debug": true}', "", ""),
        (
            "",
            "",
            "the file is empty, but older versions of Docker do not accept that; write {} into it, or remove it",
        ),
        (" \n", "", "the file is empty"),
        ('{"debug": true\n"mtu": 1}', "line 2, column 1", ""),
        ("[]", "not a JSON object", ""),
        (
            '{"bip": "x", "mtu": -1, "log-driver": "nope"}',
            "bip: 'x' is not an address with its prefix, such as 172.26.0.1/16; mtu: -1 is below 0",
            "log-driver: 'nope' is not",
        ),
    ],
)
def test_host_without_dockerd(tmp_path, content, found, warned):
    path = tmp_path / "daemon.json"
    path.write_text(content, encoding="utf-8")
    error, warnings = daemon_config_state(Module(), str(path))
    assert (found in error and error.startswith("%s: " % path)) if found else error == ""
    assert [warned in text and text.startswith("%s: " % path) for text in warnings] == [
        True
    ] * bool(warned)
    assert daemon_config_state(Module(), str(tmp_path / "none")) == ("", [])


def test_dockerd_is_asked(tmp_path, monkeypatch):
    """As somebody without privileges, with a copy of the file that no one else can read."""
    path, asked = tmp_path / "daemon.json", []
    path.write_text('{"x": 1}', encoding="utf-8")

    class Host(Module):
        def get_bin_path(self, name, opt_dirs=()):
            return "/usr/bin/" + name

        said = "unable to configure the Docker daemon with file /tmp/y: the following directives don't match any configuration option: x\n"

        def run_command(self, command, cwd=None):
            asked.append(command)
            return (
                1,
                "Docker version 20.10.24+dfsg1, build 5d6db84\n" if "--version" in command else "",
                self.said,
            )

    monkeypatch.setattr(_daemon_check.os, "geteuid", lambda: 0)
    monkeypatch.setattr(_daemon_check.os, "chown", lambda *dummy: None)
    assert daemon_config_state(Host(), str(path)) == (
        f"{path}: the following directives don't match any configuration option: x",
        [],
    )
    assert asked[1][:5] == [
        "/usr/bin/setpriv",
        "--reuid=65533",
        "--regid=65533",
        "--clear-groups",
        "/usr/bin/dockerd",
    ]
    # A file that was cut to nothing by a full disk: 20.10 reads no further than this, others take
    # it as one without options.
    path.write_text("", encoding="utf-8")
    Host.said = "unable to configure the Docker daemon with file /tmp/y: EOF\n"
    assert daemon_config_state(Host(), str(path)) == (
        f"{path}: the file is empty, but this version of Docker does not accept that; write {{}} into it, or remove it",
        [],
    )
    Host.said = "dockerd needs to be started with root privileges.\n"
    assert daemon_config_state(Host(), str(path)) == ("", [])
    # What it reads without a word.
    path.write_text(
        '{"storage-driver": "foo", "ipv6": true, "log-driver": "nope"}', encoding="utf-8"
    )
    error, warnings = daemon_config_state(Host(), str(path))
    assert (
        error.startswith(f"{path}: storage-driver: 'foo' is not a storage driver")
        and "; ipv6: the default bridge needs" in error
        and len(warnings) == 1
    )
