# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the services of the training container beside its sshd.

The entrypoint of the image starts it.

    supervisor FOLDER    keeps the services of config.json, which is beside this program, running; FOLDER gets status.json

It notices a new config.json, token or certificate by itself, and restarts the services that they
concern. A service has to stay in the foreground. It may listen on its own address and on loopback
addresses only, because the container has the network of the host. This runs in training images, so
it is Python 3.6 with only the standard library.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import services

HERE = os.path.dirname(os.path.abspath(__file__))
LOOK_SECONDS = 0.5
#: Until a service that has ended is started again, and until one that does not end by itself is
#: killed.
RESTART_SECONDS, STOP_SECONDS = 2, 8
#: Seconds between two looks at the sockets of a service that is ready. Until then every look
#: counts.
SOCKET_SECONDS = 5
#: In the environment of a service and of all that it starts.
MARK = "TRAINYARD_SERVICE"
#: State of a socket in the tables of the kernel.
LISTENING = "0A"
#: A line of a service that is longer than this becomes several.
LINE_BYTES = 8192


# --- pure functions ---


def address_of(digits):
    """Return the address in a table of /proc/net: words of 32 bits in the order of the machine."""
    words = struct.unpack(">%dI" % (len(digits) // 8), bytes.fromhex(digits))
    found = ipaddress.ip_address(struct.pack("=%dI" % len(words), *words))
    return getattr(found, "ipv4_mapped", None) or found


def listeners(table):
    """Return {inode: (address, port)} of the listening sockets in /proc/net/tcp or tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTENING:
            digits, _colon, port = fields[1].partition(":")
            found[fields[9]] = (address_of(digits), int(port, 16))
    return found


def judged(sockets, address, port):
    """Return (whether one of the sockets is that of the service, a text about one that is open to
    others, or '').
    """
    own = ipaddress.ip_address(address)
    opened = sorted(
        "%s port %d" % socket
        for socket in sockets
        if socket[0] != own and not socket[0].is_loopback
    )
    return (own, port) in sockets, opened[0] if opened else ""


def without(token, line):
    """Return a line of a service without the token: old releases of Jupyter log addresses
    with it.
    """
    return line.replace(token, b"(token)") if token else line


def is_marked(environment, name):
    """Return whether an environment is that of a service, or of any one if there is no name."""
    expected = ("%s=%s" % (MARK, name)).encode()
    return any(
        entry == expected or not name and entry.startswith(expected)
        for entry in environment.split(b"\0")
    )


# --- functions with side effects ---

SAYING = threading.Lock()


def say(name, line):
    with SAYING:
        sys.stdout.buffer.write(name.encode() + b": " + line.rstrip(b"\r\n") + b"\n")
        sys.stdout.buffer.flush()


def read_bytes(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def stamp(path):
    """Return what changes with a file."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_ino, found.st_mtime_ns, found.st_size]


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_of(pid):
    fields = read_bytes("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    return int(fields[3]) if len(fields) > 3 else 0


def sockets_of(session):
    """Return the listening (address, port) of all processes of a session."""
    inodes = set()
    for pid in processes():
        if session_of(pid) != session:
            continue
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc/%d/fd" % pid):
                with contextlib.suppress(OSError):
                    target = os.readlink("/proc/%d/fd/%s" % (pid, name))
                    if target.startswith("socket:["):
                        inodes.add(target[len("socket:[") : -1])
    found = {}
    for name in ("tcp", "tcp6"):
        found.update(listeners(read_bytes("/proc/net/" + name).decode("ascii")))
    return {found[inode] for inode in inodes if inode in found}


def kill(pid, number):
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def kill_marked(name=""):
    """Kill what a service has started, also in sessions of its own, such as kernels and
    terminals.
    """
    for pid in processes():
        if pid != os.getpid() and is_marked(read_bytes("/proc/%d/environ" % pid), name):
            kill(pid, signal.SIGKILL)


class Service:
    def __init__(self, entry, run):
        self.entry, self.name, self.folder = entry, entry["name"], os.path.join(run, entry["name"])
        self.child, self.reader, self.state, self.why, self.last = None, None, "starting", "", b""
        self.start_at, self.look_at = 0.0, 0.0

    def jupyter(self, token):
        """Return the command line of Jupyter, whose settings are in a file with the token.

        It is empty if the image has no Jupyter.
        """
        found = [name for name in services.JUPYTER if services.has(name[0])]
        if not found:
            return []
        place = {
            name: self.entry[other]
            for name, other in (("certfile", "certificate"), ("keyfile", "key"))
            if self.entry[other]
        }
        config = self.folder + "/config.py"
        services.write_private(
            config,
            services.jupyter_config(
                token.decode(),
                self.entry["folder"],
                ip=self.entry["address"],
                port=self.entry["port"],
                allow_root=True,
                **place,
            ),
        )
        return [sys.executable, "-m", found[0][0], "--config=" + config]

    def start(self):
        self.state, self.why, self.look_at, self.last = "starting", "", 0.0, b""
        path = self.entry["token_file"]
        token = read_bytes(path).strip() if path else b""
        if path and not token:
            return self.fail("%s is missing or empty" % path)
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            command = self.entry["command"] or self.jupyter(token)
            if not command:
                return self.fail(
                    "the image has no Jupyter. Add jupyterlab to training_image_python_packages"
                )
            environment = dict(
                os.environ,
                PYTHONUNBUFFERED="1",
                JUPYTER_RUNTIME_DIR=self.folder,
                **{MARK: self.name},
            )
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.entry["folder"],
                start_new_session=True,
            )
        except OSError as error:
            return self.fail("it cannot be started: %s" % error)
        self.reader = threading.Thread(
            target=self.read, args=(self.child.stdout, token), daemon=True
        )
        return self.reader.start()

    def read(self, stream, token):
        with stream:
            for line in iter(lambda: stream.readline(LINE_BYTES), b""):
                line = without(token, line)
                self.last = line.strip() or self.last
                say(self.name, line)

    def fail(self, why, state="failed"):
        if (self.state, self.why) != (state, why):
            say(self.name, why.encode())
        self.state, self.why = state, why
        # One that opens the host is not started again before its settings change.
        self.start_at = time.monotonic() + RESTART_SECONDS if state == "failed" else float("inf")

    def ended(self):
        code, session = self.child.returncode, self.child.pid
        self.child = None
        # Not those in sessions of their own, which may be somebody's work.
        for pid in processes():
            if session_of(pid) == session:
                kill(pid, signal.SIGKILL)
        self.reader.join(1)
        self.fail(
            "it ended with %s %d: %s"
            % (
                "signal" if code < 0 else "exit code",
                abs(code),
                self.last.decode("utf-8", "replace")[:300] or "it said nothing",
            )
        )

    def look(self):
        now = time.monotonic()
        if self.child is None:
            if now >= self.start_at:
                self.start()
        elif self.child.poll() is not None:
            self.ended()
        elif now >= self.look_at:
            self.look_at_sockets(now)

    def look_at_sockets(self, now):
        listens, opened = judged(
            sockets_of(self.child.pid), self.entry["address"], self.entry["port"]
        )
        if opened:
            self.stop()
            self.fail(
                (
                    "it was stopped because it listened on %s. It may listen on %s port %d only. "
                    "Correct its command"
                )
                % (opened, self.entry["address"], self.entry["port"]),
                "refused",
            )
        elif listens:
            if self.state != "ready":
                self.state, self.why = "ready", ""
                say(self.name, b"ready")
            self.look_at = now + SOCKET_SECONDS
        else:
            self.state, self.why = (
                "starting",
                "it does not listen on %s port %d" % (self.entry["address"], self.entry["port"]),
            )

    def stop(self):
        if self.child is not None:
            kill(self.child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(STOP_SECONDS)
        kill_marked(self.name)
        if self.child is not None:
            self.child.wait()
            self.child = None


class Supervisor:
    def __init__(self, run):
        self.run, self.services, self.requested, self.status, self.ending = run, {}, {}, None, False
        # What was read last, and the last one that could be used.
        self.text, self.used = None, b""

    def read_config(self):
        text = read_bytes(HERE + "/config.json")
        if text == self.text:
            return
        self.text = text
        try:
            self.requested = (
                {entry["name"]: entry for entry in json.loads(text.decode("utf-8"))["services"]}
                if text
                else {}
            )
            self.used = text
        except (ValueError, KeyError, TypeError) as error:
            say("supervisor", ("config.json is damaged: %s" % error).encode())

    def arrange(self):
        """Stop the services that are no longer wanted as they are, and add the others."""
        for entry in self.requested.values():
            entry["stamps"] = [
                stamp(entry[key]) for key in ("token_file", "certificate", "key") if entry[key]
            ]
        for name in sorted(self.services):
            if self.services[name].entry != self.requested.get(name):
                self.services.pop(name).stop()
                say(name, b"stopped")
        for name in sorted(set(self.requested) - set(self.services)):
            self.services[name] = Service(dict(self.requested[name]), self.run)

    def tell(self):
        status = {
            "config": hashlib.sha256(self.used).hexdigest(),
            "services": {
                name: {"state": service.state, "why": service.why}
                for name, service in self.services.items()
            },
        }
        if status != self.status:
            # A full disk must not end the services.
            with contextlib.suppress(OSError):
                services.write_private(
                    self.run + "/status.json", json.dumps(status, indent=2, sort_keys=True) + "\n"
                )
                self.status = status

    def end(self, _number, _frame):
        self.ending = True

    def main(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.end)
        os.makedirs(self.run, 0o700, exist_ok=True)
        # Of a supervisor that was killed.
        kill_marked()
        while not self.ending:
            self.read_config()
            self.arrange()
            for name in sorted(self.services):
                self.services[name].look()
            self.tell()
            time.sleep(LOOK_SECONDS)
        # All at once, because the container has 20 s to stop.
        for service in self.services.values():
            if service.child is not None:
                kill(service.child.pid, signal.SIGTERM)
        for service in self.services.values():
            service.stop()
        return 0


def main(arguments):
    if len(arguments) != 1:
        sys.stderr.write(__doc__)
        return 2
    return Supervisor(arguments[0]).main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
