#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_server_info
short_description: Gather what a host exports by NFS
version_added: "0.2.0"
description:
  - Returns the active exports, their files, the settings of the kernel's server, and the clients
    that a firewall blocks.
options:
  exports:
    description: Requested exports. RV(missing) lists those that are not in force.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path of the exported folder.
        type: path
        required: true
      client:
        description: Address, network or name of the client.
        type: str
        required: true
      options:
        description: Options of the export.
        type: list
        elements: str
        default: []
  exports_file:
    description: File with the caller's own exports.
    type: path
    default: /etc/exports.d/trainyard.exports
  files:
    description: Absolute paths of files whose checksums are returned.
    type: list
    elements: path
    default: []
  record:
    description: Absolute path of a JSON file whose content is returned.
    type: path
  addresses:
    description: Addresses and networks that must reach the server. RV(firewall.shut_out) lists
      those that a firewall of this host blocks.
    type: list
    elements: str
    default: []
  interface:
    description: Interface of their traffic, for firewalld's zones.
    type: str
    default: ''
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the exports of the server
  trainyard.gpu.nfs_server_info:
    exports:
      - {path: /data1/share, client: 10.0.0.12, options: [rw, sync, root_squash]}
  register: asked
"""

RETURN = r"""
available:
  description: Whether the host has an NFS server.
  returned: always
  type: bool
service:
  description: The unit nfs-server.service.
  returned: always
  type: dict
  contains:
    active:
      description: Whether it runs.
      type: bool
    enabled:
      description: Whether it starts at boot.
      type: bool
missing:
  description: Entries of O(exports) that are not in force, or have other options.
  returned: always
  type: list
  elements: dict
left_over:
  description: Active exports of paths in O(exports) that are neither in O(exports) nor in any
    exports file.
  returned: always
  type: list
  elements: dict
own_clients:
  description: Clients in O(exports_file), each once.
  returned: always
  type: list
  elements: str
others:
  description: Exports in C(/etc/exports) and in the other files of C(/etc/exports.d).
  returned: always
  type: list
  elements: dict
  contains:
    path:
      description: Exported folder.
      type: str
    client:
      description: Address, network or name of the client.
      type: str
    options:
      description: Options of the export.
      type: list
      elements: str
    file:
      description: Its file.
      type: str
nfsd:
  description: Settings of the running server; empty if none runs.
  returned: always
  type: dict
  contains:
    threads:
      description: Number of its threads.
      type: int
    versions:
      description: Protocol versions that it supports.
      type: list
      elements: str
    lease_seconds:
      description: Seconds after which a silent client loses its locks.
      type: int
    grace_seconds:
      description: Seconds after a start in which only former clients may lock.
      type: int
mounts:
  description: Mount point of each path in O(exports).
  returned: always
  type: dict
mounted_by_nfs:
  description: Paths in O(exports) on an NFS mount, which cannot be exported.
  returned: always
  type: list
  elements: str
firewall:
  description: The host's firewall.
  returned: always
  type: dict
  contains:
    kind:
      description: V(ufw), V(firewalld), or empty if none of them is active.
      type: str
    zone:
      description: Zone of O(interface) in firewalld.
      type: str
    shut_out:
      description: Entries of O(addresses) that it blocks from TCP port 2049.
      type: list
      elements: str
files:
  description: SHA-256 checksums of the existing files among O(files).
  returned: always
  type: dict
record:
  description: Content of O(record); empty if there is none.
  returned: always
  type: dict
error:
  description: Why an exports file cannot be parsed; empty if all can.
  returned: always
  type: str
"""

import glob
import os
import re
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import (
    ParseError,
    allowed_by_ufw,
    is_same_client,
    not_in_force,
    parse_exports,
    parse_versions,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

ETAB = "/var/lib/nfs/etab"
NFSD = "/proc/fs/nfsd/"
PORT = 2049


def number(path):
    found = re.match(r"\d+", read_text(path).strip())
    return int(found.group()) if found else 0


def nfsd():
    versions = parse_versions(read_text(NFSD + "versions"))
    if not versions:
        return {}
    return {
        "threads": number(NFSD + "threads"),
        "versions": versions,
        "lease_seconds": number(NFSD + "nfsv4leasetime"),
        "grace_seconds": number(NFSD + "nfsv4gracetime"),
    }


def service(module):
    systemctl = module.get_bin_path("systemctl")
    if not systemctl:
        return {"active": False, "enabled": False}
    dummy, out, dummy2 = module.run_command(
        [systemctl, "show", "--property=ActiveState,UnitFileState", "nfs-server.service"]
    )
    return {"active": "ActiveState=active" in out, "enabled": "UnitFileState=enabled" in out}


def firewall(module):
    addresses = module.params["addresses"]
    ufw = module.get_bin_path("ufw", opt_dirs=["/usr/sbin"])
    if ufw:
        dummy, out, dummy2 = module.run_command(
            [ufw, "status", "verbose"], environ_update={"LC_ALL": "C"}
        )
        if re.search(r"^Status: active", out, re.M):
            return {
                "kind": "ufw",
                "zone": "",
                "shut_out": [
                    address for address in addresses if not allowed_by_ufw(out, address, PORT)
                ],
            }
    command = module.get_bin_path("firewall-cmd")
    if command and module.run_command([command, "--state"])[0] == 0:
        rc, out, dummy = module.run_command(
            [command, "--get-zone-of-interface=" + module.params["interface"]]
        )
        zone = (
            out.strip()
            if rc == 0
            else module.run_command([command, "--get-default-zone"])[1].strip()
        )

        def has(*query):
            return module.run_command([command, "--zone=" + zone] + list(query))[0] == 0

        target = module.run_command([command, "--permanent", "--zone=" + zone, "--get-target"])[
            1
        ].strip()
        if target == "ACCEPT" or has("--query-service=nfs") or has("--query-port=%d/tcp" % PORT):
            return {"kind": "firewalld", "zone": zone, "shut_out": []}
        shut_out = []
        for address in addresses:
            family = "ipv6" if ":" in address else "ipv4"
            rule = 'rule family="%s" source address="%s" service name="nfs" accept' % (
                family,
                address,
            )
            if not has("--query-rich-rule=" + rule):
                shut_out.append(address)
        return {"kind": "firewalld", "zone": zone, "shut_out": shut_out}
    return {"kind": "", "zone": "", "shut_out": []}


def canonical(client):
    """The name of a client in exportfs."""
    if "/" in client or "*" in client:
        return client
    try:
        return socket.getaddrinfo(client, None, flags=socket.AI_CANONNAME)[0][3] or client
    except OSError:
        return client


def read_exports(own_file):
    """Return the exports of the role's own file, those of other files with their C(file), and the
    last error of a file, empty if all can be parsed.
    """
    error, others, own = "", [], []
    for path in ["/etc/exports"] + sorted(glob.glob("/etc/exports.d/*.exports")):
        try:
            found = parse_exports(read_text(path))
        except ParseError as problem:
            error, found = "%s: %s" % (path, problem), []
        if path == own_file:
            own = found
        else:
            others += [dict(export, file=path) for export in found]
    return own, others, error


def is_configured(served, exports):
    """Return whether an export that is in force is one of those, under the name of its client or
    under the complete one.
    """
    for export in exports:
        if served["path"] == export["path"]:
            clients = (export["client"], canonical(export["client"]))
            if any(is_same_client(served["client"], client) for client in clients):
                return True
    return False


def main():
    module = AnsibleModule(
        argument_spec={
            "exports": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "client": {"type": "str", "required": True},
                    "options": {"type": "list", "elements": "str", "default": []},
                },
            },
            "exports_file": {"type": "path", "default": "/etc/exports.d/trainyard.exports"},
            "files": {"type": "list", "elements": "path", "default": []},
            "record": {"type": "path"},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "interface": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    # exportfs follows links, and writes a name as the name service completes it.
    exports = [
        dict(export, path=os.path.realpath(export["path"])) for export in module.params["exports"]
    ]
    own, others, error = read_exports(module.params["exports_file"])
    in_force = parse_exports(read_text(ETAB))
    mounts = parse_mountinfo(read_text("/proc/self/mountinfo"))
    paths = {export["path"] for export in exports}
    module.exit_json(
        changed=False,
        available=bool(module.get_bin_path("exportfs", opt_dirs=["/usr/sbin", "/sbin"]))
        and os.path.exists("/usr/sbin/rpc.nfsd"),
        service=service(module),
        missing=not_in_force(exports, in_force, canonical),
        left_over=[
            served
            for served in in_force
            if served["path"] in paths and not is_configured(served, exports + others + own)
        ],
        own_clients=list(dict.fromkeys(export["client"] for export in own)),
        others=others,
        nfsd=nfsd(),
        mounts={path: mount_of(path, mounts)["path"] for path in paths},
        mounted_by_nfs=[
            path for path in sorted(paths) if mount_of(path, mounts)["type"] in ("nfs", "nfs4")
        ],
        firewall=firewall(module),
        files=checksums(module.params["files"]),
        record=Record(module, module.params["record"]).read() if module.params["record"] else {},
        error=error,
    )


if __name__ == "__main__":
    main()
