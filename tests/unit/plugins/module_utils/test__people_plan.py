"""Memberships, former people and their ids: what is removed, and what stays."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._people_plan import (
    former_people,
    is_shut,
    lock,
    memberships,
    owned_ids,
    parse_process,
    parse_shadow,
    processes_to_end,
    remembered_clashes,
    stale_groups,
    unlock,
)

TODAY = 20000
NONE = {"primary": [], "add": [], "remove": [], "by_hand": []}


def plan(people, found_members, found_primary, former=(), **record):
    users = [{"name": name, "groups": groups} for name, groups in people.items()]
    return memberships(
        users, list(former), {"members": found_members, "primary": found_primary}, record
    )


def test_a_person_changes_groups():
    assert plan(
        {"alice": ["language"]},
        {"vision": set(), "language": set()},
        {"alice": "vision"},
        users=["alice"],
        primary={"alice": "vision"},
    ) == dict(NONE, primary=[("alice", "vision", "language")])
    # The record of an older version has no primary groups.
    assert (
        plan(
            {"alice": ["language"]},
            {"vision": set(), "language": set()},
            {"alice": "vision"},
            users=["alice"],
        )["primary"]
        != []
    )
    found = {"vision": {"alice"}, "language": set(), "speech": {"alice"}}
    assert plan(
        {"alice": ["vision", "language"]},
        found,
        {"alice": "vision"},
        users=["alice"],
        members=[["vision", "alice"], ["speech", "alice"]],
    ) == dict(NONE, add=[("language", "alice")], remove=[("speech", "alice")])
    # The former primary group becomes another one.
    assert plan(
        {"alice": ["language", "vision"]},
        {"vision": set(), "language": {"alice"}},
        {"alice": "vision"},
        users=["alice"],
        members=[["language", "alice"]],
    ) == dict(NONE, primary=[("alice", "vision", "language")], add=[("vision", "alice")])


def test_a_second_run_changes_nothing():
    assert (
        plan(
            {"alice": ["language"]},
            {"vision": set(), "language": set()},
            {"alice": "language"},
            users=["alice"],
            primary={"alice": "language"},
        )
        == NONE
    )
    assert (
        plan(
            {},
            {"vision": set()},
            {"ben": "nogroup"},
            ["ben"],
            users=["ben"],
            primary={"ben": "nogroup"},
        )
        == NONE
    )


def test_a_new_person():
    assert plan({"dora": ["vision", "language"]}, {"vision": set(), "language": set()}, {}) == dict(
        NONE, add=[("language", "dora")]
    )


def test_what_others_have_added_stays():
    found = {"vision": {"eve", "alice"}, "language": set()}
    assert plan(
        {"alice": ["language"]},
        found,
        {"alice": "language"},
        users=["alice"],
        members=[["language", "eve"]],
    ) == dict(NONE, by_hand=[("vision", "alice"), ("vision", "eve")])
    # A primary group that somebody else has set, of an account of this role, of another one, and of
    # one that is in no inventory.
    assert plan(
        {"alice": ["language"]},
        {"vision": set(), "language": {"alice"}},
        {"alice": "vision"},
        users=["alice"],
        primary={"alice": "language"},
    ) == dict(NONE, by_hand=[("vision", "alice")])
    assert plan(
        {"alice": ["language"]}, {"vision": set(), "language": set()}, {"alice": "vision"}
    ) == dict(NONE, add=[("language", "alice")], by_hand=[("vision", "alice")])
    assert plan({}, {"vision": set()}, {"eve": "vision"}) == dict(NONE, by_hand=[("vision", "eve")])


def test_a_former_person_loses_the_groups():
    assert plan(
        {},
        {"vision": set(), "language": {"ben"}},
        {"ben": "vision"},
        ["ben"],
        users=["ben"],
        members=[["language", "ben"]],
    ) == dict(NONE, primary=[("ben", "vision", "nogroup")], remove=[("language", "ben")])
    # A group of one's own opens nothing.
    assert plan({}, {"ben": set()}, {"ben": "ben"}, ["ben"], users=["ben"]) == NONE
    # And gets them again.
    assert plan(
        {"ben": ["vision"]},
        {"vision": set()},
        {"ben": "nogroup"},
        users=["ben"],
        primary={"ben": "nogroup"},
    ) == dict(NONE, primary=[("ben", "nogroup", "vision")])


def test_who_is_a_former_person():
    record = {
        "users": ["anna", "ben"],
        "members": [["vision", "carl"]],
        "ids": {"users": {"2001": "anna", "2004": "dora"}},
    }
    owned = owned_ids(record, lambda kind, name: {"ben": 2002}.get(name))
    assert owned == {"users": {"2001": "anna", "2002": "ben", "2004": "dora"}, "groups": {}}
    assert former_people(["anna"], record, owned) == ["ben", "carl", "dora"]
    assert former_people([], {}, owned_ids({}, lambda kind, name: None)) == []


def test_ids_of_former_people():
    owned = {"users": {"2002": "ben"}, "groups": {"3001": "vision", "2002": "ben"}}
    asked = {"users": {"dora": 2002, "ben": 2005}, "groups": {"vision": 3001, "secret": 2002}}
    assert remembered_clashes(asked, owned) == [
        {"kind": "user", "name": "dora", "id": 2002, "former": "ben"},
        {"kind": "group", "name": "secret", "id": 2002, "former": "ben"},
    ]
    assert remembered_clashes(asked, owned, [2002]) == []
    assert remembered_clashes({"users": {"ben": 2002}}, owned) == []
    assert remembered_clashes(asked, {}) == []


SHADOW = parse_shadow(
    "root:*:19000:0:99999:7:::\nben:!:19000:0:99999:7:::\nold:$y$x:19000:0:99999:7::19500:\nbroken\n"
)


def account(name="ben", shell="/bin/bash", **more):
    return dict(SHADOW[name], shell=shell, **more)


def test_lock_and_unlock():
    options, before = lock(account(), TODAY)
    assert (options, before) == (
        ["--expiredate", "1", "--shell", "/usr/sbin/nologin"],
        {"expires": "", "shell": "/bin/bash"},
    )
    locked = {"password": "!", "expires": "1", "shell": "/usr/sbin/nologin"}
    assert lock(locked, TODAY) == ([], {}) and is_shut(locked, TODAY)
    assert unlock(locked, before) == ["--expiredate", "", "--shell", "/bin/bash"]
    # Somebody gave the person another shell since then.
    assert unlock(dict(locked, shell="/bin/zsh"), before) == ["--expiredate", ""]
    with_password = lock(account(password="$y$x"), TODAY)
    assert with_password[0][:1] == ["--lock"]
    assert unlock(dict(locked, password="!$y$x"), with_password[1])[0] == "--unlock"
    # usermod refuses to remove the lock of an account without a password.
    assert "--unlock" not in unlock(locked, with_password[1])


def test_a_lock_of_the_operator_stays():
    options, before = lock(account("old", shell="/bin/false"), TODAY)
    assert (options, before) == (["--lock"], {"password": True})
    assert unlock({"password": "!$y$x", "expires": "19500", "shell": "/bin/false"}, before) == [
        "--unlock"
    ]
    assert lock(account(expires="1"), TODAY)[1] == {"shell": "/bin/bash"}


@pytest.mark.parametrize(
    "more, shut",
    [
        ({}, False),
        ({"expires": "20001"}, False),
        ({"expires": "0"}, False),
        ({"expires": "20000"}, True),
        ({"shell": "/usr/sbin/nologin"}, True),
    ],
)
def test_who_can_log_in(more, shut):
    assert is_shut(dict(account(), **more), TODAY) is shut
    # Of a directory there is only the shell.
    assert is_shut({"shell": "/bin/bash"}, TODAY) is False


def process(name, parent, uid, cgroup, groups="", gid=2002):
    status = (
        "Name:\t%s\nState:\tS (sleeping)\nPPid:\t%d\nUid:\t%d\t%d\t%d\t%d\nGid:\t%d\t%d\t%d\t%d\nGroups:\t%s\n"
        % ((name, parent) + (uid,) * 4 + (gid,) * 4 + (groups,))
    )
    return parse_process(status, cgroup)


V1 = "5:freezer:/slurm/uid_2002/job_7/step_0\n1:name=systemd:%s\n"
BEN = {
    1: process("systemd", 0, 0, "0::/init.scope"),
    5: process("sshd", 1, 0, "0::/system.slice/ssh.service"),
    10: process("bash", 5, 2002, "0::/user.slice/user-2002.slice/session-3.scope"),
    11: process("systemd", 1, 2002, "0::/user.slice/user-2002.slice/user@2002.service/init.scope"),
    # People can name a folder of theirs as they like.
    12: process(
        "python",
        11,
        2002,
        "0::/user.slice/user-2002.slice/user@2002.service/slurmstepd.scope/job_7",
    ),
    13: process("sh", 1, 2002, "0::/system.slice/cron.service"),
    20: process("slurmstepd", 1, 0, "0::/system.slice/slurmstepd.scope/job_7/step_0/slurm"),
    21: process("train", 20, 2002, "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"),
    22: process("conmon", 1, 102002, "0::/system.slice/slurmd.service"),
    23: process("train", 20, 2002, V1 % "/docker/abc/system.slice/slurmd.service"),
    24: process("bash", 5, 2002, V1 % "/user.slice/user-2002.slice/session-4.scope"),
    # A login that was moved into the job.
    30: process(
        "sshd", 5, 2002, "0::/system.slice/slurmstepd.scope/job_7/step_extern/user/task_special"
    ),
    31: process(
        "bash", 30, 2002, "0::/system.slice/slurmstepd.scope/job_7/step_extern/user/task_special"
    ),
    40: process("web", 1, 2002, "0::/system.slice/docker-abc.scope"),
    41: process("web", 1, 102003, "0::/user.slice/user-2002.slice/session-3.scope"),
    50: process("bash", 5, 2003, "0::/user.slice/user-2003.slice/session-5.scope"),
}


def test_processes_of_a_former_person():
    ended, of_jobs = processes_to_end(
        BEN, 2002, [(102000, 102500), (102003, 102004)], lambda pid: pid == 40
    )
    assert ended == [10, 11, 12, 13, 24, 30, 31, 41]
    assert of_jobs == [21, 22, 23]


def test_processes_that_are_ending_or_unreadable():
    assert parse_process("", "") is None
    assert (
        parse_process("Name:\tx\nState:\tZ (zombie)\nPPid:\t1\nUid:\t1 1 1 1\nGid:\t1 1 1 1\n", "")
        is None
    )


def test_processes_with_a_group_that_was_left():
    processes = {
        7: process("bash", 1, 2001, "0::/", groups="3001 3002 27", gid=3001),
        8: process("bash", 1, 2001, "0::/", groups="3002", gid=3002),
        9: process("bash", 1, 2009, "0::/", groups="3001", gid=3001),
    }
    assert stale_groups(
        processes, {2001: ("alice", {"language"})}, {3001: "vision", 3002: "language"}
    ) == [("alice", "vision", [7])]
    assert (
        stale_groups(
            processes, {2001: ("alice", {"language", "vision"})}, {3001: "vision", 3002: "language"}
        )
        == []
    )
