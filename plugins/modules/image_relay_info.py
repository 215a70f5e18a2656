#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_relay_info
short_description: Gather what the image relay has on a host
version_added: "0.4.0"
description:
  - Returns in one run what role C(image_relay) has placed on a host, and on the registry's host
    what its plan needs. The digests of images are read with skopeo from archives, from the
    registries outside and from the site's registry.
  - A missing program, and a registry that does not answer, are results, not failures.
options:
  record:
    description: Absolute path of the record of the role.
    type: path
    required: true
  people:
    description: Absolute path of the folder with the logins of people.
    type: path
    required: true
  packages:
    description: Names of packages whose versions are returned.
    type: list
    elements: str
    default: []
  masked:
    description: Names of units. RV(masked) tells which of them are masked.
    type: list
    elements: str
    default: []
  storage:
    description: Absolute path of the folder of the registry. Empty on other hosts.
    type: str
    default: ""
  port:
    description: Port on which the registry is to listen. V(0) on other hosts.
    type: int
    default: 0
  paths:
    description: Absolute paths of files that have to exist.
    type: list
    elements: path
    default: []
  certificate:
    description: Absolute path of the site's certificate for the registry. Empty if the role creates
      one.
    type: str
    default: ""
  relayed:
    description: Absolute path of the JSON file with what was relayed.
    type: str
    default: ""
  images:
    description: The images. Nothing is read of them if skopeo is not installed.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name and tag.
        type: str
        required: true
      source:
        description: Name in a registry, or absolute path of an archive.
        type: str
        required: true
      is_archive:
        description: Whether O(images[].source) is an archive.
        type: bool
        required: true
      target:
        description: Name in the site's registry.
        type: str
        required: true
  logins:
    description: Logins for registries.
    type: list
    elements: dict
    default: []
    suboptions:
      registry:
        description: The registry.
        type: str
        required: true
      username:
        description: Name of the user.
        type: str
        required: true
      password:
        description: The password.
        type: str
        required: true
  registry:
    description: The site's registry.
    type: str
    default: ""
  account:
    description: Name of the account of the relay in O(tokens).
    type: str
    default: ""
  tokens:
    description: Absolute path of the JSON file with the passwords of the site's registry. Empty if
      O(logins) has one.
    type: str
    default: ""
  plain_http:
    description: Registries that are read without TLS.
    type: list
    elements: str
    default: []
  timeout:
    description: Time limit in seconds for each question to a registry.
    type: int
    default: 60
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
- name: Gather what the image relay has on the host
  trainyard.gpu.image_relay_info:
    record: /var/lib/trainyard/placed.d/image_relay.json
    people: /etc/trainyard/registry/people
  register: gathered
"""

RETURN = r"""
record:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
packages:
  description: Versions of the installed packages of O(packages), by name.
  returned: success
  type: dict
masked:
  description: Whether each unit of O(masked) is masked.
  returned: success
  type: dict
people:
  description: Names of the files in O(people).
  returned: success
  type: list
  elements: str
certificates:
  description: Paths of the certificates of the registries in RV(record) that the host has.
  returned: success
  type: list
  elements: str
units:
  description: Names of the units of the role that exist.
  returned: success
  type: list
  elements: str
cni:
  description: Whether C(/etc/cni) exists.
  returned: success
  type: bool
storage_type:
  description: Type of the file system of O(storage).
  returned: success
  type: str
strange:
  description: Names in O(storage) that are not the role's.
  returned: success
  type: list
  elements: str
port_taken:
  description: Whether a program listens on O(port).
  returned: success
  type: bool
proxy_active:
  description: Whether the proxy of the registry runs.
  returned: success
  type: bool
not_loaded:
  description: Paths of units, settings and the role's certificate that changed after the running
    services have loaded them.
  returned: success
  type: list
  elements: str
missing:
  description: Those of O(paths) that do not exist.
  returned: success
  type: list
  elements: str
certificate_checksum:
  description: SHA-256 of O(certificate), empty if there is no such file.
  returned: success
  type: str
relayed:
  description: Content of O(relayed).
  returned: success
  type: dict
images:
  description: Digests of the images at their sources and in the site's registry, by name. C(error)
    tells why a digest is not known.
  returned: success
  type: dict
"""

import glob
import json
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _image_relay
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import existing, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._job_container import file_system_of
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import parse_installed
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

CERTIFICATES = ("/etc/containers/certs.d", "/etc/docker/certs.d")
#: Its file system is in memory, so a password is never on a disk.
MEMORY = "/run"
PROXY = "trainyard-image-proxy.service"
UNITS = (
    "trainyard-image-registry.service",
    PROXY,
    "trainyard-image-tidy.timer",
    "trainyard-image-room.timer",
)
#: Where the units of services write the checksums of what they load. systemd removes the files with
#: the services.
LOADED = {
    UNITS[0]: "/run/trainyard-image-registry/loaded",
    PROXY: "/run/trainyard-image-proxy/loaded",
}
OURS = ("registry", "work", "build", "full", "space", "relayed.json", "lost+found")


def listens(text, port):
    """Return whether a table of the kernel, /proc/net/tcp or tcp6, has a socket that listens on a
    port.
    """
    rows = [line.split() for line in text.splitlines()[1:]]
    return any(
        row[1].rpartition(":")[2] == "%04X" % port and row[3] == "0A"
        for row in rows
        if len(row) > 3
    )


def parse_units(text):
    """Return the properties of units by name, from the output of systemctl show."""
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in text.split("\n\n")
    ]
    return {block["Id"]: block for block in blocks if block.get("Id")}


def not_loaded(units, loaded, checksum):
    """Return the paths that have changed since services have loaded them.

    C(loaded) is what they have written, by unit.
    """
    found = []
    for name, unit in sorted(units.items()):
        # A service without the file runs with a unit of before.
        is_older = name in LOADED and unit["ActiveState"] == "active" and not loaded.get(name)
        if unit["NeedDaemonReload"] == "yes" or is_older:
            found.append("/etc/systemd/system/" + name)
    for text in loaded.values():
        found += [
            path
            for digest, _space, path in (line.partition("  ") for line in text.splitlines())
            if checksum(path) != digest
        ]
    return sorted(set(found))


class Reader:
    """Reads digests with skopeo.

    The logins are in a folder in memory that only root can read, for the time of the module.
    """

    def __init__(self, module, folder):
        self.module, self.params = module, module.params
        self.auth, self.policy = (
            os.path.join(folder, name) for name in ("auth.json", "policy.json")
        )
        logins = list(self.params["logins"])
        tokens = (
            json.loads(read_text(self.params["tokens"]) or "{}") if self.params["tokens"] else {}
        )
        if tokens.get(self.params["account"]):
            logins.append(
                {
                    "registry": self.params["registry"],
                    "username": self.params["account"],
                    "password": tokens[self.params["account"]],
                }
            )
        for path, content in (
            (self.auth, _image_relay.auth_document(logins)),
            (self.policy, '{"default": [{"type": "insecureAcceptAnything"}]}'),
        ):
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
            ) as stream:
                stream.write(content)
        self.has_registry = not self.params["tokens"] or bool(tokens)

    def digest(self, reference, may_lack=False):
        command = [
            "skopeo",
            "--policy",
            self.policy,
            "--command-timeout",
            "%ds" % self.params["timeout"],
            "inspect",
            "--raw",
            "--authfile",
            self.auth,
        ]
        command += _image_relay.tls_options(reference, self.params["plain_http"])
        code, output, errors = self.module.run_command(command + [reference], encoding=None)
        if code == 0:
            return {"digest": _image_relay.digest_of(output), "error": ""}
        errors = errors.decode("utf-8", "replace")
        return {
            "digest": "",
            "error": ""
            if may_lack and _image_relay.is_missing(errors)
            else _image_relay.explain(errors),
        }

    def source(self, image):
        if not image["is_archive"]:
            return self.digest("docker://" + image["source"])
        try:
            return self.digest(_image_relay.archive_reference(image["source"]))
        except _image_relay.ParseError as error:
            return {"digest": "", "error": str(error)}

    def there(self, image):
        """Return the digest of an image in the registry of the site, empty if there is no registry
        or no image.
        """
        if not self.has_registry:
            return {"digest": "", "error": ""}
        return self.digest("docker://" + image["target"], may_lack=True)

    def images(self):
        return {
            image["name"]: {"source": self.source(image), "there": self.there(image)}
            for image in self.params["images"]
        }


def images_of(module):
    """Return the digests of the images."""
    if not module.params["images"] or not module.get_bin_path("skopeo"):
        return {}
    with tempfile.TemporaryDirectory(prefix="trainyard-", dir=MEMORY) as folder:
        return Reader(module, folder).images()


def packages_of(module, names):
    """Return the versions of the installed packages among these."""
    dpkg_query = module.get_bin_path("dpkg-query", required=True)
    shown = module.run_command(
        [
            dpkg_query,
            "--show",
            "--showformat",
            "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
            *names,
        ]
    )[1]
    return {name: state["version"] for name, state in parse_installed(shown).items()}


def units_of(module):
    shown = module.run_command(
        ["systemctl", "show", "--property=Id,ActiveState,NeedDaemonReload"] + list(UNITS)
    )[1]
    return parse_units(shown)


def relayed_of(module, path):
    """Return which images the registry has relayed, from the file that the programs write."""
    try:
        return json.loads(read_text(path) or "{}")
    except ValueError as error:
        module.fail_json(
            msg="%s is damaged (%s); remove it, and the next run writes it again" % (path, error)
        )


def storage_of(path):
    """Return the type of the file system of the registry's folder, and what others have put
    there.
    """
    if not path:
        return {"storage_type": "", "strange": []}
    strange = sorted(set(os.listdir(path)) - set(OURS)) if os.path.isdir(path) else []
    kind = file_system_of(existing(path), read_text("/proc/self/mountinfo"))
    return {"storage_type": kind, "strange": strange}


def is_taken(port):
    """Return whether a program listens on a port."""
    return any(listens(read_text("/proc/net/" + name), port) for name in ("tcp", "tcp6"))


def present_certificates(record):
    """Return the paths of the certificates that role image_relay has placed and that are there."""
    paths = [
        "%s/%s/ca.crt" % (base, registry)
        for registry in record.get("registries") or []
        for base in CERTIFICATES
    ]
    return [path for path in paths if os.path.exists(path)]


def loaded_files(units):
    """Return the texts of the files that units have loaded, by unit."""
    return {
        name: read_text(path)
        for name, path in LOADED.items()
        if name in units and os.path.exists(path)
    }


def placed_on_host(module):
    """Return what the host has of the role: people with logins, units, masked ones, and files that
    are missing.
    """
    params = module.params
    units = glob.glob("/etc/systemd/system/trainyard-image-*.*")
    return {
        "masked": {
            unit: os.path.realpath("/etc/systemd/system/" + unit) == "/dev/null"
            for unit in params["masked"]
        },
        "people": sorted(os.listdir(params["people"])) if os.path.isdir(params["people"]) else [],
        "units": sorted(map(os.path.basename, units)),
        "cni": os.path.isdir("/etc/cni"),
        "missing": [path for path in params["paths"] if not os.path.exists(path)],
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "path", "required": True},
            "people": {"type": "path", "required": True},
            "packages": {"type": "list", "elements": "str", "default": []},
            "masked": {"type": "list", "elements": "str", "default": []},
            "storage": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 0},
            "paths": {"type": "list", "elements": "path", "default": []},
            "certificate": {"type": "str", "default": ""},
            "relayed": {"type": "str", "default": ""},
            "images": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "source": {"type": "str", "required": True},
                    "is_archive": {"type": "bool", "required": True},
                    "target": {"type": "str", "required": True},
                },
            },
            "logins": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "registry": {"type": "str", "required": True},
                    "username": {"type": "str", "required": True},
                    "password": {"type": "str", "required": True, "no_log": True},
                },
            },
            "registry": {"type": "str", "default": ""},
            "account": {"type": "str", "default": ""},
            "tokens": {"type": "str", "default": "", "no_log": False},
            "plain_http": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params = module.params
    module.run_command_environ_update = {"LC_ALL": "C.UTF-8"}
    record = Record(module, params["record"]).read()
    units = units_of(module) if params["port"] else {}
    checksum = module.sha256(params["certificate"]) if params["certificate"] else ""
    module.exit_json(
        changed=False,
        record=record,
        packages=packages_of(module, params["packages"]) if params["packages"] else {},
        relayed=relayed_of(module, params["relayed"]) if params["relayed"] else {},
        certificates=present_certificates(record),
        **placed_on_host(module),
        **storage_of(params["storage"]),
        port_taken=is_taken(params["port"]) if params["port"] else False,
        proxy_active=units.get(PROXY, {}).get("ActiveState") in ("active", "reloading"),
        not_loaded=not_loaded(units, loaded_files(units), module.sha256),
        certificate_checksum=checksum or "",
        images=images_of(module),
    )


if __name__ == "__main__":
    main()
