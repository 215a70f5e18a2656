# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One file, directory or link, as the modules take it that bring such into place."""

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
          - V(file), V(directory) and V(link) are made or corrected.
          - V(absent) removes a file, a link, or a directory that is empty. A directory with content fails the task, as
            what is in it was not placed by the caller.
        type: str
        choices: [file, directory, link, absent]
        default: file
      content:
        description: Text of a V(file), written as UTF-8.
        type: str
      src:
        description: For V(file) a file on the host whose bytes are copied; for V(link) the link's target.
        type: path
      mode:
        description:
          - Permissions as a string of octal digits, for example V("0600").
          - Not given, a new file gets V("0644"), a new directory V("0755"), and what exists keeps its own. A new directory
            below one with a default access list gets what that list says.
        type: str
      owner:
        description: Name or number of the owner. Not given, it stays as it is.
        type: str
      group:
        description: Name or number of the group. Not given, it stays as it is.
        type: str
      replace:
        description: V(false) leaves the content of a file that exists alone; its mode, owner and group are still corrected.
        type: bool
        default: true
      create:
        description: V(false) leaves alone what isn't there. What is there is brought into place.
        type: bool
        default: true
      leave_filled:
        description: For V(absent), V(true) leaves a directory with content alone instead of failing.
        type: bool
        default: false
      validate:
        description:
          - Command that must end with exit status 0 before the new content goes live. C(%s) stands for the path of the new
            content. It is run without a shell, and not in check mode.
        type: str
"""
