# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Name servers at the head of /etc/resolv.conf, in lines that are known again, so that all else in it stays."""

from __future__ import annotations

__all__ = ["BEGIN", "END", "asked_servers", "drop_in", "with_servers"]

BEGIN = "# Begin of trainyard.gpu's name servers; those below come after them."
END = "# End of trainyard.gpu's name servers."


def asked_servers(text):
    """The name servers that a program with this resolv.conf asks, in order: the first three, as the C library takes them."""
    words = [line.split() for line in text.splitlines()]
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"][:3]


def drop_in(servers):
    """For systemd-resolved: these for every name, as its own per-link servers would else be asked first."""
    return "# Managed by trainyard.gpu, role package_sources.\n[Resolve]\nDNS=%s\nDomains=~.\n" % " ".join(servers)


def with_servers(text, servers):
    """The file with these servers before its own, and without those of an earlier run."""
    lines, within = [], False
    for line in text.splitlines():
        if line == BEGIN:
            within = True
        elif line == END and within:
            within = False
        elif not within:
            lines.append(line)
    if within:
        # Somebody has taken the last line away: then nobody knows where ours end.
        return text
    ours = [BEGIN] + ["nameserver %s" % server for server in servers] + [END] if servers else []
    return "".join("%s\n" % line for line in ours + lines)
