# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Certificates in PEM text: found, checked, named by their fingerprint. Text in, data out."""

from __future__ import annotations

import base64
import bisect
import binascii
import hashlib
import re
import ssl

BEGIN = "-----BEGIN CERTIFICATE-----"
END = "-----END CERTIFICATE-----"
# TRUSTED is OpenSSL's form with trust settings behind the certificate, which update-ca-certificates does not take.
_BEGIN, _END = (re.compile(r"-----%s ([A-Z0-9 ]{1,64})-----" % word) for word in ("BEGIN", "END"))


class ParseError(ValueError):
    """The text holds no certificate, or something that is none."""


def _blocks(text):
    """Where each block begins, its kind and its content: what begins in a block is part of it, and what has no end is none."""
    ends = {}
    for found in _END.finditer(text):
        ends.setdefault(found.group(1), []).append(found.start())
    after = 0
    for begin in _BEGIN.finditer(text):
        places = ends.get(begin.group(1), [])
        place = bisect.bisect_left(places, begin.end())
        if begin.start() >= after and place < len(places):
            after = places[place]
            yield begin.start(), begin.group(1), text[begin.end():after].strip()


def certificates(text, strict=True):
    """{SHA-256 fingerprint: PEM text} of every certificate in a text, in its order. Not strict: what is none, or can't be read, is passed over."""
    found = {}
    for begin, kind, body in _blocks(text):
        if kind != "CERTIFICATE":
            if not strict:
                continue
            first = text.count("\n", 0, begin) + 1
            raise ParseError(f"line {first}: holds a {kind}, only CERTIFICATE is wanted")
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except binascii.Error as error:
            if not strict:
                continue
            first = text.count("\n", 0, begin) + 1
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
