# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules for variables that argument_specs cannot express: ranges, patterns, and rules across
variables and hosts.

A role writes them as data in C(meta/input_rules.yml). All are judged for all hosts before anything
is changed::

    ---
    input_rules:
      - variable: [cluster_ssh_port, train_master_port]
        range: [1, 65535]
      - variable: cluster_share_path
        path: absolute
      - variable: nfs_client_mounts[].path       # each entry of a list; [] may stand anywhere: users[].groups[]; .* is each value of a dictionary
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

Keys of a rule. C(variable), a name or a list of names, and exactly one kind are required. Every
text of every variable is one line without control characters, unless a rule says C(multiline).

- C(range: [low, high])   a number within these, both included; null leaves a side open
- C(number: [low, high])  the same of a number that may be written as text, in dictionaries whose keys are free
- C(pattern: regex)       the whole value matches; C(\\d) and C(\\w) are ASCII
- C(path: absolute)       begins with / and is neither / itself nor contains ..;  C(path: plain): nothing in it that a shell, a unit or a
                          configuration file would read otherwise; C(path: any), C(path: plain_any): / itself, too;  C(path: device): of a device, not
                          of a disk or of memory
- C(folder: use)          none of a system's own folders, in any spelling; use is share, export, mount, tree, data, prefix, program (that is installed),
                          reports (on the controller), target (in a container) or, of a mount's source, source (to write to) or lent (at all)
- C(counted_by: variable) a number that is at most as high as a list is long that another variable was set to; an expression would evaluate the
                          default of that variable on each host
- C(in_group: group)      none or 0 where the host is not in this group
- C(own_path: true)       a mount whose server is the host itself has target equal to path
- C(network: true)        CIDR without host bits, IPv4;  C(network: several): or a list of them that do not overlap
- C(hostname: true)       host name or address;  C(hostname: server): no address of many hosts or of none;
                          C(hostname: address): an IPv4 address that other hosts can reach;  C(hostname: any_address): IPv4 or IPv6;
                          C(hostname: client): host name, address or network;  C(hostname: no_proxy): what a proxy is left out for
- C(url: true)            http, https or file, without credentials; or a dictionary of schemes, ends, credentials, path
- C(image: true)          a reference of a container image
- C(version: true)        what a tool or a package manager prints, without an epoch
- C(checksum: true)       sha256:DIGITS;  C(checksum: bare): the digits;  C(checksum: list): several
- C(nccl_build: true)     2.21.5 or 2.21.5-1+cuda12.4;  C(nccl_build: exact): only the latter
- C(package: true)        Debian's name[=version];  C(package: pinned): pip's name==version;  C(package: requirement): with a condition
- C(one_version_each: true)  pip's packages, none of which has two versions under one condition
- C(key: PGP PUBLIC KEY BLOCK)  armored text, or the absolute path of a file on the controller
- C(public_keys: name)    a dictionary with a list public_keys, each of which is one line of authorized_keys without options; the finding names whose it is
- C(file: true)           absolute path of a file on the controller;  C(file: directory): of a folder
- C(environment: true)    a dictionary of variables for a program;  C(environment: unset): null for one that is taken away, too, and line breaks, which a
                          process gets as they are
- C(command: true)        words of a command line, each quote closed
- C(ids: preflight)       ids of that role's rules;  C(ids: verify): of its checks; of a dictionary, its keys
- C(names: [values])      of a dictionary, all names are among these
- C(nfs_option: mount)    an option of nfs(5), mount(8) or systemd.mount(5);  C(nfs_option: export): of exports(5)
- C(exclusive: [[a, b]])  of each of these lists the value, a list, has one at most; a word such as C(fsid=) stands for all of its values
- C(apart: true)          a path that is not below another one of the same list
- C(options: file)        options of a program's configuration file; the role's meta/file has their kinds (daemon_options), and other_names
- C(make: true)           variables of make that run no command: neither functions of make other than those of texts, nor characters of a shell
- C(multiline: true)      judges nothing: line breaks are allowed in this text
- C(foreign_keys: {key: what to do})  judges nothing: what is said about a key of other collections, whose words are not ours
- C(unique: true)         no value twice on one host (of a list);  C(unique: hosts): on no two hosts
- C(same: true)           one value for all hosts
- C(that: expression)     Jinja without braces, true is good; C(item) is the value named by C(variable)
- C(faults: expression)   the same, an empty list is good; what it has is told. A sentence is C('KEY' what is wrong; what to do), other texts are names
- C(empty: true)          an empty value (text, list, dictionary, none) passes this rule, whatever its kind
- C(when: expression)     Jinja; where it is false the rule is not judged on that host
- C(severity: warn)       default is block
- C(allowed), C(fix)      what is said; required for C(pattern) and C(that), otherwise made from the rule; C(allowed) may be a template without variables

Expressions can use the variables of all roles with their defaults, and the inventory variables of
the host, but no facts of the host.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _input_kinds as kinds
from ansible_collections.trainyard.gpu.plugins.module_utils._finding import Finding
from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import (
    describe,
    normal,
    show,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs_options import (
    are_exclusive,
    contradictions,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._public_keys import (
    RSA_BITS,
    TYPES,
    public_key_fault,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import finding

__all__ = [
    "About",
    "KINDS",
    "RuleError",
    "check_inventory",
    "describe",
    "foreign_keys",
    "judge_rules",
    "may_have_lines",
    "parse_options",
    "parse_rules",
    "reveal_at",
    "secretive",
    "select",
    "show",
    "texts_of_many_lines",
    "unknown_variables",
]


class RuleError(ValueError):
    """A rule that cannot be evaluated; the message names the role, the variable and the error."""


#: A row of a role's rules with the keys of the table above, and after parse_rules also C(kind) and
#: C(words).
Rule = dict[str, Any]
#: Values of variables by name.
Variables = dict[str, Any]
#: (label, value) of what a rule judges. The label is the path behind the variable's name, such as
#: [0].path.
Entry = tuple[str, Any]
#: The truth of a Jinja expression on a host, with what C(item) is in it.
Evaluate = Callable[[str, str, Any], Any]
#: What may be shown of a value: of a host, at a path such as mounts[0].path.
Reveal = Callable[[str, str, Any], str]
#: Limits, both included. None leaves a side open.
Limits = tuple[float | None, float | None]


def _in_range(value: object, limits: Limits) -> bool:
    low, high = limits
    return (
        not isinstance(value, bool)
        and isinstance(value, (int, float))
        and (low is None or value >= low)
        and (high is None or value <= high)
    )


def _is_number(value: object, limits: Limits) -> bool:
    number = kinds.as_number(value)
    return number is not None and _in_range(number, limits)


def _are_ids(value: object, ids: Collection[str]) -> bool:
    """Return whether an ID, all of a list, or all keys of a dictionary are known."""
    names = value if isinstance(value, (dict, list)) else [value]
    return all(isinstance(name, str) and name in ids for name in names)


_PATHS: dict[str, Callable[[Any], bool]] = {
    "absolute": kinds.is_path,
    "plain": kinds.is_plain_path,
    "any": kinds.is_absolute,
    "plain_any": lambda value: kinds.is_plain_path(value, root=True),
    "device": kinds.is_device,
}
_HOSTNAMES: dict[Any, Callable[[Any], bool]] = {
    True: kinds.is_host,
    "server": kinds.is_server,
    "address": kinds.is_address,
    "any_address": lambda value: kinds.is_address(value, "any"),
    "client": kinds.is_client,
    "no_proxy": kinds.is_no_proxy,
}
#: Kinds whose values are good or not, whatever the host. The second value is what the rule has for
#: the kind.
_GOOD: dict[str, Callable[[Any, Any], bool]] = {
    "range": _in_range,
    "number": _is_number,
    "pattern": kinds.matches,
    "path": lambda value, kind: _PATHS[kind](value),
    "folder": kinds.is_folder,
    "network": lambda value, kind: (
        kinds.are_networks(value) if kind == "several" else kinds.is_network(value)
    ),
    "hostname": lambda value, kind: _HOSTNAMES[kind](value),
    "url": kinds.is_url,
    "image": lambda value, dummy: kinds.is_image(value),
    "version": lambda value, dummy: kinds.is_version(value),
    "checksum": kinds.is_checksum,
    "nccl_build": kinds.is_nccl_build,
    "package": kinds.is_package,
    "one_version_each": lambda value, dummy: kinds.is_one_version_each(value),
    "key": kinds.is_key,
    "file": kinds.is_file,
    "environment": kinds.is_environment,
    "command": lambda value, dummy: kinds.is_command(value),
    "names": lambda value, names: isinstance(value, dict) and all(name in names for name in value),
    "ids": _are_ids,
    "nfs_option": kinds.is_nfs_option,
    "exclusive": are_exclusive,
    "make": lambda value, dummy: kinds.make_faults(value) == [],
    "multiline": lambda value, dummy: True,
    "foreign_keys": lambda value, dummy: True,
}
KINDS = tuple(_GOOD) + (
    "options",
    "public_keys",
    "apart",
    "counted_by",
    "in_group",
    "own_path",
    "unique",
    "same",
    "that",
    "faults",
)
_OTHER_KEYS = ("variable", "empty", "when", "severity", "allowed", "fix")
_NEED_WORDS = ("pattern", "that", "faults")


def parse_rules(data: object, role: str, options: Collection[str]) -> list[Rule]:
    """Return the validated rules of a role. A misspelt rule must not count as met.

    C(data) is what input_rules.yml has, and C(options) are the names in the role's argument_specs.
    Errors are of RuleError.
    """
    rows = data.get("input_rules") if isinstance(data, dict) and len(data) == 1 else None
    if not isinstance(rows, list):
        raise RuleError("%s: input_rules.yml must hold one list named input_rules" % role)
    return [rule for row in rows for rule in _rules_of(row, role, options)]


def _rules_of(row: object, role: str, options: Collection[str]) -> list[Rule]:
    """Return the rule of each variable that a row names."""
    names = row.get("variable") if isinstance(row, dict) else None
    if isinstance(names, str):
        names = [names]
    if not isinstance(row, dict) or not isinstance(names, list) or not names:
        raise RuleError("%s: a rule without variable: %r" % (role, row))
    return [_parse_rule(dict(row, variable=name), role, options) for name in names]


def _parse_rule(row: Rule, role: str, options: Collection[str]) -> Rule:
    """Return a rule with its kind, and the names of variables on which its findings depend."""
    name = row["variable"]
    if not isinstance(name, str):
        raise RuleError("%s: a rule without variable: %r" % (role, row))
    fault = _fault_of_rule(row, options)
    if fault:
        raise RuleError("%s: rule of %s: %s" % (role, name, fault))
    texts = [str(row[key]) for key in ("when", "that", "faults") if key in row]
    (kind,) = (key for key in row if key in KINDS)
    words = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join([name] + texts))
    return dict(row, kind=kind, words=frozenset(words))


def _fault_of_rule(row: Rule, options: Collection[str]) -> str:
    """Return what is wrong with a rule, or nothing."""
    unknown = sorted(set(row) - set(KINDS) - set(_OTHER_KEYS))
    if unknown:
        return "unknown key %s" % ", ".join(unknown)
    given = [key for key in row if key in KINDS]
    if len(given) != 1:
        return "give exactly one of %s" % ", ".join(KINDS)
    if re.split(r"[.\[]", row["variable"])[0] not in options:
        return "the role has no such variable"
    if row.get("severity", "block") not in ("block", "warn"):
        return "severity is block or warn"
    kind = given[0]
    words = _WORDS.get(kind)
    if isinstance(words, dict) and row[kind] not in words:
        return "%s is one of %s" % (kind, ", ".join(map(str, words)))
    if kind in _NEED_WORDS and not (row.get("allowed") and row.get("fix")):
        return "%s needs allowed and fix" % kind
    return ""


def parse_options(data: Any, role: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (kinds of options, other names of options) of a file in a role's meta, checked.

    Errors are of RuleError.
    """
    try:
        known: dict[str, Any] = data[name]
        others: dict[str, str] = data["other_names"]
        wrong = sorted(set(others.values()) - set(known)) + [
            kind
            for kind in known.values()
            if not isinstance(kind, list) and kind not in kinds.option_kinds()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise RuleError(
            "%s: meta/%s.yml must hold the dictionaries %s and other_names" % (role, name, name)
        ) from error
    if wrong:
        raise RuleError(
            "%s: meta/%s.yml: unknown: %s" % (role, name, ", ".join(str(word) for word in wrong))
        )
    return known, others


def select(value: object, path: str) -> list[Entry]:
    """Return (label, value) of everything that the rest of a variable path selects.

    '' is the value itself, C([].path) each entry's path, C([].target|path) its target, or its path
    where it has no target, C(.*) all of a dictionary's values.
    """
    found: list[Entry] = [("", value)]
    for step in re.findall(r"\[\]|\.[^.\[]+", path):
        found = [inner for label, entry in found for inner in _selected(label, entry, step)]
    return found


def _selected(label: str, entry: object, step: str) -> list[Entry]:
    """Return (label, value) of what one step of a path selects in an entry."""
    if step == "[]" and isinstance(entry, list):
        return [("%s[%d]" % (label, index), inner) for index, inner in enumerate(entry)]
    if step == "[]" or not isinstance(entry, dict):
        return []
    if step == ".*":
        return [("%s.%s" % (label, key), inner) for key, inner in entry.items()]
    # target|path: path if there is no target
    names = step[1:].split("|")
    given = [name for name in names if entry.get(name) not in (None, "")] or [step[1:]]
    if entry.get(given[0]) is None:
        return []
    return [("%s.%s" % (label, given[0]), entry[given[0]])]


def _allowed(rule: Rule, value: Any = None) -> str:
    """Return what a rule allows, in words. C(value) is the value that is wrong."""
    kind = rule["kind"]
    if rule.get("allowed"):
        return str(rule["allowed"])
    if kind == "in_group":
        return "0 on a host that is not in group %s" % rule[kind]
    if kind in ("range", "number"):
        return _allowed_number(*rule[kind])
    if kind == "names":
        return "names among %s" % ", ".join(map(str, rule[kind]))
    if kind == "exclusive":
        return ", ".join(map(_allowed_once, contradictions(value, rule[kind])))
    if kind == "url" and isinstance(rule[kind], dict):
        return _allowed_url(rule[kind])
    chosen = _WORDS[kind]
    return chosen[rule[kind]] if isinstance(chosen, dict) else chosen


def _allowed_number(low: float | None, high: float | None) -> str:
    if low is None:
        return "a number, at most %s" % high
    if high is None:
        return "a number, at least %s" % low
    return "a number from %s to %s" % (low, high)


def _allowed_once(words: Sequence[str]) -> str:
    if len(words) > 1:
        return "one of %s" % " and ".join(words)
    return "%s once" % words[0].rstrip("=")


def _allowed_url(limits: dict[str, Any]) -> str:
    schemes = ", ".join(limits.get("schemes", ["https", "http", "file"]))
    ends = " of a %s" % " or ".join(limits["ends"]) if "ends" in limits else ""
    return "a URL (%s)%s, without credentials" % (schemes, ends)


#: What kinds allow, by the word of the rule if there are several.
_WORDS: dict[str, str | dict[Any, str]] = {
    "path": {
        "absolute": "an absolute path below /, without ..",
        "any": "an absolute path, without ..",
        "plain": (
            "an absolute path below /, without //, /./ and .., of letters, digits and . _ + @ = ~ -"
        ),
        "plain_any": (
            "an absolute path, without //, /./ and .., of letters, digits and . _ + @ = ~ -"
        ),
        "device": (
            "the path of a device in /dev that is not a disk or memory of the host, such as "
            "/dev/infiniband"
        ),
    },
    "folder": {
        "share": "a path whose first folder is not a system folder, such as /data1/share",
        "export": "a folder that is not a system folder, such as /data1/share",
        "mount": "a mount point that is not a system folder, such as /data1/share",
        "tree": "a path whose first folder is not a system folder, such as /mnt/user",
        "data": "a folder for data that is not a system folder, such as /var/lib/docker",
        "prefix": (
            "/usr/local, a folder in it, or one that is not a system folder, such as "
            "/opt/nccl-tests"
        ),
        "program": "the folder of an installed program, such as /usr/local/cuda",
        "reports": (
            "a folder of the controller that is not a system folder, such as /var/lib/reports"
        ),
        "source": "a folder of the host that is not a system folder",
        "lent": "a folder or file of the host that does not give the container root access there",
        "target": "a path in the container that is not /proc, /sys, /dev or a whole system folder",
    },
    "network": {
        True: "an IPv4 network such as 10.0.0.0/24, without host bits",
        "several": (
            "an IPv4 network such as 10.0.0.0/24, without host bits, or a list of such networks "
            "that do not overlap"
        ),
    },
    "hostname": {
        True: "a host name or an address",
        "server": "the name or address of one host",
        "address": "an IPv4 address that the other hosts can reach",
        "any_address": "an address such as 10.0.0.53",
        "client": (
            "an address, a network such as 10.0.0.0/24 without host bits, or a host name; no "
            "wildcards"
        ),
        "no_proxy": "a host, .domain, address or network",
    },
    "url": "a URL such as https://mirror.example.org/folder, without credentials",
    "image": (
        "the reference of an image, with tag or digest, such as nvcr.io/nvidia/pytorch:25.02-py3"
    ),
    "checksum": {
        True: "sha256 and 64 hexadecimal digits",
        "bare": "64 hexadecimal digits",
        "list": "sha256 and 64 hexadecimal digits; several separated by spaces",
    },
    "version": (
        "a version that begins with a number and has no epoch, such as 12.6 or 2.21.5-1+cuda12.4"
    ),
    "nccl_build": {
        True: "an exact version such as 2.21.5-1+cuda12.4, or a release such as 2.21.5",
        "exact": "an exact version such as 2.28.9-1+cuda13.0",
    },
    "package": {
        True: "a Debian package's name, or name=version",
        "pinned": "name==version",
        "requirement": "name==version, optionally with a condition after ;",
    },
    "one_version_each": "one version of each package",
    "key": {
        "PGP PUBLIC KEY BLOCK": (
            "only an ASCII-armored public key, or the absolute path of one on the controller"
        ),
        "CERTIFICATE": (
            "PEM text of certificates without keys, or the absolute path of such a file on the "
            "controller"
        ),
    },
    "public_keys": (
        "a public key in one line, without options, of type %s (ssh-rsa: %d bits or more)"
    )
    % (", ".join(TYPES), RSA_BITS),
    "file": {
        True: "the absolute path of a file on the controller",
        "directory": "the absolute path of a folder on the controller",
    },
    "environment": {
        True: (
            "names of letters, digits and _, not beginning with a digit, each with a text of one "
            "line or a number"
        ),
        "unset": (
            "names of letters, digits and _, not beginning with a digit, each with a text, a "
            "number, or null to remove it"
        ),
    },
    "command": "a command line with all quotes closed, such as: python3 /data1/share/train.py",
    "ids": "ids of checks, as listed in the README of the role",
    "nfs_option": {
        "mount": (
            "one option of nfs(5), mount(8) or systemd.mount(5), such as hard, noatime, "
            "rsize=1048576"
        ),
        "export": (
            "one option of exports(5), such as rw, ro, sync, root_squash, no_root_squash, "
            "no_subtree_check"
        ),
    },
    "apart": "a folder that is not below another folder of the list",
    "own_path": (
        "for a server in the cluster, a target equal to its path, because the server uses the "
        "folder itself"
    ),
    "unique": "every value once",
    "same": "the same value for all hosts",
    "make": (
        "values without ` ; | & < > and line breaks, with $ only in $(NAME), because make runs "
        "commands in them as root"
    ),
    "multiline": "any text",
    "foreign_keys": "keys of this collection",
}


def texts_of_many_lines(rules: list[Rule]) -> set[str]:
    """Return the paths of texts that may contain line breaks, or whose own rule judges them."""
    found = {rule["variable"] for rule in rules if rule["kind"] == "multiline"}
    found.update(_keys_of(rule) + "[]" for rule in rules if rule["kind"] == "public_keys")
    return found.union(
        rule["variable"] + ".*" for rule in rules if rule.get("environment") == "unset"
    )


def may_have_lines(path: str, those: Collection[str]) -> bool:
    """Return whether a text at a path, such as mounts[0].environment.A, is among C(those) that
    texts_of_many_lines returns.
    """
    path = re.sub(r"\[[0-9]+\]", "[]", path)
    return path in those or path.rpartition(".")[0] + ".*" in those


def foreign_keys(rules: list[Rule]) -> dict[str, dict[str, str]]:
    """Return {path: {key: what to do}} of the keys that other collections have where these rules
    are.
    """
    return {rule["variable"]: rule["foreign_keys"] for rule in rules if "foreign_keys" in rule}


def _keys_of(rule: Rule) -> str:
    """Return the path of the list that a rule of kind public_keys judges."""
    return str(rule["variable"]) + ".public_keys"


def secretive(rules: list[Rule]) -> dict[str, Callable[[Any], Any]]:
    """Return {path: function to display it} of the variables whose values are never shown
    in full.
    """
    how: dict[str, Callable[[Any], Any]] = {"environment": kinds.show_names, "key": kinds.show_key}
    found = {rule["variable"]: how[rule["kind"]] for rule in rules if rule["kind"] in how}
    # A private key may stand where a public one should.
    found.update(
        {_keys_of(rule): _show_public_keys for rule in rules if rule["kind"] == "public_keys"}
    )
    return found


def _show_public_keys(value: Any) -> Any:
    """Return the types of public keys, or what is wrong with them."""
    if isinstance(value, (list, tuple)):
        return [_show_public_keys(inner) for inner in value]
    return public_key_fault(value) or "a key of type '%s'" % value.split(" ")[0]


def reveal_at(path: str, value: Any, paths: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return a value with masked secrets; C(path) is its place, such as mounts[0].environment.A."""
    path = re.sub(r"\[[0-9]+\]", "[]", path)
    for name, how in paths.items():
        # Also a text instead of the value that should have contained the secret.
        if (
            path == name
            or path.startswith((name + ".", name + "["))
            or (not isinstance(value, (dict, list)) and name.startswith((path + ".", path + "[")))
        ):
            return how(value)
    if isinstance(value, dict):
        return {key: reveal_at("%s.%s" % (path, key), inner, paths) for key, inner in value.items()}
    return (
        [reveal_at(path + "[]", inner, paths) for inner in value]
        if isinstance(value, list)
        else value
    )


def _likely(rule: Rule, source: str, value: object, reveal: Callable[[Any], str]) -> str:
    """Return the advice for a path that is valid in another spelling, or for a misspelt option; ''
    for any other value.
    """
    kind = rule["kind"]
    if kind == "nfs_option" and isinstance(value, str):
        near = kinds.nearest_option(value, rule[kind])
        return "did you mean %s?" % show(near) if near and reveal(near) == show(near) else ""
    if kind != "path" or not isinstance(value, str) or not value.startswith("/"):
        return ""
    plain = kinds.normal_path(value)
    # A hidden value is not shown in another spelling either.
    return (
        "set %s to %s" % (source, show(plain))
        if _GOOD[rule["kind"]](plain, rule[rule["kind"]]) and reveal(plain) == show(plain)
        else ""
    )


HIDDEN = "(not shown)"
# Characters of a sentence that a function has made.
_MOST = 400


def _messages(answer: Any, value: Any, base: str) -> list[Entry]:
    """Return (rest of the label, (value, what was found, what to do)) of what a rule's function
    says about a value.

    C(answer) is a list of texts, or of dictionaries with a name. A sentence with a semicolon is a
    finding of its own, and names are one together. True is for a value that cannot be judged.
    """
    if answer is True or answer == []:
        return []
    if not isinstance(answer, (list, tuple)):
        return [("", (value, "", ""))]
    texts = [_text_of(each) for each in answer]
    names = ", ".join(text for text in texts if "; " not in text)
    found: list[Entry] = [("", (value, names, ""))] if names else []
    for text in texts:
        if "; " in text:
            sentence = re.sub(r"\A%s: " % re.escape(base), "", text)
            found.append(_message(sentence, value))
    return found


def _text_of(part: Any) -> str:
    """Return a text of an answer, which may be the name in a dictionary."""
    return str(part["name"] if isinstance(part, dict) else part)


def _message(sentence: str, value: Any) -> Entry:
    """Return (rest of the label, (value, what was found, what to do)) of a sentence, which may
    begin with a key of the value.
    """
    text, dummy, advice = sentence.partition("; ")
    key = re.match("'([^']+)' ", text)
    if key and isinstance(value, dict) and key.group(1) in value:
        return ".%s" % key.group(1), (value[key.group(1)], text, advice)
    return "", (value, text, advice)


def _found_and_fix(shown: str, text: str, advice: str, fix: str) -> tuple[str, str]:
    """Return what was found and what to do.

    C(text) is a sentence if it has C(advice) of its own, else the names that are wrong in what is
    C(shown).
    """
    # A secret is not shown in what is said about it either.
    if not text or shown == HIDDEN:
        return shown, show(advice, _MOST) if advice else fix
    if advice:
        return show(text, _MOST), show(advice, _MOST)
    names = show(text, _MOST)
    # The names may be behind the end of a value that is cut.
    return names if shown.endswith("...") else shown, fix if names == shown else "%s: %s" % (
        names,
        fix,
    )


def _finding(rule: Rule, host: str, label: str, value: Any, reveal: Reveal) -> Finding:
    """Return the finding about a value. For some kinds it has more than the value, as
    _PARTS tells.
    """
    base = re.split(r"[.\[]", rule["variable"])[0]
    if rule["kind"] == "options":
        # After the path of the rule and a dot.
        ((dummy, allowed, advice),) = kinds.option_faults(
            {label[len(rule["variable"]) - len(base) + 1 :]: value}, *rule["options"]
        )
        rule = dict(rule, allowed=allowed, fix=advice)
    if rule["kind"] == "public_keys":
        name, number, value = value
        found = "%s, key %d: %s" % (show(name), number, public_key_fault(value))
    elif rule["kind"] == "environment":
        found = "; ".join(kinds.environment_faults(value, rule["environment"]))
    elif rule["kind"] == "make":
        found = show(", ".join(kinds.make_faults(value)))
    elif rule["kind"] == "faults":
        value, found, advice = value
        found, advice = _found_and_fix(
            reveal(host, base + label, value), found, advice, rule["fix"]
        )
        rule = dict(rule, fix=advice)
    else:
        found = reveal(host, base + label, value)
    return finding(
        "input-rule"
        if rule["kind"] in ("that", "faults")
        else "input-" + rule["kind"].replace("_", "-"),
        host,
        "warn" if rule.get("severity") == "warn" else "fail",
        expected=_allowed(rule, value),
        found=found,
        source=base + label,
        fix=_likely(rule, base + label, value, functools.partial(reveal, host, base + label))
        or rule.get("fix")
        or _advice(rule, base, label, value),
    )


def _advice(rule: Rule, base: str, label: str, value: object) -> str:
    """Return what to do about a value of a rule that does not say it."""
    if rule["kind"] == "unique":
        return "set a different value for each entry"
    if rule["kind"] == "same":
        return "set %s in the variables of group cluster, and remove it from single hosts" % base
    return "set %s to %s" % (base + label, _allowed(rule, value))


class About(NamedTuple):
    """What is known about the hosts and their variables besides the values.

    C(key(host, variable)) is the same for hosts whose values are the same, or None if that is not
    known. C(groups) are those of the inventory. C(unsteady(host, variable)) tells whether a value
    may be another one each time, as one made of the time is: it is not compared. C(given(host,
    variable)) tells whether the inventory sets it: defaults that differ are made of another
    variable that does.
    """

    key: Callable[[str, str], object] = lambda host, name: None
    groups: Mapping[str, list[str]] | None = None
    unsteady: Callable[[str, str], bool] = lambda host, name: False
    given: Callable[[str, str], bool] = lambda host, name: True


def _is_alike(rule: Rule) -> bool:
    """Return whether the verdict of a rule on a value is the same on all hosts."""
    kind = rule["kind"]
    return kind in _GOOD or kind in ("same", "options", "public_keys") or rule.get("unique") is True


class _Judge:
    """Judges one rule after the other for all hosts."""

    def __init__(
        self, values: Mapping[str, Variables], evaluate: Evaluate, reveal: Reveal, about: About
    ) -> None:
        self._values, self._evaluate = values, evaluate
        self._reveal, self._about = reveal, about
        #: What is known to be wrong: {(host, variable): labels}.
        self._blamed: dict[tuple[str, str], set[str]] = {}

    def findings(self, rule: Rule) -> list[Finding]:
        """Return the findings of one rule."""
        base = re.split(r"[.\[]", rule["variable"])[0]
        path = rule["variable"][len(base) :]
        found: list[Finding] = []
        seen: Seen = {}
        judged: dict[object, list[Entry]] = {}
        for host in self._values:
            if not self._applies(rule, host, base):
                continue
            group = self._about.key(host, base)
            wrong = judged.get(group) if group is not None and _is_alike(rule) else None
            if wrong is None:
                context = _Context(
                    host,
                    self._values[host],
                    select(self._values[host][base], path),
                    seen,
                    self._about.groups or {},
                    self._evaluate,
                )
                wrong = judged[group] = _wrong(rule, context)
            found += self._new_findings(rule, host, base, wrong)
        if rule["kind"] == "same" and len(seen) > 1:
            found += self._differences(rule, base, list(seen.values()))
        return found

    def _applies(self, rule: Rule, host: str, base: str) -> bool:
        """Return whether a rule judges a variable on a host."""
        if base not in self._values[host]:
            return False
        if "when" in rule and not self._evaluate(host, rule["when"], None):
            return False
        return rule["kind"] != "same" or not self._about.unsteady(host, base)

    def _new_findings(self, rule: Rule, host: str, base: str, wrong: list[Entry]) -> list[Finding]:
        """Return the findings about values.

        Rejected values are not reported again, as a whole or in part.
        """
        found = []
        before = self._blamed.setdefault((host, base), set())
        # A function may say several things about one value.
        earlier = frozenset(before) if rule["kind"] == "faults" else before
        for label, value in wrong:
            if any(label.startswith(other) or other.startswith(label) for other in earlier):
                continue
            found.append(_finding(rule, host, label, value, self._reveal))
            if found[-1]["verdict"] == "fail":
                before.add(label)
        return found

    def _differences(
        self, rule: Rule, base: str, seen: list[tuple[str, str, Any]]
    ) -> list[Finding]:
        """Return the findings about values that should be the same on all hosts."""
        if not any(self._about.given(host, base) for host in self._values):
            return []
        # If values differ on hundreds of hosts, a few are enough.
        return [
            _finding(rule, host, label, value, self._reveal)
            for host, label, value in _differing(seen[:_SHOWN])
        ]


def judge_rules(
    rules: list[Rule],
    values: Mapping[str, Variables],
    evaluate: Evaluate,
    reveal: Reveal = lambda host, label, value: show(value),
    about: About | None = None,
) -> list[Finding]:
    """Return the findings of rules.

    C(values) is {host: {variable: value}}; a variable that is missing was found wrong before and is
    not judged again. C(evaluate(host, expression, item)) gives the truth of a Jinja expression.
    C(reveal(host, label, value)) is what may be shown of a value.
    """
    judge = _Judge(values, evaluate, reveal, about or About())
    return [found for rule in rules for found in judge.findings(rule)]


_SHOWN = 4


def _differing(found: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Return (host, label, value) of values that should be the same; for dictionaries the keys that
    differ.
    """
    values = [value for dummy, dummy, value in found]
    if not all(isinstance(value, dict) for value in values):
        return found
    alike = [
        name
        for name in values[0]
        if all(name in value and normal(value[name]) == normal(values[0][name]) for value in values)
    ]
    return [
        (host, label, {name: inner for name, inner in value.items() if name not in alike})
        for host, label, value in found
    ]


def is_inside(value: Any, network: Any) -> bool:
    """Return whether an address is a host address in a network, also if one of them is none, as
    other rules say.
    """
    if not kinds.is_network(network) or not kinds.is_address(value):
        return True
    return kinds.is_inside(value, network)


def is_registry_of(value: str, image: Any) -> bool:
    """Return whether a registry is the one that the name of an image begins with, also if that is
    no name.
    """
    return not kinds.is_image(image) or kinds.is_registry_of(value, image)


def is_writable(mount: dict[str, Any]) -> bool:
    """Return whether a mount of a container is read_only, or its source is no system folder."""
    return mount.get("read_only") is True or kinds.is_folder(mount.get("source"), "source")


def covers(mounts: list[dict[str, Any]], folder: str | None) -> bool:
    """Return whether a folder is one of these exports or mounts, or is below one."""
    names = [normal(entry.get("target") or entry.get("path")) for entry in mounts]
    return folder is None or any(
        normal(folder) == name or normal(folder).startswith("%s/" % name) for name in names
    )


def is_apart(
    tree: dict[str, Any],
    trees: list[dict[str, Any]],
    users: list[dict[str, Any]],
    groups: list[dict[str, Any]],
) -> bool:
    """Return whether a tree is in no folder of a user or a group of another tree."""
    owners = {"users": users, "groups": groups}
    return not any(
        normal(tree["path"]) == normal(folder) or kinds.is_below(tree["path"], folder)
        for other in trees
        for folder in _folders_of(other, owners.get(other["of"], []))
    )


def _folders_of(tree: dict[str, Any], owners: list[dict[str, Any]]) -> list[str]:
    """Return the folders of users or groups in a tree."""
    only = set(tree.get("only") or [])
    if only and tree["of"] == "users":
        owners = [user for user in owners if only.intersection(user.get("groups") or [])]
    elif only:
        owners = [group for group in owners if group["name"] in only]
    return ["%s/%s" % (tree["path"], owner["name"]) for owner in owners]


def is_beside(target: Any, share: Any) -> bool:
    """Return whether a container can have a mount at a target, in addition to the collection's
    folder and the first folder of the share's path.
    """
    if not kinds.is_path(target):
        return True
    ours = "/etc/trainyard"
    return (
        normal(target) != ours
        and not kinds.is_below(target, ours)
        and not (
            kinds.is_path(share)
            and (normal(target) == normal(share) or kinds.is_below(share, target))
        )
    )


#: Values of hosts that were judged before: {spelling: (host, label, value)}.
Seen = dict[str, tuple[str, str, Any]]


class _Context(NamedTuple):
    """What a value is judged with: the host, its variables, and all entries that the rule selects
    there.
    """

    host: str
    variables: Variables
    entries: list[Entry]
    seen: Seen
    groups: Mapping[str, list[str]]
    evaluate: Evaluate


def _is_apart(value: Any, dummy: object, context: _Context) -> bool:
    if not kinds.is_path(value):
        return True
    return not any(
        kinds.is_path(other) and kinds.is_below(value, other) for dummy, other in context.entries
    )


def _is_counted_by(value: Any, name: str, context: _Context) -> bool:
    counted = context.variables.get(name)
    return not isinstance(counted, list) or value <= len(counted)


def _is_in_group(value: Any, group: str, context: _Context) -> bool:
    hosts = context.groups.get(group)
    return not value or not hosts or context.host in hosts


def _is_own_path(value: Any, dummy: object, context: _Context) -> bool:
    if value.get("server") != context.host or not value.get("target"):
        return True
    is_same: bool = normal(value["target"]) == normal(value.get("path"))
    return is_same


# Kinds whose values are good or not, depending on the host and its other variables.
_GOOD_ON_HOST: dict[str, Callable[[Any, Any, _Context], Any]] = {
    "apart": _is_apart,
    "counted_by": _is_counted_by,
    "in_group": _is_in_group,
    "own_path": _is_own_path,
    "that": lambda value, expression, context: context.evaluate(context.host, expression, value),
}


def _wrong_options(label: str, value: Any, rule: Rule, dummy_context: _Context) -> list[Entry]:
    """Return the options of a configuration file that are unknown or of another kind."""
    return [
        ("%s.%s" % (label, name), value.get(name))
        for name, dummy, dummy in kinds.option_faults(value, *rule["options"])
    ]


def _wrong_keys(label: str, value: Any, rule: Rule, dummy_context: _Context) -> list[Entry]:
    """Return the wrong public keys, each as (whose it is, its place from 1, the key)."""
    return [
        ("%s.public_keys[%d]" % (label, place), (value.get(rule["public_keys"]), place + 1, key))
        for place, key in enumerate(value.get("public_keys") or [])
        if public_key_fault(key)
    ]


def _faults(label: str, value: Any, rule: Rule, context: _Context) -> list[Entry]:
    """Return what a function of the rule says, each as (value, what was found, what to do)."""
    answer = context.evaluate(context.host, rule["faults"], value)
    base = rule["variable"].split("[")[0]
    return [(label + rest, message) for rest, message in _messages(answer, value, base)]


# Kinds that name what is wrong in a value, as (label, what they say about it).
_PARTS: dict[str, Callable[[str, Any, Rule, _Context], list[Entry]]] = {
    "options": _wrong_options,
    "public_keys": _wrong_keys,
    "faults": _faults,
}


def _repeated(rule: Rule, context: _Context, entries: list[Entry]) -> list[Entry]:
    """Return the entries of a rule of kind unique that are not.

    All are remembered for the other hosts.
    """
    wrong: list[Entry] = []
    on_host: set[str] = set()
    for label, value in entries:
        alike = repr(normal(value))
        if alike in on_host or rule["unique"] == "hosts" and alike in context.seen:
            wrong.append((label, value))
        on_host.add(alike)
        context.seen[alike] = (context.host, label, value)
    return wrong


def _wrong(rule: Rule, context: _Context) -> list[Entry]:
    """Return (label, value or what a kind says about it) of what is wrong on a host."""
    kind = rule["kind"]
    entries = [
        (label, value)
        for label, value in context.entries
        if value or not rule.get("empty") or value is False or value == 0
    ]
    if kind == "unique":
        return _repeated(rule, context, entries)
    wrong: list[Entry] = []
    for label, value in entries:
        if kind in _PARTS:
            wrong += _PARTS[kind](label, value, rule, context)
        elif kind == "same":
            context.seen.setdefault(repr(normal(value)), (context.host, label, value))
        elif kind in _GOOD:
            wrong += [] if _GOOD[kind](value, rule[kind]) else [(label, value)]
        elif not _GOOD_ON_HOST[kind](value, rule[kind], context):
            wrong.append((label, value))
    return wrong


# Roles whose name is a common word: variables with this prefix that are like none of ours belong to
# the user.
_PLAIN_WORDS = ("cluster", "train")
# Variables of well-known roles and collections that begin as ours, or nearly: an inventory may
# serve them, too. geerlingguy.nfs and .docker, stackhpc's cluster-nfs, NVIDIA's nvidia_driver and
# DeepOps, Kubespray, galaxyproject.slurm.
_FOREIGN = re.compile(
    r"nfs_(exports|package|packages|rpcbind_\w+|is_(server|client)|mounts|enable|export_\w+|client_mnt_\w+|client_imports)"
    r"|docker_(edition|packages\w*|obsolete_packages|service_\w+|restart_handler_state|install|install_\w+|compose_\w+|add_repo|repo_\w+|apt_\w+|yum_\w+"
    r"|users|daemon_options|daemon_graph|log_opts|options|dns_\w+|iptables_enabled|insecure_registries|registry_mirrors|cli_version|storage_\w+|rpm_\w+)"
    r"|nvidia_driver_(package_\w+|branch|persistence_mode_on|skip_reboot|module_(file|params)|add_repos|ubuntu_\w+|rhel_\w+|install_\w+|force_install)"
    r"|slurm_(nodes|config|roles|upgrade|user|username|user_home|create_\w+|munge_key|start_service|(cgroup|gres|slurmdbd|topology|custom)_config|packages"
    r"|dbd_packages|version|src_url|build_\w+|install_\w+|config_dir|conf_template|cgroup_conf_template|enable_\w+|manage_gpus|autodetect_mpi|default_mpi"
    r"|login_on_compute|allow_ssh_user|max_job_timelimit|default_job_timelimit|monitoring_group|pyxis_\w+|password|db_\w+|ha_\w+|force_rebuild"
    r"|workflow_build|include_pmix|restart_\w+)"
    r"|upgrade_(cluster_setup|node_\w+|ceph_packages|system_packages)"
)
_WORDS_OF_HOSTS = re.compile("(?i)cluster_(hosts|nodes|servers|machines)")


def unknown_variables(
    names: Collection[str],
    known: Collection[str],
    roles: Collection[str],
    used: Collection[str] = (),
) -> dict[str, tuple[str, str]]:
    """Return {name: (likely name or '', likelihood of a mistake)} of variables that no role has.

    C(misspelt) is within two letters of a known name, C(prefix) has a known name's prefix in other
    words, C(ours) begins as the variables of a role do, C(maybe) may as well be the user's own.
    C(names) are those that the inventory sets, a dictionary if their values are known, and C(known)
    are those of the roles, a dictionary if their specifications are: a name is suggested only if
    the value fits. Names of the user's own are not among the answers: those that are like none of
    ours, those of well-known other roles, and C(used), those that the inventory's own templates
    read.
    """
    prefixes = tuple(role + "_" for role in roles if role not in _PLAIN_WORDS)
    known_names = _KnownNames(known, roles)
    unknown: dict[str, tuple[str, str]] = {}
    for name in sorted(names):
        if (
            name in known
            or name in used
            or name.startswith(("ansible_", "__", "inventory_"))
            or _FOREIGN.fullmatch(name)
        ):
            continue
        if _WORDS_OF_HOSTS.fullmatch(name):
            unknown[name] = ("group cluster of the inventory, which lists the hosts", "maybe")
            continue
        meant, likely = known_names.meant_by(name, names)
        if not likely and name.startswith(prefixes):
            # An inventory may have settings of NCCL in lower case, such as nccl_debug.
            likely = "maybe" if name.startswith("nccl_") and "nccl" in roles else "ours"
        if likely:
            unknown[name] = (meant, likely)
    return unknown


class _KnownNames:
    """The names of the roles' variables, and what another name may mean."""

    def __init__(self, known: Collection[str], roles: Collection[str]) -> None:
        self._specs: dict[str, Any] = known if isinstance(known, dict) else {}
        self._folded = {name.lower(): name for name in known}
        self._by_length: dict[int, list[str]] = {}
        for name in self._folded:
            self._by_length.setdefault(len(name), []).append(name)
        self._by_suffix = _by_suffix(self._folded, roles)
        self._prefixes = tuple(role + "_" for role in roles)

    def meant_by(self, name: str, names: Collection[str]) -> tuple[str, str]:
        """Return (likely name or '', misspelt, prefix, maybe or '')."""
        # CLUSTER_SSH_PORT, clusterSshPort, cluster-ssh-port, trainyard_cluster_ssh_port
        plain = re.sub(
            r"\Atrainyard_(gpu_)?",
            "",
            re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).replace("-", "_").lower(),
        )
        if plain in self._folded:
            return self._folded[plain], "misspelt"
        near = self._near(plain)
        # cluster_network2 beside cluster_network is the user's own.
        if near and _is_family(plain, near) and self._folded[near] in names:
            return self._folded[near], "maybe"
        if near:
            return self._folded[near], "misspelt"
        others = sorted(self._folded[other] for other in _with_other_prefix(plain, self._by_suffix))
        if others:
            # If the correct name is set as well, this variable belongs to the user.
            return (" or ".join(others), "prefix") if not set(others) & set(names) else ("", "")
        if not plain.startswith(self._prefixes):
            return "", ""
        value = names[name] if isinstance(names, dict) else None
        close = [
            self._folded[other]
            for other in difflib.get_close_matches(plain, self._folded, n=5, cutoff=0.85)
            if self._fits(self._folded[other], value)
        ]
        return (close[0], "ours") if close else ("", "")

    def _near(self, plain: str) -> str:
        """Return the known name within two letters of another one. A short name is near to many."""
        if len(plain) <= 7:
            return ""
        sizes = range(len(plain) - 2, len(plain) + 3)
        return kinds.nearest(
            plain, [name for size in sizes for name in self._by_length.get(size, ())]
        )

    def _fits(self, name: str, value: object) -> bool:
        """Return whether a variable can have this value, also if nobody knows."""
        if name not in self._specs or not isinstance(value, (str, int, float, list, dict)):
            return True
        if isinstance(value, str) and "{" in value:
            return True
        # A wrong word of a few is no other type.
        spec = {key: inner for key, inner in self._specs[name].items() if key != "choices"}
        return not kinds.check_type(spec, value)[1]


#: {text after a role's prefix: [(words of the prefix, name)]}
_BySuffix = dict[str, list[tuple[list[str], str]]]


def _by_suffix(known: Iterable[str], roles: Collection[str]) -> _BySuffix:
    """Return the known names whose prefix has several words."""
    found: _BySuffix = {}
    for role in roles:
        words = role.split("_")
        if len(words) == 1:
            continue
        for name in known:
            if name.startswith(role + "_"):
                found.setdefault(name[len(role) + 1 :], []).append((words, name))
    return found


def _with_other_prefix(name: str, by_suffix: _BySuffix) -> set[str]:
    """Return known names that differ from this one by a missing word of the prefix or by the order
    of its words: docker_version, nvidia_version.
    """
    words = name.split("_")
    found: set[str] = set()
    for count in range(1, len(words)):
        for prefix, other in by_suffix.get("_".join(words[count:]), ()):
            given = words[:count]
            rest = iter(prefix)
            # Without its first word, a prefix is a common word: container_name, driver_version.
            lacks = (
                len(given) < len(prefix)
                and given[0] == prefix[0]
                and all(word in rest for word in given)
            )
            if lacks or (given != prefix and sorted(given) == sorted(prefix)):
                found.add(other)
    return found


def _is_family(name: str, other: str) -> bool:
    """Return whether two names differ only by digits: cluster_network2 belongs to the user if
    cluster_network exists.
    """
    return name != other and re.sub("_?[0-9]+", "", name) == re.sub("_?[0-9]+", "", other)


GROUPS = ("cluster", "head", "storage", "gpu")
_OWN_GROUPS = ("cpu", "lead", "heat", "heap", "bead", "beads", "hear", "heard", "heads_up")


def _is_nearly(name: str, meant: str, foreign: bool) -> bool:
    """Return whether a group's name may be a misspelt name of this collection."""
    if name in (meant, meant + "s"):
        return True
    # gpu1 and gpu2 are parts of a cluster.
    if re.search("[0-9]", name):
        return False
    if sorted(name) == sorted(meant):
        return kinds.distance(name, meant, 1) == 1
    if name[0] != meant[0]:
        return False
    if len(meant) == 3:
        # Many words differ from a three-letter name by one letter: gpt, gps. So only a missing or
        # additional letter counts.
        return kinds.distance(name, meant, 1) == 1 and (
            len(name) > 3 or (len(name) < 3 and not foreign)
        )
    most = 2 if len(meant) > 5 and not foreign else 1
    return kinds.distance(name, meant, most) <= most


def misspelt_groups(groups: Mapping[str, list[str]]) -> dict[str, str]:
    """Return {group: correct name} of groups with a misspelt name whose hosts the correct group
    lacks.
    """
    found = {}
    for name, hosts in groups.items():
        if not hosts or name in GROUPS or name in _OWN_GROUPS or name in ("all", "ungrouped"):
            continue
        # A group whose hosts are not in the cluster has another purpose: store, clustered.
        foreign = bool(groups.get("cluster")) and set(groups["cluster"]).isdisjoint(hosts)
        for meant in GROUPS:
            # A parent group has all hosts of the correct group.
            if _is_nearly(name.lower(), meant, foreign) and not (
                groups.get(meant) and set(groups[meant]) <= set(hosts)
            ):
                found[name] = meant
                break
    return found


def _same_address(hosts: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Return {address: [hosts]} of addresses shared by several hosts; hosts is [(name, address,
    port)].
    """
    shared: dict[tuple[str, str], list[str]] = {}
    for name, address, port in hosts:
        try:
            text = str(ipaddress.ip_address(address))
        except ValueError:
            text = str(address).lower().rstrip(".")
        shared.setdefault((text, port), []).append(name)
    return {text: names for (text, dummy), names in shared.items() if len(names) > 1}


_OF_ITSELF = ("localhost", "localhost.localdomain", "127.0.0.1", "::1")
_BY_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")


class Connection(TypedDict, total=False):
    """How the controller reaches a host.

    C(missing_lab_key) is a key that only lab/lab.py makes and has not made, else empty;
    C(lab_command) makes it.
    """

    address: str
    port: str
    connection: str
    cluster_address: str
    missing_lab_key: str
    lab_command: str


def _host_names(cluster: list[str], connections: Mapping[str, Connection]) -> list[Finding]:
    """Return the findings about names, which are used in ssh_config, known_hosts and the host lists
    of launchers.
    """
    findings = []
    for host in cluster:
        if not kinds.is_host(host):
            findings.append(
                finding(
                    "inventory-host-name",
                    show(host),
                    "fail",
                    "letters, digits, - and _ between dots, at most 63 each and 253 in total",
                    show(host),
                    "inventory_hostname",
                    "rename the host, and set ansible_host to what ssh connects to",
                )
            )
        elif (
            len(cluster) > 1
            and host.lower() in _OF_ITSELF
            and connections.get(host, {}).get("connection", "").rpartition(".")[2] in _BY_SSH
        ):
            findings.append(
                finding(
                    "inventory-host-name",
                    host,
                    "fail",
                    "a name that resolves to the same host everywhere",
                    host,
                    "inventory_hostname",
                    (
                        "use the name by which the other hosts reach it, or set ansible_connection "
                        "to local if it is the controller"
                    ),
                )
            )
    alike: dict[str, list[str]] = {}
    for host in cluster:
        alike.setdefault(host.lower().rstrip("."), []).append(host)
    for hosts in alike.values():
        if len(hosts) > 1:
            findings.append(
                finding(
                    "inventory-host-name",
                    ", ".join(hosts),
                    "fail",
                    "names that differ in more than case",
                    ", ".join(hosts),
                    "inventory_hostname",
                    "rename or remove one of %s" % ", ".join(hosts),
                )
            )
    return findings


def _inventory_finding(
    check_id: str, host: str, expected: str, found: str, fix: str, source: str = "inventory"
) -> Finding:
    return finding(check_id, host, "fail", expected, found, source, fix)


def _lacking_cluster(groups: Mapping[str, list[str]]) -> list[Finding]:
    """Return the finding that there is no cluster, none if there is one."""
    if "cluster" not in groups:
        others = ", ".join(sorted(set(groups) - {"all", "ungrouped"})) or "none"
        return [
            _inventory_finding(
                "inventory-no-cluster",
                "localhost",
                "a group named cluster",
                "groups: %s" % others,
                "add every server to a group named cluster; its order is the order of the ranks",
            )
        ]
    if groups["cluster"]:
        return []
    return [
        _inventory_finding(
            "inventory-empty-cluster",
            "localhost",
            "at least one host in group cluster",
            "group cluster has no host",
            "add every server to group cluster; its order is the order of the ranks",
        )
    ]


def _group_members(groups: Mapping[str, list[str]]) -> list[Finding]:
    """Return the findings about hosts of the groups head, storage and gpu."""
    findings = []
    for group in ("head", "storage", "gpu"):
        findings += [
            _inventory_finding(
                "inventory-outside-cluster",
                host,
                "every host of group %s is in group cluster" % group,
                "%s is only in group %s" % (host, group),
                "add %s to group cluster, or remove it from group %s" % (host, group),
            )
            for host in groups.get(group, [])
            if host not in groups["cluster"]
        ]
    for group in ("head", "storage"):
        hosts = groups.get(group, [])
        if len(hosts) > 1:
            findings.append(
                _inventory_finding(
                    "inventory-one-host",
                    ", ".join(hosts),
                    "at most one host in group %s" % group,
                    "%d hosts: %s" % (len(hosts), ", ".join(hosts)),
                    "leave one host in group %s" % group,
                )
            )
    every_host = dict.fromkeys(host for hosts in groups.values() for host in hosts)
    return findings + [
        _inventory_finding(
            "inventory-host-like-group",
            host,
            "a host name that differs from all group names",
            "%s is a host and a group" % host,
            "rename the host %s or the group: Ansible confuses them in patterns and variables"
            % host,
        )
        for host in every_host
        if host in groups
    ]


def _missing_lab(connections: Mapping[str, Connection]) -> list[Finding]:
    """Return the findings about hosts that only lab/lab.py creates, by their missing key."""
    by_key: dict[str, list[str]] = {}
    for host, entry in connections.items():
        if entry.get("missing_lab_key"):
            by_key.setdefault(entry["missing_lab_key"], []).append(host)
    return [
        _inventory_finding(
            "inventory-no-lab",
            ", ".join(hosts),
            "the ssh key of the lab's hosts",
            "%s does not exist" % show(key),
            "run %s, which creates these hosts and their key"
            % connections[hosts[0]]["lab_command"],
            "ansible_ssh_private_key_file",
        )
        for key, hosts in sorted(by_key.items())
    ]


def _shared_addresses(connections: Mapping[str, Connection]) -> list[Finding]:
    """Return the findings about addresses that several hosts have.

    Hosts behind one forwarding address differ in their port. Local and container connections have
    no address.
    """
    by_ssh = [
        (host, entry["address"], str(entry["port"]))
        for host, entry in connections.items()
        if entry["connection"].rpartition(".")[2] in _BY_SSH
    ]
    given = [
        (host, entry["cluster_address"], "")
        for host, entry in connections.items()
        if entry["cluster_address"]
    ]
    findings = []
    for variable, hosts in (("ansible_host", by_ssh), ("cluster_address", given)):
        for address, names in _same_address(hosts).items():
            listed = ", ".join(names)
            findings.append(
                _inventory_finding(
                    "inventory-same-address",
                    listed,
                    "every host has its own address",
                    "%s is the address of %s" % (show(address), listed),
                    "give each of %s its own %s, or remove the host that is listed twice"
                    % (listed, variable),
                    variable,
                )
            )
    return findings


def check_inventory(
    groups: Mapping[str, list[str]], connections: Mapping[str, Connection]
) -> list[Finding]:
    """Return the findings about the structure of the inventory.

    C(groups) is {group: [hosts]}, and C(connections) are those of the hosts of group cluster.
    """
    findings = [
        _inventory_finding(
            "inventory-group-name",
            ", ".join(groups[name]),
            "groups cluster, head, storage and gpu",
            "a group named %s" % show(name),
            "did you mean %s? Rename the group" % meant,
        )
        for name, meant in misspelt_groups(groups).items()
    ]
    lacking = _lacking_cluster(groups)
    if lacking:
        return findings + lacking
    return (
        findings
        + _host_names(groups["cluster"], connections)
        + _group_members(groups)
        + _missing_lab(connections)
        + _shared_addresses(connections)
    )
