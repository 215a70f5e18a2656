"""A registry of the site with a password: Debian's docker-registry with htpasswd and TLS.

The role pulls the base and removes the password.
"""

from __future__ import annotations

import json

import pytest

HOST = "training-image-a"
testinfra_hosts = ["ansible://" + HOST]
REGISTRY, PASSWORD, WRONG = "172.30.85.51:5444", "word-in-the-login", "another-word-in-the-login"
BASE = REGISTRY + "/site/base:1"
# The host already has the base's layers, so nothing is built and little is pulled.
SETTINGS = {
    "version": "0.1",
    "storage": {"filesystem": {"rootdirectory": "/srv/registry/data"}},
    "auth": {"htpasswd": {"realm": "site", "path": "/srv/registry/htpasswd"}},
    "http": {
        "addr": REGISTRY,
        "tls": {"certificate": "/srv/registry/cert.pem", "key": "/srv/registry/key.pem"},
    },
}
START = """
set -e
umask 077
mkdir -p /srv/registry /etc/docker/certs.d/%(registry)s
cd /srv/registry
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=registry -addext subjectAltName=IP:172.30.85.51 \\
    -keyout key.pem -out cert.pem 2> /dev/null
cp cert.pem /etc/docker/certs.d/%(registry)s/ca.crt
printf '%%s' '%(settings)s' > config.yml
echo "reader:$(python3 -W ignore -c 'import crypt; print(crypt.crypt("%(password)s", crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))')" > htpasswd
systemd-run --quiet --collect --unit site-registry docker-registry serve /srv/registry/config.yml
for attempt in 1 2 3 4 5 6 7 8 9 10; do openssl s_client -connect %(registry)s < /dev/null > /dev/null 2>&1 && break; sleep 0.5; done
export DOCKER_CONFIG=/srv/registry/client
echo '%(password)s' | docker login --username reader --password-stdin %(registry)s
docker tag trainyard-molecule/training-image-base:1 %(base)s
docker push --quiet %(base)s
docker image rm %(base)s
rm -r client
"""


@pytest.fixture(name="registry", scope="module")
def fixture_registry(host):
    host.run_expect(
        [0],
        START
        % {
            "registry": REGISTRY,
            "base": BASE,
            "password": PASSWORD,
            "settings": json.dumps(SETTINGS),
        },
    )
    yield
    host.run_expect(
        [0],
        "systemctl stop site-registry; docker image rm %s; rm -r /srv/registry /etc/docker/certs.d/%s"
        % (BASE, REGISTRY),
    )


def kept(host, word):
    """Return the files on the host that contain a word."""
    return host.run(
        "grep -rl -- %s /run/trainyard /var/lib/trainyard /var/log/trainyard /root /etc /var/tmp /tmp"
        % word
    ).stdout


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("password", [WRONG, PASSWORD])
def test_login(host, role, password):
    run = role(
        training_image_base=BASE,
        training_image_base_archive="",
        training_image_registry_login={
            "registry": REGISTRY,
            "username": "reader",
            "password": password,
        },
    )
    assert (run.code == 0) is (password == PASSWORD)
    assert (host.run("docker image inspect " + BASE).rc == 0) is (password == PASSWORD)
    if password == WRONG:
        assert (
            "'" + BASE + "' is not available on training-image-a" in run.text
            and "unauthorized" in run.text
            and "training_image_registry_login" in run.text
        )
    assert password not in run.text and kept(host, password) == ""
    # The base64 form of the password is also removed.
    assert host.run("ls /var/lib/trainyard/image/login").rc != 0
