"""The configuration of a login host's sshd: one more file of keys, and what keeps people out."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._sshd_people import (
    config_with,
    drop_in,
    files_of_keys,
    hinders,
    includes,
    is_judged_by_user,
    lost_quotes,
    parse_effective,
)

OURS = "/etc/ssh/sshd_config.d/00-trainyard-people.conf"
KEYS = "/etc/trainyard/people/%u.keys"
FOLDER = {
    "/etc/ssh/sshd_config.d/*.conf": ["/etc/ssh/sshd_config.d/50-site.conf", OURS],
    "/etc/ssh/more": ["/etc/ssh/more"],
}


def expand(pattern):
    return FOLDER.get(pattern, [])


@pytest.mark.parametrize(
    "text, before, after, included",
    [
        (
            "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes",
            'Include "/etc/ssh/sshd_config.d/50-site.conf"\nUsePAM yes\n',
            'Include "/tmp/new" "/etc/ssh/sshd_config.d/50-site.conf"\nUsePAM yes\n',
            True,
        ),
        # Relative, in any case, with an equals sign, quotes, a comment and other files.
        (
            '  include = "sshd_config.d/*.conf" more # ours',
            'Include "/etc/ssh/sshd_config.d/50-site.conf" "/etc/ssh/more"\n',
            'Include "/tmp/new" "/etc/ssh/sshd_config.d/50-site.conf" "/etc/ssh/more"\n',
            True,
        ),
        ("Include " + OURS, "\n", 'Include "/tmp/new"\n', True),
        (
            "#Include /etc/ssh/sshd_config.d/*.conf",
            "#Include /etc/ssh/sshd_config.d/*.conf\n",
            "#Include /etc/ssh/sshd_config.d/*.conf\n",
            False,
        ),
        (
            "Include /etc/ssh/other.d/*.conf",
            "Include /etc/ssh/other.d/*.conf\n",
            "Include /etc/ssh/other.d/*.conf\n",
            False,
        ),
        (
            "Match User a\nInclude /etc/ssh/sshd_config.d/*.conf",
            'Match User a\nInclude "/etc/ssh/sshd_config.d/50-site.conf"\n',
            'Match User a\nInclude "/tmp/new" "/etc/ssh/sshd_config.d/50-site.conf"\n',
            False,
        ),
        ("", "\n", "\n", False),
    ],
)
def test_configuration_without_and_with_our_file(text, before, after, included):
    assert config_with(text, expand, OURS) == (before, included)
    assert config_with(text, expand, OURS, "/tmp/new") == (after, included)


def test_includes():
    assert includes('Include a /b/*.conf\n# Include c\nInclude "d e"\nIncludes f\n') == [
        "/etc/ssh/a",
        "/b/*.conf",
        "/etc/ssh/d e",
    ]


@pytest.mark.parametrize(
    "texts, judged",
    [
        (["AuthorizedKeysFile x\nAllowUsers a"], False),
        (["Match User a\n X11Forwarding no"], False),
        (["UsePAM yes", "Match Group a\n\tauthorizedkeysfile=none"], True),
        (["match all\nAllowUsers a"], True),
        (["#Match User a\nAllowUsers a"], False),
        (["Match User a\nPubkeyAuthentication no"], True),
        # A block ends with its file.
        (["Match User a\n X11Forwarding no", "AllowUsers a"], False),
    ],
)
def test_match_blocks_that_decide_about_logins(texts, judged):
    assert is_judged_by_user(texts) is judged


def test_names_with_blanks_cannot_be_read_back():
    assert lost_quotes(["UsePAM yes", 'AuthorizedKeysFile "/etc/my keys/%u" .ssh/authorized_keys'])
    assert not lost_quotes(
        ['AuthorizedKeysFile "/etc/keys/%u" .ssh/authorized_keys', 'Banner "/a b"']
    )


@pytest.mark.parametrize(
    "printed, files",
    [
        (
            "authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2",
            [".ssh/authorized_keys", ".ssh/authorized_keys2", KEYS],
        ),
        ("authorizedkeysfile none", [KEYS]),
        ("", [KEYS]),
        ("authorizedkeysfile /etc/ssh/keys/%u " + KEYS, ["/etc/ssh/keys/%u", KEYS]),
    ],
)
def test_files_of_the_site_stay(printed, files):
    assert files_of_keys(parse_effective(printed), KEYS) == files
    assert drop_in(files).splitlines()[-1] == "AuthorizedKeysFile " + " ".join(files)


GOOD = (
    "usepam yes\npubkeyauthentication yes\nauthenticationmethods any\nauthorizedkeysfile .ssh/authorized_keys %s\n"
    % KEYS
)


@pytest.mark.parametrize(
    "lines, said",
    [
        ("", ""),
        ("allowusers anna\nallowusers ben\n", ""),
        ("allowusers an*@10.0.0.*\n", ""),
        ("allowgroups vision ops\n", ""),
        ("denyusers anna@10.0.0.1\n", ""),
        ("denyusers ben\n", ""),
        ("denygroups ops\n", ""),
        ("authenticationmethods publickey,password password\n", ""),
        ("authenticationmethods publickey:bound\n", ""),
        ("allowusers ben\nallowusers [anna]\n", "AllowUsers is ben [anna]"),
        ("denyusers a*\n", "DenyUsers is a*"),
        ("allowgroups ops\n", "AllowGroups is ops"),
        ("denygroups v?sion\n", "DenyGroups is v?sion"),
    ],
)
def test_people_whom_sshd_lets_in(lines, said):
    name = lines.partition(" ")[0]
    text = (
        "".join(
            line + "\n" for line in GOOD.splitlines() if not name or not line.startswith(name + " ")
        )
        + lines
    )
    assert hinders(parse_effective(text), KEYS, "anna", ["vision"]) == said
    # Without a name the lists of people do not count.
    assert hinders(parse_effective(text), KEYS) == ""


@pytest.mark.parametrize(
    "was, now, said",
    [
        ("usepam yes", "usepam no", "UsePAM is no"),
        ("pubkeyauthentication yes", "pubkeyauthentication no", "PubkeyAuthentication is no"),
        (
            "authenticationmethods any",
            "authenticationmethods password keyboard-interactive",
            "without publickey",
        ),
        (" " + KEYS, "", "without " + KEYS),
        (
            "authorizedkeysfile .ssh/authorized_keys " + KEYS,
            "authorizedkeysfile none",
            "AuthorizedKeysFile is none",
        ),
    ],
)
def test_keys_that_nobody_can_use(was, now, said):
    assert said in hinders(parse_effective(GOOD.replace(was, now)), KEYS)
