#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_info
short_description: Gather what monitoring has on a host
version_added: "0.4.0"
description:
  - Returns in one run what role C(monitoring) needs to plan a host - packages, units, the
    certificate and ports.
  - What is missing is a result, not a failure.
options:
  packages:
    description: Names of packages whose versions are returned.
    type: list
    elements: str
    required: true
  records:
    description: Absolute paths of the records of the role and of its packages.
    type: list
    elements: path
    required: true
  units:
    description: Names of units, each with the absolute paths of files that it loads when it starts.
    type: dict
    required: true
  folder:
    description: Absolute path of the folder with the host's certificate C(host.pem), its key
      C(host.key) and the authority C(ca.pem).
    type: path
    required: true
  authority:
    description: Absolute path of the certificate of the authority on its own host. Empty on other
      hosts.
    type: str
    default: ""
  trusted:
    description: Name of the file in O(folder) with the authority of clients.
    type: str
    default: ca.pem
  certificate:
    description: Absolute path of a certificate of the site, which is read in place of C(host.pem). Who signed it is not checked.
    type: str
    default: ""
  key:
    description: Absolute path of its key.
    type: str
    default: ""
  names:
    description: Host names for which the certificate has to be valid.
    type: list
    elements: str
    default: []
  addresses:
    description: IP addresses for which it has to be valid.
    type: list
    elements: str
    default: []
  renew_days:
    description: Days before its end in which a certificate is signed again.
    type: int
    default: 60
  ports:
    description: TCP ports of which RV(taken) tells whether a program listens on them.
    type: list
    elements: int
    default: []
  storage:
    description: Absolute path of the folder for data. It may be missing.
    type: path
    default: /var/lib
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
attributes:
  platform:
    platforms: debian
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather what monitoring has on the host
  trainyard.gpu.monitoring_info:
    packages: [prometheus-node-exporter]
    records: [/var/lib/trainyard/placed.d/monitoring.json, /var/lib/trainyard/placed.d/monitoring.packages.json]
    units:
      prometheus-node-exporter.service: [/etc/systemd/system/prometheus-node-exporter.service.d/trainyard.conf]
    folder: /etc/trainyard/monitoring/tls
    addresses: [192.0.2.10]
  register: gathered
"""

RETURN = r"""
record:
  description: Content of the first of O(records), empty if there is none.
  returned: success
  type: dict
placed_packages:
  description: Whether the second of O(records) exists.
  returned: success
  type: bool
packages:
  description: Versions of the installed packages of O(packages), by name.
  returned: success
  type: dict
units:
  description:
    - State of each of O(units). C(active), C(enabled), and C(loaded), whether the running service
      has loaded the files as they are now.
  returned: success
  type: dict
certificate:
  description: Why the certificate of the host has to be signed. Empty if it is good.
  returned: success
  type: list
  elements: str
key_access:
  description:
    - Who may read O(key), from the folder below C(/) to the file. Each with C(path), C(owner),
      C(group), C(mode) in octal, and C(has_acl), whether an access control list decides as well.
    - Empty without O(key), and if a part does not exist.
  returned: success
  type: list
  elements: dict
authority:
  description: SHA-256 of the public key of the authority that the host trusts, empty if there is
    none.
  returned: success
  type: str
signer:
  description: The same of O(authority).
  returned: success
  type: str
taken:
  description: Those of O(ports) on which a program listens.
  returned: success
  type: list
  elements: int
free_gib:
  description: GiB that are free in O(storage).
  returned: success
  type: int
"""

import datetime
import hashlib
import os
import stat
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._accounts import find_group, find_user
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import existing, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import (
    ParseError,
    reasons,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import parse_installed
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

PROPERTIES = "Id,ActiveState,UnitFileState,NeedDaemonReload,ActiveEnterTimestampMonotonic"


def parse_units(text):
    """Return the properties of units by name, from the output of systemctl show."""
    found = {}
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            found[values["Id"]] = values
    return found


def has_loaded(unit, changed, offset):
    """Return whether a unit that is active has started after its files were changed.

    :param changed: times at which the files changed, in seconds since 1970.
    :param offset: seconds since 1970 at which the monotonic clock was 0.
    """
    if unit.get("NeedDaemonReload") == "yes":
        return False
    begun = offset + int(unit.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    return all(moment <= begun for moment in changed)


def changes(paths):
    """Return when files were changed. Those that are missing are left out."""
    return [os.stat(path).st_ctime for path in paths if os.path.exists(path)]


def listening(texts, ports):
    """Return the ports on which a program listens, from the tables of the kernel (/proc/net/tcp and
    tcp6).
    """
    rows = [line.split() for text in texts for line in text.splitlines()[1:]]
    open_ports = {
        int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == "0A"
    }
    return [port for port in ports if port in open_ports]


def access(path):
    """Return who may read a file, from the folder below / to the file."""
    parts = [part for part in os.path.realpath(path).split("/") if part]
    paths = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
    return [access_of(each) for each in paths] if os.path.exists(path) else []


def access_of(path):
    status = os.stat(path)
    owner, group = find_user(status.st_uid), find_group(status.st_gid)
    return {
        "path": path,
        "owner": owner.pw_name if owner else str(status.st_uid),
        "group": group.gr_name if group else str(status.st_gid),
        "mode": "%04o" % stat.S_IMODE(status.st_mode),
        "has_acl": has_acl(path),
    }


def has_acl(path):
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


class Host:
    def __init__(self, module):
        self.module, self.options = module, module.params

    def run(self, command):
        """Return the output of a command, empty if it fails or is missing."""
        if self.module.get_bin_path(command[0]) is None:
            return ""
        code, out, _errors = self.module.run_command(command)
        return out if code == 0 else ""

    def packages(self):
        _code, out, _errors = self.module.run_command(
            [
                "dpkg-query",
                "--show",
                "--showformat",
                "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
                *self.options["packages"],
            ]
        )
        return {name: state["version"] for name, state in parse_installed(out).items()}

    def units(self):
        names = sorted(self.options["units"])
        shown = parse_units(self.run(["systemctl", "show", "--property=" + PROPERTIES, *names]))
        offset = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
        found = {}
        for name in names:
            unit = shown.get(name, {})
            found[name] = {
                "active": unit.get("ActiveState") == "active",
                "enabled": unit.get("UnitFileState") == "enabled",
                "loaded": has_loaded(unit, changes(self.options["units"][name]), offset),
            }
        return found

    def path(self, name):
        return os.path.join(self.options["folder"], name)

    def certificate(self):
        """Return why the certificate has to be signed."""
        of_site = [self.options["certificate"], self.options["key"]]
        paths = [self.path(name) for name in ("host.pem", "host.key", "ca.pem")]
        paths = of_site if of_site[0] else paths
        missing = [path for path in paths if not os.path.exists(path)]
        if missing:
            return ["%s does not exist" % missing[0]] if of_site[0] else ["there is none"]
        # The authority of the site need not be on the host.
        verified = of_site[0] or self.run(["openssl", "verify", "-CAfile", paths[2], paths[0]])
        own = self.run(["openssl", "x509", "-in", paths[0], "-noout", "-pubkey"])
        if not own or own != self.run(["openssl", "pkey", "-in", paths[1], "-pubout"]):
            return ["it has another key"]
        text = self.run(
            ["openssl", "x509", "-in", paths[0], "-noout", "-enddate", "-ext", "subjectAltName"]
        )
        try:
            why = reasons(
                text,
                self.options["names"],
                self.options["addresses"],
                datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None),
                self.options["renew_days"],
            )
        except ParseError as error:
            why = [str(error)]
        return why or ([] if verified else ["the authority did not sign it"])

    def authority(self, path):
        """Return the digest of the public key of an authority."""
        if not os.path.exists(path):
            return ""
        key = self.run(["openssl", "x509", "-in", path, "-noout", "-pubkey"])
        return hashlib.sha256(key.encode("utf-8")).hexdigest() if key else ""


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "records": {"type": "list", "elements": "path", "required": True},
            "units": {"type": "dict", "required": True},
            "folder": {"type": "path", "required": True},
            "authority": {"type": "str", "default": ""},
            "trusted": {"type": "str", "default": "ca.pem"},
            "certificate": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": False},
            "names": {"type": "list", "elements": "str", "default": []},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "renew_days": {"type": "int", "default": 60},
            "ports": {"type": "list", "elements": "int", "default": []},
            "storage": {"type": "path", "default": "/var/lib"},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    status = os.statvfs(existing(module.params["storage"]))
    records = module.params["records"]
    module.exit_json(
        changed=False,
        record=Record(module, records[0]).read(),
        placed_packages=len(records) > 1 and os.path.exists(records[1]),
        packages=host.packages(),
        units=host.units(),
        certificate=host.certificate(),
        key_access=access(module.params["key"]) if module.params["key"] else [],
        authority=host.authority(host.path(module.params["trusted"])),
        signer=host.authority(module.params["authority"]),
        taken=listening(
            [read_text("/proc/net/tcp"), read_text("/proc/net/tcp6")], module.params["ports"]
        ),
        free_gib=status.f_bavail * status.f_frsize >> 30,
    )


if __name__ == "__main__":
    main()
