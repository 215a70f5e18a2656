"""What the removal leaves, which is part of teardown."""

from __future__ import annotations

import difflib

STATE = "set -o pipefail; find /etc /usr/local ! -name '*-' -type f -exec sha256sum {} + -o ! -name '*-' -printf '%p %m %U %l\\n' | sort"
# Databases of the packages that the purge of a package writes again.
NOT_OURS = (
    "/etc/ld.so.cache",
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/trainyard",
    "/etc/mailcap",
)


def test_the_removal_takes_what_was_placed_and_keeps_the_images(site):
    site.role("remove", check=True)
    for host in site.hosts:
        before, after = (
            site.on(host, command).out.splitlines()
            for command in ("cat /srv/files", 'bash -c "%s"' % STATE.replace('"', '\\"'))
        )
        found = [
            line
            for line in difflib.unified_diff(before, after, lineterm="", n=0)
            if line[0] in "+-" and line[:3] not in ("+++", "---")
        ]
        assert [line for line in found if not any(path in line for path in NOT_OURS)] == [], host
        assert site.on(host, "dpkg --list | diff /srv/packages -", check=False).text == ""
        assert (
            site.on(
                host,
                "find / -xdev -path /proc -prune -o \\( -nouser -o -nogroup \\) -print | grep -v '^/srv/relay' || true",
            ).out
            == ""
        )
    left = site.on(
        site.relay,
        "ls /srv/relay; getent passwd docker-registry; systemctl list-unit-files 'trainyard-*' --no-legend",
        check=False,
    )
    assert left.out.split() == ["registry", "relayed.json"]


def test_the_images_are_there_again(site):
    done = site.role(check=True)
    assert "copy of" not in done.text and "completion of" not in done.text
    assert site.http("GET", "/v2/alice/late/manifests/1", "alice") == 200


def test_the_removal_takes_the_images_if_requested(site):
    done = site.role("remove", check=True, image_relay_remove_data=True)
    assert "The images" not in done.text and site.on(site.relay, "ls -A /srv/relay").out == ""
