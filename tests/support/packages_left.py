"""What the removal of a role leaves of its packages, also on hosts where other roles' packages are
still installed.
"""

from __future__ import annotations

import itertools
import json


def packages(listed):
    """State, name, version and architecture of each package that C(dpkg --list) lists."""
    rows = [line.split(None, 4)[:4] for line in listed.partition("\n+++")[2].splitlines()[1:]]
    return {
        (state, name.partition(":")[0], version, architecture)
        for state, name, version, architecture in rows
    }


def recorded(records):
    """Names of the packages in the records of the roles, which are JSON documents one after the
    other.
    """
    names, rest = set(), records.strip()
    while rest:
        record, end = json.JSONDecoder().raw_decode(rest)
        names.update(record["packages"])
        rest = rest[end:].strip()
    return names


def from_updates_alone(policy, version):
    """Whether the archives that offer a version, by C(apt-cache policy), are those of the
    distribution's updates alone.
    """
    rows = policy.partition("Version table:")[2].splitlines()
    own = [
        number for number, row in enumerate(rows) if row.replace("***", "").split()[:1] == [version]
    ]
    suites = (
        [
            row.split()[2].partition("/")[0]
            for row in itertools.takewhile(lambda row: len(row.split()) > 3, rows[own[0] + 1 :])
        ]
        if own
        else []
    )
    return suites != [] and all(suite.endswith(("-security", "-updates")) for suite in suites)


def packages_that_differ(host, alone=False):
    """Packages that are not as /srv/packages has them and are not recorded by a role that is still
    on the host; C(alone): no role is.

    Hosts are up to date when they are made. A newer version from the distribution's updates was
    published since, and a dependency asked for it.
    """
    others = (
        set()
        if alone
        else recorded(
            host.check_output(
                "find /var/lib/trainyard/placed.d -name '*.packages.json' -exec cat {} + || true"
            )
        )
    )
    before, now = (
        packages(host.check_output("cat /srv/packages")),
        packages(host.check_output("dpkg --list")),
    )
    was = {
        (state, name, architecture): (state, name, version, architecture)
        for state, name, version, architecture in before - now
    }
    for package in sorted(now - before):
        state, name, version, architecture = package
        if (state, name, architecture) in was and from_updates_alone(
            host.check_output("apt-cache policy %s", name), version
        ):
            now = now - {package} | {was[state, name, architecture]}
    return sorted(package for package in before ^ now if package[1] not in others)
