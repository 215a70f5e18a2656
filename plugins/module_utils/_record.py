# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A JSON file on the host that tells what was there before, or what was made: what teardown needs and can't see."""

from __future__ import annotations

import json
import os

__all__ = ["read_record", "write_record"]


def read_record(module, path):
    """Return the content of a record, {} where there is none; one that can't be read fails the module."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        return module.fail_json(msg="%s is no JSON (%s), and holds what teardown needs: restore it, or remove it to keep what is there" % (path, error))


def write_record(module, path, record):
    """Write a record and its folder down to the disk; one that holds nothing is removed. Nothing happens in check mode."""
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
