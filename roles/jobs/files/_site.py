# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The site as role jobs has described it, the person who calls, and the folders of the jobs of this
person.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pwd
import re
import subprocess
import tempfile
import time
import uuid

import _files
import _job_file
import _job_text
from _messages import Refused

CONFIG = os.environ.get("TRAINYARD_JOBS_CONFIG") or "/etc/trainyard/jobs.json"
#: Seconds after which the command of an interactive job is removed.
KEPT_SECONDS = 30 * 86400
#: Role monitoring writes it on the scheduler's host: the waiting jobs of all people, without names.
#: Seconds for which it counts, and its size at most.
QUEUE, QUEUE_SECONDS, QUEUE_BYTES = "/run/trainyard-queue/queue.json", 300, 16 << 20
#: In the home of a person: when Slurm sends mails about jobs that do not say so, and its size at
#: most.
MAIL_DEFAULT, MAIL_BYTES = ".config/trainyard/mail", 200
#: Where the operator's public keys of people are on this host.
PEOPLE = "/etc/trainyard/people"


class Site:
    """What role jobs has written for this host, and who calls."""

    def __init__(self):
        try:
            with open(CONFIG, encoding="utf-8") as stream:
                self.config = json.load(stream)
        except (OSError, ValueError) as error:
            raise Refused(
                "%s cannot be read (%s); tell the operator to run playbook workbench"
                % (CONFIG, error)
            ) from error
        entry = pwd.getpwuid(os.getuid())
        self.person, self.home = entry.pw_name, entry.pw_dir
        self.folder = os.path.join(self.config["jobs"], self.person)

    def check_folder(self):
        if os.getuid() == 0:
            raise Refused("root has no jobs; log in as a person, or use su")
        if not os.path.isdir(os.path.join(self.folder, ".out")):
            raise Refused(
                "%s/.out does not exist; tell the operator to run playbook people" % self.folder
            )
        problem = self.write_problem()
        if problem:
            raise Refused(problem)

    def write_problem(self):
        """Return why jobs cannot write their logs, or an empty text.

        It is tried: a quota does not show in the free space, and NFS tells it when it syncs.
        """
        folder = os.path.join(self.folder, ".out")
        try:
            with tempfile.TemporaryFile(dir=folder) as stream:
                stream.write(bytes(4096))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            return (
                "%s cannot be written: %s. Remove files of yours on the share, or tell the operator"
                % (folder, error.strerror)
            )
        return ""

    def catalogue(self):
        return self.config.get("images") or []

    @staticmethod
    def approved():
        """Return the images of the site's registry with what is in them, which role image_relay
        writes.
        """
        path = os.path.join(os.path.dirname(CONFIG), "images.json")
        try:
            with open(path, encoding="utf-8") as stream:
                return json.load(stream)["images"]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(
                "%s cannot be read (%s); tell the operator to run playbook image_relay"
                % (path, error)
            ) from error

    def queue(self) -> list | None:
        """Return the waiting jobs of all people in their order, without names.

        None if this host does not know them.
        """
        try:
            text = _files.read_regular(self.config.get("queue") or QUEUE, QUEUE_BYTES)
            found = json.loads(text)
            return found["jobs"] if time.time() - found["written"] < QUEUE_SECONDS else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def saved(self):
        """Return the names of the images that the person has in the site's registry, the newest
        first, and why that is not known, or an empty text.
        """
        # Only here: it takes longer to import than the rest of this command.
        registry = importlib.import_module("_registry")
        if not os.path.isdir(registry.LOGINS):
            return [], ""
        try:
            return registry.saved_images(self.person), ""
        except registry.RegistryError as error:
            return [], "your saved images are not known: %s" % error

    def is_shared(self, folder):
        """Return whether all hosts have a folder."""
        return any(
            folder == path or folder.startswith(path.rstrip("/") + "/")
            for path in (self.home, self.config["share"])
        )

    def place(self, job):
        """Return where a job starts and writes.

        Without workdir it starts in the current folder, if the hosts of the job have it, too.
        """
        workdir = self.in_home(job["workdir"])
        if not workdir:
            current = ""
            # It may have been removed.
            with contextlib.suppress(FileNotFoundError):
                current = os.getcwd()
            workdir = current if self.is_shared(current) else self.home
        return {
            "output": os.path.join(self.folder, ".out", "%j.log"),
            "workdir": workdir,
            "mail": self.config.get("mail", False),
            "mail_default": self.mail_default() if self.config.get("mail") else None,
        }

    def mail_default(self) -> list | None:
        """Return when the person wants mails about jobs without the key mail, None without a
        choice.
        """
        path = os.path.join(self.home, MAIL_DEFAULT)
        try:
            return _job_file.mail_default(_files.read_regular(path, MAIL_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Refused("%s: %s" % (path, error)) from error

    def in_home(self, path):
        """Return a path with the home of the person in place of ~."""
        return self.home + path[1:] if path == "~" or path.startswith("~/") else path

    def folder_of(self, number):
        """Return the folder of a job: the newest with its number. None if it has none."""
        found = []
        if os.path.isdir(self.folder):
            found = [
                name
                for name in os.listdir(self.folder)
                if re.fullmatch(re.escape(number) + r"(\.\d+)?", name)
            ]
        return (
            os.path.join(self.folder, max(found, key=lambda name: int(name.partition(".")[2] or 0)))
            if found
            else None
        )

    def log_of(self, number, rank=None):
        folder = self.folder_of(number)
        if rank is not None:
            return os.path.join(folder or os.path.join(self.folder, number), "rank.%d.log" % rank)
        return os.path.join(self.folder, ".out", number + ".log")

    def json_of(self, number, name):
        """Return a file of the job's folder, a dict, or None."""
        try:
            found = json.loads(
                _files.read_regular(os.path.join(self.folder_of(number) or "", name))
            )
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def result_of(self, number):
        return self.json_of(number, "result.json")

    def job_of(self, number):
        """Return the judged job that a running job has, or None."""
        try:
            text = _files.read_regular(os.path.join(self.folder_of(number) or "", "job.json"))
            return _job_text.opened(text)[0]
        except (OSError, _job_text.SealError):
            return None

    def write_keys(self):
        """Keep the person's public keys where ssh into their jobs finds them.

        Returns the folder with them.
        """
        self.check_folder()
        folder, keys = os.path.join(self.folder, ".ssh"), []
        own = [
            os.path.join(self.home, ".ssh", name)
            for name in ("authorized_keys", "authorized_keys2")
        ]
        for path in [os.path.join(PEOPLE, self.person + ".keys")] + own:
            with contextlib.suppress(OSError):
                keys.append(_files.read_regular(path).rstrip("\n") + "\n")
        if not any(
            line.strip() and not line.startswith("#") for text in keys for line in text.splitlines()
        ):
            raise Refused(
                "you have no public key on this host; put one into %s/.ssh/authorized_keys"
                % self.home
            )
        os.makedirs(folder, 0o700, exist_ok=True)
        _files.write_private(os.path.join(folder, "authorized_keys"), "".join(keys))
        # One for all jobs of a person, so that ssh knows it after the first connection.
        key = os.path.join(folder, "host_key")
        if not os.path.exists(key):
            with tempfile.TemporaryDirectory(dir=folder) as new:
                command = [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    "jobs of " + self.person,
                    "-f",
                    os.path.join(new, "key"),
                ]
                try:
                    subprocess.run(
                        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
                    )
                except (OSError, subprocess.CalledProcessError) as error:
                    raise Refused("a host key cannot be made: %s" % error) from error
                with contextlib.suppress(FileExistsError):
                    os.link(os.path.join(new, "key"), key)
        return folder

    def keep_command(self, text):
        """Write the command of an interactive job into a file, because everybody on a host can read
        the arguments of a process. Return its path.
        """
        folder = os.path.join(self.folder, ".interactive")
        os.makedirs(folder, 0o700, exist_ok=True)
        for entry in os.scandir(folder):
            # Of sessions that have ended long ago.
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > KEPT_SECONDS:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        path = os.path.join(folder, uuid.uuid4().hex + ".sh")
        _files.write_private(path, text + "\n")
        return path

    def values_of(self, number):
        folder = self.folder_of(number)
        try:
            return _files.read_regular(os.path.join(folder or "", "spec.yml"))
        except OSError:
            raise Refused(
                "job %s has no job file in %s. `trainyard list --all` shows your jobs; one "
                "that has not started has no file yet, and one of plain "
                "sbatch has none" % (number, folder or self.folder)
            ) from None
