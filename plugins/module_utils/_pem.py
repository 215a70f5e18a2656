# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finds and validates certificates in PEM text, and names them by fingerprint. Text in,
data out.
"""

from __future__ import annotations

import base64
import bisect
import binascii
import hashlib
import re

from typing import Iterator

from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

BEGIN = "-----BEGIN CERTIFICATE-----"
END = "-----END CERTIFICATE-----"
# TRUSTED is OpenSSL's form with trust settings after the certificate, which update-ca-certificates
# does not accept.
_BEGIN, _END = (re.compile(r"-----%s ([A-Z0-9 ]{1,64})-----" % word) for word in ("BEGIN", "END"))


def _blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Start, kind and content of each block.

    A block cannot begin inside another one, and one without an end is ignored.
    """
    ends: dict[str, list[int]] = {}
    for found in _END.finditer(text):
        ends.setdefault(found.group(1), []).append(found.start())
    after = 0
    for begin in _BEGIN.finditer(text):
        places = ends.get(begin.group(1), [])
        place = bisect.bisect_left(places, begin.end())
        if begin.start() >= after and place < len(places):
            after = places[place]
            yield begin.start(), begin.group(1), text[begin.end() : after].strip()


def certificates(text: str, strict: bool = True) -> dict[str, str]:
    """{SHA-256 fingerprint: PEM text} of every certificate in a text, in its order.

    If not strict, invalid blocks are ignored.
    """
    found = {}
    for begin, kind, body in _blocks(text):
        if kind != "CERTIFICATE":
            if not strict:
                continue
            first = text.count("\n", 0, begin) + 1
            raise ParseError(f"line {first}: contains a {kind}, but only CERTIFICATE is expected")
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except binascii.Error as error:
            if not strict:
                continue
            first = text.count("\n", 0, begin) + 1
            raise ParseError(
                f"line {first}: the certificate is not base64 text ({error})"
            ) from error
        encoded = base64.b64encode(der).decode("ascii")
        lines = [encoded[start : start + 64] for start in range(0, len(encoded), 64)]
        found[hashlib.sha256(der).hexdigest()] = "\n".join([BEGIN] + lines + [END]) + "\n"
    if not found and strict:
        raise ParseError(f"holds no {BEGIN}")
    if strict and text.count("-----BEGIN ") != text.count("-----END "):
        raise ParseError("a certificate is truncated: a -----BEGIN has no -----END")
    return found


def check(pem: str) -> None:
    """Raise ParseError unless OpenSSL can parse the certificate."""
    # Here, because it takes 10 ms, and most of what names certificates does not need it.
    import ssl

    try:
        # An empty context, because the default one reads the system's whole bundle first, which
        # takes seconds for many certificates.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ParseError(f"OpenSSL cannot parse the certificate: {error}") from error


def fingerprints(texts: list[str]) -> list[str]:
    """Return the SHA-256 fingerprints of all certificates in the texts, none if a text cannot be
    read.
    """
    try:
        return [fingerprint for text in texts for fingerprint in certificates(text)]
    except ParseError:
        return []
