# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""clean-store STORE, as root: removes from the layers of the image store what would give rights on
the host, and then makes them readable for people.

Podman creates the folder of a layer for root only. It is opened after all of its files are clean,
so people never reach a file with rights.
"""

import contextlib
import errno
import os
import stat
import sys

# A store without this file, or with another version in it, was filled by an earlier release: its
# layers are open, and were never cleaned.
MARK, VERSION = "trainyard-clean", "1\n"
LAYERS, LINKS = "overlay", "l"
CAPABILITIES = "security.capability"
READ, SEARCH = 0o444, 0o111
OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
SET_ID = stat.S_ISUID | stat.S_ISGID


def clean_mode(found):
    """Return the mode that a file, folder or device of the store gets: people read it, only root
    writes it, and it gives no other ID.
    """
    mode = stat.S_IMODE(found.st_mode) & ~SET_ID & ~OF_OTHERS
    is_device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    if is_device and found.st_rdev:
        # A device of the host. One with the number 0 marks a file that the layer removes.
        return 0
    mode |= READ
    if stat.S_ISDIR(found.st_mode) or mode & SEARCH:
        mode |= SEARCH
    return mode


def without_capabilities(path):
    try:
        os.removexattr(path, CAPABILITIES, follow_symlinks=False)
    except OSError as error:
        # ENOTSUP: a file system that has none.
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise


def clean(path):
    """Clean a file, folder or device, and return whether it is a folder. Links have no rights."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return False
    if stat.S_ISREG(found.st_mode):
        # Before its mode: people could start it in between.
        without_capabilities(path)
    mode = clean_mode(found)
    if mode != stat.S_IMODE(found.st_mode):
        os.chmod(path, mode)
    return stat.S_ISDIR(found.st_mode)


def clean_tree(top):
    """Clean all that is in a folder, and the folder itself at the end.

    Images have folders deeper than Python's recursion.
    """
    waiting = [top]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            paths = [entry.path for entry in entries]
        for path in paths:
            if clean(path):
                waiting.append(path)
    clean(top)


def clean_layers(folder, all_layers):
    """Clean the layers that people cannot enter yet, or all of them, and podman's own files beside
    them.
    """
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        found = os.lstat(path)
        is_layer = stat.S_ISDIR(found.st_mode) and name != LINKS
        if not is_layer:
            # Among them can be a device file of the disk, which podman makes for quotas.
            clean(path)
        elif all_layers or not found.st_mode & stat.S_IXOTH:
            clean_tree(path)
    clean(folder)


def is_marked(store):
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(store, MARK), encoding="ascii") as stream:
            return stream.read() == VERSION
    return False


def clean_store(store):
    """Clean what is new in the store, or all of it the first time."""
    is_known = is_marked(store)
    layers = os.path.join(store, LAYERS)
    if os.path.isdir(layers):
        clean_layers(layers, all_layers=not is_known)
    for name in sorted(os.listdir(store)):
        path = os.path.join(store, name)
        if name != LAYERS and clean(path):
            clean_tree(path)
    if not is_known:
        with open(os.path.join(store, MARK), "w", encoding="ascii") as stream:
            stream.write(VERSION)
        clean(os.path.join(store, MARK))
    # At last: a store that is filled for the first time is closed until here.
    clean(store)


if __name__ == "__main__":
    try:
        clean_store(sys.argv[1])
    except OSError as problem:
        print("clean-store: %s" % problem, file=sys.stderr)
        sys.exit(1)
