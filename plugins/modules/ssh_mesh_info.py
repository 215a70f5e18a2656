#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_info
short_description: Test ssh logins from a training container to all others
version_added: "0.1.0"
description:
  - Logs in to all O(peers) at the same time from inside the container, with the ssh that jobs use and with host key checking.
  - Returns limits and environment of each session, or why the login failed. A failed login is a result and not a failure of the module.
  - With O(address), each session also connects back to a random port of this host, as ranks do to find each other. This detects a firewall that permits only
    sshd's port.
options:
  container:
    description: Name of the training container on this host.
    type: str
    required: true
  peers:
    description: Hosts to log in to, by the names that jobs use. Include the host itself, because a job's launcher may log in there too.
    type: list
    elements: str
    required: true
  address:
    description: This host's address on the cluster network. If empty, nothing connects back.
    type: str
    default: ""
  environment:
    description: Environment variables of the session to return.
    type: list
    elements: str
    default: [PATH, LD_LIBRARY_PATH]
  wait:
    description: Maximum time in seconds to retry while sshd is starting.
    type: int
    default: 20
  timeout:
    description: Maximum time in seconds for one connection.
    type: int
    default: 5
  executable:
    description: The ssh client in the container.
    type: path
    default: /usr/local/lib/trainyard/bin/ssh
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Log in to every container from this one
  trainyard.gpu.ssh_mesh_info:
    container: trainyard-training
    peers: [server-a, server-b]
  register: mesh
"""

RETURN = r"""
available:
  description: Whether the container answered.
  returned: always
  type: bool
cause:
  description: Why it did not answer, such as V(container_not_running) or V(engine_unavailable); empty if it answered.
  returned: always
  type: str
fix:
  description: What to do about it; empty if nothing is wrong.
  returned: always
  type: str
container:
  description: Docker's data of this host's container, for comparison with sessions on it.
  returned: always
  type: dict
  contains:
    id:
      description: Its id.
      type: str
    memlock:
      description: Limit of locked memory as C(ulimit -l) prints it, in KiB or V(unlimited); null if the container has none.
      type: str
    environment:
      description: Variables of O(environment) that image and container set.
      type: dict
logins:
  description: One entry per peer, in the order of O(peers).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name as given.
      type: str
    ok:
      description: Whether the login worked.
      type: bool
    cause:
      description:
        - Why it failed. One of V(host_key_changed), V(host_key_unknown), V(login_refused), V(name_unresolved), V(connection_refused), V(timeout), V(no_banner)
          (connections are accepted but sshd does not answer), V(unreachable), V(connection_closed), V(ssh_missing), V(unknown); empty if it worked.
      type: str
    fix:
      description: What to do about it; empty if it worked.
      type: str
    evidence:
      description: The line that shows the cause; empty if it worked.
      type: str
    session:
      description: Properties of the session; empty if there was none.
      type: dict
      contains:
        hostname:
          description: Name of the host.
          type: str
        container_id:
          description: Id of the container.
          type: str
        memlock:
          description: Output of C(ulimit -l), in KiB or V(unlimited).
          type: str
        clock_ahead_s:
          description:
            - Lower and upper bound in seconds by which its clock is ahead of this host's (negative if it is behind). They differ by the duration of the login.
            - Null if a clock cannot be read.
          type: list
          elements: float
          sample: [-0.183, 0.02]
        way_back:
          description: Result of the connection to this host's port, V(open) or the error; empty without O(address).
          type: str
        environment:
          description: Variables of O(environment) that are set.
          type: dict
"""

import json
import socket
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import (
    PASSING,
    ParseError,
    clock_ahead,
    judge_login,
    parse_logins,
    seconds,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import run_tool

TOKEN = "trainyard-login"

# One docker exec for all peers, because it takes longer than a login.
SCRIPT = (
    r"""
ssh=$1 timeout=$2 probe=$3
shift 3
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
n=0
for peer; do
    n=$((n + 1))
    (
        began=$(date +%%s.%%N)
        "$ssh" -o BatchMode=yes -o ConnectTimeout="$timeout" -o ServerAliveInterval="$timeout" -o ServerAliveCountMax=1 -- "$peer" "$probe" \
            </dev/null >"$out/$n.out" 2>"$out/$n.err"
        echo "$? $began $(date +%%s.%%N)" >"$out/$n.rc"
    ) &
done
wait
i=0
while [ "$i" -lt "$n" ]; do
    i=$((i + 1))
    echo "%s $(cat "$out/$i.rc")"
    sed 's/^/o /' "$out/$i.out"
    sed 's/^/e /' "$out/$i.err"
done
"""
    % TOKEN
)
# The id is part of the paths of files that Docker mounts into every container, with both versions of cgroups.
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


def own_container(module):
    """Docker's data of the container, or None with the cause."""
    # This is not a login: an engine on a busy host may take longer.
    run = run_tool(
        module,
        ["docker", "inspect", "--type=container", module.params["container"]],
        max(20, module.params["timeout"]),
    )
    if run.cause or run.rc != 0:
        missing = "no such container" in run.stderr.lower()
        return (
            None,
            "container_not_running" if missing else "engine_unavailable",
            run.evidence or run.stderr.strip(),
        )
    found = json.loads(run.stdout)[0]
    limits = {limit["Name"]: limit["Hard"] for limit in found["HostConfig"].get("Ulimits") or []}
    memlock = limits.get("memlock")
    environment = dict(
        entry.split("=", 1) for entry in found["Config"]["Env"] or [] if "=" in entry
    )
    return (
        {
            "id": found["Id"],
            "memlock": None
            if memlock is None
            else "unlimited"
            if memlock == -1
            else str(memlock // 1024),
            "environment": {
                name: environment[name]
                for name in module.params["environment"]
                if name in environment
            },
        },
        "",
        "",
    )


def session_of(login):
    values = dict(line.split("=", 1) for line in login["stdout"].splitlines() if "=" in line)
    return {
        "hostname": values.pop("hostname", ""),
        "container_id": values.pop("container_id", ""),
        "memlock": values.pop("memlock", ""),
        "clock_ahead_s": clock_ahead(login, seconds(values.pop("clock", ""))),
        "way_back": values.pop("way_back", ""),
        "environment": {
            name[1:]: value for name, value in values.items() if name.startswith("$") and value
        },
    }


def log_in(module, peers):
    """Try all peers once."""
    params = module.params
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
                SCRIPT,
                "sh",
                params["executable"],
                str(params["timeout"]),
                "\n".join(probe),
            ]
            + peers,
            4 * params["timeout"],
            container=params["container"],
        )
    if run.cause or run.rc != 0:
        return None, run
    logins = []
    for name, login in zip(peers, parse_logins(run.stdout, TOKEN)):
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
    return logins, run


def main():
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "str", "required": True},
            "address": {"type": "str", "default": ""},
            "environment": {
                "type": "list",
                "elements": "str",
                "default": ["PATH", "LD_LIBRARY_PATH"],
            },
            "wait": {"type": "int", "default": 20},
            "timeout": {"type": "int", "default": 5},
            "executable": {"type": "path", "default": "/usr/local/lib/trainyard/bin/ssh"},
        },
        supports_check_mode=True,
    )
    result = {"changed": False, "available": False, "container": {}, "logins": []}
    container, cause, evidence = own_container(module)
    if cause:
        module.exit_json(cause=cause, fix="run training_environment.yml: %s" % evidence, **result)
    result["container"] = container

    deadline = time.monotonic() + module.params["wait"]
    done, left = {}, module.params["peers"]
    while left:
        try:
            logins, run = log_in(module, left)
        except ParseError as error:
            module.fail_json(
                msg="the output of container %s cannot be parsed: %s. If a program or shell profile of the image prints the line, remove that. "
                "Else report it as a fault of the collection" % (module.params["container"], error)
            )
        if logins is None:
            module.exit_json(
                cause=run.cause or "unknown",
                fix="run training_environment.yml: %s" % (run.evidence or run.stderr.strip()),
                **result,
            )
        done.update((login["name"], login) for login in logins)
        left = [login["name"] for login in logins if login["cause"] in PASSING]
        if time.monotonic() >= deadline:
            break
        time.sleep(1 if left else 0)
    result.update(available=True, logins=[done[name] for name in module.params["peers"]])
    module.exit_json(cause="", fix="", **result)


if __name__ == "__main__":
    main()
