"""What a host says of its driver, CUDA and NCCL, and what that means."""

import csv
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    ParseError, drift, grub_default, library_version, next_kernel, parse_dkms_status, parse_nccl_header, parse_nvcc, parse_nvrm, parse_packages, parse_policy, reboot_required_reason,
    upstream, version_key, will_break_on_next_boot,
)

NVCC = Path(__file__).parents[3] / "fixtures/nvcc"
with open(NVCC / "INDEX.tsv", encoding="utf-8", newline="") as index:
    ROWS = list(csv.DictReader(index, delimiter="\t"))
OLD, NEW = "6.1.0-18-amd64", "6.1.0-25-amd64"


@pytest.mark.parametrize("row", ROWS, ids=[row["path"] for row in ROWS])
def test_every_nvcc(row):
    facts = dict(fact.split("=") for fact in row["expected_key_facts"].split("; "))
    assert parse_nvcc((NVCC / row["path"]).read_text(encoding="utf-8")) == facts


def test_nvcc_of_hosts_that_differ_and_none():
    texts = [(NVCC / name).read_text(encoding="utf-8") for name in ("nvcc-11.5.txt", "nvcc-12.8.txt")]
    with pytest.raises(ParseError, match="11.5.119, 12.8.93"):
        parse_nvcc("".join(texts))
    assert parse_nvcc("nvcc: command not found") is None and parse_nvcc(texts[0][:150]) is None


@pytest.mark.parametrize("text, expected", [
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 00:04:01 UTC 2024\nGCC version:  gcc version 12.2.0\n", {"version": "535.161.08", "open": False}),
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)  Wed Feb\n", {"version": "570.124.06", "open": True}),
    ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  595.80  Mon\n", {"version": "595.80", "open": False}),
    ("", None), (" \n", None),
])
def test_loaded_module(text, expected):
    assert parse_nvrm(text) == expected


def test_what_is_no_loaded_module():
    with pytest.raises(ParseError, match="nouveau"):
        parse_nvrm("nouveau 1.3.1")


def test_dkms_of_all_ages():
    text = """nvidia/535.183.01, 6.1.0-18-amd64, x86_64: installed
nvidia-current/535.183.01, 6.1.0-25-amd64, x86_64: installed (WARNING! Diff between built and installed module!)
nvidia/570.124.06: added
nvidia, 470.103.01, 5.4.0-99-generic, x86_64: built
zfs/2.1.11, 6.1.0-18-amd64, x86_64: installed (Original modules exist)

"""
    found = parse_dkms_status(text)
    assert [(entry["module"], entry["version"], entry["kernel"], entry["state"], entry["differs"]) for entry in found] == [
        ("nvidia", "535.183.01", OLD, "installed", False), ("nvidia-current", "535.183.01", NEW, "installed", True),
        ("nvidia", "570.124.06", "", "added", False), ("nvidia", "470.103.01", "5.4.0-99-generic", "built", False), ("zfs", "2.1.11", OLD, "installed", False)]
    with pytest.raises(ParseError, match="no such thing"):
        parse_dkms_status("no such thing")


def test_packages():
    text = "nvidia-driver\t535.183.01-1~deb12u1\tii \nlibnccl2\t2.21.5-1+cuda12.4\thi \nlibnvidia-ml1:amd64\t535\tiU \ncuda\t12.4\trc \nold\t1\tun \n"
    assert parse_packages(text) == {
        "nvidia-driver": {"version": "535.183.01-1~deb12u1", "held": False, "broken": False},
        "libnccl2": {"version": "2.21.5-1+cuda12.4", "held": True, "broken": False},
        "libnvidia-ml1": {"version": "535", "held": False, "broken": True}}
    with pytest.raises(ParseError, match="half"):
        parse_packages("half a line")


def test_candidates():
    text = """nvidia-driver:
  Installed: (none)
  Candidate: 535.183.01-1~deb12u1
  Version table:
     535.183.01-1~deb12u1 500
        500 file:/nowhere bookworm/non-free amd64 Packages
libnccl2:
  Installed: 2.21.5-1+cuda12.4
  Candidate: (none)
"""
    assert parse_policy(text) == {"nvidia-driver": {"installed": "", "candidate": "535.183.01-1~deb12u1"},
                                  "libnccl2": {"installed": "2.21.5-1+cuda12.4", "candidate": ""}}


def test_versions():
    assert version_key("470.239.06") > version_key("470.57.02") and version_key("1:535.183.01-0ubuntu1") == (535, 183, 1)
    assert (upstream("535.183.01-1~deb12u1"), upstream("1:535.183.01-0ubuntu1"), upstream("")) == ("535.183.01", "535.183.01", "")
    with pytest.raises(ParseError):
        version_key("latest")
    assert library_version("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.183.01") == "535.183.01"
    assert library_version("/usr/lib/libnvidia-ml.so.1") == library_version("/stubs/libnvidia-ml.so") == ""


def test_the_kernel_that_boots_next():
    kernels = [NEW, OLD, "6.1.0-9-amd64"]
    assert next_kernel(kernels) == NEW and next_kernel(kernels, OLD) == OLD and next_kernel(kernels, "gone") == NEW and next_kernel([]) == ""
    assert next_kernel(["5.15.0-99-generic", "5.15.0-100-generic"]) == "5.15.0-100-generic"


@pytest.mark.parametrize("state, said", [
    (dict(loaded="535.1", modules={OLD: "535.1"}, library="535.1", running=OLD, boots_next=OLD), ""),
    (dict(loaded="535.1", modules={OLD: "570.2"}, library="570.2", running=OLD, boots_next=OLD), "nvidia-smi and CUDA fail"),
    (dict(loaded="535.1", modules={OLD: "570.2"}, library="", running=OLD, boots_next=OLD), "the one on disk for kernel 6.1.0-18-amd64 is 570.2"),
    (dict(loaded="", modules={NEW: "535.1"}, library="535.1", running=OLD, boots_next=NEW), "kernel 6.1.0-18-amd64 runs, which has no driver"),
    (dict(loaded="", modules={NEW: "535.1"}, library="535.1", running=OLD, boots_next=NEW, has_gpu=False), ""),
    # To load it is enough.
    (dict(loaded="", modules={OLD: "535.1"}, library="535.1", running=OLD, boots_next=OLD), ""),
    (dict(loaded="", modules={}, library="", running=OLD, boots_next=OLD), ""),
])
def test_why_a_reboot_is_needed(state, said):
    reason = reboot_required_reason(**state)
    assert said in reason and bool(said) is bool(reason)


@pytest.mark.parametrize("state, said", [
    (dict(modules={OLD: "535.1", NEW: "535.1"}, library="535.1", boots_next=NEW), ""),
    (dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW), "its headers are missing"),
    (dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW, headers=[NEW]), "has no NVIDIA module"),
    (dict(modules={NEW: "535.1"}, library="570.2", boots_next=NEW), "with module 535.1, but the libraries are 570.2"),
    (dict(modules={}, library="", boots_next=NEW), ""),
    (dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW, has_gpu=False), ""),
])
def test_what_breaks_at_the_next_boot(state, said):
    reason = will_break_on_next_boot(**state)
    assert said in reason and bool(said) is bool(reason)


def test_drift():
    found = {"nvidia-driver": "535.183.01-1~deb12u1", "libnccl2": "2.21.5-1+cuda12.4", "cuda-toolkit-12-4": "12.4.1-1"}
    assert drift({"nvidia-driver": "535", "libnccl2": "2.21.5-1+cuda12.4", "nouveau-firmware": "absent"}, found) == []
    assert drift({"nvidia-driver": "53", "libnccl2": "2.21.5-1+cuda12.2", "cuda-toolkit-12-4": "absent", "libnccl-dev": "2.21.5-1+cuda12.4"}, found) == [
        {"name": "cuda-toolkit-12-4", "asked": "absent", "found": "12.4.1-1"},
        {"name": "libnccl-dev", "asked": "2.21.5-1+cuda12.4", "found": "absent"},
        {"name": "libnccl2", "asked": "2.21.5-1+cuda12.2", "found": "2.21.5-1+cuda12.4"},
        {"name": "nvidia-driver", "asked": "53", "found": "535.183.01-1~deb12u1"}]


def test_nccl_s_header():
    assert parse_nccl_header("#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n#define NCCL_SUFFIX \"\"\n") == "2.21.5"
    assert parse_nccl_header("#define NCCL_MAJOR 2\n") == ""


@pytest.mark.parametrize("settings, environment, kernel", [
    ("GRUB_DEFAULT=0\n", "", ""), ("", "", ""), ("GRUB_DEFAULT=saved\n", "saved_entry=gnulinux-6.1.0-18-amd64-advanced-0d6c\n", OLD),
    ("GRUB_DEFAULT=0\n", "saved_entry=gnulinux-6.1.0-18-amd64-advanced-0d6c\n", ""),
    ("#GRUB_DEFAULT=1\nGRUB_DEFAULT='1>gnulinux-6.1.0-25-amd64-recovery-0d6c'\n", "", NEW),
    ("GRUB_DEFAULT=0\n", "next_entry=Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-18-amd64\n", OLD),
])
def test_what_grub_was_told(settings, environment, kernel):
    assert grub_default(settings, environment) == kernel
