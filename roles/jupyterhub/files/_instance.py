# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances of the hub: the values that a person may choose, the page for them, and login links.

Data in, data out.

The values have the keys of job files. Only the judge of job files (_job_file.py, _job_limits.py)
decides whether they are valid.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable

#: Keys of job files that a person chooses. Whatever else a form or the API sends is dropped.
KEYS = (
    "worker_image",
    "worker_cpu",
    "worker_gpu",
    "worker_memory",
    "worker_shared_memory",
    "host_class",
    "max_minutes",
    "workspace_id",
    "priority",
)
#: Field of the form for an image that is not in the list.
OTHER_IMAGE = "other_image"
#: The server without a name.
DEFAULT_NAME = "main"
#: No GPU unless requested.
DEFAULTS = {"worker_cpu": "1", "worker_gpu": "0", "worker_memory": "4"}
#: In Slurm's comment of each instance. Role jupyterhub finds those of removed people by it.
MARK = "trainyard instance"
#: Variables that the hub passes to a server. The rest of its environment stays on its host.
OF_SERVER = re.compile(r"JUPYTERHUB_[A-Z_]+|JPY_API_TOKEN")
LINK_BYTES = 32
PERSON = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Reasons of the health program and of slurmd begin so. The health program takes them back.
TAKEN_BACK = ("trainyard:", "Kill task failed", "Epilog error", "Prolog error")


#: Actions of the spawner, then those of the pages of jobs.
ACTIONS = (
    "choices",
    "start",
    "status",
    "failure",
    "stop",
    "home",
    "jobs",
    "job",
    "log",
    "cluster",
    "usage",
    "values",
    "check",
    "submit",
    "stop_job",
    "clone",
    "operators",
    "any_job",
    "node",
)
OF_JOB = ("status", "failure", "stop", "job", "log", "any_job", "stop_job", "clone")
#: A name of an account that can be a part of a path.
ACCOUNT = r"[a-z_][a-z0-9_.-]{0,31}"
#: Bytes of a job file that a person sends.
MAX_TEXT = 1 << 18


class RequestError(ValueError):
    """A request that cannot be answered. The message is for the person."""


# --- values ----------------------------------------------------------------------------------------------------------------


def name_of(server_name, display_name):
    """Return the name of an instance, as its job has it. The judge refuses one that is not
    valid.
    """
    return display_name or server_name or DEFAULT_NAME


def chosen(options):
    """Return the values that a person has chosen, as texts.

    Keys that are not theirs, such as cmd, and empty values are dropped.
    """
    found = {}
    for key in KEYS:
        value = options.get(key) if isinstance(options, dict) else None
        if isinstance(value, bool) or value is None or value == "":
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str):
            # Escapes of JSON may spell what is no character.
            value = value.encode("utf-8", "replace").decode()
        # The check of job files reports a list or a dict.
        found[key] = str(value) if isinstance(value, (int, float)) else value
    return found


def of_form(form):
    """Return the values of a form, whose fields come as lists of texts."""
    found = {}
    for key, texts in form.items():
        text = texts[-1] if isinstance(texts, list) and texts else ""
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        # Not strip(): a line break at the end is no mistake of a form.
        found[key] = text.strip(" ") if isinstance(text, str) else text
    # A typed name takes precedence over the list, which always has a value.
    if found.get(OTHER_IMAGE):
        found["worker_image"] = found[OTHER_IMAGE]
    return chosen(found)


def job_values(name, values):
    """Return the values of the job file of an instance."""
    found = dict(DEFAULTS, **chosen(values))
    found.update(name=name, kind="Job", worker_count="1", command="trainyard-instance")
    return found


def server_environment(environment):
    """Return the variables that a server needs from the environment that the hub has prepared."""
    return {
        name: value
        for name, value in environment.items()
        if OF_SERVER.fullmatch(name) and isinstance(value, str)
    }


def of_jobs_form(texts: dict, fields: list) -> dict:
    """Return the values of a job file from the form of jobs.

    C(fields) are from P(_job_file.form_fields). Others are dropped, and so are empty ones.
    """
    found, services = {}, {}
    for about in fields:
        text = texts.get(about["name"], "")
        # Browsers end lines of a text by both characters.
        text = text.replace("\r\n", "\n") if about["control"] == "area" else text.strip(" ")
        key, is_inner, service = about["name"].partition(".")
        if not is_inner and text:
            found[key] = text
        elif text and (about["control"] != "boolean" or text != "false"):
            services[service] = text
    return dict(found, services=services) if services else found


def form_of(values: dict, fields: list) -> tuple:
    """Return the texts of the form for the values of a job file, and the values that the form has
    no field for.
    """
    texts, others = {}, {}
    names = {about["name"] for about in fields}
    for key, value in values.items():
        if str(key) in names and isinstance(value, str):
            texts[str(key)] = str(value)
        elif key == "services":
            services, rest = _services_of(value, names)
            texts.update(services)
            others.update({"services": rest} if rest else {})
        else:
            others[str(key)] = value
    return texts, others


def _services_of(value: object, names: set) -> tuple:
    """Return the texts of the fields of services, and what is no such service."""
    pairs, rest = {}, []
    for entry in value if isinstance(value, list) else [value]:
        found = entry if isinstance(entry, dict) else {entry: "true"}
        if all("services.%s" % name in names for name in found):
            pairs.update({"services.%s" % name: str(each) for name, each in found.items()})
        else:
            rest.append(entry)
    return pairs, rest


def queue_by_reason(queue: list, say: Callable) -> list:
    """Return how many jobs wait for each reason, the most frequent first: C(reason) in words,
    C(jobs) and C(gpus).

    :param queue: of P(_slurm_metrics.waiting).
    :param say: makes words of a reason of Slurm.
    """
    found = {}
    for entry in queue:
        words = say(str(entry.get("reason") or "")) or "Slurm has not looked at it yet"
        jobs, gpus = found.get(words, (0, 0))
        found[words] = (jobs + 1, gpus + int(entry.get("gpus") or 0))
    rows = [{"reason": words, "jobs": pair[0], "gpus": pair[1]} for words, pair in found.items()]
    return sorted(rows, key=lambda row: (-row["jobs"], row["reason"]))


# --- requests to the helper -------------------------------------------------------------------------------------------------


def is_texts(values):
    return isinstance(values, dict) and all(
        isinstance(text, str) for pair in values.items() for text in pair
    )


def is_identity(found: object) -> bool:
    """Return whether this is an identity that _identity.py creates for a start."""
    return is_texts(found) and sorted(found) == ["authority", "certificate", "key", "name"]


def check_start(request: dict) -> None:
    """Raise RequestError if a request to start an instance is not one that the hub makes."""
    environment = request.get("environment")
    if (
        not isinstance(request.get("name"), str)
        or not isinstance(request.get("values"), dict)
        or not isinstance(environment, dict)
    ):
        raise RequestError("the request has no name, no values or no environment")
    if not is_identity(request.get("identity")):
        raise RequestError("the request has no identity")
    if server_environment(environment) != environment:
        raise RequestError("the environment of the request has variables that are not the hub's")


def check_values(request: dict) -> None:
    """Raise RequestError if a form has anything but texts."""
    if not is_texts(request.get("values")):
        raise RequestError("the request has no values")


def check_list(request: dict) -> None:
    """Raise RequestError if the filter of a list of jobs is not one that the page makes."""
    texts = [request.get(key) for key in ("state", "since", "name")]
    page = request.get("page")
    if not all(isinstance(text, str) and len(text) <= 100 for text in texts):
        raise RequestError("the request has no state, time or name")
    if isinstance(page, bool) or not isinstance(page, int) or not 1 <= page < 1000000:
        raise RequestError("the request has no page")


def check_month(request: dict) -> None:
    """Raise RequestError if a month is not a short text. It is empty for the present one."""
    month = request.get("month")
    if not isinstance(month, str) or not re.fullmatch(r"([0-9]{4}-[0-9]{2})?", month):
        raise RequestError("the request has no month, such as 2026-11")


def check_log(request: dict) -> None:
    """Raise RequestError if the place in a log is not one that the page makes."""
    rank, start = request.get("rank"), request.get("start")
    for number in (0 if rank is None else rank, start):
        if isinstance(number, bool) or not isinstance(number, int) or not -1 <= number < 1 << 50:
            raise RequestError("the request has no worker or no place in the log")


def check_source(request: dict) -> None:
    """Raise RequestError if the values of the form have no source: a job, or the text of a file."""
    text = request.get("text")
    if text is None:
        if not re.fullmatch(r"[1-9][0-9]{0,17}", str(request.get("job"))):
            raise RequestError("the request has no job")
    elif not isinstance(text, str) or len(text) > MAX_TEXT:
        raise RequestError("the request has no text")


def check_node(request: dict) -> None:
    """Raise RequestError if an action of an operator is not one that the page makes.

    A reason that begins as those of the health program or of slurmd would be taken back.
    """
    node, reason = request.get("node"), request.get("reason")
    if not isinstance(node, str) or not NODE.fullmatch(node):
        raise RequestError("the request has no host")
    if request.get("do") not in ("drain", "resume"):
        raise RequestError("the request is neither drain nor resume")
    if request["do"] == "resume" and not reason:
        return
    if not isinstance(reason, str) or not reason.strip() or len(reason) > 200:
        raise RequestError("the host needs a reason of 1 to 200 characters; all people see it")
    if not reason.isprintable() or reason.strip().startswith(TAKEN_BACK):
        raise RequestError(
            "the reason '%.40s' is not valid; use one line that does not begin with %s"
            % (line_of(reason), ", ".join(TAKEN_BACK))
        )


def line_of(text: str) -> str:
    """Return a text without what a terminal or a log would obey."""
    for character in set(text):
        if not character.isprintable():
            text = text.replace(character, "?")
    return text


CHECKS = {
    "node": check_node,
    "start": check_start,
    "submit": check_values,
    "check": check_values,
    "jobs": check_list,
    "operators": check_month,
    "log": check_log,
    "values": check_source,
}


def request_of(text):
    """Return a request of the hub, checked. It comes as JSON on the standard input of the
    helper.
    """
    try:
        request = json.loads(text)
    except ValueError:
        raise RequestError("the request is not JSON") from None
    if not isinstance(request, dict) or request.get("action") not in ACTIONS:
        raise RequestError("the request has none of the actions " + ", ".join(ACTIONS))
    if request["action"] in OF_JOB and not re.fullmatch(
        r"[1-9][0-9]{0,17}", str(request.get("job"))
    ):
        raise RequestError("the request has no job")
    if request["action"] in CHECKS:
        CHECKS[request["action"]](request)
    if request["action"] == "stop" and not re.fullmatch(
        r"[0-9a-f]{32}\.json", str(request.get("file"))
    ):
        raise RequestError("the request has no file")
    return request


def script(options, program, path):
    """Return the sbatch script of an instance. C(options) are those of sbatch, quoted."""
    return "\n".join(
        ["#!/bin/bash"]
        + ["#SBATCH " + option for option in options]
        + ["exec %s run %s" % (program, path), ""]
    )


# --- what a person may choose -----------------------------------------------------------------------------------------------


def largest(nodes, key):
    return max((node[key] for node in nodes), default=0)


def allowed(names, registries):
    """Return the images that hosts may pull. C(registries) are beginnings of names."""
    return [
        name
        for name in names
        if name.startswith(tuple(entry.rstrip("/") + "/" for entry in registries))
    ]


def gpu_quota(accounts: list):
    """Return how many GPUs a person may have at once.

    More than all accounts allow is refused. None if one of them has no limit.

    With one of the accounts chosen, less may be refused.
    """
    quotas = []
    for entry in accounts:
        limits = [entry["gpus"], entry["person_gpus"], entry["job_gpus"]]
        quotas.append(min((limit for limit in limits if limit is not None), default=None))
    return None if not quotas or None in quotas else max(quotas)


def gpu_reason(accounts: list, quota, of_host: int) -> str:
    """Return why a person can have no more GPUs.

    C(quota) is of P(gpu_quota), and C(of_host) the GPUs of the largest host.
    """
    if not accounts:
        return "you have no account on this cluster"
    if quota is None or quota >= of_host:
        return "no host has more than %d" % of_host
    return "%s %d %s, so %d at most" % (
        "your account has" if len(accounts) == 1 else "your accounts have",
        quota,
        "GPU" if quota == 1 else "GPUs",
        quota,
    )


def choices_of(accounts, nodes, images, default_image, approved=(), registries=()):
    """Return what a person may choose: C(images), C(classes), C(accounts) and the largest amounts,
    each with the reason of its limit.

    :param accounts: from P(_job_limits.accounts_of).
    :param nodes: C(cpus), C(memory_gb), C(gpus) and C(classes) of each host.
    :param images: names of the images of the hosts.
    :param approved: names of the approved images of the site's registry, which hosts pull.
    :param registries: beginnings of the names of images that people may pull.
    """
    images = sorted(set(images) | set(allowed(approved, registries)))
    quota = gpu_quota(accounts)
    of_host = largest(nodes, "gpus")
    gpus = of_host if quota is None else min(of_host, quota)
    minutes = [entry["max_minutes"] for entry in accounts]
    return {
        "images": images,
        "image": default_image if default_image in images else "",
        "registries": list(registries),
        "saved": [],
        "saved_problem": "",
        "classes": sorted({name for node in nodes for name in node["classes"]}),
        "accounts": [entry["account"] for entry in accounts],
        "gpus": {"most": gpus, "why": gpu_reason(accounts, quota, of_host)},
        "cpus": {
            "most": largest(nodes, "cpus"),
            "why": "no host has more than %d" % largest(nodes, "cpus"),
        },
        "memory": {
            "most": largest(nodes, "memory_gb"),
            "why": "no host has more than %d GB" % largest(nodes, "memory_gb"),
        },
        "minutes": None if not minutes or None in minutes else max(minutes),
    }


def _image_fields(choices: dict, value: str) -> list:
    """Return the fields for the image.

    Without a list and without registries any name may be typed, and hosts say whether they have it.
    """
    listed = choices["images"] + choices["saved"]
    typed = {"kind": "text", "key": "worker_image", "label": "Image", "value": value}
    if not listed:
        return [dict(typed, note=choices["saved_problem"])]
    groups = [("Images of the cluster", choices["images"]), ("Saved by you", choices["saved"])]
    if not choices["saved"]:
        groups = [("", choices["images"])]
    found = [dict(typed, kind="select", groups=[each for each in groups if each[1]])]
    if choices["registries"]:
        notes = ["from " + ", ".join(choices["registries"]), choices["saved_problem"]]
        found.append(
            dict(
                typed,
                key=OTHER_IMAGE,
                label="Or another image",
                value="" if value in listed else value,
                note="; ".join(filter(None, notes)),
            )
        )
    return found


def _number(key, label, value, most, note):
    """Return a field for a whole number from 1."""
    found = {"kind": "number", "key": key, "label": label, "value": value}
    return dict(found, least=1, most=most, step="1", note=note)


def _list(key, label, value, names, empty):
    found = {"kind": "select", "key": key, "label": label, "value": value}
    return dict(found, groups=[("", names)], empty=empty)


def start_fields(choices: dict, former: dict, default_class: str = "") -> list:
    """Return the fields of the start page with the choices, for templates/start_form.html.

    :param choices: of P(choices_of).
    :param former: the values of the last start. The server judges them again.
    :param default_class: class of hosts of a first start. One that no host has any more does not count.
    """
    value = dict(
        DEFAULTS, worker_image=choices["image"], host_class="" if former else default_class
    )
    for key, text in chosen(former).items():
        value[key] = text if isinstance(text, str) else ""
    gpus, cpus, memory = choices["gpus"], choices["cpus"], choices["memory"]
    most = choices["minutes"]
    limit = "your account allows %d at most" % most if most else "empty: the limit of the queue"
    gb, minutes = "Memory in GB", "Minutes until it ends"
    of_gpus = _number("worker_gpu", "GPUs", value["worker_gpu"], gpus["most"], gpus["why"])
    of_memory = _number("worker_memory", gb, value["worker_memory"], memory["most"], memory["why"])
    found = _image_fields(choices, value["worker_image"]) + [
        dict(of_gpus, least=0),
        _number("worker_cpu", "CPUs", value["worker_cpu"], cpus["most"], cpus["why"]),
        dict(of_memory, least="0.5", step="0.5"),
        _number("max_minutes", minutes, value.get("max_minutes", ""), most, limit),
    ]
    if choices["classes"]:
        chosen_class = value.get("host_class", "")
        found.append(_list("host_class", "Class of hosts", chosen_class, choices["classes"], "any"))
    if len(choices["accounts"]) > 1:
        account = value.get("workspace_id", "")
        accounts = choices["accounts"]
        found.append(_list("workspace_id", "Account", account, accounts, "the default one"))
    return found


# --- login links ------------------------------------------------------------------------------------------------------------


def new_token():
    return secrets.token_urlsafe(LINK_BYTES)


def of_link(person, token):
    """Return what a link has after #."""
    return "%s:%s" % (person, token)


def parts_of_link(text):
    """Return name and token of what a link has after #."""
    person, _colon, token = text.strip().rpartition(":")
    return person, token


def file_of(token):
    """Return the name of the file of a link. It does not reveal the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def link_problem(found, person, now):
    """Return why the file of a link, as a dict, admits nobody; an empty text if it does.

    A link is removed before it is judged, so it is valid once.

    :param person: the name in the link, which the page has shown.
    """
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("person"), str)
        or not isinstance(found.get("until"), (int, float))
    ):
        return "the link is not valid"
    if found["person"] != person:
        return "the link is for somebody else than it says"
    return (
        ""
        if now <= found["until"]
        else "the link was valid for %d seconds" % found.get("seconds", 0)
    )


def asked_by(found, people):
    """Return the person who requests a link.

    C(found) is the account of the uid that the kernel reports.
    """
    if found is None or found not in people or not PERSON.fullmatch(found):
        raise RequestError(
            (
                "%s is not one of the people of this cluster; ask the operator to add you to a "
                "group in slurm_accounts"
            )
            % (found or "this account")
        )
    return found
