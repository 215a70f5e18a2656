# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the command of one rank and records where it ran, how it ended and what it printed.

All launchers start every rank of a job through this file. It writes rank.N.log (the unchanged
output) and rank.N.json into TRAINYARD_JOB_DIR. rank.N.json is written at the start and at the end,
so that a killed rank is also recorded. The command can report a checksum and metrics by writing a
JSON object to the path in TRAINYARD_RANK_REPORT. Python 3.6, for old training images.
"""

import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import typing

LONGEST_LINE = 65536
# Of prctl(2).
PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61


def first_of(environment: typing.Mapping[str, str], *names: str) -> typing.Optional[int]:
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


def place(
    environment: typing.Mapping[str, str],
) -> typing.Tuple[typing.Optional[int], typing.Optional[int], typing.Optional[int]]:
    """Return (rank, slot on this host, world size) from the variables of torchrun, Horovod, Open
    MPI or MPICH.
    """
    return (
        first_of(environment, "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"),
        first_of(
            environment,
            "HOROVOD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "MPI_LOCALRANKID",
            "LOCAL_RANK",
        ),
        first_of(environment, "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"),
    )


def container_id(mountinfo: str) -> typing.Optional[str]:
    """Return the container's ID.

    Docker mounts hosts, hostname and resolv.conf from a folder with this name. With the host
    network nothing else shows it.
    """
    found = re.search(r"/containers/([0-9a-f]{64})/", mountinfo)
    return found.group(1) if found else None


def local_addresses(fib_trie: str) -> typing.List[str]:
    """Return the IPv4 addresses of this machine, which show where a rank ran, independently of the
    launcher's settings.
    """
    addresses = set()
    last = None
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            last = words[1]
        elif words[:2] == ["/32", "host"] and words[2:] == ["LOCAL"] and last:
            addresses.add(last)
    return sorted(addresses)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def oom_kills(vmstat: str) -> typing.Optional[int]:
    """Return how many processes the kernel of this host has killed since its boot because memory
    was full, in a control group or on the host.

    None if the kernel does not count them (before Linux 4.13).
    """
    found = re.search(r"^oom_kill (\d+)$", vmstat, re.MULTILINE)
    return int(found.group(1)) if found else None


def write_json(path: str, value: object) -> None:
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1, sort_keys=True)
        stream.write("\n")
    os.rename(path + ".new", path)


def in_own_group() -> None:
    """Create a process group, so that a signal reaches all processes of the command, and end with
    this process, even after SIGKILL.

    An aborted rank leaves no core file, which is as large as its memory and may be on the share.
    The command may raise the limit.

    Other processes of the same user may read the stack of a rank that hangs, where
    kernel.yama.ptrace_scope is 1, as on Ubuntu.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.setpgid(0, 0)
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    library.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


def end_without_launcher(child: "subprocess.Popen[bytes]", launcher: int) -> None:
    """End the rank if its launcher has ended, because it would keep the launcher's ssh connection
    open.
    """
    while os.getppid() == launcher:
        time.sleep(0.5)
    pass_on(child, signal.SIGTERM)
    time.sleep(3)
    pass_on(child, signal.SIGKILL)


def pass_on(child: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except OSError:
        # The process has already ended.
        return


def copy_output(child: "subprocess.Popen[bytes]", log: typing.BinaryIO, prefix: bytes) -> None:
    """Write the output unchanged to the log, and complete lines with the rank as prefix to the
    launcher.
    """
    source = typing.cast(typing.BinaryIO, child.stdout).fileno()
    pending = b""
    while True:
        if not select.select([source], [], [], 1)[0]:
            if child.poll() is None:
                continue
            # A process left by the command keeps the pipe open, but the rank has ended.
            chunk = b""
        else:
            chunk = os.read(source, LONGEST_LINE)
        log.write(chunk)
        pending += chunk
        end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if not chunk or len(pending) > LONGEST_LINE:
            end = len(pending)
        if end:
            lines = pending[:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n").splitlines()
            pending = pending[end:]
            sys.stdout.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
        if not chunk:
            return


def not_started(command: typing.List[str], error: OSError) -> typing.Tuple[int, str]:
    """Return the exit code of a command that cannot be started, as a shell has it, and its
    words.
    """
    if isinstance(error, FileNotFoundError):
        return 127, "%s: command not found" % command[0]
    return 126, "%s: %s" % (command[0], error.strerror)


def main() -> None:
    launcher = os.getppid()
    command = sys.argv[1:]
    job = os.environ.get("TRAINYARD_JOB_DIR")
    rank, slot, world_size = place(os.environ)
    if not command or not job or rank is None:
        sys.exit(
            (
                "usage: rank COMMAND..., started by a launcher that sets the rank, with "
                "TRAINYARD_JOB_DIR set"
            )
        )
    base = os.path.join(job, "rank.%d" % rank)
    report = base + ".report"
    if os.path.exists(report):
        os.unlink(report)
    facts = {
        "rank": rank,
        "slot": slot,
        "world_size": world_size,
        "hostname": socket.gethostname(),
        "container_id": container_id(read("/proc/self/mountinfo")),
        "addresses": local_addresses(read("/proc/net/fib_trie")),
        "started": time.time(),
        "exit_code": None,
        "oom_kills": None,
        "report": None,
    }  # type: typing.Dict[str, typing.Any]
    killed = oom_kills(read("/proc/vmstat"))
    write_json(base + ".json", facts)
    prefix = ("[%d %s] " % (rank, facts["hostname"])).encode()
    with open(base + ".log", "wb", buffering=0) as log:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, TRAINYARD_RANK_REPORT=report),
                preexec_fn=in_own_group,
            )
        except OSError as error:
            code, message = not_started(command, error)
            line = ("trainyard: line 1: %s\n" % message).encode("utf-8", "replace")
            log.write(line)
            sys.stdout.buffer.write(prefix + line)
        else:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda received, frame: pass_on(child, received))
            threading.Thread(
                target=end_without_launcher, args=(child, launcher), daemon=True
            ).start()
            copy_output(child, log, prefix)
            code = child.wait()
    facts["exit_code"] = code if code >= 0 else 128 - code
    killed_now = oom_kills(read("/proc/vmstat"))
    if killed is not None and killed_now is not None:
        facts["oom_kills"] = killed_now - killed
    facts["seconds"] = round(time.time() - facts["started"], 2)
    try:
        facts["report"] = json.loads(read(report) or "null")
    except ValueError:
        facts["report"] = None
    write_json(base + ".json", facts)
    if facts["exit_code"]:
        # The runner takes the order of the ends from the time at which it gets this line, because
        # the clocks of hosts differ.
        sys.stdout.buffer.write(
            b"%strainyard: rank ended with exit code %d\n" % (prefix, facts["exit_code"])
        )
        sys.stdout.buffer.flush()
    sys.exit(facts["exit_code"])


if __name__ == "__main__":
    main()
