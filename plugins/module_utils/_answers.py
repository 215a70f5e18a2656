# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What other information modules would answer, for a module that asks for them in its own run.

A module run costs a host 0.25 s of processor time, most of it for Python and Ansible themselves.
"""

from __future__ import annotations

import copy

from typing import Any, Callable, Dict, NoReturn

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

__all__ = ["answer_of"]

#: Of a module: takes an AnsibleModule, and returns the values that the module returns.
Read = Callable[[Any], Dict[str, Any]]


class NoAnswer(Exception):
    """The module would fail."""


def _refuse(msg: str, **_result: Any) -> NoReturn:
    raise NoAnswer(msg)


def answer_of(
    module: Any, read: Read, spec: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Return what another module would return in check mode for these options of C(spec).

    Empty without options, and if it would fail: its role then runs it, and it tells why.
    """
    if not options:
        return {}
    judged = ArgumentSpecValidator(spec).validate(options)
    if judged.error_messages:
        return {}
    inner = copy.copy(module)
    vars(inner).update(params=judged.validated_parameters, check_mode=True, fail_json=_refuse)
    try:
        return read(inner)
    except Exception:
        # Whatever it is: the module's own run tells it where it belongs.
        return {}
