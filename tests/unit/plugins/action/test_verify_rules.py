"""Every rule of role verify: a healthy cluster fails none, and each defect fails exactly its own
rule.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from eight_gpus import eight_gpus
from judged_hosts import a_host, judge

from ansible_collections.trainyard.gpu.plugins.action import judge_hosts
from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import meaning
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import (
    judge as judge_gpu,
    parse_query,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import mesh_problems
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import finding
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import published_checks
from ansible_collections.trainyard.gpu.plugins.plugin_utils._monitoring_plan import CERTIFICATES
from ansible_collections.trainyard.gpu.plugins.plugin_utils._verify_plan import with_causes

ROOT = Path(__file__).parents[4]
RULES = ROOT / "roles/verify/meta/rules.yml"
TABLE = yaml.safe_load(RULES.read_text(encoding="utf-8"))
BY_ID = {rule["id"]: rule for rule in TABLE["host_rules"]}
GPU_IDS = {rule["id"] for rule in TABLE["host_rules"] if rule.get("applies_to") == "gpus"}
GPUS = parse_query(eight_gpus()).gpus
#: What a job's session finds on a host in order.
SESSION = {
    "cause": "",
    "evidence": "",
    "jobs": [],
    "share": {"device": 50, "inode": 2},
    "settings": {"shm_bytes": 1 << 30, "ulimits": {}, "limited": [], "cpus": 8},
    "view": {
        "share": {"device": 50, "inode": 2, "error": ""},
        "shm_bytes": 1 << 30,
        "limits": {"nofile": [20000, 20000]},
        "first_limits": {"nofile": [20000, 20000]},
        "group": {"memory": None, "cpus": None, "pids": None, "affinity": 8, "killed": 0},
        "environment": {"missing": [], "changed": [], "added": {}},
        "python": {
            "version": "3.11.2",
            "error": "",
            "programs": {},
            "packages": {},
            "shadows": [],
            "startup": [],
        },
        "processes": [],
    },
}
PATHS = {
    "/": {"free_bytes": 50 << 30, "inodes": 1000000, "inodes_free": 900000, "error": ""},
    # Some file systems have no limit.
    "/data1/share": {"free_bytes": 50 << 30, "inodes": 0, "inodes_free": 0, "error": ""},
}


JOBS_FIREWALL = "trainyard-jobs-firewall.service"


def in_session(*path: str, value: object) -> dict:
    """A host whose session finds another value at a place of the view."""
    session = copy.deepcopy(SESSION)
    target = session["view"]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return {"answer": an_answer(session=session)}


def unplanned(warn: bool = False, by_hand: bool = False) -> dict:
    """A host whose unit differs from the plan."""
    fault = {"found": "x.conf sets Restart", "fix": "remove it", "warn": warn, "by_hand": by_hand}
    return {"training_container_plan_faults": [fault]}


def guarded(**changes: object) -> dict:
    """A host of the scheduler whose table of ports differs."""
    state = dict({"fault": "", "active": True, "enabled": True}, **changes)
    return scheduled(a_node("b"), answer=an_answer(firewalls={JOBS_FIREWALL: state}))


def listing(listed: list, fault: str = "", planned: list | None = None) -> dict:
    """A host of the scheduler whose list of GPUs differs from its devices, or from the plan."""
    plan = {
        "nodes": [{"name": "b"}] if planned is None else [{"name": "b", "gpu_numbers": planned}]
    }
    answer = an_answer(slurm_gpus={"listed": listed, "fault": fault})
    return scheduled(a_node("b"), answer=answer, slurm_plan=plan)


def an_answer(**changes):
    """What host_health_info says of a host in order."""
    return dict(
        {
            "gpu_errors": [],
            "kernel_log": {"source": "journalctl", "error": ""},
            "clock": {"synchronized": True, "source": "timedatectl", "error": ""},
            "file_systems": PATHS,
            "docker_config_error": "",
            "docker_config_warnings": [],
            "session": SESSION,
            "firewalls": {JOBS_FIREWALL: {"fault": "", "active": True, "enabled": True}},
            "slurm_gpus": {"listed": [], "fault": ""},
            "certificates": {
                "/etc/trainyard/registry/tls/registry.pem": {
                    "ends": "2027-12-29",
                    "days": 30,
                    "error": "",
                }
            },
        },
        **changes,
    )


def ending(days, ends="2027-01-02", error="", path="/etc/trainyard/tls/hub.pem"):
    certificates = {path: {"ends": ends, "days": days, "error": error}}
    return {"answer": an_answer(certificates=certificates)}


def a_smi(gpus=None, **changes):
    gpus = copy.deepcopy(GPUS) if gpus is None else gpus
    return dict(
        {
            "available": True,
            "cause": None,
            "fix": None,
            "gpu_count": len(gpus),
            "gpus": gpus,
            "error_gpus": [],
        },
        **changes,
    )


def a_gpu(number, **changes):
    """The eight GPUs, of which one differs."""
    gpus = copy.deepcopy(GPUS)
    gpus[number] = judge_gpu(dict(gpus[number], **changes))
    return {"__verify_gpus": a_smi(gpus)}


def linked_gpus(*speeds, gpu=3, name="NVIDIA A100-SXM4-80GB"):
    """The eight GPUs with twelve NVLinks each, of which one GPU has others."""
    gpus = [dict(each, nvlinks=[25.0] * 12, name=name) for each in copy.deepcopy(GPUS)]
    gpus[gpu]["nvlinks"] = list(speeds)
    return {"__verify_gpus": a_smi(gpus)}


def guests(*widths):
    """The eight GPUs in a virtual machine, of which the first have so many lanes."""
    gpus = [
        dict(each, virtualization_mode="Pass-Through", pcie_width=8, pcie_width_max=16)
        for each in copy.deepcopy(GPUS)
    ]
    for each, width in zip(gpus, widths):
        each["pcie_width"] = width
    return {"__verify_gpus": a_smi(gpus)}


def cards(speed=25000, gt_s=16.0, address="10.0.0.12", **changes):
    """Facts of a host with one network card, whose interface has its address."""
    link = {"gt_s": gt_s, "width": 8.0, "slot_gt_s_max": 16.0, "slot_width_max": 8.0}
    card = {
        "bus_id": "0000:17:00.0",
        "model": "8086:158b",
        "gt_s_max": 16.0,
        "width_max": 8.0,
        "interfaces": [{"name": "ens1", "above": []}],
        "rdma": [],
    }
    interface = {
        "name": "ens1",
        "up": True,
        "speed_mbit_s": speed,
        "addresses": [{"address": address, "prefix": 24}],
    }
    facts = {"interfaces": [interface], "network_cards": [dict(card, **link)]}
    return {"facts": dict(facts, **changes)}


def a_stack(**changes):
    return dict(
        {
            "packages": {
                "libnccl2": {"version": "2.21.5-1+cuda12.4", "held": True, "broken": False}
            },
            "library": "535.54.03",
            "record": {},
            "reboot_required_reason": "",
            "will_break_on_next_boot": "",
        },
        **changes,
    )


#: Of a host whose Fabric Manager has ended.
STOPPED = {
    "nvidia-fabricmanager.service": {"active": False, "loaded": True, "enabled": True},
}


def a_port(device="mlx5_0", port=1, **changes):
    good = {
        "port": port,
        "state": "active",
        "physical_state": "link_up",
        "rate_gb_s": 400.0,
        "link_layer": "infiniband",
    }
    return {"name": device, "ports": [dict(good, **changes)]}


#: What lets adapters read the memory of GPUs.
DIRECT = {"peer_memory": True, "dma_buf": False, "redirected": [], "translated": []}


def fabric(*devices, **changes):
    return {
        "__verify_infiniband": dict(
            {
                "available": True,
                "fix": None,
                "adapters": [{"bus_id": "0000:17:00.0"}],
                "devices": list(devices),
                "gpudirect": DIRECT,
            },
            **changes,
        )
    }


def looked(check, text, drains=True):
    """What a host says whose health program has found something at its ports."""
    problem = {"check": check, "text": text, "drains": drains}
    return an_answer(fabric_ports={"looked": True, "problems": [problem]})


def a_session(container, **changes):
    good = {
        "hostname": "",
        "container_id": container,
        "memlock": "unlimited",
        "way_back": "open",
        "environment": {},
        "clock_ahead_s": [-0.2, 0.1],
    }
    return dict(good, **changes)


def a_mesh(memlock="unlimited", cause="", **sessions):
    """What all hosts' logins prove; `b_from_a` changes what a finds at b, whose container was given
    this limit.
    """
    ids = {"a": "a" * 64, "b": "b" * 64}
    proofs = {}
    for source in ids:
        logins = []
        for target, identifier in ids.items():
            changes = dict(sessions.get("%s_from_%s" % (target, source), {}))
            failed = changes.pop("cause", "")
            logins.append(
                {
                    "name": target,
                    "ok": not failed,
                    "cause": failed,
                    "fix": "mend it",
                    "evidence": "seen",
                    "session": {} if failed else a_session(identifier, **changes),
                }
            )
        proofs[source] = {
            "available": not cause,
            "cause": cause,
            "fix": "start it",
            "logins": logins,
            "container": {
                "id": ids[source],
                "memlock": memlock if source == "b" else "unlimited",
                "environment": {},
            },
        }
    members = [{"name": name, "in_play": True} for name in ids]
    return dict(
        mesh_problems(
            proofs, members, [{"name": name, "host_key": "ssh-ed25519 AAAA"} for name in ids]
        ),
        proofs=proofs,
    )


def a_node(name, states=("idle",), models=(), reason="", reason_user=""):
    """As slurm_info returns it."""
    base, *flags = states
    return {
        "name": name,
        "states": list(states),
        "flags": flags,
        "available_for_jobs": base in ("idle", "mixed", "allocated") and not flags,
        "gpus": [{"model": model, "total": number, "used": 0} for model, number in models],
        "reason": reason,
        "reason_user": reason_user,
    }


BURNING = a_node("b", ["idle", "drain"], reason="trainyard: burn-in", reason_user="root")


def scheduled(*nodes, cause="", fix="", **changes):
    """The scheduler as host b sees it. Host a is in order."""
    answer = {
        "available": not cause,
        "cause": cause or None,
        "fix": fix or None,
        "nodes": [a_node("a"), *nodes],
    }
    return dict(
        {
            "cluster_scheduler": "slurm",
            "cluster_scheduler_host": "a",
            "__verify_scheduler": answer,
            "slurm_accounts_difference": {"changes": []},
        },
        **changes,
    )


def monitoring(**changes):
    """A host of Prometheus, and what it says."""
    found = {"missing": [], "strange": [], "stale": [], "open": [], "alerts": "", "error": ""}
    found.update(receivers=["mail"], jobs=[], jobs_error="")
    folders = {"/etc/trainyard/monitoring/rules": []}
    return {"facts": {"folders": folders}, "__verify_monitoring": dict(found, **changes)}


def plain(name="a", address="10.0.0.11", answer=None, mesh=None, facts=None, **changes):
    """A host without GPUs that is in order."""
    host = a_host(
        name,
        address,
        **{
            "facts_" + key: value
            for key, value in dict({"container": False}, **(facts or {})).items()
        },
    )
    host.update(
        {
            "asked": answer or an_answer(),
            "training_sshd_proof": mesh or a_mesh(),
            "training_container_plan_faults": [],
            "training_sshd_foreign": [],
            "cluster_share_path": "/data1/share",
            "cluster_head": "a",
            "shared_storage_proof": {"verdict": "pass"},
            "__verify_failed": {},
            "verify_clock_step": 1.0,
            "verify_free_mib": 1024,
            "verify_free_inodes": 10000,
            "__verify_horovod": {"available": True, "missing": [], "import_errors": {}},
        }
    )
    # What the test's own hosts have beside these.
    host["asked"].setdefault("resolved", {})
    return dict(host, __verify_health=host["asked"], **changes)


def gpu_host(name="a", address="10.0.0.11", facts=None, **changes):
    """A host with eight GPUs that is in order."""
    base = {
        "__verify_gpus": a_smi(),
        "__verify_container_gpus": a_smi(),
        "__verify_stack": a_stack(),
        "training_container_gpus": "all",
        "upgrade_asked": {"libnccl2": "2.21.5-1+cuda12.4"},
        "nvidia_driver_asked": "535",
    }
    return plain(
        name,
        address,
        facts=dict({"nvidia_devices": 8, "gpus": 8}, **(facts or {})),
        **dict(base, **changes),
    )


def verdicts(*hosts, **options):
    # Both see what the last one, whose defect it is, has made of the mesh.
    for host in hosts:
        host["training_sshd_proof"] = hosts[-1]["training_sshd_proof"]
    result = judge(*hosts, rules=[str(RULES)], report_only=True, **options)
    assert "failed" not in result
    return result["findings"]


def bad(findings):
    return [entry for entry in findings if entry["verdict"] in ("warn", "fail")]


@pytest.mark.parametrize("kind", [plain, gpu_host])
def test_a_cluster_in_order(kind):
    findings = verdicts(kind("a", "10.0.0.11"), kind("b", "10.0.0.12"))
    assert {
        (entry["id"], entry["verdict"]) for entry in findings if entry["verdict"] != "pass"
    } == (
        {
            (check_id, "skipped")
            for check_id in {
                "gpudirect",
                "cpu-governor",
                "fabric-alike",
                "hugepages",
                "alerts-path",
                "ib-counters",
                "ib-flaps",
                "ib-ports",
                "metrics-closed",
                "metrics-fresh",
                "metrics-job",
                "metrics-up",
                "scheduler-answers",
                "scheduler-nodes",
                "scheduler-quota",
                "scheduler-ports",
                "scheduler-gpus",
            }
            | (GPU_IDS if kind is plain else set())
        }
    )
    assert {entry["host"] for entry in findings} == {"a", "b"}
    assert {entry["id"] for entry in findings} == set(BY_ID)
    # Why, in words.
    assert all(entry["found"] for entry in findings if entry["verdict"] == "skipped")


def xid(code=79, text="GPU has fallen off the bus.", kind="Xid", **changes):
    error = {
        "kind": kind,
        "device": "0000:3b:00",
        "code": code,
        "text": text,
        "count": 3,
        "first_s": 1.0,
        "last_s": 90.0,
        "ended": False,
    }
    return an_answer(gpu_errors=[dict(error, **meaning(kind, code, text), **changes)])


def ecc(volatile=0, aggregate=0):
    return {
        "volatile": {"correctable": 5, "uncorrectable": volatile},
        "aggregate": {"correctable": 5, "uncorrectable": aggregate},
    }


def free(path="/", **changes):
    return {"answer": an_answer(file_systems=dict(PATHS, **{path: dict(PATHS["/"], **changes)}))}


FAILED = {
    check_id: (plain, {"__verify_failed": {check_id: "a: it is not there"}}, "it is not there")
    for check_id in (
        "image-identical",
        "container-running",
        "horovod-build",
        "shared-storage",
        "ssh-mesh",
    )
}

# By check: hosts of which it alone says that they are broken (or warns, where that is written), and
# what it has found.
FIRING = {
    **{check_id: [case] for check_id, case in FAILED.items()},
    "stack-drift": [
        (
            gpu_host,
            {"upgrade_asked": {"libnccl2": "2.22.3-1+cuda12.5"}},
            "libnccl2: 2.21.5-1+cuda12.4",
        ),
        (
            gpu_host,
            {
                "__verify_stack": a_stack(
                    will_break_on_next_boot="no module for kernel 6.1.0-25-amd64"
                )
            },
            "no module for kernel",
        ),
        (gpu_host, {"nvidia_driver_asked": "550"}, "driver: 535.54.03"),
    ],
    "gpus-present": [
        (gpu_host, {"facts": {"nvidia_devices": 9}}, "8 GPUs"),
        (
            gpu_host,
            {"training_container_gpus": [0, 8], "__verify_container_gpus": a_smi(GPUS[:2])},
            "8 GPUs: 0, 1",
        ),
        (
            gpu_host,
            {"__verify_gpus": a_smi(available=False, cause="gpu_lost", fix="reboot it")},
            "gpu_lost",
        ),
        (plain, {"training_container_gpus": "all"}, "no NVIDIA GPU is on this host's PCI bus"),
    ],
    "gpu-ecc": [
        (
            gpu_host,
            a_gpu(3, ecc_errors=ecc(volatile=2, aggregate=2)),
            "GPU 3 (00000000:03:00.0): 2 uncorrectable errors since",
        ),
        (
            gpu_host,
            a_gpu(3, remapped_rows_pending=True),
            "warn: GPU 3 (00000000:03:00.0): memory is pending retirement until a reset",
        ),
        (
            gpu_host,
            a_gpu(3, retired_pages_pending=True),
            "warn: GPU 3 (00000000:03:00.0): memory is pending retirement until a reset",
        ),
        (gpu_host, a_gpu(3, remapped_rows_failure=True), "could not be retired"),
        (
            gpu_host,
            a_gpu(3, ecc_errors=ecc(aggregate=1)),
            "warn: GPU 3 (00000000:03:00.0): uncorrectable errors: 1 in its lifetime",
        ),
    ],
    "gpu-state": [
        (
            gpu_host,
            a_gpu(3, recovery_action="Reset"),
            "GPU 3 (00000000:03:00.0): the driver asks for recovery action 'Reset'",
        ),
        (gpu_host, a_gpu(3, recovery_action="Drain P2P"), "recovery action 'Drain P2P'"),
        (
            gpu_host,
            a_gpu(3, recovery_action="New Words"),
            "warn: GPU 3 (00000000:03:00.0): the driver asks for recovery action 'New Words'",
        ),
        (
            gpu_host,
            a_gpu(3, faults={"gpu_temp": "GPU requires reset"}),
            "nvidia-smi says 'GPU requires reset' in place of gpu_temp",
        ),
    ],
    "gpu-fabric": [
        (
            gpu_host,
            a_gpu(3, fabric_state="In Progress", fabric_status="N/A"),
            "GPU 3 (00000000:03:00.0): fabric state 'In Progress', status 'N/A'",
        ),
        (
            gpu_host,
            a_gpu(
                3,
                fabric_state="Completed",
                fabric_status="Success",
                fabric_health="Limited Capacity",
            ),
            "warn: GPU 3 (00000000:03:00.0): fabric health 'Limited Capacity'",
        ),
        (
            gpu_host,
            {"__verify_stack": a_stack(nvswitches=4, loaded="535.54.03", services=STOPPED)},
            "4 NVSwitches, and nvidia-fabricmanager.service is not running",
        ),
        (
            gpu_host,
            {
                "__verify_stack": a_stack(nvswitches=4, loaded="535.54.03", services=STOPPED),
                "nvidia_driver_fabric_manager": "never",
            },
            "warn: 4 NVSwitches",
        ),
    ],
    "gpu-xid": [
        (
            gpu_host,
            {"answer": xid()},
            "Xid 79 of 0000:3b:00, 3 times, last 90 s after the boot: the GPU has fallen off the bus",
        ),
        (
            gpu_host,
            {"answer": xid(149, "NETIR_LINK_EVT Fatal XC0", last_s=None, count=1)},
            "Xid 149 of 0000:3b:00, once: an NVLink failed",
        ),
        (
            gpu_host,
            {"answer": xid(20034, "Fatal, Link 30 LTSSM Fault Up", "SXid")},
            "an NVSwitch reports an error (Fatal, Link 30",
        ),
        (
            gpu_host,
            {
                "answer": xid(
                    154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
                )
            },
            "Node Reboot Required",
        ),
        (
            gpu_host,
            {"answer": xid(31, "Ch 0000000b")},
            "warn: Xid 31 of 0000:3b:00, 3 times, last 90 s after the boot: a program used memory",
        ),
        (gpu_host, {"answer": xid(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13")}, "warn: Xid 145"),
        (
            gpu_host,
            {"answer": xid(154, "GPU recovery action changed from 0x2 (A) to 0x9 (New Words)")},
            "warn: Xid 154",
        ),
        (
            gpu_host,
            {"answer": xid(22013, "Non-fatal, Link 44 Minion Link DLREQ interrupt", "SXid")},
            "warn: SXid 22013",
        ),
        (gpu_host, {"answer": xid(999, "")}, "warn: Xid 999"),
        (gpu_host, {"answer": xid(earlier_boots=2)}, ", and in 2 earlier boots: the GPU has"),
    ],
    "gpu-pcie-width": [
        (gpu_host, a_gpu(5, pcie_width=8), "GPU 5 (00000000:05:00.0) has 8"),
        (gpu_host, guests(*[16] * 7), "GPU 7 (00000000:07:00.0) has 8"),
    ],
    "gpu-nvlinks": [
        (
            gpu_host,
            linked_gpus(*[25.0] * 3, *[0.0] * 9),
            "GPU 3 (00000000:03:00.0): 3 active NVLinks of 25 GB/s",
        ),
        (gpu_host, linked_gpus(), "GPU 3 (00000000:03:00.0): 0 active NVLinks"),
        (gpu_host, linked_gpus(*[25.0] * 11, 5.0), "12 active NVLinks of at least 5 GB/s"),
        (
            gpu_host,
            linked_gpus(name="NVIDIA A100 80GB PCIe"),
            "warn: GPU 3 (00000000:03:00.0): 0 active NVLinks",
        ),
    ],
    "nic-speed": [
        (plain, cards(speed=1000), "ens1: 1000 Mb/s"),
        (plain, cards(speed=1000, address="192.0.2.7"), "warn: ens1: 1000 Mb/s"),
    ],
    "nic-pcie": [
        (plain, cards(gt_s=8.0), "0000:17:00.0 (ens1): 8 GT/s, 8 lanes"),
        (plain, cards(gt_s=8.0, address="192.0.2.7"), "warn: 0000:17:00.0 (ens1): 8 GT/s"),
    ],
    "fabric-alike": [
        (
            gpu_host,
            fabric(a_port(link_layer="ethernet")),
            "warn: mlx5_0 port 1: link layer ethernet",
        ),
    ],
    "gpu-throttle": [
        (
            gpu_host,
            a_gpu(0, throttle_reasons=["hw_slowdown", "hw_power_brake_slowdown"]),
            "hw_slowdown, hw_power_brake_slowdown",
        ),
        (gpu_host, a_gpu(0, throttle_reasons=["hw_thermal_slowdown"]), "hw_thermal_slowdown"),
        (gpu_host, a_gpu(0, throttle_reasons=["sw_thermal_slowdown"]), "warn: GPU 0"),
    ],
    "gpu-persistence": [
        (gpu_host, a_gpu(7, persistence_mode=False), "warn: GPU 7 (00000000:07:00.0): off")
    ],
    "toolkit-container": [
        (
            gpu_host,
            {"__verify_failed": {"toolkit-container": "could not select device driver"}},
            "could not select device driver",
        ),
        (
            gpu_host,
            {
                "__verify_container_gpus": a_smi(
                    [], available=False, cause="unknown", fix="restart it"
                )
            },
            "unknown",
        ),
        (gpu_host, {"__verify_container_gpus": a_smi(GPUS[:7])}, "7 GPUs"),
        (
            gpu_host,
            {"training_container_gpus": [0, 1, 2], "__verify_container_gpus": a_smi(GPUS[:2])},
            "2 GPUs",
        ),
    ],
    "horovod-build": [
        FAILED["horovod-build"],
        (
            plain,
            {
                "__verify_horovod": {
                    "available": True,
                    "missing": ["frameworks.pytorch"],
                    "import_errors": {"pytorch": "No module named 'packaging'"},
                }
            },
            "behind port 12345, Horovod lacks frameworks.pytorch; No module named 'packaging'",
        ),
        (
            plain,
            {
                "__verify_horovod": {
                    "available": False,
                    "cause": "not_installed",
                    "missing": ["frameworks.pytorch"],
                    "fix": "install it",
                }
            },
            "lacks frameworks.pytorch (not_installed)",
        ),
    ],
    "ssh-mesh": [
        FAILED["ssh-mesh"],
        (
            plain,
            {"mesh": a_mesh(b_from_a={"cause": "connection_refused"})},
            "a cannot log in to b (connection_refused)",
        ),
    ],
    "memlock": [
        (
            plain,
            {"mesh": a_mesh(b_from_a={"memlock": "64"}, b_from_b={"memlock": "64"})},
            "ulimit -l 64 in a session",
        ),
        # Enough for hosts without InfiniBand.
        (
            plain,
            {
                "mesh": a_mesh(
                    memlock="8192", b_from_a={"memlock": "8192"}, b_from_b={"memlock": "8192"}
                ),
                **fabric(a_port()),
            },
            "ulimit -l 8192",
        ),
    ],
    "clock-step": [
        (
            plain,
            {"mesh": a_mesh(b_from_a={"clock_ahead_s": [4.8, 5.1]})},
            "5.0 s ahead of the others",
        ),
        (
            plain,
            {"mesh": a_mesh(b_from_a={"clock_ahead_s": [-61.3, -61.0]})},
            "61.1 s behind the others",
        ),
        (
            plain,
            {"answer": an_answer(clock={"synchronized": False, "source": "chronyc", "error": ""})},
            "warn: not synchronized",
        ),
    ],
    "docker-config": [
        (
            plain,
            {"answer": an_answer(docker_config_error="/etc/docker/daemon.json: the file is empty")},
            "daemon.json: the file is empty",
        ),
        (
            plain,
            {
                "answer": an_answer(
                    docker_config_warnings=["/etc/docker/daemon.json: mtu: 1 is not from 68"]
                )
            },
            "warn: /etc/docker/daemon.json: mtu: 1",
        ),
    ],
    "free-space": [
        (plain, free(free_bytes=100 << 20), "/: 100 MiB, 900000 files"),
        (plain, free(inodes_free=12), "12 files"),
        (
            plain,
            free("/data1/share", free_bytes=None, error="no end after 10 s"),
            "/data1/share: no end after 10 s",
        ),
    ],
    "metrics-up": [
        (plain, monitoring(missing=["b"]), "b is not read"),
        (plain, monitoring(strange=["old"]), "old is read, and is not in the inventory"),
        (plain, monitoring(error="timed out"), "timed out"),
    ],
    "metrics-fresh": [
        (plain, monitoring(stale=["b: gpu.prom is 400 s old"]), "gpu.prom is 400 s old"),
    ],
    "metrics-closed": [
        (
            plain,
            monitoring(open=["a answers on port 9100 without a certificate"]),
            "answers on port",
        ),
    ],
    "metrics-job": [
        (
            plain,
            monitoring(jobs=["job 7 has 2 GPUs, and metrics of 1"]),
            "job 7 has 2 GPUs, and metrics of 1",
        ),
    ],
    "alerts-path": [
        (plain, monitoring(alerts="Alertmanager does not answer: x"), "does not answer"),
        (plain, monitoring(receivers=["nobody"]), "warn: monitoring_receivers is empty"),
    ],
    "certificate-end": [
        (plain, ending(29), "warn: /etc/trainyard/tls/hub.pem: ends on 2027-01-02"),
        (plain, ending(0), "warn: /etc/trainyard/tls/hub.pem: ends on"),
        (plain, ending(-1), "/etc/trainyard/tls/hub.pem: ended on 2027-01-02"),
        (
            plain,
            ending(None, ends=None, error="unable to load certificate"),
            "/etc/trainyard/tls/hub.pem: unable to load certificate",
        ),
    ],
    "scheduler-answers": [
        (plain, scheduled(cause="auth_key", fix="copy the key"), "auth_key"),
        (
            plain,
            scheduled(
                a_node("b"), __verify_failed={"scheduler-answers": "scontrol: line 3 is incomplete"}
            ),
            "line 3 is incomplete",
        ),
    ],
    "scheduler-quota": [
        (
            plain,
            scheduled(
                a_node("b"),
                cluster_scheduler_host="b",
                slurm_accounts_difference={
                    "changes": [
                        {
                            "what": "account vision",
                            "action": "change",
                            "before": {"gpus": 4},
                            "after": {"gpus": 8},
                        }
                    ]
                },
            ),
            "account vision: {'gpus': 4}",
        ),
        (
            plain,
            scheduled(
                a_node("b"),
                cluster_scheduler_host="b",
                slurm_accounts_difference={
                    "changes": [
                        {
                            "what": "member vision anna",
                            "action": "add",
                            "before": {},
                            "after": {"gpus": 2},
                        }
                    ]
                },
            ),
            "member vision anna: not in Slurm",
        ),
        (
            plain,
            scheduled(
                a_node("b"),
                cluster_scheduler_host="b",
                __verify_failed={"scheduler-quota": "the database does not answer"},
            ),
            "the database does not answer",
        ),
    ],
    "unit-as-planned": [
        (plain, unplanned(), "x.conf sets Restart"),
        (plain, unplanned(warn=True, by_hand=True), "warn: x.conf sets Restart"),
    ],
    "foreign-access": [
        (
            plain,
            {
                "training_sshd_foreign": [
                    {"what": "ssh", "asked": "our keys", "found": "SHA256:abc (comment 'stranger')"}
                ]
            },
            "SHA256:abc (comment 'stranger')",
        )
    ],
    "container-share": [
        (plain, in_session("share", "error", value="Read-only file system"), "Read-only"),
        (plain, in_session("share", "device", value=8), "differs from the folder of the host"),
    ],
    "container-limits": [
        (plain, in_session("limits", "nofile", value=[64, 64]), "nofile 64"),
        (plain, in_session("group", "killed", value=1), "warn: out of memory"),
    ],
    "session-environment": [
        (plain, in_session("environment", "missing", value=["A"]), "lacks variable A"),
        (
            plain,
            in_session("python", "packages", value={"debugpy": ["1.0", "container"]}),
            "warn: Python finds packages",
        ),
    ],
    "leftover-processes": [
        (
            plain,
            in_session(
                "processes", value=[{"pid": 7, "job": "old", "age_s": 90, "command": "python3"}]
            ),
            "warn: job old has ended, but its processes run: PID 7 (python3, 1 min)",
        )
    ],
    "scheduler-ports": [
        (
            plain,
            scheduled(a_node("b"), job_container_firewall=False),
            "warn: it is off, and everybody who reaches this host",
        ),
        (plain, scheduled(a_node("b"), job_container_enabled=False), "warn: it is off"),
        (plain, guarded(fault="not loaded"), "not loaded"),
        (plain, guarded(fault="chain people is changed", active=False), "chain people is changed"),
        (plain, guarded(active=False), "its unit is not active"),
        (plain, guarded(enabled=False), "its unit does not start with the host"),
    ],
    "scheduler-gpus": [
        (
            plain,
            listing([0, 1], "it has the device numbers 0, 2"),
            "it has the device numbers 0, 2",
        ),
        (plain, listing([0, 1, 2, 3, 4], planned=[0, 1, 2, 4, 3]), "0, 1, 2, 3, 4"),
        (plain, listing([], planned=[0]), "no device"),
    ],
    "scheduler-nodes": [
        (plain, scheduled(), "the scheduler has no node of this name"),
        (plain, scheduled(a_node("b", ["down", "not_responding"])), "down, not_responding"),
        (
            plain,
            scheduled(
                a_node("b", ["idle", "drain"], reason="Kill task failed", reason_user="slurm")
            ),
            "idle, drain: Kill task failed",
        ),
        (
            plain,
            scheduled(a_node("b", ["down", "drain"], reason="maintenance", reason_user="root")),
            "down, drain: maintenance",
        ),
        (
            plain,
            scheduled(a_node("b", ["mixed", "drain"], reason="new disk", reason_user="root")),
            "warn: mixed, drain: new disk",
        ),
        (
            plain,
            scheduled(
                a_node(
                    "b", ["idle", "drain"], reason="trainyard: verify: gpu-xid", reason_user="root"
                )
            ),
            "warn: idle, drain: trainyard: verify",
        ),
        (
            plain,
            scheduled(a_node("b", ["idle", "maintenance", "reserved"])),
            "warn: idle, maintenance, reserved",
        ),
        # A burn-in that was killed. During one it is in order.
        (plain, scheduled(BURNING), "warn: idle, drain: trainyard: burn-in"),
        (gpu_host, scheduled(a_node("b", models=[("h100", 7)])), "7 GPUs"),
        (
            plain,
            dict(scheduled(a_node("b", models=[("ascend910b1", 7)])), facts={"npus": 8}),
            "7 GPUs",
        ),
    ],
    "ib-ports": [
        (plain, fabric(a_port(state="init")), "mlx5_0 port 1: init, link_up"),
        (
            plain,
            fabric(a_port(state="down", physical_state="polling")),
            "mlx5_0 port 1: down, polling",
        ),
        (plain, fabric(a_port(rate_gb_s=100.0)), "100.0 Gb/s"),
    ],
    "ib-flaps": [
        (
            plain,
            dict(fabric(a_port()), answer=looked("ib-flaps", "mlx5_0/1 went down 3 times")),
            "mlx5_0/1 went down 3 times",
        ),
    ],
    "ib-counters": [
        (
            plain,
            dict(fabric(a_port()), answer=looked("ib-counters", "symbol_error of mlx5_0/1")),
            "symbol_error of mlx5_0/1",
        ),
        (
            plain,
            dict(fabric(a_port()), answer=looked("ib-counters", "pfc_storms of mlx5_0/1", False)),
            "warn: pfc_storms of mlx5_0/1",
        ),
    ],
    "cpu-governor": [
        (
            plain,
            {"facts": {"governors": {"powersave": 64}}},
            "warn: governor powersave of 64 CPUs",
        ),
    ],
    "hugepages": [
        (
            plain,
            {"cluster_hugepages": {"2M": 1024}, "facts": {"hugepages": {"2M": 512, "1G": 0}}},
            "512 pages",
        ),
    ],
    "gpudirect": [
        (
            gpu_host,
            fabric(a_port(), gpudirect=dict(DIRECT, peer_memory=False)),
            "warn: nvidia-peermem is not loaded",
        ),
        (
            gpu_host,
            fabric(a_port(), gpudirect=dict(DIRECT, redirected=["0000:15:00.0"])),
            "warn: Access Control Services",
        ),
    ],
}


def with_rules() -> Iterator:
    """Each case of FIRING, judged by all rules if it is the first of its check that changes these
    variables, else by the rule of its check.
    """
    judged = set()
    for check_id, cases in FIRING.items():
        for case in cases:
            kind, changes, _found = case
            shape = check_id, kind, frozenset(changes)
            yield check_id, *case, check_id if shape in judged else None
            judged.add(shape)


@pytest.mark.parametrize("check_id, kind, changes, found, only", list(with_rules()))
def test_each_defect_fails_exactly_its_check(check_id, kind, changes, found, only):
    """On the second of two hosts, the first of which is in order."""
    other = (
        fabric(a_port())
        if "__verify_infiniband" in changes
        else scheduled(a_node("b"))
        if "__verify_scheduler" in changes
        else cards(address="10.0.0.11")
        if "network_cards" in changes.get("facts", {})
        else {}
    )
    if "__verify_scheduler" in other and kind is gpu_host:
        other["__verify_scheduler"]["nodes"][0]["gpus"] = [{"model": "h100", "total": 8, "used": 0}]
    findings = verdicts(
        kind("a", "10.0.0.11", **other)
        if kind is plain and "training_container_gpus" not in changes
        else gpu_host(
            "a", "10.0.0.11", **(fabric(a_port()) if "__verify_infiniband" in changes else {})
        ),
        kind("b", "10.0.0.12", **changes),
        only=only,
    )
    entries = bad(findings)
    assert {entry["id"] for entry in entries} == {check_id}, entries
    verdict, expected = (
        ("warn", found[len("warn: ") :]) if found.startswith("warn: ") else ("fail", found)
    )
    assert {entry["verdict"] for entry in entries} == {verdict} and all(
        "b" in entry["host"] for entry in entries
    )
    assert (
        expected in entries[-1]["found"]
        and entries[-1]["expected"]
        and entries[-1]["source"]
        and entries[-1]["fix"]
    )


def test_a_node_of_slurm_is_rebooted_by_slurm():
    """It waits for the jobs. Without a scheduler, and where no reboot helps, there is nothing to add."""
    added = ". To reboot: scontrol reboot ASAP b"

    def fix(answer, **changes):
        node = gpu_host("b", "10.0.0.12", answer=answer, **changes)
        (entry,) = [each for each in bad(verdicts(gpu_host(), node, only="gpu-xid"))]
        return entry["fix"]

    queue = scheduled(a_node("b"))
    assert fix(xid(), **queue) == fix(xid()) + added and "reboot it" in fix(xid())
    assert fix(xid(999, ""), **queue) == fix(xid(999, "")) and added not in fix(xid(999, ""))


# In order, though it may look otherwise.
SILENT = [
    (plain, scheduled(BURNING, burn_in_checks=[])),
    (
        gpu_host,
        a_gpu(0, throttle_reasons=["gpu_idle", "sw_power_cap", "applications_clocks_setting"]),
    ),
    (gpu_host, a_gpu(0, throttle_reasons=None)),
    (gpu_host, a_gpu(0, pcie_width=None)),
    (gpu_host, linked_gpus(*[25.0] * 12)),
    (plain, cards()),
    (gpu_host, a_gpu(0, pcie_generation=1, pcie_generation_max=5)),
    (gpu_host, a_gpu(0, ecc_errors=ecc(), persistence_mode=None)),
    (
        gpu_host,
        {
            "training_container_gpus": ["0", GPUS[1]["uuid"]],
            "__verify_container_gpus": a_smi(GPUS[:2]),
        },
    ),
    (gpu_host, {"upgrade_asked": {}, "nvidia_driver_asked": ""}),
    (plain, {"mesh": a_mesh(b_from_a={"clock_ahead_s": [-0.5, 3.0]})}),
    (plain, {"mesh": a_mesh(b_from_a={"clock_ahead_s": [0.2, 1.1]})}),
    (plain, {"mesh": a_mesh(b_from_a={"clock_ahead_s": [4.8, 5.1]}), "verify_clock_step": "10"}),
    # Its clock is the machine's.
    (
        plain,
        {
            "facts": {"container": True},
            "answer": an_answer(
                clock={"synchronized": False, "source": "timedatectl", "error": ""}
            ),
        },
    ),
    (
        plain,
        {"answer": an_answer(clock={"synchronized": None, "source": "", "error": "nothing tells"})},
    ),
    (plain, {**free(free_bytes=100 << 20), "verify_free_mib": "50"}),
    # Configured in this run.
    (
        plain,
        {
            key: value
            for key, value in scheduled(
                a_node("b"),
                cluster_scheduler_host="b",
                slurm_accounts_result={"changes": [{"what": "account vision"}]},
            ).items()
            if key != "slurm_accounts_difference"
        },
    ),
    # The device nodes of a lab, without hardware.
    (plain, scheduled(a_node("b", ["mixed"], models=[("h100", 2)]))),
    # A second port that no host has a cable in.
    (plain, fabric(a_port(), a_port("mlx5_1", state="down", physical_state="polling"))),
    (
        plain,
        {
            "training_image_requires": {
                "frameworks": [],
                "controllers": [],
                "tensor_operations": [],
            },
            "__verify_horovod": {"skipped": True},
        },
    ),
]


def test_gpus_of_virtual_machines_that_agree_on_their_lanes():
    """It is told, and drains nothing."""
    findings = verdicts(gpu_host(**guests()), gpu_host("b", "10.0.0.12", **guests()))
    entries = bad(findings)
    assert {(entry["id"], entry["verdict"]) for entry in entries} == {("gpu-pcie-width", "warn")}
    assert len(entries) == 16 and all("hypervisor" in entry["fix"] for entry in entries)


def test_facts_of_an_earlier_release():
    """They have neither network cards nor NVLinks."""
    older = plain("b", "10.0.0.12")
    del older["cluster_host"]["network_cards"]
    findings = verdicts(plain(**cards(address="10.0.0.11")), older)
    assert bad(findings) == []
    assert {
        (entry["id"], entry["found"])
        for entry in findings
        if entry["host"] == "b" and entry["id"].startswith("nic-")
    } == {
        (check_id, "the facts of this host are of an earlier release")
        for check_id in ("nic-speed", "nic-pcie")
    }


def test_horovod_of_which_nothing_is_required():
    findings = verdicts(
        plain(),
        plain(
            "b",
            "10.0.0.12",
            training_image_requires={"frameworks": []},
            __verify_horovod={"skipped": True},
        ),
    )
    assert [
        (entry["host"], entry["verdict"]) for entry in findings if entry["id"] == "horovod-build"
    ] == [("a", "pass"), ("b", "skipped")]


@pytest.mark.parametrize("kind, changes", SILENT)
def test_harmless_differences_fail_no_check(kind, changes):
    other = (
        fabric(a_port())
        if "__verify_infiniband" in changes
        else scheduled(a_node("b"))
        if "__verify_scheduler" in changes
        else {}
    )
    assert bad(verdicts(kind("a", "10.0.0.11", **other), kind("b", "10.0.0.12", **changes))) == []


@pytest.mark.parametrize(
    "check_id, kind, changes, found",
    [
        (
            "gpu-xid",
            gpu_host,
            {
                "answer": an_answer(
                    gpu_errors=None,
                    kernel_log={"source": "", "error": "dmesg: Operation not permitted"},
                )
            },
            "Operation not permitted",
        ),
        ("gpu-ecc", gpu_host, {"__verify_gpus": a_smi([], gpu_count=8)}, "gpus-present"),
        (
            "stack-drift",
            gpu_host,
            {
                "__verify_stack": {"failed": True},
                "__verify_failed": {"stack-drift": "half an answer"},
            },
            "half an answer",
        ),
        (
            "free-space",
            plain,
            {"answer": {"failed": True}, "__verify_failed": {"free-space": "garbage of stat"}},
            "garbage of stat",
        ),
        (
            "memlock",
            plain,
            {"mesh": a_mesh(b_from_a={"cause": "timeout"}, b_from_b={"cause": "timeout"})},
            "no login to this host succeeded",
        ),
        *(
            (
                check_id,
                plain,
                {"answer": an_answer(session={"cause": "timeout", "evidence": "10 s", "view": {}})},
                "no session on this host could be read (timeout: 10 s)",
            )
            for check_id in (
                "container-share",
                "container-limits",
                "session-environment",
                "leftover-processes",
            )
        ),
        # Of a release of module host_health_info that reads no session.
        (
            "container-share",
            plain,
            {"answer": {key: value for key, value in an_answer().items() if key != "session"}},
            "the host was not checked",
        ),
        (
            "horovod-build",
            plain,
            {
                "__verify_horovod": {
                    "available": False,
                    "cause": "container_not_running",
                    "missing": ["frameworks.pytorch"],
                }
            },
            "container_not_running",
        ),
        (
            "horovod-build",
            plain,
            {"mesh": a_mesh(b_from_b={"cause": "timeout"}), "__verify_horovod": {"skipped": True}},
            "not checked, because the login through port 12345 fails (timeout)",
        ),
        ("ib-ports", plain, fabric(available=False, fix="load mlx5_ib"), "load mlx5_ib"),
        (
            "scheduler-answers",
            plain,
            scheduled(__verify_scheduler={"skipped": True}),
            "the scheduler was not asked",
        ),
        (
            "scheduler-nodes",
            plain,
            scheduled(cause="controller_down"),
            "Check scheduler-answers gives the reason",
        ),
        (
            "scheduler-quota",
            plain,
            scheduled(
                a_node("b"), cluster_scheduler_host="b", slurm_accounts_difference={"skipped": True}
            ),
            "the accounts were not read",
        ),
        (
            "scheduler-quota",
            plain,
            {
                key: value
                for key, value in scheduled(
                    a_node("b"), cluster_scheduler_host="b", slurm_accounts_result={"skipped": True}
                ).items()
                if key != "slurm_accounts_difference"
            },
            "the accounts were not read",
        ),
    ],
)
def test_what_cannot_be_told_is_not_passed(check_id, kind, changes, found):
    findings = verdicts(kind("a", "10.0.0.11"), kind("b", "10.0.0.12", **changes))
    (entry,) = [entry for entry in findings if (entry["id"], entry["host"]) == (check_id, "b")]
    assert entry["verdict"] == "not_evaluated" and found in entry["found"]


def test_check_mode_on_bare_hosts_judges_what_is_there():
    bare = {
        "mesh": dict(a_mesh(), proofs={}, clocks={}),
        "__verify_horovod": {"available": False, "missing": ["frameworks.pytorch"]},
        "__verify_container_gpus": {
            "available": False,
            "cause": "engine_unavailable",
            "fix": "",
            "gpu_count": 0,
        },
    }
    findings = verdicts(
        gpu_host("a", "10.0.0.11", **copy.deepcopy(bare)),
        gpu_host("b", "10.0.0.12", **bare),
        check_mode=True,
    )
    assert bad(findings) == []
    assert {entry["id"] for entry in findings if entry["verdict"] == "not_evaluated"} == {
        "toolkit-container",
        "image-identical",
        "container-running",
        "unit-as-planned",
        "foreign-access",
        "container-share",
        "container-limits",
        "session-environment",
        "leftover-processes",
        "horovod-build",
        "ssh-mesh",
        "shared-storage",
        "clock-step",
    }


def test_a_host_that_fell_out_on_the_way():
    members = [
        {
            "name": name,
            "address": "",
            "fabric_address": "",
            "interface": "",
            "slots": 1,
            "reachable": True,
            "in_play": True,
        }
        for name in ("a", "b")
    ]
    (entry,) = bad(verdicts(plain(), members=members))
    assert (entry["id"], entry["host"], entry["verdict"]) == ("host-unreachable", "b", "fail")


def test_every_rule_is_tried_and_says_what_to_do():
    assert set(FIRING) == set(BY_ID) and len(BY_ID) == len(TABLE["host_rules"])


def test_every_row_is_complete_for_the_report_and_an_id_is_there_once():
    rows = TABLE["host_rules"] + TABLE["other_checks"]
    assert len({row["id"] for row in rows}) == len(rows) == len(published_checks(TABLE))
    assert [
        row["id"] for row in rows if not {"title", "checked", "required", "stage"} <= set(row)
    ] == []
    # What the hosts do not answer comes first, what the job measures last.
    ids = [check["id"] for check in published_checks(TABLE)]
    assert (
        ids[:3] == ["host-unreachable", "python-version", TABLE["host_rules"][0]["id"]]
        and ids[-1] == "nccl-transport"
    )


@pytest.mark.parametrize(
    "answer",
    [
        xid(ended=True),
        xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"),
        xid(106, "SMBPBI Test Message"),
    ],
)
def test_what_has_ended_or_is_nothing_is_no_finding(answer):
    assert bad(verdicts(gpu_host(), gpu_host("b", "10.0.0.12", answer=answer))) == []


def test_the_state_of_the_gpu_is_newer_than_the_log():
    gpus = [dict(gpu, bus_id="00000000:3B:00.0") for gpu in GPUS[:1]] + GPUS[1:]
    gpus[0] = judge_gpu(dict(gpus[0], recovery_action="None"))
    host = gpu_host(
        "b",
        "10.0.0.12",
        answer=xid(95, ""),
        __verify_gpus=a_smi(gpus, driver_version="580.95.05"),
    )
    (found,) = bad(verdicts(gpu_host(), host))
    assert (found["id"], found["verdict"]) == ("gpu-xid", "warn")


def test_a_site_may_overrule():
    broken = gpu_host("b", "10.0.0.12", **a_gpu(5, pcie_width=8))
    (entry,) = bad(verdicts(gpu_host(), broken, overrule={"gpu-pcie-width": "warn"}))
    assert entry["verdict"] == "warn"
    (entry,) = bad(
        verdicts(
            gpu_host(), gpu_host("b", "10.0.0.12", answer=xid(31)), overrule={"gpu-xid": "block"}
        )
    )
    assert entry["verdict"] == "fail"
    assert bad(verdicts(gpu_host(), broken, overrule={"gpu-pcie-width": "skip"})) == []


def test_the_certificates_of_monitoring_are_checked():
    # That role verify reads them is in tests/unit/roles/verify/test_certificates.py.
    assert set(CERTIFICATES) == {
        "/etc/trainyard/monitoring/tls/host.pem",
        "/etc/trainyard/monitoring/tls/client.pem",
    }
    for path in CERTIFICATES:
        [entry] = bad(verdicts(plain(**ending(-1, path=path))))
        assert entry["found"] == "%s: ended on 2027-01-02" % path
        assert entry["fix"] == "run monitoring.yml, which creates a new certificate"


def test_a_full_file_system_comes_first_and_marks_what_may_follow_from_it():
    full = finding(
        "free-space", "b", "fail", found="/tmp: 0 MiB, 900 files", fix="free space there"
    )
    horovod = finding("horovod-build", "b", "fail", found="lacks pytorch", fix="recreate it")
    other = finding("ssh-mesh", "a", "fail", found="refused", fix="run it")
    passed = finding("memlock", "b", "pass")
    told = with_causes([horovod, passed, other, full])
    assert [entry["id"] for entry in told] == ["free-space", "horovod-build", "memlock", "ssh-mesh"]
    assert told[0] == full and told[2:] == [passed, other]
    assert told[1]["fix"] == (
        "first free space below /tmp (check free-space), as this may follow from it; then recreate it"
    )
    # Little space is not none.
    little = dict(full, found="/tmp: 90 MiB, 900 files")
    assert with_causes([horovod, little]) == [horovod, little]


def test_a_host_that_has_failed_a_task_is_one_finding_with_its_cause():
    """Its record cluster.json is cut off, for example.

    It does not break the judgement of the others.
    """
    lost = dict(gpu_host("b", "10.0.0.12"))
    lost["__keys"] = {"failed": True, "msg": "/etc/trainyard/cluster.json is not a record"}
    hostvars = {"a": {}, "b": lost}
    entry = judge_hosts.ActionModule._lost("b", hostvars)
    assert (entry["id"], entry["host"], entry["verdict"]) == ("host-unreachable", "b", "fail")
    assert entry["found"].endswith(": /etc/trainyard/cluster.json is not a record")
    entry = judge_hosts.ActionModule._lost("a", hostvars)
    assert "in Ansible's output" in entry["fix"] and "above" not in entry["fix"]
