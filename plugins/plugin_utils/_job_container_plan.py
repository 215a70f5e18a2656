# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host needs to run jobs in rootless containers: packages, files, IDs and the image store.

Pure functions.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterable
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import unit_name
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import SLURM_USER
from ansible_collections.trainyard.gpu.plugins.plugin_utils._firewall_unit import (
    NFTABLES_FOLDER,
    firewall_unit,
    nftables_drop_in,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._placed_files import (
    Difference,
    ManagedFile,
    difference,
    managed_file,
    managed_folder,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import (
    JOB_CONTAINER,
    reading_faults,
)

FOLDER = "/etc/trainyard/job"
LIBRARY = "/usr/local/lib/trainyard"
# The second one is of role host_library.
LAUNCHER, RANK = LIBRARY + "/job/trainyard-launch", LIBRARY + "/shared/rank"
CLEAN_STORE = LIBRARY + "/job/clean-store"
SYSTEMD = "/etc/systemd/system"
CDI_FILE = "/etc/cdi/trainyard-job.json"
CDI_KIND = "nvidia.com/gpu"
STORAGE_CONF, POLICY = "/etc/containers/storage.conf", "/etc/containers/policy.json"
# Files that may be the site's or a package's. Their former content is recorded.
SHARED_FILES = (STORAGE_CONF, POLICY)
# One rule for all hosts, from the ID alone, so that files of a container have the same owner
# everywhere. The ranges begin far above those of useradd, which begin at 100000 and depend on the
# order on each host, and end below 2^32.
FIRST_UID, LAST_UID, FIRST_RANGE, RANGE = 1000, 60000, 1 << 28, 1 << 16
SUBORDINATE_FILES = ("subuid", "subgid")
# crun for keep-groups. catatonit is the init in the containers. uidmap and fuse-overlayfs are only
# recommended by podman. ssh-keygen makes the keys of a job.
PACKAGES = ("podman", "crun", "uidmap", "fuse-overlayfs", "catatonit", "openssh-client")
# The first that knows CDI, by which containers get GPUs: NVIDIA/nvidia-container-toolkit#63. Before
# 4.0, and with the conmon of Ubuntu 22.04, there is no log driver passthrough, with which jobs run
# (containers/conmon#289).
OLDEST_PODMAN = (4, 1)
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs", "cifs")
# What is loaded from a file or copied from Docker comes from the operator.
LOCAL_TRANSPORTS = (
    "docker-archive",
    "oci-archive",
    "docker-daemon",
    "containers-storage",
    "dir",
    "oci",
    "tarball",
)
# Epilog and teardown remove what is in these folders of the storage. Images of people, in another
# one, outlive teardown.
OWN_FOLDERS = ("images", "jobs")
# What podman and buildah create when they run, and what systemd-tmpfiles creates for podman at a
# boot. Their packages do not remove it. A folder that is not empty is used by others, too.
OF_PODMAN, OF_ITS_BOOT = (
    ("/etc/cni/net.d/cni.lock", "/etc/cni/net.d", "/etc/cni"),
    ("/var/lib/cni/networks", "/var/lib/cni"),
)
# The table that opens the ports of a job to its person: what its program needs to know, and what
# loads it.
PORTS_FILE, PORTS_PROGRAM = FOLDER + "/ports.json", LIBRARY + "/slurm/_job_ports.py"
FIREWALL_SERVICE, FIREWALL_TABLE = "trainyard-jobs-firewall.service", "inet trainyard_jobs"
FIREWALL_UNIT = "/etc/systemd/system/" + FIREWALL_SERVICE
FIREWALL_DROP_IN = NFTABLES_FOLDER + "/trainyard-jobs.conf"
DROP_IN = nftables_drop_in("job_container", FIREWALL_SERVICE)
# ansible-core before 2.19 makes texts of numbers and of none in variables.
UNKNOWN = (None, "")
# What the table of playbook drift calls it.
PART = "job containers"
HEADING = "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n"
#: Lets the job of program idle-checks, which is one of Slurm's own user, look at the host as root.
CHECK_RIGHT = managed_file(
    "/etc/sudoers.d/trainyard-check",
    "%s%s ALL=(root) NOPASSWD: %s/slurm/host-check\n" % (HEADING, SLURM_USER, LIBRARY),
    "0440",
    validate="/usr/sbin/visudo --check --file=%s",
)


class Firewall(TypedDict):
    """The requested firewall of jobs, for the host C(host).

    The other fields are names of hosts, and ports that are open to all.
    """

    enabled: bool
    host: str
    training: list[str]
    login: list[str]
    open: list[int | str]


class Requested(TypedDict):
    """The requested job containers: C(__job_container_requested) of the role.

    Sizes are in GiB, C(programs) are contents by path.

    C(job_cgroups), C(gpus) and C(gpu_numbers) are decisions of role slurm, UNKNOWN without its
    plan. C(former) are paths that the role no longer writes.
    """

    users: list[dict[str, Any]]
    registries: list[str]
    storage: str
    share: str
    shm_size: str
    job_cgroups: bool | str | None
    network: str
    fabric: str
    members: list[dict[str, Any]]
    environment: dict[str, str]
    gpus: int | str | None
    gpu_numbers: list[int] | str | None
    free_gib: int | str
    job_gib: int | str
    images: list[str]
    training_image: str
    programs: dict[str, str]
    check: dict[str, str]
    former: list[str]
    firewall: Firewall


class Record(TypedDict, total=False):
    """What the host had before: packages and folders of podman, IDs of loaded images by name,
    former contents of files by path.

    C(written) are checksums of what the role has written there, and C(lines) what it has added to
    files of subordinate IDs. Empty before the first run.
    """

    podman: bool
    cni: bool
    cni_state: bool
    images: dict[str, str]
    storage: list[str]
    files: dict[str, str | None]
    written: dict[str, str]
    lines: dict[str, list[str]]


class Devices(TypedDict, total=False):
    """GPUs or NPUs for trainyard-run: their kind in CDI, a pattern of their nodes, shared nodes,
    variables, and what else a container gets.

    C(positions) are their numbers in the order of Slurm.
    """

    cdi: str
    nodes: str
    control: list[str]
    variables: list[str]
    groups: list[int]
    mounts: list[str]
    positions: list[int]


class Image(TypedDict):
    """An image that the store of the host lacks, its ID, and the command that loads it."""

    name: str
    id: str
    command: str


class FirewallState(TypedDict):
    """Whether the unit of the firewall is started or loads its table again, and whether it is
    stopped.
    """

    load: bool
    stop: bool


class Store(TypedDict):
    """The unit of the image store, its new state or nothing, and whether the store is cleaned of
    what would give rights on the host.
    """

    unit: str
    mount: str
    clean: bool


class Plan(TypedDict):
    """What a host gets. C(problems) are sentences, and C(absent) paths that it must not have."""

    packages: list[str]
    lacks_packages: list[str]
    files: list[ManagedFile]
    absent: list[str]
    files_differ: bool
    record: Record
    record_differs: bool
    problems: list[str]
    images: list[Image]
    firewall: FirewallState
    store: Store


class Removal(TypedDict):
    """What brings the host back: files to restore or remove, folders of stores with their units,
    and what podman has created.
    """

    files: list[ManagedFile]
    storage: list[str]
    units: dict[str, str]
    absent: list[str]


def store_of(storage: str) -> str:
    """Return the folder of the images that all users of the host have."""
    return storage.rstrip("/") + "/images"


def store_unit(storage: str) -> str:
    """Return the name of the unit that mounts the image store."""
    return unit_name(store_of(storage), "mount")


def store_unit_file(storage: str) -> str:
    """Return the path of the unit, as module job_container_info computes it."""
    return "%s/%s" % (SYSTEMD, store_unit(storage))


def store_unit_text(storage: str) -> str:
    """Return the unit that mounts the image store on itself: no file in it gives rights on the
    host, and no device in it can be opened.

    Containers are not affected: fuse-overlayfs shows them the files by a mount of its own. The
    processes of a running one keep the store open.
    """
    store = store_of(storage).replace("%", "%%")
    return (
        HEADING
        + "\n".join(
            (
                "[Unit]",
                "Description=Images of jobs, without rights on this host",
                "Before=slurmd.service",
                "[Mount]",
                "What=%s" % store,
                "Where=%s" % store,
                "Type=none",
                "Options=bind,nosuid,nodev",
                "LazyUnmount=yes",
                "[Install]",
                "WantedBy=multi-user.target",
            )
        )
        + "\n"
    )


def subordinate_range(uid: int) -> int | None:
    """Return the first subordinate ID of a user, or None if the rule has none for this ID."""
    return FIRST_RANGE + (uid - FIRST_UID) * RANGE if FIRST_UID <= uid <= LAST_UID else None


def range_lines(users: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the users for /etc/subuid and /etc/subgid."""
    lines = []
    for user in sorted(users, key=lambda user: user["uid"]):
        first = subordinate_range(user["uid"])
        if first is not None:
            lines.append("%s:%d:%d" % (user["name"], first, RANGE))
    return lines


def id_file(text: str, users: list[dict[str, Any]], placed: Collection[str] = ()) -> str:
    """Return the content of /etc/subuid or /etc/subgid with the ranges of the users.

    All other lines stay, also further ranges of the same users, except those of C(placed), which
    are of former users of the cluster. Podman assigns the first range of a user first, so ours come
    before the others.
    """
    ours = range_lines(users)
    kept = [line for line in text.splitlines() if line not in ours and line not in placed]
    return "".join(line + "\n" for line in ours + kept)


def overlaps(text: str, users: list[dict[str, Any]]) -> list[str]:
    """Return the lines of others whose ranges overlap with those of the users."""
    names = {user["name"] for user in users} | {str(user["uid"]) for user in users}
    ranges = [subordinate_range(user["uid"]) for user in users]
    firsts = [first for first in ranges if first is not None]
    found = []
    for line in text.splitlines():
        name, begin, end = _range_of(line)
        if name not in names and any(begin < first + RANGE and first < end for first in firsts):
            found.append(line)
    return found


def _range_of(line: str) -> tuple[str, int, int]:
    """Return the user of a line of /etc/subuid, the first ID and the one after the last.

    Zeros for a line that is no range.
    """
    fields = line.split(":")
    if len(fields) != 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return "", 0, 0
    return fields[0], int(fields[1]), int(fields[1]) + int(fields[2])


def job_containers_conf() -> str:
    """Return podman's configuration for containers of jobs.

    Everything stays in the cgroup of the job, where Slurm limits and ends it.
    """
    return HEADING + (
        '[containers]\ncgroupns = "host"\ncgroups = "disabled"\n[engine]\ncgroup_manager = '
        '"cgroupfs"\nevents_logger = "none"\nruntime = "crun"\n'
    )


def containers_conf() -> str:
    """Return podman's configuration for users who call it themselves in a job.

    There is no systemd of the user that could make a cgroup.
    """
    return HEADING + (
        '[containers]\ncgroupns = "host"\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger '
        '= "file"\n'
    )


# TOML takes blanks and quotes around the name of a table or key.
_STORAGE, _ROOTLESS = (
    r"(?:%s|\"%s\"|'%s')" % (name, name, name) for name in ("storage", "rootless_storage_path")
)


def storage_conf(storage: str, former: str, is_ours: bool) -> str:
    """Return podman's configuration of stores: users have one of their own on the local disk,
    because podman cannot use one in a home on NFS.

    Of a site that had podman already, only this setting is changed: with mount_program its
    containers of root would be slower. Not additionalimagestores: podman ignores it here for users,
    and trainyard-run passes it as an option.
    """
    setting = 'rootless_storage_path = "%s/people/$UID"' % storage
    if is_ours or not former.strip():
        text = (
            HEADING
            + (
                '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = '
                '"/var/lib/containers/storage"\n%s\n'
            )
            % setting
        )
        return text + (
            '[storage.options.overlay]\nmount_program = "/usr/bin/fuse-overlayfs"\n'
            if is_ours
            else ""
        )
    lines = [
        line
        for line in former.splitlines()
        if not re.match(r"\s*(%s\s*[.]\s*)?%s\s*=" % (_STORAGE, _ROOTLESS), line)
    ]
    for number, line in enumerate(lines):
        if re.match(r"\s*\[\s*%s\s*\]\s*(#.*)?$" % _STORAGE, line):
            return "\n".join(lines[: number + 1] + [setting] + lines[number + 1 :]) + "\n"
    # A table whose keys are written as storage.driver, before any table, must not be begun again.
    dotted = next((line for line in lines if re.match(r"\s*(\[|%s\s*[.])" % _STORAGE, line)), "[")
    if not dotted.lstrip().startswith("["):
        return "\n".join(["storage." + setting] + lines) + "\n"
    return "\n".join(lines + ["[storage]", setting]) + "\n"


def registries_conf() -> str:
    """Return podman's configuration of short names."""
    # A name without a registry means an image of the host. Otherwise podman tries several
    # registries, and an unknown owner may have the name in one of them.
    return HEADING + 'unqualified-search-registries = []\nshort-name-mode = "enforcing"\n'


def policy(registries: list[str]) -> str:
    """Return the content of policy.json: pulls from these registries only.

    Users can have a policy of their own, so this guards against mistakes.
    """
    accept = [{"type": "insecureAcceptAnything"}]
    return (
        json.dumps(
            {
                "default": [{"type": "reject"}],
                "transports": dict(
                    {name: {"": accept} for name in LOCAL_TRANSPORTS},
                    docker={registry: accept for registry in sorted(registries)},
                ),
            },
            indent=2,
            sort_keys=True,
        )
        + "\n"
    )


def cdi_specification(
    numbers: Iterable[int], control: Iterable[str], node: str = "/dev/nvidia%d"
) -> str:
    """Return a CDI specification with device nodes only, for hosts without nvidia-ctk.

    It does not mount the libraries of the driver.
    """
    shared = [{"path": path} for path in control]
    devices = [
        {"name": str(number), "containerEdits": {"deviceNodes": [{"path": node % number}] + shared}}
        for number in sorted(numbers)
    ]
    # Version 0.5.0 is the newest that podman 4.3 reads.
    return (
        json.dumps(
            {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices}, indent=2, sort_keys=True
        )
        + "\n"
    )


def environment_file(environment: dict[str, str]) -> str:
    """Return the content of the file with variables of all containers."""
    return "".join("%s=%s\n" % (name, environment[name]) for name in sorted(environment))


def _former_config(found: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of the host. Empty if there is none, or a damaged one."""
    try:
        former: dict[str, Any] = json.loads(found["texts"].get(FOLDER + "/config.json") or "{}")
    except ValueError:
        return {}
    return former


def devices(found: dict[str, Any]) -> Devices:
    """Return what trainyard-run needs to know about the GPUs or NPUs of the host."""
    if found["npu_nodes"] and not found["gpu_nodes"]:
        return {
            "cdi": "",
            "nodes": "/dev/davinci%d",
            "control": found["npu_control_nodes"],
            "variables": ["ASCEND_RT_VISIBLE_DEVICES"],
            "groups": found["npu_groups"],
            "mounts": found["npu_driver_paths"],
        }
    return {
        "cdi": CDI_KIND,
        "nodes": "/dev/nvidia%d",
        "control": sorted(found["control_nodes"]),
        "variables": ["CUDA_VISIBLE_DEVICES"],
    }


def device_list(
    former: dict[str, Any], kinds: Devices, numbers: list[int] | str | None
) -> list[int] | None:
    """Return the device number of each GPU in the order of Slurm, None if it is not known.

    Without a plan of Slurm the former list stays, if it is of the same kind of device.
    """
    if numbers is not None and numbers != "":
        return [int(number) for number in numbers]
    known = former.get("gpus") or {}
    return known.get("positions") if known.get("nodes") == kinds["nodes"] else None


def _gpu_count(former: dict[str, Any], found: dict[str, Any], requested: Requested) -> int:
    """Return how many GPUs or NPUs a healthy host has.

    Without a plan of Slurm, as many as it ever had.
    """
    count = requested["gpus"]
    if count is not None and count != "":
        return int(count)
    known = int((former.get("health") or {}).get("gpus", 0))
    return max(known, len(found["gpu_nodes"] or found["npu_nodes"]))


def _addresses_by_host(former: dict[str, Any], requested: Requested) -> dict[str, Any]:
    """Return the address and the interface of each member.

    What was known of one that does not answer now stays.
    """
    known = dict(former.get("hosts") or {})
    hosts = {}
    for member in requested["members"]:
        name = member["name"]
        if member["address"]:
            hosts[name] = {"address": member["address"], "interface": member["fabric_interface"]}
        elif known.get(name):
            hosts[name] = known[name]
    return hosts


def configuration(found: dict[str, Any], requested: Requested) -> dict[str, Any]:
    """Return the content of config.json, which tells trainyard-run, prolog, epilog and health what
    the host can do.

    What a host knew of a member that does not answer now stays, and a share that was mounted before
    has to be mounted. Without a plan of Slurm, as in playbook upgrade, what Slurm has decided
    before stays.
    """
    former = _former_config(found)
    cgroups = requested["job_cgroups"]
    if cgroups in UNKNOWN:
        cgroups = former.get("constrain_devices", False)
    kinds = devices(found)
    listed = device_list(former, kinds, requested["gpu_numbers"])
    if listed is not None:
        kinds["positions"] = listed
    was_mounted = (former.get("health") or {}).get("share") == requested["share"]
    return {
        "podman": "/usr/bin/podman",
        "mount_program": "/usr/bin/fuse-overlayfs",
        "init": True,
        "storage": requested["storage"],
        "store": store_of(requested["storage"]),
        "registries": sorted(requested["registries"]),
        "share": requested["share"],
        "environment": FOLDER + "/environment",
        "launcher": LAUNCHER,
        "rank": RANK,
        "shm_size": requested["shm_size"],
        "job_bytes": int(requested["job_gib"]) << 30,
        "constrain_devices": cgroups,
        # With a cgroup per job Slurm's signals reach the processes in the container by themselves.
        "forward_signals": not cgroups,
        "gpus": kinds,
        "network": requested["network"],
        "fabric": requested["fabric"],
        "hosts": _addresses_by_host(former, requested),
        "health": {
            "gpus": _gpu_count(former, found, requested),
            "share": requested["share"] if found["share_is_mount"] or was_mounted else "",
            "free_gib": {requested["storage"]: int(requested["free_gib"])},
        },
        # Of idle hosts, and of those that return to service.
        "check": requested["check"],
    }


def has_cdi_of_others(found: dict[str, Any]) -> bool:
    """Return whether a specification that is not the role's describes the GPUs."""
    return any(kind == CDI_KIND for path, kind in found["cdi"].items() if path != CDI_FILE)


def needs_cdi_file(found: dict[str, Any]) -> bool:
    """Return whether the host has GPUs and nothing that describes them.

    Two specifications of the same device are both rejected.
    """
    return bool(found["gpu_nodes"]) and not found["nvidia_ctk"] and not has_cdi_of_others(found)


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def _shared_contents(requested: Requested, record: Record) -> dict[str, str]:
    """Return the content of the files that may be the site's or a package's, by path."""
    return {
        STORAGE_CONF: storage_conf(
            requested["storage"], record["files"][STORAGE_CONF] or "", not record["podman"]
        ),
        POLICY: policy(requested["registries"]),
    }


def record_of(found: dict[str, Any], requested: Requested) -> Record:
    """Return the record: what the host had before, and the lines that the role placed."""
    former: Record = found["record"]
    # What the host has now is what it had before only if the record does not say it.
    files = {path: found["texts"].get(path) for path in SHARED_FILES}
    kept = former.get("files") or {}
    files.update({path: text for path, text in kept.items() if path in files})
    record: Record = {
        "podman": former.get("podman", "podman" in found["packages"]),
        "cni": former.get("cni", found["cni"]),
        "cni_state": former.get("cni_state", found["cni_state"]),
        "images": former.get("images") or {},
        "storage": sorted(set(former.get("storage") or []) | {requested["storage"]}),
        "files": files,
    }
    record["written"] = {
        path: _digest(content) for path, content in _shared_contents(requested, record).items()
    }
    record["lines"] = {
        name: _placed_lines(name, found, requested["users"]) for name in SUBORDINATE_FILES
    }
    return record


def _placed_lines(name: str, found: dict[str, Any], users: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a file of subordinate IDs that the role has placed, or will place."""
    placed = (found["record"].get("lines") or {}).get(name) or []
    there = (found["texts"].get("/etc/" + name) or "").splitlines()
    return [line for line in range_lines(users) if line in placed or line not in there]


def ports_config(found: dict[str, Any], requested: Requested) -> dict[str, Any]:
    """Return the content of ports.json. What was known of a member that does not answer now
    stays.
    """
    try:
        former = json.loads(found["texts"].get(PORTS_FILE) or "{}").get("hosts") or {}
    except ValueError:
        former = {}
    hosts = addresses_of_hosts(requested["members"], former)
    firewall = requested["firewall"]
    open_ports = {int(port) for port in firewall["open"]}
    return {
        "enabled": firewall["enabled"],
        "host": firewall["host"],
        "hosts": {name: some for name, some in hosts.items() if some},
        "training": sorted(firewall["training"]),
        "login": sorted(firewall["login"]),
        "open": sorted(open_ports - {0}),
    }


def addresses_of_hosts(
    members: list[dict[str, Any]], former: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Return all addresses at which each member can be reached, those of further networks included.

    The inventory decides who has an address of the cluster or of the fabric network. One that two
    hosts claim to have otherwise is nobody's: a bridge, a service processor, or a false answer.
    C(former) are the addresses that were known of hosts which do not answer now.
    """
    chosen = {member["name"]: _chosen_addresses(member) for member in members}
    others = {member["name"]: _other_addresses(member, former) for member in members}
    taken = {address for some in chosen.values() for address in some}
    claims = collections.Counter(address for some in others.values() for address in some)
    unclaimed = {address for address, count in claims.items() if count == 1} - taken
    return {name: sorted(chosen[name] | (others[name] & unclaimed)) for name in chosen}


def _chosen_addresses(member: dict[str, Any]) -> set[str]:
    """Return the addresses of a member in the cluster network and in the fabric network."""
    return {member["address"], member.get("fabric_address")} - {"", None}


def _other_addresses(member: dict[str, Any], former: dict[str, list[str]]) -> set[str]:
    """Return the addresses that a member claims to have, or claimed if it does not answer now."""
    if member["address"] and member.get("reachable", True):
        return set(member.get("addresses") or [])
    return set(former.get(member["name"]) or [])


def firewall_entries(found: dict[str, Any], requested: Requested) -> list[tuple[str, str]]:
    """Return the files of the ports of jobs, (path, content) of each.

    Jobs have ports of their own without the firewall, too.
    """
    entries = [
        (PORTS_FILE, json.dumps(ports_config(found, requested), indent=2, sort_keys=True) + "\n")
    ]
    if requested["firewall"]["enabled"]:
        load = "/usr/bin/python3 -E -s -B %s" % PORTS_PROGRAM
        entries.append(
            (
                FIREWALL_UNIT,
                firewall_unit("job_container", "Firewall of jobs", FIREWALL_TABLE, load),
            )
        )
        entries.append((FIREWALL_DROP_IN, DROP_IN))
    return entries


def is_training_host(requested: Requested) -> bool:
    """Return whether the host runs jobs."""
    return requested["firewall"]["host"] in requested["firewall"]["training"]


def guard_files(found: dict[str, Any], requested: Requested) -> list[ManagedFile]:
    """Return the files of a host without jobs: the table that refuses its people the ports of jobs
    elsewhere.
    """
    folders = ["/etc/trainyard", FOLDER, LIBRARY, LIBRARY + "/slurm", NFTABLES_FOLDER]
    return [
        *(managed_folder(path) for path in folders),
        *(managed_file(path, content) for path, content in firewall_entries(found, requested)),
        managed_file(PORTS_PROGRAM, requested["programs"][PORTS_PROGRAM]),
    ]


def is_mounted_by_site(found: dict[str, Any], requested: Requested) -> bool:
    """Return whether the site has a mount of its own for the image store, whose unit has the name
    of ours.
    """
    return (
        found["store_options"] != [] and store_unit_file(requested["storage"]) not in found["files"]
    )


def store_plan(found: dict[str, Any], requested: Requested) -> Store:
    """Return what the image store needs: C(mount), the state of its unit or empty, and whether it
    has to be cleaned of what would give rights on the host.
    """
    if not is_training_host(requested):
        return {"unit": "", "mount": "", "clean": False}
    lacks_options = not {"nosuid", "nodev"} <= set(found["store_options"])
    state = ""
    if lacks_options:
        state = "restarted" if found["store_options"] else "started"
    return {
        "unit": store_unit(requested["storage"]),
        "mount": state,
        "clean": not found["store_is_clean"],
    }


def files(found: dict[str, Any], requested: Requested, record: Record) -> list[ManagedFile]:
    """Return the files, for managed_files, with their folders before them."""
    if not is_training_host(requested):
        return guard_files(found, requested) if requested["firewall"]["enabled"] else []
    texts, placed = found["texts"], found["record"].get("lines") or {}
    folders = [
        "/etc/trainyard",
        FOLDER,
        "/etc/containers",
        "/etc/containers/registries.conf.d",
        LIBRARY,
        LIBRARY + "/job",
        LIBRARY + "/slurm",
        "/var/lib/trainyard",
        requested["storage"],
    ] + [NFTABLES_FOLDER] * requested["firewall"]["enabled"]
    entries = [
        (
            FOLDER + "/config.json",
            json.dumps(configuration(found, requested), indent=2, sort_keys=True) + "\n",
        ),
        (FOLDER + "/environment", environment_file(requested["environment"])),
        (FOLDER + "/containers.conf", job_containers_conf()),
        ("/etc/containers/registries.conf.d/trainyard.conf", registries_conf()),
    ]
    entries += firewall_entries(found, requested)
    if not is_mounted_by_site(found, requested):
        entries.append(
            (store_unit_file(requested["storage"]), store_unit_text(requested["storage"]))
        )
    entries += sorted(_shared_contents(requested, record).items())
    entries += [
        (
            "/etc/" + name,
            id_file(texts.get("/etc/" + name) or "", requested["users"], placed.get(name) or []),
        )
        for name in SUBORDINATE_FILES
    ]
    if not record["podman"]:
        # A site's own containers of root, such as those of Quadlet, depend on the default.
        folders.append("/etc/containers/containers.conf.d")
        entries.append(("/etc/containers/containers.conf.d/trainyard.conf", containers_conf()))
    if needs_cdi_file(found):
        folders.append("/etc/cdi")
        entries.append((CDI_FILE, cdi_specification(found["gpu_nodes"], found["control_nodes"])))
    return [
        *(managed_folder(path) for path in folders),
        *(managed_file(path, content) for path, content in entries),
        *_programs(requested),
    ]


def _programs(requested: Requested) -> list[ManagedFile]:
    """Return the programs, the modules that they load, and the right of the check of idle hosts."""
    found = []
    for path, content in sorted(requested["programs"].items()):
        found.append(managed_file(path, content, "0644" if path.endswith(".py") else "0755"))
    if requested["check"]:
        found.append(CHECK_RIGHT)
    return found


def without_placed(text: str, lines: list[str]) -> str:
    """Return the content of /etc/subuid or /etc/subgid without the lines that the role placed."""
    return "".join(line + "\n" for line in text.splitlines() if line not in lines)


def removal(found: dict[str, Any]) -> Removal:
    """Return what brings the host back. Files that the site has changed meanwhile stay.

    C(found) has C(record), that of the role, and C(texts), contents of files by path. Returns
    C(files) to restore or remove, C(storage), folders of stores, C(units), their units by folder,
    and C(absent), paths that podman has created.
    """
    record: Record = found["record"]
    storage = record.get("storage") or []
    return {
        "files": _restored_files(record, found["texts"]) + _restored_ids(record, found["texts"]),
        "storage": storage,
        "units": {folder: store_unit(folder) for folder in storage},
        "absent": _created_by_podman(record),
    }


def _restored_files(record: Record, texts: dict[str, str]) -> list[ManagedFile]:
    """Return the files that may be the site's as they were before, unless the site has changed
    them.
    """
    written = record.get("written") or {}
    restored: list[ManagedFile] = []
    for path, former in sorted((record.get("files") or {}).items()):
        if path not in texts or _digest(texts[path]) != written.get(path):
            continue
        if former is None:
            restored.append({"path": path, "state": "absent"})
        else:
            restored.append(managed_file(path, former))
    return restored


def _restored_ids(record: Record, texts: dict[str, str]) -> list[ManagedFile]:
    """Return the files of subordinate IDs without the lines that the role placed."""
    restored = []
    for name, lines in sorted((record.get("lines") or {}).items()):
        text = texts.get("/etc/" + name)
        if lines and text is not None:
            restored.append(managed_file("/etc/" + name, without_placed(text, lines)))
    return restored


def _created_by_podman(record: Record) -> list[str]:
    """Return what podman has created. An engine may have created the folders before."""
    if record.get("podman") is not False:
        return []
    created = OF_PODMAN[:1] if record.get("cni") else OF_PODMAN
    return [*created, *(() if record.get("cni_state") else OF_ITS_BOOT)]


def image_name(name: str) -> str:
    """Return the full name of an image, with its tag, as docker save, podman load and registries
    have it.
    """
    return name if "@" in name or ":" in name.rpartition("/")[2] else name + ":latest"


def held_image(found: dict[str, Any], name: str) -> str | None:
    """Return the ID of an image in the image store, or None."""
    held: dict[str, str] = {
        each: entry["id"] for entry in found["images"] for each in entry["names"]
    }
    known = image_name(name)
    return (
        held.get("localhost/" + known)
        or held.get(known)
        or held.get("docker.io/" + known)
        or held.get("docker.io/library/" + known)
    )


def image_fill(found: dict[str, Any], requested: Requested) -> list[Image]:
    """Return the images that the image store of the host lacks, C(name), C(id) and C(command) of
    each.

    Docker and podman give an image the same ID, the checksum of its configuration. Docker with the
    images of containerd has another one, so that the ID from which an image was loaded is in the
    record.
    """
    loaded: dict[str, str] = found["record"].get("images") or {}
    lacking: list[Image] = []
    for name in requested["images"]:
        there = found["docker_images"].get(name, "")
        present = held_image(found, name)
        is_same = present and (present == _bare(there) or loaded.get(name) == there)
        if there and not is_same:
            command = _load_command(name, store_of(requested["storage"]))
            lacking.append({"name": name, "id": there, "command": command})
    return lacking


def _bare(image_id: str) -> str:
    """Return an ID of an image as podman writes it."""
    return re.sub("^sha256:", "", image_id)


def _load_command(name: str, store: str) -> str:
    """Return the command for a shell that copies an image from Docker to the image store.

    Users read the store, so files in it that only root can read are of no use. On the host a
    set-user-ID program of an image would run as root, and a folder that all can write to would be
    in the containers of all. In containers everything belongs to the user. So a layer is closed
    until clean-store has cleaned it. A layer of a running job must stay.
    """
    podman = [
        "podman",
        "--root=" + store,
        "--runroot=/run/trainyard/images",
        "--storage-driver=overlay",
    ]
    save = shlex.join(["docker", "save", name])
    load = shlex.join([*podman, "load", "--quiet"])
    clean = shlex.join([CLEAN_STORE, store])
    prune = shlex.join([*podman, "image", "prune", "--force"])
    return (
        "set -o pipefail; umask 022; mkdir -p /run/trainyard && umask 077 && %s | %s && { [ -n "
        '"$(ls '
        '-A /run/trainyard/jobs 2> /dev/null)" ] || %s; } && %s' % (save, load, prune, clean)
    )


def version_of(text: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a package's version, or None if it has none."""
    match = re.match(r"(?:\d+:)?(\d+)\.(\d+)", text or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def podman_problems(found: dict[str, Any]) -> list[str]:
    """Return why the installed podman, or the one that apt would install, cannot run the jobs of
    the host.
    """
    # Facts of an earlier release have no candidate.
    podman = found["packages"].get("podman") or found.get("podman_candidate") or ""
    version = version_of(podman)
    if not version or version >= OLDEST_PODMAN:
        return []
    return [
        "podman %s is too old to run jobs and to give them GPUs; expected %d.%d or newer. Set "
        "slurm_packages_source to a repository with a newer "
        "podman for this distribution%s, or install Ubuntu 24.04 or Debian 12, or set "
        "job_container_enabled to false: then jobs run without containers"
        % (
            podman,
            *OLDEST_PODMAN,
            " and run 'apt-get install podman'" if "podman" in found["packages"] else "",
        )
    ]


def kernel_problems(found: dict[str, Any]) -> list[str]:
    """Return what the kernel, or the container that is the host, does not offer."""
    texts = []
    if not found["fuse"]:
        texts.append(
            "/dev/fuse is missing, which fuse-overlayfs needs; %s"
            % (
                "start the container of this host with --device /dev/fuse"
                if found["is_container"]
                else "load the kernel module fuse"
            )
        )
    if found["is_container"] and found["masked"]:
        texts.append(
            (
                "parts of /proc are masked (%s); start the container of this host with "
                "--security-opt systempaths=unconfined"
            )
            % found["masked"][0]
        )
    return texts


def storage_problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return why images and jobs cannot be stored in the chosen folder."""
    texts = []
    if found["storage_type"] in NETWORK_FILE_SYSTEMS:
        texts.append(
            "job_container_storage: '%s' is on %s; use a folder on a local disk"
            % (requested["storage"], found["storage_type"])
        )
    if found["storage_type"] == "overlay":
        texts.append(
            (
                "job_container_storage: '%s' is on overlay, on which containers cannot be stored; "
                "mount a disk or a volume there"
            )
            % requested["storage"]
        )
    if int(requested["job_gib"]) and not found["storage_project_quota"]:
        texts.append(
            "job_container_job_gib: '%d' needs project quotas, and the file system of '%s' is "
            "not mounted with prjquota; use ext4 with the feature "
            "project or XFS, mounted with the option prjquota, or set job_container_job_gib to 0"
            % (int(requested["job_gib"]), requested["storage"])
        )
    strange = [name for name in OWN_FOLDERS if name in found["storage_entries"]]
    if strange and requested["storage"] not in (found["record"].get("storage") or []):
        texts.append(
            (
                "job_container_storage: '%s' has a folder '%s' that this role did not create; use "
                "an empty folder"
            )
            % (requested["storage"], strange[0])
        )
    if is_mounted_by_site(found, requested) and store_plan(found, requested)["mount"]:
        texts.append(
            "job_container_storage: a mount at '%s' lacks the options nosuid and nodev, so "
            "that programs of images could run as root; add them, or "
            "unmount it" % store_of(requested["storage"])
        )
    return texts


def device_problems(found: dict[str, Any]) -> list[str]:
    """Return why the GPUs or NPUs of the host cannot be given to jobs."""
    texts = []
    if found["gpu_nodes"] and found["nvidia_ctk"] and not has_cdi_of_others(found):
        texts.append(
            (
                "no CDI specification describes the GPUs; set container_toolkit_cdi to true and "
                "run playbook gpu_stack"
            )
        )
    if found["gpu_nodes"] and found["npu_nodes"]:
        texts.append(
            (
                "the host has GPUs and NPUs, whose numbers Slurm does not tell apart; remove the "
                "driver of one of them"
            )
        )
    return texts


def subordinate_problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return which users have no range of subordinate IDs of their own."""
    texts = []
    texts += [
        "user %s has ID %d, and subordinate IDs exist for %d to %d; change the ID"
        % (user["name"], user["uid"], FIRST_UID, LAST_UID)
        for user in requested["users"]
        if subordinate_range(user["uid"]) is None
    ]
    for name in SUBORDINATE_FILES:
        texts += [
            (
                "/etc/%s: '%s' overlaps with the range of a user of this cluster; remove the line "
                "or change its range"
            )
            % (name, line)
            for line in overlaps(found["texts"].get("/etc/" + name) or "", requested["users"])
        ]
    return texts


def image_problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return which images of the site the host lacks."""
    texts = []
    texts += [
        (
            "job_container_images: the Docker engine of the host has no image '%s'; pull it or "
            "correct the name"
        )
        % name
        for name in requested["images"]
        if name not in found["docker_images"] and name != requested["training_image"]
    ]
    if (
        requested["training_image"] in requested["images"]
        and requested["training_image"] not in found["docker_images"]
    ):
        texts.append(
            "the training image '%s' is not on the host; run playbook training_environment"
            % requested["training_image"]
        )
    return texts


def problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return what keeps jobs in containers from working on the host, one sentence each."""
    # The caller names the host.
    texts = reading_faults("", found, JOB_CONTAINER) + firewall_problems(found, requested)
    if not is_training_host(requested):
        return texts
    return [
        *texts,
        *podman_problems(found),
        *kernel_problems(found),
        *storage_problems(found, requested),
        *device_problems(found),
        *subordinate_problems(found, requested),
        *image_problems(found, requested),
    ]


def firewall_problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return why the host cannot have the table.

    Without the package nothing is known but the capability.
    """
    state = found["firewall"]
    if not requested["firewall"]["enabled"] or state["admin"] and not state["error"]:
        return []
    cause = (
        "nft: %s" % state["error"]
        if state["error"]
        else "root of this host lacks the capability CAP_NET_ADMIN"
    )
    return [
        (
            "job_container_firewall: it is true, and nftables cannot be used on this host (%s); "
            "%s, or set it to false, which leaves the ports of jobs open"
        )
        % (
            cause,
            "start the container of this host with --cap-add NET_ADMIN"
            if found["is_container"]
            else "repair nftables",
        )
    ]


def firewall_plan(found: dict[str, Any], requested: Requested) -> FirewallState:
    """Return C(load), whether the unit has to be started or has to load the table again, and
    C(stop), whether it has to be stopped.
    """
    state, enabled = found["firewall"], requested["firewall"]["enabled"]
    changed = [
        path
        for path, content in firewall_entries(found, requested)
        + [(PORTS_PROGRAM, requested["programs"].get(PORTS_PROGRAM, ""))]
        if found["files"].get(path) != _digest(content)
    ]
    is_loaded = state["active"] and state["enabled"] and not state["fault"]
    return {
        "load": enabled and (bool(changed) or not is_loaded),
        "stop": not enabled and FIREWALL_UNIT in found["files"],
    }


def packages(requested: Requested) -> list[str]:
    """Return the names of the packages of a host."""
    names = list(PACKAGES) if is_training_host(requested) else []
    return names + ["nftables"] if requested["firewall"]["enabled"] else names


def differs(entry: ManagedFile, found: dict[str, Any]) -> bool:
    """Return whether a file of the host has another content."""
    return "content" in entry and found["files"].get(entry["path"]) != _digest(entry["content"])


def absent_paths(found: dict[str, Any], requested: Requested, stops_firewall: bool) -> list[str]:
    """Return the paths that the host must not have.

    Those of the firewall are there only if it is stopped.
    """
    is_training = is_training_host(requested)
    absent = []
    if is_training and CDI_FILE in found["cdi"] and not needs_cdi_file(found):
        absent.append(CDI_FILE)
    if stops_firewall:
        absent += [FIREWALL_UNIT, FIREWALL_DROP_IN, NFTABLES_FOLDER]
    unused = list(requested["former"])
    if not is_training and not requested["firewall"]["enabled"]:
        unused = [PORTS_FILE, PORTS_PROGRAM, *unused]
    if not is_training or not requested["check"]:
        unused.append(CHECK_RIGHT["path"])
    return absent + [path for path in unused if path in found["files"]]


def job_container_plan(found: dict[str, Any], requested: Requested) -> Plan:
    """Plan packages, files and the image store of a training host whose Slurm jobs run in rootless
    containers, and list what keeps them from working.

    Another host of the cluster gets only the table that refuses its people the ports of jobs.
    C(found) is a result of M(trainyard.gpu.job_container_info). C(requested): C(users), each with
    C(name) and C(uid); C(registries); C(storage), the folder for containers; C(share); C(shm_size);
    C(job_cgroups), whether Slurm has a cgroup for each job, None if unknown; C(network) and
    C(fabric), networks as CIDR; C(members) of M(trainyard.gpu.cluster_members); C(environment) of
    jobs; C(gpus), their number by Slurm, and C(gpu_numbers), the device number of each in the order
    in which Slurm counts them, None if unknown; C(free_gib); C(images), names of images of the
    Docker engine; C(training_image); C(programs), their content by path; C(former), paths of
    programs that another role has now; C(firewall), the table of ports: C(enabled), C(host), this
    host, C(training) and C(login), names of hosts, C(open), ports that stay open.

    Returns C(packages), C(lacks_packages), C(files), C(absent), C(files_differ), the role's
    C(record), C(record_differs), C(images) that the store lacks, with C(name), C(id) and
    C(command), the line for bash that loads it, C(firewall), whether to C(load) or C(stop) the
    table, C(store), its C(unit), C(mount), the state that the unit has to get, and C(clean),
    whether files in it may give rights on the host, and C(problems), sentences.
    """
    is_training = is_training_host(requested)
    record = record_of(found, requested) if is_training else found["record"]
    entries = files(found, requested, record)
    firewall = firewall_plan(found, requested)
    absent = absent_paths(found, requested, firewall["stop"])
    names = packages(requested)
    return {
        "packages": names,
        "lacks_packages": [name for name in names if name not in found["packages"]],
        "files": entries,
        "absent": absent,
        "files_differ": bool(absent) or any(differs(entry, found) for entry in entries),
        "record": record,
        "record_differs": record != found["record"],
        "problems": problems(found, requested),
        "images": image_fill(found, requested) if is_training else [],
        "firewall": firewall,
        "store": store_plan(found, requested),
    }


def range_drift(
    path: str, text: str, users: list[dict[str, Any]], placed: list[str]
) -> list[Difference]:
    """Return the differences of /etc/subuid or /etc/subgid: users whose first range differs, and
    ranges of former users.
    """
    rows, lines, ours = [], text.splitlines(), range_lines(users)
    for line in ours:
        name = line.partition(":")[0]
        theirs = [other for other in lines if other.partition(":")[0] == name]
        if theirs[:1] != [line]:
            rows.append(
                difference(
                    path,
                    line + (" first" if theirs else ""),
                    theirs[0] if theirs else "no range of " + name,
                )
            )
    return rows + [
        difference(path, "no range of " + line.partition(":")[0], line)
        for line in placed
        if line in lines and line not in ours
    ]


def file_drift(
    found: dict[str, Any], requested: Requested, entries: list[ManagedFile]
) -> list[Difference]:
    """Return the files that are missing or have another content.

    Of the ranges of IDs it returns the lines.
    """
    placed = found["record"].get("lines") or {}
    rows = []
    for entry in entries:
        path, name = entry["path"], entry["path"].rpartition("/")[2]
        if not differs(entry, found):
            continue
        lines = []
        if path in ["/etc/" + each for each in SUBORDINATE_FILES]:
            text = found["texts"].get(path) or ""
            lines = range_drift(path, text, requested["users"], placed.get(name) or [])
        state = "changed" if path in found["files"] else "missing"
        rows += lines or [difference(path, "as planned", state)]
    return rows


def image_drift(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return the images that the image store lacks or has with another ID."""
    rows = []
    for entry in image_fill(found, requested):
        held = held_image(found, entry["name"])
        rows.append(
            difference(
                "image " + entry["name"],
                "ID " + _bare(entry["id"])[:12],
                "ID " + held[:12] if held else "not in the image store",
            )
        )
    return rows


def store_drift(store: Store, requested: Requested) -> list[Difference]:
    """Return what the image store lacks so that nobody gets rights on the host by it."""
    rows = []
    if store["mount"]:
        rows.append(
            difference(
                store_of(requested["storage"]), "mounted with nosuid and nodev", "not mounted so"
            )
        )
    if store["clean"]:
        rows.append(
            difference(
                store_of(requested["storage"]),
                "cleaned of set-user-ID bits and capabilities",
                "not cleaned",
            )
        )
    return rows


def firewall_drift(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return a row if the firewall of jobs is requested and not in force."""
    state = found["firewall"]
    fault = state["fault"] or ("" if state["active"] else "not active")
    if requested["firewall"]["enabled"] and fault:
        return [difference("firewall of jobs", "loaded", fault)]
    return []


def absent_drift(absent: list[str]) -> list[Difference]:
    """Return the paths that the host has and must not have."""
    states = {CDI_FILE: "absent, because another specification describes the GPUs"}
    return [difference(path, states.get(path, "absent"), "present") for path in absent]


def job_container_drift(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return how a host differs from the plan, one row each: C(what), C(asked) and C(found).

    C(found) and C(requested) are as for job_container_plan. Empty if a run of the role would change
    nothing.
    """
    plan = job_container_plan(found, requested)
    is_training = is_training_host(requested)
    rows = [difference(PART, "a host that can run them", sentence) for sentence in plan["problems"]]
    if not found["record"] and is_training:
        return rows + [difference(PART, "configured", "not configured")]
    if plan["lacks_packages"]:
        names = ", ".join(plan["lacks_packages"])
        rows.append(difference(PART, "installed", "no packages " + names))
    rows += file_drift(found, requested, plan["files"])
    rows += absent_drift(plan["absent"])
    if is_training:
        rows += image_drift(found, requested)
    rows += firewall_drift(found, requested)
    rows += store_drift(plan["store"], requested)
    if plan["record_differs"] and not rows:
        rows.append(difference(PART, "the record of the role as planned", "changed"))
    return rows
