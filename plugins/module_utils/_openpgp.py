# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""OpenPGP public keys (RFC 4880, RFC 9580): the keys of a keyring by their fingerprints.

A minimal host has no gpg. Apt depends on gpgv or sqv, which check signatures but cannot list keys.
The image build uses it too: Python 3.6 with nothing but the standard library.
"""

import base64
import binascii
import hashlib
import re

from typing import Dict, Iterator, Optional, Tuple

__all__ = ["ParseError", "binary", "keys"]

_PUBLIC_KEY = 6
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)


class ParseError(ValueError):
    """Bytes that are not an OpenPGP keyring."""


def binary(content: bytes) -> bytes:
    """A keyring's bytes, decoded from ASCII armor if needed. Several blocks are one keyring."""
    blocks = _ARMOR.findall(content)
    if not blocks:
        return content
    found = b""
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        # Headers end with an empty line; the last line, after an equals sign, is a checksum.
        body = lines[lines.index(b"") + 1 :] if b"" in lines else lines
        try:
            found += base64.b64decode(
                b"".join(line for line in body if not line.startswith(b"=")), validate=True
            )
        except binascii.Error as error:
            raise ParseError("the ASCII armor is damaged: %s" % error) from error
    return found


def _length(content: bytes, place: int, header: int) -> Tuple[int, int]:
    """Length of a packet's body and its start."""
    if header & 0x40:
        first = content[place]
        if first < 192:
            return first, place + 1
        if first < 224:
            return ((first - 192) << 8) + content[place + 1] + 192, place + 2
        if first == 255:
            return int.from_bytes(content[place + 1 : place + 5], "big"), place + 5
        raise ParseError("a packet has a length that no public key has")
    size = {0: 1, 1: 2, 2: 4}.get(header & 3)
    if size is None:
        raise ParseError("a packet has no length")
    return int.from_bytes(content[place : place + size], "big"), place + size


def _packets(content: bytes) -> Iterator[Tuple[int, bytes, bytes]]:
    """Tag, bytes and body of each packet."""
    place = 0
    while place < len(content):
        header, begin = content[place], place
        if not header & 0x80:
            raise ParseError("byte %d is not the beginning of a packet" % place)
        tag = header & 0x3F if header & 0x40 else (header >> 2) & 0x0F
        try:
            length, body = _length(content, place + 1, header)
        except IndexError:
            raise ParseError("it ends within a packet") from None
        place = body + length
        if place > len(content):
            raise ParseError("it ends within a packet")
        yield tag, content[begin:place], content[body:place]


def _fingerprint(body: bytes) -> str:
    """Return the fingerprint of a key from the body of its packet, in upper case."""
    if body[:1] == b"\x04" and len(body) < 1 << 16:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if body[:1] == b"\x06":
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ParseError("a key of version %s" % (body[0] if body else "none"))


def keys(content: bytes) -> Dict[str, bytes]:
    """The keys of a keyring by fingerprint, in the order of the keyring: the bytes of each key with
    all of its packets.
    """
    found: Dict[str, bytes] = {}
    current: Optional[str] = None
    for tag, packet, body in _packets(binary(content)):
        if tag == _PUBLIC_KEY:
            current = _fingerprint(body)
            found[current] = b""
        if current is None:
            raise ParseError("it begins with a packet of type %d instead of a public key" % tag)
        found[current] += packet
    if not found:
        raise ParseError("it contains no key")
    return found
