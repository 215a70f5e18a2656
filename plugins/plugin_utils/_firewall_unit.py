# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The unit of a table of nftables that belongs to one role. A pure function."""

from __future__ import annotations


def firewall_unit(role, description, table, load):
    """Return the text of a unit that loads a table by a command before slurmd starts.

    Debian's nftables.service flushes all tables when it stops and when it loads its file again,
    this one included.
    """
    return "\n".join([
        "# Managed by trainyard.gpu, role %s." % role, "[Unit]", "Description=" + description,
        "After=nftables.service", "PartOf=nftables.service",
        "ReloadPropagatedFrom=nftables.service", "Before=slurmd.service", "",
        "[Service]", "Type=oneshot", "RemainAfterExit=yes",
        "ExecStart=" + load, "ExecReload=" + load,
        "ExecStop=/usr/sbin/nft delete table " + table, "",
        "[Install]", "WantedBy=multi-user.target nftables.service", ""])
