# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identities of instances: names and certificates, and the connection that takes a route with it.

The proxy itself is in scenario workbench.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import types
from pathlib import Path

import pytest
from test_notebook import load, stand_in

FILES = Path(__file__).resolve().parents[4] / "roles/jupyterhub/files"
_identity = load("_identity")
# aiohttp is not on this machine.
_watch = load("_watch", aiohttp=stand_in("aiohttp"), _identity=_identity)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "identities"
    _identity.ensure(str(path))
    return path


def server_context(identity, tmp_path):
    """As tornado makes it of the files of an instance."""
    for name in ("certificate", "key", "authority"):
        (tmp_path / name).write_text(identity[name])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    context.load_verify_locations(tmp_path / "authority")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def hello(client, server, name):
    """Do the handshake of TLS in memory. An error of either side is raised."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=name),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _round in range(5):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


@pytest.mark.parametrize(
    "address, packed",
    [("192.0.2.11", "c000020b"), ("2001:db8::b", "20010db800000000000000000000000b")],
)
def test_the_host_of_a_route_has_name_and_address(address, packed):
    name = _identity.new_name()
    host = _identity.route_host(name, address)
    assert host == packed + "." + name and _identity.of_route_host(host) == (name, address)
    assert len(host.partition(".")[0]) <= 63 and name != _identity.new_name()


@pytest.mark.parametrize(
    "host",
    [
        "",
        None,
        "192.0.2.11",
        "c000020b.instance.invalid",
        "c000020.%s.instance.invalid" % ("a" * 32),
        "c000020b.%s.instance.invalid.example.org" % ("a" * 32),
        "c000020b.%sainstancebinvalid" % ("a" * 32),
    ],
)
def test_other_hosts_are_no_instances(host):
    assert _identity.of_route_host(host) is None


def test_the_proxy_reads_routes_as_the_hub_writes_them():
    pattern = re.search(
        r"^const ROUTE = /(.*)/;$", (FILES / "instance_tls.cjs").read_text(), re.MULTILINE
    ).group(1)
    name = _identity.new_name()
    found = re.match(pattern, _identity.route_host(name, "192.0.2.11"))
    assert found and found.groups() == ("c000020b", name)
    assert re.match(pattern, _identity.route_host(name, "2001:db8::b")) and not re.match(
        pattern, "hub.example.org"
    )


def test_files_are_private_and_stay(folder):
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == dict.fromkeys(
        ["authority.key", "authority.pem", "proxy.key", "proxy.pem"], 0o600
    )
    assert folder.stat().st_mode & 0o777 == 0o700
    before = {path.name: path.read_text() for path in folder.iterdir()}
    _identity.ensure(str(folder))
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_a_new_authority_gets_a_new_certificate_of_the_proxy(tmp_path):
    folder = tmp_path / "identities"
    _identity.ensure(str(folder))
    former = (folder / "proxy.pem").read_text()
    (folder / "authority.pem").unlink()
    _identity.ensure(str(folder))
    assert (folder / "proxy.pem").read_text() != former
    _identity.client_context(str(folder))


def test_only_the_instance_of_the_route_is_believed(folder, tmp_path):
    """Also another instance on the same host has a certificate of the same authority."""
    alice, bob = _identity.new_identity(str(folder)), _identity.new_identity(str(folder))
    client = _identity.client_context(str(folder))
    hello(client, server_context(alice, tmp_path), alice["name"])
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        hello(client, server_context(bob, tmp_path), alice["name"])


def test_an_instance_answers_the_proxy_only(folder, tmp_path):
    """Nobody without a certificate, and nobody with the one of another instance."""
    alice, bob = _identity.new_identity(str(folder)), _identity.new_identity(str(folder))
    server = server_context(alice, tmp_path)
    client = ssl.create_default_context(cadata=alice["authority"])
    with pytest.raises(ssl.SSLError, match="(?i)peer did not return a certificate"):
        hello(client, server, alice["name"])
    (tmp_path / "bob.pem").write_text(bob["certificate"] + bob["key"])
    client.load_cert_chain(tmp_path / "bob.pem")
    with pytest.raises(
        ssl.SSLError, match="(?i)unsuitable certificate purpose|certificate verify failed"
    ):
        hello(client, server, alice["name"])


def test_the_proxy_cannot_pass_for_an_instance(folder, tmp_path):
    certificate, key = ((folder / ("proxy." + end)).read_text() for end in ("pem", "key"))
    identity = {
        "certificate": certificate,
        "key": key,
        "authority": (folder / "authority.pem").read_text(),
    }
    with pytest.raises(ssl.SSLCertVerificationError):
        hello(
            _identity.client_context(str(folder)),
            server_context(identity, tmp_path),
            "proxy.instance.invalid",
        )


class Proxy:
    """What the watch asks of the proxy."""

    def __init__(self):
        self.routes, self.fails = {"/user/alice/"}, 0

    async def add_user(self, user, name):
        self.routes.add("/user/alice/")

    async def delete_route(self, path):
        if self.fails:
            self.fails -= 1
            raise OSError("the proxy starts again")
        self.routes.discard(path)


class Host:
    """Programs on the port of an instance, one after the other."""

    def __init__(self, tmp_path):
        self.tmp_path, self.server, self.port, self.writers, self.lines = tmp_path, None, 0, [], []

    async def begin(self, identity):
        async def accept(reader, writer):
            self.writers.append(writer)
            line = await reader.readline()
            self.lines += [line] if line else []

        self.server = await asyncio.start_server(
            accept, "127.0.0.1", self.port, ssl=server_context(identity, self.tmp_path)
        )
        self.port = self.server.sockets[0].getsockname()[1]

    async def end(self):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


async def comes(condition, seconds=5):
    for _try in range(seconds * 50):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def watched(folder, host, proxy, story):
    identity = _identity.new_identity(str(folder))
    await host.begin(identity)
    asked = []

    async def poll():
        asked.append(1)

    server = types.SimpleNamespace(
        ip=_identity.route_host(identity["name"], "127.0.0.1"), port=host.port
    )
    spawner = types.SimpleNamespace(
        user=types.SimpleNamespace(settings={"proxy": proxy}),
        name="",
        server=server,
        is_lost=False,
        ready=True,
        proxy_spec="/user/alice/",
        _log_name="alice",
        poll_and_notify=poll,
    )
    task = asyncio.ensure_future(_watch.watch(spawner, _identity.client_context(str(folder))))
    try:
        assert await comes(lambda: host.writers)
        await story(identity, spawner, asked)
    finally:
        task.cancel()
        await host.end()


def test_the_route_goes_with_the_program_and_comes_back(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(_watch, "RETRY_SECONDS", 0.1)
    host, proxy = Host(tmp_path), Proxy()

    async def story(identity, spawner, asked):
        assert proxy.routes and not spawner.is_lost
        await host.end()
        assert await comes(lambda: not proxy.routes) and spawner.is_lost
        assert await comes(lambda: asked)
        # Another person takes the port, with an identity of their own.
        await host.begin(_identity.new_identity(str(folder)))
        await asyncio.sleep(0.5)
        assert not proxy.routes and host.lines == []
        await host.end()
        await host.begin(identity)
        assert await comes(lambda: proxy.routes) and not spawner.is_lost
        # Less often than it is tried.
        assert len(asked) < 6

    asyncio.run(watched(folder, host, proxy, story))


def test_a_route_is_removed_again_if_the_proxy_does_not_answer(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(_watch, "RETRY_SECONDS", 0.1)
    host, proxy = Host(tmp_path), Proxy()
    proxy.fails = 2

    async def story(_identity_of_it, spawner, _asked):
        await host.end()
        assert await comes(lambda: not proxy.routes) and spawner.is_lost and proxy.fails == 0

    asyncio.run(watched(folder, host, proxy, story))


def test_slurm_is_asked_less_and_less_often():
    assert [tries for tries in range(1, 40) if _watch.has_to_ask(tries)] == [1, 2, 4, 8, 16, 32]


def test_an_address_of_version_6_is_a_host():
    assert (
        _watch.url_of("2001:db8::b", 30001, "/user/a/api")
        == "https://[2001:db8::b]:30001/user/a/api"
    )
