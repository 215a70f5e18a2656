# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils._pem import ParseError, certificates
from ansible_collections.trainyard.gpu.plugins.plugin_utils._placed_files import files_differ


def certificate_fingerprints(texts: list[str]) -> list[str]:
    """Return the SHA-256 fingerprints of all certificates, none if a text cannot be read."""
    try:
        return [fingerprint for text in texts for fingerprint in certificates(text)]
    except ParseError:
        return []


class FilterModule:
    """Filters for role package_sources."""

    def filters(self):
        return {
            "certificate_fingerprints": certificate_fingerprints,
            "files_differ": files_differ,
        }
