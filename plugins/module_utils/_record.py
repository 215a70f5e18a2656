# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A JSON file on the host that records the former state, or what was created, for teardown."""

from __future__ import annotations

import json
import os

__all__ = ["read_record", "write_record"]


def read_record(module, path):
    """Return the content of a record, {} if there is none. An unreadable record fails the module."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        return module.fail_json(msg="%s is not JSON (%s), but teardown needs it: restore it, or remove it to keep the current state" % (path, error))


def write_record(module, path, record):
    """Write a record and sync it to disk. An empty record is removed. Does nothing in check mode."""
    if module.check_mode:
        return
    if not any(record.values()):
        if os.path.exists(path):
            os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    unfinished = path + ".unfinished"
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)
