# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One function per kind of value: types, texts, folders, addresses, names, URLs, images, packages.

Each returns whether a value is valid. Nothing here depends on a role or a variable.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import os
import re
import shlex
import unicodedata

from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Tuple

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs_options import (
    EXPORT,
    MOUNT,
    is_option,
)

__all__ = ["check_type", "describe", "is_plain_text", "mask", "normal", "normal_path", "show"]

_MAX_SHOWN = 160

#: An option of argument_specs: C(type), C(elements), C(choices), C(options), C(required).
Spec = Dict[str, Any]
#: Judges a value of any type.
Judge = Callable[[Any], bool]


class Problem(NamedTuple):
    """What is wrong with a value.

    C(label) is its path within the variable, C(fix) is None for the usual one, C(shows) tells
    whether it shows a value.
    """

    id: str
    label: str
    expected: str
    found: str
    fix: str | None
    shows: bool


class Url(NamedTuple):
    """The parts of a URL, empty if they are not there. C(rest) is path, query and fragment."""

    scheme: str
    credentials: str
    host: str
    port: str
    rest: str


# --- showing values -------------------------------------------------------------------------------------------------------

# Names of secrets, with any prefix: WANDB_API_KEY, --registry-password, splunk-token.
_SECRET = r"[\w.-]{0,64}?(?:token|key|pass|passwd|password|passphrase|pwd|secret|credential|credentials|auth|signature|sig)[0-9_]{0,8}"
_IS_SECRET = re.compile(_SECRET, re.IGNORECASE)
_VALUE = r"(?!['\"]?[*]{3})(?:\"[^\"]*\"?|'[^']*'?|[^\s'\"&]+)"
_NAMED = re.compile(
    r"(?<![\w.-])(%s['\"]?\s*=\s*|--%s\s+|%s['\"]?:\s+)%s" % (_SECRET, _SECRET, _SECRET, _VALUE),
    re.IGNORECASE,
)
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,64})-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_BASE64 = re.compile(
    r"(?=[A-Za-z0-9+/]{0,59}[A-Z])(?=[A-Za-z0-9+/]{0,59}[a-z])[A-Za-z0-9+/]{60,}={0,2}"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}:/{1,3}")
_USER = re.compile(r"[^\s:/@'\"\[]{1,200}:(?!//)(?=\S)")
# An image's digest has an @, too.
_AT = re.compile(r"@(?!sha[0-9]+:)")


def mask(text: str) -> str:
    """Return a text without possible secrets: keys, credentials, the part of a URL after ? or #,
    values with the name of a secret.
    """
    text = _BASE64.sub("***", _BLOCK.sub(r"-----BEGIN \1----- ***", text))
    # Up to the last @, because a password may contain unescaped blanks, / and @.
    ats = [found.start() for found in _AT.finditer(text)]
    scheme, user = _SCHEME.search(text), _USER.search(text)
    if ats and scheme and scheme.end() <= ats[-1]:
        text = text[: scheme.end()] + "***" + text[ats[-1] :]
    elif ats and user and user.end() <= ats[-1]:
        text = text[: user.start()] + "***" + text[ats[-1] :]
    scheme = _SCHEME.search(text)
    query = re.compile("[?#]").search(text, scheme.end()) if scheme else None
    if query:
        begin = query.start()
        text = text[:begin] + re.sub(r"([?&#;])([^?&#;]*)", _mask_part, text[begin:])
    text = re.sub(r"([?&#][\w.-]{1,64}=)[^\s&#'\"]+", r"\1***", text)
    text = _NAMED.sub(r"\1***", text)
    return re.sub(r"(?i)\b(bearer|basic) +[A-Za-z0-9+/=._~-]{8,}", r"\1 ***", text)


def _mask_part(found: re.Match[str]) -> str:
    """Return one name=value of a URL without the value.

    A value without a name is masked as a whole.
    """
    mark, part = found.groups()
    name, equals, value = part.partition("=")
    return mark + (
        name + "=***" if value and re.fullmatch(r"[\w.%-]{1,64}", name) else "***" if part else ""
    )


def _mask_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {_mask_all(key): _mask_value(key, inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mask_all(inner) for inner in value)
    return _mask_part_of(value) if isinstance(value, str) else value


def _mask_value(key: Any, value: Any) -> Any:
    """Return a value of a dictionary without secrets.

    One with the name of a secret is masked as a whole.
    """
    is_secret = isinstance(key, str) and _IS_SECRET.fullmatch(key) is not None
    if is_secret and value and not isinstance(value, (dict, list, tuple)):
        return "***"
    return _mask_all(value)


def _mask_part_of(text: str) -> str:
    # Much longer than the shown part, because an @ after it may end credentials that begin in it.
    return mask(text[:1000] + ("@" if "@" in text[1000:] else ""))


def show(value: Any, most: int = _MAX_SHOWN) -> str:
    """Return a value as one short line without secrets, of at most C(most) characters."""
    value = _mask_all(value)
    # A text of blanks would be invisible.
    text = value if isinstance(value, str) and value.strip() else repr(value)
    text = " ".join("".join(map(_printable, str(text)[:4000])).split())
    return text if len(text) <= most else text[:most] + "..."


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else repr(char)[1:-1]


def show_names(value: Any) -> str:
    """Return a description of environment variables without their values, which may be secrets."""
    if not isinstance(value, dict):
        return "%s (not shown)" % _kind_of(value)
    return (
        "%s (values are not shown)" % show(", ".join(str(name) for name in value))
        if value
        else "{}"
    )


def show_key(value: Any) -> str:
    """Return a description of a value that should be a key or the path of one."""
    text = str(value) if isinstance(value, str) else ""
    shown = _kind_of(value)
    if (
        text
        and "-----" not in text
        and is_plain_text(text)
        and (text.startswith("/") or not re.search(r"[A-Za-z0-9+/=_-]{40,}", text))
    ):
        shown, text = show(text), (_text_of(text) or "" if is_file(text) else "")
        if "-----BEGIN " not in text:
            return shown
    blocks = re.findall(r"-----BEGIN ([A-Z0-9 ]{1,64})-----", text)
    return "%s %s" % (shown, "with %s" % show(" and ".join(blocks)) if blocks else "(not shown)")


def _kind_of(value: Any) -> str:
    kinds: tuple[tuple[tuple[type, ...], str], ...] = (
        ((bool,), "true or false"),
        ((str,), "a text"),
        ((dict,), "a dictionary"),
        ((list, tuple), "a list"),
        ((int, float), "a number"),
    )
    return next(
        (words for kind, words in kinds if isinstance(value, kind)),
        "no value (null)" if value is None else type(value).__name__,
    )


# --- types ----------------------------------------------------------------------------------------------------------------

_TRUE = ("y", "yes", "on", "1", "true", "t")
_FALSE = ("n", "no", "off", "0", "false", "f")


def describe(spec: Spec) -> str:
    """Return the expected type of an option of argument_specs as text."""
    if "choices" in spec:
        return "one of %s" % ", ".join(str(choice) for choice in spec["choices"])
    kind: str = spec.get("type", "str")
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
        words += " of %s" % {
            "str": "texts",
            "int": "integers",
            "dict": "dictionaries",
            "path": "paths",
        }.get(spec["elements"], spec["elements"])
    if "options" in spec:
        words += " with the keys %s" % ", ".join(sorted(spec["options"]))
    return words


def as_number(value: Any, kind: str = "int") -> float | None:
    """Return a number, also one written as text; None for other values, including true and
    false.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value
        if re.fullmatch(r"[+-]?[0-9]{1,30}", text):
            value = int(text)
        elif kind == "float" and re.fullmatch(
            r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2})?", text
        ):
            value = float(text)
        else:
            return None
    if not isinstance(value, (int, float)) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        return None
    if kind == "int":
        return int(value) if value == int(value) else None
    return float(value)


def _scalar(spec: Spec, kind: str, value: Any) -> tuple[Any, Any, str | None]:
    """Return (value, found, fix). found is None for a valid value.

    Without fix, the usual one applies.
    """
    if kind in ("int", "float"):
        number = as_number(value, kind)
        return (number, None, None) if number is not None else (value, value, None)
    if kind == "bool":
        if isinstance(value, bool):
            return value, None, None
        text = str(value).lower() if isinstance(value, (str, int)) else ""
        return (text in _TRUE, None, None) if text in _TRUE + _FALSE else (value, value, None)
    if kind in ("str", "path"):
        if isinstance(value, bool):
            return value, "true or false without quotes: %s" % value, "quote it"
        if isinstance(value, int):
            return str(value), None, None
        if isinstance(value, float):
            return value, "a number without quotes, which YAML reads as %s" % value, "quote it"
        if isinstance(value, str):
            return str(value), None, None
        if value is None:
            return value, "no value (null)", None
        if isinstance(value, (list, tuple, dict)):
            return (
                value,
                "%s: %s" % ("a dictionary" if isinstance(value, dict) else "a list", show(value)),
                None,
            )
        return value, "%s without quotes: %s" % (type(value).__name__, show(str(value))), "quote it"
    return value, None, None


def check_type(spec: Spec, value: Any, label: str = "") -> tuple[Any, list[Problem]]:
    """Return (value, problems) of a value against an option of argument_specs.

    Numbers in the value, also those written as text, have the type of the option. C(label) is the
    path of the value within the variable.
    """
    problems: list[Problem] = []
    return _check(spec, value, label, problems), problems


def _check(spec: Spec, value: Any, label: str, problems: list[Problem]) -> Any:
    """Return a value with the type of the option, and add what is wrong with it to the problems."""

    def refuse(found: str, fix: str | None = None, check: str = "input-type") -> None:
        problems.append(Problem(check, label, describe(spec), found, fix, True))

    kind = spec.get("type", "str")
    if kind == "raw":
        return value
    if kind in ("list", "dict") and (value is None or value == ""):
        # Ansible's default for a missing value.
        return [] if kind == "list" else {}
    if kind == "list":
        if not isinstance(value, (list, tuple)):
            refuse(show(value))
            return value
        inner = dict(spec, type=spec.get("elements", "raw"))
        return [
            _check(inner, entry, "%s[%d]" % (label, number), problems)
            for number, entry in enumerate(value)
        ]
    if kind == "dict":
        if not isinstance(value, dict):
            refuse(show(value))
            return value
        return _check_keys(spec, value, label, problems)
    checked, found, fix = _scalar(spec, kind, value)
    if found is not None:
        refuse(show(found), fix)
        return value
    if "choices" in spec and checked not in spec["choices"]:
        # A number is valid as a text, and vice versa.
        refuse(show(checked), check="input-choice")
    return checked


UNKNOWN_KEY = "an unknown key "


def _meant_key(key: str, value: Any, options: Mapping[str, Spec]) -> str:
    """Return the key of C(options) that C(key) misspells, '' if there is none: near enough for its
    length, and with a value of its type.
    """
    plain = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).replace("-", "_").lower()
    close = nearest(plain, options, 0 if len(plain) < 4 else 1 if len(plain) < 6 else 2)
    # home is no name, and uid no gid.
    return close if close and not check_type(options[close], value)[1] else ""


def _check_keys(
    spec: Spec, value: dict[Any, Any], label: str, problems: list[Problem]
) -> dict[str, Any]:
    options = spec.get("options")
    if options is None:
        return {str(key): inner for key, inner in value.items()}

    def refuse(found: str, fix: str) -> None:
        problems.append(Problem("input-type", label, describe(spec), found, fix, False))

    result: dict[str, Any] = {}
    for key, inner in value.items():
        if key not in options:
            close = _meant_key(str(key), inner, options)
            fix = "did you mean %s?" % close if close else "remove the key"
            refuse(UNKNOWN_KEY + show(str(key)), fix)
        elif inner is None and not options[key].get("required"):
            # Ansible treats it as not set.
            result[key] = None
        else:
            result[key] = _check(options[key], inner, "%s.%s" % (label, key), problems)
    for key, option in options.items():
        if option.get("required") and key not in value:
            refuse("no key %s" % key, "add %s: %s" % (key, describe(option)))
    return result


# --- misspelt names ------------------------------------------------------------------------------------------


def distance(one: str, other: str, most: int = 2) -> int:
    """Return the number of letters to add, drop, change or swap with their neighbour to convert one
    into the other; most + 1 if it is more.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, its in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != its))
            if older and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)


def nearest(name: str, known: Iterable[str], most: int = 2) -> str:
    """Return the nearest known name, '' if none is near enough."""
    best, least = "", most + 1
    for other in sorted(known):
        apart = distance(name, other, least - 1) if least else least
        if apart < least:
            best, least = other, apart
    return best


# --- texts ----------------------------------------------------------------------------------------------------------------


def is_plain_text(text: str, tabs: bool = False) -> bool:
    """Return whether a text is one line without control characters."""
    return not any(
        unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") and not (tabs and char == "\t")
        for char in text
    )


def is_command(value: Any) -> bool:
    """A text that a shell reads as one or more words."""
    try:
        return is_text(value) and "\0" not in str(value) and shlex.split(str(value)) != []
    except ValueError:
        return False


def is_text(value: Any) -> bool:
    """A text or a whole number, which YAML makes of digits without quotes."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def matches(value: Any, regex: str) -> bool:
    """Return whether the whole of a text or a number matches a regular expression, of ASCII."""
    return is_text(value) and re.fullmatch(regex, str(value), re.ASCII) is not None


def is_environment(value: Any, kind: object = True) -> bool:
    """Environment variables: valid shell names, no lists or dictionaries, one line each. kind
    unset: also null, which removes a variable, and line breaks.
    """
    return environment_faults(value, kind) == []


def environment_faults(value: Any, kind: object = True) -> list[str]:
    """Return what is wrong with environment variables, without showing values."""
    if not isinstance(value, dict):
        return ["%s (not shown)" % _kind_of(value)]
    faults = []
    for name, inner in value.items():
        if not matches(name, "[A-Za-z_][A-Za-z0-9_]*"):
            faults.append("the name '%s'" % show(str(name)))
        elif inner is None and kind == "unset":
            continue
        elif not isinstance(inner, (str, int, float)):
            faults.append("%s is %s" % (name, _kind_of(inner)))
        elif not is_plain_text(
            re.sub(r"[\r\n\t]", "", str(inner)) if kind == "unset" else str(inner)
        ):
            faults.append("%s is a text with control characters" % name)
    return faults


# Functions of make on texts and names of files. The others run commands, write files or evaluate
# what they made.
_OF_TEXTS = frozenset(
    (
        "abspath addprefix addsuffix and basename dir filter filter-out findstring firstword "
        "if join lastword notdir or patsubst realpath sort strip subst "
        "suffix wildcard word wordlist words"
    ).split()
)


def make_faults(value: Any) -> list[str]:
    """Return the names of variables of make, C(value), whose value could run a command: by a
    function of make, or in the shell of a rule that uses it.
    """
    faults = []
    for name, inner in value.items() if isinstance(value, dict) else ():
        text = str(inner)
        called = re.findall(r"\$[({]\s*([A-Za-z_][A-Za-z0-9_-]*)(?=\s)", text)
        # $$ is a $ of the shell. $(NAME) and ${NAME:a=b} are variables of make.
        odd = re.sub(r"\$[({]\s*[A-Za-z_]|\$[A-Za-z@<^?*]", "", text)
        if set(called) - _OF_TEXTS or re.search(r"[`;|&<>\n\r$]", odd):
            faults.append(str(name))
    return faults


# --- folders --------------------------------------------------------------------------------------------------------------


def normal_path(path: str) -> str:
    """Return a normalized absolute path: //a/./b/ is /a/b."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def normal(value: Any) -> Any:
    """Return the normal form of a value, for comparisons."""
    if isinstance(value, str) and value.startswith("/"):
        return normal_path(value)
    if isinstance(value, dict):
        return tuple(sorted((str(key), repr(normal(inner))) for key, inner in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(normal(inner) for inner in value)
    return value


# Linux's limits in bytes, for a path with the NUL at its end, and for a name in it.
_PATH_MAX, _NAME_MAX = 4096, 255


def is_absolute(value: Any) -> bool:
    """An absolute path of one line, without .. and within Linux's limits. It may be / itself."""
    parts = str(value).split("/")
    return (
        is_text(value)
        and str(value).startswith("/")
        and ".." not in parts
        and is_plain_text(str(value))
        and len(os.fsencode(str(value))) < _PATH_MAX
        and all(len(os.fsencode(part)) <= _NAME_MAX for part in parts)
    )


def is_path(value: Any) -> bool:
    """The same without /."""
    return is_absolute(value) and normal_path(str(value)) != "/"


def is_plain_path(value: Any, root: bool = False) -> bool:
    """An absolute path of letters, digits and a few marks, which needs no quotes in shells, units
    and configuration files. root: also / itself.

    Each folder once: roles cut paths at their slashes and compare them as texts. Only a slash at
    the end is nothing to them.
    """
    is_valid = is_absolute(value) if root else is_path(value)
    return (
        is_valid
        and all(char.isalpha() or char in "0123456789._/+@=~-" for char in str(value))
        and ((str(value).rstrip("/") or "/") == normal_path(str(value)))
    )


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is in a folder, at any depth."""
    return (
        normal_path(path).startswith(normal_path(folder).rstrip("/") + "/")
        and normal_path(path) != "/"
    )


_SYSTEM = frozenset(
    (
        "bin",
        "boot",
        "dev",
        "efi",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "lost+found",
        "proc",
        "root",
        "run",
        "sbin",
        "snap",
        "sys",
        "tmp",
        "usr",
    )
)
_OF_VAR = frozenset(
    (
        "backups",
        "cache",
        "crash",
        "lib",
        "lock",
        "log",
        "mail",
        "metrics",
        "run",
        "snap",
        "spool",
        "tmp",
    )
)
# Users write to these in their own folders.
_KEYS = frozenset((".ssh", ".gnupg"))


def _parts_of(value: Any) -> list[str]:
    """Return the folders of a path; /var/run is /run."""
    parts = normal_path(str(value)).split("/")[1:]
    parts[0] = parts[0].lower()
    return parts[1:] if parts[:2] == ["var", "run"] else parts


def is_folder(value: Any, use: str) -> bool:
    """Return whether a role may use a folder in this way: share, export, mount, tree, data, prefix,
    program, reports, target, source, lent.
    """
    if not is_path(value):
        return False
    if use in _USES:
        return _USES[use](_parts_of(value))
    parts = normal_path(str(value)).split("/")[1:]
    top, alone = parts[0].lower(), len(parts) == 1
    if use == "target":
        return _is_target(parts)
    if not _KEYS.isdisjoint(parts):
        return False
    if use == "prefix":
        return parts[:2] == ["usr", "local"] or is_folder(value, "tree")
    if use == "data":
        # Docker's folders and those of this collection are beside those of services.
        if top == "var" and parts[1:2] == ["lib"]:
            return len(parts) > 2
        return top not in _SYSTEM - {"tmp"} and not (
            alone and top in ("home", "opt", "srv", "var", "mnt", "media")
        )
    return _is_shared_folder(parts, use)


def _is_target(parts: list[str]) -> bool:
    """Whether something can be mounted there in a container: single libraries may be replaced, but
    not kernel interfaces and whole system folders.
    """
    top = parts[0].lower()
    if parts == ["dev", "shm"]:
        return True
    if len(parts) == 1 and top in _SYSTEM - {"efi", "tmp", "snap", "lost+found"}:
        return False
    return top not in ("proc", "sys", "dev")


def _is_shared_folder(parts: list[str], use: str) -> bool:
    """Whether a folder of a host can be a share, an export, a mount or a tree."""
    top, alone = parts[0].lower(), len(parts) == 1
    if top in _SYSTEM:
        return False
    if top == "var":
        return use in ("export", "mount") and not alone and parts[1].lower() not in _OF_VAR
    if use == "share":
        return top not in ("home", "opt")
    if use == "export":
        # The folder gets an access list, which ssh rejects for a home.
        return not (top in ("home", "opt", "mnt", "media") and alone)
    if use == "mount":
        return not (top in ("opt", "media") and alone)
    return True


# Files of /etc that are commonly mounted into containers. None of them controls permissions.
_LENT_OF_ETC = frozenset(
    (
        "hostname hosts krb5.conf libibverbs.d localtime machine-id nccl.conf nsswitch.conf rdma "
        "resolv.conf timezone"
    ).split()
)
# Folders of /usr/local from which the host's root runs or loads programs.
_RUN_OF_LOCAL = frozenset("bin etc games include lib lib64 libexec sbin".split())
# Files of /root with keys and passwords, or that run at login.
_OF_ROOT = frozenset(
    (
        ".aws .azure .bash_login .bash_logout .bash_profile .bashrc .docker .git-credentials "
        ".kube .netrc .pgpass .profile .zshenv "
        ".zshrc"
    ).split()
)
# Folders of /var/lib that belong to services of the host.
_SERVICES = frozenset(
    (
        "apt containerd containers dbus docker dpkg initramfs-tools kubelet lxc nfs pam "
        "polkit-1 private snapd sudo systemd "
        "trainyard"
    ).split()
)
# Entries of /run that give root access to the host.
_CONTROL = frozenset(
    "containerd cri-dockerd.sock crio dbus docker docker.sock initctl podman".split()
)


def _is_source(parts: list[str]) -> bool:
    """Paths of the host that a container may write to."""
    top, inner = parts[0], parts[1:]
    if not _KEYS.isdisjoint(parts):
        return False
    if top == "etc":
        return len(inner) == 1 and inner[0] in _LENT_OF_ETC
    if top == "usr":
        return inner[:1] == ["local"] and len(inner) > 1 and inner[1] not in _RUN_OF_LOCAL
    if top == "root":
        return inner != [] and inner[0] not in _OF_ROOT and inner[:2] != [".config", "gcloud"]
    if top == "run":
        return inner != [] and inner[0] not in _CONTROL | {
            "lock",
            "mount",
            "sudo",
            "systemd",
            "udev",
        }
    if top == "dev":
        return inner != []
    if top == "var":
        return _is_source_of_var(inner)
    return top not in _SYSTEM - {"tmp"}


def _is_source_of_var(inner: list[str]) -> bool:
    """Whether a container may write to a path below /var."""
    if not inner or inner[0] in ("backups", "lock"):
        return False
    if len(inner) == 1:
        return inner[0] == "tmp" or inner[0] not in _OF_VAR
    if inner[0] == "lib" and inner[1] in _SERVICES:
        return False
    return inner[:2] not in (["spool", "cron"], ["spool", "anacron"])


def _is_lent(parts: list[str]) -> bool:
    """Paths that may be mounted into a container at all: a request to a service of the host needs
    no write permission.
    """
    return parts[0] != "run" or (
        len(parts) > 1
        and parts[1] not in _CONTROL
        and parts[1:] not in (["systemd"], ["systemd", "private"])
    )


def _is_program(parts: list[str]) -> bool:
    """Folders where CUDA, MPI and similar programs may be installed."""
    return parts[0] not in ("boot", "dev", "efi", "lost+found", "proc", "run", "sbin", "sys") and (
        parts[0] != "etc" or parts[1:2] == ["alternatives"]
    )


def _is_for_reports(parts: list[str]) -> bool:
    """Folders that the controller may write to.

    The default is beside the inventory, which may be in /etc/ansible or in a home.
    """
    top, inner = parts[0], parts[1:]
    if top in (
        "bin",
        "boot",
        "dev",
        "efi",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "lost+found",
        "proc",
        "sbin",
        "snap",
        "sys",
    ) or not _KEYS.isdisjoint(parts):
        return False
    if top == "etc":
        return inner[:1] in (["ansible"], ["trainyard"])
    if top == "usr":
        return inner[:1] in (["local"], ["share"], ["src"]) and len(inner) > 1
    if top == "var":
        return len(inner) > 1 or (inner != [] and inner[0] not in _OF_VAR - {"log", "tmp"})
    return top not in ("home", "run") or inner != []


_USES = {"source": _is_source, "lent": _is_lent, "program": _is_program, "reports": _is_for_reports}

_DISKS = re.compile(
    r"([hsv]|xv)d[a-z]+[0-9]*|nvme[0-9].*|mmcblk[0-9].*|pmem[0-9].*|md[0-9_].*|dm-[0-9]+|md|disk|mapper|mem|kmem|port"
)


def is_device(value: Any) -> bool:
    """A device in /dev that may be passed to a container: not a disk or memory of the host."""
    return (
        is_path(value)
        and str(value).rstrip("/") == normal_path(str(value))
        and matches(value, "/dev/[A-Za-z0-9][A-Za-z0-9._/-]*")
        and _DISKS.fullmatch(str(value).split("/")[2]) is None
    )


# --- addresses and names --------------------------------------------------------------------------------------------------

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"


def is_ip(value: Any, version: int | None = None) -> bool:
    """An address of IPv4 (C(version) 4), IPv6 (6), or either (None)."""
    try:
        return (
            isinstance(value, str)
            and "%" not in value
            and ipaddress.ip_address(value).version in (version or 4, version or 6)
        )
    except ValueError:
        return False


def is_address(value: Any, kind: object = True) -> bool:
    """kind true: an IPv4 address that another host can reach; any: an address of a service in
    either family.
    """
    if not is_ip(value, 4 if kind is True else None):
        return False
    address = ipaddress.ip_address(value)
    if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
        return False
    return kind == "any" or not (address.is_loopback or address.is_reserved)


def is_network(value: Any) -> bool:
    """An IPv4 network with a prefix of 4 or more, such as 10.0.0.0/24."""
    try:
        network = (
            ipaddress.IPv4Network(value)
            if isinstance(value, str) and re.fullmatch(r"[0-9.]+/[0-9]{1,2}", value)
            else None
        )
    except ValueError:
        return False
    return (
        network is not None
        and network.prefixlen >= 4
        and not (network.is_loopback or network.is_multicast or network.is_unspecified)
    )


def are_networks(value: Any) -> bool:
    """One network, or several in a list or with commas, none of which overlaps another one."""
    each = value.split(",") if isinstance(value, str) else value
    if not isinstance(each, (list, tuple)) or not each or not all(map(is_network, each)):
        return False
    networks = [ipaddress.IPv4Network(text) for text in each]
    return not any(one.overlaps(other) for one, other in itertools.combinations(networks, 2))


def is_inside(address: str, network: str) -> bool:
    """Return whether an address is a host address in this network, and not its network or broadcast
    address.
    """
    host, around = ipaddress.IPv4Address(address), ipaddress.IPv4Network(network)
    if host not in around:
        return False
    return around.prefixlen > 30 or host not in (around.network_address, around.broadcast_address)


def is_hostname(value: Any) -> bool:
    """Labels of RFC 1123, and the underscore, which inventories use."""
    if not isinstance(value, str) or len(value) > 253:
        return False
    name = value[:-1] if value.endswith(".") else value
    # A name that looks like an address is a misspelt address.
    return all(re.fullmatch(_LABEL, label) for label in name.split(".")) and not (
        "." in name and re.fullmatch("[0-9]+", name.rpartition(".")[2])
    )


def is_server(value: Any) -> bool:
    """A name or address of one host: not of many, all or no hosts."""
    return is_hostname(value) or is_address(value, "any")


def is_host(value: Any) -> bool:
    """The name or the address of a host."""
    return is_hostname(value) or is_ip(value)


def is_client(value: Any) -> bool:
    """A client of an export: a host, or a network without host bits that is not the whole
    internet.
    """
    if not isinstance(value, str):
        return False
    if "/" in value:
        try:
            network = (
                ipaddress.ip_network(value)
                if re.fullmatch(r"[0-9A-Fa-f:.]+/[0-9]{1,3}", value)
                else None
            )
        except ValueError:
            return False
        return network is not None and network.prefixlen >= 4 and not network.is_multicast
    return is_hostname(value) or is_address(value, "any")


def is_no_proxy(value: object) -> bool:
    """An entry of no_proxy: a host, an address, a network, .domain or *, each with or without a
    port.
    """
    if not isinstance(value, str) or value == "*":
        return value == "*"
    if "/" in value:
        try:
            return bool(re.fullmatch(r"[0-9A-Fa-f:.]+/[0-9]{1,3}", value)) and bool(
                ipaddress.ip_network(value, strict=False)
            )
        except ValueError:
            return False
    name = (
        re.sub(r":[0-9]{1,5}\Z", "", value)
        if value.count(":") == 1
        else value.strip("[]")
        if is_ip(value.strip("[]"))
        else value
    )
    return is_host(re.sub(r"\A(\*\.|\.)", "", name))


# --- NFS ------------------------------------------------------------------------------------------------------------------

_OPTIONS = {"mount": MOUNT, "export": EXPORT}


def is_nfs_option(value: Any, kind: str) -> bool:
    """kind mount or export: an option of it, with a valid value."""
    return isinstance(value, str) and is_option(value, _OPTIONS[kind])


def nearest_option(value: str, kind: str) -> str:
    """Return the valid option nearest to a misspelt one, with its value; '' if there is none."""
    name, equals, rest = value.partition("=")
    near = nearest(name, _OPTIONS[kind], 2 if len(name) > 4 else 1)
    return (
        near + equals + rest
        if near and near != name and is_nfs_option(near + equals + rest, kind)
        else ""
    )


# --- URLs -----------------------------------------------------------------------------------------------------------------

_URL_CHARACTERS = r"[A-Za-z0-9._~:/?#\[\]@!$&()*+,;=%-]+"


def split_url(value: object) -> Url | None:
    """Return the parts of a URL, None for other text."""
    if not isinstance(value, str) or not re.fullmatch(_URL_CHARACTERS, value):
        return None
    found = re.fullmatch(
        r"([a-z][a-z0-9+.-]*)://(?:([^/?#]*)@)?(\[[0-9A-Fa-f:.]+\]|[^/?#:@\[\]]*)(?::([0-9]{1,5}))?([/?#].*)?",
        value,
    )
    return Url(*(part or "" for part in found.groups())) if found else None


def is_url(value: Any, kind: object = True) -> bool:
    """kind is a dictionary: schemes, ends (of the path), credentials and path (whether they are
    allowed); true for the defaults.
    """
    allowed: dict[str, Any] = kind if isinstance(kind, dict) else {}
    url = split_url(value)
    if url is None or url.scheme not in allowed.get("schemes", ["https", "http", "file"]):
        return False
    # An @ elsewhere is not needed in any known URL, and it could not be masked correctly.
    has_at = "@" in value.partition("://")[2]
    if "@" in url.host or has_at and not (url.credentials and allowed.get("credentials")):
        return False
    if not _is_rest(url.rest, allowed):
        return False
    if url.scheme == "file":
        return url.host in ("", "localhost") and is_path(url.rest or "/")
    return is_host(url.host.strip("[]")) and (not url.port or _is_port(url.port))


def _is_rest(rest: str, allowed: dict[str, Any]) -> bool:
    """Return whether what a URL has after the host ends as it may, and is a path only if it may."""
    if allowed.get("ends") and not re.split("[?#]", rest)[0].endswith(tuple(allowed["ends"])):
        return False
    return bool(allowed.get("path", True)) or rest in ("", "/")


def _is_port(text: str) -> bool:
    return 0 < int(text) < 65536


# --- options of a program's configuration file ----------------------------------------------------------------------------


def _is_list(judge: Judge) -> Judge:
    return lambda value: isinstance(value, (list, tuple)) and all(judge(inner) for inner in value)


def _is_by_name(judge: Judge) -> Judge:
    return lambda value: isinstance(value, dict) and all(judge(inner) for inner in value.values())


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_with_length(value: Any) -> bool:
    try:
        return isinstance(value, str) and "/" in value and bool(ipaddress.ip_interface(value))
    except ValueError:
        return False


def _is_runtime_path(value: Any) -> bool:
    parts = normal_path(str(value)).split("/")[1:]
    return is_plain_path(value) and (
        (len(parts) > 1 and parts[0] == "run")
        or (len(parts) > 2 and parts[:2] == ["var", "run"])
        or is_folder(value, "data")
    )


# JSON is strict: programs accept no text for a number, and no number for a text.
_OPTION_KINDS = {
    "boolean": (_is_bool, "true or false, without quotes"),
    "integer": (_is_integer, "a whole number, without quotes"),
    "count": (
        lambda value: _is_integer(value) and 0 <= value < 1 << 32,
        "a whole number from 0 on, without quotes",
    ),
    "text": (_is_text, "text"),
    "texts": (_is_list(_is_text), "a list of texts"),
    "texts_by_name": (
        _is_by_name(_is_text),
        "a dictionary of texts; quote numbers, true and false",
    ),
    "booleans_by_name": (_is_by_name(_is_bool), "a dictionary of true or false, without quotes"),
    "dictionary": (_is_dict, "a dictionary"),
    "dictionaries": (_is_list(_is_dict), "a list of dictionaries"),
    "dictionaries_by_name": (_is_by_name(_is_dict), "a dictionary of dictionaries"),
    "address": (lambda value: value == "" or is_ip(value), "an address such as 10.0.0.1"),
    "addresses": (_is_list(is_ip), "a list of addresses such as 10.0.0.53"),
    "address_with_length": (
        lambda value: value == "" or _is_with_length(value),
        "an address with the length of its network, such as 172.30.0.1/16",
    ),
    "size": (
        lambda value: (
            isinstance(value, str) and matches(value, r"(?i)[0-9]+([.][0-9]+)? ?[kmgtp]?i?b?")
        ),
        'a size as text, such as "64M"',
    ),
    "paths": (_is_list(is_path), "a list of absolute paths"),
    "runtime_path": (
        _is_runtime_path,
        "a path in /run, or below a folder that is not a system folder",
    ),
    "mirrors": (
        _is_list(lambda value: is_url(value, {"schemes": ["http", "https"]})),
        "a list of URLs such as https://mirror.example.org, without credentials",
    ),
}


def option_kinds() -> frozenset[str]:
    """Return the kinds that option data can use."""
    return frozenset(_OPTION_KINDS)


#: Name of an option, what is expected, and what to do.
OptionFault = Tuple[str, str, str]


def option_faults(
    value: Mapping[Any, Any], known: Mapping[str, Any], others: Mapping[str, str]
) -> list[OptionFault]:
    """Return the options of a file that a program would reject or silently ignore.

    C(known) is {name: a kind, or a list of words}, C(others) {name: the known one that took its
    place}. Other names are left to the program, unless they are nearly known.
    """
    faults = []
    for key, inner in value.items():
        name = str(key)
        fault = (
            _value_fault(inner, known[name])
            if name in known
            else _unknown_name_fault(name, known, others)
        )
        if fault:
            faults.append((name, *fault))
    return faults


def _value_fault(value: Any, kind: str | list[str]) -> tuple[str, str] | None:
    """Return what is expected, and what to do, if an option has a value of another kind."""
    if isinstance(kind, list):
        is_word = isinstance(value, str) and (not value or value.lower() in kind)
        return None if is_word else ("one of %s" % ", ".join(kind), "")
    judge, expected = _OPTION_KINDS[kind]
    return None if judge(value) else (expected, "")


def _unknown_name_fault(
    name: str, known: Mapping[str, Any], others: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return what is expected, and what to do, if the name of an option is nearly known, or is
    none.
    """
    plain = re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", name).replace("_", "-").lower()
    near = others.get(plain) or ""
    if not near:
        near = plain if plain in known else nearest(plain, known, 2 if len(plain) > 4 else 1)
    # ip6tables is similar to iptables, but a newer release may have it.
    is_other = re.sub("[0-9]", "", plain) != re.sub("[0-9]", "", near)
    if near and (plain != name or plain in others or is_other):
        return "the name of an option", "did you mean %s?" % near
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
        return "names of lower-case letters, digits and -", "correct the name"
    return None


# --- images and packages --------------------------------------------------------------------------------------------------

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"


def is_image(value: object) -> bool:
    """The grammar of references of github.com/distribution/reference."""
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]{1,512}", value):
        return False
    found = re.fullmatch(
        r"(?P<name>[^@]+?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?",
        value,
    )
    if not found:
        return False
    path = found.group("name")
    first, slash, rest = path.partition("/")
    if slash and _is_registry(first):
        if not _is_host_with_port(first):
            return False
        path = rest
    # 64 hexadecimal digits are an id.
    return (
        len(path) <= 255
        and all(re.fullmatch(_COMPONENT, part) for part in path.split("/"))
        and not re.fullmatch("[0-9a-f]{64}", path)
    )


def _is_registry(first: str) -> bool:
    """Return whether the part of a name before the first slash is a registry."""
    return "." in first or ":" in first or first == "localhost" or first != first.lower()


def _is_host_with_port(text: str) -> bool:
    host, colon, port = text, "", ""
    if re.search(r":[0-9]+\Z", text):
        host, colon, port = text.rpartition(":")
    return is_host(host.strip("[]")) and (not colon or _is_port(port))


def image_registry(value: str) -> str:
    """Return the registry of an image's name; docker.io where it names none."""
    first, slash, _rest = value.partition("/")
    return first if slash and _is_registry(first) else "docker.io"


# Names of Docker Hub in logins.
_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


def is_registry_of(value: str, image: str) -> bool:
    """Return whether a registry is that of an image's name."""
    registries = [name.lower() for name in (value, image_registry(image))]
    return registries[0] == registries[1] or set(registries) <= set(_HUB)


def is_version(value: Any) -> bool:
    """A version in the notation of tools and package managers, without an epoch: 12.6,
    2.6.0a0+ecf3, 2.21.5-1+cuda12.4, 4.1.7+.
    """
    return matches(
        value,
        r"[0-9]+([.][0-9]+)*([-+~][A-Za-z0-9][A-Za-z0-9.+~-]*|[.]?[A-Za-z][A-Za-z0-9.+~-]*|[+])?",
    )


def is_checksum(value: object, kind: object = True) -> bool:
    """kind true: sha256:DIGITS; bare: the digits; list: several, separated by blanks.

    Roles compare them in lower case.
    """
    digits = "[0-9A-Fa-f]{64}"
    if kind == "bare":
        return matches(value, digits)
    if kind == "list":
        return matches(value, "sha256:%s( sha256:%s)*" % (digits, digits))
    return matches(value, "sha256:%s" % digits)


def is_nccl_build(value: Any, kind: object = True) -> bool:
    """kind exact: 2.21.5-1+cuda12.4; true: that, or a release."""
    if not is_text(value):
        return False
    return NcclBuild.parse(str(value)) is not None or (
        kind != "exact" and NcclBuild.is_release(str(value))
    )


# PEP 440.
_PIP_VERSION = (
    r"(?i:v?([0-9]+!)?[0-9]+([.][0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*)?(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?"
    r"([-_.]?dev[-_.]?[0-9]*)?([+][a-z0-9]+([-_.][a-z0-9]+)*)?)"
)
_PINNED = (
    r"(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?==(?P<version>%s)"
    % _PIP_VERSION
)
# PEP 508: words of a condition.
_OF_MARKER = (
    "python_version",
    "python_full_version",
    "os_name",
    "sys_platform",
    "platform_release",
    "platform_system",
    "platform_version",
    "platform_machine",
    "platform_python_implementation",
    "implementation_name",
    "implementation_version",
    "extra",
)
_MARKER_WORD = re.compile(
    r"""\s*(?:(?P<value>'[^']*'|"[^"]*"|%s)|(?P<op><=|>=|===|==|!=|~=|<|>|not\s+in\b|in\b)|(?P<join>and\b|or\b)|(?P<mark>[()]))"""
    % "|".join(word + r"\b" for word in sorted(_OF_MARKER, key=len, reverse=True))
)


def is_marker(text: str) -> bool:
    """Return whether a text is a condition of a requirement: python_version < "3.7" and (os_name ==
    "posix" or extra == "x").
    """
    if len(text) > 1000:
        return False
    words, place, depth = "", 0, 0
    while text[place:].strip():
        found = _MARKER_WORD.match(text, place)
        if not found:
            return False
        place = found.end()
        mark = found.group("mark")
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0:
            return False
        words += mark or {"value": "v", "op": "o", "join": "j"}[str(found.lastgroup)]
    # Comparisons joined by and, or; parentheses around conditions.
    before = None
    while before != words:
        before, words = (
            words,
            re.sub(r"\(v?c\)", "c", words.replace("vov", "c")).replace("cjc", "c"),
        )
    return words == "c"


def is_package(value: Any, kind: object = True) -> bool:
    """kind true: NAME, NAME:ARCHITECTURE, NAME=VERSION of Debian; pinned: NAME==VERSION of pip;
    requirement: that with conditions.
    """
    if kind is True:
        return matches(
            value,
            r"[a-z0-9][a-z0-9+.-]{1,127}(:[a-z0-9-]+)?(=([0-9]+:)?[A-Za-z0-9.+~-][A-Za-z0-9.+:~-]*)?",
        )
    if not is_text(value):
        return False
    package, semicolon, marker = str(value).partition(";")
    if semicolon and (kind == "pinned" or not is_plain_text(marker) or not is_marker(marker)):
        return False
    return matches(package.rstrip(" ") if semicolon else package, _PINNED)


def is_one_version_each(values: Iterable[Any]) -> bool:
    """Return whether every pip package has at most one version under the same condition."""
    versions: dict[tuple[str, str], str] = {}
    for value in values:
        package, _semicolon, marker = str(value).partition(";")
        found = re.fullmatch(_PINNED, package.strip(), re.ASCII)
        if found:
            # a_b, a.b and A-B are the same package.
            name = re.sub("[-_.]+", "-", found.group("name")).lower()
            if versions.setdefault(
                (name, "".join(marker.split())), found.group("version")
            ) != found.group("version"):
                return False
    return True


def is_key(value: Any, kind: str) -> bool:
    """Only ASCII-armored blocks of this kind, or the absolute path of a file on the controller that
    has them.
    """
    if not isinstance(value, str):
        return False
    if "-----BEGIN" in value:
        return _is_armor(value, kind) and is_plain_text(
            value.replace("\n", "").replace("\r", ""), tabs=True
        )
    if not is_file(value):
        return False
    text = _text_of(value)
    # A file that only root may read fails later, when it is read.
    return text is None or _is_armor(text, kind)


def _text_of(path: str) -> str | None:
    """Return the beginning of a file on the controller, '' if it is not text, None if it cannot be
    read.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read(16 << 20)
    except UnicodeDecodeError:
        return ""
    except OSError:
        return None


def _is_armor(text: str, kind: str) -> bool:
    blocks = text.split("-----BEGIN ")[1:]
    return bool(blocks) and all(_is_block(block, kind) for block in blocks)


def _is_block(block: str, kind: str) -> bool:
    body, end, after = block.partition("-----END %s-----" % kind)
    if not body.startswith(kind + "-----") or not end or "-----END " in after:
        return False
    lines = [line.strip() for line in body[len(kind) + 5 :].strip().splitlines()]
    # Headers such as Comment end with an empty line, which is a dot in apt's files. The last line
    # of a PGP block, after an equals sign, is a checksum.
    empty = next((number for number, line in enumerate(lines) if line in ("", ".")), 0)
    if all(": " in line for line in lines[:empty]):
        lines = lines[empty:]
    text = "".join(
        line for line in lines if line != "." and not re.fullmatch("=[A-Za-z0-9+/]{4}", line)
    )
    return re.fullmatch("[A-Za-z0-9+/]+={0,2}", text) is not None


def is_file(value: Any, kind: object = True) -> bool:
    """kind true: an absolute path of a file on the controller; directory: of a folder."""
    return is_path(value) and (
        os.path.isdir(str(value)) if kind == "directory" else os.path.isfile(str(value))
    )
