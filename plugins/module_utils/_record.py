# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A JSON file on the host that records the former state, or what was created, for teardown."""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Dict

__all__ = ["DamagedRecord", "Record", "parse", "recorded"]

#: What a record has is of the module that writes it.
Content = Dict[str, Any]


class DamagedRecord(ValueError):
    """The content of a record that cannot be used. The text says what to do."""


def parse(content: bytes, path: str) -> Content:
    """Return the dictionary in the bytes of the record at C(path), {} if there are none.

    Raises DamagedRecord.
    """
    # Older versions could leave an empty file after a power loss.
    if not content.strip():
        return {}
    try:
        record = json.loads(content.decode("utf-8"))
    except ValueError as error:
        # Its own text says all. Ansible would print each cause once more.
        raise _damaged(path, error) from None
    if not isinstance(record, dict):
        raise _damaged(path, "a dictionary is expected")
    return record


def _damaged(path: str, reason: object) -> DamagedRecord:
    return DamagedRecord(
        "%s is damaged (%s). It records what teardown restores or removes. Restore it from a "
        "backup, or remove it: teardown then "
        "leaves the host as it is now" % (path, reason)
    )


class Record:
    """The record of an AnsibleModule at C(path).

    It has the former content of a user's files, so only root reads it.
    """

    def __init__(self, module: Any, path: str) -> None:
        self.module, self.path = module, path

    def read(self) -> Content:
        """Return the content, {} if there is no record. A damaged record fails the module."""
        try:
            with open(self.path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return {}
        try:
            return parse(content, self.path)
        except DamagedRecord as error:
            self.module.fail_json(msg=str(error))
            raise

    def write(self, record: Content) -> None:
        """Write the record as a whole and sync it to disk.

        An empty one is removed. Does nothing in check mode.
        """
        if self.module.check_mode:
            return
        if not record:
            if os.path.exists(self.path):
                os.unlink(self.path)
            return
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        unfinished = self.path + ".unfinished"
        # An interrupted run may have left one with other permissions.
        if os.path.lexists(unfinished):
            os.unlink(unfinished)
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            json.dump(record, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, self.path)


def recorded(slurped: Dict[str, str]) -> Content:
    """Return the record that M(ansible.builtin.slurp) has read, {} if the file is empty.

    Raises DamagedRecord, which names its C(source).
    """
    return parse(base64.b64decode(slurped["content"]), slurped["source"])
