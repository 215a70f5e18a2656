"""Settings of the hub that few sites need: other ways to log in, each with a server (LDAP by
Debian's slapd, PAM, OpenID Connect), and one name for all people.
"""

from __future__ import annotations

import re
import shlex
import socket
import ssl
from pathlib import Path

import pytest
from conftest import Cluster
from test_2_hub import SMALL, Hub

pytestmark = pytest.mark.acceptance
ROLE = "jupyterhub"
HOST = Cluster.head
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
HUB = "172.30.104.21"
PROVIDER = "http://%s:8090" % HUB
# It is unpacked, so that nothing of it stays installed. carol is not one of the people of the
# cluster.
SLAPD = r"""
set -eu
mkdir -p /srv/logins/ldap/root /srv/logins/ldap/data
cd /srv/logins/ldap
apt-get --quiet --quiet update
apt-get --quiet --quiet download $(apt-get --simulate --no-install-recommends install slapd | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
for file in *.deb; do dpkg --extract "$file" root; done
cat > slapd.conf << 'END'
include /srv/logins/ldap/root/etc/ldap/schema/core.schema
include /srv/logins/ldap/root/etc/ldap/schema/cosine.schema
include /srv/logins/ldap/root/etc/ldap/schema/inetorgperson.schema
modulepath /srv/logins/ldap/root/usr/lib/ldap
moduleload back_mdb
database mdb
suffix "dc=example,dc=org"
directory /srv/logins/ldap/data
access to attrs=userPassword by anonymous auth by * none
access to * by * read
END
{
  printf 'dn: dc=example,dc=org\nobjectClass: dcObject\nobjectClass: organization\no: site\ndc: example\n\n'
  printf 'dn: ou=people,dc=example,dc=org\nobjectClass: organizationalUnit\nou: people\n\n'
  for name in alice carol; do
    printf 'dn: uid=%s,ou=people,dc=example,dc=org\nobjectClass: inetOrgPerson\nuid: %s\ncn: %s\nsn: %s\nuserPassword: word of %s\n\n' \
      $name $name $name $name $name
  done
} > people.ldif
libraries=$(echo root/usr/lib/*-linux-gnu)
LD_LIBRARY_PATH=$PWD/$libraries root/usr/sbin/slapadd -f slapd.conf -l people.ldif
systemd-run --quiet --unit=test-ldap --setenv=LD_LIBRARY_PATH="$PWD/$libraries" "$PWD/root/usr/sbin/slapd" -d 0 -h ldap://127.0.0.1:3389 -f "$PWD/slapd.conf"
"""


@pytest.fixture(scope="module")
def settings(cluster, role, playbook):
    """Change variables of the role.

    At the end they are the usual ones, on all hosts: each name of the hub has an authority of its
    own.
    """

    def change(**variables):
        done = role(**variables)
        assert done.code == 0, done.text[-3000:]
        return Hub(cluster)

    cluster.on(cluster.head, "mkdir -p /srv/logins")
    yield change
    assert playbook("workbench.yml").code == 0
    cluster.on(
        cluster.head,
        "systemctl stop test-ldap test-oidc; rm -rf /srv/logins /etc/pam.d/trainyard-test",
        check=False,
    )


@pytest.fixture(scope="module")
def ways(settings):
    return lambda kind, **options: settings(
        jupyterhub_authenticator=kind, jupyterhub_authenticator_options=options
    )


def by_password(hub, name, password):
    session = hub.nobody()
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', session.ask("/hub/login").text).group(1)
    answer = session.ask(
        "/hub/login?next=", "POST", {"_xsrf": xsrf, "username": name, "password": password}, FORM
    )
    return (
        answer.code,
        answer.url.partition(hub.url)[2]
        if answer.code == 200
        else answer.url.partition(hub.url)[2].partition("?")[0],
    )


def judge(hub):
    """alice with her password, and nobody else: neither with another password nor somebody who is
    not one of the people of the cluster.
    """
    assert by_password(hub, "alice", "word of alice") == (200, "/hub/home")
    for name, password in (
        ("alice", "word of carol"),
        ("alice", ""),
        ("carol", "word of carol"),
        ("bob", "word of alice"),
        ("root", "word of alice"),
    ):
        assert by_password(hub, name, password) == (403, "/hub/login"), (name, password)


def test_ldap(cluster, ways):
    cluster.on(cluster.head, SLAPD)
    judge(
        ways(
            "ldap",
            server_address="127.0.0.1",
            server_port=3389,
            tls_strategy="insecure",
            bind_dn_template=["uid={username},ou=people,dc=example,dc=org"],
        )
    )
    # The server knows carol: the hub is what refuses her.
    bind = "import ldap3; print(ldap3.Connection(ldap3.Server('127.0.0.1', 3389), 'uid=carol,ou=people,dc=example,dc=org', 'word of carol').bind())"
    assert (
        cluster.on(
            cluster.head, '/usr/local/lib/trainyard/hub/environment/bin/python -c "%s"' % bind
        ).out
        == "True\n"
    )
    cluster.on(cluster.head, "systemctl stop test-ldap")
    assert by_password(Hub(cluster), "alice", "word of alice")[0] >= 400


def test_pam(cluster, ways):
    cluster.on(
        cluster.head,
        "printf '%s' > /srv/logins/check && chmod 755 /srv/logins/check && printf '%s' > /etc/pam.d/trainyard-test"
        % (
            '#!/bin/sh\\n[ "$(tr -d "\\\\0")" = "word of $PAM_USER" ]\\n',
            "auth required pam_exec.so expose_authtok quiet /srv/logins/check\\naccount required pam_permit.so\\n",
        ),
    )
    judge(ways("pam", service="trainyard-test"))


def test_openid_connect(cluster, ways):
    text = Path(__file__).with_name("oidc_provider.py").read_text(encoding="utf-8")
    cluster.on(
        cluster.head,
        "printf %%s %s > /srv/logins/provider.py && systemd-run --quiet --unit=test-oidc python3 /srv/logins/provider.py "
        "172.30.104.21 8090 secret-of-site /srv/logins/who" % shlex.quote(text),
    )
    options = {
        "client_id": "hub",
        "client_secret": "secret-of-site",
        "authorize_url": PROVIDER + "/authorize",
        "token_url": PROVIDER + "/token",
        "userdata_url": PROVIDER + "/userinfo",
        "username_claim": "preferred_username",
        "scope": ["openid"],
        "oauth_callback_url": Hub(cluster).url + "/hub/oauth_callback",
    }

    def log_in(hub, name):
        cluster.on(cluster.head, "echo %s > /srv/logins/who" % name)
        answer = hub.nobody().ask("/hub/oauth_login?next=")
        return answer.code, answer.url.partition(hub.url)[2].partition("?")[0]

    hub = ways("oidc", **options)
    assert log_in(hub, "alice") == (200, "/hub/home")
    assert log_in(hub, "carol") == (403, "/hub/oauth_callback") and log_in(hub, "root")[0] == 403
    # A secret that the provider does not know, and which nothing shows.
    hub = ways("oidc", **dict(options, client_secret="another-secret"))
    assert log_in(hub, "alice")[0] >= 400
    assert (
        "another-secret"
        not in cluster.on(cluster.head, "journalctl --no-pager --output=cat; ps -ef").out
    )


# A certificate of the site for the hub, with the serial number $1, and its authority, which is made
# once.
SITE_CERTIFICATE = """
mkdir -p /srv/logins && cd /srv/logins
test -e ca.key || openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=authority 2> /dev/null
openssl req -newkey rsa:2048 -nodes -keyout site.key -subj /CN=hub -out site.csr 2> /dev/null
printf 'subjectAltName = IP:172.30.104.21, DNS:hub.test, DNS:*.hub.test' > site.ext
openssl x509 -req -in site.csr -CA ca.pem -CAkey ca.key -set_serial $1 -days 30 -extfile site.ext -out certificate.pem 2> /dev/null
chmod 600 site.key
ln -sf certificate.pem site.pem
"""


def test_a_certificate_of_the_site(cluster, playbook, settings):
    former = Hub(cluster)
    variables = {
        "jupyterhub_tls_certificate": "/srv/logins/site.pem",
        "jupyterhub_tls_key": "/srv/logins/site.key",
        "jupyterhub_tls_ca": "/data1/share/ca.pem",
    }
    done = playbook("workbench.yml", **variables)
    assert (
        done.code == 2
        and "jupyterhub_tls_certificate: '/srv/logins/site.pem' is not a file on host workbench-a; copy it there"
        in done.text
    )
    assert former.nobody().ask("/hub/health").code == 200

    def served(hub):
        context = ssl.create_default_context(cadata=hub.ca)
        with (
            socket.create_connection((HUB, 443)) as plain,
            context.wrap_socket(plain, server_hostname=HUB) as connection,
        ):
            return connection.getpeercert()["serialNumber"]

    try:
        cluster.on(cluster.head, "set -- 4660; %s cp ca.pem /data1/share/ca.pem" % SITE_CERTIFICATE)
        assert playbook("workbench.yml", **variables).code == 0
        hub = Hub(cluster)
        hub.ca = cluster.on(cluster.head, "cat /srv/logins/ca.pem").out
        assert served(hub) == "1234"
        with pytest.raises(ssl.SSLCertVerificationError):
            served(former)
        # Servers of instances ask the hub who a browser is, and have to trust it.
        alice = hub.program("alice")
        for host in cluster.hosts:
            with cluster.out_of_service(*(each for each in cluster.hosts if each != host)):
                assert alice.start(
                    "alice", "sited", display_name="sited", user_options=SMALL
                ).code in (201, 202)
                url = alice.is_ready("alice", "sited")["url"]
                assert hub.browser("alice").ask(url + "lab").code == 200
                alice.stop("alice", "sited")
                cluster.wait("the end", lambda: alice.server("alice", "sited") is None)
        # Renewed, which another run of the playbook serves.
        assert playbook("workbench.yml", **variables).changed == 0
        cluster.on(cluster.head, "set -- 22136; %s" % SITE_CERTIFICATE)
        assert served(hub) == "1234"
        done = playbook("drift.yml", **variables)
        assert "trainyard-hub-proxy.service" in done.text
        done = playbook("workbench.yml", **variables)
        assert (done.code, done.changed) == (0, 2) and served(hub) == "5678"
        # A key of another certificate: the hub runs, and nobody reaches it.
        cluster.on(
            cluster.head,
            "cd /srv/logins && cp site.key good.key && openssl genrsa -out site.key 2048 2> /dev/null && echo >> certificate.pem",
        )
        done = playbook("workbench.yml", **variables)
        assert (
            done.code == 2
            and "https://172.30.104.21/hub/health gives" in done.text
            and "a key that does not belong to the certificate" in done.text
        )
        cluster.on(cluster.head, "cd /srv/logins && mv good.key site.key")
        assert playbook("workbench.yml", **variables).code == 0 and served(hub) == "5678"
    finally:
        assert playbook("workbench.yml").code == 0
        cluster.on(cluster.head, "rm -f /data1/share/ca.pem")
    assert former.nobody().ask("/hub/health").code == 200


def test_one_name_for_all(cluster, settings):
    """The other way round: people who trust each other need no wildcard in DNS."""
    hub = settings(
        jupyterhub_subdomains=False, jupyterhub_url="", jupyterhub_accept_shared_origin=True
    )
    assert hub.url == "https://" + HUB and not hub.names
    alice = hub.program("alice")
    try:
        assert alice.start("alice", "shared", display_name="shared", user_options=SMALL).code in (
            201,
            202,
        )
        alice.is_ready("alice", "shared")
        answer = hub.browser("alice").ask("/user/alice/shared/lab")
        assert (answer.code, answer.url.partition("?")[0]) == (
            200,
            hub.url + "/user/alice/shared/lab",
        ) and "jupyter-config-data" in answer.text
        assert hub.browser("bob").ask("/user/alice/shared/lab").code == 403
        assert "shared" in hub.browser("alice").ask("/services/jobs/").text
    finally:
        alice.stop("alice", "shared")
    cluster.nothing_left("alice")
