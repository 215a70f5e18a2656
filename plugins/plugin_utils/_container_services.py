# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Services and notebooks of the training container: what the supervisor is told, and what differs on the host. Pure functions, except for new tokens."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex

from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import bad_names

__all__ = ["differences", "faults", "mounts", "plan", "unready"]

#: In the container.
FOLDER = "/etc/trainyard/services"
#: On the host. The container gets the first one, without the key of the authority, because everybody with a token is root in the container.
INSIDE, TLS = FOLDER + "/inside", FOLDER + "/tls"
#: On the host. The container gets the tree. git reads its settings and hooks from the repository only, which the container cannot change.
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


def port_of(service):
    """Return the port of a service, 0 if there is none."""
    port = service.get("port") or PORTS.get(str(service.get("name")), 0)
    return int(port) if str(port).isdigit() else 0


def on_cluster(service):
    return service.get("address") == "cluster"


def needs_token(service):
    command = service.get("command") or ""
    return not command or "{token_file}" in command


def target_of(notebooks):
    """Return where the container has the notebooks, empty if there are none."""
    return (notebooks.get("target") or TARGET) if notebooks.get("repository") else ""


def entry(service, asked):
    """Return a service as its supervisor reads it."""
    name, secure = service["name"], on_cluster(service)
    found = {
        "name": name,
        "address": asked["address"] if secure else LOCAL,
        "port": port_of(service),
        "folder": service.get("workdir") or target_of(asked["notebooks"]) or asked["workdir"],
        "token_file": "%s/%s.token" % (FOLDER, name) if needs_token(service) else "",
        "certificate": "%s/%s.pem" % (FOLDER, CERTIFICATE) if secure else "",
        "key": "%s/%s.key" % (FOLDER, CERTIFICATE) if secure else "",
    }
    found["command"] = [
        PLACES.sub(lambda place: str(found[place.group(1)]), word)
        for word in shlex.split(service.get("command") or "")
    ]
    return found


def programs(asked, texts):
    """Return the files of the supervisor. C(texts) are its programs by name. The configuration is last, because the supervisor acts on it."""
    config = {"services": [entry(service, asked) for service in asked["services"]]}
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


def folders():
    return [{"path": path, "state": "directory", "mode": "0700"} for path in (FOLDER, INSIDE)]


def tokens(asked):
    return [
        "%s/%s.token" % (INSIDE, service["name"])
        for service in asked["services"]
        if needs_token(service)
    ]


def certificates(asked):
    """Return the files of the authority and of the certificate, if a service has the cluster address."""
    if not any(on_cluster(service) for service in asked["services"]):
        return []
    return [
        "%s/%s" % (folder, name + end)
        for folder, name in ((TLS, "ca"), (TLS, CERTIFICATE), (INSIDE, CERTIFICATE))
        for end in (".pem", ".key")
    ]


def mounts(asked):
    """Return the mounts of the container."""
    found = [{"source": INSIDE, "target": FOLDER, "read_only": True}] if asked["services"] else []
    if target_of(asked["notebooks"]):
        mount = {"source": TREE, "target": target_of(asked["notebooks"])}
        found.append(dict(mount, read_only=True) if asked["notebooks"].get("read_only") else mount)
    return found


def unready(found, names):
    """Return (name, state) of the services that do not serve."""
    told = []
    for name in names:
        state = found["services"]["states"].get(name, {"state": "not started", "why": ""})
        if state["state"] != "ready":
            told.append((name, ": ".join(text for text in (state["state"], state["why"]) if text)))
    return told


def _difference(what, asked, found):
    return {"what": what, "asked": asked, "found": found}


def _digest(content):
    return hashlib.sha256(content.encode()).hexdigest()


def file_differences(found, asked, texts):
    """Return how the files of the services differ."""
    differences, wanted = [], []
    if asked["services"]:
        files = programs(asked, texts)
        expected = (
            [(file["path"], file["mode"], _digest(file["content"])) for file in files]
            + [(path, "0600", "") for path in tokens(asked)]
            + [(folder["path"], folder["mode"], "") for folder in folders()]
        )
        there = found["paths"]
        for path, mode, digest in expected:
            current = there.get(path, "")
            if path in there and current != mode:
                differences.append(
                    _difference(path, "mode " + mode, "mode " + current if current else "absent")
                )
            elif digest and found["files"].get(path) != digest:
                differences.append(
                    _difference(
                        path,
                        "as configured",
                        "another content" if path in found["files"] else "absent",
                    )
                )
        wanted = [path for path, _mode, _digest_of in expected] + certificates(asked)
        differences += [
            _difference(path, "present", "absent")
            for path in certificates(asked)
            if path not in found["services"]["files"]
        ]
    return differences + [_difference(path, "absent", "present") for path in left(found, wanted)]


def left(found, wanted):
    return [path for path in found["services"]["files"] if path not in wanted]


def certificate_differences(found, asked):
    if (
        not certificates(asked)
        or found["services"]["certificate_days"] is None
        or found["services"]["certificate_days"] >= RENEW_DAYS
    ):
        return []
    return [
        _difference(
            "certificate of the services",
            "valid for %d days" % RENEW_DAYS,
            "valid for %d days" % found["services"]["certificate_days"],
        )
    ]


def notebook_differences(found, asked):
    revision = asked["notebooks"].get("revision") or ""
    if (
        not target_of(asked["notebooks"])
        or found["notebooks"]["revision"] == revision
        and found["paths"].get(TREE)
    ):
        return []
    return [
        _difference("notebooks in %s" % TREE, revision, found["notebooks"]["revision"] or "absent")
    ]


def state_differences(found, asked):
    if not asked["services"]:
        return []
    names = {service["name"]: entry(service, asked) for service in asked["services"]}
    return [
        _difference("service " + name, "ready on %(address)s port %(port)d" % names[name], state)
        for name, state in unready(found, list(names))
    ]


def differences(found, asked, texts):
    """Return how a host differs from the request: C(what), C(asked) and C(found). It is empty if the role has nothing to do for services and notebooks."""
    return (
        file_differences(found, asked, texts)
        + certificate_differences(found, asked)
        + notebook_differences(found, asked)
        + state_differences(found, asked)
    )


def _new_tokens(found, asked):
    """Return the files of tokens that are missing, with the folders that hold them or the certificate."""
    missing = [path for path in tokens(asked) if found["paths"].get(path) != "0600"]
    if not missing and (found["paths"].get(INSIDE) or not certificates(asked)):
        return []
    return folders() + [
        {
            "path": path,
            "content": secrets.token_hex(24) + "\n",
            "mode": "0600",
            "replace": False,
        }
        for path in missing
    ]


def _certificate(asked):
    """Return the arguments for the certificate of the host, empty if no service needs one."""
    if not certificates(asked):
        return {}
    return {
        "folder": TLS,
        "name": CERTIFICATE,
        "addresses": [asked["address"]],
        "copy_to": INSIDE,
        "renew_days": RENEW_DAYS,
        "names": [] if bad_names([asked["host_name"]], []) else [asked["host_name"]],
    }


def plan(found, asked, texts):
    """Return what the role does for services and notebooks.

    C(differ), whether anything differs, C(files) and C(absent) for M(trainyard.gpu.managed_files), C(tokens), files for missing ones, C(certificate), options
    of M(trainyard.gpu.own_certificate), C(packages), C(checkout), whether to check the notebooks out, C(config), the checksum of the configuration, C(lost),
    mounted folders that were deleted on the host, C(names), and C(told), address and path of the token of each service.
    """
    services = asked["services"]
    files = programs(asked, texts) if services else []
    own_folders = folders() if services else []
    wanted = [file["path"] for file in files] + tokens(asked) + certificates(asked)
    wanted += [folder["path"] for folder in own_folders]
    # Folders after their content.
    absent = left(found, wanted)
    if not services and found["services"]["files"]:
        absent = absent + [INSIDE, TLS, FOLDER]
    config = files[-1]["content"] if files else ""
    return {
        "differ": differences(found, asked, texts) != [],
        "files": own_folders + files,
        "absent": absent,
        "tokens": _new_tokens(found, asked),
        "certificate": _certificate(asked),
        # git checks notebooks out, and openssl creates the certificate.
        "packages": ["git"] * bool(target_of(asked["notebooks"]))
        + ["openssl"] * bool(certificates(asked)),
        "checkout": notebook_differences(found, asked) != [],
        "config": _digest(config) if services else "",
        # Mounted folders that were deleted. A running container does not see the new ones.
        "lost": [
            mount["source"] for mount in mounts(asked) if found["paths"].get(mount["source"]) == ""
        ],
        "names": [service["name"] for service in services],
        "told": told(asked),
    }


def told(asked):
    """Return a line per service for the operator: where it is, and which file has its token. It has no token, because the output is a log."""
    lines = []
    for service in asked["services"]:
        it = entry(service, asked)
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


def faults(services, kind, ssh_port=0):
    """Return the names of the services that break a rule: C(port), C(ports), C(ssh), C(command), C(tls)."""
    services = [service for service in services if isinstance(service, dict)]
    used = [port_of(service) for service in services]
    wrong = {
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
    }[kind]
    return [service.get("name") for service in services if wrong(service)]
