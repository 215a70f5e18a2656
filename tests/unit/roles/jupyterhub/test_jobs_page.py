# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of jobs: what people have written is quoted, and only fields of the form reach a job file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import _job_file
import pytest

ROOT = Path(__file__).resolve().parents[4]
spec = importlib.util.spec_from_file_location(
    "of_jupyterhub_jobs_page", ROOT / "roles/jupyterhub/files/_jobs_page.py"
)
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)
JOB = {
    "id": "12",
    "name": "<b>",
    "state": "running",
    "account": "vision",
    "workers": 2,
    "gpus": 1,
    "submitted": "2026-11-27T10:00:00Z",
    "hosts": ["a", "b"],
    "reason": "",
    "priority": "normal",
    "started": None,
    "ended": None,
    "exit_code": None,
    "folder": None,
    "why": "",
    "result": {"problems": ["<i>"], "first_failed": {"causes": [{"cause": "c<", "fix": "f"}]}},
    "efficiency": {"CPU used": "5 %"},
}
ENDED = "2026-11-27T11:00:00Z"
CHOICES = {
    "fields": _job_file.form_fields(),
    "classes": ["h100"],
    "images": ['t"1'],
    "saved": ["front:5000/anna/tools:1"],
    "accounts": ["vision"],
    "gpus": {"most": 2, "why": "your account has 2 GPUs, so 2 at most"},
}


def test_texts_are_quoted():
    page = (
        pages.list_page([JOB], "/services/jobs/")
        + pages.job_page(JOB, "<script>", "/services/jobs/", "<x>")
        + pages.frame("<t>", "", "/p/", "anna")
    )
    assert (
        'href="https://hub.example.org/hub/home"'
        in pages.frame("Jobs", "", "/p/", "anna", "https://hub.example.org")
        and 'href="/hub/home"' in page
    )
    assert (
        "<b>" not in page
        and "<i>" not in page
        and "<script>" not in page
        and "<t>" not in page
        and "&lt;script&gt;" in page
    )
    assert (
        'href="/services/jobs/job/12"' in page
        and 'action="/services/jobs/job/12/stop"' in page
        and "a, b" in page
    )
    assert "/stop" not in pages.job_page(
        dict(JOB, state="completed", ended=ENDED, result=None, efficiency=None), "", "/p/", ""
    )
    assert "no jobs" in pages.list_page([], "/p/")


def test_a_running_job_has_endpoints():
    ready = {
        "service": "jupyter",
        "state": "ready",
        "why": "",
        "command": "ssh -L 8890:<x> a",
        "url": "http://localhost:8890/?token=secret",
    }
    failed = {
        "service": "tensorboard",
        "state": "failed",
        "why": "no <b>",
        "command": None,
        "url": None,
    }
    gpu = {"host": "a", "gpu": 0, "percent": 7, "memory_mib": None, "hour_percent": 3}
    page = pages.job_page(
        dict(JOB, endpoints=[ready, failed], usage=[gpu]),
        "",
        "/p/",
        "",
        ssh="ssh -o 'ProxyCommand=x' anna@job-12",
    )
    assert (
        "ssh -L 8890:&lt;x&gt; a" in page
        and 'href="http://localhost:8890/?token=secret">http://localhost:8890/<' in page
        and "no &lt;b&gt;" in page
    )
    assert "anna@job-12" in page and "<td>7 %</td><td>-</td><td>3 %</td>" in page
    assert "Endpoints" not in pages.job_page(
        JOB, "", "/p/", ""
    ) and "GPUs</h2>" not in pages.job_page(JOB, "", "/p/", "")


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
        assert "href" not in pages.endpoints(dict(JOB, endpoints=[each]), "").replace(
            "&#x27;", ""
        ), url
    hostile = dict(JOB, id='1"><script>')
    page = pages.list_page([hostile], "/p/") + pages.job_page(hostile, "", '/p"><script>', "")
    assert "<script>" not in page and page.count("&lt;script&gt;") >= 4


def test_services_of_the_form():
    sent = {"services.ssh": "true", "services.tensorboard": "~/logs"}
    page = pages.form_page(CHOICES, sent, "/p/", "")
    assert 'value="~/logs"' in page and page.count('<option value="true" selected>') == 1


def test_the_form_keeps_what_was_sent():
    page = pages.form_page(
        CHOICES,
        {
            "name": '"><script>',
            "command": "</textarea>",
            "preemptible": "true",
            "host_class": "h100",
        },
        "/p/",
        "<xsrf>",
    )
    assert (
        "<script>" not in page
        and "</textarea></textarea>" not in page
        and "<xsrf>" in page
        and "t&quot;1" in page
    )
    assert (
        '<option value="h100" selected>' in page
        and '<option value="true" selected>true</option>' in page
        and "so 2 at most" in page
    )


def test_the_form_has_what_the_table_of_keys_says():
    page = pages.form_page(CHOICES, {}, "/p/", "")
    assert re.findall(r'<label for="([^"]+)">', page) == [
        about["name"] for about in CHOICES["fields"]
    ]
    assert '<option value="Job" selected>Job</option>' in page and 'placeholder="4"' in page
    assert '<option value="" selected>any</option><option value="h100">' in page
    # The person may change the helper that tells the fields while it runs.
    hostile = [dict(CHOICES["fields"][0], name='"><script>', label="<b>", placeholder='"<i>')]
    page = pages.form_page(dict(CHOICES, fields=hostile), {}, "/p/", "")
    assert "<script>" not in page and "<b>" not in page and "<i>" not in page


def test_what_a_browser_has_sent():
    sent = {"name": [b" a ", b"b"], "command": [b"\xff"], "_xsrf": [b"s"], "kind": []}
    assert pages.values_of(sent) == {"name": "b", "command": "\ufffd"}


@pytest.mark.parametrize(
    "state, ended, stops",
    [("running", None, True), ("requeued", None, True), ("completed", ENDED, False)],
)
def test_a_job_can_be_stopped_until_it_has_ended(state, ended, stops):
    """Also one that was preempted, and waits again."""
    page = pages.job_page(dict(JOB, state=state, ended=ended), "", "/p/", "")
    assert ("/p/job/12/stop" in page) is stops and "/p/job/12/clone" in page
