# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts the ranks of a training program on the hosts of a job.

    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- trainyard-launch torchrun train.py
    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- trainyard-launch mpirun python3 train.py
    srun -N2 --gpus-per-node=8 trainyard-run IMAGE -- trainyard-launch mindspore train.py
    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- trainyard-launch run ./train.sh

Each worker of the step calls it. torchrun runs on each of them. horovodrun and mpirun run on worker
0, and the others run an sshd of the job until it ends: as the user, with keys that were made for
the step. With run, worker 0 has an sshd, too, and its command calls a launcher itself.
trainyard-run has prepared hosts, ports and keys. Arguments of the user win over those of this
program.

mindspore runs on each worker and starts a rank for each of its NPUs, by msrun if MindSpore has it, else with a rank table. Its options come before the command:
--start=auto|msrun|rank_table, --rank-table=FILE (of the whole cluster or of the job) and --folder=DIR for the working folders. Role train uses it, too.
This runs in training images, so it is Python 3.6 with only the standard library. _launchers.py is beside it.
"""

import ctypes
import glob
import hmac
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import contextlib

# Nothing is written beside this file, which may be in the folder of a job.
sys.dont_write_bytecode = True
try:
    import _launchers
except ImportError:
    # In the collection.
    from ansible_collections.trainyard.gpu.plugins.module_utils import _launchers

INSIDE = "/run/trainyard"
#: What people call. C(rank) and C(sshd) are for this program itself.
LAUNCHERS = (*_launchers.LAUNCHERS, "run")
#: Set in a command of worker 0 whose other workers run their sshd already.
READY = "TRAINYARD_WORKERS_READY"
#: Seconds for the other workers: their images start at other times.
PEER_SECONDS = 120
NOT_STARTED = 125
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
#: Variables that describe the step of this worker. mpirun and its daemons would take them for their
#: own and start through Slurm.
OF_SLURM = (
    "SLURM_",
    "PMI_",
    "PMIX_",
    "PMI2_",
    "HYDRA_",
    "I_MPI_HYDRA_",
    "OMPI_MCA_plm_slurm",
    "PRTE_MCA_plm_slurm",
)
KEPT_OF_SLURM = ("SLURM_JOB_ID",)
#: Of role train: path of the description of the job, in place of the one that trainyard-run has
#: written.
DESCRIPTION = "TRAINYARD_LAUNCH_JOB"
#: Path of what each rank of this host is started with.
SETTINGS = "TRAINYARD_LAUNCH_RANK"
#: Runs the command of a rank, and records how it ended.
RANK = "/usr/local/lib/trainyard/rank"
#: A rank table and the connections of msrun exclude each other. msrun sets the last two itself.
OF_RANK_TABLE = ("MINDSPORE_HCCL_CONFIG_PATH", "RANK_TABLE_FILE", "RANK_ID", "DEVICE_ID")
OF_MSRUN = (
    "MS_ROLE",
    "MS_NODE_ID",
    "MS_WORKER_NUM",
    "MS_SCHED_HOST",
    "MS_SCHED_PORT",
    "MS_TOPO_TIMEOUT",
)
#: Errors only, in MindSpore's and CANN's counting: the others are hundreds of lines per rank.
LOG_LEVELS = {"GLOG_v": "3", "ASCEND_GLOBAL_LOG_LEVEL": "3"}
#: Chips whose eight devices are two rings of four, as the rank table before version 1.0 names them.
#: trainyard-run refuses them, too.
RINGS = r"(Ascend)?910(A|Pro[AB]?|Premium[AB]?)?$"
#: Seconds until the ranks of this host are ended after one of them has failed, for the messages of
#: the others; and until SIGKILL.
FAILURE_SECONDS, END_SECONDS = 3, 5


class Refused(Exception):
    """The ranks cannot be started. The message is for the user."""


# --- pure functions: from the job to commands and files ---


def mindspore_options(arguments):
    """Return the options before the command, and the command."""
    options, words = {"start": "auto", "rank-table": "", "folder": ""}, list(arguments)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equal, value = word[2:].partition("=")
        if not word.startswith("--") or name not in options or not equal:
            raise Refused(
                (
                    "'%s' is not an option of mindspore; use --start=auto|msrun|rank_table, "
                    "--rank-table=FILE or --folder=DIR, then the command"
                )
                % word
            )
        options[name] = value
    if options["start"] not in ("auto", "msrun", "rank_table"):
        raise Refused(
            "--start: '%s' is not possible; use auto, msrun or rank_table" % options["start"]
        )
    if not words:
        raise Refused(
            (
                "mindspore: there is no command; write it last, as in: trainyard-launch mindspore "
                "train.py"
            )
        )
    # As torchrun and msrun do it.
    return options, ["python3"] + words if words[0].endswith(".py") else words


def mindspore_start(requested, has_msrun, table, ranks):
    """Return C(msrun) or C(rank_table). C(table) is the path of a rank table, or empty."""
    if requested == "msrun" and not has_msrun:
        raise Refused(
            (
                "--start=msrun: the image has no msrun, which MindSpore has since 2.3; use a newer "
                "MindSpore, or --start=rank_table"
            )
        )
    if requested != "rank_table" and has_msrun:
        return "msrun"
    if not table and ranks > 1:
        raise Refused(
            (
                "%s, and there is no rank table; name one with --rank-table=FILE, or use an image "
                "with MindSpore 2.3 or newer, which needs none"
            )
            % ("--start=rank_table was requested" if has_msrun else "the image has no msrun")
        )
    return "rank_table"


def check_ranks(job):
    """Refuse what HCCL and msrun hang on, or number twice."""
    entries = job["entries"]
    if any(entry.get("local") for entry in entries):
        raise Refused(
            (
                "mindspore needs one worker per host, which starts a rank for each of its NPUs; "
                "use --ntasks-per-node=1"
            )
        )
    if len({entry["slots"] for entry in entries}) > 1:
        raise Refused(
            (
                "mindspore needs as many ranks on each host, but they have %s; request as many "
                "NPUs on each"
            )
            % ", ".join("%s %d" % (entry["address"], entry["slots"]) for entry in entries)
        )


def check_rings(servers, chip):
    """Refuse devices that are not connected with each other. C(servers) has the devices by
    address.
    """
    for address, devices in servers.items():
        found = {int(device) for device in devices}
        if (
            re.match(RINGS, chip)
            and not any(found <= ring for ring in (set(range(4)), set(range(4, 8))))
            and found != set(range(8))
        ):
            raise Refused(
                "host %s: NPUs %s of an Ascend %s cannot work together, because devices 0-3 "
                "and 4-7 are rings of their own; use devices of one "
                "ring, or all eight" % (address, ", ".join(map(str, sorted(found))), chip)
            )


def devices_in(table):
    """Return [(server, device)] of a cluster's rank table in the form of version 1.0, or of the one
    before it.
    """
    if "group_list" in table:
        return [
            (instance["server_id"], device)
            for group in table["group_list"]
            for instance in group["instance_list"]
            for device in instance["devices"]
        ]
    return [
        (server["server_id"], device)
        for server in table["server_list"]
        for device in server["device"]
    ]


def known_devices(table):
    """Return {(server, id): device} of a complete rank table."""
    try:
        if table.get("status") != "completed":
            raise Refused(
                (
                    "the rank table is not complete: its status is '%s', and 'completed' was "
                    "expected; wait until it is, or write it again"
                )
                % table.get("status")
            )
        return {
            (str(server), str(device["device_id"])): device for server, device in devices_in(table)
        }
    except (KeyError, TypeError, AttributeError):
        raise Refused(
            (
                "the rank table has neither the form of version 1.0 (server_list) nor the one "
                "before it (group_list); write it with hccl_rank_table"
            )
        ) from None


def devices_of_entry(entry, known):
    """Return the devices of a job on one of its hosts. C(known) is from known_devices."""
    own = sorted(int(device) for server, device in known if server == entry["address"])
    devices = entry.get("devices") or own
    missing = [str(device) for device in devices if device not in own]
    if missing or len(devices) != entry["slots"]:
        raise Refused(
            (
                "the rank table has devices %s of host %s, but the job needs %s there; write the "
                "table again with all hosts and devices"
            )
            % (
                ", ".join(map(str, own)) or "none",
                entry["address"],
                ", ".join(map(str, entry.get("devices") or [])) or "%d" % entry["slots"],
            )
        )
    return [known[entry["address"], str(device)] for device in devices]


def job_table(table, job):
    """Return the rank table of the job: from that of a cluster the devices of the job, in the order
    of its ranks, in the same format.
    """
    known = known_devices(table)
    by_host = {entry["address"]: devices_of_entry(entry, known) for entry in job["entries"]}
    numbers = {
        address: [device["device_id"] for device in devices] for address, devices in by_host.items()
    }
    check_rings(numbers, str(table.get("chip_info") or ""))
    if "group_list" in table:
        return group_table(table, by_host)
    return server_table(table, by_host)


def server_table(table, by_host):
    """Return the rank table in the form of version 1.0. C(by_host) are the devices by address."""
    former = {str(server["server_id"]): server for server in table["server_list"]}
    servers, rank = [], 0
    for address, devices in by_host.items():
        numbered = [
            dict(device, rank_id=str(number)) for number, device in enumerate(devices, rank)
        ]
        servers.append(dict(former[address], device=numbered))
        rank += len(devices)
    return dict(table, server_count=str(len(servers)), server_list=servers)


def group_table(table, by_host):
    """Return the rank table in the form before version 1.0. C(by_host) are the devices by
    address.
    """
    ranks = [(address, device) for address, devices in by_host.items() for device in devices]
    first = [device["device_id"] for device in next(iter(by_host.values()))]
    group = dict(
        table["group_list"][0],
        device_num=str(len(ranks)),
        server_num=str(len(by_host)),
        instance_count=str(len(ranks)),
        instance_list=[
            {"devices": [device], "rank_id": str(rank), "server_id": server}
            for rank, (server, device) in enumerate(ranks)
        ],
    )
    return dict(
        table,
        group_count="1",
        group_list=[group],
        para_plane_nic_name=["eth%s" % device for device in first],
        para_plane_nic_num=str(len(first)),
    )


def mindspore_environment(environment, job):
    """Return what all ranks of this host have, without what an earlier launcher has left.

    Values of the user win, but not those that number the ranks.
    """
    me = job["entries"][job["index"]]
    kept = {
        name: value for name, value in environment.items() if name not in OF_RANK_TABLE + OF_MSRUN
    }
    address = me.get("fabric_address") or me["address"]
    # Otherwise both take the first interface, which may be one of containers that has the same
    # address on each host.
    defaults = dict(
        LOG_LEVELS,
        HCCL_IF_IP=address,
        HCCL_CONNECT_TIMEOUT=str(min(7200, max(120, _launchers.connect_seconds(job)))),
    )
    return dict(
        defaults,
        **dict(
            kept,
            MS_WORKER_IP=address,
            RANK_SIZE=str(_launchers.slots(job)),
            DEVICE_NUM=str(me["slots"]),
        ),
    )


def rank_environment(environment, job, local, table):
    """Return the environment of a rank without msrun.

    DEVICE_ID counts the devices that the container has, and the rank table names those of the host.
    """
    own = {
        "RANK_ID": str(_launchers.first_rank(job, job["index"]) + local),
        "DEVICE_ID": str(local),
    }
    if table:
        # MindSpore before 2 reads the first one first.
        own.update(MINDSPORE_HCCL_CONFIG_PATH=table, RANK_TABLE_FILE=table)
    return dict(environment, **own)


def rank_command(words, environment, records):
    """Return the command of a rank, which keeps its log and record in the folder C(records)."""
    former = environment.get("TRAINYARD_JOB_DIR")
    # The folder of the job has the record of a worker under the same name.
    own = (
        []
        if former == records
        else ["env"]
        + (["-u", "TRAINYARD_JOB_DIR"] if former is None else ["TRAINYARD_JOB_DIR=" + former])
    )
    return [sys.executable, RANK] + own + words


def failures(ranks):
    """Return the ranks that failed, the first one first; those that were killed only if no other
    failed: msrun kills the ranks beside one that has failed.

    C(ranks) has rank, code (None: no record of one) and end (None: it runs) of each.
    """
    failed = sorted(
        (each for each in ranks if each["end"] is not None and each["code"] != 0),
        key=lambda each: (each["end"], each["rank"]),
    )
    return [each for each in failed if each["code"] not in (None, 128 + signal.SIGTERM)] or failed[
        :1
    ]


def common_report(reports):
    """Return what the first of some ranks has reported, and a problem if they have not trained the
    same; reports are by rank.
    """
    checksums = {rank: report.get("checksum") for rank, report in reports.items()}
    problem = (
        ""
        if len(set(checksums.values())) < 2
        else "the ranks do not have the same parameters after training: %s"
        % ", ".join(
            "rank %d has %s" % (rank, (checksums[rank] or "none")[:12])
            for rank in sorted(checksums)
        )
    )
    return reports.get(min(reports)) if reports else None, problem


def command_of(launcher: str, job: dict, arguments: list) -> list:
    """Return the command of a launcher that this worker starts, or with C(run) that of the user."""
    if launcher == "run":
        return arguments
    if launcher == "torchrun":
        me = job["entries"][job["index"]]
        return _launchers.torchrun(job, ["--local_addr=%s" % me["address"]] + arguments)
    if launcher == "horovodrun" and job["count"] == 1:
        return _launchers.horovodrun(job, arguments)
    return _launchers.LAUNCHERS[launcher].command(dict(job, host_file=INSIDE + "/hosts"), arguments)


def launch_environment(environment, launcher):
    """Return the environment of the launcher.

    Options of Open MPI are variables here, so that arguments of the user win over them.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if launcher == "torchrun" or name in KEPT_OF_SLURM or not name.startswith(OF_SLURM)
    }
    kept["PATH"] = INSIDE + "/bin:" + kept.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    if launcher not in ("mpirun", "run"):
        return kept
    networks = (kept.get(name, "") for name in ("TRAINYARD_NETWORK", "TRAINYARD_FABRIC"))
    return dict(_launchers.open_mpi(INSIDE + "/bin/ssh", *networks), **kept)


def sshd_config(job, user, folder=INSIDE):
    """Return the configuration of the job's sshd.

    It accepts the key of the step only, and only the user who runs it.
    """
    lines = [
        "Port %d" % job["ports"]["ssh"],
        "ListenAddress %s" % job["entries"][job["index"]]["address"],
        "HostKey %s/ssh/host_key" % folder,
        "AuthorizedKeysFile %s/ssh/authorized_keys" % folder,
        "AuthenticationMethods publickey",
        "AllowUsers %s" % user,
        "PidFile none",
        "UsePAM no",
        "PermitRootLogin no",
        "PermitUserEnvironment no",
        "AllowTcpForwarding no",
        "AllowAgentForwarding no",
        "X11Forwarding no",
        "PermitTunnel no",
        "PrintMotd no",
        "MaxStartups 1024",
        "LogLevel FATAL",
        "ForceCommand %s/bin/session" % folder,
    ]
    return "\n".join(lines) + "\n"


def client_config(job, user, folder=INSIDE):
    lines = [
        "Host *",
        "  Port %d" % job["ports"]["ssh"],
        "  User %s" % user,
        "  IdentityFile %s/ssh/id" % folder,
        "  IdentitiesOnly yes",
        "  UserKnownHostsFile %s/ssh/known_hosts" % folder,
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
        "  BatchMode yes",
        "  PreferredAuthentications publickey",
        "  ConnectTimeout 10",
        "  LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def known_hosts(job):
    key = " ".join(job["keys"]["host_public"].split()[:2])
    return "".join(
        "[%s]:%d %s\n" % (address, job["ports"]["ssh"], key)
        for address in sorted({entry["address"] for entry in job["entries"]})
    )


def session_text(environment):
    """Return the environment of this worker for sessions of the job's sshd, which itself gives
    nearly none.
    """
    return "".join(
        "export %s=%s\n" % (name, shlex.quote(value))
        for name, value in sorted(environment.items())
        if name.replace("_", "a").isalnum()
    )


#: What a session of the job's sshd runs: the command that was sent.
SESSION_PROGRAM = (
    "#!/bin/sh\n. " + INSIDE + '/ssh/environment\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n'
)
#: Host keys are checked although horovodrun's own ssh options switch that off: ssh uses the first
#: value, and this program puts C(yes) before them.
SSH_PROGRAM = "#!/bin/sh\nexec %s -F " + INSIDE + '/ssh/config -o StrictHostKeyChecking=yes "$@"\n'


def files(job, user, ssh, environment):
    """Return the files of the ssh connections: path below the folder of the task, content
    and mode.
    """
    keys = job["keys"]
    return [
        ("ssh/id", keys["user_private"], 0o600),
        ("ssh/host_key", keys["host_private"], 0o600),
        ("ssh/authorized_keys", keys["user_public"], 0o600),
        ("ssh/known_hosts", known_hosts(job), 0o600),
        ("ssh/config", client_config(job, user), 0o600),
        ("ssh/sshd_config", sshd_config(job, user), 0o600),
        ("bin/ssh", SSH_PROGRAM % ssh, 0o700),
        ("bin/session", SESSION_PROGRAM, 0o700),
        ("ssh/environment", session_text(environment), 0o600),
    ]


def proof(job, nonce, index):
    """Return what shows that a worker belongs to the step: only its workers have the key."""
    return hmac.new(
        job["keys"]["user_private"].encode(), ("%s %d" % (nonce, index)).encode(), "sha256"
    ).hexdigest()


# --- the container ---


def read_job(folder=INSIDE):
    path = os.environ.get(DESCRIPTION) or folder + "/job.json"
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        raise Refused(
            (
                "%s is missing: this is not a container of trainyard-run; start it as in: srun "
                "trainyard-run IMAGE -- trainyard-launch ..."
            )
            % path
        ) from None


def find(program, package):
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not path:
        raise Refused(
            "the image has no %s; use an image with %s, such as the one of role training_image"
            % (program, package)
        )
    return path


def write_files(entries, folder=INSIDE):
    for name, content, mode in entries:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8"
        ) as stream:
            stream.write(content)
        os.chmod(path, mode)


def lines_of(connection):
    """Return the next line of a connection, without reading more."""
    data = b""
    while not data.endswith(b"\n") and len(data) < 4096:
        part = connection.recv(1)
        if not part:
            break
        data += part
    return data.decode("ascii", "replace").strip()


class Workers(object):
    """Worker 0's connections to the others. One that breaks ends the launcher."""

    def __init__(self, job):
        self.job, self.connections, self.ended, self.lost = job, {}, False, None

    def wait(self, seconds=PEER_SECONDS, task="start its sshd"):
        """Wait until the sshd, or the ranks, of each other host can start."""
        expected = {
            index
            for index, entry in enumerate(self.job["entries"])
            if index and entry["local"] == 0
        }
        address = self.job["entries"][0]["address"]
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, self.job["ports"]["control"]))
        server.listen(1024)
        deadline = time.time() + seconds
        while set(self.connections) != expected:
            server.settimeout(max(0.1, deadline - time.time()))
            try:
                connection = server.accept()[0]
                connection.settimeout(10)
                nonce = os.urandom(16).hex()
                connection.sendall((nonce + "\n").encode())
                index, _blank, answer = lines_of(connection).partition(" ")
                if (
                    index.isdigit()
                    and int(index) in expected
                    and hmac.compare_digest(answer, proof(self.job, nonce, int(index)))
                ):
                    self.connections[int(index)] = connection
                else:
                    connection.close()
            except OSError:
                pass
            if time.time() > deadline:
                missing = sorted(expected - set(self.connections))
                raise Refused(
                    (
                        "worker %s did not %s within %d seconds; each worker of the step has to "
                        "call trainyard-launch"
                    )
                    % (", ".join(map(str, missing)), task, seconds)
                )
        server.close()

    def watch(self, child):
        for index, connection in self.connections.items():
            threading.Thread(
                target=self._watch, args=(index, connection, child), daemon=True
            ).start()

    def _watch(self, index, connection, child):
        connection.settimeout(None)
        received = b""
        with contextlib.suppress(OSError):
            received = connection.recv(1)
        # One that has ended well says so.
        if not received and not self.ended:
            self.lost = index
            child.terminate()

    def end(self, code):
        self.ended = True
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(("end %d\n" % code).encode())


def run(command, environment, before=None):
    """Run a command, pass the signals of this process on to it, and return its exit code."""
    find(command[0], command[0])
    child = subprocess.Popen(command, env=environment)
    for number in SIGNALS:
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    if before:
        before(child)
    return exit_code(child.wait())


def exit_code(code):
    """Return the exit code of a child as a shell has it: 128 and the number of the signal that
    ended it.
    """
    return 128 - code if code < 0 else code


def lead(job, launcher, arguments, environment):
    """Worker 0 of several: start the launcher when all others are ready, and end them after it."""
    workers = Workers(job)
    workers.wait()
    # What a person calls may also connect to its own host: they see all hosts in the host file.
    own = start_sshd(job) if launcher == "run" else None
    code = run(
        command_of(launcher, job, arguments),
        dict(environment, **{READY: job["step"]}),
        workers.watch,
    )
    workers.end(code)
    if own:
        own.kill()
    if workers.lost is not None:
        print(
            "trainyard-launch: worker %d on %s has gone"
            % (workers.lost, job["entries"][workers.lost]["address"]),
            file=sys.stderr,
        )
        return code or 1
    return code


def connect(job, seconds=PEER_SECONDS):
    """Return the connection of a worker to worker 0."""
    first = (job["entries"][0]["address"], job["ports"]["control"])
    deadline = time.time() + seconds
    while True:
        try:
            connection = socket.create_connection(first, timeout=10)
            connection.sendall(
                (
                    "%d %s\n" % (job["index"], proof(job, lines_of(connection), job["index"]))
                ).encode()
            )
            connection.settimeout(None)
            return connection
        except OSError:
            if time.time() > deadline:
                raise Refused(
                    "worker 0 on %s did not answer within %d seconds; see its messages"
                    % (first[0], seconds)
                ) from None
            time.sleep(0.2)


def start_sshd(job, seconds=10):
    """Start the sshd of the job on this host, and wait until it listens."""
    command = [find("sshd", "openssh-server"), "-D", "-e", "-f", INSIDE + "/ssh/sshd_config"]
    address = (job["entries"][job["index"]]["address"], job["ports"]["ssh"])
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    deadline = time.time() + seconds
    while time.time() < deadline and child.poll() is None:
        try:
            socket.create_connection(address, timeout=1).close()
            return child
        except OSError:
            time.sleep(0.05)
    child.kill()
    raise Refused(
        "sshd does not listen on port %d of %s; see its message above" % (address[1], address[0])
    )


def serve(job):
    """Other workers: run sshd until worker 0 ends."""
    if job["entries"][job["index"]]["local"]:
        # The sshd of a host runs in the container of its first task.
        return 0
    child = start_sshd(job)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        connection = connect(job)
        message = lines_of(connection)
    finally:
        child.kill()
    if not message.startswith("end "):
        raise Refused("worker 0 on %s has gone" % job["entries"][0]["address"])
    return 0


# --- ranks of MindSpore on this host ---


def end_with_parent(launcher):
    """Have the kernel kill this process when its parent ends.

    Exit if C(launcher), the process of the job on this host, has ended before.

    The kernel sends no signal for a parent that ended earlier. If msrun has, this process is a
    child of the launcher, which ends it.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if launcher not in parents():
        sys.exit(NOT_STARTED)


def start_rank(words, environment):
    """Become a rank, or the scheduler of msrun: in a folder of its own, with what it was started
    with in a file.
    """
    with open(environment[SETTINGS], encoding="utf-8") as stream:
        settings = json.load(stream)
    scheduler = environment.get("MS_ROLE") == "MS_SCHED"
    rank = environment.get("RANK_ID", "0")
    folder = os.path.join(settings["folder"], "scheduler" if scheduler else "rank.%s" % rank)
    os.makedirs(folder, exist_ok=True)
    for path in sorted(
        glob.glob(os.path.join(glob.escape(settings["workdir"]), "*.py"))
        + glob.glob(os.path.join(glob.escape(settings["workdir"]), "*.sh"))
    ):
        if os.path.isfile(path):
            shutil.copy(path, folder)
    # Packages beside the scripts are not copied.
    environment = dict(
        environment,
        PYTHONPATH=":".join(
            part for part in (environment.get("PYTHONPATH"), settings["workdir"]) if part
        ),
    )
    del environment[SETTINGS]
    write_files(
        [("env.log", "".join("%s=%s\n" % pair for pair in sorted(environment.items())), 0o600)],
        folder,
    )
    os.chdir(folder)
    if scheduler:
        # With msrun, which waits for it, but does not end it.
        end_with_parent(settings["launcher"])
        os.execvpe(words[0], words, environment)
    write_files([("pid.%s" % rank, "%d" % os.getpid(), 0o600)], os.path.dirname(settings["path"]))
    if settings["output"]:
        # Not to the log of msrun, of which the console gets a part.
        output = os.open(settings["output"], os.O_WRONLY)
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
    records = settings["records"] or folder
    command = rank_command(words, environment, records)
    local = int(environment.get("DEVICE_ID") or 0)
    os.execvpe(
        command[0],
        command,
        dict(
            environment,
            RANK=rank,
            LOCAL_RANK=str(local),
            WORLD_SIZE=environment["RANK_SIZE"],
            TRAINYARD_JOB_DIR=records,
        ),
    )


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def parents():
    """Return the parent of each process that has not ended."""
    found = {}
    for name in os.listdir("/proc"):
        fields = (
            read_text("/proc/%s/stat" % name).rpartition(")")[2].split() if name.isdigit() else []
        )
        if len(fields) > 1 and fields[0] not in "ZX":
            found[int(name)] = int(fields[1])
    return found


def descendants(pid):
    """Return the processes that this one has started, and those that they have."""
    known, found, level = parents(), [], [pid]
    while level:
        level = [child for child, parent in known.items() if parent in level]
        found += level
    return found


def end_descendants(seconds=END_SECONDS):
    """End all that was started here. Those without a parent have become children of this
    process.
    """
    signalled, begun = set(), time.time()
    while True:
        left = descendants(os.getpid())
        if not left or time.time() - begun > 3 * seconds:
            return left
        for pid in left:
            if pid not in signalled or time.time() - begun > seconds:
                with contextlib.suppress(OSError):
                    os.kill(
                        pid, signal.SIGTERM if time.time() - begun <= seconds else signal.SIGKILL
                    )
                signalled.add(pid)
        time.sleep(0.1)


class Ranks(object):
    """The ranks of this host: started, watched, and ended with the first of them that fails, or
    with this process.
    """

    def __init__(self, job, settings, private):
        self.job, self.settings, self.private = job, settings, private
        self.children, self.stopped, self.lost = [], None, False
        first = _launchers.first_rank(job, job["index"])
        self.ranks = [
            {"rank": first + local, "pid": None, "code": None, "end": None}
            for local in range(job["entries"][job["index"]]["slots"])
        ]

    def terminate(self):
        """Of class Workers: another worker has gone."""
        self.lost = True

    def stop(self, number):
        self.stopped = number
        if not self.children:
            sys.exit(128 + number)

    def start(self, commands):
        # Ranks of a process that has ended, such as a killed msrun, become children of this one.
        ctypes.CDLL(None).prctl(36, 1)
        self.children = [
            subprocess.Popen(
                command,
                env=environment,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
            )
            for command, environment in commands
        ]

    def folder(self, rank):
        return self.settings["records"] or os.path.join(self.settings["folder"], "rank.%d" % rank)

    def record(self, rank):
        try:
            return json.loads(read_text("%s/rank.%d.json" % (self.folder(rank), rank)))
        except ValueError:
            return {}

    def look(self):
        """See which ranks have ended, and how."""
        for each in self.ranks:
            each["pid"] = each["pid"] or int(
                read_text(os.path.join(self.private, "pid.%d" % each["rank"])) or 0
            )
        # Afterwards: a rank that starts meanwhile is not in an older list.
        known = parents()
        for each in self.ranks:
            if each["end"] is None and each["pid"] and each["pid"] not in known:
                each["code"] = self.record(each["rank"]).get("exit_code")
                each["end"] = time.time()

    def wait(self):
        """Return when all have ended, or soon after one has failed or the job is stopped."""
        deadline = None
        while any(child.poll() is None for child in self.children):
            self.look()
            if self.stopped or self.lost:
                return
            if deadline is None and (
                failures(self.ranks) or any(child.poll() for child in self.children)
            ):
                deadline = time.time() + FAILURE_SECONDS
            if deadline and time.time() > deadline:
                return
            time.sleep(0.1)
        self.look()

    def tell_failures(self, failed):
        """Say which ranks have failed on this host, how, and where their logs are."""
        for each in failed:
            code = each["code"]
            end = "was killed" if code is None else "ended with exit code %d" % code
            rank, folder = each["rank"], self.folder(each["rank"])
            print(
                "trainyard-launch: rank %d on %s %s. Log: %s/rank.%d.log"
                % (rank, socket.gethostname(), end, folder, rank),
                file=sys.stderr,
            )

    def finish(self):
        """End what is left, say what failed, and return the exit code."""
        before, codes = failures(self.ranks), [child.poll() for child in self.children]
        left = end_descendants()
        if left:
            print(
                "trainyard-launch: these processes do not end: %s" % ", ".join(map(str, left)),
                file=sys.stderr,
            )
        if self.stopped:
            return 128 + self.stopped
        self.tell_failures(before)
        own = [each["code"] or 128 + signal.SIGKILL for each in before]
        bad = [exit_code(code) for code in codes if code]
        if bad and not own:
            print(
                (
                    "trainyard-launch: %s ended with exit code %d on %s, although no rank failed. "
                    "Its message is above"
                )
                % (self.settings["start"], bad[0], socket.gethostname()),
                file=sys.stderr,
            )
        return (own or bad or [1 if left or self.lost else self.report()])[0]

    def report(self):
        """Report for the worker what its ranks have reported.

        Role train reads the records of the ranks itself.
        """
        reports = {}
        for each in self.ranks:
            found = self.record(each["rank"]).get("report")
            reports[each["rank"]] = found if isinstance(found, dict) else {}
        report, problem = common_report(reports)
        if problem:
            print("trainyard-launch: on %s %s" % (socket.gethostname(), problem), file=sys.stderr)
        if os.environ.get("TRAINYARD_RANK_REPORT") and report:
            with open(os.environ["TRAINYARD_RANK_REPORT"], "w", encoding="utf-8") as stream:
                json.dump(report, stream)
        return 1 if problem else 0


def copy_pipe(path, ending):
    """Copy what the ranks write to the output of this process until all of them have ended."""
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            last = ending.is_set()
            try:
                chunk = os.read(source, 65536)
            except BlockingIOError:
                chunk = b""
            if chunk:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
            elif last:
                break
            else:
                time.sleep(0.05)
    finally:
        # Without a reader the ranks end.
        os.close(source)


def mindspore_folder(folder, job, environment):
    """Return the folder of this host's ranks. C(folder) is that of the command line."""
    base = (
        folder
        or job.get("folder")
        or environment.get("TRAINYARD_JOB_DIR")
        or os.path.join(os.getcwd(), "mindspore.%s.%s" % (job["job"], job["step"]))
    )
    return os.path.join(base, socket.gethostname())


def msrun_command(job, folder, program, environment):
    """All releases of msrun take these two words for what they are, and put python before another
    one.
    """
    python = "python" if shutil.which("python", path=environment.get("PATH")) else "python3"
    return _launchers.msrun(job, folder, [python] + program)


def rank_commands(job, folder, program, environment, table):
    """Return the command of each rank with its environment, and write the job's part of the rank
    table into the folder.
    """
    path = ""
    if table:
        path = os.path.join(folder, "rank_table.json")
        content = json.dumps(job_table(read_table(table), job), indent=2) + "\n"
        write_files([("rank_table.json", content, 0o644)], folder)
    return [
        ([sys.executable] + program, rank_environment(environment, job, local, path))
        for local in range(job["entries"][job["index"]]["slots"])
    ]


def run_ranks(job, ranks, commands):
    """Start the ranks of this host when all workers of the step are ready, and return the exit
    code.
    """
    connection, workers = None, None
    if job["count"] > 1 and job.get("keys"):
        connection, workers = meet(job)
    ranks.start(commands)
    if workers:
        workers.watch(ranks)
    if connection:
        threading.Thread(target=follow, args=(connection, ranks), daemon=True).start()
    ranks.wait()
    code = ranks.finish()
    if workers:
        workers.end(code)
    if workers and workers.lost is not None:
        print(
            "trainyard-launch: worker %d on %s has gone"
            % (workers.lost, job["entries"][workers.lost]["address"]),
            file=sys.stderr,
        )
    if connection and not code:
        connection.sendall(b"\n")
    return code


def mindspore(job, arguments, environment):
    """Run the ranks of this host, and return the exit code."""
    options, words = mindspore_options(arguments)
    check_ranks(job)
    tables = (options["rank-table"], job.get("rank_table"), environment.get("TRAINYARD_RANK_TABLE"))
    table = next(filter(None, tables), "")
    requested = job.get("start") or "auto" if options["start"] == "auto" else options["start"]
    start = mindspore_start(
        requested,
        bool(shutil.which("msrun", path=environment.get("PATH"))),
        table,
        _launchers.slots(job),
    )
    if not os.path.exists(RANK):
        raise Refused(
            (
                "%s is missing in the container; tell the operator to run playbook scheduler, or "
                "training_environment"
            )
            % RANK
        )
    folder = mindspore_folder(options["folder"], job, environment)
    os.makedirs(folder, exist_ok=True)
    private = tempfile.mkdtemp(prefix="mindspore.")
    settings = {
        "path": os.path.join(private, "settings.json"),
        "launcher": os.getpid(),
        "folder": folder,
        "workdir": os.getcwd(),
        "records": job.get("records") or "",
        "output": "",
        "start": start,
    }
    environment = dict(mindspore_environment(environment, job), **{SETTINGS: settings["path"]})
    program = [os.path.abspath(__file__), "rank"] + words
    ranks, ending, reader = Ranks(job, settings, private), threading.Event(), None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: ranks.stop(received))
    try:
        if start == "msrun":
            settings["output"] = os.path.join(private, "output")
            os.mkfifo(settings["output"], 0o600)
            reader = threading.Thread(target=copy_pipe, args=(settings["output"], ending))
            reader.start()
            commands = [(msrun_command(job, folder, program, environment), environment)]
        else:
            commands = rank_commands(job, folder, program, environment, table)
        write_files([("settings.json", json.dumps(settings), 0o600)], private)
        return run_ranks(job, ranks, commands)
    finally:
        ending.set()
        if reader:
            reader.join(END_SECONDS)
        shutil.rmtree(private, ignore_errors=True)


def read_table(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError) as error:
        raise Refused("the rank table %s cannot be read: %s" % (path, error)) from error


def meet(job):
    """Wait until each worker of the step is ready.

    Return the connection to worker 0, or on worker 0 those of the others.
    """
    if job["index"]:
        return connect(job), None
    workers = Workers(job)
    workers.wait(task="start its ranks")
    return None, workers


def follow(connection, ranks):
    """End the ranks of this worker when worker 0 has failed or gone."""
    try:
        message = lines_of(connection)
    except OSError:
        message = ""
    if message != "end 0":
        ranks.terminate()


def main(argv):
    known = (*LAUNCHERS, "rank", "sshd")
    if not argv or argv[0] not in known or (len(argv) < 2 and argv[0] != "sshd"):
        raise Refused("usage: trainyard-launch %s ARGUMENT..." % "|".join(LAUNCHERS))
    launcher, arguments = argv[0], argv[1:]
    if launcher == "rank":
        return start_rank(arguments, dict(os.environ))
    job = read_job()
    if launcher == "mindspore":
        return mindspore(job, arguments, launch_environment(dict(os.environ), launcher))
    environment = launch_environment(dict(os.environ), launcher)
    if (
        launcher == "torchrun"
        or job["count"] == 1
        and launcher != "sshd"
        or environment.get(READY) == job["step"]
        and job["index"] == 0
    ):
        return run(command_of(launcher, job, arguments), environment)
    if launcher == "sshd" and job["count"] == 1:
        return 0
    user = pwd.getpwuid(os.getuid()).pw_name
    write_files(files(job, user, find("ssh", "openssh-client"), environment))
    return lead(job, launcher, arguments, environment) if job["index"] == 0 else serve(job)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refused as problem:
        print("trainyard-launch: %s" % problem, file=sys.stderr)
        sys.exit(NOT_STARTED)
