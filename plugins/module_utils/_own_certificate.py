# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A certificate authority of the cluster, and a certificate that it signs: what openssl is asked,
and whether a certificate is still good.
"""

from __future__ import annotations

import datetime
import ipaddress
import re

from typing import Iterable, Sequence

from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "authority_config",
    "bad_names",
    "certificate_config",
    "constraints",
    "not_after",
    "permitted",
    "reasons",
    "subjects",
]

#: openssl would read quotes, commas and line breaks of a name as its own.
#: With a * in place of the first label, it is valid for all names below.
NAME = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


#: RFC 6761: no host has it.
NO_NAME = "trainyard.invalid"


def bad_names(names: Iterable[str], addresses: Iterable[str]) -> list[str]:
    """Return the names and addresses that a certificate cannot have."""
    found = [name for name in names if not NAME.fullmatch(name)]
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            found.append(address)
    return found


def alternatives(names: Iterable[str], addresses: Iterable[str]) -> str:
    """Return the alternative names of a certificate as openssl's configuration has them."""
    return ",".join(["DNS:" + name for name in names] + ["IP:" + address for address in addresses])


def constraints(names: list[str], addresses: list[str]) -> list[str]:
    """Return the name constraints of an authority.

    Its certificates are valid for nothing but these names, what is below them, and these addresses.
    RFC 5280, 4.2.1.10: a kind of name that no constraint mentions is free. So the kind of which
    there is none gets one that no host has.
    """
    requested = set()
    for name in names:
        # Below a name are all those of its wildcard.
        if name.startswith("*."):
            name = name[2:]
        requested.add(name)
    found = ["permitted;DNS:" + name.lower() for name in sorted(requested)]
    found = found or ["permitted;DNS:" + NO_NAME]
    blocks = sorted({ipaddress.ip_network(address).with_netmask for address in addresses})
    for version, everything in ((4, "0.0.0.0/0.0.0.0"), (6, "::/::")):
        of_version = [
            block
            for block in blocks
            if ipaddress.ip_network(block.partition("/")[0]).version == version
        ]
        found += ["permitted;IP:" + block for block in of_version] or ["excluded;IP:" + everything]
    return found


def permitted(text: str) -> set[str]:
    """Return the constraints of an authority in the form of constraints(), from the output of
    C(openssl x509 -ext nameConstraints).
    """
    found, kind = set(), ""
    for line in text.splitlines():
        heading = re.match(r"\s*(Permitted|Excluded):\s*$", line)
        entry = re.match(r"\s*(DNS|IP):(\S+)\s*$", line)
        if heading:
            kind = heading.group(1).lower()
        elif entry and kind:
            value = entry.group(2).lower()
            if entry.group(1) == "IP":
                # openssl prints IPv6 without :: and in upper case.
                value = "/".join(str(ipaddress.ip_address(part)) for part in value.split("/"))
            found.add("%s;%s:%s" % (kind, entry.group(1), value))
    return found


def authority_config(names: list[str], addresses: list[str]) -> str:
    """Return the configuration of openssl for the authority.

    It signs no other authority, and nothing for names of others.
    """
    return (
        "[req]\ndistinguished_name=name\nx509_extensions=authority\nprompt=no\n[name]\n"
        "CN=trainyard cluster authority\n[authority]\n"
        "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\n"
        "subjectKeyIdentifier=hash\n"
        "nameConstraints=critical,%s\n" % ",".join(constraints(names, addresses))
    )


def certificate_config(
    names: Sequence[str], addresses: Sequence[str], usage: str = "server"
) -> str:
    """Return the configuration of openssl for the certificate of a C(server) or a C(client)."""
    # openssl takes an address here for a name, which the authority then does not permit. Clients
    # read the alternatives only.
    first = names[0] if names else "trainyard"
    return (
        "[req]\ndistinguished_name=name\nprompt=no\n[name]\nCN=%s\n[certificate]\n"
        "basicConstraints=critical,CA:FALSE\n"
        "keyUsage=critical,digitalSignature\nextendedKeyUsage=%sAuth\nsubjectAltName=%s\n"
        % (first[:64], usage, alternatives(names, addresses))
    )


def not_after(text: str) -> datetime.datetime:
    """Return when a certificate ends, from the output of C(openssl x509 -enddate)."""
    match = re.search(r"^notAfter=(\w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}) GMT$", text, re.MULTILINE)
    if not match:
        raise ParseError("openssl printed no notAfter: '%s'" % text.strip()[:80])
    return datetime.datetime.strptime(match.group(1), "%b %d %H:%M:%S %Y")


def subjects(text: str) -> tuple[set[str], set[str]]:
    """Return the names and addresses of a certificate, from the output of C(openssl x509 -ext
    subjectAltName).
    """
    names = re.findall(r"DNS:([^,\s]+)", text)
    addresses = [
        str(ipaddress.ip_address(address))
        for address in re.findall(r"IP Address:([0-9A-Fa-f.:]+)", text)
    ]
    return set(names), set(addresses)


def reasons(
    text: str, names: Iterable[str], addresses: Iterable[str], now: datetime.datetime, days: int
) -> list[str]:
    """Return why a certificate has to be made again.

    C(text) is the output of openssl for both questions.
    """
    found = []
    end = not_after(text)
    if end - now < datetime.timedelta(days=days):
        found.append("it ends on %s" % end.strftime("%Y-%m-%d"))
    if subjects(text) != (
        set(names),
        {str(ipaddress.ip_address(address)) for address in addresses},
    ):
        found.append("it has other names")
    return found
