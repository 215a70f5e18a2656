# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections of the hub to instances. One stays open for each instance: when it breaks, the route of the instance goes."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket

import _identity
import aiohttp

LOG = logging.getLogger("trainyard")
#: Seconds for a connection, between two tries, and after one that broke.
CONNECT_SECONDS, RETRY_SECONDS, PAUSE_SECONDS = 3, 2, 0.2
ANSWER_SECONDS = 10
#: A host that is gone closes no connection. These notice it after 4 seconds.
KEEPALIVE = ((socket.SO_KEEPALIVE, socket.SOL_SOCKET, 1), (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP, 2),
             (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP, 1), (socket.TCP_KEEPCNT, socket.IPPROTO_TCP, 2))


@functools.lru_cache
def context_of(folder):
    return _identity.client_context(folder)


def url_of(address, port, path):
    host = "[%s]" % address if ":" in address else address
    return "https://%s:%d%s" % (host, port, path)


async def answer(url, name, context):
    """Return the answer of an instance that proves its name, or None. An error of the server is none."""
    patience = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=patience) as session:
            async with session.get(url, ssl=context, server_hostname=name, allow_redirects=False) as found:
                return found if found.status < 500 else None
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        LOG.info("%s as %s: %s", url, name, error)
        return None


async def connect(server, context):
    """Return a connection to an instance that has proved its name, or None."""
    found = _identity.of_route_host(server.ip)
    if not found:
        return None
    name, address = found
    opening = asyncio.open_connection(address, server.port, ssl=context, server_hostname=name)
    try:
        reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
    except (OSError, asyncio.TimeoutError) as error:
        LOG.info("%s is not at port %d of %s: %s", name, server.port, address, error or "no answer")
        return None
    for option, level, value in KEEPALIVE:
        writer.get_extra_info("socket").setsockopt(level, option, value)
    return reader, writer


async def until_it_breaks(connection):
    """Wait for the end of a connection. The instance has nothing to say: no request was sent."""
    reader, writer = connection
    try:
        await reader.read(1)
    except OSError:
        # A keepalive without an answer, or a reset.
        pass
    finally:
        writer.close()


def has_to_ask(tries):
    """Return whether Slurm is asked at this try. Less and less often: the hub polls each instance anyway."""
    return tries & (tries - 1) == 0


async def watch(spawner, context):
    """Keep the route of an instance only while its program proves the name of this start."""
    proxy, tries, is_routed = spawner.user.settings["proxy"], 0, True
    asking = set()
    while True:
        connection = await connect(spawner.server, context) if spawner.server else None
        if connection:
            if spawner.is_lost:
                LOG.warning("%s answers again", spawner._log_name)
                spawner.is_lost = False
                # JupyterHub adds the first route of a start itself.
                if spawner.ready:
                    await added(proxy, spawner)
            tries, is_routed = 0, True
            await until_it_breaks(connection)
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        if not spawner.is_lost:
            LOG.warning("%s does not prove its identity: its route is removed", spawner._log_name)
        # From here on nobody adds the route.
        spawner.is_lost = True
        is_routed = is_routed and not await removed(proxy, spawner)
        tries += 1
        if has_to_ask(tries):
            # In a task of its own: if the job has ended, it ends this one.
            task = asyncio.ensure_future(spawner.poll_and_notify())
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.sleep(RETRY_SECONDS)


async def added(proxy, spawner):
    try:
        await proxy.add_user(spawner.user, spawner.name)
    except Exception:
        # The hub adds missing routes each half minute.
        LOG.exception("The proxy does not take the route of %s", spawner._log_name)


async def removed(proxy, spawner):
    """Remove the route. Return whether the proxy has none any more."""
    try:
        await proxy.delete_route(spawner.proxy_spec)
    except Exception:
        LOG.exception("The proxy does not remove the route of %s", spawner._log_name)
        return False
    return True
