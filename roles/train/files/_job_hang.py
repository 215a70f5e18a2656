# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that does not end: whether it makes progress, where each of its ranks waits, and one
sentence about that.

Both job runners use it, and trainyard. P(Progress) watches the output, the GPUs and the fabric of a
job. P(collect) reads on one host what the processes of the job do. P(sentence) and P(report) make
text of the answers of all hosts. It also runs in training containers, so this is Python 3.6 with
only the standard library.
"""

import collections
import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import typing

__all__ = [
    "ANSWER",
    "ASKED",
    "FILE",
    "MINUTE",
    "Progress",
    "answer",
    "ask",
    "ask_ras",
    "collect",
    "leaders",
    "main_process",
    "parse_dump",
    "parse_ras",
    "place",
    "report",
    "sentence",
    "tell",
    "warning",
]

#: A process, a rank, an answer and other objects that become JSON; and the words of a command or
#: sentences.
Entry = typing.Dict[str, typing.Any]
Entries = typing.List[Entry]
Words = typing.List[str]
#: Processes by their numbers; (kind, number, processes) of a rank or worker.
Processes = typing.Dict[int, Entry]
Leader = typing.Tuple[str, int, Entries]
#: Frames of a thread, the innermost first: (function, file, line).
Frames = typing.List[typing.Tuple[str, str, int]]
#: (count, rank, process) by operation.
Count = typing.Tuple[int, int, typing.Optional[int]]
Counts = typing.Dict[str, typing.List[Count]]
#: The line of a rank, and the number of its operations.
OfRank = typing.Tuple[typing.Match[str], typing.Optional[int]]

#: In the job's folder: the report, the question of a runner or of trainyard, and the answer of each
#: worker.
FILE, ASKED, ANSWER = "hang.txt", "hang.ask", "hang.%d.json"
#: Percent from which a GPU works. Bytes a minute that a host has without training: logs, metrics,
#: and files of the share.
WORKS, QUIET_BYTES = 5, 10 << 20
#: Seconds: between two looks at the bytes, for all hosts to answer, for one dump, for the
#: collection of one host, and for one try of RAS.
MINUTE, ANSWER_SECONDS, DUMP_SECONDS, COLLECT_SECONDS, RAS_SECONDS = 60, 75, 15, 50, 8
#: What the answer of another program can raise while it is read: it may have numbers without end,
#: and lists in lists in lists.
_UNREADABLE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
#: Most bytes of RAS's answer, characters of a dump, and processes of a rank beside its main one.
MOST_RAS, MOST_DUMP, MOST_CHILDREN = 4 << 20, 1 << 16, 16
#: Hosts that ask NCCL. The second is for the case that the processes of the first do not answer.
RAS_HOSTS = 2
#: Variables with the number of a rank, as in rank.py, and those that tell a rank from what has
#: started it.
NUMBERS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "RANK_ID")
SIGNS = NUMBERS + ("LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "HOROVOD_LOCAL_RANK")
WORKER = "TRAINYARD_WORKER_INDEX"
RAS_ADDRESS = "NCCL_RAS_ADDR"
#: Programs that only start others.
_STARTERS = re.compile(
    r"(?:ba|da|z|k)?sh$|env$|time(?:out)?$|numactl$|taskset$|nice$|sudo$|tini$|catatonit$|podman|conmon|sshd|srun$|mpirun$|orted$|prted$|fuse-overlayfs"
)
_OF_TRAINYARD = re.compile(r"/trainyard/(?:rank|shared/rank|jobs/job)$|trainyard[-_](?:run|launch)")


# --- whether a job makes progress ---


class Progress(object):
    """Whether a job makes progress.

    Without output, without work of its GPUs and without bytes on its fabric, it does not.
    """

    def __init__(self, minutes: int, now: float) -> None:
        self.seconds = minutes * 60
        self.since, self.reported = now, False
        self.counted = now
        self.size = None  # type: typing.Optional[int]
        self.totals = None  # type: typing.Optional[typing.List[typing.Optional[int]]]

    def look(self, now: float, size: int, watched: Entries) -> bool:
        """Return True once, when nothing has happened for so long.

        C(size) are the bytes of output so far. C(watched) has the last line of the watcher of each
        host, as P(_job_watch.watch) writes it.
        """
        if not self.seconds:
            return False
        grown = size != self.size and self.size is not None
        self.size = size
        if grown or any(map(_works, watched)) or self._moves(now, watched):
            self.since, self.reported = now, False
        is_new = now - self.since >= self.seconds and not self.reported
        self.reported = self.reported or is_new
        return is_new

    def _moves(self, now: float, watched: Entries) -> bool:
        """Return whether a host has moved more than without training in the last minute, or
        longer.
        """
        totals = [_moved(found) for found in watched]
        if self.totals is None or len(self.totals) != len(totals):
            self.counted, self.totals = now, totals
            return False
        minutes = (now - self.counted) / MINUTE
        if minutes < 1:
            return False
        before, self.totals, self.counted = self.totals, totals, now
        return any(
            early is not None and late is not None and late - early > QUIET_BYTES * minutes
            for early, late in zip(before, totals)
        )


def _moved(found: Entry) -> typing.Optional[int]:
    sent, received = found.get("sent_bytes"), found.get("received_bytes")
    return None if sent is None or received is None else sent + received


def _works(found: Entry) -> bool:
    """Return whether a GPU works.

    The kernel of a collective that waits uses a GPU without reading its memory.
    """
    for gpu in found.get("now") or []:
        memory = gpu[3] if len(gpu) > 3 else None
        if gpu[0] is not None and gpu[0] >= WORKS and memory != 0:
            return True
    return False


# --- on a host: what the processes of a job do ---


def _read(path: str, most: int = 1 << 20) -> str:
    """Return the text of a file of the kernel.

    Nothing if it cannot be read: processes end at any time, and some files need a privilege.
    """
    try:
        with open(path, "rb") as stream:
            return stream.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def _process(pid: int, mark: str, proc: str) -> typing.Optional[Entry]:
    """Return what is known of a process of the job, None if it is of no rank and of no worker."""
    folder = "%s/%d/" % (proc, pid)
    entries = _read(folder + "environ").split("\0")
    variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    known = {name: variables[name] for name in SIGNS + (WORKER,) if name in variables}
    fields = _read(folder + "stat").rpartition(") ")[2].split()
    if mark not in entries or not known or len(fields) < 5:
        return None
    inner = re.search(r"^NSpid:.*?(\d+)$", _read(folder + "status"), re.MULTILINE)
    program = ""
    with contextlib.suppress(OSError):
        program = os.path.basename(os.readlink(folder + "exe"))
    return {
        "pid": pid,
        "parent": int(fields[1]),
        "inner": int(inner.group(1)) if inner else pid,
        "state": fields[0],
        "has_terminal": fields[4] != "0",
        "program": program or _read(folder + "comm").strip(),
        "command": _read(folder + "cmdline", 4096).split("\0")[:-1],
        "signs": known,
        "path": variables.get("PATH", ""),
        "ras": variables.get(RAS_ADDRESS, ""),
    }


def processes(job: str, worker: typing.Optional[int] = None, proc: str = "/proc") -> Processes:
    """Return the processes of the ranks or workers of a job by their numbers, without this one.

    C(worker) leaves out those of other workers.
    """
    found = {}
    for name in os.listdir(proc):
        if name.isdigit() and int(name) != os.getpid():
            process = _process(int(name), "TRAINYARD_JOB_ID=" + job, proc)
            if process and process["signs"].get(WORKER) in (None, str(worker)):
                found[process["pid"]] = process
    return found


def _number(signs: Entry) -> typing.Optional[int]:
    for name in NUMBERS:
        if signs.get(name, "").isdigit():
            return int(signs[name])
    return None


def _groups(found: Processes) -> typing.List[Entries]:
    """Return the processes of each rank or worker: those with the same variables, below the first
    one that has them.

    A launcher may have variables of a rank, too: torchrun in a PyTorchJob has those of its worker.
    It starts processes with others, so it is no rank.
    """
    groups = collections.OrderedDict()  # type: typing.Dict[int, Entries]
    launchers = set()
    for pid in sorted(found):
        top = found[pid]
        while top["parent"] in found and found[top["parent"]]["signs"] == top["signs"]:
            top = found[top["parent"]]
        groups.setdefault(top["pid"], []).append(found[pid])
        above = found.get(top["parent"])
        while above:
            launchers.add(above["pid"])
            above = found.get(above["parent"])
    return [
        group
        for group in groups.values()
        if launchers.isdisjoint(process["pid"] for process in group)
    ]


def leaders(found: Processes) -> typing.List[Leader]:
    """Return (kind, number, processes) of each rank of this host, or of its worker if it has no
    rank.

    What runs beside a job is left out: its services, and terminals of people unless there is
    nothing else.
    """
    groups = _groups_that_train(found)
    numbered = [group for group in groups if _number(group[0]["signs"]) is not None]
    kind = "rank" if numbered else "worker"
    ranks = {}  # type: typing.Dict[int, Entries]
    for group in numbered or groups:
        signs = group[0]["signs"]
        own = _number(signs) if numbered else None
        number = int(signs.get(WORKER) or 0) if own is None else own
        if number not in ranks or _is_better(group, ranks[number]):
            ranks[number] = group
    return [(kind, number, ranks[number]) for number in sorted(ranks)]


def _groups_that_train(found: Processes) -> typing.List[Entries]:
    """Return the groups of processes without services, and without terminals unless there is
    nothing else.
    """
    groups = [group for group in _groups(found) if not _is_service(group)]
    return [group for group in groups if not group[0]["has_terminal"]] or groups


def _is_better(group: Entries, former: Entries) -> bool:
    """Return whether these processes are those of a rank, and not others with its number: they run
    Python, and the others do not.
    """
    return _is_python(main_process(group)) > _is_python(main_process(former))


def _is_service(group: Entries) -> bool:
    return any(
        re.search(r"/trainyard/services$", word)
        for process in group
        for word in process["command"][:3]
    )


def _is_python(process: Entry) -> bool:
    return bool(process["program"].startswith("python"))


def _depth(process: Entry, group: Processes) -> int:
    depth = 0
    while process["parent"] in group and depth < len(group):
        process, depth = group[process["parent"]], depth + 1
    return depth


def main_process(group: Entries) -> Entry:
    """Return the process of a rank that trains: the first that runs Python, or else the first that
    does not only start others.
    """
    members = {process["pid"]: process for process in group}
    ordered = sorted(group, key=lambda process: (_depth(process, members), process["pid"]))
    own = [
        process
        for process in ordered
        if not any(_OF_TRAINYARD.search(word) for word in process["command"][:3])
        and not _STARTERS.match(process["program"])
    ]
    python = [process for process in own if _is_python(process)]
    return (python or own or ordered)[0]


def _entering(process: Entry, proc: str, *namespaces: str) -> Words:
    """Return the words before a command that is to run in the user namespace of a process and in
    these others, none if its user namespace is that of the caller.

    The files of a rootless container can be opened from there only, also by their person.
    """
    own, other = _link(proc + "/self/ns/user"), _link("%s/%d/ns/user" % (proc, process["pid"]))
    program = shutil.which("nsenter")
    if program is None or not other or own == other:
        return []
    words = [program, "--user", *namespaces, "--preserve-credentials"]
    return [*words, "--target", str(process["pid"])]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _programs(paths: Words) -> Words:
    """Return those of the paths that are programs. A link would lead to files of the host."""
    return [path for path in paths if os.access(path, os.X_OK) and not os.path.islink(path)]


def _programs_inside(paths: Words, inside: Words) -> Words:
    """Return those of the paths that are programs in a container."""
    script = 'for path; do test -x "$path" && echo "$path"; done'
    try:
        done = subprocess.run(
            [*inside, "sh", "-c", script, "sh", *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DUMP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", "replace").splitlines()


def _spies(process: Entry, proc: str) -> typing.List[typing.Tuple[Words, int]]:
    """Return the commands of py-spy to try, without the number of the process: of this host, and of
    the image. Each is a list of words, and the number by which the program knows the process.

    A program of the image runs inside of the container, as the image has not been trusted with
    more.
    """
    folders = process["path"].split(":") + ["/usr/local/bin", "/usr/bin", "/opt/conda/bin"]
    paths = []
    for folder in folders:
        if folder.startswith("/") and folder.isprintable():
            paths.append(folder + "/py-spy")
    own, entering = shutil.which("py-spy"), _entering(process, proc)
    found = [([*entering, own], process["pid"])] if own else []
    if entering:
        inside = _entering(process, proc, "--mount", "--pid")
        of_image = [([*inside, path], process["inner"]) for path in _programs_inside(paths, inside)]
    else:
        root = "%s/%d/root" % (proc, process["pid"])
        of_image = [([path], process["pid"]) for path in _programs([root + p for p in paths])]
    return found + of_image[:1]


def _dump(process: Entry, proc: str, deadline: float) -> typing.Tuple[str, str]:
    """Return py-spy's dump of a process, and why there is none.

    The process is not stopped: a dump of one that waits for a disk would not end.
    """
    message = (
        "py-spy is neither on the host nor in the image. Add it to the image: pip install py-spy"
    )
    for words, number in _spies(process, proc):
        seconds = min(DUMP_SECONDS, deadline - time.time())
        if seconds <= 0:
            return "", "there was no time left for py-spy"
        try:
            done = subprocess.run(
                [*words, "dump", "--nonblocking", "--pid", str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = "py-spy did not end within %d s" % seconds
            continue
        except OSError as error:
            message = "py-spy cannot be started: %s" % error.strerror
            continue
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode == 0 and "Thread " in text:
            return text[:MOST_DUMP], ""
        message = _of_spy(done.stderr.decode("utf-8", "replace"), proc)
    if not _is_python(process):
        message = "the program %s is not Python, so py-spy cannot say where it waits"
        message %= process["program"]
    return "", message


def _of_spy(text: str, proc: str) -> str:
    """Return why py-spy has failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    if "ermission" in text or "not permitted" in text:
        scope = _read(proc + "/sys/kernel/yama/ptrace_scope").strip()
        return "py-spy may not read the process%s" % (
            " (kernel.yama.ptrace_scope is %s)" % scope if scope else ""
        )
    return "py-spy: " + lines[0][:200]


def _told(process: Entry, proc: str) -> Entry:
    """Return what the kernel knows of a process: its state, and where its main thread waits."""
    folder = "%s/%d/" % (proc, process["pid"])
    channel = _read(folder + "wchan", 200).strip()
    return {
        "pid": process["pid"],
        "inner": process["inner"],
        "command": " ".join(process["command"])[:300] or process["program"],
        "state": process["state"],
        "wchan": "" if channel == "0" else channel,
        "kernel": _read(folder + "stack", 4096).strip(),
    }


def collect(
    job: str, with_ras: bool = True, worker: typing.Optional[int] = None, proc: str = "/proc"
) -> Entry:
    """Return what the ranks of a job on this host do: C(ranks), and C(ras), the answer of NCCL, or
    None.

    It reads as the user who runs it, which owns the processes. In a job of trainyard, C(worker) is
    the one on this host.
    """
    deadline = time.time() + COLLECT_SECONDS
    ranks, address = [], ""
    for kind, number, group in leaders(processes(job, worker, proc)):
        main = main_process(group)
        entry = dict(_told(main, proc), kind=kind, rank=number)
        entry["dump"], entry["said"] = _dump(main, proc, deadline)
        children = [process for process in group if process["parent"] == main["pid"]]
        entry["children"] = [_told(process, proc) for process in children[:MOST_CHILDREN]]
        if place(entry)["label"] == "dataloader" and children:
            entry["children"][0]["dump"] = _dump(children[0], proc, deadline)[0]
        address = address or main["ras"]
        ranks.append(entry)
    ras = ask_ras(address) if with_ras and address else None
    return {"ranks": ranks, "ras": ras}


# --- NCCL's RAS ---


def ask_ras(address: str, tries: int = 4) -> Entry:
    """Return the C(text) with which NCCL answers at this address, and C(message), why there is none.

    All ranks of a host listen at one address, and the kernel chooses one for each connection, which
    may hang itself.
    """
    host, _colon, port = address.rpartition(":")
    message = "NCCL does not listen at %s (RAS, since NCCL 2.24)" % address
    for _try in range(tries if port.isdigit() else 0):
        try:
            return {"text": _talk((host.strip("[]") or "localhost", int(port))), "said": ""}
        except ConnectionRefusedError:
            break
        except (OSError, ValueError) as error:
            message = "NCCL's RAS at %s: %s" % (address, error)
    return {"text": "", "said": message}


def _talk(address: typing.Tuple[str, int]) -> str:
    """Return the status in JSON, or in text from an NCCL before 2.28.7.

    ValueError if the other side is not NCCL.
    """
    with contextlib.closing(socket.create_connection(address, RAS_SECONDS)) as connection:
        connection.settimeout(RAS_SECONDS)
        stream = connection.makefile("rb")
        connection.sendall(b"CLIENT PROTOCOL 2\n")
        if not stream.readline(1024).startswith(b"SERVER PROTOCOL "):
            raise ValueError("a different program answers there")
        # An older NCCL answers with an error to a command that it does not know.
        connection.sendall(b"SET FORMAT json\n")
        stream.readline(1024)
        connection.sendall(b"VERBOSE STATUS\n")
        text = _read_until(stream, time.monotonic() + RAS_SECONDS).decode("utf-8", "replace")
    if not text.strip():
        raise ValueError("it closed the connection without an answer")
    return text


def _read_until(stream: io.BufferedReader, deadline: float) -> bytes:
    """Return what comes until the other side closes the connection, the deadline or the
    most bytes.
    """
    parts, size = [], 0
    while size < MOST_RAS and time.monotonic() < deadline:
        part = stream.read1(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def parse_ras(text: str) -> Entry:
    """Return what NCCL's RAS has found, from its JSON or its text.

    C(missing) has C(rank), C(host), C(pid) (None if not known) and C(is_dead) of ranks that do not
    answer. C(behind) has C(operation), C(rank), C(pid), C(count), and C(others), the largest count,
    of ranks that have started fewer operations. C(errors) are sentences. C(size) is that of the
    largest group.
    """
    found = {"missing": [], "behind": [], "errors": [], "size": 0}  # type: Entry
    if text.lstrip().startswith("{"):
        try:
            _read_json(json.loads(text), found)
        except _UNREADABLE:
            found["errors"].append("NCCL's answer cannot be read")
    else:
        _read_text(text, found)
    return found


def _read_json(value: Entry, found: Entry) -> None:
    for group in value["communicators"]:
        found["size"] = max(found["size"], int(group["size"]))
        for rank in group["missing_ranks"]:
            status = rank.get("status") or {}
            if status.get("unresponsive") or status.get("considered_dead"):
                _missing(
                    found, rank["rank"], rank["host"], rank["pid"], status.get("considered_dead")
                )
        counts = collections.OrderedDict()  # type: Counts
        for rank in group["ranks"]:
            for operation, count in rank["collective_counts"].items():
                counts.setdefault(operation, []).append((count, rank["rank"], rank["pid"]))
            error = rank["status"]["async_error"]
            if error not in (0, 7):
                found["errors"].append("rank %d has the error %d of NCCL" % (rank["rank"], error))
        for operation, ranks in counts.items():
            _behind(found, operation, ranks)


def _missing(
    found: Entry, rank: int, host: str, pid: typing.Optional[int], is_dead: object
) -> None:
    if all(each["rank"] != rank for each in found["missing"]):
        found["missing"].append({"rank": rank, "host": host, "pid": pid, "is_dead": bool(is_dead)})


def _behind(found: Entry, operation: str, ranks: typing.List[Count]) -> None:
    """Add the ranks with fewer operations than the others.

    C(ranks) has (count, rank, process) of each that is known.
    """
    most = max(ranks)[0] if ranks else 0
    for count, rank, pid in sorted(ranks, key=lambda each: each[1]):
        if count < most:
            entry = {"operation": operation, "rank": rank, "pid": pid}
            found["behind"].append(dict(entry, count=count, others=most))


_RAS_RANK = re.compile(
    r"  Rank (?P<rank>\d+)(?: has launched up to operation (?P<count>\d+)| (?P<none>has not "
    r"launched any operations)| reported (?P<error>[^-]+?))?"
    r" -- (?:GPU [^\n]*? managed by process (?P<pid>\d+) on node (?P<host>\S+)|\[process)"
)
_RAS_COUNT = re.compile(
    r"  (?P<ranks>\d+) ranks have (?:launched up to operation (?P<count>\d+)|not launched)"
)


def _place(line: str, section: str, operation: str) -> typing.Tuple[str, str]:
    """Return the section and the operation to which the lines after this one belong."""
    if re.match(r"#\d+-\d+ \(", line):
        return line.rpartition(" ")[2], ""
    if line in ("DEAD", "INCOMPLETE"):
        return "job " + line, operation
    differ = re.match(
        r"  Communicator ranks have different (?:(?P<name>\w+) |collective )operation counts", line
    )
    if differ:
        return section, differ.group("name") or "collective"
    if line.startswith("  Communicator ranks have"):
        return section, ""
    return section, operation


def _read_text(text: str, found: Entry) -> None:
    """Read the text of NCCL 2.24 and later. It names single ranks only if they are few."""
    section, operation = "", ""
    count = None  # type: typing.Optional[int]
    counts = {}  # type: Counts
    most = {}  # type: typing.Dict[str, int]
    for line in text.splitlines():
        section, operation = _place(line, section, operation)
        _of_group_of_ranks(found, line)
        several = _RAS_COUNT.match(line)
        if several:
            count = int(several.group("count") or 0)
            most[operation] = max(most.get(operation, 0), count)
        rank = _RAS_RANK.match(line)
        if rank:
            is_told = rank.group("count") or rank.group("none")
            own = int(rank.group("count") or 0) if is_told else count
            _of_rank(found, section, operation, (rank, own), counts)
    _behind_most(found, counts, most)


def _of_group_of_ranks(found: Entry, line: str) -> None:
    """Take a line with the size of a group of ranks, or with the ranks that an old NCCL misses in
    one.
    """
    size = re.match(
        r"\s*\d+\s+\d+\s+\d+\s+\S+\s+(\d+)\s+\d+\s+(?:INIT|RUNNING|FINALIZE|ABORT|NOCOMM)", line
    )
    if size:
        found["size"] = max(found["size"], int(size.group(1)))
    old = re.match(r"  The missing ranks?: ([\d, ]+)$", line)
    for rank in re.findall(r"\d+", old.group(1)) if old else []:
        _missing(found, int(rank), "", None, False)


def _behind_most(found: Entry, counts: Counts, most: typing.Dict[str, int]) -> None:
    """Add the ranks behind the others by operation.

    C(counts) has those that are named, C(most) the highest count of those that are only counted.
    """
    for name, ranks in counts.items():
        highest = max([most.get(name, 0)] + [each[0] for each in ranks])
        ranks = [each for each in ranks if each[0] < highest]
        _behind(found, name, ranks + [(highest, -1, None)])
    found["behind"] = [each for each in found["behind"] if each["rank"] >= 0]


def _of_rank(found: Entry, section: str, operation: str, counted: OfRank, counts: Counts) -> None:
    """Take the line of one rank.

    C(counted) has its match, and the number of its operations, None if it is not known.
    """
    line, count = counted
    rank, pid = int(line.group("rank")), int(line.group("pid") or 0) or None
    if section == "INCOMPLETE":
        _missing(found, rank, line.group("host") or "", pid, False)
    elif line.group("error"):
        found["errors"].append("rank %d reports: %s" % (rank, line.group("error")))
    elif operation and count is not None:
        counts.setdefault(operation, []).append((count, rank, pid))


# --- where a rank waits ---

_THREAD = re.compile(r"Thread (?P<id>\S+) \((?P<state>[\w+]+)\)(?:: \"(?P<name>.*)\")?$")
_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
#: What a rank does, by the file of a frame. A rank that WAITS does so for the other ranks.
WAITS, OWN = "waits", "own"
#: In place of a label: the function that the program has called, or the innermost one.
_CALLED, _INNERMOST = "", "-"
_PLACES = tuple(
    (re.compile(pattern), kind, label)
    for pattern, kind, label in (
        (
            r"torch/utils/data/|tensorflow/python/data/|nvidia/dali/|webdataset/|^datasets/|/datasets/",
            OWN,
            "dataloader",
        ),
        (r"torch/distributed/elastic/", OWN, "the agent of torchrun"),
        (r"torch/distributed/|deepspeed/comm/", WAITS, _CALLED),
        (r"horovod/", WAITS, _INNERMOST),
        (r"torch/autograd/", WAITS, "backward"),
        (r"torch/cuda/(?:__init__|streams)\.py", WAITS, "cuda synchronize"),
        (
            r"tensorflow/python/eager/(?:execute|context)\.py|tensorflow/python/client/",
            WAITS,
            "a step of TensorFlow",
        ),
        (r"(?:^|/)jax/", WAITS, "a computation of JAX"),
        (r"(?:^|/)mindspore/", WAITS, "a step of MindSpore"),
        (r"torch/_(?:inductor|dynamo)/|(?:^|/)triton/", OWN, "compilation"),
        (r"torch/serialization\.py", OWN, "checkpoint"),
        (r"(?:^|/)subprocess\.py", OWN, "a subprocess"),
        (r"(?:^|/)(?:pdb|bdb)\.py", OWN, "the debugger"),
        (r"(?:^|/)(?:ssl|socket|http/client)\.py", OWN, "a network request"),
    )
)
_HELPERS = re.compile(r"c10d_logger\.py|torch/utils/_contextlib\.py|(?:^|/)contextlib\.py")
_LIBRARY = re.compile(
    r"(?:^|/)(?:torch|torchvision|tensorflow|keras|horovod|jax|flax|mindspore|deepspeed|megatron|lightning|pytorch_lightning|transformers|accelerate|numpy"
    r"|multiprocessing|concurrent|asyncio|importlib|http|json|site-packages|dist-packages)/"
    r"|(?:^|/)(?:threading|queue|selectors|socket|ssl|subprocess|contextlib|runpy|pickle|tempfile|shutil|pathlib|codecs)\.py$|^<"
)
#: What the kernel does for a process, by the name of its function.
_KERNEL = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"nfs|rpc_", "waits for the file server (NFS)"),
        (r"fuse_|request_wait_answer", "waits for a file system (FUSE)"),
        (
            r"folio_wait|wait_on_page|io_schedule|blkdev|blk_mq|jbd2|ext4_|xfs_|btrfs_",
            "waits for a disk",
        ),
        (r"ptrace_stop|do_signal_stop|jobctl", "is stopped by a signal"),
        (r"nanosleep", "sleeps"),
        (r"n_tty_read|tty_read", "waits for a terminal"),
        (
            r"(?:^|_)(?:pipe_read|pipe_write|anon_pipe|pipe_wait|wait_for_partner)",
            "waits for a pipe",
        ),
        (r"(?:^|_)flock|locks_lock|fcntl_setlk", "waits for the lock of a file"),
        (r"do_wait|kernel_wait4", "waits for a process"),
    )
)
#: Those that are told of a rank whose place is known.
_TOLD_ALWAYS = ("NFS", "FUSE", "disk", "stopped", "sleeps", "terminal", "lock", "pipe")
_STATES = {"T": "is stopped by a signal", "t": "is stopped by a debugger", "Z": "has ended"}


def parse_dump(text: str) -> Entries:
    """Return the threads of py-spy's dump, each with C(name), C(state), and C(frames), the
    innermost first: (function, file, line).
    """
    threads = []  # type: Entries
    for line in text.splitlines():
        thread = _THREAD.match(line)
        frame = _FRAME.match(line)
        if thread:
            name = thread.group("name") or ""
            threads.append({"name": name, "state": thread.group("state"), "frames": []})
        elif frame and threads:
            number = int(frame.group("line") or 0)
            function = frame.group("function").rpartition(".")[2]
            threads[-1]["frames"].append((function, frame.group("file"), number))
    return threads


def kernel_words(entry: Entry) -> str:
    """Return what the kernel does for a process, in words. Empty if that says nothing."""
    if entry.get("state") in _STATES:
        return _STATES[entry["state"]]
    for pattern, words in _KERNEL:
        if pattern.search(entry.get("wchan") or ""):
            return words
    return "waits for a disk or a file server" if entry.get("state") == "D" else ""


def _known(frames: Frames) -> typing.Optional[typing.Tuple[str, str]]:
    """Return (kind, label) of the innermost frame that is known, None if none is."""
    if any(function == "_find_and_load" for function, _file, _line in frames):
        # Of a library that uses the others, too.
        return OWN, "an import"
    for at, (function, file, _line) in enumerate(frames):
        for pattern, kind, label in _PLACES:
            # A server that waits for another rank requests nothing.
            if not pattern.search(file) or function == "accept":
                continue
            if label == _INNERMOST:
                return kind, function
            if label != _CALLED:
                return kind, label
            # The function that the program has called, and not what that calls in turn.
            for outer, name, _number_of_line in frames[at:]:
                if pattern.search(name):
                    function = function if _HELPERS.search(name) else outer
                elif not _HELPERS.search(name):
                    break
            return kind, function
    return None


def place(entry: Entry) -> Entry:
    """Return where a rank waits: C(kind) (WAITS, OWN, or an empty text if it is not known),
    C(label), and C(detail), the line of its program and the kernel.

    C(entry) has its C(dump), C(state) and C(wchan), as P(collect) returns it.
    """
    threads = [thread for thread in parse_dump(entry.get("dump") or "") if thread["frames"]]
    threads.sort(key=lambda thread: thread["name"] != "MainThread")
    words = kernel_words(entry)
    if not threads:
        return {"kind": OWN if words else "", "label": "", "detail": words, "caller": ""}
    frames = _thread_that_trains(threads)
    found = _known(frames)
    own = [frame for frame in frames if not _LIBRARY.search(frame[1])] or frames
    caller = "%s (%s:%d)" % own[0]
    if entry.get("state") in _STATES:
        detail = "%s, in %s" % (words, caller)
        return {"kind": OWN, "label": "", "detail": detail, "caller": caller}
    kind, label = found or (OWN, own[0][0])
    details = [caller] + [words] * any(word in words for word in _TOLD_ALWAYS)
    details += _of_children(entry)
    return {"kind": kind, "label": label, "detail": ", ".join(details), "caller": caller}


def _thread_that_trains(threads: Entries) -> Frames:
    """Return the frames of the main thread, which is the first, or those of another one if the main
    one only waits for it.
    """
    frames = threads[0]["frames"]  # type: Frames
    if _known(frames) is None and _LIBRARY.search(frames[0][1]):
        others = [thread["frames"] for thread in threads[1:]]
        return next((each for each in others if _known(each)), frames)
    return frames


def _of_children(entry: Entry) -> Words:
    """Return words about the processes that load data for a rank: what one of them does, and how
    many wait for a file.
    """
    found = collections.Counter()  # type: typing.Counter[str]
    details = [place(child)["detail"] for child in entry.get("children") or [] if child.get("dump")]
    for child in entry.get("children") or []:
        words = kernel_words(child)
        if child.get("state") in "DTZ" and words:
            found[words] += 1
    details = ["a process of it: " + words for words in details[:1]]
    for words, count in sorted(found.items()):
        name = _verb(count, "process", "processes")
        details.append("%d %s of it %s" % (count, name, _do(count, words)))
    return details


# --- one sentence about all ranks ---


def _clean(text: object) -> str:
    """Return one line without control characters: names and stacks are what a program has
    chosen.
    """
    return re.sub(r"[^\x20-\x7e\u00a0-\uffff]", "?", str(text))[:300]


def _some(ranks: Entries, is_first: bool = True) -> str:
    """Return the names of ranks, with their host if it is one."""
    kind, numbers = ranks[0]["kind"], [str(each["rank"]) for each in ranks]
    hosts = sorted({each["host"] for each in ranks})
    shown = numbers[:4] + ["%d more" % (len(numbers) - 4)] * (len(numbers) > 4)
    listed = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
    where = " on " + _clean(hosts[0]) if len(hosts) == 1 and is_first else ""
    return "%s%s %s%s" % (kind, "" if len(ranks) == 1 else "s", listed, where)


def _verb(count: int, one: str, more: str) -> str:
    return one if count == 1 else more


#: Verbs with which the words about one process begin, and those of several.
_OF_SEVERAL = {"has": "have", "is": "are", "sleeps": "sleep", "waits": "wait"}


def _do(count: int, words: str) -> str:
    """Return words about one process, such as P(kernel_words) returns, for so many."""
    verb, blank, rest = words.partition(" ")
    return words if count == 1 else _OF_SEVERAL.get(verb, verb) + blank + rest


def _grouped(ranks: Entries, key: str = "label") -> typing.List[Entries]:
    """Return the ranks by their place, the fewest first."""
    groups = collections.OrderedDict()  # type: typing.Dict[object, Entries]
    for each in ranks:
        where = each["place"]
        groups.setdefault(where[key] or (where["kind"], where["detail"]), []).append(each)
    return sorted(groups.values(), key=len)


def _of_group(ranks: Entries) -> str:
    """Return what a group of ranks does."""
    where, count = ranks[0]["place"], len(ranks)
    if where["kind"] == WAITS:
        return "%s %s in %s" % (_some(ranks), _verb(count, "waits", "wait"), _clean(where["label"]))
    if where["label"]:
        return "%s %s in %s" % (_some(ranks), _verb(count, "is", "are"), _clean(where["label"]))
    if where["kind"] == OWN:
        return "%s %s" % (_some(ranks), _clean(_do(count, where["detail"])))
    return "where %s %s is not known" % (_some(ranks), _verb(count, "waits", "wait"))


def _who(ranks: Entries) -> str:
    """Return the main statement: who is not where the others wait."""
    behind = [each for each in ranks if each["place"]["kind"] != WAITS]
    waiting = [each for each in ranks if each["place"]["kind"] == WAITS]
    groups = _grouped(waiting)
    if behind and waiting:
        parts = [_of_group(group) for group in _grouped(behind)[:3]]
        if len(groups) == 1:
            return ", ".join(parts + [_the_others(waiting)])
        return ", ".join(parts + [_of_group(group) for group in groups])
    if behind:
        return ", ".join(_of_group(group) for group in _grouped(behind)[:4])
    if len(groups) > 1:
        parts = [_of_group(group) for group in groups[:-1]]
        text = ", ".join(parts + [_the_others(groups[-1])])
        return text + ": they do not call the same operations"
    return _at_one_place(waiting)


def _the_others(ranks: Entries) -> str:
    """Return what the ranks do that are named last. A single one has a name."""
    if len(ranks) == 1:
        return _of_group(ranks)
    return "the others wait in " + _clean(ranks[0]["place"]["label"])


def _at_one_place(ranks: Entries) -> str:
    """Return that all ranks wait in the same operation, and whether different lines of the program
    have called it.
    """
    lines = _grouped(ranks, "caller")
    label = _clean(ranks[0]["place"]["label"])
    if len(lines) > 1:
        parts = [
            "%s at %s" % (_some(group), _clean(group[0]["place"]["caller"])) for group in lines[:4]
        ]
        return "%s wait in %s, but at different lines: %s" % (_all(ranks), label, ", ".join(parts))
    if len(ranks) == 1:
        return "%s waits in %s" % (_some(ranks), label)
    return "%s wait in %s" % (_all(ranks), label)


def _all(ranks: Entries) -> str:
    count = "both" if len(ranks) == 2 else "all %d" % len(ranks)
    return "%s %ss" % (count, ranks[0]["kind"])


def _of_ras(ranks: Entries, found: Entry) -> Words:
    """Return what NCCL says of ranks, as statements.

    Its numbers are those of a group: a rank is known by its process, or if the group has all ranks.
    """
    by_pid = collections.OrderedDict()  # type: typing.Dict[int, Entries]
    for each in ranks:
        by_pid.setdefault(each["inner"], []).append(each)

    def name(entry: Entry) -> str:
        same = by_pid.get(entry["pid"]) or []
        if len(same) == 1:
            return _some(same)
        numbered = [each for each in ranks if each["rank"] == entry["rank"]]
        is_all = found["size"] == len(ranks) or not ranks
        return _some(numbered) if numbered and is_all else "rank %d" % entry["rank"]

    messages = []
    for entry in found["missing"][:3]:
        messages.append("NCCL has no answer from %s" % name(entry))
    for entry in found["behind"][:3]:
        messages.append(
            "%s has started %d %s operation%s, others %d"
            % (
                name(entry),
                entry["count"],
                _clean(entry["operation"]),
                _verb(entry["count"], "", "s"),
                entry["others"],
            )
        )
    more = len(found["missing"][3:]) + len(found["behind"][3:])
    return (
        messages
        + ["%d more in %s" % (more, FILE)] * bool(more)
        + [_clean(each) for each in found["errors"][:2]]
    )


def _with_places(answers: Entries) -> Entries:
    """Return the ranks of all hosts with their places, by number.

    Workers are left out if there are ranks.
    """
    found = {}  # type: typing.Dict[typing.Tuple[str, int], Entry]
    for each in answers:
        for entry in each.get("ranks") or []:
            named = dict(entry, host=each["host"], place=place(entry))
            found.setdefault((entry["kind"], entry["rank"]), named)
    kinds = ("rank",) if any(kind == "rank" for kind, _rank in found) else ("worker",)
    return [found[key] for key in sorted(found) if key[0] in kinds]


def sentence(answers: Entries) -> str:
    """Return where the ranks of a job wait, and which of them differs: rank 5 on gpu-b is in
    dataloader, the others wait in all_reduce.

    C(answers) has for each host C(host), and what P(collect) returned, or C(said), why there is no
    answer.
    """
    ranks = _with_places(answers)
    silent = [each["host"] for each in answers if each.get("said")]
    messages = [_who(ranks)] if ranks else []
    if not ranks and len(silent) < len(answers):
        messages.append("the job has no process of a rank")
    ras = next((each["ras"] for each in answers if (each.get("ras") or {}).get("text")), None)
    of_nccl = _of_ras(ranks, parse_ras(ras["text"])) if ras else []
    if not of_nccl and _all_at_one_line(ranks):
        of_nccl = ["none is behind, so check the network between the hosts"]
    messages += of_nccl
    if silent:
        hosts = ", ".join(map(_clean, silent[:4]))
        messages.append("no answer from host%s %s" % ("" if len(silent) == 1 else "s", hosts))
    messages += _details(ranks)
    # Not the name of a program.
    return ". ".join(messages[:1] + [_begin(each) for each in messages[1:]])


def _all_at_one_line(ranks: Entries) -> bool:
    """Return whether several ranks all wait in the same operation, which the same line of the
    program has called.
    """
    if len(ranks) < 2 or any(each["place"]["kind"] != WAITS for each in ranks):
        return False
    return len(_grouped(ranks)) == len(_grouped(ranks, "caller")) == 1


def _begin(text: str) -> str:
    return text if text.startswith("py-spy") else text[:1].upper() + text[1:]


def _details(ranks: Entries) -> Words:
    """Return the lines of the programs of ranks that do not wait for others, and why the place of a
    rank is not known.
    """
    found = []
    for group in _grouped([each for each in ranks if each["place"]["kind"] == OWN])[:2]:
        first = group[0]
        if first["place"]["label"]:
            found.append(
                "%s %d: %s"
                % (first["kind"].capitalize(), first["rank"], _clean(first["place"]["detail"]))
            )
    unknown = [each for each in ranks if not each["place"]["label"] and each.get("said")]
    if unknown:
        found.append(_clean(unknown[0]["said"]))
    return found


def report(answers: Entries, message: str) -> str:
    """Return the text of hang.txt: the sentence, then all that was collected."""
    lines = [message, ""]
    for each in answers:
        lines.append("=== host %s" % _clean(each["host"]))
        if each.get("said"):
            lines.append(_clean(each["said"]))
        for entry in each.get("ranks") or []:
            lines += ["", "--- %s %d" % (entry["kind"], entry["rank"])] + _lines_of(entry)
            for child in entry.get("children") or []:
                lines += ["  its process:"] + ["  " + line for line in _lines_of(child)]
        ras = each.get("ras")
        if ras:
            lines += ["", "--- NCCL's RAS"] + (ras["text"] or ras["said"]).splitlines()
        lines.append("")
    return "\n".join(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "?", line) for line in lines) + "\n"


def _lines_of(entry: Entry) -> Words:
    lines = [
        "process %d: %s" % (entry["pid"], entry["command"]),
        "state %s, kernel: %s %s"
        % (entry["state"], entry["wchan"] or "no wait channel", kernel_words(entry)),
    ]
    lines += entry["kernel"].splitlines()
    return lines + (entry.get("dump") or entry.get("said") or "").splitlines()


# --- asking the workers of a job by files in its folder ---


def _write(path: str, text: str, mode: int = 0o600) -> None:
    """Write a file of the job in one step. Only its owner reads it, unless C(mode) says
    otherwise.
    """
    new = "%s.%d" % (path, os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(new, flags, 0o600), "w", encoding="utf-8", errors="replace") as stream:
        stream.write(text)
        os.fchmod(stream.fileno(), mode)
    os.rename(new, path)


def _read_answer(path: str) -> Entry:
    """Return the content of a JSON file of a job. Its owner may have put anything in its place."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with open(number, "rb") as stream:
            found = json.loads(stream.read(2 * MOST_RAS).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def ask(folder: str, hosts: Words, seconds: float = ANSWER_SECONDS) -> Entries:
    """Ask all workers of a job where they wait, and return their answers as P(sentence)
    takes them.
    """
    mark = "%.6f" % time.time()
    _write(os.path.join(folder, ASKED), mark + "\n")
    deadline = time.time() + seconds
    found = {}  # type: typing.Dict[int, Entry]
    while len(found) < len(hosts) and time.time() < deadline:
        for worker in range(len(hosts)):
            answered = _read_answer(os.path.join(folder, ANSWER % worker))
            if worker not in found and answered.get("asked") == mark:
                found[worker] = answered
        time.sleep(0.2)
    silent = {"said": "its worker did not answer within %d s" % seconds}
    checked = {worker: _checked(answered) for worker, answered in found.items()}
    return [dict(checked.get(worker, silent), host=host) for worker, host in enumerate(hosts)]


def _checked(found: Entry) -> Entry:
    """Return an answer, if it has the form of P(collect)."""
    try:
        tried = [dict(found, host="")]
        report(tried, sentence(tried))
    except _UNREADABLE:
        return {"said": "its answer cannot be read"}
    return found


def answer(folder: str, job: str, worker: int) -> None:
    """Answer a question that this worker has not answered, if there is one."""
    path = os.path.join(folder, ANSWER % worker)
    mark = _read(os.path.join(folder, ASKED), 100).strip()
    if mark and _read_answer(path).get("asked") != mark:
        found = collect(job, worker < RAS_HOSTS, worker)
        with contextlib.suppress(OSError):
            _write(path, json.dumps(dict(found, asked=mark)) + "\n")


def tell(folder: str, answers: Entries, mode: int = 0o600) -> str:
    """Write hang.txt, and return the sentence."""
    message = sentence(answers)
    with contextlib.suppress(OSError):
        _write(os.path.join(folder, FILE), report(answers, message), mode)
    return message


def warning(minutes: int, message: str, folder: str, is_watched: bool = True) -> str:
    """Return what the log and the result of a job say.

    C(message) is the sentence, C(minutes) how long the job has made no progress.

    C(is_watched) is whether its GPUs and its network were looked at, too. Role verify finds the
    text by its begin and its end.
    """
    watched = ", no work of its GPUs and no bytes on its network" if is_watched else ""
    since = "no output%s for %d minute%s" % (watched, minutes, "" if minutes == 1 else "s")
    return "%s: %s. See %s/%s" % (since if minutes else "at its end", message, folder, FILE)


def main(job: str, with_ras: bool) -> None:
    """Print what P(collect) returns, as one line of JSON.

    Role train's runner starts it in a container.
    """
    sys.stdout.write(json.dumps(collect(job, with_ras)) + "\n")
    sys.stdout.flush()
