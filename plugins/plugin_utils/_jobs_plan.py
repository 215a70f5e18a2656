# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan of role jobs: which of its programs a host gets, its settings, the folders of people on the share, and how a host differs from that."""

from __future__ import annotations

import json

from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_plan import PRIORITIES

COMMAND = "/usr/local/bin/trainyard"
LIBRARY = "/usr/local/lib/trainyard/jobs"
CONFIG = "/etc/trainyard/jobs.json"
#: What the table of playbook drift calls it.
PART = "command trainyard"
COMPLETION = "/etc/bash_completion.d/trainyard"
#: The folder of a program is where Python looks for modules first. What the person has set for a Python of their own does not count. People cannot write into
#: that folder, so their home keeps the compiled modules, without which each call would compile them.
START = (
    '#!/bin/sh\nexec /usr/bin/python3 -E -s -X pycache_prefix="${HOME:-/nonexistent}/.cache/trainyard" %s/trainyard "$@"\n'
    % LIBRARY
)
#: Modules of the command on login hosts, and of the programs in the jobs on training hosts.
OF_LOGIN = (
    "_batch.py",
    "_command_line.py",
    "_commands.py",
    "_job_file.py",
    "_job_limits.py",
    "_job_text.py",
    "_output.py",
    "_overview.py",
    "_site.py",
    "_slurm_client.py",
    "_submit.py",
    "trainyard",
)
OF_TRAINING = (
    "_job_text.py",
    "door",
    "job",
    "services",
)
#: Of role host_library now.
FORMER = (
    "_bandwidth.py",
    "_error_signatures.py",
    "_job_watch.py",
    "_registry.py",
    "_slurm.py",
    "rank",
)


#: By which the command reads job files on login hosts. Debian builds it with libyaml, which is ten times as fast.
YAML = "python3-yaml"
#: It reads COMPLETION when a person presses Tab.
BASH_COMPLETION = "bash-completion"


def folder_of_jobs(share):
    return share.rstrip("/") + "/.trainyard/jobs"


def config(wanted):
    """Return what the programs know of the site."""
    return {
        "share": wanted["share"],
        "jobs": folder_of_jobs(wanted["share"]),
        "images": sorted(set(wanted["images"])),
        "registries": wanted["registries"],
        "default_image": wanted["default_image"],
        "mail": wanted["mail"],
        "login": wanted["login"],
        "rclone": wanted["rclone"],
        "priorities": [
            {key: entry[key] for key in ("name", "priority", "preempts") if key in entry}
            for entry in wanted["priorities"] or PRIORITIES
        ],
    }


def people(accounts, users):
    """Return the people with an account of the scheduler, with their IDs. Others have none on the hosts, which role slurm_accounts tells."""
    members = {name for account in accounts for name in account.get("members") or []}
    return [user for user in users if user["name"] in members]


def folders(wanted):
    """Return the folders on the share: one of each person, which nobody else can read or replace."""
    base = folder_of_jobs(wanted["share"])
    found = [
        {"path": path, "owner": 0, "group": 0, "mode": "0755"}
        for path in (base.rpartition("/")[0], base)
    ]
    for user in people(wanted["accounts"], wanted["users"]):
        owner = {"owner": user["uid"], "group": user.get("gid") or user["uid"], "mode": "0700"}
        if wanted.get("anonymous_uid") not in (None, ""):
            # As role shared_storage does with the folders of people: the access list of the share would replace their umask.
            owner["without_uid"] = int(wanted["anonymous_uid"])
        found += [
            dict(owner, path="%s/%s" % (base, user["name"])),
            dict(owner, path="%s/%s/.out" % (base, user["name"])),
        ]
    return found


def jobs_plan(wanted, host):
    """See the filter."""
    is_login, is_training = host in wanted["login_hosts"], host in wanted["training_hosts"]
    programs = wanted["programs"]
    names = sorted(set(OF_LOGIN * is_login + OF_TRAINING * is_training))
    files = (
        [
            {"path": path, "state": "directory", "mode": "0755"}
            for path in ("/etc/trainyard", "/usr/local/lib/trainyard", LIBRARY)
        ]
        if names
        else []
    )
    files += [
        {
            "path": "%s/%s" % (LIBRARY, name),
            "content": programs[name],
            "mode": "0644" if name.endswith(".py") else "0755",
        }
        for name in names
    ]
    if is_login:
        files += [
            {"path": COMMAND, "content": START, "mode": "0755"},
            {"path": COMPLETION.rpartition("/")[0], "state": "directory", "mode": "0755"},
            {"path": COMPLETION, "content": programs["completion"], "mode": "0644"},
        ]
    if names:
        files.append(
            {
                "path": CONFIG,
                "content": json.dumps(config(wanted), indent=2, sort_keys=True) + "\n",
                "mode": "0644",
            }
        )
    placed = {entry["path"] for entry in files}
    packages = [YAML, BASH_COMPLETION] if is_login else []
    if is_training and wanted["rclone"]:
        packages.append("rclone")
    return {
        "files": files,
        "packages": packages,
        "absent": [path for path in owned() if path not in placed],
        "folders": folders(wanted) if host == wanted["keeper"] else [],
    }


def owned():
    """Return the paths of all files that the role places, for its removal."""
    return sorted(
        {"%s/%s" % (LIBRARY, name) for name in OF_LOGIN + OF_TRAINING + FORMER}
        | {COMMAND, COMPLETION, CONFIG}
    )


def jobs_drift(now, wanted, host):
    """See the filter."""
    plan = jobs_plan(wanted, host)
    rows = [
        _row(path, "absent", "present") for path in plan["absent"] if path in now["changed_paths"]
    ]
    if plan["files"] and not now["is_placed"]:
        # One line in place of one for each program.
        rows.append(_row(PART, "installed", "not installed"))
    else:
        rows += [
            _row(entry["path"], "as planned", "missing or changed")
            for entry in plan["files"]
            if entry["path"] in now["changed_paths"]
        ]
    rows += [_row("package " + name, "installed", "absent") for name in now["missing_packages"]]
    return rows + [
        _row(
            entry["path"],
            "a folder of user %d, mode %s" % (entry["owner"], entry["mode"]),
            "missing or changed",
        )
        for entry in plan["folders"]
        if entry["path"] in now["changed_folders"]
    ]


def _row(what, asked, found):
    return {"what": what, "asked": asked, "found": found}
