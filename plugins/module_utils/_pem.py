# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Certificates in PEM text: found, checked, named by their fingerprint. Text in, data out."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import ssl

BEGIN = "-----BEGIN CERTIFICATE-----"
END = "-----END CERTIFICATE-----"
# TRUSTED is OpenSSL's form with trust settings behind the certificate, which update-ca-certificates does not take.
BLOCK = re.compile(r"-----BEGIN ((?:TRUSTED )?[A-Z0-9 ]+)-----\s*(.*?)\s*-----END \1-----", re.DOTALL)


class ParseError(ValueError):
    """The text holds no certificate, or something that is none."""


def certificates(text, strict=True):
    """{SHA-256 fingerprint: PEM text} of every certificate in a text, in its order. Not strict: what is none, or can't be read, is passed over."""
    found = {}
    for block in BLOCK.finditer(text):
        kind, body = block.group(1), block.group(2)
        first = text.count("\n", 0, block.start()) + 1
        if kind != "CERTIFICATE":
            if not strict:
                continue
            raise ParseError(f"line {first}: holds a {kind}, only CERTIFICATE is wanted")
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except binascii.Error as error:
            if not strict:
                continue
            raise ParseError(f"line {first}: the certificate is no base64 text ({error})") from error
        encoded = base64.b64encode(der).decode("ascii")
        lines = [encoded[start:start + 64] for start in range(0, len(encoded), 64)]
        found[hashlib.sha256(der).hexdigest()] = "\n".join([BEGIN] + lines + [END]) + "\n"
    if not found and strict:
        raise ParseError(f"holds no {BEGIN}")
    if strict and text.count("-----BEGIN ") != text.count("-----END "):
        raise ParseError("a certificate is cut: not every -----BEGIN has its -----END")
    return found


def check(pem):
    """Raise ParseError unless OpenSSL reads the certificate."""
    try:
        # An empty context: the default one reads all of the system's bundle first, which for a bundle of certificates takes seconds.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ParseError(f"OpenSSL does not read the certificate: {error}") from error
