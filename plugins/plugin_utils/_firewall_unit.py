# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The unit of a table of nftables that belongs to one role. Pure functions."""

from __future__ import annotations

#: Drop-ins of the distribution's unit.
NFTABLES_FOLDER = "/etc/systemd/system/nftables.service.d"


def firewall_unit(role: str, description: str, table: str, load: str) -> str:
    """Return the text of a unit that loads a table by a command before slurmd starts.

    Debian's nftables.service flushes all tables when it stops and when it loads its file again,
    this one included.
    """
    return "\n".join(
        [
            "# Managed by trainyard.gpu, role %s." % role,
            "[Unit]",
            "Description=" + description,
            "After=nftables.service",
            "PartOf=nftables.service",
            "ReloadPropagatedFrom=nftables.service",
            "Before=slurmd.service",
            "",
            "[Service]",
            "Type=oneshot",
            "RemainAfterExit=yes",
            "ExecStart=" + load,
            "ExecReload=" + load,
            "ExecStop=/usr/sbin/nft delete table " + table,
            "",
            "[Install]",
            "WantedBy=multi-user.target nftables.service",
            "",
        ]
    )


def nftables_drop_in(role: str, service: str) -> str:
    """Return a drop-in of nftables.service that loads the table of a unit again after a start.

    A start of nftables.service flushes all tables, and the unit is active already.
    """
    return "\n".join(
        [
            "# Managed by trainyard.gpu, role %s." % role,
            "[Service]",
            "ExecStartPost=-/usr/bin/systemctl --no-block try-reload-or-restart " + service,
            "",
        ]
    )
