# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys and logins of the training containers' ssh mesh. Pure functions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import statistics

from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "clock_ahead",
    "fingerprint",
    "judge_login",
    "mesh_members",
    "mesh_problems",
    "parse_logins",
    "parse_record",
    "printable",
    "seconds",
    "without_comment",
]

KINDS = {
    "host_key": "host key of the container's sshd",
    "public_key": "key that the container logs in with",
}


def without_comment(public_key):
    """Return type and key of a public key, which identify it."""
    words = public_key.split()
    if len(words) < 2:
        raise ParseError("not a public key: %r" % public_key)
    return " ".join(words[:2])


def fingerprint(public_key):
    """Return the fingerprint of a public key as ssh-keygen -l prints it."""
    try:
        blob = base64.b64decode(without_comment(public_key).split()[1], validate=True)
    except binascii.Error as error:
        raise ParseError("not a public key: %r" % public_key) from error
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_record(text):
    """Return the content of cluster.json; {} if the file is empty."""
    if not text.strip():
        return {}
    try:
        record = json.loads(text)
        # Every later step needs these.
        {entry["name"]: (entry["host_key"], entry["public_key"]) for entry in record["hosts"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError("not a record of the cluster: %r" % error) from error
    return record


def _recorded(answer, name):
    for entry in (answer.get("recorded") or {}).get("hosts", []):
        if entry["name"] == name:
            return entry
    return {}


def changed_key(name, kind, found, recorded, holder):
    """Return the entry of a key that differs from the one on record, which C(holder) has."""
    return {
        "name": name,
        "kind": kind,
        "found": found,
        "recorded": recorded,
        "recorded_on": holder,
        "problem": "%s: its %s is %s, but the recorded key is %s (%s:/etc/trainyard/cluster.json)."
        % (name, "host key" if kind == "host_key" else "client key", found, recorded, holder),
    }


def _known_keys(name, answer, records):
    """Return ({kind: key or None} of a member, its keys that are not those on record although nobody asked to rotate them).

    C(records) are (holder, entry) of the hosts that know it, its own first.
    """
    known, changed = {}, []
    for kind in KINDS:
        on_record = [(holder, entry[kind]) for holder, entry in records if entry.get(kind)]
        holder, recorded = on_record[0] if on_record else ("", None)
        known[kind] = answer.get(kind) or recorded
        if recorded and known[kind] != recorded and not answer.get("rotated"):
            prints = fingerprint(known[kind]), fingerprint(recorded)
            changed.append(changed_key(name, kind, *prints, holder))
    return known, changed


def mesh_members(members, answers):
    """Merge the members' keys.

    C(members) is the cluster in rank order, C(answers) has for each host that was asked what M(ssh_mesh_keys) returned. Returns

    - C(hosts): every member with C(host_key) and C(public_key), None where no host knows them;
    - C(kept): members that weren't asked and keep the keys that are on record; C(unknown): members without any;
    - C(changed): keys that aren't those on record although nobody asked to rotate them, with C(problem), which says so;
    - C(behind): hosts that are set up, have answered, don't run in this play, and whose record lacks something that C(hosts) has.

    What a host has on its own record counts; where it has none (it is new, or was replaced), what the others have.
    """
    hosts, kept, unknown, changed = [], [], [], []
    for member in members:
        name = member["name"]
        answer = answers.get(name, {})
        records = [(name, _recorded(answer, name))] + [
            (other, _recorded(said, name)) for other, said in answers.items() if other != name
        ]
        known, changed_keys = _known_keys(name, answer, records)
        changed += changed_keys
        if not known["host_key"]:
            unknown.append(name)
        elif not answer.get("host_key"):
            kept.append(name)
        # The interface of an absent host is unknown, and so are its slots if the inventory does not set them.
        earlier = next((entry for dummy, entry in records if entry), {})
        hosts.append(
            {
                "name": name,
                "address": member["address"] or earlier.get("address", ""),
                "interface": member["interface"] or earlier.get("interface", ""),
                "slots": member["slots"] or earlier.get("slots", 0),
                "host_key": known["host_key"],
                "public_key": known["public_key"],
            }
        )

    def essence(entries):
        return [
            (entry["name"], entry["address"], entry["host_key"], entry["public_key"])
            for entry in entries
        ]

    behind = [
        member["name"]
        for member in members
        if not member["in_play"]
        and answers.get(member["name"], {}).get("recorded")
        and essence(answers[member["name"]]["recorded"]["hosts"]) != essence(hosts)
    ]
    return {"hosts": hosts, "kept": kept, "unknown": unknown, "changed": changed, "behind": behind}


# Output of ssh -> cause. The first match counts.
_CAUSES = (
    ("host_key_changed", r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending \S+ key in"),
    ("host_key_unknown", r"No \S+ host key is known for|Host key verification failed"),
    ("login_refused", r"Permission denied|Too many authentication failures"),
    ("name_unresolved", r"Could not resolve hostname"),
    ("connection_refused", r"Connection refused"),
    ("no_banner", r"timed out during banner exchange"),
    ("timeout", r"timed out|Timeout, server .* not responding"),
    ("unreachable", r"No route to host|Network is unreachable|Host is down"),
    (
        "connection_closed",
        r"Connection closed|Connection reset|Broken pipe|kex_exchange_identification|banner",
    ),
    ("ssh_missing", r"not found|No such file or directory"),
)
_FIXES = {
    "host_key_changed": "find out why the key of {name} differs from the one on record. If it was replaced on purpose, run "
    "training_environment.yml -e training_sshd_rotate_keys=true --limit {name}",
    "host_key_unknown": "run site.yml without --limit, which distributes the keys of {name}",
    "login_refused": "run training_environment.yml for all hosts, which writes authorized_keys on each; if the login fails again, read sshd's output in "
    "`docker logs` of the container on {name}",
    "name_unresolved": "run site.yml: /etc/trainyard/ssh/ssh_config lacks {name}",
    "connection_refused": "no sshd listens on {name}: run training_environment.yml, which starts container and sshd; if it stops again, read "
    "`docker logs` of the container there",
    "timeout": "check for a firewall between the hosts on the cluster network, and whether {name} is up",
    "no_banner": "{name} accepts connections but its sshd does not answer, so no firewall blocks them: the container's sshd is stopped or "
    "hangs, the container is paused, or the host is overloaded. Run training_environment.yml, which restarts its sshd",
    "unreachable": "check the interface on the cluster network of both hosts",
    "connection_closed": "read `docker logs` of the container on {name}: sshd closed the connection before the login. It cannot start a process for it if the "
    "container's limit of processes is reached (docker inspect, PidsLimit)",
    "ssh_missing": "the image lacks ssh or the collection's wrapper, or they were removed from the container: run training_environment.yml",
    "path_mtu": "packets of full size are lost on the way to {name}, as small ones arrive: run `ping -M do -s 1472 {name}` on both hosts (8972 with jumbo "
    "frames). Give all interfaces and switch ports of the cluster network the same MTU, and allow ICMP 'fragmentation needed' in firewalls between them",
    "session_hangs": "sshd of {name} accepts the login, but the shell does not run the command in time: check the login files of root in its container "
    "(.bashrc, .profile), its limit of processes (docker inspect, PidsLimit), and the load of {name}",
    "session_ends": "sshd of {name} accepts the login, but the shell of root ends before it has run the command: correct the login files in its container "
    "(.bashrc, .profile, ~/.ssh/environment), or restart the container when no job runs in it",
    "unknown": "run in the container: ssh -v {name}",
}
#: Of ssh -v. The first line that is missing shows how far a login came.
_STAGES = (
    ("connected", r"debug1: Connection established"),
    ("greeted", r"debug1: Remote protocol version"),
    (
        "keyed",
        r"debug1: SSH2_MSG_NEWKEYS received|Authenticated to |debug1: Authentication succeeded",
    ),
    ("authenticated", r"Authenticated to |debug1: Authentication succeeded"),
)
#: Exit code of timeout(1), and of a shell whose process it has killed.
_ENDED_BY_LIMIT = (124, 137)
#: Exit code of ssh for an error of its own. Others are of the command.
_OF_SSH = 255
#: Lines that ssh prints only with -v.
_LONGEST = 400
_VERBOSE = r"debug\d: |OpenSSH_|Authenticated to |Transferred: |Bytes per second: |Pseudo-terminal "
#: Causes that may be temporary while sshd starts.
PASSING = ("connection_refused", "timeout", "no_banner", "unreachable", "connection_closed")
#: Causes that the answering host itself reports, or that show that the network reaches it.
_OF_TARGET = (
    "connection_refused",
    "connection_closed",
    "host_key_changed",
    "login_refused",
    "no_banner",
    "session_ends",
    "session_hangs",
)
#: Causes that only mean that a host is absent.
ABSENT = ("connection_refused", "timeout", "unreachable")


def printable(text):
    """A text of a session, whose users may let it print anything, as one line of bounded length without control characters."""
    return "".join(
        character if character.isprintable() else " " for character in text[:_LONGEST]
    ).strip()


def judge_login(name, rc, stderr):
    """Return (cause, fix, evidence) of a login that ended with rc; empty for one that worked."""
    if rc == 0:
        return "", "", ""
    stages = [stage for stage, pattern in _STAGES if re.search(pattern, stderr)]
    lines = [printable(line) for line in stderr.splitlines()]
    said = [line for line in lines if line and not re.match(_VERBOSE, line)]
    cause = next(
        (cause for cause, pattern in _CAUSES if re.search(pattern, "\n".join(said))), "unknown"
    )
    evidence = said[-1] if said else "exit code %d" % rc
    if "authenticated" in stages and rc < _OF_SSH and rc not in _ENDED_BY_LIMIT:
        # What it says is of programs of the session.
        cause, evidence = "session_ends", "%s (exit code %d)" % (evidence, rc) if said else evidence
    elif rc in _ENDED_BY_LIMIT or cause in ("unknown", "timeout"):
        cause, evidence = _hung(cause, evidence, stages, rc)
    if cause == "host_key_changed":
        presented = re.search(r"SHA256:[A-Za-z0-9+/]+", stderr)
        evidence = "it answers with %s" % presented.group(0) if presented else evidence
    return cause, _FIXES[cause].format(name=name), evidence


def _hung(cause, evidence, stages, rc):
    """Return (cause, evidence) of a login that ended without a reason, by the last stage that it has reached."""
    if "authenticated" in stages:
        # A command that ended with another exit code has not hung.
        if rc in _ENDED_BY_LIMIT or cause == "timeout":
            return "session_hangs", "it logs in, but the session does not answer"
        return cause, evidence
    if "greeted" in stages and "keyed" not in stages:
        return "path_mtu", "it connects, then the key exchange does not end"
    if stages == ["connected"]:
        return "no_banner", "it connects, but sshd sends nothing"
    return "timeout" if rc in _ENDED_BY_LIMIT else cause, evidence


def seconds(text):
    """Return a time printed by C(date +%s.%N); null for other text (not every date supports %N)."""
    return float(text) if re.match(r"[0-9]+(\.[0-9]+)?$", text) else None


def clock_ahead(login, clock):
    """Return bounds of how far a clock, read during the login, is ahead of this host's; null if one of them is unknown."""
    if None in (clock, login["began"], login["ended"]):
        return None
    return [round(clock - login["ended"], 3), round(clock - login["began"], 3)]


def clocks(proofs):
    """Return, for each host, how far its clock is ahead of the median of all, and the uncertainty.

    Uses the simultaneous logins of one host. With two median clocks, the one nearer to that host's clock counts.
    """
    for proof in proofs.values():
        ahead = {login["name"]: login["session"].get("clock_ahead_s") for login in proof["logins"]}
        known = {name: span for name, span in ahead.items() if span}
        if known:
            middles = [sum(span) / 2 for span in known.values()]
            middle = min(statistics.median_low(middles), statistics.median_high(middles), key=abs)
            return {
                name: {
                    "ahead_s": round(sum(span) / 2 - middle, 3),
                    "uncertain_s": round((span[1] - span[0]) / 2, 3),
                }
                for name, span in known.items()
            }
    return {}


def parse_logins(text, token):
    """Parse the output of the script in the container: rc, stdout and stderr of each peer, and the times when the login C(began) and C(ended).

    Each peer's part is C(<token> <rc> <began> <ended>), then its lines, each with C(o ) or C(e ) before it. A clock that wasn't told is null.
    """
    logins = []
    # Other characters that end a line in Python are of the session.
    for line in text.split("\n"):
        if line.startswith(token + " "):
            rc, began, ended = (line.split()[1:] + ["", ""])[:3]
            logins.append(
                {
                    "rc": int(rc),
                    "stdout": "",
                    "stderr": "",
                    "began": seconds(began),
                    "ended": seconds(ended),
                }
            )
        elif logins and line[:2] in ("o ", "e "):
            logins[-1]["stdout" if line[0] == "o" else "stderr"] += line[2:] + "\n"
        elif line.strip():
            raise ParseError("unexpected line: %s" % line)
    return logins


def mesh_problems(proofs, members, hosts):
    """Return the problems of the mesh.

    C(proofs) has for each host in play what M(ssh_mesh_info) returned, C(hosts) is what P(mesh_members) made. Returns

    - C(findings): what is wrong, each with C(hosts), C(about) (V(container), V(login), V(way_back), V(session), V(memlock)) and C(problem);
    - C(problems): the words of C(findings);
    - C(absent): members that are not in play and don't answer, which --limit allows;
    - C(clocks): see P(clocks).
    """
    findings, absent = [], []
    expected = {host["name"]: host["host_key"] for host in hosts}
    in_play = {member["name"] for member in members if member["in_play"]}

    def find(about, problem, *those):
        findings.append({"hosts": list(dict.fromkeys(those)), "about": about, "problem": problem})

    for source, proof in proofs.items():
        if proof["cause"]:
            find(
                "container",
                "%s: its container does not answer (%s): %s"
                % (source, proof["cause"], proof["fix"]),
                source,
            )
        for login in proof["logins"]:
            target = login["name"]
            if login["cause"] in ABSENT and target not in in_play:
                absent.append(target)
            elif login["cause"]:
                evidence = login["evidence"]
                if login["cause"] == "host_key_changed":
                    evidence += ", %s is on record" % fingerprint(expected[target])
                find(
                    "login",
                    "%s cannot log in to %s (%s): %s. Fix: %s"
                    % (source, target, login["cause"], evidence, login["fix"]),
                    *_at_fault(source, target, login["cause"], proofs),
                )
            else:
                way_back = login["session"].get("way_back", "")
                if way_back not in ("", "open"):
                    find(
                        "way_back",
                        "the container of %s cannot connect to %s on another port than sshd's (%s), but ranks need that. Fix: allow in "
                        "the firewall all TCP between the hosts on the cluster network"
                        % (target, source, way_back),
                        source,
                        target,
                    )
                if target in proofs:
                    for about, problem in _differences(
                        source, target, login["session"], proofs[target]["container"]
                    ):
                        find(about, problem, source, target)
    return {
        "problems": [entry["problem"] for entry in findings],
        "findings": findings,
        "absent": sorted(set(absent)),
        "clocks": clocks(proofs),
    }


def _results(proofs):
    """Return {(host, target): whether the login worked}."""
    return {
        (host, login["name"]): not login["cause"]
        for host, proof in proofs.items()
        for login in proof["logins"]
    }


def _at_fault(source, target, cause, proofs):
    """Return the hosts to name for a failed login: the side that does not answer, or both ends if the logins do not show which it is.

    A login to oneself does not use the network. So a host that fails there is at fault, and so is one that all others fail to reach, or that reaches no other.
    A host outside the play has not tried any.
    """
    if source == target:
        return [source]
    if target not in proofs:
        return [source, target]
    results = _results(proofs)
    between = {ends: good for ends, good in results.items() if ends[0] != ends[1]}
    into = [good for (host, name), good in between.items() if name == target]
    out = [good for (host, name), good in between.items() if host == source]
    if results.get((target, target)) is False or cause in _OF_TARGET and not any(into):
        return [target]
    if results.get((source, source)) is False:
        return [source]
    # With two hosts the way back decides nothing, as it is the same link.
    if len(into) > 1 and not any(into) and any(out):
        return [target]
    if len(out) > 1 and not any(out) and any(into):
        return [source]
    return [source, target]


def _has(name, found, wanted):
    """Whether a session's variable matches the container's. A login may extend LD_LIBRARY_PATH: NGC's images add CUDA's compatibility folder."""
    entries = iter(found.split(":"))
    return found == wanted or (
        name == "LD_LIBRARY_PATH"
        and wanted != ""
        and all(entry in entries for entry in wanted.split(":"))
    )


def _differences(source, target, session, container):
    """Differences between a session and Docker's data of the container at the other end."""
    if session["container_id"] != container["id"]:
        return [
            (
                "session",
                "%s logs in to container %s under the name %s, but that host's container is %s: two hosts share an address, or a second "
                "sshd listens there"
                % (source, session["container_id"][:12] or "(none)", target, container["id"][:12]),
            )
        ]
    # The entrypoint writes the sessions' environment when the container starts.
    found = [
        (
            "session",
            "%s is %r, in the container %r. Fix: restart the container on %s when no job runs there; if the difference stays, check what "
            "the image's login files set"
            % (name, session["environment"].get(name, ""), value, target),
        )
        for name, value in container["environment"].items()
        if not _has(name, session["environment"].get(name, ""), value)
    ]
    if container["memlock"] is not None and session["memlock"] != container["memlock"]:
        found.append(
            (
                "memlock",
                "ulimit -l is %s, but the container has %s"
                % (session["memlock"], container["memlock"]),
            )
        )
    return [
        (about, "a session from %s on %s lacks what a job needs: %s" % (source, target, difference))
        for about, difference in found
    ]
