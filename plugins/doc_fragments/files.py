# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of one file, directory or link, for the modules that manage them."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  files:
    type: list
    elements: dict
    suboptions:
      path:
        description: Absolute path on the host.
        type: path
        required: true
      state:
        description:
          - V(file), V(directory) and V(link) are created or corrected.
          - V(absent) removes a file, a link, or an empty directory. A directory with content fails
            the task, because its content is not the caller's.
        type: str
        choices: [file, directory, link, absent]
        default: file
      content:
        description: Text of a V(file), written as UTF-8.
        type: str
      src:
        description: For V(file) a file on the host whose bytes are copied; for V(link) the link's
          target.
        type: path
      mode:
        description:
          - Permissions as a string of octal digits, for example V("0600").
          - By default a new file gets V("0644") and a new directory V("0755"). An existing one
            keeps its permissions. A new directory below one with a default access list gets the
            permissions of that list.
        type: str
      owner:
        description: Name or number of the owner. By default it is not changed.
        type: str
      group:
        description: Name or number of the group. By default it is not changed.
        type: str
      replace:
        description: V(false) keeps the content of an existing file. Its mode, owner and group are
          still corrected.
        type: bool
        default: true
      create:
        description: V(false) creates nothing. What exists is still corrected.
        type: bool
        default: true
      leave_filled:
        description: For V(absent), V(true) keeps a directory with content instead of failing.
        type: bool
        default: false
      validate:
        description:
          - Command that must end with exit status 0 before the new content is used. C(%s) is
            replaced by the path of the new content. It runs without a shell, and not in check mode.
        type: str
"""
