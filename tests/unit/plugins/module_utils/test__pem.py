# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._pem import (
    ParseError,
    certificates,
    check,
)

# Any bytes do where only the text is read.
FIRST, SECOND = bytes(range(100)), bytes(range(50, 200))


def pem(der, kind="CERTIFICATE", width=64):
    text = base64.b64encode(der).decode()
    body = "\n".join(text[start : start + width] for start in range(0, len(text), width))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def test_every_certificate_is_found_once_and_named_by_its_fingerprint():
    found = certificates(
        "# first\n" + pem(FIRST) + "subject=/CN=second\n" + pem(SECOND) + pem(FIRST)
    )
    assert list(found) == [hashlib.sha256(FIRST).hexdigest(), hashlib.sha256(SECOND).hexdigest()]


def test_the_form_of_the_text_does_not_matter():
    crlf = pem(FIRST, width=76).replace("\n", "\r\n")
    assert certificates(crlf) == certificates(pem(FIRST))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no -----BEGIN CERTIFICATE-----"),
        ("/etc/ssl/ca.pem", "holds no -----BEGIN CERTIFICATE-----"),
        (pem(FIRST) + pem(SECOND, kind="RSA PRIVATE KEY"), "line 6: contains a RSA PRIVATE KEY"),
        (pem(FIRST) + pem(SECOND)[:90], "is truncated"),
        (pem(FIRST).replace("AAEC", "A*EC"), "line 1: the certificate is not base64 text"),
    ],
)
def test_invalid_certificates_are_rejected(text, message):
    with pytest.raises(ParseError, match=message):
        certificates(text)


def test_beside_the_certificates_of_the_system_may_stand_anything():
    text = (
        pem(FIRST, kind="TRUSTED CERTIFICATE")
        + pem(FIRST).replace("AAEC", "A*EC")
        + pem(SECOND)
        + pem(FIRST)[:90]
    )
    assert certificates(text, strict=False) == certificates(pem(SECOND))
    assert certificates("", strict=False) == {}


def test_bytes_that_are_no_certificate_are_refused():
    with pytest.raises(ParseError, match="OpenSSL cannot parse the certificate"):
        check(pem(FIRST))
