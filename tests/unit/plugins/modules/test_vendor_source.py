"""vendor_source, run like in Ansible, with a folder like /etc/apt and new keys from gpg."""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest
from scripted_tools import run_module

REPOSITORY = "developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
OLD_LIST = f"# of the vendor's package\ndeb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://{REPOSITORY}/ /\n"
SOURCE = """# Managed by a test.
Types: deb
URIs: https://mirror.example.org/cuda/debian12/x86_64/
Suites: /
Signed-By: /etc/apt/keyrings/nvidia.gpg
"""


@pytest.fixture(name="gpg", scope="session")
def fixture_gpg(tmp_path_factory):
    """Two public keys: fingerprint, and bytes with and without armor."""
    found = []
    for name in ("one", "two"):
        home = tmp_path_factory.mktemp(name)
        home.chmod(0o700)

        def gpg(*arguments, home=home):
            return subprocess.run(
                ["gpg", "--homedir", str(home), "--batch", "--no-tty", *arguments],
                check=True,
                capture_output=True,
            ).stdout

        gpg(
            "--passphrase",
            "",
            "--quick-generate-key",
            f"{name} <{name}@example.org>",
            "ed25519",
            "sign",
            "never",
        )
        listed = gpg("--with-colons", "--list-keys").decode()
        found.append(
            {
                "fingerprint": next(
                    line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")
                ),
                "binary": gpg("--export"),
                "armor": gpg("--armor", "--export"),
            }
        )
    return found


@pytest.fixture(name="host")
def fixture_host(tmp_path, gpg):
    apt = tmp_path / "apt"
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "trusted.gpg.d").mkdir()
    (apt / "sources.list").write_text(
        "deb http://deb.example.org/debian bookworm main\n", encoding="utf-8"
    )
    key = tmp_path / "gpgkey"
    key.write_bytes(gpg[0]["armor"])

    def run(check=False, **arguments):
        return run_module(
            "vendor_source",
            {
                "names": ["nvidia"],
                "source": SOURCE,
                "key_url": key.as_uri(),
                "key_fingerprints": [gpg[0]["fingerprint"]],
                "replaces": [
                    r"developer[.]download[.]nvidia[.]com/compute/cuda/repos/debian12/x86_64"
                ],
                "record": str(tmp_path / "placed.d/record.json"),
                "folder": str(apt),
                "architecture": "amd64",
                **arguments,
            },
            check,
        )

    run.apt, run.key, run.record = apt, key, tmp_path / "placed.d/record.json"
    return run


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.glob("**/*")
        if path.is_file()
    }


def test_a_source_on_a_bare_host(host, gpg):
    before = tree(host.apt)
    told = host(check=True)
    assert told["changed"] and tree(host.apt) == before
    told = host()
    assert [path.rpartition("/")[2] for path in told["changed_paths"]] == [
        "nvidia.gpg",
        "nvidia.sources",
    ] and told["taken_out"] == []
    assert (host.apt / "keyrings/nvidia.gpg").read_bytes() == gpg[0]["binary"]
    assert (host.apt / "sources.list.d/nvidia.sources").read_text(encoding="utf-8") == SOURCE
    assert (host.apt / "sources.list.d/nvidia.sources").stat().st_mode & 0o777 == 0o644
    host.key.unlink()  # What is there already is not fetched again.
    assert not host()["changed"] and not host(check=True)["changed"]
    assert host(state="absent")["changed"] and tree(host.apt) == before and not host.record.exists()
    assert not host(state="absent")["changed"]


def test_entries_that_stand_against_it_go_and_come_back(host):
    (host.apt / "sources.list.d/cuda-debian12-x86_64.list").write_text(OLD_LIST, encoding="utf-8")
    (host.apt / "sources.list.d/cuda-debian12-x86_64.list").chmod(0o640)
    mixed = f"deb http://deb.example.org/debian bookworm main\ndeb https://user:secret@{REPOSITORY.rpartition('/')[0]} x86_64/\n"
    (host.apt / "sources.list").write_text(mixed, encoding="utf-8")
    deb822 = (
        "Types: deb\nURIs: https://mirror.example.org/cuda/debian12/$(ARCH)\n https://other.example.org/\nSuites: /\n\n# switched off\nEnabled: no\n"
        f"Types: deb\nURIs: https://{REPOSITORY}\nSuites: /\n"
    )
    (host.apt / "sources.list.d/site.sources").write_text(deb822, encoding="utf-8")
    before = tree(host.apt)
    told = host(architecture="x86_64")
    assert [(entry["path"].rpartition("/")[2], entry["what"]) for entry in told["taken_out"]] == [
        ("sources.list", [f"https://{REPOSITORY.rpartition('/')[0]}"]),
        ("cuda-debian12-x86_64.list", [f"https://{REPOSITORY}/"]),
        ("site.sources", ["https://mirror.example.org/cuda/debian12/$(ARCH)"]),
    ]
    assert (
        "secret" not in json.dumps(told["taken_out"])
        and host.record.stat().st_mode & 0o777 == 0o600
    )
    assert not (host.apt / "sources.list.d/cuda-debian12-x86_64.list").exists()
    assert (host.apt / "sources.list").read_text(encoding="utf-8") == mixed.splitlines(True)[0]
    left = (host.apt / "sources.list.d/site.sources").read_text(encoding="utf-8")
    assert (
        "URIs: https://other.example.org/\n" in left
        and "mirror.example.org" not in left
        and left.endswith(deb822.partition("\n\n")[2])
    )
    assert not host(architecture="x86_64")["changed"]
    assert host(state="absent")["kept"] == []
    assert tree(host.apt) == before
    assert (host.apt / "sources.list.d/cuda-debian12-x86_64.list").stat().st_mode & 0o777 == 0o640


def test_what_the_user_has_written_since_stays(host):
    path = host.apt / "sources.list"
    first = path.read_text(encoding="utf-8")
    path.write_text(first + OLD_LIST, encoding="utf-8")
    host()
    path.write_text(first + "deb http://new.example.org/ /\n", encoding="utf-8")
    told = host(state="absent")
    assert told["kept"] == [str(path)] and "new.example.org" in path.read_text(encoding="utf-8")


def test_what_comes_back_by_itself_is_taken_out_again(host):
    path = host.apt / "sources.list.d/cuda.list"
    for text in (OLD_LIST, OLD_LIST + "# anew\n"):
        path.write_text(text, encoding="utf-8")
        assert host()["taken_out"] and not path.exists()
    host(state="absent")
    assert path.read_text(encoding="utf-8") == OLD_LIST + "# anew\n"


def test_a_retired_key_that_every_repository_is_trusted_by(host, gpg):
    (host.apt / "trusted.gpg").write_bytes(gpg[0]["binary"] + gpg[1]["binary"])
    (host.apt / "trusted.gpg.d/old.asc").write_bytes(gpg[1]["armor"])
    (host.apt / "trusted.gpg.d/keybox.gpg").write_bytes(b"\0\0\0 \1\1\0\2KBXf")
    before = tree(host.apt)
    told = host(retired_keys=[gpg[1]["fingerprint"]])
    assert [entry["what"] for entry in told["taken_out"]] == [[gpg[1]["fingerprint"]]] * 2
    assert (host.apt / "trusted.gpg").read_bytes() == gpg[0]["binary"] and not (
        host.apt / "trusted.gpg.d/old.asc"
    ).exists()
    host(state="absent")
    assert tree(host.apt) == before


def test_another_key_than_the_one_that_is_known(host, gpg):
    before = tree(host.apt)
    host.key.write_bytes(gpg[1]["armor"])
    told = host()
    assert (
        told["failed"]
        and f"has the keys {gpg[1]['fingerprint']}, but lacks {gpg[0]['fingerprint']}; nothing was changed. If the vendor"
        in told["msg"]
    )
    told = host(key_fingerprints=[], key_checksums=["sha256:" + "0" * 64])
    assert told["failed"] and "has the SHA-256 checksum" in told["msg"]
    told = host(key_fingerprints=[])
    assert (
        told["failed"]
        and "the key of this repository is unknown; nothing was changed. Set key_checksums or key_fingerprints"
        in told["msg"]
    )
    host.key.write_bytes(b"<html>not found</html>")
    told = host()
    assert told["failed"] and "is not a keyring" in told["msg"] and "Set key_url to" in told["msg"]
    told = host(key_url="file:///nowhere/gpgkey")
    assert told["failed"] and "can't be fetched" in told["msg"] and "Check key_url" in told["msg"]
    assert tree(host.apt) == before and not host.record.exists()


def test_a_key_too_many_is_left_out(host, gpg):
    host.key.write_bytes(gpg[1]["binary"] + gpg[0]["binary"])
    host()
    assert (host.apt / "keyrings/nvidia.gpg").read_bytes() == gpg[0]["binary"]


def test_a_keyring_out_of_a_package_that_is_not_installed(host, gpg, tmp_path):
    root = tmp_path / "package"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: cuda-keyring\nVersion: 1.1-1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: key\n",
        encoding="utf-8",
    )
    (root / "usr/share/keyrings").mkdir(parents=True)
    (root / "usr/share/keyrings/cuda-archive-keyring.gpg").write_bytes(gpg[1]["binary"])
    deb = tmp_path / "cuda-keyring_1.1-1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", str(root), str(deb)],
        check=True,
        capture_output=True,
    )
    asked = {
        "key_url": deb.as_uri(),
        "key_fingerprints": [],
        "key_checksums": ["sha256:" + hashlib.sha256(deb.read_bytes()).hexdigest()],
    }
    assert host(**asked)["changed"]
    assert (host.apt / "keyrings/nvidia.gpg").read_bytes() == gpg[1]["binary"]
    assert not host(**asked)["changed"]
    (host.apt / "keyrings/nvidia.gpg").write_bytes(gpg[0]["binary"])
    assert [path.rpartition("/")[2] for path in host(**asked)["changed_paths"]] == ["nvidia.gpg"]
    # With a different checksum it is downloaded and checked again.
    told = host(**dict(asked, key_checksums=["sha256:" + "1" * 64]))
    assert told["failed"] and "has the SHA-256 checksum" in told["msg"]


def test_sources_of_our_own_stay_beside_each_other(host):
    host()
    told = host(
        names=["other"],
        replaces=["mirror[.]example[.]org/.*"],
        source=SOURCE.replace("debian12", "ubuntu2204"),
    )
    assert told["taken_out"] == [] and (host.apt / "sources.list.d/nvidia.sources").exists()
    assert host(state="absent", names=["nvidia", "other"])["changed"]
    assert not list((host.apt / "sources.list.d").iterdir()) and not list(
        (host.apt / "keyrings").iterdir()
    )


def test_a_record_that_can_not_be_read(host):
    host()
    host.record.write_text("{", encoding="utf-8")
    assert "%s is damaged" % host.record in host(state="absent")["msg"]
