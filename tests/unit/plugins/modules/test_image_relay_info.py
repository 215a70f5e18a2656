# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""image_relay_info with a skopeo that writes down how it was called."""

from __future__ import annotations

import base64
import hashlib
import json
import os

import pytest
from scripted_tools import run_module, scripts

from ansible_collections.trainyard.gpu.plugins.modules import image_relay_info

SECRET, TOKEN = "word-of-outside", "token-of-the-relay"
# $path is the value of --authfile.
SKOPEO = r"""
echo "$*" >> %(log)s; env >> %(log)s
for word; do [ "$before" != --authfile ] || path=$word; before=$word; done
stat --format '%%a' "$path" "$(dirname "$path")" > %(log)s.modes; echo "$path" > %(log)s.path
cp "$path" %(log)s.auth
case $word in
    *none*) echo 'level=fatal msg="reading manifest 1 in r.example/none: manifest unknown: manifest unknown"' >&2; exit 1;;
    *down*) echo 'level=fatal msg="dial tcp 192.0.2.1:443: connect: connection refused"' >&2; exit 1;;
esac
printf '{"config": {}}'
"""


@pytest.fixture(name="ask")
def fixture_ask(tmp_path, monkeypatch):
    script = scripts(tmp_path, monkeypatch)
    log = tmp_path / "log"
    log.touch()
    script("skopeo", SKOPEO % {"log": log})
    (tmp_path / "tokens.json").write_text(json.dumps({"trainyard-relay": TOKEN}), encoding="utf-8")

    def ask(**arguments):
        images = [
            {
                "name": "%s:1" % name,
                "source": source,
                "is_archive": name == "archive",
                "target": "192.0.2.10:5000/site/%s:1" % target,
            }
            for name, source, target in (
                ("here", "r.example/here:1", "here"),
                ("new", "r.example/new:1", "none"),
                ("lost", "r.example/none:1", "none"),
                ("down", "r.example/down:1", "here"),
                ("archive", str(tmp_path / "none.tar"), "here"),
            )
        ]
        return run_module(
            "image_relay_info",
            dict(
                {
                    "record": str(tmp_path / "record"),
                    "people": str(tmp_path / "people"),
                    "images": images,
                    "registry": "192.0.2.10:5000",
                    "account": "trainyard-relay",
                    "tokens": str(tmp_path / "tokens.json"),
                    "logins": [{"registry": "r.example", "username": "anna", "password": SECRET}],
                },
                **arguments,
            ),
        )

    ask.log = log
    return ask


def test_digests_and_why_one_is_not_known(ask):
    found = ask()["images"]
    digest = found["here:1"]["source"]["digest"]
    assert digest.startswith("sha256:") and found["here:1"] == {
        "source": {"digest": digest, "error": ""},
        "there": {"digest": digest, "error": ""},
    }
    # The site's registry may lack an image, its source may not.
    assert found["new:1"]["there"] == {"digest": "", "error": ""} and found["lost:1"]["there"] == {
        "digest": "",
        "error": "",
    }
    assert found["lost:1"]["source"]["error"].startswith(
        "the registry has no such image; correct the name ("
    )
    assert found["down:1"]["source"]["error"].startswith(
        "the registry does not answer; start it, or correct the name ("
    )
    assert (
        found["archive:1"]["source"]["error"]
        == "the file does not exist on this host; copy it there, or correct the path"
    )


def test_logins_are_in_memory_and_in_no_argument(ask):
    shown = json.dumps(ask())
    secrets = [SECRET, TOKEN] + [
        base64.b64encode(("%s:%s" % pair).encode()).decode()
        for pair in (("anna", SECRET), ("trainyard-relay", TOKEN))
    ]
    called = ask.log.read_text(encoding="utf-8")
    assert "inspect --raw --authfile /run/trainyard-" in called
    assert [
        secret
        for secret in secrets
        if secret in called
        or secret in shown.replace('"password": "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"', "")
    ] == []
    auths = json.loads(ask.log.with_suffix(".auth").read_text(encoding="utf-8"))["auths"]
    assert auths == {"r.example": {"auth": secrets[2]}, "192.0.2.10:5000": {"auth": secrets[3]}}
    assert ask.log.with_suffix(".modes").read_text(encoding="utf-8").split() == ["600", "700"]
    path = ask.log.with_suffix(".path").read_text(encoding="utf-8").strip()
    assert not os.path.exists(os.path.dirname(path))


def test_a_registry_that_is_not_installed_yet_is_not_asked(ask, tmp_path):
    (tmp_path / "tokens.json").unlink()
    assert ask()["images"]["here:1"]["there"] == {
        "digest": "",
        "error": "",
    } and "5000" not in ask.log.read_text(encoding="utf-8")


def test_a_host_without_skopeo(ask, tmp_path):
    (tmp_path / "bin/skopeo").unlink()
    assert ask()["images"] == {}


SHOWN = """NeedDaemonReload=no
Id=trainyard-image-registry.service
ActiveState=active

Id=trainyard-image-proxy.service
ActiveState=%s
NeedDaemonReload=no

Id=trainyard-image-tidy.timer
ActiveState=active
NeedDaemonReload=%s
"""
CONF, PEM, ON_DISK = (
    "/etc/trainyard/registry/nginx.conf",
    "/etc/trainyard/registry/tls/registry.pem",
    {"/config.yml": "c" * 64},
)


@pytest.mark.parametrize(
    "proxy, needs_reload, loaded, on_disk, found",
    [
        ("active", "no", {CONF: "1", PEM: "2"}, {CONF: "1", PEM: "2"}, []),
        # A run stopped after a file, and a service runs that an earlier version of the role
        # started.
        ("active", "no", {CONF: "1", PEM: "2"}, {CONF: "3", PEM: "2"}, [CONF]),
        ("active", "no", {CONF: "1", PEM: "2"}, {CONF: "1", PEM: "4"}, [PEM]),
        ("active", "no", {CONF: "1", PEM: "2"}, {CONF: "1"}, [PEM]),
        ("active", "no", {}, {CONF: "1"}, ["/etc/systemd/system/trainyard-image-proxy.service"]),
        # A service that starts loads all of it.
        ("inactive", "no", {}, {CONF: "1"}, []),
        (
            "active",
            "yes",
            {CONF: "1"},
            {CONF: "1"},
            ["/etc/systemd/system/trainyard-image-tidy.timer"],
        ),
    ],
)
def test_what_services_have_not_loaded(proxy, needs_reload, loaded, on_disk, found):
    units = image_relay_info.parse_units(SHOWN % (proxy, needs_reload))
    written = {
        "trainyard-image-registry.service": "%s  /config.yml\n" % ("c" * 64),
        "trainyard-image-proxy.service": "".join(
            "%s  %s\n" % (digest * 64, path) for path, digest in loaded.items()
        ),
    }
    disk = dict({path: digest * 64 for path, digest in on_disk.items()}, **ON_DISK)
    assert image_relay_info.not_loaded(units, written, disk.get) == found


@pytest.mark.parametrize(
    "state, active", [("active", True), ("reloading", True), ("inactive", False)]
)
def test_services_are_read_on_the_registry_s_host_only(ask, tmp_path, state, active):
    (tmp_path / "bin/systemctl").write_text(
        "#!/bin/sh\necho asked >> %s\n/bin/cat << END\n%s\nEND\n"
        % (ask.log, SHOWN % (state, "no")),
        encoding="utf-8",
    )
    (tmp_path / "bin/systemctl").chmod(0o755)
    found = ask(images=[])
    assert (
        found["proxy_active"] is False
        and found["not_loaded"] == []
        and "asked" not in ask.log.read_text(encoding="utf-8")
    )
    found = ask(images=[], port=5999)
    assert (
        found["proxy_active"] is active
        and "/etc/systemd/system/trainyard-image-registry.service" in found["not_loaded"]
    )


def test_the_checksum_of_the_site_s_certificate(ask, tmp_path):
    path = tmp_path / "site.pem"
    assert (
        ask(images=[], certificate=str(path))["certificate_checksum"] == ""
        and ask(images=[])["certificate_checksum"] == ""
    )
    path.write_text("certificate\n", encoding="utf-8")
    assert (
        ask(images=[], certificate=str(path))["certificate_checksum"]
        == hashlib.sha256(b"certificate\n").hexdigest()
    )
