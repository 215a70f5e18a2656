# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of the portal from recorded data: each text stays a text, no page needs a script, and large
clusters have small pages.
"""

from __future__ import annotations

import ast
import datetime
import html.parser
import json
import re
import time
import types
import urllib.parse

import jinja2
import portal
import pytest
from portal import FILES, FRAME, HOSTILE, PREFIX

pages = portal.load("_jobs_page")
charts = portal.load("_charts")
instance = portal.load("_instance")
#: Attributes by which a page would run or load something, or have a style, that the policy forbids.
FORBIDDEN = re.compile(r"on[a-z]+|style|srcdoc|formaction")


class Page(html.parser.HTMLParser):
    """What a browser makes of a page: its elements, texts, labels and addresses."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open, self.ids = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self.open.append(tag)

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def luminance(colour):
    """Of WCAG 2.2, of a colour such as #0b5ed7."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize(
    "theme, grounds",
    [(0, ("#ffffff", "#f8f9fa")), (1, ("#212529", "#2b3035"))],
    ids=["light", "dark"],
)
def test_colours_can_be_read(theme, grounds):
    """On the two grounds of Bootstrap 5.3 that pages have. axe finds nothing serious on them (issue
    53).
    """
    rules = re.findall(
        r"^(?::root|\[data-bs-theme=.dark.\]) \{(.*)\}",
        (FILES / "pages.css").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    colours = re.findall(r"--[a-z]+: (#[0-9a-f]{6})", rules[theme])
    assert len(colours) == 4
    for colour in colours:
        for ground in grounds:
            low, high = sorted((luminance(colour), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (colour, ground)


def hostile(value):
    """The same data with another text in the place of each text and each name."""
    if isinstance(value, dict):
        return {key: hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return HOSTILE if isinstance(value, str) else value


def drawn(name, **values):
    return pages.render(name, FRAME, **values)


def of_job(job, log="line\n", **more):
    return drawn("job", **dict(portal.job_values(job, log, [], pages), **more))


@pytest.fixture(scope="module", name="rendered")
def _rendered():
    return {path: draw(pages) for path, draw in portal.PAGES.items()}


def test_no_page_has_what_the_policy_forbids(rendered):
    """Scripts and styles come from files. Each page works without them."""
    for path, text in rendered.items():
        page = Page(text)
        assert [attrs for attrs in page.of("script") if set(attrs) != {"src"}] == [], path
        assert page.of("style") == [] and "javascript:" not in text, path
        for tag, attrs in page.tags:
            assert [name for name in attrs if FORBIDDEN.fullmatch(name)] == [], (path, tag)
        assert {attrs["href"] for attrs in page.of("link")} == {
            "/hub/static/css/style.min.css",
            PREFIX + "static/pages.css",
            "/hub/static/favicon.ico",
        }
    sources = (FILES / "pages.js").read_text(encoding="utf-8")
    # JupyterHub refuses the cookie of a request of a script without it.
    assert sources.count("fetch(") == sources.count('"X-XSRFToken": document.body.dataset.xsrf')
    assert 'data-xsrf="secret"' in rendered["job/9998"]
    assert not re.search(r"innerHTML|insertAdjacentHTML|\beval\b|\.style\b", sources)


def test_each_page_can_be_read_and_used_by_keyboard(rendered):
    """A language, a title, one heading of the first level, one main part, a way past the menu, a
    label for each field, heads of tables, and no id twice.
    """
    for path, text in rendered.items():
        page = Page(text)
        assert page.of("html")[0]["lang"] == "en" and "width=device-width" in text, path
        assert len(page.of("h1")) == len(page.of("main")) == len(page.of("title")) == 1, path
        assert page.of("a")[0]["href"] == "#main" and page.of("main")[0]["id"] == "main", path
        assert sorted(set(page.ids)) == sorted(page.ids), path
        labels = {attrs["for"] for attrs in page.of("label")}
        regions = [
            attrs["aria-label"] for _tag, attrs in page.tags if attrs.get("role") == "region"
        ]
        assert len(set(regions)) == len(regions), path
        for tag in ("input", "select", "textarea"):
            for attrs in page.of(tag):
                assert attrs.get("type") == "hidden" or attrs["id"] in labels, (path, attrs)
        for attrs in page.of("th"):
            assert attrs.get("scope") in ("col", "row"), path
        for tag, attrs in page.tags:
            for name in ("aria-describedby", "aria-labelledby"):
                assert set(attrs.get(name, "").split()) <= set(page.ids), (path, tag, attrs)
            # What scrolls is reached by keyboard, and has a name.
            assert tag != "div" or attrs.get("class") != "scroll" or attrs["tabindex"] == "0"
        assert "<th></th>" not in text, path


def hostile_panels():
    """The charts of a job with another text in the place of each name."""
    row = {"host": HOSTILE, "gpu": HOSTILE, "minutes": portal.minutes()[0]["minutes"]}
    worker = dict(portal.workers()[0], name=HOSTILE)
    return charts.hour_panels([row], [worker])


def hostile_told(told):
    """Answers of a Prometheus whose labels and texts are hostile. Numbers stay numbers."""
    found = json.loads(json.dumps(told))
    for answer in found.values():
        for each in answer["data"].get("result", []):
            name = {key: text for key, text in each["metric"].items() if key == "__name__"}
            each["metric"] = dict(hostile(each["metric"]), **name)
        for each in answer["data"].get("alerts", []):
            each.update(labels=hostile(each["labels"]), annotations=hostile(each["annotations"]))
            each["activeAt"] = HOSTILE
    return found


def hostile_cluster():
    hosts = portal.nodes(2)
    values = portal.cluster_values(
        hostile(hosts), hostile(portal.queue()), hostile_told(portal.told_of_cluster(hosts))
    )
    return dict(values, classes=hostile(values["classes"]), reasons=hostile(values["reasons"]))


def hostile_operators():
    answer = hostile(portal.of_all())
    answer.update(jobs=answer["jobs"][:9], people=answer["people"][:1])
    for number, job in enumerate(answer["jobs"]):
        # Numbers of jobs are Slurm's.
        job["id"] = str(number + 1)
    told = hostile_told(portal.told_of_operators())
    return portal.operator_values(answer, told, pages)


def test_hostile_texts_stay_texts():
    """In each field of each page, also in those that the person's own programs have written."""
    frame = dict(FRAME, person=HOSTILE)
    job = hostile(portal.failed_job())
    running = hostile(portal.shown_job())
    offered = hostile(portal.choices())
    used = {"account": "a", "month": "m", "jobs": 1, "gpu_hours": 1, "gpu_hours_measured": 0}
    values = {about["name"]: HOSTILE for about in offered["fields"]}
    query = {"state": "", "since": "1d", "name": HOSTILE, "page": 1}
    shown = [
        pages.render("home", frame, **hostile(portal.home())),
        pages.render(
            "jobs",
            frame,
            jobs=[hostile(portal.a_job(5))],
            total=1,
            query=query,
            filters=pages.FILTERS,
            periods=pages.PERIODS,
            pager=pages.pager(query, 1, 2),
        ),
        of_job(job, HOSTILE),
        of_job(running, HOSTILE, panels=hostile_panels(), slow=HOSTILE, has_prometheus=False),
        of_job(
            running,
            HOSTILE,
            opens={"lab": HOSTILE, "tensorboard": HOSTILE},
            cost=HOSTILE,
            latest=HOSTILE,
            ssh=HOSTILE,
        ),
        drawn(
            "new",
            fields=pages.fields_of(offered, values, {HOSTILE: [HOSTILE]}),
            more=HOSTILE,
            problems=[HOSTILE],
            gpus_why=HOSTILE,
            checked={
                "cost": HOSTILE,
                "start_estimate": HOSTILE,
                "file": HOSTILE,
                "script": HOSTILE,
            },
            xsrf=HOSTILE,
        ),
        drawn("cluster", **hostile_cluster()),
        drawn("usage", months=hostile(portal.months()[:1]), groups=hostile([used]), most=9),
        drawn("operators", **hostile_operators()),
        drawn("job", job=running, of_person=HOSTILE, panels=[], log=HOSTILE, latest=HOSTILE),
        drawn("problem", heading=HOSTILE, problems=[HOSTILE], since=HOSTILE),
    ]
    for text in shown:
        page = Page(text)
        assert page.of("script") == [{"src": PREFIX + "static/pages.js"}], text[:200]
        # Jinja's own signs in a text are no template.
        assert "49" not in page.text and "{{ 7*7 }}" in page.text
        for tag, attrs in page.tags:
            # No text has ended the attribute that it is in.
            assert not set(attrs) & {"1)", "alert(1)", "'{{"}, (tag, attrs)
    assert page.text.count("alert(1)") >= 2


def test_what_is_no_address_is_no_link():
    """The folder of a job has its services, and a program of the job may write there."""
    for url in (
        "javascript:alert(1)//",
        "http://localhost.example.org/",
        "http://localhost:1@example.org/",
        "https://example.org/",
        5,
        ["x"],
    ):
        each = {"service": "jupyter", "state": "ready", "why": "", "command": "ssh", "url": url}
        page = Page(of_job(portal.shown_job(endpoints=[each])))
        assert str(url) not in [attrs["href"] for attrs in page.of("a")], url
    ready = dict(each, url="http://localhost:8890/?token=secret", command="ssh -L 8890:<x> a")
    failed = dict(each, state="failed", why="no <b>", command=None, url=None)
    page = Page(of_job(portal.shown_job(endpoints=[ready, failed])))
    assert {"href": "http://localhost:8890/?token=secret"} in page.of("a")
    assert "ssh -L 8890:<x> a" in page.text and "no <b>" in page.text
    # The token is in the address, and not in the text.
    assert "secret" not in page.text
    hidden = Page(of_job(portal.shown_job(endpoints=[], ended="2026-11-27T11:00:00Z")))
    assert "Endpoints" not in hidden.text


@pytest.mark.parametrize(
    "state, ended, stops",
    [
        ("running", None, True),
        ("requeued", None, True),
        ("completed", "2026-11-27T11:00:00Z", False),
    ],
)
def test_a_job_can_be_stopped_until_it_has_ended(state, ended, stops):
    """Also one that was preempted, and waits again. It asks first, without a script."""
    text = of_job(portal.shown_job(state=state, ended=ended))
    page = Page(text)
    actions = {attrs["action"] for attrs in page.of("form")}
    assert (PREFIX + "job/9998/stop" in actions) is stops
    assert (PREFIX + "job/9998/clone" in actions) is not stops
    assert {"href": PREFIX + "new?from=9998", "class": "button"} in page.of("a")
    # What has ended does not change, and is not asked for again.
    assert ("data-log" in text) is stops and ("data-live" in text) is stops
    if stops:
        assert text.index("<summary") < text.index("/stop") < text.index("</details>")
    assert all(attrs["method"] == "get" or "_xsrf" in text for attrs in page.of("form"))


def test_one_vocabulary():
    """That of the command: the states of its own table."""
    client = (FILES.parents[1] / "jobs/files/_slurm_client.py").read_text(encoding="utf-8")
    table = re.search(r"^STATES = (\{.*?^\})", client, re.MULTILINE | re.DOTALL).group(1)
    assert ast.literal_eval(table) == pages.STATES
    page = Page(portal.listed(pages)).text
    assert "out of memory" in page and "waiting" in page
    for raw in ("pending", "completed", "cancelled", "node_fail", "out_of_memory"):
        assert raw not in page
    assert pages.short_time("2026-11-27T10:00:00Z") == "2026-11-27 10:00 UTC"
    assert pages.short_time(HOSTILE) == pages.short_time(None) == "-"


def test_a_form_with_faults_says_them_beside_the_fields(rendered):
    page = Page(rendered["new"])
    wrong = {
        attrs["id"]: attrs["aria-describedby"]
        for _tag, attrs in page.tags
        if attrs.get("aria-invalid") == "true"
    }
    assert wrong == {
        "name": "help-name problem-name",
        "worker_gpu": "help-worker_gpu problem-worker_gpu",
    }
    assert "'my job' is not valid; use 1 to 27 letters" in page.text
    assert 'value="my job"' in rendered["new"] and "NCCL_DEBUG" in page.text
    # The keys of the file are not in what people read, as the field says which one it is.
    assert "name: 'my job'" not in page.text
    fields = portal.choices()["fields"]
    said = "-: line 2: services: tensorboard: no folder\nSlurm\nx: y"
    by_field, others = pages.problems_by_field(said, fields)
    assert by_field == {"services.tensorboard": ["tensorboard: no folder"]}
    assert others == ["Slurm", "x: y"]
    assert pages.problems_by_field("", fields) == ({}, [])


def test_the_form_has_what_the_table_of_keys_says():
    text = portal.form(pages, {})
    page = Page(text)
    names = [about["name"] for about in portal.choices()["fields"]]
    assert [attrs["for"] for attrs in page.of("label")] == [*names, "more", "file"]
    for key in ("workdir", "retries", "worker_shared_memory", "worker_image"):
        assert key in names
    # Each field has its help, and what it accepts.
    assert "CPUs of each worker." in page.text and "1 to 27 letters, digits and '_'." in page.text
    assert '<option value="Job" selected>Job</option>' in text and 'placeholder="4"' in text
    assert '<option value="" selected>any</option>' in text
    assert [attrs["value"] for attrs in page.of("option") if attrs.get("value") == "high"]
    # Another image than those of the list may be typed.
    assert {"value": "front:5000/anna/tools:1"} in page.of("option")
    assert page.of("datalist") == [{"id": "of-worker_image"}]
    sent = {"preemptible": "true", "host_class": "gone", "services.tensorboard": "~/logs"}
    text = portal.form(pages, sent)
    assert '<option value="true" selected>yes</option>' in text and 'value="~/logs"' in text
    # A class that no host has any more is not changed by the form.
    assert '<option value="gone" selected>gone</option>' in text
    checked = {
        "cost": "it asks for 2 GPUs",
        "start_estimate": None,
        "file": "name: a\n",
        "script": "#!",
    }
    page = Page(portal.form(pages, {}, checked=checked))
    assert "The job is valid" in page.text and "it asks for 2 GPUs" in page.text


def test_what_a_browser_has_sent():
    sent = {"name": [b" a ", b"b"], "command": [b"\xff"], "_xsrf": [b"s"], "kind": []}
    assert pages.values_of(sent) == {"name": "b", "command": "\ufffd"}


@pytest.mark.parametrize(
    "sent, found",
    [
        ({}, {}),
        ({"state": [b"failed"], "since": [b"7d"], "name": [b"a*"], "page": [b"3"]}, None),
        ({"state": [b"x"], "since": [b"99y"], "page": [b"0"]}, {}),
        ({"page": [b"1e3"]}, {}),
        # A day takes the place of a period, also in the addresses of other pages.
        ({"since": [b"7d"], "from": [b"2026-01-31"]}, {"since": "2026-01-31"}),
        ({"since": [b"2026-01-31"], "from": [b""]}, {"since": "2026-01-31"}),
        ({"since": [b"30d"], "from": [b"2026-02-30"]}, {"since": "30d"}),
        ({"from": [b"0001-01-01"]}, {}),
        ({"from": [b"20260131"]}, {}),
        ({"name": [b"n" * 1000]}, {"name": "n" * 100}),
    ],
)
def test_the_filter_of_the_list(sent, found):
    usual = {"state": "", "since": "1d", "name": "", "page": 1}
    if found is None:
        found = {"state": "failed", "since": "7d", "name": "a*", "page": 3}
    assert pages.query_of(sent) == dict(usual, **found)


def test_a_list_from_a_day_on():
    values = {"filters": pages.FILTERS, "periods": pages.PERIODS, "pager": pages.pager({}, 1, 1)}
    query = {"state": "", "since": "2026-01-31", "name": "", "page": 1}
    page = Page(drawn("jobs", jobs=[], total=0, query=query, **values))
    (day,) = [attrs for attrs in page.of("input") if attrs.get("type") == "date"]
    assert (day["name"], day["value"]) == ("from", "2026-01-31")
    page = Page(drawn("jobs", jobs=[], total=0, query=dict(query, since="7d"), **values))
    (day,) = [attrs for attrs in page.of("input") if attrs.get("type") == "date"]
    assert "value" not in day


def test_times_are_those_of_the_browser(rendered):
    """No time is a part of words: each one is an element that the script shows in the zone of the person."""
    home = Page(rendered[""])
    assert "place 3 of 41 in the queue; expected start 2026-10-31 17:30 UTC" in home.text
    assert "gpu-07: trainyard: GPU 3 has fallen off the bus (Xid 79), since 2026-10-30" in home.text
    for path in ("", "job/9998", "cluster", "operators"):
        shown = re.sub(r"<(time|pre)\b.*?</\1>", "", rendered[path], flags=re.DOTALL)
        if path == "":
            # The operator has written this one.
            shown = shown.replace("18:00 UTC", "")
        assert not re.search(r"\d\d:\d\d", Page(shown).text), path


def test_what_is_not_known_of_a_job_that_waits():
    """Without a file of the queue, and without an estimate of Slurm."""
    job = portal.shown_job(state="pending", started=None, ended=None, start_estimate=None)
    text = Page(of_job(job)).text
    assert "Place in the queue not known" in text and "Expected start not known" in text
    text = Page(of_job(dict(job, place=3, queued=41, start_estimate="2026-11-01T10:00:00Z"))).text
    assert "Place in the queue 3 of 41" in text
    assert "Expected start 2026-11-01 10:00 UTC" in text
    assert "queue" not in Page(of_job(portal.shown_job())).text
    waiting = dict(portal.waiting_job(9), start_estimate=None)
    text = Page(drawn("home", **dict(portal.home(), jobs=[waiting]))).text
    assert "place 3 of 41 in the queue; expected start not known" in text


def test_the_page_of_an_instance(rendered):
    """What it takes of the quota, the curves of its GPU, its last end, and what stops it before."""
    page = Page(rendered["job/9990"])
    for words in (
        "Instance main, job 9990",
        "Of the quota 1 of the 64 GPUs of group vision",
        "Ends at the latest 2026-11-01 07:12 UTC",
        "Stopped earlier if nobody uses it for 120 minutes, or its GPUs are idle for 60 minutes",
    ):
        assert words in page.text, words
    assert len(page.of("svg")) == 6 and "Stopped earlier" not in rendered["job/9998"]
    # It has no file that the form could be filled from, and is opened on the page of instances.
    assert {"class": "button", "href": "/hub/home"} in page.of("a")
    assert not any("new?from" in attrs["href"] for attrs in page.of("a"))
    # Nor could it be submitted again after its end.
    for is_instance in (True, False):
        job = portal.shown_job(state="completed", ended="2026-10-31T16:00:00Z")
        ended = of_job(job, is_instance=is_instance)
        assert ("job/9998/clone" in ended) is not is_instance
    assert (
        pages.idle_words({"idle_minutes": 0, "idle_gpu_minutes": 0}) == pages.idle_words({}) == ""
    )
    assert pages.idle_words({"idle_minutes": 1}) == "nobody uses it for 1 minute"


def of_hub(**values):
    """The page of instances in a frame without JupyterHub's."""
    ours = (FILES / "templates/home.html").read_text(encoding="utf-8")
    frame = "{% block main %}{% endblock %}{% block script %}{% endblock %}"
    found = jinja2.Environment(
        autoescape=True, loader=jinja2.DictLoader({"page.html": frame, "home.html": ours})
    )
    return found.get_template("home.html").render(**values)


def test_the_page_of_instances():
    """What an instance takes, when it ends, where its curves are, and the way without a script."""
    running = types.SimpleNamespace(
        active=True, job="41", ends="2026-11-01T07:00:00Z", user_options={"worker_gpu": "2"}
    )
    stopped = types.SimpleNamespace(active=False, job="", ends="", user_options={})
    values = {"base_url": "/hub/", "jobs_page": PREFIX, "user": types.SimpleNamespace(name="anna")}
    values.update(url="/hub/spawn/anna", idle_minutes=120, idle_gpu_minutes=0)
    text = of_hub(default_server=running, allow_named_servers=False, **values)
    page = Page(text)
    assert "Takes 2 GPUs, 1 CPU and 4 GB of your quota" in page.text
    assert "One that is not used for 120 minutes is stopped" in page.text
    # JupyterHub's own script shows it as a time from now on.
    end = {"class": "time-col", "title": "2026-11-01T07:00:00Z"}
    assert end in page.of("span") and ">2026-11-01T07:00:00Z</span>" in text
    assert {"href": PREFIX + "job/41"} in page.of("a")
    assert "/hub/spawn/anna/NAME" in page.text and page.of("noscript")
    # What looks as a button is reached by keyboard: it is one, or leads somewhere.
    assert "stop" in [attrs.get("id") for attrs in page.of("button")]
    assert all("href" in attrs for attrs in page.of("a"))
    text = of_hub(default_server=stopped, allow_named_servers=False, **values)
    assert "Ends at the latest" not in text and "Takes nothing of your quota" in text


def test_an_instance_that_did_not_start():
    """Its cause, its log and the way on. All texts of a log stay texts."""
    values = {"address": PREFIX + "job/43", "job": "43"}
    cause = {"cause": "the image has no " + HOSTILE, "fix": "Use another " + HOSTILE}
    text = pages.START_FAILED.render(**values, causes=[cause], log=HOSTILE + "\nlast")
    page = Page(text)
    assert "<script" not in text and page.of("script") == [] and "{{ 7*7 }}" in page.text
    assert page.text.index("Cause:") < page.text.index("What to do:") < page.text.index("last")
    assert page.of("a") == [{"href": PREFIX + "job/43"}] and "start the instance again" in page.text
    bare = Page(pages.START_FAILED.render(**values, causes=[], log=""))
    assert bare.of("pre") == [] and "Cause" not in bare.text and "The page of job 43" in bare.text


def test_pages_of_the_list():
    query = {"state": "failed", "since": "7d", "name": "a&b", "page": ""}
    assert pages.pager(query, 2, 3) == {
        "page": 2,
        "pages": 3,
        "before": "?state=failed&since=7d&name=a%26b&page=1",
        "after": "?state=failed&since=7d&name=a%26b&page=3",
    }
    assert pages.pager(query, 1, 1)["before"] == pages.pager(query, 1, 1)["after"] == ""


def test_curves():
    minute = portal.NOW // 60
    samples = [(60 * minute, 0), (60 * minute + 60, 50.0), (60 * minute + 120, None)]
    samples.append((60 * minute + 240, 100))
    span = (60 * minute, 60 * minute + 240)
    assert charts.lines_of(samples, span, 100) == ["0,100 250,50", "1000,0"]
    # What is too large or too small stays in the picture. Points within a level line are not
    # needed.
    assert charts.lines_of([(0, 900), (1, -3)], (0, 1), 100) == ["0,0 1000,100"]
    level = [(at, 50) for at in range(9)] + [(9, 0)]
    assert charts.lines_of(level, (0, 9), 100) == ["0,50 889,50 1000,100"]
    # What the person's own program may have written is no number, or no minute.
    odd = [{"host": "a", "gpu": 0, "minutes": [("x", 1), (minute, "<b>"), (minute, 30), (-1, 5)]}]
    (found,) = charts.hour_panels(odd, [])
    assert found["legend"] == [{"name": "a, GPU 0", "colour": 0, "mean": 30}]
    assert charts.hour_panels([{"host": "a", "gpu": 0, "minutes": []}], []) == []
    # Nor is a file of millions of numbers. The runner keeps an hour.
    many = [{"host": "a", "gpu": 0, "minutes": [(minute, 90)] * 100000 + [(minute, 10)] * 60}]
    (found,) = charts.hour_panels(many * 5000, [])
    assert len(found["legend"]) <= 1024 and found["legend"][0]["mean"] == 10
    infinite = [(minute, float("nan")), (minute, float("inf"))]
    assert charts.hour_panels([], [{"name": "a", "cpus": infinite, "memory_gb": None}]) == []
    panels = charts.hour_panels(portal.minutes(), portal.workers())
    assert [panel["title"] for panel in panels] == [
        "GPU use, last hour",
        "CPUs in use, last hour",
        "Memory, last hour",
    ]
    text = of_job(portal.shown_job(), panels=panels)
    # Each of eight GPUs has a minute that is not known, and each of two workers two curves.
    assert text.count("<polyline") == 16 + 4 and "8 curves, from 31 to 98 %" in text
    assert "worker 1 on gpu-63" in text and panels[2]["marks"] == ["500", "250", "0"]


@pytest.mark.parametrize(
    "value, top", [(0, 1), (0.3, 0.3), (1, 1), (7, 8), (12, 12), (22, 25), (640, 800), (402, 500)]
)
def test_the_end_of_an_axis(value, top):
    assert charts.nice_top(value) == pytest.approx(top)


def asked_of(address):
    """The parameters of a query in an address."""
    return {
        key: value for key, (value,) in urllib.parse.parse_qs(address.partition("?")[2]).items()
    }


def test_the_queries_of_curves():
    """The only texts in them are the number of the job and its person.

    Their time is that of the job, and they have few points.
    """
    job = portal.shown_job(started="2026-11-01T00:00:00Z", ended="2026-11-11T00:00:00Z")
    queries = charts.curve_queries(job, 0.0, "anna")
    assert len(queries) == 4
    for text in queries:
        asked = asked_of(text)
        assert re.fullmatch(
            r"trainyard_gpu_\w+ and on \(instance, uuid\) \(trainyard_gpu_job == 9998\)"
            r' and on \(\) trainyard_slurm_job_info{slurm_job="9998",user="anna"}',
            asked["query"],
        )
        assert (int(asked["end"]) - int(asked["start"])) == 864000
        assert 864000 / int(asked["step"]) < 240
    (large, *_more) = charts.curve_queries(dict(job, gpus=512), 0.0, "anna")
    assert 864000 / int(asked_of(large)["step"]) < 5
    short = dict(job, ended=None)
    now = charts.seconds_of(job["started"]) + 60
    assert "step=15" in charts.curve_queries(short, now, "anna")[0]
    for span, (seconds, _words) in charts.SPANS.items():
        asked = asked_of(charts.curve_queries(job, 0.0, "anna", span)[0])
        assert int(asked["end"]) - int(asked["start"]) == seconds
        asked = asked_of(charts.worker_queries(job, 0.0, "anna", span)[0])
        assert int(asked["end"]) - int(asked["start"]) == seconds
    assert charts.curve_queries(job, 0.0, "anna", "1h[x]") == queries
    assert charts.curve_queries(dict(job, started=None), now, "anna") == []
    assert charts.curve_queries(job, now, 'a"} or x{y="') == []
    with pytest.raises(ValueError):
        charts.curve_queries(dict(job, id="1 or vector(1)"), now, "anna")


def test_the_queries_of_workers():
    """As those of GPUs: of one job, and only if it is one of the person."""
    job = portal.shown_job(started="2026-11-01T00:00:00Z", ended="2026-11-11T00:00:00Z")
    cpus, memory = (asked_of(text) for text in charts.worker_queries(job, 0.0, "anna"))
    of_person = ' and on () trainyard_slurm_job_info{slurm_job="9998",user="anna"}'
    expected = 'rate(trainyard_job_cpu_seconds_total{slurm_job="9998"}[7232s])' + of_person
    assert (cpus["query"], cpus["step"]) == (expected, "3616")
    assert memory["query"] == 'trainyard_job_memory_bytes{slurm_job="9998"}' + of_person
    now = charts.seconds_of(job["started"]) + 60
    (short, _memory) = charts.worker_queries(dict(job, ended=None), now, "anna")
    assert "[240s]" in asked_of(short)["query"]
    assert charts.worker_queries(dict(job, started=None), now, "anna") == []
    assert charts.worker_queries(job, now, 'a"} or x{y="') == []


def test_curves_of_workers_over_the_time_of_the_job():
    rows = [({"instance": "gpu-0%d" % number}, [number, 2, 3]) for number in (1, 2)]
    panels = charts.worker_panels([portal.matrix(rows), None])
    assert [(panel["title"], panel["unit"]) for panel in panels] == [("CPUs in use", "CPUs")]
    assert [each["name"] for each in panels[0]["legend"]] == ["gpu-01", "gpu-02"]
    # The last hour of the job's own record is shown only without them.
    hour = charts.hour_panels([], portal.workers())
    titles = [panel["title"].partition(",")[0] for panel in hour]
    assert titles == [title for title, *_more in charts.OF_WORKERS]


def test_what_others_use_is_asked_only_if_the_site_shows_it():
    """With monitoring_people_see: own, the page of the cluster has no curve of accounts, and no use
    of a GPU.
    """
    assert set(charts.cluster_queries(portal.NOW, False)) == {"health"}
    queries = charts.cluster_queries(portal.NOW, True)
    assert set(queries) == {"health", "accounts", "power", "use"}
    # No name of a person and no number of a job.
    assert "user" not in str(queries) and "slurm_job" not in str(queries)
    asked = asked_of(queries["accounts"])
    assert (int(asked["end"]) - int(asked["start"])) / int(asked["step"]) == 180


def test_curves_of_prometheus():
    answers = [portal.prometheus(metric) for _title, metric, *_more in charts.CURVES]
    panels = charts.panels_of(answers)
    assert [panel["title"] for panel in panels] == [title for title, *_more in charts.CURVES]
    assert [len(panel["lines"]) for panel in panels] == [8, 8, 8, 8]
    assert [panel["odd"] for panel in panels] == [
        *("", ""),
        "gpu-03, GPU 5 draws 373 W on average, the others 619 W",
        "",
    ]
    page = of_job(portal.shown_job(), panels=panels)
    assert "draws 373 W" in page and 'class="c7"' in page
    assert len(page.encode()) < 100000
    # Without Prometheus, and with something else in its place.
    for odd in (
        [None] * 4,
        [{"status": "error"}, [], "x", {"data": {"result": [{"values": [["a", "b"]]}]}}],
        [{"data": {"result": [{"metric": {}, "values": [[1, "NaN"]]}]}}] * 4,
        [{"data": {"result": 5}}, {"data": 5}, {"data": {"result": [5]}}, 5],
    ):
        assert charts.panels_of(odd) == []
        told = dict(zip(("accounts", "power", "use", "health"), odd))
        assert charts.cluster_panels(told) == [] and charts.uses_of(told["use"]) == {}
        assert charts.health_of(told["health"]) == {"checks": [], "hosts": []}
        assert charts.alerts_of(odd[0]) is None and charts.verify_of(odd[0]) is None
        assert charts.busy_of(odd[0]) == {}
    page = of_job(portal.shown_job(), panels=[], has_prometheus=False)
    assert "no Prometheus answers" in page
    assert "no Prometheus answers" in portal.bare_cluster(pages)
    many = [portal.prometheus(metric, 64) for _title, metric, *_more in charts.CURVES]
    for answer in many:
        for series in answer["data"]["result"]:
            # As the queries ask for a job of 64 GPUs.
            del series["values"][2400 // 64 :]
    assert len(of_job(portal.shown_job(), panels=charts.panels_of(many)).encode()) < 150000


def test_areas_lie_on_each_other():
    rows = [({"account": "a"}, [1, 1, 2]), ({"account": "b"}, [3, 0, 2])]
    (found,) = charts.cluster_panels({"accounts": portal.matrix(rows)})
    assert found["top"] == 4 and [each["name"] for each in found["legend"]] == ["a", "b"]
    assert [area["points"] for area in found["areas"]] == [
        "0,75 500,75 1000,50 1000,100 0,100",
        "0,0 500,75 1000,0 1000,50 500,75 0,75",
    ]


def test_a_gpu_that_is_slower_than_its_peers():
    said = charts.slow_words(portal.usage())
    assert said == (
        "GPU 5 of gpu-03 was busy for 31 % of the last hour, the others for 90 % on average"
    )
    assert charts.slow_words(portal.usage(50)) == "" and charts.slow_words([]) == ""
    # All of them are idle: that is told elsewhere.
    idle = [dict(gpu, hour_percent=number) for number, gpu in enumerate(portal.usage())]
    assert charts.slow_words(idle) == charts.slow_words(portal.usage()[:1]) == ""


def test_the_page_of_the_cluster(rendered):
    page = Page(rendered["cluster"])
    assert "462 of 512" not in page.text and "62 of 64 hosts in service" in page.text
    assert "language" in page.text and page.of("polygon")[2]["class"] == "c2"
    # One GPU of 512 in a column of its own, with its use.
    assert len([attrs for attrs in page.of("i") if attrs.get("class", "").startswith("u")]) == 496
    assert "7 checks of 64 hosts: they pass on 62, and 2 have a fault" in page.text
    bare = Page(rendered["cluster-bare"])
    assert page.of("svg") and not bare.of("svg") and "5 of 8 GPUs in use" in str(bare.tags)
    # So has each GPU of the two hosts out of service, and each one without Prometheus.
    for drawn_page, cells in ((page, 512), (bare, 512)):
        lost = [attrs for attrs in drawn_page.of("i") if attrs.get("class") == "lost"]
        in_cells = [
            attrs for attrs in drawn_page.of("i") if not attrs.get("class", "").startswith("c")
        ]
        assert len(lost) == 16 and len(in_cells) == cells
    # What one page says, the others say, too.
    home, operators = Page(rendered[""]).text, Page(rendered["operators"]).text
    assert "113 of 128 a100" in page.text and "352 of 384 h100" in page.text
    assert "15 of 128 a100" in home and "32 of 384 h100" in home
    assert "Hosts out of service: 2" in home and "2 of 64 hosts out of service" in operators
    assert "41 jobs wait" in page.text and "41 jobs wait" in operators


def test_the_queue_by_reason():
    rows = instance.queue_by_reason(portal.queue(), lambda reason: reason[:8])
    assert rows == [
        {"reason": "Priority", "jobs": 11, "gpus": 88},
        {"reason": "AssocGrp", "jobs": 10, "gpus": 80},
        {"reason": "ReqNodeN", "jobs": 10, "gpus": 80},
        {"reason": "Resource", "jobs": 10, "gpus": 80},
    ]
    new = [{"reason": "", "gpus": None}]
    assert instance.queue_by_reason(new, lambda _reason: "")[0] == {
        "reason": "Slurm has not looked at it yet",
        "jobs": 1,
        "gpus": 0,
    }
    hosts = portal.nodes(1)
    text = drawn("cluster", **portal.cluster_values(hosts, None, {}))
    assert "is not known here" in text
    assert "No job waits" in drawn("cluster", **portal.cluster_values(hosts, [], {}))


def test_the_page_of_a_job_of_somebody_else():
    """For operators: no action, no folder, and the log only if there is one."""
    job = dict(portal.a_job(5, "running", started="2026-11-01T23:00:00Z"), person="ben")
    values = {"job": job, "of_person": "ben", "panels": [], "has_prometheus": True, "latest": ""}
    page = Page(drawn("job", **values, log=None))
    assert page.of("form") == [] and page.of("pre") == []
    assert "Folder and log belong to ben, and your account cannot read them" in page.text
    assert not any("/job/5/" in attrs.get("href", "") for attrs in page.of("a"))
    page = Page(drawn("job", **values, log="<b>step 1</b>"))
    assert page.of("form") == [] and "<b>step 1</b>" in page.text and page.of("b") == []
    own = portal.operator_values(portal.of_all(), portal.told_of_operators(), pages)
    number, person = own["jobs"][0]["id"], own["jobs"][0]["person"]
    for name, folder in (("somebody", "operators/job/"), (person, "job/")):
        text = pages.render("operators", dict(FRAME, person=name), **own)
        assert 'href="%s%s%s"' % (PREFIX, folder, number) in text


def test_hours_of_gpus_are_short_and_those_of_small_jobs_are_not_0():
    row = {"user": "anna", "account": "vision", "month": "2026-11", "jobs": 1, "failed": 0}
    row.update(gpu_hours=9123.4567, gpu_hours_measured=0.025, gpu_hours_idle=0.0003, mean_use=0.5)
    values = {"months": [row], "groups": [row], "most": 9123.4567}
    text = Page(pages.render("usage", FRAME, **values)).text
    for words in (
        "0.0003 of 0.025 measured",
        "9123.5 GPU hours of 1 job, 0.0003 of 0.025 measured hours idle.",
    ):
        assert words in text, text
    of_operators = portal.operator_values(portal.of_all(), portal.told_of_operators(), pages)
    of_operators["people"] = [row]
    text = Page(drawn("operators", **of_operators)).text
    assert "9123.5" in text and "0.0003 of 0.025 measured" in text


def test_the_page_of_operators(rendered):
    page = Page(rendered["operators"])
    # The severe alert first, and none that does not fire yet.
    assert page.text.index("GpuXid") < page.text.index("ShareNearlyFull")
    assert "HostDown" not in page.text and "gpu-xid on gpu-07" in page.text
    assert "share on gpu-08" not in page.text
    actions = [
        (attrs["name"], attrs["value"])
        for tag, attrs in page.tags
        if tag in ("input", "button") and attrs.get("name") in ("node", "do", "_xsrf")
    ]
    reasons = [attrs for attrs in page.of("input") if attrs.get("name") == "reason"]
    assert [attrs["id"] for attrs in reasons] == ["why-gpu-07", "why-gpu-40", "reason"]
    csv = PREFIX + "operators/usage.csv?month=2026-10"
    assert {"class": "button", "href": csv} in page.of("a")
    assert page.text.count("2026-09") == 1
    assert "9, 90 % below 95" in page.text
    resume = [("_xsrf", "secret"), ("node", "gpu-07"), ("do", "resume")]
    assert actions[:3] == resume and actions[-2:] == [("_xsrf", "secret"), ("do", "drain")]
    values = portal.operator_values(portal.of_all(), portal.told_of_operators(), pages)
    assert [job["busy"] for job in values["jobs"][:3]] == [7, 9, 10]
    assert {"href": PREFIX + "operators", "aria-current": "page"} in page.of("a")
    others = pages.render("usage", dict(FRAME, is_operator=False), months=[], groups=[], most=0)
    assert "operators" not in others
    empty = portal.operator_values(
        {"jobs": [], "nodes": portal.nodes(1), "people": [], "month": "2026-10", "months": []},
        {"alerts": None, "verify": None, "jobs": None},
        pages,
    )
    text = Page(drawn("operators", **empty)).text
    for words in ("No Prometheus answers", "verify has not run", "All hosts are in service"):
        assert words in text
    assert "No jobs in 2026-10" in text and "No job runs or waits" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "gpu 1"},
        {"node": "-x"},
        {"node": None},
        {"do": "down"},
        {"reason": ""},
        {"reason": "a\nb"},
        {"reason": "x" * 201},
        {"reason": " trainyard: xid"},
        {"reason": "Kill task failed"},
        {"reason": "Epilog error on 5"},
        {"reason": "Prolog error"},
        {"reason": 5},
    ],
)
def test_an_action_of_an_operator_is_checked(changes):
    good = {"action": "node", "node": "gpu-01", "do": "drain", "reason": "new disk"}
    assert instance.request_of(json.dumps(good)) == good
    with pytest.raises(instance.RequestError):
        instance.request_of(json.dumps(dict(good, **changes)))
    for reason in ("", "disk replaced"):
        resume = dict(good, do="resume", reason=reason)
        assert instance.request_of(json.dumps(resume)) == resume
    with pytest.raises(instance.RequestError):
        instance.request_of(json.dumps(dict(resume, reason="a\nb")))


def test_when_a_job_ends_and_what_it_takes():
    job = portal.a_job(5, "running", started="2026-11-01T23:00:00Z", limit_minutes=90)
    assert pages.latest_end(job) == "2026-11-02T00:30:00Z"
    assert pages.latest_end(dict(job, limit_minutes=None)) == ""
    accounts = portal.home()["accounts"]
    assert pages.cost_words(job, accounts) == "16 of the 64 GPUs of group vision"
    assert pages.cost_words(job, []) == "16 GPUs, without a limit"
    assert pages.cost_words(dict(job, gpus=1), []) == "1 GPU, without a limit"
    assert pages.cost_words(dict(job, gpus=0), accounts) == ""
    found = pages.folder_addresses("https://hub.test", "/data1/share/a b/<x>", "/data1/share/")
    assert found == {
        "lab": "https://hub.test/hub/user-redirect/lab/tree/share/a%20b/%3Cx%3E",
        "tensorboard": "https://hub.test/hub/user-redirect/trainyard/?folder=%2Fdata1%2Fshare%2Fa+b%2F%3Cx%3E",
    }
    assert pages.folder_addresses("", "/data1/share2/x", "/data1/share") == {}
    assert pages.folder_addresses("", None, "/data1/share") == {}


def test_a_path_breaks_at_its_folders():
    text = of_job(portal.shown_job(folder="/data1/a&b/9998"))
    assert "<dd>/<wbr>data1/<wbr>a&amp;b/<wbr>9998</dd>" in text
    assert "<dt>Folder</dt>" not in of_job(portal.shown_job(folder=""))


def test_one_word_for_the_end_of_a_visit(rendered):
    """That of JupyterHub's own template, in the frame of its pages, becomes the one of the
    portal.
    """
    theirs = '{% block login_widget %}<a id="logout"> <i></i>Logout</a>{% endblock %}'
    ours = (FILES / "templates/page.html").read_text(encoding="utf-8")
    loader = jinja2.DictLoader({"templates/page.html": theirs, "page.html": ours})
    found = jinja2.Environment(autoescape=True, loader=loader).get_template("page.html").render()
    assert found == '<a id="logout"> <i></i>Log out</a>' and "Log out" in rendered[""]


def test_slurm_that_does_not_answer_is_told_with_the_time(rendered):
    page = Page(rendered["problem"])
    assert "Slurm has not answered since 2026-10-31 15:48 UTC" in page.text
    assert "Start the controller" in page.text
    silence, error = pages.Silence(), {"error": "x", "no_answer": True}
    times = [datetime.datetime(2026, 11, 30, hour) for hour in range(6)]
    found = []
    answers = [
        error,
        error,
        dict(error, busy=True),
        {"jobs": []},
        error,
        dict(error, no_answer=False),
    ]
    for answer, now in zip(answers, times):
        silence.take(answer, now)
        found.append(silence.since[11:13])
    # One that is refused for another reason has been answered.
    assert found == ["00", "00", "00", "", "04", ""]


def test_pages_are_small_and_fast():
    """10,000 jobs, of which 50 are shown; 64 hosts with 512 GPUs; the newest 100,000 bytes of a
    log. What a page loads beside JupyterHub's style sheet.
    """
    beside = sum(len((FILES / name).read_bytes()) for name in ("pages.css", "pages.js"))
    jobs = portal.many_jobs(10000)
    query = {"state": "", "since": "365d", "name": "", "page": 1}
    draws = {
        "jobs": lambda: drawn(
            "jobs",
            jobs=jobs[:50],
            total=len(jobs),
            query=query,
            filters=pages.FILTERS,
            periods=pages.PERIODS,
            pager=pages.pager(query, 1, 200),
        ),
        "cluster": lambda: portal.of_cluster(pages),
        "home": lambda: drawn("home", **portal.home()),
    }
    for name, draw in draws.items():
        draw()
        begun = time.process_time()
        text = draw()
        seconds = time.process_time() - begun
        print("%s: %d bytes and %d beside it, %.3f s" % (name, len(text), beside, seconds))
        assert len(text.encode()) + beside < 100000 and seconds < 0.1, name


def test_what_the_helper_is_asked_for_is_checked():
    """The service makes these requests of what a browser has sent."""
    request = {"action": "jobs", "state": "", "since": "1d", "name": "", "page": 1}
    assert instance.request_of(json.dumps(request)) == request
    good = {"action": "log", "job": "5", "rank": None, "start": -1}
    assert instance.request_of(json.dumps(good)) == good
    for bad in (
        dict(request, page=0),
        dict(request, page=True),
        dict(request, name=["x"]),
        dict(request, state="x" * 101),
        dict(good, rank="0"),
        dict(good, rank=-2),
        dict(good, start=1.5),
        dict(good, job="5;id"),
        {"action": "operators"},
        {"action": "operators", "month": "2026-11\n"},
        {"action": "values"},
        {"action": "values", "job": "x"},
        {"action": "values", "text": "x" * (instance.MAX_TEXT + 1)},
        {"action": "check", "values": {"name": 5}},
    ):
        with pytest.raises(instance.RequestError):
            instance.request_of(json.dumps(bad))


def test_the_form_of_a_job_that_there_was():
    """What the form has no field for stays in the file."""
    fields = portal.choices()["fields"]
    values = {
        "name": "a",
        "worker_gpu": "2",
        "environment": {"A": "b"},
        "services": ["ssh", {"tensorboard": "~/logs"}],
        "copy_results": "results:runs",
    }
    texts, others = instance.form_of(values, fields)
    assert texts == {
        "name": "a",
        "worker_gpu": "2",
        "services.ssh": "true",
        "services.tensorboard": "~/logs",
    }
    assert others == {"environment": {"A": "b"}, "copy_results": "results:runs"}
    texts, others = instance.form_of({"services": {"ssh": "true", "x": "y"}}, fields)
    assert (texts, others) == ({}, {"services": [{"ssh": "true", "x": "y"}]})
    assert instance.of_jobs_form({"name": "a", "services.ssh": "true"}, fields) == {
        "name": "a",
        "services": {"ssh": "true"},
    }


def test_a_job_cannot_ask_for_a_longer_time_than_is_kept():
    """Its times come from a program that runs as the person."""
    job = {"started": "0001-01-01T00:00:00Z", "ended": "2026-11-30T00:00:00Z"}
    start, end, step = charts._span(job, 0, 1, charts.MOST_SECONDS)
    assert (end - start, step) == (400 * 86400, 144603)
