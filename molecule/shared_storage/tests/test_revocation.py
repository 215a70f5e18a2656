"""People who change groups, leave and come back: playbook people makes the inventory true."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import pytest
import testinfra
from test_login import FOLDER, HOSTS, LOGIN, login, ssh

HOST = HOSTS[LOGIN]
ALL = ("shared-storage-a", "shared-storage-b", "shared-storage-c")
SECRET = "/data1/share/group/vision/secret"
HOME = "/data1/share/user/ben"
CRONTAB = "/var/spool/cron/crontabs/ben"
RECORD = "/var/lib/trainyard/placed.d/shared_storage.accounts.json"
FORGET = """import json, sys
record = json.load(open(sys.argv[1]))
for kind in ("users", "groups"):
    record[kind].remove("ben")
    del record["ids"][kind]["2002"]
del record["locked"]
json.dump(record, open(sys.argv[1], "w"))"""
GROUPS = [{"name": "vision", "gid": 3001}, {"name": "language", "gid": 3002}]
with open(os.path.join(FOLDER, "anna.pub"), encoding="utf-8") as _file:
    ANNA = {
        "name": "anna",
        "uid": 2001,
        "groups": ["language"],
        "public_keys": [_file.read().strip()],
    }


def on(name, command, code=0):
    done = testinfra.get_host(
        "ansible://" + name, ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"], sudo=True
    ).run(command)
    assert code is None or done.rc == code, (name, command, done)
    return done.stdout


@pytest.fixture(name="own_key", scope="module")
def _own_key(tmp_path_factory):
    """ben, who has no key in the inventory, has one in his home."""
    path = str(tmp_path_factory.mktemp("ben") / "own")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    with open(path + ".pub", encoding="utf-8") as file:
        on(
            HOST,
            "install -d -m 700 -o ben %s/.ssh && echo '%s' > %s/.ssh/authorized_keys"
            % (HOME, file.read().strip(), HOME),
        )
    yield path
    on(HOST, "rm -rf %s/.ssh" % HOME)


@pytest.fixture(name="session", scope="module")
def _session(own_key):
    """A login that ben has open, and what he left for later."""
    assert login("ben", key=own_key).returncode == 0
    with subprocess.Popen(
        ssh("ben", LOGIN, own_key, "echo open; sleep 1000"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout.readline() == "open\n"
        on(
            HOST,
            "mkdir -p /var/spool/cron/crontabs && echo '* * * * * true' > %s && touch %s/thesis"
            % (CRONTAB, HOME),
        )
        on("shared-storage-b", "setsid su ben -c 'sleep 1000' > /dev/null 2>&1 < /dev/null &")
        yield program
        program.kill()


@pytest.fixture(name="left", scope="module")
def _left(playbook, session):
    """The run after anna has moved from vision to language, and ben has left.

    Somebody has added eve to vision by hand.
    """
    on(HOST, "umask 027; echo secret > %s && chgrp vision %s" % (SECRET, SECRET))
    on(HOST, "useradd --no-create-home --uid 5005 eve && gpasswd --add eve vision")
    for name in ALL:
        assert on(name, "su anna -c 'cat %s'" % SECRET) == "secret\n"
    assert session.poll() is None
    run = playbook("people.yml", shared_storage_groups=GROUPS, shared_storage_users=[ANNA])
    assert run.code == 0, run.text
    yield run
    on(HOST, "userdel eve; rm %s" % SECRET)


@pytest.mark.usefixtures("left")
def test_a_former_group_is_closed():
    for name in ALL:
        assert on(name, "id -Gn anna") == "language\n"
        on(name, "su anna -c 'cat %s'" % SECRET, code=1)


@pytest.mark.usefixtures("left")
def test_a_former_person_is_out(session, own_key):
    assert login("ben", key=own_key).returncode == 255
    assert session.wait(timeout=20) != 0
    for name in ALL:
        assert on(name, "pgrep --uid 2002", code=1) == ""
        assert on(name, "getent passwd ben | cut -d: -f4,7") == "2002:/usr/sbin/nologin\n"
    on(HOST, "test ! -e %s && test -e %s/thesis" % (CRONTAB, HOME))


def test_what_others_have_added_stays(left, playbook):
    assert "group vision: has eve, whom this role did not add" in left.text
    assert on(HOST, "id -Gn eve") == "eve vision\n"
    again = playbook("people.yml", shared_storage_groups=GROUPS, shared_storage_users=[ANNA])
    assert (again.code, again.changed) == (
        0,
        0,
    ) and "group vision: has eve, whom this role did not add" in again.text


@pytest.mark.usefixtures("left")
def test_drift_lists_members_and_former_people(role):
    on(HOST, "usermod --expiredate '' --shell /bin/bash ben")
    run = role(
        "drift",
        shows="shared_storage_differences",
        shared_storage_groups=GROUPS,
        shared_storage_users=[ANNA],
    )
    assert run.code == 0 and run.changed == 0, run.text
    assert [(row["what"], row["found"]) for row in run.shown] == [
        ("user ben", "can log in"),
        ("group vision", "has eve, whom this role did not add"),
    ]
    on(HOST, "usermod --expiredate 1 --shell /usr/sbin/nologin ben")


@pytest.mark.usefixtures("left")
def test_an_id_of_a_former_person_is_refused(playbook):
    # A host that joined later does not know ben.
    on("shared-storage-c", "userdel ben && python3 -c %s %s" % (shlex.quote(FORGET), RECORD))
    run = playbook(
        "people.yml",
        shared_storage_groups=GROUPS,
        shared_storage_users=[ANNA, {"name": "dora", "uid": 2002, "groups": ["vision"]}],
    )
    assert run.code != 0 and "user 'dora' has ID 2002 of former user 'ben'" in run.text
    for name in ALL:
        on(name, "getent passwd dora", code=2)


@pytest.mark.usefixtures("left")
def test_a_person_who_returns(playbook, own_key):
    run = playbook("people.yml")
    assert run.code == 0, run.text
    assert login("ben", key=own_key).returncode == 0
    for name in ALL:
        assert (
            on(name, "id -Gn anna ; id -Gn ben; getent passwd ben | cut -d: -f7")
            == "vision\nben\n/bin/bash\n"
        )
        record = json.loads(on(name, "cat " + RECORD))
        assert "locked" not in record and record["ids"]["users"] == {"2001": "anna", "2002": "ben"}
