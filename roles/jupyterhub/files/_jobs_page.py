# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of jobs in the browser. Data of the command trainyard in, HTML out. Every text of a person is quoted."""

from __future__ import annotations

import html
import re

STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"
    "pre{background:#f4f4f4;padding:1em;overflow:auto}label{display:block;margin:.6em 0 .1em}input,select,textarea{width:30em}"
    ".problem{color:#a00}"
    "form.button{display:inline}form.button button{margin-right:.5em}nav a{margin-right:1.5em}"
)


def text_of(value):
    return html.escape(
        "-"
        if value is None or value == ""
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )


def frame(title, body, prefix, person, hub=""):
    """Return a page. C(hub) is the hub's part of addresses if it has another host name than this service."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>%s</title><style>%s</style></head><body><nav>'
        '<a href="%s/hub/home">Instances</a><a href="%s">Jobs</a><a href="%snew">New job</a>%s</nav><h1>%s</h1>%s</body></html>'
        % (
            html.escape(title),
            STYLE,
            html.escape(hub),
            html.escape(prefix),
            html.escape(prefix),
            html.escape(person),
            html.escape(title),
            body,
        )
    )


def table(heads, rows):
    return "<table><tr>%s</tr>%s</table>" % (
        "".join("<th>%s</th>" % html.escape(head) for head in heads),
        "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % cell for cell in row) for row in rows),
    )


def problem(message):
    # The form is standard input, so messages name no line of a file.
    lines = [re.sub(r"^-: (line \d+: )?", "", line) for line in message.split("\n")]
    return "".join('<p class="problem">%s</p>' % html.escape(line) for line in lines)


def link_of(job: dict, prefix: str) -> str:
    number = text_of(job["id"])
    return '<a href="%sjob/%s">%s</a>' % (html.escape(prefix), number, number)


def list_page(jobs, prefix):
    if not jobs:
        return "<p>You had no jobs in the last day.</p>"
    return table(
        ("Job", "Name", "State", "Account", "Nodes", "GPUs", "Submitted", "Hosts"),
        [
            (
                link_of(job, prefix),
                text_of(job["name"]),
                text_of(job["state"]),
                text_of(job["account"]),
                text_of(job["workers"]),
                text_of(job["gpus"]),
                text_of(job["submitted"]),
                text_of(job["hosts"] or job["reason"]),
            )
            for job in reversed(jobs)
        ],
    )


def button(prefix, number, action, label, xsrf):
    return (
        '<form class="button" method="post" action="%sjob/%s/%s">%s<button type="submit">%s</button></form>'
        % (html.escape(prefix), text_of(number), action, xsrf, html.escape(label))
    )


def address_of(url):
    """Return a link to a service on the person's own computer.

    What is no such address is a text: the folder of the job has it, and its program may write there.
    """
    if not re.match(r"http://localhost:[0-9]+/", str(url or "")):
        return text_of(url)
    return '<a href="%s">%s</a>' % (text_of(url), text_of(url.partition("?")[0]))


def endpoints(job, ssh):
    """Return how to reach a running job: its services, and ssh, which every job has."""
    rows = []
    for each in job.get("endpoints") or []:
        if each["service"] == "ssh":
            continue
        command = text_of(each["why"])
        if each["command"]:
            command = "<code>%s</code>" % text_of(each["command"])
        rows.append(
            (text_of(each["service"]), text_of(each["state"]), command, address_of(each["url"]))
        )
    rows += [("ssh, VS Code Remote", "ready", "<code>%s</code>" % text_of(ssh), "-")] if ssh else []
    if not rows:
        return ""
    return (
        "<h2>Endpoints</h2><p>Type the command on your own computer. Then open the address there.</p>"
        + table(("Service", "State", "Command", "Address"), rows)
    )


def usage(job):
    def told(value, unit):
        return "-" if value is None else "%d %s" % (value, unit)

    rows = [
        (
            text_of(gpu["host"]),
            text_of(gpu["gpu"]),
            told(gpu["percent"], "%"),
            told(gpu["memory_mib"], "MiB"),
            told(gpu["hour_percent"], "%"),
        )
        for gpu in job.get("usage") or []
    ]
    return (
        "<h2>GPUs</h2>"
        + table(("Host", "GPU", "Busy now", "Memory", "Busy in the last hour"), rows)
        if rows
        else ""
    )


def job_page(job, log, prefix, xsrf, ssh=""):
    rows = [
        ("State", job["state"]),
        ("Why", job.get("why")),
        ("Account", job["account"]),
        ("Priority", job["priority"]),
        ("Nodes", job["workers"]),
        ("GPUs", job["gpus"]),
        ("Hosts", job["hosts"]),
        ("Submitted", job["submitted"]),
        ("Started", job["started"]),
        ("Ended", job["ended"]),
        ("Exit code", job["exit_code"]),
        ("Folder", job.get("folder")),
    ]
    rows += sorted((job.get("efficiency") or {}).items())
    result = job.get("result") or {}
    failed = result.get("first_failed") or {}
    body = table(("", ""), [(html.escape(name), text_of(value)) for name, value in rows])
    texts = (result.get("problems") or []) + (result.get("warnings") or [])
    body += "".join(problem(text) for text in texts)
    body += "".join(
        problem("%s. %s" % (cause["cause"], cause["fix"])) for cause in failed.get("causes") or []
    )
    buttons = ([] if job["ended"] else [("stop", "Stop")]) + [("clone", "Submit again")]
    body += "<p>%s</p>" % "".join(
        button(prefix, job["id"], action, label, xsrf) for action, label in buttons
    )
    return body + usage(job) + endpoints(job, ssh) + "<h2>Log</h2><pre>%s</pre>" % html.escape(log)


def field(about: dict, value: str, options: list) -> str:
    """Return a field of the form. C(about) is of P(_job_file.form_fields), C(options) are those of a list of this site."""
    name, hint = html.escape(about["name"]), html.escape(about["placeholder"])
    control = '<input id="%s" name="%s" value="%s" placeholder="%s">' % (
        name,
        name,
        html.escape(value),
        hint,
    )
    if about["control"] == "boolean":
        options, value = ["false", "true"], value or "false"
    if about["control"] == "area":
        control = '<textarea id="%s" name="%s" rows="6" placeholder="%s">%s</textarea>' % (
            name,
            name,
            hint,
            html.escape(value),
        )
    elif options:
        rows = ""
        for entry in options:
            selected = " selected" if entry == (value or about["default"]) else ""
            rows += '<option value="%s"%s>%s</option>' % (
                html.escape(entry),
                selected,
                html.escape(entry or "any"),
            )
        control = '<select id="%s" name="%s">%s</select>' % (name, name, rows)
    return '<label for="%s">%s</label>%s' % (name, html.escape(about["label"]), control)


def form_page(choices: dict, values: dict, prefix: str, xsrf: str) -> str:
    """Return the form of a new job. C(choices) are those of the helper, C(values) what was sent before."""
    of_site = {
        "host_class": ["", *choices["classes"]] if choices["classes"] else [],
        "worker_image": choices["images"] + choices["saved"],
        "workspace_id": ["", *choices["accounts"]] if choices["accounts"] else [],
    }
    body = ""
    for about in choices["fields"]:
        name = about["name"]
        options = about["choices"] or of_site.get(name, [])
        body += field(about, values.get(name, ""), options)
    return (
        '<p>%s</p><form method="post" action="%snew">%s%s<p><button type="submit">Submit</button></p></form>'
        % (html.escape("GPUs: %s." % choices["gpus"]["why"]), html.escape(prefix), xsrf, body)
    )


def values_of(arguments: dict) -> dict:
    """Return the texts that a browser has sent, by the names of their fields. The helper drops those that the form does not have."""
    found = {}
    for name, texts in arguments.items():
        if name != "_xsrf" and texts:
            found[name] = texts[-1].decode("utf-8", "replace")
    return found
