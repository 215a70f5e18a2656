# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one training job from the head: starts it, watches it, ends all of its ranks on every host,
and writes result.json.

trainyard-job run            run the job described as JSON in the environment variable TRAINYARD_JOB
trainyard-job finish         clean up if "run" did not end by itself (called by systemd)
trainyard-job sweep JOB_ID   end all processes with this job ID on every host of the cluster
trainyard-job stop           stop all jobs launched by this host and print their units
"""

import collections
import concurrent.futures
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

# Nothing is written beside this file.
sys.dont_write_bytecode = True
import _bandwidth
import _job_hang
import _job_result
import _launchers
from _files import load_json
from _messages import say

STOPPED, TIMED_OUT = _job_result.STOPPED, _job_result.TIMED_OUT

CLUSTER = "/etc/trainyard/cluster.json"
SSH_CONFIG = "/etc/trainyard/ssh/ssh_config"
RANK = ["python3", "/usr/local/lib/trainyard/rank"]
# Limits for the keep-alive of a connection and for its setup.
SSH = [
    "ssh",
    "-F",
    SSH_CONFIG,
    "-o",
    "BatchMode=yes",
    "-o",
    "StrictHostKeyChecking=yes",
    "-o",
    "ConnectTimeout=5",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
]
SWEEP_SECONDS = 25
# A network file system may show the last file of another host after a short delay.
REPORT_SECONDS = 5
VERSION_SECONDS = 30
# The line of the command that waits in Slurm's queue, when the hosts are free.
GRANTED = b"granted\n"
# The last line of a watcher arrives immediately. The job does not wait for one that hangs.
WATCH_SECONDS = 3
# Part of the ranks' logs that is searched for NCCL's connections, which are logged at the start.
NCCL_BYTES, NCCL_LOGS = 1 << 20, 64
# In the job's folder.
HOST_FILE = "hosts"
# Largest job.log. Each rank's output is complete in its own log, and on a terminal nobody reads
# more. Lines of the launcher stand nowhere else.
LOG_BYTES, LAUNCHER_LINES = 16 << 20, 500
RANK_LINE = re.compile(rb"\[\d+ \S+\] ")
# The last line of a rank that failed, from rank.py.
RANK_END = re.compile(rb"\[(\d+) \S+\] trainyard: rank ended with exit code \d+$")
SHORTENED = (
    "earlier lines of the ranks were removed here. The output of each rank is complete in "
    "rank.N.log"
)

# Ends all processes with the job's ID in their environment. It also runs in the training
# containers, so it is Python 3.6.
SWEEP = r"""
import os, signal, sys, time
mark = b"TRAINYARD_JOB_ID=" + sys.argv[1].encode()
def marked():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/environ" % name, "rb") as stream:
                    if mark in stream.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
    return found
asked, clean = set(), 0
begin = time.monotonic()
while True:
    alive = marked()
    # One check is not sufficient: the list lacks processes forked later, and a process has no environment during exec.
    clean = 0 if alive else clean + 1
    if clean == 3 or alive and time.monotonic() - begin > 15:
        break
    for pid in alive:
        if pid not in asked or time.monotonic() - begin > 2:
            try:
                os.kill(pid, signal.SIGTERM if pid not in asked else signal.SIGKILL)
            except OSError:
                pass
            asked.add(pid)
    time.sleep(0.1)
print(len(asked))
sys.exit(1 if alive else 0)
"""

# Prints the version of a Python package from its files, because importing a framework takes
# seconds. It also runs in the training containers, so it is Python 3.6.
VERSION = r"""
import importlib.util, os, re, sys
spec = importlib.util.find_spec(sys.argv[1])
for folder in spec.submodule_search_locations or [] if spec else []:
    for name in ("version.py", "__init__.py"):
        if os.path.exists(os.path.join(folder, name)):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
                found = re.search(r"^__version__(?:\s*:\s*\w+)?\s*=\s*['\"]([^'\"]+)", stream.read(), re.MULTILINE)
            if found:
                print(found.group(1))
                sys.exit(0)
"""

# Modules of a watcher, which reads them from its input, so that no file is written on a host.
WATCH_FILES = ("_bandwidth", "_job_watch")
# Starts the ranks of MindSpore on a host. The job's folder has copies, because msrun calls the
# first again in the containers.
LAUNCH_FILE, LAUNCH_FILES = "trainyard_launch.py", ("trainyard_launch.py", "_launchers.py")
# The devices that CANN shows the ranks of a host, as numbers of the host.
NPUS = "ASCEND_RT_VISIBLE_DEVICES"
# Of role ascend: the NPUs of all hosts. The job's folder has a copy, which its containers can read.
RANK_TABLE, COPIED_TABLE = "/etc/trainyard/hccl.json", "hccl.json"
# What a host runs to tell where its ranks wait.
HANG_FILES = ("_job_hang",)
# Seconds between two looks at the progress of a job, and for the answer of a host.
LOOK_SECONDS, HANG_SECONDS = 5, 60
# Reads the program, whose length is the argument. The rest of the input ends it.
WATCH_START = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'watch', 'exec'))"


class JobError(Exception):
    """The job could not be started. The message is for the user."""


# --- pure functions: from the specification to commands, from the ranks' records to a verdict ---


def resolve(spec, cluster):
    """Return the job's hosts in rank order: name, slots and network settings from the
    specification, address from the cluster's file.
    """
    known = {host["name"]: host for host in cluster["hosts"]}
    on_fabric = spec["network"].get("addresses", {})
    hosts = []
    for requested in spec["hosts"]:
        if requested["name"] not in known:
            raise JobError(
                "host %s is not in %s: run site.yml first" % (requested["name"], CLUSTER)
            )
        address = known[requested["name"]]["address"]
        hosts.append(
            {
                "name": requested["name"],
                "slots": requested["slots"],
                "address": address,
                "fabric_address": on_fabric.get(requested["name"]) or address,
                "network": spec["network"]["environment"].get(requested["name"], {}),
            }
        )
    if not any(host["slots"] for host in hosts):
        raise JobError("no host of the job has a slot")
    return [host for host in hosts if host["slots"]]


def placement(hosts):
    """Return the place of each rank: [{rank, host, slot}]."""
    places = [(host["name"], slot) for host in hosts for slot in range(host["slots"])]
    return [{"rank": rank, "host": host, "slot": slot} for rank, (host, slot) in enumerate(places)]


def own_environment(spec, job_dir):
    found = {
        "TRAINYARD_JOB_ID": spec["job_id"],
        "TRAINYARD_JOB_DIR": job_dir,
        "PYTHONUNBUFFERED": "1",
    }
    if spec.get("ras_port"):
        # NCCL's default port may answer for another job.
        found[_job_hang.RAS_ADDRESS] = "127.0.0.1:%d" % spec["ras_port"]
    return found


def master_address(spec, hosts):
    """Return the rendezvous address of torchrun, on the fabric network if the specification
    requests it, otherwise on the cluster network.
    """
    return hosts[0]["fabric_address" if spec.get("master_on_fabric") else "address"]


def ranks_environment(spec: dict, host: dict, job_dir: str) -> dict:
    """Return the variables of the ranks on a host. Those of the user win."""
    environment = dict(host["network"])
    environment.update(nccl_log(spec, job_dir))
    environment.update(own_environment(spec, job_dir))
    environment.update(spec["environment"])
    return environment


def through_ssh(spec: dict, host: dict, variables: dict, command: list) -> list:
    """Return the command that runs another one in the container of a host, with these variables."""
    words = ["env"] + _launchers.assignments(variables) + command
    return SSH + [
        host["address"],
        "cd %s && exec %s"
        % (shlex.quote(spec["workdir"]), " ".join(shlex.quote(word) for word in words)),
    ]


def on_head(
    spec: dict, container: str, image_environment: list, environment: dict, command: list
) -> list:
    """Return the command that runs another one in the head's container, with these variables and
    those of its image.

    C(docker exec) adds the head's host name, which horovodrun sends to all ranks, so the
    environment is a new one.
    """
    variables = {"HOME": "/root"}
    variables.update(pair.split("=", 1) for pair in image_environment)
    # horovodrun writes the environment into command lines, which every user can read. Ranks on
    # other hosts get the proxies from their login.
    variables = {
        name: value
        for name, value in variables.items()
        if not (name.lower().endswith("_proxy") and "@" in value)
    }
    variables.update(environment)
    inside = ["docker", "exec", "--workdir", spec["workdir"], container]
    return inside + ["env", "-i"] + _launchers.assignments(variables) + command


def launcher_command(spec: dict, host: dict, job: dict, job_dir: str) -> tuple:
    """Return (variables, command) of the launcher on a host.

    C(job) is what P(launch_description) returned.

    docker0 has the same address on every host, so an automatic search for a common interface may
    find it. So each launcher gets the interfaces.
    """
    launcher = _launchers.LAUNCHERS[spec["launcher"]]
    variables = ranks_environment(spec, host, job_dir)
    own = launcher.environment(job)
    if launcher.starts == _launchers.HEAD:
        # These launchers start ranks on other hosts, too.
        job = dict(job, environment=dict(own, **variables), of_user=list(spec["environment"]))
    words = launcher.before + (RANK if launcher.rank else []) + spec["command"]
    return dict(own, **variables), launcher.command(job, words)


def launch_description(spec, hosts, index, ports, job_dir, rank_table=""):
    """Return the job for _launchers and trainyard-launch on host number `index`: the ranks of all
    hosts, and where they connect and leave their files.
    """
    mindspore = spec.get("mindspore", {})
    devices = [
        int(number)
        for number in str(spec["environment"].get(NPUS) or "").split(",")
        if number.isdigit()
    ]
    folder = (
        os.path.join(mindspore["folder"], spec["job_id"]) if mindspore.get("folder") else job_dir
    )
    return {
        "job": spec["job_id"],
        "step": "0",
        "index": index,
        "count": len(hosts),
        "ports": ports,
        "keys": {},
        "entries": [
            {
                "address": host["address"],
                "fabric_address": host["fabric_address"],
                "slots": host["slots"],
                "local": 0,
                "devices": devices,
            }
            for host in hosts
        ],
        "master_address": master_address(spec, hosts),
        "seconds": spec["start_timeout"],
        "folder": folder,
        "records": job_dir,
        "start": mindspore.get("start", "auto"),
        "rank_table": rank_table,
        "program": os.path.join(job_dir, LAUNCH_FILE),
        "description": os.path.join(job_dir, "launch.%d.json" % index),
        "host_file": os.path.join(job_dir, HOST_FILE),
        "interface": spec["network"]["interface"],
        "controller": spec.get("controller", "auto"),
        "as_root": True,
    }


def watch_program(sources, with_gpus):
    """Return the program that watches a host."""
    return one_program(sources, "watch(%r)" % with_gpus)


def one_program(sources: list, call: str) -> str:
    """Return one program with the texts of several modules, so that no file is written on the host.

    It calls a function of the last one.
    """
    lines = ["import os, sys, types", "os.nice(10)"]
    for name, text in sources:
        lines += [
            "sys.modules[%r] = module = types.ModuleType(%r)" % (name, name),
            "exec(compile(%r, %r, 'exec'), module.__dict__)" % (text, name),
        ]
    message = "    sys.stderr.write('%r\\n' % error)"
    lines += ["try:", "    module." + call, "except Exception as error:", message]
    # Ends the process even if a call of nvidia-smi hangs.
    return "\n".join(lines + ["finally:", "    os._exit(0)", ""])


def read_sources(names: tuple) -> list:
    """Return (name, text) of modules beside this program. OSError if one is missing."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sources = []
    for name in names:
        with open(os.path.join(folder, name + ".py"), encoding="utf-8") as stream:
            sources.append((name, stream.read()))
    return sources


def watch_command(spec, host, size):
    """Return the command that watches a host, in its container.

    It has the job's ID in its environment, as the ranks have, so the sweep also ends it.
    """
    variables = {
        name: value
        for name, value in dict(host["network"], **spec["environment"]).items()
        if name.startswith(("NCCL_", "GLOO_"))
    }
    words = (
        ["env"]
        + _launchers.assignments(dict(variables, TRAINYARD_JOB_ID=spec["job_id"]))
        + ["python3", "-c", WATCH_START, str(size)]
    )
    return SSH + [host["address"], " ".join(shlex.quote(word) for word in words)]


def nccl_log(spec, job_dir):
    """Return the variables that make NCCL log its connections into the job's folder, or nothing if
    the user configured NCCL's log.
    """
    if not any(requested["count"] for requested in spec.get("watch", {}).values()) or any(
        name.startswith("NCCL_DEBUG") for name in spec["environment"]
    ):
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT",
        "NCCL_DEBUG_FILE": os.path.join(job_dir, "nccl.%h.%p"),
    }


def watched(spec, seen):
    """Return result.json's gpus and fabric by host, and warnings.

    C(seen) has the last line of each watcher, or C(said) with the reason if there is none.
    """
    gpus, fabric, warnings = {}, {}, []
    for host in sorted(spec.get("watch", {})):
        requested = spec["watch"][host]
        found = seen.get(host, {"said": "the job's runner ended before the watcher reported"})
        gpus[host], fabric[host], idle = _job_result.seen(
            host, requested["count"], requested["devices"], found
        )
        warnings += idle
        if "said" in found:
            warnings.append("host %s was not watched: %s" % (host, found["said"]))
        elif gpus[host]["busy"] is None:
            known = [peak for peak in found.get("peaks", []) if peak is not None]
            warnings.append(
                "host %s: it is not known whether the job used the GPUs that it requested (%d): %s"
                % (
                    host,
                    requested["count"],
                    found.get("error") or "nvidia-smi reported the utilization of %d" % len(known),
                )
            )
    return gpus, fabric, warnings


def strip_prefix(line):
    """Remove horovodrun's prefix, because a rank's line already starts with the rank and
    its host.
    """
    return re.sub(rb"^\[\d+(?:,\d+)?\]<std(?:out|err)>: ?(?=\[\d+ )", b"", line)


def rank_rows(places, hosts, records):
    """Return what is known of the ranks. `host` is the host with the cluster address that the rank
    found on its machine.
    """
    owner = {host["address"]: host["name"] for host in hosts}
    rows = []
    for place in places:
        record = records.get(place["rank"], {})
        found = [owner[address] for address in record.get("addresses", []) if address in owner]
        rows.append(
            _job_result.row(
                place["rank"],
                found[0] if found else None,
                record.get("slot", place["slot"]),
                record,
            )
        )
    return rows


def judge(places, rows, job_dir):
    """Return the problems of the ranks. Empty if there are none."""
    problems = []
    if all(row["hostname"] is None for row in rows):
        return ["no rank has started"]
    for place, row in zip(places, rows):
        if row["hostname"] is not None and row["host"] != place["host"]:
            problems.append(
                "rank %d belongs on host %s, but ran on %s"
                % (
                    place["rank"],
                    place["host"],
                    row["host"] or "%s, which has no address of the cluster" % row["hostname"],
                )
            )
        if row["world_size"] not in (None, len(places)):
            problems.append(
                (
                    "rank %d on host %s took part in a job of %d ranks in place of %d: the "
                    "launcher has started separate jobs"
                )
                % (place["rank"], place["host"], row["world_size"], len(places))
            )
        problem = _job_result.problem("rank", place["host"], row, job_dir)
        problems += [problem] if problem else []
    checksums = {"rank %d" % row["rank"]: row["checksum"] for row in rows}
    return problems + _job_result.checksum_problems(checksums)


def summary(result):
    """Return the result as lines for the terminal, with the problems last."""
    lines = [
        "job %s: %d ranks by %s in %.1f s"
        % (result["job_id"], result["world_size"], result["launcher"], result["seconds"]["total"])
    ]
    for row in result["ranks"]:
        lines.append(
            "rank %d  host %s  slot %s  exit code %s  container %s  checksum %s"
            % (
                row["rank"],
                row["host"],
                row["slot"],
                row["exit_code"],
                (row["container_id"] or "?")[:12],
                (row["checksum"] or "none")[:12],
            )
        )
    lines += _job_result.moved(result)
    lines += _job_result.failure_lines("rank", result.get("first_failed"), "fix_operator")
    if result["nccl_transport"]:
        lines.append("NCCL connected the ranks by %s" % ", ".join(result["nccl_transport"]))
    return lines + _job_result.summary_end(result)


# --- functions with side effects ---


def write_json(path, value):
    """Write a file that everybody reads."""
    _job_result.write_json(path, value, 0o644)


def read_cluster():
    try:
        return load_json(CLUSTER)
    except FileNotFoundError as error:
        raise JobError("%s does not exist on this host: run site.yml first" % CLUSTER) from error
    except (OSError, ValueError, RecursionError) as error:
        raise JobError(
            (
                "%s is damaged on this host (%s). Keys are compared with it: restore it, or remove "
                "it if you trust the current keys, then run site.yml"
            )
            % (CLUSTER, error)
        ) from error


def sweep_host(job_id, host, is_head):
    """Return None if no process of the job runs on the host, else the reason why this is
    not known.
    """
    # The head's own processes are visible from here, even if its container does not run.
    command = (
        [sys.executable, "-", job_id]
        if is_head
        else SSH + [host["address"], "python3", "-", shlex.quote(job_id)]
    )
    try:
        done = subprocess.run(
            command,
            input=SWEEP.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=SWEEP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no answer in %d s" % SWEEP_SECONDS
    if done.returncode == 1 and done.stdout.strip().isdigit():
        return "processes are left that SIGKILL does not end"
    if done.returncode:
        return (
            done.stderr.decode(errors="replace").strip().splitlines()
            or ["exit code %d" % done.returncode]
        )[-1]
    return None


def sweep(job_id, cluster, names=None):
    """End the job's processes on its hosts in parallel, and always on the head, where the launcher
    ran. Return the problems.
    """
    hosts = [
        host
        for host in cluster["hosts"]
        if names is None or host["name"] in names or host["name"] == cluster["head"]
    ]
    with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(
            pool.map(lambda host: sweep_host(job_id, host, host["name"] == cluster["head"]), hosts)
        )
    return [
        "it is not known whether ranks are left on host %s: %s" % (host["name"], answer)
        for host, answer in zip(hosts, answers)
        if answer
    ]


class Watcher(threading.Thread):
    """Watches one host while the job runs. If it fails, the job continues without it."""

    def __init__(self, spec, host, program):
        super().__init__(daemon=True)
        self.name = host["name"]
        self.command, self.program = watch_command(spec, host, len(program)), program
        # The local end of the connection also ends with the job.
        self.environment = dict(os.environ, TRAINYARD_JOB_ID=spec["job_id"])
        self.process = None
        self.last, self.message = None, "it did not answer"

    def run(self):
        try:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )
            try:
                self.process.stdin.write(self.program)
                self.process.stdin.flush()
            except BrokenPipeError:
                # The process ended before it read its input. Its output has the reason.
                self.message = "it ended at once"
            for line in self.process.stdout:
                try:
                    found = json.loads(line.decode(errors="replace"))
                except ValueError:
                    found = None
                if isinstance(found, dict):
                    self.last = found
                elif line.strip():
                    self.message = line.decode(errors="replace").strip()
        except (OSError, ValueError) as error:
            # Closed at the job's end, or never started.
            self.message = str(error)

    def ask_to_end(self):
        try:
            if self.process:
                self.process.stdin.close()
        except OSError:
            # The process has already ended.
            return

    def end(self, deadline):
        self.join(max(0, deadline - time.monotonic()))
        if self.process and self.process.poll() is None:
            self.process.kill()
        return self.last or {"said": self.message}


def where_it_waits(spec: dict, host: dict, program: bytes) -> dict:
    """Return where the ranks of a host wait, as P(_job_hang.sentence) takes it."""
    command = watch_command(spec, host, len(program))
    try:
        done = subprocess.run(
            command,
            input=program,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, TRAINYARD_JOB_ID=spec["job_id"]),
            timeout=HANG_SECONDS,
            check=False,
        )
        found = json.loads(done.stdout.decode(errors="replace"))
        return dict(found, host=host["name"])
    except subprocess.TimeoutExpired:
        message = "it did not answer within %d s" % HANG_SECONDS
    except OSError as error:
        message = str(error)
    except (ValueError, TypeError):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = lines[-1] if lines else "it ended with exit code %d" % done.returncode
    return {"host": host["name"], "said": message}


class Output:
    """The job's output: what the launchers print, which includes what the ranks print.

    C(descriptor) is that of job.log, which starts anew when it is full.
    """

    def __init__(self, descriptor=1, most=LOG_BYTES):
        self.descriptor, self.most = descriptor, most
        self.lock = threading.Lock()
        self.launcher = collections.deque(maxlen=LAUNCHER_LINES)
        self.written = self.total = 0
        # By rank, when its end was seen here. The clocks of the hosts may differ.
        self.ends: dict = {}

    def copy(self, stream):
        for line in stream:
            self.write(strip_prefix(line))

    def write(self, line):
        end = RANK_END.match(line.rstrip())
        if end:
            self.ends.setdefault(int(end.group(1)), time.monotonic())
        with self.lock:
            self.total += len(line)
            if not RANK_LINE.match(line):
                self.launcher.append(line[:4096])
            if self.written + len(line) > self.most:
                self.shorten()
            self.put(line)

    def put(self, data):
        self.written += len(data)
        # A full share does not end the job: the launcher's pipe has to be read.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self.descriptor, data) :]

    def shorten(self):
        self.written = 0
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self.descriptor, 0)
        say(SHORTENED, self.descriptor)
        self.put(b"".join(self.launcher))


class Allocation:
    """The hosts of a job that waits in Slurm's queue.

    They are free of other jobs from the line of the waiting command until it ends. It ends with its
    input, so it also does if the runner is killed.
    """

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        self.granted = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if line == GRANTED:
                self.granted.set()

    def has_ended(self):
        return self.process.poll() is not None

    def release(self):
        """Give the hosts back, or leave the queue."""
        # A line lets the command end at once. It may have ended already.
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stream:
            stream.write(b"\n")
        if not self.granted.is_set():
            self.process.terminate()
        # While slurmctld does not answer, salloc tries again. Killed, it would leave the hosts
        # taken.
        self.process.wait()


def free_port() -> int:
    """Return a port of this host that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job(object):
    def __init__(self, spec):
        try:
            self.spec = dict(spec, command=shlex.split(spec["command"]))
        except ValueError as error:
            raise JobError(
                "train_command: %s cannot be split into words: %s" % (spec["command"], error)
            ) from error
        self.cluster = read_cluster()
        self.job_dir = os.path.join(self.cluster["share"], ".trainyard", "jobs", spec["job_id"])
        self.result_path = os.path.join(self.job_dir, "result.json")
        self.hosts = resolve(self.spec, self.cluster)
        self.places = placement(self.hosts)
        self.began = time.monotonic()
        self.stopped = False
        self.allocation = None
        self.failed_on = None
        self.versions = {}
        self.watchers = []
        self.seen = {}
        self.output = Output()
        self.progress = _job_hang.Progress(self.spec.get("hang_minutes", 0), self.began)
        self.looked, self.hang, self.telling = self.began, "", None
        if self.progress.seconds:
            self.spec["ras_port"] = free_port()

    def prepare_directory(self):
        """Remove the results of an earlier job with the same ID."""
        os.makedirs(self.job_dir, exist_ok=True)
        for name in os.listdir(self.job_dir):
            if name in ("result.json", HOST_FILE, COPIED_TABLE, _job_hang.FILE) or re.match(
                r"(rank\.\d+\.(json|log|report)(\.new)?|nccl\..*|launch\.\d+\.json)$", name
            ):
                os.unlink(os.path.join(self.job_dir, name))
        write_json(os.path.join(self.job_dir, "spec.json"), self.spec)

    def container_environment(self):
        name = self.cluster["container"]
        done = subprocess.run(
            ["docker", "inspect", "--format", "{{.State.Running}} {{json .Config.Env}}", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        running, dummy, environment = done.stdout.decode().partition(" ")
        if done.returncode or running != "true":
            raise JobError(
                "container %s does not run on host %s: run site.yml. %s"
                % (name, self.cluster["head"], done.stderr.decode().strip())
            )
        return json.loads(environment)

    def version(self, package, command):
        """Return the version of a package in the container of the command, or None if it is not
        known. The launcher then reports a missing package.
        """
        try:
            done = subprocess.run(
                command + ["python3", "-", package],
                input=VERSION.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=VERSION_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        version = (done.stdout.decode(errors="replace").split() or [None])[-1]
        if version:
            self.versions[package] = version
        return version

    def master_port(self):
        """Return the rendezvous port of torchrun: the requested one, or a free one, which differs
        for parallel jobs.
        """
        requested = int(self.spec.get("master_port") or 0)
        on_head = self.hosts[0]["name"] == self.cluster["head"]
        if requested and not on_head:
            return requested
        address = master_address(self.spec, self.hosts) if on_head else ""
        with socket.socket() as probe:
            # Like torchrun: a closing connection of the last job does not occupy the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, requested))
            except OSError as error:
                raise JobError(
                    (
                        "train_master_port: '%d' cannot be used at %s on host %s: %s. Set another "
                        "port, or 0 for a free port"
                    )
                    % (requested, address, self.hosts[0]["name"], error)
                ) from error
            return probe.getsockname()[1]

    def mpi_version(self) -> None:
        """Note the version of Open MPI in the head's container.

        Another MPI takes none of the options.
        """
        name = self.cluster["container"]
        try:
            done = subprocess.run(
                ["docker", "exec", name, "mpirun", "--version"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=VERSION_SECONDS,
                check=False,
            )
            output = done.stdout.decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            output = ""
        version = _launchers.open_mpi_version(output)
        if not version:
            raise JobError(
                "train_launcher: 'mpirun' needs Open MPI in the training image, but mpirun in "
                "container %s on host %s answers: %s. "
                "Add mpirun to training_image_tools and run site.yml, or set another launcher"
                % (name, self.cluster["head"], (output.splitlines() or ["nothing"])[0])
            )
        self.versions["openmpi"] = version

    def commands(self) -> list:
        """Return the commands that start the ranks: one on the head, or one for each host."""
        launcher = _launchers.LAUNCHERS[self.spec["launcher"]]
        if launcher.starts == _launchers.HEAD:
            return [self.command_on_head(launcher)]
        table = self.prepare_mindspore() if self.spec["launcher"] == "mindspore" else ""
        # All hosts have the same image.
        version = self.version(launcher.package, SSH + [self.hosts[0]["address"]])
        ports, commands = {"master": self.master_port()}, []
        for index, host in enumerate(self.hosts):
            job = launch_description(self.spec, self.hosts, index, ports, self.job_dir, table)
            if self.spec["launcher"] == "mindspore":
                write_json(job["description"], job)
            variables, command = launcher_command(
                self.spec, host, dict(job, version=version), self.job_dir
            )
            commands.append(through_ssh(self.spec, host, variables, command))
        return commands

    def command_on_head(self, launcher) -> list:
        container, environment = self.cluster["container"], self.container_environment()
        ports = {"ssh": self.cluster["port"]}
        job = launch_description(self.spec, self.hosts, 0, ports, self.job_dir)
        with open(job["host_file"], "w", encoding="utf-8") as stream:
            stream.write(_launchers.host_text(self.hosts))
        if launcher.package:
            job["version"] = self.version(launcher.package, ["docker", "exec", "-i", container])
        else:
            self.mpi_version()
        variables, command = launcher_command(self.spec, self.hosts[0], job, self.job_dir)
        return on_head(self.spec, container, environment, variables, command)

    def prepare_mindspore(self) -> str:
        """Copy into the job's folder what its containers read, and return the path of the rank
        table or an empty text.
        """
        folder = os.path.dirname(os.path.abspath(__file__))
        for source in [os.path.join(folder, name) for name in LAUNCH_FILES]:
            try:
                shutil.copyfile(source, os.path.join(self.job_dir, os.path.basename(source)))
            except OSError as error:
                raise JobError(
                    "%s cannot be copied into the job's folder: %s. Run train.yml again"
                    % (source, error)
                ) from error
        default = RANK_TABLE if os.path.exists(RANK_TABLE) else ""
        table = self.spec.get("mindspore", {}).get("rank_table") or default
        if not table:
            return ""
        copied = os.path.join(self.job_dir, COPIED_TABLE)
        try:
            shutil.copyfile(table, copied)
        except OSError as error:
            raise JobError(
                (
                    "train_rank_table: '%s' cannot be read on host %s: %s. Name a rank table on "
                    "this host or on the share"
                )
                % (table, self.cluster["head"], error.strerror)
            ) from error
        return copied

    def wait_in_queue(self):
        """Wait until Slurm keeps the hosts free of other jobs, or the job is stopped."""
        command = self.spec["queue"]
        try:
            self.allocation = Allocation(command)
        except OSError as error:
            raise JobError(
                "%s cannot be started on host %s: %s" % (command[0], self.cluster["head"], error)
            ) from error
        while not self.allocation.granted.wait(0.2) and not self.stopped:
            if self.allocation.has_ended():
                raise JobError(
                    "Slurm gave the job no hosts, see the lines of salloc in %s"
                    % os.path.join(self.job_dir, "job.log")
                )
        self.began = time.monotonic()

    def was_taken_back(self):
        """Return whether Slurm has ended the job's allocation."""
        return self.allocation is not None and self.allocation.has_ended()

    def code_of(self, codes, deadline):
        """Return the launchers' exit code, or None while they run.

        C(codes) has that of each, None of one that runs.
        """
        bad = [each for each in codes if each]
        if self.stopped or self.was_taken_back():
            return STOPPED
        if bad:
            on_head = _launchers.LAUNCHERS[self.spec["launcher"]].starts == _launchers.HEAD
            failed = self.hosts[codes.index(bad[0])]["name"]
            self.failed_on = self.cluster["head"] if on_head else failed
            return bad[0] if bad[0] > 0 else 128 - bad[0]
        if all(each == 0 for each in codes):
            return 0
        return TIMED_OUT if deadline and time.monotonic() > deadline else None

    def launch(self):
        """Return the launcher's exit code.

        With several launchers, return as soon as one fails, with its code.
        """
        children = []
        for command in self.commands():
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            threading.Thread(target=self.output.copy, args=(child.stdout,), daemon=True).start()
            children.append(child)
        deadline = self.began + self.spec["timeout"] if self.spec["timeout"] else None
        self.progress.since = self.looked = time.monotonic()
        code = None
        while code is None:
            time.sleep(0.05)
            code = self.code_of([child.poll() for child in children], deadline)
            self.look()
        if code == TIMED_OUT:
            self.tell_before_the_end()
        if code and any(child.poll() is None for child in children):
            # Gives the others time to print why they lost their peer.
            time.sleep(0.5)
        for child in children:
            if child.poll() is None:
                child.terminate()
        return code

    def look(self) -> None:
        """If the job makes no progress, tell once where its ranks wait."""
        now = time.monotonic()
        if not self.progress.seconds or now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        watched = [watcher.last or {} for watcher in self.watchers]
        if self.progress.look(now, self.output.total, watched):
            # The job may end meanwhile.
            self.telling = threading.Thread(target=self.tell_where_it_waits, daemon=True)
            self.telling.start()

    def tell_before_the_end(self) -> None:
        """Before the ranks of a job are ended, tell where they wait."""
        if self.telling:
            self.telling.join(HANG_SECONDS)
        elif self.progress.seconds:
            self.tell_where_it_waits()

    def tell_where_it_waits(self) -> None:
        """Collect on all hosts where the ranks wait, and write hang.txt."""
        minutes = int(time.monotonic() - self.progress.since) // 60
        try:
            sources = read_sources(HANG_FILES)
        except OSError as error:
            say("it is not known where the job waits: %s" % error)
            return
        job_id, answers = self.spec["job_id"], []
        with concurrent.futures.ThreadPoolExecutor(len(self.hosts)) as pool:
            for index, host in enumerate(self.hosts):
                call = "main(%r, %r)" % (job_id, index < _job_hang.RAS_HOSTS)
                program = one_program(sources, call).encode()
                answers.append(pool.submit(where_it_waits, self.spec, host, program))
        message = _job_hang.tell(self.job_dir, [each.result() for each in answers], 0o644)
        self.hang = _job_hang.warning(minutes, message, self.job_dir, bool(self.watchers))
        say(self.hang)

    def start_watching(self):
        try:
            sources = read_sources(WATCH_FILES)
        except OSError as error:
            say("the job is not watched: %s" % error)
            return
        for host in self.hosts:
            requested = self.spec.get("watch", {}).get(host["name"])
            if requested:
                self.watchers.append(
                    Watcher(
                        self.spec, host, watch_program(sources, bool(requested["count"])).encode()
                    )
                )
                self.watchers[-1].start()

    def stop_watching(self):
        for watcher in self.watchers:
            watcher.ask_to_end()
        deadline = time.monotonic() + WATCH_SECONDS
        self.seen = {watcher.name: watcher.end(deadline) for watcher in self.watchers}

    def nccl_transport(self):
        """Return the kinds of connections in NCCL's log, which is in separate files or in the
        ranks' logs.
        """
        names = sorted(os.listdir(self.job_dir))
        logs = [name for name in names if name.startswith("nccl.")] or [
            name for name in names if re.match(r"rank\.\d+\.log$", name)
        ]
        found = set()
        for name in logs[:NCCL_LOGS]:
            with open(
                os.path.join(self.job_dir, name), encoding="utf-8", errors="replace"
            ) as stream:
                found.update(_bandwidth.transports(stream.read(NCCL_BYTES)))
        return sorted(found)

    def what_was_seen(self):
        """Return result.json's gpus, fabric, nccl_transport and warnings.

        They do not affect the verdict, and a job does not fail without them.
        """
        found = {"gpus": {}, "fabric": {}, "nccl_transport": [], "warnings": []}
        if self.spec.get("watch"):
            try:
                found["gpus"], found["fabric"], found["warnings"] = watched(self.spec, self.seen)
                found["nccl_transport"] = self.nccl_transport()
            except (
                OSError,
                ValueError,
                TypeError,
                LookupError,
                AttributeError,
            ) as error:
                found["warnings"].append("what was seen of the job cannot be told: %r" % error)
        return found

    def finish(self, code, problems):
        """Sweep, collect and check the results and write them. Return the exit code."""
        launched = not problems
        ran = time.monotonic()
        problems = problems + sweep(
            self.spec["job_id"], self.cluster, {host["name"] for host in self.hosts}
        )
        swept = time.monotonic()
        records = _job_result.read_records(
            self.job_dir, len(self.places), REPORT_SECONDS if code == 0 else 0
        )
        rows = rank_rows(self.places, self.hosts, records)
        for row in rows:
            row["seen"] = self.output.ends.get(row["rank"])
        problems += judge(self.places, rows, self.job_dir)
        if launched and code not in (0, STOPPED, TIMED_OUT) and not _job_result.own_failures(rows):
            problems.insert(
                0,
                "%s itself ended with exit code %d on host %s. Output: %s"
                % (
                    self.spec["launcher"],
                    code,
                    self.failed_on,
                    os.path.join(self.job_dir, "job.log"),
                ),
            )
        longest = _job_result.longest(records)
        result = {
            "job_id": self.spec["job_id"],
            "launcher": self.spec["launcher"],
            "command": self.spec["command"],
            "versions": self.versions,
            "world_size": len(self.places),
            "ranks": _job_result.entries(rows),
            "metrics": _job_result.metrics(records),
            "seconds": {
                "launch": round(max(ran - self.began - longest, 0.0), 2),
                "ranks": longest,
                "sweep": round(swept - ran, 2),
                "total": round(time.monotonic() - self.began, 2),
            },
            "exit_code": _job_result.exit_code(code, rows, problems, code in (TIMED_OUT, STOPPED)),
            "problems": problems,
            "first_failed": None,
        }
        if result["exit_code"] and launched and code not in (STOPPED, TIMED_OUT):
            result["first_failed"] = self.first_failed(rows)
        result.update(self.what_was_seen(), hang=self.hang or None)
        result["warnings"] += [self.hang] * bool(self.hang)
        write_json(self.result_path, result)
        for line in summary(result):
            say(line)
        say("result: %s" % self.result_path)
        return result["exit_code"]

    def first_failed(self, rows):
        """Return result.json's entry of the rank that failed first, with its causes.

        The job's result does not depend on it.
        """
        for place, row in zip(self.places, rows):
            row["host"] = row["host"] or place["host"]
        memory = {name: found.get("memory") for name, found in self.seen.items()}
        try:
            return _job_result.first_failed(
                rows, _job_result.Logs(self.job_dir), self.of_launcher(), memory
            )
        except ImportError as error:
            say("the logs of the ranks were not searched: %s" % error)
            return None

    def of_launcher(self):
        """Return by rank what the launcher said of its end."""
        found = {}
        for line in self.output.launcher:
            match = re.search(
                rb"rank:? (\d+)\b[^\n]{0,200}exited on signal|process rank (\d+) ", line
            )
            if match:
                found[int(match.group(1) or match.group(2))] = line.decode("utf-8", "replace")
        return found

    def run(self):
        def stop(number, frame):
            self.stopped = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self.prepare_directory()
        say(
            "job %s: %d ranks on %s by %s"
            % (
                self.spec["job_id"],
                len(self.places),
                ", ".join(host["name"] for host in self.hosts),
                self.spec["launcher"],
            )
        )
        for note in self.spec["network"]["notes"]:
            say(note)
        try:
            return self.run_and_finish()
        finally:
            if self.allocation:
                self.allocation.release()

    def run_and_finish(self):
        """Wait for the hosts, run the ranks on them, and end what is left."""
        problems, code = [], STOPPED
        try:
            if self.spec.get("queue"):
                self.wait_in_queue()
            if not self.stopped:
                self.start_watching()
                code = self.launch()
        except JobError as error:
            code, problems = 1, [str(error)]
        except OSError as error:
            code, problems = (
                127,
                [
                    "%s cannot be started on host %s: %s"
                    % (self.spec["launcher"], self.cluster["head"], error)
                ],
            )
        self.stop_watching()
        if code == STOPPED and self.stopped:
            problems.append("the job was stopped before it ended")
        elif code == STOPPED and self.was_taken_back():
            problems.append(
                (
                    "Slurm ended the job: it was cancelled, reached its time limit, or gave way to "
                    "a job with a higher priority"
                )
            )
        elif code == TIMED_OUT:
            problems.append("the job was stopped after its timeout of %d s" % self.spec["timeout"])
        return self.finish(code, problems)


def stop_units():
    """Stop the units of all jobs. systemd then calls "finish", which ends a job on every host."""
    listed = subprocess.run(
        ["systemctl", "list-units", "--plain", "--no-legend", "--full", "trainyard-job-*.service"],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    units = [line.split()[0] for line in listed.splitlines() if line.strip()]
    for unit in units:
        say(unit)
    return subprocess.run(["systemctl", "stop"] + units, check=False).returncode if units else 0


def main(arguments):
    try:
        if arguments == ["stop"]:
            return stop_units()
        if arguments[:1] == ["sweep"] and len(arguments) == 2:
            problems = sweep(arguments[1], read_cluster())
            for problem in problems:
                say(problem)
            return 1 if problems else 0
        if arguments not in (["run"], ["finish"]) or "TRAINYARD_JOB" not in os.environ:
            sys.exit(__doc__)
        job = Job(json.loads(os.environ["TRAINYARD_JOB"]))
        if arguments == ["run"]:
            return job.run()
        if os.path.exists(job.result_path):
            return 0
        return job.finish(STOPPED, ["the job's runner was killed"])
    except JobError as error:
        say("failed: %s" % error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
