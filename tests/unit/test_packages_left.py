"""What a role's removal has left of its packages, beside roles that are still installed."""

from __future__ import annotations

import pytest
from packages_left import packages, packages_that_differ

HEAD = "Desired=Unknown/Install\n| Status=Not\n|/ Err?\n||/ Name  Version  Architecture Description\n+++-=====-========-============-====\n"
BEFORE = (
    HEAD
    + "ii  libc6:amd64  2.36-9  amd64  GNU C Library\nii  tar  1.34  amd64  GNU version of tar\n"
)
RECORDS = '{"packages": ["g++"], "held": []}\n{"packages": []}'


# Output of apt-cache policy on Debian 13, with an example's host names.
POLICY = """libzstd1:
  Installed: {version}
  Candidate: {version}
  Version table:
 *** {version} 500
        500 http://deb.example.org/debian-security {suite}/main amd64 Packages
        100 /var/lib/dpkg/status
     1.33 500
        500 http://deb.example.org/debian trixie/main amd64 Packages
"""


class Host:
    def __init__(self, listed, records="", policy=""):
        self.said = {
            "cat /srv/packages": BEFORE,
            "dpkg --list": listed,
            "apt-cache policy %s": policy,
        }
        self.records = records

    def check_output(self, command, *_args):
        return self.said.get(command, self.records)


def test_columns_of_another_width_do_not_differ():
    assert packages(BEFORE) == {("ii", "libc6", "2.36-9", "amd64"), ("ii", "tar", "1.34", "amd64")}
    assert (
        packages_that_differ(Host(BEFORE.replace("ii  tar  1.34", "ii  tar           1.34"))) == []
    )


def test_packages_that_another_role_has_recorded_may_stay():
    listed = BEFORE + "ii  g++  12.2  amd64  GNU C++ compiler\n"
    assert packages_that_differ(Host(listed, RECORDS)) == []
    assert packages_that_differ(Host(listed, '{"packages": []}')) == [
        ("ii", "g++", "12.2", "amd64")
    ]


def test_added_lost_changed_and_held_packages_are_found():
    assert packages_that_differ(Host(BEFORE + "ii  libnccl2  2.21.5  amd64  NCCL\n", RECORDS)) == [
        ("ii", "libnccl2", "2.21.5", "amd64")
    ]
    assert packages_that_differ(Host(BEFORE.replace("ii  tar", "rc  tar"), RECORDS)) == [
        ("ii", "tar", "1.34", "amd64"),
        ("rc", "tar", "1.34", "amd64"),
    ]
    assert packages_that_differ(Host(BEFORE.replace("ii  tar", "hi  tar"), RECORDS)) != []
    assert packages_that_differ(Host(HEAD, RECORDS)) != []


def test_records_of_roles_are_no_excuse_where_none_is_left():
    listed = BEFORE + "ii  g++  12.2  amd64  GNU C++ compiler\n"
    assert packages_that_differ(Host(listed, RECORDS), alone=True) == [
        ("ii", "g++", "12.2", "amd64")
    ]


@pytest.mark.parametrize(
    "suite, differs",
    [
        ("trixie-security", False),
        ("noble-updates", False),
        ("trixie", True),
        ("trixie-backports", True),
        ("unknown", True),
    ],
)
def test_newer_version_may_come_from_the_distribution_s_updates(suite, differs):
    """One of libzstd1 was published while a scenario ran, and g++ asked for it."""
    newer = BEFORE.replace("1.34", "1.34+deb13u1")
    assert (
        packages_that_differ(
            Host(newer, policy=POLICY.format(version="1.34+deb13u1", suite=suite)), alone=True
        )
        != []
    ) is differs
    held = newer.replace("ii  tar", "hi  tar")
    assert (
        packages_that_differ(
            Host(held, policy=POLICY.format(version="1.34+deb13u1", suite=suite)), alone=True
        )
        != []
    )


def test_version_that_no_archive_offers_differs():
    newer = BEFORE.replace("1.34", "1.35")
    assert (
        packages_that_differ(
            Host(newer, policy=POLICY.format(version="1.34", suite="trixie-security"))
        )
        != []
    )
    assert packages_that_differ(Host(newer, policy="")) != []
