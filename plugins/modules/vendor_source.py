#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vendor_source
short_description: Add a vendor's apt repository with its own key
version_added: "0.2.0"
description:
  - Writes a deb822 source for apt and its keyring. The keyring is downloaded and must match a
    checksum or the fingerprints of its keys.
  - Removes conflicting entries from all of apt's sources. If two entries for one repository have
    different keys, apt fails completely.
  - Records removed entries. O(state=absent) restores them.
author:
  - trainyard maintainers (@trainyard)
options:
  state:
    description:
      - V(present) writes the one source of O(names).
      - V(absent) removes the sources and keyrings of O(names), and restores everything in
        O(record), unless it was changed since then.
    type: str
    choices: [present, absent]
    default: present
  names:
    description: Names of the files C(sources.list.d/NAME.sources) and C(keyrings/NAME.gpg) below
      O(folder).
    type: list
    elements: str
    required: true
  source:
    description: Text of the source, one paragraph. Its C(Signed-By) names the keyring.
    type: str
  key_url:
    description: URL of the keyring - an OpenPGP keyring, with or without ASCII armor, or a package
      (C(.deb)) that contains keyrings, which is not installed.
    type: str
  key_checksums:
    description: Accepted checksums of O(key_url), as V(sha256:) and digits. Required without
      O(key_fingerprints).
    type: list
    elements: str
    default: []
  key_fingerprints:
    description: Fingerprints of the keys of the keyring. Other downloaded keys are left out.
    type: list
    elements: str
    default: []
  replaces:
    description:
      - Regular expressions for host and path of repositories whose entries are removed. The
        repository of O(source) is always included.
    type: list
    elements: str
    default: []
  retired_keys:
    description: Fingerprints of keys to remove from the keyrings that apt trusts for every
      repository.
    type: list
    elements: str
    default: []
  record:
    description: Absolute path of the record.
    type: path
    required: true
  folder:
    description: Folder of apt's configuration.
    type: path
    default: /etc/apt
  architecture:
    description: Value of apt's variable ARCH in a source. If empty, it is read from dpkg.
    type: str
    default: ""
  timeout:
    description: Maximum time in seconds to wait for an answer of O(key_url).
    type: int
    default: 30
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
    details:
      - Check mode does not download keys.
  diff_mode:
    support: full
  platform:
    platforms: debian
seealso:
  - module: ansible.builtin.deb822_repository
"""

EXAMPLES = r"""
- name: Add NVIDIA's repository of the container toolkit
  trainyard.gpu.vendor_source:
    names: [trainyard-nvidia-container]
    source: |
      Types: deb
      URIs: https://nvidia.github.io/libnvidia-container/stable/deb/amd64/
      Suites: /
      Signed-By: /etc/apt/keyrings/trainyard-nvidia-container.gpg
    key_url: https://nvidia.github.io/libnvidia-container/gpgkey
    key_fingerprints: [C95B321B61E88C1809C4F759DDCAE044F796ECB0]
    replaces: ['nvidia[.]github[.]io/nvidia-docker(/.*)?']
    record: /var/lib/trainyard/placed.d/package_sources.json

- name: Remove it
  trainyard.gpu.vendor_source:
    state: absent
    names: [trainyard-nvidia-container]
    record: /var/lib/trainyard/placed.d/package_sources.json
"""

RETURN = r"""
changed_paths:
  description: Files that were created, changed or removed.
  returned: success
  type: list
  elements: str
taken_out:
  description: Removed conflicts with the source - path, and the URIs or fingerprints of keys.
  returned: success
  type: list
  elements: dict
kept:
  description: With O(state=absent), files that were not restored because they were changed since
    then.
  returned: success
  type: list
  elements: str
"""

import base64
import glob
import hashlib
import os
import re
import stat
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.trainyard.gpu.plugins.module_utils import _apt_sources, _openpgp
from ansible_collections.trainyard.gpu.plugins.module_utils._managed_files import read, shown
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record


def digest(content):
    return "" if content is None else hashlib.sha256(content).hexdigest()


def silent(text):
    """Without the credentials in its URLs, for display."""
    return re.sub(r"://[^/@\s]*@", "://", text)


class Host:
    def __init__(self, module):
        self.module = module
        self.folder = module.params["folder"]
        self.file = Record(module, module.params["record"])
        self.requested = {}
        self.result = {
            "changed": False,
            "changed_paths": [],
            "taken_out": [],
            "kept": [],
            "diff": [],
        }

    def fail(self, message, fix):
        self.module.fail_json(msg="%s; nothing was changed. %s" % (message, fix), changed_paths=[])

    def files_of(self, name):
        return os.path.join(self.folder, "sources.list.d", name + ".sources"), os.path.join(
            self.folder, "keyrings", name + ".gpg"
        )

    @staticmethod
    def write(path, content, mode=0o644):
        """Written atomically and with its mode from the start, because a source may contain
        credentials. Apt ignores names that begin with a dot.
        """
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".trainyard")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(draft, mode)
        os.rename(draft, path)

    # The requested state; nothing is written before it is complete

    def want(self, path, content, shows=True):
        """A file's new content, None to remove it."""
        former = read(path)
        if content == former:
            return
        self.requested[path] = content
        self.result["changed_paths"].append(path)
        if shows:
            self.result["diff"].append(
                {
                    "before_header": path,
                    "after_header": path,
                    "before": silent(shown(former)),
                    "after": silent(shown(content)),
                }
            )

    def sources(self):
        return [
            path
            for path in [os.path.join(self.folder, "sources.list")]
            + sorted(glob.glob(os.path.join(self.folder, "sources.list.d", "*")))
            if path.endswith((".list", ".sources")) and os.path.isfile(path)
        ]

    def take_out_entries(self, own, ours):
        patterns = [re.compile(pattern) for pattern in self.module.params["replaces"]]
        architecture = (
            self.module.params["architecture"]
            or self.module.run_command(["dpkg", "--print-architecture"])[1].strip()
        )
        places = [
            entry["location"]
            for entry in _apt_sources.entries(own, self.module.params["source"], architecture)
        ]
        if not places:
            self.fail(
                "source names no repository",
                "Set source to a deb822 paragraph with URIs and Suites",
            )

        def unwanted(entry):
            return entry["location"] in places or any(
                pattern.fullmatch(entry["location"]) for pattern in patterns
            )

        for path in self.sources():
            if path in ours:
                continue
            content = read(path)
            try:
                rest = _apt_sources.without(path, content.decode("utf-8"), unwanted, architecture)
            except UnicodeDecodeError:
                # Then apt cannot read it either, and reports it.
                continue
            if rest["gone"]:
                gone = rest["empty"] and os.path.basename(path) != "sources.list"
                self.want(path, None if gone else rest["text"].encode("utf-8"))
                self.result["taken_out"].append(
                    {"path": path, "what": sorted({silent(uri) for uri in rest["gone"]})}
                )

    def take_out_keys(self):
        retired = {fingerprint.upper() for fingerprint in self.module.params["retired_keys"]}
        for path in [os.path.join(self.folder, "trusted.gpg")] + sorted(
            glob.glob(os.path.join(self.folder, "trusted.gpg.d", "*"))
        ):
            content = (
                read(path) if path.endswith((".gpg", ".asc")) and os.path.isfile(path) else None
            )
            try:
                keys = _openpgp.keys(content) if content else {}
            except _openpgp.ParseError:
                # Such as GnuPG's own format, which apt ignores.
                continue
            kept = [key for fingerprint, key in keys.items() if fingerprint not in retired]
            if len(kept) < len(keys) and (not kept or path.endswith(".gpg")):
                self.want(path, b"".join(kept) or None)
                self.result["taken_out"].append({"path": path, "what": sorted(retired & set(keys))})

    # The key

    def keyring(self, path, noted):
        """The keyring's content, None if check mode prevents its download; and how it is recognised
        next time.
        """
        checksums = [
            checksum.rpartition(":")[2] for checksum in self.module.params["key_checksums"]
        ]
        fingerprints = [
            fingerprint.replace(" ", "").upper()
            for fingerprint in self.module.params["key_fingerprints"]
        ]
        if not checksums and not fingerprints:
            self.fail(
                "the key of this repository is unknown", "Set key_checksums or key_fingerprints"
            )
        there = read(path)
        if there is not None:
            if noted.get("fetched") in checksums and noted.get("placed") == digest(there):
                return there, noted
            if not checksums and self.has_only(there, fingerprints):
                return there, noted
        if self.module.check_mode:
            return None, noted
        content = self.fetch(self.module.params["key_url"])
        keys = self.keys_in(content, checksums, fingerprints)
        ring = b"".join(keys.values())
        return ring, {"fetched": digest(content), "placed": digest(ring)}

    def keys_in(self, content, checksums, fingerprints):
        """The keys of a download by fingerprint, only those that are requested.

        Fail if it is not the requested one.
        """
        url = self.module.params["key_url"]
        if checksums and digest(content) not in checksums:
            self.fail(
                "%s has the SHA-256 checksum %s, expected %s"
                % (url, digest(content), " or ".join(checksums)),
                (
                    "Compare it with the checksum of the vendor's key from a second source. If "
                    "they are the same, add it to key_checksums"
                ),
            )
        try:
            keys = {}
            for part in self.unpacked(content) if url.endswith(".deb") else [content]:
                keys.update(_openpgp.keys(part))
        except _openpgp.ParseError as error:
            self.fail(
                "%s is not a keyring: %s" % (url, error),
                (
                    "Set key_url to an OpenPGP key or a package with a keyring, and check that no "
                    "proxy answers for it"
                ),
            )
        if fingerprints:
            missing = [fingerprint for fingerprint in fingerprints if fingerprint not in keys]
            if missing:
                self.fail(
                    "%s has the keys %s, but lacks %s" % (url, ", ".join(keys), ", ".join(missing)),
                    "If the vendor has announced a new key, set key_fingerprints to it",
                )
            keys = {fingerprint: keys[fingerprint] for fingerprint in fingerprints}
        return keys

    @staticmethod
    def has_only(content, fingerprints):
        try:
            return sorted(_openpgp.keys(content)) == sorted(fingerprints)
        except _openpgp.ParseError:
            return False

    def fetch(self, url):
        try:
            return open_url(
                url, timeout=self.module.params["timeout"], http_agent="trainyard.gpu"
            ).read()
        # What a URL can fail with is many things, of urllib's, of ssl's and of http's.
        except Exception as error:
            self.fail(
                "%s can't be fetched: %s" % (url, error),
                "Check key_url, and the name server, proxy and certificates of this host",
            )

    def unpacked(self, content):
        with tempfile.TemporaryDirectory(dir=self.module.tmpdir) as folder:
            package = os.path.join(folder, "keyring.deb")
            with open(package, "wb") as stream:
                stream.write(content)
            rc, dummy, stderr = self.module.run_command(
                [
                    self.module.get_bin_path("dpkg-deb", required=True),
                    "--extract",
                    package,
                    folder + "/root",
                ]
            )
            if rc:
                self.fail(
                    "%s is not a package: %s" % (self.module.params["key_url"], stderr.strip()),
                    "Set key_url to a complete .deb file",
                )
            found = [
                read(path)
                for path in sorted(
                    glob.glob(folder + "/root/usr/share/keyrings/*.gpg")
                    + glob.glob(folder + "/root/usr/share/keyrings/*.asc")
                )
            ]
        if not found:
            self.fail(
                "%s has no keyring below /usr/share/keyrings" % self.module.params["key_url"],
                "Set key_url to a package with one, or to the key itself",
            )
        return found

    # The two states

    def place(self, name):
        own, ring = self.files_of(name)
        record = self.file.read()
        # Sources that this module has placed for other names stay, also where one's pattern takes
        # in another.
        ours = {self.files_of(other)[0] for other in record.get("keyrings", {})} | {own}
        self.take_out_entries(own, ours)
        self.take_out_keys()
        content, noted = self.keyring(ring, record.get("keyrings", {}).get(name, {}))
        if content is None:
            self.result["changed_paths"].append(ring)
        else:
            self.want(ring, content, shows=False)
        self.want(own, self.module.params["source"].encode("utf-8"))
        self.result["changed"] = bool(self.result["changed_paths"])
        if self.module.check_mode or not (
            self.requested or noted != record.get("keyrings", {}).get(name)
        ):
            return
        former = record.setdefault("former", {})
        for path, after in self.requested.items():
            if path in (own, ring):
                continue
            before = read(path)
            # What was there first decides, unless somebody has written it anew.
            if path not in former or former[path]["left"] != digest(before):
                former[path] = dict(
                    written(before),
                    mode="%04o" % stat.S_IMODE(os.stat(path).st_mode),
                    left=digest(after),
                )
            else:
                former[path]["left"] = digest(after)
        record.setdefault("keyrings", {})[name] = noted
        self.file.write(record)
        # The key before the source that needs it, the old entry gone before the new one comes.
        for path in sorted(self.requested, key=[ring, *self.requested].index):
            self.bring(path, self.requested[path])

    def bring(self, path, content, mode=None):
        if content is None:
            os.unlink(path)
        else:
            self.write(
                path,
                content,
                mode or (stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o644),
            )

    def remove(self, names):
        record = self.file.read()
        for name in names:
            for path in self.files_of(name):
                self.want(path, None, shows=path.endswith(".sources"))
        modes = {}
        for path, former in record.get("former", {}).items():
            if digest(read(path)) == former["left"]:
                self.want(path, content_of(former))
                modes[path] = int(former["mode"], 8)
            elif read(path) != content_of(former):
                self.result["kept"].append(path)
        if os.path.exists(self.file.path):
            self.result["changed_paths"].append(self.file.path)
        self.result["changed"] = bool(self.result["changed_paths"])
        if self.module.check_mode:
            return
        for path, content in self.requested.items():
            self.bring(path, content, modes.get(path))
        self.file.write({})


def written(content):
    """Bytes as they stand in the record, readable where they are text."""
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}


def content_of(former):
    return (
        former["text"].encode("utf-8") if "text" in former else base64.b64decode(former["base64"])
    )


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "names": {"type": "list", "elements": "str", "required": True},
            "source": {"type": "str"},
            # Of public keys.
            "key_url": {"type": "str", "no_log": False},
            "key_checksums": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "key_fingerprints": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "replaces": {"type": "list", "elements": "str", "default": []},
            "retired_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "record": {"type": "path", "required": True},
            "folder": {"type": "path", "default": "/etc/apt"},
            "architecture": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 30},
        },
        required_if=[("state", "present", ["source", "key_url"])],
        supports_check_mode=True,
    )
    host = Host(module)
    names = module.params["names"]
    if module.params["state"] == "absent":
        host.remove(names)
    elif len(names) != 1:
        host.fail("names: %d sources, expected one" % len(names), "Run the module once per source")
    else:
        host.place(names[0])
    module.exit_json(**host.result)


if __name__ == "__main__":
    main()
