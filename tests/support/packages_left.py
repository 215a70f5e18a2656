"""For scenarios whose hosts have several roles: what a role's removal leaves, while other roles' packages are still installed."""

from __future__ import annotations

import json


def packages(listed):
    """State, name, version and architecture of each package that C(dpkg --list) lists."""
    rows = [line.split(None, 4)[:4] for line in listed.partition("\n+++")[2].splitlines()[1:]]
    return {(state, name.partition(":")[0], version, architecture) for state, name, version, architecture in rows}


def recorded(records):
    """Names of the packages in the records of the roles, which are JSON documents one after the other."""
    names, rest = set(), records.strip()
    while rest:
        record, end = json.JSONDecoder().raw_decode(rest)
        names.update(record["packages"])
        rest = rest[end:].strip()
    return names


def packages_that_differ(host, before="/srv/packages"):
    """Packages that are not as C(before) has them and are not recorded by a role that is still on the host."""
    others = recorded(host.check_output("find /var/lib/trainyard/placed.d -name '*.packages.json' -exec cat {} + || true"))
    differing = packages(host.check_output("cat " + before)) ^ packages(host.check_output("dpkg --list"))
    return sorted(package for package in differing if package[1] not in others)
