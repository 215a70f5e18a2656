# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan of roles monitoring, monitoring_host and monitoring_server: packages, files and units of
each host. Pure functions.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypedDict

import yaml

from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import bad_names
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._placed_files import (
    Difference,
    FileOptions,
    ManagedFile,
    difference,
    managed_file,
    managed_folder,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import (
    MONITORING,
    reading_faults,
)

if TYPE_CHECKING:
    # Module typing has these from Python 3.11, and a controller may run Python 3.10.
    from typing_extensions import Unpack

__all__ = ["drift", "host_plan", "read_options", "removal", "rules_document", "services"]

FOLDER = "/etc/trainyard/monitoring"
TLS, AUTHORITY = FOLDER + "/tls", FOLDER + "/authority"
LIBRARY = "/usr/local/lib/trainyard/monitoring"
SHARED = "/usr/local/lib/trainyard/shared"
METRICS = "/var/lib/trainyard/metrics"
#: Of Debian's packages, which leave it open: the values of all people, and the state of alerts.
DATA = "/var/lib/prometheus"
SYSTEMD = "/etc/systemd/system"
USAGE = "/var/lib/trainyard/usage"
TMPFILES = "/etc/tmpfiles.d/trainyard-metrics.conf"
RECORD = "/var/lib/trainyard/placed.d/monitoring.json"
PACKAGES_RECORD = "/var/lib/trainyard/placed.d/monitoring.packages.json"
HEADING = "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n"
GROUP = "prometheus"
#: Bits of a mode: to read a file, and to enter a folder.
READ, ENTER = 4, 1
NODE, PROMETHEUS, ALERTMANAGER = (
    "prometheus-node-exporter.service",
    "prometheus.service",
    "prometheus-alertmanager.service",
)
PACKAGES = {
    NODE: "prometheus-node-exporter",
    PROMETHEUS: "prometheus",
    ALERTMANAGER: "prometheus-alertmanager",
}
GPU_UNIT = "trainyard-metrics-gpu.service"
HOST_UNIT, SLURM_UNIT = "trainyard-metrics-host.timer", "trainyard-metrics-slurm.timer"
USAGE_UNIT = "trainyard-usage.timer"
PROMETHEUS_PORT, ALERTMANAGER_PORT, GOSSIP_PORT, DCGM_PORT = 9090, 9093, 9094, 9400
#: Units that a host may have had, and no longer has.
LEAVING_UNITS = (GPU_UNIT, SLURM_UNIT, USAGE_UNIT, PROMETHEUS, ALERTMANAGER)
#: Modules that the long-running program loads.
LOADED = (
    "_bandwidth",
    "_files",
    "_gpu_numbers",
    "_host_health",
    "_metrics",
    "_npu_smi",
    "_nvidia_smi",
    "_parse_error",
    "_quantity",
)
#: Without a list, a host with 192 threads has thousands of series.
COLLECTORS = (
    "diskstats",
    "filesystem",
    "infiniband",
    "loadavg",
    "meminfo",
    "netdev",
    "stat",
    "textfile",
    "time",
    "timex",
    "uname",
    "vmstat",
)
#: It would wait for a file server that does not answer. Program host_reader asks shares with a time
#: limit.
REMOTE = "nfs4?|cifs|smb3|lustre|ceph|fuse.*|beegfs|gpfs|9p"
MOST_SAMPLES = 20000
#: Days before its end in which a certificate of ours is signed again.
RENEW_DAYS = 60
#: Gets nothing: alerts of a site without receivers, and the test alert of verify.
NOBODY = {"name": "nobody"}
TEST_ROUTE = {"receiver": "nobody", "matchers": ['alertname = "TrainyardTest"']}
#: A page about alerts: each has a section with its name.
MANUAL = "https://github.com/trainyard/gpu/blob/main/docs/monitoring.md#%s"
#: Our own. The reader leaves out those that a host does not have.
CERTIFICATES = (TLS + "/host.pem", TLS + "/client.pem")


class Requested(TypedDict):
    """The requested monitoring: C(__monitoring_requested) of the role, for the host C(host).

    C(interval) is in seconds.

    C(certificate) and C(key) are paths on the host, of a certificate of the site that C(ca) has
    signed, a text. C(hosts) are the members of the cluster, C(rules) are changes by name of the alert, and
    C(programs), C(site_rules) and C(dashboards) contents by name.
    """

    host: str
    hosts: list[dict[str, Any]]
    prometheus_host: str
    has_slurm: bool
    has_marks: bool
    scheduler_host: str
    release: str
    gpus: int
    npus: int
    share: str
    certificate: str
    key: str
    ca: str
    certificates: list[str]
    interval: int
    port: int
    retention_days: int
    retention_gib: int
    idle_hours: int
    idle_minutes: int
    people_see: str
    mail: bool
    gpu_source: str
    receivers: list[dict[str, Any]]
    routes: list[dict[str, Any]]
    alertmanagers: list[dict[str, Any]]
    remote_write: list[dict[str, Any]]
    rules: dict[str, Any]
    grafana_dir: str
    rules_text: str
    dcgm_text: str
    site_rules: dict[str, str]
    dashboards: dict[str, str]
    programs: dict[str, str]


class Certificate(TypedDict):
    """Names and addresses of a host's certificate."""

    names: list[str]
    addresses: list[str]


class CertificateRequest(Certificate):
    """What the authority signs, for module own_certificate: the name of a file, and the request,
    empty if the host needs no certificate.
    """

    name: str
    request: str


class Options(Certificate):
    """Options of module monitoring_info. C(units) are the files that each unit loads."""

    packages: list[str]
    records: list[str]
    units: dict[str, list[str]]
    folder: str
    authority: str
    trusted: str
    certificate: str
    key: str
    renew_days: int
    ports: list[int]


class Record(TypedDict, total=False):
    """Files whose names the site has chosen, those of before, and the packages that the role has
    installed.
    """

    files: list[str]
    former: list[str]
    packages: list[str]


class Plan(TypedDict):
    """What a host gets.

    C(early_files) are there before the packages, C(units) are those that run with the files that
    they load.
    """

    packages: list[str]
    lacks_packages: list[str]
    early_files: list[ManagedFile]
    host_files: list[ManagedFile]
    server_files: list[ManagedFile]
    absent: list[str]
    stop: list[str]
    units: dict[str, list[str]]
    certificate: Certificate
    is_server: bool
    address: str
    port: int
    record_text: str
    problems: list[str]
    warnings: list[str]


class Service(TypedDict):
    """A unit to start or to restart, with the state for module systemd_service."""

    name: str
    state: str


class Removal(TypedDict):
    """What teardown removes, in its order: units to stop, paths, and folders of Grafana."""

    placed: bool
    units: list[str]
    absent: list[str]
    grafana_folders: list[str]
    authority: str


def _document(value: object) -> str:
    """Return JSON, which is YAML with all values quoted."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _place(address: str, port: int) -> str:
    return "%s:%d" % ("[%s]" % address if ":" in address else address, port)


def _secret(path: str, content: str, **options: Unpack[FileOptions]) -> ManagedFile:
    """Return a file that only root and the daemons can read."""
    options["group"] = GROUP
    return managed_file(path, content, "0640", **options)


def _unit(description: str, *lines: str) -> str:
    return HEADING + "[Unit]\nDescription=%s\n" % description + "\n".join(lines) + "\n"


def _drop_in(command: list[str], *lines: str) -> str:
    """Return the drop-in of a unit of the distribution. $ would begin a variable."""
    arguments = " ".join(command).replace("$", "$$")
    return (
        HEADING
        + (
            "[Unit]\nWants=network-online.target\nAfter=network-online.target\n[Service]\n"
            "ExecStart=\nExecStart=%s\nRestartSec=5\n"
        )
        % arguments
        + "\n".join(lines)
        + "\n"
    )


def _drop_in_path(unit: str) -> str:
    return "%s/%s.d/trainyard.conf" % (SYSTEMD, unit)


# --- what a host is -------------------------------------------------------------------------------------------------------


def is_server(requested: Requested) -> bool:
    """Return whether Prometheus runs on the host."""
    return requested["host"] == requested["prometheus_host"]


def _address_of(requested: Requested, name: str) -> str:
    addresses = (member["address"] for member in requested["hosts"] if member["name"] == name)
    return str(next(addresses))


def gpu_source(requested: Requested) -> str:
    """Return what the reader of GPUs reads on a host, empty without GPUs and NPUs."""
    if requested["gpus"]:
        return requested["gpu_source"]
    return "npu_smi" if requested["npus"] else ""


def _has_slurm_reader(requested: Requested) -> bool:
    return requested["has_slurm"] and requested["host"] == requested["scheduler_host"]


def _has_job_usage(requested: Requested) -> bool:
    """Return whether the use of jobs is read from Prometheus, which answers on its own host
    only.
    """
    return _has_slurm_reader(requested) and is_server(requested) and requested["has_marks"]


def _has_alertmanager(requested: Requested) -> bool:
    return is_server(requested) and not requested["alertmanagers"]


def packages(requested: Requested) -> list[str]:
    """Return the packages of a host."""
    found = [PACKAGES[NODE], "openssl"]
    if is_server(requested):
        found.append(PACKAGES[PROMETHEUS])
    if _has_alertmanager(requested):
        found.append(PACKAGES[ALERTMANAGER])
    return found


def certificate_names(requested: Requested) -> Certificate:
    """Return the names and addresses of the host's certificate.

    Prometheus itself listens on the loopback address only.
    """
    names = [name for name in (requested["host"],) if not bad_names([name], [])]
    addresses = [_address_of(requested, requested["host"])]
    if is_server(requested):
        names, addresses = [*names, "localhost"], [*addresses, "127.0.0.1"]
    return {"names": sorted(set(names)), "addresses": sorted(set(addresses))}


# --- each host ------------------------------------------------------------------------------------------------------------


def _web_option(release: str) -> str:
    """Return the option of node_exporter for TLS.

    Its version in Ubuntu 22.04, 1.3.1, has the name of before 1.5.
    """
    return "--web.config" if release == "ubuntu 22.04" else "--web.config.file"


def _allowed(requested: Requested) -> list[str]:
    """Return the addresses from which node_exporter takes connections."""
    names = (requested["prometheus_host"], requested["host"])
    return sorted({_address_of(requested, name) for name in names})


def node_exporter(requested: Requested) -> str:
    """Return the drop-in of node_exporter's unit."""
    command = [
        "/usr/bin/prometheus-node-exporter",
        "--web.listen-address="
        + _place(_address_of(requested, requested["host"]), requested["port"]),
        "%s=%s/web.yml" % (_web_option(requested["release"]), FOLDER),
        "--web.disable-exporter-metrics",
        "--collector.disable-defaults",
        *("--collector." + name for name in COLLECTORS),
        "--collector.textfile.directory=%s/*" % METRICS,
        "--collector.netdev.device-exclude=^(lo|veth.*|br-.*|docker.*|cni.*)$",
        "--collector.filesystem.mount-points-exclude=^/(dev|proc|run|sys|var/lib/docker/.+|var/lib/containers/.+)($|/)",
        "--collector.filesystem.fs-types-exclude=^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|fusectl|hugetlbfs"
        "|mqueue|nsfs|overlay|proc|pstore|ramfs|rpc_pipefs|securityfs|selinuxfs|squashfs|sysfs|tmpfs|tracefs|%s)$"
        % REMOTE,
    ]
    return _drop_in(
        command,
        # Nobody else needs to knock, but for the host itself, which waits until it listens. The
        # certificate of a client decides in any case.
        "IPAddressDeny=any",
        "IPAddressAllow=" + " ".join(_allowed(requested)),
        "NoNewPrivileges=true",
        "ProtectSystem=strict",
        "ProtectHome=read-only",
        "PrivateTmp=true",
        "CapabilityBoundingSet=",
        "MemoryMax=512M",
    )


def _of_clients(requested: Requested) -> str:
    """Return the name of the file with the authority of clients. It is our own in any case: all
    clients of an authority of the site could read everything.
    """
    return "clients.pem" if requested["certificate"] else "ca.pem"


def web_config(requested: Requested) -> str:
    """Return what all daemons require of their clients: a certificate of the authority.

    They read the files at each connection.
    """
    return _document(
        {
            "tls_server_config": {
                "cert_file": requested["certificate"] or TLS + "/host.pem",
                "key_file": requested["key"] or TLS + "/host.key",
                "client_auth_type": "RequireAndVerifyClientCert",
                "client_ca_file": "%s/%s" % (TLS, _of_clients(requested)),
            }
        }
    )


def _timer(description: str, seconds: int) -> str:
    return _unit(
        description,
        "[Timer]",
        "OnBootSec=30",
        "OnUnitActiveSec=%d" % seconds,
        "AccuracySec=5",
        "[Install]",
        "WantedBy=timers.target",
    )


def host_units(requested: Requested) -> dict[str, str]:
    """Return the content of our units by name."""
    settings = FOLDER + "/reader.json"
    found = {
        HOST_UNIT: _timer("Metrics of shares, certificates and the kernel log, each minute", 60),
        "trainyard-metrics-host.service": _unit(
            "Metrics of shares, certificates and the kernel log",
            "[Service]",
            "Type=oneshot",
            "ExecStart=%s/host_reader %s" % (LIBRARY, settings),
            "TimeoutStartSec=120",
            "ProtectHome=read-only",
            "PrivateTmp=true",
        ),
    }
    if gpu_source(requested):
        found[GPU_UNIT] = _unit(
            "Metrics of GPUs and of their jobs",
            # A reset of a GPU and a change of the driver need it stopped.
            "[Service]",
            "User=" + GROUP,
            # The devices of NPUs belong to a group of their own.
            *(["SupplementaryGroups=HwHiAiUser"] if gpu_source(requested) == "npu_smi" else []),
            "ExecStart=%s/gpu_reader %s" % (LIBRARY, settings),
            "Restart=always",
            "RestartSec=15",
            "TimeoutStopSec=10",
            "Nice=5",
            "MemoryMax=1G",
            "ProtectHome=true",
            "ProtectSystem=strict",
            "ReadWritePaths=%s/gpu" % METRICS,
            "PrivateTmp=true",
            "[Install]",
            "WantedBy=multi-user.target",
        )
    if _has_slurm_reader(requested):
        found[SLURM_UNIT] = _timer("Metrics of the queue, each 30 seconds", 30)
        found["trainyard-metrics-slurm.service"] = _unit(
            "Metrics of the queue",
            "[Service]",
            "Type=oneshot",
            "User=slurm",
            "ExecStart=%s/slurm_reader" % LIBRARY,
            "TimeoutStartSec=120",
            # Of the waiting jobs, which everybody reads. It stays between two runs.
            "RuntimeDirectory=trainyard-queue",
            "RuntimeDirectoryMode=0755",
            "RuntimeDirectoryPreserve=yes",
            "ProtectHome=true",
            "PrivateTmp=true",
        )
    if _has_job_usage(requested):
        found[USAGE_UNIT] = _timer("Use of GPUs by ended jobs, each five minutes", 300)
        found["trainyard-usage.service"] = _unit(
            "Use of GPUs by ended jobs",
            "[Service]",
            "Type=oneshot",
            "User=slurm",
            # It reads the key of the client.
            "SupplementaryGroups=" + GROUP,
            "ExecStart=%s/job_usage %s/usage.json" % (LIBRARY, FOLDER),
            "TimeoutStartSec=280",
            "ProtectHome=true",
            "PrivateTmp=true",
        )
    return found


def _shares(requested: Requested) -> list[str]:
    return [requested["share"]] if requested["share"] else []


def _text_folders(requested: Requested) -> list[ManagedFile]:
    """Return the folders of metrics. The group of a folder is that of the files in it."""
    owners = {"host": "root", "health": "root"}
    if gpu_source(requested):
        owners["gpu"] = GROUP
    if _has_slurm_reader(requested):
        owners["slurm"] = "slurm"
    if is_server(requested):
        owners["verify"] = "root"
    return [managed_folder(METRICS)] + [
        managed_folder("%s/%s" % (METRICS, name), "2750", owner=owner, group=GROUP)
        for name, owner in sorted(owners.items())
    ]


def _programs(requested: Requested) -> list[str]:
    found = ["host_reader"]
    found += ["gpu_reader"] if gpu_source(requested) else []
    found += ["slurm_reader"] if _has_slurm_reader(requested) else []
    return found + (["job_usage"] if _has_job_usage(requested) else [])


def host_files(requested: Requested) -> list[ManagedFile]:
    """Return the folders and files of a host, in the order in which they are created."""
    of_site = [requested["certificate"]] if requested["certificate"] else []
    reader = {
        "interval": requested["interval"],
        "source": gpu_source(requested),
        "jobs": requested["has_marks"],
        "shares": _shares(requested),
        "certificates": [*CERTIFICATES, *of_site, *requested["certificates"]],
        "gpus": requested["gpus"] or requested["npus"],
    }
    entries = [
        managed_folder("/usr/local/lib/trainyard"),
        managed_folder(LIBRARY),
        *_text_folders(requested),
    ]
    entries += [
        managed_file("%s/%s" % (LIBRARY, name), requested["programs"][name], "0755")
        for name in _programs(requested)
    ]
    entries += [
        managed_file(FOLDER + "/reader.json", _document(reader)),
        _secret(FOLDER + "/web.yml", web_config(requested)),
        managed_folder("%s/%s.d" % (SYSTEMD, NODE)),
        managed_file(_drop_in_path(NODE), node_exporter(requested)),
    ]
    if _has_job_usage(requested):
        usage = {
            "interval": requested["interval"],
            "idle_minutes": requested["idle_minutes"],
            "mail": requested["mail"],
            "people_see": requested["people_see"],
        }
        entries.append(managed_file(FOLDER + "/usage.json", _document(usage)))
        # Everybody reads the sums of accounts. A site that no longer shows them has neither the
        # folder nor the last file.
        if requested["people_see"] == "occupancy":
            entries.append(managed_folder(USAGE, owner="slurm", group="slurm"))
    if requested["has_marks"] and gpu_source(requested):
        # Prolog and epilog keep the job of each GPU here. /run is empty after a boot.
        entries.append(
            managed_file(TMPFILES, HEADING + "d /run/trainyard/gpus 2750 root %s -\n" % GROUP)
        )
        entries += [
            managed_folder("/run/trainyard"),
            managed_folder("/run/trainyard/gpus", "2750", owner="root", group=GROUP),
        ]
    return entries + [
        managed_file("%s/%s" % (SYSTEMD, name), text)
        for name, text in sorted(host_units(requested).items())
    ]


def early_files(requested: Requested) -> list[ManagedFile]:
    """Return the files that have to exist before the packages: these start their daemons at once,
    open to the network.

    With the drop-ins they end without their settings, which belong to the group of the packages.
    """
    entries = [
        managed_folder("%s/%s.d" % (SYSTEMD, NODE)),
        managed_file(_drop_in_path(NODE), node_exporter(requested)),
    ]
    for unit, text in server_drop_ins(requested).items():
        entries += [
            managed_folder("%s/%s.d" % (SYSTEMD, unit)),
            managed_file(_drop_in_path(unit), text),
        ]
    return entries


# --- the host of Prometheus -------------------------------------------------------------------------------------------------


def _client_tls() -> dict[str, str]:
    """Return the files by which Prometheus' host shows who it is."""
    return {
        "ca_file": TLS + "/ca.pem",
        "cert_file": TLS + "/client.pem",
        "key_file": TLS + "/client.key",
    }


def prometheus_config(requested: Requested) -> str:
    """Return Prometheus' configuration."""
    every = "%ds" % requested["interval"]
    own = {
        "scheme": "https",
        "tls_config": _client_tls(),
        "static_configs": [
            {
                "targets": ["127.0.0.1:%d" % PROMETHEUS_PORT],
                "labels": {"instance": requested["host"]},
            }
        ],
    }
    hosts = {
        "job_name": "host",
        "scheme": "https",
        "tls_config": _client_tls(),
        "sample_limit": MOST_SAMPLES,
        "file_sd_configs": [{"files": [FOLDER + "/targets/hosts.json"]}],
    }
    jobs = [hosts, dict(own, job_name="prometheus")]
    managers = requested["alertmanagers"]
    if not managers:
        place = {"targets": ["127.0.0.1:%d" % ALERTMANAGER_PORT]}
        managers = [{"scheme": "https", "tls_config": _client_tls(), "static_configs": [place]}]
        target = dict(place, labels={"instance": requested["host"]})
        jobs.append(dict(own, job_name="alertmanager", static_configs=[target]))
    if requested["gpu_source"] == "dcgm":
        targets = {"files": [FOLDER + "/targets/dcgm.json"]}
        jobs.append(dict(hosts, job_name="dcgm", file_sd_configs=[targets]))
    document = {
        "global": {
            "scrape_interval": every,
            "evaluation_interval": every,
            "scrape_timeout": "10s",
        },
        "rule_files": [FOLDER + "/rules/*.yml"],
        "alerting": {"alertmanagers": managers},
        "scrape_configs": jobs,
    }
    if requested["remote_write"]:
        document["remote_write"] = requested["remote_write"]
    return _document(document)


def targets(requested: Requested, port: int) -> str:
    """Return the hosts that are scraped, each under its name in the inventory."""
    return _document(
        [
            {
                "targets": [_place(member["address"], port)],
                "labels": {"instance": member["name"]},
            }
            for member in sorted(requested["hosts"], key=lambda member: member["name"])
        ]
    )


def alertmanager_config(requested: Requested) -> str:
    """Return Alertmanager's configuration.

    Alerts of a host that is down follow from that, and a wrong clock makes files look old.
    """
    receivers = [*requested["receivers"], NOBODY]
    route = {
        "receiver": receivers[0]["name"],
        "group_by": ["alertname", "instance"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": [TEST_ROUTE, *requested["routes"]],
    }
    return _document(
        {
            "route": route,
            "receivers": receivers,
            "inhibit_rules": [
                {
                    "source_matchers": ['alertname = "HostDown"'],
                    "target_matchers": ['alertname != "HostDown"'],
                    "equal": ["instance"],
                },
                {
                    "source_matchers": ['alertname = "ClockOff"'],
                    "target_matchers": ['alertname = "MetricsStale"'],
                    "equal": ["instance"],
                },
            ],
        }
    )


def server_drop_ins(requested: Requested) -> dict[str, str]:
    """Return the drop-ins of the daemons of Prometheus' host, by unit."""
    found = {}
    if is_server(requested):
        found[PROMETHEUS] = _drop_in(
            [
                "/usr/bin/prometheus",
                "--config.file=%s/prometheus.yml" % FOLDER,
                "--web.config.file=%s/web.yml" % FOLDER,
                "--web.listen-address=127.0.0.1:%d" % PROMETHEUS_PORT,
                "--storage.tsdb.path=%s/metrics2" % DATA,
                "--storage.tsdb.retention.time=%dd" % requested["retention_days"],
                "--storage.tsdb.retention.size=%dGB" % requested["retention_gib"],
            ],
            "UMask=0077",
            "MemoryMax=2G",
        )
    if _has_alertmanager(requested):
        found[ALERTMANAGER] = _drop_in(
            [
                "/usr/bin/prometheus-alertmanager",
                "--config.file=%s/alertmanager.yml" % FOLDER,
                "--web.config.file=%s/web.yml" % FOLDER,
                "--web.listen-address=127.0.0.1:%d" % ALERTMANAGER_PORT,
                # Empty: no gossip, and no port for it.
                "--cluster.listen-address=",
                "--storage.path=%s/alertmanager" % DATA,
            ],
            "UMask=0077",
            "NoNewPrivileges=true",
            "ProtectSystem=strict",
            "ReadWritePaths=%s/alertmanager" % DATA,
            "ProtectHome=true",
            "PrivateTmp=true",
            "PrivateDevices=true",
            "CapabilityBoundingSet=",
            "MemoryMax=512M",
        )
    return found


def unknown_rules(text: str, changes: dict[str, Any]) -> list[str]:
    """Return the names in C(monitoring_rules) that no rule has."""
    known = {rule["alert"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}
    return sorted(set(changes) - known)


def _changed_rule(rule: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    changed = dict(rule)
    for key, value in change.items():
        # Labels and annotations are added to those of the rule.
        changed[key] = dict(rule.get(key, {}), **value) if isinstance(value, dict) else value
    return changed


def rules_document(text: str, changes: dict[str, Any], idle_hours: int) -> str:
    """Return the alert rules. Each links to its section of the manual.

    :param text: the rules of the role, as YAML.
    :param changes: by name of the alert: keys of the rule that differ, or false to remove it.
    :param idle_hours: hours without use after which the GPUs of a job are idle.
    """
    text = text.replace("IDLE_TIME", quantity(idle_hours, "hour"))
    document = yaml.safe_load(text.replace("IDLE_HOURS", str(idle_hours)))
    groups = []
    for group in document["groups"]:
        rules = []
        for rule in group["rules"]:
            change = changes.get(rule["alert"], {})
            if change is False:
                continue
            link = MANUAL % rule["alert"].lower()
            linked = dict(rule, annotations=dict(rule["annotations"], documentation=link))
            rules.append(_changed_rule(linked, change or {}))
        if rules:
            groups.append(dict(group, rules=rules))
    return _document({"groups": groups})


def _rule_files(requested: Requested) -> dict[str, str]:
    """Return the files of rules by name."""
    found = {
        "trainyard.yml": rules_document(
            requested["rules_text"], requested["rules"], requested["idle_hours"]
        )
    }
    if requested["gpu_source"] == "dcgm":
        found["dcgm.yml"] = requested["dcgm_text"]
    for name, text in requested["site_rules"].items():
        found["site-" + name] = text
    return found


def _grafana_files(requested: Requested) -> dict[str, str]:
    """Return the files for Grafana by path."""
    folder = requested["grafana_dir"].rstrip("/")
    if not folder:
        return {}
    source = {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "trainyard",
                "uid": "trainyard",
                "type": "prometheus",
                "access": "proxy",
                "url": "https://127.0.0.1:%d" % PROMETHEUS_PORT,
                "jsonData": {
                    "tlsAuth": True,
                    "tlsAuthWithCACert": True,
                    "serverName": "localhost",
                    "timeInterval": "%ds" % requested["interval"],
                },
                # Grafana replaces them with the values in its environment.
                "secureJsonData": {
                    "tlsCACert": "$TRAINYARD_CA",
                    "tlsClientCert": "$TRAINYARD_CLIENT_CERTIFICATE",
                    "tlsClientKey": "$TRAINYARD_CLIENT_KEY",
                },
            }
        ],
    }
    boards = {
        "apiVersion": 1,
        "providers": [
            {
                "name": "trainyard",
                "folder": "trainyard",
                "type": "file",
                "disableDeletion": True,
                "options": {"path": folder + "/trainyard"},
            }
        ],
    }
    found = {
        folder + "/provisioning/datasources/trainyard.yml": _document(source),
        folder + "/provisioning/dashboards/trainyard.yml": _document(boards),
    }
    for name, text in requested["dashboards"].items():
        found["%s/trainyard/%s" % (folder, name)] = text
    return found


def server_files(requested: Requested) -> list[ManagedFile]:
    """Return the folders and files of Prometheus' host."""
    if not is_server(requested):
        return []
    entries = [
        managed_folder(DATA, "0750", owner=GROUP, group=GROUP),
        managed_folder(FOLDER + "/rules", "0750", group=GROUP),
        managed_folder(FOLDER + "/targets", "0750", group=GROUP),
    ]
    entries += [
        _secret("%s/rules/%s" % (FOLDER, name), text, validate="/usr/bin/promtool check rules %s")
        for name, text in sorted(_rule_files(requested).items())
    ]
    entries.append(_secret(FOLDER + "/targets/hosts.json", targets(requested, requested["port"])))
    if requested["gpu_source"] == "dcgm":
        entries.append(_secret(FOLDER + "/targets/dcgm.json", targets(requested, DCGM_PORT)))
    entries.append(
        _secret(
            FOLDER + "/prometheus.yml",
            prometheus_config(requested),
            validate="/usr/bin/promtool check config %s",
        )
    )
    if _has_alertmanager(requested):
        entries.append(
            _secret(
                FOLDER + "/alertmanager.yml",
                alertmanager_config(requested),
                validate="/usr/bin/amtool check-config %s",
            )
        )
    for unit, text in server_drop_ins(requested).items():
        entries += [
            managed_folder("%s/%s.d" % (SYSTEMD, unit)),
            managed_file(_drop_in_path(unit), text),
        ]
    grafana = _grafana_files(requested)
    folders = sorted({path.rpartition("/")[0] for path in grafana})
    if folders:
        base = requested["grafana_dir"].rstrip("/")
        entries += [managed_folder(path) for path in (base, base + "/provisioning", *folders)]
    return entries + [managed_file(path, text) for path, text in sorted(grafana.items())]


# --- units ------------------------------------------------------------------------------------------------------------------


def unit_files(requested: Requested) -> dict[str, list[str]]:
    """Return the units that run on a host, each with the files that it loads when it starts."""
    found = {
        NODE: [_drop_in_path(NODE)],
        HOST_UNIT: ["%s/%s" % (SYSTEMD, HOST_UNIT)],
    }
    if gpu_source(requested):
        found[GPU_UNIT] = [
            "%s/%s" % (SYSTEMD, GPU_UNIT),
            LIBRARY + "/gpu_reader",
            FOLDER + "/reader.json",
            *("%s/%s.py" % (SHARED, name) for name in LOADED),
        ]
    if _has_slurm_reader(requested):
        found[SLURM_UNIT] = ["%s/%s" % (SYSTEMD, SLURM_UNIT)]
    if _has_job_usage(requested):
        found[USAGE_UNIT] = ["%s/%s" % (SYSTEMD, USAGE_UNIT)]
    if is_server(requested):
        found[PROMETHEUS] = [
            _drop_in_path(PROMETHEUS),
            FOLDER + "/prometheus.yml",
            *("%s/rules/%s" % (FOLDER, name) for name in sorted(_rule_files(requested))),
        ]
    if _has_alertmanager(requested):
        found[ALERTMANAGER] = [_drop_in_path(ALERTMANAGER), FOLDER + "/alertmanager.yml"]
    for unit in set(found) & set(PACKAGES):
        found[unit].append(FOLDER + "/web.yml")
    return found


def services(plan: Plan, found: dict[str, Any], changed_paths: list[str]) -> list[Service]:
    """Return the units to start or to restart, with the state for each.

    Units that run as planned are left alone.

    :param plan: of P(host_plan).
    :param found: what M(monitoring_info) has returned.
    :param changed_paths: files that this run has changed.
    """
    changed = set(changed_paths)
    rows: list[Service] = []
    for unit, paths in plan["units"].items():
        state = found["units"].get(unit) or {"active": False, "enabled": False, "loaded": False}
        is_stale = not state["loaded"] or bool(changed & set(paths))
        if state["active"] and state["enabled"] and not is_stale:
            continue
        rows.append(
            {
                "name": unit,
                "state": "restarted" if is_stale and state["active"] else "started",
            }
        )
    return rows


# --- records, problems, drift ----------------------------------------------------------------------------------------------


def record_of(found: dict[str, Any], requested: Requested) -> Record:
    """Return the record: files whose names the site has chosen, and the folder of Grafana."""
    former = found["record"]
    mine = [*_rule_files(requested)] if is_server(requested) else []
    own = sorted({"%s/rules/%s" % (FOLDER, name) for name in mine})
    grafana = sorted(_grafana_files(requested)) if is_server(requested) else []
    known = set(former.get("files") or []) | set(former.get("former") or [])
    # Without those that stay: a second run would change the record.
    return {
        "files": sorted(set(own + grafana)),
        "former": sorted(known - set(own + grafana)),
    }


def leaving(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return the files and units of ours that the host no longer has, such as a host that was
    Prometheus' before.
    """
    planned = {entry["path"] for entry in host_files(requested) + server_files(requested)}
    unused = {
        path for path in _all_paths() if path not in planned and not _is_written(path, planned)
    }
    # Of before the site had a certificate, or since it has none.
    tls = ("host.pem", "host.key") if requested["certificate"] else ("clients.pem",)
    former = record_of(found, requested)["former"] + ["%s/%s" % (TLS, name) for name in tls]
    return former + sorted(unused, reverse=True)


def _is_written(path: str, planned: set[str]) -> bool:
    """Return whether a reader writes the file into a folder of the plan."""
    is_written = path.startswith("/var/lib/") and path.endswith((".json", ".prom", ".xml"))
    return is_written and path.rpartition("/")[0] in planned


def _all_paths() -> list[str]:
    """Return the paths that a host may have beside those of the record.

    Keys and certificates are not among them.
    """
    units = [
        GPU_UNIT,
        HOST_UNIT,
        SLURM_UNIT,
        USAGE_UNIT,
        "trainyard-metrics-host.service",
        "trainyard-metrics-slurm.service",
        "trainyard-usage.service",
    ]
    found = ["%s/%s" % (SYSTEMD, name) for name in units]
    for unit in PACKAGES:
        found += [_drop_in_path(unit), "%s/%s.d" % (SYSTEMD, unit)]
    for name in ("gpu_reader", "host_reader", "slurm_reader", "job_usage"):
        found.append("%s/%s" % (LIBRARY, name))
    for name in ("reader.json", "usage.json", "web.yml", "prometheus.yml", "alertmanager.yml"):
        found.append("%s/%s" % (FOLDER, name))
    found += [FOLDER + "/targets/hosts.json", FOLDER + "/targets/dcgm.json"]
    for name in ("gpu", "health", "host", "slurm", "verify"):
        found += ["%s/%s/%s.prom" % (METRICS, name, name), "%s/%s" % (METRICS, name)]
    kept = [METRICS + "/gpu/sums.json", METRICS + "/gpu/nvidia-smi.xml"]
    kept += [METRICS + "/slurm/idle.json"]
    kept += [USAGE + "/accounts.json", USAGE]
    return [*kept, *found, TMPFILES, FOLDER + "/rules", FOLDER + "/targets"]


def _runs(found: dict[str, Any], unit: str) -> bool:
    """Return whether a unit runs, or would after the next boot."""
    state = found["units"].get(unit) or {}
    return bool(state.get("active") or state.get("enabled"))


def stopping(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return units that run on the host and no longer belong there."""
    planned = unit_files(requested)
    return [
        unit
        for unit in LEAVING_UNITS
        if unit not in planned
        and _runs(found, unit)
        and (unit not in PACKAGES or PACKAGES[unit] in found["record"].get("packages", []))
    ]


def _foreign(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return packages that somebody else has installed. Their daemons would get our arguments."""
    if found["record"] or found["placed_packages"]:
        return []
    known = set(PACKAGES.values())
    return [name for name in packages(requested) if name in known and name in found["packages"]]


def _bad_certificate(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return what is wrong with the certificate of the site, which the role cannot sign again."""
    if not requested["certificate"]:
        return []
    named = certificate_names(requested)
    names = ", ".join(named["names"] + named["addresses"])
    return [
        "%s: monitoring_certificate is '%s': %s; give the host a valid certificate for %s, and its key"
        % (requested["host"], requested["certificate"], reason, names)
        for reason in found["certificate"]
    ]


def _unreadable_key(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return why the daemons cannot read the key of the site.

    They would not start. What an access control list allows is left to the host.
    """
    *folders, file = found["key_access"] or [None]
    blocked = [part for part in folders if not _may(part, ENTER)]
    if blocked:
        expected = "enter this folder. Copy the key to a folder that the group may enter"
        return [_about_key(requested, blocked[0], expected)]
    if file and not _may(file, READ):
        expected = "read it. Run `addgroup --system %s` if the group does not exist, then" % GROUP
        path = file["path"]
        advice = "%s `chgrp %s %s` and `chmod 640 %s`" % (expected, GROUP, path, path)
        return [_about_key(requested, file, advice)]
    return []


def _about_key(requested: Requested, part: dict[str, Any], expected: str) -> str:
    """Return the problem of the key of the site, or of a folder above it."""
    return (
        "%s: monitoring_key is '%s': '%s' belongs to %s:%s and has the mode %s; group %s has to %s"
        % (
            requested["host"],
            requested["key"],
            part["path"],
            part["owner"],
            part["group"],
            part["mode"],
            GROUP,
            expected,
        )
    )


def _may(part: dict[str, Any], requested: int) -> bool:
    """Return whether the daemons, of the user and the group prometheus, have an access, READ or
    ENTER.
    """
    mode = int(part["mode"], 8)
    if part["has_acl"]:
        return True
    if part["owner"] == GROUP:
        return bool(mode >> 6 & requested)
    if part["group"] == GROUP:
        return bool(mode >> 3 & requested)
    return bool(mode & requested)


def problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return what makes the plan impossible, before anything changes."""
    host = requested["host"]
    texts = reading_faults(host, found, MONITORING)
    texts += [
        "%s: package %s is installed already and not by this collection, so its daemon has "
        "settings of the site; remove the package, or leave the host's"
        " own monitoring as it is and do not run playbook monitoring" % (host, name)
        for name in _foreign(found, requested)
    ]
    texts += _bad_certificate(found, requested)
    texts += _unreadable_key(found, requested)
    runs = found["units"].get(NODE) or {}
    if requested["port"] in found["taken"] and not runs.get("active"):
        texts.append(
            "%s: monitoring_port: another program listens on port %d; use a free port"
            % (host, requested["port"])
        )
    if not is_server(requested):
        return texts
    for unit, port in ((PROMETHEUS, PROMETHEUS_PORT), (ALERTMANAGER, ALERTMANAGER_PORT)):
        is_ours = (found["units"].get(unit) or {}).get("active")
        if port in found["taken"] and unit in unit_files(requested) and not is_ours:
            texts.append(
                (
                    "%s: another program listens on port %d, which %s needs; stop it, or choose "
                    "another host by group monitoring"
                )
                % (host, port, PACKAGES[unit])
            )
    if (
        found["free_gib"] < requested["retention_gib"]
        and PACKAGES[PROMETHEUS] not in found["packages"]
    ):
        texts.append(
            (
                "%s: monitoring_retention_gib is %d, and /var/lib has %d GiB free; use a smaller "
                "number, or mount a larger disk at /var/lib/prometheus"
            )
            % (host, requested["retention_gib"], found["free_gib"])
        )
    return texts + [
        "monitoring_rules: no alert is called '%s'; use a name of docs/monitoring.md" % name
        for name in unknown_rules(requested["rules_text"], requested["rules"])
    ]


def warnings(requested: Requested) -> list[str]:
    """Return what works less well than it could, one text each."""
    found = []
    if is_server(requested) and not requested["alertmanagers"] and not requested["receivers"]:
        found.append(
            (
                "monitoring_receivers is empty: alerts are kept, and nobody gets them. Set a "
                "receiver, such as a mail address or a webhook"
            )
        )
    if _has_slurm_reader(requested) and not requested["has_marks"]:
        found.append(
            (
                "job_container_enabled is false, so no prolog says which job has a GPU: there is "
                "no trainyard_gpu_job, and jobs_idle_gpu_minutes stops no job"
            )
        )
    elif _has_slurm_reader(requested) and not is_server(requested):
        found.append(
            "Prometheus is on %s, and Slurm on %s: the use of GPUs by jobs is not kept in "
            "Slurm, and trainyard usage shows hours only. Set "
            "monitoring_prometheus_host"
            " to %s for it" % (requested["prometheus_host"], requested["host"], requested["host"])
        )
    return found


def _converted(requested: Requested) -> Requested:
    """Return the request with numbers, which ansible-core before 2.19 makes texts of."""
    return {
        **requested,
        "interval": int(requested["interval"]),
        "port": int(requested["port"]),
        "retention_days": int(requested["retention_days"]),
        "retention_gib": int(requested["retention_gib"]),
        "idle_hours": int(requested["idle_hours"]),
        "idle_minutes": int(requested["idle_minutes"]),
        "gpus": int(requested["gpus"]),
        "npus": int(requested["npus"]),
    }


def read_options(requested: Requested) -> Options:
    """Return the options of M(monitoring_info) for a host, by name; C(renew_days) are days.

    C(requested) is C(__monitoring_requested) of the roles. Numbers may be texts.
    """
    requested = _converted(requested)
    units = unit_files(requested)
    for unit in LEAVING_UNITS:
        units.setdefault(unit, [])
    ports = [requested["port"]]
    if is_server(requested):
        ports += [PROMETHEUS_PORT, ALERTMANAGER_PORT]
    return {
        **certificate_names(requested),
        "packages": [*PACKAGES.values(), "openssl"],
        "records": [RECORD, PACKAGES_RECORD],
        "units": units,
        "folder": TLS,
        "authority": AUTHORITY + "/ca.pem" if is_server(requested) else "",
        "trusted": _of_clients(requested),
        "certificate": requested["certificate"],
        "key": requested["key"],
        # The site renews its own.
        "renew_days": 0 if requested["certificate"] else RENEW_DAYS,
        "ports": ports,
    }


def host_plan(found: dict[str, Any], requested: Requested) -> Plan:
    """Return the plan of a host, and what is wrong before anything changes.

    C(found) is a result of M(trainyard.gpu.monitoring_info), C(requested) the request for the host,
    as role monitoring makes it from its variables. Returns C(packages), C(early_files),
    C(host_files), C(server_files), C(absent), C(units), C(stop), C(problems) and C(warnings).
    """
    requested = _converted(requested)
    needed = packages(requested)
    record = record_of(found, requested)
    record["packages"] = sorted(
        set(found["record"].get("packages") or []) | set(needed) & set(PACKAGES.values())
    )
    return {
        "packages": needed,
        "lacks_packages": [name for name in needed if name not in found["packages"]],
        "early_files": early_files(requested),
        "host_files": host_files(requested),
        "server_files": server_files(requested),
        "absent": leaving(found, requested),
        "stop": stopping(found, requested),
        "units": unit_files(requested),
        "certificate": certificate_names(requested),
        "is_server": is_server(requested),
        "address": _address_of(requested, requested["host"]),
        "port": requested["port"],
        "record_text": _document(record),
        "problems": problems(found, requested),
        "warnings": warnings(requested),
    }


def lacks_certificate(found: dict[str, Any], server: dict[str, Any]) -> bool:
    """Return whether a host needs a certificate of the authority.

    :param found: what M(monitoring_info) returned on the host.
    :param server: the same of Prometheus' host, which has the authority.
    """
    return bool(found["certificate"]) or found["authority"] != server["signer"]


def requests(requested: Requested, signing_requests: dict[str, str]) -> list[CertificateRequest]:
    """Return the certificates of all hosts, for M(own_certificate).

    :param asked: the requests of hosts that need one, by name.
    """
    hosts = [] if requested["certificate"] else requested["hosts"]
    return [
        {
            **certificate_names({**requested, "host": member["name"]}),
            "name": _certificate_file(member["name"]),
            "request": signing_requests.get(member["name"], ""),
        }
        for member in hosts
    ]


def _certificate_file(host: str) -> str:
    """Return the name under which the authority keeps the certificate of a host."""
    return "host-" + re.sub("[^A-Za-z0-9._-]", "_", host)


def tls_files(requested: Requested, ca: str, signed: dict[str, str]) -> list[ManagedFile]:
    """Return the certificates of a host. Texts that check mode does not know are left out.

    C(ca.pem) is the authority of servers.
    """
    texts = {"ca.pem": ca, "host.pem": signed.get(_certificate_file(requested["host"]), "")}
    if requested["certificate"]:
        texts = {"ca.pem": requested["ca"], "clients.pem": ca}
    return [_secret("%s/%s" % (TLS, path), text) for path, text in texts.items() if text]


def removal(found: dict[str, Any]) -> Removal:
    """Return what teardown removes.

    :param found: what M(monitoring_info) has returned.

    Returns C(placed), whether the roles have placed anything, C(units) to stop, C(absent), paths,
    C(grafana_folders), folders of Grafana, and C(authority), its folder.
    """
    record = found["record"]
    chosen = sorted(set(record.get("files") or []) | set(record.get("former") or []))
    grafana = sorted(
        {path.rpartition("/")[0] for path in chosen if not path.startswith(FOLDER + "/")},
        reverse=True,
    )
    certificates = [
        "%s/%s" % (TLS, name)
        for name in ("ca.pem", "clients.pem", "host.pem", "host.key", "client.pem", "client.key")
    ]
    return {
        "placed": bool(record) or found["placed_packages"],
        "units": [GPU_UNIT, HOST_UNIT, SLURM_UNIT, USAGE_UNIT],
        "absent": chosen + _all_paths() + certificates + [LIBRARY, METRICS, TLS],
        "grafana_folders": grafana,
        "authority": AUTHORITY,
    }


def drift(plan: Plan, found: dict[str, Any], changed_paths: list[str]) -> list[Difference]:
    """Return how a host differs from its plan, one row each: C(what), C(asked) and C(found).

    C(found) is the result of M(monitoring_info), C(changed_paths) are paths of the plan's files
    that are missing or have other content. Empty if a run of the roles would change nothing.
    """
    rows = [difference(name, "installed", "not installed") for name in plan["lacks_packages"]]
    if changed_paths:
        names = ", ".join(path.rpartition("/")[2] for path in changed_paths)
        text = "missing or changed: " + names
        rows.append(difference(FOLDER, "as planned", text))
    for row in services(plan, found, []):
        unit = found["units"].get(row["name"]) or {}
        text = (
            "it has not loaded its files" if unit.get("active") else "not running, or not enabled"
        )
        rows.append(difference(row["name"], "running", text))
    if found["certificate"]:
        text = ", ".join(found["certificate"])
        rows.append(difference(TLS + "/host.pem", "good", text))
    return rows
