"""Users and groups with their folders: the same accounts on every host, and no access to other
users' folders.
"""

from __future__ import annotations

testinfra_hosts = ["ansible://cluster"]
USER, GROUP = "/data1/share/user", "/data1/share/group"


def test_accounts_are_the_same_everywhere_and_nobody_logs_in_by_password(host):
    anna, ben = host.user("anna"), host.user("ben")
    assert (anna.uid, anna.gid, anna.group, ben.uid, ben.gid) == (2001, 3001, "vision", 2002, 2002)
    assert host.group("vision").gid == 3001
    assert host.check_output("getent shadow anna ben | cut -d: -f2").split() in (
        ["!", "!"],
        ["!!", "!!"],
        ["*", "*"],
    )


def test_folders(host):
    assert host.check_output(
        "stat --format '%%n %%a %%u %%g' %s/* %s/*" % (USER, GROUP)
    ).splitlines() == [
        USER + "/anna 700 2001 3001",
        USER + "/ben 700 2002 2002",
        GROUP + "/vision 2770 0 3001",
    ]


def test_people_write_where_they_should_and_nowhere_else(host):
    mine = "%s/anna/from-%s" % (USER, host.backend.get_hostname())
    ours = "%s/vision/from-%s" % (GROUP, host.backend.get_hostname())
    host.run_expect([0], "su anna -c 'umask 027; echo mine > %s; echo ours > %s'" % (mine, ours))
    assert (host.file(mine).uid, host.file(mine).gid, host.file(ours).gid) == (2001, 3001, 3001)
    for command in (
        "cat " + mine,
        "cat " + ours,
        "touch %s/ben-was-here" % USER,
        "touch %s/vision/ben" % GROUP,
    ):
        assert host.run("su ben -c '%s'" % command).rc != 0, command
    host.run_expect([0], "su anna -c 'rm %s %s'" % (mine, ours))
