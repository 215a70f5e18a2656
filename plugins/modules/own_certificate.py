#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: own_certificate
short_description: Create a certificate and its authority
version_added: "0.4.0"
description:
  - Creates an authority in O(folder) once, and a certificate for O(names) and O(addresses) that it
    signs.
  - The certificate is created again if it ends within O(renew_days), if it has other names, or if
    the authority did not sign it.
  - The authority is limited to the names and addresses of the certificates in O(folder), by name
    constraints. If these change, it is written again with the same key. A client that has an
    earlier copy of it accepts the certificates for as long as their names are among those of the
    copy, and a copy without limits, as releases before 0.4.0 wrote it, accepts them all. So clients
    that get a new name need the new copy. The key stays, unless it was replaced by another one.
  - The keys never leave the host, and only root and O(group) can read them. A host of which
    O(requests) has a request keeps its key, too, which O(state=request) has created there.
author:
  - trainyard maintainers (@trainyard)
options:
  folder:
    description: Folder of the files. It is created if it is missing. Its parent must exist.
    type: path
    required: true
  name:
    description: Beginning of the names of the files C(NAME.pem) and C(NAME.key). The authority is
      C(ca.pem) and C(ca.key).
    type: str
    required: true
  names:
    description: Host names for which the certificate is valid, also such as V(*.hub.example.org).
      O(state=present) needs a name or an address.
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
    description: Folder that gets a copy of the certificate and its key, for a program that must not
      reach the key of the authority. It must exist.
    type: path
  usage:
    description: Whether programs prove with the certificate that they are a V(server) or a
      V(client). It is not good for the other purpose.
    type: str
    choices: [server, client]
    default: server
    version_added: "0.4.0"
  group:
    description: Group that can read the key of the certificate, and that of its copy. Only root if
      empty.
    type: str
    default: ""
    version_added: "0.4.0"
  requests:
    description:
      - Certificates for servers on other hosts. The authority signs them and permits their names.
        They are kept in O(folder) as C(NAME.pem).
      - Of a request only the key counts. What it says of names is not used.
    type: list
    elements: dict
    default: []
    version_added: "0.4.0"
    suboptions:
      name:
        description: Beginning of the name of the file.
        type: str
        required: true
      names:
        description: Host names for which the certificate is valid.
        type: list
        elements: str
        default: []
      addresses:
        description: IP addresses for which it is valid.
        type: list
        elements: str
        default: []
      request:
        description: What O(state=request) has returned on the host. Empty to keep the existing
          certificate.
        type: str
        default: ""
  state:
    description:
      - V(absent) removes the certificate, and the authority if it signed no other one that is still
        in the folder.
      - V(request) creates only the key, once, and returns a request for O(requests) on the host of
        the authority.
    type: str
    choices: [present, absent, request]
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
  description: The certificate of the authority as PEM. Empty if there is none, as in check mode of
    a first run.
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
signed:
  description: The certificates of O(requests) as PEM, by name. Empty for a host that has none yet.
  returned: success
  type: dict
request:
  description: The request as PEM, with O(state=request). Empty in check mode of a first run.
  returned: success
  type: str
"""

import datetime
import grp
import os
import re

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
#: Characters of a request. One with this kind of key has some 500.
MOST = 10000
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
        return self.unfit(own, self.options["names"], self.options["addresses"])

    def unfit(self, own, names, addresses):
        """Return why a certificate of the folder has to be signed again."""
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
                names,
                addresses,
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
        """Return whether there is one whose key is its own.

        Another program may have replaced the key.
        """
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
        own = {"ca.pem", self.options["name"] + ".pem"}
        for entry in self.options["requests"]:
            own.add(entry["name"] + ".pem")
            names |= set(entry["names"])
            addresses |= set(entry["addresses"])
        files = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        for name in sorted(files):
            if not name.endswith(".pem") or name in own:
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
        config = self.config(
            certificate_config(
                self.options["names"], self.options["addresses"], self.options["usage"]
            )
        )
        self.key(own + ".key.new")
        self.sign(self.requested(own + ".key.new", config), config, own)
        self.finish(own)

    def requested(self, key, config):
        """Return the path of a request for a key."""
        request = os.path.join(self.module.tmpdir, "request.pem")
        self.run(
            "req",
            "-new",
            "-sha256",
            "-key",
            self.path(key),
            "-config",
            config,
            "-out",
            request,
        )
        return request

    def sign(self, request, config, name, subject=()):
        self.run(
            "x509",
            "-req",
            "-sha256",
            "-in",
            request,
            *subject,
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
            self.path(name + ".pem.new"),
        )

    def finish(self, name):
        os.chmod(self.path(name + ".pem.new"), 0o644)
        if name != "ca":
            self.share(self.path(name + ".key.new"))
        os.rename(self.path(name + ".key.new"), self.path(name + ".key"))
        os.rename(self.path(name + ".pem.new"), self.path(name + ".pem"))

    def share(self, path):
        """Let the group read a key."""
        if self.options["group"]:
            os.chown(path, -1, self.group_id())
            os.chmod(path, 0o640)

    def group_id(self):
        try:
            return grp.getgrnam(self.options["group"]).gr_gid
        except KeyError:
            self.module.fail_json(
                msg="group '%s' does not exist; install the package that creates it"
                % self.options["group"]
            )

    def is_shared(self, path):
        """Return whether the group can read a key, if there is one."""
        if not self.options["group"] or not os.path.exists(path):
            return True
        found = os.stat(path)
        return found.st_gid == self.group_id() and found.st_mode & 0o777 == 0o640

    def key_of_request(self, text):
        """Return the path of a request from another host, and its public key.

        Root of that host can send anything.
        """
        found = re.search(
            (
                "-----BEGIN CERTIFICATE REQUEST-----[A-Za-z0-9+/=\\s]+-----END CERTIFICATE "
                "REQUEST-----"
            ),
            text[:MOST],
        )
        path = os.path.join(self.module.tmpdir, "other.pem")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(found.group() + "\n" if found else "")
        code, out, errors = self.module.run_command(
            [self.openssl, "req", "-in", path, "-verify", "-noout", "-pubkey"]
        )
        if code:
            self.module.fail_json(
                msg=(
                    "requests: '%s' is no request of a certificate (%s); check who changed the "
                    "host that sent it"
                )
                % (text[:80], (errors or out).strip()[:200])
            )
        return path, out[out.index("-----BEGIN") :]

    def unsigned(self, entry):
        """Return why the certificate of another host has to be signed."""
        if not os.path.exists(self.path(entry["name"] + ".pem")):
            return ["%s: there is none" % entry["name"]]
        why = self.unfit(entry["name"], entry["names"], entry["addresses"])
        if entry["request"] and not why:
            _path, key = self.key_of_request(entry["request"])
            is_same = key == self.run(
                "x509", "-in", self.path(entry["name"] + ".pem"), "-noout", "-pubkey"
            )
            why = [] if is_same else ["it has another key"]
        return ["%s: %s" % (entry["name"], text) for text in why]

    def sign_others(self):
        """Sign what other hosts have requested. Returns why."""
        found = []
        for entry in self.options["requests"]:
            why = self.unsigned(entry) if entry["request"] else []
            if why and not self.module.check_mode:
                path, _key = self.key_of_request(entry["request"])
                config = self.config(certificate_config(entry["names"], entry["addresses"]))
                # The subject is the host's own word, and is replaced.
                self.sign(path, config, entry["name"], ["-subj", "/CN=" + entry["name"]])
                os.chmod(self.path(entry["name"] + ".pem.new"), 0o644)
                os.rename(self.path(entry["name"] + ".pem.new"), self.path(entry["name"] + ".pem"))
            found += why
        return found

    def request(self):
        """Create the key if it is missing. Returns whether it was, and a request."""
        path = self.path(self.options["name"] + ".key")
        is_new = not os.path.exists(path)
        differs = is_new or not self.is_shared(path)
        if self.module.check_mode and is_new:
            return True, ""
        if not os.path.isdir(self.folder):
            os.mkdir(self.folder, 0o755)
        if is_new:
            self.key(self.options["name"] + ".key.new")
            self.share(path + ".new")
            os.rename(path + ".new", path)
        elif differs and not self.module.check_mode:
            self.share(path)
        config = self.config("[req]\ndistinguished_name=name\nprompt=no\n[name]\nCN=trainyard\n")
        with open(
            self.requested(self.options["name"] + ".key", config), encoding="utf-8"
        ) as stream:
            return differs, stream.read()

    def copy(self):
        """Make the copies alike. Returns whether they differed."""
        differ = False
        for end, mode in ((".pem", 0o644), (".key", 0o600)):
            content, path = (
                self.text(self.options["name"] + end),
                os.path.join(self.options["copy_to"], self.options["name"] + end),
            )
            is_same = content and os.path.exists(path) and read_text(path) == content
            if is_same and (end == ".pem" or self.is_shared(path)):
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
                if end == ".key":
                    self.share(path + ".new")
                os.rename(path + ".new", path)
        return differ

    def remove(self):
        """Remove the certificate, and the authority with the last one.

        Returns whether there was something.
        """
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
            "usage": {"type": "str", "choices": ["server", "client"], "default": "server"},
            "group": {"type": "str", "default": ""},
            "requests": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "names": {"type": "list", "elements": "str", "default": []},
                    "addresses": {"type": "list", "elements": "str", "default": []},
                    "request": {"type": "str", "default": ""},
                },
            },
            "state": {
                "type": "str",
                "choices": ["present", "absent", "request"],
                "default": "present",
            },
            "executable": {"type": "path", "default": "openssl"},
        },
        supports_check_mode=True,
    )
    certificates = Certificates(module)
    nothing = {"ca": "", "certificate_changed": False, "reasons": [], "signed": {}, "request": ""}
    if module.params["state"] == "absent":
        module.exit_json(changed=certificates.remove(), **nothing)
    check_names(module)
    certificates.openssl = module.get_bin_path(module.params["executable"])
    if certificates.openssl is None:
        if module.check_mode:
            would = {"certificate_changed": True, "reasons": ["there is none"]}
            module.exit_json(changed=True, **{**nothing, **would})
        module.fail_json(
            msg="'%s' is not installed; install package openssl" % module.params["executable"]
        )
    if module.params["state"] == "request":
        changed, request = certificates.request()
        module.exit_json(changed=changed, **{**nothing, "request": request})
    wide = certificates.unlimited()
    if wide and not module.check_mode:
        certificates.limit()
    # After the authority: it may no longer permit what the certificate has.
    why = certificates.missing()
    if why and not module.check_mode:
        certificates.create()
    others = certificates.sign_others()
    copied = bool(module.params["copy_to"]) and certificates.copy()
    module.exit_json(
        changed=bool(wide + why + others) or copied,
        ca=certificates.text("ca.pem"),
        certificate_changed=bool(why),
        reasons=wide + why + others,
        signed={
            entry["name"]: certificates.text(entry["name"] + ".pem")
            for entry in module.params["requests"]
        },
        request="",
    )


def check_names(module):
    """Fail if a name or an address cannot be in a certificate, or if there is none."""
    entries = [] if module.params["state"] == "request" else [module.params]
    for entry in entries + module.params["requests"]:
        bad = bad_names(entry["names"], entry["addresses"])
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}", entry["name"]):
            module.fail_json(
                msg="name: '%s' cannot be the name of a file; use letters, digits and . _ -"
                % entry["name"]
            )
        if bad or not entry["names"] + entry["addresses"]:
            module.fail_json(
                msg=(
                    "names: '%s' cannot be in a certificate; use names of hosts, and addresses in "
                    "addresses"
                )
                % bad[0]
                if bad
                else "names: there is none; use the name of the host or its address"
            )


if __name__ == "__main__":
    main()
