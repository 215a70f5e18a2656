# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan of role jobs: which of its programs a host gets, its settings, the folders of people on the
share, and how a host differs from that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.plugin_utils._placed_files import (
    Difference,
    ManagedFile,
    difference,
    managed_file,
    managed_folder,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_plan import PRIORITIES

if TYPE_CHECKING:
    # Module typing has these from Python 3.11, and a controller may run Python 3.10.
    from typing_extensions import NotRequired

COMMAND = "/usr/local/bin/trainyard"
LIBRARY = "/usr/local/lib/trainyard/jobs"
CONFIG = "/etc/trainyard/jobs.json"
#: What the table of playbook drift calls it.
PART = "command trainyard"
COMPLETION = "/etc/bash_completion.d/trainyard"
#: The folder of a program is where Python looks for modules first. What the person has set for a
#: Python of their own does not count. People cannot write into that folder, so their home keeps the
#: compiled modules, without which each call would compile them.
START = (
    "#!/bin/sh\nexec /usr/bin/python3 -E -s -X "
    'pycache_prefix="${HOME:-/nonexistent}/.cache/trainyard" %s/trainyard "$@"\n'
) % LIBRARY
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


#: By which the command reads job files on login hosts. Debian builds it with libyaml, which is ten
#: times as fast.
YAML = "python3-yaml"
#: It reads COMPLETION when a person presses Tab.
BASH_COMPLETION = "bash-completion"


class Requested(TypedDict):
    """The requested jobs: C(__jobs_requested) of the role.

    C(programs) are contents by name, C(keeper) is the host that makes the folders on the share.
    """

    login_hosts: list[str]
    training_hosts: list[str]
    keeper: str
    share: str
    accounts: list[dict[str, Any]]
    users: list[dict[str, Any]]
    priorities: list[dict[str, Any]]
    images: list[str]
    default_image: str
    registries: list[Any]
    mail: bool
    rclone: bool
    login: str
    programs: dict[str, str]
    anonymous_uid: NotRequired[int | str | None]


class SharedFolder(TypedDict):
    """Entry of option C(folders) of module shared_folders. Owner and group are IDs."""

    path: str
    owner: int
    group: int
    mode: str
    without_uid: NotRequired[int]


class Plan(TypedDict):
    """What a host gets: entries of managed_files, packages, paths of files that it must not have,
    and folders on the share.
    """

    files: list[ManagedFile]
    packages: list[str]
    absent: list[str]
    folders: list[SharedFolder]


class Found(TypedDict):
    """How a host differs from its plan, as check mode of the modules tells.

    C(is_placed) is whether it has the folder of the programs.
    """

    is_placed: bool
    changed_paths: list[str]
    changed_folders: list[str]
    missing_packages: list[str]


def folder_of_jobs(share: str) -> str:
    """Return the folder of all jobs on the share."""
    return share.rstrip("/") + "/.trainyard/jobs"


def config(requested: Requested) -> dict[str, Any]:
    """Return what the programs know of the site."""
    return {
        "share": requested["share"],
        "jobs": folder_of_jobs(requested["share"]),
        "images": sorted(set(requested["images"])),
        "registries": requested["registries"],
        "default_image": requested["default_image"],
        "mail": requested["mail"],
        "login": requested["login"],
        "rclone": requested["rclone"],
        "priorities": [
            {key: entry[key] for key in ("name", "priority", "preempts") if key in entry}
            for entry in requested["priorities"] or PRIORITIES
        ],
    }


def people(accounts: list[dict[str, Any]], users: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the people with an account of the scheduler, with their IDs.

    Others have none on the hosts, which role slurm_accounts tells.

    C(accounts) are as C(slurm_accounts), C(users) as C(shared_storage_users), and the result has
    entries of C(users).
    """
    members = {name for account in accounts for name in account.get("members") or []}
    return [user for user in users if user["name"] in members]


def folders(requested: Requested) -> list[SharedFolder]:
    """Return the folders on the share: one of each person, which nobody else can read or
    replace.
    """
    base = folder_of_jobs(requested["share"])
    found: list[SharedFolder] = [
        {"path": path, "owner": 0, "group": 0, "mode": "0755"}
        for path in (base.rpartition("/")[0], base)
    ]
    for user in people(requested["accounts"], requested["users"]):
        mine = "%s/%s" % (base, user["name"])
        found += [_folder_of(user, path, requested) for path in (mine, mine + "/.out")]
    return found


def _folder_of(user: dict[str, Any], path: str, requested: Requested) -> SharedFolder:
    """Return a folder that only its person can open."""
    folder: SharedFolder = {
        "path": path,
        "owner": user["uid"],
        "group": user.get("gid") or user["uid"],
        "mode": "0700",
    }
    anonymous = requested.get("anonymous_uid")
    if anonymous not in (None, ""):
        # As role shared_storage does with the folders of people: the access list of the share would
        # replace their umask.
        folder["without_uid"] = int(anonymous)
    return folder


def _program_mode(name: str) -> str:
    """Return the mode of a program, or of a module that programs load."""
    return "0644" if name.endswith(".py") else "0755"


def _files(requested: Requested, is_login: bool, is_training: bool) -> list[ManagedFile]:
    """Return the folders and files of a host.

    Empty if it is neither a login host nor a training host.
    """
    programs = requested["programs"]
    names = sorted(set(OF_LOGIN * is_login + OF_TRAINING * is_training))
    if not names:
        return []
    files = [
        managed_folder(path) for path in ("/etc/trainyard", "/usr/local/lib/trainyard", LIBRARY)
    ]
    files += [
        managed_file("%s/%s" % (LIBRARY, name), programs[name], _program_mode(name))
        for name in names
    ]
    if is_login:
        files += [
            managed_file(COMMAND, START, "0755"),
            managed_folder(COMPLETION.rpartition("/")[0]),
            managed_file(COMPLETION, programs["completion"]),
        ]
    text = json.dumps(config(requested), indent=2, sort_keys=True) + "\n"
    return files + [managed_file(CONFIG, text)]


class FoundHost(TypedDict):
    """A host by its inventory name."""

    host: str


def jobs_plan(found: FoundHost, requested: Requested) -> Plan:
    """Return the plan of a host.

    C(files) are for M(trainyard.gpu.managed_files), C(packages) what the host needs of the
    distribution, C(absent) paths of files of this role that the host has to lack, and C(folders),
    on one host only, those on the share for M(trainyard.gpu.shared_folders).
    """
    host = found["host"]
    is_login = host in requested["login_hosts"]
    is_training = host in requested["training_hosts"]
    files = _files(requested, is_login, is_training)
    placed = {entry["path"] for entry in files}
    packages = [YAML, BASH_COMPLETION] if is_login else []
    if is_training and requested["rclone"]:
        packages.append("rclone")
    return {
        "files": files,
        "packages": packages,
        "absent": [path for path in owned() if path not in placed],
        "folders": folders(requested) if host == requested["keeper"] else [],
    }


def owned() -> list[str]:
    """Return the paths of all files that the role places, for its removal."""
    return sorted(
        {"%s/%s" % (LIBRARY, name) for name in OF_LOGIN + OF_TRAINING + FORMER}
        | {COMMAND, COMPLETION, CONFIG}
    )


def jobs_drift(found: Found, requested: Requested, host: str) -> list[Difference]:
    """Return what differs from the plan of a host, one row each: C(what), C(asked) and C(found);
    none if a run of role jobs would change nothing.

    C(found) is what check mode of the modules tells, C(host) the inventory name.
    """
    plan = jobs_plan({"host": host}, requested)
    rows = [
        difference(path, "absent", "present")
        for path in plan["absent"]
        if path in found["changed_paths"]
    ]
    if plan["files"] and not found["is_placed"]:
        # One line in place of one for each program.
        rows.append(difference(PART, "installed", "not installed"))
    else:
        rows += [
            difference(entry["path"], "as planned", "missing or changed")
            for entry in plan["files"]
            if entry["path"] in found["changed_paths"]
        ]
    rows += [
        difference("package " + name, "installed", "absent") for name in found["missing_packages"]
    ]
    return rows + [
        difference(
            entry["path"],
            "a folder of user %d, mode %s" % (entry["owner"], entry["mode"]),
            "missing or changed",
        )
        for entry in plan["folders"]
        if entry["path"] in found["changed_folders"]
    ]
