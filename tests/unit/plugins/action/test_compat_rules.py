"""Every compatibility rule: what it accepts and rejects, when it is skipped, and what a site can
change.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError
from judged_hosts import RULES, a_host, judge

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

ROOT = Path(__file__).parents[4]
TABLE = yaml.safe_load((RULES / "compat_rules.yml").read_text(encoding="utf-8"))
BY_ID = {rule["id"]: rule for rule in TABLE["host_rules"]}
# Device ids by generation, one each.
KEPLER, PASCAL, VOLTA, AMPERE, BLACKWELL, UNKNOWN = "102d", "1b06", "1db4", "20b2", "2901", "0001"
A100 = "NVIDIA A100-SXM4-80GB"
REPOSITORY = {
    "path": "/etc/apt/sources.list.d/x.list",
    "uri": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
    "suites": ["/"],
    "signed_by": "",
}
PPA = {
    "path": "/etc/apt/sources.list.d/ppa.list",
    "uri": "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu",
    "origin": "LP-PPA-graphics-drivers",
    "packages": {"nvidia-driver-570": ["570.172.08-0ubuntu0~gpu1"]},
    "kept_out": False,
}
PYTORCH = {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": ["nccl"]}
TENSORFLOW = dict(PYTORCH, frameworks=["tensorflow"])
CLARA = "nvcr.io/nvidia/clara-train-sdk:v3.1.01"
# Sites overrule and replace rules by their ids, so none of these is ever renamed or removed. A new
# rule need not be listed.
PUBLISHED = set(
    """
    drv-below-cuda-floor drv-below-toolkit cuda10-no-minor arch-open-module blackwell-open arch-dropped-driver arch-dropped-cuda arch-too-new
    drv-branch-eol drv-mixed-source drv-lockstep drv-unpinned drv-uniform drv-pkg-name drv-server-transitional keyring-missing keyring-cross-distro
    keyring-old-key debian13-sha1 drv-foreign-source repo-dir-arch ctk-old-repo cuda-above-driver nccl-unpinned nccl-cuda-major nccl-pair-unknown
    nccl-dev-mismatch nccl-debian nccl-held ctk-skew ctk-cdi-engine ctk-runtime-missing ctk-missing ctk-cve ctk-compat-lost cdi-stale hvd-torch-cxx
    hvd-torch213 hvd-tf-keras3 hvd-tf-untested hvd-buildchain hvd-python-pins image-nvcc image-nccl-cuda image-nccl-pair hvd-cmake4 hvd-nccl-static
    hvd-ompi hvd-missing clara-launcher clara41-gpu torch-python ngc-tag-form launch-arg image-cluster-uniform rank-table-format ascend-order
""".split()
)
NOBLE = {"os": {"id": "ubuntu", "version_id": "24.04"}}
B200 = "2901"
# No GPUs of a data center: TITAN V is a Volta, RTX 3090 an Ampere.
TITAN_V, GEFORCE = "1d81", "2204"
# As with a toolkit that the site installs itself.
OWN_TOOLKIT = {"container_toolkit_version": ""}


FIRST_INSTALL = "the firmware was installed at 2025-03-31 09:51:36, before the driver"


def npu_host(mindspore="", cann="", problems=(), judged=True, tables=None, asks=None, **changes):
    """A host with NPUs and no GPU, of whose image nothing is known."""
    found = host(
        (), base="own:1", facts=dict({"npus": 8}, **changes.pop("facts", {})), asks=asks, **changes
    )
    return dict(
        found,
        ascend_host={
            "mindspore": mindspore,
            "cann": {"path": "/usr/local/Ascend/latest" if cann else "", "version": cann},
            "install_order": {"judged": judged, "problems": list(problems)},
            "rank_tables": tables or {},
        },
    )


def table(format="1.0", status="completed", number=""):
    return {"/data1/share/hccl.json": {"format": format, "status": status, "number": number}}


def package(version, held=False, by_nvidia=True, **more):
    return dict({"version": version, "held": held, "broken": False, "by_nvidia": by_nvidia}, **more)


def stack(*devices, model=A100, driver="580.95.05", is_open=True, **changes):
    """What gpu_stack_info says of a host whose driver is in order."""
    packages = {"libnvidia-ml1": package(driver + "-1", held=True)} if driver else {}
    packages.update(changes.pop("packages", {}))
    return dict(
        {
            "gpus": [
                {
                    "bus_id": "0000:%02d:00.0" % number,
                    "device_id": device,
                    "model": model if driver else "",
                }
                for number, device in enumerate(devices, 1)
            ],
            "loaded": driver,
            "loaded_is_open": is_open if driver else None,
            "library": driver,
            "packages": packages,
            "container_toolkit": "1.17.8",
            "container_runtimes": ["nvidia"],
            "cdi": [],
            "docker": "28.2.2",
            "repositories": [],
            "foreign_sources": [],
            "old_keys": [],
            "driver_sources": ["nvidia_repository"] if driver else [],
            "driver_pinned": "hold of libnvidia-ml1" if driver else "",
        },
        **changes,
    )


def fabric_manager(active=False, loaded=True):
    """State of the service."""
    return {"nvidia-fabricmanager.service": {"active": active, "loaded": loaded, "enabled": loaded}}


def host(
    devices=(AMPERE,),
    facts=None,
    name="a",
    address="10.0.0.11",
    base="nvcr.io/nvidia/tensorflow:24.08-tf2-py3",
    asks=None,
    **changes,
):
    """Return a host with these GPUs and a driver that fits the image; with no devices, one
    without.
    """
    asked = {
        "vars_training_image_base": base,
        "facts_nvidia_devices": len(devices),
        "facts_gpus": len(devices),
    }
    asked.update({"vars_" + key: value for key, value in (asks or {}).items()})
    asked.update({"facts_" + key: value for key, value in (facts or {}).items()})
    return dict(
        a_host(name, address, **asked),
        **(
            {"cluster_stack": stack(*devices, **changes)}
            if devices
            else {"cluster_stack": {"skipped": True}}
        ),
    )


def verdicts(*hosts, **options):
    result = judge(*hosts, rules=["compat_rules.yml"], **options)
    assert "failed" not in result or result["msg"].startswith("Preflight found")
    return {entry["id"]: entry for entry in result["findings"]}, result


def the_one(check_id, *hosts):
    """The one finding that stops or warns, which is that of a rule."""
    # Old versions have more than one thing against them.
    findings, result = verdicts(
        *hosts,
        overrule={other: "skip" for other in ("drv-branch-eol", "ctk-cve") if other != check_id},
    )
    bad = {key for key, entry in findings.items() if entry["verdict"] in ("warn", "fail")}
    assert bad == {check_id}, {key: findings[key] for key in bad}
    entry = findings[check_id]
    assert (
        entry["verdict"] == {"block": "fail", "warn": "warn"}[BY_ID[check_id]["severity"]]
        and entry["expected"]
        and entry["fix"]
    )
    assert ("failed" in result) == (BY_ID[check_id]["severity"] == "block")
    return entry["found"]


# Each fires one rule and no other, and says what was found.
FIRING = {
    "drv-below-cuda-floor": [
        (
            host(driver="470.82.01", model="NVIDIA GeForce RTX 3090", is_open=False),
            "driver 470.82.01 (found)",
        ),
        (
            host(
                driver="",
                asks={"nvidia_driver_version": "515"},
                base="nvcr.io/nvidia/pytorch:25.08-py3",
            ),
            "driver 515 (asked)",
        ),
    ],
    "drv-below-toolkit": [
        (
            host(driver="580.95.05", base="nvcr.io/nvidia/pytorch:26.03-py3"),
            "driver 580.95.05 (found)",
        )
    ],
    "cuda10-no-minor": [
        (
            host(
                (TITAN_V,),
                model="NVIDIA TITAN V",
                is_open=False,
                driver="",
                base="nvcr.io/nvidia/tensorflow:19.03-py3",
                asks={"nvidia_driver_version": "410.48"},
            ),
            "driver 410.48 (asked)",
        )
    ],
    "arch-open-module": [(host((VOLTA,), model="Tesla V100-SXM2-16GB"), "the open kernel module")],
    "blackwell-open": [
        (
            host((BLACKWELL,), is_open=False, base="nvcr.io/nvidia/pytorch:25.02-py3"),
            "the proprietary kernel module",
        )
    ],
    "arch-dropped-driver": [
        (
            host((PASCAL,), is_open=False, driver="595.91.07", model="NVIDIA P100"),
            "driver 595.91.07 (found)",
        )
    ],
    "arch-dropped-cuda": [
        (
            host((VOLTA,), is_open=False, base="nvcr.io/nvidia/pytorch:25.08-py3"),
            "CUDA 13.0.0.044 in",
        )
    ],
    "arch-too-new": [(host((BLACKWELL,)), "CUDA 12.6.0.022 in")],
    "drv-branch-eol": [
        (host(driver="570.124.06"), "570.124.06 (found), whose branch reached its end of life")
    ],
    "drv-mixed-source": [
        (
            host(
                driver_sources=["distribution", "nvidia_repository"],
                packages={
                    "libnvidia-compute-550": package(
                        "550.163.01-0ubuntu0.24.04.2", origin="distribution"
                    ),
                    "libnvidia-compute-580": package(
                        "580.95.05-0ubuntu1", origin="nvidia_repository"
                    ),
                },
            ),
            "distribution, nvidia_repository (distribution: libnvidia-compute-550 550.163.01-0ubuntu0.24.04.2; "
            "nvidia_repository: libnvidia-compute-580 580.95.05-0ubuntu1)",
        ),
        (host(driver_sources=["distribution", "runfile"]), "distribution, runfile"),
        (
            host(
                driver="580.95.05",
                asks={"nvidia_driver_version": "580", "nvidia_driver_source": "distribution"},
            ),
            "nvidia_repository",
        ),
    ],
    "drv-lockstep": [
        (
            host(packages={"nvidia-fabricmanager-580": package("580.82.07-1")}),
            "nvidia-fabricmanager-580 580.82.07-1",
        )
    ],
    "drv-fabric-manager": [
        (
            host(nvswitches=6, services=fabric_manager(loaded=True)),
            "6 NVSwitches, and nvidia-fabricmanager.service is not running",
        ),
        # NVIDIA's installer has none.
        (
            host(nvswitches=6, services=fabric_manager(loaded=False), driver_sources=["runfile"]),
            "6 NVSwitches, and nvidia-fabricmanager.service is not installed",
        ),
        (
            host(
                (B200,) * 8,
                base="nvcr.io/nvidia/pytorch:25.02-py3",
                services=fabric_manager(loaded=True),
            ),
            "HGX B200 or B300, and nvidia-fabricmanager.service is not running",
        ),
    ],
    "drv-unpinned": [(host(driver_pinned=""), "no hold, no apt preference")],
    "drv-reboot-ahead": [
        (
            host(driver="", nouveau_loaded=True, next_kernel="6.8.0-85-generic"),
            "the kernel module nouveau is loaded and blocks NVIDIA's module until the next boot",
        ),
        (
            host(
                next_kernel="6.8.0-85-generic",
                asks={"nvidia_driver_version": "595", "nvidia_driver_source": "nvidia_repository"},
            ),
            "driver 580.95.05 is loaded, and 595 is requested",
        ),
        (
            host(next_kernel="6.8.0-85-generic", reboot_required_reason="the libraries are newer"),
            "the libraries are newer",
        ),
    ],
    "drv-server-transitional": [
        (
            host(
                facts=NOBLE, packages={"nvidia-driver-535-server": package("535.309.01-0ubuntu1")}
            ),
            "nvidia-driver-535-server 535.309.01-0ubuntu1",
        ),
        # What role nvidia_driver installs, for the open module, too.
        (
            host(
                facts=NOBLE,
                packages={
                    name: package(
                        "570.211.01-0ubuntu1.24.04.1", leads_to=name.replace("570", "580")
                    )
                    for name in ("nvidia-dkms-570-server-open", "nvidia-utils-570-server")
                },
            ),
            "nvidia-dkms-570-server-open 570.211.01-0ubuntu1.24.04.1, which contains nothing and leads to nvidia-dkms-580-server-open",
        ),
        # Packages without -server tell it themselves.
        (
            host(
                facts=NOBLE,
                packages={
                    "nvidia-utils-570": package(
                        "570.211.01-0ubuntu1.24.04.1", leads_to="nvidia-utils-580"
                    )
                },
            ),
            "leads to nvidia-utils-580",
        ),
        (
            host(
                facts=NOBLE,
                driver="",
                asks={"nvidia_driver_version": "570", "nvidia_driver_source": "distribution"},
            ),
            "nvidia_driver_version 570, which contains nothing and leads to 580",
        ),
    ],
    "keyring-missing": [
        (
            host(
                facts={"os": {"id": "ubuntu", "version_id": "16.04"}},
                asks={"cuda_toolkit_versions": ["11.8"]},
            ),
            "that directory has none",
        )
    ],
    "keyring-cross-distro": [
        (
            host(
                asks={
                    "package_sources_nvidia_keyring_checksum": "sha256:d93190d50b98ad4699ff40f4f7af50f16a76dac3bb8da1eaaf366d47898ff8df"
                }
            ),
            "another system's",
        )
    ],
    "keyring-old-key": [(host(old_keys=["/etc/apt/trusted.gpg"]), "/etc/apt/trusted.gpg")],
    "debian13-sha1": [
        (
            host(facts={"os": {"id": "debian", "version_id": "13"}}, repositories=[REPOSITORY]),
            "whose signature",
        )
    ],
    "drv-foreign-source": [
        (
            host(foreign_sources=[PPA]),
            "(Origin 'LP-PPA-graphics-drivers'), which offers nvidia-driver-570 570.172.08-0ubuntu0~gpu1",
        )
    ],
    "repo-dir-arch": [
        (
            host(
                facts={"architecture": "aarch64"},
                repositories=[dict(REPOSITORY, uri=REPOSITORY["uri"].replace("x86_64", "arm64"))],
            ),
            "Jetson",
        )
    ],
    "ctk-old-repo": [
        (host(asks=OWN_TOOLKIT, repositories=[dict(REPOSITORY, uri=uri)]), "which is archived")
        for uri in (
            "https://nvidia.github.io/nvidia-docker/ubuntu18.04/amd64",
            "https://nvidia.github.io/libnvidia-container/stable/debian10/amd64",
        )
    ],
    "cuda-above-driver": [
        (
            host(
                driver="535.309.01", base="own:1", asks={"cuda_toolkit_versions": ["12.2", "13.0"]}
            ),
            "CUDA 13.0",
        )
    ],
    "nccl-unpinned": [(host(asks={"nccl_version": "2.21.5"}), "without nccl_cuda")],
    "nccl-cuda-major": [
        (
            host(driver="570.124.06", asks={"nccl_version": "2.27.7-1+cuda13.0"}),
            "2.27.7-1+cuda13.0 (asked)",
        ),
        (
            host(driver="570.124.06", packages={"libnccl2": package("2.27.7-1+cuda13.0")}),
            "2.27.7-1+cuda13.0 (found)",
        ),
    ],
    "nccl-pair-unknown": [
        (
            host(
                facts={"os": {"id": "ubuntu", "version_id": "22.04"}},
                asks={"nccl_version": "2.99.1-1+cuda12.4"},
            ),
            "2.99.1-1+cuda12.4",
        )
    ],
    "nccl-dev-mismatch": [
        (
            host(
                packages={
                    "libnccl2": package("2.21.5-1+cuda12.4"),
                    "libnccl-dev": package("2.20.5-1+cuda12.4"),
                }
            ),
            "libnccl-dev 2.20.5-1+cuda12.4",
        )
    ],
    "ctk-skew": [
        (
            host(
                asks=OWN_TOOLKIT,
                packages={
                    "nvidia-container-toolkit": package("1.17.8-1"),
                    "libnvidia-container1": package("1.16.2-1"),
                },
            ),
            "libnvidia-container1 1.16.2-1",
        )
    ],
    "ctk-cdi-engine": [
        (host(container_toolkit="1.20.0", docker="24.0.7"), "Docker engine 24.0.7"),
        (
            host(docker="20.10.24", asks={"container_toolkit_version": "1.19.1"}),
            "Docker engine 20.10.24",
        ),
        # podman 4.9 of Ubuntu 24.04: "unresolvable CDI devices".
        (
            host(
                container_toolkit="1.19.1",
                docker="28.2.2",
                asks={"cluster_scheduler": "slurm"},
                facts={"os": {"id": "ubuntu", "version_id": "24.04"}},
            ),
            "podman 4.9.3",
        ),
    ],
    "ctk-runtime-missing": [
        (
            host(
                container_runtimes=["runc"], asks={"training_container_gpus": "all", **OWN_TOOLKIT}
            ),
            "runtimes runc",
        )
    ],
    "ctk-missing": [
        (
            host(container_toolkit="", asks={"training_container_gpus": gpus, **OWN_TOOLKIT}),
            "none installed",
        )
        for gpus in ("all", ["0", "2"])
    ],
    "ctk-cve": [(host(container_toolkit="1.17.7"), "container toolkit 1.17.7")],
    "ctk-compat-lost": [
        (
            host(
                driver="470.82.01",
                is_open=False,
                container_toolkit="1.17.4",
                base="own:1",
                asks={"preflight_image_facts": {"cuda": "12.4"}},
            ),
            "1.17.4",
        )
    ],
    "cdi-stale": [
        (
            host(asks=OWN_TOOLKIT, cdi=[{"path": "/etc/cdi/nvidia.yaml", "library": "570.124.06"}]),
            "for driver 570.124.06",
        ),
        (
            host(
                asks=OWN_TOOLKIT,
                cdi=[
                    {"path": "/etc/cdi/nvidia.yaml", "library": "580.95.05"},
                    {"path": "/var/run/cdi/nvidia.yaml", "library": ""},
                ],
            ),
            "for driver ?",
        ),
    ],
    "hvd-tf-keras3": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"tensorflow": "2.16.1"},
                    "training_image_requires": TENSORFLOW,
                },
            ),
            "TensorFlow 2.16.1",
        )
    ],
    "hvd-tf-untested": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"tensorflow": "2.14.0"},
                    "training_image_requires": TENSORFLOW,
                },
            ),
            "TensorFlow 2.14.0",
        )
    ],
    "hvd-buildchain": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"python": "3.12"},
                    "training_image_horovod_build_packages": ["cmake==3.31.6"],
                    "training_image_requires": TENSORFLOW,
                },
            ),
            "Python 3.12",
        )
    ],
    "hvd-python-pins": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"python": "3.6.9"},
                    "training_image_horovod_build_packages": ["cmake==3.31.6"],
                    "training_image_requires": TENSORFLOW,
                },
            ),
            "cmake==3.31.6 (3.28.4 is the last for Python 3.6)",
        ),
        (
            host(
                (),
                base=CLARA,
                asks={
                    "training_image_requires": TENSORFLOW,
                    "training_image_horovod_dependencies": ["cffi==1.17.1"],
                },
            ),
            "cffi==1.17.1",
        ),
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"python": "3.7"},
                    "training_image_requires": TENSORFLOW,
                    "training_image_horovod_dependencies": [
                        "pyyaml==6.0.2; python_version < '3.8'"
                    ],
                },
            ),
            "pyyaml==6.0.2",
        ),
    ],
    "image-nvcc": [
        (
            host(
                (),
                base="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
                asks={"training_image_requires": PYTORCH},
            ),
            "by its name has only CUDA's libraries",
        )
    ],
    "image-nccl-cuda": [
        (
            host((), base=CLARA, asks={"training_image_nccl_version": "2.8.4-1+cuda10.2"}),
            "NCCL 2.8.4-1+cuda10.2",
        )
    ],
    "image-nccl-pair": [
        (
            host(
                (),
                base=CLARA,
                asks={
                    "preflight_image_facts": {"cuda": "8.0"},
                    "training_image_requires": TENSORFLOW,
                },
            ),
            "none, so the build",
        )
    ],
    "hvd-nccl-static": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "training_image_horovod_version": "0.27.0",
                    "training_image_requires": TENSORFLOW,
                    "training_image_build_variables": {"HOROVOD_NCCL_LINK": "STATIC"},
                },
            ),
            "STATIC",
        )
    ],
    "hvd-ompi": [
        (
            host(
                (),
                base="nvcr.io/nvidia/tensorflow:19.06-py3",
                asks={"training_image_requires": dict(TENSORFLOW, controllers=["mpi"])},
            ),
            "Open MPI 3.1.3",
        )
    ],
    "hvd-missing": [
        (
            host(
                (),
                base="nvcr.io/nvidia/pytorch:24.08-py3",
                asks={"training_image_rebuild": "never", "training_image_requires": PYTORCH},
            ),
            "pytorch:24.08",
        )
    ],
    "clara-launcher": [
        (host((), base="nvcr.io/nvidia/clara-train-sdk:v4.0"), "train_launcher horovodrun"),
        (
            host(
                (),
                base="nvcr.io/nvidia/clara-train-sdk:v3.1.01",
                asks={"train_launcher": "torchrun"},
            ),
            "train_launcher torchrun",
        ),
    ],
    "clara41-gpu": [
        (
            host(base="nvcr.io/nvidia/clara-train-sdk:v4.1", asks={"train_launcher": "torchrun"}),
            "Ampere, driver 580",
        )
    ],
    "torch-python": [
        (
            host(
                (),
                base="own:1",
                asks={"preflight_image_facts": {"torch": "2.13.0", "python": "3.9"}},
            ),
            "Python 3.9",
        )
    ],
    "ngc-tag-form": [
        (host((), base="nvcr.io/nvidia/tensorflow:24.08-py3"), "24.08-py3"),
        (host((), base="nvcr.io/nvidia/tensorflow:23.06-tf1-py3"), "23.06-tf1"),
    ],
    "hvd-torch-cxx": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"torch": "2.2"},
                    "training_image_requires": PYTORCH,
                },
            ),
            "Horovod 0.28.1",
        )
    ],
    "hvd-torch213": [
        (
            host(
                (),
                base="own:1",
                asks={
                    "preflight_image_facts": {"torch": "2.13.0"},
                    "training_image_requires": PYTORCH,
                },
            ),
            "Horovod 0.28.1",
        )
    ],
    "hvd-cmake4": [
        (
            host(
                (),
                base="own:1",
                asks={"training_image_horovod_build_packages": ["cmake==4.1.0", "setuptools"]},
            ),
            "cmake==4.1.0",
        )
    ],
}
# They go through the hosts with NPUs, and are of stage cluster.
FIRING["ascend-order"] = [(npu_host(cann="8.0.RC1", problems=[FIRST_INSTALL]), FIRST_INSTALL)]
FIRING["rank-table-format"] = [
    (
        npu_host(mindspore="2.3.1", asks={"ascend_rank_table_format": "1.2"}),
        "it needs the super_device_id of each device",
    ),
    (
        npu_host(asks={"ascend_rank_table_format": "1.2"}),
        "it needs the super_device_id of each device",
    ),
    (
        npu_host(mindspore="2.3.1", asks={"ascend_rank_table_format": "legacy"}),
        "format 'legacy' was requested, and MindSpore 2.3.1 reads '1.0'",
    ),
    (
        npu_host(mindspore="0.7.0", asks={"ascend_rank_table_format": "1.0"}),
        "format '1.0' was requested, and MindSpore 0.7.0 reads 'legacy'",
    ),
    (
        npu_host(cann="1.72.T2.100.B020", asks={"ascend_rank_table_format": "1.0"}),
        "CANN 1.72.T2.100.B020 reads 'legacy'",
    ),
    # The image counts more than the host.
    (
        npu_host(
            mindspore="2.3.1",
            tables=table(),
            asks={"preflight_image_facts": {"mindspore": "0.7.0"}},
        ),
        "format '1.0', and MindSpore 0.7.0 reads 'legacy'",
    ),
    (
        npu_host(tables=table(), asks={"training_image_python_packages": ["mindspore==0.7.0"]}),
        "format '1.0', and MindSpore 0.7.0 reads 'legacy'",
    ),
    (
        npu_host(cann="8.0.RC1", tables=table("legacy")),
        "/data1/share/hccl.json: it has format 'legacy', and CANN 8.0.RC1 reads '1.0'",
    ),
    (npu_host(cann="8.0.RC1", tables=table("1.2")), "it needs the super_device_id of each device"),
    (npu_host(cann="8.0.RC1", tables=table("")), "it is not a rank table"),
    (
        npu_host(cann="8.0.RC1", tables=table(status="initializing")),
        "its status is 'initializing', not 'completed'",
    ),
    (
        npu_host(cann="8.0.RC1", tables=table(number="server_list[0].device[0].rank_id")),
        "server_list[0].device[0].rank_id is not a text",
    ),
]
# The recipe corrects these in Horovod's source: they fire without its corrections only.
CORRECTED = {"hvd-torch-cxx", "hvd-torch213", "hvd-cmake4"}


@pytest.fixture(name="no_corrections")
def fixture_no_corrections(monkeypatch):
    monkeypatch.setattr(_compat, "own_source_fixes", lambda: [])


@pytest.mark.parametrize(
    "check_id, case, found",
    [
        (check_id, case, found)
        for check_id, cases in FIRING.items()
        if check_id not in CORRECTED
        for case, found in cases
    ],
)
def test_each_conflict_is_found_by_its_rule(check_id, case, found):
    assert found in the_one(check_id, case)


@pytest.mark.parametrize("check_id", sorted(CORRECTED))
def test_what_the_recipe_corrects_fires_without_its_corrections(check_id, no_corrections):
    ((case, found),) = FIRING[check_id]
    assert found in the_one(check_id, case)


@pytest.mark.parametrize("check_id", sorted(CORRECTED))
def test_what_the_recipe_corrects_does_not_fire(check_id):
    ((case, dummy),) = FIRING[check_id]
    findings, result = verdicts(case)
    assert findings[check_id]["verdict"] == "pass" and "failed" not in result


def test_what_the_recipe_adds_is_known():
    findings, dummy = verdicts(
        host(
            (),
            base="own:1",
            asks={
                "training_image_python_packages": ["torch==2.13.0+cpu", "scikit-learn==1.5.0"],
                "training_image_requires": PYTORCH,
            },
        )
    )
    assert (
        findings["hvd-torch213"]["verdict"] == "pass"
        and findings["hvd-torch-cxx"]["verdict"] == "pass"
    )


def both_frameworks(tensorflow):
    """The findings about a recipe that adds PyTorch and this TensorFlow."""
    asks = {
        "training_image_python_packages": ["torch==2.13.0+cpu", tensorflow],
        "training_image_requires": {"frameworks": ["tensorflow", "pytorch"]},
    }
    return verdicts(host((), base="own:1", asks=asks))[0]


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tensorflow-gpu"])
def test_both_frameworks_that_the_recipe_adds_are_known(name):
    findings = both_frameworks("%s==2.15.1" % name)
    assert findings["hvd-tf-keras3"]["verdict"] == "pass"
    assert findings["hvd-torch213"]["verdict"] == "pass"
    refused = both_frameworks("%s==2.16.2" % name)["hvd-tf-keras3"]
    assert refused["verdict"] == "fail" and "TensorFlow 2.16.2" in refused["found"]


def test_mixed_versions_in_one_cluster():
    a, b = host(), host(name="b", address="10.0.0.12", driver="595.91.07")
    assert "a driver 580.95.05, b driver 595.91.07" in the_one("drv-uniform", a, b)
    nccl = {"libnccl2": package("2.21.5-1+cuda12.4")}
    other = {"libnccl2": package("2.20.5-1+cuda12.4")}
    assert "NCCL 2.20.5" in the_one(
        "drv-uniform", host(packages=nccl), host(name="b", address="10.0.0.12", packages=other)
    )
    # One that is to be changed counts as what it is to become.
    asks = {"nvidia_driver_version": "595.91.07", "nvidia_driver_source": "nvidia_repository"}
    findings, dummy = verdicts(
        host(asks=asks), host(name="b", address="10.0.0.12", asks=asks, driver="595.91.07")
    )
    assert findings["drv-uniform"]["verdict"] == "pass"


def test_a_host_in_order_passes_and_says_what_it_could_not_judge():
    findings, result = verdicts(
        host(
            asks={
                "training_container_gpus": "all",
                "training_image_requires": TENSORFLOW,
                **OWN_TOOLKIT,
            }
        )
    )
    assert {entry["verdict"] for entry in findings.values()} == {"pass", "skipped"}
    passed = {key for key, entry in findings.items() if entry["verdict"] == "pass"}
    assert {
        "drv-below-cuda-floor",
        "drv-below-toolkit",
        "arch-open-module",
        "arch-dropped-cuda",
        "drv-mixed-source",
        "drv-unpinned",
        "keyring-old-key",
        "ctk-old-repo",
        "ctk-skew",
        "ctk-runtime-missing",
        "ctk-missing",
        "ctk-cve",
        "ngc-tag-form",
    } <= passed
    assert "failed" not in result


def test_defaults_are_neither_refused_nor_warned_of():
    """The default base, Horovod compiled for it, and the recommended toolkit, on fresh hosts with
    GPUs and on hosts without.
    """
    base = yaml.safe_load(
        (ROOT / "roles/training_image/defaults/main.yml").read_text(encoding="utf-8")
    )["training_image_base"]
    for case in (
        host(base=base, asks={"training_container_gpus": "all"}),
        host(
            base=base,
            driver="",
            container_toolkit="",
            container_runtimes=[],
            docker="",
            asks={"training_container_gpus": "all"},
        ),
        host((), base=base),
    ):
        findings, result = verdicts(case)
        assert (
            "failed" not in result
            and {entry["id"] for entry in findings.values() if entry["verdict"] in ("warn", "fail")}
            == set()
        )
        assert [
            findings[check_id]["verdict"]
            for check_id in (
                "hvd-torch-cxx",
                "hvd-buildchain",
                "hvd-cmake4",
                "torch-python",
                "ngc-tag-form",
            )
        ] == ["pass"] * 5
    assert (
        verdicts(host(container_toolkit="", asks={"container_toolkit_version": "recommended"}))[0][
            "ctk-cve"
        ]["verdict"]
        == "pass"
    )


def test_no_advice_ends_in_a_driver_that_drops_the_gpu():
    def fix(check_id, case):
        return verdicts(case)[0][check_id]["fix"]

    assert "580 (until 2028-06) or 595" in fix("drv-branch-eol", host(driver="570.124.06"))
    assert fix("drv-branch-eol", host((PASCAL,), is_open=False, driver="570.124.06")).endswith(
        "the last branch for Pascal"
    )
    kepler = host((KEPLER,), is_open=False, driver="470.82.01", model="Tesla K80")
    assert (
        fix("drv-branch-eol", kepler) == "stay on branch 470, because no newer one supports Kepler"
    )
    assert (
        fix("drv-below-cuda-floor", kepler)
        == "use an older tag of the image, because no newer driver supports Kepler"
    )
    assert fix("arch-dropped-cuda", kepler) == "use an image with CUDA 11.8 or older"
    assert fix(
        "drv-below-cuda-floor",
        host(
            driver="",
            asks={"nvidia_driver_version": "515"},
            base="nvcr.io/nvidia/pytorch:25.08-py3",
        ),
    ) == ("set nvidia_driver_version to 580 or a newer branch, or use an older tag of the image")


def test_the_silent_cases():
    """What looks like a case of a rule and is none."""
    for case, check_id in (
        # Minor version compatibility, and compatibility libraries for a data-center GPU.
        (host(driver="525.85.12"), "drv-below-cuda-floor"),
        (
            host(driver="470.82.01", is_open=False, base="nvcr.io/nvidia/tensorflow:24.03-tf2-py3"),
            "drv-below-cuda-floor",
        ),
        # A branch may be any of its releases.
        (host(driver="", asks={"nvidia_driver_version": "525"}), "drv-below-cuda-floor"),
        (host((BLACKWELL,), base="nvcr.io/nvidia/pytorch:25.02-py3"), "blackwell-open"),
        (host((VOLTA,), is_open=False), "arch-open-module"),
        (host((VOLTA,), is_open=False), "arch-dropped-driver"),
        (host(packages={"nvidia-fabricmanager-580": package("580.95.05-1")}), "drv-lockstep"),
        (host(nvswitches=6, services=fabric_manager(active=True)), "drv-fabric-manager"),
        (
            host(
                driver="",
                nouveau_loaded=True,
                next_kernel="6.8.0-85-generic",
                asks={"nvidia_driver_allow_reboot": True},
            ),
            "drv-reboot-ahead",
        ),
        # A container has the kernel of its host.
        (host(driver="", nouveau_loaded=True, next_kernel=""), "drv-reboot-ahead"),
        # NVIDIA's repository has the branch.
        (
            host(
                facts=NOBLE,
                driver="",
                asks={"nvidia_driver_version": "570", "nvidia_driver_source": "nvidia_repository"},
            ),
            "drv-server-transitional",
        ),
        (
            host(
                asks=OWN_TOOLKIT,
                repositories=[
                    dict(
                        REPOSITORY,
                        uri="https://nvidia.github.io/libnvidia-container/stable/deb/amd64",
                    )
                ],
            ),
            "ctk-old-repo",
        ),
        (host(foreign_sources=[dict(PPA, kept_out=True)]), "drv-foreign-source"),
        (host(driver="570.124.06", asks={"nccl_version": "2.21.5-1+cuda12.4"}), "nccl-cuda-major"),
        (host(asks={"nccl_version": "2.21.5", "nccl_cuda": "12.4"}), "nccl-unpinned"),
        (
            host(
                asks={
                    "nvidia_driver_version": "recommended",
                    "nvidia_driver_source": "distribution",
                }
            ),
            "drv-mixed-source",
        ),
        (host(asks={"cuda_toolkit_versions": ["12.4", "13.0"]}), "cuda-above-driver"),
        (host(container_toolkit="1.19.1"), "ctk-cdi-engine"),
        (host(cdi=[{"path": "/etc/cdi/nvidia.yaml", "library": "580.95.05"}]), "cdi-stale"),
        (host((), base="nvcr.io/nvidia/clara-train-sdk:v3.1.01"), "clara-launcher"),
        (
            host(
                (),
                base="nvcr.io/nvidia/clara-train-sdk:v3.1.01",
                asks={"train_launcher": "mpirun"},
            ),
            "clara-launcher",
        ),
        (host((), base="nvcr.io/nvidia/tensorflow:23.03-tf1-py3"), "ngc-tag-form"),
        (
            host(
                (),
                base="own:1",
                asks={"preflight_image_facts": {"torch": "2.13.0", "python": "3.11"}},
            ),
            "torch-python",
        ),
    ):
        assert verdicts(case)[0][check_id]["verdict"] == "pass", (
            check_id,
            verdicts(case)[0][check_id],
        )


def test_what_is_not_known_is_not_evaluated_and_never_passed():
    findings, result = verdicts(
        host((UNKNOWN,), base="own:1", asks={"training_image_requires": PYTORCH})
    )
    for check_id, reason in (
        ("drv-below-cuda-floor", "preflight_image_facts.cuda"),
        ("arch-dropped-driver", "GPUs 0001 are not in the compatibility data"),
        ("hvd-torch-cxx", "preflight_image_facts.torch"),
        ("arch-too-new", "0001"),
    ):
        assert (
            findings[check_id]["verdict"] == "not_evaluated"
            and reason in findings[check_id]["found"]
        ), findings[check_id]
    assert "Not evaluated:" in result["msg"] and "hvd-torch-cxx" in result["msg"]
    # Before the first driver, only the PCI device id tells whether a GPU is for data centers.
    findings, dummy = verdicts(
        host(
            (GEFORCE,),
            driver="",
            asks={"nvidia_driver_version": "470.82.01"},
            base="nvcr.io/nvidia/tensorflow:24.03-tf2-py3",
        )
    )
    assert (
        findings["drv-below-cuda-floor"]["verdict"] == "not_evaluated"
        and "data center GPUs" in findings["drv-below-cuda-floor"]["found"]
    )
    assert verdicts(host(driver=""))[0]["drv-branch-eol"]["verdict"] == "not_evaluated"
    # The distribution's own build.
    nccl = verdicts(host(packages={"libnccl2": package("2.18.3-1build1")}))[0]["nccl-cuda-major"]
    assert (
        nccl["verdict"] == "not_evaluated"
        and "libnccl2 2.18.3-1build1 does not name the CUDA" in nccl["found"]
    )


def test_npus():
    findings, result = verdicts(
        npu_host(cann="8.0.RC1", tables=table(), asks={"ascend_rank_table_format": "none"}),
        npu_host(name="b", address="10.0.0.12", judged=False),
    )
    assert (
        findings["rank-table-format"]["verdict"],
        findings["ascend-order"]["verdict"],
        "failed" in result,
    ) == ("pass", "pass", False)
    bad = npu_host(name="b", address="10.0.0.12", problems=[FIRST_INSTALL])
    assert verdicts(npu_host(), bad)[0]["ascend-order"]["host"] == "b", "which host it is about"
    findings, result = verdicts(npu_host(judged=False))
    assert (
        findings["ascend-order"]["verdict"] == "not_evaluated"
        and "/var/log/ascend_seclog" in findings["ascend-order"]["found"]
    )
    assert (
        findings["rank-table-format"]["verdict"] == "not_evaluated"
        and "preflight_image_facts.mindspore" in findings["rank-table-format"]["found"]
    )
    for case in (
        host(()),
        npu_host(
            cann="8.0.RC1",
            problems=[FIRST_INSTALL],
            asks={"ascend_npus": "none", "ascend_rank_table_format": "1.2"},
        ),
    ):
        assert {
            verdicts(case)[0][check_id]["verdict"]
            for check_id in ("rank-table-format", "ascend-order")
        } == {"skipped"}


def test_hosts_without_a_gpu_are_skipped_with_the_reason():
    findings, result = verdicts(host(()))
    on_hosts = {rule["id"] for rule in TABLE["host_rules"] if rule.get("stage") == "host"}
    assert {findings[check_id]["verdict"] for check_id in on_hosts} == {"skipped"}
    assert "no NVIDIA GPU" in findings["drv-below-cuda-floor"]["found"] and "failed" not in result


def test_advice_about_a_driver_of_another_source_keeps_a_healthy_driver():
    """Practice 1: it said to purge a driver that works."""

    def fix(**changes):
        asks = changes.pop("asks", {})
        return verdicts(host(asks=asks, **changes))[0]["drv-mixed-source"]["fix"]

    asks = {"nvidia_driver_version": "580", "nvidia_driver_source": "distribution"}
    assert fix(asks=asks).startswith(
        "set nvidia_driver_source to 'nvidia_repository' to keep the driver"
    )
    old, new = "550.163.01-0ubuntu0.24.04.2", "580.95.05-0ubuntu1"
    packages = {
        "libnvidia-ml1": package("580.95.05-1", held=True, origin="nvidia_repository"),
        "libnvidia-compute-550": package(old, origin="distribution"),
        "nvidia-utils-550": package(old, origin="distribution", leads_to="nvidia-utils-580"),
        "nvidia-utils-580": package(new, origin="nvidia_repository"),
    }
    said = fix(driver_sources=["distribution", "nvidia_repository"], packages=packages)
    assert "driver 580.95.05 is in use" in said and "apt-get purge libnvidia-compute-550)" in said


def test_fabric_manager_that_the_run_installs_only_warns():
    """Practice 15: a block would stop the run before it installs it."""
    finding = verdicts(host(nvswitches=6, services=fabric_manager(loaded=False)))[0][
        "drv-fabric-manager"
    ]
    assert finding["verdict"] == "warn"
    # A virtual machine with a part of a board needs none.
    part = host((B200,) * 2, services=fabric_manager(loaded=True))
    assert verdicts(part)[0]["drv-fabric-manager"]["verdict"] == "skipped"
    assert (
        finding["fix"]
        == "run gpu_stack.yml, which installs Fabric Manager 580.95.05 beside the driver"
    )


def test_a_site_may_change_rules_and_facts(tmp_path):
    old = host(driver="570.124.06")
    assert verdicts(old)[0]["drv-branch-eol"]["verdict"] == "warn"
    assert verdicts(old, overrule={"drv-branch-eol": "skip"})[0]["drv-branch-eol"] == dict(
        verdicts(host())[0]["drv-pkg-name"], id="drv-branch-eol", found="overruled: skip"
    )
    assert (
        verdicts(old, overrule={"drv-branch-eol": "block"})[0]["drv-branch-eol"]["verdict"]
        == "fail"
    )
    with pytest.raises(AnsibleError, match="'no-such-rule: skip' is not valid; use ids"):
        verdicts(old, overrule={"no-such-rule": "skip"})
    own = tmp_path / "rules.yml"
    own.write_text(
        yaml.safe_dump(
            {
                "host_rules": [
                    dict(
                        BY_ID["drv-mixed-source"],
                        id="drv-branch-eol",
                        that="false",
                        expected="",
                        found="ours",
                        fix="",
                    ),
                    dict(
                        BY_ID["drv-mixed-source"],
                        id="our-own",
                        severity="warn",
                        that="false",
                        expected="",
                        found="too",
                        fix="",
                        source="us",
                    ),
                ]
            }
        ),
        encoding="utf-8",
    )
    result = judge(old, rules=["compat_rules.yml", str(own)])
    assert [
        (entry["id"], entry["found"])
        for entry in result["findings"]
        if entry["verdict"] in ("warn", "fail")
    ] == [("drv-branch-eol", "ours"), ("our-own", "too")]
    facts = tmp_path / "facts.yml"
    facts.write_text(
        "cuda:\n  driver_branches:\n    - {branch: 570, status: supported, eol: null, max_cuda_major_no_fwd_compat: 12}\n",
        encoding="utf-8",
    )
    assert (
        verdicts(host(driver="570.124.06", asks={"preflight_compat_facts": str(facts)}))[0][
            "drv-branch-eol"
        ]["verdict"]
        == "pass"
    )


def test_a_generation_that_is_newer_than_the_rules_is_not_one_that_an_old_image_supports(tmp_path):
    facts = tmp_path / "facts.yml"
    facts.write_text(
        yaml.safe_dump(
            {
                "cuda": {
                    "gpu_device_ids": [
                        {"generation": "Ampere", "ranges": [["2080", "20ff"]]},
                        {"generation": "Newer", "ranges": [["f000", "f0ff"]]},
                    ],
                    "gpu_arch": [
                        {
                            "generations": ["Ampere"],
                            "compute_capabilities": ["8.0"],
                            "open_module": True,
                        },
                        {
                            "generations": ["Newer"],
                            "compute_capabilities": ["99.0"],
                            "open_module": True,
                        },
                    ],
                }
            }
        ),
        encoding="utf-8",
    )

    def judged(device):
        return verdicts(
            host(
                (device,),
                driver="570.172.08",
                base="nvcr.io/nvidia/clara-train-sdk:v4.1",
                asks={"train_launcher": "torchrun", "preflight_compat_facts": str(facts)},
            )
        )[0]["clara41-gpu"]

    assert judged(AMPERE)["verdict"] == "pass"
    assert (judged("f001")["verdict"], judged("f001")["found"]) == (
        "warn",
        "Newer, driver 570.172.08",
    )


def test_every_rule_of_the_reference_is_there_tried_and_published():
    ids = [rule["id"] for rule in TABLE["host_rules"]]
    assert len(ids) == len(set(ids)) and PUBLISHED - set(ids) == set()
    judged = {rule["id"] for rule in TABLE["host_rules"] if "that" in rule}
    assert judged == set(FIRING) | {"drv-uniform"}
    readme = (ROOT / "roles/preflight/README.md").read_text(encoding="utf-8")
    assert [check_id for check_id in ids if "`%s`" % check_id not in readme] == []


def test_clara_is_compiled_although_it_has_a_horovod_and_its_python_is_known():
    """Its Horovod has no NCCL, so the rules about a compilation are for it: in 3.1.01 for Python
    3.6, CUDA 11.0 and Ubuntu 18.04.
    """
    findings, result = verdicts(host((), base=CLARA, asks={"training_image_requires": TENSORFLOW}))
    assert {
        findings[check_id]["verdict"]
        for check_id in (
            "hvd-python-pins",
            "hvd-buildchain",
            "hvd-cmake4",
            "image-nccl-pair",
            "hvd-tf-keras3",
            "hvd-ompi",
        )
    } == {"pass"}
    assert "failed" not in result
    # What its Horovod has is enough: nothing is compiled.
    requires = {"frameworks": ["tensorflow"], "controllers": ["mpi"], "tensor_operations": ["mpi"]}
    assert (
        verdicts(host((), base=CLARA, asks={"training_image_requires": requires}))[0][
            "hvd-python-pins"
        ]["verdict"]
        == "skipped"
    )
    findings, dummy = verdicts(
        host(
            (),
            base=CLARA,
            asks={
                "training_image_nccl_version": "2.8.4-1+cuda11.0",
                "training_image_requires": TENSORFLOW,
            },
        )
    )
    assert findings["image-nccl-cuda"]["verdict"] == "pass"


def test_a_second_framework_in_one_of_ngc_s_images_compiles_and_keeps_the_first():
    """TensorFlow 2.16 and newer can't be kept."""
    asks = {"training_image_requires": PYTORCH, "preflight_image_facts": {"tensorflow": "2.16.1"}}
    findings, dummy = verdicts(host((), asks=asks))
    assert (
        findings["hvd-tf-keras3"]["verdict"] == "fail"
        and "TensorFlow 2.16.1" in findings["hvd-tf-keras3"]["found"]
    )
