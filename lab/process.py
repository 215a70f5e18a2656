"""Run commands quietly, or stream their output to the terminal and a log, and tell what is being
done.
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
# Only in the log: what a build on a host prints, with hundreds of a compiler's warnings, and two
# warnings of a lab that is as it should be.
_BUILD = re.compile(rb"^[a-z0-9-]+ \| (?:#\d+ [\d.]+ *)?(.*)")
_HARMLESS = re.compile(rb"\[WARNING\]: Module remote_tmp |WARNING: Location '[^']*' is ignored: ")
_TASK = re.compile(rb"^(?:TASK|RUNNING HANDLER) \[(.*)\]")
# Of a line that says what is being done.
_WIDTH = 140
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """An error with a message for the user."""


def _die_with_parent():
    # After a SIGKILL of this program, no build continues beside the next run.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def run(*argv, check=True, timeout=None):
    """Run a command and return its completed process with text output. `check` turns a failure into
    a LabError.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            preexec_fn=_die_with_parent,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed on this machine") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"no answer after {timeout} s: {' '.join(argv)}") from None
    if check and done.returncode != 0:
        raise LabError(
            (
                f"{' '.join(argv)}\n  ended with {done.returncode}: "
                f"{(done.stderr or done.stdout).strip()}"
            )
        )
    return done


class _Pulse:
    """What is being done, and when the terminal has last shown something."""

    def __init__(self):
        self.doing, self.task = "the lab", ""
        self.begun = self.shown = time.monotonic()

    def tell(self, doing=""):
        """Note that a line was shown, and what is being done now."""
        self.shown = time.monotonic()
        if doing:
            self.doing, self.begun = doing, self.shown

    def look(self, line):
        """Note what a line of a command shows of its progress.

        Returns whether the terminal shows the line.
        """
        plain = _COLOUR.sub(b"", line)
        task, build = _TASK.match(plain), _BUILD.match(plain)
        if task:
            self.task = task.group(1).decode(errors="replace")
            self.tell(self.task)
        elif build:
            self.doing = f"{self.task}: {build.group(1).decode(errors='replace').strip()}"
        return not (build or _HARMLESS.search(plain))


_PULSE = _Pulse()


@contextlib.contextmanager
def heartbeat(seconds=10):
    """Say what is being done whenever the terminal has shown nothing for that long."""
    ended = threading.Event()

    def beat():
        while not ended.wait(seconds / 20):
            now = time.monotonic()
            if now - _PULSE.shown >= seconds:
                text = f"lab: {now - _PULSE.begun:.0f} s: {_PULSE.doing}"
                print(text[:_WIDTH], flush=True)
                _PULSE.shown = now

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(output, label):
    """Write those lines of output to the terminal that it shows, with a label before each if there
    is one.
    """
    for line in output.splitlines(keepends=True):
        if _PULSE.look(line):
            if label is not None:
                line = b"%s: %s" % (label.encode(), line)
            sys.stdout.buffer.write(line)
            _PULSE.tell()
    sys.stdout.buffer.flush()


def stream(argv, log, env=None, label=None):
    """Run a command, show its output line by line on the terminal and write all of it without
    colours to the log. Return its exit code. With a label, the terminal shows it before each line,
    for commands that run side by side.
    """
    with open(log, "ab", buffering=0) as record:
        child = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            preexec_fn=_die_with_parent,
        )
        pending = b""
        try:
            while True:
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    break
                lines, end, pending = (pending + chunk).rpartition(b"\n")
                _show(lines + end, label)
                record.write(_COLOUR.sub(b"", chunk))
            _show(pending + b"\n" if pending and label is not None else pending, label)
        except KeyboardInterrupt:
            # Ctrl-C has also reached the child. Wait until it ends, then pass the interrupt on.
            child.wait()
            raise
        return child.wait()


def say(text):
    print(f"lab: {text}", flush=True)
    _PULSE.tell(text)
