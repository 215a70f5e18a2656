# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an instance of the hub on its host, in the job of its person. It has no privilege.

    server run FILE      the batch script of the job: the container, and beside it JupyterLab
    server kernel FILE   a kernel of JupyterLab, in the container; FILE is its connection file
    server shell [root]  a terminal of JupyterLab, in the container
    server save NAME     the container, as an image of the person in the registry of the cluster
    server tensorboard FOLDER SOCKET
                         TensorBoard of the image, in the container
    server vscode SOCKET VS Code in the browser, on a socket in the folder of the job

JupyterLab runs in an environment of the host, because images may have an old Python. What people
type runs in the container of the image that they have chosen.
"""

import contextlib
import glob
import ipaddress
import json
import os
import pwd
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
from _messages import Refused, say

CONFIG = "/etc/trainyard/notebook/server.json"
HERE = "/usr/local/lib/trainyard/notebook"
RUN = "/usr/local/bin/trainyard-run"
#: Program of role jobs that serves TensorBoard in a container, and its path there.
SERVICES, SERVICES_INSIDE = (
    "/usr/local/lib/trainyard/jobs/services",
    "/usr/local/lib/trainyard/services",
)
#: Settings of JupyterLab, and those that turn off what only hosts with GPUs have.
SETTINGS, WITHOUT_GPUS = HERE + "/share/jupyter/settings", HERE + "/share/jupyter/without-gpus"
VSCODE = HERE + "/vscode"
#: Made by the prolog, for the person of the job only.
JOBS = "/run/trainyard/jobs"
#: Seconds in which a container starts, and in which the hub takes the port.
CONTAINER_SECONDS, HUB_SECONDS = 300, 60
#: Seconds in which JupyterLab has its port, and how often it is started with another one.
SERVER_SECONDS, STARTS = 120, 3
#: Seconds between two looks at kernels and the container.
LOOK = 5
HOLD = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
#: Its process ID is needed to interrupt and to end it: signals do not reach a container through
#: podman exec.
KERNEL = (
    'cd "$1" 2> /dev/null; echo $$ > "$2"; exec ${TRAINYARD_KERNEL_PYTHON:-python3} -m '
    'ipykernel_launcher -f "$3"'
)
TENSORBOARD = (
    'echo $$ > "$1"; export CUDA_VISIBLE_DEVICES=; exec ${TRAINYARD_KERNEL_PYTHON:-python3} %s '
    'tensorboard "$2" "$3"'
) % SERVICES_INSIDE
#: As it comes, VS Code asks other hosts for updates, reports its use, and opens a chat whose models
#: are outside.
VSCODE_CONFIG = (
    "auth: none\ndisable-telemetry: true\ndisable-update-check: true\ndisable-workspace-trust: "
    "true\ndisable-getting-started-override: true\n"
)
VSCODE_DEFAULTS = {
    "terminal.integrated.defaultProfile.linux": "container",
    "telemetry.telemetryLevel": "off",
    "chat.disableAIFeatures": True,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
}
#: Files of an identity, in the runtime folder. JupyterLab removes them after it has read them.
IDENTITY = {"certificate": "identity.pem", "key": "identity.key", "authority": "authority.pem"}
SHELL = 'cd "$1" 2> /dev/null; exec $(command -v bash || echo sh)'


# --- pure functions ---


def server_environment(secret, person, runtime, url, config, gpus=True):
    """Return the environment of JupyterLab.

    Nothing of the job's reaches it, and nothing of it reaches the container.
    """
    found = {
        name: value
        for name, value in secret.items()
        if re.match(r"(JUPYTERHUB_[A-Z_]+|JPY_API_TOKEN)$", name)
    }
    found.update(
        PATH="%s/bin:/usr/local/bin:/usr/bin:/bin" % config["environment"],
        HOME=person["home"],
        USER=person["name"],
        LOGNAME=person["name"],
        LANG="C.UTF-8",
        SHELL="/bin/bash",
        JUPYTER_RUNTIME_DIR=runtime,
        JUPYTER_PATH=HERE + "/share/jupyter",
        JUPYTERHUB_SERVICE_URL=url,
        # Packages of the person for this Python would be loaded before those of the environment.
        PYTHONNOUSERSITE="1",
    )
    found["JUPYTER_CONFIG_PATH"] = SETTINGS if gpus else "%s:%s" % (SETTINGS, WITHOUT_GPUS)
    if config["ca"]:
        found["SSL_CERT_FILE"] = config["ca"]
    return found


def job_variables(environment):
    """Return what trainyard-run needs to find the job."""
    return {
        name: environment[name]
        for name in environment
        if name.startswith("SLURM") or name in ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TERM")
    }


def container_command(secret, runtime):
    shared = ["--shm-size=%dm" % secret["shared_memory"]] if secret.get("shared_memory") else []
    return (
        [
            RUN,
            "--alone",
            "--root",
            "--mount=" + runtime,
            "--mount=%s:%s:ro" % (SERVICES, SERVICES_INSIDE),
        ]
        + shared
        + [secret["image"], "--", "/bin/sh", "-c", HOLD]
    )


def instance_of(secret, person, job, config):
    """Return what the page of the instance shows. Nothing of it is secret."""
    return {
        "name": secret["name"],
        "job": job,
        "ssh": (secret.get("ssh") or "").replace("NUMBER", job),
        "person": person["name"],
        "home": person["home"],
        "folders": secret.get("folders") or [person["home"]],
        "idle": config.get("idle") or {},
        "private_images": bool(config.get("private_images")),
    }


def address_of(config, node):
    if node not in config["addresses"]:
        raise Refused(
            "host %s has no address in %s; tell the operator to run playbook workbench"
            % (node, CONFIG)
        )
    return config["addresses"][node]


def vscode_command(path, folder=VSCODE):
    """Return the command of VS Code.

    JupyterLab, which asks who somebody is, is the only way to its socket. There is no token.
    """
    runtime = os.path.dirname(path)
    return [
        folder + "/lib/node",
        folder + "/out/node/entry.js",
        "--config=" + runtime + "/vscode.yaml",
        "--socket=" + path,
        "--socket-mode=600",
        "--session-socket=" + runtime + "/vscode-session.sock",
    ]


def vscode_environment(environment, runtime):
    """Return the environment of VS Code, which its terminals and extensions have, too: without what
    admits to the hub. Its other sockets are private, too.
    """
    found = {
        name: value
        for name, value in environment.items()
        if not re.match(r"JUPYTER|JPY_|SSL_CERT_FILE|PASSWORD|HASHED_PASSWORD|VSCODE_|PORT$", name)
    }
    return dict(found, XDG_RUNTIME_DIR=runtime, TMPDIR=runtime)


def vscode_settings(former):
    """Return the settings of this machine: terminals in the container, where the person has not set
    something else. None if they cannot be read.
    """
    try:
        found = json.loads(former) if former.strip() else {}
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    profiles = found.get("terminal.integrated.profiles.linux")
    ours = {"container": {"path": HERE + "/server", "args": ["shell"]}}
    return dict(
        VSCODE_DEFAULTS,
        **dict(
            found,
            **{
                "terminal.integrated.profiles.linux": dict(
                    profiles if isinstance(profiles, dict) else {}, **ours
                )
            },
        ),
    )


def left_kernels(names):
    """Return the process files of kernels whose connection file JupyterLab has removed.

    C(names) are those of the runtime folder.
    """
    return [
        name
        for name in names
        if name.endswith(".pid") and name[: -len(".pid")] + ".json" not in names
    ]


# --- functions with side effects ---


def read_secret(path):
    """Read the file of the job and remove it. It has the token of the server."""
    state = os.lstat(path)
    if state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise Refused("%s is not a private file of this person" % path)
    secret = _files.load_json(path)
    os.unlink(path)
    return secret


def runtime_folder(environment):
    job = environment.get("SLURM_JOB_ID") or ""
    if not job.isdigit():
        raise Refused(
            "this is not a job of Slurm: SLURM_JOB_ID is not set. Start the instance in the hub"
        )
    return os.path.join(JOBS, job, "hub")


def inside(command, **more):
    return subprocess.run(
        [RUN, "--enter=0", "--"] + command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **more,
    )


def start_container(secret, runtime):
    child = subprocess.Popen(container_command(secret, runtime), stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + CONTAINER_SECONDS
    # Of trainyard-run, while it pulls the image. Meanwhile it answers nothing.
    pulling = os.path.join(os.path.dirname(runtime), "pulling")
    while os.path.exists(pulling) or inside(["/bin/sh", "-c", ":"]).returncode:
        if child.poll() is not None:
            raise Refused(
                "the container has ended with exit code %d; the reason is above" % child.returncode
            )
        if os.path.exists(pulling):
            deadline = time.monotonic() + CONTAINER_SECONDS
        elif time.monotonic() > deadline:
            child.terminate()
            raise Refused("the container did not start within %d s" % CONTAINER_SECONDS)
        time.sleep(0.3)
    return child


def free_port(address, ports):
    """Return a port of the range that is free, by chance: two instances that start at once should
    not find the same.
    """
    first, last = ports
    for port in random.sample(range(first, last + 1), last + 1 - first):
        with socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
        ) as probe, contextlib.suppress(OSError):
            # JupyterLab sets it, too. Without it, a port whose last connection has just ended is
            # not free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            return port
    raise Refused(
        (
            "all ports from %d to %d of %s are in use. Tell the operator to set a larger range, "
            "jupyterhub_instance_ports"
        )
        % (first, last, address)
    )


def listens(tables, address, port, sockets):
    """Return whether one of these sockets, by their numbers, listens there.

    C(tables) is the text of /proc/net/tcp and tcp6, in the byte order of the host.
    """
    packed = ipaddress.ip_address(address).packed
    words = [
        "%08X" % int.from_bytes(packed[at : at + 4], sys.byteorder)
        for at in range(0, len(packed), 4)
    ]
    place = "%s:%04X" % ("".join(words), port)
    rows = (line.split() for line in tables.splitlines())
    return any(
        row[1] == place and row[3] == "0A" and row[9] in sockets for row in rows if len(row) > 9
    )


def sockets_of(pid):
    """Return the numbers of the sockets that a process has open."""
    found = set()
    for path in glob.glob("/proc/%d/fd/*" % pid):
        with contextlib.suppress(OSError):
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(path))
            found |= {match.group(1)} if match else set()
    return found


def start_server(command, environment_of, address, ports, children, stopped):
    """Start the server, and return it with its port once it has the port itself: somebody else may
    take one between the search and the start.

    The server is added to C(children). C(stopped) is not empty once the instance has to end.
    """
    for _attempt in range(STARTS):
        if stopped:
            break
        port = free_port(address, ports)
        server = subprocess.Popen(command, env=environment_of(port), stdin=subprocess.DEVNULL)
        children.append(server)
        deadline = time.monotonic() + SERVER_SECONDS
        while server.poll() is None:
            if listens(
                _files.read("/proc/net/tcp") + _files.read("/proc/net/tcp6"),
                address,
                port,
                sockets_of(server.pid),
            ):
                return server, port
            if time.monotonic() > deadline:
                server.terminate()
                raise Refused(
                    "JupyterLab did not start within %d s; its log is above" % SERVER_SECONDS
                )
            time.sleep(0.1)
        say("JupyterLab has ended with exit code %d; its log is above" % server.returncode)
    raise Refused(
        "the instance was stopped while it started"
        if stopped
        else "JupyterLab does not start; the reason is above"
    )


def tell_hub(secret, port, config):
    """Tell the hub the port of the server."""
    request = urllib.request.Request(
        secret["JUPYTERHUB_API_URL"] + "/trainyard/instance",
        json.dumps({"port": port}).encode(),
        method="POST",
        headers={
            "Authorization": "token " + secret["JUPYTERHUB_API_TOKEN"],
            "Content-Type": "application/json",
        },
    )
    context = ssl.create_default_context(cafile=config["ca"] or None)
    # A proxy for other networks has no way to the hub.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    deadline = time.monotonic() + HUB_SECONDS
    while True:
        reason = None
        try:
            with opener.open(request, timeout=10):
                return
        except urllib.error.HTTPError as error:
            # It does not know the token: the start was given up.
            if error.code < 500:
                raise Refused(
                    "the hub does not expect this server (HTTP status %d)" % error.code
                ) from error
            reason = error
        except OSError as error:
            reason = error
        if time.monotonic() > deadline:
            raise Refused(
                "the hub at %s does not answer: %s. Tell the operator"
                % (secret["JUPYTERHUB_API_URL"], reason)
            )
        time.sleep(2)


def end_left_kernels(runtime):
    for name in left_kernels(os.listdir(runtime)):
        path = os.path.join(runtime, name)
        with open(path, encoding="utf-8") as stream:
            number = stream.read().strip()
        os.unlink(path)
        if number.isdigit() and int(number) > 1:
            inside(["/bin/sh", "-c", "kill -9 " + number])


def write_identity(secret: dict, runtime: str) -> None:
    """Write the files by which JupyterLab proves that the hub has started it."""
    identity = secret.get("identity")
    if not identity:
        raise Refused("the hub has sent no identity for this instance; start it again in the hub")
    for key, name in IDENTITY.items():
        _files.write_private("%s/%s" % (runtime, name), identity[key])


def link_share(home, folders):
    """Let the file browser of JupyterLab, which shows the home, reach the share: as C(share),
    unless the home has something of that name.

    C(folders) are those that the container has, too.
    """
    for folder in folders:
        inside = os.path.join(os.path.realpath(home), "")
        if not os.path.join(os.path.realpath(folder), "").startswith(inside):
            with contextlib.suppress(OSError):
                os.symlink(folder, os.path.join(home, "share"))


def run(path):
    config, secret = _files.load_json(CONFIG), read_secret(path)
    entry = pwd.getpwuid(os.getuid())
    runtime = runtime_folder(os.environ)
    os.makedirs(runtime, mode=0o700, exist_ok=True)
    address = address_of(config, os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    person = {"home": entry.pw_dir, "name": entry.pw_name}
    _files.write_private(
        runtime + "/instance.json",
        json.dumps(instance_of(secret, person, os.environ["SLURM_JOB_ID"], config)),
    )
    link_share(entry.pw_dir, secret.get("folders") or [])
    container = start_container(secret, runtime)
    children, stopped = [container], []

    def end(number, _frame):
        stopped.append(number)
        for child in reversed(children):
            if child.poll() is None:
                child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        host, prefix = (
            "[%s]" % address if ":" in address else address,
            secret["environment"].get("JUPYTERHUB_SERVICE_PREFIX") or "/",
        )
        has_gpus = bool(glob.glob("/proc/driver/nvidia/gpus/*"))

        def environment_of(port):
            # For each start: the last one has removed it.
            write_identity(secret, runtime)
            url = "https://%s:%d%s" % (host, port, prefix)
            return dict(
                job_variables(os.environ),
                **server_environment(secret["environment"], person, runtime, url, config, has_gpus),
            )

        os.chdir(entry.pw_dir)
        server, port = start_server(
            [
                config["environment"] + "/bin/jupyterhub-singleuser",
                "--config=" + HERE + "/jupyter_server_config.py",
                "--ServerApp.root_dir=" + entry.pw_dir,
            ],
            environment_of,
            address,
            config["ports"],
            children,
            stopped,
        )
        tell_hub(secret["environment"], port, config)
        while server.poll() is None and container.poll() is None:
            time.sleep(LOOK)
            end_left_kernels(runtime)
        if server.poll() is None:
            say("the container has ended with exit code %d" % container.returncode)
        return server.poll() or 0
    finally:
        end(0, None)
        for child in (server, container):
            if child:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(20)


def stand_for(process, words):
    """Stand for a program that runs in the container: pass an interrupt on to it, and end it.

    C(process) is the file that it writes its number to.
    """
    # In a session of its own, as JupyterLab sends signals to the whole group of this process.
    child = subprocess.Popen(
        [RUN, "--enter=0", "--", "/bin/sh", "-c"] + words,
        stdin=subprocess.DEVNULL,
        env=job_variables(os.environ),
        start_new_session=True,
    )

    def send(name):
        with contextlib.suppress(OSError, ValueError):
            with open(process, encoding="utf-8") as stream:
                inside(["/bin/sh", "-c", "kill -%s %d" % (name, int(stream.read()))])

    signal.signal(signal.SIGINT, lambda _number, _frame: send("INT"))
    signal.signal(signal.SIGTERM, lambda _number, _frame: send("KILL"))
    code = child.wait()
    with contextlib.suppress(OSError):
        os.unlink(process)
    return code


def kernel(connection):
    process = connection[: -len(".json")] + ".pid"
    return stand_for(process, [KERNEL, "sh", os.getcwd(), process, connection])


def tensorboard(folder, path):
    process = path + ".process"
    return stand_for(process, [TENSORBOARD, "sh", process, folder, path])


def shell_command(as_root, folder):
    return [RUN, "--enter=0"] + ["--root"] * as_root + ["--", "/bin/sh", "-c", SHELL, "sh", folder]


def shell(as_root):
    command = shell_command(as_root, os.getcwd())
    os.execve(command[0], command, job_variables(os.environ))


def save(name):
    """With nothing of the environment of JupyterLab, which has the token of the server."""
    os.execve(RUN, [RUN, "--save=" + name], job_variables(os.environ))


def vscode(path):
    runtime = os.path.dirname(path)
    _files.write_private(runtime + "/vscode.yaml", VSCODE_CONFIG)
    folder = os.path.expanduser("~/.local/share/code-server/Machine")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        with open(folder + "/settings.json", encoding="utf-8") as stream:
            former = stream.read()
    except FileNotFoundError:
        former = ""
    settings = vscode_settings(former)
    text = json.dumps(settings, indent=4, sort_keys=True) + "\n"
    if settings is not None and text != former:
        _files.write_private(folder + "/settings.json", text)
    command = vscode_command(path)
    os.execve(command[0], command, vscode_environment(os.environ, runtime))


def main(argv):
    try:
        if len(argv) == 2 and argv[0] in ("run", "kernel", "vscode", "save"):
            return {"run": run, "kernel": kernel, "vscode": vscode, "save": save}[argv[0]](argv[1])
        if len(argv) == 3 and argv[0] == "tensorboard":
            return tensorboard(argv[1], argv[2])
        if argv in (["shell"], ["shell", "root"]):
            return shell(len(argv) == 2)
    except Refused as problem:
        say(str(problem))
        return 1
    sys.stderr.write(
        (
            "usage: server run FILE | kernel FILE | shell [root] | save NAME | tensorboard FOLDER "
            "SOCKET | vscode SOCKET\n"
        )
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
