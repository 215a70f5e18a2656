# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the hub that are not JupyterHub's: instances as jobs of Slurm, and login by link."""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
import os
import ssl
import time
from collections.abc import Awaitable

import _helper
import _identity
import _instance
import _jobs_page
import _watch
import jinja2
from jupyterhub import orm
from jupyterhub.apihandlers import APIHandler
from jupyterhub.auth import Authenticator
from jupyterhub.objects import Server
from jupyterhub.proxy import ConfigurableHTTPProxy
from jupyterhub.spawner import Spawner
from jupyterhub.user import User
from jupyterhub.utils import exponential_backoff, maybe_future
from markupsafe import Markup
from tornado import web
from traitlets import Dict, Unicode

LOGIN_PAGE = """
<form id="link" action="{{ authenticator_login_url | e }}" method="post" role="form">
  <p id="how">Log in on the cluster, and type <code>trainyard login</code>. It prints a link that logs you in here.</p>
  {% if login_error %}<p class="login_error">{{ login_error | e }}</p>{% endif %}
  <input type="hidden" name="_xsrf" value="{{ xsrf }}"/>
  <label for="token">The part of the link after #</label>
  <input id="token" class="form-control" type="password" name="token" autocomplete="off"/>
  <div class="feedback-container"><input id="submit" class="btn btn-jupyter" type="submit" value="Log in"/></div>
</form>
<script>
  // Somebody else may have sent the link. So the page shows the name, and a person decides. The hub refuses a link that is for another name.
  function take() {
    var link = /^#([a-z_][a-z0-9_.-]{0,31}):[A-Za-z0-9_-]{20,}$/.exec(location.hash);
    if (!link) {
      return;
    }
    document.getElementById("token").value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname + location.search);
    document.getElementById("token").type = "hidden";
    document.querySelector("label[for=token]").hidden = true;
    document.getElementById("how").textContent = "This link logs this browser in as " + link[1] + ". Continue only if you are " + link[1] +
      " and have asked for the link.";
    document.getElementById("submit").value = "Log in as " + link[1];
  }
  take();
  // A link that is opened in the tab of this page loads nothing.
  addEventListener("hashchange", take);
</script>
"""
#: The start page. Every text in it is quoted.
START_FORM = jinja2.Environment(
    autoescape=True, loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__)))
).get_template("templates/start_form.html")
#: Failed logins of a name from an address that are judged within so many seconds.
MOST_FAILED, FAILED_SECONDS = 10, 60


def limit_tokens(db, seconds, seconds_of_login):
    """End the tokens of people that were made before tokens had a limit.

    Those of servers end with their servers.
    """
    now = orm.APIToken.now()
    of_servers = {
        orm.APIToken.find(db, spawner.state["api_token"])
        for spawner in db.query(orm.Spawner)
        if (spawner.state or {}).get("api_token")
    }
    for token in db.query(orm.APIToken).filter(orm.APIToken.user_id.isnot(None)):
        # Those of a browser have the ID of its session.
        last = now + datetime.timedelta(seconds=seconds_of_login if token.session_id else seconds)
        if token not in of_servers and (token.expires_at is None or token.expires_at > last):
            token.expires_at = last
    db.commit()


class FailedLogins:
    """Counts failed logins by address and name.

    Who guesses from another address cannot keep a person out.
    """

    def __init__(self):
        self.moments = {}

    def refuse(self, key, now):
        self.moments = {
            each: moments
            for each, moments in self.moments.items()
            if moments[-1] + FAILED_SECONDS > now
        }
        recent = [moment for moment in self.moments.get(key, []) if moment + FAILED_SECONDS > now]
        if len(recent) >= MOST_FAILED:
            raise web.HTTPError(
                429, "Too many failed logins. Wait %d seconds, then try again" % FAILED_SECONDS
            )

    def add(self, key, now):
        self.moments[key] = self.moments.get(key, [])[-MOST_FAILED:] + [now]


class OfPeople:
    """Mixin for every authenticator: logs out removed people and rejects their tokens.

    Passwords cannot be guessed fast.
    """

    failed = FailedLogins()

    def get_handlers(self, app):
        # The database is open, and the hub serves nobody yet.
        limit_tokens(app.db, app.token_expires_in_max_seconds, app.oauth_token_expires_in)
        return super().get_handlers(app)

    async def get_authenticated_user(self, handler, data):
        name = (data or {}).get("username")
        # A link is no password: it has 32 random bytes.
        if not name:
            return await super().get_authenticated_user(handler, data)
        key = handler.request.remote_ip, name[:100]
        self.failed.refuse(key, time.monotonic())
        found = await super().get_authenticated_user(handler, data)
        if not found:
            self.failed.add(key, time.monotonic())
        return found

    async def refresh_user(self, user, handler=None, **more):
        if user.name not in self.allowed_users:
            return False
        return await maybe_future(super().refresh_user(user, handler, **more))


class LinkAuthenticator(Authenticator):
    """Admits who has a link of `trainyard login`. Each link is valid once."""

    links = Unicode(config=True, help="Folder of the links.")
    custom_html = Unicode(LOGIN_PAGE)

    async def authenticate(self, handler, data):
        person, token = _instance.parts_of_link(data.get("token") or "")
        path = os.path.join(self.links, _instance.file_of(token))
        # Who renames it first has it.
        mine = "%s.%d.used" % (path, time.monotonic_ns())
        try:
            os.rename(path, mine)
            with open(mine, encoding="utf-8") as stream:
                found = json.load(stream)
            os.unlink(mine)
        except (OSError, ValueError):
            found = None
        problem = _instance.link_problem(found, person, time.time())
        if problem:
            raise web.HTTPError(
                403,
                "%s, or was used before. Type trainyard login on the cluster for a new one"
                % problem.capitalize(),
            )
        return found["person"]


def start_error(job: str, jobs_page: str, found: dict) -> web.HTTPError:
    """Return why an instance did not start, with a link to the page of its job.

    C(found) has the C(causes) that its log shows, and the end of the C(log).
    """
    error = web.HTTPError(
        500,
        "The instance, job %s, ended before it was ready. Its log says why: trainyard logs %s"
        % (job, job),
    )
    error.jupyterhub_html_message = Markup(
        _jobs_page.START_FAILED.render(
            address="%sjob/%s" % (jobs_page, job),
            job=job,
            causes=found.get("causes") or [],
            log=found.get("log") or "",
        )
    )
    return error


class InstanceServer(Server):
    """The server of an instance, which the hub believes only if it proves its name."""

    #: Folder of the identities.
    identities = ""

    def wait_up(
        self,
        timeout: float = 10,
        http: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        extra_path: str = "",
    ) -> Awaitable:
        found = _identity.of_route_host(self.ip)
        if not http or not found:
            # It was started before instances had identities.
            return super().wait_up(timeout, http, ssl_context, extra_path)
        name, address = found
        url = _watch.url_of(address, self.port, self.base_url + extra_path)
        context = _watch.context_of(self.identities)
        problem = "%s did not answer as %s in %d s" % (url, name, timeout)
        ask = functools.partial(_watch.answer, url, name, context)
        return exponential_backoff(ask, problem, timeout=timeout)


class InstanceProxy(ConfigurableHTTPProxy):
    """An instance that does not prove its name has no route. Its watch adds it when it does."""

    async def add_user(self, user: User, server_name: str = "") -> None:
        if not getattr(user.spawners[server_name], "is_lost", False):
            await super().add_user(user, server_name)


class InstanceSpawner(Spawner):
    """An instance is a job of Slurm, which a helper submits as the person."""

    identities = Unicode(config=True, help="Folder of the authority of instances.")
    addresses = Dict(config=True, help="Addresses of the training hosts.")
    default_class = Unicode(config=True, help="Class of hosts that the start page chooses.")
    jobs_page = Unicode("/services/jobs/", config=True, help="Address of the pages of jobs.")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.job, self.file, self.port_of_server, self.message = (
            "",
            "",
            0,
            "The job is being submitted",
        )
        #: When Slurm ends it at the latest, as a time of Slurm. Empty if that is not known.
        self.ends = ""
        self.identity, self.is_lost, self._watch, self._instance_server = "", False, None, None

    # What the hub keeps over a restart.

    def get_state(self):
        found = {"job": self.job, "file": self.file, "identity": self.identity}
        return dict(super().get_state(), **(found if self.job else {}))

    def load_state(self, state):
        super().load_state(state)
        self.job, self.file = state.get("job", ""), state.get("file", "")
        self.identity = state.get("identity", "")

    def clear_state(self):
        super().clear_state()
        self.job, self.file, self.port_of_server, self.ends = "", "", 0, ""
        self.identity, self.is_lost = "", False

    def _get_server(self) -> InstanceServer | None:
        if Spawner.server.fget(self) is None:
            return None
        # JupyterHub sets the address of a server of its own at the start, and the database gets it.
        row, known = self.orm_spawner.server, self._instance_server
        if not known or (known.orm_server, known.ip, known.port) != (row, row.ip, row.port):
            known = self._instance_server = InstanceServer(orm_server=row)
            known.identities = self.identities
        return known

    server = property(_get_server, Spawner.server.fset)

    # From the start of the server to the stop of the instance.

    def start_polling(self) -> None:
        super().start_polling()
        if self.identity:
            context = _watch.context_of(self.identities)
            self._watch = asyncio.ensure_future(_watch.watch(self, context))

    def stop_polling(self) -> None:
        super().stop_polling()
        if self._watch:
            self._watch.cancel()
            self._watch = None

    async def ask(self, request):
        return await _helper.ask(self.user.name, request)

    async def options_form(self, _spawner=None):
        choices = await self.ask({"action": "choices"})
        if "error" in choices:
            raise web.HTTPError(_helper.code_of(choices), choices["error"])
        fields = _instance.start_fields(choices, self.user_options, self.default_class)
        return START_FORM.render(fields=fields)

    async def get_options_form(self):
        return await self.options_form()

    def options_from_form(self, formdata):
        return _instance.of_form(formdata)

    async def start(self):
        name = _instance.name_of(self.name, self.orm_spawner.display_name)
        identity = _identity.new_identity(self.identities)
        self.identity, self.is_lost = identity["name"], False
        answer = await self.ask(
            {
                "action": "start",
                "name": name,
                "values": _instance.chosen(self.user_options),
                "environment": _instance.server_environment(self.get_env()),
                "identity": identity,
            }
        )
        if "error" in answer:
            error = web.HTTPError(_helper.code_of(answer), answer["error"])
            error.jupyterhub_message = answer["error"]
            raise error
        self.job, self.file = answer["job"], answer["file"]
        self.log.info("%s is job %s", self._log_name, self.job)
        while True:
            status = await self.ask({"action": "status", "job": self.job})
            state = status.get("state")
            if state == "ended":
                found = await self.ask({"action": "failure", "job": self.job})
                await self.ask({"action": "stop", "job": self.job, "file": self.file})
                ended, self.job = self.job, ""
                raise start_error(ended, self.jobs_page, found)
            self.take_end(status)
            if state == "running" and self.port_of_server:
                host = status["hosts"][0]
                if host not in self.addresses:
                    raise web.HTTPError(
                        500,
                        (
                            "host %s is not known to the hub; tell the operator to run playbook "
                            "workbench"
                        )
                        % host,
                    )
                route = _identity.route_host(self.identity, self.addresses[host])
                return "https://%s:%d" % (route, self.port_of_server)
            if state:
                self.message = (
                    "Job %s is queued: %s" % (self.job, status["why"])
                    if status["waits"]
                    else "Job %s is starting its container" % self.job
                )
            await asyncio.sleep(2 if status.get("waits") else 0.5)

    def take_end(self, status: dict) -> None:
        """Keep when the instance ends at the latest, for the page of instances."""
        if status.get("started"):
            self.ends = _jobs_page.latest_end(dict(status, ended=None))

    async def progress(self):
        shown, percent = "", 10
        while True:
            if self.message != shown:
                shown, percent = self.message, min(90, percent + 20)
                yield {"progress": percent, "message": shown}
            await asyncio.sleep(1)

    async def poll(self):
        if not self.job:
            return 0
        status = await self.ask({"action": "status", "job": self.job})
        self.take_end(status)
        # No answer is no end.
        return 0 if status.get("state") == "ended" else None

    async def stop(self, now=False):
        if not self.job:
            return
        answer = await self.ask({"action": "stop", "job": self.job, "file": self.file})
        if "error" in answer:
            raise web.HTTPError(503 if answer["no_answer"] else 500, answer["error"])
        # Until it has ended, its GPUs are not free.
        for _try in range(60):
            if await self.poll() is not None:
                break
            await asyncio.sleep(1)


class InstanceHandler(APIHandler):
    """Takes the port of a server that has started.

    Its token says which one it is, and Slurm on which host, so that it cannot lead people
    elsewhere.
    """

    async def post(self):
        token, person = self.get_auth_token(), self.current_user
        body = self.get_json_body() or {}
        port = body.get("port")
        if not token or person is None or not hasattr(person, "spawners"):
            raise web.HTTPError(403)
        if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= 65535:
            raise web.HTTPError(400, "port: not a port")
        for spawner in person.spawners.values():
            if (
                isinstance(spawner, InstanceSpawner)
                and spawner.api_token == token
                and spawner.pending == "spawn"
            ):
                spawner.port_of_server = port
                self.set_status(204)
                return
        raise web.HTTPError(404)
