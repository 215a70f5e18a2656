# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one task of a Slurm job in a rootless podman container, as the user who submitted the job.

    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- COMMAND...

It has no privilege. The container sees the GPUs or NPUs of the task only, the shared folder, the
home of the user, and a /tmp of the job. The exit code is the one of the command. 125 means that the
container was not started, and 124 that a worker on another host did not start.
"""

import argparse
import contextlib
import errno
import glob
import importlib
import json
import os
import pwd
import re
import resource
import select
import selectors
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
import typing

# Teardown would find the folder of the compiled modules.
sys.dont_write_bytecode = True
SHARED = "/usr/local/lib/trainyard/shared"
sys.path.insert(0, SHARED)
import _files
import _gpu_numbers
from _messages import Refused
from _mountinfo import mount_of, parse_mountinfo

CONFIG = "/etc/trainyard/job/config.json"
#: Modules beside trainyard-launch, and what makes a process root in a container.
LIBRARY = "/usr/local/lib/trainyard/job"
ROOT_PROGRAM, ROOT_INSIDE = LIBRARY + "/trainyard-root", "/usr/local/sbin/trainyard-root"
#: Made by the prolog, one folder per job. The epilog removes it.
RUNTIME = "/run/trainyard/jobs"
#: Folder of the task in the container. trainyard-launch has the same path.
INSIDE = "/run/trainyard"
NOT_STARTED, NO_PEER = 125, 124
#: Slurm sends TERM at the end and what scancel or --signal names. The container is never stopped,
#: so CONT is not among them.
SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
#: Seconds in which all workers of a step have to start. Slurm starts them together, so this is for
#: a busy host. A host that pulls the image needs longer.
PEER_SECONDS, PULL_SECONDS = 60, 3900
#: What the prolog has given the job on this host: _job_ports.py writes it. The firewall opens these
#: ports only.
PORTS = "/run/trainyard/ports/%s.json"
#: Ports of each step: for sshd, the rendezvous and control.
PORTS_OF_STEP = 3
#: Limits of the exchange: seconds for a whole message, its bytes, and how many unfinished senders
#: are heard at a time.
MESSAGE_SECONDS, MESSAGE_BYTES, STRANGERS = 5, 1 << 20, 64
#: Variables that must keep the value of the image.
OF_IMAGE = {
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_AUDIT",
    "SHELL",
    "SHLVL",
    "PWD",
    "OLDPWD",
    "_",
    "HOSTNAME",
    "TMPDIR",
    "MAIL",
    "LS_COLORS",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "XDG_DATA_DIRS",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSH_AUTH_SOCK",
    "SLURM_CONF",
    "SLURM_JWT",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "BASH_ENV",
    "ENV",
    # Set by Slurm, also for NPUs. Its numbers are those of the host.
    "CUDA_VISIBLE_DEVICES",
}
OF_PODMAN = ("CONTAINERS_", "PODMAN_", "_CONTAINERS_", "BUILDAH_")
#: Written by role ascend: the NPUs of all hosts.
RANK_TABLE = "/etc/trainyard/hccl.json"
#: A file, not options: podman writes options into the configuration of the container, and `podman
#: commit` writes that into images.
START = '. %s/environment; exec "$@"' % INSIDE
#: Images with kernels have a Python.
START_ROOT = '. %s/environment; exec "${TRAINYARD_KERNEL_PYTHON:-python3}" %s "$@"' % (
    INSIDE,
    ROOT_INSIDE,
)


class Worker(typing.NamedTuple):
    """One worker of a step of a job: the task of Slurm that this program is."""

    job: str
    step: str
    #: Its C(index), the C(count) of workers, their C(nodes) and its number on its host, C(local).
    place: dict
    #: Numbers of its devices on the host.
    gpus: list
    #: C(uid), C(gid), C(name) and C(home) of the person who runs the job.
    person: dict


# --- pure functions: what Slurm says, in data ---


def expand_nodes(text):
    """Return the host names of a node list such as a[01-03,7],b. `scontrol show hostnames` does the
    same, but asks the configuration first.
    """
    names, depth, entry = [], 0, ""
    for character in text + ",":
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            names += _expanded(entry)
            entry = ""
        else:
            entry += character
    if depth:
        raise Refused("SLURM_STEP_NODELIST: '%s' has a bracket without its partner" % text)
    return [name for name in names if name]


def _expanded(entry):
    found = re.match(r"([^\[]*)\[([^\]]*)\](.*)$", entry)
    if not found:
        return [entry]
    head, ranges, tail = found.groups()
    numbers = []
    for part in ranges.split(","):
        first, _dash, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise Refused("node list: '%s' is neither a number nor a range" % part)
        numbers += [
            "%0*d" % (len(first), number) for number in range(int(first), int(last or first) + 1)
        ]
    return [head + number + rest for number in numbers for rest in _expanded(tail)]


def expand_counts(text):
    """Return the numbers of SLURM_STEP_TASKS_PER_NODE: 2(x3),1 is 2, 2, 2, 1."""
    numbers = []
    for part in text.split(","):
        found = re.match(r"(\d+)(?:\(x(\d+)\))?$", part.strip())
        if not found:
            raise Refused("tasks per node: '%s' is not a number" % part)
        numbers += [int(found.group(1))] * int(found.group(2) or 1)
    return numbers


def workers(environment):
    """Return index, count, and the host of each worker.

    A worker is a task of the step. Outside of srun there is one.
    """
    nodes = expand_nodes(environment.get("SLURM_STEP_NODELIST") or "")
    own = environment.get("SLURMD_NODENAME") or socket.gethostname()
    if not nodes:
        return {"index": 0, "count": 1, "nodes": [own], "local": 0}
    tasks = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE") or "1(x%d)" % len(nodes))
    return {
        "index": int(environment.get("SLURM_PROCID") or 0),
        "count": sum(tasks),
        "nodes": nodes,
        "local": int(environment.get("SLURM_LOCALID") or 0),
    }


def step_name(environment):
    return environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID") or "batch"


def step_ports(ranges, step):
    """Return the ports of a step, in the order in which they are tried.

    Each step of the job begins with others.
    """
    ports = [port for first, last in ranges for port in range(first, last + 1)]
    number = int(step) if step.isdigit() else sum(ord(character) for character in step)
    begin = number * PORTS_OF_STEP % len(ports) if ports else 0
    return ports[begin:] + ports[:begin]


def image_names(image):
    """Return the full names that a short one can mean, in the order in which podman looks
    for them.
    """
    tagged = image if "@" in image or ":" in image.rpartition("/")[2] else image + ":latest"
    return [tagged, "localhost/" + tagged, "docker.io/" + tagged, "docker.io/library/" + tagged]


def _has_id(entry, image):
    """Return whether an image is named by its ID, or by its beginning."""
    if re.match(r"[0-9a-f]{12,64}$", image) and entry["id"].startswith(image):
        return True
    return image == "sha256:" + entry["id"]


def _has_digest(entry, image):
    """Return whether an image is named by a repository and the digest of its manifest."""
    digest = image.partition("@")[2]
    if not digest or entry.get("digest") != digest:
        return False
    names = entry.get("names") or []
    bases = {name.rpartition(":")[0] for name in names} | {name.partition("@")[0] for name in names}
    return bool(bases & {name.partition("@")[0] for name in image_names(image)})


def find_image(image, stores):
    """Return the ID of an image.

    C(stores) are the contents of images.json, in the order in which they are searched.
    """
    for images in stores:
        for name in image_names(image):
            for entry in images:
                if name in (entry.get("names") or []):
                    return entry["id"]
        for entry in images:
            if _has_id(entry, image) or _has_digest(entry, image):
                return entry["id"]
    known = sorted(
        {name for images in stores for entry in images for name in entry.get("names") or []}
    )
    raise Refused(
        (
            "image '%s' is not on this host; images here: %s. Use one of them, or one of a "
            "registry of this cluster (job_container_registries)"
        )
        % (image, ", ".join(known) or "none")
    )


def can_be_pulled(image, registries):
    """Return whether an image that a host lacks may be pulled. All hosts of a job compute
    the same.
    """
    return any(image.startswith(registry.rstrip("/") + "/") for registry in registries)


def environment_text(values):
    """Return a file for `.` of sh.

    Names that sh does not accept, such as the functions of bash, are left out.
    """
    return "".join(
        "export %s=%s\n" % (name, shlex.quote(value))
        for name, value in sorted(values.items())
        if re.match(r"[A-Za-z_][A-Za-z0-9_]*$", name) and "\0" not in value
    )


def parse_settings(text):
    """Return the variables of /etc/trainyard/job/environment: NAME=VALUE lines."""
    values = {}
    for line in text.splitlines():
        name, equal, value = line.partition("=")
        if equal and not line.startswith("#"):
            values[name.strip()] = value.strip().strip('"')
    return values


def task_environment(environment, settings, own):
    """Return the variables in the container: the settings of the host, over them those of the job,
    over them those of this program.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in OF_IMAGE and not name.startswith(OF_PODMAN)
    }
    return dict(settings, **dict(kept, **own))


def shared_memory(requested, environment, default):
    """Return the size of /dev/shm.

    Its content is charged to the memory of the job, so half of that is the limit unless another
    size is requested.
    """
    size = requested or environment.get("TRAINYARD_SHM_SIZE") or ""
    if size and not re.match(r"[1-9]\d*[bkmgBKMG]?$", size):
        raise Refused(
            "shared memory: '%s' is not a size; use a number with m or g, such as 8g" % size
        )
    memory = environment.get("SLURM_MEM_PER_NODE") or ""
    return size or (
        "%dm" % max(64, int(memory) // 2) if memory.isdigit() and int(memory) else default
    )


def host_file(entries):
    """Return the lines of the host file, one per address, in the order of the workers."""
    slots = {}
    for entry in entries:
        slots[entry["address"]] = slots.get(entry["address"], 0) + entry["slots"]
    return "".join("%s slots=%d\n" % pair for pair in slots.items())


def mount_option(text):
    """Return the option of podman for SOURCE[:TARGET[:ro]]."""
    source, _colon, rest = text.partition(":")
    target, _colon, mode = rest.partition(":")
    target = target or source
    if (
        not source.startswith("/")
        or not target.startswith("/")
        or mode not in ("", "ro", "rw")
        or re.search(r'[,"\n]', text)
    ):
        raise Refused("mount: '%s' is not SOURCE[:TARGET[:ro]] with absolute paths" % text)
    return bind(source, target, mode == "ro")


def host_file_mount(path, folder, home):
    """Return the option of podman that shows the host file of the step in the place of a file that
    all jobs of the person share.
    """
    if not path:
        return []
    target = home + path[1:] if path.startswith("~/") else path
    if not target.startswith("/"):
        raise Refused(
            "--host-file: '%s' is not an absolute path, and does not begin with ~/" % path
        )
    return [bind(folder + "/hosts", target, True)]


def bind(source, target, read_only=False):
    if re.search(r'[,"\n]', source + target):
        raise Refused("'%s' cannot be mounted: it has a comma, a quote or a line break" % source)
    return "--mount=type=bind,source=%s,target=%s%s" % (
        source,
        target,
        ",readonly" if read_only else "",
    )


def program_mounts(config, exists=os.path.exists):
    """Return podman's options for trainyard-launch, and for what it starts ranks of MindSpore with:
    images of others have no program for that.
    """
    return [
        bind(config["launcher"], "/usr/local/bin/trainyard-launch", True),
        bind(SHARED + "/_launchers.py", "/usr/local/bin/_launchers.py", True),
        bind(config["rank"], "/usr/local/lib/trainyard/rank", True),
    ] + ([bind(RANK_TABLE, RANK_TABLE, True)] if exists(RANK_TABLE) else [])


def device_options(gpus, config, host, exists=os.path.exists):
    """Return podman's options for the GPUs or NPUs of the task, which C(gpus) has by device number.

    C(host) is that of P(_gpu_numbers.read_host).
    """
    kinds = config["gpus"]
    check_groups(gpus, config)
    if kinds.get("cdi"):
        specifications = _gpu_numbers.read_specifications() if gpus else []
        names = _gpu_numbers.cdi_names(gpus, kinds, host, specifications)
        return ["--device=%s=%s" % (kinds["cdi"], name) for name in names]
    paths = [kinds["nodes"] % number for number in gpus] + [
        path for path in kinds.get("control") or [] if gpus and exists(path)
    ]
    missing = [path for path in paths[: len(gpus)] if not exists(path)]
    if missing:
        raise Refused(
            (
                "Slurm has given the job %s, which this host does not have; tell the operator that "
                "gres.conf differs from the host"
            )
            % ", ".join(missing)
        )
    return ["--device=%s" % path for path in paths]


def check_groups(gpus, config):
    """Refuse devices that lie in two groups, unless they are all of the host: without a link
    between the groups the job would hang or fail.
    """
    groups = config["gpus"].get("groups") or []
    known = {number for group in groups for number in group}
    if (
        not gpus
        or not groups
        or set(gpus) == known
        or any(set(gpus) <= set(group) for group in groups)
    ):
        return
    raise Refused(
        "Slurm has given the job the devices %s. On this chip the devices of a job lie within "
        "%s, or are all %d, because no others have links to "
        "each other; request %s devices per host, or all of them"
        % (
            ", ".join(map(str, gpus)),
            " or within ".join("%d-%d" % (group[0], group[-1]) for group in groups),
            len(known),
            " or ".join(str(number) for number in (1, 2, 4) if number <= max(map(len, groups))),
        )
    )


def driver_mounts(gpus, config, exists=os.path.exists):
    """Return podman's options that show the driver of the host, to read, in containers whose image
    cannot have it. Only with a device.
    """
    return [
        bind(path, path, True)
        for path in config["gpus"].get("mounts") or []
        if gpus and exists(path)
    ]


def podman_command(plan, config, options_only=False):
    """Return the whole command of podman, or its options before the subcommand.

    Nothing in it is secret: people can read the arguments of a process.
    """
    # With control groups of version 2 podman 4 warns that it has no session bus, by which it would
    # move a process of its own out of the job.
    command = [
        config["podman"],
        "--log-level=error",
        "--root=" + plan["store"],
        "--runroot=" + plan["runtime"] + "/run",
        "--tmpdir=" + plan["runtime"] + "/tmp",
        "--storage-driver=overlay",
    ]
    # fuse-overlayfs shows the image as the user's. Without it podman copies the image for the
    # mapping of keep-id, which fails at files that only root can read.
    command += [
        "--storage-opt=overlay.mount_program=" + config["mount_program"],
        "--storage-opt=overlay.mountopt=squash_to_root",
    ]
    command += ["--storage-opt=additionalimagestore=" + store for store in plan["stores"]]
    if options_only:
        return command
    command += [
        "run",
        "--pull=never",
        "--name=" + plan["name"],
        "--label=trainyard.job=" + plan["job"],
        "--network=host",
        "--no-hosts",
        "--userns=keep-id",
        "--user=%d:%d" % (plan["uid"], plan["gid"]),
        "--group-add=keep-groups",
        "--shm-size=" + plan["shm"],
        "--ulimit=memlock=%s" % plan["memlock"],
        "--env=TRAINYARD_JOB_ID=" + plan["job"],
        "--workdir=" + plan["workdir"],
    ]
    command += ["--init"] if config.get("init") else []
    # The proxy for signals of podman ends at its first failure, so P(supervise) sends them. Without
    # a terminal the container has the output of the task, so that nothing is lost with podman.
    command += (
        ["--rm", "--interactive", "--tty"]
        if plan["terminal"]
        else [
            "--detach",
            "--log-driver=passthrough",
            "--pidfile=" + plan["folder"] + "/pid",
            "--cidfile=" + plan["folder"] + "/id",
            "--conmon-pidfile=" + plan["folder"] + "/monitor",
        ]
    )
    command += plan["mounts"] + plan["devices"]
    return command + ["--entrypoint=/bin/sh", plan["image"], "-c", START, "sh"] + plan["command"]


def own_variables(worker, entries, ports, config, exists=os.path.exists):
    """Return the variables that every job has."""
    place, person = worker.place, worker.person
    me = entries[place["index"]]
    first = entries[0]
    visible = ",".join(str(number) for number in range(len(worker.gpus)))
    found = {
        "TRAINYARD_JOB_ID": worker.job,
        "TRAINYARD_STEP_ID": worker.step,
        "TRAINYARD_WORKER_INDEX": str(place["index"]),
        "TRAINYARD_WORKER_COUNT": str(place["count"]),
        "TRAINYARD_WORKER_ADDRESS": me["address"],
        "TRAINYARD_HOSTFILE": INSIDE + "/hosts",
        "TRAINYARD_SSH_PORT": str(ports["ssh"]),
        "TRAINYARD_SLOTS": str(me["slots"]),
        "MASTER_ADDR": first["address"],
        "MASTER_PORT": str(ports["master"]),
        "HOME": person["home"],
        "USER": person["name"],
        "LOGNAME": person["name"],
        "TMPDIR": "/tmp",
    }
    # In the container the devices have the numbers from 0. Without a GPU the name of the variable
    # says so.
    for name in config["gpus"].get("variables") or ["CUDA_VISIBLE_DEVICES"]:
        found[name] = visible
    if exists(RANK_TABLE):
        found["TRAINYARD_RANK_TABLE"] = RANK_TABLE
    if ports.get("control"):
        # NCCL's default port may answer for another job. The launcher of the job does not have this
        # port at the address of loopback.
        found["NCCL_RAS_ADDR"] = "127.0.0.1:%d" % ports["control"]
    for name in ("network", "fabric"):
        if config.get(name):
            found["TRAINYARD_%s" % name.upper()] = config[name]
    return found


# --- the exchange between the workers of a step: munge encrypts it, and only the same user can decode it ---


def munged(data, uid):
    result = subprocess.run(
        ["munge", "--restrict-uid=%d" % uid],
        input=json.dumps(data).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    if result.returncode:
        raise Refused(
            "munge: %s; tell the operator" % result.stderr.decode(errors="replace").strip()
        )
    return result.stdout.strip()


def unmunged(text, uid):
    """Return the data of a message of this user, or None: anyone can connect to the port."""
    result = subprocess.run(
        ["unmunge"], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    head, _blank, payload = result.stdout.decode(errors="replace").partition("\n\n")
    sender = re.search(r"^UID:\s+(?:.*\()?(\d+)\)?\s*$", head, re.MULTILINE)
    if result.returncode or not sender or int(sender.group(1)) != uid:
        return None
    try:
        return json.loads(payload)
    except ValueError:
        return None


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def free(address, port):
    with socket.socket(family(address)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def listening(address, ports):
    """Return a listening socket on the first free port."""
    for port in ports:
        server = socket.socket(family(address))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
            server.listen(1024)
            return server
        except OSError as error:
            server.close()
            last = error
    raise Refused("none of the job's ports is free on %s: %s" % (address, last))


def chosen_by_kernel(address):
    """Return free ports for a step of one task that has too few of the job's: people without a job
    on this host do not reach them either.
    """
    with contextlib.ExitStack() as stack:
        probes = [
            stack.enter_context(socket.socket(family(address))) for _number in range(PORTS_OF_STEP)
        ]
        for probe in probes:
            probe.bind((address, 0))
        return [probe.getsockname()[1] for probe in probes]


def common_ports(entries):
    """Return the ports for sshd, for the rendezvous and for control.

    Each is the job's on all of its hosts: the firewall of both ends asks for that.
    """
    shared = [
        port for port in entries[0]["ports"] if all(port in entry["ports"] for entry in entries)
    ]
    if len(shared) < PORTS_OF_STEP:
        raise Refused(
            (
                "the job has %d free ports on all of its hosts, and %d are needed: %s. End steps "
                "or jobs there, or submit the job again"
            )
            % (
                len(shared),
                PORTS_OF_STEP,
                ", ".join(sorted({entry["address"] for entry in entries})),
            )
        )
    return dict(zip(("ssh", "master", "control"), shared))


def make_keys(folder):
    """Return a key pair of the user and one of the servers, made for this step."""
    keys = {}
    for name in ("user", "host"):
        path = os.path.join(folder, "new_" + name)
        result = subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "trainyard job", "-f", path],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if result.returncode:
            raise Refused("ssh-keygen: %s" % result.stdout.decode(errors="replace").strip())
        for suffix, part in (("", "private"), (".pub", "public")):
            with open(path + suffix, encoding="ascii") as stream:
                keys["%s_%s" % (name, part)] = stream.read()
            os.unlink(path + suffix)
    return keys


class Messages:
    """Connections whose message of one line is not complete yet.

    All are heard at the same time, and each has a deadline for the whole message.
    """

    def __init__(self, waiting):
        self.waiting, self.parts, self.deadlines = waiting, {}, {}

    def add(self, connection, seconds):
        """Hear a connection.

        If there are too many, the oldest one is closed: a worker sends its message at once.
        """
        connection.setblocking(False)
        self.parts[connection], self.deadlines[connection] = b"", time.monotonic() + seconds
        self.waiting.register(connection, selectors.EVENT_READ)
        if len(self.parts) > STRANGERS:
            self.drop(next(iter(self.parts)))

    def forget(self, connection):
        self.waiting.unregister(connection)
        del self.deadlines[connection]
        return self.parts.pop(connection)

    def drop(self, connection):
        self.forget(connection)
        connection.close()

    def drop_late(self):
        now = time.monotonic()
        for connection in [each for each, deadline in self.deadlines.items() if deadline < now]:
            self.drop(connection)

    def read(self, connection):
        """Return the message if it is complete, else None.

        A connection that ends or sends too much is closed.
        """
        try:
            part = connection.recv(65536)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self.parts[connection] += part
        if not part or len(self.parts[connection]) > MESSAGE_BYTES:
            self.drop(connection)
            return None
        return self.forget(connection).strip() if part.endswith(b"\n") else None

    def close(self):
        for connection in list(self.parts):
            self.drop(connection)


def listen_in_ranges(address, ranges):
    """Return a listening socket in each of the job's ranges of ports: another job may have one of
    them on another host.
    """
    servers, problem = [], "the job has none on this host"
    for first, last in ranges:
        try:
            servers.append(listening(address, range(first, last + 1)))
        except Refused as error:
            problem = str(error)
    if not servers:
        raise Refused("no port for the exchange of the workers: %s" % problem)
    return servers


def fail_if_late(deadline, seconds, entries, count):
    """Raise TimeoutError if the time is over and workers are missing."""
    if time.monotonic() > deadline:
        missing = [str(index) for index in range(count) if index not in entries]
        raise TimeoutError(
            "worker %s did not start within %d seconds; see the messages of its host"
            % (", ".join(missing), seconds)
        )


def lead(worker, own, keys, ranges, seconds=PEER_SECONDS):
    """First worker: collect the entries of all workers, and send each of them the result."""
    job, step = worker.job, worker.step
    count, uid = worker.place["count"], worker.person["uid"]
    entries, workers_waiting = {0: own}, []
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        servers = [
            stack.enter_context(server) for server in listen_in_ranges(own["address"], ranges)
        ]
        messages = Messages(waiting)
        stack.callback(messages.close)
        for server in servers:
            server.setblocking(False)
            waiting.register(server, selectors.EVENT_READ)
        used = {server.getsockname()[1] for server in servers}
        own["ports"] = [port for port in own["ports"] if port not in used]
        while len(entries) < count:
            fail_if_late(deadline, seconds, entries, count)
            for key, _events in waiting.select(0.1):
                if key.fileobj in servers:
                    with contextlib.suppress(OSError):
                        messages.add(key.fileobj.accept()[0], MESSAGE_SECONDS)
                elif key.fileobj in messages.parts:
                    text = messages.read(key.fileobj)
                    if text is not None:
                        message = worker_of(unmunged(text, uid), job, step, count)
                        workers_waiting += _kept(key.fileobj, message, entries)
            messages.drop_late()
        ordered = [entries[index] for index in range(count)]
        result = {
            "job": job,
            "step": step,
            "entries": ordered,
            "ports": common_ports(ordered),
            "keys": keys,
        }
        for connection in workers_waiting:
            connection.settimeout(MESSAGE_SECONDS)
            with contextlib.suppress(OSError):
                connection.sendall(munged(result, uid) + b"\n")
            connection.close()
    return result


def worker_of(message, job, step, count):
    """Return the message of another worker of this step, or None."""
    is_one = (
        message
        and (message.get("job"), message.get("step")) == (job, step)
        and 0 < message.get("index", 0) < count
    )
    return message if is_one else None


def _kept(connection, message, entries):
    """Note the entry of a worker, and return its connection.

    It may have one to each of the first worker's ports.
    """
    if message is None:
        connection.close()
        return []
    entries[message["index"]] = message["entry"]
    return [connection]


def follow(worker, own, first, ports, seconds=PEER_SECONDS):
    """Other workers: send the own entry to the first one, and return its result.

    Its port is one of those that the step tries.

    All ports are tried at the same time, because another person may have one of them there, and say
    nothing.
    """
    job, step, uid = worker.job, worker.step, worker.person["uid"]
    began = time.monotonic()
    deadline = began + seconds
    message = {"job": job, "step": step, "index": worker.place["index"], "entry": own}
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        messages, tried, made = Messages(waiting), {}, {}
        stack.callback(messages.close)
        stack.callback(lambda: [connection.close() for connection in tried.values()])
        while time.monotonic() < deadline:
            for port in ports:
                if made.get(port) not in messages.parts and port not in tried:
                    connect(waiting, tried, first, port)
            # The first host may pull the image.
            pause = time.monotonic() + (0.1 if time.monotonic() < began + PEER_SECONDS else 2)
            while time.monotonic() < pause:
                for key, _events in waiting.select(max(0.01, pause - time.monotonic())):
                    if key.fileobj in messages.parts:
                        text = messages.read(key.fileobj)
                        answer = unmunged(text, uid) if text is not None else None
                        if text is not None:
                            key.fileobj.close()
                        if answer and (answer.get("job"), answer.get("step")) == (job, step):
                            return answer
                    elif connected(waiting, tried, key, message, uid):
                        made[key.data] = key.fileobj
                        messages.add(key.fileobj, max(1, deadline - time.monotonic()))
    raise TimeoutError(
        "worker 0 on %s did not answer within %d seconds; see the messages of its host"
        % (first, seconds)
    )


def connect(waiting, tried, address, port):
    """Begin a connection.

    One that hangs is not tried again: a port that begins to answer answers it.
    """
    connection = socket.socket(family(address))
    connection.setblocking(False)
    error = connection.connect_ex((address, port))
    if error not in (0, errno.EINPROGRESS):
        connection.close()
        return
    tried[port] = connection
    waiting.register(connection, selectors.EVENT_WRITE, port)


def connected(waiting, tried, key, message, uid):
    """Return whether a connection is made and has the own entry. One that is refused is closed."""
    connection = tried.pop(key.data)
    waiting.unregister(connection)
    try:
        refused = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not refused:
            connection.settimeout(MESSAGE_SECONDS)
            connection.sendall(munged(message, uid) + b"\n")
    except OSError:
        refused = True
    if refused:
        connection.close()
    return not refused


# --- the host ---


def private_folder(path, uid):
    """Refuse a folder that is not the user's own. /run/trainyard belongs to root, so users cannot
    put one there.
    """
    try:
        found = os.lstat(path)
    except OSError:
        found = None
    if not found or not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise Refused(
            (
                "%s is missing: the prolog of Slurm has not run for this job; tell the operator to "
                "run playbook scheduler"
            )
            % path
        )


def file_system(path, text):
    """Return the type of the file system of a path, from the text of /proc/self/mountinfo."""
    return mount_of(path, parse_mountinfo(text))["type"]


def has_range(name, uid, text):
    """Return whether a user has subordinate IDs in the text of /etc/subuid or /etc/subgid."""
    return any(
        line.split(":")[0] in (name, str(uid)) for line in text.splitlines() if line.count(":") == 2
    )


def check_host(config, person):
    if not os.access(config["podman"], os.X_OK):
        raise Refused(
            "%s is not installed on this host; tell the operator to run playbook scheduler"
            % config["podman"]
        )
    for path in ("/etc/subuid", "/etc/subgid"):
        if not has_range(person["name"], person["uid"], _files.read(path)):
            raise Refused(
                "%s has no range for %s on this host; tell the operator to run playbook people"
                % (path, person["name"])
            )
    kind = file_system(os.path.realpath(config["storage"]), _files.read("/proc/self/mountinfo"))
    if kind.startswith(("nfs", "lustre", "beegfs", "fuse.sshfs")):
        raise Refused(
            (
                "%s is on %s; containers need a local disk: tell the operator to change "
                "job_container_storage"
            )
            % (config["storage"], kind)
        )


def own_address(name, config):
    known = config.get("hosts", {}).get(name)
    if known:
        return known["address"]
    try:
        return socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0]
    except OSError as error:
        raise Refused(
            (
                "the address of %s is unknown: %s has no such host; tell the operator to run "
                "playbook scheduler"
            )
            % (name, CONFIG)
        ) from error


def make_folder(path, mode=0o700):
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)
    return path


def arguments_of(argv):
    if "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
    else:
        command = []
    parser = argparse.ArgumentParser(
        prog="trainyard-run",
        usage="%(prog)s [OPTION...] IMAGE -- COMMAND...",
        description="Run a task of a Slurm job in a container.",
    )
    parser.add_argument("image", nargs="?", help="name, ID or digest of an image on this host")
    parser.add_argument(
        "--shm-size",
        metavar="SIZE",
        default="",
        help="size of /dev/shm, such as 8g (half of the job's memory if not given)",
    )
    parser.add_argument(
        "--mount",
        metavar="SOURCE[:TARGET[:ro]]",
        action="append",
        default=[],
        help="mount a file or folder, can be repeated",
    )
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        default="",
        help="folder in which the command starts (the current one if it is mounted, else the home)",
    )
    parser.add_argument(
        "--host-file",
        metavar="PATH",
        default="",
        help="show the host file of the step under this path, too, such as ~/hosts",
    )
    parser.add_argument(
        "--enter",
        metavar="N",
        type=int,
        help=(
            "run the command in the running container of task N of the job on this host; without "
            "IMAGE"
        ),
    )
    parser.add_argument(
        "--root",
        action="store_true",
        help=(
            "with IMAGE: the container can be entered as root; with --enter: run the command as "
            "its root"
        ),
    )
    parser.add_argument(
        "--save",
        metavar="NAME",
        help=(
            "save the running container of task 0 as an image of yours in the registry of the "
            "cluster"
        ),
    )
    parser.add_argument(
        "--alone",
        action="store_true",
        help="do not wait for the other tasks of the step; trainyard-launch needs them",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command of podman")
    options = parser.parse_args(argv)
    options.command = command
    if options.save is not None:
        if options.image is not None or options.enter is not None or command:
            parser.error(
                (
                    "--save has no image, no --enter and no command: it saves the container of "
                    "task 0 of the job on this host"
                )
            )
        return options
    if (options.image is None) == (options.enter is None):
        parser.error(
            "name an image, as in: trainyard-run IMAGE -- COMMAND"
            if options.enter is None
            else "--enter has no image: the container has its own"
        )
    if not command:
        parser.error(
            "no command: write it after --, as in: trainyard-run %s -- python3 train.py"
            % (options.image or "--enter=0")
        )
    return options


def infiniband_devices(paths):
    """Return the device nodes that RDMA programs open.

    The others, umad and issm, manage the fabric.
    """
    return sorted(path for path in paths if re.search(r"/(uverbs\d+|rdma_cm)$", path))


def memlock_option(limit):
    """Return podman's soft and hard limit of locked memory.

    A container of a user cannot have more than the job's hard limit.
    """
    return "-1:-1" if limit == resource.RLIM_INFINITY else "%d:%d" % (limit, limit)


def working_folder(requested, current, mounted, home):
    """Return the folder in which the command starts."""
    inside = any(current == path or current.startswith(path + "/") for path in mounted)
    return requested or (current if inside else home)


def folders_of_person(share, home):
    """Return the share and the home as far as they exist, without one that is in the other."""
    found = [path for path in (share, home) if path and os.path.isdir(path)]
    return [
        path
        for path in found
        if not any(path.startswith(other.rstrip("/") + "/") for other in found)
    ]


def job_id(options, environment):
    """Return the ID of the job. Raises Refused outside of a job."""
    job = environment.get("SLURM_JOB_ID") or ""
    if not job.isdigit():
        raise Refused(
            (
                "this is not a job of Slurm (SLURM_JOB_ID is not set); start it with srun, as in: "
                "srun trainyard-run %s -- COMMAND"
            )
            % options.image
        )
    return job


def person_of_job():
    """Return the person who runs the job. Raises Refused for root."""
    entry = pwd.getpwuid(os.getuid())
    person = {"uid": entry.pw_uid, "gid": entry.pw_gid, "name": entry.pw_name, "home": entry.pw_dir}
    if person["uid"] == 0:
        raise Refused("jobs of root do not run in containers; submit the job as a user")
    return person


def place_of(options, environment):
    """Return where this worker is among those of the step, or of itself if it runs alone."""
    place = workers(environment)
    if options.alone:
        node = environment.get("SLURMD_NODENAME") or socket.gethostname()
        return {"index": 0, "count": 1, "nodes": [node], "local": 0}
    return place


def warn_of_locked_memory(limit):
    """Print that a limit in bytes is too low for InfiniBand, unless there is none."""
    if limit != resource.RLIM_INFINITY:
        print(
            "trainyard-run: InfiniBand needs more locked memory than this host allows (%d bytes)"
            % limit,
            file=sys.stderr,
        )


def prepare(options, environment, config):
    """Return the plan of the container. It writes the files of the task."""
    job, person = job_id(options, environment), person_of_job()
    check_host(config, person)
    runtime, disk = os.path.join(RUNTIME, job), os.path.join(config["storage"], "jobs", job)
    private_folder(runtime, person["uid"])
    private_folder(disk, person["uid"])
    if options.dry_run:
        image, stores = stored_image(options.image, person, config)
    else:
        image, stores = provide_image(options.image, person, config, runtime, disk, environment)
    place, step = place_of(options, environment), step_name(environment)
    devices = _gpu_numbers.read_host(config["gpus"])
    gpus = _gpu_numbers.of_task(environment, config, devices)
    folder = make_folder(
        os.path.join(runtime, "task.%s.%d" % (step, int(environment.get("SLURM_PROCID") or 0)))
    )
    if not options.dry_run:
        is_pulled = can_be_pulled(options.image, config.get("registries") or [])
        write_task(
            folder,
            Worker(job, step, place, gpus, person),
            environment,
            config,
            PULL_SECONDS if is_pulled else PEER_SECONDS,
            options.root,
        )
    home = person["home"]
    mounts = folders_of_person(config.get("share") or "", home)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    infiniband = infiniband_devices(glob.glob("/dev/infiniband/*"))
    if infiniband:
        warn_of_locked_memory(limit)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return {
        "job": job,
        "name": "job-%s.%s.%s" % (job, step, environment.get("SLURM_PROCID") or 0),
        "image": image,
        "uid": person["uid"],
        "gid": person["gid"],
        "store": make_folder(os.path.join(disk, "store")),
        "runtime": runtime,
        "folder": folder,
        "stores": stores,
        "terminal": terminal,
        "command": options.command,
        "shm": shared_memory(options.shm_size, environment, config.get("shm_size") or "1g"),
        "memlock": memlock_option(limit),
        "workdir": working_folder(options.workdir, os.getcwd(), mounts, home),
        "mounts": [
            bind(make_folder(os.path.join(disk, "tmp"), 0o1777), "/tmp"),
            bind(folder, INSIDE),
            # Programs cannot be started from /run on most hosts.
            bind(make_folder(os.path.join(disk, os.path.basename(folder))), INSIDE + "/bin"),
            # Images have an empty one or none, so that localhost and the hosts of the cluster would
            # have no address.
            bind("/etc/hosts", "/etc/hosts", True),
        ]
        + ([bind(ROOT_PROGRAM, ROOT_INSIDE, True)] if options.root else [])
        + program_mounts(config)
        + [bind(path, path) for path in mounts]
        + [mount_option(text) for text in options.mount]
        + host_file_mount(options.host_file, folder, home),
        "devices": device_options(gpus, config, devices)
        + driver_mounts(gpus, config)
        + ["--device=" + path for path in infiniband],
    }


def own_stores(config, uid):
    """Return the image stores of the host that a person has, in the order in which they are
    searched.
    """
    return [
        path
        for path in (config["store"], os.path.join(config["storage"], "people", str(uid)))
        if os.path.exists(os.path.join(path, "overlay-images", "images.json"))
    ]


def beside(name):
    """Return a module beside trainyard-launch."""
    sys.path.insert(0, LIBRARY)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(LIBRARY)


def stored_image(name, person, config):
    """Return the ID of an image of this host and the stores of the host.

    Raises Refused without such an image.
    """
    stores = own_stores(config, person["uid"])
    lists = [
        _files.read_json(os.path.join(path, "overlay-images", "images.json")) or []
        for path in stores
    ]
    return find_image(name, lists), stores


def provide_image(name, person, config, runtime, disk, environment):
    """Return the ID of an image and the stores of the host.

    It is pulled first if it is in a registry of the site and not on this host.
    """

    def is_there():
        with contextlib.suppress(Refused):
            return bool(stored_image(name, person, config))
        return False

    try:
        return stored_image(name, person, config)
    except Refused:
        if not can_be_pulled(name, config.get("registries") or []):
            raise
    images = beside("_images")
    print("trainyard-run: pulling %s" % name, file=sys.stderr, flush=True)
    # The server of an instance waits as long as this file exists.
    mark = os.path.join(runtime, "pulling")
    _files.write_private(mark, name + "\n")
    try:
        images.pull(
            name,
            person,
            config,
            podman_environment(runtime, environment),
            make_folder(os.path.join(disk, "pull")),
            is_there,
        )
    except images.ImageError as problem:
        raise Refused("image '%s' is not on this host: %s" % (name, problem)) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark)
    return stored_image(name, person, config)


def write_task(folder, worker, environment, config, seconds=PEER_SECONDS, root=False):
    """Write what the command and trainyard-launch read in the container.

    C(seconds) is the time in which the other workers have to start.
    """
    place = worker.place
    address = own_address(environment.get("SLURMD_NODENAME") or socket.gethostname(), config)
    ranges = (_files.read_json(PORTS % worker.job) or {}).get("ports") or []
    candidates = step_ports(ranges, worker.step)
    own = {
        "address": address,
        "slots": len(worker.gpus) or 1,
        "devices": worker.gpus,
        "ports": [port for port in candidates if free(address, port)],
        "local": place["local"],
    }
    if place["count"] == 1:
        own["ports"] = (
            own["ports"] if len(own["ports"]) >= PORTS_OF_STEP else chosen_by_kernel(address)
        )
        agreed = {"entries": [own], "ports": common_ports([own]), "keys": {}}
    elif place["index"] == 0:
        agreed = lead(worker, own, make_keys(folder), ranges, seconds)
    else:
        first = own_address(place["nodes"][0], config)
        agreed = follow(worker, own, first, candidates, seconds)
    values = own_variables(worker, agreed["entries"], agreed["ports"], config)
    _files.write_private(
        os.path.join(folder, "environment"),
        environment_text(
            task_environment(
                environment, parse_settings(_files.read(config["environment"])), values
            )
        ),
    )
    _files.write_private(os.path.join(folder, "hosts"), host_file(agreed["entries"]))
    interfaces = {
        config.get("hosts", {}).get(node, {}).get("interface", "") for node in place["nodes"]
    }
    _files.write_private(
        os.path.join(folder, "job.json"),
        json.dumps(
            {
                "job": worker.job,
                "step": worker.step,
                "index": place["index"],
                "count": place["count"],
                "entries": agreed["entries"],
                "ports": agreed["ports"],
                "keys": agreed["keys"],
                "root": root,
                "interface": interfaces.pop() if len(interfaces) == 1 else "",
            }
        ),
    )


def podman_environment(runtime, environment):
    """Return the environment of podman itself: not the one of the job, which would reach conmon's
    hooks, and nothing of the user's own configuration.
    """
    kept = {
        name: environment[name]
        for name in ("HOME", "USER", "LOGNAME", "LANG", "TERM", "SLURM_JOB_ID")
        if name in environment
    }
    return dict(
        kept,
        PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        XDG_RUNTIME_DIR=runtime,
        TRAINYARD_JOB_ID=environment["SLURM_JOB_ID"],
        CONTAINERS_CONF="/etc/trainyard/job/containers.conf",
        PODMAN_IGNORE_CGROUPSV1_WARNING="1",
    )


# --- the life of the container: this process has the signals of Slurm; a guard outside of its process tree has the container ---


def supervise(command, environment, plan, forward):
    """Start the guard, send it the signals of this process, and return the exit code of the
    container.
    """
    orders, order = os.pipe()
    results, result = os.pipe()
    for number in SIGNALS:
        signal.signal(
            number,
            (lambda received, _frame: os.write(order, bytes([received])))
            if forward
            else (lambda _received, _frame: None),
        )
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        code = NOT_STARTED
        try:
            # Not ignored: an ignored signal would stay ignored in the container.
            for number in SIGNALS:
                signal.signal(number, lambda _received, _frame: None)
            os.close(order)
            os.close(results)
            code = guard(command, environment, plan, orders)
        finally:
            with contextlib.suppress(OSError):
                os.write(result, b"%d\n" % code)
            os.close(result)
            forget(command, environment, plan)
            os._exit(0)
    os.waitpid(child, 0)
    os.close(orders)
    os.close(result)
    text = os.read(results, 16)
    return int(text) if text else 128 + signal.SIGKILL


def guard(command, environment, plan, orders):
    """Start the container, and return its exit code.

    When the process that sends orders ends, the container is killed.
    """
    started = subprocess.run(command, env=environment, start_new_session=True, check=False)
    if started.returncode:
        return started.returncode
    pid = int(_files.read(os.path.join(plan["folder"], "pid")) or 0)
    # By the file and not by the parent of the container, which has changed if the monitor has ended
    # meanwhile.
    monitor = int(_files.read(os.path.join(plan["folder"], "monitor")) or 0)
    # Slurm waits until no process has the output of the task.
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    exits = "%s/tmp/exits/%s" % (
        plan["runtime"],
        _files.read(os.path.join(plan["folder"], "id")).strip(),
    )
    watched = [orders]
    while True:
        # Once per look: the container may end between two.
        current = parent(pid) if pid else 0
        if not current:
            break
        if current != monitor:
            # Without its monitor the exit code is lost.
            send(pid, signal.SIGKILL)
            return 128 + signal.SIGKILL
        if select.select(watched, [], [], 0.1)[0]:
            received = os.read(orders, 64)
            for number in received or [signal.SIGKILL]:
                send(pid, number)
            watched = watched if received else []
    return exit_code(command, environment, plan, exits)


def exit_code(command, environment, plan, exits, seconds=10):
    """Return the exit code of a container that has ended: of the monitor's file, or of podman,
    which removes the file after it has read it.
    """
    question = command[: command.index("run")] + [
        "inspect",
        "--type=container",
        "--format={{.State.Status}} {{.State.ExitCode}}",
        plan["name"],
    ]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        text = _files.read(exits).strip()
        if text.isdigit():
            return int(text)
        answer = subprocess.run(
            question,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        state, _blank, code = answer.stdout.decode(errors="replace").strip().partition(" ")
        if state in ("exited", "stopped") and code.isdigit():
            return int(code)
        time.sleep(0.05)
    return 128 + signal.SIGKILL


def parent(pid):
    """Return the parent of a process, or 0 if the process has ended."""
    fields = _files.read("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[0] not in "ZX" else 0


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def forget(command, environment, plan):
    """Remove the container. The epilog removes the whole store, so a failure does not matter."""
    removal = command[: command.index("run")] + [
        "rm",
        "--force",
        "--ignore",
        "--time=0",
        plan["name"],
    ]
    subprocess.run(
        removal,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def newest_task(tasks, number):
    """Return the folder of a task's last run.

    C(tasks) are the folders task.STEP.N with the time of each.
    """
    own = [
        (changed, name)
        for name, changed in tasks
        if re.match(r"task\.(?:\d+|batch|interactive)\.%d$" % number, name)
    ]
    return max(own)[1] if own else None


def container_name(job, task):
    """Return the name of the container of a task, whose folder is C(task.STEP.NUMBER)."""
    return "job-%s.%s" % (job, task[len("task.") :])


def enter_command(container, config, terminal, command, root=False):
    """Return the command of podman that runs a command in a container of the job, with its
    environment.

    C(container) has its C(name) and what P(podman_command) needs to find it: C(store), C(runtime)
    and C(stores). As root it is a root whose files are the person's, as the share has them: ID 0 of
    the container itself is one that only this host knows.
    """
    options = podman_command(container, config, options_only=True)
    options += (
        ["exec"]
        + (["--interactive", "--tty"] if terminal else ["--interactive"])
        + (["--user=0:0"] if root else [])
    )
    return (
        options
        + [
            container["name"],
            "/bin/sh",
            "-c",
            START_ROOT if root else START,
            "sh",
        ]
        + ([str(os.getuid()), str(os.getgid())] if root else [])
        + command
    )


def running_task(number, environment):
    """Return job, runtime folder and name of the last run of a task on this host."""
    job = environment.get("SLURM_JOB_ID") or ""
    runtime = os.path.join(RUNTIME, job)
    try:
        tasks = (
            [
                (name, os.stat(os.path.join(runtime, name)).st_mtime)
                for name in os.listdir(runtime)
                if name.startswith("task.")
            ]
            if job.isdigit()
            else []
        )
    except OSError:
        tasks = []
    name = newest_task(tasks, number)
    if not name:
        raise Refused(
            "task %d of job %s has no container on this host"
            % (number, job or "(none: SLURM_JOB_ID is not set)")
        )
    return job, runtime, name


def enter(options, environment, config):
    """Replace this process by one in the running container of a task."""
    job, runtime, name = running_task(options.enter, environment)
    if options.root and not (_files.read_json(os.path.join(runtime, name, "job.json")) or {}).get(
        "root"
    ):
        raise Refused(
            (
                "only instances of the hub can be entered as root; in a job, everything runs as "
                "its person"
            )
        )
    container = {
        "name": container_name(job, name),
        "store": os.path.join(config["storage"], "jobs", job, "store"),
        "runtime": runtime,
        "stores": [],
    }
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    command = enter_command(container, config, terminal, options.command, options.root)
    if options.dry_run:
        print(" ".join(shlex.quote(word) for word in command))
        return 0
    os.execve(command[0], command, podman_environment(runtime, environment))


def save(options, environment, config):
    """Save the container of task 0 as an image, and print the name of the image."""
    job, runtime, name = running_task(0, environment)
    entry = pwd.getpwuid(os.getuid())
    disk = os.path.join(config["storage"], "jobs", job)
    store, stores = os.path.join(disk, "store"), own_stores(config, entry.pw_uid)
    place = {
        "command": podman_command(
            {"store": store, "runtime": runtime, "stores": stores}, config, options_only=True
        ),
        "store": store,
        "stores": stores,
        "folder": disk,
        "lock": os.path.join(runtime, "save.lock"),
    }
    images = beside("_images")
    try:
        image = images.save(
            options.save,
            container_name(job, name),
            {"name": entry.pw_name, "uid": entry.pw_uid},
            config,
            place,
            podman_environment(runtime, environment),
        )
    except (images.ImageError, images.RegistryError) as problem:
        raise Refused("the container is not saved, and goes on: %s" % problem) from None
    print("saved as %s" % image)
    return 0


def main(argv):
    options = arguments_of(argv)
    config = _files.read_json(CONFIG)
    if config is None:
        raise Refused(
            "%s is missing or damaged; tell the operator to run playbook scheduler" % CONFIG
        )
    if options.save is not None:
        return save(options, os.environ, config)
    if options.enter is not None:
        return enter(options, os.environ, config)
    plan = prepare(options, os.environ, config)
    command = podman_command(plan, config)
    if options.dry_run:
        print(" ".join(shlex.quote(word) for word in command))
        return 0
    environment = podman_environment(plan["runtime"], os.environ)
    if plan["terminal"]:
        os.execve(command[0], command, environment)
    for name in ("pid", "id", "monitor"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(plan["folder"], name))
    return supervise(command, environment, plan, config.get("forward_signals", True))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TimeoutError as problem:
        print("trainyard-run: %s" % problem, file=sys.stderr)
        sys.exit(NO_PEER)
    except (Refused, _gpu_numbers.DeviceError) as problem:
        print("trainyard-run: %s" % problem, file=sys.stderr)
        sys.exit(NOT_STARTED)
