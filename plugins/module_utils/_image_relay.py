# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the image relay reads of images: output of skopeo, archives and the files of an image in,
data out. Role image_relay also copies it to the host.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tarfile

from typing import Container, Iterable, Mapping, Sequence

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _parse_error import ParseError  # type: ignore[import-not-found,no-redef]

__all__ = [
    "ParseError",
    "archive_reference",
    "auth_document",
    "digest_of",
    "explain",
    "is_missing",
    "packages_of",
    "platforms_of",
    "python_of",
    "tls_options",
    "versions_of",
]

#: Distributions of Python's package index, in lower case with dashes, whose versions the catalogue
#: shows. Frameworks have a name there.
FRAMEWORKS = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "mxnet": "MXNet",
    "mindspore": "MindSpore",
    "jax": "JAX",
    "paddlepaddle": "PaddlePaddle",
}
OTHERS = ("horovod", "deepspeed", "torchvision", "keras", "numpy", "ipykernel")
#: Builds of a framework for one kind of device have names of their own.
BUILD = re.compile(
    r"^(torch|tensorflow|mxnet|mindspore|jax|paddlepaddle)-(?:cpu|gpu|rocm|ascend|intel|cu\d+)$"
)
#: What images for NVIDIA's GPUs have in their environment.
ENVIRONMENT = {"CUDA_VERSION": "cuda", "NCCL_VERSION": "nccl"}
PLACES = ("site-packages", "dist-packages")
#: Pattern in the message of skopeo or buildah: cause and fix.
CAUSES = (
    (
        r"server gave HTTP response to HTTPS client",
        "the registry has no TLS; add it to image_relay_plain_http if the network to it is trusted",
    ),
    (
        r"x509|certificate",
        (
            "its certificate is not trusted by this host; add its authority to "
            "package_sources_ca_certificates, or to /etc/containers/certs.d"
        ),
    ),
    (
        (
            r"unauthorized|authentication required|invalid username/password|status 401|denied: "
            r"requested access"
        ),
        (
            "the registry refuses the login; correct image_relay_source_logins, or "
            "image_relay_registry_login for the site's own registry"
        ),
    ),
    (r"the registry is full", "the registry is full; raise image_relay_max_gib, or remove images"),
    (
        r"denied|status 403|Forbidden",
        "the registry does not permit it; correct the login or the rights there",
    ),
    (r"no space left", "the disk is full; free space on it"),
    (
        r"manifest unknown|name unknown|not found|status 404",
        "the registry has no such image; correct the name",
    ),
    (r"no such file", "the file does not exist on this host; copy it there, or correct the path"),
    (
        r"no such host|connection refused|i/o timeout|no route to host|network is "
        r"unreachable|connection reset|deadline exceeded|Client\.Timeout|status 50\d|"
        r"Bad Gateway",
        "the registry does not answer; start it, or correct the name",
    ),
)
MISSING = re.compile(r"manifest unknown|name unknown|repository name not known")


def digest_of(manifest: bytes) -> str:
    """Return the digest of a manifest, which is the checksum of its bytes."""
    return "sha256:" + hashlib.sha256(manifest).hexdigest()


def is_missing(messages: str) -> bool:
    """Return whether a registry that answers lacks the image."""
    return bool(MISSING.search(messages))


def last_line(messages: str) -> str:
    """Return the last line of skopeo or buildah, at most 600 characters of it: its msg if it is a
    line of a log.
    """
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    if not lines:
        return "no message"
    found = re.search(r'msg="(.*)"\s*$', lines[-1])
    line = found.group(1).replace('\\"', '"') if found else lines[-1]
    return line[-600:]


def explain(messages: str) -> str:
    """Return the cause and the fix for a message of skopeo or buildah, with its last line."""
    for pattern, cause in CAUSES:
        if re.search(pattern, messages):
            return "%s (%s)" % (cause, last_line(messages))
    return "%s; correct what it names" % last_line(messages)


def auth_document(logins: Iterable[Mapping[str, str]]) -> str:
    """Return the content of auth.json for a list of logins with C(registry), C(username) and
    C(password).
    """
    auths = {}
    for entry in logins:
        login = "%s:%s" % (entry["username"], entry["password"])
        auths[entry["registry"]] = {"auth": base64.b64encode(login.encode("utf-8")).decode("ascii")}
    return json.dumps({"auths": auths})


def tls_options(
    reference: str, plain_http: Container[str], option: str = "--tls-verify"
) -> list[str]:
    """Return the option of skopeo or buildah for a registry that is reached without TLS."""
    if not reference.startswith("docker://"):
        return []
    registry = reference[len("docker://") :].partition("/")[0]
    return [option + "=false"] if registry in plain_http else []


def archive_reference(path: str) -> str:
    """Return how skopeo names an archive.

    What docker save writes can be read both ways, and Docker's own has the names of the image.
    """
    try:
        with tarfile.open(path) as opened:
            names = set()
            for member in opened:
                names.add(member.name[2:] if member.name.startswith("./") else member.name)
                if "manifest.json" in names:
                    return "docker-archive:" + path
    except (OSError, EOFError, tarfile.TarError) as error:
        if isinstance(error, FileNotFoundError):
            raise ParseError(
                "the file does not exist on this host; copy it there, or correct the path"
            ) from error
        raise ParseError(
            "it is no readable archive (%s); write it with docker save, podman save or skopeo copy"
            % error
        ) from error
    if {"oci-layout", "index.json"} <= names:
        return "oci-archive:" + path
    raise ParseError(
        (
            "it is neither an archive of Docker nor an OCI archive; write it with docker save, "
            "podman save or skopeo copy"
        )
    )


def _platform(entry: Mapping[str, str]) -> str:
    """Return a platform such as linux/amd64."""
    return "/".join(entry[key] for key in ("os", "architecture", "variant") if entry.get(key))


def platforms_of(manifest: str, config: str) -> list[str]:
    """Return the platforms of an image, such as linux/amd64: those of its index, or of its
    configuration if it has one platform. Texts are JSON.
    """
    try:
        entries = json.loads(manifest).get("manifests")
        if entries is None:
            return [_platform(json.loads(config))]
        # Attestations of a build have the platform unknown.
        return sorted(
            {
                _platform(entry["platform"])
                for entry in entries
                if (entry.get("platform") or {}).get("os", "unknown") != "unknown"
            }
        )
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise ParseError("the manifest cannot be read (%s): %.120r" % (error, manifest)) from error


def packages_of(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python packages by name, from the names in a folder of packages."""
    found: dict[str, str] = {}
    for name in names:
        match = re.match(r"(.+?)-(\d[^-]*)(?:-py[\d.]+)?\.(?:dist-info|egg-info)$", name)
        if match:
            package = re.sub(r"[-_.]+", "-", match.group(1)).lower()
            build = BUILD.match(package)
            found[build.group(1) if build else package] = match.group(2)
    return found


def python_of(root: str, path: str) -> str:
    """Return the version of the first python3 in the image's PATH, such as 3.11, empty if it has
    none. Links are followed within the image only.
    """
    for folder in [part for part in path.split(":") if part.startswith("/")]:
        name = "python3"
        for _step in range(5):
            full = os.path.join(root, folder.lstrip("/"), name)
            match = re.fullmatch(r"python(3\.\d+)", name)
            if match and os.path.lexists(full):
                return match.group(1)
            if not os.path.islink(full):
                break
            target = os.readlink(full)
            folder, name = (
                os.path.normpath(os.path.join(folder, os.path.dirname(target))),
                os.path.basename(target),
            )
    return ""


def versions_of(root: str, environment: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (frameworks, versions) of an unpacked image: C(frameworks) by name, and all versions
    that the catalogue shows.
    """
    variables: dict[str, str] = {}
    for line in environment:
        name, dummy, value = line.partition("=")
        variables[name] = value
    packages: dict[str, str] = {}
    for folder, folders, _files in os.walk(root):
        if folder == root:
            folders[:] = [
                name for name in folders if name not in ("proc", "sys", "dev", "run", "tmp")
            ]
        if os.path.basename(folder) in PLACES:
            packages.update(packages_of(sorted(os.listdir(folder))))
            folders[:] = []
    versions = {
        name: packages[name] for name in list(FRAMEWORKS) + list(OTHERS) if name in packages
    }
    versions.update(
        {ours: variables[name] for name, ours in ENVIRONMENT.items() if variables.get(name)}
    )
    python = python_of(
        root,
        variables.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    )
    if python:
        versions["python"] = python
    return {FRAMEWORKS[name]: versions[name] for name in FRAMEWORKS if name in versions}, versions
