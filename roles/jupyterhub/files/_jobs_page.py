# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of the portal.

Data of the helper in, HTML out, by Jinja2 with autoescape: every text of a person stays a text.

The templates are page_*.html beside this file. No page needs a script, and none has a style or a
script of its own, which the policy of the service forbids.
"""

from __future__ import annotations

import datetime
import os
import re
from urllib.parse import quote, urlencode

import jinja2

#: Slurm's states in the words of the command trainyard, as roles/jobs/files/_slurm_client.py has
#: them.
STATES = {
    "pending": "waiting",
    "configuring": "starting",
    "completing": "ending",
    "completed": "done",
    "cancelled": "stopped",
    "timeout": "out of time",
    "out_of_memory": "out of memory",
    "node_fail": "host failed",
    "boot_fail": "host failed",
    "deadline": "out of time",
    "requeue_hold": "held",
}
#: Colours of states, classes of the style sheet. Each word says the same without its colour.
TONES = {
    "running": "good",
    "done": "done",
    "waiting": "wait",
    "starting": "wait",
    "ending": "wait",
    "held": "wait",
    "stopped": "done",
}
FILTERS = ("waiting", "running", "done", "failed", "stopped", "out of time", "out of memory")
PERIODS = (("1d", "last day"), ("7d", "last week"), ("30d", "last month"), ("365d", "last year"))
#: Rows of a page of a list.
OF_PAGE = 50
#: Seconds between two looks of a page that is open.
LIVE_SECONDS = 5


def word(state: str) -> str:
    """Return a state of Slurm as the command trainyard calls it."""
    return STATES.get(state, str(state).replace("_", " "))


def tone(state: str) -> str:
    """Return the class of the style sheet for a state."""
    return TONES.get(word(state), "bad")


def short_time(stamp: object) -> str:
    """Return a time of Slurm for people without a script, in UTC.

    Scripts show it in the zone of the browser.
    """
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\dZ", str(stamp or ""))
    return "%s %s UTC" % match.groups() if match else "-"


def shown(value: object) -> str:
    """Return a value as a text, a dash for nothing."""
    if value is None or value == "" or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def gigabytes(mebibytes: object) -> str:
    """Return an amount of memory in GB."""
    return "%.4g" % (mebibytes / 1024) if isinstance(mebibytes, (int, float)) else "-"


def counted(number: object, noun: str) -> str:
    """Return 1 GPU, 2 GPUs.

    Only for nouns that take an s. The services of the hub do not load the shared modules of hosts.
    """
    return "%s %s%s" % (number, noun, "" if str(number) == "1" else "s")


def amount(hours: float) -> str:
    """Return hours for people, as the command trainyard does: C(amount) of C(_usage)."""
    return "%.3g" % hours if 0 < hours < 0.9995 else "%.1f" % hours


def level(percent: object) -> int:
    """Return the class of the style sheet, 0 to 9, for a use in percent."""
    return min(9, max(0, int(percent) // 10))


def plain(text: str) -> str:
    """Return a text of the table of keys, which is Markdown, without its marks."""
    return str(text).replace("`", "")


def sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def address_of(url: object) -> str:
    """Return the address of a service on the person's own computer, empty if it is none.

    The folder of the job has it, and its program may write there.
    """
    text = str(url or "")
    return text if re.match(r"http://localhost:[0-9]+/", text) else ""


def is_date(text: str) -> bool:
    """Return whether a text is a day of this century as browsers send it, such as 2026-01-31."""
    try:
        day = datetime.date.fromisoformat(text)
        return day.year >= 2000 and day.isoformat() == text
    except ValueError:
        return False


def environment() -> jinja2.Environment:
    """Return the templates with their filters."""
    found = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__))),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,
    )
    found.tests["date"] = is_date
    found.filters.update(
        word=word,
        tone=tone,
        short_time=short_time,
        shown=shown,
        gb=gigabytes,
        plain=plain,
        sentence=sentence,
        level=level,
        counted=counted,
        amount=amount,
    )
    return found


TEMPLATES = environment()
#: What people see of an instance that did not start, in a page of JupyterHub.
START_FAILED = TEMPLATES.from_string(
    "<p>The instance ended before it was ready.</p>"
    "{% for each in causes %}<p><b>Cause:</b> {{ each.cause }}.<br>"
    "<b>What to do:</b> {{ each.fix }}</p>{% endfor %}"
    "{% if log %}<p>The end of its log:</p>"
    '<pre class="text-start" tabindex="0">{{ log }}</pre>{% endif %}'
    '<p><a href="{{ address }}">The page of job {{ job }}</a> has all of its log. '
    "Correct what it says, and start the instance again.</p>"
)


def render(name: str, frame: dict, **values: object) -> str:
    """Return a page.

    :param name: of the template, without page_ and .html.
    :param frame: C(prefix) of the service, C(hub), the hub's part of addresses if it has another host name, and C(person).
    """
    return TEMPLATES.get_template("page_%s.html" % name).render(
        page=name, live_seconds=LIVE_SECONDS, **frame, **values
    )


class Silence:
    """Since when Slurm does not answer, as far as people have asked.

    C(since) is empty while it does.
    """

    def __init__(self) -> None:
        self.since = ""

    def take(self, answer: dict, now: datetime.datetime) -> None:
        """Take an answer of the helper. A person with too many requests says nothing about
        Slurm.
        """
        if "error" not in answer or not (answer["no_answer"] or answer.get("busy")):
            self.since = ""
        elif not answer.get("busy"):
            self.since = self.since or now.strftime("%Y-%m-%dT%H:%M:%SZ")


def problem_lines(message: object) -> list:
    """Return the lines of an error. The form is standard input, so messages name no line of
    a file.
    """
    return [re.sub(r"^-: (line \d+: )?", "", line) for line in str(message).split("\n")]


def problems_by_field(message: str, fields: list) -> tuple:
    """Return the problems of each field of the form by its name, and those of no field."""
    names = {about["name"] for about in fields}
    labels = {about["name"].partition(".")[0]: about["name"] for about in fields}
    found, others = {}, []
    for line in problem_lines(message) if message else []:
        key, colon, text = line.partition(": ")
        name = key if key in names else labels.get(key)
        if colon and name:
            found.setdefault(name, []).append(text)
        else:
            others.append(line)
    return found, others


def pager(query: dict, page: int, pages: int) -> dict:
    """Return the query strings of the pages before and after, empty at the ends."""

    def at(number: int) -> str:
        if not 1 <= number <= pages:
            return ""
        return "?" + urlencode(
            dict({key: value for key, value in query.items() if value}, page=number)
        )

    return {"page": page, "pages": pages, "before": at(page - 1), "after": at(page + 1)}


def options_of(about: dict, choices: dict) -> list:
    """Return the values of a field with a list, as pairs of value and text.

    C(choices) are those of the helper.
    """
    name = about["name"]
    if about["control"] == "boolean":
        return [("false", "no"), ("true", "yes")]
    if about["choices"]:
        return [(entry, entry) for entry in about["choices"]]
    found = {
        "host_class": choices["classes"],
        "workspace_id": choices["accounts"],
        "priority": choices.get("priorities") or [],
    }.get(name)
    if found:
        return [("", "any" if name == "host_class" else "the default one")] + [
            (entry, entry) for entry in found
        ]
    return []


def fields_of(choices: dict, values: dict, problems: dict) -> list:
    """Return the fields of the form with their values, options and problems."""
    found = []
    for about in choices["fields"]:
        name = about["name"]
        value = values.get(name, "")
        entries = options_of(about, choices)
        if about["control"] == "boolean":
            value = value or "false"
        selected = value or about["default"]
        if entries and selected not in [entry for entry, _text in entries]:
            # Kept, so that what was sent is not changed by the form.
            entries = entries + [(selected, selected)]
        suggestions = []
        if name == "worker_image":
            suggestions = choices["images"] + choices["saved"]
        found.append(
            dict(
                about,
                value=value,
                options=entries,
                selected=selected,
                suggestions=suggestions,
                problems=problems.get(name, []),
            )
        )
    return found


def values_of(arguments: dict) -> dict:
    """Return the texts that a browser has sent, by the names of their fields.

    The helper drops those that the form does not have.
    """
    found = {}
    for name, texts in arguments.items():
        if name != "_xsrf" and texts:
            found[name] = texts[-1].decode("utf-8", "replace")
    return found


def query_of(arguments: dict) -> dict:
    """Return the filter of the list of jobs from the query of an address: C(state), C(name),
    C(since), a period or a day, and C(page).
    """
    values = values_of(arguments)
    found = {"state": "", "since": "1d", "name": values.get("name", "")[:100], "page": 1}
    if values.get("state") in FILTERS:
        found["state"] = values["state"]
    for since in (values.get("since", ""), values.get("from", "")):
        if since in dict(PERIODS) or is_date(since):
            found["since"] = since
    if re.fullmatch(r"[1-9][0-9]{0,5}", values.get("page", "")):
        found["page"] = int(values["page"])
    return found


def latest_end(job: dict) -> str:
    """Return when a job that runs ends at the latest, as a time of Slurm. Empty without a limit."""
    if job["ended"] or not job["limit_minutes"] or short_time(job["started"]) == "-":
        return ""
    start = datetime.datetime.fromisoformat(job["started"].rstrip("Z"))
    end = start + datetime.timedelta(minutes=job["limit_minutes"])
    return end.strftime("%Y-%m-%dT%H:%M:%SZ")


def idle_words(site: dict) -> str:
    """Return when an instance is stopped before its end. C(site) are the settings of the hub.

    Empty if it never is.
    """
    minutes, gpu_minutes = site.get("idle_minutes"), site.get("idle_gpu_minutes")
    found = []
    if minutes:
        found.append("nobody uses it for %s" % counted(minutes, "minute"))
    if gpu_minutes:
        found.append("its GPUs are idle for %s" % counted(gpu_minutes, "minute"))
    return ", or ".join(found)


def cost_words(job: dict, accounts: list) -> str:
    """Return what a job takes of the quota of its group while it runs.

    C(accounts) are of the helper.
    """
    if job["ended"] or not job["gpus"]:
        return ""
    for entry in accounts:
        if entry["account"] == job["account"] and entry["gpus"] is not None:
            whole = counted(entry["gpus"], "GPU")
            return "%d of the %s of group %s" % (job["gpus"], whole, entry["account"])
    return "%s, without a limit" % counted(job["gpus"], "GPU")


def folder_addresses(hub: str, folder: object, share: str) -> dict:
    """Return the addresses that open a folder of the share in the main instance: C(lab) in
    JupyterLab, which has the share as C(share) of its files, and C(tensorboard). Empty for another
    folder.
    """
    text = str(folder or "")
    if not share or not text.startswith(share.rstrip("/") + "/"):
        return {}
    inner = quote(text[len(share.rstrip("/")) + 1 :])
    redirect = hub + "/hub/user-redirect/"
    return {
        "lab": "%slab/tree/share/%s" % (redirect, inner),
        "tensorboard": "%strainyard/?%s" % (redirect, urlencode({"folder": text})),
    }


def by_waste(jobs: list, busy: dict) -> list:
    """Return the jobs of all people: those that run first, the least used at the top, then those
    that wait. C(busy) has percents by number.
    """
    rows = []
    for job in jobs:
        percent = busy.get(job["id"]) if job["gpus"] else None
        rows.append(dict(job, busy=percent))

    def place(job: dict) -> tuple:
        known = 101 if job["busy"] is None else job["busy"]
        return job["state"] in ("pending", "requeued"), known, -job["gpus"], int(job["id"])

    return sorted(rows, key=place)
