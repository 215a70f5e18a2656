# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections of the hub to instances.

One stays open for each instance. When it breaks, the route of the instance is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import typing

import _identity
import aiohttp

if typing.TYPE_CHECKING:
    from jupyterhub.objects import Server
    from jupyterhub.proxy import Proxy
    from trainyard_hub import InstanceSpawner

LOG = logging.getLogger("trainyard")
#: Seconds for a connection, between two tries, and after one that broke.
CONNECT_SECONDS, RETRY_SECONDS, PAUSE_SECONDS = 3, 2, 0.2
ANSWER_SECONDS = 10
#: A host that is gone closes no connection. The kernel notices it after 4 seconds.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)
Connection = typing.Tuple[asyncio.StreamReader, asyncio.StreamWriter]


@functools.lru_cache
def context_of(folder: str) -> ssl.SSLContext:
    return _identity.client_context(folder)


def url_of(address: str, port: int, path: str) -> str:
    host = "[%s]" % address if ":" in address else address
    return "https://%s:%d%s" % (host, port, path)


async def answer(url: str, name: str, context: ssl.SSLContext) -> aiohttp.ClientResponse | None:
    """Return the answer of an instance that proves its name, or None.

    An error of the server is no answer.
    """
    patience = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    options = {"ssl": context, "server_hostname": name, "allow_redirects": False}
    try:
        async with aiohttp.ClientSession(timeout=patience) as session:
            async with session.get(url, **options) as found:
                return found if found.status < 500 else None
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        LOG.info("%s as %s: %s", url, name, error)
        return None


async def connect(server: Server, context: ssl.SSLContext) -> Connection | None:
    """Return a connection to an instance that has proved its name, or None."""
    found = _identity.of_route_host(server.ip)
    if not found:
        return None
    name, address = found
    opening = asyncio.open_connection(address, server.port, ssl=context, server_hostname=name)
    try:
        reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError) as error:
        reason = str(error) or "no answer"
        LOG.info("%s is not at port %d of %s: %s", name, server.port, address, reason)
        return None
    for level, option, value in KEEPALIVE:
        writer.get_extra_info("socket").setsockopt(level, option, value)
    return reader, writer


async def until_it_breaks(connection: Connection) -> None:
    """Wait for the end of a connection. The instance sends nothing, as no request was sent."""
    reader, writer = connection
    try:
        # A keepalive without an answer is an error.
        with contextlib.suppress(OSError):
            await reader.read(1)
    finally:
        writer.close()


def has_to_ask(tries: int) -> bool:
    """Return whether to ask Slurm at this try: less and less often, as the hub polls anyway."""
    return tries & (tries - 1) == 0


async def add_route(proxy: Proxy, spawner: InstanceSpawner) -> None:
    try:
        await proxy.add_user(spawner.user, spawner.name)
    except Exception:
        # The hub adds missing routes each half minute.
        LOG.exception("The proxy does not add the route of %s", spawner._log_name)


async def remove_route(proxy: Proxy, spawner: InstanceSpawner) -> bool:
    """Remove the route. Return whether the proxy has none any more."""
    try:
        await proxy.delete_route(spawner.proxy_spec)
    except Exception:
        LOG.exception("The proxy does not remove the route of %s", spawner._log_name)
        return False
    return True


async def believe(proxy: Proxy, spawner: InstanceSpawner) -> None:
    """Give a lost instance its route again."""
    if not spawner.is_lost:
        return
    LOG.warning("%s proves its identity again", spawner._log_name)
    spawner.is_lost = False
    # JupyterHub adds the first route of a start itself.
    if spawner.ready:
        await add_route(proxy, spawner)


async def watch(spawner: InstanceSpawner, context: ssl.SSLContext) -> None:
    """Keep the route of an instance only while its program proves the name of this start."""
    proxy, polls = spawner.user.settings["proxy"], set()
    tries, has_route = 0, True
    while True:
        connection = await connect(spawner.server, context) if spawner.server else None
        if connection:
            tries, has_route = 0, True
            await believe(proxy, spawner)
            await until_it_breaks(connection)
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        if not spawner.is_lost:
            LOG.warning("%s does not prove its identity: removing its route", spawner._log_name)
        # From now on the hub does not add the route.
        spawner.is_lost = True
        if has_route:
            has_route = not await remove_route(proxy, spawner)
        tries += 1
        if has_to_ask(tries):
            # In a separate task, because the end of the job cancels this one.
            poll = asyncio.ensure_future(spawner.poll_and_notify())
            polls.add(poll)
            poll.add_done_callback(polls.discard)
        await asyncio.sleep(RETRY_SECONDS)
