# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Name servers at the beginning of /etc/resolv.conf, in marked lines, so that everything else in it
stays.
"""

from __future__ import annotations

__all__ = ["BEGIN", "END", "asked_servers", "drop_in", "with_servers"]

BEGIN = "# Begin of trainyard.gpu's name servers; those below come after them."
END = "# End of trainyard.gpu's name servers."


def asked_servers(text: str) -> list[str]:
    """The name servers that programs use with this resolv.conf, in order: the first three, like the
    C library.
    """
    words = [line.split() for line in text.splitlines()]
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"][:3]


def drop_in(servers: list[str]) -> str:
    """For systemd-resolved: use these for every name, because otherwise its per-link servers have
    priority.
    """
    return (
        "# Managed by trainyard.gpu, role package_sources.\n[Resolve]\nDNS=%s\nDomains=~.\n"
        % " ".join(servers)
    )


def with_servers(text: str, servers: list[str]) -> str:
    """The file with these servers before its own, and without those of an earlier run."""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        if line == BEGIN:
            within = True
        elif line == END and within:
            within = False
        elif not within:
            lines.append(line)
    if within:
        # The end marker was removed, so the end of the lines is unknown.
        return text
    ours = [BEGIN] + ["nameserver %s" % server for server in servers] + [END] if servers else []
    return "".join("%s\n" % line for line in ours + lines)
