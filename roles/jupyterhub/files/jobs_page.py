# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal: a service of the hub that runs the command trainyard as the person who has logged in.

Jobs, the cluster and usage in the browser.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import time

import _charts
import _helper
import _jobs_page
from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado import httpclient, httpserver, web

PREFIX, HUB = os.environ["JUPYTERHUB_SERVICE_PREFIX"], os.environ.get("JUPYTERHUB_HOST", "")
#: What browsers load beside a page: the style sheet and the script, with their types.
STATIC = {"pages.css": "text/css", "pages.js": "text/javascript"}
#: Of role jupyterhub, with the message of the operator.
CONFIG = "/etc/trainyard/hub/hub.json"
#: Of role monitoring_server, if this is its host. Seconds for an answer: pages work without it.
PROMETHEUS, PATIENCE = "https://localhost:9090/api/v1/", 3
#: Of role verify: its last report, if this is the host of its metrics.
REPORT = "/var/lib/trainyard/portal/verify.html"
#: Bytes of a job file that a person uploads.
MAX_FILE = 1 << 18
#: For so long people share an answer of Prometheus about the cluster.
SHARED_SECONDS = 10

#: Headers of each answer, including errors. The address of Jupyter contains its token.
HEADERS = {
    "Strict-Transport-Security": os.environ["TRAINYARD_HSTS"],
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' %(hub)s; img-src 'self' "
        "%(hub)s; font-src 'self' %(hub)s; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    % {"hub": HUB},
}


#: Since when Slurm has not answered anybody.
silence = _jobs_page.Silence()


def settings() -> dict:
    """Return what role jupyterhub has written for this host.

    It is read each time, so that a new message or operator needs no restart of this service.
    """
    try:
        with open(CONFIG, encoding="utf-8") as stream:
            return dict(json.load(stream))
    except (OSError, ValueError):
        return {}


class WithHeaders:
    def set_default_headers(self):
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code, **_more):
        """Answer an error in the frame of the pages. It names nobody: the login may be what
        failed.
        """
        heading = "%d: %s" % (status_code, self._reason)
        frame = {"prefix": PREFIX, "hub": HUB, "person": ""}
        self.finish(_jobs_page.render("problem", frame, heading=heading, problems=[], since=""))


class Page(WithHeaders, HubOAuthenticated, web.RequestHandler):
    """A page of one person."""

    async def ask(self, action, **more):
        answer = await _helper.ask(self.get_current_user()["name"], dict(more, action=action))
        silence.take(answer, datetime.datetime.now(datetime.timezone.utc))
        return answer

    def is_operator(self) -> bool:
        """Return whether the inventory names the person in monitoring_operators.

        What an operator may do is decided by Slurm.
        """
        return self.get_current_user()["name"] in (settings().get("operators") or [])

    def show(self, name, code=200, **values):
        self.set_status(code)
        person = self.get_current_user()["name"]
        frame = {"prefix": PREFIX, "hub": HUB, "person": person, "is_operator": self.is_operator()}
        xsrf = self.xsrf_token.decode()
        self.finish(_jobs_page.render(name, frame, xsrf=xsrf, **values))

    def as_csv(self, name, text):
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", "attachment; filename=" + name)
        return self.finish(text)

    def refuse(self, heading, answer):
        self.show(
            "problem",
            _helper.code_of(answer),
            heading=heading,
            problems=_jobs_page.problem_lines(answer["error"]),
            since=silence.since if answer["no_answer"] else "",
        )


class Home(Page):
    @web.authenticated
    async def get(self):
        answer = await self.ask("home")
        if "error" in answer:
            return self.refuse("Home", answer)
        return self.show("home", **dict(answer, message=settings().get("announcement")))


class Jobs(Page):
    @web.authenticated
    async def get(self):
        query = _jobs_page.query_of(self.request.query_arguments)
        answer = await self.ask("jobs", **query)
        if "error" in answer:
            return self.refuse("Jobs", answer)
        return self.show(
            "jobs",
            jobs=answer["jobs"],
            total=answer["total"],
            query=query,
            filters=_jobs_page.FILTERS,
            periods=_jobs_page.PERIODS,
            pager=_jobs_page.pager(dict(query, page=""), answer["page"], answer["pages"]),
        )


def is_certificate(path: str) -> bool:
    """Return whether a file has a certificate. systemd passes the word none if playbook monitoring
    has not run.
    """
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read(5) == "-----"
    except (OSError, ValueError):
        return False


async def ask_prometheus(query: str) -> object:
    """Return the answer of the Prometheus of this host to an address of P(_charts), None if it gives none."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    names = [os.path.join(folder, name) for name in ("client.pem", "client.key", "ca.pem")]
    certificate, key, authority = names
    if not folder or not is_certificate(certificate):
        return None
    client = httpclient.AsyncHTTPClient()
    try:
        found = await client.fetch(
            PROMETHEUS + query,
            request_timeout=PATIENCE,
            client_cert=certificate,
            client_key=key,
            ca_certs=authority,
        )
        return json.loads(found.body)
    # Not installed, stopped, slow, or somebody else's program.
    except (OSError, ValueError, httpclient.HTTPError):
        return None


async def ask_all(queries: dict) -> dict:
    """Return the answers of Prometheus to several queries by their names."""
    answers = await asyncio.gather(*[ask_prometheus(query) for query in queries.values()])
    return dict(zip(queries, answers))


async def ask_curves(job: dict, person: str, span: str) -> tuple:
    """Return the charts that Prometheus has of a job of a person, and whether it has answered.

    C(span) is one of P(_charts.SPANS), or empty for all the time of the job.
    """
    now = time.time()
    queries = _charts.curve_queries(job, now, person, span)
    more = _charts.worker_queries(job, now, person, span)
    answers = await asyncio.gather(*[ask_prometheus(query) for query in queries + more])
    panels = _charts.panels_of(answers[: len(queries)])
    return panels + _charts.worker_panels(answers[len(queries) :]), None not in answers


def rank_of(handler) -> int | None:
    """Return the worker of a log that the address names, None for all of them."""
    text = handler.get_query_argument("rank", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def span_of(handler) -> str:
    """Return the time of the curves that the address names, empty for all of it."""
    text = handler.get_query_argument("span", "")
    return text if text in _charts.SPANS else ""


class Job(Page):
    @web.authenticated
    async def get(self, number):
        rank, span = rank_of(self), span_of(self)
        answer, log = await asyncio.gather(
            self.ask("job", job=number), self.ask("log", job=number, rank=rank, start=-1)
        )
        if "error" in answer:
            return self.refuse("Job %s" % number, answer)
        job = answer["job"]
        # Those of Prometheus are over all the time of the job.
        panels, has_prometheus = await ask_curves(job, self.get_current_user()["name"], span)
        titles = set()
        titles.update(panel["title"] for panel in panels)
        for panel in _charts.hour_panels(answer["curves"], answer["workers"]):
            if panel["title"].partition(",")[0] not in titles:
                panels.append(panel)
        result = job.get("result") or {}
        address = "%sjob/%s/log?rank=%s" % (PREFIX, number, "" if rank is None else rank)
        endpoints = []
        for each in job.get("endpoints") or []:
            if each["service"] != "ssh":
                endpoints.append(dict(each, address=_jobs_page.address_of(each["url"])))
        return self.show(
            "job",
            job=job,
            result=result,
            failed=result.get("first_failed") or {},
            ssh=answer["ssh"],
            endpoints=endpoints,
            panels=panels,
            has_prometheus=has_prometheus,
            spans=_charts.SPANS,
            span=span,
            slow=_charts.slow_words(job.get("usage") or []),
            latest=_jobs_page.latest_end(job),
            is_instance=answer["is_instance"],
            idle=_jobs_page.idle_words(settings()) if answer["is_instance"] else "",
            cost=_jobs_page.cost_words(job, answer["accounts"]),
            opens=_jobs_page.folder_addresses(HUB, job.get("folder"), answer["share"]),
            rank=rank,
            ranks=min(int(job["workers"]), _charts.MOST_SERIES),
            log=log.get("text", log.get("error", "")),
            from_byte=log.get("start", 0),
            next_byte=log.get("next", 0),
            log_address=address,
        )


class Log(Page):
    """What a log has from a byte on, for the page of a job that runs, or all of it as a file."""

    @web.authenticated
    async def get(self, number):
        start = self.get_query_argument("from", "0")
        start = int(start) if start.isascii() and start.isdigit() and len(start) < 16 else 0
        if not self.get_query_argument("download", ""):
            answer = await self.ask("log", job=number, rank=rank_of(self), start=start)
            self.set_status(_helper.code_of(answer) if "error" in answer else 200)
            self.set_header("Content-Type", "application/json")
            return self.finish(json.dumps(answer))
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Content-Disposition", "attachment; filename=job-%s.log" % number)
        while True:
            answer = await self.ask("log", job=number, rank=rank_of(self), start=start)
            if "error" in answer or not answer["text"]:
                return self.finish()
            self.write(answer["text"])
            await self.flush()
            start = answer["next"]


class Act(Page):
    @web.authenticated
    async def post(self, number, action):
        answer = await self.ask({"stop": "stop_job", "clone": "clone"}[action], job=number)
        if "error" in answer:
            return self.refuse("Job %s" % number, answer)
        return self.redirect("%sjob/%s" % (PREFIX, answer["job"]))


class New(Page):
    async def form(self, values, message="", checked=None, code=200):
        choices = await self.ask("choices")
        if "error" in choices:
            return self.refuse("New job", choices)
        by_field, others = _jobs_page.problems_by_field(message, choices["fields"])
        return self.show(
            "new",
            code,
            problems=others,
            fields=_jobs_page.fields_of(choices, values, by_field),
            more=values.get("more", ""),
            gpus_why=choices["gpus"]["why"],
            checked=checked,
        )

    async def filled(self, **request):
        """Show the form with the values of a job or of a file."""
        answer = await self.ask("values", **request)
        if "error" in answer:
            return await self.form({}, answer["error"], code=_helper.code_of(answer))
        return await self.form(answer["values"])

    @web.authenticated
    async def get(self):
        number = self.get_query_argument("from", "")
        if number:
            return await self.filled(job=number)
        return await self.form({})

    @web.authenticated
    async def post(self):
        values = _jobs_page.values_of(self.request.body_arguments)
        do = values.pop("do", "submit")
        if do == "fill":
            body = self.request.files.get("file", [{"body": b""}])[0]["body"]
            if len(body) > MAX_FILE:
                return await self.form(
                    {}, "the file is larger than %d KiB" % (MAX_FILE >> 10), code=400
                )
            return await self.filled(text=body.decode("utf-8", "replace"))
        answer = await self.ask("check" if do == "check" else "submit", values=values)
        if "error" in answer:
            return await self.form(values, answer["error"], code=_helper.code_of(answer))
        if do == "check":
            return await self.form(values, checked=answer)
        return self.redirect("%sjob/%s" % (PREFIX, answer["job"]))


#: Answers about the cluster are the same for all who see others, and for all who do not: the time
#: of the question, and its task.
shared_answers = {}


async def ask_shared(sees_others: bool) -> dict:
    """Ask Prometheus about the cluster, at most once in some seconds for all people together."""
    now = time.monotonic()
    moment, task = shared_answers.get(sees_others, (0.0, None))
    if task is None or now - moment > SHARED_SECONDS:
        task = asyncio.ensure_future(ask_all(_charts.cluster_queries(time.time(), sees_others)))
        shared_answers[sees_others] = now, task
    return await asyncio.shield(task)


class Cluster(Page):
    @web.authenticated
    async def get(self):
        sees_others = self.is_operator() or settings().get("people_see") == "occupancy"
        answer, shared = await asyncio.gather(self.ask("cluster"), ask_shared(sees_others))
        if "error" in answer:
            return self.refuse("Cluster", answer)
        return self.show(
            "cluster",
            in_service=sum(node["available"] for node in answer["nodes"]),
            panels=_charts.cluster_panels(shared),
            uses=_charts.uses_of(shared.get("use")),
            health=_charts.health_of(shared["health"]),
            **answer,
        )


class Usage(Page):
    @web.authenticated
    async def get(self, is_csv):
        answer = await self.ask("usage")
        if "error" in answer:
            return self.refuse("Usage", answer)
        if not is_csv:
            months = answer["months"]
            most = max((row["gpu_hours"] for row in months), default=0)
            return self.show("usage", months=months, groups=answer["groups"], most=most)
        return self.as_csv("usage.csv", answer["csv"])


class OfOperators(Page):
    """A page for operators alone."""

    def prepare(self):
        # Before the login there is no person. The methods ask for it.
        if self.get_current_user() and not self.is_operator():
            raise web.HTTPError(403, reason="This page is for operators")


class Operators(OfOperators):
    """The page of operators, and their actions, which the log of this service and Slurm keep with
    their names.
    """

    @web.authenticated
    async def get(self):
        moment = self.ask("operators", month=self.get_query_argument("month", ""))
        answer, shared = await asyncio.gather(moment, ask_all(_charts.OF_OPERATORS))
        if "error" in answer:
            return self.refuse("Operators", answer)
        found = _jobs_page.by_waste(answer["jobs"], _charts.busy_of(shared["jobs"]))
        page = _jobs_page.query_of(self.request.query_arguments)["page"]
        pages = max(1, -(-len(found) // _jobs_page.OF_PAGE))
        page = min(page, pages)
        waiting = sum(job["state"] == "pending" for job in found)
        return self.show(
            "operators",
            alerts=_charts.alerts_of(shared["alerts"]),
            verify=_charts.verify_of(shared["verify"]),
            has_report=os.access(REPORT, os.R_OK),
            away=[node for node in answer["nodes"] if not node["available"]],
            nodes=answer["nodes"],
            people=answer["people"],
            month=answer["month"],
            months=answer["months"],
            jobs=found[(page - 1) * _jobs_page.OF_PAGE : page * _jobs_page.OF_PAGE],
            running=len(found) - waiting,
            waiting=waiting,
            pager=_jobs_page.pager({"month": answer["month"]}, page, pages),
        )

    @web.authenticated
    async def post(self):
        values = _jobs_page.values_of(self.request.body_arguments)
        request = {key: values.get(key, "") for key in ("do", "node", "reason")}
        answer = await self.ask("node", **request)
        if "error" in answer:
            return self.refuse("Operators", answer)
        return self.redirect(PREFIX + "operators")


class OperatorUsage(OfOperators):
    """What all people have used in a month, as CSV."""

    @web.authenticated
    async def get(self):
        answer = await self.ask("operators", month=self.get_query_argument("month", ""))
        if "error" in answer:
            return self.refuse("Operators", answer)
        return self.as_csv("usage-%s.csv" % answer["month"], answer["csv"])


class OperatorJob(OfOperators):
    """The page of a job of anybody, for operators: what Slurm and Prometheus have of it, and its
    log if the operator's own account may read it.
    """

    @web.authenticated
    async def get(self, number):
        answer = await self.ask("any_job", job=number)
        if "error" in answer:
            return self.refuse("Job %s" % number, answer)
        job = answer["job"]
        span = span_of(self)
        panels, has_prometheus = await ask_curves(job, str(job["person"]), span)
        return self.show(
            "job",
            job=job,
            of_person=job["person"],
            panels=panels,
            has_prometheus=has_prometheus,
            spans=_charts.SPANS,
            span=span,
            latest=_jobs_page.latest_end(job),
            log=answer["log"],
        )


class Report(OfOperators):
    """The last report of verify. It is one file with a style of its own, and without scripts."""

    @web.authenticated
    async def get(self):
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
        self.set_header("Content-Security-Policy", policy)
        try:
            with open(REPORT, encoding="utf-8") as stream:
                return self.finish(stream.read())
        except OSError:
            raise web.HTTPError(404) from None


class Static(WithHeaders, web.RequestHandler):
    """The style sheet and the script. They have no secret, and need no login."""

    def get(self, name):
        self.set_header("Content-Type", STATIC[name])
        # They change with a new release, and are small.
        self.set_header("Cache-Control", "max-age=60")
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "rb") as stream:
            self.finish(stream.read())


class Missing(WithHeaders, web.ErrorHandler):
    pass


class LoggedIn(WithHeaders, HubOAuthCallbackHandler):
    pass


async def main():
    number = r"([1-9][0-9]{0,17})"
    application = web.Application(
        [
            (PREFIX, Home),
            (PREFIX + "jobs", Jobs),
            (PREFIX + "new", New),
            (PREFIX + "cluster", Cluster),
            (PREFIX + r"usage(\.csv)?", Usage),
            (PREFIX + "operators", Operators),
            (PREFIX + "operators/report", Report),
            (PREFIX + r"operators/usage\.csv", OperatorUsage),
            ("%soperators/job/%s" % (PREFIX, number), OperatorJob),
            ("%sjob/%s" % (PREFIX, number), Job),
            ("%sjob/%s/log" % (PREFIX, number), Log),
            ("%sjob/%s/(stop|clone)" % (PREFIX, number), Act),
            (PREFIX + r"static/(pages\.css|pages\.js)", Static),
            (PREFIX + "oauth_callback", LoggedIn),
        ],
        cookie_secret=os.urandom(32),
        xsrf_cookies=True,
        default_handler_class=Missing,
        default_handler_args={"status_code": 404},
    )
    server = httpserver.HTTPServer(application, xheaders=True, max_body_size=1 << 20)
    server.listen(int(os.environ["TRAINYARD_PORT"]), "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
