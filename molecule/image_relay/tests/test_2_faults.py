"""Further runs: nothing to do, refusals before anything changes, registries that fail, limits, and
the removal.
"""

from __future__ import annotations

import json
import os
import shlex
import time

import pytest

REGISTRY, OUTSIDE, PLAIN = "172.30.106.21:5000", "172.30.106.22:5443", "172.30.106.22:5080"
TOOLS = {"name": "tools:1", "source": OUTSIDE + "/outside/tools:1"}


def tags(site, name):
    done = site.skopeo("alice", "list-tags", "docker://%s/%s" % (REGISTRY, name), check=False)
    return json.loads(done.out)["Tags"] if done.code == 0 else []


def relay(site, *images, check=False, **variables):
    return site.role(image_relay_images=list(images), check=check, **variables)


@pytest.fixture(autouse=True)
def as_before(site):
    """A refusal leaves the list of approved images as it was."""
    before = site.on(site.relay, "cat /srv/relay/relayed.json").out
    yield
    assert (
        json.loads(site.on(site.relay, "cat /srv/relay/relayed.json").out).items()
        >= json.loads(before).items()
    )


def test_a_digest_that_is_there_is_not_copied(site):
    seen = "journalctl --quiet --unit trainyard-image-relay.service | wc -l; find /srv/relay/registry -newer /etc/trainyard/images.json -type f | sort"
    before = site.on(site.relay, seen).out
    done = site.role(check=True)
    assert done.changed == [0, 0] and "Copy the images to the registry" not in done.text
    assert site.on(site.relay, seen).out == before
    # A lost record is written again without a copy.
    site.on(site.relay, "mv /srv/relay/relayed.json /srv/relayed.json")
    done = site.role(check=True, image_relay_images=[TOOLS])
    assert "description of" in done.text and "copy of" not in done.text
    site.on(site.relay, "mv /srv/relayed.json /srv/relay/relayed.json")


def test_images_that_cannot_be_relayed_are_all_named(site):
    """Before one of them is copied."""
    done = relay(
        site,
        {"name": "good:1", "source": OUTSIDE + "/outside/small:1"},
        {"name": "none:1", "source": OUTSIDE + "/outside/none:1"},
        {"name": "none:2", "archive": "/srv/none.tar"},
        {"name": "none:3", "archive": "/etc/passwd"},
        {"name": "none:4", "source": "172.30.106.22:5999/x:1"},
        {"name": "none:5", "source": PLAIN + "/outside/small:1"},
        image_relay_plain_http=[],
    )
    assert done.code == 2
    for said in (
        "'172.30.106.22:5443/outside/none:1' of none:1: the registry has no such image; correct the name",
        "'/srv/none.tar' of none:2: the file does not exist on this host",
        "'/etc/passwd' of none:3: it is no readable archive",
        "'172.30.106.22:5999/x:1' of none:4: the registry does not answer",
        "of none:5: the registry has no TLS; add it to image_relay_plain_http",
    ):
        assert said in done.text, done.text[-4000:]
    assert tags(site, "site/good") == tags(site, "site/none") == []


def test_an_image_without_apt_is_not_completed(site):
    """The others are relayed."""
    done = relay(
        site,
        {"name": "bare:1", "source": OUTSIDE + "/outside/small:1", "complete": True},
        {"name": "beside:1", "source": OUTSIDE + "/outside/small:1"},
    )
    said = "'172.30.106.22:5443/outside/small:1' as 'bare:1': it has no apt, which installs openssh-server, sudo"
    assert done.code == 2 and said in done.text, done.text[-4000:]
    assert tags(site, "site/bare") == [] and tags(site, "site/beside") == ["1"]
    assert site.on(site.relay, "ls /run/trainyard/image_relay").out.split() == ["store"]


def test_a_login_that_is_refused(site):
    done = relay(
        site,
        {"name": "other:1", "source": OUTSIDE + "/outside/small:1"},
        image_relay_source_logins=[
            {"registry": OUTSIDE, "username": "puller", "password": "wrong-word"}
        ],
    )
    assert (
        done.code == 2
        and "the registry refuses the login; correct image_relay_source_logins" in done.text
        and "wrong-word" not in done.text
    )
    assert tags(site, "site/other") == []


def test_bad_input_changes_nothing(site):
    done = relay(site, {"name": "a:1"}, TOOLS, TOOLS, image_relay_folder="alice")
    for said in (
        "image_relay_folder: 'alice' is the name of a person",
        "'a:1' needs either source or archive",
        "'tools:1' is there twice",
    ):
        assert done.code == 2 and said in done.text, done.text[-2000:]
    assert done.changed == [0, 0]


def test_a_source_that_is_down_leaves_what_was_relayed(site):
    site.on(site.other, "systemctl stop outside-secure")
    try:
        done = site.role(check=True)
        assert (
            "Relayed images stay, although their source cannot be compared now" in done.text
            and "copy of" not in done.text
        )
    finally:
        site.on(
            site.other,
            "systemctl reset-failed outside-secure 2> /dev/null; "
            "systemd-run --quiet --unit outside-secure docker-registry serve /srv/outside/secure.yml",
        )


def test_a_full_registry_and_a_full_disk(site):
    before = site.digest("site/tools:1")
    # A limit below what it has. The timer does the same each minute.
    site.on(
        site.relay,
        'cd /etc/trainyard/registry; cp relay.json /srv/relay.json; sed -i \'s/"max_bytes": [0-9]*/"max_bytes": 1000/\' relay.json; '
        "systemctl start trainyard-image-room.service",
    )
    try:
        done = site.push("alice", "alice/late:1", check=False)
        assert done.code != 0 and "the registry is full" in done.text
        done = relay(site, TOOLS, {"name": "late:1", "source": OUTSIDE + "/outside/small:1"})
        assert done.code == 2 and "the registry is full" in done.text
        assert site.digest("site/tools:1") == before and tags(site, "site/late") == []
        # What is there can be deleted.
        digest = "sha256:" + site.digest("alice/tools:2")
        assert site.http("DELETE", "/v2/alice/tools/manifests/" + digest, "alice") == 202
    finally:
        site.on(
            site.relay,
            "cp /srv/relay.json /etc/trainyard/registry/relay.json; systemctl start trainyard-image-room.service",
        )
    site.push("alice", "alice/late:1")
    # The run above has written the right settings again or not: this one changes nothing else.
    site.on(site.relay, "test ! -e /srv/relay/full")


def test_a_person_with_too_many_images_cannot_push(site):
    def space(person):
        return json.loads(site.on(site.relay, "cat /srv/relay/space/%s.json" % person).out)

    # Content without an image counts, too. What approved images have does not.
    program = (
        "import json, ssl, urllib.parse, urllib.request\n"
        "login = json.load(open('/etc/trainyard/registry/people/alice.json'))['auths']['%s']\n"
        "tls = ssl.create_default_context(cafile='/etc/containers/certs.d/%s/ca.crt')\n"
        "url = 'https://%s/v2/alice/never/blobs/uploads/'\n"
        "for method, body in (('POST', b''), ('PATCH', bytes(3 << 20))):\n"
        "    asked = urllib.request.Request(url, body, method=method)\n"
        "    asked.add_header('Authorization', 'Basic ' + login['auth'])\n"
        "    asked.add_header('Content-Type', 'application/octet-stream')\n"
        "    answer = urllib.request.urlopen(asked, context=tls)\n"
        "    url = urllib.parse.urljoin(url, answer.headers['Location'])\n"
    ) % (REGISTRY, REGISTRY, REGISTRY)
    site.on(site.relay, "python3 -c " + shlex.quote(program))
    site.on(
        site.relay,
        'cd /etc/trainyard/registry; cp relay.json /srv/relay.json; sed -i \'s/"person_bytes": [0-9]*/"person_bytes": 2097152/\' relay.json; '
        "systemctl start trainyard-image-room.service",
    )
    try:
        done = site.push("alice", "alice/enough:1", check=False)
        assert (
            done.code != 0
            and "your images use more than the 100 GiB that each person has here (image_relay_person_gib)"
            in done.text
        )
        assert site.http("POST", "/v2/alice/enough/blobs/uploads/", "alice") == 403
        # Others go on, and so do pulls and deletions.
        assert site.http("POST", "/v2/bob/fresh/blobs/uploads/", "bob") == 202
        assert site.http("GET", "/v2/alice/tools/tags/list", "alice") == 200
        assert site.http("DELETE", "/v2/alice/none/manifests/sha256:" + "0" * 64, "alice") == 404
        # Only with a login, and each person their own.
        assert (
            site.http("GET", "/trainyard/space", "alice") == 200
            and site.http("GET", "/trainyard/space") == 401
        )
        assert site.on(site.relay, "runuser -u alice -- ls /srv/relay/space", check=False).code != 0
    finally:
        site.on(
            site.relay,
            "cp /srv/relay.json /etc/trainyard/registry/relay.json; systemctl start trainyard-image-room.service",
        )
    assert space("alice")["limit_mib"] == 100 * 1024
    site.push("alice", "alice/enough:1")


def test_a_registry_that_stops(site):
    site.on(site.relay, "systemctl mask --now --quiet --runtime trainyard-image-registry.service")
    try:
        done = site.push("alice", "alice/late:2", check=False)
        assert done.code != 0 and "502" in done.text
    finally:
        site.on(
            site.relay,
            "systemctl unmask --quiet --runtime trainyard-image-registry.service; systemctl start trainyard-image-registry.service",
        )
    # On a busy machine it listens later.
    deadline = time.monotonic() + 60
    while site.http("GET", "/v2/", "alice") != 200:
        assert time.monotonic() < deadline
        time.sleep(1)
    assert "2" not in tags(site, "alice/late")
    site.push("alice", "alice/late:2")
    # The role starts what was stopped, and changes nothing else.
    site.role(check=True)
    site.on(
        site.relay, "systemctl stop trainyard-image-proxy.service trainyard-image-registry.service"
    )
    done = site.role(check=True)
    assert site.http("GET", "/v2/", "alice") == 200 and done.changed == [2, 0], done.text[-3000:]


def test_a_login_never_is_an_argument(site):
    """Looks at all processes while an image is copied."""
    site.on(
        site.relay,
        "rm -f /srv/seen /srv/stop; nohup sh -c 'until test -e /srv/stop; do "
        'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2> /dev/null | tr "\\0" " " >> /srv/seen; done\' > /dev/null 2>&1 &',
    )
    try:
        relay(site, TOOLS, {"name": "seen:1", "source": OUTSIDE + "/outside/small:1"}, check=True)
    finally:
        site.on(site.relay, "touch /srv/stop")
    assert int(site.on(site.relay, "grep -ac 'skopeo.*copy' /srv/seen").out) > 0
    assert (
        site.on(site.relay, "grep -acFf %s /srv/seen || true" % site.secrets()).out.strip() == "0"
    )


def test_a_renewed_login(site):
    """The former one is refused, and the next login shell has the new one."""
    before = site.on(
        site.relay,
        "cat /etc/trainyard/registry/tokens.json; cat /etc/trainyard/registry/people/bob.json",
    ).out
    site.on(
        site.other,
        "rm -rf /run/user/2101 && install -d -m 700 -o alice /run/user/2101 && "
        "cp /etc/trainyard/registry/people/alice.json /data1/share/former.json",
    )
    ask = "skopeo inspect docker://%s/site/tools:1" % REGISTRY
    site.login_shell("alice", ask, site.other)
    site.on(
        site.relay,
        'sed -i \'s/^  "alice": .*/  "alice": "",/\' /etc/trainyard/registry/tokens.json',
    )
    site.role(check=True)
    done = site.on(
        site.other,
        "skopeo inspect --authfile /data1/share/former.json docker://%s/site/tools:1" % REGISTRY,
        check=False,
    )
    site.on(site.other, "rm /data1/share/former.json")
    assert "authentication required" in done.text or "unauthorized" in done.text, done.text
    assert json.loads(site.login_shell("alice", ask, site.other).out)["Digest"]
    after = site.on(
        site.relay,
        "cat /etc/trainyard/registry/tokens.json; cat /etc/trainyard/registry/people/bob.json",
    ).out
    assert [line for line in after.splitlines() if "alice" not in line] == [
        line for line in before.splitlines() if "alice" not in line
    ]
    # A second login shell changes nothing.
    mark = site.on(
        site.other,
        "stat --format %y /run/user/2101/containers/.trainyard /run/user/2101/containers/auth.json",
    ).out
    site.login_shell("alice", "true", site.other)
    assert (
        site.on(
            site.other,
            "stat --format %y /run/user/2101/containers/.trainyard /run/user/2101/containers/auth.json",
        ).out
        == mark
    )


# A certificate of the site with the serial number $1, and its authority.
OF_THE_SITE = r"""set -e
cd /srv
new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
test -e authority.crt || $new -x509 -days 2 -subj /CN=site -keyout authority.key -out authority.crt
$new -subj /CN=registry -keyout site.key -out site.csr
echo subjectAltName=IP:172.30.106.21 > site.ext
openssl x509 -req -in site.csr -CA authority.crt -CAkey authority.key -set_serial "$1" -days 2 -extfile site.ext -out site.crt
"""


def test_a_certificate_of_the_site(site):
    """Hosts trust its authority instead of the role's.

    A renewed one is loaded by the next run, without a restart.
    """
    seen = (
        "openssl s_client -connect %s -CAfile /etc/containers/certs.d/%s/ca.crt < /dev/null 2>&1 | tee /srv/seen | openssl x509 -noout -serial; "
        "grep --quiet 'Verify return code: 0' /srv/seen && echo verified" % (REGISTRY, REGISTRY)
    )
    authority = os.path.join(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"], "authority.crt")
    variables = {
        "image_relay_certificate": "/srv/site.crt",
        "image_relay_key": "/srv/site.key",
        "image_relay_ca": authority,
    }
    proxy = site.on(
        site.relay, "systemctl show --property MainPID trainyard-image-proxy.service"
    ).out
    try:
        for serial in ("11", "12"):
            site.on(
                site.relay,
                "sh -c %s make 0x%s > /dev/null 2>&1" % (shlex.quote(OF_THE_SITE), serial),
            )
            with open(authority, "w", encoding="utf-8") as stream:
                stream.write(site.on(site.relay, "cat /srv/authority.crt").out)
            done = site.role(check=True, **variables)
            assert "copy of" not in done.text
            assert site.on(site.relay, seen).out.split() == ["serial=" + serial, "verified"]
        assert site.role(check=True, **variables).changed == [0, 0]
        site.push("alice", "alice/certified:1", host=site.other)
    finally:
        site.role(check=True)
    site.push("alice", "alice/certified:2", host=site.other)
    assert (
        site.on(site.relay, "systemctl show --property MainPID trainyard-image-proxy.service").out
        == proxy
    )


def test_old_tags_and_unused_content_go(site):
    site.push("alice", "alice/old:1")
    site.on(
        site.relay,
        "touch --date '400 days ago' /srv/relay/registry/docker/registry/v2/repositories/alice/old/_manifests/tags/1/current/link "
        "/srv/relay/registry/docker/registry/v2/repositories/site/tools/_manifests/tags/1/current/link; "
        "systemctl start trainyard-image-tidy.service",
    )
    assert tags(site, "alice/old") == [] and "1" in tags(site, "site/tools")
    # An index without tags for its parts: all of them are there, and nothing else is lost.
    for name, entry in site.catalogue().items():
        site.skopeo(
            "alice",
            "copy",
            "--quiet",
            "--all",
            "--insecure-policy",
            "docker://" + entry["name"],
            "dir:/home/alice/copy",
        )
        site.on(site.relay, "rm -r /home/alice/copy")
        assert "sha256:" + site.digest("site/" + name) == entry["digest"]


def test_a_run_that_stops_before_the_reload(site):
    """The next one loads the new certificate, with a reload."""
    proxy = site.on(
        site.relay, "systemctl show --property MainPID trainyard-image-proxy.service"
    ).out
    served = (
        "openssl s_client -connect %s < /dev/null 2> /dev/null | openssl x509 -noout -serial"
        % REGISTRY
    )
    created = "openssl x509 -noout -serial -in /etc/trainyard/registry/tls/registry.pem"
    before = site.on(site.relay, served).out
    assert before == site.on(site.relay, created).out
    site.on(
        site.relay,
        "cd /etc/trainyard/registry && rm tls/registry.pem && cp -p tokens.json /srv/tokens.json && echo '{' > tokens.json",
    )
    try:
        done = site.role()
        assert done.code == 2 and "tokens.json is damaged" in done.text, done.text[-3000:]
    finally:
        site.on(site.relay, "mv /srv/tokens.json /etc/trainyard/registry/tokens.json")
    assert site.on(site.relay, served).out == before != site.on(site.relay, created).out
    assert site.role(check=True).changed == [1, 0]
    assert site.on(site.relay, served).out == site.on(site.relay, created).out != before
    assert (
        site.on(site.relay, "systemctl show --property MainPID trainyard-image-proxy.service").out
        == proxy
    )
    assert site.role(check=True).changed == [0, 0]


def test_an_image_with_another_source_that_leaves_the_list(site):
    """The same digest is not copied again, the new source is known, and the tag goes when it is
    old.
    """
    recorded = (
        "python3 -c 'import json; print(*sorted(json.load(open(\"/srv/relay/relayed.json\"))))'"
    )
    relay(site, TOOLS, {"name": "moved:1", "source": OUTSIDE + "/outside/small:1"}, check=True)
    image = {"name": "moved:1", "source": PLAIN + "/outside/small:1"}
    done = relay(site, TOOLS, image, check=True)
    assert (
        "moved:1: description of" in done.text
        and "copy of" not in done.text
        and site.catalogue()["moved:1"]["source"] == image["source"]
    )
    site.on(site.other, "systemctl stop outside-plain")
    try:
        assert "Relayed images stay" in relay(site, TOOLS, image, check=True).text
    finally:
        site.on(
            site.other,
            "systemctl reset-failed outside-plain 2> /dev/null; "
            "systemd-run --quiet --unit outside-plain docker-registry serve /srv/outside/plain.yml",
        )
    age = (
        "touch --date '400 days ago' /srv/relay/registry/docker/registry/v2/repositories/site/moved/_manifests/tags/1/current/link; "
        "systemctl start trainyard-image-tidy.service"
    )
    site.on(site.relay, age)
    assert (
        tags(site, "site/moved") == ["1"] and "moved:1" in site.on(site.relay, recorded).out.split()
    )
    site.role(check=True)
    assert tags(site, "site/moved") == ["1"]
    site.on(site.relay, age)
    assert (
        tags(site, "site/moved") == []
        and "moved:1" not in site.on(site.relay, recorded).out.split()
    )
    assert site.role(check=True).changed == [0, 0]


def test_a_registry_that_is_replaced(site):
    """The former one keeps no rights, and comes back with its images."""
    state = (
        "systemctl is-active trainyard-image-registry trainyard-image-proxy trainyard-image-tidy.timer trainyard-image-room.timer; "
        "ls /etc/systemd/system | grep trainyard-image; ls /etc/trainyard/registry; ss -Hltn 'sport = :5000'"
    )
    wanted = {"image_relay_registry": PLAIN, "image_relay_images": []}
    done = site.role(check=True, **wanted)
    assert "the former registry is stopped, and its images are kept in /srv/relay" in done.text, (
        done.text[-3000:]
    )
    assert site.on(site.relay, state, check=False).out.split() == ["inactive"] * 4 + [
        "people",
        "policy.json",
        "relay.json",
        "storage.conf",
    ]
    assert site.on(site.relay, "ls /etc/trainyard/registry/people /srv/relay").out.split() == [
        "/etc/trainyard/registry/people:",
        "/srv/relay:",
        "registry",
        "relayed.json",
        "space",
        "work",
    ]
    assert site.on(site.other, "ls /etc/trainyard/registry/people").out == ""
    done = site.role(check=True, **wanted)
    assert done.changed == [0, 0] and "former registry" not in done.text
    done = site.role(check=True)
    assert "copy of" not in done.text and "completion of" not in done.text
    site.push("alice", "alice/again:1", host=site.other)
    assert sorted(tags(site, "alice/late")) == ["1", "2"] and site.role(check=True).changed == [
        0,
        0,
    ]


def test_a_person_who_leaves(site):
    before = site.on(site.relay, "grep alice /etc/trainyard/registry/tokens.json").out
    proxy = site.on(
        site.relay, "systemctl show --property MainPID trainyard-image-proxy.service"
    ).out
    site.role(check=True, shared_storage_users=[{"name": "alice", "uid": 2101}])
    # A restart would cut pushes of others off.
    assert (
        site.on(site.relay, "systemctl show --property MainPID trainyard-image-proxy.service").out
        == proxy
    )
    for host in site.hosts:
        assert site.on(host, "ls /etc/trainyard/registry/people").out.split() == ["alice.json"]
    assert site.on(site.relay, "cut -d: -f1 /etc/trainyard/registry/htpasswd").out.split() == [
        "alice",
        "trainyard-relay",
    ]
    # The others keep their passwords.
    assert site.on(site.relay, "grep alice /etc/trainyard/registry/tokens.json").out.strip(
        " ,\n"
    ) == before.strip(" ,\n")
    assert site.http("GET", "/v2/", "alice") == 200
