# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a role's argument_specs cannot say about its variables: ranges, patterns, and rules across variables and hosts.

A role writes them as data in C(meta/input_rules.yml). All are judged for all hosts before anything is changed::

    ---
    input_rules:
      - variable: cluster_ssh_port
        range: [1, 65535]
      - variable: cluster_share_path
        path: absolute
      - variable: nfs_client_mounts[].path       # each entry of a list; [] may stand anywhere: users[].groups[]
        unique: true
      - variable: training_image_nccl_version
        pattern: '\\d+\\.\\d+\\.\\d+-1\\+cuda\\d+\\.\\d+'
        empty: true
        allowed: an exact pair such as 2.28.9-1+cuda13.0
        fix: ask apt-cache madison libnccl2 on a host for the versions that exist
      - variable: training_image_archive
        that: training_image_archive == '' or training_image_base == ''
        allowed: empty where training_image_base is set
        fix: set one of the two

Keys of a rule. C(variable) and exactly one kind are required:

- C(range: [low, high])   a number within these, both included; null leaves a side open
- C(pattern: regex)       the whole value matches
- C(path: absolute)       begins with / and is neither / itself nor contains ..
- C(network: true)        CIDR without host bits, IPv4
- C(address: true)        IPv4 address
- C(command: true)        words of a command line, each quote closed
- C(unique: true)         no value twice on one host (of a list);  C(unique: hosts): on no two hosts
- C(same: true)           one value for all hosts
- C(that: expression)     Jinja without braces, true is good; C(item) is the value named by C(variable)
- C(empty: true)          an empty value (text, list, dictionary, none) passes this rule, whatever its kind
- C(when: expression)     Jinja; where it is false the rule is not judged on that host
- C(severity: warn)       default is block
- C(allowed), C(fix)      what is said; required for C(pattern) and C(that), otherwise made from the rule

In expressions stand the role variables of all roles, with their defaults, and what the inventory says about the host;
nothing that is only known on the host.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import shlex

from ansible_collections.trainyard.gpu.plugins.module_utils._findings import finding

__all__ = ["KINDS", "RuleError", "check_inventory", "describe", "judge_rules", "parse_rules", "select", "show", "unknown_variables"]

KINDS = ("range", "pattern", "path", "network", "address", "command", "unique", "same", "that")
_OTHER_KEYS = ("variable", "empty", "when", "severity", "allowed", "fix")
_NEED_WORDS = ("pattern", "that")
_MAX_SHOWN = 160


class RuleError(ValueError):
    """A rule that cannot be judged; the message names the role, the variable and what is wrong."""


def show(value):
    """Return a value as one short line."""
    text = value if isinstance(value, str) and value else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def describe(spec):
    """Return in words what an option of argument_specs takes."""
    if "choices" in spec:
        return "one of %s" % ", ".join(str(choice) for choice in spec["choices"])
    kind = spec.get("type", "str")
    words = {
        "str": "text",
        "int": "an integer",
        "float": "a number",
        "bool": "true or false",
        "path": "a path",
        "raw": "any value",
        "dict": "a dictionary",
        "list": "a list",
    }.get(kind, kind)
    if kind == "list" and "elements" in spec:
        words += " of %s" % {"str": "texts", "int": "integers", "dict": "dictionaries", "path": "paths"}.get(spec["elements"], spec["elements"])
    if "options" in spec:
        words += " with the keys %s" % ", ".join(sorted(spec["options"]))
    return words


def parse_rules(data, role, options):
    """Return the rules of a role, checked: a rule that is misspelt must not pass for one that is kept.

    C(options) are the names in the role's argument_specs.
    """
    if not isinstance(data, dict) or set(data) != {"input_rules"} or not isinstance(data["input_rules"], list):
        raise RuleError("%s: input_rules.yml must hold one list named input_rules" % role)
    rules = []
    for row in data["input_rules"]:
        if not isinstance(row, dict) or not isinstance(row.get("variable"), str):
            raise RuleError("%s: a rule without variable: %r" % (role, row))
        name = row["variable"]
        kinds = [key for key in row if key in KINDS]
        unknown = sorted(set(row) - set(KINDS) - set(_OTHER_KEYS))
        if unknown:
            raise RuleError("%s: rule of %s: unknown key %s" % (role, name, ", ".join(unknown)))
        if len(kinds) != 1:
            raise RuleError("%s: rule of %s: give exactly one of %s" % (role, name, ", ".join(KINDS)))
        if re.split(r"[.\[]", name)[0] not in options:
            raise RuleError("%s: rule of %s: the role has no such variable" % (role, name))
        if row.get("severity", "block") not in ("block", "warn"):
            raise RuleError("%s: rule of %s: severity is block or warn" % (role, name))
        kind = kinds[0]
        if kind in _NEED_WORDS and not (row.get("allowed") and row.get("fix")):
            raise RuleError("%s: rule of %s: %s needs allowed and fix" % (role, name, kind))
        rules.append(dict(row, kind=kind))
    return rules


def select(value, path):
    """Return (label, value) of everything that the rest of a variable path names: '' itself, C([].path) each entry's path."""
    found = [("", value)]
    for step in re.findall(r"\[\]|\.[^.\[]+", path):
        following = []
        for label, entry in found:
            if step == "[]":
                following += [("%s[%d]" % (label, index), inner) for index, inner in enumerate(entry if isinstance(entry, list) else [])]
            elif isinstance(entry, dict) and entry.get(step[1:]) is not None:
                following.append((label + step, entry[step[1:]]))
        found = following
    return found


def _in_range(value, limits):
    low, high = limits
    return not isinstance(value, bool) and isinstance(value, (int, float)) and (low is None or value >= low) and (high is None or value <= high)


def _is_network(value):
    try:
        return "/" in str(value) and bool(ipaddress.IPv4Network(str(value)))
    except ValueError:
        return False


def _is_address(value):
    try:
        return bool(ipaddress.IPv4Address(str(value)))
    except ValueError:
        return False


def _is_command(value):
    try:
        return shlex.split(str(value)) != []
    except ValueError:
        return False


_GOOD = {
    "range": _in_range,
    "pattern": lambda value, regex: re.fullmatch(regex, str(value)) is not None,
    "path": lambda value, dummy: str(value).startswith("/") and str(value).strip("/") != "" and ".." not in str(value).split("/"),
    "network": lambda value, dummy: _is_network(value),
    "address": lambda value, dummy: _is_address(value),
    "command": lambda value, dummy: _is_command(value),
}


def _allowed(rule):
    if rule.get("allowed"):
        return rule["allowed"]
    if rule["kind"] == "range":
        low, high = rule["range"]
        if low is None:
            return "a number, %s at most" % high
        return "a number from %s to %s" % (low, high) if high is not None else "a number, %s at least" % low
    return {
        "path": "an absolute path below /, without ..",
        "network": "an IPv4 network such as 10.0.0.0/24, without host bits",
        "address": "an IPv4 address",
        "command": "a command line, each quote closed, such as: python3 /data1/share/train.py",
        "unique": "every value once",
        "same": "the same value for all hosts",
    }[rule["kind"]]


def _finding(rule, host, label, value, hidden=()):
    base = re.split(r"[.\[]", rule["variable"])[0]
    return finding(
        "input-rule" if rule["kind"] == "that" else "input-" + rule["kind"],
        host,
        "warn" if rule.get("severity") == "warn" else "fail",
        expected=_allowed(rule),
        found="(not shown)" if base in hidden else show(value),
        source=base + label,
        fix=rule.get("fix") or "set %s to %s" % (base + label, _allowed(rule)),
    )


def judge_rules(rules, values, evaluate, hidden=()):
    """Return the findings of rules.

    C(values) is {host: {variable: value}}; a variable that is missing was found wrong before and is not judged again.
    C(evaluate(host, expression, item)) gives the truth of a Jinja expression. Values of C(hidden) variables are not shown.
    """
    findings = []
    for rule in rules:
        base, path = re.match(r"([^.\[]+)(.*)", rule["variable"]).groups()
        seen = {}
        for host in values:
            if base not in values[host] or ("when" in rule and not evaluate(host, rule["when"], None)):
                continue
            on_host = set()
            for label, value in select(values[host][base], path):
                if rule.get("empty") and not value and value is not False and value != 0:
                    continue
                kind = rule["kind"]
                if kind in _GOOD:
                    good = _GOOD[kind](value, rule[kind])
                elif kind == "that":
                    good = evaluate(host, rule["that"], value)
                elif kind == "same":
                    seen.setdefault(repr(value), (host, label, value))
                    good = True
                else:
                    good = repr(value) not in on_host and (rule["unique"] != "hosts" or repr(value) not in seen)
                    on_host.add(repr(value))
                    seen[repr(value)] = (host, label, value)
                if not good:
                    findings.append(_finding(rule, host, label, value, hidden))
        if rule["kind"] == "same" and len(seen) > 1:
            findings += [_finding(rule, host, label, value, hidden) for host, label, value in seen.values()]
    return findings


def unknown_variables(names, known, roles):
    """Return {name: likely meant name or ''} of variables that carry a role's prefix but that no role knows."""
    prefixes = tuple(role + "_" for role in roles)
    unknown = {}
    for name in sorted(names):
        if name.startswith(prefixes) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            unknown[name] = close[0] if close else ""
    return unknown


def _same_address(hosts):
    """Return {address: [hosts]} of the addresses that several hosts share; hosts is [(name, address, port)]."""
    shared = {}
    for name, address, port in hosts:
        try:
            text = str(ipaddress.ip_address(address))
        except ValueError:
            text = str(address).lower().rstrip(".")
        shared.setdefault((text, port), []).append(name)
    return {text: names for (text, dummy), names in shared.items() if len(names) > 1}


def check_inventory(groups, connections):
    """Return the findings about the inventory's shape.

    C(groups) is {group: [hosts]}. C(connections) is {host: {address, port, connection, cluster_address, missing_lab_key}} of the hosts of group cluster;
    the last is the path of a key that only lab/lab.py makes and has not made, else empty.
    """
    where = "inventory"
    if "cluster" not in groups:
        others = ", ".join(sorted(set(groups) - {"all", "ungrouped"})) or "none"
        return [finding("inventory-no-cluster", "localhost", "fail", "a group named cluster", "groups: %s" % others, where,
                        "put every server into a group named cluster; its order is the order of the ranks")]
    cluster = groups["cluster"]
    if not cluster:
        return [finding("inventory-empty-cluster", "localhost", "fail", "at least one host in group cluster", "group cluster has no host", where,
                        "put every server into group cluster; its order is the order of the ranks")]
    findings = []
    for group in ("head", "storage", "gpu"):
        for host in groups.get(group, []):
            if host not in cluster:
                findings.append(finding("inventory-outside-cluster", host, "fail", "every host of group %s is in group cluster" % group,
                                        "%s is only in group %s" % (host, group), where, "add %s to group cluster, or take it out of group %s" % (host, group)))
    for group in ("head", "storage"):
        if len(groups.get(group, [])) > 1:
            findings.append(finding("inventory-one-host", ", ".join(groups[group]), "fail", "at most one host in group %s" % group,
                                    "%d hosts: %s" % (len(groups[group]), ", ".join(groups[group])), where, "leave one host in group %s" % group))
    every_host = dict.fromkeys(host for hosts in groups.values() for host in hosts)
    for host in every_host:
        if host in groups:
            findings.append(finding("inventory-host-like-group", host, "fail", "a host's name is no group's name", "%s is a host and a group" % host, where,
                                    "rename the host %s or the group: Ansible takes one for the other in patterns and variables" % host))
    # Behind one forwarding address hosts differ in their port; local and container connections have no address of their own.
    by_ssh = [(host, entry["address"], str(entry["port"])) for host, entry in connections.items()
              if entry["connection"].rpartition(".")[2] in ("ssh", "smart", "paramiko", "paramiko_ssh")]
    given = [(host, entry["cluster_address"], "") for host, entry in connections.items() if entry["cluster_address"]]
    keys = sorted({entry["missing_lab_key"] for entry in connections.values() if entry.get("missing_lab_key")})
    for key in keys:
        names = ", ".join(host for host, entry in connections.items() if entry.get("missing_lab_key") == key)
        findings.append(finding("inventory-no-lab", names, "fail", "the key that the lab's hosts are reached with", "%s does not exist" % show(key),
                                "ansible_ssh_private_key_file", "run make lab, which makes the hosts of this inventory and their key (inventories/lab_virtual: "
                                "make lab-vm)"))
    for variable, hosts in (("ansible_host", by_ssh), ("cluster_address", given)):
        for address, names in _same_address(hosts).items():
            listed = ", ".join(names)
            findings.append(finding("inventory-same-address", listed, "fail", "every host has its own address", "%s is the address of %s" % (address, listed),
                                    variable, "give each of %s its own %s, or remove the host that is listed twice" % (listed, variable)))
    return findings
