# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The certificates that a host trusts: the system's bundle, our files from which
update-ca-certificates makes it, and our copy of it.
"""

from __future__ import annotations

import os

from typing import Any

from ansible_collections.trainyard.gpu.plugins.module_utils._files import read_existing
from ansible_collections.trainyard.gpu.plugins.module_utils._pem import certificates

__all__ = [
    "DIRECTORY",
    "PREFIX",
    "SYSTEM_BUNDLE",
    "file_name",
    "files_in",
    "trusts",
    "trusts_requested",
]

DIRECTORY = "/usr/local/share/ca-certificates"
SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PREFIX = "trainyard-"


def files_in(directory: str, prefix: str) -> dict[str, str]:
    """Return our files with certificates in a folder, by name."""
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    return {
        name: read_existing(os.path.join(directory, name))
        for name in names
        if name.startswith(prefix) and name.endswith(".crt")
    }


def file_name(prefix: str, fingerprint: str) -> str:
    """Return the name of the file of a certificate."""
    return f"{prefix}{fingerprint[:12]}.crt"


def trusts(
    fingerprints: list[str],
    bundle: str,
    system_bundle: str = SYSTEM_BUNDLE,
    directory: str = DIRECTORY,
    prefix: str = PREFIX,
) -> bool:
    """Return whether module trusted_certificates would change nothing for these certificates and
    this copy of the system's bundle.
    """
    text = read_existing(system_bundle)
    held = certificates(text, strict=False)
    if not fingerprints or not set(fingerprints) <= set(held) or read_existing(bundle) != text:
        return False
    requested = {file_name(prefix, each): held[each] for each in fingerprints}
    found = files_in(directory, prefix)
    return all(requested.get(name) == pem for name, pem in found.items())


def trusts_requested(options: dict[str, Any] | None) -> bool:
    """Return P(trusts) for option C(trusted) of module host_info, false without it."""
    return trusts(**options) if options else False
