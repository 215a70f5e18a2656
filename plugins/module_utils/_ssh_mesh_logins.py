# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logins from a training container to all others, for modules ssh_mesh_info and ssh_mesh_keys."""

from __future__ import annotations

import json
import socket
import time

from typing import Any, Dict, Iterable, Mapping, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import (
    PASSING,
    Login,
    clock_ahead,
    judge_login,
    parse_logins,
    one_line,
    seconds,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import Run, run_tool

#: Options of module ssh_mesh_info.
Params = Mapping[str, Any]
#: What C(docker inspect) prints of a container.
Inspected = Mapping[str, Any]
#: The result of module ssh_mesh_info.
Result = Dict[str, Any]


class ContainerSettings(TypedDict):
    """What sessions are compared with.

    C(memlock) is in KiB or unlimited, None for the engine's default.
    """

    id: str
    memlock: str | None
    environment: dict[str, str]


class LoginResult(TypedDict):
    """A login for a role.

    C(cause), C(fix) and C(evidence) are empty for one that worked, C(session) is for one that
    failed.
    """

    name: str
    ok: bool
    cause: str
    fix: str
    evidence: str
    session: dict[str, Any]


#: Options of a login other than the container, the peers and the address.
LOGIN_OPTIONS = {
    "environment": ["PATH", "LD_LIBRARY_PATH"],
    "timeout": 5,
    "executable": "/usr/local/lib/trainyard/bin/ssh",
}
TOKEN = "trainyard-login"

#: Times C(timeout): limit of one login, which connects, exchanges keys and starts a shell. Ending
#: it takes a moment, and so does docker exec.
LOGIN_TIMES, ALL_TIMES = 3, 4

#: What is read of a session's output. A session that prints more than so many blocks of at least
#: 512 bytes is ended.
MOST_BYTES, MOST_BLOCKS = 1 << 17, 1 << 16

# One docker exec for all peers, because it takes longer than a login. Each login has a limit of its
# own: one that hangs does not hide the others. The folder is where the container has room, because
# its /tmp may be full.
SCRIPT = r"""
ssh=$1 timeout=$2 probe=$3
shift 3
for place in /dev/shm /run "${TMPDIR:-/tmp}"; do
    out=$(mktemp -d "$place/trainyard-logins.XXXXXX" 2>/dev/null) || continue
    { head -c 4096 /dev/zero >"$out/room"; } 2>/dev/null && break
    rm -rf "$out"
    out=
done
[ -n "$out" ] || { echo "/dev/shm, /run and /tmp of the container are full or read-only" >&2; exit 1; }
trap 'rm -rf "$out"' EXIT
n=0
for peer; do
    n=$((n + 1))
    (
        began=$(date +%%s.%%N)
        ulimit -f %d
        timeout -k 1 $((%d * timeout)) "$ssh" -v -o BatchMode=yes -o ConnectTimeout="$timeout" -o ServerAliveInterval="$timeout" \
            -o ServerAliveCountMax=1 -- "$peer" "$probe" </dev/null >"$out/$n.out" 2>"$out/$n.err"
        echo "$? $began $(date +%%s.%%N)" >"$out/$n.rc"
    ) &
done
wait
i=0
while [ "$i" -lt "$n" ]; do
    i=$((i + 1))
    echo "%s $(cat "$out/$i.rc")"
    # The last line may have no end, and what a login file prints may be endless. The reason of an end stands last.
    tail -c %d "$out/$i.out" | sed 's/^/o /'
    echo
    tail -c %d "$out/$i.err" | sed 's/^/e /'
    echo
done
""" % (MOST_BLOCKS, LOGIN_TIMES, TOKEN, MOST_BYTES, MOST_BYTES)
# The id is part of the paths of files that Docker mounts into every container, with both versions
# of cgroups.
PROBE = r"""
echo "hostname=$(uname -n)"
echo "container_id=$(sed -n 's|.*/containers/\([0-9a-f]\{64\}\)/.*|\1|p' /proc/self/mountinfo | head -n 1)"
echo "memlock=$(ulimit -l)"
echo "clock=$(date +%s.%N)"
""".strip()
WAY_BACK = """
echo "way_back=$(python3 -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), int(sys.argv[3])).close()
    print("open")
except OSError as error:
    print(error)
' %s %d %d 2>&1 | tail -n 1)"
""".strip()


#: Before each line of what a caller also asks in the container.
ASKED = "a "


def settings_of(found: Inspected, names: Iterable[str]) -> ContainerSettings:
    """What sessions are compared with, from C(docker inspect): the container's ID, its limit of
    locked memory, and these variables.
    """
    limits = {limit["Name"]: limit["Hard"] for limit in found["HostConfig"].get("Ulimits") or []}
    limit = limits.get("memlock")
    memlock = None
    if limit is not None:
        memlock = "unlimited" if limit == -1 else str(limit // 1024)
    environment: dict[str, str] = dict(
        entry.split("=", 1) for entry in found["Config"]["Env"] or [] if "=" in entry
    )
    return {
        "id": found["Id"],
        "memlock": memlock,
        "environment": {name: environment[name] for name in names if name in environment},
    }


def own_container(module: Any, params: Params) -> tuple[Inspected | None, str, str]:
    """Return (Docker's data of the container, '', ''), or (None, cause, evidence)."""
    # This is not a login: an engine on a busy host may take longer.
    run = run_tool(
        module,
        ["docker", "inspect", "--type=container", params["container"]],
        max(20, params["timeout"]),
    )
    if run.cause or run.rc != 0:
        missing = "no such container" in run.stderr.lower()
        return (
            None,
            "container_not_running" if missing else "engine_unavailable",
            run.evidence or run.stderr.strip(),
        )
    container: Inspected = json.loads(run.stdout)[0]
    return container, "", ""


def session_of(login: Login) -> dict[str, Any]:
    """Return what the program in a session has printed."""
    lines = login["stdout"].split("\n")
    values: dict[str, str] = dict(line.split("=", 1) for line in lines if "=" in line)
    return {
        "hostname": one_line(values.pop("hostname", "")),
        "container_id": one_line(values.pop("container_id", "")),
        "memlock": one_line(values.pop("memlock", "")),
        "clock_ahead_s": clock_ahead(login, seconds(values.pop("clock", ""))),
        "way_back": one_line(values.pop("way_back", "")),
        "environment": {
            name[1:]: value for name, value in values.items() if name.startswith("$") and value
        },
    }


def log_in(
    module: Any, params: Params, peers: list[str], ask: str = ""
) -> tuple[list[LoginResult] | None, Run, str]:
    """Try all peers once.

    Returns the logins, or None with the run that failed, and what the shell commands C(ask) print
    in the container before that.
    """
    probe = [PROBE] + [
        "printf '$%s=%%s\\n' \"$%s\"" % (name, name) for name in params["environment"]
    ]
    # The kernel completes connections to a listening socket without an accept.
    with socket.socket() as listener:
        if params["address"]:
            listener.bind((params["address"], 0))
            listener.listen(len(peers))
            probe.append(WAY_BACK % (listener.getsockname() + (params["timeout"],)))
        run = run_tool(
            module,
            [
                "/bin/sh",
                "-c",
                ("{ %s\n} | sed 's/^/%s/'\n" % (ask, ASKED) if ask else "") + SCRIPT,
                "sh",
                params["executable"],
                str(params["timeout"]),
                "\n".join(probe),
            ]
            + peers,
            ALL_TIMES * params["timeout"],
            container=params["container"],
        )
    lines = run.stdout.split("\n")
    answer = "".join(line[len(ASKED) :] + "\n" for line in lines if line.startswith(ASKED))
    if run.cause or run.rc != 0:
        return None, run, answer
    logins: list[LoginResult] = []
    rest = "\n".join(line for line in lines if not line.startswith(ASKED))
    for name, login in zip(peers, parse_logins(rest, TOKEN)):
        cause, fix, evidence = judge_login(name, login["rc"], login["stderr"])
        logins.append(
            {
                "name": name,
                "ok": not cause,
                "cause": cause,
                "fix": fix,
                "evidence": evidence,
                "session": {} if cause else session_of(login),
            }
        )
    return logins, run, answer


def failure(run: Run) -> dict[str, str]:
    """Why there are no logins."""
    why = run.evidence or run.stderr.strip()
    return {"cause": run.cause or "unknown", "fix": "run training_environment.yml: %s" % why}


def try_logins(module: Any, params: Params, wait: float) -> Result:
    """Log in to all peers, for up to C(wait) seconds while an sshd is starting.

    Returns the result of ssh_mesh_info. ParseError for other output.
    """
    result: Result = {"available": False, "container": {}, "logins": []}
    found, cause, evidence = own_container(module, params)
    if found is None:
        return dict(result, cause=cause, fix="run training_environment.yml: %s" % evidence)
    result["container"] = settings_of(found, params["environment"])

    deadline = time.monotonic() + wait
    done: dict[str, LoginResult] = {}
    left = params["peers"]
    while left:
        logins, run, dummy = log_in(module, params, left)
        if logins is None:
            return dict(result, **failure(run))
        done.update((login["name"], login) for login in logins)
        left = [login["name"] for login in logins if login["cause"] in PASSING]
        if time.monotonic() >= deadline:
            break
        time.sleep(1 if left else 0)
    result.update(available=True, logins=[done[name] for name in params["peers"]])
    return dict(result, cause="", fix="")


def ask_and_try_logins(
    module: Any, params: Params, found: Inspected, ask: str
) -> tuple[Result, str]:
    """Log in to all peers once from a container of which C(docker inspect) is known.

    Returns the result of ssh_mesh_info, and what C(ask) has printed there.

    In one docker exec, because that takes longer than either. ParseError for other output.
    """
    result: Result = {
        "available": False,
        "container": settings_of(found, params["environment"]),
        "logins": [],
    }
    logins, run, answer = log_in(module, params, params["peers"], ask)
    if logins is None:
        return dict(result, **failure(run)), answer
    return dict(result, available=True, logins=logins, cause="", fix=""), answer
