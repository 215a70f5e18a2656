# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of role job_container: packages, files, subordinate IDs, image store, problems, and the
way back.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan as plan_of
from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_plan import SCRIPTS

ROLE = Path(__file__).resolve().parents[4] / "roles" / "job_container"
ALICE, BOB = {"name": "alice", "uid": 2101}, {"name": "bob", "uid": 2102}
LINES = ["alice:340590592:65536", "bob:340656128:65536"]
ID = "9507cb1e499394de3e22c6874f3372f03c0e633c90908f48f29475da291dc90e"
CDI_FILE = plan_of.CDI_FILE
CONFIG, STORAGE_CONF, POLICY = (
    "/etc/trainyard/job/config.json",
    "/etc/containers/storage.conf",
    "/etc/containers/policy.json",
)
UNIT = "scratch-containers-images.mount"
MOUNTED = ["rw", "nosuid", "nodev"]
MEMBERS = [
    {"name": "a", "address": "10.0.0.1", "fabric_interface": "ib0"},
    {"name": "b", "address": "10.0.0.2", "fabric_interface": "ib0"},
]


def host(**changes):
    return dict(
        {
            "packages": {name: "4.3.1+ds1-8+deb12u1" for name in plan_of.PACKAGES + ("nftables",)},
            "is_container": False,
            "fuse": True,
            "masked": [],
            "storage_type": "ext4",
            "storage_project_quota": False,
            "storage_entries": [],
            "share_is_mount": False,
            "gpu_nodes": [],
            "control_nodes": [],
            "npu_nodes": [],
            "firewall": {"admin": True, "error": "", "fault": "", "active": True, "enabled": True},
            "npu_control_nodes": [],
            "npu_groups": [],
            "npu_driver_paths": [],
            "cdi": {},
            "cni": False,
            "cni_state": False,
            "nvidia_ctk": False,
            "images": [],
            "store_options": [],
            "store_is_clean": True,
            "docker_images": {},
            "files": {},
            "texts": {},
            "record": {"podman": False},
        },
        **changes,
    )


def wanted(**changes):
    return dict(
        {
            "users": [BOB, ALICE],
            "registries": ["registry.example:5000"],
            "storage": "/scratch/containers",
            "share": "/data1/share",
            "shm_size": "1g",
            "job_cgroups": False,
            "network": "10.0.0.0/24",
            "fabric": "",
            "members": MEMBERS,
            "gpus": None,
            "gpu_numbers": None,
            "free_gib": 20,
            "job_gib": "0",
            "images": [],
            "training_image": "",
            "environment": {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"},
            "firewall": {
                "enabled": True,
                "host": "a",
                "training": ["b", "a"],
                "login": ["b"],
                "open": ["12345", 0],
            },
            "programs": {
                "/usr/local/bin/trainyard-run": "#!/usr/bin/python3\n",
                plan_of.PORTS_PROGRAM: "load()\n",
            },
            "check": {},
            "former": ["/usr/local/lib/trainyard/slurm/_nft_table.py"],
        },
        **changes,
    )


def plan(found=None, **changes):
    return _job_container_plan.job_container_plan(found or host(), wanted(**changes))


def removal(found):
    return _job_container_plan.removal(found)


def content(path, found=None, **changes):
    return {entry["path"]: entry.get("content") for entry in plan(found, **changes)["files"]}.get(
        path
    )


def after(found, **changes):
    """The host after a run of the role."""
    told = plan(found, **changes)
    texts = {entry["path"]: entry["content"] for entry in told["files"] if "content" in entry}
    return dict(
        found,
        packages=host()["packages"],
        store_options=MOUNTED,
        texts=dict(found["texts"], **texts),
        record=json.loads(json.dumps(told["record"])),
        files={
            path: hashlib.sha256(text.encode("utf-8")).hexdigest() for path, text in texts.items()
        },
    )


NPUS = {
    "npu_nodes": list(range(8)),
    "npu_control_nodes": ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"],
    "npu_groups": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "npu_driver_paths": ["/usr/local/Ascend/driver", "/etc/hccn.conf"],
}


def test_npus():
    found = json.loads(content(CONFIG, host(**NPUS)))
    assert found["gpus"] == {
        "cdi": "",
        "nodes": "/dev/davinci%d",
        "control": NPUS["npu_control_nodes"],
        "variables": ["ASCEND_RT_VISIBLE_DEVICES"],
        "groups": NPUS["npu_groups"],
        "mounts": NPUS["npu_driver_paths"],
    }
    assert found["health"]["gpus"] == 8, "without a plan of Slurm, the device files"
    assert CDI_FILE not in {entry["path"] for entry in plan(host(**NPUS))["files"]}
    assert (
        json.loads(content(CONFIG, host(npu_driver_paths=NPUS["npu_driver_paths"])))["gpus"][
            "nodes"
        ]
        == "/dev/nvidia%d"
    ), "without a device file"


def test_the_list_of_devices_is_that_of_the_plan_of_slurm():
    told = json.loads(content(CONFIG, host(gpu_nodes=[0, 1, 2, 3, 4]), gpu_numbers=[0, 1, 2, 4, 3]))
    assert told["gpus"]["positions"] == [0, 1, 2, 4, 3]
    assert json.loads(content(CONFIG, host(**NPUS), gpu_numbers=[6, 7]))["gpus"]["positions"] == [
        6,
        7,
    ]
    assert "positions" not in json.loads(content(CONFIG, host(gpu_nodes=[0])))["gpus"]


def test_gpus_and_npus_in_one_host():
    (text,) = plan(host(gpu_nodes=[0], **NPUS))["problems"]
    assert "the host has GPUs and NPUs" in text


def test_ranges_do_not_depend_on_the_host_and_do_not_overlap():
    firsts = [
        plan_of.subordinate_range(uid) for uid in range(plan_of.FIRST_UID, plan_of.LAST_UID + 1)
    ]
    assert firsts[1101] == (1 << 28) + 1101 * 65536
    assert all(late - early == plan_of.RANGE for early, late in zip(firsts, firsts[1:]))
    assert firsts[-1] + plan_of.RANGE <= 1 << 32
    assert plan_of.subordinate_range(999) is plan_of.subordinate_range(60001) is None


def test_no_line_is_lost_and_the_ranges_of_the_rule_come_first():
    found = host(texts={"/etc/subuid": "alice:100000:65536\ncarol:165536:65536\n2102:5:6\n"})
    text = content("/etc/subuid", found)
    assert text.splitlines() == LINES + ["alice:100000:65536", "carol:165536:65536", "2102:5:6"]
    assert content("/etc/subuid", dict(found, texts={"/etc/subuid": text})) == text, (
        "a second run changes nothing"
    )


def test_the_range_of_a_former_user_goes_and_one_of_the_site_stays():
    found = after(host(texts={"/etc/subuid": LINES[1] + "\n", "/etc/subgid": ""}))
    assert found["record"]["lines"] == {"subuid": [LINES[0]], "subgid": LINES}
    assert content("/etc/subuid", found, users=[]) == LINES[1] + "\n"
    assert content("/etc/subgid", found, users=[BOB]) == LINES[1] + "\n"


@pytest.mark.parametrize(
    "line, overlap",
    [
        ("carol:340590000:1000", True),
        ("carol:340721663:1", True),
        ("carol:340721664:1", False),
        ("carol:340590591:1", False),
        ("alice:340590592:1", False),
    ],
)
def test_overlaps_with_ranges_of_others_are_problems(line, overlap):
    found = plan(host(texts={"/etc/subuid": line + "\n"}))["problems"]
    assert [line in text for text in found] == ([True] if overlap else [])


@pytest.mark.parametrize(
    "found",
    [
        {"packages": {"podman": "4.9.3+ds1-1ubuntu0.2"}, "gpu_nodes": [0]},
        {"packages": {"podman": "4.1.0"}, "gpu_nodes": [0]},
        # Facts of an earlier release, and a host whose package lists are empty.
        {"packages": {}, "gpu_nodes": [0]},
        {"packages": {}, "podman_candidate": "", "gpu_nodes": [0]},
    ],
)
def test_a_podman_that_is_new_enough(found):
    assert plan(host(**found))["problems"] == []


def test_the_local_disk_of_a_job():
    found = plan(host(storage_project_quota=True), job_gib="50")
    config = next(entry["content"] for entry in found["files"] if entry["path"] == CONFIG)
    assert found["problems"] == [] and json.loads(config)["job_bytes"] == 50 << 30


@pytest.mark.parametrize(
    "found, changes, said",
    [
        ({"packages": {"podman": "3.0.1+dfsg1-3"}}, {}, "podman 3.0.1+dfsg1-3 is too old"),
        # podman of Ubuntu 22.04 has no CDI and no log driver for jobs. One that is not installed
        # yet is refused before it is.
        *(
            (
                {"packages": {"podman": "3.4.4+ds1-1ubuntu1.22.04.3"}, "gpu_nodes": gpus},
                {},
                "podman 3.4.4+ds1-1ubuntu1.22.04.3 is too old to run jobs and to give them GPUs; expected 4.1",
            )
            for gpus in ([0, 1], [])
        ),
        (
            {"packages": {}, "podman_candidate": "4.0.3+ds1-1", "gpu_nodes": [0]},
            {},
            "Set slurm_packages_source to a repository with a newer podman for this distribution, or",
        ),
        ({"fuse": False, "is_container": True}, {}, "--device /dev/fuse"),
        ({"fuse": False}, {}, "kernel module fuse"),
        (
            {"is_container": True, "masked": ["/proc/acpi"]},
            {},
            "parts of /proc are masked (/proc/acpi)",
        ),
        ({"storage_type": "nfs4"}, {}, "is on nfs4; use a folder on a local disk"),
        ({"storage_type": "overlay"}, {}, "mount a disk or a volume"),
        (
            {},
            {"job_gib": "50"},
            "job_container_job_gib: '50' needs project quotas, and the file system of '/scratch/containers' is not mounted with prjquota",
        ),
        ({}, {"users": [{"name": "ldap", "uid": 1200300}]}, "user ldap has ID 1200300"),
        (
            {"storage_entries": ["images", "mine"]},
            {},
            "has a folder 'images' that this role did not create; use an empty folder",
        ),
        ({"gpu_nodes": [0], "nvidia_ctk": True}, {}, "set container_toolkit_cdi to true"),
        (
            {},
            {"images": ["site/tools:1"]},
            "job_container_images: the Docker engine of the host has no image 'site/tools:1'",
        ),
        (
            {},
            {"images": ["trainyard/training:1"], "training_image": "trainyard/training:1"},
            "run playbook training_environment",
        ),
    ],
)
def test_problems(found, changes, said):
    problems = plan(host(**found), **changes)["problems"]
    assert len(problems) == 1 and said in problems[0]


def test_a_usable_host_has_no_problem():
    known = host(
        storage_entries=["images"], record={"podman": False, "storage": ["/scratch/containers"]}
    )
    assert (
        plan(known)["problems"] == []
        and plan(host(storage_entries=["mine", "people"]))["problems"] == []
    )
    assert (
        plan(host(is_container=True))["problems"] == []
        and plan(host(packages={}, masked=["/proc/acpi"]))["problems"] == []
    )


def test_a_run_settles():
    first = plan(host(packages={}, record={}))
    assert (
        first["lacks_packages"] == [*plan_of.PACKAGES, "nftables"]
        and first["files_differ"]
        and first["record_differs"]
    )
    second = plan(after(host(packages={}, record={})))
    assert (
        second["lacks_packages"],
        second["files_differ"],
        second["record_differs"],
        second["images"],
        second["absent"],
    ) == ([], False, False, [], [])


CHECK = {"container": "trainyard-training", "program": "/data1/share/burn_in.py"}
RIGHT = "/etc/sudoers.d/trainyard-check"


def test_checks_of_idle_hosts_are_a_right_of_slurms_user():
    assert RIGHT not in {entry["path"] for entry in plan()["files"]}
    entry = next(entry for entry in plan(check=CHECK)["files"] if entry["path"] == RIGHT)
    right = "slurm ALL=(root) NOPASSWD: /usr/local/lib/trainyard/slurm/host-check"
    assert entry["content"].splitlines()[1:] == [right]
    # One fault in a file of sudo switches sudo off.
    assert entry["mode"] == "0440" and entry["validate"].startswith("/usr/sbin/visudo --check")
    assert json.loads(content(CONFIG, check=CHECK))["check"] == CHECK
    done = after(host(), check=CHECK)
    assert plan(done, check=CHECK)["files_differ"] is False
    assert plan(done)["absent"] == [RIGHT]
    # A host that runs no jobs any more.
    assert RIGHT in plan(done, check=CHECK, firewall=GUARDED)["absent"]
    assert RIGHT not in {entry["path"] for entry in plan(check=CHECK, firewall=GUARDED)["files"]}


OFF = {"enabled": False, "host": "a", "training": ["a", "b"], "login": ["b"], "open": [12345]}
GUARDED = dict(OFF, enabled=True, host="front")
BARE = {"admin": True, "error": "", "fault": "not loaded", "active": False, "enabled": False}


def test_the_firewall_of_a_training_host():
    members = [
        dict(MEMBERS[0], fabric_address="10.1.0.1"),
        dict(MEMBERS[1], address="", fabric_address=""),
    ]
    former = {plan_of.PORTS_FILE: json.dumps({"hosts": {"b": ["10.0.0.9"]}})}
    assert json.loads(content(plan_of.PORTS_FILE, host(texts=former), members=members)) == {
        "enabled": True,
        "host": "a",
        "hosts": {"a": ["10.0.0.1", "10.1.0.1"], "b": ["10.0.0.9"]},
        "training": ["a", "b"],
        "login": ["b"],
        "open": [12345],
    }
    assert json.loads(
        content(plan_of.PORTS_FILE, host(texts={plan_of.PORTS_FILE: "damaged"}), members=members)
    )["hosts"] == {"a": ["10.0.0.1", "10.1.0.1"]}
    unit = content(plan_of.FIREWALL_UNIT)
    assert (
        "\nExecStart=/usr/bin/python3 -E -s -B /usr/local/lib/trainyard/slurm/_job_ports.py\n"
        in unit
        and "Before=slurmd.service" in unit
    )
    assert (
        "\nExecStop=/usr/sbin/nft delete table inet trainyard_jobs\n" in unit
        and "ReloadPropagatedFrom=nftables.service" in unit
    )


def test_the_firewall_is_loaded_if_something_of_it_differs():
    done = after(host())
    assert plan(done)["firewall"] == {"load": False, "stop": False}
    for change in ({"active": False}, {"enabled": False}, {"fault": "chain people is changed"}):
        assert plan(dict(done, firewall=dict(host()["firewall"], **change)))["firewall"]["load"]
    assert plan(done, members=MEMBERS[:1])["firewall"]["load"], "a host has left"
    off = plan(done, firewall=OFF)
    assert (
        off["firewall"] == {"load": False, "stop": True}
        and off["absent"]
        == [plan_of.FIREWALL_UNIT, plan_of.FIREWALL_DROP_IN, plan_of.NFTABLES_FOLDER]
        and "nftables" not in off["packages"]
    )
    assert not json.loads(content(plan_of.PORTS_FILE, done, firewall=OFF))["enabled"], (
        "jobs have ports of their own without it, too"
    )
    assert plan(host(), firewall=OFF)["firewall"] == {"load": False, "stop": False}


def test_a_host_without_jobs_has_the_table_only():
    told = plan(host(packages={}, record={}, fuse=False, firewall=BARE), firewall=GUARDED)
    assert (
        told["packages"] == told["lacks_packages"] == ["nftables"]
        and told["problems"] == []
        and told["record"] == {}
        and not told["record_differs"]
    )
    assert {entry["path"] for entry in told["files"] if "content" in entry} == {
        plan_of.PORTS_FILE,
        plan_of.FIREWALL_UNIT,
        plan_of.FIREWALL_DROP_IN,
        plan_of.PORTS_PROGRAM,
    }
    assert told["firewall"] == {"load": True, "stop": False} and told["images"] == []
    done = after(host(record={}), firewall=GUARDED)
    assert drift(done, firewall=GUARDED) == []
    off = plan(done, firewall=dict(GUARDED, enabled=False))
    assert off["files"] == [] and set(off["absent"]) == {
        plan_of.PORTS_FILE,
        plan_of.FIREWALL_UNIT,
        plan_of.FIREWALL_DROP_IN,
        plan_of.NFTABLES_FOLDER,
        plan_of.PORTS_PROGRAM,
    }


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"admin": False},
            "job_container_firewall: it is true, and nftables cannot be used on this host (root of this host lacks the capability CAP_NET_ADMIN)",
        ),
        (
            {"error": "netlink: Operation not permitted"},
            "(nft: netlink: Operation not permitted); repair nftables, or set it to false",
        ),
    ],
)
def test_a_host_without_usable_nftables(changes, said):
    found = host(firewall=dict(BARE, **changes))
    assert [said in problem for problem in plan(found)["problems"]] == [True] and plan(
        found, firewall=OFF
    )["problems"] == []
    assert (
        "--cap-add NET_ADMIN"
        in plan(dict(found, is_container=True), firewall=GUARDED)["problems"][0]
    )


@pytest.mark.parametrize(
    "change, said",
    [
        ({"fault": "not loaded"}, "not loaded"),
        ({"fault": "chain people is changed"}, "chain people is changed"),
        ({"active": False}, "not active"),
    ],
)
def test_a_table_that_somebody_has_flushed_is_a_difference(change, said):
    done = dict(after(host()), firewall=dict(host()["firewall"], **change))
    assert ("firewall of jobs", "loaded", said) in drift(done)
    assert not [row for row in drift(after(host())) if row[0] == "firewall of jobs"]


def addresses(*members: dict, former: dict | None = None) -> dict:
    return plan_of.addresses_of_hosts(list(members), former or {})


def test_other_hosts_know_all_networks_of_a_host():
    """A table judges connections to the addresses that it knows."""
    one = dict(
        MEMBERS[0],
        fabric_address="10.1.0.1",
        addresses=["10.0.0.1", "10.1.0.1", "10.8.0.1", "fd00::1"],
    )
    two = dict(MEMBERS[1], addresses=["10.8.0.2"])
    assert addresses(one, two) == {
        "a": ["10.0.0.1", "10.1.0.1", "10.8.0.1", "fd00::1"],
        "b": ["10.0.0.2", "10.8.0.2"],
    }


def test_no_host_gets_an_address_of_another_one():
    """Root of a host may claim any address, and a bridge has the same one everywhere."""
    claim = dict(MEMBERS[0], addresses=["10.0.0.2", "172.17.0.1", "10.8.0.1"])
    assert addresses(claim, dict(MEMBERS[1], addresses=["172.17.0.1"])) == {
        "a": ["10.0.0.1", "10.8.0.1"],
        "b": ["10.0.0.2"],
    }


@pytest.mark.parametrize("address", ["10.0.0.2", ""])
def test_networks_of_a_host_that_is_down_stay_known(address):
    """Its address may come from the inventory meanwhile."""
    down = dict(MEMBERS[1], address=address, addresses=[], reachable=False)
    assert addresses(MEMBERS[0], down, former={"b": ["10.0.0.2", "10.8.0.2"]})["b"] == [
        "10.0.0.2",
        "10.8.0.2",
    ]


def test_the_store_is_mounted_without_rights_and_cleaned():
    assert plan()["store"] == {"unit": UNIT, "mount": "started", "clean": False}
    unit = content("/etc/systemd/system/" + UNIT)
    assert "\nWhere=/scratch/containers/images\nType=none\nOptions=bind,nosuid,nodev\n" in unit
    ours = after(host(record={}))
    assert plan(dict(ours, store_options=MOUNTED))["store"]["mount"] == ""
    assert plan(dict(ours, store_options=["rw", "nosuid"]))["store"]["mount"] == "restarted"
    assert plan(host(store_is_clean=False))["store"]["clean"]
    assert removal(ours)["units"] == {"/scratch/containers": UNIT}


def test_a_store_that_is_not_closed_is_drift():
    found = finished()
    assert [row[1] for row in drift(dict(found, store_options=[], store_is_clean=False))] == [
        "mounted with nosuid and nodev",
        "cleaned of set-user-ID bits and capabilities",
    ]


def test_a_mount_of_the_site_keeps_its_unit():
    found = host(store_options=["rw", "nosuid"])
    assert content("/etc/systemd/system/" + UNIT, found) is None
    (problem,) = plan(found)["problems"]
    assert "a mount at '/scratch/containers/images' lacks the options nosuid and nodev" in problem
    assert plan(host(store_options=MOUNTED))["problems"] == []


def test_pulls_are_limited_to_the_registries():
    policy = json.loads(content(POLICY))
    assert policy["default"] == [{"type": "reject"}]
    assert list(policy["transports"]["docker"]) == ["registry.example:5000"]
    assert policy["transports"]["docker-archive"] == {"": [{"type": "insecureAcceptAnything"}]}, (
        "the image of the host is loaded from an archive"
    )
    assert json.loads(content(POLICY, registries=[]))["transports"]["docker"] == {}


def test_users_have_stores_of_their_own():
    assert 'rootless_storage_path = "/scratch/containers/people/$UID"' in content(STORAGE_CONF)
    assert json.loads(content(CONFIG))["store"] == "/scratch/containers/images"


def test_podman_of_the_site_keeps_its_settings():
    site = '# ours\n[storage]\ngraphroot = "/big"\nrootless_storage_path = "/home/$USER"\n[storage.options]\nsize = ""\n'
    found = host(record={}, texts={STORAGE_CONF: site})
    assert content(STORAGE_CONF, found) == site.replace(
        "[storage]\n", '[storage]\nrootless_storage_path = "/scratch/containers/people/$UID"\n'
    ).replace('rootless_storage_path = "/home/$USER"\n', "")
    assert content("/etc/containers/containers.conf.d/trainyard.conf", found) is None, (
        "containers of root that systemd manages depend on the default"
    )
    assert (
        content("/etc/containers/containers.conf.d/trainyard.conf", host(record={}, packages={}))
        is not None
    )
    assert "mount_program" in content(STORAGE_CONF) and "mount_program" not in content(
        STORAGE_CONF, host(record={})
    )
    assert content(STORAGE_CONF, host(record={}, texts={STORAGE_CONF: "# empty\n"})).endswith(
        '[storage]\nrootless_storage_path = "/scratch/containers/people/$UID"\n'
    )


SETTING = 'rootless_storage_path = "/scratch/containers/people/$UID"'


@pytest.mark.parametrize(
    "head",
    ["[ storage ]", "[storage] # ours", '["storage"]', "['storage']", '  [\t"storage" ]'],
)
def test_the_table_of_the_site_in_another_spelling(head):
    """job-failures.md, section 7: a second table named storage is an error of TOML."""
    site = '%s\ngraphroot = "/big"\n"rootless_storage_path" = "/home"\n' % head
    found = content(STORAGE_CONF, host(record={}, texts={STORAGE_CONF: site}))
    assert found == '%s\n%s\ngraphroot = "/big"\n' % (head, SETTING)


def test_a_table_of_the_site_with_dotted_keys():
    site = '# ours\nstorage . driver = "overlay"\n[other]\nx = 1\n'
    found = content(STORAGE_CONF, host(record={}, texts={STORAGE_CONF: site}))
    assert found == "storage.%s\n%s" % (SETTING, site)
    site = "[other]\nstorage.driver = 1\n"
    found = content(STORAGE_CONF, host(record={}, texts={STORAGE_CONF: site}))
    assert found == "%s[storage]\n%s\n" % (site, SETTING)


@pytest.mark.parametrize(
    "before",
    [
        {},
        {
            STORAGE_CONF: "[storage]\n",
            POLICY: "{}\n",
            "/etc/subuid": "ops:100000:65536\n",
            "/etc/subgid": LINES[0] + "\n",
        },
    ],
)
def test_removal_brings_back_what_was_there(before):
    found = after(host(record={}, texts=before, packages={"podman": "5.4.2"} if before else {}))
    back = {entry["path"]: entry.get("content") for entry in removal(found)["files"]}
    assert {path: back.get(path) for path in (STORAGE_CONF, POLICY)} == {
        path: before.get(path) for path in (STORAGE_CONF, POLICY)
    }
    assert {path: back[path] for path in ("/etc/subuid", "/etc/subgid")} == {
        path: before.get(path, "") for path in ("/etc/subuid", "/etc/subgid")
    }
    assert removal(found)["storage"] == ["/scratch/containers"]


def test_removal_keeps_what_others_have_written_since():
    found = after(host(record={}, packages={}))
    found["texts"].update(
        {POLICY: "{}\n", "/etc/subuid": found["texts"]["/etc/subuid"] + "dave:1:2\n"}
    )
    back = {entry["path"]: entry.get("content") for entry in removal(found)["files"]}
    assert POLICY not in back and back["/etc/subuid"] == "dave:1:2\n"
    assert removal(host(record={})) == {"files": [], "storage": [], "units": {}, "absent": []}
    assert removal(found)["absent"] == [
        "/etc/cni/net.d/cni.lock",
        "/etc/cni/net.d",
        "/etc/cni",
        "/var/lib/cni/networks",
        "/var/lib/cni",
    ]
    assert removal(after(host(record={}, packages={}, cni=True)))["absent"] == [
        plan_of.OF_PODMAN[0],
        "/var/lib/cni/networks",
        "/var/lib/cni",
    ]
    assert removal(after(host(record={}, packages={}, cni_state=True)))["absent"] == list(
        plan_of.OF_PODMAN
    )
    assert removal(dict(found, record=dict(found["record"], podman=True)))["absent"] == []


def test_a_former_storage_folder_is_removed_too():
    found = after(after(host(record={})), storage="/other")
    assert removal(found)["storage"] == ["/other", "/scratch/containers"]


def test_devices_are_described_unless_nvidia_does_it():
    found = host(gpu_nodes=[0, 1], control_nodes=["/dev/nvidiactl"])
    devices = json.loads(content(plan_of.CDI_FILE, found))["devices"]
    paths = [
        [node["path"] for node in device["containerEdits"]["deviceNodes"]] for device in devices
    ]
    assert paths == [["/dev/nvidia0", "/dev/nvidiactl"], ["/dev/nvidia1", "/dev/nvidiactl"]]
    assert content(plan_of.CDI_FILE, host()) is None
    other = dict(
        found, cdi={plan_of.CDI_FILE: plan_of.CDI_KIND, "/etc/cdi/site.yaml": plan_of.CDI_KIND}
    )
    assert (
        content(plan_of.CDI_FILE, other) is None
        and plan(other)["absent"] == [plan_of.CDI_FILE]
        and plan(other)["files_differ"]
    )


def test_configuration_of_the_programs():
    config = json.loads(content(CONFIG, job_cgroups=True, gpus=2))
    assert (
        config["forward_signals"] is False
        and config["constrain_devices"] is True
        and config["health"] == {"gpus": 2, "share": "", "free_gib": {"/scratch/containers": 20}}
    )
    assert config["hosts"]["a"] == {"address": "10.0.0.1", "interface": "ib0"}
    assert json.loads(content(CONFIG, registries=["r:5000", "front:5000/a"]))["registries"] == [
        "front:5000/a",
        "r:5000",
    ]
    told = json.loads(content(CONFIG, host(gpu_nodes=[0, 1, 2], share_is_mount=True)))
    assert (
        told["forward_signals"] is True
        and told["health"]["gpus"] == 3
        and told["health"]["share"] == "/data1/share"
    )
    assert (
        content("/etc/trainyard/job/environment")
        == "GLOO_SOCKET_IFNAME=eth0\nNCCL_SOCKET_IFNAME==eth0\n"
    )


def test_a_member_that_does_not_answer_and_a_share_that_is_lost_stay_known():
    found = after(host(share_is_mount=True))
    silent = [
        MEMBERS[0],
        dict(MEMBERS[1], address="", fabric_interface=""),
        {"name": "c", "address": "", "fabric_interface": ""},
    ]
    config = json.loads(content(CONFIG, dict(found, share_is_mount=False), members=silent))
    assert (
        config["hosts"] == json.loads(found["texts"][CONFIG])["hosts"]
        and config["health"]["share"] == "/data1/share"
    )
    assert list(json.loads(content(CONFIG, found, members=MEMBERS[:1]))["hosts"]) == ["a"]
    assert (
        json.loads(content(CONFIG, host(texts={CONFIG: "damaged"})))["hosts"]["b"]["address"]
        == "10.0.0.2"
    )


@pytest.mark.parametrize(
    "images, loaded, docker, needed",
    [
        ([], {}, "sha256:" + ID, True),
        ([{"id": ID, "names": ["localhost/trainyard/training:1"]}], {}, "sha256:" + ID, False),
        ([{"id": ID, "names": ["docker.io/trainyard/training:1"]}], {}, ID, False),
        ([{"id": "0" * 64, "names": ["localhost/trainyard/training:1"]}], {}, ID, True),
        # Docker with the images of containerd.
        (
            [{"id": "0" * 64, "names": ["localhost/trainyard/training:1"]}],
            {"trainyard/training:1": "sha256:" + ID},
            "sha256:" + ID,
            False,
        ),
        (
            [{"id": "0" * 64, "names": ["localhost/trainyard/training:1"]}],
            {"trainyard/training:1": "sha256:" + "1" * 64},
            "sha256:" + ID,
            True,
        ),
        ([{"id": ID, "names": []}], {"trainyard/training:1": "sha256:" + ID}, "sha256:" + ID, True),
    ],
)
def test_the_store_is_filled_if_the_id_differs(images, loaded, docker, needed):
    found = host(
        images=images,
        docker_images={"trainyard/training:1": docker},
        record={"podman": False, "images": loaded},
    )
    told = plan(found, images=["trainyard/training:1"], training_image="trainyard/training:1")
    assert [(entry["name"], entry["id"]) for entry in told["images"]] == (
        [("trainyard/training:1", docker)] if needed else []
    )
    assert told["problems"] == []


def test_a_name_without_a_tag_is_found():
    found = host(
        images=[{"id": ID, "names": ["localhost/tools:latest"]}], docker_images={"tools": ID}
    )
    assert plan(found, images=["tools"])["images"] == []


def test_the_name_of_an_image_does_not_reach_the_shell():
    told = plan(host(docker_images={"a;reboot": ID}), images=["a;reboot"])["images"]
    assert "save 'a;reboot'" in told[0]["command"]
    # Closed while podman fills it, and opened by clean-store at the end.
    assert "umask 077 && docker save" in told[0]["command"]
    assert told[0]["command"].endswith(
        " && /usr/local/lib/trainyard/job/clean-store /scratch/containers/images"
    )


IMAGE = {"images": ["trainyard/training:1"], "training_image": "trainyard/training:1"}


def finished(**changes):
    """A host on which the role has run, with the training image."""
    return after(
        host(
            record={},
            packages={},
            docker_images={"trainyard/training:1": "sha256:" + ID},
            images=[{"id": ID, "names": ["localhost/trainyard/training:1"]}],
            **changes,
        ),
        **IMAGE,
    )


def drift(found, **changes):
    rows = _job_container_plan.job_container_drift(found, wanted(**dict(IMAGE, **changes)))
    return [(row["what"], row["asked"], row["found"]) for row in rows]


def rewritten(found, path, text):
    """The host after somebody has changed a file, or removed it with C(text) None."""
    found["texts"].pop(path, None)
    found["files"].pop(path, None)
    if text is not None:
        found["texts"][path] = text
        found["files"][path] = hashlib.sha256(text.encode("utf-8")).hexdigest()


def test_a_finished_host_has_not_drifted():
    assert drift(finished()) == [] and drift(finished(gpu_nodes=[0])) == []
    assert drift(host(record={})) == [
        (
            "job containers",
            "a host that can run them",
            "the training image 'trainyard/training:1' is not on the host; run playbook training_environment",
        ),
        ("job containers", "configured", "not configured"),
    ]


@pytest.mark.parametrize(
    "change, rows",
    [
        (
            lambda found: found["images"].clear(),
            [("image trainyard/training:1", "ID 9507cb1e4993", "not in the image store")],
        ),
        (
            lambda found: found["images"][0].update(id="0" * 64),
            [("image trainyard/training:1", "ID 9507cb1e4993", "ID 000000000000")],
        ),
        (
            lambda found: found["docker_images"].clear(),
            [
                (
                    "job containers",
                    "a host that can run them",
                    "the training image 'trainyard/training:1' is not on the host; run playbook training_environment",
                )
            ],
        ),
        (
            lambda found: rewritten(found, "/etc/subuid", LINES[0] + "\n"),
            [("/etc/subuid", LINES[1], "no range of bob")],
        ),
        (
            lambda found: rewritten(
                found, "/etc/subgid", "alice:100000:65536\n" + "\n".join(LINES)
            ),
            [("/etc/subgid", LINES[0] + " first", "alice:100000:65536")],
        ),
        # A run of the role would put it first again.
        (
            lambda found: rewritten(found, "/etc/subuid", "\n".join(["ops:1:2"] + LINES)),
            [("/etc/subuid", "as planned", "changed")],
        ),
        (
            lambda found: rewritten(found, "/etc/subuid", None),
            [
                ("/etc/subuid", LINES[0], "no range of alice"),
                ("/etc/subuid", LINES[1], "no range of bob"),
            ],
        ),
        (
            lambda found: rewritten(
                found, "/etc/trainyard/job/containers.conf", '[containers]\ncgroups = "enabled"\n'
            ),
            [("/etc/trainyard/job/containers.conf", "as planned", "changed")],
        ),
        (lambda found: rewritten(found, POLICY, None), [(POLICY, "as planned", "missing")]),
        (
            lambda found: found["packages"].pop("crun"),
            [("job containers", "installed", "no packages crun")],
        ),
        (
            lambda found: found["cdi"].update({plan_of.CDI_FILE: plan_of.CDI_KIND}),
            [
                (
                    plan_of.CDI_FILE,
                    "absent, because another specification describes the GPUs",
                    "present",
                )
            ],
        ),
        (
            lambda found: found.update(fuse=False),
            [
                (
                    "job containers",
                    "a host that can run them",
                    "/dev/fuse is missing, which fuse-overlayfs needs; load the kernel module fuse",
                )
            ],
        ),
        (
            lambda found: found["record"].update(cni=True, written={}),
            [("job containers", "the record of the role as planned", "changed")],
        ),
    ],
)
def test_what_was_changed_by_hand_is_drift(change, rows):
    found = finished()
    change(found)
    assert drift(found) == rows


def test_people_who_come_and_go_are_drift():
    found = finished()
    assert [
        row
        for row in drift(found, users=[ALICE, BOB, {"name": "carol", "uid": 2103}])
        if "sub" in row[0]
    ] == [
        ("/etc/subuid", "carol:340721664:65536", "no range of carol"),
        ("/etc/subgid", "carol:340721664:65536", "no range of carol"),
    ]
    assert drift(found, users=[ALICE]) == [
        ("/etc/subuid", "no range of bob", LINES[1]),
        ("/etc/subgid", "no range of bob", LINES[1]),
    ]


def test_without_a_plan_of_slurm_its_decisions_stay():
    """In playbook upgrade, or if a host does not answer.

    Before ansible-core 2.19 none and numbers in variables are texts.
    """
    known = after(finished(gpu_nodes=[0, 1]), job_cgroups=True, gpus="4", free_gib="20", **IMAGE)
    assert json.loads(known["texts"][CONFIG])["health"] == {
        "gpus": 4,
        "share": "",
        "free_gib": {"/scratch/containers": 20},
    }
    listed = after(finished(gpu_nodes=[0, 1]), gpu_numbers=["1", 0], **IMAGE)
    assert json.loads(listed["texts"][CONFIG])["gpus"]["positions"] == [1, 0]
    for unknown in (None, ""):
        assert drift(listed, gpu_numbers=unknown) == []
        assert drift(known, job_cgroups=unknown, gpus=unknown) == []
        # It was of NPUs.
        other = json.loads(content(CONFIG, dict(listed, **NPUS, gpu_nodes=[]), gpu_numbers=unknown))
        assert "positions" not in other["gpus"]
        config = json.loads(content(CONFIG, host(gpu_nodes=[0]), job_cgroups=unknown, gpus=unknown))
        assert (
            config["constrain_devices"],
            config["forward_signals"],
            config["health"]["gpus"],
        ) == (False, True, 1)
    assert json.loads(content(CONFIG, known, job_cgroups=False, gpus=2))["health"]["gpus"] == 2


def test_everything_is_written_once_and_below_a_folder_of_the_plan():
    told = plan(host(record={}, packages={}, gpu_nodes=[0]))["files"]
    paths = [entry["path"] for entry in told]
    assert len(paths) == len(set(paths)) and all(
        re.match("/(etc|usr/local|var/lib/trainyard|scratch)", path) for path in paths
    )
    folders = {entry["path"] for entry in told if entry.get("state") == "directory"}
    assert {path.rpartition("/")[0] for path in paths if path not in folders} - folders == {
        "/etc",
        "/etc/systemd/system",
        "/usr/local/bin",
    }


def test_the_role_asks_for_what_the_plan_compares_and_removes_what_it_writes():
    variables = yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8"))
    own = set(re.findall(r"'(/etc/[^']+)'", variables["__job_container_own"])) | {
        variables["__job_container_cdi"],
        variables["__job_container_firewall_unit"],
    }
    programs = set(
        re.findall(r"__job_container_library ~ '([^']+)'", variables["__job_container_programs"])
    )
    assert (
        plan_of.PORTS_PROGRAM in {plan_of.LIBRARY + path for path in programs}
        and "__job_container_firewall_unit" in variables["__job_container_own"]
    )
    written = {
        entry["path"]
        for entry in plan(host(record={}, packages={}, gpu_nodes=[0]))["files"]
        if "content" in entry
    } - {plan_of.PORTS_PROGRAM}
    # The module computes the unit's path from the store, and the removal has its name.
    written.remove("/etc/systemd/system/" + UNIT)
    assert (
        written - own - set(variables["__job_container_texts"])
        == {variables["__job_container_run"]}
        == {"/usr/local/bin/trainyard-run"}
    )
    assert variables["__job_container_cdi"] == plan_of.CDI_FILE and variables[
        "__job_container_packages"
    ] == [*plan_of.PACKAGES, "nftables"]
    assert {plan_of.LIBRARY + path for path in programs} >= set(SCRIPTS.values()) | {
        plan_of.LAUNCHER
    }
