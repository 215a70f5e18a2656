# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration of JupyterHub.

The values of the site are data in hub.json. No text of an inventory is part of a program.
"""

import importlib
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
trainyard_hub = importlib.import_module("trainyard_hub")
# JupyterHub gives it to this file.
c = globals()["get_config"]()

with open("/etc/trainyard/hub/hub.json", encoding="utf-8") as stream:
    site = json.load(stream)
with open("/etc/trainyard/hub/authenticator.json", encoding="utf-8") as stream:
    authenticator = json.load(stream)

# The proxy is a service of its own, so that a restart of the hub cuts nobody off.
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:%d" % site["proxy_api_port"]
c.JupyterHub.cleanup_servers = False
c.JupyterHub.cleanup_proxy = False
# A proxy that was killed has lost the routes to instances. The hub adds them again at this interval
# in seconds.
c.JupyterHub.last_activity_interval = 30

c.JupyterHub.proxy_class = trainyard_hub.InstanceProxy

# All clients reach the hub through the proxy by TLS, including the servers on training hosts.
c.JupyterHub.bind_url = site["url"] + "/"
c.JupyterHub.public_url = site["url"] + "/"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:%d" % site["hub_port"]
c.Spawner.hub_connect_url = site["url"]

if site["subdomains"]:
    c.JupyterHub.subdomain_host = site["url"]
    # A page below the name of the hub cannot replace its cookies.
    c.JupyterHub.cookie_host_prefix_enabled = True

c.JupyterHub.db_url = "sqlite:///%s/jupyterhub.sqlite" % site["state"]
c.JupyterHub.cookie_secret_file = "%s/cookie_secret" % site["state"]
c.JupyterHub.cookie_max_age_days = site["login_seconds"] / 86400
c.JupyterHub.oauth_token_expires_in = site["login_seconds"]
c.JupyterHub.token_expires_in_max_seconds = 86400 * site["token_days"]
c.JupyterHub.tornado_settings = {
    "slow_spawn_timeout": 10,
    "headers": {"Referrer-Policy": "no-referrer", "Strict-Transport-Security": site["hsts"]},
}
c.JupyterHub.extra_handlers = [(r"/api/trainyard/instance", trainyard_hub.InstanceHandler)]

c.JupyterHub.spawner_class = trainyard_hub.InstanceSpawner
c.InstanceSpawner.addresses = site["addresses"]
c.InstanceSpawner.default_class = site["default_class"]
c.InstanceSpawner.identities = site["state"] + "/identities"
# With its own host name in the way that JupyterHub makes it.
jobs_host = site["url"].replace("://", "://jobs--service.") if site["subdomains"] else ""
c.InstanceSpawner.jobs_page = jobs_host + "/services/jobs/"
c.JupyterHub.allow_named_servers = True
c.JupyterHub.named_server_limit_per_user = site["instances_per_person"]
c.JupyterHub.default_url = "/hub/home"
# Its own pages in the words of this cluster.
c.JupyterHub.template_paths = [
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
]
c.JupyterHub.template_vars = {
    "jobs_page": jobs_host + "/services/jobs/",
    "notice": site["announcement"],
    "operators": site["operators"],
    "idle_minutes": site["idle_minutes"],
    "idle_gpu_minutes": site["idle_gpu_minutes"],
}
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = site["queue_seconds"]
c.Spawner.http_timeout = 120
c.Spawner.poll_interval = 60
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.active_server_limit = 0

# The service with the pages of jobs. Everybody may open it and sees only their own jobs.
c.JupyterHub.services = [
    {
        "name": "jobs",
        "url": "http://127.0.0.1:%d" % site["jobs_port"],
        "api_token": os.environ["TRAINYARD_JOBS_TOKEN"],
        "oauth_no_confirm": True,
        "display": True,
    }
]
c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "access:services!service=jobs"]}]

# The spawner reads the options itself.
c.Spawner.apply_user_options = lambda _spawner, _options: None

KINDS = {
    "link": ("trainyard_hub", "LinkAuthenticator"),
    "pam": ("jupyterhub.auth", "PAMAuthenticator"),
    "oidc": ("oauthenticator.generic", "GenericOAuthenticator"),
    "ldap": ("ldapauthenticator", "LDAPAuthenticator"),
}
module, name = KINDS[authenticator["kind"]]
chosen = getattr(importlib.import_module(module), name)
c.JupyterHub.authenticator_class = type("People" + name, (trainyard_hub.OfPeople, chosen), {})
c.LinkAuthenticator.links = site["links"]
c.PAMAuthenticator.open_sessions = False
for option, value in authenticator["options"].items():
    setattr(c[name], option, value)
c.Authenticator.allowed_users = set(site["people"])
c.Authenticator.allow_existing_users = False
c.Authenticator.admin_users = set()
c.Authenticator.auth_refresh_age = 30
# Tokens of former people, too.
c.Authenticator.auth_refresh_strict = True
