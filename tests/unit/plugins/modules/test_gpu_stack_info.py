"""gpu_stack_info with outputs of hosts: tools by command, kernel files by path."""

from __future__ import annotations

import hashlib
import json

import pytest
from ansible.module_utils import basic
from module_arguments import patch_module_args

from ansible_collections.trainyard.gpu.plugins.module_utils import _pci
from ansible_collections.trainyard.gpu.plugins.modules import gpu_stack_info

OLD, NEW = "6.1.0-18-amd64", "6.1.0-25-amd64"
PACKAGES = (
    "nvidia-driver\t535.183.01-1~deb12u1\thi \tDebian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>\tnon-free/x11\tlibcuda1\n"
    "linux-image-6.1.0-18-amd64\t6.1.76-1\tii \tDebian Kernel Team <debian-kernel@lists.debian.org>\tkernel\tkmod\n"
    "libnccl2\t2.21.5-1+cuda12.4\thi \tcudatools <cudatools@nvidia.com>\tlibs\tlibc6\n"
)


@pytest.fixture(name="host")
def fixture_host(tmp_path, monkeypatch):
    """A host with one GPU, whose driver is in order; a test changes what it is about."""
    said = {
        ("modinfo", OLD): "535.183.01\n",
        ("modinfo", NEW): "535.183.01\n",
        (
            "ldconfig",
        ): "2 libs found\n\tlibnvidia-ml.so.1 (libc6) => /nowhere\n\tlibnvidia-ml.so.1 (libc6,x86-64) => %s/libnvidia-ml.so.1\n"
        % tmp_path,
        ("dpkg-query",): PACKAGES,
        (
            "apt-cache",
        ): "nvidia-driver:\n  Installed: 535.183.01-1~deb12u1\n  Candidate: 550.54.15-1\n",
        (
            "dkms",
        ): "nvidia-current/535.183.01, %s, x86_64: installed\nzfs/2.1, %s, x86_64: installed\n"
        % (OLD, OLD),
        ("dockerd",): "Docker version 26.1.3, build 8e96db1\n",
        ("nvidia-ctk",): "NVIDIA Container Toolkit CLI version 1.17.7\ncommit: 1\n",
    }
    files = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May\n",
        "/etc/docker/daemon.json": json.dumps(
            {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
        ),
    }
    (tmp_path / "libnvidia-ml.so.535.183.01").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.183.01")
    for name, kind in (
        ("0000:01:00.0", "0x030200"),
        ("0000:02:00.0", "0x068000"),
        ("0000:03:00.0", "0x020000"),
    ):
        (tmp_path / "pci" / name).mkdir(parents=True)
        for key, value in (("vendor", "0x10de"), ("class", kind), ("device", "0x20b2")):
            (tmp_path / "pci" / name / key).write_text(value + "\n", encoding="utf-8")
    kernels = [OLD, NEW]
    real_read, real_glob = gpu_stack_info.read_text, gpu_stack_info.glob.glob

    def say(self, *command):
        answers = {
            key: text
            for key, text in said.items()
            if key[0] == command[0] and set(key) <= set(command)
        }
        return next(iter(answers.values()), "")

    def found(pattern):
        return (
            ["/boot/vmlinuz-" + kernel for kernel in kernels]
            if pattern == "/boot/vmlinuz-*"
            else real_glob(pattern)
            if str(tmp_path) in pattern
            else []
        )

    monkeypatch.setattr(_pci, "DEVICES", str(tmp_path / "pci"))
    monkeypatch.setattr(gpu_stack_info.Host, "say", say)
    monkeypatch.setattr(
        gpu_stack_info,
        "read_text",
        lambda path: real_read(path) if str(tmp_path) in path else files.get(path, ""),
    )
    monkeypatch.setattr(gpu_stack_info.glob, "glob", found)
    monkeypatch.setattr(gpu_stack_info.platform, "release", lambda: OLD)
    monkeypatch.setattr(
        gpu_stack_info.os.path, "isdir", lambda path: path == "/lib/modules/%s/build" % NEW
    )

    def run(**arguments):
        with patch_module_args(dict(arguments, _ansible_remote_tmp=str(tmp_path))):
            results = []
            monkeypatch.setattr(
                basic.AnsibleModule, "exit_json", lambda self, **result: results.append(result)
            )
            monkeypatch.setattr(
                basic.AnsibleModule,
                "fail_json",
                lambda self, msg, **result: (_ for _ in ()).throw(AssertionError(msg)),
            )
            gpu_stack_info.main()
        return results[0]

    run.said, run.files, run.kernels, run.folder = said, files, kernels, tmp_path
    return run


def test_a_driver_that_is_in_order(host):
    told = host()
    assert (
        told["gpus"] == [{"bus_id": "0000:01:00.0", "device_id": "20b2", "model": ""}]
        and told["nvswitches"] == 1
    )
    assert (told["loaded"], told["loaded_is_open"], told["library"]) == (
        "535.183.01",
        False,
        "535.183.01",
    )
    assert told["modules"] == {OLD: "535.183.01", NEW: "535.183.01"} and told["headers"] == [NEW]
    assert (told["running_kernel"], told["next_kernel"]) == (OLD, NEW)
    assert [entry["module"] for entry in told["dkms"]] == ["nvidia-current"]
    assert told["container_toolkit"] == "1.17.7" and told["container_runtimes"] == ["nvidia"]
    assert told["packages"]["libnccl2"] == {
        "version": "2.21.5-1+cuda12.4",
        "held": True,
        "broken": False,
        "by_nvidia": True,
        "leads_to": "",
    }
    assert told["packages"]["nvidia-driver"]["origin"] == "distribution"
    assert (told["driver_sources"], told["driver_pinned"], told["docker"]) == (
        ["distribution"],
        "hold of nvidia-driver",
        "26.1.3",
    )
    assert (told["repositories"], told["old_keys"]) == ([], [])
    assert (
        told["reboot_required_reason"],
        told["will_break_on_next_boot"],
        told["drift"],
        told["changed"],
    ) == ("", "", [], False)


def test_an_update_whose_reboot_was_skipped(host):
    (host.folder / "libnvidia-ml.so.1").unlink()
    (host.folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.54.15")
    host.said[("modinfo", OLD)] = host.said[("modinfo", NEW)] = "550.54.15\n"
    told = host()
    assert (
        "the loaded kernel module is 535.183.01, the libraries are 550.54.15"
        in told["reboot_required_reason"]
    )
    assert told["will_break_on_next_boot"] == ""


def test_a_new_kernel_without_a_module(host):
    host.said[("modinfo", NEW)] = ""
    assert (
        host()["will_break_on_next_boot"] == "kernel %s boots next, but has no NVIDIA module" % NEW
    )
    # Where GRUB was told to stay with the old one nothing breaks.
    host.files["/etc/default/grub"] = (
        'GRUB_DEFAULT="Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux %s"\n'
        % OLD
    )
    assert host()["will_break_on_next_boot"] == ""
    host.files["/boot/grub/grubenv"] = "next_entry=gnulinux-%s-advanced-0d6c\n####" % NEW
    assert host()["next_kernel"] == NEW


def test_debians_module_has_a_name_of_its_own(host):
    for kernel in (OLD, NEW):
        host.said[("modinfo", kernel, "nvidia-current")] = host.said.pop(("modinfo", kernel))
    assert host()["modules"] == {OLD: "", NEW: ""}
    host.said[("modprobe", "nvidia")] = "install modprobe -i nvidia-current $CMDLINE_OPTS \n"
    told = host()
    assert (
        told["modules"] == {OLD: "535.183.01", NEW: "535.183.01"}
        and told["will_break_on_next_boot"] == ""
    )


def test_what_was_asked_and_what_apt_would_install(host):
    told = host(
        asked={
            "nvidia-driver": 535,
            "libnccl2": "2.20.5-1+cuda12.4",
            "libnccl-dev": "2.20.5-1+cuda12.4",
        },
        candidates=True,
    )
    assert told["drift"] == [
        {"name": "libnccl-dev", "asked": "2.20.5-1+cuda12.4", "found": "absent"},
        {"name": "libnccl2", "asked": "2.20.5-1+cuda12.4", "found": "2.21.5-1+cuda12.4"},
    ]
    assert (
        told["packages"]["nvidia-driver"]["candidate"] == "550.54.15-1"
        and told["packages"]["libnccl2"]["candidate"] == ""
    )


def test_a_host_without_anything(host):
    host.said.clear()
    host.files.clear()
    del host.kernels[:]
    told = host()
    assert (
        told["loaded"],
        told["loaded_is_open"],
        told["modules"],
        told["next_kernel"],
        told["library"],
        told["packages"],
    ) == ("", None, {}, "", "", {})
    assert (told["reboot_required_reason"], told["will_break_on_next_boot"]) == ("", "")


def test_what_a_role_asks_besides(host):
    drop_in, record = host.folder / "drop-in", host.folder / "record.json"
    drop_in.write_text("blacklist nouveau\n", encoding="utf-8")
    record.write_text('{"version": "535.183.01"}\n', encoding="utf-8")
    host.said[("systemctl", "nvidia-persistenced.service")] = (
        "LoadState=loaded\nActiveState=failed\nUnitFileState=enabled\n"
    )
    host.said[("systemctl", "nvidia-fabricmanager.service")] = (
        "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n"
    )
    told = host(
        files=[str(drop_in), "/nowhere"],
        record=str(record),
        services=["nvidia-persistenced.service", "nvidia-fabricmanager.service"],
    )
    assert told["files"] == {str(drop_in): hashlib.sha256(b"blacklist nouveau\n").hexdigest()}
    assert told["record"] == {"version": "535.183.01"}
    assert told["services"] == {
        "nvidia-persistenced.service": {"loaded": True, "enabled": True, "active": False},
        "nvidia-fabricmanager.service": {"loaded": False, "enabled": False, "active": False},
    }
    assert host(record=str(host.folder / "none"))["record"] == {}
    assert host()["records"] == {}
    assert host(records={"driver": str(record), "nccl": str(host.folder / "none")})["records"] == {
        "driver": {"version": "535.183.01"},
        "nccl": {},
    }


def test_folders_of_open_mpi(host, monkeypatch):
    assert host()["open_mpi"] == []
    monkeypatch.setattr(
        gpu_stack_info,
        "OPEN_MPI",
        [str(host.folder / pattern.lstrip("/")) for pattern in gpu_stack_info.OPEN_MPI],
    )
    homes = [
        host.folder / name
        for name in (
            "usr/mpi/gcc/openmpi-4.1.5a1",
            "usr/lib/x86_64-linux-gnu/openmpi",
            "usr/lib/jvm",
        )
    ]
    for home in homes:
        (home / "include").mkdir(parents=True)
        (home / "include/mpi.h").touch()
    # Of that one only the libraries are there, with which nothing can be built.
    (host.folder / "usr/mpi/gcc/openmpi-4.1.2/lib").mkdir(parents=True)
    assert sorted(host()["open_mpi"]) == sorted(str(home) for home in homes[:2])


def test_keys_that_the_firmware_takes(host, monkeypatch):
    host.said[("mokutil", "/var/lib/dkms/mok.pub")] = "/var/lib/dkms/mok.pub is already enrolled\n"
    host.said[("mokutil", "/var/lib/shim-signed/mok/MOK.der")] = (
        "/var/lib/shim-signed/mok/MOK.der is not enrolled\n"
    )
    assert host()["module_keys_enrolled"] == []
    monkeypatch.setattr(gpu_stack_info, "secure_boot", lambda: True)
    assert host()["module_keys_enrolled"] == ["/var/lib/dkms/mok.pub"]


def test_what_can_not_be_read_is_a_failure(host):
    host.said[("dkms",)] = "something else\n"
    with pytest.raises(AssertionError, match="dkms status: 'something else'"):
        host()


def test_a_ppa_that_offers_a_driver_is_reported(host, monkeypatch):
    lists, source = host.folder / "lists", "/etc/apt/sources.list.d/ppa.list"
    lists.mkdir()
    prefix = "ppa.launchpadcontent.net_graphics-drivers_ppa_ubuntu_dists_jammy_"
    (lists / (prefix + "InRelease")).write_text(
        "Origin: LP-PPA-graphics-drivers\nLabel: Proprietary GPU Drivers\n", encoding="utf-8"
    )
    (lists / (prefix + "main_binary-amd64_Packages")).write_text(
        "Package: nvidia-driver\nVersion: 570.172.08-1\n\n"
        "Package: nvidia-smi\nVersion: 570.172.08-1\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(gpu_stack_info, "LISTS", str(lists))
    monkeypatch.setattr(
        gpu_stack_info,
        "files",
        lambda patterns: [source] if patterns is gpu_stack_info.SOURCES else [],
    )
    uri = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"
    host.files[source] = (
        "deb %s jammy main\ndeb-src %s jammy main\ndeb http://mirror.example/debian bookworm main\n"
        % (uri, uri)
    )
    told = host()
    assert told["foreign_sources"] == [
        {
            "path": source,
            "uri": uri,
            "suite": "jammy",
            "origin": "LP-PPA-graphics-drivers",
            "kept_out": False,
            "own_origin": True,
            "packages": {"nvidia-driver": ["570.172.08-1"], "nvidia-smi": ["570.172.08-1"]},
        }
    ]
    assert told["driver_sources"] == ["distribution"]
    # Now its driver is the one that is installed.
    host.said[("dpkg-query",)] = PACKAGES.replace("535.183.01-1~deb12u1", "570.172.08-1")
    host.said[("apt-cache",)] = (
        " nvidia-driver | 570.172.08-1 | %s jammy/main amd64 Packages\n" % uri
    )
    assert host()["driver_sources"] == ["other_repository"]
    host.said[("apt-cache",)] += (
        " nvidia-driver | 570.172.08-1 | http://mirror.example/debian bookworm/main amd64 Packages\n"
    )
    assert host()["driver_sources"] == ["distribution"]


def test_a_toolkit_and_its_link_are_one(host, monkeypatch):
    """NVIDIA's packages make /usr/local/cuda-13.0, and a link cuda-13 to it."""
    (host.folder / "cuda-13.0/bin").mkdir(parents=True)
    (host.folder / "cuda-13.0/bin/nvcc").touch()
    (host.folder / "cuda-13").symlink_to("cuda-13.0")
    nvccs = [str(host.folder / name / "bin/nvcc") for name in ("cuda-13", "cuda-13.0")]
    host.said.update(
        {(path,): "Cuda compilation tools, release 13.0, V13.0.88\n" for path in nvccs}
    )
    before = gpu_stack_info.glob.glob
    monkeypatch.setattr(
        gpu_stack_info.glob,
        "glob",
        lambda pattern: nvccs if pattern == "/usr/local/cuda-*/bin/nvcc" else before(pattern),
    )
    assert host()["cuda"] == {
        str(host.folder / "cuda-13.0"): {"release": "13.0", "version": "13.0.88"}
    }
