# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Slurm's configuration files for a cluster, what a change of them needs, and what is wrong with
the hosts or the variables. Pure functions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm_host
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import SLURM_USER, TRAIN_ACCOUNT
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_priorities import priority_faults
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _slurm_limits,
    _slurm_sessions,
    _slurm_ssh,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import SLURM, reading_faults
from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_conf import (
    RELEASES,
    Effect,
    distance,
    effect,
    gpus_of,
    is_before,
    parse_conf,
    reach,
)

FOLDER = "/etc/slurm"
HEADING = "# Managed by Ansible (trainyard.gpu). Changes are overwritten."
STATE = "/var/lib/slurm"
LOGS = "/var/log/slurm"
DATABASE = "slurm_acct_db"
SCRIPTS = {
    "prolog": "/usr/local/lib/trainyard/slurm/prolog",
    "epilog": "/usr/local/lib/trainyard/slurm/epilog",
    "health": "/usr/local/lib/trainyard/slurm/health",
}
# What a change still needs, from before the files are written until it is done: a run that was
# interrupted in between is completed by the next one.
PENDING = "/var/lib/trainyard/slurm/pending.json"
OLDEST, NEWEST = "21.08", "24.11"
# What people get outside of jobs, unless the variables say something else.
OUTSIDE = {
    "gpus_need_job": True,
    "memory": "50%",
    "memory_all": "80%",
    "tasks": 10000,
    "hide_processes": True,
}
PRIORITIES = (
    {"name": "low", "priority": 0},
    {"name": "normal", "priority": 100, "preempts": ["low"]},
    {"name": "high", "priority": 1000, "preempts": ["low"]},
)
# Kinds of device nodes, and which variables Slurm sets for a job. gres.conf(5): without a flag
# those of all makers are set. Of NPUs trainyard-run learns by NVIDIA's variable which of them a
# task has, and sets their own variable in the container.
_FLAGS = {"nvidia": "nvidia_gpu_env", "davinci": "nvidia_gpu_env"}

# Operators run jobs of role train on whole hosts, so the account has no limits, and all priorities.
_TRAIN = {
    "name": TRAIN_ACCOUNT,
    "description": "jobs of the playbook train",
    "members": [SLURM_USER],
}

# What the plan decides. Another value breaks a promise of the collection, so the variable to set is
# named instead.
OWNED = {
    "accountingstorageenforce": "quotas depend on it",
    "accountingstoragehost": "the database runs on cluster_scheduler_host",
    "accountingstoragetype": "the database runs on cluster_scheduler_host",
    "authtype": "munge is the only mechanism of the roles",
    "clustername": (
        "the accounts in the database belong to this name; set slurm_cluster_name before the first "
        "run"
    ),
    "controlmachine": "set cluster_scheduler_host",
    "credtype": "munge is the only mechanism of the roles",
    "downnodes": "drain the host with slurm_node_state",
    "epilog": "the epilog ends what a job leaves over; add a program with slurm_options.TaskEpilog",
    "grestypes": "quotas count gres/gpu",
    "healthcheckprogram": "verify and the health check drain hosts by it",
    "include": "the content of another file is not checked; set its keys in slurm_options",
    "jobacctgathertype": "it follows from the hosts' control groups",
    "nodename": "nodes are the hosts of group gpu; set slurm_node_features",
    "nodeset": "nodes are the hosts of group gpu; set slurm_partitions",
    "partitionname": "set slurm_partitions",
    "preempttype": "set slurm_priorities",
    "proctracktype": "it follows from the hosts' control groups",
    "prolog": "the prolog prepares the job's folders; add a program with slurm_options.TaskProlog",
    "selecttype": "GPUs are allocated by select/cons_tres",
    "slurmctldaddr": "set cluster_scheduler_host",
    "slurmctldhost": "set cluster_scheduler_host",
    "slurmctldlogfile": "logrotate knows the default",
    "slurmctldpidfile": "the unit names it",
    "slurmctldport": "the roles use Slurm's ports 6817 to 6819",
    "slurmdlogfile": "logrotate knows the default",
    "slurmdpidfile": "the unit names it",
    "slurmdport": "the roles use Slurm's ports 6817 to 6819",
    "slurmdspooldir": "teardown and the health check know the default",
    "slurmduser": "slurmd runs as root",
    "slurmuser": "the packages create user slurm",
    "statesavelocation": "teardown and the health check know the default",
    "taskplugin": "it follows from the hosts' control groups",
}
# (key, pattern of the value or empty for any, why not).
REFUSED = (
    (
        "accountingstoreflags",
        r"job_env|job_script",
        "other people could read the environment and the script of a job in the database",
    ),
    (
        "privatedata",
        r"^none$",
        "other people could read commands and paths; list the kinds to hide instead",
    ),
    ("plugindir", "", "the daemons run what is in that folder as root"),
    (
        "plugstackconfig",
        "",
        "the daemons run what is in that file as root; use /etc/slurm/plugstack.conf.d",
    ),
    ("reconfigflags", r"keeppart", "a change of slurm_partitions would have no effect"),
    (
        "slurmdparameters",
        r"config_overrides",
        "it hides memory and GPUs that a host has lost; in containers it is set without this",
    ),
    ("switchtype", "", "slurmctld forgets all jobs if it changes"),
    ("disablerootjobs", r"^(?!yes$)", "a job as root is outside of every quota"),
    ("mcsplugin", "", "it conflicts with PrivateData"),
)
# Lists: what the site requests is added to what the plan needs.
MERGED = (
    "accountingstoragetres",
    "debugflags",
    "launchparameters",
    "privatedata",
    "prologflags",
    "slurmctldparameters",
    "slurmdparameters",
)

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CLUSTER = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED = ("default", "all", "none")
# Words of a GPU's name that tell nothing about the model.
_MAKERS = (
    "nvidia",
    "tesla",
    "quadro",
    "geforce",
    "amd",
    "instinct",
    "huawei",
    "ascend",
    "graphics",
    "gpu",
)
_SERIES = ("rtx", "gtx", "titan", "mi")
_SUFFIXES = ("ti", "super", "ada", "blackwell")


# What a host has.

#: The answer of module slurm_host_info, empty of a host that did not answer.
Reading = dict[str, Any]
Readings = Mapping[str, Reading]
#: A file or a folder for module managed_files.
File = dict[str, Any]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class GpuGroup(TypedDict):
    """GPUs of a host that are one line of gres.conf: of one type, and with one kind of
    device node.
    """

    type: str
    prefix: str
    numbers: list[int]
    kind: str


class _Size(_slurm_limits.NodeSize):
    name: str
    known: bool
    gpu_count: int
    features: list[str]


class Node(_Size, total=False):
    """A node of the cluster.

    Of one that did not answer (not C(known)) the rest is in its former line.

    C(gpu_numbers) are those of the device nodes in Slurm's order, C(gpu_cores) the cores near each
    of them.
    """

    address: str
    hostname: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    gpus: list[GpuGroup]
    gpu_numbers: list[int]
    gpu_cores: dict[int, str]
    release: str


class Partition(TypedDict):
    """A partition with at least one host.

    Times in minutes, 0 for no limit. C(memory_per_cpu) in MiB.
    """

    name: str
    hosts: list[str]
    default: bool
    max_minutes: int
    default_minutes: int
    priorities: list[str]
    memory_per_cpu: int
    cpus_per_gpu: int


class Controller(TypedDict):
    """The scheduler. C(lab): a training host's hardware is set by a variable."""

    hostname: str
    address: str
    lab: bool
    pid_file: str
    database_pid_file: str


class Mismatch(TypedDict):
    """A host whose Slurm does not work with that of the scheduler, and what would be better."""

    host: str
    found: str
    way: str


class InTheWay(TypedDict):
    """Jobs that a change would end: arguments of squeue, and why."""

    arguments: list[str]
    why: str


class Difference(TypedDict):
    """How a host differs from the plan."""

    what: str
    asked: str
    found: str


class SchedulerFiles(TypedDict):
    """What is written on the scheduler, and the statements for its database."""

    database_files: list[File]
    slurmdbd_files: list[File]
    controller_files: list[File]
    check_files: list[File]
    pending_files: list[File]
    sql: list[str]


class HostFiles(TypedDict):
    """What is written on training hosts, and by name on other hosts. C(absent) are paths."""

    node_files: list[File]
    absent: dict[str, list[str]]
    pmix_files: dict[str, list[File]]
    login_files: dict[str, list[File]]


class Unplanned(TypedDict):
    """The problems because of which there is no plan."""

    problems: list[str]
    warnings: list[str]
    complete: Literal[False]
    scheduler: str
    hosts: list[str]


class SlurmPlan(SchedulerFiles, HostFiles):
    """The plan; slurm_plan explains each key."""

    complete: Literal[True]
    problems: list[str]
    warnings: list[str]
    scheduler: str
    release: str
    releases: dict[str, str]
    cgroups: bool
    nodes: list[Node]
    node_names: list[str]
    partitions: list[Partition]
    priorities: Sequence[Mapping[str, Any]]
    qos: list[str]
    packages: dict[str, list[str]]
    installed: list[str]
    cluster_name: str
    missing_people: list[str]
    accounts: list[dict[str, Any]]
    munge_hosts: list[str]
    ssh: dict[str, _slurm_ssh.Rule]
    validate: str
    effect: Effect
    pending: bool
    in_the_way: list[InTheWay]
    changes: bool


class Requested(NamedTuple):
    """What the inventory requests of a Slurm cluster. Hosts are inventory names.

    C(hosts) are the training hosts in the order of the nodes. C(groups) of the inventory serve
    C(partitions), entries with C(name), C(hosts), C(default), C(max_minutes), C(default_minutes)
    and C(priorities); none is one partition train with all hosts. C(priorities) have C(name),
    C(priority) and C(preempts). C(node_features) are further ones by host, compared with
    C(hosts_classes) of C(accounts). C(options) are keys of slurm.conf; those that the plan decides
    are refused. C(accept_smaller) may have less hardware than configured. C(gpu_models) of each
    host, in the order of their numbers, count where the driver's files name none, and C(gpu_types)
    in place of what follows from the model. C(node_hardware) has C(cpus) and C(real_memory) for
    containers. C(scripts) are paths of C(prolog), C(epilog) and C(health). C(ssh): C(needs_job),
    and C(users) and C(groups) that need none. C(outside) of jobs: C(gpus_need_job) closes GPUs,
    cron and at, C(memory) and C(tasks) limit a person on a login host, C(memory_all) all of them.
    C(accept_no_limits): hosts that cannot limit jobs are no problem. C(limits): C(max_minutes) and
    C(default_minutes) of partitions, C(max_jobs_per_person) and C(max_submitted_per_person) of
    accounts, C(share), the percentage of CPUs and memory that each account has at least; 0 means
    none.
    """

    hosts: Sequence[str]
    scheduler: str
    members: Sequence[Mapping[str, Any]]
    cluster_name: str = "trainyard"
    login_hosts: Sequence[str] = ()
    groups: Mapping[str, Sequence[str]] = _NOTHING
    partitions: Sequence[Mapping[str, Any]] = ()
    priorities: Sequence[Mapping[str, Any]] = ()
    node_features: Mapping[str, Sequence[str]] = _NOTHING
    accounts: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = _NOTHING
    accept_smaller: Iterable[str] = ()
    gpu_models: Mapping[str, Sequence[str]] = _NOTHING
    gpu_types: Mapping[str, str] = _NOTHING
    node_hardware: Mapping[str, Mapping[str, int]] = _NOTHING
    scripts: Mapping[str, str] = _NOTHING
    ssh: Mapping[str, Any] = _NOTHING
    outside: Mapping[str, Any] = _NOTHING
    accept_no_limits: bool = False
    limits: Mapping[str, Any] = _NOTHING

    def with_defaults(self) -> Requested:
        """Return the request with a value in each field."""
        partitions = [dict(entry) for entry in self.partitions]
        priorities = [dict(entry) for entry in self.priorities or PRIORITIES]
        return self._replace(
            partitions=partitions or [{"name": "train", "hosts": ["all"], "default": True}],
            priorities=priorities,
            accept_smaller=list(self.accept_smaller),
            groups=self.groups or {},
            node_features=self.node_features or {},
            options=self.options or {},
            gpu_models=self.gpu_models or {},
            gpu_types=self.gpu_types or {},
            node_hardware=self.node_hardware or {},
            ssh=self.ssh or {},
            scripts=dict(SCRIPTS, **self.scripts or {}),
            outside=dict(OUTSIDE, **self.outside or {}),
            limits=_slurm_limits.numbers(self.limits),
        )

    def addresses(self) -> dict[str, str]:
        """Return the addresses on the cluster network by inventory name."""
        return {member["name"]: member["address"] for member in self.members}


class _Cluster(NamedTuple):
    """What all hosts of the cluster decide together.

    C(limited): whether Slurm can limit jobs on each training host, otherwise C(unlimited_why).
    C(oldest) is the oldest release of Slurm. C(mail_program) is empty if the scheduler has none.
    """

    controller: Controller
    limited: bool
    unlimited_why: str
    oldest: str
    mail_program: str


def gpu_type(model: str | None) -> str:
    """Return the type of a GPU for Slurm: h100 of 'NVIDIA H100 80GB HBM3', rtx6000ada of 'NVIDIA
    RTX 6000 Ada Generation'. Empty for an unknown model.
    """
    words = [
        word
        for word in re.split(r"[^a-z0-9.]+", (model or "").lower())
        if word and word not in _MAKERS
    ]
    if not words:
        return ""
    kept = [words.pop(0)]
    if kept[0] in _SERIES and words:
        kept.append(words.pop(0))
    # "ti" is part of the model, "80gb" and "sxm4" are not.
    kept += [word for word in words if word in _SUFFIXES]
    return re.sub(r"[^a-z0-9]", "", "".join(kept))


def _range(first: int, last: int) -> str:
    return str(first) if first == last else "%d-%d" % (first, last)


def _ranges(numbers: Iterable[int]) -> str:
    """Return 0-2,4 of [0, 1, 2, 4]."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(_range(first, last) for first, last in parts)


def _files(prefix: str, numbers: Iterable[int]) -> str:
    text = _ranges(numbers)
    return prefix + (text if text.isdigit() else "[%s]" % text)


def _model(gpu: Mapping[str, Any], index: int, models: list[str]) -> str:
    """Return the model of a GPU. C(models) are those that the driver tells, which may lack some."""
    if gpu.get("model"):
        return str(gpu["model"])
    if index < len(models):
        return models[index]
    return models[0] if len(set(models)) == 1 else ""


def _gpus(reading: Reading, models: list[str], override: str) -> list[GpuGroup]:
    """Return the GPUs of a host in the order of their numbers.

    C(override) is a type for all of them, or empty.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for index, gpu in enumerate(reading["gpus"]):
        prefix = gpu["path"].rstrip("0123456789")
        key = (override or gpu_type(_model(gpu, index, models)), prefix)
        groups.setdefault(key, []).append(int(gpu["path"][len(prefix) :]))
    return [
        {"type": kind, "prefix": prefix, "numbers": numbers, "kind": prefix.rsplit("/", 1)[-1]}
        for (kind, prefix), numbers in groups.items()
    ]


def _device_numbers(gpus: list[GpuGroup]) -> list[int]:
    """Return the device number of each GPU in the order in which Slurm counts them: the types as in
    Gres of slurm.conf, of each the files of gres.conf.
    """
    types = dict.fromkeys(group["type"] for group in gpus)
    return [
        number
        for kind in types
        for group in gpus
        if group["type"] == kind
        for number in sorted(group["numbers"])
    ]


def _gpu_cores(reading: Reading, node: Mapping[str, Any]) -> dict[int, str]:
    """Return the cores near each GPU by its number, in the notation of gres.conf.

    It lacks GPUs that no socket is nearer to than another.

    Slurm numbers cores by socket, and hyper-threads are no cores. slurmctld drains a node whose
    Cores are a part of a socket, so they are whole ones also if the kernel knows a smaller part.
    Facts of an earlier release have no C(gpu_sockets).
    """
    kernel, each = reading.get("kernel_hardware") or {}, node["cores_per_socket"]
    if any(kernel.get(key) != node[key] for key in ("sockets", "cores_per_socket")):
        return {}
    found = {}
    for number, sockets in (reading.get("gpu_sockets") or {}).items():
        near = [socket for socket in sockets if socket < node["sockets"]]
        if 0 < len(near) < node["sockets"]:
            found[int(number)] = _ranges(
                [core for socket in near for core in range(socket * each, (socket + 1) * each)]
            )
    return found


def _memory(found: int, configured: int) -> int:
    """Return the memory to configure in MiB.

    Slurm gives all of it to jobs, so that some is kept for the system. Another kernel of the same
    host reports some MiB less or more: a configured value stays as long as it still fits, because a
    change of a node's line restarts daemons.
    """
    reserve = min(8192, max(512, found // 50))
    expected = found - reserve
    if (
        configured
        and configured <= found - reserve // 2
        and configured >= expected - max(256, found // 100)
    ):
        return configured
    return max(expected, 1)


def _node(name: str, reading: Reading, configured: Mapping[str, str], requested: Requested) -> Node:
    """Return a node: what its lines say. C(configured) are the values of its line in slurm.conf."""
    hardware = requested.node_hardware.get(name) or {}
    models = list(requested.gpu_models.get(name) or [])
    found = dict(reading["hardware"])
    if hardware.get("cpus"):
        found.update(
            cpus=hardware["cpus"], sockets=1, cores_per_socket=hardware["cpus"], threads_per_core=1
        )
    gpus = _gpus(reading, models, requested.gpu_types.get(name, ""))
    configured_memory = int(configured.get("realmemory", 0) or 0)
    memory = hardware.get("real_memory") or _memory(found["real_memory"], configured_memory)
    types = list(dict.fromkeys(group["type"] for group in gpus if group["type"]))
    return {
        "name": name,
        "address": requested.addresses().get(name, ""),
        "hostname": reading["hostname"],
        "cpus": found["cpus"],
        "sockets": found["sockets"],
        "cores_per_socket": found["cores_per_socket"],
        "threads_per_core": found["threads_per_core"],
        "real_memory": memory,
        "gpus": gpus,
        "gpu_count": sum(len(group["numbers"]) for group in gpus),
        "gpu_numbers": _device_numbers(gpus),
        "gpu_cores": _gpu_cores(reading, found),
        "features": list(dict.fromkeys(types + list(requested.node_features.get(name) or []))),
        "release": reading["release"],
        "known": True,
    }


def _gres(kind: str, count: int) -> str:
    return "gpu:%s%d" % (kind + ":" if kind else "", count)


def _node_line(node: Node) -> str:
    words = ["NodeName=" + node["name"]]
    if node["hostname"] and node["hostname"] != node["name"]:
        words.append("NodeHostname=" + node["hostname"])
    words += [
        "NodeAddr=" + node["address"],
        "CPUs=%d" % node["cpus"],
        "Boards=1",
        "SocketsPerBoard=%d" % node["sockets"],
        "CoresPerSocket=%d" % node["cores_per_socket"],
        "ThreadsPerCore=%d" % node["threads_per_core"],
        "RealMemory=%d" % node["real_memory"],
    ]
    # A type that several device files share is one entry: Slurm adds their numbers.
    counts: dict[str, int] = {}
    for group in node["gpus"]:
        counts[group["type"]] = counts.get(group["type"], 0) + len(group["numbers"])
    if counts:
        words.append("Gres=" + ",".join(_gres(kind, count) for kind, count in counts.items()))
    if node["features"]:
        words.append("Feature=" + ",".join(node["features"]))
    # Jobs without a GPU go to the hosts with the fewest.
    words.append("Weight=%d" % (1 + node["gpu_count"]))
    return " ".join(words + ["State=UNKNOWN"])


def _former_line(name: str, values: Mapping[str, str]) -> str:
    """Return the line of a node that did not answer, from slurm.conf."""
    names = {
        "nodeaddr": "NodeAddr",
        "nodehostname": "NodeHostname",
        "cpus": "CPUs",
        "boards": "Boards",
        "socketsperboard": "SocketsPerBoard",
        "corespersocket": "CoresPerSocket",
        "threadspercore": "ThreadsPerCore",
        "realmemory": "RealMemory",
        "gres": "Gres",
        "feature": "Feature",
        "weight": "Weight",
        "state": "State",
    }
    return " ".join(
        ["NodeName=" + name]
        + ["%s=%s" % (names.get(key, key), value) for key, value in values.items()]
    )


# What the site requests.


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, (list, tuple)):
        return ",".join(_text(item) for item in value)
    return str(value)


def option_problems(options: Mapping[Any, Any]) -> list[str]:
    """Return what is wrong with slurm_options, one sentence per key."""
    found: list[str] = []
    seen: dict[str, str] = {}
    for key, value in options.items():
        words = _text(value)
        where = "slurm_options: '%s'" % key
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", key):
            found.append("%s is not a key of slurm.conf; use letters and digits" % where)
            continue
        if key.lower() in seen:
            found.append(
                "%s is the same key as '%s'; keep one of them" % (where, seen[key.lower()])
            )
        seen[key.lower()] = key
        if isinstance(value, dict) or value is None:
            found.append("%s has no text or number as its value; correct or remove it" % where)
        elif (
            re.search(r"[\x00-\x1f\x7f\"#]", words)
            or words.endswith("\\")
            or words != words.strip()
            or not words
        ):
            found.append(
                (
                    "%s has the value %r; use a text without line breaks, quotes, '#', and blanks "
                    "or a backslash at its end"
                )
                % (where, words)
            )
        elif key.lower() in OWNED:
            found.append("%s is set by the roles: %s; remove it" % (where, OWNED[key.lower()]))
        else:
            found += [
                "%s is '%s', which is refused: %s; remove it" % (where, words, why)
                for refused, pattern, why in REFUSED
                if refused == key.lower() and re.search(pattern, words, re.I)
            ]
    return found


def _merged(ours: Mapping[str, str], options: Mapping[str, Any]) -> list[str]:
    """Return the lines of both. The site's value replaces ours, except in lists, where both
    count.
    """
    values = dict(ours)
    names = {key.lower(): key for key in ours}
    for key, value in options.items():
        name = names.get(key.lower(), key)
        words = _text(value)
        if key.lower() in MERGED and values.get(name):
            words = ",".join(
                dict.fromkeys(
                    values[name].split(",")
                    + [part.strip() for part in words.split(",") if part.strip()]
                )
            )
        values[name] = words
    return ["%s=%s" % (key, _quoted(value)) for key, value in values.items() if value != ""]


def _quoted(value: str) -> str:
    """Return a value as slurm.conf takes it."""
    return '"%s"' % value if re.search(r"\s", value) else value


def hosts_of(
    partition: Mapping[str, Any], nodes: list[str], groups: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Return (hosts, unknown names) of a partition.

    An entry is a host, a group of the inventory, or V(all).
    """
    named = partition.get("hosts") or ["all"]
    named = [named] if isinstance(named, str) else list(named)
    found: list[str] = []
    unknown: list[str] = []
    for entry in named:
        if entry == "all":
            found += nodes
        elif entry in nodes:
            found.append(entry)
        elif entry in groups and any(host in nodes for host in groups[entry]):
            found += [host for host in groups[entry] if host in nodes]
        else:
            unknown.append(entry)
    return [name for name in nodes if name in found], unknown


def priority_problems(priorities: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with slurm_priorities, one sentence each."""
    return ["slurm_priorities: " + fault for fault in priority_faults(priorities)]


def _partition_faults(
    entry: Mapping[str, Any], count: int, hosts: tuple[list[str], list[str]], known: list[Any]
) -> list[str]:
    """Return what is wrong with one partition, without its name.

    C(count) is how many have its name, C(hosts) are its hosts and unknown names (see hosts_of),
    and C(known) the names of the priorities.
    """
    found = []
    name = str(entry.get("name", ""))
    if not _WORD.fullmatch(name) or name.lower() in _RESERVED:
        found.append(
            "is not a valid name; use letters, digits, '_', '-' and '.', and none of %s"
            % ", ".join(_RESERVED)
        )
    if count > 1:
        found.append("is listed %d times; keep one" % count)
    members, unknown = hosts
    found += [
        (
            "has the host '%s', which is neither a training host nor a group with one; correct the "
            "name or add the host to group gpu"
        )
        % other
        for other in unknown
    ]
    if not members and not unknown:
        found.append("has no host; list some in 'hosts' or remove the partition")
    minutes = entry.get("max_minutes") or 0
    if isinstance(minutes, bool) or not isinstance(minutes, int) or minutes < 0:
        found.append(
            "has max_minutes '%s'; use a whole number of minutes, 0 for no limit" % (minutes,)
        )
    found += [
        "has the priority '%s', which is not in slurm_priorities; correct the name or add it"
        % other
        for other in entry.get("priorities") or []
        if other not in known
    ]
    return found


def _default_faults(partitions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the choice of the default partition."""
    defaults = [str(entry.get("name", "")) for entry in partitions if entry.get("default")]
    if len(partitions) < 2 or len(defaults) == 1:
        return []
    found = "no partition is the default"
    if defaults:
        found = "%s are all the default" % ", ".join(defaults)
    return [
        (
            "slurm_partitions: %s; set 'default: true' for exactly one, because jobs without "
            "--partition go there"
        )
        % found
    ]


def partition_problems(
    partitions: Sequence[Mapping[str, Any]],
    nodes: list[str],
    groups: Mapping[str, Sequence[str]],
    priorities: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return what is wrong with slurm_partitions, one sentence each."""
    found, names = [], [str(entry.get("name", "")) for entry in partitions]
    known = [entry.get("name") for entry in priorities]
    for entry, name in zip(partitions, names):
        hosts = hosts_of(entry, nodes, groups)
        faults = _partition_faults(entry, names.count(name), hosts, known)
        found += ["slurm_partitions: '%s' %s" % (name, fault) for fault in faults]
    return list(dict.fromkeys(found + _default_faults(partitions)))


# What is wrong with the hosts.


def _meets(release: str, ours: str) -> bool:
    """Return whether daemons of a release work with slurmctld of another one."""
    steps = distance(release, ours)
    return not is_before(ours, release) and (steps is None or steps <= reach(ours))


def release_mismatches(
    scheduler: str, releases: Mapping[str, str], others: list[str]
) -> list[Mismatch]:
    """Return the hosts whose release does not meet that of the scheduler.

    :param releases: of the hosts whose release is known, the scheduler among them.
    :param others: hosts that need Slurm wherever the scheduler is.
    """
    ours = releases.get(scheduler)
    known = {name: release for name, release in releases.items() if release}
    better = [
        name
        for name in known
        if all(_meets(known[each], known[name]) for each in others if each in known)
    ]
    way = (
        "Set cluster_scheduler_host to %s, whose Slurm %s works with that of all hosts"
        % (better[0], known[better[0]])
        if better
        else "No host of this cluster has a Slurm that works with all others. Install one release "
        "of the distribution on all of them, or set "
        "slurm_packages_source to a repository with one release of Slurm for each of their "
        "distributions"
    )
    found: list[Mismatch] = []
    for name, release in known.items():
        if not ours or name == scheduler or _meets(release, ours):
            continue
        if is_before(ours, release):
            why = "is newer than %s of the scheduler %s, and slurmctld must be the newest" % (
                ours,
                scheduler,
            )
        else:
            first = RELEASES[RELEASES.index(ours) - reach(ours)]
            why = "is too old for %s of the scheduler %s, which talks to %s and later" % (
                ours,
                scheduler,
                first,
            )
        found.append({"host": name, "found": "Slurm %s %s" % (release, why), "way": way})
    return found


def _release_problems(scheduler: str, releases: Mapping[str, str], others: list[str]) -> list[str]:
    """Return the problems of the releases that meet.

    The scheduler must be the newest: slurm's upgrade guide.
    """
    found = []
    for name, release in releases.items():
        if not release:
            found.append(
                (
                    "%s: no Slurm is installed or installable; expected %s to %s. Add the "
                    "distribution's main package source"
                )
                % (name, OLDEST, NEWEST)
            )
        elif is_before(release, OLDEST):
            found.append(
                "%s: Slurm %s found; expected %s to %s. Upgrade the distribution"
                % (name, release, OLDEST, NEWEST)
            )
    return found + [
        "%s: %s. %s" % (entry["host"], entry["found"], entry["way"])
        for entry in release_mismatches(scheduler, releases, others)
    ]


def _host_problems(
    name: str,
    reading: Reading,
    node: Node,
    configured: Mapping[str, str],
    models: list[str],
    hardware: Mapping[str, int],
) -> list[str]:
    """Return what is wrong with a training host.

    C(configured) are the values of its line in slurm.conf, empty if it may have less than before.
    """
    found = []
    if not _NODE.fullmatch(name) or name.lower() in _RESERVED:
        found.append(
            (
                "%s: not a valid node name for Slurm; use letters, digits, '-', '_' and '.' in the "
                "inventory"
            )
            % name
        )
    if not node["address"]:
        found.append(
            "%s: the host has no address on the cluster network; set cluster_address" % name
        )
    if hardware and not reading["container"]:
        found.append(
            (
                "%s: its hardware is set by a variable, but it is not a container; Slurm would "
                "take it out of service. Remove slurm_node_hardware"
            )
            % name
        )
    if models and len(models) > len(reading["gpus"]):
        found.append(
            (
                "%s: the driver reports %d GPUs, but there are %d device nodes /dev/nvidiaN. Start "
                "nvidia-persistenced, or run nvidia-modprobe -c 0 -u"
            )
            % (name, len(models), len(reading["gpus"]))
        )
    before = gpus_of(configured)
    if before > node["gpu_count"]:
        found.append(
            "%s: %d GPUs found, %d configured. Repair the host, or list it in slurm_accept_smaller"
            % (name, node["gpu_count"], before)
        )
    memory = int(configured.get("realmemory", 0) or 0)
    if memory > reading["hardware"]["real_memory"] and not hardware.get("real_memory"):
        found.append(
            (
                "%s: %d MiB of memory found, %d configured. Replace the failed memory, or list the "
                "host in slurm_accept_smaller"
            )
            % (name, reading["hardware"]["real_memory"], memory)
        )
    cpus = int(configured.get("cpus", 0) or 0)
    if cpus > node["cpus"]:
        found.append(
            (
                "%s: %d CPUs found, %d configured. Check the firmware's settings for cores and "
                "threads, or list the host in slurm_accept_smaller"
            )
            % (name, node["cpus"], cpus)
        )
    return found


def _same(entries: Iterable[tuple[str, str]], sentence: str) -> list[str]:
    """Return a sentence per value that several hosts share. C(entries) are (host, value)."""
    hosts: dict[str, list[str]] = {}
    for host, value in entries:
        if value:
            hosts.setdefault(value, []).append(host)
    return [
        sentence % (value, " and ".join(names)) for value, names in hosts.items() if len(names) > 1
    ]


def munge_hosts(readings: Readings, scheduler: str) -> list[str]:
    """Return the hosts to which the scheduler's munge key must be copied: each package makes a key
    of its own, and munged refuses one that others can read.
    """
    expected = readings[scheduler]["munge_key"]["digest"]
    return [
        name
        for name, reading in readings.items()
        if reading
        and name != scheduler
        and (
            not expected
            or reading["munge_key"]["digest"] != expected
            or not reading["munge_key"]["private"]
        )
    ]


def _is_ours(reading: Reading) -> bool:
    """Return whether a host's slurm.conf is of these roles, or there is none."""
    text: str = reading["texts"].get(FOLDER + "/slurm.conf", "")
    return not text or text.startswith(HEADING)


def foreign_problems(known: Readings, scheduler: str) -> list[str]:
    """Return the hosts that belong to a Slurm cluster of someone else: it would be overwritten, or
    their commands would still ask it.
    """
    found = []
    for name, reading in known.items():
        if _is_ours(reading):
            continue
        why = "Slurm's commands on the host use another cluster"
        if name == scheduler:
            why = "a Slurm cluster of the site runs here"
        found.append(
            (
                "%s: %s/slurm.conf was not written by these roles, so %s. Remove the file if that "
                "cluster is no longer used, or set cluster_scheduler to none"
            )
            % (name, FOLDER, why)
        )
    return found


def former_scheduler_problems(readings: Readings, scheduler: str) -> list[str]:
    """Return the hosts on which slurmctld of these roles still runs although cluster_scheduler_host
    has changed.
    """
    return [
        "%s: slurmctld still runs here, but the scheduler is %s. Two schedulers would give out "
        "the same hosts, and the accounts are in the database of %s. "
        "Set cluster_scheduler_host to %s, or run playbook teardown with the former value first"
        % (name, scheduler, name, name)
        for name, reading in readings.items()
        if name != scheduler
        and reading["services"]["slurmctld"]["active"]
        and reading["texts"].get(FOLDER + "/slurm.conf", "").startswith(HEADING)
    ]


# The files.


def limits_fault(cgroup: Mapping[str, Any], release: str) -> str:
    """Return why Slurm cannot limit jobs on a host with these control groups, or empty.

    Without C(release) it is not judged.
    """
    if not cgroup["usable"]:
        return str(cgroup["why"])
    # cgroup/v2 came with 22.05.
    if cgroup["version"] == 2 and release and is_before(release, "22.05"):
        return "Slurm %s does not know control groups version 2" % release
    return ""


def cgroups_usable(readings: Readings, releases: Mapping[str, str]) -> tuple[bool, str]:
    """Return (usable, why not): one cluster has one ProctrackType, so the weakest host decides."""
    for name, reading in readings.items():
        why = limits_fault(reading["cgroup"], releases[name])
        if why:
            return False, "%s: %s" % (name, why)
    return True, ""


def way_to_limits(cgroup: Mapping[str, Any]) -> str:
    """Return what gives a host control groups that Slurm can use."""
    if cgroup["usable"]:
        return (
            "start the kernel with systemd.unified_cgroup_hierarchy=0, which gives it version 1, "
            "or install Slurm 22.05 or later: from a repository for this distribution that "
            "slurm_packages_source names, or with Ubuntu 24.04 or Debian 12"
        )
    if "is a container" in cgroup["why"]:
        return "use a machine in place of a container"
    return (
        "start the kernel with systemd.unified_cgroup_hierarchy=1 cgroup_enable=memory, "
        "or use a host with control groups version 2"
    )


def no_limits_problems(readings: Readings, releases: Mapping[str, str]) -> list[str]:
    """Return a problem for each host on which Slurm cannot limit jobs."""
    sentence = (
        "%s: Slurm cannot limit jobs here, because %s. One such host takes the limits of CPUs, "
        "memory and GPUs from all jobs of the cluster. To get them, %s. To do without, set "
        "'slurm_accept_no_limits: true' in the variables of group cluster. Then everybody can "
        "use all "
        "GPUs and all memory of a host"
    )
    found = []
    for name, reading in readings.items():
        why = limits_fault(reading["cgroup"], releases[name])
        if why:
            found.append(sentence % (name, why, way_to_limits(reading["cgroup"])))
    return found


def _heading(*lines: str) -> list[str]:
    return [HEADING] + ["# " + line for line in lines]


def slurm_conf(
    requested: Requested, cluster: _Cluster, planned: _Nodes, partitions: list[Partition]
) -> str:
    """Return the text of slurm.conf."""
    notes = []
    names_one = "mailprog" in {key.lower() for key in requested.options}
    if not cluster.mail_program and not names_one:
        notes = ["No mail program is installed on the scheduler, so --mail-type has no effect."]
    lines = _heading(*notes) + _merged(_own_keys(requested, cluster), requested.options)
    lines += [_node_line(node) for node in planned.nodes.values() if node["known"]]
    lines += planned.former
    lines += [_partition_line(partition) for partition in partitions]
    return "\n".join(lines) + "\n"


def _task_plugin(cluster: _Cluster) -> str:
    if cluster.limited:
        return "task/affinity,task/cgroup"
    return "task/none" if cluster.controller["lab"] else "task/affinity"


def _own_keys(requested: Requested, cluster: _Cluster) -> dict[str, str]:
    """Return the keys that the roles set. An empty value means that the key is left out."""
    controller, usable, scripts = cluster.controller, cluster.limited, requested.scripts
    health_check = bool(scripts["health"])
    return {
        "ClusterName": requested.cluster_name,
        "SlurmctldHost": "%s(%s)" % (controller["hostname"], controller["address"]),
        "SlurmUser": SLURM_USER,
        "AuthType": "auth/munge",
        # A job of root would be outside of every quota. Jobs of role train are those of SlurmUser.
        "DisableRootJobs": "YES",
        "StateSaveLocation": STATE + "/slurmctld",
        "SlurmdSpoolDir": STATE + "/slurmd",
        "SlurmctldLogFile": LOGS + "/slurmctld.log",
        "SlurmdLogFile": LOGS + "/slurmd.log",
        "SlurmctldPidFile": controller["pid_file"],
        "SlurmdPidFile": "/run/slurmd.pid",
        # slurmd gets all files from slurmctld, so that there is one copy of them.
        "SlurmctldParameters": "enable_configless",
        # Only for containers that share a machine: each claims CPUs that it does not have.
        "SlurmdParameters": "config_overrides" if controller["lab"] else "",
        # A host that registers with all it should have is used again, also after an unexpected
        # reboot. Drained hosts stay drained.
        "ReturnToService": "2",
        "SlurmctldTimeout": "120",
        "SlurmdTimeout": "300",
        "KillWait": "30",
        # A process in an uninterruptible call of NFS or of the driver needs longer than the default
        # of 60 s. Then the node is drained.
        "UnkillableStepTimeout": "180",
        "MinJobAge": "300",
        "MpiDefault": "none",
        # The soft limit of a person's login, 8 MiB by default, would stop InfiniBand and NCCL,
        # which lock memory. slurmd's own limit is unlimited.
        "PropagateResourceLimitsExcept": "MEMLOCK",
        "LaunchParameters": "use_interactive_step",
        "MailProg": cluster.mail_program or "/bin/true",
        "ProctrackType": "proctrack/cgroup" if usable else "proctrack/linuxproc",
        "TaskPlugin": _task_plugin(cluster),
        "JobAcctGatherType": "jobacct_gather/cgroup" if usable else "jobacct_gather/linux",
        "JobAcctGatherFrequency": "30",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        # Also without a GPU: the first one then needs no restart, and quotas on gres/gpu can be
        # made.
        "GresTypes": "gpu",
        # A request that no host can fill is refused at submit.
        "EnforcePartLimits": "ALL",
        "PriorityType": "priority/multifactor",
        "PriorityDecayHalfLife": "7-0",
        "PriorityMaxAge": "7-0",
        "PriorityWeightQOS": "100000",
        "PriorityWeightFairshare": "10000",
        "PriorityWeightAge": "1000",
        "PreemptType": "preempt/qos",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": controller["address"],
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStorageEnforce": "associations,limits,qos,safe",
        # Commands, paths and past usage of others are hidden. Not usage: a person must see how much
        # of the account's quota is taken, and slurmctld would show only the person's own part.
        # slurmdbd.conf hides usage too.
        "PrivateData": "accounts,jobs,users",
        # pam_slurm_adopt needs the step that Contain creates. slurmctld calls it an error without
        # proctrack/cgroup.
        "PrologFlags": "Contain" if usable else "Alloc",
        # Debian's plugstack.conf includes *.conf, which a configless slurmctld reports as an error
        # at each start. The flag came with 23.11.
        "DebugFlags": "" if is_before(cluster.oldest, "23.11") else "GLOB_SILENCE",
        "Prolog": scripts["prolog"],
        "Epilog": scripts["epilog"],
        "PrologEpilogTimeout": "120" if scripts["prolog"] or scripts["epilog"] else "",
        # scontrol reboot ASAP nextstate=RESUME. A server with many GPUs and much memory takes long
        # to boot.
        "RebootProgram": "/usr/sbin/reboot",
        "ResumeTimeout": "1800",
        "HealthCheckProgram": scripts["health"],
        "HealthCheckInterval": "300" if health_check else "",
        "HealthCheckNodeState": "ANY,CYCLE" if health_check else "",
    }


def _partition_line(partition: Partition) -> str:
    words = [
        "PartitionName=" + partition["name"],
        "Nodes=" + ",".join(partition["hosts"]),
        "Default=" + ("YES" if partition["default"] else "NO"),
        "MaxTime=" + (str(partition["max_minutes"]) if partition["max_minutes"] else "INFINITE"),
        "State=UP",
    ]
    if partition["default_minutes"]:
        words.append("DefaultTime=%d" % partition["default_minutes"])
    if partition["memory_per_cpu"]:
        words.append("DefMemPerCPU=%d" % partition["memory_per_cpu"])
    if partition["cpus_per_gpu"]:
        words.append("DefCpuPerGPU=%d" % partition["cpus_per_gpu"])
    if partition["priorities"]:
        words.append("AllowQos=" + ",".join(partition["priorities"]))
    # Fair share and usage count GPUs. Without it only CPUs are counted.
    words.append("TRESBillingWeights=CPU=1.0,GRES/gpu=100.0")
    return " ".join(words)


def gres_conf(nodes: list[Node], former: list[str]) -> str:
    """Return the text of gres.conf: a line per host, model and cores.

    C(former) are the lines of hosts that did not answer.

    The order of the files is that of the numbers: Slurm counts GPUs by it.
    """
    lines = _heading()
    for node in nodes:
        cores = node["gpu_cores"]
        for group in node["gpus"]:
            words = ["NodeName=" + node["name"], "Name=gpu"] + (
                ["Type=" + group["type"]] if group["type"] else []
            )
            flags = "Flags=" + _FLAGS.get(group["kind"], "no_gpu_env")
            for near, numbers in itertools.groupby(sorted(group["numbers"]), cores.get):
                files = ["File=" + _files(group["prefix"], numbers)]
                files += ["Cores=" + near] if near else []
                lines.append(" ".join([*words, *files, flags]))
    return "\n".join(lines + former) + "\n"


def cgroup_conf(usable: bool, why: str, cgroups: list[dict[str, Any]], oldest: str) -> str:
    """Return the text of cgroup.conf.

    C(cgroups) are those of the hosts, C(why) says why they are not C(usable).

    CgroupAutomount is not in it: systemd mounts control groups, and 23.11 and later complain about
    the key.
    """
    if not usable:
        lines = _heading("No limits: %s." % why)
        # The value came with 24.05. Earlier releases load no plugin if nothing needs it.
        if not is_before(oldest, "24.05"):
            lines.append("CgroupPlugin=disabled")
        return "\n".join(lines) + "\n"
    lines = _heading()
    if all(cgroup["cores"] for cgroup in cgroups):
        lines.append("ConstrainCores=yes")
    lines += ["ConstrainDevices=yes", "ConstrainRAMSpace=yes"]
    if cgroups and all(cgroup["swap"] for cgroup in cgroups):
        lines.append("ConstrainSwapSpace=yes")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(controller: Controller) -> str:
    """Return the text of slurmdbd.conf."""
    return (
        "\n".join(
            _heading()
            + [
                "AuthType=auth/munge",
                "DbdHost=" + controller["hostname"],
                "DbdAddr=" + controller["address"],
                "SlurmUser=slurm",
                "LogFile=%s/slurmdbd.log" % LOGS,
                "PidFile=" + controller["database_pid_file"],
                "PrivateData=accounts,jobs,usage,users",
                "StorageType=accounting_storage/mysql",
                "StorageHost=localhost",
                "StorageUser=slurm",
                "StorageLoc=" + DATABASE,
            ]
        )
        + "\n"
    )


def database_conf(release: str, own: bool) -> str:
    """Return the drop-in for MariaDB, with what slurmdbd checks when it starts
    (accounting_storage_mysql.c, _check_database_variables).

    C(own): the server was installed for Slurm. Another one may serve others by network.
    """
    # slurmdbd from 23.11 on expects 2 GiB at least, earlier ones 512 MiB. InnoDB takes memory as it
    # needs it.
    pool = 512 if is_before(release, "23.11") else 2048
    lines = _heading() + ["[mariadbd]"] + (["skip-networking"] if own else [])
    lines += [
        "innodb_buffer_pool_size=%dM" % pool,
        "innodb_log_file_size=64M",
        "innodb_lock_wait_timeout=900",
        "max_allowed_packet=16M",
    ]
    return "\n".join(lines) + "\n"


def slurmd_drop_in(controller: Controller) -> str:
    """Return the drop-in of slurmd.service.

    Debian 12's unit starts only with a local slurm.conf, which a configless host has not. A host
    that boots before the scheduler tries again.
    """
    return (
        "\n".join(
            _heading()
            + [
                "[Unit]",
                "ConditionPathExists=",
                "StartLimitIntervalSec=0",
                "[Service]",
                # A value in the file would replace that of Environment=.
                "EnvironmentFile=",
                'Environment="SLURMD_OPTIONS=--conf-server %s:6817"' % controller["address"],
                "Restart=on-failure",
                "RestartSec=10",
            ]
        )
        + "\n"
    )


CHECK = "/usr/local/lib/trainyard/slurm/check-slurm-conf"
# No release has a test mode. slurmctld starts with the new file in a network of its own, where no
# node and no database can be reached, with an empty state. What needs the database is left out.
CHECK_SCRIPT = r"""#!/bin/sh
# Managed by Ansible (trainyard.gpu). Changes are overwritten.
# check-slurm-conf FILE: start slurmctld with the file, away from network, state and database, and print its errors. The running slurmctld is left alone.
set -u
dir=$(mktemp -d /tmp/trainyard-slurm.XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"; mkdir "$dir/state"; chown slurm: "$dir/state"
sed -E -e '/^(AccountingStorage|JobAcctGather|PriorityWeight(Age|Fair))[A-Za-z]*=/Id' -e '/^(StateSaveLocation|Slurmctld(Pid|Log)File)=/Id' \
  -e 's/ (AllowQos|TRESBillingWeights)=[^ ]+//Ig' "$1" > "$dir/slurm.conf"
echo "StateSaveLocation=$dir/state" >> "$dir/slurm.conf"
echo "SlurmctldPidFile=$dir/state/pid" >> "$dir/slurm.conf"
start() {
  rm -rf "$dir/state"/*
  : > "$dir/log"
  unshare --net sh -c 'ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec slurmctld -D -c -f "$1"' sh "$dir/slurm.conf" > "$dir/log" 2>&1 &
  pid=$!
  count=0
  while [ "$count" -lt 300 ] && kill -0 "$pid" 2> /dev/null && ! grep -q 'Running as primary controller' "$dir/log"; do sleep 0.1; count=$((count + 1)); done
  kill -9 "$pid" 2> /dev/null
  wait "$pid" 2> /dev/null
  # Errors of an empty state and of a busy machine are not those of the file.
  grep -E '(error|fatal):' "$dir/log" | grep -vE 'state (save )?file|High latency' > "$dir/errors"
  grep -q 'Running as primary controller' "$dir/log" && ! test -s "$dir/errors"
}
# An error that does not come again is not one of the file either.
start || start || { cat "$dir/errors" >&2; test -s "$dir/errors" || cat "$dir/log" >&2; exit 1; }
"""


def check_files() -> list[File]:
    """Return the files of the check on the scheduler."""
    folder, parent = CHECK.rsplit("/", 1)[0], CHECK.rsplit("/", 2)[0]
    return [_folder(parent), _folder(folder), _entry(CHECK, CHECK_SCRIPT, mode="0755")]


# The plan.


def packages(reading: Reading, release: str, roles: Sequence[str]) -> list[str]:
    """Return the names of the packages that a host needs for its C(roles): controller, node, login.

    Of optional ones those that the distribution has.
    """
    available = dict(reading["candidates"], **reading["packages"])
    names = ["munge", "slurm-client"]
    if "controller" in roles:
        # The check of slurm.conf needs iproute2.
        names += ["slurmctld", "slurmdbd", "mariadb-server", "iproute2"] + [
            name for name in ("slurm-wlm-mysql-plugin",) if name in available
        ]
    if "node" in roles:
        names.append("slurmd")
    # On a login host it would lock people out.
    if "node" in roles and "login" not in roles:
        # Both, because the control groups of one host decide for all, and they are a few kB.
        names += [name for name in _slurm_ssh.PACKAGES.values() if name in available]
    if needs_pmix_link(release):
        names.append("libpmix2")
    return names


def needs_pmix_link(release: str) -> bool:
    """Return whether the daemons log an error at each start unless libpmix.so can be opened under
    this name. Debian 13's plugin opens libpmix.so.2.
    """
    return not is_before(release, "22.05") and is_before(release, "24.05")


def pmix_files(reading: Reading, release: str) -> list[File]:
    """Return the link libpmix.so for a host. libpmix-dev has it too, and 35 packages that a
    training host does not need.
    """
    folder = reading["pmix_folder"]
    if not folder or not needs_pmix_link(release):
        return []
    if reading["pmix_link"] not in ("", "libpmix.so.2"):
        return []
    return [{"path": folder + "/libpmix.so", "state": "link", "src": "libpmix.so.2"}]


def _pid_file(reading: Reading, service: str) -> str:
    """Return where a daemon may write: units with a user of their own have a folder in /run."""
    folder = reading["services"][service]["runtime_directory"]
    return "/run/%s%s.pid" % (folder + "/" if folder else "", service)


def _controller(reading: Reading, address: str, lab: bool) -> Controller:
    return {
        "hostname": reading["hostname"],
        "address": address,
        "lab": lab,
        "pid_file": _pid_file(reading, "slurmctld"),
        "database_pid_file": _pid_file(reading, "slurmdbd"),
    }


def _minutes(entry: Mapping[str, Any], limits: Mapping[str, int]) -> tuple[int, int]:
    """Return the longest time of a partition, and the time of a job that names none.

    0 means no limit, and the longest time.
    """
    longest, usual = limits["max_minutes"], limits["default_minutes"]
    if entry.get("max_minutes") is not None:
        longest = int(entry["max_minutes"])
    if entry.get("default_minutes") is not None:
        usual = int(entry["default_minutes"])
    return longest, min(longest, usual) if longest else usual


def _partitions(requested: Requested, nodes: Mapping[str, Node]) -> list[Partition]:
    """Return the partitions that have a host, with what their lines say."""
    live = []
    for entry in requested.partitions:
        named = hosts_of(entry, list(requested.hosts), requested.groups)[0]
        hosts = [name for name in named if name in nodes]
        if hosts:
            live.append((entry, hosts))
    planned: list[Partition] = []
    for entry, hosts in live:
        members = [nodes[name] for name in hosts if nodes[name]["known"]]
        with_gpus = [node for node in members if node["gpu_count"]]
        longest, usual = _minutes(entry, requested.limits)
        planned.append(
            {
                "name": entry["name"],
                "hosts": hosts,
                "default": bool(entry.get("default")) or len(live) == 1,
                "max_minutes": longest,
                "default_minutes": usual,
                "priorities": list(entry.get("priorities") or []),
                # A job that names no memory would otherwise take all of a host.
                "memory_per_cpu": min(
                    (node["real_memory"] // node["cpus"] for node in members), default=0
                ),
                # A job that names GPUs only gets its part of the CPUs, and by these of the memory.
                "cpus_per_gpu": min(
                    (node["cpus"] // node["gpu_count"] for node in with_gpus), default=0
                ),
            }
        )
    return planned


def _entry(path: str, content: str, mode: str = "0644", owner: str = "root") -> File:
    return {"path": path, "content": content, "mode": mode, "owner": owner, "group": owner}


def _folder(path: str) -> File:
    return {"path": path, "state": "directory", "mode": "0755", "owner": "root", "group": "root"}


def _partial_limits(readings: Readings) -> list[str]:
    """Return what Slurm cannot limit on training hosts on which it can limit jobs."""
    groups = {name: reading["cgroup"] for name, reading in readings.items()}
    second = [name for name, group in groups.items() if group["version"] == 2]
    found = []
    without_cores = [name for name, group in groups.items() if not group["cores"]]
    if without_cores:
        sentence = (
            "jobs are not limited to their CPUs, because %s has no control group controller cpuset"
        )
        found.append(sentence % ", ".join(without_cores))
    without_swap = [name for name in second if not groups[name]["swap"]]
    if without_swap:
        sentence = "swap of jobs is not limited, because the kernel of %s does not count it"
        found.append(sentence % ", ".join(without_swap))
    if second:
        sentence = (
            "%s: no system bus, by which slurmd requests its scope from systemd; install dbus"
        )
        found += [sentence % name for name, reading in readings.items() if not reading["dbus"]]
    return found


class _Nodes(NamedTuple):
    """The nodes of the plan.

    C(former) and C(former_gres) are the lines of slurm.conf and gres.conf of hosts that did not
    answer.
    """

    nodes: dict[str, Node]
    former: list[str]
    former_gres: list[str]
    problems: list[str]
    warnings: list[str]


def _read_node(
    name: str, reading: Reading, former: Mapping[str, str], requested: Requested
) -> _Nodes:
    """Return the node of a host that was read. C(former) are the values of its line in
    slurm.conf.
    """
    configured = {} if name in requested.accept_smaller else former
    node = _node(name, reading, configured, requested)
    warnings = [
        (
            "%s: the driver does not tell the model of its GPUs, so its jobs cannot choose one by "
            "--constraint; set slurm_gpu_type"
        )
        % name
        for group in node["gpus"]
        if not group["type"]
    ]
    return _Nodes(
        {name: node},
        [],
        [],
        _host_problems(
            name,
            reading,
            node,
            configured,
            list(requested.gpu_models.get(name) or []),
            requested.node_hardware.get(name) or {},
        ),
        warnings,
    )


def _unread_node(name: str, former: Mapping[str, str] | None, former_gres: list[str]) -> _Nodes:
    """Return the node of a host that did not answer: its former lines, if it has any.

    Its jobs may still run. Without its line slurmctld would end them.
    """
    if former is None:
        sentence = (
            "%s: the host does not answer and was no node before; it is added when it answers"
        )
        return _Nodes({}, [], [], [], [sentence % name])
    size = _slurm_limits.node_size(former)
    node: Node = {
        "name": name,
        "known": False,
        "gpu_count": gpus_of(former),
        "features": former.get("feature", "").split(","),
        "cpus": size["cpus"],
        "real_memory": size["real_memory"],
    }
    lines = [line for line in former_gres if re.match(r"NodeName=%s " % re.escape(name), line)]
    warning = "%s: the host does not answer; its node stays as it is" % name
    return _Nodes({name: node}, [_former_line(name, former)], lines, [], [warning])


def _nodes(readings: Readings, requested: Requested) -> _Nodes:
    """Return the nodes of all training hosts, in the order of the request."""
    texts = readings[requested.scheduler]["texts"]
    former = parse_conf(texts.get(FOLDER + "/slurm.conf"))["nodes"]
    former_gres = parse_conf(texts.get(FOLDER + "/gres.conf"))["lines"]
    total = _Nodes({}, [], [], [], [])
    for name in requested.hosts:
        if readings.get(name):
            one = _read_node(name, readings[name], former.get(name, {}), requested)
        else:
            one = _unread_node(name, former.get(name), former_gres)
        total.nodes.update(one.nodes)
        for kind in ("former", "former_gres", "problems", "warnings"):
            getattr(total, kind).extend(getattr(one, kind))
    return total


def _input_problems(requested: Requested) -> list[str]:
    """Return what is wrong with the variables, whatever the hosts are."""
    problems = option_problems(requested.options)
    if not _CLUSTER.fullmatch(requested.cluster_name):
        problems.append(
            (
                "slurm_cluster_name: '%s' is not a valid name; use at most 40 lower-case letters, "
                "digits and '_', and a letter first"
            )
            % requested.cluster_name
        )
    problems += priority_problems(requested.priorities)
    problems += partition_problems(
        requested.partitions, list(requested.hosts), requested.groups, requested.priorities
    )
    for host, features in requested.node_features.items():
        problems += [
            "slurm_node_features: %s has the feature '%s'; use letters, digits, '_', '-' and '.'"
            % (host, feature)
            for feature in features
            if not _WORD.fullmatch(str(feature))
        ]
    return problems


def _unreadable(readings: Readings, scheduler: str) -> list[str]:
    """Return why nothing can be planned from the readings."""
    if not readings.get(scheduler):
        return [
            (
                "%s: the scheduler was not read; check that the host answers, or set "
                "cluster_scheduler_host to another one"
            )
            % scheduler
        ]
    return [
        fault
        for name, reading in readings.items()
        for fault in reading_faults(name, reading or {}, SLURM)
    ]


def _cluster_problems(
    readings: Readings, requested: Requested, nodes: Mapping[str, Node]
) -> list[str]:
    """Return why the hosts cannot be one cluster."""
    scheduler, problems = requested.scheduler, []
    known = _known(readings, [scheduler, *requested.hosts])
    releases = _releases(known)
    training = _known(readings, requested.hosts)
    if not requested.addresses().get(scheduler):
        problems.append(
            "%s: the scheduler has no address on the cluster network; set cluster_address"
            % scheduler
        )
    problems += foreign_problems(known, scheduler)
    problems += former_scheduler_problems(readings, scheduler)
    problems += _release_problems(
        scheduler, releases, list(requested.hosts) + list(requested.login_hosts)
    )
    problems += _same(
        [(name, nodes[name]["address"]) for name in training],
        "address %s: both %s have it; correct cluster_address",
    )
    problems += _same(
        [(name, nodes[name]["hostname"]) for name in training],
        "host name %s: %s have the same; set a name of its own for each",
    )
    if not requested.accept_no_limits:
        problems += no_limits_problems(training, releases)
    if not nodes:
        problems.append(
            (
                "no training host was read, so the cluster would have no node; check that the "
                "hosts of group gpu answer"
            )
        )
    return problems


def _known(readings: Readings, names: Iterable[str]) -> dict[str, Reading]:
    """Return the readings of these hosts that were read, each once."""
    return {name: readings[name] for name in dict.fromkeys(names) if readings.get(name)}


def _releases(readings: Readings) -> dict[str, str]:
    return {name: reading["release"] for name, reading in readings.items()}


def _class_warnings(accounts: Sequence[Mapping[str, Any]], nodes: Mapping[str, Node]) -> list[str]:
    """Return a warning for each host class of an account that no host has."""
    classes = {feature for node in nodes.values() for feature in node["features"]}
    return [
        "slurm_accounts: '%s' names the host class '%s', which no host has; hosts have %s"
        % (account.get("name", ""), requested, ", ".join(sorted(filter(None, classes))) or "none")
        for account in accounts
        for requested in account.get("hosts_classes") or []
        if requested not in classes
    ]


def _limit_warnings(training: Readings, cluster: _Cluster) -> list[str]:
    """Return what jobs are not limited to. C(training) are the readings of the training hosts."""
    if cluster.limited:
        return _partial_limits(training)
    return [
        "jobs are not limited to their CPUs, memory and devices, because not every host can: %s"
        % cluster.unlimited_why
    ]


def _logins(
    readings: Readings, requested: Requested, limited: bool
) -> tuple[dict[str, _slurm_ssh.Rule], list[str]]:
    """Return (who can log in to each host, and what people get there outside of jobs; warnings)."""
    addresses = list(filter(None, requested.addresses().values()))
    people = _slurm_ssh.People(**requested.ssh)
    rules: dict[str, _slurm_ssh.Rule] = {}
    open_hosts: list[str] = []
    dropped: list[str] = []
    outside: list[str] = []
    for name, reading in readings.items():
        if not reading:
            continue
        trains, admits = name in requested.hosts, name in requested.login_hosts
        host = _slurm_ssh.Host(name, trains and not admits, limited, addresses)
        rule = rules[name] = _slurm_ssh.ssh_rule(reading, host, people)
        kind: _slurm_sessions.Kind = {
            "training": trains,
            "login": admits,
            "scheduler": name == requested.scheduler,
            "only_in_jobs": rule["rule"] != "none",
            "usable": limited,
        }
        sessions = _slurm_sessions.sessions(reading, kind, dict(OUTSIDE, **requested.outside))
        rule["steps"] = rule["steps"] + sessions["steps"]
        if trains and "; " in rule["why"]:
            open_hosts.append("%s: people can log in without a job: %s" % (name, rule["why"]))
        dropped += [
            (
                "%s: '%s', who ran Ansible before, needs a job there from now on; add the name to "
                "slurm_ssh_users to keep the access"
            )
            % (name, user)
            for user in rule["dropped"]
        ]
        outside += ["%s: %s" % (name, sentence) for sentence in sessions["warnings"]]
    return rules, open_hosts + dropped + outside


def _cluster_of(readings: Readings, requested: Requested) -> _Cluster:
    """Return what all hosts of the cluster decide together."""
    scheduler = requested.scheduler
    releases = _releases(_known(readings, [scheduler, *requested.hosts]))
    training = _known(readings, requested.hosts)
    limited, why = cgroups_usable(training, releases)
    lab = any(requested.node_hardware.get(name) for name in training)
    return _Cluster(
        controller=_controller(readings[scheduler], requested.addresses().get(scheduler, ""), lab),
        limited=limited,
        unlimited_why=why,
        oldest=min(value for value in releases.values() if value),
        mail_program=readings[scheduler]["mail_program"],
    )


def _packages(readings: Readings, requested: Requested) -> dict[str, list[str]]:
    """Return the names of the packages by host."""
    parts = (
        ("controller", [requested.scheduler]),
        ("node", requested.hosts),
        ("login", requested.login_hosts),
    )
    found = {}
    for name, reading in readings.items():
        roles = [role for role, hosts in parts if name in hosts]
        if reading and roles:
            found[name] = packages(reading, reading["release"], roles)
    return found


def _change(
    readings: Readings, scheduler: str, texts: Mapping[str, str], nodes: Mapping[str, Node]
) -> tuple[Effect, bool]:
    """Return (what the change of the files needs, whether an earlier run was interrupted)."""
    controller = readings[scheduler]
    release = controller["release"]
    old = {
        name: controller["texts"].get("%s/%s.conf" % (FOLDER, name), "")
        for name in ("slurm", "gres", "cgroup", "mpi")
    }
    releases = _releases(_known(readings, list(nodes)))
    pending = _read_pending(controller["texts"].get(PENDING))
    change = effect(old, texts, release, {name: releases.get(name) or release for name in nodes})
    return _with_pending(change, pending, nodes), bool(pending)


def _scheduler_files(
    reading: Reading, cluster: _Cluster, texts: Mapping[str, str], change: Effect
) -> SchedulerFiles:
    """Return the files of the scheduler, by what they are for. C(reading) is its own."""
    own_database = "mariadb-server" not in reading["packages"] or "mariadb-server" in (
        reading["record"].get("packages") or []
    )
    configuration = [
        _entry("%s/%s.conf" % (FOLDER, name), texts[name]) for name in ("cgroup", "gres", "slurm")
    ]
    configuration[-1]["validate"] = CHECK + " %s"
    slurmdbd = slurmdbd_conf(cluster.controller)
    return {
        "database_files": [
            _folder("/etc/mysql/mariadb.conf.d"),
            _entry(
                "/etc/mysql/mariadb.conf.d/60-trainyard-slurm.cnf",
                database_conf(reading["release"], own_database),
            ),
        ],
        "slurmdbd_files": [_entry(FOLDER + "/slurmdbd.conf", slurmdbd, mode="0600", owner="slurm")],
        "controller_files": configuration,
        # Both must exist before slurm.conf is validated.
        "check_files": check_files(),
        "pending_files": [
            _folder("/var/lib/trainyard"),
            _folder(PENDING.rsplit("/", 1)[0]),
            _entry(PENDING, json.dumps(change, indent=2, sort_keys=True) + "\n"),
        ],
        "sql": [
            "CREATE DATABASE IF NOT EXISTS %s" % DATABASE,
            "CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket",
            "GRANT ALL ON %s.* TO 'slurm'@'localhost'" % DATABASE,
        ],
    }


def _host_files(
    readings: Readings, requested: Requested, cluster: _Cluster, slurm: str
) -> HostFiles:
    """Return the files of the other hosts, by what they are for.

    C(slurm) is the text of slurm.conf.
    """
    scheduler = requested.scheduler
    training = _known(readings, requested.hosts)
    return {
        "node_files": [
            _folder("/etc/systemd/system/slurmd.service.d"),
            _entry(
                "/etc/systemd/system/slurmd.service.d/trainyard.conf",
                slurmd_drop_in(cluster.controller),
            ),
        ],
        # A training host that was a login host before: its commands would use the file instead of
        # slurmd's.
        "absent": {
            name: [FOLDER + "/slurm.conf"]
            for name, reading in training.items()
            if name != scheduler and reading["texts"].get(FOLDER + "/slurm.conf")
        },
        "pmix_files": {
            name: pmix_files(reading, reading["release"])
            for name, reading in _known(readings, [scheduler, *requested.hosts]).items()
        },
        # Hosts without slurmd have no folder /run/slurm/conf.
        "login_files": {
            name: [_folder(FOLDER), _entry(FOLDER + "/slurm.conf", slurm)]
            for name in requested.login_hosts
            if name != scheduler and name not in requested.hosts
        },
    }


def slurm_plan(readings: Readings, requested: Requested) -> SlurmPlan | Unplanned:
    """Write the texts of Slurm's files, say which daemons a change of them concerns, and list
    problems.

    C(readings) are results of M(trainyard.gpu.slurm_host_info) by host. A training host that was
    not read keeps its node as it is in the scheduler's slurm.conf.

    With problems the plan has only C(complete), whether it can be carried out, C(problems),
    C(warnings), C(scheduler) and C(hosts). Otherwise it also has:

    - C(release) of the scheduler, C(releases) by host, C(cgroups), whether jobs are limited by them, which one host decides for all.
    - C(nodes), C(node_names), C(partitions), C(priorities), C(qos) that must exist before slurmctld starts, C(cluster_name), C(accounts) for
      M(trainyard.gpu.slurm_accounts), C(missing_people) without a Unix account on the scheduler.
    - C(packages) by host, C(installed), hosts that have them, C(munge_hosts) that need the scheduler's key, C(absent), files to remove by host.
    - Files for M(trainyard.gpu.managed_files): C(pmix_files) and C(check_files), which must exist before C(controller_files) are validated, C(database_files)
      of MariaDB and C(slurmdbd_files), whose change restarts it, C(controller_files), C(node_files) of training hosts, C(login_files) of others,
      C(pending_files), which record C(effect) until all of it is done. C(sql) creates the database, and C(validate) checks a slurm.conf.
    - C(ssh) by host, who can log in: C(rule) (adopt, slurm, none), C(why) there is none, and C(steps), arguments of managed_files in this order.
    - C(pending), an earlier run was interrupted, C(changes), whether C(effect) needs anything, C(in_the_way), C(arguments) of squeue that select jobs which the
      change would end, and C(why).
    - C(effect) of the difference from the scheduler's files, in this order: C(first), there was no slurm.conf, C(restart_slurmctld), C(reconfigure),
      C(restart_slurmd), nodes, C(needs_idle), reasons why no job may run, C(added) and C(removed) nodes, C(removed_partitions), C(reasons) of a restart.
    """
    requested = requested.with_defaults()
    scheduler = requested.scheduler
    problems = _input_problems(requested)
    warnings: list[str] = []
    nothing: Unplanned = {
        "problems": problems,
        "warnings": warnings,
        "complete": False,
        "scheduler": scheduler,
        "hosts": list(requested.hosts),
    }
    unreadable = _unreadable(readings, scheduler)
    problems += unreadable
    if unreadable:
        return nothing
    planned = _nodes(readings, requested)
    nodes = planned.nodes
    problems += planned.problems + _cluster_problems(readings, requested, nodes)
    warnings += planned.warnings
    if problems:
        return nothing

    cluster = _cluster_of(readings, requested)
    rules, login_warnings = _logins(readings, requested, cluster.limited)
    warnings += _class_warnings(requested.accounts, nodes)
    warnings += _limit_warnings(_known(readings, requested.hosts), cluster)
    warnings += login_warnings
    partitions = _partitions(requested, nodes)
    live = [node for node in nodes.values() if node["known"]]
    cgroups = [reading["cgroup"] for reading in _known(readings, requested.hosts).values()]
    texts = {
        "slurm": slurm_conf(requested, cluster, planned, partitions),
        "gres": gres_conf(live, planned.former_gres),
        "cgroup": cgroup_conf(cluster.limited, cluster.unlimited_why, cgroups, cluster.oldest),
    }
    change, pending = _change(readings, scheduler, texts, nodes)
    controller = readings[scheduler]
    everywhere = [scheduler, *requested.hosts, *requested.login_hosts]
    needed = _packages(readings, requested)
    return {
        "complete": True,
        "problems": problems,
        "warnings": warnings,
        "scheduler": scheduler,
        "release": controller["release"],
        "releases": _releases(_known(readings, [scheduler, *requested.hosts])),
        "cgroups": cluster.limited,
        "nodes": list(nodes.values()),
        "node_names": list(nodes),
        "partitions": partitions,
        "priorities": requested.priorities,
        "qos": [entry["name"] for entry in requested.priorities],
        **_scheduler_files(controller, cluster, texts, change),
        **_host_files(readings, requested, cluster, texts["slurm"]),
        "packages": needed,
        "installed": [
            name for name, names in needed.items() if set(names) <= set(readings[name]["packages"])
        ],
        "cluster_name": requested.cluster_name,
        "missing_people": controller.get("missing_people", []),
        "accounts": [
            *_slurm_limits.with_defaults(
                requested.accounts, list(nodes.values()), requested.limits
            ),
            _TRAIN,
        ],
        "munge_hosts": munge_hosts(
            {name: readings[name] for name in dict.fromkeys(everywhere) if name in readings},
            scheduler,
        ),
        "ssh": rules,
        "validate": CHECK + " %s",
        "effect": change,
        "pending": pending,
        "in_the_way": in_the_way(change),
        "changes": bool(
            change["first"]
            or change["restart_slurmctld"]
            or change["reconfigure"]
            or change["restart_slurmd"]
        ),
    }


def _with_pending(change: Effect, pending: Mapping[str, Any], nodes: Mapping[str, Node]) -> Effect:
    """Return what a change needs together with what an interrupted run has not done.

    Nodes that are no longer configured are left out.
    """
    if not pending:
        return change
    stale = {name for name in pending.get("restart_slurmd") or [] if name in nodes}
    return {
        **change,
        "first": change["first"] or bool(pending.get("first")),
        "restart_slurmctld": change["restart_slurmctld"] or bool(pending.get("restart_slurmctld")),
        "reconfigure": change["reconfigure"] or bool(pending.get("reconfigure")),
        "restart_slurmd": sorted({*change["restart_slurmd"], *stale}),
        "reasons": list(dict.fromkeys([*change["reasons"], "an earlier run was interrupted"])),
    }


def in_the_way(change: Effect) -> list[InTheWay]:
    """Return which jobs a change would end."""
    found: list[InTheWay] = []
    if change["removed"]:
        names = ",".join(change["removed"])
        found.append(
            {
                "arguments": ["--nodelist=" + names],
                "why": "node %s is no longer configured. Drain it and wait, or cancel the jobs"
                % names,
            }
        )
    if change["removed_partitions"]:
        names = ",".join(change["removed_partitions"])
        found.append(
            {
                "arguments": ["--partition=" + names],
                "why": "partition %s is no longer configured. Wait, or cancel the jobs" % names,
            }
        )
    if change["needs_idle"]:
        found.append(
            {
                "arguments": [],
                "why": "%s. Wait until no job runs, or cancel the jobs"
                % "; ".join(change["needs_idle"]),
            }
        )
    return found


def _read_pending(text: str | None) -> dict[str, Any]:
    """Return what an interrupted run has not done, empty if none was interrupted."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    # A file that was cut by a full disk: all is done again.
    return {"first": False, "restart_slurmctld": True, "reconfigure": True}


# What a host still lacks.


def _differs(entries: Iterable[File], reading: Reading) -> bool:
    """Return whether a file of the plan is missing or has other content.

    Folders and links are created with the files.
    """
    return any(
        reading["files"].get(entry["path"], reading["text_digests"].get(entry["path"]))
        != hashlib.sha256(entry["content"].encode("utf-8")).hexdigest()
        for entry in entries
        if "content" in entry
    )


def _stopped(reading: Reading, *services: str) -> bool:
    """Return whether one of these services does not run, or does not start with the host."""
    return any(
        not reading["services"][name]["active"] or not reading["services"][name]["enabled"]
        for name in services
    )


NEEDS = (
    "install",
    "munge",
    "database",
    "accounting",
    "controller",
    "node",
    "login",
    "leave",
    "ssh",
)


def _with_digests(reading: Reading) -> Reading:
    """Return the reading with the checksums of the texts that it has."""
    digests = {
        path: hashlib.sha256(text.encode("utf-8")).hexdigest()
        for path, text in reading["texts"].items()
    }
    return dict(reading, text_digests=digests)


def _scheduler_needs(plan: SlurmPlan, reading: Reading, lacks_link: bool) -> dict[str, bool]:
    """Return what the scheduler needs: C(database), C(accounting), C(controller)."""
    change = plan["effect"]
    changes = (
        change["first"] or change["restart_slurmctld"] or change["reconfigure"] or plan["pending"]
    )
    files = plan["controller_files"] + plan["check_files"]
    return {
        "database": _differs(plan["database_files"], reading) or _stopped(reading, "mariadb"),
        "accounting": _differs(plan["slurmdbd_files"], reading) or _stopped(reading, "slurmdbd"),
        "controller": changes
        or _differs(files, reading)
        or _stopped(reading, "slurmctld")
        or lacks_link,
    }


def _needs_node(plan: SlurmPlan, reading: Reading, name: str, lacks_link: bool) -> bool:
    """Return whether slurmd of a training host has to be configured or restarted."""
    return (
        _differs(plan["node_files"], reading)
        or _stopped(reading, "slurmd")
        or bool(plan["absent"].get(name))
        or lacks_link
        or name in plan["effect"]["restart_slurmd"]
    )


def slurm_needs(
    plan: SlurmPlan | Unplanned, reading: Reading, name: str, scheduler: str
) -> dict[str, bool]:
    """Return whether a host needs each part in NEEDS, by its name; nothing is needed if there is no
    plan or the host did not answer.

    C(reading) is the result of M(trainyard.gpu.slurm_host_info) on host C(name).
    """
    needs = dict.fromkeys(NEEDS, False)
    if not plan["complete"] or "services" not in reading:
        return needs
    reading = _with_digests(reading)
    ours = name in plan["packages"]
    lacks_link = bool(plan["pmix_files"].get(name)) and not reading["pmix_link"]
    needs["install"] = ours and name not in plan["installed"]
    needs["munge"] = name in plan["munge_hosts"] or ours and _stopped(reading, "munge")
    if name == scheduler:
        needs.update(_scheduler_needs(plan, reading, lacks_link))
    if name in plan["node_names"]:
        needs["node"] = _needs_node(plan, reading, name, lacks_link)
    else:
        # A former training host.
        needs["leave"] = any(entry["path"] in reading["files"] for entry in plan["node_files"])
    needs["login"] = _differs(plan["login_files"].get(name, []), reading)
    needs["ssh"] = name in plan["ssh"] and bool(_slurm_ssh.lacking(plan["ssh"][name], reading))
    return needs


def _difference(what: str, requested: str, found: str) -> Difference:
    return {"what": what, "asked": requested, "found": found}


def _unplanned(plan: Unplanned, name: str, scheduler: str, compared: list[str]) -> list[Difference]:
    """Return why the cluster cannot be planned, as far as this host tells it.

    A problem that begins with no host's name is of the variables. One of these hosts tells it, and
    those of hosts that are not compared.
    """
    compared = compared or [scheduler, *plan["hosts"]]
    others = tuple("%s: " % host for host in compared if host != name)
    tells_the_rest = name == (scheduler if scheduler in compared else compared[0])
    return [
        _difference("Slurm", "a cluster that can be planned", sentence)
        for sentence in plan["problems"]
        if sentence.startswith(name + ": ") or tells_the_rest and not sentence.startswith(others)
    ]


def _stopped_services(
    plan: SlurmPlan, reading: Reading, name: str, scheduler: str
) -> list[Difference]:
    """Return the daemons of a host that do not run, or do not start with it."""
    services = []
    if name in plan["packages"]:
        services.append("munge")
    if name == scheduler:
        services += ["mariadb", "slurmdbd", "slurmctld"]
    if name in plan["node_names"]:
        services.append("slurmd")
    found = []
    for service in services:
        if _stopped(reading, service):
            its = reading["services"][service]
            state = "%s, %s" % (its["state"], "enabled" if its["enabled"] else "disabled")
            found.append(_difference(service, "running, enabled", state))
    return found


def _changed_files(
    plan: SlurmPlan, reading: Reading, name: str, scheduler: str
) -> list[Difference]:
    """Return the files of the plan that are missing on a host or have other content."""
    files = []
    if name == scheduler:
        for kind in ("database_files", "slurmdbd_files", "check_files", "controller_files"):
            files += plan[kind]
    if name in plan["node_names"]:
        files += plan["node_files"]
    files += plan["login_files"].get(name, [])
    texts = _with_digests(reading)
    return [
        _difference(entry["path"], "as planned", "missing or changed")
        for entry in files
        if _differs([entry], texts)
    ]


def slurm_drift(
    plan: SlurmPlan | Unplanned,
    reading: Reading,
    name: str,
    scheduler: str,
    compared: Sequence[str] = (),
) -> list[Difference]:
    """Return how a host differs from the plan, one row each: C(what), C(asked) and C(found).

    C(reading) is the result of M(trainyard.gpu.slurm_host_info) on host C(name). Without a plan the
    rows are its problems. C(compared) are the hosts of the run, empty for all. What is no single
    host's problem is told by the scheduler, or by the first of these hosts if it is not in the run.
    """
    if not plan["complete"]:
        return _unplanned(plan, name, scheduler, list(compared))
    needs, found = slurm_needs(plan, reading, name, scheduler), []
    if needs["install"]:
        missing = [
            package for package in plan["packages"][name] if package not in reading["packages"]
        ]
        return [_difference("Slurm", "installed", "no packages " + ", ".join(missing))]
    if name in plan["munge_hosts"]:
        found.append(
            _difference("munge key", "that of %s" % scheduler, "different, or readable by others")
        )
    found += _stopped_services(plan, reading, name, scheduler)
    found += _changed_files(plan, reading, name, scheduler)
    if needs["ssh"]:
        found += [
            _difference(path, "as planned", "changed")
            for path in _slurm_ssh.lacking(plan["ssh"][name], reading)
        ]
    if needs["leave"]:
        found.append(
            _difference("slurmd", "removed, because the host is no training host", "configured")
        )
    if name == scheduler and plan["pending"]:
        found.append(
            _difference(
                "Slurm",
                "all daemons with the last settings",
                "an earlier run was interrupted",
            )
        )
    return found


def decide_slurm_plan(found: Readings, requested: Mapping[str, Any]) -> SlurmPlan | Unplanned:
    """Return the configuration files of a Slurm cluster and what a change of them needs.

    C(found) are the results of M(trainyard.gpu.slurm_host_info) by inventory name; that of a host
    that did not answer is empty. C(requested) has the fields of Requested by name; C(hosts),
    C(scheduler) and C(members) are required.

    Returns SlurmPlan, which slurm_plan explains key by key, or Unplanned with C(problems) as
    sentences, if there are any. Raises TypeError for an unknown or a missing field.
    """
    return slurm_plan(found, Requested(**requested))


def decide_preflight_limits(cgroup: Mapping[str, Any], version: str) -> dict[str, str]:
    """Return C(why) Slurm could not limit jobs on a host, empty if it can, and the C(way) to it.

    C(cgroup) has C(version), C(usable) and C(why) of the host's control groups. C(version) is that
    of the package slurmd; if it is empty, the release is not judged.
    """
    return {"why": limits_fault(cgroup, _slurm_host.release(version)), "way": way_to_limits(cgroup)}


def decide_preflight_releases(
    each: Iterable[Mapping[str, Any]], scheduler: str, others: list[str]
) -> list[Mismatch]:
    """Return the hosts that would get a release of Slurm which does not meet that of the scheduler.

    C(each) are hosts with C(name) and C(offered), versions of packages by name. C(scheduler) is the
    inventory name of the scheduler, C(others) are those of hosts that need Slurm, too.

    Returns C(host), C(found) and C(way), what to do, for each of them.
    """
    relevant = {scheduler, *others}
    releases = {
        host["name"]: _slurm_host.release(host["offered"].get("slurmd", ""))
        for host in each
        if host["name"] in relevant
    }
    return release_mismatches(scheduler, releases, others)


def ssh_removal(reading: Reading) -> list[_slurm_sessions.Steps]:
    """Return the steps that give a host its own logins with ssh back, in this order, each with
    C(files) and C(absent) for M(trainyard.gpu.managed_files); none if the roles changed nothing.

    C(reading) is the result of M(trainyard.gpu.slurm_host_info).
    """
    return _slurm_ssh.removal(reading) + _slurm_sessions.removal(reading)
