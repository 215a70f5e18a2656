# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pure parts of transient_unit: a unit's scripts and their output, a log's bytes to lines, a
unit's end to a result.
"""

from __future__ import annotations

import base64
import re
import shlex
import signal

from typing import Any, Iterable, Mapping, TypedDict

RUN_DIRECTORY = "/run/trainyard"
# Time to collect lines. Without output, the next look can wait too, because each look uses CPU of a
# host that may be training.
WAIT_SECONDS = 3
SILENT_SECONDS = 6
# More lines at once are not readable on a terminal; the rest is in the log.
LINES_PER_LOOK = 400
BYTES_PER_LOOK = 4 * 1024 * 1024
ACTIVE = ("active", "activating", "deactivating", "reloading")
# A line without an end (a progress bar without a carriage return, binary output) is split here.
LONGEST_LINE = 8192

# Terminal escape sequences, then other control characters (except tab): a job's output must not
# control the operator's terminal.
_CONTROL = re.compile(
    (
        r"\x1b\[[0-?]*[ "
        r"-/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    )
)


class End(TypedDict):
    """How a unit ended.

    C(result) is systemd's (success, exit-code, signal, timeout, oom-kill ...), lapsed, lost or
    stopped; C(uptime) is in seconds.
    """

    rc: int
    result: str
    signal: str | None
    uptime: float


class Look(TypedDict):
    """What a look has seen.

    C(end) is None while the unit runs. C(data) are the log's bytes from C(offset) on; C(skipped)
    bytes before them were left out.
    """

    end: End | None
    inode: int
    offset: int
    skipped: int
    data: bytes


def clean(raw: bytes) -> str:
    """One line as a terminal shows it: the last state of a line that was overwritten after a
    carriage return.
    """
    states = [state for state in raw.split(b"\r") if state]
    text = states[-1].decode("utf-8", "replace") if states else ""
    return _CONTROL.sub("", text).rstrip()


def take_lines(data: bytes, final: bool = False) -> tuple[list[str], int]:
    """(lines, bytes consumed).

    An incomplete last line waits for its rest, unless the unit has ended.

    A carriage return ends a line too, so that a progress bar is shown. A last one waits, because it
    may be half of a CRLF.
    """
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1
    if final or len(data) - end > LONGEST_LINE:
        end = len(data)
    if not end:
        return [], 0
    pieces = data[:end].split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    lines: list[str] = []
    for piece in pieces:
        line = clean(piece)
        lines.extend(
            line[at : at + LONGEST_LINE] for at in range(0, max(len(line), 1), LONGEST_LINE)
        )
    return lines, end


def abridge(lines: list[str], limit: int, log: str) -> list[str]:
    """At most `limit` lines. The number of lines left out in the middle is shown."""
    if len(lines) <= limit:
        return lines
    head = limit // 4
    tail = limit - head - 1
    return (
        lines[:head]
        + ["... %d lines left out here; see the whole log in %s" % (len(lines) - head - tail, log)]
        + lines[-tail:]
    )


#: A task makes contact about every six seconds. One that was silent for longer has lost its
#: connection, or its play has ended.
FOLLOWED_SECONDS = 12


def why_not_again(unit: str, log: str, running: bool, silent: float | None, detach: bool) -> str:
    """Return why a unit that runs only once is neither started nor attached to, empty if it may be.

    C(log) is the path of the log that an earlier unit has left, empty if there is none. C(silent)
    are the seconds since a task that follows the running unit was heard of, None if it runs without
    one.
    """
    if not running:
        return (
            "%s has already run on this host, and its output is in %s" % (unit, log) if log else ""
        )
    if silent is not None and silent <= FOLLOWED_SECONDS:
        return "%s is running, and another play follows it" % unit
    return "%s is running" % unit if detach else ""


def start_script(
    unit: str,
    directory: str,
    command: Iterable[str],
    environment: Mapping[str, str],
    working_directory: str | None,
    lease: int,
) -> str:
    """The unit's main process.

    A script instead of systemd-run's arguments avoids double quoting, expansion of $ and %, and
    values in ps.
    """
    lines = ["#!/bin/sh"]
    lines.extend(
        "export %s=%s" % (key, shlex.quote(value)) for key, value in sorted(environment.items())
    )
    lines.append('export HOME="${HOME:-/root}"')
    if working_directory:
        lines.append("cd %s || exit 200" % shlex.quote(working_directory))
    if lease:
        # Uptime, because a change of the clock must not end a job. The watcher is in the unit's
        # cgroup and ends with it.
        lines.append(
            "( while sleep 1; do read -r now rest < /proc/uptime; read -r seen < %(dir)s/lease\n"
            "    [ $(( ${now%%.*} - ${seen%%.*} )) -le %(lease)d ] && continue\n"
            "    echo 'trainyard: the play that started this has not been heard of for "
            "%(lease)d s: stopping %(unit)s'\n"
            "    : > %(dir)s/lapsed\n"
            "    systemctl stop --no-block %(unit)s.service; exit\n"
            "  done ) &" % {"dir": shlex.quote(directory), "lease": lease, "unit": unit}
        )
    lines.append("exec %s" % " ".join(shlex.quote(word) for word in command))
    return "\n".join(lines) + "\n"


def stop_script(
    directory: str,
    environment: Mapping[str, str],
    stop_command: Iterable[str] | None,
    stop_timeout: int,
) -> str:
    """ExecStopPost, which runs after any end of the unit.

    The result is written last, after the stop command has finished.
    """
    lines = ["#!/bin/sh"]
    if stop_command:
        lines.extend(
            "export %s=%s" % (key, shlex.quote(value)) for key, value in sorted(environment.items())
        )
        lines.append(
            "timeout -k 5 %d %s"
            % (stop_timeout, " ".join(shlex.quote(word) for word in stop_command))
        )
    lines.append("read -r now rest < /proc/uptime")
    lines.append(
        (
            'printf "%%s %%s %%s %%s\\n" "$SERVICE_RESULT" "$EXIT_CODE" "$EXIT_STATUS" "$now" > '
            "%s/result.new"
        )
        % shlex.quote(directory)
    )
    # The scripts contain the environment, which may be secret, so they are removed with the unit.
    lines.append(
        "rm -f %(dir)s/start %(dir)s/stop; mv %(dir)s/result.new %(dir)s/result"
        % {"dir": shlex.quote(directory)}
    )
    return "\n".join(lines) + "\n"


# Uptime is read in hundredths, without a process. The output may pass a terminal, which changes
# line ends and bytes, so the log's bytes are encoded. It may follow output of sudo, PAM or a
# profile, so the answer is marked.
_LOOK = """#!/bin/sh
# Follows the unit from outside: renews the lease, waits for output or the end, tells both. $1 and $2: inode and size of the log as far as it is known.
set -f
now() { read -r t rest < /proc/uptime; t=${t%%.*}${t#*.}; }
now; stop=$((t + %(silent)d)); silent=yes; n=0
if [ %(lease)d -gt 0 ]; then echo "${t%%??}" > %(dir)s/lease.$$; mv %(dir)s/lease.$$ %(dir)s/lease; fi
while ! [ -e %(dir)s/result ] && [ "$t" -lt "$stop" ]; do
    if [ "$silent" ] && [ $((n %% 3)) = 0 ]; then
        case $(stat -c %%i:%%s %(log)s 2>/dev/null) in
            "" | "$1:$2") ;;
            *) silent=; [ "$stop" -le $((t + %(wait)d)) ] || stop=$((t + %(wait)d)) ;;
        esac
    fi
    sleep 0.1; n=$((n + 1)); now
done
inode=$1 from=$2 active=active end= lapsed=
[ -e %(dir)s/result ] || active=$(echo $(systemctl show --property=ActiveState --value %(unit)s.service 2>&1))
! [ -e %(dir)s/result ] || read -r end < %(dir)s/result
! [ -e %(dir)s/lapsed ] || lapsed=yes
set -- $(stat -c "%%i %%s" %(log)s 2>/dev/null)
size=${2:-$from}
# Rotated or truncated: what is there now is all new.
[ "${1:-$inode}" = "$inode" ] && [ "$size" -ge "$from" ] || from=0
skipped=$((size - from - %(most)d)); [ "$skipped" -gt 0 ] || skipped=0
from=$((from + skipped))
printf '%%s\\n' trainyard-look "$active" "$end" "$lapsed" "$t" "${1:-$inode}" "$from" "$skipped"
[ "$size" -eq "$from" ] || tail -c +$((from + 1)) %(log)s 2>/dev/null | head -c $((size - from)) | base64
echo trainyard-seen
"""


def look_script(unit: str, directory: str, log: str, lease: int) -> str:
    """A separate file, because sudo and systemd's journal record every command of a task."""
    return _LOOK % {
        "unit": unit,
        "dir": shlex.quote(directory),
        "log": shlex.quote(log),
        "lease": lease,
        "silent": SILENT_SECONDS * 100,
        "wait": WAIT_SECONDS * 100,
        "most": BYTES_PER_LOOK,
    }


def look_command(unit: str, inode: int, offset: int) -> str:
    """Run the look script. Its folder disappears when the host is restarted."""
    script = shlex.quote("%s/%s/look" % (RUN_DIRECTORY, unit))
    return "if [ -e %s ]; then sh %s %d %d; else echo trainyard-gone; fi" % (
        script,
        script,
        inode,
        offset,
    )


def parse_look(text: str) -> Look:
    """Parse the output of the look script. ValueError if it is incomplete."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if "trainyard-gone" in lines:
        return {
            "end": {"rc": 255, "result": "lost", "signal": None, "uptime": 0.0},
            "inode": 0,
            "offset": 0,
            "skipped": 0,
            "data": b"",
        }
    if "trainyard-look" not in lines or "trainyard-seen" not in lines:
        raise ValueError("the answer is incomplete")
    begin = lines.index("trainyard-look")
    active, result, lapsed, uptime, inode, offset, skipped = lines[begin + 1 : begin + 8]
    end: End | None = None
    if result:
        end = parse_result(result)
        if lapsed:
            end["result"] = "lapsed"
    elif active in ("inactive", "failed"):
        end = {"rc": 255, "result": "lost", "signal": None, "uptime": int(uptime) / 100.0}
    elif active not in ACTIVE:
        raise ValueError("systemctl cannot tell whether it runs: %s" % active)
    data = base64.b64decode("".join(lines[begin + 8 : lines.index("trainyard-seen")]))
    return {
        "end": end,
        "inode": int(inode),
        "offset": int(offset),
        "skipped": int(skipped),
        "data": data,
    }


def secret_texts(value: Any) -> list[str]:
    """The strings of a secret, longest first, so that a part of another string is replaced after
    it. Output has its lines one by one.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        value = [] if value is None or isinstance(value, bool) else [str(value)]
        return [line for text in value for line in _lines_of_secret(text)]
    return sorted((text for each in value for text in secret_texts(each)), key=len, reverse=True)


def _lines_of_secret(text: str) -> list[str]:
    """The text as lines of output have it.

    One character of several lines, such as a brace, is no secret.
    """
    lines = [line.rstrip() for line in _CONTROL.sub("", text.replace("\r", "\n")).split("\n")]
    return [line for line in lines if len(line) > 1 or line and len(lines) == 1]


def without_secrets(line: str, secrets: Iterable[str]) -> str:
    """The line with asterisks in place of each secret, which P(secret_texts) returns."""
    for secret in secrets:
        line = line.replace(secret, "********")
    return line


def parse_result(text: str) -> End:
    """Parse the output of the stop script."""
    result, code, status, uptime = text.split()
    name = None
    if code == "exited":
        rc = int(status)
    else:
        name = "SIG" + status
        rc = 128 + int(getattr(signal, name, 0))
        if result == "success":
            # systemd reports success for a unit that was stopped on demand, but its command did not
            # succeed.
            result = "stopped"
    return {"rc": rc, "result": result, "signal": name, "uptime": float(uptime)}


def describe_end(end: End, timeout: int, lease: int) -> str:
    """How the unit ended, as text."""
    if end["result"] == "lapsed":
        return "was stopped because the play that started it made no contact for %d s" % lease
    if end["result"] == "timeout":
        return "was stopped after its timeout of %d s" % timeout
    if end["result"] == "oom-kill":
        return "was killed by the kernel because memory was full"
    if end["result"] == "lost":
        return "disappeared without a result (was the host restarted?)"
    if end["result"] == "stopped":
        return "was stopped on the host"
    if end["signal"]:
        return "was ended by %s" % end["signal"]
    return "ended with exit code %d" % end["rc"]
