"""Hosts that exist only as answers of modules: what a run of site.yml costs the controller, for any
number of hosts and without a lab.

An answer has the shape that the module documents. It follows from the module's arguments, from the
host's number, and from what earlier module runs have written (files and the container), so that a
second run finds everything as requested. Connection plugin C(stand_in) asks for it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

NETWORK = "10.64.0.0/16"
PREFIX = "node-"
IMAGE_ID = "sha256:" + "1" * 64
# Modules that are answered: those of a second run, and those with which the first one writes files
# and makes the container.
MODULES = (
    "ascend_info",
    "npu_smi_info",
    "docker_engine_info",
    "horovod_build_info",
    "host_health_info",
    "host_info",
    "image_info",
    "managed_files",
    "shared_accounts",
    "shared_folders",
    "shared_storage_proof",
    "ssh_mesh_info",
    "ssh_mesh_keys",
    "training_container_info",
    "trusted_certificates",
    "docker_container",
    "systemd_service",
)
LAYERS = ["sha256:" + "2" * 64, "sha256:" + "3" * 64]


#: What a session in a container finds if all is in order: module host_health_info.
_GIB = 1 << 30
_VIEW = {
    "share": {"device": 50, "inode": 2, "error": ""},
    "shm_bytes": _GIB,
    "limits": {"nofile": [20000, 20000], "stack": [64 << 20, 64 << 20], "nproc": [900, 900]},
    "first_limits": {"nofile": [20000, 20000], "stack": [64 << 20, 64 << 20], "nproc": [900, 900]},
    "group": {"memory": None, "cpus": None, "pids": None, "affinity": 8, "killed": 0},
    "environment": {"missing": [], "changed": [], "added": {}},
    "python": {
        "version": "3.11.2",
        "error": "",
        "programs": {"python3": ["/usr/bin/python3.11", "image"]},
        "packages": {"numpy": ["2.4.6", "image"], "torch": ["2.13.0", "image"]},
        "shadows": [],
        "startup": [],
    },
    "processes": [],
}
SESSION = {
    "cause": "",
    "evidence": "",
    "jobs": [],
    "share": {"device": 50, "inode": 2},
    "settings": {
        "shm_bytes": _GIB,
        "ulimits": {"stack": [64 << 20, 64 << 20], "memlock": [-1, -1]},
        "limited": [],
        "cpus": 8,
    },
    "view": _VIEW,
}


def name_of(number):
    return "%s%04d" % (PREFIX, number)


def number_of(name):
    return int(name[len(PREFIX) :])


def address_of(number):
    return "10.64.%d.%d" % (number // 250, number % 250 + 1)


def name_at(address):
    third, fourth = (int(part) for part in address.split(".")[2:])
    return name_of(third * 250 + fourth - 1)


def container_id_of(name):
    return hashlib.sha256(name.encode("utf-8")).hexdigest()


class Unanswered(Exception):
    """A module or an argument for which there is no answer."""


class StandInHost:
    """One host.

    C(folder) keeps what modules have written to it, C(recipe) is the recipe of the training image
    that all hosts have.
    """

    def __init__(self, name, folder):
        self.name, self.number = name, number_of(name)
        self.address = address_of(self.number)
        self.path = Path(folder) / (name + ".json")
        self.recipe = (Path(folder) / "recipe").read_text(encoding="utf-8")
        # Only a test of NPUs writes it: the number of each host's, and what differs from a host in
        # order, by module.
        npus = Path(folder) / "npus.json"
        self.npus = (
            json.loads(npus.read_text(encoding="utf-8")).get(name, {}) if npus.exists() else {}
        )
        self.written = (
            json.loads(self.path.read_text(encoding="utf-8"))
            if self.path.exists()
            else {"files": {}, "settings": ""}
        )

    def keep(self):
        self.path.write_text(json.dumps(self.written), encoding="utf-8")

    def answer(self, module, arguments):
        """The result of a module run, as the module prints it."""
        name = module.rpartition(".")[2]
        if name not in MODULES:
            raise Unanswered("%s: no answer for module %s" % (self.name, module))
        return dict({"changed": False}, **getattr(self, name)(SimpleNamespace(**arguments)))

    # --- trainyard.gpu, by module ---------------------------------------------------------------------------------------------

    def host_info(self, asked):
        names = getattr(asked, "names", []) + (
            [self.name] if getattr(asked, "own_name", False) else []
        )
        return {
            "os": {"id": "debian", "version_id": "12", "codename": "bookworm", "id_like": []},
            "python_version": "3.11.2",
            "architecture": "x86_64",
            "kernel": "6.1.0-28-amd64",
            "cpus": 64,
            "memory_mib": 524288,
            "hugepages": {"2M": 0},
            "governors": {},
            "hostname": self.name,
            "default_interface": "eth0",
            "interfaces": [
                {
                    "name": "lo",
                    "mtu": 65536,
                    "up": True,
                    "speed_mbit_s": None,
                    "duplex": None,
                    "addresses": [
                        {"address": "127.0.0.1", "prefix": 8},
                        {"address": "::1", "prefix": 128},
                    ],
                },
                {
                    "name": "eth0",
                    "mtu": 1500,
                    "up": True,
                    "speed_mbit_s": 10000,
                    "duplex": "full",
                    "addresses": [{"address": self.address, "prefix": 16}],
                },
                {
                    "name": "docker0",
                    "mtu": 1500,
                    "up": False,
                    "speed_mbit_s": None,
                    "duplex": None,
                    "addresses": [{"address": "172.17.0.1", "prefix": 16}],
                },
            ],
            "rdma_ports": [],
            "rdma_beside_gpus": {},
            "nfs_transports": [],
            "network_cards": [],
            "virtual_machine": False,
            "own_name_in_hosts": [self.address],
            "own_name_repaired": False,
            "gpus": 0,
            "nvidia_devices": 0,
            "npus": self.npus.get("count", 0),
            "fabric_adapters": 0,
            "programs": {"exportfs": False, "mount.nfs4": False, "setquota": False},
            "boot_id": "b%07d" % self.number,
            "container": False,
            "begun": self.begun(getattr(asked, "begin_check", None)),
            "trusts": False,
            "engine": self.docker_engine_info(SimpleNamespace(**asked.engine))
            if getattr(asked, "engine", {})
            else {},
            "resolved": {
                name: {"addresses": [address_of(number_of(name))], "error": ""} for name in names
            },
            "connections": [
                dict({"source": ""}, **target, state="open", error="")
                for target in getattr(asked, "connect", [])
            ],
            "listeners": [],
            "docker_config_error": "",
            "docker_config_warnings": [],
            "disk_free_mib": {path: 500000 for path in getattr(asked, "paths", [])},
            "disk_devices": {path: 1 for path in getattr(asked, "paths", [])},
            "account_clashes": [],
            "cgroup": {"version": 2, "usable": True, "why": "", "cores": True, "swap": True},
            "candidates": {},
            "recorded_ids": {"users": {}, "groups": {}},
            # Without monitoring, as the inventories of these tests have none.
            "folders": {
                path: {}
                for path in getattr(asked, "folders", [])
                if not path.startswith("/etc/trainyard/monitoring")
            },
            "files": {
                path: {
                    "state": "file" if "." in path or "/site/" in path else "directory",
                    "checksum": self.files_of([path], 0)[path],
                    "mode": self.files_of([path], 1)[path],
                }
                for path in getattr(asked, "files", [])
                if self.written["files"].get(path)
            },
            "labelled_images": ["trainyard/training:%s" % self.recipe[:12]],
        }

    def ascend_info(self, asked):
        home, driver = "/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/driver"
        paths = ["/dev/davinci%d" % number for number in range(self.npus.get("count", 0))] + [
            "/dev/davinci_manager",
            "/dev/devmm_svm",
            "/dev/hisi_hdc",
        ]
        return dict(
            {
                "architecture": "aarch64",
                "devices": [
                    {"path": path, "group": "HwHiAiUser", "mode": "0660"} for path in paths
                ],
                "missing_devices": [],
                "driver": {"path": driver, "version": "1.72.T2.100.B020"},
                "firmware": {"path": "/usr/local/Ascend/firmware", "version": "1.72.T5.0.B050"},
                "group": {"name": "HwHiAiUser", "exists": True, "missing": []},
                "cann": {"path": home, "version": "8.0.RC1"},
                "mindspore": "",
                "environment": {
                    "PATH": [home + "/bin"],
                    "LD_LIBRARY_PATH": [driver + "/lib64"],
                    "PYTHONPATH": [],
                    "ASCEND_OPP_PATH": home + "/opp",
                },
                "processes": "unlimited",
                "install_order": {"judged": True, "problems": []},
                "rank_tables": {},
                "files": self.files_of(getattr(asked, "files", []), 0),
            },
            **self.npus.get("ascend_info", {}),
        )

    def npu_smi_info(self, asked):
        count = self.npus.get("count", 0)
        address = {
            "netmask": "255.255.255.0",
            "source": "hccn_tool",
            "configured_address": None,
            "reason": None,
        }
        addresses = ["10.1.%d.%d" % (number, self.number + 1) for number in range(count)]
        return dict(
            {
                "available": bool(count),
                "cause": None,
                "fix": None,
                "tool_version": "1.8.21",
                "driver_version": "1.72.T2.100.B020",
                "npu_count": count,
                "npus": [
                    {
                        "id": number,
                        "name": "910A",
                        "health": "OK",
                        "power_w": 68.6,
                        "memory_used_mib": 0,
                        "memory_total_mib": 32768,
                        "chips": [],
                        "processes": None,
                    }
                    for number in range(count)
                ],
                "devices": [
                    dict(address, id=number, address=text, live_address=text)
                    for number, text in enumerate(addresses)
                ],
                "findings": [],
                "remarks": [],
            },
            **self.npus.get("npu_smi_info", {}),
        )

    def managed_files(self, asked):
        changed = [
            path
            for path in getattr(asked, "absent", None) or []
            if self.written["files"].pop(path, None)
        ]
        for file in getattr(asked, "files", None) or []:
            content = str(file.get("content", file.get("src", file.get("state"))))
            found = [hashlib.sha256(content.encode("utf-8")).hexdigest(), str(file.get("mode", ""))]
            if file.get("state") == "absent" or file.get("create") is False:
                found = None
            if self.written["files"].get(file["path"]) != found:
                self.written["files"][file["path"]] = found
                changed.append(file["path"])
        if changed:
            self.keep()
        return {"changed": bool(changed), "changed_paths": changed}

    def trusted_certificates(self, asked):
        return dict(self.managed_files(asked), placed=[], removed=[], updated=False)

    def files_of(self, paths, part):
        return {
            path: self.written["files"][path][part]
            for path in paths
            if self.written["files"].get(path)
        }

    def docker_engine_info(self, asked):
        package = {"candidate": "", "origin": "", "versions": []}
        return {
            "available": True,
            "cause": "",
            "fix": "",
            "version": "20.10.24",
            "cli_version": "20.10.24",
            "buildx_version": "",
            "buildx_required": False,
            "compose_version": "1.29.2",
            "compose_command": "docker-compose",
            "live_restore": True,
            "containers_running": 1,
            "runtimes": ["runc"],
            "cgroup_driver": "systemd",
            "service": {"loaded": True, "active": True, "enabled": True},
            "packages": {
                name: dict(
                    package,
                    installed="20.10.24+dfsg1-1+deb12u1"
                    if "docker" in name and "-ce" not in name
                    else "1.0",
                )
                for name in getattr(asked, "packages", [])
            },
            "daemon_config": {
                "exists": True,
                "options": {"live-restore": True},
                "error": "",
                "differs": False,
            },
            "files": self.files_of(getattr(asked, "files", []), 0),
            "environment_in_force": True,
            "record": {},
            "python_requests": True,
            "apparmor_required": False,
            "snap": False,
            "group": True,
            "images": self.images(["trainyard/training:" + self.recipe[:12]])
            if getattr(asked, "image_label", "")
            else [],
            "forwarding": True,
        }

    def shared_storage_proof(self, asked):
        if asked.step == "write":
            speed = {
                "write_mib_per_second": 106.0,
                "read_mib_per_second": 192.0,
                "small_write_files_per_second": 1098.0,
                "small_read_files_per_second": 1727.0,
            }
            return {
                "cause": "",
                "error": "",
                "mount": {"path": asked.path, "source": "nas:/share", "type": "nfs4"},
                "real_path": asked.path,
                "proof": {
                    "name": asked.name,
                    "file": "proof-%s" % asked.name,
                    "checksum": hashlib.sha256(asked.name.encode("utf-8")).hexdigest(),
                    "uid": 0,
                    "gid": 0,
                    "mode": "0640",
                },
                "space": {"total_mib": 1000000, "free_mib": 500000, "inodes": 0, "inodes_free": 0},
                "speed": speed,
            }
        return {
            "seen": [
                {"name": file["name"], "cause": "", "seconds": 0.01}
                for file in getattr(asked, "files", [])
            ],
            "container": self.training_container_info(SimpleNamespace(**asked.container))
            if getattr(asked, "container", {})
            else {},
            "sshd": dict(self.ssh_mesh_keys(SimpleNamespace(**asked.sshd)), changed=False)
            if getattr(asked, "sshd", {})
            else {},
        }

    def shared_accounts(self, asked):
        """What users, groups and keys were asked for is what the host has from then on."""
        wanted = {name: getattr(asked, name, None) for name in ("groups", "users", "keys")}
        changed = self.written.get("people") != wanted
        if changed:
            self.written["people"] = wanted
            self.keep()
        return {
            "changed": changed,
            "made": [],
            "differences": [],
            "stays": [],
            "changed_paths": [],
            "reload": "",
        }

    def shared_folders(self, asked):
        return {"changed": False, "changed_paths": [], "kept": [], "unprotected": []}

    def image_info(self, asked):
        return {
            "available": True,
            "cause": "",
            "fix": "",
            "labelled": [],
            "records": {},
            "images": self.images(asked.names),
        }

    def images(self, names):
        return [
            {
                "name": name,
                "present": True,
                "id": IMAGE_ID,
                "recipe": self.recipe,
                "intact": True,
                "labels": {"trainyard.recipe": self.recipe, "trainyard.managed": "true"},
                "layers": LAYERS,
                "environment": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "size_mib": 1500,
            }
            for name in names
        ]

    def training_container_info(self, asked):
        exists = bool(self.written["settings"])
        return {
            "available": True,
            "cause": "",
            "fix": "",
            "runtimes": ["runc"],
            "image": {"exists": True, "id": IMAGE_ID},
            "container": {
                "exists": exists,
                "running": exists,
                "id": container_id_of(self.name) if exists else "",
                "image_id": IMAGE_ID if exists else "",
                "started_at": "2026-01-01T00:00:00Z" if exists else "",
                "managed": exists,
                "settings": self.written["settings"],
                "restart_policy": "no" if exists else "",
                "paused": False,
                "changed_files": [],
                "busy": [],
                "departures": [],
                "limited": [],
                "resolv_conf": "",
            },
            "unit": {
                "loaded": exists,
                "foreign": "",
                "active": exists,
                "state": "active" if exists else "inactive",
                "enabled": exists,
                "reload_needed": False,
                "drop_ins": [],
                "engine": "enabled",
                "log": [],
            },
            "services": {"files": [], "config": "", "states": {}, "certificate_days": None},
            "notebooks": {"revision": ""},
            "npus": {"devices": [], "mounts": []},
            "files": self.files_of(getattr(asked, "files", []), 0),
            # The shared folder was there before the first run.
            "paths": {
                path: "0755" if path.startswith("/data") else self.files_of([path], 1).get(path, "")
                for path in getattr(asked, "paths", [])
            },
        }

    def ssh_mesh_keys(self, asked):
        def key(kind):
            return (
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"
                + hashlib.sha256(("%s %s" % (kind, self.name)).encode("utf-8")).hexdigest()[:43]
            )

        files = getattr(asked, "files", [])
        return {
            "host_key": key("host"),
            "public_key": key("client"),
            "made": [],
            "rotated": False,
            "recorded": {},
            "image_id": IMAGE_ID,
            "post_quantum": True,
            "checksums": self.files_of(files, 0),
            "permissions": self.files_of(files, 1),
            "sshd": {"running": True, "reload_needed": False, "frozen": False},
            "authorized": [],
            "effective": {},
            "listens": [self.address],
            "logins": self.ssh_mesh_info(asked) if getattr(asked, "peers", []) else {},
        }

    def ssh_mesh_info(self, asked):
        return {
            "available": True,
            "cause": "",
            "fix": "",
            "container": {
                "id": container_id_of(self.name),
                "memlock": "unlimited",
                "environment": {},
            },
            "logins": [
                {
                    "name": peer,
                    "ok": True,
                    "cause": "",
                    "fix": "",
                    "evidence": "",
                    "session": {
                        "hostname": peer,
                        "container_id": container_id_of(peer),
                        "memlock": "unlimited",
                        "clock_ahead_s": [-0.05, 0.05],
                        "way_back": "open",
                        "environment": {},
                    },
                }
                for peer in asked.peers
            ],
        }

    def begun(self, check):
        """The token of a check of Horovod, as every container runs.

        What was checked is kept, and which result was asked for.
        """
        if not check:
            return ""
        self.written["check"] = {"of": check, "read": ""}
        self.keep()
        return "c" * 32

    def host_health_info(self, asked):
        if getattr(asked, "horovod", {}) and "check" in self.written:
            self.written["check"]["read"] = asked.horovod["begun"]
            self.keep()
        return {
            "kernel_log": {"source": "", "error": ""},
            "gpu_errors": None,
            "clock": {"synchronized": True, "source": "timedatectl", "error": ""},
            "docker_config_error": "",
            "docker_config_warnings": [],
            "slurm_gpus": {"listed": [], "fault": ""}
            if getattr(asked, "slurm_gpus", False)
            else {},
            "session": SESSION if getattr(asked, "session", {}) else {},
            "horovod": self.horovod_build_info(asked) if getattr(asked, "horovod", {}) else {},
            "certificates": {},
            "fabric_ports": {},
            "firewalls": {
                unit: {"fault": "", "active": True, "enabled": True}
                for unit in getattr(asked, "firewalls", [])
            },
            "file_systems": {
                path: {"free_bytes": 10**12, "inodes": 10**7, "inodes_free": 10**7, "error": ""}
                for path in getattr(asked, "paths", [])
            },
        }

    def horovod_build_info(self, asked):
        return {
            "available": True,
            "cause": None,
            "fix": None,
            "version": "0.28.1",
            "frameworks": {"tensorflow": False, "pytorch": True, "mxnet": False},
            "controllers": {"mpi": False, "gloo": True},
            "tensor_operations": {
                "nccl": False,
                "ddl": False,
                "ccl": False,
                "mpi": False,
                "gloo": True,
            },
            "missing": [],
            "import_errors": {},
        }

    # --- others, in the first run only ----------------------------------------------------------------------------------------

    def docker_container(self, asked):
        self.written["settings"] = asked.labels["trainyard.settings"]
        self.keep()
        return {
            "changed": True,
            "actions": [{"created": asked.name}],
            "container": {"Id": container_id_of(self.name)},
        }

    def systemd_service(self, asked):
        return {"changed": True}
