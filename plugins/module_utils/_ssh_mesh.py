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

from typing import Any, Dict, Iterable, Mapping, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._messages import printable
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "clock_ahead",
    "fingerprint",
    "judge_login",
    "mesh_members",
    "mesh_problems",
    "parse_logins",
    "one_line",
    "parse_record",
    "seconds",
    "without_comment",
]

KINDS = {
    "host_key": "host key of the container's sshd",
    "public_key": "key that the container logs in with",
}


#: A member of the cluster with its keys, as in cluster.json. What M(ssh_mesh_keys) and
#: M(ssh_mesh_info) return of a host.
Host = Dict[str, Any]
Answer = Mapping[str, Any]


class ChangedKey(TypedDict):
    """A key that differs from the one on record. C(found) and C(recorded) are fingerprints."""

    name: str
    kind: str
    found: str
    recorded: str
    recorded_on: str
    problem: str


class Members(TypedDict):
    """What P(mesh_members) returns."""

    hosts: list[Host]
    kept: list[str]
    unknown: list[str]
    changed: list[ChangedKey]
    behind: list[str]


class Login(TypedDict):
    """The output of a login.

    Times are in seconds since 1970, None if the container's date did not tell them.
    """

    rc: int
    stdout: str
    stderr: str
    began: float | None
    ended: float | None


class MeshFinding(TypedDict):
    """What is wrong between hosts. C(about) is container, login, way_back, session or memlock."""

    hosts: list[str]
    about: str
    problem: str


class MeshProblems(TypedDict):
    """What P(mesh_problems) returns."""

    problems: list[str]
    findings: list[MeshFinding]
    absent: list[str]
    clocks: dict[str, dict[str, float]]


def without_comment(public_key: str) -> str:
    """Return type and key of a public key, which identify it."""
    words = public_key.split()
    if len(words) < 2:
        raise ParseError("not a public key: %r" % public_key)
    return " ".join(words[:2])


def fingerprint(public_key: str) -> str:
    """Return the fingerprint of a public key as ssh-keygen -l prints it."""
    try:
        blob = base64.b64decode(without_comment(public_key).split()[1], validate=True)
    except binascii.Error as error:
        raise ParseError("not a public key: %r" % public_key) from error
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_record(text: str) -> dict[str, Any]:
    """Return the content of cluster.json; {} if the file is empty."""
    if not text.strip():
        return {}
    try:
        record: dict[str, Any] = json.loads(text)
        # Every later step needs these.
        {entry["name"]: (entry["host_key"], entry["public_key"]) for entry in record["hosts"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError("not a record of the cluster: %r" % error) from error
    return record


def _recorded(answer: Answer, name: str) -> Host:
    """Return what the record of a host has of another one, nothing if it does not know it."""
    recorded: list[Host] = (answer.get("recorded") or {}).get("hosts", [])
    for entry in recorded:
        if entry["name"] == name:
            return entry
    return {}


def changed_key(name: str, kind: str, found: str, recorded: str, holder: str) -> ChangedKey:
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


def _known_keys(
    name: str, answer: Answer, records: Iterable[tuple[str, Host]]
) -> tuple[dict[str, str | None], list[ChangedKey]]:
    """Return ({kind: key or None} of a member, its keys that are not those on record although
    nobody asked to rotate them).

    C(records) are (holder, entry) of the hosts that know it, its own first.
    """
    known: dict[str, str | None] = {}
    changed: list[ChangedKey] = []
    for kind in KINDS:
        on_record = [(holder, entry[kind]) for holder, entry in records if entry.get(kind)]
        holder, recorded = on_record[0] if on_record else ("", None)
        key = known[kind] = answer.get(kind) or recorded
        if recorded and key and key != recorded and not answer.get("rotated"):
            prints = fingerprint(key), fingerprint(recorded)
            changed.append(changed_key(name, kind, *prints, holder))
    return known, changed


def mesh_members(members: Sequence[Host], answers: Mapping[str, Answer]) -> Members:
    """Merge the members' keys.

    C(members) is the cluster in rank order, C(answers) has for each host that was asked what
    M(ssh_mesh_keys) returned. Returns

    - C(hosts): every member with C(host_key) and C(public_key), None where no host knows them;
    - C(kept): members that weren't asked and keep the keys that are on record; C(unknown): members without any;
    - C(changed): keys that aren't those on record although nobody asked to rotate them, with C(problem), which says so;
    - C(behind): hosts that are set up, have answered, don't run in this play, and whose record lacks something that C(hosts) has.

    What a host has on its own record counts; where it has none (it is new, or was replaced), what
    the others have.
    """
    hosts: list[Host] = []
    kept: list[str] = []
    unknown: list[str] = []
    changed: list[ChangedKey] = []
    for member in members:
        name = member["name"]
        answer = answers.get(name, {})
        records = [(name, _recorded(answer, name))] + [
            (other, _recorded(each, name)) for other, each in answers.items() if other != name
        ]
        known, changed_keys = _known_keys(name, answer, records)
        changed += changed_keys
        if not known["host_key"]:
            unknown.append(name)
        elif not answer.get("host_key"):
            kept.append(name)
        # The interface of an absent host is unknown, and so are its slots if the inventory does not
        # set them.
        earlier: Host = next((entry for dummy, entry in records if entry), {})
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

    def essence(entries: Iterable[Host]) -> list[tuple[str, str, str | None, str | None]]:
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
    "host_key_changed": "find out why the key of {name} differs from the one on record. If it was "
    "replaced "
    "on "
    "purpose, run "
    "training_environment.yml -e training_sshd_rotate_keys=true --limit {name}",
    "host_key_unknown": "run site.yml without --limit, which distributes the keys of {name}",
    "login_refused": "run training_environment.yml for all hosts, which writes authorized_keys on "
    "each; "
    "if "
    "the "
    "login fails again, read sshd's output in "
    "`docker logs` of the container on {name}",
    "name_unresolved": "run site.yml: /etc/trainyard/ssh/ssh_config lacks {name}",
    "connection_refused": "no sshd listens on {name}: run training_environment.yml, which starts "
    "container "
    "and "
    "sshd; "
    "if it stops again, read "
    "`docker logs` of the container there",
    "timeout": (
        "check for a firewall between the hosts on the cluster network, and whether {name} is up"
    ),
    "no_banner": "{name} accepts connections but its sshd does not answer, so no firewall blocks "
    "them: "
    "the "
    "container's sshd is stopped or "
    "hangs, the container is paused, or the host is overloaded. Run training_environment.yml, "
    "which restarts its sshd",
    "unreachable": "check the interface on the cluster network of both hosts",
    "connection_closed": "read `docker logs` of the container on {name}: sshd closed the connection "
    "before "
    "the "
    "login. It cannot start a process for it if the "
    "container's limit of processes is reached (docker inspect, PidsLimit)",
    "ssh_missing": (
        "the image lacks ssh or the collection's wrapper, or they were removed from the container: "
        "run training_environment.yml"
    ),
    "path_mtu": "packets of full size are lost on the way to {name}, as small ones arrive: run "
    "`ping "
    "-M do "
    "-s 1472 {name}` on both hosts (8972 with jumbo "
    "frames). Give all interfaces and switch ports of the cluster network the same MTU, and "
    "allow ICMP 'fragmentation needed' in firewalls between them",
    "session_hangs": "sshd of {name} accepts the login, but the shell does not run the command in "
    "time: "
    "check "
    "the login files of root in its container "
    "(.bashrc, .profile), its limit of processes (docker inspect, PidsLimit), and the load of "
    "{name}",
    "session_ends": "sshd of {name} accepts the login, but the shell of root ends before it has "
    "run "
    "the "
    "command: correct the login files in its container "
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


def one_line(text: str) -> str:
    """A text of a session, whose users may let it print anything, as one line of bounded length
    without control characters.
    """
    return printable(text[:_LONGEST], instead=" ").strip()


def judge_login(name: str, rc: int, stderr: str) -> tuple[str, str, str]:
    """Return (cause, fix, evidence) of a login that ended with rc; empty for one that worked."""
    if rc == 0:
        return "", "", ""
    stages = [stage for stage, pattern in _STAGES if re.search(pattern, stderr)]
    messages = _messages_of(stderr)
    cause = _cause_of("\n".join(messages))
    evidence = messages[-1] if messages else "exit code %d" % rc
    if "authenticated" in stages and rc < _OF_SSH and rc not in _ENDED_BY_LIMIT:
        # The messages are of programs of the session.
        cause = "session_ends"
        evidence += " (exit code %d)" % rc if messages else ""
    elif rc in _ENDED_BY_LIMIT or cause in ("unknown", "timeout"):
        cause, evidence = _hung(cause, evidence, stages, rc)
    if cause == "host_key_changed":
        presented = re.search(r"SHA256:[A-Za-z0-9+/]+", stderr)
        evidence = "it answers with %s" % presented.group(0) if presented else evidence
    return cause, _FIXES[cause].format(name=name), evidence


def _messages_of(stderr: str) -> list[str]:
    """Return the lines that ssh would also print without -v."""
    lines = [one_line(line) for line in stderr.splitlines()]
    return [line for line in lines if line and not re.match(_VERBOSE, line)]


def _cause_of(messages: str) -> str:
    """Return the first cause that messages of ssh show."""
    for cause, pattern in _CAUSES:
        if re.search(pattern, messages):
            return cause
    return "unknown"


def _hung(cause: str, evidence: str, stages: Sequence[str], rc: int) -> tuple[str, str]:
    """Return (cause, evidence) of a login that ended without a reason, by the last stage that it
    has reached.
    """
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


def seconds(text: str) -> float | None:
    """Return a time printed by C(date +%s.%N); null for other text (not every date supports %N)."""
    return float(text) if re.match(r"[0-9]+(\.[0-9]+)?$", text) else None


def clock_ahead(login: Login, clock: float | None) -> list[float] | None:
    """Return bounds in seconds of how far a clock, read during the login, is ahead of this host's;
    null if one of them is unknown.
    """
    began, ended = login["began"], login["ended"]
    if clock is None or began is None or ended is None:
        return None
    return [round(clock - ended, 3), round(clock - began, 3)]


def clocks(proofs: Mapping[str, Answer]) -> dict[str, dict[str, float]]:
    """Return, for each host, how far its clock is ahead of the median of all, and the uncertainty.

    Uses the simultaneous logins of one host. With two median clocks, the one nearer to that host's
    clock counts.
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


def parse_logins(text: str, token: str) -> list[Login]:
    """Parse the output of the script in the container: rc, stdout and stderr of each peer, and the
    times when the login C(began) and C(ended).

    Each peer's part is C(<token> <rc> <began> <ended>), then its lines, each with C(o ) or C(e )
    before it. A clock that wasn't told is null.
    """
    logins: list[Login] = []
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
        elif logins and line.startswith("o "):
            logins[-1]["stdout"] += line[2:] + "\n"
        elif logins and line.startswith("e "):
            logins[-1]["stderr"] += line[2:] + "\n"
        elif line.strip():
            raise ParseError("unexpected line: %s" % line)
    return logins


def mesh_problems(
    proofs: Mapping[str, Answer], members: Iterable[Host], hosts: Iterable[Host]
) -> MeshProblems:
    """Return the problems of the mesh.

    C(proofs) has for each host in play what M(ssh_mesh_info) returned, C(hosts) is what
    P(mesh_members) made. Returns

    - C(findings): what is wrong, each with C(hosts), C(about) (V(container), V(login), V(way_back), V(session), V(memlock)) and C(problem);
    - C(problems): the words of C(findings);
    - C(absent): members that are not in play and don't answer, which --limit allows;
    - C(clocks): see P(clocks).
    """
    findings: list[MeshFinding] = []
    absent: list[str] = []
    expected = {host["name"]: host["host_key"] for host in hosts}
    in_play = {member["name"] for member in members if member["in_play"]}

    def find(about: str, problem: str, *names: str) -> None:
        findings.append({"hosts": list(dict.fromkeys(names)), "about": about, "problem": problem})

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
                        "the container of %s cannot connect to %s on another port than sshd's "
                        "(%s), but ranks need that. Fix: allow in "
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


def _results(proofs: Mapping[str, Answer]) -> dict[tuple[str, str], bool]:
    """Return {(host, target): whether the login worked}."""
    return {
        (host, login["name"]): not login["cause"]
        for host, proof in proofs.items()
        for login in proof["logins"]
    }


def _at_fault(source: str, target: str, cause: str, proofs: Mapping[str, Answer]) -> list[str]:
    """Return the hosts to name for a failed login: the side that does not answer, or both ends if
    the logins do not show which it is.

    A login to oneself does not use the network. So a host that fails there is at fault, and so is
    one that all others fail to reach, or that reaches no other. A host outside the play has not
    tried any.
    """
    if source == target:
        return [source]
    if target not in proofs:
        return [source, target]
    results = _results(proofs)
    into = _with_others(results, 1, target)
    out = _with_others(results, 0, source)
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


def _with_others(results: Mapping[tuple[str, str], bool], end: int, name: str) -> list[bool]:
    """Return whether each login between a host and another one worked: those from the host (C(end)
    0) or to it (1).
    """
    return [good for ends, good in results.items() if ends[0] != ends[1] and ends[end] == name]


def _has(name: str, found: str, expected: str) -> bool:
    """Whether a session's variable matches the container's.

    A login may extend LD_LIBRARY_PATH: NGC's images add CUDA's compatibility folder.
    """
    entries = iter(found.split(":"))
    return found == expected or (
        name == "LD_LIBRARY_PATH"
        and expected != ""
        and all(entry in entries for entry in expected.split(":"))
    )


def _differences(
    source: str, target: str, session: Answer, container: Answer
) -> list[tuple[str, str]]:
    """Differences between a session and Docker's data of the container at the other end."""
    if session["container_id"] != container["id"]:
        return [
            (
                "session",
                "%s logs in to container %s under the name %s, but that host's container is "
                "%s: two hosts share an address, or a second "
                "sshd listens there"
                % (source, session["container_id"][:12] or "(none)", target, container["id"][:12]),
            )
        ]
    # The entrypoint writes the sessions' environment when the container starts.
    found = [
        (
            "session",
            "%s is %r, in the container %r. Fix: restart the container on %s when no job runs "
            "there; if the difference stays, check what "
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
