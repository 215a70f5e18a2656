# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identities of instances: a name and a certificate for each start, by an authority of the hub.

    _identity.py FOLDER    create the authority and the certificate of the proxy, unless they exist

The proxy and the hub connect to an instance only if it proves the name of this start. An instance
answers only clients with the certificate of the proxy.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
import ssl
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: RFC 6761 reserves "invalid". No name server knows it, so without instance_tls.cjs the proxy
#: reaches no instance.
SUFFIX = ".instance.invalid"
AUTHORITY, PROXY = "authority", "proxy"
#: Days of the authority and of the proxy, and of one start of an instance.
LASTING_DAYS, INSTANCE_DAYS = 7300, 366
ROUTE = re.compile(r"([0-9a-f]{8}|[0-9a-f]{32})\.([0-9a-f]{32}%s)" % re.escape(SUFFIX))


# --- names ----------------------------------------------------------------------------------------


def new_name() -> str:
    """Return the name of one start. No other start has had it."""
    return secrets.token_hex(16) + SUFFIX


def route_host(name: str, address: str) -> str:
    """Return the host of a route. It contains the address, as no name server knows the name."""
    return "%s.%s" % (ipaddress.ip_address(address).packed.hex(), name)


def of_route_host(host: str | None) -> tuple[str, str] | None:
    """Return name and address from the host of a route, or None for other hosts."""
    found = ROUTE.fullmatch(host or "")
    if not found:
        return None
    return found.group(2), str(ipaddress.ip_address(bytes.fromhex(found.group(1))))


# --- certificates ---------------------------------------------------------------------------------


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clocks of hosts may differ.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def new_authority() -> tuple[str, str]:
    """Return certificate and key of a new authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("trainyard instances")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key, LASTING_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _pem_of_key(key)


def signed(
    authority: tuple[str, str], name: str, days: int = INSTANCE_DAYS, is_client: bool = False
) -> tuple[str, str]:
    """Return certificate and key for a name, as PEM.

    An instance cannot pass for the proxy, nor the proxy for an instance.

    :param authority: certificate and key of the authority, as PEM.
    """
    issuer = x509.load_pem_x509_certificate(authority[0].encode())
    issuer_key = serialization.load_pem_private_key(authority[1].encode(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if is_client else ExtendedKeyUsageOID.SERVER_AUTH
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    # The alternative name counts. A common name has at most 64 characters.
    subject = _named("proxy" if is_client else "instance")
    certificate = (
        _builder(subject, issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pem(certificate), _pem_of_key(key)


# --- files ----------------------------------------------------------------------------------------


def paths(folder: str, name: str) -> tuple[str, str]:
    return "%s/%s.pem" % (folder, name), "%s/%s.key" % (folder, name)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _write(path: str, text: str) -> None:
    new = path + ".new"
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(number, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(new, path)


def _keep(folder: str, name: str, pair: tuple[str, str]) -> None:
    certificate, key = paths(folder, name)
    # The certificate last: if it exists, its key does.
    _write(key, pair[1])
    _write(certificate, pair[0])


def ensure(folder: str) -> None:
    """Create the authority, and the certificate of the proxy, unless they exist."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    is_new = not os.path.exists(paths(folder, AUTHORITY)[0])
    if is_new:
        _keep(folder, AUTHORITY, new_authority())
    # A certificate of a former authority is not accepted by any new instance.
    if is_new or not os.path.exists(paths(folder, PROXY)[0]):
        pair = signed(authority(folder), PROXY + SUFFIX, LASTING_DAYS, is_client=True)
        _keep(folder, PROXY, pair)


def authority(folder: str) -> tuple[str, str]:
    certificate, key = paths(folder, AUTHORITY)
    return _read(certificate), _read(key)


def new_identity(folder: str) -> dict[str, str]:
    """Return what one start of an instance gets.

    That is its name, certificate and key, and the certificate of the authority.
    """
    found, name = authority(folder), new_name()
    certificate, key = signed(found, name)
    return {"name": name, "certificate": certificate, "key": key, "authority": found[0]}


def client_context(folder: str) -> ssl.SSLContext:
    """Return how the hub connects to instances.

    The name of the instance is the C(server_hostname) of each connection.
    """
    context = ssl.create_default_context(cafile=paths(folder, AUTHORITY)[0])
    context.load_cert_chain(*paths(folder, PROXY))
    return context


if __name__ == "__main__":
    ensure(sys.argv[1])
