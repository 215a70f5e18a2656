"""Driver, CUDA and NCCL of a host, and conclusions from them."""

import base64
import csv
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._apt_sources import (
    entries,
    list_prefix,
    location,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._driver import keep_out
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    ParseError,
    drift,
    driver_pinned,
    driver_sources,
    grub_default,
    holds_old_key,
    is_foreign,
    is_kept_out,
    library_version,
    next_kernel,
    parse_dkms_status,
    parse_driver_offers,
    parse_module_name,
    parse_nccl_header,
    parse_nvcc,
    parse_nvrm,
    parse_packages,
    parse_policy,
    parse_release,
    parse_sources,
    reboot_required_reason,
    upstream,
    version_key,
    will_break_on_next_boot,
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
    texts = [
        (NVCC / name).read_text(encoding="utf-8") for name in ("nvcc-11.5.txt", "nvcc-12.8.txt")
    ]
    with pytest.raises(ParseError, match="11.5.119, 12.8.93"):
        parse_nvcc("".join(texts))
    assert parse_nvcc("nvcc: command not found") is None and parse_nvcc(texts[0][:150]) is None


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 00:04:01 UTC 2024\nGCC version:  gcc version 12.2.0\n",
            {"version": "535.161.08", "open": False},
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)  Wed Feb\n",
            {"version": "570.124.06", "open": True},
        ),
        (
            "NVRM version: NVIDIA UNIX aarch64 Kernel Module  595.80  Mon\n",
            {"version": "595.80", "open": False},
        ),
        ("", None),
        (" \n", None),
    ],
)
def test_loaded_module(text, expected):
    assert parse_nvrm(text) == expected


def test_what_is_no_loaded_module():
    with pytest.raises(ParseError, match="nouveau"):
        parse_nvrm("nouveau 1.3.1")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("insmod /lib/modules/6.1.0-18-amd64/updates/dkms/nvidia.ko.xz \n", ""),
        # Debian's nvidia-kernel-support, where the driver is the host's GLX alternative.
        ("install modprobe -i nvidia-current $CMDLINE_OPTS \n", "nvidia-current"),
        (
            "insmod /lib/modules/6.1.0-18-amd64/kernel/drivers/i2c/i2c-core.ko \ninstall modprobe -i nvidia-tesla-470 $CMDLINE_OPTS\n",
            "nvidia-tesla-470",
        ),
        # As users write them.
        (
            "install /sbin/modprobe --ignore-install nvidia; /usr/bin/nvidia-modprobe -c 0\n",
            "nvidia",
        ),
        ("install /bin/false\n", ""),
        ("", ""),
    ],
)
def test_name_of_the_module_on_disk(text, expected):
    assert parse_module_name(text) == expected


def test_dkms_of_all_ages():
    text = """nvidia/535.183.01, 6.1.0-18-amd64, x86_64: installed
nvidia-current/535.183.01, 6.1.0-25-amd64, x86_64: installed (WARNING! Diff between built and installed module!)
nvidia/570.124.06: added
nvidia, 470.103.01, 5.4.0-99-generic, x86_64: built
zfs/2.1.11, 6.1.0-18-amd64, x86_64: installed (Original modules exist)

"""
    found = parse_dkms_status(text)
    assert [
        (entry["module"], entry["version"], entry["kernel"], entry["state"], entry["differs"])
        for entry in found
    ] == [
        ("nvidia", "535.183.01", OLD, "installed", False),
        ("nvidia-current", "535.183.01", NEW, "installed", True),
        ("nvidia", "570.124.06", "", "added", False),
        ("nvidia", "470.103.01", "5.4.0-99-generic", "built", False),
        ("zfs", "2.1.11", OLD, "installed", False),
    ]
    with pytest.raises(ParseError, match="no such thing"):
        parse_dkms_status("no such thing")


def test_packages():
    text = (
        "nvidia-driver\t535.183.01-1~deb12u1\tii \tDebian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>\n"
        "libnccl2\t2.21.5-1+cuda12.4\thi \tcudatools <cudatools@nvidia.com>\nlibnvidia-ml1:amd64\t535\tiU \tX <x@nvidia.com.example>\n"
        "cuda\t12.4\trc \tcudatools <cudatools@nvidia.com>\nold\t1\tun \t\n"
    )
    assert parse_packages(text) == {
        "nvidia-driver": {
            "version": "535.183.01-1~deb12u1",
            "held": False,
            "broken": False,
            "by_nvidia": False,
        },
        "libnccl2": {
            "version": "2.21.5-1+cuda12.4",
            "held": True,
            "broken": False,
            "by_nvidia": True,
        },
        "libnvidia-ml1": {"version": "535", "held": False, "broken": True, "by_nvidia": False},
    }
    with pytest.raises(ParseError, match="half"):
        parse_packages("half a line")


def package(version="550.54.15-1", held=False, by_nvidia=True):
    return {"version": version, "held": held, "broken": False, "by_nvidia": by_nvidia}


def test_where_a_driver_is_from():
    assert driver_sources({}, False) == []
    assert driver_sources(
        {"nvidia-driver": package(by_nvidia=False), "libnvidia-container1": package()}, False
    ) == ["distribution"]
    assert driver_sources(
        {"nvidia-utils-550": package(by_nvidia=False), "cuda-drivers-550": package()}, True
    ) == ["distribution", "nvidia_repository", "runfile"]
    assert (
        driver_sources({"libnccl2": package(), "nvidia-container-toolkit": package()}, False) == []
    )


def test_packages_of_another_source_are_not_the_distributions():
    packages = {
        "nvidia-utils-570": package("570.172.08-0ubuntu0~gpu1", by_nvidia=False),
        "libnvidia-ml1": package(by_nvidia=False),
    }
    assert driver_sources(packages, False, ["nvidia-utils-570", "libnvidia-ml1"]) == [
        "other_repository"
    ]
    assert driver_sources(packages, False, ["nvidia-utils-570"]) == [
        "distribution",
        "other_repository",
    ]


PPA = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"


@pytest.mark.parametrize(
    "path, uri, origin, foreign",
    [
        ("a.list", PPA, "LP-PPA-graphics-drivers", True),
        ("a.list", "http://mirror.example/debian", "Debian", False),
        ("a.list", "http://mirror.example/ubuntu", "Ubuntu", False),
        ("a.list", "http://mirror.example/debian", "Debian Backports", False),
        ("a.list", "https://esm.ubuntu.com/infra/ubuntu", "UbuntuESM", False),
        ("a.list", "http://mirror.example/x", "", True),
        ("a.list", "http://mirror.example/x", "NVIDIA", False),
        ("a.list", "http://mirror.example/compute/cuda/repos/debian12/x86_64", "", False),
        (
            "a.list",
            "https://ppa.launchpadcontent.net/nvidia-people/ppa/ubuntu",
            "LP-PPA-nvidia-people",
            True,
        ),
        # Declared in package_sources_apt_repositories.
        ("/etc/apt/sources.list.d/trainyard.sources", "http://mirror.example/x", "aptly", False),
        ("a.list", "http://mirror.example/x", "Debian of somebody", True),
    ],
)
def test_which_sources_are_foreign(path, uri, origin, foreign):
    assert is_foreign(path, uri, origin) is foreign
    assert (
        parse_release(
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\nOrigin: %s\nLabel: x\n" % origin
        )
        == origin
    )


@pytest.mark.parametrize(
    "uri, suite, prefix",
    [
        ("http://deb.debian.org/debian/", "bookworm", "deb.debian.org_debian_dists_bookworm_"),
        ("https://user:word@mirror.example:8080/a_b", "./", "mirror.example:8080_a%5fb_._"),
        ("file:///srv/ppa", "/", "_srv_ppa_"),
        ("file:/srv/ppa/", "jammy", "_srv_ppa_dists_jammy_"),
    ],
)
def test_apts_names_of_lists(uri, suite, prefix):
    assert list_prefix(uri, suite) == prefix


def test_the_drivers_packages_in_an_index():
    text = (
        "Package: nvidia-driver-570\nArchitecture: amd64\nVersion: 570.172.08-0ubuntu0~gpu1\nDescription: x\n nvidia\n\n"
        "Package: nvidia-settings\nVersion: 575.1-0\n\nPackage: libnvidia-compute-570\nVersion: 570.172.08-0ubuntu0~gpu1\n"
    )
    assert parse_driver_offers(text) == {
        "nvidia-driver-570": ["570.172.08-0ubuntu0~gpu1"],
        "libnvidia-compute-570": ["570.172.08-0ubuntu0~gpu1"],
    }
    assert (
        parse_driver_offers("Package: docker-ce\nVersion: 5:28\nDescription: for nvidia-driver\n")
        == {}
    )


def test_what_keeps_a_source_out():
    source = {"uri": PPA, "origin": "LP-PPA-graphics-drivers", "own_origin": True}
    assert is_kept_out(source, {"a": keep_out([source])})
    assert is_kept_out(
        source,
        {
            "a": "Package: x\nPin: version 1\n\nPackage: *\nPin: release o=LP-PPA-graphics-drivers\nPin-Priority: -10\n"
        },
    )
    assert not is_kept_out(source, {}) and not is_kept_out(
        source, {"a": keep_out([source]).replace("-1", "100")}
    )
    # Apt could not tell it from a mirror on the same host, or from a repository that is used.
    for alike in (dict(source, origin=""), dict(source, own_origin=False)):
        assert keep_out([alike]) == "" and not is_kept_out(alike, {"a": keep_out([source])})
    assert keep_out([]) == "" and keep_out([source, source]).count("Package:") == 1


def test_what_pins_a_driver():
    pin = "Package: src:nvidia-graphics-drivers*:any cuda-drivers*\nPin: version 550.54*\nPin-Priority: 1000\n"
    assert (
        driver_pinned({"nvidia-driver-pinning-580": package()}, {}) == "nvidia-driver-pinning-580"
    )
    assert driver_pinned({"cuda-drivers": package(held=True)}, {}) == "hold of cuda-drivers"
    assert (
        driver_pinned({}, {"/etc/apt/preferences.d/driver": pin}) == "/etc/apt/preferences.d/driver"
    )
    # NVIDIA's own file prefers a repository, not a version; and NCCL is no driver.
    assert (
        driver_pinned(
            {"cuda-drivers": package(), "libnccl2": package(held=True)},
            {
                "/etc/apt/preferences.d/cuda-repository-pin-600": "Package: nsight-compute\nPin: origin *ubuntu.com*\nPin-Priority: -1\n\n"
                "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
            },
        )
        == ""
    )


def test_repositories_of_nvidia():
    one_line = """# deb https://off.example/nvidia /
deb [arch=amd64 signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /
deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /
deb http://mirror.example/debian bookworm main
"""
    assert parse_sources(one_line, "a.list") == [
        {
            "path": "a.list",
            "uri": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
            "suites": ["/"],
            "signed_by": "/usr/share/keyrings/cuda-archive-keyring.gpg",
        },
        {
            "path": "a.list",
            "uri": "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
            "suites": ["/"],
            "signed_by": "",
        },
    ]
    deb822 = """Types: deb
URIs: https://mirror.example/compute/cuda/repos/ubuntu2204/x86_64/
  http://mirror.example/debian
Suites: /
# why
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDM=

Types: deb
URIs: https://developer.download.nvidia.com/compute/cuda/repos/debian11/x86_64
Suites: /
Enabled: no
"""
    found = parse_sources(deb822, "b.sources")
    assert [(entry["uri"], entry["suites"]) for entry in found] == [
        ("https://mirror.example/compute/cuda/repos/ubuntu2204/x86_64", ["/"])
    ]
    assert found[0]["signed_by"].startswith("-----BEGIN PGP")


def test_the_key_until_2022():
    old, new = (
        b"\x99\x01\xf6\x0f\x4b\x3d\x7f\xa2\xaf\x80\x00",
        b"\x99\x01\xa4\xb4\x69\x96\x3b\xf8\x63\xcc\x00",
    )
    armor = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: GnuPG v1\n\n%s\n=ab12\n-----END PGP PUBLIC KEY BLOCK-----\n"
    assert holds_old_key(b"x" + old) and holds_old_key(armor % base64.b64encode(b"pad" + old))
    assert (
        not holds_old_key(new)
        and not holds_old_key(armor % base64.b64encode(new))
        and not holds_old_key(armor % b"?")
    )


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
    assert parse_policy(text) == {
        "nvidia-driver": {"installed": "", "candidate": "535.183.01-1~deb12u1"},
        "libnccl2": {"installed": "2.21.5-1+cuda12.4", "candidate": ""},
    }


def test_versions():
    assert version_key("470.239.06") > version_key("470.57.02") and version_key(
        "1:535.183.01-0ubuntu1"
    ) == (535, 183, 1)
    assert (upstream("535.183.01-1~deb12u1"), upstream("1:535.183.01-0ubuntu1"), upstream("")) == (
        "535.183.01",
        "535.183.01",
        "",
    )
    with pytest.raises(ParseError):
        version_key("latest")
    assert (
        library_version("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.183.01")
        == "535.183.01"
    )
    assert (
        library_version("/usr/lib/libnvidia-ml.so.1")
        == library_version("/stubs/libnvidia-ml.so")
        == ""
    )


def test_the_kernel_that_boots_next():
    kernels = [NEW, OLD, "6.1.0-9-amd64"]
    assert (
        next_kernel(kernels) == NEW
        and next_kernel(kernels, OLD) == OLD
        and next_kernel(kernels, "gone") == NEW
        and next_kernel([]) == ""
    )
    assert next_kernel(["5.15.0-99-generic", "5.15.0-100-generic"]) == "5.15.0-100-generic"


@pytest.mark.parametrize(
    "state, said",
    [
        (
            dict(
                loaded="535.1", modules={OLD: "535.1"}, library="535.1", running=OLD, boots_next=OLD
            ),
            "",
        ),
        (
            dict(
                loaded="535.1", modules={OLD: "570.2"}, library="570.2", running=OLD, boots_next=OLD
            ),
            "nvidia-smi and CUDA fail",
        ),
        (
            dict(loaded="535.1", modules={OLD: "570.2"}, library="", running=OLD, boots_next=OLD),
            "the one on disk for kernel 6.1.0-18-amd64 is 570.2",
        ),
        (
            dict(loaded="", modules={NEW: "535.1"}, library="535.1", running=OLD, boots_next=NEW),
            "the running kernel 6.1.0-18-amd64 has no driver",
        ),
        (
            dict(
                loaded="",
                modules={NEW: "535.1"},
                library="535.1",
                running=OLD,
                boots_next=NEW,
                has_gpu=False,
            ),
            "",
        ),
        # To load it is enough.
        (dict(loaded="", modules={OLD: "535.1"}, library="535.1", running=OLD, boots_next=OLD), ""),
        (dict(loaded="", modules={}, library="", running=OLD, boots_next=OLD), ""),
    ],
)
def test_why_a_reboot_is_needed(state, said):
    reason = reboot_required_reason(**state)
    assert said in reason and bool(said) is bool(reason)


@pytest.mark.parametrize(
    "state, said",
    [
        (dict(modules={OLD: "535.1", NEW: "535.1"}, library="535.1", boots_next=NEW), ""),
        (
            dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW),
            "its headers, which are missing",
        ),
        (
            dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW, headers=[NEW]),
            "has no NVIDIA module",
        ),
        (
            dict(modules={NEW: "535.1"}, library="570.2", boots_next=NEW),
            "with module 535.1, but the libraries are 570.2",
        ),
        (dict(modules={}, library="", boots_next=NEW), ""),
        (dict(modules={OLD: "535.1"}, library="535.1", boots_next=NEW, has_gpu=False), ""),
    ],
)
def test_what_breaks_at_the_next_boot(state, said):
    reason = will_break_on_next_boot(**state)
    assert said in reason and bool(said) is bool(reason)


def test_drift():
    found = {
        "nvidia-driver": "535.183.01-1~deb12u1",
        "libnccl2": "2.21.5-1+cuda12.4",
        "cuda-toolkit-12-4": "12.4.1-1",
    }
    assert (
        drift(
            {"nvidia-driver": "535", "libnccl2": "2.21.5-1+cuda12.4", "nouveau-firmware": "absent"},
            found,
        )
        == []
    )
    assert drift(
        {
            "nvidia-driver": "53",
            "libnccl2": "2.21.5-1+cuda12.2",
            "cuda-toolkit-12-4": "absent",
            "libnccl-dev": "2.21.5-1+cuda12.4",
        },
        found,
    ) == [
        {"name": "cuda-toolkit-12-4", "asked": "absent", "found": "12.4.1-1"},
        {"name": "libnccl-dev", "asked": "2.21.5-1+cuda12.4", "found": "absent"},
        {"name": "libnccl2", "asked": "2.21.5-1+cuda12.2", "found": "2.21.5-1+cuda12.4"},
        {"name": "nvidia-driver", "asked": "53", "found": "535.183.01-1~deb12u1"},
    ]


def test_nccl_s_header():
    assert (
        parse_nccl_header(
            '#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n#define NCCL_SUFFIX ""\n'
        )
        == "2.21.5"
    )
    assert parse_nccl_header("#define NCCL_MAJOR 2\n") == ""


@pytest.mark.parametrize(
    "settings, environment, kernel",
    [
        ("GRUB_DEFAULT=0\n", "", ""),
        ("", "", ""),
        ("GRUB_DEFAULT=saved\n", "saved_entry=gnulinux-6.1.0-18-amd64-advanced-0d6c\n", OLD),
        ("GRUB_DEFAULT=0\n", "saved_entry=gnulinux-6.1.0-18-amd64-advanced-0d6c\n", ""),
        ("#GRUB_DEFAULT=1\nGRUB_DEFAULT='1>gnulinux-6.1.0-25-amd64-recovery-0d6c'\n", "", NEW),
        (
            "GRUB_DEFAULT=0\n",
            "next_entry=Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-18-amd64\n",
            OLD,
        ),
    ],
)
def test_what_grub_was_told(settings, environment, kernel):
    assert grub_default(settings, environment) == kernel


@pytest.mark.parametrize(
    "uri",
    [
        # job-failures.md, section 2, class N.
        "https://mirror.example.org:443/cuda/x86_64/",
        "http://mirror.example.org:80/cuda/x86_64",
        "HTTPS://Mirror.Example.org:443/cuda//x86_64/.",
        "https://me:word@mirror.example.org:443/cuda/x86_64/",
        "mirror+https://mirror.example.org:443/cuda/x86_64/",
        "https://mirror.example.org:/cuda/x86_64",
    ],
)
def test_the_port_of_a_scheme_is_no_other_repository(uri):
    assert location(uri) == location("https://mirror.example.org/cuda/x86_64")
    assert {entry["location"] for entry in entries("a.list", "deb %s /\n" % uri)} == {
        "mirror.example.org/cuda/x86_64"
    }


@pytest.mark.parametrize(
    "uri, place",
    [
        ("https://mirror.example.org:80/a", "mirror.example.org:80/a"),
        ("http://mirror.example.org:443/a", "mirror.example.org:443/a"),
        ("http://mirror.example.org:8080/a", "mirror.example.org:8080/a"),
        ("http://[2001:db8::80]/a", "[2001:db8::80]/a"),
        ("http://[2001:db8::1]:80/a", "[2001:db8::1]/a"),
        ("file:/srv/a:80/b", "srv/a:80/b"),
    ],
)
def test_another_port_is_another_repository(uri, place):
    assert location(uri) == place
