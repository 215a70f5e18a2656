# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lines of an authorized_keys file without options.

Pure functions, which never return the text of a key.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata

__all__ = ["RSA_BITS", "TYPES", "public_key_fault"]

# The types that sshd 8.9 to 10 accepts by default. Certificates are for TrustedUserCAKeys, and
# ssh-dss is disabled.
TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
RSA_BITS = 2048
# Octets of an uncompressed point.
_POINTS = {"nistp256": 65, "nistp384": 97, "nistp521": 133}
_OTHER_TYPE = re.compile(r"(ssh|ecdsa|sk|rsa|x509|webauthn|pgp)-[a-z0-9@.-]{2,60}\Z")


def _fields(blob: bytes) -> list[bytes] | None:
    """The length-prefixed fields of a key (RFC 4253, section 6.6), None if they do not fill it."""
    fields: list[bytes] = []
    place = 0
    while place < len(blob):
        end = place + 4 + int.from_bytes(blob[place : place + 4], "big")
        if place + 4 > len(blob) or end > len(blob):
            return None
        fields.append(blob[place + 4 : end])
        place = end
    return fields


def _is_body(kind: str, fields: list[bytes]) -> bool:
    """Whether the fields after the type are those of a key of this type."""
    lengths = [len(field) for field in fields]
    if kind == "ssh-rsa":
        return len(fields) == 2 and all(lengths)
    if "ed25519" in kind:
        own, rest = [32], fields[1:]
    else:
        curve = kind.split("@")[0].rpartition("-")[2]
        if fields[:1] != [curve.encode("ascii")]:
            return False
        own, rest = [len(curve), _POINTS[curve]], fields[2:]
    # Keys of a security device end with the name of the application.
    return lengths[: len(own)] == own and len(rest) == (1 if kind.startswith("sk-") else 0)


def public_key_fault(line: object) -> str:
    """Return what is wrong with one line, as a phrase after 'is'; empty for a valid public key.

    The phrase has no part of a key.
    """
    if not isinstance(line, str):
        return "not text"
    return _text_fault(line) or _type_fault(line) or _key_fault(line)


def _text_fault(line: str) -> str:
    """Return why a text cannot be a public key at all."""
    if "PRIVATE KEY" in line or "-----BEGIN" in line or "PuTTY-User-Key-File" in line:
        return "a private key or another file that is no OpenSSH public key; its text is not shown"
    if not line.strip():
        return "empty"
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in line):
        return "text with line breaks or other control characters"
    return ""


def _type_fault(line: str) -> str:
    """Return what is wrong with the first word of a line."""
    first = line.split(" ", 1)[0]
    if first in TYPES:
        return ""
    if _OTHER_TYPE.match(first):
        return "a key of type '%s'" % first
    # Options may contain blanks and quotes, so the type can be any later word.
    if any(" %s " % kind in line for kind in TYPES):
        return "a key with options or other text before its type"
    return "text that does not begin with the type of a key; it is not shown"


def _key_fault(line: str) -> str:
    """Return what is wrong with the key of a line that begins with a type."""
    words = line.split(" ", 2)
    try:
        blob = base64.b64decode(words[1] if len(words) > 1 else "", validate=True)
    except (binascii.Error, ValueError):
        blob = b""
    fields = _fields(blob)
    if not fields or fields[0] != words[0].encode("ascii") or not _is_body(words[0], fields[1:]):
        return "a damaged or incomplete key of type '%s'" % words[0]
    bits = int.from_bytes(fields[2], "big").bit_length() if words[0] == "ssh-rsa" else RSA_BITS
    return "an RSA key of %d bits" % bits if bits < RSA_BITS else ""
