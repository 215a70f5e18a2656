#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: own_certificate
short_description: Create a certificate and its authority
version_added: "0.3.0"
description:
  - Creates an authority in O(folder) once, and a certificate for O(names) and O(addresses) that it signs.
  - The certificate is created again if it ends within O(renew_days), if it has other names, or if the authority did not sign it.
  - The authority is limited to the names and addresses of the certificates in O(folder), by name constraints. If these change, it is written again with the
    same key. A client that has an earlier copy of it accepts the certificates for as long as their names are among those of the copy, and a copy without
    limits, as releases before 0.4.0 wrote it, accepts them all. So clients that get a new name need the new copy. The key stays, unless it was replaced by
    another one.
  - The keys never leave the host, and only root can read them.
author:
  - trainyard maintainers (@trainyard)
options:
  folder:
    description: Folder of the files. It is created if it is missing. Its parent must exist.
    type: path
    required: true
  name:
    description: Beginning of the names of the files C(NAME.pem) and C(NAME.key). The authority is C(ca.pem) and C(ca.key).
    type: str
    required: true
  names:
    description: Host names for which the certificate is valid, also such as V(*.hub.example.org). O(state=present) needs a name or an address.
    type: list
    elements: str
    default: []
  addresses:
    description: IP addresses for which it is valid.
    type: list
    elements: str
    default: []
  days:
    description: Days for which a new certificate is valid. Browsers accept at most 398.
    type: int
    default: 397
  renew_days:
    description: Days before its end in which a certificate is created again.
    type: int
    default: 60
  copy_to:
    description: Folder that gets a copy of the certificate and its key, for a program that must not reach the key of the authority. It must exist.
    type: path
  state:
    description: V(absent) removes the certificate, and the authority if it signed no other one that is still in the folder.
    type: str
    choices: [present, absent]
    default: present
  executable:
    description: Name or path of openssl.
    type: path
    default: openssl
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: Create the certificate of the hub
  trainyard.gpu.own_certificate:
    folder: /etc/trainyard/tls
    name: hub
    names: [hub.example.org]
    addresses: [192.0.2.10]
"""

RETURN = r"""
ca:
  description: The certificate of the authority as PEM. Empty if there is none, as in check mode of a first run.
  returned: success
  type: str
certificate_changed:
  description: Whether the certificate is a new one.
  returned: success
  type: bool
reasons:
  description: Why the certificate or the authority was written again.
  returned: success
  type: list
  elements: str
"""

import datetime
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import (
    ParseError,
    authority_config,
    bad_names,
    certificate_config,
    constraints,
    permitted,
    reasons,
    subjects,
)

#: Years are longer than the life of a cluster. People would have to trust a new one.
AUTHORITY_DAYS = 7300
CURVE = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]


class Certificates:
    def __init__(self, module):
        self.module, self.options = module, module.params
        self.folder, self.openssl = module.params["folder"], None

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *arguments):
        # No program may read a key in between.
        code, out, errors = self.module.run_command([self.openssl] + list(arguments), umask=0o077)
        if code:
            self.module.fail_json(
                msg="openssl %s failed: %s" % (arguments[0], (errors or out).strip()), rc=code
            )
        return out

    def text(self, name):
        return read_text(self.path(name)) if os.path.exists(self.path(name)) else ""

    def missing(self):
        """Return why the certificate has to be created."""
        own = self.options["name"]
        if not all(
            os.path.exists(self.path(name))
            for name in (own + ".pem", own + ".key", "ca.pem", "ca.key")
        ):
            return ["there is none"]
        code, _out, _errors = self.module.run_command(
            [self.openssl, "verify", "-CAfile", self.path("ca.pem"), self.path(own + ".pem")]
        )
        if code and "certificate has expired" not in _errors + _out:
            return ["the authority did not sign it"]
        text = self.run(
            "x509", "-in", self.path(own + ".pem"), "-noout", "-enddate", "-ext", "subjectAltName"
        )
        try:
            return reasons(
                text,
                self.options["names"],
                self.options["addresses"],
                datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None),
                self.options["renew_days"],
            )
        except ParseError as error:
            self.module.fail_json(msg=str(error))

    def key(self, name):
        self.run("genpkey", *(CURVE + ["-out", self.path(name)]))

    def config(self, text):
        path = os.path.join(self.module.tmpdir, "openssl.cnf")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        return path

    def has_authority(self):
        """Return whether there is one whose key is its own. Another program may have replaced the key."""
        certificate, key = self.path("ca.pem"), self.path("ca.key")
        return (
            os.path.exists(certificate)
            and os.path.exists(key)
            and self.run("x509", "-in", certificate, "-noout", "-pubkey")
            == self.run("pkey", "-in", key, "-pubout")
        )

    def names(self):
        """Return the names and addresses for which the authority has to sign: those of this
        certificate, and those of the others in the folder.
        """
        names, addresses = set(self.options["names"]), set(self.options["addresses"])
        files = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        for name in sorted(files):
            if not name.endswith(".pem") or name in ("ca.pem", self.options["name"] + ".pem"):
                continue
            # Files of others may be no certificates.
            code, out, _errors = self.module.run_command(
                [self.openssl, "x509", "-in", self.path(name), "-noout", "-ext", "subjectAltName"]
            )
            others = subjects(out) if code == 0 else (set(), set())
            names |= others[0].difference(bad_names(others[0], []))
            addresses |= others[1]
        return sorted(names), sorted(addresses)

    def unlimited(self):
        """Return why an existing authority has to be written again."""
        if not os.path.exists(self.path("ca.pem")) or not self.has_authority():
            return []
        found = permitted(
            self.run("x509", "-in", self.path("ca.pem"), "-noout", "-ext", "nameConstraints")
        )
        if not found:
            return ["the authority is not limited to names"]
        return (
            []
            if found == set(constraints(*self.names()))
            else ["the authority is limited to other names"]
        )

    def authority(self, key):
        self.run(
            "req",
            "-x509",
            "-new",
            "-sha256",
            "-key",
            self.path(key),
            "-days",
            str(AUTHORITY_DAYS),
            "-config",
            self.config(authority_config(*self.names())),
            "-out",
            self.path("ca.pem.new"),
        )
        os.chmod(self.path("ca.pem.new"), 0o644)

    def limit(self):
        """Write the authority again, with its key."""
        self.authority("ca.key")
        os.rename(self.path("ca.pem.new"), self.path("ca.pem"))

    def create(self):
        own = self.options["name"]
        if not os.path.isdir(self.folder):
            os.mkdir(self.folder, 0o755)
        if not self.has_authority():
            self.key("ca.key.new")
            self.authority("ca.key.new")
            self.finish("ca")
        config = self.config(certificate_config(self.options["names"], self.options["addresses"]))
        self.key(own + ".key.new")
        request = os.path.join(self.module.tmpdir, "request.pem")
        self.run(
            "req",
            "-new",
            "-sha256",
            "-key",
            self.path(own + ".key.new"),
            "-config",
            config,
            "-out",
            request,
        )
        self.run(
            "x509",
            "-req",
            "-sha256",
            "-in",
            request,
            "-CA",
            self.path("ca.pem"),
            "-CAkey",
            self.path("ca.key"),
            "-set_serial",
            "0x" + os.urandom(16).hex(),
            "-days",
            str(self.options["days"]),
            "-extfile",
            config,
            "-extensions",
            "certificate",
            "-out",
            self.path(own + ".pem.new"),
        )
        self.finish(own)

    def finish(self, name):
        os.chmod(self.path(name + ".pem.new"), 0o644)
        os.rename(self.path(name + ".key.new"), self.path(name + ".key"))
        os.rename(self.path(name + ".pem.new"), self.path(name + ".pem"))

    def copy(self):
        """Make the copies alike. Returns whether they differed."""
        differ = False
        for end, mode in ((".pem", 0o644), (".key", 0o600)):
            content, path = (
                self.text(self.options["name"] + end),
                os.path.join(self.options["copy_to"], self.options["name"] + end),
            )
            if content and os.path.exists(path) and read_text(path) == content:
                continue
            differ = True
            if not self.module.check_mode:
                with open(
                    os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode),
                    "w",
                    encoding="utf-8",
                ) as stream:
                    stream.write(content)
                os.chmod(path + ".new", mode)
                os.rename(path + ".new", path)
        return differ

    def remove(self):
        """Remove the certificate, and the authority with the last one. Returns whether there was something."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        own = [self.options["name"] + end for end in (".pem", ".key", ".pem.new", ".key.new")]
        authority = ["ca" + end for end in (".pem", ".key", ".pem.new", ".key.new")]
        others = [
            name
            for name in names
            if name.endswith((".pem", ".key")) and name not in own + authority
        ]
        gone = [name for name in names if name in own or name in authority and not others]
        if not self.module.check_mode:
            for name in gone:
                os.unlink(self.path(name))
            if names and len(gone) == len(names):
                os.rmdir(self.folder)
        return bool(gone)


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "names": {"type": "list", "elements": "str", "default": []},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "days": {"type": "int", "default": 397},
            "renew_days": {"type": "int", "default": 60},
            "copy_to": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "executable": {"type": "path", "default": "openssl"},
        },
        supports_check_mode=True,
    )
    certificates = Certificates(module)
    if module.params["state"] == "absent":
        module.exit_json(
            changed=certificates.remove(), ca="", certificate_changed=False, reasons=[]
        )
    bad = bad_names(module.params["names"], module.params["addresses"])
    if bad or not module.params["names"] + module.params["addresses"]:
        module.fail_json(
            msg="names: '%s' cannot be in a certificate; use names of hosts, and addresses in addresses"
            % bad[0]
            if bad
            else "names: there is none; use the name of the host or its address"
        )
    certificates.openssl = module.get_bin_path(module.params["executable"])
    if certificates.openssl is None:
        if module.check_mode:
            module.exit_json(
                changed=True, ca="", certificate_changed=True, reasons=["there is none"]
            )
        module.fail_json(
            msg="'%s' is not installed; install package openssl" % module.params["executable"]
        )
    wide = certificates.unlimited()
    if wide and not module.check_mode:
        certificates.limit()
    # After the authority: it may no longer permit what the certificate has.
    why = certificates.missing()
    if why and not module.check_mode:
        certificates.create()
    copied = bool(module.params["copy_to"]) and certificates.copy()
    module.exit_json(
        changed=bool(wide + why) or copied,
        ca=certificates.text("ca.pem"),
        certificate_changed=bool(why),
        reasons=wide + why,
    )


if __name__ == "__main__":
    main()
