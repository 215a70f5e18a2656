# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges what hosts answer, as input of plans that write files on other hosts. Pure functions.

Root of one host can answer anything. A text of an answer has one line and no control character,
unless it is the content of a file. Facts that reach a configuration file, a unit, an environment or
a command are judged by what they are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

__all__ = [
    "ASCEND",
    "HOST",
    "IMAGE_RELAY",
    "JOB_CONTAINER",
    "MONITORING",
    "SLURM",
    "reading_faults",
]

#: A host name as hostname(7) has it, in any case, and with "_", which Linux accepts. Slurm, hosts
#: files and ssh read it.
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
#: The kernel refuses "/" and blanks only. None of these has another meaning in a shell, a unit, nft
#: or NCCL's lists.
_INTERFACE = r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,31}"
_DEVICE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_PATH = r"(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._+~:-]*"
#: deb-version(7).
_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+~:-]*"
#: Debian's policy manual, 5.6.1.
_PACKAGE = r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?"
_ADDRESS = "address"
_TEXT = "text"
_ALLOWED = {
    _NAME: "letters, digits, '-', '_' and '.'",
    _ADDRESS: "an IP address",
    _PATH: "an absolute path without blanks and quotes",
    _VERSION: "a version of a package",
    _PACKAGE: "a name of a package",
}
#: Longer than any line that a tool prints for a fact.
_LONGEST = 4096
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

#: Facts of M(host_info), by their path: [] is each entry of a list, * each key of a dictionary,
#: with "=" its value. What is _TEXT is not judged.
HOST = {
    "hostname": _NAME,
    "architecture": _WORD,
    "kernel": _WORD,
    "python_version": _WORD,
    "boot_id": _WORD,
    "os.id": _WORD,
    "os.version_id": _WORD,
    "os.codename": _WORD,
    "os.id_like[]": _WORD,
    "interfaces[].name": _INTERFACE,
    "interfaces[].addresses[].address": _ADDRESS,
    "default_interface": _INTERFACE,
    "rdma_ports[].device": _DEVICE,
    "rdma_ports[].interfaces[]": _INTERFACE,
    "rdma_ports[].gid_indexes.*": _ADDRESS,
    "rdma_beside_gpus.*": _DEVICE,
    "candidates.*": _PACKAGE,
    "candidates.*=": _VERSION,
    # Names of files that the roles and the site made. They are compared, and never written.
    "folders": _TEXT,
}
#: Facts of M(slurm_host_info).
SLURM = {
    "hostname": _NAME,
    "kernel": _WORD,
    "release": _WORD,
    "packages.*": _PACKAGE,
    "packages.*=": _VERSION,
    "candidates.*": _PACKAGE,
    "candidates.*=": _VERSION,
    "gpus[].path": _PATH,
    "gpu_sockets.*": r"[0-9]{1,4}",
    "mail_program": _PATH,
    "pmix_folder": _PATH,
    "pmix_link": r"/?[A-Za-z0-9_.][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.+-]+)*",
    "services.*=.user": _DEVICE,
    "services.*=.runtime_directory": r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*",
    "munge_key.digest": r"[0-9A-Za-z]+",
    # Role slurm_node makes no rule for a name with a backslash, and says so.
    "login_user": r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*",
    "record.packages[]": _PACKAGE,
    # Content of files of the host. The plan reads it line by line.
    "texts": _TEXT,
}
#: Facts of M(job_container_info). Its record has the former content of files.
JOB_CONTAINER = {
    "podman_candidate": _VERSION,
    "packages.*": _PACKAGE,
    "packages.*=": _VERSION,
    "control_nodes[]": _PATH,
    "npu_control_nodes[]": _PATH,
    "npu_driver_paths[]": _PATH,
    "storage_type": _WORD,
    "texts": _TEXT,
    "record": _TEXT,
}
#: Facts of M(image_relay_info).
IMAGE_RELAY = {
    "packages.*": _PACKAGE,
    "packages.*=": _VERSION,
    "certificate_checksum": r"[0-9a-f]{64}",
    "record": _TEXT,
    "relayed": _TEXT,
    "images": _TEXT,
}
#: Facts of M(monitoring_info).
MONITORING = {
    "packages.*": _PACKAGE,
    "packages.*=": _VERSION,
    "authority": r"[0-9a-f]{64}",
    "signer": r"[0-9a-f]{64}",
    "record": _TEXT,
}
#: Facts of M(ascend_info). The environment is a file of the shell.
ASCEND = {
    "architecture": _WORD,
    "environment.*": r"[A-Za-z_][A-Za-z0-9_]*",
    "environment.*=": _PATH,
    "environment.*=[]": _PATH,
}
_FREE = frozenset(
    path
    for kinds in (HOST, SLURM, JOB_CONTAINER, IMAGE_RELAY, MONITORING, ASCEND)
    for path in kinds
    if path.endswith(".*")
) | frozenset(
    ("services.*", "files.*", "free_mib.*", "resolved.*", "disk_free_mib.*", "programs.*")
)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # A zone, as in fe80::1%eth0, may be any text.
    return "%" not in text


def _texts(value: Any, path: str, kinds: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of all texts of an answer that are judged, those of keys included."""
    if kinds.get(path) == _TEXT:
        return
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            name = str(key)
            # The keys of these are facts, not names of facts.
            if path + ".*" in _FREE:
                yield path + ".*", name
                yield from _texts(inner, path + ".*=", kinds)
            else:
                yield path, name
                yield from _texts(inner, "%s.%s" % (path, name) if path else name, kinds)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner, path + "[]", kinds)


def _fault(path: str, text: str, kinds: dict[str, str]) -> str:
    """Return what is allowed in place of a text, or empty."""
    kind = kinds.get(path, "")
    if not text:
        return ""
    if _CONTROL.search(text) or len(text) > _LONGEST:
        return "one line without control characters, of %d characters at most" % _LONGEST
    if kind == _ADDRESS:
        return "" if _is_address(text) else _ALLOWED[kind]
    if kind and not re.fullmatch(kind, text, re.ASCII):
        return _ALLOWED.get(kind, "letters, digits, and _ . - : + ~ @")
    return ""


def reading_faults(host: str, reading: dict[str, Any], kinds: dict[str, str]) -> list[str]:
    """Return what is wrong with an answer of a host, one sentence per fact.

    C(kinds) are those of the module. Without C(host) the caller names it.
    """
    found: dict[str, str] = {}
    for path, text in _texts(reading, "", kinds):
        allowed = _fault(path, text, kinds)
        if allowed:
            found.setdefault(
                path,
                "%sthe host reports %r as its fact %s; expected %s. "
                "Correct it on the host, and check who changed it"
                % (
                    host + ": " if host else "",
                    text[:120],
                    path.replace(".*=", "").replace(".*", "") or "names",
                    allowed,
                ),
            )
    return list(found.values())
