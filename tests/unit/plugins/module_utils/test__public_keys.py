"""Public keys of people: what is a line of authorized_keys, and what is said about any
other text.
"""

from __future__ import annotations

import base64

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._public_keys import (
    TYPES,
    public_key_fault,
)

# Made by ssh-keygen of OpenSSH 9.2.
ED25519 = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfWBWeD+lmc81HJ9lxOQA+NHp50RTLc67//Lm0MyXzY anna@laptop"
)
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUhunter2\n-----END OPENSSH PRIVATE KEY-----\n"


def key(kind, *fields):
    """A line with a key of these fields."""
    blob = b"".join(
        len(field).to_bytes(4, "big") + field for field in (kind.encode("ascii"),) + fields
    )
    return "%s %s" % (kind, base64.b64encode(blob).decode("ascii"))


def rsa(bits):
    # The highest bit of a positive number has a zero before it.
    return key(
        "ssh-rsa",
        b"\x01\x00\x01",
        b"\x00" * (bits % 8 == 0) + (1 << (bits - 1)).to_bytes((bits + 7) // 8, "big"),
    )


GOOD = {
    "ssh-ed25519": key("ssh-ed25519", b"k" * 32),
    "ecdsa-sha2-nistp256": key("ecdsa-sha2-nistp256", b"nistp256", b"\x04" * 65),
    "ecdsa-sha2-nistp384": key("ecdsa-sha2-nistp384", b"nistp384", b"\x04" * 97),
    "ecdsa-sha2-nistp521": key("ecdsa-sha2-nistp521", b"nistp521", b"\x04" * 133),
    "ssh-rsa": rsa(2048),
    "sk-ssh-ed25519@openssh.com": key("sk-ssh-ed25519@openssh.com", b"k" * 32, b"ssh:"),
    "sk-ecdsa-sha2-nistp256@openssh.com": key(
        "sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", b"\x04" * 65, b"ssh:"
    ),
}


def test_every_type_has_a_valid_key():
    assert sorted(GOOD) == sorted(TYPES)
    for line in [*GOOD.values(), rsa(3072), rsa(4096), ED25519]:
        assert public_key_fault(line) == "", line
        assert public_key_fault(line + " Anna M\u00fcller, laptop #2") == ""


@pytest.mark.parametrize(
    "line, said",
    [
        (PRIVATE, "a private key"),
        (PRIVATE.replace("\n", " "), "a private key"),
        ("PuTTY-User-Key-File-3: ssh-ed25519", "a private key"),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----", "no OpenSSH public key"),
        ("---- BEGIN SSH2 PUBLIC KEY ----", "does not begin with the type"),
        # The body of a private key without its first line.
        ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQhunter2", "it is not shown"),
        ("hunter2", "it is not shown"),
        ("", "empty"),
        ("  ", "empty"),
        (5, "not text"),
        (None, "not text"),
        ([ED25519], "not text"),
        ({"a": ED25519}, "not text"),
        (ED25519 + "\n", "line breaks"),
        (ED25519 + "\n" + ED25519, "line breaks"),
        (ED25519 + "\r", "line breaks"),
        (ED25519 + "\u2028x", "line breaks"),
        (ED25519.replace(" ", "\t"), "control characters"),
        (ED25519 + "\x00", "control characters"),
        ('from="10.0.0.0/8" ' + ED25519, "a key with options"),
        ('command="rm -rf /",no-pty ' + ED25519, "a key with options"),
        ("anna " + ED25519, "a key with options"),
        (" " + ED25519, "a key with options"),
        ("cert-authority " + ED25519, "a key with options"),
        ("# " + ED25519, "a key with options"),
        (key("ssh-dss", b"x"), "a key of type 'ssh-dss'"),
        (
            key("ssh-ed25519-cert-v01@openssh.com", b"x"),
            "of type 'ssh-ed25519-cert-v01@openssh.com'",
        ),
        ("ssh-ed25519", "a damaged or incomplete key"),
        ("ssh-ed25519 ", "a damaged"),
        ("ssh-ed25519 AAAA", "a damaged"),
        ("ssh-ed25519  " + ED25519.split()[1], "a damaged"),
        (ED25519[:60], "a damaged"),
        (ED25519.replace("MyXzY", "MyX!Y"), "a damaged"),
        ("ssh-ed25519 \u00e4\u00f6", "a damaged"),
        # Another type before the body.
        (ED25519.replace("ssh-ed25519", "ssh-rsa"), "of type 'ssh-rsa'"),
        (GOOD["ecdsa-sha2-nistp256"].replace("nistp256 ", "nistp384 "), "a damaged"),
        (key("ssh-ed25519", b"k" * 31), "a damaged"),
        (key("ssh-ed25519", b"k" * 32, b"x"), "a damaged"),
        (key("sk-ssh-ed25519@openssh.com", b"k" * 32), "a damaged"),
        (key("ecdsa-sha2-nistp256", b"nistp384", b"\x04" * 65), "a damaged"),
        (key("ecdsa-sha2-nistp256", b"nistp256", b"\x04" * 64), "a damaged"),
        (key("ecdsa-sha2-nistp256"), "a damaged"),
        (key("ssh-rsa", b"\x03"), "a damaged"),
        (key("ssh-rsa", b"\x03", b""), "a damaged"),
        (rsa(1024), "an RSA key of 1024 bits"),
        (rsa(2047), "an RSA key of 2047 bits"),
    ],
)
def test_what_is_no_public_key(line, said):
    fault = public_key_fault(line)
    assert said in fault
    # Nothing of a key is repeated.
    assert "hunter2" not in fault and "AAAA" not in fault and "\n" not in fault
