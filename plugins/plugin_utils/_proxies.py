# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The proxies of a site as environment variables. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable


def proxy_environment(
    http_proxy: str, https_proxy: str = "", no_proxy: Iterable[object] = ()
) -> dict[str, str]:
    """Return the variables that have a value: an empty one would hide that of the host."""
    variables = {
        "http_proxy": http_proxy,
        "https_proxy": https_proxy,
        "no_proxy": ",".join(str(entry) for entry in no_proxy),
    }
    return {name: value for name, value in variables.items() if value}
