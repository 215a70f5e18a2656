"""The registry: who may read and write, what other people of its host can reach, and what was
relayed.
"""

from __future__ import annotations

import json
import shlex

import pytest

REGISTRY = "172.30.106.21:5000"
SMALL = "docker-archive:/srv/small.tar"


def test_each_person_writes_below_the_own_name_only(site):
    site.push("alice", "alice/tools:1")
    # From another host of the cluster.
    site.push("alice", "alice/tools:2", host=site.other)
    before = site.digest("alice/tools:1")
    for name in ("alice/tools:1", "alice/new:1", "site/tools:1", "tools:1", "alicebob/x:1"):
        done = site.push("bob", name, check=False)
        assert done.code != 0 and ("403" in done.text or "denied" in done.text), done.text
    assert site.digest("alice/tools:1", person="bob") == before
    assert (
        "people write below their own name only"
        in site.push("bob", "alice/tools:1", check=False).text
    )


def test_the_registry_itself_tells_403(site):
    assert site.http("POST", "/v2/alice/x/blobs/uploads/", "bob") == 403
    assert site.http("POST", "/v2/bob/x/blobs/uploads/", "bob") == 202
    assert site.http("DELETE", "/v2/alice/tools/manifests/sha256:" + "0" * 64, "bob") == 403
    # The same path, written in other ways.
    for path in (
        "/v2/bob/../alice/x/blobs/uploads/",
        "/v2/bob/%2e%2e/alice/x/blobs/uploads/",
        "/v2//alice/x/blobs/uploads/",
        "/v2/bob/..%2falice/x/blobs/uploads/",
    ):
        assert site.http("POST", path, "bob") in (400, 403), path
    # Names of accounts are compared with their case, and one that contains a rule is no account.
    assert site.http("POST", "/v2/alice/x/blobs/uploads/", "Alice:x") in (401, 403)
    assert site.http("PUT", "/v2/site/x/manifests/1", "trainyard-relay /v2/site/:x") == 401


def test_images_of_other_groups_can_be_private(site):
    """bob reads alice's images as long as they share no group, or everyone reads all.

    A layer of hers is not linked into his repository.
    """
    site.push("alice", "alice/secret:1")
    alone = [{"name": "alice", "uid": 2101}, {"name": "bob", "uid": 2102}]
    layer = json.loads(
        site.skopeo("alice", "inspect", "--raw", "docker://%s/alice/secret:1" % REGISTRY).out
    )["layers"][0]["digest"]
    steal = "/v2/bob/stolen/blobs/uploads/?mount=%s&from=alice%%2Fsecret" % layer
    assert site.http("GET", "/v2/alice/secret/manifests/1", "bob") == 200
    try:
        site.role(check=True, image_relay_private=True, shared_storage_users=alone)
        done = site.skopeo(
            "bob",
            "inspect",
            "--raw",
            "docker://%s/alice/secret:1" % REGISTRY,
            host=site.other,
            check=False,
        )
        assert done.code != 0 and "images of other groups are private" in done.text
        for method, path in (
            ("GET", "/v2/alice/secret/manifests/1"),
            ("HEAD", "/v2/alice/secret/blobs/" + layer),
            ("GET", "/v2/alice/secret/tags/list"),
            ("GET", "/v2/_catalog"),
            ("GET", "/own/alice/"),
            ("POST", steal),
            ("POST", steal.replace("from=", "%66rom=")),
        ):
            assert site.http(method, path, "bob") == 403, path
        # The registry would read both in a form, too. It starts an upload in place of the link.
        multipart = (
            "".join(
                '--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % pair
                for pair in (("mount", layer), ("from", "alice/secret"))
            )
            + "--x--\r\n"
        )
        for kind, body in (
            ("application/x-www-form-urlencoded", steal.partition("?")[2]),
            ("multipart/form-data; boundary=x", multipart),
        ):
            assert (
                site.http("POST", "/v2/bob/form/blobs/uploads/", "bob", content=(kind, body)) == 202
            ), kind
        assert site.http("HEAD", "/v2/bob/form/blobs/" + layer, "bob") == 404
        # The own ones, the approved ones, and the own list.
        for path in ("/v2/", "/v2/site/tools/manifests/1", "/own/bob/"):
            assert site.http("GET", path, "bob") in (200, 404), path
        assert (
            site.http("GET", "/own/alice/secret/", "alice")
            == site.http("GET", "/v2/alice/secret/manifests/1", "alice")
            == 200
        )
        assert (
            site.http("GET", "/own/alice/")
            == site.http("GET", "/v2/alice/secret/manifests/1")
            == 401
        )
        site.role(
            check=True,
            image_relay_private=True,
            shared_storage_users=alone,
            slurm_accounts=[{"name": "course", "members": ["alice", "bob"]}],
        )
        assert (
            site.http("GET", "/v2/alice/secret/manifests/1", "bob") == 200
            and site.http("POST", steal, "bob") == 201
        )
    finally:
        site.role(check=True)
    assert site.http("GET", "/v2/alice/secret/manifests/1", "bob") == 200


def test_without_a_login_nothing_can_be_read_or_written(site):
    for method, path in (
        ("GET", "/v2/"),
        ("GET", "/v2/_catalog"),
        ("GET", "/v2/site/tools/manifests/1"),
        ("POST", "/v2/alice/x/blobs/uploads/"),
    ):
        assert site.http(method, path) == 401, path
        assert site.http(method, path, "alice:wrong") == 401, path
    done = site.on(
        site.other, "skopeo inspect --no-creds docker://%s/site/tools:1" % REGISTRY, check=False
    )
    assert done.code != 0 and "authentication required" in done.text or "unauthorized" in done.text
    # TLS only, and nothing beside the registry.
    assert (
        "400"
        in site.on(
            site.relay,
            "python3 -c \"import http.client; c = http.client.HTTPConnection('172.30.106.21', 5000); c.request('GET', '/v2/'); "
            'print(c.getresponse().status)"',
        ).out
    )
    assert site.http("GET", "/", "alice") == 404


def test_other_people_of_the_host_cannot_go_around_the_proxy(site):
    ports = [
        line.split()[3]
        for line in site.on(
            site.relay, "ss -Hltnp | grep -E 'docker-registry|nginx'"
        ).out.splitlines()
    ]
    assert ports == ["0.0.0.0:5000"], ports
    for path in (
        "/run/trainyard-image-registry/registry.sock",
        "/run/trainyard-image-registry",
        "/srv/relay/registry",
        "/etc/trainyard/registry/tokens.json",
        "/etc/trainyard/registry/htpasswd",
        "/etc/trainyard/registry/tls/registry.key",
        "/etc/trainyard/registry/tls/ca.key",
        "/etc/trainyard/registry/people/alice.json",
    ):
        assert site.on(site.relay, "test -e " + path, check=False).code == 0, path
        assert site.as_person("bob", "ls %s/ || cat %s" % (path, path), check=False).code != 0, path
    connect = 'import socket; s = socket.socket(socket.AF_UNIX); s.connect("/run/trainyard-image-registry/registry.sock")'
    assert "PermissionError" in site.as_person("bob", "python3 -c '%s'" % connect, check=False).text
    assert site.on(site.relay, "python3 -c '%s'" % connect).code == 0


def test_logins_are_nowhere_else(site):
    """In plain text only in the file of the registry, and in base64 only in the files of people."""
    tokens = json.loads(site.on(site.relay, "cat /etc/trainyard/registry/tokens.json").out)
    assert set(tokens) == {"trainyard-relay", "alice", "bob"} and all(
        len(token) == 32 for token in tokens.values()
    )
    path = site.secrets()
    for host in site.hosts:
        found = site.on(
            host,
            "rm -rf /run/user/2101; grep -rlsFf %s /etc /var/log /run /var/lib/trainyard /usr/local /root /home /tmp "
            "/srv/relay/relayed.json | sort; journalctl --quiet | grep -cFf %s || true"
            % (path, path),
        ).out.split()
        own = ["/etc/trainyard/registry/people/%s.json" % name for name in ("alice", "bob")]
        assert found == own + ["/etc/trainyard/registry/tokens.json"] * (host == site.relay) + [
            "0"
        ], (host, found)
    assert site.on(site.relay, "ls -A /run/trainyard/image_relay").out.split() == ["store"]


def test_a_login_shell_has_the_login(site):
    """Beside those for other registries."""
    site.on(site.other, "install -d -m 700 -o alice /run/user/2101 /run/user/2101/containers")
    other = json.dumps({"auths": {"r.example": {"auth": "YTpi"}}})
    site.as_person(
        "alice",
        "echo %s > /run/user/2101/containers/auth.json" % shlex.quote(other),
        host=site.other,
    )
    text = site.login_shell(
        "alice", "skopeo inspect docker://%s/site/tools:1" % REGISTRY, site.other
    ).out
    assert json.loads(text)["Digest"] == "sha256:" + site.digest("site/tools:1")
    assert site.on(
        site.other, "stat --format '%a %U' /run/user/2101/containers/auth.json"
    ).out.split() == ["600", "alice"]
    left = json.loads(site.on(site.other, "cat /run/user/2101/containers/auth.json").out)["auths"]
    assert left["r.example"] == {"auth": "YTpi"} and set(left) == {"r.example", REGISTRY}
    # Without a folder of the session, nothing is printed.
    assert site.login_shell("bob", "echo fine", site.other).text == "fine\n"


def test_podman_and_docker_trust_the_registry(site):
    auth = "/etc/trainyard/registry/people/alice.json"
    site.on(
        site.other,
        "mkdir -p /root/docker && cp %s /root/docker/config.json && "
        "podman --root /var/lib/docker/podman --runroot /run/podman pull --quiet --authfile %s %s/site/tools:1 && "
        "docker --config /root/docker pull --quiet %s/site/tools:1 && docker rmi %s/site/tools:1; rm -r /root/docker"
        % (auth, auth, REGISTRY, REGISTRY, REGISTRY),
    )
    site.on(
        site.other,
        "docker image ls --quiet; podman --root /var/lib/docker/podman --runroot /run/podman rmi --all --force; rm -rf /var/lib/docker/podman",
    )


def test_what_was_relayed(site):
    found = site.catalogue()
    assert list(found) == ["tools:1", "work:1", "archived:1", "carried:1", "plain:1"]
    tools, work = found["tools:1"], found["work:1"]
    # All architectures, and the digest of the source.
    assert tools["platforms"] == ["linux/amd64", "linux/arm64"] and tools["digest"] == tools[
        "source_digest"
    ] == "sha256:" + site.digest("site/tools:1")
    assert (
        tools["frameworks"] == {"PyTorch": "2.5.1+cu121"} and tools["versions"]["cuda"] == "12.4.1"
    )
    index = json.loads(
        site.skopeo("alice", "inspect", "--raw", "docker://%s/site/tools:1" % REGISTRY).out
    )
    for entry in index["manifests"]:
        site.skopeo(
            "alice", "inspect", "--raw", "docker://%s/site/tools@%s" % (REGISTRY, entry["digest"])
        )
    assert work["added"] == ["openssh-server", "sudo", "ipykernel"] and work["frameworks"] == {
        "TensorFlow": "2.15.0"
    }
    assert (
        work["versions"]["ipykernel"] == "6.29.5"
        and work["versions"]["python"] == "3.11"
        and work["digest"] != work["source_digest"]
    )
    # An archive has all platforms, too.
    assert found["carried:1"]["platforms"] == tools["platforms"]
    assert (
        found["carried:1"]["digest"]
        == found["carried:1"]["source_digest"]
        == "sha256:" + site.digest("site/carried:1")
    )
    assert found["archived:1"]["source"] == "/srv/archived.tar" and found["archived:1"][
        "frameworks"
    ] == {"PyTorch": "2.5.1+cu121"}


@pytest.fixture(scope="module")
def completed(site):
    """The folder of the completed image's files."""
    folder = "/var/lib/docker/completed"
    site.on(
        site.other,
        "rm -rf %s && mkdir %s && "
        "skopeo copy --quiet --insecure-policy --authfile /etc/trainyard/registry/people/alice.json docker://%s/site/work:1 dir:%s/image && "
        "mkdir %s/root && cd %s/image && "
        'python3 -c \'import json; print(*[layer["digest"][7:] for layer in json.load(open("manifest.json"))["layers"]])\' | '
        "xargs --max-args 1 tar --directory ../root --extract --file"
        % (folder, folder, REGISTRY, folder, folder, folder),
    )
    yield folder
    site.on(site.other, "rm -rf " + folder)


def test_programs_of_a_completed_image_were_not_root(site, completed):
    """Its root was an ID of the host that no account has. In the image, files belong to its
    root.
    """
    inside, outside, count = map(
        int, site.on(site.other, "cat %s/root/etc/who-completed" % completed).out.split()
    )
    assert (inside, outside, count) == (0, 2**28 - 2**16, 2**16)
    assert site.on(site.other, "stat --format %%u %s/root/usr/sbin/sshd" % completed).out == "0\n"
    assert site.on(site.relay, "test ! -e /srv/relay/build").code == 0


def test_the_completed_image_works(site, completed):
    root = completed + "/root"
    site.on(
        site.other,
        "chroot %s /usr/bin/python3 -c 'import ipykernel'; chroot %s /usr/bin/sudo --version"
        % (root, root),
    )
    # No keys that all containers would share, no password logins, nothing of the site's own files.
    assert site.on(site.other, "ls %s/etc/ssh | grep -c host || true" % root).out.strip() == "0"
    site.on(site.other, "chroot %s ssh-keygen -A" % root)
    settings = site.on(
        site.other, "chroot %s sh -c 'mkdir -p /run/sshd; /usr/sbin/sshd -T'" % root
    ).out
    assert (
        "passwordauthentication no" in settings
        and "kbdinteractiveauthentication no" in settings
        and "permitrootlogin without-password" in settings
    )
    for path in ("/etc/trainyard", "/run/trainyard", "/usr/sbin/policy-rc.d"):
        assert site.on(site.other, "test ! -e %s%s" % (root, path)).code == 0, path
    config = json.loads(
        site.skopeo("alice", "inspect", "--config", "docker://%s/site/work:1" % REGISTRY).out
    )
    assert config["config"]["Labels"]["trainyard.relay.source"] == site.outside + "/outside/work:1"
    assert all(
        "word-of-outside" not in json.dumps(part) for part in (config, config["config"].get("Env"))
    )
    # The configuration of the source stays.
    assert "CUDA_VERSION=12.4.1" in config["config"]["Env"]


def test_the_store_of_the_relay_is_empty(site):
    found = site.on(
        site.relay,
        "cat /srv/relay/work/overlay-images/images.json /srv/relay/work/overlay-containers/containers.json",
    ).out
    assert found.replace("\n", "") in ("[][]", "nullnull", "")
