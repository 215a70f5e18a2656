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
#: Fields of the form, in the order in which the page has them: key of the job file, label, kind of field, example.
FIELDS = (
    ("name", "Name", "text", "first_job"),
    ("kind", "Type", "select", ""),
    ("preemptible", "Preemptible", "boolean", ""),
    ("host_class", "Device type", "select", ""),
    ("worker_count", "Nodes", "number", "1"),
    ("worker_gpu", "GPUs of each node", "number", "0"),
    ("worker_cpu", "CPUs of each node", "number", "1"),
    ("worker_memory", "Memory of each node in GB", "number", "4"),
    ("worker_image", "Image", "select", ""),
    ("command", "Command", "area", "python3 train.py"),
    ("max_minutes", "Minutes until it ends", "number", ""),
    ("workspace_id", "Account", "select", ""),
    ("priority", "Priority", "text", ""),
)
#: The services beside a job, in the same order: key below services, label, kind of field, example.
SERVICES = (
    ("ssh", "ssh and VS Code Remote", "boolean", ""),
    ("jupyter", "Jupyter of the image", "boolean", ""),
    ("tensorboard", "TensorBoard of this folder", "text", "~/logs"),
)
KINDS = ("Job", "PyTorchJob", "HorovodJob", "MPIJob", "MindSporeJob")


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
    body += "".join(problem(text) for text in result.get("problems") or [])
    body += "".join(
        problem("%s. %s" % (cause["cause"], cause["fix"])) for cause in failed.get("causes") or []
    )
    buttons = ([] if job["ended"] else [("stop", "Stop")]) + [("clone", "Submit again")]
    body += "<p>%s</p>" % "".join(
        button(prefix, job["id"], action, label, xsrf) for action, label in buttons
    )
    return body + usage(job) + endpoints(job, ssh) + "<h2>Log</h2><pre>%s</pre>" % html.escape(log)


def field(key, label, kind, example, value, choices):
    if kind == "select" and choices.get(key):
        empty = [] if key in ("kind", "worker_image") else [""]
        options = "".join(
            '<option value="%s"%s>%s</option>'
            % (
                html.escape(entry),
                " selected" if entry == value else "",
                html.escape(entry or "any"),
            )
            for entry in empty + list(choices[key])
        )
        control = '<select id="%s" name="%s">%s</select>' % (key, key, options)
    elif kind == "boolean":
        control = (
            '<select id="%s" name="%s"><option>false</option><option%s>true</option></select>'
            % (key, key, " selected" if value == "true" else "")
        )
    elif kind == "area":
        control = '<textarea id="%s" name="%s" rows="6" placeholder="%s">%s</textarea>' % (
            key,
            key,
            html.escape(example),
            html.escape(value),
        )
    else:
        control = '<input id="%s" name="%s" value="%s" placeholder="%s">' % (
            key,
            key,
            html.escape(value),
            html.escape(example),
        )
    return '<label for="%s">%s</label>%s' % (key, html.escape(label), control)


def form_page(choices, values, prefix, xsrf):
    """Return the form of a new job. C(choices) are those of the helper, C(values) what was sent before."""
    known = {
        "kind": KINDS,
        "host_class": choices["classes"],
        "worker_image": choices["images"] + choices["saved"],
        "workspace_id": choices["accounts"],
    }
    body = "".join(
        field(key, label, kind, example, values.get(key, ""), known)
        for key, label, kind, example in FIELDS
    )
    services = values.get("services", {})
    body += "".join(
        field("services." + key, label, kind, example, services.get(key, ""), {})
        for key, label, kind, example in SERVICES
    )
    return (
        '<p>%s</p><form method="post" action="%snew">%s%s<p><button type="submit">Submit</button></p></form>'
        % (html.escape("GPUs: %s." % choices["gpus"]["why"]), html.escape(prefix), xsrf, body)
    )


def values_of(arguments):
    """Return the values of a job file from what a browser has sent. Fields that the form does not have are dropped, and so are empty ones."""
    found = {}
    for key, _label, _kind, _example in FIELDS:
        texts = arguments.get(key) or []
        text = texts[-1].decode("utf-8", "replace") if texts else ""
        # Browsers end lines of a text by both characters.
        text = text.replace("\r\n", "\n") if key == "command" else text.strip(" ")
        if text:
            found[key] = text
    services = {}
    for key, _label, kind, _example in SERVICES:
        texts = arguments.get("services." + key) or []
        text = texts[-1].decode("utf-8", "replace").strip(" ") if texts else ""
        if text and (kind != "boolean" or text != "false"):
            services[key] = text
    return dict(found, services=services) if services else found
