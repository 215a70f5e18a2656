"""What a host trusts: the same answer as module trusted_certificates, which would change
nothing.
"""

from __future__ import annotations

import ssl

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _pem
from ansible_collections.trainyard.gpu.plugins.module_utils._pem import certificates
from ansible_collections.trainyard.gpu.plugins.module_utils._trust_store import file_name, trusts

PEMS = [ssl.DER_cert_to_PEM_cert(bytes([number]) * 200) for number in range(3)]
FINGERPRINTS = [fingerprint for pem in PEMS for fingerprint in certificates(pem)]
fingerprints_of = _pem.fingerprints


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    """The system trusts all three certificates, the second one because of our file."""
    system, bundle, folder = (tmp_path / name for name in ("system.crt", "copy.crt", "ours"))
    folder.mkdir()
    for path in (system, bundle):
        path.write_text("# bundle\n" + "".join(PEMS), encoding="utf-8")
    ours = folder / file_name("trainyard-", FINGERPRINTS[1])
    ours.write_text("".join(certificates(PEMS[1]).values()), encoding="utf-8")

    def ask(asked=tuple(FINGERPRINTS)):
        return trusts(list(asked), str(bundle), str(system), str(folder))

    return ask, system, bundle, folder, ours


def test_all_are_trusted(host):
    ask, _system, _bundle, folder, _ours = host
    assert ask()
    assert ask([FINGERPRINTS[1]])
    # Another one's file is not ours to judge.
    (folder / "site.crt").write_text("text", encoding="utf-8")
    assert ask()


@pytest.mark.parametrize("asked", [[], ["0" * 64], [*FINGERPRINTS, "0" * 64]])
def test_other_certificates_are_requested(host, asked):
    assert not host[0](asked)


def test_a_file_of_a_certificate_that_is_withdrawn(host):
    assert not host[0]([FINGERPRINTS[0], FINGERPRINTS[2]])


@pytest.mark.parametrize("text", ["", "text", PEMS[0]])
def test_our_file_was_changed(host, text):
    host[4].write_text(text, encoding="utf-8")
    assert not host[0]()


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("text", [None, "", "".join(PEMS)])
def test_a_bundle_was_changed_or_is_gone(host, which, text):
    """The system's bundle, or our copy: they have to be the same."""
    host[which].unlink()
    if text is not None:
        host[which].write_text(text, encoding="utf-8")
    assert not host[0]()


def test_a_certificate_is_in_neither_bundle(host):
    for path in host[1:3]:
        path.write_text("".join(PEMS[:2]), encoding="utf-8")
    assert not host[0]()


def test_without_a_folder_of_ours(host):
    host[4].unlink()
    host[3].rmdir()
    assert host[0]()


def test_fingerprints_of_texts():
    assert fingerprints_of(["".join(PEMS[:2]), PEMS[2]]) == FINGERPRINTS
    # The module then reports what is wrong.
    assert fingerprints_of([PEMS[0], "no certificate"]) == []
