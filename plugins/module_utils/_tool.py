# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a tool on the host, in a running container, through that container's ssh, or in a temporary
container of an image.

What kept the tool from running comes back as a cause, not as an exception: the callers are info
modules, whose roles decide on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import tempfile
import threading
import time
import uuid

from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol
import contextlib

# Unbuffered, because a Python tool that crashes at exit (in a GPU library's exit handler) would
# lose its output. Directory /, because Python's subprocesses fail in a deleted directory.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
DIRECTORY = "/"

# Results of tools that run in the background. It is emptied at boot.
BEGUN = "/run/trainyard/begun"
KEPT = 3600
TOKEN = re.compile(r"[0-9a-f]{32}")

_NOT_RUNNING = re.compile(
    (
        r"no such container|container \S+ is (?:not running|paused|restarting)|cannot exec in a "
        r"(?:stopped|paused)"
    ),
    re.IGNORECASE,
)
_NO_EXECUTABLE = re.compile(
    r"executable file not found|exec: .*no such file or directory|exec: .*permission denied",
    re.IGNORECASE,
)
_NO_ENGINE = re.compile(
    (
        r"cannot connect to the docker daemon|permission denied while trying to connect|error "
        r"during connect|error response from daemon"
    ),
    re.IGNORECASE,
)


class Module(Protocol):
    """What functions of module_utils use of an AnsibleModule, which has no types of its own."""

    params: dict[str, Any]

    def get_bin_path(self, arg: str) -> str | None:
        """Return the path of a program, None if it is not on the PATH."""

    def run_command(self, args: list[str], **options: Any) -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr of a program."""

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """End the module with an error."""


class Login(NamedTuple):
    """An sshd in which a container logs in: its host and its port."""

    host: str
    port: int


class Run(NamedTuple):
    """Result of a run.

    C(cause) is empty if the tool itself ran; else C(evidence) is the line that shows the cause.
    """

    rc: int
    stdout: str
    stderr: str
    cause: str = ""
    evidence: str = ""


def tool_options(timeout: int, executable: str | None = None) -> dict[str, Any]:
    """The options of doc fragment C(tool), with a module's own defaults."""
    options: dict[str, Any] = {
        "container": {"type": "str"},
        "timeout": {"type": "int", "default": timeout},
    }
    return (
        dict(options, executable={"type": "str", "default": executable}) if executable else options
    )


def check_names(module: Module, *options: str) -> None:
    """A name that begins with a dash would be an option to docker and ssh."""
    for option in options:
        name = module.params[option]
        if name is not None and (not name.strip() or name.startswith("-")):
            module.fail_json(
                msg=(
                    f"{option}: '{name}' is not a valid name; use one that is not empty and does "
                    "not begin with -"
                )
            )


def check_timeout(module: Module) -> None:
    """End the module if its option C(timeout) is less than a second."""
    if module.params["timeout"] < 1:
        module.fail_json(
            msg=f"timeout: '{module.params['timeout']}' is too short; set 1 second or more"
        )


def run_tool(
    module: Module,
    command: list[str],
    timeout: int,
    container: str | None = None,
    image: str | None = None,
    login: Login | None = None,
) -> Run:
    """Run C(command) for at most C(timeout) seconds: on the host, in a temporary container of an
    image, or in a running container.

    With C(login), the container logs in there and runs it.
    """
    docker = module.get_bin_path("docker") if container or image else None
    if docker and image:
        return _run_in_image(module, docker, image, command, timeout)
    if docker and container:
        token = uuid.uuid4().hex
        options = [*_docker_options(), f"--env=TRAINYARD_CHECK={token}"]
        inside = _command_behind(login, command, timeout) if login else command
        run = _run(module, [docker, "exec", *options, container, *inside], timeout)
        if run.cause == "timeout":
            _kill(module, docker, container, token)
        elif login and run.rc == 255:
            return run._replace(cause="ssh_failed", evidence=_last(run))
        return _cause_of_docker(run)
    if container or image:
        return Run(127, "", "", "engine_unavailable", "docker is not on the PATH")
    binary = module.get_bin_path(command[0])
    if not binary:
        return Run(127, "", "", "not_installed", f"{command[0]} is not on the PATH")
    return _run(module, [binary] + command[1:], timeout)


def _docker_options() -> list[str]:
    variables = [f"--env={key}={value}" for key, value in ENVIRONMENT.items()]
    return [*variables, f"--workdir={DIRECTORY}"]


def _run_in_image(module: Module, docker: str, image: str, command: list[str], timeout: int) -> Run:
    # By its id, because docker run never pulls an id.
    found = _run(module, [docker, "image", "inspect", "--format={{.Id}}", image], timeout)
    if found.rc != 0:
        return found if found.cause == "timeout" else _cause_of_docker(found, "image_missing")
    name = f"trainyard-check-{uuid.uuid4().hex}"
    run = _run(
        module,
        [
            docker,
            "run",
            "--rm",
            f"--name={name}",
            "--label=trainyard.managed=true",
            "--network=none",
            f"--entrypoint={command[0]}",
            *_docker_options(),
            found.stdout.strip(),
            *command[1:],
        ],
        timeout,
    )
    if run.cause == "timeout":
        module.run_command([docker, "rm", "--force", "--volumes", name])
    return _cause_of_docker(run)


def _command_behind(login: Login, command: list[str], timeout: int) -> list[str]:
    """The command that runs a command where a container logs in."""
    exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in ENVIRONMENT.items())
    # With its own timeout, because remote processes survive the end of ssh.
    remote = f"cd {DIRECTORY} && {exports} exec timeout --kill-after=2 {timeout} " + " ".join(
        shlex.quote(word) for word in command
    )
    return ["ssh", "-o", "BatchMode=yes", "-p", str(login.port), "--", login.host, remote]


def identity(module: Module, container: str) -> str:
    """What differs after each start of the container; empty if it does not run."""
    docker = module.get_bin_path("docker")
    if not docker:
        return ""
    shown = "--format={{.Id}} {{.State.StartedAt}} {{.State.Status}}"
    rc, stdout, _stderr = module.run_command(
        [docker, "inspect", "--type=container", shown, container]
    )
    words = stdout.split()
    return " ".join(words) if rc == 0 and words[-1:] == ["running"] else ""


def _identity_of_run(
    module: Module, command: list[str], container: str, login: Login | None
) -> list[Any]:
    """What a run in the background and its later reader have in common, as JSON has it."""
    return [identity(module, container), command, list(login) if login else None]


def begin_tool(
    module: Module, command: list[str], timeout: int, container: str, login: Login | None = None
) -> str:
    """Run a tool in the background as run_tool does.

    Returns the token with which begun_tool gets its result, in a later module run.

    The process has a lock on the file of its result until it ends. Results that were not read
    within an hour are removed. If no file can be written, or the container does not run, the token
    is empty, and the module that needs the result runs the tool.
    """
    token = uuid.uuid4().hex
    about = _identity_of_run(module, command, container, login)
    if not about[0]:
        return ""
    try:
        os.makedirs(os.path.dirname(BEGUN), mode=0o755, exist_ok=True)
        os.makedirs(BEGUN, mode=0o700, exist_ok=True)
        for entry in os.scandir(BEGUN):
            if entry.stat().st_mtime < time.time() - KEPT:
                os.unlink(entry.path)
        result = os.open(os.path.join(BEGUN, token), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return ""
    fcntl.flock(result, fcntl.LOCK_EX)
    if os.fork() > 0:
        # The lock stays with the other process.
        os.close(result)
        return token
    try:
        leave_session()
        run = run_tool(module, command, timeout, container=container, login=login)
        os.write(result, json.dumps([about, run]).encode("ascii"))
    finally:
        # Without the handlers of the module, which would remove its temporary files a second time.
        os._exit(0)


def leave_session() -> None:
    """For a process that the module has forked and does not wait for."""
    os.setsid()
    # Whatever reads the module's output would wait for the end of all processes that have it open.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def begun_tool(
    module: Module,
    token: str,
    command: list[str],
    timeout: int,
    container: str,
    login: Login | None = None,
) -> Run | None:
    """Await the Run of a tool that begin_tool has started for the same command and place.

    None if there is none, or if the container has restarted.
    """
    path = os.path.join(BEGUN, token)
    if not TOKEN.fullmatch(token) or not os.path.exists(path):
        return None
    with open(path, encoding="ascii") as result:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(result, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.02)
        text = result.read()
    os.unlink(path)
    if not text:
        return None
    about, run = json.loads(text)
    return Run(*run) if about == _identity_of_run(module, command, container, login) else None


def _run(module: Module, argv: list[str], timeout: int) -> Run:
    """Run it in its own process group, which is killed as a whole after C(timeout) seconds.

    Not by run_command and timeout(1): run_command looks twice in a row whether a program that has
    closed its output has ended too. Where it ends between the two, which timeout(1) does once in a
    hundred times, run_command waits for a second for nothing.
    """
    ended, expired = threading.Event(), threading.Event()

    def end(group: int) -> None:
        if not ended.wait(timeout):
            expired.set()
            _signal(group, signal.SIGTERM)
            ended.wait(2)
            # Also if the tool itself has ended, because its children may still run.
            _signal(group, signal.SIGKILL)

    # Files, because remaining children could keep a pipe open for ever.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            process = _start(argv, stdout, stderr)
        except OSError as exc:
            module.fail_json(
                msg=f"{argv[0]} cannot be run: {exc.strerror}. It must be an executable program "
                "for this machine. Install it "
                "again, or correct the option executable"
            )
        watch = threading.Thread(target=end, args=(process,))
        watch.start()
        status = os.waitpid(process, 0)[1]
        ended.set()
        watch.join()
        out, err = _text_of(stdout), _text_of(stderr)
    if expired.is_set():
        return Run(124, out, err, "timeout", f"it did not end within {timeout} s")
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Run(code, out, err)


def _text_of(stream: BinaryIO) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def _start(argv: list[str], stdout: BinaryIO, stderr: BinaryIO) -> int:
    """Start the tool in a session of its own, with these files.

    Returns its process ID. OSError if it cannot be run.

    By fork and exec, because ansible-test accepts no function that starts a program in module_utils
    but run_command.
    """
    # An exec closes the pipe.
    answer, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setsid()
            os.chdir(DIRECTORY)
            for descriptor, source in enumerate(
                (os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stderr.fileno())
            ):
                os.dup2(source, descriptor)
            # Python ignores them.
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            os.execve(argv[0], argv, dict(os.environ, **ENVIRONMENT))
        except OSError as error:
            os.write(writer, str(error.errno).encode("ascii"))
        finally:
            os._exit(127)
    os.close(writer)
    with open(answer, "rb") as stream:
        number = int(stream.read() or 0)
    if number:
        os.waitpid(process, 0)
        raise OSError(number, os.strerror(number))
    return process


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _kill(module: Module, docker: str, container: str, token: str) -> None:
    """If docker exec is killed, its process stays in the container. Find it by its environment."""
    _rc, stdout, _stderr = module.run_command([docker, "top", container, "-eo", "pid"])
    for pid in [int(word) for word in stdout.split() if word.isdigit()]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if f"TRAINYARD_CHECK={token}".encode() in environ.read().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


def _cause_of_docker(run: Run, otherwise: str = "") -> Run:
    if run.cause or run.rc == 0:
        return run
    # Engines before 20.10 print runtime errors to stdout.
    for line in (run.stderr + "\n" + run.stdout).splitlines():
        for cause, pattern in (
            ("container_not_running", _NOT_RUNNING),
            ("not_installed", _NO_EXECUTABLE),
        ):
            if pattern.search(line) and not otherwise:
                return run._replace(cause=cause, evidence=line.strip())
        if _NO_ENGINE.search(line) and "no such image" not in line.lower():
            return run._replace(cause="engine_unavailable", evidence=line.strip())
    return run._replace(cause=otherwise, evidence=_last(run) if otherwise else "")


def _last(run: Run) -> str:
    lines = [line.strip() for line in (run.stdout + "\n" + run.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {run.rc}"
