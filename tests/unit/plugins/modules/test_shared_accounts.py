"""shared_accounts, run like in Ansible: the files with people's keys, and the sshd that reads them.

Scenario shared_storage tests the accounts and a login.
"""

from __future__ import annotations

import os
import stat
import time

import pytest
from scripted_tools import run_module, scripts

ONE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfWBWeD+lmc81HJ9lxOQA+NHp50RTLc67//Lm0MyXzY anna@laptop"
OTHER = ONE.replace("anna@laptop", "anna@desk")
# Accounts that every host has, so that none is created.
ACCOUNTS = {
    "groups": [{"name": "root", "gid": 0}, {"name": "daemon", "gid": 1}],
    "users": [
        {"name": "root", "uid": 0, "groups": ["root"]},
        {"name": "daemon", "uid": 1, "groups": ["daemon"]},
    ],
}
# sshd as far as the module asks it: -T -f FILE [-C user=NAME,...]. The first value counts, in a
# Match block with the user's name before all others.
SSHD = """
import glob, sys
def read(path):
    block, found = None, []
    for line in open(path).read().splitlines():
        words = line.replace('"', "").split()
        if not words or words[0].startswith("#"):
            continue
        name = words[0].lower()
        if name == "include":
            for pattern in words[1:]:
                for file in sorted(glob.glob(pattern)):
                    found += [(block or its, *rest) for its, *rest in read(file)]
        elif name == "match":
            block = words[2]
        elif name not in ("authorizedkeysfile", "usepam", "pidfile", "allowgroups", "pubkeyauthentication"):
            sys.exit("%s: line 1: Bad configuration option: %s" % (path, words[0]))
        else:
            found.append((block, name, " ".join(words[1:])))
    return found
assert sys.argv[1:3] == ["-T", "-f"]
user = sys.argv[5].partition(",")[0] if sys.argv[4:5] == ["-C"] else None
values = {}
for block, name, value in sorted(read(sys.argv[3]), key=lambda entry: entry[0] is None):
    if block is None or "user=" + block == user:
        values.setdefault(name, value)
values.setdefault("authorizedkeysfile", ".ssh/authorized_keys .ssh/authorized_keys2")
for pair in {"usepam": "yes", "pubkeyauthentication": "yes", "authenticationmethods": "any", **values}.items():
    print(*pair)
"""


class Host:
    """A host whose sshd has its configuration below a folder of the test."""

    def __init__(self, folder, script):
        self.folder, self.script = folder, script
        self.etc, self.keys = folder / "ssh", folder / "trainyard/people"
        (self.etc / "sshd_config.d").mkdir(parents=True)
        self.config, self.drop_in, self.pid = (
            self.etc / "sshd_config",
            self.etc / "sshd_config.d/00-trainyard-people.conf",
            folder / "sshd.pid",
        )
        self.site = self.etc / "sshd_config.d/50-site.conf"
        self.config.write_text(
            "Include %s/*.conf\nPidFile %s\n" % (self.site.parent, self.pid), encoding="utf-8"
        )
        (folder / "sshd.py").write_text(SSHD, encoding="utf-8")
        script("sshd", 'exec python3 %s/sshd.py "$@"' % folder)
        script("systemctl", '[ "$*" = "is-active --quiet ssh.service" ]')
        self.reloaded()

    def reloaded(self):
        time.sleep(0.05)
        self.pid.write_text("1", encoding="utf-8")

    def run(self, keys=None, check=False, state="present", **more):
        return run_module(
            "shared_accounts",
            dict(
                ACCOUNTS,
                keys=keys or {},
                keys_folder=str(self.keys),
                sshd_config=str(self.config),
                sshd_drop_in=str(self.drop_in),
                state=state,
                record=str(self.folder / "record.json"),
                **more,
            ),
            check,
        )

    def files(self):
        return {
            str(path.relative_to(self.folder)): path.read_text(encoding="utf-8")
            for path in sorted(self.folder.rglob("*.keys")) + [self.drop_in]
            if path.exists()
        }

    def effective(self):
        return self.drop_in.read_text(encoding="utf-8").splitlines()[-1].split()[1:]


@pytest.fixture(name="host")
def _host(tmp_path, monkeypatch):
    return Host(tmp_path, scripts(tmp_path, monkeypatch))


def test_keys_are_written_changed_and_removed(host):
    ours = str(host.keys / "%u.keys")
    assert host.run()["changed"] is False
    told = host.run({"root": [ONE]}, check=True)
    assert (
        told["changed"]
        and told["reload"] == "ssh.service"
        and host.files() == {}
        and not host.keys.parent.exists()
    )
    done = host.run({"root": [ONE]})
    assert (
        sorted(done["changed_paths"]) == sorted(told["changed_paths"])
        and done["reload"] == "ssh.service"
    )
    assert host.effective() == [".ssh/authorized_keys", ".ssh/authorized_keys2", ours]
    assert [
        (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid)
        for path in (host.keys.parent, host.keys, host.keys / "root.keys", host.drop_in)
    ] == [(0o755, 0), (0o755, 0), (0o644, 0), (0o644, 0)]
    host.reloaded()
    again = host.run({"root": [ONE]})
    assert (again["changed"], again["reload"]) == (False, "")
    # Another key and another person need no reload.
    more = host.run({"root": [ONE, OTHER], "daemon": [OTHER]})
    assert more["reload"] == "" and (host.keys / "root.keys").read_text(
        encoding="utf-8"
    ) == "%s\n%s\n" % (ONE, OTHER)
    fewer = host.run({"daemon": [OTHER], "root": []})
    assert fewer["changed_paths"] == [str(host.keys / "root.keys")] and sorted(host.files()) == [
        "ssh/sshd_config.d/00-trainyard-people.conf",
        "trainyard/people/daemon.keys",
    ]
    told = host.run(check=True)
    assert host.files() != {}
    done = host.run()
    assert done["changed_paths"] == told["changed_paths"] and done["reload"] == "ssh.service"
    assert host.files() == {} and not host.keys.parent.exists()
    assert host.run()["changed"] is False


def test_former_removes_the_keys_and_keeps_files_of_others(host):
    host.run({"root": [ONE]})
    (host.keys.parent / "other").write_text("x", encoding="utf-8")
    assert host.run(state="former", check=True)["changed"] and host.files() != {}
    done = host.run(state="former")
    assert (
        done["reload"] == "ssh.service"
        and host.files() == {}
        and sorted(path.name for path in host.keys.parent.iterdir()) == ["other"]
    )
    assert host.run(state="former")["changed"] is False


def test_the_files_of_the_site_stay_in_force(host):
    ours = str(host.keys / "%u.keys")
    host.run({"root": [ONE]})
    host.site.write_text(
        "AuthorizedKeysFile /etc/ssh/keys/%u .ssh/authorized_keys\n", encoding="utf-8"
    )
    assert host.run({"root": [ONE]})["changed_paths"] == [str(host.drop_in)]
    assert host.effective() == ["/etc/ssh/keys/%u", ".ssh/authorized_keys", ours]
    host.site.write_text("AuthorizedKeysFile none\n", encoding="utf-8")
    host.run({"root": [ONE]})
    assert host.effective() == [ours]
    # The site names our files itself, in front of the folder.
    host.config.write_text(
        "AuthorizedKeysFile /x %s\n%s" % (ours, host.config.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    assert host.run({"root": [ONE]})["changed_paths"] == [str(host.drop_in)]
    assert not host.drop_in.exists() and (host.keys / "root.keys").exists()
    assert host.run({"root": [ONE]})["changed"] is False


def test_a_run_that_ended_before_the_reload_is_completed(host):
    host.reloaded()
    time.sleep(0.05)
    host.run({"root": [ONE]})
    again = host.run({"root": [ONE]})
    assert (again["changed"], again["reload"]) == (False, "ssh.service")
    host.reloaded()
    assert host.run({"root": [ONE]})["reload"] == ""
    # It reads the file when it starts.
    host.script("systemctl", "exit 3")
    os.utime(host.drop_in)
    assert host.run({"root": [ONE]})["reload"] == ""


@pytest.mark.parametrize(
    "config, site, said",
    [
        ("", "", "Add 'Include {folder}/*.conf' as its first line"),
        ("Match User x\nInclude {folder}/*.conf\n", "", "only in a Match block"),
        (
            "AuthorizedKeysFile /x\nInclude {folder}/*.conf\n",
            "",
            "AuthorizedKeysFile is /x, without",
        ),
        (None, "UsePAM no\n", "UsePAM is no"),
        (None, "PubkeyAuthentication no\n", "PubkeyAuthentication is no"),
        (None, "AllowGroups root\n", "for daemon AllowGroups is root"),
        (
            None,
            "Match User daemon\n AuthorizedKeysFile none\n",
            "for daemon AuthorizedKeysFile is none",
        ),
        (None, 'AuthorizedKeysFile "/my keys/%u"\n', "a name with a blank"),
        (
            None,
            "Nonsense 1\n",
            "50-site.conf: line 1: Bad configuration option: Nonsense. Correct it",
        ),
    ],
)
def test_an_sshd_that_would_not_accept_the_keys(host, config, site, said):
    if config is not None:
        host.config.write_text(config.replace("{folder}", str(host.site.parent)), encoding="utf-8")
    host.site.write_text(site, encoding="utf-8")
    for check in (True, False):
        result = host.run({"root": [ONE], "daemon": [ONE]}, check)
        assert (
            result["failed"] and said.replace("{folder}", str(host.site.parent)) in result["msg"]
        ), result
        assert "othing was changed" in result["msg"] and host.files() == {}
    # A host without keys does not need one that does.
    assert host.run()["changed"] is False


def test_a_login_host_without_sshd(host):
    host.config.unlink()
    result = host.run({"root": [ONE]})
    assert result["failed"] and "install openssh-server" in result["msg"]
    assert host.run()["changed"] is False


@pytest.mark.parametrize(
    "keys, said",
    [
        (
            {"root": [ONE, "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n"]},
            "root, key 2: a private key",
        ),
        ({"root": ["hunter2"]}, "root, key 1: text that"),
        ({"../x": [ONE]}, "../x not among users"),
    ],
)
def test_text_that_is_no_key(host, keys, said):
    result = host.run(keys)
    assert (
        result["failed"]
        and said in result["msg"]
        and "hunter2" not in result["msg"]
        and host.files() == {}
    )
