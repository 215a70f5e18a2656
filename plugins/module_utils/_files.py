# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files as modules and programs on hosts read and write them.

It imports only what is quick to load: prologs wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat

#: Characters of a file of a person, if the caller sets no other limit.
MOST = 1 << 20
_REQUIRED = object()


def read_bytes(path: str, size: int | None = None) -> bytes:
    """Return the content of a file, or of its last C(size) bytes. Nothing if it cannot be read.

    Files of processes disappear at any time.
    """
    try:
        with open(path, "rb") as stream:
            if size is not None:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            return stream.read()
    except OSError:
        return b""


def read(path: str, size: int | None = None) -> str:
    """Return the text of a file as P(read_bytes) returns its content."""
    return read_bytes(path, size).decode("utf-8", "replace")


def read_existing(path: str) -> str:
    """Return the text of a file, nothing if it does not exist. OSError says why it cannot
    be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def read_json(path: str) -> object:
    """Return the content of a JSON file, or None if it cannot be read or is damaged."""
    try:
        return json.loads(read(path))
    except (ValueError, RecursionError):
        return None


def load_json(path: str, missing: object = _REQUIRED) -> object:
    """Return the content of a JSON file. OSError and ValueError say why it cannot be read.

    :param missing: what to return if there is no such file.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        if missing is _REQUIRED:
            raise
        return missing


def open_regular(path: str) -> io.BufferedReader:
    """Open a regular file, to read its bytes. OSError otherwise.

    In a folder of a person, anything may be in its place: a pipe without a writer would block for
    ever.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(number, "rb")


def read_regular(path: str, most: int = MOST) -> str:
    """Return the text of a regular file with at most C(most) characters. OSError otherwise."""
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace") as stream:
        text = stream.read(most + 1)
    if len(text) > most:
        raise OSError(errno.EFBIG, "it has more than %d characters" % most, path)
    return text


def has_content(path: str, content: bytes, mode: int) -> bool:
    """Return whether a file is a regular one with this content and mode."""
    with contextlib.suppress(OSError), open_regular(path) as stream:
        found = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        return found == mode and stream.read(len(content) + 1) == content
    return False


def write_private(path: str, text: str, mode: int = 0o600) -> None:
    """Write a file in one step, unless it has this content.

    Only its owner reads it, unless C(mode) says otherwise. A host that has it open, over NFS, would
    lose a file that another one replaces.
    """
    content = text.encode()
    if has_content(path, content, mode):
        return
    new = "%s.%d" % (path, os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(new, flags, 0o600), "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
        os.rename(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
