# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command trainyard: jobs from files, on top of Slurm's own commands.

It keeps no state of its own: Slurm knows the jobs, and the folder of a job has its file, its logs and its result. Exit codes: 0 good, 1 the job failed,
2 refused, 3 Slurm does not answer.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import errno
import importlib
import io
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid

import _batch
import _job_file
import _job_limits
import _job_text
import _slurm

CONFIG = os.environ.get("TRAINYARD_JOBS_CONFIG") or "/etc/trainyard/jobs.json"
#: Of role jupyterhub. The kernel tells its service who asks.
LOGIN_SOCKET = "/run/trainyard-hub/login.sock"
GOOD, FAILED, REFUSED, NO_ANSWER = 0, 1, 2, 3
#: Seconds in which one of Slurm's commands has to answer.
TIMEOUT = 60
#: Seconds in which the accounting has to learn of a job that has ended.
ACCOUNTING_SECONDS = 20
#: How far back `list` looks for jobs that have ended, without and with --all.
RECENT, ALL = datetime.timedelta(days=1), datetime.timedelta(days=365)
#: Seconds between two looks at a log.
LOOK = 0.5
#: Seconds after which the command of an interactive job is removed.
KEPT_SECONDS = 30 * 86400
#: On training hosts: what lets ssh into a job.
DOOR = "/usr/local/lib/trainyard/jobs/door"
#: Where the operator's public keys of people are on this host.
PEOPLE = "/etc/trainyard/people"
#: Ports on the person's own computer, for the addresses that `show` prints.
PORTS = {"jupyter": 8888, "tensorboard": 6006}
#: Seconds for which `tensorboard` waits for its job.
READY_SECONDS = 120
#: Characters of a file that is not a log: about a job, or a list of public keys.
MAX_FILE = 1 << 20
#: What runs in the process of a command of Slurm before the command. The helper of the hub sets it.
BEFORE_START = None
GIB = 1024
ACTIVE = (
    "pending",
    "configuring",
    "running",
    "completing",
    "suspended",
    "requeued",
    "requeue_hold",
    "special_exit",
    "stopped",
    "signaling",
    "stage_out",
    "resizing",
    "requeue_fed",
    "preempted",
)
WAITING = ("pending", "configuring", "requeued", "requeue_hold", "special_exit", "requeue_fed")
#: Slurm's words in those of the command.
STATES = {
    "pending": "waiting",
    "configuring": "starting",
    "completing": "ending",
    "completed": "done",
    "cancelled": "stopped",
    "timeout": "out of time",
    "out_of_memory": "out of memory",
    "node_fail": "host failed",
    "boot_fail": "host failed",
    "deadline": "out of time",
    "requeue_hold": "held",
}
EPILOG = """examples:
  trainyard submit job.yml                 submit the job of a file
  trainyard submit - < job.params          the same from standard input
  trainyard list                           your jobs
  trainyard logs -f 12                     follow the log of job 12
  trainyard why 12                         why job 12 waits
"""


class Refused(Exception):
    """What was asked for cannot be done. The message is for the person."""


class NoAnswer(Exception):
    """Slurm does not answer. The message is for the person."""


# --- Slurm ------------------------------------------------------------------------------------------------------------------


def minimal(environment):
    """Return the environment of sbatch: a job must not depend on what its person has set in a shell, nor give it away."""
    kept = {
        name: environment[name]
        for name in ("HOME", "USER", "LOGNAME", "LANG", "TERM", "SLURM_CONF", "SLURM_CONF_SERVER")
        if name in environment
    }
    # A site may have Slurm in a folder of its own.
    folders = [
        os.path.dirname(shutil.which("sbatch", path=environment.get("PATH")) or "/usr/bin/sbatch"),
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
    ]
    return dict(kept, PATH=":".join(dict.fromkeys(folders)), SHELL="/bin/bash")


def ask(command, text=None, environment=None):
    """Return what a command of Slurm prints. Raises NoAnswer, or Refused if Slurm refuses a job."""
    environment = environment or _slurm.command_environment(os.environ)
    try:
        done = subprocess.run(
            command,
            input=None if text is None else text.encode(),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if text is None else None,
            timeout=TIMEOUT,
            check=False,
            preexec_fn=BEFORE_START,
        )
    except FileNotFoundError:
        raise NoAnswer(
            "%s is not installed on this host. %s"
            % (command[0], sentence(_slurm.FIXES["not_installed"]))
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            "'%s' gave no answer within %d s. %s"
            % (command[0], TIMEOUT, sentence(_slurm.FIXES["timeout"]))
        ) from None
    stdout, stderr = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    if done.returncode:
        cause, evidence = _slurm.why_no_answer(done.returncode, stdout, stderr)
        if cause in ("failed", "permission"):
            raise Refused("%s: %s" % (command[0], re.sub(r"^\w+: (?:error: )?", "", evidence)))
        raise NoAnswer(
            "Slurm does not answer ('%s'). %s" % (evidence, sentence(_slurm.FIXES[cause]))
        )
    return stdout


def sentence(text):
    return text[:1].upper() + text[1:]


def parsed(command, parse):
    try:
        return parse(ask(command))
    except _slurm.ParseError as error:
        raise NoAnswer("%s printed something unexpected: %s" % (command[0], error)) from error


def active_jobs(*options):
    mark = "|%s|" % uuid.uuid4().hex
    return parsed(
        _slurm.jobs_command(mark) + ["--me"] + list(options),
        lambda text: _slurm.parse_jobs(text, mark),
    )


def ended_jobs(since, number=None):
    """Return the jobs of the person in the accounting, also those that still run."""
    mark = "|%s|" % uuid.uuid4().hex
    start = (datetime.datetime.now(datetime.timezone.utc) - since).strftime("%Y-%m-%dT%H:%M:%S")
    command = [word for word in _slurm.finished_command(mark, start) if word != "--allusers"] + (
        ["--jobs=" + number] if number else []
    )
    return parsed(command, lambda text: _slurm.parse_finished(text, mark))


def nodes_now():
    return parsed(_slurm.NODES, _slurm.parse_nodes)


def accounts_now(person):
    return _job_limits.accounts_of(parsed(_slurm.ASSOCIATIONS, _slurm.parse_associations), person)


def usage_now(person):
    return parsed(_slurm.usage_command(person), _slurm.parse_usage)


# --- the site, the person, and folders of jobs ------------------------------------------------------------------------------


def open_file(path):
    """Open a regular file to read its bytes. In a folder of a person, anything may be in its place: a pipe without a writer would block for ever."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return open(number, "rb")


def read_text(path):
    """Return the text of a regular file that is not large."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace") as stream:
        text = stream.read(MAX_FILE + 1)
    if len(text) > MAX_FILE:
        raise OSError(errno.EFBIG, "it has more than %d characters" % MAX_FILE, path)
    return text


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
        """Return why jobs cannot write their logs, or an empty text. It is tried: a quota does not show in the free space, and NFS tells it when it syncs."""
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
        """Return the images of the site's registry with what is in them, which role image_relay writes."""
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

    def saved(self):
        """Return the names of the images that the person has in the site's registry, the newest first, and why that is not known, or an empty text."""
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
        """Return where a job starts and writes. Without workdir it starts in the current folder, if the hosts of the job have it, too."""
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
        }

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

    def read_json(self, number, name):
        """Return a file of the job's folder, a dict, or None."""
        try:
            found = json.loads(read_text(os.path.join(self.folder_of(number) or "", name)))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def result_of(self, number):
        return self.read_json(number, "result.json")

    def job_of(self, number):
        """Return the judged job that a running job has, or None."""
        try:
            text = read_text(os.path.join(self.folder_of(number) or "", "job.json"))
            return _job_text.opened(text)[0]
        except (OSError, _job_text.SealError):
            return None

    def write_keys(self):
        """Keep the person's public keys where ssh into their jobs finds them. Returns the folder with them."""
        self.check_folder()
        folder, keys = os.path.join(self.folder, ".ssh"), []
        own = [
            os.path.join(self.home, ".ssh", name)
            for name in ("authorized_keys", "authorized_keys2")
        ]
        for path in [os.path.join(PEOPLE, self.person + ".keys")] + own:
            with contextlib.suppress(OSError):
                keys.append(read_text(path).rstrip("\n") + "\n")
        if not any(
            line.strip() and not line.startswith("#") for text in keys for line in text.splitlines()
        ):
            raise Refused(
                "you have no public key on this host; put one into %s/.ssh/authorized_keys"
                % self.home
            )
        os.makedirs(folder, 0o700, exist_ok=True)
        write_private(os.path.join(folder, "authorized_keys"), "".join(keys))
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
        """Write the command of an interactive job into a file, because everybody on a host can read the arguments of a process. Return its path."""
        folder = os.path.join(self.folder, ".interactive")
        os.makedirs(folder, 0o700, exist_ok=True)
        for entry in os.scandir(folder):
            # Of sessions that have ended long ago.
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > KEPT_SECONDS:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        path = os.path.join(folder, uuid.uuid4().hex + ".sh")
        write_private(path, text + "\n")
        return path

    def values_of(self, number):
        folder = self.folder_of(number)
        try:
            return read_text(os.path.join(folder or "", "spec.yml"))
        except OSError:
            raise Refused(
                "job %s has no job file in %s. `trainyard list --all` shows your jobs; one that has not started has no file yet, and one of plain "
                "sbatch has none" % (number, folder or self.folder)
            ) from None


def write_private(path, text):
    """Write a file that only the person reads, in one step, if its content differs."""
    with contextlib.suppress(OSError):
        if read_text(path) == text:
            return
    new = "%s.%d" % (path, os.getpid())
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600),
        "w",
        encoding="utf-8",
    ) as stream:
        stream.write(text)
    os.rename(new, path)


def number_of(text):
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise Refused("'%.40s' is not the number of a job; `trainyard list` shows yours" % text)
    return text


def find(number):
    """Return a job as a dict with the keys of list. Refused if it is not one of the person."""
    for dummy in range(ACCOUNTING_SECONDS):
        for job in active_jobs():
            if str(job["id"]) == number:
                return of_active(job)
        for job in reversed(ended_jobs(ALL, number)):
            if str(job["raw_id"]) == number:
                return of_ended(job)
        # The controller knows of a job that has just ended before the accounting does.
        if number not in [str(job["id"]) for job in active_jobs("--states=all")]:
            break
        time.sleep(1)
    raise Refused("you have no job %s; `trainyard list --all` shows yours" % number)


def of_active(job):
    return {
        "id": str(job["id"]),
        "name": job["name"],
        "state": job["state"],
        "account": job["account"],
        "priority": job["qos"],
        "workers": job["node_count"],
        "gpus": job["gpus"],
        "hosts": job["nodes"],
        "reason": job["reason"],
        "submitted": job["submit_time"],
        "started": job["start_time"],
        "ended": None if job["state"] in ACTIVE else job["end_time"],
        "start_estimate": job["start_estimate"],
        "exit_code": None,
        "limit_minutes": job["limit_minutes"],
        "restarts": job["restarts"],
    }


def of_ended(job):
    # A task of an array has a number of its own, by which squeue and scancel know it. sacct also calls it 12_1.
    return {
        "id": str(job["raw_id"]),
        "name": job["name"],
        "state": job["state"],
        "account": job["account"],
        # So the database calls one that it has not learnt yet.
        "priority": "" if job["qos"] == "Unknown" else job["qos"],
        "workers": len(job["nodes"]),
        "gpus": job["gpus"],
        "hosts": job["nodes"],
        "reason": job["reason"],
        "submitted": job["submit_time"],
        "started": job["start_time"],
        "ended": job["end_time"],
        "start_estimate": None,
        "exit_code": job["exit_code"] or (128 + job["signal"] if job["signal"] else 0),
        "limit_minutes": None,
        "restarts": 0,
    }


def word(state):
    return STATES.get(state, state.replace("_", " "))


# --- output -----------------------------------------------------------------------------------------------------------------


def printable(text):
    """Return text without characters that a terminal would obey."""
    text = str(text)
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "?" for character in text)
    )


def table(heads, rows):
    """Print rows below their heads, each column as wide as it needs to be."""
    cells = [list(heads)] + [[printable(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    print("\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells))


def local(stamp, today=None):
    """Return a time of Slurm in the zone of this host: the clock alone if it is today."""
    if not stamp:
        return "-"
    moment = moment_of(stamp).astimezone()
    today = today or datetime.datetime.now().date()
    return moment.strftime("%H:%M" if moment.date() == today else "%Y-%m-%d %H:%M")


def moment_of(stamp):
    # Much faster than strptime, which counts for thousands of jobs. Python 3.8 does not read the Z.
    return datetime.datetime.fromisoformat(stamp.rstrip("Z") + "+00:00")


def duration(seconds):
    seconds = int(max(0, seconds))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return "%d:%02d:%02d" % (hours, minutes, seconds % 60)


def lasted(job):
    if not job["started"]:
        return "-"
    end = moment_of(job["ended"]) if job["ended"] else datetime.datetime.now(datetime.timezone.utc)
    return duration((end - moment_of(job["started"])).total_seconds())


def out(options, value, show):
    """Print a value as JSON, or as a person reads it."""
    if options.json:
        print(json.dumps(value, indent=2, sort_keys=True))
    else:
        show(value)
    return GOOD


# --- subcommands ------------------------------------------------------------------------------------------------------------


def read_file(path):
    try:
        if path == "-":
            return read_input()
        with open(path, encoding="utf-8-sig") as stream:
            return stream.read(_job_text.MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise Refused(
            "%s: the file is no text in UTF-8" % ("standard input" if path == "-" else path)
        ) from None
    except OSError as error:
        raise Refused("%s: %s" % (path, error.strerror)) from error


def read_input():
    # Not by the locale of the person, which may take any byte for a character. The hub's program gives a text.
    if not hasattr(sys.stdin, "buffer"):
        return sys.stdin.read(_job_text.MAX_BYTES + 1)
    stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    try:
        return stream.read(_job_text.MAX_BYTES + 1)
    finally:
        stream.detach()


def submit(options):
    site = Site()
    return submit_text(options, site, read_file(options.file), options.file)


def submit_text(options, site, text, origin):
    """Submit a job file, and print its number."""
    try:
        values = _job_text.read_job_text(text, _job_file.KEYS)
    except _job_text.TextError as error:
        raise Refused("%s: %s" % (origin, error)) from error
    return submit_values(options, site, values, origin)


def submit_values(options, site, values, origin, then=None):
    """Submit the job that the values of a job file describe, and print its number. C(then) is called with the number instead."""
    if not options.dry_run:
        site.check_folder()
    try:
        values = _job_file.changed(values, options.set)
        job = _job_file.judge(
            values, site.config.get("priorities") or [], site.config.get("default_image") or ""
        )
    except _job_file.JobFileError as error:
        raise Refused(
            "\n".join("%s: %s" % (origin, problem) for problem in error.problems)
        ) from error
    place = site.place(job)
    problems = site_problems(site, job)
    if problems:
        raise Refused(
            "\n".join("%s: %s" % (origin, with_line(values, problem)) for problem in problems)
        )
    for warning in warnings_of(job):
        print("trainyard: " + warning, file=sys.stderr)
    if job["interactive"]:
        return start_interactive(options, site, job, place)
    # With what was chosen for the person.
    kept = dict(values, worker_image=job["worker_image"], **chosen_folder(job, place))
    script = _batch.script(job, _job_file.to_yaml(kept), place)
    if options.dry_run:
        return out(options, {"script": script}, lambda value: sys.stdout.write(value["script"]))
    try:
        number = (
            ask(["sbatch", "--parsable"], script, minimal(os.environ)).strip().partition(";")[0]
        )
    except Refused as error:
        problems = qos_problems(site, job, str(error)) or full_problems(site, job, str(error))
        if not problems:
            raise
        raise Refused(
            "\n".join("%s: %s" % (origin, with_line(values, problem)) for problem in problems)
        ) from error
    if then:
        return then(site, number)
    if options.json:
        print(
            json.dumps(
                {"id": number, "name": job["name"], "log": site.log_of(number)},
                indent=2,
                sort_keys=True,
            )
        )
    else:
        print("job %s submitted. Follow it with: trainyard logs -f %s" % (number, number))
    return GOOD


def with_line(values, problem):
    """Return a problem, which begins with its key, with the line of the key in the file."""
    key = problem.partition(":")[0]
    line = next((getattr(each, "line", 0) for each in values if each == key), 0)
    return "line %d: %s" % (line, problem) if line else problem


def chosen_folder(job, place):
    """Return the folder in which the job starts as a value of its file, if the file has none, so that a clone starts there, too."""
    return (
        {"workdir": place["workdir"]}
        if not job["workdir"] and _job_file.is_folder(place["workdir"])
        else {}
    )


def site_problems(site, job):
    """Return why the cluster can never run the job."""
    # Side by side: each of them waits for the controller. The database, which knows the QOS of accounts, too, takes ten times as long.
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        partitions = pool.submit(parsed, _slurm.PARTITIONS, _slurm.parse_partitions)
        usage, hosts = pool.submit(usage_now, site.person), pool.submit(nodes_now)
    approved = []
    # A damaged catalogue does not keep jobs from running.
    with contextlib.suppress(Refused):
        approved = site.approved()
    return (
        _job_limits.account_problems(
            job, _job_limits.accounts_of(usage.result(), site.person), site.person
        )
        + _job_limits.host_problems(job, hosts.result(), partitions.result())
        + _job_limits.image_problems(job, site.catalogue(), site.config.get("registries") or [])
        + folder_problems(job, site)
        + _job_limits.platform_problems(job, approved, hosts.result(), partitions.result())
        + (
            ["copy_results: this cluster has no rclone (jobs_rclone); remove the key"]
            if job["copy_results"] and not site.config.get("rclone")
            else []
        )
    )


def qos_problems(site, job, said):
    """Return in words why sbatch has refused a QOS. Only the database knows which ones an account has, so it is asked afterwards."""
    if not job["priority"] or "qos" not in said.lower():
        return []
    return _job_limits.account_problems(job, accounts_now(site.person), site.person)


def full_problems(site: Site, job: dict, said: str) -> list:
    """Return in words that the person has too many jobs, if sbatch has refused one for its policy.

    A job without an account was not judged before.
    """
    if "policy" not in said.lower() and "Assoc" not in said:
        return []
    problems = []
    for entry in _job_limits.accounts_of(usage_now(site.person), site.person):
        if job["workspace_id"] in ("", entry["account"]):
            problems += _job_limits.full_problems(entry)
    return problems


def folder_problems(job, site):
    found = []
    folder = job["services"]["tensorboard"]
    path = site.in_home(folder)
    # The job may be the one that makes it.
    if (
        folder
        and os.path.lexists(path)
        and not (os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK))
    ):
        found.append("services: tensorboard: '%s' is not a folder that you can read" % folder)
    folder = job["workdir"]
    path = site.in_home(folder)
    if folder and not site.is_shared(path):
        found.append(
            "workdir: '%s' is not in a container of a job; use a folder below %s or %s"
            % (folder, site.home, site.config["share"])
        )
    elif folder and not (os.path.isdir(path) and os.access(path, os.X_OK)):
        found.append(
            "workdir: '%s' is not a folder that you can enter; create it, or use another one"
            % folder
        )
    return found


def warnings_of(job):
    found = []
    if re.search(r"\bsleep\s+(?:infinity|inf)\b", job["command"]):
        end = (
            "after %d minutes" % job["max_minutes"]
            if job["max_minutes"]
            else "at the time limit of the queue"
        )
        found.append(
            "the command sleeps for ever, so the job keeps its CPUs and GPUs until you stop it, or until it ends %s"
            % end
        )
    return found


def start_interactive(options, site, job, place):
    if options.dry_run:
        return out(
            options,
            {"script": shlex.join(_batch.interactive_command(job, place))},
            lambda value: print(value["script"]),
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(
            "interactive: the job needs your terminal, and there is none here; with ssh, use ssh -t"
        )
    sys.stdout.flush()
    command = _batch.interactive_command(job, place, site.keep_command(job["command"]))
    os.chdir(place["workdir"])
    os.execvpe(command[0], command, minimal(os.environ))
    return NO_ANSWER


def list_jobs(options):
    # The controller first, so that a job which ends in between is in one of the answers. sacct does not list a job of the last second or two.
    known = [of_active(job) for job in active_jobs("--states=all")]
    jobs = {job["id"]: job for job in map(of_ended, ended_jobs(ALL if options.all else RECENT))}
    jobs.update(
        {
            job["id"]: job
            for job in known
            if job["state"] in ACTIVE or job["id"] not in jobs or jobs[job["id"]]["state"] in ACTIVE
        }
    )
    ordered, today = (
        sorted(jobs.values(), key=lambda job: (job["submitted"] or "", job["id"])),
        datetime.datetime.now().date(),
    )

    def show(found):
        if not found:
            print(
                "no jobs%s"
                % (
                    ""
                    if options.all
                    else " in the last day; `trainyard list --all` shows older ones"
                )
            )
            return
        table(
            ("JOB", "NAME", "STATE", "ACCOUNT", "WORKERS", "GPUS", "SUBMITTED", "RUNS", "HOSTS"),
            [
                (
                    job["id"],
                    job["name"],
                    word(job["state"]),
                    job["account"],
                    job["workers"],
                    job["gpus"],
                    local(job["submitted"], today),
                    lasted(job),
                    ",".join(job["hosts"]) or job["reason"] or "-",
                )
                for job in found
            ],
        )

    return out(options, ordered, show)


def reason_words(job):
    """Return why a job waits, and when it may start."""
    words = _job_limits.why(job, usage_now(pwd.getpwuid(os.getuid()).pw_name), nodes_now())
    return words + (
        "; estimated start %s" % local(job["start_estimate"]) if job["start_estimate"] else ""
    )


def state_words(site, job, result):
    """Return why a job waits, or why one that has ended left no result, as far as that is known."""
    if job["state"] in WAITING:
        return reason_words(job)
    if job["state"] in ACTIVE or not job["started"] or result:
        return ""
    problem = site.write_problem()
    return "it has left no result: " + problem if problem else ""


def show(options):
    site, number = Site(), number_of(options.id)
    job = find(number)
    result = site.result_of(number) if job["state"] not in WAITING else None
    running = job["state"] == "running"
    told = dict(
        job,
        folder=site.folder_of(number),
        log=site.log_of(number),
        result=result,
        why=state_words(site, job, result),
        efficiency=efficiency(number, of_gpus(site, number, job, result))
        if job["started"]
        else None,
        endpoints=endpoints(site, number) if running else [],
        usage=usage(site, number, job["hosts"]) if running else [],
    )

    def lines(found):
        print(
            "job %s  %s  %s%s"
            % (
                number,
                printable(found["name"]),
                word(found["state"]),
                ": " + found["why"] if found["why"] else "",
            )
        )
        pairs = [
            ("account", found["account"]),
            ("priority", found["priority"]),
            ("workers", found["workers"]),
            ("GPUs", found["gpus"]),
            ("hosts", ", ".join(found["hosts"]) or "-"),
            ("submitted", local(found["submitted"])),
            ("started", local(found["started"])),
            ("runs", lasted(found)),
            ("log", found["log"]),
            ("folder", found["folder"] or "-"),
        ]
        if found["exit_code"] is not None:
            pairs.append(("exit code", found["exit_code"]))
        for key, value in (found["efficiency"] or {}).items():
            pairs.append((key, value))
        for name, value in pairs:
            print("%-12s%s" % (name, printable(value)))
        show_usage(found["usage"])
        for endpoint in found["endpoints"]:
            print("%-12s%s" % (endpoint["service"], printable(endpoint_words(endpoint))))
        if result:
            for line in (
                result["problems"]
                + ["warning: " + warning for warning in result["warnings"]]
                + copied_words(result)
            ):
                print(printable(line))
            failed = result.get("first_failed") or {}
            for line in failed.get("lines") or []:
                print("  | " + printable(line))
            for cause in failed.get("causes") or []:
                print("cause: %s. %s" % (cause["cause"], sentence(cause["fix"])))

    return out(options, told, lines)


def copied_words(result):
    """Return what became of the copy to the person's own storage."""
    copied = result.get("copied")
    if not copied:
        return []
    return (
        ["results copied to " + copied["to"]]
        if copied["ok"]
        else ["warning: the results were not copied to %s: %s" % (copied["to"], copied["said"])]
    )


def of_gpus(site, number, job, result):
    """Return how much of its GPUs a job that has ended has used, in words. Empty if nothing has measured it."""
    hosts = ((result or {}).get("gpus") or {}).values()
    requested = sum(host.get("requested") or 0 for host in hosts)
    if not requested or any(host.get("busy") is None for host in hosts):
        return ""
    hour = [
        gpu["hour_percent"]
        for gpu in usage(site, number, job["hosts"])
        if gpu["hour_percent"] is not None
    ]
    average = ", %d %% on average in the last hour" % (sum(hour) / len(hour)) if hour else ""
    return "%d of %d were busy%s" % (sum(host["busy"] for host in hosts), requested, average)


def ssh_words(site, number):
    """Return the words of ssh on the person's own computer, and the name of the job for it."""
    login = site.config.get("login") or "LOGIN"
    return [
        "ssh",
        "-o",
        "ProxyCommand=ssh %s@%s trainyard attach --stdio %s" % (site.person, login, number),
        "-o",
        "HostKeyAlias=jobs-of-" + site.person,
    ], "%s@job-%s" % (site.person, number)


def endpoints(site, number):
    """Return the services of a running job: how they are, and how the person's own computer reaches them."""
    services = (site.job_of(number) or {}).get("services") or {}
    words, name = ssh_words(site, number)
    found = (
        [
            {
                "service": "ssh",
                "state": "ready",
                "why": "",
                "command": shlex.join(words + [name]),
                "url": None,
            }
        ]
        if services.get("ssh")
        else []
    )
    for service, told in sorted((site.read_json(number, "services.json") or {}).items()):
        port, ready = PORTS[service], told["state"] == "ready"
        command = (
            shlex.join(words + ["-N", "-L", "%d:%s" % (port, told["socket"]), name])
            if ready
            else None
        )
        url = (
            "http://localhost:%d/%s" % (port, "?token=" + told["token"] if told["token"] else "")
            if ready
            else None
        )
        found.append(
            {
                "service": service,
                "state": told["state"],
                "why": told.get("why") or "",
                "command": command,
                "url": url,
            }
        )
    return found


def endpoint_words(endpoint):
    if endpoint["state"] != "ready":
        return endpoint["state"] + (": " + endpoint["why"] if endpoint["why"] else "")
    return endpoint["command"] + ("   then open " + endpoint["url"] if endpoint["url"] else "")


def usage(site, number, hosts):
    """Return the use of each GPU of a running job: now, and in the last hour."""
    found = []
    for rank, host in enumerate(hosts):
        told = site.read_json(number, "watch.%d.json" % rank) or {}
        now, minutes = told.get("now") or [], told.get("minutes") or []
        devices = [int(device) for device in told.get("devices") or [] if device.isdigit()]
        # Where Slurm limits the devices of a job, nvidia-smi shows only its own.
        chosen = (
            devices
            if devices and max(devices) < len(now) and len(devices) < len(now)
            else range(len(now))
        )
        for gpu in chosen:
            samples = [minute["gpus"][gpu] for minute in minutes if gpu < len(minute["gpus"])]
            count = sum(sample[1] for sample in samples)
            found.append(
                {
                    "host": host,
                    "worker": rank,
                    "gpu": gpu,
                    "percent": now[gpu][0],
                    "memory_mib": now[gpu][1],
                    "memory_total_mib": now[gpu][2],
                    "hour_percent": round(sum(sample[0] for sample in samples) / count)
                    if count
                    else None,
                    "hour_memory_mib": max(
                        (sample[2] for sample in samples if sample[2] is not None), default=None
                    ),
                }
            )
    return found


def show_usage(found):
    def told(value, unit):
        return "?" if value is None else "%d %s" % (value, unit)

    if found:
        table(
            ("HOST", "GPU", "NOW", "MEMORY", "LAST HOUR", "MEMORY AT MOST"),
            [
                (
                    gpu["host"],
                    gpu["gpu"],
                    told(gpu["percent"], "%"),
                    "%s of %s"
                    % (told(gpu["memory_mib"], "MiB"), told(gpu["memory_total_mib"], "MiB")),
                    told(gpu["hour_percent"], "%"),
                    told(gpu["hour_memory_mib"], "MiB"),
                )
                for gpu in found
            ],
        )


def efficiency(number, gpus):
    """Return how much of its CPUs and memory a job has used, as far as Slurm has measured it, and of its GPUs, in words."""
    kept = {"GPUs used": gpus} if gpus else {}
    try:
        text = ask(
            [
                "sacct",
                "--noheader",
                "--parsable2",
                "--noconvert",
                "--units=M",
                "--jobs=" + number,
                "--format=JobID,ElapsedRaw,AllocCPUS,TotalCPU,MaxRSS,ReqMem",
            ]
        )
    except NoAnswer:
        # The controller has told the rest, without the database.
        return kept
    cpu, seconds, cpus, memory = 0.0, 0, 0, 0.0
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 6:
            continue
        if fields[0] == number:
            seconds, cpus = int(fields[1] or 0), int(fields[2] or 0)
        else:
            cpu += cpu_seconds(fields[3])
            memory = max(memory, float(re.sub(r"[^0-9.]", "", fields[4]) or 0))
    found = {}
    if cpu and seconds and cpus:
        found["CPU used"] = "%.0f %% of %d CPUs" % (100 * cpu / (seconds * cpus), cpus)
    if memory:
        found["memory used"] = "%.1f GB at most, by one worker" % (memory / GIB)
    return dict(found, **kept)


def cpu_seconds(text):
    """Return the seconds of [days-][hours:]minutes:seconds[.fraction]."""
    days, _dash, rest = text.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part or 0)
    return total + int(days or 0) * 86400


def logs(options):
    site, number = Site(), number_of(options.id)
    path = site.log_of(number, options.rank)
    if options.follow and options.json:
        raise Refused("--json: a log that is followed has no end; leave out --follow, or --json")
    if not options.follow:
        if not os.path.exists(path):
            job = find(number)
            raise Refused(
                "job %s has no log yet: it is %s" % (number, word(job["state"]))
                if job["state"] in ACTIVE
                else "%s does not exist%s"
                % (
                    path,
                    ""
                    if options.rank is None
                    else "; the workers of the job are 0 to %d" % (job["workers"] - 1),
                )
            )
        with open_file(path) as stream:
            if options.json:
                return out(
                    options,
                    {
                        "id": number,
                        "rank": options.rank,
                        "log": path,
                        "text": stream.read().decode("utf-8", "replace"),
                    },
                    None,
                )
            copy(stream)
        return GOOD
    return follow(number, path)


def copy(stream):
    size = 0
    for chunk in iter(lambda: stream.read(1 << 16), b""):
        sys.stdout.buffer.write(chunk)
        size += len(chunk)
    sys.stdout.buffer.flush()
    return size


def follow(number, path):
    """Print a log while it grows, until its job has ended. The exit code tells how."""
    stream, looked, ended, told = None, 0.0, False, ""
    try:
        while True:
            if stream is None and os.path.exists(path):
                stream = open_file(path)
            grown = copy(stream) if stream else 0
            if not grown and ended:
                break
            if not grown and time.monotonic() - looked > 2:
                looked = time.monotonic()
                jobs = [job for job in active_jobs() if str(job["id"]) == number]
                # Once more after the end, for what was written meanwhile.
                ended = not jobs
                waiting = of_active(jobs[0]) if jobs and jobs[0]["state"] in WAITING else None
                words = "job %s is waiting: %s" % (number, reason_words(waiting)) if waiting else ""
                if words and words != told:
                    print("trainyard: " + words, file=sys.stderr)
                    told = words
            time.sleep(LOOK)
    finally:
        if stream:
            stream.close()
    job = find(number)
    if job["state"] == "completed":
        return GOOD
    print("trainyard: job %s: %s" % (number, word(job["state"])), file=sys.stderr)
    return FAILED


def stop(options):
    number = number_of(options.id)
    job = find(number)
    if job["state"] not in ACTIVE:
        raise Refused("job %s has already ended (%s)" % (number, word(job["state"])))
    ask(["scancel", number])
    return out(
        options,
        {"id": number, "stopped": True},
        lambda _value: print("job %s is being stopped" % number),
    )


def clone(options):
    site, number = Site(), number_of(options.id)
    return submit_text(options, site, site.values_of(number), "job %s" % number)


def attach(options):
    # As in ssh's ProxyCommand, where %h is the name of the job.
    number = number_of(
        options.id[4:] if options.stdio and options.id.startswith("job-") else options.id
    )
    job = find(number)
    if job["state"] != "running":
        raise Refused(
            "job %s is %s; only a running job can be entered" % (number, word(job["state"]))
        )
    if not 0 <= options.rank < len(job["hosts"]):
        raise Refused(
            "job %s has no worker %d; its workers are 0 to %d"
            % (number, options.rank, len(job["hosts"]) - 1)
        )
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    command = [
        "srun",
        "--jobid=" + number,
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=" + job["hosts"][options.rank],
        "--quiet",
    ]
    if options.stdio:
        # Otherwise slurmstepd keeps what follows the last line end.
        command += ["--unbuffered", DOOR, "serve", Site().write_keys(), str(options.rank)]
        os.execvpe(command[0], command, minimal(os.environ))
    command += ["--pty"] if terminal else ["--unbuffered"]
    command += ["trainyard-run", "--enter=%d" % options.rank] + ["--root"] * options.root
    command += ["--"] + (options.command or ["sh", "-c", "exec $(command -v bash || echo sh)"])
    sys.stdout.flush()
    os.execvpe(command[0], command, minimal(os.environ))
    return NO_ANSWER


def tensorboard(options):
    """A job whose only service is TensorBoard."""
    site = Site()
    folder = os.path.abspath(os.path.expanduser(options.folder))
    if not os.path.isdir(folder):
        raise Refused("%s is not a folder" % options.folder)
    if not site.is_shared(folder):
        raise Refused(
            "%s is on this host only; use a folder below %s or %s, which the hosts of the job have, too"
            % (folder, site.home, site.config["share"])
        )
    values = {
        "name": "tensorboard",
        "worker_memory": "2",
        "max_minutes": "240",
        "services": [{"tensorboard": folder}],
        "command": "exec python3 /usr/local/lib/trainyard/services wait",
    }
    return submit_values(
        options,
        site,
        values,
        "tensorboard",
        lambda site, number: tell_address(options, site, number),
    )


def tell_address(options, site, number):
    """Wait until the service of a new job answers, and say how to open it."""
    deadline, job, found = time.monotonic() + READY_SECONDS, None, []
    while time.monotonic() < deadline:
        job = find(number)
        found = endpoints(site, number) if job["state"] == "running" else []
        if job["state"] not in ACTIVE or any(endpoint["state"] != "starting" for endpoint in found):
            break
        time.sleep(1)
    told = {"id": number, "state": job["state"], "endpoints": found}

    def lines(_told):
        print("job %s %s" % (number, word(job["state"])))
        for endpoint in found:
            print("%-12s%s" % (endpoint["service"], printable(endpoint_words(endpoint))))
        if job["state"] in WAITING:
            print(
                "it waits: %s. `trainyard show %s` has the address when it runs"
                % (reason_words(job), number)
            )

    out(options, told, lines)
    return (
        FAILED
        if job["state"] not in ACTIVE or any(endpoint["state"] == "failed" for endpoint in found)
        else GOOD
    )


def why(options):
    job = find(number_of(options.id))
    if job["state"] in WAITING:
        words = "queued: " + reason_words(job)
    elif job["state"] in ACTIVE:
        words = "it does not wait: it is %s" % word(job["state"])
    else:
        words = "it has ended: %s%s" % (
            word(job["state"]),
            ", exit code %d" % job["exit_code"] if job["exit_code"] else "",
        )
    return out(
        options,
        {"id": job["id"], "state": job["state"], "why": words},
        lambda value: print("job %s: %s" % (value["id"], value["why"])),
    )


def quota(options):
    site = Site()
    accounts, usage = accounts_now(site.person), usage_now(site.person)
    times = _job_limits.times_of(parsed(_slurm.PARTITIONS, _slurm.parse_partitions))
    images = registry_use(site)
    for entry in accounts:
        # Only the controller knows it.
        del entry["submitted"]
        entry.update(times, **images)
        for used in usage:
            if used["account"] == entry["account"] and used["user"] in ("", site.person):
                entry.update(_job_limits.used_of(used))

    def lines(found):
        if not found:
            print(
                "you have no account on this cluster; ask the operator to add you to a group in slurm_accounts"
            )
            return
        table(
            ("ACCOUNT", "GPUS USED", "GPUS", "YOURS USED", "YOURS", "MINUTES", "PRIORITIES"),
            [
                (
                    entry["account"],
                    entry.get("gpus_used", 0),
                    amount(entry["gpus"]),
                    entry.get("person_gpus_used", 0),
                    amount(entry["person_gpus"]),
                    amount(entry["max_minutes"]),
                    ",".join(entry["qos"]),
                )
                for entry in found
            ],
        )
        print()
        rows = [line for entry in found for line in limit_lines(entry)]
        table(("LIMIT", "ACCOUNT", "USED", "AT MOST"), rows + image_lines(found[0]))

    return out(options, accounts, lines)


def limit_lines(entry: dict) -> list:
    """Return the limits of an account beside GPUs, for the table of quota."""
    longest = entry["partition_minutes"]
    usual = entry["default_minutes"]
    if entry["max_minutes"] is not None:
        # Slurm gives the limit of the account to a job that names no time.
        longest = usual = min(entry["max_minutes"], longest or entry["max_minutes"])
    lines = (
        ("CPUs", entry.get("cpus_used", 0), amount(entry["cpus"])),
        ("memory (GB)", gigabytes(entry.get("memory_used_mib", 0)), gigabytes(entry["memory_mib"])),
        ("your running jobs", entry.get("jobs_used", 0), amount(entry["max_jobs"])),
        (
            "your waiting and running jobs",
            entry.get("submitted_used", 0),
            amount(entry["max_submitted"]),
        ),
        ("minutes of a job", "-", amount(longest)),
        ("minutes of a job without max_minutes", "-", amount(usual)),
    )
    return [(name, entry["account"], used, limit) for name, used, limit in lines]


def image_lines(entry: dict) -> list:
    """Return the line of the registry for the table of quota, none without a registry."""
    used, limit = entry["registry_used_mib"], entry["registry_mib"]
    if used is None:
        return []
    return [("your images in the registry (GB)", "-", gigabytes(used), gigabytes(limit))]


def registry_use(site: Site) -> dict:
    """Return how much of the registry the images of the person use, in MiB.

    None if that is not known, or if there is no registry of the cluster.
    """
    registry = importlib.import_module("_registry")
    nothing = {"registry_mib": None, "registry_used_mib": None}
    if not os.path.isdir(registry.LOGINS):
        return nothing
    try:
        return dict(nothing, **registry.space(site.person))
    except registry.RegistryError as error:
        words = printable(str(error))
        print("trainyard: the space of your images is not known: %s" % words, file=sys.stderr)
        return nothing


def gigabytes(mebibytes: int | None) -> str:
    return amount(None if mebibytes is None else "%.4g" % (mebibytes / GIB))


def amount(value):
    return "no limit" if value is None else value


def nodes(options):
    found = [
        dict(
            name=node["name"],
            states=node["states"],
            available=node["available_for_jobs"],
            reason=node["reason"],
            classes=node["features"],
            cpus=node["cpus"],
            memory_mib=node["memory_mib"],
            gpus=_job_limits.gpus_of(node),
            free=_job_limits.free(node),
        )
        for node in nodes_now()
    ]

    def lines(entries):
        table(
            ("HOST", "STATE", "FREE CPUS", "FREE GB", "FREE GPUS", "CLASSES"),
            [
                (
                    entry["name"],
                    "in service" if entry["available"] else "out of service",
                    "%d of %d" % (entry["free"]["cpus"], entry["cpus"]),
                    "%.0f of %.0f" % (entry["free"]["memory_mib"] / GIB, entry["memory_mib"] / GIB),
                    "%d of %d" % (entry["free"]["gpus"], entry["gpus"]),
                    ",".join(entry["classes"]) or "-",
                )
                for entry in entries
            ],
        )
        best = max(entries, key=lambda entry: entry["free"]["gpus"], default=None)
        if best and best["free"]["gpus"]:
            print("a worker can have %d GPUs now, on %s" % (best["free"]["gpus"], best["name"]))

    return out(options, found, lines)


def images(options):
    """List the images of the hosts, the approved ones of the site's registry with what is in them (role image_relay), and those that the person has saved."""
    site = Site()
    (saved, problem), names, approved = site.saved(), site.catalogue(), Site.approved()
    found = [{"name": name} for name in names] + [
        entry for entry in approved if entry["name"] not in names
    ]
    found += [{"name": name, "saved": True} for name in saved]
    if problem:
        print("trainyard: " + printable(problem), file=sys.stderr)

    def lines(entries):
        for entry in entries:
            known = ["%s %s" % pair for pair in sorted((entry.get("frameworks") or {}).items())] + (
                entry.get("platforms") or []
            )
            print(
                "  ".join(
                    [printable(entry["name"])]
                    + ["saved by you"] * entry.get("saved", False)
                    + known
                )
            )

    return out(
        options,
        found,
        lines if found else lambda _none: print("this cluster has no catalogue of images"),
    )


def login(options):
    """Print a link for the browser. It is not an argument of a program, and no log has it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(LOGIN_SOCKET)
            answer = json.loads(b"".join(iter(lambda: connection.recv(4096), b"")).decode())
    except FileNotFoundError:
        raise Refused(
            "this host has no hub for the browser; use the first login host, or ask the operator for jupyterhub_enabled"
        ) from None
    except (OSError, ValueError) as error:
        raise NoAnswer(
            "the hub gives no link (%s); tell the operator to look at service trainyard-hub-links"
            % error
        ) from error
    if "error" in answer:
        raise Refused(answer["error"])
    return out(
        options,
        answer,
        lambda found: print(
            "%s\nOpen it within %d seconds. It is valid once, for you alone."
            % (found["url"], found["seconds"])
        ),
    )


# --- the command line -------------------------------------------------------------------------------------------------------

FILE = [
    ("file", {"metavar": "FILE", "help": "job file, key=value lines or YAML; - is standard input"})
]
ID = [("id", {"metavar": "ID", "help": "number of a job"})]
CHANGES = [
    (
        "--set",
        {
            "metavar": "KEY=VALUE",
            "action": "append",
            "default": [],
            "help": "change a value of the file, can be repeated",
        },
    ),
    (
        "--dry-run",
        {"action": "store_true", "help": "print the script for sbatch, and submit nothing"},
    ),
]
RANK = [
    (
        "--rank",
        {"metavar": "N", "type": int, "default": None, "help": "worker N instead of the whole job"},
    )
]


def key_lines():
    """Return the keys of a job file for the help of `submit`."""
    lines = ["", "", "keys of a job file:"]
    for key in _job_file.TABLE:
        default = ""
        if key.default is None:
            default = " Required."
        elif key.default:
            default = " Default: %s." % key.default
        text = "%s. %s.%s" % (key.doc.replace("`", ""), sentence(key.accepts.allowed), default)
        lines.append(
            textwrap.fill(
                text, 100, initial_indent="  %-22s" % key.name, subsequent_indent=" " * 24
            )
        )
    return "\n".join(lines)


#: Name: function, what it does, an example, its arguments.
SUBCOMMANDS = {
    "submit": (
        submit,
        "submit the job of a file",
        "trainyard submit job.yml --set worker_gpu=2",
        FILE + CHANGES,
    ),
    "list": (
        list_jobs,
        "list your jobs of the last day",
        "trainyard list --all",
        [("--all", {"action": "store_true", "help": "jobs of the last year"})],
    ),
    "show": (show, "show a job: state, hosts, times, result", "trainyard show 12", ID),
    "logs": (
        logs,
        "print the log of a job",
        "trainyard logs -f 12 --rank 1",
        ID
        + [
            (
                "--follow",
                "-f",
                {
                    "action": "store_true",
                    "help": "go on until the job has ended; the exit code is 1 if it failed",
                },
            )
        ]
        + RANK,
    ),
    "stop": (stop, "stop a job", "trainyard stop 12", ID),
    "clone": (
        clone,
        "submit a job once more",
        "trainyard clone 12 --set max_minutes=60",
        ID + CHANGES,
    ),
    "attach": (
        attach,
        "enter the container of a running job",
        "trainyard attach 12 --rank 1 -- nvidia-smi",
        ID
        + [
            (
                "--rank",
                {"metavar": "N", "type": int, "default": 0, "help": "worker N (default: 0)"},
            ),
            (
                "--root",
                {
                    "action": "store_true",
                    "help": "as root of the container, which only instances of the hub have; for apt-get",
                },
            ),
            (
                "--stdio",
                {
                    "action": "store_true",
                    "help": "speak the protocol of ssh, for ProxyCommand; `trainyard show` has the whole command",
                },
            ),
        ],
    ),
    "tensorboard": (
        tensorboard,
        "start TensorBoard on a folder, as a job",
        "trainyard tensorboard ~/logs",
        [
            (
                "folder",
                {"metavar": "DIR", "help": "folder with the logs of TensorBoard, on the share"},
            )
        ]
        + CHANGES,
    ),
    "why": (why, "say why a job waits", "trainyard why 12", ID),
    "quota": (quota, "list your accounts, their limits, and what they use", "trainyard quota", []),
    "nodes": (nodes, "list the hosts, and what is free on them now", "trainyard nodes", []),
    "images": (images, "list the images of this cluster", "trainyard images", []),
    "login": (login, "print a login link for the browser", "trainyard login", []),
}


def parser():
    whole = argparse.ArgumentParser(
        prog="trainyard",
        usage="trainyard SUBCOMMAND [ARGUMENT...]",
        description="Jobs from files, on top of Slurm.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # A name that is at least as long as the longest subcommand and its indent, which argparse forgets when it computes the columns.
    subparsers = whole.add_subparsers(
        dest="subcommand", metavar="SUBCOMMAND [ARGUMENT...]", prog="trainyard", required=True
    )
    for name, (function, text, example, arguments) in SUBCOMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog="example:\n  " + example + (key_lines() if name == "submit" else ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for argument in arguments:
            sub.add_argument(*argument[:-1], **argument[-1])
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(function=function)
    return whole


def main(argv):
    command = []
    if argv[:1] == ["attach"] and "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
    options = parser().parse_args(argv)
    options.command = command
    try:
        return options.function(options)
    except Refused as error:
        code, text = REFUSED, str(error)
    except NoAnswer as error:
        code, text = NO_ANSWER, str(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # As of `trainyard list | head`. Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return GOOD
    except OSError as error:
        code, text = (
            REFUSED,
            "%s: %s" % (error.filename or "the operating system", error.strerror or error),
        )
    if options.json:
        print(json.dumps({"error": text, "exit_code": code}, indent=2, sort_keys=True))
    else:
        for line in text.split("\n"):
            print("trainyard: " + printable(line), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
