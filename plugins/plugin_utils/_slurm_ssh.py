# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who can log in to a training host by ssh: sshd's file of PAM with a rule that asks Slurm for a
job. Pure functions.

Debian's packages of pam_slurm_adopt and pam_slurm have no profile for pam-auth-update, and one
would also apply to cron, su and sudo. So the rule is in /etc/pam.d/sshd, which only sshd uses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.plugin_utils._slurm_sessions import Steps

SSHD = "/etc/pam.d/sshd"
COMMON = "/etc/pam.d/common-session"
# common-session without pam_systemd.
SESSION = "/etc/pam.d/trainyard-session"
# OpenSSH 9.8 and later refuse all connections of an address from which logins have failed, for up
# to 10 minutes. People without a job would lock out all others who come through the same login
# host, operators too.
DROP_IN = "/etc/ssh/sshd_config.d/trainyard-slurm.conf"
BEGIN = (
    "# Begin of the lines of Ansible (trainyard.gpu): people need a job on this host. Changes are "
    "overwritten."
)
END = "# End of the lines of Ansible (trainyard.gpu)."
# Marks a line of the file that is not used while ours are there.
KEPT = "#trainyard: "
PACKAGES = {"adopt": "libpam-slurm-adopt", "slurm": "libpam-slurm"}
# PAM splits the line at blanks, and pam_succeed_if the list at colons.
_NAME = re.compile(r"[A-Za-z0-9_.@-]+")
# Nothing is changed if the new file would reject a user that the present file accepts. sshd calls
# pam_acct_mgmt, too. Debian's pam_slurm.so names no library of PAM that it needs: it loads only in
# a program with PAM's functions in the global scope, as sshd has them.
CHECK = """
import ctypes, os, shutil, sys
lib = ctypes.CDLL("libpam.so.0", mode=ctypes.RTLD_GLOBAL)
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
class Conversation(ctypes.Structure):
    _fields_ = [("function", kind), ("data", ctypes.c_void_p)]
silent = Conversation(kind(lambda *_: 19), None)
def allowed(service, user):
    handle = ctypes.c_void_p()
    if lib.pam_start(service.encode(), user.encode(), ctypes.byref(silent), ctypes.byref(handle)):
        return False
    found = lib.pam_acct_mgmt(handle, 0x8000)
    lib.pam_end(handle, found)
    return found == 0
copy = "/etc/pam.d/trainyard-check"
shutil.copyfile(sys.argv[1], copy)
try:
    lost = [user for user in sys.argv[2:] if allowed("sshd", user) and not allowed("trainyard-check", user)]
finally:
    os.unlink(copy)
sys.exit("it would lock out " + ", ".join(lost) if lost else 0)
"""


class Rule(TypedDict):
    """Who can log in to a host.

    C(rule) is adopt, slurm or none, and C(why) says why there is none. C(steps) are in their order.
    C(dropped) are users of an earlier list who are neither requested nor the user of this run.
    """

    rule: str
    why: str
    steps: list[Steps]
    dropped: list[str]


def original(text: str) -> str:
    """Return sshd's file without the lines of these roles. Lines of others stay."""
    lines, inside = [], False
    for line in text.splitlines(True):
        if line.rstrip("\n") in (BEGIN, END):
            inside = line.rstrip("\n") == BEGIN
        elif not inside:
            lines.append(line)
        elif line.startswith(KEPT):
            lines.append(line[len(KEPT) :])
    return "".join(lines)


def listed_users(text: str) -> list[str]:
    """Return the users that an earlier run has listed."""
    found = re.search(
        r"^account .* pam_succeed_if\.so quiet user in (\S+)$",
        text[text.find(BEGIN) :] if BEGIN in text else "",
        re.M,
    )
    return found.group(1).split(":") if found else []


def _include(text: str, name: str) -> re.Match[str] | None:
    return re.search(r"^@include[ \t]+%s[ \t]*$" % name, text, re.M)


def _around(text: str, name: str) -> tuple[str, str, str]:
    """Return (text before, the line, text after) of an include. ValueError: there is none."""
    found = _include(text, name)
    if not found:
        raise ValueError("%s has no line '@include %s'" % (SSHD, name))
    return text[: found.start()], found.group(0), text[found.end() :]


def _block(lines: list[str]) -> str:
    return "\n".join([BEGIN, *lines, END])


def with_rule(
    text: str, module: str, users: list[str], groups: list[str], people_session: bool
) -> str:
    """Return sshd's file with the rule.

    C(module) is the module with its arguments, C(people_session) whether people get their own
    session.
    """
    text = original(text)
    conditions = ["uid < 1000", "user in " + ":".join(users)] + (
        ["user ingroup " + ":".join(groups)] if groups else []
    )
    # The rule is skipped for these users, so that they log in whatever is wrong with Slurm. A jump
    # needs a line to end at.
    lines = [
        "account [success=%d default=ignore] pam_succeed_if.so quiet %s"
        % (len(conditions) - index, condition)
        for index, condition in enumerate(conditions)
    ]
    lines += ["account required " + module, "account required pam_permit.so"]
    before, include, after = _around(text, "common-account")
    text = before + include + "\n" + _block(lines) + after
    if not people_session:
        return text
    before, include, after = _around(text, "common-session")
    people = ["uid >= 1000", "user notin " + ":".join(users)] + (
        ["user notingroup " + ":".join(groups)] if groups else []
    )
    lines = [
        KEPT + include,
        "session [success=2 default=ignore] pam_succeed_if.so quiet " + " ".join(people),
        "session substack common-session",
        "session [default=1] pam_permit.so",
        "session substack " + SESSION.rsplit("/", 1)[1],
    ]
    return before + _block(lines) + after


def session_of_people(common: str) -> str:
    """Return common-session without pam_systemd, which would move the process from the job's
    control group to one of the login.

    The line is replaced and not removed, because others may jump over it.
    """
    heading = (
        "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n# common-session without "
        "pam_systemd.\n"
    )
    return heading + re.sub(
        r"^-?session[ \t]+(?:\[[^\]\n]*\]|\S+)[ \t]+\S*pam_systemd\.so.*$",
        "session optional pam_permit.so",
        common,
        flags=re.M,
    )


def _has_penalties(version: str) -> bool:
    """Return whether a version of openssh-server, such as 1:10.0p1-7, knows penalties."""
    found = re.match(r"(?:\d+:)?(\d+)\.(\d+)", version)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= (9, 8)


class Host(NamedTuple):
    """What the cluster knows about a host.

    C(training_only): jobs run there and people do not log in. C(limited): Slurm limits jobs by
    control groups. C(addresses) are those of all hosts of the cluster, from which people come.
    """

    name: str
    training_only: bool
    limited: bool
    addresses: Sequence[str] = ()


class People(NamedTuple):
    """Who needs a job to log in. C(users) and the members of C(groups) need none."""

    needs_job: bool = True
    users: Sequence[str] = ()
    groups: Sequence[str] = ("sudo",)


def _pam_module(rule: str, reading: dict[str, Any], host: Host) -> str:
    """Return the module of PAM that asks for a job, with its arguments."""
    if rule != "adopt":
        return "pam_slurm.so no_sys_info"
    # By default, a person whose process cannot be adopted gets in, beyond all limits.
    module = "pam_slurm_adopt.so action_adopt_failure=deny action_generic_failure=deny"
    if reading["hostname"] == host.name:
        return module
    return module + " nodename=" + host.name


def ssh_rule(reading: dict[str, Any], host: Host, people: People) -> Rule:
    """Return who can log in to a host.

    C(reading) is the answer of module slurm_host_info. If the connection does not tell its user,
    the users of an earlier list stay.
    """
    text = reading["texts"].get(SSHD, "")
    login_user = reading.get("login_user", "")
    former = listed_users(text)
    # The order of an earlier run, so that the file stays the same.
    allowed = ["root", *former, *people.users]
    if login_user:
        allowed = ["root", login_user, *people.users]
    allowed = list(dict.fromkeys(allowed))
    dropped = [user for user in former if user not in allowed]
    rule, why = _decide(reading, host, people, [*allowed, *people.groups])
    if rule == "none":
        return {"rule": rule, "why": why, "steps": removal(reading), "dropped": []}
    common = reading["texts"].get(COMMON, "")
    has_session = (
        rule == "adopt"
        and "pam_systemd.so" in common
        and bool(_include(original(text), "common-session"))
    )
    module = _pam_module(rule, reading, host)
    entry = {
        "path": SSHD,
        "content": with_rule(text, module, allowed, list(people.groups), has_session),
        "validate": "/usr/bin/python3 -c '%s' %%s %s" % (CHECK, " ".join(allowed)),
    }
    steps: list[Steps] = []
    if _has_penalties(reading["packages"].get("openssh-server", "")) and host.addresses:
        exempt = (
            "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n"
            "PerSourcePenaltyExemptList %s\n"
        ) % ",".join(host.addresses)
        steps.append(
            {"files": [_file(DROP_IN, exempt, validate="/usr/sbin/sshd -t -f %s")], "absent": []}
        )
    if has_session:
        steps.append({"files": [_file(SESSION, session_of_people(common))], "absent": []})
    steps.append({"files": [entry], "absent": []})
    if not has_session:
        steps.append({"files": [], "absent": [SESSION]})
    return {"rule": rule, "why": "", "steps": steps, "dropped": dropped}


def _file(path: str, content: str, **more: str) -> dict[str, Any]:
    entry = {"path": path, "content": content, "mode": "0644", "owner": "root", "group": "root"}
    return {**entry, **more}


def _decide(
    reading: dict[str, Any], host: Host, people: People, names: list[str]
) -> tuple[str, str]:
    """Return (rule, why there is none). C(names) are written to a file of PAM."""
    text = original(reading["texts"].get(SSHD, ""))
    if not text:
        return "none", "no sshd"
    if not people.needs_job:
        return "none", "slurm_ssh_needs_job is false"
    if not host.training_only:
        return "none", "people log in there, or no jobs run there"
    if not _include(text, "common-account"):
        return (
            "none",
            "%s has no line '@include common-account'; add it, or set slurm_ssh_needs_job to false"
            % SSHD,
        )
    if "\ufffd" in text:
        return (
            "none",
            (
                "%s is not UTF-8, so it cannot be changed without loss; correct it, or set "
                "slurm_ssh_needs_job to false"
            )
            % SSHD,
        )
    unusual = [name for name in names if not _NAME.fullmatch(name)]
    if unusual:
        return (
            "none",
            (
                "the name '%s' cannot be written to a file of PAM; connect as another user, or set "
                "slurm_ssh_needs_job to false"
            )
            % unusual[0],
        )
    # pam_slurm_adopt looks for the job's control group, which only proctrack/cgroup makes.
    rule = "adopt" if host.limited else "slurm"
    if rule == "slurm" and reading["hostname"] != host.name:
        return "none", (
            (
                "pam_slurm finds jobs by the host name '%s', which is not the node's name; rename "
                "the host, or set slurm_ssh_needs_job to false"
            )
            % reading["hostname"]
        )
    if PACKAGES[rule] not in reading["packages"]:
        return "none", "package %s is not installed" % PACKAGES[rule]
    return rule, ""


def removal(reading: dict[str, Any]) -> list[Steps]:
    """Return the steps that restore sshd's file, none if it has no lines of these roles.

    The file first: it may name the other one.
    """
    text = reading["texts"].get(SSHD, "")
    steps: list[Steps] = []
    if original(text) != text:
        steps.append({"files": [{"path": SSHD, "content": original(text)}], "absent": []})
    for path in (SESSION, DROP_IN):
        if path in reading["texts"]:
            steps.append({"files": [], "absent": [path]})
    return steps


def lacking(rule: Rule, reading: dict[str, Any]) -> list[str]:
    """Return the files that the steps of C(rule) change on the host."""
    entries = [entry for step in rule["steps"] for entry in step["files"] if "content" in entry]
    changed = [
        entry["path"]
        for entry in entries
        if reading["texts"].get(entry["path"]) != entry["content"]
    ]
    return changed + [
        path for step in rule["steps"] for path in step["absent"] if path in reading["texts"]
    ]
