"""Debian's own driver on a host with kernels of its own: built by DKMS for two of them, and what is
said before a reboot is so after it.

The driver is compiled while the host is a container, as an emulated machine takes half an hour for
each kernel. A GPU is all that the virtual machine lacks.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from grown_host import GrownHost

pytestmark = [pytest.mark.acceptance, pytest.mark.scenario]

ROOT = Path(__file__).resolve().parents[2]
DROP_IN = "/etc/modprobe.d/trainyard-nvidia-driver.conf"
# As sysfs has an H100's.
DEVICE = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
GPU = (ROOT / "molecule/gpu_stack/gpu.sh").read_text(encoding="utf-8")
# For a GPU udev loads the driver. The real module is loaded here as well, and ends as it finds
# none; one that came as far as that counts as loaded. The persistence daemon tries at the same
# time, and the second of the two is told that the module is busy.
LOADED = """
attempts=0
until modprobe nvidia 2>&1 | grep 'No such device'; do
    attempts=$((attempts + 1))
    [ $attempts -lt 10 ]
    sleep 2
done
mount -t tmpfs driver /proc/driver
mkdir /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $(modinfo --field version nvidia-current)  Tue Mar  5 22:23:56 UTC 2024" > /proc/driver/nvidia/version
"""


def newest_kernels(host):
    """The two newest that the distribution has."""
    names = re.findall(
        r"^linux-image-(\d[\d.]*-(\d+)-amd64)$",
        host.run("apt-cache pkgnames linux-image-"),
        re.MULTILINE,
    )
    return [name for name, _number in sorted(names, key=lambda found: int(found[1]))[-2:]]


def install(host, *packages):
    host.run(
        "DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends %s > /dev/null"
        % " ".join(packages)
    )


def driver(host, **variables):
    # The daemon would have nothing to talk to.
    run = host.role(
        "nvidia_driver", nvidia_driver_version="535", nvidia_driver_persistence=False, **variables
    )
    assert run.code == 0, run.text
    return run


@pytest.fixture(name="host", scope="module")
def fixture_host():
    host = GrownHost("dkms", "172.30.83.0/24")
    host.make()
    yield host
    host.remove()


@pytest.fixture(name="built", scope="module")
def fixture_built(host):
    """The driver for one kernel, then another kernel, as an upgrade brings it, then the role once
    more. What was told after each.
    """
    host.run("apt-get update --quiet=2")
    old, new = newest_kernels(host)
    install(host, "initramfs-tools", "zstd", "linux-image-" + old)
    host.run(GPU)
    driver(host)
    for_one = host.module("gpu_stack_info")
    install(host, "linux-image-" + new)
    with_another = host.module("gpu_stack_info")
    again = driver(host)
    return SimpleNamespace(
        old=old,
        new=new,
        for_one=for_one,
        with_another=with_another,
        again=again,
        for_both=host.module("gpu_stack_info"),
    )


@pytest.fixture(name="booted", scope="module")
def fixture_booted(host, built):
    host.boot(built.old, **{"stand-in-gpu": GPU + LOADED})
    # As the newer kernel's package does where it isn't installed in a container.
    host.run("update-grub")
    return host


def test_module_is_built_for_the_kernel_that_boots_next(built):
    told = built.for_one
    assert (
        list(told["modules"]) == [built.old]
        and told["modules"][built.old].startswith("535.")
        and told["modules"][built.old] == told["library"]
    )
    assert [(entry["module"], entry["kernel"], entry["state"]) for entry in told["dkms"]] == [
        ("nvidia-current", built.old, "installed")
    ]
    assert told["will_break_on_next_boot"] == ""
    assert told[
        "reboot_required_reason"
    ] == "the running kernel %s has no driver; kernel %s, which boots next, has %s" % (
        told["running_kernel"],
        built.old,
        told["library"],
    )


def test_newer_kernel_that_came_without_headers_is_told_and_healed(built):
    assert built.with_another["will_break_on_next_boot"] == (
        "kernel %s boots next, but has no NVIDIA module: DKMS cannot build one without its headers, which are missing"
        % built.new
    )
    assert list(built.again.changed.values()) == [
        ["trainyard.gpu.nvidia_driver : Install the kernel headers"]
    ]
    told = built.for_both
    assert told["modules"] == {built.old: told["library"], built.new: told["library"]}
    assert {(entry["kernel"], entry["state"]) for entry in told["dkms"]} == {
        (built.old, "installed"),
        (built.new, "installed"),
    }
    assert (told["next_kernel"], told["will_break_on_next_boot"]) == (built.new, "")


def test_nouveau_is_kept_out_of_both_initial_ram_disks(host, built):
    for kernel in (built.old, built.new):
        unpacked = "/var/tmp/%s" % kernel
        host.run("unmkinitramfs /boot/initrd.img-%s %s" % (kernel, unpacked))
        try:
            found = host.run("find %s -path '*%s'" % (unpacked, DROP_IN)).split()
            assert len(found) == 1, "the initial RAM disk of %s has no %s" % (kernel, DROP_IN)
            assert "\nblacklist nouveau\n" in host.run("cat " + found[0])
            # What the kernel would load for the GPU by the file that the RAM disk has alone, and by
            # none.
            load = (
                "modprobe --set-version %s --dry-run --verbose --use-blacklist --config %%s %s"
                % (kernel, DEVICE)
            )
            assert "/nouveau.ko" in host.run(load % "/dev/null") and "/nouveau.ko" not in host.run(
                load % found[0]
            )
        finally:
            host.run("rm -r %s" % unpacked)


def test_second_run_after_the_boot_changes_nothing(booted, built):
    assert booted.run("uname -r").strip() == built.old
    told = booted.module("gpu_stack_info")
    assert (told["running_kernel"], told["next_kernel"]) == (built.old, built.new)
    assert told["loaded"] == told["library"] and not told["nouveau_loaded"]
    assert (told["reboot_required_reason"], told["will_break_on_next_boot"]) == ("", "")
    run = driver(booted)
    assert run.changed == {} and "reboot is needed" not in run.text and "will break" not in run.text
    # The module is one for this very kernel, and has looked for a GPU.
    assert "NVRM: No NVIDIA GPU found." in booted.run("dmesg")


def test_next_kernel_that_loses_its_module(booted, built):
    module = "-m nvidia-current -v %s -k %s" % (built.for_both["library"], built.new)
    booted.run("dkms uninstall " + module)
    told = booted.module("gpu_stack_info")
    assert (
        told["will_break_on_next_boot"]
        == "kernel %s boots next, but has no NVIDIA module" % built.new
    )
    assert {(entry["kernel"], entry["state"]) for entry in told["dkms"]} == {
        (built.old, "installed"),
        (built.new, "built"),
    }
    booted.run("dkms install " + module)
    assert booted.module("gpu_stack_info")["will_break_on_next_boot"] == ""


def test_reboot_with_a_reason_into_the_kernel_that_was_told(booted, built):
    """The running kernel loses its module; the role reboots the host, when it may, and GRUB chooses
    the kernel.
    """
    booted.run(
        "umount /proc/driver && dkms uninstall -m nvidia-current -v %s -k %s"
        % (built.for_both["library"], built.old)
    )
    told = booted.module("gpu_stack_info")
    assert (told["reboot_required_reason"], told["will_break_on_next_boot"]) == (
        "the running kernel %s has no driver; kernel %s, which boots next, has %s"
        % (built.old, built.new, told["library"]),
        "",
    )
    run = driver(booted, nvidia_driver_allow_reboot=True)
    assert list(run.changed.values()) == [["trainyard.gpu.nvidia_driver : Reboot the host"]]

    assert booted.run("uname -r").strip() == built.new
    assert "NVRM: No NVIDIA GPU found." in booted.run("dmesg")
    told = booted.module("gpu_stack_info")
    assert told["loaded"] == told["library"] and not told["nouveau_loaded"]
    assert (told["reboot_required_reason"], told["will_break_on_next_boot"]) == ("", "")
    assert driver(booted).changed == {}
