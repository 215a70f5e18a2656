"""Options of sshd_config from the inventory."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.gpu.plugins.plugin_utils._sshd_options import (
    GROUPS,
    SshdOptionError,
    refused,
    sshd_lines,
    unwritable,
)

DEFAULTS = {"Ciphers": "aes256-ctr", "DisableForwarding": True}


def test_defaults():
    assert sshd_lines(DEFAULTS, {}) == ["Ciphers aes256-ctr", "DisableForwarding yes"]


def test_option_replaces_the_default_of_the_same_name_in_any_spelling():
    assert sshd_lines(
        DEFAULTS,
        {"ciphers": ["aes128-ctr", "aes256-ctr"], "LogLevel": "VERBOSE", "MaxSessions": 20},
    ) == [
        "Ciphers aes128-ctr,aes256-ctr",
        "DisableForwarding yes",
        "LogLevel VERBOSE",
        "MaxSessions 20",
    ]


@pytest.mark.parametrize(
    "name, group",
    [
        ("Port", "address"),
        ("listenaddress", "address"),
        ("AuthorizedKeysFile", "keys"),
        ("HOSTKEY", "keys"),
        ("PasswordAuthentication", "login"),
        ("PermitRootLogin", "login"),
        ("ForceCommand", "session"),
        ("Match", "block"),
        ("Include", "block"),
    ],
)
def test_what_the_role_decides(name, group):
    assert [found for found in GROUPS if refused({name: "x"}, found)] == [group]
    with pytest.raises(SshdOptionError, match=name):
        sshd_lines(DEFAULTS, {name: "x"})


# Bad input, each of which has to be refused: none of it may reach sshd_config, least of all as a
# line of its own.
@pytest.mark.parametrize(
    "options",
    [
        {"Banner": "x\nPermitRootLogin yes"},  # refused: the value would add a line to sshd_config
        {"Banner": "x\rPort 1"},
        {"Banner\nPort": "1"},
        {"Banner Port": "1"},
        {"Banner": ""},
        {"Banner": None},
        {"Banner": {}},
        {"Banner": []},
        {"Ciphers": ["a", "b\nPort 1"]},
        {"Banner": "x\u2028y"},
        {"Ciphers": "a", "ciphers": "b"},
        {"": "x"},
        {1: "x"},
        {"Banner": 1.5},
    ],
)
def test_what_is_no_line(options):
    assert unwritable(options)
    with pytest.raises(SshdOptionError):
        sshd_lines(DEFAULTS, options)


# Tried on OpenSSH 9.2: sshd accepts these values, except those of MaxStartups, and then no login.
LOCKOUT = [
    ("MaxSessions", 0),
    ("MaxSessions", "00"),
    ("maxauthtries", 0),
    ("PerSourceMaxStartups", "0"),
    ("MaxStartups", 0),
    ("MaxStartups", "0:30:100"),
    ("MaxStartups", "10:30"),
    ("MaxStartups", "10:0:100"),
    ("MaxStartups", "10:101:100"),
    ("MaxStartups", "10:30:0"),
    ("HostKeyAlgorithms", "ssh-rsa"),
    ("HostKeyAlgorithms", ["rsa-sha2-512", "ecdsa-sha2-nistp256"]),
    ("HostKeyAlgorithms", "-ssh-ed25519"),
    ("HostKeyAlgorithms", "-ssh-*"),
    ("PubkeyAcceptedAlgorithms", "rsa-sha2-512"),
    ("PubkeyAcceptedKeyTypes", ["-ssh-ed25519"]),
    ("Ciphers", "aes128-cbc"),
    ("Ciphers", "-aes*,chacha*"),
    ("KexAlgorithms", "diffie-hellman-group14-sha1"),
    ("KexAlgorithms", "-*"),
]
LOGIN = [
    ("MaxSessions", 1),
    ("MaxAuthTries", 6),
    ("PerSourceMaxStartups", "none"),
    ("MaxStartups", 1),
    ("MaxStartups", "10:30:100"),
    ("MaxStartups", "10:100:100"),
    ("HostKeyAlgorithms", "+ssh-rsa"),
    ("HostKeyAlgorithms", "^rsa-sha2-512"),
    ("HostKeyAlgorithms", "-ssh-rsa"),
    ("HostKeyAlgorithms", "ssh-*"),
    ("PubkeyAcceptedAlgorithms", ["ssh-ed25519"]),
    ("Ciphers", ["aes128-ctr", "aes128-cbc"]),
    ("Ciphers", "-chacha20*"),
    ("KexAlgorithms", "-ecdh-sha2-*"),
    ("KexAlgorithms", ["curve25519-sha256"]),
    ("MACs", "hmac-md5"),
    ("LoginGraceTime", 0),
    ("ClientAliveCountMax", 0),
    ("PermitTTY", False),
]


def test_what_locks_the_cluster_out():
    assert [option for option in LOCKOUT if refused(dict([option]), "lockout") != [option[0]]] == []
    assert [option for option in LOGIN if refused(dict([option]), "lockout")] == []
    with pytest.raises(SshdOptionError, match="MaxSessions"):
        sshd_lines(DEFAULTS, {"MaxSessions": 0})
    assert refused({"RevokedKeys": "/x"}, "keys") == ["RevokedKeys"]


@pytest.mark.parametrize(
    "name, value, line",
    [
        ("AcceptEnv", ["LANG", "LC_*"], "AcceptEnv LANG LC_*"),
        ("setenv", ["A=x y", "B=2"], 'setenv "A=x y" B=2'),
        ("IPQoS", ["af21", "cs1"], "IPQoS af21 cs1"),
        ("RekeyLimit", ["1G", "1h"], "RekeyLimit 1G 1h"),
        ("MACs", ["hmac-sha2-256", "hmac-sha2-512"], "MACs hmac-sha2-256,hmac-sha2-512"),
        ("AcceptEnv", "LANG LC_*", "AcceptEnv LANG LC_*"),
    ],
)
def test_lists_have_what_sshd_reads_between_their_words(name, value, line):
    assert line in sshd_lines(DEFAULTS, {name: value})
