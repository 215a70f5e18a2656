"""Run by a person on a host: prints as JSON what that person gets of metrics, alerts, keys and
settings.

intruder.py HOST:PORT...: the ports are tried without a certificate, with one that the person has
made, and without TLS.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import socket
import ssl
import subprocess
import sys
import tempfile

FOLDERS = (
    "/etc/trainyard",
    "/var/lib/trainyard",
    "/var/lib/prometheus",
    "/run/trainyard",
    "/run/trainyard-queue",
)
PATHS = ("/metrics", "/api/v1/query?query=up", "/federate?match[]=up", "/api/v2/alerts")


def contexts(folder: str) -> list:
    """Return how to connect: without a certificate, with an own one, and without TLS."""
    key, certificate = folder + "/key.pem", folder + "/certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=monitoring-a".split()
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    found = []
    for own in (False, True):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if own:
            context.load_cert_chain(certificate, key)
        found.append(context)
    return [*found, None]


def answers(place: str, context) -> list[str]:
    """Return the paths of a port that give an answer."""
    name, port = place.rsplit(":", 1)
    found = []
    for path in PATHS:
        connection = (
            http.client.HTTPSConnection(name, int(port), timeout=5, context=context)
            if context
            else http.client.HTTPConnection(name, int(port), timeout=5)
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status < 400 and answer.read():
                found.append(place + path)
        except TimeoutError:
            # A packet filter drops it, for all paths.
            return found
        except (OSError, http.client.HTTPException):
            pass
        connection.close()
    return found


def sockets() -> list[str]:
    """Return the sockets of the daemons in the file system that take a connection."""
    with open("/proc/net/unix", encoding="utf-8") as stream:
        paths = {line.split()[7] for line in stream.readlines()[1:] if len(line.split()) > 7}
    found = []
    for path in sorted(paths):
        if not any(word in path for word in ("prometheus", "alertmanager", "trainyard")):
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as tried:
            tried.connect(path)
            found.append(path)
    return found


def files() -> list[str]:
    found = []
    for top in FOLDERS:
        for folder, _folders, names in os.walk(top):
            paths = [os.path.join(folder, name) for name in names]
            found += [path for path in paths if os.access(path, os.R_OK)]
    return sorted(found)


def processes() -> list[str]:
    """Return what the person can read of the daemons' processes: their variables, and the files
    that they have opened.
    """
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, KeyError):
            if pwd.getpwuid(os.stat("/proc/" + number).st_uid).pw_name != "prometheus":
                continue
            for name in ("environ", "maps"):
                with contextlib.suppress(OSError), open("/proc/%s/%s" % (number, name), "rb") as it:
                    found += [name] * bool(it.read(1))
            found += ["fd"] * bool(os.listdir("/proc/%s/fd" % number))
    return sorted(set(found))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = [answers(place, way) for way in contexts(folder) for place in sys.argv[1:]]
    journal = subprocess.run(
        ["journalctl", "--quiet", "--unit=prometheus*", "--unit=trainyard*", "--lines=5"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(
        json.dumps(
            {
                "answers": [path for paths in told for path in paths],
                "sockets": sockets(),
                "files": files(),
                "processes": processes(),
                "journal": journal.stdout,
            }
        )
    )


if __name__ == "__main__":
    main()
