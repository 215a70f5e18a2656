# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the findings of verify and builds the report: data in, one report out.

Reads and writes no files and does not use the clock.
"""

from __future__ import annotations

import functools
import re

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from xml.etree import ElementTree

from ansible_collections.trainyard.gpu.plugins.module_utils._burn_in import tolerance
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import finding, render
from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import Meaning, explain

if TYPE_CHECKING:
    # Module typing has these from Python 3.11, and a controller may run Python 3.10.
    from typing_extensions import NotRequired

    from ansible_collections.trainyard.gpu.plugins.module_utils._finding import Finding

SCHEMA_VERSION = 1
NOT_MADE = ("skipped", "not_evaluated")
# From good to bad. Of several findings in one place the worst counts.
SEVERITY = ("pass", "skipped", "not_evaluated", "warn", "fail")
TAIL_LINES = 60
# Smaller differences of a bandwidth are ignored, because two runs of a healthy cluster differ as
# well.
NOTICEABLE = 0.05
PEAK = "peak bandwidth, "
# Longer lists are not readable in one sentence.
NAMED = 3
HOST_KEYS = (
    "name",
    "address",
    "interface",
    "fabric_address",
    "slots",
    "reachable",
    "gpus",
    "rdma_devices",
    "scheduler",
)
REMOVED = "[removed]"
#: Findings, hosts of the cluster, or published checks. The schema of the report says what they
#: have.
Entries = Sequence[Mapping[str, Any]]


class ReportError(ValueError):
    """The data is not a valid report, or a file has none.

    The message names the value, its place, and the allowed values.
    """


# --- nothing secret ---------------------------------------------------------------------------------------------------------

# 'pass' and 'pwd' only at the end of a longer name: alone they are a verdict and a folder.
_PASSWORD_NAME = (
    r"(?:\w*(?:password|passwd|passphrase|secret|(?<=\w_)(?:pass|pwd|pw))|authorization)"
)
_KEY_NAME = (
    r"\w*(?:token|credentials?|(?:api|access|private|secret|encryption|signing|master)[_-]?key)"
)
_SECRET_NAME = "(?:%s|%s|(?-i:SSHPASS))" % (_PASSWORD_NAME, _KEY_NAME)
# A name begins here and may end with a quote. The text after it was not removed before.
_BEGIN, _END = r"(?<![\w/])-{0,2}", r"(?:\\*['\"])?"
_NEW = r"(?!\[removed\]|(?:basic|bearer|token)\s)"
_QUOTED = r"(?:'(?:[^'\\]|''|\\.){0,1000}'|\"(?:[^\"\\]|\\.){0,1000}\")(?=[\s,;&:)\]}\\]|$)"
# A quote within it is part of it, unless the surrounding text is quoted.
_WORD = r"(?:[^\s'\"]|['\"](?![\s,;)\]}]|$))+"
_SECRETS = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        REMOVED,
    ),
    # user:password@ of a proxy or a mirror. A user alone may be a token.
    (
        re.compile(r"\b([a-z][a-z0-9+.-]{0,30}://)[^\s/@'\"]+@", re.IGNORECASE),
        r"\g<1>%s@" % REMOVED,
    ),
    (
        re.compile(
            r"\b(authorization\s*[:=]\s*['\"]?(?:basic|bearer|token)\s+)[^\s'\"]+", re.IGNORECASE
        ),
        r"\g<1>" + REMOVED,
    ),
    (re.compile(r"\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\g<1>" + REMOVED),
    # All cookies of a line.
    (
        re.compile(
            r"((?<![\w/])\w*cookie%s[ \t]*[:=][ \t]*)%s\S[^\r\n]*" % (_END, _NEW), re.IGNORECASE
        ),
        r"\g<1>" + REMOVED,
    ),
    # NAME=value of shells and connection strings: one word, or a quoted text.
    (
        re.compile(
            "(%s%s%s=)%s(?:%s|%s)" % (_BEGIN, _SECRET_NAME, _END, _NEW, _QUOTED, _WORD),
            re.IGNORECASE,
        ),
        r"\g<1>" + REMOVED,
    ),
    # 'password: ...' and 'password = ...' may contain spaces. An indented next line belongs to
    # YAML; one without indentation follows a prompt.
    (
        re.compile(
            (
                r"(%s%s%s[ \t]*(?:=|:(?!//))[ \t]*(?:(?:[|>][+-]?[ \t]*)?\r?\n[ "
                r"\t]+)?)%s(?![|>][+-]?[ \t]*\n)(?:%s|\S[^\r\n]*)"
            )
            % (_BEGIN, _PASSWORD_NAME, _END, _NEW, _QUOTED),
            re.IGNORECASE,
        ),
        r"\g<1>" + REMOVED,
    ),
    (
        re.compile(
            r"(%s%s%s\s*(?:=|:(?!//))\s*)%s(?:%s|%s)"
            % (_BEGIN, _KEY_NAME, _END, _NEW, _QUOTED, _WORD),
            re.IGNORECASE,
        ),
        r"\g<1>" + REMOVED,
    ),
    # --password value, as a command line and as a list of words.
    (
        re.compile(
            r"((?<![\w-])--(?:\w+-){0,4}%s(?:\s+|['\"],\s*))(?!-|\[removed\])(?:%s|\S+)"
            % (_SECRET_NAME, _QUOTED),
            re.IGNORECASE,
        ),
        r"\g<1>" + REMOVED,
    ),
    (
        re.compile(
            r"(\b(?:sshpass|(?:docker|podman|nerdctl|helm)['\",\s]{1,4}(?:registry\s)?login)\b[^\r\n]{0,300}?[\s'\",]-p[ "
            r"\t]*(?:['\"],\s*)?)"
            r"(?!\[removed\])(?:%s|[^\s'\"][^\s'\"]*)" % _QUOTED
        ),
        r"\g<1>" + REMOVED,
    ),
    # The word after the user's name.
    (
        re.compile(
            r"(\b(?:curl|wget)\b[^\r\n]{0,300}?[\s'\",](?:-[A-Za-z]{0,8}u|--(?:proxy-)?user)[ "
            r"\t=]*(?:['\"],\s*)?(?P<quote>['\"])?[^\s:'\"]{1,100}:)"
            r"(?!\[removed\])(?(quote)[^'\"\r\n]+|[^\s'\"]+)"
        ),
        r"\g<1>" + REMOVED,
    ),
    (re.compile(r"(\"auth\"\s*:\s*\")[^\"]+"), r"\g<1>" + REMOVED),
    # Tokens with a known form: of GitHub, GitLab, Hugging Face, NVIDIA, Weights & Biases, AWS,
    # Slack, OpenAI, and JSON Web Tokens.
    (
        re.compile(
            r"\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
            r"|xox[abprs]-[\w-]{10,}|sk-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
        ),
        REMOVED,
    ),
)


def redact(value: Any) -> Any:
    """The same data without passwords and tokens at any place, with text that can be written to
    files.
    """
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, dict):
        return {redact(str(key)): _redact_of(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner) for inner in value]
    return value


def _redact_of(key: str, value: Any) -> Any:
    """Return the value of a key, without all of it if the name of the key is that of a secret."""
    if isinstance(value, str) and value and re.fullmatch(_SECRET_NAME, key, re.IGNORECASE):
        return REMOVED
    return redact(value)


@functools.lru_cache(maxsize=4096)
def _redact_text(text: str) -> str:
    # Bytes that are not UTF-8 become surrogates, which cannot be written to a file.
    text = text.encode("utf-8", "replace").decode("utf-8")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


# --- the verdict ------------------------------------------------------------------------------------------------------------


def names_in(text: str, hosts: Entries) -> list[str]:
    """The hosts that a finding is about: one, several ('a, b'), or all of them if it names none."""
    names = [host["name"] for host in hosts]
    return [name for name in text.split(", ") if name in names] or names


def applies(check: Mapping[str, Any], host: Mapping[str, Any], hosts: Entries) -> bool:
    """Whether the check applies to this host."""
    kinds = {
        "": True,
        "gpus": bool(host.get("gpus")),
        # A host with one rank has nothing to exchange.
        "several_gpus": (host.get("gpus") or 0) > 1 and host.get("slots", 2) > 1,
        "rdma": bool(host.get("rdma_devices")),
        "peers": len(hosts) > 1,
        # Parts of the scheduler that the host has. The key is absent in a cluster without a
        # scheduler.
        "scheduled": "scheduler" in host,
        "node": "node" in host.get("scheduler", ()),
        "controller": "controller" in host.get("scheduler", ()),
        # It is not made on a healthy host.
        "trouble": False,
    }
    return kinds[check.get("applies_to", "")]


def required_ids(required: Sequence[str] | None, published: Entries) -> list[str]:
    """The ids in C(required), or if it is None those that the published list requires."""
    known = [check["id"] for check in published]
    if required is None:
        return [check["id"] for check in published if check["required"]]
    unknown = [name for name in required if name not in known]
    if unknown:
        raise ReportError(
            "required: '%s' is not a check of verify. Allowed: %s"
            % (", ".join(unknown), ", ".join(known))
        )
    return list(required)


def _missing(check: Mapping[str, Any], host: Mapping[str, Any]) -> Mapping[str, Any]:
    """The finding that a required check was not made on a host."""
    found, fix = "it was not made", "Run verify.yml for all hosts."
    if host.get("reachable") is False:
        found, fix = "the host did not answer", "Repair the host and run verify.yml again."
    return finding(
        check["id"],
        host["name"],
        "not_evaluated",
        expected=check["checked"],
        found=found,
        source="verify",
        fix=fix,
    )


def complete(
    findings: Entries, hosts: Entries, published: Entries, required: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The findings, and one for each required check that was not made where it applies, so that a
    missing check does not count as passed.
    """
    made = {(entry["id"], name) for entry in findings for name in names_in(entry["host"], hosts)}
    made_somewhere = {entry["id"] for entry in findings}
    missing = []
    for check in published:
        if check["id"] not in required:
            continue
        silent = [
            host
            for host in hosts
            if applies(check, host, hosts) and (check["id"], host["name"]) not in made
        ]
        if check["stage"] == "cluster" and check["id"] in made_somewhere:
            # One finding is enough, whatever hosts it names.
            continue
        if check["stage"] == "cluster" and silent:
            silent = [{"name": ", ".join(host["name"] for host in silent)}]
        missing += [_missing(check, host) for host in silent]
    return [*findings, *missing]


def not_made(
    findings: Entries, hosts: Entries, published: Entries, required: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The findings of required checks that were not made on a host that they apply to."""
    checks = {check["id"]: check for check in published}
    by_name = {host["name"]: host for host in hosts}
    return [
        entry
        for entry in findings
        if entry["verdict"] in NOT_MADE
        and entry["id"] in required
        and any(
            applies(checks[entry["id"]], by_name[name], hosts)
            for name in names_in(entry["host"], hosts)
        )
    ]


def judge(
    findings: Entries,
    hosts: Entries,
    published: Entries,
    required: Sequence[str],
    fail_on: str = "block",
) -> tuple[str, list[str]]:
    """The verdict over all findings (C(pass), C(warn) or C(fail)), and why it is not better."""
    reasons = []
    counts = {
        verdict: sum(entry["verdict"] == verdict for entry in findings) for verdict in SEVERITY
    }
    lacking = not_made(findings, hosts, published, required)
    warnings_fail = fail_on == "warn"
    nothing = not counts["pass"] + counts["warn"] + counts["fail"]
    if counts["fail"]:
        reasons.append("%s failed" % _number(counts["fail"], "check"))
    if lacking:
        reasons.append(_lacking_reason(list(dict.fromkeys(entry["id"] for entry in lacking))))
    if counts["warn"]:
        warnings = _number(counts["warn"], "warning")
        reasons.append(warnings + (", and verify_fail_on is warn" if warnings_fail else ""))
    if nothing:
        reasons.append("nothing was checked")
    if counts["fail"] or lacking or nothing or (counts["warn"] and warnings_fail):
        return "fail", reasons
    return ("warn" if counts["warn"] else "pass"), reasons


def _lacking_reason(ids: list[str]) -> str:
    """Which required checks were not made. Their names follow if they are few."""
    text = "%s that %s required %s not made" % (
        _number(len(ids), "check"),
        *(("is", "was") if len(ids) == 1 else ("are", "were")),
    )
    return text + (": %s" % ", ".join(ids) if len(ids) <= NAMED else "")


def _number(count: int, what: str) -> str:
    return "%d %s%s" % (count, what, "" if count == 1 else "s")


# --- the report -------------------------------------------------------------------------------------------------------------


class Explanation(Meaning):
    """What an error in a log or in a finding of a host means."""

    host: str


class Log(TypedDict):
    """The last lines of a log of a host."""

    host: str
    name: str
    tail: str


class Change(TypedDict):
    """What differs between two reports. Without C(host) it is of the cluster."""

    what: str
    host: str
    before: str
    now: str


class Bandwidth(TypedDict):
    """Results of module nccl_all_reduce. C(note) says why there are none."""

    collective: str | None
    note: str
    runs: list[dict[str, Any]]


class Report(TypedDict):
    """A report as its schema has it.

    C(generated) and C(compared_with) are times as text, C(seconds) is what the run took.
    """

    schema_version: int
    cluster: str
    generated: str
    verdict: str
    reasons: list[str]
    required: list[str]
    checks: list[Finding]
    hosts: list[dict[str, Any]]
    versions: dict[str, dict[str, Any]]
    bandwidth: Bandwidth
    burn_in: NotRequired[list[dict[str, Any]]]
    blame: list[dict[str, Any]]
    suspect: list[str]
    seconds: float
    explanations: list[Explanation]
    logs: list[Log]
    compared_with: str | None
    changes: list[Change]


class Run(NamedTuple):
    """What a run of role verify has found, and what it is judged by.

    C(generated) is a time as text, C(published) are the published checks, C(required) the ids of
    those that must be made.
    """

    cluster: str
    generated: str
    checks: Entries
    hosts: Entries
    published: Entries
    versions: dict[str, dict[str, Any]] | None = None
    bandwidth: dict[str, Any] | None = None
    burn_in: Entries = ()
    blame: Entries = ()
    suspect: Sequence[str] = ()
    logs: Entries = ()
    seconds: float = 0.0
    required: list[str] | None = None
    fail_on: str = "block"


def make(*fields: Any, before: Report | None = None, **more: Any) -> Report:
    """Return the report.

    C(fields) and C(more) are those of Run; C(before) is the report to compare with, or None.
    """
    run = Run(*fields, **more)
    hosts = [{key: host[key] for key in HOST_KEYS if key in host} for host in run.hosts]
    names = [host["name"] for host in hosts]
    strangers = [name for name in run.suspect if name not in names]
    if strangers:
        raise ReportError(
            "suspect: '%s' is not a host of the cluster. Allowed: %s"
            % (", ".join(strangers), ", ".join(names))
        )
    required = required_ids(run.required, run.published)
    checks = complete(redact(run.checks), hosts, run.published, required)
    verdict, reasons = judge(checks, hosts, run.published, required, run.fail_on)
    logs = [dict(log, tail=plain(log["tail"])) for log in redact(run.logs)]
    report: Report = redact(
        {
            "schema_version": SCHEMA_VERSION,
            "cluster": run.cluster,
            "generated": run.generated,
            "verdict": verdict,
            "reasons": reasons,
            "required": required,
            "checks": checks,
            "hosts": hosts,
            "versions": run.versions or {},
            "bandwidth": dict(
                {"collective": None, "note": "", "runs": []}, **(run.bandwidth or {})
            ),
            # A report without it is as before.
            **({"burn_in": list(run.burn_in)} if run.burn_in else {}),
            "blame": list(run.blame),
            "suspect": list(run.suspect),
            "seconds": round(float(run.seconds), 1),
            "explanations": explanations(checks, logs),
            "logs": [
                {
                    "host": log["host"],
                    "name": log["name"],
                    "tail": "\n".join(log["tail"].splitlines()[-TAIL_LINES:]),
                }
                for log in logs
            ],
        }
    )
    report["compared_with"] = before["generated"] if before else None
    report["changes"] = changes(before, report) if before else []
    return report


def plain(text: str) -> str:
    """A log without colours and other control characters.

    A line that was overwritten with carriage returns is kept as a whole.
    """
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)


def explanations(checks: Entries, logs: Entries) -> list[Explanation]:
    """Meaning of the errors in logs and in bad findings.

    Unknown lines are reported only for logs, because findings are shown anyway.
    """
    found: list[Explanation] = [
        {**meaning, "host": log["host"]} for log in logs for meaning in explain(log["tail"])
    ]
    found += [
        {**meaning, "host": entry["host"]}
        for entry in checks
        if entry["verdict"] in ("fail", "warn")
        for meaning in explain(entry["found"])
        if meaning["signature"]
    ]
    first: dict[tuple[str, str], Explanation] = {}
    for meaning in found:
        first.setdefault((meaning["signature"] or meaning["line"], meaning["host"]), meaning)
    return list(first.values())


class _Changes:
    """Collects what differs between two reports."""

    def __init__(self) -> None:
        self.found: list[Change] = []

    def note(self, what: str, host: str, old: str, new: str) -> None:
        """Add an entry if a value of a host differs: C(old) before, C(new) now."""
        if old != new:
            self.found.append({"what": what, "host": host, "before": old, "now": new})

    def verdicts(self, before: Report, now: Report) -> None:
        """Note other verdicts, by check and host."""
        old, new = _verdicts(before), _verdicts(now)
        for check_id, host in _keys_of_both(new, old):
            key = (check_id, host)
            self.note(check_id, host, old.get(key, "not there"), new.get(key, "not there"))

    def hosts(self, before: Report, now: Report) -> None:
        """Note other addresses, interfaces and numbers of devices, by host."""
        for key in ("address", "interface", "fabric_address", "slots", "gpus", "rdma_devices"):
            old, new = (
                {host["name"]: host.get(key) for host in report["hosts"]}
                for report in (before, now)
            )
            for name in new:
                self.note(key, name, _text(old.get(name)), _text(new[name]))

    def versions(self, before: Report, now: Report) -> None:
        """Note other versions, by host and component."""
        for name in _keys_of_both(now["versions"], before["versions"]):
            old, new = before["versions"].get(name, {}), now["versions"].get(name, {})
            for component in _keys_of_both(new, old):
                self.note(component, name, _text(old.get(component)), _text(new.get(component)))

    def bandwidths(self, before: Report, now: Report) -> None:
        """Note other bandwidths of the whole cluster and of single hosts.

        Bandwidths of different collectives are not comparable. Pairs and groups are measured only
        if the whole cluster is too slow.
        """
        if before["bandwidth"]["collective"] != now["bandwidth"]["collective"]:
            return
        former = {run["id"]: run["max_busbw_gb_s"] for run in before["bandwidth"]["runs"]}
        for run in now["bandwidth"]["runs"]:
            old, new = former.get(run["id"]), run["max_busbw_gb_s"]
            if between(run["id"]) or not old or not new or abs(new / old - 1) <= NOTICEABLE:
                continue
            name = "cluster" if run["id"] == "cluster" else " ".join(run["id"].split(":", 1))
            self.note(
                PEAK + name,
                ", ".join(run["hosts"]),
                "%.3g GB/s" % old,
                "%.3g GB/s (%+.0f %%)" % (new, 100 * (new / old - 1)),
            )

    def devices(self, before: Report, now: Report) -> None:
        """Note the devices of two burn-ins that differ.

        A device is the same as long as its serial number is.
        """
        old, new = (
            {device["serial"]: device for device in report.get("burn_in", [])}
            for report in (before, now)
        )
        if not old or not new:
            return
        for serial, device in new.items():
            name, former = _device_name(device), old.get(serial)
            verdict = former["verdict"] if former else "not there"
            self.note(name, device["host"], verdict, device["verdict"])
            if former:
                self._rates(name, former, device)
        hosts = {device["host"] for device in new.values()}
        for serial, device in old.items():
            if serial not in new and device["host"] in hosts:
                self.note(_device_name(device), device["host"], device["verdict"], "not there")

    def _rates(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Note the tests of a device whose rate differs by more than two runs of a healthy device
        do.
        """
        for test, rate in now["rates"].items():
            was = before["rates"].get(test)
            noticeable = max(NOTICEABLE, tolerance(now["kind"], test))
            if was and rate and abs(rate / was - 1) > noticeable:
                unit = "TFLOP/s" if test.startswith("matmul") else "GB/s"
                self.note(
                    "%s, %s" % (name, test),
                    now["host"],
                    "%.4g %s" % (was, unit),
                    "%.4g %s (%+.0f %%)" % (rate, unit, 100 * (rate / was - 1)),
                )


def _device_name(device: Mapping[str, Any]) -> str:
    return "burn-in of %s %d (%s)" % (device["kind"], device["index"], device["serial"])


def _keys_of_both(now: Iterable[Any], before: Iterable[Any]) -> list[Any]:
    """Return the keys of two dictionaries, those of C(now) first."""
    return list(dict.fromkeys([*now, *before]))


def _verdicts(report: Report) -> dict[tuple[str, str], str]:
    """Return the worst verdict of each check on each host."""
    entries = sorted(report["checks"], key=lambda entry: SEVERITY.index(entry["verdict"]))
    return {(entry["id"], entry["host"]): entry["verdict"] for entry in entries}


def changes(before: Report, now: Report) -> list[Change]:
    """Differences between two reports of one cluster: what, host, before and now, as text."""
    found = _Changes()
    found.note("verdict", "", before["verdict"], now["verdict"])
    found.verdicts(before, now)
    found.hosts(before, now)
    found.versions(before, now)
    found.bandwidths(before, now)
    found.devices(before, now)
    return found.found


def between(run_id: str) -> bool:
    """Whether a run is part of the search for suspects."""
    return run_id.startswith(("pair:", "group:"))


def _text(value: Any) -> str:
    return "not there" if value in (None, "") else str(value)


# --- as text, JUnit and inventory ----------------------------------------------------------------------------------------------


def summary(report: Report, published: Entries) -> str:
    """The report for a terminal: the verdict, suspects, problems and fixes."""
    lines = [
        "Verdict: %s.%s"
        % (report["verdict"], " %s." % "; ".join(report["reasons"]) if report["reasons"] else "")
    ]
    for entry in report["blame"]:
        lines.append(
            "At fault: %s %s: %s" % (entry["kind"], ", ".join(entry["names"]), entry["evidence"])
        )
    if report["suspect"]:
        lines.append("Suspect: %s" % ", ".join(report["suspect"]))
    lines.append(render(report["checks"], (("fail", "FAIL"), ("warn", "WARN"))))
    # A host that is down has made no checks. Report it in one line instead of one per check.
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for lacking in not_made(report["checks"], report["hosts"], published, report["required"]):
        reason = (lacking["host"], lacking["found"], lacking["fix"])
        reasons.setdefault(reason, []).append(lacking["id"])
    lines += [
        "NOT MADE, but required: %s: %s\n  found: %s%s"
        % (host, ", ".join(dict.fromkeys(ids)), found, fix and "\n  fix: " + fix)
        for (host, found, fix), ids in reasons.items()
    ]
    for meaning in merged(report["explanations"]):
        if meaning["signature"]:
            lines.append(
                "MEANS: %s: '%s'\n  cause: %s\n  fix: %s"
                % (", ".join(meaning["hosts"]), meaning["line"], meaning["cause"], meaning["fix"])
            )
    return "\n".join(line for line in lines if line)


def merged(meanings: Iterable[Explanation]) -> list[dict[str, Any]]:
    """Explanations, with those of several hosts merged. C(hosts) has the names of all."""
    found: dict[str, dict[str, Any]] = {}
    for meaning in meanings:
        entry = found.setdefault(meaning["signature"] or meaning["line"], dict(meaning, hosts=[]))
        if meaning["host"] not in entry["hosts"]:
            entry["hosts"].append(meaning["host"])
    return list(found.values())


def _case_kind(entry: Mapping[str, Any], lacking: Entries, warnings_fail: bool) -> str:
    """Return what a finding is in JUnit: failure, error, skipped, system-out (a warning), or empty
    if it passed.
    """
    verdict = entry["verdict"]
    if verdict == "fail" or verdict == "warn" and warnings_fail:
        return "failure"
    if entry in lacking:
        return "error"
    if verdict in NOT_MADE:
        return "skipped"
    return "system-out" if verdict == "warn" else ""


def _add_case(
    suite: ElementTree.Element, entry: Mapping[str, Any], kind: str, titles: Mapping[str, str]
) -> None:
    """Add the case of a finding to a suite."""
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_xml(entry["host"]),
        name=_xml(entry["id"]),
        time="%.1f" % entry["seconds"],
    )
    labels = ("expected", "found", "source", "fix")
    text = _xml("\n".join("%s: %s" % (label, entry[label]) for label in labels if entry[label]))
    if kind == "system-out":
        ElementTree.SubElement(case, kind).text = "warning\n" + text
    elif kind:
        message = _xml(entry["found"] or titles.get(entry["id"], entry["id"]))
        node = ElementTree.SubElement(case, kind, message=message)
        if kind != "skipped":
            node.set("type", entry["verdict"])
            node.text = text


def junit(report: Report, published: Entries) -> str:
    """The report as JUnit XML: a suite per host or group of hosts, a case per finding.

    Findings that fail the verdict are failures or errors.
    """
    titles = {check["id"]: check["title"] for check in published}
    lacking = not_made(report["checks"], report["hosts"], published, report["required"])
    warnings_fail = report["verdict"] == "fail" and any(
        "verify_fail_on is warn" in reason for reason in report["reasons"]
    )
    root = ElementTree.Element("testsuites", name="trainyard.gpu.verify " + _xml(report["cluster"]))
    suites: dict[str, list[Finding]] = {}
    for entry in report["checks"]:
        suites.setdefault(entry["host"], []).append(entry)
    for host, entries in suites.items():
        suite = ElementTree.SubElement(
            root, "testsuite", name=_xml(host), timestamp=report["generated"].rstrip("Z")
        )
        kinds = [_case_kind(entry, lacking, warnings_fail) for entry in entries]
        for entry, kind in zip(entries, kinds):
            _add_case(suite, entry, kind, titles)
        suite.attrib.update(
            failures=str(kinds.count("failure")),
            errors=str(kinds.count("error")),
            skipped=str(kinds.count("skipped")),
            tests=str(len(entries)),
            time="%.1f" % sum(entry["seconds"] for entry in entries),
        )
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", "%.1f" % report["seconds"])
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n%s\n' % ElementTree.tostring(
        root, encoding="unicode"
    )


def _xml(text: str) -> str:
    """XML cannot represent these characters."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def suspect_inventory(report: Report, former: Sequence[str] = ()) -> str:
    """Group suspect, as a second inventory for -i.

    It is empty if there are no suspects, so that a command line can always name it.

    A former suspect stays until a run that measures it finds it in order: one that leaves it out,
    or measures nothing, says nothing of it.
    """
    measured = [host for run in report["bandwidth"]["runs"] for host in run["hosts"]]
    names = list(
        dict.fromkeys(list(report["suspect"]) + [name for name in former if name not in measured])
    )
    hosts = "".join("\n    '%s':" % name.replace("'", "''") for name in names) or " {}"
    return (
        "---\n# Written by trainyard.gpu.verify, %s. Leave these hosts out of a run, with this "
        "file after your own inventory:\n"
        "#   ansible-playbook ... -i INVENTORY -i THIS_FILE --limit 'cluster:!suspect'\n"
        "suspect:\n  hosts:%s\n" % (report["generated"], hosts)
    )
