# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that trainyard-run gets from a registry, and those that it saves there.

It imports this file only if it needs it.

Podman 3.4 and later is all that a host needs for it. A saved image has the layers of its base and
one of its own, and the configuration of its base: what podman commit writes there (environment,
command, user and labels of the container) is not used.
"""

import base64
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile

import _files
import _registry

RegistryError = _registry.RegistryError
#: As registries accept it between two slashes.
NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
NAME_LENGTH = 64
#: Keys of a configuration that describe the image. Docker also writes those of the container of a
#: build.
OF_IMAGE = ("architecture", "author", "config", "os", "os.features", "os.version", "variant")
#: Seconds for a pull and for a push.
PULL_SECONDS, PUSH_SECONDS = 3600, 4 * 3600
#: XDG_RUNTIME_DIR of a person for podman, made at login or by the prolog.
LOGIN = "/run/user/%d"
LAYOUT = "saved-image"
MANIFEST_TYPE, CONFIG_TYPE = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.config.v1+json",
)
GIB = float(1 << 30)


class ImageError(Exception):
    """An image cannot be pulled or saved. The message is for the person."""


# --- pure functions ---


def name_problem(name):
    """Return why an image cannot have a name, or an empty text."""
    if NAME.fullmatch(name) and len(name) <= NAME_LENGTH:
        return ""
    return (
        "the name '%.80s' is not possible; use %d characters at most: lower-case letters and "
        "digits, with single . _ - between them"
    ) % (name if name.isprintable() else "?", NAME_LENGTH)


def room_problem(size, free, kept, path):
    """Return why there is no room for a new layer, or an empty text.

    C(kept) are the bytes below which the health check takes the host out of service.
    """
    if size + kept <= free:
        return ""
    return (
        "the changes of the container have %.1f GiB, and %s has %.1f GiB free%s; remove files "
        "in the container, or tell the operator"
    ) % (
        size / GIB,
        path,
        free / GIB,
        ", %.1f GiB of which have to stay free" % (kept / GIB) if kept else "",
    )


def big_data(identifier):
    """Return the name of the file in which podman keeps a configuration.

    It encodes names with characters that files should not have.
    """
    return "=" + base64.b64encode(("sha256:" + identifier).encode("ascii")).decode("ascii")


def container_of(containers, name):
    """Return ID, image and layer of a container. C(containers) is the content of
    containers.json.
    """
    for entry in containers or []:
        if name in (entry.get("names") or []):
            return {key: entry[key] for key in ("id", "image", "layer")}
    return None


def layers_of(config):
    return config["rootfs"]["diff_ids"]


def saved_config(base, committed, moment):
    """Return the configuration of the new image: the base's, with the layer that podman has
    committed.

    :param base: configuration of the image of the container.
    :param committed: what podman commit made. Only its list of layers is used.
    """
    layers, known = layers_of(committed), layers_of(base)
    if layers[: len(known)] != known or len(layers) > len(known) + 1:
        raise ImageError(
            (
                "podman has committed other layers than those of the image and of the container; "
                "tell the operator"
            )
        )
    found = {key: base[key] for key in OF_IMAGE if key in base}
    found.update(created=moment, rootfs={"type": "layers", "diff_ids": layers})
    if base.get("history"):
        found["history"] = base["history"] + [
            {
                "created": moment,
                "created_by": "trainyard-run --save",
                "empty_layer": len(layers) == len(known),
            }
        ]
    return found


def as_text(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(text):
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def layout(config, layers):
    """Return the files of a folder in the form of OCI, by path.

    It has no layers: podman has them in its store, and looks there first.

    :param layers: those of the manifest that podman commit made.
    """
    config_text = as_text(config)
    manifest = as_text(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "layers": layers,
            "config": {
                "mediaType": CONFIG_TYPE,
                "digest": digest(config_text),
                "size": len(config_text.encode("utf-8")),
            },
        }
    )
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": MANIFEST_TYPE,
                "digest": digest(manifest),
                "size": len(manifest.encode("utf-8")),
            }
        ],
    }
    return dict(
        {
            "blobs/sha256/" + digest(text)[len("sha256:") :]: text
            for text in (config_text, manifest)
        },
        **{"oci-layout": as_text({"imageLayoutVersion": "1.0.0"}), "index.json": as_text(index)},
    )


def image_id(config):
    """Return the ID that podman gives an image, which is the checksum of its configuration."""
    return digest(as_text(config))[len("sha256:") :]


def last_line(text):
    """Return the reason in the output of podman, without its prefix."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        re.sub(r"^(?:Error: |time=\S+ level=\w+ msg=)+", "", lines[-1])[-400:]
        if lines
        else "podman says nothing"
    )


# --- the host ---


def of_podman(path):
    """Return the content of a file of podman."""
    try:
        return _files.load_json(path)
    except (OSError, ValueError) as error:
        raise ImageError("%s cannot be read (%s); tell the operator" % (path, error)) from None


def size_of(folder):
    """Return the bytes that a folder uses on its disk. What cannot be read is left out."""
    total = 0
    for path, folders, files in os.walk(folder):
        for name in folders + files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def podman(command, environment, seconds, what, folder):
    """Return what podman prints.

    Its output goes into a file: processes that podman leaves would keep a pipe open.
    """
    with tempfile.TemporaryFile(dir=folder) as out, tempfile.TemporaryFile(dir=folder) as errors:
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ImageError("%s took more than %d s" % (what, seconds)) from None
        for stream in (out, errors):
            stream.seek(0)
        if done.returncode:
            raise ImageError(
                "%s failed: %s" % (what, last_line(errors.read().decode("utf-8", "replace")))
            )
        return out.read().decode("utf-8", "replace").strip()


@contextlib.contextmanager
def locked(path, wait):
    """Hold a lock that ends with this process."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ImageError(
            "%s cannot be locked: %s; tell the operator" % (path, error.strerror)
        ) from None
    with open(number, "w", encoding="ascii") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise ImageError("another save of this job is running; wait for its end") from None
        yield


def pull(image, person, config, environment, folder, is_there):
    """Pull an image of a registry into the store of the person, as C(podman pull) of that person
    does. The image stays there for later jobs.

    :param environment: of podman, for the containers of the job.
    :param folder: of the job, on the disk of the containers.
    :param is_there: tells whether another task of the person has pulled it meanwhile.
    """
    login = LOGIN % person["uid"]
    # The settings for the store of a person are those of all programs on the host.
    own = {name: value for name, value in environment.items() if name != "CONTAINERS_CONF"}
    own.update(XDG_RUNTIME_DIR=login, TMPDIR=folder)
    with contextlib.suppress(_registry.RegistryError):
        if _registry.read_login(person["name"])[0] == _registry.registry_of(image):
            own["REGISTRY_AUTH_FILE"] = "%s/%s.json" % (_registry.LOGINS, person["name"])
    with locked(login + "/trainyard-pull.lock", wait=True):
        if not is_there():
            podman(
                [config["podman"], "--log-level=error", "pull", "--quiet", image],
                own,
                PULL_SECONDS,
                "the pull of %s" % image,
                folder,
            )


def save(name, container, person, config, place, environment):
    """Save a running container as PERSON/NAME:DATE in the registry of the site, and return the
    whole name.

    :param place: C(command) of podman with its options, C(store) of the job, C(stores) with images, C(folder) and C(lock) of the job.
    """
    problem = name_problem(name)
    if problem:
        raise ImageError(problem)
    with locked(place["lock"], wait=False):
        registry, authorization = _registry.read_login(person["name"])
        repository = "%s/%s" % (person["name"], name)
        if not _registry.is_allowed(
            "%s/%s" % (registry, repository), config.get("registries") or []
        ):
            raise ImageError(
                (
                    "jobs could not use the image: %s/%s is not in job_container_registries; tell "
                    "the operator"
                )
                % (registry, person["name"])
            )
        found = container_of(
            of_podman(place["store"] + "/overlay-containers/containers.json"), container
        )
        if not found:
            raise ImageError("podman has no container %s; tell the operator" % container)
        state = os.statvfs(place["store"])
        kept = int(
            (((config.get("health") or {}).get("free_gib") or {}).get(config["storage"]) or 0) * GIB
        )
        problem = room_problem(
            size_of("%s/overlay/%s/diff" % (place["store"], found["layer"])),
            state.f_bavail * state.f_frsize,
            kept,
            config["storage"],
        )
        if problem:
            raise ImageError(problem)
        # It refuses here what it would refuse after a long push, too.
        _registry.Registry(registry, authorization).check_write(repository)
        moment = datetime.datetime.now(datetime.timezone.utc)
        image = "%s/%s:%s" % (registry, repository, moment.strftime("%Y%m%d-%H%M%S"))
        commit_and_push(
            image,
            found,
            place,
            dict(
                environment,
                TMPDIR=place["folder"],
                REGISTRY_AUTH_FILE="%s/%s.json" % (_registry.LOGINS, person["name"]),
            ),
            moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
    return image


def base_config(identifier, stores):
    """Return the configuration of an image in one of the stores."""
    for store in stores:
        path = "%s/overlay-images/%s/%s" % (store, identifier, big_data(identifier))
        if os.path.exists(path):
            return of_podman(path)
    raise ImageError(
        "the image of the container, %s, is not on this host; tell the operator" % identifier[:12]
    )


def commit_and_push(image, container, place, environment, moment):
    """Whatever happens, neither images nor files are left of it in the job."""
    folder, made = tempfile.mkdtemp(prefix="save.", dir=place["folder"]), []

    def run(words, seconds, what):
        return podman(place["command"] + words, environment, seconds, what, folder)

    try:
        base = base_config(container["image"], place["stores"])
        # Pausing is not possible without a control group of the container.
        committed = run(
            ["commit", "--quiet", "--pause=false", "--format=oci", container["id"]],
            PULL_SECONDS,
            "podman commit",
        ).split()[-1]
        made.append(committed)
        there = "%s/overlay-images/%s/" % (place["store"], committed)
        config = saved_config(base, of_podman(there + big_data(committed)), moment)
        for path, text in layout(config, of_podman(there + "manifest")["layers"]).items():
            target = os.path.join(folder, LAYOUT, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as stream:
                stream.write(text)
        made.append(image_id(config))
        # By a relative path: podman makes a name of the path, which may have characters that names
        # do not have.
        read = run(["pull", "--quiet", "oci:" + LAYOUT], PULL_SECONDS, "podman pull").split()[-1]
        if read != made[-1]:
            made.append(read)
            # The ID is the checksum of all that the image says about itself, so nothing of the
            # container can be in it.
            raise ImageError("podman has changed the configuration of the image; tell the operator")
        run(
            ["push", "--quiet", made[-1], "docker://" + image],
            PUSH_SECONDS,
            "the push to %s" % image.partition("/")[0],
        )
    finally:
        for identifier in reversed(made):
            with contextlib.suppress(ImageError):
                run(["rmi", "--force", identifier], PULL_SECONDS, "podman rmi")
        shutil.rmtree(folder, ignore_errors=True)
