# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Quotes values for configuration files, so that they are read back unchanged.

A value that a format cannot represent is rejected and never written.

The input is validated earlier. This is for values from elsewhere, such as from a role that is used
alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import (
    is_host,
    is_plain_text,
    show,
)

__all__ = ["FORMATS", "QuoteError", "quoted"]

# Other values are not quoted, so that a correct file stays unchanged: a change restarts its
# services.
_OF_UNITS = re.compile(r"""[\s"'\\%$;]|\A\Z""")
_OF_ENVIRONMENT_FILES = re.compile(r"""[\s"'\\`$#;]""")


class QuoteError(ValueError):
    """A value that a format cannot represent; the message has both."""


def _one_line(text: str) -> str:
    if not is_plain_text(text):
        raise QuoteError("has a line break or a control character")
    return text


def _field(text: str) -> str:
    """Formats that use everything between two blanks literally, without quotes."""
    if not _one_line(text) or re.search(r"\s", text):
        raise QuoteError("is empty or has white space")
    return text


def _host_name(text: str) -> str:
    if not is_host(text):
        raise QuoteError("is not a host name or an address")
    return text


def _systemd_line(text: str) -> str:
    """The rest of a line, without quotes: What=, Where=, Description=."""
    if _one_line(text) != text.strip() or text.endswith("\\"):
        raise QuoteError("begins or ends with a blank, or ends with a backslash")
    return text.replace("%", "%%")


def _systemd_word(text: str) -> str:
    """One word of a list: RequiresMountsFor=."""
    if not _OF_UNITS.search(_one_line(text)):
        return text
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _systemd_argument(text: str) -> str:
    """One word of a command: ExecStart= also replaces variables."""
    return _systemd_word(text).replace("$", "$$")


def _environment_file(text: str) -> str:
    """The value of a variable in an EnvironmentFile= file."""
    if not _OF_ENVIRONMENT_FILES.search(_one_line(text)):
        return text
    return '"%s"' % re.sub(r'(["\\`$])', r"\\\1", text)


def _apt_conf(text: str) -> str:
    if '"' in _one_line(text):
        raise QuoteError('has a ", for which apt.conf knows no escape')
    return '"%s"' % text


def _export_path(text: str) -> str:
    """exports(5) interprets a backslash with three octal digits everywhere, also within quotes."""
    return '"%s"' % re.sub(r'["\\]', lambda found: "\\%03o" % ord(found.group()), _one_line(text))


def _export_word(text: str) -> str:
    """A client or an option of exports(5)."""
    if re.search(r'[()",#\\]', _field(text)):
        raise QuoteError('has one of ( ) " , # and \\')
    return text


FORMATS: dict[str, Callable[[str], str]] = {
    "one_line": _one_line,
    "field": _field,
    "host_name": _host_name,
    "systemd_line": _systemd_line,
    "systemd_word": _systemd_word,
    "systemd_argument": _systemd_argument,
    "environment_file": _environment_file,
    "apt_conf": _apt_conf,
    "export_path": _export_path,
    "export_word": _export_word,
}


def quoted(value: object, form: str) -> str:
    """Return a value quoted for one of FORMATS. QuoteError: the format cannot represent it."""
    try:
        return FORMATS[form](str(value))
    except QuoteError as error:
        raise QuoteError(
            "'%s' cannot be written as %s: it %s" % (show(str(value)), form, error)
        ) from error
