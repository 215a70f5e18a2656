"""Who else can log in to a training container, from what module ssh_mesh_keys returns."""

from __future__ import annotations

import hashlib

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._foreign_access import differences

FOLDER = "/etc/trainyard/ssh/"
PREFIX = "AAAAC3NzaC1lZDI1NTE5AAAAI"
HOSTS = {
    "server-a": "ssh-ed25519 " + PREFIX + "A" * 43,
    "server-b": "ssh-ed25519 " + PREFIX + "B" * 43,
}
KEYS = "# Placed by us.\n" + "".join(f"{key} {name}\n" for name, key in HOSTS.items())
STRANGER = "ssh-ed25519 " + PREFIX + "F" * 43 + " stranger"
CONFIG = """Port 12345
ListenAddress 10.0.0.11:12345
AllowUsers root
PermitRootLogin prohibit-password
PasswordAuthentication no
ChallengeResponseAuthentication no
AuthorizedKeysFile /etc/trainyard/ssh/authorized_keys
UsePAM no
"""
FILES = [
    {"path": FOLDER + "authorized_keys", "content": KEYS, "mode": "0600"},
    {"path": FOLDER + "ssh_config", "content": "Host *\n", "mode": "0644"},
    {"path": FOLDER + "sshd_config", "content": CONFIG, "mode": "0644"},
]
#: As OpenSSH 8.4 and 9.2 print it.
EFFECTIVE = {
    "port": ["12345"],
    "listenaddress": ["10.0.0.11:12345"],
    "allowusers": ["root"],
    "permitrootlogin": ["without-password"],
    "passwordauthentication": ["no"],
    "kbdinteractiveauthentication": ["no"],
    "challengeresponseauthentication": ["no"],
    "authorizedkeysfile": ["/etc/trainyard/ssh/authorized_keys"],
    "authorizedkeyscommand": ["none"],
    "permitemptypasswords": ["no"],
    "usepam": ["no"],
}


def found(contents=None, modes=None, **changes):
    contents = {entry["path"]: entry["content"] for entry in FILES} | (contents or {})
    return {
        "checksums": {
            path: hashlib.sha256(text.encode()).hexdigest() for path, text in contents.items()
        },
        "permissions": {entry["path"]: entry["mode"] for entry in FILES} | (modes or {}),
        "authorized": contents[FOLDER + "authorized_keys"].splitlines(),
        "effective": EFFECTIVE,
        "listens": ["10.0.0.11"],
        "sshd": {"running": True, "reload_needed": False, "frozen": False},
        **changes,
    }


def told(state):
    entries = differences(state, FILES, "10.0.0.11", 12345)
    assert all(set(entry) == {"what", "asked", "found"} and entry["asked"] for entry in entries)
    return [entry["found"] for entry in entries]


def test_nobody_else():
    assert told(found()) == []
    # A release of the module that does not return them yet.
    state = found()
    for key in ("authorized", "effective", "listens"):
        del state[key]
    assert told(state) == []


@pytest.mark.parametrize(
    "line, words",
    [
        (STRANGER, ["SHA256:", "(comment 'stranger')"]),
        ('command="x",no-pty ' + STRANGER, ["SHA256:", "with the options", "no-pty"]),
        (STRANGER.replace(" stranger", ""), ["SHA256:"]),
        ("ssh-rsa ???", ["a line that is no key"]),
        ("cert-authority " + STRANGER, ["cert-authority"]),
        # Our key, but it may do more or less.
        ('environment="A=b" ' + KEYS.splitlines()[1], ["with the options"]),
    ],
)
def test_key_of_a_stranger(line, words):
    (text,) = told(found({FOLDER + "authorized_keys": KEYS + line + "\n"}))
    assert all(word in text for word in words) and FOLDER + "authorized_keys" in text
    assert "\n" not in text


def test_many_strangers_and_a_missing_key():
    lines = "".join(STRANGER.replace("stranger", str(number)) + "\n" for number in range(30))
    texts = told(found({FOLDER + "authorized_keys": KEYS.splitlines()[1] + "\n" + lines}))
    assert len(texts) == 12 and "20 more foreign keys" in texts[10] and "lacks SHA256:" in texts[11]
    assert "server-b" in texts[11]


def test_key_of_a_member_that_was_renamed():
    renamed = KEYS.replace(" server-b", " old name of b")
    (text,) = told(found({FOLDER + "authorized_keys": renamed}))
    assert "a key of the cluster with another comment" in text and "old name of b" in text
    # Options let in otherwise, and a second key in the comment does not hide the first.
    for line in ('environment="A=b" ' + HOSTS["server-b"], STRANGER + " " + HOSTS["server-b"]):
        (text, *_others) = told(found({FOLDER + "authorized_keys": KEYS + line + "\n"}))
        assert "lets a key in that is not the cluster's" in text


def test_another_content_that_lets_nobody_in_is_a_difference_too():
    (text,) = told(found({FOLDER + "authorized_keys": KEYS + "\n"}))
    assert text == FOLDER + "authorized_keys has another content"


@pytest.mark.parametrize(
    "name, values, words",
    [
        ("passwordauthentication", ["yes"], "passwordauthentication from"),
        ("listenaddress", ["0.0.0.0:12345", "[::]:12345"], "'0.0.0.0:12345, [::]:12345'"),
        ("permitrootlogin", ["yes"], "'yes'"),
        ("kbdinteractiveauthentication", ["yes"], "'yes'"),
        ("authorizedkeyscommand", ["/tmp/keys"], "'/tmp/keys'"),
        ("permitemptypasswords", ["yes"], "permitemptypasswords"),
        ("authorizedkeysfile", [".ssh/authorized_keys"], "authorizedkeysfile"),
    ],
)
def test_settings_that_sshd_really_uses(name, values, words):
    state = found({FOLDER + "sshd_config": "x" + CONFIG}, effective={**EFFECTIVE, name: values})
    (text,) = told(state)
    assert words in text


def test_root_of_a_container_may_let_sshd_print_anything():
    values = dict(EFFECTIVE, passwordauthentication=["yes\x1b[2J" + "x" * 9999])
    changed = {FOLDER + "sshd_config": CONFIG + "# changed\n"}
    (text,) = told(found(changed, effective=values))
    assert "as 'yes [2Jxx" in text and len(text) < 600


def test_changed_files_of_which_no_setting_is_known():
    for name in ("sshd_config", "ssh_config"):
        assert told(found({FOLDER + name: "x"})) == [FOLDER + name + " has another content"]
    assert told(found(modes={FOLDER + "authorized_keys": "0666"})) == [
        FOLDER + "authorized_keys has mode 0666"
    ]
    state = found()
    del state["checksums"][FOLDER + "ssh_config"]
    assert told(state) == [FOLDER + "ssh_config is missing"]


def test_what_runs_is_not_what_the_file_says():
    assert told(found(listens=["0.0.0.0", "10.0.0.11"])) == [
        "port 12345 is open on all addresses (0.0.0.0)"
    ]
    assert told(found(listens=["192.0.2.1"])) == ["port 12345 is open on 192.0.2.1"]
    state = found(sshd={"running": True, "reload_needed": True, "frozen": False})
    assert "has not read its files" in told(state)[0]


def test_a_host_without_the_files_and_one_whose_container_is_stopped():
    assert told(found({FOLDER + "authorized_keys": KEYS}, checksums={}, listens=["0.0.0.0"])) == []
    # The role writes sshd_config for the release of the running sshd.
    state = found(
        {FOLDER + "sshd_config": "x", FOLDER + "authorized_keys": STRANGER},
        sshd={"running": False, "reload_needed": False, "frozen": False},
    )
    assert len(told(state)) == 2 and all("authorized_keys" in text for text in told(state))
