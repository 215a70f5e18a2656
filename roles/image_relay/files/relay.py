# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of the image relay on the registry's host: relay SPEC copies and completes images,
tidy and room keep the registry small.
"""

import contextlib
import ctypes
import datetime
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _image_relay
from _files import load_json

RUN = "/run/trainyard/image_relay"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
    # buildah would store layers in /var/tmp first.
    "TMPDIR": "/var/tmp",
}
SITE, WHEELS = "/etc/trainyard/site", "/var/lib/trainyard/wheels"
DAY = 86400
#: Programs of an image that is completed have these IDs on the host, its root the first one: it is
#: an image of a third party. No account has them: those that role job_container gives to people
#: begin after them, and those of useradd begin at 100000.
FIRST_ID, IDS = (1 << 28) - (1 << 16), 1 << 16
#: linux/sched.h
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
#: Additions to an image: how to find out whether it has them, and the packages with them.
APT = {"openssh-server": ("usr/sbin/sshd",), "sudo": ("usr/bin/sudo",)}
# Arguments: packages for apt, packages for pip. The first value of a setting counts for sshd. A key
# that all containers of an image have is no secret.
SCRIPT = r"""set -eu
if [ -f /etc/trainyard/site/environment ]; then
    while IFS= read -r line; do case $line in \#*|'') ;; *=*) export "$line" ;; esac; done < /etc/trainyard/site/environment
fi
if [ -n "$1" ]; then
    made=
    [ -e /usr/sbin/policy-rc.d ] || { made=yes; printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; }
    [ ! -f /etc/trainyard/site/apt.conf ] || export APT_CONFIG=/etc/trainyard/site/apt.conf
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet=2
    apt-get install --quiet=2 --yes --no-install-recommends $1
    apt-get clean
    rm -rf /var/lib/apt/lists/*
    [ -z "$made" ] || rm /usr/sbin/policy-rc.d
fi
if [ -n "$2" ]; then
    [ ! -f /etc/trainyard/site/pip.conf ] || export PIP_CONFIG_FILE=/etc/trainyard/site/pip.conf
    [ ! -d /run/trainyard/wheels ] || export PIP_FIND_LINKS=/run/trainyard/wheels
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=0 PIP_PROGRESS_BAR=off
    python3 -m pip install $2
fi
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub
if [ -f /etc/ssh/sshd_config ] && ! grep -q '^# Password logins are off (trainyard.gpu)' /etc/ssh/sshd_config; then
    { printf '# Password logins are off (trainyard.gpu)\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n'
      cat /etc/ssh/sshd_config; } > /etc/ssh/sshd_config.new
    cat /etc/ssh/sshd_config.new > /etc/ssh/sshd_config
    rm /etc/ssh/sshd_config.new
fi
"""


class Failed(Exception):
    """The reason why an image cannot be relayed. The message is for the operator."""


def run(command, check=True, quiet=False, **options):
    """Run a program. Its output goes to the log, and its error output is part of the failure."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=not options.pop("binary", False),
        env=dict(ENVIRONMENT, **options.pop("environment", {})),
        check=False,
        **options,
    )
    if check and done.returncode:
        raise Failed(
            _image_relay.explain(
                done.stderr
                if isinstance(done.stderr, str)
                else done.stderr.decode("utf-8", "replace")
            )
        )
    if not quiet and done.stderr and isinstance(done.stderr, str):
        print(done.stderr.rstrip())
    return done


def write_json(path, content, mode=0o644):
    unfinished = path + ".unfinished"
    with open(
        os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8"
    ) as stream:
        json.dump(content, stream, indent=2, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(unfinished, path)


def remove_file(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


# --- programs of images: without the rights of root ---------------------------------------------------------------------------


def places_of(folder):
    """Return (path, path in the container) of the site's files and wheels.

    Only root may read files with passwords of a proxy, so they are copied.
    """
    places = []
    if os.path.isdir(SITE):
        shutil.copytree(SITE, folder + "/site")
        places.append((folder + "/site", SITE))
    if os.path.isdir(WHEELS):
        places.append((WHEELS, "/run/trainyard/wheels"))
    return places


def give(folder):
    """Make the root of the image the owner of a folder and of what is in it."""
    os.chown(folder, FIRST_ID, FIRST_ID)
    for place, folders, names in os.walk(folder):
        for name in folders + names:
            os.chown(os.path.join(place, name), FIRST_ID, FIRST_ID, follow_symlinks=False)


def enter(entered, mapped):
    """Become root of a new user namespace.

    C(entered) and C(mapped) are pipes: the other process may write the IDs only after this one is
    in it.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise Failed(
            "this host creates no user namespaces (%s); check sysctl user.max_user_namespaces"
            % os.strerror(ctypes.get_errno())
        )
    os.write(entered, b"x")
    os.read(mapped, 1)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def answer_of(work, entered, mapped):
    """Return the answer of the process in the namespace."""
    try:
        enter(entered, mapped)
        return {"result": work()}
    except (Failed, _image_relay.ParseError, OSError) as error:
        return {"error": str(error)}


def with_own_ids(work):
    """Return the result of a function that runs in a process as root of a user namespace, with a
    mount namespace. What it leaves running is ended.
    """
    (answers, answer), (has_entered, entered), (mapped, has_mapped) = (
        os.pipe(),
        os.pipe(),
        os.pipe(),
    )
    child = os.fork()
    if not child:
        try:
            for unused in (answers, has_entered, has_mapped):
                os.close(unused)
            os.write(answer, json.dumps(answer_of(work, entered, mapped)).encode("utf-8"))
        finally:
            os._exit(0)
    for unused in (answer, entered, mapped):
        os.close(unused)
    with open(answers, encoding="utf-8") as stream, open(
        has_mapped, "wb", buffering=0
    ) as signal_of_map:
        if os.read(has_entered, 1):
            for name in ("uid_map", "gid_map"):
                with open("/proc/%d/%s" % (child, name), "w", encoding="ascii") as table:
                    table.write("0 %d %d\n" % (FIRST_ID, IDS))
            signal_of_map.write(b"x")
        reply = json.loads(
            stream.read() or '{"error": "the process that completes it was ended; see the log"}'
        )
    os.close(has_entered)
    os.waitpid(child, 0)
    end_processes()
    if "error" in reply:
        raise Failed(reply["error"])
    return reply["result"]


def end_processes():
    """End the processes with the IDs of images, so that files do not change while root
    reads them.
    """
    for entry in glob.glob("/proc/[0-9]*"):
        try:
            owner = os.stat(entry).st_uid
            if FIRST_ID <= owner < FIRST_ID + IDS:
                os.kill(int(os.path.basename(entry)), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


# --- relay ------------------------------------------------------------------------------------------------------------------


class Relay:
    """One run over the images of a specification.

    Each of them is recorded as soon as the registry has it.
    """

    def __init__(self, spec):
        self.spec, self.plain = spec, spec["plain_http"]
        self.storage = {"CONTAINERS_STORAGE_CONF": spec["storage_conf"], "TMPDIR": spec["work"]}
        self.folder = tempfile.mkdtemp(prefix="run.", dir=RUN)
        self.auth = os.path.join(self.folder, "auth.json")
        document = load_json(spec["logins"], {"auths": {}})
        # A play that is killed does not remove them.
        remove_file(spec["logins"])
        if spec["tokens"]:
            own = json.loads(
                _image_relay.auth_document(
                    [
                        {
                            "registry": spec["registry"],
                            "username": spec["account"],
                            "password": load_json(spec["tokens"])[spec["account"]],
                        }
                    ]
                )
            )
            document["auths"].update(own["auths"])
        write_json(self.auth, document, 0o600)
        self.relayed = load_json(spec["relayed"], {})

    def skopeo(self, *words, **options):
        return run(["skopeo", "--policy", self.spec["policy"]] + list(words), **options)

    def buildah(self, *words, **options):
        return run(["buildah"] + list(words), environment=self.storage, **options)

    def manifest(self, reference):
        return self.skopeo(
            "inspect",
            "--raw",
            "--authfile",
            self.auth,
            *_image_relay.tls_options(reference, self.plain),
            reference,
            binary=True,
        ).stdout

    def source(self, image):
        """Return the reference of a source, by digest, so that the checked image is the one that is
        copied.
        """
        if image["is_archive"]:
            return _image_relay.archive_reference(image["source"])
        return "docker://%s@%s" % (
            re.sub(r"(:[^:/@]+)?(@.*)?$", "", image["source"]),
            image["digest"],
        )

    def copy(self, image, source):
        target = "docker://" + image["target"]
        self.skopeo(
            "copy",
            "--quiet",
            "--all",
            "--authfile",
            self.auth,
            *_image_relay.tls_options(source, self.plain, "--src-tls-verify"),
            *_image_relay.tls_options(target, self.plain, "--dest-tls-verify"),
            source,
            target,
        )

    def container(self, reference):
        """Make a container of an image without starting it, and return its name and the folder of
        its files.
        """
        name = (
            self.buildah(
                "from",
                "--quiet",
                "--pull-always" if reference.startswith("docker://") else "--pull",
                "--signature-policy",
                self.spec["policy"],
                "--authfile",
                self.auth,
                *_image_relay.tls_options(reference, self.plain),
                reference,
                quiet=True,
            )
            .stdout.strip()
            .splitlines()[-1]
        )
        return name, self.buildah("mount", name, quiet=True).stdout.strip()

    def environment(self, name):
        return (
            json.loads(self.buildah("inspect", name, quiet=True).stdout)["OCIv1"]
            .get("config", {})
            .get("Env")
            or []
        )

    def lacks(self, root):
        """Return (packages for apt, packages for pip) that an image lacks, or fail with the reason
        why it cannot be completed.
        """

        def has(*paths):
            return any(os.path.lexists(os.path.join(root, path)) for path in paths)

        apt = [name for name, paths in APT.items() if not has(*paths)]
        pip = [] if "ipykernel" in _image_relay.versions_of(root, [])[1] else ["ipykernel"]
        if apt and not has("usr/bin/apt-get"):
            raise Failed(
                (
                    "it has no apt, which installs %s; use an image of Debian or Ubuntu, or "
                    "complete: false"
                )
                % ", ".join(apt)
            )
        return apt, pip

    def complete(self, image, source):
        """Add what is missing, push the result, and return what was added.

        The logins stay here: the process that runs programs of the image has none.
        """
        folder = self.spec["build"]
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
        try:
            self.skopeo(
                "copy",
                "--quiet",
                "--authfile",
                self.auth,
                *_image_relay.tls_options(source, self.plain, "--src-tls-verify"),
                source,
                "dir:%s/source" % folder,
            )
            places = places_of(folder)
            give(folder)
            added = with_own_ids(lambda: self.build(image, folder, places))
            target = "docker://" + image["target"]
            self.skopeo(
                "copy",
                "--quiet",
                "--authfile",
                self.auth,
                *_image_relay.tls_options(target, self.plain, "--dest-tls-verify"),
                "dir:%s/made" % folder,
                target,
            )
            return added
        finally:
            shutil.rmtree(folder)

    def build(self, image, folder, places):
        """Complete an image as root of a user namespace, with a store of its own.

        Return what was added.
        """
        self.storage = {
            "CONTAINERS_STORAGE_CONF": folder + "/storage.conf",
            "TMPDIR": folder,
            "HOME": folder,
            "XDG_RUNTIME_DIR": folder,
            # buildah would enter another namespace, for which an account of the host would need
            # IDs.
            "_CONTAINERS_USERNS_CONFIGURED": "done",
        }
        with open(folder + "/storage.conf", "w", encoding="utf-8") as stream:
            stream.write(
                '[storage]\ndriver = "overlay"\nrunroot = "%s/run"\ngraphroot = "%s/store"\n'
                % (folder, folder)
            )
        name = (
            self.buildah(
                "from",
                "--quiet",
                "--pull",
                "--signature-policy",
                self.spec["policy"],
                "dir:%s/source" % folder,
                quiet=True,
            )
            .stdout.strip()
            .splitlines()[-1]
        )
        root = self.buildah("mount", name, quiet=True).stdout.strip()
        apt, pip = self.lacks(root)
        if pip and self.inside(name, "python3", "-m", "pip", "--version", quiet=True).returncode:
            raise Failed(
                (
                    "it has no pip for its python3, which installs %s; use an image with pip, or "
                    "complete: false"
                )
                % ", ".join(pip)
            )
        print("%s: adding %s" % (image["name"], ", ".join(apt + pip) or "nothing"))
        before = [target for _path, target in places if not os.path.lexists(root + target)]
        volumes = ["--volume=%s:%s:ro" % place for place in places]
        done = self.inside(
            name, "/bin/sh", "-c", SCRIPT, "complete", " ".join(apt), " ".join(pip), options=volumes
        )
        print(done.stdout.rstrip())
        if done.returncode:
            raise Failed(
                "%s could not be added (%s); see what apt and pip say in the log"
                % (", ".join(apt + pip), _image_relay.last_line(done.stderr or done.stdout))
            )
        for target in before:
            self.remove_empty(root, target)
        self.buildah(
            "config",
            "--label",
            "trainyard.relay.source=%s" % image["source"],
            "--label",
            "trainyard.relay.digest=%s" % image["digest"],
            "--label",
            "trainyard.relay.recipe=%s" % image["recipe"],
            name,
        )
        made = (
            self.buildah("commit", "--quiet", "--format", "docker", name, quiet=True)
            .stdout.strip()
            .splitlines()[-1]
        )
        self.buildah(
            "push",
            "--quiet",
            "--signature-policy",
            self.spec["policy"],
            made,
            "dir:%s/made" % folder,
        )
        return apt + pip

    def inside(self, name, *command, options=(), quiet=False):
        """Run a program of an image in its container."""
        return self.buildah(
            "run",
            "--isolation",
            "chroot",
            "--user",
            "0:0",
            *options,
            name,
            "--",
            *command,
            check=False,
            quiet=quiet,
        )

    @staticmethod
    def remove_empty(root, target):
        """Remove the folders that a mount has left in an image."""
        while target not in ("", "/"):
            path = os.path.realpath(root) + target
            # A link of the image may lead out of it.
            if not os.path.isdir(path) or os.path.realpath(path) != path or os.listdir(path):
                return
            os.rmdir(path)
            target = os.path.dirname(target)

    def describe(self, image, manifest):
        """Return the entry of the catalogue for an image of the registry, from its files."""
        reference = "docker://%s@%s" % (
            re.sub(r":[^:/]+$", "", image["target"]),
            _image_relay.digest_of(manifest),
        )
        text = manifest.decode("utf-8")
        options = ("--authfile", self.auth) + tuple(_image_relay.tls_options(reference, self.plain))
        config = (
            "{}"
            if "manifests" in json.loads(text)
            else self.skopeo("inspect", "--config", *options, reference).stdout
        )
        platforms = _image_relay.platforms_of(text, config)
        name, root = self.container_of(reference, platforms)
        try:
            frameworks, versions = _image_relay.versions_of(root, self.environment(name))
        finally:
            self.buildah("rm", name, check=False, quiet=True)
        return {"platforms": platforms, "frameworks": frameworks, "versions": versions}

    def container_of(self, reference, platforms):
        try:
            return self.container(reference)
        except Failed:
            # Its files can be read, though it cannot run here.
            others = [platform.split("/") for platform in platforms]
            if not others:
                raise
            parts = others[0]
            name = (
                self.buildah(
                    "from",
                    "--quiet",
                    "--pull-always",
                    "--signature-policy",
                    self.spec["policy"],
                    "--authfile",
                    self.auth,
                    "--os",
                    parts[0],
                    "--arch",
                    parts[1],
                    *_image_relay.tls_options(reference, self.plain),
                    reference,
                    quiet=True,
                )
                .stdout.strip()
                .splitlines()[-1]
            )
            return name, self.buildah("mount", name, quiet=True).stdout.strip()

    def one(self, image):
        print(
            "%s: %s of %s"
            % (
                image["name"],
                {"copy": "copy", "complete": "completion", "record": "description"}[image["what"]],
                image["source"],
            )
        )
        source = self.source(image)
        former = self.relayed.get(image["name"], {})
        added = []
        if image["what"] == "copy":
            self.copy(image, source)
        elif image["what"] == "complete":
            added = self.complete(image, source)
        manifest = self.manifest("docker://" + image["target"])
        digest = _image_relay.digest_of(manifest)
        if not image["recipe"] and not image["is_archive"] and digest != image["digest"]:
            raise Failed(
                "the registry has digest %s after the copy of %s; run the playbook again"
                % (digest, image["digest"])
            )
        if image["what"] == "record" and former.get("digest") == digest:
            # Only its source differs.
            added = former["added"]
        self.relayed[image["name"]] = dict(
            self.describe(image, manifest),
            source=image["source"],
            source_digest=image["digest"],
            digest=digest,
            recipe=image["recipe"],
            added=added,
            date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        write_json(self.spec["relayed"], self.relayed)
        print("%s: %s %s" % (image["name"], image["target"], digest))

    def run(self):
        failed = []
        try:
            for image in self.spec["images"]:
                try:
                    self.one(image)
                except (Failed, _image_relay.ParseError) as error:
                    failed.append(
                        "image_relay_images: '%s' as '%s': %s"
                        % (image["source"], image["name"], error)
                    )
                    print(failed[-1])
        finally:
            shutil.rmtree(self.folder)
            self.empty_store()
        for text in failed:
            print(text, file=sys.stderr, flush=True)
        return 1 if failed else 0

    def empty_store(self):
        """The images are in the registry, and the copies beside it would only take space."""
        self.buildah("rm", "--all", check=False, quiet=True)
        self.buildah("rmi", "--all", "--force", check=False, quiet=True)


def relay(path):
    spec = load_json(path)
    os.makedirs(RUN, mode=0o700, exist_ok=True)
    with alone(spec["work"]):
        # Logins of a run that was killed.
        for left in glob.glob(os.path.join(RUN, "run.*")):
            shutil.rmtree(left)
        # systemd stops the unit so. The logins are removed then, too.
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
        return Relay(spec).run()


# --- room and tidy ----------------------------------------------------------------------------------------------------------


def size_of(folder):
    total = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def layers(base: str, name: str) -> tuple:
    """Return the digests that the repositories below a name use, and bytes of running pushes.

    Content counts before a manifest names it: a push may never send one.
    """
    digests, unfinished = set(), 0
    for folder, folders, _names in os.walk(os.path.join(base, name)):
        linked = os.path.join(folder, "_layers", "sha256")
        if os.path.isdir(linked):
            digests.update(os.listdir(linked))
        unfinished += size_of(os.path.join(folder, "_uploads"))
        folders[:] = [each for each in folders if not each.startswith("_")]
    return digests, unfinished


def used_by(top: str, person: str, approved_layers: set) -> int:
    """Return the bytes of a person in the registry.

    What approved images have, too, does not count. Nor does what was removed already.
    """
    digests, total = layers(os.path.join(top, "repositories"), person)
    for digest in digests - approved_layers:
        try:
            blob = os.path.join(top, "blobs", "sha256", digest[:2], digest, "data")
            total += os.stat(blob).st_size
        except FileNotFoundError:
            pass
    return total


def space(settings: dict) -> None:
    """Record the space of each person, and refuse writes of those who use too much.

    nginx looks for the files.
    """
    folder, limit = os.path.join(settings["storage"], "space"), settings["person_bytes"]
    top = os.path.join(settings["storage"], "registry", "docker", "registry", "v2")
    os.makedirs(folder, exist_ok=True)
    kept = set()
    approved_layers = layers(os.path.join(top, "repositories"), settings["folder"])[0]
    for person in settings["people"]:
        used = used_by(top, person, approved_layers)
        usage = {"used_mib": used >> 20, "limit_mib": limit >> 20 or None}
        kept.add(person + ".json")
        write_json(os.path.join(folder, person + ".json"), usage)
        if limit and used > limit:
            kept.add(person + ".full")
            with open(os.path.join(folder, person + ".full"), "w", encoding="utf-8"):
                print("writes of %s are refused: %d bytes used of %d" % (person, used, limit))
    for name in set(os.listdir(folder)) - kept:
        os.unlink(os.path.join(folder, name))


def room(path):
    """Refuse writes while the registry is larger than it may be, or its disk is nearly full: nginx
    looks for the file.
    """
    settings = load_json(path)
    space(settings)
    flag = os.path.join(settings["storage"], "full")
    disk = os.statvfs(settings["storage"])
    used, free = (
        size_of(os.path.join(settings["storage"], "registry")),
        disk.f_bavail * disk.f_frsize,
    )
    if used > settings["max_bytes"] or free < settings["free_bytes"]:
        with open(flag, "w", encoding="utf-8") as stream:
            stream.write("used %d free %d\n" % (used, free))
        print(
            "writes are refused: %d bytes used of %d, %d bytes free of at least %d"
            % (used, settings["max_bytes"], free, settings["free_bytes"])
        )
    elif os.path.exists(flag):
        os.unlink(flag)
        print("writes are permitted again")
    return 0


def link_of(path):
    with open(path, encoding="ascii") as stream:
        return stream.read().strip()


def repositories(base):
    """Yield the folders of repositories."""
    for folder, folders, _names in os.walk(base):
        if "_manifests" in folders:
            yield folder
        folders[:] = [name for name in folders if not name.startswith("_")]


def old_tags(folder, keep, now, keep_days):
    """Return the folders of tags that are older than they may be.

    Approved images of today are kept.
    """
    tags, found = os.path.join(folder, "_manifests", "tags"), []
    for tag in sorted(os.listdir(tags)) if os.path.isdir(tags) else []:
        link = os.path.join(tags, tag, "current", "link")
        if (
            keep_days
            and tag not in keep
            and os.path.exists(link)
            and now - os.lstat(link).st_mtime > keep_days * DAY
        ):
            found.append(os.path.join(tags, tag))
    return found


def referenced(folder, blobs):
    """Return the digests of the manifests that the tags of a repository need, those of an index
    too.
    """
    tags, found = os.path.join(folder, "_manifests", "tags"), set()
    for tag in os.listdir(tags) if os.path.isdir(tags) else []:
        link = os.path.join(tags, tag, "current", "link")
        if os.path.exists(link):
            found.add(link_of(link))
    for digest in sorted(found):
        name = digest.partition(":")[2]
        manifest = load_json(os.path.join(blobs, name[:2], name, "data"), {})
        found.update(entry["digest"] for entry in manifest.get("manifests") or [])
    return found


def unused_revisions(folder, needed, now):
    """Return the folders of manifests without a tag. garbage-collect of this version would also
    remove those that only an index names. A push that runs sends the manifest before its tag, so
    the last day is left alone.
    """
    base, found = os.path.join(folder, "_manifests", "revisions", "sha256"), []
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        link = os.path.join(base, name, "link")
        if "sha256:" + name not in needed and (
            not os.path.exists(link) or now - os.lstat(link).st_mtime > DAY
        ):
            found.append(os.path.join(base, name))
    return found


def approved(settings, folder, base):
    """Return the tags of a repository that image_relay_images requests. relayed.json would also
    have former images.
    """
    name = os.path.relpath(folder, base)
    return {
        image.rpartition(":")[2]
        for image in settings["images"]
        if "%s/%s" % (settings["folder"], image.rpartition(":")[0]) == name
    }


def forget(settings, names):
    """Remove images from the record of what was relayed.

    It has an image as long as the registry has its tag, so an image that is requested again in time
    is not completed again.
    """
    path = os.path.join(settings["storage"], "relayed.json")
    relayed = load_json(path, {})
    left = {
        name: entry
        for name, entry in relayed.items()
        if "%s/%s" % (settings["folder"], name) not in names
    }
    if left != relayed:
        write_json(path, left)


@contextlib.contextmanager
def alone(work):
    """Hold the lock of the program: a relay and the removal of old tags both write relayed.json,
    and a relay needs the registry.
    """
    with open(os.path.join(work, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tidy(path, now=None):
    """Remove old tags, and what no tag needs. The registry must not take pushes meanwhile."""
    settings, now = load_json(path), time.time() if now is None else now
    top = os.path.join(settings["storage"], "registry", "docker", "registry", "v2")
    base, blobs = os.path.join(top, "repositories"), os.path.join(top, "blobs", "sha256")
    if not os.path.isdir(base):
        return room(path)
    with alone(os.path.join(settings["storage"], "work")):
        remove_unused(settings, base, blobs, now)
    return room(path)


def remove_unused(settings, base, blobs, now):
    run(["systemctl", "stop", settings["service"]])
    try:
        gone = set()
        for folder in list(repositories(base)):
            old = old_tags(folder, approved(settings, folder, base), now, settings["keep_days"])
            for tag in old:
                print(
                    "%s:%s is older than %d days"
                    % (os.path.relpath(folder, base), os.path.basename(tag), settings["keep_days"])
                )
                shutil.rmtree(tag)
                gone.add("%s:%s" % (os.path.relpath(folder, base), os.path.basename(tag)))
            for revision in unused_revisions(folder, referenced(folder, blobs), now):
                shutil.rmtree(revision)
        forget(settings, gone)
        run(
            [
                "runuser",
                "-u",
                settings["user"],
                "--",
                "docker-registry",
                "garbage-collect",
                settings["config"],
            ],
            quiet=True,
        )
    finally:
        run(["systemctl", "start", settings["service"]])


def main(words):
    if len(words) != 2 or words[0] not in COMMANDS:
        print("usage: relay relay|tidy|room FILE", file=sys.stderr)
        return 2
    try:
        return COMMANDS[words[0]](words[1])
    except Failed as error:
        print(error, file=sys.stderr)
        return 1


COMMANDS = {"relay": relay, "tidy": tidy, "room": room}

if __name__ == "__main__":
    # The log has each line at once.
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main(sys.argv[1:]))
