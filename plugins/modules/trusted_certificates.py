#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trusted_certificates
short_description: Install a site's certificate authorities on a host
version_added: "0.1.0"
description:
  - Writes certificates to the folder of local authorities, one file each, and runs
    C(update-ca-certificates) if the system's bundle lacks one of them or has one that is no longer
    requested.
  - A certificate that the system's bundle has from another source is not added again.
  - Keeps a copy of the resulting bundle for containers and image builds, which cannot read the
    host's bundle.
  - Manages other files of the site first, in the same run.
author:
  - trainyard maintainers (@trainyard)
options:
  certificates:
    description:
      - PEM texts. One text may contain several certificates.
      - Certificates from earlier runs that are no longer listed are removed. An empty list removes
        all.
    type: list
    elements: str
    required: true
  bundle:
    description: Path of the copy of the bundle. Without O(certificates) the copy is removed.
    type: path
  files:
    description:
      - Other files of the site, in this order, in the form of M(trainyard.gpu.managed_files).
      - Contents appear in diffs and logs. For secret contents use M(trainyard.gpu.managed_files)
        with C(no_log).
    default: []
  prefix:
    description: Prefix of the names of new files. Only files with this prefix are ever removed.
    type: str
    default: trainyard-
  directory:
    description: The system's folder of local authorities.
    type: path
    default: /usr/local/share/ca-certificates
  system_bundle:
    description: The bundle that C(update-ca-certificates) writes.
    type: path
    default: /etc/ssl/certs/ca-certificates.crt
  executable:
    description: The program that updates the system's bundle.
    type: path
    default: update-ca-certificates
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.files
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: debian
seealso:
  - module: trainyard.gpu.managed_files
"""

EXAMPLES = r"""
- name: Trust the site's certificate authority
  trainyard.gpu.trusted_certificates:
    certificates:
      - "{{ lookup('ansible.builtin.file', 'site-ca.pem') }}"
    bundle: /etc/trainyard/site/ca-bundle.crt
    files:
      - {path: /etc/trainyard/site, state: directory}
      - path: /etc/trainyard/site/pip.conf
        content: "{{ lookup('ansible.builtin.template', 'pip.conf.j2') }}"

- name: Remove the site's certificate authority
  trainyard.gpu.trusted_certificates:
    certificates: []
    bundle: /etc/trainyard/site/ca-bundle.crt
"""

RETURN = r"""
changed_paths:
  description: Paths of O(files) that were changed.
  returned: success
  type: list
  elements: str
  sample: [/etc/trainyard/site/pip.conf]
placed:
  description: SHA-256 fingerprints of the certificates that this run added.
  returned: success
  type: list
  elements: str
  sample: [9f1c8a6d2be4f0375c11e2ab8d6f7f55c1f1c04b8d0d1e8f0a7b6c5d4e3f2a10]
removed:
  description: Names of the files that this run removed.
  returned: success
  type: list
  elements: str
  sample: [trainyard-9f1c8a6d2be4.crt]
updated:
  description: Whether the system's bundle was updated, or would be in check mode.
  returned: success
  type: bool
  sample: true
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._files import read_existing
from ansible_collections.trainyard.gpu.plugins.module_utils._managed_files import (
    ENTRY,
    ManagedFiles,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._pem import (
    ParseError,
    certificates,
    check,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._trust_store import (
    DIRECTORY,
    PREFIX,
    SYSTEM_BUNDLE,
    file_name,
    files_in,
)


def write(module, path, text):
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    module.atomic_move(temporary, path)


def asked_for(module):
    """{fingerprint: PEM} of all texts."""
    requested = {}
    for number, text in enumerate(module.params["certificates"], start=1):
        try:
            found = certificates(text)
            for pem in found.values():
                check(pem)
        except ParseError as error:
            module.fail_json(
                msg=(
                    f"certificates, entry {number}: {error}. Give the complete text of "
                    "certificates of authorities in PEM format"
                )
            )
        requested.update(found)
    return requested


def held_by(path):
    """The system's bundle may contain other text besides certificates."""
    return certificates(read_existing(path), strict=False)


def update_store(module, files, placed, removed):
    """Write and remove files, update the system's bundle, and verify its content."""
    directory, executable = (
        module.params["directory"],
        module.get_bin_path(module.params["executable"]),
    )
    if executable is None:
        module.fail_json(
            msg=(
                f"'{module.params['executable']}' is not installed on this host: install the "
                "package ca-certificates"
            )
        )
    if module.check_mode:
        return
    os.makedirs(directory, exist_ok=True)
    for name in placed:
        write(module, os.path.join(directory, name), files[name][1])
    for name in removed:
        os.unlink(os.path.join(directory, name))
    # Without --fresh the links to withdrawn certificates stay in /etc/ssl/certs.
    rc, out, err = module.run_command([executable] + (["--fresh"] if removed else []))
    held = held_by(module.params["system_bundle"])
    missing = [name for name, (fingerprint, unused) in files.items() if fingerprint not in held]
    if rc != 0 or missing:
        module.fail_json(
            msg=f"{executable} (exit status {rc}) did not add to {module.params['system_bundle']}: "
            f"{', '.join(missing) or 'nothing is missing'}. It said: {(err or out).strip()}. "
            "Run it on the host, correct what it names, and run this again"
        )


def files_of(requested: dict, held: dict, ours: dict, prefix: str) -> dict:
    """Return the files that the host needs as {name: (fingerprint, PEM)}.

    Not those of certificates that the system trusts anyway, unless it trusts them because of this
    module's file.
    """
    files = {}
    for fingerprint, pem in requested.items():
        name = file_name(prefix, fingerprint)
        if fingerprint not in held or name in ours:
            files[name] = (fingerprint, pem)
    return files


def copy_bundle(module, is_asked: bool, updated: bool) -> bool:
    """Copy the system's bundle, or remove the copy where no certificate is requested.

    Return whether it differed.
    """
    bundle = module.params["bundle"]
    if bundle is None:
        return False
    text = read_existing(module.params["system_bundle"]) if is_asked else ""
    # In check mode the system's bundle is unchanged.
    copied = text != read_existing(bundle) or (updated and module.check_mode and is_asked)
    if copied and not module.check_mode:
        if is_asked:
            write(module, bundle, text)
        else:
            os.unlink(bundle)
    return copied


def main():
    module = AnsibleModule(
        argument_spec={
            "certificates": {"type": "list", "elements": "str", "required": True},
            "bundle": {"type": "path"},
            "files": {"type": "list", "elements": "dict", "options": ENTRY, "default": []},
            "prefix": {"type": "str", "default": PREFIX},
            "directory": {"type": "path", "default": DIRECTORY},
            "system_bundle": {"type": "path", "default": SYSTEM_BUNDLE},
            "executable": {"type": "path", "default": "update-ca-certificates"},
        },
        supports_check_mode=True,
    )
    prefix, directory = module.params["prefix"], module.params["directory"]
    command = asked_for(module)
    manager = ManagedFiles(module)
    manager.run(module.params["files"])
    held = held_by(module.params["system_bundle"])
    ours = files_in(directory, prefix)

    files = files_of(command, held, ours, prefix)
    placed = [name for name, (unused, pem) in files.items() if ours.get(name) != pem]
    removed = [name for name in ours if name not in files]
    # Also compare the content of the bundle, so that the next run completes an interrupted one.
    updated = bool(placed or removed) or any(
        fingerprint not in held for fingerprint, unused in files.values()
    )
    if updated:
        update_store(module, files, placed, removed)

    copied = copy_bundle(module, bool(command), updated)
    module.exit_json(
        changed=updated or copied or bool(manager.changed_paths),
        changed_paths=manager.changed_paths,
        placed=[files[name][0] for name in placed],
        removed=removed,
        updated=updated,
        diff=[
            *manager.diff,
            {
                "before_header": directory,
                "after_header": directory,
                "before": "".join(f"{name}\n" for name in sorted(ours)),
                "after": "".join(f"{name}\n" for name in sorted(files)),
            },
        ],
    )


if __name__ == "__main__":
    main()
