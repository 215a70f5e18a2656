# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts the ranks of a training program on the hosts of a job.

    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- trainyard-launch torchrun train.py
    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- trainyard-launch mpirun python3 train.py
    srun -N2 --gpus-per-node=1 trainyard-run IMAGE -- trainyard-launch run ./train.sh

Each worker of the step calls it. torchrun runs on each of them. horovodrun and mpirun run on worker 0, and the others run an sshd of the job until it ends: as
the user, with keys that were made for the step. With run, worker 0 has an sshd, too, and its command calls a launcher itself. trainyard-run has prepared
hosts, ports and keys. Arguments of the user win over those of this program.
This runs in training images, so it is Python 3.6 with only the standard library.
"""

import hmac
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

INSIDE = "/run/trainyard"
LAUNCHERS = ("torchrun", "horovodrun", "mpirun", "sshd", "run")
#: Set in a command of worker 0 whose other workers run their sshd already.
READY = "TRAINYARD_WORKERS_READY"
#: Seconds for the other workers: their images start at other times.
PEER_SECONDS = 120
NOT_STARTED = 125
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
#: Variables that describe the step of this worker. mpirun and its daemons would take them for their own and start through Slurm.
OF_SLURM = ("SLURM_", "PMI_", "PMIX_", "PMI2_", "HYDRA_", "I_MPI_HYDRA_", "OMPI_MCA_plm_slurm", "PRTE_MCA_plm_slurm")
KEPT_OF_SLURM = ("SLURM_JOB_ID",)


class Refused(Exception):
    """The ranks cannot be started. The message is for the user."""


# --- pure functions: from the job to commands and files ---

def slots(job):
    return sum(entry["slots"] for entry in job["entries"])


def torchrun(job, arguments):
    """Return the command. torchrun takes the last of several equal options, so those of the user win."""
    me, first = job["entries"][job["index"]], job["entries"][0]
    return ["torchrun", "--nnodes=%d" % job["count"], "--nproc-per-node=%d" % me["slots"], "--rdzv-backend=c10d",
            "--rdzv-id=%s.%s" % (job["job"], job["step"]), "--rdzv-endpoint=%s:%d" % (first["address"], job["ports"]["master"]),
            "--rdzv-conf=is_host=%d" % (job["index"] == 0), "--local-addr=%s" % me["address"]] + arguments


def horovodrun(job, arguments):
    # Versions before 0.25 have the singular only, and later ones accept it.
    interface = ["--network-interface", job["interface"]] if job.get("interface") else []
    several = ["-hostfile", INSIDE + "/hosts", "-p", str(job["ports"]["ssh"])] + interface if job["count"] > 1 else ["-H", "localhost:%d" % slots(job)]
    return ["horovodrun", "-np", str(slots(job))] + several + arguments


def mpirun(job, arguments):
    # Without -np there is one rank per slot.
    return ["mpirun", "--hostfile", INSIDE + "/hosts"] + arguments


def command_of(launcher, job, arguments):
    return {"torchrun": torchrun, "horovodrun": horovodrun, "mpirun": mpirun, "run": lambda _job, words: words}[launcher](job, arguments)


def launch_environment(environment, launcher):
    """Return the environment of the launcher. Options of Open MPI are variables here, so that arguments of the user win over them."""
    kept = {name: value for name, value in environment.items()
            if launcher == "torchrun" or name in KEPT_OF_SLURM or not name.startswith(OF_SLURM)}
    kept["PATH"] = INSIDE + "/bin:" + kept.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    if launcher not in ("mpirun", "run"):
        return kept
    # Open MPI 4 and earlier have OMPI_MCA, and 5 has PRTE_MCA for its daemons.
    options = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": INSIDE + "/bin/ssh", "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
               "PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": INSIDE + "/bin/ssh"}
    if kept.get("TRAINYARD_NETWORK"):
        options.update(OMPI_MCA_oob_tcp_if_include=kept["TRAINYARD_NETWORK"], PRTE_MCA_prte_if_include=kept["TRAINYARD_NETWORK"])
    if kept.get("TRAINYARD_FABRIC"):
        options["OMPI_MCA_btl_tcp_if_include"] = kept["TRAINYARD_FABRIC"]
    return dict(options, **kept)


def sshd_config(job, user, folder=INSIDE):
    """Return the configuration of the job's sshd. It accepts the key of the step only, and only the user who runs it."""
    lines = ["Port %d" % job["ports"]["ssh"], "ListenAddress %s" % job["entries"][job["index"]]["address"], "HostKey %s/ssh/host_key" % folder,
             "AuthorizedKeysFile %s/ssh/authorized_keys" % folder, "AuthenticationMethods publickey", "AllowUsers %s" % user, "PidFile none", "UsePAM no",
             "PermitRootLogin no", "PermitUserEnvironment no", "AllowTcpForwarding no", "AllowAgentForwarding no", "X11Forwarding no", "PermitTunnel no",
             "PrintMotd no", "MaxStartups 1024", "LogLevel FATAL", "ForceCommand %s/bin/session" % folder]
    return "\n".join(lines) + "\n"


def client_config(job, user, folder=INSIDE):
    lines = ["Host *", "  Port %d" % job["ports"]["ssh"], "  User %s" % user, "  IdentityFile %s/ssh/id" % folder, "  IdentitiesOnly yes",
             "  UserKnownHostsFile %s/ssh/known_hosts" % folder, "  GlobalKnownHostsFile /dev/null", "  StrictHostKeyChecking yes", "  BatchMode yes",
             "  PreferredAuthentications publickey", "  ConnectTimeout 10", "  LogLevel ERROR"]
    return "\n".join(lines) + "\n"


def known_hosts(job):
    key = " ".join(job["keys"]["host_public"].split()[:2])
    return "".join("[%s]:%d %s\n" % (address, job["ports"]["ssh"], key) for address in sorted({entry["address"] for entry in job["entries"]}))


def shell_value(text):
    return "'" + text.replace("'", "'\\''") + "'"


def session_text(environment):
    """Return the environment of this worker for sessions of the job's sshd, which itself gives nearly none."""
    return "".join("export %s=%s\n" % (name, shell_value(value)) for name, value in sorted(environment.items()) if name.replace("_", "a").isalnum())


#: What a session of the job's sshd runs: the command that was sent.
SESSION_PROGRAM = "#!/bin/sh\n. " + INSIDE + "/ssh/environment\nexec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
#: Host keys are checked although horovodrun's own ssh options switch that off: ssh uses the first value, and this program puts C(yes) before them.
SSH_PROGRAM = "#!/bin/sh\nexec %s -F " + INSIDE + "/ssh/config -o StrictHostKeyChecking=yes \"$@\"\n"


def files(job, user, ssh, environment):
    """Return the files of the ssh connections: path below the folder of the task, content and mode."""
    keys = job["keys"]
    return [("ssh/id", keys["user_private"], 0o600), ("ssh/host_key", keys["host_private"], 0o600), ("ssh/authorized_keys", keys["user_public"], 0o600),
            ("ssh/known_hosts", known_hosts(job), 0o600), ("ssh/config", client_config(job, user), 0o600), ("ssh/sshd_config", sshd_config(job, user), 0o600),
            ("bin/ssh", SSH_PROGRAM % ssh, 0o700), ("bin/session", SESSION_PROGRAM, 0o700), ("ssh/environment", session_text(environment), 0o600)]


def proof(job, nonce, index):
    """Return what shows that a worker belongs to the step: only its workers have the key."""
    return hmac.new(job["keys"]["user_private"].encode(), ("%s %d" % (nonce, index)).encode(), "sha256").hexdigest()


# --- the container ---

def read_job(folder=INSIDE):
    try:
        with open(folder + "/job.json", encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        raise Refused("%s/job.json is missing: this is not a container of trainyard-run; start it as in: "
                      "srun trainyard-run IMAGE -- trainyard-launch ..." % folder)


def find(program, package):
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not path:
        raise Refused("the image has no %s; use an image with %s, such as the one of role training_image" % (program, package))
    return path


def write_files(entries, folder=INSIDE):
    for name, content, mode in entries:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as stream:
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

    def wait(self, seconds=PEER_SECONDS):
        """Wait until the sshd of each other host runs."""
        expected = {index for index, entry in enumerate(self.job["entries"]) if index and entry["local"] == 0}
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
                index, _blank, said = lines_of(connection).partition(" ")
                if index.isdigit() and int(index) in expected and hmac.compare_digest(said, proof(self.job, nonce, int(index))):
                    self.connections[int(index)] = connection
                else:
                    connection.close()
            except OSError:
                pass
            if time.time() > deadline:
                missing = sorted(expected - set(self.connections))
                raise Refused("worker %s did not start its sshd within %d seconds; each worker of the step has to call trainyard-launch" %
                              (", ".join(map(str, missing)), seconds))
        server.close()

    def watch(self, child):
        for index, connection in self.connections.items():
            threading.Thread(target=self._watch, args=(index, connection, child), daemon=True).start()

    def _watch(self, index, connection, child):
        connection.settimeout(None)
        try:
            connection.recv(1)
        except OSError:
            pass
        if not self.ended:
            self.lost = index
            child.terminate()

    def end(self, code):
        self.ended = True
        for connection in self.connections.values():
            try:
                connection.sendall(("end %d\n" % code).encode())
            except OSError:
                pass


def run(command, environment, before=None):
    """Run a command, pass the signals of this process on to it, and return its exit code."""
    find(command[0], command[0])
    child = subprocess.Popen(command, env=environment)
    for number in SIGNALS:
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    if before:
        before(child)
    code = child.wait()
    return 128 - code if code < 0 else code


def lead(job, launcher, arguments, environment):
    """Worker 0 of several: start the launcher when all others are ready, and end them after it."""
    workers = Workers(job)
    workers.wait()
    # What a person calls may also connect to its own host: they see all hosts in the host file.
    own = start_sshd(job) if launcher == "run" else None
    code = run(command_of(launcher, job, arguments), dict(environment, **{READY: job["step"]}), workers.watch)
    workers.end(code)
    if own:
        own.kill()
    if workers.lost is not None:
        print("trainyard-launch: worker %d on %s has gone" % (workers.lost, job["entries"][workers.lost]["address"]), file=sys.stderr)
        return code or 1
    return code


def connect(job, seconds=PEER_SECONDS):
    """Return the connection of a worker to worker 0."""
    first = (job["entries"][0]["address"], job["ports"]["control"])
    deadline = time.time() + seconds
    while True:
        try:
            connection = socket.create_connection(first, timeout=10)
            connection.sendall(("%d %s\n" % (job["index"], proof(job, lines_of(connection), job["index"]))).encode())
            connection.settimeout(None)
            return connection
        except OSError:
            if time.time() > deadline:
                raise Refused("worker 0 on %s did not answer within %d seconds; see its messages" % (first[0], seconds))
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
    raise Refused("sshd does not listen on port %d of %s; see its message above" % (address[1], address[0]))


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
        said = lines_of(connection)
    finally:
        child.kill()
    if not said.startswith("end "):
        raise Refused("worker 0 on %s has gone" % job["entries"][0]["address"])
    return 0


def main(argv):
    if not argv or argv[0] not in LAUNCHERS or (len(argv) < 2 and argv[0] != "sshd"):
        raise Refused("usage: trainyard-launch torchrun|horovodrun|mpirun|run ARGUMENT...")
    launcher, arguments = argv[0], argv[1:]
    job = read_job()
    environment = launch_environment(dict(os.environ), launcher)
    if launcher == "torchrun" or job["count"] == 1 and launcher != "sshd" or environment.get(READY) == job["step"] and job["index"] == 0:
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
