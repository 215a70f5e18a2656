# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site's registry as a person uses it: what is read of names, logins and answers, then
questions by TLS to a server in its place.
"""

from __future__ import annotations

import http.server
import json
import re
import ssl
import subprocess
import threading

import pytest

from ansible_collections.trainyard.gpu.roles.host_library.files import _registry

LOGIN = json.dumps({"auths": {"front:5000": {"auth": "YW5uYTpzZWNyZXQ="}}})
BASIC = "Basic YW5uYTpzZWNyZXQ="


@pytest.mark.parametrize(
    "image, registry",
    [
        ("front:5000/anna/x:1", "front:5000"),
        ("registry.example.org/x", "registry.example.org"),
        ("localhost/x", "localhost"),
        ("site/tools:1", ""),
        ("tools:1", ""),
        ("", ""),
        ("front/x", ""),
    ],
)
def test_the_registry_of_a_name(image, registry):
    assert _registry.registry_of(image) == registry


@pytest.mark.parametrize(
    "image, registries, expected",
    [
        ("front:5000/anna/x:1", ["front:5000"], True),
        ("front:5000/anna/x:1", ["front:5000/anna/"], True),
        ("front:5000/anna/x:1", ["front:5000/site"], False),
        ("front:50001/x:1", ["front:5000"], False),
        ("front:5000/annabel/x", ["front:5000/anna"], False),
        ("front:5000/x", [], False),
        # A name without a registry is one of the host.
        ("site/tools:1", ["site"], False),
    ],
)
def test_what_may_be_used(image, registries, expected):
    assert _registry.is_allowed(image, registries) is expected


def test_a_login():
    assert _registry.login_of(LOGIN) == ("front:5000", BASIC)
    two = json.dumps({"auths": {"a:1": {"auth": "YQ=="}, "b:1": {"auth": "YQ=="}}})
    for text in (
        "",
        "{",
        "[]",
        "{}",
        '{"auths": {}}',
        two,
        '{"auths": {"a:1": {}}}',
        '{"auths": {"a:1": {"auth": ""}}}',
        '{"auths": {"a:1": {"auth": "a\\nb"}}}',
    ):
        with pytest.raises(_registry.RegistryError, match="your login for the registry is damaged"):
            _registry.login_of(text)


def test_why_there_is_no_login(tmp_path, monkeypatch):
    monkeypatch.setattr(_registry, "LOGINS", str(tmp_path / "people"))
    with pytest.raises(
        _registry.RegistryError, match="this cluster has no registry in which people have images"
    ):
        _registry.read_login("anna")
    (tmp_path / "people").mkdir()
    with pytest.raises(_registry.RegistryError, match="anna has no login"):
        _registry.read_login("anna")
    (tmp_path / "people/anna.json").mkdir()
    with pytest.raises(_registry.RegistryError, match="cannot be read: Is a directory"):
        _registry.read_login("anna")


def test_the_newest_is_first():
    names = [
        "f:5/a/x:1",
        "f:5/a/x:20260101-000000",
        "f:5/a/y:20261128-120000",
        "f:5/a/b:latest",
        "f:5/a/y:20261128-115959",
    ]
    assert _registry.newest_first(names) == [
        "f:5/a/y:20261128-120000",
        "f:5/a/y:20261128-115959",
        "f:5/a/x:20260101-000000",
        "f:5/a/b:latest",
        "f:5/a/x:1",
    ]


@pytest.mark.parametrize(
    "body, said",
    [
        (
            '{"errors": [{"code": "DENIED", "message": "the registry is full"}]}',
            "the registry is full",
        ),
        ('{"errors": [{"message": "a"}, {"message": "b"}]}', "a; b"),
        ("<html>", ""),
        ("{}", ""),
        ("[]", ""),
        ('{"errors": [{}]}', ""),
    ],
)
def test_what_a_registry_says(body, said):
    assert _registry.said_by(body) == said


@pytest.mark.parametrize(
    "link, path",
    [
        ('</v2/_catalog?last=b&n=1000>; rel="next"', "/v2/_catalog?last=b&n=1000"),
        ("<https://front:5000/v2/x?n=1>; rel=next", "/v2/x?n=1"),
        (None, ""),
        ("", ""),
        ('</v2/x>; rel="prev"', ""),
    ],
)
def test_pages(link, path):
    assert _registry.next_page(link) == path


# --- a server in the place of the registry ---


@pytest.fixture(scope="module", name="certificate")
def _certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(folder / "key"),
            "-out",
            str(folder / "ca.crt"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return folder


@pytest.fixture(name="front")
def _front(certificate, tmp_path, monkeypatch):
    """A registry. C(answers) has code, headers and body by method and path."""

    class Front:
        asked, answers = [], {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            Front.asked.append((self.command, self.path, self.headers["Authorization"]))
            code, headers, body = Front.answers.get(
                (self.command, self.path),
                (404, {}, '{"errors": [{"message": "repository name not known to registry"}]}'),
            )
            self.send_response(code)
            for name, value in dict(headers, **{"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(certificate / "ca.crt"), str(certificate / "key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Front.asked, Front.answers, Front.name = [], {}, "127.0.0.1:%d" % server.server_address[1]
    (tmp_path / "certs.d" / Front.name).mkdir(parents=True)
    (tmp_path / "certs.d" / Front.name / "ca.crt").write_text((certificate / "ca.crt").read_text())
    monkeypatch.setattr(_registry, "CERTIFICATES", str(tmp_path / "certs.d"))
    monkeypatch.setattr(_registry, "LOGINS", str(tmp_path))
    (tmp_path / "anna.json").write_text(LOGIN.replace("front:5000", Front.name))
    # As on a site with a proxy for other networks.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    yield Front
    server.shutdown()
    server.server_close()


def registry(front):
    return _registry.Registry(front.name, BASIC)


def names(*found):
    return json.dumps({"repositories": found})


def test_the_images_of_a_person(front):
    front.answers = {
        ("GET", "/v2/_catalog?n=1000"): (
            200,
            {"Link": '</v2/_catalog?last=anna%2Ftools&n=1000>; rel="next"'},
            names("ann/x", "anna/tools"),
        ),
        ("GET", "/v2/_catalog?last=anna%2Ftools&n=1000"): (
            200,
            {},
            names("anna/gone", "anna/removed", "annabel/x", "site/x"),
        ),
        ("GET", "/v2/anna/tools/tags/list"): (
            200,
            {},
            '{"name": "anna/tools", "tags": ["20261127-120000", "20261128-120000"]}',
        ),
        ("GET", "/v2/anna/gone/tags/list"): (200, {}, '{"name": "anna/gone", "tags": null}'),
    }
    assert _registry.saved_images("anna") == [
        "%s/anna/tools:20261128-120000" % front.name,
        "%s/anna/tools:20261127-120000" % front.name,
    ]
    assert {entry[2] for entry in front.asked} == {BASIC} and not any(
        "annabel" in entry[1] or "/ann/" in entry[1] for entry in front.asked
    )


def folders(*found):
    return json.dumps(
        [
            {"name": name, "type": "directory", "mtime": "Sun, 29 Nov 2026 02:00:00 GMT"}
            for name in found
        ]
        + [{"name": "link", "type": "file"}]
    )


def test_the_images_of_a_person_where_images_are_private(front):
    refused = (403, {}, '{"errors": [{"message": "%s"}]}' % _registry.PRIVATE)
    front.answers = {
        ("GET", "/v2/_catalog?n=1000"): refused,
        ("GET", "/own/anna/"): (200, {}, folders("tools", "team")),
        ("GET", "/own/anna/tools/"): (200, {}, folders("_layers", "_manifests", "_uploads")),
        ("GET", "/own/anna/team/"): (200, {}, folders("x")),
        ("GET", "/own/anna/team/x/"): (200, {}, folders("_manifests")),
        ("GET", "/v2/anna/tools/tags/list"): (200, {}, '{"tags": ["1"]}'),
        ("GET", "/v2/anna/team/x/tags/list"): (200, {}, '{"tags": ["2"]}'),
    }
    assert _registry.saved_images("anna") == [
        "%s/anna/team/x:2" % front.name,
        "%s/anna/tools:1" % front.name,
    ]
    front.answers = {("GET", "/v2/_catalog?n=1000"): refused}
    assert _registry.saved_images("anna") == []
    # A registry of the site that has no list for people.
    front.answers = {
        ("GET", "/v2/_catalog?n=1000"): (403, {}, '{"errors": [{"message": "for operators"}]}')
    }
    with pytest.raises(_registry.RegistryError, match="for operators"):
        _registry.saved_images("anna")


@pytest.mark.parametrize(
    "body, expected",
    [
        ('{"used_mib": 1536, "limit_mib": 102400}', (1536, 102400)),
        ('{"used_mib": 0, "limit_mib": null}', (0, None)),
    ],
)
def test_the_space_of_a_person(front, body, expected):
    front.answers = {("GET", "/trainyard/space"): (200, {}, body)}
    found = _registry.space("anna")
    assert (found["registry_used_mib"], found["registry_mib"]) == expected
    assert front.asked == [("GET", "/trainyard/space", BASIC)]


@pytest.mark.parametrize("code, body", [(200, "{}"), (200, "<html>"), (404, ""), (200, "[1]")])
def test_a_space_that_is_not_known(front, code, body):
    front.answers = {("GET", "/trainyard/space"): (code, {}, body)}
    with pytest.raises(_registry.RegistryError, match="the registry 127.0.0.1"):
        _registry.space("anna")


def test_a_push_is_tried_and_nothing_stays(front):
    front.answers = {
        ("POST", "/v2/anna/tools/blobs/uploads/"): (
            202,
            {"Location": "/v2/anna/tools/blobs/uploads/1?_state=x"},
            "",
        ),
        ("DELETE", "/v2/anna/tools/blobs/uploads/1?_state=x"): (204, {}, ""),
    }
    registry(front).check_write("anna/tools")
    assert [entry[0] for entry in front.asked] == ["POST", "DELETE"]


@pytest.mark.parametrize(
    "code, headers, body, said",
    [
        (
            403,
            {},
            '{"errors": [{"message": "the registry is full: delete images of yours, or tell the operator"}]}',
            "refuses it: the registry is full: delete images",
        ),
        (
            401,
            {},
            '{"errors": [{"message": "authentication required"}]}',
            "refuses it: it does not accept your login",
        ),
        (500, {}, "<html>", "HTTP status 500"),
        # The login is for this host only.
        (202, {"Location": "https://elsewhere.example.org/v2/"}, "", "leads to another host"),
    ],
)
def test_why_a_push_is_refused(front, code, headers, body, said):
    front.answers = {("POST", "/v2/anna/tools/blobs/uploads/"): (code, headers, body)}
    with pytest.raises(_registry.RegistryError, match=re.escape(said)) as told:
        registry(front).check_write("anna/tools")
    assert "secret" not in str(told.value) and "YW5u" not in str(told.value)


def test_a_login_goes_nowhere_else(front):
    front.answers = {
        ("GET", "/v2/_catalog?n=1000"): (302, {"Location": "https://%s/elsewhere" % front.name}, "")
    }
    with pytest.raises(_registry.RegistryError, match="HTTP status 302"):
        registry(front).images_of("anna")
    assert len(front.asked) == 1


def test_a_registry_that_does_not_answer(front, monkeypatch, tmp_path):
    with pytest.raises(
        _registry.RegistryError,
        match="the registry 127.0.0.1:1 does not answer: Connection refused",
    ):
        _registry.Registry("127.0.0.1:1", BASIC).check_write("anna/tools")
    front.answers = {("GET", "/v2/_catalog?n=1000"): (200, {}, "<html>")}
    with pytest.raises(_registry.RegistryError, match="answers with something else"):
        registry(front).images_of("anna")
    front.answers = {("GET", "/v2/_catalog?n=1000"): (200, {}, names("anna/x"))}
    monkeypatch.setattr(_registry, "LIST_SECONDS", 0)
    with pytest.raises(_registry.RegistryError, match="needs more than 0 s"):
        registry(front).images_of("anna")
    (tmp_path / "certs.d" / front.name / "ca.crt").write_text("damaged")
    with pytest.raises(_registry.RegistryError, match="ca.crt cannot be read"):
        registry(front)
    # Without its authority it could be anybody.
    monkeypatch.setattr(_registry, "CERTIFICATES", str(tmp_path / "none"))
    with pytest.raises(_registry.RegistryError, match="does not answer.*(?i:certificate)"):
        registry(front).images_of("anna")
