# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The registry, its rights, and which images are relayed."""

from __future__ import annotations

import json
import re

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_relay_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_relay_plan as planned

WANTED = {
    "host": "front",
    "registry": "",
    "address": "192.0.2.10",
    "port": "5000",
    "certificate": "",
    "key": "",
    "folder": "site",
    "storage": "/scratch/registry",
    "max_gib": "2",
    "person_gib": "3",
    "max_layer_gib": 20,
    "free_gib": 1,
    "keep_days": 7,
    "tidy_time": "03:30",
    "images": [],
    "plain_http": [],
    "people": {"anna": 2001, "al.b": 2002},
    "private": False,
    "users": [],
    "accounts": [],
    "has_jobs": False,
    "job_registries": [],
    "programs": {"relay": "relay\n", "registry_login": "login\n"},
}
FOUND = {
    "record": {},
    "packages": {},
    "masked": {},
    "cni": False,
    "storage_type": "ext4",
    "strange": [],
    "port_taken": False,
    "proxy_active": False,
    "missing": [],
    "not_loaded": [],
    "people": [],
    "certificates": [],
    "units": [],
    "certificate_checksum": "",
}
TORCH = {"name": "torch:1", "source": "r.example/torch:1"}
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def plan(found=(), **wanted):
    return _image_relay_plan.host_plan(dict(FOUND, **dict(found)), dict(WANTED, **wanted))


def texts(found):
    return {entry["path"]: entry.get("content") for entry in found["files"]}


def rule(config, request):
    """What the map of nginx's configuration says to METHOD, user and path: nginx takes the first
    pattern that matches.
    """
    block = re.search(
        r'map "\$request_method \$remote_user \$request_uri" \$trainyard_refused \{(.*?)\n  \}',
        config,
        re.DOTALL,
    ).group(1)
    for pattern, value in re.findall(r'"~(.*?)" (\w+);', block):
        if re.search(pattern, request):
            return value == "0"
    return False


@pytest.mark.parametrize(
    "request_line, fine",
    [
        ("GET anna /v2/al.b/x/manifests/1", True),
        ("HEAD  /v2/", True),
        ("PUT anna /v2/anna/x/manifests/1", True),
        ("DELETE al.b /v2/al.b/x/manifests/" + ONE, True),
        ("POST trainyard-relay /v2/site/x/blobs/uploads/", True),
        ("PUT anna /v2/al.b/x/manifests/1", False),
        ("PUT anna /v2/site/x/manifests/1", False),
        ("PUT trainyard-relay /v2/anna/x/manifests/1", False),
        ("PUT anna /v2/annabel/x/manifests/1", False),
        ("PUT anna /v2/x/manifests/1", False),
        ("PUT alxb /v2/al.b/x/manifests/1", False),
        ("PUT al.b /v2/alxb/x/manifests/1", False),
        ("PUT Anna /v2/anna/x/manifests/1", False),
        ("TRACE anna /v2/", False),
        ("PUT ben /v2/ben/x/manifests/1", False),
        ("POST anna /v2/anna", False),
        # auth_basic refuses requests without a login. Then clients know that they have to log in.
        ("PUT  /v2/anna/x/manifests/1", True),
    ],
)
def test_who_may_write_where(request_line, fine):
    assert rule(texts(plan())[planned.PROXY], request_line) == fine


PRIVATE = {
    "private": True,
    "people": {name: 2000 + number for number, name in enumerate(("anna", "al.b", "carl", "dora"))},
    "users": [
        {"name": "anna", "groups": ["vision"]},
        {"name": "al.b", "groups": ["speech", "vision"]},
        {"name": "carl", "groups": ["speech"]},
        {"name": "dora"},
    ],
    "accounts": [{"name": "course", "members": ["dora", "carl", "gone"]}, {"name": "empty"}],
}


def test_who_reads_whose_images_if_they_are_private():
    assert planned.readers(dict(WANTED, **PRIVATE)) == {
        "anna": ["al.b", "anna"],
        "al.b": ["al.b", "anna", "carl"],
        "carl": ["al.b", "carl", "dora"],
        "dora": ["carl", "dora"],
    }


LAYER = "&mount=sha256%3A" + "1" * 64


@pytest.mark.parametrize(
    "request_line, fine",
    [
        ("GET anna /v2/al.b/x/manifests/1", True),
        ("HEAD dora /v2/carl/x/blobs/" + ONE, True),
        ("GET anna /v2/anna/x/tags/list", True),
        ("GET anna /v2/carl/x/manifests/1", False),
        ("HEAD dora /v2/anna/x/manifests/1", False),
        ("GET alxb /v2/al.b/x/manifests/1", False),
        ("GET anna /v2/annabel/x/manifests/1", False),
        ("GET gone /v2/dora/x/manifests/1", False),
        # Approved images, the question whether there is a registry, and a request without a login,
        # which auth_basic refuses.
        ("GET dora /v2/site/x/manifests/1", True),
        ("GET dora /v2/", True),
        ("GET  /v2/anna/x/manifests/1", True),
        ("GET trainyard-relay /v2/site/x/tags/list", True),
        # The names of all repositories, and the own list.
        ("GET anna /v2/_catalog", False),
        ("GET anna /own/anna/", True),
        ("GET anna /own/anna/team/x/", True),
        ("GET al.b /own/anna/", False),
        ("GET anna /own/", False),
        ("GET anna /own/anna/x/_manifests/", False),
        ("GET anna /own/anna/../carl/", False),
        ("GET anna /own/anna/x/link", False),
        ("PUT anna /v2/anna/x/manifests/1", True),
        ("PUT anna /v2/al.b/x/manifests/1", False),
        # A layer of a repository that one does not read.
        ("POST anna /v2/anna/x/blobs/uploads/", True),
        ("POST anna /v2/anna/x/blobs/uploads/?digest=sha256%3A1", True),
        ("POST anna /v2/anna/x/blobs/uploads/?from=al.b%2Fx" + LAYER, True),
        ("POST anna /v2/anna/x/blobs/uploads/?from=site/x" + LAYER, True),
        ("POST anna /v2/anna/x/blobs/uploads/?from=carl%2Fx" + LAYER, False),
        ("POST anna /v2/anna/x/blobs/uploads/?a=b%3D" + LAYER + "&from=carl/x", False),
        ("POST anna /v2/anna/x/blobs/uploads/?%66rom=carl/x" + LAYER, False),
        ("POST anna /v2/anna/x/blobs/uploads/?from=anna/x&from=carl/x" + LAYER, False),
        ("POST anna /v2/anna/x/blobs/uploads/?a=1;from=carl/x" + LAYER, False),
        ("POST anna /v2/anna/x/blobs/uploads/?from=%63arl/x" + LAYER, False),
        ("POST anna /v2/anna/x/blobs/uploads/?from=annabel/x" + LAYER, False),
        ("POST trainyard-relay /v2/site/x/blobs/uploads/?from=site%2Fy" + LAYER, True),
    ],
)
def test_images_of_other_groups_are_private(request_line, fine):
    assert rule(texts(plan(**PRIVATE))[planned.PROXY], request_line) == fine


@pytest.mark.parametrize("private", [True, False])
def test_the_registry_reads_no_form_in_a_body(private):
    """docker-registry takes mount and from of a POST from a form in the body, too, of either kind.

    Manifests, which are PUT, keep their type.
    """
    config = texts(plan(**dict(PRIVATE, private=private)))[planned.PROXY]
    name, entries = re.search(r"map \$request_method (\$\w+) \{ (POST .*?) \}", config).groups()
    assert entries == "POST application/octet-stream; default $http_content_type;"
    before, _proxy, after = config.partition("proxy_pass ")
    assert "proxy_set_header Content-Type %s;" % name in after and "Content-Type" not in before


def test_without_the_setting_everyone_reads():
    config = texts(plan(**dict(PRIVATE, private=False)))[planned.PROXY]
    assert (
        rule(config, "GET anna /v2/carl/x/manifests/1")
        and rule(config, "GET anna /v2/_catalog")
        and "/own" not in config
    )


def test_the_program_of_people_knows_the_list():
    from ansible_collections.trainyard.gpu.roles.host_library.files import _registry

    assert (planned.OWN, planned.PRIVATE) == (_registry.OWN, _registry.PRIVATE)


@pytest.mark.parametrize(
    "path, fine",
    [
        ("/v2/", True),
        ("/v2/_catalog?n=10", True),
        ("/v2/anna/x/manifests/" + ONE, True),
        ("/v2/anna/x/blobs/uploads/1-2_3?_state=a%3D&digest=sha256%3A1", True),
        ("/v2/anna/../al.b/x/manifests/1", False),
        ("/v2/anna/./x", False),
        ("/v2/anna/..", False),
        ("/v2/anna/..?x", False),
        ("/v2/anna/%2e%2e/al.b/x", False),
        ("/v2/anna//x", False),
        ("/v2/anna/x\\y", False),
        ("/v2/anna/x%00", False),
        ("/v2", False),
        ("/", False),
        ("/v2/anna/a..b", True),
    ],
)
def test_paths_that_could_be_read_in_two_ways_are_refused(path, fine):
    block = re.search(
        r"map \$request_uri \$trainyard_odd \{(.*?)\n  \}", texts(plan())[planned.PROXY], re.DOTALL
    ).group(1)
    found = [
        value for pattern, value in re.findall(r'"~(.*?)" (\d);', block) if re.search(pattern, path)
    ]
    assert (found[:1] == ["0"]) == fine


def test_a_renewed_certificate_of_the_site_is_a_change():
    """nginx reads it when it is reloaded only."""
    first, second, own = (
        texts(plan({"certificate_checksum": checksum}))[planned.PROXY]
        for checksum in ("1" * 64, "2" * 64, "")
    )
    assert first != second and first.replace("# Certificate %s.\n" % ("1" * 64), "") == own


def test_services_write_down_what_they_load():
    """Before they load it: a change in between is loaded once more.

    A unit that does not depend on a site's certificate needs no restart for it.
    """
    found = texts(plan())
    for name, run, paths in (
        ("registry", planned.RUN, [planned.CONFIG]),
        ("proxy", planned.PROXY_RUN, [planned.PROXY, planned.TLS_CERTIFICATE]),
    ):
        path = "/etc/systemd/system/trainyard-image-%s.service" % name
        note = "=-/bin/sh -c 'sha256sum %s > %s/loaded 2> /dev/null'" % (
            " ".join([path] + paths),
            run,
        )
        lines = found[path].splitlines()
        assert lines.index("ExecStartPre" + note) < [
            line.startswith("ExecStart=") for line in lines
        ].index(True)
        assert name == "registry" or lines.index("ExecReload" + note) < lines.index(
            "ExecReload=/bin/kill -HUP $MAINPID"
        )
        assert texts(plan(certificate="/srv/crt", key="/srv/key"))[path] == found[path]


def test_the_registry_has_no_network_socket():
    found = texts(plan())
    assert json.loads(found[planned.CONFIG])["http"] == {
        "net": "unix",
        "addr": "/run/trainyard-image-registry/registry.sock",
        "relativeurls": True,
    }
    unit = found["/etc/systemd/system/trainyard-image-registry.service"]
    assert (
        "RestrictAddressFamilies=AF_UNIX\n" in unit
        and "RuntimeDirectoryMode=0700\n" in unit
        and "UMask=0077\n" in unit
        and "User=docker-registry\n" in unit
    )
    assert json.loads(found[planned.SETTINGS])["max_bytes"] == 2 << 30


def test_old_tags_of_requested_images_stay_only():
    """Also before they are relayed, so that a source that does not answer takes nothing away."""
    images = json.loads(
        texts(plan(images=[TORCH, {"name": "tools", "archive": "/srv/a.tar"}]))[planned.SETTINGS]
    )["images"]
    assert (
        images == ["tools:latest", "torch:1"]
        and json.loads(texts(plan())[planned.SETTINGS])["images"] == []
    )


def test_services_of_new_packages_are_masked_and_others_left():
    found = plan({"packages": {"nginx": "1.22"}})
    assert found["lacks_packages"] == [
        "skopeo",
        "buildah",
        "ca-certificates",
        "docker-registry",
        "openssl",
    ]
    assert found["masked"] == [
        {"path": "/etc/systemd/system/docker-registry.service", "state": "link", "src": "/dev/null"}
    ]
    assert (
        found["record"]["masked"] == ["docker-registry.service"] and found["record"]["cni"] is False
    )
    # Now the package is there. What the first run has recorded stays.
    again = plan(
        {
            "packages": dict.fromkeys(found["packages"], "1"),
            "record": found["record"],
            "cni": True,
            "masked": {"docker-registry.service": True},
        }
    )
    assert (
        again["record"] == found["record"]
        and again["masked"] == found["masked"]
        and json.loads(again["record_text"]) == again["record"]
    )
    # Another role has masked it, and removes the link.
    assert plan({"masked": {"docker-registry.service": True}})["record"]["masked"] == [
        "nginx.service"
    ]


def test_a_registry_that_exists():
    found = plan(registry="r.example:5000", images=[TORCH])
    assert (
        found["packages"] == ["skopeo", "buildah", "ca-certificates"]
        and found["registry"] == "r.example:5000"
    )
    assert (
        planned.PROXY not in texts(found)
        and not any("systemd" in path for path in texts(found))
        and found["certificate"] == {}
    )
    assert set(json.loads(texts(found)[planned.POLICY])["transports"]["docker"]) == {
        "r.example",
        "r.example:5000",
    }


@pytest.mark.parametrize(
    "found, wanted, said",
    [
        (
            {"storage_type": "overlay"},
            {"images": [dict(TORCH, complete=True)]},
            "image_relay_storage: '/scratch/registry' is on overlay",
        ),
        (
            {"strange": ["mail"]},
            {},
            "image_relay_storage: '/scratch/registry' has 'mail', which this role did not create",
        ),
        (
            {"port_taken": True},
            {},
            "image_relay_port: another program of the host listens on port 5000",
        ),
        (
            {"missing": ["/srv/key"]},
            {"certificate": "/srv/crt", "key": "/srv/key"},
            "image_relay_key: '/srv/key' does not exist on front",
        ),
        ({}, {"folder": "anna"}, "image_relay_folder: 'anna' is the name of a person"),
        (
            {},
            {"people": {"trainyard-relay": 2001}},
            "shared_storage_users: 'trainyard-relay' is the account of the relay",
        ),
        (
            {},
            {"images": [TORCH, dict(TORCH, name="torch:1")]},
            "image_relay_images: 'torch:1' is there twice",
        ),
        (
            {},
            {"images": [{"name": "a:1"}]},
            "image_relay_images: 'a:1' needs either source or archive",
        ),
        (
            {},
            {"images": [dict(TORCH, archive="/a")]},
            "image_relay_images: 'torch:1' needs either source or archive",
        ),
        (
            {},
            {"images": [{"name": "a:1", "source": "192.0.2.10:5000/site/b:1"}]},
            "image_relay_images: the source of 'a:1' is an approved image itself",
        ),
        (
            {},
            {"has_jobs": True, "job_registries": ["r.example"]},
            "job_container_registries: '192.0.2.10:5000' is missing",
        ),
    ],
)
def test_problems(found, wanted, said):
    assert [text for text in plan(found, **wanted)["problems"] if text.startswith(said)], plan(
        found, **wanted
    )["problems"]
    assert len(plan(found, **wanted)["problems"]) == 1


@pytest.mark.parametrize(
    "found, wanted",
    [
        ({}, {}),
        ({"port_taken": True, "proxy_active": True}, {}),
        ({"strange": ["a"], "record": {"storage": ["/scratch/registry"]}}, {}),
        ({"storage_type": "overlay"}, {"images": [TORCH]}),
        ({}, {"has_jobs": True, "job_registries": ["192.0.2.10:5000"]}),
        ({}, {"has_jobs": True, "job_registries": ["192.0.2.10:5000/site"]}),
        ({"port_taken": True}, {"registry": "r.example"}),
    ],
)
def test_no_problem(found, wanted):
    assert plan(found, **wanted)["problems"] == []


@pytest.mark.parametrize(
    "wanted, found",
    [
        ({}, {"names": ["front", "localhost"], "addresses": ["192.0.2.10"]}),
        (
            {"address": "registry.site"},
            {"names": ["front", "localhost", "registry.site"], "addresses": []},
        ),
        # A name of the inventory that no certificate can have.
        ({"host": "front_1"}, {"names": ["localhost"], "addresses": ["192.0.2.10"]}),
        ({"host": "192.0.2.10"}, {"names": ["localhost"], "addresses": ["192.0.2.10"]}),
        (
            {"host": "2001:db8::1", "address": "2001:db8::1"},
            {"names": ["localhost"], "addresses": ["2001:db8::1"]},
        ),
        ({"certificate": "/srv/crt", "key": "/srv/key"}, {}),
    ],
)
def test_names_of_the_certificate(wanted, found):
    assert plan(**wanted)["certificate"] == found


def test_a_path_that_nginx_would_read_otherwise_never_reaches_its_file():
    with pytest.raises(ValueError, match="characters that a path of nginx cannot have"):
        plan(certificate='/srv/"; }', key="/srv/key")


# --- images


def seen(source="", there="", source_error="", there_error="", former=None):
    return {
        "images": {
            "torch:1": {
                "source": {"digest": source, "error": source_error},
                "there": {"digest": there, "error": there_error},
            }
        },
        "relayed": {"torch:1": former} if former else {},
    }


def relayed(source_digest, digest, recipe="", **more):
    return dict(
        {
            "source": "r.example/torch:1",
            "source_digest": source_digest,
            "digest": digest,
            "recipe": recipe,
            "frameworks": {},
            "versions": {},
            "platforms": [],
            "date": "2026-11-27T10:00:00Z",
            "added": [],
        },
        **more,
    )


COMPLETED = planned.recipe_of({"complete": True})


@pytest.mark.parametrize(
    "image, found, what",
    [
        (TORCH, seen(ONE), "copy"),
        (TORCH, seen(ONE, TWO), "copy"),
        (TORCH, seen(ONE, ONE), "record"),
        (TORCH, seen(ONE, ONE, former=relayed(ONE, ONE)), None),
        # Newer outside, changed in the registry, recorded of a former run of a lost registry.
        (TORCH, seen(TWO, ONE, former=relayed(ONE, ONE)), "copy"),
        (TORCH, seen(ONE, TWO, former=relayed(ONE, ONE)), "copy"),
        (TORCH, seen(ONE, "", former=relayed(ONE, ONE)), "copy"),
        (dict(TORCH, complete=True), seen(ONE, ONE, former=relayed(ONE, ONE)), "complete"),
        (dict(TORCH, complete=True), seen(ONE, TWO), "complete"),
        (dict(TORCH, complete=True), seen(ONE, TWO, former=relayed(ONE, TWO, COMPLETED)), None),
        (
            dict(TORCH, complete=True),
            seen(ONE, TWO, former=relayed(ONE, TWO, "another")),
            "complete",
        ),
        # No longer completed.
        (TORCH, seen(ONE, TWO, former=relayed(ONE, TWO, COMPLETED)), "copy"),
        # From an archive, the copy has another digest.
        (
            {"name": "torch:1", "archive": "/srv/a.tar"},
            seen(ONE, TWO, former=relayed(ONE, TWO, source="/srv/a.tar")),
            None,
        ),
        # Only the source differs.
        (
            dict(TORCH, source="r.example/other:1"),
            seen(ONE, ONE, former=relayed(ONE, ONE)),
            "record",
        ),
        (
            dict(TORCH, source="r.example/other:1", complete=True),
            seen(ONE, TWO, former=relayed(ONE, TWO, COMPLETED)),
            "record",
        ),
        (
            {"name": "torch:1", "archive": "/srv/b.tar"},
            seen(ONE, TWO, former=relayed(ONE, TWO, source="/srv/a.tar")),
            "record",
        ),
        # Before the first run, skopeo has read nothing.
        (TORCH, {"images": {}, "relayed": {}}, "copy"),
        (dict(TORCH, complete=True), {"images": {}, "relayed": {}}, "complete"),
    ],
)
def test_what_is_relayed(image, found, what):
    done = _image_relay_plan.images_plan(found, dict(WANTED, images=[image]))
    assert [entry["what"] for entry in done["todo"]] == ([what] if what else []) and done[
        "problems"
    ] == done["kept"] == []
    assert [entry["target"] for entry in done["todo"]] == (
        ["192.0.2.10:5000/site/torch:1"] if what else []
    )


def test_a_source_that_does_not_answer():
    wanted = dict(WANTED, images=[TORCH])
    done = _image_relay_plan.images_plan(seen(source_error="down"), wanted)
    assert (
        done["problems"] == ["image_relay_images: 'r.example/torch:1' of torch:1: down"]
        and done["todo"] == []
    )
    # An image that is there stays.
    done = _image_relay_plan.images_plan(
        seen("", ONE, source_error="down", former=relayed(ONE, ONE)), wanted
    )
    assert done["problems"] == [] == done["todo"] and done["kept"] == ["torch:1: down"]
    # But not if the registry has another one, or the request has changed.
    assert _image_relay_plan.images_plan(
        seen("", TWO, source_error="down", former=relayed(ONE, ONE)), wanted
    )["problems"]
    assert _image_relay_plan.images_plan(
        seen("", ONE, source_error="down", former=relayed(ONE, ONE, source="r.example/other:1")),
        wanted,
    )["problems"]
    done = _image_relay_plan.images_plan(
        seen(ONE, there_error="full", former=relayed(ONE, ONE)), wanted
    )
    assert done["problems"] == [
        "image_relay_images: '192.0.2.10:5000/site/torch:1' of torch:1: full"
    ]


def test_the_catalogue_has_what_is_there_and_tells_what_will_be():
    former = relayed(
        ONE,
        ONE,
        frameworks={"PyTorch": "2.5"},
        versions={"torch": "2.5"},
        platforms=["linux/amd64"],
    )
    there = json.loads(
        _image_relay_plan.images_plan(seen(ONE, ONE, former=former), dict(WANTED, images=[TORCH]))[
            "catalogue"
        ]
    )
    assert there["images"] == [
        {
            "name": "192.0.2.10:5000/site/torch:1",
            "digest": ONE,
            "frameworks": {"PyTorch": "2.5"},
            "versions": {"torch": "2.5"},
            "platforms": ["linux/amd64"],
            "source": "r.example/torch:1",
            "source_digest": ONE,
            "date": "2026-11-27T10:00:00Z",
            "recipe": "",
            "added": [],
        }
    ]
    coming = json.loads(
        _image_relay_plan.images_plan(seen(TWO, ONE, former=former), dict(WANTED, images=[TORCH]))[
            "catalogue"
        ]
    )
    assert coming["images"] == [
        {"name": "192.0.2.10:5000/site/torch:1", "digest": "not relayed yet"}
    ]
    # No longer approved.
    assert (
        json.loads(
            _image_relay_plan.images_plan(seen(ONE, ONE, former=former), WANTED)["catalogue"]
        )["images"]
        == []
    )


# --- hosts

ACCESS = {"ca": "PEM\n", "logins": {"anna": "YTpi", "al.b": "Yzpk"}}


def test_hosts_get_the_certificate_and_each_person_a_file():
    found = _image_relay_plan.client_plan(
        dict(
            FOUND,
            people=["gone.json", "anna.json"],
            certificates=["/etc/docker/certs.d/192.0.2.10:4999/ca.crt"],
            record={"registries": ["192.0.2.10:4999"]},
        ),
        WANTED,
        ACCESS,
    )
    assert [path for path, content in texts(found).items() if content == "PEM\n"] == [
        "/etc/containers/certs.d/192.0.2.10:5000/ca.crt",
        "/etc/docker/certs.d/192.0.2.10:5000/ca.crt",
    ]
    assert [(entry["path"], entry["mode"], entry.get("owner")) for entry in found["logins"]] == [
        ("/etc/trainyard/registry/people", "0711", None),
        ("/etc/trainyard/registry/people/al.b.json", "0400", "2002"),
        ("/etc/trainyard/registry/people/anna.json", "0400", "2001"),
    ]
    assert json.loads(found["logins"][2]["content"]) == {
        "auths": {"192.0.2.10:5000": {"auth": "YTpi"}}
    }
    # Those of former people and of a former port go.
    assert {
        "/etc/trainyard/registry/people/gone.json",
        "/etc/docker/certs.d/192.0.2.10:4999/ca.crt",
    } <= set(found["absent"])
    assert not any("anna" in path for path in found["absent"])
    assert found["record"]["registries"] == ["192.0.2.10:4999", "192.0.2.10:5000"]


def test_nothing_secret_is_in_the_files_that_are_logged():
    found = _image_relay_plan.client_plan(FOUND, WANTED, ACCESS)
    assert "YTpi" not in json.dumps(found["files"]) and "YTpi" not in json.dumps(plan()["files"])


def test_hosts_of_a_registry_without_tls():
    found = _image_relay_plan.client_plan(
        FOUND,
        dict(WANTED, registry="r.example:5000", plain_http=["r.example:5000"]),
        {"ca": "", "logins": {}},
    )
    assert (
        'location = "r.example:5000"\ninsecure = true' in texts(found)[planned.PLAIN_CONF]
        and found["logins"] == []
        and planned.PROFILE in found["absent"]
    )
    found = _image_relay_plan.client_plan(
        FOUND, dict(WANTED, registry="r.example:5000"), {"ca": "", "logins": {}}
    )
    assert planned.PLAIN_CONF in found["absent"] and planned.PLAIN_CONF not in texts(found)


def test_the_removal_lists_all_that_is_placed():
    first = plan()
    found = dict(
        FOUND, record=first["record"], people=["anna.json", "al.b.json"], units=list(planned.UNITS)
    )
    done = _image_relay_plan.removal(found)
    client = _image_relay_plan.client_plan(found, WANTED, ACCESS)
    # /etc/containers and /etc/docker are left as long as they have content.
    placed = {entry["path"] for entry in first["files"] + client["files"] + client["logins"]}
    assert {path for path in placed if not path.startswith("/scratch")} - set(
        done["absent"]
    ) == set()
    assert (
        done["storage"] == ["/scratch/registry"]
        and done["placed"]
        and set(done["unmask"]) == {entry["path"] for entry in first["masked"]}
    )
    assert (
        done["units"][0].endswith(".timer")
        and done["units"][-1] == "trainyard-image-registry.service"
    )
    assert done["empty"][:3] == ["/etc/cni/net.d/cni.lock", "/etc/cni/net.d", "/etc/cni"]
    # A network of the host's own.
    assert (
        "/etc/cni"
        not in _image_relay_plan.removal(dict(found, record=dict(first["record"], cni=True)))[
            "empty"
        ]
    )
    # Folders after their content.
    for path in done["absent"]:
        assert not [
            other
            for other in done["absent"][done["absent"].index(path) :]
            if other.startswith(path + "/")
        ], path
    assert _image_relay_plan.removal(FOUND)["placed"] is False


UNIT_FILES = {"/etc/systemd/system/" + name for name in planned.UNITS}
ONLY_THERE = {
    planned.POLICY,
    planned.STORAGE_CONF,
    planned.SETTINGS,
    planned.PROGRAM,
    planned.FORMER_MODULE,
}


@pytest.mark.parametrize(
    "host, wanted, is_former",
    [("front", {}, False), ("node", {}, True), ("front", {"registry": "r.example"}, True)],
)
def test_a_former_registry(host, wanted, is_former):
    """It loses its logins and what it runs with, but not its images, and a later teardown still
    finds them.
    """
    first = plan()
    found = dict(
        FOUND, record=first["record"], units=["trainyard-image-registry.service.d", *planned.UNITS]
    )
    left = _image_relay_plan.former_registry(found, dict(WANTED, **wanted), host)
    # A host that never had one, and a second run.
    assert _image_relay_plan.former_registry(FOUND, dict(WANTED, **wanted), host) == {
        "units": [],
        "absent": [],
        "storage": [],
    }
    if not is_former:
        assert left == {"units": [], "absent": [], "storage": []}
        return
    # A removal of old tags would start the registry again.
    assert left["units"] == [
        "trainyard-image-tidy.timer",
        "trainyard-image-room.timer",
        "trainyard-image-tidy.service",
        "trainyard-image-room.service",
        "trainyard-image-proxy.service",
        "trainyard-image-registry.service",
    ]
    assert {
        planned.TOKENS,
        planned.HTPASSWD,
        planned.PROXY,
        planned.CONFIG,
        planned.TLS_KEY,
    } | UNIT_FILES <= set(left["absent"])
    assert left["storage"] == ["/scratch/registry"] and not any(
        path.startswith("/scratch") for path in left["absent"]
    )
    # If the run stops in between, the next one still finds units.
    assert not UNIT_FILES & set(left["absent"][: -len(planned.UNITS) - 1])
    # What the relay and the hosts still need stays.
    client = _image_relay_plan.client_plan(found, dict(WANTED, **wanted), ACCESS)
    needed = {entry["path"] for entry in client["files"] + client["logins"]} | (
        set() if host == "node" else set(texts(plan(**wanted)))
    )
    assert needed & set(left["absent"]) == set() and (set(left["absent"]) >= ONLY_THERE) == (
        host == "node"
    )
    assert (
        client["record"]["storage"] == ["/scratch/registry"]
        and client["record"]["masked"] == first["record"]["masked"]
    )
    said = _image_relay_plan.drift(found, dict(WANTED, **wanted), {}, host)
    assert {
        "what": "former registry of images",
        "asked": "absent",
        "found": ", ".join(left["units"]),
    } in said


def drift(found=(), now=(), **wanted):
    """Of the registry's host after a run, with changes."""
    wanted = dict(WANTED, images=[TORCH], **wanted)
    record = plan(**wanted)["record"]
    certificates = [base + "/192.0.2.10:5000/ca.crt" for base in planned.CERTIFICATES]
    state = dict(
        dict(
            FOUND,
            record=record,
            people=["al.b.json", "anna.json"],
            certificates=certificates,
            units=list(planned.UNITS),
        ),
        **dict(found),
    )
    server = dict(
        state,
        packages=dict.fromkeys(planned.TOOLS + planned.SERVERS, "1"),
        proxy_active=True,
        port_taken=True,
        relayed={"torch:1": relayed(ONE, ONE)},
    )
    now = dict(now)
    changed = now.pop("changed_paths", [])
    return [
        (entry["what"], entry["asked"], entry["found"])
        for entry in _image_relay_plan.drift(
            state, wanted, {"server": dict(server, **now), "changed_paths": changed}, "front"
        )
    ]


@pytest.mark.parametrize(
    "found, now, wanted, said",
    [
        ({}, {}, {}, None),
        ({"people": ["anna.json"]}, {}, {}, ("login of al.b", "present", "absent")),
        (
            {"people": ["al.b.json", "anna.json", "ben.json"]},
            {},
            {},
            ("login of ben", "absent", "present"),
        ),
        (
            {"certificates": ["/etc/containers/certs.d/192.0.2.10:5000/ca.crt"]},
            {},
            {},
            (
                "/etc/docker/certs.d/192.0.2.10:5000/ca.crt",
                "the authority of the registry",
                "missing",
            ),
        ),
        (
            {},
            {"packages": dict.fromkeys(planned.TOOLS + planned.SERVERS[1:], "1")},
            {},
            ("docker-registry", "installed", "absent"),
        ),
        ({}, {"changed_paths": [planned.PROXY]}, {}, (planned.PROXY, "as planned", "differs")),
        (
            {},
            {"not_loaded": [planned.TLS_CERTIFICATE]},
            {},
            (planned.TLS_CERTIFICATE, "loaded by its service", "changed since then"),
        ),
        (
            {},
            {"proxy_active": False, "port_taken": False},
            {},
            ("trainyard-image-proxy.service", "running", "stopped"),
        ),
        ({}, {"relayed": {}}, {}, ("192.0.2.10:5000/site/torch:1", "relayed", "absent")),
        (
            {},
            {},
            {"folder": "anna"},
            (
                "registry of images",
                "a plan without problems",
                "image_relay_folder: 'anna' is the name of a person, "
                "who could write there; use another name",
            ),
        ),
        (
            {"record": {"registries": ["192.0.2.9:5000"], "storage": []}},
            {},
            {},
            ("registry of images", "192.0.2.10:5000", "192.0.2.9:5000"),
        ),
    ],
)
def test_drift(found, now, wanted, said):
    assert drift(found, now, **wanted) == ([said] if said else [])


def test_drift_of_other_hosts():
    found = dict(
        FOUND,
        record={"registries": ["192.0.2.10:5000"]},
        people=["al.b.json", "anna.json"],
        certificates=[base + "/192.0.2.10:5000/ca.crt" for base in planned.CERTIFICATES],
    )
    assert _image_relay_plan.drift(found, WANTED, {}, "node") == []
    assert _image_relay_plan.drift(FOUND, WANTED, {}, "node") == [
        {
            "what": "registry of images",
            "asked": "192.0.2.10:5000",
            "found": "role image_relay has not run here",
        }
    ]
    # A registry that exists has its own logins.
    assert (
        _image_relay_plan.drift(
            dict(FOUND, record={"registries": ["r.example"]}),
            dict(WANTED, registry="r.example"),
            {},
            "node",
        )
        == []
    )


def test_logins_for_skopeo():
    made = _image_relay_plan.auth_document(
        [{"registry": "r.example", "username": "a", "password": "b:c"}]
    )
    assert json.loads(made) == {"auths": {"r.example": {"auth": "YTpiOmM="}}}
