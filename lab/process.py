"""Run commands quietly, or stream their output to the terminal and a log."""

import ctypes
import os
import re
import signal
import subprocess
import sys

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """An error with a message for the user."""


def _die_with_parent():
    # After a SIGKILL of this program, no build continues beside the next run.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def run(*argv, check=True, timeout=None):
    """Run a command and return its completed process with text output. `check` turns a failure into a LabError."""
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
            f"{' '.join(argv)}\n  ended with {done.returncode}: {(done.stderr or done.stdout).strip()}"
        )
    return done


def _labelled(label, output):
    """Return what the terminal shows of output, and the beginning of a line that waits for its end. Without a label, all is shown at once."""
    if label is None:
        return output, b""
    *lines, rest = output.split(b"\n")
    return b"".join(b"%s: %s\n" % (label.encode(), line) for line in lines), rest


def stream(argv, log, env=None, label=None):
    """Run a command, show its output on the terminal and write it without colours to the log. Return its exit code. With a label, the terminal shows whole
    lines with the label before each, for commands that run side by side."""
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
                pending += chunk
                shown, pending = _labelled(label, pending)
                sys.stdout.buffer.write(shown)
                sys.stdout.buffer.flush()
                record.write(_COLOUR.sub(b"", chunk))
            sys.stdout.buffer.write(_labelled(label, pending + b"\n")[0] if pending else b"")
            sys.stdout.buffer.flush()
        except KeyboardInterrupt:
            # Ctrl-C has also reached the child. Wait until it ends, then pass the interrupt on.
            child.wait()
            raise
        return child.wait()


def say(text):
    print(f"lab: {text}", flush=True)
