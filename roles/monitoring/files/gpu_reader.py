# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_reader SETTINGS: writes the metrics of the host's GPUs or NPUs at each interval, until it is
stopped.

One nvidia-smi runs all the time: starting it anew takes seconds on hosts with many GPUs. If it
falls silent, the file of metrics is removed, because a curve that ends is honest, and one that goes
on flat is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _bandwidth
import _files
import _gpu_numbers
import _metrics
import _npu_smi
import _nvidia_smi

END = b"</nvidia_smi_log>"
#: Bytes of a document. The largest that was seen, of 16 GPUs with many processes, has some 400 KiB.
MOST = 16 << 20
#: Seconds between two looks at NVLinks, and for any tool that is not nvidia-smi in a loop.
LINKS_SECONDS, TOOL_SECONDS = 300, 20
MARKS = "/run/trainyard/gpus"
TARGET = "/var/lib/trainyard/metrics/gpu/gpu.prom"


class Silent(Exception):
    """The tool prints nothing, or nothing that can be read. The message says what."""


def documents(stream, patience: float) -> Iterator[str]:
    """Yield the documents of C(nvidia-smi -q -x -l N), each with what stands before it.

    Silent: nothing came for C(patience) seconds.
    """
    chooser, kept = selectors.DefaultSelector(), b""
    chooser.register(stream, selectors.EVENT_READ)
    deadline = time.monotonic() + patience
    while True:
        if not chooser.select(max(0.0, deadline - time.monotonic())):
            raise Silent("it printed no whole document for %d s" % patience)
        piece = os.read(stream.fileno(), 1 << 16)
        if not piece:
            text = " ".join(kept.decode("utf-8", "replace").split())
            raise Silent("it ended: %s" % (text[-300:] or "without a word"))
        kept += piece
        if len(kept) > MOST:
            raise Silent("a document has more than %d bytes" % MOST)
        while END in kept:
            text, kept = kept.split(END, 1)
            deadline = time.monotonic() + patience
            yield (text + END).decode("utf-8", "surrogateescape")


def output(command: list[str], seconds: float = TOOL_SECONDS) -> str:
    """Return the output of a tool. Silent: it fails, or does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Silent(str(error)) from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        raise Silent(
            "exit code %d of %s: %s"
            % (done.returncode, command[0], " ".join(text.split())[-300:] or "without a word")
        )
    return text


def jobs_of(folder: str = MARKS) -> dict[int, int]:
    """Return the job of each GPU by device number, as prolog and epilog keep it: a file for each
    GPU that a job has.
    """
    found = {}
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        words = _files.read(os.path.join(folder, name)).split()
        if name.isdigit() and words and words[0].isdigit():
            found[int(name)] = int(words[0])
    return found


def sample(labels: dict, use: float | None, watts: float | None, memory: float | None) -> dict:
    return dict(labels, use=use, watts=watts, memory=memory)


def samples_of(families: list) -> list[tuple[int | None, dict]]:
    """Return device number and sample of each GPU, from its families."""
    values, minors = {}, {}
    for family in families:
        for labels, value in family.samples:
            key = (labels.get("gpu"), labels.get("uuid"))
            values.setdefault(key, {})[family.name] = value
            if family.name == "trainyard_gpu_info" and labels["minor"].isdigit():
                minors[key] = int(labels["minor"])
    return [
        (
            minor,
            sample(
                {"gpu": key[0], "uuid": key[1]},
                values[key].get("trainyard_gpu_utilization_ratio"),
                values[key].get("trainyard_gpu_power_watts"),
                values[key].get("trainyard_gpu_memory_used_bytes"),
            ),
        )
        for key, minor in minors.items()
    ]


class Reader:
    """Turns what a tool prints into the file of metrics."""

    def __init__(self, settings: dict, target: str = TARGET, marks: str = MARKS) -> None:
        self.interval = float(settings["interval"])
        self.source, self.has_jobs = settings["source"], settings["jobs"]
        self.target, self.marks = target, marks
        # This program is restarted for a reset of a GPU or with new settings. The job on the other
        # GPUs goes on.
        self.kept = os.path.join(os.path.dirname(target), "sums.json")
        # The health program of Slurm's nodes reads it, in place of a call of nvidia-smi.
        self.document = os.path.join(os.path.dirname(target), "nvidia-smi.xml")
        self.sums = _metrics.known_sums(_files.read_json(self.kept))
        self.links: list = []
        self.looked = self.last = None
        self.message = ""

    def jobs(self) -> dict[int, int] | None:
        return jobs_of(self.marks) if self.has_jobs else None

    def publish(self, families: list) -> None:
        """Write the families of one look, and the sums of the jobs that have the GPUs."""
        now = time.monotonic()
        if self.has_jobs:
            # A look that came late, after a tool had fallen silent, does not count for all of the
            # time.
            passed = self.interval if self.last is None else now - self.last
            seconds = min(passed, 3 * self.interval)
            _metrics.add_sample(self.sums, self.jobs(), samples_of(families), seconds)
            families = families + _metrics.sum_families(self.sums)
            _files.write_private(self.kept, json.dumps(self.sums))
        self.last = now
        _metrics.write(self.target, _metrics.render(families))

    def withdraw(self, reason: str) -> None:
        """Remove the metrics, and tell why, once for each reason."""
        for path in (self.target, self.document):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self.last = None
        if reason != self.message:
            print("trainyard: %s" % reason, file=sys.stderr, flush=True)
        self.message = reason

    def nvlinks(self, answer) -> list:
        """Return the family of NVLinks, which is read now and then."""
        now = time.monotonic()
        if self.looked is None or now - self.looked >= LINKS_SECONDS:
            self.looked = now
            try:
                entries = _bandwidth.nvlinks(output(["nvidia-smi", "nvlink", "--status"]))
            except (Silent, ValueError):
                entries = []
            uuids = {gpu["uuid"]: str(gpu["index"]) for gpu in answer.gpus}
            self.links = [_metrics.nvlink_family(entries, uuids)]
        return self.links

    def read_nvidia(self) -> None:
        """Publish what one nvidia-smi prints, until it ends. Silent: it ended, or does not
        go on.
        """
        command = ["nvidia-smi", "-q", "-x", "-l", "%d" % self.interval]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            for text in documents(child.stdout, 3 * self.interval + 5):
                try:
                    answer = _nvidia_smi.parse_query(text)
                except _nvidia_smi.ParseError as error:
                    self.withdraw("nvidia-smi -q -x: %s" % error)
                    continue
                if answer:
                    # Names of processes may be no text.
                    whole = text.encode("utf-8", "replace").decode("utf-8")
                    _files.write_private(self.document, whole)
                families = _metrics.gpu_families(answer, self.jobs())
                self.publish(families + self.nvlinks(answer))
        except Silent:
            child.kill()
            raise
        finally:
            child.stdout.close()

    def read_npus(self) -> None:
        table = _npu_smi.parse_info(output(["npu-smi", "info"]))
        if table is None or table.cut:
            raise Silent("npu-smi printed %s" % (table.cut if table else "no table"))
        self.publish(_metrics.npu_families(table, self.jobs()))

    def read_driver(self) -> None:
        """Publish which GPUs there are, and their jobs. Another exporter has the rest."""
        cards = _gpu_numbers.by_address(_gpu_numbers.read_host({})["driver"])
        self.publish(_metrics.driver_families(cards, self.jobs()))

    def run(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Read until this process is stopped."""
        read = {
            "nvidia_smi": self.read_nvidia,
            "npu_smi": self.read_npus,
            "dcgm": self.read_driver,
        }[self.source]
        while True:
            try:
                read()
            except (Silent, OSError, ValueError) as error:
                self.withdraw("%s: %s" % (self.source, error))
            # A tool that hangs in the driver ends when it can. Until then no other one is started.
            while has_children():
                wait(self.interval)
            wait(self.interval)


def has_children() -> bool:
    """Return whether a child of this process still runs, and forget those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as stream:
        settings = json.load(stream)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(TARGET)
    Reader(settings).run()


if __name__ == "__main__":
    main()
