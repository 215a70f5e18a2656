"""vendor_source with real apt in temporary folders: sources that apt rejects work afterwards."""

from __future__ import annotations

import subprocess

import pytest
import vendor_repository
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.filter.compat import nccl_pair

OTHERS = "deb [signed-by={ring}] file://{folder}/compute/cuda/repos/ubuntu2204/x86_64 /\n"
SOURCE = """Types: deb
URIs: file://{folder}/compute/cuda/repos/ubuntu2204/x86_64/
Suites: /
Signed-By: {ring}
"""


@pytest.fixture(name="apt", scope="module")
def fixture_apt(tmp_path_factory):
    """Apt's own folders, and a repository of NVIDIA's kind, which apt's unprivileged user can read."""
    root = tmp_path_factory.mktemp("apt")
    for parent in (root, *root.parents[:2]):
        parent.chmod(0o755)
    vendor_repository.make(root / "vendor", only=["nccl"])
    for name in (
        "etc/sources.list.d",
        "etc/preferences.d",
        "state/lists/partial",
        "cache/archives/partial",
    ):
        (root / name).mkdir(parents=True)
    (root / "state/status").touch()

    def run(*arguments):
        options = [
            f"Dir::Etc={root}/etc",
            f"Dir::State={root}/state",
            f"Dir::State::status={root}/state/status",
            f"Dir::Cache={root}/cache",
            "APT::Sandbox::User=root",
            "Dir::Etc::Trusted=/dev/null",
            "Dir::Etc::TrustedParts=/dev/null",
        ]
        return subprocess.run(
            [
                arguments[0],
                *(word for option in options for word in ("--option", option)),
                *arguments[1:],
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    run.root = root
    return run


def test_an_entry_that_stops_apt_is_taken_out(apt):
    ring = apt.root / "etc/keyrings/nvidia.gpg"
    keyring = apt.root / "vendor/compute/cuda/repos/ubuntu2204/x86_64/cuda-archive-keyring.gpg"
    (apt.root / "etc/sources.list.d/cuda.list").write_text(
        OTHERS.format(folder=apt.root / "vendor", ring=keyring), encoding="utf-8"
    )
    (apt.root / "etc/sources.list.d/nvidia.sources").write_text(
        SOURCE.format(folder=apt.root / "vendor", ring=ring), encoding="utf-8"
    )
    assert "Conflicting values set for option Signed-By" in apt("apt-get", "update").stderr
    fingerprint = subprocess.run(
        ["gpg", "--show-keys", "--with-colons", str(keyring)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    told = run_module(
        "vendor_source",
        {
            "names": ["nvidia"],
            "source": SOURCE.format(folder=apt.root / "vendor", ring=ring),
            "key_url": keyring.as_uri(),
            "key_fingerprints": [fingerprint.partition("fpr:::::::::")[2].partition(":")[0]],
            "record": str(apt.root / "record.json"),
            "folder": str(apt.root / "etc"),
            "architecture": "amd64",
        },
    )
    assert [entry["path"].rpartition("/")[2] for entry in told["taken_out"]] == ["cuda.list"], told
    updated = apt("apt-get", "update")
    assert updated.returncode == 0 and updated.stderr == ""
    assert "2.21.5-1+cuda12.4" in apt("apt-cache", "madison", "libnccl2").stdout


def test_the_pin_of_nccl_wins_over_newer_versions(apt):
    def candidates():
        return [
            line.split()[1]
            for line in apt("apt-cache", "policy", "libnccl2", "libnccl-dev").stdout.splitlines()
            if "Candidate:" in line
        ]

    assert candidates() == ["2.27.7-1+cuda13.0"] * 2
    (apt.root / "etc/preferences.d/trainyard-nccl").write_text(
        nccl_pair("2.21.5", "12.4")["preferences"], encoding="utf-8"
    )
    assert candidates() == ["2.21.5-1+cuda12.4"] * 2


def test_without_its_key_apt_refuses_it(apt):
    ring = apt.root / "etc/keyrings/nvidia.gpg"
    there = ring.read_bytes()
    ring.write_bytes(b"")
    try:
        assert "NO_PUBKEY" in apt("apt-get", "update").stderr
    finally:
        ring.write_bytes(there)
