# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives login links of the hub to people who are logged in on this host. `trainyard login` asks it.

It runs as the user of the hub. The kernel tells who is at the other end of the socket, so nobody
needs a password. A link is a file in a folder that only this user reads, with the checksum of its
token as its name. The hub removes it when it is used.
"""

import contextlib
import json
import os
import pwd
import socket
import struct
import sys
import time

import _instance

CONFIG = "/etc/trainyard/hub/hub.json"
SOCKET = "/run/trainyard-hub/login.sock"
CREDENTIALS = struct.Struct("3i")
#: Seconds in which a client has to take its answer.
PATIENCE = 5
#: Links of a person that are valid at a time.
MOST = 20


def config():
    with open(CONFIG, encoding="utf-8") as stream:
        return json.load(stream)


def name_of(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def new_link(settings, person, now):
    """Write the file of a new link and return its URL.

    What comes after # is not sent by browsers, so that no log has it.

    It begins with the name, which the page shows before it logs a browser in. The hub refuses a
    link with another name.
    """
    token = _instance.new_token()
    path = os.path.join(settings["links"], _instance.file_of(token))
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as stream:
        json.dump(
            {
                "person": person,
                "until": now + settings["link_seconds"],
                "seconds": settings["link_seconds"],
            },
            stream,
        )
    return "%s/hub/login#%s" % (settings["url"], _instance.of_link(person, token))


def remove_old(settings, now):
    for entry in os.scandir(settings["links"]):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat().st_mtime + settings["link_seconds"] < now:
                os.unlink(entry.path)


def refuse_many(requests, person, settings, now):
    """Refuse too many links of a person. C(requests) has the times of each person's last links."""
    recent = [
        moment for moment in requests.get(person, []) if moment + settings["link_seconds"] > now
    ]
    if len(recent) >= MOST:
        raise _instance.RequestError(
            "you have asked for %d links within %d seconds; use one of them, or wait"
            % (MOST, settings["link_seconds"])
        )
    requests[person] = recent + [now]


def answer(client, requests):
    _pid, uid, _gid = CREDENTIALS.unpack(
        client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    )
    now = time.time()
    try:
        # Read each time: the list of people changes while this runs.
        settings = config()
        remove_old(settings, now)
        person = _instance.asked_by(name_of(uid), settings["people"])
        if settings["authenticator"] != "link":
            return {
                "error": "this hub has no links: it knows people by %s. Open %s, and log in there"
                % (settings["authenticator"], settings["url"])
            }
        refuse_many(requests, person, settings, now)
        return {"url": new_link(settings, person, now), "seconds": settings["link_seconds"]}
    except _instance.RequestError as error:
        return {"error": str(error)}


def main():
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(SOCKET)
    # Everybody may connect. The answer depends on the uid.
    os.chmod(SOCKET, 0o666)
    server.listen(64)
    requests = {}
    while True:
        client, _address = server.accept()
        client.settimeout(PATIENCE)
        with client, contextlib.suppress(OSError):
            client.sendall(json.dumps(answer(client, requests)).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
