# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values of C(daemon.json) that dockerd accepts but that fail later. Options in, findings out.

dockerd checks types and some values when it reads the file (see C(_daemon_check)). All others it
takes as they are, and its next start fails with them, or it starts and no container does. What is
listed here was seen with dockerd 20.10.24. Later versions check more of it themselves. What depends
on the host, such as whether its file system can hold a storage driver, is not judged.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import resource

from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

#: The options of daemon.json. Values are JSON of any type, unless a judge is asked about them.
Options = Dict[str, Any]
#: FAIL or WARN, and a text.
Finding = Tuple[str, str]
Findings = Iterator[Finding]
#: Judges a value of the type of its option, with all options and the version of Docker, which is
#: empty if unknown.
Judge = Callable[[Any, Options, List[int]], Findings]

# The engine does not start; or it starts but containers do not, or the option has no effect.
FAIL, WARN = "fail", "warn"
LOG_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "panic")
STORAGE_DRIVERS = (
    "aufs",
    "btrfs",
    "devicemapper",
    "fuse-overlayfs",
    "overlay",
    "overlay2",
    "vfs",
    "zfs",
)
LOG_DRIVERS = (
    "awslogs",
    "etwlogs",
    "fluentd",
    "gcplogs",
    "gelf",
    "journald",
    "json-file",
    "local",
    "logentries",
    "none",
    "splunk",
    "syslog",
)
# Options of each log driver; those of other drivers differ by version. The first ones apply to all
# drivers.
_LOG_OPTIONS_OF_ALL = {
    "mode",
    "max-buffer-size",
    "cache-disabled",
    "cache-max-size",
    "cache-max-file",
    "cache-compress",
}
_LOG_OPTIONS = {
    "json-file": {
        "max-size",
        "max-file",
        "compress",
        "labels",
        "labels-regex",
        "env",
        "env-regex",
        "tag",
    },
    "local": {"max-size", "max-file", "compress"},
    "journald": {"labels", "labels-regex", "env", "env-regex", "tag"},
}
_STORAGE_OPTIONS: dict[str, tuple[str, ...]] = {
    "aufs": (),
    "btrfs": ("btrfs.min_space",),
    "devicemapper": ("dm.",),
    "overlay": (),
    "overlay2": ("overlay2.override_kernel_check", "overlay2.size"),
    "vfs": ("size", "vfs.xattrs"),
    "zfs": ("zfs.fsname",),
}
# The engine passes each name in upper case to the kernel's limit of that name. Python has the
# kernel's names, except for the one of locks, and a second name of nofile that the engine does not
# know. Seen with Docker 20.10.24 and runc 1.1.5.
_ULIMITS = {name[7:] for name in dir(resource) if name.startswith("RLIMIT_")} - {"OFILE"} | {
    "LOCKS"
}
_BOOLEANS = ("1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False")
_SIZE = re.compile(r"-1|\d+(?:\.\d+)? ?(?:[kmgtp]i?)?b?", re.IGNORECASE)
_REGISTRY = re.compile(r"(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?")


def value_findings(
    options: Options,
    version: Sequence[int] = (),
    exists: Callable[[str], bool] = os.path.exists,
    is_user: Callable[[str], bool] | None = None,
) -> list[Finding]:
    """[(severity, text)] of values of a daemon.json that Docker of that version (C([20, 10, 24]);
    empty if unknown) accepts but does not work with.
    """
    options = {name: value for name, value in options.items() if _is_set(name, value)}
    found: list[Finding] = []
    for name, judge in _JUDGES:
        if name in options:
            for severity, text in judge(options[name], options, list(version)):
                found.append((severity, "%s: %s" % (name, text)))
    found += _host_findings(options, list(version), exists, is_user or _is_user)
    return found


def _is_set(name: str, value: object) -> bool:
    """Return whether an option has a value that dockerd takes as it is.

    It rejects other types itself, and null means that the option is not set.
    """
    if value is None:
        return False
    kind = _TYPES.get(name, object)
    return isinstance(value, kind) and not (isinstance(value, bool) and kind is int)


def _log_level(value: str, _options: Options, _version: list[int]) -> Findings:
    if value and value.lower() not in LOG_LEVELS:
        yield FAIL, "'%s' is not a level; use debug, info, warn, error or fatal" % value


def _storage_driver(value: str, options: Options, version: list[int]) -> Findings:
    # The containerd image store has snapshotters of other names, and plugins have a slash or a tag.
    if (
        (options.get("features") or {}).get("containerd-snapshotter")
        or version >= [29]
        or re.search("[/:]", value)
    ):
        return
    if value and value not in STORAGE_DRIVERS:
        yield FAIL, "'%s' is not a storage driver; use overlay2, or remove the option" % value


def _storage_options(values: list[Any], options: Options, _version: list[int]) -> Findings:
    driver = options.get("storage-driver")
    for value in values:
        name = str(value).partition("=")[0].lower()
        allowed = _storage_options_of(driver)
        if "=" not in str(value):
            yield FAIL, "'%s' is not of the form name=value" % value
        elif not any(
            name == each or each.endswith(".") and name.startswith(each) for each in allowed
        ):
            yield (
                FAIL,
                "'%s' is not an option of %s"
                % (name, "storage driver %s" % driver if driver else "any storage driver"),
            )
        elif name == "overlay2.override_kernel_check" and value.partition("=")[2] not in _BOOLEANS:
            yield FAIL, "'%s' must be true or false" % value


def _storage_options_of(driver: str | None) -> Sequence[str]:
    """Return the options of a storage driver, of all if it is not known.

    One that ends with a dot is the beginning of some.
    """
    if driver == "fuse-overlayfs":
        return ()
    if driver in _STORAGE_OPTIONS:
        return _STORAGE_OPTIONS[driver]
    known = [name for names in _STORAGE_OPTIONS.values() for name in names]
    return known + ["windowsfilter.", "lcow."]


def _log_driver(value: str, _options: Options, _version: list[int]) -> Findings:
    if value and value not in LOG_DRIVERS:
        yield (
            WARN,
            (
                "'%s' is not a log driver of Docker; containers start only if a plugin of that "
                "name is installed"
            )
            % value,
        )


def _log_options(values: Options, options: Options, _version: list[int]) -> Findings:
    driver = options.get("log-driver") or "json-file"
    if driver == "none":
        return
    for name in sorted(values):
        if driver in _LOG_OPTIONS and name not in _LOG_OPTIONS[driver] | _LOG_OPTIONS_OF_ALL:
            yield FAIL, "'%s' is not an option of log driver %s" % (name, driver)
    if values.get("mode", "") not in ("", "blocking", "non-blocking"):
        yield FAIL, "mode '%s' must be blocking or non-blocking" % values["mode"]
    if driver in ("json-file", "local"):
        yield from _log_files(values, driver)


def _log_files(values: Options, driver: str) -> Findings:
    """Yield what is wrong with the files of a log driver that writes some."""
    size, files, compress = (
        str(values.get(name, "")) for name in ("max-size", "max-file", "compress")
    )
    if size and not _SIZE.fullmatch(size):
        yield (
            WARN,
            "max-size '%s' is not a size such as 10m; containers do not start with it" % size,
        )
    if files and not re.fullmatch(r"[1-9]\d{0,8}", files):
        yield (
            WARN,
            "max-file '%s' is not a whole number from 1 on; containers do not start with it"
            % files,
        )
    if compress and compress not in _BOOLEANS:
        yield (
            WARN,
            "compress '%s' must be true or false; containers do not start with it" % compress,
        )
    is_one_file = files in ("", "1") or size in ("", "-1")
    if driver == "json-file" and compress.lower() in ("1", "t", "true") and is_one_file:
        yield (
            WARN,
            "compress needs max-size, and max-file from 2 on; containers do not start without them",
        )


def _network(
    value: object, family: int
) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    """An address with its prefix; None for other text, or another family."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Fa-f:.]+/\d{1,3}", value):
        return None
    try:
        found = ipaddress.ip_interface(value)
    except ValueError:
        return None
    return found if family in (0, found.version) else None


def _bip(value: str, options: Options, _version: list[int]) -> Findings:
    if not value:
        return
    found = _network(value, 0)
    if not found:
        yield FAIL, "'%s' is not an address with its prefix, such as 172.26.0.1/16" % value
    elif found.version == 4:
        network = found.network
        if network.prefixlen > 30:
            yield FAIL, "'%s' leaves no addresses to containers" % value
        elif found.ip in (network.network_address, network.broadcast_address):
            yield (
                FAIL,
                "'%s' is the network's own address; use one of its hosts' addresses, such as %s/%d"
                % (value, network.network_address + 1, network.prefixlen),
            )
    if options.get("bridge"):
        yield FAIL, "it and bridge exclude each other"


def _fixed_cidr(value: str, _options: Options, _version: list[int]) -> Findings:
    if value and not _network(value, 4):
        yield FAIL, "'%s' is not an IPv4 network such as 172.26.1.0/24" % value


def _fixed_cidr_v6(value: str, options: Options, _version: list[int]) -> Findings:
    if value and not _network(value, 6):
        # Without IPv6 it is not used.
        yield (
            FAIL if options.get("ipv6") and not _network(value, 0) else WARN,
            "'%s' is not an IPv6 network such as fd00:1::/64" % value,
        )


def _ipv6(value: bool, options: Options, version: list[int]) -> Findings:
    # From 27 on Docker chooses a network.
    if value and not options.get("fixed-cidr-v6") and version < [27]:
        yield FAIL if version else WARN, "the default bridge needs fixed-cidr-v6 with it"


def _pools(values: list[Any], _options: Options, _version: list[int]) -> Findings:
    for value in values:
        base, size = (
            (value.get("base"), value.get("size", 0)) if isinstance(value, dict) else (None, 0)
        )
        network = _network(base, 0) if isinstance(base, str) else None
        if not network:
            yield FAIL, "base '%s' is not a network such as 172.26.0.0/16" % base
        elif (
            not isinstance(size, int)
            or not network.network.prefixlen <= size <= network.max_prefixlen
        ):
            yield (
                FAIL,
                "size %s must be from %d to %d with base %s"
                % (size, network.network.prefixlen, network.max_prefixlen, base),
            )


def _mtu(value: int, _options: Options, _version: list[int]) -> Findings:
    if value < 0:
        yield FAIL, "%d is below 0" % value
    elif value and not 68 <= value <= 65535:
        yield (
            WARN,
            "%d is not from 68 to 65535; containers on the default bridge do not start" % value,
        )


def _exec_options(values: list[Any], options: Options, _version: list[int]) -> Findings:
    for value in values:
        name, equals, driver = str(value).partition("=")
        if name.strip().lower() != "native.cgroupdriver" or not equals:
            yield WARN, "'%s' has no effect" % value
        elif driver not in ("cgroupfs", "systemd"):
            yield FAIL, "native.cgroupdriver '%s' must be systemd or cgroupfs" % driver
        elif driver == "systemd" and not str(options.get("cgroup-parent") or ".slice").endswith(
            ".slice"
        ):
            yield (
                FAIL,
                "with native.cgroupdriver=systemd cgroup-parent '%s' must end with .slice"
                % options["cgroup-parent"],
            )


def _icc(value: bool, options: Options, _version: list[int]) -> Findings:
    if value is False and options.get("iptables") is False:
        yield FAIL, "it cannot be false while iptables is false"


def _mirrors(values: list[Any], _options: Options, _version: list[int]) -> Findings:
    for number, value in enumerate(values, 1):
        found = re.fullmatch(
            r"([a-z][a-z0-9+.-]*)://([^/?#]*)(/?[^?#]*)(.*)", str(value), re.IGNORECASE
        )
        # The value may contain a password.
        if not found or found.group(1).lower() not in ("http", "https"):
            yield FAIL, "number %d does not begin with https:// or http://" % number
        elif "@" in found.group(2):
            yield FAIL, "number %d has credentials in it; log in with docker login" % number
        elif found.group(3) not in ("", "/") or found.group(4):
            yield (
                FAIL,
                "number %d has more than a host and a port: '%s'"
                % (number, found.group(3) or found.group(4)[:1]),
            )


def _registries(values: list[Any], _options: Options, _version: list[int]) -> Findings:
    for value in values:
        text = str(value)
        if re.match("https?://", text, re.IGNORECASE):
            yield (
                WARN,
                "'%s' must be a host and a port without http://" % re.sub("//.*@", "//", text),
            )
            continue
        found = _REGISTRY.fullmatch(text)
        if not _network(text, 0) and not (found and int(found.group(1) or 0) <= 65535):
            yield FAIL, "'%s' is not a host with or without a port, or a network" % text


def _hosts(values: list[Any], _options: Options, _version: list[int]) -> Findings:
    for value in values:
        scheme, separator, rest = str(value).partition("://")
        if separator and scheme not in ("tcp", "unix", "fd", "npipe"):
            yield FAIL, "'%s' must begin with unix://, fd:// or tcp://" % value
        elif scheme == "tcp" and separator or not separator:
            address = rest if separator else scheme
            port = re.search(r":([^:\]/]*)/?$", address)
            if re.search(r"\s", address) or port and not re.fullmatch(r"\d{0,5}", port.group(1)):
                yield FAIL, "'%s' is not an address and a port" % value


def _metrics(value: str, _options: Options, _version: list[int]) -> Findings:
    if value and not re.fullmatch(r"[^\s/]*:\d{1,5}", value):
        yield FAIL, "'%s' is not an address and a port, such as 127.0.0.1:9323" % value


def _oom(value: int, _options: Options, _version: list[int]) -> Findings:
    if not -1000 <= value <= 1000:
        yield FAIL, "%d is not from -1000 to 1000" % value


def _ulimits(values: Options, _options: Options, _version: list[int]) -> Findings:
    for name, value in sorted(values.items()):
        value = value if isinstance(value, dict) else {}
        label, soft, hard = value.get("Name", name), value.get("Soft", 0), value.get("Hard", 0)
        if str(label).upper() not in _ULIMITS:
            yield WARN, "'%s' is not a limit; containers do not start with it" % label
        elif (
            isinstance(soft, int)
            and isinstance(hard, int)
            and hard != -1
            and (soft > hard or soft == -1)
        ):
            yield (
                WARN,
                (
                    "%s has a soft limit of %d above its hard limit of %d; containers do not start "
                    "with it"
                )
                % (label, soft, hard),
            )


def _runtimes(values: Options, _options: Options, _version: list[int]) -> Findings:
    for name, value in sorted(values.items()):
        if isinstance(value, dict) and not value.get("path") and not value.get("runtimeType"):
            yield WARN, "'%s' has no path; containers that use it do not start" % name


def _paths(name: str) -> tuple[str, Judge]:
    """Return an option whose value is a path, with its judge."""

    def judge(value: str, _options: Options, _version: list[int]) -> Findings:
        if value and not value.startswith("/"):
            yield (
                WARN,
                (
                    "'%s' is not an absolute path; it would lie below the directory that dockerd "
                    "is started in"
                )
                % value,
            )

    return name, judge


def _host_findings(
    options: Options,
    version: list[int],
    exists: Callable[[str], bool],
    is_user: Callable[[str], bool],
) -> Findings:
    profile, bridge, remap = (
        options.get(name) for name in ("seccomp-profile", "bridge", "userns-remap")
    )
    named = ("builtin", "unconfined") if version >= [23] or not version else ()
    if isinstance(profile, str) and profile and profile not in named and not exists(profile):
        yield FAIL, "seccomp-profile: there is no file '%s'" % profile
    if (
        isinstance(bridge, str)
        and bridge not in ("", "none", "docker0")
        and not exists("/sys/class/net/" + bridge)
    ):
        yield FAIL, "bridge: there is no interface '%s', and Docker makes none but docker0" % bridge
    if (
        isinstance(remap, str)
        and remap not in ("", "default")
        and not is_user(remap.partition(":")[0])
    ):
        yield FAIL, "userns-remap: there is no user '%s'" % remap.partition(":")[0]


def _is_user(name: str) -> bool:
    try:
        return bool(name.isdigit() or pwd.getpwnam(name))
    except KeyError:
        return False


_JUDGES: tuple[tuple[str, Judge], ...] = (
    ("log-level", _log_level),
    ("storage-driver", _storage_driver),
    ("storage-opts", _storage_options),
    ("log-driver", _log_driver),
    ("log-opts", _log_options),
    ("bip", _bip),
    ("fixed-cidr", _fixed_cidr),
    ("fixed-cidr-v6", _fixed_cidr_v6),
    ("ipv6", _ipv6),
    ("default-address-pools", _pools),
    ("mtu", _mtu),
    ("exec-opts", _exec_options),
    ("icc", _icc),
    ("registry-mirrors", _mirrors),
    ("insecure-registries", _registries),
    ("allow-nondistributable-artifacts", _registries),
    ("hosts", _hosts),
    ("metrics-addr", _metrics),
    ("oom-score-adjust", _oom),
    ("default-ulimits", _ulimits),
    ("runtimes", _runtimes),
    _paths("data-root"),
    _paths("exec-root"),
    _paths("pidfile"),
)
_TYPES: dict[str, type] = {name: str for name, _judge in _JUDGES}
_TYPES.update(
    {
        name: list
        for name in (
            "storage-opts",
            "default-address-pools",
            "exec-opts",
            "registry-mirrors",
            "insecure-registries",
            "allow-nondistributable-artifacts",
            "hosts",
        )
    }
)
_TYPES.update({name: dict for name in ("log-opts", "default-ulimits", "runtimes")})
_TYPES.update({"mtu": int, "oom-score-adjust": int, "ipv6": bool, "icc": bool, "features": dict})
