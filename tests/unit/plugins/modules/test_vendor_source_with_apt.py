"""Sources with real apt in temporary folders: those that apt rejects work after vendor_source, and
slurm_packages_source has newer packages.
"""

from __future__ import annotations

import stat
import subprocess

import pytest
import vendor_repository
from role_variables import ROLES, role_variable
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.plugin_utils._vendor_source import nccl_pair
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import parse_policy
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _job_container_plan,
    _preflight_plan,
)

OTHERS = "deb [signed-by={ring}] file://{folder}/compute/cuda/repos/ubuntu2204/x86_64 /\n"
SOURCE = """Types: deb
URIs: file://{folder}/compute/cuda/repos/ubuntu2204/x86_64/
Suites: /
Signed-By: {ring}
"""


@pytest.fixture(name="apt", scope="module")
def fixture_apt(tmp_path_factory):
    """Apt's own folders, and a repository of NVIDIA's kind, which apt's unprivileged user
    can read.
    """
    root = tmp_path_factory.mktemp("apt")
    for parent in (root, *root.parents[:2]):
        # With a short --basetemp, /tmp is among them.
        if not parent.stat().st_mode & stat.S_ISVTX:
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


JAMMY = {"id": "ubuntu", "version_id": "22.04", "codename": "jammy"}
OLD = {"slurmd": "21.08.5-2ubuntu1", "podman": "3.4.4+ds1-1ubuntu1.22.04.3"}
NEW = {"slurmd": "23.11.10-1~jammy1", "podman": "4.6.2+ds1-1~jammy1"}


def test_a_signed_repository_of_the_site_serves_slurm_and_podman(apt):
    """As slurm_packages_source on Ubuntu 22.04, whose podman cannot give GPUs to containers."""
    sources = apt.root / "etc/sources.list.d"
    for folder, origin, offers in (("jammy", "Ubuntu", OLD), ("site", "Site", NEW)):
        vendor_repository.make_foreign(apt.root / folder, origin, offers.items())

    def write(folder, key):
        source = {
            "uris": [(apt.root / folder).as_uri()],
            "suites": ["./"],
            "signed_by": str(apt.root / key / "key.asc"),
        }
        placed = role_variable(
            "package_sources",
            "__package_sources_scheduler_file",
            cluster_scheduler="slurm",
            slurm_packages_source=source,
            package_sources_http_proxy="",
            package_sources_https_proxy="",
            package_sources_pip_index_url="",
            package_sources_pip_extra_index_urls=[],
            package_sources_apt_repositories=[],
            ansible_search_path=[str(ROLES / "package_sources")],
        )
        assert placed["path"] == _preflight_plan.SLURM_SOURCE and placed["mode"] == "0644"
        (sources / (folder + ".sources")).write_text(placed["content"], encoding="utf-8")
        return source

    def offered(source):
        policy = parse_policy(apt("apt-cache", "policy", "slurmd", "podman").stdout)
        candidates = {name: state["candidate"] for name, state in policy.items()}
        host = {"os": JAMMY, "files": {_preflight_plan.SLURM_SOURCE: {}}}
        problems = _job_container_plan.podman_problems(
            {"packages": {}, "podman_candidate": candidates["podman"], "gpu_nodes": [0]}
        )
        return _preflight_plan.offered(host, candidates, source), problems

    write("jammy", "jammy")
    # Signed by another key than the one that the site names: nothing of it is used.
    source = write("site", "jammy")
    assert "NO_PUBKEY" in apt("apt-get", "update").stderr
    versions, (problem,) = offered(source)
    assert (
        versions == {"slurmd": "21.08.5", "podman": "3.4.4"} and "slurm_packages_source" in problem
    )
    source = write("site", "site")
    updated = apt("apt-get", "update")
    assert updated.returncode == 0 and updated.stderr == ""
    assert offered(source) == ({"slurmd": "23.11.10", "podman": "4.6.2"}, [])
    installs = apt("apt-get", "--simulate", "install", "podman", "slurmd").stdout
    assert (
        "Inst podman (4.6.2+ds1-1~jammy1 Site" in installs and "Inst slurmd (23.11.10" in installs
    )


def test_no_source_without_slurm_or_the_variable():
    for scheduler, source in (("none", {"uris": ["x"]}), ("slurm", {}), ("slurm", None)):
        placed = role_variable(
            "package_sources",
            "__package_sources_scheduler_file",
            cluster_scheduler=scheduler,
            slurm_packages_source=source,
            package_sources_http_proxy="",
            package_sources_https_proxy="",
            package_sources_pip_index_url="",
            package_sources_pip_extra_index_urls=[],
            package_sources_apt_repositories=[],
        )
        assert placed["state"] == "absent" and "content" not in placed
