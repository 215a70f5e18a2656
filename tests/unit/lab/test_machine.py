from __future__ import annotations

import machine

DEB822 = """\
# the mirror of this site
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://vendor.example/node
Suites: nodistro
Components: main

Types: deb
URIs: http://mirror.example/old
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/site.asc] http://mirror.example/debian bookworm-backports main
deb-src http://mirror.example/debian bookworm main
deb http://vendor.example/debian bookworm-pgdg-testing main
deb http://vendor.example/cloud cloud-sdk-bookworm main
"""


def test_apt_sources_of_the_release_only():
    kept = machine.apt_sources([(DEB822, True), (ONE_LINE, False)], "bookworm")
    assert [is_deb822 for is_deb822, _entry in kept] == [True, True, False, False]
    text = "\n".join(entry for _is_deb822, entry in kept)
    assert "bookworm bookworm-updates" in text
    assert "bookworm-security" in text
    assert "signed-by=/etc/apt/keyrings/site.asc" in text
    for absent in ("nodistro", "cloud-sdk", "commented.example", "mirror.example/old", "the mirror of this site"):
        assert absent not in text


def test_capabilities_without_sys_resource():
    assert "SYS_RESOURCE" not in machine.granted("000001fffeffffff")
    assert "SYS_ADMIN" in machine.granted("000001fffeffffff")
    assert machine.granted("000001ffffffffff") == sorted(machine.CAPABILITIES)
    assert machine.granted("0000000000000000") == []
