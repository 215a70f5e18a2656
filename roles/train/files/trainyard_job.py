# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one training job from the head: starts it, watches it, ends all of its ranks on every host, and writes result.json.

trainyard-job run            run the job described as JSON in the environment variable TRAINYARD_JOB
trainyard-job finish         clean up if "run" did not end by itself (called by systemd)
trainyard-job sweep JOB_ID   end all processes with this job ID on every host of the cluster
trainyard-job stop           stop all jobs launched by this host and print their units
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

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
TIMED_OUT = 124
STOPPED = 143

# Ends all processes with the job's ID in their environment. It also runs in the training containers, so it is Python 3.6.
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

# Prints the version of a Python package from its files, because importing a framework takes seconds. It also runs in the training containers, so it is
# Python 3.6.
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

# Modules in the folder of this file. A watcher reads them from its input, so that no file is written on a host.
WATCH_FILES = ("_bandwidth", "_job_watch")
# Starts the ranks of MindSpore on a host. The job's folder has a copy, because msrun calls it again in the containers.
LAUNCH_FILE = "trainyard_launch.py"
# The devices that CANN shows the ranks of a host, as numbers of the host.
NPUS = "ASCEND_RT_VISIBLE_DEVICES"
# Of role ascend: the NPUs of all hosts. The job's folder has a copy, which its containers can read.
RANK_TABLE, COPIED_TABLE = "/etc/trainyard/hccl.json", "hccl.json"
# Reads the program, whose length is the argument. The rest of the input ends it.
WATCH_START = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'watch', 'exec'))"


class JobError(Exception):
    """The job could not be started. The message is for the user."""


# --- pure functions: from the specification to commands, from the ranks' records to a verdict ---


def resolve(spec, cluster):
    """Return the job's hosts in rank order: name, slots and network settings from the specification, address from the cluster's file."""
    known = {host["name"]: host for host in cluster["hosts"]}
    on_fabric = spec["network"].get("addresses", {})
    hosts = []
    for asked in spec["hosts"]:
        if asked["name"] not in known:
            raise JobError("host %s is not in %s: run site.yml first" % (asked["name"], CLUSTER))
        address = known[asked["name"]]["address"]
        hosts.append(
            {
                "name": asked["name"],
                "slots": asked["slots"],
                "address": address,
                "fabric_address": on_fabric.get(asked["name"]) or address,
                "network": spec["network"]["environment"].get(asked["name"], {}),
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
    return {
        "TRAINYARD_JOB_ID": spec["job_id"],
        "TRAINYARD_JOB_DIR": job_dir,
        "PYTHONUNBUFFERED": "1",
    }


def assignments(environment):
    return ["%s=%s" % item for item in sorted(environment.items())]


def host_file(hosts):
    """Return the file for horovodrun's -hostfile. Its parser supports neither comments nor empty lines."""
    return "".join("%s slots=%d\n" % (host["address"], host["slots"]) for host in hosts)


def release(version):
    """Return the first two numbers of a version, or None if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def interface_option(version):
    """Return horovodrun's option for one interface. The plural exists since 0.25.0. All versions since 0.19.0 accept the singular."""
    return (
        "--network-interfaces" if (release(version) or (0, 0)) >= (0, 25) else "--network-interface"
    )


def torch_launcher(version):
    """Return (launcher command, whether it has --rdzv_conf). torchrun exists since PyTorch 1.10, its module since 1.9."""
    found = release(version)
    if found is None or found >= (1, 10):
        return ["torchrun"], True
    if found >= (1, 9):
        return ["python3", "-m", "torch.distributed.run"], True
    # With --use_env the ranks get LOCAL_RANK in their environment, and their command gets no additional argument.
    return ["python3", "-m", "torch.distributed.launch", "--use_env"], False


def horovodrun(spec, hosts, port, container, image_environment, job_dir, version=None):
    """Return the command on the head host. It uses the container's environment: docker exec adds the head's host name, which horovodrun sends to all."""
    environment = {"HOME": "/root"}
    environment.update(pair.split("=", 1) for pair in image_environment)
    # horovodrun writes the environment into command lines, which every user can read. Ranks on other hosts get the proxies from their login.
    environment = {
        name: value
        for name, value in environment.items()
        if not (name.lower().endswith("_proxy") and "@" in value)
    }
    # docker0 has the same address on every host, so an automatic search for a common interface may find it. With horovodrun all hosts have the same one.
    environment.update(hosts[0]["network"])
    # Time limit of a rank for its peers. The default of 30 s may be too short for loading a framework.
    environment["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(30, spec["start_timeout"]))
    environment.update(own_environment(spec, job_dir))
    environment.update(spec["environment"])
    command = [
        "docker",
        "exec",
        "--workdir",
        spec["workdir"],
        container,
        "env",
        "-i",
    ] + assignments(environment)
    command += [
        "horovodrun",
        "-np",
        str(sum(host["slots"] for host in hosts)),
        "-hostfile",
        os.path.join(job_dir, HOST_FILE),
        "-p",
        str(port),
        "--disable-cache",
        "--start-timeout",
        str(spec["start_timeout"]),
    ]
    if len(hosts) > 1:
        # On one host horovodrun accepts only the loopback interface.
        command += [interface_option(version), spec["network"]["interface"]]
    if spec["controller"] != "auto":
        command.append("--" + spec["controller"])
    # Again after horovodrun, which overrides NCCL_SOCKET_IFNAME and other variables of its environment.
    nccl = dict(
        {name: value for name, value in hosts[0]["network"].items() if name.startswith("NCCL_")},
        **nccl_log(spec, job_dir),
    )
    command += ["env"] + assignments(dict(nccl, **spec["environment"]))
    return command + RANK + spec["command"]


def master_address(spec, hosts):
    """Return the rendezvous address of torchrun, on the fabric network if the specification requests it, otherwise on the cluster network."""
    return hosts[0]["fabric_address" if spec.get("master_on_fabric") else "address"]


def environment_on(spec, host, job_dir):
    """Return the environment of a launcher that runs on each host."""
    environment = dict(host["network"])
    environment.update(nccl_log(spec, job_dir))
    environment.update(own_environment(spec, job_dir))
    environment.update(spec["environment"])
    return environment


def through_ssh(spec, host, command):
    """Return the command that runs another one in the container of a host."""
    return SSH + [
        host["address"],
        "cd %s && exec %s"
        % (shlex.quote(spec["workdir"]), " ".join(shlex.quote(word) for word in command)),
    ]


def torchrun(spec, hosts, index, master_port, job_dir, version=None):
    """Return the command on host number `index`, run in its container through ssh. Each host may have another interface name."""
    environment = environment_on(spec, hosts[index], job_dir)
    launcher, has_rendezvous = torch_launcher(version)
    # All versions accept underscores, only newer ones accept dashes.
    command = (
        ["env"]
        + assignments(environment)
        + launcher
        + [
            "--nnodes",
            str(len(hosts)),
            "--node_rank",
            str(index),
            "--nproc_per_node",
            str(hosts[index]["slots"]),
            "--master_addr",
            master_address(spec, hosts),
            "--master_port",
            str(master_port),
        ]
    )
    if has_rendezvous:
        command += ["--rdzv_conf", "timeout=%d" % spec["start_timeout"]]
    command += ["--no_python"] + RANK + spec["command"]
    return through_ssh(spec, hosts[index], command)


def launch_description(spec, hosts, index, master_port, job_dir, rank_table=""):
    """Return what trainyard-launch reads on host number `index`: the ranks of all hosts, and where they connect and leave their files."""
    wanted = spec.get("mindspore", {})
    devices = [
        int(number)
        for number in str(spec["environment"].get(NPUS) or "").split(",")
        if number.isdigit()
    ]
    folder = os.path.join(wanted["folder"], spec["job_id"]) if wanted.get("folder") else job_dir
    return {
        "job": spec["job_id"],
        "step": "0",
        "index": index,
        "count": len(hosts),
        "ports": {"master": master_port},
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
        "start": wanted.get("start", "auto"),
        "rank_table": rank_table,
    }


def mindspore(spec, hosts, index, job_dir):
    """Return the command on host number `index`, run in its container through ssh. Each host may have another interface name."""
    environment = environment_on(spec, hosts[index], job_dir)
    environment["TRAINYARD_LAUNCH_JOB"] = os.path.join(job_dir, "launch.%d.json" % index)
    command = (
        ["env"]
        + assignments(environment)
        + ["python3", os.path.join(job_dir, LAUNCH_FILE), "mindspore", "--"]
        + spec["command"]
    )
    return through_ssh(spec, hosts[index], command)


def watch_program(sources, with_gpus):
    """Return one program with the texts of several modules, so that no file is written on the host."""
    lines = ["import os, sys, types", "os.nice(10)"]
    for name, text in sources:
        lines += [
            "sys.modules[%r] = module = types.ModuleType(%r)" % (name, name),
            "exec(compile(%r, %r, 'exec'), module.__dict__)" % (text, name),
        ]
    # Ends the process even if a call of nvidia-smi hangs.
    return "\n".join(
        lines + ["try:", "    module.watch(%r)" % with_gpus, "finally:", "    os._exit(0)", ""]
    )


def watch_command(spec, host, size):
    """Return the command that watches a host, in its container. It has the job's ID in its environment, as the ranks have, so the sweep also ends it."""
    told = {
        name: value
        for name, value in dict(host["network"], **spec["environment"]).items()
        if name.startswith(("NCCL_", "GLOO_"))
    }
    words = (
        ["env"]
        + assignments(dict(told, TRAINYARD_JOB_ID=spec["job_id"]))
        + ["python3", "-c", WATCH_START, str(size)]
    )
    return SSH + [host["address"], " ".join(shlex.quote(word) for word in words)]


def nccl_log(spec, job_dir):
    """Return the variables that make NCCL log its connections into the job's folder, or nothing if the user configured NCCL's log."""
    if not any(wanted["count"] for wanted in spec.get("watch", {}).values()) or any(
        name.startswith("NCCL_DEBUG") for name in spec["environment"]
    ):
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT",
        "NCCL_DEBUG_FILE": os.path.join(job_dir, "nccl.%h.%p"),
    }


def watched(spec, seen, seen_gpus):
    """Return result.json's gpus and fabric by host, and warnings. C(seen) has the last line of each watcher, or C(said) with the reason if there is none."""
    gpus, fabric, warnings = {}, {}, []
    for host in sorted(spec.get("watch", {})):
        wanted, found = (
            spec["watch"][host],
            seen.get(host, {"said": "the job's runner ended before the watcher reported"}),
        )
        peaks = found.get("peaks", [])
        gpus[host] = dict(
            seen_gpus(wanted["count"], wanted["devices"], peaks),
            peak_utilization=peaks,
            looks=found.get("looks", 0),
        )
        fabric[host] = {
            name: found.get(name) for name in ("interface", "rdma", "sent_bytes", "received_bytes")
        }
        if "said" in found:
            warnings.append("host %s was not watched: %s" % (host, found["said"]))
            continue
        if gpus[host]["idle"]:
            warnings.append(
                "host %s: %s stayed idle, although the job requested %d. Check how its command chooses the GPU of a rank, and "
                "CUDA_VISIBLE_DEVICES"
                % (
                    host,
                    ", ".join(
                        "GPU %d (%d %% at most)" % (number, peaks[number])
                        for number in gpus[host]["idle"]
                    ),
                    wanted["count"],
                )
            )
        elif gpus[host]["busy"] is None:
            warnings.append(
                "host %s: it is not known whether the job used the GPUs that it requested (%d): %s"
                % (
                    host,
                    wanted["count"],
                    found.get("error")
                    or "nvidia-smi reported the utilization of %d"
                    % len([peak for peak in peaks if peak is not None]),
                )
            )
    return gpus, fabric, warnings


def strip_prefix(line):
    """Remove horovodrun's prefix, because a rank's line already starts with the rank and its host."""
    return re.sub(rb"^\[\d+(?:,\d+)?\]<std(?:out|err)>: ?(?=\[\d+ )", b"", line)


def rank_rows(places, hosts, records):
    """Return result.json's ranks. `host` is the host with the cluster address that the rank found on its machine."""
    owner = {host["address"]: host["name"] for host in hosts}
    rows = []
    for place in places:
        record = records.get(place["rank"])
        row = {
            "rank": place["rank"],
            "host": None,
            "slot": place["slot"],
            "exit_code": None,
            "checksum": None,
            "hostname": None,
            "container_id": None,
        }
        if record:
            found = [owner[address] for address in record["addresses"] if address in owner]
            report = record["report"] if isinstance(record["report"], dict) else {}
            row.update(
                host=found[0] if found else None,
                slot=record["slot"],
                exit_code=record["exit_code"],
                checksum=report.get("checksum"),
                hostname=record["hostname"],
                container_id=record["container_id"],
            )
        rows.append(row)
    return rows


def judge(places, rows, job_dir):
    """Return the problems of the ranks. Empty if there are none."""
    problems = []
    if all(row["hostname"] is None for row in rows):
        return ["no rank has started"]
    for place, row in zip(places, rows):
        log = os.path.join(job_dir, "rank.%d.log" % place["rank"])
        if row["hostname"] is None:
            problems.append("rank %d did not start on host %s" % (place["rank"], place["host"]))
        elif row["host"] != place["host"]:
            problems.append(
                "rank %d belongs on host %s, but ran on %s"
                % (
                    place["rank"],
                    place["host"],
                    row["host"] or "%s, which has no address of the cluster" % row["hostname"],
                )
            )
        if row["hostname"] is not None and row["exit_code"] is None:
            problems.append(
                "rank %d on host %s was killed and has no exit code. Log: %s"
                % (place["rank"], place["host"], log)
            )
        elif row["exit_code"]:
            problems.append(
                "rank %d on host %s ended with exit code %d. Log: %s"
                % (place["rank"], place["host"], row["exit_code"], log)
            )
    checksums = {row["checksum"] for row in rows}
    if checksums != {None} and len(checksums) > 1:
        problems.append(
            "the ranks do not have the same parameters after training: %s"
            % ", ".join(
                "rank %d has %s" % (row["rank"], (row["checksum"] or "none")[:12]) for row in rows
            )
        )
    return problems


def exit_code(launcher_code, rows, problems):
    """Return the job's exit code: that of the first failed rank, else that of the launcher, or 1 if only a check failed."""
    if launcher_code in (TIMED_OUT, STOPPED):
        return launcher_code
    return (own_failures(rows) + [launcher_code or (1 if problems else 0)])[0]


def own_failures(rows):
    """Return the exit codes of failed ranks, without those that were stopped because of another failure."""
    return [
        row["exit_code"] for row in rows if row["exit_code"] not in (None, 0, 128 + signal.SIGTERM)
    ]


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
    if result["metrics"]:
        lines.append("  ".join("%s %s" % item for item in sorted(result["metrics"].items())))
    for host in sorted(result["fabric"]):
        fabric, gpus = result["fabric"][host], result["gpus"][host]
        if fabric["sent_bytes"] is not None:
            lines.append(
                "host %s  %s  sent %.1f MB  received %.1f MB%s"
                % (
                    host,
                    fabric["interface"],
                    fabric["sent_bytes"] / 1e6,
                    fabric["received_bytes"] / 1e6,
                    "  GPUs busy %s of %d"
                    % ("?" if gpus["busy"] is None else gpus["busy"], gpus["requested"])
                    if gpus["requested"]
                    else "",
                )
            )
    if result["nccl_transport"]:
        lines.append("NCCL connected the ranks by %s" % ", ".join(result["nccl_transport"]))
    lines.extend("warning: " + warning for warning in result["warnings"])
    lines.extend("failed: " + problem for problem in result["problems"])
    return lines


# --- functions with side effects ---


def say(text):
    sys.stdout.write("trainyard: %s\n" % text)
    sys.stdout.flush()


def read_json(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def write_json(path, value):
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2)
        stream.write("\n")
    os.chmod(path + ".new", 0o644)
    os.rename(path + ".new", path)


def read_cluster():
    cluster = read_json(CLUSTER)
    if cluster is None:
        raise JobError("%s cannot be read on this host: run site.yml first" % CLUSTER)
    return cluster


def sweep_host(job_id, host, is_head):
    """Return None if no process of the job runs on the host, else the reason why this is not known."""
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
    """End the job's processes on its hosts in parallel, and always on the head, where the launcher ran. Return the problems."""
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


def load_watch():
    """Return the modules of the watchers, for their pure functions. They are in the folder of this file."""
    sys.dont_write_bytecode = True
    return [__import__(name) for name in WATCH_FILES]


class Watcher(threading.Thread):
    """Watches one host while the job runs. If it fails, the job continues without it."""

    def __init__(self, spec, host, program):
        super().__init__(daemon=True)
        self.name = host["name"]
        self.command, self.program = watch_command(spec, host, len(program)), program
        # The local end of the connection also ends with the job.
        self.environment = dict(os.environ, TRAINYARD_JOB_ID=spec["job_id"])
        self.process = None
        self.last, self.said = None, "it did not answer"

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
                self.said = "it ended at once"
            for line in self.process.stdout:
                try:
                    found = json.loads(line.decode(errors="replace"))
                except ValueError:
                    found = None
                if isinstance(found, dict):
                    self.last = found
                elif line.strip():
                    self.said = line.decode(errors="replace").strip()
        except (OSError, ValueError) as error:
            # Closed at the job's end, or never started.
            self.said = str(error)

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
        return self.last or {"said": self.said}


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
        self.process.stdin.close()
        if not self.granted.is_set():
            self.process.terminate()
        # While slurmctld does not answer, salloc tries again. Killed, it would leave the hosts taken.
        self.process.wait()


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
        self.output_lock = threading.Lock()

    def records(self):
        found = {}
        for place in self.places:
            record = read_json(os.path.join(self.job_dir, "rank.%d.json" % place["rank"]))
            if record:
                found[place["rank"]] = record
        return found

    def prepare_directory(self):
        """Remove the results of an earlier job with the same ID."""
        os.makedirs(self.job_dir, exist_ok=True)
        for name in os.listdir(self.job_dir):
            if name in ("result.json", HOST_FILE, COPIED_TABLE) or re.match(
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
        """Return the version of a package in the container of the command, or None if it is not known. The launcher then reports a missing package."""
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
        """Return the rendezvous port of torchrun: the requested one, or a free one, which differs for parallel jobs."""
        asked = int(self.spec.get("master_port") or 0)
        on_head = self.hosts[0]["name"] == self.cluster["head"]
        if asked and not on_head:
            return asked
        address = master_address(self.spec, self.hosts) if on_head else ""
        with socket.socket() as probe:
            # Like torchrun: a closing connection of the last job does not occupy the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, asked))
            except OSError as error:
                raise JobError(
                    "train_master_port: '%d' cannot be used at %s on host %s: %s. Set another port, or 0 for a free port"
                    % (asked, address, self.hosts[0]["name"], error)
                ) from error
            return probe.getsockname()[1]

    def commands(self):
        if self.spec["launcher"] == "horovodrun":
            container, environment = self.cluster["container"], self.container_environment()
            with open(os.path.join(self.job_dir, HOST_FILE), "w", encoding="utf-8") as stream:
                stream.write(host_file(self.hosts))
            version = self.version("horovod", ["docker", "exec", "-i", container])
            return [
                horovodrun(
                    self.spec,
                    self.hosts,
                    self.cluster["port"],
                    container,
                    environment,
                    self.job_dir,
                    version,
                )
            ]
        port = self.master_port()
        if self.spec["launcher"] == "mindspore":
            return self.mindspore_commands(port)
        # All hosts have the same image.
        version = self.version("torch", SSH + [self.hosts[0]["address"]])
        return [
            torchrun(self.spec, self.hosts, index, port, self.job_dir, version)
            for index in range(len(self.hosts))
        ]

    def mindspore_commands(self, port):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), LAUNCH_FILE)
        try:
            shutil.copyfile(source, os.path.join(self.job_dir, LAUNCH_FILE))
        except OSError as error:
            raise JobError(
                "%s cannot be copied into the job's folder: %s. Run train.yml again"
                % (source, error)
            ) from error
        table, copied = (
            self.spec.get("mindspore", {}).get("rank_table")
            or (RANK_TABLE if os.path.exists(RANK_TABLE) else ""),
            "",
        )
        if table:
            copied = os.path.join(self.job_dir, COPIED_TABLE)
            try:
                shutil.copyfile(table, copied)
            except OSError as error:
                raise JobError(
                    "train_rank_table: '%s' cannot be read on host %s: %s. Name a rank table on this host or on the share"
                    % (table, self.cluster["head"], error.strerror)
                ) from error
        for index in range(len(self.hosts)):
            write_json(
                os.path.join(self.job_dir, "launch.%d.json" % index),
                launch_description(self.spec, self.hosts, index, port, self.job_dir, copied),
            )
        self.version("mindspore", SSH + [self.hosts[0]["address"]])
        return [
            mindspore(self.spec, self.hosts, index, self.job_dir)
            for index in range(len(self.hosts))
        ]

    def copy_output(self, stream):
        for line in stream:
            with self.output_lock:
                sys.stdout.buffer.write(strip_prefix(line))
                sys.stdout.buffer.flush()

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

    def launch(self):
        """Return the launcher's exit code. With several launchers, return as soon as one fails, with its code."""
        children = []
        for command in self.commands():
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            threading.Thread(target=self.copy_output, args=(child.stdout,), daemon=True).start()
            children.append(child)
        deadline = self.began + self.spec["timeout"] if self.spec["timeout"] else None
        code = None
        while code is None:
            time.sleep(0.05)
            codes = [child.poll() for child in children]
            bad = [each for each in codes if each]
            if self.stopped or self.was_taken_back():
                code = STOPPED
            elif bad:
                code = bad[0] if bad[0] > 0 else 128 - bad[0]
                self.failed_on = (
                    self.cluster["head"]
                    if self.spec["launcher"] == "horovodrun"
                    else self.hosts[codes.index(bad[0])]["name"]
                )
            elif all(each == 0 for each in codes):
                code = 0
            elif deadline and time.monotonic() > deadline:
                code = TIMED_OUT
        if code and any(child.poll() is None for child in children):
            # Gives the others time to print why they lost their peer.
            time.sleep(0.5)
        for child in children:
            if child.poll() is None:
                child.terminate()
        return code

    def start_watching(self):
        sources = []
        try:
            for name in WATCH_FILES:
                with open(
                    os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py"),
                    encoding="utf-8",
                ) as stream:
                    sources.append((name, stream.read()))
        except OSError as error:
            say("the job is not watched: %s" % error)
            return
        for host in self.hosts:
            wanted = self.spec.get("watch", {}).get(host["name"])
            if wanted:
                self.watchers.append(
                    Watcher(self.spec, host, watch_program(sources, bool(wanted["count"])).encode())
                )
                self.watchers[-1].start()

    def stop_watching(self):
        for watcher in self.watchers:
            watcher.ask_to_end()
        deadline = time.monotonic() + WATCH_SECONDS
        self.seen = {watcher.name: watcher.end(deadline) for watcher in self.watchers}

    def nccl_transport(self, transports):
        """Return the kinds of connections in NCCL's log, which is in separate files or in the ranks' logs."""
        names = sorted(os.listdir(self.job_dir))
        logs = [name for name in names if name.startswith("nccl.")] or [
            name for name in names if re.match(r"rank\.\d+\.log$", name)
        ]
        found = set()
        for name in logs[:NCCL_LOGS]:
            with open(
                os.path.join(self.job_dir, name), encoding="utf-8", errors="replace"
            ) as stream:
                found.update(transports(stream.read(NCCL_BYTES)))
        return sorted(found)

    def what_was_seen(self):
        """Return result.json's gpus, fabric, nccl_transport and warnings. They do not affect the verdict, and a job does not fail without them."""
        found = {"gpus": {}, "fabric": {}, "nccl_transport": [], "warnings": []}
        if self.spec.get("watch"):
            try:
                bandwidth, watch = load_watch()
                found["gpus"], found["fabric"], found["warnings"] = watched(
                    self.spec, self.seen, watch.seen_gpus
                )
                found["nccl_transport"] = self.nccl_transport(bandwidth.transports)
            except (
                ImportError,
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
        records = self.records()
        while (
            code == 0
            and time.monotonic() - swept < REPORT_SECONDS
            and (
                len(records) < len(self.places)
                or any(record["exit_code"] is None for record in records.values())
            )
        ):
            time.sleep(0.2)
            records = self.records()
        rows = rank_rows(self.places, self.hosts, records)
        problems += judge(self.places, rows, self.job_dir)
        if launched and code not in (0, STOPPED, TIMED_OUT) and not own_failures(rows):
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
        report = (records.get(0) or {}).get("report")
        longest = max([record.get("seconds", 0.0) for record in records.values()] or [0.0])
        result = {
            "job_id": self.spec["job_id"],
            "launcher": self.spec["launcher"],
            "command": self.spec["command"],
            "versions": self.versions,
            "world_size": len(self.places),
            "ranks": rows,
            "metrics": report.get("metrics", {}) if isinstance(report, dict) else {},
            "seconds": {
                "launch": round(max(ran - self.began - longest, 0.0), 2),
                "ranks": longest,
                "sweep": round(swept - ran, 2),
                "total": round(time.monotonic() - self.began, 2),
            },
            "exit_code": exit_code(code, rows, problems),
            "problems": problems,
        }
        result.update(self.what_was_seen())
        write_json(self.result_path, result)
        for line in summary(result):
            say(line)
        say("result: %s" % self.result_path)
        return result["exit_code"]

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
                "Slurm ended the job: it was cancelled, reached its time limit, or gave way to a job with a higher priority"
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
