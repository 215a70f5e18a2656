"""What a role's removal has left of its packages, beside roles that are still installed."""

from __future__ import annotations

from packages_left import packages, packages_that_differ

HEAD = "Desired=Unknown/Install\n| Status=Not\n|/ Err?\n||/ Name  Version  Architecture Description\n+++-=====-========-============-====\n"
BEFORE = HEAD + "ii  libc6:amd64  2.36-9  amd64  GNU C Library\nii  tar  1.34  amd64  GNU version of tar\n"
RECORDS = '{"packages": ["g++"], "held": []}\n{"packages": []}'


class Host:
    def __init__(self, listed, records=""):
        self.said = {"cat /srv/packages": BEFORE, "dpkg --list": listed}
        self.records = records

    def check_output(self, command):
        return self.said.get(command, self.records)


def test_columns_of_another_width_do_not_differ():
    assert packages(BEFORE) == {("ii", "libc6", "2.36-9", "amd64"), ("ii", "tar", "1.34", "amd64")}
    assert packages_that_differ(Host(BEFORE.replace("ii  tar  1.34", "ii  tar           1.34"))) == []


def test_packages_that_another_role_has_recorded_may_stay():
    listed = BEFORE + "ii  g++  12.2  amd64  GNU C++ compiler\n"
    assert packages_that_differ(Host(listed, RECORDS)) == []
    assert packages_that_differ(Host(listed, '{"packages": []}')) == [("ii", "g++", "12.2", "amd64")]


def test_added_lost_changed_and_held_packages_are_found():
    assert packages_that_differ(Host(BEFORE + "ii  libnccl2  2.21.5  amd64  NCCL\n", RECORDS)) == [("ii", "libnccl2", "2.21.5", "amd64")]
    assert packages_that_differ(Host(BEFORE.replace("ii  tar", "rc  tar"), RECORDS)) == [("ii", "tar", "1.34", "amd64"), ("rc", "tar", "1.34", "amd64")]
    assert packages_that_differ(Host(BEFORE.replace("ii  tar", "hi  tar"), RECORDS)) != []
    assert packages_that_differ(Host(HEAD, RECORDS)) != []
