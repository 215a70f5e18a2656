"""Every rule of role preflight: what it accepts and rejects, and its messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from judged_hosts import a_host, judge

from ansible_collections.trainyard.gpu.plugins.action import judge_hosts
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan

ROOT = Path(__file__).parents[4]
RULES = ROOT / "roles/preflight/meta/host_rules.yml"


def listener(**changes):
    return dict(
        {
            "address": "0.0.0.0",
            "port": 12345,
            "pid": 7,
            "process": "nc",
            "container_id": "",
            "container_name": "",
        },
        **changes,
    )


def connection(**changes):
    return dict(
        {
            "name": "b",
            "address": "10.0.0.12",
            "port": 12345,
            "source": "",
            "state": "open",
            "error": "",
        },
        **changes,
    )


def member(name, **changes):
    address = "10.0.0.1%d" % "-ab".index(name)
    return dict(
        {
            "name": name,
            "address": address,
            "interface": "eth0",
            "fabric_address": address,
            "fabric_interface": "eth0",
            "fabric_rdma": None,
            "slots": 1,
            "reachable": True,
            "in_play": True,
            "error": "",
        },
        **changes,
    )


def silent(name, error):
    return member(
        name,
        fabric_address="",
        fabric_interface="",
        slots=0,
        reachable=False,
        in_play=False,
        error=error,
    )


GOOD = [
    {},
    {"facts_os": {"id": "ubuntu", "version_id": "24.04"}},
    {"facts_gpus": 8, "vars_slots": 8, "vars_training_container_gpus": "all"},
    {"facts_gpus": 8, "vars_slots": 2, "vars_training_container_gpus": [0, 1]},
    {"facts_nvidia_devices": 8, "vars_training_container_gpus": "all"},
    {"vars_slots": 2},
    {
        "answer_disk_free_mib": {"/var/lib/docker": 100},
        "answer_labelled_images": ["trainyard/training:0123"],
    },
    {
        "answer_disk_free_mib": {"/data/docker": 9},
        "vars_preflight_image_path": "/data/docker",
        "vars_preflight_image_disk_mib": "5",
    },
    {
        "answer_listeners": [
            listener(container_id="f" * 64, container_name="trainyard-training", process="sshd")
        ]
    },
    {"answer_listeners": [listener(address="127.0.0.1"), listener(address="192.168.1.1")]},
    {
        "answer_connections": [
            connection(state="refused", error="Connection refused"),
            connection(name="c", address="10.0.0.13"),
            connection(
                address="10.1.0.12", source="10.1.0.11", state="refused", error="Connection refused"
            ),
        ]
    },
    {
        "answer_resolved": {"a": {"addresses": ["127.0.1.1"], "error": ""}},
        "facts_own_name_in_hosts": ["127.0.1.1"],
        "vars_training_container_repair_own_name": "true",
    },
    {
        "answer_resolved": {
            "a": {"addresses": ["10.0.0.11"], "error": ""},
            "b": {"addresses": ["10.0.0.12", "fe80::2"], "error": ""},
        }
    },
]

NO_CGROUPS = {
    "version": 1,
    "usable": False,
    "why": "the host is a container (docker)",
    "cores": False,
    "swap": False,
}
JAMMY = {"id": "ubuntu", "version_id": "22.04"}
GOOD += [
    # Without a scheduler, accepted, and with a Slurm or control groups that fit.
    {"facts_cgroup": NO_CGROUPS},
    {
        "facts_cgroup": NO_CGROUPS,
        "vars_cluster_scheduler": "slurm",
        "vars_slurm_accept_no_limits": "yes",
    },
    {"facts_cgroup": NO_CGROUPS, "vars_cluster_scheduler": "slurm", "vars_slots": 0},
    {
        "facts_os": JAMMY,
        "vars_cluster_scheduler": "slurm",
        "answer_candidates": {"slurmd": "23.11.4-1", "podman": "4.6.2"},
    },
    {
        "facts_os": JAMMY,
        "vars_cluster_scheduler": "slurm",
        "vars_job_container_enabled": False,
        "facts_cgroup": dict(NO_CGROUPS, usable=True, why=""),
    },
]

NOBLE = {"id": "ubuntu", "version_id": "24.04"}
SLURM = {"vars_cluster_scheduler": "slurm"}
SOURCE = {
    "uris": ["https://apt.example.org"],
    "suites": ["jammy"],
    "components": ["main"],
    "signed_by": "-----BEGIN PGP PUBLIC KEY BLOCK-----",
}
NEWER = {"slurmd": "23.11.10-1", "podman": "4.6.2+ds1-1~22.04"}
STORE = "/var/lib/trainyard/containers"
DISK = {"/var/lib/docker": 90000, STORE: 90000, "/var/tmp": 90000}
ONE_DISK = dict.fromkeys(DISK, 7)
SET_UP = {"/etc/trainyard/site": {"state": "directory", "checksum": "", "mode": "0755"}}
SPARES = {"/etc/needrestart/conf.d/trainyard.conf": {"state": "file", "checksum": "", "mode": ""}}
GOOD += [
    # podman of 24.04 gives GPUs to containers, and so does that of a repository of the site. Before
    # the host has the repository, its versions are not known.
    {"facts_os": NOBLE, "facts_nvidia_devices": 8, **SLURM},
    {"facts_os": JAMMY, "facts_nvidia_devices": 8, "answer_candidates": NEWER, **SLURM},
    {"facts_os": JAMMY, "facts_gpus": 8, "vars_slurm_packages_source": SOURCE, **SLURM},
    {
        "facts_os": JAMMY,
        "facts_gpus": 8,
        "facts_files": {"/etc/apt/sources.list.d/trainyard-slurm.sources": {}},
        "answer_candidates": NEWER,
        "vars_slurm_packages_source": SOURCE,
        **SLURM,
    },
    # No containers for jobs, and no Slurm.
    {
        "facts_os": JAMMY,
        "facts_gpus": 8,
        "vars_job_container_enabled": False,
        "vars_slurm_accept_no_limits": True,
        **SLURM,
    },
    {"facts_os": JAMMY, "facts_gpus": 8},
    # Facts of an earlier release, a new host, and one with the file.
    {"facts_programs": {"exportfs": True}, "facts_files": SET_UP},
    {"facts_programs": {"needrestart": True}, "facts_files": {}},
    {"facts_programs": {"needrestart": True}, "facts_files": {**SET_UP, **SPARES}},
    # Enough for the image, its copy and the spool on one disk; the copy is there; without
    # containers of jobs one image is enough.
    {"answer_disk_free_mib": DISK, "answer_disk_devices": ONE_DISK, **SLURM},
    {
        "answer_disk_free_mib": dict(DISK, **{STORE: 1, "/var/tmp": 1}),
        "answer_files": {STORE + "/images/overlay-images/images.json": {"state": "file"}},
        **SLURM,
    },
    {
        "answer_disk_free_mib": dict.fromkeys(DISK, 41000),
        "answer_disk_devices": ONE_DISK,
        "vars_job_container_training_image": False,
        **SLURM,
    },
]

BAD = [
    (
        {
            "facts_os": JAMMY,
            "facts_nvidia_devices": 2,
            "vars_slurm_accept_no_limits": True,
            **SLURM,
        },
        "job-podman",
        "podman 3.4.4, which cannot run jobs",
    ),
    # Its log driver is missing without a GPU, too.
    (
        {"facts_os": JAMMY, "vars_slurm_accept_no_limits": True, **SLURM},
        "job-podman",
        "podman 3.4.4, which cannot run jobs",
    ),
    (
        {
            "facts_os": JAMMY,
            "facts_gpus": 2,
            "facts_files": {"/etc/apt/sources.list.d/trainyard-slurm.sources": {}},
            "answer_candidates": {"slurmd": "23.11.10-1", "podman": "4.0.3+ds1-1"},
            "vars_slurm_packages_source": SOURCE,
            **SLURM,
        },
        "job-podman",
        "podman 4.0.3,",
    ),
    ({"answer_files": {"/snap/bin/docker": {"state": "other"}}}, "docker-snap", "the snap docker"),
    (
        {"vars_cluster_hugepages": {"2M": 1024}, "facts_hugepages": {"2M": 1023, "1G": 0}},
        "hugepages",
        "1023 pages",
    ),
    (
        {"vars_cluster_hugepages": {"1G": 8}, "facts_hugepages": {"2M": 0}},
        "hugepages",
        "no pages of this size",
    ),
    (
        {"facts_programs": {"needrestart": True}, "facts_files": SET_UP},
        "needrestart",
        "needrestart without it",
    ),
    (
        {
            "answer_disk_free_mib": dict.fromkeys(DISK, 81919),
            "answer_disk_devices": ONE_DISK,
            **SLURM,
        },
        "image-disk",
        "81919 MiB free, and no training image yet",
    ),
    (
        {"answer_disk_free_mib": dict(DISK, **{"/var/tmp": 20479}), **SLURM},
        "image-disk",
        "20479 MiB free, and no copy of the training image",
    ),
    (
        {"facts_cgroup": NO_CGROUPS, "vars_cluster_scheduler": "slurm"},
        "job-limits",
        "the host is a container (docker)",
    ),
    (
        {
            "facts_os": JAMMY,
            "vars_cluster_scheduler": "slurm",
            "vars_job_container_enabled": False,
            "answer_candidates": {"slurmd": "21.08.5-2ubuntu1"},
        },
        "job-limits",
        "Slurm 21.08 does not know",
    ),
    # Package lists that are empty.
    (
        {
            "facts_os": JAMMY,
            "vars_cluster_scheduler": "slurm",
            "vars_job_container_enabled": False,
            "answer_candidates": {},
        },
        "job-limits",
        "Slurm 21.08 does not know",
    ),
    ({"facts_os": {"id": "ubuntu", "version_id": "18.04"}}, "os-supported", "ubuntu 18.04"),
    ({"facts_os": {"id": "rocky", "version_id": "9.4"}}, "os-supported", "rocky 9.4"),
    ({"facts_python_version": "3.7.3"}, "python-version", "Python 3.7.3"),
    (
        {
            "facts_interfaces": [{"name": "eth1", "up": False, "addresses": []}],
            "vars_cluster_address": "",
        },
        "address-missing",
        "eth1 none (down)",
    ),
    ({"vars_cluster_address": "10.0.0.99"}, "address-elsewhere", "10.0.0.99"),
    (
        {
            "facts_interfaces": [
                {
                    "name": "eth0",
                    "up": True,
                    "addresses": [{"address": "fd00::11", "prefix": 64, "scope": "global"}],
                }
            ],
            "vars_cluster_address": "fd00::11",
        },
        "address-not-ipv4",
        "fd00::11",
    ),
    ({"vars_slots": 3}, "slots-exceeded", "3 on a host with 0 GPUs and 2 CPUs"),
    (
        {"facts_gpus": 4, "facts_cpus": 64, "vars_slots": 5},
        "slots-exceeded",
        "5 on a host with 4 GPUs",
    ),
    (
        {"facts_gpus": 8, "vars_slots": 8, "vars_training_container_gpus": [0, 1]},
        "slots-without-gpu",
        "8 with training_container_gpus 0, 1",
    ),
    ({"vars_training_container_gpus": "all"}, "gpu-missing", "no GPU"),
    ({"vars_training_container_gpus": [0]}, "gpu-missing", "no GPU"),
    ({"answer_disk_free_mib": {"/var/lib/docker": 40959}}, "image-disk", "40959 MiB free"),
    (
        {
            "answer_docker_config_error": "/etc/docker/daemon.json: line 3, column 3: Expecting value"
        },
        "docker-config",
        "daemon.json: line 3, column 3",
    ),
    ({"answer_listeners": [listener()]}, "ssh-port-taken", "0.0.0.0:12345 is held by nc (pid 7)"),
    (
        {"answer_listeners": [listener(address="::", pid=0, process="")]},
        "ssh-port-taken",
        "is held by an unknown process",
    ),
    (
        {
            "answer_listeners": [
                listener(address="10.0.0.11", container_id="e" * 64, container_name="other")
            ]
        },
        "ssh-port-taken",
        "in container other",
    ),
    (
        {"answer_connections": [connection(state="timeout", error="no answer within 3 s")]},
        "peer-unreachable",
        "10.0.0.12 port 12345: no answer within 3 s",
    ),
    (
        {"answer_connections": [connection(state="unreachable", error="No route to host")]},
        "peer-unreachable",
        "No route to host",
    ),
    (
        {
            "answer_connections": [
                connection(),
                connection(
                    address="10.1.0.12",
                    source="10.1.0.11",
                    state="timeout",
                    error="no answer within 3 s",
                ),
            ]
        },
        "fabric-peer-unreachable",
        "from 10.1.0.11 to 10.1.0.12 port 12345: no answer within 3 s",
    ),
    (
        {"answer_resolved": {"a": {"addresses": ["127.0.1.1"], "error": ""}}},
        "own-name-loopback",
        "a is 127.0.1.1",
    ),
    # A name server's word is in no file.
    (
        {
            "answer_resolved": {"a": {"addresses": ["127.0.1.1"], "error": ""}},
            "vars_training_container_repair_own_name": True,
        },
        "own-name-loopback",
        "127.0.1.1",
    ),
    (
        {"answer_resolved": {"a": {"addresses": ["::1", "10.0.0.11"], "error": ""}}},
        "own-name-loopback",
        "a is ::1",
    ),
    (
        {"answer_resolved": {"a": {"addresses": [], "error": "no such name"}}},
        "own-name-unknown",
        "no such name",
    ),
    (
        {
            "answer_resolved": {
                "a": {"addresses": ["10.0.0.11"], "error": ""},
                "b": {"addresses": ["127.0.0.1"], "error": ""},
            }
        },
        "peer-name-wrong",
        "b is 127.0.0.1",
    ),
    # A wrong line of /etc/hosts, in no network of the cluster.
    (
        {
            "answer_resolved": {
                "a": {"addresses": ["10.0.0.11"], "error": ""},
                "b": {"addresses": ["10.9.9.9"], "error": ""},
            }
        },
        "peer-name-wrong",
        "b is 10.9.9.9",
    ),
    (
        {
            "answer_resolved": {
                "a": {"addresses": ["10.0.0.11"], "error": ""},
                "b": {"addresses": ["10.0.0.11"], "error": ""},
            }
        },
        "peer-name-wrong",
        "b is 10.0.0.11",
    ),
    (
        {
            "answer_connections": [
                connection(
                    name="NFS server nas",
                    address="nas",
                    port=2049,
                    state="refused",
                    error="Connection refused",
                )
            ]
        },
        "nfs-server-unreachable",
        "nas port 2049: Connection refused",
    ),
    (
        {
            "vars_cluster_storage": "a",
            "vars_nfs_server_clients": ["10.0.0.0/8", "fd00::1", "gone.example"],
            "answer_resolved": {
                "a": {"addresses": ["10.0.0.11"], "error": ""},
                "gone.example": {"addresses": [], "error": "unknown name"},
            },
        },
        "nfs-client-unknown",
        "gone.example is not known",
    ),
    (
        {
            "answer_account_clashes": [
                {
                    "kind": "user",
                    "name": "anna",
                    "asked": "user anna with id 2001",
                    "found": "user carl with id 2001",
                }
            ]
        },
        "account-clash",
        "user carl with id 2001",
    ),
]


def test_a_value_of_daemon_json_with_which_docker_starts_only_warns():
    result = judge(
        a_host("a", "10.0.0.11", answer_docker_config_warnings=["/etc/docker/daemon.json: mtu: 1"]),
        a_host("b", "10.0.0.12"),
    )
    (entry,) = [entry for entry in result["findings"] if entry["verdict"] != "pass"]
    assert (entry["id"], entry["verdict"], entry["found"]) == (
        "docker-config",
        "warn",
        "/etc/docker/daemon.json: mtu: 1",
    )
    assert "containers start" in entry["expected"] and "failed" not in result


@pytest.mark.parametrize("changes", GOOD)
def test_good_hosts_pass_every_rule(changes):
    result = judge(a_host("a", "10.0.0.11", **changes), a_host("b", "10.0.0.12"))
    assert [entry for entry in result["findings"] if entry["verdict"] != "pass"] == []
    assert "failed" not in result


@pytest.mark.parametrize("changes, check_id, found", BAD)
def test_each_defect_is_found_by_its_rule(changes, check_id, found):
    rule = next(
        rule
        for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["host_rules"]
        if rule["id"] == check_id
    )
    result = judge(a_host("a", "10.0.0.11", **changes), a_host("b", "10.0.0.12"))
    (entry,) = [entry for entry in result["findings"] if entry["verdict"] != "pass"]
    assert (entry["id"], entry["host"]) == (check_id, "a")
    assert found in entry["found"] and entry["expected"] and entry["fix"]
    assert ("failed" in result) == (rule["severity"] == "block")
    if rule["severity"] == "block":
        assert entry["found"] in result["msg"] and entry["fix"] in result["msg"]


def test_releases_of_slurm_that_do_not_meet_are_found_before_the_image_is_built():
    """22.04 has 21.08 and 24.04 has 23.11: with neither as the scheduler do they work together."""
    old = dict(SLURM, facts_os=JAMMY, vars_slurm_accept_no_limits=True)
    old["vars_job_container_enabled"] = False
    new = dict(SLURM, facts_os=NOBLE)
    for scheduler, about, found in (
        ("a", "b", "Slurm 23.11 is newer than 21.08 of the scheduler a"),
        ("b", "a", "Slurm 21.08 is too old for 23.11 of the scheduler b"),
    ):
        where = {"vars_cluster_scheduler_host": scheduler}
        result = judge(
            a_host("a", "10.0.0.11", **old, **where), a_host("b", "10.0.0.12", **new, **where)
        )
        (entry,) = result["findings"]
        assert (entry["id"], entry["host"]) == ("slurm-releases", about)
        assert found in entry["found"] and "failed" in result
        # No circle: what is advised works.
        assert (
            "cluster_scheduler_host" not in entry["fix"] and "slurm_packages_source" in entry["fix"]
        )
    # A repository with one release for both.
    served = dict(answer_candidates=NEWER, vars_cluster_scheduler_host="a")
    hosts = a_host("a", "10.0.0.11", **old, **served), a_host("b", "10.0.0.12", **new, **served)
    assert {entry["verdict"] for entry in judge(*hosts)["findings"]} == {"pass"}
    # Debian 12 and Ubuntu 24.04 meet if the scheduler is on the newer one.
    where = {"vars_cluster_scheduler_host": "a"}
    (entry,) = judge(
        a_host("a", "10.0.0.11", **SLURM, **where), a_host("b", "10.0.0.12", **new, **where)
    )["findings"]
    assert entry["host"] == "b" and "Set cluster_scheduler_host to b" in entry["fix"]


def test_the_oldest_podman_is_that_of_role_job_container():
    known = yaml.safe_load(RULES.read_text(encoding="utf-8"))["data"]["oldest_podman"]
    assert known == "%d.%d" % _job_container_plan.OLDEST_PODMAN


def test_what_is_found_across_hosts():
    same = judge(
        a_host(
            "a",
            "10.0.0.11",
            facts_hostname="debian",
            answer_resolved={"debian": {"addresses": ["10.0.0.11"], "error": ""}},
        ),
        a_host(
            "b",
            "10.0.0.12",
            facts_hostname="debian",
            answer_resolved={"debian": {"addresses": ["10.0.0.12"], "error": ""}},
        ),
    )
    assert [(entry["id"], entry["host"]) for entry in same["findings"]] == [
        ("hostname-twice", "a, b")
    ]
    twice = judge(a_host("a", "10.0.0.11"), a_host("b", "10.0.0.11"))
    # Once, though it is the address on the fabric network as well.
    assert [
        (entry["id"], entry["host"]) for entry in twice["findings"] if "twice" in entry["id"]
    ] == [("address-twice", "a, b")]
    mixed = judge(a_host("a", "10.0.0.11"), a_host("b", "10.0.0.12", facts_architecture="aarch64"))
    (entry,) = mixed["findings"]
    assert entry["id"] == "architecture-differs" and entry["found"] == "aarch64 on b; x86_64 on a"
    card = {"name": "eth0", "up": True, "addresses": [{"address": "10.0.0.11", "prefix": 24}]}
    small = a_host("a", "10.0.0.11", facts_interfaces=[dict(card, mtu=1400)])
    findings = judge(small, a_host("b", "10.0.0.12"))["findings"]
    (entry,) = [entry for entry in findings if entry["verdict"] != "pass"]
    assert (entry["id"], entry["host"], entry["verdict"]) == ("mtu-differs", "a, b", "warn")
    assert entry["found"] == "MTU 1400 on a; 1500 on b"


def test_a_share_by_rdma_that_its_server_does_not_offer():
    """Role nfs_server does not configure it. The server has nothing to mount."""
    options = {"vars_nfs_client_options": ["hard", "rdma"], "vars_cluster_storage": "a"}
    options["facts_rdma_ports"] = [dict(device="mlx5_0", port=1, state="active", rate_gb_s=400.0)]
    hosts = [a_host("a", "10.0.0.11", **options), a_host("b", "10.0.0.12", **options)]
    hosts[0]["cluster_host"]["nfs_transports"] = ["tcp", "udp"]
    (entry,) = [entry for entry in judge(*hosts)["findings"] if entry["verdict"] != "pass"]
    assert (entry["id"], entry["host"], entry["verdict"]) == ("nfs-rdma", "b", "fail")
    assert entry["found"] == "a offers tcp and udp"
    assert "rdma=y" in entry["fix"] and "/etc/nfs.conf.d of a" in entry["fix"]
    hosts[0]["cluster_host"]["nfs_transports"].append("rdma")
    assert "failed" not in judge(*hosts)


def test_a_host_with_fewer_ports_than_another():
    """The other one would wait for it. A host without training is not compared."""
    ports = [
        {"device": "mlx5_%d" % number, "port": 1, "state": "active", "rate_gb_s": 400.0}
        for number in range(8)
    ]
    broken = [dict(port, state="down") if port["device"] == "mlx5_3" else port for port in ports]
    result = judge(
        a_host("a", "10.0.0.11", facts_rdma_ports=ports),
        a_host("b", "10.0.0.12", facts_rdma_ports=broken),
    )
    (entry,) = [entry for entry in result["findings"] if entry["verdict"] != "pass"]
    assert (entry["id"], entry["host"], entry["verdict"]) == ("rdma-ports-differ", "b", "warn")
    assert entry["found"] == "7, mlx5_3 port 1: down, 400.0 Gb/s"
    assert entry["expected"] == "8 active RDMA ports with 400 Gb/s, as on a"


def a_card(bus_id="0000:17:00.0", **changes):
    """A network card whose interface has the address of the host, and a link as fast as can be."""
    card = {
        "bus_id": bus_id,
        "model": "15b3:1021",
        "gt_s": 32.0,
        "gt_s_max": 32.0,
        "width": 16,
        "width_max": 16,
        "slot_gt_s_max": 32.0,
        "slot_width_max": 16,
        "interfaces": [{"name": "eth0", "above": []}],
        "rdma": [],
    }
    return dict(card, **changes)


def an_interface(address, **changes):
    addresses = [{"address": address, "prefix": 24}]
    interface = {"name": "eth0", "up": True, "addresses": addresses, "mtu": 1500}
    return [dict(interface, **dict({"speed_mbit_s": 100000, "duplex": "full"}, **changes))]


def adapters(numa_node=0, **changes):
    """What role infiniband has read, on a host with a GPU whose driver is loaded."""
    port = {"port": 1, "state": "active", "link_layer": "infiniband", "gids": []}
    device = {"name": "mlx5_0", "driver": "mlx5_core", "numa_node": numa_node, "ports": [port]}
    read = {"peer_memory": True, "dma_buf": False, "redirected": [], "translated": []}
    return {
        "vars___infiniband_found": {"devices": [device], "gpudirect": dict(read, **changes)},
        "vars_cluster_stack": {"gpus": [{"model": "NVIDIA H100 80GB HBM3"}]},
    }


OF_HARDWARE = {
    "cpu-governor": (
        {"facts_governors": {"performance": 64}},
        {"facts_governors": {"powersave": 64}},
        "governor powersave of 64 CPUs",
    ),
    "nic-speed": (
        {"facts_network_cards": [a_card()], "facts_interfaces": an_interface("10.0.0.11")},
        {
            "facts_network_cards": [a_card()],
            "facts_interfaces": an_interface("10.0.0.12", speed_mbit_s=25000),
        },
        "eth0: 25000 Mb/s",
    ),
    "nic-pcie": (
        {"facts_network_cards": [a_card()], "facts_interfaces": an_interface("10.0.0.11")},
        {
            "facts_network_cards": [a_card(width=8)],
            "facts_interfaces": an_interface("10.0.0.12"),
        },
        "0000:17:00.0 (eth0): 32 GT/s, 8 lanes",
    ),
    "gpudirect": (
        adapters(),
        adapters(redirected=["0000:15:00.0"]),
        "Access Control Services send their data through the CPU at the ports 0000:15:00.0",
    ),
    "fabric-alike": (adapters(), adapters(numa_node=1), "mlx5_0: NUMA node 1"),
}


@pytest.mark.parametrize("check_id", OF_HARDWARE)
def test_hardware_that_is_worse_than_that_of_another_host_is_a_warning(check_id):
    """Before anything is changed, and by the words of verify."""
    whole, worse, found = OF_HARDWARE[check_id]
    result = judge(a_host("a", "10.0.0.11", **whole), a_host("b", "10.0.0.12", **worse))
    (entry,) = [entry for entry in result["findings"] if entry["verdict"] != "pass"]
    assert (entry["id"], entry["host"], entry["verdict"]) == (check_id, "b", "warn")
    assert entry["found"] == found and "on a" in entry["expected"] and entry["fix"]


def test_a_name_for_management():
    """An address of another interface of the member is right."""
    resolved = {
        "a": {"addresses": ["10.0.0.11"], "error": ""},
        "b": {"addresses": ["192.168.9.9"], "error": ""},
    }
    cards = [
        {"name": name, "up": True, "addresses": [{"address": address, "prefix": 24}], "mtu": 1500}
        for name, address in (("eth0", "10.0.0.12"), ("eth1", "192.168.9.9"))
    ]
    other = a_host("b", "10.0.0.12", facts_interfaces=cards)
    findings = judge(a_host("a", "10.0.0.11", answer_resolved=resolved), other)["findings"]
    assert [entry for entry in findings if entry["verdict"] != "pass"] == []


def test_a_fabric_network_that_a_host_is_not_in():
    fabric = {"vars_cluster_fabric_network": "169.254.0.0/16"}
    (entry,) = judge(a_host("a", "10.0.0.11", **fabric), members=[member("a", fabric_address="")])[
        "findings"
    ]
    assert (
        entry["id"] == "fabric-address-missing"
        and "169.254.0.0/16" in entry["expected"]
        and entry["found"] == "no such interface as eth0"
    )
    # One of the rails that the user has named.
    rails = [
        {"network": "10.%d.0.0/24" % rail, "address": address, "interface": ""}
        for rail, address in enumerate(("10.0.0.11", "", ""))
    ]
    (entry,) = judge(
        a_host("a", "10.0.0.11", vars_cluster_fabric_network="10.0.0.0/24,10.1.0.0/24,10.2.0.0/24"),
        members=[member("a", fabric_address="10.0.0.11", fabric_rails=rails)],
    )["findings"]
    assert entry["expected"].endswith("inside 10.1.0.0/24 and 10.2.0.0/24")
    assert entry["found"] == "no such interface"
    # It trains nothing.
    storage = member("a", fabric_address="", fabric_interface="", slots=0)
    assert [
        entry["id"]
        for entry in judge(a_host("a", "10.0.0.11", **fabric), members=[storage])["findings"]
        if entry["verdict"] != "pass"
    ] == []


def on_fabric(*places, **variables):
    """The findings about two hosts with these (address, interface) on the fabric network."""
    members = [
        member(name, fabric_address=address, fabric_interface=interface)
        for name, (address, interface) in zip("ab", places)
    ]
    variables = dict({"vars_cluster_fabric_network": "10.1.0.0/24"}, **variables)
    result = judge(
        a_host("a", "10.0.0.11", **variables),
        a_host("b", "10.0.0.12", **variables),
        members=members,
    )
    return [
        (entry["id"], entry["host"], entry["found"])
        for entry in result["findings"]
        if entry["verdict"] == "fail"
    ]


def test_a_fabric_across_hosts():
    assert on_fabric(("10.1.0.11", "ib0"), ("10.1.0.12", "ib0")) == []
    assert on_fabric(("10.1.0.11", "ib0"), ("10.1.0.11", "ib0")) == [
        ("fabric-address-twice", "a, b", "10.1.0.11 is the address of a, b")
    ]
    differing = ("10.1.0.11", "ib0"), ("10.1.0.12", "ibp1s0")
    assert on_fabric(*differing) == [
        (
            "interface-names-differ",
            "a, b",
            "horovodrun gives one interface name to all ranks, but on 10.1.0.0/24 it is ib0 on a, ibp1s0 on b",
        )
    ]
    assert on_fabric(*differing, vars_train_launcher="torchrun") == []


def test_one_host_calls_nobody():
    alone = a_host(
        "a", "10.0.0.11", answer_resolved={"a": {"addresses": ["127.0.1.1"], "error": ""}}
    )
    assert [entry["id"] for entry in judge(alone)["findings"] if entry["verdict"] != "pass"] == []


def test_a_host_that_does_not_answer():
    down, there = silent("b", "No route to host"), member("a")
    resolved = {
        "a": {"addresses": ["10.0.0.11"], "error": ""},
        "b": {"addresses": [], "error": "unknown"},
    }
    result = judge(a_host("a", "10.0.0.11", answer_resolved=resolved), members=[there, down])
    (entry,) = result["findings"]
    assert (
        result["failed"]
        and (entry["id"], entry["host"]) == ("host-unreachable", "b")
        and entry["found"] == "192.0.2.99: No route to host"
    )
    limited = judge(
        a_host("a", "10.0.0.11", answer_resolved=resolved), members=[there, down], play=["a"]
    )
    assert "failed" not in limited
    assert [entry["id"] for entry in limited["findings"] if entry["verdict"] == "warn"] == [
        "host-unreachable"
    ]


@pytest.mark.parametrize(
    "error",
    [
        "The module interpreter '/usr/bin/python3' was not found.",
        "ansible-core requires a minimum of Python version 3.8. Current version: 3.6.9",
        "/bin/sh: 1: /usr/bin/python3: not found",
    ],
)
def test_a_host_that_answers_without_a_python_for_ansible(error):
    bare, there = silent("b", error), member("a")
    resolved = {
        "a": {"addresses": ["10.0.0.11"], "error": ""},
        "b": {"addresses": [], "error": "unknown"},
    }
    (entry,) = judge(a_host("a", "10.0.0.11", answer_resolved=resolved), members=[there, bare])[
        "findings"
    ]
    assert (entry["id"], entry["host"], entry["source"]) == (
        "python-version",
        "b",
        "ansible_python_interpreter",
    ) and entry["found"] == error


def test_all_problems_of_all_hosts_come_in_one_message_with_those_of_the_input():
    earlier = {
        "id": "input-unknown",
        "host": "a",
        "verdict": "warn",
        "expected": "",
        "found": "none",
        "source": "cluster_x",
        "seconds": 0.0,
        "fix": "",
    }
    wrong = a_host("a", "10.0.0.11", facts_python_version="3.6.9", vars_slots=9)
    result = judge(
        wrong, a_host("b", "10.0.0.12", answer_listeners=[listener()]), findings=[earlier]
    )
    assert [entry["id"] for entry in result["findings"]] == [
        "input-unknown",
        "python-version",
        "slots-exceeded",
        "ssh-port-taken",
    ]
    for check_id in ("input-unknown", "python-version", "slots-exceeded", "ssh-port-taken"):
        assert check_id in result["msg"]


def test_warnings_stop_where_asked():
    loopback = a_host(
        "a", "10.0.0.11", answer_resolved={"a": {"addresses": ["127.0.1.1"], "error": ""}}
    )
    assert "failed" in judge(loopback, a_host("b", "10.0.0.12"), fail_on="warn")


def test_every_id_is_tried_and_published():
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["host_rules"]
    ids = [rule["id"] for rule in rules]
    assert len(ids) == len(set(ids))
    tried = {check_id for changes, check_id, found in BAD} | {
        "hostname-twice",
        "address-twice",
        "architecture-differs",
        "fabric-address-missing",
        "fabric-address-twice",
        "interface-names-differ",
        "mtu-differs",
        "rdma-ports-differ",
        "nfs-rdma",
        "slurm-releases",
        *OF_HARDWARE,
    }
    assert set(ids) == tried
    readme = (ROOT / "roles/preflight/README.md").read_text(encoding="utf-8")
    assert [check_id for check_id in ids if "`%s`" % check_id not in readme] == []


def test_the_example_rule_of_the_readme_works(tmp_path):
    readme = (ROOT / "roles/preflight/README.md").read_text(encoding="utf-8")
    own = tmp_path / "our_rules.yml"
    own.write_text(
        readme.partition("```yaml\n# our_rules.yml")[2].partition("```")[0].partition("\n")[2],
        encoding="utf-8",
    )
    (entry,) = judge(a_host("a", "10.0.0.11", facts_memory_mib=131072), rules=[str(own)])[
        "findings"
    ]
    assert (entry["id"], entry["verdict"], entry["found"]) == ("our-memory", "fail", "131072 MiB")


def test_a_rule_that_is_misspelt_is_an_error(tmp_path):
    own = tmp_path / "rules.yml"
    own.write_text(
        "host_rules:\n  - {id: x, severity: fatal, stage: host, that: 'true', expected: '', found: '', source: '', fix: ''}\n",
        encoding="utf-8",
    )
    with pytest.raises(
        judge_hosts.AnsibleError, match="rules.yml: rule x: severity must be block or warn"
    ):
        judge(a_host("a", "10.0.0.11"), rules=[str(own)])
    with pytest.raises(judge_hosts.AnsibleError, match="the file does not exist"):
        judge(a_host("a", "10.0.0.11"), rules=[str(tmp_path / "none.yml")])


LET_ONCE = """
let_once: {all: "hostvars.values() | map(attribute='cluster_address') | sort", first: "all | first ~ inventory_hostname"}
let: {own: "first ~ inventory_hostname"}
host_rules:
  - {id: each-host, severity: warn, stage: host, that: "false", expected: "{{ all | join(' ') }}", found: "{{ own }}", source: x, fix: x}
  - {id: whole, severity: warn, stage: cluster, that: "false", expected: x, found: "{{ each | map(attribute='own') | join(' ') }} {{ first }}", source: x, fix: x}
"""


def test_a_value_that_is_equal_for_all_hosts_is_evaluated_once(tmp_path):
    own = tmp_path / "rules.yml"
    own.write_text(LET_ONCE, encoding="utf-8")
    found = judge(a_host("a", "10.0.0.11"), a_host("b", "10.0.0.12"), rules=[str(own)])["findings"]
    assert [(entry["host"], entry["expected"], entry["found"]) for entry in found] == [
        ("a", "10.0.0.11 10.0.0.12", "10.0.0.11aa"),
        ("b", "10.0.0.11 10.0.0.12", "10.0.0.11ab"),
        ("a", "x", "10.0.0.11aa 10.0.0.11ab 10.0.0.11a"),
    ]


# A rule that is evaluated for each pair of hosts takes minutes with many hosts: only pairs with a
# problem may be evaluated.
def test_no_rule_is_evaluated_for_each_pair_of_hosts(monkeypatch):
    evaluated = []
    evaluate = judge_hosts.HostInput.evaluate
    monkeypatch.setattr(
        judge_hosts.HostInput,
        "evaluate",
        lambda inputs, expression, **extra: (
            evaluated.append(expression) or evaluate(inputs, expression, **extra)
        ),
    )
    counts = []
    for size in (2, 6):
        evaluated.clear()
        judge(*[connected_to_all(number, size) for number in range(size)], report_only=True)
        counts.append(len(evaluated) / size)
    assert counts[1] <= counts[0]


def connected_to_all(number, size):
    others = [
        ("h%d" % other, "10.0.0.%d" % (11 + other)) for other in range(size) if other != number
    ]
    name, address = "h%d" % number, "10.0.0.%d" % (11 + number)
    return a_host(
        name,
        address,
        answer_connections=[
            connection(name=other, address=its, source=source)
            for other, its in others
            for source in ("", "10.1.0.9")
        ],
        answer_resolved={
            peer: {"addresses": [its], "error": ""} for peer, its in others + [(name, address)]
        },
    )
