#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_keys
short_description: Create and read the ssh keys of the training container
version_added: "0.1.0"
description:
  - Creates missing ones of two ed25519 key pairs on the host, the host key of the container's sshd
    and the client key of the container. Private keys never leave the host.
  - Returns the public keys, the host's record of the cluster's keys, and whether the container's
    sshd has read its files.
options:
  directory:
    description: Directory of the keys. If it is missing, it is created for root only.
    type: path
    default: /etc/trainyard/ssh
  record:
    description: The host's record of the cluster, a JSON file with C(hosts[].name),
      C(hosts[].host_key) and C(hosts[].public_key).
    type: path
    default: /etc/trainyard/cluster.json
  rotate:
    description: Replace existing key pairs.
    type: bool
    default: false
  comment:
    description: Comment of new keys, such as the host's name.
    type: str
    default: ''
  container:
    description: Name of the container whose sshd is checked. If empty, none is.
    type: str
    default: ''
  pid_file:
    description: File in the container that its sshd writes after it has read its files.
    type: path
    default: /run/trainyard-sshd.pid
  files:
    description: Files of the host whose checksums and permissions are returned.
    type: list
    elements: path
    default: []
  address:
    description: Address on which the container's sshd listens. If empty, no connection is tried.
    type: str
    default: ''
  port:
    description: Its port.
    type: int
    default: 12345
  peers:
    description:
      - Hosts that the container logs in to once, as M(trainyard.gpu.ssh_mesh_info) does. The result
        is in RV(logins).
      - No login is tried if this run has changed something, or if sshd does not run with its
        current files.
    type: list
    elements: str
    default: []
    version_added: "0.4.0"
  timeout:
    description: Maximum time in seconds to wait for its banner, and for a login.
    type: int
    default: 5
  executable:
    description: The program that creates keys.
    type: path
    default: ssh-keygen
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
    details:
      - The public key of keys that would be created is empty.
  diff_mode:
    support: none
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Create the keys of this host
  trainyard.gpu.ssh_mesh_keys:
    comment: "{{ inventory_hostname }}"
    container: trainyard-training
  register: keys

- name: Read the keys of a host outside the play without creating any
  trainyard.gpu.ssh_mesh_keys:
  delegate_to: server-b
  check_mode: true
  register: keys_of_b
"""

RETURN = r"""
host_key:
  description: Public host key of sshd, without comment; empty if there is none yet.
  returned: success
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample
public_key:
  description: Public client key of the container, without comment; empty if there is none yet.
  returned: success
  type: str
made:
  description: Key files that were created, or would be in check mode.
  returned: success
  type: list
  elements: str
rotated:
  description: Whether existing keys were replaced, or would be in check mode.
  returned: success
  type: bool
recorded:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
image_id:
  description: Id of the image of O(container); empty if there is none.
  returned: success
  type: str
post_quantum:
  description: Whether OpenSSH in the running O(container) has a post-quantum key exchange (by
    default from release 9.0 on).
  returned: success
  type: bool
checksums:
  description: SHA-256 checksums of the existing files among O(files).
  returned: success
  type: dict
permissions:
  description: Their permissions in octal digits, such as V(0600).
  returned: success
  type: dict
authorized:
  description: Lines of C(authorized_keys) in O(directory), at most 1000. They are public keys.
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
effective:
  description:
    - Settings of the running container's sshd, as C(sshd -T) takes them from C(sshd_config) in
      O(directory), by name in lower case.
    - Empty if the container does not run, or if its sshd rejects the file.
  returned: success
  type: dict
  sample: {passwordauthentication: ["no"], listenaddress: ["10.0.0.11:12345"]}
  version_added: "0.4.0"
listens:
  description: Addresses of this host on which something listens on O(port).
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
sshd:
  description: The container's sshd.
  returned: success
  type: dict
  contains:
    running:
      description: Whether it was started in the running container.
      type: bool
    reload_needed:
      description: Whether C(sshd_config) or the host key changed after it read them.
      type: bool
    frozen:
      description: Whether it accepts connections to O(address) but sends no banner, because the
        process is stopped or hangs.
      type: bool
logins:
  description: What M(trainyard.gpu.ssh_mesh_info) returns for O(peers); empty if no login was
    tried.
  returned: success
  type: dict
  version_added: "0.4.0"
"""

import json
import os
import shlex
import shutil
import socket
import stat
import struct
import tempfile

from ansible.module_utils.basic import AnsibleModule
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


def main_process(found: dict) -> int:
    """The first process of a container, 0 if it does not run."""
    return int((found.get("State") or {}).get("Pid") or 0)


class Keys:
    def __init__(self, module):
        self.module = module
        self.directory = module.params["directory"]
        self.keygen = module.get_bin_path(module.params["executable"], required=True)
        self.result = {"changed": False, "made": [], "rotated": False}

    def public_of(self, path):
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

    def make(self, path):
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

    def ensure(self, path):
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

    def ensure_public_file(self, path, public):
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

    def ensure_private(self, path, mode):
        if os.path.exists(path):
            changed = self.module.set_mode_if_different(path, mode, self.result["changed"])
            changed = self.module.set_owner_if_different(path, "root", changed)
            self.result["changed"] = self.module.set_group_if_different(path, "root", changed)

    def record(self):
        path = self.module.params["record"]
        try:
            with open(path, encoding="utf-8") as file:
                return parse_record(file.read())
        except FileNotFoundError:
            return {}
        except ParseError as error:
            self.module.fail_json(
                msg=(
                    "%s is %s. Keys are compared with it: restore it, or remove it if you trust "
                    "the current keys"
                )
                % (path, error)
            )

    def container(self) -> dict:
        """Return what Docker knows of it, empty if there is none."""
        name, docker = self.module.params["container"], self.module.get_bin_path("docker")
        if name and docker:
            rc, out, dummy = self.module.run_command([docker, "inspect", "--type=container", name])
            if rc == 0:
                found = json.loads(out)[0]
                user = found["Config"].get("User") or ""
                if user.split(":")[0] not in ("", "root", "0"):
                    self.module.fail_json(
                        msg="container %s runs as user '%s'; its sshd needs root, which reads the "
                        "keys and starts each rank as root: "
                        "leave training_container_user empty, and enter the container with "
                        "docker exec --user" % (name, user)
                    )
                return found
        return {}

    def ask_sshd(self, ask: str) -> str:
        """Run this in the container without logins."""
        params, docker = self.module.params, self.module.get_bin_path("docker")
        return self.module.run_command([docker, "exec", params["container"], "/bin/sh", "-c", ask])[
            1
        ]

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

    def sshd(self, pid):
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

    def frozen(self):
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

    def in_container(self, found: dict) -> tuple[dict, str]:
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

    def run(self):
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
        self.module.exit_json(**self.result)


def main():
    module = AnsibleModule(
        argument_spec={
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
        },
        supports_check_mode=True,
    )
    Keys(module).run()


if __name__ == "__main__":
    main()
