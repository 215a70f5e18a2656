"""Options of sshd_config from the inventory."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.gpu.plugins.module_utils._sshd_options import GROUPS, SshdOptionError, refused, sshd_lines, unwritable

DEFAULTS = {"Ciphers": "aes256-ctr", "DisableForwarding": True}


def test_defaults():
    assert sshd_lines(DEFAULTS, {}) == ["Ciphers aes256-ctr", "DisableForwarding yes"]


def test_option_replaces_the_default_of_the_same_name_in_any_spelling():
    assert sshd_lines(DEFAULTS, {"ciphers": ["aes128-ctr", "aes256-ctr"], "LogLevel": "VERBOSE", "MaxSessions": 20}) == [
        "Ciphers aes128-ctr,aes256-ctr", "DisableForwarding yes", "LogLevel VERBOSE", "MaxSessions 20"]


@pytest.mark.parametrize("name, group", [
    ("Port", "address"), ("listenaddress", "address"), ("AuthorizedKeysFile", "keys"), ("HOSTKEY", "keys"), ("PasswordAuthentication", "login"),
    ("PermitRootLogin", "login"), ("ForceCommand", "session"), ("Match", "block"), ("Include", "block"),
])
def test_what_the_role_decides(name, group):
    assert [found for found in GROUPS if refused({name: "x"}, found)] == [group]
    with pytest.raises(SshdOptionError, match=name):
        sshd_lines(DEFAULTS, {name: "x"})


# Bad input, each of which has to be refused: none of it may reach sshd_config, least of all as a line of its own.
@pytest.mark.parametrize("options", [
    {"Banner": "x\nPermitRootLogin yes"}, {"Banner": "x\rPort 1"}, {"Banner\nPort": "1"}, {"Banner Port": "1"}, {"Banner": ""}, {"Banner": None}, {"Banner": {}},
    {"Banner": []}, {"Ciphers": ["a", "b\nPort 1"]}, {"Banner": "x\u2028y"}, {"Ciphers": "a", "ciphers": "b"}, {"": "x"}, {1: "x"}, {"Banner": 1.5},
])
def test_what_is_no_line(options):
    assert unwritable(options)
    with pytest.raises(SshdOptionError):
        sshd_lines(DEFAULTS, options)
