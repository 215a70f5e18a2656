# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""trainyard-root UID GID COMMAND...: runs a command as root of the container, whose files are those
of a person.

`trainyard-run --enter=0 --root` starts it in the container as ID 0 of the container, by the Python
of the image, 3.6 or newer. On the share that ID would be a subordinate ID, whose files the person
could not delete. The command gets a user namespace in which ID 0 is the person, to whom all files
of the image belong, too. All other IDs but the two stay, so that packages may have files of any
user.
"""

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000


def mapping(text, own):
    """Return the lines for uid_map or gid_map of a namespace in which 0 is C(own).

    C(text) is the map of this namespace.
    """
    lines = ["0 %d 1" % own]
    for row in text.splitlines():
        first, count = int(row.split()[0]), int(row.split()[2])
        points = (
            [first - 1]
            + [number for number in sorted({0, own}) if first <= number < first + count]
            + [first + count]
        )
        for before, after in zip(points, points[1:]):
            if after - before > 1:
                lines.append("%d %d %d" % (before + 1, before + 1, after - before - 1))
    return lines


def read(path):
    with open(path, encoding="ascii") as stream:
        return stream.read()


def write_maps(pid, maps):
    """Write the maps of another process. In one call: the kernel accepts one."""
    for name, lines in maps:
        number = os.open("/proc/%d/%s" % (pid, name), os.O_WRONLY)
        os.write(number, ("\n".join(lines) + "\n").encode("ascii"))
        os.close(number)


def become_root(uid, gid):
    """Move this process to the new namespace.

    A child, which stays here, has the right to write the maps.
    """
    maps = [
        ("gid_map", mapping(read("/proc/self/gid_map"), gid)),
        ("uid_map", mapping(read("/proc/self/uid_map"), uid)),
    ]
    moved, tell = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(tell)
            if os.read(moved, 1):
                write_maps(parent, maps)
                code = 0
        except OSError as error:
            sys.stderr.write("trainyard-root: the IDs cannot be set: %s\n" % error)
        finally:
            os._exit(code)
    os.close(moved)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER):
        raise OSError(
            ctypes.get_errno(),
            "a user namespace cannot be made: %s" % os.strerror(ctypes.get_errno()),
        )
    os.write(tell, b"1")
    os.close(tell)
    if os.waitpid(child, 0)[1]:
        raise OSError("this host does not permit other IDs")
    # The other groups stay: they are those of the person.
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def main(argv):
    try:
        become_root(int(argv[0]), int(argv[1]))
    except OSError as error:
        sys.stderr.write("trainyard-root: %s; tell the operator\n" % (error.strerror or error))
        return 125
    try:
        os.execvp(argv[2], argv[2:])
    except OSError as error:
        sys.stderr.write("trainyard-root: %s: %s\n" % (argv[2], error.strerror))
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
