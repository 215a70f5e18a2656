"""The labs of docs/getting-started.md: no false alarm for a good one, and each mistake in it is
named.
"""

from __future__ import annotations

import copy

import pytest
from judged_input import campaign
from labs import (
    H100,
    JAMMY,
    RTX_4090,
    V100,
    Lab,
    host_facts,
    interface,
    rail,
    slurm_facts,
    stack_facts,
)

from ansible_collections.trainyard.gpu.plugins.plugin_utils._decisions import function
from ansible_collections.trainyard.gpu.plugins.plugin_utils._network_settings import (
    network_settings,
)

ITS = ["mlx5_%d" % number for number in range(8)]


def h100(folder):
    """Eight HGX hosts with a rail beside each GPU, an adapter for storage, and a login host."""
    lab = Lab("Eight hosts with 8 x H100 and InfiniBand", folder)
    names = ["ib%d" % number for number in range(9)]
    for place, name in enumerate(lab.hosts):
        address = 10 + place
        ports = [interface("eno1", "10.0.0.%d" % address, speed=25000)]
        if name == "front":
            lab.facts[name] = host_facts(name, ports, 0)
            lab.slurm[name] = slurm_facts(name, 0, "")
            continue
        ports += [
            interface(
                each, "10.10.%d.%d" % (number, address) if number < 8 else "10.20.0.%d" % address
            )
            for number, each in enumerate(names)
        ]
        beside = {"mlx5_%d" % number: ["0000:%02x:00.0" % (0x1B + number)] for number in range(8)}
        lab.facts[name] = host_facts(
            name,
            ports,
            8,
            rdma_ports=[rail(number, each) for number, each in enumerate(names)],
            rdma_beside_gpus=dict(beside, mlx5_8=[]),
            fabric_adapters=9,
        )
        lab.stacks[name] = stack_facts(H100[0], 8, nvswitches=4)
        lab.slurm[name] = slurm_facts(name, 8, H100[1])
    return lab


def plain(title, card, gpus, speed):
    """Hosts with one network."""

    def build(folder):
        lab = Lab(title, folder)
        for name in lab.hosts:
            address = lab.variables[name]["ansible_host"]
            ports = [interface("eno1", address, speed=speed)]
            lab.facts[name] = host_facts(name, ports, gpus)
            lab.stacks[name] = stack_facts(card[0], gpus)
            lab.slurm[name] = slurm_facts(name, gpus, card[1])
        return lab

    return build


LABS = {
    "h100": h100,
    "rtx4090": plain("Four hosts with 4 x RTX 4090 and 10 GbE", RTX_4090, 4, 10000),
    "v100": plain("Two hosts with V100 from the old guides", V100, 8, 10000),
    "one": plain("One server", RTX_4090, 2, 1000),
}


@pytest.fixture(name="campaign", scope="module")
def _campaign():
    with campaign() as made:
        yield made


@pytest.fixture(name="lab", params=sorted(LABS))
def _lab(request, tmp_path):
    return LABS[request.param](tmp_path)


# The good labs.


def test_inventories_are_good(campaign, lab):
    assert lab.input(campaign) == []


def test_preflight_has_nothing_against_fresh_servers(lab):
    assert [(entry["id"], entry["host"], entry["found"]) for entry in lab.preflight()] == []


def test_drivers(lab):
    """580 with the open module, and for V100 the proprietary one; Fabric Manager where there are
    NVSwitches.
    """
    data = lab.value(lab.hosts[0], "__nvidia_driver_data", cluster_host=lab.facts[lab.hosts[0]])
    for name, found in lab.stacks.items():
        version = lab.value(name, "nvidia_driver_version")
        told = function("nvidia_driver_plan")(
            {"stack": found, "recommended": ""},
            {
                "source": "distribution",
                "version": version,
                "kernel_module": "auto",
                "fabric_manager": "auto",
                "data": data,
            },
        )
        assert told["problems"] == []
        # Without a branch the kind is not known before the distribution recommends one.
        kind = "proprietary" if told["generations"] == ["Volta"] else "open"
        assert version == "recommended" or told["kernel_module"] == kind
        assert told["fabric_manager"] == bool(found["nvswitches"])


def test_storage_and_networks(lab):
    """Of each host, with the plans of the roles and their defaults."""
    told = lab.members()
    members = told["members"]
    for name in lab.hosts:
        facts = {"cluster_members": members, "cluster_host": told["hosts"][name]}
        storage = lab.value(name, "__shared_storage_plan", **facts)
        mounts = lab.value(
            name, "__nfs_client_requested", nfs_client_mounts=storage["mounts"], **facts
        )
        # The NAS serves the H100 lab, and the first host the others. A folder of one server needs
        # no mount.
        assert len(mounts) == int("front" in lab.hosts or name != lab.hosts[0])
        planned = function("nfs_client_plan")({}, {"mounts": mounts, "unit": "mount"})
        assert planned["problems"] == []
        infiniband_files = lab.value(name, "__infiniband_plan", "infiniband", **facts)
        assert infiniband_files["lacking"] == []
    for launcher in ("torchrun", "horovodrun", "mpirun"):
        networks = network_settings(members, launcher, told["network"], told["fabric_network"])
        assert (networks["problems"], networks["notes"]) == ([], [])


@pytest.mark.parametrize("name, lines", [("h100", 16), ("rtx4090", 8), ("v100", 4)])
def test_slurm(tmp_path, name, lines):
    """The queue of the H100 lab, and of the others if they had one.

    The jobs of a GPU get cores beside it.
    """
    lab = LABS[name](tmp_path)
    hosts = lab.groups.get("gpu") or lab.hosts
    told = function("slurm_plan")(
        lab.slurm,
        {
            "hosts": hosts,
            "scheduler": lab.hosts[0],
            "members": lab.members()["members"],
            "limits": {
                "max_minutes": int(lab.value(lab.hosts[0], "slurm_max_minutes")),
                "default_minutes": int(lab.value(lab.hosts[0], "slurm_default_minutes")),
            },
        },
    )
    assert told["problems"] == [] and told["complete"]
    texts = {
        entry["path"].rpartition("/")[2]: entry["content"] for entry in told["controller_files"]
    }
    assert texts["gres.conf"].count("Cores=") == lines
    assert ("DefaultTime=10080" in texts["slurm.conf"]) == (name == "h100")
    assert "MaxTime=43200" in texts["slurm.conf"]


def test_the_rails_of_the_h100_lab(tmp_path):
    """Eight of nine adapters, also by the larger network around them and by a list."""
    lab = h100(tmp_path)
    networks = ["10.10.%d.0/24" % number for number in range(8)]
    for given, expected in (
        ("", ",".join(networks)),
        ("10.10.0.0/16", "10.10.0.0/16"),
        (networks, ",".join(networks)),
    ):
        lab.set(cluster_fabric_network=given)
        told = lab.members()
        assert told["fabric_network"] == expected
        settings = network_settings(
            told["members"], "torchrun", told["network"], told["fabric_network"]
        )["environment"]
        assert {each["NCCL_IB_HCA"] for each in settings.values()} == {"=" + ",".join(ITS)}
        assert {each["NCCL_SOCKET_IFNAME"] for each in settings.values()} == {"=eno1"}


@pytest.mark.parametrize(
    "name, threads, connections, minutes",
    [("h100", 72, 4, 10080), ("rtx4090", 0, 1, 0), ("v100", 0, 1, 0), ("one", 0, 1, 0)],
)
def test_defaults_by_the_number_of_hosts(tmp_path, name, threads, connections, minutes):
    """Four hosts notice nothing."""
    lab = LABS[name](tmp_path)
    host = lab.hosts[-1]
    assert int(lab.value(host, "nfs_server_threads")) == threads
    assert int(lab.value(host, "slurm_default_minutes")) == minutes
    # A site with shorter jobs has set no time for those that name none.
    shorter = int(lab.value(host, "slurm_default_minutes", slurm_max_minutes=1440))
    assert shorter == min(minutes, 1440)
    mounts = function("nfs_mounts")(
        [{"server": "nas", "path": "/x"}], host, lab.members()["members"], nconnect=0
    )
    assert ("nconnect=4" in mounts[0]["options"]) == (connections == 4)


# Mistakes in the inventory.


@pytest.mark.parametrize(
    "name, variables, check_id",
    [
        ("h100", {"cluster_fabric_netwrok": "10.10.0.0/16"}, "input-unknown"),
        ("h100", {"cluster_fabric_network": ["10.10.0.0/24", "10.10.0.0/16"]}, "input-network"),
        ("h100", {"cluster_fabric_network": "10.10.0.1/24"}, "input-network"),
        ("h100", {"cluster_slots": 8}, "input-in-group"),
        # The first training host would serve NFS to eight others.
        ("h100", {"nfs_client_mounts": [], "cluster_head": "gpu1"}, "input-rule"),
        ("h100", {"nfs_client_options": ["hard", "rdma", "tcp"]}, "input-exclusive"),
        ("rtx4090", {"nvidia_driver_sorce": "distribution"}, "input-unknown"),
        ("rtx4090", {"cluster_scheduler": "slurm"}, "input-rule"),
        ("rtx4090", {"cluster_network": "192.0.2.21/24"}, "input-network"),
        ("v100", {"nvidia_driver_version": "580.x"}, "input-pattern"),
        ("one", {"shared_storage_backend": "nas"}, "input-choice"),
    ],
)
def test_mistakes_in_the_inventory_are_named(campaign, tmp_path, name, variables, check_id):
    lab = LABS[name](tmp_path)
    lab.set(**variables)
    found = lab.input(campaign)
    (wrong,) = [variable for variable in list(variables)[:1]]
    assert check_id in {entry["id"] for entry in found}, found
    assert all(entry["fix"] for entry in found)
    told = " ".join(entry["source"] + entry["fix"] for entry in found)
    assert wrong in told or "storage" in told or "login" in told


# Mistakes on the hosts.


def driver(version="580.126.20", is_open=True, **more):
    """A host with a driver of Ubuntu's."""
    held = {
        "version": version + "-0ubuntu0.24.04.1",
        "held": True,
        "broken": False,
        "by_nvidia": False,
    }
    return {
        "loaded": version,
        "loaded_is_open": is_open,
        "library": version,
        "packages": {"libnvidia-compute-580-server": held},
        "driver_sources": ["distribution"],
        "driver_pinned": "hold of libnvidia-compute-580-server",
        **more,
    }


def of_facts(**changes):
    return lambda lab, name: lab.facts[name].update(changes)


def of_stack(**changes):
    return lambda lab, name: lab.stacks[name].update(changes)


def of_answers(**changes):
    return lambda lab, name: lab.asked.setdefault(name, {}).update(changes)


def no_link(number):
    def change(lab, name):
        facts = lab.facts[name]
        facts["rdma_ports"][number]["state"] = "down"
        next(each for each in facts["interfaces"] if each["name"] == "ib%d" % number)["up"] = False

    return change


def slow_link(lab, name):
    lab.facts[name]["rdma_ports"][5]["rate_gb_s"] = 200.0


def other_mtu(interface_name):
    def change(lab, name):
        next(each for each in lab.facts[name]["interfaces"] if each["name"] == interface_name)[
            "mtu"
        ] = 9000

    return change


def beside_others(**changes):
    """A host with a driver of its own among hosts with Ubuntu's."""

    def change(lab, name):
        for stack in lab.stacks.values():
            stack.update(driver())
        lab.stacks[name].update(changes)

    return change


def same_address(lab, name):
    lab.variables[name]["cluster_address"] = lab.variables[lab.hosts[0]]["ansible_host"]


PPA = {
    "path": "/etc/apt/sources.list.d/graphics-drivers-ubuntu-ppa-noble.sources",
    "uri": "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu",
    "suite": "noble",
    "origin": "LP-PPA-graphics-drivers",
    "own_origin": True,
    "kept_out": False,
    "packages": {"nvidia-driver-580-open": ["580.95.05-0ubuntu0~gpu24.04.1"]},
}
OLD_TOOLKIT = {
    "path": "/etc/apt/sources.list.d/nvidia-docker.list",
    "uri": "https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64",
    "suites": ["/"],
    "signed_by": "",
}
FABRIC_MANAGER = {"version": "580.95.05-0ubuntu0.24.04.2", "held": False, "broken": False}
FAULTS = {
    "a disk that was cloned with its hostname": (
        "rtx4090",
        {},
        of_facts(hostname="node-a"),
        "hostname-twice",
        "all have the hostname node-a",
    ),
    "an address that another host has": (
        "rtx4090",
        {},
        same_address,
        "address-twice",
        "is the address of node-a, node-d",
    ),
    "another branch of the driver": (
        "rtx4090",
        {"nvidia_driver_version": ""},
        beside_others(**driver("570.211.01")),
        "drv-uniform",
        "node-d driver 570.211.01",
    ),
    "the PPA of graphics drivers": (
        "rtx4090",
        {},
        of_stack(foreign_sources=[PPA]),
        "drv-foreign-source",
        "LP-PPA-graphics-drivers",
    ),
    "the toolkit's repository of 18.04": (
        "v100",
        {"container_toolkit_version": ""},
        of_stack(repositories=[OLD_TOOLKIT]),
        "ctk-old-repo",
        "ubuntu18.04/amd64 in /etc/apt/sources.list.d/nvidia-docker.list",
    ),
    "Fabric Manager that an unattended upgrade left behind": (
        "h100",
        {"nvidia_driver_version": ""},
        of_stack(
            **driver(
                packages={
                    **driver()["packages"],
                    "nvidia-fabricmanager-580": dict(FABRIC_MANAGER, by_nvidia=False),
                }
            )
        ),
        "drv-lockstep",
        "nvidia-fabricmanager-580 580.95.05",
    ),
    "127.0.1.1 that stays": (
        "rtx4090",
        {"training_container_repair_own_name": False},
        None,
        "own-name-loopback",
        "is 127.0.1.1",
    ),
    "a daemon.json that another guide wrote": (
        "v100",
        {},
        of_answers(docker_config_error="/etc/docker/daemon.json: invalid character '}'"),
        "docker-config",
        "invalid character",
    ),
    "the id of Ubuntu's first user for a person": (
        "h100",
        {},
        of_answers(
            account_clashes=[
                {
                    "kind": "user",
                    "name": "anna",
                    "asked": "anna with 1000",
                    "found": "1000 is ubuntu",
                }
            ]
        ),
        "account-clash",
        "1000 is ubuntu",
    ),
    "a specification for the former driver": (
        "rtx4090",
        {"container_toolkit_version": ""},
        of_stack(**driver(cdi=[{"path": "/etc/cdi/nvidia.yaml", "library": "535.261.03"}])),
        "cdi-stale",
        "/etc/cdi/nvidia.yaml for driver 535.261.03",
    ),
    "Ubuntu 18.04": (
        "v100",
        {},
        of_facts(os=dict(JAMMY, version_id="18.04", codename="bionic")),
        "os-supported",
        "ubuntu 18.04",
    ),
    "Python of 18.04": ("v100", {}, of_facts(python_version="3.6.9"), "python-version", "3.6.9"),
    "one host with 22.04 in Slurm": (
        "h100",
        {},
        of_facts(os=JAMMY, candidates={"slurmd": "21.08.5-2ubuntu1"}),
        "job-limits",
        "Slurm 21.08 does not know",
    ),
    "a port without a link": ("h100", {}, no_link(3), "rdma-ports-differ", "mlx5_3 port 1: down"),
    "a slow link": (
        "h100",
        {},
        slow_link,
        "rdma-ports-differ",
        "mlx5_5 port 1: active, 200.0 Gb/s",
    ),
    "MTU of a rail": ("h100", {}, other_mtu("ib2"), "mtu-differs", "9000 on gpu8"),
    "MTU": ("rtx4090", {}, other_mtu("eno1"), "mtu-differs", "9000 on node-d"),
    "no GPU in a host of group gpu": (
        "rtx4090",
        {"training_container_gpus": "all"},
        of_facts(nvidia_devices=0),
        "gpu-missing",
        "no GPU on the PCI bus",
    ),
    "a rail that the user names and the host lacks": (
        "h100",
        {"cluster_fabric_network": ["10.10.0.0/24", "10.10.3.0/24"]},
        no_link(3),
        "fabric-address-missing",
        "no such interface",
    ),
    "NFS by RDMA from a server of the cluster": (
        "rtx4090",
        {"nfs_client_options": ["hard", "rdma", "port=20049"]},
        None,
        "nfs-rdma",
        "node-a has no NFS server yet",
    ),
    "too many slots": (
        "rtx4090",
        {"cluster_slots": 8},
        of_facts(gpus=4),
        "slots-exceeded",
        "8 on a",
    ),
    "the open module on V100": (
        "v100",
        {"nvidia_driver_kernel_module": "open"},
        None,
        "arch-open-module",
        "the open kernel module",
    ),
    "a driver without V100": (
        "v100",
        {"nvidia_driver_version": "595"},
        None,
        "arch-dropped-driver",
        "driver 595",
    ),
    "an image without V100": (
        "v100",
        {"training_image_base": "nvcr.io/nvidia/pytorch:25.08-py3"},
        None,
        "arch-dropped-cuda",
        "CUDA 13.0",
    ),
    "a driver that is too old for the image of a GeForce": (
        "rtx4090",
        {"training_image_base": "nvcr.io/nvidia/pytorch:25.08-py3", "nvidia_driver_version": "550"},
        None,
        "drv-below-cuda-floor",
        "driver 550",
    ),
    "a driver of two sources": (
        "rtx4090",
        {"nvidia_driver_version": "recommended"},
        of_stack(**driver(driver_sources=["distribution", "runfile"])),
        "drv-mixed-source",
        "distribution, runfile",
    ),
    "NVSwitches without Fabric Manager": (
        "h100",
        {"nvidia_driver_version": "recommended"},
        of_stack(
            **driver(
                services={
                    "nvidia-fabricmanager.service": {
                        "active": False,
                        "loaded": False,
                        "enabled": False,
                    }
                }
            )
        ),
        "drv-fabric-manager",
        "4 NVSwitches",
    ),
    "Docker from snap": (
        "rtx4090",
        {},
        of_answers(files={"/snap/bin/docker": {"type": "link"}}),
        "docker-snap",
        "the snap docker",
    ),
    "nouveau is loaded": (
        "rtx4090",
        {"nvidia_driver_allow_reboot": False},
        of_stack(nouveau_loaded=True),
        "drv-reboot-ahead",
        "nouveau",
    ),
    "podman 3.4 of 22.04 with Slurm of a site": (
        "h100",
        {},
        of_facts(
            os=JAMMY,
            candidates={"slurmd": "23.11.4-1", "podman": "3.4.4+ds1-1ubuntu1.22.04.3"},
        ),
        "job-podman",
        "podman 3.4.4",
    ),
    "a toolkit whose specifications podman 4.9 does not read": (
        "h100",
        {"container_toolkit_version": "1.19.1"},
        of_facts(candidates={"slurmd": "23.11.4", "podman": "4.9.3+ds1-1ubuntu0.2"}),
        "ctk-cdi-engine",
        "podman 4.9.3",
    ),
    "one host with 22.04 among hosts with 24.04": (
        "h100",
        {"slurm_accept_no_limits": True},
        of_facts(os=JAMMY, candidates={"slurmd": "21.08.5-2ubuntu1"}),
        "slurm-releases",
        "21.08",
    ),
    "needrestart without the file that spares the services of jobs": (
        "v100",
        {},
        of_facts(programs={"needrestart": True}, files={"/etc/trainyard/site": {}}),
        "needrestart",
        "may restart the training container",
    ),
    "too little space for the image, and for podman's copy": (
        "h100",
        {},
        of_answers(
            disk_free_mib={
                "/var/lib/docker": 50000,
                "/var/lib/trainyard/containers": 12000,
                "/var/tmp": 12000,
            },
            disk_devices={
                "/var/lib/docker": 1,
                "/var/lib/trainyard/containers": 2,
                "/var/tmp": 2,
            },
        ),
        "image-disk",
        "12000 MiB",
    ),
    "a driver that nothing holds": (
        "rtx4090",
        {"nvidia_driver_version": "recommended"},
        of_stack(**driver(driver_pinned="")),
        "drv-unpinned",
        "no hold",
    ),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_mistakes_on_a_host_are_named(tmp_path, fault):
    """On the last host: its check names it, and what was found."""
    name, variables, change, check_id, found = FAULTS[fault]
    lab = LABS[name](tmp_path)
    lab.set(**variables)
    last = lab.hosts[-1]
    if change:
        change(lab, last)
    told = lab.preflight(only=check_id)
    assert any(last in entry["host"] for entry in told)
    assert any(found in entry["found"] for entry in told) and all(entry["fix"] for entry in told)


def test_two_releases_with_slurm_are_named(tmp_path):
    """One with 22.04 among hosts with 24.04."""
    lab = h100(tmp_path)
    lab.slurm["gpu8"] = slurm_facts("gpu8", 8, H100[1], release="21.08")
    told = function("slurm_plan")(
        lab.slurm,
        {
            "hosts": lab.groups["gpu"],
            "scheduler": "front",
            "members": lab.members()["members"],
            "accept_no_limits": True,
        },
    )
    assert [sentence for sentence in told["problems"] if "gpu8" in sentence and "21.08" in sentence]


def test_a_storage_adapter_without_an_address_and_a_host_of_an_earlier_release(tmp_path):
    """Its place on the bus tells.

    Facts of an earlier release do not have it: then its network, or that it has none.
    """
    lab = h100(tmp_path)
    for facts in lab.facts.values():
        for each in facts["interfaces"]:
            if each["name"] == "ib8":
                each["addresses"] = []
    before = copy.deepcopy(lab.facts)
    for key in ("rdma_beside_gpus", ""):
        told = lab.members()
        rdma = [member["fabric_rdma"] for member in told["members"] if member["slots"]]
        assert [each["devices"] for each in rdma] == [ITS] * 8
        lab.facts = copy.deepcopy(before)
        for facts in lab.facts.values():
            facts.pop(key, None)
