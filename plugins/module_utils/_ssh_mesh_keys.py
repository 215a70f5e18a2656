# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The keys of the training container and the state of its sshd, for modules ssh_mesh_keys and
shared_storage_proof.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import stat
import struct
import tempfile

from typing import Any, Dict

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import (
    ParseError,
    parse_record,
    without_comment,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh_logins import (
    LOGIN_OPTIONS,
    ask_and_try_logins,
)

__all__ = ["KEYS_OPTIONS", "keys_state"]

#: What docker inspect prints of a container.
Inspected = Dict[str, Any]
#: Options of module ssh_mesh_keys.
KEYS_OPTIONS = {
    "directory": {"type": "path", "default": "/etc/trainyard/ssh"},
    "record": {"type": "path", "default": "/etc/trainyard/cluster.json"},
    "rotate": {"type": "bool", "default": False},
    "comment": {"type": "str", "default": ""},
    "container": {"type": "str", "default": ""},
    "pid_file": {"type": "path", "default": "/run/trainyard-sshd.pid"},
    "files": {"type": "list", "elements": "path", "default": []},
    "address": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 12345},
    "peers": {"type": "list", "elements": "str", "default": []},
    "timeout": {"type": "int", "default": 5},
    "executable": {"type": "path", "default": "ssh-keygen"},
}
#: Lines of authorized_keys that are returned.
MOST_KEYS = 1000
#: Separates the outputs of the commands below.
MARK = "--trainyard--"
#: With the path of sshd's file. In one docker exec, if possible with the logins, because it takes
#: longer than the commands.
ASK_SSHD = 'ssh -Q kex; echo "' + MARK + '"; if [ -s %s ]; then /usr/sbin/sshd -T -f %s; fi'
LISTENS = "0A"

KEYS = {"host_key": "ssh_host_ed25519_key", "public_key": "id_ed25519"}


def listening(port: int) -> list[str]:
    """Addresses of this host on which a process listens on the port.

    The container has the host's network.
    """
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(path).splitlines()[1:]:
            fields = line.split()
            address, dummy, number = fields[1].partition(":") if len(fields) > 3 else ("", "", "")
            if number and fields[3] == LISTENS and int(number, 16) == port:
                # Each group of four bytes is in the order of this machine.
                groups = [address[start : start + 8] for start in range(0, len(address), 8)]
                packed = b"".join(struct.pack("=I", int(group, 16)) for group in groups)
                family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
                found.add(socket.inet_ntop(family, packed))
    return sorted(found)


def main_process(found: Inspected) -> int:
    """The first process of a container, 0 if it does not run."""
    return int((found.get("State") or {}).get("Pid") or 0)


class Keys:
    """Creates the keys of the training container on this host, as the options of ssh_mesh_keys say."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.directory = module.params["directory"]
        self.keygen = module.get_bin_path(module.params["executable"], required=True)
        self.result: dict[str, Any] = {"changed": False, "made": [], "rotated": False}

    def public_of(self, path: str) -> str:
        """Derived from the private key, because a .pub file may differ.

        With a pipe, because ssh-keygen rejects a file that others may read.
        """
        with open(path, encoding="utf-8", errors="replace") as file:
            private = file.read()
        rc, out, err = self.module.run_command(
            [self.keygen, "-y", "-f", "/dev/stdin"], data=private
        )
        if rc != 0:
            self.module.fail_json(
                msg="%s is not a private key (%s): restore it, or remove it to create a new one"
                % (path, err.strip())
            )
        return without_comment(out)

    def make(self, path: str) -> None:
        """A new pair, renamed into place when it is complete."""
        staging = tempfile.mkdtemp(dir=self.directory, prefix=".new-")
        try:
            new = os.path.join(staging, "key")
            self.module.run_command(
                [
                    self.keygen,
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    self.module.params["comment"],
                    "-f",
                    new,
                ],
                check_rc=True,
            )
            os.rename(new, path)
            os.rename(new + ".pub", path + ".pub")
        finally:
            shutil.rmtree(staging)

    def ensure(self, path: str) -> str:
        """Return the public key, '' if check mode prevents its creation."""
        exists = os.path.exists(path)
        if not exists or self.module.params["rotate"]:
            self.result["changed"] = True
            self.result["made"].append(path)
            self.result["rotated"] = self.result["rotated"] or exists
            if self.module.check_mode:
                return self.public_of(path) if exists else ""
            self.make(path)
        public = self.public_of(path)
        self.ensure_public_file(path, public)
        return public

    def ensure_public_file(self, path: str, public: str) -> None:
        """Write the .pub file of a key if it is missing or differs."""
        try:
            with open(path + ".pub", encoding="utf-8") as file:
                if without_comment(file.read()) == public:
                    return
        except (FileNotFoundError, ParseError):
            pass
        self.result["changed"] = True
        if not self.module.check_mode:
            with open(path + ".pub", "w", encoding="utf-8") as file:
                file.write("%s %s\n" % (public, self.module.params["comment"]))

    def ensure_private(self, path: str, mode: str) -> None:
        """Set a mode, and root as the owner, of a file or folder if it exists."""
        if os.path.exists(path):
            changed = self.module.set_mode_if_different(path, mode, self.result["changed"])
            changed = self.module.set_owner_if_different(path, "root", changed)
            self.result["changed"] = self.module.set_group_if_different(path, "root", changed)

    def record(self) -> Any:
        """Return the keys of the last run, empty without a record. The module fails if it is
        damaged.
        """
        path = self.module.params["record"]
        try:
            with open(path, encoding="utf-8") as file:
                return parse_record(file.read())
        except FileNotFoundError:
            return {}
        except ParseError as error:
            self.module.fail_json(
                msg="%s is %s. Keys are compared with it: restore it, or remove it if you trust the current keys"
                % (path, error)
            )

    def container(self) -> Inspected:
        """Return what Docker knows of it, empty if there is none."""
        name, docker = self.module.params["container"], self.module.get_bin_path("docker")
        if name and docker:
            rc, out, dummy = self.module.run_command([docker, "inspect", "--type=container", name])
            if rc == 0:
                found: Inspected = json.loads(out)[0]
                user = found["Config"].get("User") or ""
                if user.split(":")[0] not in ("", "root", "0"):
                    self.module.fail_json(
                        msg="container %s runs as user '%s'; its sshd needs root, which reads the keys and starts each rank as root: "
                        "leave training_container_user empty, and enter the container with docker exec --user"
                        % (name, user)
                    )
                return found
        return {}

    def ask_sshd(self, ask: str) -> str:
        """Run this in the container without logins."""
        params, docker = self.module.params, self.module.get_bin_path("docker")
        command = [docker, "exec", params["container"], "/bin/sh", "-c", ask]
        dummy, out, dummy = self.module.run_command(command)
        return str(out)

    def settle_sshd(self, text: str) -> None:
        """Take from this output what the container's ssh offers, and which settings its sshd takes
        from its file.
        """
        offers, dummy, settings = text.partition(MARK + "\n")
        self.result["post_quantum"] = any(
            name.startswith(("sntrup761x25519", "mlkem768x25519")) for name in offers.split()
        )
        self.result["effective"] = {}
        for line in settings.splitlines():
            name, dummy, value = line.partition(" ")
            self.result["effective"].setdefault(name.lower(), []).append(value.strip())

    def sshd(self, pid: int) -> dict[str, bool]:
        """Read from the container's files on the host, which needs no docker exec."""
        asleep = {"running": False, "reload_needed": False, "frozen": False}
        if not pid:
            return asleep
        try:
            read_at = os.stat("/proc/%d/root%s" % (pid, self.module.params["pid_file"])).st_mtime
        except FileNotFoundError:
            return asleep
        # By ctime, because a restored older file is a change, too.
        files = [os.path.join(self.directory, file) for file in ("sshd_config", KEYS["host_key"])]
        return {
            "running": True,
            "reload_needed": any(
                os.path.exists(file) and os.stat(file).st_ctime > read_at for file in files
            ),
            "frozen": self.frozen(),
        }

    def frozen(self) -> bool:
        """The kernel accepts connections for a stopped process.

        Only the process itself sends the banner.
        """
        params = self.module.params
        if not params["address"]:
            return False
        try:
            connection = socket.create_connection(
                (params["address"], params["port"]), params["timeout"]
            )
        except OSError:
            # Refused while its supervisor is starting it.
            return False
        with connection:
            connection.settimeout(params["timeout"])
            try:
                connection.recv(4)
            except socket.timeout:
                return True
            except OSError:
                return False
        return False

    def in_container(self, found: Inspected) -> tuple[dict[str, Any], str]:
        """What module ssh_mesh_info returns, empty if the logins would not show the state after
        this run. And what the container says of ssh and sshd.
        """
        params, sshd = self.module.params, self.result["sshd"]
        if not main_process(found):
            return {}, ""
        path = shlex.quote(os.path.join(self.directory, "sshd_config"))
        ask = ASK_SSHD % (path, path)
        is_current = sshd["running"] and not sshd["reload_needed"] and not sshd["frozen"]
        if not params["peers"] or not is_current or self.result["changed"]:
            return {}, self.ask_sshd(ask)
        options = {name: params[name] for name in ("container", "peers", "address", "timeout")}
        try:
            logins, text = ask_and_try_logins(
                self.module, dict(LOGIN_OPTIONS, **options), found, ask
            )
            return logins, text or self.ask_sshd(ask)
        except ParseError:
            # Module ssh_mesh_info, which follows, reports it.
            return {}, self.ask_sshd(ask)

    def run(self) -> dict[str, Any]:
        """Create and repair the keys, and return the result of the module."""
        if not self.module.check_mode:
            os.makedirs(os.path.dirname(self.directory), mode=0o755, exist_ok=True)
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
        # Before keys are created, so that an unreadable record stops the run.
        self.result["recorded"] = self.record()
        found = self.container()
        self.result["image_id"] = found.get("Image", "")
        self.result["sshd"] = self.sshd(main_process(found))
        for name, file in KEYS.items():
            path = os.path.join(self.directory, file)
            self.result[name] = self.ensure(path)
            self.ensure_private(path, "0600")
        self.ensure_private(self.directory, "0700")
        files = [
            path
            for path in self.module.params["files"]
            if os.path.isfile(path) and not os.path.islink(path)
        ]
        self.result["checksums"] = {path: self.module.sha256(path) for path in files}
        self.result["permissions"] = {
            path: "%04o" % stat.S_IMODE(os.stat(path).st_mode) for path in files
        }
        keys = read_text(os.path.join(self.directory, "authorized_keys"))
        self.result["authorized"] = keys.splitlines()[:MOST_KEYS]
        self.result["listens"] = listening(self.module.params["port"])
        self.result["logins"], text = self.in_container(found)
        self.settle_sshd(text)
        return self.result


def keys_state(module: Any) -> dict[str, Any]:
    """Create what is missing, unless in check mode, and return what module ssh_mesh_keys returns."""
    return Keys(module).run()
