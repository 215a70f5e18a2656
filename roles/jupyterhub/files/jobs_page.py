# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs in the browser: a service of the hub that runs the command trainyard as the person who has logged in."""

from __future__ import annotations

import asyncio
import os

import _helper
import _jobs_page
from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado import httpserver, web

PREFIX, HUB = os.environ["JUPYTERHUB_SERVICE_PREFIX"], os.environ.get("JUPYTERHUB_HOST", "")


#: Headers of each answer, including errors. The address of Jupyter contains its token.
HEADERS = {
    "Strict-Transport-Security": os.environ["TRAINYARD_HSTS"],
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
}


class WithHeaders:
    def set_default_headers(self):
        for name, value in HEADERS.items():
            self.set_header(name, value)


class Page(WithHeaders, HubOAuthenticated, web.RequestHandler):
    """A page of one person."""

    async def ask(self, action, **more):
        return await _helper.ask(self.get_current_user()["name"], dict(more, action=action))

    def show(self, title, body, code=200):
        self.set_status(code)
        self.finish(_jobs_page.frame(title, body, PREFIX, self.get_current_user()["name"], HUB))

    def refuse(self, title, answer):
        self.show(title, _jobs_page.problem(answer["error"]), _helper.code_of(answer))

    def xsrf(self):
        return self.xsrf_form_html()


class Jobs(Page):
    @web.authenticated
    async def get(self):
        answer = await self.ask("jobs")
        if "error" in answer:
            return self.refuse("Jobs", answer)
        return self.show("Jobs", _jobs_page.list_page(answer["jobs"], PREFIX))


class Job(Page):
    @web.authenticated
    async def get(self, number):
        answer = await self.ask("job", job=number)
        if "error" in answer:
            return self.refuse("Job %s" % number, answer)
        return self.show(
            "Job %s" % number,
            _jobs_page.job_page(answer["job"], answer["log"], PREFIX, self.xsrf(), answer["ssh"]),
        )


class Act(Page):
    @web.authenticated
    async def post(self, number, action):
        answer = await self.ask({"stop": "stop_job", "clone": "clone"}[action], job=number)
        if "error" in answer:
            return self.refuse("Job %s" % number, answer)
        return self.redirect("%sjob/%s" % (PREFIX, answer["job"]))


class New(Page):
    async def form(self, values, message="", code=200):
        choices = await self.ask("choices")
        if "error" in choices:
            return self.refuse("New job", choices)
        return self.show(
            "New job",
            _jobs_page.problem(message) * bool(message)
            + _jobs_page.form_page(choices, values, PREFIX, self.xsrf()),
            code,
        )

    @web.authenticated
    async def get(self):
        await self.form({})

    @web.authenticated
    async def post(self):
        values = _jobs_page.values_of(self.request.body_arguments)
        answer = await self.ask("submit", values=values)
        if "error" in answer:
            return await self.form(values, answer["error"], _helper.code_of(answer))
        return self.redirect("%sjob/%s" % (PREFIX, answer["job"]))


class Missing(WithHeaders, web.ErrorHandler):
    pass


class LoggedIn(WithHeaders, HubOAuthCallbackHandler):
    pass


async def main():
    number = r"([1-9][0-9]{0,17})"
    application = web.Application(
        [
            (PREFIX, Jobs),
            (PREFIX + "new", New),
            ("%sjob/%s" % (PREFIX, number), Job),
            ("%sjob/%s/(stop|clone)" % (PREFIX, number), Act),
            (PREFIX + "oauth_callback", LoggedIn),
        ],
        cookie_secret=os.urandom(32),
        xsrf_cookies=True,
        default_handler_class=Missing,
        default_handler_args={"status_code": 404},
    )
    server = httpserver.HTTPServer(application, xheaders=True)
    server.listen(int(os.environ["TRAINYARD_PORT"]), "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
