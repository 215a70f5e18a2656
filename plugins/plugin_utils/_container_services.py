# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Services and notebooks of the training container: what the supervisor is told, and what differs
on the host. Pure functions, except for new tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import bad_names

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import Difference

__all__ = ["differences", "faults", "mounts", "plan", "unready"]

#: In the container.
FOLDER = "/etc/trainyard/services"
#: On the host. The container gets the first one, without the key of the authority, because
#: everybody with a token is root in the container.
INSIDE, TLS = FOLDER + "/inside", FOLDER + "/tls"
#: On the host. The container gets the tree. git reads its settings and hooks from the repository
#: only, which the container cannot change.
NOTEBOOKS = "/var/lib/trainyard/notebooks"
REPOSITORY, TREE = NOTEBOOKS + "/repository", NOTEBOOKS + "/tree"
TARGET = "/claraDevDay"
LOCAL = "127.0.0.1"
JUPYTER = "jupyterlab"
#: Ports of the services in NVIDIA's guides.
PORTS = {JUPYTER: 8890, "aiaa": 5000}
PLACES = re.compile(r"\{(address|port|token_file|certificate|key)\}")
#: Of module own_certificate.
CERTIFICATE = "services"
RENEW_DAYS = 60


class Requested(TypedDict):
    """What the variables of role training_container request of services and notebooks."""

    #: Entries of training_container_services.
    services: list[dict[str, Any]]
    #: training_container_notebooks, empty if there are none.
    notebooks: dict[str, Any]
    #: Of the host on the cluster network.
    address: str
    host_name: str
    #: Folder in which the container begins.
    workdir: str


class Entry(TypedDict):
    """A service as its supervisor reads it.

    Paths are those in the container, empty for what the service does not have.
    """

    name: str
    address: str
    port: int
    folder: str
    token_file: str
    certificate: str
    key: str
    #: Empty for JupyterLab, whose command the supervisor knows.
    command: list[str]


class Plan(TypedDict):
    """What the role does for services and notebooks."""

    #: Whether anything of them differs.
    differ: bool
    #: For managed_files.
    files: list[dict[str, str]]
    #: Paths of files and folders that are no longer configured.
    absent: list[str]
    #: Files with new tokens where tokens are missing.
    tokens: list[dict[str, Any]]
    #: Options of own_certificate. Empty if no service has the cluster address.
    certificate: dict[str, Any]
    #: Packages that the host needs.
    packages: list[str]
    #: Whether the notebooks have to be checked out.
    checkout: bool
    #: SHA-256 of the configuration. Empty without services.
    config: str
    #: Mounted folders that were deleted on the host.
    lost: list[str]
    names: list[str]
    #: Address of each service, and the path of its token.
    told: list[str]


class ExpectedFile(NamedTuple):
    """A file or folder of the services.

    C(digest) is the SHA-256 of its content, empty if any content is right.
    """

    path: str
    mode: str
    digest: str


def port_of(service: dict[str, Any]) -> int:
    """Return the port of a service, 0 if there is none."""
    port = service.get("port") or PORTS.get(str(service.get("name")), 0)
    return int(port) if str(port).isdigit() else 0


def on_cluster(service: dict[str, Any]) -> bool:
    """Return whether other hosts reach a service. It then needs a certificate."""
    return service.get("address") == "cluster"


def needs_token(service: dict[str, Any]) -> bool:
    """Return whether a service reads its token from a file."""
    command = service.get("command") or ""
    return not command or "{token_file}" in command


def target_of(notebooks: dict[str, Any]) -> str:
    """Return where the container has the notebooks, empty if there are none."""
    return (notebooks.get("target") or TARGET) if notebooks.get("repository") else ""


def entry(service: dict[str, Any], requested: Requested) -> Entry:
    """Return a service as its supervisor reads it."""
    name, secure = service["name"], on_cluster(service)
    port, folder = port_of(service), service.get("workdir") or target_of(requested["notebooks"])
    places = {
        "address": requested["address"] if secure else LOCAL,
        "port": str(port),
        "token_file": "%s/%s.token" % (FOLDER, name) if needs_token(service) else "",
        "certificate": "%s/%s.pem" % (FOLDER, CERTIFICATE) if secure else "",
        "key": "%s/%s.key" % (FOLDER, CERTIFICATE) if secure else "",
    }
    return {
        "name": name,
        "address": places["address"],
        "port": port,
        "folder": folder or requested["workdir"],
        "token_file": places["token_file"],
        "certificate": places["certificate"],
        "key": places["key"],
        "command": [
            PLACES.sub(lambda place: places[place.group(1)], word)
            for word in shlex.split(service.get("command") or "")
        ],
    }


def programs(requested: Requested, texts: dict[str, str]) -> list[dict[str, str]]:
    """Return the files of the supervisor.

    C(texts) are its programs by name. The configuration is last, because the supervisor acts on it.
    """
    config = {"services": [entry(service, requested) for service in requested["services"]]}
    return [
        {"path": "%s/%s" % (INSIDE, name), "content": texts[name], "mode": "0644"}
        for name in sorted(texts)
    ] + [
        {
            "path": INSIDE + "/config.json",
            "content": json.dumps(config, indent=2, sort_keys=True) + "\n",
            "mode": "0600",
        }
    ]


def folders() -> list[dict[str, str]]:
    """Return the folders of the services on the host, as entries of managed_files."""
    return [{"path": path, "state": "directory", "mode": "0700"} for path in (FOLDER, INSIDE)]


def tokens(requested: Requested) -> list[str]:
    """Return the paths of the tokens on the host."""
    return [
        "%s/%s.token" % (INSIDE, service["name"])
        for service in requested["services"]
        if needs_token(service)
    ]


def certificates(requested: Requested) -> list[str]:
    """Return the files of the authority and of the certificate, if a service has the cluster
    address.
    """
    if not any(on_cluster(service) for service in requested["services"]):
        return []
    return [
        "%s/%s" % (folder, name + end)
        for folder, name in ((TLS, "ca"), (TLS, CERTIFICATE), (INSIDE, CERTIFICATE))
        for end in (".pem", ".key")
    ]


def mounts(requested: Requested) -> list[dict[str, Any]]:
    """Return the mounts of the container."""
    found: list[dict[str, Any]] = []
    if requested["services"]:
        found.append({"source": INSIDE, "target": FOLDER, "read_only": True})
    if target_of(requested["notebooks"]):
        mount: dict[str, Any] = {"source": TREE, "target": target_of(requested["notebooks"])}
        if requested["notebooks"].get("read_only"):
            mount["read_only"] = True
        found.append(mount)
    return found


def unready(found: dict[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (name, state) of the services that do not serve.

    C(found) is the result of training_container_info, here and below.
    """
    messages = []
    for name in names:
        state = found["services"]["states"].get(name, {"state": "not started", "why": ""})
        if state["state"] != "ready":
            message = ": ".join(text for text in (state["state"], state["why"]) if text)
            messages.append((name, message))
    return messages


def _difference(what: str, requested: str, found: str) -> Difference:
    return {"what": what, "asked": requested, "found": found}


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _expected_files(requested: Requested, texts: dict[str, str]) -> list[ExpectedFile]:
    """Return the files and folders of the services, without the certificates."""
    files = programs(requested, texts)
    return (
        [ExpectedFile(file["path"], file["mode"], _digest(file["content"])) for file in files]
        + [ExpectedFile(path, "0600", "") for path in tokens(requested)]
        + [ExpectedFile(folder["path"], folder["mode"], "") for folder in folders()]
    )


def _file_differences(found: dict[str, Any], expected: ExpectedFile) -> list[Difference]:
    """Return how a file or folder differs. A path that was not read does not differ."""
    path = expected.path
    mode = found["paths"].get(path, expected.mode)
    if mode != expected.mode:
        its_mode = "mode " + mode if mode else "absent"
        return [_difference(path, "mode " + expected.mode, its_mode)]
    if expected.digest and found["files"].get(path) != expected.digest:
        content = "another content" if path in found["files"] else "absent"
        return [_difference(path, "as configured", content)]
    return []


def file_differences(
    found: dict[str, Any], requested: Requested, texts: dict[str, str]
) -> list[Difference]:
    """Return how the files of the services differ."""
    different: list[Difference] = []
    kept: list[str] = []
    if requested["services"]:
        expected = _expected_files(requested, texts)
        for file in expected:
            different += _file_differences(found, file)
        kept = [file.path for file in expected] + certificates(requested)
        different += [
            _difference(path, "present", "absent")
            for path in certificates(requested)
            if path not in found["services"]["files"]
        ]
    return different + [_difference(path, "absent", "present") for path in left(found, kept)]


def left(found: dict[str, Any], kept: list[str]) -> list[str]:
    """Return the files of services on the host that are not among those to keep."""
    return [path for path in found["services"]["files"] if path not in kept]


def certificate_differences(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return whether the certificate ends soon. A missing one is a missing file."""
    days = found["services"]["certificate_days"]
    if not certificates(requested) or days is None or days >= RENEW_DAYS:
        return []
    return [
        _difference(
            "certificate of the services",
            "valid for %d days" % RENEW_DAYS,
            "valid for %d days" % days,
        )
    ]


def notebook_differences(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return how the notebooks on the host differ from the requested revision: at most one entry."""
    revision = requested["notebooks"].get("revision") or ""
    if (
        not target_of(requested["notebooks"])
        or found["notebooks"]["revision"] == revision
        and found["paths"].get(TREE)
    ):
        return []
    return [
        _difference("notebooks in %s" % TREE, revision, found["notebooks"]["revision"] or "absent")
    ]


def state_differences(found: dict[str, Any], requested: Requested) -> list[Difference]:
    """Return an entry for each service that is not ready at its address and port."""
    if not requested["services"]:
        return []
    places = {}
    for service in requested["services"]:
        its_entry = entry(service, requested)
        places[its_entry["name"]] = "%s port %d" % (its_entry["address"], its_entry["port"])
    return [
        _difference("service " + name, "ready on " + places[name], state)
        for name, state in unready(found, places)
    ]


def differences(
    found: dict[str, Any], requested: Requested, texts: dict[str, str]
) -> list[Difference]:
    """Return how a host differs from the request.

    It is empty if the role has nothing to do for services and notebooks.

    C(texts) are the programs of the supervisor by name.
    """
    return (
        file_differences(found, requested, texts)
        + certificate_differences(found, requested)
        + notebook_differences(found, requested)
        + state_differences(found, requested)
    )


def _new_tokens(found: dict[str, Any], requested: Requested) -> list[dict[str, Any]]:
    """Return the files of tokens that are missing, with the folders that hold them or the
    certificate.
    """
    missing = [path for path in tokens(requested) if found["paths"].get(path) != "0600"]
    if not missing and (found["paths"].get(INSIDE) or not certificates(requested)):
        return []
    files: list[dict[str, Any]] = [*folders()]
    for path in missing:
        token = secrets.token_hex(24) + "\n"
        files.append({"path": path, "content": token, "mode": "0600", "replace": False})
    return files


def _certificate(requested: Requested) -> dict[str, Any]:
    """Return the arguments for the certificate of the host, empty if no service needs one."""
    if not certificates(requested):
        return {}
    return {
        "folder": TLS,
        "name": CERTIFICATE,
        "addresses": [requested["address"]],
        "copy_to": INSIDE,
        "renew_days": RENEW_DAYS,
        "names": [] if bad_names([requested["host_name"]], []) else [requested["host_name"]],
    }


def plan(found: dict[str, Any], requested: Requested, texts: dict[str, str]) -> Plan:
    """Return what the role does for services and notebooks.

    C(texts) are the programs of the supervisor by name.
    """
    services = requested["services"]
    files = programs(requested, texts) if services else []
    own_folders = folders() if services else []
    kept = [file["path"] for file in files] + tokens(requested) + certificates(requested)
    kept += [folder["path"] for folder in own_folders]
    # Folders after their content.
    absent = left(found, kept)
    if not services and found["services"]["files"]:
        absent = absent + [INSIDE, TLS, FOLDER]
    config = files[-1]["content"] if files else ""
    return {
        "differ": differences(found, requested, texts) != [],
        "files": own_folders + files,
        "absent": absent,
        "tokens": _new_tokens(found, requested),
        "certificate": _certificate(requested),
        # git checks notebooks out, and openssl creates the certificate.
        "packages": ["git"] * bool(target_of(requested["notebooks"]))
        + ["openssl"] * bool(certificates(requested)),
        "checkout": notebook_differences(found, requested) != [],
        "config": _digest(config) if services else "",
        # Mounted folders that were deleted. A running container does not see the new ones.
        "lost": [
            mount["source"]
            for mount in mounts(requested)
            if found["paths"].get(mount["source"]) == ""
        ],
        "names": [service["name"] for service in services],
        "told": in_words(requested),
    }


def in_words(requested: Requested) -> list[str]:
    """Return a line per service for the operator: where it is, and which file has its token.

    It has no token, because the output is a log.
    """
    lines = []
    for service in requested["services"]:
        it = entry(service, requested)
        host = "[%s]" % it["address"] if ":" in it["address"] else it["address"]
        line = "%s: %s port %d" % (it["name"], host, it["port"])
        if not service.get("command"):
            line = "%s: %s://%s:%d" % (
                it["name"],
                "https" if it["certificate"] else "http",
                host,
                it["port"],
            )
        lines.append(
            line
            + (", token in %s/%s.token" % (INSIDE, it["name"]) if it["token_file"] else "")
            + (", authority %s/ca.pem" % TLS if it["certificate"] else "")
        )
    return lines


# --- rules for the input ---


def faults(services: list[Any], kind: str, ssh_port: int | str = 0) -> list[str | None]:
    """Return the names of the services that break a rule: C(port), C(ports), C(ssh), C(command),
    C(tls).

    C(services) are not validated yet, and C(ssh_port) is that of the container's sshd. A service
    without a name is None.
    """
    services = [service for service in services if isinstance(service, dict)]
    used = [port_of(service) for service in services]
    rules: dict[str, Callable[[dict[str, Any]], object]] = {
        "port": lambda service: not port_of(service),
        "ports": lambda service: port_of(service) and used.count(port_of(service)) > 1,
        "ssh": lambda service: str(port_of(service)) == str(ssh_port),
        "command": lambda service: not service.get("command") and service.get("name") != JUPYTER,
        "tls": lambda service: bool(
            on_cluster(service)
            and service.get("command")
            and not {"{certificate}", "{key}"}
            <= set(place.group(0) for place in PLACES.finditer(str(service["command"])))
        ),
    }
    return [service.get("name") for service in services if rules[kind](service)]
