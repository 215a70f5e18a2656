# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a job on the hosts that Slurm has given it. `trainyard submit` writes the script that calls
it.

    job run     the batch script: makes the folder of the job, starts the workers by srun, and writes result.json; its input is the judged job
    job task    one worker: its container, its log, and what its GPUs and its network did meanwhile

It has no privilege, and judges nothing again: what a person may use is enforced by Slurm. The exit
code of `run` is the one of the first worker that failed.
"""

import contextlib
import json
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

SHARED = "/usr/local/lib/trainyard/shared"
sys.path.insert(0, SHARED)
import _gpu_numbers
import _job_hang
import _job_result
import _job_text
import _job_watch
from _files import read, read_json, write_private
from _job_result import STOPPED
from _messages import Refused, printable, say

CONFIG = "/etc/trainyard/jobs.json"
#: Of role job_container: variables that each container gets.
OF_CONTAINERS = "/etc/trainyard/job/environment"
#: Of role job_container, too: which GPU of Slurm is which device.
OF_DEVICES = "/etc/trainyard/job/config.json"
#: Kinds whose command runs on worker 0 only. It starts the ranks on the others.
OF_FIRST_WORKER = ("HorovodJob", "MPIJob")
#: What a rank reports that a worker's command has started.
STARTED = re.compile(r"rank\.(?P<worker>\d+)\.report\.(?P<rank>\d+)")
HERE = os.path.dirname(os.path.abspath(__file__))
TRAINYARD_RUN = "/usr/local/bin/trainyard-run"
#: Path of services.py in containers.
SERVICES = "/usr/local/lib/trainyard/services"
#: Exit codes, as of trainyard-run, and of a wrong call.
NOT_STARTED, USAGE = 125, 2
#: Tasks of a job, at most.
MOST_TASKS = 65536
#: What srun says of tasks that ended badly: srun: error: gpu-b: tasks 1-2,5: Exited with exit code
#: 1
OF_TASKS = re.compile(
    rb"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]{1,4000}): (?P<words>[^\n]{1,200})"
)
#: A network file system may show a file of another host after a short delay.
FILE_SECONDS = 5
WATCH_SECONDS = 3
#: Between two looks at the progress of a job.
LOOK_SECONDS = 15
#: How long the use of GPUs is kept.
MINUTES = 60
#: Time limit of rclone, in seconds. Only good jobs are copied: after a stop Slurm leaves no time
#: for it.
COPY_SECONDS = 6 * 3600
#: Begin of Slurm's comment of a job that failed, which Slurm's mails have
#: (roles/slurm_controller/files/mail.py), its length at most, and seconds for it.
FAILED, MOST_COMMENT, COMMENT_SECONDS = "trainyard: failed: ", 2000, 20
#: What becomes of a job without a judged job that this release can read.
AGAIN = "job %s cannot run: %s. Submit it again with: trainyard clone %s"


# --- pure functions ---


def environment_file(job, folder):
    """Return what the shell of a worker reads before the command: the variables of the job file,
    and those of its kind.
    """
    lines = [
        "export %s=%s" % (name, shlex.quote(value))
        for name, value in sorted(job["environment"].items())
    ]
    lines.append("export TRAINYARD_JOB_DIR=%s" % shlex.quote(folder))
    if job["kind"] == "PyTorchJob":
        lines += [
            "export RANK=$TRAINYARD_WORKER_INDEX WORLD_SIZE=$TRAINYARD_WORKER_COUNT LOCAL_RANK=0"
        ]
    else:
        # trainyard-run has them from the program that writes the log.
        lines += ["unset RANK WORLD_SIZE LOCAL_RANK"]
    if job["environment_aliases"] == "dlws":
        lines += [
            (
                "export DLWS_JOB_ID=$TRAINYARD_JOB_ID DLWS_USER_NAME=$USER "
                "DLWS_SD_worker0_SSH_PORT=$TRAINYARD_SSH_PORT"
            ),
            "export DLWS_ROLE_IDX=$TRAINYARD_WORKER_INDEX DLWS_NUM_WORKER=$TRAINYARD_WORKER_COUNT",
        ]
    return "\n".join(lines) + "\n"


def worker_command(job, folder):
    """Return what runs in the container of a worker.

    The command is in a file, because everybody on a host can read the arguments of a process.
    """
    # In the background and with an output of its own: Slurm waits until no process has the output
    # of the worker.
    beside = (
        (
            'test "$TRAINYARD_WORKER_INDEX" != 0 || (python3 %s run < /dev/null > '
            '"$TRAINYARD_JOB_DIR/services.log" 2>&1 &); '
        )
        % SERVICES
        if started_services(job)
        else ""
    )
    # One worker needs no connections between hosts. Sessions on the other workers have the
    # variables of the launcher.
    launcher = (
        "trainyard-launch run "
        if job["kind"] in OF_FIRST_WORKER and job["worker_count"] > 1
        else ""
    )
    start = (
        'set -a; . "$1"; set +a; %sshell=$(command -v bash || command -v sh); exec %s"$shell" "$2"'
        % (beside, launcher)
    )
    return ["/bin/sh", "-c", start, "sh", folder + "/environment", folder + "/command.sh"]


def started_services(job):
    """Return what runs beside the job, with its setting. ssh needs no process of its own."""
    return {name: setting for name, setting in job["services"].items() if setting and name != "ssh"}


def run_options(job, home):
    """Return the options of trainyard-run."""
    found = ["--shm-size=%dm" % job["worker_shared_memory"]] if job["worker_shared_memory"] else []
    found += ["--mount=%s/services:%s:ro" % (HERE, SERVICES)] if started_services(job) else []
    # A file of each job in place of the one in the home of the person, which all of their jobs
    # share.
    return found + (
        ["--host-file=" + os.path.join(home, "ib_config")]
        if job["environment_aliases"] == "dlws"
        else []
    )


def srun_command(job, folder):
    """Return the command that starts the workers. If one of them fails, Slurm ends the others."""
    return [
        "srun",
        "--nodes=%d" % job["worker_count"],
        "--ntasks=%d" % job["worker_count"],
        "--ntasks-per-node=1",
        "--cpus-per-task=%d" % job["worker_cpu"],
        "--kill-on-bad-exit=1",
        "--unbuffered",
        "--input=none",
        "--job-name=workers",
        HERE + "/job",
        "task",
        folder,
    ]


first_failed = _job_result.first_failed


def task_numbers(text):
    """Return the tasks of a list of srun, such as 1-2,5."""
    found = []
    for part in text.split(","):
        first, _dash, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found += range(int(first), min(int(last or first), int(first) + MOST_TASKS) + 1)
    return found


def checksums_of(rows, started, kind):
    """Return the checksums of the parameters by who reports them, None for a worker that should
    have. C(started) has the reports of ranks that the workers' commands have started, by worker and
    rank.
    """
    found = {}
    for row in rows:
        ranks = started.get(row["rank"], {})
        if row["checksum"] or not ranks and (kind not in OF_FIRST_WORKER or not row["rank"]):
            found["worker %d" % row["rank"]] = row["checksum"]
        found.update(
            ("rank %d, started by worker %d," % (rank, row["rank"]), report.get("checksum"))
            for rank, report in sorted(ranks.items())
        )
    return found


def problems_of(rows, code, stopped, folder, checksums):
    """Return what was wrong, in sentences. Empty if nothing was."""
    found = []
    if stopped:
        found.append("the job was stopped before it ended: %s" % stopped)
    each = [_job_result.problem("worker", row["host"], row, folder) for row in rows]
    found += [problem for problem in each if problem]
    found += _job_result.checksum_problems(checksums)
    if code and not found:
        found.append(
            "srun ended with exit code %d, although no worker failed. Its message is above" % code
        )
    return found


def seen(hosts, requested, watched):
    """Return result.json's gpus and fabric by host, and warnings.

    C(watched) has the last line of each worker's watcher.
    """
    gpus, fabric, warnings = {}, {}, []
    for rank, host in enumerate(hosts):
        found = watched.get(rank) or {}
        gpus[host], fabric[host], idle = _job_result.seen(
            host, requested, found.get("devices", []), found
        )
        warnings += idle
    return gpus, fabric, warnings


def with_sample(minutes, minute, gpus):
    """Return the use of the GPUs by minute, with one more sample: the sums of the percents, how
    many there are, and the most MiB of memory.
    """
    if not gpus:
        return minutes
    former = (
        minutes[-1]
        if minutes and minutes[-1]["minute"] == minute and len(minutes[-1]["gpus"]) == len(gpus)
        else None
    )
    before = former["gpus"] if former else [[0, 0, None]] * len(gpus)
    merged = [
        [
            sums[0] + (gpu[0] or 0),
            sums[1] + (gpu[0] is not None),
            max((value for value in (sums[2], gpu[1]) if value is not None), default=None),
        ]
        for sums, gpu in zip(before, gpus)
    ]
    kept = minutes[:-1] if former else minutes
    return (kept + [{"minute": minute, "gpus": merged}])[-MINUTES:]


def with_load(loads: list, minute: int, now: float, load: dict) -> list:
    """Return the CPUs and the memory of a worker by minute, with one more sample.

    Each entry has C(minute), C(cpus), the mean of the minute, and C(memory_gb), the most. C(since)
    is when its first sample was taken, and C(used) the seconds of CPU until then.
    """
    cpu, memory = load.get("cpu_seconds"), load.get("memory")
    if cpu is None and memory is None:
        return loads
    last = loads[-1] if loads else None
    entry = {"minute": minute, "since": now, "used": cpu, "cpus": None, "memory_gb": None}
    if last and last["minute"] == minute:
        entry, loads = dict(last), loads[:-1]
    elif last:
        # The minute begins where the one before has ended.
        entry.update(since=last["until"], used=last["cpu"])
    if None not in (cpu, entry["used"]) and now > entry["since"]:
        entry["cpus"] = round(max(0.0, cpu - entry["used"]) / (now - entry["since"]), 2)
    if memory is not None:
        entry["memory_gb"] = max(round(memory / (1 << 30), 2), entry["memory_gb"] or 0)
    entry.update(until=now, cpu=cpu)
    return (loads + [entry])[-MINUTES:]


def workers(found):
    return "%d worker%s" % (len(found), "" if len(found) == 1 else "s")


def summary(result):
    """Return the result as lines for the log, with the problems last."""
    lines = [
        "job %s: %s in %.1f s, exit code %d"
        % (
            result["job_id"],
            workers(result["ranks"]),
            result["seconds"]["total"],
            result["exit_code"],
        )
    ]
    lines += _job_result.moved(result) + _job_result.summary_end(result)
    lines += _job_result.failure_lines("worker", result["first_failed"], "fix")
    if result["copied"]:
        lines.append(
            (
                "results copied to %s"
                if result["copied"]["ok"]
                else "warning: the results were not copied to %s"
            )
            % result["copied"]["to"]
        )
        lines += [] if result["copied"]["ok"] else ["  " + result["copied"]["said"]]
    return lines


# --- functions with side effects ---


def own_folder(base, person):
    """Return the person's folder of jobs.

    Role jobs has made it; a link in its place, or one of somebody else, is refused.
    """
    path = os.path.join(base, person.pw_name)
    try:
        state = os.lstat(path)
    except OSError as error:
        raise Refused(
            "%s cannot be used: %s. Tell the operator to run playbook people"
            % (path, error.strerror)
        ) from error
    if not os.path.isdir(path) or os.path.islink(path) or state.st_uid != person.pw_uid:
        raise Refused(
            "%s is not a folder of %s. Tell the operator to run playbook people"
            % (path, person.pw_name)
        )
    return path


def job_folder(base, number, again):
    """Make the folder of a job and return it.

    Numbers of jobs begin anew with a new database: the folder of an older job is never touched.
    """
    former = None
    for suffix in [""] + [".%d" % each for each in range(2, 1000)]:
        path = os.path.join(base, number + suffix)
        if os.path.lexists(path):
            former = path
        elif again and former:
            # Slurm has requeued the job.
            return former
        else:
            os.mkdir(path, 0o700)
            return path
    raise Refused(
        "%s has 1000 folders of jobs with the number %s; remove old ones" % (base, number)
    )


class Job:
    def __init__(self, text, environment, config):
        self.number = environment.get("SLURM_JOB_ID") or ""
        if not self.number.isdigit():
            raise Refused(
                (
                    "this is not a job of Slurm: SLURM_JOB_ID is not set. Submit the script with "
                    "sbatch, or the job file with trainyard submit"
                )
            )
        self.person = pwd.getpwuid(os.getuid())
        base = own_folder(config["jobs"], self.person)
        self.folder = job_folder(
            base, self.number, int(environment.get("SLURM_RESTART_COUNT") or 0) > 0
        )
        try:
            self.job, self.spec = _job_text.opened(text)
        except _job_text.SealError as error:
            # What clone reads.
            write_private(self.folder + "/spec.yml", error.spec)
            raise Refused(AGAIN % (self.number, error, self.number)) from error
        self.hosts = hosts_of(environment)
        self.log = os.path.join(base, ".out", self.number + ".log")
        self.began, self.stopped, self.child, self.hang = time.time(), "", None, ""
        # By task: when srun said that it ended, by the clock of this host, and its words.
        self.ends: dict = {}

    def prepare(self):
        write_private(self.folder + "/spec.yml", self.spec)
        write_private(self.folder + "/job.json", _job_text.sealed(self.job, ""))
        write_private(self.folder + "/command.sh", self.job["command"] + "\n")
        write_private(self.folder + "/environment", environment_file(self.job, self.folder))
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.relpath(self.log, self.folder), self.folder + "/job.log")
        for name in os.listdir(self.folder):
            if re.match(
                r"(rank\.\d+\.(json|log|report(\.\d+)?)|watch\.\d+\.json|result\.json|services\.(json|log)|service\..*\.log|nccl\..*"
                r"|hang\.(txt|ask|\d+\.json))(\.new)?$",
                name,
            ):
                os.unlink(os.path.join(self.folder, name))
        services = {
            name: {"state": "starting", "setting": setting}
            for name, setting in started_services(self.job).items()
        }
        if services:
            write_private(self.folder + "/services.json", json.dumps(services) + "\n")

    def stop(self, number, _frame):
        self.stopped = "signal %s" % signal.Signals(number).name
        if self.child:
            self.child.send_signal(number)

    def launch(self):
        self.ends, self.hang = {}, ""
        self.child = subprocess.Popen(
            srun_command(self.job, self.folder), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        reader = threading.Thread(target=self.pass_on, args=(self.child.stderr,), daemon=True)
        reader.start()
        code = self.wait(_job_hang.Progress(self.job.get("hang_minutes", 0), time.monotonic()))
        # A process that a worker has left may keep the pipe open.
        reader.join(FILE_SECONDS)
        return 128 - code if code < 0 else code

    def wait(self, progress: _job_hang.Progress) -> int:
        """Return the exit code of srun.

        Meanwhile, tell once where the workers wait if the job makes no progress.
        """
        while True:
            try:
                return self.child.wait(LOOK_SECONDS if progress.seconds else None)
            except subprocess.TimeoutExpired:
                if progress.look(time.monotonic(), self.size(), self.watched()):
                    self.tell_where_it_waits(progress)

    def tell_where_it_waits(self, progress: _job_hang.Progress) -> None:
        """Ask the workers once, and say where they wait. A full share must not end the job."""
        try:
            message = _job_hang.tell(self.folder, _job_hang.ask(self.folder, self.hosts))
        except OSError as error:
            message = "the workers could not be asked: %s" % error
        minutes = int(time.monotonic() - progress.since) // 60
        self.hang = _job_hang.warning(minutes, message, self.folder)
        say(self.hang)

    def size(self) -> int:
        """Return how many bytes of output the job has."""
        found = 0
        for path in ["%s/rank.%d.log" % (self.folder, rank) for rank in range(len(self.hosts))]:
            with contextlib.suppress(OSError):
                found += os.stat(path).st_size
        return found

    def watched(self) -> list:
        """Return what the watcher of each worker has written last."""
        return [self.watched_on(rank) for rank in range(len(self.hosts))]

    def watched_on(self, rank: int) -> dict:
        """Return what the watcher of a worker has written last.

        Empty if it has written nothing that can be read.
        """
        found = read_json("%s/watch.%d.json" % (self.folder, rank))
        return found if isinstance(found, dict) else {}

    def pass_on(self, stream):
        """Print what srun says, and note when each task ended. The clocks of the hosts may
        differ.
        """
        for line in stream:
            match = OF_TASKS.match(line)
            if match:
                words = line.decode("utf-8", "replace").strip()
                for task_number in task_numbers(match["tasks"].decode()):
                    self.ends.setdefault(task_number, (time.monotonic(), words))
            with contextlib.suppress(OSError):
                os.write(2, line)

    def started(self):
        """Return the reports of ranks that the workers' commands have started, by worker
        and rank.
        """
        found = {}
        for name in os.listdir(self.folder):
            match = STARTED.fullmatch(name)
            if match:
                report = read_json(os.path.join(self.folder, name))
                found.setdefault(int(match["worker"]), {})[int(match["rank"])] = (
                    report if isinstance(report, dict) else {}
                )
        return found

    def finish(self, code, attempt):
        records = _job_result.read_records(self.folder, len(self.hosts), FILE_SECONDS)
        rows = [
            _job_result.row(rank, host, 0, records.get(rank))
            for rank, host in enumerate(self.hosts)
        ]
        for row in rows:
            row["seen"] = self.ends.get(row["rank"], (None, ""))[0]
        problems = problems_of(
            rows,
            code,
            self.stopped,
            self.folder,
            checksums_of(rows, self.started(), self.job["kind"]),
        )
        watched = dict(enumerate(self.watched()))
        gpus, fabric, warnings = seen(self.hosts, self.job["worker_gpu"], watched)
        final = _job_result.exit_code(
            STOPPED if self.stopped else code, rows, problems, bool(self.stopped)
        )
        failed = None
        if final and not self.stopped:
            messages = {rank: words for rank, (_time, words) in self.ends.items()}
            memory = {
                host: (watched.get(rank) or {}).get("memory")
                for rank, host in enumerate(self.hosts)
            }
            failed = first_failed(rows, _job_result.Logs(self.folder), messages, memory)
        now = time.time()
        result = {
            "job_id": self.number,
            "name": self.job["name"],
            "kind": self.job["kind"],
            "launcher": "srun",
            "image": self.job["worker_image"],
            "command": self.job["command"],
            "world_size": len(rows),
            "ranks": _job_result.entries(rows),
            "metrics": _job_result.metrics(records),
            "attempts": attempt,
            "seconds": {
                "total": round(now - self.began, 2),
                "ranks": _job_result.longest(records),
            },
            "exit_code": final,
            "problems": problems,
            "warnings": warnings + [self.hang] * bool(self.hang),
            "hang": self.hang or None,
            "gpus": gpus,
            "fabric": fabric,
            "first_failed": failed,
            "copied": None,
        }
        return result

    def tell(self, result):
        path = self.folder + "/result.json"
        try:
            _job_result.write_json(path, result)
            where = "result: " + path
        except OSError as error:
            # A job that was good stays good.
            where = "warning: %s cannot be written: %s" % (path, error.strerror)
        for line in summary(result) + [where]:
            say(line)
        text = failed_comment(result["first_failed"])
        if text and (read_json(CONFIG) or {}).get("mail"):
            comment(self.number, text)
        return result["exit_code"]

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.stop)
        say(
            "job %s, %s: %s on %s, in %s"
            % (
                self.number,
                self.job["name"],
                workers(self.hosts),
                ", ".join(self.hosts),
                self.job["worker_image"],
            )
        )
        for attempt in range(1, self.job["retries"] + 2):
            self.prepare()
            result = self.finish(self.launch(), attempt)
            if not result["exit_code"] or self.stopped or attempt > self.job["retries"]:
                break
            say(
                "attempt %d of %d failed with exit code %d: %s"
                % (
                    attempt,
                    self.job["retries"] + 1,
                    result["exit_code"],
                    "; ".join(result["problems"]),
                )
            )
        if not result["exit_code"] and self.job["copy_results"]:
            # With the result, which gets a line on the copy afterwards.
            with contextlib.suppress(OSError):
                _job_result.write_json(self.folder + "/result.json", result)
            result["copied"] = copy(self.job["copy_results"], self.folder)
        return self.tell(result)


def failed_comment(failed: dict | None) -> str:
    """Return Slurm's comment of a job whose workers failed, empty without a known cause.

    :param failed: C(first_failed) of the result.
    """
    if not failed or not failed["causes"]:
        return ""
    cause = failed["causes"][0]
    todo = cause["fix"][:1].upper() + cause["fix"][1:]
    words = "worker %d on host %s failed first: %s. %s" % (
        failed["rank"],
        failed["host"],
        cause["cause"],
        todo,
    )
    return FAILED + printable(words)[:MOST_COMMENT]


def comment(number: str, text: str) -> None:
    """Write Slurm's comment of this job.

    Slurm's own user cannot read the folder of the job. A job ends as it has, also if Slurm refuses.
    """
    command = ["scontrol", "update", "JobId=" + number, "Comment=" + text]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMMENT_SECONDS,
            check=False,
        )


def hosts_of(environment):
    """Return the hosts of the job in the order of its workers."""
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", environment.get("SLURM_JOB_NODELIST") or ""],
        stdout=subprocess.PIPE,
        check=True,
    )
    return listed.stdout.decode().split()


def copy(target, folder):
    """Copy the folder of the job with rclone, and compare the copy with it.

    Return what result.json says of it.
    """
    steps = (["rclone", "copy", folder, target], ["rclone", "check", "--one-way", folder, target])
    for step in steps:
        try:
            done = subprocess.run(
                step,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COPY_SECONDS,
                check=False,
            )
        except OSError as error:
            return {"to": target, "ok": False, "said": "rclone cannot be started: %s" % error}
        except subprocess.TimeoutExpired:
            return {
                "to": target,
                "ok": False,
                "said": "%s did not end within %d s" % (" ".join(step[:2]), COPY_SECONDS),
            }
        if done.returncode:
            messages = done.stdout.decode("utf-8", "replace").strip().splitlines() or [
                "exit code %d" % done.returncode
            ]
            return {
                "to": target,
                "ok": False,
                "said": "%s: %s" % (" ".join(step[:2]), messages[-1][:500]),
            }
    return {"to": target, "ok": True, "said": ""}


class Sink:
    """Keeps what the watcher of a worker says in a file, in one step each time, and with it the use
    of the GPUs in the last hour.

    It also answers who asks where the worker waits.
    """

    def __init__(self, folder: str, number: str, rank: str, devices: list) -> None:
        self.folder, self.number, self.rank, self.devices = folder, number, rank, devices
        self.minutes: list = []
        self.loads: list = []
        self.answering: threading.Thread | None = None

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(text)
            now = time.time()
            self.minutes = with_sample(self.minutes, int(now // 60), found.get("now") or [])
            self.loads = with_load(self.loads, int(now // 60), now, found.get("load") or {})
            kept = dict(found, devices=self.devices, minutes=self.minutes, loads=self.loads)
            kept["answers"] = True
            write_private("%s/watch.%s.json" % (self.folder, self.rank), json.dumps(kept) + "\n")
        if self.rank.isdigit() and not (self.answering and self.answering.is_alive()):
            if os.path.exists(os.path.join(self.folder, _job_hang.ASKED)):
                arguments = (self.folder, self.number, int(self.rank))
                self.answering = threading.Thread(
                    target=_job_hang.answer, args=arguments, daemon=True
                )
                self.answering.start()

    def flush(self) -> None:
        return


def watched_gpus(environment):
    """Return the indexes by which nvidia-smi knows the GPUs of this worker.

    None if they cannot be told: trainyard-run says why.
    """
    config = read_json(OF_DEVICES) or {"gpus": {}}
    host = _gpu_numbers.read_host(config["gpus"])
    try:
        devices = _gpu_numbers.of_task(environment, config, host)
    except _gpu_numbers.DeviceError:
        return []
    return [str(index) for index in _gpu_numbers.indexes(devices, config["gpus"], host)]


def of_network(text, own):
    """Return the variables that say which card has the data of the job: those of containers, over
    them those of the job. C(text) has NAME=VALUE lines.
    """
    found = dict(re.findall(r'^((?:GLOO|NCCL)_[A-Z_]+)="?(.*?)"?$', text, re.MULTILINE))
    return dict(
        found, **{name: value for name, value in own.items() if name.startswith(("GLOO_", "NCCL_"))}
    )


def task(folder):
    """One worker of the job."""
    values = dict(os.environ)
    number = values.get("SLURM_JOB_ID") or "ID"
    try:
        job = _job_text.opened(read(folder + "/job.json"))[0]
    except _job_text.SealError as error:
        raise Refused(AGAIN % (number, error, number)) from error
    # For the watcher, which counts what this card sends and receives. It runs outside of the
    # container.
    os.environ.update(of_network(read(OF_CONTAINERS), job["environment"]))
    rank = values.get("SLURM_PROCID") or "0"
    ending, end = os.pipe()
    sink = Sink(folder, number, rank, watched_gpus(values))
    watcher = threading.Thread(
        target=_job_watch.watch,
        daemon=True,
        args=(bool(job["worker_gpu"]), os.fdopen(ending, closefd=False), sink),
    )
    watcher.start()
    command = (
        [SHARED + "/rank", TRAINYARD_RUN]
        + run_options(job, values.get("HOME") or "/")
        + [job["worker_image"], "--"]
        + worker_command(job, folder)
    )
    environment = dict(
        values,
        RANK=rank,
        LOCAL_RANK="0",
        WORLD_SIZE=str(job["worker_count"]),
        TRAINYARD_JOB_DIR=folder,
    )
    child = subprocess.Popen([sys.executable] + command, stdin=subprocess.DEVNULL, env=environment)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    code = child.wait()
    os.close(end)
    watcher.join(WATCH_SECONDS)
    return 128 - code if code < 0 else code


def main(arguments):
    os.umask(0o077)
    if arguments == ["run"]:
        config = read_json(CONFIG)
        if config is None:
            raise Refused(
                "%s is missing or damaged; tell the operator to run playbook workbench" % CONFIG
            )
        # Not by the locale of the person.
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
        return Job(text, os.environ, config).run()
    if len(arguments) == 2 and arguments[0] == "task":
        return task(arguments[1])
    sys.stderr.write(__doc__)
    return USAGE


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refused as problem:
        say(problem, 2)
        sys.exit(NOT_STARTED)
    except OSError as problem:
        say(
            "%s: %s. Free space on the share, or tell the operator"
            % (problem.filename or "the folder of the job", problem.strerror),
            2,
        )
        sys.exit(NOT_STARTED)
